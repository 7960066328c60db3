"""What numbers look like; every expected text was written by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (1, "1 ns"),
        (999, "999 ns"),
        (1_000, "1.00 µs"),
        (41_300, "41.3 µs"),
        (999_600, "1.00 ms"),
        (39_000_000, "39.0 ms"),
        (123_456_789, "123 ms"),
        (1_200_000_000, "1.20 s"),
        (99_960_000_000, "100 s"),
        (125_000_000_000, "2 min 5 s"),
        (3_840_000_000_000, "1 h 4 min"),
        (-1_500_000, "-1.50 ms"),
        (math.nan, "not a number"),
        (math.inf, "not a number"),
    ],
)
def test_duration(ns: float, text: str) -> None:
    assert units.duration(ns) == text


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (35_000_000, 41_000_000, "35 to 41 ms"),
        (34_900_000, 41_000_000, "34.9 to 41.0 ms"),
        (200_000, 41_000_000, "0.2 to 41.0 ms"),
        (41_000_000, 41_000_010, "41.0 ms"),
        (900_000, 1_100_000, "0.90 to 1.10 ms"),
        (100_000_000_000, 200_000_000_000, "100 s to 3 min 20 s"),
        (5, 5, "5 ns"),
    ],
)
def test_duration_range(low: float, high: float, text: str) -> None:
    assert units.duration_range(low, high) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1,023 B"),
        (1024, "1.00 KiB"),
        (224 * 2**20, "224 MiB"),
        (150_754_820_096, "140 GiB"),
        (2**20 - 1, "1.00 MiB"),
        (-4096, "-4.00 KiB"),
    ],
)
def test_size(n_bytes: float, text: str) -> None:
    assert units.size(n_bytes) == text


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (0, "0 %"),
        (0.0001, "< 0.1 %"),
        (0.004, "0.4 %"),
        (0.81, "81 %"),
        (0.997, "99.7 %"),
        (0.9999, "> 99.9 %"),
        (1, "100 %"),
        (math.nan, "not a number"),
    ],
)
def test_percent(ratio: float, text: str) -> None:
    assert units.percent(ratio) == text


@pytest.mark.parametrize(
    ("low", "mid", "high", "short", "words"),
    [
        (2.9, 4.6, 5.4, "4.6x (2.9x to 5.4x)", "step 2.9x to 5.4x faster, likely 4.6x"),
        (1.02, 1.04, 1.06, "1.04x (1.02x to 1.06x)", "step 1.02x to 1.06x faster, likely 1.04x"),
        (1, 1, 1, "1.00x", "no faster step"),
        (2, 2, 2, "2.0x", "step 2.0x faster"),
        (
            1,
            1.2,
            1.4,
            "1.2x (1.0x to 1.4x)",
            "step up to 1.4x faster, likely 1.2x, perhaps not at all",
        ),
        (
            40,
            2993,
            11144,
            "over 100x (40x to over 100x)",
            "step 40x to over 100x faster, likely over 100x",
        ),
        (1341, 2993, 11144, "over 100x", "step over 100x faster"),
        (8, 14, 31, "14x (8.0x to 31x)", "step 8.0x to 31x faster, likely 14x"),
    ],
)
def test_speedup(low: float, mid: float, high: float, short: str, words: str) -> None:
    assert units.speedup(low, mid, high) == short
    assert units.speedup_words(low, mid, high) == words


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (31_000_000, "ns", "31.0 ms"),
        (1024, "bytes", "1.00 KiB"),
        (0.81, "ratio", "81 %"),
        (2.3, "ratio", "2.3x"),
        (192, "count", "192"),
        (2.5, "count", "2.50"),
        (3.35e12, "bytes_per_s", "3.35 TB/s"),
        (989e12, "flop_per_s", "989 TFLOP/s"),
        ("float32", "text", "float32"),
        (7, "frogs", "7 frogs"),
    ],
)
def test_quantity(value: float | str, unit: str, text: str) -> None:
    assert units.quantity(value, unit) == text


def test_plural() -> None:
    assert units.plural(1, "step") == "1 step"
    assert units.plural(1200, "step") == "1,200 steps"
    assert units.plural(2, "entry", "entries") == "2 entries"


@pytest.mark.parametrize(
    ("number", "how_often", "several"),
    [(0.2, "once", "1 copy"), (1.4, "once", "1 copy"), (1200.4, "1,200 times", "1,200 copies")],
)
def test_averages_of_things_that_happen(number: float, how_often: str, several: str) -> None:
    assert units.how_often(number) == how_often
    assert units.several(number, "copy", "copies") == several


@given(st.floats(min_value=0, max_value=1e20))
def test_every_time_has_a_short_form(ns: float) -> None:
    text = units.duration(ns)
    assert len(text) <= 20
    assert "e" not in text


@given(st.floats(), st.sampled_from(["ns", "bytes", "ratio", "count", "bytes_per_s", "x"]))
def test_no_number_breaks_the_formatter(value: float, unit: str) -> None:
    assert units.quantity(value, unit)
