"""A small untrained model with the marks of gaps, for what the engine and the server do with one."""

from pathlib import Path

from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.lab.train.objectives.cm3 import CausalMasking
from polydec.lab.train.tokens import tokenizer_files, train_tokenizer

SHAPE = LlamaShape(300, width=16, layers=1, heads=2, kv_heads=1, inner=32, context=64)


def write_gap_model(path: Path) -> Path:
    """Write the directory of one, and return it."""
    marks = CausalMasking()
    tokenizer = train_tokenizer(["the sea is blue and the leaf is green"], SHAPE.vocab, marks.marks)
    files = tokenizer_files(tokenizer, SHAPE.context, marks.marks, marks.ends)
    begin, end = (tokenizer.token_to_id(x) for x in ("<|begin|>", "<|end|>"))
    path.mkdir(parents=True)
    network = TrainableLlama(SHAPE, seed=3)
    save_directory(path, network, SHAPE.config_content(bos=begin, eos=end), files=files)
    return path
