"""`polydec train words`: models over bytes and words, with held-out bits a byte of each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from string import ascii_letters
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.data import (
    BEGIN,
    END,
    SPECIAL,
    DocumentSplit,
    PackedTokenStream,
    pack_documents,
    split_documents,
    training_data,
)
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.evaluate import bits_per_byte
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import LlamaDecoderLayer
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.words import WordsSpec
from polydec.lab.train.tokens import mark_id, train_tokenizer
from polydec.lab.train.word_kinds.word_kind_names import KINDS
from polydec.lab.train.word_kinds.word_quality import with_slips, words_right

SLIPS = 0.1
"""Share of letters of held-out text that are replaced, to see what noise costs."""


def train_words(spec: WordsSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    See `run_training`.

    Raises:
        RequestError: An option is wrong, or there is no text to train on.
    """
    return run_training("words", spec, _course)


def _course(spec: WordsSpec) -> TrainingRun:
    kind, parts, plain = KINDS[spec.kind], read_texts(spec), train_tokenizer([], 256 + len(SPECIAL))
    tokenizer = kind.tokenizer(spec, [text for p in parts.values() for text in p.train])
    begin, end = mark_id(tokenizer, BEGIN), mark_id(tokenizer, END)

    def text_ids(texts: tuple[str, ...]) -> list[list[int]]:
        """Token ids of texts, without special tokens."""
        return [e.ids for e in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]

    # One stream for each kind of text; rows are taken from them in turn.
    streams = [
        PackedTokenStream(pack_documents(text_ids(p.train), end), begin, spec.seed)
        for p in parts.values()
    ]
    # A stream without a full row cannot be read; said before training.
    name, least = min(zip(parts, (len(s.stream) for s in streams)), key=lambda x: x[1])
    if least < spec.length:
        raise RequestError(
            f"length is {spec.length}: data has {least} tokens of {name} to train on, so give more text by --data"
            + (f", or --length {least} or less" if least >= 16 else "")
        )
    unseen = {name: [[begin, *x, end] for x in text_ids(p.unseen)] for name, p in parts.items()}
    # Bytes of the text itself, whatever its tokens are: figures of all kinds compare.
    sizes = {name: sum(len(t.encode()) for t in p.unseen) for name, p in parts.items()}
    ends = kind.ends(tokenizer)

    def slipped_texts(texts: tuple[str, ...]) -> list[list[int]]:
        """Texts with some letters replaced, then encoded.

        Slips are in the text, whatever units read it.
        """
        marks = mark_id(plain, BEGIN), mark_id(plain, END)
        bare = plain.encode_batch_fast(list(texts), add_special_tokens=False)
        among = plain.encode(ascii_letters, add_special_tokens=False).ids
        # Slips are drawn on bytes, so that all kinds read the same damaged text.
        bent = with_slips([[marks[0], *e.ids, marks[1]] for e in bare], among, SLIPS, 0)
        return [
            [begin, *x, end] for x in text_ids(tuple(plain.decode(b[1:-1], False) for b in bent))
        ]

    network, bf16 = kind.make(spec, tokenizer), is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rows = range(step * spec.rows, (step + 1) * spec.rows)
        # Streams take turns; each goes through its own rows in order.
        picked = [
            streams[i % len(streams)].stream_row(i // len(streams), spec.length) for i in rows
        ]
        token_BT = torch.from_numpy(np.stack(picked))
        with bf16_autocast(bf16):
            # Not every kind learns what follows each token.
            if kind.loss is not None:
                return kind.loss(network, token_BT, step), token_BT.numel()
            logits = kind.learn(network, token_BT[:, :-1], step).float().flatten(0, 1)
            return F.cross_entropy(logits, token_BT[:, 1:].flatten()), token_BT.numel()

    def measure_result() -> Mapping[str, Any]:
        # Measured with slips as well: the point of reading letters is to bear them.
        # in windows as long as a row: beyond it positions are ones that no kind has learned
        texts = [ids for every in unseen.values() for ids in every]
        with torch.no_grad():
            # A kind without a law of texts has figures of its own.
            if kind.told is not None:
                slipped = [ids for p in parts.values() for ids in slipped_texts(p.unseen)]
                return {
                    "kind": spec.kind,
                    "parameters": sum(p.numel() for p in network.parameters()),
                    "held_out_bytes": sizes,
                    **kind.told(network, texts, slipped, spec.length),
                }
            return {
                "kind": spec.kind,
                "parameters": sum(p.numel() for p in network.parameters()),
                "held_out_bytes": sizes,
                "bits_per_byte": {
                    name: bits_per_byte(network, every, sizes[name], context=spec.length)
                    for name, every in unseen.items()
                    if sizes[name]
                },
                "bits_per_byte_with_slips": {
                    name: bits_per_byte(
                        network, slipped_texts(parts[name].unseen), sizes[name], context=spec.length
                    )
                    for name in unseen
                    if sizes[name]
                },
                **({"words_right": words_right(network, texts, ends, spec.length)} if ends else {}),
                **kind.beside(network, texts, spec.length),
            }

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)),
        # An option that is off has no part in the identity.
        run_identity(
            spec, *(name for name in ("chained", "kept") if not getattr(spec, name)), bf16=bf16
        ),
        lambda out, result: kind.save(out, network, tokenizer, spec),
        measure_result,
        deep=layer_matrices(network),
    )


def layer_matrices(network: nn.Module) -> list[nn.Parameter]:
    """The matrices of all decoder layers, wherever they stand."""
    layers = [m for m in network.modules() if isinstance(m, LlamaDecoderLayer)]
    return [p for layer in layers for p in layer.parameters() if p.ndim == 2]


def read_texts(spec: WordsSpec) -> dict[str, DocumentSplit]:
    """The texts of each kind that has at least one to train on.

    Raises:
        RequestError: There is no text to train on.
    """
    root = training_data(spec.data)
    most = int(spec.train_mb * 1e6)
    parts = {
        k: split_documents(root, k, most, int(spec.held_kb * 1e3), spec.seed) for k in spec.texts
    }
    texts = {k: part for k, part in parts.items() if part.train}
    if not texts:
        raise RequestError(
            f"data is {str(root)[:100]!r}: it has no running text to train on (of ten texts seven are "
            "learned from and three held out, by their SHA-1): give more by --data"
        )
    return texts
