"""Hooks, wrappers and empty modules take host time between the operators.

## What it finds
Hooks that run around `forward`, modules that only call another module, and modules that run no
operator at all, when together they take a sizeable part of the step, profiling overhead taken off.

## Why it matters
Calling a module costs a microsecond or two, with hooks five to ten and whatever the hook does.
In a model of many small layers the host spends that time in place of launching.

## How to fix it
Remove hooks that were left from debugging or counting, unpack wrappers, drop `nn.Identity` and
switched-off dropout. `torch.compile` removes the calls altogether.

## Limits
Only what can be removed counts; the calls of modules that do work stay. Hooks of FSDP, DDP and
torch itself are needed and not counted. Wants Python stacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.intervals import Intervals, measure, merge, subtract
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import (
    Flags,
    net_ns,
    own_stretches,
    steady_extent,
)
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.frames import is_capture_frame, is_torch_file, parse_frame
from kinetoscope.trace.kinds import Kind
from kinetoscope.trace.torch_frames import is_forward, is_module_call, is_parallel_wrapper
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When module calls are worth a word."""

    min_share: float = 0.05
    """What could be removed, as a share of the likely step."""
    cautious: float = 0.5
    """Part of it that goes away at the cautious end."""


@dataclass(frozen=True)
class _Calls:
    """Call-tree nodes that can go: hooks, modules around one other module, empty modules.

    `calling` flags the frames that exist only to call hooks.
    """

    hooks: IntArray
    calling: Flags
    wrappers: IntArray
    inner: IntArray
    empty: IntArray


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the calls that do no work, and replay the steps without them."""
    tree, calls = analysis.trace.tree, _calls(analysis)
    hooks = steady_extent(analysis, tree.rows[calls.hooks])
    wrapping = subtract(
        steady_extent(analysis, tree.rows[calls.wrappers]),
        steady_extent(analysis, tree.rows[calls.inner]),
    )
    empty = steady_extent(analysis, tree.rows[calls.empty])
    calling = own_stretches(analysis, calls.calling)
    spare = merge(hooks, calling, wrapping, empty)
    spent = net_ns(analysis, spare)
    share = spent / max(analysis.step_time.mid, 1)
    if share < options.min_share:
        return
    each = [analysis.in_steps(tree.rows[n]).size / analysis.steps_on_host for n in _parts(calls)]
    rows = np.concatenate([tree.rows[n] for n in (calls.hooks, calls.inner, calls.empty)])
    yield Hit(
        message=f"{_what(each)} take {duration(spent)} of each step on the host "
        f"({percent(share)}) and compute nothing for the model.",
        evidence=(
            Evidence("removable_time", spent, "ns", "estimated"),
            Evidence("removable_recorded", measure(spare) // analysis.steps_on_host, "ns"),
            *(
                Evidence(name, round(number, 1), "count")
                for name, number in zip(("hooks", "wrappers", "empty_modules"), each, strict=True)
            ),
        ),
        locations=analysis.locations(rows, _weights(analysis, calls, (hooks, wrapping, empty))),
        fix=Fix(
            summary="Remove the hooks and the modules that only pass on, or compile the model.",
            snippet="handle = layer.register_forward_hook(count)\n"
            "handle.remove()   # when it is not needed any more",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",
        ),
        gain=analysis.gain(
            Change(host_cut=spare, host_cut_factor=options.cautious), Change(host_cut=spare)
        ),
        confidence=0.7,
        claims=spare,
        at_most="medium",
    )


def _parts(calls: _Calls) -> tuple[IntArray, IntArray, IntArray]:
    return calls.hooks, calls.wrappers, calls.empty


def _what(each: list[float]) -> str:
    names = ("calls of hooks", "modules around one other module", "modules without an operator")
    return (
        " and ".join(
            f"{count(round(number))} {name}"
            for number, name in zip(each, names, strict=True)
            if number >= 1
        )
        or "Calls of modules"
    )


def _weights(analysis: Analysis, calls: _Calls, spans: tuple[Intervals, ...]) -> IntArray:
    """Each group weighs what it costs, spread over its calls."""
    sizes = (calls.hooks.size, calls.inner.size, calls.empty.size)
    parts = [
        np.full(size, net_ns(analysis, span) // max(size, 1) + 1)
        for size, span in zip(sizes, spans, strict=True)
    ]
    return np.concatenate(parts).astype(np.int64)


def _calls(analysis: Analysis) -> _Calls:
    trace, tree = analysis.trace, analysis.trace.tree
    module = tree.kind == Kind.MODULE
    above = np.where(tree.parent >= 0, tree.module[np.maximum(tree.parent, 0)], -1)
    size = tree.rows.size
    children = np.bincount(above[module & (above >= 0)], minlength=size)
    works = (tree.kind == Kind.CPU_OP) & (tree.module >= 0)
    operators = np.bincount(tree.module[works], minlength=size)
    needed = trace.tree.named(is_parallel_wrapper)
    wrapper = module & (children == 1) & (operators == 0) & ~needed & (above >= 0)
    inner = np.flatnonzero(module & (above >= 0) & wrapper[np.maximum(above, 0)])
    # Torch records the operators of one thread, and the Python of all.
    seen = np.isin(tree.thread, np.unique(tree.thread[tree.kind == Kind.CPU_OP]))
    hooks = _hooks(analysis)
    calling = np.zeros(size, dtype=bool)
    calling[tree.parent[hooks]] = True
    return _Calls(
        hooks=np.flatnonzero(hooks),
        calling=calling,
        wrappers=np.flatnonzero(wrapper),
        inner=inner,
        empty=np.flatnonzero(module & seen & (children == 0) & (operators == 0) & ~needed),
    )


def _hooks(analysis: Analysis) -> Flags:
    """Frames of the program that `Module.__call__` calls beside its `forward`.

    A `forward` with a decorator is called through the decorator's frame, which is no hook.
    """
    trace, tree = analysis.trace, analysis.trace.tree
    above = np.maximum(tree.parent, 0)
    called = (tree.parent >= 0) & trace.tree.named(is_module_call)[above]
    hooks = called & (tree.kind == Kind.PYTHON) & trace.tree.named(_is_hook)
    around = nearest(hooks, tree.parent)
    forward = np.flatnonzero(trace.tree.named(is_forward) & (around >= 0))
    decorated = around[forward]
    hooks[decorated[tree.module[decorated] == tree.module[forward]]] = False
    return np.asarray(hooks)


def _is_hook(name: str) -> bool:
    frame = parse_frame(name)
    if frame is None or is_capture_frame(name):
        return False
    return not is_torch_file(frame.file) and not is_forward(name)


def _model(t: TraceBuilder, hook_us: float, decorator: str = "") -> None:
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("serve.py(10): answer", at + 2, 1_990)
        for i in range(20):
            begin = at + 10 + i * 95
            t.module(f"Linear_{i}", begin, 27 + hook_us)
            t.python("torch/nn/modules/module.py(1782): _call_impl", begin + 1, 25 + hook_us)
            if decorator:
                t.python(decorator, begin + 1.5, 23)
            t.python("torch/nn/modules/linear.py(130): forward", begin + 2, 22)
            t.op("aten::linear", begin + 3, 15)
            t.kernel("gemm", begin + 12, 3, launch_at=begin + 6)
            t.python("serve.py(30): count_calls", begin + 25, hook_us)


def _slow_hooks(t: TraceBuilder) -> None:
    _model(t, 60)


def _quick_hooks(t: TraceBuilder) -> None:
    _model(t, 1)


def _decorated(t: TraceBuilder) -> None:
    _model(t, 1, "models/outputs.py(1112): wrapper")


RULE = Rule(
    code="FW522",
    name="module-call-overhead",
    class_="framework",
    summary="Hooks, wrappers and empty modules take host time between the operators.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"stacks", "ops"}),
    evidence="E",
    references=("https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html",),
    examples=(
        Example("a hook of 60 µs around every layer", _slow_hooks, fires=True),
        Example("a hook of 1 µs around every layer", _quick_hooks, fires=False),
        Example("every forward inside of a decorator", _decorated, fires=False),
    ),
)
