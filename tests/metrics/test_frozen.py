"""What counts as a part that computes the same in each step, and what does not."""

from __future__ import annotations

import pytest

from kinetoscope.analysis import Analysis, AnalysisOptions
from kinetoscope.metrics.device_ops import device_ops
from kinetoscope.metrics.frozen import frozen_parts
from kinetoscope.rules.registry import all_rules
from kinetoscope.testing import TraceBuilder

TABLE = [9_000, 64]
NAMES = [400, 24]


def _training(
    *,
    names: list[int] = NAMES,
    before: tuple[str, list[list[int]]] | None = None,
    launches: bool = True,
    steps: tuple[int, ...] = (0, 1, 2, 3),
    trained: bool = False,
    layer: str = "Linear_0",
) -> TraceBuilder:
    """Steps of 2 ms: 1 ms of an encoder of names, then 0.9 ms of a layer for a batch of 96.

    Args:
        names: shape of what the encoder looks up.
        before: an operator that runs before it, and its arguments' shapes.
        launches: that operator launches a kernel.
        steps: in which of four the encoder runs.
        trained: the encoder has a backward pass.
        layer: what is trained.
    """
    t = TraceBuilder()
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        t.python("train.py(10): step", at + 1, 330)
        if before:
            t.op(before[0], at + 3, 12, dims=before[1])
            if launches:
                t.kernel("elementwise_kernel", at + 15, 5, launch_at=at + 5)
        if step in steps:
            t.module("Encoder_0", at + 20, 100)
            t.op("aten::embedding", at + 22, 12, dims=[TABLE, names, [], [], []])
            t.kernel("indexSelectLargeIndex", at + 40, 100, launch_at=at + 26)
            seq = {"seq": 100 + step} if trained else {}
            t.op("aten::mm", at + 40, 12, dims=[[names[0] * 24, 64], [64, 64]], **seq)
            t.kernel("sm90_gemm", at + 140, 900, launch_at=at + 44)
        t.module("Model_0", at + 130, 50)
        t.module(layer, at + 131, 45)
        t.op("aten::linear", at + 132, 40, dims=[[96, 64], [64, 64], [64]], seq=step + 1)
        t.kernel("sm90_gemm", at + 1_040, 300, launch_at=at + 140)
        t.backward("AddmmBackward0", at + 200, 60, seq=step + 1)
        t.kernel("sm90_gemm", at + 1_340, 600, launch_at=at + 210, tid=1001)
        if trained:
            t.backward("MmBackward0", at + 262, 20, seq=100 + step)
        t.annotation("Optimizer.step#AdamW.step", at + 300, 20)
        t.sync(at + 330, 1_620)
    return t


@pytest.mark.parametrize(
    ("program", "parts"),
    [
        pytest.param(_training(), 1, id="nothing makes its input"),
        pytest.param(_training(names=[96, 24]), 0, id="as many rows as the batch"),
        pytest.param(_training(names=[192, 24]), 0, id="two of each"),
        pytest.param(_training(names=[48, 24]), 0, id="one of two"),
        pytest.param(_training(names=[1, 24]), 0, id="a single row"),
        pytest.param(_training(trained=True), 0, id="it is trained"),
        pytest.param(_training(layer="Encoder_0"), 0, id="what is trained, on other data"),
        pytest.param(_training(steps=(0, 2)), 0, id="not in each step"),
        pytest.param(_training(before=("aten::random_", [NAMES])), 0, id="drawn"),
        pytest.param(_training(before=("aten::copy_", [NAMES, NAMES, []])), 0, id="copied"),
        pytest.param(
            _training(before=("aten::index", [[50_000, 24], [400]])), 0, id="picked out of a table"
        ),
        pytest.param(
            _training(before=("aten::slice", [[4_000, 24]]), launches=False), 0, id="cut out"
        ),
        pytest.param(_training(before=("aten::mul", [[96, 64], []])), 1, id="something else"),
    ],
)
def test_what_may_compute_the_same_in_each_step(program: TraceBuilder, parts: int) -> None:
    found = frozen_parts(device_ops(program.read()), 0)
    assert len(found) == parts
    assert all(part.shape == (400, 24) and part.nodes.size == 4 for part in found)


def test_another_librarys_copies_may_bring_the_input() -> None:
    t = _training()
    for step in range(4):
        t.copy("HtoD Pinned", 400 * 24 * 4, step * 2_000 + 8, 5, launch_at=step * 2_000 + 5)
    assert not frozen_parts(device_ops(t.read()), 0)


def test_short_parts_are_left_out() -> None:
    work = device_ops(_training().read())
    assert frozen_parts(work, 4_000_000)
    assert not frozen_parts(work, 4_000_001)  # four times 1 ms


def test_without_the_part_the_rest_of_the_device_sets_the_pace() -> None:
    """Of 2 ms the encoder takes 1 ms of the device; launching it takes 0.1 ms of the host."""
    rule = next(rule for rule in all_rules() if rule.code == "CP230")
    options = AnalysisOptions(real_step_ns=2_000_000)
    (hit,) = rule.run(Analysis(_training().read(), options)).hits
    # The batch's layer starts 0.14 ms into the step, or 0.1 ms sooner, and takes 0.9 ms; the host
    # waits for it and needs 0.06 ms then.
    assert hit.gain.mid == pytest.approx(2_000 / (40 + 900 + 60), rel=0.03)
    assert hit.confidence == 0.4
    assert "`Encoder` runs without gradients in each step on 400 rows" in hit.message
