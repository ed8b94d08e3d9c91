"""Every training that begins with a model can train adapters of it alone: the checkpoint stays, and what is written loads."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from polydec import load
from polydec.base.errors import RequestError
from polydec.lab.train.diffusion import DiffusionSpec, train_diffusion
from polydec.lab.train.draft import DraftSpec, train_draft
from polydec.lab.train.hyperfit import HyperfitSpec, train_hyperfit
from polydec.lab.train.insertion import InsertionSpec, train_insertion
from polydec.lab.train.lm import LMSpec, train_lm
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.schedule import TrainingSchedule

torch.set_num_threads(1)
SHAPE = LlamaShape(300, width=32, layers=2, heads=2, kv_heads=1, inner=32, context=64)
SHORT = TrainingSchedule(3, 1e-2, save_every=9)
TASK = {"tasks": ("copy",), "steps": 3, "rows": 4, "width": 32, "layers": 1}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Texts, pairs and samples, and a model of each family to begin with."""
    root = tmp_path_factory.mktemp("adapters")
    texts = [f"The {a} saw the {b} by the river." for a in ("fox", "hen", "owl") for b in range(40)]
    rows = [{"text": " ".join(texts[i : i + 6])} for i in range(0, 120, 2)]
    (root / "text.jsonl").write_text("\n".join(map(json.dumps, rows)), "utf-8")
    pairs = [{"question": f"how many {i}", "answer": str(i)} for i in range(40)]
    (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)), "utf-8")
    train_lm(lm_spec(root, "lm", data=str(root / "text.jsonl"), shape=SHAPE))
    # Few texts make a tokenizer soon.
    canvas = {**TASK, "tasks": DiffusionSpec.tasks, "pairs": str(root / "pairs.jsonl")}
    train_diffusion(DiffusionSpec(str(root / "canvas"), vocab=290, **canvas))
    train_insertion(InsertionSpec(str(root / "grown"), start=str(root / "canvas"), **TASK))
    samples = [
        {
            "prompt_ids": [3, 9, 8, 7][: 1 + i % 4],
            "output_ids": [7 + (i + j) % 9 for j in range(12)],
        }
        for i in range(12)
    ]
    (root / "samples.jsonl").write_text("\n".join(map(json.dumps, samples)), "utf-8")
    train_draft(draft_spec(root, "draft", tokens=100, width=32))
    return root


def lm_spec(root, out, **fields):
    usual = {"schedule": SHORT, "kinds": ("prose",), "shares": (1,), "train_mb": (1.0,)}
    return LMSpec(str(root / out), bf16=False, held_kb=1.0, **{**usual, **fields})


def draft_spec(root, out, **fields):
    usual = {"text": str(root / "samples.jsonl"), "steps": 3, "rows": 4, "context": 64}
    return DraftSpec(str(root / out), target=str(root / "lm"), bf16=False, **{**usual, **fields})


def of_lm(root, out):
    train_lm(lm_spec(root, out, data=str(root / "text.jsonl"), start=str(root / "lm"), lora=2))


def of_pairs(root, out):
    train_lm(lm_spec(root, out, pairs=str(root / "pairs.jsonl"), start=str(root / "lm"), lora=2))


def of_hyperfit(root, out):
    small = {"length": 16, "texts": 8, "rows": 4, "epochs": 2, "context": 4, "ahead": 8, "tries": 2}
    train_hyperfit(
        HyperfitSpec(
            str(root / out), str(root / "lm"), data=str(root / "text.jsonl"), lora=2, **small
        )
    )


def of_canvas(root, out):
    train_diffusion(DiffusionSpec(str(root / out), start=str(root / "canvas"), lora=2, **TASK))


def of_insertion(root, out):
    train_insertion(InsertionSpec(str(root / out), start=str(root / "grown"), lora=2, **TASK))


def of_draft(root, out):
    train_draft(draft_spec(root, out, start=str(root / "draft"), lora=2))


KINDS = {
    "lm": ("lm", of_lm),
    "pairs": ("lm", of_pairs),
    "hyperfit": ("lm", of_hyperfit),
    "diffusion": ("canvas", of_canvas),
    "insertion": ("grown", of_insertion),
    "draft": ("draft", of_draft),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_checkpoint_stays_and_the_adapter_changes_it_where_it_is_loaded(files, kind):
    base, train = KINDS[kind]
    before = load_file(str(files / base / "model.safetensors"))
    train(files, f"{kind}-adapter")
    after = load_file(str(files / base / "model.safetensors"))
    assert all(torch.equal(before[name], after[name]) for name in before)
    out = files / f"{kind}-adapter"
    assert not (out / "model.safetensors").exists() and not (out / "config.json").exists()
    config = json.loads((out / "adapter_config.json").read_text("utf-8"))
    assert config["base_model_name_or_path"] == str(files / base) and config["r"] == 2
    adapter = load_file(str(out / "adapter_model.safetensors"))
    ups = [t for name, t in adapter.items() if name.endswith("lora_B.weight")]
    assert ups and all(t.any() for t in ups)  # what was trained
    whole = load(str(files / "lm"), draft=str(out)).draft if kind == "draft" else load(str(out))
    assert whole.checkpoint if kind != "draft" else whole.name


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: LMSpec("x", lora=2), "lora is 2: an adapter changes the checkpoint of --start"),
        (lambda: LMSpec("x", lora=2, start="y", layers=3), "with its own layers"),
        (lambda: DiffusionSpec("x", lora=2), "lora is 2: an adapter changes the checkpoint"),
        (lambda: InsertionSpec("x", lora=2), "lora is 2: an adapter changes the checkpoint"),
        (lambda: DraftSpec("x", lora=2), "lora is 2: an adapter changes a draft, so give --start"),
        (lambda: DraftSpec("x", start="y", layers=2), "layers is 2: y brings its own"),
    ],
)
def test_adapters_without_a_model_are_refused(make, said):
    with pytest.raises(RequestError, match=said):
        make()


def test_an_adapter_adds_no_tokens_and_makes_no_other_kind_of_model(files):
    with pytest.raises(RequestError, match=r"lacks <\|mask\|>, and an adapter adds no tokens"):
        train_lm(
            lm_spec(
                files,
                "x",
                data=str(files / "text.jsonl"),
                start=str(files / "lm"),
                lora=2,
                objective="meap",
            )
        )
    for spec in (
        DiffusionSpec(str(files / "x"), start=str(files / "lm"), lora=2, **TASK),
        DiffusionSpec(str(files / "x"), start=str(files / "canvas"), lora=2, block=4, **TASK),
        DiffusionSpec(str(files / "x"), start=str(files / "grown"), lora=2, **TASK),
    ):
        with pytest.raises(RequestError, match="another kind of model than what is trained"):
            train_diffusion(spec)


def test_a_draft_goes_on_from_what_it_was(files, monkeypatch):
    """Its first loss is that of the draft as it was saved, not of one that is cut from the target."""
    from polydec.lab.train import draft

    losses = []
    usual = draft.run_training

    def watched(kind, spec, prepare):
        losses.append(float(prepare(spec).loss(0)[0].detach()))
        return usual(kind, spec, prepare)

    monkeypatch.setattr(draft, "run_training", watched)
    train_draft(draft_spec(files, "longer", tokens=100, width=32, steps=30))
    train_draft(draft_spec(files, "further", start=str(files / "longer")))
    train_draft(draft_spec(files, "further-lora", start=str(files / "longer"), lora=2))
    begun, further, adapted = losses
    assert further < 0.8 * begun and adapted == pytest.approx(further, rel=1e-4)
    config = json.loads((files / "further" / "config.json").read_text("utf-8"))
    assert config["polydec_base"] == str(files / "lm") and config["hidden_size"] == 32


def test_any_model_of_the_same_tokens_can_be_made_a_draft(files):
    """It keeps its own tables, writes on-policy text as it is, and is measured over all tokens."""
    train_lm(
        lm_spec(
            files,
            "small",
            data=str(files / "text.jsonl"),
            tokenizer=str(files / "lm"),
            shape=replace(SHAPE, width=16, layers=1),
        )
    )
    (files / "own").mkdir()
    (files / "own" / "held.jsonl").write_text((files / "samples.jsonl").read_text("utf-8"))
    told = train_draft(draft_spec(files, "own", start=str(files / "small"), policy="on-policy"))
    assert told["held_out"]["all"]["tokens"] > 0 and told["held_out"]["all"]["sampled"] > 0
    assert load(str(files / "lm"), draft=str(files / "own")).draft is not None
    weights = load_file(str(files / "own" / "model.safetensors"))
    assert weights["model.embed_tokens.weight"].shape == (300, 16)
    assert not torch.equal(
        weights["model.embed_tokens.weight"],
        load_file(str(files / "small" / "model.safetensors"))["model.embed_tokens.weight"],
    )


def test_a_draft_of_other_tokens_is_refused(files):
    with pytest.raises(RequestError, match="it has 4096 tokens and the target 300"):
        train_draft(draft_spec(files, "y", start="zoo:tiny-draft"))
