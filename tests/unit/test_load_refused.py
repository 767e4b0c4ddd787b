"""A load in a process that may not write files ends in an error of ours."""

import pytest
from support.toy import toy_gguf

from llm_magic.engine import load
from llm_magic.errors import ModelError


def test_a_process_that_may_not_write_gets_a_model_error(tmp_path, monkeypatch) -> None:  # F312
    def refused(*_: object) -> None:
        raise OSError(27, "File too large")

    monkeypatch.setattr(load.device, "prepare", refused)
    engine = load.Engine(toy_gguf(tmp_path / "m.gguf"), load.Options(n_ctx=64, n_slots=1))
    engine.start()
    with pytest.raises(ModelError, match=r"m\.gguf cannot be loaded: File too large.*ulimit -f"):
        engine.ready.result(60)
    engine.close()
