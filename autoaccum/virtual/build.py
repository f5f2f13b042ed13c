"""Builds the libraries of the virtual GPU for the installed PyTorch, at first use, in seconds.

Each library that PyTorch needs from NVIDIA is linked from our own sources and, for every other symbol that
PyTorch imports from it, a generated stub, under the real SONAME and symbol versions. The files themselves are
named differently (`cudart.virtual.so`): PyTorch takes a file called libcudart.so among its mappings as a sign
that NVIDIA's packages should be loaded as well.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from autoaccum.errors import DeviceError
from autoaccum.virtual import elf

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autoaccum.virtual.wheel import Wheel

SOURCES = Path(__file__).parent / "src"
CORE = "autoaccum_virtual"
_CORE_FILES = ("config.c", "state.c", "memory.c", "clock.c", "leave.c")

# The sources of each library, by the stem of its SONAME; a library that is not here is stubs alone.
_FILES = {
    "cudart": ("runtime_device.c", "runtime_memory.c", "runtime_stream.c", "runtime_launch.c"),
    "cuda": ("driver.c", "driver_vmm.c", "driver_triton.c"),
    "nvidia-ml": ("nvml.c",),
    "cublas": ("cublas.c",),
    "cublasLt": ("cublaslt.c",),
    "cudnn": ("cudnn.c", "cudnn_rnn.c", "cudnn_backend.c"),
    "nccl": ("nccl.c",),
    "nvrtc": ("nvrtc.c",),
    "cupti": ("cupti.c",),
    "cusparse": ("cusparse.c",),
    "cusolver": ("cusolver.c",),
    "cufft": ("cufft.c",),
}
_STUBS_ONLY = ("curand", "cusparseLt", "cufile", "nvshmem_host", "nvToolsExt", "nvJitLink")
_NVIDIA = frozenset((*_FILES, *_STUBS_ONLY))

# PyTorch opens these two by name instead of linking them.
_ALWAYS = {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1"}
# Libraries without symbol versions, by how their functions are called.
_PREFIXES = (
    ("nccl", "nccl"),
    ("cuFile", "cufile"),
    ("cusparseLt", "cusparseLt"),
    ("nvshmem", "nvshmem_host"),
    ("nvml", "nvidia-ml"),
    ("cu", "cuda"),
)
_UNVERSIONED = re.compile(r"(nccl|cuFile|cusparseLt|nvshmem|nvml|cu)[A-Z_a-z]\w*")
# Names that libc10_cuda.so looks up at run time stand in it as plain strings.
_LOOKED_UP = re.compile(rb"(?<=\0)((?:cu|nvml)[A-Z][A-Za-z0-9_]{3,80})(?=\0)")
# What a stub says; elsewhere it says success.
_NOT_SUPPORTED = {"cuda": 801, "nvidia-ml": 3, "cusolver": 9, "cusparse": 10}

_FLAGS = ("-std=gnu11", "-O1", "-fPIC", "-shared", "-fvisibility=default", "-Wall", "-Wextra")


@dataclass(kw_only=True, slots=True)
class _Library:
    soname: str
    symbols: set[str] = field(default_factory=set)
    version: str = ""


def libraries(wheel: Wheel) -> list[Path]:
    """Give the libraries to preload for `wheel`, the core first, and build them if need be."""
    folder = cache_folder() / _key(wheel)
    if not folder.is_dir():
        _build_into(folder, wheel)
    core = folder / _file_name(CORE)
    return [core, *sorted(path for path in folder.glob("*.virtual.so") if path != core)]


def cache_root() -> Path:
    """Give the folder of all that is kept between runs: $AUTOACCUM_CACHE, or a folder of the user's cache."""
    chosen = os.environ.get("AUTOACCUM_CACHE")
    home = os.environ.get("XDG_CACHE_HOME")
    folder = Path(chosen) if chosen else (Path(home) if home else Path.home() / ".cache") / "autoaccum"
    return folder.absolute()


def cache_folder() -> Path:
    """Give the folder that holds one build per PyTorch."""
    folder = cache_root() / "virtual"
    if re.search(r"[\s:;]", str(folder)):
        raise DeviceError(
            f'"{folder}" has a blank or a colon, which the dynamic linker cannot take: '
            "set AUTOACCUM_CACHE to another folder"
        )
    return folder


def _key(wheel: Wheel) -> str:
    digest = hashlib.sha256(repr(wheel).encode())
    for path in sorted(wheel.libraries.glob("*.so")):
        digest.update(f"{path.name} {path.stat().st_size}".encode())
    for path in sorted((*SOURCES.glob("*.[ch]"), *Path(__file__).parent.glob("*.py"))):
        digest.update(path.read_bytes())
    return f"torch-{wheel.version}-{digest.hexdigest()[:12]}"


def _build_into(folder: Path, wheel: Wheel) -> None:
    """Build beside `folder` and rename: of two processes that do this at once, both find one whole result."""
    compiler = _compiler()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=".building-", dir=folder.parent))
    except OSError as error:
        raise DeviceError(
            f"cannot write to {folder.parent} ({error.strerror}): set AUTOACCUM_CACHE to another folder"
        ) from error
    try:
        _compile_all(scratch, wheel, compiler)
        scratch.chmod(0o755)
        try:
            scratch.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        path = shutil.which(name)
        if path:
            return path
    raise DeviceError("the virtual GPU is built by a C compiler and there is none: install gcc or clang")


def _wanted(folder: Path) -> dict[str, _Library]:
    """Give, by stem, the libraries of NVIDIA that PyTorch in `folder` needs and what it imports from each."""
    try:
        files = [elf.read(path) for path in sorted(folder.glob("*.so"))]
    except elf.NotElf as error:
        raise DeviceError(f"the installed PyTorch is damaged ({error}): install it again") from error
    found = {stem: _Library(soname=soname) for stem, soname in _ALWAYS.items()}
    for soname in sorted({name for file in files for name in file.needed}):
        stem = _stem(soname)
        if stem in _NVIDIA:
            found.setdefault(stem, _Library(soname=soname))
    for symbol in {symbol for file in files for symbol in file.undefined}:
        library = found.get(_home(symbol))
        if library is not None:
            library.symbols.add(symbol.name)
            library.version = symbol.version or library.version
    for name in _looked_up(folder / "libc10_cuda.so"):
        found[_home(elf.Symbol(name, "", ""))].symbols.add(name)
    return found


def _stem(soname: str) -> str:
    match = re.match(r"lib(.+?)\.so", soname)
    return match[1] if match else ""


def _home(symbol: elf.Symbol) -> str:
    if symbol.library:
        return _stem(symbol.library)
    if not _UNVERSIONED.fullmatch(symbol.name):
        return ""
    return next(stem for prefix, stem in _PREFIXES if symbol.name.startswith(prefix))


def _looked_up(path: Path) -> set[str]:
    return {name.decode() for name in _LOOKED_UP.findall(path.read_bytes())} if path.is_file() else set()


def _compile_all(folder: Path, wheel: Wheel, compiler: str) -> None:
    defines = [
        f"-DVG_CUDA_VERSION={wheel.cuda}",
        f"-DVG_CUBLAS_VERSION={wheel.cublas}",
        f"-DVG_CUDNN_VERSION={wheel.cudnn}",
        f"-DVG_NCCL_VERSION={wheel.nccl}",
    ]
    base = [compiler, *_FLAGS, *defines]
    core = folder / _file_name(CORE)
    sources = [str(SOURCES / name) for name in _CORE_FILES]
    _run([*base, "-o", str(core), *sources, f"-Wl,-soname,lib{CORE}.so", "-ldl", "-lpthread"])
    for stem, library in sorted(_wanted(wheel.libraries).items()):
        stubs = folder / f"{stem}.stubs.c"
        stubs.write_text(_stubs(library.symbols, _NOT_SUPPORTED.get(stem, 0)))
        command = [*base, "-o", str(folder / _file_name(stem))]
        command += [str(SOURCES / name) for name in _FILES.get(stem, ())]
        command += [str(stubs), f"-Wl,-soname,{library.soname}", str(core), "-ldl", "-lpthread"]
        if library.version:
            script = folder / f"{stem}.map"
            script.write_text(f"{library.version} {{ global: *; }};\n")
            command.append(f"-Wl,--version-script={script}")
        _run(command)
    (folder / _ALWAYS["cuda"]).symlink_to(_file_name("cuda"))  # Triton links its launcher against this name


def _file_name(stem: str) -> str:
    return f"{stem}.virtual.so"


def _stubs(symbols: Iterable[str], result: int) -> str:
    """Give C that defines each symbol weakly: where a source of ours defines it too, that one is linked."""
    lines = [
        "/* Generated: what PyTorch imports and nobody wrote by hand. */",
        "int vg_stub(const char *name, int *seen, int result);",
        "#define STUB(name) __attribute__((weak)) int name(void) "
        f"{{ static int seen; return vg_stub(#name, &seen, {result}); }}",
    ]
    return "\n".join([*lines, *(f"STUB({name})" for name in sorted(symbols))]) + "\n"


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        raise DeviceError(f"the C compiler could not build the virtual GPU: {lines[-1].strip()}", details=done.stderr)
