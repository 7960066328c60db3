"""Microseconds as Kineto writes them -> whole nanoseconds, exactly."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]

EXACT_BELOW_US = float(2**43)
"""Below this, half the distance of two floats is under half a nanosecond, so rounding the float
gives the nanosecond that was written; at and above it only the text tells."""

NO_TIME = np.iinfo(np.int64).min
"""Stands for a time that is missing or not a number."""


def from_floats(microseconds: npt.NDArray[np.float64]) -> IntArray:
    """Nanoseconds of finite floats of less than `EXACT_BELOW_US`.

    Whole and fraction apart: the product of the whole number could round up to a half.
    """
    whole = np.floor(microseconds)
    fraction = np.rint((microseconds - whole) * 1000.0)
    return whole.astype(np.int64) * 1000 + fraction.astype(np.int64)


def needs_text(microseconds: npt.NDArray[np.float64]) -> bool:
    """Whether these floats may have lost nanoseconds already."""
    return bool((np.abs(microseconds) >= EXACT_BELOW_US).any())


def from_texts(texts: Sequence[bytes], *, missing: int = NO_TIME) -> IntArray:
    """Nanoseconds of JSON numbers or strings of microseconds; "" and null become `missing`."""
    try:
        return np.array(list(map(int, texts)), dtype=np.int64) * 1000
    except (ValueError, OverflowError):
        return np.array([_one(text, missing) for text in texts], dtype=np.int64)


def _one(text: bytes, missing: int) -> int:
    text = text.strip(b'" \t')
    whole, dot, fraction = text.partition(b".")
    if dot and len(fraction) <= 3 and fraction.isdigit() and whole.lstrip(b"-").isdigit():
        return int(whole + fraction.ljust(3, b"0"))
    if not text or text == b"null":
        return missing
    return _decimal(text)


def _decimal(text: bytes) -> int:
    try:
        value = Decimal(text.decode("ascii", "replace")) * 1000
        if not value.is_finite() or abs(value) >= 2**62:
            return NO_TIME
        return int(value.to_integral_value(ROUND_HALF_EVEN))
    except (InvalidOperation, ValueError):
        return NO_TIME
