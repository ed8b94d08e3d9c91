"""Damaged model files, drawn from a seed: whatever they hold, loading them works or says in one
sentence why not.

A case writes some files, one of them changed, loads them and, where that went well, writes a few
tokens with them.
"""

from __future__ import annotations

import json
import random
import struct
import warnings
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGMLQuantizationType, GGUFWriter
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from polydec import api
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.kits import build
from polydec.lab.testing.toy import toy_law as random_toy
from polydec.methods.registry import registry
from polydec.methods.registry.kit import PROMPT_IMAGE, ArtefactNeed, ModelArtefact
from polydec.models.learned import artefacts
from polydec.models.text.chat_template import ChatTemplate
from polydec.request.loading import (
    load,  # not api.load, which the fuzzer keeps: the same name holds another file each time
)

STRANGE: tuple[Any, ...] = (
    0,
    1,
    -1,
    2,
    3,
    7,
    33,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) + 32,
    1 << 40,
    (1 << 64) - 1,
    10**30,
    0.0,
    0.5,
    -1.5,
    1e-38,
    1e39,
    1e300,
    float("nan"),
    float("inf"),
    True,
    False,
    None,
    "",
    "x",
    "\x1b[2J",
    "7",
    "a" * 5000,
    "zoo:none",
    "../..",
    [],
    [0],
    ["x"],
    [[]],
    [1, 2, 3],
    {},
    {"a": 1},
    {"content": 3},
    "full_attention",
    "llama",
    "gpt2",
    "yarn",
    "dynamic",
    "longrope",
)
NUMBERS = tuple(x for x in STRANGE if type(x) is int and x >= 0)
TEMPLATES = (
    "{{",
    "{% break %}",
    "{{ raise_exception('\x1b[2J') }}",
    "{{ messages | tojson(indent=10**9) }}",
    "{{ 'a' * 10**10 }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{{ messages[9].x.y }}",
    "{{ 1 // 0 }}",
    "\x00",
    "{% include 'x' %}",
    "{{ messages }}",
    "{{ bos_token + 1 }}",
    "{{" + "(" * 3000 + "1" + ")" * 3000 + "}}",
)
toy = cache(random_toy)
CHAT = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
WIDTH = 32
INNER = 32
HEAD = 16
HEADS = 2
LAYERS = 1
VOCAB = 64


def damaged_file_cases(seed: int, count: int, where: Path) -> Iterator[Callable[[], None]]:
    """Make damaged model files, one after the other.

    Args:
        seed: Seed of the damage: the same seed gives the same cases.
        count: How many cases.
        where: Directory of the files. All cases share them, so that each is called before the next
            is taken.

    Yields:
        Functions that load a file and use it. Each may raise ValueError with one sentence and
        nothing else.
    """
    rng = random.Random(seed)
    kinds = (_directory, _gguf, _artefact, _template, _other)
    made = {kind: kind(where / kind.__name__[1:], rng) for kind in kinds}
    for _ in range(count):
        # Formats with more code behind them come more often; the adapter to transformers is slow to
        # load.
        kind = rng.choices(kinds, (30, 24, 12, 3, 1))[0]
        yield next(made[kind])


def load_undamaged_files(where: Path) -> None:
    """Load and use every kind of file as it is before anything is changed.

    Args:
        where: Directory of the files.

    Raises:
        Exception: A file does not load: then the fuzzer itself is at fault.
    """
    for kind, write in (("directory", _write_directory), ("other", _write_other)):
        for name, content in write(where / kind).items():
            (where / kind / name).write_bytes(content)
        _use(str(where / kind))
    _write_gguf(where / "gguf" / "m.gguf")
    _use(str(where / "gguf" / "m.gguf"))
    for kind in _write_artefacts(where / "artefact"):
        _draft(artefacts.load_artefact(str(where / "artefact" / kind)))


def _directory(where: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    """An architecture that the package computes itself."""
    yield from _changed(where, _write_directory(where), rng)


def _other(where: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    """An architecture that the adapter to transformers serves."""
    yield from _changed(where, _write_other(where), rng)


def _changed(
    where: Path, files: dict[str, bytes], rng: random.Random
) -> Iterator[Callable[[], None]]:
    names = sorted(files)
    while True:
        # All files as they were, then one to three changes.
        for name in names:
            (where / name).write_bytes(files[name])
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            name = rng.choice((*names, "config.json", "config.json", "model.safetensors"))
            old = (where / name).read_bytes()
            if name.endswith("safetensors"):
                new = damage_safetensors(old, rng)
            else:
                new = damage_text(old, rng)
            (where / name).write_bytes(new)
        yield lambda: _use(str(where))


def _gguf(where: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    path = where / "m.gguf"
    whole = _write_gguf(path)
    # The name of the last tensor's entry ends the header, but for its shape and offset.
    header = whole.index(b"output_norm.weight") + 200
    while True:
        path.write_bytes(header_bytes(whole, header, rng))
        yield lambda: _use(str(path))


def _artefact(where: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    """What was trained for a toy, of every kind."""
    whole = _write_artefacts(where)
    while True:
        kind = rng.choice(sorted(whole))
        # Repair what the case before it damaged.
        for f, content in whole[kind].items():
            f.write_bytes(content)
        f = rng.choice(list(whole[kind]))
        f.write_bytes(
            damage_safetensors(whole[kind][f], rng)
            if f.suffix == ".safetensors"
            else damage_text(whole[kind][f], rng)
        )
        yield lambda kind=kind: _draft(artefacts.load_artefact(str(where / kind)))


def _template(where: Path, rng: random.Random) -> Iterator[Callable[[], None]]:
    while True:
        at = rng.randrange(len(CHAT))
        piece = rng.choice(TEMPLATES)
        source = rng.choice((CHAT[:at] + piece + CHAT[at:], CHAT[:at], CHAT[at:], piece))
        yield lambda source=source: _discard(
            ChatTemplate(source).render({"messages": [{"role": "user", "content": "hi"}]})
        )


def _discard(_: object) -> None:
    pass


def _draft(made: ModelArtefact) -> None:
    """Write a few tokens of a toy by every method of the first family that reads this."""
    target = toy(1, VOCAB)
    small = toy(2, VOCAB, cost=0.1)
    # A toy has the width that the examples are made for.
    made = artefacts.bind_artefact(made, target)
    for name in registry.of_family("ar"):
        needs = registry.get_recipe_module(name).CARD.needs
        # Every method that reads such an artefact must write tokens with it, or refuse it; a toy shows no image.
        if PROMPT_IMAGE not in needs and any(
            n.is_fitting(made) for n in needs if isinstance(n, ArtefactNeed)
        ):
            decoder = build(name, target, small, artefacts=(made,))[0]
            text = run_coroutines([answer_one(decoder, Request((0, 1, 2), 3))])[0].token_ids
            assert all(0 <= x < VOCAB for x in text), "a token that the toy does not have"


def _use(name: str) -> None:
    """Load, and write a few tokens: greedily and drawn."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        # Nothing else is loaded beside the damaged files, and in this thread.
        lm = load(name, draft=None, ngrams=None, threads=1)
        # Greedy and drawn, which read the law in different ways.
        for temperature in (0.0, 1.0):
            done = api.generate(
                lm,
                "HI!",
                method="plain",
                max_tokens=3,
                sampling=lm.sampling_with(temperature=temperature),
                seed=1,
            )
            size = lm.checkpoint.lm.vocab.size
            assert all(0 <= x < size for c in done.choices for x in c.token_ids), (
                "a token that the model does not have"
            )


# How files are changed


def damage_text(content: bytes, rng: random.Random) -> bytes:
    """Damage a text or JSON file: a value of another kind, a piece lost or doubled, other bytes.

    Args:
        content: Bytes of the file.
        rng: Draws the damage.

    Returns:
        Bytes of the damaged file.
    """
    how = rng.randrange(8)
    try:
        whole = json.loads(content)
    except (ValueError, RecursionError):  # it has been damaged before
        whole = None
    # Most cases change one value: the file is read to its end then.
    if how < 5 and isinstance(whole, dict):
        return json.dumps(damage_json_value(whole, rng)).encode()
    # Cut off anywhere, as a broken download is.
    if how == 5:
        return content[: rng.randrange(len(content) + 1)]
    if how == 6:
        return rng.choice(
            (
                b"",
                b"[]",
                b"null",
                b"3",
                b'"x"',
                b"\xff\xfe",
                b"[" * 10_000 + b"]" * 10_000,
                b'{"a":' * 10_000,
            )
        )
    return damage_bytes(content, len(content), rng)


def damage_json_value(whole: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """Change or remove one value somewhere inside.

    Args:
        whole: A JSON object, which is written to.
        rng: Draws the place and the value.

    Returns:
        The same object.
    """
    at: Any = whole
    while True:
        if isinstance(at, dict):
            keys = list(at)
        else:
            keys = list(range(len(at)))
        if not keys:
            return whole
        key = rng.choice(keys)
        # Deeper with a chance of 0.7, so that inner values change as well as outer ones.
        if isinstance(at[key], (dict, list)) and at[key] and rng.random() < 0.7:
            at = at[key]
            continue
        if rng.random() < 0.15:
            del at[key]
        elif rng.random() < 0.3:
            at[key] = similar_value(at[key], rng)
        else:
            at[key] = rng.choice(STRANGE)
        return whole


def similar_value(old: Any, rng: random.Random) -> Any:
    """Make another value of the same kind, or one nearly so.

    Args:
        old: The value.
        rng: Draws the other one.

    Returns:
        The other value.
    """
    if type(old) in (int, float):
        return rng.choice((old + 1, old - 1, old * 2, old // 2, -old, float(old)))
    if isinstance(old, str):
        return rng.choice((old + "x", old[1:], old.upper()))
    if isinstance(old, bool):
        return not old
    if rng.random() < 0.5:
        return [old]
    return None


def damage_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Damage a .safetensors file: its header says something else, numbers are none, or bytes are
    lost.

    Args:
        content: Bytes of the file: 8 for the header's size, the header, the tensors.
        rng: Draws the damage.

    Returns:
        Bytes of the damaged file.
    """
    if len(content) >= 8:
        size = struct.unpack("<Q", content[:8])[0]
    else:
        size = 0
    how = rng.randrange(5)
    try:
        header = json.loads(content[8 : 8 + size])
    except (ValueError, RecursionError):  # it has been damaged before
        return damage_bytes(content, len(content), rng)
    if how == 0:
        return content[: rng.randrange(len(content) + 1)]
    # The size of the header, which a reader may trust before it has looked at the file's size.
    if how == 1:
        return struct.pack("<Q", rng.choice(NUMBERS) & (1 << 64) - 1) + content[8:]
    if how == 2:
        return damage_bytes(content, 8 + size, rng)
    # A header that is right JSON, of the right size, and says something else of its tensors.
    if how == 3:
        head = json.dumps(damage_json_value(header, rng)).encode()
        return struct.pack("<Q", len(head)) + head + content[8 + size :]
    out = bytearray(content)
    for _ in range(
        rng.randint(1, 3) if len(content) > 16 + size else 0
    ):  # NaN, infinity, the largest
        at = rng.randrange((len(content) - 8 - size) // 4) * 4 + 8 + size
        out[at : at + 4] = struct.pack(
            "<I", rng.choice((0x7FC00000, 0x7F800000, 0xFF800000, 0x7F7FFFFF, 0xFFFFFFFF))
        )
    return bytes(out)


def header_bytes(content: bytes, header: int, rng: random.Random) -> bytes:
    """Damage a binary file with a header: numbers of it become absurd, pieces are lost or doubled.

    Args:
        content: Bytes of the file.
        header: Bytes of its header, 13 or more.
        rng: Draws the damage.

    Returns:
        Bytes of the damaged file.
    """
    how = rng.randrange(5)
    out = bytearray(content)
    if how == 0:
        return bytes(out[: rng.randrange(len(out))])
    # A count, a length or a type of 4 or 8 bytes.
    if how == 1:
        at = rng.randrange(4, header - 8)
        size = rng.choice((4, 8))
        out[at : at + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
        return bytes(out)
    if how == 2:
        at = rng.randrange(header)
        n = rng.randint(1, 64)
        out[at : at + n] = b"" if rng.random() < 0.5 else out[at : at + n] * 2
        return bytes(out)
    if how == 3:
        return damage_bytes(content, header, rng)
    return damage_bytes(content, len(content), rng)


def damage_bytes(content: bytes, end: int, rng: random.Random) -> bytes:
    """Change one to four bytes.

    Args:
        content: Bytes of a file.
        end: Only bytes before this place are changed.
        rng: Draws the places and the bytes.

    Returns:
        The changed bytes, as many as before.
    """
    out = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        if end:
            out[rng.randrange(end)] = rng.randrange(256)
    return bytes(out)


# What they are changed from: made once in a process for each place


def _tokens() -> list[str]:
    return ["<unk>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())[: VOCAB - 3]]


# Each writer runs once for each place; what it returns repairs damaged files.
@cache
def _write_directory(where: Path) -> dict[str, bytes]:
    where.mkdir(parents=True, exist_ok=True)
    # A complete model of one layer, in the names of published checkpoints.
    draw = torch.Generator().manual_seed(0)
    shapes = {"model.embed_tokens": (VOCAB, WIDTH), "lm_head": (VOCAB, WIDTH)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        shapes |= {
            at + "self_attn.q_proj": (HEADS * HEAD, WIDTH),
            at + "self_attn.k_proj": (HEAD, WIDTH),
            at + "self_attn.v_proj": (HEAD, WIDTH),
            at + "self_attn.o_proj": (WIDTH, HEADS * HEAD),
            at + "mlp.gate_proj": (INNER, WIDTH),
            at + "mlp.up_proj": (INNER, WIDTH),
            at + "mlp.down_proj": (WIDTH, INNER),
            at + "input_layernorm": (WIDTH,),
            at + "post_attention_layernorm": (WIDTH,),
        }
    shapes |= {"model.norm": (WIDTH,)}
    weights = {
        f"{name}.weight": torch.randn(shape, generator=draw) for name, shape in shapes.items()
    }
    save_file(weights, where / "model.safetensors", {"format": "pt"})
    tokens = _tokens()
    # Tokens are single bytes, and nothing is merged: the smallest tokenizer that loads.
    t = Tokenizer(models.BPE({c: i for i, c in enumerate(tokens)}, []))
    t.add_special_tokens(tokens[:3])
    t.pre_tokenizer, t.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    t.save(str(where / "tokenizer.json"))
    files = {
        "config.json": {
            "model_type": "llama",
            "vocab_size": VOCAB,
            "hidden_size": WIDTH,
            "num_hidden_layers": LAYERS,
            "head_dim": HEAD,
            "num_attention_heads": HEADS,
            "num_key_value_heads": 1,
            "intermediate_size": INNER,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "eos_token_id": 2,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
            "layer_types": ["full_attention"],
            "sliding_window": None,
        },
        "generation_config.json": {
            "eos_token_id": [2],
            "temperature": 0.7,
            "top_k": 5,
            "top_p": 0.9,
            "do_sample": True,
        },
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": {"content": "</s>"},
            "chat_template": CHAT,
        },
    }
    for name, content in files.items():
        (where / name).write_text(json.dumps(content))
    return {f.name: f.read_bytes() for f in where.iterdir()}


@cache
def _write_other(where: Path) -> dict[str, bytes]:
    from transformers import GPT2Config, GPT2LMHeadModel  # takes seconds

    files = _write_directory(where)
    config = GPT2Config(
        vocab_size=VOCAB, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64, eos_token_id=2
    )
    GPT2LMHeadModel(config).save_pretrained(where)
    return {name: (where / name).read_bytes() for name in files}


@cache
def _write_artefacts(where: Path) -> dict[str, dict[Path, bytes]]:
    out = dict[str, dict[Path, bytes]]()
    for kind, module in artefacts.MODULES.items():
        for i, made in enumerate(module.examples(toy(1, VOCAB).vocab, 4, 4)):
            at = where / f"{kind} {i}"
            module.save(at, made, {})
            out[at.name] = {f: f.read_bytes() for f in sorted(at.iterdir())}
    return out


@cache
def _write_gguf(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    w = GGUFWriter(str(path), "llama")
    w.add_block_count(LAYERS)
    w.add_context_length(64)
    w.add_embedding_length(WIDTH)
    w.add_feed_forward_length(INNER)
    w.add_head_count(HEADS)
    w.add_head_count_kv(1)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_key_length(HEAD)
    w.add_rope_dimension_count(HEAD)
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list([*_tokens()[:-1], '!"'])
    w.add_token_types([2, 3, 3] + [1] * (VOCAB - 3))
    w.add_token_merges(['! "'])
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_chat_template(CHAT)
    shapes = {
        "token_embd": (VOCAB, WIDTH),
        "output": (VOCAB, WIDTH),
        "blk.0.attn_q": (HEADS * HEAD, WIDTH),
        "blk.0.attn_k": (HEAD, WIDTH),
        "blk.0.attn_v": (HEAD, WIDTH),
        "blk.0.attn_output": (WIDTH, HEADS * HEAD),
        "blk.0.ffn_gate": (INNER, WIDTH),
        "blk.0.ffn_up": (INNER, WIDTH),
        "blk.0.ffn_down": (WIDTH, INNER),
        "blk.0.attn_norm": (WIDTH,),
        "blk.0.ffn_norm": (WIDTH,),
        "output_norm": (WIDTH,),
    }
    for name, shape in shapes.items():
        if len(shape) == 1:
            w.add_tensor(f"{name}.weight", draw.standard_normal(shape).astype(np.float32))
        else:
            # Blocks of Q8_0: a scale in fp16, then 32 bytes.
            halves = np.full(
                (shape[0], shape[1] // 32, 2), 0x2C, np.uint8
            )  # the scale of each block
            blocks = np.concatenate(
                [halves, draw.integers(0, 256, (*halves.shape[:2], 32), dtype=np.uint8)], -1
            )
            w.add_tensor(
                f"{name}.weight", blocks.reshape(shape[0], -1), raw_dtype=GGMLQuantizationType.Q8_0
            )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path.read_bytes()
