"""What a run computed, for the guards: losses, samples of outputs, facts about the program.

Values stay on the device until the program has ended, so that observing costs no waiting.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Mapping
from typing import Any

from kinetoscope.capture.precision import convolution_tf32, matmul_precision
from kinetoscope.experiments._hooks import TOP, at_construction, tensors_of

LOSSES = 20
OUTPUTS = 5
SAMPLE = 256
_AMPERE = 8


class Observer:
    """Collects during the run; `report` turns it into plain data afterwards."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.outputs: list[Any] = []
        self.loaders: list[dict[str, Any]] = []
        self.optimizers: list[Any] = []
        self.ddp: dict[str, Any] = {}
        self.tops: list[Any] = []
        self.batch = 0
        self.grad_enabled = False
        self.autocast = False

    def install(self) -> None:
        """Put the observer's hooks in."""
        import torch
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader

        TOP.first.append(self.tops.append)
        TOP.after.append(self._called)
        self._watch_backward(torch)
        at_construction(DataLoader, self._loader)
        at_construction(DistributedDataParallel, lambda kwargs, _: self.ddp.update(_plain(kwargs)))
        original = torch.optim.Optimizer.__init__
        observer = self

        def init(self: Any, *args: Any, **kwargs: Any) -> None:
            original(self, *args, **kwargs)
            observer.optimizers.append(self)

        torch.optim.Optimizer.__init__ = init

    def _watch_backward(self, torch: Any) -> None:
        backward = torch.Tensor.backward
        losses = self.losses

        def watched(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if len(losses) < LOSSES and tensor.numel() == 1:
                losses.append(tensor.detach().clone())
            return backward(tensor, *args, **kwargs)

        torch.Tensor.backward = watched

    def _loader(self, kwargs: Mapping[str, Any], args: tuple[Any, ...]) -> None:
        from torch.utils.data import IterableDataset

        dataset = kwargs.get("dataset", args[0] if args else None)
        self.loaders.append(
            {
                "iterable": isinstance(dataset, IterableDataset),
                "num_workers": kwargs.get("num_workers", args[5] if len(args) > 5 else 0),
                "pin_memory": bool(kwargs.get("pin_memory", False)),
                "persistent_workers": bool(kwargs.get("persistent_workers", False)),
                "batch_size": kwargs.get("batch_size", args[1] if len(args) > 1 else 1),
            }
        )

    def _called(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        import torch

        if len(self.outputs) >= OUTPUTS:
            return
        self.grad_enabled = self.grad_enabled or torch.is_grad_enabled()
        self.autocast = self.autocast or torch.is_autocast_enabled(_device_of(module))
        first = next(tensors_of(args), None)
        if first is not None and first.dim() and not self.batch:
            self.batch = int(first.shape[0])
        sample = [_sample(tensor) for tensor in tensors_of(output)]
        self.outputs.append([s for s in sample if s is not None])

    # ---- afterwards ------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """Return losses, outputs and facts as plain data."""
        return {
            "losses": [_number(loss) for loss in self.losses],
            "outputs": [
                [x for tensor in call for x in tensor.double().cpu().tolist()]
                for call in self.outputs
            ],
            "facts": self._facts(),
        }

    def _facts(self) -> dict[str, Any]:
        import torch
        from torch import nn

        modules = [m for top in self.tops for m in top.modules()]
        parameters = [p for top in self.tops for p in top.parameters()]
        return {
            "device": _device_of(self.tops[0]) if self.tops else "cpu",
            "loaders": self.loaders,
            "optimizers": [_optimizer(o) for o in self.optimizers],
            "convolutions": any(isinstance(m, nn.Conv2d) for m in modules),
            "dropout": any(isinstance(m, nn.Dropout) and m.p > 0 and m.training for m in modules),
            "parameters": sum(p.numel() for p in parameters),
            "dtypes": sorted({str(p.dtype).removeprefix("torch.") for p in parameters}),
            "ddp": self.ddp,
            "compiled": any(
                getattr(m, "_compiled_call_impl", None) is not None
                or type(m).__name__ == "OptimizedModule"
                for m in self.tops
            ),
            "grad_enabled": self.grad_enabled,
            "batch": self.batch,
            "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
            "autocast": self.autocast,
            "settings": {
                "matmul_precision": matmul_precision(),
                "cudnn_benchmark": torch.backends.cudnn.benchmark,
                "cudnn_tf32": convolution_tf32(),
                "tf32": _tf32_units(torch),
                "threads": torch.get_num_threads(),
                "gc_enabled": gc.isenabled(),
                "allocator": os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            },
        }


def _device_of(module: Any) -> str:
    parameter = next(iter(module.parameters()), None)
    return str(parameter.device.type) if parameter is not None else "cpu"


def _tf32_units(torch: Any) -> bool:
    """Whether the device in use can multiply in TF32; True where that is not known."""
    cuda = torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.version.hip
    return not cuda or torch.cuda.get_device_capability()[0] >= _AMPERE


def _sample(tensor: Any) -> Any:
    """Evenly spaced values of an output."""
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return None
    flat = tensor.detach().reshape(-1)
    return flat[:: max(flat.numel() // SAMPLE, 1)][:SAMPLE].clone()


def _number(tensor: Any) -> float:
    return float(tensor.double().cpu().item())


def _plain(kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in kwargs.items() if isinstance(v, bool | int | float | str)}


def _optimizer(optimizer: Any) -> dict[str, Any]:
    group = optimizer.param_groups[0] if optimizer.param_groups else {}
    tensors = sum(len(g["params"]) for g in optimizer.param_groups)
    return {
        "class": type(optimizer).__name__,
        "fused": bool(group.get("fused")),
        "foreach": group.get("foreach"),
        "has_fused": "fused" in group,
        "tensors": tensors,
    }
