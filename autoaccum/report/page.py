"""report.html: one file that opens anywhere, offline. What came from the user is text in it, never markup.

The template escapes whatever it is given. The page may run just the two scripts whose digests it names, and may load
nothing: a browser enforces that, should something slip through.
"""

from __future__ import annotations

import base64
import hashlib
import json
from importlib.resources import files as resources

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from plotly.offline import get_plotlyjs

from autoaccum.report import sheets
from autoaccum.report.charts import CHARTS
from autoaccum.report.record import Report
from autoaccum.report.words import code, sentence
from autoaccum.tuning.costs import gained
from autoaccum.units import format_bytes

_CHARTS = (
    (
        "memory",
        "Memory against the micro-batch",
        "Each trial's peak on the device. The line is fitted to the search; a process of its own, as training is one, "
        "may hold more: the star.",
    ),
    (
        "speed",
        "Throughput against the micro-batch",
        "Samples per second, with their intervals. On the CPU the search pays for its exact meter.",
    ),
    ("history", "Tuning, trial by trial", "What was measured, in order, and the fastest so far."),
    ("knobs", "What each knob did", "From pairs of candidates that differ in one thing alone."),
    ("tradeoff", "Throughput against memory", "Along the line nothing is faster with less memory."),
)


def render(report: Report) -> str:
    """Give the page of a report."""
    folder = resources("autoaccum.report")
    template, style, script = (
        folder.joinpath(name).read_text("utf-8") for name in ("page.html", "page.css", "page.js")
    )
    plotly = _inline(get_plotlyjs())
    figures = {name: figure for name, _, _ in _CHARTS if (figure := CHARTS[name](report)) is not None}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(template).render(
        report=report,
        title=f"{report.workload}, batch {report.target_batch}",
        sentence=sentence(report),
        paste=None if report.plan is None else code(report.plan),
        tiles=_tiles(report),
        tuned=None if report.tuning is None else gained(report.tuning),
        charts=[each for each in _CHARTS if each[0] in figures],
        figures={name: json.loads(figure.to_json()) for name, figure in figures.items()},
        memory=sheets.memory(report),
        modules=None if report.anatomy is None else sheets.modules_sheet(report.anatomy),
        tables=[sheet for make in _SHEETS if (sheet := make(report)).rows],
        facts=sheets.facts(report),
        style=style,
        script=script,
        plotly=plotly,
        digests=[_digest(plotly), _digest(script)],
    )


_SHEETS = (sheets.plans, sheets.candidates, sheets.trials)


def _tiles(report: Report) -> list[tuple[str, str]]:
    plan = report.plan
    if plan is None:
        return [("trials", str(len(report.samples)))]
    found = [
        ("micro-batch", " / ".join(map(str, dict.fromkeys(plan.micro_batches)))),
        ("accumulation steps", str(plan.accumulation_steps)),
        ("effective batch", str(plan.effective_batch)),
    ]
    if plan.world_size > 1:
        found.append(("ranks", str(plan.world_size)))
    if plan.peak_bytes is not None:
        found.append(("peak memory", format_bytes(plan.peak_bytes)))
    if plan.headroom_bytes is not None:
        found.append(("headroom", format_bytes(plan.headroom_bytes)))
    if plan.samples_per_second is not None:
        found.append(("samples/s", f"{plan.samples_per_second:.4g}"))
    return found


def _inline(script: str) -> Markup:
    """Give a script of ours as it may stand within the page: nothing in it ends it."""
    return Markup(script.replace("</script", "<\\/script"))  # noqa: S704  (plotly's own code)


def _digest(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
