"""How the ranks of one job make one update together: alone, as replicas (DDP), or as shards (FSDP2).

Replicas exchange nothing during a window, unless the model itself does (SyncBatchNorm). All micro-batches run under
`no_sync`, then the ranks agree on what they counted and reduce the gradients by hand: their numbers of micro-batches
may differ, a rank that runs out of memory leaves no other waiting in a collective, and the window can be replayed. The
price is that the reduction does not overlap with the last backward pass.

Shards must gather parameters in every forward, so all ranks run the same number of micro-batches (some are padding),
gradients are reduced in the last backward pass, and running out of memory cannot be recovered from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from autoaccum.errors import UsageError

Count = float | torch.Tensor


class Ranks(Protocol):
    """What an update asks of the other ranks."""

    size: int
    recovers: bool  # whether a window that ran out of memory can be replayed
    same_divisor: float | None  # what losses must be divided by, where ranks cannot choose for themselves

    def begin(self) -> None:
        """A window begins."""

    def micro_batches(self, mine: int) -> int:
        """Give how many micro-batches this rank has to run, its own and padding."""

    def backward(self, *, last: bool) -> AbstractContextManager[None]:
        """Surround forward and backward of one micro-batch."""

    def any_of(self, mine: bool) -> bool:
        """Agree on whether it is so on some rank."""

    def total(self, loss_sum: torch.Tensor, count: Count) -> tuple[torch.Tensor, float]:
        """Give loss sum and count over all ranks."""

    def reduce(self, parameters: Sequence[torch.Tensor], divisor: Count, count: float) -> None:
        """Turn each rank's gradients, divided by `divisor`, into the gradient of the mean over `count`."""

    def whole(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """Give a norm as a plain tensor."""


class Alone:
    """One process."""

    size = 1
    recovers = True
    same_divisor: float | None = None

    def begin(self) -> None:
        """Nobody is waiting."""

    def micro_batches(self, mine: int) -> int:
        """Give what there is."""
        return mine

    def backward(self, *, last: bool) -> AbstractContextManager[None]:
        """Surround it with nothing."""
        return nullcontext()

    def any_of(self, mine: bool) -> bool:
        """Give what this process knows."""
        return mine

    def total(self, loss_sum: torch.Tensor, count: Count) -> tuple[torch.Tensor, float]:
        """Give them as they are, the count as a number."""
        return loss_sum, count.item() if isinstance(count, torch.Tensor) else count

    def reduce(self, parameters: Sequence[torch.Tensor], divisor: Count, count: float) -> None:
        """Correct the divisor, where it was not the count."""
        _multiply(_gradients(parameters), float(divisor) / count)

    def whole(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """Give it as it is."""
        return norm


class Replicas(Alone):
    """DistributedDataParallel: every rank has the whole model."""

    def __init__(self, model: DistributedDataParallel) -> None:
        if model.static_graph:
            raise UsageError("DDP with static_graph=True cannot leave out its reduction: make it without")
        if model._comm_hooks:
            raise UsageError("DDP's communication hooks are not used here: make it without")
        # Layers that talk to other ranks must do so equally often on all of them.
        self._in_step = any(isinstance(module, torch.nn.SyncBatchNorm) for module in model.modules())
        self.recovers = not self._in_step
        self._model = model
        self._group = model.process_group
        self._device = next(model.parameters()).device
        self.size = dist.get_world_size(self._group)

    def begin(self) -> None:
        """Give every rank the first one's buffers, as DDP does before a forward that synchronises."""
        if self._model.broadcast_buffers:
            first = dist.get_global_rank(self._group, 0)
            buffers = [buffer.detach() for buffer in self._model.module.buffers()]
            _exchange(buffers, lambda flat: dist.broadcast(flat, first, group=self._group))

    def micro_batches(self, mine: int) -> int:
        """Give what there is, unless ranks meet within micro-batches."""
        return _most(mine, self._device, self._group) if self._in_step else mine

    def backward(self, *, last: bool) -> AbstractContextManager[None]:
        """Keep DDP from reducing: that is done once, by hand."""
        silence: AbstractContextManager[None] = self._model.no_sync()
        return silence

    def any_of(self, mine: bool) -> bool:
        """Ask all ranks."""
        return bool(self._summed([float(mine)])[0])

    def total(self, loss_sum: torch.Tensor, count: Count) -> tuple[torch.Tensor, float]:
        """Add them up over the ranks."""
        everywhere = self._summed([float(loss_sum), float(count)])
        return everywhere[0], everywhere[1].item()

    def reduce(self, parameters: Sequence[torch.Tensor], divisor: Count, count: float) -> None:
        """Add up the ranks' gradients; a rank without one, where another has it, adds nothing."""
        has = self._summed([float(p.grad is not None) for p in parameters]).tolist()
        for parameter, ranks in zip(parameters, has, strict=True):
            if ranks and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = _gradients(parameters)
        if any(gradient.is_sparse for gradient in gradients):
            raise UsageError("sparse gradients are not reduced over ranks: make the embedding with sparse=False")
        _multiply(gradients, float(divisor) / count)
        _exchange(gradients, lambda flat: dist.all_reduce(flat, group=self._group))

    def _summed(self, values: list[float]) -> torch.Tensor:
        exact = torch.float32 if self._device.type == "mps" else torch.float64
        tensor = torch.tensor(values, dtype=exact, device=self._device)
        dist.all_reduce(tensor, group=self._group)
        return tensor


class Shards(Alone):
    """FSDP2 (`fully_shard`): every rank has a part of each parameter."""

    recovers = False

    def __init__(self, model: Any, rank_batch: int) -> None:
        self._model = model
        mesh = next(iter(model.parameters())).device_mesh
        if mesh.ndim > 1:
            raise UsageError("fully_shard over a mesh of several dimensions is not supported: shard over one")
        self._group = mesh.get_group()
        self._device = next(iter(model.parameters())).to_local().device
        self.size = dist.get_world_size(self._group)
        # The gradients are averaged in the backward pass, so that all ranks must have divided by the same.
        self.same_divisor = float(rank_batch)

    def micro_batches(self, mine: int) -> int:
        """Give the most that any rank has: a rank that stops early leaves the others waiting."""
        return _most(mine, self._device, self._group)

    def backward(self, *, last: bool) -> AbstractContextManager[None]:
        """Reduce in the last backward pass only."""
        self._model.set_requires_gradient_sync(last)
        return nullcontext()

    def total(self, loss_sum: torch.Tensor, count: Count) -> tuple[torch.Tensor, float]:
        """Add them up over the ranks."""
        tensor = torch.tensor([float(loss_sum), float(count)], dtype=torch.float64, device=self._device)
        dist.all_reduce(tensor, group=self._group)
        return tensor[0], tensor[1].item()

    def reduce(self, parameters: Sequence[torch.Tensor], divisor: Count, count: float) -> None:
        """Correct the divisor; FSDP2 has averaged over the ranks already."""
        _multiply(_gradients(parameters), float(divisor) * self.size / count)

    def whole(self, norm: torch.Tensor | None) -> torch.Tensor | None:
        """Gather a norm that is spread over the ranks."""
        full = getattr(norm, "full_tensor", None)
        return norm if full is None else full()


def ranks_of(model: torch.nn.Module, world_size: int, rank_batch: int) -> Ranks:
    """Give the ranks that `model` is spread over; raise where the plan was made for others."""
    found = _found(getattr(model, "_orig_mod", model), rank_batch)  # torch.compile wraps the wrapper
    if found.size != world_size:
        wrapped = "is not wrapped in DistributedDataParallel" if found.size == 1 else f"has {found.size} ranks"
        raise UsageError(f"the plan is for {world_size} rank{'s' * (world_size > 1)} and the model {wrapped}")
    return found


def _found(model: torch.nn.Module, rank_batch: int) -> Ranks:
    if not (dist.is_available() and dist.is_initialized()):
        return Alone()
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel  # half a second to import

    if isinstance(model, DistributedDataParallel):
        return Replicas(model)
    if isinstance(model, FSDPModule):
        return Shards(model, rank_batch)
    if any(isinstance(module, FullyShardedDataParallel) for module in model.modules()):
        raise UsageError("FullyShardedDataParallel is not supported: use fully_shard (FSDP2) or DDP")
    return Alone()


def _most(mine: int, device: torch.device, group: Any) -> int:
    """Give the most micro-batches that any rank has; raise on all of them where one has none to pad with."""
    extremes = torch.tensor([mine, -mine], device=device)
    dist.all_reduce(extremes, dist.ReduceOp.MAX, group=group)
    most, least = int(extremes[0].item()), -int(extremes[1].item())
    if most > 0 and least == 0:
        raise UsageError("a rank has no rows while others have: give every rank a part of the batch")
    return most


def _gradients(parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _multiply(gradients: Sequence[torch.Tensor], factor: float) -> None:
    if factor == 1.0:
        return
    dense = [gradient for gradient in gradients if not gradient.is_sparse]
    if dense:
        torch._foreach_mul_(dense, factor)
    for gradient in gradients:
        if gradient.is_sparse:
            gradient.mul_(factor)


def _exchange(tensors: Sequence[torch.Tensor], collective: Callable[[torch.Tensor], Any]) -> None:
    """Run the collective over all tensors, in few large messages instead of many small ones."""
    for bucket in _buckets(tensors):
        flat = torch.cat([tensor.reshape(-1) for tensor in bucket])
        collective(flat)
        for tensor, part in zip(bucket, torch.split(flat, [tensor.numel() for tensor in bucket]), strict=True):
            tensor.copy_(part.view_as(tensor))


def _buckets(tensors: Sequence[torch.Tensor], most_bytes: int = 25 << 20) -> list[list[torch.Tensor]]:
    """Group tensors of one type, up to a size that is worth a message."""
    buckets: list[list[torch.Tensor]] = []
    held: dict[tuple[torch.dtype, torch.device], tuple[list[torch.Tensor], int]] = {}
    for tensor in tensors:
        key = (tensor.dtype, tensor.device)
        bucket, size = held.get(key, ([], most_bytes))
        if size >= most_bytes:
            bucket, size = [], 0
            buckets.append(bucket)
        bucket.append(tensor)
        held[key] = (bucket, size + tensor.numel() * tensor.element_size())
    return buckets
