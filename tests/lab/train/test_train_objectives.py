"""Objectives of `polydec train lm`: what is masked, moved and foretold, and what the engine does with such models."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.lm import LMSpec, lm_step_loss, train_lm
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.objectives import cm3, meap, token_unify
from polydec.lab.train.objectives.cm3 import FILLED, GAPS, CausalMasking
from polydec.lab.train.objectives.meap import MASK, MeapObjective
from polydec.lab.train.objectives.next_token import NextToken
from polydec.lab.train.objectives.objective_names import KNOWN
from polydec.lab.train.objectives.protocols import IGNORED
from polydec.lab.train.objectives.token_unify import MODE, TokenUnify, offset_weights
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.lm import OBJECTIVES
from polydec.request.gaps import fill_gaps

torch.set_num_threads(1)
SHAPE = LlamaShape(320, width=16, layers=2, heads=2, kv_heads=1, inner=32, context=64)
IDS = {BEGIN: 0, END: 1, MASK: 300, MODE: 301, FILLED: 302} | {
    mark: 303 + k for k, mark in enumerate(GAPS)
}


def batch(seed: int, rows: int = 6, length: int = 40) -> torch.Tensor:
    """Rows as `Packed` gives them, with ends of texts inside."""
    rng = np.random.default_rng(seed)
    tokens = rng.integers(4, 290, (rows, length + 1))
    tokens[:, 0], tokens[:, 17] = IDS[BEGIN], IDS[END]
    return torch.from_numpy(tokens)


def spliced(row, ids):
    """The text that `cm3.moved` made this row of."""
    gap = {ids[mark]: k for k, mark in enumerate(cm3.GAPS)}
    starts = [i for i, x in enumerate(row) if x in gap]
    half = len(starts) // 2
    if not half:
        return list(row)
    fills = {}
    for at in starts[half:]:
        fills[row[at]] = list(row[at + 1 : row.index(ids[cm3.FILLED], at)])
    return [y for x in row[: starts[half]] for y in fills.get(x, [x])]


def test_every_name_is_known():
    assert tuple(KNOWN) == OBJECTIVES


@pytest.mark.parametrize(
    "objective", [NextToken(), MeapObjective(0), CausalMasking(0), TokenUnify((0, 1, 0))], ids=type
)
def test_each_reduces_to_next_tokens_to_the_bit(objective):
    student = TrainableLlama(SHAPE)
    loss = objective.batch_loss(
        objective.trained_network(student), batch(0), IDS, np.random.default_rng(0)
    )
    assert torch.equal(loss, lm_step_loss(student, None, batch(0), False))


@pytest.mark.parametrize("share", [0.05, 0.15, 0.5, 0.9])
def test_exactly_so_many_inputs_are_masked_and_other_ones_in_every_row(share):
    places = set()
    for seed in range(20):
        row = batch(1)[0, :-1].numpy()
        out = meap.mask_random_inputs(row, share, IDS[MASK], IDS[END], np.random.default_rng(seed))
        at = np.flatnonzero(out == IDS[MASK])
        allowed = np.count_nonzero(row[1:-1] != IDS[END])
        assert len(at) == min(allowed, max(1, math.floor(share * len(row))))
        assert out[0] == IDS[BEGIN] and out[-1] == row[-1] and out[17] == IDS[END]
        assert np.array_equal(np.delete(out, at), np.delete(row, at))
        places.add(tuple(at))
    assert len(places) > 10


def test_a_masked_token_reaches_no_later_state_and_is_still_learned():
    """Its embedding gets no gradient as an input, in an untied network; as a target it lowers the loss."""
    student = TrainableLlama(SHAPE, tokens=torch.arange(SHAPE.vocab))
    row = torch.full((1, 11), 7)
    row[0, 5] = 99
    hidden = next(
        seed
        for seed in range(200)
        if meap.mask_random_inputs(
            row[0, :-1].numpy(), 0.15, IDS[MASK], IDS[END], np.random.default_rng(seed)
        )[5]
        == IDS[MASK]
    )
    MeapObjective().batch_loss(student, row, IDS, np.random.default_rng(hidden)).backward()
    assert not student.model.embed_tokens.weight.grad[99].any()
    assert student.model.embed_tokens.weight.grad[IDS[MASK]].any()
    assert student.lm_head.weight.grad[99].norm() > 0.1


def test_a_moved_text_comes_back_and_is_three_tokens_a_span_longer():
    for seed in range(200):
        rng = np.random.default_rng(seed)
        text = rng.integers(4, 290, 30).tolist()
        spans = cm3.draw_mask_spans(30, int(rng.integers(0, 4)), rng)
        assert spans == sorted(spans) and all(a < b for a, b in spans)
        assert all(b <= c for (_, b), (c, _) in pairwise(spans))
        row = cm3.move_spans_to_end(text, spans, IDS)
        assert len(row) == 30 + 3 * len(spans) and spliced(row, IDS) == text


def test_spans_have_the_published_law():
    """One span is a third of the text in the mean, and rows without one are exp(-mean) of all."""
    rng = np.random.default_rng(0)
    sizes = [b - a for _ in range(4000) for a, b in cm3.draw_mask_spans(300, 1, rng)]
    assert np.mean(sizes) == pytest.approx(100, abs=4)
    rows = [CausalMasking(1.0).moved_row(batch(2)[0].numpy(), IDS, rng) for _ in range(3000)]
    whole = np.mean([not np.isin(row, [IDS[m] for m in GAPS]).any() for row in rows])
    assert whole == pytest.approx(math.exp(-1), abs=0.04)


def test_a_row_keeps_its_length_and_no_span_runs_over_the_end_of_a_text():
    marks = [IDS[mark] for mark in (*GAPS, FILLED)]
    for seed in range(300):
        row = batch(3)[0].numpy()
        out = CausalMasking(3.0).moved_row(row, IDS, np.random.default_rng(seed))
        assert len(out) == len(row) and out[0] == IDS[BEGIN]
        text = spliced(out[1:].tolist(), IDS)
        assert text == row[1 : len(text) + 1].tolist()
        marked = [i for i, x in enumerate(out) if x in marks]
        tail = (
            out[marked[len(marked) // 3] :] if marked else []
        )  # of three marks a span one is in the text
        assert IDS[END] not in tail
        assert not marked or out[-1] == IDS[FILLED]


def test_numbered_marks_are_no_labels(monkeypatch):
    seen = []
    monkeypatch.setattr(cm3, "cross_entropy", lambda *args: seen.append(args) or torch.zeros(()))
    CausalMasking(3.0).batch_loss(TrainableLlama(SHAPE), batch(4), IDS, np.random.default_rng(1))
    _, inputs_BT, labels_BT = seen[0]
    marks = torch.tensor([IDS[mark] for mark in GAPS])
    assert torch.isin(inputs_BT, marks).any() and not torch.isin(labels_BT, marks).any()
    assert (labels_BT == IDS[FILLED]).any()
    shifted = torch.where(torch.isin(inputs_BT[:, 1:], marks), IGNORED, inputs_BT[:, 1:])
    assert torch.equal(labels_BT[:, :-1], shifted)


def test_drawn_offsets_estimate_the_whole_sum():
    net = TokenUnify().trained_network(TrainableLlama(SHAPE))
    torch.nn.init.normal_(net.offsets.bias)
    rows = batch(5)
    net.requires_grad_(False)
    states = net.student.model.text_states(rows[:, :-1])
    weights = offset_weights(token_unify.OFFSETS)
    losses = [
        float(
            torch.nn.functional.cross_entropy(
                token_unify.offset_token_logits(net, states[:, : 41 - k], k).flatten(0, 1),
                rows[:, k:].flatten(),
            )
        )
        for k in range(1, token_unify.OFFSETS + 1)
    ]
    assert losses[0] == pytest.approx(float(lm_step_loss(net.student, None, rows, False)), rel=1e-6)
    whole = float(weights @ np.array(losses))
    spread = float(np.sqrt(weights @ (np.array(losses) - whole) ** 2))
    several = TokenUnify((0, 0, 1), looks=2000)
    drawn = float(several.batch_loss(net, rows, IDS, np.random.default_rng(0)).detach())
    assert spread > 1e-3 and drawn == pytest.approx(whole, abs=4 * spread / 2000**0.5)


def test_masked_steps_learn_only_masks_behind_their_own_mark(monkeypatch):
    seen = []
    monkeypatch.setattr(
        token_unify, "cross_entropy", lambda *args: seen.append(args) or torch.zeros(())
    )
    objective = TokenUnify((1, 0, 0))
    objective.batch_loss(
        objective.trained_network(TrainableLlama(SHAPE)), batch(6), IDS, np.random.default_rng(1)
    )
    _, inputs_BT, labels_BT, see_TT = seen[0]
    assert see_TT.shape == (40, 40) and see_TT.all()  # what stands behind a mask is seen, too
    learned = labels_BT != IGNORED
    assert (inputs_BT[:, 0] == IDS[MODE]).all() and learned.any(1).all()
    assert torch.equal(inputs_BT == IDS[MASK], learned)
    assert torch.equal(labels_BT[learned], batch(6)[:, :-1][learned])


def test_stages_follow_one_another_for_their_shares(monkeypatch):
    seen = []
    for i, name in enumerate(("_masked", "_next", "_later")):
        monkeypatch.setattr(TokenUnify, name, lambda *_, i=i: seen.append(i) or torch.zeros(()))
    monkeypatch.setattr(
        TokenUnify, "_kinds", (TokenUnify._masked, TokenUnify._next, TokenUnify._later)
    )
    for shares, wanted in (
        ((0.3, 0.4, 0.3), [0] * 3 + [1] * 4 + [2] * 3),
        ((0.5, 0, 0.5), [0] * 5 + [2] * 5),
    ):
        objective = TokenUnify(shares, staged=True)
        network = objective.trained_network(TrainableLlama(SHAPE))
        seen.clear()
        for step in range(10):
            objective.batch_loss(
                network, batch(0), IDS, np.random.default_rng(0), (step + 0.5) / 10
            )
        assert seen == wanted


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"objective": "mep"}, "objective is 'mep'"),
        ({"mask": 0.95}, "mask is 0.95"),
        ({"spans": 8.0}, "spans is 8.0"),
        ({"objective": "cm3", "teacher": "zoo:tiny"}, "objective is 'cm3': with a teacher"),
        ({"objective": "tokenunify", "mixture": (0.5, 0.5)}, "mixture is"),
        ({"objective": "tokenunify", "mixture": (0.5, 0.5, 0.5)}, "mixture is"),
    ],
)
def test_bad_input_is_one_sentence(fields, said, tmp_path):
    with pytest.raises(RequestError, match=said):
        spec = LMSpec(str(tmp_path / "out"), **fields)
        KNOWN[spec.objective](spec)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A model of each objective, learned from a text that says which word stands between two others."""
    root = tmp_path_factory.mktemp("objectives")
    pairs = [("red", "apple"), ("blue", "sea"), ("green", "leaf"), ("white", "snow")]
    rng = np.random.default_rng(0)
    texts = [
        " ".join("the {} {} is here .".format(*pairs[rng.integers(4)]) for _ in range(12))
        for _ in range(60)
    ]
    (root / "text.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts))

    def make(objective, folder, **fields):
        spec = LMSpec(
            str(root / folder),
            data=str(root / "text.jsonl"),
            objective=objective,
            kinds=("prose",),
            shares=(1,),
            train_mb=(1.0,),
            held_kb=2.0,
            bf16=False,
            shape=replace(SHAPE, vocab=330, context=128),
            **{"schedule": TrainingSchedule(12, 1e-2, muon=0.02, save_every=5), **fields},
        )
        return train_lm(spec)

    return root, make


@pytest.mark.parametrize("objective", ["meap", "cm3", "tokenunify"])
def test_marks_are_written_by_no_answer(trained, objective):
    root, make = trained
    make(objective, objective)
    model = load(str(root / objective), ngrams=None)
    never = set(model.sampling_with().bad_token_ids)
    assert len(never) == len(KNOWN[objective](LMSpec("x")).marks) - (objective == "cm3")
    answer = generate(
        model,
        "the",
        max_tokens=20,
        n=4,
        sampling=model.sampling_with(temperature=3.0),
        ignore_eos=True,
    )
    assert not never & {x for c in answer.choices for x in c.token_ids}


def greedy(network, words, ids, parts, sizes):
    """What fills the gaps between `parts`, by whole passes over the rows that training made."""
    first, *rest = ([*words.encode(part, special=False)] for part in parts)
    row, never = [ids[BEGIN], *first], [ids[mark] for mark in (*GAPS, END)]
    for mark, part in zip(GAPS, rest):
        row += [ids[mark], *part]
    text = parts[0]
    for mark, size, part in zip(GAPS, sizes, parts[1:]):
        row.append(ids[mark])
        begun = len(row)
        while len(row) - begun < size and row[-1] != ids[FILLED]:
            logits_V = network(torch.tensor([row]))[0, -1]
            logits_V[never] = -torch.inf
            row.append(int(logits_V.argmax()))
        fill = [x for x in row[begun:] if x != ids[FILLED]]
        row = [*row[:begun], *fill, ids[FILLED]]
        text += words.decode(fill) + part
    return text


def test_gaps_are_filled_by_the_engine_in_the_order_of_training(trained, polydec_command):
    root, make = trained
    make("cm3", "gaps", schedule=TrainingSchedule(60, 1e-2, muon=0.02, save_every=200), spans=2.0)
    model, network = load(str(root / "gaps"), dtype="torch"), load_directory(str(root / "gaps"))
    words = model.checkpoint.text
    ids = {m: words.encode(m, special=False)[0] for m in (BEGIN, END, FILLED, *GAPS)}
    fills = set()
    for parts in (("the", " sea is here . the"), ("", " here", " green leaf"), ("the red", "")):
        sizes = [7, 3][: len(parts) - 1]
        asked = "".join(f"{a}[[{n}]]" for a, n in zip(parts, sizes)) + parts[-1]
        wanted = greedy(network, words, ids, parts, sizes)
        for method in ("plain", "prompt-lookup"):
            assert fill_gaps(model, asked, method=method) == wanted
        fills.add(len(wanted) - len("".join(parts)))
    assert len(fills - {0}) > 1
    # From the command line: the prompt stands before the answer, whose gaps are filled.
    asked = " sea is[[7]] . the[[3]]"
    wanted = fill_gaps(model, asked, before="the", sampling=model.sampling_with(temperature=0.0))
    assert "the" + wanted == greedy(network, words, ids, ("the sea is", " . the", ""), [7, 3])
    flags = ("--model", root / "gaps", "--dtype", "torch", "--temperature", "0", "--infill")
    told = polydec_command("generate", "the", *flags, asked, "--method", "prompt-lookup", "--json")
    assert json.loads(told.out)["text"] == wanted, told.err
    assert polydec_command("generate", "the", *flags, asked).out.rstrip("\n") == wanted.rstrip("\n")
    assert polydec_command("generate", "[[2]] the", *flags, asked).code == 0
    told = polydec_command("generate", "the", *flags, asked, "--n", "2")
    assert told.code == 0, told.err
    told = polydec_command("generate", "the", *flags, asked, "--units", "bytes")
    assert told.code == 2 and "units is given beside infill" in told.err


def test_only_its_own_mark_ends_a_gap(trained):
    """A model that would rather end the text fills the gap all the same."""
    root, make = trained
    make("cm3", "ends")
    model = load(str(root / "ends"), dtype="torch")
    end, filled = (model.checkpoint.text.encode(mark, special=False)[0] for mark in (END, FILLED))
    assert {end, filled} <= model.checkpoint.lm.vocab.eos
    # Neither the model's own mark nor anything else ends it before its five tokens are written.
    plain = model.sampling_with(bad_token_ids=(filled,))
    eager = model.sampling_with(bad_token_ids=(filled,), logit_bias={end: 50.0})
    text = "the[[5]] here"
    wanted = fill_gaps(model, text, sampling=plain)
    assert len(wanted) > len("the here")
    assert fill_gaps(model, text, sampling=eager) == wanted


def test_what_has_no_gap_or_no_marks_is_refused(trained):
    root, make = trained
    make("cm3", "refused")
    model = load(str(root / "refused"))
    with pytest.raises(RequestError, match="infill has no gap"):
        fill_gaps(model, "the sea is here")
    with pytest.raises(RequestError, match=r"infill has 9 gaps, and .* marks for 8"):
        fill_gaps(model, "[[1]] " * 9)
    with pytest.raises(RequestError, match="only a masked-diffusion or an insertion model"):
        fill_gaps(load("zoo:tiny"), "the [[2]] sea")


def test_offsets_are_draft_heads_for_medusa(trained):
    root, make = trained
    result = make(
        "tokenunify", "unified", schedule=TrainingSchedule(80, 1e-2, muon=0.02, save_every=70)
    )
    log = json.loads((root / "unified" / "training.json").read_text())
    assert set(log["right_at_offset"]) == {"2", "3", "4", "5"} and result["steps"] == 80
    model = load(str(root / "unified"), trained=[str(root / "unified" / "heads")])
    prompts = ("the red", "the blue sea is", "here . the green", "white snow is here .")
    passes = dict.fromkeys(("plain", "medusa"), 0)
    # All of the tree is fed, whatever passes cost here.
    whole = {"plain": {}, "medusa": {"cost_aware": False}}
    for prompt in prompts:
        plain, drafted = (
            generate(model, prompt, max_tokens=24, method=method, options=whole[method])
            for method in passes
        )
        assert plain.choices[0].token_ids == drafted.choices[0].token_ids
        passes["plain"] += plain.metrics["target_passes"]
        passes["medusa"] += drafted.metrics["target_passes"]
    assert passes["medusa"] < passes["plain"]


def test_the_masked_mode_is_a_model_that_fills_canvases(trained):
    """Behind MODE, what stands behind a gap seen: the token that it writes is the one that a masked step learns there."""
    root, make = trained
    make("tokenunify", "canvas", schedule=TrainingSchedule(12, 1e-2, muon=0.02, save_every=50))
    model, network = load(str(root / "canvas" / "masked")), load_directory(str(root / "canvas"))
    text = model.checkpoint.text
    mode, mask, end = (text.encode(mark, special=False)[0] for mark in (MODE, MASK, END))
    written = set()
    for word in ("apple", "sea", "leaf", "snow"):
        before, behind = (text.encode(x, special=False) for x in ("the", f" {word} is here ."))
        told = generate(model, "white snow", infill=f"the[[1]] {word} is here .", raw=True)
        asked = text.encode("white snow", special=False)
        row = torch.tensor([[mode, *asked, *before, mask, *behind, end]])
        at = row[0].tolist().index(mask)
        logits_V = network(row, None, torch.ones(row.shape[1], row.shape[1], dtype=torch.bool))[
            0, at
        ]
        logits_V[[mode, mask]] = -torch.inf
        assert told.choices[0].token_ids[len(before)] == int(logits_V.argmax())
        written.add(round(float(logits_V.max()), 3))
    assert len(written) == 4  # each continuation has a law of its own


def test_a_run_goes_on_where_it_was_and_knows_its_objective(trained):
    _, make = trained
    make("meap", "again", schedule=TrainingSchedule(6, 1e-2, muon=0.02, save_every=3))
    with pytest.raises(RequestError, match="mask"):
        make("meap", "again", schedule=TrainingSchedule(6, 1e-2, muon=0.02, save_every=3), mask=0.3)
