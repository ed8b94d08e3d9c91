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
    pad_units,
    unit_rises,
    unit_states,
    unit_vectors,
)
from polydec.models.learned.reader import BidirectionalEncoder
from polydec.models.sessions.checkpoint import load_bundle
from polydec.models.text.token_merges import (
    TokenMerger,
    TokenUnit,
    frequent_units,
    split_by_longest,
)

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Of the way to whole words, that are measured."""

BESIDE = 64
"""Units that a step compares with those of its texts."""

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

    def unit_parts(self, units: Sequence[TokenUnit]) -> tuple[Tensor, Tensor]:
        """What enters the model for the tokens of some units, shape ``[N, K, H]``, and where there are
        tokens, shape ``[N, K]``."""
        known = [torch.tensor(unit) for unit in units]
        token_NK = pad_sequence(known, batch_first=True)
        # What is padded is told apart by its place, not by its id: 0 is a token, too.
        there_NK = pad_sequence([torch.ones_like(x) for x in known], batch_first=True).bool()
        return self.model.model.embed_tokens(token_NK), there_NK

    def merged_vectors(self, units: Sequence[TokenUnit]) -> Tensor:
        """The vectors of some units, shape ``[N, H]``."""
        return unit_vectors(self.sizes, dict(self.kept.items()), *self.unit_parts(units))

    def unit_rises(self, units: Sequence[TokenUnit], state_BH: Tensor) -> Tensor:
        """How much likelier units are than their first tokens behind some states.

        Args:
            units: Units of several tokens, N of them.
            state_BH: States of the model, ready for the head, shape ``[B, H]``.

        Returns:
            What is added to the first tokens' logits, shape ``[B, N]``.
        """
        kept = dict(self.kept.items())
        return unit_rises(kept, unit_states(self.sizes, kept, *self.unit_parts(units)), state_BH)

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


def next_unit_nats(
    network: HypernetworkModel,
    begin: int,
    rows: Sequence[Sequence[TokenUnit]],
    beside: Sequence[TokenUnit] = (),
) -> Tensor:
    """How well each unit is foretold, among all tokens, the units of these texts, and some others.

    Args:
        network: The model.
        begin: Token before each text.
        rows: Units of each text.
        beside: Units of several tokens that are compared, too. Default: none.

    Returns:
        Nats of each unit, those of one text after the other's.
    """
    # The state before a unit foretells it; nothing stands behind the last one.
    states = network.unit_states(begin, rows)[:, :-1]
    state_BH = torch.cat([one[: len(row)] for one, row in zip(states, rows, strict=True)])
    logits_BV = network.model.token_logits(state_BH)
    # A unit of these texts that is drawn as well is compared once.
    told = [unit for row in rows for unit in row]
    units = list(dict.fromkeys([*(unit for unit in told if len(unit) > 1), *beside]))
    if units:
        first_N = torch.tensor([unit[0] for unit in units])
        rise_BN = network.unit_rises(units, state_BH)
        logits_BV = torch.cat([logits_BV, logits_BV[:, first_N] + rise_BN], dim=1)
    # Units stand behind all tokens, in this order.
    place = {unit: network.model.s.vocab + i for i, unit in enumerate(units)}
    goal_B = torch.tensor([place.get(unit, unit[0]) for unit in told])
    return F.cross_entropy(logits_BV, goal_B, reduction="none")


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
    units = answer_units(spec, merger, learned)
    sizes = HypernetworkSizes(spec.longest, encoder, model.s.width, len(units))
    network = HypernetworkModel(model, sizes, spec.seed)
    known = KnownTokens.of_vocabulary(vocab.words.pieces, spec.longest)
    known_units = frozenset(units)

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
        # Answers are written in known units, each the longest one that stands there.
        if units:
            drawn = torch.randint(len(units), (BESIDE,), generator=dice).tolist()
            split = [split_by_longest(learned[i], known_units) for i in chosen]
            beside = [units[i] for i in drawn]
            loss = loss + next_unit_nats(network, begin, split, beside).mean()
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
        if units:
            tensors["units"] = pad_units(units, spec.longest)
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
            **measure_answer_units(network, begin, unseen, units),
        },
    )


def answer_units(
    spec: HypernetworkSpec, merger: TokenMerger, texts: Sequence[Sequence[int]]
) -> tuple[TokenUnit, ...]:
    """The units that answers may be written in: of texts that were merged as far as may be those that
    stand most often.

    Args:
        spec: Options; `answers` and `texts` are read.
        merger: Merges the texts.
        texts: Token ids of the texts.

    Returns:
        At most `answers` units; none where no answers are asked for.
    """
    if not spec.answers:
        return ()
    return frequent_units(merger.merge_rows(texts), spec.answers)


@torch.no_grad()
def measure_answer_units(
    network: HypernetworkModel,
    begin: int,
    texts: Sequence[Sequence[int]],
    units: Sequence[TokenUnit],
) -> dict[str, float]:
    """Measure held-out texts in units of answers.

    Args:
        network: The model.
        begin: Token before each text.
        texts: Token ids of the texts.
        units: Units of answers.

    Returns:
        `units_a_token`: how many units they are for each token; `answer_nats` and `token_nats`: nats
        a token of the texts in units, each foretold among all of them, and in tokens; nothing where
        there are no units.
    """
    if not units:
        return {}
    known = frozenset(units)
    count = sum(map(len, texts))
    rows = [split_by_longest(text, known) for text in texts]
    # Text by text, so that no step is larger than one of the training.
    nats = sum(float(next_unit_nats(network, begin, [row], units).sum()) for row in rows)
    alone = sum(
        float(next_token_nats(network, begin, [[(x,) for x in text]]).sum()) for text in texts
    )
    return {
        "units_a_token": round(sum(map(len, rows)) / count, 4),
        "answer_nats": round(nats / count, 4),
        "token_nats": round(alone / count, 4),
    }


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
