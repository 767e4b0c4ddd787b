"""A chat without a widget, and a page that applies its messages as chat.js does."""

import json
import threading
import time
from collections.abc import Callable
from typing import Any

from llm_magic import branching
from llm_magic.chat.reply import Reply
from llm_magic.events import Message, Progress, Token
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.views.ledger import Ledger
from llm_magic.ui.widgets.chat import transcript
from llm_magic.ui.widgets.chat.controller import ChatController
from llm_magic.ui.widgets.chat.transcript import Transcript
from llm_magic.ui.widgets.shared.jupyter import UpdatableOutput


class ChatHost:
    """A chat without a widget: what the controller posts is kept, with the time it came."""

    def __init__(
        self, llm: LLM, before: Callable[[Callable[[Progress], None]], None] | None = None
    ):
        self.llm, self.before = llm, before
        self.name = llm.model
        self.posted: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.threads: set[str] = set()
        self.settles = 0
        self.ledger = Ledger()
        self.kept = UpdatableOutput({"text/plain": ""}, "transcript")
        self.transcript = Transcript({}, ())
        self.controller: ChatController | None = None
        self.values: dict[str, Any] = {}
        self.key = "0"

    def open(self, messages: tuple[Message, ...], ask: Any) -> Any:
        def start(progress: Callable[[Progress], None]) -> Any:
            if self.before:
                self.before(progress)
            return self.llm.stream(messages, **self.values)

        return start

    def fork(self, reply: Reply, given: tuple[Token, ...]) -> Any:
        return lambda progress: branching.stream(self.llm, reply, given)

    def extend(self, messages: tuple[Message, ...], text: str) -> Any:
        return lambda progress: self.llm.stream(messages, given=text, **self.values)

    def kept_by_page(self) -> None:
        pass

    def set(self, name: str, value: Any) -> None:
        self.values[name] = value

    def settings(self) -> dict[str, Any]:
        return self.values

    def window(self) -> int:
        return 100

    def post(self, message: Any) -> None:
        self.posted.append(json.loads(json.dumps(message)))
        self.times.append(time.monotonic())
        self.threads.add(threading.current_thread().name)

    def settled(self) -> None:
        self.settles += 1
        if self.controller is not None:
            self.transcript = transcript.transcript(self.controller.turns, self.name)
        self.kept.change(None)
        self.threads.add(threading.current_thread().name)


class Page:
    """What a page makes of the messages: the same few rules as chat.js."""

    def __init__(self, posted: list[dict[str, Any]]) -> None:
        self.turns: list[dict[str, Any]] = []
        self.notices: list[str] = []
        self.drafts: list[str] = []
        self.phases: list[str] = []
        for message in posted:
            for op in message["ops"]:
                self.apply(op)

    def apply(self, op: dict[str, Any]) -> None:
        turn = next((t for t in self.turns if t["id"] == op.get("id")), {})
        match op["o"]:
            case "path":
                self.turns[op["at"] :] = op["turns"]
            case "tail":
                for at, keep, add in op["edits"]:
                    blocks = turn[op["part"]]
                    blocks.extend([""] * (at + 1 - len(blocks)))
                    old = blocks[at].encode("utf-16-le")[: 2 * keep].decode("utf-16-le")
                    blocks[at] = old + add
                turn["text"] = turn["text"] + op["text"]
            case "done":
                turn |= op | {"busy": False}
            case "notice":
                self.notices.append(op["text"])
            case "draft":
                self.drafts.append(op["text"])
            case "phase":
                self.phases.append(op["name"])

    def answer(self, i: int = -1) -> str:
        return "".join(self.turns[i]["answer"])


def chat(script: Any, **options: Any) -> tuple[ChatController, ChatHost]:
    host = ChatHost(LLM(Scripted(script, **options)))
    host.controller = ChatController(host)
    return host.controller, host


def say(controller: ChatController, text: str, nonce: str = "n") -> None:
    controller.submit({"t": "send", "text": text, "nonce": nonce})
    assert controller.wait(20)


def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.005)
