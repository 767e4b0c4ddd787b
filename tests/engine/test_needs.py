"""What a model needs, as its file and the table of named models say, and as a load takes it."""

import pytest
from support.toy import toy_gguf

from llm_magic import models
from llm_magic.engine import needs, room
from llm_magic.engine.load import Engine, Options
from llm_magic.errors import ModelError
from llm_magic.models.table import PACKAGED


@pytest.mark.parametrize("kernel", ["", "portable"])
def test_a_load_is_refused_where_the_needs_of_its_file_have_no_room(tmp_path, monkeypatch, kernel):
    """F271 F310: on both paths."""
    monkeypatch.setenv("LLM_MAGIC_KERNEL", kernel)
    path = toy_gguf(tmp_path / "toy.gguf", ctx=512)
    found = needs.of_file(path)
    assert found.context == 512

    def outcome(free):
        monkeypatch.setattr(room, "available", lambda: free)
        engine = Engine(path, Options(n_ctx=512, n_slots=1, threads=1))
        engine.start()
        try:
            engine.ready.result()
        finally:
            engine.close()

    with pytest.raises(ModelError, match=r"toy\.gguf needs .* choose a smaller model"):
        outcome(found.memory // 2)
    outcome(found.memory + room.RESERVE)


def test_a_file_that_the_kernels_cannot_run_needs_float32_weights(tmp_path):
    """F271"""
    sizes = {"heads": 1, "kv_heads": 1, "head_dim": 1024, "layers": 4}  # heads beyond the kernels'
    path = toy_gguf(tmp_path / "toy.gguf", types="Q8_0", dim=256, ff=2048, **sizes)
    assert needs.of_file(path).memory > 3.5 * path.stat().st_size


@pytest.mark.model
@pytest.mark.gemma
@pytest.mark.qwen
@pytest.mark.minilm
def test_the_table_of_models_says_what_their_files_say(
    smollm2_path, gemma3_path, qwen_path, minilm_path
):
    """F271: within a tenth, as it is shown before the file is here."""
    paths = {"smollm2": smollm2_path, "gemma3-270m": gemma3_path, "qwen2.5-coder-1.5b": qwen_path}
    paths["minilm"] = minilm_path
    assert set(paths) == {m.name for m in PACKAGED}
    for m in PACKAGED:
        found = needs.of_file(paths[m.name])
        assert m.context == found.context, m.name
        assert 0.9 < m.memory / found.memory < 1.1, (m.name, found)
    assert all(row.memory > row.size and row.context for row in models.known() if row.licence)
