"""`kinetoscope compare`: traces, results, folders, exit codes."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from pathlib import Path

import pytest

from kinetoscope.cli import run
from kinetoscope.report import render
from kinetoscope.runs import are_ranks, load_side
from kinetoscope.testing import TraceBuilder
from tests.compare import sides

Capture = pytest.CaptureFixture[str]


def save(path: Path, step_ms: float, **changes: object) -> Path:
    path.write_text(render(sides.run(step_ms, **changes), "json"))  # type: ignore[arg-type]
    return path


def trace(path: Path, kernel_us: int) -> Path:
    builder = TraceBuilder()
    for number in range(6):
        start = number * (kernel_us + 100)
        builder.step(start, kernel_us + 100)
        builder.op("aten::mm", start + 10, 50, dims=[[64, 64], [64, 64]])
        builder.kernel("sm90_gemm", start + 80, kernel_us, launch_at=start + 20)
    builder.write(path)
    return path


def test_two_results(tmp_path: Path, capsys: Capture) -> None:
    before, after = save(tmp_path / "a.json", 40), save(tmp_path / "b.json", 20)
    out = tmp_path / "c.json"
    assert run(["compare", str(before), str(after), "-o", str(out)]) == 0
    assert "FASTER" in capsys.readouterr().out
    document = json.loads(out.read_text())
    assert document["verdict"]["outcome"] == "faster"
    # Both were made of a recording of the same name, which may be gone.
    assert document["before"]["paths"] == [str(before)]
    assert document["after"]["paths"] == [str(after)]


def test_two_traces(tmp_path: Path, capsys: Capture) -> None:
    before, after = trace(tmp_path / "a.json", 2000), trace(tmp_path / "b.json", 1000)
    assert run(["compare", str(before), str(after), "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"]["outcome"] == "faster"
    kernel = next(r for r in document["operators"] if r["kind"] == "kernel")
    assert kernel["change"] == "faster"


def test_a_page_of_two_traces_has_their_call_paths(tmp_path: Path) -> None:
    before, after = trace(tmp_path / "a.json", 2000), trace(tmp_path / "b.json", 1000)
    page = tmp_path / "page.html"
    assert run(["compare", str(before), str(after), "-o", str(page)]) == 0
    text = page.read_text()
    view = text.split('id="view">')[1].split("<")[0]
    raw = zlib.decompress(base64.b64decode(view))
    head = json.loads(raw[4 : 4 + struct.unpack("<I", raw[:4])[0]])
    assert {"sm90_gemm", "aten::mm"} <= {name["text"] for name in head["flame"]["names"]}
    assert "2.09 ms before, 1.09 ms after" in text


def test_undecided_is_exit_code_5(tmp_path: Path) -> None:
    before, after = save(tmp_path / "a.json", 40), save(tmp_path / "b.json", 41)
    assert run(["compare", str(before), str(after)]) == 5


def test_folders_are_repeated_runs(tmp_path: Path, capsys: Capture) -> None:
    for side, step in (("a", 40), ("b", 30)):
        (tmp_path / side).mkdir()
        for number in range(3):
            save(tmp_path / side / f"run{number}.json", step + 0.1 * number)
    code = run(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--format", "json"])
    document = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (document["before"]["runs"], document["after"]["runs"]) == (3, 3)


def test_ranks_and_runs_are_told_apart(tmp_path: Path) -> None:
    files = []
    for rank in range(2):
        path = trace(tmp_path / f"x{rank}.json", 1000)
        files.append(path)
    assert not are_ranks(files)
    assert len(load_side(tmp_path)) == 2
    named = tmp_path / "job"
    named.mkdir()
    for rank in range(2):
        trace(named / f"rank{rank}.json", 1000)
    assert len(load_side(named)) == 1


def test_a_saved_result_takes_no_other_step_time(tmp_path: Path, capsys: Capture) -> None:
    """It would change nothing, silently."""
    one = str(save(tmp_path / "a.json", 40))
    assert run(["compare", one, one, "--real-step-ms", "20", "10"]) == 2
    assert "it is a saved result" in capsys.readouterr().err


def test_a_share_of_several_hundred_percent_is_probably_meant_in_percent(
    tmp_path: Path, capsys: Capture
) -> None:
    one = str(save(tmp_path / "a.json", 40))
    assert run(["compare", one, one, "--margin", "5"]) == 2
    assert "'5' is 500 %: did you mean 5%?" in capsys.readouterr().err
    assert run(["compare", one, one, "--margin", "5%"]) == 0
    capsys.readouterr()


def test_more_than_two_paths_show_the_scaling(tmp_path: Path, capsys: Capture) -> None:
    paths = [str(save(tmp_path / f"{n}.json", 40 + 2 * n, ranks=n)) for n in (1, 2, 4)]
    assert run(["compare", *paths]) == 0
    assert "4 ranks" in capsys.readouterr().out


def test_wrong_usage(tmp_path: Path, capsys: Capture) -> None:
    one = str(save(tmp_path / "a.json", 40))
    assert run(["compare", one]) == 2
    assert run(["compare", one, one, "-o", str(tmp_path / "x.pdf")]) == 2
    assert run(["compare", one, str(tmp_path / "none.json")]) == 3
    assert run(["compare", one, one, "--margin", "lots"]) == 2
    assert "is not a share" in capsys.readouterr().err
