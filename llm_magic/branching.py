"""Branches: another token at one position of a reply, and what follows from it."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .chat.parsing.syntax import REASONING, opens_reasoning
from .chat.reply import Reply
from .chat.stream import Stream, interruptible
from .errors import NotLoadedError, RequestError
from .events import Token, Top, Usage
from .hub import hub
from .llm import LLM
from .provider import RenderedPrompt

TURN = 200  # characters at the end of a prompt in which the assistant's turn begins


def choice(reply: Reply, i: int, alternative: str | int | None) -> Token:
    """The token that a branch at position i takes.

    alternative: a number n >= 1: the n-th most likely recorded there; a text: the recorded one of
    that text (blanks around it do not matter); None: the most likely one that was not taken. Raises
    RequestError when there is none that can be taken, saying why and naming those there are.
    """
    count = len(reply.tokens)
    if not -count <= i < count:
        raise RequestError(f"there is no token {i}: the reply has {count}, and the first is 0")
    here = reply.tokens[i]
    match alternative:
        case None:
            found = next(iter(_open(here)), None)
        case int(n):
            found = here.top[n - 1] if 1 <= n <= len(here.top) else None
        case text:
            found = _by_text(here, text)
    if found is None or found not in _open(here):
        raise RequestError(f"{_why_not(here, i % count, alternative, found)}; {_ways(here)}")
    rank = here.top.index(found) + 1
    return replace(
        here, id=found.id, bytes=found.bytes, logprob=found.logprob, rank=rank, forced=True
    )


def _open(here: Token) -> list[Top]:
    """The recorded alternatives from which one can go on."""
    return [a for a in here.top if not _taken(here, a) and a.allowed and a.id is not None]


def _taken(here: Token, a: Top) -> bool:
    return a.id == here.id and a.bytes == here.bytes


def _by_text(token: Token, text: str) -> Top | None:
    exact = [a for a in token.top if a.bytes == text.encode()]
    loose = [a for a in token.top if a.bytes.strip() == text.strip().encode()]
    # Of several that differ in their blanks, one from which one can go on is meant.
    able = [a for a in loose if a in _open(token)]
    return next(iter(exact or able or loose), None)


def _why_not(here: Token, i: int, wanted: str | int | None, found: Top | None) -> str:
    if wanted is None:
        return f"token {i} has no alternative to go on from"
    if found is None:
        return f"token {i}: there is no alternative {wanted!r}"
    named = f"token {i}: alternative {wanted!r} is {_word(found)}"
    if _taken(here, found):
        return f"{named}, which the reply took itself"
    if not found.allowed:
        return f"{named}, which the constraint of the answer forbids there"
    return f"{named}, which has no id (a remote model), so nothing can go on from it"


def _ways(here: Token) -> str:
    """What can be asked for instead."""
    ranks = [f"{here.top.index(a) + 1}: {_word(a)}" for a in _open(here)]
    if ranks:
        return f"those to go on from, by rank: {', '.join(ranks)}"
    if not here.top:
        return "generate with --logprobs (logprobs=5) to record them"
    if any(not a.allowed for a in here.top):
        return "all others recorded there are forbidden: branch elsewhere or ask without constraint"
    return f"more are recorded with logprobs={len(here.top) + 5} (--logprobs {len(here.top) + 5})"


def _word(a: Top) -> str:
    return repr(a.bytes.decode("utf-8", "replace"))


def prefix(reply: Reply, i: int, token: Token) -> tuple[Token, ...]:
    """The tokens of the branch up to and with its own token, all of them given, not drawn."""
    i %= len(reply.tokens)
    return (*(replace(t, forced=True) for t in reply.tokens[:i]), token)


def stream(llm: LLM, reply: Reply, given: Sequence[Token], **options: Any) -> Stream:
    """Continue a reply's prompt after the given tokens; the engine reuses what it has of them.

    The stream's reply is the whole branch. Its first events carry the given tokens, marked as
    forced; answer, reasoning and calls are told apart from the first one on.
    """
    if any(token.id is None for token in given):
        raise RequestError("the reply's tokens have no ids (a remote model), so it cannot branch")
    events: Stream = llm.stream(rendered(reply), given=tuple(given), **options)
    return events


def rendered(reply: Reply) -> RenderedPrompt:
    """The prompt of a reply, as the model got it. RequestError where nothing can go on from it."""
    if reply.trace:  # its tokens are those of several prompts, of which it holds the last
        raise RequestError("the reply called tools; only what was said in one go can branch")
    if not reply.prompt_ids and reply.prompt is None:
        raise RequestError(_no_prompt(reply))
    reasoning = bool(reply.reasoning) or "reasoning" in reply.kinds
    text = reply.prompt or ""
    turn = text[-TURN:]
    return RenderedPrompt(
        text=text,
        ids=reply.prompt_ids,
        messages=reply.messages,
        tools=reply.tools,
        reasoning=reasoning,
        in_reasoning=reasoning and any(opens_reasoning(turn, t) for t in REASONING.values()),
        calls=bool(reply.calls) or "call" in reply.kinds,
    )


def _no_prompt(reply: Reply) -> str:
    if reply.tokens and all(t.forced for t in reply.tokens):
        return (
            "this is the score of a text, and only an answer can branch; "
            "%llm branch -r NAME takes an answer that was kept with -o NAME"
        )
    return "the reply does not hold its prompt, so nothing can go on from it"


def branch(
    reply: Reply,
    i: int,
    alternative: str | int | None = None,
    llm: LLM | None = None,
    **options: object,
) -> Reply:
    """Go on from another token at place i; returns `reply` with the branch in `branches`.

    alternative: as `choice` takes it. llm: continues; None: the loaded model of the reply's name.
    options: as `LLM.stream` takes them; the reply's own temperature and number of tokens unless
    given. Raises RequestError, NotLoadedError, and what generating raises.
    """
    found = llm or hub.get(reply.model)
    if found is None:
        raise NotLoadedError(f"{reply.model or 'the model'} is not loaded: llm_magic.load() it")
    given = prefix(reply, i, choice(reply, i, alternative))
    with stream(found, reply, given, **defaults(reply, given) | options) as events:
        for _ in interruptible(events):
            pass
    return keep(reply, i, events.reply)


def begun(reply: Reply, given: Sequence[Token]) -> Reply:
    """A branch before its stream has told anything: its tokens are what those of the reply were."""
    kinds = (*reply.kinds, *("answer",) * len(given))[: len(given)]
    return Reply("", tokens=tuple(given), kinds=kinds, model=reply.model)


def measured(branch: Reply) -> Reply:
    """A branch with the counts of what was done for it: its given tokens are read, not written."""
    given = sum(t.forced for t in branch.tokens)
    usage = branch.usage
    spent = Usage(usage.prompt + given, usage.cached, max(0, usage.completion - given))
    return replace(branch, usage=spent)


def defaults(reply: Reply, given: Sequence[Token]) -> dict[str, Any]:
    """Options of a branch that nobody set: as the reply was made, and as long, but 32 at least."""
    return {
        "max_tokens": max(32, len(reply.tokens) - len(given)),
        "temperature": reply.sampling.temperature or 0.0,
        "logprobs": max((len(t.top) for t in reply.tokens), default=0),
    }


def keep(reply: Reply, i: int, branch: Reply) -> Reply:
    """`reply` with one branch more."""
    return replace(reply, branches=(*reply.branches, (i % len(reply.tokens), branch)))
