"""`polydec train hyperfit`: a model learns a few texts by heart, so that it repeats itself less."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base import edge
from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.data import BEGIN, END, KINDS, split_documents, training_data
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.exits import copy_with_layers
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.lora import add_lora_adapters, save_lora_adapters
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.ngrams import count_every_continuation
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.selfplay import TrainingSample
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.specs.hyperfit import HyperfitSpec
from polydec.lab.train.specs.hypernetwork import HypernetworkSpec
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.specs.recurrence import RecurrenceSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files
from polydec.models.learned.kinds import ngram_counts
from polydec.models.sessions.sources import open_source

BYTES = 64 << 20
"""Of text of each kind that is read at most."""
COPIED = 5
"""Tokens of a sequence that counts as copied."""


def train_hyperfit(spec: HyperfitSpec) -> dict[str, Any]:
    """Learn `texts` texts of `length` tokens by heart, at a constant rate, and save the model.

    Returns what its laws and its greedy continuations of held-out texts were like `before` and
    `after`, see `measure_hyperfit`. Held-out nats rise; that is expected. See `run_training`.

    Raises:
        RequestError: The data has fewer texts that are long enough.

    Source: Carlsson et al., "The hyperfitting phenomenon: sharpening and stabilizing LLMs for
    open-ended text generation" (2024): 2,000 texts of 256 tokens, 20 epochs, eight a step, Adam
    without decay and without a schedule. `citations` counts what its decoder that blocks
    citations looks up.
    """
    return run_training("hyperfit", spec, _course)


def _course(spec: HyperfitSpec) -> TrainingRun:
    first = load_directory(spec.target)
    # The target's own tokenizer.
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    if spec.length > first.s.context:
        raise RequestError(
            f"length is {spec.length}: {spec.target} has a context of {first.s.context} tokens, so give --length "
            f"{first.s.context} or less"
        )
    begin = mark_id(tokenizer, BEGIN)
    # All texts have one length: tensors of [N, length + 1].
    learned_NT, unseen_NT = (
        torch.tensor([[begin, *ids] for ids in texts])
        for texts in texts_of_length(spec, spec.length, tokenizer)
    )
    # A copy is trained, as the target is measured as it was.
    network = copy_with_layers(first, first.s.layers).train()
    if spec.lora:
        add_lora_adapters(network, spec.lora, spec.seed)
    fast = is_bf16_run(Path(spec.out) / STATE)
    each = len(learned_NT) // spec.rows

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Each epoch has its own order; a tail that fills no batch is left out.
        epoch, at = divmod(step, each)
        # A new order for each epoch, named by the seed, so that a run that goes on has the same
        # one.
        order_N = np.random.default_rng([spec.seed, epoch]).permutation(len(learned_NT))
        rows_BT = learned_NT[order_N[at * spec.rows : (at + 1) * spec.rows]]
        with bf16_autocast(fast):
            return next_token_nats(network, rows_BT), rows_BT[:, 1:].numel()

    # Measured before the first step, for the comparison.
    before = measure_hyperfit(first, spec, learned_NT, unseen_NT)

    def measure_result() -> Mapping[str, Any]:
        return {
            "out": spec.out,
            "before": before,
            "after": measure_hyperfit(network, spec, learned_NT, unseen_NT),
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Save the model, or its adapter, as a directory that `polydec.load` reads.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        if spec.lora:
            save_lora_adapters(out, network, spec.target)
        else:
            config = first.s.config_content(bos=begin, eos=tokenizer.token_to_id(END))
            save_directory(out, network, config, files=tokenizer_files(tokenizer, first.s.context))
        if spec.citations:
            save_learned_counts(out, learned_NT, spec.citations)

    steps = each * spec.epochs
    # A constant rate, without warmup and weight decay, as published.
    schedule = TrainingSchedule(
        steps, spec.rate, warmup=0.0, decay=0.0, weight_decay=0.0, log_every=min(20, steps)
    )
    free = ("citations",) if spec.lora else ("lora", "citations")
    same = run_identity(spec, *free, texts=tensor_digest(learned_NT), bf16=fast)
    return TrainingRun(network, step_loss, schedule, same, save_result, measure_result)


def save_learned_counts(out: Path, learned_NT: Tensor, length: int) -> None:
    """Count what was learned, as the citation blocker looks it up, and write it to out/citations.

    Args:
        out: Directory of the trained model, of which the vocabulary alone is read.
        learned_NT: The learned texts, BEGIN first, shape ``[N, T]``.
        length: Tokens in a row that an answer must not copy, 2 or more.
    """
    source = open_source(out)
    vocab = TokenVocabulary(source.config["vocab_size"], frozenset(), source.fingerprint)
    # BEGIN stands before a text and follows nothing.
    samples = [TrainingSample((row[0],), tuple(row[1:])) for row in learned_NT.tolist()]
    table = count_every_continuation(samples, length - 1, vocab)
    about = {"target": str(out), "tokens": sum(len(s.output_ids) for s in samples)}
    ngram_counts.save(out / "citations", table, about)


def texts_of_length(
    spec: HyperfitSpec | HypernetworkSpec | RecurrenceSpec | ContextSpec,
    length: int,
    tokenizer: Any,
) -> tuple[list[list[int]], list[list[int]]]:
    """Read texts to learn, and held-out ones, all cut to one length.

    Args:
        spec: Options.
        length: Tokens of each text.
        tokenizer: Encodes the texts.

    Returns:
        Token ids of `texts` texts to learn and of `tries` that are held out, or of as many as there
        are.

    Raises:
        RequestError: There are fewer to learn than a step takes, or none is held out.
    """
    root = training_data(spec.data)
    parts = list[list[list[int]]]()
    # All kinds of text, in the order of KINDS, until there are enough.
    splits = [split_documents(root, kind, BYTES, BYTES, spec.seed) for kind in KINDS]
    for texts, most in (
        ([t for s in splits for t in s.train], spec.texts),
        ([t for s in splits for t in s.unseen], spec.tries),
    ):
        cut = list[list[int]]()
        for text in texts:
            # A text is cut before it is encoded: 16 characters a token are enough in nearly all
            # texts.
            ids = tokenizer.encode(text[: 16 * length], add_special_tokens=False).ids
            if len(ids) >= length:
                cut.append(ids[:length])
            if len(cut) == most:
                break
        parts.append(cut)
    if len(parts[0]) < spec.rows or not parts[1]:
        raise RequestError(
            edge.error_sentence(
                f"data has {len(parts[0])} texts of {length} tokens to learn and {len(parts[1])} held out: it needs "
                f"at least {spec.rows} and 1, so give more text by --data, or ask for shorter texts"
            )
        )
    return parts[0], parts[1]


def next_token_nats(network: TrainableLlama, rows_BT: Tensor) -> Tensor:
    """The mean negative log-likelihood of all tokens after the first.

    Args:
        network: The network.
        rows_BT: Token ids, shape ``[B, T]``.

    Returns:
        Nats a token.
    """
    logits = network(rows_BT[:, :-1]).float().flatten(0, 1)
    return F.cross_entropy(logits, rows_BT[:, 1:].flatten())


@torch.no_grad()
def measure_hyperfit(
    network: TrainableLlama, spec: HyperfitSpec, learned_NT: Tensor, unseen_NT: Tensor
) -> dict[str, float]:
    """Measure how sharp and how repetitive a model is on held-out texts.

    Args:
        network: The model.
        spec: Options; `context` tokens of each text are read, and `ahead` are written after them.
        learned_NT: The learned texts, shape ``[N, T]``; only for `copied`.
        unseen_NT: The held-out texts, after BEGIN, shape ``[N, T]``.

    Returns:
        `held_out_nats` a token; `entropy` of its laws, nats; of the greedy continuations:
        `distinct` (different tokens over all), `repeated` (4-grams that stood before in the same
        continuation), `copied` (5-grams that stand in a learned text), each 0 to 1.
    """
    logp = network(unseen_NT[:, :-1]).float().log_softmax(-1)
    written = continue_greedily(network, unseen_NT[:, : spec.context + 1], spec.ahead).tolist()
    # Every 5-gram of the learned texts.
    known = {g for row in learned_NT.tolist() for g in token_ngrams(row, COPIED)}
    return {
        "held_out_nats": float(next_token_nats(network, unseen_NT)),
        "entropy": float(-(logp.exp() * logp).sum(-1).mean()),
        "distinct": float(np.mean([len(set(row)) / len(row) for row in written])),
        "repeated": float(np.mean([repeated_ngram_fraction(row, 4) for row in written])),
        "copied": float(
            np.mean([g in known for row in written for g in token_ngrams(row, COPIED)])
        ),
    }


def continue_greedily(network: TrainableLlama, rows_BT: Tensor, count: int) -> Tensor:
    """Continue texts greedily; an end of text does not stop it.

    Args:
        network: The model.
        rows_BT: Token ids, shape ``[B, T]``; what is longer than the context loses its beginning.
        count: Tokens to write.

    Returns:
        The new tokens, shape ``[B, count]``.
    """
    begun = rows_BT.shape[1]
    for _ in range(count):
        # Without a cache: the last tokens are read anew for each new one.
        near_BT = rows_BT[:, -network.s.context :]
        next_B = network.token_logits(network.model(near_BT)[:, -1]).argmax(-1)
        rows_BT = torch.cat([rows_BT, next_B[:, None]], 1)
    return rows_BT[:, begun:]


def token_ngrams(row: Sequence[int], n: int) -> list[tuple[int, ...]]:
    """All sequences of n neighbouring tokens.

    Args:
        row: Token ids.
        n: Length of a sequence, 1 or more.

    Returns:
        The sequences in order.
    """
    return [tuple(row[i : i + n]) for i in range(len(row) - n + 1)]


def repeated_ngram_fraction(row: Sequence[int], n: int) -> float:
    """The share of the sequences of n tokens that stood before in the same row.

    Args:
        row: Token ids, n of them at least.
        n: Length of a sequence, 1 or more.

    Returns:
        0 to 1.
    """
    all_ = token_ngrams(row, n)
    # Every sequence after the first of its kind stood there before.
    return 1 - len(set(all_)) / len(all_)
