"""The call paths of two sides laid over each other."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.result.difference import FlameDifference
from kinetoscope.result.view import Flame
from kinetoscope.testing import TraceBuilder
from kinetoscope.viewdata.difference import comparison_view, flame_difference
from kinetoscope.viewdata.flame import flame
from kinetoscope.viewdata.pack import unpack
from tests import recordings

Rows = dict[tuple[str, ...], tuple[int, ...]]


def _trace(*, load: int, line: int = 20, kernel: str = "gemm_kernel", stacks: bool = True) -> Flame:
    """Four steps of 1000 us: loading for `load` us, then one kernel of 200 us."""
    trace = TraceBuilder()
    for i in range(4):
        at = 1000 * i
        trace.step(at, 1000)
        if stacks:
            trace.python(f"/home/a/train.py({line}): step", at + 1, 990)
            trace.python("/home/a/data.py(7): fetch", at + 10, load)
        trace.op("aten::mm", at + 600, 300)
        trace.kernel(kernel, at + 650, 200, launch_at=at + 620)
    return _flame(trace)


def _flame(trace: TraceBuilder) -> Flame:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        found = flame(recordings.examined(trace, Path(folder)).lead)
    assert found is not None
    return found


def _rows(difference: FlameDifference) -> Rows:
    """Path of names -> own host and device time before and after, us."""
    path: list[str] = []
    rows: Rows = {}
    columns = [
        unpack(column).tolist()
        for column in (
            difference.before_host_ns,
            difference.after_host_ns,
            difference.before_device_ns,
            difference.after_device_ns,
        )
    ]
    names, depths = unpack(difference.name).tolist(), unpack(difference.depth).tolist()
    for i, (name, depth) in enumerate(zip(names, depths, strict=True)):
        path[depth:] = [difference.names[name].text]
        rows[tuple(path)] = tuple(round(column[i] / 1000) for column in columns)
    return rows


def test_the_same_frame_at_another_line_is_the_same_frame() -> None:
    rows = _rows(flame_difference([_trace(load=400)], [_trace(load=100, line=25)]))
    steps = [path for path in rows if path[-1].endswith(": step")]
    assert [path[-1] for path in steps] == ["/home/a/train.py(25): step"], "as it is called now"
    fetch = next(row for path, row in rows.items() if path[-1].endswith(": fetch"))
    assert fetch[:2] == (400, 100)
    kernel = next(row for path, row in rows.items() if path[-1] == "gemm_kernel")
    assert kernel == (0, 0, 200, 200)


def test_what_one_side_has_alone_stays_in_the_tree() -> None:
    rows = _rows(flame_difference([_trace(load=100)], [_trace(load=100, kernel="other_kernel")]))
    kernels = {path[-1]: row for path, row in rows.items() if path[-1].endswith("kernel")}
    assert kernels == {"gemm_kernel": (0, 0, 200, 0), "other_kernel": (0, 0, 0, 200)}


def test_levels_that_one_side_did_not_record_are_left_out_on_both() -> None:
    found = flame_difference([_trace(load=400)], [_trace(load=400, stacks=False)])
    rows = _rows(found)
    assert not [path for path in rows if path[-1].startswith("/home")]
    assert found.notes == (
        "Python frames were not recorded after, so they are left out on both sides.",
    )
    assert sum(row[0] for row in rows.values()) == 990, "their time counts for the caller"


def test_several_runs_are_averaged() -> None:
    rows = _rows(flame_difference([_trace(load=400), _trace(load=200)], [_trace(load=100)]))
    fetch = next(row for path, row in rows.items() if path[-1].endswith(": fetch"))
    assert fetch[:2] == (300, 100)


def test_a_saved_result_has_no_call_paths() -> None:
    view = comparison_view([None], [_trace(load=100)])
    assert view.flame is None
    assert "side before" in view.flame_missing
