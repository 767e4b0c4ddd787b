"""Local language models inside your notebook: `%load_ext llm_magic`, or `llm_magic.load()`.

Importing this imports nothing heavy: every public name is looked up when it is first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from .extension_points import VIEWS

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .chat.conversation import Conversation as Conversation
    from .chat.reply import Reply as Reply
    from .chat.tools.definition import tool as tool
    from .chat.view_protocols import Views
    from .events import Message as Message
    from .llm import LLM as LLM
    from .ui.widgets.chat.widget import Chat as Chat

# Public name -> module that has it.
_NAMES = {
    "LLM": "llm_magic.llm",
    "Reply": "llm_magic.chat.reply",
    "Message": "llm_magic.events",
    "Chat": "llm_magic.ui.widgets.chat.widget",
    "Conversation": "llm_magic.chat.conversation",
    "tool": "llm_magic.chat.tools.definition",
    "load_ipython_extension": "llm_magic.ui.magics.extension",
    "unload_ipython_extension": "llm_magic.ui.magics.extension",
}

__all__ = ["LLM", "Chat", "Conversation", "Message", "Reply", "load", "tool"]


def load(
    model: str | None = None,
    *,
    ctx: int | None = None,
    slots: int | None = None,
    threads: int | None = None,
    device: str | None = None,
    cache_mb: int | None = None,
    on_progress: Any = None,
) -> "LLM":
    """Load a model, or share it if it is loaded: a name, a .gguf path, a folder,
    `owner/repo[:file]`.

    ctx: context in tokens (default 4096, at most the model's own). slots: conversations kept in the
    KV cache (4). threads: CPU threads (all cores). device: a tinygrad device (CPU). cache_mb: most
    megabytes of cache that conversations keep while nobody continues them (all that the slots
    hold). on_progress: called with events.Progress while downloading, loading and compiling.
    """
    from .hub import hub

    return hub.load(
        model, ctx=ctx, slots=slots, threads=threads, device=device, cache_mb=cache_mb,
        on_progress=on_progress,
    )  # fmt: skip


def _views() -> "Views[Reply]":
    from .ui import reply_methods

    return reply_methods


VIEWS.register(_views)  # what `Reply.heatmap()` and the other views of a reply call


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_NAMES])
