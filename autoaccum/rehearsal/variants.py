"""What a rehearsal may change about a workload, by the names of `--what-if`."""

from __future__ import annotations

from dataclasses import dataclass

from autoaccum.alterations import ALTERATIONS
from autoaccum.errors import UsageError
from autoaccum.knobs.names import ALLOWED, turns, words
from autoaccum.records import PLAIN, Knobs
from autoaccum.units import did_you_mean

_NAMES = (*(name for name in ALLOWED if name != "expandable_segments"), *ALTERATIONS)
_TOGETHER = "+"


@dataclass(frozen=True, kw_only=True, slots=True)
class Variant:
    """A workload with something changed; nothing for the workload as it is."""

    name: str = ""
    knobs: Knobs = PLAIN
    alterations: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """The names that it is made of."""
        return tuple(self.name.split(_TOGETHER)) if self.name else ()

    @property
    def words(self) -> str:
        """What is changed, for people."""
        return ", ".join([*words(self.knobs), *(ALTERATIONS[each] for each in self.alterations)])


AS_IT_IS = Variant()


def parse(text: str | None) -> tuple[Variant, ...]:
    """Give the variants that a list asks for: "checkpoint,bf16", or several at once, "checkpoint+bf16".

    >>> [variant.words for variant in parse("bf16+sgd")]
    ['bf16 autocast, SGD without momentum']
    """
    if text is None:
        return ()
    found = {}
    for item in (part.strip() for part in text.split(",")):
        names = [name.strip().replace("-", "_") for name in item.split(_TOGETHER)]
        for name in names:
            if name not in _NAMES:
                meant = did_you_mean(name, _NAMES)
                raise UsageError(f'"{name}" is nothing that --what-if knows: {meant}known are {", ".join(_NAMES)}')
        found[_TOGETHER.join(names)] = _variant(names)
    return tuple(found.values())


def _variant(names: list[str]) -> Variant:
    fields: dict[str, object] = {}
    for name in names:
        # Of several values that a name allows, the last saves the most memory: all blocks, not half of them.
        for field, value in sorted(turns(name), key=lambda turn: turn[1] == "all"):
            if fields.get(field, value) != value and field != "checkpoint":
                raise UsageError(f'"{_TOGETHER.join(names)}" sets {field} twice: take one of them')
            fields[field] = value
    altered = tuple(name for name in names if name in ALTERATIONS)
    return Variant(name=_TOGETHER.join(names), knobs=Knobs.from_dict(fields), alterations=altered)
