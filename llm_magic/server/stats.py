"""What a server has done: a line in the log for each answer, and sums for /metrics."""

import logging
import threading
from collections import Counter, deque
from dataclasses import dataclass

from ..chat.reply import Reply

log = logging.getLogger(__name__)
RECENT = 200  # answers that are remembered


@dataclass(frozen=True, slots=True)
class Served:
    """One answer of a server.

    Attributes:
        id: The id that the client got.
        route: What was asked for, "chat" or "text".
        reason: Why the answer ended; "cancelled" where the client went away.
        cached: Tokens of the prompt that were in the cache.
        new: Those that were evaluated.
        completion: Tokens of the answer.
        prefill_tps: New tokens of the prompt a second, up to the first token of the answer.
        decode_tps: Tokens a second after the first; 0 for one token.
        prepared: Seconds for the chat template and the tokenizer.
        seconds: From the request to the end of the answer.
    """

    id: str
    route: str
    reason: str
    cached: int
    new: int
    completion: int
    prefill_tps: float
    decode_tps: float
    prepared: float
    seconds: float

    def __str__(self) -> str:
        """The line of the log.

        >>> print(Served("cmpl-1", "text", "stop", 3, 5, 7, 50.0, 20.0, 0.002, 0.5))
        cmpl-1 text stop: 3 cached + 5 new tokens, prepared in 2.0 ms, prefill 50.0 tok/s; ...
        """
        return (
            f"{self.id} {self.route} {self.reason}: {self.cached} cached + {self.new} new tokens, "
            f"prepared in {self.prepared * 1000:.1f} ms, prefill {self.prefill_tps:.1f} tok/s; "
            f"{self.completion} tokens, decode {self.decode_tps:.1f} tok/s; "
            f"{self.seconds:.2f} s in all"
        )


def served(id: str, route: str, reply: Reply, prepared: float, seconds: float) -> Served:
    """What an answer, whole or not, has cost."""
    usage, times = reply.usage, reply.timings
    new = max(0, usage.prompt - usage.cached)
    waited = times.first_token - times.queued
    return Served(
        id, route, reply.finish_reason or "failed", min(usage.cached, usage.prompt), new,
        usage.completion, new / waited if waited > 0 else 0.0,
        times.decode_tps if usage.completion > 1 else 0.0, prepared, seconds,
    )  # fmt: skip


class Stats:
    """The sums of one server. Methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._requests: Counter[tuple[str, int]] = Counter()
        self.recent: deque[Served] = deque(maxlen=RECENT)

    def request(self, path: str, status: int) -> None:
        """A request was answered with this status."""
        with self._lock:
            self._requests[path, status] += 1

    def answer(self, one: Served) -> None:
        """An answer has ended, whole or not."""
        log.info("%s", one)
        with self._lock:
            self.recent.append(one)
            self._counts.update(
                prompt=one.new, cached=one.cached, completion=one.completion, answers=1
            )
            self._counts["cancelled"] += one.reason == "cancelled"

    def text(self, running: int, waiting: int) -> str:
        """The numbers in Prometheus' text format."""
        with self._lock:
            counts, requests = dict(self._counts), sorted(self._requests.items())
        lines: list[str] = []
        for name, what, value in (
            ("answers_total", "Answers that have ended", counts.get("answers", 0)),
            ("cancelled_total", "Answers whose client went away", counts.get("cancelled", 0)),
            ("prompt_tokens_total", "Prompt tokens evaluated", counts.get("prompt", 0)),
            ("cached_tokens_total", "Prompt tokens found in the cache", counts.get("cached", 0)),
            ("completion_tokens_total", "Tokens written", counts.get("completion", 0)),
        ):
            lines += _metric(name, "counter", what, [("", value)])
        labels = [(f'{{path="{path}",status="{status}"}}', n) for (path, status), n in requests]
        lines += _metric("requests_total", "counter", "Requests by path and status", labels)
        lines += _metric("running", "gauge", "Answers being written", [("", running)])
        lines += _metric("waiting", "gauge", "Answers that wait for a place", [("", waiting)])
        return "\n".join(lines) + "\n"


def _metric(name: str, kind: str, what: str, values: list[tuple[str, int]]) -> list[str]:
    full = f"llm_magic_{name}"
    head = [f"# HELP {full} {what}.", f"# TYPE {full} {kind}"]
    return [*head, *(f"{full}{labels} {value}" for labels, value in values)]
