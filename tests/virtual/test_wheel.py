from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Protocol

import pytest

from autoaccum.errors import DeviceError
from autoaccum.virtual import wheel


class Install(Protocol):
    def __call__(self, version: str, cuda: str | None, *requirements: str, hip: str | None = None) -> Path: ...


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Give a function that puts the outline of a PyTorch into a site folder of its own."""

    def install_outline(version: str, cuda: str | None, *requirements: str, hip: str | None = None) -> Path:
        package = tmp_path / "torch"
        (package / "lib").mkdir(parents=True)
        (package / "__init__.py").write_text("raise AssertionError('torch was imported')\n")
        (package / "version.py").write_text(
            f"from typing import Optional\n__version__ = {version!r}\n"
            f"cuda: Optional[str] = {cuda!r}\nhip: Optional[str] = {hip!r}\n"
        )
        info = tmp_path / f"torch-{version.partition('+')[0]}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.1", "Name: torch", f"Version: {version}"]
        (info / "METADATA").write_text("\n".join([*lines, *(f"Requires-Dist: {r}" for r in requirements)]) + "\n")
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        monkeypatch.syspath_prepend(str(tmp_path))
        return package

    return install_outline


def test_a_cuda_build_is_described_without_importing_it(install: Install) -> None:
    package = install("2.15.0+cu132", "13.2", "nvidia-cudnn-cu13==9.26.0.51", "nvidia-nccl-cu13==2.30.7")

    found = wheel.find()

    assert found == wheel.Wheel(
        version="2.15.0+cu132",
        libraries=package / "lib",
        cuda=13020,
        cublas=130200,
        cudnn=92600,
        nccl=23007,
    )


def test_pinned_cublas_is_read_from_the_requirements(install: Install) -> None:
    install("2.8.0", "12.8", 'nvidia-cublas-cu12==12.8.4.1; platform_system == "Linux"')

    assert wheel.find().cublas == 120804


def test_pins_in_brackets_are_read_too(install: Install) -> None:
    install("2.6.0", "12.4", "nvidia-cudnn-cu12 (==9.1.0.70) ; platform_system == 'Linux'")

    assert wheel.find().cudnn == 90100


def test_a_build_without_pins_claims_a_cudnn_newer_than_any(install: Install) -> None:
    install("2.15.0", "13.0")

    assert wheel.find().cudnn == 99900


def one_sentence(error: DeviceError) -> str:
    text = str(error)
    assert "\n" not in text
    assert error.exit_code == 5
    return text


def test_a_cpu_only_build_is_refused(install: Install) -> None:
    install("2.13.0+cpu", None)

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "2.13.0+cpu is a CPU-only build" in one_sentence(caught.value)


def test_a_rocm_build_is_refused_as_such(install: Install) -> None:
    install("2.15.0+rocm7", None, hip="7.0")

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "a ROCm build" in one_sentence(caught.value)


def test_an_old_release_is_refused(install: Install) -> None:
    install("2.5.1", "12.4")

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "2.5.1 is installed" in one_sentence(caught.value)


def test_a_build_for_another_cuda_is_refused(install: Install) -> None:
    install("2.15.0", "11.8")

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "CUDA 11.8" in one_sentence(caught.value)


def test_missing_pytorch_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "torch", raising=False)

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "not installed" in one_sentence(caught.value)


def test_a_damaged_install_is_said(install: Install) -> None:
    (install("2.15.0", "13.0") / "version.py").unlink()

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "does not say its version" in one_sentence(caught.value)


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")

    with pytest.raises(DeviceError) as caught:
        wheel.find()

    assert "aarch64" in one_sentence(caught.value)
