"""How often a step runs its model, forward and backward."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.passes import model_calls, passes_per_step
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}


def _parts(calls: int, *, backward: int) -> TraceBuilder:
    """Three steps that call a model so often; the first calls are followed by a backward pass.

    A part is 150 kernels of 2 us, each of an operator of 15 us, in a function of the model.
    """
    t = TraceBuilder()
    step_us = 10 + calls * 6_000
    seq = 0
    for step in range(3):
        at = step * step_us
        t.step(at, step_us)
        t.python("train.py(20): learn", at + 1, step_us - 2)
        for part in range(calls):
            begin = at + 5 + part * 6_000
            t.module("Net_0", begin, 4_000)
            t.python("model.py(5): forward", begin + 1, 3_990)
            for k in range(150):
                seq += 1
                here = begin + 10 + 26 * k
                t.op(("aten::mm", "aten::add")[k % 2], here, 15, seq=seq)
                t.kernel("kernel", here + 12, 2, launch_at=here + 5)
            if part < backward:
                t.backward("AddBackward0", begin + 4_200, 1_000, seq=seq)
    return t


@pytest.mark.parametrize(("calls", "backward"), [(8, 8), (8, 3), (2, 2), (5, 0)])
def test_a_pass_is_a_call_of_the_model_with_a_backward_pass_after_it(
    calls: int, backward: int
) -> None:
    trace = _parts(calls, backward=backward).read()
    assert model_calls(trace).size == 3 * calls
    assert passes_per_step(trace) == backward


@pytest.mark.parametrize(("calls", "said"), [(8, True), (2, False)])
def test_a_flood_from_small_parts_names_the_loop_over_them(calls: int, said: bool) -> None:
    analysis = Analysis(_parts(calls, backward=calls).read())
    code = "FW502" if calls == 8 else "FW501"  # 1,200 launches a step are a flood, 300 are not
    (hit,) = RULES[code].run(analysis).hits
    assert "learn" in {place.function for place in hit.locations}
    assert (f"runs the model {calls} times" in hit.fix.summary) is said
