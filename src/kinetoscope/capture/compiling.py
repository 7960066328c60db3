"""Graph breaks and recompilations with their reason and line, as Dynamo logs them.

Dynamo writes both into loggers that are off by default. A handler of ours listens there without
printing anything; it costs nothing but when something is compiled.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

_LOGGERS = {
    "graph_break": "torch._dynamo.symbolic_convert.__graph_breaks",
    "recompile": "torch._dynamo.guards.__recompiles",
}
_MOST = 50
_BREAK = re.compile(r"Graph break.*?(?:at|from user code at) (?P<file>\S[^\n:]*?):(?P<line>\d+)")
_AGAIN = re.compile(r"Recompiling function (?P<function>\S+) in (?P<file>[^\n]+?):(?P<line>\d+)")
_FRAME = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<function>\S+)')
_REASONS = re.compile(r"(?:Reason:|Graph Break Reason:|^\s*-)\s*(?P<reason>[^\n]+)", re.MULTILINE)


class CompileEvents:
    """Collects what Dynamo logs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, int, str], dict[str, Any]] = {}

    def install(self) -> Callable[[], None]:
        """Listen from now on; returns how to stop."""
        undo = []
        for kind, name in _LOGGERS.items():
            logger = logging.getLogger(name)
            handler = _Handler(lambda text, kind=kind: self.add(kind, text))  # type: ignore[misc]
            level = logger.level
            logger.addHandler(handler)
            logger.setLevel(logging.DEBUG)
            undo.append((logger, handler, level))

        def stop() -> None:
            for logger, handler, level in undo:
                logger.removeHandler(handler)
                logger.setLevel(level)

        return stop

    def add(self, kind: str, text: str) -> None:
        """Take one message of Dynamo apart."""
        match = (_BREAK if kind == "graph_break" else _AGAIN).search(text)
        frames = [m for m in _FRAME.finditer(text)]
        if match is None and not frames:
            return
        place = frames[-1] if kind == "graph_break" and frames else match
        assert place is not None  # noqa: S101 - one of the two was found
        reason = _REASONS.search(text)
        function = place.groupdict().get("function") or ""
        key = (kind, place["file"].strip(), int(place["line"]), function)
        entry = self._found.setdefault(
            key, {"reason": reason["reason"].strip()[:300] if reason else "", "count": 0}
        )
        entry["count"] += 1

    def table(self) -> list[dict[str, Any]]:
        """Each place once, the most frequent first."""
        rows = [
            {"kind": kind, "file": file, "line": line, "function": function, **entry}
            for (kind, file, line, function), entry in self._found.items()
        ]
        return sorted(rows, key=lambda row: -int(row["count"]))[:_MOST]


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
