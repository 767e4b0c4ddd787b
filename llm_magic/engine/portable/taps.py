"""The layers of the portable path with a stop at every point that taps reach.

The programs are those of graph.py in three parts; between them the host reads and changes rows.
They are built when the first step with taps needs them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from llm_magic.errors import EngineError

from ..blocks import Block, Config
from ..forward import CHANGED, F32, POINTS, Change, Read, Taps
from ..rope import Rope
from . import graph
from .graph import BLOCK
from .programs import Array, Program, Run, Values
from .weights import Weights

Angles = Callable[[int, int], tuple[Array, ...]]  # (layer, rows) -> cos and sin, or nothing

_MIXED = ("attn_output", "post_attention_norm")
_INNER = ("ffn_", "post_ffw_norm")


def part(taps: Taps, first: int, last: int) -> Taps:
    """The taps of rows first .. last - 1 of a batch, counted from `first` on."""
    return Taps(tuple(_reads(taps.reads, first, last)), tuple(_changes(taps.changes, first, last)))


def _reads(reads: Sequence[Read], first: int, last: int) -> Iterator[Read]:
    for read in reads:
        a, b = max(read.first, first), min(read.first + len(read.out), last)
        if a < b:
            yield replace(read, first=a - first, out=read.out[a - read.first : b - read.first])


def _changes(changes: Sequence[Change], first: int, last: int) -> Iterator[Change]:
    for change in changes:
        a, b = max(change.first, first), min(change.first + change.rows, last)
        if a < b:
            values = change.values
            if len(values) > 1:
                values = values[a - change.first : b - change.first]
            yield replace(change, first=a - first, rows=b - a, values=values)


class TappedLayers:
    """All layers, part by part. Whoever constructs it holds the gate (graphs are built).

    Args:
        config: The model's.
        weights: Its weights.
        rope: How its heads turn; None: they do not.
        angles: cos and sin of the rows of a layer.
        sizes: Numbers of rows, rising, for which programs are built.
        cache: The shape of one layer's keys: [positions, n_kv_heads, head_dim].
        device: Of tinygrad.
    """

    def __init__(
        self,
        config: Config,
        weights: Weights,
        rope: Rope | None,
        angles: Angles,
        sizes: Sequence[int],
        cache: tuple[int, ...],
        device: str,
    ) -> None:
        self._config, self._weights, self._rope = config, weights, rope
        self._angles, self._sizes, self._device = angles, sizes, device
        self._arrays: list[Array] = []
        self._programs: dict[tuple[str, Block | None, int], Program] = {}
        self._x = {t: self._array(t, config.dim) for t in sizes}
        self._added = {t: self._array(t, config.dim) for t in sizes}
        self._q = {t: self._array(t, config.n_heads, config.head_dim) for t in sizes}
        self._z = {t: self._array(t, config.o_dim) for t in sizes}
        for t in sizes:
            for kind in config.blocks:
                self._build(kind, t, cache)
            self._programs["ended", None, t] = self._build_end(t)

    def _array(self, *shape: int) -> Array:
        self._arrays.append(Array(shape, self._device))
        return self._arrays[-1]

    def _layer(self, i: int, part: str) -> dict[str, Array]:
        """The weights of a part of layer i."""
        return {n: w for n, w in self._weights.layers[i].items() if _part_of(n) == part}

    def _build(self, kind: Block, t: int, cache: tuple[int, ...]) -> None:
        config, positions, rope = self._config, cache[0], self._rope
        first = next(i for i, layer in enumerate(config.layers) if layer.block == kind)
        names = {part: tuple(self._layer(first, part)) for part in ("heads", "mixed", "inner")}
        n, by = len(names["heads"]), kind.residual_scale

        def heads(x: Any, q: Any, z: Any, *rest: Any) -> None:
            w, given = dict(zip(names["heads"], rest[:n], strict=True)), list(rest[n:])
            turn = graph.Turn(rope, given.pop(0), given.pop(0)) if rope else None
            keys, values, *at = given
            cached, where = graph.Cache(keys, values), graph.Where(*at)
            got = graph.heads(config, kind.attention, w, x, turn, cached, where)
            q.assign(got[0]).realize(z.assign(got[1]))

        def mixed(z: Any, added: Any, *given: Any) -> None:
            w = dict(zip(names["mixed"], given, strict=True))
            added.assign(_scaled(graph.mixed(config, kind.attention, w, z), by)).realize()

        def inner(x: Any, added: Any, *given: Any) -> None:
            w = dict(zip(names["inner"], given, strict=True))
            added.assign(_scaled(graph.feed_forward(config, kind.feed_forward, w, x), by)).realize()

        bounds = {
            "first": (0, positions // BLOCK - 1),
            "blocks": (1, positions // BLOCK),
            "position": (0, positions - t),
            "window": (1, positions),
        }
        # Capturing runs it once: on a cache of its own, since the real one may be in use.
        spare = [Array(cache, self._device), Array(cache, self._device)]
        inputs = self._inputs(t, first, *spare)
        for name, function in (("heads", heads), ("mixed", mixed), ("inner", inner)):
            limits = bounds if name == "heads" else {}
            self._programs[name, kind, t] = Program.build(function, inputs[name], limits)
        for array in spare:
            array.free()

    def _build_end(self, t: int) -> Program:
        config, names = self._config, tuple(self._end_weights())

        def ended(x: Any, added: Any, *given: Any) -> None:
            w = dict(zip(names, given, strict=True))
            out = graph.normed(config.output_norm, "output_norm", w, x, config.norm_eps)
            added.assign(out).realize()

        return Program.build(ended, self._ended(t), {})

    def _end_weights(self) -> dict[str, Array]:
        return {n: w for n, w in self._weights.output.items() if n.startswith("output_norm")}

    def _inputs(self, t: int, i: int, keys: Array, values: Array) -> dict[str, list[Array]]:
        x, added, z = self._x[t], self._added[t], self._z[t]
        w = {part: self._layer(i, part).values() for part in ("heads", "mixed", "inner")}
        return {
            "heads": [x, self._q[t], z, *w["heads"], *self._angles(i, t), keys, values],
            "mixed": [z, added, *w["mixed"]],
            "inner": [x, added, *w["inner"]],
        }

    def _ended(self, t: int) -> list[Array]:
        return [self._x[t], self._added[t], *self._end_weights().values()]

    def _call(
        self, name: str, kind: Block | None, t: int, inputs: list[Array], values: Values
    ) -> None:
        Run([(self._programs[name, kind, t], inputs)], self._device)([values])

    def run(
        self,
        x: F32,
        position: int,
        values: Sequence[Values],
        keys_of: Sequence[Array],
        values_of: Sequence[Array],
        taps: Taps,
    ) -> F32:
        """Rows x [n, dim] of one slot from `position` on through all layers.

        values: the variables of each layer's program. keys_of, values_of: the slot's cache.
        """
        n = len(x)
        t = min(size for size in self._sizes if size >= n)
        x = x.copy()
        for i, layer in enumerate(self._config.layers):
            kind, inputs = layer.block, self._inputs(t, i, keys_of[i], values_of[i])
            _apply(taps, "resid_pre", i, x)
            before = x
            self._x[t].write(_filled(x, t))
            self._call("heads", kind, t, inputs["heads"], values[i])
            self._read_heads(taps, i, n, t, position, keys_of[i], values_of[i])
            z = self._z[t].read()[:n].copy()
            _apply(taps, "z", i, z)
            self._z[t].write(_filled(z, t))
            self._call("mixed", kind, t, inputs["mixed"], {})
            x = self._sum(taps, i, x, t, "attn_out", "resid_mid")
            self._x[t].write(_filled(before if kind.parallel else x, t))
            self._call("inner", kind, t, inputs["inner"], {})
            x = self._sum(taps, i, x, t, "mlp_out", "resid_post")
        if any(read.point == "normalized" for read in taps.reads):
            self._x[t].write(_filled(x, t))
            self._call("ended", None, t, self._ended(t), {})
            _apply(taps, "normalized", self._config.n_layers - 1, self._added[t].read()[:n].copy())
        return x

    def _sum(self, taps: Taps, i: int, x: F32, t: int, out: str, after: str) -> F32:
        added = self._added[t].read()[: len(x)].copy()
        _apply(taps, out, i, added)
        x = x + added
        _apply(taps, after, i, x)
        return x

    def _read_heads(
        self, taps: Taps, i: int, n: int, t: int, position: int, keys: Array, values: Array
    ) -> None:
        points = {read.point for read in taps.reads if read.layer == i}
        if "q" in points:
            _apply(taps, "q", i, self._in_halves(i, self._q[t].read()[:n]))
        rows = slice(position, position + n)
        if "k" in points:
            _apply(taps, "k", i, self._in_halves(i, keys.read()[rows]))
        if "v" in points:
            _apply(taps, "v", i, values.read()[rows].reshape(n, -1))

    def _in_halves(self, i: int, heads: F32) -> F32:
        """[n, heads, head_dim] -> [n, heads * head_dim] with rotated pairs at distance dim / 2."""
        rope = self._config.layers[i].rope
        if rope is not None and rope.pairs == "adjacent":
            d = rope.dim
            order = (*range(0, d, 2), *range(1, d, 2), *range(d, heads.shape[-1]))
            heads = heads[..., order]
        return heads.reshape(len(heads), -1)

    def free(self) -> None:
        """Free its arrays and what lies between its kernels."""
        for program in self._programs.values():
            program.free()
        for array in self._arrays:
            array.free()
        self._programs.clear()


def _part_of(name: str) -> str:
    """The program that a layer's weight belongs to."""
    if name.startswith(_INNER):
        return "inner"
    return "mixed" if name.startswith(_MIXED) else "heads"


def _scaled(x: Any, by: float) -> Any:
    return x if by == 1.0 else x * by


def _filled(x: F32, t: int) -> F32:
    return x if len(x) == t else np.pad(x, ((0, t - len(x)), (0, 0)))


def _apply(taps: Taps, point: str, layer: int, rows: F32) -> None:
    """Change rows [n, width] in place, then read them."""
    for change in taps.changes:
        if (change.point, change.layer) == (point, layer):
            end = change.column + change.values.shape[1]
            there = rows[change.first : change.first + change.rows, change.column : end]
            there[...] = there + change.values if change.add else change.values
    for read in taps.reads:
        if (read.point, read.layer) == (point, layer):
            read.out[...] = rows[read.first : read.first + len(read.out)]


def check(taps: Taps, config: Config, n_rows: int) -> None:
    """Refuse taps on points, layers and rows that are not there."""
    spans = [(r.point, r.layer, r.first, len(r.out)) for r in taps.reads]
    spans += [(c.point, c.layer, c.first, c.rows) for c in taps.changes]
    for point, layer, first, rows in spans:
        if point not in POINTS or not 0 <= layer < config.n_layers:
            raise EngineError(f"a tap on {point!r} of layer {layer} is outside the model")
        if not 0 <= first <= first + rows <= n_rows:
            raise EngineError("a tap names rows that are not in the step")
    for change in taps.changes:
        if change.point not in CHANGED:
            raise EngineError(f"{change.point} can be read, but not changed")
