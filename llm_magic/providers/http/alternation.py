"""Messages reshaped for servers whose chat template refuses tools or turns in a row.

A template in a server cannot be rendered here, so the server is asked once: an exchange with two
calls, one token long. It is asked before the first request that has turns which a template may
refuse; a plain question and answer never needs it.
"""

import itertools
import threading
from collections.abc import Callable, Sequence

from llm_magic.chat.parsing.syntax import SYNTAXES
from llm_magic.chat.prompts import adapt
from llm_magic.errors import ContextOverflowError, LLMError, RemoteError
from llm_magic.events import Message, ToolCall

Probe = Callable[[Sequence[Message]], None]  # sends one token's worth; raises what the server says

EXCHANGE = (
    Message("system", "Be brief."),
    Message("user", "What is the weather in Oslo and in Rome?"),
    Message("assistant", None, calls=(
        ToolCall("call00001", "weather", '{"city": "Oslo"}'),
        ToolCall("call00002", "weather", '{"city": "Rome"}'),
    )),
    Message("tool", "rain", call_id="call00001", name="weather"),
    Message("tool", "sun", call_id="call00002", name="weather"),
    Message("user", "Thanks. And tomorrow?"),
)  # fmt: skip


def reshaped(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with user and assistant in turns, and tools as text.

    A leading system message stays; later ones are the user's. Results become turns of the user
    with a label, calls a note of the assistant.

    >>> [m.role for m in reshaped([Message("user", "a"), Message("user", "b")])]
    ['user']
    """
    return adapt.alternating(adapt.tools_as_text(messages, SYNTAXES["hermes"]))


def is_plain(messages: Sequence[Message]) -> bool:
    """Whether every chat template takes the messages: user and assistant in turns, no tools."""
    rest = messages[1:] if messages and messages[0].role == "system" else messages
    roles = [message.role for message in rest]
    if any(message.calls for message in rest) or set(roles) - {"user", "assistant"}:
        return False
    return all(a != b for a, b in itertools.pairwise(roles))


class Alternation:
    """What one model's template takes; found out once, by the first request that needs it."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._lock = threading.Lock()
        self.reshapes: bool | None = None  # None: not known yet

    def fit(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """The messages as the model's template takes them."""
        if is_plain(messages):
            return tuple(messages)
        with self._lock:
            if self.reshapes is None:
                self.reshapes = self._find_out()
            return reshaped(messages) if self.reshapes else tuple(messages)

    def _find_out(self) -> bool | None:
        """None where the server did not answer: the next request asks again."""
        as_it_is = self._accepted(EXCHANGE)
        if as_it_is is not False:
            return None if as_it_is is None else False
        # Refused both ways: what comes is the server's own error.
        return self._accepted(reshaped(EXCHANGE))

    def _accepted(self, messages: Sequence[Message]) -> bool | None:
        try:
            self._probe(messages)
        except ContextOverflowError:
            return None
        except RemoteError as e:
            # Templates fail with 400 or 500; everything else says nothing about them.
            refused = e.status is not None and not e.transient and e.kind in ("request", "unknown")
            return False if refused else None
        except LLMError:
            return None
        return True
