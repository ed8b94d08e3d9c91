"""S2D against drafts of a single depth, for two targets of one tokenizer, greedy: what a token costs in passes of the target,
where a layer and the head of each model cost their parameters; and how good each exit is beside a draft trained for it alone.

--drafts: a directory; what is not in it is trained there (`nested`, and `depth-D` for each of its exits alone, on as many
tokens each, so that those together have read three times the tokens of the nested one). --second: the other target, such as
  polydec train lm --out DIR --start zoo:tiny --layers 8 --early-exit 1 --layer-dropout 0.1 --steps 420

Rounds are replayed on the greedy text of each target (drafts are greedy, so that a round follows from its place), with all
thresholds, stops and lengths on prompts for tuning, and with those that were cheapest there on prompts for measuring. The fixed
depths have stop and length tuned as well. At last the recipe runs, and its passes must be those of the replay.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import exp
from pathlib import Path
from typing import Any

from exits import counted, greedy, prompts, sizes
from seen import DATA, arguments, interval, model, report, shaped

from polydec import load
from polydec.api import LoadedModel
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.kits import build
from polydec.lab.train.data import KINDS, split_documents
from polydec.lab.train.evaluate import bits_per_byte
from polydec.lab.train.exits import copy_with_layers
from polydec.lab.train.lm import LMSpec, encode_corpus
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.sorted import SortedSpec, exits_of, train_sorted
from polydec.models.sessions.lm import CausalLaw as Law

BARS = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 1.1)
STOPS, LENGTHS = (0.0, 0.1, 0.2, 0.3, 0.45), (1, 2, 3, 4, 6)


@dataclass(frozen=True)
class Rule:
    """How drafts are made: the exits, a threshold for each but the last, the stop and the greatest length."""

    exits: tuple[int, ...]
    bars: tuple[float, ...] = ()
    stop: float = 0.0
    length: int = 0

    def __str__(self) -> str:
        return f"({', '.join(map(str, (*self.bars, f'stop {self.stop}', self.length)))})"


@dataclass(frozen=True)
class Sum:
    """Of one text: tokens, passes of the target, drafted tokens, and what the draft ran: layers and heads, a pass each."""

    tokens: int = 0
    passes: int = 0
    drafted: int = 0
    layers: int = 0
    heads: int = 0

    def __add__(self, o: Sum) -> Sum:
        return Sum(
            self.tokens + o.tokens,
            self.passes + o.passes,
            self.drafted + o.drafted,
            self.layers + o.layers,
            self.heads + o.heads,
        )


Ask = Callable[[tuple[int, ...]], Mapping[int, tuple[int, float]]]
"""Behind these drafted tokens: of each exit its likeliest token and that token's probability."""
Key = tuple[bool, int, str]
"""(whether heads count, which target, method)."""


def once(rule: Rule, ask: Ask, text: Sequence[int]) -> Sum:
    """One round before `text`."""
    drafted, layers, heads = (), 0, 0
    for _ in range(min(rule.length, len(text) - 1)):
        says, at, sure = ask(drafted), rule.exits[-1], 0.0
        for at, bar in zip(rule.exits, (*rule.bars, 0.0), strict=True):
            if bar <= 1.0:
                heads += 1
                if says[at][1] >= bar:
                    break
        layers += at
        token, sure = says[at]
        if sure < rule.stop:
            break
        drafted = (*drafted, token)
    kept = next((i for i, (a, b) in enumerate(zip(drafted, text)) if a != b), len(drafted))
    return Sum(kept + 1, 1, len(drafted), layers, heads)


def walk(
    draft: Law, rules: Sequence[Rule], prompt: Sequence[int], text: Sequence[int]
) -> list[Sum]:
    """Of each rule its rounds through the text. What the draft says is computed once for all rules that stand at a place."""
    session, want = (
        draft.open_session(prompt),
        ScoreRequest(
            law=RowDetail.NOTHING, exits=tuple(sorted({e for r in rules for e in r.exits}))
        ),
    )
    sums, at, root, known = (
        [Sum()] * len(rules),
        [0] * len(rules),
        prompt[-1],
        dict[Any, dict[int, tuple[int, float]]](),
    )

    def ask(drafted: tuple[int, ...]) -> Mapping[int, tuple[int, float]]:
        if drafted not in known:
            scores = run_coroutines([session.score_draft(Draft.chain_draft(root, drafted), want)])[
                0
            ]
            tops = [
                law.likeliest_tokens(0, 1)
                for law in [scores.exit_laws(e, (len(drafted),)) for e in want.exits]
            ]
            known[drafted] = {
                e: (token, exp(logp)) for e, ((token,), (logp,)) in zip(want.exits, tops)
            }
        return known[drafted]

    for i, x in enumerate(text):
        known.clear()
        for k, rule in enumerate(rules):
            if at[k] == i:
                got = once(rule, ask, text[i:])
                sums[k], at[k] = sums[k] + got, i + got.tokens
        session.commit_tokens((root,))
        root = x
    session.close()
    return sums


def rules_of(exits: tuple[int, ...]) -> list[Rule]:
    """Every rule over these exits; behind an exit that is always taken one threshold stands for all."""
    bars = [
        b
        for b in product(BARS, repeat=len(exits) - 1)
        if 0.0 not in b or set(b[b.index(0.0) + 1 :]) <= {BARS[-1]}
    ]
    return [Rule(exits, b, s, n) for b in bars for s in STOPS for n in LENGTHS]


def always(rule: Rule) -> int:
    """The exit that this rule always takes, 0 where it depends."""
    first, bar = next(
        (e, b) for e, b in zip(rule.exits, (*rule.bars, 0.0), strict=True) if b <= 1.0
    )
    return first if bar == 0.0 else 0


def trained(args: argparse.Namespace) -> dict[str, Path]:
    """The drafts' directories; what is not there is trained."""
    where, exits = Path(args.drafts), exits_of(args.layers)
    out = {"nested": where / "nested"} | {f"depth {e} alone": where / f"depth-{e}" for e in exits}
    for path, own in zip(out.values(), (exits, *((e,) for e in exits)), strict=True):
        if not (path / "training.json").exists():
            train_sorted(
                SortedSpec(
                    str(path),
                    args.model,
                    str(DATA),
                    own[-1],
                    args.width,
                    own,
                    steps=args.steps,
                    seed=args.seed,
                )
            )
    return out


def losses(drafts: Mapping[str, Path], args: argparse.Namespace) -> list[dict[str, Any]]:
    """Bits per byte of held-out text: of each exit, and of the draft that was trained at its depth alone."""
    tokenizer = find_tokenizer(LMSpec("", tokenizer=args.model), Path(), (), 0)
    corpus = encode_corpus(
        tokenizer, {k: split_documents(DATA, k, 1, args.held_kb * 1000, args.seed) for k in KINDS}
    )

    def bits(network: Any) -> dict[str, float]:
        return {
            k: bits_per_byte(network, v, corpus.held_bytes[k], context=network.s.context)
            for k, v in corpus.unseen.items()
        }

    nested, rows = load_directory(str(drafts["nested"])), []
    for e in exits_of(args.layers):
        ours, alone = (
            bits(copy_with_layers(nested, e)),
            bits(load_directory(str(drafts[f"depth {e} alone"]))),
        )
        rows.append(
            {
                "exit": e,
                **{f"{k}, alone": f"{ours[k]:.3f}, {alone[k]:.3f}" for k in KINDS},
                "over alone": sum(ours.values()) / sum(alone.values()),
            }
        )
    return rows


def as_run(
    lm: LoadedModel, rule: Rule, texts: Sequence[Any], args: argparse.Namespace
) -> tuple[Sum, bool]:
    """What the recipe does on these prompts, and whether it writes the target's own texts."""
    total, same, count = Sum(), True, counted(lm.draft.lm.network)
    decoder, _ = build(
        "s2d",
        shaped(lm, 0.0),
        shaped(lm, 0.0, of_draft=True),
        {"tau_1": rule.bars[0], "tau_2": rule.bars[1], "stop": rule.stop, "depth": rule.length},
    )
    for prompt, text in texts:
        r = run_coroutines(
            [answer_one(decoder, Request(prompt, max_tokens=args.tokens, ignore_eos=True))]
        )[0]
        total, same = (
            total + Sum(len(r.token_ids), r.stats.passes, r.stats.drafted),
            same and r.token_ids == text,
        )
    return total + Sum(layers=count.layers, heads=count.heads + count.shadows), same


def compare(args: argparse.Namespace, paths: Mapping[str, Path]) -> list[dict[str, Any]]:
    exits, rows = exits_of(args.layers), list[dict[str, Any]]()
    targets = [
        model(argparse.Namespace(**{**vars(args), "model": m}), str(paths["nested"]))
        for m in (args.model, args.second)
    ]
    drafts = {
        n: load(str(p), draft=None, dtype=args.dtype, threads=args.threads).checkpoint.lm
        for n, p in paths.items()
    }
    rules = {n: rules_of(exits if n == "nested" else (law.layers,)) for n, law in drafts.items()}
    rules["nested"].append(own := Rule(exits, (0.9, 0.8), 0.3, 5))
    picks: dict[str, Callable[[Rule], bool]] = {
        "S2D": lambda r: True,
        "S2D, more than one exit": lambda r: not always(r),
        "S2D, defaults": lambda r: r == own,
        **{f"exit {e} of it": lambda r, e=e: always(r) == e for e in exits},
    }
    methods = dict.fromkeys(picks, "nested") | {n: n for n in paths if n != "nested"}
    small, small_head = sizes(drafts["nested"].network)

    def cost(key: Key, s: Sum) -> float:
        """Passes of the target, by parameters read."""
        head, t, _ = key
        layer, top = sizes(targets[t].network)
        return s.passes + (s.layers * small + head * s.heads * small_head) / (
            targets[t].network.layers * layer + head * top
        )

    def texts(t: int, tune: bool) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
        some = argparse.Namespace(
            **{**vars(args), "prompts": args.tuning if tune else args.prompts}
        )
        return [(p, greedy(targets[t], p, args)) for _, p in prompts(targets[t], some, tune)]

    rule, spent, got = dict[Key, Rule](), dict[Key, float](), dict[Key, list[Sum]]()
    for t in range(2):
        mine = texts(t, True)
        for name, law in drafts.items():
            totals = [
                sum(each, Sum())
                for each in zip(*(walk(law, rules[name], *x) for x in mine), strict=True)
            ]
            for key in product((True, False), (t,), [m for m, d in methods.items() if d == name]):
                some = [i for i, r in enumerate(rules[name]) if picks.get(key[2], picks["S2D"])(r)]
                best = min(some, key=lambda i: cost(key, totals[i]) / totals[i].tokens)
                rule[key], spent[key] = (
                    rules[name][best],
                    cost(key, totals[best]) / totals[best].tokens,
                )
        mine = texts(t, False)
        for name, law in drafts.items():
            keys = [k for k in rule if k[1] == t and methods[k[2]] == name]
            walked = [walk(law, [rule[k] for k in keys], *x) for x in mine]
            got |= {k: list(each) for k, each in zip(keys, zip(*walked, strict=True), strict=True)}
        ran, same = as_run(
            targets[t], rule[key := (True, t, "S2D, more than one exit")], mine, args
        )
        rows.append(
            {
                "target": targets[t].name,
                "as run": ran,
                "replayed": sum(got[key], Sum()),
                "same text": same,
            }
        )
    for head in (True, False):
        for t in range(2):
            keys = [k for k in rule if k[:2] == (head, t)]
            for key in keys:
                s = sum(got[key], Sum())
                rows.append(
                    {
                        "target": targets[t].name,
                        "heads": head,
                        "method": key[2],
                        "rule": str(rule[key]),
                        "tokens a pass": s.tokens / s.passes,
                        "draft layers a token": s.layers / s.tokens,
                        "draft heads a token": s.heads / s.tokens,
                        "drafted a pass": s.drafted / s.passes,
                        "cost of a token": cost(key, s) / s.tokens,
                        "S2D over it": over([(head, t, "S2D")], [key], got, cost),
                    }
                )
            for kind in ("of it", "alone"):
                best = min((k for k in keys if k[2].endswith(kind)), key=spent.__getitem__)
                rows.append(
                    {
                        "target": targets[t].name,
                        "heads": head,
                        "best by tuning": best[2],
                        "S2D over it": over([(head, t, "S2D")], [best], got, cost),
                    }
                )
        for kind in ("of it", "alone"):
            both = min(
                (m for m in methods if m.endswith(kind)),
                key=lambda m: sum(spent[head, t, m] for t in range(2)),
            )
            rows.append(
                {
                    "heads": head,
                    "one depth for both": both,
                    "S2D over it": over(
                        [(head, t, "S2D") for t in range(2)],
                        [(head, t, both) for t in range(2)],
                        got,
                        cost,
                    ),
                }
            )
    return rows


def over(
    ours: Sequence[Key],
    theirs: Sequence[Key],
    got: Mapping[Key, list[Sum]],
    cost: Callable[[Key, Sum], float],
) -> str:
    """Tokens for what they cost, over theirs, targets added up for each prompt (in thousandths, as pairs are counts)."""
    pairs = [
        [
            (sum(s.tokens for s in each), sum(round(1000 * cost(k, s)) for k, s in zip(keys, each)))
            for each in zip(*(got[k] for k in keys), strict=True)
        ]
        for keys in (ours, theirs)
    ]
    return "{:.3f} [{:.3f}, {:.3f}]".format(*interval(*pairs))


def main() -> None:
    parser = arguments(
        __doc__,
        model="zoo:tiny",
        dtype="auto",
        prompts=30,
        tokens=64,
        begin=96,
        drafts="runs/s2d",
        second="",
        layers=6,
        width=96,
        steps=240,
        tuning=12,
        held_kb=20,
        penalty=1.0,
    )
    args = parser.parse_args()
    if not args.second:
        parser.error(
            "--second is empty: it must be a directory of a model with the tokenizer of --model"
        )
    paths = trained(args)
    report(
        args, f"greedy, second target {args.second}", [*losses(paths, args), *compare(args, paths)]
    )


if __name__ == "__main__":
    main()
