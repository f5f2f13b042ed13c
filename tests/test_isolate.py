from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from autoaccum.errors import DeviceError
from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Knobs, Outcome, Trial
from tests.conftest import WriteWorkload

Start = Callable[..., Worker]
SMALL, LARGE = Trial(micro_batch=2), Trial(micro_batch=8)


def alive(pid: int) -> bool:
    """Whether the process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def gone_within(seconds: float, pid: int) -> bool:
    deadline = time.monotonic() + seconds
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not alive(pid)


def open_files() -> set[str]:
    return {link.name for link in Path("/proc/self/fd").iterdir()}


def at_large(body: str) -> str:
    """A loss that does `body` from size 8 on."""
    return f"""
    def loss(model, batch):
        if len(batch[0]) >= 8:
            {body}
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
    """


def test_a_trial_gives_a_whole_sample(workload: WriteWorkload, start: Start) -> None:
    sample = start(workload()).run(7, Trial(micro_batch=4, updates=3), smaller_ran=False).sample

    assert (sample.trial, sample.micro_batch, sample.accumulation_steps) == (7, 4, 2)
    assert sample.outcome is Outcome.OK
    assert sample.step_seconds
    assert sample.optimizer_seconds
    assert sample.samples_per_second == pytest.approx(8 / sample.step_seconds)
    assert sample.device_used_bytes
    assert sample.device_used_bytes > (sample.peak_reserved_bytes or 0) > 0


def test_the_worker_is_one_process_for_all_its_trials(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload("def build_model(): raise SystemExit(str(os.getpid()))"))

    first, second = (worker.run(n, SMALL, smaller_ran=False).sample.message for n in (1, 2))

    assert first == second


def test_a_trial_runs_real_accumulating_updates(workload: WriteWorkload, start: Start, tmp_path: Path) -> None:
    path = workload(f"""
        import pathlib
        log = pathlib.Path({str(tmp_path / "log")!r})
        def note(word):
            with log.open("a") as file: file.write(word)
        def loss(model, batch):
            note("f")
            result = nn.functional.cross_entropy(model(batch[0]), batch[1])
            result.register_hook(lambda grad: note("b"))
            return result
        class Noted(torch.optim.SGD):
            def step(self, *args):
                note("s")
                return super().step(*args)
        def build_optimizer(model): return Noted(model.parameters(), 0.1)
    """)

    start(path).run(1, Trial(micro_batch=2, accumulation_steps=3, updates=2), smaller_ran=False)

    assert (tmp_path / "log").read_text() == "fbfbfbs" * 2


def test_a_worker_killed_in_a_trial_gives_a_killed_sample(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload(at_large("os.kill(os.getpid(), signal.SIGKILL)")))
    assert worker.run(1, SMALL, smaller_ran=False).sample.ok

    sample = worker.run(2, LARGE, smaller_ran=True).sample

    assert sample.outcome is Outcome.KILLED
    assert not worker.alive


def test_a_crash_at_the_first_size_is_killed_not_oom(workload: WriteWorkload, start: Start) -> None:
    worker = start(
        workload("""
        import ctypes
        def build_model(): ctypes.string_at(0)
    """)
    )

    sample = worker.run(1, SMALL, smaller_ran=False).sample

    assert sample.outcome is Outcome.KILLED
    assert "SIGSEGV" in sample.message
    assert "build_model" in sample.details  # faulthandler's word on where


def test_a_hung_trial_times_out_and_its_process_ends(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload(at_large("time.sleep(1000)")), timeout_seconds=2.0)
    pid = worker._process.pid

    sample = worker.run(1, LARGE, smaller_ran=True).sample

    assert sample.outcome is Outcome.TIMED_OUT
    assert "2 s" in sample.message
    assert gone_within(2, pid)


def test_a_hung_trial_that_holds_the_interpreter_times_out_too(workload: WriteWorkload, start: Start) -> None:
    body = "import ctypes; ctypes.PyDLL(None).sleep(1000)"
    worker = start(workload(at_large(body)), timeout_seconds=2.0)

    assert worker.run(1, LARGE, smaller_ran=True).sample.outcome is Outcome.TIMED_OUT


def test_ten_megabytes_of_prints_block_nothing_and_stay_out_of_the_answers(
    workload: WriteWorkload, start: Start
) -> None:
    worker = start(
        workload("""
        def build_model():
            print("x" * 5_000_000)
            sys.stderr.write("y" * 5_000_000)
            os.write(1, b'{"sample": 1}\\n')
            return nn.Linear(64, 8)
    """)
    )

    assert worker.run(1, SMALL, smaller_ran=False).sample.ok


def test_a_workload_cannot_read_the_orders(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload("def build_model(): return nn.Linear(64, 8 if sys.stdin.read() == '' else 9)"))

    assert worker.run(1, SMALL, smaller_ran=False).sample.ok
    assert worker.run(2, LARGE, smaller_ran=True).sample.ok


def test_an_exception_names_the_place_in_the_users_file(workload: WriteWorkload, start: Start) -> None:
    path = workload(at_large('raise ValueError("no such label")'))

    sample = start(path).run(1, LARGE, smaller_ran=False).sample

    assert sample.outcome is Outcome.FAILED
    line = 1 + path.read_text().splitlines().index('            raise ValueError("no such label")'.removeprefix("    "))
    assert sample.message == f"{path}:{line} in loss: ValueError: no such label"
    assert "Traceback" in sample.details


@pytest.mark.parametrize(
    ("body", "words"), [("sys.exit(3)", r"called sys.exit(3)"), ("os._exit(7)", "ended its own process (exit code 7)")]
)
def test_a_workload_that_exits_has_failed(workload: WriteWorkload, start: Start, body: str, words: str) -> None:
    sample = start(workload(at_large(body))).run(1, LARGE, smaller_ran=True).sample

    assert sample.outcome is Outcome.FAILED
    assert words in sample.message


def test_the_worker_goes_on_after_running_out_of_memory(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload(at_large("torch.empty(1 << 40)")))

    outcomes = [worker.run(n, trial, smaller_ran=True).sample.outcome for n, trial in enumerate((SMALL, LARGE, SMALL))]

    assert outcomes == [Outcome.OK, Outcome.OOM, Outcome.OK]


def test_running_out_in_the_optimizers_step_leaves_no_half_made_state(workload: WriteWorkload, start: Start) -> None:
    worker = start(
        workload("""
        broken = []
        class Once(torch.optim.AdamW):
            def step(self, *args):
                if not broken:
                    broken.append(1)
                    for group in self.param_groups:
                        for p in group["params"]:
                            self.state[p]["step"] = torch.tensor(0.0)  # exp_avg is still missing
                    raise MemoryError
                return super().step(*args)
        def build_optimizer(model): return Once(model.parameters())
    """)
    )
    assert worker.run(1, SMALL, smaller_ran=False).sample.outcome is Outcome.OOM

    assert worker.run(2, SMALL, smaller_ran=False).sample.ok


def test_a_peak_over_the_limit_does_not_count_as_ok(workload: WriteWorkload, start: Start) -> None:
    # A mapping of a file is not private data, so the kernel's limit lets it pass; the meter sees it.
    path = workload(
        at_large("""
            import mmap
            shared = mmap.mmap(-1, 700 << 20)
            shared.write(b"x" * (700 << 20))
    """)
    )

    sample = (
        start(path, limit_bytes=1200 << 20)
        .run(1, Trial(micro_batch=8, updates=1, accumulation_steps=1), smaller_ran=True)
        .sample
    )

    assert sample.outcome is Outcome.OOM
    assert "over the limit of 1.17 GiB" in sample.message


def test_whatever_the_workload_started_ends_with_the_worker(
    workload: WriteWorkload, start: Start, tmp_path: Path
) -> None:
    worker = start(
        workload(f"""
        import subprocess, pathlib
        def build_model():
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
            pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(child.pid))
            return nn.Linear(64, 8)
    """)
    )
    worker.run(1, SMALL, smaller_ran=False)
    grandchild = int((tmp_path / "pid").read_text())
    assert alive(grandchild)

    worker.close()

    assert gone_within(2, grandchild)


def test_kill_from_outside_in_the_middle_of_a_trial_is_seen_at_once(workload: WriteWorkload, start: Start) -> None:
    worker = start(workload(at_large("time.sleep(1000)")))
    threading.Timer(1.0, os.kill, (worker._process.pid, signal.SIGKILL)).start()

    began = time.monotonic()
    sample = worker.run(1, LARGE, smaller_ran=True).sample

    assert sample.outcome is Outcome.KILLED
    assert time.monotonic() - began < 30


def test_a_worker_that_dies_is_noticed_although_its_children_live(workload: WriteWorkload, start: Start) -> None:
    body = "os.fork() and os.kill(os.getpid(), signal.SIGKILL); time.sleep(1000)"
    worker = start(workload(at_large(body)), timeout_seconds=30.0)

    assert worker.run(1, LARGE, smaller_ran=True).sample.outcome is Outcome.KILLED


@pytest.mark.parametrize(
    "body", ['os.chdir("/"); raise ValueError("lost")', 'raise type("Own", (BaseException,), {})("lost")']
)
def test_whatever_is_raised_wherever_is_told(workload: WriteWorkload, start: Start, body: str) -> None:
    sample = start(workload(at_large(body))).run(1, LARGE, smaller_ran=True).sample

    assert sample.outcome is Outcome.FAILED
    assert "in loss" in sample.message
    assert "lost" in sample.message


def test_what_an_earlier_trial_printed_does_not_explain_a_later_death(workload: WriteWorkload, start: Start) -> None:
    worker = start(
        workload("""
        def loss(model, batch):
            if len(batch[0]) >= 8: os._exit(3)
            print("an earlier run went out of memory")
            return model(batch[0]).mean()
    """)
    )
    worker.run(1, SMALL, smaller_ran=False)

    assert worker.run(2, LARGE, smaller_ran=True).sample.outcome is Outcome.FAILED


def test_short_updates_have_all_sizes_of_a_plan_and_whole_ones_all_of_it(
    workload: WriteWorkload, start: Start, tmp_path: Path
) -> None:
    path = workload(f"""
        def loss(model, batch):
            with open({str(tmp_path / "log")!r}, "a") as file: print(len(batch[0]), file=file)
            return model(batch[0]).mean()
    """)

    trial = Trial(micro_batch=5, micro_batches=(5, 5, 4), updates=2, whole_updates=1)
    sample = start(path).run(1, trial, smaller_ran=False).sample

    assert (tmp_path / "log").read_text().split() == ["5", "4", "5", "4", "5", "5", "4"]
    assert sample.accumulation_steps == 3
    assert sample.samples_per_second == pytest.approx(14 / (sample.step_seconds or 0))


def test_a_closed_worker_leaves_no_file_descriptor(workload: WriteWorkload, start: Start) -> None:
    before = open_files()

    start(workload()).close()

    assert open_files() <= before


def test_a_device_that_is_not_there_is_the_workers_first_word() -> None:
    with pytest.raises(DeviceError, match="cuda"):
        Worker(WorkerSpec(device="cuda:63"), timeout_seconds=60)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_a_frozen_part_stays_frozen_unless_the_whole_model_is_in_eval_mode(
    mode: str, start: Start, workload: WriteWorkload
) -> None:
    path = workload(f"""
        def build_model():
            model = nn.Sequential(nn.Linear(64, 8), nn.BatchNorm1d(8).eval())
            return model if {mode == "train"} else model.eval()

        def loss(model, batch):
            assert (model.training, model[1].training) == (True, {mode == "eval"})
            return model(batch[0]).sum()
    """)

    sample = start(path).run(1, Trial(micro_batch=2), smaller_ran=False).sample

    assert sample.ok, sample.message


def test_an_fp16_trial_makes_real_steps_of_the_optimizer(workload: WriteWorkload, start: Start, tmp_path: Path) -> None:
    path = workload(f"""
        class Spy(torch.optim.AdamW):
            def step(self, *given, **more):
                super().step(*given, **more)
                with open({str(tmp_path / "log")!r}, "a") as file: print(len(self.state), file=file)

        def build_optimizer(model):
            return Spy(model.parameters())

        def loss(model, batch):
            return 1000 * (model(batch[0]) ** 2).sum()  # overflows at the usual scale
    """)

    worker = start(path)
    sample = worker.run(1, Trial(micro_batch=2, knobs=Knobs(precision="fp16")), smaller_ran=False).sample

    assert sample.ok, sample.message
    assert (tmp_path / "log").read_text().split() == ["2", "2"]


def test_knobs_of_one_trial_are_gone_in_the_next(workload: WriteWorkload, start: Start, tmp_path: Path) -> None:
    path = workload(f"""
        def loss(model, batch):
            with open({str(tmp_path / "log")!r}, "a") as file: print(model(batch[0]).dtype, file=file)
            return nn.functional.cross_entropy(model(batch[0]).float(), batch[1])
    """)
    worker = start(path)

    for knobs in (Knobs(), Knobs(precision="bf16", optimizer="fused"), Knobs()):
        trial = Trial(micro_batch=2, accumulation_steps=1, updates=1, knobs=knobs)
        sample = worker.run(1, trial, smaller_ran=False).sample
        assert sample.ok, sample.message
        assert sample.options == knobs.options

    assert (tmp_path / "log").read_text().split() == ["torch.float32", "torch.bfloat16", "torch.float32"]
