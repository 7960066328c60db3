"""Rules about input, on traces whose numbers can be worked out by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.rules.api import Outcome
from kinetoscope.rules.data_loading._epochs import epochs
from kinetoscope.rules.precedence import apply_precedence
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

MB = 1_000_000


def run(code: str, builder: TraceBuilder) -> Outcome:
    rule = next(rule for rule in all_rules() if rule.code == code)
    return rule.run(Analysis(builder.read()))


def value(outcome: Outcome, name: str) -> float:
    return next(float(e.value) for e in outcome.hits[0].evidence if e.name == name)


def loader_program(
    loading: int, compute: int, *, steps: int = 5, workers: bool = False
) -> TraceBuilder:
    """Load, then compute; the host goes on when the kernel has been launched and waits for it."""
    t = TraceBuilder()
    period = loading + compute
    for step in range(steps):
        at = step * period
        t.step(at, period)
        t.loader(at, loading, workers=workers)
        t.kernel("gemm", at + loading + 20, compute - 40, launch_at=at + loading + 10)
        t.sync(at + loading + 15, compute - 25)
    return t


def test_batches_are_pinned_where_there_is_a_device() -> None:
    t = TraceBuilder()
    for step in range(5):
        t.step(step * 1_000, 1_000)
        t.loader(step * 1_000, 600)
        t.op("aten::mm", step * 1_000 + 610, 380)
    on_cpu = run("DL101", t).hits[0].fix.snippet
    on_device = run("DL101", loader_program(6_000, 4_000)).hits[0].fix.snippet
    assert "pin_memory" not in on_cpu
    assert on_device.endswith(", pin_memory=True)")


def test_a_loader_in_the_main_process_gains_what_it_takes() -> None:
    outcome = run("DL101", loader_program(6_000, 4_000))
    assert value(outcome, "loader_time") == 6_000_000
    assert value(outcome, "loader_share") == pytest.approx(0.6)
    gain = outcome.hits[0].gain
    assert gain.mid == pytest.approx(10 / (4 + 0.2), rel=0.02)  # 0.2 ms to take the batch
    assert gain.high == pytest.approx(10 / 4, rel=0.02)
    assert gain.low == pytest.approx(10 / (4 + 0.25 * 6), rel=0.02)
    assert "num_workers=3" in outcome.hits[0].fix.snippet  # 6 / 4 rounded up, plus one


@pytest.mark.parametrize(
    ("samples", "each", "told"),
    [(300, 15, True), (30, 150, False), (300, 1, False), (220, 25, True)],
)
def test_many_short_samples_are_better_read_by_one_index(
    samples: int, each: int, told: bool
) -> None:
    """Batches that take 6 ms: 4.5 or 5.5 ms of it in short calls, few longer ones, or 0.3 ms."""
    t = loader_program(6_000, 4_000)
    for step in range(5):
        for i in range(samples):
            t.python("data.py(10): __getitem__", step * 10_000 + 100 + i * each, each)
    fix = run("DL101", t).hits[0].fix
    assert ("one index" in fix.summary) is told
    assert ("__getitems__" in fix.snippet) is told


def test_a_loader_hidden_behind_the_device_is_no_finding() -> None:
    t = TraceBuilder()
    for step in range(5):
        t.step(step * 10_000, 10_000)
        t.loader(step * 10_000, 6_000)
        t.kernel("gemm", step * 10_000 + 6_020, 9_980, launch_at=step * 10_000 + 6_010)
    assert run("DL101", t).status == "silent"


def test_starved_workers_are_bracketed_by_twice_their_pace() -> None:
    outcome = run("DL102", loader_program(9_000, 1_000, steps=6, workers=True))
    gain = outcome.hits[0].gain
    assert gain.low == pytest.approx(2.0, rel=0.02)
    assert gain.mid == pytest.approx(4.0, rel=0.02)
    assert gain.high == pytest.approx(10.0, rel=0.05)


def test_the_sampler_of_an_iterable_data_set_begins_no_epoch() -> None:
    t = loader_program(9_000, 1_000, steps=6, workers=True)
    for step in range(6):
        t.python("threading.py(355): wait", step * 10_000 + 10, 8_900)
        for i in range(4):
            sampler = "torch/utils/data/dataloader.py(102): __iter__"
            t.python(sampler, step * 10_000 + 8_990 + i, 1)
    outcome = run("DL102", t)
    assert outcome.status == "fired"
    assert run("DL103", t).status == "silent"


@pytest.mark.parametrize(("waits", "fires"), [((0, 1, 4), True), ((0,), False)])
def test_a_queue_that_runs_empty_now_and_then_may_hide_more(
    waits: tuple[int, ...], fires: bool
) -> None:
    """Steps of 6 ms of which some wait for 2 ms; 1000 frames of Python in each inflate the rest."""
    t = TraceBuilder()
    for step in range(6):
        at = step * 6_000
        t.step(at, 6_000, number=step + 10)
        waiting = 2_000 if step in waits else 20
        t.loader(at, waiting + 50, workers=True)
        t.python("threading.py(355): wait", at + 10, waiting)
        for i in range(1_000):
            t.python(f"train.py({i + 1}): f{i}", at + 2_100 + 3 * i, 2)
        t.kernel("gemm", at + 5_300, 600, launch_at=at + 5_200)
        t.sync(at + 5_250, 700)
    outcome = run("DL102", t)
    assert (outcome.status == "fired") is fires
    if fires:
        (hit,) = outcome.hits
        assert hit.confidence == 0.4
        assert "without the profiler" in hit.message
        # Of the recorded 6 ms at least 2 / 6 x 3 ms were waiting; 0.69 ms more are the profiler's.
        assert 1.0 < hit.gain.low < 1.3
        assert hit.gain.high > hit.gain.mid > hit.gain.low


def test_one_restart_in_a_long_epoch_is_left_alone() -> None:
    t = TraceBuilder()
    for step in range(6):
        at = step * 10_000
        t.step(at, 10_000)
        if step == 3:
            t.python("torch/utils/data/dataloader.py(428): _get_iterator", at, 4_000)
        t.loader(at + 4_000, 100, workers=True)
        t.kernel("gemm", at + 4_200, 5_000, launch_at=at + 4_150)
    assert run("DL103", t).status == "silent"


def pageable_program(kind: str, microseconds: int, *, size: int) -> TraceBuilder:
    t = TraceBuilder()
    period = microseconds + 5_000
    for step in range(5):
        at = step * period
        t.step(at, period)
        t.op("aten::to", at, microseconds + 20)
        t.op("aten::copy_", at + 1, microseconds + 18)
        t.copy(kind, size, at + 8, microseconds, launch_at=at + 2, launch_dur=microseconds + 8)
        t.sync(at + microseconds + 11, 3)
        t.kernel("gemm", at + microseconds + 40, 4_960, launch_at=at + microseconds + 30)
    return t


def test_a_restart_is_spread_over_the_batches_of_its_epoch() -> None:
    """Ten steps of 10 ms and a restart of 60 ms; with 12 batches that is 5 ms a step.

    At best a third of the 8 ms after the restart goes with it.
    """
    t = TraceBuilder()
    known = next(rule for rule in all_rules() if rule.code == "DL103")
    next(e for e in known.examples if "few batches" in e.title).build(t)
    outcome = run("DL103", t)
    assert value(outcome, "steps_per_epoch") == 12
    assert value(outcome, "restart_share") == pytest.approx(60 / 180, rel=0.02)
    gain = outcome.hits[0].gain
    assert gain is not None
    assert gain.high == pytest.approx(15 / (10 - 8 / 3 / 12), rel=0.05)


def test_pageable_copies_gain_the_difference_to_the_link() -> None:
    # 55.4 MB take 1 ms from pinned memory on an H200 and take 5 ms here; the step is 10 ms.
    outcome = run("DL105", pageable_program("HtoD Pageable", 5_000, size=55_400_000))
    assert value(outcome, "copy_speed") == pytest.approx(11.08e9, rel=1e-3)
    assert outcome.hits[0].gain.mid == pytest.approx(10 / 6, rel=0.03)
    assert outcome.hits[0].gain.high >= 10 / 5 * 0.98


def test_small_pageable_copies_are_not_data() -> None:
    assert run("DL105", pageable_program("HtoD Pageable", 500, size=60_000)).status == "silent"


def test_pinned_copies_are_no_pageable_ones() -> None:
    t = pageable_program("HtoD Pinned", 5_000, size=276 * MB)
    assert run("DL105", t).status == "silent"


def preparing(*, trains: bool, stacks: bool = True, size: int = 1 << 20) -> TraceBuilder:
    t = TraceBuilder()
    for step in range(5):
        at = step * 10_000
        t.step(at, 10_000)
        if stacks:
            t.python("prog.py(3): prepare", at + 10, 6_000)
        t.op("aten::to", at + 6_010, 30)
        t.copy("HtoD Pageable", size, at + 6_022, 16, launch_at=at + 6_012)
        t.kernel("gemm", at + 6_060, 3_900, launch_at=at + 6_045)
        t.sync(at + 6_050, 3_915)
        if trains:
            t.annotation("Optimizer.step#SGD.step", at + 9_970, 20)
    return t


@pytest.mark.parametrize("stacks", [True, False])
def test_work_on_the_input_is_one_finding_whatever_the_program(*, stacks: bool) -> None:
    for trains, code, other in ((True, "DL104", "IN612"), (False, "IN612", "DL104")):
        t = preparing(trains=trains, stacks=stacks)
        found = run(code, t)
        assert found.status == "fired"
        assert value(found, "idle_during_preparation") == pytest.approx(6_000_000, rel=0.02)
        assert found.hits[0].gain.low <= 10 / 4 <= found.hits[0].gain.high
        assert run(other, t).status == "silent"


@pytest.mark.parametrize(("size", "status"), [(2_048, "fired"), (8, "silent")])
def test_long_work_makes_a_small_copy_input_but_not_a_scalar(size: int, status: str) -> None:
    assert run("IN612", preparing(trains=False, size=size)).status == status


def test_the_function_that_prepares_is_named() -> None:
    places = run("DL104", preparing(trains=True)).hits[0].locations
    assert places[0].function == "prepare"


@pytest.mark.parametrize(("pins", "left"), [(True, 3_000 + 346 + 5), (False, 3_000 + 2_005)])
def test_what_the_host_makes_is_copied_slowly_though_the_loader_pins(pins: bool, left: int) -> None:
    """5 ms of work, 2 ms for 19.2 MB from pageable memory (0.346 ms at 55.4 GB/s), 3 ms of kernel.

    1 ms of the work is the conversion inside `to(device, dtype)`.
    """
    t = TraceBuilder()
    for step in range(5):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("prog.py(3): scale", at + 10, 4_000)
        t.op("aten::to", at + 4_010, 3_020)
        t.op("aten::copy_", at + 4_020, 980)
        t.copy("HtoD Pageable", 19_166_400, at + 5_020, 2_000, launch_at=at + 5_010,
               launch_dur=2_015)  # fmt: skip
        t.kernel("gemm", at + 7_050, 2_940, launch_at=at + 7_040)
        t.sync(at + 7_046, 2_950)
        t.annotation("Optimizer.step#SGD.step", at + 9_997, 2)
        if pins:
            frame = "torch/utils/data/_utils/pin_memory.py(26): do_one_step"
            t.python(frame, at + 10, 500, tid=77)
    gain = run("DL104", t).hits[0].gain
    assert gain.mid == pytest.approx(10_000 / left, rel=0.03)


def test_samples_sent_one_by_one_may_gain_nothing_on_a_slow_host() -> None:
    """64 copies of 16 KiB, 40 us each, of a step of 4 ms; at worst 1 MiB is filled at 0.12 GB/s."""
    t = TraceBuilder()
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        for i in range(64):
            begin = at + 10 + 50 * i
            t.op("aten::to", begin, 40)
            t.copy("HtoD Pageable", 16_384, begin + 25, 2, launch_at=begin + 15, launch_dur=20)
        t.kernel("gemm", at + 3_300, 600, launch_at=at + 3_290)
        t.sync(at + 3_296, 700)
    gain = run("DL113", t).hits[0].gain
    assert gain.low == 1.0
    assert gain.mid == pytest.approx(4_000 / (4_000 - 63 * 40), rel=0.1)


def columns(transfer_us: float) -> TraceBuilder:
    """Sixty columns of 96 KiB, 55 µs of the host's time each, before 2 ms of work."""
    t = TraceBuilder()
    for step in range(5):
        at = step * 6_000
        t.step(at, 6_000)
        for i in range(60):
            begin = at + 10 + 60 * i
            t.op("aten::to", begin, 55)
            t.copy(
                "HtoD Pageable",
                98_304,
                begin + 15,
                transfer_us,
                launch_at=begin + 10,
                launch_dur=40,
            )
        t.kernel("gemm", at + 3_700, 2_000, launch_at=at + 3_690)
        t.sync(at + 3_696, 2_010)
    return t


def test_columns_of_a_table_are_many_small_copies_whatever_their_size() -> None:
    analysis = Analysis(columns(8).read(), AnalysisOptions(real_step_ns=6_000_000))
    rule = next(rule for rule in all_rules() if rule.code == "DL113")
    gain = rule.run(analysis).hits[0].gain
    # 59 of 60 operators go, and the runtime's call of 40 µs of the last one. The one copy takes as
    # long as the transfers did, 60 * 8 µs; at best as long as a link of 55.4 GB/s needs.
    assert gain.mid == pytest.approx(6_000 / (6_000 - 59 * 55 - 40 + 480), rel=0.003)
    loop = 59 * 60 + 55  # of which one part in sixty stays, without the call in it
    rest = 6_000 - 59 / 60 * loop - 40 + 60 * 98_304 / 55.4e3
    assert gain.high == pytest.approx(6_000 / rest, rel=0.003)
    assert run("DL113", columns(30)).status == "silent"  # more than half of 55 µs


def test_many_columns_explain_what_their_transfers_take() -> None:
    t = columns(8)
    rules = [rule for rule in all_rules() if rule.code in ("DL113", "DL105")]
    analysis = Analysis(t.read())
    outcomes = apply_precedence([rule.run(analysis) for rule in rules])
    assert [o.rule.code for o in outcomes if o.hits] == ["DL113"]


def test_results_that_stay_on_the_device_need_no_wait_at_best() -> None:
    """2.5 ms of launching, 3 ms on the device that the host waits for, 6.3 ms of work on results.

    Copied still, the step is launching and device one after the other; at best they overlap.
    """
    t = TraceBuilder()
    for step in range(5):
        at = step * 12_000
        t.step(at, 12_000)
        t.op("aten::linear", at + 5, 2_490)
        t.kernel("gemm", at + 2_510, 3_000, launch_at=at + 2_500)
        t.op("aten::to", at + 2_515, 3_085)
        t.copy("DtoH Pageable", 1 << 20, at + 5_515, 80, launch_at=at + 2_520, launch_dur=3_078)
        t.python("serve.py(30): pick", at + 5_610, 6_300)
    rule = next(rule for rule in all_rules() if rule.code == "IN612")
    options = AnalysisOptions(real_step_ns=12_000_000)
    gain = rule.run(Analysis(t.read(), options)).hits[0].gain
    assert gain.mid == pytest.approx(12_000 / (2_500 + 3_000), rel=0.06)  # 0.25 ms of cold caches
    assert gain.high == pytest.approx(1 + 1.1 * (12_000 / 3_000 - 1), rel=0.03)  # spread by 10 %


def test_a_copy_in_the_model_is_not_input_of_the_optimizer() -> None:
    t = TraceBuilder()
    for step in range(5):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("torch/optim/adamw.py(10): step", at + 10, 6_000)
        t.op("aten::to", at + 6_012, 30)
        t.copy("HtoD Pageable", 1 << 20, at + 6_022, 16, launch_at=at + 6_014)
        t.kernel("gemm", at + 6_060, 3_900, launch_at=at + 6_045)
        t.sync(at + 6_050, 3_915)
        t.annotation("Optimizer.step#SGD.step", at + 9_970, 20)
    assert run("DL104", t).status == "silent"


@pytest.mark.parametrize(
    ("dropped", "left", "first"),
    [
        pytest.param(True, 10.1, "Make the iterator once", id="next(iter(loader))"),
        pytest.param(False, 15.1, "Keep the workers", id="an epoch that comes to its end"),
    ],
)
def test_an_iterator_that_lasts_has_its_batches_ready(
    dropped: bool, left: float, first: str
) -> None:
    """Steps of 100 ms: 50 to start workers, 20 to wait, 20 to stop them, 10 for the rest.

    A usual wait is 0.1 ms; of the other 19.9 a quarter stays where an epoch has to begin.
    """
    t, loader = TraceBuilder(), "torch/utils/data/dataloader.py"
    for step in range(5):
        at = step * 100_000
        t.step(at, 100_000)
        t.loader(at + 100, 100, workers=True)
        t.python(f"{loader}(428): _get_iterator", at + 1_000, 50_000)
        t.loader(at + 51_000, 20_000, workers=True)
        if dropped:
            t.python(f"{loader}(1708): __del__", at + 72_000, 20_000)
        t.python(f"{loader}(1625): _shutdown_workers", at + 72_000, 20_000)
        t.kernel("gemm", at + 93_000, 6_000, launch_at=at + 92_500)
        t.sync(at + 92_600, 6_500)
    rule = next(rule for rule in all_rules() if rule.code == "DL103")
    options = AnalysisOptions(real_step_ns=100_000_000)
    (hit,) = rule.run(Analysis(t.read(), options)).hits
    assert hit.gain.mid == pytest.approx(100 / left, rel=0.02)
    assert hit.fix.summary.startswith(first)


@pytest.mark.parametrize("code", ["DL102", "DL103"])
def test_epochs_that_begin_in_no_time_are_no_error(code: str) -> None:
    t = loader_program(4_000, 4_000, workers=True)
    for step in range(5):
        t.python("torch/utils/data/dataloader.py(428): _get_iterator", step * 8_000, 0)
    assert run(code, t).error is None


@pytest.mark.parametrize(
    ("cut", "ended", "batches"),
    [
        pytest.param(False, True, 9, id="all of the epoch's batches were asked for"),
        pytest.param(True, True, None, id="the end of the recording cuts the request"),
        pytest.param(False, False, None, id="a loader that begins beside another"),
    ],
)
def test_when_the_batches_of_an_epoch_are_known(
    cut: bool, ended: bool, batches: int | None
) -> None:
    """Steps of 10 ms, a restart of 60 ms in the third; the last request puts nothing."""
    t, at = TraceBuilder(), 0.0
    for step in range(12):
        restart, last = 60_000.0 if step == 2 else 0.0, step == 11
        t.step(at, restart + 10_000)
        if restart:
            if ended:
                t.python("torch/utils/data/dataloader.py(1668): _shutdown_workers", at + 10, 900)
            t.python("torch/utils/data/dataloader.py(428): _get_iterator", at + 1_000, 58_900)
        at += restart
        t.loader(at + 100, 100, workers=True)
        t.kernel("gemm", at + 400, 7_000, launch_at=at + 300)
        request = "torch/utils/data/dataloader.py(1550): _try_put_index"
        t.python(request, at + 8_000, 2_000 if last and cut else 100)
        if not last:
            t.python("multiprocessing/queues.py(86): put", at + 8_010, 50)
        elif not cut:
            t.op("aten::mm", at + 8_200, 10)
        at += 10_000
    found = epochs(Analysis(t.read()))
    assert (found.count, found.batches) == (1, batches)
