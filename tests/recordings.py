"""Small recordings written by hand, for the tests of whatever shows one."""

from __future__ import annotations

from pathlib import Path

from kinetoscope.engine import Examined, examine
from kinetoscope.testing import JobBuilder, TraceBuilder

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202egnp.exe\u2028\u2066\x00<!--"
LONG = "k" * 100_000


def training(trace: TraceBuilder | None = None, *, steps: int = 4) -> TraceBuilder:
    """A loop that loads, computes, waits: every section of a page has something to show."""
    trace = trace or TraceBuilder()
    trace.python("train.py(10): main", 0, 1000 * steps + 10)
    for i in range(steps):
        at = 1000 * i
        trace.step(at, 1000)
        trace.python("train.py(20): step", at + 1, 990)
        trace.loader(at + 5, 300)
        trace.python("data.py(7): __getitem__", at + 10, 280)
        trace.module("Net_0", at + 330, 300).module("Linear_0", at + 340, 200)
        trace.op("aten::linear", at + 345, 150).op(
            "aten::addmm", at + 350, 120, dims=[[512], [64, 512], [512, 512]]
        )
        trace.kernel("ampere_sgemm_128x64_tn", at + 420, 200, launch_at=at + 380)
        trace.memory(1 << 20, (i + 2) << 20, at + 360, address=0x1000 * (i + 1))
        trace.copy("HtoD Pageable", 1 << 20, at + 640, 40, launch_at=at + 630, op="aten::copy_")
        trace.op("aten::item", at + 800, 120).copy(
            "DtoH Pageable", 4, at + 850, 10, launch_at=at + 810
        )
        trace.sync(at + 820, 90)
    return trace


def host_only(*, steps: int = 4) -> TraceBuilder:
    """A program on a processor: no device is recorded."""
    trace = TraceBuilder()
    for i in range(steps):
        at = 1000 * i
        trace.step(at, 1000)
        trace.python("train.py(20): step", at + 1, 990)
        trace.module("Linear_0", at + 10, 500).op("aten::mm", at + 20, 400, dims=[[8, 8], [8, 8]])
    return trace


def waiting(load: int, *, steps: int = 8) -> TraceBuilder:
    """A loop of a kernel of 1 ms, behind a DataLoader that takes `load` us a step if any."""
    trace = TraceBuilder()
    length = 1200 + load
    trace.python("train.py(10): main", 0, length * steps + 10)
    for i in range(steps):
        at = length * i
        trace.step(at, length)
        if load:
            trace.loader(at + 5, load)
        trace.op("aten::addmm", at + load + 20, 60, dims=[[512], [64, 512], [512, 512]])
        trace.kernel("ampere_sgemm_128x64_tn", at + load + 60, 1000, launch_at=at + load + 40)
        trace.sync(at + load + 90, 980)
    return trace


def hostile() -> TraceBuilder:
    """The same loop with names that want to be more than text."""
    trace = training()
    for i in range(4):
        at = 1000 * i
        trace.python(f"{HOSTILE}.py(3): {HOSTILE}", at + 700, 80)
        trace.op(HOSTILE, at + 705, 30, dims=[[1, 2]])
        trace.kernel(HOSTILE, at + 720, 30, launch_at=at + 707)
        trace.kernel(LONG, at + 760, 20, launch_at=at + 712)
        trace.annotation(f"=cmd|' /C calc'!A0 {HOSTILE}", at + 740, 10)
    return trace


def job() -> JobBuilder:
    """Two ranks of which one is late."""
    built = JobBuilder(2)
    for rank, trace in enumerate(built):
        for i in range(4):
            at = 1000 * i
            trace.step(at, 1000)
            trace.kernel("gemm_kernel", at + 50, 300 + 300 * rank, launch_at=at + 20)
            trace.all_reduce(at + 360 + 300 * rank, 500 - 300 * rank, launch_at=at + 40)
    return built


def examined(trace: TraceBuilder, folder: Path) -> Examined:
    """Read and diagnose a recording."""
    return examine(trace.write(folder / "trace.json"))
