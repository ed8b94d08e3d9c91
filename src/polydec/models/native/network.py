"""The native step as a `NeuralNetwork`: checkpoints into packed weights, queries into one batch of
rows, in place of the cache."""

from __future__ import annotations

import ctypes as C
import os
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from polydec.base.errors import MissingError, RequestError
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.formats.architectures import TransformerConfig, read_architecture
from polydec.models.formats.rope import RotaryEmbedding
from polydec.models.native.library import (
    ACTS,
    CACHES,
    COMPUTES,
    ENDLESS,
    CacheOf,
    NativeBatch,
    PartOf,
    PressOf,
    load_native_library,
)
from polydec.models.native.library import NativeConfig as Shape
from polydec.models.native.press import StepPress, fill_cache_descriptor, step_press, visible_chunks
from polydec.models.native.weights import NativeWeightLoader, load_all
from polydec.models.nets.grid_positions import grid_positions
from polydec.models.nets.kv_cache import GROWTH, KVCache
from polydec.models.nets.memory_pool import empty_pooled_tensor
from polydec.models.nets.moved_keys import rotate_cached_keys, why_not_rotatable
from polydec.models.nets.packing import group_into_passes
from polydec.models.nets.press import CachePress
from polydec.models.nets.query import NetworkAnswer, NetworkQuery, forward_in_parts, in_turns
from polydec.models.nets.scores import NOT_FINITE

LIMIT = 512  # rows of a pass: more gain nothing, and each holds memory
MOST = 1 << 24  # of any count in a config
_ROW = ScoreRequest(law=RowDetail.ROW)
CPU = torch.device("cpu")


class CpuStep:
    """A network of models/nets/query.py whose rows never depend on their neighbours.

    Every row is summed in one fixed order, so its bits are the same for any batch, tree, number of
    threads and instruction set.

    Attributes:
        kernel: Name of the instruction set, of the arithmetic of quantised matrices (`compute`) and
            of how keys and values are stored (`cache_dtype`), where that is not float32.
        dtype: Block types of the weights, most of them first.
        approximate: Why the law is not the checkpoint's, or "".
        threads: Threads of the library's pool.
    """

    tree = rollback = True
    partial = presses = moves_places = True

    def __init__(
        self,
        config: TransformerConfig,
        outputs: int,
        threads: int,
        isa: str,
        compute: str,
        cache_dtype: str,
    ) -> None:
        c = config
        self._lib = load_native_library()
        self.config = c
        self.layers = c.layers
        self.context = c.context
        self.size = c.vocab
        self.threads = threads
        self._head = c.head
        self._outputs = outputs
        self._every = tuple(range(c.layers))
        self._no_exit = (-1,) * c.layers
        if c.experts is None:
            self.routes = None
        else:
            self.routes = (c.layers, c.experts.count)
        # What most passes say of layers: all of them, no exits, both halves of each (3 = attention
        # 1 + MLP 2).
        self._run_all = array("i", [*self._every, *self._no_exit, *[3] * c.layers])
        self._turned = 0
        self.kernel = ""
        self._tokens: Tensor | None = None
        self._norm_W = torch.empty(0)  # the final norm's weights
        self._widen: Callable[[Sequence[int]], Tensor] | None = None
        self.dtype = ""
        self.approximate = ""
        self.cost = 0.0
        scale = float(1 / np.sqrt(np.float32(c.scale**-2)))  # in fp32, as of a head's width
        # A bit says of each of the four places whether a norm stands there.
        norms = (c.norms.attention, c.norms.attended, c.norms.mlp, c.norms.mlped)
        shape = Shape(
            c.vocab,
            c.width,
            c.layers,
            c.heads,
            c.kv_heads,
            c.head,
            c.inner,
            self.context,
            outputs,
            c.turned,
            len(c.ropes),
            sum(1 << i for i, name in enumerate(norms) if name is not None),
            c.wide_norms,
            ACTS[c.act],
            *_experts(c),
            c.eps,
            scale,
            c.cap or 0.0,
            c.final_cap or 0.0,
            c.embed_scale,
            c.residual,
            c.divide,
            *c.clamp,
        )
        # Positions are 32-bit numbers in the library.
        if self.context > MOST:
            raise MissingError(
                f"the context is {self.context} positions: the native step serves up to {MOST}"
            )
        # A shape that the library does not serve gives no handle.
        self._model = self._lib.step_new(C.byref(shape), threads, isa.encode())
        if not self._model:
            raise MissingError(
                f"the native step does not serve this shape: width {c.width} and inner width {c.inner} must be "
                f"multiples of 32, head {c.head} of 16, the instruction set {isa or 'auto'!r} one that runs here"
            )
        self.compute = compute
        self.cache_dtype = cache_dtype
        self._check(self._lib.step_compute(self._model, COMPUTES[compute]))
        self._check(self._lib.step_keep(self._model, CACHES[cache_dtype]))

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self._lib.step_free(self._model)

    @staticmethod
    def build(
        config: Mapping[str, Any],
        weights: Mapping[str, Any],
        *,
        threads: int | None = None,
        isa: str = "",
        quantize: str | None = None,
        compute: str = "float32",
        cache_dtype: str = "float32",
    ) -> CpuStep:
        """Make a network from a checkpoint's config and tensors, or from a GGUF file, whose blocks
        stay as they are.

        Args:
            config: The dict of a Hugging Face config.json.
            weights: Its tensors by name, or an open GGUF file.
            threads: 1 or more; None: the cores that this process may use.
            isa: "" (the best), "AVX-512", "AVX2" or "portable". Default "".
            quantize: "q8_0" or "q4_1" stores the matrices of a float checkpoint so (the law is then
                approximate). None: as they are.
            compute: What quantised matrices are multiplied in, "float32", or their inputs rounded
                to 16 or 8 bits: "int16", "int8" (the law is then approximate). Default "float32".
            cache_dtype: How keys and values are stored, "float32", "float16", or "int8" with one
                scale for a head's vector (both approximate). Default "float32".

        Returns:
            The network, its weights packed.

        Raises:
            MissingError: The library does not serve this network (a block type or an odd shape that
                it lacks).
            OSError: There is no library.
        """
        c, weights = read_architecture(config, weights)
        if threads is None:
            threads = len(os.sched_getaffinity(0))
        # what the library's pool takes; users are held to less (models/sessions/options.py)
        if not 1 <= threads <= 1024:
            raise MissingError(f"threads is {threads}: it must lie in 1 to 1024")
        if compute not in COMPUTES:
            raise MissingError(f"compute is {compute!r}: it must be one of {', '.join(COMPUTES)}")
        if cache_dtype not in CACHES:
            raise MissingError(
                f"cache_dtype is {cache_dtype!r}: it must be one of {', '.join(CACHES)}"
            )
        if c.superlinear is not None:
            raise MissingError("the native step reads all keys: it has no superlinear attention")
        if c.sections:
            raise MissingError("the native step does not tell rows and columns of images")
        load = NativeWeightLoader(weights, quantize)
        # GGUF files interleave the rows of a rotated pair, which does not fit a head that is turned
        # in part.
        if c.turned != c.head and load.paired:
            raise MissingError(
                f"rotary embedding turns {c.turned} of {c.head} dimensions: the native step reads such models "
                "from safetensors only"
            )
        if "lm_head.tokens" in weights:
            tokens = weights["lm_head.tokens"].long()
        else:
            tokens = None
        net = CpuStep(
            c, c.vocab if tokens is None else len(tokens), threads, isa, compute, cache_dtype
        )
        net._tokens = tokens
        if any(c.windows):
            # 0: no window.
            widths = array("i", [w or 0 for w in c.windows])
            net._check(net._lib.step_windows(net._model, *widths.buffer_info()))
        if any(k != 0 for k in c.turns):
            which = array("i", [-1 if k is None else k for k in c.turns])
            net._check(net._lib.step_turns(net._model, *which.buffer_info()))
        if c.experts is not None and not all(c.experts.sparse):
            which = array("i", c.experts.sparse)
            net._check(net._lib.step_sparse(net._model, *which.buffer_info()))
        net._widen = load_all(load, c, net._put, tokens)
        net._norm_W = torch.from_numpy(
            load.read_vector("model.norm.weight", plus=c.norms.plus).data
        ).clone()
        if not load.quantised:  # whatever was asked for, floats are multiplied as floats
            net.compute = "float32"
        net.kernel = f"native {net._lib.step_set(net._model).decode()} {net.compute}"
        if cache_dtype != "float32":
            net.kernel += f", {cache_dtype} cache"
        if net.compute == "int8":
            rounded = "activations rounded to 8 bits"
        else:
            rounded = ""
        if cache_dtype == "float32":
            kept = ""
        else:
            kept = f"keys and values rounded to {8 if cache_dtype == 'int8' else 16} bits"
        net.dtype, net.approximate = (
            load.summary,
            ", ".join(filter(None, (load.approximate, rounded, kept))),
        )
        # Cost: numbers of the matrices that a row goes through; of experts those that are used.
        attention = (2 * c.heads + 2 * c.kv_heads) * c.head * c.width
        if c.experts is None:
            experts = 0
        else:
            experts = c.experts.used * c.experts.inner
        inner = sum(experts if c.is_sparse(i) else c.inner for i in range(c.layers))
        net.cost = float(c.layers * attention + 3 * inner * c.width + net._outputs * c.width)
        return net

    def _put(self, part: int, layer: int, item: Any) -> int:
        """Give the library one tensor of weights.py; the code that it answers with."""
        data = item.data.ctypes.data
        if item.kind is None:
            n = item.shape[0]
            return self._lib.step_vector(
                self._model, layer, part, int(item.bias), data, item.data.size, n, item.swap
            )
        n, k = item.shape
        return self._lib.step_weight(
            self._model, layer, part, item.kind, data, item.data.nbytes, n, k, item.swap
        )

    def new_cache(self, press: CachePress | None = None) -> KVCache:
        """An empty cache ``[layers, 2, kv heads, slots, head]`` of `cache_dtype`.

        After a head's 8-bit integers stand the four bytes of the float that they are multiplied by.
        With a press, old entries are packed (models/native/press.py).

        Raises:
            RequestError: The library does not read the caches of this press, or not here.
        """
        size = self._head + 4 * (self.cache_dtype == "int8")
        return KVCache(
            empty_pooled_tensor(
                (self.layers, 2, self.config.kv_heads, min(GROWTH, self.context), size),
                getattr(torch, self.cache_dtype),
                CPU,
            ),
            press=None if press is None else self._press(press),
        )

    def _press(self, press: CachePress) -> StepPress:
        c = self.config
        # A press chooses among all earlier entries, and such layers see some of them only.
        if any(c.windows) or not c.causal:
            raise RequestError(
                f"cache is {press.called}: layers of this model see a window of the text, or what follows, and are read as "
                "they are only"
            )
        if self.cache_dtype != "float32":
            raise RequestError(
                f"cache is {press.called}: all caches of this model are kept as {self.cache_dtype}, so leave one of the two out"
            )
        return step_press(
            press,
            c.kv_heads * c.head,
            lambda shape: self._lib.step_press_bytes(self._model, C.byref(shape)),
            self._pack,
        )

    def _pack(self, shape: PressOf, kv: Tensor, out: Tensor) -> None:
        """Pack keys and values of a block of one layer, ``[2, kv heads, block, head]``, into bytes."""
        code = self._lib.step_press(
            self._model, C.byref(shape), kv.data_ptr(), kv.numel(), out.data_ptr(), out.numel()
        )
        if code == ENDLESS:
            raise MissingError(NOT_FINITE)
        self._check(code)

    def _turn(self, positions: int) -> None:
        """Make rotary tables for that many positions at least.

        Angles are rounded to fp32, as transformers has them: beyond a few hundred positions exact
        ones are another function.
        """
        if positions <= self._turned:
            return
        if positions > self.context:
            raise MissingError(
                f"the sequence has {positions} positions: the model's context holds {self.context}"
            )
        # The tables double, so that a growing text rarely makes them anew.
        n = min(self.context, max(positions, 2 * self._turned, 1024))
        for k, rope in enumerate(self.config.ropes):
            cosine, sine = (np.ascontiguousarray(t.numpy()) for t in rotary_cos_sin(rope, n))
            size = min(cosine.size, sine.size)
            self._check(
                self._lib.step_rotary(self._model, k, cosine.ctypes.data, sine.ctypes.data, size, n)
            )
        self._turned = n

    def _check(self, code: int) -> None:
        if code:
            raise MissingError(
                f"the native step refused a call: {self._lib.step_error(code).decode()}"
            )

    def forward(self, queries: Sequence[NetworkQuery]) -> Sequence[NetworkAnswer]:
        """Answers in order. Queries over the same layers run in one step, a limited number of rows
        at a time."""
        if any(q.cache.press is not None and len(q) > q.cache.press.block for q in queries):
            # what a row sees packed must have been there before the step
            return in_turns(
                self.forward,
                queries,
                [max(1, len(q)) if q.cache.press is None else q.cache.press.block for q in queries],
            )
        # The usual case, without grouping: all queries fit into one step of all layers.
        if (
            all(q.layers is None and not q.without for q in queries)
            and sum(map(len, queries)) <= LIMIT
        ):
            return self._step(queries, self._every)
        if self.config.causal:
            return forward_in_parts(self._steps, queries, LIMIT)
        return self._steps(queries)

    def _steps(self, queries: Sequence[NetworkQuery]) -> list[NetworkAnswer]:
        answers: dict[int, NetworkAnswer] = {}
        for (layers, without, _), index in group_into_passes(queries, self.layers, LIMIT):
            # The same object, which `_step` knows by identity.
            if layers == self._every:
                every = self._every
            else:
                every = layers
            answers.update(zip(index, self._step([queries[i] for i in index], every, without)))
        return [answers[i] for i in range(len(queries))]

    def _step(
        self,
        queries: Sequence[NetworkQuery],
        layers: tuple[int, ...],
        without: frozenset[int] = frozenset(),
    ) -> list[NetworkAnswer]:
        lists: list[list[int]] = [[] for _ in range(9)]
        # Of each row: token (-1: a vector comes in), cache, position, slot, how many slots it sees,
        # how many of these are the cache's first ones, and where in `tail` the rest are listed.
        # `out`: the rows that are answered.
        token, sequence, position, slot, seen, prefix, start, tail, out = lists
        wants: list[RowDetail] = []
        embeds: list[tuple[Sequence[int], Tensor]] = []
        parts: list[Any] = []
        caches = [CacheOf() for _ in queries]
        for s, q in enumerate(queries):
            n = len(q)
            row = len(token)
            # Held until the call is over: the library reads addresses only.
            parts.append(cache_of(caches[s], q.cache))
            if q.embed is None and self._widen is None:
                token += q.token
            else:
                # Embeddings that the library cannot look up come in as vectors.
                if q.token and self._widen is not None:
                    embeds.append((range(row, row + n), self._widen([max(x, 0) for x in q.token])))
                if q.embed is not None:
                    embeds.append(([row + i for i in q.given], q.embed))
                if self._widen is not None or not q.token:
                    token += [-1] * n
                else:
                    token += q.token
            self._place(q, n, position, seen, prefix, start, tail)
            # Vectors that are left of an image stand where they stood before.
            if q.cache.grids:
                position[row:] = grid_positions(q.cache.grids, position[row:])[2]
            sequence += [s] * n
            if q.cache.press is not None:
                for chunks, rows in visible_chunks(q.cache, q.first, position[row:]):
                    if rows[0]:  # of other branches of a draft that is longer than a block
                        for i in rows:
                            sequence[row + i] = len(caches)
                        caches.append(CacheOf())
                        parts.append(cache_of(caches[-1], q.cache))
                    parts.append(
                        fill_cache_descriptor(caches[-1 if rows[0] else s], q.cache, chunks, layers)
                    )
            if q.at is None:
                slot += range(q.first, q.first + n)
            else:
                slot += q.at
            out += [row + r for r in q.rows]
            wants.append(max(q.want.law, q.want.base))
        # Rotary tables must reach the furthest position before the call.
        if (need := max(position)) >= self._turned:
            self._turn(need + 1)
        # Few objects from here on: a pass has emptied the processor's caches, and each of them
        # costs a trip to memory.
        m = len(token)
        R = len(out)
        W = self.config.width
        # Which queries need rows of logits. The others get their argmax from the library, which
        # writes no logits for them.
        full = [w > RowDetail.ARGMAX for w in wants]
        if all(full):
            k = R
        else:
            k = sum(len(q.rows) for q, f in zip(queries, full) if f)
        depths: list[int] = []
        exit_at = self._no_exit
        if R and any(q.want.exits for q in queries):
            depths = sorted({d for q in queries for d in q.want.exits if d - 1 in layers})
            # Of each layer that runs, the row of `exits` that its output goes to; -1: none.
            exit_at = tuple(depths.index(i + 1) if i + 1 in depths else -1 for i in layers)
        reads = max(wants) > RowDetail.NOTHING
        # All integers of the batch in one array. Its parts are found by their offsets: seven lists
        # of m numbers, then rows, places of logits, room for the argmaxes, and the tails.
        ints = array(
            "i",
            [
                *token,
                *sequence,
                *position,
                *slot,
                *seen,
                *prefix,
                *start,
                *out,
                *(range(R) if k == R else self._places(queries, full)),
                *([0] * R if reads else ()),
                *tail,
                0,
            ],
        )
        base = ints.buffer_info()[0]
        outs = base + 28 * m
        tails = base + 28 * m + (12 if reads else 8) * R
        step = 4 * m
        if layers is self._every and not depths and not without:
            layer = self._run_all
        else:
            layer = array(
                "i",
                [
                    *layers,
                    *exit_at[: len(layers)],
                    *[3 - (2 * i in without) - 2 * (2 * i + 1 in without) for i in layers],
                    0,
                ],
            )
        # Three lists of one number a layer: its index, its exit, its halves.
        which = layer.buffer_info()[0]
        count = 4 * len(layers)
        if depths:
            exits = torch.empty(len(depths), R, W)
        else:
            exits = None
        embed = None
        if embeds:
            embed = torch.zeros(m, W)
            for rows, e in embeds:
                embed[list(rows)] = e.to(embed)
        # Only passes that move the router pay for its table.
        moved = self.routes is not None and any(q.want.routing is not None for q in queries)
        if self.routes is not None and moved:
            routing = _routing(queries, *self.routes)
        else:
            routing = None
        if k:
            logits = empty_pooled_tensor((k, self._outputs), torch.float32, CPU)
        else:
            logits = None
        # Room for states, also where only an argmax is asked: laws of more may be asked for later.
        if any(w == RowDetail.ARGMAX or q.want.hidden for w, q in zip(wants, queries)):
            hidden = (C.c_float * (R * W))()
        else:
            hidden = None
        # Caches of the batch stand in one array, of which each query names one.
        where = (CacheOf * len(caches))(*caches)
        b = NativeBatch(
            m,
            len(caches),
            len(layers),
            len(tail),
            R,
            C.addressof(where),
            which,
            which + count,
            which + 2 * count,
            base,
            base + step,
            base + 2 * step,
            base + 3 * step,
            base + 4 * step,
            base + 5 * step,
            base + 6 * step,
            tails,
            None if embed is None else embed.data_ptr(),
            outs,
            outs + 4 * R,
            None if logits is None else logits.data_ptr(),
            outs + 8 * R if reads else None,
            None if hidden is None else C.addressof(hidden),
            None if exits is None else exits.data_ptr(),
            None if routing is None else routing.data_ptr(),
        )
        # A number that is not finite has a sentence of its own: weights or rounding are to blame.
        if code := self._lib.step_run(self._model, C.byref(b)):
            if code == ENDLESS:
                raise MissingError(NOT_FINITE)
            self._check(code)
        best: list[int] = []
        if reads and R:
            # The library wrote the argmaxes into the array; a negative one marks a row with numbers
            # that are not finite.
            best = ints[7 * m + 2 * R : 7 * m + 3 * R].tolist()
            if min(best) < 0:
                raise MissingError(NOT_FINITE)
            if self._tokens is not None:
                best = self._tokens[torch.tensor(best)].tolist()
        # The usual answer of one request, made of as few objects as possible.
        if len(queries) == 1 and k == R and hidden is None and exits is None and logits is not None:
            want = queries[0].want
            if self._tokens is None:
                law = logits
            else:
                law = self._full(logits)
            return [
                NetworkAnswer(
                    law,
                    None,
                    best,
                    top=self.top_tokens if RowDetail.TOPK in (want.law, want.base) else None,
                )
            ]
        answers = self._answers(
            queries, wants, [len(q.rows) * f for q, f in zip(queries, full)], logits, best, hidden
        )
        if exits is None:
            return answers
        # Exits of all queries lie one after another, in the order of the answered rows.
        ends = np.cumsum([len(q.rows) for q in queries])
        return [
            replace(
                a,
                exits={
                    d: exits[k, end - len(q.rows) : end]
                    for k, d in enumerate(depths)
                    if d in q.want.exits
                },
            )
            for a, q, end in zip(answers, queries, ends)
        ]

    @staticmethod
    def _places(queries: Sequence[NetworkQuery], full: Sequence[bool]) -> Iterator[int]:
        """Which row of the logits each answered row gets, -1 where none."""
        k = 0
        for q, f in zip(queries, full):
            yield from range(k, k + len(q.rows)) if f else [-1] * len(q.rows)
            k += len(q.rows) * f

    def _answers(
        self,
        queries: Sequence[NetworkQuery],
        wants: Sequence[RowDetail],
        need: Sequence[int],
        logits: Tensor | None,
        best: list[int],
        hidden: Any,
    ) -> list[NetworkAnswer]:
        def answered_states(r: int, end: int) -> Tensor:
            """Hidden states of some answered rows.

            Args:
                r: The first one.
                end: The one after the last.

            Returns:
                ``[end - r, width]``, a view.
            """
            # A view of the library's memory: nothing is copied.
            if len(hidden):
                rows_RW = torch.frombuffer(hidden, dtype=torch.float32)
            else:
                rows_RW = torch.empty(0)
            return rows_RW.view(-1, self.config.width)[r:end]

        answers: list[NetworkAnswer] = []
        r = k = 0
        for q, w, n in zip(queries, wants, need):
            # Queries' rows stand one after another in the answer.
            end = r + len(q.rows)
            reads = w > RowDetail.NOTHING and end > r
            answers.append(
                NetworkAnswer(
                    self._full(logits[k : k + n]) if n and logits is not None else None,
                    answered_states(r, end) if q.want.hidden else None,
                    best[r:end] if reads else None,
                    # The head runs later, if at all: the argmax was found without keeping the
                    # logits.
                    (lambda r=r, end=end: self.head_logits(answered_states(r, end)))
                    if reads and not n
                    else None,
                    top=self.top_tokens if RowDetail.TOPK in (q.want.law, q.want.base) else None,
                )
            )
            r = end
            k = k + n
        return answers

    def _full(self, logits: Tensor) -> Tensor:
        if self._tokens is None:
            return logits
        return logits.new_full((len(logits), self.size), float("-inf")).index_copy_(
            1, self._tokens, logits
        )

    def head_logits(self, hidden_RH: Tensor) -> Tensor:
        """Logits of hidden states: what a pass over these rows gave, or would have given."""
        if len(hidden_RH):
            out = []
        else:
            out = [torch.empty(0, self.size)]
        # A pass over no layers: states go in, and through the final norm and the head.
        for some_RH in hidden_RH.split(LIMIT) if len(hidden_RH) else ():
            nothing = torch.empty(()).expand(
                self.layers, 2, self.config.kv_heads, len(some_RH), self._head
            )
            cache = KVCache(nothing)  # no layer runs: nobody writes there
            cache.stage_slots(range(-1, len(some_RH) - 1))
            q = NetworkQuery(cache, 0, (), range(len(some_RH)), _ROW, embed=some_RH, layers=())
            logits_RV = self._step([q], ())[0].logits_RV
            assert logits_RV is not None
            out.append(logits_RV)
        if len(out) == 1:
            return out[0]
        return torch.cat(out)

    def normed_states(self, hidden_RH: Tensor) -> Tensor:
        """States after the final norm, ``[n, width]``."""
        return rms_norm(hidden_RH.float(), self._norm_W.shape, self._norm_W, self.config.eps)

    @property
    def sees_ahead(self) -> bool:
        """Whether tokens of a query may see one another, those behind them too (`mutual`)."""
        # Where a window begins is counted from the last slot that a row sees.
        return self.config.causal and not any(self.config.windows)

    @property
    def still(self) -> str:
        """Why cached keys cannot be turned to other positions; "": they can."""
        if self.cache_dtype != "float32":
            return f"cache_dtype is {self.cache_dtype!r}, which turns would round again and again"
        return why_not_rotatable(self.config)

    def turn_entries(self, kv: Tensor, first: int, by: int) -> Tensor:
        """Give cached entries as they would be at other positions; values stay as they are.

        The factors are those of the step's own tables.

        Args:
            kv: Entries of consecutive positions, ``[layers, 2, kv heads, n, head]``, float32.
            first: Position of the first entry.
            by: How many positions further on they shall stand; it may be negative.

        Returns:
            A copy of the same shape.
        """
        n = kv.shape[-2]

        def sine_tables(k: int) -> tuple[Tensor, Tensor]:
            cosine, sine = rotary_cos_sin(self.config.ropes[k], max(first, first + by) + n)
            turn = torch.complex(cosine, sine)
            return turn[first : first + n], turn[first + by : first + by + n]

        return rotate_cached_keys(kv, by, self.config, True, sine_tables)

    def read_keys(
        self, cache: KVCache, stop: int, layer: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read keys and values that a cache holds.

        Args:
            cache: A cache of this network.
            stop: Number of entries.
            layer: Index of the layer; None: the last one.

        Returns:
            Keys and values, each ``[kv heads, stop, head]``, float32.

        Raises:
            RequestError: The cache is pressed.
        """
        if cache.press is not None:
            raise RequestError(
                f"cache is {cache.press.called}: what it keeps of old text is not shown to a drafter"
            )
        both = cache.layer_entries(self.layers - 1 if layer is None else layer, stop)
        if self.cache_dtype == "int8":
            # The last four bytes of a head's vector are its scale.
            scale = both[..., self._head :].contiguous().view(torch.float32)
            both = both[..., : self._head] * scale
        keys, values = both.float()
        return keys, values

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        """What enters the first layer, ``[n, width]``."""
        if self._widen is not None:
            return self._widen(tokens)
        if tokens:
            return torch.stack([self.embedding_row(x) for x in tokens])
        return torch.empty(0, self.config.width)

    def top_tokens(self, logits_RV: Tensor, k: int) -> list[list[int]]:
        """Find the likeliest tokens of each row.

        Args:
            logits_RV: Logits.
            k: How many a row; all, where there are fewer.

        Returns:
            Token ids of each row, likeliest first.
        """
        (R, V), most = logits_RV.shape, min(k, logits_RV.shape[1])
        token_RN = np.empty((R, most), np.int32)
        rows_RV = logits_RV.contiguous()
        self._check(
            self._lib.step_top(
                self._model,
                rows_RV.data_ptr(),
                rows_RV.numel(),
                R,
                V,
                most,
                token_RN.ctypes.data,
                token_RN.size,
            )
        )
        return token_RN.tolist()

    def _place(
        self,
        q: NetworkQuery,
        n: int,
        position: list[int],
        seen: list[int],
        prefix: list[int],
        start: list[int],
        tail: list[int],
    ) -> None:
        """Note where the n rows of a query stand and what they see."""
        cache = q.cache
        stop = q.first + n
        length = cache.length
        parent = cache.parent
        chain = stop <= length or parent[: stop - length] == [*range(-1, stop - length - 1)]
        # Bidirectional: a row sees all slots up to the end of its block, or of the cache.
        if not self.config.causal:
            if not chain:
                position += self._depths(q)
            else:
                position += q.slots
            block = self.config.block or cache.end
            ends = [min(cache.end, (s // block + 1) * block) for s in q.slots]
            seen += ends
            prefix += ends
            start += [0] * n
            return
        # A chain: each row sees every slot up to its own.
        if chain:
            position += range(q.first, stop)
            # The last ones may see one another: all up to the end.
            free = stop - q.mutual
            ends = [*range(q.first + 1, free + 1), *[stop] * q.mutual]
            seen += ends
            prefix += ends
            start += [0] * n
            return
        # A tree: a row sees the committed slots, then its own path, slot by slot. A path is its
        # parent's and one slot more.
        paths = list[tuple[int, ...]]()
        # A staged entry's path is its parent's and itself.
        for j, p in enumerate(parent[: stop - length]):
            paths.append((*(paths[p] if p >= 0 else ()), length + j))
        for s in range(q.first, stop):
            if s < length:
                path = ()
            else:
                path = paths[s - length]
            # Of a committed entry all up to itself are seen; a staged one sees all committed ones.
            shown = s + 1 if s < length else length
            position.append(s if s < length else length + len(path) - 1)
            prefix.append(shown)
            seen.append(shown + len(path))
            start.append(len(tail))
            tail += path

    @staticmethod
    def _depths(q: NetworkQuery) -> list[int]:
        """Positions of a query's rows where the staged entries have branches."""
        depth = list[int]()
        for p in q.cache.parent:
            depth.append(depth[p] + 1 if p >= 0 else 0)
        length = q.cache.length
        return [
            s if s < length else length + depth[s - length]
            for s in range(q.first, q.first + len(q))
        ]

    def profile_seconds(self) -> dict[str, float]:
        """Seconds since the last call, of the first thread: linear layers, attention, the rest, the
        head."""
        # The library keeps the clocks of the first thread alone.
        t = (C.c_double * 4)()
        self._lib.step_profile(self._model, t)
        return dict(zip(("linear", "attention", "rest", "head"), t))

    @property
    def pass_threads(self) -> int:
        """Threads that a pass of few rows takes at present, 1 to `threads`: fewer where another
        program holds the passes up."""
        # The library decides: no Python runs between two passes of a draft's tree.
        return self._lib.step_threads(self._model)

    def learn_threads(self, rows: int, seconds: float, slept: float) -> None:
        """Let the choice of threads know of a pass, as every pass of up to 16 rows does itself.

        Args:
            rows: Its rows, 1 to 16.
            seconds: What it took.
            slept: Seconds that its threads slept for one another.
        """
        # Tests tell recorded times: what a test decides may depend on no clock.
        self._lib.step_learn_threads(self._model, rows, seconds, slept)

    @property
    def nbytes(self) -> int:
        """Bytes of weights that a pass reads."""
        return self._lib.step_bytes(self._model)

    def measure_bandwidth(self) -> float:
        """Bytes a second at which all threads read the packed weights."""
        return self._lib.step_bandwidth(self._model)

    def measure_peak(self) -> float:
        """fp32 operations a second of all threads."""
        return self._lib.step_peak(self._model)

    def embedding_row(self, token: int) -> Tensor:
        """One row of the embedding table, as the file's dequantisation gives it."""
        row = torch.empty(self.config.width)
        self._check(self._lib.step_row(self._model, token, row.data_ptr(), row.numel()))
        return row


def _routing(queries: Sequence[NetworkQuery], layers: int, experts: int) -> Tensor:
    """What is added to the router's scores of each row (`ScoreRequest.routing`), ``[rows, layers,
    experts]``."""
    out = torch.zeros(sum(map(len, queries)), layers, experts)
    row = 0
    for q in queries:
        if q.want.routing is not None:
            out[[row + r for r in q.rows]] = torch.tensor(q.want.routing)
        row += len(q)
    return out


def _experts(c: TransformerConfig) -> tuple[int, int, int, bool]:
    x = c.experts
    if x is None:
        return (0, 0, 0, False)
    return (x.count, x.used, x.inner, x.share_used)


def cache_of(to: CacheOf, cache: KVCache) -> Any:
    """Say where a cache's entries lie, for the library.

    Args:
        to: The library's record of the cache; it is written to.
        cache: The cache.

    Returns:
        What must live as long as `to` is read.
    """
    to.kv = cache.address
    to.capacity = cache.capacity
    to.start = cache.start
    if not cache.shared:
        return None
    parts = _parts(cache)
    to.parts, to.part = len(parts), C.addressof(parts)
    return parts


def _parts(cache: KVCache) -> Any:
    """Where the entries lie that a cache shares with others."""
    out = (PartOf * len(cache.shared))()
    for part, lease in zip(out, cache.shared):
        kv = lease.of.kv
        part.kv = kv.data_ptr()
        part.capacity = kv.shape[-2]
        part.first = lease.of.start
        part.stop = lease.stop
    return out


def rotary_cos_sin(rope: RotaryEmbedding, n: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines of the first positions, of angles rounded to float32 as transformers does.

    Args:
        rope: The rotary embedding.
        n: Number of positions.

    Returns:
        Cosines and sines, each ``[n, head / 2]``, float32.
    """
    if rope.kind in ("dynamic", "longrope"):  # the frequencies depend on the position
        turn = rope.factor_table(0, n)
        return turn.real.float(), turn.imag.float()
    unit = rope.factor_table(1, 2)[0]
    inverse = 1.0 / rope.base ** (torch.arange(0, rope.dim, 2).float() / rope.dim)
    if rope.kind == "linear":
        inverse = inverse / rope.options["factor"]
    elif rope.kind != "default":
        inverse = unit.angle().float()  # below a turn: position 1
    angle = torch.arange(n).float()[:, None] * inverse
    # Some kinds scale the embedding: a factor's length says by how much.
    size = float(unit[0].abs())
    return (angle.double().cos() * size).float(), (angle.double().sin() * size).float()
