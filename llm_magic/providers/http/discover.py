"""What answers at an address: the kind of server, its models, its window and its chat template."""

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from llm_magic.errors import (
    LLMError,
    ModelNotFoundError,
    RemoteError,
    RequestError,
    UnsupportedError,
)

from .dialects import DIALECTS, Dialect
from .fleet import Endpoint, Retries
from .limits import Timeouts
from .sender import Sender

HEALTH = 5.0  # seconds for an answer to a question about the server
SHOWN = 8  # models in a message

# `owned_by` of the list of models -> the kind of server.
_OWNERS = {
    "llamacpp": "llama.cpp",
    "llama-swap": "llama-swap",
    "vllm": "vllm",
    "sglang": "sglang",
    "llm_magic": "llm_magic",
    "library": "ollama",
    "organization_owner": "lmstudio",
}


@dataclass(frozen=True, slots=True)
class Server:
    """What is known of one server.

    Attributes:
        dialect: Its kind.
        model: The model that requests ask for, as the server names it.
        ctx: Tokens of the window; None where it does not say.
        template: The chat template; None where it does not say.
        version: The server's version; "" where it does not say.
        drafts: Whether a draft model writes tokens whose logprobs are not evaluated.
    """

    dialect: Dialect
    model: str
    ctx: int | None = None
    template: str | None = None
    version: str = ""
    drafts: bool = False

    @property
    def short(self) -> str:
        """The model's name without folders of the server's machine."""
        return short_name(self.model)


def short_name(model: str) -> str:
    """A model's name; of a path the file's, without the folders of the server's machine.

    >>> short_name("/models/tiny.gguf"), short_name("org/model")
    ('tiny', 'org/model')
    """
    name = model.replace("\\", "/")
    path = name.startswith(("/", "~", ".")) or name[1:3] == ":/"
    return (name.rsplit("/", 1)[-1] if path else name).removesuffix(".gguf")


def brief(seconds: float = HEALTH) -> Timeouts:
    """Limits of a question that a healthy server answers at once."""
    return Timeouts(connect=seconds, load=seconds, prompt=seconds, total=seconds)


def look(sender: Sender, endpoint: Endpoint, named: str | None = None) -> Server:
    """Ask a server what it is.

    Args:
        sender: Sends the questions.
        endpoint: The server.
        named: The kind of server where the caller knows it.

    Raises:
        RemoteError: It cannot be reached, or refuses the key.
        ModelNotFoundError: It does not have the model of the address.
        RequestError: It has several models, and the address names none.
    """
    listed = _models(sender, endpoint)
    owner = next((str(row["owned_by"]) for row in listed if row.get("owned_by")), "")
    name = named or _OWNERS.get(owner)
    props: Mapping[str, Any] = {}
    if name in (None, "llama.cpp") and (name or not owner):
        props = _props(sender, endpoint)
        name = name or ("llama.cpp" if "default_generation_settings" in props else None)
    dialect = DIALECTS[name or "openai"]
    row = _model(endpoint, listed, dialect)
    settings = props.get("default_generation_settings")
    meta = row.get("meta")
    own = meta.get("n_ctx") if isinstance(meta, Mapping) else None
    ctx = settings.get("n_ctx") if isinstance(settings, Mapping) else None
    ctx = ctx or row.get("max_model_len") or own
    template = props.get("chat_template") or row.get("chat_template")
    return Server(
        dialect, str(row.get("id") or endpoint.address.model),
        ctx if isinstance(ctx, int) and ctx > 0 else None,
        template if isinstance(template, str) else None,
        _version(sender, endpoint, dialect, props), _drafts(sender, endpoint, dialect),
    )  # fmt: skip


def _models(sender: Sender, endpoint: Endpoint) -> list[Mapping[str, Any]]:
    found = _get(sender, endpoint, "models", False)
    listed = found.get("data") if isinstance(found, Mapping) else found
    rows = [row for row in listed if isinstance(row, Mapping)] if isinstance(listed, list) else []
    return [row for row in rows if isinstance(row.get("id"), str)]


def _model(
    endpoint: Endpoint, listed: list[Mapping[str, Any]], dialect: Dialect
) -> Mapping[str, Any]:
    wanted = endpoint.address.model
    where = endpoint.address.base
    if not wanted:
        if len(listed) == 1:
            return listed[0]
        if not listed:
            raise RequestError(f"{where} lists no models; name one: {where}#MODEL")
        names = ", ".join(str(row["id"]) for row in listed[:SHOWN])
        more = f", ... ({len(listed)} in all)" if len(listed) > SHOWN else ""
        raise RequestError(f"{where} has several models; name one: {where}#MODEL ({names}{more})")
    for row in listed:
        aliases = row.get("aliases")
        known = [row["id"], *(aliases if isinstance(aliases, list) else ())]
        if wanted in known or f"{wanted}:latest" in known:
            return row
    # llama-server serves its one model under any name; proxies know more than they list.
    if dialect.name == "llama.cpp" and len(listed) == 1:
        return listed[0]
    if listed and dialect.name != "openai":
        known = [str(row["id"]) for row in listed]
        near = difflib.get_close_matches(wanted, known, 3) or known[:SHOWN]
        raise ModelNotFoundError(f"{where} has no model {wanted!r}; it has {', '.join(near)}")
    return {"id": wanted}


def _props(sender: Sender, endpoint: Endpoint) -> Mapping[str, Any]:
    found = _get(sender, endpoint, "props", True)
    return found if isinstance(found, Mapping) else {}


def _version(sender: Sender, endpoint: Endpoint, dialect: Dialect, props: Mapping[str, Any]) -> str:
    found: object = props.get("build_info", "")
    if dialect.name == "vllm":
        answer = _get(sender, endpoint, "version", True)
        found = answer.get("version") if isinstance(answer, Mapping) else ""
    return re.sub(r"[^\w.+ -]", "", found)[:40] if isinstance(found, str) else ""


def _drafts(sender: Sender, endpoint: Endpoint, dialect: Dialect) -> bool:
    """Whether llama-server drafts tokens with another model."""
    if dialect.name != "llama.cpp":
        return False
    slots = _get(sender, endpoint, "slots", True)
    rows = slots if isinstance(slots, list) else []
    return any(isinstance(row, Mapping) and row.get("speculative") is True for row in rows)


def _get(sender: Sender, endpoint: Endpoint, path: str, own_route: bool) -> Any:
    """The answer to a question; None where the server does not know it."""
    try:
        return sender.ask("GET", path, at=endpoint, own_route=own_route,
                          retries=Retries(attempts=1), timeouts=brief())  # fmt: skip
    except UnsupportedError:
        return None
    except RemoteError as e:
        # What a server does not know it refuses in many ways; only a lost one, and a wrong key for
        # what every server has, are failures.
        if e.kind in ("connection", "capacity", "port", "deadline") or path == "models":
            raise
        return None
    except LLMError:
        return None


def healthy(sender: Sender, endpoint: Endpoint) -> bool:
    """Whether a server says within five seconds that it can answer."""
    for path, own_route in (("health", True), ("models", False)):
        try:
            sender.ask("GET", path, at=endpoint, own_route=own_route,
                       retries=Retries(attempts=1), timeouts=brief())  # fmt: skip
            return True
        except UnsupportedError:
            continue
        except LLMError as e:
            return "no JSON" in str(e)  # vLLM's answer is empty
    return False
