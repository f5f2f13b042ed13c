"""What may be turned, in words and in variables of the environment; without torch, for the command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from autoaccum.errors import UsageError
from autoaccum.records import Knobs
from autoaccum.units import did_you_mean

ALLOWED = ("bf16", "fp16", "tf32", "compile", "checkpoint", "channels_last", "foreach", "fused", "expandable_segments")

# These keep the precision of the arithmetic, and the program as its author wrote it: one keyword or variable each.
# (Sums may be rounded differently in the last bit, as between micro-batches of different sizes.)
BY_DEFAULT = ("foreach", "fused", "expandable_segments")

ALLOCATOR_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")

# The values of each field of Knobs, with the name that allows each; a field's default needs none.
_FIELDS: dict[str, dict[Any, str | None]] = {
    "precision": {None: None, "bf16": "bf16", "fp16": "fp16"},
    "tf32": {False: None, True: "tf32"},
    "compile": {False: None, True: "compile"},
    "checkpoint": {None: None, "half": "checkpoint", "all": "checkpoint"},
    "channels_last": {False: None, True: "channels_last"},
    "optimizer": {None: None, "foreach": "foreach", "fused": "fused"},
    "expandable_segments": {False: None, True: "expandable_segments"},
}

_WORDS: dict[tuple[str, Any], str] = {
    ("precision", "bf16"): "bf16 autocast",
    ("precision", "fp16"): "fp16 autocast",
    ("tf32", True): "tf32",
    ("compile", True): "torch.compile",
    ("checkpoint", "half"): "every second block checkpointed",
    ("checkpoint", "all"): "all blocks checkpointed",
    ("channels_last", True): "channels_last",
    ("optimizer", "foreach"): "foreach optimizer",
    ("optimizer", "fused"): "fused optimizer",
    ("expandable_segments", True): "expandable segments",
}


def parse_allow(text: str | Iterable[str] | None) -> tuple[str, ...]:
    """Give the names that may be turned: those by default and those asked for, in one order; "none" gives none.

    >>> parse_allow("checkpoint, bf16")
    ('bf16', 'checkpoint', 'foreach', 'fused', 'expandable_segments')
    """
    if text is None:
        return BY_DEFAULT
    parts = [part.strip() for part in (text.split(",") if isinstance(text, str) else text)]
    if parts == ["none"] or (not parts and not isinstance(text, str)):
        return ()
    for part in parts:
        if part not in ALLOWED:
            raise UsageError(_mistaken(part))
    return tuple(name for name in ALLOWED if name in parts or name in BY_DEFAULT)


def values(allowed: Iterable[str]) -> dict[str, tuple[Any, ...]]:
    """Give the values of each field of `Knobs` that may vary, its default first.

    >>> values(["bf16", "fused"])
    {'precision': (None, 'bf16'), 'optimizer': (None, 'fused')}
    """
    names = {None, *allowed}
    chosen = {field: tuple(value for value, name in each.items() if name in names) for field, each in _FIELDS.items()}
    return {field: several for field, several in chosen.items() if len(several) > 1}


def turns(name: str) -> set[tuple[str, Any]]:
    """Give the fields of `Knobs`, each with the value, that a name of `--allow` gives leave for."""
    return {(field, value) for field, each in _FIELDS.items() for value, allowed in each.items() if allowed == name}


def words(knobs: Knobs) -> list[str]:
    """Give what is turned, for people."""
    return [_WORDS.get(option, "=".join(map(str, option))) for option in knobs.options.items()]


def of_options(options: Mapping[str, Any]) -> Knobs:
    """Give the knobs that a plan's `options` ask for; raise for what none of them is: it would go unnoticed."""
    for field, value in options.items():
        if field not in _FIELDS:
            raise UsageError(f"a plan has no option {field}: known are {', '.join(_FIELDS)}")
        if value not in _FIELDS[field]:
            known = ", ".join(repr(each) for each in _FIELDS[field])
            raise UsageError(f"a plan's option {field} is one of {known}, not {value!r}")
    return Knobs.from_dict(options)


def environment(knobs: Knobs, device_environment: Mapping[str, str]) -> dict[str, str]:
    """Give the variables for a process with these knobs, where `device_environment` is what it would have anyway.

    CUDA's allocator reads the old name first, from 2.8 on the rest of torch the new one first, and 2.8 to 2.11 warn
    where there is only the old one. So both are set, alike unless the user had them differ.
    """
    if not knobs.expandable_segments or sets_segments(device_environment):
        return {}
    given = {name: device_environment[name] for name in ALLOCATOR_VARIABLES if device_environment.get(name)}
    either = next(iter(given.values()), "")
    ours = "expandable_segments:True"
    return {name: f"{had},{ours}" if (had := given.get(name, either)) else ours for name in ALLOCATOR_VARIABLES}


def sets_segments(variables: Mapping[str, str]) -> str | None:
    """Give the name of the variable that says something about expandable segments already, if one does."""
    spoken = (
        name for name in ALLOCATOR_VARIABLES if "expandable_segments:" in variables.get(name, "").replace(" ", "")
    )
    return next(spoken, None)


def _mistaken(part: str) -> str:
    known = ", ".join(ALLOWED)
    if part == "none":
        return '"none" allows no knob at all: it stands alone'
    if not part:
        return f"there is an empty name among the knobs to allow; known are {known}"
    return f'there is no knob "{part}": {did_you_mean(part, ALLOWED)}known are {known}'
