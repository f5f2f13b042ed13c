"""report.html and what notebooks show, as text: what is in them for every kind of run, and that it is escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from autoaccum.anatomy.record import Part
from autoaccum.errors import UsageError
from autoaccum.records import Outcome, Request
from autoaccum.report import page, sheets
from autoaccum.report.charts import CHARTS
from autoaccum.report.record import Report, Status
from autoaccum.report.words import code, sentence
from autoaccum.tuning.results import Fate, Measurement
from tests.reports import KNOBS, anatomy, failed, measured, ran, report, tuning, without_plan

SCRIPT, IMAGE = "<script>alert(1)</script>", "<img src=x onerror=alert(1)>"


class Read(HTMLParser):
    """What a page says: its tags, the text below them, and its tables."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.said = ""
        self.figures: dict[str, Any] = {}
        self.rows: list[list[str]] = []
        self._within: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attributes
        self._within.append(tag + str(dict(attributes).get("id", "")))
        if tag == "tr":
            self.rows.append([])
        elif tag == "td":
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        while self._within and not self._within.pop().startswith(tag):
            pass

    def handle_data(self, data: str) -> None:
        within = self._within[-1] if self._within else ""
        if within == "scriptfigures":
            self.figures = json.loads(data)
        elif not within.startswith(("script", "style")):
            self.said += data
            if within == "td":
                self.rows[-1][-1] += data


def rendered(run: Report) -> Read:
    return Read(page.render(run))


def headings(run: Report) -> list[str]:
    return re.findall(r"<h2>([^<]*)", page.render(run))


def hostile() -> Report:
    """A run in which every text that comes from the user is an attack."""
    both = f"{SCRIPT}{IMAGE}"
    run = report(
        workload=both,
        samples=(ran(1, 2), ran(2, 4, phase=both), failed(3, 8, Outcome.OOM, both)),
        tuning=tuning(),
        warnings=(both,),
        advice=(both,),
        environment={both: both, "autoaccum": both},
        created_at=both,
        request=Request(workload=both, target_batch=512, storage=both),
    )
    assert run.tuning is not None
    assert run.device is not None
    assert run.model is not None
    *others, last = run.tuning.trials
    return replace(
        run,
        tuning=replace(run.tuning, trials=(*others, replace(last, message=both)), study=both),
        anatomy=anatomy(moment=both, modules=(Part(name=both, kind=both, size_bytes=1),)),
        device=replace(run.device, name=both),
        model=replace(run.model, name=both, optimizer=both),
    )


def test_a_whole_run_has_every_part() -> None:
    run = report(tuning=tuning())

    assert [heading.strip() for heading in headings(run)] == [
        "Warnings", "Advice", "Memory against the micro-batch", "Throughput against the micro-batch",
        "Tuning, trial by trial", "What each knob did", "Throughput against memory", "Plans", "Tuning trials", "Trials",
        "Environment",
    ]  # fmt: skip
    assert set(rendered(run).figures) == set(CHARTS)


def test_the_page_says_the_plan_warnings_advice_and_environment() -> None:
    said = rendered(report(tuning=tuning())).said

    assert "Train with micro-batch 64 x 8 accumulation steps = 512, peak 19.0 GiB of 20.0 GiB, 230.5 samples/s." in said
    assert "layer 3 (BatchNorm2d) couples the samples of a batch" in said
    assert "leave the learning rate as it is" in said
    assert "2.13.0" in said
    assert "memory_budget=20GiB" in said
    assert "plan = autoaccum.Plan.of(target_batch=512, micro_batch=64)" in said


def test_the_page_names_no_other_place() -> None:
    read = rendered(report(tuning=tuning()))

    linked = [value for name, value in read.attributes if name in ("src", "href", "action", "srcset")]
    assert linked == ["data:,"]


def test_the_page_may_run_its_own_two_scripts_only() -> None:
    (policy,) = [v for n, v in rendered(report()).attributes if n == "content" and "default-src" in str(v)]

    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "'unsafe-inline'" not in policy.partition("script-src")[2].partition(";")[0]
    assert policy.count("sha256-") == 2


def test_whatever_the_user_wrote_stays_text() -> None:
    plain, attacked = rendered(report(tuning=tuning())), rendered(hostile())

    assert "img" not in attacked.tags
    assert attacked.tags.count("script") == plain.tags.count("script") == 3
    assert not [name for name, _ in attacked.attributes if name.startswith("on")]
    assert attacked.said.count(f"{SCRIPT}{IMAGE}") >= 10


def test_no_text_of_the_user_ends_a_script_or_the_title() -> None:
    text = page.render(hostile())

    assert SCRIPT not in text
    assert IMAGE not in text
    assert "</title><" not in text.replace("</title>\n", "")


def test_a_plan_with_an_unknown_option_is_refused_rather_than_shown() -> None:
    run = report()
    assert run.plan is not None
    doctored = replace(run, tuning=replace(tuning(), trials=(measured(0, 2, {"precision": IMAGE}),)))

    with pytest.raises(UsageError, match="option precision is one of"):
        page.render(doctored)


def test_notebooks_show_the_user_s_text_as_text() -> None:
    for shown in (hostile()._repr_html_(), replace(hostile(), plan=None)._repr_html_()):
        read = Read(shown)

        assert not {"script", "img"} & set(read.tags)
        assert read.said.count(f"{SCRIPT}{IMAGE}") >= 3


def test_a_plan_in_a_notebook_is_escaped() -> None:
    run = report()
    assert run.plan is not None

    read = Read(replace(run.plan, options={"precision": IMAGE})._repr_html_())

    assert "img" not in read.tags
    assert f"precision={IMAGE}" in read.said
    assert "19.0 GiB" in read.said


def test_a_report_in_a_notebook_has_the_plan_and_every_trial() -> None:
    read = Read(report()._repr_html_())

    assert "micro-batch 64 x 8 accumulation steps = 512" in read.said
    assert "8 trials" in read.said
    assert len([row for row in read.rows if len(row) > 5]) == 8


EARLY = {
    "interrupted": (
        without_plan(Status.INTERRUPTED, ran(1, 2), ran(2, 4), tuning=tuning()),
        "Interrupted: this is what was measured until then.",
        {"memory", "speed", "history", "knobs", "tradeoff"},
    ),
    "interrupted at once": (
        without_plan(Status.INTERRUPTED, device=None, budget=None, model=None, environment={}),
        "Interrupted: this is what was measured until then.",
        set(),
    ),
    "oom only": (
        without_plan(Status.NOTHING_FITS, failed(1, 2), failed(2, 1)),
        "Nothing fits: not even the smallest micro-batch runs within the budget of 20.0 GiB.",
        {"memory"},
    ),
    "single sample": (
        without_plan(Status.INTERRUPTED, ran(1, 2)),
        "Interrupted: this is what was measured until then.",
        {"memory", "speed"},
    ),
    "failed workload": (
        without_plan(Status.FAILED, ran(1, 2), failed(2, 4, Outcome.FAILED, "ValueError: no rows")),
        "No plan: ValueError: no rows",
        {"memory", "speed"},
    ),
    "failed elsewhere": (without_plan(Status.FAILED, ran(1, 2)), "No plan: the run failed.", {"memory", "speed"}),
    "failed at once": (without_plan(Status.FAILED), "No plan: the run failed.", set()),
    "killed": (without_plan(Status.RUNNING, ran(1, 2)), "Killed, or still running: this is", {"memory", "speed"}),
}


@pytest.mark.parametrize("kind", list(EARLY))
def test_a_run_that_ended_early_says_so_and_shows_what_there_is(kind: str) -> None:
    run, words, charts = EARLY[kind]

    read = rendered(run)

    assert sentence(run).startswith(words)
    assert words in read.said
    assert set(read.figures) == charts
    assert len([row for row in read.rows if row]) == len(run.samples) + (17 if run.tuning is not None else 0)
    assert "no plan" in Read(run._repr_html_()).said


def test_five_hundred_trials_are_all_in_the_table() -> None:
    run = report(
        samples=tuple(ran(number, number) for number in range(1, 501)), plans=(), plan=None, tuning=tuning(500)
    )

    read = rendered(run)

    rows = [row for row in read.rows if row]
    assert len(rows) == 500 + 501
    assert len(read.figures["history"]["data"]) >= 3
    assert len(run.to_frame("samples")) == 500


def test_the_line_to_paste_gives_the_plan() -> None:
    import autoaccum

    run = report()
    assert run.plan is not None
    bf16 = replace(run.plan, options={"precision": "bf16"}, world_size=2, effective_batch=1024)

    for plan in (run.plan, bf16):
        scope: dict[str, Any] = {"autoaccum": autoaccum}
        exec(code(plan), scope)

        pasted = scope["plan"]
        assert (pasted.micro_batches, pasted.world_size) == (plan.micro_batches, plan.world_size)
        assert (pasted.effective_batch, pasted.options) == (plan.effective_batch, plan.options)


def test_a_chart_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(UsageError, match='no chart "loss": use memory, speed, history, knobs, tradeoff'):
        report().plot("loss")
    with pytest.raises(UsageError, match="nothing to draw for history"):
        report().plot("history")


def test_the_speed_of_a_trial_has_its_interval() -> None:
    run = report(tuning=replace(tuning(), trials=(measured(0, 2, {}),)))

    (trace,) = [trace for trace in run.plot("speed").data if trace.name == "tuning"]

    speed = trace.y[0]
    assert trace.error_y.array[0] == pytest.approx(speed / 0.99 - speed)
    assert trace.error_y.arrayminus[0] == pytest.approx(speed - speed / 1.02)


def test_a_speed_without_an_interval_has_no_bar() -> None:
    row = measured(0, 2, {}, update_seconds_low=None, update_seconds_high=None)
    run = report(tuning=replace(tuning(), trials=(row,)))

    (trace,) = [trace for trace in run.plot("speed").data if trace.name == "tuning"]

    assert (list(trace.error_y.array), list(trace.error_y.arrayminus)) == ([0], [0])


def test_the_history_has_a_mark_for_each_fate_and_the_fastest_so_far() -> None:
    rows = (
        measured(0, 2, {}, samples_per_second=10.0),
        measured(1, 4, {}, samples_per_second=30.0),
        measured(2, 8, {}, samples_per_second=20.0, outcome=Fate.PRUNED),
        Measurement(trial=3, outcome=Fate.INFEASIBLE, micro_batch=64, accumulation_steps=8),
        Measurement(trial=4, outcome=Fate.FAILED, micro_batch=64, accumulation_steps=8),
        Measurement(trial=5, outcome=Fate.OOM, micro_batch=64, accumulation_steps=8),
    )
    run = report(tuning=replace(tuning(), trials=rows))

    traces = {trace.name: trace for trace in run.plot("history").data}

    assert list(traces["fastest so far"].y) == [10.0, 30.0, 30.0]
    assert [list(traces[name].x) for name in ("slower: given up", "out of memory", "failed")] == [[2], [5], [4]]
    assert list(traces["would not fit: not run"].x) == [3]


def test_the_tradeoff_joins_what_nothing_beats_and_shows_energy_as_colour() -> None:
    peaks_and_speeds = [(10, 5.0), (20, 4.0), (30, 9.0), (40, 9.0)]
    rows = tuple(
        measured(number, 2, KNOBS[0], peak_bytes=held << 30, samples_per_second=speed, joules_per_sample=float(number))
        for number, (held, speed) in enumerate(peaks_and_speeds)
    )
    run = report(tuning=replace(tuning(), trials=rows))

    front, points = run.plot("tradeoff").data

    assert list(zip(front.x, front.y, strict=True)) == [(10.0, 5.0), (30.0, 9.0)]
    assert list(points.marker.color) == [0.0, 1.0, 2.0, 3.0]
    assert points.marker.colorbar.title.text == "J/sample"


def test_a_tradeoff_without_energy_has_no_scale() -> None:
    rows = tuple(measured(number, 2 + number, {}, joules_per_sample=None) for number in range(3))
    run = report(tuning=replace(tuning(), trials=rows))

    _, points = run.plot("tradeoff").data

    assert points.marker.showscale is None


def test_the_parts_of_the_memory_add_up_to_the_plans_own_peak() -> None:
    found = sheets.memory(report())
    plan = report().plan

    assert plan is not None
    *parts, total = (row[1].value for row in found.rows)
    assert total == plan.peak_bytes
    assert sum(part or 0 for part in parts) == total


def test_a_memory_that_was_taken_apart_stands_in_place_of_the_coarse_table() -> None:
    run = report(anatomy=anatomy())

    *_, memory, where, modules, _, plans, _, _ = (heading.strip() for heading in headings(run))

    assert memory == "Memory against the micro-batch"
    assert (where, modules, plans) == ("Where the memory goes", "Activations by module", "Plans")
    assert "When most is in use: in the forward pass, in lm_head, at micro-batch 64." in rendered(run).said
    assert "activations, temporary, cache" not in [row[0] for row in rendered(run).rows if row]
    assert ["blocks.*.mlp.0", "Linear", "12", "4.00 GiB", "28.6%"] in rendered(run).rows


def test_the_parts_of_an_anatomy_and_the_context_add_up_to_the_plans_own_peak() -> None:
    run = report(anatomy=anatomy())

    found = sheets.memory(run)

    assert run.plan is not None
    *parts, total = (row[1].value for row in found.rows)
    assert (found.rows[0][0].text, parts[0]) == ("context and libraries", 400 << 20)
    assert sum(part or 0 for part in parts) == total == run.plan.peak_bytes


def test_an_anatomy_alone_adds_up_to_what_was_reserved() -> None:
    found = sheets.anatomy_sheet(anatomy(moment="before the first batch"))

    assert [row[0].text for row in found.rows] == [
        "parameters", "buffers, other models", "gradients", "optimizer state", "batch", "activations", "temporary",
        "cache, fragmentation", "in all",
    ]  # fmt: skip
    assert found.rows[-1][1].value == anatomy().reserved_bytes
    assert found.note == "When most is in use: before the first batch, at micro-batch 64."


def test_modules_that_are_not_named_are_one_row() -> None:
    *named, others = sheets.modules_sheet(anatomy()).rows

    assert len(named) == 10
    assert [cell.text for cell in others] == ["all others", "", "", "1.00 GiB", "7.1%"]


def test_a_peak_without_activations_names_no_module() -> None:
    assert sheets.modules_sheet(anatomy(activation_bytes=0, modules=())).rows == ()
