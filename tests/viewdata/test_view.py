"""What a page gets to show, from recordings written by hand."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from kinetoscope import viewdata
from kinetoscope.engine import examine
from kinetoscope.result.view import BOX_KINDS, Lane, Table, View
from kinetoscope.testing import TraceBuilder
from kinetoscope.viewdata.pack import unpack
from tests import recordings, results


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> View:
    found = recordings.examined(recordings.training(), tmp_path_factory.mktemp("trace"))
    return viewdata.build(found.lead, found.ranks, found.diagnosis.findings)


def _table(view: View, name: str) -> Table:
    return next(table for table in view.tables if table.id == name)


def _lane(view: View, kind: str) -> Lane:
    assert view.timeline is not None
    return next(lane for lane in view.timeline.lanes if lane.kind == kind)


def test_a_view_is_plain_data(view: View) -> None:
    data = msgspec.json.encode(view)
    assert msgspec.json.decode(data, type=View) == view


def test_lanes_hold_the_time_of_their_events(view: View) -> None:
    device = _lane(view, "device")
    assert device.events == 12
    assert device.total_ns == 4 * (200 + 40 + 10) * 1000
    length, slack = unpack(device.length), unpack(device.slack)
    assert int((length - slack).sum()) == device.total_ns


def test_boxes_of_all_kinds_have_a_word(view: View) -> None:
    assert view.timeline is not None
    assert {name.kind for name in view.timeline.names} <= set(BOX_KINDS)
    assert {"user", "module", "op", "loader", "launch", "gemm", "copy"} <= {
        name.kind for name in view.timeline.names
    }


def test_device_boxes_lead_to_their_launch(view: View) -> None:
    assert view.timeline is not None
    starts, names = [], []
    for lane in view.timeline.lanes:
        starts += unpack(lane.start).tolist()
        names += unpack(lane.name).tolist()
    device = _lane(view, "device")
    assert device.link is not None
    for link, start in zip(unpack(device.link), unpack(device.start), strict=True):
        assert view.timeline.names[names[link]].kind in ("launch", "copy_call")
        assert starts[link] < start


def test_idle_time_has_reasons(view: View) -> None:
    assert view.timeline is not None
    idle = _lane(view, "idle")
    words = {view.timeline.names[i].text for i in unpack(idle.name)}
    assert "waiting for the DataLoader" in words


def test_a_small_page_joins_boxes_and_says_so(tmp_path: Path) -> None:
    found = recordings.examined(recordings.training(steps=40), tmp_path)
    view = viewdata.build(found.lead, found.ranks, (), most_boxes=200)
    full = viewdata.build(found.lead, found.ranks, ())
    assert view.timeline is not None
    assert full.timeline is not None
    assert view.timeline.merged_below_ns > 0
    assert view.timeline.merged_events > view.timeline.merged_boxes > 0
    for small, large in zip(view.timeline.lanes, full.timeline.lanes, strict=True):
        assert (small.events, small.total_ns) == (large.events, large.total_ns)


def test_the_flame_graph_holds_work_and_idle_time(view: View) -> None:
    assert view.flame is not None
    host, device = unpack(view.flame.host_ns), unpack(view.flame.device_ns)
    names = [view.flame.names[i] for i in unpack(view.flame.name)]
    by_kind = dict.fromkeys(BOX_KINDS, 0)
    for name, ns in zip(names, device, strict=True):
        by_kind[name.kind] += int(ns)
    assert by_kind["gemm"] == view.flame.steps * 200_000
    assert by_kind["idle_data_loading"] > 0
    assert host.sum() > 0
    depth = unpack(view.flame.depth)
    assert depth[0] == 0
    assert np.all(np.diff(depth) <= 1)


def test_modules_are_a_tree_with_the_device_time_of_their_parts(view: View) -> None:
    table = _table(view, "modules")
    assert [row[0] for row in table.rows] == ["Net_0", "Linear_0"]
    assert table.levels == (0, 1)
    assert [row[3] for row in table.rows] == [200_000, 200_000]
    assert [row[4] for row in table.rows] == [0, 200_000]


def test_tables_count_by_step(view: View) -> None:
    addmm = next(row for row in _table(view, "operators").rows if row[0] == "aten::addmm")
    assert addmm[1] == 1.0
    assert addmm[4] == 200_000
    kernel = _table(view, "kernels").rows[0]
    assert kernel[:3] == ("ampere_sgemm_128x64_tn", 1.0, 200_000)
    assert kernel[-2:] == ("gemm", "aten::addmm")
    directions = {row[0] for row in _table(view, "copies").rows}
    assert directions == {"host (pageable) to device", "device to host (pageable)"}
    assert _table(view, "syncs").rows[0][2] == "aten::item"


def test_operators_come_by_their_own_time_on_the_host(view: View) -> None:
    table = _table(view, "operators")
    own = [column.title for column in table.columns].index("host own")
    times = [row[own] for row in table.rows]
    assert times == sorted(times, key=lambda ns: -float(ns or 0))
    assert len(set(times)) > 1


def test_every_column_says_what_it_means(view: View) -> None:
    for table in view.tables:
        assert table.rows or table.missing
        for column in table.columns:
            assert column.meaning.endswith(".")
        for row in table.rows:
            assert len(row) == len(table.columns)


def test_memory_names_its_holders(view: View) -> None:
    curve = view.memory[0]
    assert curve.peak_bytes == 5 << 20
    assert curve.unknown_bytes == 1 << 20
    modules = [holder for holder in curve.holders if holder.by == "module"]
    assert [(h.name, h.bytes) for h in modules] == [("nn.Module: Linear_0", 4 << 20)]


def test_the_roofline_uses_shapes(view: View) -> None:
    assert view.roofline is not None
    point = view.roofline.points[0]
    assert point.flop_per_s == pytest.approx(2 * 64 * 512 * 512 / 200e-6, rel=0.01)
    assert view.roofline.roofs


def test_what_is_missing_says_what_to_record(tmp_path: Path) -> None:
    trace = TraceBuilder(device=None)
    for i in range(4):
        trace.step(1000 * i, 1000).op("aten::mm", 1000 * i + 10, 900)
    found = recordings.examined(trace, tmp_path)
    view = viewdata.build(found.lead, found.ranks, ())
    assert "profile_memory=True" in view.memory_missing
    assert "ProfilerActivity.CUDA" in _table(view, "kernels").missing
    assert "with_stack=True" in _table(view, "modules").missing
    assert view.roofline is not None
    assert view.roofline.missing
    assert view.queue is None
    assert view.comm is not None
    assert view.comm.missing


def test_a_late_rank_is_named(tmp_path: Path) -> None:
    found = examine(recordings.job().write(tmp_path / "job"))
    view = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    assert view.comm is not None
    assert view.comm.straggler == 1
    waits = {row.rank: row.waiting_ns for row in view.comm.rows}
    caused = {row.rank: row.caused_ns for row in view.comm.rows}
    assert waits[0] == caused[1] > 0
    assert waits[1] == caused[0] == 0
    assert view.timeline is not None
    assert {lane.rank for lane in view.timeline.lanes} == {0, 1}


def test_waiting_is_as_recorded_with_what_stacks_cost_the_late_rank(tmp_path: Path) -> None:
    def sentence(stacks: bool) -> str:
        job = recordings.job()
        if stacks:
            job.rank(1).python("train.py(3): step", 0, 4000)
        found = examine(job.write(tmp_path / str(stacks)))
        comm = viewdata.build(found.lead, found.ranks, found.diagnosis.findings).comm
        assert comm is not None
        return comm.sentence

    assert sentence(stacks=False).endswith("on average, as recorded.")
    assert sentence(stacks=True).endswith("including what the profiler cost rank 1.")


def test_an_empty_window_breaks_nothing(tmp_path: Path) -> None:
    found = recordings.examined(TraceBuilder().op("aten::mm", 0, 1), tmp_path)
    view = viewdata.build(found.lead, found.ranks, ())
    assert view.timeline is not None
    assert view.timeline.end_ns >= 1


def test_findings_lead_to_the_timeline(tmp_path: Path) -> None:
    found = recordings.examined(recordings.training(), tmp_path)
    findings = found.diagnosis.findings
    view = viewdata.build(found.lead, found.ranks, findings)
    placed = [i for i, finding in enumerate(findings) if any(at.file for at in finding.locations)]
    assert placed
    assert {focus.finding for focus in view.focus} >= set(placed)
    for focus in view.focus:
        assert focus.end_ns > focus.start_ns
        assert focus.path or focus.finding not in placed


def test_a_finding_without_a_place_leads_to_idle_time_of_its_class(tmp_path: Path) -> None:
    found = recordings.examined(recordings.training(), tmp_path)
    bare = msgspec.structs.replace(results.LOADER, locations=())
    (focus,) = viewdata.build(found.lead, found.ranks, (bare,)).focus
    assert focus.search == "waiting for the DataLoader"
    assert focus.end_ns - focus.start_ns > 200_000


def test_what_was_not_recorded_has_no_column(tmp_path: Path) -> None:
    """Without device activity nothing is known of the device; a 0 would be a claim."""
    t = TraceBuilder()
    for at in (0, 1000, 2000):
        t.step(at, 1000)
        t.module("Linear_0", at + 10, 500).op("aten::mm", at + 20, 400)
    found = recordings.examined(t, tmp_path)
    page = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    titles = [column.title for column in _table(page, "operators").columns]
    assert titles == ["operator", "calls", "host own", "host all", "share"]
    assert _table(page, "operators").rows == (("aten::mm", 1.0, 400_000, 400_000, 1.0),)
    titles = [column.title for column in _table(page, "modules").columns]
    assert titles == ["module", "calls", "host", "share"]


def test_what_started_the_program_is_not_shown(tmp_path: Path) -> None:
    """Under `kinetoscope run` a dozen frames of ours stand above the program's first one."""
    t = TraceBuilder()
    for name in ("__main__.py(8): <module>", "kinetoscope/capture/program.py(39): run"):
        t.python(name, 0, 3_000)
    t.python("train.py(1): <module>", 1, 2_990)
    for at in (0, 1000, 2000):
        t.step(at, 1000)
        t.op("aten::mm", at + 20, 400)
    found = recordings.examined(t, tmp_path)
    page = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    lane = _lane(page, "host")
    assert page.timeline is not None
    assert page.flame is not None
    assert len(lane.rows) == 2, "the program's first frame and its operators, from the top"
    drawn = {page.timeline.names[i].text for i in unpack(lane.name).tolist()}
    assert drawn == {"train.py(1): <module>", "aten::mm"}
    depth, name = unpack(page.flame.depth).tolist(), unpack(page.flame.name).tolist()
    stack = [(d, page.flame.names[n].text) for d, n in zip(depth, name, strict=True)]
    assert stack == [(0, "main thread"), (1, "train.py(1): <module>"), (2, "aten::mm")]


def test_the_threads_of_the_capture_are_not_shown(tmp_path: Path) -> None:
    t = TraceBuilder()
    for at in (0, 1000, 2000):
        t.step(at, 1000)
        t.op("aten::mm", at + 20, 400)
    t.python("threading.py(1002): _bootstrap", 0, 2_990, tid=77)
    t.python("kinetoscope/capture/watcher.py(60): _work", 1, 2_980, tid=77)
    t.python("train.py(9): beside", 0, 2_990, tid=78)
    found = recordings.examined(t, tmp_path)
    page = viewdata.build(found.lead, found.ranks, found.diagnosis.findings)
    assert page.timeline is not None
    assert page.flame is not None
    assert "thread 77" not in {lane.label for lane in page.timeline.lanes}
    assert len([lane for lane in page.timeline.lanes if lane.kind == "host"]) == 2
    # 3 ms of the steps' thread and 2.99 ms of the other one, nothing of ours.
    assert int(unpack(page.flame.host_ns).sum()) <= 6_000_000
