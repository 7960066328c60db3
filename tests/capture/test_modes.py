"""The modes of the program's own calls, as it set them. Skipped without torch."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

torch = pytest.importorskip("torch", reason="captures need torch")

from kinetoscope.capture.compiling import CompileCalls  # noqa: E402
from kinetoscope.capture.modes import Modes  # noqa: E402


def _facts(*contexts: object) -> dict[str, object]:
    """A forward pass under some contexts; everything else of a step is outside of them."""
    net, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    modes = Modes()
    modes.start()
    with ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)  # type: ignore[arg-type]
        loss = net(x).sum()
    if loss.requires_grad:
        loss.backward()
    modes.stop()
    return modes.facts()


def test_training() -> None:
    assert _facts() == {"calls": 3, "grad_ratio": 1.0, "inference_ratio": 0.0, "autocast": []}


def test_gradients_off() -> None:
    facts = _facts(torch.no_grad())
    assert (facts["grad_ratio"], facts["inference_ratio"]) == (0.0, 0.0)


def test_inference_mode() -> None:
    facts = _facts(torch.inference_mode())
    assert (facts["grad_ratio"], facts["inference_ratio"]) == (0.0, 1.0)


def test_autocast_that_is_over_when_the_step_ends() -> None:
    facts = _facts(torch.autocast("cpu", dtype=torch.bfloat16))
    # linear and sum are under it, backward is not.
    assert facts["autocast"] == [{"device": "cpu", "dtype": "bfloat16", "ratio": 0.6667}]
    assert not torch.is_autocast_enabled("cpu")


def test_the_optimizers_own_calls_do_not_count() -> None:
    net = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(net.parameters(), foreach=False)
    net(torch.randn(2, 4)).sum().backward()
    modes = Modes()
    modes.start()
    optimizer.step()
    modes.stop()
    assert modes.facts() == {}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_arguments_of_compile_are_noted_once() -> None:
    undo: list[object] = []

    def replace(owner: object, name: str, new: object) -> None:
        undo.append(getattr(owner, name))
        setattr(owner, name, new)

    calls = CompileCalls()
    calls.install(replace, lambda: None)
    try:
        for _ in range(2):
            torch.compile(lambda x: x, mode="reduce-overhead", dynamic=False)
    finally:
        torch.compile = undo[0]
    assert calls.found == [{"mode": "reduce-overhead"}]
