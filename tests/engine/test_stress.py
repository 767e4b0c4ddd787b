"""Hundreds of requests that end in every possible way, and an engine that must not notice.

LLM_MAGIC_STRESS multiplies the numbers (default 1: 1,024 random ends, 200 interrupts, 2,500 short
requests); 4 is the long run of 10,000 requests.
"""

import gc
import os
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field

import psutil
import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic.errors import Interrupted
from llm_magic.events import Finish

FACTOR = float(os.environ.get("LLM_MAGIC_STRESS", "1"))
CLIENTS = 8
LONGEST = 24  # tokens of an answer


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    path = tmp_path_factory.mktemp("toy") / "toy.gguf"
    llm = llm_magic.load(str(toy_gguf(path, ctx=1024, types="Q8_0")))
    yield llm
    llm.unload()


@pytest.fixture(scope="module")
def smollm2(smollm2_path):
    llm = llm_magic.load(str(smollm2_path), ctx=1024)
    yield llm
    llm.unload()


@dataclass
class Prompts:
    """Prompts that share beginnings of all lengths, with what a cold engine answers to each."""

    llm: object
    n: int
    rng: random.Random
    ids: list[tuple[int, ...]] = field(default_factory=list)
    answers: list[list[int]] = field(default_factory=list)

    def __post_init__(self):
        most = min(30000, self.llm.provider.engine.loaded().config.n_tokens)
        ids: tuple[int, ...] = ()
        for _ in range(self.n):
            keep = ids[: self.rng.randrange(len(ids) + 1)]
            new = (self.rng.randrange(most // 10, most) for _ in range(self.rng.randrange(1, 60)))
            ids = (*keep, *new)[:120]
            self.ids.append(ids)
            cold = self.llm.complete(ids, max_tokens=LONGEST, reuse=False)
            self.answers.append([t.id for t in cold.tokens])


def client(llm, prompts, n, rng, faults):
    """n requests, each of which ends in a way of its own."""
    try:
        requests(llm, prompts, n, rng, faults)
    except Exception as e:
        faults.append(repr(e))


def requests(llm, prompts, n, rng, faults):
    for _ in range(n):
        i = rng.randrange(prompts.n)
        way = rng.choice(("read", "cancel", "keep", "close", "drop", "timer", "leave"))
        stream = llm.stream(prompts.ids[i], max_tokens=rng.randrange(LONGEST + 1))
        if way == "timer":
            timer = threading.Timer(rng.random() * 0.03, stream.cancel, ("interrupted",))
            timer.start()
        if way == "drop":
            del stream  # unread
            continue
        after = rng.randrange(LONGEST)
        seen, finishes = 0, 0
        for event in stream:
            seen += len(getattr(event, "tokens", ()))
            finishes += isinstance(event, Finish)
            if seen >= after and way in ("cancel", "keep"):
                stream.cancel(rng.choice(("cancelled", "interrupted", "stop")),
                              keep=rng.randrange(seen + 1) if way == "keep" else None)  # fmt: skip
            elif seen >= after and way == "close":
                stream.close()
            elif seen >= after and way == "leave":
                break
        said = [t.id for t in stream.reply.tokens]
        if said != prompts.answers[i][: len(said)]:
            faults.append(f"{way}: {said} instead of {prompts.answers[i]}")
        if finishes != 1 and way in ("read", "cancel", "keep", "timer"):
            faults.append(f"{way}: {finishes} ends")


def check_cache(llm):
    """What every slot holds is what a cold engine computes: the next tokens and their logprobs."""
    scheduler = llm.provider.engine.scheduler
    held = [list(slot.ids) for slot in scheduler.call(lambda: list(scheduler.slots))]
    held = [ids for ids in held if 0 < len(ids) < 200]
    asked = [(*ids, ids[0]) for ids in held]
    warm = [llm.complete(ids, max_tokens=4, logprobs=3) for ids in asked]
    assert all(r.usage.cached == len(ids) for r, ids in zip(warm, held, strict=True))
    for ids, reply in zip(asked, warm, strict=True):
        cold = llm.complete(ids, max_tokens=4, logprobs=3, reuse=False)
        assert cold.tokens == tuple(
            type(t)(**{f: getattr(t, f) for f in t.__slots__} | {"at": c.at})
            for t, c in zip(reply.tokens, cold.tokens, strict=True)
        )


def idle(llm, seconds=10.0):
    """Wait until nothing runs; fails if something goes on for ever."""
    end = time.monotonic() + seconds
    while (status := llm.status()).running or status.queued:
        assert time.monotonic() < end, status
        time.sleep(0.01)


def cancels(llm, total, seed):
    rng = random.Random(seed)
    prompts = Prompts(llm, 16, rng)
    faults: list[str] = []
    for _ in range(8):
        threads = [
            threading.Thread(
                target=client,
                args=(llm, prompts, total // 8 // CLIENTS, random.Random(rng.random()), faults),
            )
            for _ in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=300)
            assert not thread.is_alive()
        idle(llm)
        assert not faults
        check_cache(llm)


def test_a_thousand_random_ends_by_eight_threads_leave_a_true_cache(toy):
    cancels(toy, int(1024 * FACTOR), seed=1)


@pytest.mark.model
@pytest.mark.slow
def test_random_ends_with_a_real_model_leave_a_true_cache(smollm2):
    cancels(smollm2, int(192 * FACTOR), seed=2)


# ----------------------------------------------------------------------------- real interrupts


def interrupted_runs(llm, total, seed):
    """`complete` on the main thread under real interrupts: what it says is true, and it ends."""
    rng = random.Random(seed)
    prompts = Prompts(llm, 6, rng)
    began = time.perf_counter()
    for ids in prompts.ids:
        llm.complete(ids, max_tokens=LONGEST)
    longest = 1.2 * (time.perf_counter() - began) / prompts.n
    main = threading.main_thread().ident
    struck = whole = 0
    for _ in range(total):
        i = rng.randrange(prompts.n)
        delay = rng.random() * longest
        timer = threading.Timer(delay, signal.pthread_kill, (main, signal.SIGINT))
        reply = None
        try:
            timer.start()
            reply = llm.complete(prompts.ids[i], max_tokens=LONGEST)
            whole += 1
            assert len(reply.tokens) == len(prompts.answers[i])
        except Interrupted as e:
            reply = e.partial
            struck += 1
            assert reply.finish_reason in ("interrupted", "length", "stop")
            if reply.finish_reason == "interrupted":
                assert reply.usage.completion == len(reply.tokens)
        except KeyboardInterrupt:
            pass  # before the stream began or after it ended
        finally:
            while True:  # the interrupt must not strike the next turn
                try:
                    timer.join()
                    time.sleep(0.001)
                    break
                except KeyboardInterrupt:
                    continue
        if reply is not None:
            said = [t.id for t in reply.tokens]
            assert said == prompts.answers[i][: len(said)]
    idle(llm)
    return struck, whole


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
def test_real_interrupts_lose_no_token_and_never_hang(toy):
    struck, _ = interrupted_runs(toy, int(200 * FACTOR), seed=3)
    assert struck > 40 * FACTOR
    check_cache(toy)


# ----------------------------------------------------------------------------- memory


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def short_requests(llm, n, rng):
    for i in range(n):
        ids = tuple(rng.randrange(40, 90) for _ in range(rng.randrange(1, 12)))
        if i % 5 == 0:
            stream = llm.stream(ids, max_tokens=4)
            next(stream)
            del stream
        elif i % 7 == 0:
            llm.complete(ids, max_tokens=3, regex=("[a-z]{1,3}", "(yes|no)+")[i % 2])
        elif i % 11 == 0:
            llm.chat("hello", max_tokens=3, tools=[add] if i % 2 else None, stop=["zz"])
        else:
            llm.complete(ids, max_tokens=3, logprobs=2 if i % 3 else None, seed=i)


@pytest.mark.slow
def test_short_requests_do_not_make_memory_grow(toy):
    rng = random.Random(4)
    total = int(2_500 * FACTOR)
    short_requests(toy, max(300, total // 5), rng)  # allocators and caches settle
    idle(toy)
    gc.collect()
    process = psutil.Process()
    before, threads = process.memory_info().rss, process.num_threads()
    blocks = sys.getallocatedblocks()  # exact, where resident memory is a matter of luck
    short_requests(toy, total, rng)
    idle(toy)
    gc.collect()
    grown, more = process.memory_info().rss - before, sys.getallocatedblocks() - blocks
    print(f"{total} requests: {grown / 1e6:+.2f} MB, {more:+} blocks of Python")
    assert more < 1200  # caches of a fixed size fill up; one block a request would be 2,500
    assert grown < 6e6
    assert process.num_threads() <= threads
