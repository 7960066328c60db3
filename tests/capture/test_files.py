"""Traces are compressed in the background and get their facts as a second gzip member."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from kinetoscope.capture.files import Packer
from kinetoscope.engine import diagnose_job
from kinetoscope.trace.captured import Sidecar, sidecar_of
from kinetoscope.trace.job import Job
from kinetoscope.trace.readers import read

EVENT = {"ph": "X", "cat": "cpu_op", "name": "aten::add", "pid": 1, "tid": 1, "ts": 5.0, "dur": 2.0}


def _plain(folder: Path, **extra: object) -> Path:
    path = folder / "full.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [EVENT], **extra}, indent=1))
    return path


def test_the_facts_stand_at_the_end_of_the_same_object(tmp_path: Path) -> None:
    plain = _plain(tmp_path, traceName="x")
    packed = Packer(plain).finish({"version": 1, "problems": ["a"]})
    document = json.loads(gzip.decompress(packed.read_bytes()))
    assert document["traceEvents"] == [EVENT]
    assert document["kinetoscope"] == {"version": 1, "problems": ["a"]}
    assert not plain.exists()


def test_bytes_that_are_no_text_survive(tmp_path: Path) -> None:
    plain = tmp_path / "full.json"
    plain.write_bytes(b'{"traceEvents": [{"name": "\xff\xfe"}]\n}\n')
    packed = Packer(plain).finish({})
    assert b"\xff\xfe" in gzip.decompress(packed.read_bytes())


def test_the_reader_finds_the_sidecar_whatever_its_size(tmp_path: Path) -> None:
    lines = {"calls": {"at": list(range(5000)), "line": [1] * 5000}}
    packed = Packer(_plain(tmp_path)).finish({"version": 1, "lines": lines})
    trace = read(packed)
    assert trace.sidecar is not None
    assert len(trace.sidecar.lines.calls.at) == 5000


def test_the_version_of_torch_is_known(tmp_path: Path) -> None:
    facts = {"version": 1, "facts": {"machine": {"torch": "2.13.0+cpu"}}}
    trace = read(Packer(_plain(tmp_path)).finish(facts))
    assert trace.torch == "2.13.0+cpu"
    assert diagnose_job(Job((trace,)), ()).inputs[0].torch == "2.13.0+cpu"


def test_a_full_disk_leaves_the_plain_trace(tmp_path: Path) -> None:
    plain = _plain(tmp_path)
    (tmp_path / "full.json.gz").mkdir()
    packer = Packer(plain)
    with pytest.raises(OSError, match="directory"):
        packer.finish({})
    assert plain.exists()


@pytest.mark.parametrize(
    "value", [None, 7, [], {}, {"version": 2}, {"version": 1, "baseline": {"steps": "x"}}]
)
def test_a_sidecar_of_another_shape_counts_as_none(value: object) -> None:
    assert sidecar_of({"kinetoscope": value}) is None


def test_an_empty_sidecar_is_fine() -> None:
    assert sidecar_of({"kinetoscope": {"version": 1, "baseline": {}}}) == Sidecar(version=1)
