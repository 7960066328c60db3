"""The only place that turns a number into words: times, bytes, shares, counts, rates, speed-ups.

Pure functions, three significant digits. `µ` is the only character outside ASCII.
"""

from __future__ import annotations

import math

_TIMES = ((1, "ns"), (1_000, "µs"), (1_000_000, "ms"), (1_000_000_000, "s"))
_SIZES = ((1, "B"), (1 << 10, "KiB"), (1 << 20, "MiB"), (1 << 30, "GiB"), (1 << 40, "TiB"))
_DECIMAL = ((1, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))

NOT_A_NUMBER = "not a number"

MOST_TIMES = 100
"""Larger factors are not known so well, and read the same to a person."""


def _decimals(value: float) -> int:
    """Decimals that give `value` three significant digits, at most two."""
    magnitude = abs(value)
    if magnitude >= 99.95:
        return 0
    return 1 if magnitude >= 9.995 else 2


def _fixed(value: float, decimals: int) -> str:
    text = f"{value:,.{decimals}f}"
    return text.removeprefix("-") if not text.strip("-0.,") else text


def _scale(
    value: float, units: tuple[tuple[float, str], ...], *, full: float = 999.5
) -> tuple[float, str]:
    """The largest unit that keeps the number readable: below `full` after rounding."""
    for factor, name in units:
        if abs(value) / factor < full:
            return factor, name
    return units[-1]


def duration(ns: float) -> str:
    """Return a time, `39.0 ms`; from two minutes on `2 min 5 s`, from an hour `1 h 4 min`."""
    if not math.isfinite(ns):
        return NOT_A_NUMBER
    seconds = round(abs(ns) / 1e9)
    sign = "-" if ns < 0 else ""
    if seconds >= 3600:
        return f"{sign}{seconds // 3600:,} h {seconds % 3600 // 60} min"
    if seconds >= 120:
        return f"{sign}{seconds // 60} min {seconds % 60} s"
    factor, unit = _scale(ns, _TIMES)
    value = ns / factor
    return f"{_fixed(value, 0 if unit == 'ns' else _decimals(value))} {unit}"


def duration_range(low_ns: float, high_ns: float) -> str:
    """Return `35 to 41 ms`: one unit, that of the larger end; one time when both read alike."""
    if not (math.isfinite(low_ns) and math.isfinite(high_ns)) or abs(high_ns) >= 119.5e9:
        low, high = duration(low_ns), duration(high_ns)
        return low if low == high else f"{low} to {high}"
    factor, unit = _scale(high_ns, _TIMES)
    decimals = 0 if unit == "ns" else _decimals(high_ns / factor)
    low, high = _fixed(low_ns / factor, decimals), _fixed(high_ns / factor, decimals)
    if low == high:
        return duration(high_ns)
    if decimals and {low.partition(".")[2], high.partition(".")[2]} == {"0" * decimals}:
        low, high = low.partition(".")[0], high.partition(".")[0]
    return f"{low} to {high} {unit}"


def size(n_bytes: float) -> str:
    """Return a size in binary units, `224 MiB`."""
    if not math.isfinite(n_bytes):
        return NOT_A_NUMBER
    factor, unit = _scale(n_bytes, _SIZES, full=1023.5)
    value = n_bytes / factor
    return f"{_fixed(value, 0 if unit == 'B' else _decimals(value))} {unit}"


def percent(ratio: float) -> str:
    """Return a share, `81 %`; below one and close to a hundred with one decimal.

    A share that is not zero never reads `0 %`, and one below one never reads `100 %`.
    """
    if not math.isfinite(ratio):
        return NOT_A_NUMBER
    value = ratio * 100
    if value == 0:
        return "0 %"
    if 0 < value < 0.05:
        return "< 0.1 %"
    if 99.95 <= value < 100:
        return "> 99.9 %"
    if abs(value) < 0.95 or 99.5 <= value < 100:
        return f"{value:.1f} %"
    return f"{value:,.0f} %"


def count(number: float) -> str:
    """Return a number of things, `621,135`; one decimal when it is an average."""
    if not math.isfinite(number):
        return NOT_A_NUMBER
    if number == int(number):
        return f"{int(number):,}"
    return _fixed(number, 1 if abs(number) >= 10 else 2)


def plural(number: int, one: str, many: str = "") -> str:
    """Return `1 step`, `3 steps`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def several(number: float, one: str, many: str = "") -> str:
    """Return an average of things that are there, `1 copy`, `3 copies`: one at least."""
    return plural(max(round(number), 1), one, many)


def how_often(number: float) -> str:
    """Return how often something happens, `once`, `3 times`; what happens at all, once at least."""
    whole = max(round(number), 1)
    return "once" if whole == 1 else f"{whole:,} times"


def rate(per_second: float, unit: str) -> str:
    """Return a rate in decimal units, `3.35 TB/s`, `989 TFLOP/s`; `unit` is `B` or `FLOP`."""
    if not math.isfinite(per_second):
        return NOT_A_NUMBER
    factor, prefix = _scale(per_second, _DECIMAL)
    value = per_second / factor
    return f"{_fixed(value, _decimals(value))} {prefix}{unit}/s"


def times(factor: float) -> str:
    """Return a factor, `4.6x`; with two decimals where one would hide it, `1.04x`."""
    return _times(factor, _times_decimals(factor))


def _times_decimals(*factors: float) -> int:
    lowest = min(factors)
    if lowest >= 9.95:
        return 0
    return 2 if max(factors) < 1.195 else 1


def _times(factor: float, decimals: int) -> str:
    if not math.isfinite(factor):
        return NOT_A_NUMBER
    if factor >= MOST_TIMES:
        return f"over {MOST_TIMES}x"
    return f"{_fixed(factor, 0 if factor >= 9.95 else decimals)}x"


def factor(value: float) -> str:
    """Return a measured factor, `1.33x`, near one `0.974x`: as fine as it was measured."""
    if not math.isfinite(value):
        return NOT_A_NUMBER
    if 0.95 < value < 1.05:
        return f"{value:.3f}x"
    return f"{value:.2f}x" if value < 9.95 else times(value)


def speedup(low: float, mid: float, high: float) -> str:
    """Return a speed-up with its range, `4.6x (2.9x to 5.4x)`; one factor when they agree."""
    first, middle, last = _three(low, mid, high)
    return middle if first == last else f"{middle} ({first} to {last})"


def is_gain(factor: float) -> bool:
    """Does a speed-up read as one? `1.00x` does not."""
    return factor >= 1.005


def speedup_words(low: float, mid: float, high: float) -> str:
    """Return a speed-up of the step as a sentence part.

    `step 1.9x to 4.1x faster, likely 2.7x`; when the range starts at no gain,
    `step up to 1.4x faster, likely 1.2x, perhaps not at all`.
    """
    first, middle, last = _three(low, mid, high)
    if not is_gain(high):
        return "no faster step"
    if first == last:
        return f"step {middle} faster"
    if first in ("1.00x", "1.0x") or low < 1:
        return f"step up to {last} faster, likely {middle}, perhaps not at all"
    return f"step {first} to {last} faster, likely {middle}"


def _three(low: float, mid: float, high: float) -> tuple[str, str, str]:
    decimals = _times_decimals(low, mid, high)
    return _times(low, decimals), _times(mid, decimals), _times(high, decimals)


def quantity(value: float | int | str, unit: str) -> str:
    """Return a value of the result document in words, by its unit.

    A ratio above one is no share and reads as a factor; an unknown unit is shown as it is.
    """
    if isinstance(value, str):
        return value
    if unit == "ratio":
        return percent(value) if value <= 1 else times(value)
    if unit in ("bytes_per_s", "flop_per_s"):
        return rate(value, "B" if unit == "bytes_per_s" else "FLOP")
    form = {"ns": duration, "bytes": size, "count": count}.get(unit)
    if form is not None:
        return form(value)
    return f"{count(value)} {unit}" if unit != "text" else count(value)
