"""`compare_models`: held against numpy from both models' full log-probabilities."""

import numpy as np
import pytest
from support.toy import toy_gguf

import llm_magic
from llm_magic import compare_models
from llm_magic.errors import RequestError, UnsupportedError
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted

TEXT = "Once upon a time the cat and the hello world of us. Once upon the cat, the users in " * 40


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The same weights in 8 and in 4 bits."""
    folder = tmp_path_factory.mktemp("pair")
    made = [
        llm_magic.load(
            str(toy_gguf(folder / f"{kind}.gguf", types=kind, ctx=512, seed=3, layers=1))
        )
        for kind in ("Q8_0", "Q4_0")
    ]
    yield made
    for llm in made:
        llm.unload()


def by_numpy(base, model, text, window):
    """The definitions of llama-perplexity, from all log-probabilities."""
    ids = [p.id for p in base.tokenize(text)]
    kl, same, own = [], [], []
    for start in range(0, len(ids) - window + 1, window):
        cut = ids[start : start + window]
        p, q = (np.float64(llm.logprobs(cut)) for llm in (base, model))
        for i in range(window // 2, window - 1):
            kl.append(np.sum(np.exp(p[i]) * (p[i] - q[i])))
            same.append(np.argmax(p[i]) == np.argmax(q[i]))
            own.append((p[i, cut[i + 1]], q[i, cut[i + 1]]))
    return np.array(kl), np.array(same), np.array(own)


@pytest.mark.parametrize("window", [64, 65])
def test_the_numbers_are_those_of_numpy(pair, window):
    base, model = pair
    found = compare_models(base, model, TEXT, window=window)
    kl, same, own = by_numpy(base, model, TEXT, window)
    assert len(found.kl) == len(kl) > 200
    assert kl.max() > 1e-4
    for ours, theirs in [
        (found.mean, kl.mean()), (found.median, np.median(kl)), (found.maximum, kl.max()),
        (found.percentile(99.9), np.percentile(kl, 99.9)), (found.same_top, same.mean()),
        (found.log_ratio, (own[:, 0] - own[:, 1]).mean()),
        (found.ratio, np.exp(-own[:, 1].mean()) / np.exp(-own[:, 0].mean())),
        (found.perplexities[0], np.exp(-own[:, 0].mean())),
        (found.mean_change, (np.exp(own[:, 1]) - np.exp(own[:, 0])).mean()),
        (found.rms_change, np.sqrt(((np.exp(own[:, 1]) - np.exp(own[:, 0])) ** 2).mean())),
        (found.errors["mean"], kl.std() / np.sqrt(len(kl) - 1)),
        (found.errors["log_ratio"], (own[:, 0] - own[:, 1]).std() / np.sqrt(len(kl) - 1)),
    ]:  # fmt: skip
        assert abs(ours - theirs) < 1e-9 * max(1, abs(theirs))


def test_a_model_with_itself_is_exactly_0(pair, tmp_path):
    base, _ = pair
    again = llm_magic.load(
        str(toy_gguf(tmp_path / "b.gguf", types="Q8_0", ctx=512, seed=3, layers=1))
    )
    for other in (base, again):
        found = compare_models(base, other, TEXT, window=64)
        assert set(found.kl) == {0.0}
        assert (found.mean, found.median, found.maximum, found.percentile(99.9)) == (0, 0, 0, 0)
        assert (found.same_top, found.ratio, found.log_ratio, found.rms_change) == (1, 1, 0, 0)
    again.unload()


def test_a_short_text_is_one_window_of_which_all_is_scored(pair):
    base, model = pair
    found = compare_models(base, model, "Once upon a time the cat")
    assert found.windows == 1
    assert len(found.places) == len(base.tokenize("Once upon a time the cat"))
    assert len(found.kl) == len(found.places) - 1
    assert b"".join(p.token for p in found.places).decode() == "Once upon a time the cat"


def test_the_text_is_shaded_and_the_numbers_are_told(pair):
    base, model = pair
    found = compare_models(base, model, TEXT, window=64)
    page = found._repr_mimebundle_()
    assert "99.9 % KL" in page["text/html"]
    assert "not scored" in page["text/html"]
    assert page["text/plain"] == repr(found)
    for line in ("mean KL", "same top token", "ratio", "second half"):
        assert line in page["text/plain"]


def test_other_vocabularies_and_short_texts_are_refused(pair, tmp_path):
    base, _ = pair
    spm = llm_magic.load(str(toy_gguf(tmp_path / "spm.gguf", tokenizer="spm", ctx=512)))
    with pytest.raises(RequestError, match="one vocabulary"):
        compare_models(base, spm, TEXT)
    with pytest.raises(RequestError, match="at least 2"):
        compare_models(base, base, "a")
    with pytest.raises(RequestError, match="must be a text"):
        compare_models(base, base, 7)
    with pytest.raises(UnsupportedError):
        compare_models(LLM(Scripted(["a"])), base, TEXT)
    found = compare_models(spm, spm, "Once upon a time the hello world", window=16)
    assert set(found.kl) == {0.0}
    spm.unload()
