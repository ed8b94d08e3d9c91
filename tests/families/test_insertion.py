"""Insertion: the law of the process on models that are known exactly, its limits, and what it keeps."""
import json
import math
from itertools import pairwise, product

import pytest
import torch

from polydec.core.decoder import answer_one, answers
from polydec.core.request import Request
from polydec.core.scheduler import Scheduler, run
from polydec.core.trace import Edited, from_json, replay, to_json
from polydec.core.types import Exactness
from polydec.families.insertion.inserting import Inserting
from polydec.families.insertion.stats import InsertStats
from polydec.families.insertion.types import Offer, Sheet
from polydec.shapers.greedy import Greedy
from polydec.testing.enumerate import distance, law_of
from polydec.testing.strict import StrictRng
from polydec.testing.toy_insertion import Last, Posterior, ToyInserter, left_open

SHORT = [text for n in range(4) for text in product(range(2), repeat=n)]
END = 2


def some_law(seed):
    g = torch.Generator().manual_seed(seed)
    return dict(zip(SHORT, torch.softmax(2 * torch.randn(len(SHORT), generator=g, dtype=torch.float64), 0).tolist()))


def posterior(seed, even=True):
    return ToyInserter(Posterior(some_law(seed), 2, even=even))


def last(seed, size=3, sharp=1.0):
    g = torch.Generator().manual_seed(seed)
    return ToyInserter(Last(torch.softmax(sharp * torch.randn(size + 1, size + 1, generator=g, dtype=torch.float64), -1)))


def law(model, request, **options):
    return law_of(lambda rng: answer_one(Inserting(model, draw=True, **options), request, rng))


def whole(p):
    return {(*text, END): w for text, w in p.items()}


@pytest.mark.parametrize("seed", range(2))
def test_the_law_of_a_perfect_model(seed):
    """Drawn slots and a drawn end give the law itself; trained without its weights, p / (L + 1)."""
    request, p = Request((0,), max_tokens=5), some_law(seed)
    assert Inserting(posterior(seed), draw=True).exactness is Exactness.LAW
    assert distance(law(posterior(seed), request), whole(p)) < 1e-12
    short = {text: w / (len(text) + 1) for text, w in p.items()}
    total = sum(short.values())
    assert distance(law(posterior(seed, even=False), request), whole({t: w / total for t, w in short.items()})) < 1e-12
    assert distance(law(posterior(seed, even=False), request), whole(p)) > 0.01      # so the weights matter


def test_two_tokens_of_a_pass_do_not_see_each_other():
    """A mutant's law is told from the right one: what two slots take at once is no draw from the joint law."""
    request, p = Request((0,), max_tokens=5), some_law(0)
    decoder = Inserting(posterior(0), draw=True, count=2)
    assert decoder.exactness is Exactness.APPROXIMATE and distance(law(posterior(0), request, count=2), whole(p)) > 0.01


def test_a_mutant_that_mixes_up_slots_is_found():
    class Mirrored(Posterior):
        def _offer(self, kept, slots):
            offer = super()._offer(kept, slots)
            return Offer(offer.logw_SV.flip(0), offer.whole)
    assert distance(law(ToyInserter(Mirrored(some_law(0), 2)), Request((0,), max_tokens=5)), whole(some_law(0))) > 0.01


@pytest.mark.parametrize("seed", range(2))
def test_with_the_last_slot_only_it_is_plain_decoding(seed):
    model, request = last(seed, 2), Request((1,), max_tokens=4)
    assert distance(law(model, request), model.network.law(1, 4)) < 1e-12
    greedy = Inserting(model, (Greedy(),), least=0.5, draw=False)
    got = run([answer_one(greedy, Request((1,), max_tokens=9, ignore_eos=True))])[0].token_ids
    want, at = [], 1
    for _ in range(9):
        at = int(model.network.step_VV[at, :-1].argmax())
        want.append(at)
    assert list(got) == want


def test_ends():
    """At the model's end, which counts as a token; at max_tokens; or at a stop id, once the answer is whole."""
    for seed in range(20):
        model, stop = last(seed, 4, 2.0), frozenset[int]({0} if seed % 5 == 4 else ())
        for ignore in (False, True):
            request = Request((1,), 1 + seed % 9, stop, ignore, seed)
            out = run([answer_one(Inserting(model, draw=True), request)])[0]
            ends = stop | (frozenset() if ignore else {4})
            assert not ends & {*out.token_ids[:-1]}
            stopped = out.token_ids[-1] in ends
            assert out.finish_reason == ("stop" if stopped else "length")
            assert stopped or len(out.token_ids) == request.max_tokens
            assert out.stats.inserted <= request.max_tokens and out.stats.passes <= request.max_tokens


@pytest.mark.parametrize("count", [1, 3])
def test_edits_replay_notes_are_laws_and_draws_have_names(count):
    for seed in range(5):
        events, decoder = [], Inserting(posterior(seed), draw=True, count=count)
        request = Request((0,), max_tokens=5, seed=seed, logprobs=2)
        out = run([answer_one(decoder, request, StrictRng.of(seed), events.append)])[0]
        read = [from_json(json.loads(json.dumps(to_json(e)))) for e in events]
        assert read == events
        assert tuple(replay((0,), [e.edit for e in read if isinstance(e, Edited)])) == out.token_ids
        assert run([answer_one(decoder, Request((0,), max_tokens=5, seed=seed))])[0].token_ids == out.token_ids
        assert tuple(n.token for n in out.logprobs) == out.token_ids
        assert all(n.model_logp <= 0 and math.isclose(n.logp, n.model_logp) for n in out.logprobs)


def test_given_tokens_stay_and_gaps_hold_their_most():
    """Frozen tokens are a subsequence in their places; no gap takes more than stands for it; an end behind them ends it."""
    class Open(Last):
        def forward(self, queries):
            offers = super().forward(queries)
            return [Offer(torch.zeros_like(o.logw_SV).index_fill(-1, torch.tensor([4]), float("-inf")), 0.1) for o in offers]
    decoder = Inserting(ToyInserter(Open(last(3, 4).network.step_VV)), draw=True)
    given = (None, None, 3, None, 2, 2, None, None, None, 4)
    lengths = set()
    for seed in range(30):
        out = run([answer_one(decoder, Request((1,), len(given), given=given, seed=seed))])[0].token_ids
        assert out[-1] == 4 and 4 not in out[:-1] and len(out) <= len(given)
        fits = [(a, b, c) for a in range(3) for b in range(2) for c in range(4) if a + b + c + 4 == len(out)
                and out[a] == 3 and out[a + 1 + b:a + 3 + b] == (2, 2)]
        assert fits
        lengths.add(len(out))
    assert len(lengths) > 2
    full = run([answer_one(decoder, Request((1,), 5, given=(None, 1, None, None, 0), ignore_eos=True))])[0].token_ids
    assert len(full) == 5 and full[1] == 1 and full[-1] == 0


def test_a_sheet_grows_where_its_gaps_are():
    sheet = Sheet.of((None, None, 7, None))
    assert (sheet.token, sheet.slots, sheet.room) == ((7,), (0, 1), (2, 1))
    sheet = sheet.put(0, 5).put(1, 6)
    assert (sheet.token, sheet.slots, sheet.room) == ((5, 6, 7), (3,), (0, 1))
    assert sheet.put(3, 8) == Sheet((5, 6, 7, 8), (0, 0, 0, 1, 1), (0, 0))
    assert not Sheet.of((1, 2)).slots and Sheet.of((None,) * 3).room == (3,)


def test_neighbours_and_choices():
    model = last(7, 6, 0.7)
    decoder = Inserting(model, draw=True, count=2)
    requests = [Request((i % 3,), 2 + 5 * (i % 4), seed=i // 2, choice=i % 2) for i in range(9)]
    alone = [run([answer_one(decoder, r)])[0].token_ids for r in requests]
    for order in (requests, requests[::-1]):
        together = dict(zip(map(requests.index, order), run([answer_one(decoder, r) for r in order]), strict=True))
        assert [together[i].token_ids for i in range(len(requests))] == alone
    left_open()
    request = Request((0,), 12, n=6, ignore_eos=True)
    several = run([answers(decoder, request)])[0]
    assert [r.choice for r in several] == list(range(6)) and len({r.token_ids for r in several}) > 4
    assert not left_open()
    scheduler = Scheduler()
    task = scheduler.submit(answers(decoder, request))
    scheduler.step()
    scheduler.cancel(task)
    assert not left_open()


def test_options_are_checked_and_statistics_add_up():
    for options in ({"count": 0}, {"least": 1.5}):
        with pytest.raises(ValueError, match=f"{next(iter(options))} is"):
            Inserting(last(0), **options)
    a, b = InsertStats(2, 0, 3, 10), InsertStats(1, 1, 1, 4)
    assert a.plus(b) == InsertStats(3, 1, 4, 14) and a.metrics() == {"inserted_per_pass": 1.5, "positions_per_pass": 5.0}
    assert InsertStats().metrics()["inserted_per_pass"] is None
    least = [len(run([answer_one(Inserting(last(1, 4, 0.5), (Greedy(),), least=x), Request((1,), 20))])[0].token_ids)
             for x in (0.0, 0.3, 1.0)]
    assert least[0] == 1 and all(x <= y for x, y in pairwise(least)) and least[-1] == 20
