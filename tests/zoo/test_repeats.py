"""Errors of stated step times, by hand."""

from __future__ import annotations

import pytest
from zoo.capture.repeats import Measured, Timing, total


def test_a_pace_that_changes_is_taken_out_by_the_piece_of_python() -> None:
    """The machine slows down by 1.8 after the first loop, in all that runs there."""
    measured = Measured("x", plain=[Timing(10, 1), Timing(18, 1.8)], stated=[Timing(18, 1.8)])
    assert measured.errors(paced=False) == pytest.approx([18 / 14 - 1])
    assert measured.errors(paced=True) == pytest.approx([0.0])


def test_what_a_capture_adds_is_left() -> None:
    measured = Measured("x", plain=[Timing(10, 1), Timing(5, 0.5)], stated=[Timing(6, 0.5)])
    assert measured.errors(paced=True) == pytest.approx([0.2])


def test_plain_loops_are_held_against_those_around_them() -> None:
    measured = Measured("x", plain=[Timing(10, 1), Timing(12, 1), Timing(10, 1)], stated=[])
    assert measured.plain_errors(paced=True) == pytest.approx([0.2])


def test_the_total_counts_what_is_within_a_tenth() -> None:
    rows = [Measured("x", plain=[Timing(10, 1)] * 3, stated=[Timing(10.5, 1), Timing(12, 1)])]
    first = total(rows).splitlines()[0]
    assert first == "stated: 2, median +12.5%, median without sign 12.5%, 1 within 10 %"
