"""Whether a program asked for compiled code, which hooks on modules would make compile again."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from kinetoscope.capture.compiling import may_compile

FRAME = "torch._dynamo.eval_frame"


@pytest.mark.parametrize(
    ("frame", "expected"),
    [
        (SimpleNamespace(cached_backends={}), False),
        (SimpleNamespace(cached_backends={1: None}), False),  # functions that are not compiled
        (SimpleNamespace(cached_backends={1: None, 2: "inductor"}), True),
        (SimpleNamespace(), True),  # this torch does not tell
    ],
)
def test_what_dynamo_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, frame: object, expected: bool
) -> None:
    monkeypatch.setitem(sys.modules, FRAME, frame)  # type: ignore[arg-type]
    assert may_compile() is expected


def test_without_dynamo_nothing_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, FRAME, raising=False)
    assert may_compile() is False


PROGRAM = """
import torch, torch._dynamo
from kinetoscope.capture.compiling import may_compile
model = torch.nn.Linear(2, 2)
torch.optim.SGD(model.parameters(), lr=0.1)  # an optimizer has functions that are not compiled
print(may_compile())
torch.compile(model)
print(may_compile())
"""


def test_by_torch_itself() -> None:
    pytest.importorskip("torch")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.split() == ["False", "True"]
