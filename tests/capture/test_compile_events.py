"""What Dynamo notes, in the shapes that it has had. Needs no torch."""

from __future__ import annotations

import sys
from traceback import FrameSummary
from types import CodeType, SimpleNamespace
from typing import Any

import pytest

from kinetoscope.capture.compiling import CompileEvents, kept_breaks, recompilations


def _dynamo(monkeypatch: pytest.MonkeyPatch, **parts: Any) -> None:
    monkeypatch.setitem(sys.modules, "torch._dynamo.utils", SimpleNamespace(**parts))  # type: ignore[arg-type]


def _forward() -> CodeType:
    return compile("\n\ndef forward(x):\n    return x\n", "model.py", "exec").co_consts[0]  # type: ignore[no-any-return]


def test_a_break_that_only_the_list_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch 2.4 logs no place for a branch on data."""
    stack = [FrameSummary("train.py", 7, "main"), FrameSummary("model.py", 22, "forward")]
    one = SimpleNamespace(reason="generic_jump TensorVariable()\nmore", user_stack=stack)
    empty = SimpleNamespace(reason="at the first instruction", user_stack=[])
    _dynamo(monkeypatch, graph_break_reasons=[one, one, empty])
    row = {
        "kind": "graph_break",
        "file": "model.py",
        "line": 22,
        "function": "forward",
        "reason": "generic_jump TensorVariable()",
        "count": 2,
    }
    assert kept_breaks() == [row]
    assert CompileEvents().table() == [row]


def test_what_the_logger_said_is_not_said_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stack = [FrameSummary("model.py", 22, "forward")]
    _dynamo(monkeypatch, graph_break_reasons=[SimpleNamespace(reason="the same", user_stack=stack)])
    events = CompileEvents()
    events.add("Graph break in user code at model.py:22\nGraph Break Reason: a branch on data")
    assert [(row["line"], row["count"]) for row in events.table()] == [(22, 1)]


def test_recompilations_of_a_torch_that_keeps_the_guards_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As 2.4 does: for each compilation the guards of all graphs before, the newest first."""
    code = _forward()
    place = {"co_name": "forward", "co_filename": "model.py", "co_firstlineno": 3}
    entries = [SimpleNamespace(**place, cache_size=size) for size in range(4)]
    kept = ["s == 0", "s == 1", "s == 0", "s == 2   ", "s == 1", "s == 0"]
    _dynamo(monkeypatch, get_compilation_metrics=lambda: entries, guard_failures={code: kept})
    assert recompilations() == [
        {
            "kind": "recompile",
            "file": "model.py",
            "line": 3,
            "function": "forward",
            "count": 3,
            "reason": "s == 2",
        }
    ]


def test_recompilations_of_a_torch_that_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"co_name": "forward", "co_filename": "model.py", "co_firstlineno": 3}
    first = SimpleNamespace(**place, cache_size=0, recompile_reason=None)
    again = SimpleNamespace(
        **place,
        cache_size=1,
        recompile_reason="0/0: s == 0  # return x * s  # model.py:9 in forward",
    )
    _dynamo(monkeypatch, get_compilation_metrics=lambda: [first, again], guard_failures={})
    (row,) = recompilations()
    assert (row["count"], row["reason"], row["guard_line"]) == (1, "0/0: s == 0", 9)


def test_a_dynamo_without_any_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    _dynamo(monkeypatch)
    assert CompileEvents().table() == []
