"""The settings of a chat or a branch, each with an explicit "default" (unset).

Values from a page or a program are checked here and become options of a request.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_magic.arguments import build_request
from llm_magic.errors import RequestError
from llm_magic.llm import CHAT
from llm_magic.utf8 import whole

MAX_TEXT = 100_000


@dataclass(frozen=True, slots=True)
class Setting:
    """kind: "number", "integer", "flag" or "text". low and high are allowed; None = no bound.

    default: what holds when nothing is said, in words. switch: where the default is off, the value
    with which a check box turns it on; `what` then names the number below the box.
    """

    kind: str
    label: str
    help: str
    default: str = "default"
    low: float | None = None
    high: float | None = None
    switch: int | None = None
    what: str = ""


SETTINGS: dict[str, Setting] = {
    "model": Setting("text", "Model", "a name, a path or an endpoint; loaded when it is used"),
    "system": Setting("text", "System prompt", "what the model is told before everything",
        "the model's own, if it has one"),
    "temperature": Setting(
        "number", "Temperature", "0 always takes the likeliest token",
        f"default: {CHAT.temperature}", 0, 5,
    ),
    "max_tokens": Setting(
        "integer", "Longest answer", "in tokens", f"default: {CHAT.max_tokens}", 1, 1_000_000
    ),
    "top_p": Setting("number", "Top p", "share of probability drawn from", "default: off", 0, 1),
    "top_k": Setting("integer", "Top k", "number of tokens drawn from", "default: off", 0, 1e6),
    "min_p": Setting(
        "number", "Min p", "smallest probability, relative to the best", "default: off", 0, 1
    ),
    "seed": Setting("integer", "Seed", "the same seed, the same answer", "default: none", 0, 2**63),
    "logprobs": Setting(
        "integer", "Log-probabilities", "how many alternatives are kept of each token",
        "default: off", 0, 100, switch=5, what="Alternatives per token",
    ),
    "thinking": Setting("flag", "Thinking", "for models that can reason first", "default"),
}  # fmt: skip


def checked(name: str, value: Any) -> Any:
    """The value in its right type, or None for "default". RequestError says what is wrong."""
    setting = SETTINGS.get(name)
    if setting is None:
        raise RequestError(f"there is no setting {name!r}")
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    match setting.kind:
        case "text":
            if isinstance(value, str) and len(value) <= MAX_TEXT:
                return whole(value)
            raise RequestError(f"{setting.label}: a text of at most {MAX_TEXT} characters")
        case "flag":
            if isinstance(value, bool):
                return value
            raise RequestError(f"{setting.label}: on, off or default")
        case kind:
            return _number(setting, value, int if kind == "integer" else float)


def _number(setting: Setting, value: Any, to: type[int] | type[float]) -> int | float:
    wrong = f"{setting.label}: {_clip(value)} is not {'a whole' if to is int else 'a'} number"
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise RequestError(wrong)
    try:
        number = to(value) if isinstance(value, str) else value
    except ValueError:
        raise RequestError(wrong) from None
    if to is int and number != int(number):
        raise RequestError(wrong)
    low, high = setting.low or 0, setting.high or 0  # all of our numbers have both bounds
    if not low <= number <= high:
        raise RequestError(f"{setting.label}: {_clip(value)} is not between {low:g} and {high:g}")
    return to(number)


def _clip(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 40 else text[:39] + "…"


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """Settings and options as a program gives them. RequestError says what is wrong, at once."""
    out = {k: checked(k, v) if k in SETTINGS else v for k, v in values.items()}
    build_request("", CHAT, options(out))
    return out


def options(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were made, as options of `LLM.stream`."""
    skip = ("model", "system")
    return {k: v for k, v in values.items() if k not in skip and v is not None}


def picture() -> list[dict[str, Any]]:
    """The settings for a page: everything that its form needs."""
    return [
        {
            "name": name, "kind": s.kind, "label": s.label, "help": s.help, "default": s.default,
            "low": s.low, "high": s.high, "switch": s.switch, "what": s.what,
        }
        for name, s in SETTINGS.items()
    ]  # fmt: skip
