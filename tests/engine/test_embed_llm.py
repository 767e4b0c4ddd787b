"""Vectors of texts from a language model."""

import numpy as np
import pytest

import llm_magic
from llm_magic.errors import ContextOverflowError, ModelWarning

pytestmark = pytest.mark.model
TEXTS = ["A cat sits on the mat.", "Stock prices fell.", "The kitten is on a rug.", "x " * 90]


def test_vectors_are_the_last_hidden_states_in_any_company(smollm2: llm_magic.LLM) -> None:
    # LAI-71, LAI-72
    every = smollm2.embed(TEXTS, pooling="none", normalize=False)
    pooled = smollm2.embed(TEXTS, normalize=False)
    assert pooled.shape == (4, 576)
    for i, text in enumerate(TEXTS):
        ids = [p.id for p in smollm2.tokenize(text, special=False)]
        assert every[i].shape == (len(ids), 576)
        assert (smollm2.embed(text, normalize=False)[0] == pooled[i]).all()
        assert np.abs(every[i].astype(np.float64).mean(0) - pooled[i]).max() < 1e-6
        assert (smollm2.embed(text, pooling="last", normalize=False)[0] == every[i][-1]).all()


def test_a_text_that_does_not_fit(smollm2: llm_magic.LLM) -> None:
    long = "word " * 5000
    with pytest.raises(ContextOverflowError, match="truncate=True"):
        smollm2.embed(["a", long])
    with pytest.warns(ModelWarning, match="text 1 has"):
        assert smollm2.embed(["a", long], truncate=True).shape == (2, 576)


def test_a_chat_model_reranks_by_its_yes(smollm2: llm_magic.LLM) -> None:
    documents = ["Paris is the capital of France.", "Bread is made of flour."]
    ranked = smollm2.rerank("What is the capital of France?", documents)
    assert [r.index for r in ranked] == [0, 1]
    assert all(0 < r.score < 1 for r in ranked)
    again = smollm2.rerank("What is the capital of France?", documents[::-1])
    assert [r.score for r in again] == [r.score for r in ranked]
