"""Small changes of a module's code, such as a mistake would make: an `and` for an `or`, a call less.

Docstrings, logs, imports, decorators and types stay as they are.
"""

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

UNCHANGED = ("annotation", "returns", "decorator_list", "format_spec")
TYPING = {"TypeVar", "ParamSpec", "NewType", "cast", "getLogger", "Literal"}
SWAPS = (
    "Lt:LtE,GtE LtE:Lt,Gt Gt:GtE,LtE GtE:Gt,Lt Eq:NotEq NotEq:Eq Is:IsNot IsNot:Is In:NotIn NotIn:In"
    " And:Or Or:And Add:Sub Sub:Add Mult:FloorDiv Break:Continue Continue:Break"
)
SWAPPED: dict[str, list[str]] = {
    old: new.split(",") for old, new in (swap.split(":") for swap in SWAPS.split())
}


@dataclass(frozen=True, slots=True)
class Change:
    """One node of a module's tree gives way to another. `lines` are those of its statement."""

    lines: range
    put: Callable[[ast.AST], None]
    old: ast.AST
    new: ast.AST

    def __str__(self) -> str:
        old, new = (" ".join(ast.unparse(each).split())[:70] for each in (self.old, self.new))
        place = ":".join(str(getattr(self.old, name)) for name in ("lineno", "col_offset"))
        return f"{place}: {old} -> {new}"

    def text(self, tree: ast.Module) -> str:
        """The whole module with this change."""
        self.put(self.new)
        try:
            return ast.unparse(tree)
        finally:
            self.put(self.old)


def changes(node: ast.AST, around: range = range(0), *, within: bool = False) -> Iterator[Change]:
    """Make every change below a node, in order. `within`: it is in a function."""
    lines = _lines(node, around)
    within = within or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    for name, value in ast.iter_fields(node):
        for n, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or name in UNCHANGED or _is_spared(child):
                continue
            is_list = isinstance(value, list)
            put = partial(value.__setitem__, n) if is_list else partial(setattr, node, name)
            if within or not isinstance(child, ast.stmt):
                here = _lines(child, lines)
                others = (*_others(child), *_conditions(child, name, node))
                yield from (Change(here, put, child, new) for new in others)
            yield from changes(child, lines, within=within)


def _lines(node: ast.AST, around: range) -> range:
    """The lines of a statement, of one with others in it those before them."""
    if not isinstance(node, ast.stmt | ast.match_case):
        return around
    first = node.pattern.lineno if isinstance(node, ast.match_case) else node.lineno
    body = getattr(node, "body", None)
    last = max(first, body[0].lineno - 1) if body else getattr(node, "end_lineno", first)
    return range(first, last + 1)


def _is_spared(node: ast.AST) -> bool:
    """Decide if a node only documents, logs, imports, or speaks about types."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
            return True
        case ast.Call(func=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)):
            return name in TYPING
        case ast.Assign(targets=[ast.Name(id="__all__")]) | ast.Expr(value=ast.Constant()):
            return True
    return isinstance(node, ast.Import | ast.ImportFrom)


def _others(node: ast.AST) -> Iterator[ast.AST]:
    """Make what may stand in the place of a node."""
    match node:
        case ast.Compare(ops=[op, *rest]):
            yield from (_with(node, ops=[each, *rest]) for each in _swapped(op))
        case ast.BoolOp(op=op) | ast.BinOp(op=op) | ast.AugAssign(op=op):
            yield from (_with(node, op=each) for each in _swapped(op))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield from (ast.Constant(value + 1), ast.Constant(value - 1))
        case ast.Constant(value=str(value)):
            yield ast.Constant(f"{value}x")
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield ast.Return(ast.Constant(None))


def _conditions(node: ast.AST, name: str, parent: ast.AST) -> Iterator[ast.AST]:
    """Make what may stand in the place of a statement or a condition, in this field of its parent."""
    if isinstance(node, ast.Assign | ast.AugAssign | ast.Expr):
        yield ast.Pass()
    if isinstance(node, ast.Break | ast.Continue):
        yield from _swapped(node)
    if name == "ifs" or (name == "test" and not isinstance(parent, ast.Assert)):
        yield ast.Constant(value=False)
        if not isinstance(parent, ast.While):
            yield ast.Constant(value=True)
        if isinstance(node, ast.expr) and not isinstance(node, ast.Compare | ast.UnaryOp):
            yield ast.UnaryOp(ast.Not(), node)  # those are turned round anyway


def _swapped(node: ast.AST) -> list[ast.AST]:
    return [getattr(ast, name)() for name in SWAPPED.get(type(node).__name__, ())]


def _with(node: ast.AST, **fields: object) -> ast.AST:
    return type(node)(**dict(ast.iter_fields(node)) | fields)
