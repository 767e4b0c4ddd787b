"""What a request records or changes inside a model, as values: names of activations, `Taps`, edits.

Names are those of TransformerLens. `blocks.5.hook_resid_post`, `("hook_resid_post", 5)` and the
short form `("resid_post", 5)` are the same place; the short form drops `hook_` and `attn.`.
"""

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Protocol, cast

from .errors import RequestError
from .sampling import Sampling

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]

# Short name -> name within a block. Shapes: P positions that were asked for, T all of them.
POINTS = {
    "resid_pre": "hook_resid_pre",  # [P, dim]: the stream before the block
    "attn_out": "hook_attn_out",  # [P, dim]: what attention adds to it
    "resid_mid": "hook_resid_mid",  # [P, dim]: resid_pre + attn_out
    "mlp_out": "hook_mlp_out",  # [P, dim]: what the feed-forward part adds
    "resid_post": "hook_resid_post",  # [P, dim]: the stream behind the block
    "rot_q": "attn.hook_rot_q",  # [P, heads, head_dim]: queries after their rotation
    "rot_k": "attn.hook_rot_k",  # [P, kv heads, head_dim]: keys after their rotation
    "v": "attn.hook_v",  # [P, kv heads, head_dim]: values
    "z": "attn.hook_z",  # [P, heads, value_dim]: what each head gives
    "pattern": "attn.hook_pattern",  # [heads, P, T]: who looks at whom; rows sum to 1
}
OUTSIDE = {
    "embed": "hook_embed",  # [P, dim]: the scaled embedding, where the stream begins
    "normalized": "ln_final.hook_normalized",  # [P, dim]: what the output matrix reads
}
# The names of TransformerLens 3 for the same places.
_ALIASES = {
    "hook_in": "resid_pre",
    "hook_out": "resid_post",
    "ln2.hook_in": "resid_mid",
    "attn.hook_out": "attn_out",
    "mlp.hook_out": "mlp_out",
    "attn.v.hook_out": "v",
    "attn.o.hook_in": "z",
}
_OUTSIDE_ALIASES = {"embed.hook_out": "embed", "ln_final.hook_out": "normalized"}
EDITABLE = ("resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post", "z")
HEADS = ("rot_q", "rot_k", "v", "z", "pattern")  # points with an axis of heads

Site = tuple[str, int | None]  # (short name, block); block None: outside of the blocks
Key = str | tuple[str, int | None]


def full_name(site: Site) -> str:
    """The name of TransformerLens.

    >>> full_name(("pattern", 5)), full_name(("normalized", None))
    ('blocks.5.attn.hook_pattern', 'ln_final.hook_normalized')
    """
    name, block = site
    return OUTSIDE[name] if block is None else f"blocks.{block}.{POINTS[name]}"


def short_name(name: str) -> str:
    """The short form of a name without its block.

    >>> short_name("attn.hook_pattern"), short_name("hook_resid_post"), short_name("hook_in")
    ('pattern', 'resid_post', 'resid_pre')
    """
    known = {full: short for short, full in (POINTS | OUTSIDE).items()} | _ALIASES
    known |= _OUTSIDE_ALIASES
    return known.get(name, name)


def _all(n_layers: int) -> dict[str, Site]:
    """Every name of a model -> its place, in the order in which they are computed."""
    found: dict[str, Site] = {OUTSIDE["embed"]: ("embed", None)}
    for i in range(n_layers):
        found |= {f"blocks.{i}.{full}": (short, i) for short, full in POINTS.items()}
        found |= {f"blocks.{i}.{alias}": (short, i) for alias, short in _ALIASES.items()}
    found[OUTSIDE["normalized"]] = ("normalized", None)
    return found | {alias: (short, None) for alias, short in _OUTSIDE_ALIASES.items()}


def sites(read: Key | Iterable[Key], n_layers: int) -> list[Site]:
    """The places that names mean, each once, in the order of the model.

    Args:
        read: Names, with `*` for every block or name, or pairs (name, block); a negative block
            counts from the last one, None means every block.
        n_layers: Of the model.

    Raises:
        RequestError: A name is none of the model's; the message lists the near ones.

    >>> sites(["blocks.*.hook_resid_post", ("pattern", -1)], 2)
    [('resid_post', 0), ('resid_post', 1), ('pattern', 1)]
    >>> sites("blocks.0.hook_resid_pots", 2)
    Traceback (most recent call last):
    llm_magic.errors.RequestError: unknown activation 'blocks.0.hook_resid_pots'; did you mean ...
    """
    alone = isinstance(read, str) or _is_pair(read)
    keys = cast("Iterable[Key]", [read] if alone else read)
    known = _all(n_layers)
    wanted: set[Site] = set()
    for key in keys:
        wanted |= _matches(key, known, n_layers)
    return [site for site in dict.fromkeys(known.values()) if site in wanted]


def _is_pair(read: object) -> bool:
    if not isinstance(read, tuple) or len(read) != 2 or not isinstance(read[0], str):
        return False
    return read[1] is None or (isinstance(read[1], int) and not isinstance(read[1], bool))


def _matches(key: Key, known: Mapping[str, Site], n_layers: int) -> set[Site]:
    if isinstance(key, str):
        found = {site for name, site in known.items() if fnmatchcase(name, key)}
        if not found and key in (*POINTS, *OUTSIDE):  # a short name alone: of every block
            found = {site for site in known.values() if site[0] == key}
    elif _is_pair(key):
        short, block = short_name(key[0]), key[1]
        if block is not None:
            block = layer(block, n_layers)
        found = {s for s in known.values() if s[0] == short and block in (None, s[1])}
    else:
        raise RequestError(f"{key!r} is no name of an activation; use a text or (name, block)")
    if not found:
        raise unknown(key, list(known))
    return found


def unknown(key: object, names: Sequence[str]) -> RequestError:
    """The error for a name that nothing has."""
    text = key if isinstance(key, str) else f"blocks.0.{key[0]}" if isinstance(key, tuple) else ""
    shown = key if isinstance(key, str) else tuple(key) if isinstance(key, tuple) else key
    near = difflib.get_close_matches(str(text), [*names, *POINTS, *OUTSIDE], 3, 0.5)
    hint = (
        f"did you mean {', '.join(near)}?"
        if near
        else f"there are {', '.join([*POINTS, *OUTSIDE])}, as in 'blocks.0.hook_resid_post'"
    )
    return RequestError(f"unknown activation {shown!r}; {hint}")


def layer(block: object, n_layers: int) -> int:
    """A block's index from 0; RequestError where the model has no such block.

    >>> layer(-1, 30)
    29
    >>> layer(30, 30)
    Traceback (most recent call last):
    llm_magic.errors.RequestError: there is no block 30: the model has 30, from 0 to 29
    """
    index = getattr(block, "__index__", None)
    if index is None or isinstance(block, bool) or not -n_layers <= index() < n_layers:
        raise RequestError(
            f"there is no block {block!r}: the model has {n_layers}, from 0 to {n_layers - 1}"
        )
    return int(index()) % n_layers


# ----------------------------------------------------------------------------- reading

Positions = int | Sequence[int] | slice | None


@dataclass(frozen=True, slots=True)
class Taps:
    """What a request records: `llm.chat(..., taps=Taps("blocks.*.hook_resid_post"))`.

    The reply has it as `.inspection`. The memory is bounded by `max_mb` and by what is free; a
    request that would take more is refused before anything is computed.

    >>> Taps(("pattern", 5), positions=-1).read
    ('pattern', 5)

    Attributes:
        read: Names of activations, see `sites`.
        positions: Positions of the prompt that are recorded; negative ones count from its end, None
            means all of them, and those of the answer.
        max_mb: Most megabytes that the record may take.
    """

    read: Key | Sequence[Key] = "blocks.*.hook_resid_post"
    positions: Positions = None
    max_mb: int = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Capture:
    """What was recorded.

    Attributes:
        ids: The tokens that were evaluated.
        n_prompt: How many of them are the prompt.
        positions: Of the rows of each array.
        arrays: Place -> float32, see POINTS for shapes.
        edits: The edits under which it was recorded.
        inside: The model, for what is computed later.
    """

    ids: tuple[int, ...]
    n_prompt: int
    positions: tuple[int, ...]
    arrays: Mapping[Site, "F32"]
    edits: tuple["Edit", ...] = ()
    inside: "Inside | None" = None


# ----------------------------------------------------------------------------- changing

Layers = int | Sequence[int]


@dataclass(frozen=True, slots=True, eq=False)
class Add:
    """Add `scale * vector` to a point (steering).

    >>> Add("resid_post", 12, [0.0, 1.0], 4.0).scale
    4.0

    Attributes:
        point: "resid_pre", "attn_out", "resid_mid", "mlp_out", "resid_post" or "z".
        layer: A block, or several; negative ones count from the last.
        vector: Float [width], or [positions, width] with one row for each of `positions`.
        scale: Multiplies the vector; 0 is the same as no edit at all.
        positions: Positions that are changed; negative ones count from the end of the prompt. None:
            all, those of the answer too.
        head: For "z": the head whose part is changed; None: all of them.
    """

    point: str
    layer: Layers
    vector: Any
    scale: float = 1.0
    positions: Positions = None
    head: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Patch:
    """Replace a point by values, for example of another run (activation patching).

    Attributes:
        point: As in `Add`.
        layer: A block, or several.
        values: An `Inspection` that holds the point, or float [width] or [positions, width].
        positions: As in `Add`. With an inspection, None means the positions that it holds.
        head: As in `Add`.
    """

    point: str
    layer: Layers
    values: Any
    positions: Positions = None
    head: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Zero:
    """Replace a point by zeros (ablation). Attributes as in `Patch`."""

    point: str
    layer: Layers
    positions: Positions = None
    head: int | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Mean:
    """Replace a point by its mean over other positions or runs (mean ablation).

    Attributes:
        point: As in `Add`.
        layer: A block, or several.
        over: An `Inspection`, several of them, or float [rows, width]: what the mean is taken of.
        positions: As in `Add`.
        head: As in `Add`.
    """

    point: str
    layer: Layers
    over: Any
    positions: Positions = None
    head: int | None = None


Edit = Add | Patch | Zero | Mean


class Edits(Protocol):
    """What stands for several edits, like a control vector."""

    def edits(self) -> Sequence[Edit]:
        """The edits that it stands for."""


def as_edits(value: object) -> tuple[Edit, ...]:
    """The option `edit` of a request: edits and control vectors, alone or in a list.

    Raises:
        RequestError: Something in it is no edit.

    >>> as_edits(Zero("mlp_out", 3))
    (Zero(point='mlp_out', layer=3, positions=None, head=None),)
    """
    if isinstance(value, Edit):
        _check_point(value)
        return (value,)
    if callable(made := getattr(value, "edits", None)):
        return tuple(made())
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
        return tuple(edit for item in value for edit in as_edits(item))
    raise RequestError(
        f"edit holds a {type(value).__name__}; it must be Add, Patch, Zero, Mean or a control "
        "vector, or a list of them"
    )


def _check_point(edit: Edit) -> None:
    point = short_name(edit.point)
    if point not in EDITABLE:
        near = difflib.get_close_matches(str(edit.point), EDITABLE, 1, 0.5)
        hint = f"did you mean {near[0]}? " if near else ""
        raise RequestError(
            f"{edit.point!r} cannot be edited; {hint}edits reach {', '.join(EDITABLE)}"
        )
    if edit.head is not None and point != "z":
        raise RequestError(f"{edit.point} has no heads; only 'z' has")


# ----------------------------------------------------------------------------- the model


@dataclass(frozen=True, slots=True)
class Anatomy:
    """The sizes of a model, and how its blocks add to the stream.

    parallel: blocks whose parts both read the block's input: they have no resid_mid.
    softcap: of the logits; None: none.
    """

    n_layers: int
    dim: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    value_dim: int
    n_vocab: int
    parallel: frozenset[int] = frozenset()
    softcap: float | None = None
    logit_scale: float = 1.0

    def width(self, point: str) -> int:
        """Numbers of one row of a point, heads side by side."""
        if point == "z":
            return self.n_heads * self.value_dim
        heads = {"rot_q": self.n_heads, "rot_k": self.n_kv_heads, "v": self.n_kv_heads}.get(point)
        return self.dim if heads is None else heads * self.head_dim


@dataclass(frozen=True, slots=True)
class Likeliest:
    """The likeliest tokens of vectors, as the output matrix sees them.

    ids: int32 [n, top]. logprobs: float32 [n, top]. entropy: float32 [n], in nats; None where it
    was not asked for.
    """

    ids: "npt.NDArray[np.int32]"
    logprobs: "F32"
    entropy: "F32 | None" = field(default=None)


class Inside(Protocol):
    """The inside of a loaded model. Methods may be called from any thread."""

    @property
    def anatomy(self) -> Anatomy:
        """Its sizes."""

    def capture(self, ids: Sequence[int], taps: Taps, edits: Sequence[Edit] = ()) -> Capture:
        """Evaluate tokens and record what the taps name."""

    def likeliest(self, hidden: "F32", top: int, entropy: bool = False) -> Likeliest:
        """The likeliest tokens of vectors of the stream [n, dim], through norm and output."""

    def logits(self, hidden: "F32") -> "F32":
        """The logits of vectors of the stream, [n, n_vocab]."""

    def weight(self, role: str, block: int | None = None) -> "F32":
        """A weight of the file, exactly dequantised: "attn_output" of a block, "output_norm"..."""

    def has(self, role: str, block: int | None = None) -> bool:
        """Whether the model has such a weight."""

    def output_rows(self, tokens: Sequence[int]) -> "F32":
        """The rows of the output matrix for some tokens, [n, dim]."""

    def mean_output(self) -> "npt.NDArray[np.float64]":
        """The mean of all rows of the output matrix, [dim]."""

    @property
    def last_norm(self) -> tuple[str | None, float]:
        """("rms", "layer" or None, epsilon) of the last norm."""

    def post_norm(self, block: int) -> tuple[str | None, float, float]:
        """(kind, epsilon, factor) of what attention's output goes through before it is added."""

    def token_of(self, text: str) -> int:
        """The id of a text that is one token."""

    def stages(
        self, logits: "F32", sampling: Sampling, history: Sequence[int]
    ) -> "list[tuple[str, npt.NDArray[np.int64], F32]]":
        """What is left of a distribution behind each step of the sampler, in its order."""

    def token_bytes(self, token: int) -> bytes:
        """The bytes of a token."""
