"""REF-VLM's states: the text is plain decoding's, and each reference has the state of the place where its token is read."""

import json
import sys

import pytest
import torch

import micro
from polydec import Sampling, generate, load
from polydec.base.errors import RequestError
from polydec.cli.main import main
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords, toy_law
from polydec.laws.constraints.in_time import in_time
from polydec.laws.constraints.triplets import TripletGrammar, read_triplets
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.session import LMSession

WORDS = (
    *(
        "<Task>",
        "\nUnit decode (False).",
        "\nUnit decode (True). Class name, target unit and number:",
    ),
    *("\n- Name:", " Unit: ", "<Unit>box</Unit>", "<Unit>mask</Unit>", " Num:", "\n</Task>"),
    *("<Phrase>", "</Phrase>", "(", ")", "[0]", "[1]", "[2]", "<REF>", " 1", " 2", " 3", " cat"),
)
END = len(WORDS)
PROMPT = (20, 11, 20)
LAW = CausalLaw(
    OrderTwoNetwork(3, END + 1),
    TokenVocabulary(END + 1, frozenset({END}), words=ToyWords((*WORDS, "$"), frozenset({END}))),
    chunk=2,
)
MOST = 90
GRAMMAR = TripletGrammar(("box", "mask"))


@pytest.fixture(scope="module")
def target():
    language = GRAMMAR.token_language(LAW.vocab, LAW.vocab.eos)
    ending = in_time(language, MOST, language.groups.pieces, (END,))
    return ShapedTarget(LAW, ConstraintRule(ending))


def answered(target, seed, most=MOST, name="ref-vlm", **options):
    decoder, _ = build(name, target, options=options)
    return run_coroutines([answer_one(decoder, Request(PROMPT, most, seed=seed))])[0]


@pytest.fixture(scope="module")
def answer(target):
    """The first one with two concepts that ends."""
    answers = (answered(target, seed) for seed in range(400))
    return next(x for x in answers if len({one.name + one.unit for one in x.references}) > 1)


def computed_anew(tokens):
    """The state where a text's last token is read, of a session that begins with the text."""
    session = LAW.open_session(tokens)
    scores = run_coroutines(
        [session.score_draft(Draft.chain_draft(tokens[-1]), ScoreRequest(hidden=True))]
    )[0]
    return session.normed_states(scores.hidden_NH)[0]


def test_each_reference_has_its_triplet_and_the_state_where_its_token_is_read(answer):
    said = [WORDS[x] for x in answer.token_ids[:-1]]
    planned = read_triplets("".join(said))
    want = [(one.name, one.unit, index) for one in planned for index in range(one.count)]
    assert [(one.name, one.unit, one.index) for one in answer.references] == want
    # As many states as references were planned, one a reference.
    assert [one.place for one in answer.references] == [
        at for at, word in enumerate(said) if word == "<REF>"
    ]
    for one in answer.references:
        read = computed_anew((*PROMPT, *answer.token_ids[: one.place + 1]))
        torch.testing.assert_close(one.state_H, read)
        # Where it was written the model had read the token before it.
        before = computed_anew((*PROMPT, *answer.token_ids[: one.place]))
        assert not torch.allclose(one.state_H, before)


def test_all_states_of_an_answer_are_one_pass(target, answer, monkeypatch):
    passes = []
    forward = OrderTwoNetwork.forward
    monkeypatch.setattr(
        OrderTwoNetwork, "forward", lambda self, qs: passes.append(qs) or forward(self, qs)
    )
    seed = next(s for s in range(400) if answered(target, s).token_ids == answer.token_ids)
    passes.clear()
    plain = answered(target, seed, name="plain")
    alone = len(passes)
    passes.clear()
    both = answered(target, seed)
    assert both.token_ids == plain.token_ids and not plain.references
    assert len(passes) == alone + 1


def test_what_the_grammar_leaves_no_choice_about_is_drafted_and_states_stay(target, answer):
    seed = next(s for s in range(400) if answered(target, s).token_ids == answer.token_ids)
    drafted = answered(target, seed, depth=16)
    assert drafted.token_ids == answer.token_ids
    assert drafted.stats.passes < answer.stats.passes / 2
    for one, other in zip(drafted.references, answer.references, strict=True):
        assert (one.place, one.name) == (other.place, other.name)
        torch.testing.assert_close(one.state_H, other.state_H)


def test_an_answer_that_is_cut_or_free_has_no_references(target, answer):
    seed = next(s for s in range(400) if answered(target, s).token_ids == answer.token_ids)
    assert answered(target, seed, most=len(answer.token_ids) - 3).references == ()
    assert all(answered(LAW, seed, most=8).references == () for seed in range(5))


def test_a_session_ends_with_its_answer(target, answer, monkeypatch):
    forks, closed = [], []
    fork, close = LMSession.fork, LMSession.close

    def forked(self, choice=None):
        forks.append(fork(self, choice))
        return forks[-1]

    monkeypatch.setattr(LMSession, "fork", forked)
    monkeypatch.setattr(LMSession, "close", lambda self: closed.append(self) or close(self))
    for seed in range(4):
        answered(target, seed)
    assert forks and all(any(each is one for one in closed) for each in forks)


def test_the_law_of_the_text_stays():
    law = toy_law(4)
    decoder, _ = build("ref-vlm", law)
    got = law_of(lambda rng: answer_one(decoder, Request((0, 1), 3), rng))
    assert text_law_distance(got, target_law(law, (0, 1), 3)) < 1e-9


def test_a_tokenizer_whose_bytes_are_not_known_is_refused():
    lm = load("zoo:vision", draft=None)
    with pytest.raises(RequestError, match=r"method is ref-vlm: what bytes .* is not known"):
        generate(lm, "describe it", method="ref-vlm", max_tokens=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A random model with the marks of the format among its tokens."""
    torch.set_num_threads(1)
    marks = [word for word in WORDS if not word[1:].isalnum()]
    path = tmp_path_factory.mktemp("referring") / "m"
    micro.write(path, more=tuple(f"<{at}>" for at in range(len(marks))))
    table = json.loads((path / "tokenizer.json").read_text())
    # A text shows them, other than the control tokens that they were written as.
    for at, mark in enumerate(marks):
        table["model"]["vocab"][mark] = table["model"]["vocab"].pop(f"<{at}>")
        entry = next(x for x in table["added_tokens"] if x["content"] == f"<{at}>")
        entry |= {"content": mark, "special": False, "normalized": False}
    (path / "tokenizer.json").write_text(json.dumps(table))
    return path


def test_the_command_line_gives_states_as_json(folder, monkeypatch, capsys):
    lm = load(str(folder), draft=None)
    fields = {
        "method": "ref-vlm",
        "options": {"depth": 8},
        "constraint": GRAMMAR,
        "finish": True,
        "max_tokens": 120,
    }
    sampling = Sampling(temperature=1.0)
    answers = (
        (seed, generate(lm, "The", seed=seed, sampling=sampling, **fields)) for seed in range(9)
    )
    seed, want = next(pair for pair in answers if pair[1].reference_states)
    args = ["generate", "The", "--model", str(folder), "--draft", "none", "--method", "ref-vlm"]
    args += ["--constraint", "triplets=box,mask", "--finish", "--set", "depth=8"]
    args += ["--temperature", "1", "--max-tokens", "120", "--seed", str(seed), "--json"]
    monkeypatch.setattr(sys, "argv", ["polydec", *args])
    with pytest.raises(SystemExit):
        main()
    told = json.loads(capsys.readouterr().out)
    assert told["text"] == want.text
    assert sum(one.count for one in read_triplets(told["text"])) == len(want.reference_states)
    for one, other in zip(told["references"], want.reference_states, strict=True):
        assert (one["token"], one["name"]) == (other.place, other.name)
        assert (one["unit"], one["index"]) == (other.unit, other.index)
        torch.testing.assert_close(torch.tensor(one["state"]), other.state_H, atol=1e-4, rtol=1e-3)
