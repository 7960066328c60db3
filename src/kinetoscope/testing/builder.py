"""Writes genuine Kineto JSON event by event; the result goes through the real reader."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

    from kinetoscope.trace.trace import Trace

__all__ = ["TraceBuilder"]

_Range = tuple[int, float, float, int]
"""Thread, start, end, id."""

_COPY_CALL_US = 4.0
_LAUNCH_US = 4.0


class TraceBuilder:
    """Collects events of one rank and writes them as PyTorch's profiler would.

    All times are microseconds and may have up to three decimals; they are relative to
    `baseTimeNanoseconds`. Every method that adds an event returns the builder, so calls chain.
    Correlation ids, External ids and Python ids are given out by the builder.

    Args:
        device: name in `deviceProperties`; None writes a trace without devices.
        rank: rank in `distributedInfo`; None leaves that out.
        world_size: ranks of the job.
        pid: process id of the host threads.
        tid: thread that events stand on unless a call says otherwise.
        device_index: device that device events stand on unless a call says otherwise.
    """

    def __init__(
        self,
        *,
        device: str | None = "NVIDIA H200",
        rank: int | None = None,
        world_size: int = 1,
        pid: int = 1000,
        tid: int = 1000,
        device_index: int = 0,
    ) -> None:
        self.pid = pid
        self.tid = tid
        self.device_index = device_index
        self._events: list[dict[str, Any]] = []
        self._owners: dict[int, int] = {}
        self._ids = {"corr": 0, "ext": 0, "python": 0, "step": 0}
        self._frames: list[_Range] = []
        self._ops: list[_Range] = []
        self._header: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": []}
        if device is not None:
            self._header["deviceProperties"] = [_device_properties(device_index, device)]
        if rank is not None:
            self._header["distributedInfo"] = {
                "backend": "nccl",
                "rank": rank,
                "world_size": world_size,
            }
        self._header.update(record_shapes=1, with_stack=1)
        self._header.update(displayTimeUnit="ms", baseTimeNanoseconds=1_700_000_000_000_000_000)

    # -- the file ----------------------------------------------------------------------------

    def header(self, **values: Any) -> Self:
        """Set top-level values of the file; None removes one."""
        for key, value in values.items():
            self._header[key] = value
            if value is None:
                del self._header[key]
        return self

    def to_dict(self) -> dict[str, Any]:
        """The trace as plain data."""
        return {**self._header, "traceEvents": list(self._events)}

    def to_json(self) -> str:
        """The trace as text."""
        return json.dumps(self.to_dict())

    def write(self, path: str | Path) -> Path:
        """Write the trace, packed if the name ends in `.gz`; returns the path."""
        path = Path(path)
        data = self.to_json().encode()
        path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
        return path

    def read(self) -> Trace:
        """The trace as the real reader sees it."""
        from kinetoscope.trace.readers import read

        with tempfile.TemporaryDirectory(prefix="kinetoscope-") as folder:
            return read(self.write(Path(folder) / "trace.json"))

    # -- host --------------------------------------------------------------------------------

    def step(self, start: float, dur: float, *, number: int | None = None) -> Self:
        """A `ProfilerStep#n` mark; numbers count up by themselves."""
        if number is None:
            number = self._next("step") - 1
        return self.annotation(f"ProfilerStep#{number}", start, dur)

    def op(  # noqa: PLR0913 - options with defaults, keyword only
        self,
        name: str,
        start: float,
        dur: float,
        *,
        dims: Sequence[Any] | None = None,
        types: Sequence[str] | None = None,
        strides: Sequence[Any] | None = None,
        concrete: Sequence[str] | None = None,
        seq: int | None = None,
        fwd_thread: int | None = None,
        tid: int | None = None,
        **args: Any,
    ) -> Self:
        """A CPU operator.

        Args:
            name: for example `aten::mm` or `AddmmBackward0`.
            start: start, µs.
            dur: length, µs.
            dims: `Input Dims`, a list per input.
            types: `Input type`; "float" for each input with dims if left out.
            strides: `Input Strides`.
            concrete: `Concrete Inputs`, texts of the scalar inputs.
            seq: `Sequence number` that links a forward operator with its backward node.
            fwd_thread: `Fwd thread id`; 0 in the forward, the forward's thread in the backward.
            tid: host thread.
            args: further entries of `args`, by any key.
        """
        number = self._next("ext")
        self._ops.append((self.tid if tid is None else tid, start, start + dur, number))
        values: dict[str, Any] = {"External id": number, "Record function id": 0}
        if seq is not None:
            values.update({"Sequence number": seq, "Fwd thread id": fwd_thread or 0})
        if dims is not None:
            values["Concrete Inputs"] = list(concrete) if concrete else [""] * len(dims)
            values["Input type"] = list(types) if types else ["float" if d else "" for d in dims]
            values["Input Strides"] = list(strides) if strides else [_strides(d) for d in dims]
            values["Input Dims"] = [list(d) for d in dims]
        return self._span("cpu_op", name, start, dur, tid=tid, args={**values, **args})

    def backward(self, name: str, start: float, dur: float, *, seq: int, tid: int = 1001) -> Self:
        """An autograd node on the backward thread, in its `evaluate_function` wrapper."""
        wrapper = f"autograd::engine::evaluate_function: {name}"
        self.op(wrapper, start, dur, seq=seq, fwd_thread=1, tid=tid)
        return self.op(name, start, dur, seq=seq, fwd_thread=1, tid=tid)

    def python(self, name: str, start: float, dur: float, *, tid: int | None = None) -> Self:
        """A Python frame, `file.py(line): function`; add outer frames before inner ones."""
        return self._python(name, start, dur, tid)

    def module(self, name: str, start: float, dur: float, *, tid: int | None = None) -> Self:
        """A call of an `nn.Module`; `name` is class and number, such as `Linear_0`."""
        number = int(name.rpartition("_")[2]) if name.rpartition("_")[2].isdigit() else 0
        return self._python(f"nn.Module: {name}", start, dur, tid, **{"Python module id": number})

    def annotation(self, name: str, start: float, dur: float, *, tid: int | None = None) -> Self:
        """A host range (`record_function`, `Optimizer.step#Adam.step`, ...)."""
        args = {"External id": self._next("ext"), "Record function id": 0}
        return self._span("user_annotation", name, start, dur, tid=tid, args=args)

    def loader(
        self, start: float, dur: float, *, workers: bool = False, tid: int | None = None
    ) -> Self:
        """A wait for the next batch; `workers` tells which of DataLoader's iterators it is."""
        kind = "_MultiProcessingDataLoaderIter" if workers else "_SingleProcessDataLoaderIter"
        return self.annotation(f"enumerate(DataLoader)#{kind}.__next__", start, dur, tid=tid)

    def overhead(self, name: str, start: float, dur: float) -> Self:
        """The profiler's own work, such as `Activity Buffer Request`."""
        return self._event("X", "overhead", name, start, dur=dur, pid=-1, tid=0)

    def runtime(
        self,
        name: str,
        start: float,
        dur: float,
        *,
        corr: int | None = None,
        cat: str = "cuda_runtime",
        tid: int | None = None,
        **args: Any,
    ) -> Self:
        """A call into the device runtime; without `corr` it gets a correlation of its own."""
        corr = self._next("corr") if corr is None else corr
        owner = _innermost(self._ops, self.tid if tid is None else tid, start, start + dur)
        self._owners[corr] = owner or 0
        values = {"External id": owner or 0, "cbid": 211, "correlation": corr, **args}
        return self._span(cat, name, start, dur, tid=tid, args=values)

    def sync(self, start: float, dur: float, *, name: str = "cudaStreamSynchronize") -> Self:
        """A call that waits for the device."""
        return self.runtime(name, start, dur)

    def gc(self, start: float, dur: float) -> Self:
        """A run of Python's garbage collector."""
        return self._python("Python GC", start, dur, None)

    # -- device ------------------------------------------------------------------------------

    def kernel(  # noqa: PLR0913 - options with defaults, keyword only
        self,
        name: str,
        start: float,
        dur: float,
        *,
        stream: int = 7,
        device: int | None = None,
        launch_at: float | None = None,
        launch_dur: float = _LAUNCH_US,
        launch: str = "cudaLaunchKernel",
        op: str | None = None,
        dims: Sequence[Any] | None = None,
        corr: int | None = None,
        grid: Sequence[int] = (132, 1, 1),
        block: Sequence[int] = (256, 1, 1),
        occupancy: float | None = 50,
        tid: int | None = None,
        **args: Any,
    ) -> Self:
        """A kernel, and its launch when `launch_at` says when that began.

        Args:
            name: demangled name.
            start: start on the device, µs.
            dur: length, µs.
            stream: stream id.
            device: device index.
            launch_at: start of the launch call, µs; None writes no launch (as for a kernel that
                was launched before the recording began).
            launch_dur: length of the launch call, µs.
            launch: name of the launch call; `cuLaunchKernel*` gets the driver's category.
            op: name of an operator to write around the launch.
            dims: `Input Dims` of that operator.
            corr: correlation, to share one launch among several kernels.
            grid: blocks in x, y, z.
            block: threads in x, y, z.
            occupancy: `est. achieved occupancy %`; None leaves it out.
            tid: host thread of the launch.
            args: further entries of `args`.
        """
        corr = self._launch(launch, launch_at, launch_dur, corr, op=op, dims=dims, tid=tid)
        values = {
            "External id": self._owners.get(corr, 0),
            "queued": 0,
            **self._place(stream, device),
            "correlation": corr,
            "registers per thread": 32,
            "shared memory": 0,
            "blocks per SM": 1.0,
            "warps per SM": 8.0,
            "grid": list(grid),
            "block": list(block),
        }
        if occupancy is not None:
            values["est. achieved occupancy %"] = occupancy
        return self._on_device("kernel", name, start, dur, stream, device, {**values, **args})

    def copy(  # noqa: PLR0913 - options with defaults, keyword only
        self,
        kind: str,
        size: int,
        start: float,
        dur: float,
        *,
        stream: int = 7,
        device: int | None = None,
        launch_at: float | None = None,
        launch_dur: float = _COPY_CALL_US,
        launch: str = "cudaMemcpyAsync",
        op: str | None = None,
        tid: int | None = None,
    ) -> Self:
        """A copy, and its call when `launch_at` says when that began.

        Args:
            kind: `HtoD Pageable`, `HtoD Pinned`, `DtoH Pageable`, `DtoH Pinned`, `DtoD`, `PtoP`.
            size: bytes.
            start: start on the device, µs.
            dur: length, µs.
            stream: stream id.
            device: device index.
            launch_at: start of the runtime call, µs; None writes none.
            launch_dur: length of the runtime call, µs.
            launch: name of the runtime call.
            op: name of an operator to write around the call, such as `aten::copy_`.
            tid: host thread of the call.
        """
        corr = self._launch(launch, launch_at, launch_dur, None, op=op, dims=None, tid=tid)
        args = self._transfer_args(size, dur, stream, device, corr)
        name = f"Memcpy {_copy_name(kind)}"
        return self._on_device("gpu_memcpy", name, start, dur, stream, device, args)

    def memset(
        self,
        size: int,
        start: float,
        dur: float,
        *,
        stream: int = 7,
        device: int | None = None,
        launch_at: float | None = None,
    ) -> Self:
        """A memset of `size` bytes, and its call when `launch_at` says when that began."""
        corr = self._launch("cudaMemsetAsync", launch_at, _LAUNCH_US, None)
        args = self._transfer_args(size, dur, stream, device, corr)
        return self._on_device("gpu_memset", "Memset (Device)", start, dur, stream, device, args)

    def all_reduce(  # noqa: PLR0913 - options with defaults, keyword only
        self,
        start: float,
        dur: float,
        *,
        elements: int = 1 << 20,
        dtype: str = "Float",
        group_size: int = 2,
        stream: int = 20,
        device: int | None = None,
        launch_at: float | None = None,
        group: str = "0",
        sequence: int | None = None,
        tid: int | None = None,
        name: str = "allreduce",
    ) -> Self:
        """A collective's kernel, and when launched: `record_param_comms`, `nccl:*`, the launch.

        Args:
            start: start on the device, µs.
            dur: length, µs.
            elements: elements in and out.
            dtype: as NCCL names it: Float, BFloat16, Half.
            group_size: ranks in the group.
            stream: stream id.
            device: device index.
            launch_at: start of the host's part, µs; None writes no host events.
            group: `Process Group Name`.
            sequence: `Seq`, the number of the collective in its group (written since 2026).
            tid: host thread.
            name: `Collective name`: allreduce, _allgather_base, _reduce_scatter_base, broadcast.
        """
        args: dict[str, Any] = {
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": elements,
            "Group size": group_size,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group,
            "Process Group Description": "default_pg",
            "Process Group Ranks": json.dumps(list(range(group_size))),
        }
        if sequence is not None:
            args["Seq"] = sequence
        if launch_at is not None:
            self.op("record_param_comms", launch_at, 12, dims=[[elements]], tid=tid, **args)
            label = {"allreduce": "all_reduce"}.get(name, name)
            self.annotation(f"nccl:{label}", launch_at + 1, 10, tid=tid)
        return self.kernel(
            f"ncclDevKernel_{_NCCL_NAMES.get(name, 'Generic')}(ncclDevKernelArgsStorage<4096ul>)",
            start,
            dur,
            stream=stream,
            device=device,
            launch_at=None if launch_at is None else launch_at + 2,
            launch="cudaLaunchKernelExC",
            grid=(24, 1, 1),
            block=(512, 1, 1),
            tid=tid,
            **args,
        )

    def device_annotation(
        self, name: str, start: float, dur: float, *, stream: int = 7, device: int | None = None
    ) -> Self:
        """The shadow of a host annotation on a device lane (`gpu_user_annotation`)."""
        args = {"External id": self._ids["ext"]}
        return self._on_device("gpu_user_annotation", name, start, dur, stream, device, args)

    def memory(
        self,
        size: int,
        total: int,
        at: float,
        *,
        reserved: int | None = None,
        address: int = 0x7F0000000000,
        device: int | None = None,
        tid: int | None = None,
    ) -> Self:
        """A `[memory]` instant.

        Args:
            size: bytes taken, negative when freed.
            total: bytes allocated afterwards.
            at: time, µs.
            reserved: bytes held by the allocator; the same as `total` if left out.
            address: of the block.
            device: device index, -1 for host memory.
            tid: host thread.
        """
        device = self.device_index if device is None else device
        args = {
            "Total Reserved": total if reserved is None else reserved,
            "Total Allocated": total,
            "Bytes": size,
            "Addr": address,
            "Device Id": device,
            "Device Type": 0 if device < 0 else 1,
        }
        tid = self.tid if tid is None else tid
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]"}
        return self.raw({**event, "pid": self.pid, "tid": tid, "ts": at, "args": args})

    def raw(self, event: dict[str, Any]) -> Self:
        """Any event as it stands."""
        self._events.append(event)
        return self

    # -- parts -------------------------------------------------------------------------------

    def _next(self, counter: str) -> int:
        self._ids[counter] += 1
        return self._ids[counter]

    def _event(self, ph: str, cat: str, name: str, start: float, **rest: Any) -> Self:
        return self.raw({"ph": ph, "cat": cat, "name": name, "ts": start, **rest})

    def _span(
        self, cat: str, name: str, start: float, dur: float, *, tid: int | None, args: Any
    ) -> Self:
        tid = self.tid if tid is None else tid
        return self._event("X", cat, name, start, dur=dur, pid=self.pid, tid=tid, args=args)

    def _python(self, name: str, start: float, dur: float, tid: int | None, **args: Any) -> Self:
        number = self._next("python")
        thread = self.tid if tid is None else tid
        parent = _innermost(self._frames, thread, start, start + dur)
        self._frames.append((thread, start, start + dur, number))
        ids = {"Python parent id": parent, "Python id": number}
        return self._span("python_function", name, start, dur, tid=tid, args={**ids, **args})

    def _place(self, stream: int, device: int | None) -> dict[str, int]:
        device = self.device_index if device is None else device
        return {"device": device, "context": 1, "stream": stream}

    def _transfer_args(
        self, size: int, dur: float, stream: int, device: int | None, corr: int
    ) -> dict[str, Any]:
        return {
            "External id": self._owners.get(corr, 0),
            **self._place(stream, device),
            "correlation": corr,
            "bytes": size,
            "memory bandwidth (GB/s)": size / dur / 1000 if dur else 0,
        }

    def _on_device(
        self,
        cat: str,
        name: str,
        start: float,
        dur: float,
        stream: int,
        device: int | None,
        args: dict[str, Any],
    ) -> Self:
        device = self.device_index if device is None else device
        return self._event("X", cat, name, start, dur=dur, pid=device, tid=stream, args=args)

    def _launch(
        self,
        name: str,
        start: float | None,
        dur: float,
        corr: int | None,
        *,
        op: str | None = None,
        dims: Sequence[Any] | None = None,
        tid: int | None = None,
    ) -> int:
        if op is not None and start is not None:
            self.op(op, start - 1, dur + 2, dims=dims, tid=tid)
        corr = self._next("corr") if corr is None else corr
        if start is not None:
            cat = "cuda_driver" if name.startswith("cuLaunch") else "cuda_runtime"
            self.runtime(name, start, dur, corr=corr, cat=cat, tid=tid)
        return corr


def _innermost(ranges: Sequence[_Range], thread: int, start: float, end: float) -> int | None:
    """Id of the shortest range of the thread that holds the given one."""
    around = [r for r in ranges if r[0] == thread and r[1] <= start and end <= r[2]]
    return min(around, key=lambda r: r[2] - r[1])[3] if around else None


_NCCL_NAMES = {
    "allreduce": "AllReduce_Sum_f32_RING_LL",
    "_allgather_base": "AllGather_RING_LL",
    "_reduce_scatter_base": "ReduceScatter_Sum_f32_RING_LL",
    "broadcast": "Broadcast_RING_LL",
}


def _copy_name(kind: str) -> str:
    direction, _, memory = kind.partition(" ")
    memory = memory or "Pageable"
    ends = {
        "HtoD": (memory, "Device"),
        "DtoH": ("Device", memory),
        "DtoD": ("Device", "Device"),
        "PtoP": ("Device", "Device"),
    }
    source, target = ends.get(direction, (memory, memory))
    return f"{direction} ({source} -> {target})"


def _strides(dims: Sequence[Any]) -> list[int]:
    strides: list[int] = []
    size = 1
    for extent in reversed(list(dims)):
        strides.append(size)
        size *= extent if isinstance(extent, int) else 1
    return strides[::-1]


def _device_properties(index: int, name: str) -> dict[str, Any]:
    return {
        "id": index,
        "name": name,
        "totalGlobalMem": 150_109_880_320,
        "computeMajor": 9,
        "computeMinor": 0,
        "maxThreadsPerBlock": 1024,
        "warpSize": 32,
        "numSms": 132,
    }
