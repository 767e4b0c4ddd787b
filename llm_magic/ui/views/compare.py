"""Replies side by side: where they part, and how sure the model was of each.

They may be scored texts, answers of several models or settings, or branches of one answer.
"""

from collections.abc import Sequence

from llm_magic.chat.reply import Reply

from . import html, logprobs, tokens
from .summary import model_name, setting, speed


def fragment(replies: Sequence[Reply], titles: Sequence[str]) -> str:
    """A table with one column per reply (shaded text and numbers), then where they part."""
    width = 100 // max(1, len(replies))
    cell = f'style="vertical-align:top;text-align:left;width:{width}%"'
    heads = "".join(f"<th {cell}>{html.text(t)}</th>" for t in titles)
    # One row: notebooks give every second one a background.
    texts = "".join(f"<td {cell}>{_text(r)}{html.note(*facts(r))}</td>" for r in replies)
    table = (
        f'<table class="lm-compare" style="width:100%;margin:4px 0"><thead><tr>{heads}</tr></thead>'
        f"<tbody><tr>{texts}</tr></tbody></table>"
    )
    run = [token for reply in replies for token in reply.tokens]
    legend = logprobs.legend(run) if any(t.logprob is not None for t in run) else ""
    return table + html.note(html.text(parting(replies))) + legend


def plain(replies: Sequence[Reply], titles: Sequence[str]) -> str:
    """The same as text, one reply after the other."""
    parts = [
        f"--- {title}\n{reply.text}\n[{' · '.join(facts(reply))}]"
        for title, reply in zip(titles, replies, strict=True)
    ]
    return "\n".join([*parts, parting(replies)])


def _text(reply: Reply) -> str:
    return logprobs.flow(reply.tokens) if reply.tokens else html.verbatim(reply.text)


def facts(reply: Reply) -> list[str]:
    """What can be compared: tokens, mean logprob, perplexity, speed."""
    found = [*logprobs.certainty(reply), speed("decode", reply.timings.decode_tps)]
    return [fact for fact in found if fact]


def parting(replies: Sequence[Reply]) -> str:
    """Where the replies part, in words."""
    if len(replies) < 2:
        return ""
    runs = [[t.bytes for t in r.tokens] for r in replies]
    shortest = min(map(len, runs))
    same = next((i for i in range(shortest) if any(run[i] != runs[0][i] for run in runs)), shortest)
    if all(run == runs[0] for run in runs):
        return f"the same {same:,} tokens"
    if not same:
        return "different from the first token"
    words = " | ".join(tokens.alone(run[same]) if same < len(run) else "the end" for run in runs)
    return f"the same for {same:,} token{'s' * (same != 1)}, then: {words}"


def titles_of(replies: Sequence[Reply]) -> list[str]:
    """What tells the replies apart: models, or the sampling settings that differ."""
    models = [model_name(r.model) for r in replies]
    if len(set(models)) == len(models):
        return models
    names = ("temperature", "seed", "top_k", "top_p", "min_p", "max_tokens")
    differ = [n for n in names if len({getattr(r.sampling, n) for r in replies}) > 1]
    if not differ:
        return [f"{model} ({i})" for i, model in enumerate(models, 1)]
    return [", ".join(f"{n} {setting(getattr(r.sampling, n))}" for n in differ) for r in replies]
