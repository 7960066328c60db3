"""Which sides answer the same question."""

from __future__ import annotations

import msgspec
import pytest

from kinetoscope.analysis.fingerprint import product_label
from kinetoscope.compare import CompareOptions, compare
from kinetoscope.compare.similarity import likeness
from kinetoscope.result import DeviceInfo, Diagnosis, InputInfo
from kinetoscope.result.comparison import FindingChanges
from kinetoscope.result.profile import Fingerprint, Mark
from kinetoscope.result.vocabulary import StepSource
from kinetoscope.trace.kinds import Family
from tests import results
from tests.compare.sides import OPERATORS, PRODUCTS, run


def marks(*names: str) -> tuple[Mark, ...]:
    return tuple(Mark(name, 2.0) for name in names)


def test_two_models_are_not_comparable() -> None:
    other = run(30, products=marks("mm 7 9 11", "mm 3 5 7"), operators=marks("conv2d"))
    found = compare(run(40, findings=(results.LOADER,)), other)
    assert found.verdict.outcome == "not_comparable"
    assert found.verdict.speedup is None
    assert found.findings == FindingChanges(), "nothing went away: it is another program"
    assert found.comparable.differences[0].what == "program"
    allowed = compare(run(40), other, options=CompareOptions(allow=frozenset({"program"})))
    assert allowed.verdict.outcome == "faster"


def test_a_padded_size_is_the_same_program() -> None:
    padded = likeness(
        Fingerprint(products=marks("mm 1024 8192 50257"), operators=OPERATORS),
        Fingerprint(products=marks("mm 1024 8192 50304"), operators=OPERATORS),
    )
    assert padded.same
    assert padded.size_ratio == pytest.approx(50304 / 50257, abs=1e-3)


def test_another_batch_size_is_refused() -> None:
    doubled = (Mark("mm 64 128 512", 4.0), Mark("mm 64 128 128", 2.0), Mark("mm 16 64 128", 1.0))
    found = compare(run(40), run(60, products=doubled))
    assert found.verdict.outcome == "not_comparable"
    assert "another batch" in found.verdict.sentence


def test_a_loop_of_small_products_is_the_same_work() -> None:
    loop = Fingerprint(products=(Mark("mm 1 512 512", 512.0),), operators=OPERATORS)
    whole = Fingerprint(products=(Mark("mm 512 512 512", 1.0),), operators=OPERATORS)
    found = likeness(loop, whole)
    assert found.same
    assert found.work_ratio == pytest.approx(1.0)


def test_a_loop_over_cells_and_the_librarys_layer_are_one_program() -> None:
    """The layer shows the product of the head only; its own are inside one operator."""
    head, shared = Mark("mm 8 64 128", 3.0), ("log_softmax", "nll_loss", "linear", "mm")
    cells = (Mark("mm 16 256 1024", 240.0), Mark("mm 16 80 1024", 240.0), head)
    loop = Fingerprint(products=cells, operators=marks(*shared, "stack"))
    layer = Fingerprint(products=(head,), operators=marks(*shared, "_cudnn_rnn"))
    for pair in ((loop, layer), (layer, loop)):
        assert likeness(*pair).same
    other_head = Fingerprint(products=(Mark("mm 8 64 99", 3.0),), operators=layer.operators)
    assert not likeness(loop, other_head).same
    no_layer = Fingerprint(products=(head,), operators=marks(*shared))
    assert not likeness(loop, no_layer).same


def test_without_shapes_names_decide() -> None:
    assert likeness(Fingerprint(operators=OPERATORS), Fingerprint(operators=OPERATORS)).same
    other = Fingerprint(operators=marks("conv2d", "batch_norm", "max_pool2d"))
    assert not likeness(Fingerprint(operators=OPERATORS), other).same
    nothing = likeness(Fingerprint(), Fingerprint(operators=OPERATORS))
    assert nothing.same
    assert nothing.similarity is None


def test_other_devices_are_refused_unless_allowed() -> None:
    info = InputInfo("t.json", "kineto", 0, 1, devices=(DeviceInfo(0, "NVIDIA A100"),))
    other = run(30, inputs=(info,))
    assert compare(run(40), other).verdict.outcome == "not_comparable"
    allowed = compare(run(40), other, options=CompareOptions(allow=frozenset({"devices"})))
    assert allowed.verdict.outcome == "faster"


def _marked(
    source: StepSource, *, times: float = 1.0, products: bool = True, loop: bool = False
) -> Diagnosis:
    """A run whose steps have these marks and hold so many times the work, or do it in a loop."""
    work = tuple(Mark(m.name, m.count * times) for m in PRODUCTS) if products else ()
    if loop:
        rows = ("mm 1 128 256", 256.0), ("mm 1 64 128", 128.0 + 8.0)
        work = tuple(Mark(name, count) for name, count in rows)
    made = run(40.0 * times, products=work, operators=OPERATORS if products else ())
    return msgspec.structs.replace(made, step=msgspec.structs.replace(made.step, source=source))


@pytest.mark.parametrize(
    ("before", "after", "comparable"),
    [
        pytest.param(_marked("profiler_step"), _marked("annotation"), True, id="the same work"),
        pytest.param(_marked("annotation", times=3), _marked("periodic"), False, id="three in one"),
        pytest.param(
            _marked("annotation", products=False),
            _marked("graph_launch", products=False),
            False,
            id="nobody knows",
        ),
        pytest.param(
            _marked("annotation", loop=True), _marked("periodic"), True, id="in other pieces"
        ),
        pytest.param(_marked("annotation"), _marked("whole_trace"), False, id="no steps"),
    ],
)
def test_steps_by_other_marks_must_do_the_same_work(
    before: Diagnosis, after: Diagnosis, *, comparable: bool
) -> None:
    found = compare(before, after)
    assert found.comparable.answer is comparable
    if not comparable:
        assert "steps are not the same thing on both sides" in found.verdict.sentence


def test_a_result_without_a_profile_is_not_compared() -> None:
    old = msgspec.structs.replace(run(40), profile=None)
    found = compare(old, run(30))
    assert found.verdict.outcome == "not_comparable"
    assert "diagnose the trace again" in found.verdict.sentence


def test_runs_of_one_side_must_be_repetitions() -> None:
    mixed = [run(40), run(40, products=marks("mm 7 9 11"), operators=marks("conv2d"))]
    assert compare(mixed, run(40)).verdict.outcome == "not_comparable"


@pytest.mark.parametrize(
    ("dims", "label"),
    [
        ("[[4096, 512], [512, 1024]]", "mm 512 1024 4096"),
        ("[[1024], [8, 512, 512], [1024, 512]]", "mm 512 1024 4096"),
        ("[[1024], [4096, 512], [512, 1024]]", "mm 512 1024 4096"),
        ("[[6, 32, 64], [6, 64, 16]]", "bmm 6 16 32 64"),
        ("[[64], [64, 32]]", "mm 1 32 64"),
        ("not json", ""),
    ],
)
def test_products_read_alike_however_they_are_written(dims: str, label: str) -> None:
    assert product_label(Family.GEMM, dims) == label


def test_the_fixture_is_one_program() -> None:
    assert likeness(Fingerprint(products=PRODUCTS), Fingerprint(products=PRODUCTS)).similarity == 1
