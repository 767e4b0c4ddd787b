"""Text that UTF-8 cannot carry, wherever it enters: replaced before anything shows or saves it."""

import json
from typing import Any

import pytest

from llm_magic.chat.reply import Reply
from llm_magic.errors import EngineError, ModelNotFoundError
from llm_magic.events import CallDelta, Delta, Message, Part, ToolCall, ToolRecord, as_messages
from llm_magic.ui.views import summary
from llm_magic.ui.widgets.chat.thread import ChatThread
from llm_magic.ui.widgets.shared import settings
from llm_magic.ui.widgets.shared.phases import describe
from llm_magic.utf8 import whole, whole_json

HALF = "\ud83d"
REPLACED = "\ufffd"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("plain", "plain"),
        ("\u00e9 \U0001f600", "\u00e9 \U0001f600"),
        (HALF, REPLACED),
        ("a\udc00b", "a\ufffdb"),
        ("\ud83d\ude00", "\U0001f600"),  # the two halves of one character
        ("\ude00\ud83d", "\ufffd\ufffd"),
        ("\udcff", REPLACED),  # a byte of a file name that is no text
    ],
)
def test_a_text_becomes_one_that_utf8_can_carry(text: str, shown: str) -> None:
    assert whole(text) == shown
    assert whole(shown) is shown  # nothing is copied for nothing
    assert whole_json({text: [text, {"k": text}], "n": [1, None, True]}) == {
        shown: [shown, {"k": shown}],
        "n": [1, None, True],
    }


def texts(value: Any) -> str:
    return repr(value)


CALL = ToolCall(HALF, HALF, HALF)
RECORD = ToolRecord(1, CALL, {HALF: [HALF]}, HALF, HALF, 0.0, HALF, HALF, HALF)


@pytest.mark.parametrize(
    "value",
    [
        Delta("answer", HALF), CallDelta(0, HALF, HALF, HALF), CALL, RECORD,
        Message("user", HALF, HALF, (CALL,), HALF, HALF), Message("user", (Part("text", HALF),)),
        as_messages([{"role": "user", "content": HALF}]),
        Reply(HALF, HALF, (CALL,), model=HALF, prompt=HALF, parsed={HALF: HALF}, trace=(RECORD,)),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_what_the_layers_exchange_can_be_shown(value: Any) -> None:
    shown = texts(value)
    assert "\\ud83d" not in shown
    assert REPLACED in shown


def test_a_saved_reply_of_others_can_be_shown() -> None:
    reply = Reply(HALF, HALF, (CALL,), model=HALF, prompt=HALF, parsed=[HALF], trace=(RECORD,))
    data = json.loads(json.dumps(reply.to_dict()).replace("\\ufffd", "\\ud83d"))
    assert data["text"] == HALF
    again = Reply.from_dict(data)
    assert again == reply
    json.dumps(again.to_dict(), ensure_ascii=False).encode()
    json.dumps(again._repr_mimebundle_(), ensure_ascii=False).encode()


def test_errors_settings_and_names_can_be_shown() -> None:
    for error in (EngineError(HALF), ModelNotFoundError(HALF), ValueError(HALF)):
        assert REPLACED in describe(error)
        describe(error).encode()
    str(EngineError(HALF)).encode()
    assert settings.checked("system", HALF) == REPLACED
    assert summary.model_name(f"/models/{HALF}.gguf") == REPLACED


def test_a_saved_conversation_can_be_shown() -> None:
    turns = ChatThread()
    row = {
        "role": "assistant",
        "content": HALF,
        "note": HALF,
        "reply": {"version": 1, "model": HALF},
    }
    saved = turns.load(
        {"version": 1, "turns": [{"role": "user", "content": HALF}, row], "model": HALF}
    )
    assert saved.model == REPLACED
    json.dumps(turns.to_dict(), ensure_ascii=False).encode()
    json.dumps([turn.picture() for turn in turns.path()], ensure_ascii=False).encode()
