"""The trainable form of models/learned/state_layer.py, over pieces of text and drafted entries.

The arithmetic is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.network import LlamaShape, apply_rotary_embedding
from polydec.models.learned.artefact_fields import PublishedFields
from polydec.models.learned.kinds.narrow import NarrowLayer
from polydec.models.learned.published import PublishedLayer
from polydec.models.learned.state_layer import EPS, StateLayer, state_layer_shapes
from polydec.models.learned.state_stack import StateStack

Past = list[tuple[Tensor, Tensor]]
"""Keys and values [B, heads, T, head] of the entries so far: those of the text, then of each level
of drafted ones."""

Pasts = list[tuple[tuple[Tensor, Tensor], ...]]
"""The same of several layers: of each level one pair a layer."""


class TrainableStateLayer(nn.Module):
    """One transformer layer for a target, which reads true states and drafted entries.

    `wide` is how many numbers a position has that it reads; `beside` how many of these, before the
    residual stream, the second norm goes over too. `states` is how many states the MLP writes at a
    position: with more than one `forward` is another one's (lab/train/flash.py). `sections`: see
    `StateLayer`.
    """

    def __init__(
        self,
        target: LlamaShape,
        seed: int,
        wide: int | None = None,
        length: int = 4096,
        states: int = 1,
        sections: Sequence[int] = (),
    ) -> None:
        super().__init__()
        g = torch.Generator().manual_seed(seed)
        self._target = target
        self._sections = tuple(sections)
        self.wide = wide or target.width
        self.beside = self.wide - target.width
        made = initialise_tensors(
            state_layer_shapes(
                target.width, target.heads, target.kv_heads, target.inner, wide, states
            ),
            g,
        )
        self._names = list(made)
        self.weights = nn.ParameterList(made.values())
        self._turn = rotary_tables(target, length)

    @property
    def layer(self) -> StateLayer:
        """The layer as an artefact holds it, with the weights as they are now."""
        t = self._target
        return StateLayer(
            dict(zip(self._names, self.weights, strict=True)),
            t.heads,
            t.kv_heads,
            t.theta,
            sections=self._sections,
        )

    def section_turns(self, axes: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
        """Cosines and sines of rows that stand at positions of three parts.

        Args:
            axes: Positions in time, by rows and by columns, T each.

        Returns:
            Two tensors of shape ``[T, head]``.
        """
        # Sections take time, rows and columns in turns, in both halves of a head alike.
        widths = (*self._sections, *self._sections)
        made = list[Tensor]()
        for table in self._turn:
            # Of each axis the angles of every pair; a section takes those of its own axis.
            parts = [table[torch.tensor(axis)].split(widths, -1) for axis in axes]
            count = len(self._sections)
            made.append(torch.cat([parts[i % count % 3][i] for i in range(2 * count)], -1))
        return made[0], made[1]

    def project_rows(self, x_BTH: Tensor, at_T: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of rows.

        Args:
            x_BTH: Rows that no norm has been over, shape ``[B, T, H]``.
            at_T: Their positions, shape ``[T]``.

        Returns:
            Three tensors of shape ``[B, heads, T, head]``.
        """
        w = self.layer.tensors
        n_BTH = F.rms_norm(x_BTH, x_BTH.shape[-1:], w["input_layernorm.weight"], EPS)
        return project_qkv(self._target, w, self._turn, n_BTH, at_T)

    def take_weights(self, weights: Mapping[str, Tensor]) -> None:
        """Take over the first layer of a Llama.

        Raises:
            RequestError: It has another shape.
        """
        for name, own in zip(self._names, self.weights, strict=True):
            start_weight = weights[f"model.layers.0.{name}"]
            if start_weight.shape != own.shape:
                raise RequestError(
                    f"start has {name} of shape {tuple(start_weight.shape)}: this layer's is {tuple(own.shape)}"
                )
            own.data.copy_(start_weight)

    def forward(
        self,
        x_BTS: Tensor,
        past: Past | None = None,
        at_T: Tensor | None = None,
        turn: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Run the layer over a text, or over one level of drafted entries.

        With an empty past the rows are a piece of text, whose keys and values are remembered there.
        Later calls bring drafted entries, one after each position of `at_T`: they see the text up
        to that position, and the entries of earlier levels after it.

        Args:
            x_BTS: Rows, shape ``[B, T, S]``; the last H numbers are the residual stream.
            past: Keys and values so far; those of the rows are added. None: nothing is remembered.
            at_T: Positions that drafted entries follow, shape ``[T]``; None: 0, 1, ….
            turn: Cosines and sines of the rows of texts, shapes that broadcast to
                ``[B, heads, T, head]``. None: those of their positions.

        Returns:
            The stream after the layer, shape ``[B, T, H]``.
        """
        w, H, x_BTS = (
            self.layer.tensors,
            self._target.width,
            x_BTS.float(),
        )  # the stream, whatever products are made in
        n = F.rms_norm(x_BTS, x_BTS.shape[-1:], w["input_layernorm.weight"], EPS)
        # Attention adds to the stream, the last H numbers; what else was read passes through.
        if turn is None:
            added = attend_state_layer(self._target, w, self._turn, n, past, at_T)
        else:
            # Texts alone have turns of their own: nothing is drafted behind them here.
            q, k, v = turned_qkv(self._target, w, turn, n)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            added = F.linear(y.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])
        x = x_BTS + F.pad(added, (x_BTS.shape[-1] - H, 0))
        # The second norm goes over all that was read, and only the stream's part has weights.
        n = F.rms_norm(x, x.shape[-1:], None, EPS)[..., -H:] * w["post_attention_layernorm.weight"]
        return x[..., -H:] + swiglu_mlp(w, n)


class TrainableStateStack(nn.Module):
    """Several layers one after another, each with its own keys and values in the past."""

    beside = 0

    def __init__(self, target: LlamaShape, seed: int, layers: int) -> None:
        super().__init__()
        self.wide = target.width
        # A seed for each layer: equal layers would learn the same thing.
        self.blocks = nn.ModuleList(TrainableStateLayer(target, seed + i) for i in range(layers))

    @property
    def layer(self) -> StateStack:
        """The stack as an artefact holds it, with the weights as they are now."""
        return StateStack([block.layer for block in self.blocks])  # pyright: ignore[reportArgumentType]

    def forward(
        self, x_BTS: Tensor, past: Pasts | None = None, at_T: Tensor | None = None
    ) -> Tensor:
        """Run all layers over a text, or over one level of drafted entries.

        Args:
            x_BTS: Rows, shape ``[B, T, H]``.
            past: Keys and values so far, of each level one pair a layer; those of the rows are
                added. None: nothing is remembered.
            at_T: Positions that drafted entries follow, shape ``[T]``; None: 0, 1, ….

        Returns:
            The stream after the last layer, shape ``[B, T, H]``.
        """
        past = [] if past is None else past
        x = x_BTS
        made = list[tuple[Tensor, Tensor]]()
        for i, block in enumerate(self.blocks):
            # Each layer gets a list of its own, to which it adds its new keys and values.
            own = [level[i] for level in past]
            x = block(x, own, at_T)
            made.append(own[-1])
        past.append(tuple(made))
        return x


class NarrowBlock(nn.Module):
    """The trainable form of models/learned/kinds/narrow.py: a map to the width, then a layer.

    `begin` holds the tensors of a one-layer Llama of the target's width, which the block then is:
    it reads tokens alone at first (None: random weights). `scale` is the root mean square of that
    Llama's embeddings.
    """

    beside = 0

    def __init__(
        self,
        target: LlamaShape,
        seed: int,
        begin: Mapping[str, Tensor] | None,
        scale: float,
        length: int = 4096,
    ) -> None:
        super().__init__()
        W = target.width
        self.wide = 2 * target.width
        self.block = TrainableStateLayer(target, seed, length=length)
        # Without a draft model the sum of token and state enters, with one the scaled token alone.
        self.join = nn.Parameter(
            torch.cat([torch.eye(W), torch.eye(W)], 1)
            if begin is None
            else torch.cat([scale * torch.eye(W), torch.zeros(W, W)], 1)
        )
        if begin is not None:
            self.block.take_weights(begin)

    @property
    def layer(self) -> NarrowLayer:
        """The block as an artefact holds it, with the weights as they are now."""
        return NarrowLayer(self.join, self.block.layer)

    def forward(
        self, x_BTS: Tensor, past: Past | None = None, at_T: Tensor | None = None
    ) -> Tensor:
        """Run the block over a text, or over one level of drafted entries.

        Args:
            x_BTS: Rows of token embedding and state side by side, shape ``[B, T, 2 H]``.
            past: Keys and values so far; those of the rows are added. None: nothing is remembered.
            at_T: Positions that drafted entries follow, shape ``[T]``; None: 0, 1, ….

        Returns:
            The stream after the layer, shape ``[B, T, H]``.
        """
        return self.block(F.linear(x_BTS, self.join), past, at_T)


class PublishedBlock(nn.Module):
    """The trainable form of models/learned/published.py.

    `layout` gives the shapes of the tensors. With EAGLE-3's there are norms of their own for token
    and state; with EAGLE-1's there is none before attention.
    """

    beside = 0

    def __init__(
        self,
        target: LlamaShape,
        seed: int,
        layout: Callable[[PublishedFields], dict[str, tuple[int, ...]]],
        length: int = 4096,
    ) -> None:
        super().__init__()
        self._target = target
        self._turn = rotary_tables(target, length)
        # The config of the published layout, from which all shapes follow.
        self._about = PublishedFields(
            vocab_size=target.vocab,
            hidden_size=target.width,
            num_attention_heads=target.heads,
            intermediate_size=target.inner,
            num_key_value_heads=target.kv_heads,
            max_position_embeddings=max(length, target.context),
            rms_norm_eps=EPS,
            rope_theta=target.theta,
        )
        made = initialise_tensors(layout(self._about), torch.Generator().manual_seed(seed))
        self._names = list(made)
        self.weights = nn.ParameterList(made.values())
        # What attention reads: twice the width for EAGLE-3, the width for EAGLE-1.
        self.wide = made["self_attn.q_proj.weight"].shape[1]

    @property
    def layer(self) -> PublishedLayer:
        """The block as an artefact holds it, with the weights as they are now."""
        return PublishedLayer(dict(zip(self._names, self.weights, strict=True)), self._about)

    def forward(
        self, x_BTS: Tensor, past: Past | None = None, at_T: Tensor | None = None
    ) -> Tensor:
        """Run the block over a text, or over one level of drafted entries.

        Args:
            x_BTS: Rows, shape ``[B, T, S]``.
            past: Keys and values so far; those of the rows are added. None: nothing is remembered.
            at_T: Positions that drafted entries follow, shape ``[T]``; None: 0, 1, ….

        Returns:
            The stream after the layer, shape ``[B, T, H]``.
        """
        w = self.layer.tensors
        n = state = x_BTS.float()  # the stream, whatever products are made in
        # EAGLE-3: attention reads both halves, each normed, and the residual stream is the state
        # alone.
        if "hidden_norm.weight" in w:
            token, state = n.chunk(2, -1)
            n = torch.cat(
                [
                    self._norm(token, w["input_layernorm.weight"]),
                    self._norm(state, w["hidden_norm.weight"]),
                ],
                -1,
            )
        x = state + attend_state_layer(self._target, w, self._turn, n, past, at_T)
        return x + swiglu_mlp(w, self._norm(x, w["post_attention_layernorm.weight"]))

    @staticmethod
    def _norm(x: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], weight, EPS)


def initialise_tensors(
    shape: Mapping[str, tuple[int, ...]], g: torch.Generator
) -> dict[str, nn.Parameter]:
    """New tensors to train: matrices at random, norms of 1.

    Args:
        shape: Shape of each tensor, by name.
        g: Source of randomness; it is advanced.

    Returns:
        The tensors by name.
    """
    return {
        name: nn.Parameter(
            torch.randn(s, generator=g) * 0.5 * s[-1] ** -0.5 if len(s) == 2 else torch.ones(s)
        )
        for name, s in shape.items()
    }


def rotary_tables(target: LlamaShape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the rotary embedding.

    Args:
        target: Head size and base.
        length: Positions.

    Returns:
        Two tensors of shape ``[length, head]``.
    """
    inverse = target.theta ** (-torch.arange(0, target.head, 2).double() / target.head)
    # Both halves of a head turn by the same angles.
    angle = torch.outer(torch.arange(length).double(), inverse).repeat(1, 2)
    return angle.cos().float(), angle.sin().float()


def attend_state_layer(
    s: LlamaShape,
    w: Mapping[str, Tensor],
    turn: tuple[Tensor, Tensor],
    n_BTS: Tensor,
    past: Past | None,
    at_T: Tensor | None,
) -> Tensor:
    """What attention adds to rows.

    Args:
        s: The target's sizes.
        w: The layer's tensors by name.
        turn: Cosines and sines of all positions.
        n_BTS: Normed rows, shape ``[B, T, S]``.
        past: Keys and values so far; those of the rows are added. None: nothing is remembered.
        at_T: Positions that drafted entries follow, shape ``[T]``; None: 0, 1, ….

    Returns:
        Shape ``[B, T, H]``.
    """
    past = [] if past is None else past
    T = n_BTS.shape[1]
    # One entry of the past is the text, each further one a level.
    level = len(past)
    if at_T is None or not level:
        first_T = torch.arange(T)
    else:
        first_T = at_T
    # An entry of level k stands k places after the position that it follows.
    q, k, v = project_qkv(s, w, turn, n_BTS, first_T + level)
    past.append((k, v))
    # The text is causal; drafted entries see it up to their own position.
    if level:
        y = attend_draft_levels(q, past, first_T)
    else:
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(y.transpose(1, 2).flatten(2), w["self_attn.o_proj.weight"])


def project_qkv(
    s: LlamaShape,
    w: Mapping[str, Tensor],
    turn: tuple[Tensor, Tensor],
    n_BTS: Tensor,
    place_T: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows, turned to their positions.

    Args:
        s: The target's sizes.
        w: The layer's tensors by name.
        turn: Cosines and sines of all positions.
        n_BTS: Normed rows, shape ``[B, T, S]``.
        place_T: Positions of the rows, shape ``[T]``.

    Returns:
        Three tensors of shape ``[B, heads, T, head]``; key heads are repeated.
    """
    cos, sin = turn
    return turned_qkv(s, w, (cos[place_T], sin[place_T]), n_BTS)


def turned_qkv(
    s: LlamaShape, w: Mapping[str, Tensor], turn: tuple[Tensor, Tensor], n_BTS: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of rows, turned as is said.

    Args:
        s: The target's sizes.
        w: The layer's tensors by name.
        turn: Cosines and sines of the rows, shapes that broadcast to ``[B, heads, T, head]``.
        n_BTS: Normed rows, shape ``[B, T, S]``.

    Returns:
        Three tensors of shape ``[B, heads, T, head]``; key heads are repeated.
    """
    made = (F.linear(n_BTS, w[f"self_attn.{name}_proj.weight"]) for name in "qkv")
    q, k, v = (t.unflatten(-1, (-1, s.head)).transpose(1, 2) for t in made)
    cos, sin = turn
    q = apply_rotary_embedding(q, cos, sin)
    k = apply_rotary_embedding(k, cos, sin)
    k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
    return q, k, v


def swiglu_mlp(w: Mapping[str, Tensor], n: Tensor) -> Tensor:
    """What the gated MLP adds to rows.

    Args:
        w: The layer's tensors by name.
        n: Normed rows, shape ``[..., H]``.

    Returns:
        Shape ``[..., H]``.
    """
    inner = F.silu(F.linear(n, w["mlp.gate_proj.weight"])) * F.linear(n, w["mlp.up_proj.weight"])
    return F.linear(inner, w["mlp.down_proj.weight"])


def attend_draft_levels(q: Tensor, past: Past, at_T: Tensor) -> Tensor:
    """Attention of drafted entries, over the text before each and the entries after it.

    The text is seen up to the position that an entry follows.

    Args:
        q: Queries of one level, shape ``[B, heads, N, head]``.
        past: Keys and values of the text, then of each level so far, this one included.
        at_T: Positions that the entries follow, shape ``[N]``.

    Returns:
        Shape ``[B, heads, N, head]``.
    """
    (text_k, text_v), levels = past[0], past[1:]
    scale = q.shape[-1] ** -0.5
    # [N, T]: the positions of the text that each entry sees.
    seen = torch.arange(text_k.shape[2])[None] <= at_T[:, None]
    scores = [(q @ text_k.transpose(-1, -2) * scale).masked_fill(~seen, float("-inf"))]
    # Of each earlier level an entry sees the one that follows the same position: one score a level.
    scores += [(q * k).sum(-1, keepdim=True) * scale for k, _ in levels]
    weight = torch.cat(scores, -1).softmax(-1)
    out = weight[..., : text_k.shape[2]] @ text_v
    # The weights of the levels stand after those of the text.
    for i, (_, v) in enumerate(levels):
        out = out + weight[..., text_k.shape[2] + i, None] * v
    return out
