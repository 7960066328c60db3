"""Facts about the program's objects: models, optimizers, loaders, wrappers, compilation."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from typing import Any

from kinetoscope.capture.torch_parts import COUNTERS

_MOST = 8
"""So many objects of each sort are described; programs with more have them alike."""


def describe() -> dict[str, Any]:
    """Look at all live objects once.

    Only outermost modules are models; those inside another one are counted with it.
    """
    modules, optimizers, loaders = _live()
    inner = {id(child) for module in modules for child in list(module.modules())[1:]}
    models = [m for m in modules if id(m) not in inner and _parameters(m)]
    models.sort(key=lambda m: -sum(p.numel() for p in _parameters(m)))
    return {
        "models": [_model(m) for m in models[:_MOST]],
        "optimizers": [_optimizer(o) for o in optimizers[:_MOST]],
        "loaders": [_loader(x) for x in loaders[:_MOST]],
        "compile": _compile(),
        "distributed": _distributed(),
    }


def _live() -> tuple[list[Any], list[Any], list[Any]]:
    from torch.nn import Module
    from torch.optim import Optimizer
    from torch.utils.data import DataLoader

    modules, optimizers, loaders = [], [], []
    for thing in gc.get_objects():
        kind = type(thing)  # not isinstance: proxies of other libraries answer that with surprises
        if issubclass(kind, Module):
            modules.append(thing)
        elif issubclass(kind, Optimizer):
            optimizers.append(thing)
        elif issubclass(kind, DataLoader):
            loaders.append(thing)
    return modules, optimizers, loaders


def _parameters(module: Any) -> list[Any]:
    try:
        return list(module.parameters())
    except (RuntimeError, AttributeError, TypeError):  # half-built or scripted modules
        return []


def _model(module: Any) -> dict[str, Any]:
    parameters = _parameters(module)
    count: Counter[str] = Counter()
    for parameter in parameters:
        count[_short(parameter.dtype)] += parameter.numel()
    return {
        "class": type(module).__name__,
        "parameters": sum(count.values()),
        "trainable": sum(p.numel() for p in parameters if p.requires_grad),
        "tensors": len(parameters),
        "dtypes": dict(count),
        "devices": sorted({str(p.device) for p in parameters}),
        "training": bool(getattr(module, "training", False)),
        "modules": dict(Counter(type(m).__name__ for m in module.modules()).most_common(12)),
        **_wrapper(module),
    }


def _wrapper(module: Any) -> dict[str, Any]:
    """Settings of DistributedDataParallel, FSDP, DataParallel and compiled modules."""
    names = {type(m).__name__: m for m in module.modules()}
    facts: dict[str, Any] = {}
    ddp = names.get("DistributedDataParallel")
    if ddp is not None:
        facts["ddp"] = {
            "bucket_mb": getattr(ddp, "bucket_bytes_cap", 0) / 2**20,
            "find_unused_parameters": bool(getattr(ddp, "find_unused_parameters", False)),
            "gradient_as_bucket_view": bool(getattr(ddp, "gradient_as_bucket_view", False)),
            "static_graph": bool(getattr(ddp, "static_graph", False)),
            "broadcast_buffers": bool(getattr(ddp, "broadcast_buffers", False)),
        }
    fsdp = names.get("FullyShardedDataParallel")
    if fsdp is not None:
        facts["fsdp"] = {
            "sharding": str(getattr(fsdp, "sharding_strategy", "")),
            "units": sum(type(m).__name__ == "FullyShardedDataParallel" for m in module.modules()),
            "limit_all_gathers": bool(getattr(fsdp, "limit_all_gathers", False)),
        }
    if any(name.startswith("FSDP") for name in names):
        facts["fsdp2_units"] = sum(type(m).__name__.startswith("FSDP") for m in module.modules())
    facts["data_parallel"] = "DataParallel" in names
    facts["compiled"] = "OptimizedModule" in names or any(
        getattr(m, "_compiled_call_impl", None) is not None for m in module.modules()
    )
    facts["checkpointing"] = any(
        getattr(m, "gradient_checkpointing", False) for m in names.values()
    )
    return facts


def _optimizer(optimizer: Any) -> dict[str, Any]:
    groups = optimizer.param_groups
    first = groups[0] if groups else {}
    flags = ("fused", "foreach", "capturable", "amsgrad", "momentum", "lr")
    return {
        "class": type(optimizer).__name__,
        "groups": len(groups),
        "tensors": sum(len(group["params"]) for group in groups),
        **{name: _plain(first[name]) for name in flags if name in first},
    }


def _loader(loader: Any) -> dict[str, Any]:
    plain = (
        "batch_size num_workers pin_memory persistent_workers prefetch_factor drop_last timeout"
    ).split()
    facts = {name: _plain(getattr(loader, name, None)) for name in plain}
    return {
        **facts,
        "dataset": type(getattr(loader, "dataset", None)).__name__,
        "collate_fn": getattr(loader.collate_fn, "__qualname__", type(loader.collate_fn).__name__),
        "sampler": type(getattr(loader, "sampler", None)).__name__,
        "context": type(getattr(loader, "multiprocessing_context", None)).__name__,
    }


def _compile() -> dict[str, Any]:
    counters = COUNTERS.get()
    if counters is None:
        return {"used": False} if COUNTERS.module not in sys.modules else {}
    return {
        "used": bool(sum(counters["frames"].values())),
        "frames": dict(counters["frames"]),
        "stats": dict(counters["stats"]),
        "graph_breaks": {str(k)[:300]: v for k, v in counters["graph_break"].most_common(10)},
    }


def _distributed() -> dict[str, Any]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return {}
    return {
        "backend": str(distributed.get_backend()),
        "rank": distributed.get_rank(),
        "world_size": distributed.get_world_size(),
    }


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        return str(value)[:80]
