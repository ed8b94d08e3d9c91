"""Conditional beam search against enumeration: its aim, what it reduces to, and what a head says and is taught."""

import json
import math

import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.enumerate import target_law
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.train.probe import train_probe
from polydec.lab.train.probes.outcome import label_beginnings
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.probe.outcome import OutcomeSpec
from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
from polydec.methods.search.loop.ranking import LengthRanking
from polydec.models.learned.artefacts import load_artefact
from polydec.models.learned.kinds import outcome_head
from polydec.models.learned.kinds.outcome_head import OutcomeHead, WantedOutcome
from polydec.models.sessions.checkpoint import load_bundle

PROMPT = (0, 1, 0)
SUM = LengthRanking(0.0)


class KnownCondition:
    """The exact chance of a condition, by the law of all texts: it finds a text's beginning by its state's place in a tree."""

    def __init__(self, target, length, is_met):
        self.law = target_law(target, PROMPT, length)
        self.met = is_met
        self.begun = {}
        for text, p in self.law.items():
            for n in range(len(text) + 1):
                all_of, good = self.begun.get(text[:n], (0.0, 0.0))
                self.begun[text[:n]] = all_of + p, good + p * is_met(text)

    def chance(self, text):
        all_of, good = self.begun[text]
        return math.log(good / all_of) if good else -math.inf

    def is_met(self, text, tokens):
        return self.met(tuple(ord(c) - 0x61 for c in text) + (2,) * (len(text) < tokens))


class ByBeam(DiverseBeamSearch):
    """The search, with a condition that is told the beginning and not its state."""

    def _continuations(self, group, scores, chosen):
        out = []
        for beam in group.live:
            self.condition.here = tuple(beam.text.tokens)
            one = type(group)((beam,), group.ended)
            out += super()._continuations(one, scores, chosen)
        return sorted(out, key=lambda o: -(o[0] + o[1]))


class Told(KnownCondition):
    here = ()

    def log_chances(self, hidden_H, tokens):
        return [self.chance((*self.here, x)) for x in tokens]


class Always:
    def log_chances(self, hidden_H, tokens):
        return [0.0] * len(tokens)

    def is_met(self, text, tokens):
        return True


def found(decoder, length, n=1):
    results = run_coroutines([run_decoder(decoder, Request(PROMPT, length, n=n, logprobs=0))])[0]
    return [(tuple(r.token_ids), r.score) for r in results]


CONDITIONS = {
    "three tokens or more": lambda text: len(text) >= 3,
    "an a": lambda text: 0 in text,
    "two tokens": lambda text: len(text) == 2,
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_wide_search_gives_the_likeliest_texts_of_the_condition(name):
    for seed in range(6):
        target = toy_law(seed, 3)
        condition = Told(target, 4, CONDITIONS[name])
        want = sorted(
            ((math.log(p), x) for x, p in condition.law.items() if CONDITIONS[name](x)),
            reverse=True,
        )
        got = found(ByBeam(target, 64, 1, 0.0, SUM, condition), 4, min(4, len(want)))
        for (x, score), (best, y) in zip(got, want):
            assert x == y and abs(score - best) < 1e-9


def narrow_reference(target, condition, width, length):
    """A beam of this width, written out: ranked by the text's own log-probability and the newest chance of the condition."""
    live, ended = [((), 0.0)], []
    while live:
        options = []
        for text, total in live:
            session = target.open_session((*PROMPT, *text))
            draft = Draft.chain_draft((*PROMPT, *text)[-1])
            row = run_coroutines([session.score_draft(draft, ScoreRequest())])[0].logprob_row(0)
            for x, p in enumerate(row.tolist()):
                after = (*text, x)
                options.append((total + p + condition.chance(after), total + p, after))
        live = []
        for rank, (_, total, text) in enumerate(sorted(options, reverse=True)):
            if len(live) == width:
                break
            if text[-1] == 2 or len(text) == length:
                if rank < width and condition.met(text):
                    ended.append((total, text))
            else:
                live.append((text, total))
        ended = sorted(ended, reverse=True)[:width]
        if len(ended) == width and live and max(t for _, t in live) <= ended[-1][0]:
            break
    return [text for _, text in ended]


def test_the_newest_chance_counts_and_no_sum_over_steps():
    told_apart = 0
    for seed in range(30):
        target = toy_law(seed, 3, sharp=2.0)
        condition = Told(target, 5, CONDITIONS["three tokens or more"])
        want = narrow_reference(target, condition, 2, 5)
        got = found(ByBeam(target, 2, 1, 0.0, SUM, condition), 5, len(want))
        assert [x for x, _ in got] == want
        plain = found(DiverseBeamSearch(target, 2, 1, 0.0, SUM), 5)[0][0]
        told_apart += plain != want[0]
    assert told_apart > 3


def test_one_beam_takes_the_token_of_the_best_sum_each_time():
    chance = (-3.0, -0.1, -1.0, -2.0)

    class ByToken(Always):
        def log_chances(self, hidden_H, tokens):
            return [chance[x] for x in tokens]

    parted = 0
    for seed in range(6):
        target = toy_law(seed, 4, eos=-1)
        (text, _), want, plain = (
            found(DiverseBeamSearch(target, 1, 1, 0.0, SUM, ByToken()), 4)[0],
            [],
            [],
        )
        for _ in range(4):
            session = target.open_session((*PROMPT, *want))
            draft = Draft.chain_draft((*PROMPT, *want)[-1])
            row = run_coroutines([session.score_draft(draft, ScoreRequest())])[0].logprob_row(0)
            plain.append(int(row.argmax()))
            want.append(int((row + torch.tensor(chance)).argmax()))
        assert list(text) == want
        parted += plain != want
    assert parted


def test_what_always_holds_is_beam_search():
    for seed in range(8):
        target = toy_law(seed, 5)
        plain = found(DiverseBeamSearch(target, 3, 1, 0.0, SUM), 7, 3)
        assert found(DiverseBeamSearch(target, 3, 1, 0.0, SUM, Always()), 7, 3) == plain


def test_only_the_likeliest_candidates_are_asked_for():
    asked = []

    class Listening(Always):
        def log_chances(self, hidden_H, tokens):
            asked.append(len(tokens))
            return super().log_chances(hidden_H, tokens)

    for candidates, most in ((1, 2), (5, 5), (50, 8)):
        asked.clear()
        found(DiverseBeamSearch(toy_law(1, 8), 1, 1, 0.0, SUM, Listening(), candidates), 4)
        assert set(asked) == {most}, candidates


def test_a_condition_that_no_text_meets_is_said():
    class Never(Always):
        def is_met(self, text, tokens):
            return False

    with pytest.raises(RequestError, match="none of the texts that 2 beams found meets it"):
        found(DiverseBeamSearch(toy_law(1, 3), 2, 1, 0.0, SUM, Never()), 3)


def head_for(target, width=4):
    return outcome_head.examples(target.vocab, width, width)[0]


def test_a_head_reads_the_state_and_the_token():
    target = toy_law(0, 5)
    head = head_for(target)
    state = torch.tensor([1.0, -2.0, 0.5, 3.0])
    x = state / state.square().mean().add(1e-6).sqrt()
    for token, chance in zip((0, 3, 4), head.log_chances(state, (0, 3, 4))):
        inner = head.inner[0] @ x + head.inner[1] + head.token_VI[token]
        logit = head.out[0] @ torch.nn.functional.silu(inner) + head.out[1]
        assert abs(float(logit.sigmoid().log()) - chance) < 1e-5


@pytest.mark.parametrize(
    ("wanted", "text", "tokens", "met"),
    [
        (WantedOutcome("cat"), "a cat", 1, True),
        (WantedOutcome("cat"), "a dog", 1, False),
        (WantedOutcome(least=3), "", 2, False),
        (WantedOutcome(least=3), "", 3, True),
        (WantedOutcome(most=3), "", 4, False),
        (WantedOutcome("a", 2, 3), "ba", 3, True),
    ],
)
def test_what_is_wanted(wanted, text, tokens, met):
    assert wanted.is_met(text, tokens) is met


def test_every_beginning_has_the_label_of_its_text():
    point = load_bundle("zoo:tiny-draft", dtype="float32")
    prompt = tuple(point.text.encode("The old house"))
    texts = [tuple(point.text.encode(t))[-4:] for t in (" was a very nice", " is on top of")]
    samples = [TrainingSample(prompt, ids) for ids in texts]
    wanted = WantedOutcome(holds=point.text.decode(texts[0]).strip())
    lessons = label_beginnings(point, samples, wanted)
    assert lessons.token_N.tolist() == [*texts[0], *texts[1]]
    assert lessons.label_N.tolist() == [1.0] * len(texts[0]) + [0.0] * len(texts[1])
    # The state before the first token is the prompt's own.
    assert torch.allclose(lessons.input_NX[0], lessons.input_NX[len(texts[0])], atol=1e-4)
    assert not torch.allclose(lessons.input_NX[1], lessons.input_NX[len(texts[0]) + 1], atol=1e-2)


def test_behind_a_prompt_of_one_token_the_second_is_learned_first():
    point = load_bundle("zoo:tiny-draft", dtype="float32")
    samples = [TrainingSample((7,), (8, 9, 10)), TrainingSample((5, 7), (8, 9, 10))]
    lessons = label_beginnings(point, samples, WantedOutcome(least=1))
    assert lessons.token_N.tolist() == [9, 10, 8, 9, 10]
    assert lessons.label_N.tolist() == [1.0] * 5


def test_the_command_line_gives_texts_of_the_condition(tmp_path):
    """A head of zoo:tiny-draft's own texts, trained and loaded; its answers meet what was wanted, beam search's need not."""
    point = load_bundle("zoo:tiny-draft", dtype="float32")
    ids = point.text.encode("Once upon a time")
    with (tmp_path / "text.jsonl").open("w") as f:
        for i in range(24):
            text = point.text.encode(" there was a small house" if i % 3 else " it was")
            f.write(json.dumps({"prompt_ids": list(ids), "output_ids": list(text)}) + "\n")
    (tmp_path / "held.jsonl").write_text((tmp_path / "text.jsonl").read_text())
    spec = OutcomeSpec(
        str(tmp_path), "zoo:tiny-draft", text=str(tmp_path / "text.jsonl"), least=5, steps=150
    )
    result = train_probe(spec)
    assert result["met"] > 0 and result["held_out_auc"] > 0.9
    head = load_artefact(str(tmp_path))
    assert isinstance(head, OutcomeHead) and head.wanted == WantedOutcome(least=5)
    lm = load("zoo:tiny-draft", trained=[str(tmp_path)], dtype="float32")
    answer = generate(lm, list(ids), method="conditional-beam", options={"width": 2}, max_tokens=12)
    assert len(answer.token_ids) >= 5


@pytest.mark.parametrize("change", [{"holds": "no such words at all"}, {"least": 1}])
def test_texts_that_are_all_alike_teach_nothing(tmp_path, change):
    row = json.dumps({"prompt_ids": [1, 2, 3], "output_ids": [4, 5, 6]}) + "\n"
    for name in ("text.jsonl", "held.jsonl"):
        (tmp_path / name).write_text(row * 9)
    with pytest.raises(RequestError, match="nothing to tell apart"):
        train_probe(
            OutcomeSpec(
                str(tmp_path), "zoo:tiny-draft", text=str(tmp_path / "text.jsonl"), **change
            )
        )


def test_a_wish_is_needed(tmp_path):
    with pytest.raises(RequestError, match="say what is wanted"):
        OutcomeSpec(str(tmp_path))


def test_the_recipe_takes_its_head_and_options():
    target = toy_law(0, 5)
    options = {"width": 3, "candidates": 7}
    head = head_for(target)
    decoder, _ = build("conditional-beam", target, None, options, artefacts=[head])
    assert (decoder.width, decoder.candidates, decoder.ranking) == (3, 7, SUM)
    assert decoder.condition is head
