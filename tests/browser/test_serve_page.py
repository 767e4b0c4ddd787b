"""The chat page of a server, in a real browser: a script answers."""

import pytest
from playwright.sync_api import Browser, Page, expect

from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

pytestmark = pytest.mark.browser


@pytest.fixture
def page(browser: Browser):
    context = browser.new_context()
    page = context.new_page()
    page.faults = []
    page.on("pageerror", lambda e: page.faults.append(str(e)))
    page.on("console", lambda m: page.faults.append(m.text) if m.type == "error" else None)
    yield page
    context.close()


def ask(page: Page, text: str) -> None:
    page.get_by_label("Message").fill(text)
    page.get_by_role("button", name="Send").click()


def test_a_person_chats_on_the_page(page: Page) -> None:
    script = Scripted(["Hello <b>you</b>.", "You said hi."], model="fake")
    server = LLM(script).serve()
    try:
        page.goto(server.page)
        expect(page.get_by_text("fake")).to_be_visible()
        ask(page, "hi <script>alert(1)</script>")
        expect(page.get_by_text("Hello <b>you</b>.")).to_be_visible()
        expect(page.get_by_role("button", name="Stop")).to_be_disabled()
        ask(page, "what did I say?")
        expect(page.get_by_text("You said hi.")).to_be_visible()
        assert [m.role for m in script.requests[-1].messages] == ["user", "assistant", "user"]
        page.get_by_role("button", name="New chat").click()
        expect(page.get_by_text("You said hi.")).to_have_count(0)
        assert page.faults == []
    finally:
        server.stop()


def test_an_answer_is_stopped_and_the_slot_is_free(page: Page) -> None:
    server = LLM(Scripted([["word "] * 5000, "after"], delay=0.02, model="fake")).serve()
    try:
        page.goto(server.page)
        ask(page, "go on")
        expect(page.get_by_text("word word").first).to_be_visible()
        page.get_by_role("button", name="Stop").click()
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
        ask(page, "again")
        expect(page.get_by_text("after")).to_be_visible()
        assert page.faults == []
    finally:
        server.stop()


def test_without_its_token_the_page_says_what_is_missing(page: Page) -> None:
    server = LLM(Scripted(["secret"], model="fake")).serve()
    try:
        page.goto(server.page.split("#")[0])
        ask(page, "hi")
        expect(page.get_by_role("status")).to_contain_text("token")
        expect(page.get_by_text("secret")).to_have_count(0)
    finally:
        server.stop()
