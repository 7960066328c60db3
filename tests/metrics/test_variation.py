"""Slow steps against the usual ones; lengths of the planted stretches are the expected values."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.variation import variation, variation_notes
from kinetoscope.metrics.activity import Cause
from kinetoscope.metrics.variation import Variation, _periodic, step_variation
from kinetoscope.testing import TraceBuilder

US = 1_000


def _varied(lengths: Sequence[int], fill: Callable[[TraceBuilder, int, int], object]) -> Analysis:
    """Steps of these lengths, µs; `fill` puts something into each (builder, start, length)."""
    t = TraceBuilder()
    at = 0
    for length in lengths:
        t.step(at, length)
        for i in range(8):
            t.kernel(f"kernel_{i}", at + 60 + 20 * i, 18, launch_at=at + 10 + 5 * i)
        fill(t, at, length)
        at += length
    return Analysis(t.read())


def _found(analysis: Analysis) -> Variation:
    found = step_variation(analysis.trace, analysis.times, analysis.activity)
    assert found is not None
    return found


def test_steps_of_equal_length_are_not_slow() -> None:
    found = _found(_varied([1000, 1010, 990, 1000, 1200, 1000], lambda *_: None))
    assert found.slow == ()
    assert found.usual_ns == 1000 * US


def test_fewer_than_five_steps_have_no_usual_one() -> None:
    analysis = _varied([1000, 1000, 3000, 1000], lambda *_: None)
    assert step_variation(analysis.trace, analysis.times, analysis.activity) is None


def test_garbage_collection_explains_one_slow_step() -> None:
    def fill(t: TraceBuilder, at: int, length: int) -> None:
        if length > 1000:
            t.gc(at + 300, 1900)

    analysis = _varied([1000, 1000, 1000, 3000, 1000, 1000], fill)
    (slow,) = _found(analysis).slow
    assert (slow.step, slow.ns, slow.cause, slow.grew_ns) == (3, 3000 * US, Cause.GC, 1900 * US)
    assert variation_notes(variation(analysis)) == [
        "Step 4 took 3.00 ms, 3.0x the usual 1.00 ms: Python garbage collection took 1.90 ms more."
    ]


def test_every_fourth_batch_is_late() -> None:
    def fill(t: TraceBuilder, at: int, length: int) -> None:
        t.loader(at + 250, length - 300)

    analysis = _varied([1000, 1000, 1000, 4000] * 3, fill)
    found = _found(analysis)
    assert found.every == 4
    assert [slow.step for slow in found.slow] == [3, 7, 11]
    assert {slow.cause for slow in found.slow} == {Cause.LOADER}
    assert found.slow[0].grew_ns == 3000 * US
    (note,) = variation_notes(variation(analysis))
    assert note.startswith("Every 4. step is slow: 4.00 ms instead of 1.00 ms: waiting for the D")


def test_what_nothing_explains_is_said_to_be_so() -> None:
    analysis = _varied([1000, 1000, 2500, 1000, 1000, 1000], lambda *_: None)
    (slow,) = _found(analysis).slow
    assert (slow.cause, slow.device, slow.reason) == (None, None, None)
    (note,) = variation_notes(variation(analysis))
    assert note.endswith("nothing that was recorded explains it.")


def _queue(scale: Sequence[float], launch: Sequence[float]) -> Analysis:
    """Steps whose eight kernels and launches take `scale` and `launch` times as long as usual."""
    t = TraceBuilder()
    at = 0.0
    for stretch, slower in zip(scale, launch, strict=True):
        length = max(8 * 100 * stretch, 8 * 40 * slower) + 100
        t.step(at, length)
        for i in range(8):
            t.kernel(
                f"kernel_{i}",
                at + 60 + max(100 * stretch, 40 * slower) * i,
                98 * stretch,
                launch_at=at + 10 + 40 * slower * i,
                launch_dur=30 * slower,
            )
        at += length
    return Analysis(t.read())


def test_all_kernels_slower_are_clocks() -> None:
    (slow,) = _found(_queue([1, 1, 1, 1.5, 1, 1], [1] * 6)).slow
    assert (slow.step, slow.reason) == (3, "clocks")


def test_all_launches_slower_are_a_busy_host() -> None:
    (slow,) = _found(_queue([1] * 6, [1, 1, 1, 5, 1, 1])).slow
    assert (slow.step, slow.reason) == (3, "host_contention")


def test_small_spread_is_not_worth_a_note() -> None:
    lengths = [1000] * 40
    lengths[20] = 1400
    analysis = _varied(lengths, lambda *_: None)
    assert len(_found(analysis).slow) == 1
    assert variation_notes(variation(analysis)) == []


@pytest.mark.parametrize("first", [1500, 2500])
def test_a_first_step_that_warms_up_is_no_variation(first: int) -> None:
    assert _found(_varied([first, 1000, 1000, 1000, 1000, 1000], lambda *_: None)).slow == ()


@pytest.mark.filterwarnings("error")
def test_a_host_without_a_device_has_no_kernels_to_compare() -> None:
    t = TraceBuilder()
    at = 0
    for length in (1000, 1000, 1000, 3000, 1000, 1000):
        t.step(at, length)
        t.op("aten::mm", at + 10, length - 20)
        at += length
    (slow,) = _found(Analysis(t.read())).slow
    assert (slow.step, slow.cause, slow.grew_ns) == (3, Cause.OP, 2000 * US)


@pytest.mark.parametrize(("steps", "every"), [(21, 7), (100_000, 7), (17, None)])
def test_slow_steps_come_back_in_a_long_recording_too(steps: int, every: int | None) -> None:
    """Every seventh step from the fourth on; two of them do not make a period."""
    ns = np.full(steps, 1_000)
    ns[3::7] = 2_000 if every else 1_000
    ns[3:11:7] = 2_000
    found, slow = _periodic(ns)
    assert found == every
    assert slow.tolist() == (list(range(3, steps, 7)) if every else [])
