"""`%llm serve`: what it shows, what the saved notebook holds of it, and how it ends."""

from collections.abc import Callable

import httpx
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.html_audit import audit, shown
from support.shells import command

from llm_magic.errors import RequestError
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.magics import extension, serve_command


@pytest.fixture
def script(as_default: Callable[[Scripted], None]):
    scripted = Scripted(["one", "two", "three"], model="fake")
    as_default(scripted)
    yield scripted
    serve_command.stop_all()


def answers(url: str, token: str) -> httpx.Response:
    body = {"model": "fake", "messages": [{"role": "user", "content": "hi"}]}
    head = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx.post(f"{url}/chat/completions", json=body, headers=head, trust_env=False)


def test_the_view_says_what_a_client_needs(shell: InteractiveShell, script: Scripted) -> None:
    view = shell.run_line_magic("llm", "serve")
    data = view._repr_mimebundle_()
    assert audit(data["text/html"]) == []
    text = shown(data["text/html"])
    for piece in ("fake", view.url, view.token, view.page, "%llm serve --stop"):
        assert piece in text
        assert piece in data["text/plain"]
    assert view.url.startswith("http://127.0.0.1:")
    assert view.url.endswith("/v1")
    assert answers(view.url, "wrong").status_code == 401
    reply = answers(view.url, view.token).json()
    assert reply["choices"][0]["message"]["content"] == "one"
    page = httpx.get(view.page.split("#")[0], trust_env=False)
    assert page.status_code == 200
    assert view.token not in page.text
    view.stop()
    assert not view.running
    with pytest.raises(httpx.ConnectError):
        answers(view.url, view.token)


def test_notebooks_for_documentation_hold_no_port_and_no_token(
    shell: InteractiveShell, script: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    shell.run_line_magic("config", "LLMMagics.docs_mode = True")
    try:
        view = shell.run_line_magic("llm", "serve")
        saved = str(view._repr_mimebundle_())
        assert view.token not in saved
        assert view.url not in saved
        assert "TOKEN" in saved
    finally:
        shell.run_line_magic("config", "LLMMagics.docs_mode = False")


def test_stop_ends_every_server_of_the_notebook(shell: InteractiveShell, script: Scripted) -> None:
    assert "nothing ran" in command(shell, "serve --stop")["text/plain"]
    views = [shell.run_line_magic("llm", "serve") for _ in range(2)]
    assert all(view.running for view in views)
    assert "stopped 2 servers" in command(shell, "serve --stop")["text/plain"]
    assert not any(view.running for view in views)


def test_the_server_stops_with_the_extension(shell: InteractiveShell, script: Scripted) -> None:
    view = shell.run_line_magic("llm", "serve --no-token")
    assert view.token == ""
    assert "none is needed" in shown(view._repr_mimebundle_()["text/html"])
    assert answers(view.url, "").status_code == 200
    extension.unload_ipython_extension(shell)
    try:
        assert not view.running
    finally:
        extension.load_ipython_extension(shell)


@pytest.mark.parametrize(
    ("line", "error", "message"),
    [
        ("serve --port -1", RequestError, "port is -1"),
        ("serve --port 70000", RequestError, "port is 70000"),
        ("serve --port x", UsageError, "port"),
        ("serve --host 0.0.0.0 --no-token", RequestError, "token"),
        ("serve --hots 0.0.0.0", UsageError, "--host"),
        ("serve --origin nonsense", RequestError, "origin"),
    ],
)
def test_wrong_options_start_nothing(
    line: str, error: type[Exception], message: str, shell: InteractiveShell, script: Scripted
) -> None:
    with pytest.raises(error, match=message):
        command(shell, line)
    assert serve_command.stop_all() == 0


def test_an_embedding_model_serves_vectors_and_says_what_it_cannot(
    shell: InteractiveShell, as_default: Callable[[Scripted], None]
) -> None:
    class Vectors(Scripted):
        capabilities = frozenset({"tokenize", "embed"})

        def embed(self, texts, pooling=None, truncate=False):
            import numpy as np

            return [np.array([len(text), 1.0], np.float32) for text in texts]

    as_default(Vectors([], model="fake"))
    view = shell.run_line_magic("llm", "serve")
    try:
        head = {"Authorization": f"Bearer {view.token}"}
        body = {"model": "fake", "input": ["abc"]}
        found = httpx.post(f"{view.url}/embeddings", json=body, headers=head, trust_env=False)
        assert len(found.json()["data"][0]["embedding"]) == 2
        refused = answers(view.url, view.token)
        assert refused.status_code in (400, 501)
        assert "chat" in refused.json()["error"]["message"]
    finally:
        view.stop()
