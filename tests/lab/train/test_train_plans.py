"""What plans are learned from, and the losses of a model that writes plans and of what points at clauses."""

import itertools
import math

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.data import END
from polydec.lab.train.oracle_plans import (
    PlannedPair,
    better_plan,
    corrupt_plan,
    plan_of_pair,
    plan_overlap,
)
from polydec.lab.train.plan_extractor import TrainablePointer, plan_loss
from polydec.lab.train.plan_likelihood import marked_pairs, plan_likelihood_loss
from polydec.lab.train.rouge import lower_case_words, mean_rouge, rouge_f1
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.lab.train.tokens import byte_level_pieces, train_tokenizer
from polydec.models.learned.kinds.plan_extractor import clause_batch
from polydec.models.nets.plan_pointer import (
    FIRST,
    STOP,
    PointerSizes,
    clause_salience,
    read_clause_items,
)
from polydec.models.text.clauses import CLAUSE_MARKS, clause_spans, mark_clauses

SOURCE = "The mill sold nine boats. Rain fell all day, and the road was shut; a fox ran. Hello"


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer([SOURCE] * 4, 280, CLAUSE_MARKS)


def test_clauses_hold_every_token_and_end_with_marks_of_punctuation(tokenizer):
    pieces = byte_level_pieces(tokenizer)
    ids = tokenizer.encode(SOURCE + END, add_special_tokens=False).ids
    spans = clause_spans(ids, pieces, 254)
    assert [tokenizer.decode(ids[a:b]) for a, b in spans] == [
        "The mill sold nine boats.",
        " Rain fell all day,",
        " and the road was shut;",
        " a fox ran.",
        " Hello",
    ]
    # All but the end of the text, which is a mark; no more clauses than are asked for.
    assert [i for a, b in spans for i in range(a, b)] == list(range(len(ids) - 1))
    assert clause_spans(ids, pieces, 2) == spans[:2]
    assert clause_spans(range(19), None, 254) == ((0, 8), (8, 16), (16, 19))
    assert clause_spans((), pieces, 254) == ()


def test_a_comma_ends_a_clause_of_four_tokens_and_no_shorter_one():
    pieces = (b"a", b",", b" b", b".")
    assert clause_spans((0, 0, 1, 2, 3), pieces, 254) == ((0, 5),)
    assert clause_spans((0, 0, 0, 1, 2, 3), pieces, 254) == ((0, 4), (4, 6))


def test_marks_stand_around_the_clauses_that_are_chosen_in_the_order_of_the_text():
    spans = ((0, 2), (2, 3), (3, 5))
    assert mark_clauses(range(10, 16), spans, (2, 0), (1, 2)) == (
        1,
        10,
        11,
        2,
        12,
        1,
        13,
        14,
        2,
        15,
    )
    assert mark_clauses(range(10, 16), spans, (0, 1), (1, 2)) == (
        1,
        10,
        11,
        2,
        1,
        12,
        2,
        13,
        14,
        15,
    )
    assert mark_clauses(range(10, 16), spans, (), (1, 2)) == tuple(range(10, 16))


def test_rouge_counts_what_stands_in_both():
    a, b = lower_case_words("The cat, the cat!"), lower_case_words("the cat sat")
    assert rouge_f1(a, b, 1) == pytest.approx(2 * 2 / 7)
    assert rouge_f1(a, b, 2) == pytest.approx(2 * 1 / 5)
    assert mean_rouge(a, b) == pytest.approx((4 / 7 + 2 / 5) / 2) and mean_rouge([], b) == 0.0


CLAUSES = [x.split() for x in ("a b c", "c d e", "x y", "a b d e")]


def matches(meant):
    return [[mean_rouge(clause, one) for clause in CLAUSES] for one in meant]


def test_an_oracle_plan_is_the_better_of_two():
    # By clauses of the reference: 0 and 2. By what ROUGE gains: also these two.
    meant = [["x", "y"], ["a", "b", "c"]]
    assert set(better_plan(CLAUSES, meant, matches(meant))) == {0, 2}
    # One clause of the reference says what two of the source say: only growing finds both.
    meant = [["a", "b", "c", "x", "y"]]
    assert set(better_plan(CLAUSES, meant, matches(meant))) == {0, 2}
    # Growing begins with the long clause and cannot leave it again: the nearest ones are better.
    meant = [["a", "b", "c"], ["c", "d", "e"]]
    assert set(better_plan(CLAUSES, meant, matches(meant))) == {0, 1}
    assert better_plan(CLAUSES, [["q"]], matches([["q"]])) == ()
    assert plan_overlap((0, 1), (1, 2, 3)) == pytest.approx(0.4) and plan_overlap((), ()) == 1.0


def test_a_pair_knows_its_plan_and_the_salience_of_its_clauses(tokenizer):
    pieces = byte_level_pieces(tokenizer)
    sides = (SOURCE, "a fox ran. The mill sold nine boats.")
    ids = tuple(tuple(tokenizer.encode(x, add_special_tokens=False).ids) for x in sides)
    pair = plan_of_pair(ids, pieces, tokenizer.decode)
    assert set(pair.plan) == {0, 3} and pair.salience[0] == pair.salience[3] == 1.0
    assert pair.salience[4] == 0.0 and 0 < pair.salience[2] < 0.5


def test_a_wrong_plan_is_another_one_by_one_clause_or_by_all():
    rng = np.random.default_rng(0)
    drawn = {corrupt_plan((1, 3), 6, rng) for _ in range(200)}
    kept = {len(set(plan) & {1, 3}) for plan in drawn}
    assert kept == {0, 1} and all(len(set(plan)) == 2 for plan in drawn)
    assert corrupt_plan((0, 1), 2, rng) is None and corrupt_plan((), 4, rng) is None


PAIR = PlannedPair((5, 6, 7, 8), (9, 3), ((0, 2), (2, 4)), (1,), (0.0, 1.0))


def test_the_loss_of_marks_is_likelihood_twice_and_unlikelihood_of_wrong_ones():
    seen = []

    def score(rows):
        seen.append([tuple(source) for source, _ in rows])
        marked = 1.0 + len(rows[0][0]) * 0.1 + rows[0][0][0] * 0.01
        right_N = torch.tensor([x for _, target in rows for x in target])
        return F.one_hot(right_N, 12).float() * marked, right_N

    loss, count = plan_likelihood_loss(score, [PAIR], (1, 2), 0.0, np.random.default_rng(0))
    assert seen == [[(5, 6, 7, 8)], [(5, 6, 1, 7, 8, 2)], [(1, 5, 6, 2, 7, 8)]] and count == 6

    def chance(size):
        return math.exp(size) / (math.exp(size) + 11)

    told = [chance(s) for s in (1.45, 1.65, 1.61)]
    meant = -math.log(told[0]) - math.log(told[1]) - math.log(1 - told[2])
    assert float(loss) == pytest.approx(meant, rel=1e-5)
    # Labels are smoothed where a law is learned, not where a token is unlearned.
    soft, _ = plan_likelihood_loss(score, [PAIR], (1, 2), 0.3, np.random.default_rng(0))
    assert float(soft - loss) == pytest.approx(0.3 * 11 / 12 * (1.45 + 1.65), rel=1e-4)
    # Where no other plan is there, nothing is unlearned.
    whole = PlannedPair((5, 6), (9,), ((0, 2),), (0,), (1.0,))
    assert marked_pairs([whole], (1, 2), np.random.default_rng(0))[2] == []


SIZES = PointerSizes(20, 16, 1, 1, 1)
PAIRS = [
    PlannedPair(tuple(range(3, 15)), (9,), ((0, 4), (4, 8), (8, 12)), (2, 0), (0.5, 0.0, 1.0)),
    PlannedPair((4, 5, 6, 7), (9,), ((0, 2), (2, 4)), (1,), (0.0, 0.2)),
]


def test_what_points_learns_plans_and_salience_whatever_stands_beside_a_pair():
    network = TrainablePointer(SIZES, 0)
    nats, loss, count = plan_loss(network, PAIRS, (1, 2), 1.0)
    assert count == 5 and float(loss.detach()) > float(nats.detach())
    alone = [plan_loss(network, [p], (1, 2), 0.0) for p in PAIRS]
    mean = sum(float(x.detach()) * n for x, _, n in alone) / count
    assert float(nats.detach()) == pytest.approx(mean, rel=1e-4)
    # The rest is what the law of salience is away from ten times the true one, a mean over pairs.
    away = 0.0
    for p in PAIRS:
        read = clause_batch([(p.source, p.spans)], (1, 2))
        items, _ = read_clause_items(SIZES, network.named_weights, *read)
        said = clause_salience(network.named_weights, items)[0, FIRST:].log_softmax(-1)
        meant = (10 * torch.tensor(p.salience)).log_softmax(-1)
        away += float((meant.exp() * (meant - said)).sum().detach()) / len(PAIRS)
    assert float((loss - nats).detach()) == pytest.approx(away, rel=1e-4)
    # Salience is told by its own head, which plans do not teach.
    loss.backward()
    names = list(network.names)
    assert float(network.tensors[names.index("salience")].grad.abs().max()) > 0
    network.zero_grad()
    plan_loss(network, PAIRS, (1, 2), 0.0)[1].backward()
    assert float(network.tensors[names.index("salience")].grad.abs().max()) == 0.0


def test_a_clause_is_the_mean_of_its_tokens_and_its_marks():
    id_BT, there_BT, share_BNT = clause_batch([((7, 8, 9), ((0, 1), (1, 3))), ((7,), ())], (1, 2))
    assert id_BT.tolist() == [[1, 7, 2, 1, 8, 9, 2], [7, 0, 0, 0, 0, 0, 0]]
    assert there_BT.sum(1).tolist() == [7, 1]
    assert torch.equal(share_BNT[0], torch.tensor([[1 / 3] * 3 + [0] * 4, [0] * 3 + [1 / 4] * 4]))
    assert not share_BNT[1].any()


def test_a_pointer_learns_what_it_is_shown():
    network = TrainablePointer(SIZES, 1)
    made = torch.optim.Adam(network.parameters(), 0.02)
    for _ in range(40):
        made.zero_grad()
        plan_loss(network, PAIRS, (1, 2), 1.0)[1].backward()
        made.step()
    assert float(plan_loss(network, PAIRS, (1, 2), 0.0)[0].detach()) < 0.2
    assert STOP < FIRST


def test_sources_cannot_be_left_out_and_marked():
    with pytest.raises(RequestError, match=r"drop is 0.2 and plans is true"):
        Seq2SeqSpec("x", "y", plans=True, drop=0.2)
    assert list(itertools.islice(CLAUSE_MARKS, 2)) == ["<e>", "</e>"]
