"""FLOP and bytes of fused attention, from shapes.

Attention that is written out counts as the products and softmax that it is made of.
"""

from __future__ import annotations

import re

from kinetoscope.metrics.cost_args import Args, Cost, Formula, NotRecordedError, Op

__all__ = ["ATTENTION_OPS"]

_FLOAT = re.compile(r"-?(\d+\.\d*|\.\d+|\d+e-?\d+)(e[+-]?\d+)?$")


def _causal(args: Args) -> bool:
    """Whether a causal mask is set.

    All schemas have `dropout_p` (written with a point) and behind it either `is_causal` or, in
    the memory-efficient operators, `custom_mask_type` (1 or 2 is causal).
    """
    if not args.concrete:
        raise NotRecordedError
    values = [args.text(i) for i in range(len(args.concrete))]
    start = next((i for i, text in enumerate(values) if _FLOAT.match(text)), -1)
    for text in values[start + 1 :]:
        if text in ("True", "1", "2"):
            return True
        if text in ("False", "0"):
            return False
    return False


def _pairs(queries: float, keys: float, *, causal: bool) -> float:
    """Query-key pairs that are not masked, per head and sequence.

    Causal: half when the lengths are equal; otherwise queries are the last ones of the keys.
    """
    if not causal:
        return queries * keys
    if queries == keys:
        return queries * keys / 2
    return queries * keys * max(0.0, 1 - (queries - 1) / (2 * keys)) if keys else 0.0


def _attention(q: int, *, seq_first: bool, backward: bool = False, lengths: int = -1) -> Formula:
    """Formula of a fused attention.

    Args:
        q: position of the query; key and value follow it.
        seq_first: [B,S,H,D] instead of [B,H,S,D].
        backward: five products instead of two, with the scores recomputed.
        lengths: position of `cum_seq_q` for packed sequences [tokens,H,D]. Their true lengths
            are not recorded; equal ones give a lower bound.
    """

    def formula(args: Args) -> Cost:
        batch, heads, sq, sk, d, dv = _attention_dims(args, q, seq_first, lengths)
        pairs = _pairs(sq, sk, causal=_causal(args))
        flop = 2.0 * batch * heads * pairs * (d + dv)
        out_bytes = args.n(q) // max(d, 1) * dv * args.size(q)
        inputs = args.bytes(q) + args.bytes(q + 1) + args.bytes(q + 2)
        statistics = 4.0 * batch * heads * sq
        if backward:
            traffic = 2 * inputs + 2 * out_bytes + statistics
            return Cost(2.5 * flop, traffic, args.dtype(q), True)
        return Cost(flop, inputs + out_bytes + statistics, args.dtype(q), True)

    return formula


def _attention_dims(
    args: Args, q: int, seq_first: bool, lengths: int
) -> tuple[float, int, float, float, int, int]:
    """Batch, query heads, query and key lengths, head sizes of key and value."""
    query, key, value = args.shape(q), args.shape(q + 1), args.shape(q + 2)
    if len(query) == 3 and lengths >= 0 and args.is_tensor(lengths):
        batch = max(args.n(lengths) - 1, 1)
        return batch, query[1], query[0] / batch, key[0] / batch, query[2], value[2]
    if len(query) != 4 or len(key) != 4 or len(value) != 4:
        raise NotRecordedError
    if seq_first and lengths >= 0 and args.is_tensor(lengths) and query[0] == 1:
        batch = max(args.n(lengths) - 1, 1)
        return batch, query[2], query[1] / batch, key[1] / batch, query[3], value[3]
    seq, head = (1, 2) if seq_first else (2, 1)
    return query[0], query[head], query[seq], key[seq], query[3], value[3]


def _sdpa(*, backward: bool = False, composite: bool = False) -> Op:
    return Op(
        _attention(1 if backward else 0, seq_first=False, backward=backward),
        concrete=True,
        composite=composite,
    )


ATTENTION_OPS: dict[str, Op] = {
    "aten::scaled_dot_product_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_flash_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_efficient_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_cudnn_attention": _sdpa(composite=True),
    "aten::_scaled_dot_product_flash_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_scaled_dot_product_efficient_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_scaled_dot_product_cudnn_attention_backward": _sdpa(backward=True, composite=True),
    "aten::_cudnn_attention_forward": _sdpa(),
    "aten::_cudnn_attention_backward": _sdpa(backward=True),
    "aten::_flash_attention_forward": Op(_attention(0, seq_first=True, lengths=3), concrete=True),
    "aten::_flash_attention_backward": Op(
        _attention(1, seq_first=True, lengths=6, backward=True), concrete=True
    ),
    # (query, key, value, bias, cu_seqlens_q, ...)
    "aten::_efficient_attention_forward": Op(
        _attention(0, seq_first=True, lengths=4), concrete=True
    ),
    # (grad_out, query, key, value, bias, out, cu_seqlens_q, ...)
    "aten::_efficient_attention_backward": Op(
        _attention(1, seq_first=True, lengths=6, backward=True), concrete=True
    ),
    "flash_attn::_flash_attn_forward": Op(_attention(0, seq_first=True), concrete=True),
    "flash_attn::_flash_attn_backward": Op(
        _attention(1, seq_first=True, backward=True), concrete=True
    ),
}
