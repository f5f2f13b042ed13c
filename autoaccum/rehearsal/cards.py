"""The GPUs that a rehearsal knows by name, with the memory that CUDA reports of each.

That is less than the data sheet says: the driver keeps some, and ECC takes a sixteenth of GDDR. It differs between
drivers, too, so that each card has the smallest of the figures that were found: a plan must not promise memory that
is not there. What was seen, and where, is in its `source`.

>>> [card.name for card in parse("t4,24GiB")]
['Tesla T4', '24.0 GiB']
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache

from autoaccum.errors import UsageError
from autoaccum.records import Record
from autoaccum.units import MIB, format_bytes, parse_bytes

__all__ = ["Card", "known", "parse"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Card(Record):
    """One kind of GPU."""

    key: str  # as people write it
    name: str  # as the driver tells it
    total_bytes: int  # as CUDA reports it to a process
    capability: str
    multiprocessors: int
    source: str  # of total_bytes


# Logs in public repositories: YOLO's programs print torch's total_memory in their first line, others the properties.
_YOLO = "a YOLO log"
_TORCH = "torch's properties in a log"
_LOG = "a log"

# Key, name, GB of the data sheet, what CUDA was seen to report, capability, multiprocessors, and where it was seen.
# A key has a size where NVIDIA sold the card with others, even if they are not here: its name alone says too little.
_CARDS = (
    ("rtx-3070", "NVIDIA GeForce RTX 3070", 8, "7753 MiB", "8.6", 46, _YOLO),
    ("rtx-3080-10gb", "NVIDIA GeForce RTX 3080", 10, "10002 MiB", "8.6", 68, _YOLO),
    ("rtx-2080-ti", "NVIDIA GeForce RTX 2080 Ti", 11, "10825 MiB", "7.5", 68, _YOLO),
    ("gtx-1080-ti", "NVIDIA GeForce GTX 1080 Ti", 11, "11169 MiB", "6.1", 28, _LOG),
    ("rtx-3060-12gb", "NVIDIA GeForce RTX 3060", 12, "11910 MiB", "8.6", 28, _YOLO),
    ("rtx-4070", "NVIDIA GeForce RTX 4070", 12, "11994 MiB", "8.9", 46, _YOLO),
    ("t4", "Tesla T4", 16, "14912 MiB", "7.5", 40, _YOLO),
    ("rtx-5080", "NVIDIA GeForce RTX 5080", 16, "15840 MiB", "12.0", 84, _YOLO),
    ("rtx-4060-ti-16gb", "NVIDIA GeForce RTX 4060 Ti", 16, "15.57 GiB", "8.9", 34, _LOG),
    ("rtx-a4000", "NVIDIA RTX A4000", 16, "15.61 GiB", "8.6", 48, "DengKaiCQ/VGGT-Long#6"),
    ("rtx-4080", "NVIDIA GeForce RTX 4080", 16, "16049 MiB", "8.9", 76, _TORCH),
    ("v100-16gb", "Tesla V100-SXM2-16GB", 16, "16130 MiB", "7.0", 80, _YOLO),
    ("p100-16gb", "Tesla P100-PCIE-16GB", 16, "16269 MiB", "6.0", 56, _YOLO),
    ("a10g", "NVIDIA A10G", 24, "22513 MiB", "8.6", 80, "ultralytics/ultralytics#7673"),
    ("l4", "NVIDIA L4", 24, "22563 MiB", "8.9", 58, _YOLO),
    ("a10", "NVIDIA A10", 24, "22.07 GiB", "8.6", 72, _LOG),
    ("rtx-a5000", "NVIDIA RTX A5000", 24, "22721 MiB", "8.6", 64, _YOLO),
    ("rtx-4090", "NVIDIA GeForce RTX 4090", 24, "24081 MiB", "8.9", 128, f"{_YOLO}, Soul-AILab/SoulX-FlashTalk#5"),
    ("a30", "NVIDIA A30", 24, "23.53 GiB", "8.0", 56, "google/RB-Modulation#5"),
    ("rtx-3090", "NVIDIA GeForce RTX 3090", 24, "24139 MiB", "8.6", 82, _YOLO),
    ("titan-rtx", "NVIDIA TITAN RTX", 24, "24212 MiB", "7.5", 72, _YOLO),
    ("rtx-5090", "NVIDIA GeForce RTX 5090", 32, "32102 MiB", "12.0", 170, _YOLO),
    ("v100-32gb", "Tesla V100-SXM2-32GB", 32, "32494 MiB", "7.0", 80, _YOLO),
    ("a100-40gb", "NVIDIA A100-SXM4-40GB", 40, "40339 MiB", "8.0", 108, "bottlerocket-os/bottlerocket#3873"),
    ("l40", "NVIDIA L40", 48, "45386 MiB", "8.9", 142, f"{_LOG}; 44.40 GiB in QwenLM/Qwen3-VL#2097"),
    ("a40", "NVIDIA A40", 48, "45416 MiB", "8.6", 84, _TORCH),
    ("rtx-6000-ada", "NVIDIA RTX 6000 Ada Generation", 48, "44.43 GiB", "8.9", 142, "DINGYANB/MTVCrafter#21"),
    ("l40s", "NVIDIA L40S", 48, "45495 MiB", "8.9", 142, _YOLO),
    ("rtx-a6000", "NVIDIA RTX A6000", 48, "48676 MiB", "8.6", 84, _TORCH),  # so much only without ECC, by the figure
    ("h100-pcie", "NVIDIA H100 PCIe", 80, "81008 MiB", "9.0", 114, _TORCH),
    ("a100-80gb", "NVIDIA A100-SXM4-80GB", 80, "81038 MiB", "8.0", 108, _YOLO),
    ("h100-80gb", "NVIDIA H100 80GB HBM3", 80, "81082 MiB", "9.0", 132, _TORCH),
    ("h100-nvl", "NVIDIA H100 NVL", 94, "93.00 GiB", "9.0", 132, "ali-vilab/VACE#56"),
    ("gh200-96gb", "NVIDIA GH200 480GB", 96, "94.88 GiB", "9.0", 132, "Lightning-AI/litgpt#1892"),
    ("rtx-pro-6000", "NVIDIA RTX PRO 6000 Blackwell Server Edition", 96, "97250 MiB", "12.0", 188, _TORCH),
    ("h200", "NVIDIA H200", 141, "143156 MiB", "9.0", 132, _YOLO),
    ("b200", "NVIDIA B200", 180, "178.35 GiB", "10.0", 148, "pytorch/ao#4002"),
)
_ALIASES = {
    "h100": "h100-80gb",  # the PCIe one has 74 MiB less, the NVL one has more
    "h100-sxm": "h100-80gb",
    "h100-94gb": "h100-nvl",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
}
_BARE = re.compile(r"[0-9]{1,3}(\.[0-9]+)?[gG]?")
_SIZE = re.compile(r"[0-9.]+ ?[kmgt]?i?b", re.IGNORECASE)
_SIZE_IN_NAME = re.compile(r"[-_ ]([0-9]+) ?gi?b?$")
_EXAMPLE = "name a GPU such as a100-40gb, or a size such as 24GiB"


@cache
def known() -> tuple[Card, ...]:
    """Give all cards, the smallest first."""
    cards = (
        Card(
            key=key,
            name=name,
            total_bytes=parse_bytes(seen),
            capability=capability,
            multiprocessors=multiprocessors,
            source=f"data sheet: {sold} GB; reported: {seen} ({where})",
        )
        for key, name, sold, seen, capability, multiprocessors, where in _CARDS
    )
    return tuple(sorted(cards, key=lambda card: (card.total_bytes, card.key)))


def parse(text: str) -> tuple[Card, ...]:
    """Give the cards that `text` names, in its order and each once: "a100-40gb,24GiB", or "all" for the whole list."""
    if not text.strip():
        raise UsageError(f"no GPU is named: {_EXAMPLE}")
    chosen: dict[tuple[str, int], Card] = {}
    for part in text.split(","):
        item = " ".join(part.split())
        if not item:
            raise UsageError(f'"{" ".join(text.split())}" has a comma too many: {_EXAMPLE}, on each side of it')
        for card in known() if item.lower() == "all" else (_card(item),):
            chosen.setdefault((card.name, card.total_bytes), card)  # 24GiB and 24576MiB are the same
    return tuple(chosen.values())


def _card(item: str) -> Card:
    spelling = _squeezed(item)
    if sizes := _short().get(spelling):
        raise UsageError(f'"{item}" is sold in several sizes: write {" or ".join(sizes)}, or a size such as 24GiB')
    if key := _spellings().get(spelling):
        return next(card for card in known() if card.key == key)
    if _BARE.fullmatch(item):
        raise UsageError(f'"{item}" has no unit: write {item.rstrip("gG")}GiB for a size')
    if not _SIZE.fullmatch(item):
        rest = "--gpu all takes every GPU that is known, and a size such as 24GiB works too"
        raise UsageError(f'unknown GPU "{item}": {_near(spelling)}{rest}')
    size = parse_bytes(item)
    # A size says nothing else: the rest is that of an A100, as with every virtual GPU.
    return Card(
        key=item, name=format_bytes(size), total_bytes=size, capability="8.0", multiprocessors=108, source="as given"
    )


def _squeezed(text: str) -> str:
    """Give a name without what people leave out or write otherwise: "RTX 4090" and "4090", "a100_80g"."""
    text = re.sub(r"[-_ ]", "", _SIZE_IN_NAME.sub(r"\1gb", text.lower()))
    return re.sub(r"^(nvidia)?(geforce|tesla)?(rtx|gtx)?", "", text)


@cache
def _short() -> dict[str, tuple[str, ...]]:
    """Give the names that lack a size, each with the keys that have one."""
    short: dict[str, tuple[str, ...]] = {}
    for key, *_ in _CARDS:
        name = _SIZE_IN_NAME.sub("", key)
        if name not in (key, *_ALIASES):
            short[_squeezed(name)] = (*short.get(_squeezed(name), ()), key)
    return short


@cache
def _spellings() -> dict[str, str]:
    """Give every way to write a card, squeezed, with its key: with its size, too, and as the driver names it."""
    spellings = {_squeezed(alias): key for alias, key in _ALIASES.items()}
    for key, name, sold, *_ in _CARDS:
        sized = key if _SIZE_IN_NAME.search(key) else f"{key}-{sold}gb"
        spellings |= {_squeezed(each): key for each in (key, sized, name)}
    return spellings


def _near(spelling: str) -> str:
    # Not units.did_you_mean: one digit makes another GPU, and what is near may be a name that lacks its size.
    known_as = {**_spellings(), **{name: keys[0] for name, keys in _short().items()}}
    close = get_close_matches(spelling, known_as, n=1, cutoff=0.8)
    return f"did you mean {known_as[close[0]]}? " if close else ""


def as_table() -> str:
    """Give all cards as a table in Markdown: docs/rehearse-gpus.md has it."""
    rows = [f"| `{c.key}` | {c.name} | {c.total_bytes // MIB} MiB | {c.capability} | {c.source} |" for c in known()]
    return "\n".join(["| name | as the driver has it | memory | capability | source |", "|---|---|---|---|---|", *rows])
