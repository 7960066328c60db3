"""Preparing the request on the host takes longer than the model.

## What it finds
In a program without training, the host spends a sizeable part of each request on the data itself
before it copies it to the device (decoding, resizing, tokenising, feature extraction in NumPy or
Python), or on the results after it has copied them back (an `argmax` in NumPy over all scores).
The device is idle meanwhile.

## Why it matters
The latency of a request is preparation plus model, and one process serves no more requests than
its Python thread can prepare, whatever the device could do.

## How to fix it
Copy the raw data and compute on the device (`torch.stft`, `torchvision.transforms.v2`,
`torchvision.io.decode_jpeg(device="cuda")`); use a compiled tokenizer or a batched library call;
or prepare the next requests in a pool of threads or processes while the model works on this one.

## Limits
If another thread or process prepares the next request at the same time, latency is lost but not
throughput. Without Python stacks the time before the copy is known but not what it was
spent on. Results below 64 KiB are not followed. Where the program needs all of the results (an
image to store), only the work on them can move to the device, and the copy stays. Where nothing
has to be read in the step (a sampled token that the next step takes), the wait for the copy goes
too: that is the best end of the range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import intersect, measure
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.data_loading._input import trains
from kinetoscope.rules.data_loading._preparation import (
    Preparation,
    aftermath,
    aftermath_gain,
    preparation,
    preparation_gain,
    preparation_places,
    share_of_step,
)
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


_MOSTLY = 0.5
"""Work before one copy that is to this part the work after another is told once."""


class Thresholds(Options, frozen=True):
    """When preparing requests is worth a word."""

    min_share: float = 0.05
    """Idle time during preparation as a share of the request; the border of DL101."""
    min_ns: int = 300_000
    """Less of it in a request is the Python that every server has."""
    min_unseen_ns: int = 1_000_000
    """The same without Python stacks, where the profiler's own `step()` cannot be told from it."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Measure the work before copies of data and after copies of results."""
    if trains(analysis):
        return
    before = preparation(analysis)
    after, copies = aftermath(analysis)
    finishes = _matters(analysis, after, options)
    if _matters(analysis, before, options) and not (finishes and _same_work(before, after)):
        yield _preparing(analysis, before)
    if finishes:
        yield _finishing(analysis, after, copies)


def _same_work(before: Preparation, after: Preparation) -> bool:
    """Do results come from the device, and go back after the host's work on them?"""
    both = measure(intersect(before.exposed, after.exposed))
    return both >= _MOSTLY * measure(before.exposed)


def _matters(analysis: Analysis, found: Preparation, options: Thresholds) -> bool:
    each = measure(found.exposed) // analysis.steps
    least = options.min_ns if analysis.has("stacks") else options.min_unseen_ns
    return share_of_step(analysis, found.exposed) >= options.min_share and each >= least


def _preparing(analysis: Analysis, found: Preparation) -> Hit:
    share = share_of_step(analysis, found.exposed)
    each = measure(found.exposed) // analysis.steps
    busy = analysis.busy_per_step_ns
    return Hit(
        message=f"The host prepares the data of each request for {duration(each)} while the "
        f"device is idle ({percent(share)} of the request); the device then works for "
        f"{duration(busy)}.",
        evidence=(
            Evidence("idle_during_preparation", each, "ns"),
            Evidence("idle_share", round(share, 4), "ratio", "derived"),
            Evidence("device_busy", busy, "ns"),
            Evidence("bytes_per_request", found.bytes // analysis.steps_on_host, "bytes"),
        ),
        locations=preparation_places(analysis, found),
        fix=Fix(
            summary="Copy the raw data and prepare it on the device, or prepare the next request "
            "in a pool while the model works on this one.",
            snippet="x = torch.from_numpy(raw).to(device, non_blocking=True)\n"
            "x = x.float().div_(255).sub_(mean).div_(std)  # on the device",
            reference="https://docs.pytorch.org/vision/stable/transforms.html",
        ),
        gain=preparation_gain(analysis, found),
        confidence=0.7,
        claims=found.exposed,
    )


def _finishing(analysis: Analysis, found: Preparation, copies: IntArray) -> Hit:
    share = share_of_step(analysis, found.exposed)
    each = measure(found.exposed) // analysis.steps
    per_request = found.bytes // analysis.steps_on_host
    return Hit(
        message=f"The host copies {size(per_request)} of results of each request from the device "
        f"and works on them for {duration(each)}, while the device is idle "
        f"({percent(share)} of the request).",
        evidence=(
            Evidence("idle_after_copy", each, "ns"),
            Evidence("idle_share", round(share, 4), "ratio", "derived"),
            Evidence("device_busy", analysis.busy_per_step_ns, "ns"),
            Evidence("bytes_per_request", per_request, "bytes"),
        ),
        locations=preparation_places(analysis, found),
        fix=Fix(
            summary="Do that work on the device (`argmax`, `topk`, `multinomial`, thresholds, "
            "resizing) and copy only what it yields.",
            snippet="answer = scores.argmax(1).to(torch.uint8).cpu()  # not scores.cpu()",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.argmax.html",
        ),
        gain=aftermath_gain(analysis, found, copies),
        confidence=0.7,
        claims=found.exposed,
    )


def _numpy_first(t: TraceBuilder) -> None:
    for request in range(4):
        at = request * 10_000
        t.step(at, 10_000)
        t.python("serve.py(10): preprocess", at + 100, 8_000)
        t.op("aten::to", at + 8_200, 40)
        t.copy("HtoD Pageable", 1 << 20, at + 8_240, 90, launch_at=at + 8_210)
        t.kernel("conv", at + 8_400, 1_000, launch_at=at + 8_350)


def _numpy_last(t: TraceBuilder) -> None:
    for request in range(4):
        at = request * 10_000
        t.step(at, 10_000)
        t.kernel("conv", at + 100, 1_000, launch_at=at + 50)
        t.op("aten::to", at + 150, 1_260)
        t.copy("DtoH Pageable", 4 << 20, at + 1_100, 300, launch_at=at + 160, launch_dur=1_245)
        t.python("serve.py(30): label_map", at + 1_500, 8_400)


def _device_first(t: TraceBuilder) -> None:
    for request in range(4):
        at = request * 10_000
        t.step(at, 10_000)
        t.python("serve.py(10): preprocess", at + 100, 150)
        t.op("aten::to", at + 300, 40)
        t.copy("HtoD Pageable", 1 << 20, at + 340, 90, launch_at=at + 310)
        t.kernel("conv", at + 500, 9_700, launch_at=at + 450)


RULE = Rule(
    code="IN612",
    name="pre-post-processing-dominates",
    class_="data_loading",
    summary="Work on the host before or after the model dominates a request; the device waits.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="T",
    references=("https://docs.pytorch.org/vision/stable/transforms.html",),
    examples=(
        Example("8 of 10 ms spent in NumPy before the copy", _numpy_first, fires=True),
        Example(
            "8 of 10 ms spent in NumPy on scores copied from the device", _numpy_last, fires=True
        ),
        Example("a quick preparation before a long model", _device_first, fires=False),
    ),
)
