"""A file that holds several ranks."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from kinetoscope.engine import diagnose
from kinetoscope.metrics.comm import collectives
from kinetoscope.metrics.ranks import match_ranks
from kinetoscope.testing import JobBuilder, TraceBuilder
from kinetoscope.trace.job import open_paths
from kinetoscope.trace.merged import split_ranks


def _merged(path: Path, *, same_device: bool = False, orphans: bool = False) -> Path:
    """Two ranks that leave two all-reduces at 900 and 1900 us; rank 1 comes 200 us later."""
    job = JobBuilder(2)
    for rank, t in enumerate(job):
        t.device_index = 0 if same_device else rank
        for step in range(2):
            at = 1000 * step
            t.step(at, 1000)
            t.kernel("gemm", at + 100, 300 + 200 * rank, launch_at=at + 10)
            t.all_reduce(at + 405 + 200 * rank, 495 - 200 * rank, launch_at=at + 20)
        if orphans:
            t.kernel("gemm", 2, 50)
    texts = [t.to_dict() for t in job]
    texts[0]["traceEvents"] += texts[1]["traceEvents"]
    path.write_text(json.dumps(texts[0]))
    return path


def test_the_ranks_of_a_merged_file_are_told_apart(tmp_path: Path) -> None:
    path = _merged(tmp_path / "all.json", orphans=True)
    job = open_paths([path])
    assert [t.header.rank for t in job.traces] == [0, 1]
    # 7 events a step; the kernel without a launch goes with its lane.
    assert [len(t) for t in job.traces] == [15, 15]
    assert job.notes == (f"{path}: 2 processes launch work, taken for as many ranks.",)
    found = match_ranks([collectives(t) for t in job.traces])
    assert found.count == 2
    assert found.waiting.tolist() == [[200_000, 200_000], [0, 0]]
    assert np.unique(found.last).tolist() == [1]


def test_ranks_that_cannot_be_told_apart_stay_together(tmp_path: Path) -> None:
    # One device number, the same ids at the same time: nothing is left to go by.
    job = open_paths([_merged(tmp_path / "all.json", same_device=True)])
    assert len(job.traces) == 1
    assert job.notes[0].endswith("cannot be told; give one file a rank.")


def test_a_file_of_one_rank_stays_as_it_is() -> None:
    trace = TraceBuilder().step(0, 100).kernel("gemm", 10, 20, launch_at=5).read()
    assert split_ranks(trace) == ((trace,), "")


def test_the_diagnosis_says_what_was_done(tmp_path: Path) -> None:
    result = diagnose(_merged(tmp_path / "all.json"))
    assert [i.rank for i in result.inputs] == [0, 1]
    assert any("taken for as many ranks" in note for note in result.notes)
