"""Finds the PyTorch that a child process would import, and what it was built for, without importing it."""

from __future__ import annotations

import ast
import importlib.util
import platform
import re
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from autoaccum.errors import DeviceError

OLDEST = (2, 6)
CUDA_MAJORS = (12, 13)
_INSTEAD = "use --device cpu or a machine with a GPU"


@dataclass(frozen=True, kw_only=True, slots=True)
class Wheel:
    """An installed CUDA build of PyTorch."""

    version: str  # "2.15.0+cu132"
    libraries: Path  # torch/lib
    cuda: int  # as CUDA_VERSION: 13020 for 13.2
    cublas: int  # as CUBLAS_VERSION
    cudnn: int  # as CUDNN_VERSION
    nccl: int  # as NCCL_VERSION_CODE


def find() -> Wheel:
    """Give the installed PyTorch; `DeviceError` says why the virtual GPU cannot stand under it."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        here = f"{platform.system()} {platform.machine()}"
        raise DeviceError(f"the virtual GPU needs Linux on x86-64 and this is {here}: {_INSTEAD}")
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        raise DeviceError("the virtual GPU needs PyTorch, which is not installed: pip install torch")
    folder = Path(spec.submodule_search_locations[0])
    facts = _assignments(folder / "version.py")
    version, cuda = facts.get("__version__"), facts.get("cuda")
    if version is None:
        raise DeviceError(f"the PyTorch in {folder} does not say its version: install it again")
    if not cuda:
        kind = "a ROCm" if facts.get("hip") else "a CPU-only"
        raise DeviceError(
            f"the virtual GPU needs a CUDA build of PyTorch and {version} is {kind} build: "
            "pip install --no-deps a CUDA build, which needs neither a GPU nor NVIDIA's packages"
        )
    _check_release(version, cuda)
    return _describe(version, _numbers(cuda), folder)


def _assignments(path: Path) -> dict[str, str]:
    """Give the string constants that a module assigns, without running it."""
    try:
        tree = ast.parse(path.read_text())
    except (OSError, SyntaxError):
        return {}
    found: dict[str, str] = {}
    for node in tree.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(text)))
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.Constant(value=str(text)))
            ):
                found[name] = text
    return found


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version.partition("+")[0]))


def _check_release(version: str, cuda: str) -> None:
    if _numbers(version)[:2] < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise DeviceError(
            f"the virtual GPU supports PyTorch {oldest} and later and {version} is installed: "
            "pip install --upgrade torch"
        )
    if _numbers(cuda)[0] not in CUDA_MAJORS:
        raise DeviceError(
            f"the virtual GPU supports builds for CUDA 12 and 13 and PyTorch {version} is for CUDA {cuda}: "
            "install a build for one of these"
        )


def _describe(version: str, cuda: tuple[int, ...], folder: Path) -> Wheel:
    pins = _pins(folder.parent)
    major, minor = (*cuda, 0)[:2]
    cublas = pins.get("cublas", (major, minor, 0))
    cudnn = pins.get("cudnn", (9, 99, 0))  # PyTorch refuses a cuDNN older than the one it was built with
    nccl = pins.get("nccl", (2, 27, 0))
    return Wheel(
        version=version,
        libraries=folder / "lib",
        cuda=1000 * major + 10 * minor,
        cublas=_code(cublas),
        cudnn=_code(cudnn),
        nccl=_code(nccl),
    )


def _code(version: tuple[int, ...]) -> int:
    major, minor, patch = (*version, 0, 0)[:3]
    return 10000 * major + 100 * minor + patch


def _pins(site: Path) -> dict[str, tuple[int, ...]]:
    """Give the versions of NVIDIA's packages that the wheel was built with, from its own requirements."""
    found: dict[str, tuple[int, ...]] = {}
    for distribution in metadata.distributions(name="torch", path=[str(site)]):
        for requirement in distribution.requires or ():
            match = re.match(r"nvidia-(cublas|cudnn|nccl)(?:-cu\d+)?[ (]*==([\d.]+)", requirement)
            if match:
                found[match[1]] = _numbers(match[2])
    return found
