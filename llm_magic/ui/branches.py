"""Another token at one place of a reply, and what follows from it.

Comes in: a Reply, a position, another token, and the LLM that continues. Goes out: the Reply with
the branch kept in it. It must not know how anything is drawn.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ..chat.reply import Reply
from ..chat.stream import interruptible
from ..errors import NotLoadedError, RequestError
from ..events import Token, Usage
from ..hub import hub
from ..llm import LLM
from ..provider import Stream


def choice(reply: Reply, i: int, alternative: str | int | None) -> Token:
    """The token that a branch at position i takes.

    alternative: a number n >= 1: the n-th most likely recorded there; a text: the recorded one of
    that text (blanks around it do not matter); None: the most likely one that was not taken. Raises
    RequestError when there is none, naming those there are.
    """
    count = len(reply.tokens)
    if not -count <= i < count:
        raise RequestError(f"token {i}: the reply has {count} tokens")
    here = reply.tokens[i]
    others = [a for a in here.top if a.id != here.id and a.allowed]
    match alternative:
        case None:
            found = others[0] if others else None
        case int(n):
            found = here.top[n - 1] if 1 <= n <= len(here.top) else None
        case text:
            found = _by_text(here, text)
    if found is None or found.id is None:
        names = ", ".join(repr(a.bytes.decode("utf-8", "replace")) for a in here.top)
        hint = f"recorded there: {names}" if names else "generate with --logprobs to record them"
        raise RequestError(f"no such alternative at token {i % count}: {hint}")
    rank = next((n for n, a in enumerate(here.top, 1) if a.id == found.id), None)
    return replace(
        here, id=found.id, bytes=found.bytes, logprob=found.logprob, rank=rank, forced=True
    )


def _by_text(token: Token, text: str) -> Any:
    exact = [a for a in token.top if a.bytes == text.encode()]
    loose = [a for a in token.top if a.bytes.strip() == text.strip().encode()]
    return next(iter(exact or loose), None)


def prefix(reply: Reply, i: int, token: Token) -> tuple[Token, ...]:
    """The tokens of the branch up to and with its own token, all of them given, not drawn."""
    i %= len(reply.tokens)
    return (*(replace(t, forced=True) for t in reply.tokens[:i]), token)


def stream(llm: LLM, reply: Reply, given: Sequence[Token], **options: Any) -> Stream:
    """Continue a reply's prompt after the given tokens; the engine reuses what it has of them."""
    if reply.trace:  # its tokens are those of several prompts, of which it holds the last
        raise RequestError("the reply called tools; only what was said in one go can branch")
    ids = list(reply.prompt_ids)
    if not ids and reply.prompt is not None:
        # Read back from a file: the text is there, its ids are not.
        ids = [piece.id for piece in llm.tokenize(reply.prompt)]
    if not ids:
        raise RequestError("the reply does not hold its prompt, so nothing can go on from it")
    known = [t.id for t in given]
    if any(id is None for id in known):
        raise RequestError("the reply's tokens have no ids (a remote model), so it cannot branch")
    found: Stream = llm.stream([*ids, *(id for id in known if id is not None)], **options)
    return found


def join(reply: Reply, given: Sequence[Token], rest: Reply) -> Reply:
    """The whole branch as one Reply: the given tokens, then what the model wrote."""
    tokens = (*given, *rest.tokens)
    text = b"".join(t.bytes for t in given).decode("utf-8", "replace") + rest.text
    usage = Usage(len(reply.prompt_ids) or reply.usage.prompt, rest.usage.cached, len(tokens))
    return replace(
        rest, text=text, tokens=tokens, kinds=("answer",) * len(tokens), usage=usage,
        prompt=reply.prompt, prompt_ids=reply.prompt_ids, model=reply.model,
    )  # fmt: skip


def branch(
    reply: Reply,
    i: int,
    alternative: str | int | None = None,
    llm: LLM | None = None,
    **options: Any,
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
        rest: Reply = events.reply  # type: ignore[attr-defined]
    return keep(reply, i, join(reply, given, rest))


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
