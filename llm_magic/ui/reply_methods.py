"""Every way to look at a Reply: functions of the Reply alone, whatever made it.

Comes in: a Reply, fresh or read back from a saved notebook. Goes out: what a notebook shows. The
methods of Reply are these functions, found here by name. It must not know streams or engines.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..branching import branch as branch
from ..chat.reply import Reply
from ..events import ToolRecord
from .views import logprobs, prompt, throughput, tooltrace
from .views.mime import JSON_TOKENS as JSON_TOKENS
from .views.mime import VENDOR as VENDOR
from .views.mime import Bundle, Fragment, Look, bundle
from .views.mime import from_output as from_output
from .views.mime import suited as suited
from .widgets.shared import jupyter

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from ..llm import LLM
    from .widgets.explorer.widget import Explorer


def mimebundle(reply: Reply, include: Any = None, exclude: Any = None) -> Bundle:
    """What a notebook shows for a Reply that ends a cell."""
    data = bundle(reply, suited(reply, current_look()))
    if include:
        data = {k: v for k, v in data.items() if k in include}
    return {k: v for k, v in data.items() if k not in (exclude or ())}


def current_look() -> Look:
    """The notebook's settings where llm_magic is loaded, else the defaults."""
    settings = jupyter.extension()
    look: Look = settings.look() if settings is not None else Look()
    return look


def heatmap(reply: Reply, **options: Any) -> Fragment:
    """Every token shaded by its probability."""
    plain = "".join(
        t.bytes.decode("utf-8", "replace") + logprobs.shade(t).mark for t in reply.tokens
    )
    return Fragment(logprobs.heat(reply, **options), plain)


def alternatives(reply: Reply, i: int) -> Fragment:
    """What else the model might have said at token i (negative counts from the end)."""
    page, plain = logprobs.alternatives(reply, i)
    return Fragment(page, plain)


def plot(reply: Reply, ax: "Axes | None" = None, dark: bool | None = None) -> "Axes":
    """Tokens a second over the time of the reply, as matplotlib Axes."""
    return throughput.plot(reply, ax, dark)


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
    """What was asked: messages, tools, and what the template made of them, with cached tokens."""
    return Fragment(prompt.fragment(reply), prompt.plain(reply))


def to_frame(reply: Reply) -> Any:
    """One row per token: a pandas DataFrame, or a list of dicts where pandas is not installed."""
    rows = [
        {
            "token": token.bytes.decode("utf-8", "replace"),
            "id": token.id,
            "kind": kind,
            "logprob": token.logprob,
            "p": logprobs.probability(token.logprob),
            "rank": token.rank,
            "entropy": logprobs.entropy(token),
            "at": token.at,
            "top": [(a.bytes.decode("utf-8", "replace"), a.logprob) for a in token.top],
        }
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


def explore(reply: Reply, llm: "LLM | None" = None, **options: Any) -> "Explorer":
    """The live view: hover, keyboard, branching. See `ui.explore.Explorer`."""
    from .widgets.explorer.widget import Explorer

    return Explorer(reply, llm, look=current_look(), **options)
