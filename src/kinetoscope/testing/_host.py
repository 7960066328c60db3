"""Events of host threads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from kinetoscope.testing._events import EventList, innermost

if TYPE_CHECKING:
    from typing_extensions import Self


class HostEvents(EventList):
    """Operators, frames, annotations, runtime calls, memory."""

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
        owner = innermost(self._ops, self.tid if tid is None else tid, start, start + dur)
        self._owners[corr] = owner or 0
        values = {"External id": owner or 0, "cbid": 211, "correlation": corr, **args}
        return self._span(cat, name, start, dur, tid=tid, args=values)

    def sync(self, start: float, dur: float, *, name: str = "cudaStreamSynchronize") -> Self:
        """A call that waits for the device."""
        return self.runtime(name, start, dur)

    def gc(self, start: float, dur: float) -> Self:
        """A run of Python's garbage collector."""
        return self._python("Python GC", start, dur, None)

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

    def failed_request(
        self, size: int, total: int, at: float, *, reserved: int, tid: int | None = None
    ) -> Self:
        """An `[OutOfMemory]` instant.

        Args:
            size: bytes asked for.
            total: bytes allocated.
            at: time, µs.
            reserved: bytes held by the allocator.
            tid: host thread.
        """
        args = {"Total Reserved": reserved, "Total Allocated": total, "Bytes": size}
        args.update({"Device Id": self.device_index, "Device Type": 1})
        tid = self.tid if tid is None else tid
        event = {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[OutOfMemory]"}
        return self.raw({**event, "pid": self.pid, "tid": tid, "ts": at, "args": args})

    def _python(self, name: str, start: float, dur: float, tid: int | None, **args: Any) -> Self:
        number = self._next("python")
        thread = self.tid if tid is None else tid
        parent = innermost(self._frames, thread, start, start + dur)
        self._frames.append((thread, start, start + dur, number))
        ids = {"Python parent id": parent, "Python id": number}
        return self._span("python_function", name, start, dur, tid=tid, args={**ids, **args})


def _strides(dims: Sequence[Any]) -> list[int]:
    strides: list[int] = []
    size = 1
    for extent in reversed(list(dims)):
        strides.append(size)
        size *= extent if isinstance(extent, int) else 1
    return strides[::-1]
