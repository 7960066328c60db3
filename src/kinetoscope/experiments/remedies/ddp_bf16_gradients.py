"""Send gradients as bfloat16: half the bytes.

Patch point: after construction of DistributedDataParallel, by `register_comm_hook`.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from kinetoscope.experiments.remedies._ddp import uses_ddp
from kinetoscope.experiments.remedy import Remedy


def _patch(value: str) -> None:  # noqa: ARG001 - has no parameter
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
    from torch.nn.parallel import DistributedDataParallel

    original = DistributedDataParallel.__init__

    @wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.register_comm_hook(None, bf16_compress_hook)

    DistributedDataParallel.__init__ = init


REMEDY = Remedy(
    id="ddp-bf16-gradients",
    title="send gradients as bfloat16",
    tolerance="bf16",
    applies=uses_ddp,
    patch=_patch,
    snippet=lambda _: "model.register_comm_hook(None, default_hooks.bf16_compress_hook)",
)
