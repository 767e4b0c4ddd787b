"""Operations of a chat template, each counted against the budget (budget.py) before it runs.

The code generator rewrites loops, displays of lists, slices and comparisons as filters that count.
"""

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, cast

from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.runtime import Context, Undefined
from jinja2.visitor import NodeTransformer

from .budget import current


class Steps:
    """An iterable whose every item costs a step and some memory."""

    def __init__(self, iterable: Any) -> None:
        self._iterable = iterable

    def __iter__(self) -> Iterator[object]:
        budget = current()
        for item in self._iterable:
            budget.step()
            yield item


class _SizedSteps(Steps):
    def __len__(self) -> int:
        assert isinstance(self._iterable, Sized)
        return len(self._iterable)


@pass_context
def steps(context: Context, iterable: Any) -> object:
    if isinstance(iterable, Undefined):
        return iterable  # its own error
    return _SizedSteps(iterable) if isinstance(iterable, Sized) else Steps(iterable)


@pass_context
def concat(context: Context, values: Sequence[object]) -> str:
    budget = current()
    budget.text(budget.weigh(values)[0])
    return joined(str(value) for value in values)


@pass_context
def built(context: Context, value: object) -> object:
    """A list, tuple or dictionary of the template's own."""
    budget = current()
    budget.step()
    _, entries, _ = budget.weigh(value)
    budget.spend(64 * entries)
    return value


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "gt": operator.gt,
    "gteq": operator.ge,
    "lt": operator.lt,
    "lteq": operator.le,
    "in": lambda left, right: left in right,
    "notin": lambda left, right: left not in right,
}


@pass_context
def compared(context: Context, left: object, names: Sequence[str], *others: object) -> object:
    """A chain of comparisons."""
    budget = current()
    budget.step()
    for value in (left, *others):
        if isinstance(value, list | tuple | dict):
            budget.weigh(value)
    result: object = True
    for name, right in zip(names, others, strict=True):
        result = _COMPARE[name](left, right)
        if not result:
            break
        left = right
    return result


@pass_context
def sliced(context: Context, value: Any, start: object, stop: object, step: object) -> object:
    budget = current()
    budget.step()
    if isinstance(value, str):
        budget.text(len(value))
    elif isinstance(value, list | tuple):
        budget.spend(8 * len(value))
    return value[start:stop:step]


def joined(texts: Iterable[str]) -> str:
    """What jinja2 calls `concat`: the text of a block, macro or set."""
    texts = list(texts)
    budget = current()
    budget.step()
    budget.text(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def output(context: Context, value: object) -> object:
    """What a template prints: paid for before it becomes a text."""
    budget = current()
    budget.step()
    if not isinstance(value, str):
        weight, entries, _ = budget.weigh(value)
        budget.spend(4 * weight + 64 * entries)
    return value


class _Meter(NodeTransformer):
    """Makes loops, `~`, comparisons, slices and literals pay for what they use."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _metered("_steps", node.iter)
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _metered("_concat", nodes.List(node.nodes))

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant else _metered("_built", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        constant = all(isinstance(item, nodes.Const) for item in node.items)
        return node if constant or node.ctx != "load" else _metered("_built", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _metered("_built", node)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        if not isinstance(node.arg, nodes.Slice):
            return node
        limits = (node.arg.start, node.arg.stop, node.arg.step)
        return _metered("_sliced", node.node, *(limit or nodes.Const(None) for limit in limits))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:
        self.generic_visit(node)
        names = nodes.Const(tuple(part.op for part in node.ops))
        return _metered("_compared", node.expr, names, *(part.expr for part in node.ops))


def _metered(name: str, value: nodes.Node, *arguments: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, value), name, list(arguments), [], None, None)


class MeteredGenerator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:
        super().visit_Template(_Meter().visit(node), frame)
