"""What the page of a comparison shows beyond the comparison: the call paths of both sides as one.

Computed from the recordings, like a `View`, and plain data like it.
"""

from __future__ import annotations

import msgspec

from kinetoscope.result.view import Column, Name

DIFFERENCE_VERSION = 1

LEAST_NOISE = 0.03
"""Two runs of one program differ by this part of each device time without any reason."""
LEAST_HOST_NOISE = 0.25
"""The same for host time, which profiling inflates from event to event."""
SMALLEST = 0.001
"""Changes below this part of the step are noise whatever their statistics say."""


class FlameDifference(msgspec.Struct, frozen=True):
    """Call paths of both sides as one tree in depth-first order; times a step, as recorded.

    Times are a node's own, without those below it; of several runs their mean.

    Attributes:
        names: of frames, as the second side writes them where both have them; `name` indexes it.
        depth: of each node; the children of a node follow it.
        before_host_ns, after_host_ns: time on the host.
        before_device_ns, after_device_ns: device work that the node launched; of an `idle` node
            idle time.
        before_calls, after_calls: calls in a hundred steps.
        device_noise_ratio, host_noise_ratio: relative changes up to this say nothing.
        smallest_ratio: nor do changes below this part of the step.
        notes: what was left out so that the two can be laid over each other, in sentences.
    """

    names: tuple[Name, ...]
    name: Column
    depth: Column
    before_host_ns: Column
    after_host_ns: Column
    before_device_ns: Column
    after_device_ns: Column
    before_calls: Column
    after_calls: Column
    device_noise_ratio: float = LEAST_NOISE
    host_noise_ratio: float = LEAST_HOST_NOISE
    smallest_ratio: float = SMALLEST
    notes: tuple[str, ...] = ()


class ComparisonView(msgspec.Struct, frozen=True):
    """Everything that the page of a comparison shows beyond the document.

    Attributes:
        flame: None: not known.
        flame_missing: why.
    """

    version: int
    flame: FlameDifference | None
    flame_missing: str = ""
