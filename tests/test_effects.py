"""What each knob did, from pairs of trials that differ in it alone."""

from __future__ import annotations

import pytest

from autoaccum.report.effects import effects
from autoaccum.tuning.results import Fate, Measurement
from tests.reports import measured, report, tuning

BF16, FUSED = {"precision": "bf16"}, {"optimizer": "fused"}


def timed(seconds: float, size: int = 8, options: dict[str, str] | None = None, fate: Fate = Fate.OK) -> Measurement:
    return measured(0, size, options or {}, update_seconds=seconds, outcome=fate)


def test_a_knob_is_judged_by_the_pairs_that_differ_in_it_alone() -> None:
    rows = [
        timed(4.0), timed(2.0, options=BF16),  # twice as fast
        timed(3.0, options=FUSED), timed(1.0, options={**BF16, **FUSED}),  # three times
        timed(9.0, 64, {"checkpoint": "all"}),  # has no other half
    ]  # fmt: skip

    found = {effect.name: effect for effect in effects(rows)}

    assert set(found) == {"bf16 autocast", "fused optimizer"}
    bf16 = found["bf16 autocast"]
    assert (bf16.speed, bf16.lowest, bf16.highest, bf16.pairs) == (2.5, 2.0, 3.0, 2)
    assert found["fused optimizer"].speed == pytest.approx((4 / 3 + 2) / 2)


def test_the_largest_effect_comes_first_whichever_way() -> None:
    rows = [timed(1.0), timed(1.1, options=FUSED), timed(5.0, options=BF16)]

    assert [effect.name for effect in effects(rows)] == ["bf16 autocast", "fused optimizer"]


def test_the_size_is_judged_against_the_largest() -> None:
    (effect,) = effects([timed(3.0, 64), timed(2.0, 16), timed(4.0, 8)])

    assert (effect.name, effect.speed) == ("micro-batch 16 instead of 64", 1.5)


def test_no_pairs_no_effects() -> None:
    assert effects([]) == []
    assert effects([timed(1.0)]) == []
    assert effects([timed(1.0, 8), timed(1.0, 4, BF16)]) == []


def test_what_was_not_timed_makes_no_pair() -> None:
    rows = [timed(4.0), timed(2.0, options=BF16, fate=Fate.FAILED), timed(3.0, options=FUSED, fate=Fate.PRUNED)]

    assert [effect.name for effect in effects(rows)] == ["fused optimizer"]


def test_the_chart_draws_the_effects_around_one() -> None:
    (bars,) = report(tuning=tuning()).plot("knobs").data

    named = dict(zip(bars.y, bars.customdata, strict=True))
    assert named["fused optimizer"][0] == pytest.approx(1.1)
    assert set(bars.base if isinstance(bars.base, tuple) else [bars.base]) == {1.0}
