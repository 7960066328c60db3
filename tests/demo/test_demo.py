"""The demo without torch, and what it says about its own prediction."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from kinetoscope.cli import run
from kinetoscope.demo import live, recorded
from kinetoscope.demo.walk import Run, advised_workers, comparison, predicted
from kinetoscope.result.saved import decode
from tests import results

Capture = pytest.CaptureFixture[str]


def _runs(before_ms: float, after_ms: float) -> tuple[Run, Run]:
    place = Path("x")
    return Run(place, before_ms), Run(place, after_ms)


def test_the_whole_loop_on_recordings(tmp_path: Path, capsys: Capture) -> None:
    assert run(["demo", "--no-torch", "-o", str(tmp_path / "demo")]) == 0
    out, err = capsys.readouterr()
    for part in ("1 Profile", "2 Diagnose", "3 Change one thing", "4 Verify", "DL101"):
        assert part in out
    assert "inside the range" in " ".join(out.split())
    assert "Traceback" not in err
    names = {path.name for path in (tmp_path / "demo").iterdir()}
    assert names == {
        *("before.html", "before.json", "before.md", "before.trace.json.gz", "train.py"),
        *("after.html", "after.json", "after.md", "after.trace.json.gz"),
    }


def test_the_recordings_show_what_was_planted(tmp_path: Path) -> None:
    assert run(["demo", "--no-torch", "-o", str(tmp_path)]) == 0
    before = decode((tmp_path / "before.json").read_bytes(), name="before")
    after = decode((tmp_path / "after.json").read_bytes(), name="after")
    assert before.verdict.bottleneck == "data_loading"
    assert before.findings[0].code == "DL101"
    assert any(at.file and at.file.endswith("train.py") for at in before.findings[0].locations)
    assert "DL101" not in {finding.code for finding in after.findings}
    assert before.step.time_ns.mid == pytest.approx(22.418e6, rel=0.02)


def test_the_recordings_are_small(tmp_path: Path) -> None:
    walk = recorded.make(tmp_path)
    assert walk.before.step_ms / walk.after(4).step_ms == pytest.approx(4.55, abs=0.01)
    assert all(path.stat().st_size < 1_000_000 for path in tmp_path.iterdir())
    assert walk.program.read_text(encoding="utf-8").startswith('"""Train a small image classifier')


@pytest.mark.parametrize(
    ("after_ms", "words"),
    [
        (10, "4.0x faster. That is inside the range"),
        (2, "more than DL101"),
        (30, "less than DL101"),
    ],
)
def test_the_comparison(after_ms: float, words: str) -> None:
    finding = predicted(results.diagnosis())
    assert finding is not None
    text = comparison(*_runs(40, after_ms), finding)
    assert words in text
    assert text.endswith("DL101 predicted: 2.9x to 5.4x.")


def test_a_diagnosis_without_prediction() -> None:
    assert predicted(results.healthy()) is None
    no_gain = msgspec.structs.replace(results.LOADER, gain=results.PIN.gain)
    assert predicted(results.diagnosis(findings=(no_gain,))) is None
    assert "predicted no gain" in comparison(*_runs(40, 20), None)


def test_a_broken_torch_falls_back_to_the_recordings(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken" / "torch"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise ImportError('libtorch.so: no such file')")
    paths = [str(broken.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setattr(live, "possible", lambda: True)
    assert run(["demo", "-o", str(tmp_path / "demo")]) == 0
    out, err = capsys.readouterr()
    assert "could not be trained here: ImportError: libtorch.so: no such file" in err
    assert "using the shipped recordings instead" in err
    assert "4 Verify" in out


def test_the_loop_is_trained_and_captured(tmp_path: Path, capsys: Capture) -> None:
    pytest.importorskip("torch", reason="the live demo needs torch")
    assert run(["demo", "-o", str(tmp_path)]) == 0
    out, err = capsys.readouterr()
    assert "shipped recordings" not in err
    text = " ".join(out.split())
    assert "by `kinetoscope run --stop-after" in text
    assert "Measured without the profiler" in text
    before = decode((tmp_path / "before.json").read_bytes(), name="before")
    after = decode((tmp_path / "after.json").read_bytes(), name="after")
    assert before.findings[0].code == "DL101"
    place = before.findings[0].locations[0]
    source = (tmp_path / "train.py").read_text(encoding="utf-8").splitlines()
    assert (place.function, place.exact) == ("read_file", True)
    assert source[(place.line or 0) - 1].strip() == "time.sleep(0.004)"
    for result in (before, after):
        assert result.capture is not None
        assert result.step.time_ns == result.capture.baseline_ns
    assert before.step.time_ns.mid > 1.5 * after.step.time_ns.mid
    assert "DL101" not in {finding.code for finding in after.findings}


def test_the_fix_of_the_live_demo_is_one_line() -> None:
    program = Path(live.__file__).parent / "program" / "train.py"
    text = program.read_text(encoding="utf-8")
    assert text.count(live.SLOW) == 1
    assert live._difference(text, 6) == (
        "-    loader = DataLoader(Photos(), batch_size=8, num_workers=0)",
        "+    loader = DataLoader(Photos(), batch_size=8, num_workers=6, persistent_workers=True)",
    )


def test_the_change_follows_the_advice() -> None:
    finding = predicted(results.diagnosis())
    assert finding is not None
    fix = msgspec.structs.replace(finding.fix, snippet="DataLoader(..., num_workers=7)")
    assert advised_workers(msgspec.structs.replace(finding, fix=fix)) == 7
    assert advised_workers(None) == 4


def test_recordings_with_another_number_than_advised_say_so(tmp_path: Path) -> None:
    change = recorded.make(tmp_path).change
    assert change(4) == ("-python train.py --workers 0", "+python train.py --workers 4")
    assert change(5)[-1] == "The change was recorded with 4 workers, not the 5 advised above."


def test_truth_is_complete() -> None:
    path = Path(recorded.__file__).parent / "recordings" / "truth.json"
    truth = json.loads(path.read_text(encoding="utf-8"))
    assert set(truth) == {"how", "change", "workers", "before_step_ms", "after_step_ms"}
