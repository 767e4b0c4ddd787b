"""Native tool calls put together from the pieces of a stream.

Servers number pieces by index, by id, by both, or not at all. A piece begins a call if its index is
new, or if it has an id of its own where the call of its index has another one. Calls are numbered
by their order, from 0.
"""

import json
from dataclasses import dataclass, field

from llm_magic.events import CallDelta, CallDone, Token, ToolCall

from .items import CallPiece


@dataclass(slots=True)
class _Call:
    number: int
    index: int
    id: str | None
    name: str = ""
    arguments: str = ""
    told: bool = False  # whether its first event is out
    waiting: list[Token] = field(default_factory=list)

    @property
    def known_id(self) -> str:
        return self.id or f"call_{self.number}"


class Assembly:
    """The calls of one answer. Feed it every piece, then call `finish` once."""

    def __init__(self) -> None:
        self._calls: list[_Call] = []

    @property
    def any(self) -> bool:
        """Whether there is a call with a name."""
        return any(call.name for call in self._calls)

    def push(self, piece: CallPiece) -> tuple[CallDelta, ...]:
        """The events of a piece: none while the name of the call is not known."""
        call = self._of(piece)
        if piece.id:
            call.id = call.id or piece.id
        if piece.name and piece.name != call.name and not call.told:
            call.name += piece.name
        call.arguments += piece.arguments
        call.waiting += piece.tokens
        if call.told:
            return (CallDelta(call.number, None, None, piece.arguments, self._tokens(call)),)
        # The name may still go on where neither an id nor an argument has come with it.
        if not call.name or not (piece.arguments or call.id):
            return ()
        return (self._begin(call),)

    def finish(self) -> tuple[CallDelta | CallDone, ...]:
        """The ends of all calls, in order; a call without a name is none."""
        out: list[CallDelta | CallDone] = []
        named = [call for call in self._calls if call.name]
        for call in named:
            if not call.told:
                out.append(self._begin(call))
            arguments = call.arguments.strip() or "{}"
            out.append(CallDone(call.number, ToolCall(call.known_id, call.name, arguments)))
        self._calls = []
        return tuple(out)

    def _begin(self, call: _Call) -> CallDelta:
        call.told = True
        if call.id is None:
            call.id = call.known_id
        tokens = self._tokens(call)
        return CallDelta(call.number, call.id, call.name, call.arguments, tokens)

    def _tokens(self, call: _Call) -> tuple[Token, ...]:
        tokens, call.waiting = tuple(call.waiting), []
        return tokens

    def _of(self, piece: CallPiece) -> _Call:
        """The call that a piece belongs to, which may be a new one."""
        # Of several calls that share an index, the last one goes on.
        same = [call for call in self._calls if call.index == piece.index]
        found = same[-1] if same else None
        if found is None or self._another(found, piece):
            found = _Call(len(self._calls), piece.index, piece.id)
            self._calls.append(found)
        return found

    def _another(self, call: _Call, piece: CallPiece) -> bool:
        """Whether a piece begins a call behind one with its index."""
        if piece.id and call.id and piece.id != call.id:
            return True
        # Without ids: a whole call behind another whole one.
        whole = _is_object(call.arguments) and _is_object(piece.arguments)
        return bool(not piece.id and piece.name and whole)


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(json.loads(arguments), dict)
    except ValueError:
        return False
