"""One cause, one finding: what becomes of the weaker one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from kinetoscope.metrics.intervals import Intervals, union
from kinetoscope.result import Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules.api import Hit, Outcome
from kinetoscope.rules.precedence import apply_precedence
from kinetoscope.rules.registry import all_rules

RULES = {rule.code: rule for rule in all_rules()}
GRAPH = Gain(low=3.0, mid=6.0, high=8.0, basis="replay")
BATCH = Gain(low=4.0, mid=7.0, high=12.0, basis="replay")


def _between(low: int, high: int) -> Intervals:
    return union(np.array([low], dtype=np.int64), np.array([high], dtype=np.int64))


def _fired(code: str, gain: Gain, claims: Intervals) -> Outcome:
    return Outcome(RULES[code], "fired", hits=(Hit(code, gain=gain, claims=claims),))


def test_the_weaker_finding_is_silent_and_its_gain_stays_known() -> None:
    requests = _fired("IN603", BATCH, _between(0, 1000))
    launching = _fired("FW501", GRAPH, _between(100, 900))
    winner, loser = apply_precedence([requests, launching])
    assert winner.status == "fired"
    assert loser.status == "silent"
    record = loser.record()
    assert record.reason == "explained by IN603"
    assert record.gain == GRAPH
    assert winner.record().gain == BATCH


def test_a_hint_for_other_circumstances_explains_nothing() -> None:
    """One request a step: more may wait, or not; that launching is slow is true either way."""
    hint = Hit("batch", gain=BATCH, claims=_between(0, 1000), explains=False)
    requests = replace(_fired("IN603", BATCH, _between(0, 1)), hits=(hint,))
    launching = _fired("FW501", GRAPH, _between(100, 900))
    assert [o.status for o in apply_precedence([requests, launching])] == ["fired", "fired"]


def test_a_queue_is_why_its_products_are_small() -> None:
    requests = _fired("IN603", BATCH, _between(0, 1000))
    products = _fired("CP214", GRAPH, _between(0, 1000))
    assert apply_precedence([requests, products])[1].record().reason == "explained by IN603"


def test_other_time_is_another_finding() -> None:
    requests = _fired("IN603", BATCH, _between(0, 1000))
    launching = _fired("FW501", GRAPH, _between(2000, 3000))
    assert [o.status for o in apply_precedence([requests, launching])] == ["fired", "fired"]


def test_what_is_in_place_already_promises_nothing() -> None:
    launching = _fired("FW501", GRAPH, _between(0, 1000)).silenced("already on")
    assert launching.record().gain is None


def test_a_finding_about_memory_has_no_gain_in_time() -> None:
    kept = replace(_fired("MM305", GRAPH, _between(0, 1)), hits=(Hit("grows", keep=True),))
    assert kept.record().gain is None


def test_what_makes_some_steps_long_explains_why_they_vary() -> None:
    """Checkpoints of 30 ms fill most of two long steps; a millisecond of one explains nothing."""
    vary = _fired("PR908", NO_GAIN, _between(0, 70_000_000))
    for written, status in ((60_000_000, "silent"), (1_000_000, "fired")):
        checkpoints = _fired("FW529", GRAPH, _between(0, written))
        assert apply_precedence([checkpoints, vary])[1].status == status
