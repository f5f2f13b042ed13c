"""The charts of a run, as plotly figures; None where a run has nothing to draw. A home of plotly."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from textwrap import wrap
from typing import Any

import plotly.graph_objects as go

from autoaccum.knobs.names import of_options, words
from autoaccum.pictures import theme
from autoaccum.pictures.figure import memory_figure
from autoaccum.pictures.memory import picture
from autoaccum.report.effects import effects
from autoaccum.report.record import Report
from autoaccum.tuning.results import Fate, Measurement, Tuning
from autoaccum.units import format_bytes

_TIMED = (Fate.OK, Fate.PRUNED)
_EVERY_TICK = 20  # trials, up to which each has a tick
_LABEL = 18  # characters of a label's line, for phones
_MARKS = {
    Fate.OK: ("measured", "circle", theme.BLUE),
    Fate.PRUNED: ("slower: given up", "circle-open", theme.GREY),
    Fate.OOM: ("out of memory", "x", theme.RED),
    Fate.INFEASIBLE: ("would not fit: not run", "x-thin-open", theme.GREY),
    Fate.FAILED: ("failed", "cross", theme.PURPLE),
}


def memory(report: Report) -> go.Figure | None:
    """Draw memory against the micro-batch."""
    found = picture(report.evidence)
    return memory_figure(found) if found.points else None


def speed(report: Report) -> go.Figure | None:
    """Draw throughput against the micro-batch: trials of the search, of tuning with their intervals, and the plan."""
    figure = go.Figure(layout=theme.layout("micro-batch (samples)", "samples/s"))
    searched = [s for s in report.samples if s.ok and s.samples_per_second is not None]
    groups = {
        "search": [s for s in searched if s.phase != "confirm"],
        "confirmed, as in training": [s for s in searched if s.phase == "confirm"],
    }
    rows = [row for row in _rows(report) if row.outcome in _TIMED and row.samples_per_second]
    by_knobs: dict[str, list[Measurement]] = {}
    for row in sorted(rows, key=lambda row: row.micro_batch):
        by_knobs.setdefault(_knobs(row) or "tuning", []).append(row)
    if groups["search"]:
        _points(figure, "search", [(s.micro_batch, s.samples_per_second or 0.0) for s in groups["search"]], theme.GREY)
    palette = (theme.BLUE, theme.ORANGE, theme.SKY, theme.PURPLE, theme.RED)
    for index, (name, same) in enumerate(by_knobs.items()):
        _with_intervals(figure, name, same, palette[index % len(palette)])
    if groups["confirmed, as in training"]:
        sample = groups["confirmed, as in training"][-1]
        figure.add_scatter(
            x=[sample.micro_batch], y=[sample.samples_per_second], name="confirmed, as in training", mode="markers",
            marker={"symbol": "star", "size": 14, "color": theme.GREEN},
            hovertemplate="%{x}: %{y:.4g} samples/s<extra>confirmed</extra>",
        )  # fmt: skip
    return figure if figure.data else None


def history(report: Report) -> go.Figure | None:
    """Draw the tuning from trial to trial, with the best of all so far."""
    rows = _rows(report)
    timed = [row for row in rows if row.samples_per_second]
    if not timed:
        return None
    figure = go.Figure(layout=theme.layout("tuning trial", "samples/s"))
    if rows[-1].trial <= _EVERY_TICK:
        figure.update_xaxes(dtick=1)
    for fate, (name, symbol, colour) in _MARKS.items():
        same = [row for row in rows if row.outcome is fate]
        if same:
            figure.add_scatter(
                x=[row.trial for row in same], y=[row.samples_per_second or 0.0 for row in same], name=name,
                mode="markers", marker={"symbol": symbol, "color": colour, "size": 9}, text=[_named(r) for r in same],
                hovertemplate="trial %{x}, %{text}<br>%{y:.4g} samples/s<extra>" + name + "</extra>",
            )  # fmt: skip
    _add_plan(figure, report, lambda row: row.trial)
    best, line = 0.0, []
    for row in timed:
        best = max(best, row.samples_per_second or 0.0)
        line.append(best)
    figure.add_scatter(
        x=[row.trial for row in timed], y=line, name="fastest so far", mode="lines",
        line={"shape": "hv", "color": theme.GREEN, "width": 2}, hoverinfo="skip",
    )  # fmt: skip
    return figure


def knobs(report: Report) -> go.Figure | None:
    """Draw how many times as fast an update is with each knob, all else alike."""
    found = effects(_rows(report))[::-1]
    if not found:
        return None
    layout = theme.layout("times as fast", "", showlegend=False)
    layout["yaxis"] |= {"rangemode": "normal"}
    layout["xaxis"] |= {
        "range": [min(0.9, *(e.lowest for e in found)) - 0.05, max(1.1, *(e.highest for e in found)) + 0.05]
    }
    figure = go.Figure(layout=layout)
    figure.add_bar(
        base=1.0, x=[effect.speed - 1 for effect in found], orientation="h", width=0.6,
        y=["<br>".join(wrap(effect.name, _LABEL)) for effect in found],
        marker={"color": [theme.GREEN if effect.speed >= 1 else theme.GREY for effect in found]},
        error_x={
            "type": "data", "symmetric": False, "color": theme.GREY,
            "array": [effect.highest - effect.speed for effect in found],
            "arrayminus": [effect.speed - effect.lowest for effect in found],
        },
        customdata=[[effect.speed, effect.pairs] for effect in found],
        hovertemplate="%{y}: %{customdata[0]:.3g} times as fast, pairs: %{customdata[1]}<extra></extra>",
    )  # fmt: skip
    figure.add_vline(x=1.0, line={"color": theme.GREY, "dash": "dot"})
    return figure


def tradeoff(report: Report) -> go.Figure | None:
    """Draw throughput against memory, in which those that no other beats in both are joined; energy is the colour."""
    rows = [row for row in _rows(report) if row.outcome in _TIMED and row.samples_per_second and row.peak_bytes]
    if len(rows) < 2:
        return None
    name, divisor = theme.unit(max(row.peak_bytes or 0 for row in rows))
    figure = go.Figure(layout=theme.layout(f"peak memory ({name})", "samples/s"))
    front = _front(rows)
    if len(front) > 1:
        figure.add_scatter(
            x=[(row.peak_bytes or 0) / divisor for row in front], y=[row.samples_per_second for row in front],
            name="nothing is faster with less", mode="lines", line={"color": theme.GREEN, "shape": "hv"},
            hoverinfo="skip",
        )  # fmt: skip
    joules = [row.joules_per_sample for row in rows]
    told = all(each is not None for each in joules)
    marker: dict[str, Any] = {"size": 10, "color": joules if told else theme.BLUE}
    if told:
        marker |= {"colorscale": "Viridis", "showscale": True, "colorbar": {"title": {"text": "J/sample"}}}
    figure.add_scatter(
        x=[(row.peak_bytes or 0) / divisor for row in rows], y=[row.samples_per_second for row in rows],
        name="candidate", mode="markers", marker=marker,
        text=[f"{_named(row)}<br>{format_bytes(row.peak_bytes or 0)}{_joules(row)}" for row in rows],
        hovertemplate="%{text}<br>%{y:.4g} samples/s<extra></extra>",
    )  # fmt: skip
    _add_plan(figure, report, lambda row: (row.peak_bytes or 0) / divisor)
    return figure


CHARTS: dict[str, Callable[[Report], go.Figure | None]] = {
    "memory": memory,
    "speed": speed,
    "history": history,
    "knobs": knobs,
    "tradeoff": tradeoff,
}


def _rows(report: Report) -> Sequence[Measurement]:
    tuning: Tuning | None = report.tuning
    return () if tuning is None else tuning.trials


def _points(figure: go.Figure, name: str, points: Sequence[tuple[int, float]], colour: str) -> None:
    ordered = sorted(points)
    figure.add_scatter(
        x=[x for x, _ in ordered], y=[y for _, y in ordered], name=name, mode="lines+markers",
        line={"color": colour, "width": 1, "dash": "dot"}, hovertemplate="%{x}: %{y:.4g} samples/s<extra></extra>",
    )  # fmt: skip


def _with_intervals(figure: go.Figure, name: str, rows: Sequence[Measurement], colour: str) -> None:
    speeds = [row.samples_per_second or 0.0 for row in rows]
    # An interval of times turned around is one of speeds.
    highest = [_at(row, row.update_seconds_low) for row in rows]
    lowest = [_at(row, row.update_seconds_high) for row in rows]
    figure.add_scatter(
        x=[row.micro_batch for row in rows], y=speeds, name=name, mode="lines+markers",
        line={"color": colour, "width": 1}, marker={"size": 8},
        error_y={
            "type": "data", "symmetric": False, "thickness": 1,
            "array": [high - y for high, y in zip(highest, speeds, strict=True)],
            "arrayminus": [y - low for low, y in zip(lowest, speeds, strict=True)],
        },
        hovertemplate="%{x}: %{y:.4g} samples/s<extra>" + name + "</extra>",
    )  # fmt: skip


def _at(row: Measurement, seconds: float | None) -> float:
    """Give the speed if an update took so long; without an interval, as it is."""
    speed = row.samples_per_second or 0.0
    return speed * row.update_seconds / seconds if row.update_seconds and seconds else speed


def _add_plan(figure: go.Figure, report: Report, x: Callable[[Measurement], float]) -> None:
    """Mark the trial that the plan comes from; its confirming trial may have shown another speed."""
    row = None if report.tuning is None else report.tuning.trial(report.tuning.best)
    if row is not None and row.samples_per_second:
        figure.add_scatter(
            x=[x(row)], y=[row.samples_per_second], name="the plan", mode="markers",
            marker={"symbol": "star", "size": 14, "color": theme.GREEN}, hoverinfo="name",
        )  # fmt: skip


def _front(rows: Sequence[Measurement]) -> list[Measurement]:
    front: list[Measurement] = []
    for row in sorted(rows, key=lambda row: (row.peak_bytes or 0, -(row.samples_per_second or 0.0))):
        if not front or (row.samples_per_second or 0.0) > (front[-1].samples_per_second or 0.0):
            front.append(row)
    return front


def _knobs(row: Measurement) -> str:
    return ", ".join(words(of_options(row.options)))


def _named(row: Measurement) -> str:
    return ", ".join(filter(None, [f"micro-batch {row.micro_batch}", _knobs(row)]))


def _joules(row: Measurement) -> str:
    return "" if row.joules_per_sample is None else f", {row.joules_per_sample:.3g} J/sample"
