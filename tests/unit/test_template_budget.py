"""What a chat template may cost, and what it must not lose."""

import pytest

from llm_magic.chat.prompts import budget
from llm_magic.chat.prompts.template import Template, TemplateOverrun
from llm_magic.errors import TemplateError
from llm_magic.events import Message, ToolCall

USER = Message("user", "hi")
LOOP = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ ['a' * 67000000] * 40 }}",
        "{% set x = 'ab' %}" + "{% set x %}{{x}}{{x}}{% endset %}" * 26 + "{{ x }}",
        "{{ ('{0:999999}' * 3000).format(1) }}",
        "{{ ('%999999d' * 3000) % ((1,) * 3000) }}",
        "{{ ('a\n' * 3000) | indent('x' * 1000000) }}",
        "{{ ('a\n' * 3000) | indent(1000000) }}",
        "{{ [[[1, 2, 3] * 9] * 9] | tojson(indent=1000000) }}",
        "{{ ('a' * 100000).translate({97: 'x' * 100000}) }}",
        "{{ ('\t' * 100000).expandtabs(100000) }}",
        "{{ ('a'.encode() * 100000000) | length }}",
        "{{ (1).to_bytes(1000000000) }}",
        (
            "{% set ns = namespace(v=[]) %}{% set x = [1] * 90000 %}"
            "{% for i in range(9999) %}{% set ns.v = [ns.v, x[1:]] %}{% endfor %}"
        ),
        (
            "{% set x = namespace(v=[1]) %}"
            "{% for i in range(60) %}{% set x.v = [x.v, x.v] %}{% endfor %}{{ x.v | join }}"
        ),
        (
            "{% set x = namespace(v=[1]) %}"
            "{% for i in range(60) %}{% set x.v = (x.v, x.v) %}{% endfor %}{{ {x.v: 1} }}"
        ),
        (
            "{% set x = namespace(v=(1,)) %}"
            "{% for i in range(99999) %}{% set x.v = (x.v,) %}{% endfor %}{{ {x.v: 1} }}"
        ),
        "{{ ('a ' * 32000000) | batch(1) | list | length }}",
        "{{ ('a ' * 32000000) | sort | length }}",
        "{{ ('a ' * 32000000) | title | length }}",
        "{{ ('www.a.de ' * 8000000) | urlize | length }}",
        "{{ ('a' * 9000000).strip('b' * 9000000 + 'a') }}",
        (
            "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set x = namespace(v='ab') %}"
            "{% for i in range(60) %}{% set x.v = f(x.v) %}{% endfor %}"
        ),
        "{{ strftime_now('%999999999d') }}",
        "{{ 1 | round(999999, 'floor') }}",
        "{{ [[1]] * 9999 | sum(start=[]) }}",
    ],
)
def test_what_a_value_costs_is_paid_before_it_is_made(source, monkeypatch):
    # F301
    monkeypatch.setattr(budget, "MAX_SECONDS", 0.5)  # some of them run until their time is over
    with pytest.raises(TemplateError):
        Template(source).render((USER,))


@pytest.mark.parametrize(
    "step", ["x.v * x.v", "x.v + x.v * x.v", "x.v ** 4", "(x.v * x.v) // 3", "x.v * x.v - 1"]
)
def test_integers_do_not_grow_without_end(step):
    # F302
    source = (
        "{% set x = namespace(v=10**64) %}{% for i in range(40) %}{% set x.v = STEP %}{% endfor %}"
    )
    with pytest.raises(TemplateOverrun, match="integer"):
        Template(source.replace("STEP", step)).render((USER,))


def test_one_budget_holds_for_a_whole_request(monkeypatch):
    # F301
    made = []
    real = budget.Budget

    class Counted(real):
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    monkeypatch.setattr(budget, "Budget", Counted)
    endless = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    template = Template("{% if tools %}x{% endif %}{{ messages }} tool_calls" + endless)
    call = Message("assistant", None, calls=(ToolCall("1", "f", "{}"),))
    with pytest.raises(TemplateOverrun):
        template.render((USER, call, Message("tool", "x", call_id="1"), USER))
    assert len(made) == 1
    with pytest.raises(budget.Overrun):  # nothing can be spent after the first overrun
        made[0].step()


def test_a_request_that_stays_within_its_budget_has_all_of_it_again_next_time():
    template = Template(LOOP)
    for _ in range(3):
        assert template.render((USER,) * 2000).text.count("hi") == 2000


@pytest.mark.parametrize(
    "expression",
    [
        "[raise_exception] | join(',', attribute='__globals__')",
        "[raise_exception] | map(attribute='__globals__') | join",
        "[raise_exception] | groupby('__globals__') | list",
        "[raise_exception] | sum(attribute='__globals__')",
        "[raise_exception] | sort(attribute='__globals__') | join",
        "[raise_exception] | unique(attribute='__globals__') | join",
        "[raise_exception] | selectattr('__globals__') | join",
        "[raise_exception] | max(attribute='__globals__')",
        "raise_exception | attr('__globals__')",
        "'{0.__globals__}'.format(raise_exception)",
        "'{0.__globals__}' | format(raise_exception)",
        "(raise_exception, ) | map('attr', '__globals__') | join",
    ],
)
def test_no_filter_reaches_internals(expression):
    # F306
    try:
        text = Template("{{ " + expression + " }}").render((USER,)).text
    except TemplateError:
        return
    assert "__builtins__" not in text
    assert "sandbox.py" not in text


def test_comparisons_are_evaluated_once():
    source = (
        LOOP + "{% set c = cycler('a', 'b') %}{{ c.next() == 'a' }}{{ c.next() }}{{ 1 < 2 < 2 }}"
    )
    assert Template(source).render((USER,)).text.endswith("TruebFalse")


# ----------------------------------------------------------------------------- roles

CHATML = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
STRICT = (
    "{% for m in messages %}{% if m.role in ('user', 'assistant', 'system', 'tool') %}"
    "<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}"
)


def test_developer_is_system_where_the_template_lacks_it():
    # F207
    messages = (Message("developer", "rules"), USER)
    assert Template(STRICT).render(messages).text == "<|system|>rules<|user|>hi"
    assert Template(CHATML).render(messages).text == "<|developer|>rules<|user|>hi"
    late = (USER, Message("assistant", "x"), Message("developer", "rules"), USER)
    assert "<|system|>rules" in Template(STRICT).render(late).text


@pytest.mark.parametrize("role", ["narrator", "function", "User"])
def test_an_unknown_role_is_an_error_that_names_it_and_the_known_ones(role):
    # F207
    messages = (USER, Message(role, "once"))
    with pytest.raises(TemplateError, match=rf"messages\[1\].*'{role}'.*system, user") as caught:
        Template(STRICT).render(messages)
    assert caught.value.index == 1
    assert ("did you mean 'user'?" in str(caught.value)) == (role == "User")
    assert f"<|{role}|>once" in Template(CHATML).render(messages).text


def test_a_prompt_that_lost_a_message_is_never_sent():
    # F207
    first = (
        "{{ messages[0].content }}{% if messages|length > 1 %}{{ messages[-1].content }}{% endif %}"
    )
    messages = (Message("user", "one"), Message("user", "two"), Message("user", "three"))
    with pytest.raises(TemplateError, match=r"leaves out messages\[1\]") as caught:
        Template(first).render(messages)
    assert caught.value.index == 1
    leading = (
        "{% if messages[0].role == 'system' %}S:{{ messages[0].content }}{% endif %}"
        "{% for m in messages if m.role != 'system' %}{{ m.role }}:{{ m.content }};{% endfor %}"
    )
    late = (USER, Message("assistant", "x"), Message("system", "be brief"), Message("user", "y"))
    assert "be brief" in Template(leading).render(late).text


# ----------------------------------------------------------------------------- arguments

ITEMS = (
    "{% for m in messages %}{{ m.content }}{% if m.tool_calls %}{% for c in m.tool_calls %}<call>"
    "{{ c.function.name }}{% for k, v in c.function.arguments|items %} {{ k }}={{ v|tojson }}"
    "{% endfor %}</call>{% endfor %}{% endif %}{% endfor %}"
)
METHOD = ITEMS.replace("arguments|items", "arguments.items()")


@pytest.mark.parametrize("source", [ITEMS, METHOD, ITEMS.replace("|items", "")])
@pytest.mark.parametrize("arguments", ["[1]", "null", "", '{"a":', "3", '"x"', "  ", '""'])
def test_arguments_that_are_no_object_are_rendered(source, arguments):
    # F241
    call = Message("assistant", None, calls=(ToolCall("1", "f", arguments),))
    messages = (USER, call, Message("tool", "result", call_id="1"), USER)
    if source.count("|items") == source.count(".items()") == 0:
        source = source.replace("k, v in", "k in").replace("={{ v|tojson }}", "")
    text = Template(source).render(messages).text
    assert "f" in text
    if source in (ITEMS, METHOD):
        empty = arguments.strip() in ("", "null", '""')
        assert ("<call>f</call>" in text) == empty
        assert ("arguments=" in text) != empty


# ----------------------------------------------------------------------------- probes

DEEPSEEK = (
    "{% for m in messages %}{% if m.role == 'user' %}<U>{{ m.content }}"
    "{% elif m.role == 'assistant' and m.content is none %}{% for c in m.tool_calls %}<CALL>"
    "{{ c.function.name }}:{{ c.function.arguments }}{% endfor %}"
    "{% elif m.role == 'assistant' %}<A>{{ m.content }}"
    "{% elif m.role == 'tool' %}<OUT>{{ m.content }}{% endif %}{% endfor %}"
)
EXCHANGE = (
    USER,
    Message("assistant", None, calls=(ToolCall("1", "f", '{"a": true}'),)),
    Message("tool", "result", call_id="1"),
    Message("user", "thanks"),
)


def test_a_template_that_tests_for_no_content_gets_none():
    # F247
    template = Template(DEEPSEEK)
    assert template.support.none_content
    assert template.support.tools
    text = template.render(EXCHANGE).text
    assert '<CALL>f:{"a": true}' in text
    assert "<OUT>result" in text
    assert "None" not in text


def test_the_repr_of_python_is_no_support():
    # F247
    dumped = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.name }}"
        "{{ c.function.arguments }}{% endfor %}{% endfor %}"
    )
    text = Template(dumped).render(EXCHANGE).text
    assert '{"a": true}' in text
    assert "True" not in text
    assert not Template("{% for m in messages %}{{ m.content }}{% endfor %}").support.parts
