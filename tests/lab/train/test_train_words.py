"""Models over bytes and words: laws, what their units are, and the engine on them."""

import json
import math
import random
from itertools import product
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.nn import functional as F

from polydec import api
from polydec.base.errors import FileError, PolydecError, RequestError
from polydec.core.types import ScoreRequest, TokenVocabulary
from polydec.lab.testing.check_target import check_target
from polydec.lab.train.data import END, SPECIAL
from polydec.lab.train.evaluate import bits_per_byte
from polydec.lab.train.specs.words import UNITS, WordsSpec
from polydec.lab.train.tokens import train_tokenizer
from polydec.lab.train.word_kinds import hat, lexinvariant, word_pooled
from polydec.lab.train.word_kinds.positions import by_position
from polydec.lab.train.word_kinds.word_kind_names import KINDS
from polydec.lab.train.word_kinds.word_pooled import WordPooled
from polydec.lab.train.word_kinds.word_quality import with_slips, words_right
from polydec.lab.train.words import train_words
from polydec.models.formats import word_config
from polydec.models.formats.word_config import WordConfig
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.words import pooled_word_network, word_tensor_shapes
from polydec.models.sessions.lm import CausalLaw

SMALL = WordConfig(8, 0, (1, 2), 32, 2, 32, 2, 3, context=64)
"""Eight tokens: a mark, two that end words, five letters; words of three at most."""


HAT = WordConfig(8, 0, (1, 2), 64, 2, 32, 1, 5, encoder=2, decoder=2, context=64)
"""The same tokens with one vector a word, two layers inside words, and a backbone twice as wide."""


def spoken(seed=0, config=SMALL):
    """A network whose rows differ, in float32."""
    network = WordPooled(config, seed).eval()
    with torch.no_grad():
        for p in network.parameters():
            p.add_(torch.randn(p.shape, generator=torch.Generator().manual_seed(seed)) * 0.1)
        network.embed_tokens.weight.mul_(4)
    return network


def served(network):
    return pooled_word_network(network.c, network.state_dict())


def row(network, tokens):
    """Log-probabilities of what follows each token, by the network of sessions."""
    cache = network.new_cache()
    cache.stage_slots([i - 1 for i in range(len(tokens))])
    (answer,) = network.forward(
        [NetworkQuery(cache, 0, tuple(tokens), range(len(tokens)), ScoreRequest())]
    )
    return answer.logits_RV.log_softmax(-1)


def test_kinds_are_those_that_the_command_names():
    assert tuple(KINDS) == UNITS


@pytest.mark.parametrize("config", [SMALL, HAT], ids=["word-pooled", "hat"])
def test_whole_texts_and_sessions_have_one_law(config):
    network, r = spoken(config=config), torch.Generator().manual_seed(1)
    for _ in range(20):
        tokens = [0, *torch.randint(1, 8, (23,), generator=r).tolist()]
        together = network(torch.tensor([tokens, tokens[::-1]]))[0].log_softmax(-1)
        assert row(served(network), tokens) == pytest.approx(together.detach(), abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_a_session_keeps_the_contract_of_targets(seed):
    for config in (SMALL, HAT):
        check_target(
            CausalLaw(served(spoken(seed, config)), TokenVocabulary(8, frozenset({2})), chunk=3)
        )


def test_a_draft_of_a_whole_word_takes_one_pass_and_one_step_of_the_backbone():
    """Its bytes, the mark behind them and the next word's first byte: the rows are those of feeding them one by one."""
    tokens = hat.build_hat_tokenizer(WORDS, ())
    serving = served(hat.build_hat_network(WORDS, tokens))
    text, word = tokens.encode("One small").ids, tokens.encode(" fox", add_special_tokens=False).ids
    mark = tokens.token_to_id(hat.WORD)
    alone = row(serving, [*text, mark, *word])
    cache = serving.new_cache()
    cache.stage_slots(range(-1, len(text) - 1))
    serving.forward([NetworkQuery(cache, 0, tuple(text), (), ScoreRequest())])
    cache.commit_path(range(len(text)))
    before = serving.steps
    cache.stage_slots(range(-1, len(word)))
    asked = NetworkQuery(cache, len(text), (mark, *word), range(len(word) + 1), ScoreRequest())
    (answer,) = serving.forward([asked])
    assert serving.steps == before + 1
    assert torch.allclose(answer.logits_RV.log_softmax(-1), alone[len(text) :], atol=1e-5)


def test_the_chances_of_all_texts_add_up_to_one():
    network = served(spoken())
    total = 0.0
    for text in product(range(8), repeat=3):
        logp = row(network, [0, *text])
        total += math.exp(sum(float(logp[i, x]) for i, x in enumerate(text)))
    assert total == pytest.approx(1.0, abs=1e-4)


def test_the_backbone_runs_once_a_word():
    network = served(spoken())
    before = network.steps
    row(network, [0, 3, 4, 1, 5, 1, 3, 3, 3, 4])  # "34 1", "5 1", "333" cut at its length, "4"
    assert network.steps == before + 3


def test_a_byte_changes_its_own_word_alone():
    network = spoken()
    word_QL = torch.tensor([[3, 4, 1], [5, 1, -1], [4, 4, 2]])
    other_QL = word_QL.clone()
    other_QL[1, 0] = 6
    plain, changed = network.pooled_words(word_QL), network.pooled_words(other_QL)
    assert torch.allclose(plain[[0, 2]], changed[[0, 2]], atol=1e-6)
    assert not torch.allclose(plain[1], changed[1], atol=1e-3)
    longer = network.pooled_words(
        F.pad(word_QL, (0, 2), value=-1)
    )  # what fills a word up is not read
    assert torch.allclose(longer, plain, atol=1e-5)


def test_words_end_with_what_parts_them_or_at_their_length():
    word, offset = word_pooled.word_places(
        torch.tensor([[0, 3, 4, 1, 1, 3, 3, 3, 3, 2]]), SMALL.ends, SMALL.longest
    )
    assert word.tolist() == [[0, 0, 0, 1, 2, 2, 2, 3, 3, 4]]
    assert offset.tolist() == [[0, 1, 2, 0, 0, 1, 2, 0, 1, 0]]


WORDS = WordsSpec("x", kind="hat", width=128, longest=12)


def test_splits_stand_before_white_space_and_never_move():
    """A text comes back whole, what is read of its beginning is the beginning of what is read of it, and every word but the
    first begins with white space."""
    tokens, r = hat.build_hat_tokenizer(WORDS, ()), random.Random(5)
    mark = tokens.token_to_id(hat.WORD)

    def read(text):
        return tokens.encode(text, add_special_tokens=False).ids

    def words(text):
        out = [[]]
        for x in read(text):
            if x == mark:
                out.append([])
            else:
                out[-1].append(x)
        return [tokens.decode(w) for w in out]

    assert words("Hello, world!  I\n\nsay ") == ["Hello,", " world!", "  I", "\n\nsay", " "]
    alphabet = "ab,.! \n\t éß好\u00a0\u2003🙂\u0301"
    for _ in range(300):
        text = "".join(r.choice(alphabet) for _ in range(r.randint(1, 24)))
        assert "".join(words(text)) == tokens.decode(read(text)) == text
        assert all(w[0].isspace() for w in words(text)[1:])
        assert not any(a[-1].isspace() for a in words(text)[:-1])
        cut = r.randint(0, len(text))
        ids = read(text[:cut])
        assert read(text)[: len(ids)] == ids


def test_a_hierarchical_network_closes_a_word_at_its_mark_and_once():
    """One pass of the backbone a whole word, none for the one that is open; the sizes have the paper's ratio."""
    tokens = hat.build_hat_tokenizer(WORDS, ())
    network = hat.build_hat_network(WORDS, tokens)
    c = network.c
    assert (c.slots, c.small, c.width, c.encoder, c.decoder) == (1, 32, 128, 2, 2)
    assert c.ends == tuple(sorted((tokens.token_to_id(hat.WORD), tokens.token_to_id(END))))
    serving = served(network)
    for text, whole in (("Hello, wor", 1), ("Hello, world", 1), ("Hello, world! and on", 3)):
        before = serving.steps
        row(serving, tokens.encode(text).ids)
        assert serving.steps == before + whole
    long = "a" * 30  # closed at 12 bytes without a mark
    before = serving.steps
    row(serving, tokens.encode(long).ids)
    assert serving.steps == before + 2


def test_a_prompt_that_ends_inside_a_word_goes_on_as_the_word_does():
    tokens = hat.build_hat_tokenizer(WORDS, ())
    serving = served(hat.build_hat_network(WORDS, tokens))
    whole = row(serving, tokens.encode("One small, green fox").ids)
    for text in ("One", "One sm", "One small, gre"):
        ids = tokens.encode(text).ids
        assert torch.allclose(row(serving, ids)[-1], whole[len(ids) - 1], atol=1e-5)


def test_no_mark_of_a_word_is_written_into_a_text(trained):
    lm = api.load(trained["hat"]["at"], threads=1)
    engine = api.Engine(lm)
    ticket = engine.submit("The 3 cats of", method="plain", max_tokens=30, raw=True)
    engine.run([ticket])
    done = ticket.completion()
    mark = lm.checkpoint.text.tokenizer.token_to_id(hat.WORD)
    sampled = engine.submit(
        "The 3 cats of house",
        method="plain",
        max_tokens=200,
        raw=True,
        ignore_eos=True,
        sampling=lm.sampling_with(temperature=1.0),
    )
    engine.run([sampled])
    assert mark in sampled.completion().token_ids
    assert hat.WORD not in done.choices[0].text + sampled.completion().choices[0].text


def test_slips_are_of_the_same_letters_whatever_reads_them(trained, monkeypatch):
    """Every kind is asked about one and the same slipped text."""
    from polydec.lab.train import words as harness

    seen = {}

    def asked(network, texts, size, *, context):
        seen.setdefault(name, []).append(texts)
        return 1.0

    monkeypatch.setattr(harness, "bits_per_byte", asked)
    read = {}
    for name in ("bytes", "hat", "tokens"):
        at = Path(trained[name]["at"])
        spec = WordsSpec(str(at / "again"), kind=name, data=str(at.parent / "text.jsonl"))
        spec = WordsSpec(**{**vars(spec), "steps": 1, "rows": 1, "length": 64, "width": 64})
        spec = WordsSpec(**{**vars(spec), "layers": 1, "train_mb": 0.05, "held_kb": 2.0})
        train_words(spec)
        tokenizer = api.load(str(at), threads=1).checkpoint.text.tokenizer
        read[name] = [[tokenizer.decode(ids) for ids in texts] for texts in seen[name]]
    assert read["bytes"] == read["hat"] == read["tokens"]
    assert read["bytes"][0] != read["bytes"][1]


def lexical(seed=0):
    tokenizer = train_tokenizer([], 256 + len(SPECIAL))
    spec = WordsSpec("x", kind="lexinvariant", width=64, layers=2, seed=seed)
    return lexinvariant.build_lexinvariant_network(spec, tokenizer)


def test_renaming_bytes_and_rows_alike_changes_nothing():
    network, r = lexical(), torch.Generator().manual_seed(3)
    texts = torch.randint(4, 260, (4, 80), generator=r).tolist()
    assert lexinvariant.lexinvariant_figures(network, texts, 64)["renamed_apart"] < 1e-4
    token_BT, table_BVH = torch.tensor(texts), network.draw_tables(4, 7)
    turned = table_BVH.roll(1, 1)  # rows renamed, bytes not
    assert not torch.allclose(
        network.by_tables(token_BT, table_BVH), network.by_tables(token_BT, turned), atol=1e-2
    )


def test_tables_are_drawn_a_text_and_a_step_and_marks_keep_theirs():
    network = lexical()
    tables = network.draw_tables(3, 5)
    own = network.network.model.embed_tokens.weight
    assert torch.equal(tables, network.draw_tables(3, 5))
    assert not torch.equal(tables, network.draw_tables(3, 6))
    assert not torch.allclose(tables[0, 100], tables[1, 100])
    assert torch.equal(tables[0, network.fixed], own[network.fixed])
    assert float(tables[:, 10:].detach().square().sum(-1).mean()) == pytest.approx(1.0, abs=0.05)
    token_BT = torch.tensor([[0, 40, 41, 42]] * 2)
    first, again, later = (
        lexinvariant.lexinvariant_logits(network, token_BT, i) for i in (3, 3, 4)
    )
    assert torch.equal(first, again) and not torch.allclose(first, later)
    assert not torch.allclose(first[0], first[1])  # each row has a table of its own


def test_the_partial_form_learns_a_share_of_the_rows_of_each_text():
    """At 1 it is a network with one learned table; below that every text has drawn rows of its own."""
    network = lexical()
    own_VH = network.network.model.embed_tokens.weight
    network.kept = 1.0
    assert torch.equal(network.draw_tables(2, 5), own_VH.expand(2, -1, -1))
    network.kept = 0.5
    learned_BV = (network.draw_tables(2, 5) == own_VH).all(-1)
    assert learned_BV[:, network.fixed].all()
    assert 0.3 < float(learned_BV.float().mean()) < 0.7
    assert not torch.equal(learned_BV[0], learned_BV[1])
    # What is saved, and measured, is the law of the learned table.
    token_BT = torch.tensor([[0, 40, 41, 42]])
    assert torch.equal(network(token_BT), network.by_tables(token_BT, own_VH[None]))


def test_the_law_of_several_tables_is_the_mean_of_theirs():
    network = lexical()
    texts = torch.randint(4, 260, (3, 40), generator=torch.Generator().manual_seed(3)).tolist()
    found = lexinvariant.bits_by_tables(network, texts, 20)["bits_by_tables"]
    token_BT = torch.tensor(texts)[:, :21]
    for count in lexinvariant.AVERAGED:
        laws = [
            network.by_tables(
                token_BT[:, :-1], network.draw_tables(1, n).expand(3, -1, -1)
            ).softmax(-1)
            for n in range(count)
        ]
        right = torch.stack(laws).mean(0).gather(-1, token_BT[:, 1:, None])
        assert found[str(count)] == pytest.approx(float(-right.detach().log2().mean()), abs=1e-4)
    # A mean is never worse than the mean of the logarithms.
    assert found["16"] < found["1"]
    assert lexinvariant.bits_by_tables(network, [[0, 4]], 20) == {}


def test_bytes_that_were_not_seen_are_alike():
    """In the mean over tables no byte that stands nowhere in the text is likelier than another."""
    network, token_1T = lexical(), torch.tensor([[0, 40, 41, 42, 40, 41]])
    rows = network.by_tables(token_1T.expand(400, -1), network.draw_tables(400, 11))[:, -1]
    laws = rows.detach().softmax(-1)[:, 50:250]
    mean, error = laws.mean(0), laws.std(0) / 20
    assert float(((mean - mean.mean()).abs() / error).max()) < 5


def test_words_are_right_where_every_byte_is_the_likeliest():
    class Known(torch.nn.Module):
        """Foretells a text, but for one byte."""

        def forward(self, token_BT):
            logits = F.one_hot(token_BT.roll(-1, 1), 8).float()
            logits[:, 4] = 0.0  # then token 0 is the likeliest
            return logits

    text = [0, 3, 4, 1, 5, 6, 1, 7, 1, 3]
    assert words_right(Known(), [text], {1}, 50) == pytest.approx(2 / 3)


def test_slips_are_of_letters_and_as_frequent_as_asked():
    texts = [[*range(10)] * 100]
    (slipped,) = with_slips(texts, [3, 4, 5, 6], 0.5, 0)
    pairs = list(zip(texts[0], slipped, strict=True))
    assert all(x == y for x, y in pairs if not 3 <= x <= 6)
    changed = sum(x != y for x, y in pairs)
    assert 400 * 0.5 * 0.75 * 0.8 < changed < 400 * 0.5 * 0.75 * 1.2
    assert with_slips(texts, [3, 4], 0.0, 0) == texts


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of each kind, a few steps long, and what was measured of it."""
    root = tmp_path_factory.mktemp("words")
    text = root / "text.jsonl"
    text.write_text(
        "".join(
            json.dumps({"text": f"The {i} cats of house {i % 7} see the {i % 5} dogs. " * 4}) + "\n"
            for i in range(120)
        )
    )
    small = {"data": str(text), "steps": 12, "rows": 4, "length": 64, "width": 64, "layers": 1}
    small |= {"train_mb": 0.05, "held_kb": 2.0}
    return {
        kind: train_words(WordsSpec(str(root / kind), kind=kind, slots=2, **small))
        | {"at": str(root / kind)}
        for kind in UNITS
    }


WRITTEN = [kind for kind in UNITS if kind != "masked-words"]
"""Kinds that write text: masked words are told from both sides, and no engine decodes them."""


@pytest.mark.parametrize("kind", WRITTEN)
def test_every_kind_has_held_out_bits_and_lossless_methods_keep_its_text(trained, kind):
    result = trained[kind]
    for name in ("bits_per_byte", "bits_per_byte_with_slips"):
        assert 0 < result[name]["prose"] < 10  # 9.3 at most under ten seeds
    assert ("words_right" in result) == (kind != "tokens")
    assert 0 <= result.get("words_right", 0) <= 1
    lm = api.load(result["at"], threads=1)
    engine = api.Engine(lm)
    texts = []
    for method in ("plain", "prompt-lookup", "jacobi"):
        ticket = engine.submit("The 3 cats of", method=method, max_tokens=16)
        engine.run([ticket])
        texts.append(ticket.completion().token_ids)
    assert texts[0] == texts[1] == texts[2] and len(texts[0]) == 16


def test_the_engine_has_the_law_that_was_measured(trained):
    """Bits of a text by log-probabilities of the engine are those of the network that was trained."""
    at = Path(trained["word-pooled"]["at"])
    lm = api.load(str(at), threads=1)
    text = "The 3 cats of house 2 see"
    engine = api.Engine(lm)
    ticket = engine.submit(text, method="plain", max_tokens=1, prompt_logprobs=0)
    engine.run([ticket])
    told = [p.model_logp for p in ticket.completion().prompt_logprobs[1:]]
    ids = lm.checkpoint.text.encode(text)
    config = word_config.read_word_config(json.loads((at / "config.json").read_text()))
    network = WordPooled(config, 0)
    network.load_state_dict(load_file(at / "model.safetensors"))
    bits = bits_per_byte(network.eval(), [list(ids)], len(ids) - 1, context=64)
    assert -sum(told) / math.log(2) / (len(ids) - 1) == pytest.approx(bits, abs=1e-3)


def test_learning_lowers_the_loss(trained):
    """A network that knows nothing loses the logarithm of 260 marks; under ten seeds the largest loss was 5.03."""
    assert trained["bytes"]["loss"] < math.log(260) - 0.2
    assert trained["word-pooled"]["loss"] < math.log(260) - 0.2


@pytest.mark.parametrize(
    "change, says",
    [
        ({"ends": []}, "ends"),
        ({"width": 48}, "width is 48: it must be a multiple of 32"),
        ({"longest": 10**9}, "longest"),
        ({"begin": 9}, "begin and ends must lie below vocab_size"),
        ({"slots": "two"}, "slots"),
    ],
)
def test_a_config_that_cannot_be_is_one_sentence(change, says):
    with pytest.raises(RequestError, match=says):
        word_config.read_word_config({**SMALL.to_json(eos=2), **change})
    assert word_config.read_word_config(SMALL.to_json(eos=2)) == SMALL


def test_weights_of_another_shape_are_refused():
    weights = dict(spoken().state_dict())
    weights["up.weight"] = weights["up.weight"][:4]
    with pytest.raises(FileError, match=r"up.weight has shape \(4, 32\)"):
        pooled_word_network(SMALL, weights)
    assert set(weights) == set(word_tensor_shapes(SMALL))


def test_what_reads_states_is_refused(trained):
    lm = api.load(trained["word-pooled"]["at"], threads=1)
    session = lm.checkpoint.lm.open_session((0, 40, 41))
    with pytest.raises(PolydecError, match="a word-pooled model has none of a byte"):
        session.embed_tokens([40])
    with pytest.raises(PolydecError, match="computes in float32"):
        api.load(trained["word-pooled"]["at"], dtype="bfloat16")


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"kind": "letters"}, "kind"),
        ({"width": 96}, "width is 96: it must be a multiple of 64"),
        ({"longest": 1}, "longest"),
    ],
)
def test_a_spec_that_cannot_be_is_refused(fields, says):
    with pytest.raises(RequestError, match=says):
        WordsSpec("x", **fields)
    assert word_pooled.PARTS == (" ", "\n")


def test_bits_of_each_part_of_a_text():
    class Early(torch.nn.Module):
        """Knows nothing of the first twenty bytes, and of all others everything."""

        def forward(self, token_BT):
            logits = 50.0 * F.one_hot(token_BT.roll(-1, 1), 8).float()
            logits[:, :20] = 0.0
            return logits

    texts = [[i % 7 for i in range(62)]] * 2
    told = by_position(Early(), texts, 60)["bits_from"]
    assert list(told) == ["0", "20", "50"] and told["0"] == pytest.approx(3.0)
    assert told["20"] == pytest.approx(0.0, abs=1e-6)
    assert by_position(Early(), texts, 64) == {}  # no text is so long
