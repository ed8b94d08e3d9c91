"""Batched speculation: padded caches that are realigned (EqSpec), rows grouped by length (ExSpec), and our ragged cache.

EqSpec and ExSpec (Batch Speculative Decoding Done Right, 2025) are here as reference schedulers over a cache that holds a
batch as one padded tensor, on transformers' network in float32. Rows are padded on the left; after each pass every row keeps
another number of tokens, so EqSpec copies all keys and values to their new places. ExSpec keeps a pool of rows without
padding, takes rows of one length where there are enough and falls back to EqSpec's alignment where there are not. Both accept
a whole draft and the token behind it (the published code drops that token), track lengths instead of looking for a padding
id, and keep finished rows out of the batch. Our engine writes each row at its own end and realigns nothing. It runs both as
`batching` as well (request/batching.py): the same loop, the same kernels, the same drafts, but passes laid out and chosen as
they do, so that the difference between these rows is the layout alone.

All use the same drafts, prompt lookup of --depth tokens, and greedy decoding: tokens must equal those of single requests.
Without --time only counts are printed; with it tokens a second too, by the process's own time (give --threads 1).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent / "claims"))
from seen import arguments, lines, part, report

from polydec import api
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.nets.hf import cache_keyword
from polydec.models.sessions.sources import open_source
from polydec.request.batching import BatchingMode, EqSpec, ExSpec


@dataclass
class Row:
    """One sequence: its tokens (the last one not in the cache), what it may still write, and its drafter."""

    prompt: int
    tokens: list[int]
    limit: int
    guess: Any
    kv: list[tuple[Tensor, Tensor]] | None = None  # unpadded, [heads, tokens - 1, head] (ExSpec)

    def propose(self, depth: int) -> list[int]:
        room = self.prompt + self.limit - len(self.tokens) - 1
        draft = run_coroutines(
            [
                self.guess.propose_draft(
                    self.tokens[-1],
                    len(self.tokens),
                    DraftBudget(min(depth, room), depth),
                    Rng.of_choice(0),
                )
            ]
        )[0]
        return list(draft.token[1:])

    def take(
        self, drafted: Sequence[int], said: Sequence[int], ends: frozenset[int]
    ) -> tuple[int, bool]:
        """Keep what the target confirms and its next token: (drafts that were kept, whether the row has ended)."""
        got = next((i for i, (a, b) in enumerate(zip(drafted, said)) if a != b), len(drafted))
        new = [*drafted[:got], said[got]]
        for i, x in enumerate(new):
            if x in ends:
                new = new[: i + 1]
                break
        self.guess.learn_round(
            Draft.chain_draft(self.tokens[-1], new[:-1]),
            None,
            Verdict(tuple(range(1, len(new))), new[-1]),
        )
        self.tokens += new
        return len(new) - 1, new[-1] in ends or len(self.tokens) - self.prompt >= self.limit


@dataclass
class Account:
    """What a scheduler did. moved: bytes of keys and values that alignment copied; fed: positions, padding included."""

    passes: int = 0
    rows: int = 0
    fed: int = 0
    padding: int = 0
    moved: int = 0
    grouped: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: {"pass": 0.0, "align": 0.0})

    def timed(self, what: str, work: Callable[[], Any]) -> Any:
        start = time.perf_counter()
        out = work()
        self.seconds[what] += time.perf_counter() - start
        return out


class Padded:
    """A network of transformers over caches that are one tensor a layer: [rows, heads, slots, head], padded on the left."""

    def __init__(self, net: Any) -> None:
        self.net, self.config = net.eval(), net.config

    @staticmethod
    def load(name: str) -> Padded:
        """A checkpoint by polydec's names, in float32."""
        from transformers import AutoConfig, AutoModelForCausalLM

        source = open_source(name)
        net = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**source.config), dtype=torch.float32
        )
        state = {k: source.weights[k].float() for k in source.weights}
        state.setdefault("lm_head.weight", state["model.embed_tokens.weight"])
        net.load_state_dict(state)
        return Padded(net)

    @torch.inference_mode()
    def step(
        self,
        kv: list[tuple[Tensor, Tensor]] | None,
        pads: Sequence[int],
        lengths: Sequence[int],
        ids: list[list[int]],
    ) -> tuple[list[list[int]], list[tuple[Tensor, Tensor]]]:
        """Feed ids (rows of one length) behind the cache: the likeliest token after each, and the longer cache. lengths: of
        what is cached of each row."""
        from transformers import DynamicCache

        cache, slots = DynamicCache(config=self.config), 0 if kv is None else kv[0][0].shape[2]
        for layer, (k, v) in enumerate(kv or ()):
            cache.update(k, v, layer)
        new = len(ids[0])
        mask = torch.ones(len(ids), slots + new, dtype=torch.long)
        for b, pad in enumerate(pads):
            mask[b, :pad] = 0
        position = torch.tensor([[n + j for j in range(new)] for n in lengths])
        out = self.net(
            torch.tensor(ids),
            attention_mask=mask,
            position_ids=position,
            use_cache=True,
            **{cache_keyword(self.net): cache},
        )
        return out.logits.argmax(-1).tolist(), [
            (layer.keys, layer.values) for layer in cache.layers
        ]

    def prefill(self, row: Row) -> None:
        """All but the last token."""
        if len(row.tokens) > 1:
            _, kv = self.step(None, [0], [0], [row.tokens[:-1]])
            row.kv = [(k[0], v[0]) for k, v in kv]
        else:
            c = self.config
            none = torch.zeros(
                c.num_key_value_heads,
                0,
                c.hidden_size // c.num_attention_heads,
                dtype=self.net.dtype,
            )
            row.kv = [(none, none) for _ in range(c.num_hidden_layers)]


def align(
    parts: Sequence[Sequence[tuple[Tensor, Tensor]]], account: Account
) -> list[tuple[Tensor, Tensor]]:
    """Unpadded caches as one, padded on the left to the longest."""
    slots, out = max(p[0][0].shape[1] for p in parts), []
    for layer in range(len(parts[0])):
        both = []
        for side in (0, 1):
            first = parts[0][layer][side]
            whole = first.new_zeros(len(parts), first.shape[0], slots, first.shape[2])
            for b, p in enumerate(parts):
                x = p[layer][side]
                whole[b, :, slots - x.shape[1] :] = x
                account.moved += x.nbytes
            both.append(whole)
        out.append((both[0], both[1]))
    return out


def drafts(rows: Sequence[Row], depth: int) -> tuple[list[list[int]], list[list[int]]]:
    """What each row drafts, and the ids to feed, shorter drafts filled up (what is filled up counts as rejected)."""
    drafted = [r.propose(depth) for r in rows]
    most = max(map(len, drafted))
    return drafted, [
        [r.tokens[-1], *d, *[0] * (most - len(d))] for r, d in zip(rows, drafted, strict=True)
    ]


def check(pads: Sequence[int], rows: Sequence[Row], kv: Sequence[tuple[Tensor, Tensor]]) -> None:
    """The invariants of a padded batch: one padding for ids, mask and cache; exactly the tokens but the last are cached."""
    for pad, row in zip(pads, rows, strict=True):
        assert pad + len(row.tokens) - 1 == kv[0][0].shape[2], (
            "a row's cache does not end where the batch's does"
        )


def verify(
    net: Padded,
    rows: list[Row],
    kv: list[tuple[Tensor, Tensor]],
    depth: int,
    ends: frozenset[int],
    account: Account,
) -> tuple[list[tuple[Tensor, Tensor]], list[int], list[bool]]:
    """One pass over drafts of all rows: the longer cache, how many of its slots each row keeps, and which rows ended."""
    slots, lengths = kv[0][0].shape[2], [len(r.tokens) - 1 for r in rows]
    pads = [slots - n for n in lengths]
    check(pads, rows, kv)
    drafted, ids = drafts(rows, depth)
    said, kv = account.timed("pass", lambda: net.step(kv, pads, lengths, ids))
    account.passes, account.rows, account.fed = (
        account.passes + 1,
        account.rows + len(rows),
        account.fed + sum(map(len, ids)),
    )
    account.padding += sum(pads)
    done = [r.take(d, s, ends)[1] for r, d, s in zip(rows, drafted, said, strict=True)]
    return kv, [p + len(r.tokens) - 1 for p, r in zip(pads, rows, strict=True)], done


def eqspec(net: Padded, rows: list[Row], batch: int, depth: int, ends: frozenset[int]) -> Account:
    """Batches of rows to their ends, one after another; after each pass the whole cache is laid out anew."""
    account = Account()
    for i in range(0, len(rows), batch):
        live = rows[i : i + batch]
        for r in live:
            net.prefill(r)
        kv = align([r.kv for r in live], account)
        while live:
            longer, stops, done = verify(net, live, kv, depth, ends, account)

            def realign(
                live: Any = live, longer: Any = longer, stops: Any = stops, done: Any = done
            ) -> Any:
                keep = [b for b, over in enumerate(done) if not over]
                parts = [
                    [
                        (
                            k[b, :, stops[b] - len(live[b].tokens) + 1 : stops[b]],
                            v[b, :, stops[b] - len(live[b].tokens) + 1 : stops[b]],
                        )
                        for k, v in longer
                    ]
                    for b in keep
                ]
                return [live[b] for b in keep], align(parts, account) if keep else []

            live, kv = account.timed("align", realign)
    return account


def exspec(
    net: Padded, rows: list[Row], batch: int, depth: int, ends: frozenset[int], window: int
) -> Account:
    """A window of rows, each with a cache of its own; rows of one length make a batch where there are enough."""
    account, waiting = Account(), sorted(rows, key=lambda r: len(r.tokens))
    live: list[Row] = []
    while live or waiting:
        while waiting and len(live) < window:
            live.append(waiting.pop(0))
            net.prefill(live[-1])
        groups: dict[int, list[Row]] = {}
        for r in live:
            groups.setdefault(len(r.tokens), []).append(r)
        most = max(groups.values(), key=len)
        whole = len(most) >= min(batch, len(live))
        chosen = (most if whole else sorted(live, key=lambda r: len(r.tokens)))[:batch]
        account.grouped += whole
        if whole:  # stacked as they are: the copy is the network's, not an alignment
            kv = [
                (
                    torch.stack([r.kv[i][0] for r in chosen]),
                    torch.stack([r.kv[i][1] for r in chosen]),
                )
                for i in range(len(chosen[0].kv))
            ]
        else:
            kv = account.timed("align", lambda c=chosen: align([r.kv for r in c], account))
        longer, stops, done = verify(net, chosen, kv, depth, ends, account)
        for b, r in enumerate(chosen):
            first = stops[b] - len(r.tokens) + 1
            r.kv = [(k[b, :, first : stops[b]], v[b, :, first : stops[b]]) for k, v in longer]
        over = {id(r) for r, d in zip(chosen, done, strict=True) if d}
        live = [r for r in live if id(r) not in over]
    return account


def ours(
    lm: api.LoadedModel,
    prompts: Sequence[Sequence[int]],
    running: int,
    args: argparse.Namespace,
    batching: BatchingMode | None = None,
) -> tuple[list[Any], float, Any]:
    """Token ids of each prompt, `running` at a time, this process's seconds for all, and what laying passes out took."""
    engine = api.Engine(lm, max_running=running, batching=batching)
    start = time.process_time()
    tickets = [
        engine.submit(
            ids,
            method="prompt-lookup",
            raw=True,
            options={"depth": args.depth, "growth": 0, "cost_aware": False},
            max_tokens=args.tokens,
            sampling=lm.sampling_with(temperature=0.0),
        )
        for ids in prompts
    ]
    out = [c.token_ids for c in engine.run(tickets)]
    return out, time.process_time() - start, getattr(engine.model.network, "account", None)


def main() -> None:
    parser: Any = arguments(
        __doc__, model="zoo:tiny", dtype="float32", prompts=24, tokens=48, depth=5, window=0
    )
    parser.add_argument("--batches", default="1,4,8")
    parser.add_argument(
        "--reference",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="the reference schedulers over transformers as well",
    )
    parser.add_argument("--time", action="store_true", help="print seconds: on a quiet machine")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    lm = api.load(args.model, draft=None, dtype=args.dtype, threads=args.threads)
    net = Padded.load(args.model) if args.reference else None
    ends = lm.checkpoint.lm.vocab.eos
    turns = part(
        (r["turns"][0] for r in lines("spec_bench/question.jsonl") if len(r["turns"][0]) < 800),
        10**6,
        args.tune,
    )
    prompts = [
        lm.encode_prompt(t) for t in turns[:: max(1, len(turns) // args.prompts)][: args.prompts]
    ]
    single, _, _ = ours(lm, prompts, 1, args)
    n, out = sum(map(len, single)), list[dict[str, Any]]()
    for batch in map(int, args.batches.split(",")):
        got, seconds, _ = ours(lm, prompts, batch, args)
        out.append(
            {
                "batch": batch,
                "scheduler": "ours",
                "equal to singles": f"{sum(a == b for a, b in zip(got, single))} of {len(prompts)}",
                "MB realigned per token": 0.0,
                **({"tokens/s": n / seconds} if args.time else {}),
            }
        )
        window = args.window or 3 * batch
        for layout, running in ((EqSpec(batch), batch), (ExSpec(batch), window)):
            got, seconds, account = ours(lm, prompts, running, args, layout)
            out.append(
                {
                    "batch": batch,
                    "scheduler": f"ours, {layout.name}",
                    "equal to singles": f"{sum(a == b for a, b in zip(got, single))} of {len(prompts)}",
                    "MB realigned per token": account.moved / 1e6 / n,
                    "MB stacked per token": account.stacked / 1e6 / n,
                    "rows per pass": account.rows / max(1, account.passes),
                    "padding per row": account.padding / max(1, account.rows),
                    "passes grouped": account.grouped / max(1, account.passes),
                    **({"tokens/s": n / seconds} if args.time else {}),
                }
            )
        for name in ("eqspec", "exspec") if args.reference else ():
            rows = [
                Row(len(ids), list(ids), args.tokens, LookupDrafter(8).open_guess(ids, None))
                for ids in prompts
            ]
            start = time.process_time()
            account = (
                eqspec(net, rows, batch, args.depth, ends)
                if name == "eqspec"
                else exspec(net, list(rows), batch, args.depth, ends, window)
            )
            whole = time.process_time() - start
            same = sum(tuple(r.tokens[r.prompt :]) == t for r, t in zip(rows, single, strict=True))
            out.append(
                {
                    "batch": batch,
                    "scheduler": name,
                    "equal to singles": f"{same} of {len(prompts)}",
                    "MB realigned per token": account.moved / 1e6 / n,
                    "rows per pass": account.rows / account.passes,
                    "padding per row": account.padding / account.rows,
                    **(
                        {"passes grouped": account.grouped / account.passes}
                        if name == "exspec"
                        else {}
                    ),
                    **(
                        {
                            "tokens/s": n / whole,
                            "realigning / passes": account.seconds["align"]
                            / account.seconds["pass"],
                        }
                        if args.time
                        else {}
                    ),
                }
            )
    report(
        args,
        f"prompt lookup of {args.depth} tokens, greedy, float32; eqspec and exspec over transformers",
        out,
    )


if __name__ == "__main__":
    main()
