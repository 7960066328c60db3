"""nn.DataParallel copies the model to all devices in every step.

## What it finds
Calls of `nn.DataParallel` in at least half of the steps, with kernels on at least two devices.

## Why it matters
One process drives all devices: in each step it copies the parameters to every device, splits the
batch, launches all kernels from threads that share one interpreter lock, and gathers outputs and
gradients on the first device.

## How to fix it
`DistributedDataParallel` with one process for each device, started by `torchrun`.

## Limits
The prediction removes the copies and the host's work for them; that the devices no longer share one
interpreter comes on top, and what DDP's all-reduce costs goes off.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import clip, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.communication._ranges import host_time, launched_inside, ranges, steps_with
from kinetoscope.trace.distributed_frames import is_data_parallel_frame, is_data_parallel_spread
from kinetoscope.units import duration

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When it counts."""

    min_steps: float = 0.5
    """Part of the steps with a call."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the step without the copies of model and batch."""
    nodes = ranges(analysis, is_data_parallel_frame)
    devices = len(analysis.devices)
    if not nodes.size or devices < 2:
        return
    if steps_with(analysis, nodes) < options.min_steps * analysis.steps_on_host:
        return
    inside = host_time(analysis, ranges(analysis, is_data_parallel_spread))
    spent = measure(inside) // analysis.steps_on_host
    without = Change(host_cut=inside, drop_calls=launched_inside(analysis, inside))
    yield Hit(
        message=(
            f"nn.DataParallel drives {devices} devices from one process and spends "
            f"{duration(spent)} of each step copying model, batch and outputs."
        ),
        evidence=(
            Evidence("devices", devices, "count"),
            Evidence("copying", spent, "ns"),
        ),
        locations=analysis.locations(analysis.trace.tree.rows[nodes]),
        fix=Fix(
            summary=f"Use DistributedDataParallel with {devices} processes.",
            snippet=(
                "# torchrun --nproc_per_node=" + str(devices) + " train.py\n"
                'dist.init_process_group("nccl")\n'
                "model = DistributedDataParallel(model.to(rank), device_ids=[rank])"
            ),
            reference="https://docs.pytorch.org/docs/stable/notes/ddp.html",
        ),
        gain=analysis.gain(Change(host_cut=inside, host_cut_factor=0.5), without),
        confidence=0.9,
        claims=clip(inside, *analysis.times.host_window),
        at_least="high",
        keep=True,
    )


def _steps(t: TraceBuilder, *, frame: str) -> None:
    for i in range(4):
        at = 10_000 * i
        t.step(at, 10_000)
        t.python(frame, at + 10, 9_000)
        t.python("torch/nn/parallel/replicate.py(84): replicate", at + 20, 4_000)
        t.copy("PtoP", 64 << 20, at + 100, 3_500, launch_at=at + 50, device=1)
        for device in (0, 1):
            start = at + 4_100 + 50 * device
            t.kernel("gemm", start + 50, 4_000, launch_at=start, device=device)
        t.sync(at + 4_300, 4_000)


def _parallel(t: TraceBuilder) -> None:
    _steps(t, frame="torch/nn/parallel/data_parallel.py(150): forward")


def _own(t: TraceBuilder) -> None:
    _steps(t, frame="train.py(10): two_stages")


RULE = Rule(
    code="CM416",
    name="nn-dataparallel",
    class_="communication",
    summary="nn.DataParallel copies the model to all devices in every step.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "stacks"}),
    evidence="S",
    references=("https://docs.pytorch.org/docs/stable/notes/ddp.html",),
    examples=(
        Example("4 ms of replicate in each step", _parallel, True),
        Example("two devices, but a model split by hand", _own, False),
    ),
)
