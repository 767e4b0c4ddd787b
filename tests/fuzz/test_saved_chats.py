"""Saved chats that are damaged or hostile: reading one raises ValueError only, and whatever is
accepted can be shown, saved and read again, as safe HTML.
"""

import copy
import json
import random
from typing import Any

import pytest
from support.fuzz import rounds
from support.html_audit import XSS, audit

from llm_magic.chat.reply import Reply
from llm_magic.events import Token, ToolCall, ToolRecord, Top
from llm_magic.ui.views import html
from llm_magic.ui.widgets.chat import resume, transcript
from llm_magic.ui.widgets.chat.resume import SavedConversation
from llm_magic.ui.widgets.chat.thread import ChatThread

pytestmark = pytest.mark.timeout(300)

VALUES = (
    *(None, True, False, 0, 1, -1, 1.5, 10**30, float("nan"), float("inf"), "", "a", [], {}),
    *(
        [[]],
        [{}],
        {"a": []},
        "\ud800",
        "\x00\x1b[31m",
        "user",
        "assistant",
        "2026-01-01",
        "x" * 999,
    ),
    *XSS,
)
KEYS = ("role", "content", "note", "reply", "others", "place", "version", "turns", "text", "x")


def whole() -> Any:
    """A saved chat with everything that one can hold."""
    thread = ChatThread()
    question = thread.add(thread.root, "user", "Who?")
    tokens = (Token(1, b"I", -0.1, 1, (Top(2, b"We", -2.0),)), Token(3, b" am.", -1.0, 2))
    record = ToolRecord(0, ToolCall("c", "add", '{"a": 1}'), {"a": 1}, "auto", "ok", 0.1, "2")
    replies = (
        Reply("I am.", "Hm.", tokens=tokens, kinds=("answer",) * 2, model="m"),
        Reply("**We** are.", finish_reason="length"),
    )
    for reply in replies:
        answer = thread.answer(question, reply, "stopped")
    answer.trace = (record,)
    thread.answer(thread.add(answer, "user", "Why?"), Reply("Because."))
    return json.loads(json.dumps(thread.to_dict() | {"model": "m", "settings": {"top_k": 3}}))


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) inside of a value."""
    found: list[tuple[Any, Any]] = []
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        found.append((value, key))
        if isinstance(item, dict | list):
            found += places(item)
    return found


def damage(data: Any, rng: random.Random) -> Any:
    data = copy.deepcopy(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        here = places(data)
        if not here:
            break
        container, key = rng.choice(here)
        match rng.randrange(5):
            case 0:
                del container[key]
            case 1 if isinstance(container, dict):
                container[rng.choice(KEYS)] = container[key]
            case 2:
                other, place = rng.choice(here)
                container[key] = copy.deepcopy(other[place])
            case _:
                container[key] = copy.deepcopy(rng.choice(VALUES))
    return data


def check(data: Any) -> bool:
    """Whether the data was accepted."""
    try:
        found = SavedConversation.read(data, html.markdown)
    except ValueError:
        return False
    json.dumps(found.op(), allow_nan=False).encode()
    pictures = [turn.picture() for turn in found.turns.path()]
    json.dumps(pictures).encode()
    shown = transcript.bundle(found.turns, found.saved.model)
    page = shown["text/html"].replace("<b>", "").replace("</b>", "")
    faults = audit(page.replace("<small>", "").replace("</small>", ""))
    assert faults == []
    if transcript.VENDOR in shown:
        kept = json.loads(json.dumps(shown[transcript.VENDOR]))
        assert SavedConversation.read(kept, html.markdown).texts == found.texts
    return True


def test_a_damaged_chat_is_an_error_or_a_chat() -> None:
    good, accepted = whole(), 0
    assert check(good)
    for number, rng in rounds("saved chats"):
        data = damage(good, rng)
        try:
            accepted += check(data)
        except Exception as error:
            raise AssertionError(f"case {number}: {data!r}") from error
    assert accepted


def test_a_damaged_notebook_offers_a_chat_or_nothing() -> None:
    output = {
        "output_type": "display_data",
        "data": {transcript.VENDOR: whole(), "text/html": ""},
        "metadata": {"llm_magic": {"display": "llm-chat-a", "revision": 1}},
    }
    cell = {"cell_type": "code", "id": "a", "source": "chat", "outputs": [output]}
    good, found = {"nbformat": 4, "nbformat_minor": 5, "cells": [cell]}, 0
    for number, rng in rounds("saved notebooks"):
        data = damage(good, rng)
        try:
            saved = resume.choose(data, "a", "chat", None, 0)
            found += saved is not None and check(saved)
        except Exception as error:
            raise AssertionError(f"case {number}: {data!r}") from error
    assert found
