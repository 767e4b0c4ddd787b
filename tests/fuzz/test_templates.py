"""Render random chat templates: each ends in its budget of time and memory, and shows no secret.

`python -m tests.fuzz.test_templates 1000` runs 1,000 templates in child processes.
"""

# ruff: noqa: SIM905, UP031

import os
import random
import sys
import time

from support import isolated

from llm_magic.chat.prompts.budget import MAX_SECONDS
from llm_magic.chat.prompts.template import Template, TemplateOverrun
from llm_magic.errors import TemplateError
from llm_magic.events import Message

COUNT = int(os.environ.get("LLM_MAGIC_FUZZ", "400"))
MEMORY = 3 << 30
SLOW = MAX_SECONDS + 2

FILTERS = """
    abs attr('__class__') attr('upper') batch(1) batch(2,'x') batch(3,x) capitalize center(99999)
    center(10**9) count d default('x') dictsort e escape filesizeformat first float forceescape
    format(1) format(x) groupby('a') groupby('__class__') indent indent(99999) indent(x)
    indent('x'*99999) int items join join(',') join(x) join(',',attribute='__globals__')
    join(',',attribute='a') last length list lower map('upper') map('list')
    map(attribute='__class__') map('join',x) max min random reject('none') rejectattr('a')
    replace('a',x) replace('','xxxxxxxxxxx') reverse round round(9) round(999999,'floor') safe
    select selectattr('__init__') slice(3) slice(99999) sort sort(attribute='__class__') string
    sum sum(start=[]) title tojson tojson(indent=2) tojson(indent=1000000) tojson(indent=x) trim
    trim(x) truncate(99999) unique unique(attribute='__class__') upper urlencode wordcount
""".split()
ATOMS = """
    x y s messages messages[0] messages[0].content ns ns.v 1 0 -1 10**64 99999 1.5 'a' 'ab\\n' none
    true [1,2,3] [x,x] (x,x) {'a':x} {x:1} range(99999) range(10) dict(a=x) namespace cycler('a')
    joiner '{0:999999}'*3000 '%99999d'*3000 'a'*99999 'a\\n'*3000 [1]*99999 'a'*67000000
    raise_exception loop strftime_now('%Y') strftime_now('%999999999d') strftime_now x.__class__
    ''.join namespace(v=x)
""".split()
METHODS = """
    .upper() .split() .split('a') .format(x) .format(1,2) .join(x) .join([x,x,x]) .replace('a',x)
    .replace('',x) .ljust(999999) .zfill(10**9) .expandtabs(999999) .translate(x) .encode()
    .strip(x) .splitlines() .title() .items() .keys() .copy() .count(x) .index(x)
    .to_bytes(999999999) .bit_length() .format_map(x) .maketrans(x) .append(x) .update(x)
    .__globals__ .a [0] [::2] [:] [-1] ['a'] [x] .mro()
""".split()
BINARY = [
    "+",
    "*",
    "**",
    "//",
    "/",
    "%",
    "-",
    "~",
    "==",
    "<",
    "in",
    "and",
    "or",
    "is sameas",
    "is in",
]


def expression(rng: random.Random, depth: int = 0) -> str:
    kind = rng.choice((0, 0, 0, 1, 1, 2, 3, 4)) if depth < 3 else 0
    if kind == 0:
        return rng.choice(ATOMS)
    if kind == 1:
        return f"({expression(rng, depth + 1)}|{rng.choice(FILTERS)})"
    if kind == 2:
        return f"({expression(rng, depth + 1)}){rng.choice(METHODS)}"
    left, right = expression(rng, depth + 1), expression(rng, depth + 1)
    return f"({left} {rng.choice(BINARY)} {right})"


def statement(rng: random.Random, depth: int = 0) -> str:
    def body() -> str:
        return "".join(statement(rng, depth + 1) for _ in range(rng.randrange(1, 4)))

    def value() -> str:
        return expression(rng)

    match rng.randrange(12 if depth < 3 else 4):
        case 0 | 1:
            return "{{ %s }}" % value()
        case 2:
            return "{%% set %s = %s %%}" % (rng.choice(["x", "y", "s", "ns.v"]), value())
        case 3:
            name = rng.choice("xys")
            double = rng.choice(
                ["[{0},{0}]", "({0},{0})", "{0}~{0}", "{0}+{0}", "{0}*{0}", "{{'a':{0}}}"]
            )
            return "{%% set %s = %s %%}" % (name, double.format(name))
        case 4 | 5 | 6:
            times = rng.choice(["range(30)", "range(99999)", "x", "messages", "s", value()])
            return "{%% for i in %s %%}%s{%% endfor %%}" % (times, body())
        case 7:
            return "{%% if %s %%}%s{%% endif %%}" % (value(), body())
        case 8:
            return "{%% set x %%}{{x}}{{x}}%s{%% endset %%}" % body()
        case 9:
            return "{%% macro f(x) %%}%s{{ f(x) }}{%% endmacro %%}{{ f(x) }}" % body()
        case 10:
            return "{%% filter %s %%}%s{%% endfilter %%}" % (rng.choice(FILTERS), body())
    return "{%% for i in x recursive %%}{{ loop(x) }}%s{%% endfor %%}" % body()


def source(seed: int) -> str:
    rng = random.Random(seed)
    start = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% set ns = namespace(v='a') %}"
        "{% set x = 'ab' %}{% set y = [1] %}{% set s = 'é\n' %}"
    )
    return start + "".join(statement(rng) for _ in range(rng.randrange(1, 4)))


def check(seed: int) -> str:
    """Render the template of a seed; an error of the template is as good as a text."""
    template = Template(source(seed))
    start = time.thread_time()
    try:
        out = template.render((Message("user", "hello"), Message("assistant", "x"))).text
        word = "text"
        assert "built-in" not in out or "<built-in" in out, out[:500]
        for secret in ("__builtins__", "sandbox.py", "/llm_magic/"):
            assert secret not in out, source(seed)
    except TemplateOverrun:
        word = "overrun"
    except TemplateError as e:
        word = "error"
        if isinstance(e.__cause__, MemoryError):
            raise
    spent = time.thread_time() - start
    assert spent < SLOW, f"{spent:.1f} s: {source(seed)}"
    return word


def test_no_template_outlives_its_budget_or_reaches_internals():
    # F301 F302 F306
    report = isolated.run("fuzz.test_templates", COUNT, seconds_each=90, memory=MEMORY)
    assert not report.findings, str(report)
    assert set(report.outcomes) == {"text", "overrun", "error"}, str(report)


if __name__ == "__main__":
    COUNTS = map(int, sys.argv[1:])
    LIMITS = {"seconds_each": 90, "memory": MEMORY}
    print(isolated.run("fuzz.test_templates", *COUNTS, **LIMITS, verbose=True))
