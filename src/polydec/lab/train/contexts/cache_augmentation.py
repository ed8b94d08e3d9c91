"""Differentiable cache augmentation: vectors that a second network makes of a frozen model's cache.

The model reads the vectors after a text (Liu et al., 2024). It is trained first, on lines of sums
(`lab/train/sums.py`) as plain text; then it is frozen. The coprocessor begins with its weights.
Places are chosen in a text; after each the coprocessor makes vectors from the model's cache of what
stands before, and the model reads these and then the tokens that follow there. All places of a text
run in one pass: a group sees the text before its place and itself, and no other group. The loss is
that of the tokens that follow, and gradients reach the coprocessor and its learned inputs alone.

There are two controls with as many vectors: those that the untrained coprocessor makes (`reasoning`
none: nothing but that is measured), and vectors that are learned as they are, without anything that
reads the cache (chain: pause tokens).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.lab.train import sums
from polydec.lab.train.data import BEGIN
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.shape import LlamaShape
from polydec.lab.train.specs.context import ContextSpec
from polydec.lab.train.sums import ANSWER
from polydec.lab.train.tokens import mark_id, tokenizer_files, train_tokenizer
from polydec.models.learned.kinds import coprocessor
from polydec.models.learned.kinds.coprocessor import (
    CacheCoprocessor,
    coprocessor_latents,
    grouped_attention_mask,
)
from polydec.models.learned.skeleton import LlamaLayers, Past

VOCAB = 260
CONTEXT = 128
SUMS = 5
BEHIND = ";"
"""Of a text, and what stands behind each."""

AHEAD = 4
PLACES = 6
"""Tokens that follow a place, and places of a text."""

UNSEEN = 400
"""Texts that the trained coprocessor is measured on."""

TOKENIZER = train_tokenizer([], VOCAB)
IDS: Mapping[str, int] = {BEGIN: mark_id(TOKENIZER, BEGIN)} | {
    x: TOKENIZER.encode(x, add_special_tokens=False).ids[0] for x in "0123456789+-*=;"
}
FILES = tokenizer_files(TOKENIZER, CONTEXT)


class CacheAugmentationModel(nn.Module):
    """A frozen model, and the coprocessor that makes vectors for it.

    The vectors are made from the model's cache, or, with `pausing`, are learned as they are.
    """

    def __init__(
        self, model: TrainableLlama, count: int, seed: int, pausing: bool, ahead: int = AHEAD
    ) -> None:
        super().__init__()
        s = model.s
        self.ahead = ahead
        self.model = model.requires_grad_(False)
        self.pausing = pausing
        # The learned inputs begin as large as the model's embeddings are.
        self.skeleton = LlamaLayers(s.width, s.layers, s.heads, s.kv_heads, s.inner, s.theta, s.eps)
        spread = float(model.model.embed_tokens.weight.std())
        draws = torch.Generator().manual_seed(seed)
        self.soft = nn.Parameter(torch.randn(count, s.width, generator=draws) * spread)
        # The coprocessor begins with the model's weights; its embedding table is never read.
        self.reads = TrainableLlama(s).model
        self.reads.load_state_dict(model.model.state_dict())
        self.reads.requires_grad_(not pausing)
        self.reads.embed_tokens.requires_grad_(False)
        # Its final norm begins with the size of an embedding, so that its outputs can be read as
        # inputs.
        with torch.no_grad():
            self.reads.norm.weight.fill_(spread)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The coprocessor's weights by name, without the embedding table."""
        return {n: p for n, p in self.reads.named_parameters() if not n.startswith("embed")}

    @torch.no_grad()
    def cache_after(self, token_BT: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The model's key-value cache after reading `token_BT`, one pair for each layer."""
        trunk, (B, T) = self.model.model, token_BT.shape
        see = torch.ones(T, T, dtype=torch.bool).tril().expand(B, T, T)
        x = trunk.embed_tokens(token_BT)
        position = torch.arange(T).expand(B, T)
        return self.skeleton.run_layers(
            dict(trunk.named_parameters()), x, position, self.skeleton.empty_past(B), see
        )[1]

    def make_vectors(self, place_BG: Tensor, past: Past) -> Tensor:
        """Make the vectors that follow some places of each text.

        Args:
            place_BG: Index of the last token that the vectors may know, G places of each text,
                shape ``[B, G]``.
            past: The model's cache of the texts.

        Returns:
            L vectors of each place, shape ``[B, G, L, H]``.
        """
        if self.pausing:
            return self.soft.expand(*place_BG.shape, *self.soft.shape)
        seen = past_attention_mask(place_BG, past)
        return coprocessor_latents(self.skeleton, self.tensors, self.soft, place_BG + 1, past, seen)

    def predict_ahead(self, token_BT: Tensor, place_BG: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the `ahead` tokens that follow some places of each text.

        The vectors of a place, and the tokens after it, form a group. A group sees the text before
        its place and itself, and no other group, so all groups take one pass.

        Args:
            token_BT: Token ids of the texts, shape ``[B, T]``.
            place_BG: Index of the last token before the vectors, shape ``[B, G]``, at most T -
                ahead - 1.

        Returns:
            Nats of each token, and whether it is the likeliest one, both of shape ``[B, G,
            ahead]``.
        """
        (B, G), L, trunk = place_BG.shape, len(self.soft), self.model.model
        past = self.cache_after(token_BT)
        # The token at the place itself, and those ahead of it.
        index = place_BG[..., None] + torch.arange(self.ahead + 1)
        next_BGA = token_BT.gather(1, index.flatten(1)).unflatten(1, (G, -1))
        # With vectors, the last of them predicts the first token, so the token at the place is not
        # fed again.
        fed = trunk.embed_tokens(next_BGA[..., :-1] if not L else next_BGA[..., 1:-1])
        if L:
            made = self.make_vectors(place_BG, past)
        else:
            made = self.soft.expand(B, G, 0, -1)
        x = torch.cat([made, fed], dim=2)
        first = place_BG + 1
        seen = past_attention_mask(place_BG, past)
        if not L:  # the text's own last token is what foretells the first of them
            first = place_BG
            seen = past_attention_mask(place_BG - 1, past)
        each = x.shape[2]
        # Positions go on after the place; groups of one text share them.
        position = (first[..., None] + torch.arange(each)).flatten(1)
        state, _ = self.skeleton.run_layers(
            dict(trunk.named_parameters()),
            x.flatten(1, 2),
            position,
            past,
            grouped_attention_mask(seen, each),
        )
        # Only the last states of a group predict tokens that count.
        logits = self.model.token_logits(state.unflatten(1, (G, each))[:, :, each - self.ahead :])
        goal = next_BGA[..., 1:]
        nats = F.cross_entropy(logits.flatten(0, 2), goal.flatten(), reduction="none")
        return nats.view(goal.shape), logits.argmax(-1) == goal


def past_attention_mask(place_BG: Tensor, past: Past) -> Tensor:
    """The mask that lets each place see the text up to itself.

    Args:
        place_BG: Index of the last token that may be seen, shape ``[B, G]``.
        past: Cache of P tokens; only its length is read.

    Returns:
        True where a token is seen, shape ``[B, G, P]``.
    """
    return torch.arange(past[0][0].shape[2]) <= place_BG[..., None]


def draw_sum_texts(
    spec: ContextSpec, seed: int, step: int, rows: int, unseen: bool = False
) -> list[str]:
    """Draw texts of SUMS sums with their answers, one sum after another.

    Args:
        spec: Options; `hops` is the number of steps of a sum.
        seed: Seed of the draws.
        step: Step of the training, which names the draws.
        rows: Number of texts.
        unseen: Whether the sums are held out from training. Default False.

    Returns:
        The texts.
    """
    return [
        "".join(
            f"{s.question}{ANSWER}{s.answer}{BEHIND}"
            for s in (
                sums.draw_last_digit_sum(f"{seed} {step} {i} {at}", spec.hops, unseen)
                for at in range(SUMS)
            )
        )
        for i in range(rows)
    ]


def encode_sum_rows(rows: list[str]) -> Tensor:
    """Token ids of texts of one length, after BEGIN, shape ``[B, T]``."""
    return torch.tensor([[IDS[BEGIN], *(IDS[x] for x in row)] for row in rows])


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs. The model is trained first, into a directory of its own."""
    at = spec.target
    if at is None:
        own = replace(spec, out=str(Path(spec.out) / "words"), steps=max(1, spec.steps // 2))
        run_training("context cache-augmentation, the model", own, prepare_base_model)
        at = own.out
    network = CacheAugmentationModel(
        load_directory(at), spec.latents, spec.seed, spec.reasoning == "chain"
    )
    # The untrained coprocessor is measured as it is: one step whose loss, and so its gradient, is
    # 0.
    if spec.reasoning == "none":
        steps = 1
        rate = 0.0
    else:
        steps = spec.steps
        rate = 1.0

    def step_loss(step: int) -> tuple[Tensor, int]:
        token_BT = encode_sum_rows(draw_sum_texts(spec, spec.seed, step, spec.rows))
        # Places differ from step to step, so the coprocessor works behind any of them.
        places = at_random(token_BT, generator_for(spec.seed, step, "places"))
        return rate * network.predict_ahead(token_BT, places)[0].mean(), token_BT.numel()

    def save_result(out: Path, result: Any) -> None:
        """Write the model, and the coprocessor into a folder below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        save_base_model(out, network.model)
        tensors = {n: p.detach() for n, p in network.tensors.items()}
        made = CacheCoprocessor(network.skeleton, network.soft.detach(), tensors)
        coprocessor.save(out / "coprocessor", made, {})

    # A tenth of the rate: the model that it reads is trained already.
    schedule = TrainingSchedule(steps, spec.rate / 10, log_every=min(20, steps))
    return TrainingRun(
        network,
        step_loss,
        schedule,
        run_identity(spec),
        save_result,
        lambda: measure_cache_augmentation(network, spec),
    )


def at_random(
    token_BT: Tensor, generator: torch.Generator, places: int = PLACES, ahead: int = AHEAD
) -> Tensor:
    """Draw some places of each text that have enough tokens after them.

    Args:
        token_BT: Token ids of the texts, shape ``[B, T]``; only the shape is read.
        generator: Source of randomness; it is advanced.
        places: Places of a text, at most T - ahead - 1. Default PLACES.
        ahead: Tokens after each. Default AHEAD.

    Returns:
        Ascending indices, from 1 on, shape ``[B, places]``.
    """
    most = token_BT.shape[1] - ahead
    # The order of random numbers is a random order of indices, its beginning a sample without
    # replacement. Index 0, BEGIN, is left out: nothing stands before it.
    return (
        torch.rand(len(token_BT), most - 1, generator=generator).argsort(-1)[:, :places].sort(-1)[0]
        + 1
    )


def prepare_base_model(spec: ContextSpec) -> TrainingRun:
    """What trains the model alone, on texts as they are."""
    # Heads of 16 numbers, the least that the compiled step serves.
    heads = spec.width // 16
    shape = LlamaShape(VOCAB, spec.width, spec.layers, heads, heads, 3 * spec.width, CONTEXT)
    network = TrainableLlama(shape, seed=spec.seed)

    def step_loss(step: int) -> tuple[Tensor, int]:
        token_BT = encode_sum_rows(draw_sum_texts(spec, spec.seed, step, spec.rows))
        # The last token has no successor, the first no predecessor.
        logits = network(token_BT[:, :-1])
        nats = F.cross_entropy(logits.flatten(0, 1), token_BT[:, 1:].flatten())
        return nats, token_BT.numel()

    schedule = TrainingSchedule(
        spec.steps, spec.rate, muon=spec.muon, log_every=min(20, spec.steps)
    )
    return TrainingRun(
        network,
        step_loss,
        schedule,
        run_identity(spec),
        lambda out, _: save_base_model(out, network),
    )


def save_base_model(out: Path, network: TrainableLlama) -> None:
    """Save the model as a directory that `polydec.load` reads.

    Args:
        out: Directory to write.
        network: The model.
    """
    config = network.s.config_content(bos=IDS[BEGIN], eos=IDS[BEHIND])
    save_directory(out, network, config, files=FILES, dtype=torch.float32)


@torch.no_grad()
def measure_cache_augmentation(
    network: CacheAugmentationModel, spec: ContextSpec
) -> dict[str, Any]:
    """Measure on held-out texts what the vectors change.

    Args:
        network: The model with its coprocessor.
        spec: Options; `hops` says where answers stand.

    Returns:
        `nats_without` and `nats_with`: nats of each token after random places; `answers_*`: share
        of last digits that are right where the place stands before the mark of the answer, with
        `answers_nats_*`; `parameters`: of the coprocessor.
    """
    rows = draw_sum_texts(spec, 0, 0, UNSEEN, True)
    token_BT = encode_sum_rows(rows)
    places = at_random(token_BT, generator_for(0, 0, "measured"))
    # A sum has 2 * hops + 1 letters, then come the mark, the digit and the separator.
    each = 2 * spec.hops + 4
    last = 2 * spec.hops + 1
    # The last sum is left out: fewer than AHEAD tokens follow it. Token 1 after the place is the
    # digit.
    asked = (torch.arange(SUMS - 1) * each + last).expand(len(rows), -1)
    out: dict[str, Any] = {"parameters": sum(p.numel() for p in network.reads.parameters())}
    for name, reads in (("without", unaugmented_model(network)), ("with", network)):
        out[f"nats_{name}"] = reads.predict_ahead(token_BT, places)[0].mean((0, 1)).tolist()
        nats, right = reads.predict_ahead(token_BT, asked)
        out[f"answers_nats_{name}"] = float(nats[..., 1].mean())
        out[f"answers_{name}"] = float(right[..., 1].float().mean())
    return out


def unaugmented_model(network: CacheAugmentationModel) -> CacheAugmentationModel:
    """The same model with no vectors at all."""
    return CacheAugmentationModel(network.model, 0, 0, True, network.ahead)
