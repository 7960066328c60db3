"""What the builder writes is what the reader sees."""

from __future__ import annotations

import json
from pathlib import Path

from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.kinds import CopyKind, Kind
from tests.trace.support import rows


def test_host_events() -> None:
    trace = (
        TraceBuilder()
        .step(0, 100.5)
        .python("train.py(10): main", 0, 100)
        .module("Linear_3", 5, 20)
        .op("aten::mm", 6, 10, dims=[[2, 3], [3, 4]], seq=7)
        .backward("MmBackward0", 40, 5, seq=7)
        .loader(60, 10)
        .annotation("Optimizer.step#SGD.step", 80, 5)
        .sync(90, 2)
        .gc(95, 1)
        .overhead("Activity Buffer Request", 97, 1)
        .read()
    )
    kinds = [Kind(k) for k in trace.events["kind"]]
    assert kinds == [
        Kind.STEP,
        Kind.PYTHON,
        Kind.MODULE,
        Kind.CPU_OP,
        Kind.CPU_OP,
        Kind.CPU_OP,
        Kind.LOADER,
        Kind.ANNOTATION,
        Kind.SYNC_CALL,
        Kind.GC,
        Kind.OVERHEAD,
    ]
    assert trace.events["dur_ns"][0] == 100_500
    assert rows(trace, "dims", "types", "strides")[3] == (
        "[[2, 3], [3, 4]]",
        '["float", "float"]',
        "[[3, 1], [4, 1]]",
    )
    assert trace.events["seq"].to_list()[3:6] == [7, 7, 7]
    assert rows(trace, "py_id", "py_parent")[1:3] == [(1, -1), (2, 1)]


def test_device_events_share_ids_with_their_launch() -> None:
    trace = (
        TraceBuilder(device_index=1)
        .op("aten::other", 1, 2)
        .kernel("gemm", 50, 30, launch_at=20, op="aten::mm", dims=[[2, 2]], stream=9)
        .copy("HtoD Pinned", 4096, 90, 5, launch_at=30)
        .memset(64, 100, 1)
        .device_annotation("forward", 49, 40)
        .read()
    )
    table = rows(trace, "kind", "ext_id", "corr", "device", "stream", "bytes")
    assert table == [
        (Kind.CPU_OP, 1, -1, -1, -1, -1),
        (Kind.CPU_OP, 2, -1, -1, -1, -1),
        (Kind.LAUNCH, 2, 1, -1, -1, -1),
        (Kind.COPY_CALL, 0, 2, -1, -1, -1),
        (Kind.DEVICE_ANNOTATION, 2, -1, 1, 7, -1),
        (Kind.KERNEL, 2, 1, 1, 9, -1),
        (Kind.COPY, 0, 2, 1, 7, 4096),
        (Kind.MEMSET, 0, 3, 1, 7, 64),
    ]
    assert trace.events["copy_kind"][6] == CopyKind.H2D_PINNED
    assert rows(trace, "launch")[5] == ("[[132, 1, 1], [256, 1, 1], 1.0, 32, 0, 50]",)


def test_collective() -> None:
    trace = TraceBuilder().all_reduce(100, 50, launch_at=10, elements=8, sequence=4).read()
    assert [Kind(k) for k in trace.events["kind"]] == [
        Kind.HOST_COLLECTIVE,
        Kind.HOST_COLLECTIVE,
        Kind.LAUNCH,
        Kind.COLLECTIVE,
    ]
    extra = json.loads(rows(trace, "extra")[3][0])
    assert extra["In msg nelems"] == 8
    assert extra["Seq"] == 4


def test_graph_launch_with_several_kernels() -> None:
    builder = TraceBuilder().runtime("cudaGraphLaunch", 5, 10, corr=40)
    for i in range(3):
        builder.kernel(f"k{i}", 20 + 5 * i, 4, corr=40)
    assert builder.read().events["corr"].to_list() == [40] * 4


def test_memory() -> None:
    trace = TraceBuilder().step(0, 9).memory(512, 1024, 3, reserved=2048).memory(-512, 0, 4).read()
    assert trace.memory["bytes"].to_list() == [512, -512]
    assert trace.memory["reserved"].to_list() == [2048, 0]


def test_header_and_files(tmp_path: Path) -> None:
    builder = TraceBuilder(device=None, rank=2, world_size=4).step(0, 5)
    builder.header(with_stack=None, traceName="x")
    trace = builder.read()
    assert trace.header.devices == ()
    assert (trace.header.rank, trace.header.world_size) == (2, 4)
    assert trace.header.with_stack is False
    assert trace.header.metadata["traceName"] == "x"
    packed = builder.write(tmp_path / "t.json.gz").read_bytes()
    assert packed[:2] == b"\x1f\x8b"


def test_times_keep_their_nanoseconds() -> None:
    trace = TraceBuilder().step(0.001, 12345.678).read()
    assert rows(trace, "ts_ns", "dur_ns") == [(1, 12_345_678)]
