"""Lines for a terminal: hanging indents that wrap prose and leave code and paths whole."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

NARROW = 60
"""Below this many columns, labels stand in front of their text and not in a column of their own."""

MEASURE = 100
"""Prose is not wider than this, however wide the terminal is."""

_GLUE = "\ue000"
"""Stands for a space that no line breaks at; private use, so no cleaned text holds it."""

_NUMBER_AND_UNIT = re.compile(r"(?<=[0-9]) (?=(?:%|[a-zµ]?s|min|h|B|[KMGT]iB|FLOP)\b|%)")


class Page:
    """Collects the lines of one page and knows its width."""

    def __init__(self, *, width: int, color: bool) -> None:
        self.width = max(width, 20)
        self.measure = min(self.width, MEASURE)
        self.narrow = self.width < NARROW
        self._color = color
        self._console = Console(
            file=io.StringIO(),
            width=self.width,
            force_terminal=color,
            color_system="standard" if color else None,
            no_color=not color,
            highlight=False,
            markup=False,
            emoji=False,
            legacy_windows=False,
        )

    def blank(self) -> None:
        """Add an empty line."""
        self.whole(Text())

    def whole(self, text: Text, indent: int = 0) -> None:
        """Add one line that is never broken: code, paths, tables."""
        line = Text(" " * indent)
        line.append_text(text)
        line.rstrip()
        self._console.print(line, soft_wrap=True)

    def prose(self, text: Text | str, indent: int = 0, style: str = "") -> None:
        """Add text that is wrapped at words."""
        self.hanging(Text(), text, indent=indent, column=0, style=style)

    def hanging(
        self,
        label: Text | str,
        text: Text | str,
        *,
        indent: int,
        column: int,
        style: str = "",
    ) -> None:
        """Add wrapped text whose lines start `column` cells after the label's start."""
        head = Text(" " * indent)
        head.append_text(Text(label) if isinstance(label, str) else label)
        body = Text(text, style=style) if isinstance(text, str) else text
        start = indent + column
        if cell_len(head.plain) > self.measure - 12:
            self.whole(head)
            head = Text()
        if column and cell_len(head.plain) >= start:
            head.append(" ")
        first = max(cell_len(head.plain), start)
        head.pad_right(first - cell_len(head.plain))
        # A first line that starts further right than the rest: wrap as if it had a longer word.
        filler = _GLUE * (first - start)
        padded = Text(filler)
        padded.append_text(body)
        for number, line in enumerate(self._wrap(padded, max(self.measure - start, 12))):
            if number == 0:
                whole = head
                whole.append_text(line[len(filler) :])
            else:
                whole = Text(" " * start)
                whole.append_text(line)
            self.whole(whole)

    def _wrap(self, text: Text, width: int) -> Iterable[Text]:
        text.plain = _NUMBER_AND_UNIT.sub(_GLUE, text.plain)
        lines = text.wrap(self._console, width)
        for number, line in enumerate(lines):
            line.rstrip()
            skip = len(line.plain) - len(line.plain.lstrip(_GLUE)) if number == 0 else 0
            line.plain = line.plain[:skip] + line.plain[skip:].replace(_GLUE, " ")
        return lines

    def text(self) -> str:
        """Return the page."""
        file = self._console.file
        assert isinstance(file, io.StringIO)  # noqa: S101 - set in __init__
        return file.getvalue()
