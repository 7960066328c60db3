"""Events of devices, with the host events that start them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetoscope.testing._host import HostEvents

if TYPE_CHECKING:
    from typing_extensions import Self

_COPY_CALL_US = 4.0
_LAUNCH_US = 4.0


class DeviceEvents(HostEvents):
    """Kernels, copies, memsets, collectives."""

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
        kernel: str | None = None,
        ranks: Sequence[int] | None = None,
        received: int | None = None,
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
            kernel: name of the kernel; NCCL's since 2.18 if left out.
            ranks: members of the group, 0 .. group_size - 1 if left out.
            received: elements out, if not as many as in.
        """
        args: dict[str, Any] = {
            "Collective name": name,
            "In msg nelems": elements,
            "Out msg nelems": elements if received is None else received,
            "Group size": group_size,
            "dtype": dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": group,
            "Process Group Description": "default_pg",
            "Process Group Ranks": json.dumps(list(ranks or range(group_size))),
        }
        if sequence is not None:
            args["Seq"] = sequence
        if launch_at is not None:
            self.op("record_param_comms", launch_at, 12, dims=[[elements]], tid=tid, **args)
            label = {"allreduce": "all_reduce"}.get(name, name)
            self.annotation(f"nccl:{label}", launch_at + 1, 10, tid=tid)
        return self.kernel(
            kernel or f"ncclDevKernel_{_NCCL_NAMES.get(name, 'Generic')}({_STORAGE})",
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


_STORAGE = "ncclDevKernelArgsStorage<4096ul>"
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
