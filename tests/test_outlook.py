"""What comes after a fix, and several fixes at once: worked out by hand on drawn steps."""

from __future__ import annotations

import numpy as np
import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.gains import ReplayedGain
from kinetoscope.outlook import next_limit, with_outlook
from kinetoscope.replay import Change, combined
from kinetoscope.result import Finding
from kinetoscope.rules.api import as_known
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.kinds import Kind


def _loading() -> Analysis:
    """Each step of 1,000 us: 600 in the loader, 100 of Python, a launch, a kernel of 200, a wait.

    The device idles while the host loads and thinks.
    """
    t = TraceBuilder()
    for i in range(6):
        at = i * 1000.0
        t.step(at, 1000)
        t.loader(at, 600)
        t.python("train.py(1): think", at + 600, 100)
        t.kernel("ampere_sgemm_128x64_nn", at + 710, 200, launch_at=at + 700, launch_dur=5)
        t.sync(at + 706, 214)
        t.python("train.py(9): log", at + 920, 80)
    return Analysis(t.read())


def _named(analysis: Analysis, text: str) -> Change:
    return Change(host_cut=analysis.extent(analysis.matching(lambda name: text in name)))


def _gain(analysis: Analysis, change: Change) -> ReplayedGain:
    return analysis.gain(change)


def test_without_the_loader_the_host_is_next() -> None:
    """400 us are left: 200 of kernel, 180 of Python: the host's share is the larger waste."""
    analysis = _loading()
    gain = _gain(analysis, Change(host_cut=analysis.extent(analysis.rows(Kind.LOADER))))
    assert gain.mid == pytest.approx(1000 / 400, rel=0.05)
    limit = next_limit(analysis, gain)
    assert (limit.class_, limit.label) == ("framework", "Python code")


def test_without_loader_and_python_the_kernel_is_next() -> None:
    analysis = _loading()
    python = _named(analysis, "train.py")
    loader = Change(host_cut=analysis.extent(analysis.rows(Kind.LOADER)))
    gain = _gain(analysis, combined([loader, python]))
    limit = next_limit(analysis, gain)
    assert limit.class_ == "compute"
    assert limit.share > 0.8


def test_fixes_together_gain_more_than_each_and_overlap_counts_once() -> None:
    analysis = _loading()
    loader = Change(host_cut=analysis.extent(analysis.rows(Kind.LOADER)))
    think = _named(analysis, "think")
    one, other = _gain(analysis, loader), _gain(analysis, think)
    both = analysis.what_if.together([one, other])
    assert both.mid == pytest.approx(1000 / 300, rel=0.05)
    twice = analysis.what_if.together([one, one])
    assert twice.mid == pytest.approx(one.mid)
    assert twice.high == pytest.approx(one.high)


def test_parts_of_one_stretch_are_not_removed_twice() -> None:
    """Half of the loader, and a fifth of it and of all else: half of it goes, not seven tenths."""
    analysis = _loading()
    loader = analysis.extent(analysis.rows(Kind.LOADER))
    layers = combined(
        [Change(host_cut=loader, host_cut_factor=0.5), Change(host_cut=loader, host_cut_factor=0.2)]
    ).layers
    assert [part for _, part in layers] == [0.5]
    assert layers[0][0][0].tolist() == loader[0].tolist()


def test_the_shorter_time_of_an_event_counts_unless_it_stands_for_a_group() -> None:
    rows = np.array([3, 5], dtype=np.int64)
    quick = Change(durations=(rows, np.array([10, 20], dtype=np.int64)))
    slow = Change(durations=(rows, np.array([30, 5], dtype=np.int64)))
    both = combined([quick, slow]).durations
    assert both is not None
    assert both[1].tolist() == [10, 5]
    fused = Change(durations=(rows[:1], np.array([90], dtype=np.int64)), drop_calls=np.array([7]))
    both = combined([quick, fused]).durations
    assert both is not None
    assert sorted(zip(both[0].tolist(), both[1].tolist(), strict=True)) == [(3, 90), (5, 20)]


def test_findings_get_their_next_limit_and_the_first_ones_are_combined() -> None:
    analysis = _loading()
    changes = [_named(analysis, "think"), _named(analysis, "log")]
    gains = [_gain(analysis, change) for change in changes]
    findings = [
        Finding(f"XX{i}", "name", "framework", "high", 0.9, "text", gain=gain.stated())
        for i, gain in enumerate(gains)
    ]
    known = {id(f): g for f, g in zip(findings, gains, strict=True)}
    seen, together = with_outlook(analysis, findings, known)
    assert all(f.then is not None and f.then.class_ == "data_loading" for f in seen)
    (both,) = together
    assert both.codes == ("XX0", "XX1")
    assert both.gain.mid == pytest.approx(1000 / 820, rel=0.03)


def test_together_is_stated_no_finer_than_each_alone() -> None:
    """Each of two fixes is known to 20 % at best; both at once are not known better."""
    analysis = _loading()
    changes = [
        Change(host_cut=analysis.extent(analysis.rows(Kind.LOADER))),
        _named(analysis, "think"),
    ]
    gains = [_gain(analysis, change) for change in changes]
    findings = [
        Finding(f"XX{i}", "name", "framework", "high", 0.9, "text", gain=as_known(gain.stated()))
        for i, gain in enumerate(gains)
    ]
    known = {id(f): g for f, g in zip(findings, gains, strict=True)}
    _, (both,) = with_outlook(analysis, findings, known)
    assert both.gain.high >= max(f.gain.high for f in findings)
    assert both.gain.high / both.gain.low >= 1.4  # exp(2 x 0.2) = 1.49, low never below one alone


def test_work_from_before_the_only_step_is_no_idle_time_after_a_fix() -> None:
    """The host waits 500 us for the step before; its own 400 us of kernels become 200.

    After that the device computes 700 of 700 us: nobody waits for the host.
    """
    t = TraceBuilder()
    t.step(1_000, 600)
    t.kernel("ampere_sgemm_128x64_nn", 900, 600, launch_at=800)
    t.sync(1_010, 490)
    for i in range(4):
        t.kernel("ampere_sgemm_64x64_nn", 1_515 + i * 100, 100, launch_at=1_502 + i * 5)
    analysis = Analysis(t.read())
    rows = analysis.matching(lambda name: name == "ampere_sgemm_64x64_nn")
    gain = _gain(analysis, Change(durations=(rows, np.full(rows.size, 50_000, dtype=np.int64))))
    limit = next_limit(analysis, gain)
    assert limit.class_ == "compute"
    assert limit.share > 0.9


def test_a_gain_that_was_not_replayed_has_no_outlook() -> None:
    analysis = _loading()
    finding = Finding("XX1", "name", "framework", "high", 0.9, "text")
    seen, together = with_outlook(analysis, [finding], {id(finding): finding.gain})
    assert seen == (finding,)
    assert together == ()


def test_where_no_launch_was_recorded_nothing_says_what_a_gap_waits_for() -> None:
    t = TraceBuilder()
    for i in range(4):
        t.step(i * 1000.0, 1000)
        t.python("train.py(1): think", i * 1000.0, 600)
        t.kernel("gemm", i * 1000.0 + 700, 200)
    analysis = Analysis(t.read())
    limit = next_limit(analysis, _gain(analysis, _named(analysis, "train.py")))
    assert limit.share == 0.0  # whatever device work is left belongs to no step
