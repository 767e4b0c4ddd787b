"""Cells and the chat widget change one model of a conversation, in the same way."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.chats import chat

from llm_magic.chat.conversation import Conversation
from llm_magic.chat.thread import Thread, ThreadTurn
from llm_magic.errors import RequestError
from llm_magic.events import Message
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.widgets.chat.widget import Chat

STEPS = st.lists(
    st.tuples(st.sampled_from(["send", "edit", "undo", "clear", "choose"]), st.integers(0, 5)),
    max_size=8,
)


def in_code(talk: Conversation, step: str, n: int, text: str) -> None:
    asked = talk.exchanges
    match step:
        case "send":
            talk.ask(text)
        case "edit" if asked:
            list(talk.edit(asked[n % len(asked)].id, text))
        case "choose" if asked:
            id = asked[n % len(asked)].id
            talk.choose(id, n % len(talk.versions(id)))
        case "undo":
            talk.undo()
        case "clear":
            talk.reset()


def on_the_page(controller: Any, step: str, n: int, text: str) -> None:
    asked = [turn for turn in controller.turns.path() if turn.role == "user"]
    turn = asked[n % len(asked)] if asked else None
    match step:
        case "send":
            controller.submit({"t": "send", "text": text})
        case "edit" if turn:
            controller.submit({"t": "edit", "id": turn.id, "text": text})
        case "choose" if turn:
            index = n % len(turn.versions)
            controller.submit({"t": "branch", "id": turn.id, "index": index})
        case "undo" | "clear":
            controller.submit({"t": step})
    assert controller.wait(10)


@settings(max_examples=20, deadline=None)
@given(STEPS)
def test_the_same_steps_in_code_and_on_the_page_give_the_same_messages(steps: Any) -> None:
    script = [f"answer {n}" for n in range(9)]
    talk = Conversation(LLM(Scripted(script)))
    controller, _ = chat(script)
    try:
        for i, (step, n) in enumerate(steps):
            in_code(talk, step, n, f"question {i}")
            on_the_page(controller, step, n, f"question {i}")
            assert talk.messages == controller.messages
    finally:
        controller.close()


def test_an_edit_keeps_the_old_version_and_what_came_after_it() -> None:
    talk = Conversation(LLM(Scripted(["a", "b", "c"])))
    talk.ask("1")
    talk.ask("2")
    list(talk.edit(1, "one"))
    assert [m.text for m in talk.messages] == ["one", "c"]
    assert [e.question.text for e in talk.versions(1)] == ["1", "one"]
    with pytest.raises(RequestError, match="exchange 1 has 2 versions"):
        talk.choose(1, 2)
    talk.choose(1, 0)
    assert [m.text for m in talk.messages] == ["1", "a", "2", "b"]
    talk.choose(1, 1)
    assert talk.undo().question.text == "one"  # type: ignore[union-attr]
    assert [m.text for m in talk.messages] == ["1", "a", "2", "b"]


def test_an_edit_that_is_not_answered_changes_nothing() -> None:
    talk = Conversation(LLM(Scripted(["a", "b", "c"])))
    talk.ask("1")
    talk.ask("2")
    stream = talk.edit(1, "one")
    stream.cancel()
    list(stream)
    assert [m.text for m in talk.messages] == ["1", "a", "2", "b"]


def test_a_replaced_exchange_is_forgotten_and_keeps_what_follows() -> None:
    thread = Thread(ThreadTurn)
    first = thread.exchange(thread.root, Message("user", "1"), (Message("assistant", "a"),))
    thread.exchange(thread.last(), Message("user", "2"), (Message("assistant", "b"),))
    new = thread.exchange(thread.root, Message("user", "one"), (Message("assistant", "c"),))
    thread.supersede(first, new)
    assert [m.text for m in thread.messages()] == ["one", "c", "2", "b"]
    assert new.versions == [new]
    assert new.number == 1


def test_a_chat_widget_has_one_conversation_for_its_life() -> None:
    widget = Chat(LLM(Scripted(["a", "b"])), system="s")
    talk = widget._host._conversation
    for text in "12":
        widget.say(text)
        assert widget.wait(10)
    assert widget._host._conversation is talk
    assert [m.text for m in talk.messages] == ["s", "1", "a", "2", "b"]
    assert [e.reply.text for e in talk.exchanges if e.reply] == ["a", "b"]
    widget.close()
