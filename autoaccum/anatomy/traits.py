"""What of a workload decides how far a virtual GPU can be trusted with it."""

from __future__ import annotations

from dataclasses import dataclass

from autoaccum.records import Record

MATMUL, ATTENTION, RECURRENT = "matmul", "attention", "recurrent"
DENSE_CONVOLUTION, OTHER_CONVOLUTION = "dense_convolution", "other_convolution"
KINDS = (MATMUL, ATTENTION, DENSE_CONVOLUTION, OTHER_CONVOLUTION, RECURRENT)


@dataclass(frozen=True, kw_only=True, slots=True)
class HostRead(Record):
    """A place where the program reads on the host what the GPU computed, or makes shapes of it."""

    place: str  # "model.py:31 in forward": in the user's own code if any of it was running, else in a library
    operation: str  # "item", "nonzero", "boolean mask", "cpu" ...
    count: int
    library: str = ""  # the library's line that reads, where it does so on behalf of `place`


@dataclass(frozen=True, kw_only=True, slots=True)
class Traits(Record):
    """What one forward and backward pass computes, and what it reads; `host_reads` also of the optimizer's step."""

    micro_batch: int
    flops: dict[str, float]  # by kind, all of KINDS; a dense convolution has no groups, and a kernel of several pixels
    host_reads: tuple[HostRead, ...]  # in the order in which they first came
    cudnn_benchmark: bool  # as the pass left torch.backends.cudnn.benchmark
    parameter_bytes: int
