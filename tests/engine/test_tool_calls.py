"""Calls and conversations on real engines: forced calls are always valid, histories fit the window,
control tokens never show, and a suffix is filled in where the vocabulary knows how."""

import json
from typing import Literal

import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic.chat.conversation import Conversation
from llm_magic.errors import ContextOverflowError, RequestError
from llm_magic.events import Delta, Message

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    llm = llm_magic.load(
        str(toy_gguf(tmp_path_factory.mktemp("toy") / "toy.gguf", ctx=1024)), ctx=1024
    )
    yield llm
    llm.unload()


@llm_magic.tool
def weather(city: str, unit: Literal["celsius", "fahrenheit"] = "celsius") -> str:
    """The weather of a city.

    Args:
        city: Its name.
        unit: Of the temperature.
    """
    return f"{city}: 21 degrees {unit}, sunny"


@llm_magic.tool
def add(a: float, b: float) -> float:
    """Add two numbers."""
    return a + b


# ----------------------------------------------------------------------------- behaviour (toy)


@pytest.mark.parametrize("choice", ["required", "add"])
def test_a_model_of_noise_makes_valid_calls_when_it_must(toy, choice):
    def flag(on: bool, level: Literal["low", "high"]) -> str:
        """Switch."""
        return "ok"

    tools = [llm_magic.tool(name="add")(flag), weather][: 1 + (choice == "required")]
    for seed in range(6):
        reply = toy.chat(
            "hello", tools=tools, tool_choice=choice, temperature=1.5, seed=seed, max_tokens=300
        )
        if reply.finish_reason == "length":
            assert reply.calls == ()  # cut: no call, and said to be cut
            continue
        (call,) = reply.calls
        assert reply.finish_reason == "tool_calls"
        assert reply.text == ""
        called = next(t for t in tools if t.name == call.name)
        assert called.problems(json.loads(call.arguments)) == []


# LAI-29
@pytest.mark.parametrize(
    "syntax", ["hermes", "xml", "llama3", "mistral", "pythonic", "json", "glm"]
)
def test_the_syntax_of_calls_can_be_chosen(toy, syntax):
    def flag(on: bool) -> str:
        """Switch."""
        return "ok"

    reply = toy.chat(
        "hello",
        tools=[flag],
        tool_choice="flag",
        tool_syntax=syntax,
        temperature=1.0,
        seed=2,
        max_tokens=300,
    )
    if reply.finish_reason == "tool_calls":
        assert json.loads(reply.calls[0].arguments).keys() == {"on"}
    assert reply.finish_reason in ("tool_calls", "length")


# LAI-29
def test_an_unknown_syntax_is_named(toy):
    with pytest.raises(RequestError, match="tool_syntax is 'x'; there are hermes, xml"):
        toy.chat("hello", tools=[add], tool_syntax="x")


def test_an_answer_in_a_schema_or_a_call(toy):
    kinds = set()
    for seed in range(12):
        reply = toy.chat(
            "hello",
            tools=[lambda_tool()],
            schema={"enum": [1, 2]},
            temperature=2.0,
            seed=seed,
            max_tokens=200,
        )
        kinds.add(reply.finish_reason)
        if reply.finish_reason == "stop":
            assert reply.parsed in (1, 2)
    assert "stop" in kinds


def lambda_tool():
    def go() -> None:
        """Go."""

    return llm_magic.tool(go)


def test_tool_choice_none_rules_calls_out(toy):
    for seed in range(4):
        options = {"temperature": 1.0, "seed": seed, "max_tokens": 8, "logit_bias": {"{": 50.0}}
        reply = toy.chat("hello", tools=[add], tool_choice="none", **options)
        assert (reply.calls, reply.finish_reason != "tool_calls") == ((), True)
        assert not reply.text.lstrip().startswith("{")
        assert "add" not in reply.prompt
        assert toy.chat("hello", **options).text.lstrip().startswith("{")


def test_control_tokens_never_show(toy):
    controls = [t for t in toy.provider.engine.loaded().tokenizer.control_texts if t]
    ids = sorted(toy.provider.engine.loaded().tokenizer.control_ids)
    ends = toy.provider.engine.loaded().tokenizer.end_ids
    hidden = [i for i in ids if i not in ends]
    reply = toy.complete("hello", logit_bias=dict.fromkeys(hidden, 100.0), max_tokens=4)
    assert reply.usage.completion == 4
    assert not any(text in reply.text for text in controls)


# LC-14
def test_a_suffix_ends_the_text(toy):
    reply = toy.complete("hello", suffix=" world", max_tokens=3)
    assert reply.text.endswith(" world")
    assert reply.usage.completion == 3


# LC-12
def test_stopping_on_the_echoed_prompt_generates_nothing(toy):
    seen = []

    def listen(delta: Delta):
        seen.append(delta.text)
        return llm_magic.llm.Control.STOP

    reply = toy.stream("hello", echo=True, on_delta=listen, max_tokens=50)
    assert seen == ["hello"]
    assert reply.text == "hello"
    assert reply.usage.completion == 0


# LC-74
def test_fill_in_the_middle(tmp_path):
    fim = {
        "tokenizer.ggml.fim_pre_token_id": 3,
        "tokenizer.ggml.fim_suf_token_id": 4,
        "tokenizer.ggml.fim_mid_token_id": 5,
    }
    llm = llm_magic.load(str(toy_gguf(tmp_path / "fim.gguf", metadata=fim)))
    try:
        tokenizer = llm.provider.engine.loaded().tokenizer
        assert (tokenizer.fim["prefix"], tokenizer.fim["suffix"], tokenizer.fim["middle"]) == (
            3,
            4,
            5,
        )
        reply = llm.complete("hello", suffix=" world")
        before, after = tokenizer.encode("hello"), tokenizer.encode(" world")
        assert list(reply.prompt_ids)[-len(before) - len(after) - 3 :] == [3, *before, 4, *after, 5]
        assert reply.text.endswith(" world")
        assert (reply.sampling.temperature, reply.sampling.max_tokens) == (0.0, 256)
    finally:
        llm.unload()


def long_history(n: int) -> list[Message]:
    turns = [Message("system", "rules")]
    for i in range(n):
        turns += [Message("user", f"question {i} hello world"), Message("assistant", f"answer {i}")]
    return [*turns, Message("user", "and the last one")]


# B095
def test_trim_leaves_whole_exchanges_out_and_is_off_by_default(toy):
    history = long_history(80)
    with pytest.raises(ContextOverflowError, match="trim=True"):
        toy.chat(history, max_tokens=8)
    reply = toy.chat(history, trim=True, max_tokens=8)
    assert reply.usage.prompt + 8 <= 1024
    assert reply.prompt.count("rules") == 1
    assert "and the last one" in reply.prompt
    assert "question 79" in reply.prompt
    kept = [i for i in range(80) if f"question {i} " in reply.prompt]
    assert kept == list(range(kept[0], 80))
    assert all(f"answer {i}" in reply.prompt for i in kept)
    # One exchange more would not have fitted.
    longer = [history[0], *history[1 + 2 * (kept[0] - 1) :]]
    assert toy.chat(longer, trim=True, max_tokens=8).prompt == reply.prompt
    assert (
        toy.chat(history[:5] + history[-1:], trim=True, max_tokens=8).prompt.count("question") == 2
    )


def test_reasoning_before_a_bound_answer(tmp_path):
    llm = llm_magic.load(str(toy_gguf(tmp_path / "think.gguf", template=THINKING)))
    try:
        tags = llm.provider.template.reasoning
        assert (tags.open, tags.close) == ("<think>", "</think>") if tags.close else True
        reply = llm.chat("hello", choices=["yes", "no"], thinking=False, max_tokens=30)
        assert reply.text in ("yes", "no")
        assert reply.reasoning == ""
        reply = llm.chat("hello", choices=["yes", "no"], thinking=True, max_tokens=30)
        assert reply.prompt.endswith("<think>\n")
        if reply.finish_reason == "length":
            assert reply.text == ""  # still thinking: nothing of it is an answer
        else:
            assert reply.text in ("yes", "no")
    finally:
        llm.unload()


# ----------------------------------------------------------------------------- truth (SmolLM2)


@pytest.mark.model
def test_smollm2_makes_valid_calls_every_time_when_it_must(smollm2):
    questions = ["What is the weather in Paris?", "How much is 12 plus 30?", "Tell me a joke.", "?"]
    for seed in range(12):
        reply = smollm2.chat(
            questions[seed % 4],
            tools=[weather, add],
            tool_choice="required",
            temperature=1.0,
            seed=seed,
        )
        assert reply.finish_reason == "tool_calls", reply
        (call,) = reply.calls
        tool = {"weather": weather, "add": add}[call.name]
        assert tool.problems(json.loads(call.arguments)) == []
    call = smollm2.chat("Hello!", tools=[weather, add], tool_choice="add", seed=1).calls[0]
    assert call.name == "add"


@pytest.mark.model
def test_a_tool_loop_with_smollm2(smollm2):
    chat = Conversation(
        smollm2, tools=[weather, add], tool_choice="required", temperature=0, max_steps=1
    )
    reply = chat.ask("What is the weather in Paris?")
    (record,) = reply.trace
    assert (record.call.name, record.status) == ("weather", "ok")
    assert record.arguments["city"] == "Paris"
    assert "21 degrees" in reply.text
    assert reply.finish_reason in ("stop", "length")
    reply = chat.ask("And how much is 12 plus 30?")
    assert reply.trace[0].result == "42.0"
    assert "42" in reply.text
    assert len(chat.exchanges) == 2
    assert reply.usage.cached > 0  # the history was not read again


# B071
@pytest.mark.model
def test_prefill_and_reasoning_leave_no_trace_in_the_next_prompt(smollm2):
    reply = smollm2.chat(
        [
            {"role": "user", "content": "Name a colour."},
            {"role": "assistant", "content": "The colour is"},
        ],
        max_tokens=4,
        temperature=0,
    )
    assert reply.prompt.endswith("The colour is")
    again = smollm2.chat(
        [Message("user", "x"), Message("assistant", "A", reasoning="secret"), Message("user", "y")],
        max_tokens=1,
    )
    assert "secret" not in again.prompt
