"""Finds out what a chat template can render, by rendering small conversations."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Protocol

from llm_magic.errors import TemplateError
from llm_magic.events import Message, ToolCall, ToolSpec

from . import adapt
from .budget import TemplateOverrun
from .entries import Support, message_entries, tool_entry


class Probed(Protocol):
    """A template that can be run on variables."""

    source: str | None
    tokens: dict[str, str]

    def run(self, variables: Mapping[str, object]) -> str: ...


_PROBE_TOOL = ToolSpec("probe_tool", "probe", {"type": "object", "properties": {}})


def probe(template: Probed) -> Support:
    """Render a tool exchange, with two calls if possible, and a few smaller conversations."""

    def shows(
        messages: Sequence[Message],
        *texts: str,
        form: Support,
        tools: Sequence[object] | None = None,
    ) -> bool:
        return shows_texts(template, messages, texts, form, tools)

    hello, again, rules = (
        Message("user", "hello"),
        Message("user", "again"),
        Message("system", "rules"),
    )
    form = Support(True, True, True, True)
    if not shows((hello,), "hello", form=form):
        listed = replace(form, parts=True)
        form = listed if shows((hello,), "hello", form=listed) else form
    exchange = None
    if template.source and "tool" in template.source:
        ways = product((True, False), (False, True), (False, True), (False, True))
        for parallel, none, text, short in ways:
            tried = replace(
                form, parallel=parallel, text_arguments=text, short_ids=short, none_content=none
            )
            messages = _EXCHANGE if parallel else adapt.one_call_each(_EXCHANGE)
            if shows(messages, "probe_a", "probe_b", "result_a", "result_b", form=tried):
                exchange = tried
                break
    return replace(
        exchange or form,
        system=shows((rules, hello), "rules", "hello", form=form),
        tools=exchange is not None,
        tool_list=shows(
            (hello,), "probe_tool", "hello", form=form, tools=[tool_entry(_PROBE_TOOL)]
        ),
        repeats=shows((hello, again), "hello", "again", form=form),
    )


# How Python prints the probe's arguments and parts: no model has been trained on that.
_REPRS = ("{'x'", "{'type': 'text'")


def shows_texts(
    template: Probed,
    messages: Sequence[Message],
    texts: Sequence[str],
    form: Support,
    tools: Sequence[object] | None = None,
    kwargs: Mapping[str, object] | None = None,
) -> bool:
    """Whether a template renders messages with all of these texts."""
    variables = {
        **{f"{name}_token": text for name, text in template.tokens.items()},
        "messages": message_entries(messages, form),
        "tools": tools,
        "add_generation_prompt": True,
        "enable_thinking": False,
        **(kwargs or {}),
    }
    try:
        out = template.run(variables)
    except TemplateOverrun:
        raise
    except TemplateError:
        return False
    if form.none_content and "None" in out:
        return False
    return all(text in out for text in texts) and not any(text in out for text in _REPRS)


_EXCHANGE = (
    Message("user", "question"),
    Message(
        "assistant",
        None,
        calls=(
            ToolCall("call_000000000000000000000001", "probe_a", '{"x": 1}'),
            ToolCall("call_000000000000000000000002", "probe_b", '{"x": 2}'),
        ),
    ),
    Message("tool", "result_a", call_id="call_000000000000000000000001", name="probe_a"),
    Message("tool", "result_b", call_id="call_000000000000000000000002", name="probe_b"),
    Message("assistant", "answer"),
    Message("user", "thanks"),
)
