"""A Reply as the MIME bundle that a cell leaves behind.

The bundle holds plain text, Markdown, HTML, and JSON from which the reply can be read back. What
depends on the notebook's settings comes as a `Look`.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.chat.view_protocols import Bundle as Bundle
from llm_magic.chat.view_protocols import MimeTypes
from llm_magic.json_types import JsonObject
from llm_magic.utf8 import for_terminal

from . import choices, compare, html, logprobs, prompt, summary, throughput, tokens, tooltrace
from .summary import model_name

VENDOR = "application/vnd.llm-magic.reply+json"
JSON_TOKENS = 2_000  # longer replies are saved without their tokens
JSON_WEIGHT = 150  # bytes a token may weigh in the saved JSON
CONTEXT = 12  # tokens shown before a branch's own
SECTIONS = frozenset({"prompt", "tokens", "stats"})  # what `--show` may name


@dataclass(frozen=True, slots=True)
class Look:
    """How replies are shown.

    Attributes:
        format: "markdown", "text" or "code".
        language: Of code that does not name its own.
        heat: Whether the heat map is shown; None: if alternatives were recorded.
        show: Further sections, of SECTIONS and "surprises".
        docs: Whether outputs are the same on every run.
        save_prompt: Whether the prompt's text may stay in the notebook.
        json_tokens: The longest reply whose tokens are saved; None: every.
        cell: A hash of the cell that asks, for the record of its output.
    """

    format: str = "markdown"
    language: str = "python"
    heat: bool | None = None
    show: frozenset[str] = frozenset()
    docs: bool = False
    save_prompt: bool = True
    json_tokens: int | None = JSON_TOKENS
    cell: str = ""


def docs_wanted() -> bool:
    """LLM_MAGIC_DOCS asks for outputs that are the same on every run."""
    return os.environ.get("LLM_MAGIC_DOCS", "").lower() not in ("", "0", "false", "no")


def suited(reply: Reply, look: Look) -> Look:
    """The look for a reply alone, without the options of its cell: what a constraint made is no
    Markdown, though it may look like it."""
    match reply.parsed:
        case None:
            return look
        case str():
            return replace(look, format="text")
        case _:
            return replace(look, format="code", language="json")


def select(data: Bundle, include: MimeTypes, exclude: MimeTypes) -> Bundle:
    """The MIME types of a bundle that IPython asks for.

    >>> select({"text/plain": "a", "text/html": "b"}, None, {"text/html"})
    {'text/plain': 'a'}
    """
    return {
        kind: value
        for kind, value in data.items()
        if (not include or kind in include) and (not exclude or kind not in exclude)
    }


# Fragments and replies adapt to dark pages by these rules.
DARK = logprobs.DARK | tokens.DARK


class Fragment:
    """A view as an object that a notebook shows: HTML, and text where there is no HTML."""

    def __init__(self, body: str, plain: str) -> None:
        self.body = body
        self.plain = for_terminal(plain)
        self.metadata: Bundle = {}  # of the output, such as the record of replies that it shows

    @property
    def html(self) -> str:
        return html.wrap(self.body, themed=True, extra=DARK)

    def __repr__(self) -> str:
        return self.plain

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        return select({"text/plain": self.plain, "text/html": self.html}, include, exclude)


class Branch(Fragment):
    """The newest branch of a reply beside the reply itself; both are in the saved JSON."""

    def __init__(self, reply: Reply, look: Look, note: str = "") -> None:
        shown = summary.steady(reply) if look.docs else reply
        at, branch = shown.branches[-1]
        page = compare.fragment([shown, branch], ["answer", branch_title(at, branch)])
        line = html.note(*map(html.text, summary.parts(branch, note)))
        super().__init__(page + line, branch.text + (f"\n\n[{note}]" if note else ""))
        self._saved = None if look.docs else saved(reply, look)

    def _repr_mimebundle_(self, include: MimeTypes = None, exclude: MimeTypes = None) -> Bundle:
        data = super()._repr_mimebundle_()
        if self._saved is not None:
            data[VENDOR] = self._saved
        return select(data, include, exclude)


def bundle(reply: Reply, look: Look, note: str = "", prepared: str = "") -> Bundle:
    """The last state of a cell: plain text, Markdown, HTML, and JSON to read the reply back from.

    Args:
        note: What happened to it in words ("interrupted", "failed: ..."), beside the numbers.
        prepared: How long downloading, loading and compiling took, in words.
    """
    if look.docs:
        reply = summary.steady(reply)
    content, heat_map = _content(reply, look)
    sections = (
        html.fold("Prompt", prompt.fragment(reply)) if "prompt" in look.show else "",
        _reasoning(reply),
        tooltrace.fragment(reply.trace, opened=True),
        content,
        *(html.note(html.text(hint)) for hint in hints(reply)),
        choices.fragment(reply),
        heat_map,
        _branches(reply),
        logprobs.surprises(reply) if "surprises" in look.show else "",
        _stats(reply) if "stats" in look.show else "",
        html.note(*map(html.text, summary.parts(reply, note, "" if look.docs else prepared))),
    )
    shaded = "lm-p" in content or bool(heat_map or reply.branches or look.show)
    page = html.wrap(
        *sections,
        themed=shaded or any(map(html.needs_style, sections)),
        extra=DARK if shaded else None,
    )
    suffix = f"\n\n[{note}]" if note else ""
    data: Bundle = {"text/plain": _plain(reply, look) + for_terminal(suffix), "text/html": page}
    if not look.docs:
        data["text/markdown"] = _markdown(reply, look) + (f"\n\n*{note}*" if note else "")
        data[VENDOR] = saved(reply, look)
    return data


def _content(reply: Reply, look: Look) -> tuple[str, str]:
    """The answer, and the heat map below it (or "" where the answer itself is shaded)."""
    heat = look.heat
    if heat is None:
        # Of whole choices the bars tell more: pieces of words were never the model's own wish.
        recorded = reply.choices is None and any(t.top for t in reply.tokens)
        heat = "tokens" in look.show or recorded
    if heat and look.format == "text" and set(reply.kinds) == {"answer"}:
        return logprobs.shaded(reply), ""  # the same text, now shaded
    page = body(reply.text, look.format, look.language)
    if not heat:
        return page, ""
    before = prompt.continued(reply) if look.save_prompt else ""
    return page, logprobs.heat(reply, before=before)


def hints(reply: Reply) -> list[str]:
    """What a person may miss in an answer that was cut off, and what to do."""
    return [hint for hint in (unanswered(reply), summary.cut_hint(reply)) if hint]


def unanswered(reply: Reply) -> str:
    """Why there is no answer though the model has reasoned; "" where there is one."""
    if not reply.reasoning or reply.text.strip() or reply.calls:
        return ""
    return "(no answer: reasoning was cut)"


def body(text: str, form: str, language: str = "python") -> str:
    """An answer's text as HTML in one of the three formats. language: of code without fences."""
    match form:
        case "text":
            return html.verbatim(text)
        case "code":
            return html.code(*fenced(text, language))
        case _:
            return html.markdown(text)


def _plain(reply: Reply, look: Look) -> str:
    text = reply.text
    parts = (
        tooltrace.plain(reply.trace),
        fenced(text)[0] if look.format == "code" else text,
        *hints(reply),
    )
    return for_terminal("\n\n".join(part for part in parts if part))


def _markdown(reply: Reply, look: Look) -> str:
    text = reply.text
    if look.format == "markdown":
        answer = html.escape_dollars(text)
    elif look.format == "code":
        answer = _block(*fenced(text, look.language))
    else:
        answer = _block(text, "text")
    trace = _block(tooltrace.plain(reply.trace), "text") if reply.trace else ""
    return "\n\n".join(part for part in (trace, answer, *hints(reply)) if part)


def _block(source: str, language: str) -> str:
    fence = "```"
    while fence in source:
        fence += "`"
    return f"{fence}{language}\n{source}\n{fence}"


def fenced(text: str, language: str = "python") -> tuple[str, str]:
    """The code of an answer and its language: what its fences hold, or all of it if it has none.

    language: where the answer does not say it.
    """
    otherwise, language = language, ""
    inside: list[str] = []
    fence = ""
    for line in text.splitlines():
        mark = line.strip()
        if fence:
            if mark.startswith(fence) and not mark.strip(fence[0]):
                fence = ""
                continue
            inside.append(line)
        elif mark.startswith(("```", "~~~")):
            fence = mark[: len(mark) - len(mark.lstrip(mark[0]))]
            language = language or mark[len(fence) :].split(" ")[0]
            if inside:
                inside.append("")
    return ("\n".join(inside), language) if inside else (text, otherwise)


def _reasoning(reply: Reply) -> str:
    if not reply.reasoning:
        return ""
    count = sum(kind == "reasoning" for kind in reply.kinds)
    head = f"Reasoning · {count:,} tokens" if count else "Reasoning"
    return html.fold(head, f'<div style="opacity:.85">{html.markdown(reply.reasoning)}</div>')


def _branches(reply: Reply) -> str:
    """All branches, those of branches too: one or two in columns, more one below the other."""
    found = list(_walk(reply))
    if not found:
        return ""
    if len(found) <= 2 and len(found) == len(reply.branches):
        replies = [reply, *(branch for _, branch in reply.branches)]
        titles = ["answer", *(branch_title(at, branch) for at, branch in reply.branches)]
        body = compare.fragment(replies, titles)
    else:
        body = "".join(_branch(title, at, branch) for title, at, branch in found)
    # Closed: in the live view they come one after the other, and what is below would jump away.
    return html.fold(f"{len(found)} branch{'es' * (len(found) != 1)}", body)


def _walk(reply: Reply, of: str = "") -> Iterator[tuple[str, int, Reply]]:
    for at, branch in reply.branches:
        title = branch_title(at, branch)
        yield title + of, at, branch
        yield from _walk(branch, f" of {title}{of}")


def _branch(title: str, at: int, branch: Reply) -> str:
    """One branch from a few tokens before the place where it left."""
    start = max(0, at - CONTEXT)
    before = html.note(f"… {start:,} tokens before") if start else ""
    head = " · ".join(html.text(part) for part in (title, *compare.facts(branch)))
    text = logprobs.flow(branch.tokens[start:]) if branch.tokens else html.verbatim(branch.text)
    return html.fold(head, before + text, opened=True)


def branch_title(at: int, branch: Reply) -> str:
    """ "branch at token 3: ␣cat"."""
    name = tokens.alone(branch.tokens[at].bytes) if 0 <= at < len(branch.tokens) else ""
    return f"branch at token {at}: {name}"


def _stats(reply: Reply) -> str:
    facts_ = [(html.text(name), html.text(value)) for name, value in throughput.details(reply)]
    return html.fold("Statistics", html.table(("", ""), facts_, numbers=(1,)), opened=True)


# ----------------------------------------------------------------------------- saved forms


def saved(reply: Reply, look: Look) -> JsonObject:
    """The reply as JSON for the notebook file: no paths, and at most JSON_WEIGHT bytes a token.

    A branch weighs what it does not share with the reply that it left. Where all is too heavy,
    fewer alternatives are kept, of branches at last none of the tokens.
    """
    reply = _named(reply)
    lighter = [lambda r, k=keep: _fewer(r, k) for keep in (None, 5, 3, 1, 0)]
    for lighten in (*lighter, _bare):
        lean = lighten(reply)
        data = lean.to_dict(prompt=look.save_prompt, max_tokens=look.json_tokens)
        records, size = _weight(data)
        if size <= JSON_WEIGHT * records:
            break
    return data


def _named(reply: Reply) -> Reply:
    branches = tuple((at, _named(branch)) for at, branch in reply.branches)
    return replace(reply, model=model_name(reply.model), branches=branches)


def _weight(data: Mapping[str, Any], branch: bool = False) -> tuple[int, int]:
    """(token records, bytes) of the saved tokens and of what branches say."""
    own = data.get("tokens", [])
    counted = [own, data["text"], data.get("reasoning", "")] if branch else own
    records, size = len(own), len(json.dumps(counted, ensure_ascii=False).encode())
    for _, below in data.get("branches", []):
        more = _weight(below, True)
        records, size = records + more[0], size + more[1]
    return records, size


def _fewer(reply: Reply, keep: int | None) -> Reply:
    if keep is None:
        return reply
    run = tuple(replace(t, top=t.top[:keep]) for t in reply.tokens)
    return replace(
        reply, tokens=run, branches=tuple((at, _fewer(b, keep)) for at, b in reply.branches)
    )


def _bare(reply: Reply) -> Reply:
    """Branches as texts, beside the tokens of the answer."""
    bare = tuple((at, replace(_bare(b), tokens=(), kinds=())) for at, b in reply.branches)
    return replace(_fewer(reply, 0), branches=bare)


def from_output(data: Mapping[str, object]) -> Reply:
    """The Reply of a saved output's data, or of its vendor JSON.

    >>> from_output(bundle(Reply("Hi!"), Look())).text
    'Hi!'

    Raises:
        ValueError: The data holds no saved reply.
    """
    found = data.get(VENDOR, data)
    if not isinstance(found, Mapping):
        raise ValueError(f"not a saved reply: the data is a {type(found).__name__}")
    return Reply.from_dict(found)
