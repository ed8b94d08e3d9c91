"""LongSpec: a layer with a window of the last tokens, which asks the target's last-layer keys and values for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from polydec.base.errors import FileError, PolydecError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import LongSpecFields
from polydec.models.learned.state_layer import EPS, rms_normalised

KIND = artefact.ArtefactKind("longspec", "eagle", "longspec.safetensors", "eagle --kind longspec")


@dataclass(frozen=True)
class LongSpecSizes:
    """width: of the target's states; heads, kv_heads, head: of attention in its last layer, and so of both in the drafter;
    inner: of the MLP; theta: base of the rotary embedding."""

    width: int
    heads: int
    kv_heads: int
    head: int
    inner: int
    theta: float

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of each tensor. cross_attn has no keys and values of its own: the target's are those."""
        W = self.width
        q = self.heads * self.head
        kv = self.kv_heads * self.head
        return {
            "self_attn.q_proj.weight": (q, W),
            "self_attn.k_proj.weight": (kv, W),
            "self_attn.v_proj.weight": (kv, W),
            "self_attn.o_proj.weight": (W, q),
            "cross_attn.q_proj.weight": (q, W),
            "cross_attn.o_proj.weight": (W, q),
            "mlp.gate_proj.weight": (self.inner, W),
            "mlp.up_proj.weight": (self.inner, W),
            "mlp.down_proj.weight": (W, self.inner),
            "input_layernorm.weight": (W,),
            "cross_layernorm.weight": (W,),
            "post_attention_layernorm.weight": (W,),
        }


@dataclass(frozen=True, eq=False)
class LongSpec:
    """tensors: by the names of Sizes.shapes; window: how many of the last tokens attention of its own sees, the one that asks
    among them, at least 1; vocab: the target's; rates and share: see Eagle.

    Keys and values of its own depend on tokens alone: those of `window` tokens are all that is kept between rounds, however
    long the text is.
    """

    called: ClassVar[str] = "a LongSpec drafter"
    kind: ClassVar[str] = "longspec"
    made_by: ClassVar[str] = KIND.training_command

    tensors: Mapping[str, Tensor]
    sizes: LongSpecSizes
    window: int
    vocab: TokenVocabulary
    rates: Sequence[Sequence[float]]
    share: float = 0.0

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for such a target.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The states or the heads of the last layer have other sizes, or the target
                shows no keys, or not at the places of tokens.
        """
        target.vocab.require_same(self.vocab, "the target of the LongSpec drafter")
        artefact.require_width(target, self.sizes.width, "LongSpec's weights")
        if getattr(target, "moves_tokens", False):
            raise FileError(
                "LongSpec's weights read the target's last keys and values: behind a prompt with vectors they "
                "stand at other places than its tokens"
            )
        # The shape of keys is all that is read, so any token will do.
        session = target.open_session((0,))
        try:
            keys_KNH, _ = session.layer_memory()
        except PolydecError as error:
            raise FileError(
                f"LongSpec's weights read the target's last keys and values: {error}"
            ) from None
        finally:
            session.close()
        have = (keys_KNH.shape[0], keys_KNH.shape[2])
        own = (self.sizes.kv_heads, self.sizes.head)
        if have != own:
            raise FileError(
                f"LongSpec's weights read {own[0]} heads of {own[1]} numbers in the target's last layer: this "
                f"target has {have[0]} of {have[1]}"
            )

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for t in self.tensors.values()))

    @cached_property
    def network(self) -> LongSpecNetwork:
        """What the scheduler runs: see `LongSpecQuery` and `LongSpecAnswer`."""
        return LongSpecNetwork(self)


@dataclass(frozen=True, eq=False)
class LongSpecQuery:
    """embed_NW: what the target's table gives for tokens; place_N: where they stand in the text; kv: keys and values of the
    entries before them, [2, kv heads, K, head]; sees: which of these, and then of the N themselves, each may see, [N, K + N],
    bool, itself always; rows: those that are answered; memory: of the target's last layer, all of which they see."""

    embed_NW: Tensor
    place_N: Tensor
    kv: Tensor
    sees: Tensor
    rows: Sequence[int]
    memory: tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class LongSpecAnswer:
    """state_RW: guessed states of the asked rows, as they lie before the target's final norm; kv: keys and values of the
    earlier entries and of all the N, [2, kv heads, K + N, head]."""

    state_RW: Tensor
    kv: Tensor


class LongSpecNetwork:
    """In fp32; each query is computed by itself."""

    def __init__(self, trained: LongSpec) -> None:
        self._w = {n: t.detach().float() for n, t in trained.tensors.items()}
        self._s = trained.sizes
        # In double, as angles of far positions need.
        self._inverse = trained.sizes.theta ** (
            -torch.arange(0, trained.sizes.head, 2).double() / trained.sizes.head
        )
        self.cost = trained.cost

    @torch.inference_mode()
    def forward(self, queries: Sequence[LongSpecQuery]) -> list[LongSpecAnswer]:
        return [self._made(q) for q in queries]

    def _made(self, q: LongSpecQuery) -> LongSpecAnswer:
        # Rows are tokens' embeddings alone: states enter only through the target's keys and values.
        x = rms_normalised(q.embed_NW)
        rows = list(q.rows)
        n = self._norm(x, "input_layernorm.weight")
        # Keys and values of all rows are made, since rows that nobody asks for are seen later.
        new = torch.stack(
            [
                self._turned(self._heads(n, "self_attn.k_proj.weight"), q.place_N),
                self._heads(n, "self_attn.v_proj.weight"),
            ]
        )
        kv = torch.cat([q.kv, new], 2)
        # A prompt is only read into the window: nothing is guessed inside it.
        if not rows:
            return LongSpecAnswer(x[:0], kv)
        x = x[rows]
        n = n[rows]
        place_R = q.place_N[rows]
        query = self._queries("self_attn", n, place_R)
        x = x + self._out(
            "self_attn", hybrid_tree_attention(query, kv, q.kv.shape[2], q.sees[rows])
        )
        keys, values = (t.float() for t in q.memory)
        if keys.shape[1]:  # behind a prompt of one token there is nothing to ask
            query = self._queries("cross_attn", self._norm(x, "cross_layernorm.weight"), place_R)
            x = x + self._out("cross_attn", seen_of(query, keys, values, None)[0])
        n = self._norm(x, "post_attention_layernorm.weight")
        inner = silu(linear(n, self._w["mlp.gate_proj.weight"])) * linear(
            n, self._w["mlp.up_proj.weight"]
        )
        return LongSpecAnswer(x + linear(inner, self._w["mlp.down_proj.weight"]), kv)

    def _queries(self, name: str, n_RW: Tensor, place_R: Tensor) -> Tensor:
        """[kv heads, group, R, head]: those of heads that share keys stand together."""
        turned = self._turned(self._heads(n_RW, f"{name}.q_proj.weight"), place_R)
        # Grouped like this, keys need not be repeated for each head of queries.
        return turned.unflatten(0, (self._s.kv_heads, -1))

    def _out(self, name: str, mixed: Tensor) -> Tensor:
        """What attention adds, [R, W]."""
        return linear(
            mixed.flatten(0, 1).transpose(0, 1).flatten(1), self._w[f"{name}.o_proj.weight"]
        )

    def _heads(self, n_NW: Tensor, name: str) -> Tensor:
        """[heads, N, head]."""
        return linear(n_NW, self._w[name]).unflatten(-1, (-1, self._s.head)).transpose(0, 1)

    def _turned(self, t: Tensor, place_N: Tensor) -> Tensor:
        """Through the rotary embedding, [heads, N, head]."""
        angle = torch.outer(place_N.double(), self._inverse).repeat(1, 2).float()
        a, b = t.chunk(2, -1)
        return t * angle.cos() + torch.cat([-b, a], -1) * angle.sin()

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], self._w[name], EPS)


def hybrid_tree_attention(query: Tensor, kv: Tensor, past: int, sees_RS: Tensor) -> Tensor:
    """Attend over past entries and over a draft tree apart, and join both parts.

    Each part weighs by its log-sum-exp, so that the result is attention over both at once. Apart,
    only the tree needs a mask of who stands above whom. Where every row sees all that is past, that
    part has no mask.

    Source: LongSpec (Yang et al., 2025), hybrid tree attention.

    Args:
        query: Queries of the drafted rows, shape ``[kv heads, group, R, head]``.
        kv: Keys and values of all S entries, shape ``[2, kv heads, S, head]``.
        past: Number of entries before the tree, 0 or more.
        sees_RS: Which entries each row may see, shape ``[R, S]``, bool.

    Returns:
        What the rows gather, shape ``[kv heads, group, R, head]``.
    """
    # The tree is small, and its mask differs from row to row.
    own, own_weight = seen_of(query, kv[0, :, past:], kv[1, :, past:], sees_RS[:, past:])
    if not past:
        return own
    window = sees_RS[:, :past]
    # Without a mask this part is one dense product, however long the past is.
    old, old_weight = seen_of(
        query, kv[0, :, :past], kv[1, :, :past], None if bool(window.all()) else window
    )
    # The weight of a part is e to its log-sum-exp; of two parts that is a sigmoid of the
    # difference.
    share = (old_weight - own_weight).sigmoid()[..., None]
    return share * old + (1.0 - share) * own


def seen_of(
    query: Tensor, keys: Tensor, values: Tensor, sees: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attend over some entries, and tell how much they weigh.

    Args:
        query: Queries, shape ``[kv heads, group, R, head]``.
        keys: Keys, shape ``[kv heads, S, head]``.
        values: Values, shape ``[kv heads, S, head]``.
        sees: Which entries each row may see, shape ``[R, S]``, bool. None: all.

    Returns:
        What the rows gather, shape ``[kv heads, group, R, head]``, and the log-sum-exp of their
        scores, shape ``[kv heads, group, R]``. A row that sees nothing gathers 0 and weighs
        nothing.
    """
    scores = query @ keys[:, None].transpose(-1, -2) * query.shape[-1] ** -0.5
    if sees is not None:
        scores = scores.masked_fill(~sees, float("-inf"))
    weight = scores.logsumexp(-1)
    # A row that sees nothing has weight -inf, and -inf minus -inf is NaN.
    return (scores - weight[..., None]).exp().nan_to_num(0.0) @ values[:, None], weight


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[LongSpec, ...]:
    """Make random ones for tests, for several ways to cut the width into heads.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        width: Width H of the target's states, an even number.
        draft_width: Width of the draft model's states; not read.

    Returns:
        The drafters, a toy's with one head first. Ways that leave a head of odd width are left out.
    """
    return tuple(
        random_longspec(
            vocab, LongSpecSizes(width, heads, kv_heads, width // heads, 2 * width, 1e4)
        )
        for heads, kv_heads in ((1, 1), (4, 2), (6, 2))
        # A head of odd width could not be turned in pairs.
        if width % (2 * heads) == 0
    )


def random_longspec(vocab: TokenVocabulary, sizes: LongSpecSizes) -> LongSpec:
    """Make a random drafter for tests, with a window of six tokens.

    Args:
        vocab: The target's vocabulary, which the artefact is made for.
        sizes: Sizes of its layer.

    Returns:
        The drafter.
    """
    g = torch.Generator().manual_seed(14)
    tensors = {
        name: torch.randn(shape, generator=g) * 0.7 / shape[-1] ** 0.5
        if len(shape) == 2
        else torch.ones(shape)
        for name, shape in sizes.shapes.items()
    }
    return LongSpec(tensors, sizes, 6, vocab, ((0.5, 0.2), (0.4, 0.2)))


def save(path: str | Path, trained: LongSpec, about: Mapping[str, Any]) -> None:
    """Write longspec.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        trained: The drafter.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    s = trained.sizes
    artefact.save_artefact(
        path,
        KIND,
        {f"layer.{name}": t.float() for name, t in trained.tensors.items()},
        {
            **about,
            "width": s.width,
            **artefact.said_of(trained),
            "head": s.head,
            "window": trained.window,
            "layer": {"heads": s.heads, "kv_heads": s.kv_heads, "inner": s.inner, "theta": s.theta},
        },
    )


def load(path: str | Path) -> LongSpec:
    """The drafter in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    path = edge.at_home(path)
    config, t = artefact.read_artefact_files(path, KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(LongSpecFields, config, artefact.CONFIG)
        # Heads need not divide the width here: attention is shaped as the target's.
        if c.layer.heads % c.layer.kv_heads or c.head % 2:
            raise FileError(
                f"heads is {c.layer.heads}, kv_heads {c.layer.kv_heads}, head {c.head}: heads must be a multiple "
                "of kv_heads, and head even"
            )
        sizes = LongSpecSizes(
            c.width, c.layer.heads, c.layer.kv_heads, c.head, c.layer.inner, c.layer.theta
        )
        tensors = artefact.read_float_tensors(t, KIND, sizes.shapes, "layer.")
        return LongSpec(tensors, sizes, c.window, artefact.vocab_of(c), c.rates, c.share)
