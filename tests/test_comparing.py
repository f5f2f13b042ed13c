"""Two runs, and gates on what changed between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autoaccum.errors import UsageError
from autoaccum.report.comparing import compare, parse_gates
from autoaccum.report.record import Report, Status
from autoaccum.units import GIB
from tests.reports import report, tuning, without_plan


def planned(**more: Any) -> Report:
    run = report()
    assert run.plan is not None
    return replace(run, plan=replace(run.plan, **more))


def broken(before: Report, after: Report, gates: str) -> list[str]:
    return list(compare(before, after, parse_gates(gates)).broken)


@pytest.mark.parametrize(
    ("before", "after", "gate", "fails"),
    [
        (100, 104, "peak_bytes>+5%", False),
        (100, 105, "peak_bytes>+5%", False),
        (100, 106, "peak_bytes>+5%", True),
        (100, 105, "peak_bytes>=+5%", True),
        (100, 94, "peak_bytes<-5%", True),
        (100, 96, "peak_bytes<-5%", False),
        (100, 94, "peak_bytes>+5%", False),
        (2 * GIB, 3 * GIB, "peak_bytes>+0.5GiB", True),
        (2 * GIB, 3 * GIB, "peak_bytes>+2GiB", False),
        (2 * GIB, 2 * GIB, "peak_bytes>+0GiB", False),
        (2 * GIB, 2 * GIB + 1, "peak_bytes>+0GiB", True),
        (5 * GIB, 3 * GIB, "peak_bytes>2.9 GiB", True),
        (5 * GIB, 3 * GIB, "peak_bytes > 3GiB", False),
        (0, 0, "peak_bytes>+5%", False),
        (0, 1, "peak_bytes>+5%", True),
        (0, 0, "peak_bytes<-5%", False),
        (-100, -90, "peak_bytes>+5%", True),
        (-100, -97, "peak_bytes>+5%", False),
        (-100, -103, "peak_bytes<-5%", False),
        (-100, -120, "peak_bytes<-5%", True),
    ],
)
def test_a_gate_fails_where_it_holds(before: int, after: int, gate: str, fails: bool) -> None:
    assert bool(broken(planned(peak_bytes=before), planned(peak_bytes=after), gate)) is fails


def test_each_gate_of_several_says_why_it_fails() -> None:
    before, after = planned(samples_per_second=100.0), planned(samples_per_second=80.0, accumulation_steps=9)

    found = broken(before, after, "samples_per_second<-5%, accumulation_steps>+0, peak_bytes>+5%")

    assert found == [
        "samples_per_second<-5%: 100 became 80 (-20.0%)",
        "accumulation_steps>+0: 8 became 9 (+12.5%)",
    ]


def test_a_gate_on_a_value_says_the_value() -> None:
    assert broken(planned(), planned(samples_per_second=80.0), "samples_per_second<100") == [
        "samples_per_second<100: it is 80"
    ]


@pytest.mark.parametrize(
    ("before", "after", "words"),
    [
        (report(), report(), "was not measured in the first and the second run"),
        (report(), report(tuning=tuning()), "was not measured in the first run"),
        (report(tuning=tuning()), report(), "was not measured in the second run"),
    ],
)
def test_a_figure_that_was_not_measured_fails_its_gate(before: Report, after: Report, words: str) -> None:
    (found,) = broken(before, after, "joules_per_sample>+5%")

    assert found == f"joules_per_sample>+5%: joules_per_sample {words}"


def test_a_gate_on_a_value_needs_only_the_second_run() -> None:
    assert broken(report(), report(tuning=tuning()), "joules_per_sample>1000") == []


def test_a_run_without_a_plan_has_the_figures_of_its_trials_only() -> None:
    found = compare(report(), without_plan(Status.INTERRUPTED, *report().samples[:3]), [])

    assert found.figures["peak_bytes"][1] is None
    assert found.figures["trials"] == (8, 3)
    assert found.figures["ooms"] == (1, 0)


@pytest.mark.parametrize(
    ("gate", "words"),
    [
        ("", "is no gate: write one such as peak_bytes>\\+5%"),
        ("peak_bytes", "is no gate"),
        ("peak_bytes=5", "is no gate"),
        ("peak_bytes>+5%,", '"" is no gate'),
        ("peak_byte>+5%", 'no figure "peak_byte" to compare: did you mean peak_bytes\\? known are micro_batch'),
        ("watts>+5%", 'no figure "watts" to compare: known are'),
        ("peak_bytes>5%", "write \\+5% or -5%"),
        ("peak_bytes>1.2.3", "has no number: 1.2.3"),
        ("peak_bytes>1e999", "has no number"),
        ("peak_bytes>5 apples", 'unknown unit "apples"'),
        ("trials>1GiB", "trials has none: write trials>1"),
    ],
)
def test_what_is_no_gate_is_a_usage_error(gate: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_gates(gate)


def test_what_makes_runs_hard_to_compare_is_told() -> None:
    before = report()
    assert before.device is not None
    after = replace(
        before, device=replace(before.device, name="Another"), target_batch=1024, environment={"torch": "2.14.0"}
    )

    assert compare(before, after, []).differences == (
        "target batch: 512 and 1024",
        "device: A Card and Another",
        "torch: 2.13.0 and 2.14.0",
    )


def test_a_run_is_like_itself() -> None:
    found = compare(report(tuning=tuning()), report(tuning=tuning()), [])

    assert found.differences == ()
    assert all(before == after for before, after in found.figures.values())


def test_knobs_are_compared_in_words_and_only_between_plans() -> None:
    plan = report().plan
    assert plan is not None
    fused = report(plan=replace(plan, options={"optimizer": "fused"}))

    assert "knobs: none and fused optimizer" in compare(report(), fused, []).differences
    assert not any("knobs" in text for text in compare(report(), report(plan=None, plans=()), []).differences)
