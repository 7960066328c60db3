"""What a remedy is: one change that can be made to a running program from outside."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Tolerance = Literal["exact", "reordered", "tf32", "bf16", "fp16", "statistical"]
"""How far results may differ: the same operations; sums in another order; a shorter mantissa; other
random numbers, so that only averages can be compared."""

RELATIVE: dict[str, float] = {
    "exact": 1e-5,
    "reordered": 1e-3,
    "tf32": 1e-2,
    "fp16": 1e-2,
    "bf16": 4e-2,
    "statistical": 5e-2,
}
"""Relative difference that each tolerance allows."""


@dataclass(frozen=True)
class Facts:
    """What a first run of the unchanged program showed.

    Attributes:
        device: `cuda`, `xpu`, `mps` or `cpu`: where the parameters of the top module were.
        training: an optimizer made steps.
        loaders: settings of each DataLoader: num_workers, pin_memory, persistent, batch_size.
        optimizers: class name and flags (`foreach`, `fused`) of each optimizer.
        convolutions: the top module holds 2-d convolutions.
        dropout: the top module trains with dropout.
        parameters: parameters of the top modules.
        dtypes: types of the parameters.
        ddp: settings of DistributedDataParallel, empty when not used.
        compiled: torch.compile is in use already.
        grad_enabled: module calls ran with gradients on.
        batch: first size of the first input tensor.
        settings: flags of torch: matmul precision, cudnn.benchmark, threads, allocator.
        cores: processor cores that the program may use.
        autocast: module calls ran under autocast already.
    """

    device: str = "cpu"
    training: bool = False
    loaders: tuple[Mapping[str, Any], ...] = ()
    optimizers: tuple[Mapping[str, Any], ...] = ()
    convolutions: bool = False
    dropout: bool = False
    parameters: int = 0
    dtypes: tuple[str, ...] = ()
    ddp: Mapping[str, Any] = field(default_factory=dict)
    compiled: bool = False
    grad_enabled: bool = True
    batch: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    cores: int = 1
    autocast: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether the program uses a CUDA or ROCm device."""
        return self.device == "cuda"


@dataclass(frozen=True)
class Remedy:
    """One change.

    Attributes:
        id: name on the command line, `dataloader-workers`.
        title: what it does, a few words.
        improves: what must improve for it to be accepted.
        must_not_worsen: what must not get worse.
        tolerance: how far results may differ.
        applies: why it does not apply to a program; "" when it does.
        takes: what its parameter may be: some words, a whole number from 1 on, or nothing.
        values: parameters to try, best guess first; ("",) when there is none.
        patch: installs it in the process that will run the program, before the program starts;
            gets the parameter.
        snippet: lines to put into the program, for a parameter.
        environment: variables to set before the process starts, for a parameter.
        work: how many times the work of a plain step one step does, for a parameter.
        most: how many times faster, at most, a parameter makes what the remedy speeds up; a rule
            predicts for a good parameter, not for each.
        general: worth trying without a finding that recommends it.
    """

    id: str
    title: str
    applies: Callable[[Facts], str]
    patch: Callable[[str], None]
    snippet: Callable[[str], str]
    improves: str = "step time"
    must_not_worsen: tuple[str, ...] = ("loss", "outputs", "memory")
    tolerance: Tolerance = "exact"
    takes: tuple[str, ...] | Literal["number"] = ()
    values: Callable[[Facts], tuple[str, ...]] = lambda _: ("",)
    environment: Callable[[str], Mapping[str, str]] = lambda _: {}
    work: Callable[[str], float] = lambda _: 1.0
    most: Callable[[str, Facts], float] = lambda _value, _facts: math.inf
    general: bool = True

    def wrong(self, value: str) -> str:
        """Why it does not take a parameter, in words; "" when it does, and for none at all."""
        if not value or (self.takes != "number" and value in self.takes):
            return ""
        if self.takes == "number":
            fits = value.isascii() and value.isdigit() and int(value) > 0
            return "" if fits else "takes a whole number from 1 on"
        return f"takes {', '.join(self.takes)}" if self.takes else "takes no parameter"


def named(remedy: Remedy, value: str) -> str:
    """Return `dataloader-workers=4`, or the plain id without a parameter."""
    return f"{remedy.id}={value}" if value else remedy.id


GPU_ONLY = "needs a GPU"
