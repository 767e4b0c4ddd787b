"""Fixtures of tests with a real engine."""

from collections.abc import Iterator
from pathlib import Path

import pytest

import llm_magic


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[llm_magic.LLM]:
    llm = llm_magic.load("smollm2")
    yield llm
    llm.unload()
