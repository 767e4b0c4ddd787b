"""The inside of a local model: what a request records and changes, as the engine's taps.

`Plan` turns names, positions and edits of a request into taps on rows, after every check, and the
recorded rows into a `Capture`. `Interior` is the `taps.Inside` of one engine.
"""

import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ..errors import ContextOverflowError, RequestError
from ..sampling import Sampling
from ..taps import (
    HEADS,
    Add,
    Anatomy,
    Capture,
    Edit,
    Inside,
    Likeliest,
    Mean,
    Patch,
    Positions,
    Site,
    Taps,
    full_name,
    layer,
    short_name,
    sites,
)
from .sampling_ids import SamplingIds

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from ..engine.blocks import Config
    from ..engine.forward import F32, Forward, StepResult
    from ..engine.load import Engine
    from ..engine.serving.taps import Edit as RowEdit
    from ..engine.serving.taps import Watch

PIECE = 8192  # rows of the output matrix that are decoded at once
RESERVE = 256 << 20  # bytes that a record leaves free


def anatomy_of(config: "Config") -> Anatomy:
    """The sizes of a model."""
    parallel = frozenset(i for i, layer in enumerate(config.layers) if layer.block.parallel)
    return Anatomy(
        config.n_layers, config.dim, config.n_heads, config.n_kv_heads, config.head_dim,
        config.value_dim, config.n_tokens, parallel, config.logit_softcap, config.logit_scale,
    )  # fmt: skip


def places(positions: Positions, n_prompt: int, total: int) -> tuple[int, ...] | None:
    """Positions of a request as rising numbers; None for all.

    Args:
        positions: As in `Taps`: negative ones count from the end of the prompt.
        n_prompt: Tokens of the prompt.
        total: Positions that the request may come to.

    Raises:
        RequestError: There is no such position.
    """
    if positions is None:
        return None
    if isinstance(positions, slice):
        return tuple(sorted(range(*positions.indices(n_prompt))))
    given = [positions] if isinstance(positions, int) else list(positions)
    found = []
    for position in given:
        index = int(position)
        at = index if index >= 0 else n_prompt + index
        if not 0 <= at < total:
            raise RequestError(
                f"there is no position {index}: the prompt has {n_prompt} tokens, from 0 on"
            )
        found.append(at)
    return tuple(sorted(set(found)))


# ----------------------------------------------------------------------------- edits


def _rows(value: object, what: str, width: int) -> "F32":
    """A vector or rows of vectors as float32 [rows, width]."""
    import numpy as np

    try:
        array = np.asarray(value, np.float32)
    except (TypeError, ValueError) as e:
        raise RequestError(f"{what} is no array of numbers: {e}") from None
    if array.ndim == 3:
        array = array.reshape(len(array), -1)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.shape[1] != width or not len(array):
        raise RequestError(
            f"{what} has the shape {list(np.shape(array))}, and this model needs {width} numbers "
            "(it may come from another model)"
        )
    if not np.isfinite(array).all():
        raise RequestError(f"{what} has entries that are no finite numbers")
    return np.ascontiguousarray(array)


def _held(source: object, site: Site) -> "tuple[F32, tuple[int, ...]] | None":
    """(rows, positions) of a place in an inspection; None where `source` is none."""
    capture = getattr(source, "capture", None)
    if not isinstance(capture, Capture):
        return None
    found = capture.arrays.get(site)
    if found is None:
        raise RequestError(
            f"the inspection does not hold {full_name(site)}: read it with llm.inspect(..., "
            f"read=[{full_name(site)!r}])"
        )
    return found.reshape(len(found), -1), capture.positions


@dataclass(frozen=True, slots=True)
class _Resolver:
    """Edits of a request as edits of rows."""

    anatomy: Anatomy
    n_prompt: int
    total: int

    def edits(self, given: Sequence[Edit]) -> "list[RowEdit]":
        return [row for edit in given for row in self._edit(edit)]

    def _edit(self, edit: Edit) -> "list[RowEdit]":
        if isinstance(edit, Add):
            if not math.isfinite(edit.scale):
                raise RequestError(f"scale is {edit.scale}; it must be a finite number")
            if edit.scale == 0:
                return []
        blocks = [edit.layer] if isinstance(edit.layer, int) else list(edit.layer)
        return [row for block in blocks for row in self._at(edit, block)]

    def _at(self, edit: Edit, block: int) -> "list[RowEdit]":
        a, point = self.anatomy, short_name(edit.point)
        at = layer(block, a.n_layers)
        if point == "resid_mid" and at in a.parallel:
            raise no_middle(at)
        column, width = 0, a.width(point)
        if edit.head is not None:
            if not 0 <= edit.head < a.n_heads:
                raise RequestError(f"there is no head {edit.head}: a block has {a.n_heads}")
            column, width = edit.head * a.value_dim, a.value_dim
        values, positions = self._values(edit, (point, at), column, width)
        return self._runs(edit, point, at, column, values, positions)

    def _values(
        self, edit: Edit, site: Site, column: int, width: int
    ) -> "tuple[F32, tuple[int, ...] | None]":
        """(float32 [1 or rows, width], the positions of the rows; None: every position)"""
        import numpy as np

        positions = places(edit.positions, self.n_prompt, self.total)
        what = f"the value for {full_name(site)}"
        cut = slice(column, column + width)
        if isinstance(edit, Add):
            return _rows(edit.vector, what, width) * np.float32(edit.scale), positions
        if isinstance(edit, Mean):
            return self._mean(edit.over, site, cut, what), positions
        if isinstance(edit, Patch):
            held = _held(edit.values, site)
            if held is None:
                return _rows(edit.values, what, width), positions
            rows, there = held
            if rows.shape[1] != self.anatomy.width(site[0]):
                raise RequestError(f"{what} has {rows.shape[1]} numbers: it is of another model")
            wanted = tuple(p for p in there if p < self.total) if positions is None else positions
            if missing := sorted(set(wanted) - set(there)):
                raise RequestError(
                    f"the inspection has no position {missing[0]}; it has "
                    f"{len(there)}, up to {max(there, default=0)}"
                )
            picked = [there.index(p) for p in wanted]
            return np.ascontiguousarray(rows[picked, cut]), wanted
        return np.zeros((1, width), np.float32), positions

    def _mean(self, over: object, site: Site, cut: slice, what: str) -> "F32":
        import numpy as np

        sources = over if isinstance(over, list | tuple) else [over]
        held = [_held(source, site) for source in sources]
        if all(h is not None for h in held) and held:
            rows = np.concatenate([cast("tuple[F32, object]", h)[0] for h in held])[:, cut]
        else:
            rows = _rows(over, what, cut.stop - cut.start)
        mean: F32 = rows.mean(0, keepdims=True, dtype=np.float64).astype(np.float32)
        return _rows(mean, what, cut.stop - cut.start)

    def _runs(
        self,
        edit: Edit,
        point: str,
        at: int,
        column: int,
        values: "F32",
        positions: tuple[int, ...] | None,
    ) -> "list[RowEdit]":
        """One edit for every run of adjacent positions."""
        from ..engine.serving.taps import Edit as RowEdit

        add = isinstance(edit, Add)
        if positions is None:
            if len(values) == 1:
                return [RowEdit(point, at, 0, None, values, add, column)]
            positions = tuple(range(len(values)))
        if len(values) not in (1, len(positions)) or max(positions, default=0) >= self.total:
            raise RequestError(
                f"{len(values)} rows of values do not fit {len(positions)} positions of a request "
                f"of {self.total}"
            )
        out, begin = [], 0
        for i in range(1, len(positions) + 1):
            if i < len(positions) and positions[i] == positions[i - 1] + 1:
                continue
            rows = values if len(values) == 1 else values[begin:i]
            out.append(
                RowEdit(point, at, positions[begin], positions[i - 1] + 1, rows, add, column)
            )
            begin = i
        return out


def no_middle(block: int) -> RequestError:
    """The error for `resid_mid` of a block that has none."""
    return RequestError(
        f"block {block} adds attention and feed-forward at once (they are parallel): it has no "
        "resid_mid; read resid_pre or resid_post"
    )


def _key(edits: "Sequence[RowEdit]") -> bytes:
    """Names edits by what they do."""
    if not edits:
        return b""
    hashed = hashlib.blake2b(digest_size=16)
    for e in edits:
        about = (e.point, e.layer, e.start, e.stop, e.add, e.column, e.values.shape)
        hashed.update(repr(about).encode() + e.values.tobytes())
    return hashed.digest()


# ----------------------------------------------------------------------------- reading


class Plan:
    """What one request records and changes. Made before anything is computed.

    Args:
        config: The model's.
        n_prompt: Tokens of the prompt.
        total: Positions that the request may come to.
        taps: What is recorded; None: nothing.
        edits: What is changed.
        inside: The model, for the capture.
        free: Bytes of memory that are free; None: unknown.

    Raises:
        RequestError: A name, a position, a shape or the memory that it would take is wrong.
    """

    def __init__(
        self,
        config: "Config",
        n_prompt: int,
        total: int,
        taps: Taps | None,
        edits: Sequence[Edit],
        inside: Inside,
        free: int | None,
    ) -> None:
        from ..engine.serving.taps import JobTaps

        self._config, self._anatomy = config, anatomy_of(config)
        self._n_prompt, self._edits, self._inside = n_prompt, tuple(edits), inside
        self._sites: list[Site] = []
        self._positions: tuple[int, ...] = ()
        self._watches: dict[tuple[str, int], Watch] = {}
        if taps is not None:
            self._sites = self._named(taps)
            asked = places(taps.positions, n_prompt, total)
            self._positions = tuple(range(total)) if asked is None else asked
            if self._sites and self._positions:
                self._check_memory(taps.max_mb, free)
                self._watch()
        rows = _Resolver(self._anatomy, n_prompt, total).edits(self._edits)
        self.taps: JobTaps = JobTaps(tuple(self._watches.values()), tuple(rows), _key(rows))

    def _named(self, taps: Taps) -> list[Site]:
        found = sites(taps.read, self._anatomy.n_layers)
        parallel = {("resid_mid", i) for i in self._anatomy.parallel}
        kept = [site for site in found if site not in parallel]
        if found and not kept:
            raise no_middle(cast(int, found[0][1]))
        return kept

    def _point(self, site: Site) -> tuple[str, int]:
        """The engine's name of a place."""
        name, block = site
        if block is None:
            return (
                ("resid_pre", 0) if name == "embed" else ("normalized", self._config.n_layers - 1)
            )
        return {"rot_q": "q", "rot_k": "k"}.get(name, name), block

    def _spans(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The engine's points that are recorded, with first position and the one behind the last"""
        first, end = self._positions[0], self._positions[-1] + 1
        spans: dict[tuple[str, int], tuple[int, int]] = {}
        for site in self._sites:
            if site[0] == "pattern":
                spans.setdefault(("q", cast(int, site[1])), (first, end))
                spans["k", cast(int, site[1])] = (0, end)
            else:
                spans.setdefault(self._point(site), (first, end))
        return spans

    def _width(self, point: str) -> int:
        return self._anatomy.width({"q": "rot_q", "k": "rot_k"}.get(point, point))

    @property
    def nbytes(self) -> int:
        """Bytes that the record takes: of what the engine writes, and of what is made of it."""
        rows = sum((b - a) * self._width(p) * 4 for (p, _), (a, b) in self._spans().items())
        patterns = sum(site[0] == "pattern" for site in self._sites)
        square = len(self._positions) * (self._positions[-1] + 1)
        return rows + patterns * self._anatomy.n_heads * square * 4

    def _check_memory(self, max_mb: int, free: int | None) -> None:
        need, most = self.nbytes, max_mb * 1_000_000
        room = None if free is None else max(0, free - RESERVE)
        if need <= most and (room is None or need <= room):
            return
        limit = f"max_mb={max_mb} allows {most / 1e6:,.0f}"
        if room is not None and need > room:
            limit = f"{room / 1e6:,.0f} are free"
        raise RequestError(
            f"this record takes {need / 1e6:,.0f} MB ({len(self._sites)} activations of "
            f"{len(self._positions):,} positions), and {limit}; read fewer names or positions, or "
            "raise max_mb"
        )

    def _watch(self) -> None:
        import numpy as np

        from ..engine.serving.taps import Watch

        for (point, block), (a, b) in self._spans().items():
            # Not a number: what is never evaluated is told apart.
            out = np.full((b - a, self._width(point)), np.nan, np.float32)
            self._watches[point, block] = Watch(point, block, a, out)

    def capture(self, ids: Sequence[int]) -> Capture:
        """What was recorded of `ids`: those of the prompt and of the answer.

        The last token of an answer may not have been evaluated: it is left out then.
        """
        ids = ids[: self._evaluated(len(ids))]
        positions = tuple(p for p in self._positions if p < len(ids))
        arrays = {site: self._array(site, positions) for site in self._sites} if positions else {}
        return Capture(tuple(ids), self._n_prompt, positions, arrays, self._edits, self._inside)

    def _evaluated(self, n: int) -> int:
        """How many of the first n positions were evaluated, as far as the record tells."""
        import numpy as np

        for watch in self._watches.values():
            missing = np.flatnonzero(np.isnan(watch.out[:, 0]))
            if len(missing):
                n = min(n, watch.start + int(missing[0]))
        return n

    def _array(self, site: Site, positions: tuple[int, ...]) -> "F32":
        name, block = site
        if name == "pattern":
            return self._pattern(cast(int, block), positions)
        watch = self._watches[self._point(site)]
        rows = self._picked(watch, positions)
        a = self._anatomy
        entries = a.value_dim if name == "z" else a.head_dim
        return rows.reshape(len(rows), -1, entries) if name in HEADS else rows

    def _picked(self, watch: "Watch", positions: tuple[int, ...]) -> "F32":
        if len(positions) == positions[-1] - positions[0] + 1:
            return watch.out[positions[0] - watch.start : positions[-1] + 1 - watch.start]
        return watch.out[[p - watch.start for p in positions]]

    def _pattern(self, block: int, positions: tuple[int, ...]) -> "F32":
        """Attention probabilities, [heads, positions, all positions], from queries and keys."""
        import numpy as np

        c, a = self._config, self._anatomy
        end = positions[-1] + 1
        q = self._picked(self._watches["q", block], positions)
        k = self._watches["k", block].out[:end]
        q = q.reshape(len(positions), a.n_heads, a.head_dim).transpose(1, 0, 2)
        k = k.reshape(end, a.n_kv_heads, a.head_dim).transpose(1, 2, 0)
        k = np.repeat(k, a.n_heads // a.n_kv_heads, 0)
        scores = np.matmul(q, k) * np.float32(c.attention_scale)
        if cap := c.attention_softcap:
            scores = np.float32(cap) * np.tanh(scores / np.float32(cap))
        gap = np.array(positions)[:, None] - np.arange(end)
        seen = (gap >= 0) & (gap < (c.layers[block].window or end + 1))
        scores = np.where(seen, scores, np.float32(-np.inf))
        top, more = scores.max(-1, keepdims=True), np.float32(0)
        if self._inside.has("attn_sinks", block):  # a score of each head that no position takes
            sinks = self._inside.weight("attn_sinks", block).reshape(-1, 1, 1)
            top = np.maximum(top, sinks)
            more = np.exp(sinks - top)
        scores -= top
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(-1, keepdims=True) + more
        return cast("F32", weights)


# ----------------------------------------------------------------------------- the model


class Interior:
    """Implements `taps.Inside` over an engine.

    Args:
        engine: The engine.
        path: Of the model's file, from which weights are read when they are asked for.
    """

    def __init__(self, engine: "Engine", path: Path) -> None:
        self._engine, self._path = engine, path

    @property
    def anatomy(self) -> Anatomy:
        return anatomy_of(self._engine.loaded().config)

    def plan(self, n_prompt: int, total: int, taps: Taps | None, edits: Sequence[Edit]) -> Plan:
        """What a request records and changes; see `Plan`."""
        from ..engine.room import available

        config = self._engine.loaded().config
        return Plan(config, n_prompt, total, taps, edits, self, available())

    def capture(self, ids: Sequence[int], taps: Taps, edits: Sequence[Edit] = ()) -> Capture:
        """See `Inside.capture`."""
        from ..engine.serving.job import Job

        if not ids:
            raise RequestError("there is nothing to inspect: the prompt is empty")
        if len(ids) > (n_ctx := self._engine.loaded().forward.n_ctx):
            raise ContextOverflowError(len(ids), n_ctx)
        plan = self.plan(len(ids), len(ids), taps, edits)
        end = len(ids)
        job = Job(tuple(ids), collect=_nothing, collect_from=end, taps=plan.taps)
        self._engine.scheduler.submit(job).drain()
        return plan.capture(ids)

    def likeliest(self, hidden: "F32", top: int, entropy: bool = False) -> Likeliest:
        """See `Inside.likeliest`."""
        import numpy as np

        n_tokens = self._engine.loaded().config.n_tokens
        ids, logprobs, entropies = [], [], []

        def take(result: "StepResult") -> None:
            logits = result.logits[:, :n_tokens]
            if result.summaries is not None and result.logits.shape[1] == n_tokens:
                lse = result.summaries.lse
                values = result.summaries.values[:, :top]
                ids.append(result.summaries.ids[:, :top])
            else:
                lse, best, values = _summary(logits, top)
                ids.append(best.astype(np.int32))
            logprobs.append(values - lse[:, None])
            if entropy:
                p = np.exp(logits - lse[:, None])
                entropies.append(lse - np.einsum("ij,ij->i", p, logits))

        self._unembed(hidden, top, take)
        made = np.concatenate(entropies) if entropy else None
        return Likeliest(np.concatenate(ids), np.concatenate(logprobs), made)

    def logits(self, hidden: "F32") -> "F32":
        """See `Inside.logits`."""
        import numpy as np

        n_tokens = self._engine.loaded().config.n_tokens
        out: list[F32] = []
        self._unembed(hidden, 0, lambda result: out.append(result.logits[:, :n_tokens].copy()))
        return np.concatenate(out)

    def _unembed(self, hidden: "F32", top: int, take: "Callable[[StepResult], None]") -> None:
        """Call `take` with the result for each part of the vectors, on the owner thread."""
        import numpy as np

        forward = self._engine.loaded().forward
        rows = np.ascontiguousarray(hidden, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.anatomy.dim or not len(rows):
            raise RequestError(
                f"vectors of the stream have the shape [n, {self.anatomy.dim}], not "
                f"{list(rows.shape)}"
            )
        parts = -(-len(rows) // forward.max_wanted)
        for part in np.array_split(rows, parts):
            self._engine.scheduler.call(functools.partial(_take, take, forward, part, top))

    def weight(self, role: str, block: int | None = None) -> "F32":
        """See `Inside.weight`."""
        from ..engine.gguf import open_gguf
        from ..engine.quants import dequantize

        config = self._engine.loaded().config
        with open_gguf(self._path) as file:
            info = config.source(role, block).of(file.tensors)
            return dequantize(info).reshape(info.shape)

    def has(self, role: str, block: int | None = None) -> bool:
        """Whether the model has such a weight."""
        config = self._engine.loaded().config
        roles = config.model_roles if block is None else config.layers[block].block.roles
        return role in roles

    @property
    def architecture(self) -> str:
        """The architecture's name in GGUF files."""
        return self._engine.loaded().config.architecture

    @property
    def last_norm(self) -> tuple[str | None, float]:
        config = self._engine.loaded().config
        return config.output_norm, config.norm_eps

    def post_norm(self, block: int) -> tuple[str | None, float, float]:
        """See `Inside.post_norm`."""
        config = self._engine.loaded().config
        parts = config.layers[block].block
        return parts.attention.post, config.norm_eps, parts.residual_scale

    def output_rows(self, tokens: Sequence[int]) -> "F32":
        """See `Inside.output_rows`."""
        import numpy as np

        return np.concatenate([rows for t in tokens for rows in self._output(t, 1)])

    def mean_output(self) -> "npt.NDArray[np.float64]":
        """See `Inside.mean_output`."""
        import numpy as np

        n_tokens = self._engine.loaded().config.n_tokens
        sums = [rows.sum(0, dtype=np.float64) for rows in self._output(0, n_tokens)]
        mean: npt.NDArray[np.float64] = np.sum(sums, 0) / n_tokens
        return mean

    def _output(self, first: int, n: int) -> "Iterator[F32]":
        """Rows of the output matrix from `first` on, in parts."""
        from ..engine.gguf import open_gguf
        from ..engine.quants import dequantize

        config = self._engine.loaded().config
        source = config.source("embedding" if config.tied else "output")
        with open_gguf(self._path) as file:
            info = source.of(file.tensors)
            for at in range(first, first + n, PIECE):
                rows = min(PIECE, first + n - at)
                yield dequantize(info.part(at, (rows, config.dim))).reshape(rows, -1)

    def token_of(self, text: str) -> int:
        """See `Inside.token_of`."""
        tokenizer = self._engine.loaded().tokenizer
        ids = tokenizer.encode(text, special=True, start=False)
        if len(ids) != 1:
            pieces = [tokenizer.token_bytes(i).decode("utf-8", "replace") for i in ids]
            raise RequestError(
                f"{text!r} is not one token but {pieces}; name one of them, with its leading space"
            )
        return int(ids[0])

    def stages(
        self, logits: "F32", sampling: Sampling, history: Sequence[int]
    ) -> "list[tuple[str, npt.NDArray[np.int64], F32]]":
        """See `Inside.stages`."""
        from ..engine.serving.sampler import Sampler

        model = self._engine.loaded()
        with_ids = SamplingIds(self._engine)
        settings = with_ids.with_ids(sampling)
        sampler = Sampler(
            settings, model.config.n_tokens, model.tokenizer.end_ids, history,
            breakers=with_ids.breakers(settings),
        )  # fmt: skip
        return list(sampler.stages(logits))

    def token_bytes(self, token: int) -> bytes:
        """See `Inside.token_bytes`."""
        return self._engine.loaded().tokenizer.token_bytes(token)


def _take(take: "Callable[[StepResult], None]", forward: "Forward", part: "F32", top: int) -> None:
    take(forward.unembed(part, top))


def _nothing(start: int, logits: "F32") -> None:
    """No logits are wanted."""


def _summary(logits: "F32", top: int) -> "tuple[F32, npt.NDArray[np.int64], F32]":
    """(log-sum-exp, ids and logits of the largest) of each row."""
    import numpy as np

    from ..engine.serving.sampler import log_sum_exp, top_ids

    lse = np.array([log_sum_exp(row) for row in logits], np.float32)
    ids: npt.NDArray[np.int64] = np.stack([top_ids(row, top) for row in logits])
    return lse, ids, np.take_along_axis(logits, ids, -1)
