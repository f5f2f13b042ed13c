"""One update of a workload with every operator looked at as it is called; in the child.

Autograd hands a dispatch mode on to the threads in which it runs a backward pass, so that the backward pass is
counted and not guessed. Compiled models run eagerly for the time of it.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from autoaccum.anatomy.dissect import check
from autoaccum.anatomy.flops import flops_of, packet_of
from autoaccum.anatomy.traits import KINDS, HostRead, Traits
from autoaccum.parts import model_info
from autoaccum.records import Trial
from autoaccum.subject import FileSubject
from autoaccum.trial import BACKWARD, FORWARD, STEP, Runner

_OURS = f"{Path(__file__).parents[1]}/"
_TORCH = f"{Path(torch.__file__).parent}/"
_PACKAGES = ("site-packages/", "dist-packages/")
_DEPENDS_ON_DATA = frozenset((torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape))
_UNTAGGED = ("_coalesce", "nms")  # their results are as long as the data make them, too
_INDEXING = ("index", "index_put", "index_put_", "_index_put_impl_")
_WORDS = {"_local_scalar_dense": "item", "_to_copy": "cpu", **dict.fromkeys(_INDEXING, "boolean mask")}
_MASKS = (torch.bool, torch.uint8)


def observe(subject: FileSubject, runner: Runner, micro_batch: int) -> Traits:
    """Run an update of one micro-batch and give what was seen of it; raises what the user has to mend."""
    observer = _Observer(subject)
    with torch.compiler.set_stance("force_eager"), observer:
        check(runner.run(0, Trial(micro_batch=micro_batch, accumulation_steps=1, updates=1)))
    return Traits(
        micro_batch=micro_batch,
        flops=observer.flops,
        host_reads=tuple(
            HostRead(place=place, operation=operation, count=count, library=library)
            for (place, operation, library), count in observer.reads.items()
        ),
        cudnn_benchmark=torch.backends.cudnn.benchmark,
        parameter_bytes=model_info(subject.parts()).parameter_bytes,
    )


class _Observer(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations in the passes, and notes who reads what was computed."""

    supports_higher_order_operators = True

    def __init__(self, subject: FileSubject) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = dict.fromkeys(KINDS, 0.0)
        self.reads: Counter[tuple[str, str, str]] = Counter()
        self._subject = subject
        self._own = f"{subject.path.parent.resolve()}/"

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(each.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for each in types):
            return NotImplemented  # a tensor made of others: they come by here in its place
        if isinstance(func, torch._ops.OpOverload):
            with self:  # of what inference mode lets through whole, the parts are counted
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
            self._look(func, args, kwargs, sys._getframe().f_back)
        result = func(*args, **kwargs)
        if self._subject.doing in (FORWARD, BACKWARD):
            counted = flops_of(func, args, kwargs, result)
            if counted is not None:
                self.flops[counted[0]] += counted[1]
        return result

    def _look(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], frame: FrameType | None) -> None:
        if self._subject.doing not in (FORWARD, BACKWARD, STEP) or not _reads(func, args, kwargs):
            return
        name = packet_of(func).__name__
        frames = list(_frames(frame))
        own = next((each for each in frames if self._is_own(each)), None)
        if frames:
            place = self._shown(own) if own is not None else _shown_library(frames[0])
            library = _shown_library(frames[0]) if own is not None and frames[0] is not own else ""
            self.reads[place, _WORDS.get(name, name.strip("_2")), library] += 1

    def _is_own(self, frame: FrameType) -> bool:
        name = frame.f_code.co_filename
        return name.startswith(self._own) and not any(each in name for each in _PACKAGES)

    def _shown(self, frame: FrameType) -> str:
        path = self._subject.path.parent / Path(frame.f_code.co_filename).relative_to(self._own)
        return f"{path}:{frame.f_lineno} in {frame.f_code.co_name}"


def _reads(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call needs on the host what is on a GPU; a copy into a tensor of the host is taken for offloading."""
    name = packet_of(func).__name__
    if name in _INDEXING:
        asks = any(each is not None and each.dtype in _MASKS for each in args[1])
    elif name == "_to_copy":
        asks = kwargs.get("device") == torch.device("cpu")
    elif name == "repeat_interleave":
        asks = kwargs.get("output_size") is None
    else:
        asks = name in _UNTAGGED or not _DEPENDS_ON_DATA.isdisjoint(func.tags)
    return asks and any(isinstance(each, torch.Tensor) and each.is_cuda for each in args)


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Give what runs outside of torch, the innermost first, up to autoaccum's own."""
    while frame is not None and not frame.f_code.co_filename.startswith(_OURS):
        if not frame.f_code.co_filename.startswith((_TORCH, "<")):
            yield frame
        frame = frame.f_back


def _shown_library(frame: FrameType) -> str:
    name = frame.f_code.co_filename
    for folder in _PACKAGES:
        name = name.rpartition(folder)[2]
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"
