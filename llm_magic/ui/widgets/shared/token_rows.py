"""Tokens for a page: one row of JSON per token, the same for the chat and the explorer.

tokens.js names the places of a row. The style sheet of the rows is made here too, from the scale
that the static views use.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TypeAlias

from llm_magic.events import Token, Top
from llm_magic.json_types import Json
from llm_magic.ui.views import logprobs, tokens

# [text or bytes, percentage, step of the scale, rank, logprob, entropy, forbidden share, flags,
# alternatives]
Row: TypeAlias = list[Json]

FORCED, TRIMMED = 1, 2  # flags
OPEN, TAKEN, FORBIDDEN, NAMELESS = range(4)  # what an alternative is; the last has no id
WIDTH = 32  # characters of an alternative


def row(token: Token) -> Row:
    """One token.

    >>> row(Token(7, b" fox", math.log(0.5), 2))
    [' fox', '50%', 1, 2, -0.693, None, None, 0, []]
    >>> row(Token(8, bytes([0xF0, 0x9F]), None, None))[0]  # half of an emoji: its bytes
    [240, 159]
    """
    bits = logprobs.entropy(token)
    lp = token.logprob
    return [
        content(token.bytes),
        logprobs.percent(logprobs.probability(lp)),
        logprobs.SCALE.index(logprobs.shade(token)),
        token.rank,
        None if lp is None or not math.isfinite(lp) else round(lp, 3),
        None if bits is None else round(bits, 2),
        logprobs.percent(token.masked) if token.masked else None,
        FORCED * token.forced + TRIMMED * token.trimmed,
        [_alternative(token, top) for top in token.top],
    ]


def rows(run: Sequence[Token]) -> list[Row]:
    """Each of several tokens."""
    return [row(token) for token in run]


def content(data: bytes) -> str | list[int]:
    """The text of a token; its bytes where they are no whole characters."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)


def _alternative(token: Token, top: Top) -> Row:
    p = logprobs.probability(top.logprob)
    if top.id == token.id and top.bytes == token.bytes:
        kind = TAKEN
    elif not top.allowed:
        kind = FORBIDDEN
    else:
        kind = OPEN if top.id is not None else NAMELESS
    return [tokens.alone(top.bytes, WIDTH), logprobs.percent(p), round((p or 0.0) * 1000), kind]


def scale() -> list[float]:
    """The probabilities at which the steps of the scale begin, the highest first."""
    return [step.floor for step in logprobs.SCALE]


def style() -> str:
    """The style sheet of tokens and their cards, in the colours of the static heat map.

    Unlikely tokens are underlined, too: the order does not depend on colour.
    """
    rules = [Path(__file__).with_name("tokens.css").read_text("utf-8")]
    light: list[str] = []
    dark: list[str] = []
    for step in logprobs.SCALE:
        for theme, look in ((light, step.light), (dark, step.dark)):
            background, text = look or ("transparent", "inherit")
            theme.append(f"--b{step.name}:{background};--c{step.name}:{text}")
        rules.append(
            f".lmt-p{step.name}{{background:var(--b{step.name});color:var(--c{step.name});"
            f"border-bottom:{step.line or '0px solid'}}}"
        )
    # What a front end says about its theme goes before what the system prefers.
    root = ":is(.lmx,.llmc)"
    rules += [
        f"{root}{{{';'.join(light)}}}",
        f"@media (prefers-color-scheme:dark){{{root}{{{';'.join(dark)}}}}}",
        f":is([data-jp-theme-light=true],.vscode-light) {root}{{{';'.join(light)}}}",
        f":is([data-jp-theme-light=false],.vscode-dark,[theme=dark]) {root}{{{';'.join(dark)}}}",
    ]
    return "\n".join(rules)
