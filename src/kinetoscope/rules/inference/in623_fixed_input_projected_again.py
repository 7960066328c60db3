"""Keys and values of an input that does not change are projected again for every token.

## What it finds
Tokens that are chosen one after another, each of which needs products of many rows a sequence,
the same in each round, on an input that nothing in the rounds can have made: an image, a recording
or a text to translate.

## Why it matters
What a decoder looks at is encoded once. Its keys and values follow from it and from the weights
alone, so they are the same for every token; a thousand positions projected for each of a hundred
tokens are a hundred times the work.

## How to fix it
Project once, before the first token, and hand the layers what they need: in transformers the
cross-attention part of `past_key_values`, in a model of your own an argument `memory=(keys,
values)` for each layer.

## Limits
What changed is told by the sizes of tensors: an operator whose result may be a new input makes this
rule silent, and so does an input that is encoded again in each round. Rounds are recognised by a
token that is chosen (`argmax`, `multinomial`, `topk`) and then looked up in an embedding. Products
of which the tokens of a beam need their own copy are counted in full.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps
from kinetoscope.metrics.projected import projected_again
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules._inside import host_with_callers
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CACHE = "https://huggingface.co/docs/transformers/kv_cache"


class Thresholds(Options, frozen=True):
    """When projecting again is worth a word."""

    min_share: float = 0.05
    """Share of the busy time in rounds after the first one."""
    host: tuple[float, float, float] = (0.0, 0.9, 1.0)
    """Part of the operators' host time that goes with them; at worst the kept ones are checked and
    sliced instead."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay without those products in rounds after the first one."""
    work = device_work(analysis)
    found = projected_again(analysis.roof.costs, work)
    if not found:
        return
    again = np.unique(np.concatenate([one.events for one in found]))
    rows = work.rows[again]
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    most = max(found, key=lambda one: one.products.size)
    positions = most.rows // most.sequences
    products = most.products.size / max(np.unique(analysis.trace.steps.of(work.at[again])).size, 1)
    yield Hit(
        message=(
            f"For each of {count(most.rounds)} tokens, {count(positions)} positions of an input "
            f"that does not change are projected again: {count(round(products))} products a step "
            f"after the first token, {duration(spent)}, {percent(min(share, 1.0))} of the "
            f"device's busy time."
        ),
        evidence=(
            Evidence("time_in_later_rounds", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("rounds", most.rounds, "count"),
            Evidence("positions", positions, "count"),
        ),
        locations=places(analysis, rows, calls=("linear", "forward"), whole_step=True),
        fix=Fix(
            summary="Project the keys and values of the fixed input once, before the first token.",
            snippet="memory = [layer.project(encoded) for layer in layers]\n"
            "for _ in range(tokens):\n    x = layer(x, memory=memory[i])",
            reference=_CACHE,
        ),
        gain=analysis.gain(*_changes(work, again, options)),
        confidence=0.8,
        claims=extent_of(analysis, rows),
        keep=True,
        at_least="low",
    )


def _changes(work: DeviceOps, again: IntArray, options: Thresholds) -> list[Change]:
    calls = np.unique(work.call[again])
    host = host_with_callers(work, again)
    return [
        Change(drop_calls=calls[calls >= 0], host_cut=host, host_cut_factor=part)
        for part in options.host
    ]


def _captions(t: TraceBuilder, *, projected_once: bool, updated: bool = False) -> None:
    """Requests of six tokens for 8 sequences that look at 256 positions of something."""
    texts, positions, width, words = 8, 256, 512, 8_000
    for request in range(3):
        begin = request * 6_000.0
        device = begin + 900
        t.step(begin, 5_990)
        for token in range(6):
            at = begin + 120 * token
            dims = [[words, width], [texts], [], [], []]
            t.op("aten::embedding", at + 10, 12, dims=dims, types=["c10::BFloat16", "long int"])
            t.kernel("indexSelectSmallIndex", device, 3, launch_at=at + 14)
            device += 3
            if updated:
                t.op("aten::add_", at + 24, 12, dims=[[texts, positions, width], [texts, 1, width]])
                t.kernel("elementwise_kernel", device, 20, launch_at=at + 28)
                device += 20
            if not projected_once or token == 0:
                rows = texts * positions
                dims = [[2 * width], [rows, width], [width, 2 * width]]
                t.op("aten::addmm", at + 40, 16, dims=dims)
                t.kernel("sm90_gemm", device, 400, launch_at=at + 44)
                device += 400
            dims = [[texts, 8, 1, 64], [texts, 8, positions, 64], [texts, 8, positions, 64]]
            t.op("aten::_scaled_dot_product_flash_attention", at + 60, 16, dims=dims)
            t.kernel("flash_fwd_splitkv_kernel", device, 40, launch_at=at + 64)
            t.op("aten::argmax", at + 80, 12, dims=[[texts, words]])
            t.kernel("reduce_kernel", device + 40, 10, launch_at=at + 84)
            device += 50
        t.sync(begin + 740, device - begin - 730)


def _again(t: TraceBuilder) -> None:
    _captions(t, projected_once=False)


def _once(t: TraceBuilder) -> None:
    _captions(t, projected_once=True)


def _updated(t: TraceBuilder) -> None:
    _captions(t, projected_once=False, updated=True)


RULE = Rule(
    code="IN623",
    name="fixed-input-projected-again",
    class_="compute",
    summary="Keys and values of an input that does not change are projected again for every token.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "ops", "shapes"}),
    evidence="T",
    references=(_CACHE,),
    examples=(
        Example("256 positions projected for each of six tokens", _again, fires=True),
        Example("projected once, before the first token", _once, fires=False),
        Example("an input that each token changes", _updated, fires=False),
    ),
)
