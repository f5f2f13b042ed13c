"""The picture of memory as a file for papers. The home of matplotlib, which is installed on request."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autoaccum.errors import UsageError
from autoaccum.outputs import check_file, whole
from autoaccum.pictures import theme
from autoaccum.pictures.memory import Picture
from autoaccum.units import format_bytes

KINDS = (".svg", ".png", ".pdf")
_UNDATED = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}  # the same run gives the same file


def check_path(path: Path) -> None:
    """Raise for what can be seen to be wrong with a path before there is a picture."""
    if path.suffix.lower() not in KINDS:
        raise UsageError(f"--plot {path} is no picture: end its name in {', '.join(KINDS[:-1])} or {KINDS[-1]}")
    check_file("--plot", path)
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UsageError("--plot needs matplotlib: pip install matplotlib") from None


def draw(picture: Picture, path: Path) -> None:
    """Write the picture, as what the name's end says; the file is whole or not there."""
    check_path(path)
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    name, divisor = theme.unit(picture.largest_bytes)

    def scaled(values: Sequence[int]) -> list[float]:
        return [value / divisor for value in values]

    # Text stays text in an SVG, whose names are not drawn at random.
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "autoaccum", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.8), layout="constrained")
        axes = figure.add_subplot()
        if picture.layers:
            axes.stackplot(
                picture.sizes,
                [scaled(values) for _, values in picture.layers],
                labels=[layer for layer, _ in picture.layers],
                colors=theme.LAYERS[: len(picture.layers)],
                alpha=0.45,
                linewidth=0,
            )
        if picture.sizes:
            axes.fill_between(
                picture.sizes, scaled(picture.low), scaled(picture.high), color=theme.BLUE, alpha=0.3, linewidth=0
            )
            axes.plot(picture.sizes, scaled(picture.fit), color=theme.BLUE, label="fit and its error")
        for points, label, marker, colour in (
            (picture.ran, "ran", "o", theme.BLUE),
            (picture.failed, "did not fit", "X", theme.RED),
            (picture.confirmed, "confirmed, as in training", "*", theme.GREEN),
        ):
            if points:
                x, y = [p.micro_batch for p in points], scaled([p.size_bytes for p in points])
                size = 120 if marker == "*" else 36
                axes.scatter(x, y, marker=marker, color=colour, label=label, zorder=3, s=size)
        if picture.limit_bytes is not None:
            label = f"budget {format_bytes(picture.limit_bytes)}"
            axes.axhline(picture.limit_bytes / divisor, color=theme.RED, linestyle="--", label=label)
        axes.set(xlabel="micro-batch (samples)", ylabel=f"memory ({name})")
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
        axes.spines[["top", "right"]].set_visible(False)
        if axes.get_legend_handles_labels()[0]:  # a run that ended at once has nothing to name
            figure.legend(loc="outside right center", frameon=False)
        with whole(path) as partial:
            figure.savefig(partial, dpi=160, metadata=_UNDATED.get(path.suffix.lower()))
