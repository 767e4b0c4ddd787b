"""What a cell leaves behind: bundles, heat map, saved JSON, docs mode."""

import json
import re
from dataclasses import replace
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.html_audit import XSS, audit, contrast, shown
from support.replies import reply_of

from llm_magic.chat.reply import Reply
from llm_magic.events import (
    Delta,
    Piece,
    Prefill,
    Progress,
    Sampling,
    Timings,
    Token,
    ToolCall,
    ToolRecord,
    Top,
    Usage,
)
from llm_magic.llm import LLM
from llm_magic.providers.scripted import Scripted
from llm_magic.ui import reply_methods
from llm_magic.ui.reply_methods import VENDOR, Look
from llm_magic.ui.views import logprobs, mime, progress, summary, tokens

# ----------------------------------------------------------------------------- the bundle


def test_a_bundle_holds_every_form() -> None:
    data = reply_methods.bundle(reply_of(), Look())
    assert set(data) == {"text/plain", "text/markdown", "text/html", VENDOR}
    assert data["text/plain"] == " w0 w1 w2 w3 w4 w5"
    line = (
        "smollm2 · 42 prompt tokens (8 cached + 34 new) · 6 tokens · "
        "prefill 812 tok/s · decode 99 tok/s · stop"
    )
    assert line in shown(data["text/html"])


def test_include_and_exclude_choose_types() -> None:
    reply = reply_of()
    assert set(reply_methods.mimebundle(reply, include={"text/plain"})[0]) == {"text/plain"}
    assert VENDOR not in reply_methods.mimebundle(reply, exclude={VENDOR})[0]
    assert "text/html" in reply._repr_mimebundle_()[0]


def test_a_reply_read_back_from_its_output_shows_the_same() -> None:
    reply = reply_of()
    data = json.loads(json.dumps(reply_methods.bundle(reply, Look())))
    again = reply_methods.from_output(data)
    assert again.text == reply.text
    assert reply_methods.bundle(again, Look())["text/html"] == data["text/html"]


def test_every_view_of_a_reply_that_was_read_back_is_the_same() -> None:
    record = ToolRecord(1, ToolCall("c", "f", "{}"), {}, "auto", "ok", 0.25, "42", waited=1.5)
    branch = replace(reply_of(3), tokens=tuple(replace(t, forced=True) for t in reply_of(3).tokens))
    reply = reply_of(
        prompt="<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", trace=(record,),
        branches=((2, branch),), timings=Timings(0, 0.1, 0.2, 0.5, 0.3, 812.4, 98.7),
    )  # fmt: skip
    again = reply_methods.from_output(json.loads(json.dumps(reply_methods.bundle(reply, Look()))))
    assert again.trace == reply.trace

    def seen(reply: Reply) -> list[Any]:
        axes = reply.plot()
        static = (reply.heatmap(), reply.alternatives(3), reply.trace(), reply.prompt_view())
        return [
            [view._repr_mimebundle_() for view in static],
            [line.get_xydata().round(6).tolist() for line in axes.lines],
            [bar.get_bbox().bounds for bar in axes.patches],
            axes.get_legend_handles_labels()[1],
            reply.to_frame().drop(columns="top").round(6).to_numpy().tolist(),
            reply.explore().state,
        ]

    assert seen(again) == seen(reply)


# B106
def test_history_keeps_its_dollars() -> None:
    reply = Reply("It costs $5.")
    data = reply_methods.bundle(reply, Look())
    assert data["text/markdown"] == "It costs \\$5."
    assert data["text/plain"] == reply.message.text == "It costs $5."


def test_notes_are_in_every_form() -> None:
    data = reply_methods.bundle(Reply("half", finish_reason="interrupted"), Look(), "interrupted")
    assert data["text/plain"] == "half\n\n[interrupted]"
    assert data["text/markdown"] == "half\n\n*interrupted*"
    assert "interrupted" in shown(data["text/html"])


def test_no_paths_of_this_machine_are_saved() -> None:
    for model in ("/home/ann/models/x.gguf", "C:\\models\\x.gguf", "~/x.gguf", "./x.gguf"):
        text = json.dumps(reply_methods.bundle(reply_of(model=model), Look()))
        assert "ann" not in text
        assert "models" not in text
        assert '"x"' in text
    assert summary.model_name("owner/repo:file.gguf") == "owner/repo:file.gguf"
    assert summary.model_name("https://u:pw@host.org/a/big.gguf?token=s3cret") == "big"
    assert summary.model_name("http://u:pw@host.org:8000/v1?key=s3cret") == "host.org:8000"


def test_save_prompt_decides_about_the_prompt() -> None:
    reply = reply_of(prompt="my secret")
    assert "my secret" in json.dumps(reply_methods.bundle(reply, Look()))
    assert "my secret" not in json.dumps(reply_methods.bundle(reply, Look(save_prompt=False)))


@pytest.mark.parametrize(("n", "top"), [(5, 0), (50, 5), (300, 20), (2000, 5)])
def test_saved_json_weighs_at_most_150_bytes_a_token(n: int, top: int) -> None:
    data = mime.saved(reply_of(n, top), Look())
    assert len(json.dumps(data["tokens"], ensure_ascii=False)) <= 150 * n
    assert len(data["tokens"]) == n


def test_long_replies_are_saved_without_tokens_unless_asked() -> None:
    reply = reply_of(2001, 0)
    assert "tokens" not in mime.saved(reply, Look())
    assert len(mime.saved(reply, Look(json_tokens=None))["tokens"]) == 2001


def test_docs_mode_is_equal_for_unequal_runs() -> None:
    first = reply_of()
    run = tuple(replace(t, logprob=-0.42 * i) for i, t in enumerate(first.tokens))
    moved = tuple(replace(t, logprob=-0.42 * i - 0.003, at=t.at + 1) for i, t in enumerate(run))
    first = replace(first, tokens=run)
    second = replace(first, tokens=moved, timings=Timings(prefill_tps=1.0, decode_tps=2.0))
    look = Look(docs=True)
    assert reply_methods.bundle(first, look) == reply_methods.bundle(second, look)
    assert set(reply_methods.bundle(first, look)) == {"text/plain", "text/html"}


# ----------------------------------------------------------------------------- formats


def test_code_format_takes_what_the_fences_hold() -> None:
    text = "Sure:\n```python\nx = 1\n```\nand\n~~~\ny = 2\n~~~\nDone."
    assert mime.fenced(text) == ("x = 1\n\ny = 2", "python")
    assert mime.fenced("x = 1") == ("x = 1", "python")
    data = reply_methods.bundle(Reply(text), Look(format="code"))
    assert data["text/plain"] == "x = 1\n\ny = 2"
    assert "Sure" not in shown(data["text/html"])
    assert data["text/markdown"].startswith("```python\nx = 1")


def test_text_is_shaded_in_its_own_place() -> None:
    plain = reply_methods.bundle(reply_of(), Look(format="text", heat=False))["text/html"]
    shaded = reply_methods.bundle(reply_of(), Look(format="text"))["text/html"]
    assert shown(plain).count("w0 w1 w2") == shown(shaded).count("w0 w1 w2") == 1
    assert "lm-p2" in shaded
    assert (
        "w0 w1"
        in shown(reply_methods.bundle(reply_of(), Look())["text/html"]).split("Token prob")[1]
    )


def test_text_format_is_verbatim() -> None:
    text = "  **not bold**\n\n  x"
    page = reply_methods.bundle(Reply(text), Look(format="text"))["text/html"]
    assert text in shown(page)
    fenced = reply_methods.bundle(Reply("a\n```\nb"), Look(format="text"))["text/markdown"]
    assert fenced == "````text\na\n```\nb\n````"


# ----------------------------------------------------------------------------- heat map


def test_the_heat_map_adds_nothing_to_the_text_and_says_all_without_colour() -> None:  # F265
    """What is copied is the answer; the steps are thicker lines, and elements that browsers
    underline or mark by themselves, and numbers in a table."""
    run = [Token(i, b" x", lp, 1) for i, lp in enumerate((-0.01, -0.5, -1.2, -2.5, -4.0, -9.0))]
    page = logprobs.shaded(Reply(" x" * 6, tokens=tuple(run)))
    flow = page.split("</pre>")[0]
    assert shown(flow) == " x" * 6
    assert re.findall(r"<(span|ins|mark)", flow) == ["span"] * 2 + ["ins"] * 2 + ["mark"] * 2
    lines = re.findall(r"border-bottom:(\dpx \w+)", flow)
    assert lines == ["1px dotted", "1px solid", "2px solid", "3px solid", "4px solid"]
    for number in ("99%", "61%", "30%", "8.2%", "1.8%", "<.1%"):
        assert number in shown(page)


def test_a_heat_map_in_a_terminal_has_its_marks_below_the_words() -> None:  # F265
    run = (
        Token(0, b"The", -0.1, 1),
        Token(1, " 東京".encode(), -1.0, 2),
        Token(2, b"\n\nb", -9, 3),
    )
    assert repr(Reply("x", tokens=run).heatmap()) == "The 東京\n   ▁▁▁▁▁\n\nb\n▇"
    words = tuple(Token(i, b" abcdefghi", -3.0, 2) for i in range(20))
    lines = logprobs.marked(words, width=50).splitlines()
    assert lines == [" abcdefghi" * 5, "▅" * 50] * 4
    evil = logprobs.marked((Token(0, b"\x1b[2J\x07", -0.1, 1),))
    assert evil == "�[2J�"


def test_the_first_shades_can_be_seen_on_a_projector() -> None:  # F265
    """Each differs from its page, and all but likely tokens have a line in the text's colour."""
    for step in logprobs.SCALE[1:]:
        assert step.light is not None
        assert step.dark is not None
        assert step.line
        assert contrast(step.light[0], "#ffffff") >= 1.2
        assert contrast(step.dark[0], "#111111") >= 1.4


def test_a_token_without_a_probability_does_not_look_likely() -> None:  # F269
    run = (Token(0, b"The", None, None), Token(1, b" cat", -0.01, 1))
    page = Reply("The cat", tokens=run).heatmap().html
    assert re.search(r'<span class="lm-pu" title="probability unknown"[^>]*>The</span>', page)
    assert "unknown</span>" in page.split("</pre>")[1]  # in the legend
    bare = Reply("The", tokens=run[:1]).heatmap().html  # nothing is known of any: no colour
    assert 'class="lm-pu"' not in bare


def test_the_map_of_a_completion_shows_the_text_that_it_continues() -> None:  # F269
    run = (Token(0, b" 4", -0.1, 1),)
    reply = Reply(" 4", tokens=run, kinds=("answer",), prompt="<bos>2+2 <=")
    page = reply_methods.bundle(reply, Look(heat=True))["text/html"]
    assert shown(page).split("perplexity")[1].split("probability")[0].endswith("2+2 <= 4")
    assert "2+2" not in reply_methods.bundle(reply, Look(heat=True, save_prompt=False))["text/html"]
    long = replace(reply, prompt="x" * 1000)
    assert "…" + "x" * logprobs.BEFORE + "<" in long.heatmap().html
    chat = replace(reply, prompt="<|im_start|>user\n2+2<|im_end|>\n<|im_start|>assistant\n")
    assert "2+2" not in chat.heatmap().html


def test_a_long_map_has_its_legend_at_both_ends() -> None:  # F273
    short, long = (logprobs.heat(reply_of(n, 0)) for n in (logprobs.LONG, logprobs.LONG + 1))
    assert (short.count("90% or more"), long.count("90% or more")) == (1, 2)
    assert long.index("90% or more") < long.index(" w0")


def test_a_table_of_replies_has_no_colours_of_the_page() -> None:  # F273
    from llm_magic.ui.views import compare

    page = mime.Fragment(compare.fragment([reply_of(), reply_of(4)], ["a", "b"]), "").html
    assert '<table class="lm-compare"' in page
    assert ".lm-compare tr{background:none!important}" in page


def test_no_shade_is_made_paler_by_what_is_around_it() -> None:
    """Opacity takes contrast from both: the darkest step of the legend came down to 3.6:1."""
    run = [Token(i, b" x", lp, 1) for i, lp in enumerate((-0.01, -9.0))]
    page = logprobs.shaded(Reply(" x" * 2, tokens=tuple(run)))
    shaded = re.findall(r"<[^/>]*background-color[^>]*>", page)
    assert len(shaded) == 1 + 5  # a token, the steps of the legend
    pale = re.findall(r"<(\w+)[^>]*opacity:[^>]*>(?:(?!</\1>).)*background-color", page, re.DOTALL)
    assert not pale


def test_every_shade_is_readable_and_ordered_by_lightness() -> None:
    from support.html_audit import _luminance

    for which in ("light", "dark"):
        looks = [getattr(s, which) for s in logprobs.SCALE if getattr(s, which)]
        assert all(contrast(*look) >= 4.5 for look in looks)
        steps = [_luminance(look[0]) for look in looks]
        assert steps == sorted(steps, reverse=which == "light")
        # Steps that a page without colour could not tell apart would be no scale.
        assert all(abs(a - b) > 0.02 for a, b in pairwise(steps))


def test_white_space_newlines_and_bytes_are_visible() -> None:
    run = (b" ", b"   ", b"\n", b"\t", b" a", b"\xf0\x9f", b"\xe2\x80\xae", b"", "\u200d".encode())
    assert [tokens.flowing(t) for t in run] == [
        "·", "···", "⏎\n", "→\t", " a", "⟨f09f⟩", "⟨U+202E⟩", "", "⟨U+200D⟩",
    ]  # fmt: skip
    assert [tokens.alone(t) for t in run] == [
        "␣", "␣␣␣", "⏎", "→", "␣a", "⟨f09f⟩", "⟨U+202E⟩", "∅", "⟨U+200D⟩",
    ]  # fmt: skip
    assert tokens.decode(b"a\xffb\xc3") == "a⟨ff⟩b⟨c3⟩"
    family = "👨\u200d👩"
    assert tokens.flowing(family.encode()) == family
    assert len(tokens.alone(b"x" * 100, 20)) == 20


@given(st.binary(max_size=12))
def test_no_bytes_are_hidden(data: bytes) -> None:
    shown_text = tokens.alone(data)
    assert shown_text.strip()
    assert not any(ord(c) < 32 for c in shown_text)


@pytest.mark.parametrize("evil", [b"<>&\"'" * 8, "𝔘ü".encode() * 6, b" " * 40, b"x"])
@pytest.mark.parametrize("n", [20, 2500])
def test_a_token_weighs_at_most_400_bytes(evil: bytes, n: int) -> None:
    top = tuple(Top(i, evil, -1.0 - i) for i in range(10))
    run = tuple(Token(i, evil, -0.3 * (i % 20), 1 + i % 30, top) for i in range(n))
    page = logprobs.heat(Reply("x", tokens=run))
    assert len(page.encode()) <= 400 * n + 2000


def numbers_of(page: str) -> list[str]:
    """The lines of the folded table, without its head."""
    found = re.search(r"Table of all tokens</summary><pre[^>]*>\n([^<]*)</pre>", page)
    assert found is not None
    return unescape(found[1]).split("\n")[1:]


def test_the_table_holds_what_is_known_of_each_token() -> None:
    top = (Top(1, b" a", -0.5), Top(2, b" b", -1.0, allowed=False), Top(3, b"\n", -4.0))
    run = (Token(1, b" a", -0.5, 1, top, masked=0.37), Token(9, b"\xff", -5.0, 1234, top))
    page = logprobs.heat(Reply("x", tokens=run))
    first, second = numbers_of(page)
    assert first.split() == [
        *("0", "␣a", "61%", "−0.50", "1", "≥1.1", "37%"),
        *("␣a", "61%", "·", "✗", "␣b", "37%", "·", "⏎", "1.8%"),
    ]
    assert second.split()[:6] == ["1", "⟨ff⟩", "0.7%", "−5.00", "1,234", "≥1.1"]
    assert first.index("␣a 61%") == second.index("␣a 61%")  # aligned
    # What no token has takes no column.
    bare = logprobs.heat(Reply("x", tokens=(Token(1, b"x", -1.0, None, ()),)))
    assert numbers_of(bare) == ["0  x      37%    −1.00"]


def test_long_replies_cost_a_page_little() -> None:
    """JupyterLab reads every output once more for headings: what it takes grows with the elements
    and their attributes, and the first `background` of a page alone took 15 ms, as its check is a
    very long expression."""
    run = [
        Token(i, f" w{i}".encode(), -(i % 6) * 0.7, 1, (Top(1, b" a", -1.0),)) for i in range(1000)
    ]
    for count, tips in ((logprobs.TIPS, True), (logprobs.TIPS + 1, False), (1000, False)):
        page = logprobs.heat(Reply("x", tokens=tuple(run[:count])))
        assert (page.count("title=") == count) is tips
        assert page.count("</") <= (2 if tips else 1.5) * count + 30
        assert len(numbers_of(page)) == count
    even = logprobs.heat(Reply("x", tokens=tuple(replace(t, logprob=-1.0) for t in run)))
    assert even.count("<span") < 20  # one stretch
    assert " w0 w1 w2" in even


def test_long_and_short_replies_read_the_same() -> None:
    run = tuple(
        Token(i, text, -0.6 * (i % 7), 1, (), trimmed=i % 11 == 0, forced=i < 3)
        for i, text in enumerate((b" a", b"\n", b"<b>", b"x\n\n", b"\xf0\x9f", b"  ", b"c") * 57)
    )
    assert len(run) <= logprobs.TIPS
    short, long = (shown(logprobs.flow(r)) for r in (run, run * 2))
    assert short * 2 == long
    note = numbers_of(logprobs.heat(Reply("x", tokens=run)))[0]
    assert "given, cut off" in note


def test_styles_are_cheap_to_check() -> None:
    pieces = [Piece(i, f" w{i}", f" w{i}".encode(), i % 50 == 0) for i in range(1000)]
    assert tokens.inspector(pieces).count("</") <= 1000 + 30
    full = reply_of(prompt="<|im_start|>user\nHi<|im_end|>")
    full = replace(full, text="```python\nx = 1\n```")
    page = reply_methods.bundle(full, Look(show=frozenset({"prompt", "tokens", "stats"})))[
        "text/html"
    ]
    for fragment in (page, tokens.inspector(pieces)):
        assert "background-color:" in fragment
        assert not re.search(r'style="[^"]*\bbackground:', fragment)
    # Rules of style elements may say it: they are not looked into.
    for file in Path(mime.__file__).parent.glob("*.py"):
        assert not re.search(r"\bbackground:(?!var|[^\"]*!important)", file.read_text()), file.name


def test_long_replies_fold() -> None:
    page = logprobs.heat(reply_of(2100, 0))
    assert "<summary" in page
    assert "100 more tokens" in page
    assert len(numbers_of(page)) == 2100


def test_constrained_tokens_show_what_was_forbidden() -> None:
    token = Token(1, b"a", -0.1, 1, (Top(2, b"b", -0.2, allowed=False),), masked=0.3)
    page = logprobs.heat(Reply("a", tokens=(token,)))
    assert "✗ b" in page
    assert "30% forbidden" in page
    assert "probability without the constraint 90%" in page
    assert "the constraint" not in logprobs.heat(reply_of(3, 0))


def test_percent_never_claims_certainty() -> None:
    values = [1.0, 0.9999, 0.994, 0.5, 0.0996, 0.05, 0.001, 1e-9, 0.0, None]
    assert [logprobs.percent(v) for v in values] == [
        "100%", ">99%", "99%", "50%", "10%", "5.0%", "0.1%", "<.1%", "0%", "?",
    ]  # fmt: skip


# ----------------------------------------------------------------------------- hostile replies


@pytest.mark.parametrize("evil", XSS)
def test_nothing_of_the_corpus_survives_in_any_field(evil: str) -> None:
    run = (Token(1, evil.encode(), -3.0, 2, (Top(2, evil.encode(), -1.0),)),)
    reply = Reply(
        evil, reasoning=evil, tokens=run, kinds=("answer",), finish_reason="stop", model=evil,
        prompt=evil, sampling=Sampling(stop=(evil,)), usage=Usage(1, 0, 1),
    )  # fmt: skip
    for form in ("markdown", "text", "code"):
        page = reply_methods.bundle(reply, Look(format=form), note=evil)["text/html"]
        assert audit(page) == []
    assert audit(reply.heatmap()._repr_mimebundle_()["text/html"]) == []


def test_meaning_survives_without_style_and_script() -> None:
    """As the strictest viewers leave it: no style, class, id or tabindex, no style element."""
    reply = replace(reply_of(), text="A **bold** `code`.\n\n```python\nx = 1\n```")
    page = reply_methods.bundle(reply, Look())["text/html"]
    bare = re.sub(r"<style>.*?</style>", "", page, flags=re.S)
    bare = re.sub(r' (?:style|class|id|tabindex)="[^"]*"', "", bare)
    assert "style" not in bare
    text = shown(bare)
    for piece in ("bold", "code", "x = 1", "w5", "rank", "smollm2", "8 cached + 34 new"):
        assert piece in text, piece
    assert "<details" in bare
    assert "<ins> w5</ins>" in re.sub(r' title="[^"]*"', "", bare)
    assert "w5" in numbers_of(bare)[5]


def test_scripted_replies_show(monkeypatch: pytest.MonkeyPatch) -> None:
    reply = LLM(Scripted(["Hello **world**"])).complete("Hi", logprobs=3)
    assert "<strong>world</strong>" in reply._repr_mimebundle_()[0]["text/html"]
    assert repr(reply.heatmap()).startswith("Hello")


# ----------------------------------------------------------------------------- choices


def test_choices_are_bars_of_their_probabilities() -> None:  # F264
    """The most likely first, the one that was taken marked, in HTML, text and the saved JSON."""
    shares = {"negative": 0.2, "positive": 0.75, "<b>": 0.05}
    reply = Reply("positive", choices=shares)
    text = repr(reply.choice_bars())
    assert [line.split() for line in text.splitlines()] == [
        ["→", "positive", "75%", "█" * 15],
        ["negative", "20%", "█" * 4],
        ["<b>", "5.0%", "█"],
    ]
    page = reply.choice_bars().html
    assert audit(page) == []
    assert "█" * 15 in page
    again = Reply.from_dict(json.loads(json.dumps(reply.to_dict())))
    assert again.choices == shares
    assert repr(again.choice_bars()) == text


def test_a_reply_without_choices_says_so() -> None:
    assert "choices=[...]" in repr(Reply("x").choice_bars())


def test_many_choices_are_cut_with_a_count() -> None:
    reply = Reply("c0", choices={f"c{i}": 1 / 60 for i in range(60)})
    assert repr(reply.choice_bars()).splitlines()[-1] == "10 more choices"
    assert "10 more choices" in reply.choice_bars().html


# ----------------------------------------------------------------------------- plots


def test_plots_show_probability_entropy_and_rank_of_each_token() -> None:  # F270
    reply = reply_of(4)
    points = {what: reply.plot(what).lines[0].get_ydata() for what in ("probability", "rank")}
    assert list(points["rank"]) == [1, 2, 3, 4]
    assert points["probability"] == pytest.approx(
        [logprobs.probability(t.logprob) for t in reply.tokens]
    )
    bits = reply.plot("entropy")
    assert list(bits.lines[0].get_ydata()) == [logprobs.entropy(t) for t in reply.tokens]
    assert [label.get_text() for label in bits.get_xticklabels()] == ["·w0", "·w1", "·w2", "·w3"]
    bare = Reply("x", tokens=(Token(0, b"x", None, None),))
    for what in ("probability", "entropy", "rank", "speed"):
        assert bare.plot(what)._repr_png_().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="choose one of 'speed', 'probability', 'entropy', 'rank'"):
        reply.plot("loss")


def test_plots_suit_light_and_dark_pages_without_being_told() -> None:  # F270
    """The figure is transparent, and its letters have contrast on white and on dark pages."""
    from matplotlib import rc_context
    from matplotlib.colors import to_hex

    axes = reply_of().plot("probability")
    assert axes.figure.get_facecolor()[3] == axes.get_facecolor()[3] == 0
    letters = to_hex(axes.xaxis.label.get_color())
    assert min(contrast(page, letters) for page in ("#ffffff", "#111111", "#1f1f1f")) >= 4
    assert axes._repr_png_().startswith(b"\x89PNG")
    # What a person has set for all plots holds for ours too.
    with rc_context({"figure.facecolor": "#112233"}):
        assert to_hex(reply_of().plot().figure.get_facecolor()) == "#112233"
    assert reply_of().plot(dark=False).figure.get_facecolor() == (1.0, 1.0, 1.0, 1.0)


def test_tokens_below_a_plot_are_no_formulas_and_need_no_other_font(recwarn: Any) -> None:
    run = tuple(Token(i, t.encode(), -1.0, 1) for i, t in enumerate(("$a", "b$", "東", "🦊")))
    axes = Reply("x", tokens=run).plot("rank")
    axes._repr_png_()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$a", "b$", "□", "□"]
    assert not [w for w in recwarn if "Glyph" in str(w.message)]


# ----------------------------------------------------------------------------- the line below


def test_the_line_tells_no_speed_of_a_handful_of_tokens() -> None:  # F269
    timings = Timings(prefill=0.13, prefill_tps=7.8, decode_tps=99.0)
    line = summary.numbers(reply_of(usage=Usage(500, 499, 6), timings=timings))
    assert "prefill" not in line
    assert "decode 99 tok/s" in line
    assert "prefill 812 tok/s" in summary.numbers(reply_of(usage=Usage(16, 0, 6)))
    assert not reply_of(usage=Usage(500, 499, 6), timings=timings).plot().patches


def test_the_line_tells_the_seed_that_repeats_an_answer() -> None:  # F208
    drawn = reply_of(sampling=Sampling(temperature=1.5, seed=7))
    assert "seed 7" in summary.numbers(drawn)
    assert Reply.from_dict(json.loads(json.dumps(drawn.to_dict()))).sampling.seed == 7
    greedy = reply_of(sampling=Sampling(temperature=0.0, seed=7))
    assert "seed" not in summary.numbers(greedy)
    # Outputs that are compared do not depend on what was drawn.
    docs = Look(docs=True, show=frozenset({"stats"}))
    other = replace(drawn, sampling=Sampling(temperature=1.5, seed=8))
    assert reply_methods.bundle(drawn, docs) == reply_methods.bundle(other, docs)


def test_cut_off_json_says_why_there_is_no_value() -> None:  # F269
    run = (Token(0, b'{"a":', -0.1, 1, masked=0.5),)
    reply = Reply('{"a":', tokens=run, finish_reason="length")
    for kind in ("text/plain", "text/markdown", "text/html"):
        assert "reply.parsed is None" in reply_methods.bundle(reply, Look())[kind]
    for other in (
        replace(reply, finish_reason="stop"),
        replace(reply, parsed={"a": 1}),
        replace(reply, tokens=(replace(run[0], masked=None),)),
    ):
        assert "parsed" not in reply_methods.bundle(other, Look())["text/html"]


# ----------------------------------------------------------------------------- progress


def test_the_duration_of_each_stage_is_told_apart() -> None:  # F269
    now = [0.0]
    stages = progress.Stages(lambda: now[0])
    for at, event in (
        (0.0, Progress("hub", 0, 0)),
        (1.0, Progress("download", 0, 100)),
        (30.0, Progress("download", 99, 100)),
        (33.0, Progress("load", 0, 100)),
        (35.0, Progress("compile", 0, 1)),
        (39.5, Prefill(0, 10, 0)),
        (41.0, Delta("answer", "x")),
    ):
        now[0] = at
        stages.event(event)
    assert stages.line == "downloaded in 33.0 s, loaded in 2.0 s, compiled in 4.5 s"
    page = reply_methods.bundle(reply_of(), Look(), prepared=stages.line)["text/html"]
    assert "downloaded in 33.0 s, loaded in 2.0 s, compiled in 4.5 s" in shown(page)
    assert progress.Stages().line == ""


def test_a_download_that_is_complete_is_being_checked() -> None:  # F269
    half, whole = (
        progress.work(Progress("download", n, 93_000_000)) for n in (5_000_000, 92_999_999)
    )
    assert progress.plain(half).startswith("downloading: 5 MB of 93 MB [#")
    assert whole == progress.Work("checking the downloaded file")
    assert progress.work(Progress("verify", 1, 4)).line == "checking the downloaded file: 1 of 4"


# ----------------------------------------------------------------------------- terminals, exports


def test_control_characters_reach_no_terminal() -> None:  # F223
    evil = "a\x1b[2Jb\x1b]0;t\x07c\x1b]52;c;eA==\x9b1Ad\re\x08"
    record = ToolRecord(1, ToolCall("c", "f", "{}"), {}, "auto", "ok", 0.1, evil)
    token = Token(0, evil.encode(), -1.0, 1, (Top(0, evil.encode(), -1.0),))
    reply = Reply(evil, trace=(record,), prompt=evil, choices={evil: 1.0}, tokens=(token,))
    plain = [reply_methods.bundle(reply, Look(), note=evil)["text/plain"]]
    views = (reply.heatmap(), reply.alternatives(0), reply.trace(), reply.prompt_view())
    plain += [repr(view) for view in (*views, reply.choice_bars())]
    for text in plain:
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", text), text
    assert "a␛[2Jb␛]0;t␇c" in plain[0]


def test_exported_markdown_shows_no_style_rules() -> None:  # F270
    """Where the style element is removed or escaped, what was in it is a comment."""
    page = reply_methods.bundle(reply_of(), Look())["text/html"]
    assert re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    for mark in ("", "&lt;"):
        left = page.replace("<style>", mark).replace("</style>", mark)
        rest = re.sub(r"<!--.*?-->", "", left, flags=re.DOTALL)
        assert "!important" not in rest


def test_whole_choices_take_the_place_of_the_heat_map() -> None:  # F264
    reply = replace(reply_of(), choices={" w0 w1 w2 w3 w4 w5": 0.9, "other": 0.1})
    text = shown(reply_methods.bundle(reply, Look())["text/html"])
    assert "90%" in text
    assert "Token probabilities" not in text
    assert "Token probabilities" in shown(reply_methods.bundle(reply, Look(heat=True))["text/html"])
