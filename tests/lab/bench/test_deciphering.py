"""Which symbol of a renamed text stands for which: the matching, the reader, and a model that can be read."""

import itertools
import json

import numpy as np
import pytest
import torch

import micro
from polydec.base.errors import RequestError
from polydec.cli.main import main
from polydec.lab.bench import deciphering
from polydec.lab.bench.deciphering import SymbolReader, decipher_text, learn_reader, rate_lengths
from polydec.lab.bench.matching import likeliest_matching
from polydec.laws.targets.renamed import TokenRenaming


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (3, 5), (4, 4), (5, 6)])
def test_a_matching_is_the_best_of_all(shape):
    rng = np.random.default_rng(sum(shape))
    for scale in (1.0, 100.0):
        score = rng.normal(size=shape) * scale
        got = likeliest_matching(score)
        best = max(
            sum(score[r, c] for r, c in enumerate(columns))
            for columns in itertools.permutations(range(shape[1]), shape[0])
        )
        assert len(set(got)) == shape[0]
        assert sum(score[r, c] for r, c in enumerate(got)) == pytest.approx(best)


def test_more_rows_than_columns_have_no_matching():
    with pytest.raises(RequestError, match="score has 3 rows and 2 columns"):
        likeliest_matching(np.zeros((3, 2)))


def test_a_reader_tells_symbols_of_their_states():
    r = torch.Generator().manual_seed(0)
    mean = torch.randn(4, 6, generator=r) * 2
    symbol = torch.randint(4, (800,), generator=r)
    state = mean[symbol] + torch.randn(800, 6, generator=r)
    reader = SymbolReader.learn_symbols(state, symbol + 10)
    assert reader.symbols == (10, 11, 12, 13)
    chance = reader.symbol_logprobs(mean)
    assert chance.exp().sum(-1) == pytest.approx([1.0] * 4)
    assert chance.argmax(-1).tolist() == [0, 1, 2, 3]


class ByUse:
    """States in place of a model's: what stood before a token, under whatever name, by how long ago its name was seen."""

    def __init__(self, monkeypatch):
        monkeypatch.setattr(deciphering, "states_of_layers", self.states)

    def states(self, network, token_T):
        # The begin mark, and then symbols whose use differs: how often each was seen so far.
        seen, out = {}, []
        for at, x in enumerate(token_T.tolist()):
            since = at - seen.get(x, -30)
            seen[x] = at
            out.append([float(since == gap) for gap in range(1, 8)])
        return torch.tensor(out)


def text_of_gaps(seed):
    """A text in which token 1 + i comes again after i + 2 places, whatever it is called."""
    rng = np.random.default_rng(seed)
    text = [0]
    for _ in range(60):
        gap = int(rng.integers(3))
        text += [1 + gap, *(int(x) for x in rng.integers(4, 8, size=gap + 1)), 1 + gap]
    return text


def renaming(number):
    order = np.random.default_rng(1000 + number).permutation(7)
    return TokenRenaming((0, *(1 + int(x) for x in order)))


def test_a_model_that_shows_use_is_read_better_than_counts(monkeypatch):
    ByUse(monkeypatch)
    texts = [text_of_gaps(seed) for seed in range(10)]
    reader = learn_reader(None, texts[:6], renaming)
    (row,) = rate_lengths(None, reader, texts[6:], (120,), lambda n: renaming(50 + n))
    assert row["right"] > row["by_counts"] + 0.1, row


def test_no_two_names_stand_for_one_symbol():
    """Both names are likeliest symbol 5; the one that is surer of it has it."""
    reader = SymbolReader((5, 6), torch.zeros(1, 2), torch.zeros(2), torch.tensor([0.5, 0.5]))
    chance = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.6, 0.4]]).log()
    assert deciphering.read_names(reader, [3, 8, 8], chance) == {3: 5, 8: 6}
    # Places of one name speak together.
    more = torch.cat([chance, chance[1:].repeat(9, 1)])
    likely = deciphering.read_names(reader, [3, 8, 8, *[8] * 18], more)
    assert likely == {3: 6, 8: 5}
    with pytest.raises(RequestError, match="a text has 3 different tokens"):
        deciphering.read_names(reader, [3, 8, 9], chance)


def test_names_and_not_tokens_are_shown_to_the_model(monkeypatch):
    fed = []

    def states(network, token_T):
        fed.append(token_T.tolist())
        return torch.randn(len(token_T), 3, generator=torch.Generator().manual_seed(len(fed)))

    monkeypatch.setattr(deciphering, "states_of_layers", states)
    text = text_of_gaps(0)[:40]
    reader = learn_reader(None, [text], renaming)
    done = decipher_text(None, reader, text, renaming(9))
    assert fed[0] == list(renaming(0).rename_tokens(text))
    assert fed[1] == list(renaming(9).rename_tokens(text))
    assert list(done.name_T) == fed[1][1:]
    assert 0 <= done.right <= 1 and len(done.read_T) == len(text) - 1


def test_the_command_deciphers_a_file(tmp_path, capsys, monkeypatch):
    def run_suite(*more):
        line = ["polydec", "bench", "--suite", "deciphering", "--model", model, *more]
        monkeypatch.setattr("sys.argv", line)
        with pytest.raises(SystemExit) as stop:
            main()
        return stop.value.code

    model = str(micro.write(tmp_path / "m", context=80))
    path = tmp_path / "texts.jsonl"
    rng = np.random.default_rng(0)
    words = ["the", "fox", "river", "grey", "and", "dog"]
    texts = [" ".join(rng.choice(words, 90)) for _ in range(10)]
    path.write_text("\n".join(json.dumps({"text": t}) for t in texts))
    assert run_suite("--from", str(path), "--each", "2", "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [r["tokens"] for r in rows] == [32, 64]
    assert all(0 <= r["right"] <= 1 for r in rows)
    assert run_suite() != 0
    assert "from is none" in capsys.readouterr().err
    path.write_text(json.dumps({"text": texts[0]}))
    assert run_suite("--from", str(path)) != 0
    assert "5 are needed" in capsys.readouterr().err
