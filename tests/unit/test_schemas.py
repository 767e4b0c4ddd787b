"""Hundreds of JSON schemas: accepted or refused by name, and what comes out of them is valid.

LLM_MAGIC_WALKS=10000 makes the long run.
"""

import json
import os
import random
import warnings
from collections import Counter
from decimal import Decimal
from functools import cache

import jsonschema
import pytest
from support.schemas import BY_HAND, constrainer, generated, shipped, walk

from llm_magic.chat.schema import as_schema, draft_of
from llm_magic.errors import SchemaError
from llm_magic.events import Schema

# One process compiles the schemas for all tests of this file.
pytestmark = pytest.mark.xdist_group("schemas")

WALKS = int(os.environ.get("LLM_MAGIC_WALKS", "200"))
GENERATED = 220


@cache
def sorted_out(
    kind: str,
) -> tuple[tuple[tuple[str, object], ...], tuple[tuple[str, SchemaError], ...]]:
    """(accepted, refused) of the schemas of one kind."""
    own = [*BY_HAND.items(), *((f"generated {i}", s) for i, s in enumerate(generated(GENERATED)))]
    accepted, refused = [], []
    for name, schema in own if kind == "own" else shipped():
        try:
            constrainer().guide(Schema(as_schema(schema)))
        except SchemaError as e:
            refused.append((name, e))
        else:
            accepted.append((name, schema))
    return tuple(accepted), tuple(refused)


# B122
def test_of_our_own_schemas_nine_in_ten_are_accepted_and_the_rest_refused_with_the_path():
    accepted, refused = sorted_out("own")
    assert len(accepted) + len(refused) == len(BY_HAND) + GENERATED >= 300
    assert len(accepted) >= 0.9 * (len(accepted) + len(refused))
    assert [name for name, error in refused if not error.path.startswith("#")] == []
    # What is refused among the generated ones cannot be satisfied at all.
    assert all("nsatisfiable" in str(error) or "no value" in str(error) for _, error in refused)


# B122
def test_schemas_that_packages_ship():
    accepted, refused = sorted_out("shipped")
    own, not_own = sorted_out("own")
    n = len(accepted) + len(refused)
    if not n:
        pytest.skip("no installed package ships a JSON schema")
    whole = n + len(own) + len(not_own)
    assert len(accepted) + len(own) >= 0.9 * whole
    assert [name for name, error in refused if not error.path.startswith("#")] == []


def invalid(schema, text) -> str:
    """What jsonschema says against a JSON text, formats included; "" if nothing.

    With decimals: 0.58 / 0.01 is no whole number in binary.
    """
    value = json.loads(text, parse_float=Decimal)
    schema = json.loads(json.dumps(schema), parse_float=Decimal)
    draft = draft_of(schema)
    checker = jsonschema.FormatChecker(("date", "email", "ipv4", "ipv6", "uuid", "regex"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # remote references of old drafts
        error = next(iter(draft(schema, format_checker=checker).iter_errors(value)), None)
    return "" if error is None else error.message


@pytest.mark.timeout(3600)
def test_every_accepted_schema_gives_valid_output_under_uniform_logits():
    accepted, _ = sorted_out("own")
    rng = random.Random(20)
    compiled = [(name, schema, as_schema(schema)) for name, schema in accepted]
    ends: Counter[bool] = Counter()
    start = rng.randrange(len(compiled))
    for i in range(WALKS):
        name, schema, plain = compiled[(start + i) % len(compiled)]
        out = walk(constrainer().guide(Schema(plain)), rng, most=1500)
        ends[out is not None] += 1
        if out is not None:
            json.dumps(json.loads(out), allow_nan=False)  # no 1e999
            assert not invalid(schema, out), (name, out, invalid(schema, out))
    # A walk that finds no end is cut, as by max_tokens: e-mail addresses need an @, for example.
    assert ends[True] >= 0.95 * WALKS


def test_shipped_schemas_give_valid_output_too():
    accepted, _ = sorted_out("shipped")
    rng = random.Random(4)
    for name, schema in rng.sample(accepted, min(40, len(accepted))):
        out = walk(constrainer().guide(Schema(as_schema(schema))), rng, most=1500)
        if out is not None:
            assert not invalid(schema, out), (name, out)
