"""A masked-diffusion language model: the lean transformer, bidirectional, over a canvas with gaps.

Checkpoints: ours (`polydec_causal: false`, `polydec_mask`, `polydec_shifted`, `polydec_block`),
LLaDA's (LLaDA-MoE's, too), Dream's, SDAR's and Fast-dLLM v2's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.law import NEG_INF
from polydec.core.types import RowDetail, ScoreRequest, TokenVocabulary
from polydec.models.formats import edge, fields
from polydec.models.formats.picture_config import FIELD
from polydec.models.formats.tensor_files import RenamedWeights
from polydec.models.nets.kv_cache import total_cache_bytes
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, NeuralNetwork
from polydec.models.nets.scores import require_finite_logits
from polydec.models.sessions.live_references import LiveReferences
from polydec.models.sessions.soft import state_of

_ROWS = ScoreRequest()
_STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)


class MaskedDenoiser:
    """A `Denoiser` over a bidirectional network.

    Args:
        network: The network.
        vocab: The ids that may be written.
        mask: The id that stands for a gap; it is never written.
        shifted: Whether the law of a position is read one position before it, as in models that
            began as autoregressive ones (Dream). Default False.
        block: Positions of a block of a block-causal network, whose positions see all of their own
            block and of those before it; 0: everything. Default 0.
        boundary: The id that stood between a text and the gaps after it in training; None: none
            did.
        marks: So many ids after the vocabulary are the network's own, which no law writes. Default
            0.

    Raises:
        RequestError: `mask` or `boundary` lies outside the network's ids.
    """

    family: ClassVar[str] = "diffusion"
    layers = 0  # none can run alone
    live: Sequence[Any] = ()  # boards cannot be put on hold
    allowed_canvases = None  # all of them

    def __init__(
        self,
        network: NeuralNetwork,
        vocab: TokenVocabulary,
        mask: int,
        *,
        shifted: bool = False,
        block: int = 0,
        boundary: int | None = None,
        marks: int = 0,
    ) -> None:
        # Masks may lie among the network's own marks, after the vocabulary.
        rows = vocab.size + marks
        for name, mark in (("mask", mask), ("boundary", mask if boundary is None else boundary)):
            if not 0 <= mark < rows:
                raise RequestError(f"the {name} token is {mark}: it must lie in 0 to {rows - 1}")
        self.network = network
        self.vocab = vocab
        self.mask = mask
        self.shifted = shifted
        self.block = block
        self.boundary = boundary
        self._boards = LiveReferences[MaskedBoard]()

    @property
    def context(self) -> int:
        """Positions of the longest canvas."""
        return self.network.context

    @property
    def gap_token(self) -> int:
        """The id that stands for a gap."""
        return self.mask

    @property
    def nbytes(self) -> int:
        """Bytes of the caches of open boards."""
        return total_cache_bytes(b.cache for b in self._boards if b.cache is not None)

    def embed_canvas(self, canvas: Sequence[int | None]) -> Tensor:
        """What enters the first layer for each token, and for gaps."""
        return (
            self.network.embed_tokens([self.mask if x is None else x for x in canvas]).float().cpu()
        )

    def laws_of_states(self, state_RH: Tensor, rows: Sequence[int]) -> Tensor:
        """Log-weights of positions whose states are known.

        Args:
            state_RH: States after the last layer, before the final norm.
            rows: The positions; this model does not need them.

        Returns:
            Log-weights, ``[R, V]``, float64, -inf at the mask.

        Raises:
            RequestError: A number is not finite.
        """
        return self.unmasked_weights(self.network.head_logits(state_RH))

    def unmasked_weights(self, logits_RV: Tensor) -> Tensor:
        """Log-weights of the vocabulary alone, float64, with -inf at the mask.

        Raises:
            RequestError: A number is not finite.
        """
        logw_RV = logits_RV[:, : self.vocab.size].double().cpu()
        # A slice: it is empty where the mask lies after the vocabulary, and nothing need be done.
        logw_RV[:, self.mask : self.mask + 1] = NEG_INF
        require_finite_logits(logw_RV.max(-1).values.tolist())
        return logw_RV

    def open_canvas(self, length: int, prompt: int = 0) -> MaskedBoard:
        """Open a canvas.

        Args:
            length: Positions of the canvas.
            prompt: How many of the first ones are the prompt; this model does not need it. Default
                0.

        Returns:
            The session.

        Raises:
            RequestError: The canvas is longer than the model's context.
        """
        if length > self.network.context:
            raise RequestError(
                f"the canvas has {length} positions: the model's context holds {self.network.context}"
            )
        board = MaskedBoard(self)
        self.watch_board(board)
        return board

    def watch_board(self, board: MaskedBoard) -> None:
        """Count the bytes of this board's cache, too, as long as it lives."""
        self._boards.add_object(board)


class PatchCanvasModel(MaskedDenoiser):
    """The same over patches of a picture, which are vectors: it has states of gaps, which a diffusion head
    reads, and no laws of tokens."""

    family: ClassVar[str] = "patches"


class MaskedBoard:
    """A canvas under a masked-diffusion model.

    The cache holds a slot for each position that was fed; a pass writes those that it feeds. Twins
    share entries until one of them writes there.
    """

    def __init__(self, model: MaskedDenoiser) -> None:
        self._model = model
        self.cache: Any = None

    async def score_canvas(
        self, canvas: Sequence[int | None], rows: Sequence[int], feed: Sequence[int]
    ) -> Tensor:
        """Log-weights of the tokens at some positions.

        Args:
            canvas: A token id for each position; None: a gap.
            rows: The positions that are asked for, ascending. Under a shifted head position 0 has
                no law.
            feed: The positions that are computed anew, ascending; the others are attended to as the
                last pass left them.

        Returns:
            Log-weights, ``[R, V]``, float64, -inf at the mask.

        Raises:
            RequestError: The first pass does not feed every position, or a number is not finite.
        """
        model = self._model
        back = int(self._model.shifted)
        self._stage(len(canvas), feed)
        # under a shifted head the positions that speak of the rows are computed anew, too
        if back:
            fed = sorted({*feed, *(r - 1 for r in rows)})
        else:
            fed = feed
        self.cache.claim_slots(fed[0])  # it may be read by a twin
        tokens = tuple(model.mask if (x := canvas[p]) is None else x for p in fed)
        index = {p: i for i, p in enumerate(fed)}
        # One run of slots needs no list of them.
        if fed[-1] - fed[0] == len(fed) - 1:
            at = None
        else:
            at = tuple(fed)
        # Under a shifted head the law of position r stands in the row of position r - 1.
        query = NetworkQuery(
            self.cache, fed[0], tokens, [index[r - back] for r in rows], _ROWS, at=at
        )
        answer: NetworkAnswer = await ForwardQuery(model.network, query, len(tokens))
        assert answer.logits_RV is not None
        return model.unmasked_weights(answer.logits_RV)

    async def read_canvas(self, canvas: Sequence[int | None], feed: Sequence[int]) -> Tensor:
        """States after the last layer at the positions that are fed.

        Under a shifted head a position's state is that of the one before it (the first has its
        own).

        Args:
            canvas: A token id for each position, or one that stands for a vector; None: a gap.
            feed: The positions that are computed anew, ascending.

        Returns:
            States, one a position of `feed`, ``[n, H]``, float32, on the CPU.

        Raises:
            RequestError: The first pass does not feed every position.
        """
        model = self._model
        self._stage(len(canvas), feed)
        if model.shifted:
            fed = sorted({*feed, *(p - 1 for p in feed if p)})
        else:
            fed = feed
        self.cache.claim_slots(fed[0])
        known = [model.mask if (x := canvas[p]) is None else x for p in fed]
        # Some ids stand for vectors, which are fed in their place: patches of a picture.
        states = [state_of(x) for x in known]
        vectors = [state_H for state_H in states if state_H is not None]
        tokens = tuple(x if s is None else -1 for x, s in zip(known, states, strict=True))
        index = {p: i for i, p in enumerate(fed)}
        # One run of slots needs no list of them.
        if fed[-1] - fed[0] == len(fed) - 1:
            at = None
        else:
            at = tuple(fed)
        embed = torch.stack(vectors) if vectors else None
        query = NetworkQuery(
            self.cache, fed[0], tokens, range(len(fed)), _STATES, embed=embed, at=at
        )
        answer: NetworkAnswer = await ForwardQuery(model.network, query, len(tokens))
        assert answer.hidden_RH is not None
        back = int(model.shifted)
        # The row whose state says what stands at p.
        return answer.hidden_RH[[index[max(p - back, 0)] for p in feed]].float().cpu()

    def _stage(self, length: int, feed: Sequence[int]) -> None:
        """Slots for everything that is fed; those of positions that the canvas has no more are
        given up."""
        # The cache is made with the first pass: a board that is never scored holds no memory.
        if self.cache is None:
            self.cache = self._model.network.new_cache()
        fed = self.cache.length
        if length < fed:
            self.cache.truncate_entries(length)
        # A block-causal model need not have seen what follows the block that it works in.
        new = range(fed, length if not self._model.block else feed[-1] + 1)
        # A slot that no pass has written holds anything, and attention would read it.
        if not set(new) <= set(feed):
            raise RequestError(
                f"feed is {feed[0]} to {feed[-1] + 1}: the first pass feeds all {len(new)} positions that no pass "
                "fed before"
            )
        if new:
            self.cache.stage_slots(range(-1, len(new) - 1))
            self.cache.commit_path(range(len(new)))

    def fork(self) -> MaskedBoard:
        twin = MaskedBoard(self._model)
        if self.cache is None:
            twin.cache = None
        else:
            twin.cache = self.cache.fork()
        self._model.watch_board(twin)
        return twin

    def close(self) -> None:
        self.cache = None


def is_masked(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a masked-diffusion model."""
    return config.get("model_type") in _LAYOUTS or config.get("polydec_mask") is not None


def fills_patches(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a masked model of patches."""
    picture = config.get(FIELD)
    return is_masked(config) and isinstance(picture, dict) and picture.get("patch") is not None


def writable_vocab_size(config: Mapping[str, Any], rows: int) -> int:
    """How many ids a model may write.

    Args:
        config: Content of the config.json.
        rows: Rows of the model's head.

    Returns:
        All of them; of a masked-diffusion model those before its own marks (`polydec_written`).

    Raises:
        RequestError: The config names more ids than there are rows.
    """
    if is_masked(config):
        count = config.get("polydec_written")
    else:
        count = None
    if count is not None and count > rows:
        raise RequestError(f"polydec_written is {count}: the model has {rows} rows")
    if count is None:
        return rows
    return count


def read_masked_checkpoint(
    config: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Read a masked-diffusion checkpoint as one of ours: under the names of the Llama skeleton.

    Args:
        config: Content of the config.json, in any known layout.
        weights: The tensors by their published names.

    Returns:
        The config with `polydec_causal`, `polydec_mask` and `polydec_shifted`, and the tensors by
        our names.

    Raises:
        RequestError: The skeleton cannot run this layout.
    """
    # Ours needs no change; of the others names and fields are translated.
    layout = _LAYOUTS.get(config.get("model_type", ""))
    if layout is None:
        config = dict(config)
    else:
        config, weights = layout(config, weights)
    edge.validate_record(fields.MaskedFields, config, "config")
    return {**config, "polydec_causal": False}, weights


def _dream(
    c: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Dream's: Qwen2's names, shifted logits."""
    return {
        **c,
        "model_type": "qwen2",
        "use_sliding_window": False,
        "polydec_mask": c.get("mask_token_id"),
        "polydec_shifted": True,
    }, weights


def _sdar(
    c: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """SDAR's: Qwen3's names, block-causal."""
    return {
        **c,
        "model_type": "qwen3",
        "use_sliding_window": False,
        "polydec_mask": c.get("mask_token_id", 151669),
        "polydec_block": c.get("block_size", 4),
    }, weights


def _fast_dllm(
    c: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """Fast-dLLM v2's: Qwen2's names, block-causal, shifted logits."""
    return {
        **c,
        "model_type": "qwen2",
        "use_sliding_window": False,
        "polydec_mask": c.get("mask_token_id", 151665),
        "polydec_shifted": True,
        "polydec_block": c.get("bd_size", 32),
    }, weights


def _llada(
    c: Mapping[str, Any], weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], Mapping[str, Tensor]]:
    """LLaDA's: OLMo's names for a Llama block; of experts, Qwen3's."""
    if c.get("num_experts"):
        return _llada_moe(c), weights
    edge.validate_record(fields.LLaDAFields, c, "config")
    # Choices of OLMo's code that are no Llama block are refused, not ignored.
    for name, legal in (
        ("block_type", "llama"),
        ("activation_type", "silu"),
        ("layer_norm_type", "rms"),
        ("rope", True),
    ):
        if c.get(name, legal) != legal:
            raise RequestError(f"{name} is {c[name]!r}: of LLaDA's layouts {legal!r} is run")
    for name in ("alibi", "attention_layer_norm", "input_emb_norm", "scale_logits"):
        if c.get(name):
            raise RequestError(f"{name} is set: of LLaDA's layouts those without it are run")
    if c.get("block_group_size", 1) != 1:
        raise RequestError(
            f"block_group_size is {c['block_group_size']}: of LLaDA's layouts 1 is run"
        )
    heads = c["n_heads"]
    # Multi-query attention is the case of one key head.
    kv = c.get("n_kv_heads") or (1 if c.get("multi_query_attention") else heads)
    ours = {
        "model_type": "llama",
        # The table may have more rows than the vocabulary, rounded up for speed.
        "vocab_size": c.get("embedding_size") or c["vocab_size"],
        "hidden_size": c["d_model"],
        "num_hidden_layers": c["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "intermediate_size": c.get("mlp_hidden_size") or c.get("mlp_ratio", 4) * c["d_model"],
        "max_position_embeddings": c["max_sequence_length"],
        "rms_norm_eps": c.get("rms_norm_eps", 1e-5),
        "rope_theta": c.get("rope_theta", 10000.0),
        "tie_word_embeddings": bool(c.get("weight_tying")),
        "eos_token_id": c.get("eos_token_id"),
        "polydec_mask": c.get("mask_token_id"),
        "polydec_shifted": False,
    }
    return ours, RenamedWeights(weights, _llada_names(c["n_layers"]))


def _llada_moe(c: Mapping[str, Any]) -> dict[str, Any]:
    """LLaDA-MoE's: Qwen3's names, experts whose shares of the router are taken as they are. The
    published config.json names no mask."""
    edge.validate_record(fields.LLaDAMoEFields, c, "config")
    for name in ("shared_expert_intermediate_size", "moe_router_enable_expert_bias", "clip_qkv"):
        if c.get(name):
            raise RequestError(f"{name} is set: of LLaDA-MoE's layouts those without it are run")
    # Of each layer whether it has experts; all have them where it does not say.
    often = c.get("moe_layer_freq") or [1] * c["num_hidden_layers"]
    inner = c["expert_intermediate_size"]
    return {
        **c,
        "model_type": "qwen3_moe",
        "moe_intermediate_size": inner,
        "intermediate_size": c.get("dense_intermediate_size") or inner,
        "mlp_only_layers": [i for i, x in enumerate(often) if not x],
        "norm_topk_prob": False,
        "use_sliding_window": False,
        "polydec_mask": c.get("mask_token_id", 156895),
        "polydec_shifted": False,
    }


def _llada_names(layers: int) -> dict[str, str]:
    """Our name of each tensor: LLaDA's."""
    at = "model.transformer."
    # OLMo's names without their endings: of the whole network, then of each block.
    out = {"model.embed_tokens": at + "wte", "model.norm": at + "ln_f", "lm_head": at + "ff_out"}
    parts = {
        "self_attn.q_proj": "q_proj",
        "self_attn.k_proj": "k_proj",
        "self_attn.v_proj": "v_proj",
        "self_attn.o_proj": "attn_out",
        "mlp.gate_proj": "ff_proj",
        "mlp.up_proj": "up_proj",
        "mlp.down_proj": "ff_out",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ff_norm",
    }
    for i in range(layers):
        out |= {
            f"model.layers.{i}.{ours}": f"{at}blocks.{i}.{theirs}" for ours, theirs in parts.items()
        }
    return {
        f"{ours}.{kind}": f"{theirs}.{kind}"
        for ours, theirs in out.items()
        for kind in ("weight", "bias")
    }


_LAYOUTS = {"llada": _llada, "Dream": _dream, "sdar": _sdar, "Fast_dLLM_Qwen": _fast_dllm}
