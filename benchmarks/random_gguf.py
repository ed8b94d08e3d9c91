"""Write a random Llama as a GGUF file: Gaussian weights of a given shape, quantised.

    python benchmarks/random_gguf.py FILE --shape 16 2048 32 8 8192 49152 --type Q4_K_M

--shape: layers, width, heads, key and value heads, inner width, vocabulary. --type: a block type for all matrices, or Q4_K_M
as llama.cpp mixes it (Q4_K; values and down of every other layer and the head Q6_K). Each matrix takes its rows, by chance,
from a pool of quantised rows of its width, so that 1B weights are written in seconds. --tokenizer: a GGUF file whose tokenizer
the file takes, so that texts can be prompts; without it prompts are ids.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np

POOL = 256  # rows that are drawn and quantised for each width and type
MIX = "Q4_K_M"


def halves(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float16)[..., None].view(np.uint8)


def q4_k(x: np.ndarray) -> np.ndarray:
    """[rows, k] to blocks of 256: a 6-bit scale and offset for each 32."""
    x = x.reshape(len(x), -1, 8, 32)
    low, high = np.minimum(x.min(-1), 0), x.max(-1)
    step, off = (high - low) / 15, -low
    d, dmin = step.max(-1) / 63, off.max(-1) / 63
    sc, mn = (np.rint(a / b[..., None]).astype(np.uint8) for a, b in ((step, d), (off, dmin)))
    unit, least = (d[..., None] * np.maximum(sc, 1))[..., None], (dmin[..., None] * mn)[..., None]
    code = np.clip(np.rint((x + least) / unit), 0, 15).astype(np.uint8)
    twelve = np.concatenate(
        [
            sc[..., :4] | (sc[..., 4:] >> 4) << 6,
            mn[..., :4] | (mn[..., 4:] >> 4) << 6,
            (sc[..., 4:] & 15) | (mn[..., 4:] & 15) << 4,
        ],
        -1,
    )
    pairs = code.reshape(*code.shape[:2], 4, 2, 32)
    packed = (pairs[..., 0, :] | pairs[..., 1, :] << 4).reshape(*code.shape[:2], 128)
    return np.concatenate([halves(d), halves(dmin), twelve, packed], -1).reshape(len(x), -1)


def q6_k(x: np.ndarray) -> np.ndarray:
    """[rows, k] to blocks of 256: an 8-bit scale for each 16."""
    x = x.reshape(len(x), -1, 16, 16)
    step = np.abs(x).max(-1) / 31
    d = step.max(-1) / 127
    sc = np.maximum(np.rint(step / d[..., None]), 1)
    code = (np.clip(np.rint(x / (d[..., None] * sc)[..., None]), -32, 31) + 32).astype(np.uint8)
    q = code.reshape(*code.shape[:2], 2, 4, 32)  # halves of 128 inputs, four runs of 32 each
    low = np.concatenate(
        [
            (q[..., 0, :] & 15) | (q[..., 2, :] & 15) << 4,
            (q[..., 1, :] & 15) | (q[..., 3, :] & 15) << 4,
        ],
        -1,
    )
    high = sum((q[..., i, :] >> 4) << 2 * i for i in range(4))
    shape = (*code.shape[:2], -1)
    return np.concatenate(
        [low.reshape(shape), high.reshape(shape), sc.astype(np.int8).view(np.uint8), halves(d)], -1
    ).reshape(len(x), -1)


OWN: dict[str, Callable[[np.ndarray], np.ndarray]] = {"Q4_K": q4_k, "Q6_K": q6_k}


def quantised(x: np.ndarray, kind: str) -> np.ndarray:
    if kind in OWN:
        return OWN[kind](x)
    return gguf.quantize(x, gguf.GGMLQuantizationType[kind]).reshape(len(x), -1).view(np.uint8)


def copy_tokenizer(source: Path, target: gguf.GGUFWriter) -> None:
    """Copy all fields of a file's tokenizer."""
    for name, field in gguf.GGUFReader(source).fields.items():
        if name.startswith("tokenizer."):
            of_parts = field.types[1] if len(field.types) > 1 else None
            target.add_key_value(name, field.contents(), field.types[0], of_parts)


def write(
    path: Path, shape: tuple[int, ...], kind: str, seed: int = 0, tokenizer: Path | None = None
) -> None:
    layers, width, heads, kv_heads, inner, vocab = shape
    rng, head = np.random.default_rng(seed), width // heads
    pools: dict[tuple[str, int], np.ndarray] = {}
    w = gguf.GGUFWriter(str(path), "llama")
    w.add_block_count(layers)
    w.add_context_length(32768)
    w.add_embedding_length(width)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_rope_dimension_count(head)
    w.add_vocab_size(vocab)
    if tokenizer is None:
        w.add_tokenizer_model("no_vocab")
    else:
        copy_tokenizer(tokenizer, w)

    def put(name: str, n: int, k: int, more: bool = False) -> None:
        own = kind if kind != MIX else "Q6_K" if more else "Q4_K"
        if (own, k) not in pools:
            pools[own, k] = quantised(
                (rng.standard_normal((POOL, k)) * k**-0.5).astype(np.float32), own
            )
        w.add_tensor(
            f"{name}.weight",
            pools[own, k][rng.integers(0, POOL, n)],
            raw_dtype=gguf.GGMLQuantizationType[own],
        )

    def norm(name: str) -> None:
        w.add_tensor(f"{name}.weight", np.ones(width, np.float32))

    put("token_embd", vocab, width, more=True)
    norm("output_norm")
    for i in range(layers):
        p = f"blk.{i}."
        put(p + "attn_q", width, width)
        put(p + "attn_k", kv_heads * head, width)
        put(p + "attn_v", kv_heads * head, width, more=i % 2 == 1)
        put(p + "attn_output", width, width)
        put(p + "ffn_gate", inner, width)
        put(p + "ffn_up", inner, width)
        put(p + "ffn_down", width, inner, more=i % 2 == 1)
        norm(p + "attn_norm")
        norm(p + "ffn_norm")
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("file", type=Path)
    p.add_argument(
        "--shape",
        nargs=6,
        type=int,
        default=[16, 2048, 32, 8, 8192, 49152],
        metavar=("LAYERS", "WIDTH", "HEADS", "KV_HEADS", "INNER", "VOCABULARY"),
    )
    p.add_argument(
        "--type", default=MIX, help=f"{MIX}, or one block type for all: Q4_0, Q8_0, Q4_K, F16, …"
    )
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--tokenizer", type=Path, help="a GGUF file whose tokenizer is taken")
    o = p.parse_args()
    known = {MIX, *OWN, "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4"}
    if o.type not in known:
        p.error(f"--type is {o.type!r}: it must be one of {', '.join(sorted(known))}")
    if min(o.shape) < 1 or o.shape[1] % o.shape[2] or o.shape[2] % o.shape[3]:
        p.error(
            f"--shape is {o.shape}: heads must divide the width, and key and value heads the heads"
        )
    write(o.file, tuple(o.shape), o.type, o.seed, o.tokenizer)


if __name__ == "__main__":
    main()
