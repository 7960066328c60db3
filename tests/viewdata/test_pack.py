"""Columns come back as they went in, and small."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope.viewdata.pack import pack, unpack


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.integers(-(2**52), 2**52), max_size=50), st.booleans())
def test_there_and_back(values: list[int], delta: bool) -> None:
    assert unpack(pack(values, delta=delta)).tolist() == values


@pytest.mark.parametrize(
    ("values", "width"), [([], 0), ([0, 0], 0), ([255], 1), ([256], 2), ([-1], 1), ([-129], 2)]
)
def test_a_value_takes_as_few_bytes_as_it_can(values: list[int], width: int) -> None:
    column = pack(values)
    assert column.width == width
    assert len(column.data) == width * len(values)


def test_planes_hold_the_lowest_bytes_first() -> None:
    assert pack(np.array([0x0102, 0x0304])).data == bytes([0x02, 0x04, 0x01, 0x03])
