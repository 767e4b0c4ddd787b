"""The live view of one reply: look at every token, go on from another one.

Comes in: a Reply, and what a person does on the page. Goes out: a widget; `reply` is the Reply with
all branches that were made. It must not know how a model generates.

Threads: the page's messages arrive on the main thread, or on a subshell's while a cell runs; they
only start or stop a worker. One worker at a time reads a branch's stream, and it alone writes the
trait. Tokens go by messages, at most 20 a second; each says at which place its rows begin, so that
a page that missed one asks for everything.
"""

import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from ..chat.reply import Reply
from ..errors import LLMError, NotLoadedError
from ..events import Delta, Finish, Token
from ..hub import hub
from ..llm import LLM
from ..provider import Stream
from . import branches, bundles, facts, logprobs, tokens

VERSION = 1
INTERVAL = 0.05  # seconds between messages
MAX_TOKENS = 128  # of a branch, unless told otherwise

Row = list[Any]


@dataclass(slots=True)
class Node:
    """The answer, or one branch: where it left which other node."""

    reply: Reply
    parent: int | None = None
    at: int = 0
    title: str = "answer"


def row(token: Token) -> Row:
    """What a page needs of a token: [text, percent, shade, rank, entropy, [alternatives]].

    An alternative is [text, percent, share, taken, allowed].
    """
    bits = logprobs.entropy(token)
    return [
        tokens.flowing(token.bytes),
        logprobs.percent(logprobs.probability(token.logprob)),
        logprobs.SCALE.index(logprobs.shade(token)),
        token.rank,
        None if bits is None else round(bits, 2),
        [
            [
                tokens.alone(a.bytes, 24),
                logprobs.percent(p := logprobs.probability(a.logprob)),
                round(p or 0.0, 4),
                a.id == token.id and a.bytes == token.bytes,
                a.allowed,
            ]
            for a in token.top
        ],
    ]


class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
    """`reply.explore()`: hover or move through the tokens, choose another one, and read on.

    llm: continues branches; None: the loaded model of the reply's name. options: of the branches,
    as `LLM.stream` takes them; the temperature is the reply's own unless given, and at most
    128 tokens.
    """

    _esm = Path(__file__).with_name("explore.js").read_text(encoding="utf-8")
    _css = Path(__file__).with_name("explore.css").read_text(encoding="utf-8")

    # {"v": 1, "model": name, "views": [[title, rows]]}: everything that a page shows, settled.
    state = traitlets.Dict().tag(sync=True)

    def __init__(self, reply: Reply, llm: LLM | None = None, **options: Any) -> None:
        self._llm = llm
        self._options = options
        self._nodes = [Node(replace(reply, branches=()))]
        for at, branch in reply.branches:
            self._adopt(branch, 0, at)
        self._lock = threading.Lock()
        self._stream: Stream | None = None
        self._busy = False
        super().__init__(state=self._everything())
        self.on_msg(self._on_message)
        _take_subshell_messages(self.comm)

    def __repr__(self) -> str:
        count = len(self._nodes) - 1
        return f"<Explorer of {len(self._nodes[0].reply.tokens)} tokens, {count} branches>"

    @property
    def reply(self) -> Reply:
        """The reply with all its branches, those of branches included."""
        return self._build(0)

    def _build(self, i: int) -> Reply:
        children = [k for k, node in enumerate(self._nodes) if node.parent == i]
        kept = tuple((self._nodes[k].at, self._build(k)) for k in children)
        return replace(self._nodes[i].reply, branches=kept)

    def _adopt(self, branch: Reply, parent: int, at: int) -> None:
        title = bundles.branch_title(at, branch)
        self._nodes.append(Node(replace(branch, branches=()), parent, at, title))
        here = len(self._nodes) - 1
        for further, inner in branch.branches:
            self._adopt(inner, here, further)

    # ------------------------------------------------------------------ what is shown

    def _everything(self) -> dict[str, Any]:
        views = [[n.title, [row(t) for t in n.reply.tokens]] for n in self._nodes]
        return {"v": VERSION, "model": facts.model_name(self._nodes[0].reply.model), "views": views}

    def _repr_mimebundle_(self, **options: Any) -> Any:
        # Viewers without widgets show the static form; a notebook without a kernel has it too.
        bundle = super()._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        static = bundles.Fragment(logprobs.shaded(self._nodes[0].reply), self._nodes[0].reply.text)
        return {**(data or {}), **static._repr_mimebundle_()}, metadata

    # ------------------------------------------------------------------ what a person does

    def _on_message(self, _: Any, message: Any, buffers: Any) -> None:
        match message:
            case {"t": "hello"}:
                self.send({"t": "all", "state": self._everything(), "busy": self._busy})
            case {"t": "branch", "view": int(view), "at": int(at), "choice": int(choice)}:
                self._start(view, at, choice)
            case {"t": "stop"}:
                self.stop()
            case _:
                pass  # a page of another version

    def stop(self) -> None:
        """End the branch that is being written, if there is one. From any thread."""
        stream = self._stream
        if stream is not None:
            stream.cancel("cancelled")

    def _start(self, view: int, at: int, choice: int) -> None:
        with self._lock:
            if self._busy or not 0 <= view < len(self._nodes):
                return
            self._busy = True
        worker = threading.Thread(target=self._work, args=(view, at, choice), daemon=True)
        worker.start()

    def _work(self, view: int, at: int, choice: int) -> None:
        try:
            self._grow(view, at, choice)
        except LLMError as e:
            self.send({"t": "end", "note": f"{type(e).__name__}: {e}"})
        finally:
            self._stream = None
            self._busy = False

    def _grow(self, view: int, at: int, choice: int) -> None:
        """Write one branch: the given tokens at once, the others as they come."""
        parent = self._nodes[view].reply
        token = branches.choice(parent, at, choice + 1)
        given = branches.prefix(parent, at, token)
        settings: dict[str, Any] = {
            "max_tokens": MAX_TOKENS,
            "temperature": parent.sampling.temperature or 0.0,
            "logprobs": max(len(t.top) for t in parent.tokens),
        }
        stream = branches.stream(self._model(parent), parent, given, **settings | self._options)
        rest: Reply | None = None
        with stream:
            self._stream = stream
            node = Node(branches.join(parent, given, Reply("")), view, at)
            node.title = bundles.branch_title(at, node.reply)
            self._nodes.append(node)
            here = len(self._nodes) - 1
            try:
                self._tell(here, node.title, given, stream)
            finally:
                rest = stream.reply  # type: ignore[attr-defined]
                node.reply = branches.join(parent, given, rest)
                self.state = self._everything()
        self.send({"t": "end", "view": here, "note": rest.finish_reason or ""})

    def _tell(self, view: int, title: str, given: tuple[Token, ...], stream: Stream) -> None:
        self.send({"t": "open", "view": view, "title": title, "rows": [row(t) for t in given]})
        place, sent = len(given), time.monotonic()
        waiting: list[Row] = []
        for event in stream:
            if isinstance(event, Delta):
                waiting += [row(t) for t in event.tokens]
            last = isinstance(event, Finish)
            if waiting and (last or time.monotonic() - sent >= INTERVAL):
                self.send({"t": "add", "view": view, "from": place, "rows": waiting})
                place, sent, waiting = place + len(waiting), time.monotonic(), []

    def _model(self, reply: Reply) -> LLM:
        found = self._llm or hub.get(reply.model) or hub.get()
        if found is None:
            raise NotLoadedError(f"{reply.model or 'the model'} is not loaded: %llm load brings it")
        return found


def _take_subshell_messages(comm: Any) -> None:
    """Let clicks arrive while a cell runs: on the subshell that the page names, not where the
    comm last sent (ipykernel 7.4 would choose the main shell, behind the running cell)."""
    if hasattr(comm, "_reply_subshell_for"):
        comm._reply_subshell_for = lambda data, default: default
