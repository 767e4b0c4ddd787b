"""acceptance.md lists every id once, and what it says about tests is true."""

import textwrap

import acceptance_tool as tool
import pytest

TABLE = """
Issues done: A
| id | issue | about | tests | note |
| --- | --- | --- | --- | --- |
| TG-1 | A | first | `tests/test_x.py::test_one` |  |
| TG-2 | B | second |  | open |
"""


@pytest.fixture(scope="module")
def claims():
    return tool.claims()


@pytest.fixture
def two_ids(monkeypatch):
    monkeypatch.setattr(tool, "known_ids", lambda: ["TG-1", "TG-2"])


def test_ids_are_all_there():
    ids = tool.known_ids()
    assert len(ids) == len(set(ids)) == 203 + 86 + 68
    assert all(tool.IN_TEXT.fullmatch(id_) for id_ in ids)


def test_table_agrees_with_ids_and_tests(claims):
    wrong = tool.faults(tool.TABLE.read_text(encoding="utf-8"), claims)
    assert not wrong, "\n".join(["python tests/acceptance_tool.py --write", *wrong])


def test_write_changes_no_row_that_agrees(claims):
    text = tool.TABLE.read_text(encoding="utf-8")
    once = tool.written(text, claims)
    assert tool.written(once, claims) == once
    assert [r.note for r in tool.rows(once) if not r.tests] == [
        r.note or "open" for r in tool.rows(once) if not r.tests
    ]


def test_claims_come_from_names_comments_docstrings_and_markers(tmp_path):
    source = '''
        CASES = [
            "x",  # TG-3
        ]

        # TG-4, LC-40a
        @decorated
        def test_above():
            """TG-5 in words."""
            x = 1  # TG-6
            text = "TG-7 in a string is no claim"

        def test_B085_file_and_LB12(): ...

        @pytest.mark.proves("F240", "TG-10")
        @pytest.mark.other("TG-11")
        def test_marked(): ...

        class TestThings:
            def test_inner(self):
                pass  # TG-8

        def helper():
            pass  # TG-9
    '''
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(textwrap.dedent(source))
    found = tool.claims(tmp_path / "tests")
    assert found == {
        "B085": ["tests/test_x.py::test_B085_file_and_LB12"],
        "F240": ["tests/test_x.py::test_marked"],
        "TG-10": ["tests/test_x.py::test_marked"],
        "LB-12": ["tests/test_x.py::test_B085_file_and_LB12"],
        "LC-40a": ["tests/test_x.py::test_above"],
        "TG-3": ["tests/test_x.py"],
        "TG-4": ["tests/test_x.py::test_above"],
        "TG-5": ["tests/test_x.py::test_above"],
        "TG-6": ["tests/test_x.py::test_above"],
        "TG-8": ["tests/test_x.py::TestThings::test_inner"],
        "TG-9": ["tests/test_x.py"],
    }


ONE = {"TG-1": ["tests/test_x.py::test_one"]}


@pytest.mark.usefixtures("two_ids")
def test_a_right_table_has_no_faults():
    assert tool.faults(TABLE, ONE) == []


@pytest.mark.usefixtures("two_ids")
@pytest.mark.parametrize(
    ("old", "new", "claimed", "fault"),
    [
        ("", "", {}, "does not exist or does not claim it"),
        ("| TG-2", "| TG-1", ONE, "TG-2: has no row"),
        ("| TG-2", "| TG-1", ONE, "TG-1: listed 2 times"),
        ("| TG-2", "| TG-9", ONE, "TG-9: not an id"),
        ("", "", ONE | {"TG-8": ["t"]}, "TG-8: claimed by t, unknown"),
        ("", "", ONE | {"TG-2": ["t"]}, "TG-2: proved by t, but"),
        ("open", "", ONE, "TG-2: neither a test nor a note"),
        ("open", "n/a:", ONE, "TG-2: neither a test nor a note"),
        ("B |", "A |", ONE, "TG-2: open, though issue A is done"),
    ],
)
def test_a_wrong_table_is_found_out(old, new, claimed, fault):
    assert any(
        w.startswith(fault) or fault in w for w in tool.faults(TABLE.replace(old, new), claimed)
    )


@pytest.mark.usefixtures("two_ids")
def test_write_fills_tests_and_keeps_typed_notes():
    text = TABLE.replace("| open |", "| n/a: no such device here |")
    assert tool.written(text, {}).splitlines()[-1].endswith("|  | n/a: no such device here |")
    assert tool.written(text, {}).splitlines()[-2].endswith("| open |")
    new = tool.written(TABLE, ONE | {"TG-2": ["t::a", "t::b", "t::c", "t::d"]})
    assert new.splitlines()[-1] == "| TG-2 | B | second | `t::a`<br>`t::b`<br>`t::c` |  |"
