"""Model files and downloads that cannot be right: each is a clear error, and nothing is left."""

import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from support.toy import toy_gguf

from llm_magic import models
from llm_magic.engine import room
from llm_magic.engine.gguf import open_gguf
from llm_magic.engine.quants import dequantize
from llm_magic.engine.tokenizer import sentencepiece
from llm_magic.engine.tokenizer.tokenizer import build_tokenizer
from llm_magic.errors import DownloadError, GGUFError, ModelError, ModelNotFoundError, ModelWarning
from llm_magic.models import web


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLM_MAGIC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


# ----------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["~nosuchuser/x.gguf", Path("~nosuchuser/x.gguf")])
def test_a_home_folder_of_nobody_is_a_model_that_is_not_there(name: str | Path) -> None:
    """F312"""
    with pytest.raises(ModelNotFoundError, match="no user of that name"):
        models.resolve(name)


@pytest.mark.parametrize("url", ["http://[::1/x.gguf", "https://[/y.gguf"])
def test_an_address_that_is_no_url_is_named(url: str) -> None:
    """F312"""
    with pytest.raises(ModelError, match="is not a valid URL"):
        models.resolve(url)


# ----------------------------------------------------------------------------- downloads


class _Endless(BaseHTTPRequestHandler):
    """Sends without saying how much: a GGUF head and zeros, until the client goes away."""

    reason: ClassVar[str] = ""

    def do_GET(self) -> None:
        if self.reason:
            self.send_response(403, self.reason)
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        block = b"GGUF" + bytes((1 << 20) - 4)
        try:
            for _ in range(200):
                self.wfile.write(block)
        except OSError:
            return

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    running = ThreadingHTTPServer(("127.0.0.1", 0), _Endless)
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    running.server_close()
    _Endless.reason = ""


def test_a_download_of_unknown_length_leaves_room_on_the_disk(
    server: str, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F309"""
    import shutil

    written = 0

    def usage(path: Any) -> Any:
        nonlocal written
        written = sum(p.stat().st_size for p in own_cache.rglob("*") if p.is_file())
        return shutil._ntuple_diskusage(2**40, 0, (600 << 20) - written)  # type: ignore[attr-defined]

    monkeypatch.setattr(web.shutil, "disk_usage", usage)
    monkeypatch.setattr(web, "RESERVE", 550 << 20)
    with pytest.raises(DownloadError, match=r"was not kept: after [\d,]+ MB only .* MB are free"):
        models.resolve(f"{server}/m.gguf")
    assert written < 120 << 20
    assert not [p for p in own_cache.rglob("*") if p.is_file() and "stamps" not in p.parts]


def test_control_characters_of_a_server_are_shown_not_obeyed(server: str, own_cache: Path) -> None:
    """F313"""
    _Endless.reason = "\x1b[2J\x1b]0;title\x07forbidden"
    with pytest.raises(DownloadError) as e:
        models.resolve(f"{server}/m.gguf")
    assert "forbidden" in str(e.value)
    assert "\x1b" not in str(e.value)
    assert "\x07" not in str(e.value)


# ----------------------------------------------------------------------------- files that change


def test_a_file_that_becomes_shorter_while_it_is_loaded_is_an_error(tmp_path: Path) -> None:
    """F310: through a mapping alone the system would end the process (SIGBUS)."""
    path = toy_gguf(tmp_path / "m.gguf")
    with open_gguf(path) as file:
        infos = list(file.tensors.values())
        size = path.stat().st_size
        os.truncate(path, infos[-1].offset)
        dequantize(infos[0])
        with pytest.raises(GGUFError, match=r"became shorter while it was read: tensor .* copy it"):
            dequantize(infos[-1])
    assert path.stat().st_size < size


def test_a_loaded_tensor_is_the_mapped_one(tmp_path: Path) -> None:
    with open_gguf(toy_gguf(tmp_path / "m.gguf")) as file:
        for info in file.tensors.values():
            assert np.array_equal(info.load(), info.data)


# ----------------------------------------------------------------------------- memory


def meminfo(root: Path, free_kb: int) -> None:
    (root / "proc").mkdir(exist_ok=True)
    (root / "proc" / "meminfo").write_text(f"MemTotal: 9 kB\nMemAvailable: {free_kb} kB\n")


def test_free_memory_is_the_less_of_the_system_and_the_container(tmp_path: Path) -> None:
    """F310"""
    assert room.available(tmp_path) is None
    meminfo(tmp_path, 1000)
    assert room.available(tmp_path) == 1_024_000
    group = tmp_path / "sys" / "fs" / "cgroup"
    group.mkdir(parents=True)
    (group / "memory.max").write_text("max\n")
    assert room.available(tmp_path) == 1_024_000
    (group / "memory.max").write_text("500000\n")
    (group / "memory.current").write_text("400000\n")
    assert room.available(tmp_path) == 100_000
    (group / "memory.stat").write_text("anon 1\ninactive_file 50000\n")
    assert room.available(tmp_path) == 150_000


def test_a_model_larger_than_the_memory_is_refused_with_its_sizes() -> None:
    """F310"""
    with pytest.raises(ModelError, match=r"needs 41\.\d GB .* no context fits: choose a smaller"):
        room.check_fits("big.gguf", room.Need(41 * 10**9, 1000, 0), 4096, lambda: 8 * 10**9)
    need = room.Need(10**9, 10**5, 0)
    with pytest.raises(ModelError, match=r"a context of 7,680 tokens would fit: ctx=7680 "):
        room.check_fits("m.gguf", need, 32768, lambda: 10**9 + (64 << 20) + 77 * 10**7)
    room.check_fits("m.gguf", need, 4096, lambda: None)
    room.check_fits("m.gguf", need, 4096, lambda: 2 * 10**9)


# ----------------------------------------------------------------------------- vocabularies


def test_merges_of_long_tokens_are_found_in_bounded_time() -> None:
    """F307: tokens of 1,000 characters by the thousand; beyond that a token has no merges."""
    texts = ["a" * n for n in range(1, 1001)] + ["b", "b" * 32_000]
    scores = -np.arange(len(texts), dtype=np.float32)
    merges = sentencepiece.spm_merges(texts, scores)
    made = {left + right for left, right in merges}
    assert "a" * 1000 in made
    assert "b" * 32_000 not in made


def test_a_load_that_is_given_up_ends_the_search_for_merges() -> None:
    """F307"""

    class GivenUp(Exception):
        pass

    calls = 0

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise GivenUp

    texts = [f"t{i}" for i in range(5000)]
    with pytest.raises(GivenUp):
        sentencepiece.spm_merges(texts, np.zeros(5000, np.float32), check=check)
    assert calls == 3


def test_a_vocabulary_without_its_pre_tokenizer_is_warned_about(tmp_path: Path) -> None:
    """F209"""
    path = toy_gguf(tmp_path / "m.gguf")
    with open_gguf(path) as file:
        metadata = dict(file.metadata)
    metadata.pop("tokenizer.ggml.pre", None)
    with pytest.warns(ModelWarning, match=r"tokenizer\.ggml\.pre\): 'default' is assumed"):
        build_tokenizer(metadata)
