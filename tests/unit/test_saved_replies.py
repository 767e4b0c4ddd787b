"""Saved replies from files that nobody vouches for: damaged, foreign, hostile."""

import copy
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.html_audit import XSS, audit

from llm_magic.chat.reply import Reply
from llm_magic.events import Sampling, Timings, Token, ToolCall, ToolRecord, Top, Usage
from llm_magic.ui import reply_methods
from llm_magic.ui.views import compare, mime, plots, summary, throughput


def whole() -> dict[str, Any]:
    """The JSON of a reply that has something in every field."""
    run = tuple(
        Token(i, f" w{i}".encode(), -0.5 * i, 1 + i, (Top(9, b" a", -0.5), Top(8, b"\xff", None)),
              at=0.1 * i, masked=0.25, trimmed=i == 3, forced=i < 2)
        for i in range(4)
    )  # fmt: skip
    call = ToolCall("c", "f", '{"a": 1}')
    branch = Reply(" w0 w1!", tokens=run[:2], kinds=("answer", "answer"), finish_reason="length")
    return Reply(
        " w0 w1 w2 w3", reasoning="because", calls=(call,), tokens=run, kinds=("answer",) * 4,
        finish_reason="stop", usage=Usage(12, 8, 4), timings=Timings(0.1, 0, 0.2, 0.5, 0.3, 80, 9),
        model="smollm2", prompt="<|im_start|>user\nHi<|im_end|>", parsed={"a": [1]},
        sampling=Sampling(temperature=0.7, seed=3, stop=("x",), logit_bias=((1, -1.0),)),
        choices={"yes": 0.75, "no": 0.25}, branches=((2, branch),),
        trace=(ToolRecord(1, call, {"a": 1}, "auto", "error", 0.1, "r", "out", "ValueError"),),
    ).to_dict()  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value in JSON."""
    inside = (
        value.items() if isinstance(value, dict)
        else enumerate(value) if isinstance(value, list) else ()
    )  # fmt: skip
    return [path, *(p for key, item in inside for p in places(item, (*path, key)))]


PLACES = places(json.loads(json.dumps(whole())))[1:]
EDGES: tuple[Any, ...] = (
    *(
        None,
        True,
        -1,
        0,
        10**400,
        1e308,
        "",
        "\ud800",
        "$5 <b>",
        [],
        {},
        [[]],
        {"": None},
        "a|b|c|d",
    ),
    *(
        float("nan"),
        float("inf"),
        "1|x|-0.1|1|0|",
        "|||||",
        "1|\\x|0|1|0|",
        [0, {}],
        2**63,
        *XSS[:4],
    ),
)
values = (
    st.sampled_from(EDGES) | st.integers() | st.floats() | st.text(max_size=20)
    | st.lists(st.integers(-3, 3), max_size=3)
)  # fmt: skip


def show(reply: Reply) -> list[str]:
    """Every static view of a reply; returns the HTML of those that have it."""
    looks = [
        mime.Look(show=mime.SECTIONS | {"surprises"}, format=form)
        for form in ("markdown", "text", "code")
    ]
    bundles = [mime.bundle(reply, look, prepared="loaded in 1.0 s") for look in looks]
    bundles.append(mime.bundle(reply, mime.Look(docs=True)))
    for data in bundles:
        json.dumps(data, allow_nan=False)
    views = [reply.heatmap(), reply.prompt_view(), reply.trace(), reply.choice_bars()]
    views += [reply.alternatives(i) for i in range(len(reply.tokens))]
    views.append(mime.Fragment(compare.fragment([reply, reply], ["a", "b"]), ""))
    reply.trace().to_json()
    reply_methods.to_frame(reply)
    ledger = throughput.ledger([throughput.entry(reply, 1)])
    assert summary.numbers(reply) is not None
    return [data["text/html"] for data in bundles] + [view.html for view in views] + [ledger]


def damaged(changes: list[tuple[int, Any]]) -> Any:
    data = copy.deepcopy(whole())
    data = json.loads(json.dumps(data))
    for place, value in changes:
        *path, last = PLACES[place % len(PLACES)]
        inner = data
        try:
            for key in path:
                inner = inner[key]
            inner[last] = value
        except (TypeError, KeyError, IndexError):
            continue  # an earlier change took the place away
    return data


def read(data: Any) -> Reply | None:
    """The reply, or None where it is refused with our own words."""
    try:
        return Reply.from_dict(data)
    except ValueError as error:
        message = str(error)
    assert "not a saved reply" in message
    return None


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(st.tuples(st.integers(0, 10_000), values), min_size=1, max_size=4))
def test_damaged_json_is_refused_or_shown_as_safe_html(changes: list[tuple[int, Any]]) -> None:
    reply = read(damaged(changes))
    assert reply is None or all(audit(page) == [] for page in show(reply))


@pytest.mark.parametrize("place", range(len(PLACES)), ids=lambda i: ".".join(map(str, PLACES[i])))
def test_every_single_damage_is_refused_or_shown(place: int) -> None:
    for value in EDGES:
        reply = read(damaged([(place, value)]))
        assert reply is None or all(audit(page) == [] for page in show(reply))


@pytest.mark.parametrize("what", list(plots.PLOTS))
def test_plots_of_extreme_numbers_are_drawn(what: str) -> None:
    run = (
        Token(0, b"a", -1e308, 0, (Top(1, b"b", 50.0),), at=-5.0),
        Token(1, b"\xff$\\frac", None, 10**30, (Top(1, b"b", None),), at=1e300),
        Token(2, b"c", 5.0, -3, at=1e300),
    )
    reply = Reply("abc", tokens=run, timings=Timings(1e300, 0, 1, 1, 1, 1e300, 1e300))
    assert reply.plot(what)._repr_png_().startswith(b"\x89PNG")


def test_the_whole_reply_is_read_and_shown() -> None:
    reply = Reply.from_dict(whole())
    assert reply.to_dict() == whole()
    assert all(audit(page) == [] for page in show(reply))
