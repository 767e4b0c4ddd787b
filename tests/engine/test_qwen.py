"""Qwen2.5-Coder 1.5B: a second real chat model, with biases, an untied head and a tool template."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import llm_magic
from llm_magic.hub import hub

pytestmark = [pytest.mark.qwen, pytest.mark.slow]


@pytest.fixture(scope="module")
def qwen(qwen_path: Path) -> Iterator[llm_magic.LLM]:
    yield llm_magic.load(str(qwen_path), ctx=2048)
    hub.unload()


def test_its_log_probabilities_are_those_of_float32(
    qwen: llm_magic.LLM, reference_dir: Path
) -> None:
    data = np.load(reference_dir / "qwen2.npz")
    for key in ("chat", "code"):
        ids = data[f"{key}_ids"].tolist()
        ours = qwen.logprobs(ids)
        right = data[f"{key}_last"]
        error = np.abs(ours[-1] - right)
        assert error.mean() <= 0.005
        assert error[np.argsort(right)[-20:]].max() <= 0.01
        assert ours[-1].argmax() == right.argmax()
        follows = ours[np.arange(len(ids) - 1), ids[1:]]
        assert np.abs(follows - data[f"{key}_tok"]).mean() <= 0.001


def test_its_token_ids_are_those_of_llama_cpp(qwen: llm_magic.LLM, reference_dir: Path) -> None:
    texts = json.loads((reference_dir / "texts.json").read_text())
    data = np.load(reference_dir / "qwen2.npz")
    assert [p.id for p in qwen.tokenize(texts["code"])] == data["code_ids"].tolist()


def test_it_answers_a_question(qwen: llm_magic.LLM) -> None:
    reply = qwen.chat("What is the capital of France? One word.", temperature=0, max_tokens=8)
    assert "Paris" in reply.text
    assert reply.finish_reason == "stop"


def test_it_calls_a_tool(qwen: llm_magic.LLM) -> None:
    calls = []

    def stock(item: str) -> int:
        """How many pieces of an item are in stock.

        Args:
            item: name of the item
        """
        calls.append(item)
        return 417

    conversation = llm_magic.Conversation(qwen, tools=[stock], temperature=0, max_tokens=80)
    reply = conversation.ask("How many bolts are in stock? Use the tool.")
    assert calls, reply.text
    assert "bolt" in calls[0].lower()
    assert (reply.trace[0].status, reply.trace[0].result) == ("ok", "417")
    assert not reply.text  # nothing of the calls shows as text


def test_it_writes_json_of_a_schema(qwen: llm_magic.LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
        "required": ["city", "people"],
        "additionalProperties": False,
    }
    reply = qwen.chat("Paris has about two million people. As JSON.", schema=schema, temperature=0)
    assert reply.parsed["city"] == "Paris"
    assert isinstance(reply.parsed["people"], int)


def test_it_fills_in_the_middle(qwen: llm_magic.LLM) -> None:
    text = "<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>\n\nprint(add(1, 2))<|fim_middle|>"
    reply = qwen.complete(text, temperature=0, max_tokens=12)
    assert reply.text.strip().startswith("return a + b")
