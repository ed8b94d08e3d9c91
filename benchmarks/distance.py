"""How far fp32 logits lie from an fp64 reference of the same dequantised weights: the compiled step next to transformers.

The reference computes everything in fp64, except rotary angles, which are those of transformers (rounded to fp32): beyond
a few hundred positions exact angles are another function. Both sides read the tokens in one pass. rms and largest
difference over all logits of all rows, in the unit of logits.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from forward import smollm2
from torch import Tensor

from polydec.core.types import ScoreRequest
from polydec.lab.bench.other_engines import EngineUnavailable, hf_model
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.formats.rope import RotaryEmbedding
from polydec.models.native.network import CpuStep, rotary_cos_sin
from polydec.models.nets.linear import cpu_name
from polydec.models.nets.query import NetworkQuery
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.text.gguf_text import read_text


def logits(net: Any, ids: list[int]) -> Tensor:
    cache = net.new_cache()
    cache.stage_slots(range(-1, len(ids) - 1))
    return net.forward([NetworkQuery(cache, 0, tuple(ids), range(len(ids)), ScoreRequest())])[
        0
    ].logits_RV.double()


def reference(file: GGUFCheckpoint, ids: list[int]) -> Tensor:
    net = LlamaTransformer.build(file.config, {k: file[k] for k in file}, dtype="float64")
    cosine, sine = rotary_cos_sin(
        net._rope, net.context
    )  # the network asks for tables longer than the text
    exact, RotaryEmbedding.factor_table = (
        RotaryEmbedding.factor_table,
        lambda self, a, b: torch.complex(cosine[a:b].double(), sine[a:b].double()),
    )
    try:
        return logits(net, ids)
    finally:
        RotaryEmbedding.factor_table = exact


def distance(near: Tensor, exact: Tensor) -> dict[str, float]:
    off = near - exact
    return {"rms": float(off.pow(2).mean().sqrt()), "max": float(off.abs().max())}


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--file", type=Path, help="a GGUF file (default: zoo:smollm2's)")
    p.add_argument(
        "--text", type=Path, help="a text whose beginning is read (default: random tokens, seed 1)"
    )
    p.add_argument("--tokens", type=int, default=700)
    p.add_argument("--json", action="store_true")
    o = p.parse_args()
    if o.tokens < 1:
        p.error("--tokens must be at least 1")
    file = GGUFCheckpoint(o.file or smollm2())
    rng, size = random.Random(1), file.config["vocab_size"]
    ids = [rng.randrange(size) for _ in range(o.tokens)]
    if o.text is not None:
        ids = list(read_text(file).encode(o.text.read_text(encoding="utf-8")[: 20 * o.tokens]))[
            : o.tokens
        ]
    exact = reference(file, ids)
    found = {
        "cpu": cpu_name(),
        "tokens": len(ids),
        "text": o.text.name if o.text else "random",
        "step": distance(logits(CpuStep.build(file.config, file), ids), exact),
    }
    try:
        model = hf_model(file.config, {k: file[k].float() for k in file})
        with torch.inference_mode():
            found["transformers"] = distance(model(torch.tensor([ids])).logits[0].double(), exact)
    except EngineUnavailable as e:
        found["transformers"] = str(e)
    print(json.dumps(found) if o.json else "\n".join(f"{k}: {v}" for k, v in found.items()))


if __name__ == "__main__":
    main()
