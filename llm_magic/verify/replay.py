"""One record generated again: token by token, log-probability by log-probability."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

from ..asked import request_of, sampling_in
from ..chat import saved
from ..chat.origin import Origin
from ..chat.record import Record
from ..chat.reply import Reply
from ..events import Finish, FinishReason, Token
from ..provider import Provider, Request
from .report import TOLERANCE

MARGIN = 16  # tokens beyond the recorded ones after which a reply that goes on is stopped
BEFORE = 24  # characters that say where a token stands
ENDED = ("stop", "tool_calls")  # ends that the model or the request decided


@dataclass(frozen=True, slots=True)
class Replayed:
    """A reply that was generated again, and what differs.

    Attributes:
        reply: As it is now.
        findings: What differs, each with its place.
        worst: The largest difference of two log-probabilities.
        exact: Whether every bit was compared, or only to TOLERANCE.
    """

    reply: Reply
    findings: tuple[str, ...]
    worst: float
    exact: bool


def needed(record: Record) -> int:
    """Tokens of context that the reply takes, its branches included."""
    own = len(record.prompt) + len(record.ids) + MARGIN + 1
    return max([own, *(needed(branch) for _, branch in record.branches)])


def replay(
    provider: Provider, here: Origin, record: Record, before: tuple[Token, ...] | None = None
) -> Replayed:
    """Generate a recorded reply again and compare.

    Args:
        provider: The model of the record.
        here: Its file and its code.
        record: What was saved.
        before: Of a branch, the tokens of the reply that it left, and its own first one.

    Raises:
        ValueError: The record does not hold a request that can be made.
        LLMError: Generating failed.
    """
    exact = record.exact and here.exact and record.variant == here.variant
    if "score" in record.asked:
        reply = _scored(provider, record)
    else:
        reply = _generated(provider, record, before)
    findings, worst = _compared(record, reply, exact)
    # What was asked for, not what sufficed to ask for now.
    reply = replace(reply, model=record.model, sampling=sampling_in(dict(record.sampling)))
    if record.finish not in ENDED:
        reply = replace(reply, finish_reason=_reason(record.finish))
    branches = []
    for at, branch in record.branches:
        again = replay(provider, here, branch, _way(reply, at, branch))
        branches.append((at, again.reply))
        findings += [f"branch at token {at}: {finding}" for finding in again.findings]
        worst = max(worst, again.worst)
    reply = replace(reply, branches=tuple(branches))
    return Replayed(reply, tuple(findings), worst, exact)


def _scored(provider: Provider, record: Record) -> Reply:
    top = saved.whole_in(record.asked.get("score"), "score")
    tokens = tuple(provider.score(record.ids, top))
    text = provider.detokenize(record.ids)
    return Reply(text, tokens=tokens, kinds=("answer",) * len(tokens))


def _way(reply: Reply, at: int, branch: Record) -> tuple[Token, ...] | None:
    """The tokens on which a branch goes on, as the reply has them; None where it has not."""
    if not 0 <= at < min(len(reply.tokens), len(branch.ids)):
        return None
    place, taken = reply.tokens[at], branch.ids[at]
    other = next((top for top in place.top if top.id == taken), None)
    if other is None:
        return None
    rank = place.top.index(other) + 1
    own = replace(place, id=taken, bytes=other.bytes, logprob=other.logprob, rank=rank)
    return (*reply.tokens[:at], own)


def _generated(provider: Provider, record: Record, before: tuple[Token, ...] | None) -> Reply:
    request = _request(provider, record, before)
    stream = provider.stream(request)
    with stream:
        for event in stream:
            if isinstance(event, Finish):
                break
    return stream.reply


def _request(provider: Provider, record: Record, before: tuple[Token, ...] | None) -> Request:
    sampling = sampling_in(dict(record.sampling))
    asked = record.asked
    echoed = len(record.prompt) if asked.get("echo") else 0
    count = saved.whole_in(asked.get("given", 0), "given")
    given = _given(provider, record, echoed, count)
    if before is not None and tuple(t.id for t in before) == tuple(t.id for t in given):
        given = before
    drawn = len(record.ids) - echoed - count
    if drawn < 0:
        raise saved.fail("there are fewer tokens than were given")
    # Where the reply was cut, no more than it has; else a little more, which would be a difference.
    most = drawn + MARGIN if record.finish in ENDED else drawn
    limit = sampling.max_tokens
    sampling = replace(sampling, max_tokens=most if limit is None else min(limit, most))
    text = provider.render(Request(record.prompt)).text
    return request_of(asked, record.prompt, text, sampling, given)


def _given(provider: Provider, record: Record, start: int, count: int) -> tuple[Token, ...]:
    """The tokens that were given to the answer, with the log-probabilities that came with them."""
    ids = record.ids[start : start + count]
    if not ids:
        return ()
    known = record.logprobs[start : start + count]
    return tuple(
        Token(t.id, t.bytes, logprob, None, forced=True)
        for t, logprob in zip(provider.score(ids), known, strict=True)
    )


def _compared(record: Record, reply: Reply, exact: bool) -> tuple[list[str], float]:
    ids = [t.id for t in reply.tokens]
    if (at := _parting(record.ids, ids)) is not None:
        return [_token_difference(record, reply, at) + _boundary(record, exact)], 0.0
    findings: list[str] = []
    if record.finish in ENDED and reply.finish_reason != record.finish and record.ids:
        findings.append(f"it ended by {record.finish!r}, and ends by {reply.finish_reason!r} now")
    pairs = list(zip(record.logprobs, (t.logprob for t in reply.tokens), strict=True))
    wrong, worst = _apart(pairs, exact)
    if wrong:
        i = wrong[0]
        findings.append(
            f"token {i} ({_word(reply.tokens[i])}): log-probability {pairs[i][0]!r} was saved, it "
            f"is {pairs[i][1]!r}" + (f"; {len(wrong)} differ in all" if len(wrong) > 1 else "")
        )
    if record.choices is not None:
        findings += _choices(record.choices, reply.choices or {}, exact)
    return findings, worst


def _boundary(record: Record, exact: bool) -> str:
    """Another variant may draw another token where two are as likely but for the last digits."""
    if exact or sampling_in(dict(record.sampling)).greedy:
        return ""
    return (
        f"; on another variant a draw can fall on the other side of a boundary: check it with "
        f"{record.variant}"
    )


def _reason(value: str | None) -> FinishReason | None:
    return next((reason for reason in get_args(FinishReason) if reason == value), None)


def _parting(saved_ids: Sequence[int], ids: Sequence[int | None]) -> int | None:
    if list(saved_ids) == list(ids):
        return None
    shortest = min(len(saved_ids), len(ids))
    return next((i for i in range(shortest) if saved_ids[i] != ids[i]), shortest)


def _token_difference(record: Record, reply: Reply, at: int) -> str:
    before = b"".join(t.bytes for t in reply.tokens[:at]).decode("utf-8", "replace")
    now = _word(reply.tokens[at]) if at < len(reply.tokens) else "the end"
    then = f"id {record.ids[at]}" if at < len(record.ids) else "the end"
    return f"token {at}, after {before[-BEFORE:]!r}: {then} was saved, the model says {now}"


def _word(token: Token) -> str:
    return f"{token.bytes.decode('utf-8', 'replace')!r}, id {token.id}"


def _apart(
    pairs: Sequence[tuple[float | None, float | None]], exact: bool
) -> tuple[list[int], float]:
    """Places where two log-probabilities differ more than they may, and the largest difference."""
    wrong, worst = [], 0.0
    for i, (a, b) in enumerate(pairs):
        if a is None or b is None:
            if a is not b:
                wrong.append(i)
            continue
        worst = max(worst, abs(a - b))
        if a != b if exact else abs(a - b) > TOLERANCE:
            wrong.append(i)
    return wrong, worst


def _choices(then: Mapping[str, float], now: Mapping[str, float], exact: bool) -> list[str]:
    for text in dict.fromkeys([*then, *now]):
        a, b = then.get(text), now.get(text)
        if a is None or b is None or (a != b if exact else abs(a - b) > TOLERANCE):
            return [f"choice {text!r}: probability {a!r} was saved, it is {b!r}"]
    return []
