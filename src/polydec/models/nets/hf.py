"""Every causal architecture of `transformers`, as a network: what our own lean one does not run.

What an architecture can do is not looked up but tried once at load, on a few tokens: a two-branch
tree under a mask of ours against its paths through the plain model. Where that fails (ALiBi,
recurrent layers) the model declares tree = False and its branches are fed one by one.
"""

from __future__ import annotations

import copy
import inspect
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache, PreTrainedModel
from transformers.initialization import no_init_weights
from transformers.utils import logging

from polydec.base.errors import FileError, RequestError
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.formats.edge import error_sentence, first_line, own_code, report_read_errors
from polydec.models.formats.fields import longest_tensor_side, shape_of
from polydec.models.nets.masks import NEG_INF, staged_entry_depths, tree_attention_mask
from polydec.models.nets.query import NetworkAnswer, NetworkQuery
from polydec.models.nets.scores import require_finite_logits


class HFCache:
    """The verbs of models/nets/kv_cache.py over a cache of `transformers`.

    Attention only appends to it, so twins share tensors; a recurrent state is copied completely,
    and cannot go back: what would have to is forgotten from the beginning (`length` then says 0)
    and fed again. So is what a pass leaves that failed on the way (`available_entries`).

    Attributes:
        past: The cache of `transformers`; None: a model with a state of its own has not run yet.
        recurrent: Whether the model has a state that cannot go back.
        whole: Whether every layer has the same entries: False after a pass that failed.
        length: Number of committed entries.
        held: How many entries `past` has.
        parent: Of each staged entry the offset of the entry that it follows; -1: the last committed
            one.
    """

    __slots__ = ("held", "length", "parent", "past", "recurrent", "whole")

    def __init__(self, past: Any, recurrent: bool) -> None:
        self.past: Any = past  # None: a model with a state of its own has not run yet
        self.recurrent = recurrent
        self.whole = True
        self.length, self.held, self.parent = 0, 0, list[int]()  # held: how many entries `past` has

    @property
    def end(self) -> int:
        return self.length + len(self.parent)

    def stage_slots(self, parent: Sequence[int]) -> int:
        first = self.end
        self.parent += parent
        return first

    def reserve_slots(self, need: int) -> None:
        """Nothing is stored in advance."""

    def copy_shared(self) -> None:
        """Twins share tensors that nobody writes to."""

    def claim_slots(self, first: int) -> None:
        """Prepare to feed the slots from `first` on again. An entry is never written twice: the old
        ones are dropped."""
        self._mend()
        if self.held > first:
            self.past.crop(first - self.held)
            self.held = first

    def commit_path(self, path: Sequence[int]) -> None:
        self.keep_path(path, ())

    def keep_path(self, path: Sequence[int], stay: Sequence[int]) -> None:
        """Commit a path of the staged entries, and keep others staged.

        A recurrent state that has read other entries cannot do that: it forgets everything.

        Args:
            path: Offsets of the staged entries that are committed, ascending.
            stay: Offsets of those that stay staged, ascending, after the path. All others are
                dropped.
        """
        kept = [*path, *stay]
        parent = self.parent
        if any(i != j for i, j in enumerate(kept)) or not self.whole:
            self._mend()
            if self.recurrent:
                self._forget()
                return
            # Staged entries that were never fed have nothing to move.
            kept = [j for j in kept if self.length + j < self.held]
            index = torch.tensor(
                [*range(min(self.length, self.held)), *(self.length + j for j in kept)]
            )
            for layer in self._layers():
                layer.keys = layer.keys.index_select(-2, index.to(layer.keys.device))
                layer.values = layer.values.index_select(-2, index.to(layer.values.device))
            self.held = len(index)
        # Offsets begin at 0 again. A parent that is committed now has none: -1.
        new = {j: i for i, j in enumerate(stay)}
        self.length, self.parent = self.length + len(path), [new.get(parent[j], -1) for j in stay]
        self._crop()

    def _mend(self) -> None:
        """Go back to the entries that all layers hold: a pass that failed may have left some that
        others lack."""
        if self.whole:
            return
        self.whole = True
        if self.recurrent:
            self._forget()
            return
        for layer in self._layers():
            layer.keys = layer.keys[..., : self.held, :]
            layer.values = layer.values[..., : self.held, :]

    def truncate_entries(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise RequestError(
                f"length is {length}: it must lie in 0 to {self.length}, the committed entries"
            )
        self._mend()
        self.length = min(length, self.length)
        self.parent = []
        self._crop()

    def fork(self, length: int | None = None) -> HFCache:
        # An empty twin needs nothing of this cache.
        if length == 0:
            return HFCache(None if self.recurrent else DynamicCache(), self.recurrent)
        # Only a whole copy can be cut: layers may hold their entries in different ways.
        if length is not None:
            twin = self.fork()
            twin.truncate_entries(length)
            return twin
        twin = HFCache(self.past, self.recurrent)
        twin.length = self.length
        twin.held = self.held
        twin.parent = list(self.parent)
        twin.whole = self.whole
        if self.recurrent:
            twin.past = copy.deepcopy(self.past)
        else:
            # A layer appends by making new tensors, so twins may share the old ones: copies of the
            # layer objects are enough.
            twin.past = copy.copy(self.past)
            twin.past.layers = [copy.copy(layer) for layer in self.past.layers]
        return twin

    @property
    def nbytes(self) -> int:
        return sum(t.nbytes for t in _tensors(self.past))

    def _layers(self) -> Iterator[Any]:
        return (layer for layer in self.past.layers if layer.is_initialized)

    def _crop(self) -> None:
        if self.held > self.end and self.recurrent:
            self._forget()
        elif self.held > self.end:
            self.past.crop(self.end - self.held)  # the negative number of entries to drop
            self.held = self.end

    def _forget(self) -> None:
        self.past = None
        self.length = 0
        self.held = 0
        self.parent = []
        self.whole = True


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for v in value:
            yield from _tensors(v)
    elif isinstance(value, Mapping):
        yield from _tensors(list(value.values()))
    elif hasattr(value, "__dict__"):
        yield from _tensors(list(vars(value).values()))


Masks = Callable[[Tensor, Tensor | None], Any]
"""(the mask without and with the sliding window) -> what the model takes as attention_mask"""


@dataclass(frozen=True)
class HFFeedMode:
    """A way to feed a model.

    Attributes:
        masks: Makes what the model takes as its attention mask; None where it makes its own (then
            no trees).
        recurrent: Whether its cache is its own affair.
        single: Whether after the first pass it takes one token at a time.
    """

    masks: Masks | None
    recurrent: bool = False
    single: bool = False


def cache_keyword(model: nn.Module) -> str | None:
    """What the model's forward pass calls its cache; None where it has none.

    `cache` since transformers 5.24; `past_key_values` before, and in code that came with a
    checkpoint; `cache_params` and `state` are older recurrent models' words.
    """
    known = inspect.signature(model.forward).parameters
    names = ("cache", "past_key_values", "cache_params", "state")
    return next((name for name in names if name in known), None)


class HFNetwork:
    """A `NeuralNetwork` (models/nets/query.py) over a causal model of `transformers`. Queries of
    one pass run one after the other.

    Raises:
        FileError: The model reads both ways, or its cache does not give what the plain forward pass
            gives.
    """

    partial = False

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Refuse: layers cannot run alone in this model."""
        raise FileError(
            "layers cannot run alone in this model: its adapter runs the whole network only"
        )

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        """Refuse: the final norm cannot run alone in this model."""
        raise FileError(
            "the final norm cannot run alone in this model: its adapter runs the whole network only"
        )

    def read_keys(
        self, cache: HFCache, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Refuse: keys stand as `transformers` has them.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Raises:
            FileError: Always.
        """
        raise FileError(
            "keys cannot be read in this model: its adapter keeps them as transformers does"
        )

    def __init__(self, model: PreTrainedModel) -> None:
        # eval turns dropout off, which would make laws random.
        self._model = model.eval()
        self._config = model.config.get_text_config(decoder=True)
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        cache_name = cache_keyword(model)
        if model.config.is_encoder_decoder or cache_name is None:
            raise FileError(
                f"model_type is {model.config.model_type!r}: only causal language models with a cache are served"
            )
        self._cache_name = cache_name
        self.layers = self._config.num_hidden_layers
        self.size = self._config.vocab_size
        if self.layers < 1:
            raise FileError(f"num_hidden_layers is {self.layers}: it must be at least 1")
        # A model without a table of positions has no bound of its own.
        self.context = getattr(self._config, "max_position_embeddings", None) or sys.maxsize
        self.cost = float(sum(p.numel() for p in model.parameters()))
        self.dtype = str(model.dtype).removeprefix("torch.")
        self.kernel = (
            f"transformers {getattr(model.config, '_attn_implementation', None) or 'eager'}"
        )
        self._window: int | None = getattr(self._config, "sliding_window", None)
        self._device = model.device
        self._number = model.dtype
        # The list of layers, to catch what leaves the last one. No config says where it is: its
        # length gives it away.
        self._blocks = next(
            (m for m in model.modules() if isinstance(m, nn.ModuleList) and len(m) == self.layers),
            None,
        )
        if self._number in (torch.float16, torch.bfloat16) and self.cost <= 1e9:
            # The trial runs in float32.
            twin = copy.deepcopy(model).float()  # rounding could hide a fault, or feign one
            self._model = twin.eval()
            self._number = torch.float32
        self._mode = self._find_mode()
        self._model = model
        self._number = model.dtype
        self.tree = self._mode.masks is not None
        self.rollback = not self._mode.recurrent

    def new_cache(self) -> HFCache:
        """An empty cache. A recurrent model makes its own in the first pass."""
        return HFCache(None if self._mode.recurrent else DynamicCache(), self._mode.recurrent)

    @torch.inference_mode()
    def forward(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        """Answers in order, one pass a query."""
        return [self._answer(q) for q in queries]

    def _answer(self, q: NetworkQuery) -> NetworkAnswer:
        if q.layers is not None and q.layers != tuple(range(self.layers)):
            raise FileError(
                f"layers is {q.layers}: this model runs all of its {self.layers} layers only"
            )
        # `transformers` appends at the end of its cache, nowhere else.
        if q.cache.held != q.first:
            raise FileError(
                f"first is {q.first}: the cache holds {q.cache.held} entries, and the next is fed first"
            )
        rows = list(q.rows)
        # Some recurrent models take one token at a time once they have a state.
        if self._mode.single and q.first:
            size = 1
        else:
            size = len(q)
        logits = list[Tensor]()
        hidden = list[Tensor]()
        # A recurrent model behind a text reads one token a pass, as its state cannot be rewound
        # within one.
        for at in range(0, len(q), size):
            wanted = [r - at for r in rows if at <= r < at + size]
            if q.embed is None:
                fed = {"input_ids": torch.tensor([q.token[at : at + size]], device=self._device)}
            else:
                fed = {"inputs_embeds": self._mixed(q)[None, at : at + size]}
            got, seen = self._pass(q.cache, size, fed, wanted, q.want.hidden)
            logits.append(got)
            hidden.append(seen)
        # The network makes logits in any case; where nobody asked they are not handed on.
        silent = not rows or (q.want.law is RowDetail.NOTHING and q.want.base is RowDetail.NOTHING)
        return NetworkAnswer(
            None if silent else torch.cat(logits),
            torch.cat(hidden) if q.want.hidden and rows else None,
        )

    def _mixed(self, q: NetworkQuery) -> Tensor:
        """Embeddings of a query's tokens, and its states among them."""
        assert q.embed is not None
        states = q.embed.to(self._device, self._number)
        if not q.token:
            return states
        # A token of -1 has no embedding: any row stands in, and is overwritten.
        rows = self.embed_tokens([max(x, 0) for x in q.token]).clone()
        rows[torch.tensor(q.given, device=self._device)] = states
        return rows

    @torch.inference_mode()
    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What the model takes as inputs_embeds, ``[n, width]``."""
        return self._model.get_input_embeddings()(
            torch.tensor(list(tokens), dtype=torch.long, device=self._device)
        )

    def _pass(
        self, cache: HFCache, size: int, fed: dict[str, Any], rows: list[int], hidden: bool
    ) -> tuple[Tensor, Tensor]:
        index = torch.tensor(rows, dtype=torch.long, device=self._device)
        options: dict[str, Any] = {"use_cache": True, "return_dict": True}
        if cache.past is not None:
            options[self._cache_name] = cache.past
        if self._mode.masks is not None:
            options |= self._place(cache, size, self._mode.masks)
        # Logits of the answered rows only, where the model can do that. It needs one row at least.
        if cut := "logits_to_keep" in self._takes:
            if rows:
                options["logits_to_keep"] = index
            else:
                options["logits_to_keep"] = 1
        seen: list[Tensor] = []
        # If the pass fails halfway, some layers have appended entries and others have not.
        cache.whole = False
        with self._watching(seen if hidden else None):
            out = self._model(**fed, **options)
        cache.whole = True
        cache.past = out.get(self._cache_name, cache.past)
        cache.held += size
        if cut and rows:
            logits_RV = out.logits[0]
        else:
            logits_RV = out.logits[0, index]
        return logits_RV, seen[0][index] if hidden else logits_RV

    @contextmanager
    def _watching(self, seen: list[Tensor] | None) -> Iterator[None]:
        """Note what leaves the last layer, before the final norm."""
        if seen is None:
            yield
            return
        if self._blocks is None:
            raise FileError(
                f"hidden states cannot be had of {self._config.model_type}: its layers were not found"
            )
        # A hook sees what leaves the last layer before the final norm; `output_hidden_states` would
        # give normed states there.
        handle = self._blocks[-1].register_forward_hook(
            lambda _, __, out: seen.append(
                (out[0] if isinstance(out, tuple) else out)[-1:].flatten(0, -2)
            )
        )
        try:
            yield
        finally:
            handle.remove()

    def _place(self, cache: HFCache, size: int, masks: Masks) -> dict[str, Any]:
        """Positions, and who sees whom, of the next `size` slots."""
        first = cache.held
        stop = cache.held + size
        length = cache.length
        slots = [
            *range(length),
            *(length + d for d in staged_entry_depths(cache.parent[: max(0, stop - length)])),
        ]
        slot_S = torch.tensor(slots, device=self._device)
        low = min(first, length)
        full = torch.zeros(size, stop, dtype=self._number, device=self._device)
        # Slots below `low` are seen by all rows.
        full[:, low:] = tree_attention_mask(
            first, stop, length, cache.parent, self._number, self._device
        )
        near = None
        if self._window is not None:
            far = slot_S[None, :stop] <= slot_S[first:stop, None] - self._window
            near = full.masked_fill(far, NEG_INF)[None, None]
        return {
            "attention_mask": masks(full[None, None], near),
            "position_ids": slot_S[None, first:stop],
        }

    def _find_mode(self) -> HFFeedMode:
        """The first way to feed it that gives what the plain forward pass gives."""
        tried = _HFNetworkTrial(self)
        why = ""
        for mode in self._modes():
            self._mode = mode
            try:
                if tried.pass_times():
                    return mode
            except Exception as e:  # a model that cannot do a thing says so in its own way
                why = f" ({type(e).__name__}: {str(e).splitlines()[0] if str(e) else ''})"
        raise FileError(
            f"{self._config.model_type} cannot be served: what it computes with its cache differs from what it "
            f"computes without{why}"
        )

    def _modes(self) -> Iterator[HFFeedMode]:
        """The ways to feed it, the most capable first."""
        if not getattr(self._model, "_is_stateful", False):
            if "position_ids" in self._takes:
                # Newer models take a mask for each kind of layer, older ones one mask for all.
                kinds = set(getattr(self._config, "layer_types", None) or ())
                if (
                    self._window is not None
                    and kinds <= {"full_attention", "sliding_attention"}
                    and kinds
                ):
                    yield HFFeedMode(
                        lambda full, near: {"full_attention": full, "sliding_attention": near}
                    )
                if self._window is not None:
                    yield HFFeedMode(lambda full, near: near)
                yield HFFeedMode(lambda full, near: full)
            yield HFFeedMode(None)
        yield HFFeedMode(None, recurrent=True)
        yield HFFeedMode(None, recurrent=True, single=True)


class _HFNetworkTrial:
    """A text of six tokens and a tree of two branches below it, through the plain model and through
    the adapter."""

    PARENT = (-1, 0, 0, 1, 2)

    def __init__(self, network: HFNetwork) -> None:
        self._net = network
        draw = torch.Generator().manual_seed(0)
        tokens = torch.randperm(network.size, generator=draw).tolist()
        # Random distinct tokens; a small vocabulary is repeated.
        self._text = (tokens * 12)[:6]
        self._tree = (tokens * 12)[6:11]
        with self._small_window():
            self._plain = [self._whole(p) for p in ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 4))]
            require_finite_logits([float(w_V.max()) for w_V in self._plain])
            again = self._whole((0, 2, 4), batch=3)  # the same numbers, rounded in another way
        # How far the same numbers differ when they are rounded in another way bounds what counts as
        # equal.
        noise = float((again - self._plain[-1]).abs().max())
        scale = float(torch.stack(self._plain).abs().max())
        self._bound = 10 * noise + max(1e-5, 8 * torch.finfo(network._number).eps) * scale

    @contextmanager
    def _small_window(self) -> Iterator[None]:
        """So that a few tokens reach past the sliding window. The model reads it from its config."""
        net = self._net
        config = self._net._model.config.get_text_config(decoder=True)
        old = net._window
        try:
            if old is not None:
                net._window = config.sliding_window = 4
            yield
        finally:
            if old is not None:
                net._window = config.sliding_window = old

    @torch.inference_mode()
    def _whole(self, path: Sequence[int], batch: int = 1) -> Tensor:
        ids = torch.tensor(
            [[*self._text, *(self._tree[i] for i in path)]] * batch, device=self._net._device
        )
        return self._net._model(input_ids=ids, use_cache=False).logits[-1, -1].float()

    def pass_times(self) -> bool:
        with self._small_window():
            if self._net._mode.masks is not None:
                rows = self._as_tree()
            else:
                rows = self._as_paths()
        far = max(
            float((a.float() - b).abs().max())
            for a, b in zip(rows, [*self._plain, self._plain[-1]])
        )
        return far <= self._bound

    def _feed(self, cache: HFCache, tokens: Sequence[int]) -> Tensor:
        query = NetworkQuery(cache, cache.held, tuple(tokens), range(len(tokens)), ScoreRequest())
        logits_RV = self._net.forward([query])[0].logits_RV
        assert logits_RV is not None
        return logits_RV

    def _as_tree(self) -> list[Tensor]:
        cache = self._net.new_cache()
        cache.stage_slots(range(-1, 5))
        cache.commit_path(range(6))
        self._feed(cache, self._text)
        cache.stage_slots(self.PARENT)
        rows = list(self._feed(cache, self._tree))
        # Nodes 0 and 2 stay, node 1 goes: the cache must move entries. Then the last node once
        # more.
        cache.commit_path((0, 2))  # and the last node again, below a branch that was kept
        cache.stage_slots((-1,))
        return [*rows, self._feed(cache, self._tree[4:])[-1]]

    def _as_paths(self) -> list[Tensor]:
        cache = self._net.new_cache()
        rows = list[Tensor]()
        cache.stage_slots(range(-1, 5))
        cache.commit_path(range(6))
        self._feed(cache, self._text)
        # No trees: every path in a fork of the cache, which is what a session would do.
        for path in ((0,), (0, 1), (0, 2), (0, 1, 3), (0, 2, 4)):
            twin = cache.fork()
            twin.stage_slots(range(-1, len(path) - 1))
            rows.append(self._feed(twin, [self._tree[i] for i in path])[-1])
        return rows


ROOM = 256 << 20  # bytes beyond its files that a model may take: masks, tables of positions


def _fits(path: str, config: Any, weights: Mapping[str, Any]) -> None:
    """Refuse a config that describes a model of another size than its files, before there is room
    for anything.

    The model is made on torch's meta device.

    Args:
        path: The directory.
        config: The config of `transformers`.
        weights: The tensors of the files, of which only names and shapes are read.

    Raises:
        FileError: The config asks for more than the files hold.
    """
    tensors = len(weights)
    longest = longest_tensor_side(weights)
    declared = config.to_dict()
    # First the numbers of the config themselves: even a meta model of a billion layers takes time
    # and memory.
    for part in (declared, *(v for v in declared.values() if isinstance(v, dict))):
        for key, value in part.items():
            if not isinstance(value, int) or "size" in key or "dim" in key:
                continue
            if value > max(tensors, 256) and ("layer" in key or "block" in key):
                raise FileError(f"{key} is {value}: the files hold {tensors} tensors in all")
            # some make a table of heads that no tensor holds
            if value > max(longest, 256) and "head" in key:
                raise FileError(f"{key} is {value}: no tensor has a side longer than {longest}")
    files = sum(
        f.stat().st_size for end in ("safetensors", "bin") for f in Path(path).glob(f"*.{end}")
    )
    with torch.device("meta"), no_init_weights():
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    takes = sum(
        t.numel() * t.element_size() for part in (model.parameters(), model.buffers()) for t in part
    )
    if takes > 8 * files + ROOM:  # 8: files of 4 bits, and a config that says float32
        raise FileError(
            f"the model that config.json describes takes {takes} bytes, but its files hold {files}"
        )
    if getattr(config, "quantization_config", None) is not None:
        return  # numbers are packed: what is stored has other shapes
    for name, t in model.named_parameters():
        # transformers may turn a matrix around, or cut it, but makes up no number
        if name in weights and math.prod(stored := shape_of(weights, name)) != t.numel():
            raise FileError(f"{name} has shape {stored}: config.json asks for {tuple(t.shape)}")


def load_hf_network(
    path: str,
    *,
    weights: Mapping[str, Any],
    dtype: str = "auto",
    device: str = "cpu",
) -> HFNetwork:
    """Load a directory's model through `transformers`.

    Args:
        path: The directory, with config.json and weights.
        weights: The tensors of its files, of which only names and shapes are read.
        dtype: "auto", "float32", "bfloat16", "float16" or "float64". "auto" is bfloat16 where the
            checkpoint has it and the processor computes in it, float32 on other CPUs; on a GPU the
            checkpoint's own. Default "auto".
        device: "cpu" or a CUDA device. Default "cpu".

    Returns:
        The network, after a trial of what it can do.

    Raises:
        FileError: `transformers` does not know the architecture, a tensor is missing or does not
            fit the config, or the device is not here.
    """
    if dtype not in ("auto", "float32", "bfloat16", "float16", "float64"):
        raise FileError(
            f"dtype is {dtype!r}: it must be one of auto, float32, bfloat16, float16, float64"
        )
    where = torch.device(device)
    if where.type == "cuda" and not torch.cuda.is_available():
        raise FileError(
            f"device is {device!r}: this machine has no CUDA GPU that torch can use; 'cpu' runs here"
        )
    # A bar over loading would be written into programs' output.
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=False)
        _fits(path, config, weights)
        if dtype == "auto":
            number = _auto(config, where)
        else:
            number = getattr(torch, dtype)
        model, info = AutoModelForCausalLM.from_pretrained(  # pyright: ignore[reportGeneralTypeIssues]   (a pair, as asked)
            path, config=config, dtype=number, output_loading_info=True, trust_remote_code=False
        )
    except Exception as e:  # whatever an architecture's own code meets
        why = own_code(Path(path) / "config.json") or first_line(e)
        raise FileError(error_sentence(f"transformers cannot load it ({why})")) from None
    finally:
        if shown:
            logging.enable_progress_bar()
    if missing := sorted(info["missing_keys"]):
        raise FileError(
            f"weights lack {missing[0]}: the checkpoint is not complete, or of another architecture"
        )
    for name, t in model.named_parameters():
        if (
            not t.sum().isfinite() and not t.isfinite().all()
        ):  # the sum alone is quick, and may overflow
            raise FileError(f"{name}: a number in it is NaN or infinite")
    with report_read_errors("transformers cannot run it"):
        return HFNetwork(model.to(where))


def _auto(config: Any, where: torch.device) -> torch.dtype:
    stored = config.dtype or torch.float32
    if where.type != "cpu":
        return stored
    native = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    if stored is torch.bfloat16 and native:
        return torch.bfloat16
    return torch.float32
