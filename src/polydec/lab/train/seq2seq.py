"""`polydec train seq2seq`: a small encoder-decoder model from pairs, its tokenizer included."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, processors
from torch import Tensor
from torch.nn.functional import cross_entropy

from polydec.base import edge, files
from polydec.base.errors import RequestError
from polydec.lab.train import pairs
from polydec.lab.train.batch_search import searched_batch_rows
from polydec.lab.train.data import BEGIN, END, held_out
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.oracle_plans import (
    PlannedPair,
    clause_mark_ids,
    plan_of_pair,
)
from polydec.lab.train.pairs import EncodedPairs, TextPair
from polydec.lab.train.plan_likelihood import plan_likelihood_loss
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.source_teacher import SourceTeacher, draw_targets, taught_loss
from polydec.lab.train.specs.seq2seq import HEAD, Seq2SeqSpec
from polydec.lab.train.t5 import TrainableT5, pad_id_rows, published_t5_tensors
from polydec.lab.train.tokens import (
    byte_level_pieces,
    mark_id,
    tokenizer_files,
    train_tokenizer,
    with_marks,
)
from polydec.models.formats.seq2seq import T5Shape, read_seq2seq_config
from polydec.models.sessions.sources import find_checkpoint
from polydec.models.text.clauses import CLAUSE_MARKS

JUDGED = 512
"""Held-out pairs that are measured, at most."""
TEXTS = 20_000
"""Pairs that a tokenizer is trained on, at most."""


def train_seq2seq(spec: Seq2SeqSpec) -> dict[str, Any]:
    """Train, and save at spec.out a T5 directory that `polydec.load` and transformers read.

    Pairs whose source has a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
        FileError: The data cannot be read.

    Source: T5 (2019), the network; Canary-Flash (2025), batches by both lengths.
    """
    return run_training("seq2seq", spec, _course)


def _course(spec: Seq2SeqSpec) -> TrainingRun:
    out = Path(spec.out)
    texts = list(islice(pairs.read_text_pairs(Path(spec.data)), spec.most))
    tokenizer = _tokenizer(spec, out, texts)
    begin, end = mark_id(tokenizer, BEGIN), mark_id(tokenizer, END)
    examples = encode_pairs(texts, tokenizer, spec.longest)
    read = len(examples.learned)
    # Before the buckets are made, whose longest target decides how many pairs a step takes.
    if spec.outliers:
        stay = pairs.drop_length_outliers(examples.lengths, spec.parts[0], spec.outliers)
        examples = EncodedPairs([examples.learned[i] for i in stay], examples.unseen)
    shape = shape_of(spec, tokenizer.get_vocab_size())
    published = shape.published_config(begin, end)
    # The config is made as it is published and read back, so that training computes what the saved
    # model does.
    network = TrainableT5(read_seq2seq_config(published, {}), shape.inner, spec.seed)
    fast = is_bf16_run(out / STATE)
    # Pairs of similar lengths are learned together, so that little is padding.
    steps = pairs.BucketBatchSampler(examples.lengths, spec.tokens, *spec.parts, spec.seed)
    # How many fit is searched with the very network that is trained.
    if spec.memory:
        rows = searched_batch_rows(
            [b.longest for b in steps.all],
            lambda rows, source, target: worst_pass(network, rows, source, target, begin, fast),
            list(network.parameters()),
            spec.memory,
        )
        steps = replace(steps, rows=rows)
    teacher = None
    if spec.teacher is not None:
        teacher = SourceTeacher.of_name(spec.teacher, tokenizer, fast)

    # What the marks of plans need; looked up only where they are learned.
    marks = clause_mark_ids(tokenizer) if spec.plans else (0, 0)
    pieces = byte_level_pieces(tokenizer) if spec.plans else []

    @cache
    def planned_pair(i: int) -> PlannedPair:
        """A learned pair with its plan, found once. i: its number."""
        return plan_of_pair(examples.learned[i], pieces, tokenizer.decode)

    def marked_loss(step: int) -> tuple[Tensor, int]:
        """The loss of a step that learns to write what is marked."""
        return plan_likelihood_loss(
            lambda rows: score_pairs(network, rows, begin, fast),
            [planned_pair(i) for i in steps.indices_of_step(step)],
            marks,
            spec.smooth,
            np.random.default_rng([spec.seed, 5, step]),
        )

    def step_loss(step: int) -> tuple[Tensor, int]:
        chosen = [examples.learned[i] for i in steps.indices_of_step(step)]
        if spec.drop:
            dice = np.random.default_rng([spec.seed, step])
            # An empty source is its end alone.
            chosen = pairs.drop_sources(chosen, spec.drop, (end,), dice)
        logits_NV, right_N = score_pairs(network, chosen, begin, fast)
        return cross_entropy(logits_NV, right_N, label_smoothing=spec.smooth), len(right_N)

    def taught_step_loss(step: int) -> tuple[Tensor, int]:
        """The loss of a step on texts that the model draws, as its teacher has them."""
        assert teacher is not None
        chosen = [examples.learned[i] for i in steps.indices_of_step(step)]
        dice = generator_for(spec.seed, step, "own texts")
        asked = [source for source, _ in chosen]
        # The teacher reads both sides in one context, which has room for as much as the data's longest.
        longest = max(len(target) for _, target in chosen)
        drawn = draw_targets(network, asked, (begin, end), longest, spec.heat, spec.top, dice)
        own = list(zip(asked, drawn, strict=True))
        # The student's gradient goes through its laws, not through what it drew.
        logits_NV, _ = score_pairs(network, own, begin, fast)
        loss = spec.taught * taught_loss(logits_NV, teacher.target_logprobs(own))
        # The data's own targets cost a pass of their own.
        if spec.taught == 1:
            return loss, len(logits_NV)
        given, count = step_loss(step)
        return loss + (1 - spec.taught) * given, count

    def measure_result() -> Mapping[str, Any]:
        # Rows and what was left out are said where they were asked for.
        searched = {"batch_rows": list(steps.rows)} if spec.memory else {}
        left = {"outliers_left": read - len(examples.learned)} if spec.outliers else {}
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "pairs": len(examples.learned),
            "padding": steps.padding_share(min(200, spec.steps)),
            **searched,
            **left,
            **measure_seq2seq(network, examples.unseen[:JUDGED], begin),
            "out": spec.out,
        }

    def save_checkpoint_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write weights, tokenizer and configs.

        Args:
            at: Directory to write.
            result: What was measured; it is not used.
        """
        files.replace_file_atomically(
            at / "model.safetensors",
            lambda to: save_file(dict(published_t5_tensors(network)), to, {"format": "pt"}),
        )
        beside = tokenizer_files(tokenizer, spec.longest)
        # There is no chat: the source is read as it is. BEGIN serves as padding, as in T5.
        beside["tokenizer_config.json"] = {
            k: v for k, v in beside["tokenizer_config.json"].items() if k != "chat_template"
        } | {"pad_token": BEGIN}
        ids = ("pad_token_id", "decoder_start_token_id", "eos_token_id")
        beside["generation_config.json"] = {k: published[k] for k in ids}
        for name, content in {**beside, "config.json": published}.items():
            if isinstance(content, str):
                text = content
            else:
                text = json.dumps(content, indent=2) + "\n"
            # Each file appears complete or not at all.
            files.replace_file_atomically(
                at / name, lambda to, text=text: Path(to).write_text(text, "utf-8")
            )

    schedule = TrainingSchedule(spec.steps, spec.rate, warmup=spec.warmup, muon=spec.muon)
    # An option that is off has no part in the identity; what teaches nothing has none either.
    off = [n for n in ("drop", "plans", "memory", "outliers", "teacher") if not getattr(spec, n)]
    if spec.teacher is None:
        off += ["taught", "heat", "top"]
    same = run_identity(spec, *off, bf16=fast, pairs=examples.digest)
    if teacher is not None:
        loss_of_step = taught_step_loss
    elif spec.plans:
        loss_of_step = marked_loss
    else:
        loss_of_step = step_loss
    return TrainingRun(
        network,
        loss_of_step,
        schedule,
        same,
        save_checkpoint_at,
        measure_result,
        deep=network.deep if spec.muon else (),
    )


def worst_pass(
    network: TrainableT5, rows: int, source: int, target: int, begin: int, fast: bool
) -> Tensor:
    """The loss of the largest step of a bucket, on ids that mean nothing.

    Args:
        network: The network.
        rows: Pairs.
        source: Tokens of each source.
        target: Tokens of each target.
        begin: Id before every target in the decoder.
        fast: Whether products are made in bf16.

    Returns:
        The loss, with all that its gradients need.
    """
    logits_NV, right_N = score_pairs(network, [((1,) * source, (1,) * target)] * rows, begin, fast)
    return cross_entropy(logits_NV, right_N)


def shape_of(spec: Seq2SeqSpec, vocab: int) -> T5Shape:
    """The sizes of the network.

    Args:
        spec: Options; an inner width of 0 is four times the width.
        vocab: Tokens of the vocabulary.

    Returns:
        The sizes.
    """
    inner = spec.inner or 4 * spec.width
    return T5Shape(vocab, spec.width, HEAD, inner, spec.encoder, spec.decoder)


def _tokenizer(spec: Seq2SeqSpec, out: Path, texts: Sequence[TextPair]) -> Tokenizer:
    """The tokenizer that is asked for, the one that this run had before, or a new one.

    It puts END after every text.
    """
    # A teacher's tokens are those that it can teach.
    given = spec.tokenizer or spec.teacher
    if given:
        path = find_checkpoint(given) / "tokenizer.json"
    else:
        path = out / "tokenizer.json"
    if path.exists():
        try:
            tokenizer = Tokenizer.from_file(str(path))
        except Exception as e:  # whatever the library meets; it has no kind of error of its own
            raise RequestError(
                edge.error_sentence(f"{path} is not a readable tokenizer: {e}")
            ) from None
    elif given:
        raise RequestError(f"tokenizer is {given!r}: there is no tokenizer.json")
    else:
        # Held-out texts have no part in the vocabulary either.
        learned = [p for p in texts if not held_out(p.source)][:TEXTS]
        sides = (t for p in learned for t in (p.source, p.target))
        tokenizer = train_tokenizer(sides, spec.vocab, CLAUSE_MARKS if spec.plans else ())
    if spec.plans:
        tokenizer = with_marks(tokenizer, CLAUSE_MARKS)
    end = mark_id(tokenizer, END)
    # Sources have no BEGIN, as in T5; both sides end with END.
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {END}", special_tokens=[(END, end)]
    )
    # A resumed run has to read the same tokenizer.
    if not given:
        out.mkdir(parents=True, exist_ok=True)
        files.replace_file_atomically(out / "tokenizer.json", lambda at: tokenizer.save(str(at)))
    return tokenizer


def encode_pairs(texts: Sequence[TextPair], tokenizer: Tokenizer, longest: int) -> EncodedPairs:
    """Encode pairs, and split them into learned and held-out ones.

    Args:
        texts: The pairs.
        tokenizer: Encodes both sides, with END.
        longest: Tokens of each side, at most; longer pairs are left out.

    Returns:
        The pairs in tokens.

    Raises:
        RequestError: No pair can be learned.
    """
    sides = [
        [e.ids for e in tokenizer.encode_batch_fast([getattr(p, side) for p in texts])]
        for side in ("source", "target")
    ]
    learned = list[Any]()
    unseen = list[Any]()
    for pair, source, target in zip(texts, *sides, strict=True):
        if max(len(source), len(target)) <= longest:
            # The source decides the side, so pairs of one source stay together.
            (unseen if held_out(pair.source) else learned).append((tuple(source), tuple(target)))
    if not learned:
        raise RequestError(
            f"longest is {longest}: none of the {len(texts)} pairs is that short and not held out"
        )
    return EncodedPairs(learned, unseen)


def score_pairs(
    network: TrainableT5,
    chosen: Sequence[tuple[Sequence[int], Sequence[int]]],
    begin: int,
    fast: bool,
) -> tuple[Tensor, Tensor]:
    """Score the targets of some pairs, each token after the right ones before it.

    Args:
        network: The encoder-decoder network.
        chosen: Token ids of sources and targets.
        begin: Id before every target in the decoder.
        fast: Whether products are made in bf16.

    Returns:
        Logits at all target tokens, one text after another, shape ``[N, V]``, and the right tokens,
        shape ``[N]``.
    """
    source_BS, there_BS = pad_id_rows([source for source, _ in chosen])
    # The decoder reads the target moved by one: BEGIN first, the last token not at all.
    text_BT, here_BT = pad_id_rows([(begin, *target[:-1]) for _, target in chosen])
    # [N]: the targets with their ends, without padding.
    right_N = torch.tensor([x for _, target in chosen for x in target])
    with bf16_autocast(fast):
        states_NW = network(source_BS, there_BS, text_BT, here_BT)[here_BT]
        return network.token_logits(states_NW).float(), right_N


@torch.no_grad()
def measure_seq2seq(
    network: TrainableT5, unseen: Sequence[tuple[Sequence[int], Sequence[int]]], begin: int
) -> dict[str, float | None]:
    """Measure a network on held-out pairs.

    Args:
        network: The trained network.
        unseen: Token ids of sources and targets.
        begin: Id before every target in the decoder.

    Returns:
        `held_out_nats` a token; `held_out_right`: share of tokens that are the likeliest;
        `held_out_whole`: share of texts whose tokens all are. None where there is no pair.
    """
    if not unseen:
        return {"held_out_nats": None, "held_out_right": None, "held_out_whole": None}
    nats = 0.0
    right = 0
    whole = 0
    count = 0
    for at in range(0, len(unseen), 32):
        chosen = unseen[at : at + 32]
        logits_NV, right_N = score_pairs(network, chosen, begin, False)
        nats += float(cross_entropy(logits_NV, right_N, reduction="sum"))
        same_N = logits_NV.argmax(-1) == right_N
        # One mask for each text again.
        texts = same_N.split([len(target) for _, target in chosen])
        right = right + int(same_N.sum())
        count = count + len(right_N)
        whole += sum(bool(text.all()) for text in texts)
    return {
        "held_out_nats": nats / count,
        "held_out_right": right / count,
        "held_out_whole": whole / len(unseen),
    }
