"""autoaccum env."""

from __future__ import annotations

import json

from autoaccum.commands.options import command, option, print_answer


@command()
@option("--device", default="auto", show_default=True, metavar="NAME", help="auto, cpu, cuda[:N] or virtual:SIZE.")
@option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def env(device: str, as_json: bool) -> None:
    """Say what is found here: device, memory, driver, versions.

    \b
    Examples:
      autoaccum env
      autoaccum env --device cuda:1 --json
    """
    from autoaccum.environment import describe, lines

    found = describe(device)
    print_answer(json.dumps(found, indent=2) if as_json else "\n".join(lines(found)))
