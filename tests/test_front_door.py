"""What a newcomer imports and types: light, complete, and layered as designed."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest

import autoaccum
from autoaccum import errors
from autoaccum.cli import cli

PACKAGE = Path(autoaccum.__file__).parent

# A room imports only from rooms on earlier lines.
LAYERS = [
    ["_version"],
    ["errors", "interrupts"],
    ["units", "outputs"],
    ["records", "virtual"],
    ["oom", "generators", "pipes"],
    ["workload", "batch", "device"],
    ["knobs"],
    ["training", "pictures"],
    ["plans", "parts"],
    ["looking"],
    ["trial", "alterations"],
    ["subject"],
    ["equivalence", "anatomy"],
    ["worker", "isolate"],
    ["lab"],
    ["expectation"],
    ["search", "fit", "advice", "recipe"],
    ["solve"],
    ["confirm"],
    ["tuning"],
    ["planning", "checks"],
    ["report"],
    ["watching"],
    ["rehearsal"],
    ["running"],
    ["pipeline", "environment", "display", "live"],
    ["verification"],
    ["commands"],
    ["cli"],
    ["__init__", "__main__"],
]


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def imports_of(path: Path) -> set[str]:
    """The rooms that a file imports when it runs; what is for the type checker alone does not count."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "autoaccum":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("autoaccum."):
            found.add(room(node.module or ""))
    return found


def test_imports_go_one_way() -> None:
    level = {name: index for index, names in enumerate(LAYERS) for name in names}
    for path in PACKAGE.rglob("*.py"):
        own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for other in imports_of(path) - {own}:
            assert level[other] < level[own] or own == "__init__", f"{path} imports {other}"


def test_every_public_name_is_there_and_sorted() -> None:
    assert autoaccum.__all__ == sorted(autoaccum.__all__)
    assert all(getattr(autoaccum, name) is not None for name in autoaccum.__all__)
    assert dir(autoaccum) == autoaccum.__all__


def test_the_public_function_is_no_module() -> None:
    # A module of the same name would take its place as soon as it is imported.
    for name in autoaccum.__all__:
        assert not (PACKAGE / f"{name}.py").exists()
        assert not (PACKAGE / name).exists()


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'frobnicate'"):
        autoaccum.frobnicate  # noqa: B018


@pytest.mark.parametrize(
    "start",
    [
        "import autoaccum",
        "from autoaccum.cli import main",
        "import autoaccum.pipeline",
        "import autoaccum.verification",
    ],
)
def test_the_front_door_is_light(start: str) -> None:
    libraries = {"torch", "pandas", "optuna", "numpy", "pynvml", "rich", "plotly", "jinja2", "matplotlib"}
    heavy = f"sorted({libraries} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", f"{start}; import sys; print({heavy})"], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "[]"


def test_help_takes_at_most_twice_the_time_of_importing_click() -> None:
    commands = {
        "click": [sys.executable, "-c", "import click"],
        "help": [sys.executable, "-m", "autoaccum", "--help"],
    }
    best = dict.fromkeys(commands, float("inf"))
    for _ in range(15):  # interleaved, and the best of each: this machine has other things to do
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            best[name] = min(best[name], time.perf_counter() - began)

    assert best["help"] <= 2 * best["click"], best


def test_each_error_has_the_exit_code_of_the_contract() -> None:
    codes: dict[type[errors.AutoaccumError] | type[errors.Interrupted], int] = {
        errors.AutoaccumError: 1,
        errors.UsageError: 2,
        errors.NothingFits: 3,
        errors.WorkloadError: 4,
        errors.DeviceError: 5,
        errors.Interrupted: 130,
    }

    assert {kind: kind.exit_code for kind in codes} == codes


def test_the_command_lines_surface_is_as_documented() -> None:
    surface = {
        name: sorted(option for parameter in command.params for option in parameter.opts)
        for name, command in cli.commands.items()
    }

    assert surface == {
        "probe": sorted([
            "workload", "--target-batch", "--memory-budget", "--device", "--world-size", "--reference-batch", "--split",
            "--find-max", "--tune-trials", "--tune-seconds", "--allow", "--objective", "--storage", "--resume",
            "--out", "--plot", "--snapshot", "--json", "--no-rehearse", "--seed", "--timeout", "-q", "--quiet", "-v",
            "--verbose",
        ]),
        "rehearse": sorted([
            "workload", "--target-batch", "--gpu", "--memory-budget", "--world-size", "--split", "--what-if",
            "--snapshot", "--out", "--json", "--seed", "--timeout", "-q", "--quiet", "-v", "--verbose",
        ]),
        "plan": sorted([
            "run", "--target-batch", "--memory-budget", "--world-size", "--split", "--json", "-q", "--quiet",
        ]),
        "show": ["--quiet", "-q", "run"],
        "report": ["--plot", "run"],
        "compare": ["--fail-if", "--json", "after", "before"],
        "verify": sorted(["workload", "--json", "--seed", "--timeout", "-q", "--quiet", "-v", "--verbose"]),
        "env": ["--device", "--json"],
    }  # fmt: skip


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_help_has_an_example(name: str) -> None:
    command = cli.commands[name]

    assert "Examples:" in command.get_help(click.Context(command))


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_every_option_is_a_variable_too(name: str) -> None:
    options = [each for each in cli.commands[name].params if isinstance(each, click.Option)]

    assert options
    for each in options:
        long = max(each.opts, key=len)
        assert each.envvar == f"AUTOACCUM_{long.removeprefix('--').replace('-', '_').upper()}"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        (["comapre"], "No such command 'comapre'. Did you mean 'compare'?"),
        (["plan", "x", "--taget-batch", "8"], "No such option '--taget-batch'. Did you mean '--target-batch'?"),
        (["probe", "x.py", "--target-batch", "8", "--split", "evn"], "did you mean even? use auto, even or uneven"),
        (["probe", "x.py", "--target-batch", "8", "--objective", "enrgy"], "did you mean energy? use throughput"),
        (["probe", "x.py", "--target-batch", "8", "--device", "cdua"], 'unknown device "cdua": did you mean cuda? use'),
        (["probe", "x.py", "--target-batch", "8", "--device", "cdua:1"], "did you mean cuda:1? use auto, cpu, cuda"),
        (["probe", "x.py", "--target-batch", "8", "--device", "quantum"], 'unknown device "quantum": use auto, cpu'),
        (["rehearse", "x.py", "--target-batch", "8", "--gpu", "a10gg"], 'unknown GPU "a10gg": did you mean a10g?'),
        (["rehearse", "x.py", "--target-batch", "8", "--what-if", "chekpoint"], "did you mean checkpoint? known are"),
        (["env", "--device", "virtul:24GiB"], "did you mean virtual:24GiB? use"),
    ],
)
def test_a_slip_of_the_fingers_is_asked_after(
    typed: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["autoaccum", *typed])

    with pytest.raises(SystemExit) as exit_:
        autoaccum.cli.main()

    assert exit_.value.code == 2
    assert words in capsys.readouterr().err


def pressed_tab(tmp_path: Path, **variables: str) -> str:
    """What the shell is told; the program has the name that users type."""
    program = tmp_path / "autoaccum"
    program.write_text(f"#!{sys.executable}\nfrom autoaccum.cli import main\nmain()\n")
    program.chmod(0o755)
    return subprocess.run([program], env={**os.environ, **variables}, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    ("words", "position", "found"),
    [
        ("autoaccum pr", "1", "plain,probe"),
        ("autoaccum plan run --tar", "3", "plain,--target-batch"),
        ("autoaccum plan res", "2", "file,res"),
        ("autoaccum probe mod", "2", "file,mod"),
    ],
)
def test_the_shell_completes_commands_options_and_files(words: str, position: str, found: str, tmp_path: Path) -> None:
    told = pressed_tab(tmp_path, _AUTOACCUM_COMPLETE="bash_complete", COMP_WORDS=words, COMP_CWORD=position)

    assert told == f"{found}\n"


def test_the_script_for_completion_is_printed(tmp_path: Path) -> None:
    assert "_AUTOACCUM_COMPLETE=bash_complete" in pressed_tab(tmp_path, _AUTOACCUM_COMPLETE="bash_source")


def test_a_bug_of_our_own_is_one_line_with_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr("autoaccum.pipeline.run", broken)
    monkeypatch.setattr(sys, "argv", ["autoaccum", "probe", "x.py", "--target-batch", "8", "--out", str(tmp_path)])

    with pytest.raises(SystemExit) as exit_:
        autoaccum.cli.main()

    assert exit_.value.code == 1
    assert capsys.readouterr().err == (
        "error: internal error: ZeroDivisionError: oops (AUTOACCUM_VERBOSE=1 shows the traceback; please report it)\n"
    )
