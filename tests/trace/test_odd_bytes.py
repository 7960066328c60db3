"""Odd inputs A1 to A22 and A93 to A94: bytes, grammar, what stands around the events."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.errors import EmptyTraceError, FormatError, InputNotFoundError
from kinetoscope.trace.readers import read
from tests.trace.support import damage, event, kernel, lossy, rows


def _file(*events: str, head: str = "", tail: str = "") -> str:
    joined = ",\n  ".join(events)
    return f'{{{head}"traceEvents": [\n  {joined}\n]{tail}}}'


def _op(name: str, ts: int = 10, args: str = "{}") -> str:
    return (
        f'{{"ph": "X", "cat": "python_function", "name": "{name}", "pid": 1, "tid": 2,'
        f' "ts": {ts}, "dur": 5, "args": {args}}}'
    )


def test_a1_backslashes_of_windows(read_bytes: Any) -> None:
    bad = r"C:\new\test\utils\conv.py(12): x"
    trace = read_bytes(_file(_op(bad), _op("fine", 20)))
    assert rows(trace, "name") == [(bad,), ("fine",)]
    assert damage(trace) == {"bad_escape": 1}
    assert not lossy(trace)


def test_a1_legal_escapes_stay(read_bytes: Any) -> None:
    trace = read_bytes(_file(_op(r"a\tb \"q\" \u00e9"), _op(r"torch\cuda\x.py(1): y", 20)))
    assert rows(trace, "name") == [('a\tb "q" é',), (r"torch\cuda\x.py(1): y",)]


def test_a2_source_text_in_a_name(read_bytes: Any) -> None:
    raw = 'import os\nprint("hi")\n: <module>'
    trace = read_bytes(_file(_op("a", 1), _op(raw, 2), _op("b", 3)))
    assert [name for (name,) in rows(trace, "name")] == ["a", raw, "b"]
    assert damage(trace)["unescaped_quote"] == 1


def test_a2_an_event_beyond_repair_is_lost_alone(read_bytes: Any) -> None:
    trace = read_bytes(_file(_op("a", 1), '{"ph": "X", "name": "x" "y": }', _op("b", 3)))
    assert [name for (name,) in rows(trace, "name")] == ["a", "b"]
    assert damage(trace) == {"broken_event": 1}
    assert lossy(trace) == {"broken_event"}


@pytest.mark.parametrize("byte", ["\x00", "\x01", "\x1b"])
def test_a4_control_characters(read_bytes: Any, byte: str) -> None:
    trace = read_bytes(_file(_op(f"a{byte}b")))
    assert rows(trace, "name") == [(f"a{byte}b",)]
    assert damage(trace) == {"control_character": 1}


def test_a6_names_that_are_not_utf8(read_bytes: Any) -> None:
    trace = read_bytes(_file(_op("k@")).encode().replace(b"@", b"\xff\xfe"))
    assert rows(trace, "name") == [("k\ufffd\ufffd",)]
    assert damage(trace) == {"invalid_utf8": 2}


@pytest.mark.parametrize("word", ["inf", "-inf", "nan", "Infinity", "NaN", "-Infinity", "N/A"])
def test_a8_numbers_that_are_none(read_bytes: Any, word: str) -> None:
    args = f'{{"bytes": 4, "stream": 3, "memory bandwidth (GB/s)": {word}}}'
    copy = f'{{"ph":"X","cat":"gpu_memcpy","name":"Memcpy DtoD","ts":1,"dur":2,"args":{args}}}'
    trace = read_bytes(_file(copy, _op("an inf in a name: inf, nan", 9)))
    assert rows(trace, "bytes", "stream") == [(4, 3), (-1, -1)]
    assert damage(trace) == {"not_a_number": 1}


def test_a9_na_as_stream(read_bytes: Any) -> None:
    text = (
        '{"ph":"X","cat":"kernel","name":"k","pid":0,"tid":7,"ts":1,"dur":2,"args":{"stream":N/A}}'
    )
    trace = read_bytes(_file(text))
    assert rows(trace, "stream", "device") == [(7, 0)]


def test_a9_record_window_end_is_no_event(read_bytes: Any) -> None:
    marks = [
        {"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 9e10},
        event("Record Window End", cat=None, pid="", tid="", ts=9e10),
    ]
    trace = read_bytes({"traceEvents": [event(), *marks]})
    assert len(trace) == 1


def test_a10_counters_and_string_times(read_bytes: Any) -> None:
    counter = '{"ph":"C","name":"c","ts":"123.5","args":{"v":nan}}'
    trace = read_bytes(_file(counter, json.dumps(event(ts="12.5"))))
    assert rows(trace, "ts_ns") == [(12_500,)]


def test_a11_log_text_in_the_tail(read_bytes: Any) -> None:
    tail = ', "INFO": ["said "no" and\nleft"], "distributedInfo": {"rank": 3, "world_size": 8},'
    trace = read_bytes(_file(json.dumps(event()), tail=tail + ' "baseTimeNanoseconds": 5'))
    assert len(trace) == 1
    assert trace.header.rank == 3
    assert trace.header.base_time_ns == 5
    assert damage(trace) == {"broken_metadata": 1}
    assert not lossy(trace)


def test_a12_arguments_that_are_not_json(read_bytes: Any) -> None:
    args = '{"External id": 12, "Input Dims": "["[2, 3], ...]"]"}'
    trace = read_bytes(_file(_op("a", 1), _op("b", 2, args), _op("c", 3)))
    assert [name for (name,) in rows(trace, "name")] == ["a", "b", "c"]
    assert trace.events["ts_ns"].to_list() == [1000, 2000, 3000]
    assert damage(trace) == {"broken_args": 1}


def test_a12_cut_lists_are_kept_as_text(read_bytes: Any) -> None:
    args = {"Process Group Ranks": "[0, 1, ...]", "Collective name": "allreduce"}
    trace = read_bytes({"traceEvents": [kernel(args=args)]})
    assert '"Process Group Ranks": "[0, 1, ...]"' in rows(trace, "extra")[0][0]


def test_a13_legacy_export_with_a_missing_quote(read_bytes: Any) -> None:
    text = (
        '[{"name": "  mul", "ph": "X", "ts": 1.5, "dur": 2.0, "tid": 1, "pid": "CPU functions",'
        ' "args": {}}, {"name": "mul", "ph": "X", "ts": 4.0, "dur": 3.0, "tid": 0,'
        ' "pid": "CUDA functions", "args": {}}, {"name": "cpu_to_cuda", "ph": "f", "ts": 4.0,'
        ' tid": 1, "pid": "CUDA functions", "id": 1, "cat": "cpu_to_cuda", "args": {}}]'
    )
    trace = read_bytes(text)
    assert rows(trace, "kind", "device") == [(1, -1), (20, 0)]
    assert damage(trace) == {"broken_flow": 1}
    assert not lossy(trace)


def test_a14_legacy_host_only(read_bytes: Any) -> None:
    legacy = {"name": "add", "ph": "X", "ts": 1.5, "dur": 2.0, "tid": 1, "pid": "CPU functions"}
    trace = read_bytes([legacy])
    assert rows(trace, "kind", "device") == [(1, -1)]
    assert trace.threads[0].pid == "CPU functions"


class TestA15Truncated:
    def test_array_without_its_bracket(self, read_bytes: Any) -> None:
        trace = read_bytes("[" + json.dumps(event()) + ",\n")
        assert len(trace) == 1
        assert damage(trace) == {"unclosed_array": 1}
        assert not lossy(trace)

    def test_object_cut_inside_an_event(self, read_bytes: Any) -> None:
        whole = _file(_op("a", 1), _op("b", 2), _op("c", 3))
        trace = read_bytes(whole[: whole.index('"c"') + 2])
        assert [name for (name,) in rows(trace, "name")] == ["a", "b"]
        assert lossy(trace) == {"truncated"}

    def test_gzip_cut_short(self, read_bytes: Any) -> None:
        text = _file(*(_op(f"op{i * 7919 % 1000}", i) for i in range(5000)))
        packed = gzip.compress(text.encode())
        trace = read_bytes(packed[: len(packed) // 2], name="trace.json.gz")
        assert 1000 < len(trace) < 5000
        assert lossy(trace) == {"truncated_gzip", "truncated"}

    def test_gzip_without_its_trailer(self, read_bytes: Any) -> None:
        packed = gzip.compress(_file(_op("a", 1)).encode())
        trace = read_bytes(packed[:-8], name="trace.json.gz")
        assert len(trace) == 1
        assert "truncated_gzip" in damage(trace)

    def test_gzip_with_a_wrong_checksum(self, read_bytes: Any) -> None:
        packed = bytearray(gzip.compress(_file(_op("a", 1)).encode()))
        packed[-6] ^= 0xFF
        trace = read_bytes(bytes(packed), name="trace.json.gz")
        assert len(trace) == 1
        assert lossy(trace) == {"broken_gzip"}


class TestA17Gzip:
    TEXT = _file(_op("a", 1), _op("b", 2)).encode()

    def test_two_members(self, read_bytes: Any) -> None:
        packed = gzip.compress(self.TEXT[:60]) + gzip.compress(self.TEXT[60:])
        assert len(read_bytes(packed, name="t.json.gz")) == 2

    def test_extra_field(self, read_bytes: Any) -> None:
        packed = gzip.compress(self.TEXT, mtime=0)
        extra = b"\x04\x00abcd"
        header = packed[:3] + bytes([packed[3] | 4]) + packed[4:10] + extra
        assert len(read_bytes(header + packed[10:], name="t.json.gz")) == 2

    def test_zero_padding_behind(self, read_bytes: Any) -> None:
        trace = read_bytes(gzip.compress(self.TEXT) + b"\0" * 512, name="t.json.gz")
        assert len(trace) == 2
        assert not trace.damage

    @pytest.mark.parametrize("packed", [True, False])
    def test_suffix_does_not_matter(self, read_bytes: Any, packed: bool) -> None:
        content = gzip.compress(self.TEXT) if packed else self.TEXT
        assert len(read_bytes(content, name="t.json" if packed else "t.json.gz")) == 2


def test_a19_duplicate_keys_the_last_wins(read_bytes: Any) -> None:
    text = (
        '{"ph":"X","cat":"kernel","name":"a","name":"b","pid":0,"tid":7,"ts":1,"dur":2,'
        '"args":{"stream":7,"stream":8}}'
    )
    assert rows(read_bytes(_file(text)), "name", "stream") == [("b", 8)]


def test_a21_order_of_top_level_keys(read_bytes: Any) -> None:
    devices = [{"id": 0, "name": "Tesla V100", "totalGlobalMem": 7, "computeMajor": 7}]
    events = [event()]
    before = read_bytes({"deviceProperties": devices, "zzz": {"a": []}, "traceEvents": events})
    after = read_bytes({"traceEvents": events, "zzz": {"a": []}, "deviceProperties": devices})
    assert before.header == after.header
    assert before.header.devices[0].name == "Tesla V100"
    assert before.header.devices[0].compute_capability is None
    assert before.header.vendor == "nvidia"


@pytest.mark.parametrize("ranks", [5, "5"])
def test_a93_rank_after_the_events(read_bytes: Any, ranks: object) -> None:
    info = {"backend": "nccl", "rank": ranks, "world_size": "8"}
    trace = read_bytes({"traceEvents": [event()], "distributedInfo": info})
    assert (trace.header.rank, trace.header.world_size) == (5, 8)


def test_a94_user_key_named_like_ours(read_bytes: Any) -> None:
    text = f'{{"traceEvents": "mine", "traceEvents": [{json.dumps(event())}], "x": 1}}'
    assert len(read_bytes(text)) == 1


def test_byte_order_mark(read_bytes: Any) -> None:
    assert len(read_bytes(b"\xef\xbb\xbf" + json.dumps([event()]).encode())) == 1


class TestUnusable:
    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(InputNotFoundError, match=r"nothing\.json"):
            read(tmp_path / "nothing.json")

    def test_folder(self, tmp_path: Path) -> None:
        with pytest.raises(FormatError, match="folder"):
            read(tmp_path)

    @pytest.mark.parametrize(
        "content",
        ["", " \n", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph":"M","name":"x"}]}', "["],
    )
    def test_a76_without_events(self, read_bytes: Any, content: str) -> None:
        with pytest.raises(EmptyTraceError, match=r"trace\.json") as caught:
            read_bytes(content)
        assert caught.value.hint

    @pytest.mark.parametrize("content", ['{"a": 1}', "hello", "\x89PNG", "[1, 2]", "{", "null"])
    def test_something_else(self, read_bytes: Any, content: str) -> None:
        with pytest.raises((FormatError, EmptyTraceError), match=r"trace\.json") as caught:
            read_bytes(content)
        assert caught.value.hint

    @pytest.mark.parametrize("content", ["[1, 2]", '["a", {"b": 1}]', "[[1], [2]"])
    def test_another_list_is_not_said_to_be_cut_off(self, read_bytes: Any, content: str) -> None:
        with pytest.raises(FormatError, match="is not a profiler trace"):
            read_bytes(content)


@pytest.mark.parametrize(
    ("head", "what", "next_step"),
    [
        (b"PK\x03\x04" + b"\x00" * 30, "a zip archive", "Unpack it"),
        ('{"traceEvents": []}'.encode("utf-16"), "text in UTF-16", "iconv"),
        (b"\x80\x04}\x94.", "a Python pickle", "export_chrome_trace"),
        (b"SQLite format 3\x00" + b"\x00" * 90, "a SQLite database", "export_chrome_trace"),
        (b"<!DOCTYPE html><html></html>", "a web page", "Download the trace"),
    ],
)
def test_other_files_are_named(tmp_path: Path, head: bytes, what: str, next_step: str) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(head)
    with pytest.raises(FormatError, match=what) as caught:
        read(path)
    assert next_step in caught.value.hint


def test_a_name_of_megabytes_is_cut(read_bytes: Any) -> None:
    """Names are looked at by many patterns: what is no name must not cost seconds."""
    event = {"ph": "X", "cat": "kernel", "name": "g" * 3_000_000, "ts": 1, "dur": 5}
    text = json.dumps({"traceEvents": [{**event, "pid": 0, "tid": 7, "args": {"device": 0}}]})
    trace = read_bytes(text.encode())
    assert max(map(len, trace.names)) == 50_000
    assert damage(trace) == {"long_name": 1}
