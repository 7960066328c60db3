"""What a comparison needs to know of a recording: steps, costs by operator, what was recorded.

Compact on purpose: a profile is part of every result, so that two results are compared with the
same code as two traces. All times are averages over the steady steps, integer nanoseconds a step.
"""

from __future__ import annotations

from typing import Literal

import msgspec

CostKind = Literal["operator", "kernel", "module"]
"""What a `Cost` speaks of."""


class Cost(msgspec.Struct, frozen=True, omit_defaults=True):
    """What one operator, kernel or module costs a step.

    Attributes:
        name: operator or kernel name, or the class of the module.
        shape: shapes of the tensor arguments, `[64,32] [32]`; "" when not recorded.
        module: classes of the modules around it, outside in, `GPT / Block`; "" when not known.
        position: place of the first call within a step among the rows of its kind.
        calls: calls a step.
        host_ns: time on the host a step; of an operator its own, of a module all inside it.
        host_sd_ns: standard deviation of that over the steps.
        device_ns: time of the device events that it launched, a step.
        device_sd_ns: standard deviation of that over the steps.
    """

    name: str
    shape: str = ""
    module: str = ""
    position: int = 0
    calls: float = 0.0
    host_ns: int = 0
    host_sd_ns: int = 0
    device_ns: int = 0
    device_sd_ns: int = 0


class RankSteps(msgspec.Struct, frozen=True):
    """The steady steps of one rank, one by one.

    Attributes:
        rank: the rank.
        host_ns: distances of consecutive step marks on the host.
        device_ns: distances of the ends of consecutive steps' device work; () without a device.
        recorded_ns: the step time as recorded.
        low_ns: bracket of the true step time, its lower end.
        mid_ns: its likely value.
        high_ns: its upper end.
        busy_ns: time of a step in which the device works.
        irregular: some steps take several times as long as others; means stand for the pace.
    """

    rank: int
    host_ns: tuple[int, ...]
    device_ns: tuple[int, ...]
    recorded_ns: int
    low_ns: int
    mid_ns: int
    high_ns: int
    busy_ns: int = 0
    irregular: bool = False


class Recorded(msgspec.Struct, frozen=True):
    """What the profiler had been told to record, read off the contents.

    Attributes:
        pinned: the unprofiled step time was known, so the bracket is a measurement.
    """

    operators: bool = False
    shapes: bool = False
    stacks: bool = False
    memory: bool = False
    device: bool = False
    pinned: bool = False


class Mark(msgspec.Struct, frozen=True):
    """One entry of the program's fingerprint: how often something happens in a step."""

    name: str
    count: float


class Fingerprint(msgspec.Struct, frozen=True):
    """What tells one program from another.

    Attributes:
        products: sizes of matrix products and convolutions, `mm 512 1024 4096`: the three sizes
            in ascending order, so that forward and backward, `linear` and `addmm`, eager and
            compiled read alike; of a convolution the sizes of its weight.
        operators: operators that compute, with those that a compiler fused told apart again.
        kernels: kernel names.
        modules: module classes.
        rank: the rank that it was taken from, the first one.
    """

    rank: int = 0
    products: tuple[Mark, ...] = ()
    operators: tuple[Mark, ...] = ()
    kernels: tuple[Mark, ...] = ()
    modules: tuple[Mark, ...] = ()


class Profile(msgspec.Struct, frozen=True):
    """The part of a result that comparisons are made of.

    Attributes:
        world_size: ranks of the job, as far as known.
        lead_rank: the rank that sets the pace; the tables speak of it.
        ranks: steady steps of each rank that was given.
        recorded: what the profiler recorded.
        training: a backward pass or an optimizer's step was seen.
        fingerprint: what tells one program from another.
        operators, kernels, modules: the most expensive ones, by time on device and host.
        left_out_ns: device and own host time a step of rows that the tables leave out.
        started_ns: when the recording began, ns since 1970; None: the file does not say.
    """

    world_size: int
    lead_rank: int
    ranks: tuple[RankSteps, ...]
    recorded: Recorded
    training: bool = False
    fingerprint: Fingerprint = Fingerprint()
    operators: tuple[Cost, ...] = ()
    kernels: tuple[Cost, ...] = ()
    modules: tuple[Cost, ...] = ()
    left_out_ns: int = 0
    started_ns: int | None = None
