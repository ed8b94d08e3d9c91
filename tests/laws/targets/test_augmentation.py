"""Cache augmentation: a coprocessor reads every layer's cache; groups of a block mask; how it is
trained."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, Sampling, Soft, load
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.check_target import TargetChecker, check_target
from polydec.lab.train.context import train_context
from polydec.lab.train.contexts import cache_augmentation as training
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.specs.context import ContextSpec
from polydec.laws.targets.augmented import CacheAugmentationMaker
from polydec.laws.targets.thinking import LatentPrefixTarget
from polydec.methods.registry import steer
from polydec.models.learned.kinds import coprocessor
from polydec.models.learned.kinds.coprocessor import examples, grouped_attention_mask
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from polydec.request.loaded import LoadedModel

METHODS = ("plain", "auto", "prompt-lookup", "draft-model", "token-recycling", "lookahead", "pearl")
PROMPT = "The grey fox and the river and the grey fox and the"
WAY = "cache-augmentation"


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    lm = micro.trained(tmp_path_factory.mktemp("augmented"), examples=examples)
    lm.artefacts[0].check_fit(lm.checkpoint.lm, None)
    return lm


def ask(**fields):
    asked = {"steer": WAY, "steer_options": {"latents": 3}, "max_tokens": 12}
    return Ask(PROMPT, **{"raw": True, "ignore_eos": True, **asked, **fields})


def texts(lm, asks, **limits):
    return micro.completed_ids(Engine(lm, **limits), asks)


async def no_rows(checker):
    """A beginning of the prompt has no vectors: it is another text."""


def small(seed=0, latents=3, pausing=False):
    net = TrainableLlama(LlamaShape(training.VOCAB, 32, 2, 2, 1, 64, training.CONTEXT), seed=seed)
    return training.CacheAugmentationModel(net, latents, seed, pausing)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_law_behind_vectors_is_a_target(lm, monkeypatch, count):
    monkeypatch.setattr(TargetChecker, "prompt_rows", no_rows)
    law, made = lm.checkpoint.lm, lm.artefacts[0]
    thinking = LatentPrefixTarget(law, (7, 8, 9), CacheAugmentationMaker(made, 2, 320, count))
    check_target(thinking, prompt=(7, 8, 9), tolerance=1e-4)


def test_vectors_come_from_the_cache_of_every_layer(lm):
    """They are read behind the prompt; another prompt, or another layer's cache, makes others, and
    fewer of them are the first ones."""
    law, made = lm.checkpoint.lm, lm.artefacts[0]

    def memory(prompt):
        session = law.open_session((*prompt, 5))
        run_coroutines([session.score_draft(Draft.chain_draft(5), ScoreRequest())])
        return [tuple(x.clone() for x in session.layer_memory(at)) for at in range(2)]

    kept = memory((7, 8))
    vectors = made.make_vectors(kept, 3)
    thinking = LatentPrefixTarget(
        law, (7, 8, 9), CacheAugmentationMaker(made, 2, 320, 3)
    ).open_session((7, 8, 9))
    by_hand = law.open_session((7, 8, *make_soft_tokens(vectors, 320, 64, "x"), 9))
    got, want = (
        run_coroutines([s.score_draft(Draft.chain_draft(9), ScoreRequest())])[0].logprob_row(0)
        for s in (thinking, by_hand)
    )
    torch.testing.assert_close(got, want, atol=1e-4, rtol=0.0)
    torch.testing.assert_close(made.make_vectors(kept, 1), vectors[:1], atol=1e-5, rtol=0.0)
    other = memory((7, 6))
    for at in range(2):
        mixed = [other[i] if i == at else kept[i] for i in range(2)]
        assert not torch.allclose(made.make_vectors(mixed, 3), vectors, atol=1e-4)
    assert not torch.allclose(vectors[0], vectors[1], atol=1e-3)


def test_without_vectors_the_text_is_the_plain_one(lm):
    plain = texts(lm, [ask(steer=None, steer_options={})])
    assert texts(lm, [ask(steer_options={"latents": 0})]) == plain != texts(lm, [ask()])
    assert texts(lm, [ask(steer_options={"latents": 64})]) == texts(lm, [ask()])


def test_every_method_writes_the_same(lm):
    got = texts(lm, [ask(method=m) for m in METHODS])
    assert got == got[:1] * len(METHODS)
    for more in (
        {"sampling": Sampling(temperature=0.8), "n": 2, "seed": 4},
        {"sampling": Sampling(temperature=0.0, repetition_penalty=1.4)},
    ):
        alone, copied = texts(lm, [ask(method=m, **more) for m in ("plain", "prompt-lookup")])
        assert alone == copied
    asks = [ask(seed=i, steer_options={"latents": i}, n=1 + i % 2) for i in range(4)]
    alone = [texts(lm, [a])[0] for a in asks]
    for limits in ({"max_cache_bytes": 1}, {"max_positions": 7}):
        assert texts(lm, asks, **limits) == alone


def test_what_cannot_be_is_refused(lm):
    for fields, sentence in (
        ({"steer_options": {"latents": 65}}, "latents is 65"),
        ({"steer_options": {"latents": 60}, "max_tokens": 190}, "60 vectors included"),
        ({"cache": "quantised"}, "a coprocessor reads the target's keys and values: cache is"),
    ):
        with pytest.raises(ValueError, match=r".") as error:
            plan_request(lm, ask(**fields))
        assert sentence in str(error.value) and len(str(error.value)) <= 300
    with pytest.raises(ValueError, match="needs a coprocessor"):
        plan_request(LoadedModel(lm.checkpoint, lm.draft), ask())
    with pytest.raises(ValueError, match="the prompt needs two tokens, and no vectors"):
        plan_request(lm, Ask([5, Soft(torch.zeros(2, 64)), 6], raw=True, steer=WAY, max_tokens=4))
    made = lm.artefacts[0]
    with pytest.raises(
        ValueError, match="reads 3 layers of 2 heads of 16 numbers: this target has 2"
    ):
        replace(made, skeleton=replace(made.skeleton, layers=3)).check_fit(lm.checkpoint.lm, None)
    for name in ("coprocessor", "2412.17747"):
        assert steer.find_steering(name) == WAY


def test_what_is_kept_is_read(tmp_path, lm):
    made = lm.artefacts[0]
    coprocessor.save(tmp_path, made, {"target": "x"})
    read = coprocessor.load(tmp_path)
    memory = [(torch.randn(2, 4, 16), torch.randn(2, 4, 16)) for _ in range(2)]
    assert torch.equal(read.make_vectors(memory, 3), made.make_vectors(memory, 3))


# training


def test_groups_see_their_text_and_themselves():
    seen = torch.tensor([[[True, False, False], [True, True, False]]])
    got = grouped_attention_mask(seen, 2)[0].int().tolist()
    assert got == [
        [1, 0, 0, 1, 0, 0, 0],
        [1, 0, 0, 1, 1, 0, 0],
        [1, 1, 0, 0, 0, 1, 0],
        [1, 1, 0, 0, 0, 1, 1],
    ]


def rows(count=3):
    spec = ContextSpec("x", kind=WAY, hops=2)
    return training.encode_sum_rows(training.draw_sum_texts(spec, 0, 0, count))


@pytest.mark.parametrize("latents, pausing", [(0, True), (3, False), (3, True)])
def test_one_pass_over_groups_is_a_pass_for_each(latents, pausing):
    """The block mask against reading every place alone, and against another order of the places."""
    net, token = small(latents=latents, pausing=pausing), rows()
    places = torch.tensor([[3, 9, 20], [4, 5, 17], [2, 11, 12]])
    with torch.no_grad():
        nats, _ = net.predict_ahead(token, places)
        swapped, _ = net.predict_ahead(token, places.flip(1))
        torch.testing.assert_close(swapped.flip(1), nats, atol=1e-4, rtol=0.0)
        trunk = net.model.model
        for row in range(3):
            for group in range(3):
                at = int(places[row, group])
                text = trunk.embed_tokens(token[row : row + 1, : at + 1])
                past = net.cache_after(token[row : row + 1, : at + 1])
                made = net.make_vectors(torch.tensor([[at]]), past)[0] if latents else text[:, :0]
                rest = token[row : row + 1, at + 1 : at + 1 + training.AHEAD]
                whole = torch.cat([text, made, trunk.embed_tokens(rest)], dim=1)
                from polydec.lab.train.prefix_network import forward_with_past

                state = trunk.norm(forward_with_past(trunk, whole)[0])
                logits = net.model.token_logits(state)[0, at + latents : -1]
                want = torch.nn.functional.cross_entropy(logits, rest[0], reduction="none")
                torch.testing.assert_close(nats[row, group], want, atol=1e-4, rtol=0.0)


def test_gradients_reach_the_coprocessor_alone():
    for pausing in (False, True):
        net = small(pausing=pausing)
        net.predict_ahead(rows(), torch.tensor([[3, 9]] * 3))[0].mean().backward()
        assert all(p.grad is None for p in net.model.parameters())
        assert bool(net.soft.grad.abs().sum() > 0)
        reads = [p.grad is not None for n, p in net.reads.named_parameters() if "embed" not in n]
        assert all(reads) != pausing and any(reads) != pausing
        rows_ = net.soft.grad
        assert pausing or not torch.allclose(rows_[0], rows_[1])


def test_the_coprocessor_begins_as_the_model():
    net = small()
    for (name, a), b in zip(net.reads.named_parameters(), net.model.model.parameters()):
        assert torch.equal(a, b) or name == "norm.weight"


def test_it_is_trained_and_the_engine_reads_as_in_training(tmp_path):
    fields = {
        "kind": WAY,
        "steps": 20,
        "rows": 4,
        "width": 32,
        "layers": 2,
        "hops": 2,
        "latents": 3,
    }
    spec = ContextSpec(str(tmp_path / "c"), **fields)
    result = train_context(spec)
    assert len(result["nats_with"]) == len(result["nats_without"]) == training.AHEAD
    lm = load(spec.out, draft=None, trained=[f"{spec.out}/coprocessor"], dtype="float32")
    made = lm.artefacts[0]
    net = training.CacheAugmentationModel(training.load_directory(spec.out), 3, 0, False)
    with torch.no_grad():
        net.soft.copy_(made.soft_LH)
        for name, p in net.tensors.items():
            p.copy_(made.tensors[name])
    token = rows()
    place = 2 * 2 + 1
    assert token[0, place + 1] == training.IDS["="]
    with torch.no_grad():
        nats, _ = net.predict_ahead(token, torch.full((3, 1), place))
    for row in range(3):
        ids = tuple(token[row, : place + 2].tolist())
        law = LatentPrefixTarget(
            lm.checkpoint.lm, ids, CacheAugmentationMaker(made, 2, training.VOCAB, 3)
        ).open_session(ids)
        got = run_coroutines([law.score_draft(Draft.chain_draft(ids[-1]), ScoreRequest())])[
            0
        ].logprob_row(0)
        assert float(-got[token[row, place + 2]]) == pytest.approx(float(nats[row, 0, 1]), abs=1e-4)
    never = train_context(replace(spec, out=str(tmp_path / "n"), target=spec.out, reasoning="none"))
    assert never["answers_nats_without"] == pytest.approx(result["answers_nats_without"], abs=1e-4)
    pause = train_context(
        replace(spec, out=str(tmp_path / "p"), target=spec.out, reasoning="chain")
    )
    assert pause["answers_nats_without"] == pytest.approx(result["answers_nats_without"], abs=1e-4)
