"""Two results in, a comparison out: comparable or not, faster or slower, where, and as predicted?

Sees results only, so that saved results and fresh diagnoses are compared alike.
"""

from __future__ import annotations

from kinetoscope.compare.compare import CompareOptions, compare

__all__ = ["CompareOptions", "compare"]
