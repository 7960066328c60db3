"""Names that torch's distributed parts give to host events: DDP, FSDP, pipelines, groups."""

from __future__ import annotations

import re

#: The reducer's ranges in reducer.cpp: of its own functions, and of the operators it calls.
_REDUCER = ("torch.distributed.ddp.reducer::", "torch::distributed::reducer::")


def is_ddp_range(name: str) -> bool:
    """DDP's own ranges (torch/nn/parallel/distributed.py, reducer.cpp) and its Python frames."""
    return (
        name.startswith(("DistributedDataParallel.", *_REDUCER))
        or name == "nn.Module: DistributedDataParallel_0"
        or "torch/nn/parallel/distributed.py(" in name
    )


def is_fsdp_range(name: str) -> bool:
    """FSDP's own ranges (`FSDP::all_gather (net.0)`, FSDP1's class names) and Python frames."""
    return (
        name.startswith(("FSDP::", "FullyShardedDataParallel."))
        or "torch/distributed/fsdp/" in name
        or "torch/distributed/_composable/fsdp/" in name
    )


def is_gradient_hook(name: str) -> bool:
    """The engine's node after which DDP's reducer sends a bucket."""
    return name.endswith("torch::autograd::AccumulateGrad")


def is_distributed_range(name: str) -> bool:
    """torch.distributed's own frames around a collective (its logging wrapper included)."""
    return "torch/distributed/" in name and any(
        file in name
        for file in ("distributed_c10d.py(", "c10d_logger.py(", "_functional_collectives.py(")
    )


def is_barrier_frame(name: str) -> bool:
    """`torch.distributed.barrier` and its debugging twin."""
    return "torch/distributed/distributed_c10d.py(" in name and name.endswith(
        (": barrier", ": monitored_barrier")
    )


def fsdp_unit(name: str) -> str | None:
    """The module whose parameters an FSDP2 all-gather brings; "" for the root, None otherwise."""
    rest = name.removeprefix("FSDP::all_gather")
    if rest == name or rest.startswith("_"):
        return None
    return rest.strip(" ()")


def is_unused_search(name: str) -> bool:
    """The reducer's walk over the autograd graph (reducer.cpp, `find_unused_parameters=True`)."""
    return name.endswith("reducer::search_unused_parameters")


def is_bucket_copy(name: str) -> bool:
    """The reducer's copy of an averaged bucket back into the gradients (reducer.cpp)."""
    return name.endswith("reducer::copy_bucket_to_grad")


def is_ddp_forward(name: str) -> bool:
    """The range around one forward call of DistributedDataParallel."""
    return name == "DistributedDataParallel.forward"


def is_buffer_sync(name: str) -> bool:
    """DDP's broadcast of buffers before a forward (torch/nn/parallel/distributed.py)."""
    return "torch/nn/parallel/distributed.py(" in name and name.endswith(
        (": _sync_buffers", ": _sync_module_buffers", ": _default_broadcast_coalesced")
    )


_OBJECT_CALLS = (
    ": all_gather_object",
    ": gather_object",
    ": broadcast_object_list",
    ": scatter_object_list",
    ": send_object_list",
    ": recv_object_list",
)


def is_object_collective(name: str) -> bool:
    """Collectives of Python objects (torch/distributed/distributed_c10d.py), which pickle them."""
    return "torch/distributed/distributed_c10d.py(" in name and name.endswith(_OBJECT_CALLS)


def is_group_creation(name: str) -> bool:
    """The making of a process group (torch/distributed/distributed_c10d.py)."""
    return "torch/distributed/distributed_c10d.py(" in name and name.endswith(
        (": new_group", ": _new_group_with_tag", ": _new_process_group_helper", ": split_group")
    )


def is_data_parallel_frame(name: str) -> bool:
    """`nn.DataParallel` at work (torch/nn/parallel/data_parallel.py)."""
    return "torch/nn/parallel/data_parallel.py(" in name or name.startswith(
        "nn.Module: DataParallel_"
    )


def is_data_parallel_spread(name: str) -> bool:
    """What `nn.DataParallel` does around the work of the replicas: copies of model and batch."""
    return any(
        file in name
        for file in (
            "torch/nn/parallel/replicate.py(",
            "torch/nn/parallel/scatter_gather.py(",
            "torch/nn/parallel/comm.py(",
        )
    )


_PIPELINE = re.compile(
    r"^(?:(?P<what>Forward|Backward) (?P<number>\d+)|PP:\d+(?P<letter>[FBIW])(?P<batch>\d+))$"
)


def pipeline_microbatch(name: str) -> tuple[str, int] | None:
    """`Forward 3`, `PP:0F3` -> ("F", 3): a stage's range around one micro-batch (pipelining)."""
    match = _PIPELINE.match(name)
    if match is None:
        return None
    if match["what"]:
        return match["what"][0], int(match["number"])
    return match["letter"], int(match["batch"])


_FSDP_GATHERS = (
    "FSDP::all_gather",
    "FSDP::pre_forward",
    "FSDP::pre_backward",
    "FullyShardedDataParallel._pre_",
)


def is_fsdp_gather(name: str) -> bool:
    """FSDP's ranges in which it gathers the parameters of a unit."""
    return name.startswith(_FSDP_GATHERS)


def is_fsdp1_range(name: str) -> bool:
    """Ranges of the first FSDP, the class around a module."""
    return name.startswith("FullyShardedDataParallel.") or (
        "torch/distributed/fsdp/" in name and "/_fully_shard/" not in name
    )


def is_gloo_range(name: str) -> bool:
    """The range in which Gloo works on a collective (ProcessGroupGloo.cpp)."""
    return name.startswith("gloo:")


def is_distributed_copy(name: str) -> bool:
    """Operators and ranges of FSDP and DDP whose copies belong to communication."""
    return name.startswith(("FSDP::", "fsdp::", "c10d::", "_c10d_functional::", *_REDUCER))
