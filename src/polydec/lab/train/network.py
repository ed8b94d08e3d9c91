"""A trainable Llama skeleton whose parameters carry the Hugging Face names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.base.files import replace_file_atomically
from polydec.lab.train.shape import LlamaShape
from polydec.models.formats import rows8
from polydec.models.formats.fields import require_shapes


class LlamaRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LlamaAttention(nn.Module):
    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.s = s
        kv = s.kv_heads * s.head
        self.causal = True
        self.q_proj = nn.Linear(s.width, s.width, bias=False)
        self.k_proj = nn.Linear(s.width, kv, bias=False)
        self.v_proj = nn.Linear(s.width, kv, bias=False)
        self.o_proj = nn.Linear(s.width, s.width, bias=False)

    def forward(
        self, x_BTH: Tensor, cos_TD: Tensor, sin_TD: Tensor, see_TT: Tensor | None = None
    ) -> Tensor:
        B, T, _ = x_BTH.shape
        s = self.s
        q, k, v = (
            p(x_BTH).view(B, T, -1, s.head).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = apply_rotary_embedding(q, cos_TD, sin_TD)
        k = apply_rotary_embedding(k, cos_TD, sin_TD)
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
        y = F.scaled_dot_product_attention(
            q, k, v, see_TT, is_causal=self.causal and see_TT is None
        )
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class LlamaMLP(nn.Module):
    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(s.width, s.inner, bias=False) for _ in "gu")
        self.down_proj = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MixtralExpert(nn.Module):
    """An MLP under the names that Mixtral's have: gate w1, down w2, up w3."""

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(s.width, s.inner, bias=False) for _ in "gu")
        self.w2 = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MixtralMoeBlock(nn.Module):
    """Several MLPs, of which a row goes through those that a router finds likeliest; their chances, shared out among them,
    weigh what they add. balance: of the rows read last, how far the router is from using all alike (1: it does; the number of
    experts: all rows go the same way).

    Source: Jiang et al., "Mixtral of experts" (2024); the balance: Fedus et al., "Switch transformers" (2021).
    """

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.used = s.used
        self.gate = nn.Linear(s.width, s.experts, bias=False)
        self.experts = nn.ModuleList(MixtralExpert(s) for _ in range(s.experts))
        self.balance = torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        h_NH = x.flatten(0, -2)
        chance_NE = torch.softmax(self.gate(h_NH).float(), -1)
        share_NU, expert_NU = chance_NE.topk(self.used, -1)
        share_NU = (share_NU / share_NU.sum(-1, keepdim=True)).to(h_NH.dtype)
        out_NH = torch.zeros_like(h_NH)
        went_E = chance_NE.new_zeros(len(self.experts))
        for e, expert in enumerate(self.experts):
            row, nth = (expert_NU == e).nonzero(as_tuple=True)
            went_E[e] = len(row) / (self.used * len(h_NH))
            made = expert(h_NH[row]) * share_NU[row, nth, None]
            out_NH = out_NH.index_add(0, row, made.to(out_NH.dtype))
        self.balance = len(self.experts) * (went_E * chance_NE.mean(0)).sum()
        return out_NH.view_as(x)


def load_balance_loss(network: nn.Module) -> Tensor:
    """What the mixtures of a network say of the rows that were read last, on average; 1 where there are none."""
    found = [part.balance for part in network.modules() if isinstance(part, MixtralMoeBlock)]
    if found:
        return torch.stack(found).mean()
    return torch.ones(())


class LlamaDecoderLayer(nn.Module):
    """One layer: its second half is an MLP (`mlp`), or a mixture (`block_sparse_moe`) where the shape has experts."""

    mlp: LlamaMLP
    block_sparse_moe: MixtralMoeBlock

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(s.width, s.eps)
        self.post_attention_layernorm = LlamaRMSNorm(s.width, s.eps)
        self.self_attn = LlamaAttention(s)
        if s.experts:
            self.second = "block_sparse_moe"
        else:
            self.second = "mlp"
        self.add_module(self.second, (MixtralMoeBlock if s.experts else LlamaMLP)(s))

    def forward(
        self, x: Tensor, cos_TD: Tensor, sin_TD: Tensor, see_TT: Tensor | None = None
    ) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), cos_TD, sin_TD, see_TT)
        return x + getattr(self, self.second)(self.post_attention_layernorm(x))


class LlamaBackbone(nn.Module):
    """Everything but the head. `outer`: an embedding table that belongs to somebody else (frozen, not saved), widened by
    `embed_tokens.proj` where its width is another."""

    cos: Tensor
    sin: Tensor

    def __init__(self, s: LlamaShape, outer: Tensor | None = None) -> None:
        super().__init__()
        self.s = s
        if outer is None:
            self.embed_tokens = nn.Embedding(s.vocab, s.width)
        else:
            self.embed_tokens = FrozenEmbedding(outer, s.width)
        self.layers = nn.ModuleList(LlamaDecoderLayer(s) for _ in range(s.layers))
        self.norm = LlamaRMSNorm(s.width, s.eps)
        inverse = s.theta ** (-torch.arange(0, s.head, 2).double() / s.head)
        angle = torch.outer(torch.arange(s.context).double(), inverse).repeat(1, 2)
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        return self.norm(self.states(token_BT, position_T, see_TT))

    def states(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        """What the last layer leaves, before the final norm [B, T, H]."""
        x = self.embed_tokens(token_BT)
        T = token_BT.shape[1]
        cos_TD, sin_TD = (
            t[:T] if position_T is None else t[position_T] for t in (self.cos, self.sin)
        )
        for layer in self.layers:
            x = layer(x, cos_TD, sin_TD, see_TT)
        return x


class FrozenEmbedding(nn.Module):
    weight: Tensor

    def __init__(self, table_VE: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", table_VE, persistent=False)
        if table_VE.shape[1] == width:
            self.proj = None
        else:
            self.proj = nn.Linear(table_VE.shape[1], width, bias=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        x = F.embedding(token_BT, self.weight).float()
        if self.proj is None:
            return x
        return self.proj(x)


class TrainableLlama(nn.Module):
    """logits over all tokens, or over `tokens` (int, C) only, with a head of its own.

    position_T: where the tokens stand (None: one behind the other); see_TT: whom each sees (None: all before it, or, where
    the network is bidirectional, all).
    """

    tokens: Tensor | None

    def __init__(
        self,
        s: LlamaShape,
        *,
        outer: Tensor | None = None,
        tokens: Tensor | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.s = s
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = LlamaBackbone(s, outer)
            if tokens is None:
                self.lm_head = None
            else:
                self.lm_head = nn.Linear(s.width, len(tokens), bias=False)
            for name, p in self.named_parameters():
                if p.ndim == 2:
                    deep = name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight"))
                    if "layers" in name or "proj" in name:
                        scale = p.shape[1] ** -0.5
                    else:
                        scale = 0.02
                    nn.init.normal_(p, std=scale / (2 * s.layers) ** 0.5 if deep else scale)
        self.register_buffer("tokens", tokens, persistent=False)

    def logits(self, hidden: Tensor) -> Tensor:
        if self.lm_head is None:
            table = self.model.embed_tokens.weight
        else:
            table = self.lm_head.weight
        return F.linear(hidden, table)

    def forward(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        return self.logits(self.model(token_BT, position_T, see_TT))


def from_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], context: int | None = None
) -> TrainableLlama:
    """A network with these weights, in fp32, without gradients; `context`: positions to prepare, None: the config's."""
    shape = LlamaShape.of(config, context)
    require_shapes(weights, _matrices(shape, weights))
    network = TrainableLlama(
        shape,
        tokens=None
        if "lm_head.weight" not in weights
        else torch.arange(config["vocab_size"], dtype=torch.int32),
    )
    network.load_state_dict({name: weights[name].float() for name in network.state_dict()})
    return network.requires_grad_(False).eval()


def _matrices(s: LlamaShape, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes that a network of this form asks of its files. Raises RequestError for more layers than they can hold."""
    if s.layers > len(weights):
        raise RequestError(
            f"num_hidden_layers is {s.layers}: there are {len(weights)} tensors in all"
        )
    W = s.width
    kv = s.kv_heads * s.head
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab, W)}
    for i in range(s.layers):
        at = f"model.layers.{i}."
        out |= {f"{at}self_attn.{x}_proj.weight": (W, W) for x in "qo"}
        out |= {f"{at}self_attn.{x}_proj.weight": (kv, W) for x in "kv"}
        if not s.experts:
            out |= {f"{at}mlp.{x}_proj.weight": (s.inner, W) for x in ("gate", "up")}
            out[f"{at}mlp.down_proj.weight"] = (W, s.inner)
    return out


def make_bidirectional(network: TrainableLlama) -> TrainableLlama:
    """The same network, in which every position sees all others from now on."""
    for part in network.modules():
        if isinstance(part, LlamaAttention):
            part.causal = False
    return network


def apply_rotary_embedding(x: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    a, b = x.chunk(2, dim=-1)
    return (x * cos_TD + torch.cat([-b, a], dim=-1) * sin_TD).to(x.dtype)


def save_directory(
    path: str | Path,
    network: TrainableLlama,
    config: Mapping[str, Any],
    *,
    files: Mapping[str, Any],
    dtype: torch.dtype = torch.bfloat16,
) -> None:
    """Write config.json, model.safetensors and `files` (name: JSON value, or text). Each file appears whole or not at all.
    dtype: of all weights; int8: of matrices, with a scale for each row (models/formats/rows8.py), which only Polydec reads."""
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    tensors = network.state_dict()
    if dtype == torch.int8:
        weights = rows8.quantise_rows(tensors)
    else:
        weights = {k: v.detach().to(dtype).contiguous() for k, v in tensors.items()}
    if network.tokens is not None:
        weights["lm_head.tokens"] = network.tokens.to(torch.int32)
    replace_file_atomically(
        path / "model.safetensors", lambda at: save_file(weights, at, metadata={"format": "pt"})
    )
    config = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    for name, value in {**files, "config.json": config}.items():
        if isinstance(value, str):
            text = value
        else:
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        replace_file_atomically(
            path / name, lambda at, text=text: Path(at).write_text(text, encoding="utf-8")
        )
