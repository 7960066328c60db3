"""A job of two ranks: where waiting goes, and that the budget still sums to the step."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import leading, waiting_lines, waits
from kinetoscope.engine import diagnose_job
from kinetoscope.metrics.budget import HOST_COLLECTIVE_LABEL
from kinetoscope.metrics.intervals import measure
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import JobBuilder, TraceBuilder


def _analyses(job: JobBuilder) -> list[Analysis]:
    analyses = [Analysis(trace) for trace in job.open().traces]
    for analysis in analyses:
        analysis.peers = tuple(a for a in analyses if a is not analysis)
    return analyses


def _work(t: TraceBuilder, kernel: int, *, steps: int = 4, first: int = 0) -> None:
    """Kernel, then an all-reduce that both ranks leave 9.7 ms into the step."""
    for step in range(first, first + steps):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, kernel, launch_at=at + 50, op="aten::mm")
        t.all_reduce(at + 105 + kernel, 9_595 - kernel, launch_at=at + 70, elements=1 + step)
        t.sync(at + 120, 9_600)


def _straggler() -> JobBuilder:
    job = JobBuilder(2)
    _work(job.rank(0), 5_000)
    _work(job.rank(1), 9_000)
    return job


def test_waiting_is_what_exceeds_the_shortest_rank() -> None:
    quick, slow = _analyses(_straggler())
    # Rank 0's kernels last 4,595 us, rank 1's 595: 4,000 us of waiting a step, three steps long
    # is the window of the device.
    assert waits(slow).waiting_ns == 0
    assert waits(quick).waiting_ns == 4_000_000 * quick.steps
    assert measure(waits(quick).transfer) == 595_000 * quick.steps
    assert leading([quick, slow]) is slow


def test_waiting_goes_to_what_the_late_rank_was_doing() -> None:
    quick, _ = _analyses(_straggler())
    lines, taken = waiting_lines(quick)
    assert taken == sum(line.ns for line in lines)
    # All that time rank 1 computed, but for the 5 us between its kernel and its all-reduce.
    share = {line.class_: line.ns / taken for line in lines}
    assert share["compute"] > 0.99
    assert lines[0].label.startswith("waiting for rank 1: ")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_budget_of_a_job_sums_to_its_step(order: tuple[int, int]) -> None:
    job = JobBuilder(2)
    _work(job.rank(order[0]), 5_000)
    _work(job.rank(order[1]), 9_000)
    result = diagnose_job(job.open(), ())
    assert sum(line.ns for line in result.budget) == result.step.time_ns.mid


def test_the_straggler_is_named_with_its_excess() -> None:
    result = diagnose_job(_straggler().open(), all_rules())
    finding = next(f for f in result.findings if f.code == "CM406")
    assert finding.message.startswith("Rank 1 arrives last")
    # Without the 4 ms too much a step of 10 ms takes 6 ms.
    assert finding.gain.mid == pytest.approx(10 / 6, rel=0.02)
    assert {e.name: e.value for e in finding.evidence}["excess_work"] == 4_000_000


def test_a_symmetric_job_has_no_straggler() -> None:
    job = JobBuilder(2)
    for t in job:
        _work(t, 5_000)
    result = diagnose_job(job.open(), all_rules())
    assert "CM406" not in {f.code for f in result.findings}


def _no_collectives(job: JobBuilder) -> None:
    for t in job:
        t.step(0, 1_000).kernel("gemm", 10, 900, launch_at=5)


def _other_collectives(job: JobBuilder) -> None:
    _work(job.rank(0), 5_000)
    _work(job.rank(1), 5_000, first=7)


def _one_rank_without_device(job: JobBuilder) -> None:
    _work(job.rank(0), 5_000)
    job.rank(1).step(0, 1_000).op("aten::mm", 0, 900)


def _one_rank_empty(job: JobBuilder) -> None:
    _work(job.rank(0), 5_000)
    job.rank(1).op("aten::mm", 0, 0)


def _gloo(job: JobBuilder) -> None:
    for t in job:
        for step in range(4):
            t.step(step * 1_000, 1_000)
            t.op("aten::mm", step * 1_000 + 10, 400, dims=[[64, 64], [64, 64]])
            t.annotation("gloo:all_reduce", step * 1_000 + 420, 500, tid=3000)


@pytest.mark.parametrize(
    "fill", [_no_collectives, _other_collectives, _one_rank_without_device, _one_rank_empty, _gloo]
)
def test_ranks_that_do_not_match_are_no_error(fill: object) -> None:
    job = JobBuilder(2, world_size=3)
    fill(job)  # type: ignore[operator]
    result = diagnose_job(job.open(), all_rules())
    assert not [r for r in result.rules if r.status == "errored"]
    assert sum(line.ns for line in result.budget) == result.step.time_ns.mid


def _on_processors(t: TraceBuilder, load: int, jitter: int) -> None:
    """Load, multiply, and a Gloo all-reduce inside backward that ends 9.7 ms into the step."""
    for step in range(6):
        at, end = step * 10_000, 9_700 - jitter * (step % 3)
        t.step(at, 10_000)
        t.python("train.py(3): load", at + 10, load)
        t.op("aten::mm", at + 10 + load, 2_000, dims=[[64, 64], [64, 64]])
        begin = 2_020 + load
        t.python("torch/autograd/graph.py(966): _engine_run_backward", at + begin, end - begin)
        t.annotation("gloo:all_reduce", at + begin + 10, end - begin - 20, tid=3000)


def _late_on_processors(jitter: int) -> JobBuilder:
    job = JobBuilder(2, device=None)
    _on_processors(job.rank(0), 1_000, jitter)
    _on_processors(job.rank(1), 5_000, 0)
    return job


def test_a_straggler_is_named_without_devices_and_with_ends_that_scatter() -> None:
    result = diagnose_job(_late_on_processors(1_600).open(), all_rules())
    finding = next(f for f in result.findings if f.code == "CM406")
    assert finding.message.startswith("Rank 1 arrives last")
    assert finding.locations[0].function == "load"
    # Of 10 ms, 4 ms are what rank 1 loads longer.
    assert {e.name: e.value for e in finding.evidence}["excess_work"] == 4_000_000
    assert finding.gain.mid == pytest.approx(10 / 6, rel=0.02)
    assert not {"FW517", "PR915"} & {f.code for f in result.findings}


def test_ends_far_apart_name_nobody() -> None:
    result = diagnose_job(_late_on_processors(3_200).open(), all_rules())
    assert "CM406" not in {f.code for f in result.findings}
    assert "PR915" in {f.code for f in result.findings}


def test_waiting_in_backward_for_a_collective_is_communication() -> None:
    result = diagnose_job(_late_on_processors(0).open(), ())
    lines = {line.label: line.ns for line in result.budget if line.class_ == "communication"}
    # The late rank's all-reduce, 7.03 to 9.69 ms into the step.
    assert lines == {HOST_COLLECTIVE_LABEL: pytest.approx(2_660_000, rel=0.01)}
