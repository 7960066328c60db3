"""How deep each node of a call tree lies."""

from __future__ import annotations

import numpy as np

from kinetoscope.trace.trace import IntArray


def depths(parent: IntArray) -> IntArray:
    """Return the number of ancestors of each node, by doubling the jump upwards."""
    jump = parent.copy()
    depth: IntArray = (jump >= 0).astype(np.int64)
    active = np.flatnonzero(jump >= 0)
    while active.size:
        target = jump[active]
        depth[active] += depth[target]
        jump[active] = jump[target]
        active = active[jump[active] >= 0]
    return depth
