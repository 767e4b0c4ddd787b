"""Safe HTML from text that nobody vouches for."""

import re

import pytest
from support.html_audit import XSS, audit, contrast, shown

from llm_magic.ui.views import html


@pytest.mark.parametrize("evil", XSS)
def test_nothing_in_the_corpus_survives_as_markup(evil: str) -> None:
    for page in (
        html.markdown(evil),
        html.markdown(f"text {evil} text"),
        html.markdown(f"> {evil}\n\n- {evil}"),
        html.text(evil),
        html.verbatim(evil),
        html.code(evil, "python"),
        html.code("x", evil),
        html.note(html.text(evil)),
        f'<span title="{html.attribute(evil)}">x</span>',
    ):
        assert audit(page) == []


def test_the_audit_itself_sees_harm() -> None:
    for evil in XSS[:6]:
        assert audit(evil)
    assert audit('<a href="javascript:x">')
    assert audit('<p style="background:url(x)">')


def test_html_in_markdown_is_shown() -> None:
    assert "<b>bold</b>" in shown(html.markdown("<b>bold</b>"))


def test_images_load_nothing() -> None:
    page = html.markdown("![a cat](https://a.test/cat.png)")
    assert "<img" not in page
    assert 'href="https://a.test/cat.png"' in page
    assert "[a cat]" in page


def test_links_are_marked() -> None:
    page = html.markdown("[x](https://a.test) <https://b.test>")
    assert page.count('rel="nofollow noopener noreferrer"') == 2


def test_headings_do_not_outrank_the_notebook() -> None:
    page = html.markdown("# A\n\n## B\n\n###### C")
    assert re.findall(r"<(h\d)>", page) == ["h3", "h4", "h6"]


# ----------------------------------------------------------------------------- dollars

MATH = (
    "$$E=mc^2$$",
    "\\(a\\)",
    "\\[ a_1 * b_1 * c \\]",
    "$x$",
    "$a_1 b_2 * c * d$",
    "$2x_1$",
    "$\\$5$",
    "$$\na\n= b\n- c\n$$",
    "\\begin{align}\na &= b \\\\\nc &= d\n\\end{align}",
)


# B106
def test_amounts_are_escaped_and_formulas_are_not() -> None:
    text = (
        "Costs $5 today and $7 tomorrow. `$x$` $$E=mc^2$$ \\(a\\) US$ and $HOME or $1,000-$2,000."
    )
    expected = (
        "Costs \\$5 today and \\$7 tomorrow. `$x$` $$E=mc^2$$ \\(a\\) US\\$ and \\$HOME or "
        "\\$1,000-\\$2,000."
    )
    assert html.escape_dollars(text) == expected
    # In HTML an element stands where MathJax would look for the other delimiter.
    page = html.markdown(text)
    assert page.count("<span>$</span>") == 6
    assert "<code>$x$</code>" in page
    assert "$$E=mc^2$$" in page
    assert "\\(a\\)" in page
    assert shown(page).strip() == text.replace("`", "")


@pytest.mark.parametrize("formula", MATH)
def test_formulas_stay_byte_for_byte(formula: str) -> None:
    # Of several lines only where it begins one: inside a sentence, Markdown's blocks come first.
    inside = [] if "\n" in formula else [("Since ", " holds."), ("- ", "")]
    for before, after in [("", ""), *inside]:
        text = f"{before}{formula}{after}"
        assert html.escape_dollars(text) == text
        assert formula in shown(html.markdown(text)), html.markdown(text)


def test_dollars_in_code_are_left_alone() -> None:
    text = "```sh\necho $5 $HOME\n```\n\n~~~\n$1\n~~~\n`$5` ``a ` $5``\n\n$5"
    assert html.escape_dollars(text) == text[:-2] + "\\$5"
    unclosed = "```sh\necho $5"
    assert html.escape_dollars(unclosed) == unclosed


def test_escaped_dollars_are_not_escaped_twice() -> None:
    assert html.escape_dollars("\\$5 $5") == "\\$5 \\$5"


@pytest.mark.parametrize(
    "opener",
    [
        "\\[",
        "\\(",
        "$$",
        "$",
        "\\begin{a}",
        "`",
        "``` ",
        "```\n",
        "~~",
        "~~~\n",
        "\\`",
        "` ``",
        "[",
        "*a _b",
    ],
)
def test_a_megabyte_of_openers_is_escaped(opener: str) -> None:  # F311
    """In quadratic time, 160 kB of backticks took half a minute: this would not end."""
    text = opener * (1_000_000 // len(opener)) + "\n\n$5"
    assert html.escape_dollars(text).count("$") == text.count("$")


@pytest.mark.parametrize("opener", ["\\[", "\\(", "$$", "$", "\\begin{a}", "`", "```\n", "[", "~~"])
def test_long_runs_of_openers_are_rendered(opener: str) -> None:  # F311
    assert html.markdown(opener * 10_000)


def test_code_spans_end_in_their_paragraph_at_as_many_backticks() -> None:
    text = "a ` $1 `` $2 ` $3\n\n` $4\n\n` $5 ``` $6 \\` $7 `"
    expected = "a ` $1 `` $2 ` \\$3\n\n` \\$4\n\n` $5 ``` $6 \\` \\$7 `"
    assert html.escape_dollars(text) == expected
    assert html.escape_dollars("~~~~\n$1\n~~~\n$2\n~~~~\n$3") == "~~~~\n$1\n~~~\n$2\n~~~~\n\\$3"


# ----------------------------------------------------------------------------- looks


def test_what_sets_a_background_sets_a_readable_text_colour() -> None:
    page = html.code("def f(x):\n    return 'a', 1  # c", "python")
    pre = re.search(r"<pre[^>]*style=\"([^\"]*)", page)
    assert pre is not None
    look = dict(part.split(":", 1) for part in pre[1].split(";") if part)
    assert contrast(look["background-color"], look["color"]) >= 4.5
    colors = re.findall(r'<span[^>]*style="color:(#[0-9a-f]+)"', page)
    assert len(set(colors)) >= 4
    for color in colors:
        assert contrast(look["background-color"], color) >= 4.5


def test_dark_rules_are_readable_too() -> None:
    sheet = html.style()
    background = re.search(r"background:(#\w+)!", sheet)
    assert background is not None
    for color in re.findall(r"[{;]color:(#\w+)!", sheet):
        assert contrast(background[1], color) >= 4.5


def test_columns_are_aligned_in_every_script() -> None:
    head = ("#", "token", "none", "p")
    names = ["a", "日本", "é́", "👍🏽", "שלום", "<b>"]
    page = html.columns(head, [("1", name, "", f"{i}%") for i, name in enumerate(names)])
    assert audit(page) == []
    lines = shown(page).strip("\n").split("\n")
    assert lines[0] == "#  token  p"
    assert lines[1] == "1  a      0%"
    assert lines[2] == "1  日本   1%"  # two columns each
    assert lines[3] == "1  é́      2%"  # a combining accent has none
    assert lines[5] == "1  \u2068שלום\u2069   4%"  # or the percentage would stand before it
    assert lines[6] == "1  <b>    5%"
    right = shown(html.columns(("n",), [("5",), ("1,234",)], numbers=(0,)))
    assert right.strip("\n").split("\n") == ["    n", "    5", "1,234"]


def test_verbatim_keeps_every_blank_and_line() -> None:
    text = "\n  a\n\n\tb <c> & $5"
    assert shown(html.verbatim(text)) == "\n" + text


def test_code_of_unknown_languages_is_plain() -> None:
    assert "<span" not in html.code("x = 1", "no-such-language")


@pytest.mark.parametrize("mark", ["1. ", "- ", "> ", "> - ", "- > 1. "])
@pytest.mark.parametrize("depth", [1, 5, 10, 15, 20, 60])
def test_no_text_is_lost_however_deep_it_lies(mark, depth):
    page = html.markdown("before\n\n" + mark * depth + "inside `code`\n\nafter")
    for word in ("before", "inside", "<code>code</code>", "after"):
        assert word in page
    many = html.markdown("".join(f"{'  ' * i}- item{i}\n" for i in range(60)))
    assert all(f"item{i}" in many for i in range(60))
