"""Whether a recording shows autoregressive decoding: each call needs the answer of the last one."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import numpy as np

from kinetoscope.trace.op_names import op_rows
from kinetoscope.trace.trace import Trace

_MOSTLY = 0.5
"""Prompts lie between the tokens."""


def decodes(trace: Trace) -> bool:
    """Are most calls of the model one token of a sequence?

    With a cache of keys and values the queries have a length of one; without one, the sequence
    that is looked up in the embedding is one longer in each call.
    """
    return decode_share(trace) >= _MOSTLY or _growing_share(trace) >= _MOSTLY


def decode_share(trace: Trace) -> float:
    """Part of the attention operators with a query of length one and longer keys."""
    # The operators below these have other layouts.
    rows = op_rows(trace, lambda name: name.lstrip("_").startswith("scaled_dot_product"))
    dims = trace.column("dims_id")[rows]
    dims = dims[dims >= 0]
    if dims.size == 0:
        return 0.0
    ids, counts = np.unique(dims, return_counts=True)
    single = np.array([_single(trace.texts[i]) for i in ids], dtype=bool)
    return float(counts[single].sum() / counts.sum())


def _single(text: str) -> bool:
    """Do these `Input Dims` begin with [..., 1, d] and [..., n > 1, d]?"""
    try:
        dims = msgspec.json.decode(text)
        query, key = dims[0], dims[1]
        return len(query) >= 3 and len(key) >= 3 and query[-2] == 1 and key[-2] > 1
    except (msgspec.DecodeError, IndexError, KeyError, TypeError):
        return False


def _growing_share(trace: Trace) -> float:
    """Part of the lookups in the first table whose sequence is one longer than that before.

    Lookups of an equal length are those of other tables in the same call.
    """
    rows = op_rows(trace, "embedding".__eq__)
    dims = trace.column("dims_id")[rows]
    lengths = [_indices(trace.texts[i]) for i in dims if i >= 0]
    changes = [b - a for a, b in pairwise(n for n in lengths if n) if a != b]
    return sum(change == 1 for change in changes) / len(changes) if len(changes) > 1 else 0.0


def _indices(text: str) -> int:
    """Length of the sequences looked up: the last dimension of the indices; 0 where unknown."""
    try:
        indices = msgspec.json.decode(text)[1]
        return int(indices[-1])
    except (msgspec.DecodeError, IndexError, KeyError, TypeError, ValueError):
        return 0
