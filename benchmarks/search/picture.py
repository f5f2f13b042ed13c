"""The picture of the results: what each tool pays for its answer, and how good the answer is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.search import ours
from benchmarks.search.forks import Row

_OURS, _PEER, _FAINT = "#1f5fa8", "#9a9a9a", "#d8d8d8"
_PANELS = (
    ("trials_and_confirming", "trials on average,\nconfirming ones included", 1.0, "{:.1f}"),
    ("ooms_and_confirming", "out-of-memory crashes on\naverage, in all of them", 1.0, "{:.2f}"),
    ("nearly_best_and_holds", "95 % of what fits, and it\nruns with accumulation, %", 100.0, "{:.0f}"),
    ("target_met", "effective batch is\nthe target, %", 100.0, "{:.0f}"),
)


def draw(lines: Sequence[Row], title: str, path: Path) -> None:
    """Draw a summary, one panel for each figure, one bar for each tool."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 3.4), layout="constrained")
    axes = figure.subplots(1, len(_PANELS), sharey=True)
    tools = [line["tool"] for line in lines]
    colours = [_OURS if tool in (ours.PLAIN, ours.REHEARSED) else _PEER for tool in tools]
    for panel, (name, words, times, shown) in zip(axes, _PANELS, strict=True):
        values = [times * float(line[name]) for line in lines]
        bars = panel.barh(tools, values, color=colours, height=0.66)
        panel.bar_label(bars, [shown.format(value) for value in values], padding=3, fontsize=8)
        panel.set_title(words, fontsize=8.5, loc="left")
        panel.set_xlim(0, 1.22 * max(*values, 1e-9))
        panel.spines[["top", "right", "bottom"]].set_visible(False)
        panel.spines["left"].set_color(_FAINT)
        panel.tick_params(axis="x", bottom=False, labelbottom=False)
        panel.tick_params(axis="y", length=0, labelsize=8.5)
    axes[0].invert_yaxis()
    figure.suptitle(title, fontsize=10, x=0.01, ha="left")
    figure.savefig(path, dpi=150)
