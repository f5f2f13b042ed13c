from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoaccum import virtual
from autoaccum.errors import DeviceError
from autoaccum.virtual import VirtualGpu, control, wheel

from .conftest import GIB, GPU, Run


def test_a_process_outside_has_no_knobs() -> None:
    assert not control.is_active()
    with pytest.raises(DeviceError, match="does not run on a virtual GPU"):
        control.used_bytes()


@pytest.mark.gpu
def test_an_existing_preload_is_kept_behind_ours(cuda_torch: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libkept.so /somewhere/old/cudart.virtual.so")

    paths = virtual.environment(GPU)["LD_PRELOAD"].split(":")

    assert paths[-1] == "/usr/lib/libkept.so"
    assert sum(path.endswith("/cudart.virtual.so") for path in paths) == 1


@pytest.mark.gpu
def test_nothing_of_nvidia_is_loaded(run: Run) -> None:
    code = """
    gpu_bytes(1)
    nn.Conv2d(3, 8, 3).cuda()(torch.randn(1, 3, 8, 8, device="cuda")).sum().backward()
    paths = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
    report(loaded=sorted(p for p in paths if "/nvidia/" in p or os.path.basename(p).startswith("libcu")))
    """

    assert run(code)["loaded"] == []


@pytest.mark.gpu
def test_nothing_is_written_beside_pytorch(run: Run) -> None:
    site = wheel.find().libraries.parents[1]
    before = {*site.iterdir(), *(site / "torch" / "lib").iterdir()}

    run("report(ok=torch.cuda.is_available())")

    assert {*site.iterdir(), *(site / "torch" / "lib").iterdir()} == before


@pytest.mark.gpu
def test_a_child_is_active_and_says_so(run: Run) -> None:
    code = """
    from autoaccum.virtual import control
    report(active=control.is_active())
    """

    assert run(code) == {"active": True}


@pytest.mark.gpu
def test_other_programs_run_under_the_preload(cuda_torch: None) -> None:
    env = {**os.environ, **virtual.environment(GPU)}

    child = subprocess.run(["/bin/sh", "-c", "echo fine"], env=env, capture_output=True, text=True, check=True)

    assert (child.stdout, child.stderr) == ("fine\n", "")


@pytest.mark.gpu
def test_a_thread_that_is_late_at_the_end_does_not_abort_the_process(run: Run) -> None:
    code = """
    import threading, time
    x = torch.ones(4, device="cuda", requires_grad=True)
    entered = threading.Event()

    def slow(grad):
        entered.set()
        time.sleep(1)
        return grad

    y = x * 2
    y.register_hook(slow)
    threading.Thread(target=lambda: y.sum().backward(), daemon=True).start()
    entered.wait()
    report(leaving=True)
    """

    started = time.monotonic()
    assert run(code) == {"leaving": True}
    assert time.monotonic() - started < 10  # what PyTorch would wait for the thread


@pytest.mark.gpu
def test_a_state_file_that_cannot_be_opened_is_said(cuda_torch: None, tmp_path: Path) -> None:
    gpu = VirtualGpu(total_bytes=GIB, state_file=tmp_path / "missing" / "state")

    child = subprocess.run(
        [sys.executable, "-c", "import torch; torch.cuda.is_available()"],
        env={**os.environ, **virtual.environment(gpu)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert child.returncode == 70
    assert "cannot open the state file" in child.stderr
