"""Times and ids come out exact."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kinetoscope.trace.readers import _times
from tests.trace.support import event, kernel, rows

EPOCH = 1_700_000_000


@pytest.mark.parametrize(
    ("ts", "dur", "expected"),
    [
        ("123456.789", "0.001", (123_456_789, 1)),
        ("0.001", "1", (1, 1000)),
        ("5112951513054.148", "265.601", (5_112_951_513_054_148, 265_601)),
        ("8796093022207.999", "0.5", (8_796_093_022_207_999, 500)),
        ("12", "3.1415", (12_000, 3142)),
        ("1e3", "2e-3", (1_000_000, 2)),
        ('"123.5"', '"7.25"', (123_500, 7250)),
    ],
)
def test_relative_times(read_bytes: Any, ts: str, dur: str, expected: tuple[int, int]) -> None:
    text = f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{ts},"dur":{dur}}}'
    trace = read_bytes(f'{{"baseTimeNanoseconds": 7, "traceEvents": [{text}]}}')
    assert rows(trace, "ts_ns", "dur_ns") == [expected]
    assert trace.header.base_time_ns == 7


@pytest.mark.parametrize("quote", ["", '"'])
def test_absolute_times_with_fraction_are_exact(read_bytes: Any, quote: str) -> None:
    # As floats both would be ...455.75 and ...456.0: the second would start too late.
    times = [f"{EPOCH}123455.801", f"{EPOCH}123456.040"]
    events = ",".join(
        f'{{"ph":"X","cat":"cpu_op","name":"a","pid":1,"tid":1,"ts":{quote}{t}{quote},"dur":0.239}}'
        for t in times
    )
    trace = read_bytes(f"[{events}]")
    absolute = [trace.header.base_time_ns + ts for ts in trace.events["ts_ns"]]
    assert absolute == [EPOCH * 10**9 + 123_455_801, EPOCH * 10**9 + 123_456_040]
    assert trace.events["dur_ns"].to_list() == [239, 239]
    assert trace.events["ts_ns"].max() < 10**9


def test_absolute_whole_microseconds(read_bytes: Any) -> None:
    trace = read_bytes([event(ts=EPOCH * 10**6 + 3, dur=25), event(ts=EPOCH * 10**6 + 1, dur=1)])
    assert trace.header.base_time_ns == EPOCH * 10**9
    assert rows(trace, "ts_ns", "dur_ns") == [(1000, 1000), (3000, 25_000)]


def test_absolute_memory_events_share_the_base(read_bytes: Any) -> None:
    instant = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "args": {"Bytes": 8}}
    trace = read_bytes([event(ts=EPOCH * 10**6 + 1), {**instant, "ts": EPOCH * 10**6 + 2}])
    assert trace.memory["ts_ns"].to_list() == [2000]


def test_base_after_the_events(read_bytes: Any) -> None:
    text = json.dumps(event())
    trace = read_bytes(f'{{"traceEvents": [{text}], "baseTimeNanoseconds": 123}}')
    assert trace.header.base_time_ns == 123


def test_display_unit_is_not_the_unit_of_ts(read_bytes: Any) -> None:
    trace = read_bytes({"displayTimeUnit": "ns", "traceEvents": [event(ts=3, dur=1)]})
    assert rows(trace, "ts_ns", "dur_ns") == [(3000, 1000)]


def test_ids_above_64_bit_signed_stay_equal_and_apart(read_bytes: Any) -> None:
    big = 2**64 - 1
    events = [
        event("a", ts=1, args={"External id": big}),
        event("b", ts=2, args={"External id": big}),
        event("c", ts=3, args={"External id": big - 1}),
        kernel("ncclDevKernel", ts=4, args={"Comms Id": big, "Collective name": "x"}),
    ]
    trace = read_bytes({"traceEvents": events})
    assert trace.events["ext_id"].to_list()[:3] == [-1, -1, -2]
    assert str(big) in rows(trace, "extra")[3][0]


@given(st.integers(-(2**43) * 1000 + 1, 2**43 * 1000 - 1))
@example(4_458_676_417_696_687)  # its product with 1000 lies half way between two floats
def test_floats_below_the_limit_are_exact(nanoseconds: int) -> None:
    written = f"{Decimal(nanoseconds) / 1000:.3f}"
    assert _times.from_floats(np.array([float(written)]))[0] == nanoseconds
    assert _times.from_texts([written.encode()])[0] == nanoseconds


@given(st.decimals(allow_nan=False, allow_infinity=False, min_value=-(2**50), max_value=2**50))
def test_any_decimal_text(value: Decimal) -> None:
    expected = int((value * 1000).to_integral_value("ROUND_HALF_EVEN"))
    assert _times.from_texts([str(value).encode()])[0] == expected


def test_missing_times() -> None:
    no_time = _times.NO_TIME
    assert _times.from_texts([b"", b"null", b"x", b"nan", b"1"]).tolist() == [no_time] * 4 + [1000]
