"""A reply and its branches as a tree, and as the lists that a page draws.

A branch shares its first tokens with the node that it left: they are neither sent nor drawn twice.
BranchNode 0 is the answer itself, and a node comes after the one that it left.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from llm_magic.chat.reply import Reply
from llm_magic.chat.saved import runs
from llm_magic.events import Token
from llm_magic.json_types import Json
from llm_magic.ui.views import compare, tokens
from llm_magic.ui.views.summary import CUT

from ..shared.token_rows import Row, rows

ENDED = {"length": CUT, "cancelled": "stopped", "interrupted": "stopped"}


@dataclass(slots=True)
class BranchNode:
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


class BranchTree:
    """All nodes, in the order in which they came. Not made for more than one thread."""

    def __init__(self, reply: Reply) -> None:
        self.nodes: list[BranchNode] = []
        self._adopt(reply, None, 0)

    def _adopt(self, reply: Reply, parent: int | None, at: int) -> None:
        here = len(self.nodes)
        # A foreign notebook may say anything about where its branches begin.
        at = min(max(at, 0), len(self.nodes[parent].reply.tokens)) if parent is not None else 0
        own = rows(reply.tokens[at:])
        self.nodes.append(BranchNode(replace(reply, branches=()), parent, at, own))
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
        self.nodes.append(BranchNode(reply, parent, at, rows(reply.tokens[at:])))
        return len(self.nodes) - 1

    def drop(self, i: int) -> None:
        """Forget the newest node: nothing came of it."""
        if i != len(self.nodes) - 1 or not i:
            raise ValueError(f"node {i} of {len(self.nodes)}")
        self.nodes.pop()

    def grow(self, i: int, new: Sequence[Token]) -> tuple[int, list[Row]]:
        """More tokens of a branch: where their rows begin, counted from its first own one, and they
        themselves."""
        known = self.nodes[i].rows
        at, fresh = len(known), rows(new)
        known.extend(fresh)
        return at, fresh

    def settle(self, i: int, reply: Reply) -> None:
        """The whole branch, once it has ended."""
        node = self.nodes[i]
        if len(node.rows) != len(reply.tokens) - node.at:
            node.rows = rows(reply.tokens[node.at :])
        node.reply = replace(reply, branches=())

    def saved(self) -> list[Json]:
        """Small: per node [title, parent, at, texts, shades], without any alternative."""
        return [
            [*node.head()[:3], [r[0] for r in node.rows], "".join(str(r[2]) for r in node.rows)]
            for node in self.nodes
        ]
