"""The probability of each whole choice of a constrained answer, as bars."""

from llm_magic.chat.reply import Reply
from llm_magic.columns import aligned

from . import html, logprobs, summary

SHOWN = 50  # choices before the rest is summed up in a line
NAME = 60  # characters of a choice
MISSING = "no probabilities of choices: the request had no choices=[...]"


def fragment(reply: Reply) -> str:
    """The choices as an HTML table, most likely first; "" without any.

    The bars are text, so they remain where a viewer removes styles.
    """
    if not reply.choices:
        return ""
    rows = [
        (mark, f"<code>{html.escape(name)}</code>", html.text(percent), bar)
        for mark, name, percent, bar in _rows(reply)
    ]
    return html.table(("", "choice", "p", ""), rows, numbers=(2,)) + html.note(_rest(reply))


def plain(reply: Reply) -> str:
    """The choices as aligned lines of text; "" without any."""
    if not reply.choices:
        return ""
    lines = aligned(_rows(reply), right=(2,))
    return "\n".join([*lines, *filter(None, [_rest(reply)])])


def _rows(reply: Reply) -> list[tuple[str, str, str, str]]:
    """(mark, choice, percent, bar) by falling probability; → is the one that was taken."""
    ranked = sorted((reply.choices or {}).items(), key=lambda item: -item[1])
    return [
        (
            "→" if text == reply.text else "",
            summary.one_line(text, NAME),
            logprobs.percent(p),
            summary.meter(p),
        )
        for text, p in ranked[:SHOWN]
    ]


def _rest(reply: Reply) -> str:
    more = len(reply.choices or ()) - SHOWN
    return f"{more:,} more choices" if more > 0 else ""
