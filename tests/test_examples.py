"""The training examples run as a reader would run them, and show what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

TRAINING = Path(__file__).parent.parent / "examples" / "training"


def run(name: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", TRAINING / name],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text: str, pattern: str) -> list[float]:
    return [float(found) for found in re.findall(pattern, text)]


def test_the_tutorials_demo_diverges_as_printed_and_learns_with_the_stepper() -> None:
    before, printed, stepper, whole = numbers(run("eight_samples.py"), r"loss ([\d.e+-]+)")

    assert printed > 100 * before
    assert stepper == whole < 0.1


def test_ragged_tokens_are_learnt_and_the_two_losses_told_apart() -> None:
    out = run("ragged_tokens.py")

    losses = numbers(out, r"loss ([\d.]+) over")
    assert losses[-1] < 0.5 * losses[0]
    assert "the loss is a sum with its count\n" in out
    assert "the loss is a mean over tokens" in out


def test_mixed_precision_skips_overflows_and_learns() -> None:
    out = run("mixed_precision.py")

    losses, skipped = numbers(out, r"loss ([\d.]+)"), numbers(out, r"skipped (\d+)")
    assert losses[-1] < losses[0]
    assert skipped[0] > 0
    assert skipped[-1] == 0


def test_the_gan_comes_to_make_points_around_the_circle() -> None:
    first, *_, last = numbers(run("gan.py"), r"makes ([\d.]+)")

    assert first < 0.6
    assert abs(last - 1) < 0.2
