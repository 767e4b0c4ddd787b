"""The fold of events, and the JSON form that a saved notebook keeps (untrusted when read)."""

import contextlib
import json
import math
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_magic.chat.fold import Fold
from llm_magic.chat.reply import Reply
from llm_magic.events import (
    CallDelta,
    CallDone,
    Delta,
    Finish,
    Prefill,
    Sampling,
    Timings,
    Token,
    ToolCall,
    ToolDone,
    ToolRecord,
    Top,
    Usage,
)


def token(text, logprob=-0.5, **fields):
    data = text if isinstance(text, bytes) else text.encode()
    return Token(7, data, logprob, 1, **fields)


def sample_reply():
    fold = Fold("m", "prompt text", (1, 2), Sampling(temperature=0.0, stop=("x",), seed=3))
    call = ToolCall("call_1", "f", '{"a": 1}')
    fold.add(Prefill(2, 2, 1))
    fold.add(Delta("reasoning", "hm", (token("hm"),)))
    top = (Top(1, b"a", -0.25), Top(2, b"\xf0\x9f", None, allowed=False))
    fold.add(Delta("answer", "Hi", (token("H", top=top), token(b"\xf0\x9f", None, masked=0.25))))
    fold.add(CallDelta(0, "call_1", "f", "", (token("{"),)))
    fold.add(CallDone(0, call))
    fold.add(Finish("tool_calls", Usage(2, 1, 4), Timings(prefill=0.5, decode_tps=12.5)))
    return fold.reply()


def test_fold_keeps_kinds_apart_and_every_token():
    reply = sample_reply()
    assert (reply.text, reply.reasoning, reply.finish_reason) == ("Hi", "hm", "tool_calls")
    assert reply.kinds == ("reasoning", "answer", "answer", "call")
    assert [t.bytes for t in reply.tokens] == [b"hm", b"H", b"\xf0\x9f", b"{"]
    assert reply.usage == Usage(2, 1, 4)
    assert reply.message.calls == reply.calls
    assert reply.message.content == "Hi"


def test_a_partial_reply_counts_what_is_there():
    fold = Fold("m")
    fold.add(Prefill(5, 9, 3))
    fold.add(Delta("answer", "He", (token("He"),)))
    reply = fold.reply()
    assert (reply.text, reply.finish_reason, reply.usage) == ("He", None, Usage(9, 3, 1))


# LC-46
def test_perplexity_is_exp_of_minus_the_mean_logprob():
    reply = Reply("ab", tokens=(token("a", -1.0), token("b", -3.0), token("c", None)))
    assert reply.mean_logprob == -2.0
    assert reply.perplexity == pytest.approx(math.exp(2.0))
    assert Reply("").perplexity is None


def test_to_dict_survives_json_and_comes_back():
    reply = sample_reply()
    text = json.dumps(reply.to_dict(), allow_nan=False)
    again = Reply.from_dict(json.loads(text))
    assert again.to_dict() == reply.to_dict()
    assert again.tokens[1].top == reply.tokens[1].top
    assert again.tokens[2].bytes == b"\xf0\x9f"
    assert again.kinds == reply.kinds
    assert again.calls == reply.calls
    assert again.sampling == reply.sampling


def test_traces_and_branches_come_back():
    call = ToolCall("c", "f", "{}", in_reasoning=True)  # F242
    record = ToolRecord(0, call, {}, "auto", "ok", 0.25, "42", "out", None, 1.5)
    fold = Fold("m")
    fold.add(ToolDone(record))
    base = fold.reply()
    branched = Reply("x", branches=((3, base),))
    again = Reply.from_dict(json.loads(json.dumps(branched.to_dict())))
    assert again.branches[0][0] == 3
    assert again.branches[0][1].trace == (record,)


def test_a_token_of_bars_and_tabs_comes_back():
    text = "|\\|\t|\\u007c\n"
    reply = Reply(text, tokens=(token(text, -1.0, top=(Top(1, text.encode(), -1.0),)),))
    (row,) = reply.to_dict()["tokens"]
    assert row.count("|") == 8
    assert "\t" not in row
    again = Reply.from_dict(json.loads(json.dumps(reply.to_dict())))
    assert again.tokens[0].bytes == again.tokens[0].top[0].bytes == text.encode()
    tabs = {**GOOD, "tokens": ["7\ta|b\t-1\t1\t0\t"]}  # as they were first written
    assert Reply.from_dict(tabs).tokens[0].bytes == b"a|b"


# B076
def test_infinite_logprobs_are_left_out_of_the_json():
    reply = Reply("a", tokens=(token("a", -math.inf, top=(Top(1, b"b", -math.inf),)),))
    assert reply.to_dict()["tokens"] == ["7|a||1|0||1|b|"]
    again = Reply.from_dict(json.loads(json.dumps(reply.to_dict(), allow_nan=False)))
    assert again.tokens[0].logprob is None
    assert again.tokens[0].top[0].logprob is None


@given(st.binary(max_size=12))
def test_any_bytes_of_a_token_come_back(data):
    reply = Reply("", tokens=(token(data),))
    assert Reply.from_dict(json.loads(json.dumps(reply.to_dict()))).tokens[0].bytes == data


def test_prompt_and_long_token_lists_can_stay_out():
    reply = sample_reply()
    assert "prompt" not in reply.to_dict(prompt=False)
    assert "tokens" not in reply.to_dict(max_tokens=3)
    assert "tokens" in reply.to_dict(max_tokens=4)


def test_at_most_150_bytes_a_token_with_five_alternatives():
    top = tuple(Top(12345 + i, b" word" + bytes([97 + i]), -1.23456 - i) for i in range(5))
    reply = Reply("", tokens=tuple(token(f" word{i}", -1.2, top=top, at=1.5) for i in range(100)))
    assert len(json.dumps(reply.to_dict()["tokens"], indent=1)) <= 150 * 100


def branched(parent, at, words, **changes):
    """What a branch of a reply is: its first tokens are given."""
    given = tuple(replace(t, forced=True, at=0.0) for t in parent.tokens[:at])
    tokens = (*given, *words)
    text = b"".join(t.bytes for t in tokens).decode()
    kinds = (*parent.kinds[:at], *("answer",) * len(words))
    return replace(parent, text=text, tokens=tokens, kinds=kinds, branches=(), **changes)


def long_reply(n=400):
    top = tuple(Top(12345 + i, b" word" + bytes([97 + i]), -1.25 - i) for i in range(5))
    tokens = tuple(token(f" word{i}", -1.2, top=top, at=1.5) for i in range(n))
    text = b"".join(t.bytes for t in tokens).decode()
    return Reply(text, "", tokens=tokens, kinds=("answer",) * n, model="m", sampling=Sampling(0.7))


def test_a_branch_is_saved_from_its_position_on():
    reply = long_reply()
    below = branched(reply, 390, (token(" ending", at=0.2),) * 20, sampling=Sampling(0.0))
    deeper = branched(below, 400, (token(" deep", at=0.2),), timings=Timings(decode=1.0))
    whole = replace(reply, branches=((390, replace(below, branches=((400, deeper),))),))
    data = json.loads(json.dumps(whole.to_dict()))
    ((_, saved),) = data["branches"]
    assert len(saved["tokens"]) == 20
    assert saved["text"] == (" ending" * 20)[1:]  # the blank is common, too
    assert len(saved["branches"][0][1]["tokens"]) == 1
    assert Reply.from_dict(data).to_dict() == data
    again = Reply.from_dict(data).branches[0][1]
    assert again.text == below.text
    assert again.tokens == below.tokens
    assert again.kinds == below.kinds
    assert again.sampling == below.sampling
    assert again.branches[0][1].tokens == deeper.tokens
    assert again.branches[0][1].timings == deeper.timings


def test_a_branch_that_shares_nothing_is_saved_whole():
    reply = long_reply(10)
    foreign = replace(reply, tokens=tuple(replace(t, id=1) for t in reply.tokens))
    for branch in (foreign, Reply("x"), branched(reply, 0, (token("x"),))):
        data = replace(reply, branches=((4, branch),)).to_dict()
        assert "shared" not in data["branches"][0][1]
        assert Reply.from_dict(data).branches[0][1].tokens == branch.tokens


def test_branches_of_earlier_files_are_read():
    # As they were saved before branches shared anything: with all of their tokens.
    reply = long_reply(10)
    old = replace(reply, branches=()).to_dict()
    old["branches"] = [[4, branched(reply, 4, (token(" x"),)).to_dict(prompt=False)]]
    ((at, branch),) = Reply.from_dict(old).branches
    assert at == 4
    assert [t.bytes for t in branch.tokens] == [*(t.bytes for t in reply.tokens[:4]), b" x"]


def test_the_room_for_tokens_counts_branches():
    reply = long_reply(10)
    one, two = (branched(reply, 8, (token(w),) * n) for w, n in ((" a", 5), (" b", 2)))
    data = replace(reply, branches=((8, one), (8, two))).to_dict(max_tokens=13)
    first, second = (branch for _, branch in data["branches"])
    assert "tokens" not in first
    assert len(second["tokens"]) == 2
    again = Reply.from_dict(json.loads(json.dumps(data)))
    assert again.branches[0][1].text == one.text
    assert again.branches[0][1].tokens == ()
    assert again.branches[1][1].tokens == two.tokens


def test_a_small_file_cannot_become_a_huge_one(monkeypatch):
    monkeypatch.setattr("llm_magic.chat.reply.MAX_TOKENS", 100_000)
    # Each branch claims what the one before has: 32 levels of doubling would fill the memory.
    row = "1|a|||0|"
    data = {**GOOD, "tokens": [row] * 5_000}
    for _ in range(30):
        data = {**GOOD, "tokens": [row], "shared": [5_000, 0, 0], "branches": [[0, data]]}
    data = {**GOOD, "tokens": [row] * 5_000, "branches": data["branches"]}
    with pytest.raises(ValueError, match=r"too many tokens|more than there is"):
        Reply.from_dict(data)


GOOD = {"version": 1, "text": "a"}


@pytest.mark.parametrize(
    "data",
    [
        None, [], "x", {}, {"version": 2, "text": ""}, {"version": 1}, {"version": 1, "text": 3},
        {**GOOD, "tokens": {}}, {**GOOD, "tokens": ["1"]}, {**GOOD, "tokens": [[1, "a"]]},
        *({**GOOD, "tokens": [row]} for row in (
            "x|a|||0|", "1|\\xzz|||0|", "1|a|nan||0|", "1|a|<b>||0|",
            '1|"a|||0|', "1|a|||0|evil", "1|a|||0||5|b", "a" * 200_000,
        )),
        {**GOOD, "kinds": [["answer", 5]]}, {**GOOD, "kinds": [["evil", 0]]},
        {**GOOD, "finish_reason": "because"}, {**GOOD, "usage": {"prompt": -1}},
        {**GOOD, "usage": {"prompt": "9"}}, {**GOOD, "timings": {"decode": float("inf")}},
        {**GOOD, "calls": [{"id": 1, "name": "f", "arguments": "{}"}]}, {**GOOD, "prompt": 1},
        {**GOOD, "sampling": {"logit_bias": [1, 2]}}, {**GOOD, "sampling": {"mirostat": [1.0]}},
        {**GOOD, "sampling": {"stop": [1]}}, {**GOOD, "sampling": {"temperature": "hot"}},
        {**GOOD, "shared": [0, 0, 0]},
        {**GOOD, "trace": [{
            "waited": "long", "round": 1, "approval": "", "status": "", "result": "",
            "call": {"id": "", "name": "", "arguments": ""},
        }]},
        *({**GOOD, "branches": [[0, {**GOOD, "shared": cuts}]]} for cuts in (
            [1, 0, 0], [0, 2, 0], [0, 0, -1], [0, 0], {}, "x", [True, 0, 0],
        )),
        {**GOOD, "branches": [[0]]}, {**GOOD, "trace": [{}]}, {**GOOD, "model": None},
    ],
)  # fmt: skip
def test_a_foreign_dict_is_refused_with_a_reason(data):
    with pytest.raises(ValueError, match=r"not a saved reply|unpack"):
        Reply.from_dict(data)


def test_a_small_file_does_not_become_a_huge_reply():
    branch = {"version": 1, "text": "", "shared": [0, 1_000_000, 0]}
    data = {**GOOD, "text": "a" * 1_000_000, "branches": [[0, branch]] * 2_000}
    with pytest.raises(ValueError, match="share too much text"):
        Reply.from_dict(data)


def test_a_saved_branch_has_the_prompt_of_its_reply():
    inner = Reply("c", prompt="asked")
    branch = Reply("b", prompt="asked", branches=((0, inner),))
    reply = Reply.from_dict(Reply("a", prompt="asked", branches=((0, branch),)).to_dict())
    assert reply.branches[0][1].prompt == reply.branches[0][1].branches[0][1].prompt == "asked"


def test_deeply_nested_branches_are_refused():
    data = dict(GOOD)
    for _ in range(50):
        data = {**GOOD, "branches": [[0, data]]}
    with pytest.raises(ValueError, match="nested too deeply"):
        Reply.from_dict(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=8,
)
KEYS = [
    *("text", "tokens", "kinds", "calls", "usage", "timings", "sampling", "trace", "branches"),
    *("choices", "finish_reason", "prompt", "parsed", "shared", "model", "version", "reasoning"),
]


@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), json_values))
def test_any_json_is_a_reply_or_a_value_error(fields):
    with contextlib.suppress(ValueError):
        Reply.from_dict({**GOOD, **fields})
