"""What taking the profiler's cost off leaves of the host's time, with a change and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from kinetoscope.metrics.intervals import empty, union
from kinetoscope.replay.change import Change
from kinetoscope.replay.costs import costs_of
from kinetoscope.replay.model import Model
from kinetoscope.trace.trace import IntArray


def _ints(*values: int) -> IntArray:
    return np.array(values, dtype=np.int64)


def _model(loop_overhead_us: int) -> Model:
    """A step of two calls of 10 us, each after 400 us of host work: a loop, and what follows it.

    The profiler is taken to have added 80 us to what follows.
    """
    start = _ints(0, 400, 810, 820) * 1_000
    none = _ints()
    return Model(
        call_row=_ints(-1, 1, 2, -1),
        call_start=start,
        call_end=start + _ints(0, 10, 10, 0) * 1_000,
        segment=_ints(0, 400, 400, 0) * 1_000,
        segment_overhead=_ints(0, loop_overhead_us, 80, 0) * 1_000,
        call_cost=_ints(0, 10, 10, 0) * 1_000,
        blocks_on=_ints(-1, -1, -1, -1),
        tail=_ints(0, 0, 0, 0),
        event_row=none,
        first_event=_ints(0, 0, 0, 0, 0),
        stream=none,
        duration=none,
        delay=none,
        depends_on=none,
        lag=none,
        step=none,
        mark=_ints(0, 3),
        initial_free=none,
        host_threads=_ints(0),
        profiler=empty(),
        origin=0,
        recorded_ns=820_000,
    )


_LOOP = Change(host_cut=union(_ints(0), _ints(400_000)))


@pytest.mark.parametrize(
    ("loop_us", "of_the_rest_us"),
    [
        # 200 us of overhead in 800 us: half of the time, so half of it.
        pytest.param(120, 100, id="more events for its time: as much as the rest"),
        pytest.param(240, 120, id="far more events: no more than one and a half times"),
        pytest.param(40, 80, id="fewer events: as modelled"),
    ],
)
def test_a_loop_that_goes_was_stretched_no_more_than_the_rest(
    loop_us: int, of_the_rest_us: int
) -> None:
    costs = costs_of(_model(loop_us), _LOOP, 1.0)
    # 8.5 us of it are taken off the call, which keeps 1.5 us.
    assert costs.segment.tolist() == [0, 0, 400_000 - (of_the_rest_us * 1_000 - 8_500), 0]
    assert costs.call[2] == 1_500


@pytest.mark.parametrize(("busy_us", "of_the_rest_us"), [(500, 100), (600, 80)])
def test_a_device_that_sets_the_pace_leaves_the_overhead_as_modelled(
    busy_us: int, of_the_rest_us: int
) -> None:
    """Above 0.7 of the 820 us a faster rest of the host would seem to be the change's gain."""
    one, zero = _ints(busy_us * 1_000), _ints(0)
    model = replace(
        _model(120),
        event_row=_ints(9),
        first_event=_ints(0, 0, 1, 1, 1),
        stream=zero,
        duration=one,
    )
    costs = costs_of(model, _LOOP, 1.0)
    assert costs.segment[2] == 400_000 - (of_the_rest_us * 1_000 - 8_500)


def test_without_a_change_each_part_has_its_own_overhead() -> None:
    costs = costs_of(_model(120), Change(), 1.0)
    assert costs.segment.tolist() == [0, 400_000 - 111_500, 400_000 - 71_500, 0]


def test_without_deflation_only_the_cut_goes() -> None:
    costs = costs_of(_model(120), _LOOP, 0.0)
    assert costs.segment.tolist() == [0, 0, 400_000, 0]
