"""Options of trainings reach what they name: prepared with two values, the network, the schedule or the loss of a step differs.

Nothing is trained: `run_training` is asked for what it would train, and the losses of the first and the last step are taken.
"""

import json
from collections.abc import Mapping
from dataclasses import fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from option_values import other_values
from picture_models import save_pictures
from polydec.base.errors import RequestError
from polydec.base.options import dataclass_options
from polydec.lab.commands.training import training_commands
from polydec.lab.train.network import LlamaShape
from polydec.lab.train.pictures import train_pictures
from polydec.lab.train.probe import train_probe
from polydec.lab.train.reader import train_reader
from polydec.lab.train.seq2seq import train_seq2seq
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.lab.train.specs.probe.reward import RewardSpec
from polydec.lab.train.specs.reader import ReaderSpec
from polydec.lab.train.specs.seq2seq import Seq2SeqSpec
from polydec.lab.train.specs.vision import VisionSpec
from polydec.lab.train.vision import train_vision

COMMANDS = {command.name: command for command in training_commands()}
TINY = LlamaShape(320, width=16, layers=2, heads=2, kv_heads=1, inner=32, context=64)
TASKS = {"tasks": ("copy",), "steps": 2, "rows": 2, "width": 32, "layers": 1}
OWN_TEXT = {"target": "zoo:tiny", "text": "samples", "steps": 2, "rows": 2}
TUNED = {"target": "zoo:tiny-draft", "text": "samples", "steps": 2, "rows": 2}
# Held-out text is written by the target itself: few prompts of what travels along, and few tokens.
HELD = {"text": "few", "data": "sample", "each": 2, "max_tokens": 4, "steps": 2}
SPOKEN = {**HELD, "target": "zoo:tiny-draft", "length": 8, "bf16": False}
CANVASES = {"target": "zoo:diffusion", "tasks": ("copy",), "steps": 2}
SOLVED = {"target": "zoo:reasoner", "kinds": ("chain",), "each": 2, "steps": 2}
WORDS = {
    "steps": 2,
    "rows": 2,
    "width": 32,
    "encoder": 1,
    "decoder": 1,
    "least": 2,
    "most": 4,
}
SMALL: dict[str, Mapping[str, Any]] = {
    "block-drafter": {
        "target": "repairer",
        "data": "exchanges",
        "steps": 2,
        "tokens": 64,
        "parts": (1, 1),
    },
    "dparallel": {**CANVASES, "each": 2, "max_tokens": 5, "rows": 2},
    "draft-tree": {
        "target": "zoo:tiny-draft",
        "data": "sample",
        "each": 1,
        "answers": 1,
        "max_tokens": 12,
        "places": 20,
        "nodes": 6,
    },
    "eagle": {**SPOKEN, "kind": "eagle", "rows": 2},
    "heads": {**SPOKEN, "kind": "medusa", "rows": 2},
    "joint": {**CANVASES, "texts": 4, "rows": 2},
    "ngrams": {"target": "zoo:tiny", "text": "samples", "least": 1},
    "probe --recipe filter": {**CANVASES, "each": 2, "max_tokens": 5, "block": 5},
    "probe --recipe judge": {**HELD, "target": "zoo:tiny", "tries": 1},
    "probe --recipe length": {**CANVASES, "each": 20, "rows": 4},
    "probe --recipe outcome": {
        **HELD,
        "target": "zoo:tiny-draft",
        "holds": "&(*$" * 5,
        "inner": 8,
    },
    "probe --recipe prm": SOLVED,
    "probe --recipe reward": {"good": "good", "bad": "bad", "steps": 2},
    "probe --recipe router": {**SOLVED, "draft": "zoo:reasoner"},
    "probe --recipe stop-head": {**HELD, "target": "zoo:tiny"},
    "probe --recipe text-router": {**SOLVED, "draft": "zoo:reasoner", "each": 24},
    "probe --recipe value": {**CANVASES, "reward": "reward", "each": 4, "max_tokens": 5, "rows": 2},
    "probes": {**SPOKEN, "kind": "ppd", "rows": 2},
    "sorted": {
        "target": "zoo:tiny-draft",
        "data": "prose",
        "layers": 2,
        "steps": 2,
        "held_kb": 1.0,
    },
    "strength": {"target": "zoo:tiny", "draft": "zoo:tiny-draft", "data": "answers"},
    "context": {"steps": 2, "rows": 2, "width": 32, "layers": 1},
    "deer": {**OWN_TEXT, "layers": 1, "context": 64, "refine": 2, "muon": 0.0},
    "diffusion": TASKS,
    "draft": {**OWN_TEXT, "tokens": 0, "width": 32},
    "hyperfit": {"target": "zoo:tiny-draft", "data": "prose", "length": 8, "texts": 8, "rows": 2},
    "hypernetwork": {
        "target": "zoo:tiny-draft",
        "data": "prose",
        "length": 8,
        "texts": 8,
        "rows": 2,
        "tries": 2,
        "width": 8,
        "steps": 2,
    },
    "insertion": {**TASKS, "context": 48},
    "lexical-units": {**TUNED, "ahead": 1},
    "lm": {"data": "prose", "steps": 2, "shape": TINY},
    "pictures": {
        "images": "pictures",
        "side": 4,
        "patch": 2,
        "steps": 2,
        "rows": 2,
        "width": 32,
        "layers": 1,
    },
    "patches": {
        "images": "pictures",
        "side": 4,
        "drawing_steps": 3,
        "head_units": 8,
        "head_layers": 1,
        "steps": 2,
        "rows": 2,
        "width": 32,
        "layers": 1,
    },
    "plan-extractor": {
        "target": "planner",
        "data": "reports",
        "steps": 2,
        "rows": 2,
        "width": 32,
        "reading": 1,
        "items": 1,
        "pointing": 1,
        "longest": 64,
    },
    "reasoner": {"steps": 2, "rows": 2, "width": 32, "layers": 1},
    "recurrence": {
        "target": "zoo:tiny-draft",
        "data": "prose",
        "window": 4,
        "windows": 2,
        "texts": 8,
        "rows": 2,
        "tries": 2,
        "steps": 2,
    },
    "seq2seq": {
        "data": "exchanges",
        "steps": 2,
        "tokens": 64,
        "encoder": 1,
        "decoder": 1,
        "width": 32,
        "vocab": 270,
        "parts": (1, 1),
    },
    "skipping": {**TUNED, "target": "zoo:tiny"},
    "steps": {"steps": 2, "rows": 2, "width": 32, "layers": 1},
    "reader": WORDS,
    "vision": {
        **{"steps": 2, "rows": 2, "width": 32, "layers": 1},
        **{"tower_width": 32, "tower_layers": 1},
    },
    "arcana": {"target": "seer", "steps": 2, "rows": 2, "rank": 4, "queries": 2},
    **{
        name: {"target": "seer", "each": 2, "max_tokens": 4, "steps": 2, "rows": 3}
        for name in ("msd", "flash")
    },
    "stamp": {"target": "seer", "steps": 2, "rows": 2},
    "parallel-embeddings": {
        "target": "seer",
        "each": 4,
        "steps": 2,
        "rows": 3,
        "paths": 2,
        "prefix": 2,
        "rank": 2,
    },
    "x-decoder": {"target": "seer", "steps": 2, "rows": 2, "width": 16, "layers": 3},
    "ref-vlm": {"target": "seer", "steps": 2, "rows": 2, "inner": 8},
    "jepa": {
        "target": "seer",
        "each": 3,
        "steps": 2,
        "rows": 3,
        "foretelling": 1,
        "reading": 1,
        "size": 8,
        "shown": 2,
    },
    "upsampler": {
        "images": "pictures",
        "target": "drawer",
        "steps": 2,
        "rows": 2,
        "units": 4,
        "layers": 1,
    },
    "word-reader": {"target": "reader", "steps": 2, "rows": 2, "least": 2, "most": 4},
    "words": {"data": "prose", "steps": 2, "rows": 2, "layers": 1, "width": 64},
}
"""By command the fields with which it is small."""
SEARCHING = {"superlinear": 2}
"""Fields of the search act where there is one."""

CASES: dict[tuple[str, str], tuple[tuple[Any, ...], Mapping[str, Any]]] = {
    **{
        (name, "tasks"): ((("slots",),), {})
        for name in (
            *("dparallel", "joint"),
            *(f"probe --recipe {recipe}" for recipe in ("filter", "length", "value")),
        )
    },
    **{
        (f"probe --recipe {name}", "kinds"): ((("make",),), {})
        for name in ("prm", "router", "text-router")
    },
    ("eagle", "every"): ((2,), {"kind": "eagle-3"}),
    ("eagle", "kind"): (("eagle-published",), {}),
    ("eagle", "texts"): ((40,), {"data": "prose"}),
    ("eagle", "tokens"): ((64,), {"kind": "eagle-3"}),
    ("heads", "kind"): (("clover",), {}),
    ("probe --recipe filter", "written"): ((True,), {"tasks": ("shuffle",)}),
    ("probe --recipe length", "varied"): ((True,), {"tasks": ("shuffle",)}),
    ("probe --recipe length", "longest"): ((2, 3, 4, 8), {}),
    ("probe --recipe router", "temperature"): ((5.0,), {"each": 4}),
    ("probe --recipe value", "varied"): ((True,), {"tasks": ("shuffle",), "max_tokens": 13}),
    ("probe --recipe value", "temperature"): ((8.0,), {"tasks": ("shuffle",)}),
    ("plan-extractor", "longest"): (tuple(range(30, 58, 2)), {}),
    ("probe --recipe outcome", "holds"): (("(*$&" * 5,), {}),
    ("probes", "enters"): (
        ((1,), (2,), (3,)),
        {"kind": "hidden-transfer", "levels": 1, "target": "zoo:tiny"},
    ),
    ("probes", "kind"): (("lud",), {}),
    ("sorted", "exits"): (((2,),), {}),
    ("sorted", "width"): ((32, 64, 96), {}),
    ("block-drafter", "longest"): ((4, 5, 6, 7, 9, 10), {}),
    **{
        ("context", field): (
            (value,),
            {
                "kind": "cache-augmentation",
                "target": "zoo:tiny-draft",
                "data": "prose",
                "length": 16,
            }
            | {"texts": 4, "tries": 4},
        )
        for field, value in {"latents": 3, "length": 12, "texts": 6, "tries": 2}.items()
    },
    ("deer", "context"): ((22,), {}),
    ("deer", "layers"): ((2,), {}),
    ("diffusion", "anneal"): ((2,), {"start": "zoo:tiny-draft"}),
    ("diffusion", "tasks"): ((("slots",),), {}),
    ("diffusion", "vocab"): ((261,), {}),
    ("draft", "beta"): ((0.1,), {"divergence": "jsd"}),
    ("draft", "divergence"): (("rkl",), {}),
    ("draft", "own"): ((1.0,), {}),
    ("draft", "width"): ((64,), {}),
    ("insertion", "context"): ((64,), {}),
    ("insertion", "tasks"): ((("slots",),), {}),
    ("lexical-units", "alpha"): ((0.0,), {}),
    ("lm", "drop"): ((1.0,), {"data": None, "pairs": "exchanges"}),
    ("lm", "early_exit"): ((1.0,), {"shape": replace(TINY, layers=4)}),
    ("lm", "ahead"): ((1.0,), SEARCHING),
    ("lm", "behind"): ((4.0,), SEARCHING),
    ("lm", "mask"): ((0.5,), {"objective": "meap"}),
    ("lm", "mixture"): (
        ((0.0, 1.0, 0.0), (0.0, 0.0, 1.0), (1.0, 0.0, 0.0)),
        {"objective": "tokenunify"},
    ),
    ("lm", "near"): ((2,), SEARCHING),
    ("lm", "search_power"): ((0.6,), SEARCHING),
    ("lm", "search_scale"): ((0.1,), SEARCHING),
    ("lm", "second"): ((0,), {"data": None, "pairs": "exchanges", "objective": "meap"}),
    ("lm", "span_power"): ((0.7,), SEARCHING),
    ("lm", "spans"): ((5.0,), {"objective": "cm3"}),
    ("lm", "stages"): ((True,), {"objective": "tokenunify", "mixture": (0.5, 0.5, 0.0)}),
    ("lm", "superlinear"): ((1, 3), {}),
    ("lm", "train_mb"): (((0.004, 8.0, 6.0),), {}),
    ("patches", "drop"): ((1.0,), {}),
    ("patches", "least_masked"): ((0.0,), {"masked": True}),
    ("pictures", "drop"): ((1.0,), {}),
    ("pictures", "encoder"): ((1, 2), {"masked": True}),
    ("pictures", "row_ends"): ((True,), {}),
    ("pictures", "reused"): ((0.0, 1.0), {"masked": True, "encoder": 1}),
    ("reasoner", "kinds"): ((("make",),), {}),
    ("seq2seq", "memory"): ((1.0,), {}),
    ("seq2seq", "outliers"): ((1.0,), {}),
    ("seq2seq", "longest"): ((4, 5, 6, 7, 9, 10), {}),
    ("seq2seq", "tokens"): ((640,), {}),
    ("seq2seq", "vocab"): ((280,), {}),
    ("skipping", "even"): ((False,), {"speed": 1.2}),
    ("skipping", "speed"): ((3.0,), {}),
    ("steps", "budgets"): ((("none",),), {}),
    ("steps", "longest"): ((48,), {}),
    ("word-reader", "absent"): ((1,), {}),
    ("word-reader", "copies"): ((3,), {"reading": "mdiff4str"}),
    ("word-reader", "distances"): ((True,), {"reading": "lister"}),
    ("word-reader", "ending"): ((0.01,), {"reading": "lister"}),
    ("word-reader", "joins"): ((2,), {}),
    ("word-reader", "rounds"): ((1,), {"reading": "lister"}),
    ("words", "chained"): ((True,), {"kind": "byte2word"}),
    ("words", "kept"): ((0.5,), {"kind": "lexinvariant"}),
    ("words", "train_mb"): ((0.004,), {}),
    ("words", "vocab"): ((280,), {"kind": "tokens"}),
}
"""By command and field other values, and fields that are set both times."""

ELSEWHERE = {
    "out": "a folder to write into",
    "save_every": "how often a state is saved: test_train_stopped.py",
    "target": "another model: the tests of each command train for several",
    "data": "a text: test_train_target.py and others read several",
    "pairs": "questions and answers of one's own: test_train_answers.py",
    "text": "a file of samples, which the target writes where there is none: test_train_target.py",
    "each": "read where the target writes the text, which takes long: test_train_target.py",
    "max_tokens": "read where the target writes the text, which takes long: test_train_target.py",
    "start": "a model that another training wrote: test_grow.py, test_train_diffusion.py",
    "tokenizer": "a model of another tokenizer: test_train_lm.py",
    "teacher": "another model: test_train_lm.py",
    ("arcana", "dropout"): "adapters add nothing before a step: test_train_arcana.py",
    "compiled": "the same losses from a compiled step, after minutes",
    "mixed": "read where the target writes the text, which takes long",
    "compute": "the target's arithmetic, which changes what it says by rounding alone",
    "draft": "another model: the tests of each command train with several",
    "good": "texts that are to be preferred: test_train_rewards.py",
    "bad": "texts that are not: test_train_rewards.py",
    "reward": "what another training wrote: test_train_rewards.py, test_train_router.py",
    ("hyperfit", "citations"): "a table beside the model: test_citation_blocker.py",
    **{
        ("probe --recipe outcome", name): "all samples have one length: test_conditional_beam.py"
        for name in ("least", "most")
    },
    (
        "probe --recipe outcome",
        "temperature",
    ): "read where the target writes the text, which takes long",
    ("ngrams", "corpus"): "a text of one's own: test_superposed.py",
    ("ngrams", "seed"): "read where the target writes the text, which takes long",
    ("probe --recipe judge", "kinds"): "two models solve problems differently: test_train_judge.py",
    (
        "probe --recipe judge",
        "replies",
    ): "two models solve problems differently: test_train_judge.py",
    ("probe --recipe judge", "seed"): "names the problems of kinds: test_train_judge.py",
    (
        "probe --recipe reward",
        "seed",
    ): "weights begin at 0, and each step reads all lines: it names nothing",
    **{
        (
            "probe --recipe text-router",
            name,
        ): "steps of many problems are written first, until some are better and some worse: "
        "test_train_text_router.py"
        for name in ("kinds", "temperature", "steps", "seed")
    },
    **{
        ("parallel-embeddings", name): "learned behind a step: test_train_parallel_embeddings.py"
        for name in ("information", "estimator_steps")
    },
    ("jepa", "slow"): "how far a step moves, and none is taken: test_train_jepa.py",
    ("strength", "raw"): "shows with a chat template alone, and no small model has one",
    ("context", "kind"): "other kinds train a model first: test_refrag.py, test_augmentation.py",
    ("context", "chunk"): "its kind trains in several runs: test_own_contexts.py",
    ("context", "encoder"): "its kind trains a model first: test_refrag.py",
    ("context", "at_once"): "its kind trains a model first: test_refrag.py",
    ("context", "factor"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "cut"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "bottleneck"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "rewriting"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "pieces"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "decoders"): "its kind trains a model first: test_arc_encoder.py",
    ("context", "shared"): "its kind trains a model first: test_arc_encoder.py",
    ("patches", "images"): "pictures of one's own: test_train_patches.py",
    ("patches", "classes"): "what classes are called: test_train_patches.py",
    ("pictures", "average"): "read behind a step: test_train_enat.py",
    ("pictures", "images"): "pictures of one's own: test_train_pictures.py",
    ("pictures", "low_of"): "a model that another training wrote: test_train_scales.py",
    ("pictures", "ratio"): "read with low_of: test_train_scales.py",
    ("upsampler", "images"): "pictures of one's own: test_train_scales.py",
    ("pictures", "classes"): "what classes are called: test_train_pictures.py",
    ("deer", "temperature"): "read where the target writes the text: test_train_target.py",
    ("diffusion", "long"): "rows of tasks that go on take seconds: test_train_diffusion.py",
    **{
        (name, "lora"): "adapters of a model that another training wrote: test_train_adapters.py"
        for name in ("diffusion", "draft", "insertion", "lm")
    },
    ("diffusion", "int8"): "how weights are saved: test_train_diffusion.py",
    ("draft", "tasks"): "kinds of prompts stand in data sets: test_train_draft.py",
    **{
        ("seq2seq", name): "a teacher that another training wrote: test_seq2seq_teacher.py"
        for name in ("taught", "heat", "top")
    },
    (
        "reasoner",
        "own",
    ): "a model that another training wrote solves problems first: test_reasoner.py",
}
"""Fields that a step cannot show, by name or by command and name, each with the reason."""

TRIED = 3


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Samples of a target's text, and prose, by the names that `SMALL` has for them."""
    folder = tmp_path_factory.mktemp("texts")
    samples = [
        {
            "prompt_ids": [3, 9, 8, 7][: 1 + i % 4],
            "output_ids": [7 + (i + j) % 4 * 2 for j in range(20)],
        }
        for i in range(12)
    ]
    (folder / "few").mkdir()
    for name, rows in (("", samples), ("few/", samples[:3])):
        for file in ("text.jsonl", "held.jsonl"):
            lines = "".join(json.dumps(row) + "\n" for row in rows)
            (folder / f"{name}{file}").write_text(lines, "utf-8")
    prose = "\n\n".join(
        f"The {a} {b} saw the {c} by the old river, and nobody asked why it was {d}."
        for a in ("grey", "tall", "quiet", "young", "old")
        for b in ("fox", "baker", "teacher", "dog")
        for c in ("boat", "bridge", "train", "mill")
        for d in ("cold", "warm", "late")
    )
    (folder / "own.txt").write_text(prose, "utf-8")
    exchanges = [{"question": f"{i} and {i}", "answer": f"{i + i}, of course"} for i in range(40)]
    (folder / "pairs.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in exchanges), "utf-8"
    )
    (folder / "answers.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in exchanges[:6]), "utf-8"
    )
    (folder / "good.txt").write_text("a right answer\nit is right\n" * 4, "utf-8")
    (folder / "bad.txt").write_text("wrong\nno, that is wrong\n" * 4, "utf-8")
    # Some trainings start from what others wrote.
    train_probe(
        RewardSpec(
            str(folder / "reward"), str(folder / "good.txt"), str(folder / "bad.txt"), steps=40
        )
    )
    reports = [
        {
            "source": f"The {a} {b} came home, and {c} of them were late.",
            "target": f"The {a} {b} came home.",
        }
        for a in ("grey", "tall", "young")
        for b in ("sailors", "bakers", "dogs", "teachers")
        for c in ("two", "nine", "most", "none")
    ]
    (folder / "reports.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in reports), "utf-8"
    )
    save_pictures(folder / "pictures.npz")
    drawn = {name: x for name, x in SMALL["pictures"].items() if name != "images"}
    train_pictures(PicturesSpec(str(folder / "drawer"), str(folder / "pictures.npz"), **drawn))
    train_reader(ReaderSpec(str(folder / "reader"), **WORDS))
    for out, data, plans in (("repairer", "pairs", False), ("planner", "reports", True)):
        own = {**SMALL["seq2seq"], "data": str(folder / f"{data}.jsonl"), "plans": plans}
        train_seq2seq(Seq2SeqSpec(str(folder / out), **own))
    train_vision(VisionSpec(str(folder / "seer"), **SMALL["vision"]))
    names = {
        "pictures": "pictures.npz",
        "seer": "seer",
        "drawer": "drawer",
        "reader": "reader",
        "samples": "text.jsonl",
        "few": "few/text.jsonl",
        "prose": "own.txt",
        "exchanges": "pairs.jsonl",
        "answers": "answers.jsonl",
        "good": "good.txt",
        "bad": "bad.txt",
        "reward": "reward",
        "repairer": "repairer",
        "planner": "planner",
        "reports": "reports.jsonl",
    }
    return {name: str(folder / file) for name, file in names.items()}


class PreparedRun(Exception):
    """Carries what would be trained past whatever is done with the result."""


def hand_over_run(kind: str, spec: Any, prepare: Any, *_: Any) -> Any:
    """Stands for `run_training`: prepares, and trains nothing."""
    raise PreparedRun(prepare(spec))


def prepared(name: str, given: Mapping[str, Any], out: Path) -> Any:
    """What a command would train; of one that trains nothing, its result."""
    command = COMMANDS[name]
    module, _, entry = command.entry.partition(":")
    known = {field.name for field in fields(command.spec)}
    more = {"out": str(out)} if "out" in known else {}
    # Flags of the command that are no fields of the spec say which spec it is.
    spec = command.spec(**{**command.defaults, **more, **given})
    with pytest.MonkeyPatch.context() as patch:
        # Sorted drafts are trained by another command's module.
        for place in (module, "polydec.lab.train.lm"):
            patch.setattr(import_module(place), "run_training", hand_over_run, raising=False)
        try:
            return getattr(import_module(module), entry)(spec)
        except PreparedRun as run:
            return run.args[0]


def observed_course(name: str, given: Mapping[str, Any], out: Path) -> tuple[Any, ...]:
    """Sizes and sums of the weights, the schedule, and the losses of two steps; of what trains nothing its result, and the
    tensors that it wrote."""
    run = prepared(name, given, out)
    if isinstance(run, Mapping):
        result = {key: value for key, value in run.items() if key != "seconds"}
        return result, [file.read_bytes() for file in sorted(out.glob("*.safetensors"))]
    weights = [
        (key, tuple(w.shape), float(w.detach().double().sum()))
        for key, w in run.network.named_parameters()
    ]
    torch.manual_seed(0)
    losses = [run.loss(step) for step in (0, run.schedule.steps - 1)]
    shape = repr(getattr(run.network, "s", None))
    # A new head says the same of all examples, so what it learns from shows in its slopes alone.
    slopes = list[float]()
    if name.startswith("probe "):
        losses[0][0].backward()
        slopes = [float(w.grad.sum()) for w in run.network.parameters() if w.grad is not None]
    seen = [(float(loss.detach()), count) for loss, count in losses]
    return weights, shape, run.schedule, seen, slopes


FIELDS = [
    (name, o.name)
    for name in SMALL
    for o in COMMANDS[name].flag_options()
    if o.name not in ELSEWHERE and (name, o.name) not in ELSEWHERE
]


def test_every_training_is_looked_at():
    assert set(SMALL) == set(COMMANDS)


def test_what_is_shown_elsewhere_is_there():
    declared = {(name, o.name) for name in SMALL for o in COMMANDS[name].flag_options()}
    names = {field for _, field in declared}
    for key in ELSEWHERE:
        assert key in (declared if isinstance(key, tuple) else names), key


@pytest.fixture(scope="module")
def usual_course(tmp_path_factory):
    """Gives what is observed without a field's other value, once for all fields that leave the rest alone."""

    @cache
    def observed_once(name: str, given: tuple[tuple[str, Any], ...]) -> tuple[Any, ...]:
        return observed_course(name, dict(given), tmp_path_factory.mktemp("usual"))

    return observed_once


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_a_field_of_a_training_shows(name, field, files, usual_course, tmp_path):
    declared = {o.name: o for o in dataclass_options(COMMANDS[name].spec)}
    values, given = CASES.get((name, field), ((), {}))
    given = {**SMALL[name], **given}
    given = {k: files.get(v, v) if isinstance(v, str) else v for k, v in given.items()}
    option = declared[field]
    if field in given:
        option = replace(option, default=given[field])
    usual = usual_course(name, tuple(sorted(given.items())))
    for i, value in enumerate(values or tuple(other_values(option))[:TRIED]):
        try:
            if observed_course(name, {**given, field: value}, tmp_path / f"b{i}") != usual:
                return
        except RequestError:
            continue
    raise AssertionError(f"nothing differs at {field}")
