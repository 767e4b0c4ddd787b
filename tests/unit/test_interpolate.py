"""What `{{ name }}` replaces in a prompt, and everything that it leaves alone."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llm_magic.errors import InterpolationError
from llm_magic.interpolation import fields, interpolate


def fill(text: str, **names: object) -> str:
    return interpolate(text, names, str)


# B100
def test_only_blank_braced_names_are_replaced() -> None:
    untouched = (
        '{a*2 for a in xs}\n{"a": 1}\n{x!r:>10}\n{}\n{undefined}\n{name}\n{{name}}\n{{}}\n'
        r"\frac{a}{b} {{1}} {{ a + b }} {{ f() }} {{ a[i] }} {{ a[0:2] }} {%% if %%} $name ${name}"
        "\n{{ name\n}} { { name } } {{{name}}} f'{x}' {{-name-}} {{ }}"
    )
    assert fill(untouched, name="Bob", xs=[1], x=1, a=2, b=3) == untouched
    assert fill("Hi {{ name }}, {{\tname  }}!", name="Bob") == "Hi Bob, Bob!"


# B101
def test_values_are_inserted_once_and_literally() -> None:
    value = "set {p} costs $1 {{ name }} \\{{ name }} \\1 \\g<0>"
    assert fill("{{ VAL }}", VAL=value, name="Bob") == value


def test_backslash_keeps_the_braces() -> None:
    assert fill(r"\{{ name }} {{ name }}", name="Bob") == "{{ name }} Bob"
    assert fill(r"\{{ nothing }}") == "{{ nothing }}"


def test_three_braces_replace_the_inner_pair() -> None:
    # JSON around a value: the outer brace is data.
    assert fill('{"a": {"b": {{ n }}}}', n=3) == '{"a": {"b": 3}}'


def test_dotted_and_indexed_names() -> None:
    row = SimpleNamespace(title="T", tags=["x", "y"], meta={"a b": {"c": 5}, "'": 1})
    assert fill("{{ row.title }}", row=row) == "T"
    assert fill("{{ row.tags[0] }}{{ row.tags[-1] }}", row=row) == "xy"
    assert fill("""{{ row.meta['a b']["c"] }}{{ row.meta["'"] }}""", row=row) == "51"
    assert fill("{{ größe }}", größe=2) == "2"
    assert fields(r"{{ a.b }} \{{ c }} {{ d[0] }}") == ["a.b", "d[0]"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ nmae }}", ["'nmae'", "'name'", "--raw", r"\{{"]),
        ("{{ row.titel }}", ["row is a SimpleNamespace", "'title'"]),
        ("{{ row.meta['ky'] }}", ["row.meta is a dict", "'key'"]),
        ("{{ row.meta.key }}", ["row.meta['key']"]),
        ("{{ row.tags[7] }}", ["row.tags is a list", "no item 7"]),
        ("{{ row[0] }}", ["row is a SimpleNamespace", "no item 0"]),
        ("{{ zzz }}", ["no variable 'zzz'; run the cell that sets it."]),
    ],
)
def test_unknown_names_are_errors_with_a_way_out(text: str, words: list[str]) -> None:
    row = SimpleNamespace(title="T", tags=["x"], meta={"key": 1})
    with pytest.raises(InterpolationError) as caught:
        fill(text, row=row, name="Bob")
    for word in words:
        assert word in str(caught.value)


def test_properties_that_fail_are_not_hidden() -> None:
    class Broken:
        @property
        def boom(self) -> str:
            raise ZeroDivisionError("boom")

    with pytest.raises(ZeroDivisionError):
        fill("{{ b.boom }}", b=Broken())


@given(
    st.lists(st.tuples(st.text(alphabet="}a \n$%[].'\"", max_size=8), st.booleans()), max_size=6),
    st.text(max_size=12),
)
def test_each_field_is_replaced_in_one_pass(chunks: list[tuple[str, bool]], value: str) -> None:
    text = "".join(chunk + ("{{ v }}" if field else "") for chunk, field in chunks)
    expected = "".join(chunk + (value if field else "") for chunk, field in chunks)
    assert fill(text, v=value) == expected


@given(st.text(alphabet="{}ab \n\\.[]0'", max_size=40))
def test_text_without_a_field_is_unchanged(text: str) -> None:
    if not fields(text) and "\\{{" not in text:
        assert fill(text) == text
