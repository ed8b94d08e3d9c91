"""The strength of SVDecode is found on right answers."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from polydec import api
from polydec.cli.main import app
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.strength import _every, best_steering_strength, read_pairs
from polydec.models.sessions.lm import CausalLaw

PROMPTS = [
    f"Tell me a story about {who}."
    for who in ("a fox", "two ships", "the sea", "my aunt", "an old mill", "bread")
]


@pytest.fixture(scope="module")
def lm():
    return api.load("zoo:tiny", draft="zoo:tiny-draft", ngrams=None)


def pairs(lm, mu):
    steer = {"steer": "svdecode", "steer_options": {"strength": mu, "head": 0.0}} if mu else {}
    return [
        (
            p,
            api.generate(
                lm,
                p,
                method="plain",
                max_tokens=24,
                seed=i,
                sampling=lm.sampling_with(temperature=1.0),
                **steer,
            ).text,
        )
        for i, p in enumerate(PROMPTS)
    ]


def test_answers_of_a_steered_law_want_steering(lm):
    steered, plain = (
        best_steering_strength(lm, pairs(lm, 6.0), head=0.0),
        best_steering_strength(lm, pairs(lm, 0.0), head=0.0),
    )
    assert steered.strength > plain.strength and steered.strength > 1.0
    assert steered.after < steered.before and plain.after <= plain.before and steered.tokens > 50


def test_a_model_beside_itself_wants_none(lm):
    same = api.LoadedModel(lm.checkpoint, lm.checkpoint)
    found = best_steering_strength(same, [(PROMPTS[0], "Once upon a time.")])
    assert found.strength == 0.0 and found.after == found.before


def test_of_several_ends_the_one_that_the_tuned_model_writes_counts():
    for seed in range(6):
        law = toy_law(seed, 5)
        both = CausalLaw(law.network, replace(law.vocab, eos=frozenset({2, 4})), chunk=2)
        (first_V, _, token), (end_V, _, end) = _every((both, both), [((0, 1), (3,))])
        assert token == 3 and end == max((2, 4), key=lambda x: end_V[x]) and first_V is not end_V


def test_what_is_missing_is_said(lm):
    for model, given, head, said in (
        (api.LoadedModel(lm.checkpoint), [("a", "b")], 0.1, "model before tuning"),
        (lm, [], 0.1, "pairs is empty"),
        (lm, [("a", " ")], 0.1, r"pairs\[0\] has no answer"),
        (lm, [("a", "b")], 2.0, "head is 2.0"),
    ):
        with pytest.raises(ValueError, match=said):
            best_steering_strength(model, given, head=head)


def test_the_command_reads_pairs_and_prints_one_object(tmp_path):
    good, bad = tmp_path / "pairs.jsonl", tmp_path / "bad.jsonl"
    good.write_text(
        json.dumps({"prompt": PROMPTS[0], "answer": "Once there was a fox."}) + "\n\n", "utf-8"
    )
    bad.write_text('{"prompt": "a"}\n', "utf-8")
    assert read_pairs(good) == [(PROMPTS[0], "Once there was a fox.")]
    with pytest.raises(ValueError, match=r"line 1 of .*answer"):
        read_pairs(bad)
    given = ["--target", "zoo:tiny", "--draft", "zoo:tiny-draft", "--data", str(good)]
    done = CliRunner().invoke(app, ["train", "strength", *given])
    assert done.exit_code == 0, done.output
    assert set(json.loads(done.stdout)) == {"strength", "closed", "before", "after", "tokens"}
