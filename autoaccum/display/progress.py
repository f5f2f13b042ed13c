"""What a person sees during a probe: on stderr, a row for each trial and the state of the present one."""

from __future__ import annotations

import time
from typing import IO

from rich.console import Console
from rich.markup import escape
from rich.status import Status

from autoaccum.knobs.names import of_options, words
from autoaccum.plans import Plan
from autoaccum.records import Budget, DeviceInfo, Outcome, Sample, Trial
from autoaccum.tuning.results import Fate, Measurement
from autoaccum.tuning.space import Candidate
from autoaccum.units import format_bytes

_BAR = 12
_WORDS = {
    Outcome.OK: "[green]ok[/]",
    Outcome.OOM: "[yellow]out of memory[/]",
    Outcome.KILLED: "[red]killed[/]",
    Outcome.TIMED_OUT: "[red]timed out[/]",
    Outcome.FAILED: "[red]failed[/]",
}
_FATES = {
    Fate.OK: "[green]ok[/]",
    Fate.PRUNED: "[dim]slower: given up[/]",
    Fate.OOM: "[yellow]out of memory[/]",
    Fate.INFEASIBLE: "[dim]would not fit: not run[/]",
    Fate.FAILED: "[red]failed[/]",
}


def plan_line(plan: Plan, budget: Budget) -> str:
    """Give the answer in one line.

    plan  micro-batch 64 x 8 accumulation steps = 512    peak 19.6 of 20.3 GiB    101 samples/s
    """
    parts = [f"plan  {plan}"]
    if plan.peak_bytes is not None:
        parts.append(f"peak {format_bytes(plan.peak_bytes)} of {format_bytes(budget.limit_bytes)}")
    if plan.samples_per_second is not None:
        parts.append(f"{_speed(plan.samples_per_second)} samples/s")
    return "    ".join(parts)


class _Steady(Console):
    """A console that falls silent when nobody listens any more, instead of ending the run."""

    def on_broken_pipe(self) -> None:
        self.quiet = True


class Display:
    """Rows for finished trials; on a terminal also a line for the one that runs."""

    def __init__(self, stream: IO[str]) -> None:
        self._console = _Steady(file=stream, highlight=False)
        self._status: Status | None = None
        self._limit = 0
        self._tuning: tuple[int, float, float] = (0, 0.0, 0.0)  # trials and seconds at most, and when it began
        self._tuned_before: int | None = None  # trials of an earlier process

    def opened(self, device: DeviceInfo, budget: Budget) -> None:
        """Say what is probed, and head the rows."""
        self._limit = budget.limit_bytes
        free = f"{format_bytes(device.free_bytes)} free of {format_bytes(device.total_bytes)}"
        self._console.print(f"[bold]{device.kind}[/]  {escape(device.name)}  {free}", soft_wrap=True)
        self._console.print(f"[bold]budget[/]  {format_bytes(budget.limit_bytes)}  ({_source(budget)})", soft_wrap=True)
        self._console.print(f"[dim]{'micro-batch':>11}  {'peak':>10}  {'of budget':<{_BAR + 5}}  {'samples/s':>9}[/]")

    def trial_started(self, trial: Trial) -> None:
        """Show what runs now."""
        word = "confirming" if trial.phase == "confirm" else "trying"
        self._show(f"{word} micro-batch {trial.micro_batch}")

    def trial_finished(self, sample: Sample) -> None:
        """Print the trial's row."""
        peak, bar, speed = "", " " * (_BAR + 5), ""
        if sample.ok and sample.device_used_bytes is not None:
            share = sample.device_used_bytes / self._limit
            filled = min(_BAR, round(share * _BAR))
            peak = format_bytes(sample.device_used_bytes)
            bar = f"[cyan]{'━' * filled}[/][dim]{'·' * (_BAR - filled)}[/]{share:>5.0%}"
        if sample.ok and sample.samples_per_second is not None:
            speed = _speed(sample.samples_per_second)
        word = _WORDS[sample.outcome]
        if sample.phase == "confirm":
            word = "[green]confirmed[/]" if sample.ok else "[yellow]not confirmed[/]"
        knobs = "".join(f", {each}" for each in words(of_options(sample.options)))
        line = f"{sample.micro_batch:>11}  {peak:>10}  {bar}  {speed:>9}  {word}"
        self._console.print(f"{line}[dim]{escape(knobs)}[/]", soft_wrap=True)

    def tuning_started(self, trials: int, seconds: float) -> None:
        """Head the rows of the candidates."""
        self._tuning = trials, seconds, time.monotonic()
        self._console.print(f"[dim]{'tuning':>11}  {'update':>10}  {'':<{_BAR + 5}}  {'samples/s':>9}[/]")

    def candidate_started(self, candidate: Candidate, done: int) -> None:
        """Show what is measured now, how far it is, and for how long it may go on."""
        trials, seconds, began = self._tuning
        elapsed = time.monotonic() - began
        self._tuned_before = done if self._tuned_before is None else self._tuned_before
        own = done - self._tuned_before
        left = min(seconds - elapsed, (trials - done) * elapsed / own if own else seconds)
        filled = round(_BAR * min(1.0, max(done / max(1, trials), elapsed / max(seconds, 1e-9))))
        bar = f"[cyan]{'━' * filled}[/][dim]{'·' * (_BAR - filled)}[/]"
        named = ", ".join([f"micro-batch {candidate.micro_batch}", *words(candidate.knobs)])
        self._show(f"tuning {bar} {done}/{trials}, about {max(1.0, left):.0f} s left: {escape(named)}")

    def candidate_finished(self, row: Measurement, best: Measurement | None) -> None:
        """Print the candidate's row."""
        seconds = "" if row.update_seconds is None else f"{row.update_seconds:.3g} s"
        spread = ""
        if row.update_seconds and row.update_seconds_low is not None and row.update_seconds_high is not None:
            spread = f"±{(row.update_seconds_high - row.update_seconds_low) / row.update_seconds / 2:.1%}"
        speed = "" if row.samples_per_second is None else _speed(row.samples_per_second)
        word = "[bold green]best so far[/]" if best is not None and best.trial == row.trial else _FATES[row.outcome]
        knobs = "".join(f", {each}" for each in words(of_options(row.options)))
        line = f"{row.micro_batch:>11}  {seconds:>10}  {spread:<{_BAR + 5}}  {speed:>9}  {word}"
        self._console.print(f"{line}[dim]{escape(knobs)}[/]", soft_wrap=True)

    def waiting(self, text: str) -> None:
        """Say on a terminal what is being waited for."""
        self._show(text)

    def _show(self, text: str) -> None:
        """Show a line that goes away again, on a terminal only."""
        if not self._console.is_terminal:
            return
        if self._status is None:
            self._status = self._console.status(text)
            self._status.start()
        else:
            self._status.update(text)

    def close(self) -> None:
        """Take the state line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def say(self, word: str, text: str, style: str = "bold") -> None:
        """Print a line of prose: a styled word, then the text as it is."""
        # A terminal would break the line within a word; a file has no width.
        self._console.print(f"[{style}]{word}[/]  {escape(text)}", soft_wrap=not self._console.is_terminal)

    def echo(self, printed: bytes) -> None:
        """Pass on what the user's code printed."""
        self._console.print(escape(printed.decode(errors="replace")), end="", soft_wrap=True, style="dim")


def _speed(samples_per_second: float) -> str:
    return f"{samples_per_second:.0f}" if samples_per_second >= 100 else f"{samples_per_second:.3g}"


def _source(budget: Budget) -> str:
    if budget.source == "free":
        return f"what is free, less {format_bytes(budget.reserve_bytes)}"
    return "as asked" if budget.source == "user" else "all that is free: less than was asked for"
