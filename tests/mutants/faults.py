"""Which faults a module can be given, and giving it one. Pure: source text in, source text out.

Annotations and log calls are left alone: no test has to notice what they say.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}

LOG_METHODS = frozenset(("debug", "info", "warning", "error", "exception"))


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `node` is the place of its node in `ast.walk`; `part` the handler or keyword of
    that node."""

    path: str
    line: int
    kind: str
    node: int
    part: int = 0


def faults_in(path: str, source: str) -> list[Fault]:
    """Return all faults of a module."""
    tree = ast.parse(source)
    left_alone = set(_left_alone(tree))
    return [
        Fault(path, _line(node), kind, number, part)
        for number, node in enumerate(ast.walk(tree))
        if id(node) not in left_alone
        for kind, part in _kinds(node)
    ]


def module_of(path: str) -> str:
    """Return the name of the module that lies at a path below the code."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def drawn(faults: list[Fault], count: int, seed: int) -> list[Fault]:
    """Return `count` of these faults, the same ones for a seed, in the order of the code."""
    chance = random.Random(seed)
    return sorted(
        chance.sample(faults, min(count, len(faults))), key=lambda each: (each.path, each.line)
    )


def mutated(source: str, fault: Fault) -> ast.Module:
    """Return the code with one fault; its nodes keep their places."""
    tree = ast.parse(source)
    target = list(ast.walk(tree))[fault.node]
    _Change(fault, target).visit(tree)
    return ast.fix_missing_locations(tree)


def _left_alone(tree: ast.AST) -> Iterator[int]:
    for node in ast.walk(tree):
        parts = [getattr(node, "annotation", None), getattr(node, "returns", None)]
        if _is_log(node) or (isinstance(node, ast.If) and _is_type_checking(node.test)):
            parts.append(node)
        for part in parts:
            if isinstance(part, ast.AST):
                yield from map(id, ast.walk(part))


def _is_log(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in LOG_METHODS
    )


def _is_type_checking(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _line(node: ast.AST) -> int:
    if isinstance(node, ast.comprehension):
        return node.target.lineno
    return int(getattr(node, "lineno", 0))


def _kinds(node: ast.AST) -> Iterator[tuple[str, int]]:
    match node:
        case ast.If() | ast.While() | ast.IfExp() | ast.comprehension(ifs=[_, *_]):
            yield "negate the condition", 0
        case ast.UnaryOp(op=ast.Not()):
            yield "drop the not", 0
        case ast.Expr(value=ast.Call() | ast.Await() as value):
            if not _is_log(value) and not (isinstance(value, ast.Await) and _is_log(value.value)):
                yield "drop the call", 0
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            yield "add one", 0
        case ast.Compare(ops=[op, *_]) if type(op) in OPPOSITE:
            yield "change the comparison", 0
        case ast.Call():
            yield from (("drop a keyword", k) for k, each in enumerate(node.keywords) if each.arg)
        case ast.Return(value=ast.expr() as value):
            if not (isinstance(value, ast.Constant) and value.value is None):
                yield "change what is returned", 0
        case ast.Try():
            yield from (("drop a handler", k) for k in range(len(node.handlers)))


class _Change(ast.NodeTransformer):
    def __init__(self, fault: Fault, target: ast.AST) -> None:
        self._fault = fault
        self._target = target

    def visit(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        if node is not self._target:
            changed: ast.AST = self.generic_visit(node)
            return changed
        return self._changed(node)

    def _changed(self, node: ast.AST) -> ast.AST | list[ast.stmt]:
        match node:
            case ast.comprehension():
                node.ifs[0] = ast.UnaryOp(ast.Not(), node.ifs[0])
            case ast.If() | ast.While() | ast.IfExp():
                node.test = ast.UnaryOp(ast.Not(), node.test)
            case ast.UnaryOp():
                return node.operand
            case ast.Expr():
                return ast.copy_location(ast.Pass(), node)
            case ast.Constant(value=int() as value):
                node.value = value + 1
            case ast.Compare():
                node.ops[0] = OPPOSITE[type(node.ops[0])]()
            case ast.Call():
                del node.keywords[self._fault.part]
            case ast.Return():
                node.value = _other(node.value)
            case ast.Try():
                del node.handlers[self._fault.part]
                if not node.handlers and not node.finalbody:
                    return [*node.body, *node.orelse]
        return node


def _other(value: ast.expr | None) -> ast.expr:
    if isinstance(value, ast.Constant) and isinstance(value.value, bool):
        return ast.Constant(not value.value)
    if isinstance(value, ast.Compare | ast.BoolOp):
        return ast.UnaryOp(ast.Not(), value)
    return ast.Constant(None)
