"""The cases on the virtual GPU: models, the GPUs that stand for the machine's own, and targets.

A GPU here differs from what a rehearsal takes it for, as real ones do: in its context, in what cuDNN asks for, in its
multiprocessors, and three of four in how PyTorch's allocator rounds sizes up. A rehearsal assumes that the gradients of
wide kernels ask for 1.5 times their input and output, and is not told of the rounding. Their work takes no time: so
plans are ranked by their steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu, environment

WORKLOADS = Path(__file__).with_name("workloads")
ROOM_BYTES = 1 << 44  # of a GPU on which nothing is under pressure
ALLOCATOR = "PYTORCH_CUDA_ALLOC_CONF"
_SHARE = 0.95  # of what is free: autoaccum's budget where none is given


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A kind of GPU, and what a rehearsal is told of it."""

    gpu: VirtualGpu
    told_capability: str
    told_multiprocessors: int
    allocator: str = ""  # its settings on the machine, which a rehearsal is not told

    def of(self, total_bytes: int, *, workspaces: bool = True) -> dict[str, str]:
        """Give the variables of the card with so much memory; cuDNN may ask for no workspaces."""
        gpu = replace(self.gpu, total_bytes=total_bytes)
        if not workspaces:
            gpu = replace(gpu, cudnn_workspace_share=0.0)
        return {**described(gpu), ALLOCATOR: self.allocator}

    def as_told(self) -> dict[str, str]:
        """Give the variables of what a rehearsal runs on."""
        told = VirtualGpu(
            total_bytes=ROOM_BYTES,
            capability=self.told_capability,
            multiprocessors=self.told_multiprocessors,
            copy_max_bytes=self.gpu.copy_max_bytes,
        )
        return {**described(told), ALLOCATOR: ""}


def _gpu(name: str, capability: str, multiprocessors: int, *mib: int, share: float) -> VirtualGpu:
    context, other = (each * MIB for each in mib)
    return VirtualGpu(
        total_bytes=0,
        name=name,
        capability=capability,
        multiprocessors=multiprocessors,
        context_bytes=context,
        cudnn_workspace_share=share,
        other_bytes=other,
        copy_max_bytes=64 << 10,  # nobody reads the values of what is larger
    )


# The smallest GPU of each model is of the first kind, the largest of the last.
# MiB: of the context, and of another tenant.
CARDS = (
    Card(gpu=_gpu("Imagined A", "8.6", 28, 380, 0, share=2.0), told_capability="8.6", told_multiprocessors=58),
    Card(
        gpu=_gpu("Imagined B", "8.9", 58, 430, 300, share=1.0), told_capability="8.9", told_multiprocessors=72,
        allocator="roundup_power2_divisions:16",
    ),
    Card(
        gpu=_gpu("Imagined C", "8.0", 108, 470, 0, share=2.2), told_capability="8.0", told_multiprocessors=84,
        allocator="roundup_power2_divisions:8",
    ),
    Card(
        gpu=_gpu("Imagined D", "9.0", 132, 620, 900, share=2.3), told_capability="8.0", told_multiprocessors=108,
        allocator="roundup_power2_divisions:8",
    ),
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Model:
    """A workload, the sizes of the GPUs that it is tried on, and the targets."""

    name: str
    file: str
    gib: tuple[int, int, int, int]
    targets: tuple[int, int, int]

    @property
    def spec(self) -> str:
        """The workload as autoaccum takes it."""
        return f"{WORKLOADS / self.file}.py:{self.name}"


MODELS = tuple(
    Model(name=name, file=file, gib=gib, targets=targets)
    for name, file, gib, targets in (
        ("gpt2", "language", (12, 24, 40, 80), (32, 127, 500)),
        ("bert", "language", (6, 12, 16, 24), (64, 500, 1000)),
        ("llama", "language", (12, 24, 40, 80), (61, 256, 500)),
        ("llama_bf16", "language", (12, 24, 40, 80), (50, 127, 512)),
        ("t5", "language", (8, 12, 16, 24), (45, 127, 512)),
        ("vit", "vision", (6, 8, 16, 24), (64, 500, 2048)),
        ("resnet50", "vision", (4, 8, 16, 24), (64, 500, 2048)),
        ("vgg", "vision", (8, 12, 16, 24), (64, 509, 2048)),
        ("mobilenet", "vision", (4, 8, 12, 24), (127, 500, 4096)),
        ("convnext", "vision", (4, 8, 16, 24), (64, 500, 2048)),
        ("unet", "vision", (8, 12, 24, 40), (32, 127, 500)),
        ("lstm", "other", (4, 8, 12, 16), (64, 500, 2048)),
        ("dlrm", "other", (4, 6, 8, 16), (500, 2048, 4096)),
        ("mlp", "other", (4, 6, 12, 24), (512, 2048, 8192)),
    )
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One question: the fewest steps for a target on a GPU."""

    model: Model
    kind: int
    target: int

    @property
    def card(self) -> Card:
        """The kind of GPU."""
        return CARDS[self.kind]

    @property
    def gib(self) -> int:
        """The memory of the GPU."""
        return self.model.gib[self.kind]

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of a process says of the GPU."""
        return self.card.of(self.gib * GIB)

    @property
    def limit_bytes(self) -> int:
        """What a process may hold there."""
        return int((self.gib * GIB - self.card.gpu.other_bytes) * _SHARE)

    @property
    def place(self) -> str:
        """The model and the GPU in a word: cases that differ in their targets share it."""
        return f"{self.model.name}/{self.gib}GiB"

    @property
    def name(self) -> str:
        """The case in a word."""
        return f"{self.place}/{self.target}"


def described(gpu: VirtualGpu) -> dict[str, str]:
    """Give the variables that describe a GPU, for a process in which its libraries are loaded already."""
    return {key: value for key, value in environment(gpu).items() if key.startswith("AUTOACCUM_VIRTUAL_")}


def all_cases() -> Iterator[Case]:
    """Give the cases in an order in which the first few are unlike."""
    for number in range(3):
        for kind in range(len(CARDS)):
            for model in MODELS:
                yield Case(model=model, kind=kind, target=model.targets[(number + kind) % 3])


def quick_cases() -> list[Case]:
    """Give a dozen that are unlike: each model but two, on each kind of GPU three times."""
    return [
        Case(model=model, kind=number % len(CARDS), target=model.targets[(number + number // len(CARDS)) % 3])
        for number, model in enumerate(MODELS[:12])
    ]
