"""Colours that read on white and on black, and to the colour-blind (Okabe and Ito), and the layout of all charts."""

from __future__ import annotations

from typing import Any

BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#b5628f", "#56b4e9", "#808890",
)  # fmt: skip
LAYERS = (GREY, PURPLE, SKY, ORANGE, GREEN, BLUE)  # of the memory picture, from the bottom up

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"


def unit(largest_bytes: float) -> tuple[str, int]:
    """Give the unit of an axis up to so many bytes, and how many bytes it has."""
    return ("GiB", 1 << 30) if largest_bytes >= 1 << 30 else ("MiB", 1 << 20)


def layout(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Give the layout of a chart: no title, for the page has a heading; a legend below; axes named with their unit."""
    axis = {"gridcolor": "rgba(128,136,144,0.25)", "zerolinecolor": "rgba(128,136,144,0.5)", "automargin": True}
    return {
        "template": None,
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"family": FONT, "size": 13, "color": GREY},
        "margin": {"l": 8, "r": 8, "t": 28, "b": 8},
        "hovermode": "closest",
        "legend": {"orientation": "h", "yanchor": "top", "y": -0.22, "x": 0},
        "xaxis": {**axis, "title": {"text": x}},
        "yaxis": {**axis, "title": {"text": y}, "rangemode": "tozero"},
        **more,
    }
