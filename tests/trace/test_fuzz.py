"""Whatever happens to a file: a trace or an `InputError`, and never anything else."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kinetoscope.errors import InputError
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.readers import read
from tests.trace.support import event

TEXT = (
    TraceBuilder(rank=1, world_size=2)
    .step(0, 900.25)
    .python("train.py(10): main", 0, 890)
    .op("aten::mm", 10, 50, dims=[[64, 64], [64, 64]], concrete=["", "1"])
    .kernel("sm90_gemm", 80, 500, launch_at=20)
    .all_reduce(600, 100, launch_at=30)
    .memory(512, 1024, 40)
    .raw({"ph": "B", "name": "x", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 5})
    .raw({"ph": "E", "pid": 1, "tid": 1, "ts": 9})
    .raw({"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "t"}})
    .header(traceName='a "name"')
    .to_json()
    .encode()
)
SETTINGS = settings(
    max_examples=300,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def _reads(folder: Path, content: bytes) -> None:
    path = folder / "fuzz.json"
    path.write_bytes(content)
    try:
        trace = read(path, processes=1)
    except InputError as error:
        if str(path) not in error.message or not error.hint:
            pytest.fail(f"says too little: {error.message}")
        return
    assert len(trace) > 0
    assert (trace.events["dur_ns"] >= 0).all()
    assert trace.events["ts_ns"].is_sorted()
    assert trace.events["name_id"].max() < len(trace.names)
    assert trace.events["thread"].max() < len(trace.threads)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


def test_cut_anywhere(folder: Path) -> None:
    for end in range(0, len(TEXT), 7):
        _reads(folder, TEXT[:end])


def test_packed_and_cut_anywhere(folder: Path) -> None:
    packed = gzip.compress(TEXT)
    for end in range(0, len(packed), 3):
        _reads(folder, packed[:end])


@SETTINGS
@given(st.lists(st.tuples(st.integers(0, len(TEXT) - 1), st.integers(0, 255)), max_size=8))
def test_bytes_changed(folder: Path, changes: list[tuple[int, int]]) -> None:
    content = bytearray(TEXT)
    for place, value in changes:
        content[place] = value
    _reads(folder, bytes(content))


@SETTINGS
@given(st.integers(0, len(TEXT)), st.integers(0, 60), st.binary(max_size=20))
def test_bytes_replaced(folder: Path, start: int, size: int, new: bytes) -> None:
    _reads(folder, TEXT[:start] + new + TEXT[start + size :])


@SETTINGS
@given(st.binary(max_size=200))
def test_anything(folder: Path, content: bytes) -> None:
    _reads(folder, content)
    _reads(folder, b'{"traceEvents": [' + content)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)
KEYS = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"]
ARGS = ["stream", "device", "correlation", "External id", "bytes", "Python parent id", "grid"]


@SETTINGS
@given(
    st.dictionaries(st.sampled_from(KEYS), values), st.dictionaries(st.sampled_from(ARGS), values)
)
def test_values_of_any_type(folder: Path, odd: dict[str, object], args: dict[str, object]) -> None:
    events = [event(), {**event(), **odd}, event(cat="kernel", args=args), {**event(), "ph": "i"}]
    _reads(folder, json.dumps({"traceEvents": events}).encode())


@SETTINGS
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "deviceProperties",
                "distributedInfo",
                "schemaVersion",
                "baseTimeNanoseconds",
                "with_stack",
                "x",
            ]
        ),
        values,
    )
)
def test_headers_of_any_type(folder: Path, header: dict[str, object]) -> None:
    _reads(folder, json.dumps({**header, "traceEvents": [event()]}).encode())
    _reads(folder, json.dumps({"traceEvents": [event()], **header}).encode())
