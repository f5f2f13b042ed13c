"""The peers by name: what is asked of the servers, and what their users get."""

from __future__ import annotations

from benchmarks.search.cases import Case
from benchmarks.search.tasks import Task

PEERS = ("accelerate", "lightning power", "lightning binsearch", "toma", "doubling and bisecting")
IMPORTS = (
    "benchmarks.search.peers", "benchmarks.search.trials", "accelerate.utils", "pytorch_lightning",
    "pytorch_lightning.tuner.batch_size_scaling", "toma", "torch._dynamo", "language", "vision", "other",
)  # fmt: skip
_WITH_A_SMALLER_LAST_PIECE = ("toma", "doubling and bisecting")


def task(case: Case, peer: str) -> Task:
    """Give the task of a case."""
    given = {
        "peer": peer,
        "spec": case.model.spec,
        "target": case.target,
        "limit_bytes": case.limit_bytes,
        "variables": case.variables,
    }
    return Task(key=f"{case.name}/{peer}", do="benchmarks.search.peers.on_gpu", given=given)


def effective(peer: str, size: int, target: int) -> int:
    """Give the batch of an update when people accumulate as the tool's documentation has it.

    Accelerate's example and Lightning's accumulate_grad_batches repeat one size, as often as it goes into the target;
    toma's range, and people who write their own, take a smaller last piece.
    """
    return target if takes_the_rest(peer) else size * max(1, target // size)


def takes_the_rest(peer: str) -> bool:
    """Whether those who use it give the rest of a batch to a smaller last piece."""
    return peer in _WITH_A_SMALLER_LAST_PIECE
