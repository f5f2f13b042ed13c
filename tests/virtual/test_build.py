from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoaccum.errors import DeviceError
from autoaccum.virtual import build, elf
from autoaccum.virtual.wheel import Wheel

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def outline(folder: Path) -> Wheel:
    return Wheel(version="2.15.0", libraries=folder, cuda=13020, cublas=130200, cudnn=92600, nccl=23007)


@pytest.fixture
def wheel(tmp_path: Path) -> Wheel:
    """Give a PyTorch of one library, which imports functions that are written by hand and others."""
    folder = tmp_path / "lib"
    folder.mkdir()
    script, soname = tmp_path / "cudart.map", "libcudart.so.13"
    script.write_text(f"{soname} {{ global: *; }};\n")
    (tmp_path / "cudart.c").write_text("int cudaMalloc(void) { return 0; }\nint cudaNovelty(void) { return 0; }\n")
    (tmp_path / "torch.c").write_text(
        "int cudaMalloc(void);\nint cudaNovelty(void);\nint ncclNovelty(void);\n"
        "int work(void) { return cudaMalloc() + cudaNovelty() + ncclNovelty(); }\n"
    )
    compile_ = ["cc", "-shared", "-fPIC", "-o"]
    flags = [f"-Wl,-soname,{soname}", f"-Wl,--version-script={script}"]
    subprocess.run([*compile_, tmp_path / soname, tmp_path / "cudart.c", *flags], check=True)
    nccl = tmp_path / "libnccl.so.2"
    subprocess.run([*compile_, nccl, "-xc", os.devnull, "-Wl,-soname,libnccl.so.2"], check=True)
    sources: list[str | Path] = [tmp_path / "torch.c", "-Wl,--no-as-needed", tmp_path / soname, nccl]
    subprocess.run([*compile_, folder / "libtorch_cuda.so", *sources], check=True)
    return outline(folder)


@pytest.fixture
def empty_wheel(tmp_path: Path) -> Wheel:
    (tmp_path / "lib").mkdir()
    return outline(tmp_path / "lib")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOACCUM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "virtual"


def defined(path: Path) -> set[str]:
    listed = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True)
    return {line.split()[-1] for line in listed.stdout.splitlines()}


@needs_compiler
def test_a_library_has_the_real_soname_and_another_file_name(wheel: Wheel, cache: Path) -> None:
    paths = {path.name: path for path in build.libraries(wheel)}

    assert elf.read(paths["cudart.virtual.so"]).soname == "libcudart.so.13"


@needs_compiler
@pytest.mark.skipif(shutil.which("nm") is None, reason="needs nm")
def test_every_imported_symbol_is_there_under_its_version(wheel: Wheel, cache: Path) -> None:
    paths = {path.name: path for path in build.libraries(wheel)}

    cudart = defined(paths["cudart.virtual.so"])
    assert {"cudaMalloc@@libcudart.so.13", "cudaNovelty@@libcudart.so.13"} <= cudart
    assert {"ncclNovelty", "ncclAllReduce"} <= defined(paths["nccl.virtual.so"])


@needs_compiler
def test_driver_and_nvml_are_built_though_nothing_links_them(wheel: Wheel, cache: Path) -> None:
    names = {elf.read(path).soname for path in build.libraries(wheel)}

    assert {"libcuda.so.1", "libnvidia-ml.so.1"} <= names


@needs_compiler
def test_the_core_comes_first(wheel: Wheel, cache: Path) -> None:
    assert build.libraries(wheel)[0].name == "autoaccum_virtual.virtual.so"


@needs_compiler
def test_a_second_use_builds_nothing(wheel: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = build.libraries(wheel)
    monkeypatch.setenv("PATH", "")  # no compiler any more

    assert build.libraries(wheel) == first


@needs_compiler
def test_the_sources_compile_without_a_warning(wheel: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-Werror"))

    assert build.libraries(wheel)


@needs_compiler
def test_the_sources_compile_for_cuda_12(wheel: Wheel, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "_FLAGS", (*build._FLAGS, "-Werror"))
    older = Wheel(version="2.8.0", libraries=wheel.libraries, cuda=12080, cublas=120804, cudnn=91002, nccl=22703)

    assert build.libraries(older)


@needs_compiler
def test_another_pytorch_gets_a_build_of_its_own(wheel: Wheel, cache: Path) -> None:
    first = build.libraries(wheel)
    with (wheel.libraries / "libtorch_cuda.so").open("ab") as file:
        file.write(b"\0")

    assert build.libraries(wheel)[0].parent != first[0].parent


@needs_compiler
def test_two_processes_that_build_at_once_both_succeed(wheel: Wheel, cache: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from autoaccum.virtual import build
from autoaccum.virtual.wheel import Wheel
wheel = Wheel(version="2.15.0", libraries=Path({str(wheel.libraries)!r}), cuda=13020, cublas=130200,
              cudnn=92600, nccl=23007)
time.sleep(max(0, {time.time() + 1} - time.time()))
print(len(build.libraries(wheel)))
"""
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    builders = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env) for _ in range(2)
    ]

    counts = [builder.communicate(timeout=60)[0].strip() for builder in builders]

    assert [builder.returncode for builder in builders] == [0, 0]
    assert counts == [str(len(build.libraries(wheel)))] * 2
    assert [path.name for path in cache.iterdir() if path.name.startswith(".")] == []


def test_no_compiler_is_said(empty_wheel: Wheel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(DeviceError, match="install gcc or clang") as caught:
        build.libraries(empty_wheel)

    assert "\n" not in str(caught.value)


def test_a_failing_compiler_is_quoted_by_its_last_line(
    empty_wheel: Wheel, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "cc"
    compiler.write_text("#!/bin/sh\necho 'first line' >&2\necho 'fatal error: no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(DeviceError) as caught:
        build.libraries(empty_wheel)

    assert str(caught.value).endswith("fatal error: no space left")
    assert "first line" in caught.value.details
    assert list(cache.iterdir()) == []


@needs_compiler
def test_a_damaged_pytorch_is_said(empty_wheel: Wheel, cache: Path) -> None:
    (empty_wheel.libraries / "libtorch_cuda.so").touch()

    with pytest.raises(DeviceError, match="install it again"):
        build.libraries(empty_wheel)


def test_a_cache_that_cannot_be_written_is_said(
    empty_wheel: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("AUTOACCUM_CACHE", str(tmp_path / "file"))

    with pytest.raises(DeviceError, match="set AUTOACCUM_CACHE"):
        build.libraries(empty_wheel)


def test_a_cache_with_a_blank_in_its_path_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOACCUM_CACHE", "/tmp/two words")

    with pytest.raises(DeviceError, match="blank"):
        build.cache_folder()


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOACCUM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")

    assert build.cache_folder() == Path("/somewhere/autoaccum/virtual")
