"""Prompts of new requests hold up the tokens of the running ones.

## What it finds
A server's own marks of its steps (vLLM, SGLang) in which the time between two tokens is more than
three times the usual when a step with prompts comes in between.

## Why it matters
A prompt of thousands of tokens in one step makes all running requests wait for it. The mean hardly
shows it; the 99th percentile of the time between tokens does.

## How to fix it
Cut prompts into smaller chunks (vLLM: `--max-num-batched-tokens`, SGLang:
`--chunked-prefill-size`), or let other devices do the prompts (disaggregated prefill).

## Limits
Smaller chunks lengthen the time to the first token. Short recordings hold few such steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import serving_step
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, times

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.vllm.ai/en/latest/configuration/optimization.html#chunked-prefill"


class Thresholds(Options, frozen=True):
    """When prompts interfere."""

    min_tokens: int = 6
    """Intervals between tokens without a prompt, to know what is usual."""
    min_ratio: float = 3.0
    """Interval with a prompt over the usual one."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Compare the intervals between tokens with and without prompts in between."""
    rows, prompts, tokens = _marks(analysis)
    gaps, disturbed = _intervals(analysis, rows, prompts, tokens)
    calm = gaps[~disturbed]
    if calm.size < options.min_tokens:
        return
    usual = max(int(np.median(calm)), 1)
    late = disturbed & (gaps >= options.min_ratio * usual)
    if not late.any():
        return
    worst = int(gaps[late].max())
    yield Hit(
        message=(
            f"{count(int(late.sum()))} of {count(gaps.size)} tokens come after a step with prompts "
            f"and take up to {times(worst / usual)} as long as usual ({duration(worst)} in place "
            f"of {duration(usual)})."
        ),
        evidence=(
            Evidence("late_tokens", int(late.sum()), "count"),
            Evidence("longest_interval", worst, "ns"),
            Evidence("usual_interval", usual, "ns"),
            Evidence("p99_interval", int(np.percentile(gaps, 99)), "ns", "derived"),
        ),
        fix=Fix(
            summary="Cut prompts into smaller chunks, so that no step takes much longer than one "
            "that only generates.",
            snippet="vllm serve MODEL --max-num-batched-tokens 2048\n"
            "# SGLang: --chunked-prefill-size 2048",
            reference=_URL,
        ),
        confidence=0.7,
        at_least="low",
        at_most="low",
        keep=True,
    )


def _marks(
    analysis: Analysis,
) -> tuple[IntArray, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Rows of the server's steps, and which hold prompts and which tokens."""
    trace = analysis.trace
    names = trace.column("name_id")
    kinds = {i: serving_step(name) for i, name in enumerate(trace.names)}
    known = [i for i, kind in kinds.items() if kind is not None]
    rows = analysis.rows(Kind.ANNOTATION)
    rows = rows[np.isin(names[rows], known)]
    found = [kinds[int(i)] or (False, False) for i in names[rows]]
    flags = np.array(found, dtype=bool).reshape(-1, 2)
    return rows, flags[:, 0], flags[:, 1]


def _intervals(
    analysis: Analysis,
    rows: IntArray,
    prompts: npt.NDArray[np.bool_],
    tokens: npt.NDArray[np.bool_],
) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """Time from one step with tokens to the next, and whether prompts were handled meanwhile."""
    ts = analysis.trace.column("ts_ns")[rows]
    at = np.flatnonzero(tokens)
    seen = np.concatenate(([0], np.cumsum(prompts)))
    # A step that holds prompts itself delays the token that it makes: it counts from its start.
    disturbed = seen[at[1:]] - seen[at[:-1]] > 0
    return np.diff(ts[at]), disturbed


def _server(t: TraceBuilder, prompt_us: float) -> None:
    at = 0.0
    for step in range(10):
        prompt = step == 5
        length = prompt_us if prompt else 1_000.0
        kind = (
            "context_2(sq4096)_generation_8(sq8)" if prompt else "context_0(sq0)_generation_8(sq8)"
        )
        t.annotation(f"execute_8_{kind}", at, length - 20)
        t.kernel("gemm", at + 20, length - 60, launch_at=at + 10)
        at += length


def _long_prompt(t: TraceBuilder) -> None:
    _server(t, 12_000)


def _chunk(t: TraceBuilder) -> None:
    _server(t, 1_800)


RULE = Rule(
    code="IN616",
    name="prefill-decode-interference",
    class_="framework",
    summary="Prompts of new requests hold up the tokens of the running ones.",
    check=check,
    options=Thresholds(),
    evidence="ST",
    references=(_URL,),
    examples=(
        Example("a prompt of 12 ms between tokens of 1 ms", _long_prompt, fires=True),
        Example("a chunk of 1.8 ms between tokens of 1 ms", _chunk, fires=False),
    ),
)
