"""The views of a reply, as functions of the Reply alone: `Reply.heatmap()` and its siblings.

This module implements `chat.view_protocols.Views`. The reply may be fresh or read back from a saved
notebook.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..branching import branch as branch
from ..chat.reply import Reply
from ..chat.view_protocols import MimeTypes, TokenRow
from ..errors import NotLoadedError, RequestError
from ..events import ToolRecord
from ..hub import hub
from ..inside.causes import Causes
from ..inside.causes import causes as find_causes
from ..inside.inspection import Inspection
from .views import choices, logprobs, plots, prompt, records, tooltrace
from .views.mime import JSON_TOKENS as JSON_TOKENS
from .views.mime import VENDOR as VENDOR
from .views.mime import Bundle, Fragment, Look, bundle, select
from .views.mime import from_output as from_output
from .views.mime import suited as suited
from .widgets.shared import jupyter

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from pandas import DataFrame

    from ..llm import LLM
    from .widgets.explorer.widget import Explorer


def mimebundle(
    reply: Reply, include: MimeTypes = None, exclude: MimeTypes = None
) -> tuple[Bundle, Bundle]:
    """What a notebook shows for a Reply that ends a cell, and the metadata of that output."""
    look = suited(reply, current_look())
    data = bundle(reply, look)
    return select(data, include, exclude), records.metadata(reply, look, data)


def current_look() -> Look:
    """The notebook's settings where llm_magic is loaded, else the defaults."""
    settings = jupyter.extension()
    look: Look = settings.look() if settings is not None else Look()
    return look


def heatmap(reply: Reply, *, opened: bool = True) -> Fragment:
    """Every token shaded by its probability."""
    page = logprobs.heat(reply, opened=opened, before=prompt.continued(reply))
    return Fragment(page, logprobs.marked(reply.tokens))


def alternatives(reply: Reply, i: int) -> Fragment:
    """What else the model might have said at token i (negative counts from the end)."""
    page, plain = logprobs.alternatives(reply, i)
    return Fragment(page, plain)


def choice_bars(reply: Reply) -> Fragment:
    """The probability of each whole choice, as bars."""
    return Fragment(
        choices.fragment(reply) or choices.MISSING, choices.plain(reply) or choices.MISSING
    )


def plot(
    reply: Reply, what: str = "speed", ax: "Axes | None" = None, dark: bool | None = None
) -> "Axes":
    """Speed over time, or probability, entropy or rank over the tokens."""
    return plots.plot(reply, what, ax, dark)


class Trace(Fragment):
    """The tool calls of a reply; `to_json()` exports them."""

    def __init__(self, records: Sequence[ToolRecord]) -> None:
        self.records = records
        plain = tooltrace.plain(records) or "no tool was called"
        super().__init__(tooltrace.fragment(records, opened=True) or plain, plain)

    def to_json(self) -> str:
        return tooltrace.export(self.records)


def trace(records: Sequence[ToolRecord]) -> Trace:
    """The tool calls of a reply (its `trace`), by round."""
    return Trace(records)


def prompt_view(reply: Reply) -> Fragment:
    """Messages, tools, and what the template made of them, with cached tokens."""
    return Fragment(prompt.fragment(reply), prompt.plain(reply))


def to_frame(reply: Reply) -> "DataFrame | list[TokenRow]":
    """One row per token: a pandas DataFrame, or a list of dicts where pandas is not installed."""
    rows = [
        TokenRow(
            token=token.bytes.decode("utf-8", "replace"),
            id=token.id,
            kind=kind,
            logprob=token.logprob,
            p=logprobs.probability(token.logprob),
            rank=token.rank,
            entropy=logprobs.entropy(token),
            at=token.at,
            top=[(a.bytes.decode("utf-8", "replace"), a.logprob) for a in token.top],
        )
        for token, kind in zip(reply.tokens, _kinds(reply), strict=True)
    ]
    try:
        import pandas
    except ImportError:
        return rows
    return pandas.DataFrame(rows)


def _kinds(reply: Reply) -> tuple[str, ...]:
    missing = len(reply.tokens) - len(reply.kinds)
    return (*reply.kinds, *("answer",) * missing)


def inspection(reply: Reply) -> Inspection:
    """What was recorded inside the model; see `Reply.inspection`."""
    if reply.capture is None:
        raise RequestError("nothing was recorded: ask with taps=..., or use llm.inspect(reply)")
    return Inspection(reply.capture, reply.model)


def causes(reply: Reply, of: Any, parts: str, llm: "LLM | None" = None, **options: Any) -> Causes:
    """What in the prompt made the answer likely; see `Reply.causes`."""
    if options:
        raise RequestError(f"unknown option {next(iter(options))!r}; causes takes of, parts, llm")
    found = llm or hub.get(reply.model)
    if found is None:
        raise NotLoadedError(f"{reply.model or 'the model'} is not loaded: llm_magic.load() it")
    return find_causes(found.provider, reply, of, parts)


def explore(reply: Reply, llm: "LLM | None" = None, **options: Any) -> "Explorer":
    """The interactive view. `llm` continues branches; None takes the loaded model of its name."""
    from .widgets.explorer.widget import Explorer

    return Explorer(reply, llm, look=current_look(), **options)
