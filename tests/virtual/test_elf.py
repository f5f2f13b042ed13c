from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from autoaccum.virtual import elf

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")


def compile_library(folder: Path, name: str, code: str, *flags: str) -> Path:
    source, library = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(code)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, *flags], check=True)
    return library


@pytest.fixture
def provider(tmp_path: Path) -> Path:
    script = tmp_path / "provider.map"
    script.write_text("PROVIDER_7 { global: *; };\n")
    flags = ("-Wl,-soname,libprovider.so.7", f"-Wl,--version-script={script}")
    return compile_library(tmp_path, "provider", "int give(void) { return 1; }\n", *flags)


@pytest.fixture
def consumer(tmp_path: Path, provider: Path) -> Path:
    code = "int give(void);\nint elsewhere(void);\nint take(void) { return give() + elsewhere(); }\n"
    return compile_library(tmp_path, "consumer", code, str(provider))


def test_the_soname_is_read(provider: Path) -> None:
    assert elf.read(provider).soname == "libprovider.so.7"


def test_a_library_without_a_soname_has_an_empty_one(consumer: Path) -> None:
    assert elf.read(consumer).soname == ""


def test_needed_libraries_are_read(consumer: Path) -> None:
    assert "libprovider.so.7" in elf.read(consumer).needed


def test_a_versioned_symbol_names_its_version_and_library(consumer: Path) -> None:
    assert elf.Symbol("give", "PROVIDER_7", "libprovider.so.7") in elf.read(consumer).undefined


def test_an_unversioned_symbol_names_neither(consumer: Path) -> None:
    assert elf.Symbol("elsewhere", "", "") in elf.read(consumer).undefined


def test_a_symbol_that_the_library_defines_is_not_undefined(consumer: Path) -> None:
    assert "take" not in {symbol.name for symbol in elf.read(consumer).undefined}


def test_the_reader_agrees_with_nm(consumer: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("needs nm to compare with")
    listed = subprocess.run(["nm", "-D", "--undefined-only", consumer], capture_output=True, text=True, check=True)
    names = {line.split()[-1].partition("@")[0] for line in listed.stdout.splitlines()}

    assert {symbol.name for symbol in elf.read(consumer).undefined} == names


@pytest.mark.parametrize("size", [0, 40, 2000])
def test_a_truncated_library_is_refused(consumer: Path, size: int) -> None:
    consumer.write_bytes(consumer.read_bytes()[:size])

    with pytest.raises(elf.NotElf, match="not a whole shared library"):
        elf.read(consumer)


def test_another_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("nothing to link\n" * 10)

    with pytest.raises(elf.NotElf):
        elf.read(path)
