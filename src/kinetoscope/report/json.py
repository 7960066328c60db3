"""The result document itself: strict JSON, with numbers no finer than they are known."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import msgspec

from kinetoscope.report import RenderOptions
from kinetoscope.result import Diagnosis
from kinetoscope.units import NOT_A_NUMBER

_DIGITS = 6

# Legal in JSON, but a terminal acts on them: DEL and C1 controls, zero width and bidi marks,
# line and paragraph separators (which also end a line of JavaScript).
_UNSAFE = re.compile(
    "[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)


def render(diagnosis: Diagnosis, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return the document, indented."""
    return text_of(diagnosis)


def text_of(struct: msgspec.Struct) -> str:
    """Return any document of ours as strict, indented JSON with a newline at the end."""
    document = _strict(msgspec.to_builtins(struct))
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    return _UNSAFE.sub(lambda match: f"\\u{ord(match[0]):04x}", text) + "\n"


def _strict(value: Any) -> Any:
    """Return `value` with rounded floats, without NaN and infinity, and with valid text only."""
    if isinstance(value, dict):
        if isinstance(value.get("value"), float) and not math.isfinite(value["value"]):
            value = {**value, "value": NOT_A_NUMBER, "unit": "text"}  # evidence: see the schema
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, str) and not value.isascii():
        # A path that is not UTF-8 reaches us with lone surrogates, which no JSON reader takes.
        return value.encode("utf-8", "backslashreplace").decode("utf-8")
    return value
