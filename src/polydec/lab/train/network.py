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
from polydec.models.nets.superlinear import superlinear_mixture


class LlamaRMSNorm(nn.Module):
    """Root-mean-square norm with a weight for each dimension."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """The normed rows, in the type of `x`."""
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), self.eps)


class LlamaAttention(nn.Module):
    """Attention with rotary positions; several query heads may share a key-value head."""

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.s = s
        kv = s.kv_heads * s.head
        self.causal = True
        self.q_proj = nn.Linear(s.width, s.width, bias=False)
        self.k_proj = nn.Linear(s.width, kv, bias=False)
        self.v_proj = nn.Linear(s.width, kv, bias=False)
        self.o_proj = nn.Linear(s.width, s.width, bias=False)
        if s.superlinear is not None:
            self.search_proj = nn.Linear(s.width, s.width, bias=False)

    def forward(
        self, x_BTH: Tensor, cos_TD: Tensor, sin_TD: Tensor, see_TT: Tensor | None = None
    ) -> Tensor:
        """Attend within rows.

        Args:
            x_BTH: Normed states, shape ``[B, T, H]``.
            cos_TD: Cosines of the rotary embedding at the rows' positions, shape ``[T, D]``.
            sin_TD: Sines, likewise.
            see_TT: True where a row position sees a column position, a shape that broadcasts to
                ``[B, heads, T, T]``; None: all before it and itself, or, in a bidirectional
                network, all.

        Returns:
            What attention adds to the residual stream, shape ``[B, T, H]``.

        Raises:
            RequestError: Keys are searched for, and other positions are seen than all before a row.
        """
        B, T, _ = x_BTH.shape
        s = self.s
        rule = s.superlinear
        if rule is not None and (see_TT is not None or not self.causal):
            raise RequestError(
                "superlinear attention searches all that stands before a position: it is trained on plain rows of text only"
            )
        q, k, v = (
            p(x_BTH).view(B, T, -1, s.head).transpose(1, 2)
            for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        q = apply_rotary_embedding(q, cos_TD, sin_TD)
        k = apply_rotary_embedding(k, cos_TD, sin_TD)
        # Each key head is repeated for the query heads that share it.
        k, v = (z.repeat_interleave(s.heads // s.kv_heads, dim=1) for z in (k, v))
        if rule is not None:
            search = self.search_proj(x_BTH).view(B, T, -1, s.head).transpose(1, 2)
            search = apply_rotary_embedding(search, cos_TD, sin_TD) * rule.search_scale
            y = superlinear_mixture(rule, q * s.head**-0.5, search, k, v)
        else:
            y = F.scaled_dot_product_attention(
                q, k, v, see_TT, is_causal=self.causal and see_TT is None
            )
        return self.o_proj(y.transpose(1, 2).reshape(B, T, -1))


class LlamaMLP(nn.Module):
    """The gated MLP of Llama (SwiGLU)."""

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(s.width, s.inner, bias=False) for _ in "gu")
        self.down_proj = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the MLP adds to the residual stream."""
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class MixtralExpert(nn.Module):
    """A gated MLP under Mixtral's names: gate w1, down w2, up w3."""

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Linear(s.width, s.inner, bias=False) for _ in "gu")
        self.w2 = nn.Linear(s.inner, s.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """What the expert makes of its rows."""
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class MixtralMoeBlock(nn.Module):
    """Several MLPs, of which each row goes through those that a router finds likeliest.

    The probabilities of the chosen ones are scaled to sum to 1, and weigh what they add. `balance`
    says of the rows read last how far the router is from using all alike: 1 where it does, the
    number of experts where all rows go the same way.

    Source: Jiang et al., "Mixtral of experts" (2024); the balance: Fedus et al., "Switch
    transformers" (2021).
    """

    def __init__(self, s: LlamaShape) -> None:
        super().__init__()
        self.used = s.used
        self.gate = nn.Linear(s.width, s.experts, bias=False)
        self.experts = nn.ModuleList(MixtralExpert(s) for _ in range(s.experts))
        self.balance = torch.ones(())

    def forward(self, x: Tensor) -> Tensor:
        """Send each row through its experts; sets `balance`."""
        h_NH = x.flatten(0, -2)
        # The router computes in float32, whatever the arithmetic.
        chance_NE = torch.softmax(self.gate(h_NH).float(), -1)
        share_NU, expert_NU = chance_NE.topk(self.used, -1)
        # Only the chosen experts share the weight of a row.
        share_NU = (share_NU / share_NU.sum(-1, keepdim=True)).to(h_NH.dtype)
        out_NH = torch.zeros_like(h_NH)
        went_E = chance_NE.new_zeros(len(self.experts))
        # Rows are gathered by expert, so that each expert runs once: `nth` is its rank among a
        # row's choices.
        for e, expert in enumerate(self.experts):
            row, nth = (expert_NU == e).nonzero(as_tuple=True)
            went_E[e] = len(row) / (self.used * len(h_NH))
            made = expert(h_NH[row]) * share_NU[row, nth, None]
            out_NH = out_NH.index_add(0, row, made.to(out_NH.dtype))
        # Eq. of Switch: E times the sum over experts of (share of rows) x (mean probability). Only
        # the probabilities have a gradient.
        self.balance = len(self.experts) * (went_E * chance_NE.mean(0)).sum()
        return out_NH.view_as(x)


def load_balance_loss(network: nn.Module) -> Tensor:
    """The mean `balance` of a network's mixtures over the rows read last; 1 where there are none."""
    found = [part.balance for part in network.modules() if isinstance(part, MixtralMoeBlock)]
    if found:
        return torch.stack(found).mean()
    return torch.ones(())


class LlamaDecoderLayer(nn.Module):
    """One layer of the skeleton.

    Its second half is an MLP (`mlp`), or a mixture (`block_sparse_moe`) where the shape has
    experts.
    """

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
        """Run the layer over rows.

        Args:
            x: States of the residual stream, shape ``[B, T, H]``.
            cos_TD: Cosines of the rotary embedding at the rows' positions, shape ``[T, D]``.
            sin_TD: Sines, likewise.
            see_TT: Which position sees which; see `LlamaAttention.forward`.

        Returns:
            The stream after the layer, shape ``[B, T, H]``.
        """
        x = x + self.self_attn(self.input_layernorm(x), cos_TD, sin_TD, see_TT)
        return x + getattr(self, self.second)(self.post_attention_layernorm(x))


class LlamaBackbone(nn.Module):
    """Everything except the head.

    `outer` is an embedding table that belongs to another model (frozen, not saved); where its width
    is another one, `embed_tokens.proj` maps it.
    """

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
        # Angles in double precision: at far positions float32 would lose digits of them.
        inverse = s.theta ** (-torch.arange(0, s.head, 2).double() / s.head)
        angle = torch.outer(torch.arange(s.context).double(), inverse).repeat(1, 2)
        # Tables follow from the shape, so they are not saved.
        self.register_buffer("cos", angle.cos().float(), persistent=False)
        self.register_buffer("sin", angle.sin().float(), persistent=False)

    def forward(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        """Run all layers and the final norm.

        Args:
            token_BT: Token ids, shape ``[B, T]``.
            position_T: Positions of the tokens, shape ``[T]``; None: 0, 1, ….
            see_TT: Which position sees which; see `LlamaAttention.forward`.

        Returns:
            States ready for the head, shape ``[B, T, H]``.
        """
        return self.norm(self.text_states(token_BT, position_T, see_TT))

    def text_states(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        """Run all layers, without the final norm.

        Args:
            token_BT: Token ids, shape ``[B, T]``.
            position_T: Positions of the tokens, shape ``[T]``; None: 0, 1, ….
            see_TT: Which position sees which; see `LlamaAttention.forward`.

        Returns:
            States after the last layer, shape ``[B, T, H]``.
        """
        x = self.embed_tokens(token_BT)
        T = token_BT.shape[1]
        cos_TD, sin_TD = (
            t[:T] if position_T is None else t[position_T] for t in (self.cos, self.sin)
        )
        for layer in self.layers:
            x = layer(x, cos_TD, sin_TD, see_TT)
        return x


class FrozenEmbedding(nn.Module):
    """Another model's embedding table, and a trained map to this width where it has another one."""

    weight: Tensor

    def __init__(self, table_VE: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("weight", table_VE, persistent=False)
        # Only a table of another width needs a map.
        if table_VE.shape[1] == width:
            self.proj = None
        else:
            self.proj = nn.Linear(table_VE.shape[1], width, bias=False)

    def forward(self, token_BT: Tensor) -> Tensor:
        """The input vectors of tokens, in float32."""
        x = F.embedding(token_BT, self.weight).float()
        if self.proj is None:
            return x
        return self.proj(x)


class TrainableLlama(nn.Module):
    """A Llama with a tied head over all tokens, or one of its own over `tokens` (int, C) only."""

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
        # The global generator is left as it was.
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.model = LlamaBackbone(s, outer)
            if tokens is None:
                self.lm_head = None
            else:
                self.lm_head = nn.Linear(s.width, len(tokens), bias=False)
            for name, p in self.named_parameters():
                if p.ndim == 2:
                    # Matrices that write to the residual stream begin smaller, by the root of their
                    # number.
                    deep = name.endswith(("o_proj.weight", "down_proj.weight", "w2.weight"))
                    # Matrices begin at one over the root of their inputs, embeddings at 0.02.
                    if "layers" in name or "proj" in name:
                        scale = p.shape[1] ** -0.5
                    else:
                        scale = 0.02
                    nn.init.normal_(p, std=scale / (2 * s.layers) ** 0.5 if deep else scale)
        self.register_buffer("tokens", tokens, persistent=False)

    def token_logits(self, hidden: Tensor) -> Tensor:
        """Logits of states that are ready for the head, over all tokens or over `tokens`."""
        if self.lm_head is None:
            table = self.model.embed_tokens.weight
        else:
            table = self.lm_head.weight
        return F.linear(hidden, table)

    def forward(
        self, token_BT: Tensor, position_T: Tensor | None = None, see_TT: Tensor | None = None
    ) -> Tensor:
        """Logits at all positions.

        Args:
            token_BT: Token ids, shape ``[B, T]``.
            position_T: Positions of the tokens, shape ``[T]``; None: 0, 1, ….
            see_TT: Which position sees which; see `LlamaAttention.forward`.

        Returns:
            Shape ``[B, T, V]``, or ``[B, T, C]`` with a head of its own.
        """
        return self.token_logits(self.model(token_BT, position_T, see_TT))


def from_weights(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], context: int | None = None
) -> TrainableLlama:
    """A network with given weights, in fp32, without gradients.

    Args:
        config: Fields of a model's config.json.
        weights: Tensors by their Hugging Face names.
        context: Positions to prepare; None: the config's.

    Returns:
        The network, in evaluation mode.

    Raises:
        RequestError: The config is outside the Llama skeleton, or a tensor has another shape than
            it says.
    """
    shape = LlamaShape.of_config(config, context)
    # Checked before a network is built: a wrong config could ask for any amount of memory.
    require_shapes(weights, _matrices(shape, weights))
    network = TrainableLlama(
        shape,
        # An own head over all tokens is the general case of one over some.
        tokens=None
        if "lm_head.weight" not in weights
        else torch.arange(config["vocab_size"], dtype=torch.int32),
    )
    network.load_state_dict({name: weights[name].float() for name in network.state_dict()})
    return network.requires_grad_(False).eval()


def _matrices(s: LlamaShape, weights: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    """The shapes that a network of this form asks of its files.

    Raises RequestError for more layers than the files can hold.
    """
    # Each layer has several tensors: a larger number cannot be right, and would make a long list.
    if s.layers > len(weights):
        raise RequestError(
            f"num_hidden_layers is {s.layers}: there are {len(weights)} tensors in all"
        )
    W = s.width
    kv = s.kv_heads * s.head
    out: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (s.vocab, W)}
    for i in range(s.layers):
        at = f"model.layers.{i}."
        # Experts have names of their own, which are not looked at here.
        out |= {f"{at}self_attn.{x}_proj.weight": (W, W) for x in "qo"}
        if s.superlinear is not None:
            out[f"{at}self_attn.search_proj.weight"] = (W, W)
        out |= {f"{at}self_attn.{x}_proj.weight": (kv, W) for x in "kv"}
        if not s.experts:
            out |= {f"{at}mlp.{x}_proj.weight": (s.inner, W) for x in ("gate", "up")}
            out[f"{at}mlp.down_proj.weight"] = (W, s.inner)
    return out


def make_bidirectional(network: TrainableLlama) -> TrainableLlama:
    """Let every position see all others from now on. The network is changed in place and returned."""
    for part in network.modules():
        if isinstance(part, LlamaAttention):
            part.causal = False
    return network


def apply_rotary_embedding(x: Tensor, cos_TD: Tensor, sin_TD: Tensor) -> Tensor:
    # Dimension i is paired with i + D / 2, as Hugging Face lays them out.
    """Turn queries or keys to their positions.

    Args:
        x: Queries or keys, shape ``[B, heads, T, D]``.
        cos_TD: Cosines, a shape that broadcasts to that of `x`; both halves of D are alike.
        sin_TD: Sines, likewise.

    Returns:
        The turned vectors, in the type of `x`.
    """
    a, b = x.chunk(2, dim=-1)
    return (x * cos_TD + torch.cat([-b, a], dim=-1) * sin_TD).to(x.dtype)


def save_directory(
    path: str | Path,
    network: nn.Module,
    config: Mapping[str, Any],
    *,
    files: Mapping[str, Any],
    dtype: torch.dtype = torch.bfloat16,
    beside: Mapping[str, Tensor] | None = None,
) -> None:
    """Write config.json, model.safetensors and further files.

    Each file appears complete or not at all.

    Args:
        path: Directory to write; it is made where it is missing.
        network: Gives the weights.
        config: Fields of config.json.
        files: Further files, by name: a JSON value, or text.
        dtype: Type of all weights; int8: of matrices, with a scale for each row
            (models/formats/rows8.py), which only Polydec reads. Default bfloat16.
        beside: Tensors that stand beside the weights as they are, by name. None: there are none.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    tensors = network.state_dict()
    if dtype == torch.int8:
        weights = rows8.quantise_rows(tensors)
    else:
        weights = {k: v.detach().to(dtype).contiguous() for k, v in tensors.items()}
    # A head over some tokens says which ones its rows are.
    head_tokens: Tensor | None = getattr(network, "tokens", None)
    if head_tokens is not None:
        weights["lm_head.tokens"] = head_tokens.to(torch.int32)
    weights |= beside or {}
    replace_file_atomically(
        path / "model.safetensors", lambda at: save_file(weights, at, metadata={"format": "pt"})
    )
    config = {**config, "torch_dtype": str(dtype).removeprefix("torch.")}
    for name, value in {**files, "config.json": config}.items():
        if isinstance(value, str):
            # Some files are texts already, such as a tokenizer.
            text = value
        else:
            text = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        replace_file_atomically(
            path / name, lambda at, text=text: Path(at).write_text(text, encoding="utf-8")
        )
