"""/v1/decisions and /v1/systemone: both forms, and that they say what `LLM.decide` says."""

import math

import pytest
from openai import OpenAI
from support.servers import served

from llm_magic.decisions.question import Question
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted


def scores(request, choices):
    """The later in the alphabet the likelier; texts that name anger shift it."""
    text = request.messages[-1].text
    return [-0.25 * (9 - ord(c[0]) % 10) - (1.0 if "angry" in text and c[0] == "n" else 0.0)
            for c in choices]  # fmt: skip


@pytest.fixture(scope="module")
def http():
    with served(Scripted([], scores=scores, model="fake")) as (server, client):
        client.llm, client.server = LLM(Scripted([], scores=scores)), server
        yield client


STATE = "I was charged twice and I am angry."
QUESTIONS = [
    {"type": "predicate", "name": "refund", "instructions": "Does the customer want a refund?"},
    {
        "type": "choice",
        "name": "team",
        "instructions": "Which team answers?",
        "choices": [{"value": "billing", "description": "money"}, {"value": "technical"}],
    },
    {"type": "choice", "instructions": "Is it so?", "choices": [{"value": True}, {"value": False}]},
    {
        "type": "score",
        "name": "anger",
        "instructions": "How angry?",
        "levels": [{"label": "calm"}, {"label": "annoyed"}, {"label": "furious"}],
    },
]


def test_decisions_are_those_of_decide(http):
    answer = http.post(
        "/v1/decisions", json={"model": "fake", "input": STATE, "questions": QUESTIONS}
    )
    assert answer.status_code == 200, answer.text
    data = answer.json()
    assert data["model"] == "fake"
    yes = http.llm.decide(f"{STATE}\n\n{QUESTIONS[0]['instructions']}", yes_no=True)
    team = http.llm.decide(
        f"{STATE}\n\nWhich team answers?\nbilling: money", choices=["billing", "technical"]
    )
    assert data["answers"][0] == {
        "type": "predicate", "name": "refund", "probability": yes.probabilities["yes"],
    }  # fmt: skip
    found = data["answers"][1]
    assert found["choice"] == team.choice
    assert {p["value"]: p["probability"] for p in found["probabilities"]} == team.probabilities
    assert found["confidence"] == pytest.approx(1 - team.entropy / math.log(2))
    assert data["answers"][2]["choice"] in (True, False)
    assert [p["value"] for p in data["answers"][2]["probabilities"]] == [True, False]
    assert "name" not in data["answers"][2]
    levels = data["answers"][3]
    assert [p["value"] for p in levels["probabilities"]] == [0, 1, 2]
    mean = sum(p["value"] * p["probability"] for p in levels["probabilities"])
    assert levels["score"] == pytest.approx(mean)
    usage = data["usage"]
    assert usage["output_tokens"] == 0
    assert usage["total_tokens"] == usage["input_tokens"]
    assert usage.keys() == {
        "input_tokens", "input_tokens_details", "output_tokens", "output_tokens_details",
        "total_tokens",
    }  # fmt: skip


def test_messages_of_a_user_are_an_input_too(http):
    parts = [{"type": "input_text", "text": "I was charged twice "},
             {"type": "input_text", "text": "and I am angry."}]  # fmt: skip
    body = {"input": [{"role": "user", "content": parts}], "questions": QUESTIONS[:1]}
    plain = {"input": STATE, "questions": QUESTIONS[:1]}
    one, other = (http.post("/v1/decisions", json=b).json()["answers"] for b in (body, plain))
    assert one == other


def test_the_official_client_reads_the_answers(http):
    with OpenAI(base_url=http.server.url, api_key=http.server.token, max_retries=0) as client:
        if not hasattr(client, "decisions"):
            found = client.post(
                "/decisions",
                cast_to=object,
                body={"model": "fake", "input": STATE, "questions": QUESTIONS},
            )
            assert len(found["answers"]) == 4
            return
        found = client.decisions.create(model="fake", input=STATE, questions=QUESTIONS)
        assert [a.type for a in found.answers] == ["predicate", "choice", "choice", "score"]
        assert found.answers[1].choice in ("billing", "technical")
        assert found.answers[2].choice in (True, False)


def test_system_one_has_a_name_for_each_question(http):
    questions = {
        "refund": {"type": "noul", "instructions": "Does the customer want a refund?"},
        "team": {
            "type": "choice",
            "instructions": "Which team answers?",
            "criteria": {"billing": "money", "technical": None},
        },
        "anger": {
            "type": "score", "instructions": "How angry?",
            "criteria": ["calm", "annoyed", "furious"],
        },
    }  # fmt: skip
    answer = http.post("/v1/systemone", json={"state": STATE, "questions": questions})
    assert answer.status_code == 200, answer.text
    answers = answer.json()["answers"]
    same = http.post("/v1/decisions", json={"input": STATE, "questions": QUESTIONS}).json()[
        "answers"
    ]
    assert list(answers) == list(questions)
    assert answers["refund"] == {"type": "noul", "noul": same[0]["probability"]}
    assert answers["team"]["choice"] == same[1]["choice"]
    assert answers["team"]["confidence"] == same[1]["confidence"]
    assert answers["anger"]["score"] == same[3]["score"]
    assert answers["anger"]["legend"] == {"0": "calm", "1": "annoyed", "2": "furious"}
    assert math.fsum(answers["anger"]["probabilities"].values()) == pytest.approx(1.0)


def test_a_state_may_be_structured_and_options_may_say_what_they_mean(http):
    questions = {"ok": {"type": "noul", "instructions": "Is it?", "criteria": {"true": "so it is"}}}
    body = {"state": {"order": 3, "naïve": ["x"]}, "questions": questions}
    found = http.post("/v1/systemone", json=body).json()["answers"]["ok"]["noul"]
    prompt = '{"order": 3, "naïve": ["x"]}\n\nIs it?\nyes: so it is'
    assert found == http.llm.decide(prompt, yes_no=True).probabilities["yes"]


def test_levels_of_a_scale_are_shown_rising_and_falling():
    asked = Question(("low", "middle", "high"), values=(0.0, 1.0, 2.0))
    assert asked.orders == (("low", "middle", "high"), ("high", "middle", "low"))


def choosing(*values):
    return {**QUESTIONS[1], "choices": [{"value": value} for value in values]}


BAD = [
    ("/v1/decisions", {"questions": QUESTIONS}, "input is missing"),
    ("/v1/decisions", {"input": " ", "questions": QUESTIONS}, "input is missing"),
    ("/v1/decisions", {"input": STATE}, "questions must be a list"),
    ("/v1/decisions", {"input": STATE, "questions": {}}, "questions must be a list"),
    ("/v1/decisions", {"input": STATE, "questions": [{"type": "guess", "instructions": "x"}]},
     "must be predicate, choice or score"),
    ("/v1/decisions", {"input": STATE, "questions": [{"type": "predicate"}]}, "instructions"),
    ("/v1/decisions", {"input": STATE, "questions": ["x"]}, "must be an object"),
    ("/v1/decisions", {"input": STATE, "questions": QUESTIONS * 40}, "the most questions"),
    ("/v1/decisions", {"input": STATE, "questions": [choosing("a")]},
     "the question 'team': choices holds only 'a'"),
    ("/v1/decisions", {"input": STATE, "questions": [choosing("true", True)]}, "'true' twice"),
    ("/v1/decisions", {"input": STATE, "questions": [choosing(1, 2)]},
     "must be a text"),
    ("/v1/decisions", {"input": [{"role": "assistant", "content": "x"}], "questions": QUESTIONS},
     "only user messages"),
    ("/v1/decisions", {"input": [{"role": "user", "content": [{"type": "input_image"}]}],
                       "questions": QUESTIONS}, "reads text only"),
    ("/v1/decisions", {"input": STATE, "questions": QUESTIONS, "temperature": 1}, "temperature"),
    ("/v1/systemone", {"state": STATE, "questions": []}, "questions must be an object"),
    ("/v1/systemone", {"questions": {"a": {"type": "noul", "instructions": "x"}}}, "state"),
    ("/v1/systemone", {"state": STATE, "questions": {"a": {"type": "choice", "instructions": "x"}}},
     "criteria must be an object"),
    ("/v1/systemone", {"state": STATE, "questions": {"a": {"type": "score", "instructions": "x"}}},
     "criteria must be a list"),
    ("/v1/systemone", {"state": STATE, "stream": True, "questions": {}}, "stream"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "message"), BAD)
def test_what_makes_no_decision_is_an_error_that_says_why(http, path, body, message):
    answer = http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert message in answer.json()["error"]["message"]


def test_a_model_that_cannot_decide_says_so():
    body = {"input": STATE, "questions": QUESTIONS[:1]}
    with served(Scripted(["x"])) as (_, http):
        answer = http.post("/v1/decisions", json=body)
    assert answer.status_code in (400, 501)
    assert "choices" in answer.json()["error"]["message"]
