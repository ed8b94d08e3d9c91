"""Generalised aggressive decoding: what the network sees, equal texts, the relaxed verifier, training, damage."""

import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from polydec import Engine, load
from polydec.base.errors import PolydecError
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.lab.train import block_drafter as block_drafter_training
from polydec.lab.train.block_drafter import (
    BlockDrafterObjective,
    CutTextBatch,
    train_block_drafter,
)
from polydec.lab.train.pairs import TextPair
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.block_drafter import BlockDrafterSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.lab.train.t5 import TrainableT5, pad_id_rows
from polydec.laws.constraints.regex import Regex
from polydec.methods.speculative.drafters.block_filled import BlockFilledDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.methods.speculative.verifiers.near_best import NearBestVerifier
from polydec.models.learned import artefacts
from polydec.models.learned.kinds import block_drafter
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores

WORDS = ["".join(letters) for letters in product("abcdef", repeat=4)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A model that writes a word in capitals, and a drafter for it."""
    path = tmp_path_factory.mktemp("gad")
    pairs = [TextPair(w, w.upper()) for w in WORDS]
    data = path / "pairs.jsonl"
    data.write_text("\n".join(json.dumps(vars(p)) for p in pairs))
    model = Seq2SeqSpec(
        str(path / "model"), str(data), steps=400, tokens=256, encoder=1, decoder=1, width=32,
        vocab=260,
    )  # fmt: skip
    train_seq2seq(model)
    spec = BlockDrafterSpec(
        str(path / "drafter"), model.out, str(data), block=3, steps=400, tokens=256, glance=0.3
    )
    return spec, train_block_drafter(spec)


def written(lm, method, word, **more):
    engine = Engine(lm)
    asked = engine.submit(word, method=method, max_tokens=8, **more)
    return engine.run([asked])[0]


def test_the_network_computes_what_was_trained():
    """Gaps of two unequal texts in one pass, as the trained module has them."""
    vocab = TokenVocabulary(11, frozenset(), "")
    (drafter,) = block_drafter.examples(vocab, 0, 0)
    network = TrainableT5(replace(block_drafter.config_of(drafter.shape)), 8, 0, both=True, rows=1)
    network.load_state_dict(dict(drafter.tensors))
    sources, known, filler = [(1, 2, 3), (4, 5)], [(0, 7), (0, 8, 9, 1)], drafter.filler
    kvs = filler.encoder.forward(sources)
    answers = filler.forward([filler.gap_query(kv, k, 3) for kv, k in zip(kvs, known)])
    for source, k, answer in zip(sources, known, answers):
        text_BT, here_BT = pad_id_rows([(*k, 11, 11, 11)])
        with torch.no_grad():
            states = network(*pad_id_rows([source]), text_BT, here_BT)[0, -3:]
            assert torch.allclose(network.token_logits(states), answer, atol=1e-5)
    assert answers[0].shape == (3, 11)


def test_texts_are_plain_ones_in_fewer_passes(made):
    spec, result = made
    assert len(result["right_by_gap"]) and result["right_by_gap"][0] > 0.3  # of six letters
    lm = load(spec.target, draft=None, trained=(spec.out,), threads=1)
    passes = {"plain": 0, "generalised-aggressive-decoding": 0}
    for word in WORDS[::80]:
        some = {name: written(lm, name, word) for name in passes}
        assert len({a.choices[0].token_ids for a in some.values()}) == 1
        for name, answer in some.items():
            passes[name] += answer.metrics["target_passes"]
    assert passes["generalised-aggressive-decoding"] < passes["plain"]


def test_relaxed_at_top_one_is_strict_and_rules_hold(made):
    spec, _ = made
    lm = load(spec.target, draft=None, trained=(spec.out,), threads=1)
    for word in WORDS[::160]:
        plain = written(lm, "plain", word).choices[0].token_ids
        options = {"top": 1}
        assert written(lm, "gad++", word, options=options).choices[0].token_ids == plain
        answer = written(lm, "gad++", word, constraint=Regex("[XYZ]{2}"))
        assert set(answer.choices[0].text) <= set("XYZ")


def rows(*rows):
    return LogitScores([NetworkAnswer(torch.tensor(rows).log())])


def test_near_best_keeps_the_first_child_within_both_bounds():
    scores = rows((0.6, 0.3, 0.06, 0.04), (0.6, 0.3, 0.06, 0.04))

    def kept(token, top, tolerance):
        draft = Draft.certain_tree((9, token), (-1, 0), (1.0, 1.0))
        verdict = NearBestVerifier(top, tolerance).verify_draft(
            draft, Greedy(scores), Rng.of_choice(0), 3
        )
        return verdict.written_tokens(draft)

    assert kept(0, 1, 0.0) == (0, 0)
    assert kept(1, 2, 0.7) == (1, 0)  # log 0.6 / 0.3 = 0.69
    assert kept(1, 2, 0.69) == (0,)
    assert kept(1, 1, 9.0) == (0,)
    assert kept(2, 3, 2.4) == (2, 0) and kept(3, 3, 9.0) == (0,)
    for token in range(4):
        draft = Draft.certain_tree((9, token), (-1, 0), (1.0, 1.0))
        strict = (
            MatchVerifier()
            .verify_draft(draft, Greedy(scores), Rng.of_choice(0), 3)
            .written_tokens(draft)
        )
        assert kept(token, 4, 0.0) == kept(token, 1, 9.0) == strict
    for bad in ({"top": 0}, {"tolerance": -1.0}, {"tolerance": float("nan")}):
        with pytest.raises(PolydecError, match=next(iter(bad))):
            NearBestVerifier(**bad)


class Greedy:
    """The same rows, of which the likeliest token is certain."""

    def __init__(self, scores):
        self.base = scores

    def certain_token(self, i):
        return self.base.likeliest_token(i)


def test_damage_is_one_sentence(made, tmp_path):
    spec, _ = made
    drafter = artefacts.load_artefact(spec.out)
    block_drafter.save(tmp_path, drafter, {})
    again = artefacts.load_artefact(str(tmp_path))
    assert again.block == 3 and all(
        torch.equal(t, again.tensors[n]) for n, t in drafter.tensors.items()
    )
    config = json.loads((tmp_path / "config.json").read_text())
    for change in ({"width": 64}, {"block": 65}, {"layers": 2}, {"head": 0}):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        with pytest.raises(PolydecError, match="damaged"):
            artefacts.load_artefact(str(tmp_path))
    with pytest.raises(PolydecError, match="it must be a T5 model"):
        train_block_drafter(replace(spec, target="zoo:tiny", out=str(tmp_path / "x")))


class ByText:
    """A filler whose gap i is filled with the sum of the text, plus i, and what the source adds to it. asked: what it was
    shown; sources: what its encoder was."""

    cost = 1.0

    def __init__(self, size):
        self.size, self.asked, self.sources, self.encoder = size, [], [], self.Encoder(self)

    class Encoder:
        cost = 1.0

        def __init__(self, of):
            self.of = of

        def forward(self, sources):
            self.of.sources += sources
            return [torch.tensor(sum(s)) for s in sources]

    def gap_query(self, kv, known, count):
        return kv, tuple(known), count

    def forward(self, queries):
        self.asked += [(known, count) for _, known, count in queries]
        out = [torch.zeros(count, self.size) for _, _, count in queries]
        for logits_KV, (kv, known, count) in zip(out, queries):
            for i in range(count):
                logits_KV[i, (int(kv) + sum(known) + i) % self.size] = 3.0
        return out


def test_a_fork_has_a_text_of_its_own_and_shares_what_the_encoder_made():
    filler = ByText(11)
    guess = BlockFilledDrafter(SimpleNamespace(filler=filler, block=3)).open_guess((4, 5), None)

    def drafted(guess, depth=3, nodes=8):
        return run_coroutines(
            [guess.propose_draft(5, 2, DraftBudget(depth, nodes), Rng.of_choice(0))]
        )[0].token[1:]

    def wrote(guess, *tokens):
        guess.learn_round(
            Draft.chain_draft(0, tokens[:-1]),
            None,
            Verdict(tuple(range(1, len(tokens))), tokens[-1]),
        )

    assert drafted(guess) == (7, 8, 9)  # 9 of the source, 9 of the text, modulo 11
    twin = guess.fork_guess(None)
    wrote(guess, 1, 2)
    wrote(twin, 3)
    third = twin.fork_guess(None)
    wrote(third, 1)
    assert [drafted(g) for g in (guess, twin, third)] == [(10, 0, 1), (10, 0, 1), (0, 1, 2)]
    assert filler.asked[1:] == [((4, 5, 1, 2), 3), ((4, 5, 3), 3), ((4, 5, 3, 1), 3)]
    assert filler.sources == [(4, 5)], "the source is encoded once, for all who write from it"
    early = BlockFilledDrafter(SimpleNamespace(filler=filler, block=3)).open_guess((4, 5), None)
    wrote(early, 6)
    assert drafted(early.fork_guess(None)) == drafted(early) == (2, 3, 4)
    assert filler.sources[1:] == [(4, 5)], "a fork that looks first encodes the source, for both"
    assert drafted(guess, depth=2) == (10, 0) and drafted(guess, nodes=1) == (10,)
    assert filler.asked[-1] == ((4, 5, 1, 2), 3), "as many gaps as it was trained on"
    before = len(filler.asked)
    assert drafted(guess, depth=0) == drafted(guess, nodes=0) == () and len(filler.asked) == before


def test_a_source_stands_in_the_place_of_the_prompt_and_a_block_in_that_of_the_trained_one():
    filler = ByText(11)
    drafter = BlockFilledDrafter(SimpleNamespace(filler=filler, block=3), source=(1, 2), block=2)
    guess = drafter.open_guess((4, 5), None)
    draft = run_coroutines([guess.propose_draft(5, 2, DraftBudget(9, 9), Rng.of_choice(0))])[0]
    assert (draft.token, draft.parent) == ((5, 1, 2), (-1, 0, 1)) and filler.sources == [(1, 2)]
    sure = torch.tensor([3.0, *[0.0] * 10]).softmax(-1)[0].item()
    assert draft.chance == (1.0, pytest.approx(sure), pytest.approx(sure))
    for bad in (0, 65):
        with pytest.raises(PolydecError, match="block is"):
            replace(drafter, block=bad)
    assert guess.want == ScoreRequest(law=RowDetail.NOTHING)
    based = replace(drafter, base=True).open_guess((4, 5), None).want
    assert based == ScoreRequest(law=RowDetail.NOTHING, base=RowDetail.ROW)
    assert replace(drafter, block=64).block == 64 and replace(drafter, block=1).block == 1


class CutTexts:
    """Texts of twelve gaps each, of which a network is wrong in every second one."""

    count = 30
    gaps = 12

    def cut(self):
        right_BT = torch.arange(self.gaps).repeat(self.count, 1) % 5
        here_BT = torch.ones_like(right_BT).bool()
        return CutTextBatch(right_BT, here_BT, right_BT, here_BT, here_BT.clone())

    def logits(self, cut):
        place_N = torch.arange(int(cut.gap_BT.sum()))
        said_N = torch.where(place_N % 2 == 0, cut.right_N, (cut.right_N + 1) % 5)
        return torch.nn.functional.one_hot(said_N, 5).float()


def test_a_share_of_what_is_wrong_is_shown(monkeypatch):
    """Glancing: true tokens stand in the place of as many gaps as the share of the wrong ones says."""
    texts = CutTexts()
    monkeypatch.setattr(BlockDrafterObjective, "gap_logits", lambda self, cut: texts.logits(cut))
    lesson = BlockDrafterObjective(None, None, ())
    for share in (0.0, 0.5, 1.0):
        shown = lesson.show_hard_tokens(texts.cut(), share, np.random.default_rng(3))
        count_B = texts.gaps - shown.gap_BT.sum(-1)
        # Six of twelve are wrong; a fraction is rounded up or down by chance.
        assert float(count_B.float().mean()) == pytest.approx(6 * share, abs=0.2)
        assert shown.whole_BT.equal(texts.cut().whole_BT)


def test_a_step_glances_less_and_less(made, monkeypatch):
    spec, _ = made
    shares, learned = [], []
    real, predict = BlockDrafterObjective.show_hard_tokens, BlockDrafterObjective.gap_logits

    def noted(self, cut, share, rng):
        shares.append(share)
        return real(self, cut, share, rng)

    def noted_gaps(self, cut):
        learned.append(int(cut.gap_BT.sum()))
        return predict(self, cut)

    monkeypatch.setattr(BlockDrafterObjective, "show_hard_tokens", noted)
    monkeypatch.setattr(BlockDrafterObjective, "gap_logits", noted_gaps)
    course = block_drafter_training._course(replace(spec, glance=0.8))
    course.loss(0)
    course.loss(spec.steps)
    assert shares == pytest.approx([0.8, 0.8 * block_drafter_training.LAST])
    # A step predicts all gaps first, then those that are left.
    assert learned[0] > learned[1] and learned[2] > learned[3]
