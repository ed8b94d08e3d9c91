"""What is trained of soft probes: they ride behind positions of a text through a frozen target."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.network import LlamaDecoderLayer, TrainableLlama, apply_rotary_embedding
from polydec.lab.train.state_layer import Past, attend_draft_levels
from polydec.lab.train.students import DrafterKind, DrafterStudent, Rates, TeacherContext
from polydec.methods.speculative.drafters.probes import ProbesDrafter
from polydec.models.learned.kinds import probes
from polydec.models.learned.kinds.probes import SoftProbes
from polydec.models.learned.state_layer import StateLayer
from polydec.models.nets.gated import Pair


class ProbeStudent(DrafterStudent):
    """Probes behind every position of a piece."""

    def forward(
        self, entry_BTH: Tensor, window_BMW: Tensor, every: int = 1
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Run all probes behind every position of a piece.

        The target reads the piece anew, and nothing before it: probes stand in the pass that makes
        its states.

        Args:
            entry_BTH: States of the piece; only its length is taken.
            window_BMW: The last tokens at each position.
            every: Not used: all positions are learned from.

        Yields:
            Of each probe what it came out as ``[B, T, H]``, the logits there, and the positions.
        """
        token_BT = window_BMW[:, : entry_BTH.shape[1], -2]
        probes = self.build_artefact()
        copies = [
            run_soft_probes(self.shown.target, probes.copy_probes(copy), token_BT)
            for copy in range(probes.copies)
        ]
        for made in zip(*copies, strict=True):
            logits = torch.stack([self.shown.state_logits(state_BTH) for state_BTH in made]).mean(0)
            yield made[0], logits, torch.arange(made[0].shape[1])


def run_soft_probes(target: TrainableLlama, probes: SoftProbes, token_BT: Tensor) -> list[Tensor]:
    """Run probes through a frozen target, behind every token of a text.

    Args:
        target: The target.
        probes: The vectors, and the layer that each enters.
        token_BT: Token ids, which are a text's first.

    Returns:
        Of each probe what leaves the last layer, ``[B, T, H]``.
    """
    x = target.model.embed_tokens(token_BT)
    rows = list[Tensor]()
    for i, layer in enumerate(target.model.layers):
        # A probe is made of the text's states at its depth, and passes the layers from here on.
        if i in probes.enter:
            states = dict.fromkeys(probes.depths, x.flatten(0, 1))
            both = probes.probe_inputs(states, x.shape[0] * x.shape[1]).unflatten(0, x.shape[:2])
            rows += [row for row, depth in zip(both.unbind(2), probes.enter) if depth == i]
        # Nothing that stands behind changes what the text is, and the target is not trained.
        past = Past()
        with torch.no_grad():
            x = run_layer_by_levels(target, layer, x, past)  # pyright: ignore[reportArgumentType]
        rows = [run_layer_by_levels(target, layer, row, past) for row in rows]  # pyright: ignore[reportArgumentType]
    return rows


def run_layer_by_levels(
    target: TrainableLlama,
    layer: LlamaDecoderLayer,
    x_BTH: Tensor,
    past: Past,
    at_T: Tensor | None = None,
    adapter: Mapping[str, Pair] | None = None,
) -> Tensor:
    """Run one layer over a text, then over one level after another of what stands behind it.

    Args:
        target: Its sizes and rotary tables.
        layer: One of its layers.
        x_BTH: What the layer reads of this level.
        past: Keys and values of the levels before; those of this one are added to it.
        at_T: Positions of the text behind which the level stands (None: all).
        adapter: What is added at each place of this layer (None: nothing).

    Returns:
        What leaves the layer, ``[B, T, H]``.
    """
    s = target.s
    level = len(past)
    if at_T is None:
        at_T = torch.arange(x_BTH.shape[1])

    def added_rows(place: str, read: Tensor, y: Tensor, plain: bool = False) -> Tensor:
        """Add what the adapter makes of a row to what the layer makes of it.

        Args:
            place: Place in the layer, one of `PLACES`.
            read: What the layer reads there, ``[B, N, T, I]`` or without N.
            y: What the layer's own matrices make of it.
            plain: Whether the adapter reads it behind a norm without weights. Default False.

        Returns:
            The sum; y itself without an adapter.
        """
        if adapter is None:
            return y
        into, out = adapter[place]
        # The adapter reads rows normed without weights, as the packed network has its inputs.
        return y + F.linear(
            F.linear(F.rms_norm(read, read.shape[-1:], None, s.eps) if plain else read, into), out
        )

    n = layer.input_layernorm(x_BTH)
    own = layer.self_attn
    # The three projections share one pair of matrices, so their outputs stand side by side.
    qkv = added_rows(
        "qkv", x_BTH, torch.cat([p(n) for p in (own.q_proj, own.k_proj, own.v_proj)], -1), True
    )
    heads = qkv.unflatten(-1, (-1, s.head)).transpose(1, 2)
    q, k, v = heads.split([s.heads, s.kv_heads, s.kv_heads], 1)
    # A level stands so many positions behind its token.
    cos, sin = (t[at_T + level] for t in (target.model.cos, target.model.sin))
    q = apply_rotary_embedding(q, cos, sin)
    k = apply_rotary_embedding(k, cos, sin)
    k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
    past.append((k, v))
    # The text sees what is before it; a level sees the text, and behind each place its own levels.
    if level:
        y = attend_draft_levels(q, past, at_T)
    else:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    y = y.transpose(1, 2).flatten(2)
    x = x_BTH + added_rows("out", y, own.o_proj(y))
    mlp = layer.mlp
    n = layer.post_attention_layernorm(x)
    gate, up = added_rows(
        "gate_up", x, torch.cat([mlp.gate_proj(n), mlp.up_proj(n)], -1), True
    ).chunk(2, -1)
    inner = F.silu(gate) * up
    return x + added_rows("down", inner, mlp.down_proj(inner))


def make_ppd(shown: TeacherContext) -> DrafterStudent:
    """Prompt tokens, which begin as the embeddings of frequent tokens."""
    # Frequent tokens, in an order that the seed names: copies begin as different ones.
    drawn = shown.tokens[
        torch.randperm(len(shown.tokens), generator=torch.Generator().manual_seed(shown.seed))[
            : shown.levels * shown.copies
        ]
    ]

    def make_artefact(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> SoftProbes:
        """Build the artefact of a student's tensors.

        Args:
            t: The tensors of the student, in their order.
            layer: The student's layer; there is none, and it is not read.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by probe.
            share: Cost of a draft, in passes of the target.

        Returns:
            Probes without maps.
        """
        enter = (0,) * shown.levels
        return SoftProbes(t[0], None, enter, vocab, rates, share, shown.copies)

    return ProbeStudent(shown, [shown.embed_tokens(drawn).clone()], None, make_artefact)


def make_hidden(shown: TeacherContext) -> DrafterStudent:
    """Maps of the state in the middle, which begin by passing it on."""
    s = shown.target.s
    enter = probe_entry_layers(shown.enters, shown.levels, s.layers)

    def make_artefact(
        t: Sequence[Tensor],
        layer: StateLayer | None,
        vocab: TokenVocabulary,
        rates: Rates,
        share: float,
    ) -> SoftProbes:
        """Build the artefact of a student's tensors.

        Args:
            t: What enters of the probes, then a map for each.
            layer: The student's layer; there is none, and it is not read.
            vocab: The target's vocabulary.
            rates: How often the token of each rank is right, by probe.
            share: Cost of a draft, in passes of the target.

        Returns:
            Probes with maps.
        """
        return SoftProbes(t[0], t[1:], enter, vocab, rates, share)

    maps = [torch.eye(s.width) for _ in range(shown.levels)]
    return ProbeStudent(shown, [torch.zeros(shown.levels, s.width), *maps], None, make_artefact)


def probe_entry_layers(asked: Sequence[int], levels: int, layers: int) -> tuple[int, ...]:
    """Check or choose the layer that each state enters.

    Args:
        asked: Layers that the user named, or none.
        levels: How many states there are.
        layers: Layers of the target.

    Returns:
        As asked, or the middle layer for all.

    Raises:
        RequestError: They are not as many as levels, fall, or lie outside 1 to the target's last
        layer.
    """
    out = tuple(asked) or (max(1, layers // 2),) * levels
    if len(out) != levels or list(out) != sorted(out) or out[0] < 1 or out[-1] >= layers:
        raise RequestError(
            f"enters is {list(out)}: it must have {levels} layers in 1 to {layers - 1}, none lower than the one before"
        )
    return out


KINDS = {
    "ppd": DrafterKind(
        make_ppd,
        ProbesDrafter,
        probes.save,
        rows=lambda nodes: 3 * nodes,
        takes=frozenset(("copies",)),
    ),
    "lud": DrafterKind(
        make_ppd, ProbesDrafter, probes.save, sure=0.9, rows=lambda nodes: 3 * nodes
    ),
    "hidden-transfer": DrafterKind(
        make_hidden,
        ProbesDrafter,
        probes.save,
        rows=lambda nodes: 3 * nodes,
        takes=frozenset(("enters",)),
    ),
}
