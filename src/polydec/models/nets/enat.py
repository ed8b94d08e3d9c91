"""A masked-diffusion network in two halves: tokens are encoded once, and gaps are decoded against them (ENAT).

The same modules are trained and served.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, linear, pad, scaled_dot_product_attention, silu

from polydec.base.errors import RequestError
from polydec.core.law import NEG_INF
from polydec.models.formats.enat_config import EnatShape
from polydec.models.formats.fields import require_shapes


class CrossedLayer(nn.Module):
    """A transformer layer whose rows attend to one another and to a context, each by keys and values of its own.

    Rows of the context are not changed. A condition shifts and scales what the norms give, and weighs
    what attention and the MLP add: by 0 at first, so that an untrained layer changes nothing.
    """

    def __init__(self, shape: EnatShape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        # The condition says how much each number counts: a norm has no weights of its own.
        self.before = nn.LayerNorm(width, elementwise_affine=False)
        self.beside = nn.LayerNorm(width, elementwise_affine=False)
        self.behind = nn.LayerNorm(width, elementwise_affine=False)
        self.modulated = nn.Linear(width, 8 * width)
        nn.init.zeros_(self.modulated.weight)
        nn.init.zeros_(self.modulated.bias)
        self.query = nn.Linear(width, width)
        self.own = nn.Linear(width, 2 * width)
        self.given = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.into = nn.Linear(width, shape.inner)
        self.back = nn.Linear(shape.inner, width)

    def forward(self, x_BNW: Tensor, context_BSW: Tensor, condition_BW: Tensor) -> Tensor:
        """Run the layer.

        Args:
            x_BNW: States of the rows.
            context_BSW: States that they read besides; S may be 0.
            condition_BW: What is drawn (`condition_states`).

        Returns:
            Their states behind the layer.
        """
        # One row a canvas, which counts for all of its positions: [B, 1, W] each.
        parts = self.modulated(silu(condition_BW))[:, None].chunk(8, -1)
        own_shift, own_scale, read_gate, given_shift, given_scale = parts[:5]
        mlp_shift, mlp_scale, mlp_gate = parts[5:]
        normed = self.before(x_BNW) * (1 + own_scale) + own_shift
        given = self.beside(context_BSW) * (1 + given_scale) + given_shift
        # Two maps of keys and values: what is read is of another kind than what is written.
        pairs = torch.cat([self.given(given), self.own(normed)], 1)
        key, value = (self._split(part) for part in pairs.chunk(2, -1))
        read = scaled_dot_product_attention(self._split(self.query(normed)), key, value)
        x_BNW = x_BNW + read_gate * self.out(read.transpose(1, 2).flatten(2))
        normed = self.behind(x_BNW) * (1 + mlp_scale) + mlp_shift
        return x_BNW + mlp_gate * self.back(gelu(self.into(normed)))

    def _split(self, x_BNW: Tensor) -> Tensor:
        """States as heads: ``[B, heads, N, head]``."""
        return x_BNW.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class EnatModules(nn.Module):
    """Embeddings, the two halves, what old tokens are shown as, and the head."""

    def __init__(self, shape: EnatShape) -> None:
        super().__init__()
        self.shape = shape
        width = shape.width
        self.token_embedding = nn.Embedding(shape.vocab, width)
        self.place_embedding = nn.Embedding(shape.context, width)
        self.entry = nn.LayerNorm(width)
        self.unconditioned = nn.Parameter(torch.zeros(width))
        # A token passes the first half once, a gap the second one in every pass.
        self.encoder = nn.ModuleList(CrossedLayer(shape) for _ in range(shape.encoder))
        self.decoder = nn.ModuleList(CrossedLayer(shape) for _ in range(shape.decoder))
        # One MLP for all depths: older tokens are shown alike to every layer.
        self.old_norm = nn.LayerNorm(width)
        self.old_into = nn.Linear(width, shape.inner)
        self.old_back = nn.Linear(shape.inner, width)
        self.last = nn.LayerNorm(width)
        self.map = nn.Linear(width, width)
        self.mapped = nn.LayerNorm(width)
        # The head is tied to the table, of which a bias says how often each id is written.
        self.bias = nn.Parameter(torch.zeros(shape.written))
        for table in (self.token_embedding, self.place_embedding):
            nn.init.normal_(table.weight, std=0.02)

    def entry_states(self, token_BN: Tensor, place_BN: Tensor) -> Tensor:
        """What enters the first layer.

        Args:
            token_BN: Token ids.
            place_BN: Their positions.

        Returns:
            States, ``[B, N, W]``.
        """
        return self.entry(self.token_embedding(token_BN) + self.place_embedding(place_BN))

    def condition_states(self, class_B: Tensor, mask: int) -> Tensor:
        """What conditions the layers of a canvas.

        Args:
            class_B: Its class, the token at its first place; `mask` where that is left out.
            mask: Id of a gap.

        Returns:
            States, ``[B, W]``.
        """
        # A class that is left out has a state of its own: no gap has a part in what is encoded.
        given_B1 = (class_B != mask)[:, None]
        return torch.where(given_B1, self.entry(self.token_embedding(class_B)), self.unconditioned)

    def encode_tokens(self, x_BNW: Tensor, old_BOW: Tensor, condition_BW: Tensor) -> Tensor:
        """Encode tokens. Gaps never enter here.

        Args:
            x_BNW: What enters of new tokens.
            old_BOW: What older ones are shown as (`shown_states`), the same in every layer.
            condition_BW: What is drawn.

        Returns:
            States of the new tokens.
        """
        for layer in self.encoder:
            x_BNW = layer(x_BNW, old_BOW, condition_BW)
        return x_BNW

    def shown_states(self, state_BNW: Tensor) -> Tensor:
        """What encoded tokens are shown as in later passes, which do not encode them again."""
        return state_BNW + self.old_back(gelu(self.old_into(self.old_norm(state_BNW))))

    def decode_gaps(self, x_BMW: Tensor, known_BSW: Tensor, condition_BW: Tensor) -> Tensor:
        """Decode gaps, which see one another and the tokens.

        Args:
            x_BMW: What enters of gaps.
            known_BSW: Old tokens as they are shown, and new ones as they were encoded.
            condition_BW: What is drawn.

        Returns:
            States of the gaps.
        """
        for layer in self.decoder:
            x_BMW = layer(x_BMW, known_BSW, condition_BW)
        return x_BMW

    def written_logits(self, state_NW: Tensor) -> Tensor:
        """Logits of the ids that may be written, ``[..., C]``, of states behind either half."""
        mapped = self.mapped(gelu(self.map(self.last(state_NW))))
        return linear(mapped, self.token_embedding.weight[: self.shape.written], self.bias)


@dataclass(frozen=True, eq=False)
class EnatQuery:
    """What a pass over a canvas is asked.

    Attributes:
        old_OW: What tokens of earlier passes are shown as.
        tokens: Ids of the new ones.
        places: Their positions.
        gaps: Positions of the gaps that are decoded.
        drawn: Class that is drawn. None: it is left out.
    """

    old_OW: Tensor
    tokens: tuple[int, ...]
    places: tuple[int, ...]
    gaps: tuple[int, ...]
    drawn: int | None


@dataclass(frozen=True, eq=False)
class EnatAnswer:
    """What a pass gives.

    Attributes:
        new_NW: States of the new tokens.
        shown_NW: What later passes are shown of them.
        gap_MW: States of the gaps.
    """

    new_NW: Tensor
    shown_NW: Tensor
    gap_MW: Tensor


class EnatNetwork:
    """The network as it is served. Queries with as many rows of each kind run together.

    Args:
        shape: Sizes.
        weights: Tensors of `EnatModules`, by name.
        mask: Id that stands for a gap.

    Raises:
        PolydecError: A tensor is missing or has another shape.
    """

    dtype = "float32"
    kernel = "torch (ENAT)"
    approximate = ""

    def __init__(self, shape: EnatShape, weights: Mapping[str, Tensor], mask: int) -> None:
        self.shape = shape
        self.mask = mask
        with torch.device("meta"):
            wanted = {name: tuple(t.shape) for name, t in EnatModules(shape).state_dict().items()}
        # Checked before a network is built: a wrong config could ask for any amount of memory.
        require_shapes(weights, wanted)
        self.modules = EnatModules(shape).requires_grad_(False).eval()
        self.modules.load_state_dict({name: weights[name].float() for name in wanted})
        self.size = shape.vocab
        self.context = shape.context
        self.layers = shape.encoder + shape.decoder
        self.cost = float(sum(p.numel() for p in self.modules.parameters()))
        # Tokens that passed the encoder, so far: each counts once, whatever the number of passes.
        self.encoded = 0

    def new_cache(self) -> None:
        """None: a board keeps what was encoded."""

    @torch.inference_mode()
    def forward(self, queries: Sequence[EnatQuery]) -> list[EnatAnswer]:
        """Run passes; their answers in order."""
        # Queries of equal counts need no padding, which attention would have to leave out.
        together = dict[tuple[int, int, int], list[int]]()
        for i, q in enumerate(queries):
            together.setdefault((len(q.old_OW), len(q.tokens), len(q.gaps)), []).append(i)
        out = dict[int, EnatAnswer]()
        for which in together.values():
            out |= zip(which, self._alike([queries[i] for i in which]), strict=True)
        return [out[i] for i in range(len(queries))]

    def _alike(self, queries: Sequence[EnatQuery]) -> list[EnatAnswer]:
        """Queries of equal counts, as one batch."""
        net = self.modules
        old_BOW = torch.stack([q.old_OW for q in queries])
        token_BN = torch.tensor([q.tokens for q in queries], dtype=torch.long)
        place_BN = torch.tensor([q.places for q in queries], dtype=torch.long)
        gap_BM = torch.tensor([q.gaps for q in queries], dtype=torch.long)
        class_B = torch.tensor([self.mask if q.drawn is None else q.drawn for q in queries])
        condition_BW = net.condition_states(class_B, self.mask)
        new_BNW = net.entry_states(token_BN, place_BN)
        # Where nothing is new there is nothing to encode.
        if token_BN.shape[1]:
            new_BNW = net.encode_tokens(new_BNW, old_BOW, condition_BW)
            self.encoded += token_BN.numel()
        gap_BMW = net.entry_states(torch.full_like(gap_BM, self.mask), gap_BM)
        if gap_BM.shape[1]:
            gap_BMW = net.decode_gaps(gap_BMW, torch.cat([old_BOW, new_BNW], 1), condition_BW)
        # Mapped once, here: as published each later pass maps them again, which training never does.
        shown_BNW = net.shown_states(new_BNW)
        return [EnatAnswer(*parts) for parts in zip(new_BNW, shown_BNW, gap_BMW, strict=True)]

    @torch.inference_mode()
    def head_logits(self, state_RW: Tensor) -> Tensor:
        """Logits of all ids, ``[R, V]``: -inf at those that are never written."""
        # Classes and the gap stand behind what may be written.
        logits_RC = self.modules.written_logits(state_RW)
        beyond = self.shape.vocab - self.shape.written
        return pad(logits_RC, (0, beyond), value=NEG_INF)

    @torch.inference_mode()
    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """Rows of the table of tokens, ``[N, W]``, without their places."""
        return self.modules.token_embedding(torch.tensor(tokens, dtype=torch.long))

    def read_keys(
        self, cache: object, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Refuse: what is kept of tokens are states.

        Args:
            cache: A cache.
            stop: Number of entries.
            layer: Index of the layer.

        Raises:
            RequestError: Always.
        """
        raise RequestError("this method reads the model's keys: an ENAT model keeps none")
