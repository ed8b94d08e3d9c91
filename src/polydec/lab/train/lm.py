"""`polydec train lm`: a small language model from text, its tokenizer included."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional as F

from polydec.base import edge
from polydec.base.errors import RequestError
from polydec.lab.train.answers import answer_run
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
from polydec.lab.train.lm_student import begin_student, lm_schedule, load_directory, save_lm_student
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.ngram import NGram
from polydec.lab.train.objectives.objective_names import KNOWN
from polydec.lab.train.specs.lm import PRESETS, LMSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files


@dataclass(frozen=True)
class TokenCorpus:
    """The texts of a training in tokens, by kind.

    Attributes:
        train: Packed stream of tokens to train on.
        unseen: Held-out documents, each with BEGIN and END.
        held_bytes: Bytes of UTF-8 of the held-out documents, without special marks.
    """

    train: Mapping[str, np.ndarray]
    unseen: Mapping[str, Sequence[Sequence[int]]]
    held_bytes: Mapping[str, int]


def train_lm(spec: LMSpec) -> dict[str, Any]:
    """Train, save a Hugging Face directory at spec.out, and measure.

    See `run_training`; with spec.pairs see `answer_run`.

    Raises:
        RequestError: An option is wrong, or data is missing.
    """
    if spec.pairs is not None:
        return run_training("lm", spec, answer_run)
    return run_training("lm", spec, _course)


def _course(spec: LMSpec) -> TrainingRun:
    preset = PRESETS[spec.preset]
    out = Path(spec.out)
    schedule = lm_schedule(spec)
    if spec.teacher is None:
        teacher = None
    else:
        teacher = load_directory(spec.teacher)
    objective = KNOWN[spec.objective](spec)
    parts = read_texts(spec)
    # Half of the training texts are enough to learn merges from.
    student, tokenizer = begin_student(
        spec,
        out,
        [t for p in parts.values() for t in p.train[: -(-len(p.train) // 2)]],
        objective.marks,
    )
    shape = student.s
    ids = {mark: mark_id(tokenizer, mark) for mark in (BEGIN, END, *objective.marks)}
    begin = ids[BEGIN]
    end = ids[END]
    corpus = encode_corpus(tokenizer, parts)
    # From here on `spec` has only kinds with enough text.
    spec = drop_short_kinds(spec, corpus, shape.context)
    fast, network = is_bf16_run(out / STATE, spec.bf16), objective.trained_network(student)
    usual = min(preset.length, shape.context)  # tokens of a row but for the last steps
    cut = {
        k: set_aside(len(corpus.train[k]), usual) for k in spec.kinds
    }  # tokens at the end that only judge
    streams = {
        k: PackedTokenStream(corpus.train[k][: len(corpus.train[k]) - cut[k]], begin, spec.seed)
        for k in spec.kinds
    }
    # Rows that only judge, cut as rows of the training are.
    apart = [
        PackedTokenStream(corpus.train[k][len(corpus.train[k]) - cut[k] :], begin).stream_row(
            i, usual
        )
        for k in spec.kinds
        for i in range(cut[k] // usual)
    ]

    # Only the plain loss is compiled: depths change from step to step.
    if spec.compiled:
        step_loss = torch.compile(lm_step_loss, dynamic=False)
    else:
        step_loss = lm_step_loss
    # Raises now, not after the first step, where the depths do not fit the network.
    spec.depths.loss_weights(shape.layers, 0)

    def row_loss(step: int) -> tuple[Tensor, int]:
        # The last part of the steps reads rows as long as the context; the tokens of a step stay
        # alike.
        late = step >= schedule.steps * (1 - spec.long)
        length = shape.context if late else usual
        rows = max(1, preset.rows * preset.length // length)
        batch_BT = torch.from_numpy(
            np.stack([mixture_row(streams, spec, step * rows + i, length) for i in range(rows)])
        )
        # Early exits, objectives with marks and plain next tokens exclude one another.
        if spec.depths.on:
            return learn_depths(student, teacher, batch_BT, fast, spec, step), rows * length
        if objective.marks:
            rng = np.random.default_rng([spec.seed, step])
            with bf16_autocast(fast):
                return (
                    objective.batch_loss(network, batch_BT, ids, rng, step / schedule.steps),
                    rows * length,
                )
        return step_loss(student, teacher, batch_BT, fast), rows * length

    def held_out() -> Tensor:
        parts = [
            lm_step_loss(student, teacher, torch.from_numpy(row_T[None]), fast) for row_T in apart
        ]
        return torch.stack(parts).mean()

    # What must agree for an interrupted run to go on.
    known_as: dict[str, Any] = {
        **asdict(schedule),
        **shape.known_sizes,
        "seed": spec.seed,
        "tokenizer": tokenizer.to_str(),
        "bf16": fast,
        "shares": list(spec.shares),
        "train_mb": list(spec.train_mb),
        "teacher": spec.teacher or "",
    }
    # Options that are off have no part in the identity.
    if spec.start is not None or spec.depths.on:
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
    if spec.stages:
        known_as["stages"] = True
    if spec.lora:
        known_as["lora"] = spec.lora

    def measure_result() -> dict[str, Any]:
        return {
            "parameters": sum(p.numel() for p in student.parameters()),
            "tokens": schedule.steps * preset.rows * preset.length,
            "bf16": fast,
            **measure_bits_per_byte(student, corpus, spec, shape),
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Save the network as a directory that `polydec.load` reads, and what the objective adds.

        Args:
            out: Directory to write.
            result: What was measured.
        """
        written = tokenizer_files(tokenizer, shape.context, objective.marks, objective.ends)
        save_lm_student(out, student, spec, written, begin, end)
        # The objective measures on texts that were set aside.
        rows_RT = held_out_rows(corpus, begin, end, usual)
        log.update(objective.save_extras(out, network, rows_RT, result))

    log = dict[str, Any]()
    return TrainingRun(
        network,
        row_loss,
        schedule,
        known_as,
        save_result,
        measure_result,
        held_out if apart else None,
        log=log,
        title=spec.preset,
    )


def read_texts(spec: LMSpec) -> dict[str, DocumentSplit]:
    """The texts of each kind that has at least one to train on.

    Raises:
        RequestError: There is no text to train on.
    """
    root = training_data(spec.data)
    parts = {
        # The sizes are in megabytes and kilobytes, as the spec has them.
        k: split_documents(root, k, int(mb * 1e6), int(spec.held_kb * 1e3), spec.seed)
        for k, mb in zip(spec.kinds, spec.train_mb)
    }
    texts = {k: part for k, part in parts.items() if part.train}
    if not texts:
        raise RequestError(
            edge.error_sentence(
                f"data is {str(root)!r}: it has no text to train on (of ten texts seven are learned from and three held out, "
                "by their SHA-1): give more by --data"
            )
        )
    return texts


def held_out_rows(corpus: TokenCorpus, begin: int, end: int, length: int) -> Tensor:
    """Up to eight rows of held-out text; of the training text where there is too little of that.

    Args:
        corpus: The texts in tokens.
        begin: Id before every row.
        end: Id between documents.
        length: Tokens of a row; less where all text is shorter.

    Returns:
        Token ids, shape ``[R, length + 1]``.
    """
    held = [ids for texts in corpus.unseen.values() for ids in texts]
    if held:
        # Documents have their END already, and packing adds one: it is taken off first.
        stream = pack_documents([[*ids[:-1]] for ids in held], end)
    else:
        stream = np.empty(0, np.uint16)
    if len(stream) < length:
        stream = np.concatenate([*corpus.train.values()])
    rows = PackedTokenStream(stream, begin)
    length = min(length, len(stream))
    return torch.from_numpy(
        np.stack([rows.stream_row(i, length) for i in range(min(8, len(stream) // length))])
    )


def drop_short_kinds(spec: LMSpec, corpus: TokenCorpus, context: int) -> LMSpec:
    """Leave out kinds that have less text than a row holds; each is announced on stderr.

    Args:
        spec: Options; kinds, shares and sizes are read.
        corpus: The texts in tokens.
        context: Tokens of the longest row.

    Returns:
        The spec with the kinds that are left.

    Raises:
        RequestError: No kind has enough text.
    """
    sizes = {k: len(corpus.train[k]) for k in spec.kinds if k in corpus.train}
    # A kind needs one row of the longest length.
    there = [i for i, k in enumerate(spec.kinds) if sizes.get(k, 0) >= context]
    if not there:
        raise RequestError(
            f"data has {', '.join(f'{n:,} tokens of {k}' for k, n in sizes.items())} to train on: "
            f"rows of {context:,} need at least as many, so give more text by --data"
        )
    for k, n in sizes.items():
        if n < context:
            print(f"{k} is left out: its {n:,} tokens do not fill a row", file=sys.stderr)
    kinds, shares, train_mb = (
        tuple(values[i] for i in there) for values in (spec.kinds, spec.shares, spec.train_mb)
    )
    return replace(spec, kinds=kinds, shares=shares, train_mb=train_mb)


def set_aside(tokens: int, length: int) -> int:
    """How many tokens of a training stream only judge the weights.

    These are up to eight rows, a fiftieth of the stream at most.

    Args:
        tokens: Tokens of the stream.
        length: Tokens of a row.

    Returns:
        A multiple of `length`, which may be 0.
    """
    return min(8, tokens // 50 // length) * length


def lm_step_loss(
    student: TrainableLlama, teacher: TrainableLlama | None, batch_BT: Tensor, fast: bool
) -> Tensor:
    """The mean cross-entropy with the text, or with a teacher's laws.

    With a teacher it is forward KL, up to a constant.

    Args:
        student: The network in training.
        teacher: Gives the laws to learn; None: the text's next tokens are learned.
        batch_BT: Token ids, shape ``[B, T]``.
        fast: Whether products are made in bf16.

    Returns:
        Nats a token.
    """
    with bf16_autocast(fast):
        logits = student(batch_BT[:, :-1]).float().flatten(0, 1)
        return F.cross_entropy(logits, prediction_targets(teacher, batch_BT))


def prediction_targets(teacher: TrainableLlama | None, batch_BT: Tensor) -> Tensor:
    """What a step predicts.

    Args:
        teacher: Gives laws; None: the text itself is predicted.
        batch_BT: Token ids, shape ``[B, T]``.

    Returns:
        Next token ids, shape ``[B (T - 1)]``, or the teacher's probabilities, shape ``[B (T - 1),
        V]``.
    """
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
    """The loss of `lm_step_loss` at several depths, each with its weight.

    Args:
        student: The network in training.
        teacher: Gives the laws to learn; None: the text's next tokens are learned.
        batch_BT: Token ids, shape ``[B, T]``.
        fast: Whether products are made in bf16.
        spec: Options; `depths` says what is learned, `seed` which layers are left out.
        step: Step of the training, from 0.

    Returns:
        Nats a token.
    """
    with bf16_autocast(fast):
        depths = spec.depths.loss_weights(student.s.layers, step)
        # All depths learn the same targets.
        aim = prediction_targets(teacher, batch_BT)
        total = torch.zeros(())
        for w, hidden in zip(
            depths.values(),
            spec.depths.hidden_states(student, batch_BT[:, :-1], depths, spec.seed, step),
        ):
            total = total + w * F.cross_entropy(
                student.token_logits(hidden).float().flatten(0, 1), aim
            )
    return total


def mixture_row(
    streams: Mapping[str, PackedTokenStream], spec: LMSpec, i: int, length: int
) -> np.ndarray:
    """Row i of the mixture of kinds.

    Kinds take turns by their shares, and the rows of a kind are used up before one comes again.

    Args:
        streams: The stream of each kind.
        spec: Options; kinds and shares are read.
        i: Number of the row, from 0.
        length: Tokens of the row, without BEGIN.

    Returns:
        Token ids, BEGIN first.
    """
    pattern = pattern_of(spec.shares)
    # A turn of the pattern has every kind as often as its share.
    turn, at = divmod(i, len(pattern))
    kind = pattern[at]
    # Rows of this kind in earlier turns of the pattern, and in this one.
    return streams[spec.kinds[kind]].stream_row(
        turn * spec.shares[kind] + pattern[:at].count(kind), length
    )


def pattern_of(shares: Sequence[int]) -> list[int]:
    """The numbers 0, 1, … each as often as its share says, spread evenly."""
    # The j-th of a kind's n turns stands at (j + 0.5) / n of the round.
    return [
        k for _, k in sorted(((j + 0.5) / n, k) for k, n in enumerate(shares) for j in range(n))
    ]


def encode_corpus(tokenizer: Tokenizer, parts: Mapping[str, Any]) -> TokenCorpus:
    """Encode the texts of all kinds.

    Args:
        tokenizer: Encodes texts; it puts BEGIN before one.
        parts: The documents of each kind.

    Returns:
        The texts in tokens.
    """
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
        # Held-out documents are scored one by one, so each has its own BEGIN.
        unseen[kind] = [[*e.ids, end] for e in tokenizer.encode_batch_fast(list(part.unseen))]
        # Bits per byte count the text's own bytes; special marks are no part of it.
        size[kind] = sum(len(strip_special_marks(t).encode("utf-8")) for t in part.unseen)
    return TokenCorpus(train, unseen, size)


def strip_special_marks(text: str) -> str:
    """A text without special marks."""
    for mark in SPECIAL:
        text = text.replace(mark, "")
    return text


def measure_bits_per_byte(
    student: TrainableLlama, corpus: TokenCorpus, spec: LMSpec, shape: LlamaShape
) -> dict[str, Any]:
    """Bits per byte of held-out text of each kind, of the model and of an n-gram model.

    Both models have the same tokens.

    Args:
        student: The trained network.
        corpus: The texts in tokens.
        spec: Options; kinds, and the order of the n-gram model.
        shape: Vocabulary and context of the network.

    Returns:
        Bits per byte by kind, with the sizes of the texts.
    """
    unseen = {k: corpus.unseen[k] for k in spec.kinds if corpus.held_bytes[k]}
    # The n-gram counts the tokens that the network was trained on.
    baseline = NGram.train_counts([corpus.train[k] for k in spec.kinds], shape.vocab, spec.order)
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
