"""Accounting of the residual stream: how long it is, and which part speaks for a token.

Direct logit attribution (Elhage et al. 2021): the stream behind the last block is the embedding
plus what every attention and feed-forward part added. With the scale of the last norm held fixed,
the logit is linear in the stream, so it is a sum over the parts.
"""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from ..errors import RequestError
from .record import Record
from .shown import Shown

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    F32 = npt.NDArray[np.float32]
    F64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Norms(Shown):
    """Root mean square over positions of the length of vectors, float64 [blocks] each.

    Attributes:
        resid_pre: Of the stream before each block.
        attn_out: Of what attention adds.
        mlp_out: Of what the feed-forward part adds.
        resid_post: Of the stream behind it.
    """

    resid_pre: "F64"
    attn_out: "F64"
    mlp_out: "F64"
    resid_post: "F64"


def norms(inspection: Record) -> Norms:
    """See `Inspection.norms`."""
    import numpy as np

    n = inspection.inside.anatomy.n_layers
    points = ("resid_pre", "attn_out", "mlp_out", "resid_post")
    held = inspection.need([(p, i) for p in points for i in range(n)])

    def length(point: str) -> "F64":
        squares = [np.square(held[point, i], dtype=np.float64).sum(-1).mean() for i in range(n)]
        out: F64 = np.sqrt(np.array(squares))
        return out

    return Norms(*(length(point) for point in points))


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the model and what it adds to the logit.

    Attributes:
        name: "embed", "attn 3", "head 3.7", "mlp 3", "bias" or "rounding".
        block: The block; None outside of them.
        head: The head; None for other parts.
        value: What it adds to the logit or to the difference of logits.
    """

    name: str
    block: int | None
    head: int | None
    value: float


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Attribution(Shown):
    """Which part of the model speaks for a token: displays as bars.

    The values of `parts` sum to `total`. The part "rounding" is what the engine's arithmetic and
    ours differ by; it is small.

    Attributes:
        token: The token's text.
        against: The text of the token that it is compared with; None: the mean of all logits.
        position: The position whose next token is meant.
        total: The logit, or the difference of the logits, before a soft cap.
        parts: In the order of the model.
    """

    token: str
    against: str | None
    position: int
    total: float
    parts: tuple[Part, ...]

    def top(self, n: int = 10) -> tuple[Part, ...]:
        """The n parts that count most, for or against."""
        return tuple(sorted(self.parts, key=lambda part: -abs(part.value))[:n])


def attribution(
    inspection: Record, token: object, against: object, position: int, heads: bool
) -> Attribution:
    """See `Inspection.attribution`."""
    import numpy as np

    inside = inspection.inside
    a = inside.anatomy
    at = inspection.position(position)
    wanted = inspection.token_id(token)
    other = None if against is None else inspection.token_id(against)
    for found in (wanted, other):
        if found is not None and not 0 <= found < a.n_vocab:
            raise RequestError(f"token {found} is outside the vocabulary of {a.n_vocab}")
    points = [(p, i) for p in ("attn_out", "mlp_out", "z") for i in range(a.n_layers)]
    held = inspection.need([("embed", None), *points, ("resid_post", a.n_layers - 1)], [at])
    stream = held["resid_post", a.n_layers - 1]
    direction, constant = _direction(inspection, stream[0].astype(np.float64), wanted, other)
    parts = [Part("embed", None, None, float(held["embed", None][0] @ direction))]
    for i in range(a.n_layers):
        parts += _attention(inspection, held, i, direction, heads)
        parts.append(Part(f"mlp {i}", i, None, float(held["mlp_out", i][0] @ direction)))
    if constant:
        parts.append(Part("bias", None, None, constant))
    total = _difference(inspection, stream, wanted, other)
    parts.append(Part("rounding", None, None, total - math.fsum(p.value for p in parts)))
    text = [
        None if i is None else inside.token_bytes(i).decode("utf-8", "replace")
        for i in (wanted, other)
    ]
    return Attribution(cast(str, text[0]), text[1], at, total, tuple(parts))


def _difference(inspection: Record, stream: "F32", token: int, against: int | None) -> float:
    """The difference of logits before a soft cap, as the engine computes it."""
    import numpy as np

    a = inspection.inside.anatomy
    logits = inspection.inside.logits(stream)[0].astype(np.float64)
    if a.softcap:
        logits = a.softcap * np.arctanh(np.clip(logits / a.softcap, -1 + 1e-7, 1 - 1e-7))
    return float(logits[token] - (logits.mean() if against is None else logits[against]))


def _direction(
    inspection: Record, stream: "F64", token: int, against: int | None
) -> "tuple[F64, float]":
    """(what a vector of the stream is multiplied by to give its part of the logit, the rest)"""
    import numpy as np

    inside = inspection.inside
    norm = inside.weight("output_norm").astype(np.float64)
    rows = inside.output_rows([token] if against is None else [token, against]).astype(np.float64)
    difference = rows[0] - (inside.mean_output() if against is None else rows[1])
    kind, eps = inside.last_norm
    centred = stream - stream.mean() if kind == "layer" else stream
    scale = inside.anatomy.logit_scale / np.sqrt(np.square(centred).mean() + eps)
    direction = difference * norm * scale
    if kind == "layer":  # the mean of a part is subtracted, too
        direction = direction - direction.mean()
    constant = 0.0
    if inside.has("output_norm_bias"):
        constant += float(inside.weight("output_norm_bias") @ difference)
    if inside.has("output_bias"):
        bias = inside.weight("output_bias").astype(np.float64)
        constant += float(bias[token] - (bias.mean() if against is None else bias[against]))
    constant *= inside.anatomy.logit_scale
    return direction, constant


def _attention(
    inspection: Record, held: Record, i: int, direction: "F64", heads: bool
) -> list[Part]:
    """Attention of a block, as one part or by head.

    Behind attention's own norm the parts of the heads share its scale, which is held fixed: it
    follows from what was recorded.
    """
    import numpy as np

    inside = inspection.inside
    whole = float(held["attn_out", i][0] @ direction)
    if not heads:
        return [Part(f"attn {i}", i, None, whole)]
    a = inside.anatomy
    matrix = inside.weight("attn_output", i).astype(np.float64)
    z = held["z", i][0].astype(np.float64)
    given = np.stack([matrix[:, h * a.value_dim : (h + 1) * a.value_dim] @ z[h]
                      for h in range(a.n_heads)])  # fmt: skip
    raw = given.sum(0)
    if inside.has("attn_output_bias", i):
        raw = raw + inside.weight("attn_output_bias", i)
    values = given @ (_gain(inspection, raw, i) * direction)
    parts = [Part(f"head {i}.{h}", i, h, float(value)) for h, value in enumerate(values)]
    if inside.has("attn_output_bias", i):
        parts.append(Part(f"attn bias {i}", i, None, whole - math.fsum(values)))
    return parts


def _gain(inspection: Record, raw: "F64", i: int) -> "F64 | float":
    """What each entry of attention's output is multiplied by before it is added to the stream."""
    import numpy as np

    inside = inspection.inside
    kind, eps, scale = inside.post_norm(i)
    if kind is None:
        return scale
    weight = inside.weight("post_attention_norm", i).astype(np.float64)
    return cast("F64", weight * (scale / np.sqrt(np.square(raw).mean() + eps)))
