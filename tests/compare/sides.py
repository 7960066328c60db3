"""Results with a profile, made by hand, for the tests of comparisons."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope.result import Budget, Diagnosis, NsRange, StepTime
from kinetoscope.result.profile import Cost, Fingerprint, Mark, Profile, RankSteps, Recorded
from tests import results

MS = 1_000_000
PRODUCTS = (Mark("mm 64 128 256", 4.0), Mark("mm 64 64 128", 2.0), Mark("mm 8 64 128", 1.0))
OPERATORS = (Mark("addmm", 6.0), Mark("relu", 3.0), Mark("mse_loss", 1.0))


def run(
    step_ms: float = 40.0,
    *,
    low: float = 1.0,
    high: float = 1.0,
    jitter: tuple[float, ...] = (0.99, 1.0, 1.01, 1.0, 0.995, 1.005),
    products: tuple[Mark, ...] = PRODUCTS,
    operators: tuple[Mark, ...] = OPERATORS,
    recorded: Recorded = Recorded(operators=True, shapes=True, device=True),  # noqa: B008 - frozen
    costs: tuple[Cost, ...] = (),
    ranks: int = 1,
    **changes: Any,
) -> Diagnosis:
    """A result of one run whose likely step time is `step_ms`."""
    ns = round(step_ms * MS)
    periods = tuple(round(ns * high * part) for part in jitter)
    steps = tuple(
        RankSteps(
            rank=rank,
            host_ns=periods,
            device_ns=periods,
            recorded_ns=round(ns * high),
            low_ns=round(ns * low),
            mid_ns=ns,
            high_ns=round(ns * high),
        )
        for rank in range(ranks)
    )
    profile = Profile(
        world_size=ranks,
        lead_rank=0,
        ranks=steps,
        recorded=recorded,
        fingerprint=Fingerprint(products=products, operators=operators),
        operators=costs,
    )
    base = results.diagnosis(
        step=StepTime(
            count=len(jitter),
            source="profiler_step",
            time_ns=NsRange(round(ns * low), ns, round(ns * high)),
            recorded_ns=round(ns * high),
        ),
        budget=(Budget("compute", "kernels", ns, 1.0),),
        profile=profile,
    )
    return msgspec.structs.replace(base, **changes)
