"""The Llama skeleton, lean: causal or bidirectional, any layers or halves of them, token trees over forkable caches.

Norm weights are folded into the linear layers that follow them, q/k/v and gate/up are fused, the two halves of each
rotated pair lie side by side, so that rotary embedding is one complex product. The residual stream is float32 on every
device (float64 for tests); what weights and attention are computed in is the kernel's affair (see linear.py).
"""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import silu

from polydec.core.types import Reads
from polydec.models import pages
from polydec.models.cache import GROWTH, Cache
from polydec.models.fields import check_skeleton
from polydec.models.linear import Kernel, Linear, cpu_kernel, cuda_kernel
from polydec.models.packing import Heads, Packed, attention, pack, passes
from polydec.models.query import Answer, Query, bounded
from polydec.models.rope import Rope

DTYPES = ("auto", "float32", "bfloat16", "float16", "float64")
FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Config:
    """What a config.json says of the Llama skeleton. windows: of each layer its sliding window, None where it has none; block:
    of a model that is not causal, in blocks of how many positions it sees (all of its own and of those before; 0: everything).
    """
    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    eps: float
    windows: tuple[int | None, ...]
    causal: bool
    tied: bool | None
    block: int = 0

    @staticmethod
    def of(c: Mapping[str, Any]) -> Config:
        """Raises ValueError where the config is of another architecture, or lacks a field."""
        kind = c.get("model_type")
        if kind not in FAMILIES:
            raise ValueError(f"model_type is {kind!r}: this network runs {', '.join(FAMILIES)}")
        if c.get("hidden_act", "silu") not in ("silu", "swish"):
            raise ValueError(f"hidden_act is {c['hidden_act']!r}: this network has silu only")
        if c.get("quantization_config"):
            raise ValueError("quantization_config is set: this network reads plain float weights only (or a GGUF file)")
        needed = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
                  "max_position_embeddings")
        missing = [k for k in needed if c.get(k) is None]
        if missing:
            raise ValueError(f"config lacks {', '.join(missing)}")
        heads = c["num_attention_heads"]
        kv_heads = c.get("num_key_value_heads") or heads
        if heads % kv_heads:
            raise ValueError(f"num_key_value_heads is {kv_heads}: it must divide num_attention_heads, {heads}")
        causal = c.get("polydec_causal", True)
        windows = _windows(c)
        if not causal and any(windows):
            raise ValueError("sliding_window is set in a bidirectional model: only causal ones can have it")
        return Config(c["vocab_size"], c["hidden_size"], c["num_hidden_layers"], heads, kv_heads, c["intermediate_size"],
                      c.get("rms_norm_eps", 1e-6), windows, causal, c.get("tie_word_embeddings"),
                      0 if causal else c.get("polydec_block") or 0)


def _windows(c: Mapping[str, Any]) -> tuple[int | None, ...]:
    n, kind = c["num_hidden_layers"], c["model_type"]
    width = c.get("sliding_window", 4096 if kind == "mistral" else None)
    if kind == "llama" or (kind != "mistral" and not c.get("use_sliding_window")):
        width = None
    types = c.get("layer_types")
    if kind == "mistral" or types is None:
        first = 0 if kind == "mistral" else c.get("max_window_layers", 28)
        return tuple(width if i >= first else None for i in range(n))
    return tuple(width if t == "sliding_attention" else None for t in types)


@dataclass(frozen=True, slots=True)
class Layer:
    """qk_norm: weights [heads + kv heads, head] of the norms of single heads, or None."""
    qkv: Linear
    out: Linear
    gate_up: Linear
    down: Linear
    qk_norm: Tensor | None


class _Loader:
    """Reads tensors in order and packs them in threads of their own."""
    def __init__(self, weights: Mapping[str, Tensor], device: torch.device, number: torch.dtype) -> None:
        self._weights, self._device, self._number = weights, device, number

    def get(self, name: str, shape: tuple[int, ...] | None = None) -> Tensor:
        if name not in self._weights:
            raise ValueError(f"weights lack {name}: the checkpoint is not complete, or of another architecture")
        t = self._weights[name]
        if shape is not None and tuple(t.shape) != shape:
            raise ValueError(f"{name} has shape {tuple(t.shape)}: the config asks for {shape}")
        t = t.to(self._device, self._number)
        if not t.sum().isfinite() and not t.isfinite().all():        # the sum alone is quick, and may overflow
            raise ValueError(f"{name}: a number in it is NaN or infinite")
        return t

    def has(self, name: str) -> bool:
        return name in self._weights

    def bias(self, names: Sequence[str], sizes: Sequence[int]) -> Tensor | None:
        if not any(n in self._weights for n in names):
            return None
        some = [self.get(n, (s,)) if n in self._weights else torch.zeros(s, dtype=self._number, device=self._device)
                for n, s in zip(names, sizes)]
        return torch.cat(some)


class Transformer:
    """A network of models/lm.py. Made by `build`.

    kernel: name of the linear kernel; dtype: what the weights are held in; context: the longest sequence, in positions.
    """
    tree = True
    partial = True

    def __init__(self, config: Config, rope: Rope, parts: Mapping[str, Any], kernel: Kernel, limit: int = 512) -> None:
        c = self.config = config
        self.kernel, self.dtype, self.limit = kernel.name, kernel.dtype, limit
        self.layers, self.context, self.size = c.layers, rope.context, c.vocab
        self._rope, self._head_dim = rope, parts["head_dim"]
        self._embed, self._embed_proj = parts["embed"], parts["embed_proj"]
        self._layers, self._head, self._head_tokens = parts["layers"], parts["head"], parts["head_tokens"]
        self._number, self._device = parts["number"], self._embed.device
        self._attention, self._takes, self._least = kernel.attention, kernel.takes, kernel.least
        self._turn_number = torch.float64 if kernel.attention == torch.float64 else torch.float32
        self._heads = Heads(c.heads, c.kv_heads, parts["head_dim"])
        self._floor, self._head_floor = (c.width * c.eps) ** 0.5, (self._head_dim * c.eps) ** 0.5
        self.cost = float(parts["cost"])
        self._turn = torch.empty(0)

    @staticmethod
    def build(config: Mapping[str, Any], weights: Mapping[str, Tensor], *, dtype: str = "auto",
              device: str = "cpu") -> Transformer:
        """A network from the dict of a Hugging Face config.json and its tensors by name (a lazy mapping will do).

        dtype: "auto" | "float32" | "bfloat16" | "float16" | "float64", see linear.py. Beyond the published names,
        `lm_head.tokens` [C] with `lm_head.weight` [C, width] answers these ids only (others: -inf),
        `model.embed_tokens.proj.weight` [width, embed width] widens embeddings, `polydec_causal: false` lets every
        position see all that are staged, and with `polydec_block: B` all up to the end of its own block of B. Raises
        ValueError for an architecture, activation, rope type, dtype or device that it does not know, and for missing tensors or
        wrong shapes.
        """
        if dtype not in DTYPES:
            raise ValueError(f"dtype is {dtype!r}: it must be one of {', '.join(DTYPES)}")
        if device.split(":")[0] not in ("cpu", "cuda"):
            raise ValueError(f"device is {device!r}: it must be 'cpu' or 'cuda'")
        where = torch.device(device)
        if where.type == "cuda" and not torch.cuda.is_available():
            raise ValueError(f"device is {device!r}: this machine has no CUDA GPU that torch can use; 'cpu' runs here")
        if config.get("model_type") in FAMILIES:
            check_skeleton(config, weights)
        c = Config.of(config)
        number = torch.float64 if dtype == "float64" else torch.float32
        load = _Loader(weights, where, number)
        W, KV, H, inner = c.width, c.kv_heads, c.heads, c.inner
        q_rows = load.get("model.layers.0.self_attn.q_proj.weight").shape[0]
        D = int(config.get("head_dim") or q_rows // H)
        rope = Rope.of(config, D)
        head_name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
        if head_name != "lm_head.weight" and c.tied is False:
            load.get("lm_head.weight")
        tokens = weights["lm_head.tokens"].long().to(where) if "lm_head.tokens" in weights else None
        rows = c.vocab if tokens is None else len(tokens)
        shapes = [s for _ in range(c.layers) for s in (((H + 2 * KV) * D, W), (W, H * D), (2 * inner, W), (W, inner))]
        shapes.append((rows, W))
        kernel = cuda_kernel(dtype) if where.type == "cuda" else cpu_kernel(dtype, shapes)
        head_kernel = kernel.head or kernel
        order, before = _pairs(D, rope.dim, where), pages.regions()
        with ThreadPoolExecutor(max(1, min(4, torch.get_num_threads()))) as pool:
            embed = weights["model.embed_tokens.weight"] if "model.embed_tokens.weight" in weights else load.get(
                "model.embed_tokens.weight")
            embed = embed.to(where) if dtype != "float64" else embed.to(where, number)
            proj = None
            if "model.embed_tokens.proj.weight" in weights:
                proj = kernel.pack(load.get("model.embed_tokens.proj.weight", (W, embed.shape[1])), None)
            elif embed.shape[1] != W:
                load.get("model.embed_tokens.weight", (embed.shape[0], W))
            norm = load.get("model.norm.weight", (W,)) * W ** 0.5
            matrix = embed.to(number) if head_name != "lm_head.weight" else load.get(head_name, (rows, W))
            head_bias = load.bias(["lm_head.bias"], [rows])
            head = pool.submit(lambda: head_kernel.pack(matrix * norm, head_bias))
            waiting, layers = list[list[Any]](), list[Layer]()
            for i in range(c.layers):             # two layers at most wait unpacked: large models fill no memory twice
                waiting.append(_layer(load, f"model.layers.{i}.", c, D, order, kernel, pool))
                if len(waiting) > 2:
                    layers.append(_settle(waiting.pop(0)))
            layers += map(_settle, waiting)
            parts = {
                "head_dim": D, "embed": embed, "embed_proj": proj, "layers": layers, "head": head.result(),
                "head_tokens": tokens, "number": number, "cost": sum(a * b for a, b in shapes)}
        pages.collapse(pages.without(pages.regions(), before))
        return Transformer(c, rope, parts, kernel)

    def new_cache(self) -> Cache:
        """An empty cache [layers, 2, kv heads, slots, head]."""
        return Cache(pages.advise(torch.empty(self.layers, 2, self.config.kv_heads, min(GROWTH, self.context), self._head_dim,
                                              dtype=self._attention, device=self._device)))

    @torch.inference_mode()
    def forward(self, queries: Sequence[Query]) -> Sequence[Answer]:
        """Answers in order; each depends on its own query only. Many tokens are split over several passes."""
        return bounded(self._forward, queries, self.limit) if self.config.causal else self._forward(queries)

    def _forward(self, queries: Sequence[Query]) -> list[Answer]:
        answers: list[Answer | None] = [None] * len(queries)
        for run, index in passes(queries, self.layers, self.limit):
            p, exits = pack(queries, index, run), dict[int, Tensor]()
            for i, a in zip(index, self._answers(p, self._run(p, exits), exits), strict=True):
                answers[i] = a
        return [a for a in answers if a is not None]

    def _turns(self, positions: Sequence[int]) -> Tensor:
        last = max(positions)
        if last >= len(self._turn):
            have, size = len(self._turn), max(last + 1, 2 * len(self._turn), min(self.context, 1024))
            turn = self._rope.table(have, size).to(torch.complex128 if self._turn_number == torch.float64 else torch.complex64)
            self._turn = torch.cat([self._turn.to(turn.dtype).view(have, turn.shape[1]), turn]).to(self._device)
        first = positions[0]
        if positions[-1] - first == len(positions) - 1 and all(p == i for i, p in enumerate(positions, first)):
            return self._turn[first:last + 1, None]
        return self._turn[torch.tensor(positions, device=self._device), None]

    def _enter(self, p: Packed, x: Tensor) -> None:
        """What goes into the first layer."""
        if all(q.embed is None for q in p.queries):
            x.copy_(self._rows([t for q in p.queries for t in q.token]))
            return
        for q, row in zip(p.queries, p.begins):
            if q.token:
                x[row:row + len(q)] = self._rows([max(t, 0) for t in q.token])
            if q.embed is not None:
                x[torch.tensor([row + i for i in q.given], device=self._device)] = q.embed.to(x)

    def _rows(self, tokens: Sequence[int]) -> Tensor:
        e = self._embed[torch.tensor(tokens, device=self._device)]
        return e if self._embed_proj is None else self._embed_proj(e.to(self._number))

    @torch.inference_mode()
    def embed(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer, [n, width]."""
        return self._rows(tokens).to(self._number)

    def _run(self, p: Packed, exits: dict[int, Tensor]) -> Tensor:
        """Hidden states [rows, width + 1] after the last layer: the fed tokens, then what pads the pass to the kernel's
        least rows. The last column is constant and makes the norm's floor. `exits` takes the answered rows at the
        depths that are wanted."""
        c, heads, inner, dim, T = self.config, self._heads, self.config.inner, self._rope.dim, max(len(p), self._least)
        full = torch.zeros(T, c.width + 1, dtype=self._number, device=self._device)
        full[:, c.width] = self._floor
        x, h, n = full[:, :c.width], full.new_empty(T, c.width), full.new_empty(T, 1)
        self._enter(p, x[:len(p)])
        qkv = full.new_empty(T, heads.all + 2 * heads.kv, heads.width, dtype=self._turn_number)
        flat, qk = qkv.view(T, -1), qkv[:, :heads.all + heads.kv]
        pairs = torch.view_as_complex(qk[..., :dim].unflatten(-1, (dim // 2, 2)))
        turn = self._turns([*p.positions, *[p.positions[-1]] * (T - len(p))])
        mixed = h.new_zeros(T, heads.all * heads.width, dtype=self._takes)
        attend = attention(p, qkv, mixed, heads, c.windows, c.causal, c.block)
        norm, divide = torch.linalg.vector_norm, torch.div
        taps = {d for q in p.queries for d in q.want.exits}
        for at, i in enumerate(p.layers):
            layer = self._layers[i]
            if 2 * i not in p.without:
                flat.copy_(layer.qkv(divide(x, norm(full, dim=-1, keepdim=True, out=n), out=h)))
                if layer.qk_norm is not None:
                    size = norm(qk, dim=-1, keepdim=True)
                    qk.div_(torch.hypot(size, torch.full_like(size, self._head_floor))).mul_(layer.qk_norm)
                pairs.mul_(turn)
                attend(at)
                x.add_(layer.out(mixed))
            if 2 * i + 1 not in p.without:
                gate, up = layer.gate_up(divide(x, norm(full, dim=-1, keepdim=True, out=n), out=h)).split(inner, -1)
                x.add_(layer.down(silu(gate).mul_(up)))
            if i + 1 in taps:
                exits[i + 1] = x[torch.tensor(p.rows, device=self._device)]
        return full

    def _answers(self, p: Packed, full: Tensor, exits: Mapping[int, Tensor]) -> list[Answer]:
        """Head and hidden states for the rows asked for, and for none besides."""
        asked = [len(q.rows) for q in p.queries]
        laws = [n if max(q.want.law, q.want.base) > Reads.NOTHING else 0 for q, n in zip(p.queries, asked)]
        if not any(asked):
            return [Answer(None) for _ in asked]
        full = full[:len(p)] if len(p.rows) == len(p) else full[torch.tensor(p.rows, device=self._device)]
        logits: Sequence[Tensor | None] = [None] * len(asked)
        if any(laws):
            some = full
            if laws != asked:
                some = torch.cat([t for t, n in zip(full.split(asked), laws) if n])
            w = self._logits(some)
            pieces = iter(w.split([n for n in laws if n]))
            logits = [next(pieces) if n else None for n in laws]
        hidden = full[:, :-1].split(asked)
        ends = [sum(asked[:k + 1]) for k in range(len(asked))]
        return [Answer(w, h.clone() if q.want.hidden else None, exits={
            d: t[end - n:end] for d, t in exits.items() if d in q.want.exits} or None)
            for q, w, h, n, end in zip(p.queries, logits, hidden, asked, ends)]

    def _logits(self, full: Tensor) -> Tensor:
        w = self._head(full[:, :-1] / torch.linalg.vector_norm(full, dim=-1, keepdim=True)).to(self._number)
        if self._head_tokens is not None:
            w = w.new_full((len(w), self.size), float("-inf")).index_copy_(1, self._head_tokens, w)
        return w

    @torch.inference_mode()
    def head(self, hidden_RH: Tensor) -> Tensor:
        """Logits of hidden states at any depth, through the final norm."""
        h = hidden_RH.to(self._device, self._number)
        return self._logits(torch.cat([h, h.new_full((len(h), 1), self._floor)], 1))


def _settle(parts: Sequence[Any]) -> Layer:
    return Layer(*(f.result() if isinstance(f, Future) else f for f in parts))


def _pairs(head: int, dim: int, device: torch.device) -> Tensor:
    """The order of a head's dimensions that puts rotated partners side by side."""
    half = dim // 2
    rotated = torch.stack([torch.arange(half), torch.arange(half, dim)], 1).flatten()
    return torch.cat([rotated, torch.arange(dim, head)]).to(device)


def _layer(load: _Loader, name: str, c: Config, D: int, order: Tensor, kernel: Kernel, pool: ThreadPoolExecutor) -> list[Any]:
    """Futures of one layer's parts, in the order of `Layer`."""
    W, H, KV, inner, a, m = c.width, c.heads, c.kv_heads, c.inner, name + "self_attn.", name + "mlp."
    n1, n2 = (load.get(name + k, (W,)) * W ** 0.5 for k in ("input_layernorm.weight", "post_attention_layernorm.weight"))
    sizes = [H * D, KV * D, KV * D]
    q, k, v = (load.get(a + f"{x}_proj.weight", (s, W)) for x, s in zip("qkv", sizes))
    bias = load.bias([a + f"{x}_proj.bias" for x in "qkv"], sizes)
    out, gate, up, down = (load.get(n, s) for n, s in (
        (a + "o_proj.weight", (W, H * D)), (m + "gate_proj.weight", (inner, W)), (m + "up_proj.weight", (inner, W)),
        (m + "down_proj.weight", (W, inner))))
    qk_norm, scale = None, D ** -0.5              # the scale of attention rides in q
    if load.has(a + "q_norm.weight"):
        qn, kn = (load.get(a + f"{x}_norm.weight", (D,))[order] * D ** 0.5 for x in "qk")
        qk_norm, scale = torch.cat([(qn * scale).expand(H, D), kn.expand(KV, D)]), 1.0

    def heads(t: Tensor, n: int) -> Tensor:
        return t.view(n, D, -1)[:, order].reshape(n * D, -1)

    def qkv() -> Linear:
        weight = torch.cat([heads(q, H) * scale, heads(k, KV), v]).mul_(n1)
        b = bias
        if b is not None:
            bq, bk, bv = b.split(sizes)
            b = torch.cat([heads(bq, H)[:, 0] * scale, heads(bk, KV)[:, 0], bv])
        return kernel.pack(weight, b)
    b_out, b_down = load.bias([a + "o_proj.bias"], [W]), load.bias([m + "down_proj.bias"], [W])
    b_mlp = load.bias([m + "gate_proj.bias", m + "up_proj.bias"], [inner, inner])
    return [pool.submit(qkv), pool.submit(lambda: kernel.pack(out, b_out)),
            pool.submit(lambda: kernel.pack(torch.cat([gate, up]).mul_(n2), b_mlp)),
            pool.submit(lambda: kernel.pack(down, b_down)), qk_norm]
