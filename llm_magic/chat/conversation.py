"""A conversation with a model: its history, the model that answers, the tools that it may call.

`Conversation.send` returns one Stream for each turn. The history holds whole exchanges only: a
question with everything that answers it. It is the current path of a tree of turns (`thread.py`),
so an edited exchange stays as another version. The chat widget works on the same tree.
"""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from ..errors import RequestError
from ..events import Message, as_messages
from .exchanges import exchanges, to_openai
from .reply import Reply
from .stream import Stream, drained
from .thread import Thread, ThreadTurn
from .tools.definition import Tool, as_tools
from .tools.execution import Approve
from .turn import Rules, Settle, Turn


class Speaker(Protocol):
    """What a conversation needs of a model; llm.LLM is one."""

    @property
    def model(self) -> str: ...

    def stream(self, prompt: Any, **options: Any) -> Stream: ...


@dataclass(frozen=True, slots=True)
class Exchange:
    """A question and all that answered it.

    Args:
        id: Of the exchange in its conversation; versions of one exchange share it.
        messages: The question first.
        reply: The answer with all that was measured; None for imported ones.
        cell: The notebook cell that asked, if one did.
    """

    id: int
    messages: tuple[Message, ...]
    reply: Reply | None = None
    cell: str | None = None

    @property
    def question(self) -> Message:
        return self.messages[0]


class Conversation:
    """A conversation with a model over many turns.

    One turn at a time; all other methods may be called from any thread.

    Args:
        llm: The model that answers.
        system: The system prompt.
        tools: Functions that the model may call, see `llm_magic.tool`. They run in this process,
            between two rounds of the model.
        max_steps: Rounds of calls in one turn; then the model must answer in words.
        approve: Asked before each call, with the ToolCall and its parsed arguments. True runs the
            call, a dict runs it with these arguments, everything else refuses it (a text is the
            reason).
        timeout: Seconds for one call.
        options: Options of every turn, as for `LLM.chat`.

    Raises:
        RequestError: A tool has no function.

    >>> from llm_magic.llm import LLM
    >>> from llm_magic.providers.scripted import Scripted
    >>> chat = Conversation(LLM(Scripted(["Hello, Ada."])))
    >>> chat.ask("I am Ada.").text
    'Hello, Ada.'
    >>> [message.role for message in chat.messages]
    ['user', 'assistant']
    """

    def __init__(
        self,
        llm: Speaker,
        system: str | None = None,
        tools: Sequence[object] = (),
        max_steps: int = 8,
        approve: Approve | None = None,
        timeout: float | None = None,
        **options: Any,
    ) -> None:
        self.llm = llm
        self.system = system
        self.rules = Rules(_runnable(tools), max_steps, approve, timeout)
        self.options = options
        self.thread: Thread[Any] = Thread(ThreadTurn)
        self._lock = threading.RLock()
        self._turn: Turn | None = None
        self._last: Reply | None = None

    def __repr__(self) -> str:
        n = len(self.exchanges)
        return f"<Conversation with {self.llm.model}: {n} exchange{'s' * (n != 1)}>"

    # ------------------------------------------------------------------ what was said

    @property
    def messages(self) -> tuple[Message, ...]:
        """Everything so far, the system prompt included, as the model will read it."""
        return (*self._head(), *(m for e in self.exchanges for m in e.messages))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The answered questions of the current path, oldest first."""
        with self._lock:
            return tuple(_exchange(*pair) for pair in self.thread.exchanges())

    @property
    def last(self) -> Reply | None:
        """The latest reply with all that was measured, also where nothing of it was kept."""
        return self._last

    def _head(self) -> tuple[Message, ...]:
        return (Message("system", self.system),) if self.system else ()

    # ------------------------------------------------------------------ saying something

    def send(
        self,
        text: str | Message,
        *,
        replace: int | None = None,
        cell: str | None = None,
        **options: object,
    ) -> Turn:
        """Say something; the Stream yields the answer's events, its `reply` is the Reply.

        replace: id of an exchange that this one takes the place of; the model then sees only what
        came before it. cell: the same by the name of whoever asks: what the same cell said before
        is replaced. options: of this turn, over those of the conversation.

        The history changes when the turn ends, and not at all where nothing was answered.
        """
        with self._lock:
            return self._begin(text, self._place(replace, cell), False, cell, options)

    def _begin(
        self,
        text: str | Message,
        old: ThreadTurn | None,
        branch: bool,
        cell: str | None,
        options: Mapping[str, object],
    ) -> Turn:
        """Start a turn in the place of the question `old`; branch: the old version is kept."""
        self._free()
        question = text if isinstance(text, Message) else Message("user", text)
        parent = self.thread.last() if old is None else old.parent
        before = () if parent is self.thread.root else self.thread.messages(parent)

        def settle(added: tuple[Message, ...], reply: Reply) -> None:
            with self._lock:
                self._last = reply
                if not added:
                    return
                new = self.thread.exchange(parent, question, added, reply, cell)
                if old is not None and branch:
                    new.number = old.number
                elif old is not None:
                    self.thread.supersede(old, new)

        self._turn = self.answer((*before, question), settle, **options)
        return self._turn

    def answer(self, messages: Sequence[Message], settle: Settle, **options: object) -> Turn:
        """Answer these messages as the conversation would; its history does not change.

        Args:
            messages: What the model reads after the system prompt.
            settle: Called once at the end with the messages that the turn adds, and its reply.
            options: Of this turn, over those of the conversation.
        """
        settings = {**self.options, **options}
        rules = self.rules
        if "tools" in settings:
            rules = _with_tools(rules, settings.pop("tools"))
        told = (*self._head(), *messages)
        return Turn(told, self._opener(settings, rules), rules, settle)

    def ask(self, text: str | Message, **options: Any) -> Reply:
        """Say something and wait for the whole Reply. Options as for `send`."""
        return drained(self.send(text, **options))

    def _opener(self, settings: Mapping[str, object], rules: Rules) -> Callable[..., Stream]:
        def open(messages: tuple[Message, ...], first: bool, may_call: bool) -> Stream:
            options = dict(settings)
            if not first:
                options.pop("given", None)  # the answer began with them in the first round
            if rules.tools:
                options["tools"] = [tool.spec for tool in rules.tools]
                # A call that was asked for by name must not be asked for again after it was made.
                wanted = options.get("tool_choice", "auto") if first else "auto"
                options["tool_choice"] = wanted if may_call else "none"
            return self.llm.stream(messages, **options)

        return open

    def _place(self, id: int | None, cell: str | None) -> ThreadTurn | None:
        """The question that is asked anew, by its id or the cell that asks; None for a new one."""
        if id is not None:
            return self._question(id)
        asked = (question for question, _ in self.thread.exchanges() if question.cell == cell)
        return next(asked, None) if cell is not None else None

    def _question(self, id: int) -> ThreadTurn:
        pairs = self.thread.exchanges()
        for question, _ in pairs:
            if question.number == id:
                return question  # type: ignore[no-any-return]
        known = [question.number for question, _ in pairs]
        raise RequestError(f"no exchange {id} in this conversation; there are {known}")

    def _free(self) -> None:
        """Make sure that no turn is going on. One that nobody reads any more is closed."""
        turn = self._turn
        if turn is None or turn.ended:
            return
        if turn.reading:
            raise RequestError("an answer is still being written; wait for it or cancel it")
        turn.close()

    # ------------------------------------------------------------------ changing what was said

    def cancel(self) -> None:
        """Stop the answer that is being written, if any. What has come stays."""
        turn = self._turn
        if turn is not None:
            turn.cancel()

    def undo(self) -> Exchange | None:
        """Forget the last exchange; an earlier version of it is current again, if there is one.

        Returns:
            The exchange that was forgotten; None when there is none.
        """
        with self._lock:
            self._free()
            pairs = self.thread.exchanges()
            if not pairs:
                return None
            self.thread.remove(pairs[-1][0])
            return _exchange(*pairs[-1])

    def reset(self) -> None:
        """Forget everything but the system prompt."""
        with self._lock:
            self._free()
            self.thread.clear()
            self._last = None

    def edit(self, id: int, text: str | Message, **options: object) -> Turn:
        """Ask something else in the place of exchange `id`, whose old version is kept.

        The history ends with the new exchange once it is answered. `choose` and `undo` bring the
        old version back, with all that came after it.

        >>> from llm_magic.llm import LLM
        >>> from llm_magic.providers.scripted import Scripted
        >>> chat = Conversation(LLM(Scripted(["a", "b"])))
        >>> reply = chat.ask("1")
        >>> events = list(chat.edit(1, "one"))
        >>> [exchange.question.text for exchange in chat.versions(1)]
        ['1', 'one']
        >>> chat.choose(1, 0)
        >>> [message.text for message in chat.messages]
        ['1', 'a']
        """
        with self._lock:
            old = self._question(id)
            return self._begin(text, old, True, old.cell, options)

    def versions(self, id: int) -> tuple[Exchange, ...]:
        """All answered versions of exchange `id`, oldest first."""
        with self._lock:
            return tuple(_exchange(q, a) for q, a in _answered(self._question(id)))

    def choose(self, id: int, version: int) -> None:
        """Make a version of exchange `id` the current one, with all that came after it.

        Args:
            id: Of an exchange of the history.
            version: Its position in `versions`.

        Raises:
            RequestError: There is no such exchange or version.
        """
        with self._lock:
            self._free()
            question = self._question(id)
            found = _answered(question)
            if not 0 <= version < len(found):
                raise RequestError(f"exchange {id} has {len(found)} versions, counted from 0")
            self.thread.choose(question, question.versions.index(found[version][0]))

    def regenerate(self, **options: object) -> Turn:
        """Answer the last question once more; the new answer takes the place of the old one."""
        with self._lock:
            pairs = self.thread.exchanges()
            if not pairs:
                raise RequestError("there is nothing to answer once more")
            last, _ = pairs[-1]
            return self._begin(last.history[0], last, False, last.cell, options)

    def fork(self, upto: int | None = None) -> "Conversation":
        """A conversation of its own with the same past, up to and including exchange `upto`."""
        with self._lock:
            other = Conversation(self.llm, self.system, **self.options)
            other.rules = self.rules
            other.thread = self.thread.copy(None if upto is None else self._question(upto))
            pairs = other.thread.exchanges()
            other._last = pairs[-1][1].reply if pairs else None
            return other

    # ------------------------------------------------------------------ in and out

    def to_openai(self) -> list[dict[str, object]]:
        """The messages as plain JSON in OpenAI's form."""
        return to_openai(self.messages)

    def load(self, messages: Sequence[Message | Mapping[str, object]]) -> None:
        """Replace everything by these messages (as `to_openai` gives them).

        A leading system message becomes the system prompt. RequestError says what cannot be used;
        nothing is changed then.
        """
        try:
            system, groups = exchanges(as_messages(messages))
        except ValueError as e:
            raise RequestError(str(e)) from None
        for group in groups:
            if group[0].role != "user":
                raise RequestError(f"the history must begin with a user, not a {group[0].role!r}")
        if groups and groups[-1][-1].role != "assistant":
            raise RequestError("the history must end with an answer; send() asks the next question")
        with self._lock:
            self._free()
            self.system = "\n\n".join(m.text for m in system) or None
            self.thread.clear()
            for question, *added in groups:
                self.thread.exchange(self.thread.last(), question, tuple(added))
            self._last = None


class Conversations:
    """Conversations by name, for callers that hold several (the cells of a notebook)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._named: dict[str, Conversation] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(tuple(self._named))

    def __len__(self) -> int:
        return len(self._named)

    def __contains__(self, name: object) -> bool:
        return name in self._named

    def __getitem__(self, name: str) -> Conversation:
        try:
            return self._named[name]
        except KeyError:
            known = ", ".join(map(repr, self._named)) or "none"
            raise RequestError(f"no conversation {name!r}; there are {known}") from None

    def open(self, name: str, make: Callable[[], Conversation], new: bool = False) -> Conversation:
        """The conversation of that name, made where there is none; new: made in any case."""
        with self._lock:
            if new or name not in self._named:
                self._named[name] = make()
            return self._named[name]

    def remove(self, name: str) -> None:
        """Forget a conversation. RequestError when there is none of that name."""
        with self._lock:
            self[name].cancel()
            del self._named[name]


def _exchange(question: ThreadTurn, answer: ThreadTurn) -> Exchange:
    messages = (*question.history, *answer.history)
    return Exchange(question.number, messages, answer.reply, question.cell)


def _answered(question: ThreadTurn) -> list[tuple[ThreadTurn, ThreadTurn]]:
    """The answered versions of a question, each with its answer."""
    return [(turn, turn.children[turn.active]) for turn in question.versions if turn.children]


def _runnable(things: Sequence[object]) -> tuple[Tool, ...]:
    tools = as_tools(things)
    for tool in tools:
        if tool.function is None:
            raise RequestError(
                f"tool {tool.name!r} is only described: give Tool(spec, function), or the function"
            )
    return tools


def _with_tools(rules: Rules, things: Sequence[object]) -> Rules:
    return replace(rules, tools=_runnable(things))
