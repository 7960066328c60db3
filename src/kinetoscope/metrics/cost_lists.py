"""FLOP and bytes of operators on lists of tensors: `_foreach_*`, fused optimizers, `cat`.

Lists of more than 30 tensors are recorded as empty: their cost is unknown.
"""

from __future__ import annotations

from kinetoscope.metrics.cost_args import Args, Cost, Formula, NotRecordedError, Op

__all__ = ["LIST_OPS"]


def _list_cost(args: Args, elements: float, flop: float) -> Cost:
    return Cost(flop, elements * args.list_size(), args.element[0])


def _foreach(*, reads: int = 0) -> Formula:
    """Each list is read, the first (or a new one like it) written.

    reads: lists that are read; 0: all that are given. The element type is that of the kernel.
    """

    def formula(args: Args) -> Cost:
        lists = [i for i in range(len(args.types)) if args.is_list(i)]
        if not lists:
            raise NotRecordedError
        sizes = [args.list_n(i) for i in (lists[:reads] if reads else lists)]
        return _list_cost(args, sum(sizes) + sizes[0], float(sizes[0]))

    return formula


def _foreach_copy(args: Args) -> Cost:
    """(destinations, sources)."""
    return _list_cost(args, args.list_n(0) + args.list_n(1), 0.0)


def _foreach_zero(args: Args) -> Cost:
    return _list_cost(args, args.list_n(0), 0.0)


def _foreach_norm(args: Args) -> Cost:
    """Reads all, writes next to nothing."""
    n = args.list_n(0)
    return _list_cost(args, n, 2.0 * n)


def _optimizer(*, rewritten: tuple[int, ...], flop: float) -> Formula:
    """Parameters (0) and the state lists are read and written, gradients (1) read.

    Adam on float32: p, m, v twice and g once are 28 bytes an element; SGD 12, with momentum 20.

    Args:
        rewritten: positions of the lists that are read and written, absent ones included.
        flop: operations an element.
    """

    def formula(args: Args) -> Cost:
        n = args.list_n(0)
        elements = args.list_n(1)
        for i in rewritten:
            present = args.is_list(i) and i < len(args.dims) and args.dims[i]
            elements += 2 * args.list_n(i) if present else 0
        return _list_cost(args, elements, flop * n)

    return formula


def _cat(args: Args) -> Cost:
    """Everything is read and written once."""
    n = args.list_n(0)
    return _list_cost(args, 2 * n, 0.0)


def _split_copy(args: Args) -> Cost:
    """split_with_sizes_copy(input, ...): everything is read and written once."""
    return Cost(0.0, float(args.bytes(0) + args.n(0) * args.size(0)), args.dtype(0))


def _chunk_cat(args: Args) -> Cost:
    """_chunk_cat(tensors, dim, chunks, out): as many bytes read as written."""
    out = next((i for i in reversed(args.tensors()) if args.n(i) > 1), -1)
    return Cost(0.0, 2.0 * args.n(out) * args.size(out), args.dtype(out))


_FOREACH = (
    "add sub mul div maximum minimum pow lerp addcmul addcdiv sqrt rsqrt exp log abs neg sign"
    " reciprocal clamp_min clamp_max sigmoid tanh round floor ceil"
)
_ADAM = Op(_optimizer(rewritten=(0, 2, 3, 4), flop=12.0), lists=True)

LIST_OPS: dict[str, Op] = {
    **{f"aten::_foreach_{name}": Op(_foreach(), lists=True) for name in _FOREACH.split()},
    **{f"aten::_foreach_{name}_": Op(_foreach(), lists=True) for name in _FOREACH.split()},
    "aten::_foreach_copy_": Op(_foreach_copy, lists=True),
    "aten::_foreach_zero_": Op(_foreach_zero, lists=True),
    "aten::_foreach_norm": Op(_foreach_norm, lists=True),
    "aten::_amp_foreach_non_finite_check_and_unscale_": Op(_foreach(reads=1), lists=True),
    "aten::_fused_adam_": _ADAM,
    "aten::_fused_adamw_": _ADAM,
    "aten::_fused_sgd_": Op(_optimizer(rewritten=(0, 2), flop=4.0), lists=True),
    "aten::_fused_adagrad_": Op(_optimizer(rewritten=(0, 2), flop=6.0), lists=True),
    "aten::cat": Op(_cat, lists=True),
    "aten::stack": Op(_cat, lists=True, composite=True),
    "aten::split_with_sizes_copy": Op(_split_copy),
    "aten::_chunk_cat": Op(_chunk_cat),
}
