"""A sequence is computed anew as a whole for every position that is added to it.

## What it finds
Rounds of inference in which the same layers run on a sequence that is a little longer each time:
the products with the model's weights get as many more rows in each round as were added.

## Why it matters
In a causal model nothing that was computed for earlier positions changes when one is added. Read
again from the start, a text of n tokens costs n squared over two positions in place of n.

## How to fix it
Keep the keys and values of each attention layer and give the model only what is new:
`use_cache=True` in transformers' `generate`; in a model of your own a buffer of keys and values
for each layer, written at the current position. Recurrent and convolutional models keep their
state or the last inputs.

## Limits
A model that is not causal (attention in both directions) changes everything with each position:
nothing of it can be kept. A sequence that is padded to a fixed length does not grow, so this rule
does not see it. What a cache allows beyond that (CUDA graphs) is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.metrics.regrowth import Regrowth, regrowths
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Location
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CACHE = "https://huggingface.co/docs/transformers/kv_cache"
_WRITES = 2
"""Small copies that a layer of attention needs to store what is new: keys and values."""
_WRITE_NS = 10_000
"""Host time of one: a slice, a copy and its launch."""


class Thresholds(Options, frozen=True):
    """When computing a prefix again is worth a word."""

    min_share: float = 0.05
    """Share of the busy time in rounds after the first one."""
    reached: tuple[float, float, float] = (0.2, 0.4, 0.7)
    """Share of the memory's bandwidth at which products of few rows read their weights, and
    attention with one query its keys."""


@dataclass(frozen=True)
class _Again:
    """Device events that work on all positions in rounds after the first.

    rows, ns: the events. part: share of their positions that is new. needed: bytes that must be
    read even for one position; layers: attentions of one round.
    """

    rows: IntArray
    ns: IntArray
    part: np.ndarray
    needed: np.ndarray
    layers: int


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay with only the first round as it was, and the later ones with what is new."""
    found = regrowths(analysis.roof.costs, device_work(analysis))
    if not found:
        return
    again = _again(analysis, found)
    share = busy_share(analysis, again.rows)
    if share < options.min_share:
        return
    longest = max(found, key=lambda one: one.sizes.size)
    rounds = longest.sizes.size
    known = longest.sizes // longest.sequences
    part = 1 - float(np.average(again.part, weights=again.ns))
    spent = per_step_ns(analysis, again.rows)
    yield Hit(
        message=(
            f"A sequence grows in {count(rounds)} rounds, from {count(int(known[0]))} to "
            f"{count(int(known[-1]))} positions, and each round computes all of them: "
            f"{duration(spent)} a step, {percent(min(share, 1.0))} of the device's busy time, "
            f"{percent(part)} of it for positions that were known."
        ),
        evidence=(
            Evidence("time_in_later_rounds", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("rounds", rounds, "count"),
            Evidence("known_part", round(part, 4), "ratio", "derived"),
        ),
        locations=_loop(analysis, longest),
        fix=Fix(
            summary="Keep each layer's keys and values, and compute only the new position.",
            snippet="out = model(new, past_key_values=out.past_key_values, use_cache=True)\n"
            "new = out.logits[:, -1:].argmax(-1)   # in place of model(whole_text)",
            reference=_CACHE,
        ),
        gain=analysis.gain(*_changes(analysis, found, again, options)),
        confidence=0.9 if longest.joined else 0.7,
        claims=extent_of(analysis, again.rows),
        # Where the host limits each round, nothing is gained before the text is longer.
        keep=True,
        at_least="low",
    )


def _again(analysis: Analysis, found: tuple[Regrowth, ...]) -> _Again:
    """The events of later rounds whose operators take all positions."""
    work = device_work(analysis)
    chosen: list[int] = []
    part: list[float] = []
    needed: list[float] = []
    layers = 0
    for one in found:
        for index, here in enumerate(_rounds(work, one)):
            read = _all_positions(work, here, one.lengths(index))
            chosen += read
            part += [one.added / float(one.sizes[index])] * len(read)
            needed += read.values()
        last = work.family[here]
        layers = max(layers, int(np.isin(last, (Family.ATTENTION, Family.SOFTMAX)).sum()))
    which = np.array(chosen, dtype=np.int64)
    return _Again(work.rows[which], work.ns[which], np.array(part), np.array(needed), layers)


def _rounds(work: DeviceOps, one: Regrowth) -> list[IntArray]:
    """Positions of the events of each round; the first round has to be computed."""
    edges = np.append(one.starts, one.end + 1)
    at = np.searchsorted(edges, work.at, side="right") - 1
    known = work.op >= 0
    return [np.flatnonzero(known & (at == index)) for index in range(1, one.starts.size)]


def _all_positions(work: DeviceOps, here: IntArray, lengths: frozenset[int]) -> dict[int, float]:
    """Those of the events that work on all positions, with the bytes that one position needs."""
    found = {}
    for group in work.groups(here):
        matrix = int(work.family[group[0]]) in _READS_MORE
        needed = _needed(args_of(work.trace, int(work.op[group[0]])), lengths, matrix=matrix)
        if needed is not None:
            found.update(dict.fromkeys(group.tolist(), needed))
    return found


_READS_MORE = frozenset({Family.GEMM, Family.ATTENTION})


def _needed(args: Args, lengths: frozenset[int], *, matrix: bool) -> float | None:
    """Bytes that one position needs: weights, keys, values; None: takes no tensor of all positions.

    The first tensor with all positions is the one of which only the new position is computed.
    """
    tensors = args.tensors()
    first = next((i for i in tensors if lengths & set(args.shape(i))), None)
    if first is None:
        return None
    return float(sum(args.bytes(i) for i in tensors if i != first)) if matrix else 0.0


def _changes(
    analysis: Analysis, found: tuple[Regrowth, ...], again: _Again, options: Thresholds
) -> list[Change]:
    """The events at the size of what is new, and small copies that store keys and values."""
    rounds = sum(one.starts.size - 1 for one in found)
    stores = _WRITES * again.layers * rounds / max(analysis.steps_on_host, 1)
    host = int(stores * _WRITE_NS)
    changes = []
    for reached, added in zip(options.reached, (host, host, 0), strict=True):
        new = again.ns * again.part
        if analysis.peaks is not None:
            new = np.maximum(new, again.needed / (reached * analysis.peaks.bandwidth_gbps))
        changes.append(Change(durations=(again.rows, shrunk(again.ns, new)), extra_host_ns=added))
    return changes


def _loop(analysis: Analysis, one: Regrowth) -> tuple[Location, ...]:
    """The innermost function of the user's that all rounds run in; else where their work is."""
    tree = analysis.trace.tree
    frame = int(tree.user_frame[tree.node_of[one.first]])
    until = int(tree.end[tree.node_of[one.last]])
    while frame >= 0 and tree.end[frame] < until:
        above = int(tree.parent[frame])
        frame = int(tree.user_frame[above]) if above >= 0 else -1
    rows = np.array([one.first], dtype=np.int64)
    if frame < 0:
        return places(analysis, rows, whole_step=True)
    calls = ("model", "generate", "forward")
    inner = analysis.locations(rows, np.array([1]), top=1)
    outer = analysis.locations(rows, np.array([2]), inside=np.array([frame]), calls=calls, top=1)
    named = {place.function for place in outer}
    return outer + tuple(place for place in inner if place.function not in named)


def _writing(t: TraceBuilder, *, cached: bool) -> None:
    texts, width = 4, 1024
    for request in range(2):
        begin = request * 10_000.0
        device = begin + 30
        t.step(begin, 9_990)
        for token in range(6):
            at, length = begin + 100 * token, 512 + token
            rows = texts * (1 if cached and token else length)
            took = 20.0 if cached and token else 1_500.0
            t.op("aten::addmm", at + 10, 16, dims=[[width], [rows, width], [width, width]])
            t.kernel("sm90_gemm", device, took, launch_at=at + 14)
            t.op("aten::argmax", at + 40, 12, dims=[[texts, 1, 32_000]])
            t.kernel("reduce_kernel", device + took, 10, launch_at=at + 44)
            t.op("aten::cat", at + 60, 12, dims=[[[texts, length], [texts, 1]], []])
            t.kernel("CatArrayBatchedCopy", device + took + 10, 5, launch_at=at + 64)
            device += took + 15
        t.sync(begin + 600, device - begin - 590)


def _read_again(t: TraceBuilder) -> None:
    _writing(t, cached=False)


def _kept(t: TraceBuilder) -> None:
    _writing(t, cached=True)


RULE = Rule(
    code="IN622",
    name="prefix-computed-again",
    class_="compute",
    summary="A sequence is computed anew as a whole for every position that is added to it.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes"}),
    evidence="T",
    references=(_CACHE,),
    examples=(
        Example("the whole text read for each of six tokens", _read_again, fires=True),
        Example("the text read once, then one token at a time", _kept, fires=False),
    ),
)
