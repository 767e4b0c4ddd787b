"""Merges of a SentencePiece vocabulary: derived from its scores, and cached on disk.

llama.cpp joins the two neighbours whose joined text is the token of highest score, leftmost first.
The inside of a token is always joined in the same way, whatever its neighbours are, if the result
is that token: joins that cross its edges would have prevented it, all others come in the same
order. So each token is the result of one merge only, the last one when its own text is tokenised,
and that merge is found by tokenising the text. (Taking every way to cut a token in two, as is
usual, gives twice as many merges, and an arbitrary order among those of one token.) A BPE model
with these merges, by falling score, gives llama.cpp's ids. One difference remains: for tokens of
equal score llama.cpp takes the leftmost and a BPE model the smaller id; trained vocabularies have
distinct scores.
"""

import contextlib
import hashlib
import heapq
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

_MAGIC = b"llm_magic merges 1\n"
_NEVER = 1 << 60
LONGEST = 1024  # characters; trained vocabularies have at most some dozens in a token
CHECKED = 500  # tokens between two looks at whether the load was given up


def spm_merges(
    texts: Sequence[str],
    scores: npt.NDArray[np.float32],
    cache_dir: Path | None = None,
    key: str | None = None,
    check: Callable[[], None] | None = None,
) -> list[tuple[str, str]]:
    """(left, right) by falling priority; a part is a token or a single character.

    texts: distinct, encodable as UTF-8; one score each.
    cache_dir: where the result of the search is kept (one small file), and found again.
    key: names that file (a hash of the model file, say); None = a hash of the contents, which the
        file holds anyhow: a stale or damaged one is never used, but written anew.
    check: called again and again during the search; what it raises ends it.
    """
    content = _content(texts, scores)
    path = None if cache_dir is None else cache_dir / f"merges-{key or content.hex()[:32]}.bin"
    cuts = None if path is None else _load(path, content, texts)
    if cuts is None:
        cuts = np.fromiter(_last_cuts(texts, scores, check), np.uint16, len(texts))
        if path is not None:
            _save(path, content, cuts)
    order = np.argsort(-scores, kind="stable")
    order = order[cuts[order] > 0]
    rows = zip(order.tolist(), cuts[order].tolist(), strict=True)
    return [((text := texts[i])[:cut], text[cut:]) for i, cut in rows]


def _last_cuts(
    texts: Sequence[str],
    scores: npt.NDArray[np.float32],
    check: Callable[[], None] | None = None,
) -> Iterator[int]:
    """For each token where its last merge joins it (characters); 0: no merges lead to it.

    A token of more than LONGEST characters gets none: it is only found as a special token.
    """
    ranks = np.unique(-scores, return_inverse=True)[1].reshape(-1).tolist()  # equal scores tie
    get = dict(zip(texts, ranks, strict=True)).get
    for i, text in enumerate(texts):
        if check is not None and i % CHECKED == 0:
            check()
        yield _last_cut(text, get) if 1 < len(text) <= LONGEST else 0


def _last_cut(text: str, rank: Callable[[str, int], int]) -> int:
    """Merge neighbours by rank, leftmost first among equals, in O(n log n).

    Parts are named by their first character. `after[i]` is where the part at i ends; a heap entry
    counts only while the two parts that it joined are still as they were.
    """
    n = len(text)
    if n == 2:
        return 1
    after, before = list(range(1, n + 1)), list(range(-1, n - 1))
    heap = [(r, i, i + 2) for i in range(n - 1) if (r := rank(text[i : i + 2], _NEVER)) != _NEVER]
    heapq.heapify(heap)
    cut = 0
    while heap:
        _, left, end = heapq.heappop(heap)
        middle = after[left]
        if middle < 0 or middle >= n or after[middle] != end:
            continue  # one of the two parts has been joined with another since
        cut = middle
        after[left], after[middle] = end, -1
        if end < n:
            before[end] = left
            if (r := rank(text[left : after[end]], _NEVER)) != _NEVER:
                heapq.heappush(heap, (r, left, after[end]))
        if left and (r := rank(text[before[left] : end], _NEVER)) != _NEVER:
            heapq.heappush(heap, (r, before[left], end))
    return cut if after[0] == n else 0


def _content(texts: Sequence[str], scores: npt.NDArray[np.float32]) -> bytes:
    return hashlib.sha256(
        "\0".join(texts).encode() + b"\0\0" + scores.astype("<f4").tobytes()
    ).digest()


def _load(path: Path, content: bytes, texts: Sequence[str]) -> npt.NDArray[np.uint16] | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    head, body = data[: len(_MAGIC) + 64], data[len(_MAGIC) + 64 :]
    if head != _MAGIC + content + hashlib.sha256(body).digest() or len(body) != 2 * len(texts):
        return None
    return np.frombuffer(body, "<u2").astype(np.uint16, copy=False)


def _save(path: Path, content: bytes, cuts: npt.NDArray[np.uint16]) -> None:
    """Write it whole or not at all. A folder that cannot be written is no error: it is a cache."""
    body = cuts.astype("<u2").tobytes()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_MAGIC + content + hashlib.sha256(body).digest() + body)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
