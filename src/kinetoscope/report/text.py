"""Text from a trace made safe to print, and glyphs for terminals that know ASCII only.

Names in a trace come from programs of other people. A terminal must not act on them: control
characters, escape sequences and marks that reorder or hide text are shown, not sent.
"""

from __future__ import annotations

import unicodedata

_ASCII = str.maketrans(
    {
        "µ": "u",
        "·": "-",
        "…": "...",
        "│": "|",
        "─": "-",
        "→": "->",
        "█": "#",
        "▓": "=",
        "▒": "+",
        "░": "-",
        "▞": "%",
        "━": "~",
        "┅": "_",
        "•": "*",
    }
)


def _visible(char: str) -> str:
    if char == " ":
        return char
    code = ord(char)
    # Cc control, Cf format (bidi marks, zero width), Cs surrogate, Co private, Cn unassigned,
    # Zl and Zp line and paragraph separators, Zs spaces that only look like one.
    category = unicodedata.category(char)
    if category[0] == "C" or category in ("Zl", "Zp"):
        if code < 0x100:
            return f"\\x{code:02x}"
        return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
    return " " if category == "Zs" else char


def clean(text: str) -> str:
    """Return `text` as one line in which every character is visible and harmless."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(map(_visible, text))


def clean_lines(text: str, *, limit: int = 20) -> list[str]:
    """Return the lines of a snippet, cleaned, without common indentation, at most `limit`."""
    lines = text.replace("\r\n", "\n").expandtabs(4).strip("\n").split("\n")
    indent = min((len(s) - len(s.lstrip(" ")) for s in lines if s.strip()), default=0)
    kept = [clean(line[indent:].rstrip()) for line in lines[:limit]]
    if len(lines) > limit:
        kept.append(f"… {len(lines) - limit} more lines")
    return kept if any(kept) else []


def shorten(text: str, limit: int) -> str:
    """Return `text` with its middle cut out when it is longer than `limit`."""
    if len(text) <= limit:
        return text
    head = (limit - 1) * 2 // 3
    return f"{text[:head]}…{text[len(text) - (limit - 1 - head) :]}"


def to_ascii(text: str) -> str:
    """Return `text` with our glyphs replaced; other characters outside ASCII as escapes."""
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode("ascii")
