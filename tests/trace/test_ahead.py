"""Small files read by several processes: the same traces, and the same complaints."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinetoscope.testing import JobBuilder
from kinetoscope.trace.job import open_paths
from kinetoscope.trace.readers import _ahead, read


def _folder(path: Path) -> Path:
    job = JobBuilder(4)
    for rank, t in enumerate(job):
        t.step(0, 100 + rank).kernel(f"gemm{rank}", 10, 20, launch_at=5)
    job.write(path)
    (path / "broken.json").write_text("no trace at all")
    return path


def test_a_folder_reads_the_same_in_several_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = _folder(tmp_path)
    alone = open_paths([folder])
    monkeypatch.setattr(_ahead, "_WORTHWHILE", 100)
    monkeypatch.setattr(_ahead, "cores", lambda: 2)
    files = sorted(folder.glob("rank*.json"))
    assert len(_ahead.read_ahead(files, read)) == 4
    together = open_paths([folder])
    assert together.skipped == alone.skipped
    assert [t.path for t in together.traces] == [t.path for t in alone.traces]
    for a, b in zip(alone.traces, together.traces, strict=True):
        assert a.events.equals(b.events)
        assert (a.names, a.texts, a.threads, a.header) == (b.names, b.texts, b.threads, b.header)


def test_little_to_read_starts_no_process(tmp_path: Path) -> None:
    files = sorted(_folder(tmp_path).glob("rank*.json"))
    assert _ahead.read_ahead(files, read) == {}
