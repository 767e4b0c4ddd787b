r"""Untrusted text as safe HTML that reads well in light, in dark and without style.

The text comes from models, tools, files and people. Three rules hold for every fragment:

- All text is escaped. Markdown is rendered with HTML switched off and then passes an allow-list.
- Colours are hex, and what sets a background sets its own text colour, because untrusted notebooks
  and web viewers drop variables and media queries. Where a style element survives, `style()`
  softens the same fragments for dark themes.
- Dollar signs outside of formulas are fenced off, because notebooks typeset every `$...$` of an
  HTML output.

markdown-it, nh3 and pygments are imported on first use.
"""

import functools
import html as _html
import re
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from llm_magic.columns import aligned

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.rules_inline import StateInline

# A `pre` whose text flows like a paragraph's.
FLOW = (
    "white-space:pre-wrap;word-break:normal;overflow-wrap:anywhere;margin:0;font-family:inherit;"
    "font-size:14px;line-height:1.65"
)
MONO = "ui-monospace,SFMono-Regular,Menlo,Consolas,monospace"

# Token classes of highlighted code: pygments type -> (class, light hex, dark hex). On #f6f8fa and
# #21262d each has a contrast of at least 4.5:1.
_CODE = {
    "Keyword": ("k", "#b3203a", "#ff8f85"),
    "Name.Function": ("f", "#6236b5", "#d2b3ff"),
    "Name.Class": ("f", "#6236b5", "#d2b3ff"),
    "Name.Builtin": ("b", "#0b5cad", "#8cc4ff"),
    "Literal.String": ("s", "#0a4a8f", "#a5d6ff"),
    "Literal.Number": ("m", "#0b5cad", "#8cc4ff"),
    "Comment": ("c", "#57606a", "#a3acb6"),
}
_DARK = ":is([data-jp-theme-light=false],[data-theme=dark],.vscode-dark,.theme-dark)"
_RULES = {
    # The tables of an answer: notebooks align them to the right.
    ".llm-magic :is(th,td):not([style])": "text-align:left!important",
    # A shaded token has a line of its own below it, as thick as its step of the scale.
    ".llm-magic :is(ins,mark)": "text-decoration:none",
    # Notebooks shade every second row of a table and the one below the pointer: over token shades
    # that would be a second colour.
    ".llm-magic .lm-compare tr": "background:none!important",
}
_DARK_RULES = {
    ".lm-code": "background:#21262d!important;color:#e6edf3!important",
    **{f".lm-code .{c}": f"color:{dark}!important" for c, _, dark in _CODE.values()},
}


def style(extra: dict[str, str] | None = None) -> str:
    """A style element for dark themes. `extra`: more rules, selector -> declarations.

    The comment around the rules means nothing to CSS. Viewers of exported Markdown that remove or
    escape the element (GitHub) would show the rules as text otherwise.
    """
    rules = _DARK_RULES | (extra or {})
    dark = "".join(f"& {selector}{{{look}}}" for selector, look in rules.items())
    light = "".join(f"{selector}{{{look}}}" for selector, look in _RULES.items())
    return f"<style><!-- {light}{_DARK}{{{dark}}} --></style>"


# ----------------------------------------------------------------------------- plain text

# What MathJax would start a formula at. An element between the characters stops it.
_TEX = re.compile(r"\$|\\(?=[(\[]|begin\b)")


def text(value: str) -> str:
    """`value` as HTML text, inert: no markup, no formula."""
    return _TEX.sub(lambda m: f"<span>{m[0]}</span>", escape(value))


def escape(value: str) -> str:
    """`value` as HTML text inside `pre` or `code`, where nothing is typeset."""
    return _html.escape(value, quote=False)


def attribute(value: str) -> str:
    """`value` inside a double-quoted attribute. Line breaks stay."""
    return _html.escape(value, quote=True)


def verbatim(value: str) -> str:
    """`value` with its line breaks and blanks, wrapped at the edge (a `pre`, so no formulas)."""
    # The line break after <pre> is eaten by parsers: without it a leading one of `value` would be.
    return f'<pre style="{FLOW}">\n{escape(value)}</pre>'


def note(*parts: str, quiet: bool = True) -> str:
    """A line of small text; `parts` are HTML, joined by middle dots. quiet: paler, which takes
    contrast from whatever has a colour of its own."""
    line = " · ".join(part for part in parts if part)
    pale = "opacity:.78;" if quiet else ""
    return f'<div style="font-size:12px;line-height:1.5;{pale}margin-top:6px">{line}</div>'


def fold(summary: str, body: str, *, opened: bool = False) -> str:
    """A `details` element. Both arguments are HTML."""
    mark = " open" if opened else ""
    return (
        f'<details{mark} style="margin-top:6px"><summary style="font-size:12px;cursor:pointer">'
        f"{summary}</summary>{body}</details>"
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """A plain table of HTML cells. `numbers`: columns that are right-aligned.

    It has a box to scroll in where a page is narrow: notebooks would cut it. Each cell says its
    alignment itself, because notebooks align every table of an output to the right, which is wrong
    for words.
    """

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(
            f'<{tag} style="text-align:{"right" if i in numbers else "left"}">{cell}</{tag}>'
            for i, cell in enumerate(cells)
        )

    return (
        '<div style="overflow-x:auto"><table style="font-size:12px;margin:4px 0"><thead>'
        + line("th", head)
        + "</tr></thead><tbody>"
        + "".join(line("td", row) + "</tr>" for row in rows)
        + "</tbody></table></div>"
    )


def columns(
    head: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: Sequence[int] = ()
) -> str:
    """A table of text cells as one `pre` of aligned lines; columns without any content fall away.

    For tables with a row per token. JupyterLab sanitises the HTML of each output once more than it
    shows it, to look for headings, element by element: 1,000 rows of six cells took it 15 ms, and
    the same rows as one text take less than 1.
    """
    kept = [i for i in range(len(head)) if any(row[i] for row in rows)]
    right = [place for place, i in enumerate(kept) if i in numbers]
    text = "\n".join(aligned([[row[i] for i in kept] for row in (head, *rows)], right))
    look = (
        f"font-family:{MONO};font-size:12px;line-height:1.5;margin:4px 0;white-space:pre-wrap;"
        "word-break:normal;overflow-wrap:anywhere"
    )
    return f'<pre style="{look}">\n{escape(text)}</pre>'


def needs_style(page: str) -> bool:
    """Does anything in `page` look better with the style element? Frames without it are small."""
    return "<table" in page or "lm-code" in page


def wrap(*parts: str, themed: bool = False, extra: dict[str, str] | None = None) -> str:
    """One output of ours. `themed`: with the style element (needed by code and heat maps)."""
    return f'<div class="llm-magic">{style(extra) if themed else ""}{"".join(parts)}</div>'


# ----------------------------------------------------------------------------- dollars and formulas

# Formulas, in the spellings that models use. A single dollar opens one only as in Pandoc (no blank
# inside at either end, no digit after it), and not as an amount: `$5` needs TeX beside it. Each
# pattern ends at the next dollar, so a text of nothing but openers takes linear time.
_DOLLAR_FORMULA = re.compile(
    r"\$\$(?:[^$\\]|\\.)+?\$\$"
    r"|\$(?![\s$\d])(?:[^$\\\n]|\\.|\n(?!\s*\n))*?(?<![\s\\])\$(?!\d)"
    r"|\$(?=\d[^$\n]*[\\^_=])(?:[^$\\\n]|\\.)*?(?<![\s\\])\$(?!\d)",
    re.DOTALL,
)
_BEGIN = re.compile(r"\\begin(\{[a-zA-Z]{1,40}\*?\})")
# The most characters of a formula between \[ and \], \( and \), \begin and \end.
_LONGEST = {"\\[": 1_500, "\\(": 500, "\\begin": 1_500}


def _formula_end(text: str, at: int) -> int | None:
    """The place behind the formula that begins at `at`; None if none does."""
    if text.startswith("$", at):
        match = _DOLLAR_FORMULA.match(text, at)
        return match.end() if match else None
    opener = text[at : at + 2]
    if opener in ("\\[", "\\("):
        inside, closer = at + 2, {"\\[": "\\]", "\\(": "\\)"}[opener]
    elif begin := _BEGIN.match(text, at):
        opener, inside, closer = "\\begin", begin.end(), f"\\end{begin[1]}"
    else:
        return None
    end = text.find(closer, inside + 1, inside + _LONGEST[opener] + len(closer))
    return None if end < 0 else end + len(closer)


_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
# Where something begins that decides about dollars: code, an escape, a formula.
_PLACE = re.compile(r"`+|\\[`$\\]|\$|\\(?=[(\[]|begin\b)")


def escape_dollars(markdown: str) -> str:
    r"""Markdown in which no dollar amount becomes a formula; code and formulas stay as they are.

    Only for payloads of type text/markdown: a reply's text and a prompt never pass through here.

    >>> escape_dollars("It costs $5, `$x` is code and $x^2$ a formula.")
    'It costs \\$5, `$x` is code and $x^2$ a formula.'
    """
    if "$" not in markdown:
        return markdown
    out: list[str] = []
    prose: list[str] = []
    fence = ""
    for line in markdown.splitlines(keepends=True):
        match = _FENCE.match(line)
        if fence:
            out.append(line)
            if match and match[1].startswith(fence) and not line[match.end() :].strip():
                fence = ""
        elif match:
            out += [_escape_prose("".join(prose)), line]
            prose.clear()
            fence = match[1]
        else:
            prose.append(line)
    return "".join([*out, _escape_prose("".join(prose))])


def _escape_prose(text: str) -> str:
    """Markdown without fenced code: its dollars outside of code spans and formulas escaped."""
    if "$" not in text:
        return text
    code_end = _code_spans(text)
    out: list[str] = []
    done = at = 0
    while place := _PLACE.search(text, at):
        start, at = place.span()
        if place[0][0] == "`":
            at = code_end(start, at)
        elif place[0] in ("$", "\\"):
            end = _formula_end(text, start)
            if end is not None:
                at = end
            elif place[0] == "$":
                out += [text[done:start], "\\$"]
                done = at
    return "".join([*out, text[done:]])


def _code_spans(text: str) -> Callable[[int, int], int]:
    """A function from the backticks at [start, end) to the end of the code that they begin.

    Backticks that begin no code end where they are. Code ends at the next run of as many backticks
    in the same paragraph.
    """
    runs: dict[int, list[int]] = {}
    for run in re.finditer("`+", text):
        runs.setdefault(run.end() - run.start(), []).append(run.start())
    breaks = [gap.start() for gap in re.finditer(r"\n[ \t]*(?=\n)", text)]

    def end_of(start: int, end: int) -> int:
        same = runs.get(end - start, [])
        i, j = bisect_left(same, end), bisect_left(breaks, end)
        if i == len(same) or (j < len(breaks) and breaks[j] < same[i]):
            return end
        return same[i] + end - start

    return end_of


# ----------------------------------------------------------------------------- code


def code(source: str, language: str = "") -> str:
    """A block of code, highlighted where pygments knows the language."""
    look = (
        "background-color:#f6f8fa;color:#24292f;padding:8px 10px;border-radius:6px;"
        f"overflow-x:auto;font-family:{MONO};font-size:13px;line-height:1.45;margin:6px 0"
    )
    name = f' title="{attribute(language)}"' if language else ""
    body = "".join(_highlight(source, language))
    return f'<pre class="lm-code"{name} style="{look}">{body}</pre>\n'


def _highlight(source: str, language: str) -> Iterator[str]:
    lexer = _lexer(language) if language else None
    if lexer is None or len(source) > 100_000:
        yield escape(source)
        return
    for kind, value in lexer.get_tokens(source):
        escaped = escape(value)
        look = _code_look(kind)
        if look is None or not value.strip():
            yield escaped
        else:
            yield f'<span class="{look[0]}" style="color:{look[1]}">{escaped}</span>'


@functools.lru_cache(maxsize=64)
def _lexer(language: str) -> Any:
    from pygments.lexers import get_lexer_by_name
    from pygments.util import ClassNotFound

    try:
        return get_lexer_by_name(language, stripnl=False, ensurenl=False)
    except ClassNotFound:
        return None


@functools.lru_cache(maxsize=256)
def _code_look(kind: Any) -> tuple[str, str, str] | None:
    while kind is not None:
        if (look := _CODE.get(".".join(kind))) is not None:
            return look
        kind = kind.parent
    return None


# ----------------------------------------------------------------------------- Markdown

_TAGS = {
    *("p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "s", "sub", "sup", "blockquote"),
    *("ul", "ol", "li", "a", "code", "pre", "span", "table", "thead", "tbody", "tr", "th", "td"),
}
_ATTRIBUTES = {
    "a": {"href", "title"},
    "ol": {"start"},
    "pre": {"class", "style", "title"},
    "span": {"class", "style"},
    "th": {"style"},
    "td": {"style"},
}
_PROPERTIES = {
    *(
        "background-color",
        "color",
        "padding",
        "border-radius",
        "overflow-x",
        "font-family",
        "font-size",
    ),
    *("line-height", "margin", "text-align"),
}
DEEPEST = 16  # a list in a list is two levels deeper, a quote one; the parser's limit is 20
_LINK = re.compile(r"(?:https?|mailto):", re.IGNORECASE)


def markdown(source: str) -> str:
    """CommonMark with tables and strikethrough as safe HTML.

    HTML in `source` is shown, not obeyed. Links go to http, https and mailto only and are marked
    nofollow noopener; images become links, so nothing is loaded by reading. Headings start at h3.
    """
    import nh3

    return nh3.clean(
        _renderer().render(source),
        tags=_TAGS,
        attributes=_ATTRIBUTES,
        url_schemes={"http", "https", "mailto"},
        link_rel="nofollow noopener noreferrer",
        filter_style_properties=_PROPERTIES,
        strip_comments=True,
    )


@functools.cache
def _renderer() -> "MarkdownIt":
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import blockquote, list_block

    md = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    md.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]
    md.inline.ruler.before("escape", "formula", _formula)
    md.block.ruler.before(
        "fence", "formula", _formula_block, {"alt": ["paragraph", "reference", "blockquote"]}
    )
    inner = ["paragraph", "reference", "blockquote"]  # what each of these may end
    md.block.ruler.at("list", _shallow(list_block), {"alt": inner})
    md.block.ruler.at("blockquote", _shallow(blockquote), {"alt": [*inner, "list"]})
    md.add_render_rule("formula", lambda _, ts, i, *__: escape(ts[i].content))
    md.add_render_rule("formula_block", lambda _, ts, i, *__: f"<p>{escape(ts[i].content)}</p>\n")
    md.add_render_rule("text", lambda _, ts, i, *__: text(ts[i].content))
    md.add_render_rule("fence", lambda _, ts, i, *__: code(ts[i].content, _language(ts[i].info)))
    md.add_render_rule("code_block", lambda _, ts, i, *__: code(ts[i].content))
    md.add_render_rule("heading_open", lambda _, ts, i, *__: f"<{_heading(ts[i].tag)}>")
    md.add_render_rule("heading_close", lambda _, ts, i, *__: f"</{_heading(ts[i].tag)}>\n")
    md.add_render_rule("image", lambda _, ts, i, *__: _image(ts[i]))
    return md


def _shallow(rule: Callable[..., bool]) -> Callable[..., bool]:
    """Lists and quotes up to a depth, below which their marks are text: the parser drops what lies
    deeper than its own limit, and "1. 1. 1. ..." is a list in each item of a list."""

    def refuse_deep(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
        return state.level < DEEPEST and rule(state, start, end, silent)

    return refuse_deep


def _language(info: str) -> str:
    words = info.split(maxsplit=1)
    return words[0][:40] if words else ""


def _heading(tag: str) -> str:
    # A notebook's own headings are h1 and h2: an answer must not outrank them.
    return f"h{min(6, int(tag[1]) + 2)}"


def _image(token: Any) -> str:
    label = text(token.content or "image")
    url = str(token.attrs.get("src", ""))
    return f'<a href="{attribute(url)}">[{label}]</a>' if _LINK.match(url) else f"[{label}]"


def _formula(state: "StateInline", silent: bool) -> bool:
    if state.src[state.pos] not in "$\\":
        return False
    end = _formula_end(state.src, state.pos)
    if end is None:
        return False
    if not silent:
        state.push("formula", "", 0).content = state.src[state.pos : end]
    state.pos = end
    return True


def _formula_block(state: "StateBlock", start: int, end: int, silent: bool) -> bool:
    """A displayed formula that begins a line: its inner lines must not become lists or headings."""
    begin = state.bMarks[start] + state.tShift[start]
    if state.is_code_block(start) or not state.src.startswith(("$$", "\\[", "\\begin{"), begin):
        return False
    stop = _formula_end(state.src, begin)
    if stop is None or stop > state.eMarks[end - 1]:
        return False
    last = next(line for line in range(start, end) if state.eMarks[line] >= stop)
    if state.src[stop : state.eMarks[last]].strip():
        return False
    if not silent:
        state.push("formula_block", "", 0).content = state.src[begin:stop]
        state.line = last + 1
    return True
