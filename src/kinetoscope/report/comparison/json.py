"""The comparison itself, as strict JSON."""

from __future__ import annotations

from kinetoscope.report import RenderOptions
from kinetoscope.report.json import text_of
from kinetoscope.result.comparison import Comparison


def render(comparison: Comparison, options: RenderOptions) -> str:  # noqa: ARG001 - one signature
    """Return the document, indented."""
    return text_of(comparison)
