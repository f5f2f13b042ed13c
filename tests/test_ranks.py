"""Two real processes over gloo: their one update equals that of the full batch in one process."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

RANKS = 2

PRELUDE = """
    import copy, os, sys, warnings
    from datetime import timedelta
    import torch, torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from autoaccum.errors import AutoaccumError, AutoaccumWarning, NothingFits, UsageError
    from tests.training import *

    rank = int(sys.argv[1])
    store = dist.FileStore(sys.argv[2], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    torch.manual_seed(1)

    def share(batch, first):
        "This rank's rows: the first so many of them, or the rest."
        rows = slice(0, first) if rank == 0 else slice(first, None)
        return {k: v[rows] for k, v in batch.items()} if isinstance(batch, dict) else tuple(v[rows] for v in batch)

    def equal(model, reference):
        assert distance(model, reference) < 1e-12, distance(model, reference)
"""

# gloo's threads may abort a process that tears itself down while the other is still talking.
END = "\ndist.barrier()\nsys.stdout.flush()\nos._exit(0)\n"

Run = Callable[[str], None]


@pytest.fixture
def together(tmp_path: Path) -> Run:
    """Run a script in two processes that form one group; both have to end well."""

    def run(script: str) -> None:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(script) + END)
        started = [
            subprocess.Popen(
                [sys.executable, "-W", "ignore", path, str(rank), tmp_path / "store"],
                env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(RANKS)
        ]
        try:
            printed = [process.communicate(timeout=120)[0] for process in started]
        finally:
            for process in started:
                process.kill()
        assert [process.returncode for process in started] == [0, 0], "\n".join(printed)

    return run


def test_replicas_with_unequal_tokens_and_a_short_last_batch_are_exact(together: Run) -> None:
    together("""
        model = TokenModel().double()
        reference = copy.deepcopy(model)
        model = DDP(model)
        step = plan_of(5, 4, 3, world_size=2).stepper(model, torch.optim.Adam(model.parameters()), token_loss, clip=0.1)
        # The last has 9 rows here and 1 there: two micro-batches and one.
        batches = [(ragged(24, 0), 12), (ragged(24, 1), 12), (ragged(10, 2), 9)]
        outs = [step(share(batch, first)) for batch, first in batches]
        alone = plan_of(24).stepper(reference, torch.optim.Adam(reference.parameters()), token_loss, clip=0.1)
        expected = [alone(batch) for batch, _ in batches]
        equal(model, reference)
        for out, want in zip(outs, expected):
            assert abs(out.loss - want.loss) < 1e-12 and out.count == want.count
            assert abs(out.grad_norm - want.grad_norm) < 1e-12
    """)


def test_a_replica_that_runs_out_of_memory_takes_the_other_back_with_it(together: Run) -> None:
    together("""
        def trained(fails):
            torch.manual_seed(1)
            model = DDP(classifier(nn.BatchNorm1d(8), nn.Dropout(0.5)), broadcast_buffers=False)
            torch.manual_seed(2 + rank)
            calls = []
            def loss(model, batch):
                calls.append(len(batch[0]))
                value = mean_loss(model, batch)
                if fails and rank == 1 and len(calls) == 2:
                    raise torch.OutOfMemoryError("out of memory")
                return value
            # Rank 1 runs smaller micro-batches from the first window on; rank 0 goes back with it.
            plan = plan_of(*([6, 6] if fails or rank == 0 else [4, 4, 4]), world_size=2)
            step = plan.stepper(model, torch.optim.SGD(model.parameters(), 0.1, 0.9), loss)
            for seed in range(3):
                step(share(samples(24, seed), 12))
            return model, calls
        model, calls = trained(True)
        reference, _ = trained(False)
        assert calls[:5] == ([6, 6, 6, 6, 6] if rank == 0 else [6, 6, 4, 4, 4]), calls
        assert distance(model, reference) == 0
        for mine, other in zip(model.buffers(), reference.buffers()):
            assert torch.equal(mine, other)
    """)


def test_a_replica_that_fits_no_sample_ends_them_both(together: Run) -> None:
    together("""
        model = DDP(classifier())
        def loss(model, batch):
            if rank == 1:
                raise torch.OutOfMemoryError("out of memory")
            return mean_loss(model, batch)
        step = plan_of(2, 2, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        try:
            step(share(samples(8), 4))
        except NothingFits as error:
            assert ("another rank" if rank == 0 else "not even one sample") in str(error), error
        else:
            raise SystemExit("went on")
    """)


def test_layers_that_meet_keep_the_replicas_in_step(together: Run) -> None:
    together("""
        class Meeting(nn.SyncBatchNorm):  # the real one runs on GPUs only
            def forward(self, x):
                total = x.detach().sum().reshape(1)
                dist.all_reduce(total)
                return x + 0 * total
        model = classifier(nn.Identity())
        reference = copy.deepcopy(model)
        model = DDP(model)
        model.module[1] = Meeting(8, affine=False, track_running_stats=False)  # DDP itself refuses it on the CPU
        step = plan_of(4, 4, 4, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
        step(share(samples(11), 8))  # two micro-batches here, one there
        full_batch(reference, torch.optim.SGD(reference.parameters(), 0.1), mean_loss, [samples(11)])
        equal(model, reference)
    """)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("DDP(classifier(), static_graph=True)", "static_graph"),
        ("hooked(DDP(classifier()))", "communication hooks"),
    ],
)
def test_what_ddp_cannot_do_here_is_refused(made: str, words: str, together: Run) -> None:
    together(f"""
        def hooked(model):
            model.register_comm_hook(None, lambda state, bucket: bucket.buffer())
            return model
        model = {made}
        try:
            plan_of(12, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
        except UsageError as error:
            assert {words!r} in str(error), error
        else:
            raise SystemExit("accepted")
    """)


def test_a_parameter_that_only_one_replica_used_is_updated_on_both(together: Run) -> None:
    together("""
        model = nn.ModuleDict({"a": nn.Linear(6, 5), "b": nn.Linear(6, 5), "never": nn.Linear(1, 1)}).double()
        model.forward = lambda x, which: nn.ModuleDict.__getitem__(model, which)(x)
        reference = copy.deepcopy(model)
        wrapped = DDP(model, find_unused_parameters=True)
        def loss(model, batch):
            return nn.functional.cross_entropy(model(batch[0], "ab"[rank]), batch[1])
        batch = samples(24)
        step = plan_of(6, 6, world_size=2).stepper(wrapped, torch.optim.SGD(model.parameters(), 0.1), loss)
        step(share(batch, 12))
        parts = [(batch[0][:12], batch[1][:12], "a"), (batch[0][12:], batch[1][12:], "b")]
        optimizer = torch.optim.SGD(reference.parameters(), 0.1)
        sum(0.5 * nn.functional.cross_entropy(reference[name](x), y) for x, y, name in parts).backward()
        optimizer.step()
        equal(model, reference)
    """)


def test_replicas_start_every_window_with_the_first_ones_buffers(together: Run) -> None:
    together("""
        seen = []
        model = DDP(nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5)).double())
        def loss(model, batch):
            seen.append(model.module[1].running_mean.clone())
            return mean_loss(model, batch)
        step = plan_of(6, 6, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss)
        for seed in range(2):
            step(share(samples(24, seed), 12))
        everywhere = [torch.zeros_like(seen[2]) for _ in range(2)]
        dist.all_gather(everywhere, seen[2])  # as the second window began
        assert torch.equal(*everywhere) and everywhere[0].norm() > 0
        assert step._rewind._changing == {f"module.1.{name}" for name, _ in model.module[1].named_buffers()}
    """)


def test_a_buffer_that_never_changes_is_not_copied_for_every_window(together: Run) -> None:
    together("""
        inner = classifier()
        inner.register_buffer("mask", torch.ones(1000))
        model = DDP(inner)
        step = plan_of(6, 6, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
        step(share(samples(24), 12))
        assert step._rewind._changing == set()
    """)


def test_a_scaler_skips_on_both_replicas_when_one_overflows(together: Run) -> None:
    together("""
        model = classifier().float()
        before = copy.deepcopy(model)
        model = DDP(model)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        def loss(model, batch):
            return mean_loss(model, (batch[0].float(), batch[1])) * (1e38 if rank == 1 else 1.0) * 1e2
        step = plan_of(6, 6, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), loss, scaler=scaler)
        out = step(share(samples(24), 12))
        assert out.skipped and distance(model, before) == 0 and scaler.get_scale() == 2.0
    """)


def test_shards_with_unequal_numbers_of_micro_batches_are_exact(together: Run) -> None:
    together("""
        from torch.distributed.fsdp import fully_shard
        from torch.distributed.tensor import DTensor
        model = TokenModel().double()
        reference = copy.deepcopy(model)
        fully_shard(model)
        step = plan_of(5, 4, 3, world_size=2).stepper(model, torch.optim.Adam(model.parameters()), token_loss, clip=0.1)
        batches = [(ragged(24, 0), 12), (ragged(24, 1), 12), (ragged(10, 2), 9), (ragged(24, 3), 12)]
        outs = [step(share(batch, first)) for batch, first in batches]
        alone = plan_of(24).stepper(reference, torch.optim.Adam(reference.parameters()), token_loss, clip=0.1)
        expected = [alone(batch) for batch, _ in batches]
        for mine, other in zip(model.parameters(), reference.parameters()):
            assert (mine.full_tensor() - other).norm() <= 1e-12 * other.norm()
        for out, want in zip(outs, expected):
            assert abs(out.loss - want.loss) < 1e-12 and out.count == want.count
            assert abs(out.grad_norm - want.grad_norm) < 1e-12
    """)


def test_a_shard_without_rows_is_refused_on_all(together: Run) -> None:
    together("""
        from torch.distributed.fsdp import fully_shard
        model = fully_shard(classifier())
        step = plan_of(6, 6, world_size=2).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
        try:
            step(share(samples(12), 12))
        except UsageError as error:
            assert "a rank has no rows" in str(error), error
        else:
            raise SystemExit("accepted")
    """)


def test_a_plan_for_another_number_of_ranks_is_refused(together: Run) -> None:
    together("""
        model = DDP(classifier())
        try:
            plan_of(12, world_size=4).stepper(model, torch.optim.SGD(model.parameters(), 0.1), mean_loss)
        except UsageError as error:
            assert "for 4 ranks and the model has 2" in str(error), error
        else:
            raise SystemExit("accepted")
    """)


@pytest.mark.parametrize(
    ("made", "words"),
    [("DDP(classifier())", "wrapped in DistributedDataParallel"), ("classifier()", "2 ranks are connected")],
)
def test_live_objects_of_connected_ranks_are_not_probed(made: str, words: str, together: Run) -> None:
    together(f"""
        import autoaccum
        model = {made}
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        try:
            autoaccum.plan(model, mean_loss, samples, optimizer=optimizer, target_batch=8)
        except UsageError as error:
            assert {words!r} in str(error) and "world_size=N" in str(error), error
        else:
            raise SystemExit("probed")
    """)
