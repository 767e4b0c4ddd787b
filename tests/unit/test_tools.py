"""Functions as tools: schemas from signatures and docstrings, calls, records, what goes wrong."""

import asyncio
import contextlib
import dataclasses
import datetime
import decimal
import enum
import functools
import io
import pathlib
import signal
import sys
import threading
import time
import uuid
from typing import Annotated, Any, Literal, NamedTuple, NewType, Optional, TypedDict

import jsonschema
import pydantic
import pytest

import llm_magic
from llm_magic.chat.json_values import to_json
from llm_magic.chat.schema import type_schema
from llm_magic.chat.tools.definition import as_tool, as_tools, read_docstring
from llm_magic.chat.tools.execution import MAX_RESULT, Halt, captured, render, run_call
from llm_magic.chat.typed_values import from_json
from llm_magic.errors import RequestError, SchemaError, ToolError
from llm_magic.events import ToolCall, ToolSpec

# ----------------------------------------------------------------------------- types and schemas


class Unit(enum.Enum):
    CELSIUS = "celsius"
    FAHRENHEIT = "fahrenheit"


class Point(NamedTuple):
    x: float
    y: float = 0.0


class Movie(TypedDict, total=False):
    title: str
    year: int


@dataclasses.dataclass
class City:
    name: str
    people: Annotated[int, "how many live there"] = 0
    unit: Unit = Unit.CELSIUS
    tags: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Tree:
    name: str
    children: "list[Tree]" = dataclasses.field(default_factory=list)


class Order(pydantic.BaseModel):
    number: int = pydantic.Field(ge=1, description="as printed")
    lines: set[str] = set()
    ship_to: Optional["Address"] = None


class Address(pydantic.BaseModel):
    city: str


Id = NewType("Id", int)
BAD_CLASS = type("Unknown", (), {})


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (None, {"type": "null"}),
        (Any, {}),
        (Id, {"type": "integer"}),
        (int | None, {"type": ["integer", "null"]}),
        (
            Optional[Unit],  # noqa: UP045  (another type than Unit | None)
            {"anyOf": [{"type": "string", "enum": ["celsius", "fahrenheit"]}, {"type": "null"}]},
        ),
        (Literal["a", 1, None], {"enum": ["a", 1, None]}),
        (list[int], {"type": "array", "items": {"type": "integer"}}),
        (set[str], {"type": "array", "items": {"type": "string"}}),
        (tuple[int, ...], {"type": "array", "items": {"type": "integer"}}),
        (dict[str, float], {"type": "object", "additionalProperties": {"type": "number"}}),
        (datetime.date, {"type": "string", "format": "date"}),
        (uuid.UUID, {"type": "string", "format": "uuid"}),
        (Annotated[int, "a count"], {"type": "integer", "description": "a count"}),
        (
            Annotated[str, pydantic.Field(max_length=3, pattern="^a")],
            {"type": "string", "maxLength": 3, "pattern": "^a"},
        ),
        (
            Annotated[list[int], pydantic.Field(min_length=1)],
            {"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ),
        (
            Annotated[float, pydantic.Field(gt=0, description="m")],
            {"type": "number", "exclusiveMinimum": 0, "description": "m"},
        ),
    ],
)
def test_schema_of_a_type(hint, schema):
    assert type_schema(hint) == schema


VALUES = [
    (City, {"name": "Rome", "people": 3, "unit": "fahrenheit"}, City("Rome", 3, Unit.FAHRENHEIT)),
    (Tree, {"name": "a", "children": [{"name": "b"}]}, Tree("a", [Tree("b")])),
    (Point, {"x": 1}, Point(1.0)),
    (Movie, {"title": "M"}, {"title": "M"}),
    (
        Order,
        {"number": 1, "lines": ["a", "a"], "ship_to": {"city": "x"}},
        Order(number=1, lines={"a"}, ship_to=Address(city="x")),
    ),
    (list[Order], [{"number": 2}], [Order(number=2)]),
    (tuple[int, Unit], [1, "celsius"], (1, Unit.CELSIUS)),
    (tuple[int, ...], [1, 2], (1, 2)),
    (set[int], [1, 1], {1}),
    (frozenset[int], [1], frozenset({1})),
    (dict[str, Unit], {"a": "celsius"}, {"a": Unit.CELSIUS}),
    (City | None, None, None),
    (City | int, {"name": "x"}, City("x")),
    (Literal["a", "b"], "a", "a"),
    (float, 3, 3.0),
    (Id, 4, 4),
    (
        datetime.datetime,
        "2024-05-06T07:08:09Z",
        datetime.datetime(2024, 5, 6, 7, 8, 9, tzinfo=datetime.UTC),
    ),
    (pathlib.Path, "a/b", pathlib.Path("a/b")),
    (decimal.Decimal, 1.5, decimal.Decimal("1.5")),
    (Annotated[Unit, "of heat"], "celsius", Unit.CELSIUS),
]


@pytest.mark.parametrize(("hint", "data", "value"), VALUES)
def test_json_becomes_a_value_of_the_type_and_json_again(hint, data, value):
    jsonschema.Draft202012Validator(type_schema(hint)).validate(data)
    made = from_json(hint, data)
    assert made == value
    assert type(made) is type(value)
    assert from_json(hint, to_json(made)) == value


def test_a_class_that_contains_itself_is_a_reference():
    schema = type_schema(list[Tree])
    assert schema["items"] == {"$ref": "#/$defs/Tree"}
    nested = {"name": "a", "children": [{"name": "b", "children": [{"name": "c"}]}]}
    jsonschema.Draft202012Validator(schema).validate([nested])


def test_definitions_of_models_move_to_the_top():
    schema = type_schema(list[Order])
    assert "Address" in schema["$defs"]
    assert "uniqueItems" not in str(schema)  # a repeated item falls away when the set is made


@pytest.mark.parametrize(
    "hint", [BAD_CLASS, bytes, dict[int, str], lambda: 0, "City", Literal[b"x"]]
)
def test_types_without_a_schema_are_named(hint):
    with pytest.raises(SchemaError):
        type_schema(hint)


def test_two_classes_of_one_name():
    one = type("Same", (pydantic.BaseModel,), {"__annotations__": {"a": int}})
    two = type("Same", (pydantic.BaseModel,), {"__annotations__": {"b": int}})
    outer = [pydantic.create_model(f"Outer{i}", x=(c, ...)) for i, c in enumerate((one, two))]
    with pytest.raises(SchemaError, match="two different types are called 'Same'"):
        type_schema(tuple[outer[0], outer[1]])


# ----------------------------------------------------------------------------- definitions


@llm_magic.tool
def weather(
    city: str,
    unit: Unit = Unit.CELSIUS,
    days: Annotated[int, "how many"] = 3,
    at: Point | None = None,
):
    """The weather of a city.

    It may be old.

    Args:
        city (str): Its name,
            in English.
        unit: Of the temperature.

    Returns:
        A text.
    """
    return city, unit, days, at


def test_a_function_becomes_a_tool():
    spec = weather.spec
    assert (spec.name, spec.description) == ("weather", "The weather of a city.\n\nIt may be old.")
    parameters = spec.parameters
    assert parameters["required"] == ["city"]
    assert parameters["additionalProperties"] is False
    properties = parameters["properties"]
    assert properties["city"] == {"type": "string", "description": "Its name, in English."}
    assert properties["unit"]["default"] == "celsius"
    assert properties["unit"]["description"] == "Of the temperature."
    assert properties["days"] == {"type": "integer", "description": "how many", "default": 3}
    assert properties["at"]["anyOf"][1] == {"type": "null"}
    assert weather("x") == ("x", Unit.CELSIUS, 3, None)  # it is still the function


NUMPY = """Add numbers.

Parameters
----------
a, b : int
    The first
    ones.
c : str, optional
    Another.

Returns
-------
int
    The sum.

Notes
-----
None.
"""
REST = """Add numbers.

:param a: The first
    ones.
:param int b: Another.
:type b: int
:returns: The sum.
"""


@pytest.mark.parametrize(
    ("text", "head", "words"),
    [
        (NUMPY, "Add numbers.", {"a": "The first ones.", "b": "The first ones.", "c": "Another."}),
        (REST, "Add numbers.", {"a": "The first ones.", "b": "Another."}),
        ("Args:\n    *args: More.\n    url (str): A: b.\n", "", {"args": "More.", "url": "A: b."}),
        ("Note that args: are text.", "Note that args: are text.", {}),
        ("One.\n\nArgs:\n    a: x\n\nTwo.", "One.\n\nTwo.", {"a": "x"}),
        ("", "", {}),
    ],
)
def test_every_style_of_docstring_is_read(text, head, words):
    assert read_docstring(text) == (head, words)


def test_other_ways_to_a_tool():
    @llm_magic.tool(name="other", description="Says.", timeout=2)
    def f(x):
        return x

    assert (f.name, f.spec.description, f.timeout) == ("other", "Says.", 2)
    assert f.spec.parameters["properties"] == {"x": {}}
    assert as_tool(f) is f

    class Shop:
        def price(self, item: str) -> float:
            """Of an item."""
            return 2.0

    assert list(as_tool(Shop().price).spec.parameters["properties"]) == ["item"]
    described = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    assert as_tool(described).function is None
    assert as_tool({"name": "g"}).spec == ToolSpec("g")
    assert as_tool(ToolSpec("h")).name == "h"
    with pytest.raises(ToolError, match="only described"):
        as_tool(ToolSpec("h"))()

    def open_ended(a: int, **rest: str):
        return a, rest

    tool = as_tool(open_ended)
    assert tool.problems({"a": 1, "b": "x"}) == []
    assert tool.run({"a": 1, "b": "x"}) == (1, {"b": "x"})
    assert as_tool(functools.partial(open_ended, a=1)).name == "open_ended"


def test_functions_that_cannot_be_tools():
    def starred(*args): ...
    def positional(x, /): ...
    def strange(x: bytes): ...
    def missing(x: "Nowhere"): ...  # noqa: F821

    for function, said in (
        (starred, r"\*args has no name"),
        (positional, "x has no name"),
        (strange, "parameter x: .*bytes.* has no JSON schema"),
        (missing, "Nowhere"),
        (lambda x: x, "'<lambda>' cannot be a tool's name"),
    ):
        with pytest.raises(ToolError, match=said):
            as_tool(function)


# LC-68
@pytest.mark.parametrize(
    "data",
    [
        {"type": "retrieval"},
        {"type": "function", "function": {}},
        {"name": ""},
        {"name": "a b"},
        {"name": "f", "parameters": {"type": "string"}},
        {"name": "f", "parameters": {"type": "nope"}},
        {"name": "f", "parameters": []},
        7,
    ],
)
def test_descriptions_that_describe_no_tool(data):
    with pytest.raises(RequestError):
        as_tool(data) if data != {"name": "f", "parameters": []} else as_tool(
            {**data, "parameters": [1]}
        )


def test_two_tools_of_one_name_and_tools_that_are_no_list():
    with pytest.raises(RequestError, match="two tools are called 'weather'"):
        as_tools([weather, weather])
    assert as_tools('[{"name": "f"}]')[0].name == "f"
    with pytest.raises(RequestError, match="not JSON"):  # LAI-41: said aloud, not ignored
        as_tools('[{"name": "f"')
    with pytest.raises(RequestError, match="not a JSON list"):
        as_tools('{"name": "f"}')


# ----------------------------------------------------------------------------- calls


def call(name: str = "f", arguments: str = "{}") -> ToolCall:
    return ToolCall("call_1", name, arguments)


def run(function, arguments: str = "{}", **options):
    tool = as_tool(function)
    return run_call(call(tool.name, arguments), [tool], 1, **options)


def test_arguments_are_validated_and_converted():
    record = run(weather, '{"city": "Rome", "unit": "fahrenheit", "at": {"x": 1}}')
    assert record.status == "ok"
    assert record.arguments == {"city": "Rome", "unit": "fahrenheit", "at": {"x": 1}}  # as JSON
    assert record.result == '["Rome", "fahrenheit", 3, {"x": 1.0, "y": 0.0}]'


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ('{"city": 3}', "arguments.city: 3 is not of type 'string'"),
        ("{}", "'city' is a required property"),
        ('{"city": "x", "no": 1}', "'no' was unexpected"),
        ('{"city": "x", "unit": "kelvin"}', "arguments.unit: 'kelvin' is not one of"),
        ('["x"]', "must be a JSON object"),
        ('{"city": ', "not JSON"),
        ('{"city": NaN}', "not JSON"),
    ],
)
def test_wrong_arguments_are_results_that_say_so(arguments, said):
    record = run(weather, arguments)
    assert record.status == "invalid"
    assert said in record.result
    assert record.result.startswith("Error: ")


def test_multiples_are_decimal():
    price = {"type": "number", "multipleOf": 0.01}
    tool = as_tool({"name": "pay", "parameters": {"type": "object", "properties": {"x": price}}})
    assert tool.problems({"x": 0.58}) == []
    assert tool.problems({"x": 0.585}) == ["arguments.x: 0.585 is not a multiple of 0.01"]


# LC-68
def test_an_empty_argument_text_is_an_empty_object():
    assert run(lambda_named("f", lambda: "done"), "").result == "done"


def lambda_named(name, function):
    function.__name__ = name
    return function


def test_unknown_tools_are_never_called():
    record = run_call(call("exec"), [weather], 2)
    assert (record.status, record.round) == ("unknown", 2)
    assert "Tools: weather" in record.result


def test_exceptions_are_results():
    def f():
        print("before")
        raise ValueError("no such city")

    record = run(f)
    assert (record.status, record.result) == ("error", "Error: ValueError: no such city")
    assert record.stdout == "before\n"

    def leave():
        sys.exit(3)

    assert run(leave, timeout=5).status == "error"


def test_a_tool_that_takes_too_long_is_given_up():
    release = threading.Event()

    def f():
        release.wait(10)

    began = time.perf_counter()
    record = run(f, timeout=0.1)
    assert time.perf_counter() - began < 3
    assert record.status == "timeout"
    assert "did not finish within 0.1 s" in record.result
    release.set()

    def g():
        raise TimeoutError("of its own")

    assert run(g, timeout=5).result == "Error: TimeoutError: of its own"
    slow = llm_magic.tool(timeout=0.05)(lambda_named("slow", lambda: time.sleep(5)))
    assert run(slow).status == "timeout"  # its own limit, where the conversation has none


def test_coroutines_run_beside_a_running_loop():
    async def f(x: int) -> int:
        await asyncio.sleep(0)
        return x + 1

    async def main():
        return run(f, '{"x": 1}')

    assert asyncio.run(main()).result == "2"


def test_the_main_threads_things_work_in_tools():
    assert (
        run(lambda_named("f", lambda: threading.current_thread() is threading.main_thread())).result
        == "true"
    )


# ----------------------------------------------------------------------------- approval


@pytest.mark.parametrize(
    ("verdict", "approval", "status", "said"),
    [
        (True, "approved", "ok", "Rome"),
        (None, "refused", "refused", "approve() returned None, and only True"),  # F304
        (1, "refused", "refused", "approve() returned 1, and only True"),
        (False, "refused", "refused", "The user refused this call."),
        ("too expensive", "refused", "refused", "refused this call: too expensive"),
        ({"city": "Oslo"}, "edited", "ok", "Oslo"),
        ({"town": "Oslo"}, "edited", "invalid", "unexpected"),
    ],
)
def test_approval_allows_refuses_or_changes_a_call(verdict, approval, status, said):
    seen = []
    record = run(weather, '{"city": "Rome"}', approve=lambda *a: seen.append(a) or verdict)
    assert seen[0][1] == {"city": "Rome"}
    assert (record.approval, record.status) == (approval, status)
    assert said in record.result


def test_who_cannot_be_asked_has_not_approved():
    record = run(weather, '{"city": "x"}', approve=lambda *a: 1 / 0)
    assert (record.approval, record.status) == ("refused", "refused")
    assert "ZeroDivisionError" in record.result


class Mute(Exception):
    def __str__(self):
        raise TypeError("no text")


def mute():
    raise Mute


def test_an_error_whose_text_fails_in_its_turn_is_a_result_as_any():
    record = run(mute, "{}")
    assert (record.status, record.result) == ("error", "Error: Mute")
    assert "with Mute" in run(weather, '{"city": "x"}', approve=lambda *a: mute()).result


def test_the_wait_for_a_person_is_no_part_of_the_run():
    record = run(nap, approve=lambda *a: time.sleep(1) is None)
    assert 1 <= record.waited < 10
    assert 0.05 <= record.seconds < 1
    assert run(nap).waited == 0.0
    refused = run(nap, approve=lambda *a: time.sleep(0.5) or False)
    assert refused.waited >= 0.5
    assert refused.seconds < 0.5


def nap() -> str:
    "Sleeps a little."
    time.sleep(0.05)
    return "up"


def test_an_interrupt_while_a_person_decides_keeps_the_wait():
    def decide(*_):
        time.sleep(0.5)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt) as caught:
        run(nap, approve=decide)
    assert caught.value.record.waited >= 0.5
    assert caught.value.record.seconds < 0.5


# ----------------------------------------------------------------------------- results and output


class Table:
    def __init__(self, **views):
        self.views = views

    def __getattr__(self, name):
        if name in ("_repr_llm_", "_repr_markdown_") and name in self.__dict__["views"]:
            return self.__dict__["views"][name]
        raise AttributeError(name)

    def __str__(self):
        return "plain"


def broken():
    raise RuntimeError


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("text", "text"),
        (None, "(no result)"),
        (3.5, "3.5"),
        (True, "true"),
        ({"a": {1, 2}}, '{"a": [1, 2]}'),
        (City("é"), '{"name": "é", "people": 0, "unit": "celsius", "tags": []}'),
        (Order(number=1), '{"number": 1, "lines": [], "ship_to": null}'),
        (float("nan"), "null"),
        (Table(), "plain"),
        (Table(_repr_markdown_=lambda: "**md**"), "**md**"),
        (Table(_repr_markdown_=lambda: "**md**", _repr_llm_=lambda: "for models"), "for models"),
        (Table(_repr_llm_=broken, _repr_markdown_=lambda: None), "plain"),
    ],
)
def test_results_become_text_or_json(value, text):
    assert render(value) == text


def test_long_results_are_cut_in_the_middle():
    text = render("a" * 20_000 + "the end")
    assert len(text) < MAX_RESULT + 100
    assert "characters left out" in text
    assert text.endswith("the end")


def test_a_function_that_only_prints_is_answered_by_what_it_prints():
    def f():
        print("42 degrees")

    assert run(f).result == "42 degrees"


def test_only_the_tools_own_thread_is_captured(capsys):
    other_started, done = threading.Event(), threading.Event()

    def other():
        other_started.wait(5)
        print("from outside")
        done.set()

    def f():
        other_started.set()
        done.wait(5)
        print("from the tool")
        print("to stderr", file=sys.stderr)

    thread = threading.Thread(target=other)
    thread.start()
    record = run(f)
    thread.join()
    assert record.stdout == "from the tool\nto stderr\n"
    assert capsys.readouterr().out == "from outside\n"


def test_capturing_nests_and_leaves_the_stream_as_it_was():
    before = sys.stdout
    outer, inner = io.StringIO(), io.StringIO()
    with captured(outer):
        print("a")
        with captured(inner):
            print("b")
        print("c")
        assert sys.stdout.isatty() == before.isatty()
        with contextlib.redirect_stdout(io.StringIO()) as own:
            print("d")
    assert (outer.getvalue(), inner.getvalue(), own.getvalue()) == ("a\nc\n", "b\n", "d\n")
    assert sys.stdout is before


# ----------------------------------------------------------------------------- interrupts


def test_an_interrupt_inside_a_tool_is_recorded_and_goes_on():
    def f():
        signal.raise_signal(signal.SIGINT)
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt) as caught:
        run(f)
    assert caught.value.record.status == "interrupted"


@pytest.mark.parametrize("timeout", [None, 30])
def test_halt_from_another_thread_ends_a_tool_at_once(timeout):
    halt, entered = Halt(), threading.Event()

    def f():
        entered.set()
        time.sleep(30)

    def stop():
        entered.wait(5)
        halt.set()

    thread = threading.Thread(target=stop)
    thread.start()
    began = time.perf_counter()
    record = run(f, timeout=timeout, halt=halt)
    assert time.perf_counter() - began < 5
    assert record.status == "interrupted"
    thread.join()
    assert run(f, halt=halt).status == "interrupted"  # already set: not even started


def test_halt_a_thousand_times_never_leaks_an_interrupt():
    """Whenever it comes, the interrupt that `Halt` sends stays inside the call."""
    for i in range(300):
        halt = Halt()
        thread = threading.Timer(i * 1e-5, halt.set)
        thread.start()
        record = run(lambda_named("f", lambda: sum(range(2000))), halt=halt)
        assert record.status in ("ok", "interrupted")
        thread.join()
