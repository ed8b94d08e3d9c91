"""Texts sorted into classes: transport between sets, prototypes, calibrated words, and every way to ask for them."""

import json
from itertools import permutations

import pytest
import torch
from torch.nn.functional import normalize

import micro
from polydec import load
from polydec.models.nets.transport import sinkhorn_plan
from polydec.request.classifier import calibrated_class_scores, last_token_states, of_states
from polydec.request.deciding import PROMPTS, ClassifierSettings
from polydec.request.prototypes import fit_prototypes, initial_prototypes

TEXTS = (
    "The grey fox watched the boat",
    "the boat by the old river",
    "nobody asked why",
    "The tall baker",
)
LABELS = ("grey fox", "river", "nobody", "tall_baker")
EXAMPLES = [
    *zip(TEXTS, LABELS, strict=True),
    ("the old fox", "grey fox"),
    ("a baker", "tall_baker"),
]
NEW = ("the grey boat", "a tall old river")


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    made = micro.trained(tmp_path_factory.mktemp("classifier"))
    return load(made.name, draft="none", dtype="float32")


def near(a, b, most=1e-4):
    assert a.shape == b.shape and float((a - b).abs().max()) <= most


def test_transport_gives_what_there_is_and_fills_what_is_wanted():
    dice = torch.Generator().manual_seed(0)
    for sources, sinks, width, rounds in (
        (4, 4, 128, 50),
        (3, 6, 128, 50),
        (4, 4, 16, 2000),
        (1, 5, 16, 1),
    ):
        f = normalize(torch.randn(50, sources, width, generator=dice), dim=-1)
        y = normalize(torch.randn(50, sinks, width, generator=dice), dim=-1)
        moved = sinkhorn_plan(1 - f @ y.mT, 0.05, rounds)
        near(moved.sum(-1), torch.full((50, sources), 1 / sources))
        near(moved.sum(-2), torch.full((50, sinks), 1 / sinks), 1e-6)
    ordered = torch.tensor([[0.0, 1.0], [1.0, 0.0]])
    near(
        sinkhorn_plan(ordered, 0.001, 50), torch.eye(2) / 2
    )  # exp(-1000) is 0: only logarithms reach it
    near(sinkhorn_plan(ordered.flip(0), 0.001, 50), torch.eye(2).flip(0) / 2)


def clouds(seed=0, prompts=3, each=4, classes=3, width=12):
    """States around a point for each class and prompt."""
    dice = torch.Generator().manual_seed(seed)
    centre = torch.randn(classes, prompts, width, generator=dice)
    label_N = torch.arange(classes).repeat_interleave(each)
    noise = 0.3 * torch.randn(len(label_N), prompts, width, generator=dice)
    return centre[label_N] + noise, label_N


def test_training_takes_the_loss_down_and_sorts_what_is_new():
    state_NPH, label_N = clouds()
    nothing = torch.zeros(len(label_N), 3)
    made, losses = fit_prototypes(state_NPH, label_N, nothing, ClassifierSettings(width=8))
    assert losses[-1] < 0.2 * losses[0] and min(losses) == pytest.approx(losses[-1], abs=0.01)
    assert made.class_scores(state_NPH).argmax(-1).tolist() == label_N.tolist()
    assert not made.matrix.requires_grad


def test_one_prompt_and_one_prototype_are_matched_by_their_cosine():
    state_NPH, label_N = clouds(prompts=1)
    made = initial_prototypes(state_NPH, label_N, 3, ClassifierSettings(width=8))
    cosine = made.class_features(state_NPH)[:, 0] @ normalize(made.of_class[:, 0], dim=-1).T
    near(made.class_scores(state_NPH), 10 * (cosine - 1), 1e-5)


def test_the_order_of_prompts_does_not_matter_and_which_is_which_does():
    state_NPH, label_N = clouds()
    nothing = torch.zeros(len(label_N), 3)
    made, _ = fit_prototypes(state_NPH, label_N, nothing, ClassifierSettings(width=8, epochs=5))
    near(made.class_scores(state_NPH[:, [2, 0, 1]]), made.class_scores(state_NPH), 2e-3)
    pooled = state_NPH.mean(1, keepdim=True).expand(-1, 3, -1)
    assert (made.class_scores(pooled) - made.class_scores(state_NPH)).abs().max() > 0.1


def test_averaging_takes_the_mean_in_place_of_transport():
    """One prompt is the same either way; of several, only the mean feature counts, and it can be trained as well."""
    for prompts, same in ((1, True), (3, False)):
        state_NPH, label_N = clouds(prompts=prompts)
        sets = initial_prototypes(state_NPH, label_N, 3, ClassifierSettings(width=8))
        mean = initial_prototypes(state_NPH, label_N, 3, ClassifierSettings(width=8, averaged=True))
        off = (sets.class_scores(state_NPH) - mean.class_scores(state_NPH)).abs().max()
        assert (off < 1e-5) == same
        feature_NW = normalize(mean.class_features(state_NPH).mean(1), dim=-1)
        class_CW = normalize(normalize(mean.of_class, dim=-1).mean(1), dim=-1)
        near(mean.class_scores(state_NPH), 10 * (feature_NW @ class_CW.T - 1), 1e-5)
    how = ClassifierSettings(width=8, averaged=True)
    made, losses = fit_prototypes(state_NPH, label_N, torch.zeros(len(label_N), 3), how)
    assert losses[-1] < 0.2 * losses[0]
    assert made.class_scores(state_NPH).argmax(-1).tolist() == label_N.tolist()


def test_a_text_that_says_nothing_favours_no_class(lm):
    sorter = lm.classifier(EXAMPLES, prompts=PROMPTS[:2])
    calm = torch.stack([lm_state(lm, p.replace("{text}", "")) for p in PROMPTS[:2]])
    near(
        calibrated_class_scores(lm, calm[None], sorter.calm_PV, sorter.words),
        torch.zeros(1, 4),
        1e-5,
    )
    told = calibrated_class_scores(
        lm, last_token_states(lm, NEW, PROMPTS[:2]), sorter.calm_PV, sorter.words
    )
    assert told.abs().max() > 0.01


def lm_state(lm, text):
    from polydec.core.scheduler import run_coroutines
    from polydec.request.embedding import EmbeddingInput, last_state

    return run_coroutines(
        [last_state(lm.checkpoint.lm, EmbeddingInput(tuple(lm.checkpoint.text.encode(text)), None))]
    )[0]


def test_calibrated_words_are_means_of_ratios_over_words_and_of_logarithms_over_prompts(lm):
    sorter = lm.classifier(labels=LABELS, prompts=PROMPTS[:2])
    encode = lm.checkpoint.text.encode
    got = sorter.class_scores(NEW)
    for text, row in zip(NEW, got, strict=True):
        for name, score in zip(LABELS, row, strict=True):
            tokens = sorted(
                {encode(f" {w}", special=False)[0] for w in name.replace("_", " ").split()}
            )
            logs = []
            for p in PROMPTS[:2]:
                full, empty = (
                    torch.softmax(
                        lm.network.head_logits(lm_state(lm, p.replace("{text}", x))[None])[0], -1
                    )
                    for x in (text, "")
                )
                logs.append((full[tokens] / empty[tokens]).mean().log())
            near(score, sum(logs) / 2)


def test_states_that_were_read_before_and_company_change_nothing(lm):
    names, texts = LABELS, [t for t, _ in EXAMPLES]
    read = last_token_states(lm, texts, PROMPTS)
    fresh = lm.classifier(EXAMPLES)
    again = of_states(lm, read, [c for _, c in EXAMPLES], names, PROMPTS, ClassifierSettings())
    assert torch.equal(fresh.prototypes.matrix, again.prototypes.matrix)
    near(fresh.class_scores(NEW), torch.cat([again.class_scores([text]) for text in NEW]), 1e-3)
    decision = fresh.classify(NEW[0])[0]
    assert sum(decision.chances.values()) == pytest.approx(1) and decision.label in names
    assert max(decision.chances, key=decision.chances.get) == decision.label
    assert not lm.checkpoint.lm.live


def test_words_of_a_class_come_from_its_own_examples(lm):
    none = lm.classifier(EXAMPLES, words=0).words
    more = lm.classifier(EXAMPLES, words=3).words
    other = lm.classifier([*EXAMPLES[:2], ("why why why", "nobody"), *EXAMPLES[3:]], words=3).words
    assert (more.there_Cn.sum(-1) == none.there_Cn.sum(-1) + 3).all()
    for c, row in enumerate(more.token_Cn.tolist()):
        tokens = [t for t, there in zip(row, more.there_Cn[c], strict=True) if there]
        assert len(set(tokens)) == len(tokens)
        assert (row == other.token_Cn[c].tolist()) or c == 2


def test_the_weight_of_words_falls_with_the_examples(lm):
    assert lm.classifier(labels=LABELS).weight == 1
    assert lm.classifier(EXAMPLES).weight == pytest.approx(4 / 6)
    assert lm.classifier(EXAMPLES, weight=0.25).weight == 0.25


@pytest.mark.parametrize(
    "fields, sentence",
    [
        ({"labels": ("river",)}, "classes are 1: give 2"),
        ({"labels": ("river", " ")}, "a class's name is empty"),
        ({"examples": EXAMPLES, "labels": (*LABELS, "boat")}, "class 'boat' has no example"),
        ({"examples": EXAMPLES, "labels": LABELS[:3]}, "an example is of class 'tall_baker'"),
        ({"examples": EXAMPLES, "prompts": ("no place",)}, "it must hold {text} once"),
        ({"examples": EXAMPLES, "prompts": ()}, "prompts are 0"),
        ({"examples": EXAMPLES, "width": 0}, "width is 0"),
        ({"examples": EXAMPLES, "softness": 0.0}, "softness is 0"),
        ({"examples": [("", "a"), ("x", "b")]}, "text 1 is empty"),
        ({"examples": [("x " * 100_000, "a"), ("x", "b")]}, "text 1 has more than"),
    ],
)
def test_what_cannot_be_is_refused(lm, fields, sentence):
    with pytest.raises(ValueError, match=r".") as error:
        lm.classifier(**fields)
    assert sentence in str(error.value) and len(str(error.value)) <= 300


def test_the_command_line(lm, polydec_command, tmp_path):
    def command(*words):
        flags = ["--model", lm.name, "--dtype", "float32", *words]
        return polydec_command("classify", *flags)

    file = tmp_path / "examples.jsonl"
    rows = [
        {"text": t, "intent": c} if i % 2 else {"text": t, "label": c}
        for i, (t, c) in enumerate(EXAMPLES)
    ]
    file.write_text("\n".join(map(json.dumps, rows)) + "\n", "utf-8")
    code, out, _ = command(*NEW, "--examples", str(file), "--set", "epochs=3")
    answers = [json.loads(line) for line in out.splitlines()]
    assert not code and [a["text"] for a in answers] == list(NEW)
    same = lm.classifier(EXAMPLES, epochs=3).classify(NEW)
    assert [a["label"] for a in answers] == [d.label for d in same]
    code, out, _ = command(
        NEW[0], "--label", "fox", "--label", "river", "--prompt", "{text} is about"
    )
    assert not code and set(json.loads(out)["chances"]) == {"fox", "river"}
    file.write_text('{"text": "x"}\n', "utf-8")
    for words, sentence in (
        ((NEW[0], "--examples", str(file)), "line 1 of"),
        ((NEW[0],), "there is no class"),
        (("--label", "a", "--label", "b"), "there is no text"),
        ((NEW[0], "--label", "a", "--set", "epoch=3"), "--set epoch: it must be one of width"),
    ):
        code, _, err = command(*words)
        assert code == 2 and sentence in err and "Traceback" not in err


def test_prompts_go_to_the_prototypes_that_are_near_them():
    """As good as the best of all ways to pair them, which a plan of equal parts is far from."""
    state_NPH, label_N = clouds(prompts=3)
    how = ClassifierSettings(width=8, softness=0.002, rounds=400)
    made = initial_prototypes(state_NPH, label_N, 3, how)
    feature_NPW = made.class_features(state_NPH[:, [2, 0, 1]])
    cost_NCPM = 1.0 - torch.einsum("npw,cmw->ncpm", feature_NPW, made.of_class)
    pairings = torch.stack(
        [
            sum(cost_NCPM[:, :, p, m] for p, m in enumerate(order)) / 3
            for order in permutations(range(3))
        ]
    )
    near(made.class_scores(state_NPH[:, [2, 0, 1]]), -10.0 * pairings.min(0).values, 0.05)
    alike = -10.0 * cost_NCPM.mean((-1, -2))
    assert float((made.class_scores(state_NPH) - alike).abs().max()) > 1.0
