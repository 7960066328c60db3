"""Operator name -> how its cost is found: the union of the tables by kind of work."""

from __future__ import annotations

import re

from kinetoscope.metrics.cost_args import Op
from kinetoscope.metrics.cost_attention import ATTENTION_OPS
from kinetoscope.metrics.cost_conv import CONV_OPS
from kinetoscope.metrics.cost_elementwise import ELEMENTWISE_OPS, triton_cost
from kinetoscope.metrics.cost_gemm import GEMM_OPS
from kinetoscope.metrics.cost_index import INDEX_OPS
from kinetoscope.metrics.cost_lists import LIST_OPS
from kinetoscope.metrics.cost_reduce import REDUCE_OPS

__all__ = ["find_op"]

_OPS: dict[str, Op] = {
    **ELEMENTWISE_OPS,
    **LIST_OPS,
    **REDUCE_OPS,
    **INDEX_OPS,
    **GEMM_OPS,
    **CONV_OPS,
    **ATTENTION_OPS,
}
_TRITON = Op(triton_cost)
#: Inductor's pointwise, reduction and persistent kernels. Those that look rows up in a table are
#: given the whole table but read a part of it that is not recorded; templates are no such kernels.
_TRITON_NAME = re.compile(
    r"triton_(poi|red|per)_fused_(?!.*(embedding|index|gather|scatter|nll_loss))"
)


def find_op(name: str) -> Op | None:
    """The entry of the table for an operator; None when its cost is not known."""
    return _OPS.get(name) or (_TRITON if _TRITON_NAME.match(name) else None)
