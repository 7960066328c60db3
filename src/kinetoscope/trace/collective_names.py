"""Which collective a name stands for: NCCL kernels, `Collective name` arguments, host ranges.

Spellings: ProcessGroupNCCL's `Collective name` (`allreduce`, `_allgather_base`), its host ranges
(`nccl:all_reduce_barrier`), c10d's operators (`c10d::_reduce_scatter_base_`), functional
collectives, NCCL's kernels before and after 2.18 (`ncclKernel_AllReduce_RING_LL_Sum_float`,
`ncclDevKernel_ReduceScatter_Sum_f32_RING_LL`), and Gloo's ranges (`gloo:all_reduce`).
"""

from __future__ import annotations

import re

#: (part of the name without underscores, collective); the first that matches wins.
_PARTS: tuple[tuple[str, str], ...] = (
    ("barrier", "barrier"),
    ("allreduce", "all_reduce"),
    ("crossdevicereduce", "all_reduce"),
    ("allgather", "all_gather"),
    ("reducescatter", "reduce_scatter"),
    ("alltoall", "all_to_all"),
    ("broadcast", "broadcast"),
    ("sendrecv", "send_recv"),
    ("coalesced", "coalesced"),
    ("scatter", "scatter"),
    ("gather", "gather"),
    ("send", "send"),
    ("recv", "recv"),
)

JOINT = frozenset({"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"})
"""Collectives that all ranks of the group leave together."""

_PROTOCOL = re.compile(r"^ncclKernel_[A-Za-z]+_(RING|TREE|COLLNET\w*|NVLS\w*)_(LL128|LL|SIMPLE)_")

_ELEMENT_BYTES = {
    "double": 8,
    "long": 8,
    "complexfloat": 8,
    "complexdouble": 16,
    "float": 4,
    "int": 4,
    "half": 2,
    "bfloat16": 2,
    "short": 2,
    "byte": 1,
    "char": 1,
    "bool": 1,
}


def collective_of(name: str) -> str:
    """`all_reduce`, `all_gather`, ...; "" when the name does not tell (`ncclDevKernel_Generic`)."""
    # The argument list of a kernel names types, not the work.
    low = name.partition("(")[0].lower().replace("_", "")
    for part, collective in _PARTS:
        if part in low:
            return collective
    return "reduce" if "reduce" in low else ""


def element_bytes(dtype: str) -> int:
    """Size of one element of a c10 scalar type; 0 when unknown."""
    low = dtype.lower()
    return 1 if low.startswith("float8") else _ELEMENT_BYTES.get(low, 0)


def nccl_protocol(name: str) -> tuple[str, str] | None:
    """Algorithm and protocol in the name of a kernel of NCCL up to 2.17: ("RING", "LL").

    Names since 2.18 (`ncclDevKernel_*_RING_LL`) name the vehicle of the launch, whatever protocol
    runs: None.
    """
    match = _PROTOCOL.match(name)
    return (match[1], match[2]) if match else None
