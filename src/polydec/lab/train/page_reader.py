"""A small decoder that answers questions about pages, and writes their lines once more.

Encoders of context are trained for it. It reads `<|passage|>` page `<|behind|>` and then questions
with their answers, or `<|again|>` and the lines. What reads pages in another way puts vectors where
their words stand. Pages are those of `lab/train/facts.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.lab.train import facts
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.facts import DIGITS, FactPage
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer
from polydec.models.learned.passages import PassageMarks

OPENING = "<|passage|>"
CLOSING = "<|behind|>"
AGAIN = "<|again|>"
"""Around a passage, and before what is written once more."""

MARKED = (OPENING, CLOSING, AGAIN)
VOCAB = 263
CONTEXT = 112
LINES = 8
RECORDS = 3
ASKED = 3
"""Of a page."""

MOST = 4
"""Lines that are written once more, at most."""

# Trained on no text: bytes only, so a letter is a token.
TOKENIZER = train_tokenizer([], VOCAB, MARKED)
IDS: Mapping[str, int] = {x: mark_id(TOKENIZER, x) for x in (BEGIN, END, *MARKED)} | {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0]
    for x in facts.KEYS + facts.KEYS.lower() + "0123456789;?"
}
FILES = tokenizer_files(TOKENIZER, CONTEXT, MARKED)
MARKS = PassageMarks(IDS[OPENING], IDS[CLOSING])


def draw_pages(seed: int, step: int, count: int, unseen: bool = False) -> list[FactPage]:
    """Draw the pages of a step.

    Args:
        seed: Seed of the run.
        step: Step of the training.
        count: Number of pages.
        unseen: Whether the pages are held out from training. Default False.

    Returns:
        The pages.
    """
    return [
        facts.draw_fact_page(f"{seed} {step} {i}", LINES, RECORDS, ASKED, unseen)
        for i in range(count)
    ]


def encode_page_lines(pages: Sequence[FactPage]) -> Tensor:
    """Token ids of the lines, shape ``[B, L, K]``."""
    return torch.tensor([[[IDS[x] for x in line] for line in p.lines] for p in pages])


def encode_page_questions(pages: Sequence[FactPage]) -> Tensor:
    """Token ids of the questions with their answers.

    They follow one another: shape ``[B, Q (2 + DIGITS)]``.
    """
    return torch.tensor(
        [[IDS[x] for key, number in p.asked for x in f"?{key}{number}"] for p in pages]
    )


def page_continuation_logits(decoder: TrainableLlama, page_BTH: Tensor, token_BU: Tensor) -> Tensor:
    """Logits at the tokens that follow pages; each token is given as input.

    Args:
        decoder: The decoder.
        page_BTH: Input vectors of the pages: words, or what stands for them, shape ``[B, T, H]``.
        token_BU: Token ids after the pages, shape ``[B, U]``.

    Returns:
        Logits, shape ``[B, U, V]``.
    """
    trunk = decoder.model
    B = len(token_BU)
    before, after = (
        trunk.embed_tokens(torch.tensor([IDS[x] for x in names])).expand(B, len(names), -1)
        for names in ((BEGIN, OPENING), (CLOSING,))
    )
    # BEGIN, the opening mark, the page, the closing mark, then the tokens.
    x = torch.cat([before, page_BTH, after, trunk.embed_tokens(token_BU)], dim=1)
    # Only the tokens' own states are needed.
    state = forward_with_past(trunk, x)[0][:, -token_BU.shape[1] :]
    return decoder.token_logits(trunk.norm(state))


def page_answer_nats(logits_BUV: Tensor, token_BU: Tensor) -> tuple[Tensor, Tensor]:
    """How well the digits of the answers are predicted.

    Args:
        logits_BUV: Logits at questions and answers, shape ``[B, U, V]``.
        token_BU: Token ids of questions and answers, shape ``[B, U]``.

    Returns:
        Nats of each digit, and whether it is the likeliest token, both of shape ``[B, Q, DIGITS]``.
    """
    # A question is "?", a key and the digits; the key's position predicts the first digit.
    told = logits_BUV.unflatten(1, (-1, 2 + DIGITS))[:, :, 1:-1]
    # The digits, without the mark and the key.
    goal = token_BU.unflatten(1, (-1, 2 + DIGITS))[:, :, 2:]
    nats = F.cross_entropy(told.flatten(0, 2), goal.flatten(), reduction="none")
    return nats.view(goal.shape), told.argmax(-1) == goal


def page_rewriting_nats(
    decoder: TrainableLlama, page_BTH: Tensor, line_BLK: Tensor
) -> tuple[Tensor, Tensor]:
    """How well lines are written once more, given what stands for them.

    Args:
        decoder: The decoder.
        page_BTH: Input vectors of the pages, shape ``[B, P, H]``.
        line_BLK: Token ids of the lines, shape ``[B, L, K]``.

    Returns:
        Nats of each token after the right ones before it, and whether it is the likeliest, both of
        shape ``[B, L K]``.
    """
    goal_BT = line_BLK.flatten(1)
    # The mark that asks for the lines predicts their first token.
    again_B1 = torch.full((len(goal_BT), 1), IDS[AGAIN])
    logits = page_continuation_logits(
        decoder, page_BTH, torch.cat([again_B1, goal_BT[:, :-1]], dim=1)
    )
    nats = F.cross_entropy(logits.flatten(0, 1), goal_BT.flatten(), reduction="none")
    return nats.view(goal_BT.shape), logits.argmax(-1) == goal_BT


def embed_page_words(decoder: TrainableLlama, line_BLK: Tensor) -> Tensor:
    """The lines of pages as the decoder reads words.

    Args:
        decoder: The decoder.
        line_BLK: Token ids of the lines, shape ``[B, L, K]``.

    Returns:
        Input vectors, shape ``[B, L K, H]``.
    """
    return decoder.model.embed_tokens(line_BLK).flatten(1, 2)


def page_reader_schedule(spec: ContextSpec) -> TrainingSchedule:
    """The schedule of a training of `spec.steps` steps."""
    return TrainingSchedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps))


def save_page_reader(out: Path, decoder: TrainableLlama) -> None:
    """Save a decoder as a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        decoder: The decoder.
    """
    config = decoder.s.config_content(bos=IDS[BEGIN], eos=IDS[END])
    save_directory(out, decoder, config, files=FILES, dtype=torch.float32)


def ensure_page_reader(spec: ContextSpec, steps: int) -> Path:
    """Where the decoder lies that reads words: the given one, else it is trained now.

    Args:
        spec: Options; `target` names a decoder that is there already.
        steps: Steps of a new training.

    Returns:
        A directory; a new decoder lies below `spec.out`.
    """
    if spec.target:
        return Path(spec.target)
    # Its directory lies below that of the training that needs it.
    own = replace(spec, out=str(Path(spec.out) / "words"), steps=steps)
    run_training(f"context {spec.kind}, on words", own, prepare_page_reader)
    return Path(own.out)


def prepare_page_reader(spec: ContextSpec) -> TrainingRun:
    """What trains the decoder alone, on pages that it reads as words."""
    heads = spec.width // 16
    shape = LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)
    decoder = TrainableLlama(shape, seed=spec.seed)

    def step_loss(step: int) -> tuple[Tensor, int]:
        pages = draw_pages(spec.seed, step, spec.rows)
        line_BLK = encode_page_lines(pages)
        token_BU = encode_page_questions(pages)
        nats, _ = page_answer_nats(
            page_continuation_logits(decoder, embed_page_words(decoder, line_BLK), token_BU),
            token_BU,
        )
        # Both tasks are learned in every step: answering, and writing some of the lines once more.
        few = int(torch.randint(1, MOST + 1, (), generator=generator_for(spec.seed, step, "lines")))
        some = line_BLK[:, :few]
        again, _ = page_rewriting_nats(decoder, embed_page_words(decoder, some), some)
        return nats.mean() + again.mean(), spec.rows * CONTEXT

    def save_decoder(out: Path, result: Any) -> None:
        """Save the decoder.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        save_page_reader(out, decoder)

    # Fields that do not change the decoder: it serves trainings that differ in these.
    own = ("kind", "reasoning", "target", "nodes", "hops", "latents", "encoder", "at_once")
    own += ("factor", "cut", "bottleneck", "rewriting", "decoders", "shared")
    return TrainingRun(
        decoder, step_loss, page_reader_schedule(spec), run_identity(spec, *own), save_decoder
    )


def load_page_reader(at: Path) -> TrainableLlama:
    """A decoder as `save_page_reader` wrote it, frozen."""
    return load_directory(str(at))
