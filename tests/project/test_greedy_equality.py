"""Every lossless method gives plain decoding's greedy text, token for token, on real prompts and embedded models."""

import gzip
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

import micro
from polydec import Engine, load
from polydec.core.types import Exactness
from polydec.lab.bench.certify import compare_greedy_texts
from polydec.lab.testing.examples import example_artefacts
from polydec.lab.train.ngrams import NGramSpec, count_ngrams
from polydec.lab.train.selfplay import TrainingSample
from polydec.methods.registry import registry
from polydec.methods.registry.kit import IMAGE, MASKED_DRAFT, PATCHES
from polydec.models.formats import zoo
from polydec.models.learned.kinds import mtp, narrow
from polydec.models.nets.gated import GatedAdapter
from project_paths import DATA_FOLDER

DATA = DATA_FOLDER
METHODS = [
    n
    for n in registry.of_family("ar")
    if n != "plain"
    and registry.get_recipe_module(n).CARD.guarantee in (Exactness.LAW, Exactness.ARGMAX)
    # Of images: tests/methods/speculative/drafters/test_read_word.py; of patches, which have no likeliest one:
    # tests/methods/speculative/loop/test_patch_drawing.py.
    and not {IMAGE, PATCHES} & {*registry.get_recipe_module(n).CARD.needs}
]


def prompts(n: int) -> list[str]:
    """n real prompts of several kinds, the shorter ones first."""
    if not (DATA / "spec_bench").is_dir():
        pytest.skip(f"no data at {DATA}: set POLYDEC_DATA")
    questions = (DATA / "spec_bench" / "question.jsonl").read_text("utf-8").strip().split("\n")
    rows = [json.loads(line)["turns"][0] for line in questions]
    with gzip.open(DATA / "text_python" / "python-0.jsonl.gz", "rt", encoding="utf-8") as f:
        rows += [json.loads(line)["text"][:400] for _, line in zip(range(40), f, strict=False)]
    return sorted(rows, key=len)[:n]


def small(lm) -> tuple:
    """A small artefact of each kind."""
    target, draft = lm.checkpoint.lm, lm.draft.lm
    return example_artefacts(target.vocab, target.network.config.width, draft.network.config.width)


def filling(name: str, dtype: str, draft: str) -> Engine:
    """An engine whose draft model fills canvases: it has the weights of this one."""
    with TemporaryDirectory() as where:
        return Engine(load(name, dtype=dtype, draft=micro.masked(Path(where) / "masked", draft)))


def alone(lm) -> dict[str, tuple]:
    """By method what decodes it apart from the others: of its type `small` has another one, or one without its larger part."""
    target = lm.checkpoint.lm
    width, layers, g = target.network.config.width, target.layers, torch.Generator().manual_seed(3)
    inner = target.network.config.inner
    kv = 2 * target.network.config.kv_heads * target.network.config.head
    sizes = {
        "qkv": (width, width + kv),
        "out": (width, width),
        "gate_up": (width, 2 * inner),
        "down": (inner, width),
    }
    adapter = GatedAdapter(
        [
            {
                place: (
                    torch.randn(4, into, generator=g) / into**0.5,
                    torch.randn(out, 4, generator=g),
                )
                for place, (into, out) in sizes.items()
            }
            for _ in range(layers)
        ]
    )
    return {
        "eagle-3": (narrow.examples(target.vocab, width, width)[0].bound_drafter(target),),
        "mtp": (replace(mtp.examples(target.vocab, width, width)[0], adapter=adapter),),
    }


def check(
    name: str,
    n: int,
    tokens: int,
    dtype: str = "float32",
    methods: list[str] = METHODS,
    having: Callable[[Any], tuple] = small,
) -> dict[str, list]:
    """Of each method the prompts whose text differs from plain decoding's."""
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // 2))
    lm = load(name, dtype=dtype)
    greedy, engine = lm.sampling_with(temperature=0.0), Engine(lm)
    ask = {"sampling": greedy, "max_tokens": tokens}
    texts = [
        p
        for p in prompts(n)
        if len(lm.encode_prompt(p)) + tokens < lm.checkpoint.lm.network.context
    ]
    assert len(texts) >= 0.9 * n
    plain = [a.token_ids for a in engine.run([engine.submit(p, **ask) for p in texts])]
    told = [TrainingSample(lm.encode_prompt(p), ids) for p, ids in zip(texts, plain, strict=True)]
    table = count_ngrams(told, NGramSpec("", least=1), lm.checkpoint.lm.vocab)
    whole, wrong = Engine(replace(lm, artefacts=(table, *having(lm)))), dict[str, list]()
    for method in methods:
        engine = (
            filling(name, dtype, lm.draft.name)
            if MASKED_DRAFT in registry.get_recipe_module(method).CARD.needs
            else whole
        )
        ours = [
            a.token_ids for a in engine.run([engine.submit(p, method=method, **ask) for p in texts])
        ]
        wrong[method] = [p for p, a, b in zip(texts, plain, ours, strict=True) if a != b]
    return wrong


@pytest.mark.skipif(
    "tiny" not in [e.name for e in zoo.zoo_entries() if e.here],
    reason="zoo:tiny is not in the package",
)
@pytest.mark.parametrize("part", range(4))
def test_tiny_fast(part):
    assert not any(check("zoo:tiny", 3, 24, methods=METHODS[part::4]).values())


@pytest.mark.parametrize("n, tokens", [(3, 24), pytest.param(100, 64, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "method, dtype", [("eagle-3", "float32"), ("mtp", "torch")], ids=["eagle-3-narrow", "adapter"]
)
def test_tiny_alone(method, dtype, n, tokens):
    assert check("zoo:tiny", n, tokens, dtype, [method], lambda lm: alone(lm)[method]) == {
        method: []
    }


@pytest.mark.slow
def test_tiny():
    assert not any(check("zoo:tiny", 100, 128).values())


def faults(texts: list[str], method: str, lm: Any) -> list[str]:
    """What is said of texts that differ. At most two near-ties of twenty, none of them a fault."""
    greedy = lm.sampling_with(temperature=0.0)
    found = [
        compare_greedy_texts(lm, p, method, {}, sampling=greedy, max_tokens=128).verdict
        for p in texts
    ]
    return found if "fault" in found or len(found) > 2 else []


@pytest.mark.slow
def test_smollm2():
    if "smollm2" not in [e.name for e in zoo.zoo_entries() if e.here]:
        pytest.skip("zoo:smollm2 is not installed: run `polydec zoo install smollm2`")
    lm = load("zoo:smollm2")
    lm = replace(lm, artefacts=(*lm.artefacts, *small(lm)))
    for method, texts in check("zoo:smollm2", 20, 128, dtype="auto").items():
        assert not faults(texts, method, lm), (method, texts)


@pytest.mark.parametrize("n, tokens", [(3, 24), pytest.param(20, 128, marks=pytest.mark.slow)])
def test_smollm2_with_the_drafter_on_its_states(n, tokens):
    if "smollm2" not in [e.name for e in zoo.zoo_entries() if e.here]:
        pytest.skip("zoo:smollm2 is not installed: run `polydec zoo install smollm2`")
    lm = load("zoo:smollm2", trained=["zoo:smollm2-states"])
    wrong = check("zoo:smollm2", n, tokens, "auto", ["eagle-3"], lambda _: lm.artefacts)
    assert not faults(wrong["eagle-3"], "eagle-3", lm)
