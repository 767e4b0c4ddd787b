"""Records of saved replies, and notebooks whose replies cannot be generated again."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llm_magic import __main__ as program
from llm_magic.asked import asked_out, request_of, sampling_in, sampling_out
from llm_magic.chat.constraints.kinds import constraint_of
from llm_magic.chat.origin import ModelFile, Origin
from llm_magic.chat.record import record_in, record_out, sealed, unsealed
from llm_magic.chat.reply import Reply
from llm_magic.errors import RequestError
from llm_magic.events import Message, Sampling, Token, ToolCall, ToolRecord, ToolSpec
from llm_magic.llm import LLM
from llm_magic.provider import RenderedPrompt, Request
from llm_magic.providers.scripted import Scripted
from llm_magic.ui.views import mime, records, verified
from llm_magic.verify import notebook
from llm_magic.verify.finder import Finder
from llm_magic.verify.report import Check, Report
from llm_magic.verify.run import verify

TOKENS = (Token(5, b"Par", -0.1234567890123, 1), Token(6, b"is", None, 2, forced=True))


@pytest.fixture
def origin(tmp_path: Path) -> Origin:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"weights")
    return Origin(ModelFile.of(path), "plain", True, {"logprobs": 3})


def reply_of(made: Origin | None, **changes: Any) -> Reply:
    sampling = Sampling(seed=3, temperature=0.1 + 0.2)
    reply = Reply(
        "Paris", tokens=TOKENS, kinds=("answer",) * 2, model="toy", prompt="Where?",
        prompt_ids=(1, 2, 3), sampling=sampling, finish_reason="stop", origin=made,
    )  # fmt: skip
    return replace(reply, **changes)


def out(reply: Reply, **options: Any) -> dict[str, Any]:
    return record_out(reply, sampling_out(reply.sampling), "toy", **options)


def file_of(tmp_path: Path, *cells: tuple[str, list[dict[str, Any]]]) -> Path:
    path = tmp_path / "book.ipynb"
    made = [
        {"cell_type": "code", "source": source, "outputs": outputs} for source, outputs in cells
    ]
    path.write_text(json.dumps({"cells": made, "nbformat": 4}), "utf-8")
    return path


def shown(reply: Reply, look: mime.Look = mime.Look(docs=True)) -> dict[str, Any]:  # noqa: B008
    data = mime.bundle(reply, look)
    return {
        "output_type": "display_data",
        "data": data,
        "metadata": records.metadata(reply, look, data),
    }


# ----------------------------------------------------------------------------- records


def test_a_record_keeps_every_bit(origin: Origin) -> None:
    data = json.loads(json.dumps(out(reply_of(origin, choices={"a": 1 / 3, "b": 2 / 3}))))
    record = record_in(data)
    assert record.ids == (5, 6)
    assert record.prompt == (1, 2, 3)
    assert record.logprobs == (-0.1234567890123, None)
    assert sampling_in(dict(record.sampling)) == Sampling(seed=3, temperature=0.1 + 0.2)
    assert record.choices == {"a": 1 / 3, "b": 2 / 3}
    assert (record.variant, record.exact, record.finish) == ("plain", True, "stop")
    assert record.sha256 == origin.file.sha256()
    assert record.asked == {"logprobs": 3}
    assert not record.unchecked


def test_a_record_keeps_the_order_of_a_schema_where_writers_of_notebooks_sort_keys(
    origin: Origin,
) -> None:
    schema = {"properties": {"title": {}, "author": {}}}
    made = replace(origin, asked={"constraint": {"schema": schema}})
    text = json.dumps(sealed([out(reply_of(made))]), sort_keys=True)
    (data,) = unsealed(json.loads(text))["replies"]
    assert list(record_in(data).asked["constraint"]["schema"]["properties"]) == ["title", "author"]


def test_a_record_weighs_little_and_holds_no_path(origin: Origin, tmp_path: Path) -> None:
    run = tuple(Token(49_000 + i, b"x", -1 / (i + 3), 1) for i in range(500))
    text = json.dumps(records.metadata(reply_of(origin, tokens=run), mime.Look(), {}))
    assert len(text) < 500 * 32 + 1_500
    assert str(tmp_path) not in text


@pytest.mark.parametrize(
    ("changes", "options", "why"),
    [
        ({"origin": None}, {}, "which model file"),
        ({}, {"prompt": False}, "save_prompt"),
        ({}, {"max_tokens": 1}, "save_tokens"),
        ({"tokens": (Token(None, b"a", -1.0, 1),)}, {}, "which model file"),
        (
            {"trace": (ToolRecord(1, ToolCall("1", "f", "{}"), {}, "auto", "ok", 0.1, "7"),)},
            {},
            "tools ran",
        ),
    ],
)
def test_what_cannot_be_generated_again_says_why(
    origin: Origin, changes: dict[str, Any], options: dict[str, Any], why: str
) -> None:
    data = out(reply_of(origin, **changes), **options)
    assert why in record_in(data).unchecked
    assert "ids" not in data
    assert "prompt" not in data


def test_a_file_that_changed_since_it_was_loaded_has_no_hash(origin: Origin) -> None:
    Path(origin.file.paths[0]).write_bytes(b"other weights")
    assert origin.file.sha256() is None
    assert "changed" in record_in(out(reply_of(origin))).unchecked


def test_a_split_model_is_all_of_its_files(tmp_path: Path) -> None:
    for i in (1, 2):
        (tmp_path / f"m-0000{i}-of-00002.gguf").write_bytes(bytes([i]))
    file = ModelFile.of(tmp_path / "m-00002-of-00002.gguf")
    assert [Path(p).name[:7] for p in file.paths] == ["m-00001", "m-00002"]
    assert len(str(file.sha256())) == 64 * 2 + 1


def test_a_seal_finds_every_changed_character(origin: Origin) -> None:
    data = sealed([out(reply_of(origin))], drawn={"as": "reply"})
    assert unsealed(json.loads(json.dumps(data)))["replies"]
    text = json.dumps(data)
    for i in range(0, len(text), 3):
        changed = text[:i] + ("1" if text[i] != "1" else "2") + text[i + 1 :]
        try:
            found = json.loads(changed)
        except ValueError:
            continue
        if found == data:  # the last digit of a number, say
            continue
        with pytest.raises(ValueError, match="record"):
            unsealed(found)


def test_a_page_that_saves_a_notebook_may_write_whole_numbers_its_way(origin: Origin) -> None:
    data = sealed([out(reply_of(origin, choices={"a": 1.0}))], n=3.0, seed=[1e22, 0.1])
    text = json.dumps(data).replace("3.0", "3").replace("1e+22", "10000000000000000000000")
    assert unsealed(json.loads(text))
    large = Sampling(seed=2**63 - 1)
    assert isinstance(sampling_out(large)["seed"], str)
    assert sampling_in(sampling_out(large)) == large


@pytest.mark.parametrize(
    "change",
    [
        {"ids": "5 x"}, {"ids": 5}, {"logprobs": "-0.1"}, {"logprobs": "nan -"},
        {"sha256": None}, {"exact": 1}, {"asked": "[]"}, {"asked": "{"}, {"asked": {}},
        {"finish": 3}, {"branches": [1]},
        {"choices": {"a": 2.0}},
    ],
)  # fmt: skip
def test_a_record_that_is_none_is_refused(origin: Origin, change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a saved reply"):
        record_in(out(reply_of(origin)) | change)


def test_branches_that_are_nested_without_end_are_refused(origin: Origin) -> None:
    record: dict[str, Any] = out(reply_of(origin))
    for _ in range(100):
        record = {**record, "branches": [[0, record]]}
    with pytest.raises(ValueError, match="too deeply"):
        record_in(record)


def test_a_large_file_is_hashed_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from llm_magic.chat import origin

    path = tmp_path / "m.gguf"
    path.write_bytes(b"x" * 10)
    hashed: list[str] = []
    monkeypatch.setattr(origin, "sha256", lambda p: hashed.append(p) or "0")
    monkeypatch.setattr(origin.threading.Thread, "start", lambda self: self.run())
    ModelFile.of(path).hash_ahead()
    assert not hashed
    monkeypatch.setattr(origin, "LARGE", 5)
    ModelFile.of(path).hash_ahead()
    assert hashed == [str(path)]


def test_a_request_comes_back_as_it_was_asked() -> None:
    tool = ToolSpec("add", "Adds.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    given = (Token(9, b"x", None, None, forced=True),)
    sampling = Sampling(seed=1, max_tokens=5, logit_bias=((7, float("-inf")),))
    prompt = RenderedPrompt("p", (1, 2), (Message("user", ""),), (tool,), True, True, True)
    asked = Request(
        prompt, given=given, sampling=sampling, tools=(tool,), tool_choice="add", logprobs=0,
        echo=True, suffix="s", thinking=False, tool_syntax="hermes",
        constraint=constraint_of({"schema": {"type": "integer"}}),
    )  # fmt: skip
    data = json.loads(json.dumps([asked_out(asked, prompt), sampling_out(sampling)]))
    again = request_of(data[0], (1, 2), "p", sampling_in(data[1]), given)
    assert again == asked
    plain = Request(RenderedPrompt("p", (1,)))
    assert asked_out(plain, RenderedPrompt("p", (1,))) == {}
    for kind in ({"regex": "a+"}, {"choices": ("a", "b")}, {"grammar": 'root ::= "a"'}):
        bound = replace(plain, constraint=constraint_of(kind))
        found = asked_out(bound, RenderedPrompt("p", (1,)))
        assert request_of(found, (1,), "p", Sampling(), ()).constraint == bound.constraint


# ----------------------------------------------------------------------------- outputs


def test_an_output_that_says_what_its_reply_says_has_no_differences(origin: Origin) -> None:
    reply = reply_of(origin)
    for look in (mime.Look(), mime.Look(docs=True), mime.Look(format="text", heat=True)):
        output = shown(reply, look)
        drawn = output["metadata"][records.KEY]["drawn"]
        data = json.loads(json.dumps(output["data"]))
        assert records.differences(data, [reply], drawn) == []


def test_every_changed_character_of_an_output_is_found_and_located(origin: Origin) -> None:
    text = "Paris is **nice**, and 2 < 3 there."
    top = Token(5, text.encode(), -0.5, 1)
    reply = reply_of(origin, text=text, tokens=(top,), kinds=("answer",))
    output = shown(reply, mime.Look())
    drawn = output["metadata"][records.KEY]["drawn"]
    for kind, value in output["data"].items():
        if kind == mime.VENDOR:
            continue
        for i in range(0, len(value), 5 if kind == "text/html" else 1):
            changed = value[:i] + ("X" if value[i] != "X" else "Y") + value[i + 1 :]
            found = records.differences(output["data"] | {kind: changed}, [reply], drawn)
            assert found, (kind, i, value[i])
            assert kind in found[0]
    saved = json.dumps(output["data"][mime.VENDOR])
    for i in range(len(saved)):
        try:
            data = json.loads(saved[:i] + ("7" if saved[i] != "7" else "8") + saved[i + 1 :])
        except ValueError:
            continue
        if data == output["data"][mime.VENDOR]:  # the last digit of a number, say
            continue
        assert records.differences(output["data"] | {mime.VENDOR: data}, [reply], drawn), saved[i:]


def test_a_difference_says_where_it_is(origin: Origin) -> None:
    reply = reply_of(origin)
    output = shown(reply)
    data = output["data"] | {"text/plain": "Pares"}
    (found,) = records.differences(data, [reply], output["metadata"][records.KEY]["drawn"])
    assert found == "text/plain, character 3: 'Pares' is saved, the reply says 'Paris'"


# ----------------------------------------------------------------------------- notebooks


def check(path: Path) -> Report:
    return verify(path, Finder(), records.differences)


def test_a_cell_without_a_record_is_not_checkable_and_never_right(tmp_path: Path) -> None:
    old = {"output_type": "display_data", "data": {mime.VENDOR: Reply("Hi").to_dict()}}
    text = {"output_type": "display_data", "data": {"text/plain": "Hi"}, "metadata": {}}
    table = {"output_type": "display_data", "data": {"text/html": "<table>"}}
    stream = {"output_type": "stream", "text": "1"}
    path = file_of(
        tmp_path,
        ("%%llm\nHi", [text]),
        ("reply", [old]),
        ("%%llm --map df\nHi {{ a }}", [table]),
        ("%llm compare -n 3 Hi", [text]),
        ("print(1)", [stream]),
        ("%%llm -q\nHi", []),
        ("%%llm\nHi", [{"output_type": "error", "ename": "E", "evalue": "", "traceback": []}]),
    )
    report = check(path)
    assert report.status == 2
    assert [c.cell for c in report.checks] == [0, 1, 2, 3]
    assert {c.verdict for c in report.checks} == {"unchecked"}
    assert report.others == 2
    text = verified.plain(report)
    assert "4 of 4 replies cannot be checked" in text
    assert "run the cell again" in text
    assert check(file_of(tmp_path, ("x = 1", []))).status == 2


def test_a_reply_of_a_model_that_is_not_here_is_not_checkable(
    origin: Origin, tmp_path: Path
) -> None:
    report = check(file_of(tmp_path, ("%%llm\nWhere?", [shown(reply_of(origin))])))
    assert report.status == 2
    assert "--model FILE" in report.checks[0].findings[0]
    named = reply_of(origin, model="https://example.org/model.gguf")
    report = check(file_of(tmp_path, ("%%llm\nWhere?", [shown(named)])))
    assert "is not here" in report.checks[0].findings[0]  # nothing was fetched


def test_a_reply_of_a_provider_without_a_file_is_not_checkable(tmp_path: Path) -> None:
    reply = LLM(Scripted(["Hello."])).chat("Hi")
    report = check(file_of(tmp_path, ("%%llm\nHi", [shown(reply)])))
    assert (report.status, report.checks[0].verdict) == (2, "unchecked")


def test_a_record_that_was_changed_differs(origin: Origin, tmp_path: Path) -> None:
    output = shown(reply_of(origin))
    output["metadata"][records.KEY]["replies"][0]["ids"] = "5 7"
    report = check(file_of(tmp_path, ("%%llm\nHi", [output])))
    assert report.status == 1
    assert "checksum" in report.checks[0].findings[0]


def test_a_cell_that_was_edited_is_known_by_its_hash() -> None:
    ran = notebook.digest("llm", " -t 0", "Hi\n")
    for source in ("%%llm -t 0\nHi", "%%llm   -t 0 \nHi\n\n", "%%time\n%%llm -t 0\nHi"):
        assert notebook.ran_as(source, ran)
    for source in ("%%llm -t 0\nHi!", "%%llm -t 1\nHi", "%%lam -t 0\nHi", "%0llm -t 0\nHi"):
        assert not notebook.ran_as(source, ran)
    assert notebook.ran_as("run_cell_magic('llm', '-t 0', 'Hi')", ran)


@pytest.mark.parametrize("content", ["{", "[]", '{"worksheets": []}'])
def test_a_file_that_is_no_notebook_is_said(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    with pytest.raises(RequestError, match="not a notebook"):
        check(path)
    with pytest.raises(RequestError, match="cannot be read"):
        check(tmp_path / "none.ipynb")


@pytest.mark.parametrize(
    ("verdicts", "status"),
    [
        (["same"], 0), (["same", "close"], 0), (["same", "unchecked"], 2),
        (["unchecked", "differs"], 1), ([], 2),
    ],
)  # fmt: skip
def test_the_exit_status_is_that_of_the_worst(verdicts: list[Any], status: int) -> None:
    report = Report("a.ipynb", tuple(Check(i, "%%llm", v) for i, v in enumerate(verdicts)))
    assert report.status == status
    shown = verified.fragment(report)
    assert "a.ipynb" in shown.plain
    assert verified.verdict(report) in shown.plain


def test_the_command_line_returns_the_status_and_writes_a_page(
    origin: Origin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = file_of(tmp_path, ("%%llm\n<b>Where?</b>", [shown(reply_of(origin))]))
    page = tmp_path / "report.html"
    assert program.main(["verify", str(path), "--html", str(page)]) == 2
    assert "book.ipynb: 1 of 1 reply cannot be checked" in capsys.readouterr().out
    assert "<h2>book.ipynb</h2>" in page.read_text()
    assert program.main(["verify", str(tmp_path / "none.ipynb")]) == 1
    assert "cannot be read" in capsys.readouterr().err
