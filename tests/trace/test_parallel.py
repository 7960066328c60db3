"""Several processes give what one gives; failures fall back; nothing is left behind."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.trace.readers import _cutter, _parallel, _pieces, _source, _workers, read
from kinetoscope.trace.readers._pieces import Frame, RangePieces, stream_pieces
from kinetoscope.trace.readers._workers import CannotShareError
from kinetoscope.trace.trace import Trace
from tests.trace.support import event, kernel, rows

COUNT = 60_000


def _events() -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    for i in range(COUNT):
        args = {"External id": i, "Input Dims": [[i % 7, 3]], "Input type": ["float"]}
        out.append(event(f"aten::op{i % 97}", ts=5_000_000 + i * 3, dur=2.001, args=args))
        if i % 5 == 0:
            extra = {"Collective name": "allreduce", "dtype": "Float"} if i % 500 == 0 else {}
            place = {"device": 0, "stream": 7, "correlation": i + 1}
            out.append(kernel(f"gemm{i % 11}", ts=5_000_001 + i * 3, args={**place, **extra}))
    memory = {"ph": "i", "name": "[memory]", "pid": 1, "tid": 2, "args": {"Bytes": 3}}
    out.insert(100, {**memory, "ts": 5_000_500})
    out.append({**memory, "ts": 5_000_400})
    return out


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "trace.json"
    head = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}], "schemaVersion": 1}
    text = json.dumps({**head, "traceEvents": _events(), "distributedInfo": {"rank": 3}}, indent=1)
    path.write_text(text)
    path.with_suffix(".json.gz").write_bytes(gzip.compress(text.encode(), 1))
    return path


def _content(trace: Trace) -> Any:
    columns = ("ts_ns", "dur_ns", "kind", "family", "name", "device", "stream", "corr", "ext_id")
    table = rows(trace, *columns, "dims", "types", "extra", "launch")
    threads = [trace.threads[i] for i in trace.events["thread"]]
    return table, threads, trace.memory.rows(), trace.header, trace.damage


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("processes", [2, 3])
def test_same_as_one_process(large: Path, packed: bool, processes: int) -> None:
    path = large.with_suffix(".json.gz") if packed else large
    frame = Frame()
    with _parallel.read_parallel(path, frame, processes) as parts:  # no fallback
        assert len(parts) == processes
    alone, together = read(path, processes=1), read(path, processes=processes)
    assert len(alone) == COUNT + COUNT // 5
    assert _content(alone) == _content(together)
    assert together.header.rank == 3


def test_truncated_in_several_processes(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "cut.json"
    path.write_bytes(large.read_bytes()[:-700_000])
    alone, together = read(path, processes=1), read(path, processes=2)
    assert _content(alone) == _content(together)
    assert [d.kind for d in together.damage] == ["truncated"]


@pytest.mark.parametrize("block", [1000, 4096])
def test_pieces_tile_the_file(tmp_path: Path, monkeypatch: Any, block: int) -> None:
    for module in (_pieces, _source):
        monkeypatch.setattr(module, "BLOCK", block)
    monkeypatch.setattr(_pieces, "_OVERLAP", 64)
    events = [event(f"name{'x' * (i * 37 % 400)}", ts=i + 1, args={"a": i}) for i in range(200)]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"h": 1, "traceEvents": events, "tail": [{"ph": 1}]}, indent=2))
    streamed = [e for _, text in stream_pieces(path, Frame()) for e in json.loads(bytes(text))]
    assert streamed == events
    source = RangePieces(path, frame := Frame())
    assert source.usable
    ranged = [_loads(source.read(i)) for i in range(source.count)]  # a text lives until the next
    source.close()
    assert [e for piece in ranged for e in piece] == events
    assert frame.ended
    assert json.loads(b"{" + frame.tail.lstrip(b", \n"))["tail"] == [{"ph": 1}]


def _loads(text: Any) -> list[Any]:
    return [] if text is None else json.loads(bytes(text))


def test_begin_and_end_pairs_are_read_in_one_process(large: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.json"
    begin = {"ph": "B", "cat": "cpu_op", "name": "long", "pid": 9, "tid": 9, "ts": 5_000_000}
    events = [begin, *_events(), {"ph": "E", "pid": 9, "tid": 9, "ts": 5_000_009}]
    path.write_text(json.dumps({"traceEvents": events}))
    with pytest.raises(CannotShareError), _parallel.read_parallel(path, Frame(), 2):
        pass
    assert ("long", 9000) in rows(read(path, processes=2), "name", "dur_ns")


def test_without_a_python_to_start(large: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert len(read(large, processes=2)) == COUNT + COUNT // 5


def test_with_workers_that_die(large: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(_workers, "_CODE", "raise SystemExit(9)")
    with pytest.raises(CannotShareError), _parallel.read_parallel(large, Frame(), 2):
        pass
    assert len(read(large, processes=2)) == COUNT + COUNT // 5


def test_small_files_stay_in_one_process(large: Path) -> None:
    assert _workers.process_count(large) == 1


def test_progress(large: Path) -> None:
    for processes in (1, 2):
        done: list[int] = []
        read(large, processes=processes, progress=done.append)
        assert sum(done) > large.stat().st_size * 0.5


SCRIPT = """
import sys
from kinetoscope.trace.readers import read
print("started", flush=True)
print(len(read(sys.argv[1], processes=2)))
"""


def test_a_script_without_main_guard_runs_once(large: Path, tmp_path: Path) -> None:
    script = tmp_path / "user.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, script, large], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["started", str(COUNT + COUNT // 5)]


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for processes in /proc")
def test_interrupt_leaves_nothing_behind(large: Path, tmp_path: Path) -> None:
    slow = "import time, sys; sys.path[:] = sys.argv[2:]; time.sleep(60)"
    script = tmp_path / "user.py"
    script.write_text(
        f"from kinetoscope.trace.readers import _workers\n_workers._CODE = {slow!r}\n{SCRIPT}"
    )
    process = subprocess.Popen(
        [sys.executable, script, large],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    children: list[int] = []
    deadline = time.monotonic() + 30
    while not children and time.monotonic() < deadline:
        time.sleep(0.05)
        children = _children(process.pid)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert children
    assert process.returncode != 0
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert [p.name for p in tmp_path.iterdir()] == ["user.py"]


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def test_border_is_learnt_from_the_events() -> None:
    text = b'{"traceEvents": [{"name": "a", "ph": "M"},\n {"ph": "X"},\n {"ph": "X"}]}'
    layout = _cutter.find_layout(text)
    assert layout is not None
    assert layout.border == b'},\n {"ph"'
    assert text[layout.start :].startswith(b'{"name"')
