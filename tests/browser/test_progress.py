"""Bars: download, load, compile and prefill of a real model, in a cell and in a chat, then gone.

The model comes from a slow server of this machine into an empty cache: so each of the four happens.
"""

import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from .chatpage import ChatPage
from .harness import Jupyter, Notebook

pytestmark = [pytest.mark.browser, pytest.mark.model, pytest.mark.timeout(300)]

SECONDS = 2.5  # that the download takes
# All bars that were ever in the page, with what they said: [label, text, value, inside a chat].
WATCH = """() => {
    window.bars = [];
    const look = () => {
        for (const bar of document.querySelectorAll("progress:not([hidden])")) {
            const said = bar.getAttribute("aria-valuetext") ?? "";
            const seen = [bar.getAttribute("aria-label"), said, bar.getAttribute("value"),
                          Boolean(bar.closest(".llmc"))];
            if (JSON.stringify(bars.at(-1)) !== JSON.stringify(seen)) bars.push(seen);
        }
    };
    new MutationObserver(look).observe(document.body,
        { subtree: true, childList: true, attributes: true, characterData: true });
}"""


@pytest.fixture(scope="module")
def address(smollm2_path: Path) -> Iterator[str]:
    """Where the model can be fetched, slowly."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            data = smollm2_path.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            step = len(data) // 50 + 1
            for at in range(0, len(data), step):
                self.wfile.write(data[at : at + step])
                time.sleep(SECONDS / 50)

        def log_message(self, *_: Any) -> None:
            """Not in the output of the tests."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/slow-model.gguf"
    server.shutdown()


def cells(address: str, cache: Path) -> list[str]:
    return [
        f"import os\nos.environ['LLM_MAGIC_CACHE'] = {str(cache)!r}\n%load_ext llm_magic",
        f"%%llm -m {address} -n 4 -t 0\n" + "one more word of a long text, " * 480,
        f"import llm_magic\nchat = llm_magic.Chat({address!r}, max_tokens=4)\nchat",
    ]


@pytest.fixture
def opened(
    lab: Jupyter, browser: Browser, address: str, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Notebook]:
    name = f"{request.node.name}.ipynb"
    lab.write(name, cells(address, tmp_path))
    notebook = lab.open(browser, name)
    notebook.run(0)
    notebook.page.evaluate(WATCH)
    yield notebook
    assert notebook.errors == []
    notebook.close()
    lab.stop_kernels()


def test_a_cell_shows_each_kind_of_work_as_a_bar(opened: Notebook) -> None:
    opened.run(1)
    bars = opened.page.evaluate("bars")
    labels = [label for label, *_ in bars]
    for words in (r"downloading: \d+ MB of 9\d MB", r"(loading|preparing)", "compiling",
                  r"reading the prompt: [\d,]+ of \d,\d\d\d tokens"):  # fmt: skip
        assert any(re.match(words, label) for label in labels), (words, labels)
    for kind in ("downloading", "reading the prompt"):
        values = [float(v) for label, _, v, _ in bars if label.startswith(kind)]
        assert len(set(values)) >= 3
        assert values == sorted(values)
        assert 0 <= values[0] < values[-1] <= 100
    expect(opened.cell(1).get_by_role("progressbar")).to_have_count(0)
    saved = opened.save().cells[1].outputs
    assert len(saved) == 1
    assert "progress" not in str(saved[0].data)


def test_a_chat_shows_each_kind_of_work_as_a_bar(opened: Notebook) -> None:
    opened.run(2)
    chat = ChatPage(opened, 2)
    chat.send("one more word of a long text, " * 480)
    words = chat.root.get_by_role("status")
    expect(words).to_contain_text("Downloading")
    expect(chat.root.locator(".llmc-amount")).to_have_text(re.compile(r"\d+ MB of 9\d MB"))
    expect(words).to_contain_text("prompt tokens", timeout=60_000)
    chat.idle()
    bars = opened.page.evaluate("bars")
    for kind, amount in (
        ("Downloading", r"\d+ MB of 9\d MB"), ("Compiling", ""), ("(Loading|Preparing)", r".*"),
        ("Reading", r"[\d,]+ of \d,\d\d\d"),
    ):  # fmt: skip
        assert any(
            inside and re.match(kind, label) and re.fullmatch(amount, said)
            for label, said, _, inside in bars
        ), (kind, bars)
    expect(chat.root.get_by_role("progressbar")).to_have_count(0)
    saved = opened.save().cells[2].outputs
    assert len(saved) == 2
    assert "Reading" not in str(saved[1].data["text/html"])
    assert "progress" not in str(saved[1].data)
