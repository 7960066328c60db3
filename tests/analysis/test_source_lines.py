"""Lines by reading the source: every expected line is counted in the text of the program here."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest

from kinetoscope.analysis.locate import Locator
from kinetoscope.analysis.source_calls import only_hot_line, tokens_of
from kinetoscope.analysis.source_lines import Label, align
from kinetoscope.testing import TraceBuilder
from kinetoscope.trace.kinds import Kind

ATTEND = """\
def attend(q, k, v, fused):
    if fused:
        return scaled_dot_product_attention(q, k, v)
    scores = q @ k.mT
    scores = scores * 0.5
    weights = scores.softmax(-1)
    return (weights @ v).mul(2)
"""
LOOP = """\
def unroll(cell, xs, h):
    out = []
    for t in range(4):
        x = xs[:, t]
        h = cell(x, h)
        out.append(h * 2)
    return stack(out) * 2
"""


def named(*names: str) -> list[Label]:
    return [(frozenset({name}), False) for name in names]


def tokens(source: str) -> list:  # type: ignore[type-arg]
    return tokens_of(ast.parse(source).body[0])


def test_equal_operators_are_told_apart_by_their_order() -> None:
    events = named("mT", "matmul", "mul", "softmax", "matmul", "mul")
    assert align(events, tokens(ATTEND)) == [4, 4, 5, 6, 7, 7]


def test_a_branch_that_ran_is_not_taken_for_the_other() -> None:
    assert align(named("scaled_dot_product_attention"), tokens(ATTEND)) == [3]


def test_a_loop_starts_over_and_ends() -> None:
    module: Label = (frozenset(), True)
    one = [*named("slice", "select"), module, *named("mul", "append")]
    events = [*one, *one, *one, *named("stack", "mul")]
    lines = align(events, tokens(LOOP))
    assert lines == [4, 4, 5, 6, 6] * 3 + [7, 7]


def test_a_source_that_is_another_one_tells_nothing() -> None:
    assert align(named("conv2d", "relu", "add", "flatten", "mul"), tokens(ATTEND)) == [0] * 5


@pytest.mark.parametrize(
    ("body", "line"),
    [
        ("    ids = [table[c] for c in text]\n    return ids\n", 2),
        ("    n = 0\n    for c in text:\n        n += table[c]\n    return n\n", 4),
        ("    for c in text:\n        k = table[c]\n        seen[k] += 1\n", None),
        ("    a = [c for c in text]\n    b = [c for c in text]\n", None),
        ("    return table\n", None),
    ],
)
def test_own_time_is_on_a_line_only_where_one_loop_leaves_no_choice(
    body: str, line: int | None
) -> None:
    assert only_hot_line(ast.parse(f"def f(text):\n{body}").body[0]) == line


def attending(file: str) -> TraceBuilder:
    """A step that calls `attend` through a module; its second product is the longest."""
    t = TraceBuilder()
    t.python(f"{file}(9): train", 0, 400)
    t.module("Attention_0", 5, 300)
    t.python(f"{file}(1): attend", 10, 200)
    names = ("numpy_T", "matmul", "mul", "softmax", "matmul", "mul")
    for i, (name, dur) in enumerate(zip(names, (5, 20, 10, 15, 60, 10), strict=True)):
        t.op(f"aten::{name}", 20 + sum((5, 20, 10, 15, 60, 10)[:i]) + i, dur)
    return t


TRAIN = f"{ATTEND}\ndef train(net, x):\n    x = x\n    return net(x)\n"


def lines_of(locator: Locator, t: TraceBuilder, **how: object) -> list[tuple[object, ...]]:
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    dur = trace.column("dur_ns")[rows]
    found = locator.locations(rows, dur, **how)  # type: ignore[arg-type]
    return [(place.function, place.line, place.exact) for place in found]


def test_the_heaviest_line_of_a_function_comes_first(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(TRAIN)
    t = attending("net.py")
    trace = t.read()
    found = lines_of(Locator(trace, tmp_path), t)
    assert found[0] == ("attend", 7, True)  # 60 and 10 us
    assert found[1] == ("attend", 4, True)  # 20 and 5 us
    frame = int(np.flatnonzero(trace.tree.kind == Kind.PYTHON)[0])
    inside = np.full(6, frame, dtype=np.int64)
    assert lines_of(Locator(trace, tmp_path), t, inside=inside) == [("train", 11, True)]


def test_a_file_that_the_trace_names_by_its_whole_path_is_read(tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(TRAIN)
    t = attending(str(file))
    assert lines_of(Locator(t.read()), t)[0] == ("attend", 7, True)
    # The function lies elsewhere in what is there now: another file, which stays unread.
    file.write_text(f"# new\n{TRAIN}")
    (place, *_) = Locator(t.read()).locations(*_ops(t))
    assert (place.line, place.exact, place.snippet) == (1, False, None)


def _ops(t: TraceBuilder) -> tuple[np.ndarray, np.ndarray]:  # type: ignore[type-arg]
    trace = t.read()
    rows = np.flatnonzero(trace.column("kind") == Kind.CPU_OP)
    return rows, trace.column("dur_ns")[rows]
