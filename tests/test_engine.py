"""The whole way from files to a result: on drawn traces, and on real recordings when at hand."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.engine import DiagnoseOptions, diagnose
from kinetoscope.errors import EmptyTraceError, FormatError, InputNotFoundError, UsageError
from kinetoscope.result import Diagnosis
from kinetoscope.rules.api import Hit
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

_ROOT = Path(os.environ.get("KINETOSCOPE_TRACES", Path(__file__).parents[2] / "shared/traces"))
_FILES = sorted(p for part in ("public", "zoo") for p in (_ROOT / part).glob("*.json.gz"))
_TRUTH = _ROOT / "zoo" / "TRUTH.json"


def _is_consistent(result: Diagnosis) -> None:
    """What holds for every result, whatever the input."""
    step = result.step.time_ns
    assert 0 < step.low <= step.mid <= step.high
    assert sum(line.ns for line in result.budget) == pytest.approx(step.mid, rel=0.01)
    assert all(0 <= line.share <= 1 and line.ns >= 0 for line in result.budget)
    assert [r.code for r in result.rules if r.status == "errored"] == []
    for row in result.device_timeline:
        assert 0 <= row.busy_ns <= row.span_ns
        assert row.idle_ns == row.span_ns - row.busy_ns
        assert row.exposed_comm_ns <= row.comm_ns
        assert row.exposed_memcpy_ns <= row.memcpy_ns
    for finding in result.findings:
        gain = finding.gain
        assert 1.0 <= gain.low <= gain.mid <= gain.high
        assert 0 <= finding.confidence <= 1
        assert finding.fix.summary
        for evidence in finding.evidence:
            if evidence.unit == "ratio" and "_over_" not in evidence.name:
                assert 0 <= float(evidence.value) <= 1, evidence
    json.loads(msgspec.json.encode(result), parse_constant=pytest.fail)


def _loader_bound(t: TraceBuilder) -> TraceBuilder:
    for i in range(5):
        at = i * 10_000
        t.step(at, 10_000)
        t.python("train.py(12): main", at, 9_900)
        t.loader(at + 10, 8_000, workers=0)
        t.kernel("sgemm", at + 8_100, 1_500, launch_at=at + 8_050)
    return t


def test_a_loader_bound_program(tmp_path: Path) -> None:
    result = diagnose(_loader_bound(TraceBuilder()).write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.verdict.bottleneck == "data_loading"
    assert not result.verdict.healthy
    assert result.findings[0].code == "DL101"
    # 10 ms a step of which 8 ms load: without loading 2 ms are left, a speed-up of 5.
    assert result.findings[0].gain.low < 5 <= result.findings[0].gain.high * 1.05
    line = next(b for b in result.budget if b.label == "waiting for the DataLoader")
    assert line.share == pytest.approx(0.8, abs=0.02)


def test_a_busy_device_is_healthy(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(5):
        t.step(i * 1_000, 1_000)
        t.kernel("sm90_xmma_gemm_bf16bf16_f32", i * 10_000 + 50, 9_990, launch_at=i * 1_000 + 20)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.verdict.bottleneck == "compute"
    assert result.verdict.healthy


def test_a_device_without_its_host_is_not_called_healthy(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(5):
        t.kernel("sm90_xmma_gemm_bf16bf16_f32", i * 10_000, 9_990)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.verdict.bottleneck == "compute"
    assert not result.verdict.healthy
    assert "host was not recorded" in result.verdict.sentence


def test_launches_without_kernels_are_not_idleness(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(4):
        t.step(i * 100, 100)
        for j in range(10):
            t.op("aten::mm", i * 100 + j * 9, 8)
            t.runtime("cudaLaunchKernel", i * 100 + j * 9 + 2, 4)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.verdict.bottleneck == "undetermined"
    assert "missing" in result.verdict.sentence


def test_a_host_only_recording(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(4):
        t.step(i * 1_000, 1_000)
        t.op("aten::mm", i * 1_000 + 10, 900)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.verdict.bottleneck == "compute"
    assert result.device_timeline == ()


def test_the_real_step_time_pins_the_bracket(tmp_path: Path) -> None:
    path = _loader_bound(TraceBuilder()).write(tmp_path / "t.json")
    result = diagnose(path, options=DiagnoseOptions(real_step_ms=9.5))
    assert result.step.time_ns.low == result.step.time_ns.high == 9_500_000
    assert sum(line.ns for line in result.budget) == 9_500_000


def test_selection_by_prefix(tmp_path: Path) -> None:
    path = _loader_bound(TraceBuilder()).write(tmp_path / "t.json")
    result = diagnose(path, options=DiagnoseOptions(select=("DL",), ignore=("DL101",)))
    assert {r.code[:2] for r in result.rules} == {"DL"}
    assert "DL101" not in {r.code for r in result.rules}
    with pytest.raises(UsageError, match="XX9"):
        diagnose(path, options=DiagnoseOptions(select=("XX9",)))


def test_the_same_input_gives_the_same_result(tmp_path: Path) -> None:
    path = _loader_bound(TraceBuilder()).write(tmp_path / "t.json")
    assert msgspec.json.encode(diagnose(path)) == msgspec.json.encode(diagnose(path))


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("missing.json", None, InputNotFoundError),
        ("empty.json", b"", EmptyTraceError),
        ("config.json", b'{"lr": 0.1}', FormatError),
        ("notes.txt", b"hello", FormatError),
        ("no_events.json", b'{"traceEvents": []}', EmptyTraceError),
        ("cut.json.gz", b"\x1f\x8b\x08\x00\x00", FormatError),
    ],
)
def test_bad_input_names_the_file_and_the_next_step(
    tmp_path: Path, name: str, content: bytes | None, error: type[Exception]
) -> None:
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises((error, EmptyTraceError, FormatError)) as caught:
        diagnose(path)
    assert name in str(caught.value)
    assert caught.value.hint  # type: ignore[attr-defined]


@pytest.mark.skipif(not _FILES, reason="no recordings at hand; set KINETOSCOPE_TRACES")
@pytest.mark.parametrize("path", _FILES, ids=lambda p: p.name.removesuffix(".json.gz"))
def test_every_real_recording_gives_a_consistent_result(path: Path) -> None:
    _is_consistent(diagnose(path))


_REAL = _ROOT / "public"


@pytest.mark.skipif(not _FILES, reason="no recordings at hand; set KINETOSCOPE_TRACES")
@pytest.mark.parametrize(
    ("name", "allowed"),
    [
        ("tb__resnet50_num_workers_0__worker0.1623143089861.pt.trace", {"data_loading"}),
        ("tb__resnet50_num_workers_4__worker0.1623212756351.pt.trace", {"compute", "memory"}),
        ("tl__mi300__resnet_act_checkpoint", {"communication"}),
        ("tl__h100__gaunernst_bert-small-uncased__1016001", {"framework"}),
        (
            "tl__inference__vllm_decode_full__graph_execution",
            {"compute", "memory"},
        ),
    ],
)
def test_the_class_of_public_recordings(name: str, allowed: set[str]) -> None:
    assert diagnose(_REAL / f"{name}.json.gz").verdict.bottleneck in allowed


@pytest.mark.skipif(not _FILES, reason="no recordings at hand; set KINETOSCOPE_TRACES")
def test_the_long_gap_is_named_by_the_call_that_made_it() -> None:
    result = diagnose(_REAL / "tl__inference__sglang_decode__sglang_Qwen3-8B_decode.json.gz")
    text = " ".join([*result.notes, *(f.message for f in result.findings)])
    assert "463 ms" in text
    assert "hipMemcpyWithStream" in text


@pytest.mark.skipif(not _TRUTH.exists(), reason="no recordings at hand; set KINETOSCOPE_TRACES")
@pytest.mark.parametrize("case", ["ok_compute_bound", "ok_ddp"])
@pytest.mark.parametrize("variant", ["slow", "fixed"])
def test_healthy_programs_raise_no_alarm(case: str, variant: str) -> None:
    folder = _TRUTH.parent
    files = sorted(folder.glob(f"{case}.{variant}*.json.gz"))
    loud = [
        (f.code, f.severity)
        for f in diagnose(files).findings
        if f.class_ != "quality" and f.severity in ("critical", "high")
    ]
    assert loud == []


def test_kernels_without_any_host_event(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(20):
        t.kernel("nchwToNhwcKernel", i * 200, 60)
        t.kernel("sm80_xmma_fprop_implicit_gemm", i * 200 + 60, 60)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.step.source == "whole_trace"


def test_work_from_before_a_recording_without_steps_is_no_part_of_its_step(
    tmp_path: Path,
) -> None:
    """The only graph is launched at 100 us and begins at 9 ms, behind work that was not recorded.

    Its four kernels run without a gap until 19 ms: a step of 10 ms, not of 19.
    """
    t = TraceBuilder()
    t.op("aten::copy_", 0, 90)
    for i in range(4):
        t.kernel(
            "ampere_sgemm",
            9_000 + i * 2_500,
            2_500,
            launch_at=100 if i == 0 else None,
            launch="cudaGraphLaunch",
            corr=None if i == 0 else 1,
        )
    t.op("aten::copy_", 18_900, 100)
    result = diagnose(t.write(tmp_path / "t.json"))
    _is_consistent(result)
    assert result.step.source == "whole_trace"
    assert result.step.recorded_ns == 10_000_000
    busy = sum(line.ns for line in result.budget if line.class_ in ("compute", "memory"))
    assert busy <= 10_000_000


def test_operators_of_a_device_that_was_not_recorded_are_host_time(tmp_path: Path) -> None:
    """A product on the host that launched a kernel is no product of the host."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        for i in range(5):
            t.op("aten::mm", at + i * 150, 140)
            t.runtime("cudaLaunchKernel", at + i * 150 + 10, 20)
    result = diagnose(t.write(tmp_path / "t.json"))
    assert result.verdict.bottleneck == "undetermined"
    assert {line.class_ for line in result.budget} <= {"framework", "unattributed"}
    assert result.findings[0].code == "PR911"


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0.0, -1.0, 1e300])
def test_an_impossible_step_time_is_wrong_usage(tmp_path: Path, value: float) -> None:
    path = _loader_bound(TraceBuilder()).write(tmp_path / "t.json")
    with pytest.raises(UsageError, match="real step time"):
        diagnose(path, options=DiagnoseOptions(real_step_ms=value))


def test_a_step_time_that_contradicts_the_recording_is_questioned(tmp_path: Path) -> None:
    path = _loader_bound(TraceBuilder()).write(tmp_path / "t.json")
    notes = diagnose(path, options=DiagnoseOptions(real_step_ms=100.0)).notes
    assert any("is it the same step?" in note for note in notes)


def test_two_recordings_of_one_rank_are_no_job(tmp_path: Path) -> None:
    """The later one is diagnosed; the earlier one is named."""
    for name, base in (("late.json", 2_000_000_000), ("early.json", 1_000_000_000)):
        t = _loader_bound(TraceBuilder())
        t.header(
            baseTimeNanoseconds=base,
            distributedInfo={"backend": "nccl", "rank": 0, "world_size": 2},
        )
        t.write(tmp_path / name)
    result = diagnose(tmp_path)
    assert [Path(info.path).name for info in result.inputs] == ["late.json"]
    assert any("early.json" in note for note in result.notes)


def test_what_a_cut_file_lacks_proves_nothing(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(50):
        t.step(i * 100, 100)
        t.op("aten::mm", i * 100 + 10, 50)
    whole = t.to_json()
    path = tmp_path / "cut.json"
    path.write_text(whole[: int(0.9 * len(whole))])
    result = diagnose(path)
    assert "PR911" not in {f.code for f in result.findings}
    assert any("ends in the middle" in note for note in result.notes)


def test_a_recording_that_shows_nothing_names_no_class(tmp_path: Path) -> None:
    t = TraceBuilder()
    for i in range(4):
        t.step(i * 1_000, 1_000)
        t.op("aten::add", i * 1_000 + 10, 5)
    assert diagnose(t.write(tmp_path / "t.json")).verdict.bottleneck == "undetermined"


def test_a_lone_rank_that_waits_has_a_wide_bracket(tmp_path: Path) -> None:
    """900 of 1000 us are an all-reduce that may be waiting: the true step may be 100 us."""
    t = TraceBuilder()
    for i in range(4):
        at = i * 1_000
        t.step(at, 1_000)
        t.kernel("gemm", at + 10, 90, launch_at=at + 2)
        t.all_reduce(at + 100, 900, launch_at=at + 6)
    step = diagnose(t.write(tmp_path / "t.json")).step.time_ns
    assert step.high == pytest.approx(1_000_000, rel=0.01)
    assert step.low <= 110_000


@pytest.mark.parametrize(
    ("busy_us", "reason"),
    [
        (980, "no gain: hidden behind the device's work"),
        (400, "the fix would gain less than 2 % of the step"),
    ],
)
def test_what_brings_nothing_is_withheld_with_the_reason(busy_us: int, reason: str) -> None:
    t = TraceBuilder()
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.kernel("gemm", step * 1_000 + 10, busy_us, launch_at=step * 1_000 + 2)
    (rule,) = (r for r in all_rules() if r.code == "FW503")
    rule = replace(rule, needs=frozenset(), check=lambda *_: [Hit(message="20 reads.")])
    record = rule.run(Analysis(t.read())).record()
    assert (record.status, record.reason, record.withheld) == ("silent", reason, "20 reads.")
