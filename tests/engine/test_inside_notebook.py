"""Looking into a model from a notebook: the options of a cell, and the state of live views."""

import base64
import json

import numpy as np
import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from support.shells import cell
from support.toy import toy_gguf

from llm_magic import LLM, ControlVector
from llm_magic.errors import RequestError
from llm_magic.hub import hub
from llm_magic.providers.local import Local
from llm_magic.ui import look_inside

TEXT = "The world and the land. Once upon a time there was a king."
LAYERS, DIM, HEADS = 3, 64, 4


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    path = toy_gguf(tmp_path_factory.mktemp("inside") / "toy.gguf", layers=LAYERS, types="Q8_0")
    local = Local("toy-inside", path, 256, 4, 2)
    local.wait(lambda progress: None)
    found = LLM(local)
    hub.add("toy-inside", found)
    yield found
    hub.unload("toy-inside")
    local.close()


@pytest.fixture
def shell(llm):
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "llm_magic")
    shell.user_ns["vector"] = ControlVector({1: np.ones(DIM)}, "llama")
    yield shell
    shell.run_line_magic("unload_ext", "llm_magic")
    InteractiveShell.clear_instance()


def said(shell, options=""):
    cell(shell, f"-m toy-inside -t 0 -n 6 --complete -o reply {options}", TEXT)
    return [(t.id, t.logprob) for t in shell.user_ns["reply"].tokens]


def test_a_cell_that_inspects_shows_the_lens_and_keeps_what_it_read(shell):
    shown = cell(shell, "-m toy-inside -n 3 -t 0 --complete -o reply --inspect", TEXT)
    assert "each row is a block" in shown[-1]["text/html"]
    assert ("resid_post", LAYERS - 1) in shell.user_ns["reply"].inspection
    shown = cell(shell, "-m toy-inside -n 3 -t 0 --complete -o reply --inspect blocks.1.*", TEXT)
    assert "blocks.1.attn.hook_pattern" in shown[-1]["text/plain"]


def test_a_cell_is_steered_by_a_file_or_a_variable(shell, tmp_path):
    plain, file = said(shell), tmp_path / "v.gguf"
    shell.user_ns["vector"].save(file)
    assert said(shell, "--steer vector:0") == plain
    steered = said(shell, "--steer vector:2")
    assert steered != plain
    assert said(shell, f"--steer {file}:2") == steered
    assert said(shell, f"--steer {file}") != steered


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("nowhere.gguf", "there is no such file"),
        ("vector:strong", "not a number"),
        ("text", "no control vector"),
    ],
)
def test_what_cannot_steer_is_named(word, says):
    names = {"vector": ControlVector({1: np.ones(DIM)}), "text": "words"}
    with pytest.raises(UsageError, match=says):
        look_inside.steering(names, word)


def test_live_views_hold_all_that_they_show(llm):
    found = llm.inspect(TEXT)
    n = len(found.ids)
    attention = found.explore().state
    assert (attention["layers"], attention["heads"], len(attention["tokens"])) == (LAYERS, HEADS, n)
    pattern = np.frombuffer(base64.b64decode(attention["patterns"][1]), np.uint8)
    pattern = pattern.reshape(HEADS, n, n) / 255
    np.testing.assert_allclose(pattern, llm.inspect(TEXT, ("pattern", 1))["pattern", 1], atol=3e-3)
    lens = found.lens().explore().state
    assert len(lens["ids"]) == LAYERS
    assert {str(i) for i in np.unique(found.lens().ids)} == set(lens["names"])
    reply = llm.complete(TEXT, max_tokens=4)
    causes = reply.causes()
    state = causes.explore().state
    assert "".join(text for text, _ in state["pieces"]) == TEXT
    assert [part for _, part in state["pieces"] if part is not None] == [0, 1]
    vector = ControlVector({1: np.ones(DIM)})
    several = llm.strengths(TEXT, vector, scales=(2, 0, -2), chat=False, max_tokens=4)
    assert several.scales == (-2, 0, 2)
    assert several.replies[1].text == reply.text
    assert several.explore().state["answers"] == [r.text for r in several.replies]
    for view in (attention, lens, state, several.explore().state):
        json.dumps(view, allow_nan=False)
    with pytest.raises(RequestError, match="no live view"):
        look_inside.explore(found.norms())
