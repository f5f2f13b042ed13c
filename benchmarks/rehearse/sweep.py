"""Rehearses timm models on the virtual GPU: what PyTorch's allocator reserves for each model and batch.

A model has a process of its own, forked from one that has imported everything: 505 models took 17 minutes on two busy
cores. Run by __main__.py, which gives it the models on stdin; prints a line of JSON for each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoaccum import virtual
from autoaccum.virtual import VirtualGpu

WORKLOAD = Path(__file__).with_name("timm_model.py")
UPDATES = 4  # of one micro-step, as in the measurements; a rehearsal makes three of two
_SPACE_BYTES = 1 << 40  # no batch is under pressure
_MOST_SECONDS = 300.0


def run(batches: Mapping[str, Sequence[int]], kept: Path, processes: int, share: float) -> dict[str, dict[str, Any]]:
    """Give a row for each model; what `kept` holds already is not run again, and all is added to it.

    `share` is that of cuDNN's workspaces: 0 for none.
    """
    rows = _read(kept, share)
    left = [model for model in batches if model not in rows]
    gpu = VirtualGpu(total_bytes=_SPACE_BYTES, capability="8.0", multiprocessors=108, copy_max_bytes=64 << 10)
    gpu = replace(gpu, cudnn_workspace_share=share)
    environment = {**os.environ, **virtual.environment(gpu), "OMP_NUM_THREADS": "1"}
    with kept.open("a") as out:
        children = [
            subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=out, env=environment, text=True)
            for _ in range(min(processes, len(left)))
        ]
        for number, child in enumerate(children):
            assert child.stdin is not None
            json.dump({model: sorted(batches[model]) for model in left[number :: len(children)]}, child.stdin)
            child.stdin.close()
        for child in children:
            child.wait()
    return _read(kept, share)


def _read(kept: Path, share: float) -> dict[str, dict[str, Any]]:
    rows = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    return {row["model"]: row for row in rows if row["share"] == share}


def _share() -> float:
    return float(os.environ["AUTOACCUM_VIRTUAL_CUDNN_WORKSPACE_SHARE"])


def main() -> None:
    """Fork a process for each model, one after another."""
    import timm  # noqa: F401  (imported once, for all that are forked)

    import autoaccum.anatomy.observe  # noqa: F401

    for model, batches in json.load(sys.stdin).items():
        child = os.fork()
        if child == 0:
            try:
                row = rehearse(model, batches)
            except BaseException as error:
                row = {"error": "".join(traceback.format_exception_only(error)).strip()[:300]}
            os.write(1, (json.dumps({"model": model, "share": _share(), **row}) + "\n").encode())
            os._exit(0)
        _wait(child)


def _wait(child: int) -> None:
    until = time.monotonic() + _MOST_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        time.sleep(0.02)
        if time.monotonic() > until:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return


def rehearse(model: str, batches: Sequence[int]) -> dict[str, Any]:
    """Run one model at each batch, in the way that `autoaccum rehearse` does; give peaks and traits."""
    from autoaccum.anatomy.observe import observe
    from autoaccum.device import open_device
    from autoaccum.records import Outcome, Trial
    from autoaccum.subject import FileSubject
    from autoaccum.trial import Runner

    os.environ["TIMM_MODEL"] = model
    device = open_device(f"virtual:{_SPACE_BYTES}B")
    subject = FileSubject(str(WORKLOAD), device, seed=0)
    runner = Runner(subject, device, _SPACE_BYTES)
    traits = observe(subject, runner, 2)
    rows = []
    for batch in batches:
        sample = runner.run(0, Trial(micro_batch=batch, accumulation_steps=1, updates=UPDATES, anew=True))
        if sample.outcome is Outcome.OOM:
            break  # no GPU has a terabyte
        if not sample.ok:
            raise RuntimeError(sample.message)
        rows.append((batch, sample.peak_reserved_bytes, sample.peak_allocated_bytes))
    return {"peaks": rows, "traits": traits.to_dict()}


if __name__ == "__main__":
    main()
