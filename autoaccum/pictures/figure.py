"""The picture of memory as an interactive figure. A home of plotly."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go

from autoaccum.pictures import theme
from autoaccum.pictures.memory import Picture, Point
from autoaccum.units import format_bytes


def memory_figure(picture: Picture) -> go.Figure:
    """Draw memory against the micro-batch: layers, the fit and its error, the budget, and every trial."""
    name, divisor = theme.unit(picture.largest_bytes)

    def scaled(values: Sequence[int]) -> list[float]:
        return [value / divisor for value in values]

    figure = go.Figure(layout=theme.layout("micro-batch (samples)", f"memory ({name})"))
    for (layer, values), colour in zip(picture.layers, theme.LAYERS, strict=False):
        figure.add_scatter(
            x=picture.sizes, y=scaled(values), name=layer, stackgroup="parts", mode="lines",
            line={"width": 0, "color": colour}, fillcolor=_faint(colour),
            hovertemplate=f"{layer} %{{y:.3g}} {name}<extra></extra>",
        )  # fmt: skip
    if picture.sizes:
        band = [*zip(picture.sizes, scaled(picture.high), strict=True)]
        band += [*zip(picture.sizes, scaled(picture.low), strict=True)][::-1]
        figure.add_scatter(
            x=[x for x, _ in band], y=[y for _, y in band], name="its error", fill="toself", mode="lines",
            line={"width": 0, "color": theme.BLUE}, fillcolor=_faint(theme.BLUE), hoverinfo="skip",
        )  # fmt: skip
        figure.add_scatter(
            x=picture.sizes, y=scaled(picture.fit), name="fit", mode="lines",
            line={"width": 2, "color": theme.BLUE}, hovertemplate=f"fit at %{{x}}: %{{y:.3g}} {name}<extra></extra>",
        )  # fmt: skip
    _add_points(figure, picture.ran, "ran", divisor, {"color": theme.BLUE, "size": 8})
    _add_points(figure, picture.failed, "did not fit", divisor, {"color": theme.RED, "size": 10, "symbol": "x"})
    star = {"color": theme.GREEN, "size": 14, "symbol": "star"}
    _add_points(figure, picture.confirmed, "confirmed, as in training", divisor, star)
    if picture.limit_bytes is not None:
        end = max([*picture.sizes, *(point.micro_batch for point in picture.points), 2])
        figure.add_scatter(
            x=[0, end], y=[picture.limit_bytes / divisor] * 2, mode="lines",
            name=f"budget {format_bytes(picture.limit_bytes)}", hoverinfo="name",
            line={"color": theme.RED, "width": 2, "dash": "dash"},
        )  # fmt: skip
    return figure


def _add_points(figure: go.Figure, points: Sequence[Point], name: str, divisor: int, marker: dict[str, Any]) -> None:
    if points:
        figure.add_scatter(
            x=[point.micro_batch for point in points],
            y=[point.size_bytes / divisor for point in points],
            text=[f"{point.micro_batch}: {_held(point, name)} ({point.text})" for point in points],
            name=name, mode="markers", marker=marker, hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip


def _held(point: Point, name: str) -> str:
    return f"more than {format_bytes(point.size_bytes)}" if name == "did not fit" else format_bytes(point.size_bytes)


def _faint(colour: str) -> str:
    red, green, blue = (int(colour[start : start + 2], 16) for start in (1, 3, 5))
    return f"rgba({red},{green},{blue},0.35)"
