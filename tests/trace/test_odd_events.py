"""Odd inputs A23 to A97 that concern single files: times, lanes, ids, categories, memory."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.trace.kinds import CopyKind, Kind
from tests.trace.support import damage, event, kernel, lossy, rows


def test_a24_kernels_at_zero(read_bytes: Any) -> None:
    events = [kernel(ts=0, dur=0) for _ in range(3)] + [kernel(ts=500, dur=2)]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "ts_ns") == [(500_000,)]
    assert damage(trace) == {"zero_time_device": 3}
    assert lossy(trace) == {"zero_time_device"}


def test_a24_thread_ids_as_text_and_number_are_one(read_bytes: Any) -> None:
    events = [
        event(tid="3239786240", ts=1),
        event(tid=3239786240, ts=2),
        kernel(tid="stream 7", ts=3, args={"correlation": 5}),
    ]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "thread", "stream") == [(0, -1), (0, -1), (1, 7)]


def test_a26_a27_negative_durations(read_bytes: Any) -> None:
    events = [kernel(ts=5, dur=-1_700_000_000_000), kernel(ts=7, dur=-1), kernel(ts=9, dur=3)]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "ts_ns", "dur_ns") == [(9000, 3000)]
    assert damage(trace) == {"negative_duration": 2}
    assert lossy(trace) == {"negative_duration"}


def test_a30_kernels_long_before_the_step_stay(read_bytes: Any) -> None:
    events = [kernel(ts=1, dur=1), event("ProfilerStep#3", cat="user_annotation", ts=45e6)]
    assert len(read_bytes({"traceEvents": events})) == 2


def test_a33_a65_housekeeping(read_bytes: Any) -> None:
    marks = [
        event("PyTorch Profiler (0)", cat="Trace", pid="Spans", tid="PyTorch Profiler", ts=1),
        {"ph": "i", "name": "Iteration Start: PyTorch Profiler", "pid": "Traces", "ts": 1},
        event("whatever", cat=None, pid="Traces", tid="Trace PyTorch Profiler", ts=1),
        event("PyTorch Profiler (0)", cat="Trace", pid=7, tid=7, ts=1),
    ]
    trace = read_bytes({"traceEvents": [event(), *marks]})
    assert len(trace) == 1
    assert [t.pid for t in trace.threads] == ["1"]


def test_a35_marker_on_a_stream_is_no_kernel(read_bytes: Any) -> None:
    trace = read_bytes({"traceEvents": [kernel("Marker", ts=1), kernel("gemm", ts=2)]})
    assert rows(trace, "kind") == [(Kind.DEVICE_OTHER,), (Kind.KERNEL,)]


def test_a38_synchronisation_lane(read_bytes: Any) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 0, "tid": 1000007, "ts": 3}
    args = {"cuda_sync_kind": "Stream Sync", "stream": 7, "device": 0, "correlation": 4}
    sync = event("Stream Sync", cat="cuda_sync", pid=0, tid=1000007, args=args)
    by_tid = event("Stream Sync", cat="cuda_sync", pid=0, tid=1000007, ts=20)
    named = {**name, "args": {"name": "stream 7 (sync)"}}
    trace = read_bytes({"traceEvents": [kernel(ts=1), sync, by_tid, named]})
    assert rows(trace, "kind", "stream") == [
        (Kind.KERNEL, 7),
        (Kind.DEVICE_SYNC, 7),
        (Kind.DEVICE_SYNC, 7),
    ]
    assert '"cuda_sync_kind": "Stream Sync"' in rows(trace, "extra")[1][0]


@pytest.mark.parametrize("stream", [-1, 4294967295])
def test_sync_of_all_streams(read_bytes: Any, stream: int) -> None:
    args = {"stream": stream, "device": 0}
    sync = event("Context Sync", cat="cuda_sync", pid=0, tid=stream, args=args)
    assert rows(read_bytes([sync]), "device", "stream") == [(0, -1)]


def test_a41_order(read_bytes: Any) -> None:
    events = [
        event("late", ts=30, dur=1),
        event("child", ts=10, dur=2),
        event("parent", ts=10, dur=9),
        event("twin", ts=10, dur=2),
        event("early", ts=5, dur=1),
    ]
    trace = read_bytes({"traceEvents": events})
    names = [name for (name,) in rows(trace, "name")]
    assert names == ["early", "parent", "child", "twin", "late"]


def test_a46_driver_launches_and_stream_of_host_events(read_bytes: Any) -> None:
    events = [
        event("cuLaunchKernel", cat="cuda_driver", ts=1, args={"correlation": 1}),
        event("cuLaunchKernelEx", cat="cuda_driver", ts=2, args={"correlation": 2}),
        event("triton_poi_fused_add_0", ts=3, args={"stream": 0, "kernel_file": "/home/a.py"}),
    ]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "kind", "device", "stream", "corr") == [
        (Kind.LAUNCH, -1, -1, 1),
        (Kind.LAUNCH, -1, -1, 2),
        (Kind.CPU_OP, -1, -1, -1),
    ]
    assert '"kernel_file": "/home/a.py"' in rows(trace, "extra")[2][0]


@pytest.mark.parametrize("corr", [0, -3])
def test_a47_no_correlation(read_bytes: Any, corr: int) -> None:
    assert read_bytes([kernel(corr=corr)]).events["corr"].to_list() == [-1]


def test_a49_separate_id_spaces(read_bytes: Any) -> None:
    events = [
        event(ts=1, args={"External id": 23}),
        event("cudaLaunchKernel", cat="cuda_runtime", ts=2, args={"correlation": 23}),
    ]
    assert rows(read_bytes(events), "ext_id", "corr") == [(23, -1), (-1, 23)]


def test_a53_record_function_id_is_no_key(read_bytes: Any) -> None:
    events = [event(ts=1, args={"Record function id": 0}), event(ts=2, args={})]
    assert len(read_bytes(events)) == 2


def test_a61_hip_and_stream_zero(read_bytes: Any) -> None:
    events = [
        event("hipLaunchKernel", cat="cuda_runtime", ts=1, args={"correlation": 1}),
        event("hipExtModuleLaunchKernel", cat="cuda_runtime", ts=2),
        event("hipMemcpyWithStream", cat="cuda_runtime", ts=3, args={"bytes": "64", "src": "0x1"}),
        kernel(stream=0, ts=4),
    ]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "kind", "bytes") == [
        (Kind.LAUNCH, -1),
        (Kind.LAUNCH, -1),
        (Kind.COPY_CALL, 64),
        (Kind.KERNEL, -1),
    ]
    assert trace.events["stream"].to_list() == [-1, -1, -1, 0]
    assert trace.header.vendor == "amd"


def test_a62_xpu_without_kernels(read_bytes: Any) -> None:
    events = [
        event("zeCommandListAppendLaunchKernel", cat="xpu_runtime", ts=1),
        event("urEnqueueKernelLaunchWithArgsExp", cat="xpu_runtime", ts=2),
    ]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "kind") == [(Kind.LAUNCH,), (Kind.LAUNCH,)]
    assert trace.header.vendor == "intel"


def test_a63_old_categories(read_bytes: Any) -> None:
    events = [
        event("ProfilerStep#1", cat="Operator", ts=1),
        event("aten::add", cat="Operator", ts=2, args={"external id": 9}),
        event("Optimizer.step#SGD.step", cat="Operator", ts=3),
        event("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", cat="Operator", ts=4),
        event("cudaMemcpyAsync", cat="Runtime", ts=5),
        kernel(cat="Kernel", ts=6),
        kernel("Memcpy HtoD (Pageable -> Device)", cat="Memcpy", ts=7),
        kernel("Memset (Device)", cat="Memset", ts=8),
        event("mine", cat="User", ts=9),
    ]
    trace = read_bytes({"traceEvents": events})
    assert [Kind(k) for k in trace.events["kind"]] == [
        Kind.STEP,
        Kind.CPU_OP,
        Kind.ANNOTATION,
        Kind.LOADER,
        Kind.COPY_CALL,
        Kind.KERNEL,
        Kind.COPY,
        Kind.MEMSET,
        Kind.ANNOTATION,
    ]
    assert trace.events["copy_kind"][6] == CopyKind.H2D_PAGEABLE
    assert trace.events["ext_id"][1] == 9


def test_a63_a74_unknown_category_by_lane(read_bytes: Any) -> None:
    events = [
        kernel(ts=1),
        event("new thing", cat="shiny", pid=0, tid=7, ts=2),
        event("new thing", cat="shiny", ts=3),
    ]
    trace = read_bytes({"traceEvents": events})
    assert rows(trace, "kind", "device") == [
        (Kind.KERNEL, 0),
        (Kind.DEVICE_OTHER, 0),
        (Kind.OTHER, -1),
    ]


def test_a64_ascend(read_bytes: Any) -> None:
    meta = {"ph": "M", "name": "process_name"}
    base = "1700000000123456"
    events = [
        {**meta, "pid": 10, "args": {"name": "Ascend Hardware"}},
        {**meta, "pid": 11, "args": {"name": "Python"}},
        {**meta, "pid": 12, "args": {"name": "CANN"}},
        event("MatMulV2", cat=None, pid=10, tid=3, ts=f"{base}.120", dur=1.24),
        event("aclnnAdd", cat=None, pid=10, tid=3, ts=f"{base}.080", dur=0.04),
        event("aten::mm", cat=None, pid=11, tid=4, ts=f"{base}.010", dur=0.5),
        event("aclrtSynchronizeStream", cat=None, pid=12, tid=5, ts=f"{base}.020", dur=1),
        {"ph": "s", "cat": "async_npu", "id": 2**60 + 1, "pid": 11, "tid": 4, "ts": f"{base}.010"},
    ]
    trace = read_bytes(events)
    start = trace.header.base_time_ns
    assert [(n, start + t) for n, t in rows(trace, "name", "ts_ns")] == [
        ("aten::mm", 1_700_000_000_123_456_010),
        ("aclrtSynchronizeStream", 1_700_000_000_123_456_020),
        ("aclnnAdd", 1_700_000_000_123_456_080),
        ("MatMulV2", 1_700_000_000_123_456_120),
    ]
    assert rows(trace, "kind", "device", "stream") == [
        (Kind.CPU_OP, -1, -1),
        (Kind.SYNC_CALL, -1, -1),
        (Kind.KERNEL, 10, 3),
        (Kind.KERNEL, 10, 3),
    ]


def test_a66_thread_ids_beyond_32_bit(read_bytes: Any) -> None:
    events = [event(tid=0x7F8A_0000_0001, ts=1), event(tid=0x7F8B_0000_0001, ts=2)]
    trace = read_bytes(events)
    assert [t.tid for t in trace.threads] == [str(0x7F8A_0000_0001), str(0x7F8B_0000_0001)]


def test_thread_names(read_bytes: Any) -> None:
    name = {"ph": "M", "name": "thread_name", "pid": 1, "tid": "2", "args": {"name": "main"}}
    assert read_bytes([event(), name]).threads[0].name == "main"


def test_a75_device_annotation_is_not_work(read_bytes: Any) -> None:
    shadow = event("forward", cat="gpu_user_annotation", pid=0, tid=7)
    typo = event("forward", cat="gpu_user_Annotation", pid=0, tid=7, ts=20)
    trace = read_bytes([kernel(ts=1), shadow, typo])
    assert rows(trace, "kind")[1:] == [(Kind.DEVICE_ANNOTATION,), (Kind.DEVICE_ANNOTATION,)]


def test_rocm_step_marks_on_the_device_are_no_steps(read_bytes: Any) -> None:
    shadow = event("ProfilerStep#3", cat="gpu_user_annotation", pid=0, tid=0)
    assert rows(read_bytes([kernel(ts=1), shadow]), "kind")[1] == (Kind.DEVICE_ANNOTATION,)


@pytest.mark.parametrize("cat", ["cpu_instant_event", None])
def test_a80_memory(read_bytes: Any, cat: str | None) -> None:
    args = {"Bytes": -512, "Addr": 2**63 + 5, "Device Id": 1, "Device Type": 1}
    totals = {"Total Allocated": 1024, "Total Reserved": 4096}
    instant = {"ph": "i", "cat": cat, "name": "[memory]", "pid": 1, "tid": 2, "s": "t"}
    host = {"Bytes": 8, "Addr": 16, "Device Id": 0, "Device Type": 0}
    events = [
        event(),
        {**instant, "ts": 5, "args": {**args, **totals}},
        {**instant, "ts": 4, "args": host},
    ]
    trace = read_bytes({"traceEvents": events})
    assert len(trace) == 1
    assert trace.memory.rows() == [
        (4000, 0, 8, 16, -1, -1, -1),
        (5000, 0, -512, -(2**63) + 5, 1, 1024, 4096),
    ]


def test_failed_requests_keep_time_and_size(read_bytes: Any) -> None:
    instant = {"ph": "i", "name": "[OutOfMemory]", "pid": 1, "tid": 2, "ts": 3.5}
    instant["args"] = {"Bytes": 512, "Device Id": 1, "Device Type": 1, "Total Allocated": 1024}
    trace = read_bytes([event(), instant])
    assert trace.memory.height == 0
    assert trace.failed_requests.drop("thread").rows() == [(3500, 512, 1, 1024, -1)]


def test_a_failed_request_without_time_or_size_still_counts(read_bytes: Any) -> None:
    instant = {"ph": "i", "name": "[OutOfMemory]", "pid": 1, "tid": 2}
    trace = read_bytes([event(), instant])
    assert trace.failed_requests.drop("thread").rows() == [(-1, -1, -1, -1, -1)]
    assert damage(trace) == {}


def test_a89_clamped_events(read_bytes: Any) -> None:
    events = [event("x", ts=0, dur=0), event("y", ts=0, dur=0), event("z", ts=7_200_000_000)]
    trace = read_bytes(events)
    assert rows(trace, "name") == [("z",)]
    assert damage(trace) == {"zero_time": 2}
    assert not lossy(trace)


def test_a89_start_at_zero_hours_before_the_rest(read_bytes: Any) -> None:
    events = [event("x", ts=0, dur=9), *(event(ts=7_200_000_000 + i) for i in range(3))]
    assert damage(read_bytes(events)) == {"out_of_range": 1}


def test_an_event_that_starts_at_zero_is_fine(read_bytes: Any) -> None:
    assert len(read_bytes([event(ts=0, dur=9), event(ts=1, dur=2)])) == 2


def test_a97_device_event_without_external_id(read_bytes: Any) -> None:
    assert rows(read_bytes([kernel()]), "ext_id", "corr") == [(-1, 1)]


def test_missing_and_null_duration(read_bytes: Any) -> None:
    trace = read_bytes('[{"ph":"X","name":"a","ts":1,"dur":null},{"ph":"X","name":"b","ts":2}]')
    assert rows(trace, "dur_ns") == [(0,), (0,)]


def test_missing_time(read_bytes: Any) -> None:
    trace = read_bytes([event(ts=None), event(ts=4)])
    assert damage(trace) == {"no_time": 1}


def test_begin_and_end(read_bytes: Any) -> None:
    events = [
        {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 1.5},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "B", "cat": "cpu_op", "name": "other", "pid": 1, "tid": 2, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 3},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9},
        {"ph": "E", "pid": 1, "tid": 3, "ts": 9},
    ]
    trace = read_bytes(events)
    assert rows(trace, "name", "ts_ns", "dur_ns") == [
        ("outer", 1500, 7500),
        ("inner", 2000, 1000),
    ]
    assert damage(trace) == {"unpaired_event": 2}


def test_wrong_types_are_taken_for_what_they_mean(read_bytes: Any) -> None:
    args = {"stream": "stream 9", "correlation": "12", "device": "0", "bytes": 64.0}
    events = [event(args=[]), kernel(ts=30, pid=2.0, tid=None, args=args)]
    trace = read_bytes(events)
    assert rows(trace, "stream", "corr", "device", "bytes")[1] == (9, 12, 0, 64)


def test_texts_of_an_operator(read_bytes: Any) -> None:
    args = {
        "Input Dims": [[2, 3], []],
        "Input type": ["float", "Scalar"],
        "Input Strides": [[3, 1], []],
        "Concrete Inputs": ["", "1"],
        "Sequence number": 4,
        "Call stack": "a.py(1): f;b.py(2): g",
    }
    trace = read_bytes([event(args=args)])
    assert rows(trace, "dims", "types", "strides", "concrete", "seq", "extra") == [
        (
            "[[2, 3], []]",
            '["float", "Scalar"]',
            "[[3, 1], []]",
            '["", "1"]',
            4,
            '{"Call stack": "a.py(1): f;b.py(2): g"}',
        )
    ]


def test_launch_text_of_a_kernel(read_bytes: Any) -> None:
    args = {"grid": [8, 1, 1], "block": [256, 1, 1], "registers per thread": 32}
    trace = read_bytes([kernel(args={**args, "est. achieved occupancy %": 50})])
    assert rows(trace, "launch") == [("[[8, 1, 1], [256, 1, 1], null, 32, null, 50]",)]


def test_python_ids(read_bytes: Any) -> None:
    base = {"cat": "python_function"}
    events = [
        event("a.py(1): f", **base, ts=1, args={"Python id": 1, "Python parent id": None}),
        event("nn.Module: Linear_0", **base, ts=2, args={"Python id": 2, "Python parent id": 1}),
    ]
    trace = read_bytes(events)
    assert rows(trace, "kind", "py_id", "py_parent") == [
        (Kind.PYTHON, 1, -1),
        (Kind.MODULE, 2, 1),
    ]


class TestMergedRanks:
    """Two processes in one file that both used correlation 5."""

    def test_correlations_are_kept_apart(self, read_bytes: Any) -> None:
        launch = {"cat": "cuda_runtime", "args": {"correlation": 5}}
        events = [
            event("cudaLaunchKernel", pid=100, tid=100, ts=10, **launch),
            kernel(corr=5, ts=20),
            event("cudaLaunchKernel", pid=200, tid=200, ts=1000, **launch),
            kernel(corr=5, ts=1010),
        ]
        first, second, third, fourth = read_bytes(events).events["corr"]
        assert first == second != third == fourth

    def test_one_process_keeps_its_ids(self, read_bytes: Any) -> None:
        launch = event("cudaLaunchKernel", cat="cuda_runtime", args={"correlation": 5})
        assert read_bytes([launch, kernel(corr=5, ts=20)]).events["corr"].to_list() == [5, 5]
