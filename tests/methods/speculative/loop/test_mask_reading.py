"""STAMP: the text is plain decoding's, and each mask that it asks for is read behind the text so far, in one pass."""

import base64
from dataclasses import replace

import pytest
import torch

from polydec import Ask, Engine, Image, Sampling, Soft, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.enumerate import law_of, target_law, text_law_distance
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.learned.kinds import mask_head
from polydec.models.learned.kinds.mask_head import MaskHead
from polydec.models.sessions.session import LMSession
from polydec.models.sessions.soft import make_soft_tokens
from polydec.request.ask import plan_request
from vision_checkpoints import file_of, picture, write_llava

GREEDY = Sampling(temperature=0.0)
QUESTION = "Who followed the boat?"
SIDE = 5
"""Patches of a side of an image."""


def head_of(vocab, asks=1, *, rows=SIDE, columns=SIDE, width=32, seed=7):
    weight_H = torch.randn(width, generator=torch.Generator().manual_seed(seed))
    return MaskHead(vocab, asks, 0, rows, columns, 4, weight_H, 0.1)


def with_head(lm, head):
    return type(lm)(lm.checkpoint, None, (head,))


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("llava") / "m"
    write_llava(path)
    return load(str(path), draft=None, dtype="float32")


@pytest.fixture(scope="module")
def text(plain):
    """What plain decoding writes of the image."""
    return generate(plain, asked(method="plain")).token_ids


@pytest.fixture(scope="module")
def lm(plain, text):
    """With a head for whose token the fourth one of that text is taken."""
    return with_head(plain, head_of(plain.checkpoint.lm.vocab, text[3]))


def asked(image=None, **more):
    fields = {"method": "stamp", "sampling": GREEDY, "max_tokens": 12, "ignore_eos": True}
    given = {} if image is False else {"source": Image(file_of(image or picture()))}
    return Ask(QUESTION, **{**fields, **given, **more})


def computed_anew(lm, head, tokens, image=None, causal=False):
    """The logits of a mask behind a text, from a session that begins with it."""
    plan = plan_request(lm, asked(image, method="plain"))
    target = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
    session = target.open_session(plan.request.prompt)
    session.commit_tokens((plan.request.prompt[-1], *tokens))
    image_NH = head.last_image(session.text_vectors())
    slots = session.embed_tokens((head.mark,)) + image_NH
    states = run_coroutines([session.read_slots(slots, causal=causal)])[0]
    return (session.normed_states(states).float() @ head.weight_H + head.bias).view(SIDE, SIDE)


def test_the_text_is_plain_decodings(lm, text):
    answer = generate(lm, asked())
    assert answer.token_ids == text
    assert answer.method["name"] == "stamp" and answer.method["guarantee"] == "law"


def test_a_mask_is_read_behind_each_token_that_asks(lm, text):
    head = lm.artefacts[0]
    masks = generate(lm, asked()).image_masks
    places = [at for at, token in enumerate(text) if token == head.asks]
    assert [mask.place for mask in masks] == places and 3 in places
    for mask in masks:
        # Behind the text so far: what follows is not seen.
        want = computed_anew(lm, head, text[: mask.place + 1])
        torch.testing.assert_close(mask.logit_HW, want, atol=1e-4, rtol=1e-4)
        assert mask.patch == 4 and mask.logit_HW.shape == (SIDE, SIDE)


def test_the_slots_of_a_mask_see_one_another_unless_they_are_causal(lm, text):
    head = lm.artefacts[0]
    masks = generate(lm, asked(options={"causal": True})).image_masks
    want = computed_anew(lm, head, text[:4], causal=True)
    torch.testing.assert_close(masks[0].logit_HW, want, atol=1e-4, rtol=1e-4)
    assert not torch.allclose(want, computed_anew(lm, head, text[:4]), atol=1e-3)


def test_the_vector_of_its_patch_and_the_mark_enter_for_each_slot(lm):
    head = lm.artefacts[0]
    image_NH = torch.arange(50.0).view(25, 2)
    got = head.slot_vectors(torch.tensor([100.0, 200.0]), image_NH)
    assert torch.equal(got, image_NH + torch.tensor([100.0, 200.0]))
    # The last image of a text, wherever words stand around it.
    text = {at: torch.full((2,), float(at)) for at in (*range(3, 28), *range(40, 90))}
    assert head.last_image(text)[:, 0].tolist() == list(range(65, 90))
    assert head.last_image({}) is None


def test_a_mask_takes_one_pass_however_many_patches_it_has(plain):
    def answered(lm, **more):
        answer = generate(lm, asked(max_tokens=40, **more))
        return answer, next(m["passes"] for m in answer.metrics["models"] if m["passes"] > 1)

    text, alone = answered(plain, method="plain")
    token = max(text.token_ids, key=text.token_ids.count)
    answer, both = answered(with_head(plain, head_of(plain.checkpoint.lm.vocab, token)))
    # Masks of one answer are read together.
    assert len(answer.image_masks) > 1 and both == alone + 1
    # What the text took is told of the text.
    assert answer.metrics["tokens_per_pass"] == 1.0


def test_in_company_it_is_what_it_is_alone(lm):
    images = [picture(), picture(9, 60, 2), picture(20, 20, 3)]
    alone = [generate(lm, asked(image)) for image in images]
    engine = Engine(lm)
    tickets = [engine.submit(asked(image)) for image in images]
    for ticket, one in zip(tickets, alone, strict=True):
        got = engine.run([ticket])[0]
        assert got.token_ids == one.token_ids
        assert [mask.place for mask in got.image_masks] == [mask.place for mask in one.image_masks]
        for mask, other in zip(got.image_masks, one.image_masks, strict=True):
            torch.testing.assert_close(mask.logit_HW, other.logit_HW, atol=1e-4, rtol=1e-4)


def test_each_of_several_answers_has_its_own(lm):
    answer = generate(lm, asked(n=3, sampling=Sampling(temperature=1.0), seed=4))
    head = lm.artefacts[0]
    assert len({choice.token_ids for choice in answer.choices}) > 1
    for choice in answer.choices:
        places = [at for at, token in enumerate(choice.token_ids) if token == head.asks]
        assert [mask.place for mask in choice.image_masks] == places
        assert (choice.picture is None) == (not places)


def test_the_last_token_may_ask(lm, text):
    answer = generate(lm, asked(max_tokens=4))
    assert [mask.place for mask in answer.image_masks] == [3]
    torch.testing.assert_close(
        answer.image_masks[0].logit_HW,
        computed_anew(lm, lm.artefacts[0], text[:4]),
        atol=1e-4,
        rtol=1e-4,
    )


def test_the_last_image_of_a_prompt_is_segmented(lm, plain):
    parts = [
        {"type": "image_url", "image_url": {"url": url}}
        for url in (data_url(picture()), data_url(picture(9, 60, 2)))
    ]

    def masks(*images):
        said = {"role": "user", "content": [*images, {"type": "text", "text": QUESTION}]}
        ask = Ask([said], method="stamp", sampling=GREEDY, max_tokens=1, ignore_eos=True)
        token = generate(plain, replace(ask, method="plain")).token_ids[0]
        own = with_head(plain, head_of(plain.checkpoint.lm.vocab, token))
        return generate(own, ask).image_masks[0].logit_HW

    assert not torch.allclose(masks(*parts), masks(*reversed(parts)), atol=1e-3)


def data_url(image):
    return f"data:image/png;base64,{base64.b64encode(file_of(image)).decode()}"


def test_without_an_image_nothing_is_read(lm):
    answer = generate(lm, asked(False, max_tokens=40))
    assert answer.image_masks == () and answer.picture is None


def test_an_image_of_other_patches_is_refused_before_any_pass(plain, text, monkeypatch):
    own = with_head(plain, head_of(plain.checkpoint.lm.vocab, text[3], rows=4))
    monkeypatch.setattr(plain.network, "forward", lambda _: pytest.fail("a pass ran"))
    with pytest.raises(RequestError, match=r"the last image has 25 vectors: .* was trained for 20"):
        generate(own, asked())
    # A press of images leaves vectors out.
    fitting = with_head(plain, head_of(plain.checkpoint.lm.vocab, text[3]))
    with pytest.raises(RequestError, match="the last image has 5 vectors"):
        generate(fitting, asked(cache="todre", cache_options={"keep": 0.2, "fall": 0.0}))
    monkeypatch.undo()
    # Vectors of a user's own that words stand for count as an image.
    prompt = [5, Soft(torch.zeros(3, 32), (7, 7, 7)), 6]
    with pytest.raises(RequestError, match="the last image has 3 vectors"):
        generate(fitting, Ask(prompt, method="stamp"))


def test_a_packed_cache_is_refused(lm):
    with pytest.raises(RequestError, match="read over whole caches, so leave it out"):
        generate(lm, asked(cache="quantised"))


def test_a_session_ends_with_its_mask(lm, monkeypatch):
    forks, closed = [], []
    fork, close = LMSession.fork, LMSession.close

    def forked(self, choice=None):
        forks.append(fork(self, choice))
        return forks[-1]

    monkeypatch.setattr(LMSession, "fork", forked)
    monkeypatch.setattr(LMSession, "close", lambda self: closed.append(self) or close(self))
    assert generate(lm, asked()).image_masks
    assert forks and all(any(each is one for one in closed) for each in forks)


@pytest.mark.parametrize("causal", ["false", "true"])
def test_masks_leave_the_law_of_the_text_as_it_is(causal):
    """Enumerated, behind vectors, with masks that are read on the way."""
    law = toy_law(4)
    vectors = make_soft_tokens(law.network.embed_tokens((1, 0)), 3, 4, "x")
    prompt = (0, 2, 2, 1)
    target = SoftPromptTarget(law, prompt, (0, *vectors, 1), (0, 1, 2))
    heads = mask_head.examples(law.vocab, 4, 4)
    decoder, _ = build("stamp", target, options={"causal": causal}, artefacts=heads)
    read = []

    async def noted(rng):
        answer = await answer_one(decoder, Request(prompt, 3), rng)
        read.append(len(answer.masks))
        assert len(answer.masks) == answer.token_ids.count(heads[0].asks)
        return answer

    got = law_of(noted)
    assert text_law_distance(got, target_law(target, prompt, 3)) < 1e-9
    assert max(read) > 1 and min(read) == 0


def test_a_head_is_saved_and_read_again(tmp_path):
    vocab = TokenVocabulary(320, frozenset(), "x")
    head = head_of(vocab, 9, rows=2, columns=7)
    mask_head.save(tmp_path, head, {"held_out_overlap": {}})
    again = mask_head.load(tmp_path)
    for name in ("vocab", "asks", "mark", "rows", "columns", "patch"):
        assert getattr(again, name) == getattr(head, name), name
    assert torch.equal(again.weight_H, head.weight_H) and again.bias == pytest.approx(0.1)


def test_a_head_of_another_model_is_refused(plain):
    law = plain.checkpoint.lm
    with pytest.raises(FileError, match="states of width 9"):
        head_of(law.vocab, width=9).check_fit(law, None)
    with pytest.raises(RequestError, match="vocabular"):
        head_of(TokenVocabulary(7, frozenset())).check_fit(law, None)
