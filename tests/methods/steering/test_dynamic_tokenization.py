"""Dynamic tokenization: pairs that stand together often become one vector; how what makes it is trained."""

import json
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
import torch
from torch.nn import functional as F

import micro
from polydec import Ask, Engine, Sampling, load
from polydec.base.errors import FileError, RequestError
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.train import hypernetwork as training
from polydec.lab.train.hypernetwork import HypernetworkModel, KnownTokens
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.specs.hypernetwork import HypernetworkSpec
from polydec.laws.targets.merged_prompt import merge_prompt_tokens
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import steer
from polydec.methods.steering.dynamic_tokenization import CUTS
from polydec.models.learned.kinds import hypernetwork, longspec
from polydec.models.learned.kinds.hypernetwork import (
    HypernetworkSizes,
    examples,
    new_hypernetwork_tensors,
    unit_vectors,
)
from polydec.models.learned.reader import BidirectionalEncoder
from polydec.models.sessions.soft import state_of
from polydec.models.text.token_merges import BOUNDARIES, TokenMerger
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling")
TEXT = "The grey foxes and the greyer foxes saw the quietest foxes by the river"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("merged"), examples=examples)


@pytest.fixture(scope="module")
def prompt(lm):
    return tuple(lm.encode_prompt(TEXT, raw=True))


async def no_rows(checker):
    """A beginning of the prompt has other merges: it is another text."""


def read(lm, prompt, share=1.0, boundary="word", made=None):
    return merge_prompt_tokens(lm.checkpoint.lm, prompt, made or lm.artefacts[0], share, boundary)


def ask(**fields):
    asked = {"steer": "dynamic-tokenization", "max_tokens": 12}
    return Ask(TEXT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


# merges

LETTERS = (b"a", b"b", b" c", b"\n", b" ", b"1", None, b"\xc3", b"\xa4")


def slow_merges(merger, rows, merges):
    """The same, counted anew for each merge, as the paper says it."""
    rows = [[(x,) for x in row] for row in rows]
    for _ in range(merges):
        count = Counter(
            pair for row in rows for pair in pairwise(row) if merger.allows_unit(pair[0] + pair[1])
        )
        if not count:
            break
        best = max(count.values())
        pair = next(p for p in count if count[p] == best)
        for i, row in enumerate(rows):
            out, at = [], 0
            while at < len(row):
                if tuple(row[at : at + 2]) == pair:
                    out.append(pair[0] + pair[1])
                    at += 2
                else:
                    out.append(row[at])
                    at += 1
            rows[i] = out
    return rows


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_the_most_frequent_pair_is_merged_as_if_counted_anew(boundary):
    dice = Random(5)
    merger = TokenMerger(LETTERS, boundary, 5)
    for _ in range(40):
        rows = [
            [dice.choice((0, 0, 1, 1, 2, 3, 4, 5, 6, 7, 8)) for _ in range(dice.randint(0, 25))]
            for _ in range(dice.randint(1, 3))
        ]
        for merges in (0, 1, 2, 5, 99):
            got = merger.merge_rows(rows, merges)
            assert got == slow_merges(merger, rows, merges)
            assert [[x for unit in row for x in unit] for row in got] == rows
        assert got == merger.merge_rows(rows) == merger.merge_by_share(rows, 1.0)
        assert merger.merge_by_share(rows, 0.0) == [[(x,) for x in row] for row in rows]
        most, fewest = sum(map(len, rows)), sum(map(len, got))
        middle = sum(map(len, merger.merge_by_share(rows, 0.5)))
        assert fewest <= middle <= most - (most - fewest) // 2


@pytest.mark.parametrize(
    ("spelled", "word", "pretoken", "sentence"),
    [
        (("gr", "ey"), True, True, True),
        ((" gr", "ey"), True, True, True),
        (("a", " b"), False, False, True),
        (("fox", "."), True, False, True),
        (("fox", "9"), True, False, True),
        ((" ", " "), False, True, True),
        (("\n", "\n"), False, False, True),
        (("a", "\n"), False, False, True),
        (("a", None), False, False, False),
    ],
)
def test_boundaries(spelled, word, pretoken, sentence):
    pieces = [x if x is None else x.encode() for x in spelled]
    for boundary, may in (("word", word), ("pretoken", pretoken), ("sentence", sentence)):
        assert TokenMerger(pieces, boundary, 8).allows_unit((0, 1)) == may, boundary
        assert not TokenMerger(pieces, boundary, 1).allows_unit((0, 1)), "longest"
        assert not TokenMerger(pieces, boundary, 8).allows_unit((0, 2)), "no such token"
    halves = TokenMerger((b"\xe2\x82", b"\xac"), "word", 8)
    assert halves.allows_unit((0, 1)) and TokenMerger((b"a", b"\xe2"), "word", 8).allows_unit(
        (0, 1)
    )
    assert tuple(BOUNDARIES) == CUTS


# the law


def test_merged_tokens_are_vectors_where_they_stand(lm, prompt):
    words = lm.checkpoint.lm.vocab.words
    merger = TokenMerger(words.pieces, "word", 4)
    (units,) = merger.merge_by_share([prompt[:-1]], 1.0)
    shown = read(lm, prompt)
    assert any(len(unit) > 1 for unit in units) and any(len(unit) == 1 for unit in units)
    assert len(shown.instead) == len(units) + 1 and shown.instead[-1] == prompt[-1]
    session = lm.checkpoint.lm.open_session((0,))
    made = lm.artefacts[0]
    for unit, got in zip(units, shown.instead, strict=False):
        if len(unit) == 1:
            assert got == unit[0], "a token that is not merged keeps its own embedding"
        else:
            want = made.unit_vector(unit, session.embed_tokens(unit))
            assert torch.equal(state_of(got), want)
    at = 0
    for place, unit in enumerate(units):
        assert shown.rows[at : at + len(unit)] == (place,) * len(unit)
        at += len(unit)
    lengths = [len(read(lm, prompt, share).instead) for share in (0.0, 0.3, 0.6, 1.0)]
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) == 4
    assert len(read(lm, prompt, 1.0, "sentence").instead) < lengths[-1]


def test_share_0_is_the_plain_prompt(lm, prompt):
    assert read(lm, prompt, 0.0).instead == prompt
    assert read(lm, prompt[:1]).instead == prompt[:1]
    plain = {"n": 2, "sampling": Sampling(temperature=1.0)}
    (want,) = texts(lm, [ask(steer=None, **plain)])
    assert texts(lm, [ask(steer_options={"share": 0.0}, **plain)]) == [want]
    assert texts(lm, [ask(steer_options={"share": 1.0}, **plain)]) != [want]


def test_vectors_that_are_a_token_s_own_give_its_law(lm, prompt):
    """With boundaries forced to those of other tokens, and their own embeddings, it is the plain prompt of these tokens."""
    session = lm.checkpoint.lm.open_session((0,))

    class FirstToken:
        longest_unit = 4

        def unit_vector(self, unit, part_KH):
            return session.embed_tokens((unit[0] - 7,))[0].float()

    shown = read(lm, prompt, made=FirstToken())
    other = tuple(
        x if state_of(x) is None else unit[0] - 7
        for x, unit in zip(
            shown.instead,
            TokenMerger(lm.checkpoint.lm.vocab.words.pieces, "word", 4).merge_rows([prompt[:-1]])[0]
            + [prompt[-1:]],
            strict=True,
        )
    )
    torch.testing.assert_close(
        micro.law_at_end(shown, prompt),
        micro.law_at_end(lm.checkpoint.lm, other),
        atol=1e-4,
        rtol=0.0,
    )


def test_a_law_behind_merged_tokens_is_a_target(lm, prompt, monkeypatch):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(read(lm, prompt), prompt=prompt, tolerance=1e-4)


def test_every_method_writes_the_same_in_any_company(lm):
    got = texts(lm, [ask(method=m) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    asks = [ask(seed=i, steer_options={"share": i / 3}, n=1 + i % 2) for i in range(4)]
    assert texts(lm, asks, max_positions=7) == [texts(lm, [a])[0] for a in asks]


def test_vectors_are_made_once_and_alone(lm, monkeypatch):
    made, asked = replace(lm.artefacts[0]), []
    whole = hypernetwork.unit_vectors
    monkeypatch.setattr(hypernetwork, "unit_vectors", lambda *x: asked.append(1) or whole(*x))
    part = torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    first = made.unit_vector((4, 5, 6), part)
    assert torch.equal(made.unit_vector((4, 5, 6), part), first) and len(asked) == 1
    padded = F.pad(part, (0, 0, 0, 2), value=9.0)[None]
    there = torch.tensor([[True, True, True, False]])
    alone = whole(made.sizes, made.tensors, padded[:, :4], there)[0]
    torch.testing.assert_close(alone, first, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(made.unit_vector((6, 5, 4), part.flip(0)), first, atol=1e-4), "order"
    monkeypatch.setattr(hypernetwork, "KEPT", 2)
    for i in range(4):
        made.unit_vector((i, 5), part[:2])
    assert (3, 5) in made.kept_vectors and len(made.kept_vectors) <= 3


def test_what_cannot_be_is_refused(lm):
    for fields, sentence in (
        ({"steer_options": {"share": 1.5}}, "share is 1.5"),
        ({"steer_options": {"boundary": "line"}}, "boundary is 'line'"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            plan_request(lm, ask(**fields))
        assert sentence in str(error.value) and len(str(error.value)) <= 300
    with pytest.raises(ValueError, match="needs a hypernetwork"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft), ask())
    keys = LoadedModel(
        lm.checkpoint,
        lm.draft,
        (*lm.artefacts, *longspec.examples(lm.checkpoint.lm.vocab, 64, 64)),
    )
    vars(keys)["costs"] = PassCosts()
    with pytest.raises(ValueError, match="stand at other places than its tokens"):
        plan_request(keys, ask(method="longspec"))
    plain = {"method": "longspec", "steer_options": {"share": 0.0}}
    assert texts(keys, [ask(**plain)]) == texts(lm, [ask(steer=None)])
    for name in ("hypernetwork", "2411.18553"):
        assert steer.find_steering(name) == "dynamic-tokenization"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("heads", 3, "heads must divide width"),
        ("longest", 257, "longest"),
        ("layers", 257, "layers"),
        ("longest", 5, "config.json asks for"),
        ("width", 32, "config.json asks for"),
    ],
)
def test_a_file_that_lies_is_refused_before_anything_is_read(lm, tmp_path, field, value, said):
    hypernetwork.save(tmp_path, lm.artefacts[0], {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(FileError, match=said):
        hypernetwork.load(tmp_path)


# training


def small(longest=4, seed=0):
    net = TrainableLlama(LlamaShape(40, 32, 2, 2, 2, 64, 64), seed=seed)
    sizes = HypernetworkSizes(longest, BidirectionalEncoder(16, 1, 2, longest), 32)
    return HypernetworkModel(net, sizes, seed)


def test_it_begins_with_means_and_moves_alone():
    net = small()
    table = net.model.model.embed_tokens.weight
    got = net.merged_vectors([(4, 5), (7, 8, 9)])
    want = torch.stack([table[[4, 5]].mean(0), table[[7, 8, 9]].mean(0)])
    torch.testing.assert_close(got, want, atol=1e-6, rtol=1e-6)
    known = KnownTokens((3, 9), ((1, 2), (4, 5, 6)))
    dice = torch.Generator().manual_seed(0)
    rows = [[(1,), (2, 3), (4,)], [(5, 6), (7,)]]
    for loss in (
        training.next_token_nats(net, 0, rows).mean(),
        training.known_token_loss(net, known, dice),
    ):
        net.zero_grad()
        loss.backward()
        moved = {n for n, p in net.named_parameters() if p.grad is not None and p.grad.any()}
        assert moved == {"kept.out"}, "nothing else has a way to the loss while out is zeros"
    assert not any(p.requires_grad for p in net.model.parameters())


def test_texts_in_units_are_read_as_by_the_model():
    """Without a merge it is the model's own loss; with one the model reads the vector in the units' place, and foretells first
    tokens."""
    net = small()
    rows = [[3, 4, 5, 6, 7], [8, 9]]
    got = training.next_token_nats(net, 0, [[(x,) for x in row] for row in rows])
    want = [
        F.cross_entropy(
            net.model(torch.tensor([[0, *row[:-1]]]))[0], torch.tensor(row), reduction="none"
        )
        for row in rows
    ]
    torch.testing.assert_close(got, torch.cat(want), atol=1e-4, rtol=1e-4)
    with torch.no_grad():
        net.kept["out"].copy_(torch.randn(32, 16, generator=torch.Generator().manual_seed(2)))
    got = training.next_token_nats(net, 0, [[(3,), (4, 5), (6, 7)]])
    states = net.unit_states(0, [[(3,), (4, 5)]])
    want = F.cross_entropy(
        net.model.token_logits(states)[0], torch.tensor([3, 4, 6]), reduction="none"
    )
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(states, small().unit_states(0, [[(3,), (4, 5)]]), atol=1e-3)


def test_known_tokens_are_spelled_in_smaller_ones():
    pieces = [None, b"a", b"b", b"ab", b"abab", b"abc", b"", b"ababababab"]
    known = KnownTokens.of_vocabulary(pieces, 3)
    told = dict(zip(known.tokens, known.spelled, strict=True))
    assert told == {3: (1, 2), 4: (3, 3), 7: (4, 4, 3)}
    assert 7 not in KnownTokens.of_vocabulary(pieces, 2).tokens
    net = small()
    table = net.model.model.embed_tokens.weight
    with torch.no_grad():
        table[3] = table[[1, 2]].mean(0)
    dice = torch.Generator().manual_seed(0)
    with torch.no_grad():
        assert float(training.known_token_loss(net, KnownTokens((3,), ((1, 2),)), dice)) < 1e-9
        got = float(training.known_token_loss(net, KnownTokens((4,), ((1, 2),)), dice))
    want = (table[4] - table[3]).square().mean() / table.square().mean()
    assert got == pytest.approx(float(want), rel=1e-4)


PROSE = "\n\n".join(
    f"The {a} {b} saw the {c} by the old river, and nobody asked why the {b} was {d} or quietest."
    for a in ("grey", "tall", "quiet", "young", "old")
    for b in ("fox", "baker", "teacher", "dog")
    for c in ("boat", "bridge", "train", "mill")
    for d in ("cold", "warm", "late")
)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    at = tmp_path_factory.mktemp("trained")
    (at / "own.txt").write_text(PROSE, "utf-8")
    spec = HypernetworkSpec(
        str(at / "h"),
        target="zoo:tiny-draft",
        data=str(at / "own.txt"),
        texts=16,
        length=20,
        rows=4,
        steps=4,
        width=16,
        layers=1,
        tries=4,
        boundary="sentence",
    )
    return spec, training.train_hypernetwork(spec)


def test_it_is_trained_and_the_engine_reads_as_in_training(trained):
    spec, told = trained
    for name in ("means", "trained"):
        assert [each["share"] for each in told[name]] == list(training.SHARES)
        shorter = [each["shorter"] for each in told[name]]
        assert shorter[0] == 0 and shorter == sorted(shorter) and shorter[-1] > 0.3
    assert told["means"][0] == told["trained"][0], "nothing merged, nothing changed"
    assert told["means"][-1] != told["trained"][-1]
    lm = load("zoo:tiny-draft", draft=None, dtype="float32", trained=[spec.out])
    made = lm.artefacts[0]
    ids = tuple(lm.encode_prompt("The quietest fox saw the old river", raw=True))
    shown = read(lm, ids, 1.0, "sentence")
    model = training.load_directory(spec.target)
    net = HypernetworkModel(model, made.sizes, 0)
    for name, value in made.tensors.items():
        net.kept[name].data.copy_(value)
    words = lm.checkpoint.lm.vocab.words
    (units,) = TokenMerger(words.pieces, "sentence", made.sizes.longest).merge_rows([ids[:-1]])
    with torch.no_grad():
        begin, *rest = units
        # The prompt's first token may be the mark that every text begins with.
        assert len(begin) == 1
        states = net.unit_states(begin[0], [[*rest, ids[-1:]]])
        want = net.model.token_logits(states[0, -1]).log_softmax(-1)
    torch.testing.assert_close(micro.law_at_end(shown, ids).float(), want, atol=5e-3, rtol=0.0)


def test_a_step_without_a_merge_is_taken(trained, tmp_path):
    """No pair is one word with the next here, and nothing else is learned: there is a loss all the same."""
    spec, _ = trained
    (tmp_path / "own.txt").write_text(
        "\n\n".join(" ".join(Random(i).choices("abcdefgh", k=40)) for i in range(300)), "utf-8"
    )
    told = training.train_hypernetwork(
        replace(
            spec,
            out=str(tmp_path / "h"),
            data=str(tmp_path / "own.txt"),
            boundary="word",
            known=0.0,
            steps=1,
        )
    )
    assert told["means"] == told["trained"]


def test_trained_tensors_begin_as_they_should():
    s = HypernetworkSizes(4, BidirectionalEncoder(16, 1, 2, 4), 32)
    t = new_hypernetwork_tensors(s, 0)
    part = torch.randn(2, 4, 32, generator=torch.Generator().manual_seed(3))
    there = torch.tensor([[True, True, False, False], [True, True, True, True]])
    got = unit_vectors(s, t, part, there)
    torch.testing.assert_close(got[0], part[0, :2].mean(0), atol=1e-6, rtol=1e-6)
    with pytest.raises(RequestError, match="multiple of 8"):
        HypernetworkSpec("x", width=12)
    with pytest.raises(RequestError, match="texts is 2"):
        HypernetworkSpec("x", texts=2)
