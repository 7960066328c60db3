"""A trace of any size that looks like training: operators, launches, kernels, flows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

_HEAD = """{
  "schemaVersion": 1,
  "deviceProperties": [
    {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9,
     "computeMinor": 0, "numSms": 132}
  ],
  "record_shapes": 1,
  "displayTimeUnit": "ms",
  "baseTimeNanoseconds": 1700000000000000000,
  "traceEvents": [
"""
_TAIL = """
  ],
  "traceName": "generated.json"
}
"""
_SPAN = """  {{
    "ph": "X", "cat": "{cat}", "name": "{name}", "pid": {pid}, "tid": {tid},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{
      {args}
    }}
  }}"""
_FLOW = """  {{
    "ph": "{ph}", "id": {id}, "pid": {pid}, "tid": {tid}, "ts": {ts:.3f},
    "cat": "ac2g", "name": "ac2g"{bind}
  }}"""
_OPERATORS = ("aten::linear", "aten::t", "aten::transpose", "aten::as_strided", "aten::addmm")
_STEP_LAUNCHES = 1000


def write_trace(path: Path, events: int) -> None:
    """Write a trace of about so many events."""
    with path.open("w") as file:
        file.write(_HEAD)
        for number, text in enumerate(_events(events)):
            file.write((",\n" if number else "") + text)
        file.write(_TAIL)


def _events(count: int) -> Iterator[str]:
    written = launch = 0
    while written < count:
        start = 4_000_000_000_000 + launch * 40.5
        if launch % _STEP_LAUNCHES == 0:
            name, args = f"ProfilerStep#{launch // _STEP_LAUNCHES}", '"External id": 1'
            yield _host("user_annotation", name, start, _STEP_LAUNCHES * 40.4, args)
        for depth, name in enumerate(_OPERATORS):
            yield _operator(name, launch, start + depth, 38.25 - 2 * depth)
        launch += 1
        ids = f'"External id": {launch * 5}, "cbid": 211, "correlation": {launch}'
        yield _host("cuda_runtime", "cudaLaunchKernel", start + 8, 5.125, ids)
        yield _FLOW.format(ph="s", id=launch, pid=1000, tid=1000, ts=start + 8, bind="")
        yield _kernel(launch, start + 20)
        yield _FLOW.format(ph="f", id=launch, pid=0, tid=7, ts=start + 20, bind=', "bp": "e"')
        written += len(_OPERATORS) + 4


def _host(cat: str, name: str, ts: float, dur: float, args: str) -> str:
    return _SPAN.format(cat=cat, name=name, pid=1000, tid=1000, ts=ts, dur=dur, args=args)


def _operator(name: str, launch: int, ts: float, dur: float) -> str:
    rows = 64 * (launch % 31 + 1)
    args = (
        f'"External id": {launch * 5},"Record function id": 0, '
        '"Concrete Inputs": ["", "", "", "1", "1"], '
        '"Input type": ["float", "c10::BFloat16", "c10::BFloat16", "Scalar", "Scalar"], '
        f'"Input Strides": [[1], [{rows}, 1], [1, {rows}], [], []], '
        f'"Input Dims": [[{rows}], [512, {rows}], [{rows}, {rows}], [], []], '
        f'"Ev Idx": {launch}'
    )
    return _host("cpu_op", name, ts, dur, args)


def _kernel(launch: int, ts: float) -> str:
    args = (
        f'"External id": {launch * 5}, "queued": 0, "device": 0, "context": 1,\n'
        f'      "stream": 7, "correlation": {launch},\n'
        '      "registers per thread": 168, "shared memory": 213248,\n'
        '      "blocks per SM": 1.0, "warps per SM": 12.0,\n'
        f'      "grid": [{launch % 132 + 1}, 1, 1], "block": [384, 1, 1],\n'
        '      "est. achieved occupancy %": 19'
    )
    name = "nvjet_tst_128x256_64x4_1x2_h_bz_coopA_NTT"
    return _SPAN.format(cat="kernel", name=name, pid=0, tid=7, ts=ts, dur=17.5, args=args)
