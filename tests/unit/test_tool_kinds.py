"""What may be a tool, what a model is told about it, and what its results become."""

import asyncio
import dataclasses
import datetime
import enum
import functools
import itertools
import json
import sys
import types
from typing import Any

import numpy as np
import pytest

import llm_magic
from llm_magic.chat.tools.definition import as_tool, as_tools, read_docstring
from llm_magic.chat.tools.execution import MAX_ITEMS, run_call
from llm_magic.errors import RequestError, ToolError
from llm_magic.events import ToolCall


def run(function: Any, arguments: str = "{}", **options: Any) -> Any:
    tool = as_tool(function)
    return run_call(ToolCall("call_1", tool.name, arguments), [tool], 1, **options)


def properties(function: Any) -> dict[str, Any]:
    return as_tool(function).spec.parameters["properties"]


# ----------------------------------------------------------------------------- failures


class Broken:
    def __str__(self) -> str:
        raise SystemExit("from __str__")


@pytest.mark.parametrize(
    "error", [SystemExit(2), GeneratorExit(), asyncio.CancelledError(), BaseException("odd")]
)
@pytest.mark.parametrize("timeout", [None, 30.0])  # on this thread, and on one of its own
def test_whatever_a_tool_raises_is_a_failed_call(error: BaseException, timeout: float) -> None:
    """F230, F308"""

    def fails() -> str:
        raise error

    record = run(fails, timeout=timeout)
    assert record.status == "error"
    assert type(error).__name__ in record.result
    assert record.error


def test_a_command_line_parser_that_exits_is_a_failed_call() -> None:
    """F230"""
    import argparse

    def parse(text: str) -> str:
        parser = argparse.ArgumentParser(exit_on_error=True)
        return str(parser.parse_args(text.split()))

    assert run(parse, '{"text": "--nope"}').status == "error"


def test_a_result_whose_text_raises_is_told_as_such() -> None:
    """F308"""
    record = run(lambda_tool(Broken))
    assert (record.status, record.result) == ("ok", "(Broken without a text: SystemExit)")


def lambda_tool(make: Any) -> Any:
    def tool() -> Any:
        return make()

    return tool


def test_an_approval_function_that_exits_refuses_the_call() -> None:
    def leave(*_: Any) -> bool:
        sys.exit(1)

    assert run(lambda_tool(int), approve=leave).status == "refused"


# ----------------------------------------------------------------------------- results (F231, F202)


class Color(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass
class Spot:
    x: float
    at: datetime.date


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"sum": np.int64(3)}, '{"sum": 3}'),
        (np.float32(0.5), "0.5"),
        (np.array([[1, 2], [3, 4]]), "[[1, 2], [3, 4]]"),
        (np.bool_(True), "true"),
        (Color.RED, "red"),
        ([Color.RED, Level.HIGH], '["red", 3]'),
        (Level.HIGH, "3"),
        (datetime.datetime(2026, 5, 1, 7, 12), "2026-05-01T07:12:00"),
        ({"d": datetime.date(2026, 5, 1)}, '{"d": "2026-05-01"}'),
        (Spot(1.5, datetime.date(2026, 5, 1)), '{"x": 1.5, "at": "2026-05-01"}'),
        ({"a": 1}.keys(), '["a"]'),
        (range(3), "[0, 1, 2]"),
        (b"bytes", "bytes"),
        (llm_magic.Reply("the answer"), "the answer"),
        ({"said": llm_magic.Reply("the answer")}, '{"said": "the answer"}'),
    ],
)
def test_results_are_json_values(value: Any, text: str) -> None:
    """F231, F202"""
    assert run(lambda_tool(lambda: value)).result == text


def counted() -> Any:
    print("counting")
    yield from (1, 2)


async def counted_later() -> Any:
    for i in (1, 2):
        await asyncio.sleep(0)
        yield i


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (counted, "[1, 2]"),
        (counted_later, "[1, 2]"),
        (lambda: map(str, [1, 2]), '["1", "2"]'),
        (lambda: zip("ab", [1, 2], strict=True), '[["a", 1], ["b", 2]]'),
        (lambda: iter({"k": np.int8(1)}.items()), '[["k", 1]]'),
    ],
)
def test_iterators_are_read_as_part_of_the_call(make: Any, text: str) -> None:
    """F231"""
    record = run(lambda_tool(make))
    assert (record.status, record.result) == ("ok", text)
    assert record.stdout == ("counting\n" if make is counted else "")


@pytest.mark.parametrize("tool", [counted_later, counted])
def test_a_generator_function_is_a_tool(tool: Any) -> None:
    assert run(tool).result == "[1, 2]"


def test_an_endless_iterator_is_cut_with_a_note() -> None:
    """F231"""
    items = json.loads(run(lambda_tool(lambda: itertools.repeat(0))).result)
    assert items[:-1] == [0] * MAX_ITEMS
    assert "only the first" in items[-1]


def test_an_iterator_that_fails_is_a_failed_call() -> None:
    def fails() -> Any:
        yield 1
        raise ValueError("in the middle")

    assert "in the middle" in run(fails).result


# ----------------------------------------------------------------------------- declarations (F232)


def weigh(item: str, unit: str = "kg", count: int = 1) -> str:
    """Weigh an item.

    Args:
        item: what to weigh
        count: how many of them
    """
    return f"{count} {item} in {unit}"


def test_a_partial_keeps_name_types_and_docstring() -> None:
    """F232"""
    tool = as_tool(functools.partial(functools.partial(weigh, unit="g"), count=2))
    assert tool.name == "weigh"
    assert tool.spec.description == "Weigh an item."
    item = tool.spec.parameters["properties"]["item"]
    assert item == {"type": "string", "description": "what to weigh"}
    assert run(tool, '{"item": "plum"}').result == "2 plum in g"


def test_two_partials_of_one_function_need_names() -> None:
    """F232"""
    grams = functools.partial(weigh, unit="g")
    with pytest.raises(RequestError, match=r"two tools are called 'weigh'.*name='weigh_2'"):
        as_tools([weigh, grams])
    assert [t.name for t in as_tools([weigh, llm_magic.tool(name="weigh_g")(grams)])] == [
        "weigh",
        "weigh_g",
    ]


class Shelf:
    """Books by title."""

    def __init__(self, title: str, copies: int = 1) -> None:
        self.title, self.copies = title, copies

    @llm_magic.tool
    def lend(self, reader: str) -> str:
        """Lend a copy."""
        return f"{self.title} to {reader}"

    @llm_magic.tool
    @staticmethod
    def rules(of: str) -> str:
        return f"the rules of {of}"

    def __repr__(self) -> str:
        return f"{self.copies} x {self.title}"


@dataclasses.dataclass
class Order:
    item: str
    when: datetime.date = datetime.date(2026, 1, 1)


def test_a_class_is_a_tool_that_makes_an_object() -> None:
    """F232"""
    tool = as_tool(Shelf)
    assert tool.name == "Shelf"
    assert tool.spec.description == "Books by title."
    assert tool.spec.parameters["required"] == ["title"]
    assert run(tool, '{"title": "Emma", "copies": 2}').result == "2 x Emma"
    order = as_tool(Order)
    assert order.spec.description == ""
    assert order.spec.parameters["properties"]["when"]["format"] == "date"
    made = run(order, '{"item": "tea", "when": "2026-05-01"}').result
    assert made == '{"item": "tea", "when": "2026-05-01"}'


def test_a_method_is_offered_from_an_instance() -> None:
    """F232"""
    shelf = Shelf("Emma")
    for tool in (shelf.lend, as_tool(Shelf("Emma").lend)):
        assert list(tool.spec.parameters["properties"]) == ["reader"]
        assert run(tool, '{"reader": "Ann"}').result == "Emma to Ann"
    assert run(Shelf.rules, '{"of": "chess"}').result == "the rules of chess"
    with pytest.raises(ToolError, match=r"method of a class.*tools=\[instance\.lend\]"):
        as_tool(Shelf.lend)


def test_a_parameter_may_be_called_self() -> None:
    """F312"""

    def look(self: str, tool: str = "") -> str:
        return f"{self}{tool}"

    assert run(look, '{"self": "a", "tool": "b"}').result == "ab"


@pytest.mark.parametrize("tools", [5, 1.5, True, object()])
def test_tools_that_are_no_list_are_named(tools: Any) -> None:
    """F312"""
    with pytest.raises(RequestError, match="tools must be a list of functions"):
        as_tools(tools)


# ----------------------------------------------------------------------------- defaults (F233)


DAYS, HOURS = [1, 2], {"h": 7}


def find(ref: str = None, n: int = None, tags: list[str] = None, on: bool = None) -> str:  # noqa: RUF013
    return repr((ref, n, tags, on))


def test_a_default_of_none_allows_null() -> None:
    """F233"""
    for schema in properties(find).values():
        assert schema["default"] is None
    every = '{"ref": null, "n": null, "tags": null, "on": null}'
    assert run(find, every).result == "(None, None, None, None)"
    assert run(find, '{"ref": "a", "n": 1, "tags": ["t"]}').result == "('a', 1, ['t'], None)"
    assert run(find, '{"n": "one"}').status == "invalid"


def test_lists_and_dictionaries_are_told_as_defaults() -> None:
    """F233"""

    def plan(days: list[int] = DAYS, at: dict[str, int] = HOURS) -> str:
        return ""

    found = properties(plan)
    assert (found["days"]["default"], found["at"]["default"]) == ([1, 2], {"h": 7})


# ----------------------------------------------------------------------------- types (F234)


def test_an_unknown_return_type_does_not_matter() -> None:
    """F234"""

    def see(city: str) -> "NoSuchType":  # noqa: F821
        return city

    assert run(see, '{"city": "Rome"}').result == "Rome"

    def bad(city: "NoSuchType") -> str:  # noqa: F821
        return ""

    with pytest.raises(ToolError, match="a type cannot be found"):
        as_tool(bad)


def test_required_keys_hold_under_postponed_annotations() -> None:
    """F234"""
    module = types.ModuleType("postponed")
    sys.modules["postponed"] = module
    exec(
        "from __future__ import annotations\n"
        "from typing import NotRequired, Required, TypedDict\n"
        "class Trip(TypedDict, total=False):\n    to: Required[str]\n    days: int\n"
        "class Stay(TypedDict):\n    at: str\n    nights: NotRequired[int]\n"
        "def go(trip: Trip, stay: Stay) -> str:\n    return 'gone'\n",
        module.__dict__,
    )
    found = properties(module.go)
    assert (found["trip"]["required"], found["stay"]["required"]) == (["to"], ["at"])
    assert run(module.go, '{"trip": {}, "stay": {"at": "x"}}').status == "invalid"
    del sys.modules["postponed"]


def test_further_keywords_are_checked_against_their_type() -> None:
    """F234"""

    def total(**amounts: int) -> int:
        return sum(amounts.values())

    assert run(total, '{"a": 1, "b": 2.0}').result == "3"
    assert run(total, '{"a": "one"}').status == "invalid"


@pytest.mark.parametrize(
    "line",
    ["- x: how far", "x -- how far", "x：how far", "x (list of (int, str)): how far",
     "x (int, optional) -- how far", "* x: how far", "x — how far", "**x: how far"],
)  # fmt: skip
def test_forms_of_parameters_in_docstrings(line: str) -> None:
    """F234"""
    text = f"Go.\n\nArgs:\n    before: first\n    {line}\n        and back\n    after: last\n"
    _, words = read_docstring(text)
    assert words == {"before": "first", "x": "how far and back", "after": "last"}


# ----------------------------------------------------------------------------- numbers (F235)


def kind_of(x: int, xs: list[int] = ()) -> str:  # type: ignore[assignment]
    return f"{x!r} {xs!r}"


@pytest.mark.parametrize("written", ["5", "5.0", "5e0", "50e-1"])
def test_integral_numbers_become_integers(written: str) -> None:
    """F235"""
    assert run(kind_of, f'{{"x": {written}, "xs": [{written}]}}').result == "5 [5]"
    assert run(kind_of, '{"x": 5.5}').status == "invalid"
