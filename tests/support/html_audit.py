"""Hostile HTML strings, and an audit of what a page lets through."""

import re
from html.parser import HTMLParser

XSS = (
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "<svg/onload=alert(1)>",
    "<svg><script>alert(1)</script></svg>",
    "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
    "<details open ontoggle=alert(1)>",
    '"><script>alert(1)</script>',
    "' onmouseover='alert(1)",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "[x](vbscript:msgbox(1))",
    "![x](javascript:alert(1))",
    '![x](http://a.test/x.png"onerror="alert(1))',
    '[x](http://a.test "t\\" onmouseover=alert(1) x=\\"")',
    "<javascript:alert(1)>",
    "<http://a.test/'onclick='alert(1)>",
    "[x]: javascript:alert(1)\n\n[x]",
    "```<img src=x onerror=alert(1)>\ncode\n```",
    '```" onmouseover="alert(1)\ncode\n```',
    "```html\n<script>alert(1)</script>\n```",
    "`<script>alert(1)</script>`",
    "$<img src=x onerror=alert(1)>$",
    "$$<script>alert(1)</script>$$",
    "\\(<script>alert(1)</script>\\)",
    "\\begin{x}<script>alert(1)</script>\\end{x}",
    "| a |\n|---|\n| <script>alert(1)</script> |",
    "<style>*{display:none}</style>",
    "<a data-commandlinker-command='x' href='http://a.test'>x</a>",
    "<form action=javascript:alert(1)><button>x</button></form>",
    "<math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "</pre></div></details><script>alert(1)</script>",
    "<!--<img src='--><img src=x onerror=alert(1)>'>",
    "\x00<script>alert(1)</script>",
)


ALLOWED = {
    *("div", "p", "br", "hr", "h3", "h4", "h5", "h6", "em", "strong", "s", "sub", "sup"),
    *("blockquote", "ul", "ol", "li", "a", "code", "pre", "span", "table", "thead", "tbody"),
    *("tr", "th", "td", "details", "summary", "style", "ins", "mark"),
}


ATTRIBUTES = {"class", "style", "title", "href", "rel", "start", "open", "align"}


class Audit(HTMLParser):
    """Reads HTML as a browser would and notes every element and attribute that could do harm."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.faults: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ALLOWED:
            self.faults.append(f"<{tag}>")
        for name, value in attrs:
            if name not in ATTRIBUTES:
                self.faults.append(f"{tag}.{name}")
            if name == "href" and not re.match(r"(?:https?|mailto):", value or ""):
                self.faults.append(f"{tag}.href={value}")
            if name == "style" and re.search(r"url|expression|var\(|@import", value or ""):
                self.faults.append(f"{tag}.style={value}")

    def handle_comment(self, data: str) -> None:
        self.faults.append(f"<!--{data}-->")

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def audit(page: str) -> list[str]:
    reader = Audit()
    reader.feed(page)
    reader.close()
    return reader.faults


def shown(page: str) -> str:
    reader = Audit()
    reader.feed(page)
    reader.close()
    return "".join(reader.text)


def _luminance(color: str) -> float:
    digits = color.lstrip("#")
    if len(digits) == 3:
        digits = "".join(2 * d for d in digits)
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """WCAG 2.2 contrast ratio."""
    low, high = sorted((_luminance(a), _luminance(b)))
    return (high + 0.05) / (low + 0.05)
