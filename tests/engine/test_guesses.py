"""Guesses at the next tokens: what comes out is, bit by bit, what comes out without them."""

import itertools
import time

import numpy as np
import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic.engine.serving import job as job_module
from llm_magic.engine.serving import planner
from llm_magic.engine.serving.generation import RUN_AHEAD
from llm_magic.engine.serving.job import Job
from llm_magic.engine.serving.planner import MOST_GUESSED
from llm_magic.events import Finish, Sampling, Token
from llm_magic.ui.views.throughput import details

REPEATS = "one two three four five six seven one two three four five six seven one two three"


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    llm = llm_magic.load(str(toy_gguf(tmp_path_factory.mktemp("guess") / "toy.gguf")), ctx=512)
    yield llm
    llm.unload()


@pytest.fixture(autouse=True)
def eager(monkeypatch):
    """Every guess is checked, also those that do not pay."""

    def all_of_them(drafts, room, row):
        taken = []
        for draft in drafts:
            taken.append(min(room - sum(taken), len(draft.ids)) if draft else 0)
        return taken

    monkeypatch.setattr(planner, "share", all_of_them)


def outcome(reply):
    tokens = [(t.id, t.logprob, t.rank, t.top, t.masked) for t in reply.tokens]
    return tokens, reply.text, reply.finish_reason, reply.usage.completion


SETTINGS = {
    "greedy": {"temperature": 0},
    "drawn": {"temperature": 0.7, "seed": 3},
    "hot": {"temperature": 1.5, "seed": 4, "top_k": 40},
    "penalties": {"temperature": 0, "repeat_penalty": 1.2, "presence_penalty": 0.3},
    "mirostat": {"mirostat": (4.0, 0.1), "seed": 5},
    "minimum": {"temperature": 0, "min_tokens": 20},
    "alternatives": {"temperature": 0, "logprobs": 5},
    "many alternatives": {"temperature": 0, "logprobs": 30},
    "regex": {"regex": "(ab|ba|cd)+", "temperature": 1.0, "seed": 6},
    "stop": {"temperature": 0.9, "seed": 7, "stop": ["e"]},
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())
def test_guesses_change_nothing_that_comes_out(toy, settings):
    options = {"logprobs": 2, "max_tokens": 60} | settings
    plain = toy.complete(REPEATS, guess=False, reuse=False, **options)
    guessed = toy.complete(REPEATS, reuse=False, **options)
    assert outcome(guessed) == outcome(plain)
    assert plain.usage.guessed == 0
    # The cache holds what was said and nothing that was only guessed.
    again = toy.complete(guessed.prompt + guessed.text, **options)
    cold = toy.complete(guessed.prompt + guessed.text, guess=False, reuse=False, **options)
    assert outcome(again) == outcome(cold)


def test_a_text_that_repeats_takes_fewer_steps(toy):
    reply = toy.complete(REPEATS, temperature=0, max_tokens=100)
    assert 20 < reply.usage.guessed < 100
    assert len(reply.tokens) == 100
    assert ("of them guessed", str(reply.usage.guessed)) in details(reply)


def test_steps_with_guesses_are_counted_and_bounded(toy, monkeypatch):
    forward = toy.provider._engine.loaded().forward
    sizes, step = [], forward.step
    monkeypatch.setattr(
        type(forward), "step", lambda self, t, *rest: (sizes.append(len(t)), step(t, *rest))[1]
    )
    ids = toy.complete(REPEATS, max_tokens=0).prompt_ids
    job = Job(
        tuple(ids), Sampling(temperature=0.0, max_tokens=80), reuse=False, end_ids=frozenset()
    )
    items = list(toy.provider._engine.scheduler.submit(job))
    usage = items[-1].usage
    made = [i.id for i in items if isinstance(i, Token)]
    assert len(made) == 80
    sizes = sizes[-(80 - usage.guessed) + 1 :]
    assert max(sizes) == 1 + MOST_GUESSED
    assert len(sizes) + 1 + usage.guessed == 80  # the first token is the prompt's
    assert MOST_GUESSED < RUN_AHEAD


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_limits_are_kept_in_the_middle_of_a_guess(toy, n):
    ids = toy.complete(REPEATS, max_tokens=0).prompt_ids
    long = toy.complete(ids, max_tokens=40, temperature=0, guess=False)
    for already in range(20, 24):
        start = tuple(ids) + tuple(t.id for t in long.tokens[:already])
        reply = toy.complete(start, max_tokens=n, temperature=0)
        assert [t.id for t in reply.tokens] == [t.id for t in long.tokens[already:][:n]]
        assert reply.finish_reason == "length"


def test_the_context_ends_in_the_middle_of_a_guess(tmp_path):
    llm = llm_magic.load(str(toy_gguf(tmp_path / "short.gguf")), ctx=64)
    for n in (40, 41, 42, 43):
        ids = (*([20, 21, 22] * 20)[: n - 1], 23)
        plain = llm.complete(ids, temperature=0, max_tokens=None, guess=False, reuse=False)
        guessed = llm.complete(ids, temperature=0, max_tokens=None, reuse=False)
        assert outcome(guessed) == outcome(plain)
    llm.unload()


def test_the_end_of_the_text_ends_it_in_the_middle_of_a_guess(toy):
    """An end token among the guesses: what was guessed behind it is not said."""
    ids = tuple(toy.complete(REPEATS, max_tokens=0).prompt_ids)
    long = [t.id for t in toy.complete(ids, max_tokens=60, temperature=0, guess=False).tokens]
    scheduler, seen = toy.provider._engine.scheduler, set()
    for end in set(long[30:]):
        at = long.index(end)
        job = Job(ids, Sampling(temperature=0.0, max_tokens=60), end_ids=frozenset({end}))
        items = list(scheduler.submit(job))
        assert [i.id for i in items if isinstance(i, Token)] == long[:at]
        assert items[-1].reason == "stop"
        assert items[-1].usage.completion == at
        seen.add(at)
    assert seen


def test_a_cancelled_stream_keeps_what_was_read(toy):
    ids = tuple(toy.complete(REPEATS, max_tokens=0).prompt_ids)
    scheduler = toy.provider._engine.scheduler
    plain = [t.id for t in toy.complete(ids, max_tokens=60, temperature=0, guess=False).tokens]
    for keep in (1, 7, 22):
        out = scheduler.submit(Job(ids, Sampling(temperature=0.0, max_tokens=60)))
        tokens = (i for i in out if isinstance(i, Token))
        read = [t.id for t in itertools.islice(tokens, keep)]
        out.cancel("stopped", keep=keep)
        *_, finish = out
        assert isinstance(finish, Finish)
        assert read == plain[:keep]
        assert finish.usage.completion == keep
        assert finish.usage.guessed <= keep
        rest = toy.complete((*ids, *read), max_tokens=20, temperature=0)
        assert [t.id for t in rest.tokens] == plain[keep : keep + 20]


def test_guesses_do_not_outlive_their_step(tmp_path, monkeypatch):
    """A stream that loses its slot while nobody reads it comes back as a prompt, without guesses:
    at the end of the context there would be no place for them."""
    monkeypatch.setattr(job_module, "PARK_SECONDS", 0.0)
    llm = llm_magic.load(str(toy_gguf(tmp_path / "short.gguf")), ctx=64, slots=1)
    scheduler = llm.provider.engine.scheduler
    ids = (*([20, 21, 22] * 15), 23)
    plain = llm.complete(ids, temperature=0, max_tokens=None, guess=False, reuse=False)
    for first in range(RUN_AHEAD):
        out = scheduler.submit(Job(ids, Sampling(temperature=0.0, max_tokens=None)))
        tokens = (i.id for i in out if isinstance(i, Token))
        read = list(itertools.islice(tokens, first))
        while len(read) < len(plain.tokens):
            while not out._channel.ahead and out._channel.end is None:
                time.sleep(0.001)
            llm.complete([90, 91, 92], max_tokens=1, reuse=False)  # takes the only slot
            read += itertools.islice(tokens, RUN_AHEAD)
        assert read == [t.id for t in plain.tokens]
    llm.unload()


def test_guesses_behind_a_stop_string_are_not_counted(toy):
    """The engine may have said everything before the reader finds the stop."""
    ids = tuple(toy.complete(REPEATS, max_tokens=0).prompt_ids)
    long = toy.complete(ids, max_tokens=60, temperature=0, guess=False)
    start = (*ids, *(t.id for t in long.tokens[:30]))
    end = next(t.bytes.decode() for t in long.tokens[30:] if t.bytes.isascii())
    stream = toy.stream(start, max_tokens=RUN_AHEAD, temperature=0, stop=[end])
    while stream._source._channel.end is None:
        time.sleep(0.001)
    usage = [e for e in stream if isinstance(e, Finish)][-1].usage
    assert usage.guessed <= usage.completion < RUN_AHEAD


def test_streams_guess_side_by_side(toy):
    prompts = [REPEATS, "a b c d " * 9, "red green blue " * 7, "so it goes"]
    alone = [
        toy.complete(p, max_tokens=50, temperature=0, guess=False, reuse=False) for p in prompts
    ]
    streams = [toy.stream(p, max_tokens=50, temperature=0, logprobs=2) for p in prompts]
    for stream, expected in zip(streams, alone, strict=True):
        list(stream)
        reply = stream.reply
        assert [(t.id, t.logprob) for t in reply.tokens] == [
            (t.id, t.logprob) for t in expected.tokens
        ]


def test_the_portable_path_does_not_guess(tmp_path, monkeypatch):
    """Its rows are not promised to be the same in any batch, and every new size is compiled."""
    monkeypatch.setenv("LLM_MAGIC_KERNEL", "portable")
    llm = llm_magic.load(str(toy_gguf(tmp_path / "portable.gguf")), ctx=64)
    assert llm.complete([20, 21, 22, 20, 21, 22, 20, 21], max_tokens=6).usage.guessed == 0
    llm.unload()


def test_a_guess_costs_nothing_where_nothing_repeats(toy):
    numbers = np.random.default_rng(1).permutation(200)[:60] + 20
    reply = toy.complete([int(i) for i in numbers], max_tokens=1, temperature=0)
    assert reply.usage.guessed == 0
