"""The peers, as they are: each finds a size for the same workload in a process of its own, and is only watched.

Each is called as its documentation shows it and starts where it is natural: from the target down (accelerate, toma), or
from 2 up (Lightning's default). None of them knows of a target, so that it is only a first size, or `max_val`.
"""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from autoaccum.device import open_device
from autoaccum.device.cpu import CpuDevice
from autoaccum.oom import is_oom
from benchmarks.search import trials
from benchmarks.search.contests import PEERS
from benchmarks.search.course import STEPS, Course
from benchmarks.search.forks import Row, Variables, apart

_ROWS = 1_000_000  # of the dataset that Lightning takes batches from


def accelerate(course: Course, target: int) -> int:
    """Run find_executable_batch_size, from the target down."""
    find = import_module("accelerate.utils").find_executable_batch_size

    @find(starting_batch_size=target)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> int:
        return course.train(batch_size)

    found: int = train()
    return found


def toma(course: Course, target: int) -> int:
    """Run toma's batch, from the target down."""
    execute = import_module("toma").toma.execute

    def train(batchsize: int) -> int:
        return course.train(batchsize)

    found: int = execute.batch(target)(train)
    return found


def lightning_power(course: Course, target: int) -> int:
    """Run scale_batch_size with its default mode."""
    return _lightning(course, target, "power")


def lightning_binsearch(course: Course, target: int) -> int:
    """Run scale_batch_size with bisection."""
    return _lightning(course, target, "binsearch")


def _lightning(course: Course, target: int, mode: str) -> int:
    lightning = import_module("pytorch_lightning")
    scaling = import_module("pytorch_lightning.tuner.batch_size_scaling")
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    module = _module(lightning, course)
    run = scaling._try_loop_run

    def watched(*args: Any) -> None:
        attempt = course.begin(module.batch_size)
        try:
            run(*args)
        except BaseException as error:
            attempt.oom = is_oom(error)
            raise

    with patch.object(scaling, "_try_loop_run", watched):
        trainer = lightning.Trainer(
            accelerator="gpu" if course.device.type == "cuda" else "cpu",
            devices=1,
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            plugins=[_checkpoints()],
        )
        tuner = import_module("pytorch_lightning.tuner").Tuner(trainer)
        found: int = tuner.scale_batch_size(module, mode=mode, steps_per_trial=STEPS, max_val=target)
    return found


def _checkpoints() -> Any:
    """Give Lightning a place in memory for the checkpoint that it makes before and restores after: disks are slow."""
    io: Any = import_module("pytorch_lightning.plugins.io")

    class InMemory(io.CheckpointIO):  # type: ignore[misc]
        """Keeps what is saved."""

        kept: Any = None

        def save_checkpoint(self, checkpoint: Any, path: Any, storage_options: Any = None) -> None:
            """Keep it."""
            self.kept = checkpoint

        def load_checkpoint(self, path: Any, *_: Any, **__: Any) -> Any:
            """Give it back."""
            return self.kept

        def remove_checkpoint(self, path: Any) -> None:
            """Forget it."""
            self.kept = None

    return InMemory()


def _module(lightning: Any, course: Course) -> Any:
    class Module(lightning.LightningModule):  # type: ignore[misc]
        """The workload as Lightning takes it."""

        def __init__(self) -> None:
            super().__init__()
            self.batch_size = 2
            self.model = course.workload.build_model()

        def training_step(self, batch: Any, number: int) -> torch.Tensor:
            """Give the loss."""
            loss: torch.Tensor = course.workload.loss(self.model, batch)
            return loss

        def on_train_batch_end(self, *_: Any) -> None:
            """Count an optimizer's step."""
            course.attempts[-1].steps += 1

        def configure_optimizers(self) -> Any:
            """Give the optimizer."""
            return course.workload.build_optimizer(self.model)

        def train_dataloader(self) -> Any:
            """Give batches of the size that is tried."""
            make_batch = course.workload.make_batch
            return torch.utils.data.DataLoader(
                range(_ROWS),  # type: ignore[arg-type]
                batch_size=self.batch_size,
                collate_fn=lambda rows: make_batch(len(rows)),
            )

    return Module()


def doubling(course: Course, target: int) -> int:
    """Double from 1 to the target, then bisect between what ran and what did not: our own, as people write it."""
    low, high, size = 0, target + 1, 1
    while high - low > 1:
        try:
            course.train(size)
        except RuntimeError as error:
            if not is_oom(error):
                raise
            high = size
        else:
            low = size
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        size = min(2 * size, target) if high > target else (low + high) // 2
    return low


_FIND: dict[str, Callable[[Course, int], int]] = dict(
    zip(PEERS, (accelerate, lightning_power, lightning_binsearch, toma, doubling), strict=True)
)


def on_gpu(peer: str, spec: str, target: int, limit_bytes: int, variables: Variables) -> Row:
    """Let a peer find a size on the GPU; then see in another process whether that size can be accumulated with."""
    given = {"peer": peer, "spec": spec, "target": target, "limit_bytes": limit_bytes}
    row = apart(_contest, given, variables)
    size = row.get("size")
    if size is not None:
        plan = () if size < target else (size,)
        given = {"spec": spec, "size": size, "plan": plan, "limit_bytes": limit_bytes}
        row["holds"] = apart(trials.fits, given, variables).get("ok", False)
    return row


def on_cpu(peer: str, spec: str, target: int, room_bytes: int) -> Row:
    """Let a peer find a size on the CPU, where it may take so much beyond what the process holds now."""
    device = CpuDevice()
    limit_bytes = device.describe().overhead_bytes + room_bytes
    return _watched(peer, Course.of(spec, device.torch_device), target, device.limited(limit_bytes))


def _contest(peer: str, spec: str, target: int, limit_bytes: int) -> Row:
    device = open_device("cuda")
    return _watched(peer, Course.of(spec, device.torch_device), target, device.limited(limit_bytes))


def _watched(peer: str, course: Course, target: int, limited: AbstractContextManager[None]) -> Row:
    """Run the tool; what it raises is its result, too."""
    found, message = None, ""
    try:
        with limited:
            found = _FIND[peer](course, target)
    except Exception as error:
        message = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"[:300]
    return {**course.summary(found), "error": message}
