"""Compiled functions that run eagerly since before the recording began, by sums done by hand."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.engine import run_rules
from kinetoscope.rules.api import Hit
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

RULES = {rule.code: rule for rule in all_rules()}
STEP_US = 4_000
FRAME = "torch/_dynamo/eval_frame.py(956): compile_wrapper"


def _program(op: str = "aten::add", *, stacks: bool = True, region: bool = False) -> TraceBuilder:
    """Four steps of two calls that look for a version and issue 50 operators, and a product."""
    t = TraceBuilder()
    for step in range(4):
        t.step(step * STEP_US, STEP_US)
        for begin in (step * STEP_US + 20, step * STEP_US + 2_020):
            if stacks:
                t.python(FRAME, begin, 1_800)
            t.op("TorchDynamo Cache Lookup", begin, 30)
            if region:
                t.op("Torch-Compiled Region: 0/0", begin + 32, 1_760)
            for k in range(50):
                at = begin + 50 + k * 34
                t.kernel("add", at + 15, 4, launch_at=at + 10, op=op, dims=[[64, 64], [64, 64]])
            t.kernel("gemm", begin + 1_890, 4, launch_at=begin + 1_880, op="aten::mm")
    return t


def _hit(t: TraceBuilder) -> Hit | None:
    analysis = Analysis(t.read(), AnalysisOptions(real_step_ns=STEP_US * 1_000))
    outcome = RULES["FW512"].run(analysis)
    assert outcome.error is None
    return next(iter(outcome.hits), None)


def test_calls_cost_what_compiled_ones_do_and_one_kernel_each() -> None:
    hit = _hit(_program())
    assert hit is not None
    # Of 4000 us two calls of 1800 go. In place of each comes one launch of 10 us, and cautiously
    # 300 us around it, likely 130 us, at best 60 us.
    rest = STEP_US - 2 * 1_800
    assert hit.gain.low == pytest.approx(STEP_US / (rest + 2 * (300 + 10)), rel=0.02)
    assert hit.gain.mid == pytest.approx(STEP_US / (rest + 2 * (130 + 10)), rel=0.02)
    assert hit.gain.high == pytest.approx(STEP_US / (rest + 2 * (60 + 10)), rel=0.02)
    values = {e.name: e.value for e in hit.evidence}
    assert values["eager_calls_per_step"] == 2
    assert values["host_time"] == 2 * 1_800_000


def test_without_frames_nothing_tells_where_a_call_ends() -> None:
    hit = _hit(_program(stacks=False))
    assert hit is not None
    assert hit.gain.low == 1.0
    assert "operators a step" not in hit.message


def test_on_a_cpu_products_stay_and_perhaps_nothing_is_gained() -> None:
    t = TraceBuilder(device=None)
    for step in range(4):
        t.step(step * STEP_US, STEP_US)
        for begin in (step * STEP_US + 20, step * STEP_US + 2_020):
            t.python(FRAME, begin, 1_800)
            t.op("TorchDynamo Cache Lookup", begin, 30)
            for k in range(10):
                t.op("aten::add", begin + 50 + k * 110, 100, dims=[[64, 64], [64, 64]])
            t.op("aten::mm", begin + 1_200, 500, dims=[[64, 64], [64, 64]])
    hit = _hit(t)
    assert hit is not None
    # Of each call 1300 us are no product. Likely half of what compiling saves of them is gained.
    saved = 2 * (1_300 - 130 - 10)
    assert hit.gain.low == 1.0
    assert hit.gain.mid == pytest.approx(STEP_US / (STEP_US - saved / 2), rel=0.02)
    assert hit.gain.high == pytest.approx(STEP_US / (STEP_US - 2 * (1_300 - 60 - 10)), rel=0.02)


@pytest.mark.parametrize(
    "t",
    [
        # The region calls a function that is left out on purpose: its operators stay eager.
        _program(region=True),
        # Torch before 2.2 marks no regions; compiled code calls libraries and nothing pointwise.
        _program("aten::mm"),
    ],
    ids=["left out", "no marks"],
)
def test_calls_that_find_a_version_are_left_alone(t: TraceBuilder) -> None:
    assert _hit(t) is None


def test_it_explains_what_follows_from_it() -> None:
    analysis = Analysis(_program().read())
    outcomes = {outcome.rule.code: outcome for outcome in run_rules(analysis, all_rules())}
    assert outcomes["FW512"].status == "fired"
    assert outcomes["FW534"].record().reason == "explained by FW512"
    assert outcomes["FW501"].status == "silent"


@pytest.mark.parametrize(
    ("device", "fires"), [pytest.param("h", True, id="GPU"), pytest.param(None, False, id="CPU")]
)
def test_only_a_device_has_a_library_that_looks_for_algorithms(
    device: str | None, fires: bool
) -> None:
    """On a CPU an operator of 5 ms is at work, and without shapes nothing says that it repeats."""
    t = TraceBuilder() if device else TraceBuilder(device=None)
    for step in range(4):
        at = step * 6_000
        t.step(at, 6_000)
        t.op("aten::convolution_backward", at + 10, 5_000)
        if device:
            t.kernel("dgrad", at + 5_005, 500, launch_at=at + 5_000)
    outcome = RULES["CP210"].run(Analysis(t.read()))
    assert outcome.error is None
    assert bool(outcome.hits) is fires


def test_a_function_given_up_gains_what_its_pointwise_kernels_would_as_one() -> None:
    """Two `roll` of 550 us and eight products of 350 us, 3900 of 4000 us, in one eager call."""
    t, shape = TraceBuilder(), [4096, 4096]
    for step in range(4):
        at = step * STEP_US
        t.step(at, STEP_US)
        t.python(FRAME, at + 5, 290)
        end = at + 17
        for k in range(10):
            name, ns = ("aten::roll", 550) if k < 2 else ("aten::mul", 350)
            begin = at + 8 + 25 * k
            t.op(name, begin, 20, dims=[shape, shape] if k > 1 else [shape, [], []])
            t.kernel("elementwise_kernel", end, ns, launch_at=begin + 3, launch_dur=5)
            end += ns
        t.sync(at + 300, 3_620)  # outside the call
    analysis = Analysis(t.read(), AnalysisOptions(real_step_ns=STEP_US * 1_000))
    (hit,) = RULES["FW534"].run(analysis).hits
    rest = STEP_US - 3_900
    # All ten are one kernel, which takes as long as so many of the products.
    assert hit.gain.low == pytest.approx(STEP_US / (rest + 2.0 * 350), rel=0.05)
    assert hit.gain.mid == pytest.approx(STEP_US / (rest + 1.15 * 350), rel=0.05)
    assert hit.gain.high == pytest.approx(STEP_US / (rest + 0.6 * 350), rel=0.08)
    assert {e.name: e.value for e in hit.evidence}["device_time"] == 3_900_000
    outcomes = {o.rule.code: o for o in run_rules(analysis, all_rules())}
    assert outcomes["CP212"].record().reason == "explained by FW534"


def _two_functions(inside: str) -> TraceBuilder:
    """Of two compiled functions one has compiled code inside; both issue 20 operators."""
    t = TraceBuilder()
    for step in range(4):
        for part in range(2):
            begin = step * STEP_US + 20 + part * 2_000
            if part == 0:
                t.step(step * STEP_US, STEP_US)
            t.python(FRAME, begin, 1_800)
            if inside and part == 1:
                t.python(inside, begin + 5, 1_700)
            for k in range(20):
                at = begin + 50 + k * 34
                t.kernel("add", at + 15, 4, launch_at=at + 10, op="aten::addmm", dims=[[64, 64]])
    return t


@pytest.mark.parametrize(
    ("inside", "ops"), [("", 40), ("/var/cache/torchinductor_me/ab/cab.py(98): call", 20)]
)
def test_what_runs_compiled_is_no_part_of_what_was_given_up(inside: str, ops: int) -> None:
    (hit,) = RULES["FW534"].run(Analysis(_two_functions(inside).read())).hits
    assert {e.name: e.value for e in hit.evidence}["eager_operators_per_step"] == ops


@pytest.mark.parametrize(
    ("runs", "fires"),
    [("<eval_with_key>.5(4): forward", True), ("## Call CompiledFxGraph f1 ##", False)],
)
def test_a_backend_that_runs_the_graph_as_it_is_compiles_nothing(runs: str, fires: bool) -> None:
    t = TraceBuilder()
    for step in range(4):
        at = step * STEP_US
        t.step(at, STEP_US)
        t.python(FRAME, at + 10, 3_900)
        t.op("Torch-Compiled Region: 0/0", at + 20, 3_800)
        t.op("CompiledFunction", at + 30, 3_700)
        getattr(t, "python" if fires else "op")(runs, at + 40, 3_600)
        for k in range(50):
            here = at + 50 + 70 * k
            t.kernel("add", here + 15, 4, launch_at=here + 10, op="aten::add", dims=[[64, 64]])
    hits = RULES["FW534"].run(Analysis(t.read())).hits
    assert len(hits) == fires
    for hit in hits:
        assert {e.name: e.value for e in hit.evidence}["eager_operators_per_step"] == 50
        assert "default backend" in hit.fix.summary
