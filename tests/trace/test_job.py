"""Folders of ranks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kinetoscope.errors import FormatError, InputNotFoundError
from kinetoscope.testing import JobBuilder, TraceBuilder
from kinetoscope.trace.job import open_paths, rank_from_name


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("rank3.json", 3),
        ("rank-12.Apr_03_18_51_38.1102.pt.trace.json.gz", 12),
        ("x-rank-3.json", 3),
        ("cm_fsdp.slow.rank1.json.gz", 1),
        ("trace_3.json", 3),
        ("run_0.json.gz", 0),
        ("worker2.1623143089861.pt.trace.json.gz", 2),
        ("host_1234.1623143089861.pt.trace.json", None),
        ("trace.json", None),
    ],
)
def test_a67_rank_from_name(name: str, rank: int | None) -> None:
    assert rank_from_name(name) == rank


def test_a68_folder_with_other_files(tmp_path: Path) -> None:
    for name, start in (("rank1.json", 7), ("rank0.json", 5)):
        TraceBuilder().step(start, 100).write(tmp_path / name)
    (tmp_path / "config.json").write_text('{"lr": 0.1}')
    (tmp_path / "package.json").write_text('{"name": "x", "version": "1"}')
    (tmp_path / "empty.json").write_text("")
    (tmp_path / "notes.md").write_text("hi")
    text = TraceBuilder().step(9, 100).step(200, 100).to_json()
    (tmp_path / "rank2.json").write_text(text[:-60])
    job = open_paths([tmp_path])
    assert [(t.header.rank, t.events["ts_ns"][0]) for t in job.traces] == [
        (0, 5000),
        (1, 7000),
        (2, 9000),
    ]
    skipped = {Path(path).name: reason for path, reason in job.skipped}
    assert set(skipped) == {"config.json", "package.json", "empty.json", "notes.md"}
    assert "traceEvents" in skipped["config.json"]
    assert job.traces[2].damage[0].kind == "truncated"


def test_ranks_from_the_headers(tmp_path: Path) -> None:
    for rank, name in ((1, "a.json"), (0, "b.json.gz")):
        TraceBuilder(rank=rank, world_size=4).step(rank + 1, 5).write(tmp_path / name)
    job = open_paths([tmp_path / "a.json", tmp_path / "b.json.gz"])
    assert [t.header.rank for t in job.traces] == [0, 1]
    assert job.world_size == 4  # A70: two of four ranks


def test_recordings_of_one_rank_are_not_taken_for_two(tmp_path: Path) -> None:
    for start, name in ((9, "a.json"), (1, "b.json")):
        TraceBuilder(rank=0).step(start, 5).write(tmp_path / name)
    job = open_paths([tmp_path])
    assert [(t.header.rank, Path(t.path).name) for t in job.traces] == [(0, "a.json")]
    assert [Path(path).name for path, _ in job.skipped] == ["b.json"]


def test_one_file_keeps_that_it_has_no_rank(tmp_path: Path) -> None:
    path = TraceBuilder().step(1, 5).write(tmp_path / "trace_3.json")
    assert open_paths([path]).traces[0].header.rank is None


def test_files_that_name_no_rank_are_told_to_be_taken_as_ranks(tmp_path: Path) -> None:
    """`analyze before.json after.json` is a likely mistake."""
    for names, told in ((("before", "after"), True), (("rank0", "rank1"), False)):
        paths = [TraceBuilder().step(1, 5).write(tmp_path / f"{name}.json") for name in names]
        job = open_paths(paths)
        assert [t.header.rank for t in job.traces] == [0, 1]
        assert any("belong to `kinetoscope compare`" in note for note in job.notes) is told


def test_nothing_usable(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="no profiler trace"):
        open_paths([tmp_path])
    with pytest.raises(InputNotFoundError):
        open_paths([])
    with pytest.raises(InputNotFoundError):
        open_paths([tmp_path / "missing.json"])
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(FormatError):
        open_paths([tmp_path / "x.json"])


def test_progress(tmp_path: Path) -> None:
    path = TraceBuilder().step(1, 5).write(tmp_path / "t.json")
    seen: list[tuple[str, int, int]] = []
    open_paths([path], progress=lambda *values: seen.append(values))
    assert seen[-1][0] == str(path)
    assert 0 < seen[-1][1] <= seen[-1][2]


def test_packed_trace_with_any_suffix(tmp_path: Path) -> None:
    data = json.dumps(TraceBuilder().step(1, 5).to_dict()).encode()
    (tmp_path / "t.json").write_bytes(gzip.compress(data))
    assert len(open_paths([tmp_path]).traces) == 1


def test_job_builder() -> None:
    job = JobBuilder(2, world_size=3)
    for rank, trace in enumerate(job):
        trace.step(0, 1000).all_reduce(100, 200 + 300 * rank, launch_at=10)
    opened = job.open()
    assert [t.header.rank for t in opened.traces] == [0, 1]
    assert opened.world_size == 3
    assert len(job) == 2
    assert job.rank(1).pid == 1001
