"""Branches: what can be taken, what a branch says, and what of it a saved notebook keeps."""

import json
from dataclasses import replace

import pytest

from llm_magic import branching
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Token, Top
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui import reply_methods
from llm_magic.ui.views import mime


@pytest.mark.parametrize(
    ("alternative", "why"),
    [(1, "took itself"), (" a", "took itself"), (2, "constraint"), ("no", "constraint"),
     (4, "no id"), (9, "no alternative 9"), ("x", "no alternative 'x'"), (0, "no alternative 0")],
)  # fmt: skip
def test_a_choice_that_cannot_be_taken_says_why_and_what_can(
    alternative: int | str, why: str
) -> None:
    top = (Top(1, b" a", -0.1), Top(2, b"no", -1.0, allowed=False), Top(3, b"c", -2.0),
           Top(None, b"d", -3.0))  # fmt: skip
    reply = Reply(" a", tokens=(Token(1, b" a", -0.1, 1, top),))
    with pytest.raises(RequestError, match=f"^token 0: .*{why}.*; .* by rank: 3: 'c'$"):
        branching.choice(reply, 0, alternative)
    assert branching.choice(reply, 0, None).id == 3


def test_where_nothing_can_be_taken_the_way_out_is_named() -> None:
    taken, banned = Top(1, b" a", -0.1), Top(2, b"no", -1.0, allowed=False)
    for top, way in (((), "--logprobs"), ((taken,), "--logprobs 6"),
                     ((taken, banned), "without constraint")):  # fmt: skip
        reply = Reply(" a", tokens=(Token(1, b" a", -0.1, 1, top),))
        with pytest.raises(RequestError, match=f"no alternative to go on from; .*{way}"):
            branching.choice(reply, 0, None)


THOUGHT = ["<think>", "\n", "Let", " me", " see", ".", "\n", "</think>", "\n\n", "Yes", "."]


def thinking(then: list[str]) -> tuple[LLM, Reply]:
    """A model that reasons and answers, what it said, and what it says next."""
    llm = LLM(Scripted([THOUGHT, then]))
    return llm, llm.chat("Is it?", logprobs=3)


def test_a_branch_in_the_reasoning_is_reasoning_until_its_tag() -> None:
    llm, reply = thinking([" more", " now", ".</", "think>", "\n\n", "No", "."])
    assert reply.reasoning == "Let me see."
    kept = branching.branch(reply, 4, None, llm)
    branch = kept.branches[0][1]
    word = branch.tokens[4].bytes.decode()
    assert branch.reasoning == f"Let me{word} more now."
    assert branch.text == "No."
    assert branch.kinds[:5] == reply.kinds[:5]
    assert branch.kinds == ("reasoning",) * 7 + ("answer",) * 5
    assert [t.forced for t in branch.tokens] == [True] * 5 + [False] * 7
    # It comes back from the saved notebook as it was.
    again = reply_methods.from_output(mime.bundle(kept, mime.Look())[mime.VENDOR])
    assert again.branches[0][1].kinds == branch.kinds
    assert (again.branches[0][1].text, again.branches[0][1].reasoning) == ("No.", branch.reasoning)


def test_a_branch_in_the_answer_keeps_the_reasoning_of_its_prefix() -> None:
    llm, reply = thinking([" indeed", "."])
    branch = branching.branch(reply, 10, None, llm).branches[0][1]
    assert branch.reasoning == "Let me see."
    assert branch.text == f"Yes{branch.tokens[10].bytes.decode()} indeed."
    assert branch.kinds == (*reply.kinds[:10], "answer", "answer", "answer")


def test_a_branch_that_leaves_the_closing_tag_goes_on_reasoning() -> None:
    llm, reply = thinking([" more", "</think>", "Yes"])
    assert reply.kinds[7] == "answer"  # the tag rides on what follows it
    branch = branching.branch(reply, 7, None, llm).branches[0][1]
    assert branch.reasoning.startswith("Let me see.")
    assert branch.reasoning.endswith(" more")
    assert branch.text == "Yes"


def test_a_branch_at_an_end_token_ends() -> None:
    llm, reply = thinking([" never"])
    llm.provider.end_ids = frozenset({99})  # type: ignore[attr-defined]
    token = replace(reply.tokens[9], id=99, bytes=b"")
    with branching.stream(llm, reply, branching.prefix(reply, 9, token)) as events:
        list(events)
    assert events.reply.finish_reason == "stop"
    assert events.reply.text == ""
    assert len(events.reply.tokens) == 10


def test_a_branch_counts_what_it_wrote_and_stops_where_it_should() -> None:
    llm, reply = thinking([" one", " two", " three"])
    given = branching.prefix(reply, 10, branching.choice(reply, 10, None))
    with branching.stream(llm, reply, given, stop=" two") as events:
        list(events)
    branch = events.reply
    assert branch.text.endswith(" one")
    assert branch.finish_reason == "stop"
    assert branch.usage.completion == len(branch.tokens) == 12
    assert branching.measured(branch).usage.completion == 1
    assert branch.prompt == reply.prompt


@pytest.mark.parametrize("count", [1, 12, 40])
def test_saved_branches_weigh_at_most_150_bytes_a_token(count: int) -> None:
    top = tuple(Top(12345 + i, b" word" + bytes([97 + i]), -1.23 - i) for i in range(10))
    tokens = tuple(Token(i, b" word%d" % i, -1.2, 3, top) for i in range(200))
    reply = Reply(b"".join(t.bytes for t in tokens).decode(), tokens=tokens,
                  kinds=("answer",) * 200, model="m")  # fmt: skip
    for at in range(count):
        given = tuple(replace(t, forced=True) for t in tokens[: 190 - at])
        run = (*given, *(replace(t, at=0.5) for t in tokens[:20]))
        text = b"".join(t.bytes for t in run).decode()
        branch = replace(reply, text=text, tokens=run, kinds=("answer",) * len(run), branches=())
        reply = branching.keep(reply, 190 - at, branch)
    data = mime.saved(reply, mime.Look())
    size = len(json.dumps(data, indent=1, ensure_ascii=False).encode())
    # One text and the numbers of each reply are free; all else is the tokens'.
    assert size <= 150 * (200 + 20 * count) + 2500 + 700 * count
    again = Reply.from_dict(data)
    assert [b.text for _, b in again.branches] == [b.text for _, b in reply.branches]
    assert all(len(b.tokens) == len(mine.tokens) for (_, b), (_, mine) in
               zip(again.branches, reply.branches, strict=True))  # fmt: skip
