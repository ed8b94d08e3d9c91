"""Drafters trained on a target's states beside each other: how deep their guesses are accepted, tokens a pass, what a draft
costs, training seconds and size; on held-out prompts, at equal nodes, greedy and at T = 0.7.

    polydec train heads --kind hydra --out runs/hydra --text runs/text.jsonl …      (and so on: the same text and steps for
    each) python benchmarks/trained.py runs/medusa runs/hydra … --held runs/held.jsonl --csv lab/reports/trained.csv

Text is one JSON object a line (see polydec/lab/train/selfplay.py). Intervals are 95 % ones of a bootstrap over the
prompts. Where a paper claims to be ahead of another method of the run, its tokens a pass at equal nodes are told over that
one's, on the same prompts in the same draws of the bootstrap. What a draft costs is measured in this process's time, and so
is training. Speed is that of one answer at a time over plain decoding's: timed, by turns, in this process's time; and
replayed, by what passes of so many rows and drafts were measured to cost.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from csv_rows import write_csv

from polydec.core.decoder import Decoder, answer_one
from polydec.core.request import Request, Result
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, Exactness, RowDetail
from polydec.lab.train.probes.judge import is_same_result
from polydec.lab.train.selfplay import TrainingSample, read_samples
from polydec.lab.train.states import cost_of
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.shapers.temperature import TemperatureRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.registry import registry
from polydec.methods.registry.kit import ArtefactNeed, Kit
from polydec.methods.speculative.loop.protocols import Verifier
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict
from polydec.models.formats import zoo
from polydec.models.learned import artefacts
from polydec.models.sessions import checkpoint
from polydec.models.sessions.lm import CausalLaw
from polydec.request.passes import PassTimer, measure_pass_times

METHODS = {
    "heads": ("medusa", "hydra", "hydra-plus-plus"),
    "clover": ("clover",),
    "eagle": ("eagle", "eagle-2"),
    "eagle-3": ("eagle-3",),
    "chimera": ("chimera",),
    "falcon": ("falcon",),
    "longspec": ("longspec",),
    "judge": ("judge-decoding",),
    "mtp": ("mtp",),
    "probes": ("ppd", "hidden-transfer", "lexical-unit-decoding", "lexical-unit-decoding-verified"),
}
"""The methods that each kind of artefact may serve."""
AHEAD_OF = {
    "hydra": "medusa",
    "hydra-plus-plus": "hydra",
    "clover": "medusa",
    "chimera": "medusa",
    "hidden-transfer": "medusa",
    "ppd": "medusa",
    "eagle-2": "eagle",
    "eagle-3": "eagle",
    "falcon": "eagle",
    "lexical-unit-decoding-verified": "lexical-unit-decoding",
}
"""What each paper has its method ahead of, or near."""
ROWS = (1, 2, 4, 5, 8, 12, 17, 24, 32, 64)
"""Of passes that are timed."""
TIMED = 6
"""Prompts whose answers are timed."""
LAWS = {"greedy": GreedyRule(), "T = 0.7": TemperatureRule(0.7)}


@dataclass
class Counted:
    """A verifier, how much it accepted in each round, and of how many rows."""

    inner: Verifier
    exactness = Exactness.APPROXIMATE
    accepted: list[int] = field(default_factory=list[int])
    rows: list[int] = field(default_factory=list[int])

    def verify_draft(self, draft: Draft, *given: Any) -> Verdict:
        verdict = self.inner.verify_draft(draft, *given)
        self.accepted.append(len(verdict.path))
        self.rows.append(len(draft))
        return verdict


def interval(pairs: Sequence[tuple[int, int]]) -> tuple[float, float]:
    """Of (tokens, passes) of each prompt, tokens a pass."""
    rng, found = random.Random(0), list[float]()
    for _ in range(1000):
        some = rng.choices(pairs, k=len(pairs))
        found.append(sum(t for t, _ in some) / sum(p for _, p in some))
    found.sort()
    return round(found[25], 3), round(found[974], 3)


def over(
    pairs: Sequence[tuple[int, int]], others: Sequence[tuple[int, int]]
) -> tuple[float, float, float]:
    """Tokens a pass over those of another method on the same prompts, with the interval."""

    def ratio(some: Sequence[int]) -> float:
        (t, p), (u, q) = (
            [sum(x[k] for x in (row[i] for i in some)) for k in (0, 1)] for row in (pairs, others)
        )
        return t / p / (u / q)

    rng, all_of = random.Random(0), range(len(pairs))
    found = sorted(ratio(rng.choices(all_of, k=len(pairs))) for _ in range(1000))
    return round(ratio(all_of), 3), round(found[25], 3), round(found[974], 3)


def compared(
    rows: Sequence[Mapping[str, Any]], pairs: Sequence[Sequence[tuple[int, int]]]
) -> Iterator[dict[str, Any]]:
    """The rows, each beside what its paper has it ahead of where that was measured as well. pairs: of each row."""
    where = {
        (row["method"], row["law"], row["nodes"]): i for i, row in reversed([*enumerate(rows)])
    }
    for row, mine in zip(rows, pairs, strict=True):
        other = AHEAD_OF.get(row["method"], "")
        i = where.get((other, row["law"], row["nodes"]))
        told = ("", "", "") if i is None else over(mine, pairs[i])
        yield {
            **row,
            "over": "" if i is None else other,
            **dict(zip(("times", "times low", "times high"), told)),
        }


def agree(texts: Sequence[Any], others: Sequence[Any], like: Callable[[Any, Any], bool]) -> float:
    """The share of pairs that are alike."""
    return round(sum(map(like, others, texts)) / len(texts), 3)


@dataclass(frozen=True)
class Bench:
    """A model, its draft if it has one, held-out texts, and how long an answer may be."""

    point: checkpoint.ModelBundle
    small: CausalLaw | None
    samples: Sequence[TrainingSample]
    tokens: int

    def written(self, decoder: Decoder) -> list[Result]:
        return run_coroutines(
            [
                answer_one(decoder, Request(s.prompt_ids, max_tokens=self.tokens, seed=i))
                for i, s in enumerate(self.samples)
            ]
        )

    def kit(self, law: str, *trained: Any) -> Kit:
        draft = None if self.small is None else ShapedTarget(self.small, LAWS[law])
        return Kit(ShapedTarget(self.point.lm, LAWS[law]), draft, trained)

    @cached_property
    def pass_ms(self) -> Mapping[int, float]:
        """Of passes of so many rows; a gap is filled by the next larger one."""
        known = measure_pass_times(
            PassTimer(self.point.lm.network, 64, want=RowDetail.ARGMAX), ROWS, 4.0
        )
        return {m: known[next(k for k in ROWS if k >= m)] for m in range(1, ROWS[-1] + 1)}

    def timed(self, decoder: Decoder, law: str) -> float:
        """How many times as many tokens a second as plain decoding: the same prompts in turn, one at a time."""
        both, took, tokens = (
            (registry.build("plain", self.kit(law))[0], decoder),
            [0.0, 0.0],
            [0, 0],
        )
        for i, sample in enumerate(self.samples[:TIMED]):
            for which, one in enumerate(both):
                start = time.process_time()
                done = run_coroutines(
                    [answer_one(one, Request(sample.prompt_ids, max_tokens=self.tokens, seed=i))]
                )[0]
                took[which] += time.process_time() - start
                tokens[which] += len(done.token_ids)
        return round(tokens[1] / took[1] / (tokens[0] / took[0]), 3)

    @cached_property
    def plain(self) -> dict[str, list[Sequence[int]]]:
        """What plain decoding writes under each law."""
        return {
            law: [r.token_ids for r in self.written(registry.build("plain", self.kit(law))[0])]
            for law in LAWS
        }

    def row(
        self, name: str, law: str, nodes: int, decoder: SpeculativeDecoder
    ) -> tuple[dict[str, Any], list[tuple[int, int]]]:
        """What one method did under one law with trees of so many nodes; beside it tokens and passes of each prompt."""
        cost, counted = (
            cost_of(self.point.lm, decoder.drafter, self.samples[:2], 3 * nodes),
            Counted(decoder.verifier),
        )
        done, decode = self.written(replace(decoder, verifier=counted)), self.point.text.decode
        pairs, texts, rounds = (
            [(len(r.token_ids), r.stats.passes) for r in done],
            [r.token_ids for r in done],
            counted.accepted,
        )
        low, high = interval(pairs)
        passes = sum(p for _, p in pairs)
        return {
            "method": name,
            "law": law,
            "nodes": nodes,
            "tokens a pass": round(sum(t for t, _ in pairs) / passes, 3),
            "low": low,
            "high": high,
            **{
                f"accepted {d} deep": round(sum(n >= d for n in rounds) / len(rounds), 3)
                for d in (1, 2, 3, 4)
            },
            "rows a pass": round(1 + sum(r.stats.drafted for r in done) / passes, 1),
            "plain's text": agree(texts, self.plain[law], lambda a, b: a == b),
            "plain's result": agree(
                texts, self.plain[law], lambda a, b: is_same_result(decode(a), decode(b))
            ),
            "draft in passes": cost,
            "replayed": round(
                sum(t for t, _ in pairs)
                * self.pass_ms[1]
                / sum(
                    self.pass_ms[min(n, ROWS[-1])] + cost * self.pass_ms[1] for n in counted.rows
                ),
                3,
            ),
            "timed": self.timed(decoder, law),
        }, pairs


def needs(name: str) -> list[ArtefactNeed]:
    """What a method needs that was trained."""
    return [
        need
        for need in registry.get_recipe_module(name).CARD.needs
        if isinstance(need, ArtefactNeed)
    ]


def fits(name: str, one: Any) -> bool:
    """Whether an artefact was made for this method: heads that read tokens are Hydra's, others of the type Medusa's."""
    return all(need.is_fitting(one) for need in needs(name))


def wanted(name: str) -> str:
    return " and ".join(need.called or need.wanted.called for need in needs(name))


def decoders(
    bench: Bench, one: Any, sizes: Sequence[int], given: Mapping[str, str]
) -> Iterator[tuple[str, str, int, SpeculativeDecoder]]:
    """Every method that the artefact serves, under each law, at each size that it has an option for, with its whole tree fed;
    given: other options, for those methods that have them. Methods of the kind that it was not made for are named and passed
    over."""
    serves = [name for name in METHODS[one.kind] if fits(name, one)]
    for name in METHODS[one.kind]:
        if name not in serves:
            print(f"{name} is passed over: it needs {wanted(name)}", file=sys.stderr)
    for name, law in product(serves, LAWS):
        known = registry.describe_method(name)["options"]
        for nodes in sizes if "nodes" in known else sizes[-1:]:
            options = {
                key: str(value)
                for key, value in (("nodes", nodes), ("rows", 3 * nodes), ("cost_aware", False))
                if key in known
            }
            more = {key: value for key, value in given.items() if key in known}
            decoder, _ = registry.build(name, bench.kit(law, one), options | more)
            assert isinstance(decoder, SpeculativeDecoder)
            yield (
                " ".join([name, *(f"{key}={value}" for key, value in more.items())]),
                law,
                nodes,
                decoder,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trained", nargs="+", help="directories that `polydec train` made")
    parser.add_argument("--held", required=True, help="JSON lines whose prompts measure")
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--dtype", default="auto", help="as for polydec (mtp needs torch)")
    parser.add_argument(
        "--set", action="append", default=[], help="an option of methods, key=value"
    )
    parser.add_argument("--nodes", default="4,16", help="tokens of a tree")
    parser.add_argument("--prompts", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--csv", help="file to write")
    args = parser.parse_args()
    point, drafted = (
        checkpoint.load_bundle(args.model, dtype=args.dtype),
        zoo.default_draft(args.model),
    )
    samples = read_samples(Path(args.held), point.lm.vocab.size)
    samples = random.Random(0).sample(
        samples, min(args.prompts, len(samples))
    )  # they lie there by kinds
    bench = Bench(
        point, None if drafted is None else checkpoint.load_bundle(drafted).lm, samples, args.tokens
    )
    rows, pairs = list[dict[str, Any]](), list[Sequence[tuple[int, int]]]()
    sizes = [int(n) for n in args.nodes.split(",")]
    given = {key: value for key, _, value in (one.partition("=") for one in args.set)}
    for where in args.trained:
        said, size = (
            json.loads((Path(where) / "training.json").read_text()),
            sum(p.stat().st_size for p in Path(where).glob("*.safetensors")),
        )
        for case in decoders(
            bench, artefacts.bind_artefact(artefacts.load_artefact(where), point.lm), sizes, given
        ):
            row, some = bench.row(*case)
            pairs.append(some)
            rows.append(
                {
                    "trained": Path(where).name,
                    **row,
                    "training seconds": said["seconds"],
                    "bytes": size,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    if args.csv and rows:
        write_csv(args.csv, list(compared(rows, pairs)))


if __name__ == "__main__":
    main()
