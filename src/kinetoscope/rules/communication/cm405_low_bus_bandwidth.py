"""Large collectives reach much less than their link can carry.

## What it finds
With the recordings of all ranks of a group: collectives of at least 16 MiB whose best repetition,
without waiting, moves less than 40 % of what the devices' link carries. Groups of more than eight
ranks span hosts, whose network the recording does not name; they are compared with the best group
of the same job instead (below 60 % of it).

## Why it matters
A large message is limited by bandwidth alone. A healthy pair of H200 reaches 52 % of NVLink's rate
with NCCL; far less means another path than the intended one, such as PCIe or the host's memory.

## How to fix it
Run with `NCCL_DEBUG=INFO` and see which transport and how many channels NCCL chose; look for stale
`NCCL_*` settings, a container without access to NVLink or the network card, and compare with
nccl-tests.

## Limits
One rank cannot tell a slow link from waiting, so the rule needs all of them. Topology is not in a
recording: devices of a kind that has NVLink may be connected by PCIe alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted
from kinetoscope.metrics.comm import Message
from kinetoscope.metrics.intervals import Coverage
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._calls import comm_gain, exposed_comm
from kinetoscope.rules.communication.cm401_exposed_communication import hide
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import percent, rate, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """What is slow."""

    min_bytes: int = 16 << 20
    """Smaller messages are limited by latency (half of the bandwidth is reached at 4 MB)."""
    max_of_link: float = 0.40
    """Of the link's rate; a healthy pair reaches 0.52 with NVLink."""
    healthy_of_link: float = 0.52
    """What a fix is taken to reach."""
    max_of_best: float = 0.60
    """Of the best group of the job, where the link is unknown."""
    one_host: int = 8
    """Larger groups span hosts."""
    min_share: float = 0.02
    """Exposed time of these collectives as a share of the step."""


@dataclass(frozen=True)
class _Measured:
    """Bus bandwidth of one group, bytes/s, by its best large collective."""

    message: Message
    positions: IntArray
    best: float


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the best repetition of each group's large collectives with the link."""
    if not trusted(analysis) or not analysis.comm.on_device:
        return
    measured = _by_group(analysis, options)
    link = (analysis.peaks.link_gbps or 0.0) * 1e9 if analysis.peaks else 0.0
    fastest = max((m.best for m in measured), default=0.0)
    comm, found = analysis.comm, exposed_comm(analysis)
    stretches = Coverage(found.stretches).between(comm.start, comm.end)
    for each in measured:
        local = each.message.group_size <= options.one_host and link > 0
        bound = options.max_of_link * link if local else options.max_of_best * fastest
        exposed = np.zeros(comm.row.size, dtype=np.int64)
        exposed[each.positions] = stretches[each.positions]
        ns = int(exposed.sum()) // analysis.steps
        if each.best < bound and ns >= options.min_share * analysis.step_ns:
            wanted = options.healthy_of_link * link if local else fastest
            yield Hit(
                message=_message(each, link if local else fastest, local=local),
                evidence=(
                    Evidence("bus_bandwidth", round(each.best), "bytes_per_s", "derived"),
                    Evidence("compared_with", round(link if local else fastest), "bytes_per_s"),
                    Evidence("message", each.message.bytes, "bytes"),
                    Evidence("exposed_time", ns, "ns"),
                ),
                locations=analysis.locations(comm.row[each.positions], calls=("backward",)),
                fix=_FIX,
                gain=_gain(analysis, exposed, 1.0 - each.best / wanted),
                confidence=0.7,
                at_most="high",
                claims=found.stretches,
            )


_FIX = Fix(
    summary="Find out which path NCCL takes (NCCL_DEBUG=INFO), and compare with nccl-tests.",
    snippet="NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH torchrun ...",
    reference="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",
)


def _message(found: _Measured, against: float, *, local: bool) -> str:
    message = found.message
    whose = "the link's" if local else "the best group's"
    return (
        f"{message.collective.replace('_', '-').capitalize()} of {size(message.bytes)} over "
        f"{message.group_size} ranks runs at {rate(found.best, 'B')} at best, "
        f"{percent(found.best / against)} of {whose} {rate(against, 'B')}; waiting for late ranks "
        "is not counted."
    )


def _gain(analysis: Analysis, exposed: IntArray, part: float) -> Gain:
    ns, most = int(exposed.sum()) // analysis.steps, min(1.2 * part, 0.95)
    return comm_gain(
        analysis,
        hide(analysis, exposed, 0.3 * part),
        hide(analysis, exposed, part),
        hide(analysis, exposed, most),
        saved_ns=(int(part * ns), int(most * ns)),
    )


def _by_group(analysis: Analysis, options: Thresholds) -> list[_Measured]:
    matches, mine, comm = analysis.matches, analysis.place, analysis.comm
    here = np.flatnonzero(matches.present[mine] & matches.complete)
    at = matches.index[mine, here]
    large = comm.bytes[at] >= options.min_bytes
    here, at = here[large], at[large]
    found = []
    for group in np.unique(matches.group[here]).tolist():
        inside = matches.group[here] == group
        best, which = 0.0, -1
        for i, t in zip(at[inside].tolist(), matches.intrinsic[here[inside]].tolist(), strict=True):
            speed = comm.messages[comm.message[i]].bus_bandwidth(t)
            if speed > best:
                best, which = speed, i
        if which >= 0:
            found.append(_Measured(comm.messages[comm.message[which]], at[inside], best))
    return found


def _rank(t: TraceBuilder, us: int) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.kernel("gemm", at + 100, 3_000, launch_at=at + 50)
        t.all_reduce(at + 3_110, us, elements=16 << 20, launch_at=at + 70)
        t.sync(at + 120, 3_050 + us)


def _slow(t: TraceBuilder) -> None:
    _rank(t, 6_000)  # 64 MiB in 6 ms: 11 GB/s


def _fast(t: TraceBuilder) -> None:
    _rank(t, 288)  # 233 GB/s


RULE = Rule(
    code="CM405",
    name="low-bus-bandwidth",
    class_="communication",
    summary="Large collectives reach much less than their link can carry.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ranks", "device"}),
    evidence="T",
    references=("https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting.html",),
    examples=(
        Example("64 MiB between two H200 in 6 ms", _slow, True, peers=(_slow,)),
        Example("the same in 0.29 ms", _fast, False, peers=(_fast,)),
    ),
)
