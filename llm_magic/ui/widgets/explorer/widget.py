"""The explorer of one reply: look at every token, continue from another one, compare the branches.

Messages of a page arrive on the main thread, or on a subshell's while a cell runs, and are handed
to a worker thread. That thread alone sends to the pages, writes the trait and changes the tree; it
lives while there is something to do. A branch has a reader thread of its own, which waits for the
model. Pages are sent at most 20 messages a second.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar
from uuid import uuid4

import anywidget
import traitlets

from llm_magic import branching
from llm_magic.chat.reply import Reply
from llm_magic.errors import NotLoadedError, RequestError
from llm_magic.events import CallDelta, Delta, Prefill, Progress, Queued, Token
from llm_magic.hub import hub
from llm_magic.llm import LLM
from llm_magic.ui.views import mime, progress, records, summary, throughput

from ..shared import jupyter, settings, token_rows
from ..shared.phases import describe
from ..shared.protocol import Op, Outbox
from ..shared.stream_reader import StreamJob, StreamUpdate, start_reading
from ..shared.worker import Worker
from .tree import BranchTree

VERSION = 2
CHUNK = 500  # rows in one op of a snapshot: a page reads them in a few milliseconds


@dataclass(slots=True, eq=False)
class BranchRequest(StreamJob):
    """A branch in the making."""

    parent: int
    at: int
    given: tuple[Token, ...]
    by: str  # the page that asked
    node: int | None = None
    waiting: list[Token] = field(default_factory=list)


class Explorer(anywidget.AnyWidget):  # type: ignore[misc]
    """`reply.explore()`: move through the tokens, go on from another one, compare what came.

    llm: continues branches; None: the loaded model of the reply's name. kept: the display that
        shows the reply already and is renewed after each branch; without one the view keeps a
        static form of its own below itself. Where the view is seen, that form is hidden. look: how
        it is shown. options: of branches, as `LLM.stream` takes them; unless given here or on the
        page, as the reply was made.

    A reply never changes: `explorer.reply` has the branches, and names of the notebook that hold
    the reply (`_llm`, `--out`, variables) hold that one then. The same object may be shown in
    several places.
    """

    _esm = jupyter.script(
        (
            *jupyter.SHARED_SCRIPTS,
            "explorer/settings.js",
            "explorer/explorer.js",
        )
    )
    _css = token_rows.style() + Path(__file__).with_name("explorer.css").read_text("utf-8")

    # Settled state: {"v": 2, "model": name, "views": [[title, parent, at, texts, shades]]}. Written
    # by the worker thread only; it is what a page has left when the kernel is gone.
    state = traitlets.Dict().tag(sync=True)
    # The probabilities at which the steps of the scale begin. Never changes.
    scale = traitlets.List().tag(sync=True)
    _order: ClassVar[jupyter.CellOrder] = jupyter.CellOrder()

    def __init__(
        self,
        reply: Reply,
        llm: LLM | None = None,
        *,
        kept: jupyter.UpdatableOutput | None = None,
        look: mime.Look | None = None,
        **options: object,
    ) -> None:
        self._llm = llm
        self._options = settings.given(options)
        self._look = look or mime.Look()
        self._own = kept is None
        self._kept = kept or jupyter.UpdatableOutput(
            {}, f"llm-explore-{uuid4().hex}", not self._look.docs
        )
        self._tree = BranchTree(reply)
        self._named = summary.model_name(reply.model)
        self._reply = reply  # replaced as a whole: any thread may read it
        self._out = Outbox(lambda message: self.send(dict(message)))
        after = (self._show_tokens, self._out.flush)
        self._worker = Worker(
            "llm-explore",
            self._handle,
            after,
            self._fault,
            _starts_work,
            lambda: self._run is not None,
        )
        self._run: BranchRequest | None = None
        self._key: str | None = None  # which of the views of its cell it is
        self._cell: object = None  # parent header of the cell that shows the static form
        super().__init__(state=self._saved(), scale=token_rows.scale())
        self.on_msg(self._on_message)
        jupyter.take_subshell_messages(self.comm)

    def __repr__(self) -> str:
        reply, n = self._reply, len(self._reply.branches)
        return f"<Explorer: {len(reply.tokens):,} tokens, {n} branch{'es' * (n != 1)}>"

    # ------------------------------------------------------------------ for people

    @property
    def reply(self) -> Reply:
        """The reply with its branches, and they with theirs."""
        return self._reply

    def branch(self, i: int, alternative: str | int | None = None, view: int = 0) -> None:
        """Go on from another token, as if it were clicked. Returns at once; see `wait`.

        alternative: as `Reply` branches take it: a text, a rank from 1, None for the likeliest one
        that was not taken. view: 0 is the answer, then the branches in the order of their making.
        """
        self._worker.put({"t": "branch", "view": view, "at": i, "alternative": alternative})

    def stop(self) -> None:
        """End the branch that is being written, if there is one. What has come stays."""
        self._worker.put({"t": "stop"})

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until no branch is in the making. False when `timeout` seconds were not enough."""
        with hub.gate.lend():
            return self._worker.wait(timeout)

    # ------------------------------------------------------------------ display

    def _ipython_display_(self) -> None:
        if not self._look.docs:
            # A widget view and HTML in one bundle would hide the HTML for ever in JupyterLab, which
            # without a kernel then says "model not found": so the static form is a display.
            place = str(Explorer._order.of(jupyter.running_cell(), self.model_id))
            self._key = self._key or place
            jupyter.show_view(self)
        self._cell = jupyter.running_cell()
        self._kept.beside_view = not self._look.docs
        if self._own or not self._look.docs:
            self._change()
            self._kept.show(update=not self._own)

    def close(self) -> None:
        """End the view. What it showed stays in its static form."""
        if self._run is not None:
            self.stop()
        layout = getattr(self, "layout", None)
        super().close()
        if layout is not None:  # a widget of its own, with a line to the kernel of its own
            layout.close()

    def _static(self) -> mime.Bundle:
        """The reply and its branches without a script."""
        return mime.bundle(self._reply, self._static_look)

    @property
    def _static_look(self) -> mime.Look:
        return replace(self._look, format="text", heat=True) if self._own else self._look

    def _change(self) -> None:
        data = self._static()
        self._kept.change(data, records.metadata(self._reply, self._static_look, data))

    def _saved(self) -> dict[str, Any]:
        return {"v": VERSION, "model": self._named, "views": self._tree.saved()}

    # ------------------------------------------------------------------ any thread

    def _on_message(self, _: object, message: object, buffers: object) -> None:
        if isinstance(message, Mapping):
            self._worker.put(message)

    # ------------------------------------------------------------------ the worker thread

    def _fault(self, error: BaseException) -> None:
        self._note(describe(error))

    def _handle(self, item: Any) -> None:
        if isinstance(item, StreamUpdate):
            self._on_update(item)
        else:
            self._on_page_message(item)

    def _on_page_message(self, message: Mapping[str, object]) -> None:
        match message:
            case {"t": "hello", "page": str(page)}:
                self._snapshot(page)
            case {"t": "branch", "view": int(view), "at": int(at), "alternative": alternative}:
                self._begin(view, at, alternative, str(message.get("page", "")))
            case {"t": "stop"}:
                self._stop()
            case {"t": "set", "name": str(name)}:
                self._set(name, message.get("value"))
            case {"t": "output", "page": str(page)}:
                self._out.answer(page, {"o": "output", **self._kept.picture()})
            case {"t": "keep", "page": str(page)}:
                look = replace(self._look, save_prompt=True)  # stays in the page's memory
                self._out.answer(page, {"o": "saved", "data": mime.saved(self._reply, look)})
            case {"t": "load", "data": data}:
                self._load(data)
            case _:
                self._note("The page sent a message that this version does not know.")

    def _snapshot(self, page: str) -> None:
        self._show_tokens()
        first: list[Op] = [
            self._heads(), self._settings(), {"o": "kept", **self._kept.told()},
            {"o": "place", "key": self._key or ""},
        ]  # fmt: skip
        rest = [[op] for op in self._all_rows()]
        self._out.snapshot(page, first, *rest, [{"o": "ready"}])

    def _all_rows(self) -> Iterator[Op]:
        for i, node in enumerate(self._tree.nodes):
            for k in range(0, len(node.rows), CHUNK):
                yield {"o": "rows", "view": i, "from": k, "rows": node.rows[k : k + CHUNK]}

    def _heads(self) -> Op:
        heads = [[*node.head(), len(node.rows)] for node in self._tree.nodes]
        busy = None if self._run is None else self._run.node
        return {"o": "views", "views": heads, "busy": self._run is not None, "writes": busy}

    # ------------------------------------------------------------------ what holds for branches

    def _set(self, name: str, value: object) -> None:
        error = ""
        try:
            if name not in settings.BRANCH:
                raise RequestError(f"there is no setting {name!r}")
            checked = settings.checked(name, value)
            options = {k: v for k, v in self._options.items() if k != name}
            self._options = options if checked is None else {**options, name: checked}
        except RequestError as problem:
            error = str(problem)
        self._out.extend([{**self._settings(), "name": name, "error": error}])

    def _settings(self) -> Op:
        """What is set, and what holds where nothing is: as the reply was made."""
        reply = self._tree.nodes[0].reply
        usual = branching.defaults(reply, ())
        fields = []
        for name, known in settings.BRANCH.items():
            default = f"as the reply: {known.shown(usual[name])}" if name in usual else "none"
            if name == "max_tokens":
                default = "as long as the reply, 32 at least"
            low, high = settings.bound(known.low), settings.bound(known.high)
            kind = settings.form_kind(known)
            fields.append([name, kind, known.label, default, low, high, known.more])
        values = settings.shown({name: self._options.get(name) for name in settings.BRANCH})
        return {"o": "settings", "fields": fields, "values": values}

    def _load(self, data: Any) -> None:
        """Go on with a reply that a page remembers from a kernel that is gone."""
        if self._run is not None:
            self._note("A branch is being written: stop it first.")
            return
        try:
            reply = Reply.from_dict(data)
        except ValueError as problem:
            self._note(str(problem))
            return
        self._tree = BranchTree(reply)
        self._named = summary.model_name(reply.model)
        self._out.extend([self._heads(), self._settings(), *self._all_rows(), {"o": "ready"}])
        self._settle()

    # ------------------------------------------------------------------ one branch

    def _begin(self, view: int, at: int, alternative: Any, page: str) -> None:
        if self._run is not None:
            self._note("One branch at a time: stop this one or wait for its end.")
            return
        if not 0 <= view < len(self._tree.nodes):
            return
        parent = self._tree.nodes[view].reply
        given = branching.prefix(parent, at, branching.choice(parent, at, alternative))
        run = BranchRequest(view, at % len(parent.tokens), given, page)
        llm = self._model(parent)
        options = branching.defaults(parent, given) | self._options
        self._run = run
        self._out.add("busy", text="starting", share=None)
        start_reading(
            "llm-explore-reader", run, lambda _: branching.stream(llm, parent, given, **options),
            self._worker.put,
        )  # fmt: skip

    def _model(self, reply: Reply) -> LLM:
        # Only the very model: another one's ids would mean other texts.
        loaded = {summary.model_name(llm.model): llm for llm in hub.loaded()}
        found = self._llm or hub.get(reply.model or None) or loaded.get(self._named)
        if found is None:
            name = self._named or "its model"
            raise NotLoadedError(
                f"To go on from here, {name} has to be loaded in this kernel: %llm load {name}"
            )
        return found

    def _stop(self) -> None:
        run = self._run
        if run is not None:
            run.stopping = True
            if run.stream is not None:
                run.stream.cancel("cancelled")
            self._out.add("busy", text="stopping", share=None)

    def _on_update(self, told: StreamUpdate[BranchRequest]) -> None:
        run = told.run
        if told.opened is not None:
            run.stream = told.opened
            if run.stopping:
                run.stream.cancel("cancelled")
            self._open(run)
        match told.what:
            case Delta(tokens=new) | CallDelta(tokens=new):
                drawn = [token for token in new if not token.forced]  # the given ones are already
                run.waiting.extend(drawn)
                run.times.extend(token.at for token in drawn)
            case Queued() | Prefill() | Progress() as event if not run.stopping:
                now = progress.work(event)
                self._out.add("busy", text=now.line, share=now.share)
            case _:
                pass
        if told.ended:
            self._end(run, told.reply, told.error)

    def _open(self, run: BranchRequest) -> None:
        parent = self._tree.nodes[run.parent].reply
        run.node = self._tree.open(run.parent, run.at, branching.begun(parent, run.given))
        node = self._tree.nodes[run.node]
        self._out.add(
            "open", view=run.node, by=run.by, head=[*node.head(), 0], rows=node.rows.copy()
        )

    def _show_tokens(self) -> None:
        run = self._run
        if run is None or run.node is None or not run.waiting:
            return
        place, rows = self._tree.grow(run.node, run.waiting)
        run.waiting.clear()
        self._out.extend([{"o": "rows", "view": run.node, "from": place, "rows": rows}])
        self._out.add("live", n=len(run.times), tps=round(run.speed, 1))

    def _end(self, run: BranchRequest, rest: Reply | None, error: BaseException | None) -> None:
        self._show_tokens()
        self._run = None
        note = "" if error is None else describe(error)
        came = rest is not None and len(rest.tokens) > len(run.given)
        if run.node is not None and rest is not None and (came or error is None):
            self._tree.settle(run.node, rest)
            if (magics := jupyter.extension()) is not None:
                magics.ledger.add(throughput.entry(branching.measured(rest), "branch"), rest)
        elif run.node is not None:
            self._tree.drop(run.node)
        self._out.extend([self._heads(), {"o": "end", "text": note, "fault": error is not None}])
        self._out.flush()
        self._settle()

    def _settle(self) -> None:
        before, self._reply = self._reply, self._tree.reply
        self.state = self._saved()
        jupyter.rebind(before, self._reply)
        if self._cell is None:
            return
        self._change()
        jupyter.publish_as(self._cell)
        self._kept.show(update=True)
        self._out.add("kept", **self._kept.told())

    # ------------------------------------------------------------------ to the page

    def _note(self, text: str) -> None:
        self._out.add("note", text=text)


def _starts_work(item: object) -> bool:
    """May a message of a page begin a branch?"""
    return isinstance(item, Mapping) and item.get("t") == "branch"
