"""Rules about memory and moving data, on traces whose numbers can be worked out by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import growth
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.rules.memory._allocator import driver_calls
from kinetoscope.rules.memory._moved import moved_by_cat
from kinetoscope.rules.memory.mm303_allocator_flush_or_retry_loop import _beyond_usual
from kinetoscope.testing import TraceBuilder
from tests.rules.test_input_rules import run, value

MIB = 1 << 20


def leaking(per_step: list[int]) -> TraceBuilder:
    """Each step allocates 64 MiB more than it frees, times the given factor."""
    t = TraceBuilder()
    total = 10 << 30
    for step, kept in enumerate(per_step):
        at = step * 1_000
        t.step(at, 1_000)
        t.python("train.py(5): train", at + 5, 900)
        t.python("model.py(9): forward", at + 10, 200)
        t.op("aten::mm", at + 12, 100, seq=step)
        for i in range(4):
            total += 64 * MIB
            t.memory(64 * MIB, total, at + 20 + i, address=(step * 16 + i + 1) << 28)
        t.annotation("Optimizer.step#SGD.step", at + 400, 50)
        for i in range(kept, 4):
            total -= 64 * MIB
            t.memory(-64 * MIB, total, at + 800 + i, address=(step * 16 + i + 1) << 28)
    return t


def test_what_each_step_leaves_is_measured_by_address() -> None:
    found = growth(leaking([1, 1, 1, 1]).read())
    assert found is not None
    assert found.left.tolist() == [64 * MIB] * 3  # the last step is not judged
    assert found.from_forward == 1.0


def test_a_leak_of_three_steps_is_found_and_placed() -> None:
    outcome = run("MM305", leaking([1, 1, 1]))
    hit = outcome.hits[0]
    assert value(outcome, "left_per_step") == 64 * MIB
    assert hit.gain.basis == "none"
    assert hit.at_least == "critical"  # 130 GiB left at 64 MiB a millisecond
    assert hit.locations[0].function in {"train", "forward"}


@pytest.mark.parametrize(
    "kept",
    [
        [3, 0, 0, 0],  # optimizer states, created in the first step
        [1, 1, 0, 0, 0],  # a cache that is full after two steps
        [0, 0, 0, 1],  # what the last step still uses
        [0, 0, 0],
    ],
)
def test_memory_that_stops_growing_is_no_leak(kept: list[int]) -> None:
    assert run("MM305", leaking(kept)).status == "silent"


def round_trip(
    *, loader: bool = False, other_step: bool = False, back: int = 8 * MIB, one_call: bool = False
) -> TraceBuilder:
    """2 ms of kernels, 1 ms to the host, 3 ms there, 1 ms back, 3 ms of kernels."""
    t = TraceBuilder()
    for step in range(5):
        at = step * 10_000
        edge = at + 3_500 if other_step else at
        t.step(edge, 10_000)
        t.kernel("gemm", at + 20, 1_980, launch_at=at + 5)
        if one_call:
            t.python("prog.py(7): threshold", at + 10, 7_000)
        t.op("aten::to", at + 15, 2_985)
        t.copy("DtoH Pageable", 8 * MIB, at + 2_000, 990, launch_at=at + 20, launch_dur=2_975)
        if loader:
            t.loader(at + 3_010, 2_900)
        t.op("aten::to", at + 6_000, 1_000)
        t.copy("HtoD Pageable", back, at + 6_010, 985, launch_at=at + 6_005, launch_dur=990)
        t.kernel("gemm", at + 7_020, 2_970, launch_at=at + 7_005)
        t.sync(at + 7_012, 2_980)
    return t


def test_a_round_trip_gains_both_copies_and_the_work_between() -> None:
    outcome = run("MM309", round_trip())
    assert value(outcome, "bytes_per_step") == 8 * MIB
    assert value(outcome, "host_work_between") == pytest.approx(3_000_000, rel=0.01)
    assert outcome.hits[0].gain.mid == pytest.approx(10 / 5, rel=0.03)


@pytest.mark.parametrize("how", [{"loader": True}, {"other_step": True}])
def test_a_result_and_the_next_batch_are_no_round_trip(how: dict[str, bool]) -> None:
    assert run("MM309", round_trip(**how)).status == "silent"


@pytest.mark.parametrize(("one_call", "status"), [(True, "fired"), (False, "silent")])
def test_a_mask_that_comes_back_needs_one_function_to_be_a_round_trip(
    *, one_call: bool, status: str
) -> None:
    assert run("MM309", round_trip(back=2 * MIB, one_call=one_call)).status == status


def test_a_round_trip_is_nobody_elses_copy() -> None:
    found = transfers(round_trip().read())
    assert set(found.purpose.tolist()) == {Purpose.TO_HOST, Purpose.ROUND_TRIP}
    assert run("DL105", round_trip()).status == "silent"


def creating(first: str) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(5):
        at = step * 10_000
        t.step(at, 10_000)
        t.op(first, at + 10, 3_000)
        t.op("aten::mul", at + 3_020, 970)
        t.op("aten::to", at + 4_000, 1_000)
        t.copy("HtoD Pageable", 4 * MIB, at + 4_010, 985, launch_at=at + 4_005, launch_dur=990)
        t.kernel("gemm", at + 5_020, 4_970, launch_at=at + 5_005)
        t.sync(at + 5_012, 4_980)
    return t


def test_creating_on_the_host_gains_all_of_it() -> None:
    outcome = run("FW520", creating("aten::randn"))
    assert outcome.hits[0].gain.mid == pytest.approx(10 / 5, rel=0.03)
    assert run("DL105", creating("aten::randn")).status == "silent"


def test_data_from_outside_is_not_created() -> None:
    assert run("FW520", creating("aten::index_select")).status == "silent"


def checkpoints(every: int) -> TraceBuilder:
    t, at = TraceBuilder(), 0
    for step in range(8):
        extra = 40_000 if step % every == every - 1 else 0
        t.step(at, 5_000 + extra)
        t.kernel("gemm", at + 20, 4_900, launch_at=at + 10)
        t.sync(at + 15, 4_910)
        if extra:
            t.python("torch/serialization.py(900): save", at + 4_950, extra)
        at += 5_000 + extra
    return t


def test_a_checkpoint_counts_by_how_often_it_is_written() -> None:
    outcome = run("FW529", checkpoints(4))  # 8 steps of 5 ms and two checkpoints of 40 ms
    assert value(outcome, "checkpoints") == 2
    assert outcome.hits[0].gain.mid == pytest.approx(120 / 40, rel=0.03)


def test_a_single_checkpoint_is_told_but_promises_nothing() -> None:
    hit = run("FW529", checkpoints(8)).hits[0]
    assert hit.gain.basis == "none"
    assert hit.at_most == "info"


def test_driver_calls_gain_their_time_only_when_they_recur() -> None:
    for calls, status in ((5, "fired"), (1, "silent")):
        t = TraceBuilder()
        for step in range(5):
            at = step * 4_000
            t.step(at, 4_000)
            t.op("aten::empty", at + 10, 1_000)
            if step < calls:
                t.runtime("cudaMalloc", at + 10, 1_000)
            t.kernel("gemm", at + 1_030, 2_960, launch_at=at + 1_015)
            t.sync(at + 1_022, 2_970)
        outcome = run("MM302", t)
        assert outcome.status == status
        if outcome.hits:
            assert outcome.hits[0].gain.mid == pytest.approx(4 / 3, rel=0.02)


def joining(
    old: list[int], new: list[int], strides: list[int], *, cut: bool = False
) -> TraceBuilder:
    """Steps of 4 ms: a `cat` of 3 ms along the first or second dimension, then other work."""
    axis = next(i for i, (a, b) in enumerate(zip(old, new, strict=True)) if a != b)
    whole = [*old]
    whole[axis] += new[axis]
    t = TraceBuilder()
    for step in range(5):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("serve.py(7): push", at + 2, 40)
        if cut:
            t.op("aten::slice", at + 3, 3, dims=[whole, [], [], [], []])
        t.op(
            "aten::cat",
            at + 10,
            20,
            dims=[[old, new], []],
            types=["TensorList", "Scalar"],
            strides=[[strides, [1] * len(new)], []],
            concrete=["", str(axis)],
        )
        t.kernel("CatArrayBatchedCopy", at + 25, 3_000, launch_at=at + 15)
        t.op("aten::mm", at + 50, 20)
        t.kernel("gemm", at + 3_030, 960, launch_at=at + 55)
        t.sync(at + 72, 3_920)
    return t


@pytest.mark.parametrize(
    ("trace", "status"),
    [
        pytest.param(joining([8, 99, 64], [8, 1, 64], [6400, 64, 1]), "fired", id="window"),
        pytest.param(joining([99, 64], [1, 64], [64, 1], cut=True), "fired", id="window of rows"),
        pytest.param(joining([8, 99, 64], [8, 1, 64], [6336, 64, 1]), "silent", id="class token"),
        pytest.param(
            joining([8, 64, 48], [8, 64, 16], [4096, 64, 1]), "silent", id="rotated quarter"
        ),
    ],
)
def test_a_cat_that_shifts_a_window_is_a_copy(trace: TraceBuilder, status: str) -> None:
    """3 ms become 1 % of them and a microsecond: of 4 ms 1.031 are left."""
    outcome = run("MM309", trace)
    assert outcome.status == status
    assert run("CP204", trace).status == "silent"
    if outcome.hits:
        assert value(outcome, "new_part") == 0.01
        assert outcome.hits[0].gain.mid == pytest.approx(4 / 1.031, rel=0.01)


def test_a_tensor_that_grows_has_the_shape_of_another_result() -> None:
    t = TraceBuilder()
    for step in range(5):
        at = step * 4_000
        t.step(at, 4_000)
        t.op(
            "aten::cat",
            at + 10,
            20,
            dims=[[[8, 99 + step, 64], [8, 1, 64]], []],
            types=["TensorList", "Scalar"],
            concrete=["", "1"],
        )
        t.kernel("CatArrayBatchedCopy", at + 25, 3_900, launch_at=at + 15)
        t.sync(at + 40, 3_900)
    assert moved_by_cat(t.read()).rows.size == 5  # the first one by what becomes of it


def growing(*, read: bool) -> TraceBuilder:
    """12 joins a step of 0.1 ms each on the device and on the host, then 1 ms of other work."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 2_400
        t.step(at, 2_400)
        for i in range(12):
            begin, old = at + 10 + 100 * i, 64 * (20 + i)
            dims = [[[8, old, 64], [8, 64, 64]], []]
            t.op("aten::cat", begin, 90, dims=dims, types=["TensorList", "Scalar"],
                 concrete=["", "1"])  # fmt: skip
            t.kernel("CatArrayBatchedCopy", begin + 50, 80, launch_at=begin + 40)
            if read:
                t.op("aten::select", begin + 92, 3, dims=[[8, old + 64, 64], [], []])
        t.op("aten::mm", at + 1_250, 20, dims=[[8, 64], [64, 64]])
        t.kernel("gemm", at + 1_300, 1_050, launch_at=at + 1_255)
        t.sync(at + 1_280, 1_100)
    return t


def test_what_nothing_reads_while_it_grows_is_joined_once() -> None:
    """Of the 12 all but the last go, 90 us each."""
    kept, read = (run("MM316", growing(read=read)) for read in (False, True))
    assert "once" in kept.hits[0].fix.summary
    assert kept.hits[0].gain.mid == pytest.approx(2_400 / (2_400 - 11 * 90), rel=0.05)
    assert not read.hits or "Allocate" in read.hits[0].fix.summary


def retrying(*, backward: bool) -> TraceBuilder:
    """Steps of 10 ms: 3 ms of work in vain, 6 ms of the second try, 1 ms after waiting for that."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(10): learn", at + 5, 9_900)
        t.kernel("gemm", at + 50, 1_000, launch_at=at + 40)
        t.python("train.py(30): second_half", at + 1_000, 1_000)
        thread = 2_000 if backward else None
        name = "autograd::engine::evaluate_function: MmBackward0" if backward else "aten::mm"
        t.op(name, at + 1_100, 400, tid=thread)
        t.kernel("gemm", at + 1_150, 2_000, launch_at=at + 1_140, tid=thread)
        t.failed_request(2 << 30, 137 << 30, at + 1_400, reserved=138 << 30, tid=thread)
        t.kernel("gemm", at + 3_150, 6_000, launch_at=at + 2_100)
        t.sync(at + 2_200, 6_955)
    return t


def test_what_an_exception_ended_was_in_vain() -> None:
    outcome = run("MM313", retrying(backward=False))
    (hit,) = outcome.hits
    assert value(outcome, "tried_in_vain") == 1_000_000
    assert [place.function for place in hit.locations] == ["second_half", "learn"]
    # Without `second_half`: 1 ms on the device and then 6 ms, ended at 7.11 ms, and 0.845 ms after.
    assert hit.gain.mid == pytest.approx(10_000 / (7_110 + 845), rel=0.02)
    # Without the launch before it as well: 6 ms from 0.1 ms on.
    assert hit.gain.high == pytest.approx(1 + 1.1 * (10_000 / (6_110 + 845) - 1), rel=0.02)


def test_a_backward_pass_in_vain_makes_its_forward_pass_vain() -> None:
    outcome = run("MM313", retrying(backward=True))
    (hit,) = outcome.hits
    assert value(outcome, "tried_in_vain") == 2_000_000
    assert hit.locations[0].function == "second_half"
    assert hit.gain.mid == pytest.approx(10_000 / (6_110 + 845), rel=0.02)


def test_a_recording_that_stops_after_one_more_failure_does_not_end_the_habit() -> None:
    t = retrying(backward=False).step(40_000, 2_000)
    t.kernel("gemm", 40_050, 1_000, launch_at=40_040)
    t.failed_request(2 << 30, 137 << 30, 41_900, reserved=138 << 30)
    outcome = run("MM313", t)
    assert value(outcome, "steps_that_retry") == 4
    assert outcome.hits[0].gain.mid > 1.1


def test_failures_in_all_steps_are_told_without_stacks_too() -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.kernel("gemm", at + 50, 3_000, launch_at=at + 40)
        t.failed_request(2 << 30, 137 << 30, at + 1_900, reserved=138 << 30)
        t.kernel("gemm", at + 3_050, 6_000, launch_at=at + 2_500)
    (finding,) = run("MM313", t).findings
    assert finding.severity == "low"


def failing(at: float, *, later: bool) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(4 if later else 1):
        t.step(step * 10_000, 10_000)
        t.kernel("gemm", step * 10_000 + 50, 9_000, launch_at=step * 10_000 + 40)
    return t.failed_request(2 << 30, 137 << 30, at, reserved=138 << 30)


def test_a_failure_after_which_nothing_is_launched_is_critical() -> None:
    (finding,) = run("MM313", failing(9_500, later=False)).findings
    assert finding.severity == "critical"


def test_a_failure_at_the_moment_of_the_last_launch_is_the_last_event() -> None:
    (finding,) = run("MM313", failing(30_040, later=True)).findings
    assert finding.severity == "critical"


@pytest.mark.parametrize(("at", "severity"), [(500, None), (25_000, "info")])
def test_a_single_failure_is_told_unless_it_comes_first(at: float, severity: str | None) -> None:
    outcome = run("MM313", failing(at, later=True))
    assert [finding.severity for finding in outcome.findings] == ([severity] if severity else [])


def test_an_empty_cache_makes_the_operators_slower_that_find_it_so() -> None:
    """Of 120 us beside its cudaMalloc, an operator takes 100 more than one with cached memory."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 6_000
        t.step(at, 6_000)
        t.op("aten::empty", at + 5, 500)
        t.runtime("cudaMalloc", at + 10, 380)
        t.op("aten::empty", at + 510, 20)
        t.kernel("gemm", at + 620, 400, launch_at=at + 600)
        t.sync(at + 700, 325, name="cudaDeviceSynchronize")
        for i in range(4):
            t.runtime("cudaFree", at + 1_030 + 400 * i, 350)
    analysis = Analysis(t.read())
    assert _beyond_usual(analysis, driver_calls(analysis)) == pytest.approx(100 / 120, rel=0.001)


def test_an_operator_that_tries_algorithms_out_is_not_slow_for_an_empty_cache() -> None:
    """Of 10 ms a step, 1 ms goes to the driver; 8 ms of a convolution are its own."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.op("aten::cudnn_convolution", at + 5, 8_000)
        for i in range(4):
            t.runtime("cudaMalloc", at + 100 + 200 * i, 50)
            t.runtime("cudaFree", at + 4_000 + 250 * i, 200)
        t.op("aten::cudnn_convolution", at + 8_010, 30)
        t.kernel("gemm", at + 8_030, 1_900, launch_at=at + 8_020)
        t.sync(at + 8_050, 1_900)
    (hit,) = run("MM303", t).hits
    assert hit.gain.high <= 1 + 1.3 * (10_000 / 9_000 - 1)
