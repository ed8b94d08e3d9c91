"""The Llama skeleton, lean: causal or bidirectional, any layers or halves of them, token trees over
forkable caches.

Families that differ from it do so in fields of families.TransformerConfig: where norms stand, which
layers turn queries, what bounds scores. Norm weights are folded into the linear layers that follow
them, q/k/v and gate/up are fused, the two halves of each rotated pair lie side by side, so that
rotary embedding is one complex product. The residual stream is float32 on every device (float64 for
tests); what weights and attention are computed in is the kernel's affair (see linear.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from polydec.base.errors import FileError, RequestError
from polydec.core.types import RowDetail
from polydec.models.formats import architectures as families
from polydec.models.formats.architectures import TransformerConfig
from polydec.models.nets import huge_pages, padded
from polydec.models.nets.gated import ActiveAdapter, GatedAdapter
from polydec.models.nets.grid_positions import Axes, grid_positions
from polydec.models.nets.kv_cache import GROWTH, KVCache
from polydec.models.nets.linear import Linear, LinearKernel, cpu_kernel, cuda_kernel
from polydec.models.nets.memory_pool import empty_pooled_tensor
from polydec.models.nets.moved_keys import rotate_cached_keys, why_not_rotatable
from polydec.models.nets.packing import (
    AttentionHeads,
    PackedAttention,
    PackedPass,
    build_packed_attention,
    group_into_passes,
    pack_queries,
)
from polydec.models.nets.press import CachePress
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, forward_in_parts

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")


@dataclass(frozen=True, slots=True)
class TransformerLayer:
    """The packed parts of one layer.

    Attributes:
        qkv: Queries, keys and values in one product.
        out: What attention gathered goes through it.
        gate_up: Gate and up of the MLP in one product; in a mixture of experts the router.
        down: The MLP's last map; None in a mixture of experts.
        experts: Gate and up, and down, of each expert; empty in a plain MLP.
        qk_norm: Weights of the norms of queries and keys, ``[heads + kv heads, head]``; None: there
            are none.
        attended: Weight of the norm of what attention adds, ``[width]``; None: there is none.
        mlped: Weight of the norm of what the MLP adds, ``[width]``; None: there is none.
        sinks: One more score for each head, ``[heads]``; None: there are none.
    """

    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear | None
    experts: Sequence[tuple[Linear, Linear]]
    qk_norm: Tensor | None
    attended: Tensor | None
    mlped: Tensor | None
    sinks: Tensor | None


_ACTS = {"silu": silu, "gelu": partial(gelu, approximate="tanh")}


def _clamped(gate: Tensor, up: Tensor, slope: float, bound: float) -> Tensor:
    # (clamp(up) + 1) * gate * sigmoid(slope * gate), as gpt-oss has it.
    gate = gate.clamp(max=bound)
    return up.clamp(-bound, bound).add_(1.0).mul_(gate * torch.sigmoid(slope * gate))


class _TransformerLoader:
    """Reads tensors in order and packs them in threads of their own."""

    def __init__(
        self, weights: Mapping[str, Tensor], device: torch.device, number: torch.dtype
    ) -> None:
        self._weights = weights
        self._device = device
        self._number = number

    def read_tensor(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        """Read a tensor and check it.

        Args:
            name: Its published name.
            shape: The shape that the config asks for; None: any.

        Returns:
            The tensor, on the network's device and in its number type.

        Raises:
            FileError: It is missing, of another shape, or has a number that is NaN or infinite.
        """
        if name not in self._weights:
            raise FileError(
                f"weights lack {name}: the checkpoint is not complete, or of another architecture"
            )
        t = self._weights[name]
        if shape is not None and tuple(t.shape) != shape:
            raise FileError(f"{name} has shape {tuple(t.shape)}: the config asks for {shape}")
        t = t.to(self._device, self._number)
        if (
            not t.sum().isfinite() and not t.isfinite().all()
        ):  # the sum alone is quick, and may overflow
            raise FileError(f"{name}: a number in it is NaN or infinite")
        return t

    def read_norm(self, name: str, width: int, plus: float) -> Tensor:
        """A norm's weights times the root of its width.

        What is normed is divided by its length here, not by the root of its mean square.

        Args:
            name: Published name of the weights.
            width: Their number.
            plus: Added to each of them, as families do that store weight - 1; else 0.

        Returns:
            The weights, ``[width]``.
        """
        w = self.read_tensor(name, (width,))
        return (w + plus if plus else w) * width**0.5

    def has_tensor(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._weights

    def read_bias(self, names: Sequence[str], sizes: Sequence[int]) -> Tensor | None:
        """Read the biases of maps that are fused.

        Args:
            names: Published names of the biases.
            sizes: Size of each.

        Returns:
            All of them, one after another, zeros for those that are missing; None where all are
            missing.
        """
        if not any(n in self._weights for n in names):
            return None
        biases = [
            self.read_tensor(n, (s,))
            if n in self._weights
            else torch.zeros(s, dtype=self._number, device=self._device)
            for n, s in zip(names, sizes)
        ]
        return torch.cat(biases)


class LlamaTransformer:
    """A `NeuralNetwork` (models/nets/query.py). Made by `build`.

    Attributes:
        kernel: Name of the linear kernel.
        dtype: What the weights are held in.
        context: The longest sequence, in positions.
        limit: Tokens of a pass; more are split over several.
        routes: Layers and experts of a mixture of experts; else None.
        account: Of a network made by `padded`, what laying passes out took; else None.
    """

    tree = rollback = True
    partial = adapts = grouped = presses = watches = moves_places = True

    def __init__(
        self,
        config: TransformerConfig,
        parts: Mapping[str, Any],
        kernel: LinearKernel,
        limit: int = 512,
    ) -> None:
        c = self.config = config
        self.kernel = kernel.name
        self.dtype = kernel.dtype
        self.limit = limit
        self.layers = c.layers
        self.context = c.context
        self.size = c.vocab
        if c.experts is None:
            self.routes = None
        else:
            self.routes = (c.layers, c.experts.count)
        self._embed = parts["embed"]
        self._embed_proj = parts["embed_proj"]
        self._layers = parts["layers"]
        self._head = parts["head"]
        self._head_tokens = parts["head_tokens"]
        self._norm_W: Tensor = parts["norm"]
        self._number = parts["number"]
        self._device = self._embed.device
        self._attention = kernel.attention
        self._takes = kernel.takes
        self._least = kernel.least
        # Rotary factors are as exact as attention is.
        if kernel.attention == torch.float64:
            self._turn_number = torch.float64
        else:
            self._turn_number = torch.float32
        self._heads = AttentionHeads(c.heads, c.kv_heads, c.head, c.cap)
        # A state's length with one more column of this size is sqrt(|x|^2 + width * eps): the
        # norm's root of mean square plus eps, times the root of the width.
        self._floor = (c.width * c.eps) ** 0.5
        self._act = _ACTS.get(c.act)
        self.cost = float(parts["cost"])
        self._turn = [torch.empty(0) for _ in c.ropes]
        self._adapters = WeakKeyDictionary[GatedAdapter, GatedAdapter]()
        self.account: padded.PaddingStats | None = None

    def padded_model(self) -> LlamaTransformer:
        """The same weights, over passes that are laid out as one padded tensor
        (models/nets/padded.py), which its `account` counts.

        Raises:
            RequestError: The network is not causal: its rows have one length anyway.
        """
        if not self.config.causal:
            raise RequestError(
                "batching lays texts out that grow at their ends: a masked-diffusion model's canvas does not"
            )
        if self.config.superlinear is not None:
            raise RequestError(
                "batching lays all keys of several texts side by side: a superlinear model searches its own"
            )
        twin = copy(self)
        twin.account = padded.PaddingStats()
        twin.presses = twin.watches = False
        return twin

    @staticmethod
    def build(
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        *,
        dtype: str = "auto",
        device: str = "cpu",
    ) -> LlamaTransformer:
        """Make a network from the dict of a Hugging Face config.json and its tensors by name.

        Beyond the published names, `lm_head.tokens` [C] with `lm_head.weight` [C, width] answers
        these ids only (others: -inf), `model.embed_tokens.proj.weight` [width, embed width] widens
        embeddings, `polydec_causal: false` lets every position see all that are staged, and with
        `polydec_block: B` all up to the end of its own block of B.

        Args:
            config: The config, with the keys of Hugging Face and those above.
            weights: The tensors by name; a lazy mapping will do.
            dtype: "auto", "float32", "bfloat16", "float16" or "float64", see linear.py. Default
                "auto".
            device: "cpu" or a CUDA device. Default "cpu".

        Returns:
            The network, with its weights packed.

        Raises:
            FileError: The architecture, activation, rope type, dtype or device is not known, a
                tensor is missing, or one has a wrong shape.
        """
        if dtype not in DTYPES:
            raise FileError(f"dtype is {dtype!r}: it must be one of {', '.join(DTYPES)}")
        if device.split(":")[0] not in ("cpu", "cuda"):
            raise FileError(f"device is {device!r}: it must be 'cpu' or 'cuda'")
        where = torch.device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise FileError(
                f"device is {device!r}: this machine has no CUDA GPU that torch can use; 'cpu' runs here"
            )
        c, weights = families.read_architecture(config, weights)
        if dtype == "float64":
            number = torch.float64
        else:
            number = torch.float32
        load = _TransformerLoader(weights, where, number)
        W = c.width
        KV = c.kv_heads
        H = c.heads
        D = c.head
        if "lm_head.weight" in weights:
            head_name = "lm_head.weight"
        else:
            head_name = "model.embed_tokens.weight"
        # A config that says that the head is not tied needs one: reading it raises the right error.
        if head_name != "lm_head.weight" and c.tied is False:
            load.read_tensor("lm_head.weight")
        if "lm_head.tokens" in weights:
            tokens = weights["lm_head.tokens"].long().to(where)
        else:
            tokens = None
        if tokens is None:
            rows = c.vocab
        else:
            rows = len(tokens)
        searching = 0 if c.superlinear is None else H
        # Of every matrix that a row goes through, for the choice of the kernel and for the cost.
        shapes = [
            s
            for i in range(c.layers)
            for s in (((H + searching + 2 * KV) * D, W), (W, H * D), *_mlp_shapes(c, i))
        ]
        shapes.append((rows, W))
        if where.type == "cuda":
            kernel = cuda_kernel(dtype)
        else:
            kernel = cpu_kernel(dtype, shapes)
        head_kernel = kernel.head or kernel
        # Files have the halves of a rotated pair head / 2 apart; here they lie side by side.
        order = _pairs(D, c.turned, where)
        # What is new afterwards is the packed weights: they go to huge pages.
        before = huge_pages.anonymous_memory_regions()
        with ThreadPoolExecutor(max(1, min(4, torch.get_num_threads()))) as pool:
            if "model.embed_tokens.weight" in weights:
                embed = weights["model.embed_tokens.weight"]
            else:
                embed = load.read_tensor("model.embed_tokens.weight")
            # Embeddings stay as they are stored: only the rows of a pass are ever widened.
            if dtype != "float64":
                embed = embed.to(where)
            else:
                embed = embed.to(where, number)
            proj = None
            if "model.embed_tokens.proj.weight" in weights:
                proj = kernel.pack(
                    load.read_tensor("model.embed_tokens.proj.weight", (W, embed.shape[1])), None
                )
            # Raises the error of a wrong shape.
            elif embed.shape[1] != W:
                load.read_tensor("model.embed_tokens.weight", (embed.shape[0], W))
            # The final norm is folded into the head. It is kept as well, for who reads normed
            # states.
            last = load.read_norm("model.norm.weight", W, c.norms.plus)
            norm = last / c.divide
            if head_name != "lm_head.weight":
                matrix = embed.to(number)
            else:
                matrix = load.read_tensor(head_name, (rows, W))
            head_bias = load.read_bias(["lm_head.bias"], [rows])
            head = pool.submit(lambda: head_kernel.pack(matrix * norm, head_bias))
            waiting = list[list[Any]]()
            layers = list[TransformerLayer]()
            for i in range(
                c.layers
            ):  # two layers at most wait unpacked: large models fill no memory twice
                waiting.append(_layer(load, i, c, order, kernel, pool))
                if len(waiting) > 2:
                    layers.append(_settle(waiting.pop(0)))
            layers += map(_settle, waiting)
            parts = {
                "embed": embed,
                "embed_proj": proj,
                "layers": layers,
                "head": head.result(),
                "head_tokens": tokens,
                "norm": last,
                "number": number,
                "cost": sum(a * b for a, b in shapes),
            }
        huge_pages.collapse_huge_pages(
            huge_pages.subtract_regions(huge_pages.anonymous_memory_regions(), before)
        )
        return LlamaTransformer(c, parts, kernel)

    def new_cache(self, press: CachePress | None = None) -> KVCache:
        """An empty cache ``[layers, 2, kv heads, slots, head]``, with queries too for a press that
        asks: ``[layers, 2 + group, ...]``.

        Raises:
            RequestError: A press was given, and not every layer sees all that stands before a row.
        """
        if press is not None:
            self._require_full_view(press.called)
        return self._empty_cache(press is not None and press.asks, press)

    def new_watched_cache(self, called: str) -> KVCache:
        """An empty cache that keeps queries beside keys and values, for who asks what layers look at.

        Args:
            called: What a message calls whoever asks.

        Returns:
            The cache, ``[layers, 2 + group, kv heads, slots, head]``.

        Raises:
            RequestError: Not every layer sees all that stands before a row.
        """
        self._require_full_view(called)
        return self._empty_cache(True, None)

    @property
    def score_cap(self) -> float | None:
        """Bound that attention scores approach by tanh; None: there is none."""
        return self._heads.cap

    def _require_full_view(self, called: str) -> None:
        """Raise RequestError where not every layer sees all that stands before a row."""
        # A press chooses among all earlier entries, and a window or a view of what follows does not
        # see them so; where keys are searched, those that are gone could be anchors.
        if any(self.config.windows) or not self.config.causal or self.config.superlinear:
            raise RequestError(
                f"cache is {called}: layers of this model see parts of the text, or what follows, and are read as "
                "they are only"
            )

    def _empty_cache(self, queries: bool, press: CachePress | None) -> KVCache:
        """An empty cache; queries: whether it keeps them beside keys and values."""
        planes = 2 + (self._heads.group if queries else 0)
        c = self.config
        return KVCache(
            empty_pooled_tensor(
                (self.layers, planes, c.kv_heads, min(GROWTH, self.context), c.head),
                self._attention,
                self._device,
            ),
            press=press,
        )

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        """Answers in order; each depends on its own query only. Many tokens are split over several
        passes."""
        if self.config.causal:
            return forward_in_parts(self._forward, queries, self.limit)
        return self._forward(queries)

    def _forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        answers: list[NetworkAnswer | None] = [None] * len(queries)
        for run, index in group_into_passes(queries, self.layers, self.limit):
            p = pack_queries(queries, index, run)
            exits = dict[int, Tensor]()
            for i, a in zip(index, self._answers(p, self._run(p, exits), exits), strict=True):
                answers[i] = a
        return [a for a in answers if a is not None]

    def _turns(self, k: int, positions: Sequence[int]) -> Tensor:
        """Factors of the k-th rotary embedding at these positions, ``[n, 1, turned / 2]``."""
        last = max(positions)
        turn = self._turn[k]
        if last >= len(turn):
            have = len(turn)
            # The table doubles, so that a growing text rarely makes it anew.
            size = max(last + 1, 2 * len(turn), min(self.context, 1024))
            if self._turn_number == torch.float64:
                number = torch.complex128
            else:
                number = torch.complex64
            more = self.config.ropes[k].factor_table(have, size).to(number)
            turn = self._turn[k] = torch.cat([turn.to(number).view(have, more.shape[1]), more]).to(
                self._device
            )
        first = positions[0]
        # Consecutive positions are a view of the table; others are gathered.
        if positions[-1] - first == len(positions) - 1 and all(
            p == i for i, p in enumerate(positions, first)
        ):
            return turn[first : last + 1, None]
        return turn[torch.tensor(positions, device=self._device), None]

    def _axes(self, p: PackedPass, spare: int) -> Axes | None:
        """Positions in time, by rows and by columns, where images of a pass have some, or lost
        vectors; spare: so many rows more repeat the last one. None: all three are one."""
        if not any(q.cache.grids for q in p.queries):
            return None
        axes: Axes = ([], [], [])
        for q, row in zip(p.queries, p.begins, strict=True):
            own = grid_positions(q.cache.grids, p.positions[row : row + len(q)])
            for axis, more in zip(axes, own, strict=True):
                axis += more
        for axis in axes:
            axis += [axis[-1]] * spare
        return axes

    def _row_turns(self, k: int, positions: Sequence[int], axes: Axes | None) -> Tensor:
        """Factors of the k-th rotary embedding of all rows of a pass, ``[n, 1, turned / 2]``."""
        if axes is None:
            return self._turns(k, positions)
        # One part: an image is one row there, and its columns are its positions.
        if not self.config.sections:
            return self._turns(k, axes[2])
        turns = [self._turns(k, axis) for axis in axes]
        # Sections take time, rows and columns in turns.
        sections = self.config.sections
        parts = [turn.split(sections, -1) for turn in turns]
        return torch.cat([parts[i % 3][i] for i in range(len(sections))], -1)

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a query may see one another, those behind them too (`mutual`)."""
        return self.config.causal and self.config.superlinear is None

    @property
    def tells_grids(self) -> bool:
        """Whether vectors of an image stand at its rows and columns."""
        return bool(self.config.sections)

    def _enter(self, p: PackedPass, x: Tensor) -> None:
        """What goes into the first layer."""
        if all(q.embed is None for q in p.queries):
            x.copy_(self._rows([t for q in p.queries for t in q.token]))
            return
        for q, row in zip(p.queries, p.begins):
            if q.token:
                x[row : row + len(q)] = self._rows([max(t, 0) for t in q.token])
            if q.embed is not None:
                # Rows of `embed` take the places of the tokens that are -1.
                x[torch.tensor([row + i for i in q.given], device=self._device)] = q.embed.to(x)

    def _rows(self, tokens: Sequence[int]) -> Tensor:
        e = self._embed[torch.tensor(tokens, device=self._device)]
        if self._embed_proj is not None:
            e = self._embed_proj(e.to(self._number))
        if self.config.embed_scale == 1.0:
            return e
        return e.to(self._number) * self.config.embed_scale

    @torch.inference_mode()
    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer, [n, width]."""
        return self._rows(tokens).to(self._number)

    @property
    def still(self) -> str:
        """Why cached keys cannot be turned to other positions; "": they can."""
        return why_not_rotatable(self.config)

    @torch.inference_mode()
    def turn_entries(self, kv: Tensor, first: int, by: int) -> Tensor:
        """Give cached entries as they would be at other positions; values stay as they are.

        Pairs are turned in float32 at least.

        Args:
            kv: Entries of consecutive positions, ``[layers, 2, kv heads, n, head]``.
            first: Position of the first entry.
            by: How many positions further on they shall stand; it may be negative.

        Returns:
            A copy of the same shape.
        """
        stood = range(first, first + kv.shape[-2])
        shall = range(first + by, first + by + kv.shape[-2])

        def sine_tables(k: int) -> tuple[Tensor, Tensor]:
            return self._turns(k, stood)[:, 0], self._turns(k, shall)[:, 0]

        return rotate_cached_keys(kv, by, self.config, False, sine_tables)

    def read_keys(
        self, cache: KVCache, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read keys and values that a cache holds.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Returns:
            Keys and values, each ``[kv heads, stop, head]``. Keys are in the published order of
            dimensions; those of entries that the layer hides are zeros.

        Raises:
            RequestError: The cache is pressed.
        """
        if cache.press is not None:
            raise RequestError(
                f"cache is {cache.press.called}: what it keeps of old text is not shown to a drafter"
            )
        which = self.layers - 1 if layer is None else layer
        keys, values = cache.layer_entries(which, stop)
        keys = keys[..., _pairs(self.config.head, self.config.turned, keys.device).argsort()]
        # What no row sees there may never have been computed: it is shown as nothing.
        if cache.hidden is not None and which >= cache.hidden.layer:
            values = values.clone()
            for first, end in cache.hidden.spans:
                keys[:, first:end] = 0
                values[:, first:end] = 0
        return keys, values

    def _run(self, p: PackedPass, exits: dict[int, Tensor]) -> Tensor:
        """Hidden states ``[rows, width + 1]`` after the last layer: the fed tokens, then what pads
        the pass to the kernel's least rows.

        The last column is constant and makes the norm's floor. `exits` takes the answered rows at
        the depths that are wanted.
        """
        c = self.config
        heads = self._heads
        dim = self.config.turned
        T = max(len(p), self._least)
        full = torch.zeros(T, c.width + 1, dtype=self._number, device=self._device)
        full[:, c.width] = self._floor
        x, h, n = full[:, : c.width], full.new_empty(T, c.width), full.new_empty(T, 1)
        self._enter(p, x[: len(p)])
        # Scratch of all layers: projections, and views of them for queries with keys, and for
        # rotated pairs as complex numbers.
        own = heads.all + 2 * heads.kv
        # Queries that search stand behind the values.
        searching = 0 if c.superlinear is None else heads.all
        qkv = full.new_empty(T, own + searching, heads.width, dtype=self._turn_number)
        flat = qkv.view(T, -1)
        qk = qkv[:, : heads.all + heads.kv]
        pairs = [
            torch.view_as_complex(part[..., :dim].unflatten(-1, (dim // 2, 2)))
            for part in (qk, qkv[:, own:])[: 2 if searching else 1]
        ]
        # Rows that only pad the pass repeat the last position; their results are cut off.
        positions = [*p.positions, *[p.positions[-1]] * (T - len(p))]
        axes = self._axes(p, T - len(p))
        turn = [self._row_turns(k, positions, axes) for k in range(len(c.ropes))]
        mixed = h.new_zeros(T, heads.all * heads.width, dtype=self._takes)
        gates, moved = self._gates(p), self._moved(p)
        sinks = [s for i in p.layers if (s := self._layers[i].sinks) is not None]
        attend: PackedAttention | padded.PaddedAttention
        if self.account is None:
            attend = build_packed_attention(
                p, qkv, mixed, heads, c.windows, c.causal, c.block, sinks or None, c.superlinear
            )
        else:
            attend = padded.build_padded_attention(
                p, qkv, mixed, heads, c.windows, sinks or None, self.account
            )
        norm = torch.linalg.vector_norm
        divide = torch.div
        # States that some query wants to see from the middle of the network.
        taps = {d for q in p.queries for d in q.want.exits}

        def enter_room(name: str | None) -> Tensor:
            if name is None:
                return h.copy_(x)
            return divide(x, norm(full, dim=-1, keepdim=True, out=n), out=h)

        def attended_rows(at: int, i: int) -> Tensor:
            """What the attention of a layer adds to the residual stream.

            Args:
                at: Index of the layer among those that run.
                i: Index of the layer in the network.

            Returns:
                ``[T, width]``; it may be scratch that the next layer overwrites.
            """
            layer = self._layers[i]
            k = c.turns[i]
            # The norm's weights are folded into the matrix; `h` is divided by its length only.
            flat.copy_(layer.qkv(enter_room(c.norms.attention)))
            for gate in gates:
                gate.add_adapted_rows(i, "qkv", h, flat)
            if layer.qk_norm is not None:
                self._norm_heads(qk, layer.qk_norm)
            if k is not None:
                for part in pairs:
                    part.mul_(turn[k])
            attend(at)
            y = self._normed(layer.out(mixed), layer.attended)
            for gate in gates:
                gate.add_adapted_rows(i, "out", mixed, y)
            return y

        ahead = dict[int, Tensor]()  # what attentions add that read together with an earlier one
        for at, i in enumerate(p.layers):
            layer = self._layers[i]
            # At the head of a group: all its attentions read the stream as it is now.
            if p.together > 1 and 0 < at < len(p.layers) - 1 and (at - 1) % p.together == 0:
                group = range(at, min(at + p.together, len(p.layers) - 1))
                ahead = {
                    p.layers[g]: attended_rows(g, p.layers[g]).clone()
                    for g in group
                    if 2 * p.layers[g] not in p.without
                }
            if 2 * i not in p.without:
                x.add_(ahead.pop(i) if i in ahead else attended_rows(at, i))
            # The MLP, unless this half is left out.
            if 2 * i + 1 not in p.without:
                enter_room(c.norms.mlp)
                down = layer.down
                gated = [(gate, i) for gate in gates]
                if down is None:
                    y = self._mix(layer, h, len(p), i, moved)
                else:
                    y = self._mlp(layer.gate_up, down, h, gated)
                x.add_(self._normed(y, layer.mlped))
            if i + 1 in taps:
                exits[i + 1] = x[torch.tensor(p.rows, dtype=torch.long, device=self._device)]
        return full

    def _mlp(
        self,
        gate_up: Linear,
        down: Linear,
        h: Tensor,
        gates: Sequence[tuple[ActiveAdapter, int]] = (),
    ) -> Tensor:
        both = gate_up(h)
        for adapted, i in gates:
            adapted.add_adapted_rows(i, "gate_up", h, both)
        gate, up = both.chunk(2, -1)
        if self._act is None:
            inner = _clamped(gate, up, *self.config.clamp)
        else:
            inner = self._act(gate).mul_(up)
        y = down(inner)
        for adapted, i in gates:
            adapted.add_adapted_rows(i, "down", inner, y)
        return y

    def _gates(self, p: PackedPass) -> list[ActiveAdapter]:
        """Which rows of a pass run under which adapters."""
        rows = dict[GatedAdapter, list[int]]()
        for q, begin in zip(p.queries, p.begins):
            for adapter, changed in q.gated:
                rows.setdefault(adapter, []).extend(begin + i for i in changed)
        return [
            ActiveAdapter(self._adapted(a), torch.tensor(numbers, device=self._device))
            for a, numbers in rows.items()
            if numbers
        ]

    def prepare_adapter(self, adapter: GatedAdapter) -> None:
        """Make the matrices of an adapter fit the packed ones, before a pass asks for them.

        Args:
            adapter: The adapter.

        Raises:
            FileError: The network is no plain Llama.
            RequestError: The adapter was made for a network of other sizes.
        """
        self._adapted(adapter)

    def _adapted(self, adapter: GatedAdapter) -> GatedAdapter:
        """An adapter whose matrices fit the packed ones: it reads rows of length 1, and queries and
        keys stand in pairs."""
        if adapter not in self._adapters:
            c = self.config
            if (
                c.experts is not None
                or c.residual != 1.0
                or c.superlinear is not None
                or c.norms.attention is None
                or c.norms.mlp is None
                or any(
                    x is not None
                    for layer in self._layers
                    for x in (layer.qk_norm, layer.attended, layer.mlped)
                )
            ):
                raise FileError(
                    "this network is no plain Llama: rows with an adapter are known for that skeleton only"
                )
            adapter.require_sizes(
                c.layers, c.width, (c.heads + 2 * c.kv_heads) * c.head, c.heads * c.head, c.inner
            )
            # The adapter follows what packing did to the weights: rotated partners side by side,
            # the attention's scale in the queries, and inputs of length 1 instead of the root of
            # the width.
            order = _pairs(c.head, c.turned, self._device)
            turned = c.heads + c.kv_heads
            scale = torch.ones(turned + c.kv_heads, 1, 1, dtype=self._number, device=self._device)
            scale[: c.heads] = c.scale

            def packed_pair(place: str, into_RI: Tensor, out_OR: Tensor) -> tuple[Tensor, Tensor]:
                """One pair of matrices, as it fits the packed ones.

                Args:
                    place: Where it works, one of `gated.PLACES`.
                    into_RI: What reads the row.
                    out_OR: What is added of that.

                Returns:
                    The fitting pair.
                """
                into = into_RI.to(self._device, self._number)
                out = out_OR.to(self._device, self._number)
                if place in ("qkv", "gate_up"):
                    into = into * c.width**0.5
                if place == "qkv":
                    heads = out.view(-1, c.head, out.shape[1])
                    out = (torch.cat([heads[:turned][:, order], heads[turned:]]) * scale).flatten(
                        0, 1
                    )
                return into, out

            self._adapters[adapter] = adapter.map_pairs(packed_pair)
        return self._adapters[adapter]

    def _moved(self, p: PackedPass) -> tuple[Tensor, Tensor] | None:
        """Which rows of a pass have their router moved, [n], and by how much [n, layers, experts]
        (ScoreRequest.routing)."""
        rows = list[int]()
        by = list[Any]()
        for q, begin in zip(p.queries, p.begins):
            if q.want.routing is not None:
                rows += [begin + r for r in q.rows]
                by += [q.want.routing] * len(q.rows)
        if not rows:
            return None
        return (
            torch.tensor(rows, device=self._device),
            torch.tensor(by, dtype=self._number, device=self._device),
        )

    def _mix(
        self,
        layer: TransformerLayer,
        h: Tensor,
        rows: int,
        i: int,
        moved: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """What the experts of these rows add, ``[T, width]``; of the rows that pad the pass
        nothing.

        A row's results are summed in the order of the experts, whoever else goes through them. i:
        the layer's index; moved: rows whose router is moved.
        """
        experts = self.config.experts
        out = torch.zeros_like(h)
        assert experts is not None
        score_RE = layer.gate_up(h)[:rows].to(self._number)
        if moved is not None:
            row_N, by_NLE = moved
            # The move is given in standard deviations of the row's own scores.
            spread_N1 = score_RE[row_N].std(-1, correction=0, keepdim=True)
            score_RE = score_RE.index_add(0, row_N, by_NLE[:, i] * spread_N1)
        # Top k of the softmax over all experts, renormalised where the family does so.
        chance, chosen = torch.softmax(score_RE, -1).topk(experts.used, -1)
        if experts.share_used:
            chance = chance / chance.sum(-1, keepdim=True)
        # One product for each expert that some row goes through.
        for e in chosen.unique().tolist():
            row, nth = (chosen == e).nonzero(as_tuple=True)
            gate_up, down = layer.experts[e]
            out.index_add_(
                0, row, self._mlp(gate_up, down, h[row]).to(out.dtype) * chance[row, nth, None]
            )
        return out

    def _norm_heads(self, qk: Tensor, weight: Tensor) -> None:
        """Norm queries and keys ``[T, heads + kv heads, head]`` in place: each head, or all queries
        and all keys."""
        c = self.config
        if c.wide_norms:
            parts = qk.split([c.heads, c.kv_heads], 1)
        else:
            parts = [qk]
        dim = (-2, -1) if c.wide_norms else -1
        for part in parts:
            if c.wide_norms:
                count = part[0].numel()
            else:
                count = c.head
            size = torch.linalg.vector_norm(part, dim=dim, keepdim=True)
            # The hypotenuse of length and sqrt(count * eps) is the root of the sum of squares plus
            # eps: no square can overflow.
            part.div_(torch.hypot(size, torch.full_like(size, (count * c.eps) ** 0.5)))
        qk.mul_(weight)

    def _normed(self, y: Tensor, weight: Tensor | None) -> Tensor:
        """What a layer adds, through its norm where there is one."""
        if weight is None:
            return y
        y = y.to(self._number)
        size = torch.linalg.vector_norm(y, dim=-1, keepdim=True)
        return y.div_(torch.hypot(size, torch.full_like(size, self._floor))).mul_(weight)

    def _answers(
        self, p: PackedPass, full: Tensor, exits: Mapping[int, Tensor]
    ) -> list[NetworkAnswer]:
        """Head and hidden states for the rows asked for, and for no others."""
        # Only rows that somebody asked for leave the network.
        asked = [len(q.rows) for q in p.queries]
        laws = [
            n if max(q.want.law, q.want.base) > RowDetail.NOTHING else 0
            for q, n in zip(p.queries, asked)
        ]
        if not any(asked):
            return [NetworkAnswer(None) for _ in asked]
        if len(p.rows) == len(p):
            full = full[: len(p)]
        else:
            full = full[torch.tensor(p.rows, dtype=torch.long, device=self._device)]
        logits: Sequence[Tensor | None] = [None] * len(asked)
        if any(laws):
            states = full
            # The head is the most expensive matrix: only rows whose law is read go through it.
            if laws != asked:
                states = torch.cat([t for t, n in zip(full.split(asked), laws) if n])
            w = self._logits(states)
            pieces = iter(w.split([n for n in laws if n]))
            logits = [next(pieces) if n else None for n in laws]
        # The last column is the norm's floor, which is no part of the state.
        hidden = full[:, :-1].split(asked)
        ends = [sum(asked[: k + 1]) for k in range(len(asked))]
        return [
            NetworkAnswer(
                w,
                h.clone() if q.want.hidden else None,
                exits={d: t[end - n : end] for d, t in exits.items() if d in q.want.exits} or None,
            )
            for q, w, h, n, end in zip(p.queries, logits, hidden, asked, ends)
        ]

    def _logits(self, full: Tensor) -> Tensor:
        w = self._head(full[:, :-1] / torch.linalg.vector_norm(full, dim=-1, keepdim=True)).to(
            self._number
        )
        if (cap := self.config.final_cap) is not None:
            w = w.div_(cap).tanh_().mul_(cap)
        if self._head_tokens is not None:
            # A head over part of the vocabulary: all other tokens are impossible.
            w = w.new_full((len(w), self.size), float("-inf")).index_copy_(1, self._head_tokens, w)
        return w

    @torch.inference_mode()
    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits of hidden states at any depth, through the final norm."""
        h = hidden_RH.to(self._device, self._number)
        return self._logits(torch.cat([h, h.new_full((len(h), 1), self._floor)], 1))

    @torch.inference_mode()
    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        """States after the final norm, ``[n, width]``."""
        h = hidden_RH.to(self._device, self._number)
        full = torch.cat([h, h.new_full((len(h), 1), self._floor)], 1)
        return h / torch.linalg.vector_norm(full, dim=-1, keepdim=True) * self._norm_W


def _settle(parts: Sequence[Any]) -> TransformerLayer:
    return TransformerLayer(*(f.result() if isinstance(f, Future) else f for f in parts))


def _pairs(head: int, dim: int, device: torch.device) -> Tensor:
    """The order of a head's dimensions that puts rotated partners side by side."""
    half = dim // 2
    rotated = torch.stack([torch.arange(half), torch.arange(half, dim)], 1).flatten()
    return torch.cat([rotated, torch.arange(dim, head)]).to(device)


def _mlp_shapes(c: TransformerConfig, i: int) -> list[tuple[int, int]]:
    """Of the matrices of a layer's MLP that a row goes through."""
    if not c.is_sparse(i):
        return [(2 * c.inner, c.width), (c.width, c.inner)]
    assert c.experts is not None
    return [(2 * c.experts.inner, c.width), (c.width, c.experts.inner)] * c.experts.used


def _layer(
    load: _TransformerLoader,
    i: int,
    c: TransformerConfig,
    order: Tensor,
    kernel: LinearKernel,
    pool: ThreadPoolExecutor,
) -> list[Any]:
    """Futures of one layer's parts, in the order of `TransformerLayer`."""
    W = c.width
    H = c.heads
    KV = c.kv_heads
    D = c.head
    name = f"model.layers.{i}."
    a = name + "self_attn."
    m = name + "mlp."

    def read_norm(which: str | None) -> Tensor | None:
        if which is None:
            return None
        return load.read_norm(f"{name}{which}.weight", W, c.norms.plus)

    def fold_norm(weight: Tensor, by: Tensor | None) -> Tensor:
        """Fold a norm's weights into the matrix that reads what it normed, in place: the matrix is
        a copy.

        Args:
            weight: The matrix, ``[out, in]``.
            by: Weights of the norm, ``[in]``; None: there is none.

        Returns:
            The same matrix.
        """
        if by is None:
            return weight
        return weight.mul_(by)

    def scaled_addition(weight: Tensor, after: str | None) -> Tensor:
        """Scale what a layer adds in its last matrix, unless a norm follows.

        Args:
            weight: The matrix or its bias.
            after: Name of the norm that follows; None: none does.

        Returns:
            The scaled one, or the same.
        """
        # Scaled once here, not in every pass; a norm behind it would undo the scale.
        if c.residual == 1.0 or after is not None:
            return weight
        return weight * c.residual

    n1, n2 = read_norm(c.norms.attention), read_norm(c.norms.mlp)
    if c.sinks:
        sinks = load.read_tensor(a + "sinks", (H,))
    else:
        sinks = None
    attended = read_norm(c.norms.attended)
    mlped = read_norm(c.norms.mlped)
    sizes = [H * D, KV * D, KV * D]
    q, k, v = (load.read_tensor(a + f"{x}_proj.weight", (s, W)) for x, s in zip("qkv", sizes))
    bias = load.read_bias([a + f"{x}_proj.bias" for x in "qkv"], sizes)
    out = load.read_tensor(a + "o_proj.weight", (W, H * D))
    qk_norm, scale = None, c.scale  # the scale of attention rides in q
    if load.has_tensor(a + "q_norm.weight"):
        counts = (H, KV) if c.wide_norms else (1, 1)
        qn, kn = (
            load.read_norm(a + f"{x}_norm.weight", n * D, c.norms.plus).view(n, D)[:, order]
            for x, n in zip("qk", counts)
        )
        # A norm takes away any scale of the matrix before it, so the attention's scale goes into
        # its weights.
        qk_norm = torch.cat([(qn * scale).expand(H, D), kn.expand(KV, D)])
        scale = 1.0

    def reorder_heads(t: Tensor, n: int) -> Tensor:
        """Reorder the dimensions of each head so that rotated partners stand side by side.

        Args:
            t: A matrix ``[n * head, in]`` or a bias ``[n * head]``.
            n: Number of heads.

        Returns:
            ``[n * head, in]``; a bias has one column.
        """
        return t.view(n, D, -1)[:, order].reshape(n * D, -1)

    searching = list[Tensor]()
    if c.superlinear is not None:
        # Its scores have a scale of their own, and no bias.
        search = load.read_tensor(a + "search_proj.weight", (H * D, W))
        searching.append(reorder_heads(search, H) * c.superlinear.search_scale)

    def pack_qkv() -> Linear:
        weight = torch.cat([reorder_heads(q, H) * scale, reorder_heads(k, KV), v, *searching])
        weight = fold_norm(weight, n1)
        b = bias
        if b is not None:
            bq, bk, bv = b.split(sizes)
            none = [bq.new_zeros(H * D) for _ in searching]
            b = torch.cat(
                [reorder_heads(bq, H)[:, 0] * scale, reorder_heads(bk, KV)[:, 0], bv, *none]
            )
        return kernel.pack(weight, b)

    def bias_of(which: str, after: str | None) -> Tensor | None:
        """The bias of a map that adds to the stream.

        Args:
            which: Name of the bias.
            after: Name of the norm that follows; None: none does.

        Returns:
            The bias, scaled as its matrix is; None: there is none.
        """
        b = load.read_bias([which], [W])
        if b is None:
            return None
        return scaled_addition(b, after)

    def pack_mlp(m: str, inner: int) -> tuple[Future[Linear], Future[Linear]]:
        """Begin to pack an MLP.

        Args:
            m: Prefix of its tensors.
            inner: Number of inner units.

        Returns:
            Futures of gate and up in one, and of down.
        """
        # Tensors are read here, one after another; packing them goes on in the pool.
        gate, up, down = (
            load.read_tensor(f"{m}{x}_proj.weight", s)
            for x, s in (("gate", (inner, W)), ("up", (inner, W)), ("down", (W, inner)))
        )
        b_down = bias_of(m + "down_proj.bias", c.norms.mlped)
        b_mlp = load.read_bias([m + "gate_proj.bias", m + "up_proj.bias"], [inner, inner])
        return (
            pool.submit(lambda: kernel.pack(fold_norm(torch.cat([gate, up]), n2), b_mlp)),
            pool.submit(lambda: kernel.pack(scaled_addition(down, c.norms.mlped), b_down)),
        )

    b_out = bias_of(a + "o_proj.bias", c.norms.attended)
    attention = [
        pool.submit(pack_qkv),
        pool.submit(lambda: kernel.pack(scaled_addition(out, c.norms.attended), b_out)),
    ]
    if not c.is_sparse(i):
        return [*attention, *pack_mlp(m, c.inner), (), qk_norm, attended, mlped, sinks]
    assert c.experts is not None
    router = fold_norm(load.read_tensor(m + "gate.weight", (c.experts.count, W)).clone(), n2)
    b_router = load.read_bias([m + "gate.bias"], [c.experts.count])
    exact = kernel.head or kernel  # a choice bears little rounding
    parts = [pack_mlp(f"{m}experts.{e}.", c.experts.inner) for e in range(c.experts.count)]
    experts = [(gate_up.result(), down.result()) for gate_up, down in parts]
    return [
        *attention,
        exact.pack(router, b_router),
        None,
        experts,
        qk_norm,
        attended,
        mlped,
        sinks,
    ]
