"""Runs the requests of a chat, one answer at a time.

All methods but `decide` run on the controller's thread. A reader thread per request loads the model
and iterates the stream, so tools run there; it puts what it gets into the controller's inbox.
"""

import json
from collections.abc import Callable
from datetime import UTC, datetime

from llm_magic.branching import measured
from llm_magic.chat.fold import Fold
from llm_magic.chat.reply import Reply
from llm_magic.events import ToolCall, ToolDone
from llm_magic.ui.views import throughput

from ..shared.phases import IDLE, NOTES, START, STOPPING, Phase, describe, phase_of
from ..shared.stream_reader import OpenStream, StreamUpdate, start_reading
from .outbox import ChatOutbox
from .request import ApprovalRequest, ChatHost, ChatRequest, await_verdict
from .thread import ChatThread, ChatTurn


class ChatRunner:
    """The request of a chat that runs now, and the question that it waits for.

    Attributes:
        run: The request that runs; None where there is none.
        question: The tool call that a person decides about.
    """

    def __init__(
        self,
        turns: ChatThread,
        host: ChatHost,
        out: ChatOutbox,
        put: Callable[[object], None],
        settle: Callable[[], None],
    ) -> None:
        self.run: ChatRequest | None = None
        self.question: ApprovalRequest | None = None
        self._turns, self._host, self._out = turns, host, out
        self._put, self._settle = put, settle

    def start(
        self,
        user: ChatTurn,
        open_: OpenStream,
        extends: ChatTurn | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            user: The question's turn.
            open_: Loads the model and opens the stream; called on the reader's thread.
            extends: The answer that the new one replaces, since it begins with it.
        """
        turn = self._turns.add(user, "assistant", "")
        turn.busy = True
        run = self.run = ChatRequest(turn, Fold(self._host.name), extends)
        self._out.path(self._turns, user.parent)
        self._out.phase(START)
        start_reading("llm-chat-reader", run, open_, self._put, self._host.window)

    def stop(self) -> None:
        """Stop the answer that is being written; its text so far stays."""
        run = self.run
        if run is None:
            return
        run.stopping = True
        if run.stream is not None:
            run.stream.cancel("interrupted")
            self._out.phase(STOPPING)
        else:
            # The model is being loaded, which goes on by itself; only the request is dropped.
            self._end(run, None, None)

    def decide(self, call: ToolCall, arguments: object) -> object:
        """Whether this call may be made. Called on the reader's thread."""
        run = self.run
        return "the turn is over" if run is None else await_verdict(run, call, arguments, self._put)

    def ask(self, question: ApprovalRequest) -> None:
        """Show a question about a tool call."""
        if question.run is self.run:
            self.question = question
            self._out.add("ask", **question.shown())
            self._out.phase(Phase("ask", f"May {question.call.name} be called?"))

    def answer_question(self, call: str, yes: bool, arguments: object) -> None:
        """Take a person's decision.

        Args:
            call: The id of the call.
            yes: Whether it may run.
            arguments: Its arguments as JSON text, where the person could edit them.
        """
        question = self.question
        if question is None or question.call.id != call:
            return
        verdict: object = yes
        if yes and isinstance(arguments, str):
            try:
                verdict = json.loads(arguments)
            except ValueError as error:
                self._out.notice(f"These arguments are not JSON: {error}")
                return
            if verdict == question.arguments:
                verdict = True
        self.question = None
        self._out.add("asked", call=call)
        question.answer.put(verdict)

    def update(self, update: StreamUpdate[ChatRequest]) -> None:
        """Take what the reader thread got."""
        run = update.run
        if update.opened is not None:
            run.stream = update.opened
            if run.stopping:
                run.stream.cancel("interrupted")
        if run is not self.run:
            return
        if update.what is not None:
            run.add(update.what)
            if isinstance(update.what, ToolDone):
                run.turn.trace = (*run.turn.trace, update.what.record)
                self._out.add("tools", id=run.turn.id, html=run.turn.ending()["tools"])
            phase = phase_of(update.what, self._host.name)
            if phase is not None and not run.stopping:
                self._out.phase(phase)
        if update.ended:
            run.turn.messages = update.added
            self._end(run, update.reply, update.error, update.window)

    def show_text(self) -> None:
        """Send the pages the text that came since the last call."""
        run = self.run
        if run is None:
            return
        turn, reasoning, answer = run.turn, run.text("reasoning"), run.text("answer")
        self._out.patch(turn.id, "reasoning", turn.reasoning.update(reasoning))
        self._out.patch(turn.id, "answer", turn.answer.update(answer), answer[len(turn.text) :])
        turn.text = answer
        if run.count and not self._out.empty:
            self._out.add("live", n=run.count, tps=round(run.speed, 1))

    def _end(
        self,
        run: ChatRequest,
        reply: Reply | None,
        error: BaseException | None,
        window: int | None = None,
    ) -> None:
        turn, self.run = run.turn, None
        self._forget_question()
        reply = reply or run.fold.reply()
        empty = not (reply.text or reply.reasoning or reply.calls or turn.trace)
        turn.busy = False
        if error is not None and not run.stopping:
            turn.error = describe(error)
            self._out.notice(turn.error)
        if empty and (turn.error or run.stopping):
            self._withdraw(turn)
        else:
            self._turns.at = datetime.now(UTC).isoformat(timespec="seconds")
            self._finish(turn, reply, run.stopping, run.extends)
            self._measure(reply, window)
            self._host.ledger.add(throughput.entry(measured(reply), "chat"), reply)
        self._out.phase(IDLE)
        self._settle()

    def _finish(
        self, turn: ChatTurn, reply: Reply, stopped: bool, extended: ChatTurn | None
    ) -> None:
        turn.reply = reply
        turn.note = NOTES.get("interrupted" if stopped else reply.finish_reason or "", "")
        self._out.patch(turn.id, "reasoning", turn.reasoning.settle(reply.reasoning))
        self._out.patch(turn.id, "answer", turn.answer.settle(reply.text))
        # The page has the text already, but for a stop string that was taken off its end.
        text = {} if turn.text == reply.text else {"text": reply.text}
        turn.text = reply.text
        self._out.add("done", id=turn.id, **text, **turn.ending())
        if extended is not None:
            self._turns.remove(extended)
            self._out.path(self._turns, turn.parent)

    def _measure(self, reply: Reply, window: int | None) -> None:
        if window and reply.usage.total:
            self._out.state("context", used=reply.usage.total, size=window)

    def _withdraw(self, turn: ChatTurn) -> None:
        """No text came: put the question back into the input and remove its turn."""
        user = turn.parent
        self._turns.remove(turn)
        if user is None:
            return
        if user.children:
            self._out.path(self._turns, user)
            return
        self._out.add("draft", text=user.text)
        above = user.parent
        self._turns.remove(user)
        self._out.path(self._turns, above)

    def _forget_question(self) -> None:
        if self.question is not None:
            self._out.add("asked", call=self.question.call.id)
            self.question = None
