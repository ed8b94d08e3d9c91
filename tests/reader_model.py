"""A tiny random model that reads images, for tests."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from polydec.lab.train.letter_tokens import letter_tokenizer, letter_tokenizer_files
from polydec.models.formats.images import StripShape
from polydec.models.formats.seq2seq import T5Shape, reader_config
from polydec.models.learned.kinds.block_drafter import t5_tensor_shapes

LETTERS = "abcdefgh"
SPREADS = {
    "EncDecAttention.o": 1.0,
    "EncDecAttention.q": 0.8,
    "EncDecAttention.k": 0.8,
    "wo": 0.1,
    "shared": 0.5,
    "strips": 0.5,
    "SelfAttention.o": 0.5,
}
"""Of the tensors whose name has this; others 0.3. The image tells texts apart."""
STRIP = StripShape(8, 4, 8, 64)
SHAPE = T5Shape(2 + len(LETTERS), 32, 16, 48, 1, 2)


def reader_tensors(seed=5):
    """Random tensors by their names."""
    g = torch.Generator().manual_seed(seed)
    shapes = {
        **t5_tensor_shapes(SHAPE),
        "shared.weight": (SHAPE.vocab, SHAPE.width),
        "strips.into.weight": (24, STRIP.height * STRIP.window),
        "strips.into.bias": (24,),
        "strips.out.weight": (SHAPE.width, 24),
        "strips.out.bias": (SHAPE.width,),
    }
    out = dict[str, torch.Tensor]()
    for name, shape in shapes.items():
        # What attention and MLPs add must outweigh the last token, or every text repeats one letter.
        spread = next((s for part, s in SPREADS.items() if part in name), 0.3)
        out[name] = torch.randn(*shape, generator=g) * spread
        if name.endswith("norm.weight"):
            out[name] = torch.ones(*shape)
    return out


def write_reader(path, seed=5):
    """Write a directory of one; its path."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    files = {
        **letter_tokenizer_files(letter_tokenizer(LETTERS)),
        "config.json": reader_config(SHAPE, STRIP, 0, 1),
    }
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    save_file(reader_tensors(seed), path / "model.safetensors", {"format": "pt"})
    return path
