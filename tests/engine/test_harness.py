"""lm-evaluation-harness in process and as a client chooses as transformers in float32 does.

The items and transformers' choices are in tests/data/harness, with the scripts that made them.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import missing

DATA = Path(__file__).resolve().parents[1] / "data" / "harness"
TASK = "llm_magic_facts"
LIMIT = int(os.environ.get("LLM_MAGIC_HARNESS", "150"))  # items of a run; 1000 are all
SERVED = int(os.environ.get("LLM_MAGIC_HARNESS", "40"))

pytestmark = [pytest.mark.harness, pytest.mark.model, pytest.mark.slow]


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> Iterator[object]:
    """The harness's task, over our items; nothing is fetched."""
    folder = tmp_path_factory.mktemp("harness")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TQDM_DISABLE"):
            patch.setenv(name, "1")
        patch.setenv("HF_HOME", str(folder))
        try:
            from lm_eval.tasks import TaskManager
        except ImportError:
            missing("harness", "pip install 'llm-magic[evaluate]'")
            raise
        text = (DATA / "facts.yaml").read_text(encoding="utf-8")
        path = folder / "facts.yaml"
        path.write_text(text.replace("DATA", str(DATA / "items.jsonl")), encoding="utf-8")
        yield TaskManager(include_path=str(folder), include_defaults=False)


def run(model: object, tasks: object, limit: int, **options: object) -> list[list[float]]:
    """The log-likelihood of every choice of the first items."""
    from lm_eval import simple_evaluate

    found = simple_evaluate(
        model, tasks=[TASK], task_manager=tasks, limit=limit, log_samples=True, bootstrap_iters=0,
        **options,
    )  # fmt: skip
    samples = sorted(found["samples"][TASK], key=lambda sample: sample["doc_id"])
    return [[float(pair[0]) for pair in sample["filtered_resps"]] for sample in samples]


def assert_same_choices(scores: list[list[float]]) -> None:
    golden = json.loads((DATA / "golden.json").read_text(encoding="utf-8"))
    same = [max(range(4), key=s.__getitem__) for s in scores]
    wanted = golden["chosen"][: len(scores)]
    wrong = [i for i, pair in enumerate(zip(same, wanted, strict=True)) if pair[0] != pair[1]]
    assert len(wrong) <= 0.001 * len(scores), {i: scores[i] for i in wrong}
    pairs = zip(scores, golden["logprobs"], strict=False)
    apart = [abs(a - b) for ours, theirs in pairs for a, b in zip(ours, theirs, strict=True)]
    assert max(apart) < 0.05  # nats, of a whole continuation


def test_in_process_the_harness_chooses_as_transformers_in_float32(smollm2, tasks):
    from llm_magic.harness import HarnessModel

    assert_same_choices(run(HarnessModel(smollm2), tasks, LIMIT))


def test_through_the_server_the_harness_chooses_as_transformers_in_float32(
    smollm2, tasks, monkeypatch
):
    with smollm2.serve() as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.token)
        scores = run(
            "local-completions", tasks, SERVED,
            model_args={
                "base_url": f"{server.url}/completions", "model": server.model,
                "auth_token": server.token, "num_concurrent": 3, "max_retries": 1,
            },
        )  # fmt: skip
    assert_same_choices(scores)


def test_texts_and_perplexities_in_process_and_served_are_the_same(smollm2, tasks, monkeypatch):
    """Generation until a stop string, and the log-likelihood of a whole text."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from llm_magic.harness import HarnessModel

    asked = [
        ("The capital of France is", {"until": ["."], "max_gen_toks": 12}),
        ("One, two, three,", {"until": ["five", "\n"], "max_gen_toks": 12, "do_sample": False}),
    ]
    texts = [Instance("generate_until", {}, args, 0) for args in asked]
    whole = [Instance("loglikelihood_rolling", {}, ("A cat sat on the mat.",), 0)]
    ours = HarnessModel(smollm2)
    with smollm2.serve() as server:
        monkeypatch.setenv("OPENAI_API_KEY", server.token)
        served = LocalCompletionsAPI(
            f"{server.url}/completions", "remote", auth_token=server.token, model=server.model
        )
        assert served.generate_until(texts) == ours.generate_until(texts)
        assert served.eot_token_id == ours.eot_token_id
        rolling = served.loglikelihood_rolling(whole, disable_tqdm=True)
    assert rolling == pytest.approx(ours.loglikelihood_rolling(whole), abs=1e-3)


def test_an_end_that_comes_at_once_is_an_entry_of_its_own(smollm2):
    """The harness takes the entries up to the last one: that of the token behind the prompt."""
    from support.servers import client

    reply = smollm2.chat("Say hello.", temperature=0)
    ids = [*reply.prompt_ids, *(t.id for t in reply.tokens)]  # behind these the model ends
    assert reply.finish_reason == "stop"
    with smollm2.serve() as server, client(server) as http:
        ask = {"prompt": ids, "echo": True, "logprobs": 1, "max_tokens": 1}
        (choice,) = http.post("/v1/completions", json=ask).json()["choices"]
    assert choice["finish_reason"] == "stop"
    found = choice["logprobs"]
    assert len(found["tokens"]) == len(ids) + 1
    assert found["tokens"][-1] == "<|im_end|>"
    scored = smollm2.provider.score(ids, 1)
    assert found["token_logprobs"][:-1] == [t.logprob for t in scored]


@pytest.mark.peers
def test_a_server_without_echo_cannot_do_it(smollm2_path):
    """llama.cpp's server sends no logprobs of a prompt: the harness fails there."""
    xllamacpp = pytest.importorskip("xllamacpp")
    p = xllamacpp.CommonParams()
    p.model.path = str(smollm2_path)
    p.n_ctx, p.n_gpu_layers, p.n_parallel, p.warmup, p.fit_params = 256, 0, 1, False, False
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(p)
    ask = {"prompt": [504, 3575], "echo": True, "logprobs": 1, "max_tokens": 1, "temperature": 0}
    (choice,) = server.handle_completions(ask)["choices"]
    entries = choice["logprobs"]["content"]
    assert len(entries) == 1  # of the drawn token, and none of the prompt
