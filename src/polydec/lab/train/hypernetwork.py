"""`polydec train hypernetwork`: vectors of merged tokens for a model that stays as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.core.types import TokenVocabulary
from polydec.lab.train.data import BEGIN
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.hypernetwork import HypernetworkSpec
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.tokens import mark_id
from polydec.models.learned.kinds import hypernetwork
from polydec.models.learned.kinds.hypernetwork import (
    HypernetworkSizes,
    MergedTokenMaker,
    unit_vectors,
)
from polydec.models.learned.reader import BidirectionalEncoder
from polydec.models.sessions.checkpoint import load_bundle
from polydec.models.text.token_merges import TokenMerger, TokenUnit

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the way to whole words, that are measured."""

KNOWN = 64
"""Tokens of the model that are made of smaller ones in a step."""


def train_hypernetwork(spec: HypernetworkSpec) -> dict[str, Any]:
    """Train a network that makes the vectors of merged tokens, and save it.

    The model is frozen. At each step the tokens of some texts are merged together, a share of the
    way that is drawn, and the model must foretell the first token of what follows each unit; tokens
    that the model has must come out of smaller ones of its own with the vector that they have
    there. See `run_training`.

    Raises:
        RequestError: An option is wrong, data is missing, or the target is outside the Llama
            skeleton.

    Source: Feher, Vulić and Minixhofer, "Retrofitting large language models with dynamic
    tokenization" (2024), and for the network Minixhofer, Ponti and Vulić, "Zero-shot tokenizer
    transfer" (2024).
    """
    return run_training("hypernetwork", spec, _course)


@dataclass(frozen=True, eq=False)
class KnownTokens:
    """Tokens of a vocabulary that can be spelled in smaller ones.

    Attributes:
        tokens: Their ids.
        spelled: Of each the smaller tokens, one way to spell it.
    """

    tokens: tuple[int, ...]
    spelled: tuple[TokenUnit, ...]

    @staticmethod
    def of_vocabulary(pieces: Sequence[bytes | None], longest: int) -> KnownTokens:
        """Spell every token in others, the longest ones first, none of them the token itself.

        Args:
            pieces: Of each token its bytes; None for those that write nothing.
            longest: Tokens of a spelling, at most.

        Returns:
            The tokens that can be spelled so.
        """
        # Reversed, so that of tokens with equal bytes the lowest id is the one that is used.
        by_bytes = {p: i for i, p in reversed(list(enumerate(pieces))) if p}
        found = dict[int, TokenUnit]()
        for token, piece in enumerate(pieces):
            if piece and len(piece) > 1:
                parts = list[int]()
                at = 0
                while at < len(piece):
                    # At the first place the token itself is left out, as it would spell itself.
                    ends = range(len(piece) - (not at), at, -1)
                    own = next((by_bytes[piece[at:e]] for e in ends if piece[at:e] in by_bytes), -1)
                    # Longest first never looks back, so a few that could be spelled are missed.
                    if own < 0 or len(parts) == longest:
                        parts = []
                        break
                    parts.append(own)
                    at += len(pieces[own] or b"")
                if parts:
                    found[token] = tuple(parts)
        return KnownTokens(tuple(found), tuple(found.values()))


class HypernetworkModel(nn.Module):
    """A frozen model, and the network that makes vectors of merged tokens."""

    def __init__(self, model: TrainableLlama, sizes: HypernetworkSizes, seed: int) -> None:
        super().__init__()
        self.model = model.requires_grad_(False)
        self.sizes = sizes
        # These are the only weights that are trained.
        self.kept = nn.ParameterDict(hypernetwork.new_hypernetwork_tensors(sizes, seed))

    def merged_vectors(self, units: Sequence[TokenUnit]) -> Tensor:
        """The vectors of some units, shape ``[N, H]``."""
        known = [torch.tensor(unit) for unit in units]
        token_NK = pad_sequence(known, batch_first=True)
        # What is padded is told apart by its place, not by its id: 0 is a token, too.
        there_NK = pad_sequence([torch.ones_like(x) for x in known], batch_first=True).bool()
        part_NKH = self.model.model.embed_tokens(token_NK)
        return unit_vectors(self.sizes, dict(self.kept.items()), part_NKH, there_NK)

    def unit_states(self, begin: int, rows: Sequence[Sequence[TokenUnit]]) -> Tensor:
        """The model's states over texts in units.

        Args:
            begin: Token before each text.
            rows: Units of each text, at least one.

        Returns:
            States ready for the head at the beginning and at each unit, shape ``[B, T + 1, H]``;
            those behind the end of a shorter text mean nothing.
        """
        # Each unit is made once, however often it stands in the texts.
        merged: list[TokenUnit] = sorted({u for row in rows for u in row if len(u) > 1})
        table = self.model.model.embed_tokens
        if merged:
            made_NH = self.merged_vectors(merged)
        else:
            made_NH = table.weight[:0]
        # Vectors of merged units stand behind those of all tokens.
        place: dict[TokenUnit, int] = {u: len(table.weight) + i for i, u in enumerate(merged)}
        whole_VH = torch.cat([table.weight, made_NH])
        # Texts are padded with token 0 behind their end, which no earlier state can see.
        index = [torch.tensor([begin, *(place.get(unit, unit[0]) for unit in row)]) for row in rows]
        x_BTH = F.embedding(pad_sequence(index, batch_first=True), whole_VH)
        trunk = self.model.model
        return trunk.norm(forward_with_past(trunk, x_BTH)[0])


def next_token_nats(
    network: HypernetworkModel, begin: int, rows: Sequence[Sequence[TokenUnit]]
) -> Tensor:
    """How well the first token of each unit is foretold from the units before it.

    Args:
        network: The model.
        begin: Token before each text.
        rows: Units of each text.

    Returns:
        Nats of each, those of one text after the other's.
    """
    # The state before a unit foretells it; nothing stands behind the last one.
    states = network.unit_states(begin, rows)[:, :-1]
    goals = [torch.tensor([unit[0] for unit in row]) for row in rows]
    goal_BT = pad_sequence(goals, batch_first=True, padding_value=-1)
    known_BT = goal_BT >= 0
    return F.cross_entropy(
        network.model.token_logits(states[known_BT]), goal_BT[known_BT], reduction="none"
    )


def known_token_loss(
    network: HypernetworkModel, known: KnownTokens, dice: torch.Generator
) -> Tensor:
    """How far the vectors of some tokens, made of smaller ones, are from those that they have.

    Args:
        network: The model.
        known: Tokens and how they are spelled.
        dice: Draws which ones; it is advanced.

    Returns:
        The mean squared distance, as a share of the mean square of embeddings.
    """
    # Drawn with repetition: a token that stands twice only weighs more in this step.
    drawn = torch.randint(len(known.tokens), (KNOWN,), generator=dice).tolist()
    made_NH = network.merged_vectors([known.spelled[i] for i in drawn])
    table_VH = network.model.model.embed_tokens.weight
    true_NH = table_VH[torch.tensor([known.tokens[i] for i in drawn])]
    # Divided by the size of embeddings, so that one weight fits models of any scale.
    return (made_NH - true_NH).square().mean() / table_VH.square().mean()


def _course(spec: HypernetworkSpec) -> TrainingRun:
    model = load_directory(spec.target)
    vocab = load_bundle(spec.target, dtype="float32").lm.vocab
    assert vocab.words is not None
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    begin = mark_id(tokenizer, BEGIN)
    learned, unseen = texts_of_length(spec, spec.length, tokenizer)
    merger = TokenMerger(vocab.words.pieces, spec.boundary, spec.longest)
    encoder = BidirectionalEncoder(spec.width, spec.layers, spec.width // 8, spec.longest)
    sizes = HypernetworkSizes(spec.longest, encoder, model.s.width)
    network = HypernetworkModel(model, sizes, spec.seed)
    known = KnownTokens.of_vocabulary(vocab.words.pieces, spec.longest)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Drawn by seed and step alone, so that a resumed run sees the same texts.
        chosen = np.random.default_rng([spec.seed, step]).permutation(len(learned))[: spec.rows]
        dice = generator_for(spec.seed, step, "merges")
        # Any share of the way, so that few and many merges are learned.
        share = float(torch.rand((), generator=dice))
        rows = merger.merge_by_share([learned[i] for i in chosen], share)
        loss = next_token_nats(network, begin, rows).mean()
        # Every token of a vocabulary of single bytes is too small to be spelled in others.
        if spec.known and known.tokens:
            loss = loss + spec.known * known_token_loss(network, known, dice)
        if not loss.requires_grad:
            # Nothing was merged, so nothing is learned; the step is taken all the same.
            loss = loss + 0.0 * network.kept["out"].sum()
        return loss, spec.rows * spec.length

    def save_result(out: Path, result: Any) -> None:
        """Write the network.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        tensors = {name: p.detach() for name, p in network.kept.items()}
        # The file names the vocabulary and does not hold it: ends of text do not matter here.
        own = TokenVocabulary(vocab.size, frozenset(), vocab.tokenizer)
        hypernetwork.save(out, MergedTokenMaker(own, sizes, tensors), {})

    # Measured before the first step: a unit's vector is the mean of its tokens'.
    before = measure_merged_prompts(network, merger, begin, unseen)
    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, weight_decay=0.0, log_every=min(20, spec.steps)),
        run_identity(spec, texts=tensor_digest(torch.tensor(learned))),
        save_result,
        lambda: {
            "means": before,
            "trained": measure_merged_prompts(network, merger, begin, unseen),
        },
    )


def measure_merged_prompts(
    network: HypernetworkModel, merger: TokenMerger, begin: int, texts: Sequence[Sequence[int]]
) -> list[Mapping[str, float]]:
    """Measure what the second half of held-out texts costs behind a first half that was merged.

    Args:
        network: The model.
        merger: Merges the first half of each text by itself.
        begin: Token before each text.
        texts: Token ids of texts of one length.

    Returns:
        For each of `SHARES`: `share`, `shorter` (of the first halves), and `nats` a byte of the
        second halves, which are foretold token by token.
    """
    # Texts in units have other counts of tokens, so nats are compared by the byte.
    half = len(texts[0]) // 2
    spelled = sum(len(merger.pieces[x] or b"") for text in texts for x in text[half:])
    out = list[Mapping[str, float]]()
    for share in SHARES:
        told = [merged_half_nats(network, merger, begin, text, share) for text in texts]
        shorter = 1 - sum(units for units, _ in told) / (half * len(texts))
        nats = sum(nats for _, nats in told) / spelled
        out.append({"share": share, "shorter": round(shorter, 4), "nats": round(nats, 4)})
    return out


@torch.no_grad()
def merged_half_nats(
    network: HypernetworkModel, merger: TokenMerger, begin: int, text: Sequence[int], share: float
) -> tuple[int, float]:
    """What the second half of a text costs behind its merged first half.

    Args:
        network: The model.
        merger: Merges the first half.
        begin: Token before the text.
        text: Token ids.
        share: How far the first half is merged, 0 to 1.

    Returns:
        Units of the first half, and nats of the whole second half.
    """
    half = len(text) // 2
    (first,) = merger.merge_by_share([text[:half]], share)
    # The second half stays in tokens: at every share the same things are foretold.
    told = next_token_nats(network, begin, [[*first, *((x,) for x in text[half:])]])
    # Nats of the first half are dropped, since merging changes what is foretold there.
    return len(first), float(told[len(first) :].sum())
