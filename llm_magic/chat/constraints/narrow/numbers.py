"""Limits of numbers, written so that the grammar compiler holds them exactly.

The compiler reads the numbers of a schema as 64-bit floats, and its own arithmetic ends the process
at the limits of 64-bit integers. So only limits that a float holds reach it, none near those.
"""

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction

from llm_magic.chat.schema import Json

from .words import LARGE, MAX_MULTIPLE, SAFE, STEP

NUMERIC = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "multipleOf")

Number = int | float
EDGE = 2**63 - 1024  # the largest float below the limit of 64-bit integers


def whole_limits(given: Mapping[str, Number]) -> dict[str, Number] | None:
    """Limits of an integer under the numeric keywords of a schema; None when there is no value.

    Beyond 2^53 a limit moves inwards to the next number that a float holds.

    >>> whole_limits({"minimum": -(2**63), "exclusiveMaximum": 7.5})
    {'minimum': -9223372036854774784, 'maximum': 7}
    """
    lows = [math.ceil(given["minimum"])] if "minimum" in given else []
    lows += [math.floor(given["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in given else []
    highs = [math.floor(given["maximum"])] if "maximum" in given else []
    highs += [math.ceil(given["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in given else []
    low = max(lows, default=-SAFE if min(highs, default=0) > -SAFE else -EDGE)
    high = min(highs, default=SAFE if low < SAFE else EDGE)
    low, high = -_inwards(-low), _inwards(high)
    return {"minimum": low, "maximum": high} if low <= high else None


def _inwards(limit: int) -> int:
    """The largest integer up to an upper limit that is exact as a float; at most EDGE."""
    if limit <= SAFE and limit >= -SAFE:
        return limit
    limit = max(min(limit, EDGE), -2 * EDGE)
    near = int(float(limit))
    return near if near <= limit else int(math.nextafter(near, -math.inf))


def float_limits(given: Mapping[str, Number]) -> dict[str, Number] | None:
    """Limits of a number under the numeric keywords of a schema, and the step between two values
    where there would be no last digit; None when there is no value.

    >>> float_limits({"minimum": 0, "maximum": 10**400})
    {'minimum': 0, 'maximum': 1000000000000000.0, 'multipleOf': 1e-09}
    """
    out: dict[str, Number] = {}
    low, high = Fraction(-LARGE), Fraction(LARGE)
    for keyword in ("minimum", "exclusiveMinimum"):
        if keyword in given and Fraction(given[keyword]) > low:
            out.pop("minimum", None)
            low, out[keyword] = Fraction(given[keyword]), given[keyword]
        elif keyword in given and keyword.startswith("ex") and Fraction(given[keyword]) == low:
            out = {keyword: given[keyword]}
    lower = dict(out)
    for keyword in ("maximum", "exclusiveMaximum"):
        if keyword in given and Fraction(given[keyword]) < high:
            out.pop("maximum", None)
            high, out[keyword] = Fraction(given[keyword]), given[keyword]
        elif keyword in given and keyword.startswith("ex") and Fraction(given[keyword]) == high:
            out = {**lower, keyword: given[keyword]}
    if low > high or (low == high and any(key.startswith("ex") for key in out)):
        return None
    if not {"minimum", "exclusiveMinimum"} & out.keys():
        out = {"minimum": -LARGE, **out}
    if not {"maximum", "exclusiveMaximum"} & out.keys():
        out["maximum"] = LARGE
    open_ended = "minimum" not in given and "exclusiveMinimum" not in given
    open_ended = open_ended or ("maximum" not in given and "exclusiveMaximum" not in given)
    if "multipleOf" not in given and (open_ended or high - low >= 10**6 * Fraction(STEP)):
        out["multipleOf"] = STEP
    return out


def is_small(step: Number) -> bool:
    """Whether the compiler can count in this step: 0.05 and 9,999 are small, 2^31 is not.

    >>> is_small(0.05), is_small(2**31)
    (True, False)
    """
    if not 0 < step <= MAX_MULTIPLE:
        return False
    digits = Fraction(str(step)) * 10**9
    if digits.denominator != 1:
        return False
    whole = digits.numerator
    while whole % 10 == 0:
        whole //= 10
    return whole <= MAX_MULTIPLE


def beyond(value: Json) -> Iterator[int]:
    """Numbers in a JSON value that the compiler does not hold exactly, as integers."""
    match value:
        case bool():
            return
        case int() if abs(value) > SAFE:
            yield value
        case float() if abs(value) > EDGE:
            yield int(value)
        case list():
            for item in value:
                yield from beyond(item)
        case dict():
            for item in value.values():
                yield from beyond(item)
