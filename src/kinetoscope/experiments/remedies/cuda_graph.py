"""Capture the forward pass of inference into a CUDA graph and replay it.

Patch point: the outermost call of a module without gradients. One graph for each set of input
shapes; inputs are copied into the graph's memory, outputs are copied out. A call that cannot be
captured (it waits for the device, its arguments are no tensors) runs as before.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import TOP, mapped, tensors_of
from kinetoscope.experiments.remedy import GPU_ONLY, Facts, Remedy

_WARM_UPS = 3


def _applies(facts: Facts) -> str:
    if not facts.on_gpu:
        return GPU_ONLY
    return "only for inference" if facts.training else ""


class _Graphs:
    """The captured graphs of one process."""

    def __init__(self) -> None:
        self.known: dict[Any, Any] = {}

    def run(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any) -> Any:
        import torch

        inputs = list(tensors_of([args, kwargs]))
        if torch.is_grad_enabled() and any(p.requires_grad for p in module.parameters()):
            return NotImplemented
        if not inputs or not all(tensor.is_cuda for tensor in inputs):
            return NotImplemented
        key = (id(module), tuple((t.shape, t.dtype, t.stride()) for t in inputs))
        if key not in self.known:
            self.known[key] = self._capture(module, args, kwargs, call)
        captured = self.known[key]
        if captured is None:
            return NotImplemented
        graph, static, output = captured
        for mine, given in zip(static, inputs, strict=True):
            mine.copy_(given)
        graph.replay()
        return mapped(output, lambda tensor: tensor.clone())

    def _capture(
        self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Any
    ) -> Any:
        import torch

        own_args, own_kwargs = mapped((args, kwargs), lambda tensor: tensor.clone())
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UPS):
                call(module, *own_args, **own_kwargs)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):
                output = call(module, *own_args, **own_kwargs)
        except RuntimeError:
            return None
        return graph, list(tensors_of([own_args, own_kwargs])), output


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    TOP.replace.append(_Graphs().run)


REMEDY = Remedy(
    id="cuda-graph",
    title="replay the forward pass as a CUDA graph",
    applies=_applies,
    patch=_patch,
    snippet=lambda _: (
        "graph = torch.cuda.CUDAGraph()\n"
        "with torch.cuda.graph(graph):\n"
        "    output = model(static_input)  # then: static_input.copy_(x); graph.replay()"
    ),
)
