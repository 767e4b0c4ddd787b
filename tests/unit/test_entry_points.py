"""Whatever is passed to a public entry point, only errors of the project come back."""

import contextlib
import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llm_magic.arguments import as_prompt, build_request, option_names
from llm_magic.chat.reply import Reply
from llm_magic.errors import LLMError
from llm_magic.events import Sampling
from llm_magic.hub import Hub
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.sampling import FIELDS

# Lone surrogates, control characters, halves of numbers: what JSON from elsewhere may hold.
TEXT = st.text(st.characters(), max_size=6) | st.sampled_from(["\ud800", "a|b", "\0", "~nobody/x"])
NUMPY = st.sampled_from(
    [
        np.int64(3), np.float32("nan"), np.float64(1e300), np.bool_(True), np.array(3),
        np.array([1, 2]), np.array([[1]]), np.array(["a"]), np.array([None]), np.uint8(255),
        np.array([]), np.str_("x"), np.datetime64("2020-01-01"), np.complex64(1j),
    ]
)  # fmt: skip
LEAF = (
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT | NUMPY | st.binary(max_size=3)
    | st.sampled_from([2**70, -1, 10**400, 1j, object(), ..., len, int, Sampling()])
)  # fmt: skip
VALUE = st.recursive(
    LEAF,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(TEXT | st.integers(-9, 9), inner, max_size=3)
        | st.fixed_dictionaries({"role": inner, "content": inner}).map(lambda m: [m])
    ),
    max_leaves=6,
)
MANY = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@given(st.sampled_from(sorted(option_names())), VALUE)
@MANY
def test_an_option_is_read_or_a_request_error(name, value):  # F204, F205, F206, F312
    with contextlib.suppress(LLMError):
        request = build_request("x", Sampling(), {name: value})
        json.dumps(Reply("x", sampling=request.sampling).to_dict()).encode()


@given(VALUE)
@MANY
def test_a_prompt_is_read_or_a_request_error(value):  # F204, F312
    with contextlib.suppress(LLMError):
        as_prompt(value)


METHODS = ["complete", "chat", "stream", "score", "logprobs", "tokenize", "detokenize", "render"]


@given(st.sampled_from(METHODS), VALUE, st.sampled_from(["system", "n", "best_of", "given"]), VALUE)
@MANY
def test_a_method_answers_or_raises_an_error_of_the_project(method, first, name, value):
    llm = LLM(Scripted(lambda request: "an answer"))
    options = {name: value} if method in ("complete", "chat", "stream") else {}
    if method in ("complete", "stream") and name in ("system", "n", "best_of"):
        options = {"logprobs": value}
    if name in ("n", "best_of") and isinstance(value, int) and value > 50:
        return  # so many answers are what was asked for
    with contextlib.suppress(LLMError):
        getattr(llm, method)(first, **options)


@given(VALUE, st.sampled_from(["ctx", "slots", "threads", "cache_mb", "device"]), VALUE)
@MANY
def test_a_load_of_nonsense_raises_an_error_of_the_project(name, size, value):
    if isinstance(name, str) and not name.startswith(("~", "\0", "\ud800")):
        name = f"/nowhere/{name}.gguf"  # never a name that could be fetched
    if name is None or (isinstance(name, str) and not name):
        return  # the default model
    with contextlib.suppress(LLMError):
        Hub().load(name, **{size: value})


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_every_setting_is_checked_and_said_in_words(name):
    field = FIELDS[name]
    assert field.help.endswith(".")
    with pytest.raises(LLMError, match=f"^{name}.*{field.bounds.split()[0]}"):
        field.read(object())
