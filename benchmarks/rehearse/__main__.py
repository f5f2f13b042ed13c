"""Compares rehearsals with peaks that were measured on a real GPU.

    python benchmarks/rehearse --measured FILE.csv

FILE.csv has the columns model, batch and measured_mib: timm models trained on an A100 with 40 GB, such as the public
measurements of the GPUMemNet project, which are not part of this repository. The constant of the card and the bands
are found from one half of the models; the figures that count are those of the other half.

`--share 0` tells how it would be without a model of cuDNN's workspaces.

It needs a CUDA build of torch, timm 1.0.9 and torchvision, each installed with --no-deps (timm needs pyyaml,
safetensors and huggingface-hub besides), and matplotlib for the picture. Writes results/rehearse/.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import median

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE)]

import measured  # noqa: E402
import sweep  # noqa: E402
from scores import Point, fit_band, fit_constant, name_sizes, quantile, with_default  # noqa: E402

from autoaccum.anatomy.traits import Traits  # noqa: E402
from autoaccum.rehearsal import bands  # noqa: E402
from autoaccum.rehearsal.constants import DEFAULT  # noqa: E402
from autoaccum.virtual import DEFAULT_WORKSPACE_SHARE  # noqa: E402

MIB = 1 << 20
KINDS = {band.kind: band for band in (bands.PRODUCTS, bands.MIXED, bands.DENSE)}
COLUMNS = (
    "workspace_share", "cleaning", "half", "kind", "models", "points", "constant_mib", "median_error", "p90_error",
    "in_band", "band_low", "band_high", "cases", "right_size", "too_large",
)  # fmt: skip


def main() -> None:
    """Rehearse, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measured", type=Path, required=True)
    parser.add_argument("--kept", type=Path, default=Path("rehearsed.jsonl"), help="what was rehearsed before")
    parser.add_argument("--out", type=Path, default=HERE.parents[1] / "results" / "rehearse")
    parser.add_argument("--share", type=float, default=DEFAULT_WORKSPACE_SHARE, help="of cuDNN's workspaces; 0: none")
    parser.add_argument("--processes", type=int, default=2)
    asked = parser.parse_args()
    plain = measured.read(asked.measured, plain=True)
    peaks = measured.read(asked.measured)
    batches = {model: sorted({*plain.get(model, ()), *peaks.get(model, ())}) for model in {**plain, **peaks}}
    rows = sweep.run(batches, asked.kept, asked.processes, asked.share)
    print(f"{len(rows)} models, {sum('error' in row for row in rows.values())} not rehearsed")
    calibration, test = _halves(_points(peaks, rows))
    constant = fit_constant(calibration)
    _show_bands(calibration, constant)
    lines = [_line("careful", "calibration", calibration, kind, constant) for kind in ("all", *KINDS)]
    lines += [_line("careful", "test", test, kind, constant) for kind in ("all", *KINDS)]
    lines += [_line("plain", "test", _halves(_points(plain, rows))[1], "all", constant), _never_probed(test)]
    _write(asked.out, asked.share, lines)
    if asked.share == DEFAULT_WORKSPACE_SHARE:
        _draw(test, constant, asked.out / "accuracy.png")


def _halves(points: Sequence[Point]) -> tuple[list[Point], list[Point]]:
    calibration = [point for point in points if measured.for_calibration(point.model)]
    return calibration, [point for point in points if not measured.for_calibration(point.model)]


def _show_bands(calibration: Sequence[Point], constant: float) -> None:
    """Print the bands that autoaccum uses, and those that this run would give."""
    for kind, band in KINDS.items():
        own = [point for point in calibration if point.band is band]
        low, high, margin = fit_band(own, constant)
        print(f"{kind}: in use {band.low:+.3f} to {band.high:+.3f}, margin {band.margin:.3f}")
        print(f"    found here {low:+.3f} to {high:+.3f}, margin {margin:.3f}, {len({p.model for p in own})} models")


def _write(out: Path, share: float, lines: list[dict[str, object]]) -> None:
    """Write the lines, beside those of other shares that were written before."""
    path = out / "accuracy.csv"
    out.mkdir(parents=True, exist_ok=True)
    before = list(csv.DictReader(path.read_text().splitlines())) if path.exists() else []
    others = [line for line in before if float(line["workspace_share"]) != share]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows([{"workspace_share": share, **line} for line in lines] + others)
    for line in lines:
        print(*(f"{key}={value}" for key, value in line.items()))


def _points(peaks: measured.Peaks, rows: dict[str, dict[str, object]]) -> list[Point]:
    points = []
    for model, row in rows.items():
        if model not in peaks or "error" in row:
            continue
        band = bands.band_for(Traits.from_dict(row["traits"]))  # type: ignore[arg-type]
        for batch, reserved, _ in row["peaks"]:  # type: ignore[attr-defined]
            if batch in peaks[model]:
                points.append(Point(model, batch, peaks[model][batch], reserved / MIB, band))
    return points


def _line(cleaning: str, half: str, points: Sequence[Point], kind: str, constant: float) -> dict[str, object]:
    own = [point for point in points if kind in ("all", point.band.kind)]
    errors = [abs(point.error(constant)) for point in own]
    named = name_sizes(own, constant)
    band = KINDS.get(kind)
    return {
        "cleaning": cleaning,
        "half": half,
        "kind": kind,
        "models": len({point.model for point in own}),
        "points": len(own),
        "constant_mib": constant,
        "median_error": round(median(errors), 4),
        "p90_error": round(quantile(errors, 0.9), 4),
        "in_band": round(sum(point.inside(constant) for point in own) / len(own), 3),
        "band_low": "" if band is None else band.low,
        "band_high": "" if band is None else band.high,
        "cases": named.cases,
        "right_size": round(named.right / max(1, named.cases), 3),
        "too_large": round(named.too_large / max(1, named.cases), 3),
    }


def _never_probed(test: Sequence[Point]) -> dict[str, object]:
    """Give the test half's line for those who have no constant of their machine: only what that changes."""
    errors, inside = with_default(test)
    return {
        "cleaning": "careful",
        "half": "test",
        "kind": "all, with the default constant",
        "models": len({point.model for point in test}),
        "points": len(test),
        "constant_mib": DEFAULT.typical_bytes // MIB,
        "median_error": round(median(errors), 4),
        "p90_error": round(quantile(errors, 0.9), 4),
        "in_band": round(inside / len(test), 3),
    }


def _draw(points: Sequence[Point], constant: float, path: Path) -> None:
    """Draw the errors of the test half against the measured peaks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.0), layout="constrained")
    axes = figure.add_subplot()
    for kind, colour in zip(KINDS.values(), ("#1f77b4", "#2ca02c", "#d62728"), strict=True):
        own = [point for point in points if point.band is kind]
        axes.scatter(
            [point.measured / 1024 for point in own],
            [100 * max(-0.3, min(0.3, point.error(constant))) for point in own],
            s=9, color=colour, alpha=0.6, linewidth=0, label=f"{kind.kind} ({len({p.model for p in own})} models)",
        )  # fmt: skip
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set(xscale="log", xlabel="measured peak on an A100, GiB", ylabel="error of the prediction, %")
    axes.set_ylim(-31, 31)
    axes.set_xticks([2, 4, 8, 16, 32], ["2", "4", "8", "16", "32"])
    axes.minorticks_off()
    axes.set_title("Rehearsed against measured: the test half (beyond 30 % at the edge)", fontsize=10)
    axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
