"""`polydec train block-drafter`: a network that fills a block of gaps after a text (GAD).

The text is one that an encoder-decoder model is writing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.functional import cross_entropy

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train import pairs
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.seq2seq import JUDGED, encode_pairs
from polydec.lab.train.specs.block_drafter import BlockDrafterSpec
from polydec.lab.train.t5 import TrainableT5, pad_id_rows, published_t5_tensors
from polydec.models.formats.seq2seq import T5Shape, read_seq2seq_config
from polydec.models.learned.kinds import block_drafter
from polydec.models.learned.kinds.block_drafter import BlockDrafter
from polydec.models.sessions import sources

LAST = 0.6
"""What is left of the share that is shown, at the end of training (published: from 0.5 to 0.3)."""

Sides = tuple[Sequence[int], Sequence[int]]
"""The tokens of a source and of its target."""


def train_block_drafter(spec: BlockDrafterSpec) -> dict[str, Any]:
    """Train a block drafter that begins with the target's weights, and save it at spec.out.

    See `run_training` for what is returned and how an interrupted run goes on.

    Raises:
        RequestError: The target is not a T5 model with relu.
        FileError: The data cannot be read.

    Source: Ge et al., aggressive decoding (2022); the drafter there begins with BERT's weights, and
    glancing is that of GLAT (2021).
    """
    return run_training("block-drafter", spec, _course)


def _course(spec: BlockDrafterSpec) -> TrainingRun:
    source = sources.open_source(spec.target)
    shape, config = (
        _shape(spec, source.config),
        read_seq2seq_config(source.config, source.generation),
    )
    # One more embedding row than the target has: the mark of a gap.
    network = TrainableT5(config, shape.inner, spec.seed, both=True, rows=1)
    _begin(network, source.weights)
    texts = list(islice(pairs.read_text_pairs(Path(spec.data)), spec.most))
    tokenizer: Tokenizer = source.text.tokenizer
    examples = encode_pairs(texts, tokenizer, spec.longest)
    steps = pairs.BucketBatchSampler(examples.lengths, spec.tokens, *spec.parts, spec.seed)
    fast = is_bf16_run(Path(spec.out) / STATE)
    lesson = BlockDrafterObjective(network, spec, config.start)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng([spec.seed, 4, step])
        gaps = lesson.cut_texts([examples.learned[i] for i in steps.indices_of_step(step)], rng)
        # The share of shown tokens falls linearly to LAST of itself.
        share = spec.glance * (1 + (LAST - 1) * step / spec.steps)
        # The share of shown tokens moves over the run, from the spec's to LAST times as much.
        with bf16_autocast(fast):
            shown = lesson.show_hard_tokens(gaps, share, rng)
            logits_NV = lesson.gap_logits(shown).float()
        return cross_entropy(logits_NV, shown.right_N, label_smoothing=spec.smooth), len(
            shown.right_N
        )

    def measure_result() -> Mapping[str, Any]:
        # Small data may leave nothing aside: then what was learned is measured, and says less.
        unseen = examples.unseen[:JUDGED] or examples.learned[:JUDGED]
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "pairs": len(examples.learned),
            "right_by_gap": lesson.right_by_gap(unseen),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the drafter as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; `right_by_gap` goes into the artefact.
        """
        vocab = TokenVocabulary(shape.vocab, frozenset(), source.fingerprint)
        made = BlockDrafter(vocab, shape, spec.block, published_t5_tensors(network))
        block_drafter.save(out, made, {"right_by_gap": result["right_by_gap"]})

    schedule = TrainingSchedule(spec.steps, spec.rate, muon=spec.muon)
    same = run_identity(spec, bf16=fast, pairs=examples.digest)
    return TrainingRun(
        network,
        step_loss,
        schedule,
        same,
        save_result,
        measure_result,
        deep=network.deep if spec.muon else (),
    )


def _shape(spec: BlockDrafterSpec, config: Mapping[str, Any]) -> T5Shape:
    if config.get("model_type") != "t5" or config.get("feed_forward_proj", "relu") != "relu":
        raise RequestError(
            f"target is {spec.target!r}: it must be a T5 model with relu, as `polydec train seq2seq` makes them"
        )
    sizes = ("vocab_size", "d_model", "d_kv", "d_ff", "num_layers", "num_decoder_layers")
    return T5Shape(*(config[name] for name in sizes))


def _begin(network: TrainableT5, start: Mapping[str, Tensor]) -> None:
    """Load the target's weights; the embedding of the mark begins as the mean of all tokens."""
    own = network.state_dict()
    table = start["shared.weight"].float()
    same = {name: start[name].float() for name in own if name != "shared.weight"}
    network.load_state_dict({**same, "shared.weight": torch.cat([table, table.mean(0)[None]])})


@dataclass(frozen=True, eq=False)
class CutTextBatch:
    """Texts of which the last tokens may be gaps.

    Attributes:
        source_BS: Token ids of the sources, padded, shape ``[B, S]``.
        there_BS: Which positions of `source_BS` hold tokens, shape ``[B, S]``.
        whole_BT: Token ids of the texts, with the true tokens in place of the gaps, padded, shape
            ``[B, T]``.
        here_BT: Which positions of `whole_BT` belong to the text, shape ``[B, T]``.
        gap_BT: Which positions are gaps and have to be filled, shape ``[B, T]``.
    """

    source_BS: Tensor
    there_BS: Tensor
    whole_BT: Tensor
    here_BT: Tensor
    gap_BT: Tensor

    @property
    def right_N(self) -> Tensor:
        """The tokens that belong into the gaps, row by row, shape ``[N]``."""
        return self.whole_BT[self.gap_BT]


@dataclass(frozen=True, eq=False)
class BlockDrafterObjective:
    """What is learned: the next `block` tokens at once, of a text that was cut somewhere.

    Attributes:
        network: The drafter in training, an encoder-decoder whose decoder sees both ways.
        spec: Options of the training.
        start: Token ids before every text in the decoder.
    """

    network: TrainableT5
    spec: BlockDrafterSpec
    start: tuple[int, ...]

    def cut_texts(self, chosen: Sequence[Sides], rng: np.random.Generator) -> CutTextBatch:
        """Cut each text anywhere, at least one token before its end.

        Args:
            chosen: Token ids of sources and targets, B pairs.
            rng: Source of the places; it is advanced.

        Returns:
            The texts with gaps after the cut.
        """
        return self.cut_at(chosen, [int(rng.integers(len(target))) for _, target in chosen])

    def cut_at(self, chosen: Sequence[Sides], at: Sequence[int]) -> CutTextBatch:
        """Cut each text after a given number of tokens.

        The row always holds `block` marks after the cut, as when texts are written. Marks beyond
        the end of a text are read by the network, and nothing is learned of them.

        Args:
            chosen: Token ids of sources and targets, B pairs.
            at: Tokens of each target before the cut, B numbers.

        Returns:
            The texts with gaps after the cut.
        """
        block = self.spec.block
        mark = self.network.config.vocab
        source_BS, there_BS = pad_id_rows([source for source, _ in chosen])
        # What is known of each target, and the true tokens of its gaps.
        known = [(*self.start, *target[:n]) for (_, target), n in zip(chosen, at)]
        next_ = [tuple(target[n : n + block]) for (_, target), n in zip(chosen, at)]
        # The true tokens of the gaps, then marks where the text has ended within the block.
        rows = [(*k, *x, *(mark,) * (block - len(x))) for k, x in zip(known, next_)]
        whole_BT, here_BT = pad_id_rows(rows)
        # A gap is asked for from the cut on, up to the end of the text.
        place_T = torch.arange(whole_BT.shape[1])[None]
        first_B1, last_B1 = (
            torch.tensor(n)[:, None]
            for n in ([len(k) for k in known], [len(k) + len(x) for k, x in zip(known, next_)])
        )
        return CutTextBatch(
            source_BS, there_BS, whole_BT, here_BT, (place_T >= first_B1) & (place_T < last_B1)
        )

    def gap_logits(self, cut: CutTextBatch) -> Tensor:
        """The logits of all gaps, row by row, shape ``[N, V]``."""
        mark = self.network.config.vocab
        # A gap is read as the mark.
        text_BT = cut.whole_BT.masked_fill(cut.gap_BT, mark)
        states = self.network(cut.source_BS, cut.there_BS, text_BT, cut.here_BT)
        return self.network.token_logits(states[cut.gap_BT])

    def show_hard_tokens(
        self, cut: CutTextBatch, share: float, rng: np.random.Generator
    ) -> CutTextBatch:
        """Show some of the true tokens, as many as the network finds hard to guess.

        The gaps are filled once without gradients. Of the gaps of each text, `share` times its
        wrong ones are shown, drawn from all its gaps. At least one gap of the batch stays.

        Args:
            cut: Texts with gaps.
            share: Shown tokens for each wrong one, 0 or more; 0 shows none.
            rng: Source of the choice; it is advanced.

        Returns:
            The same texts with fewer gaps.
        """
        if not share:
            return cut
        with torch.no_grad():
            wrong_N = self.gap_logits(cut).argmax(-1) != cut.right_N
        gap_BT = cut.gap_BT.clone()
        # `wrong_N` lists the gaps of all rows one after another; `at` is where a row begins in it.
        at = 0
        for row_T in gap_BT:
            where = row_T.nonzero()[:, 0]
            wrong = int(wrong_N[at : at + len(where)].sum())
            at += len(where)
            # A uniform number decides whether the fraction of a token is rounded up.
            shown = rng.permutation(len(where))[: int(share * wrong + rng.random())]
            row_T[where[torch.from_numpy(shown)]] = False
        # A batch without gaps would have nothing to learn.
        left = gap_BT if gap_BT.any() else cut.gap_BT
        return CutTextBatch(cut.source_BS, cut.there_BS, cut.whole_BT, cut.here_BT, left)

    @torch.no_grad()
    def right_by_gap(self, unseen: Sequence[Sides]) -> list[float]:
        """The share of gaps that are filled right, by their number after a cut.

        Texts are cut in their middle.
        """
        right = np.zeros(self.spec.block)
        count = np.zeros(self.spec.block)
        for first in range(0, len(unseen), 32):
            chosen = unseen[first : first + 32]
            cut = self.cut_at(chosen, [len(target) // 2 for _, target in chosen])
            same_N = (self.gap_logits(cut).argmax(-1) == cut.right_N).numpy()
            # The number of each gap within its own row, from 0.
            order_N = (cut.gap_BT.cumsum(1) - 1)[cut.gap_BT].numpy()
            np.add.at(right, order_N, same_N)
            np.add.at(count, order_N, 1)
        return [round(float(r / n), 4) for r, n in zip(right, count) if n]
