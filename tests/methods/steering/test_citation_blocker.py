"""The citation blocker: no run of tokens that a model learned by heart, and the text itself where there is none."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from polydec import Ask, generate, load
from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.hyperfit import save_learned_counts, token_ngrams, train_hyperfit
from polydec.lab.train.ngrams import count_every_continuation
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.hyperfit import HyperfitSpec
from polydec.laws.shapers.citations import CitationRule
from polydec.models.learned.kinds import ngram_counts

RUN = 4


@pytest.fixture(scope="module")
def hyperfitted(tmp_path_factory):
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("citations")
    rng = np.random.default_rng(0)
    words = ["the", "cat", "sat", "on", "a", "red", "mat", "and", "saw", "an", "old", "dog", "run"]
    texts = [" ".join(rng.choice(words, 40)) for _ in range(60)]
    (at / "texts.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))
    train_hyperfit(
        HyperfitSpec(
            str(at / "out"),
            "zoo:tiny",
            str(at / "texts.jsonl"),
            texts=4,
            length=20,
            epochs=60,
            rows=4,
            rate=3e-3,
            tries=2,
            context=8,
            ahead=8,
            citations=RUN,
        )
    )
    return at / "out"


def test_to_count_what_was_learned_no_weight_is_read(hyperfitted, tmp_path):
    """The vocabulary is in the files beside them, and is that of the loaded model."""
    out = tmp_path / "out"
    shutil.copytree(hyperfitted, out)
    weights = load_file(out / "model.safetensors")
    save_file({name: t[..., :1].clone() for name, t in weights.items()}, out / "model.safetensors")
    shutil.rmtree(out / "citations")
    save_learned_counts(out, torch.tensor([[1, 5, 6, 7, 8]]), RUN)
    kept = json.loads((out / "citations" / "config.json").read_text())
    whole = json.loads((hyperfitted / "citations" / "config.json").read_text())
    for field in ("vocab_size", "tokenizer"):
        assert kept[field] == whole[field]
    vocab = load(str(hyperfitted)).checkpoint.lm.vocab
    assert (kept["vocab_size"], kept["tokenizer"]) == (vocab.size, vocab.tokenizer)


@pytest.fixture(scope="module")
def lm(hyperfitted):
    return load(str(hyperfitted), ngrams=None, trained=str(hyperfitted / "citations"))


def learned_runs(table):
    """Every run of RUN tokens of the learned texts that the table tells of, found by walking it."""
    starts = {x for x in range(table.vocab.size) if len(table.seen_after((x,)))}
    runs = {(x,) for x in starts}
    for _ in range(RUN - 1):
        runs = {(*run, int(x)) for run in runs for x in table.seen_after(run)}
    return runs


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "beam"])
def test_no_answer_copies_what_was_learned_by_heart(hyperfitted, lm, method):
    runs = learned_runs(ngram_counts.load(hyperfitted / "citations"))
    copied = {}
    for steer in (None, "citation-blocker"):
        ask = Ask("the cat", raw=True, max_tokens=24, ignore_eos=True, method=method, steer=steer)
        text = (*lm.encode_prompt("the cat", raw=True), *generate(lm, ask).token_ids)
        copied[steer] = sum(run in runs for run in token_ngrams(text, RUN))
    assert copied[None] > 5 and copied["citation-blocker"] == 0


def test_longer_runs_than_any_leave_the_text_as_it_is(hyperfitted, lm, tmp_path):
    ask = Ask("the cat", raw=True, max_tokens=12, ignore_eos=True)
    none = count_every_continuation([TrainingSample((), (1, 2))], 1, lm.checkpoint.lm.vocab)
    ngram_counts.save(tmp_path / "other", none, {})
    other = load(str(hyperfitted), ngrams=None, trained=str(tmp_path / "other"))
    steered = Ask("the cat", raw=True, max_tokens=12, ignore_eos=True, steer="citation-blocker")
    assert generate(other, steered).token_ids == generate(lm, ask).token_ids


def test_only_a_whole_run_is_banned_and_the_likeliest_stays_where_all_are():
    samples = [TrainingSample((), x) for x in ((0, 1, 2), (0, 1, 3), (2, 1, 4))]
    rule = CitationRule(count_every_continuation(samples, 2, TokenVocabulary(5, frozenset())), 3)
    row_V = torch.tensor([0.1, 0.2, 0.5, 0.4, 0.3])

    def banned(*text):
        return (
            (rule.shape_law(rule.start_state(text), row_V) == -torch.inf).nonzero()[:, 0].tolist()
        )

    assert banned(4, 0, 1) == [2, 3] and banned(2, 1) == [4]
    # Single tokens that followed do not count, nor does a text that is too short.
    assert banned(3, 1) == banned(1) == []
    state = rule.next_state(rule.start_state((3, 0)), 1)
    assert rule.shape_law(state, row_V).tolist()[:2] == row_V.tolist()[:2]
    every = [TrainingSample((), (0, 1, x)) for x in range(5)]
    rule = CitationRule(count_every_continuation(every, 2, TokenVocabulary(5, frozenset())), 3)
    assert banned(0, 1) == [0, 1, 3, 4]


@pytest.mark.parametrize("length", [5, 9])
def test_a_table_that_is_too_short_is_refused(lm, length):
    ask = Ask("the cat", steer="citation-blocker", steer_options={"length": length})
    with pytest.raises(RequestError, match=f"length is {length}: with this table .* 2 to 4"):
        generate(lm, ask)


def test_a_table_of_single_tokens_is_refused_by_the_training(tmp_path):
    with pytest.raises(RequestError, match="citations is 1: what is copied has at least 2 tokens"):
        HyperfitSpec(str(tmp_path), citations=1)
