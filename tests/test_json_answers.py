"""Answers by a JSON schema: valid for models that learned nothing, whatever their tokens are, and
refused in one line where the vocabulary cannot write them."""

import json
import sys

import pytest
import torch

from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.model.gpt import GPT, GPTConfig

LETTERS = "".join(map(chr, range(32, 127))) + "\n€é"
PERSON = dict(
    type="object",
    properties=dict(
        name=dict(type="string", maxLength=6),
        age=dict(type="integer", minimum=0, maximum=120),
        kind=dict(enum=["€", "naïf"]),
        tags=dict(type="array", items=dict(type="boolean"), maxItems=2),
    ),
    required=["name", "age", "kind", "tags"],
    additionalProperties=False,
)
SCHEMAS = dict(
    person=PERSON,
    number=dict(type="integer", minimum=-20, maximum=7),
    choice=dict(enum=["yes", "no", 3, None]),
    list=dict(type="array", items=dict(type="string", pattern="^[ab]{2}$"), minItems=1, maxItems=3),
    either=dict(anyOf=[dict(type="boolean"), dict(const={"a": [1, "b"]})]),
    nested={
        "$ref": "#/$defs/pair",
        "$defs": dict(
            pair=dict(
                type="object",
                properties=dict(left=dict(type="null"), right=dict(type="string", maxLength=3)),
                required=["left", "right"],
                additionalProperties=False,
            )
        ),
    },
)


def kinds_of_tokens():
    "Characters without an end, byte pairs with one"
    pairs = BPETokenizer.train(['{"name": "naïf", "age": 12, "kind": "€"}\n' * 5], 300)
    return dict(characters=CharTokenizer(LETTERS + "ï"), pairs=pairs)


def served_model(tok):
    server = pytest.importorskip("gpub.share.server")
    torch.manual_seed(0)
    shape = dict(context_length=128, d_model=16, n_layers=1, n_heads=1)
    model = GPT(GPTConfig(vocab_size=tok.vocab_size, **shape)).eval()
    ends = frozenset() if tok.end is None else frozenset([int(tok.end)])
    return server.ServedModel(name="small", model=model, tok=tok, chats=False, ends=ends)


@pytest.fixture(scope="module", params=["characters", "pairs"])
def client(request):
    pytest.importorskip("llguidance", reason="needs gpub[json]")
    pytest.importorskip("fastapi", reason="needs gpub[serve]")
    from starlette.testclient import TestClient

    from gpub.share.server import BatchWorker, api_app

    served = served_model(kinds_of_tokens()[request.param])
    worker = BatchWorker(served.model, size=4)
    with TestClient(api_app(served, worker), base_url="http://localhost") as client:
        yield client


def by_schema(schema, **changed):
    wrapped = dict(type="json_schema", json_schema=dict(name="x", schema=schema, strict=True))
    asked = dict(model="small", prompt="a", max_tokens=120, temperature=1, response_format=wrapped)
    return asked | changed


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_answer_is_valid(client, name):
    "Eight answers at temperature 1 and one of the favourites; a stream says the same"
    validate = pytest.importorskip("jsonschema").validate
    schema = SCHEMAS[name]
    for changed in (dict(n=8, seed=1), dict(temperature=0), dict(top_k=3, min_p=0.1)):
        answer = client.post("/v1/completions", json=by_schema(schema, **changed)).json()
        for choice in answer["choices"]:
            assert choice["finish_reason"] == "stop", choice
            validate(json.loads(choice["text"]), schema)
    stream = client.post("/v1/completions", json=by_schema(schema, seed=1, stream=True)).text
    events = [json.loads(line[6:]) for line in stream.split("\n\n") if line.startswith("data: {")]
    text = "".join(event["choices"][0]["text"] for event in events)
    whole = client.post("/v1/completions", json=by_schema(schema, seed=1)).json()
    assert text == whole["choices"][0]["text"]


def test_beside_a_text_without_a_schema(client):
    "An answer by a schema changes no other one of the batch, and any object is an object"
    plain = dict(model="small", prompt="a", max_tokens=20, seed=4)
    alone = client.post("/v1/completions", json=plain).json()["choices"][0]["text"]
    many = by_schema(PERSON, n=3)
    client.post("/v1/completions", json=many)
    assert client.post("/v1/completions", json=plain).json()["choices"][0]["text"] == alone
    some = client.post(
        "/v1/completions", json=plain | dict(response_format=dict(type="json_object"))
    ).json()["choices"][0]
    assert some["text"].startswith("{") and some["finish_reason"] in ("stop", "length")


@pytest.mark.parametrize(
    "format, why",
    [
        (dict(type="json_schema"), "needs the field json_schema"),
        (dict(type="yaml"), "response_format"),
        (dict(type="json_schema", json_schema=dict(schema=3)), "json_schema"),
        (dict(type="json_schema", json_schema=dict(schema=dict(type="foo"))), "Invalid type"),
        (
            dict(type="json_schema", json_schema=dict(schema={"not": dict(type="null")})),
            "cannot be followed: Unimplemented keys",
        ),
        (
            dict(type="json_schema", json_schema=dict(schema={"$ref": "#/nowhere"})),
            "does not exist",
        ),
        (dict(type="json_schema", json_schema=dict(schema=dict(enum=3))), "enum"),
        (dict(type="json_schema", json_schema=dict(schema=dict(properties=[1]))), "propert"),
    ],
)
def test_what_makes_no_sense_is_one_line(client, format, why):
    body = by_schema({}) | dict(response_format=format)
    answer = client.post("/v1/completions", json=body)
    error = answer.json()["error"]["message"]
    assert answer.status_code == 400 and why in error and "\n" not in error


def test_a_vocabulary_that_cannot_write_it():
    "Names, values and brackets are looked for; a pattern is found out on the way"
    answers = pytest.importorskip("gpub.share.json_answers")
    pytest.importorskip("llguidance", reason="needs gpub[json]")
    schemas = answers.JsonSchemas(CharTokenizer('abc{}":,tre'), frozenset())
    for schema, lacks in (
        (dict(type="integer"), "lacks 0 1 2 3 4 5 6 7 8 9,"),
        (dict(type="array"), r"lacks \[ \],"),
        (dict(enum=["abd"]), "lacks d,"),
        (dict(type="object", properties=dict(ax={})), "lacks x,"),
    ):
        with pytest.raises(GpubError, match=lacks):
            schemas.grammar(schema)
    grammar = schemas.grammar(dict(type="string", pattern="^[abé]{2}$"))
    quote = CharTokenizer('abc{}":,tre').encode('"a')
    assert [grammar.copy().add(int(i)) for i in quote[:1]] == [None]
    stuck = schemas.grammar(dict(type="string", pattern="^(é|aé)$"))
    said = [stuck.add(int(stuck.allowed_v.nonzero()[0, 0]))]
    while said[-1] is None:
        said.append(stuck.add(int(stuck.allowed_v.nonzero()[0, 0])))
    assert said[-1] == "stuck"


def test_special_tokens_are_never_spelled():
    "A token that ends a text, or marks a turn, does not appear inside a string"
    answers = pytest.importorskip("gpub.share.json_answers")
    pytest.importorskip("llguidance", reason="needs gpub[json]")
    tok = kinds_of_tokens()["pairs"]
    grammar = answers.JsonSchemas(tok, frozenset([int(tok.end)])).grammar(dict(type="string"))
    assert grammar.add(int(tok.encode('"')[0])) is None
    inside = set(grammar.allowed_v.nonzero().flatten().tolist())
    assert inside.isdisjoint(tok.specials.values()) and len(inside) > 100


def test_without_the_package_one_line_says_what_to_install(monkeypatch):
    from gpub.share.json_answers import JsonSchemas

    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(GpubError, match=r"pip install 'gpub\[json\]'"):
        JsonSchemas(CharTokenizer("ab"), frozenset())
