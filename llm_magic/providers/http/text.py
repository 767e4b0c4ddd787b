"""Text and token ids of a server: tokenise, detokenise, prompts as its template renders them."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from llm_magic.errors import RemoteError, UnsupportedError
from llm_magic.events import Message, Piece
from llm_magic.provider import Request

from .discover import Server
from .fleet import Endpoint
from .logprobs import text_bytes
from .wire import message_entries, tool_entries

_MARKER = re.compile(r"<[|｜]?[^<>\s]{1,60}[|｜]?>|\[/?[A-Z_]{2,30}\]")
Ask = Callable[..., Any]  # Sender.ask


class Texts:
    """The routes of a server that turn text into ids and back.

    Args:
        ask: Sends a request.
        server: What the server is.
        model_at: The model's name at a server.
    """

    def __init__(self, ask: Ask, server: Server, model_at: Callable[[Endpoint], str]) -> None:
        self._ask, self._server, self._model_at = ask, server, model_at
        self._marks: dict[str, bool] = {}

    @property
    def known(self) -> bool:
        return self._server.dialect.text is not None

    def pieces(self, text: str, special: bool = True, start: bool = True) -> list[Piece]:
        """The tokens of a text. UnsupportedError where the server has no route for it."""
        if not text and not start:
            return []
        if self._server.dialect.text == "llama":
            rows = self._llama(text, special, start)
            pieces = [(row["id"], _bytes_of(row.get("piece"))) for row in rows]
        else:
            pieces = self._vllm(text, start)
        return [
            Piece(i, own.decode("utf-8", "replace"), own, special and self._is_mark(i, own))
            for i, own in pieces
        ]

    def ids(self, text: str, special: bool = True, start: bool = True) -> tuple[int, ...]:
        """The ids of a text."""
        return tuple(piece.id for piece in self._plain_pieces(text, special, start))

    def _plain_pieces(self, text: str, special: bool, start: bool) -> Iterator[Piece]:
        if self._server.dialect.text == "llama":
            for row in self._llama(text, special, start):
                yield Piece(row["id"], "", b"", False)
        else:
            for i, own in self._vllm(text, start):
                yield Piece(i, "", own, False)

    def text(self, ids: Sequence[int]) -> str:
        """The text of ids; texts of control tokens are part of it."""
        if not ids:
            return ""
        found = self._post("detokenize", {"tokens": list(ids)})
        text = found.get("content", found.get("prompt"))
        if not isinstance(text, str):
            raise RemoteError("the server's answer to /detokenize has no text")
        return text

    def chat(self, request: Request, messages: Sequence[Message]) -> tuple[str, tuple[int, ...]]:
        """The prompt of messages as text and ids, template and tools applied.

        Raises:
            UnsupportedError: The server has no route for it.
        """
        body: dict[str, Any] = {"messages": message_entries(messages, self._server.dialect)}
        if tools := tool_entries(request):
            body["tools"] = tools
        kwargs = dict(request.template_kwargs)
        if request.thinking is not None:
            kwargs |= {"enable_thinking": request.thinking}
        if kwargs:
            body["chat_template_kwargs"] = kwargs
        if self._server.dialect.text == "llama":
            text = self._post("apply-template", body).get("prompt")
            if not isinstance(text, str):
                raise RemoteError("the server's answer to /apply-template has no prompt")
            return text, self.ids(text)
        if not self.known:
            raise self._missing("apply-template")
        found = self._post("tokenize", body | {"add_generation_prompt": True})
        ids = _ids(found.get("tokens"))
        return self.text(ids), ids

    def _llama(self, text: str, special: bool, start: bool) -> list[Mapping[str, Any]]:
        body = {"content": text, "add_special": start, "parse_special": special,
                "with_pieces": True}  # fmt: skip
        rows = self._post("tokenize", body).get("tokens")
        good = isinstance(rows, list) and all(
            isinstance(row, Mapping) and isinstance(row.get("id"), int) for row in rows
        )
        if not good or not isinstance(rows, list):
            raise RemoteError("the server's answer to /tokenize has no tokens")
        return rows

    def _vllm(self, text: str, start: bool) -> list[tuple[int, bytes]]:
        if not self.known:
            raise self._missing("tokenize")
        body = {"prompt": text, "add_special_tokens": start, "return_token_strs": True}
        found = self._post("tokenize", body)
        ids = _ids(found.get("tokens"))
        texts = found.get("token_strs")
        if not isinstance(texts, list) or len(texts) != len(ids):
            texts = [self.text([i]) for i in ids]
        return [(i, vocabulary_bytes(str(t))) for i, t in zip(ids, texts, strict=True)]

    def _post(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        if not self.known:
            raise self._missing(path)

        def made(endpoint: Endpoint) -> Mapping[str, Any]:
            return {"model": self._model_at(endpoint), **body}

        found = self._ask("POST", path, made, own_route=True)
        if not isinstance(found, Mapping):
            raise RemoteError(f"the server's answer to /{path} is no object")
        return found

    def _missing(self, route: str) -> UnsupportedError:
        return UnsupportedError(
            "tokenize", f"a server of the kind {self._server.dialect.name!r} has no route /{route}"
        )

    def _is_mark(self, i: int, own: bytes) -> bool:
        """Whether a token is a control token: text that looks like one, and is one token only where
        control tokens are looked for."""
        text = own.decode("utf-8", "replace")
        if not _MARKER.fullmatch(text):
            return False
        if text not in self._marks:
            plain = self._server.dialect.text == "llama" and [
                row["id"] for row in self._llama(text, False, False)
            ]
            self._marks[text] = plain != [i]
        return self._marks[text]


def _ids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(isinstance(i, int) for i in value):
        raise RemoteError("the server's answer to /tokenize has no tokens")
    return tuple(value)


def _bytes_of(piece: object) -> bytes:
    """A piece of llama-server: a text, or a list of bytes where it is no whole text."""
    if isinstance(piece, list) and all(isinstance(b, int) and 0 <= b < 256 for b in piece):
        return bytes(piece)
    return text_bytes(piece)


def _byte_alphabet() -> dict[str, int]:
    """The characters by which byte-level BPE writes bytes (GPT-2)."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    other = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(256 + i): b for i, b in enumerate(other)}


_ALPHABET = _byte_alphabet()
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def vocabulary_bytes(text: str) -> bytes:
    r"""The bytes of a token as a vocabulary writes it: byte-level BPE, or SentencePiece.

    >>> vocabulary_bytes("Ġcat"), vocabulary_bytes("▁cat"), vocabulary_bytes("<0xE2>")
    (b' cat', b' cat', b'\xe2')
    """
    if match := _BYTE.fullmatch(text):
        return bytes([int(match[1], 16)])
    if "▁" in text:
        return text.replace("▁", " ").encode("utf-8", "replace")
    if all(char in _ALPHABET for char in text):
        return bytes(_ALPHABET[char] for char in text)
    return text.encode("utf-8", "replace")
