"""`profile`, `steps` and the decorator. Skipped without torch."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="captures need torch")

import kinetoscope  # noqa: E402
from kinetoscope.errors import InputError, UsageError  # noqa: E402
from tests.capture.support import draws_the_recording, own_problems  # noqa: E402


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))


def test_a_block_is_captured_and_shown(tmp_path: Path) -> None:
    net, x = _net(), torch.randn(8, 16)
    outputs = [tmp_path / name for name in ("r.json", "r.html", "t.json.gz")]
    with kinetoscope.profile(outputs, budget_s=6) as p:
        while not p.done:
            net(x).sum().backward()
            p.step()
    assert p.diagnosis.capture is not None
    assert p.diagnosis.capture.step_source == "user"
    assert p.diagnosis.step.time_ns == p.diagnosis.capture.baseline_ns
    assert own_problems(p.problems) == []
    assert "Step" in str(p)
    assert "<div" in p._repr_html_()
    assert "<script" not in p._repr_html_()
    assert all(path.exists() for path in outputs)
    assert p.diagnosis.inputs[0].path == str(outputs[2])
    assert draws_the_recording(outputs[1])


@pytest.mark.parametrize(
    ("name", "why"), [("r.pdf", "no format for the suffix '.pdf'"), ("no/r.json", "no folder")]
)
def test_an_output_that_cannot_be_written_is_no_surprise_at_the_end(
    tmp_path: Path, name: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        kinetoscope.profile(tmp_path / name)


def test_a_loop_is_captured() -> None:
    net, x = _net(), torch.randn(8, 16)
    loop = kinetoscope.steps(range(1_000_000), budget_s=6)
    assert len(loop) == 1_000_000
    for _ in loop:
        with torch.no_grad():
            net(x)
        if loop.profile.done:
            break
    assert loop.diagnosis.capture is not None
    assert {w.name for w in loop.diagnosis.capture.windows} == {"light", "full"}


def test_a_function_is_captured() -> None:
    net, x = _net(), torch.randn(8, 16)

    @kinetoscope.profile(budget_s=6)
    def answer(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = net(x)
        return result

    for _ in range(1_000_000):
        answer(x)
        if answer.profile.done:  # type: ignore[attr-defined]
            break
    assert answer.profile.diagnosis.step.count > 0  # type: ignore[attr-defined]


def test_a_block_without_steps_says_why() -> None:
    with kinetoscope.profile(budget_s=2, find_steps=False) as p:
        _net()(torch.randn(8, 16))
    with pytest.raises(InputError, match="nothing was recorded"):
        _ = p.diagnosis
    assert "kinetoscope.step()" in str(p)


def test_a_mark_outside_of_a_capture_does_nothing() -> None:
    kinetoscope.step()


def test_everything_that_was_wrapped_is_put_back() -> None:
    from torch.utils.data import dataloader

    before = (
        torch.autograd.backward,
        torch.optim.Optimizer.profile_hook_step,
        torch.optim.SGD.step,
        dataloader._BaseDataLoaderIter.__next__,
        dataloader._MultiProcessingDataLoaderIter.__init__,
        torch.cuda.CUDAGraph.replay,
    )
    with kinetoscope.profile(budget_s=2):
        assert torch.autograd.backward is not before[0]
    after = (
        torch.autograd.backward,
        torch.optim.Optimizer.profile_hook_step,
        torch.optim.SGD.step,
        dataloader._BaseDataLoaderIter.__next__,
        dataloader._MultiProcessingDataLoaderIter.__init__,
        torch.cuda.CUDAGraph.replay,
    )
    assert after == before


def test_a_capture_that_is_over_keeps_no_memory() -> None:
    net, x = _net(), torch.randn(8, 16)
    with kinetoscope.profile(budget_s=4) as p:
        while not p.done:
            net(x).sum().backward()
            p.step()
    session = weakref.ref(p._session)
    assert session() is not None
    del p
    gc.collect()
    assert session() is None
