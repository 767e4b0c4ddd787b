"""Fixtures of all tests: the two real models, the reference values, and required tools."""

import os
import shutil
import signal
from pathlib import Path

import pytest

# A background job of a shell inherits an ignored SIGINT. The tests need it, here and in the kernels
# that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent
REQUIRED = frozenset(filter(None, os.environ.get("LLM_MAGIC_REQUIRE", "").split(",")))


def missing(what: str, how: str) -> None:
    """Skip with the way to install it; fail where LLM_MAGIC_REQUIRE says it must be there."""
    if what in REQUIRED:
        pytest.fail(f"{what} is required here but missing: {how}", pytrace=False)
    pytest.skip(f"{what} not found: {how}")


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    from llm_magic import models

    return models.resolve("smollm2").path


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    from llm_magic import models

    return models.resolve("gemma3-270m").path


@pytest.fixture(scope="session")
def qwen_path() -> Path:
    from llm_magic import models

    return models.resolve("qwen2.5-coder-1.5b").path


@pytest.fixture(scope="session")
def minilm_path() -> Path:
    from llm_magic import models

    return models.resolve("minilm").path


@pytest.fixture(scope="session")
def chromium() -> str:
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return found
    missing("browser", "apt-get install chromium (or any Chromium on PATH)")
    raise AssertionError  # not reached: missing() never returns


@pytest.fixture(scope="session")
def reference_dir() -> Path:
    """fp32 log-probabilities: beside the checkout, or named by LLM_MAGIC_REFERENCE."""
    for place in (os.environ.get("LLM_MAGIC_REFERENCE"), ROOT / "tests" / "data" / "reference"):
        if place and (Path(place) / "smollm2.npz").exists():
            return Path(place)
    missing("reference", "set LLM_MAGIC_REFERENCE to a folder with smollm2.npz")
    raise AssertionError


@pytest.fixture
def start():
    """Makes schedulers over a fake forward pass (fakes.py), closed when the test ends."""
    from support.fakes import fake_scheduler

    made = []

    def make(forward=None, **options):
        scheduler, forward = fake_scheduler(forward, **options)
        made.append(scheduler)
        return scheduler, forward

    yield make
    for scheduler in made:
        scheduler.close()
