"""The typed form of one trace event: only the keys that the event table needs are decoded.

Keys that carry structured values (`Input Dims`, `grid`, ...) are `msgspec.Raw`: their text is
pooled as it stands and parsed later by whoever needs it.
"""

from __future__ import annotations

from typing import Any

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
    ("kernel_hash", "kernel_hash"),
    ("group_name", "Process Group Name"),
    ("sync_kind", "cuda_sync_kind"),
    ("wait_stream", "wait_on_stream"),
    # Keys below come only together with one of those above.
    ("wait_corr", "wait_on_cuda_event_record_corr_id"),
    ("wait_event", "wait_on_cuda_event_id"),
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

EXTRA_TRIGGERS = 9
"""Only the first so many of `EXTRA_KEYS` are looked at for each event."""

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
    ("mem_bytes", "Bytes", 0),
    ("mem_addr", "Addr", -1),
    ("mem_device", "Device Id", -1),
    ("mem_allocated", "Total Allocated", -1),
    ("mem_reserved", "Total Reserved", -1),
)
"""Attribute, key and default of the whole numbers; None where -1 is a legal value."""

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
    ("mem_type", "Device Type"),
    ("meta_name", "name"),
    ("meta_labels", "labels"),
    *EXTRA_KEYS,
)
"""Attribute and key of what is kept as text."""

_FIRST_EXTRA = len(RAW_KEYS) - len(EXTRA_KEYS)

# Kineto writes the keys of an event in about this order, which msgspec's search rewards.
Args: Any = msgspec.defstruct(
    "Args",
    [
        *((name, int, field(default=default, name=key)) for name, key, default in INT_KEYS[:3]),
        *((name, Raw, field(default=NO_TEXT, name=key)) for name, key in RAW_KEYS[:4]),
        ("py_parent", int | None, field(default=None, name="Python parent id")),
        ("py_id", int, field(default=-1, name="Python id")),
        *(
            (name, int | None if default is None else int, field(default=default, name=key))
            for name, key, default in INT_KEYS[5:]
        ),
        *((name, Raw, field(default=NO_TEXT, name=key)) for name, key in RAW_KEYS[4:_FIRST_EXTRA]),
        *((name, Raw, field(default=None, name=key)) for name, key in EXTRA_KEYS),
    ],
    gc=False,
    module=__name__,
)

EMPTY_ARGS = Args()


class Event(msgspec.Struct, gc=False):
    """An event whose times are JSON numbers that a float holds exactly enough."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: float = NO_TS
    dur: float | None = 0.0
    args: Args | None = None


class ExactEvent(msgspec.Struct, gc=False):
    """The same with the times as text: far from zero, or written as strings."""

    ph: str = ""
    cat: str | None = ""
    name: str | None = ""
    pid: int | str | None = None
    tid: int | str | None = None
    ts: Raw = NO_TEXT
    dur: Raw = NO_TEXT
    args: Args | None = None
