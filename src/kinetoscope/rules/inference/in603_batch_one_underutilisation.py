"""Requests go through the model one by one.

## What it finds
An inference program whose matrix products and convolutions have a first dimension of 1, called
again and again: several times in one function, or once in every step.

## Why it matters
A request of one sample fills a small part of the device, reads all weights for itself, and pays
the host's cost of every operator alone. 32 requests in one batch often take hardly longer than
one: 57 times the throughput were measured for a small network on an H200.

## How to fix it
Collect the requests that wait and run them as one batch (`torch.stack` or `torch.cat` of the
inputs). Servers do that for you: dynamic batching in Triton or TorchServe, continuous batching in
vLLM and SGLang.

## Limits
With a single client, or a latency target that leaves no time to wait, there is nothing to batch:
then capture the model in a CUDA graph instead. Where a step holds one request, the recording does
not show whether more of them wait, as with a robot's controller none do: there this is a hint, and
what makes that one request slow (FW501) comes first. Calls whose input is made from the last
answer (tokens of a sequence, steps of a sampler or a simulation), or that go on from the state of
the last one (a recurrent layer on a stream), are no queue.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.decoding import decodes
from kinetoscope.metrics.loops import Body, Loop, describe, find_loops
from kinetoscope.metrics.passes import model_calls
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import Severity
from kinetoscope.rules._collapse import (
    collapse_gain,
    host_share,
    host_time,
    loop_places,
)
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._optimizer import optimizer_steps
from kinetoscope.rules.inference._feeding import called, feeds_itself
from kinetoscope.rules.inference._throughput import throughput
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import count, duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_BATCHER = (
    "https://docs.nvidia.com/deeplearning/triton-inference-server/user-guide/docs/batcher.html"
)


class Thresholds(Options, frozen=True):
    """When single requests are worth a word."""

    min_requests: int = 4
    """Calls in one function, from which on they are a queue that could be one batch."""
    min_share: float = 0.3
    """Host time of the calls as a share of the steps."""
    batches: tuple[int, int, int] = (4, 8, 16)
    """Batch sizes to predict for when the recording does not show how many requests wait."""


@dataclass(frozen=True)
class _Requests:
    """Calls of the model, grouped by the function that makes them."""

    queues: list[Loop]
    body: Body
    in_step: bool
    """Do the queues lie inside steps? Otherwise each request is a step of its own."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find calls of the model with one sample and replay them as one batch."""
    trace = analysis.trace
    if (trace.links.backward_root >= 0).any() or analysis.get(optimizer_steps).rows.size:
        return
    found = _requests(analysis, options)
    if found is None or not found.body.batch_one or found.body.generates:
        return
    share = host_share(analysis, found.queues)
    if share < options.min_share or analysis.get(decodes) or feeds_itself(trace, found.queues[0]):
        return
    known = max(loop.repeats for loop in found.queues)
    queue = known >= options.min_requests
    if queue and found.in_step:
        gain = collapse_gain(analysis, found.queues)
    else:
        sizes = (known, known, known) if queue else options.batches
        gain = throughput(analysis, sizes)
    yield _hit(analysis, found, gain, known, queue)


def _hit(analysis: Analysis, found: _Requests, gain: Gain, known: int, queue: bool) -> Hit:
    one = np.concatenate([np.diff(np.append(q.starts, q.end)) for q in found.queues])
    usual = int(np.median(one))
    cap: Severity = "critical" if queue else "low"
    many = f"{count(known)} requests in a row" if queue else "requests"
    size = known if queue else 8
    return Hit(
        message=(
            f"The model is called with one sample at a time: {many}, {duration(usual)} each. "
            f"One batch of {size} would share weights, launches and the device."
        ),
        evidence=(
            Evidence("requests_in_a_row", known, "count"),
            Evidence("request_time", usual, "ns"),
            Evidence("products_per_request", found.body.products, "count"),
        ),
        locations=loop_places(analysis, found.queues),
        fix=Fix(
            summary="Collect waiting requests and run them as one batch, where none needs the "
            "answer of another.",
            snippet="answers = model(torch.cat(requests))",
            reference=_BATCHER,
        ),
        gain=gain,
        confidence=0.7 if queue else 0.4,
        claims=host_time(found.queues),
        at_most=cap,
        explains=queue,
    )


def _requests(analysis: Analysis, options: Thresholds) -> _Requests | None:
    """Calls of the outermost module; without stacks, loops of products with one sample."""
    trace = analysis.trace
    calls = model_calls(trace)
    if calls.size >= options.min_requests:
        queues = _by_function(trace, calls)
        body = describe(trace, _inside(trace, int(calls[calls.size // 2])))
        steps = trace.steps.edges
        number = [np.searchsorted(steps, q.starts[[0, -1]], side="right") for q in queues]
        in_step = all(first == last for first, last in number)
        return _Requests(queues, body, in_step)
    for loop in sorted(analysis.get(find_loops), key=lambda loop: loop.starts[0] - loop.end):
        body = describe(trace, loop)
        if body.batch_one and body.products >= 2 and not body.cell:
            alike = [
                other
                for other in analysis.get(find_loops)
                if other.body == loop.body and other.repeats == loop.repeats
            ]
            return _Requests(alike, body, in_step=True)
    return None


def _by_function(trace: Trace, calls: IntArray) -> list[Loop]:
    """The calls as loops, one for each run of the function that makes them."""
    tree = trace.tree
    frame = tree.user_frame[calls]
    step = np.searchsorted(trace.steps.edges, tree.start[calls], side="right")
    group = np.where(frame >= 0, frame, -1 - step)
    return [
        Loop(mine, 1, int(tree.thread[mine[0]]), tree.start[mine], int(tree.end[mine].max()))
        for mine in (calls[group == g] for g in np.unique(group))
    ]


def _inside(trace: Trace, call: int) -> Loop:
    """The operators that one call of the model makes, as a loop of one iteration."""
    tree = trace.tree
    ops = np.array(
        called(trace, int(tree.thread[call]), int(tree.start[call]), int(tree.end[call])),
        dtype=np.int64,
    )
    ops = ops if ops.size else np.array([call])
    return Loop(ops, ops.size, int(tree.thread[call]), tree.start[ops[:1]], int(tree.end[call]))


def _serve(t: TraceBuilder, samples: int, requests: int) -> None:
    for step in range(4):
        at = step * 4_000
        t.step(at, 4_000)
        t.python("serve.py(7): answer", at + 1, 3_990)
        for i in range(requests):
            begin = at + 10 + i * (3_900 // requests)
            t.module("Net_0", begin, 3_900 // requests - 20)
            for k in range(3):
                t.op(
                    "aten::linear", begin + 5 + 30 * k, 24, dims=[[samples, 256], [256, 256], [256]]
                )
                t.kernel("gemm", begin + 20 + 30 * k, 5, launch_at=begin + 10 + 30 * k)


def _queue(t: TraceBuilder) -> None:
    _serve(t, 1, 32)


def _batch(t: TraceBuilder) -> None:
    _serve(t, 32, 1)


RULE = Rule(
    code="IN603",
    name="batch-one-underutilisation",
    class_="framework",
    summary="Requests go through the model one by one instead of as a batch.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="T",
    remedies=("batch-size",),
    references=(_BATCHER,),
    examples=(
        Example("32 requests of one sample", _queue, fires=True),
        Example("one batch of 32 samples", _batch, fires=False),
    ),
)
