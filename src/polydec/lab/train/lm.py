"""`polydec train lm`: a small language model from text, its tokenizer included."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from polydec.base import edge, files
from polydec.base.errors import RequestError
from polydec.lab.train import network as net
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
from polydec.lab.train.envelope import STATE, TrainingRun, run_training
from polydec.lab.train.evaluate import bits_per_byte, ngram_bits_per_byte
from polydec.lab.train.exits import copy_with_layers, copy_with_vocab
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory
from polydec.lab.train.ngram import NGram
from polydec.lab.train.objectives.known import KNOWN
from polydec.lab.train.specs.lm import PRESETS, LMSpec
from polydec.lab.train.target import family_of_config, require_family
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer, with_marks
from polydec.methods.registry.family import AUTOREGRESSIVE
from polydec.models.formats import rows8
from polydec.models.sessions import sources


@dataclass(frozen=True)
class TokenCorpus:
    """Of each kind the packed training stream, the held-out documents in tokens, and their size in bytes."""

    train: Mapping[str, np.ndarray]
    unseen: Mapping[str, Sequence[Sequence[int]]]
    held_bytes: Mapping[str, int]


def train_lm(spec: LMSpec) -> dict[str, Any]:
    """Train, save a Hugging Face directory at spec.out, and measure. See `carry_out`. Raises RequestError on a wrong spec, or
    missing data."""
    return run_training("lm", spec, _course)


def _course(spec: LMSpec) -> TrainingRun:
    preset = PRESETS[spec.preset]
    out = Path(spec.out)
    schedule = spec.schedule or preset.schedule
    if spec.steps is not None:
        schedule = replace(schedule, steps=spec.steps)
    if spec.start is None:
        first = None
    else:
        first = load_directory(spec.start)
    if spec.teacher is None:
        teacher = None
    else:
        teacher = load_directory(spec.teacher)
    shape = spec.shape or (preset.shape if first is None else first.s)
    if spec.layers is not None:
        shape = replace(shape, layers=spec.layers)
    objective = KNOWN[spec.objective](spec)
    parts = read_texts(spec)
    tokenizer = find_tokenizer(
        spec,
        out,
        [t for p in parts.values() for t in p.train[: -(-len(p.train) // 2)]],
        shape.vocab,
        objective.marks,
    )
    if first is not None and objective.marks and tokenizer.get_vocab_size() > shape.vocab:
        shape = replace(shape, vocab=tokenizer.get_vocab_size())
        first = copy_with_vocab(first, shape.vocab)
    if tokenizer.get_vocab_size() > shape.vocab:
        raise RequestError(
            f"tokenizer has {tokenizer.get_vocab_size()} tokens: the network has rows for {shape.vocab}"
        )
    ids = {mark: mark_id(tokenizer, mark) for mark in (BEGIN, END, *objective.marks)}
    begin = ids[BEGIN]
    end = ids[END]
    corpus = encode_corpus(tokenizer, parts)
    spec = drop_short_kinds(spec, corpus, shape.context)
    if first is None:
        student = TrainableLlama(shape, seed=spec.seed)
    else:
        student = copy_with_layers(first, shape.layers, spec.seed)
    fast, network = is_bf16_run(out / STATE, spec.bf16), objective.network(student)
    usual = min(preset.length, shape.context)  # tokens of a row but for the last steps
    cut = {
        k: set_aside(len(corpus.train[k]), usual) for k in spec.kinds
    }  # tokens at the end that only judge
    streams = {
        k: PackedTokenStream(corpus.train[k][: len(corpus.train[k]) - cut[k]], begin, spec.seed)
        for k in spec.kinds
    }
    apart = [
        PackedTokenStream(corpus.train[k][len(corpus.train[k]) - cut[k] :], begin).row(i, usual)
        for k in spec.kinds
        for i in range(cut[k] // usual)
    ]

    if spec.compiled:
        step_loss = torch.compile(lm_step_loss, dynamic=False)
    else:
        step_loss = lm_step_loss
    spec.depths.weights(shape.layers, 0)

    def loss(step: int) -> tuple[Tensor, int]:
        late = step >= schedule.steps * (1 - spec.long)
        length = shape.context if late else usual
        rows = max(1, preset.rows * preset.length // length)
        batch_BT = torch.from_numpy(
            np.stack([mixture_row(streams, spec, step * rows + i, length) for i in range(rows)])
        )
        if spec.depths.on:
            return learn_depths(student, teacher, batch_BT, fast, spec, step), rows * length
        if objective.marks:
            rng = np.random.default_rng([spec.seed, step])
            with bf16_autocast(fast):
                return objective.loss(network, batch_BT, ids, rng), rows * length
        return step_loss(student, teacher, batch_BT, fast), rows * length

    def aside() -> Tensor:
        parts = [
            lm_step_loss(student, teacher, torch.from_numpy(row_T[None]), fast) for row_T in apart
        ]
        return torch.stack(parts).mean()

    known_as: dict[str, Any] = {
        **asdict(schedule),
        **asdict(shape),
        "seed": spec.seed,
        "tokenizer": tokenizer.to_str(),
        "bf16": fast,
        "shares": list(spec.shares),
        "train_mb": list(spec.train_mb),
        "teacher": spec.teacher or "",
    }
    if first is not None or spec.depths.on:
        known_as |= {
            "start": spec.start or "",
            **asdict(spec.depths),
            "exits": list(spec.depths.exits),
        }

    if objective.marks:
        known_as |= {
            "objective": spec.objective,
            "mask": spec.mask,
            "spans": spec.spans,
            "mixture": list(spec.mixture),
        }

    def measure() -> dict[str, Any]:
        return {
            "parameters": sum(p.numel() for p in student.parameters()),
            "tokens": schedule.steps * preset.rows * preset.length,
            "bf16": fast,
            **measure_bits_per_byte(student, corpus, spec, shape),
        }

    def save(out: Path, result: Mapping[str, Any]) -> None:
        config = shape.config(bos=begin, eos=end)
        written = tokenizer_files(tokenizer, shape.context, objective.marks, objective.ends)
        save_directory(out, student, config, files=written)
        rows_RT = held_out_rows(corpus, begin, end, usual)
        log.update(objective.save(out, network, rows_RT, result))

    log = dict[str, Any]()
    return TrainingRun(
        network,
        loss,
        schedule,
        known_as,
        save,
        measure,
        aside if apart else None,
        log=log,
        title=spec.preset,
    )


def read_texts(spec: LMSpec) -> dict[str, DocumentSplit]:
    """The texts of each kind of which there is one to train on. Raises RequestError where there is none."""
    root = training_data(spec.data)
    parts = {
        k: split_documents(root, k, int(mb * 1e6), int(spec.held_kb * 1e3), spec.seed)
        for k, mb in zip(spec.kinds, spec.train_mb)
    }
    texts = {k: part for k, part in parts.items() if part.train}
    if not texts:
        raise RequestError(
            edge.error_sentence(
                f"data is {str(root)!r}: it has no text to train on (of ten texts seven are learned from and three held out, "
                "by their SHA-1): give more"
            )
        )
    return texts


def held_out_rows(corpus: TokenCorpus, begin: int, end: int, length: int) -> Tensor:
    """Up to eight rows of held-out text; of the text itself where there is too little of that [R, length + 1]."""
    held = [ids for texts in corpus.unseen.values() for ids in texts]
    if held:
        stream = pack_documents([[*ids[:-1]] for ids in held], end)
    else:
        stream = np.empty(0, np.uint16)
    if len(stream) < length:
        stream = np.concatenate([*corpus.train.values()])
    rows = PackedTokenStream(stream, begin)
    length = min(length, len(stream))
    return torch.from_numpy(
        np.stack([rows.row(i, length) for i in range(min(8, len(stream) // length))])
    )


def drop_short_kinds(spec: LMSpec, corpus: TokenCorpus, context: int) -> LMSpec:
    """The spec without kinds that have less text than a row holds, which are said. Raises RequestError where none has more."""
    sizes = {k: len(corpus.train[k]) for k in spec.kinds if k in corpus.train}
    there = [i for i, k in enumerate(spec.kinds) if sizes.get(k, 0) >= context]
    if not there:
        raise RequestError(
            f"data has {', '.join(f'{n:,} tokens of {k}' for k, n in sizes.items())} to train on: "
            f"rows of {context:,} need at least as many"
        )
    for k, n in sizes.items():
        if n < context:
            print(f"{k} is left out: its {n:,} tokens do not fill a row", file=sys.stderr)
    kinds, shares, train_mb = (
        tuple(values[i] for i in there) for values in (spec.kinds, spec.shares, spec.train_mb)
    )
    return replace(spec, kinds=kinds, shares=shares, train_mb=train_mb)


def set_aside(tokens: int, length: int) -> int:
    """How many tokens of a training stream are kept for judging weights: up to eight rows, a fiftieth at most."""
    return min(8, tokens // 50 // length) * length


def lm_step_loss(
    student: TrainableLlama, teacher: TrainableLlama | None, batch_BT: Tensor, fast: bool
) -> Tensor:
    """Mean cross-entropy with the text, or with the teacher's laws (forward KL but for a constant), in nats a token."""
    with bf16_autocast(fast):
        logits = student(batch_BT[:, :-1]).float().flatten(0, 1)
        return F.cross_entropy(logits, prediction_targets(teacher, batch_BT))


def prediction_targets(teacher: TrainableLlama | None, batch_BT: Tensor) -> Tensor:
    """What a step predicts: the text's next tokens, or the teacher's law of each."""
    if teacher is None:
        return batch_BT[:, 1:].flatten()
    with torch.no_grad():
        return teacher(batch_BT[:, :-1]).float().flatten(0, 1).softmax(-1)


def learn_depths(
    student: TrainableLlama,
    teacher: TrainableLlama | None,
    batch_BT: Tensor,
    fast: bool,
    spec: LMSpec,
    step: int,
) -> Tensor:
    """The same at several depths, each with its weight."""
    with bf16_autocast(fast):
        depths = spec.depths.weights(student.s.layers, step)
        aim = prediction_targets(teacher, batch_BT)
        total = torch.zeros(())
        for w, hidden in zip(
            depths.values(), spec.depths.hidden(student, batch_BT[:, :-1], depths, spec.seed, step)
        ):
            total = total + w * F.cross_entropy(student.logits(hidden).float().flatten(0, 1), aim)
    return total


def mixture_row(
    streams: Mapping[str, PackedTokenStream], spec: LMSpec, i: int, length: int
) -> np.ndarray:
    """The i-th row of the mixture: kinds take turns by their shares, each kind's rows are used up before one returns."""
    pattern = pattern_of(spec.shares)
    turn, at = divmod(i, len(pattern))
    kind = pattern[at]
    return streams[spec.kinds[kind]].row(
        turn * spec.shares[kind] + pattern[:at].count(kind), length
    )


def pattern_of(shares: Sequence[int]) -> list[int]:
    """0, 1 … as often as shares say, spread evenly."""
    return [
        k for _, k in sorted(((j + 0.5) / n, k) for k, n in enumerate(shares) for j in range(n))
    ]


def find_tokenizer(
    spec: LMSpec, out: Path, texts: Sequence[str], size: int, marks: Sequence[str] = ()
) -> Tokenizer:
    source = spec.tokenizer or spec.teacher or spec.start
    path = (model_directory(source) if source else out) / "tokenizer.json"
    if path.exists():
        try:
            return with_marks(Tokenizer.from_file(str(path)), marks)
        except Exception as e:  # whatever the library meets; it has no kind of error of its own
            raise RequestError(
                edge.error_sentence(f"{path} is not a readable tokenizer: {e}")
            ) from None
    if source:
        raise RequestError(f"tokenizer is {source!r}: there is no tokenizer.json")
    tokenizer = train_tokenizer(texts, size, marks)
    files.replace_file_atomically(path, lambda at: tokenizer.save(str(at)))
    return tokenizer


def encode_corpus(tokenizer: Tokenizer, parts: Mapping[str, Any]) -> TokenCorpus:
    end = mark_id(tokenizer, END)
    train = {}
    unseen = {}
    size = {}
    for kind, part in parts.items():
        train[kind] = pack_documents(
            [
                e.ids
                for e in tokenizer.encode_batch_fast(list(part.train), add_special_tokens=False)
            ],
            end,
        )
        unseen[kind] = [[*e.ids, end] for e in tokenizer.encode_batch_fast(list(part.unseen))]
        size[kind] = sum(len(strip_special_marks(t).encode("utf-8")) for t in part.unseen)
    return TokenCorpus(train, unseen, size)


def strip_special_marks(text: str) -> str:
    for mark in SPECIAL:
        text = text.replace(mark, "")
    return text


def measure_bits_per_byte(
    student: TrainableLlama, corpus: TokenCorpus, spec: LMSpec, shape: LlamaShape
) -> dict[str, Any]:
    """Bits per byte of held-out text of each kind; of the n-gram (on the same tokens of all kinds) and of the model."""
    unseen = {k: corpus.unseen[k] for k in spec.kinds if corpus.held_bytes[k]}
    baseline = NGram.train([corpus.train[k] for k in spec.kinds], shape.vocab, spec.order)
    return {
        "held_out_bytes": {k: corpus.held_bytes[k] for k in unseen},
        "train_tokens": {k: len(corpus.train[k]) for k in spec.kinds},
        "bits_per_byte": {
            k: bits_per_byte(student, v, corpus.held_bytes[k], context=shape.context)
            for k, v in unseen.items()
        },
        f"bits_per_byte_{spec.order}_gram": {
            k: ngram_bits_per_byte(baseline, v, corpus.held_bytes[k]) for k, v in unseen.items()
        },
    }


WRONG = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    SafetensorError,
    ArithmeticError,
    LookupError,
)
"""What a directory that is damaged, or another one, makes its reader raise."""


def model_directory(name: str) -> Path:
    if Path(name).is_dir():
        return Path(name)
    return sources.find_checkpoint(name)


def load_directory(name: str) -> TrainableLlama:
    """A network as `train_lm` saved it, by its directory or as zoo:NAME, in fp32, without gradients."""
    path = model_directory(name)
    try:
        config = edge.read_json(path / "config.json")
        family = family_of_config(config)
        network = net.from_weights(
            config,
            rows8.dequantise_rows(load_file(str(path / "model.safetensors"))),
        )
    except WRONG as e:
        raise RequestError(
            edge.error_sentence(
                f"model {name!r} is not a directory that `polydec train lm` wrote: {e}"
            )
        ) from None
    require_family(AUTOREGRESSIVE, family, name, "model")
    return network
