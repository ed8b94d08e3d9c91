"""Constraints on masked-diffusion models: from Python, from the command line and over HTTP."""

import json
import re
import sys

import jsonschema
import pytest

import polydec
from polydec import Ask, Engine, LarkGrammar, Regex, SpanOf
from polydec.cli.main import main
from polydec.request.explain import explain_request

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
    },
    "required": ["name", "age"],
}
ASKED = "slots: Eva, Kyoto, 61"
TOWNS = ("Kyoto", "Hull", "Paris")
ZIP = "[0-9]{5}-[0-9]{4}"
METHODS = {
    "auto": {},
    "llada": {"steps": 1},
    "prophet": {"early": 0.5},
    "remdm": {"steps": 3},
    "freecache": {"threshold": 0.6},
    "dkv-cache-greedy": {"count": 3},
    "freedave": {"cache": 2, "block": 8, "drafts": 2},
}


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:diffusion", draft=None, threads=1)


def is_person(text):
    jsonschema.validate(json.loads(text), PERSON)
    return True


CASES = {
    "regex": (Regex(ZIP), lambda text: re.fullmatch(ZIP, text), 16),
    "choice": (TOWNS, lambda text: text in TOWNS, 12),
    "schema": (PERSON, is_person, 32),
}


@pytest.mark.parametrize("method", METHODS)
def test_every_answer_belongs_to_it(lm, method):
    engine = Engine(lm)
    running = []
    for kind, (constraint, _, length) in CASES.items():
        for seed, temperature in ((0, 0.0), (1, 1.3)):
            fields = {
                "method": method,
                "options": METHODS[method],
                "max_tokens": length,
                "seed": seed,
                "temperature": temperature,
            }
            running.append((kind, engine.submit(ASKED, constraint=constraint, **fields), fields))
    engine.run([ticket for _, ticket, _ in running])
    for kind, ticket, fields in running:
        answer = ticket.completion().choices[0]
        constraint, belongs, _ = CASES[kind]
        assert belongs(answer.text), (kind, answer.text)
        if kind == "regex":
            free = polydec.generate(lm, ASKED, **fields).choices[0].text
            assert not belongs(free), "the model would have said it anyway"
            # The same alone as among the others.
            alone = polydec.generate(lm, ASKED, constraint=constraint, **fields).choices[0]
            assert alone.token_ids == answer.token_ids


def test_rules_of_sampling_hold_beside_it(lm):
    eos = tuple(lm.checkpoint.lm.vocab.eos)
    spelled = lm.checkpoint.lm.vocab.words.pieces
    seven = spelled.index(b"7")
    fields = {"constraint": Regex("[0-9]{3,9}"), "temperature": 1.0}
    for seed in range(3):
        said = polydec.generate(lm, ASKED, max_tokens=12, min_tokens=7, seed=seed, **fields)
        assert re.fullmatch("[0-9]{7,9}", said.choices[0].text)
        said = polydec.generate(
            lm, ASKED, max_tokens=6, bad_token_ids=(*eos, seven), seed=seed, **fields
        ).choices[0]
        assert re.fullmatch("[0-689]{6}", said.text) and said.finish_reason == "length"
        said = polydec.generate(lm, ASKED, max_tokens=6, ignore_eos=True, seed=seed, **fields)
        assert re.fullmatch("[0-9]{6}", said.choices[0].text)
    guided = {"method": "llada", "options": {"guidance": 1.0}}
    said = polydec.generate(lm, ASKED, max_tokens=9, finish=True, **guided, **fields)
    assert re.fullmatch("[0-9]{3,9}", said.choices[0].text)


def test_log_probabilities_are_of_what_is_allowed(lm):
    said = polydec.generate(
        lm, ASKED, max_tokens=5, constraint=Regex("7[0-9]x"), logprobs=2, method="llada"
    ).choices[0]
    notes = said.logprobs
    assert [n.token for n in notes] == list(said.token_ids)
    assert notes[0].model_logp == 0.0 and notes[2].model_logp == 0.0 and notes[1].model_logp < 0


def test_gaps_with_patterns(lm):
    free = "name: [[1]] town: Kyoto age: [[2]]"
    typed = "name: [[3:[A-Z][a-z]b]] town: Kyoto age: [[2:[89][0-9]]]!"
    for seed in range(3):
        said = polydec.generate(lm, ASKED, infill=typed, temperature=1.0, seed=seed).choices[0]
        assert re.fullmatch("name: [A-Z][a-z]b town: Kyoto age: [89][0-9]!", said.text)
    # A constraint speaks of the text with what is given.
    said = polydec.generate(lm, ASKED, infill=free, constraint=Regex("name: .* age: 9[0-9]"))
    assert re.fullmatch("name: .* town: Kyoto age: 9[0-9]", said.choices[0].text)


@pytest.mark.parametrize(
    "fields, why",
    [
        ({"constraint": LarkGrammar('start: "a"')}, "constraint is a LarkGrammar: a masked-diff"),
        ({"constraint": SpanOf("a river")}, "constraint is a SpanOf"),
        ({"constraint": Regex("a^")}, "an anchor is not supported"),
        ({"constraint": Regex("[ab]{20}")}, "holds no text for a canvas of 8 tokens with an end"),
        ({"constraint": Regex("a"), "min_tokens": 4}, "8 tokens with min_tokens 4"),
        ({"constraint": Regex("😀")}, None),
        ({"constraint": Regex("a|b"), "infill": "c[[3]]"}, "with what is given of it"),
        ({"constraint": Regex("a|b"), "infill": "c[[3:abc]]"}, "beside gaps with patterns"),
        ({"infill": "c[[3:ab]]"}, "a gap of 3 tokens for 'ab': no text of it has that many"),
        ({"infill": "c[[3:(]]"}, "the pattern of a gap is '(': a group is not closed"),
        ({"constraint": {"type": "object"}}, "an object of any names has no bound"),
    ],
    ids=str,
)
def test_what_is_refused_before_anything_runs(lm, fields, why):
    if why is None:  # every byte is a token here
        Engine(lm).submit(ASKED, max_tokens=8, **fields)
        return
    with pytest.raises(polydec.RequestError, match=re.escape(why)) as said:
        Engine(lm).submit(ASKED, max_tokens=8, **fields)
    assert len(str(said.value)) <= 300


def test_an_explanation_names_it(lm):
    parts = explain_request(lm, Ask(ASKED, constraint=Regex("a+"), max_tokens=5))
    assert ("constraint", "Regex") in [(p.role, p.name) for p in parts]
    parts = explain_request(lm, Ask(ASKED, infill="a[[1:b]]"))
    assert ("constraint", "the patterns of gaps") in [(p.role, p.name) for p in parts]


COMMANDS = [
    (["--regex", ZIP, "--max-tokens", "16"], lambda text: re.fullmatch(ZIP, text)),
    (["--choice", "Kyoto", "--choice", "Hull", "--max-tokens", "9"], lambda t: t in TOWNS),
    (["--json-schema", "SCHEMA", "--max-tokens", "40"], is_person),
    (["--infill", "age: [[2:9[0-9]]]"], lambda text: re.fullmatch("age: 9[0-9]", text)),
]


@pytest.mark.parametrize("flags, belongs", COMMANDS, ids=lambda x: str(x)[:20])
def test_from_the_command_line(flags, belongs, tmp_path, monkeypatch, capfd):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps(PERSON))
    flags = [str(schema) if x == "SCHEMA" else x for x in flags]
    monkeypatch.setattr(
        sys, "argv", ["polydec", "generate", "--model", "zoo:diffusion", *flags, ASKED]
    )
    with pytest.raises(SystemExit) as stop:
        main()
    assert not stop.value.code
    assert belongs(capfd.readouterr().out.strip())


def test_over_http(lm):
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    sys.path.insert(0, "tests/serve")
    house = pytest.importorskip("house")
    answer = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    with house.served({"canvas": lambda: lm}) as served, served.client() as http:

        def said(**fields):
            got = http.post("/v1/completions", json={"prompt": ASKED, "max_tokens": 40, **fields})
            assert got.status_code == 200, got.text
            return got.json()["choices"][0]["text"]

        assert re.fullmatch(ZIP, said(guided_regex=ZIP))
        assert said(guided_choice=TOWNS) in TOWNS
        assert is_person(said(guided_json=PERSON)) and is_person(said(response_format=answer))
        for fields, why in (
            ({"guided_grammar": 'start: "a"'}, "guided_grammar: constraint is a LarkGrammar"),
            ({"response_format": {"type": "json_object"}}, "response_format: json_schema at #"),
            ({"guided_regex": "(a"}, "guided_regex: regex is '(a': a group is not closed"),
        ):
            got = http.post("/v1/completions", json={"prompt": ASKED, **fields})
            assert got.status_code == 400 and why in got.text, got.text
