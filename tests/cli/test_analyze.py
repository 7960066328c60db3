"""`analyze` from a file to an answer, on small traces through the real reader."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from kinetoscope.cli import run
from kinetoscope.cli.output import check_outputs
from kinetoscope.errors import UsageError
from kinetoscope.result import schema
from kinetoscope.testing import TraceBuilder

Capture = pytest.CaptureFixture[str]
COMMAND = [sys.executable, "-m", "kinetoscope"]


def _input_bound() -> TraceBuilder:
    builder = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        builder.step(at, 10_000)
        builder.loader(at, 8_000, workers=0)
        builder.kernel("gemm", at + 8_100, 1_500, launch_at=at + 8_050)
    return builder


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return _input_bound().write(tmp_path / "trace.json.gz")


def test_the_terminal_page(trace: Path, capsys: Capture) -> None:
    assert run(["analyze", str(trace)]) == 0
    out, err = capsys.readouterr()
    assert "DATA LOADING" in out
    assert "DL101 sync-dataloader-in-main-process" in out
    assert err == ""


def test_json_is_the_document_and_nothing_else(trace: Path, capsys: Capture) -> None:
    assert run(["analyze", str(trace), "--format", "json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    jsonschema.validate(document, schema.published())
    assert document["verdict"]["bottleneck"] == "data_loading"
    assert document["inputs"][0]["path"] == str(trace)
    mid = document["step"]["time_ns"]["mid"]
    assert sum(line["ns"] for line in document["budget"]) == pytest.approx(mid, rel=0.01)
    assert err == ""


def test_a_saved_result_renders_like_the_analysis(trace: Path, capsys: Capture) -> None:
    saved = trace.parent / "result.json"
    assert run(["analyze", str(trace), "-o", str(saved)]) == 0
    first = capsys.readouterr().out
    assert run(["report", str(saved)]) == 0
    assert capsys.readouterr().out == first


def test_select_and_ignore(trace: Path, capsys: Capture) -> None:
    def codes(*words: str) -> list[str]:
        assert run(["analyze", str(trace), "--format", "json", *words]) == 0
        return [rule["code"] for rule in json.loads(capsys.readouterr().out)["rules"]]

    every = codes()
    assert codes("--select", "dl") == [code for code in every if code.startswith("DL")]
    assert codes("--select", "DL101") == ["DL101"]
    assert codes("--ignore", "DL101") == [code for code in every if code != "DL101"]
    assert codes("--select", " DL101 , DL ", "--ignore", "DL") == ["DL101"]


def test_an_unknown_prefix(trace: Path, capsys: Capture) -> None:
    assert run(["analyze", str(trace), "--select", "ZZ"]) == 2
    assert "'ZZ'" in capsys.readouterr().err


def test_a_given_step_time_closes_the_bracket(trace: Path, capsys: Capture) -> None:
    assert run(["analyze", str(trace), "--real-step-ms", "9.5", "--format", "json"]) == 0
    time = json.loads(capsys.readouterr().out)["step"]["time_ns"]
    assert time["mid"] == pytest.approx(9_500_000, rel=0.001)


def test_peaks_of_a_device_come_from_a_file(tmp_path: Path, capsys: Capture) -> None:
    builder = TraceBuilder(device="Imaginary X1")
    for step in range(4):
        at = step * 1_000
        builder.step(at, 990)
        builder.op("aten::add", at + 10, 12, dims=[[8192, 8192], [8192, 8192], []])
        builder.kernel("elementwise_kernel", at + 30, 900, launch_at=at + 14)
        builder.sync(at + 40, 900)
    trace, peaks = builder.write(tmp_path / "t.json"), tmp_path / "x1.toml"
    peaks.write_text('name = "X1"\nbandwidth_gbps = 1000\n[tflops]\nfp32 = 10\n')
    words = ["analyze", str(trace), "--format", "json", "--select", "MM311"]
    assert run(words) == 0
    assert not json.loads(capsys.readouterr().out)["findings"]
    assert run([*words, "--device-peaks", str(peaks)]) == 0
    assert [f["code"] for f in json.loads(capsys.readouterr().out)["findings"]] == ["MM311"]
    peaks.write_text("bandwidth_gbps = 1000\n")
    assert run([*words, "--device-peaks", str(peaks)]) == 3
    message = capsys.readouterr().err
    assert "x1.toml" in message
    assert "`tflops`" in message


def test_what_to_record_is_said(tmp_path: Path, capsys: Capture) -> None:
    path = TraceBuilder().op("aten::mm", 0, 50).op("aten::mm", 60, 50).write(tmp_path / "t.json")
    assert run(["analyze", str(path)]) == 0
    assert "need device activity (activities=[" in " ".join(capsys.readouterr().out.split())


def test_fail_on(trace: Path) -> None:
    assert run(["analyze", str(trace), "--fail-on", "critical"]) == 1
    assert run(["analyze", str(trace), "--fail-on", "critical", "--ignore", "DL"]) == 0


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("empty.json", b"", "empty.json"),
        ("text.json", b"hello", "text.json"),
        ("other.json", b'{"a": 1}', "other.json"),
        ("none.json", b'{"traceEvents": []}', "none.json"),
        ("half.json.gz", b"\x1f\x8b\x08\x00", "half.json.gz"),
    ],
)
def test_what_cannot_be_read(
    tmp_path: Path, capsys: Capture, name: str, data: bytes, message: str
) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    assert run(["analyze", str(path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("kinetoscope: error: ")
    assert message in err
    assert "  hint: " in err


def test_a_saved_result_is_no_trace(trace: Path, tmp_path: Path, capsys: Capture) -> None:
    result = tmp_path / "result.json"
    assert run(["analyze", str(trace), "-o", str(result)]) == 0
    capsys.readouterr()
    assert run(["analyze", str(result)]) == 3
    err = capsys.readouterr().err
    assert "a saved result of Kinetoscope" in err
    assert "kinetoscope report" in err


def test_a_trace_of_another_tool_is_called_so(tmp_path: Path, capsys: Capture) -> None:
    path = tmp_path / "bazel.json"
    event = {"ph": "X", "cat": "action processing", "name": "compile", "pid": 1, "tid": 1}
    events = [{**event, "ts": i * 100, "dur": 50} for i in range(20)]
    path.write_text(json.dumps({"traceEvents": events}), encoding="utf-8")
    assert run(["analyze", str(path), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["bottleneck"] == "undetermined"
    assert any("another tool's trace" in note for note in document["notes"])


def test_a_cut_off_file_is_analysed_and_says_so(trace: Path, capsys: Capture) -> None:
    text = _input_bound().to_json()
    cut = trace.parent / "cut.json"
    cut.write_text(text[: len(text) - 400], encoding="utf-8")
    assert run(["analyze", str(cut)]) == 4
    assert "lost: " in capsys.readouterr().out
    assert run(["analyze", str(cut), "--fail-on", "critical"]) == 1


def test_nothing_is_left_of_an_interrupted_run(
    trace: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kinetoscope.report.markdown.render", interrupted)
    assert run(["analyze", str(trace), "-o", str(trace.parent / "a.md")]) == 130
    assert [path.name for path in trace.parent.iterdir()] == [trace.name]
    assert capsys.readouterr().err == "kinetoscope: interrupted\n"


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_progress_is_shown_on_a_terminal_only(trace: Path) -> None:
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [*COMMAND, "analyze", str(trace)],
        stdout=subprocess.PIPE,
        stderr=follower,
        env=os.environ | {"TERM": "xterm"},
    )
    os.close(follower)
    shown = _read_terminal(leader)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert b"\x1b[?25l" in shown, "a progress bar hides the cursor"
    assert b"\x1b[?25h" in shown, "and shows it again"
    assert b"\x1b" not in out


def _read_terminal(leader: int) -> bytes:
    """All that was written to a terminal, until its last writer is gone."""
    pieces = []
    try:
        while piece := os.read(leader, 1 << 16):
            pieces.append(piece)
    except OSError:  # how Linux says that nobody writes any more
        pass
    finally:
        os.close(leader)
    return b"".join(pieces)


def test_an_output_never_replaces_an_input(tmp_path: Path) -> None:
    trace = TraceBuilder().op("aten::add", 0, 10).write(tmp_path / "t.json")
    before = trace.read_bytes()
    with pytest.raises(UsageError, match="one of the inputs"):
        check_outputs([str(trace)], [str(trace)])
    assert trace.read_bytes() == before
    assert check_outputs([str(tmp_path / "new.json")], [str(trace)])
