"""What is known before the first trial, and what becomes of a rehearsal that does not get to its end."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest

from autoaccum import cli
from autoaccum.errors import DeviceError, UsageError
from autoaccum.records import Budget, DeviceInfo, Prior, Request
from autoaccum.rehearsal.prior import prior
from autoaccum.units import GIB, MIB

REQUEST = Request(workload="model.py", target_batch=512)
L4 = DeviceInfo(
    kind="cuda", name="NVIDIA L4", uuid=None, total_bytes=22 * GIB, free_bytes=22 * GIB, overhead_bytes=300 * MIB
)
BUDGET = Budget(limit_bytes=20 * GIB, reserve_bytes=2 * GIB, source="free")


def refused(*_: Any) -> Prior:
    raise AssertionError("it was rehearsed all the same")


def test_the_prior_is_what_the_rehearsal_of_this_request_on_this_device_predicts() -> None:
    asked = []

    def rehearse(*question: Any) -> Prior:
        asked.append(question)
        return Prior(start=64, words="micro-batch 64 predicted to fit", margin=0.1)

    found = prior(REQUEST, L4, BUDGET, rehearse)

    assert asked == [(REQUEST, L4, BUDGET)]
    words = "rehearsed on a virtual NVIDIA L4: micro-batch 64 predicted to fit"
    assert found == Prior(start=64, words=words, margin=0.1)


def test_where_nothing_is_predicted_to_fit_the_search_starts_from_small_sizes() -> None:
    found = prior(REQUEST, L4, BUDGET, lambda *_: Prior(start=None, words="nothing is predicted to fit"))

    assert found == Prior(start=None, words="rehearsed on a virtual NVIDIA L4: nothing is predicted to fit")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (DeviceError("there is no C compiler: install gcc"), "no rehearsal: there is no C compiler: install gcc"),
        (ZeroDivisionError("division by zero\nand more"), "no rehearsal: ZeroDivisionError: division by zero"),
    ],
)
def test_a_rehearsal_that_fails_is_told_of_and_costs_nothing_else(error: Exception, words: str) -> None:
    def rehearse(*_: Any) -> Prior:
        raise error

    assert prior(REQUEST, L4, BUDGET, rehearse) == Prior(start=None, words=words)


def test_a_ctrl_c_in_the_rehearsal_ends_the_run() -> None:
    def rehearse(*_: Any) -> Prior:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prior(REQUEST, L4, BUDGET, rehearse)


@pytest.mark.parametrize("kind", ["cpu", "virtual"])
def test_what_is_no_real_gpu_is_not_rehearsed(kind: str) -> None:
    assert prior(REQUEST, replace(L4, kind=kind), BUDGET, refused) is None


def test_without_leave_nothing_is_rehearsed() -> None:
    assert prior(replace(REQUEST, rehearse=False), L4, BUDGET, refused) is None


@pytest.mark.parametrize(
    ("option", "variable", "rehearse"), [([], "", True), (["--no-rehearse"], "", False), ([], "1", False)]
)
def test_the_command_line_rehearses_unless_told_not_to(
    option: list[str], variable: str, rehearse: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def run(request: Request, **_: Any) -> None:
        asked.append(request.rehearse)
        raise UsageError("that is all")

    monkeypatch.setattr("autoaccum.pipeline.run", run)
    monkeypatch.setenv("AUTOACCUM_NO_REHEARSE", variable)
    monkeypatch.setattr(sys, "argv", ["autoaccum", "probe", "x.py", "--target-batch", "8", *option])

    with pytest.raises(SystemExit):
        cli.main()

    assert asked == [rehearse]
