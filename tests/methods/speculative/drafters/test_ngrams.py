"""N-gram tables: counted, kept, looked up; drafts of them, alone and blended with copies."""

import json
import math
import random
from collections import Counter, defaultdict

import numpy as np
import pytest
from typer.testing import CliRunner

from polydec import Engine, load
from polydec.cli.main import app
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, TokenVocabulary
from polydec.lab.testing.examples import example_ngrams
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.lab.train import ngrams as train
from polydec.lab.train.ngrams import NGramSpec, count_ngrams, measure_ngram_guesses
from polydec.lab.train.selfplay import TrainingSample
from polydec.methods.speculative.drafters.backoff import BackoffDrafter
from polydec.methods.speculative.drafters.copy_ngram_mixture import CopyNGramMixtureDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds import ngrams as tables
from polydec.models.learned.kinds.ngrams import LAST, NGrams, extend_context_key

VOCAB = TokenVocabulary(12, frozenset(), "letters")
EMPTY = NGrams(
    2, VOCAB, np.zeros(0, np.uint64), np.zeros((0, 2), np.uint16), np.zeros((0, 2), np.uint8)
)


def samples(n, seed=0, size=12):
    dice = random.Random(seed)
    out = []
    for _ in range(n):
        text = [dice.randrange(size)]
        while len(text) < 30:
            text.append((text[-1] * 3 + dice.choice((0, 0, 0, 1, 2))) % size)
        out.append(TrainingSample(tuple(text[:5]), tuple(text[5:])))
    return out


def counted(some, order, discount):
    """The same by the book: answers that hold each (context, next token), and interpolation from the bottom up."""
    seen = defaultdict(lambda: defaultdict(set))
    for i, s in enumerate({(s.prompt_ids, s.output_ids): s for s in some}.values()):
        text = [*s.prompt_ids[-order:], *s.output_ids]
        for j in range(len(text) - len(s.output_ids), len(text)):
            for n in range(min(order, j) + 1):
                seen[tuple(text[j - n : j])][text[j]].add(i)
    answers = {c: len(set().union(*kinds.values())) for c, kinds in seen.items()}

    def chance(context, x):
        counts = Counter({y: len(a) for y, a in seen[context].items()})
        total = sum(counts.values())
        if not context:
            return counts[x] / total
        return (
            max(counts[x] - discount, 0) + discount * len(counts) * chance(context[1:], x)
        ) / total

    return seen, answers, chance


@pytest.mark.parametrize("order, least, discount", [(1, 1, 0.75), (3, 2, 0.75), (4, 3, 0.4)])
def test_counts_equal_the_book(order, least, discount):
    some = samples(40)
    table = count_ngrams(
        [*some, *some[:7]],
        NGramSpec("x", order=order, top=3, least=least, discount=discount),
        VOCAB,
    )
    seen, answers, chance = counted(some, order, discount)
    known = [c for c in seen if c and answers[c] >= least]
    assert len(table.key_M) == len(known) and (np.diff(table.key_M.astype(object)) > 0).all()
    for context in known:
        best = sorted(
            ((chance(context, x), x) for x in seen[context]), key=lambda p: (-p[0], p[1])
        )[:3]
        got = table.followers_of(context)
        assert [p for p, _ in got] == pytest.approx([p for p, _ in best], abs=0.5 / 255 + 1e-9)
        assert {x for _, x in got} == {x for _, x in best} or math.isclose(
            best[-1][0], chance(context, got[-1][1])
        )


def test_the_longest_known_context_answers():
    one, two = extend_context_key(0, 3), extend_context_key(extend_context_key(0, 3), 5)
    keys = sorted([(one, 7, 100), (two, 9, 200)])
    table = NGrams(
        2,
        VOCAB,
        np.array([k for k, _, _ in keys], np.uint64),
        np.array([[x, LAST] for _, x, _ in keys]),
        np.array([[p, 0] for _, _, p in keys]),
    )
    assert table.followers_of((5, 3)) == [(200 / 255, 9)] == table.followers_of((1, 5, 3))
    assert table.followers_of((4, 3)) == [(100 / 255, 7)] == table.followers_of((3,))
    assert table.followers_of((3, 4)) == [] == table.followers_of(())


def test_judged_on_greedy_answers():
    some = samples(30)
    table = count_ngrams(some, NGramSpec("x", order=2), VOCAB)
    other = [TrainingSample(s.prompt_ids, s.output_ids, 0.7) for s in some]
    mine = measure_ngram_guesses(table, [*some[:5], *other])
    said = [
        (
            table.followers_of([*s.prompt_ids, *s.output_ids][:i])[:1],
            [*s.prompt_ids, *s.output_ids][i],
        )
        for s in some[:5]
        for i in range(5, 30)
    ]
    assert mine["tokens"] == 125
    assert mine["right"] == pytest.approx(
        sum(bool(b) and b[0][1] == x for b, x in said) / 125, abs=1e-4
    )
    assert measure_ngram_guesses(table, other) == {
        "tokens": 0,
        "right": 0.0,
        "sure": 0.0,
        "sure_and_right": 0.0,
    }


def test_saved_and_read(tmp_path):
    table = count_ngrams(samples(20), NGramSpec("x", order=3), VOCAB)
    tables.save(tmp_path, table, {"target": "somebody"})
    again = tables.load(str(tmp_path))
    assert again.order == 3 and again.vocab == table.vocab
    text = samples(1, 9)[0].output_ids
    assert [again.followers_of(text[:i]) for i in range(20)] == [
        table.followers_of(text[:i]) for i in range(20)
    ]
    assert json.loads((tmp_path / "config.json").read_text())["target"] == "somebody"


@pytest.mark.parametrize(
    "change, words",
    [
        (
            lambda d: (d / "ngrams.safetensors").unlink(),
            "no ngrams.safetensors beside a config.json there",
        ),
        (lambda d: (d / "ngrams.safetensors").write_bytes(b"{}"), "it is damaged: "),
        (lambda d: (d / "config.json").write_text("[]"), "it is damaged: "),
        (
            lambda d: (d / "config.json").write_text(
                '{"order": 9, "vocab_size": 12, "tokenizer": ""}'
            ),
            "order is 9",
        ),
        (
            lambda d: (d / "config.json").write_text(
                '{"order": 3, "vocab_size": 5, "tokenizer": ""}'
            ),
            "the vocabulary 5 tokens",
        ),
    ],
)
def test_damaged_tables_are_refused(tmp_path, change, words):
    tables.save(tmp_path, count_ngrams(samples(20), NGramSpec("x", order=3), VOCAB), {})
    change(tmp_path)
    with pytest.raises(ValueError, match=r"^ngrams is '") as e:
        tables.load(str(tmp_path))
    assert words in str(e.value)


@pytest.mark.parametrize(
    "field, value", [("order", 0), ("order", 9), ("top", 0), ("least", 0), ("discount", 1.5)]
)
def test_a_wrong_spec(field, value):
    with pytest.raises(ValueError, match=f"^{field} is {value}: it must lie in "):
        NGramSpec("x", **{field: value})


@pytest.mark.parametrize(
    "make",
    [
        lambda **k: BackoffDrafter(EMPTY, **k),
        lambda **k: CopyNGramMixtureDrafter(SuffixDrafter(), EMPTY, **k),
    ],
)
@pytest.mark.parametrize(
    "field, value", [("floor", 1.1), ("floor", -0.1), ("width", 0), ("width", 17)]
)
def test_wrong_options(make, field, value):
    with pytest.raises(ValueError, match=f"^{field} is {value}: it must lie in "):
        make(**{field: value})


def walk(drafter, text, depth=6, nodes=12):
    """Every proposal along a text."""
    session = toy_law(1, 12).open_session(text[:3])
    guess, out = drafter.open_guess(text[:3], session), []
    for i in range(3, len(text)):
        out.append(
            run_coroutines(
                [guess.propose_draft(text[i - 1], i, DraftBudget(depth, nodes), Rng.of_choice(i))]
            )[0]
        )
        guess.learn_round(Draft.chain_draft(text[i - 1]), None, Verdict((), text[i]))
    return out


def tree(draft):
    return [(draft.token, draft.parent, tuple(round(c, 9) for c in draft.chance or ()))]


def test_without_a_table_blended_is_the_suffix_automaton():
    text = [x for s in samples(3) for x in s.output_ids]
    for a, b in zip(
        walk(CopyNGramMixtureDrafter(SuffixDrafter(width=2), EMPTY, 0.1, 2), text),
        walk(SuffixDrafter(floor=0.1, width=2), text),
    ):
        assert sorted(zip(a.token, a.depth)) == sorted(
            zip(b.token, b.depth)
        ) and a.expected == pytest.approx(b.expected)


def test_where_nothing_comes_back_blended_is_the_table():
    table, text = (
        count_ngrams(samples(60), NGramSpec("x", order=3), VOCAB),
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    )
    for a, b in zip(
        walk(CopyNGramMixtureDrafter(SuffixDrafter(min_match=64), table, 0.1, 2), text),
        walk(BackoffDrafter(table, 0.1, 2), text),
    ):
        assert tree(a) == tree(b)


def test_the_blend_is_a_distribution():
    """Of the root's children: copies, and what the table says of the rest."""
    table, text = count_ngrams(samples(60), NGramSpec("x", order=1, top=12), VOCAB), [3, 1, 3, 2, 3]
    blend = walk(
        CopyNGramMixtureDrafter(SuffixDrafter(width=2), table, 0.0, 16), [*text, 0], 1, 16
    )[-1]
    alone = walk(SuffixDrafter(floor=0.0, width=2), [*text, 0], 1, 16)[-1]
    copies = dict(zip(alone.token[1:], alone.chance[1:]))
    said = {x: p for p, x in table.followers_of([3])}
    assert len(copies) == 2
    for x, p in zip(blend.token[1:], blend.chance[1:]):
        assert p == pytest.approx(
            copies.get(x, 0.0) + (1.0 - sum(copies.values())) * said.get(x, 0.0)
        )
    assert sum(blend.chance[1:]) <= 1.0 + 3 / 255


@pytest.mark.parametrize(
    "drafter",
    [
        BackoffDrafter(EMPTY),
        BackoffDrafter(example_ngrams(VOCAB), 1.0),
        CopyNGramMixtureDrafter(SuffixDrafter(), example_ngrams(VOCAB), 1.0),
    ],
)
def test_reduces_to_nothing(drafter):
    assert all(len(d) == 1 for d in walk(drafter, [0, 1, 2, 3, 4, 5, 6, 7]))


def test_the_registry_asks_for_the_table():
    with pytest.raises(ValueError, match="method ngram-draft needs an n-gram table: name one"):
        build("ngram-draft", toy_law(1))
    with pytest.raises(
        ValueError, match="the n-gram table has a vocabulary of 12 tokens, the target one of 3"
    ):
        build("ngram-draft", toy_law(1), artefacts=(example_ngrams(VOCAB),))
    decoder, _ = build(
        "auto", toy_law(1), artefacts=(example_ngrams(VOCAB),)
    )  # of another model: left out
    assert not hasattr(decoder.drafter.free, "table")
    decoder, _ = build(
        "auto", toy_law(1, 12), artefacts=(example_ngrams(TokenVocabulary(12, frozenset())),)
    )
    assert hasattr(decoder.drafter.free, "table")


def test_from_the_command_line(tmp_path, monkeypatch):
    """Written by the target, counted, judged, and used."""
    data = tmp_path / "data" / "svamp"
    data.mkdir(parents=True)
    rows = [
        {"Body": f"Ann has {i} apples and eats {i % 3}.", "Question": "How many are left?"}
        for i in range(40)
    ]
    (data / "part_a.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    out = tmp_path / "table"
    cli = CliRunner()
    done = cli.invoke(
        app,
        [
            "train",
            "ngrams",
            "--out",
            str(out),
            "--target",
            "zoo:tiny",
            "--data",
            str(tmp_path / "data"),
            "--each",
            "10",
            "--max-tokens",
            "24",
            "--order",
            "3",
        ],
    )
    assert done.exit_code == 0, done.output
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["samples"] == 10 and result["contexts"] > 10 and result["held_out"]["tokens"] >= 0
    ask = [
        "generate",
        "Ann has 7 apples",
        "--model",
        "zoo:tiny",
        "--method",
        "ngram-draft",
        "--json",
        "--max-tokens",
        "24",
        "--set",
        "cost_aware=false",
        "--ngrams",
    ]
    done = cli.invoke(app, [*ask, str(out)])
    assert done.exit_code == 0, done.output
    plain = cli.invoke(
        app, ["generate", "Ann has 7 apples", "--model", "zoo:tiny", "--json", "--max-tokens", "24"]
    )
    assert json.loads(done.stdout)["text"] == json.loads(plain.stdout)["text"]
    assert json.loads(done.stdout)["metrics"]["draft_acceptance_rate"] is not None
    assert train.measure_ngram_guesses(tables.load(str(out)), [])["tokens"] == 0


def test_a_text_of_ones_own_is_counted_by_paragraphs(tmp_path):
    lines = "one two three\nfour\n\n  \none two five\n\none two three\n"
    (tmp_path / "corpus.txt").write_text(lines)
    text = load("zoo:tiny", draft=None, ngrams=None).checkpoint.text
    read = [s.output_ids for s in train.read_paragraph_samples(tmp_path / "corpus.txt", text)]
    assert read == [
        text.encode(one, special=False)
        for one in ("one two three\nfour", "one two five", "one two three")
    ]
    how = ["train", "ngrams", "--target", "zoo:tiny", "--order", "3", "--least", "1", "--out"]
    corpus = ["--corpus", str(tmp_path / "corpus.txt")]
    done = CliRunner().invoke(app, [*how, str(tmp_path / "table"), *corpus])
    assert done.exit_code == 0, done.output
    got = tables.load(str(tmp_path / "table"))
    want = count_ngrams(
        [TrainingSample((), ids) for ids in read], NGramSpec("", order=3, least=1), got.vocab
    )
    assert np.array_equal(got.key_M, want.key_M)
    assert np.array_equal(got.follower_MK, want.follower_MK)

    engine = Engine(load("zoo:tiny", draft=None, ngrams=str(tmp_path / "table")))
    plain = engine.submit("one two", max_tokens=8)
    mine = engine.submit("one two", method="aded", options={"corpus": True}, max_tokens=8)
    plain, mine = engine.run([plain, mine])
    assert mine.token_ids == plain.token_ids


@pytest.mark.parametrize(
    "content, more, said",
    [
        (b"\n \n", [], "no text in it"),
        (b"\xff\xfe\xff", [], "it is no UTF-8"),
        (b"one", ["--data", "."], "corpus is given, and so is text or data"),
    ],
)
def test_a_corpus_that_cannot_be_counted(tmp_path, content, more, said):
    (tmp_path / "corpus.txt").write_bytes(content)
    how = ["train", "ngrams", "--target", "zoo:tiny", "--out", str(tmp_path / "table")]
    done = CliRunner().invoke(app, [*how, "--corpus", str(tmp_path / "corpus.txt"), *more])
    assert isinstance(done.exception, ValueError) and said in str(done.exception)
