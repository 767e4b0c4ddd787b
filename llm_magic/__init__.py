"""Local language models inside your notebook: `%load_ext llm_magic`, or `llm_magic.load()`.

Importing this imports nothing heavy: every public name is looked up when it is first used.
"""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from .extension_points import DIVERGENCE_VIEW, INSIDE_VIEWS, NUMBER_VIEWS, SERVE, TABLES, VIEWS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .chat.conversation import Conversation as Conversation
    from .chat.reply import Reply as Reply
    from .chat.tools.definition import tool as tool
    from .chat.view_protocols import Views
    from .divergence import compare_models as compare_models
    from .events import Message as Message
    from .inside.steering import ControlVector as ControlVector
    from .llm import LLM as LLM
    from .served import LocalServer
    from .taps import Add as Add
    from .taps import Mean as Mean
    from .taps import Patch as Patch
    from .taps import Taps as Taps
    from .taps import Zero as Zero
    from .ui.widgets.chat.widget import Chat as Chat

# Public name -> module that has it.
_NAMES = {
    "LLM": "llm_magic.llm",
    "Reply": "llm_magic.chat.reply",
    "Message": "llm_magic.events",
    "Chat": "llm_magic.ui.widgets.chat.widget",
    "Conversation": "llm_magic.chat.conversation",
    "tool": "llm_magic.chat.tools.definition",
    "compare_models": "llm_magic.divergence",
    "Add": "llm_magic.taps",
    "Mean": "llm_magic.taps",
    "Patch": "llm_magic.taps",
    "Taps": "llm_magic.taps",
    "Zero": "llm_magic.taps",
    "ControlVector": "llm_magic.inside.steering",
    "load_ipython_extension": "llm_magic.ui.magics.extension",
    "unload_ipython_extension": "llm_magic.ui.magics.extension",
}

__all__ = [
    *("LLM", "Chat", "Conversation", "Message", "Reply", "compare_models", "load", "tool"),
    *("Add", "ControlVector", "Mean", "Patch", "Taps", "Zero"),
]


def load(
    model: "str | Sequence[str] | None" = None,
    *,
    ctx: int | None = None,
    slots: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    cache_mb: int | None = None,
    on_progress: Any = None,
    **server: object,
) -> "LLM":
    """Load a model, or return the one that is loaded under this name.

    Args:
        model: A name (`%llm models` lists them), the path or URL of a .gguf file, a folder with
            one, or `owner/repo[:file]` of the Hugging Face hub. The address of a server
            (`http://HOST:PORT/v1#MODEL`), or a list of addresses with the same model. None: the
            default model.
        ctx: Context window in tokens (4096, at most the model's own).
        slots: How many conversations the KV cache keeps (4).
        threads: CPU threads (all cores).
        device: A tinygrad device (CPU).
        cache_mb: Most megabytes of cache that conversations keep while nobody continues them
            (all that the slots hold).
        on_progress: Called with `events.Progress` while downloading, loading and compiling.
        **server: Only with an address: `api_key` (the name of an environment variable that holds
            the key, or a function that returns it), `name` (the model's name here), `dialect`,
            `timeouts`, `verify`, `client` and `log`; see docs/remote.md.

    Returns:
        The model, shared by everything in this process that loads it with the same settings.

    Raises:
        ModelError: The model is unknown, cannot be fetched, is damaged or not supported.
        RequestError: A setting is wrong.
        RemoteError: A server cannot be reached, or refuses the key.
    """
    from .hub import hub

    return hub.load(
        model, ctx=ctx, slots=slots, threads=threads, device=device, cache_mb=cache_mb,
        on_progress=on_progress, **server,
    )  # fmt: skip


def _views() -> "Views[Reply]":
    from .ui import reply_methods

    return reply_methods


def _tables() -> object:
    return importlib.import_module("llm_magic.ui.tables")


def _divergence_view() -> object:
    return importlib.import_module("llm_magic.ui.views.divergence")


DIVERGENCE_VIEW.register(_divergence_view)  # what `compare_models` returns looks like
TABLES.register(_tables)  # the bar of `LLM.map` and the view of `LLM.grid`


def _number_views() -> object:
    return importlib.import_module("llm_magic.ui.views.numbers")


def _serve() -> Callable[..., "LocalServer"]:
    from .server.running import serve

    return serve


SERVE.register(_serve)  # what `LLM.serve()` starts


def _inside_views() -> Any:
    return importlib.import_module("llm_magic.ui.look_inside")


INSIDE_VIEWS.register(_inside_views)  # what an inspection and its lenses look like
VIEWS.register(_views)  # what `Reply.heatmap()` and the other views of a reply call
NUMBER_VIEWS.register(_number_views)  # what decisions and reports look like


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
