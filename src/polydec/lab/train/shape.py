"""Sizes of a network of the plain Llama skeleton."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from polydec.base.errors import RequestError
from polydec.models.formats.superlinear import SuperlinearRule


@dataclass(frozen=True)
class LlamaShape:
    """The sizes of a network.

    Attributes:
        vocab: Rows of the embedding table.
        width: Numbers of a state; an even multiple of `heads`.
        layers: Number of layers.
        heads: Query heads, a multiple of `kv_heads`.
        kv_heads: Key-value heads.
        inner: Units of an MLP, or of each expert.
        context: Positions.
        theta: Base of the rotary embedding.
        eps: Epsilon of the norms.
        experts: Experts of a layer; 0: it has one MLP.
        used: Experts that each row goes through.
        superlinear: Which keys a query searches for and reads; None: it reads all before it.

    Raises:
        RequestError: The sizes do not fit together.
    """

    vocab: int
    width: int = 192
    layers: int = 5
    heads: int = 6
    kv_heads: int = 2
    inner: int = 576
    context: int = 1024
    theta: float = 10000.0
    eps: float = 1e-5
    experts: int = 0
    used: int = 2
    superlinear: SuperlinearRule | None = None

    def __post_init__(self) -> None:
        # Only the number of experts may be 0.
        for name, value in self.known_sizes.items():
            if name not in ("experts", "superlinear") and not value > 0:
                raise RequestError(f"{name} is {value}: it must be above 0")
        if self.experts and not 1 <= self.used <= self.experts:
            raise RequestError(
                f"experts is {self.experts}: it must be 0 or at least {self.used}, those that a row goes through"
            )
        # The rotary embedding turns pairs of numbers, so a head has an even size.
        if self.width % self.heads or self.width // self.heads % 2:
            raise RequestError(
                f"width is {self.width}: it must be an even multiple of heads ({self.heads})"
            )
        if self.heads % self.kv_heads:
            raise RequestError(f"kv_heads is {self.kv_heads}: it must divide heads ({self.heads})")

        if self.superlinear is not None:
            if self.experts:
                raise RequestError(
                    "superlinear attention is trained without experts: leave one out"
                )
            self.superlinear.require_coverage(self.context)

    @property
    def known_sizes(self) -> dict[str, Any]:
        """The fields by name, without those that the network does not have."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    @property
    def head(self) -> int:
        """Numbers of a head."""
        return self.width // self.heads

    @staticmethod
    def of_config(config: Mapping[str, Any], context: int | None = None) -> LlamaShape:
        """The sizes in a Hugging Face config of the plain Llama skeleton.

        Args:
            config: Fields of config.json.
            context: Positions; None: the config's.

        Returns:
            The sizes.

        Raises:
            RequestError: The config asks for more than the plain skeleton: biases, scaled
                positions, another head size.
        """
        c = config
        # Newer configs nest the rotary fields.
        rope = config.get("rope_parameters") or {}
        scaled = c.get("rope_scaling") or rope.get("rope_type", "default") != "default"
        # What the plain skeleton does not have: biases, and positions that are scaled.
        extra = [k for k in ("attention_bias", "mlp_bias") if c.get(k)] + ["rope_scaling"] * bool(
            scaled
        )
        # Fields that change the arithmetic are refused, not ignored.
        if (
            c.get("model_type") not in ("llama", "superlinear")
            or extra
            or c.get("head_dim", 0) not in (0, None, c["hidden_size"] // c["num_attention_heads"])
        ):
            raise RequestError(
                f"model_type is {c.get('model_type')!r}{' with ' + ', '.join(extra) if extra else ''}: only the "
                "plain Llama skeleton can be trained or taught from here"
            )
        return LlamaShape(
            c["vocab_size"],
            c["hidden_size"],
            c["num_hidden_layers"],
            c["num_attention_heads"],
            # Configs without key-value heads have as many as query heads.
            c.get("num_key_value_heads") or c["num_attention_heads"],
            c["intermediate_size"],
            context or c["max_position_embeddings"],
            c.get("rope_theta") or rope.get("rope_theta", 10000.0),
            c["rms_norm_eps"],
            superlinear=SuperlinearRule.of_config(c) if c["model_type"] == "superlinear" else None,
        )

    def config_content(
        self, *, bos: int | None = None, eos: int | None = None, tied: bool = True
    ) -> dict[str, Any]:
        """The content of a Hugging Face config.json.

        Args:
            bos: Id of the begin of a text; None: there is none.
            eos: Id of the end of a text; None: there is none.
            tied: Whether the head is the embedding table. Default True.

        Returns:
            Its fields.
        """
        # With experts the skeleton is that of Mixtral, which has names of its own.
        kind: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
        if self.experts:
            kind = {
                "architectures": ["MixtralForCausalLM"],
                "model_type": "mixtral",
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.used,
            }
        # No other engine knows this one, and run as a Llama it would be another model.
        if self.superlinear is not None:
            kind = {
                "architectures": ["SuperlinearForCausalLM"],
                "model_type": "superlinear",
                "superlinear": asdict(self.superlinear),
            }
        return {
            **kind,
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head,
            "intermediate_size": self.inner,
            "max_position_embeddings": self.context,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "hidden_act": "silu",
            "attention_bias": False,
            "mlp_bias": False,
            "tie_word_embeddings": tied,
            "bos_token_id": bos,
            "eos_token_id": eos,
            "torch_dtype": "float32",
        }
