"""The budget bar adds up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.report.bar import cells, fill


def test_largest_remainders() -> None:
    assert cells([0.79, 0.13, 0.05, 0.03], 40) == [32, 5, 2, 1]
    assert cells([1, 1, 1], 10) == [4, 3, 3]


def test_a_small_line_is_seen() -> None:
    assert cells([0.999, 0.001], 40) == [39, 1]


def test_nothing_to_show() -> None:
    assert cells([], 40) == []
    assert cells([0, 0], 40) == [0, 0]
    assert cells([-1, 2], 4) == [0, 4]


@given(
    st.lists(st.floats(min_value=1e-6, max_value=1), min_size=1, max_size=12),
    st.integers(min_value=20, max_value=200),
)
def test_the_cells_fill_the_width(shares: list[float], width: int) -> None:
    counts = cells(shares, width)
    assert sum(counts) == width
    assert min(counts) >= 1


def test_neighbours_look_different() -> None:
    fills = [fill(index) for index in range(8)]
    assert len(set(fills)) == 8
    assert fill(50) == fill(7)
