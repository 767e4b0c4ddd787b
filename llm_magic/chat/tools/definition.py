"""Functions as tools: what a model is told about them, and arguments in the types they declare.

A `Tool` is made from a function or class with type hints and a docstring, from a `ToolSpec`, or
from an OpenAI-style dict. execution.py runs the calls.
"""

import builtins
import dataclasses
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, overload

from llm_magic.errors import RequestError, SchemaError, ToolError
from llm_magic.events import ToolSpec

from ..parsing.markup.values import loads
from ..schema import default_of, object_schema, type_schema
from ..typed_values import from_json

NAME = re.compile(r"[A-Za-z_][\w.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a model may call. Calling the Tool calls the function.

    Attributes:
        spec: What the model sees: name, description, JSON schema of the parameters.
        function: None for a tool that is only described; whoever reads the reply answers its calls.
        hints: The declared type of each parameter.
        rest: The declared type of `**kwargs`, or None if the function takes none.
        timeout: Seconds for one call; None: as the conversation says.
        method: A method of a class, which needs an instance: offer `instance.name`.
    """

    spec: ToolSpec
    function: Callable[..., object] | None = None
    hints: Mapping[str, object] = field(default_factory=dict, repr=False)
    timeout: float | None = None
    rest: object = field(default=None, repr=False)
    method: bool = field(default=False, repr=False)

    @property
    def name(self) -> str:
        return self.spec.name

    def __get__(self, instance: object, owner: type | None = None) -> "Tool":
        """A tool that was defined in a class, bound to an instance (or to the class)."""
        if self.function is None or (instance is None and self.method):
            return self
        bind = getattr(self.function, "__get__", None)
        function = bind(instance, owner) if bind is not None else self.function
        return replace(self, function=function, method=False)

    def __call__(self, /, *arguments: object, **named: object) -> object:
        if self.function is None:
            raise ToolError(f"{self.name} is only described; there is no function to call")
        return self.function(*arguments, **named)

    def problems(self, arguments: object) -> list[str]:
        """What is wrong with a call's arguments, in words for the model; none if they are valid."""
        import jsonschema

        if not isinstance(arguments, dict):
            return ["the arguments must be a JSON object"]
        validator = jsonschema.Draft202012Validator(self.spec.parameters)
        errors = [e for e in validator.iter_errors(arguments) if not _is_multiple(e)]
        errors.sort(key=lambda e: list(map(str, e.path)))
        return [
            ".".join(map(str, ["arguments", *e.absolute_path])) + f": {e.message}" for e in errors
        ]

    def run(self, arguments: Mapping[str, object]) -> object:
        """Call the function with valid arguments, converted to the types that it declares."""
        rest = Any if self.rest is None else self.rest
        values = {k: from_json(self.hints.get(k, rest), v) for k, v in arguments.items()}
        return self(**values)


def _is_multiple(error: Any) -> bool:
    """Whether a number was found to be no multiple of another only because floats are binary:
    0.58 is one of 0.01, but 0.58 / 0.01 is not whole."""
    if error.validator != "multipleOf":
        return False
    value, step = Decimal(repr(error.instance)), Decimal(repr(error.validator_value))
    return value % step == 0


@overload
def tool(function: Callable[..., object], /) -> Tool: ...
@overload
def tool(
    *, name: str | None = None, description: str | None = None, timeout: float | None = None
) -> Callable[[Callable[..., object]], Tool]: ...
def tool(
    function: Callable[..., object] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    timeout: float | None = None,
) -> Tool | Callable[[Callable[..., object]], Tool]:
    """Make a function a tool: `@llm_magic.tool`, or with options `@llm_magic.tool(timeout=5)`.

    The signature gives the JSON schema of the parameters (a parameter without a type takes
    anything), the docstring the descriptions, in Google, NumPy or reST style; `Annotated[int,
    "how many"]` describes a parameter too.

    Args:
        function: A function, a method of an object, a class, or a `functools.partial` of these.
        name: The name that the model uses; default: the function's name.
        description: What the model is told; default: the docstring.
        timeout: Seconds for one call.

    Returns:
        A Tool, which can still be called like the function.

    Raises:
        ToolError: A parameter cannot be used; the message names it.

    >>> @tool
    ... def add(a: int, b: int = 1) -> int:
    ...     "Add two numbers."
    ...     return a + b
    >>> add.spec.parameters["required"], add(2)
    (['a'], 3)
    """
    if function is None:
        return lambda f: _from_function(f, name, description, timeout)
    return _from_function(function, None, None, None)


def as_tool(thing: object) -> Tool:
    """A Tool from itself, a function, a ToolSpec or an OpenAI-style dict.

    ToolError for a function that cannot be a tool, RequestError for a dict that describes none.
    """
    match thing:
        case Tool(method=True):
            raise ToolError(
                f"{thing.name} is a method of a class: offer it from an instance, as in "
                f"tools=[instance.{thing.name}]"
            )
        case Tool():
            return thing
        case ToolSpec():
            return Tool(_checked(thing))
        case Mapping():
            return Tool(_from_dict(thing))
    if callable(thing):
        return _from_function(thing, None, None, None)
    raise RequestError(
        f"not a tool: {thing!r}; give a function, or a dict with name and parameters"
    )


def as_tools(things: Sequence[object] | str) -> tuple[Tool, ...]:
    """Tools in the given order, also from a JSON list of descriptions. RequestError for two of one
    name, and for what describes no tool."""
    if isinstance(things, str):
        try:
            listed = loads(things)
        except ValueError as e:
            raise RequestError(f"the tools are not JSON: {e}") from None
        if not isinstance(listed, list):
            raise RequestError(f"the tools are not a JSON list: {things!r:.200}")
        things = listed
    elif callable(things) or isinstance(things, Mapping | Tool | ToolSpec):
        things = [things]
    elif not isinstance(things, Iterable):
        raise RequestError(f"tools must be a list of functions, not {things!r:.80}")
    tools = tuple(as_tool(thing) for thing in things)
    names = [t.name for t in tools]
    for name in names:
        if names.count(name) > 1:
            raise RequestError(
                f"two tools are called {name!r}: give one of them another name, as in "
                f"llm_magic.tool(name='{name}_2')(function)"
            )
    return tools


def _checked(spec: ToolSpec) -> ToolSpec:
    import jsonschema

    if not NAME.fullmatch(spec.name):
        raise RequestError(f"a tool needs a name of letters, digits, _ and -, not {spec.name!r}")
    try:
        jsonschema.Draft202012Validator.check_schema(spec.parameters)
    except jsonschema.SchemaError as e:
        raise RequestError(
            f"the parameters of {spec.name} are no JSON schema: {e.message}"
        ) from None
    if spec.parameters.get("type", "object") != "object":
        raise RequestError(f"the parameters of {spec.name} must be a JSON schema of type object")
    return spec


def _from_dict(data: Mapping[str, object]) -> ToolSpec:
    kind = data.get("type", "function")
    function = data.get("function", data)
    if kind != "function" and "function" not in data and kind != "object":
        raise RequestError(f"a tool of type {kind!r}; only functions can be called")
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise RequestError(f"a tool needs a name: {data!r}")
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    if not isinstance(parameters, Mapping):
        raise RequestError(f"the parameters of {function['name']} must be a JSON schema")
    words = function.get("description") or ""
    return _checked(ToolSpec(function["name"], str(words), dict(parameters)))


# ----------------------------------------------------------------------------- functions


def _from_function(
    function: Callable[..., object],
    name: str | None,
    description: str | None,
    timeout: float | None,
) -> Tool:
    inner = _innermost(function)
    name = name or str(getattr(inner, "__name__", type(inner).__name__))
    if not NAME.fullmatch(name):
        raise ToolError(f"{name!r} cannot be a tool's name: give one with name=")
    parameters = _parameters(function, name)
    method = _is_method(function, parameters)
    parameters = parameters[1:] if method else parameters
    hints = _hints(inner, parameters, name)
    text, words = read_docstring(_doc(inner))
    names = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    required = [p.name for p in parameters if p.default is p.empty and p.name in names]
    try:
        schema = object_schema({n: hints[n] for n in names}, required)
        rest = next((hints[p.name] for p in parameters if p.kind is p.VAR_KEYWORD), None)
        if rest is not None:
            schema["additionalProperties"] = type_schema(rest) or True
    except SchemaError as e:
        raise ToolError(f"{name} cannot be a tool: parameter {e}") from None
    for parameter in parameters:
        if (part := schema["properties"].get(parameter.name)) is None:
            continue
        if parameter.name in words and "description" not in part:
            part["description"] = words[parameter.name]
        if parameter.default is not parameter.empty:
            part |= default_of(parameter.default)
    spec = ToolSpec(name, description if description is not None else text, schema)
    return Tool(spec, function, {n: hints[n] for n in names}, timeout, rest, method)


def _innermost(function: Callable[..., object]) -> Callable[..., object]:
    """What a `functools.partial` calls in the end: its name, types and docstring count."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _doc(function: Callable[..., object]) -> str:
    text = inspect.getdoc(function) or ""
    if isinstance(function, type) and dataclasses.is_dataclass(function):
        # A dataclass without a docstring gets its signature as one.
        return "" if text.startswith(f"{function.__name__}(") else text
    return text


def _is_method(function: Callable[..., object], parameters: list[inspect.Parameter]) -> bool:
    """Whether this is a function in the body of a class, which still lacks its instance."""
    owner = getattr(function, "__qualname__", "").rpartition(".")[0]
    in_class = bool(owner) and not owner.endswith("<locals>") and inspect.isfunction(function)
    return in_class and bool(parameters) and parameters[0].name in ("self", "cls")


def _parameters(function: Callable[..., object], name: str) -> list[inspect.Parameter]:
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError) as e:
        raise ToolError(f"{name} cannot be a tool: it has no signature ({e})") from None
    for parameter in found:
        if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL):
            raise ToolError(
                f"{name} cannot be a tool: {parameter} has no name that a call could use"
            )
    return found


def _hints(
    function: Callable[..., object], parameters: list[inspect.Parameter], name: str
) -> dict[str, object]:
    """The type of each parameter; Any where none is declared. The return type is never looked at.

    A default of None allows null, also where the declared type does not say so.
    """
    found = _declared(function, parameters, name)
    out = {}
    for parameter in parameters:
        hint = found.get(parameter.name, Any)
        if parameter.default is None and hint is not Any and not _takes_none(hint):
            hint = typing.Union[hint, None]  # noqa: UP007 (a hint may be no class)
        out[parameter.name] = hint
    return out


def _declared(
    function: Callable[..., object], parameters: list[inspect.Parameter], name: str
) -> dict[str, object]:
    target: Any = function if inspect.isroutine(function) else type(function).__call__
    if isinstance(function, type):
        target = function
    target = inspect.unwrap(getattr(target, "__func__", target))
    scope = getattr(target, "__globals__", None)
    if scope is None:
        scope = vars(sys.modules.get(getattr(target, "__module__", ""), builtins))
    declared = {p.name: p.annotation for p in parameters if p.annotation is not p.empty}
    holder = types.SimpleNamespace(__annotations__=declared)
    try:
        return typing.get_type_hints(holder, scope, scope, include_extras=True)
    except NameError as e:
        raise ToolError(f"{name} cannot be a tool: a type cannot be found ({e})") from None
    except (TypeError, SyntaxError) as e:
        raise ToolError(f"{name} cannot be a tool: a type cannot be read ({e})") from None


def _takes_none(hint: object) -> bool:
    if typing.get_origin(hint) is typing.Annotated:
        return _takes_none(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return any(_takes_none(option) for option in typing.get_args(hint))
    return hint is None or hint is type(None) or hint is object


# ----------------------------------------------------------------------------- docstrings

_SECTION = re.compile(
    r"(?P<name>args|arguments|parameters|params|keyword args|keyword arguments|returns?|yields?|"
    r"raises|examples?|notes?|references|see also|attributes|warnings?|todo)\s*:?\s*",
    re.IGNORECASE,
)
_WITH_PARAMETERS = (
    "args",
    "arguments",
    "parameters",
    "params",
    "keyword args",
    "keyword arguments",
)
# `x: text`, `x (int): text`, `- x: text`, `x -- text`, `x：text` (a full-width colon).
_GOOGLE = re.compile(
    r"(?:[-*+]\s+)?\*{0,2}(?P<name>\w+)\s*(?:\((?P<type>.*?)\))?\s*(?::|：|--|—|–)(?:\s+|(?<=：)|$)"
    r"(?P<text>.*)"
)
_NUMPY = re.compile(r"\*{0,2}(?P<names>\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_REST = re.compile(
    r":(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?(?P<name>\w+)\s*:\s*(?P<text>.*)"
)
_REST_OTHER = re.compile(r":\w+[^:]*:")


def read_docstring(text: str) -> tuple[str, dict[str, str]]:
    """What a docstring says of the function, and of each parameter."""
    head: list[str] = []
    words: dict[str, list[str]] = {}
    lines = text.splitlines()
    i = 0
    while i < len(lines):
        line = lines[i]
        section = _SECTION.fullmatch(line.strip()) if line.strip() else None
        ruled = i + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[i + 1]) is not None
        if section and (ruled or line.rstrip().endswith(":")):
            body, i = _body(lines, i + 1 + ruled, line, ruled)
            if section["name"].lower() in _WITH_PARAMETERS:
                _read_section(body, words, ruled)
        elif match := _REST.match(line.strip()):
            words[match["name"]], i = _field(lines, i, match["text"])
        elif _REST_OTHER.match(line.strip()):
            _, i = _field(lines, i, "")
        else:
            head.append(line)
            i += 1
    return "\n".join(head).strip(), {k: " ".join(v).strip() for k, v in words.items()}


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def _body(lines: list[str], i: int, head: str, ruled: bool) -> tuple[list[str], int]:
    """The lines of a section: the indented ones, or in NumPy's style all up to the next section."""
    body: list[str] = []
    while i < len(lines):
        line = lines[i]
        if ruled:
            next_ruled = i + 1 < len(lines) and re.fullmatch(r"\s*-{3,}\s*", lines[i + 1])
            if line.strip() and next_ruled:
                break
        elif line.strip() and _indent(line) <= _indent(head):
            break
        body.append(line)
        i += 1
    return body, i


def _read_section(body: list[str], words: dict[str, list[str]], ruled: bool) -> None:
    filled = [line for line in body if line.strip()]
    base = min(map(_indent, filled), default=0)
    current: list[list[str]] = []
    for line in filled:
        match = (_NUMPY if ruled else _GOOGLE).fullmatch(line.strip())
        if _indent(line) == base and match:
            names = re.split(r"\s*,\s*", match["names"]) if ruled else [match["name"]]
            current = [words.setdefault(name, []) for name in names]
            if not ruled:
                current[0].append(match["text"])
        else:
            for part in current:
                part.append(line.strip())


def _field(lines: list[str], i: int, text: str) -> tuple[list[str], int]:
    """A reST field: its text goes on in the lines that are indented deeper."""
    parts, base = [text], _indent(lines[i])
    i += 1
    while i < len(lines) and lines[i].strip() and _indent(lines[i]) > base:
        parts.append(lines[i].strip())
        i += 1
    return parts, i
