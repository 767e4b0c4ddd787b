"""The settings of a chat and of branches, made from the table of options.

A setting that is None is unset: the model's own value or the default holds. Values that a page or a
program proposes are checked here and become the options of a request.
"""

from collections.abc import Mapping
from typing import Any

from llm_magic.arguments import build_request
from llm_magic.errors import RequestError
from llm_magic.json_types import JsonObject
from llm_magic.llm import CHAT

from ... import options as table
from ...options import Option, Value

SETTINGS: dict[str, Option] = {o.name: o for o in table.at("chat") if o.label}
BRANCH: dict[str, Option] = {o.name: o for o in table.at("branch") if o.label}


def checked(name: str, value: object) -> Value | None:
    """The value in its right type, or None for "unset".

    Raises:
        RequestError: There is no such setting, or the value is not valid for it.

    >>> checked("top_k", "40")
    40
    >>> checked("temperature", "")
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise RequestError(f"there is no setting {name!r}")
    return setting.check(value)


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and options as a program gives them, checked at once.

    Raises:
        RequestError: One of them is not valid; the message names it.
    """
    out = {k: checked(k, v) if k in SETTINGS else v for k, v in values.items()}
    build_request("", CHAT, options(out))
    return out


def options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were made, as options of `LLM.stream`."""
    skip = ("model", "system")
    return {k: v for k, v in values.items() if k not in skip and v is not None}


def shown(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings as a form shows them: lists and pairs as texts that `checked` reads back.

    >>> shown({"stop": ("END",), "top_k": 5, "seed": None})
    {'stop': 'END', 'top_k': 5, 'seed': None}
    """
    return {k: SETTINGS[k].shown(v) if k in SETTINGS else v for k, v in values.items()}


def picture() -> list[JsonObject]:
    """The settings for a page: everything that its form needs."""
    return [_row(option) for option in SETTINGS.values()]


def form_kind(option: Option) -> str:
    """The input field: "number", "integer", "flag" or "text" (lists and pairs are texts too)."""
    if option.kind == "switch":
        return "flag"
    return option.kind if option.kind in ("number", "integer") else "text"


def _row(option: Option) -> JsonObject:
    return {
        "name": option.name, "kind": form_kind(option),
        "label": option.label, "help": option.help[0].upper() + option.help[1:],
        "default": f"default: {option.default}" if option.default else "default: off",
        "low": bound(option.low), "high": bound(option.high), "switch": option.bare,
        "what": option.bare_label, "more": option.more, "group": option.group,
    }  # fmt: skip


def bound(number: float | None) -> float | None:
    """A bound that an input field can have: JSON knows no infinity, and 1e30 tells nobody."""
    return number if number is not None and abs(number) < 1e18 else None
