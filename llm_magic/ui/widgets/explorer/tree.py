"""A reply and its branches as a tree, and as the plain lists that a page draws.

Comes in: a Reply with the branches it has, further ones as they are written. Goes out: the Reply
with all of them, and per node rows of JSON. It must not know widgets, threads or models.

A branch shares its first tokens with the node that it left: they are neither sent nor drawn up
twice. Node 0 is the answer itself, and a node comes after the one that it left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from llm_magic.chat.reply import Reply
from llm_magic.chat.saved import runs
from llm_magic.events import Token, Top
from llm_magic.ui.views import compare, logprobs, tokens
from llm_magic.ui.views.summary import CUT

# A token: [text, percent, shade, rank, logprob, entropy, forbidden share, flags, alternatives].
# An alternative: [text, percent, share of 1000, what it is]. card.js names the places.
Row = list[Any]

FORCED, TRIMMED = 1, 2  # flags
OPEN, TAKEN, FORBIDDEN, NAMELESS = range(4)  # what an alternative is; the last has no id
WIDTH = 32  # characters of an alternative
ENDED = {"length": CUT, "cancelled": "stopped", "interrupted": "stopped"}


def row(token: Token) -> Row:
    """What a page needs of one token."""
    bits = logprobs.entropy(token)
    lp = token.logprob
    return [
        tokens.flowing(token.bytes),
        logprobs.percent(logprobs.probability(lp)),
        logprobs.SCALE.index(logprobs.shade(token)),
        token.rank,
        None if lp is None or not math.isfinite(lp) else round(lp, 3),
        None if bits is None else round(bits, 2),
        logprobs.percent(token.masked) if token.masked else None,
        FORCED * token.forced + TRIMMED * token.trimmed,
        [_alternative(token, a) for a in token.top],
    ]


def _alternative(token: Token, a: Top) -> Row:
    p = logprobs.probability(a.logprob)
    if a.id == token.id and a.bytes == token.bytes:
        what = TAKEN
    elif not a.allowed:
        what = FORBIDDEN
    else:
        what = OPEN if a.id is not None else NAMELESS
    return [tokens.alone(a.bytes, WIDTH), logprobs.percent(p), round((p or 0.0) * 1000), what]


@dataclass(slots=True)
class Node:
    """The answer, or a branch that left node `parent` at token `at`.

    reply: without branches of its own, from the first token on. rows: of the tokens from `at` on.
    """

    reply: Reply
    parent: int | None = None
    at: int = 0
    rows: list[Row] = field(default_factory=list)

    def head(self) -> Row:
        """[title, parent, at, facts, runs of kinds]: all that a page needs beside the rows."""
        title = "answer" if self.parent is None else _name(self.reply.tokens, self.at)
        ended = ENDED.get(self.reply.finish_reason or "")
        found = [*compare.facts(self.reply), *([ended] if ended else [])]
        return [title, self.parent, self.at, found, runs(self.reply.kinds)]


def _name(run: Sequence[Token], at: int) -> str:
    return f"{tokens.alone(run[at].bytes, 16) if at < len(run) else '∅'} at {at}"


class Tree:
    """All nodes, in the order in which they came. Not made for more than one thread."""

    def __init__(self, reply: Reply) -> None:
        self.nodes: list[Node] = []
        self._adopt(reply, None, 0)

    def _adopt(self, reply: Reply, parent: int | None, at: int) -> None:
        here = len(self.nodes)
        # A foreign notebook may say anything about where its branches begin.
        at = min(max(at, 0), len(self.nodes[parent].reply.tokens)) if parent is not None else 0
        own = [row(token) for token in reply.tokens[at:]]
        self.nodes.append(Node(replace(reply, branches=()), parent, at, own))
        for place, branch in reply.branches:
            self._adopt(branch, here, place)

    @property
    def reply(self) -> Reply:
        """The answer with its branches, and they with theirs."""
        return self._build(0)

    def _build(self, i: int) -> Reply:
        children = [k for k, node in enumerate(self.nodes) if node.parent == i]
        kept = tuple((self.nodes[k].at, self._build(k)) for k in children)
        return replace(self.nodes[i].reply, branches=kept)

    def open(self, parent: int, at: int, reply: Reply) -> int:
        """A new branch, of its given tokens for now; its number."""
        self.nodes.append(Node(reply, parent, at, [row(t) for t in reply.tokens[at:]]))
        return len(self.nodes) - 1

    def drop(self, i: int) -> None:
        """Forget the newest node: nothing came of it."""
        if i != len(self.nodes) - 1 or not i:
            raise ValueError(f"node {i} of {len(self.nodes)}")
        self.nodes.pop()

    def grow(self, i: int, new: Sequence[Token]) -> tuple[int, list[Row]]:
        """More tokens of a branch: where their rows begin, counted from its first own one, and they
        themselves."""
        rows = self.nodes[i].rows
        at, fresh = len(rows), [row(token) for token in new]
        rows.extend(fresh)
        return at, fresh

    def settle(self, i: int, reply: Reply) -> None:
        """The whole branch, once it has ended."""
        node = self.nodes[i]
        if len(node.rows) != len(reply.tokens) - node.at:
            node.rows = [row(token) for token in reply.tokens[node.at :]]
        node.reply = replace(reply, branches=())

    def saved(self) -> list[Any]:
        """Small: per node [title, parent, at, texts, shades], without any alternative."""
        return [
            [*node.head()[:3], [r[0] for r in node.rows], "".join(str(r[2]) for r in node.rows)]
            for node in self.nodes
        ]
