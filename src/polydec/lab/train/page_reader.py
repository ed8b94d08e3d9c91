"""A small decoder that answers questions about pages (`lab/train/facts.py`), and writes their lines once
more: what encoders of context are trained for.

It reads `<|passage|>` page `<|behind|>` and then questions with their answers, or `<|again|>` and the
lines. Whoever reads pages in another way puts vectors where their words stand.
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
from polydec.lab.train.dice import generator_for
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.extended import forward_with_past
from polydec.lab.train.facts import DIGITS, FactPage
from polydec.lab.train.lm import load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
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

TOKENIZER = train_tokenizer([], VOCAB, MARKED)
IDS: Mapping[str, int] = {x: mark_id(TOKENIZER, x) for x in (BEGIN, END, *MARKED)} | {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0]
    for x in facts.KEYS + facts.KEYS.lower() + "0123456789;?"
}
FILES = tokenizer_files(TOKENIZER, CONTEXT, MARKED)
MARKS = PassageMarks(IDS[OPENING], IDS[CLOSING])


def draw_pages(seed: int, step: int, count: int, unseen: bool = False) -> list[FactPage]:
    return [
        facts.draw_fact_page(f"{seed} {step} {i}", LINES, RECORDS, ASKED, unseen)
        for i in range(count)
    ]


def encode_page_lines(pages: Sequence[FactPage]) -> Tensor:
    """Their lines [B, L, K]."""
    return torch.tensor([[[IDS[x] for x in line] for line in p.lines] for p in pages])


def encode_page_questions(pages: Sequence[FactPage]) -> Tensor:
    """Their questions with answers, one behind another [B, Q (2 + DIGITS)]."""
    return torch.tensor(
        [[IDS[x] for key, number in p.asked for x in f"?{key}{number}"] for p in pages]
    )


def page_continuation_logits(decoder: TrainableLlama, page_BTH: Tensor, token_BU: Tensor) -> Tensor:
    """Logits at the tokens that follow pages, of which each input is given [B, U, V]."""
    trunk = decoder.model
    B = len(token_BU)
    before, after = (
        trunk.embed_tokens(torch.tensor([IDS[x] for x in names])).expand(B, len(names), -1)
        for names in ((BEGIN, OPENING), (CLOSING,))
    )
    x = torch.cat([before, page_BTH, after, trunk.embed_tokens(token_BU)], dim=1)
    state = forward_with_past(trunk, x)[0][:, -token_BU.shape[1] :]
    return decoder.logits(trunk.norm(state))


def page_answer_nats(logits_BUV: Tensor, token_BU: Tensor) -> tuple[Tensor, Tensor]:
    """Nats of each digit of the answers, and whether it is the likeliest token [B, Q, DIGITS]."""
    told = logits_BUV.unflatten(1, (-1, 2 + DIGITS))[:, :, 1:-1]
    goal = token_BU.unflatten(1, (-1, 2 + DIGITS))[:, :, 2:]
    nats = F.cross_entropy(told.flatten(0, 2), goal.flatten(), reduction="none")
    return nats.view(goal.shape), told.argmax(-1) == goal


def page_rewriting_nats(
    decoder: TrainableLlama, page_BTH: Tensor, line_BLK: Tensor
) -> tuple[Tensor, Tensor]:
    """Nats of each token of the lines that are written once more behind what stands for them, with
    the tokens before it, and whether it is the likeliest [B, T]."""
    goal_BT = line_BLK.flatten(1)
    again_B1 = torch.full((len(goal_BT), 1), IDS[AGAIN])
    logits = page_continuation_logits(
        decoder, page_BTH, torch.cat([again_B1, goal_BT[:, :-1]], dim=1)
    )
    nats = F.cross_entropy(logits.flatten(0, 1), goal_BT.flatten(), reduction="none")
    return nats.view(goal_BT.shape), logits.argmax(-1) == goal_BT


def embed_page_words(decoder: TrainableLlama, line_BLK: Tensor) -> Tensor:
    """Lines as the decoder reads words [B, T, H]."""
    return decoder.model.embed_tokens(line_BLK).flatten(1, 2)


def page_reader_schedule(spec: ContextSpec) -> TrainingSchedule:
    return TrainingSchedule(spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps))


def save_page_reader(out: Path, decoder: TrainableLlama) -> None:
    config = decoder.s.config(bos=IDS[BEGIN], eos=IDS[END])
    save_directory(out, decoder, config, files=FILES, dtype=torch.float32)


def ensure_page_reader(spec: ContextSpec, steps: int) -> Path:
    """Where the decoder lies that reads words: as given, else trained beside what is made."""
    if spec.target:
        return Path(spec.target)
    own = replace(spec, out=str(Path(spec.out) / "words"), steps=steps)
    run_training(f"context {spec.kind}, on words", own, prepare_page_reader)
    return Path(own.out)


def prepare_page_reader(spec: ContextSpec) -> TrainingRun:
    """Of the decoder alone."""
    heads = spec.width // 16
    shape = LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)
    decoder = TrainableLlama(shape, seed=spec.seed)

    def loss(step: int) -> tuple[Tensor, int]:
        pages = draw_pages(spec.seed, step, spec.rows)
        line_BLK = encode_page_lines(pages)
        token_BU = encode_page_questions(pages)
        nats, _ = page_answer_nats(
            page_continuation_logits(decoder, embed_page_words(decoder, line_BLK), token_BU),
            token_BU,
        )
        few = int(torch.randint(1, MOST + 1, (), generator=generator_for(spec.seed, step, "lines")))
        some = line_BLK[:, :few]
        again, _ = page_rewriting_nats(decoder, embed_page_words(decoder, some), some)
        return nats.mean() + again.mean(), spec.rows * CONTEXT

    def put(out: Path, result: Any) -> None:
        save_page_reader(out, decoder)

    own = ("kind", "reasoning", "target", "nodes", "hops", "latents", "encoder", "at_once")
    return TrainingRun(decoder, loss, page_reader_schedule(spec), run_identity(spec, *own), put)


def load_page_reader(at: Path) -> TrainableLlama:
    """A decoder as `save` wrote it, frozen."""
    return load_directory(str(at))
