"""The typed form of trace events: only the keys that the event table needs are decoded.

The phase (`ph`) chooses the type, so of flows and counters nothing is built but a mark. Keys that
carry structured values (`Input Dims`, `grid`, ...) are `msgspec.Raw`: their text is pooled as it
stands and parsed later by whoever needs it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Union

import msgspec
from msgspec import Raw, field

NO_TEXT = Raw(b"")

NO_TS = -(2.0**42)
"""Stands for a missing `ts`: no recording lies 51 days before its base."""

EXTRA_KEYS: tuple[tuple[str, str], ...] = (
    ("collective", "Collective name"),
    ("call_stack", "Call stack"),
    ("hierarchy", "Module Hierarchy"),
    ("call_from", "CallFrom"),
    ("kernel_file", "kernel_file"),
    ("sync_kind", "cuda_sync_kind"),
    ("group_name", "Process Group Name"),
    ("wait_stream", "wait_on_stream"),
    ("wait_corr", "wait_on_cuda_event_record_corr_id"),
    ("wait_event", "wait_on_cuda_event_id"),
    ("kernel_hash", "kernel_hash"),
    ("kernel_backend", "kernel_backend"),
    ("kernel_kwargs", "kernel_kwargs"),
    ("num_warps", "num_warps"),
    ("num_stages", "num_stages"),
    ("in_nelems", "In msg nelems"),
    ("out_nelems", "Out msg nelems"),
    ("in_size", "In msg size"),
    ("group_size", "Group size"),
    ("dtype", "dtype"),
    ("in_split", "In split size"),
    ("out_split", "Out split size"),
    ("group_desc", "Process Group Description"),
    ("group_ranks", "Process Group Ranks"),
    ("group_id", "Process Group ID"),
    ("comm_seq", "Seq"),
    ("comms_id", "Comms Id"),
    ("rank", "Rank"),
    ("src_rank", "Src Rank"),
    ("dst_rank", "Dst Rank"),
    ("rank_start", "Global rank start"),
    ("rank_stride", "Global rank stride"),
)
"""Attribute and key of what goes into `extra_id`, in the order in which it is written."""

TRIGGERS = 7
"""The first so many of `EXTRA_KEYS` tell whether an event has any; the rest comes with them."""

LAUNCH_ATTRIBUTES = ("grid", "block", "blocks_per_sm", "registers", "shared", "occupancy")

INT_KEYS: tuple[tuple[str, str, int | None], ...] = (
    ("ext_id", "External id", -1),
    ("ext_id_old", "external id", -1),
    ("seq", "Sequence number", -1),
    ("py_parent", "Python parent id", None),
    ("py_id", "Python id", -1),
    ("device", "device", None),
    ("stream", "stream", None),
    ("corr", "correlation", -1),
    ("bytes", "bytes", -1),
)
"""Attribute, key and default of the whole numbers; None where null or -1 has a meaning."""

RAW_KEYS: tuple[tuple[str, str], ...] = (
    ("concrete", "Concrete Inputs"),
    ("types", "Input type"),
    ("strides", "Input Strides"),
    ("dims", "Input Dims"),
    ("registers", "registers per thread"),
    ("shared", "shared memory"),
    ("blocks_per_sm", "blocks per SM"),
    ("grid", "grid"),
    ("block", "block"),
    ("occupancy", "est. achieved occupancy %"),
)
"""Attribute and key of what is kept as text."""


def _raw_fields(keys: tuple[tuple[str, str], ...], default: Any) -> list[Any]:
    return [(name, Raw, field(default=default, name=key)) for name, key in keys]


def _int_fields(keys: tuple[tuple[str, str, int | None], ...]) -> list[Any]:
    return [
        (name, int | None if default is None else int, field(default=default, name=key))
        for name, key, default in keys
    ]


_UNUSED_KEYS = (
    ("record_function", "Record function id"),
    ("forward_thread", "Fwd thread id"),
    ("event_index", "Ev Idx"),
    ("cbid", "cbid"),
    ("queued", "queued"),
    ("context", "context"),
    ("warps_per_sm", "warps per SM"),
    ("bandwidth", "memory bandwidth (GB/s)"),
    ("py_module", "Python module id"),
    ("device_upper", "Device"),
    ("trace_name", "Trace name"),
    ("trace_iteration", "Trace iteration"),
    ("old_index", "Profiler Event Index"),
    ("cid", "cid"),
    ("kind", "kind"),
    ("finished", "finished"),
)
"""Decoded for speed only: a key that msgspec does not know is compared with all that it knows."""

# The order of Kineto's writer for each kind of event in turn: msgspec looks for a key behind the
# one it found last, so this order makes most lookups one comparison.
_ORDER = """
    ext_id record_function seq forward_thread concrete types strides dims event_index
    cbid queued device context stream corr registers shared blocks_per_sm warps_per_sm grid block
    occupancy bytes bandwidth py_parent py_id py_module cid kind finished
""".split()


def _args_fields(extra_keys: tuple[tuple[str, str], ...]) -> list[Any]:
    fields = [
        *_int_fields(INT_KEYS),
        *_raw_fields(RAW_KEYS, NO_TEXT),
        *((name, Any, field(default=None, name=key)) for name, key in _UNUSED_KEYS),
    ]
    rank = {name: number for number, name in enumerate(_ORDER)}
    fields.sort(key=lambda entry: rank.get(entry[0], len(rank)))
    return [*fields, *_raw_fields(extra_keys, None)]


def _args(name: str, extra_keys: tuple[tuple[str, str], ...]) -> Any:
    return msgspec.defstruct(name, _args_fields(extra_keys), gc=False, module=__name__)


LeanArgs = _args("LeanArgs", EXTRA_KEYS[:TRIGGERS])
FullArgs = _args("FullArgs", EXTRA_KEYS)
EMPTY_ARGS = FullArgs()


class MemoryArgs(msgspec.Struct, gc=False):
    """Of a `[memory]` instant."""

    size: int = field(default=0, name="Bytes")
    address: int = field(default=-1, name="Addr")
    device: int = field(default=-1, name="Device Id")
    allocated: int = field(default=-1, name="Total Allocated")
    reserved: int = field(default=-1, name="Total Reserved")
    device_type: int | str | None = field(default=None, name="Device Type")


class MetaArgs(msgspec.Struct, gc=False):
    """Of a metadata event."""

    name: Any = None
    labels: Any = None


Id = int | str | None


class Meta(msgspec.Struct, gc=False, tag_field="ph", tag="M"):
    """Names a process or thread."""

    name: str | None = ""
    pid: Id = None
    tid: Id = None
    args: MetaArgs | None = None


@dataclass(frozen=True)
class Schema:
    """Types of events.

    Attributes:
        span: `X`. begin, end: `B`, `E`. instant: `i` and `I`.
        decoder: of an array of events.
        one: decoder of one event.
        exact: times are texts, for those far from zero or written as strings; else they are
            floats, which hold them exactly enough near zero.
        full: arguments have all of `EXTRA_KEYS`, which costs a quarter more time; else only those
            that tell whether there are any.
    """

    span: Any
    begin: Any
    end: Any
    instant: tuple[Any, Any]
    decoder: msgspec.json.Decoder[Any]
    one: msgspec.json.Decoder[Any]
    exact: bool
    full: bool


_SKIPPED_PHASES = "stfCbenNODPRcvV()"


def _event(tag: str, fields: list[Any]) -> Any:
    return msgspec.defstruct(
        f"Event_{tag}", fields, gc=False, tag_field="ph", tag=tag, module=__name__
    )


_SKIPPED = [_event(phase, []) for phase in _SKIPPED_PHASES]


def _schema(*, exact: bool, full: bool) -> Schema:
    cat = ("cat", str | None, "")
    lane = [("name", str | None, ""), ("pid", Id, None), ("tid", Id, None)]
    ts = ("ts", Raw, NO_TEXT) if exact else ("ts", float, NO_TS)
    dur = ("dur", Raw, NO_TEXT) if exact else ("dur", float | None, 0.0)
    args = ("args", (FullArgs if full else LeanArgs) | None, None)
    memory = ("args", MemoryArgs | None, None)
    span = _event("X", [cat, *lane, ts, dur, args])
    begin, end = _event("B", [cat, *lane, ts, args]), _event("E", [cat, *lane, ts, args])
    instant = _event("i", [*lane, ts, memory]), _event("I", [*lane, ts, memory])
    types: Any = (span, begin, end, *instant, Meta, *_SKIPPED)
    event: Any = Union[types]  # noqa: UP007 - the types are not known before
    # Not strict: ROCm writes some numbers as strings.
    decoder = msgspec.json.Decoder(list[event], strict=False)
    one = msgspec.json.Decoder(event, strict=False)
    return Schema(span, begin, end, instant, decoder, one, exact, full)


SCHEMAS = {
    (exact, full): _schema(exact=exact, full=full)
    for exact in (False, True)
    for full in (False, True)
}
EXACT = SCHEMAS[(True, True)]
"""What always works."""
