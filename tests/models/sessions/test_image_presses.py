"""Images with fewer vectors, and images that late layers do not see: positions, entries and laws; what is refused."""

from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Engine, Image, Sampling, generate, load
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.testing.examples import example_artefacts
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import press
from polydec.models.nets.grid_positions import grid_positions
from polydec.models.nets.hidden_entries import HiddenEntries
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.sessions.image_fall import FallRule
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.soft import image_grids, make_soft_tokens
from polydec.models.sessions.sources import open_checkpoint
from polydec.models.sessions.vision import open_vision
from polydec.request.ask import plan_request
from vision_checkpoints import file_of, picture, write_idefics3, write_llava, write_qwen2_vl

QUESTION = "Who followed the boat?"
GREEDY = Sampling(temperature=0.0)
WIDE = picture()
PATCHES = 25
LAYERS = 6
FALLS = {"keep": 0.4, "fall": 1.0, "earliest": 0.34}
"""Of these toys attention falls in the third layer or the fourth."""
STAYS = {"keep": 0.4, "fall": 0.0}
WHOLE = {"keep": 1.0, "fall": 0.0}
ROW = ScoreRequest()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("image_presses")


@pytest.fixture(scope="module")
def theirs(folder):
    return write_llava(folder / "m", text={"num_hidden_layers": LAYERS})


@pytest.fixture(scope="module")
def exact(folder, theirs):
    """The same numbers, in float64."""
    torch.set_num_threads(1)
    name = str(folder / "m")
    lm = load(name, draft=None, dtype="float32")
    source, _ = open_vision(open_checkpoint(name, {}), "cpu")
    network = LlamaTransformer.build(source.config, source.weights, dtype="float64")
    law = CausalLaw(network, lm.checkpoint.lm.vocab)
    return replace(lm, checkpoint=replace(lm.checkpoint, lm=law))


@pytest.fixture(scope="module")
def lm(folder, theirs):
    torch.set_num_threads(1)
    lm = load(
        str(folder / "m"), draft=str(micro.write(folder / "draft", vocab=330, more=("<image>",))),
        dtype="float32",
    )  # fmt: skip
    lm = type(lm)(lm.checkpoint, lm.draft, example_artefacts(lm.checkpoint.lm.vocab, 32, 32))
    vars(lm)["costs"] = PassCosts()
    return lm


def asked(press_options=None, image=WIDE, **more):
    fields = {
        "sampling": GREEDY,
        "max_tokens": 12,
        "method": "plain",
        "ignore_eos": True,
        "source": Image(file_of(image)),
    }
    if press_options is not None:
        fields |= {"cache": "todre", "cache_options": press_options}
    return Ask(more.pop("prompt", QUESTION), **{**fields, **more})


def laws(target, plan, more=(), chunk=None):
    """Log-probabilities behind the prompt of a plan, and behind some tokens more.

    target: opens the session; chunk: tokens of a part of the prompt, or all at once."""
    ids = plan.request.prompt
    session = target.open_session(ids)
    run_coroutines([session.prefill_prompt(ScoreRequest(last=True))])
    out = list[torch.Tensor]()
    for token in (ids[-1], *more):
        (scores,) = run_coroutines([session.score_draft(Draft.chain_draft(token), ROW)])
        out.append(scores.logprob_row(0).double())
        session.commit_tokens((token,))
    session.close()
    return torch.stack(out)


def pressed_target(lm, ask):
    """A plan, and the law that its method decodes before sampling."""
    plan = plan_request(lm, ask)
    encoded = plan.encoded
    law = encoded.checked.model.checkpoint.lm
    settings = encoded.checked.press
    if settings is not None:
        from polydec.request.image_presses import law_over_press

        law = law_over_press(encoded, law, settings.press)
    return plan, encoded.vectors.prompted_law(law), law


WRITERS = {"llava": write_llava, "idefics3": write_idefics3, "qwen2_vl": write_qwen2_vl}


@pytest.mark.parametrize("layout", WRITERS)
@pytest.mark.parametrize("order", ["farthest", "sum", "random"])
def test_all_vectors_in_all_layers_are_plain_to_the_bit(folder, layout, order):
    path = folder / layout
    if not path.exists():
        WRITERS[layout](path)
    lm = load(str(path), draft=None, dtype="float32")
    plain = generate(lm, asked(logprobs=2))
    same = generate(lm, asked({**WHOLE, "choice": order}, logprobs=2))
    assert same.choices == plain.choices and same.usage == plain.usage
    fewer = generate(lm, asked({**STAYS, "choice": order}, logprobs=2))
    assert fewer.choices != plain.choices
    assert fewer.usage["prompt_tokens"] < plain.usage["prompt_tokens"]


def kept_cells(plan):
    """The cells that stay of the one image of a plan."""
    (grid,) = image_grids(plan.encoded.vectors.instead)
    assert grid.kept is not None
    return grid


def test_vectors_that_stay_stand_where_they_stood(exact, theirs):
    """Behind the projector the model of transformers reads the same vectors at the positions that they had."""
    plan, target, _ = pressed_target(exact, asked(STAYS))
    grid = kept_cells(plan)
    assert len(grid.kept) == 10
    full = plan_request(exact, asked())
    first = full.encoded.image_spans[0][0]
    gone = {first + i for i in range(PATCHES)} - {first + i for i in grid.kept}
    instead = full.encoded.vectors.instead
    places = [i for i in range(len(instead)) if i not in gone]
    model = theirs[0].model.language_model.double()
    embed = model.embed_tokens(torch.tensor([max(0, x) if x < 330 else 0 for x in instead]))
    for i, x in enumerate(instead):
        if getattr(x, "state_H", None) is not None:
            embed[i] = x.state_H
    with torch.no_grad():
        states = model(
            inputs_embeds=embed[places][None], position_ids=torch.tensor(places)[None]
        ).last_hidden_state[0]
        want = theirs[0].lm_head.double()(states[-1]).log_softmax(-1)
    theirs[0].float()
    torch.testing.assert_close(laws(target, plan)[0], want, atol=1e-4, rtol=1e-4)


def hidden_laws(lm, plan, hidden, more):
    """Laws of the plain model whose cache hides some entries, fed as any text is."""
    law = lm.checkpoint.lm
    vectors = plan.encoded.vectors
    session = law.open_session(vectors.instead)
    session.ledger.forget_entries(0)
    session.ledger.cache.hidden = hidden
    out = list[torch.Tensor]()
    for token in (vectors.instead[-1], *more):
        (scores,) = run_coroutines([session.score_draft(Draft.chain_draft(int(token)), ROW)])
        out.append(scores.logprob_row(0).double())
        session.commit_tokens((int(token),))
    session.close()
    return torch.stack(out)


def test_a_vector_that_is_left_out_is_one_that_no_layer_sees(exact):
    """Two mechanisms say the same: the prompt lacks a vector, or all layers hide it."""
    plan, target, _ = pressed_target(exact, asked(STAYS))
    grid = kept_cells(plan)
    full = plan_request(exact, asked())
    first = full.encoded.image_spans[0][0]
    gone = [first + i for i in range(PATCHES) if i not in grid.kept]
    hidden = HiddenEntries(0, tuple((i, i + 1) for i in gone))
    more = (40, 41, 42)
    want = hidden_laws(exact, full, hidden, more)
    torch.testing.assert_close(laws(target, plan, more), want, atol=1e-9, rtol=0)
    plain = hidden_laws(exact, full, None, more)
    assert (plain - want).abs().max() > 1e-3


def fallen(lm, options=FALLS, **more):
    """A plan whose image was dropped, its law behind the prompt and some tokens, and where that was."""
    plan, target, law = pressed_target(lm, asked(options, **more))
    made = laws(target, plan, (40, 41, 42))
    return plan, made, law.fall[1]


@pytest.mark.parametrize("options", [FALLS, {**FALLS, "keep": 1.0}, {**FALLS, "last": True}])
def test_dropping_an_image_is_hiding_it_from_a_layer_on(exact, options):
    plan, got, fall = fallen(exact, options)
    assert fall.is_settled and fall.hidden is not None and 2 < fall.hidden.layer < LAYERS
    want = hidden_laws(exact, plan, fall.hidden, (40, 41, 42))
    torch.testing.assert_close(got, want, atol=1e-9, rtol=0)
    seen = hidden_laws(exact, plan, None, (40, 41, 42))
    assert (seen - want).abs().max() > 1e-3, "the image says something in late layers"


def test_attention_is_asked_as_transformers_computes_it(exact, theirs):
    """The share of attention on the image, and with it the layer where it falls."""
    model = theirs[0].model.language_model
    for options, words in (
        ({**FALLS, "keep": 1.0}, None),
        ({**FALLS, "keep": 1.0, "last": True}, 1),
    ):
        _, _, fall = fallen(exact, options)
        instead = fall.prompt
        embed = model.embed_tokens(
            torch.tensor([int(x) if x < 330 else 0 for x in instead])
        ).detach()
        for i, x in enumerate(instead):
            if getattr(x, "state_H", None) is not None:
                embed[i] = x.state_H
        model.config._attn_implementation = "eager"
        with torch.no_grad():
            made = model(inputs_embeds=embed[None], output_attentions=True).attentions
        ((first, stop),) = fall.spans
        rows = slice(stop, None) if words is None else slice(-words, None)
        want = [float(a[0, :, rows, first:stop].sum(-1).mean()) for a in made]
        assert fall.shares == pytest.approx(want[: len(fall.shares)], abs=1e-5)
        # The first layer from the third on where less is left than in some layer before.
        layer = next(i for i in range(3, LAYERS) if want[i] < max(want[:i]))
        assert fall.hidden.layer == layer == len(fall.shares) - 1


def test_the_rule_of_falling():
    rule = FallRule(0.3, 0.0, 0.5, last=False)
    assert [rule.first_layer(n) for n in (1, 2, 5, 32)] == [1, 1, 3, 16]
    assert rule.has_fallen((0.5, 0.14)) and not rule.has_fallen((0.5, 0.15))
    # The most of all layers so far, not of the one before.
    assert rule.has_fallen((0.5, 0.2, 0.1)) and not rule.has_fallen((0.1, 0.2, 0.1))
    floor = replace(rule, share=0.0, floor=0.2)
    assert floor.has_fallen((0.1, 0.19)) and not floor.has_fallen((0.9, 0.2))
    assert not rule.is_off and not floor.is_off and replace(rule, share=0.0).is_off


def test_layers_behind_the_fall_are_fed_words_alone(exact, monkeypatch):
    plan, target, law = pressed_target(exact, asked(FALLS))
    network = exact.checkpoint.lm.network
    rows = dict[int, int]()
    forward = network.forward

    def counted(queries):
        for q in queries:
            for i in range(LAYERS) if q.layers is None else q.layers:
                rows[i] = rows.get(i, 0) + len(q)
        return forward(queries)

    monkeypatch.setattr(network, "forward", counted)
    session = target.open_session(plan.request.prompt)
    run_coroutines([session.prefill_prompt(ScoreRequest())])
    session.close()
    fall = law.fall[1]
    end = len(fall.prompt)
    words = end - 10
    drops = fall.hidden.layer
    want = {i: end if i < drops else end + words if i == drops else words for i in range(LAYERS)}
    assert rows == want


def test_one_law_however_it_is_fed(exact):
    """Parts of the prompt, trees, forks, evictions and what was taken back change nothing."""
    plan, target, law = pressed_target(exact, asked(FALLS))
    more = (40, 41, 42)
    want = laws(target, plan, more)
    hidden = law.fall[1].hidden
    for chunk in (3, 7):
        _, again, view = pressed_target(exact, asked(FALLS))
        view.chunk = chunk
        torch.testing.assert_close(laws(again, plan, more), want, atol=1e-9, rtol=0)
        assert view.fall[1].hidden == hidden
    session = target.open_session(plan.request.prompt)
    root = plan.request.prompt[-1]
    tree = Draft.certain_tree((root, 40, 50, 41, 42), (-1, 0, 0, 1, 3))

    def scored(session):
        (scores,) = run_coroutines([session.score_draft(tree, ROW)])
        got = [scores.logprob_row(i).double() for i in (0, 1, 3, 4)]
        torch.testing.assert_close(torch.stack(got), want, atol=1e-9, rtol=0)

    scored(session)
    scored(session.fork())
    # What is shown of keys is the same after it was fed anew, when rows of the image run through all layers.
    memory = torch.stack(session._inner.layer_memory())
    session.evict_cache()
    scored(session)
    torch.testing.assert_close(
        torch.stack(session._inner.layer_memory()), memory, atol=1e-9, rtol=0
    )
    ((first, stop),) = hidden.spans
    assert not memory[:, :, first:stop].any() and memory[:, :, :first].any()
    session.commit_tokens((root, 40))
    session.rewind_tokens(2)
    scored(session)
    (rows,) = run_coroutines([session.prefill_prompt(ScoreRequest(prompt=True))])
    assert rows is not None
    scored(session)
    session.close()
    assert not exact.checkpoint.lm.live


def test_another_text_is_read_as_the_model_reads_it(exact):
    _, _, law = pressed_target(exact, asked(FALLS))
    other = exact.encode("The grey fox watched the boat")
    session = law.open_session(other)
    assert session.law is exact.checkpoint.lm
    session.close()


METHODS = (
    "auto", "prompt-lookup", "suffix-automaton", "draft-model", "token-recycling", "lookahead", "jacobi", "merged-drafts",
    "copyspec",
)  # fmt: skip


@pytest.mark.parametrize("options", [STAYS, FALLS])
def test_lossless_methods_write_the_plain_text_in_company(lm, options):
    images = [WIDE, picture(9, 60, 2)]
    want = [generate(lm, asked(options, image)).choices[0].token_ids for image in images]
    assert want != [generate(lm, asked(None, image)).choices[0].token_ids for image in images]
    asks = [asked(options, image, method=m) for m in METHODS for image in images]
    asks += [asked(None, image) for image in images]
    got = micro.completed_ids(Engine(lm), asks)
    assert [choices[0] for choices in got[: -len(images)]] == want * len(METHODS)
    assert not lm.checkpoint.lm.live
    two = generate(lm, asked(options, n=2, sampling=Sampling(temperature=1.0)))
    alone = generate(
        lm, asked(options, n=2, sampling=Sampling(temperature=1.0), method="lookahead")
    )
    assert len(two.choices) == len(alone.choices) == 2


def test_a_draft_that_reads_images_reads_as_few_vectors(folder, theirs):
    """A draft that is the model itself is right about every token, where it sees what the model sees."""
    name = str(folder / "m")
    lm = load(name, draft=name, dtype="float32")
    vars(lm)["costs"] = PassCosts()
    more = {"method": "draft-model", "options": {"depth": 3}}
    plain = generate(lm, asked(STAYS))
    got = generate(lm, asked(STAYS, **more))
    assert got.choices[0].token_ids == plain.choices[0].token_ids
    assert got.metrics["tokens_per_pass"] > 2.5


def test_the_compiled_step_leaves_vectors_out_too(folder):
    path = folder / "compiled"
    write_llava(path, text={"num_attention_heads": 2, "num_key_value_heads": 1})
    compiled = load(str(path), draft=None)
    if compiled.checkpoint.why:
        pytest.skip(f"the native step does not serve it: {compiled.checkpoint.why}")
    want = generate(load(str(path), draft=None, dtype="float32"), asked(STAYS, logprobs=1))
    got = generate(compiled, asked(STAYS, logprobs=1))
    assert got.choices[0].token_ids == want.choices[0].token_ids
    logprobs = [[t.logp for t in made.choices[0].logprobs] for made in (got, want)]
    assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    with pytest.raises(RequestError, match="--dtype torch") as refused:
        generate(compiled, asked(FALLS))
    assert len(str(refused.value)) <= 300


def test_tiles_and_grids_keep_their_places(folder):
    """Of each tile a share stays; Qwen2-VL's cells keep their rows and columns."""
    path = folder / "idefics3"
    if not path.exists():
        write_idefics3(path)
    lm = load(str(path), draft=None, dtype="float32")
    full, few = (plan_request(lm, asked(o, picture(50, 30))) for o in (None, STAYS))
    spans = [plan.encoded.image_spans for plan in (full, few)]
    assert len(spans[0]) == len(spans[1]) > 2
    sizes = [[stop - first for first, stop in some] for some in spans]
    assert sizes[1] == [-(-2 * size // 5) for size in sizes[0]]
    text = few.encoded.vectors.instead
    places = grid_positions(image_grids(text), range(len(text)))[2]
    # What follows a tile stands where it stood: so do all marks between the tiles.
    marks = [[i for i in range(len(p.encoded.vectors.instead))
              if not any(a <= i < b for a, b in p.encoded.image_spans)] for p in (full, few)]  # fmt: skip
    assert [places[i] for i in marks[1]] == marks[0]
    row = torch.ones(3, 4) * torch.arange(3)[:, None]
    soft = make_soft_tokens(row, 90, 4, "prompt", (2, 5), (1, 4, 7))
    (grid,) = image_grids((5, *soft, 6))
    assert grid_positions((grid,), range(5)) == ([0, 1, 1, 1, 6], [0, 1, 1, 2, 6], [0, 2, 5, 3, 6])
    assert (
        len({*soft}) == 3
        and soft[1] != make_soft_tokens(row, 90, 4, "prompt", (2, 5), (1, 3, 7))[1]
    )
    for cells in ((1, 4), (4, 1, 7), (1, 4, 10), (-1, 4, 7)):
        with pytest.raises(RequestError, match="cells must ascend"):
            make_soft_tokens(row, 90, 4, "prompt", (2, 5), cells)


def test_what_is_asked_for_is_told(lm):
    answer = generate(lm, asked({"keep": 0.2, "choice": "random", "seed": 3}))
    options = {
        "keep": 0.2, "choice": "random", "seed": 3, "fall": 0.3, "floor": 0.0, "earliest": 0.5, "last": False,
    }  # fmt: skip
    assert answer.method["cache"] == {"name": "todre", "options": options}


def differing(lm, options):
    plan, target, _ = pressed_target(lm, asked(options))
    return laws(target, plan)


OPTIONS = {
    "keep": ({"fall": 0.0}, 0.7),
    "choice": (STAYS, "sum"),
    "seed": ({**STAYS, "choice": "random"}, 5),
    "fall": ({**FALLS, "fall": 0.0}, 1.0),
    "floor": ({**FALLS, "fall": 0.0}, 1.0),
    "earliest": (FALLS, 0.9),
    "last": ({**FALLS, "fall": 0.9}, True),
}


@pytest.mark.parametrize("option", OPTIONS)
def test_an_option_shows(exact, option):
    assert {*OPTIONS} == {o.name for o in press.press_options("todre")}
    usual, other = OPTIONS[option]
    one, two = (differing(exact, o) for o in (usual, {**usual, option: other}))
    assert not torch.equal(one, two)


REFUSED = {
    "no image": (
        {"source": None},
        "cache is todre: it chooses among the vectors of images, and the request holds no",
    ),
    "gaps": ({"source": None, "infill": "[[2]]"}, ""),
    "an earlier text": ({"reuse": "prefix"}, "reuse is 'prefix' and cache is todre"),
    "none is kept": ({"cache_options": {"keep": 0.0}}, "keep is 0.0"),
    "another choice": ({"cache_options": {"choice": "best"}}, "choice is 'best'"),
    "layers": ({"method": "layerskip"}, "method layerskip and cache todre do not go together"),
    "room": ({"max_tokens": 240}, "max_tokens is 240"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_one_sentence(lm, case):
    given, wanted = REFUSED[case]
    fields = {"cache_options": FALLS, **given}
    with pytest.raises(ValueError, match=r".") as refused:
        generate(lm, asked(fields.pop("cache_options"), **fields))
    assert str(refused.value).startswith(wanted), str(refused.value)
    assert "\n" not in str(refused.value) and len(str(refused.value)) <= 300


def test_there_is_room_for_all_positions(lm):
    """An answer ends where the context ends, in positions and not in entries."""
    length = {
        name: plan_request(lm, asked(o, max_tokens=None)).request
        for name, o in (("all", None), ("few", STAYS))
    }
    most = {name: 256 - len(r.prompt) for name, r in length.items()}
    assert most["few"] == most["all"] + PATCHES - 10
    plan_request(lm, asked(STAYS, max_tokens=most["all"]))
    with pytest.raises(RequestError, match="so it can be at most"):
        plan_request(lm, asked(STAYS, max_tokens=most["all"] + 1))


def test_a_model_of_texts_has_no_images_to_press(tmp_path):
    other = load(str(micro.write(tmp_path / "a")), draft=None, dtype="torch")
    with pytest.raises(
        RequestError, match=r"chooses among the vectors of images, and .* reads none"
    ):
        plan_request(other, Ask("x", raw=True, cache="todre"))


def test_networks_that_count_by_themselves_are_named(lm, monkeypatch):
    monkeypatch.setattr(type(lm.network), "moves_places", False)
    with pytest.raises(RequestError, match="counts positions by itself"):
        plan_request(lm, asked(STAYS))
    monkeypatch.undo()
    monkeypatch.setattr(type(lm.network), "watches", False)
    with pytest.raises(RequestError, match="does not show what its layers look at"):
        plan_request(lm, asked(FALLS))


def queries_and_keys(modules, run):
    """What some linear maps make while something runs, in order."""
    made = list[torch.Tensor]()
    hooks = [
        m.register_forward_hook(lambda _m, _i, out: made.append(out.detach())) for m in modules
    ]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
    return made


def looked_at(query_PW, key_PW, heads, first):
    """Attention of the row `first`, or of the mean of all where it is None: the mean over heads, one a patch."""
    query = query_PW.unflatten(-1, (heads, -1)).transpose(0, 1)
    key = key_PW.unflatten(-1, (heads, -1)).transpose(0, 1)
    asked_H1D = query.mean(1, keepdim=True) if first is None else query[:, first : first + 1]
    return (asked_H1D @ key.mT / key.shape[-1] ** 0.5).softmax(-1)[:, 0].mean(0)


def test_towers_show_what_transformers_looks_at(folder, theirs):
    """LLaVA's class token; of the two others the mean of all patches, and squares of them."""
    near = {"atol": 1e-4, "rtol": 1e-4}
    model, processor = theirs
    vision = load(str(folder / "m"), draft=None, dtype="float32").checkpoint.vision
    pixels = processor.image_processor(WIDE, return_tensors="pt").pixel_values
    named = model.model.vision_tower.named_modules()
    layers = [module for name, module in named if name.endswith("self_attn")][:2]
    parts = [part for layer in layers for part in (layer.q_proj, layer.k_proj)]
    made = queries_and_keys(parts, lambda: model.get_image_features(pixels))
    tiles = vision.decode_image(Image(file_of(WIDE)))
    vectors_KD, (found,) = vision.tower.watched_vectors(tiles)
    assert torch.equal(vectors_KD, vision.tower.image_vectors(tiles)) and not found.is_overview
    assert found.looked_LK.shape == (2, PATCHES)
    for layer in range(2):
        query, key = made[2 * layer][0], made[2 * layer + 1][0]
        torch.testing.assert_close(found.looked_LK[layer], looked_at(query, key, 3, 0)[1:], **near)
    torch.testing.assert_close(found.keys_KD, made[3][0, 1:], **near)


def test_squares_of_patches_are_looked_at_together(folder):
    image = picture(50, 30)
    model, processor = write_idefics3(folder / "squares")
    vision = load(str(folder / "squares"), draft=None, dtype="float32").checkpoint.vision
    tiles = vision.decode_image(Image(file_of(image)))
    vectors_KD, found = vision.tower.watched_vectors(tiles)
    assert torch.equal(vectors_KD, vision.tower.image_vectors(tiles))
    assert [one.is_overview for one in found] == [False] * (len(found) - 1) + [True] and len(
        found
    ) > 2
    given = processor.image_processor(image, return_tensors="pt")
    last = model.model.vision_model.encoder.layers[-1].self_attn
    heads = last.num_heads
    query, key = queries_and_keys([last.q_proj, last.k_proj], lambda: model.model.get_image_features(
        given["pixel_values"], given["pixel_attention_mask"]))  # fmt: skip
    by = model.config.scale_factor
    side = int(key.shape[1] ** 0.5)
    for at, one in enumerate(found):
        looked = looked_at(query[at], key[at], heads, None).view(side // by, by, side // by, by)
        want = looked.transpose(1, 2).reshape(-1, by * by).mean(-1)
        torch.testing.assert_close(one.looked_LK[-1], want, atol=1e-4, rtol=1e-4)
        squares = key[at].view(side // by, by, side // by, by, -1).transpose(1, 2)
        torch.testing.assert_close(
            one.keys_KD, squares.reshape(len(want), -1), atol=1e-4, rtol=1e-4
        )


def test_qwen2_vl_is_watched_before_rows_and_columns_turn(folder):
    model, processor = write_qwen2_vl(folder / "turned")
    vision = load(str(folder / "turned"), draft=None, dtype="float32").checkpoint.vision
    image = picture(70, 30)
    tiles = vision.decode_image(Image(file_of(image)))
    vectors_KD, (found,) = vision.tower.watched_vectors(tiles)
    assert torch.equal(vectors_KD, vision.tower.image_vectors(tiles))
    given = processor(image, return_tensors="pt")
    attention = model.model.visual.blocks[-1].attn
    (qkv,) = queries_and_keys([attention.qkv], lambda: model.model.get_image_features(
        given["pixel_values"], given["image_grid_thw"]))  # fmt: skip
    query, key, _ = qkv.chunk(3, -1)
    looked = looked_at(query, key, attention.num_heads, None)
    torch.testing.assert_close(
        found.looked_LK[-1], looked.view(-1, 4).mean(-1), atol=1e-4, rtol=1e-4
    )
    torch.testing.assert_close(
        found.keys_KD, key.reshape(-1, 4 * key.shape[-1]), atol=1e-4, rtol=1e-4
    )


COMPRESSED = {"alike": 0.1, "copies": 0.1, "least": 4}


def compressed(options=None, **more):
    return asked(None, cache="token-correlation", cache_options=options or COMPRESSED, **more)


@pytest.mark.parametrize("layout", WRITERS)
def test_what_repeats_nothing_is_plain_to_the_bit(folder, layout):
    path = folder / layout
    if not path.exists():
        WRITERS[layout](path)
    lm = load(str(path), draft=None, dtype="float32")
    plain = generate(lm, asked(logprobs=2))
    same = generate(lm, compressed({"copies": 1.0}, logprobs=2))
    assert same.choices == plain.choices and same.usage == plain.usage
    fewer = generate(lm, compressed({"keep": 0.4}, logprobs=2))
    assert fewer.choices != plain.choices
    assert fewer.usage["prompt_tokens"] < plain.usage["prompt_tokens"]


def test_an_image_is_read_once_more_to_be_watched(folder, theirs):
    lm = load(str(folder / "m"), draft=None, dtype="float32")
    vision = lm.checkpoint.vision
    for ask, passes in ((asked(), 1), (compressed(), 2), (compressed(), 2), (asked(), 2)):
        generate(lm, ask)
        assert vision.passes == passes


COMPRESSION_OPTIONS = {
    "alike": (COMPRESSED, 1.0),
    "copies": (COMPRESSED, 0.5),
    "least": ({**COMPRESSED, "alike": -1.0}, 9),
    "keep": (COMPRESSED, 0.8),
    "drawn": ({"keep": 0.4}, True),
    "average": ({"keep": 0.4}, True),
    "randomly": ({"keep": 0.4}, True),
    "seed": ({"keep": 0.4, "randomly": True}, 7),
}


@pytest.mark.parametrize("option", COMPRESSION_OPTIONS)
def test_an_option_of_the_compressor_shows(exact, option):
    options = {o.name for o in press.press_options("token-correlation")}
    # This toy's tower has no outlier: which layer is asked for some is seen where it is built.
    assert {*COMPRESSION_OPTIONS, "local"} == options
    assert press.build("token-correlation", {"local": 0.5})[0].choice.looked.local == 0.5
    usual, other = COMPRESSION_OPTIONS[option]
    one, two = (plan_request(exact, compressed(o)) for o in (usual, {**usual, option: other}))
    assert one.encoded.vectors.instead != two.encoded.vectors.instead
