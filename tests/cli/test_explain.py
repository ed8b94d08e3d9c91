"""polydec explain: the parts of a request, or what would run in its place."""

import json
from functools import partial

import pytest

import micro
from polydec.models.learned.kinds import stop_head


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("explain") / "a"))


@pytest.fixture
def explained(polydec_command):
    return partial(polydec_command, "explain")


def test_parts_in_their_order(explained, model):
    code, out, _ = explained(
        "The grey fox",
        "--model",
        model,
        "--repetition-penalty",
        "1.2",
        "--top-p",
        "0.5",
        "--regex",
        "(the|fox| )+",
        "--method",
        "prompt-lookup",
        "--set",
        "depth=3",
        "--json",
    )
    said = json.loads(out)
    assert code == 0 and said["refused"] is None
    by_role = {p["role"]: p for p in said["parts"]}
    assert list(by_role) == [
        "model",
        "constraint",
        "sampling rule",
        "idle rule",
        "method",
        "length",
    ]
    assert by_role["idle rule"]["name"] == "top_p" and by_role["method"]["options"]["depth"] == "3"
    assert [p["name"] for p in said["parts"] if p["role"] == "sampling rule"] == [
        "repetition_penalty",
        "temperature",
    ]
    assert by_role["method"]["says"].endswith(
        "same distribution as plain (exactly the law of all that stands above)"
    )


def test_a_rule_that_is_off_is_shown_where_a_field_of_it_is_given(explained, model):
    code, out, _ = explained("The grey fox", "--model", model, "--sample", "dry_base=3", "--json")
    (still,) = (p for p in json.loads(out)["parts"] if p["role"] == "idle rule")
    assert code == 0 and still["name"] == "dry" and still["options"] == {"dry_base": "3.0"}
    assert still["says"] == "does nothing here: it is off, as dry_multiplier is 0.0"


def test_what_ends_in_time_says_so(explained, model):
    asked = (
        "The grey fox",
        "--model",
        model,
        "--regex",
        "(the|fox| )+",
        "--finish",
        "--max-tokens",
        "20",
        "--json",
    )
    code, out, _ = explained(*asked)
    assert code == 0 and [
        p["name"] for p in json.loads(out)["parts"] if p["role"] == "constraint"
    ] == ["Regex", "InTime"]
    code, out, err = explained("The grey fox", "--model", model, "--finish")
    assert (
        code == 2
        and "finish is true: it brings constrained answers to an end" in err
        and "without finish" in out
    )


def test_as_a_table(explained, model):
    code, out, _ = explained(
        "The grey fox",
        "--model",
        model,
        "--temperature",
        "0.7",
        "--steer",
        "dola",
    )
    assert code == 0 and "steering" in out and "dola" in out and "temperature=0.7" in out


def test_what_was_trained_is_shown_with_what_reads_it(explained, model, tmp_path):
    head = str(tmp_path / "head")
    stop_head.save(head, stop_head.new_stop_head(32, 1, False, 0), {})
    asked = (
        "The grey fox",
        "--model",
        model,
        "--draft",
        model,
        "--with",
        head,
        "--dtype",
        "float32",
        "--json",
        "--method",
    )
    said = {}
    for method in ("auto", "specdec-plus-plus"):
        code, out, _ = explained(*asked, method)
        (part,) = (p for p in json.loads(out)["parts"] if p["role"] == "trained")
        assert code == 0 and part["name"] == head
        said[method] = part["says"]
    assert said["auto"] == "a stop head; nothing below reads it: specdec-plus-plus would"
    assert said["specdec-plus-plus"] == "a stop head; read by what needs it below"


def test_a_system_message_is_a_part_of_the_prompt(explained):
    asked = ("The fox", "--model", "zoo:tiny", "--json")
    lengths = []
    for more in ((), ("--system", "Be short.")):
        _, out, _ = explained(*asked, *more)
        (part,) = (p for p in json.loads(out)["parts"] if p["role"] == "length")
        lengths.append(int(part["says"].split()[0]))
    assert lengths[0] < lengths[1]


def test_refused(explained, model):
    asked = ("The grey fox", "--model", model, "--method", "layerskip", "--negative-prompt", "x")
    code, out, err = explained(*asked)
    assert code == 2 and "layerskip and steering cfg do not go together" in err
    assert out == "it would run with method auto, or with method plain, or without steering\n"
    code, out, err = explained(*asked, "--json")
    assert (
        code == 2
        and json.loads(out)["instead"][0] == "with method auto"
        and json.loads(out)["refused"] in err
    )


def test_nothing_is_traced(explained, model, tmp_path):
    code, _, err = explained("The grey fox", "--model", model, "--trace", str(tmp_path / "t.jsonl"))
    assert code == 2 and "trace is given" in err and not list(tmp_path.iterdir())
