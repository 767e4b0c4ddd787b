"""Models that are files on the web: a URL, or a repository of the Hugging Face hub.

The result is the path of the (first) file in the cache, complete. `huggingface_hub` (extra `hub`)
keeps a cache of its own, which other programs share.
"""

import contextlib
import hashlib
import logging
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ..errors import DownloadError, ModelError, ModelNotFoundError
from ..utf8 import for_terminal
from .cache import files, place, workspace
from .wheels import CHUNK, POLL, Progress, redact

RESERVE = 256 << 20  # bytes of the disk that a download leaves free
ROOM_EVERY = 32 << 20  # bytes between two looks at the room

SHARD = re.compile(r"(?P<head>.*)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf", re.I | re.S)
# Small files beside a model: tokenizer, template, end tokens.
SIDECARS = (
    "tokenizer_config.json",
    "tokenizer.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
)
# Which of several files is meant when none is named: usual ones first, then nearest in size.
QUANTS = (
    "Q4_K_M",
    "Q4_K_S",
    "Q4_1",
    "Q4_0",
    "Q5_K_M",
    "Q5_0",
    "Q8_0",
    "Q6_K",
    "BF16",
    "F16",
    "F32",
)


def is_model(file: str) -> bool:
    """A file name that may be a whole language model or its first part."""
    part = SHARD.fullmatch(file)
    if part and int(part["no"]) != 1:
        return False
    return not re.match(r"\.|.*mmproj|.*imatrix\.gguf", file, re.I | re.S)


# ----------------------------------------------------------------------------- URLs


def url_file(url: str) -> str:
    """The file name in a URL."""
    from urllib.parse import unquote, urlsplit

    return unquote(urlsplit(url).path).rsplit("/", 1)[-1]


def url_path(url: str) -> Path:
    """Where the file of a URL is kept: one folder per address, so that split sets stay together."""
    key = hashlib.sha1(url.split("?")[0].rsplit("/", 1)[0].encode()).hexdigest()[:12]
    return files() / "url" / key / re.sub(r"[^\w.+-]", "_", url_file(url))


def url_paths(url: str) -> list[Path]:
    """Where the files of a URL are kept: of a split set, all of its files."""
    return [url_path(each) for each in _urls(url)]


def downloads() -> list[Path]:
    """The (first) files of all models that were fetched from URLs."""
    return [p for p in files().glob("url/*/*.gguf") if is_model(p.name)]


def _urls(url: str) -> list[str]:
    part = SHARD.fullmatch(url_file(url))
    if part is None:
        return [url]
    own, count = f"-{part['no']}-of-{part['count']}", int(part["count"])
    return [url.replace(own, f"-{no + 1:05d}-of-{count:05d}") for no in range(count)]


def get_url(url: str, say: Progress, offline: bool) -> Path:
    """Fetch a .gguf file that is not there yet; all files when it is one of a split set."""
    urls = _urls(url)
    for each in urls:
        if url_path(each).exists():
            continue
        if offline:
            raise DownloadError(f"{redact(each)} is not in the cache, and downloads are off")
        _get(each, url_path(each), say)
    return url_path(urls[0])


def _get(url: str, target: Path, say: Progress) -> None:
    from http.client import HTTPException
    from urllib.request import Request, urlopen

    # The hub's page about a file is not the file.
    real = re.sub(r"^(https://huggingface\.co/[^/]+/[^/]+)/blob/", r"\1/resolve/", url)
    try:
        with urlopen(Request(real, headers={"User-Agent": "llm-magic"}), timeout=60) as answer:
            total = int(answer.headers.get("Content-Length") or 0)
            with workspace(total or RESERVE) as tmp:
                _save(answer, tmp / "file", say, total, redact(url))
                place(tmp / "file", target)
    except (OSError, HTTPException, ValueError) as e:
        said = for_terminal(str(e))  # a server's reason phrase may hold control characters
        raise DownloadError(f"{redact(url)} could not be downloaded: {said}") from e
    size = target.stat().st_size
    say("download", size, size)


def _save(source: IO[bytes], path: Path, say: Progress, total: int, shown: str) -> None:
    done = 0
    with open(path, "wb") as out:
        while chunk := source.read(CHUNK):
            if not done and not chunk.startswith(b"GGUF"):
                raise DownloadError(f"{shown} is not a GGUF file: it begins with {chunk[:16]!r}")
            if done % ROOM_EVERY < len(chunk):
                _check_room(path, done, shown)
            out.write(chunk)
            done += len(chunk)
            say("download", min(done, total - 1) if total else done, total)
        out.flush()
        os.fsync(out.fileno())
    if not done or (total and done != total):
        raise DownloadError(f"{shown} broke off after {done:,} of {total or 'unknown'} bytes")


def _check_room(path: Path, done: int, shown: str) -> None:
    """A server that does not say how much it sends must not fill the disk."""
    free = shutil.disk_usage(path.parent).free
    if free < RESERVE:
        raise DownloadError(
            f"{shown} was not kept: after {done / 1e6:,.0f} MB only {free / 1e6:,.0f} MB are free "
            f"on the disk of {path.parent}, and {RESERVE / 1e6:,.0f} MB stay free; "
            "LLM_MAGIC_CACHE names another folder"
        )


# ----------------------------------------------------------------------------- the hub


def get_hub(repo: str, file: str | None, say: Progress, offline: bool) -> Path:
    """A file of a repository, with its other parts and the small files beside it (LAI-23).

    file: its name, or a quantisation (`Q8_0`), which the hub is not asked about again once it is
    here; None = the most usual quantisation there is, or what is here when the hub can't be asked.
    """
    cached = cached_in_hub(repo, file)
    import huggingface_hub as hub
    from huggingface_hub import constants, utils

    if cached and (file or offline):
        return cached
    if offline:
        raise DownloadError(f"{repo} is not in the cache of the hub, and downloads are off")
    with _discreet(utils, constants):
        say("hub", 0, 0)
        try:
            names = list(hub.list_repo_files(repo))
        except Exception as e:  # the hub's own errors, and those of whatever HTTP client it uses
            if cached:
                return cached
            raise _refusal(repo, e) from e
        chosen = choose(repo, file, names)
        wanted = [*_parts(chosen, names), *(s for s in SIDECARS if s in names)]
        path = _Watched(hub.snapshot_download, utils.tqdm, repo, wanted).run(say) / chosen
    size = path.stat().st_size
    say("download", size, size)
    return path


def cached_in_hub(repo: str, file: str | None) -> Path | None:
    """The (first) file of a repository's model that the hub's cache holds; uses no network.

    Raises:
        ModelError: `huggingface_hub`, which knows where its cache is, is not installed.
    """
    try:
        from huggingface_hub import constants
    except ImportError:
        raise ModelError(
            f"{repo} would be a repository of the Hugging Face hub. To fetch from there, install "
            "the extra `hub`: pip install 'llm-magic[hub]'"
        ) from None
    return _cached(Path(constants.HF_HUB_CACHE), repo, file)


def _cached(root: Path, repo: str, file: str | None) -> Path | None:
    """What the hub's cache holds of a repository's main branch.

    Not asked of the hub's library: that calls a snapshot incomplete which lacks files nobody wants.
    """
    folder = root / f"models--{repo.replace('/', '--')}"
    try:
        snapshot = folder / "snapshots" / (folder / "refs" / "main").read_text().strip()
        held = [p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()]
        chosen = choose(repo, file, held)
    except OSError:  # ModelNotFoundError among them
        return None
    part = SHARD.fullmatch(chosen)
    whole = part is None or len(_parts(chosen, held)) == int(part["count"])
    return snapshot / chosen if whole else None


def _refusal(repo: str, e: Exception) -> ModelError:
    said = redact(" ".join(str(e).split()))[:300]
    if type(e).__name__ == "RepositoryNotFoundError":
        return ModelNotFoundError(f"the Hugging Face hub shows no repository {repo}: {said}")
    way = "without a network, the path of a .gguf file names a model, too"
    return DownloadError(f"{repo} could not be had from the Hugging Face hub: {said} ({way})")


def choose(repo: str, file: str | None, names: list[str]) -> str:
    """The file asked for, by name or quantisation; else the first of `QUANTS`; else the first."""
    if file and file in names:
        return file
    found = sorted(n for n in names if n.lower().endswith(".gguf") and is_model(Path(n).name))
    for quant in [file] if file else QUANTS:
        for name in found:
            if re.search(rf"(^|[-_./]){re.escape(quant)}([-_./]|$)", name, re.I):
                return name
    if found and not file:
        return found[0]
    what = f"no file {file!r}" if file else "no GGUF file"
    raise ModelNotFoundError(f"{repo} has {what}; it has {', '.join(found[:12]) or 'no .gguf'}")


def _parts(chosen: str, names: list[str]) -> list[str]:
    part = SHARD.fullmatch(chosen)
    if not part:
        return [chosen]
    set_of = (part["head"], part["count"])
    return [n for n in names if (p := SHARD.fullmatch(n)) and (p["head"], p["count"]) == set_of]


@contextlib.contextmanager
def _discreet(utils: Any, constants: Any) -> Iterator[None]:
    """The hub's library without bars and without a red line for every attempt (both print into the
    notebook), and without telemetry."""
    bars, mute = not utils.are_progress_bars_disabled(), constants.HF_HUB_DISABLE_TELEMETRY
    log = logging.getLogger("huggingface_hub")
    level = log.level
    utils.disable_progress_bars()
    constants.HF_HUB_DISABLE_TELEMETRY = True
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(level)
        constants.HF_HUB_DISABLE_TELEMETRY = mute
        if bars:
            utils.enable_progress_bars()


class _Watched:
    """A snapshot download on its own thread, so that the caller's thread can watch and stop it.

    The hub reports from its worker threads; they only count here. Stopping makes the next report
    raise, which ends the download; what is unfinished keeps the hub's `.incomplete` name.
    """

    def __init__(self, download: Any, bar: object, repo: str, wanted: list[str]) -> None:
        self.download, self.bar, self.repo, self.wanted = download, bar, repo, wanted
        self.bars: list[Any] = []
        self.stopped = False
        self.folder: str | None = None
        self.error: Exception | None = None

    def run(self, say: Progress) -> Path:
        thread = threading.Thread(target=self._work, name="llm-magic download", daemon=True)
        thread.start()
        try:
            while thread.is_alive():
                thread.join(POLL)
                done = max((b.seen for b in self.bars), default=0)
                total = max((int(b.total or 0) for b in self.bars), default=0)
                say("download", min(done, max(total - 1, 0)) if total else done, total)
        finally:
            self.stopped = True
        if self.error is not None:
            raise _refusal(self.repo, self.error) from self.error
        assert self.folder is not None
        return Path(self.folder)

    def _work(self) -> None:
        try:
            self.folder = self.download(
                self.repo, allow_patterns=self.wanted, tqdm_class=self._counter(self.bar)
            )
        except Exception as e:
            self.error = e

    def _counter(self, base: Any) -> object:
        """A progress bar class for the hub that counts bytes."""
        watched = self

        def init(bar: Any, *args: Any, **kwargs: Any) -> None:
            base.__init__(bar, *args, **kwargs)
            bar.seen, bar.total = 0, kwargs.get("total")
            if kwargs.get("unit") == "B":
                watched.bars.append(bar)

        def update(bar: Any, n: float | None = 1) -> bool | None:
            if watched.stopped:
                raise InterruptedError("the download was stopped")
            bar.seen += int(n or 0)
            drawn: bool | None = base.update(bar, n)
            return drawn

        return type("Bar", (base,), {"__init__": init, "update": update})
