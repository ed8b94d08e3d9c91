"""Plan-guided re-ranking: its plans against enumeration, what the model reads of each, what judges, and what it reduces to."""

import json
import math
import random
from dataclasses import replace
from itertools import permutations

import pytest
import torch

from polydec import Ask, Engine, load
from polydec.base.errors import FileError, RequestError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest, TokenVocabulary
from polydec.lab.testing import check_search
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords, toy_law
from polydec.lab.train.plan_extractor import train_plan_extractor
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.plan_extractor import PlanExtractorSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.laws.targets.marked_source import law_behind_form
from polydec.methods.search.loop import plan_guided
from polydec.methods.search.loop.diverse_beam import DiverseBeamSearch
from polydec.methods.search.loop.plan_guided import PlanBounds, PlanGuidedSearch
from polydec.methods.search.loop.ranking import LIKELIEST
from polydec.models.learned.kinds import plan_extractor
from polydec.models.nets.plan_pointer import DOCUMENT, FIRST, STOP, pointer_logits
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.models.sessions.lm import CausalLaw
from polydec.models.text.clauses import CLAUSE_MARKS

WORDS = ToyWords(("a", ".", " b", ""), frozenset({3}))
TARGET = CausalLaw(
    OrderTwoNetwork(3, 4, 1.2), TokenVocabulary(4, frozenset({3}), words=WORDS), chunk=2
)
EXTRACTOR = plan_extractor.examples(TARGET.vocab, 4, 4)[0]
SOURCE = (0, 1, 2, 0, 1, 2, 1, 2, 0, 0)
"""Four clauses: "a.", " ba.", " b." and " baa"."""


def items_of(source):
    spans = EXTRACTOR.clauses_of(source, TARGET.vocab)
    (items,) = EXTRACTOR.clause_reader.forward([(source, spans)])
    return items


def plan_steps(items, plan):
    """Of each index of a plan and its stop the logits among clauses that are left, and its item."""
    for i in range(len(plan) + 1):
        given = torch.tensor([plan[:i]], dtype=torch.long).view(1, i) + FIRST
        logits = pointer_logits(
            EXTRACTOR.sizes, EXTRACTOR.tensors, items, torch.ones(items.shape[:2]).bool(), given
        )[0, -1]
        assert logits[DOCUMENT] == -math.inf, "no plan points at the whole text"
        logits[[FIRST + x for x in plan[:i]]] = -math.inf
        yield logits, plan[i] + FIRST if i < len(plan) else STOP


def every_plan(items, shortest, longest, penalty):
    """All plans of the bounds with their scores, the best order of each set."""
    clauses = items.shape[1] - FIRST
    best = {}
    for size in range(shortest, longest + 1):
        for plan in permutations(range(clauses), size):
            total = 0.0
            for i, (logits, taken) in enumerate(plan_steps(items, plan)):
                if i < shortest:
                    logits[STOP] = -math.inf
                if i >= longest:
                    logits[FIRST:] = -math.inf
                total += float(logits.log_softmax(-1)[taken])
            score = total / (size + 1) ** penalty
            key = frozenset(plan)
            best[key] = max(best.get(key, -math.inf), score)
    return best


@pytest.mark.parametrize("bounds", [(1, 2, 1.0), (2, 3, 0.0), (1, 4, 2.0)])
def test_plans_are_the_likeliest_ones_by_enumeration(bounds):
    shortest, longest, penalty = bounds
    items = items_of(SOURCE)
    known = every_plan(items, shortest, longest, penalty)
    found = EXTRACTOR.likeliest_plans(items, 64, shortest, longest, penalty)
    # Sixty-four beams hold all beginnings: every set of clauses is found, once, in the best of its orders.
    assert {frozenset(p.clauses) for p in found} == set(known) and len(found) == len(known)
    for p in found:
        assert len(set(p.clauses)) == len(p.clauses)
        assert p.score == pytest.approx(known[frozenset(p.clauses)], abs=1e-4)
    assert [p.score for p in found] == sorted((p.score for p in found), reverse=True)
    assert len(EXTRACTOR.likeliest_plans(items, 2, shortest, longest, penalty)) <= 2


def test_a_text_of_few_clauses_has_plans_of_all():
    found = EXTRACTOR.likeliest_plans(items_of(SOURCE[:5]), 8, 3, 20, 1.0)
    assert [set(p.clauses) for p in found] == [{0, 1}]


def search(**changes):
    made = PlanGuidedSearch(TARGET, EXTRACTOR, bounds=PlanBounds(4, 1, 3), width=2)
    return replace(made, **changes)


def answers(decoder, n=1, prompt=SOURCE, tokens=6):
    return run_coroutines([run_decoder(decoder, Request(prompt, tokens, n=n))])[0]


def test_a_search_keeps_the_contract():
    def make(target):
        return build(
            "plan-guided", target, None, {"plans": 6, "width": 2, "shortest": 1}, artefacts=made
        )[0]

    made = tuple(x for v in range(3, 7) for x in plan_extractor.examples(toy_law(1, v).vocab, 4, 4))
    # The contract's prompt is one clause and has one plan, so its checks of several texts have no part here.
    counts = check_search.check_refusal(make, 6) + check_search.check_events(make, 2)
    assert counts.branched and counts.pruned and counts.scored and counts.refused
    check_search.check_sessions(make)
    check_search.check_neighbours(make, 2)


def test_without_plans_it_is_beam_search():
    beam = DiverseBeamSearch(TARGET, 2, 1, 0.0, LIKELIEST)
    (plain,), (mine,) = answers(beam), answers(search(bounds=PlanBounds(0)))
    assert mine.token_ids == plain.token_ids


def read_prompts(monkeypatch):
    """What the model reads for each plan."""
    usual = plan_guided.law_behind_form
    read = []

    def watched(target, prompt, instead, answer):
        read.append(tuple(instead))
        return usual(target, prompt, instead, answer)

    monkeypatch.setattr(plan_guided, "law_behind_form", watched)
    return read


def test_every_text_is_the_beam_search_of_its_own_marks(monkeypatch):
    """Against single runs: a plan's text is what beam search writes behind the marked source."""
    read = read_prompts(monkeypatch)
    got = answers(search(), n=4)
    plans = EXTRACTOR.likeliest_plans(items_of(SOURCE), 4, 1, 3, 1.0)
    spans = EXTRACTOR.clauses_of(SOURCE, TARGET.vocab)
    assert read == [
        plan_guided.mark_clauses(SOURCE, spans, p.clauses, EXTRACTOR.marks) for p in plans
    ]
    assert len(set(read)) == len(plans) > 1
    alone = {
        answers(DiverseBeamSearch(TARGET, 2, 1, 0.0, LIKELIEST), prompt=marked)[0].token_ids
        for marked in read
    }
    assert {r.token_ids for r in got} == alone


def mean_of(text, source=SOURCE):
    """Log-probability of a token of a text behind the source without marks."""

    async def ask():
        draft = Draft.chain_draft(source[-1], text[:-1])
        scores = await TARGET.open_session(source).score_draft(draft, ScoreRequest())
        return sum(scores.token_logprobs(i, (x,))[0] for i, x in enumerate(text)) / len(text)

    return run_coroutines([ask()])[0]


@pytest.mark.parametrize("source", [SOURCE, (*SOURCE[2:], *SOURCE[:3])])
def test_the_model_judges_texts_by_the_source_without_marks(source):
    """Of the first source the likeliest plan has the best text, of the second another one."""
    got = answers(search(), n=4, prompt=source)
    scores = [mean_of(r.token_ids, source) for r in got]
    assert [r.score for r in got] == pytest.approx(scores, abs=1e-5)
    assert scores == sorted(scores, reverse=True) and len(set(scores)) > 1
    # Without a power of its length a text has the sum of its tokens.
    best = answers(search(judge_penalty=0.0), prompt=source)[0]
    whole = mean_of(best.token_ids, source) * len(best.token_ids)
    assert best.score == pytest.approx(whole, abs=1e-5)


def test_at_weight_0_and_at_one_plan_the_likeliest_plan_speaks():
    first = answers(search(bounds=PlanBounds(1, 1, 3)))[0]
    plan = EXTRACTOR.likeliest_plans(items_of(SOURCE), 1, 1, 3, 1.0)[0]
    unjudged = answers(search(weight=0.0, bounds=PlanBounds(1, 1, 3)))[0]
    assert unjudged.token_ids == first.token_ids
    assert unjudged.score == pytest.approx(plan.score)
    several = answers(search(weight=0.0), n=2)
    plans = EXTRACTOR.likeliest_plans(items_of(SOURCE), 4, 1, 3, 1.0)
    assert several[0].score == pytest.approx(plans[0].score)


def test_a_reward_judges_in_the_place_of_the_model():
    asked = []

    def longest_word(text):
        asked.append(text)
        return -float(len(text))

    got = answers(search(reward=longest_word), n=4)
    assert got[0].score == max(-float(len(x)) for x in asked) and len(asked) > 1
    mixed = answers(search(reward=longest_word, weight=0.5), n=4)
    assert mixed[0].score != got[0].score


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda: PlanBounds(65), "plans is 65: it must lie in 0 to 64"),
        (lambda: PlanBounds(4, 3, 2), "longest is 2: it must lie in 3 to 254"),
        (lambda: search(weight=2.0), "weight is 2.0: it must lie in 0 to 1"),
        (lambda: answers(search(), n=5), "n is 5: a search of width 4 gives at most 4 texts"),
    ],
)
def test_what_cannot_be_is_one_sentence(change, says):
    with pytest.raises(RequestError, match=says):
        change()


def test_marks_that_leave_no_room_are_refused_before_the_model_reads():
    network = OrderTwoNetwork(3, 4, 1.2)
    network.context = 16
    short = CausalLaw(network, TARGET.vocab, chunk=2)
    # Ten tokens and two marks leave room for four.
    assert answers(search(target=short, bounds=PlanBounds(1, 1, 1)), tokens=4)
    with pytest.raises(RequestError, match="prompt has 12 tokens with the marks of a plan: "):
        answers(search(target=short, bounds=PlanBounds(1, 1, 1)), tokens=5)
    source = EncoderDecoderModel(None, network, TARGET.vocab, (0,)).law_given_source(SOURCE)
    with pytest.raises(RequestError, match="source has 17 tokens with the marks of a plan: "):
        law_behind_form(source, (0,), (*SOURCE, *SOURCE[:7]), 4)


NAMES = ("fox", "mill", "road", "boat", "king", "bell")


def reports(path, count):
    """Reports of four clauses, and what two of them say."""
    draw = random.Random(0)
    rows = []
    for _ in range(count):
        names = draw.sample(NAMES, 4)
        clauses = [f"The {x} had {draw.randint(2, 9)} days." for x in names]
        said = [c for c in clauses if int(c.split()[3]) > 5][:2] or clauses[:1]
        rows.append({"source": " ".join(clauses), "target": " ".join(said)})
    path.write_text("\n".join(map(json.dumps, rows)))
    return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model that reads marks, and what plans for it, a few steps long."""
    root = tmp_path_factory.mktemp("plans")
    rows = reports(root / "pairs.jsonl", 60)
    data = str(root / "pairs.jsonl")
    train_seq2seq(
        Seq2SeqSpec(
            str(root / "model"), data, steps=6, tokens=512, encoder=1, decoder=1, width=32,
            vocab=300, plans=True,
        )
    )  # fmt: skip
    told = train_plan_extractor(
        PlanExtractorSpec(
            str(root / "plans"), str(root / "model"), data, steps=6, rows=4, width=16, reading=1,
            items=1, pointing=1,
        )
    )  # fmt: skip
    return root, told, rows


def test_what_was_trained_writes_by_its_plans(trained):
    root, told, rows = trained
    assert 0 <= told["held_out_overlap"] <= 1 and told["held_out_nats"] > 0
    lm = load(str(root / "model"), trained=[str(root / "plans")], threads=1)
    engine = Engine(lm)

    def written(method, **options):
        asked = engine.submit(rows[0]["source"], method=method, options=options, max_tokens=8, n=1)
        return engine.run([asked])[0]

    beam, none = written("beam", width=2), written("plan-guided", plans=0, width=2)
    assert none.token_ids == beam.token_ids
    guided = written("plan-guided", plans=4, width=2, shortest=1)
    assert guided.token_ids and guided.metrics["texts_judged"] == 4
    again = written("plan-guided", plans=4, width=2, shortest=1)
    assert again.token_ids == guided.token_ids


def test_marks_that_a_user_typed_are_text(trained):
    lm = load(str(trained[0] / "model"), threads=1)
    text = lm.checkpoint.text
    marks = {text.tokenizer.token_to_id(mark) for mark in CLAUSE_MARKS}
    assert set(text.encode("<e>The fox</e>")) > marks
    for fields in ({}, {"sanitize_control_tokens": True}):
        ids = lm.encoder.encode_source(Ask("<e> The fox had 2</e> days.", **fields))
        assert not marks & set(ids) and text.decode(ids) == "<e> The fox had 2</e> days."
    # Other text is read as it was, and ids may hold marks.
    assert lm.encoder.encode_source(Ask("The fox had")) == text.encode("The fox had")
    assert lm.encoder.encode_source(Ask(sorted(marks))) == tuple(sorted(marks))


def test_a_model_without_marks_has_no_planner(trained, tmp_path):
    root, _, _ = trained
    with pytest.raises(RequestError, match="tokenizer has no token <e>"):
        train_plan_extractor(
            PlanExtractorSpec(str(tmp_path / "x"), "zoo:tiny", str(root / "pairs.jsonl"), steps=1)
        )


@pytest.mark.parametrize(
    "change, says",
    [
        ({"width": 24}, "width"),
        ({"reading": 0}, "reading"),
        ({"opens": 4}, "opens and closes must lie below vocab_size"),
        ({"pointing": 3}, "pointing.1"),
    ],
)
def test_a_damaged_planner_is_refused(tmp_path, change, says):
    plan_extractor.save(tmp_path, EXTRACTOR, {})
    assert plan_extractor.load(tmp_path).marks == (0, 1)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
    with pytest.raises(FileError, match=says):
        plan_extractor.load(tmp_path)
