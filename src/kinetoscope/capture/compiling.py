"""Graph breaks and recompilations with their reason and line, as Dynamo itself notes them.

Graph breaks go into a logger that is off by default. A handler of ours listens there without
printing anything; it costs nothing but when something is compiled. Recompilations stand in
Dynamo's compilation metrics, which it keeps for its last compilations anyway.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
from collections.abc import Callable
from typing import Any

from kinetoscope.capture.torch_parts import BACKENDS, BREAKS, GUARDS, METRICS

_LOGGER = "torch._dynamo.symbolic_convert.__graph_breaks"
_MOST = 50
_PLACE = re.compile(r"Graph break.*?(?:user code )?at (?P<file>\S[^\n:]*?):(?P<line>\d+)")
_ORIGIN = re.compile(r"# ?(?P<file>\S+\.py):(?P<line>\d+)")
_FRAME = re.compile(r'^\s*File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)', re.M)


_ARGUMENTS = ("mode", "backend", "fullgraph", "dynamic", "options")


class CompileCalls:
    """Notes the arguments of `torch.compile`: nothing of the mode is kept by what it returns."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def install(self, replace: Callable[[Any, str, Any], None], told: Callable[[], None]) -> None:
        """Wrap `torch.compile`.

        Args:
            replace: sets an attribute so that it can be put back.
            told: called whenever the program has called it.
        """
        torch = sys.modules["torch"]
        original = torch.compile

        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            self._note({name: kwargs.get(name) for name in _ARGUMENTS})
            compiled = original(*args, **kwargs)
            told()
            return compiled

        replace(torch, "compile", compile_)

    def _note(self, given: dict[str, Any]) -> None:
        plain = {k: v if isinstance(v, bool | str) else str(v)[:200] for k, v in given.items() if v}
        if plain not in self.found and len(self.found) < _MOST:
            self.found.append(plain)


class CompileEvents:
    """Collects what Dynamo logs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], dict[str, Any]] = {}

    def install(self) -> Callable[[], None]:
        """Listen from now on; returns how to stop."""
        logger = logging.getLogger(_LOGGER)
        handler = _Handler(self.add)
        level, propagate = logger.level, logger.propagate
        if not logger.isEnabledFor(logging.DEBUG):  # else the user wants to see it (TORCH_LOGS)
            logger.propagate = False
        logger.addHandler(handler)
        logger.setLevel(logging.DEBUG)

        def stop() -> None:
            logger.removeHandler(handler)
            logger.setLevel(level)
            logger.propagate = propagate

        return stop

    def add(self, text: str) -> None:
        """Take one message of Dynamo apart."""
        match = _PLACE.search(text)
        if match is None:
            return
        file, line = match["file"].strip(), int(match["line"])
        first = {
            "kind": "graph_break",
            "file": file,
            "line": line,
            "function": _function_at(text, file, line),
            "reason": _break_reason(text)[:300],
            "count": 0,
        }
        self._found.setdefault((file, line), first)["count"] += 1

    def table(self) -> list[dict[str, Any]]:
        """Each place once, the most frequent first."""
        rows = [*(self._found.values() or kept_breaks()), *recompilations()]
        return sorted(rows, key=lambda row: -int(row["count"]))[:_MOST]


def may_compile() -> bool:
    """Did the program ask Dynamo to compile anything? True where this torch does not tell.

    Dynamo is imported by more than programs that compile: optimizers and transformers do it. It
    keeps each backend that it was given; None is that of functions which are not to be compiled.
    """
    if BACKENDS.module not in sys.modules:
        return False
    backends = BACKENDS.get()
    return backends is None or any(each is not None for each in list(backends.values()))


def kept_breaks() -> list[dict[str, Any]]:
    """Graph breaks that Dynamo keeps in a list: all where its logger says no place (2.4)."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for kept in BREAKS.get() or ():
        if not kept.user_stack:
            continue
        place = kept.user_stack[-1]
        first = {
            "kind": "graph_break",
            "file": place.filename,
            "line": place.lineno,
            "function": place.name,
            "reason": kept.reason.split("\n", 1)[0][:300],
            "count": 0,
        }
        found.setdefault((place.filename, place.lineno), first)["count"] += 1
    return list(found.values())


def recompilations() -> list[dict[str, Any]]:
    """Functions that were compiled again, with the guard that failed last."""
    metrics = METRICS.get()
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for entry in metrics() if metrics is not None else ():
        file, line = getattr(entry, "co_filename", None), getattr(entry, "co_firstlineno", None)
        reason = _why_again(entry)
        if not reason or file is None or line is None:
            continue
        row = found.setdefault(
            (file, line),
            {
                "kind": "recompile",
                "file": file,
                "line": line,
                "function": str(getattr(entry, "co_name", "")),
                "count": 0,
            },
        )
        row.update(_guard(str(reason)))
        row["count"] += 1
    return list(found.values())


def _why_again(entry: Any) -> str | None:
    """Why something was compiled again; None when it was not.

    Older torch (2.4) keeps the guards that failed apart: for each compilation those of all graphs
    that there were by then, the newest graph first.
    """
    if hasattr(entry, "recompile_reason"):
        return entry.recompile_reason or None
    graphs = int(getattr(entry, "cache_size", 0))
    for code, reasons in (GUARDS.get() or {}).items() if graphs else ():
        if (code.co_filename, code.co_firstlineno) == (entry.co_filename, entry.co_firstlineno):
            return str(reasons[-min(graphs, len(reasons))]) if reasons else None
    return None


def _guard(reason: str) -> dict[str, Any]:
    """The guard that failed, and the line that made Dynamo set it, when it says so."""
    text = " ".join(reason.split())
    guard, _, origin = text.partition(" # ")
    facts: dict[str, Any] = {"reason": guard.strip()[:300]}
    match = _ORIGIN.search(origin)
    if match is not None:
        facts["guard_line"] = int(match["line"])
    return facts


def _function_at(text: str, file: str, line: int) -> str:
    """The function of a line, by the traceback in the message."""
    for match in _FRAME.finditer(text):
        if match["file"] == file and int(match["line"]) == line:
            return match["function"]
    return ""


def _break_reason(text: str) -> str:
    """The short name of the reason: what stands after the first empty line, else the first line."""
    head, _, rest = text.partition("\n\n")
    named = rest.lstrip().split("\n", 1)[0].strip()
    if named and not named.startswith(("User code", "File")):
        return named
    lines = head.split("\n")
    return lines[1].partition(":")[2].strip() if len(lines) > 1 else ""


class _Handler(logging.Handler):
    def __init__(self, take: Callable[[str], None]) -> None:
        super().__init__(logging.DEBUG)
        self._take = take

    def emit(self, record: logging.LogRecord) -> None:
        """Part of logging's protocol."""
        try:
            text = record.getMessage()
        except (TypeError, ValueError):  # arguments that do not fit the format
            return
        self._take(text)
