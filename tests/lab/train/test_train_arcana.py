"""Adapters by modality and a ladder of queries: what is trained is what decodes, words alone run as words did, and what
does not fit is refused."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import micro
from polydec import Ask, Engine, Image, Sampling, generate, load
from polydec.base.errors import FileError, RequestError
from polydec.lab.train.arcana import (
    ArcanaStudent,
    saved_adapter,
    scene_token_ids,
    train_arcana,
)
from polydec.lab.train.lora import write_adapter
from polydec.lab.train.modal_lora import ModalLinear, modal_parts
from polydec.lab.train.scenes import scene_words
from polydec.lab.train.specs.arcana import ArcanaSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.vision import (
    MARKS,
    PATCHES,
    LlamaShape,
    TrainableLlava,
    answer_logits,
    asked_answer_loss,
    draw_example,
    measure_answers,
    published_files,
)
from polydec.models.formats.adapters import CONFIG, WEIGHTS
from polydec.models.formats.llava import read_llava
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.ledger import LedgerEntry
from polydec.models.sessions.queries import SILENT, query_of
from polydec.models.sessions.soft import make_soft_tokens
from polydec.models.sessions.sources import open_source
from polydec.models.text.picture_view import DrawnPicture
from polydec.request.ask import plan_request

SIZES = {"width": 32, "layers": 2, "tower_width": 32, "tower_layers": 2}
SMALL = {"steps": 2, "rows": 2, "rank": 4, "queries": 3}
GREEDY = Sampling(temperature=0.0)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """A model of scenes in float32, with sharp random weights."""
    torch.set_num_threads(1)
    at = tmp_path_factory.mktemp("base")
    words = (*MARKS, *scene_words())
    spec = VisionSpec(str(at), **SIZES)
    shape = LlamaShape(len(words), 32, 2, 1, 1, 96, 512)
    network = TrainableLlava(spec, shape)
    g = torch.Generator().manual_seed(5)
    with torch.no_grad():
        network.language.model.embed_tokens.weight.normal_(generator=g)
        # Norms are folded into adapters, so that ones would hide a forgotten one.
        for name, p in network.named_parameters():
            if "layernorm" in name and p.ndim == 1:
                p.uniform_(0.5, 1.5, generator=g)
    tensors = {name: t.detach().contiguous() for name, t in network.published_tensors().items()}
    save_file(tensors, at / "model.safetensors", {"format": "pt"})
    for name, content in published_files(spec, shape, words).items():
        (at / name).write_text(json.dumps(content))
    return at


def make_student(base, at, *, drawn=True, **more):
    """A student and its saved adapter; drawn: all that is trained is random, as if something had been learned."""
    spec = ArcanaSpec(str(at), str(base), **{**SMALL, **more})
    source = open_source(str(base))
    parted = read_llava(source.config, source.weights, source.processor)
    student = ArcanaStudent(parted, spec).eval()
    g = torch.Generator().manual_seed(3)
    if drawn:
        with torch.no_grad():
            for p in student.parameters():
                if p.requires_grad:
                    p += torch.randn(p.shape, generator=g) * 0.2
    write_adapter(at, *saved_adapter(student, parted, spec))
    return student


def ids_of(base):
    return scene_token_ids(open_source(str(base)), "base")


def examples_of(count, seed=7):
    rng = np.random.default_rng(seed)
    return [draw_example(rng, unseen=True) for _ in range(count)]


def image_of(example):
    return Image(DrawnPicture(example.pixels).png_file)


def law_behind(lm, example, question):
    plan = plan_request(lm, Ask(question.asked, source=image_of(example)))
    law = plan.encoded.vectors.prompted_law(lm.checkpoint.lm)
    return micro.law_at_end(law, plan.request.prompt).float()


FORMS = {
    "two adapters with a ladder": {},
    "two adapters": {"queries": 0},
    "one adapter with a ladder": {"apart": False},
    "one adapter": {"apart": False, "queries": 0},
    "more for images": {"image_share": 0.75},
}


@pytest.mark.parametrize("form", FORMS)
def test_the_saved_adapter_computes_what_was_trained(base, tmp_path, form):
    student = make_student(base, tmp_path, **FORMS[form])
    lm = load(str(tmp_path), draft=None, dtype="float32")
    for example in examples_of(2):
        with torch.no_grad():
            logits_BTV, rows = answer_logits(student, [example], ids_of(base))
        for k, question in enumerate(example.questions[:4]):
            mine = (rows.question_BT[0] == k) & (rows.right_BT[0] >= 0)
            want = logits_BTV[0][mine][0].log_softmax(-1)
            torch.testing.assert_close(law_behind(lm, example, question), want, atol=1e-4, rtol=0.0)


def test_nothing_learned_is_the_model_itself(base, tmp_path):
    make_student(base, tmp_path, drawn=False, queries=0)
    own = load(str(base), draft=None, dtype="float32")
    lm = load(str(tmp_path), draft=None, dtype="float32")
    example = examples_of(1)[0]
    for question in example.questions[:3]:
        torch.testing.assert_close(
            law_behind(lm, example, question),
            law_behind(own, example, question),
            atol=1e-5,
            rtol=0.0,
        )


def test_words_alone_run_as_with_the_adapter_for_words(base, tmp_path):
    make_student(base, tmp_path / "both")
    config = json.loads((tmp_path / "both" / CONFIG).read_text())
    tensors = load_file(tmp_path / "both" / WEIGHTS)
    words = {
        f"base_model.model.{name.removeprefix('text.')}": t
        for name, t in tensors.items()
        if name.startswith("text.")
    }
    write_adapter(tmp_path / "words", words, {**config, "peft_type": "LORA"})
    both, plain = (
        load(str(tmp_path / name), draft=None, dtype="float32").checkpoint.lm
        for name in ("both", "words")
    )
    bare = load(str(base), draft=None, dtype="float32").checkpoint.lm
    prompt = (5, 9, 12, 7)
    got = micro.law_at_end(both, prompt)
    torch.testing.assert_close(got, micro.law_at_end(plain, prompt), atol=1e-5, rtol=0.0)
    assert not got.allclose(micro.law_at_end(bare, prompt), atol=0.01)


def test_rows_of_images_alone_run_under_their_adapter(base, tmp_path, monkeypatch):
    make_student(base, tmp_path)
    lm = load(str(tmp_path), draft=None, dtype="float32")
    network, seen = lm.network, []
    forward = type(network).forward

    def noting(self, queries):
        seen.extend(queries)
        return forward(self, queries)

    monkeypatch.setattr(type(network), "forward", noting)
    done = generate(
        lm, "describe it", source=image_of(examples_of(1)[0]), max_tokens=6, method="plain",
        sampling=GREEDY, ignore_eos=True,
    )  # fmt: skip
    assert done.usage["prompt_tokens"] == PATCHES + 3 + 2 + 1 == 36 + 3 + 2 + 1
    slots = sorted(q.slots[i] for q in seen for _, rows in q.gated for i in rows)
    assert slots == list(range(PATCHES + 3))
    # What is written runs in the merged weights, a row a token.
    assert sum(len(q) for q in seen) == PATCHES + 3 + 2 + 1 + 5


def test_lossless_methods_write_the_plain_text(base, tmp_path):
    make_student(base, tmp_path)
    lm = load(str(tmp_path), draft=None, dtype="float32")
    image = image_of(examples_of(1)[0])
    texts = {
        method: generate(
            lm, "what is in box 1 2 3 4", source=image, max_tokens=12, method=method,
            sampling=GREEDY, ignore_eos=True,
        ).choices[0].token_ids
        for method in ("plain", "prompt-lookup", "lookahead", "draft-and-verify", "layerskip")
    }  # fmt: skip
    assert len(set(texts.values())) == 1, texts


def test_in_company_each_row_has_its_own_adapter(base, tmp_path):
    """Requests with images and without share passes, and write what they write alone."""
    make_student(base, tmp_path)
    lm = load(str(tmp_path), draft=None, dtype="float32")
    asks = [
        Ask(asked, source=source, max_tokens=8, method="plain", sampling=GREEDY, ignore_eos=True)
        for asked in ("describe it", "is there a 7")
        for source in (None, *map(image_of, examples_of(2)))
    ]
    engine = Engine(lm)
    tickets = [engine.submit(ask) for ask in asks]
    while engine.step():
        pass
    together = [ticket.completion().choices[0].token_ids for ticket in tickets]
    for ask, want in zip(asks, together, strict=True):
        ticket = engine.submit(ask)
        while engine.step():
            pass
        assert ticket.completion().choices[0].token_ids == want


def test_the_tower_stays_as_it_is(base, tmp_path):
    """With the projector of the model the patches' vectors are the same to the bit; the queries' stand behind them."""
    make_student(base, tmp_path / "with")
    tensors = load_file(tmp_path / "with" / WEIGHTS)
    config = json.loads((tmp_path / "with" / CONFIG).read_text())
    left = {name: t for name, t in tensors.items() if not name.startswith("projector.")}
    write_adapter(tmp_path / "with", left, config)
    own, more = (
        load(str(at), draft=None, dtype="float32").checkpoint.vision
        for at in (base, tmp_path / "with")
    )
    one, other = (image_of(x) for x in examples_of(2))
    made = [more.tower.image_vectors(more.decode_image(image)) for image in (one, other)]
    assert torch.equal(own.tower.image_vectors(own.decode_image(one)), made[0][:PATCHES])
    assert len(made[0]) == PATCHES + 3
    # They see the image.
    assert not made[0][PATCHES:].allclose(made[1][PATCHES:], atol=1e-3)


def test_every_layer_of_the_tower_is_climbed(base, tmp_path):
    """What a rung reads reaches the queries behind the last one, of each rung."""
    student = make_student(base, tmp_path)
    g = torch.Generator().manual_seed(1)
    states = [torch.randn(1, 5, 32, generator=g) for _ in range(2)]
    before = student.query_ladder.climb_states(states)
    for rung in range(2):
        other = list(states)
        other[rung] = other[rung] + 0.5 * torch.randn(1, 5, 32, generator=g)
        assert not student.query_ladder.climb_states(other).allclose(before, atol=1e-3)


def test_queries_stay_where_vectors_are_left_out(base, tmp_path):
    make_student(base, tmp_path)
    lm = load(str(tmp_path), draft=None, dtype="float32")
    image = image_of(examples_of(1)[0])
    whole = lm.checkpoint.vision.place_parts(lm.checkpoint.vision.place_image(image))
    for press, options in (
        ("todre", {"keep": 0.25, "fall": 0.0}),
        ("token-correlation", {"keep": 0.25}),
    ):
        ask = Ask("describe it", source=image, cache=press, cache_options=options)
        plan = plan_request(lm, ask)
        vectors = [
            x for x in plan.encoded.vectors.instead if getattr(x, "state_H", None) is not None
        ]
        assert len(vectors) == 9 + 3, press
        last = torch.stack([x.state_H for x in vectors[-3:]])
        assert torch.equal(last, whole[0].vectors_KD[-3:])
        assert all(x.adapter is lm.checkpoint.vision.adapter for x in vectors)


def test_layers_that_run_alone_run_under_the_adapter(base, tmp_path):
    """To find where an image is dropped, layers run one by one; where none drops it, the law is the plain one."""
    make_student(base, tmp_path)
    lm = load(str(tmp_path), draft=None, dtype="float32")
    example = examples_of(1)[0]
    ask = {
        "prompt": "describe it",
        "source": image_of(example),
        "max_tokens": 8,
        "ignore_eos": True,
    }
    texts = [
        generate(lm, ask["prompt"], source=ask["source"], max_tokens=8, ignore_eos=True,
                 sampling=GREEDY, logprobs=1, **more).choices[0]
        for more in ({}, {"cache": "todre", "cache_options": {"keep": 1.0, "fall": 1e-6}})
    ]  # fmt: skip
    assert texts[0].token_ids == texts[1].token_ids
    assert [x.model_logp for x in texts[0].logprobs] == pytest.approx(
        [x.model_logp for x in texts[1].logprobs], abs=1e-4
    )


def test_a_pass_may_have_several_adapters():
    one, other = object(), object()
    entries = [
        LedgerEntry(3),
        *(LedgerEntry(4, 0, torch.zeros(2), adapter=x) for x in (one, other, one)),
    ]
    query = query_of(None, 0, entries, (), SILENT)
    assert query.gated == ((one, (1, 3)), (other, (2,)))
    assert query.cut_query(2, 4).gated == ((one, (1,)), (other, (0,)))
    assert NetworkQuery(None, 0, (1,), (), SILENT).gated == ()


def test_a_vector_under_an_adapter_is_another_id():
    rows = torch.ones(1, 4)
    bare, adapted = (make_soft_tokens(rows, 10, 4, "x", adapter=a)[0] for a in (None, object()))
    assert bare != adapted and adapted == make_soft_tokens(rows, 10, 4, "x", adapter=object())[0]


def test_what_is_trained_is_reached_and_the_model_is_left(base, tmp_path):
    student = make_student(base, tmp_path)
    loss, _ = asked_answer_loss(student, examples_of(3), ids_of(base))
    loss.backward()
    for name, p in student.named_parameters():
        assert (p.grad is not None) == p.requires_grad, name
        # Of an image the last layer is read by its keys and values alone.
        unread = "layers.1." in name and name.endswith((".down.1", ".up.1"))
        if p.requires_grad and (not unread or "k_proj" in name or "v_proj" in name):
            assert float(p.grad.abs().max()) > 0, name
    assert not any(
        p.requires_grad for name, p in student.language.named_parameters() if ".linear." in name
    )


def test_rows_go_through_the_adapter_of_their_kind():
    g = torch.Generator().manual_seed(1)
    part = ModalLinear(torch.nn.Linear(4, 3, bias=False), (2, 1), 2, 0.0, g)
    x = torch.randn(1, 5, 4, generator=g)
    plain = part(x)
    assert [tuple(t.shape) for t in part.down] == [(2, 4), (1, 4)]
    with torch.no_grad():
        part.up[0].fill_(1.0)
    assert torch.equal(part(x)[:, :2], plain[:, :2]) and not part(x)[:, 2:].allclose(plain[:, 2:])
    with torch.no_grad():
        part.up[0].zero_()
        part.up[1].fill_(1.0)
    assert torch.equal(part(x)[:, 2:], plain[:, 2:]) and not part(x)[:, :2].allclose(plain[:, :2])
    # By the formula: twice the product.
    want = plain[0, 0] + 2 * (part.down[1] @ x[0, 0]).sum()
    torch.testing.assert_close(part(x)[0, 0], want)


def test_adapters_of_one_rank_have_as_many_numbers(base, tmp_path):
    sizes = [
        sum(p.numel() for _, part in modal_parts(make_student(base, tmp_path, **how)) for p in (*part.down, *part.up))
        for how in ({}, {"apart": False}, {"image_share": 0.5})
    ]  # fmt: skip
    assert len(set(sizes)) == 1
    assert ArcanaSpec("x", rank=16).adapter_ranks == (12, 4)
    assert ArcanaSpec("x", rank=16, apart=False).adapter_ranks == (16, 0)


def test_training_saves_what_it_measured_and_goes_on_the_same(base, tmp_path):
    first, again = (
        train_arcana(ArcanaSpec(str(tmp_path / name), str(base), **{**SMALL, "dropout": 0.3}))
        for name in "ab"
    )
    assert first["held_out_nats"] == again["held_out_nats"]
    assert set(first["held_out_right"]) == {
        "caption", "colour", "place", "thing", "box", "region", "count", "presence",
    }  # fmt: skip
    student = make_student(base, tmp_path / "c", drawn=False, queries=0)
    examples = examples_of(4)
    _, nats = measure_answers(student, examples, ids_of(base))
    loss, _ = asked_answer_loss(student, examples, ids_of(base))
    assert nats == pytest.approx(float(loss.detach()), abs=1e-5)
    lm = load(str(tmp_path / "a"), draft=None, dtype="float32")
    assert (
        lm.checkpoint.vision.adapter is not None and lm.checkpoint.vision.tower.ladder is not None
    )


def nats_of(student, examples, ids):
    return float(asked_answer_loss(student, examples, ids)[0].detach())


def test_dropout_is_of_training_alone(base, tmp_path):
    student = make_student(base, tmp_path, dropout=0.5)
    examples = examples_of(2)
    same = [nats_of(student, examples, ids_of(base)) for _ in range(2)]
    assert same[0] == same[1]
    student.train()
    assert nats_of(student, examples, ids_of(base)) != same[0]


def changed(tensors, **more):
    return {name: t for name, t in {**tensors, **more}.items() if t is not None}


PAIR = "image.language_model.model.layers.0.self_attn.q_proj.lora_{}.weight"
DAMAGED = {
    "an unknown part": ({"other.x": torch.zeros(1)}, "'other.x': names begin with text., image., ladder., projector."),
    "sizes of another model": (
        {PAIR.format("A"): torch.zeros(1, 8), PAIR.format("B"): torch.zeros(32, 1)},
        "pairs of different sizes for 'language_model.model.layers.0.self_attn.q_proj.weight'",
    ),
    "no number": ({"ladder.queries": torch.full((3, 32), torch.nan)}, "a NaN or an infinite number in 'queries'"),
    "a ladder of another tower": (
        {"ladder.out": torch.zeros(1, 32, 32)},
        r"ladder has out of shape \(1, 32, 32\): this tower's would have \(2, 32, 32\)",
    ),
    "a ladder without a rung's part": ({"ladder.down": None}, "ladder has down of shape none"),
    "a ladder with more": ({"ladder.more": torch.zeros(1)}, "ladder has 'more': a ladder has queries"),
    "a ladder without queries": ({"ladder.queries": None}, r"ladder has queries of shape none"),
    "another projector": (
        {"projector.linear_1.weight": torch.zeros(8, 32)},
        r"projector.linear_1.weight has shape \(8, 32\)",
    ),
    "more of a projector": ({"projector.linear_3.weight": torch.zeros(8, 32)}, "projector has no such tensor"),
}  # fmt: skip


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_adapter_is_one_sentence(base, tmp_path, case):
    make_student(base, tmp_path)
    changes, words = DAMAGED[case]
    config = json.loads((tmp_path / CONFIG).read_text())
    write_adapter(tmp_path, changed(load_file(tmp_path / WEIGHTS), **changes), config)
    with pytest.raises(FileError, match=words):
        load(str(tmp_path), draft=None, dtype="float32")


def test_an_adapter_of_some_matrices_is_refused(base, tmp_path):
    make_student(base, tmp_path)
    config = json.loads((tmp_path / CONFIG).read_text())
    tensors = load_file(tmp_path / WEIGHTS)
    left = {name: t for name, t in tensors.items() if "layers.1.mlp.up_proj" not in name}
    write_adapter(tmp_path, left, config)
    with pytest.raises(FileError, match=r"lacks model.layers.1.mlp.up_proj.weight"):
        load(str(tmp_path), draft=None, dtype="float32")
    more = {
        name.replace("layers.1", "layers.7"): t.clone()
        for name, t in tensors.items()
        if "layers.1" in name
    }
    write_adapter(
        tmp_path, {**tensors, **{n: t for n, t in more.items() if n.startswith("image.")}}, config
    )
    with pytest.raises(
        FileError, match=r"changes 'language_model.model.layers.7|changes 'model.layers.7"
    ):
        load(str(tmp_path), draft=None, dtype="float32")


def test_models_that_it_does_not_fit_are_refused(base, tmp_path):
    make_student(base, tmp_path / "one")
    make_student(base, tmp_path / "two")
    config = json.loads((tmp_path / "two" / CONFIG).read_text())
    for name, words in (
        (str(tmp_path / "one"), "has an adapter for images, and so has"),
        ("zoo:tiny-draft", "which models of LLaVA's layout take"),
    ):
        (tmp_path / "two" / CONFIG).write_text(
            json.dumps({**config, "base_model_name_or_path": name})
        )
        with pytest.raises(FileError, match=words):
            open_source(str(tmp_path / "two"))
    with pytest.raises(
        RequestError, match=r"^target is .*: name a model of `polydec train vision`"
    ):
        train_arcana(ArcanaSpec(str(tmp_path / "x"), "zoo:tiny-draft", **SMALL))
    with pytest.raises(RequestError, match=r"^target is .* without an adapter for images"):
        train_arcana(ArcanaSpec(str(tmp_path / "x"), str(tmp_path / "one"), **SMALL))
    with pytest.raises(FileError, match=r"native step cannot serve it .rows of images run under"):
        load(str(tmp_path / "one"), draft=None, dtype="native")
    assert load(str(tmp_path / "one"), draft=None).checkpoint.why.startswith("rows of images run")


def test_a_model_of_other_pictures_is_refused(base, tmp_path):
    at = tmp_path / "other"
    at.mkdir()
    for file in base.iterdir():
        (at / file.name).write_bytes(file.read_bytes())
    said = json.loads((at / "preprocessor_config.json").read_text())
    (at / "preprocessor_config.json").write_text(
        json.dumps({**said, "image_mean": [0.4, 0.5, 0.5]})
    )
    with pytest.raises(RequestError, match="whose tower reads pictures otherwise"):
        train_arcana(ArcanaSpec(str(tmp_path / "x"), str(at), **SMALL))


@pytest.mark.parametrize("share", [0.0, 1.0, 0.1])
def test_a_share_that_leaves_an_adapter_without_rank_is_refused(share):
    with pytest.raises(RequestError, match=f"^image_share is {share} of rank 4: words would have"):
        ArcanaSpec("x", rank=4, image_share=share)
    assert replace(ArcanaSpec("x", rank=4), apart=False, image_share=share).adapter_ranks == (4, 0)
