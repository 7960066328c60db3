# ruff: noqa: N815 - `ast.NodeVisitor` wants the names of the nodes
"""What a function's source calls, in the order in which Python evaluates it.

Each call, operator and index of a function may show as an event of a recording. Together with the
lines they stand on they are what the events of a call of that function are compared with.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable
from dataclasses import dataclass, field

_BINARY: dict[type[ast.operator], str] = {
    ast.Add: "add add_ __add__ __radd__",
    ast.Sub: "sub sub_ rsub __rsub__ __sub__",
    ast.Mult: "mul mul_ __mul__ __rmul__",
    ast.Div: "div div_ true_divide reciprocal __rdiv__ __rtruediv__ __truediv__",
    ast.FloorDiv: "floor_divide __floordiv__ __rfloordiv__ div",
    ast.Mod: "remainder fmod __mod__ __rmod__",
    ast.Pow: "pow pow_ __pow__ __rpow__",
    ast.MatMult: "matmul mm bmm __matmul__ __rmatmul__",
    ast.BitAnd: "__and__ __iand__ bitwise_and logical_and",
    ast.BitOr: "__or__ __ior__ bitwise_or logical_or",
    ast.BitXor: "__xor__ __ixor__ bitwise_xor logical_xor",
    ast.LShift: "__lshift__ bitwise_left_shift",
    ast.RShift: "__rshift__ bitwise_right_shift",
}
_UNARY: dict[type[ast.unaryop], str] = {
    ast.USub: "neg neg_ __neg__",
    ast.Invert: "bitwise_not logical_not __invert__",
    ast.Not: "is_nonzero item __bool__",
}
_COMPARE: dict[type[ast.cmpop], str] = {
    ast.Eq: "eq __eq__",
    ast.NotEq: "ne __ne__",
    ast.Lt: "lt gt __lt__ __gt__",
    ast.LtE: "le ge __le__ __ge__",
    ast.Gt: "gt lt __gt__ __lt__",
    ast.GtE: "ge le __ge__ __le__",
    ast.In: "__contains__",
    ast.NotIn: "__contains__",
}
_READS = "select slice index unsqueeze alias embedding __getitem__ getitem item nonzero view expand"
_WRITES = f"{_READS} copy_ fill_ index_put_ masked_fill_ __setitem__ zero_ lift_fresh to detach_"
_TRUTH = "is_nonzero item __bool__ _local_scalar_dense"
_CONVERSIONS = {
    "float": "item __float__ _local_scalar_dense",
    "int": "item __int__ __index__ _local_scalar_dense",
    "bool": _TRUTH,
    "len": "__len__",
    "print": "item __format__ __repr__ __str__",
}


@dataclass(frozen=True)
class Token:
    """Something that may show as an event.

    Attributes:
        line: where it stands.
        names: of events that it makes.
        call: a call, whose event may have another name (a module, a decorated function).
        many: may make several events in a row.
        optional: often makes none.
        loops: numbers of the loops around it, from the outside in.
    """

    line: int
    names: frozenset[str]
    call: bool = False
    many: bool = False
    optional: bool = False
    loops: tuple[int, ...] = ()


@dataclass
class _Walk(ast.NodeVisitor):
    """Collects tokens in the order of evaluation."""

    tokens: list[Token] = field(default_factory=list)
    loops: tuple[int, ...] = ()
    count: int = 0

    def add(
        self,
        line: int,
        names: str,
        *,
        call: bool = False,
        many: bool = False,
        optional: bool = True,
    ) -> None:
        found = frozenset(names.split())
        self.tokens.append(Token(line, found, call, many, optional, self.loops))

    def all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def loop(self, inside: Callable[[], None]) -> None:
        self.count += 1
        outer, self.loops = self.loops, (*self.loops, self.count)
        inside()
        self.loops = outer

    # ---- expressions ---------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        function = node.func
        name, line = _callee(node), node.lineno
        if isinstance(function, ast.Attribute):
            self.visit(function.value)
            line = function.end_lineno or line
            self.add(line, "__getattr__")
        elif not isinstance(function, ast.Name):
            self.visit(function)
        self.all(*node.args, *node.keywords)
        more = _CONVERSIONS.get(name, "") if isinstance(function, ast.Name) else ""
        made = "__init__ __new__" if name[:1].isupper() else ""
        python = isinstance(function, ast.Name) and hasattr(builtins, name)
        self.add(line, f"{name} {more} {made}", call=not python, optional=python)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.all(node.left, node.right)
        self.add(node.left.end_lineno or node.lineno, _BINARY[type(node.op)])

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        self.visit(node.operand)
        if type(node.op) in _UNARY:
            self.add(node.lineno, _UNARY[type(node.op)])

    def visit_Compare(self, node: ast.Compare) -> None:
        self.visit(node.left)
        for operation, right in zip(node.ops, node.comparators, strict=True):
            self.visit(right)
            if type(operation) in _COMPARE:
                self.add(node.left.end_lineno or node.lineno, _COMPARE[type(operation)])

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.all(node.value, node.slice)
        names = _READS if isinstance(node.ctx, ast.Load) else _WRITES
        self.add(node.lineno, names, many=True)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.visit(node.value)
        turned = "t numpy_T transpose permute" if node.attr in ("T", "mT", "H", "mH") else ""
        self.add(node.end_lineno or node.lineno, f"{node.attr} __getattr__ __setattr__ {turned}")

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._test(node.test)
        self.all(node.body, node.orelse)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        """Its body is a frame of its own."""

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp) -> None:
        self._comprehension(node.generators, node.elt)

    visit_SetComp = visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> None:
        self._comprehension(node.generators, node.key, node.value)

    def _comprehension(self, generators: list[ast.comprehension], *parts: ast.expr) -> None:
        self.visit(generators[0].iter)
        self._iterates(generators[0].iter)

        def inside() -> None:
            self.all(*generators[0].ifs)
            if generators[1:]:
                self._comprehension(generators[1:], *parts)
            else:
                self.all(*parts)

        self.loop(inside)

    def _iterates(self, over: ast.expr) -> None:
        names = "unbind __iter__ __next__ __len__ <genexpr> <listcomp>"
        self.add(over.lineno, names, many=True)

    def _test(self, test: ast.expr) -> None:
        self.visit(test)
        self.add(test.lineno, _TRUTH)

    # ---- statements ----------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> None:
        self.all(node.value, *node.targets)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.all(node.value, node.target)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.all(node.target, node.value)
        names = _BINARY[type(node.op)]
        stored = _WRITES if isinstance(node.target, ast.Subscript) else ""
        self.add(node.lineno, f"{names} {stored}", many=bool(stored))

    def visit_If(self, node: ast.If) -> None:
        self._test(node.test)
        self.all(*node.body, *node.orelse)

    def visit_While(self, node: ast.While) -> None:
        def inside() -> None:
            self._test(node.test)
            self.all(*node.body)

        self.loop(inside)
        self.all(*node.orelse)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)

        def inside() -> None:
            self._iterates(node.iter)
            self.all(node.target, *node.body)

        self.loop(inside)
        self.all(*node.orelse)

    visit_AsyncFor = visit_For

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        for item in node.items:
            self.visit(item.context_expr)
            self.add(item.context_expr.lineno, "__enter__")
        self.all(*node.body)
        self.add(node.lineno, "__exit__")

    visit_AsyncWith = visit_With

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        """A function inside is a frame of its own; only its decorators run here."""
        self.all(*node.decorator_list)

    visit_AsyncFunctionDef = visit_FunctionDef


def tokens_of(function: ast.AST) -> list[Token]:
    """Tokens of a function, a lambda, a comprehension with a frame of its own, or a module."""
    walk = _Walk()
    if isinstance(function, ast.Lambda):
        walk.visit(function.body)
    elif isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Module):
        walk.all(*function.body)
    else:
        walk.visit(function)
    return walk.tokens


def only_hot_line(function: ast.AST) -> int | None:
    """The line that the function's own time must be spent on; None when several may be.

    That is the body of its only innermost loop, when it is one statement.
    """
    loops = [n for n in _own_nodes(function) if isinstance(n, _LOOPS)]
    inner = [n for n in loops if not any(m is not n and m in _own_nodes(n) for m in loops)]
    if len(inner) != 1:
        return None
    if isinstance(inner[0], ast.For | ast.AsyncFor | ast.While):
        body = inner[0].body
        simple = len(body) == 1 and isinstance(body[0], ast.Assign | ast.AugAssign | ast.Expr)
        return body[0].lineno if simple else None
    return inner[0].lineno


_LOOPS = (
    ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def _own_nodes(function: ast.AST) -> list[ast.AST]:
    """All nodes below, without those of functions inside."""
    found: list[ast.AST] = []
    todo = list(ast.iter_child_nodes(function))
    while todo:
        node = todo.pop()
        found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            todo.extend(ast.iter_child_nodes(node))
    return found


def _callee(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


__all__ = ["Token", "only_hot_line", "tokens_of"]
