"""ARC-Encoder: passages pooled in both directions for a decoder that stays as it is; how it is trained."""

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import micro
from polydec import Ask, Engine, Sampling, load
from polydec.base.errors import FileError, RequestError
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.train import page_reader
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts import arc_encoder as training
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.specs.context import ContextSpec
from polydec.laws.targets.pooled_passages import pool_prompt_passages
from polydec.methods.registry import steer
from polydec.models.learned.kinds import arc_encoder
from polydec.models.learned.kinds.arc_encoder import balanced_group_of, examples, pooled_states
from polydec.models.learned.product_codes import ProductCodebook
from polydec.models.sessions.soft import state_of
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling", "suffix-automaton")
PROMPT = (5, 1, *range(20, 39), 2, 7, 1, *range(40, 45), 2, 9, 1, 30, 31, 2, 8)
"""Passages of 19, 5 and 2 tokens between marks 1 and 2; parts of 16 tokens are read together."""


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return micro.trained(tmp_path_factory.mktemp("arc"), examples=examples)


async def no_rows(checker):
    """A beginning of the prompt may end inside of a passage: it is another text."""


def read(lm, factor=0, task="continue", prompt=PROMPT, made=None, coded=False):
    made = made or lm.artefacts[0]
    return pool_prompt_passages(lm.checkpoint.lm, prompt, made, factor, task, coded)


def ask(**fields):
    asked = {"steer": "arc-encoder", "max_tokens": 12}
    return Ask(PROMPT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


def test_groups_are_balanced_and_lie_side_by_side():
    for factor in (1, 2, 3, 4, 8, 64):
        for length in range(1, 201):
            group = balanced_group_of(length, factor).tolist()
            sizes = [group.count(g) for g in range(-(-length // factor))]
            assert sum(sizes) == length and group == sorted(group)
            assert max(sizes) <= factor and max(sizes) - min(sizes) <= 1


def test_pooling_is_that_of_the_paper(lm):
    """By hand: the layers before the last one see everything; in the last one means of the residual stream ask from places of
    their own and go on, and keys and values are those of every token."""
    made = lm.artefacts[0]
    s, t, token = made.sizes, made.tensors, torch.tensor([[20, 25, 21, 29, 22]])
    k = s.skeleton
    position = torch.arange(5)[None]
    see = torch.ones(1, 5, 5, dtype=torch.bool)
    turn = k.rotation_tables(position)
    none = k.empty_past(1)[0]
    x = t["embed_tokens.weight"][token]
    x, _ = replace(k, layers=1).run_layer(t, 0, x, x, (turn, turn), none, see)
    groups = [[0, 1], [2, 3], [4]]
    assert balanced_group_of(5, 2).tolist() == [0, 0, 1, 1, 2]
    out = []
    for at, group in enumerate(groups):
        mean = x[:, group].mean(1, keepdim=True)
        own = k.rotation_tables(torch.tensor([[at]]))
        out.append(k.run_layer(t, 1, mean, x, (own, turn), none, see[:, :1])[0])
    got = pooled_states(s, t, token, 2)
    torch.testing.assert_close(got, torch.cat(out, 1), atol=1e-5, rtol=1e-5)
    # What stands behind is seen: the first group's state changes with the last token.
    other = pooled_states(s, t, torch.tensor([[20, 25, 21, 29, 23]]), 2)
    assert not torch.allclose(got[:, 0], other[:, 0], atol=1e-4)
    # Each by itself: a batch is not a mixture of its texts.
    both = pooled_states(s, t, torch.cat([token, token.flip(1)]), 2)
    torch.testing.assert_close(both[:1], got, atol=1e-5, rtol=1e-5)


def identity(lm):
    """An encoder of the decoder's own embeddings, whose layers add nothing and whose projector passes on."""
    made = lm.artefacts[0]
    session = lm.checkpoint.lm.open_session((0,))
    table = session.embed_tokens(range(made.vocab.size)).float()
    session.close()
    skeleton = replace(made.sizes.skeleton, width=64, heads=2, kv_heads=1)
    sizes = replace(made.sizes, skeleton=skeleton, bottleneck=64)
    tensors = {name: torch.zeros(shape) for name, shape in sizes.encoder_shapes.items()}
    tensors |= {"embed_tokens.weight": table, "down": torch.eye(64), "up": torch.eye(64)}
    return replace(
        made, sizes=sizes, tensors={**tensors, "continue": table[77], "rewrite": table[78]}
    )


def test_one_token_a_vector_without_layers_is_the_embedding(lm):
    """Factor 1 keeps the length: behind such vectors the law is that of the tokens, and of the one behind them."""
    made = identity(lm)
    passage = tuple(range(20, 39))
    got = made.passage_vectors(passage, 1, "continue")
    want = made.tensors["embed_tokens.weight"][[*passage, 77]]
    assert torch.equal(got, want)
    assert torch.equal(made.passage_vectors(passage, 1, "rewrite")[-1], made.tensors["rewrite"])
    # Tokens that repeat pool to themselves, so half as many vectors are half as many tokens.
    prompt = (5, 1, 20, 20, 21, 21, 22, 22, 2, 8)
    law = micro.law_at_end(
        pool_prompt_passages(lm.checkpoint.lm, prompt, made, 2, "continue"), prompt
    )
    torch.testing.assert_close(
        law, micro.law_at_end(lm.checkpoint.lm, (5, 1, 20, 21, 22, 77, 2, 8)), atol=1e-4, rtol=0.0
    )


def test_lengths_are_the_card_s_and_short_passages_stay(lm):
    made = lm.artefacts[0]
    for factor in (2, 3, 4, 64):
        shown = read(lm, factor)
        # A part of 16 tokens and one of 3, then the learned vector; the passage of 2 stays.
        long = -(-16 // factor) - (-3 // factor) + 1
        short = min(5, -(-5 // factor) + 1)
        assert len(shown.instead) == len(PROMPT) - 24 + long + short
        vectors = [state_of(x) for x in shown.instead if state_of(x) is not None]
        want = torch.cat(
            [
                made.passage_vectors(range(20, 39), factor, "continue"),
                made.passage_vectors(range(40, 45), factor, "continue"),
            ]
        )
        assert torch.equal(torch.stack(vectors), want)
        assert shown.instead[-4:-2] == (30, 31) and len(shown.rows) == len(PROMPT) - 1
        # The mark behind a passage is foretold by the learned vector, which stands last.
        for closing in (i for i, x in enumerate(PROMPT) if x == 2 and i < 30):
            at = shown.rows[closing - 1]
            assert shown.rows[closing] == at + 1 and state_of(shown.instead[at]) is not None
        assert list(shown.rows) == sorted(shown.rows)
    assert read(lm, 0).instead == read(lm, 2).instead != read(lm, 3).instead
    assert read(lm, 2, "rewrite").instead != read(lm, 2).instead


def test_factor_1_and_no_passage_are_the_plain_prompt(lm):
    assert read(lm, 1).instead == PROMPT
    assert read(lm, 4, prompt=PROMPT[:5]).instead == PROMPT[:5], "never closed"
    plain = {"n": 2, "sampling": Sampling(temperature=1.0)}
    (want,) = texts(lm, [ask(steer=None, **plain)])
    assert texts(lm, [ask(steer_options={"factor": 1}, **plain)]) == [want]
    assert texts(lm, [ask(**plain)]) != [want]


def test_a_law_behind_vectors_is_a_target(lm, monkeypatch):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    check_target(read(lm, 3), prompt=PROMPT, tolerance=1e-4)


def test_parts_are_encoded_once_and_alone(lm, monkeypatch):
    made = replace(lm.artefacts[0])
    asked = []
    whole = arc_encoder.pooled_states
    monkeypatch.setattr(arc_encoder, "pooled_states", lambda *x: asked.append(1) or whole(*x))
    long, part = tuple(range(20, 39)), tuple(range(20, 36))
    first = made.passage_vectors(long, 2, "continue")
    assert len(asked) == 2, "two parts"
    assert torch.equal(first[:8], made.passage_vectors(part, 2, "continue")[:-1])
    assert torch.equal(first, made.passage_vectors(long, 2, "continue")) and len(asked) == 2
    assert not torch.equal(made.passage_vectors(part, 4, "continue")[0], first[0])
    assert made.kept_parts[2, part].shape == (8, 8), "kept at the bottleneck, which is smaller"
    monkeypatch.setattr(arc_encoder, "KEPT", 2)
    small = replace(made)
    for name in range(5):
        small.passage_vectors((7, 8, name), 2, "continue")
    assert list(small.kept_parts) == [(2, (7, 8, 3)), (2, (7, 8, 4))]
    # As many numbers as one part has: the other is dropped, and its vectors are made again.
    monkeypatch.setattr(arc_encoder, "KEPT_NUMBERS", small.kept_parts[2, (7, 8, 4)].numel())
    small.passage_vectors((7, 8, 5), 2, "continue")
    assert list(small.kept_parts) == [(2, (7, 8, 5))]


def test_codes_are_what_is_kept_and_what_is_read(lm):
    """A byte a piece of a vector, in the place of its numbers; read is what the codes stand for."""
    made = replace(lm.artefacts[0])
    passage = tuple(range(20, 36))
    plain = made.passage_vectors(passage, 2, "continue")
    coded = made.passage_vectors(passage, 2, "continue", True)
    kept, codes = made.kept_parts[2, passage], made.kept_codes[2, passage]
    assert codes.dtype == torch.uint8 and codes.shape == (8, 4)
    assert codes.nbytes * 8 == kept.nbytes
    book = ProductCodebook(made.tensors["codes"])
    near = torch.cat([book.decode_codes(book.encode_vectors(kept)), torch.zeros(1, 8)])
    torch.testing.assert_close(coded[:-1], F.linear(near[:-1], made.tensors["up"]))
    assert torch.equal(coded[-1:], plain[-1:]) and not torch.allclose(coded, plain, atol=1e-3)
    # Centres at the very vectors lose nothing.
    exact = kept.unflatten(1, (4, 2)).transpose(0, 1)
    own = replace(made, tensors={**made.tensors, "codes": exact})
    assert torch.equal(own.passage_vectors(passage, 2, "continue", True), plain)
    assert texts(lm, [ask(steer_options={"coded": True})]) != texts(lm, [ask()])
    bare = replace(made, sizes=replace(made.sizes, pieces=0, centres=0))
    with pytest.raises(RequestError, match="coded is true: this encoder has no codes"):
        read(lm, made=bare, coded=True)


def test_every_method_writes_the_same(lm):
    got = texts(lm, [ask(method=m) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    more = {"sampling": Sampling(temperature=0.8), "n": 2, "seed": 4}
    alone, copied = texts(lm, [ask(method=m, **more) for m in ("plain", "prompt-lookup")])
    assert alone == copied
    asks = [ask(seed=i, steer_options={"factor": i + 1}, n=1 + i % 2) for i in range(4)]
    assert texts(lm, asks, max_positions=7) == [texts(lm, [a])[0] for a in asks]


def test_what_cannot_be_is_refused(lm):
    for fields, sentence in (
        ({"steer_options": {"factor": 65}}, "factor is 65"),
        ({"steer_options": {"task": "sing"}}, "task is 'sing'"),
        ({"negative_prompt": "x"}, "reads no second prompt"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            plan_request(lm, ask(**fields))
        assert sentence in str(error.value) and len(str(error.value)) <= 300
    with pytest.raises(ValueError, match="needs an ARC-Encoder"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft), ask())
    for name in ("pooled-passages", "2510.20535"):
        assert steer.find_steering(name) == "arc-encoder"


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("heads", 3, "must be an even multiple"),
        ("layers", 1025, "layers"),
        ("factor", 0, "factor"),
        ("target", 1 << 21, "target"),
        ("inner", 64, "config.json asks for"),
        ("vocab_size", 1 << 24, "config.json asks for"),
        ("pieces", 3, "pieces is 3: it must divide bottleneck"),
        ("centres", 7, "config.json asks for"),
    ],
)
def test_a_file_that_lies_is_refused_before_anything_is_read(lm, tmp_path, field, value, said):
    arc_encoder.save(tmp_path, lm.artefacts[0], {})
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(FileError, match=said):
        arc_encoder.load(tmp_path)


def small(spec, decoders=1):
    nets = [
        TrainableLlama(LlamaShape(page_reader.VOCAB, 32, 2, 2, 2, 64, page_reader.CONTEXT), seed=i)
        for i in range(decoders)
    ]
    return training.ArcEncoderModel(nets, training.encoder_sizes(spec, nets), 0, spec.factor)


def grown(network):
    return {n for n, p in network.named_parameters() if p.grad is not None and bool(p.grad.any())}


def test_gradients_reach_encoder_projector_and_learned_vectors_alone():
    spec = ContextSpec("x", kind="arc-encoder", rows=2, rewriting=0.0, decoders=2)
    network = small(spec, 2)
    for loss in (training.pretraining_loss, training.tuning_loss):
        network.zero_grad()
        loss(network, spec, 3).backward()
        moved = grown(network)
        own = {n.split(".")[1] for n in moved if n.startswith("projectors")}
        assert len(own) == 1, "one decoder a step"
        (which,) = own
        assert {n for n in moved if not n.startswith("encoder.")} == {
            f"projectors.{which}.{n}" for n in ("down", "up", "continue")
        }
        assert {n.split("-")[0] for n in moved if n.startswith("encoder.")} == {
            "encoder.embed_tokens",
            "encoder.layers",
        }
    drawn = {training._decoder_of(spec, step) for step in range(20)}
    assert drawn == {0, 1}


def test_the_two_tasks_of_pretraining(monkeypatch):
    """A share of the steps writes lines once more behind a vector of its own; the others foretell
    what follows, behind up to four lines of words."""
    spec = ContextSpec("x", kind="arc-encoder", rows=2, rewriting=0.25)
    network, seen = small(spec), []
    whole = training.ArcEncoderModel.passage_inputs

    def noted(self, index, token_BN, task):
        seen.append((task, token_BN.shape[1] // 6))
        return whole(self, index, token_BN, task)

    monkeypatch.setattr(training.ArcEncoderModel, "passage_inputs", noted)
    with torch.no_grad():
        for step in range(60):
            training.pretraining_loss(network, spec, step)
    again = [lines for task, lines in seen if task == "rewrite"]
    assert set(again) == {page_reader.MOST} and 5 < len(again) < 27
    assert {lines for task, lines in seen if task == "continue"} == {4, 5, 6, 7, 8}
    seen.clear()
    with torch.no_grad():
        for step in range(8):
            training.pretraining_loss(network, replace(spec, rewriting=1.0), step)
    assert {task for task, _ in seen} == {"rewrite"}


def test_tuning_learns_what_is_measured_the_first_answer_alone(monkeypatch):
    """Later questions can be answered by what was not asked for yet, so neither learns nor counts them."""
    spec = ContextSpec("x", kind="arc-encoder", rows=2)
    nats = torch.zeros(2, page_reader.ASKED, 4)
    nats[:, 0] = torch.tensor([1.0, 2.0, 3.0, 6.0])
    nats[:, 1:] = 100.0
    found = torch.zeros(2, page_reader.ASKED, 4, dtype=torch.bool)
    found[0, 0] = True
    found[:, 1:] = True
    monkeypatch.setattr(training, "page_answer_nats", lambda *_: (nats, found))
    assert float(training.tuning_loss(small(spec), spec, 0)) == 3.0
    (right,) = training.measure_page_answers(small(spec), [None])["right"]
    assert set(right.values()) == {0.5}


def test_the_encoder_begins_as_the_first_decoder_s_first_layers():
    spec = ContextSpec("x", kind="arc-encoder", cut=1)
    network = small(spec)
    own = dict(network.decoder_at(0).model.named_parameters())
    assert all(torch.equal(x, own[n]) for n, x in network.encoder_tensors.items())
    assert network.sizes[0].skeleton.layers == 1 and "norm.weight" not in network.encoder_tensors
    assert (
        training.encoder_sizes(replace(spec, cut=0), [network.decoder_at(0)])[0].skeleton.layers
        == 2
    )
    for name in ("continue", "rewrite"):
        assert bool((network.projector_at(0)[name] == 1).all())


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("arc") / "r"
    spec = ContextSpec(
        str(out), kind="arc-encoder", steps=5, rows=2, width=32, layers=2, decoders=2, factor=3,
        pieces=12,
    )  # fmt: skip
    with few_measured_pages():
        return spec, train_context(spec)


@contextmanager
def few_measured_pages():
    """Enough pages for 256 centres, which the whole measurement has many times over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "CODED", 32)
        patch.setattr(training, "UNSEEN", 8)
        yield


def test_the_engine_reads_as_in_training(trained):
    spec, told = trained
    out = Path(spec.out)
    assert told["positions"] == {"words": 48, "vectors": 17} and len(told["right"]) == 2
    pages = page_reader.draw_pages(0, 0, 2, True)
    line = page_reader.encode_page_lines(pages)
    token = page_reader.encode_page_questions(pages)[:, :2]
    shared = []
    for at in (out, out / "decoder-1"):
        lm = load(str(at), draft=None, trained=[str(at / "arc")])
        made = lm.artefacts[0]
        shared.append({n: made.tensors[n] for n in made.sizes.encoder_shapes})
        decoder = page_reader.load_page_reader(at)
        with torch.no_grad():
            state = pooled_states(made.sizes, made.tensors, line.flatten(1), 3)
            state = torch.cat([state, made.tensors["continue"].expand(2, 1, -1)], 1)
            page = F.linear(F.linear(state, made.tensors["down"]), made.tensors["up"])
            want = page_reader.page_continuation_logits(decoder, page, token)[:, 1].log_softmax(-1)
        for row, each in enumerate(pages):
            text = f"{page_reader.OPENING}{each.text}{page_reader.CLOSING}?{each.asked[0][0]}"
            ids = tuple(lm.encode_prompt(text, raw=True))
            got = micro.law_at_end(read(lm, 0, prompt=ids), ids)
            torch.testing.assert_close(got.float(), want[row], atol=2e-3, rtol=0.0)
    assert all(torch.equal(x, shared[1][n]) for n, x in shared[0].items()), "one encoder for both"
    # Codes of each decoder's own vectors, a byte for each of twelve pieces.
    assert all(
        set(right) == {"words", "vectors", "codes", "no page"} and 0 <= right["codes"] <= 1
        for right in told["right"]
    )
    line = line.flatten(1)
    for at in (out, out / "decoder-1"):
        made = arc_encoder.load(at / "arc")
        assert made.tensors["codes"].shape == (12, 256, 4)
        kept = F.linear(pooled_states(made.sizes, made.tensors, line, 3), made.tensors["down"])[0]
        book = ProductCodebook(made.tensors["codes"])
        lost = (book.decode_codes(book.encode_vectors(kept)) - kept).square().mean()
        assert float(lost) < 0.3 * float((kept - kept.mean(0)).square().mean())
    words = page_reader.load_page_reader(out / "words")
    after = page_reader.load_page_reader(out)
    assert all(torch.equal(a, b) for a, b in zip(words.parameters(), after.parameters()))


def test_pieces_divide_the_bottleneck():
    with pytest.raises(RequestError, match="pieces is 5: it must divide bottleneck, which is 48"):
        ContextSpec("x", kind="arc-encoder", pieces=5)


def test_another_decoder_takes_the_encoder_as_it_is(trained, tmp_path):
    spec, _ = trained
    own = replace(
        spec,
        out=str(tmp_path / "more"),
        decoders=1,
        target=f"{spec.out}/decoder-1",
        shared=f"{spec.out}/arc",
        steps=3,
    )
    with pytest.raises(RequestError, match="has other layers"):
        train_context(own)
    own = replace(own, target=f"{spec.out}/words")
    with few_measured_pages():
        train_context(own)
    a, b = (arc_encoder.load(f"{at}/arc") for at in (spec.out, own.out))
    for name in a.tensors:
        if name not in ("rewrite", "codes"):  # which three steps may not have drawn
            same = torch.equal(a.tensors[name], b.tensors[name])
            assert same == (name in a.sizes.encoder_shapes), name
    # Half as many heads have the same shapes: they would be read in another way, and silently.
    config = json.loads((tmp_path / "more/arc/config.json").read_text())
    halved = {name: config[name] // 2 for name in ("heads", "kv_heads")}
    (tmp_path / "more/arc/config.json").write_text(json.dumps({**config, **halved}))
    with pytest.raises(RequestError, match="has other layers"):
        train_context(replace(own, out=str(tmp_path / "other"), shared=str(tmp_path / "more/arc")))
