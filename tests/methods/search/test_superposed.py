"""Superposed decoding against its card."""

import math
import random

import pytest
import torch

import micro
from polydec import api
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.search.loop.superposed import LEVELS, UNKNOWN, SuperposedSearch, SuperposedText
from polydec.models.learned import artefact
from polydec.models.learned.kinds import ngram_counts, ngrams

PROMPT = (0, 1, 0)


def found(decoder, length=10, n=1, prompt=PROMPT):
    return run_coroutines([run_decoder(decoder, Request(prompt, length, n=n))])[0]


def test_one_text_without_a_table_is_greedy_decoding():
    for seed in range(12):
        target = toy_law(seed, 6)
        greedy = build("plain", ShapedTarget(target, GreedyRule()))[0]
        assert (
            found(SuperposedSearch(target, 1, 0.06, 9, 0.0))[0].token_ids
            == found(greedy)[0].token_ids
        )


def test_on_a_network(tmp_path):
    torch.set_num_threads(1)
    lm = api.load(str(micro.write(tmp_path)), dtype="float32")
    texts = [
        api.generate(
            lm,
            "The grey fox",
            max_tokens=12,
            ignore_eos=True,
            sampling=lm.sampling_with(temperature=0.0),
            **kind,
        )
        for kind in ({}, {"method": "superposed-decoding", "options": {"width": 1, "alpha": 0.0}})
    ]
    assert texts[0].token_ids == texts[1].token_ids


@pytest.mark.parametrize("width", [1, 3, 6])
def test_passes_do_not_depend_on_how_many_texts_there_are(width):
    target = toy_law(3, 8, eos=-1)
    results = found(SuperposedSearch(target, width), 9, n=width)
    assert len({r.token_ids for r in results}) == width
    assert (
        results[0].stats.passes == 9
        and target.network.runs / target.network.layers == len(PROMPT) - 1 + 9
    )
    assert results[0].stats.scored == 9


class Table:
    def followers_of(self, tokens):
        return [(0.5, 1), (0.25, 2)] if tokens[-1] == 0 else []


def test_a_share_of_no_table_is_refused():
    """And without one that was asked for there is none."""
    with pytest.raises(ValueError, match=r"alpha is 0\.4, a share of an n-gram table, and there"):
        build("superposed-decoding", toy_law(3, 6), None, {"alpha": 0.4})
    made = [
        build("superposed-decoding", target, None, options, artefacts=tables)[0]
        for target in [toy_law(3, 6)]
        for tables in ((), ngrams.examples(target.vocab, 4, 4))
        for options in ({}, {"alpha": 0.0})
    ]
    assert [x.share for x in made[2:]] == [0.54, 0.0] and made[0].table is None is made[1].table


def test_scores_are_mixed_with_the_table():
    target = toy_law(1, 4)
    superposed, law = SuperposedSearch(target, 2, 1.0, 4, 0.4, Table()), {0: -1.0, 1: -2.0, 3: -0.5}
    empty = SuperposedText(_text(target), 0.0)
    chance = {0: UNKNOWN, 1: 0.5, 3: UNKNOWN}
    assert superposed._gains(empty, law, PROMPT) == {
        x: 0.6 * p + 0.4 * math.log(chance[x]) for x, p in law.items()
    }
    assert superposed._gains(empty, law, (0, 1)) == {
        x: 0.6 * p + 0.4 * math.log(UNKNOWN) for x, p in law.items()
    }
    assert SuperposedSearch(target, 2)._gains(empty, law, PROMPT) == law


def test_tables_of_two_to_six_tokens_add_up_as_published():
    """By counting each context in the text; what none of them knows is dropped."""
    from polydec.lab.train.ngrams import NGramSpec, count_ngrams
    from polydec.lab.train.selfplay import TrainingSample

    dice, target = random.Random(4), toy_law(1, 5)
    texts = [tuple(dice.choices(range(5), [5, 3, 2, 1, 1], k=4)) for _ in range(25)]
    texts = list(dict.fromkeys(texts))
    samples = [TrainingSample((0, 1), text) for text in texts]
    table = count_ngrams(
        samples, NGramSpec("", order=5, top=16, least=1, discount=0.0), target.vocab
    )
    whole = [(0, 1, *text) for text in texts]
    superposed, law = (
        SuperposedSearch(target, 2, 1.0, 5, 0.4, table, LEVELS),
        dict.fromkeys(range(5), -1.0),
    )
    dropped = 0
    for text in [*whole[:40], (4, 4, 4, 4, 4, 4)]:
        for n in range(2, 6):
            behind = text[:n]
            ratio = dict.fromkeys(range(5), 0.0)
            for size, weight in enumerate(LEVELS[:n], 1):
                context = behind[-size:]
                follows = [
                    {t[i] for i in range(2, 6) if i >= size and t[i - size : i] == context}
                    for t in whole
                ]
                total = sum(len(f) for f in follows)
                for x in range(5):
                    ratio[x] += weight * sum(x in f for f in follows) / total if total else 0.0
            got = superposed._gains(SuperposedText(_text(target), 0.0), law, behind)
            named = {x: r for x, r in ratio.items() if r > 0.0}
            if not named:
                assert got == dict.fromkeys(range(5), 0.6 * -1.0 - 200.0)
                continue
            dropped += len(named) < 5
            assert set(got) == set(named)
            for x, gain in got.items():
                assert gain == pytest.approx(0.6 * -1.0 + 0.4 * math.log(ratio[x]), abs=0.05)
    assert dropped
    with pytest.raises(
        ValueError, match=r"levels is \(0\.5,\), weights of an n-gram table, and there is"
    ):
        SuperposedSearch(target, levels=(0.5,))
    with pytest.raises(ValueError, match="is none that fits"):
        build("superposed-decoding", target, None, {"interpolated": True})


def test_a_text_of_which_nothing_is_known_survives_only_where_none_is():
    target, law = toy_law(1, 4), {0: -1.0, 3: -0.5}
    some = SuperposedSearch(target, 2, 1.0, 4, 0.5, Known(), (0.5, 0.25))
    text = SuperposedText(_text(target), 0.0)
    assert some._gains(text, law, (1,)) == {x: 0.5 * p - 200.0 for x, p in law.items()}
    assert some._gains(text, law, (0,)) == {3: 0.5 * -0.5 + 0.5 * math.log(0.5 * 0.5)}
    assert some._gains(text, law, (1, 0)) == {
        3: 0.5 * -0.5 + 0.5 * math.log(0.5 * 0.5 + 0.25 * 0.8)
    }


class Known:
    def followers_by_level(self, tokens):
        if tokens[-1] != 0:
            return []
        return [[(0.5, 3), (0.25, 2)], [(0.8, 3)]][: len(tokens)]


def test_equal_last_tokens_mix_to_that_token():
    target = toy_law(1, 4)
    session, text = target.open_session(PROMPT), _text(target)
    text.write_tokens((2,))
    mixture = SuperposedSearch(target, 2)._mixture(
        [SuperposedText(text, -1.0), SuperposedText(text.fork(), -3.0)], session
    )
    assert torch.allclose(mixture, session.embed_tokens((2,))[0].to(mixture))
    session.close()


def _text(target):
    from polydec.core.transcript import Transcript

    return Transcript(Request(PROMPT, 8), target.vocab.eos).open_hypothesis()


def test_what_it_refuses():
    with pytest.raises(ValueError, match="kept is 2: it must be at least width, which is 3"):
        SuperposedSearch(toy_law(1), 3, kept=2)
    with pytest.raises(ValueError, match="alpha is nan: it must lie in 0 to 1"):
        SuperposedSearch(toy_law(1), alpha=math.nan)


def superposed_texts(target, last_tokens, totals):
    texts = []
    for token, total in zip(last_tokens, totals, strict=True):
        text = _text(target)
        text.write_tokens((token,))
        texts.append(SuperposedText(text, total))
    return texts


def test_every_text_enters_by_its_weight():
    """Not the leader alone, and not all alike: by the softmax of their totals."""
    target = toy_law(1, 5)
    session = target.open_session(PROMPT)
    embedded_NH = session.embed_tokens((2, 3, 4)).double()
    live = superposed_texts(target, (2, 3, 4), (-1.0, -1.5, -3.0))
    weight_N = torch.tensor([1.0, math.exp(-0.5), math.exp(-2.0)], dtype=torch.float64)
    wanted_H = (weight_N / weight_N.sum()) @ embedded_NH
    got_H = SuperposedSearch(target, 3)._mixture(live, session).double()
    session.close()
    assert torch.allclose(got_H, wanted_H, atol=1e-5)
    for other_H in (embedded_NH[0], embedded_NH.mean(0)):
        assert not torch.allclose(wanted_H, other_H, atol=1e-3)


def test_what_the_model_reads_is_the_mixture(monkeypatch):
    target, mixed, read = toy_law(3, 8, eos=-1), [], []
    session_type = type(target.open_session(PROMPT))
    mixture, score = SuperposedSearch._mixture, session_type.score_draft

    def noted_mixture(self, live, session):
        mixed.append(mixture(self, live, session))
        return mixed[-1]

    def noted_score(self, draft, *more):
        read.append(draft.state)
        return score(self, draft, *more)

    monkeypatch.setattr(SuperposedSearch, "_mixture", noted_mixture)
    monkeypatch.setattr(session_type, "score_draft", noted_score)
    found(SuperposedSearch(target, 3), 5, n=3)
    assert len(mixed) == 4 and len(read) == 5
    for states, wanted in zip(read[1:], mixed, strict=True):
        assert torch.equal(states[-1], wanted)


@pytest.mark.parametrize("temperature", [0.06, 1.0])
def test_the_law_is_read_at_the_temperature(temperature):
    """Scores of a step are those of the cooled law of the tokens that are kept."""
    target = toy_law(1, 6, eos=-1)
    logp_V = torch.tensor([0.3, 0.25, 0.2, 0.15, 0.08, 0.02]).log()
    live = superposed_texts(target, (2, 3), (0.0, -0.4))
    going, over = SuperposedSearch(target, 3, temperature, 4)._step(live, logp_V, PROMPT)
    cooled_K = (logp_V[:4].double() / temperature).log_softmax(0).tolist()
    wanted = sorted((total + p for total in (0.0, -0.4) for p in cooled_K), reverse=True)[:3]
    assert [text.total for text in going] == pytest.approx(wanted) and not over


def counted_everywhere(texts, context, token):
    """How often a token stands behind a context, and how often the context has anything behind it."""
    size = len(context)
    behind = [t[i] for t in texts for i in range(size, len(t)) if t[i - size : i] == context]
    return behind.count(token), len(behind)


def test_counts_are_those_of_the_text(tmp_path):
    """Every continuation, every time that it stands there, and nothing taken off (count over count)."""
    from polydec.lab.train.ngrams import count_every_continuation
    from polydec.lab.train.selfplay import TrainingSample

    dice, target = random.Random(2), toy_law(1, 5)
    texts = [tuple(dice.choices(range(5), [9, 4, 2, 1, 1], k=30)) for _ in range(3)]
    table = count_every_continuation([TrainingSample((), t) for t in texts], 3, target.vocab)
    ngram_counts.save(tmp_path, table, {})
    kept = ngram_counts.load(tmp_path)
    for _ in range(60):
        behind = tuple(dice.choices(range(5), [9, 4, 2, 1, 1], k=4))
        levels = kept.followers_by_level(behind)
        for size in (1, 2, 3):
            context = behind[-size:]
            known = {
                x: n / of
                for x in range(5)
                for n, of in [counted_everywhere(texts, context, x)]
                if n
            }
            got = {x: share for share, x in levels[size - 1]} if size <= len(levels) else {}
            assert got == pytest.approx(known)
    # A token that stands behind a context in each of its places has all of the mass.
    assert max(share for share, _ in kept.followers_of((3, 4))) <= 1.0
    with pytest.raises(ValueError, match="is damaged: "):
        artefact = {"key": 0, "start": 1, "follower": 2, "count": 0}
        save_damaged_counts(tmp_path, artefact)
        ngram_counts.load(tmp_path)


def save_damaged_counts(path, values):
    """One context, whose only count is what is said."""
    types = {
        "key": torch.uint64,
        "start": torch.int64,
        "follower": torch.int32,
        "count": torch.int32,
    }
    artefact.save_artefact(
        path,
        ngram_counts.KIND,
        {name: torch.tensor([values[name]], dtype=kind) for name, kind in types.items()},
        {"order": 1, "contexts": 1, "pairs": 1, "vocab_size": 5, "tokenizer": ""},
    )


def test_the_command_keeps_every_count(tmp_path):
    from polydec.lab.train.ngrams import NGramSpec, train_ngrams

    (tmp_path / "own.txt").write_text("abab abab abab\n\nabc")
    model = micro.write(tmp_path / "model")
    spec = NGramSpec(
        str(tmp_path / "out"), str(model), corpus=str(tmp_path / "own.txt"), as_counted=True
    )
    told = train_ngrams(spec)
    table = ngram_counts.load(tmp_path / "out")
    assert (len(table.key_M), table.order) == (told["contexts"], 4)
    # Every token of the text that has one before it was counted once behind each known context.
    assert int(table.count_P.sum()) > told["tokens"] > 0
    (tmp_path / "own.txt").write_text("a\n\nb\n\na")
    with pytest.raises(ValueError, match="3 samples in which no token follows another"):
        train_ngrams(spec)


def test_only_a_discounted_table_has_a_largest_vocabulary(tmp_path, monkeypatch):
    from polydec.lab.train import ngrams as training

    # Tokens of a discounted table have two bytes; a vocabulary beyond these is stood for by a lower bound.
    monkeypatch.setattr(training, "LAST", 50)
    (tmp_path / "own.txt").write_text("abab abab abab\n\nabc")
    files = {"target": str(micro.write(tmp_path / "model")), "corpus": str(tmp_path / "own.txt")}
    with pytest.raises(ValueError, match="a table holds at most 50, unless as_counted"):
        training.train_ngrams(training.NGramSpec(str(tmp_path / "few"), **files))
    training.train_ngrams(training.NGramSpec(str(tmp_path / "all"), **files, as_counted=True))
    assert ngram_counts.load(tmp_path / "all").vocab.size > 50


def test_counts_whose_places_wrap_around_are_refused(tmp_path):
    """Differences of such starts are all positive in 64 bits, and yet the places lie outside of the table."""
    far = (1 << 63) - 1
    start = [0, far, -far, -1]
    artefact.save_artefact(
        tmp_path,
        ngram_counts.KIND,
        {
            "key": torch.arange(4).to(torch.uint64),
            "start": torch.tensor(start),
            "follower": torch.zeros(4, dtype=torch.int32),
            "count": torch.ones(4, dtype=torch.int32),
        },
        {"order": 1, "contexts": 4, "pairs": 4, "vocab_size": 5, "tokenizer": ""},
    )
    with pytest.raises(ValueError, match="contexts and counts do not go together"):
        ngram_counts.load(tmp_path)


def test_published_counts_reach_the_search():
    target = toy_law(1, 5)
    (table,) = ngram_counts.examples(target.vocab, 0, 0)
    decoder = build("superposed-decoding", target, None, {"published": True}, artefacts=[table])[0]
    assert decoder.table is table and decoder.levels == LEVELS and decoder.late
    with pytest.raises(ValueError, match=r"there is no ngram-counts: name one .*--as-counted"):
        build("superposed-decoding", target, None, {"published": True})


def test_late_ends_are_looked_for_among_twice_as_many_pairs():
    """A text of width 2 whose ends come third and fourth ends late alone, and the search goes on."""
    target = toy_law(1, 6, eos=5)
    logp_V = torch.tensor([0.3, 0.25, 0.02, 0.02, 0.01, 0.4]).log()
    live = superposed_texts(target, (2, 3), (0.0, -1.0))
    for late, ends in ((False, 1), (True, 2)):
        # The best pairs are 5, 0 and 1 of the first text, then 5 of the second.
        how = SuperposedSearch(target, 2, 1.0, 6, late=late)
        going, over = how._step(live, logp_V, PROMPT)
        assert len(going) == 2 and len(over) == ends
    sooner = 0
    for seed in range(12):
        toy = toy_law(seed, 5, sharp=0.5)
        late, usual = (
            found(SuperposedSearch(toy, 2, 1.0, 5, 0.0, late=late), 8)[0].stats.passes
            for late in (True, False)
        )
        assert late == 8 >= usual
        sooner += usual < 8
    assert sooner
