"""EAGLE-3 in the layout in which it is published, and which vLLM and SGLang load: reading and writing it.

Where it differs from learned/eagle3.py: states of the target enter as they are, the layer has a norm for the token and one for
the state, and its other norms go over the state alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from polydec.base.errors import FileError
from polydec.base.files import replace_file_atomically as replace_file
from polydec.core.protocols import Target
from polydec.core.types import RowDetail, TokenVocabulary
from polydec.models.formats import edge, fields, tensor_files
from polydec.models.formats.rope import RotaryEmbedding
from polydec.models.learned import artefact
from polydec.models.learned.artefact_fields import PublishedFields
from polydec.models.learned.kinds.eagle3 import Eagle3Model
from polydec.models.learned.state_layer import DraftVocabularyHead, state_layer_shapes
from polydec.models.nets.kv_cache import KVCache
from polydec.models.nets.masks import staged_entry_depths, tree_attention_mask
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, forward_in_parts

NAMES = ("LlamaForCausalLMEagle3", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3Draft")
"""What the architecture is called in configs."""
OTHERS = {
    "MedusaForCausalLM": "Medusa with its target in one file",
    "Eagle3Speculator": "EAGLE-3 in the form of the speculators library",
}
"""Published drafters of other kinds, which are not read."""
RATES = ((0.7, 0.1), (0.7, 0.1), (0.7, 0.1))
"""How often a draft is right, which the published files do not say: a guess that no published method reads."""
LIMIT = 256
"""Tokens of one query at most: so many rows of a mask."""


@dataclass(frozen=True, eq=False)
class PublishedLayer:
    """tensors: by the names of a Llama's layer; about: the fields of the config. EAGLE-3's has `hidden_norm.weight` and reads a
    token's embedding and a state, 2 H numbers a position; EAGLE-1's has no norm before attention and reads H."""

    tensors: Mapping[str, Tensor]
    about: PublishedFields

    @property
    def width(self) -> int:
        """H."""
        return self.about.hidden_size

    @property
    def cost(self) -> float:
        return float(sum(t.numel() for t in self.tensors.values()))

    def layer_network(
        self, vocab: int = 1, own: DraftVocabularyHead | None = None
    ) -> PublishedNetwork:
        """Make the network that runs the layer in fp32, fed by `NetworkQuery.embed`.

        Args:
            vocab: Tokens V of the target's vocabulary, the width of the laws. Default 1.
            own: A head of the drafter's own. Default None: the network gives states alone.

        Returns:
            A network whose states are H wide; it gives laws where there is a head.
        """
        return PublishedNetwork(self, vocab, own)


class PublishedNetwork:
    """One layer and its head, as a network of models/nets/query.py; each query is computed by itself."""

    tree = rollback = True
    partial = False
    layers = 1

    def __init__(self, layer: PublishedLayer, vocab: int, own: DraftVocabularyHead | None) -> None:
        c = layer.about
        self._w = {name: t.float() for name, t in layer.tensors.items()}
        self._c = c
        self._own = own
        self._vocab = vocab
        self._head = c.head
        # Published configs may scale the rotary embedding as their target does.
        self._rope = RotaryEmbedding.of_config(
            {
                **c.model_dump(exclude_none=True),
                "max_position_embeddings": c.max_position_embeddings,
            },
            c.head,
        )
        # The table of turns grows with the text; most texts are short.
        self._turn = torch.empty(0, c.head // 2)
        # The layer has no bound of its own: the target's context ends first.
        self.context = 1 << 20
        self.cost = layer.cost + (0 if own is None else own.head_CH.numel())

    def new_cache(self) -> KVCache:
        return KVCache(torch.empty(2, self._c.kv_heads, 0, self._head))

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        return forward_in_parts(lambda part: [self._answer(q) for q in part], queries, LIMIT)

    def _answer(self, q: NetworkQuery) -> NetworkAnswer:
        assert q.embed is not None, "it is fed by rows"
        c = self._c
        w = self._w
        cache = q.cache
        n = len(q)
        first = q.first
        stop = q.first + n
        # Heads of queries, keys and values come in one tensor, in this order.
        new, stream_MH = self._project(q.embed.float(), self._positions(q))
        heads = c.num_attention_heads
        at = first - cache.start
        # Storage begins at the cache's start: what lies before that belongs to caches that share
        # it.
        cache.kv[..., at : at + n, :] = torch.stack(
            [new[heads : heads + c.kv_heads], new[heads + c.kv_heads :]]
        )
        k, v = (
            t[:, :stop].repeat_interleave(heads // c.kv_heads, 0)
            for t in cache.all_entries().unbind(0)
        )
        # Entries before the first new one are seen by all rows; the mask decides on the rest.
        mask = torch.zeros(n, stop)
        mask[:, min(first, cache.length) :] = tree_attention_mask(
            first, stop, cache.length, cache.parent, torch.float32, mask.device
        )
        mixed = scaled_dot_product_attention(new[:heads], k, v, mask).transpose(0, 1).flatten(1)
        # What goes on is the state alone: the token was read by attention only.
        x = stream_MH + linear(mixed, w["self_attn.o_proj.weight"])
        h = self._norm(x, w["post_attention_layernorm.weight"])
        inner = silu(linear(h, w["mlp.gate_proj.weight"])) * linear(h, w["mlp.up_proj.weight"])
        out = (x + linear(inner, w["mlp.down_proj.weight"]))[list(q.rows)]
        # The head is large, so it runs only where somebody asks for laws.
        laws = self._own is not None and max(q.want.law, q.want.base) > RowDetail.NOTHING
        return NetworkAnswer(
            self.head_logits(out) if laws else None, out if q.want.hidden else None
        )

    def _project(self, row_MS: Tensor, position_M: Tensor) -> tuple[Tensor, Tensor]:
        """Queries, keys and values [heads + 2 kv heads, M, head], the former turned; and what goes on beside attention."""
        w = self._w
        half = self._head // 2
        both = stream_MH = row_MS
        # EAGLE-1 lacks this norm, and so reads one row of H numbers as it is.
        if "hidden_norm.weight" in w:
            token_MH, state_MH = row_MS.chunk(2, -1)
            normed = self._norm(state_MH, w["hidden_norm.weight"])
            both = torch.cat([self._norm(token_MH, w["input_layernorm.weight"]), normed], -1)
            # Two trainers differ in what they add to the stream; the config tells which one it was.
            if self._c.norm_before_residual:
                stream_MH = normed
            else:
                stream_MH = state_MH
        made = torch.cat([linear(both, w[f"self_attn.{x}_proj.weight"]) for x in "qkv"], -1)
        made = made.unflatten(-1, (-1, self._head)).transpose(0, 1)
        # Queries and keys turn; values carry no position.
        turns = made[: -self._c.kv_heads]
        # A rotation of a pair is a product of complex numbers.
        turned = torch.complex(turns[..., :half], turns[..., half:]) * self._turns(position_M)
        return torch.cat(
            [torch.cat([turned.real, turned.imag], -1), made[-self._c.kv_heads :]]
        ), stream_MH

    def _positions(self, q: NetworkQuery) -> Tensor:
        # Nodes of one level of the tree stand at one position of the text.
        deep = staged_entry_depths(q.cache.parent)
        return torch.tensor(
            [
                s if s < q.cache.length else q.cache.length + deep[s - q.cache.length]
                for s in q.slots
            ]
        )

    def _turns(self, position_M: Tensor) -> Tensor:
        """Factors of the rotary embedding at these positions."""
        if (need := int(position_M.max()) + 1) > len(self._turn):
            # Twice as long each time, so that the table is rarely made anew.
            self._turn = self._rope.factor_table(0, max(need, 2 * len(self._turn), 256)).to(
                torch.complex64
            )
        return self._turn[position_M]

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, x.shape[-1:], weight, self._c.rms_norm_eps)

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Laws of states that left the layer: -inf where its head knows no token."""
        if self._own is None:
            raise FileError(
                "a published EAGLE-1 layer has no head of its own: it uses the target's"
            )
        logits = linear(self._norm(hidden_RH, self._own.norm_H.float()), self._own.head_CH.float())
        # The head knows some tokens of the vocabulary; others get no probability at all.
        return logits.new_full((len(logits), self._vocab), float("-inf")).index_copy_(
            1, self._own.token_C, logits
        )

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        raise FileError("a published EAGLE layer's head norms by itself")

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        raise FileError(
            "a published EAGLE layer has no table of its own: it reads the target's embeddings"
        )

    def read_keys(
        self, cache: KVCache, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Refuse: nothing that drafts for a published layer reads its keys.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer.

        Raises:
            FileError: Always.
        """
        raise FileError("a published EAGLE-3 layer shows no keys: nothing drafts for it")


@dataclass(frozen=True, eq=False)
class UnboundEagle3:
    """A published EAGLE-3 that has been read. Which layers of the target it reads may only follow from the target's number of
    layers (`bound`). table: an embedding table of its own, which must be the target's."""

    kind: ClassVar[str] = Eagle3Model.kind

    eagle: Eagle3Model
    table: Tensor | None

    def bound_drafter(self, target: Target) -> Eagle3Model:
        """What drafts for this target. Raises FileError where it does not fit."""
        if self.eagle.depths:
            eagle = self.eagle
        else:
            eagle = replace(self.eagle, depths=default_eagle3_depths(target.layers))
        # Only now is the number of layers known, which the width of the joined states depends on.
        if len(eagle.depths) * eagle.layer.width != eagle.fuse_HD.shape[1]:
            raise FileError(
                f"EAGLE-3's fc.weight has {eagle.fuse_HD.shape[1]} columns: it reads the states of "
                f"{len(eagle.depths)} layers of width {eagle.layer.width}"
            )
        eagle.check_fit(target, None)
        require_table(self.table, target, "EAGLE-3")
        return eagle


def require_table(table: Tensor | None, target: Target, called: str) -> None:
    """Check that an embedding table which weights bring is the target's.

    Args:
        table: The table ``[V, H]``; None: the weights bring none, and nothing is checked.
        target: The model that the weights are to draft for.
        called: Name of the drafter, as the sentence begins.

    Raises:
        FileError: The shapes differ, or a number differs by more than 0.001 beside torch's relative
            tolerance.
    """
    if table is None:
        return
    session = target.open_session((0,))
    try:
        # The whole table is compared: a drafter on other embeddings would draft nonsense silently.
        own = session.embed_tokens(range(target.vocab.size))
    finally:
        session.close()
    if own.shape != table.shape or not torch.allclose(own.float(), table.float(), atol=1e-3):
        raise FileError(
            f"{called}'s weights bring an embedding table that is not this target's: only those that share "
            "the target's table are read"
        )


def default_eagle3_depths(layers: int) -> tuple[int, ...]:
    """After which layers of a target the states are read where nobody says it: a low, a middle and a high one. Raises
    FileError where it has too few."""
    if layers < 7:
        raise FileError(
            "EAGLE-3's config.json names no eagle_aux_hidden_state_layer_ids, and this target shows "
            f"{layers or 'none'} of its layers, too few for the usual ones: name three there"
        )
    # What vLLM takes where a config names none.
    return 2, layers // 2, layers - 3


def is_published_eagle3(config: Mapping[str, Any]) -> bool:
    """Whether a config is of this layout. Raises FileError for a published drafter of another kind."""
    names = config.get("architectures")
    if isinstance(names, list):
        names = [n for n in names if isinstance(n, str)]
    else:
        names = []
    for name in names:
        if name in OTHERS:
            raise FileError(
                f"it is {OTHERS[name]} ({name}): of published drafters EAGLE-3 ({NAMES[0]}), EAGLE-1 and Medusa's "
                "heads are read"
            )
    return any(name in NAMES for name in names)


def stored_name(weights: Mapping[str, Tensor], name: str) -> str:
    """Find under which name a tensor is stored: two writers of such files name it differently.

    Args:
        weights: The tensors of the files, by name.
        name: Name of the tensor in this module, such as "midlayer.self_attn.q_proj.weight".

    Returns:
        The first of the possible names that the files have.

    Raises:
        FileError: They have none of them.
    """
    # Some write "midlayer.", others "layers.0."; either may stand behind "model.".
    tail = name.removeprefix("midlayer.")
    names = [name, f"layers.0.{tail}", f"model.{name}", f"model.layers.0.{tail}"]
    have = next((n for n in names if n in weights), None)
    if have is None:
        raise FileError(f"the weights lack {name!r}")
    return have


def require_layout(weights: Mapping[str, Tensor], layout: Mapping[str, tuple[int, ...]]) -> None:
    """Check that all tensors of a layout are there and have their shapes, before any is read.

    Args:
        weights: The tensors of the files, by name.
        layout: The shape of each tensor, by its name in this module.

    Raises:
        FileError: A tensor is missing or has another shape.
    """
    fields.require_shapes(
        weights, {stored_name(weights, name): shape for name, shape in layout.items()}
    )


def tensor_of(weights: Mapping[str, Tensor], name: str) -> Tensor:
    """Read a tensor by the name that either writer gives it.

    Args:
        weights: The tensors of the files, by name.
        name: Name of the tensor in this module.

    Returns:
        The tensor as it is stored; all its numbers are finite.

    Raises:
        FileError: It is missing, or holds a NaN or an infinite number.
    """
    have = stored_name(weights, name)
    t = weights[have]
    if t.is_floating_point() and not bool(t.isfinite().all()):
        raise FileError(f"{have} holds a NaN or an infinite number")
    return t


def load_published_eagle3(path: str | Path) -> UnboundEagle3:
    """The drafter in a directory. Raises FileError with one sentence where it is damaged or of another kind."""
    path = edge.at_home(path)
    with edge.report_read_errors(f"eagle is {str(path)!r}: it is damaged"):
        config = edge.read_json(path / "config.json")
        c = edge.validate_record(PublishedFields, config, "config.json")
        if (
            c.hidden_size % c.num_attention_heads and c.head_dim is None
        ) or c.num_attention_heads % c.kv_heads:
            raise FileError(
                f"num_attention_heads is {c.num_attention_heads}, num_key_value_heads {c.kv_heads}: they must "
                f"divide the width {c.hidden_size}"
            )
        weights = tensor_files.open_weights(path)
        H = c.hidden_size
        C = c.draft_vocab_size or c.vocab_size
        # How many layers are read follows from its columns, when a target is bound.
        fused = fields.shape_of(weights, stored_name(weights, "fc.weight"))
        if len(fused) != 2 or fused[0] != H:
            raise FileError(f"fc.weight has shape {fused}: it must have {H} rows")
        mapped = "d2t" in weights or "model.d2t" in weights
        # Shapes are compared before any tensor is read, since files may be huge and wrong.
        require_layout(
            weights,
            {
                **{f"midlayer.{name}": shape for name, shape in eagle3_layer_shapes(c).items()},
                **({"d2t": (C,)} if mapped else {}),
                "lm_head.weight": (C, H),
                "norm.weight": (H,),
            },
        )
        tensors = {
            name: tensor_of(weights, f"midlayer.{name}").float() for name in eagle3_layer_shapes(c)
        }
        fuse = tensor_of(weights, "fc.weight").float()
        # d2t holds how far each id lies above its row, not the id itself.
        token_C = torch.arange(C)
        if mapped:
            token_C = token_C + tensor_of(weights, "d2t").long()
        elif c.vocab_size != C:
            raise FileError("the weights lack 'd2t', which says which tokens the head knows")
        if (
            len(set(token_C.tolist())) != C
            # Ids that repeat would put two laws on one token.
            or not 0 <= int(token_C.min()) <= int(token_C.max()) < c.vocab_size
        ):
            raise FileError(f"d2t names tokens outside 0 to {c.vocab_size - 1}, or one twice")
        own = DraftVocabularyHead(
            token_C,
            tensor_of(weights, "lm_head.weight").float(),
            tensor_of(weights, "norm.weight").float(),
        )
        vocab, rates, share = trained_facts(c, RATES)
        return UnboundEagle3(
            Eagle3Model(
                fuse, c.depths, PublishedLayer(tensors, c), own, vocab, rates, share, evened=False
            ),
            embedding_table(weights),
        )


def embedding_table(weights: Mapping[str, Tensor]) -> Tensor | None:
    """The embeddings of a published drafter; None: its file leaves them to the target."""
    names = ("embed_tokens.weight", "model.embed_tokens.weight")
    return next((weights[name] for name in names if name in weights), None)


def trained_facts(
    c: PublishedFields, guess: Sequence[Sequence[float]]
) -> tuple[TokenVocabulary, Sequence[Sequence[float]], float]:
    """Read what a config says of the training.

    Args:
        c: The config.
        guess: Rates where it says none, as others' files do.

    Returns:
        Vocabulary, rates of each level, and the share of a pass.
    """
    ours = c.polydec_trained
    if ours is None:
        return TokenVocabulary(c.vocab_size, frozenset(), ""), guess, 0.0
    return TokenVocabulary(c.vocab_size, frozenset(), ours.tokenizer), ours.rates, ours.share


def eagle3_layer_shapes(c: PublishedFields) -> dict[str, tuple[int, ...]]:
    """Of each tensor of the layer."""
    H = c.hidden_size
    D = c.head
    own = state_layer_shapes(H, c.num_attention_heads, c.kv_heads, c.intermediate_size, 2 * H)
    return {
        **own,
        "input_layernorm.weight": (H,),
        "hidden_norm.weight": (H,),
        # Attention may be wider than the stream, since head_dim is a field of its own.
        "self_attn.q_proj.weight": (c.num_attention_heads * D, 2 * H),
        "self_attn.k_proj.weight": (c.kv_heads * D, 2 * H),
        "self_attn.v_proj.weight": (c.kv_heads * D, 2 * H),
        "self_attn.o_proj.weight": (H, c.num_attention_heads * D),
    }


def write_published_directory(
    path: str | Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> None:
    """Write config.json and model.safetensors into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        config: The object of config.json.
        tensors: The tensors by their published names, on any device; copies are written.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    whole = {name: t.detach().cpu().clone().contiguous() for name, t in tensors.items()}
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    replace_file(path / "model.safetensors", lambda at: save_file(whole, at, {"format": "pt"}))
    text = json.dumps(config, indent=1) + "\n"
    replace_file(path / "config.json", lambda at: at.write_text(text, encoding="utf-8"))


def save_published_eagle3(
    path: str | Path, eagle: Eagle3Model, about: Mapping[str, Any] | None = None
) -> None:
    """Write an EAGLE-3 drafter as vLLM and SGLang load it.

    Args:
        path: Directory to write into; it is made where there is none.
        eagle: The drafter. Its layer must be a `PublishedLayer`, and its states must enter as they
            are.
        about: What the field `polydec_trained` says besides the vocabulary, rates and share. Default None. The field
            is left out where the rates are this module's guess.

    Raises:
        FileError: The weights have the form of learned/kinds/eagle3.py, which neither engine can
            take.
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    layer = eagle.layer
    if eagle.evened or not isinstance(layer, PublishedLayer):
        raise FileError(
            "vLLM and SGLang cannot take this EAGLE-3 drafter: its norms go over token and state together, and "
            "their layer has one for each (`polydec train eagle --kind eagle-3-published` trains that form)"
        )
    c = layer.about
    own = eagle.own
    size = eagle.vocab.size
    C = len(own.token_C)
    config = {
        **c.model_dump(exclude_none=True),
        "architectures": [NAMES[0]],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "vocab_size": size,
        "draft_vocab_size": C,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "attention_bias": False,
        "mlp_bias": False,
        "eagle_aux_hidden_state_layer_ids": list(
            eagle.depths
        ),  # vLLM: n stands for the state after n layers
        "eagle_config": {
            "use_aux_hidden_state": True,  # SGLang: n is the layer that gives the state
            "eagle_aux_hidden_state_layer_ids": [d - 1 for d in eagle.depths],
        },
    }
    # A guess is not written out as if it had been measured.
    if eagle.rates is not RATES:
        config["polydec_trained"] = {**(about or {}), **artefact.said_of(eagle)}
    # t2d says the same from the target's side: which of its tokens the head knows.
    mask = torch.zeros(size, dtype=torch.bool)
    mask[own.token_C] = True
    tensors = {f"midlayer.{name}": t for name, t in layer.tensors.items()} | {
        "fc.weight": eagle.fuse_HD,
        "norm.weight": own.norm_H,
        "lm_head.weight": own.head_CH,
        "d2t": own.token_C - torch.arange(C),
        "t2d": mask,
    }
    write_published_directory(path, config, tensors)
