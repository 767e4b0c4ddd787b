"""Failures of a server as our errors: what it answered, or why it did not answer.

The server's own words are part of the message. Texts of servers are not trusted: they are cut, and
a key that a server repeats is taken out by the caller.
"""

import datetime
import email.utils
import json
import re
from collections.abc import Mapping
from typing import Any

import httpx

from llm_magic.errors import (
    ContextOverflowError,
    FailureKind,
    LLMError,
    RemoteConnectionError,
    RemoteError,
    UnsupportedError,
    named,
)

MAX_BODY = 600  # characters of a server's answer in a message
MAX_LOG = 2_000  # characters of the end of a server's log
MAX_NUMBER = 10**9

_OVERFLOW = re.compile(
    r"exceed_context_size|context[ _]size|context_length_exceeded|maximum context length"
    r"|too large to process|longer than the maximum model length|context window",
    re.I,
)
_MEMORY = re.compile(
    r"out of memory|cudaMalloc failed|hipErrorOutOfMemory|cudaErrorMemoryAllocation"
    r"|ErrorOutOf(Device|Host)Memory|OutOfDeviceMemory|UR_RESULT_ERROR_OUT_OF|OUT_OF_RESOURCES"
    r"|kIOGPUCommandBufferCallbackErrorOutOfMemory|insufficient memory"
    r"|(failed|unable) to allocate",
    re.I,
)
_PORT = re.compile(
    r"address already in use|(couldn't|could not|failed to) bind|bind\(\)? failed", re.I
)
_WARNING = re.compile(r"\bwarn(ing)?:", re.I)
_LOADING = re.compile(r"loading model|model is loading|still loading", re.I)
_NUMBERS = (
    re.compile(r"\((?P<prompt>\d+) tokens\).*?\((?P<ctx>\d+) tokens\)", re.S),  # llama-server
    re.compile(  # vLLM, OpenAI
        r"maximum context length is (?P<ctx>\d+).*?"
        r"(requested|resulted in|contains|has)( at least| about)? (?P<prompt>\d+)",
        re.S | re.I,
    ),
)
_WAY_OUT = "shorten the prompt, or start a new conversation"


def kind_of_log(log: str) -> FailureKind | None:
    """What a server's log says about its end: "capacity", "port", or None.

    >>> kind_of_log("ggml_cuda: out of memory")
    'capacity'
    >>> kind_of_log("warning: out of memory is near")
    """
    lines = [line for line in log.splitlines() if not _WARNING.search(line)]
    if any(_PORT.search(line) for line in lines):
        return "port"
    return "capacity" if any(_MEMORY.search(line) for line in lines) else None


def of_answer(
    status: int, headers: Mapping[str, str], body: str, where: str, overflow_way: str = _WAY_OUT
) -> LLMError:
    """The error of an answer that is not a success.

    Args:
        status: The HTTP status.
        headers: The answer's headers.
        body: Its text, as far as it was read.
        where: The address for people.
        overflow_way: What to do when the prompt is too long.
    """
    error = _error_object(_json(body))
    said = _said(error) or _plain(body)
    if _is_overflow(status, error, said):
        return _overflow(error, said, overflow_way)
    kind = _kind(status, body)
    code = error.get("code") or error.get("type")
    message = f"{where} answered {status}: {said or httpx.codes.get_reason_phrase(status)}"
    if kind == "access":
        message += ". Pass api_key= the name of an environment variable that holds the key"
    return RemoteError(
        message, kind, status, code if isinstance(code, str | int) else None,
        retry_after(headers.get("retry-after")),
    )  # fmt: skip


def of_event(event: Mapping[str, Any], where: str) -> LLMError | None:
    """The error inside an event of a stream or an answer with status 200; None without one."""
    found = event.get("error")
    if found is None and event.get("object") == "error":  # vLLM's older form
        found = event
    if not found:
        return None
    error = found if isinstance(found, Mapping) else {"message": str(found)}
    said = _said(error) or "an error without a message"
    code = error.get("code") or error.get("type")
    status = code if isinstance(code, int) and 400 <= code < 600 else None
    if _is_overflow(status or 400, error, said):
        return _overflow(error, said, _WAY_OUT)
    kind = _kind(status, said) if status else _kind_of_type(error.get("type"), said)
    message = f"{where} broke off: {said}"
    return RemoteError(message, kind, status, code if isinstance(code, str | int) else None)


def of_exception(error: Exception, where: str, log: str = "") -> LLMError:
    """The error of a request that got no answer, or half of one.

    Args:
        error: What httpx raised.
        where: The address for people.
        log: The end of the server's own log, where it is known.
    """
    if isinstance(error, LLMError):
        return error
    kind = (log and kind_of_log(log)) or "connection"
    tail = f"\nThe end of its log:\n{log[-MAX_LOG:]}" if log else ""
    match error:
        case httpx.ConnectTimeout():
            said = "did not answer in time while connecting"
        case httpx.ConnectError():
            said = f"cannot be reached ({_plain(str(error)) or named(error)}): is it running there?"
        case httpx.ProxyError():
            said = f"cannot be reached through the proxy ({_plain(str(error))})"
        case httpx.UnsupportedProtocol() | httpx.InvalidURL():
            said = f"is no usable address ({_plain(str(error))})"
        case httpx.TimeoutException():
            said = "did not answer in time"
        case _:
            said = f"broke the connection ({_plain(str(error)) or type(error).__name__})"
    return RemoteConnectionError(f"{where} {said}{tail}", kind)


def missing_route(status: int, body: str) -> bool:
    """Whether an answer says that the server does not have the route.

    A 404 with an error in JSON is about the model; llama-server's "File Not Found" is not.
    """
    if status in (405, 501):
        return True
    said = _said(_error_object(_json(body)))
    return status == 404 and (not said or said in ("File Not Found", "Not Found"))


def no_route(what: str, where: str, body: str) -> UnsupportedError:
    """The error of a route that a server does not have, in its own words where it has some."""
    said = _said(_error_object(_json(body)))
    told = f": {said}" if said not in ("", "File Not Found", "Not Found") else ""
    return UnsupportedError(what, f"{where} has no route for {what!r}{told}")


def is_loading(error: LLMError) -> bool:
    """Whether the server says that it is still loading its model."""
    return (
        isinstance(error, RemoteError) and error.status == 503 and bool(_LOADING.search(str(error)))
    )


def retry_after(value: str | None) -> float | None:
    """Seconds from a Retry-After header: a number, or a date.

    >>> retry_after("1.5"), retry_after("soon"), retry_after("-3")
    (1.5, None, 0.0)
    """
    if not value:
        return None
    try:
        return max(0.0, min(float(value), MAX_NUMBER))
    except ValueError:
        pass
    try:
        then = email.utils.parsedate_to_datetime(value)
        now = datetime.datetime.now(then.tzinfo)
    except (TypeError, ValueError):
        return None
    return max(0.0, (then - now).total_seconds())


def _kind(status: int, body: str) -> FailureKind:
    if found := kind_of_log(body) if status >= 500 else None:
        return found
    match status:
        case 429:
            return "busy"
        case 502 | 503 | 504:
            return "server"
        case 401 | 403 | 407:
            return "access"
    return "request" if 400 <= status < 500 else "unknown"


def _kind_of_type(type: object, said: str) -> FailureKind:
    text = f"{type} {said}".lower()
    if "invalid_request" in text or "badrequest" in text:
        return "request"
    if "rate_limit" in text or "overloaded" in text:
        return "busy"
    return kind_of_log(said) or "unknown"


def _is_overflow(status: int, error: Mapping[str, Any], said: str) -> bool:
    # llama-server says 400; some say 413 or 422; "too large to process" comes with 500.
    words = f"{error.get('type', '')} {error.get('code', '')} {said}"
    large = "too large to process" in said
    return (status in (400, 413, 422) or (status == 500 and large)) and bool(
        _OVERFLOW.search(words)
    )


def _overflow(error: Mapping[str, Any], said: str, way_out: str) -> ContextOverflowError:
    numbers = [error.get("n_prompt_tokens"), error.get("n_ctx")]
    for pattern in _NUMBERS:
        if not all(isinstance(n, int) for n in numbers) and (match := pattern.search(said)):
            numbers = [int(match[name][:9]) for name in ("prompt", "ctx")]
    n_prompt, n_ctx = (n if isinstance(n, int) else 0 for n in numbers)
    return ContextOverflowError(n_prompt, n_ctx, way_out, f"the server says: {said}")


def _json(body: str) -> object:
    try:
        found: object = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return found


def _error_object(value: object) -> Mapping[str, Any]:
    """The object that describes an error; {} where there is none."""
    if not isinstance(value, Mapping):
        return {}
    error = value.get("error", value.get("detail"))
    if isinstance(error, Mapping):
        return error
    if isinstance(error, str):
        return {"message": error}
    return value if isinstance(value.get("message"), str) else {}


def _said(error: Mapping[str, Any]) -> str:
    message = error.get("message") or error.get("detail") or ""
    return _plain(message if isinstance(message, str) else json.dumps(message))


def _plain(text: str) -> str:
    text = re.sub(r"<[^>]{1,200}>", " ", text) if text.lstrip().startswith("<") else text
    text = " ".join(text.split())
    return text if len(text) <= MAX_BODY else f"{text[: MAX_BODY - 4]} ..."
