from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from autoaccum.device.base import budget_for
from autoaccum.device.cgroup import allowances
from autoaccum.device.cpu import CpuDevice
from autoaccum.isolate import Worker
from autoaccum.records import Trial
from autoaccum.units import GIB, MIB
from tests.conftest import Cli, WriteWorkload


def cgroup_files(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def test_a_version_2_limit_and_its_usage_are_read(tmp_path: Path) -> None:
    cgroup_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/job\n",
            "sys/user.slice/job/memory.max": "2147483648\n",
            "sys/user.slice/job/memory.current": "1073741824\n",
            "sys/user.slice/job/memory.stat": "anon 5\ninactive_file 536870912\n",
            "sys/user.slice/memory.max": "max\n",
        },
    )

    (found,) = allowances(tmp_path / "proc", tmp_path / "sys")

    assert (found.limit_bytes, found.free_bytes) == (2 * GIB, 3 * GIB // 2)


def test_the_limit_of_a_parent_group_counts(tmp_path: Path) -> None:
    cgroup_files(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b\n",
            "sys/a/b/memory.max": "4294967296\n",
            "sys/a/memory.max": "1073741824\n",
        },
    )

    assert min(a.limit_bytes for a in allowances(tmp_path / "proc", tmp_path / "sys")) == GIB


def test_a_version_1_limit_is_read_and_its_absence_is_no_limit(tmp_path: Path) -> None:
    cgroup_files(
        tmp_path,
        {
            "proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/docker/abc\n",
            # In a container the path is the host's, and the mount is the group itself.
            "sys/memory/memory.limit_in_bytes": "1073741824\n",
            "sys/memory/memory.usage_in_bytes": "536870912\n",
        },
    )
    assert [a.free_bytes for a in allowances(tmp_path / "proc", tmp_path / "sys")] == [GIB // 2]

    cgroup_files(tmp_path, {"sys/memory/memory.limit_in_bytes": "9223372036854771712\n"})
    assert allowances(tmp_path / "proc", tmp_path / "sys") == []


def test_a_machine_without_control_groups_has_no_limit(tmp_path: Path) -> None:
    assert allowances(tmp_path / "proc", tmp_path / "sys") == []


def real_cgroup(limit_bytes: int) -> Path | None:
    """Make a control group of our own with a memory limit, where this machine lets us."""
    for root, name in (
        (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
        (Path("/sys/fs/cgroup"), "memory.max"),
    ):
        group = root / f"autoaccum-test-{os.getpid()}"
        try:
            group.mkdir()
            (group / name).write_text(str(limit_bytes))
        except OSError:
            if group.is_dir():
                group.rmdir()
            continue
        return group
    return None


def test_a_real_control_group_bounds_the_default_budget(tmp_path: Path) -> None:
    group = real_cgroup(2 * GIB)
    if group is None:
        pytest.skip("control groups cannot be made here")
    enter = f"import os, sys; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid())); "
    try:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                enter + "os.execv(sys.executable, [sys.executable, '-m', 'autoaccum', 'env', '--json'])",
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=True,
            timeout=100,
        )
    finally:
        group.rmdir()

    found = json.loads(done.stdout)
    assert found["device"]["total_bytes"] == 2 * GIB
    assert GIB < found["budget"]["limit_bytes"] <= 0.8 * 2 * GIB + 100 * MIB


def in_child(code: str) -> str:
    """Run `code` in a process of its own: limits and malloc settings are for a whole process."""
    program = "from autoaccum.device.cpu import CpuDevice\nimport torch\ndevice = CpuDevice()\n" + textwrap.dedent(code)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100)
    return done.stdout


def test_the_meter_follows_a_tensor_to_the_page() -> None:
    grown = in_child("""
        device.meter_exactly()
        torch.ones(1 << 20)  # threads and code pages come with the first use
        device.release(); device.reset()
        before = device.read().used_bytes
        tensor = torch.ones(25 << 20)
        print(device.read().used_bytes - before)
        del tensor
        device.release(); device.reset()
        print(device.read().used_bytes - before)
    """)

    up, back = map(int, grown.split())
    assert up == pytest.approx(100 * MIB, abs=MIB)
    assert back == pytest.approx(0, abs=MIB)


def test_the_process_cannot_grow_beyond_its_limit_and_is_free_again_afterwards() -> None:
    said = in_child("""
        tries = []
        with device.limited(device.describe().overhead_bytes + (100 << 20)):
            for mib in (80, 130):
                try:
                    torch.empty(mib << 20, dtype=torch.uint8)
                    tries.append("fits")
                except RuntimeError:
                    tries.append("refused")
        torch.empty(130 << 20, dtype=torch.uint8)
        print(*tries)
    """)

    assert said.split() == ["fits", "refused"]


def test_a_limit_below_the_process_itself_is_out_of_memory() -> None:
    assert "MemoryError" in in_child("""
        try:
            with device.limited(50 << 20): pass
        except MemoryError as error:
            print(type(error).__name__)
    """)


def test_the_peak_of_a_training_step_stays_within_the_budget(start: Callable[..., Worker]) -> None:
    worker = start("examples/gpt.py", limit_bytes=520 * MIB)

    samples = [worker.run(n, Trial(micro_batch=n), smaller_ran=True).sample for n in (2, 4, 8, 12, 16)]

    assert {sample.ok for sample in samples} == {True, False}
    assert all(sample.device_used_bytes <= 520 * MIB for sample in samples if sample.ok and sample.device_used_bytes)


def test_a_budget_beyond_what_is_free_is_capped_with_a_warning() -> None:
    device = CpuDevice()
    info = device.describe()

    budget = budget_for(device, info, "900TiB")

    assert (budget.limit_bytes, budget.source) == (info.free_bytes, "capped")
    assert "more than is free" in device.warnings[0]


def test_the_default_budget_leaves_a_reserve() -> None:
    device = CpuDevice()
    info = device.describe()

    budget = budget_for(device, info, None)

    assert budget.limit_bytes + budget.reserve_bytes == info.free_bytes
    assert budget.reserve_bytes == pytest.approx(0.2 * info.free_bytes, rel=0.01)


def test_the_search_is_metered_exactly_and_the_confirmation_runs_as_training_will(
    cli: Cli, workload: WriteWorkload, tmp_path: Path
) -> None:
    # glibc marks blocks beyond its mmap threshold; 100,000 bytes are beyond it only when it was lowered. The last of
    # many blocks is looked at: the first ones may be found among what was freed before.
    path = workload(f"""
        import ctypes
        malloc = ctypes.CDLL(None).malloc
        malloc.restype, malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
        def build_model():
            last = [malloc(100_000) for _ in range(200)][-1]
            mapped = ctypes.c_size_t.from_address(last - 8).value & 2
            with open({str(tmp_path / "log")!r}, "a") as file: file.write("exact " if mapped else "plain ")
            return nn.Linear(64, 8)
    """)

    ran = cli("probe", path, "--target-batch", "4", "--device", "cpu")

    assert ran.code == 0
    assert (tmp_path / "log").read_text().split() == ["exact", "exact", "plain"]
