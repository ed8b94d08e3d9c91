"""What steering and rules of sampling do to texts, and what they cost: tables in Markdown.

    python benchmarks/text.py TABLE [model] [count]

    warm       truncation at a temperature of 1.5: Top-W, top-p, min-p
    open       text without chance: greedy, momentum, contrastive search
    conflict   questions whose passage is true, or not: plain, CAD, AdaCAD
    extract    answers that are spans of a passage: greedy, kept to spans, exact-extract
    beams      six answers of a passage: beam, diverse beam
    annealed   sixteen solutions of a problem: fixed temperatures, annealing
    cautious   one solution and votes: sampling, CNTP
    names      a model that was tuned briefly for a task: prompting, tuning, SVDecode
    facts      `conflict`, of a small network that is trained on facts
    programs   programs asked for with examples: plain, always contrasted, USCD
    captions   captions of scenes: guidance 1 to 3
    births     when people were born, whom the model knows well or hardly: greedy, majority, DRAG
    sums       running sums with second thoughts: constant biases, CyclicReflex

The last five train a small network (tasks.py) into the directory that is given as the model, where none is there. Every row
answers the same prompts. An interval is that of the difference to the first row, 95 %, by resampling prompts. Data is read from
POLYDEC_DATA; prompts are those whose SHA-1 modulo 10 is 7 or more, where nothing is tuned.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import string
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tasks
from studies.granola import Granularity

from polydec import api
from polydec.lab.train.problems import ReasoningProblem, draw_problem, is_right_solution
from polydec.laws.constraints.span_of import SpanOf
from polydec.laws.contrasts.gated import GatedContrast

DATA = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set")
Figures = Mapping[str, float]


@dataclass
class Row:
    """One way to decode, and the figures of each prompt. A list in `ask` has an entry for each prompt."""

    name: str
    ask: Mapping[str, Any]
    figures: list[Figures] = field(default_factory=list)


def table(rows: Sequence[Row], names: Sequence[str], seed: int = 0) -> str:
    """Means with intervals of the difference to the first row, in Markdown."""
    out = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    drawn = np.random.default_rng(seed).integers(
        0, len(rows[0].figures), (2000, len(rows[0].figures))
    )
    for row in rows:
        cells = []
        for name in names:
            mine, first = (np.array([f[name] for f in r.figures], float) for r in (row, rows[0]))
            apart = (mine - first)[drawn].mean(1)
            low, high = np.quantile(apart, (0.025, 0.975))
            cells.append(
                f"{mine.mean():.3g}" + ("" if row is rows[0] else f" ({low:+.2g} to {high:+.2g})")
            )
        out.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(out)


def measured(prompt: str) -> bool:
    """Whether a prompt is there to be measured with."""
    return int(sha1(prompt.encode()).hexdigest(), 16) % 10 >= 7


def read(folder: str, name: str) -> Iterable[dict[str, Any]]:
    """Rows of a file of JSON lines."""
    with gzip.open(DATA / folder / name, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def stories(count: int) -> list[str]:
    """Requests for a story, each once."""
    prompts = dict.fromkeys(r["prompt"] for r in read("text_stories", "stories-0.jsonl.gz"))
    return [p for p in prompts if measured(p)][:count]


def opened(model: str, draft: str | None = None, compute: str | None = "int8") -> api.LoadedModel:
    """A model with one thread; the compiled step in 8 bits, which is quicker."""
    return api.load(model, draft=draft, ngrams=None, threads=1, compute=compute)


def decode(
    lm: api.LoadedModel,
    rows: Sequence[Row],
    prompts: Sequence[Any],
    figures: Callable[[int, api.Completion], Figures],
    at_once: int = 8,
    meter: Callable[[], Figures] = dict,
    **common: Any,
) -> None:
    """Answer all prompts in every row's way. A prompt is computed once, before, and counts for no row; second prompts count.
    meter: figures of what has run since it was last asked."""
    lm.checkpoint.lm.keep = 4 * at_once
    for first in range(0, len(prompts), at_once):
        engine = api.Engine(lm)
        engine.run(
            [
                engine.submit(p, method="plain", max_tokens=1, raw=common.get("raw", False))
                for p in prompts[first : first + at_once]
            ]
        )
        for row in rows:
            engine, start = api.Engine(lm), time.process_time()
            asks = [
                api.Ask(
                    p,
                    **{
                        "method": "plain",
                        **common,
                        **{k: v[i] if isinstance(v, list) else v for k, v in row.ask.items()},
                        "seed": i,
                    },
                )
                for i, p in enumerate(prompts[first : first + at_once], first)
            ]
            answers = engine.run([engine.submit(a) for a in asks])
            spent = (
                1000
                * (time.process_time() - start)
                / sum(a.usage["completion_tokens"] for a in answers)
            )
            shared = {"CPU ms a token": spent, **meter()}
            row.figures += [
                {**figures(i, answer), **shared} for i, answer in enumerate(answers, first)
            ]
        if first // at_once % 4 == 3:
            print(
                f"{min(first + at_once, len(prompts))} of {len(prompts)}",
                file=sys.stderr,
                flush=True,
            )


# On a language model


def likeness(answer: api.Completion) -> Figures:
    """How likely the model finds a text, and how much it repeats itself: perplexity as a logarithm (nats a token), the share
    of pairs of tokens that are there for the first time, and of runs of four that are not."""
    choice = answer.choices[0]
    ids, notes = choice.token_ids, choice.logprobs or ()
    fours = list(zip(ids, ids[1:], ids[2:], ids[3:]))
    pairs = list(pairwise(ids))
    return {
        "nats a token": -sum(n.model_logp for n in notes) / len(notes),
        "tokens": len(ids),
        "distinct-2": len(set(pairs)) / max(1, len(pairs)),
        "rep-4": 1 - len(set(fours)) / max(1, len(fours)),
        "positions fed a token": answer.metrics["positions_fed"] / len(ids),
    }


def warm(model: str, count: int) -> str:
    lm = opened(model)
    rows = [
        Row(
            name,
            {"sampling": lm.sampling_with(temperature=t, **{"top_k": 0, "top_p": 1.0, **more})},
        )
        for name, t, more in (
            ("temperature 1", 1.0, {}),
            ("temperature 1.5", 1.5, {}),
            ("1.5, top-p 0.95", 1.5, {"top_p": 0.95}),
            ("1.5, min-p 0.05", 1.5, {"min_p": 0.05}),
            ("1.5, min-p 0.1", 1.5, {"min_p": 0.1}),
            ("1.5, Top-W", 1.5, {"top_w": 2.8}),
            ("1.5, Top-W without geometry", 1.5, {"top_w": 2.8, "top_w_scale": 0.0}),
        )
    ]
    decode(
        lm,
        rows,
        stories(count),
        lambda i, a: likeness(a),
        method="plain",
        max_tokens=64,
        logprobs=0,
    )
    return table(rows, ("nats a token", "distinct-2", "rep-4", "tokens", "CPU ms a token"))


def open_ended(model: str, count: int) -> str:
    lm = opened(model, draft="default")
    greedy = lm.sampling_with(temperature=0.0, repetition_penalty=1.0)
    rows = [
        Row("greedy", {"method": "plain", "sampling": greedy}),
        Row(
            "momentum",
            {
                "method": "plain",
                "sampling": lm.sampling_with(
                    temperature=0.0, repetition_penalty=1.0, momentum_alpha=0.2
                ),
            },
        ),
        Row("contrastive search", {"method": "contrastive-search", "sampling": greedy}),
        Row(
            "contrastive decoding",
            {"method": "plain", "sampling": greedy, "steer": "contrastive-decoding"},
        ),
    ]
    beginnings = [
        " ".join(r["text"].split()[:32])
        for r in read("text_books", "books-0.jsonl.gz")
        if measured(r["id"])
    ]
    decode(
        lm,
        rows,
        beginnings[:count],
        lambda i, a: likeness(a),
        raw=True,
        max_tokens=128,
        logprobs=0,
        ignore_eos=True,
    )
    return table(
        rows, ("nats a token", "distinct-2", "rep-4", "positions fed a token", "CPU ms a token")
    )


def words(text: str) -> str:
    """Lower case, without punctuation and articles: how answers are compared."""
    text = "".join(c if c not in string.punctuation else " " for c in text.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


CONTRASTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}),
    ("CAD, alpha 0.5", {"steer": "cad", "steer_options": {"alpha": 0.5}}),
    ("CAD, alpha 1", {"steer": "cad", "steer_options": {"alpha": 1.0}}),
    ("AdaCAD", {"steer": "adacad"}),
    ("AdaCAD, base 2", {"steer": "adacad", "steer_options": {"base": 2.0}}),
)


def compared(
    lm: api.LoadedModel,
    asked: Sequence[Any],
    alone: Sequence[Any],
    right: Callable[[int, str], bool],
    **common: Any,
) -> list[Row]:
    """Questions with a passage, held against the same without it."""
    rows = [
        Row(name, {**how, **({"negative_prompt": list(alone)} if how else {})})
        for name, how in CONTRASTS
    ]
    decode(
        lm,
        rows,
        asked,
        lambda i, a: {"right": right(i, a.text)},
        method="plain",
        sampling=lm.sampling_with(temperature=0.0),
        **common,
    )
    return rows


WORKED = (
    (
        "The mill by the river was built in 1887 by Adam Moss .",
        "who built the mill by the river ?",
        "Adam Moss",
    ),
    ("Ann Low won the cup in Oslo on 3 May 1961 .", "when did Ann Low win the cup ?", "3 May 1961"),
)
"""Passages, questions and answers that stand before each question: a small model does not answer it at once otherwise."""


def asked_so(question: str, passage: str | None) -> str:
    """A question behind the worked ones, with passages or without."""
    parts = [
        (f"Passage: {p}\n" if passage is not None else "") + f"Question: {q}\nAnswer: {a}\n"
        for p, q, a in WORKED
    ]
    return "\n".join(
        [
            *parts,
            (f"Passage: {passage}\n" if passage is not None else "")
            + f"Question: {question}\nAnswer:",
        ]
    )


def conflict(model: str, count: int) -> str:
    lm = opened(model)
    every, out = list(read("qa_conflict_nq_synth", "half_a.jsonl.gz")), list[str]()
    for title, some in (
        ("the passage was altered", [q for q in every if q["index"] < 500]),
        ("the passage is true", [q for q in every if q["index"] >= 500]),
    ):
        some = some[:count]
        pairs = [
            (
                *q["with_context"].split("\nUsing only")[:1],
                q["without_context"].split("Question: ")[1][: -len("\nAnswer:")],
            )
            for q in some
        ]
        rows = compared(
            lm,
            [asked_so(q, passage) for passage, q in pairs],
            [asked_so(q, None) for _, q in pairs],
            lambda i, text, some=some: words(some[i]["gold_answers"]) in words(text),
            max_tokens=16,
            raw=True,
            stop="\n",
        )
        out += [f"{title}, {len(some)} questions", "", table(rows, ("right",)), ""]
    return "\n".join(out)


def common_words(said: str, right: str) -> float:
    """F1 of the words of two answers."""
    a, b = Counter(said.split()), Counter(right.split())
    same = (a & b).total()
    return 2 * same / max(1, a.total() + b.total())


def asked_in_turn(passage: str, question: str) -> list[dict[str, str]]:
    """A question behind the worked ones, as a chat: answers end by themselves."""
    asked = [
        f"{p}\n\n{q} Answer with words of the text."
        for p, q, _ in (*WORKED, (passage, question, ""))
    ]
    said = [answer for _, _, answer in WORKED]
    turns = [
        {"role": role, "content": text}
        for pair in zip(asked, said)
        for role, text in zip(("user", "assistant"), pair)
    ]
    return [*turns, {"role": "user", "content": asked[-1]}]


def extract(model: str, count: int) -> str:
    lm = opened(model)
    some = [q for q in read("qa_xquad", "en.jsonl.gz") if len(q["context"]) <= 700][:count]
    spans = [SpanOf(q["context"]) for q in some]
    greedy = {"method": "plain", "sampling": lm.sampling_with(temperature=0.0)}
    rows = [
        Row("greedy", greedy),
        Row("greedy, kept to spans", {**greedy, "constraint": spans}),
        Row("exact-extract", {"method": "exact-extract", "constraint": spans}),
    ]

    def figures(i: int, answer: api.Completion) -> Figures:
        said, right = answer.text.strip(), [a["text"] for a in some[i]["answers"]]
        return {
            "exact match": any(words(said) == words(x) for x in right),
            "F1": max(common_words(words(said), words(x)) for x in right),
            "is a span": said in some[i]["context"],
            "tokens": len(answer.token_ids),
            "passes": answer.metrics["target_passes"],
            "positions fed": answer.metrics["positions_fed"],
        }

    decode(
        lm,
        rows,
        [asked_in_turn(q["context"], q["question"]) for q in some],
        figures,
        at_once=4,
        max_tokens=32,
    )
    return table(rows, ("exact match", "F1", "is a span", "tokens", "passes", "positions fed"))


def beams(model: str, count: int) -> str:
    lm = opened(model)
    some = [q for q in read("qa_xquad", "en.jsonl.gz") if len(q["context"]) <= 700][:count]
    rows = [
        Row("beam of 6", {"method": "beam", "options": {"width": 6}}),
        *(
            Row(
                f"{groups} groups, strength {strength:g}",
                {
                    "method": "diverse-beam",
                    "options": {"width": 6, "groups": groups, "strength": strength},
                },
            )
            for groups, strength in ((3, 0.5), (6, 0.5), (6, 1.0))
        ),
    ]

    def figures(i: int, answer: api.Completion) -> Figures:
        right, runs = [a["text"] for a in some[i]["answers"]], Counter[tuple[int, ...]]()
        scores = [max(common_words(words(c.text), words(x)) for x in right) for c in answer.choices]
        for c in answer.choices:
            runs.update(pairwise(c.token_ids))
        return {
            "distinct-2": len(runs) / max(1, runs.total()),
            "different answers": len({words(c.text) for c in answer.choices}),
            "F1 of the first": scores[0],
            "F1 of the best of 6": max(scores),
            "positions fed": answer.metrics["positions_fed"],
        }

    decode(
        lm,
        rows,
        [asked_in_turn(q["context"], q["question"]) for q in some],
        figures,
        at_once=4,
        max_tokens=24,
        n=6,
        sampling=lm.sampling_with(temperature=0.0),
    )
    return table(
        rows,
        (
            "distinct-2",
            "different answers",
            "F1 of the first",
            "F1 of the best of 6",
            "positions fed",
        ),
    )


# On the small model that reasons


def problems(kinds: Sequence[str], count: int) -> list[ReasoningProblem]:
    """Held-out problems, kinds in turn."""
    return [
        draw_problem(kinds[i % len(kinds)], 78, i // len(kinds), unseen=True) for i in range(count)
    ]


def annealed(model: str, count: int) -> str:
    lm = opened(model, compute=None)
    ways = (
        *((f"temperature {t:g}", {"temperature": t}) for t in (1.0, 0.6, 0.8, 1.2)),
        (
            "1.2 to 0.1 in 13 tokens",
            {"temperature": 1.0, "anneal_start": 1.2, "anneal_scale": 17.0, "anneal_warmup": 0},
        ),
        ("1.2 to 0.1 in 371 tokens, as published", {"temperature": 1.0, "anneal_start": 1.2}),
    )
    rows = [Row(name, {"sampling": lm.sampling_with(**sampling)}) for name, sampling in ways]
    asked = problems(("chain", "make", "order"), count)

    def figures(i: int, answer: api.Completion) -> Figures:
        right = [is_right_solution(asked[i], c.text) for c in answer.choices]
        return {
            "mean of 16": sum(right) / len(right),
            "pass@16": any(right),
            "different beginnings": len({c.token_ids[:10] for c in answer.choices}) / len(right),
        }

    decode(lm, rows, [p.question for p in asked], figures, method="plain", n=16, max_tokens=96)
    return table(rows, ("mean of 16", "pass@16", "different beginnings"))


def voted(texts: Sequence[str]) -> str:
    """The first text with the answer (the last line) that most have."""
    ends = [t.split("\n")[-1] for t in texts]
    return texts[max(range(len(ends)), key=lambda i: (ends.count(ends[i]), -i))]


def cautious(model: str, count: int) -> str:
    lm, asked = opened(model, compute=None), problems(("chain", "order"), count)
    ways = [
        Row(name, {"method": method}) for name, method in (("sample", "plain"), ("CNTP", "cntp"))
    ]

    def figures(i: int, answer: api.Completion) -> Figures:
        texts = [c.text for c in answer.choices]
        written = answer.metrics.get("tokens_written", answer.usage["completion_tokens"])
        return {
            "first": is_right_solution(asked[i], texts[0]),
            "vote": is_right_solution(asked[i], voted(texts)),
            "written": written,
        }

    decode(
        lm,
        ways,
        [p.question for p in asked],
        figures,
        n=8,
        max_tokens=96,
        sampling=lm.sampling_with(temperature=0.8),
    )
    rows = [
        Row(
            name,
            {},
            [{"right": f[key], "tokens written": f["written"] / share} for f in way.figures],
        )
        for key, share, form in (("first", 8, "one {}"), ("vote", 1, "majority of 8, {}"))
        for way in ways
        for name in [form.format(way.name)]
    ]
    return table(rows, ("right", "tokens written"))


# On a small model of stories that is tuned for a task

NAMED = re.compile(r"\b(?:named|called|name was) ([A-Z][a-z]+)\b")
ASKED = "\n\nName:"


def named(count: int) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Beginnings of stories with the name of whom they are about: to tune and calibrate with, and to be measured with."""
    tuned, held = list[tuple[str, str]](), list[tuple[str, str]]()
    for row in read("text_tinystories_slice", "train.jsonl.gz"):
        beginning = row["text"][:400].rpartition(".")[0] + "."
        if found := NAMED.search(beginning):
            (held if measured(row["text"]) else tuned).append((beginning + ASKED, " " + found[1]))
    return tuned, held[:count]


def tuned(base: Path, at: Path, pairs: Sequence[tuple[str, str]], steps: int) -> None:
    """Train a copy of a model on prompts and answers, eight at a time."""
    import torch
    from tokenizers import Tokenizer

    from polydec.lab.train.network import from_weights, save_directory
    from polydec.models.sessions.sources import open_source

    source, dice = open_source(str(base)), Random(0)
    net = from_weights(source.config, source.weights).requires_grad_(True).train()
    words = Tokenizer.from_file(str(base / "tokenizer.json"))
    end = source.config["eos_token_id"]
    optimiser = torch.optim.AdamW(net.parameters(), 5e-4, weight_decay=0.0)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 5e-4 * min(1.0, (step + 1) / 10)
        loss = torch.zeros(())
        for prompt, answer in dice.sample(list(pairs), 8):
            asked, said = (
                words.encode(prompt).ids,
                [*words.encode(answer, add_special_tokens=False).ids, end],
            )
            logits_TV = net(torch.tensor([asked + said[:-1]]))[0, len(asked) - 1 :]
            loss = loss + torch.nn.functional.cross_entropy(logits_TV, torch.tensor(said)) / 8
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    files = {
        name: (base / name).read_text("utf-8")
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json")
    }
    save_directory(at, net, source.config, dtype=torch.float32, files=files)


def names(model: str, count: int) -> str:
    from tempfile import TemporaryDirectory

    from polydec.lab.train.strength import best_steering_strength

    base, (learnt, held) = Path(model), named(count)
    calibration, learnt = learnt[:100], learnt[100:]
    shots = "\n\n".join(p[-250:] + a for p, a in learnt[:2]) + "\n\n"
    rows, out = list[Row](), list[str]()

    def run(lm: api.LoadedModel, name: str, before: str = "", **ask: Any) -> None:
        row = Row(name, ask)
        decode(
            lm,
            [row],
            [before + p for p, _ in held],
            lambda i, a: {"right": a.text.split()[:1] == held[i][1].split()},
            method="plain",
            raw=True,
            max_tokens=8,
            stop="\n",
            sampling=lm.sampling_with(temperature=0.0),
        )
        rows.append(row)

    with TemporaryDirectory() as folder:
        for steps in TUNED:
            tuned(base, Path(folder) / str(steps), learnt, steps)
        alone = opened(model, compute=None)
        short = {steps: opened(f"{folder}/{steps}", draft=model, compute=None) for steps in TUNED}
        run(short[TUNED[0]], f"tuned, {TUNED[0]} steps")
        found = best_steering_strength(short[TUNED[0]], calibration, raw=True)
        run(
            short[TUNED[0]],
            f"the same, SVDecode at {found.strength:.3g}",
            steer="svdecode",
            steer_options={"strength": found.strength},
        )
        run(short[TUNED[1]], f"tuned, {TUNED[1]} steps")
        run(alone, "asked")
        run(alone, "asked, two examples", shots)
    out += [
        f"calibrated on {found.tokens} tokens: closed form {found.closed:.3g}, "
        f"{found.before:.3f} to {found.after:.3f} nats a token",
        "",
    ]
    return "\n".join([*out, table(rows, ("right",))])


TUNED = (20, 60)
"""Steps of tuning: briefly, and three times as long."""


# On small networks that are trained for a task

FACT_NETS = range(11, 17)
"""Networks of `facts`, by the seed of their training."""


def facts(model: str, count: int) -> str:
    """Each of the networks is asked `count` questions of every sort."""
    found = {
        title: [Row(name, how) for name, how in CONTRASTS]
        for title in (
            "the passage contradicts",
            "the passage agrees",
            "the passage is about another key",
        )
    }
    for seed in FACT_NETS:
        lm, dice = tasks.opened("facts", Path(model) / str(seed), seed=seed), Random(2)
        for title, pooled in found.items():
            asked, alone, right = list[str](), list[str](), list[str]()
            for key in (dice.randrange(tasks.KEYS) for _ in range(count)):
                about = (
                    (key + dice.randrange(1, tasks.KEYS)) % tasks.KEYS
                    if "another" in title
                    else key
                )
                other = (tasks.TRUTH[about] + dice.randrange(1, tasks.VALUES)) % tasks.VALUES
                said = other if "contradicts" in title else tasks.TRUTH[about]
                both = tasks.question(key, about, said)
                asked.append(" ".join(both[0]))
                alone.append(" ".join(both[1]))
                right.append(f"value{said if about == key else tasks.TRUTH[key]}")
            of_one = compared(
                lm,
                asked,
                alone,
                lambda i, text, right=right: text.split()[:1] == [right[i]],
                max_tokens=1,
                raw=True,
            )
            for row, some in zip(pooled, of_one, strict=True):
                row.figures += some.figures
    return "\n\n".join(
        f"{title}, {count} questions to each of {len(FACT_NETS)} networks\n\n{table(rows, ('right',))}"
        for title, rows in found.items()
    )


class Gate:
    """How often the gate of USCD opens."""

    def __init__(self) -> None:
        self.asked = self.open = 0
        inner = GatedContrast.opens_contrast

        def watched(gate: GatedContrast, logp_V: Any) -> bool:
            opens = inner(gate, logp_V)
            self.asked, self.open = self.asked + 1, self.open + opens
            return opens

        GatedContrast.opens_contrast = watched

    def share(self) -> Figures:
        """Since it was last asked."""
        found = self.open / max(1, self.asked)
        self.asked = self.open = 0
        return {"gate open": found}


def programs(model: str, count: int) -> str:
    lm, out = tasks.opened("programs", Path(model)), list[str]()
    ways = [
        (f"{name}, {eta:g}", {"threshold": threshold, "head": head, "strength": eta})
        for name, threshold, head in (
            ("every token contrasted", 2.0, 0.0),
            ("the same among likely tokens", 2.0, 0.1),
            ("USCD", 0.8, 0.1),
        )
        for eta in (0.5, 1.0)
    ]
    for title, usual in (
        ("words mean what they usually do", tasks.USUAL),
        ("words mean either step as often", 0.5),
    ):
        dice = Random(2)
        drawn = [tasks.described(dice, usual) for _ in range(count)]
        bare = [" ".join([*description, "is"]) for description, _, _ in drawn]
        rows = [
            Row("plain", {}),
            *(
                Row(name, {"steer": "uscd", "negative_prompt": bare, "steer_options": options})
                for name, options in ways
            ),
            Row("plain, no examples", {}),
        ]
        asked = [" ".join([*description, *shown, "is"]) for description, shown, _ in drawn]

        def figures(i: int, answer: api.Completion, drawn: Any = drawn) -> Figures:
            return {"pass@1": answer.text.split() == drawn[i][2]}

        how: dict[str, Any] = {"method": "plain", "raw": True, "max_tokens": len(drawn[0][2]) + 1}
        decode(
            lm,
            rows[:-1],
            asked,
            figures,
            meter=Gate().share,
            sampling=lm.sampling_with(temperature=0.0),
            **how,
        )
        decode(
            lm,
            rows[-1:],
            bare,
            figures,
            meter=Gate().share,
            sampling=lm.sampling_with(temperature=0.0),
            **how,
        )
        out += [f"{title}, {count} programs", "", table(rows, ("pass@1", "gate open")), ""]
    return "\n".join(out)


def captions(model: str, count: int) -> str:
    dice, folder = Random(2), Path(model)
    seen = [tasks.scene(dice) for _ in range(count)]
    references = [tasks.caption(dice, s) for s in seen]
    others = [[tasks.scene(dice) for _ in range(99)] for _ in seen]
    every = {x for values in tasks.SCENE.values() for x in values}

    def figures(i: int, answer: api.Completion) -> Figures:
        said = answer.text.split()
        named = [x for x in said if x in every]
        fitting = 1 + sum(set(named) <= set(other) for other in others[i])
        return {
            "attributes named": len(set(named) & set(seen[i])) / len(seen[i]),
            "wrong ones": len(set(named) - set(seen[i])),
            "equals the reference": said == references[i],
            "found among 100": (set(named) <= set(seen[i])) / fitting,
        }

    def guided(lm: api.LoadedModel, name: str, scale: float, steer: str = "cfg") -> Row:
        row = Row(name, {"steer": steer, "steer_options": {"scale": scale}})
        decode(
            lm,
            [row],
            [" ".join([*s, "shows"]) for s in seen],
            figures,
            method="plain",
            raw=True,
            max_tokens=12,
            negative_prompt=" ".join([*tasks.NO_SCENE, "shows"]),
            sampling=lm.sampling_with(temperature=0.0),
        )
        return row

    lm = tasks.opened("captions", folder / "captions", folder / "captions-language")
    rows = [guided(lm, f"guidance {scale:g}", scale) for scale in (1.0, 1.2, 1.5, 2.0, 3.0)]
    rows += [
        guided(lm, f"from a language model, {scale:g}", scale, "lm-guidance")
        for scale in (1.0, 2.0)
    ]
    bare = tasks.opened("captions-never-dropped", folder / "captions-never-dropped")
    rows += [
        guided(bare, f"condition never dropped, guidance {scale:g}", scale) for scale in (1.0, 2.0)
    ]
    return table(
        rows, ("attributes named", "wrong ones", "equals the reference", "found among 100")
    )


def births(model: str, count: int) -> str:
    lm, asked = tasks.opened("births", Path(model)), range(min(count, tasks.PEOPLE))
    drawn, exact = lm.sampling_with(temperature=0.7), Granularity(least=1.0)
    ways: tuple[tuple[str, dict[str, Any]], ...] = (
        ("greedy", {"method": "plain", "sampling": lm.sampling_with(temperature=0.0)}),
        ("one draw", {"method": "plain", "sampling": drawn}),
        *(
            (
                f"majority of {n}",
                {"method": "self-consistency", "options": {"tries": n}, "sampling": drawn},
            )
            for n in (5, 10)
        ),
        *(
            (f"DRAG of {n}", {"method": "drag", "options": {"tries": n}, "sampling": drawn})
            for n in (5, 10)
        ),
        (
            "DRAG of 10, share 0.7",
            {"method": "drag", "options": {"tries": 10, "share": 0.7}, "sampling": drawn},
        ),
    )
    rows = [Row(name, how) for name, how in ways]

    def figures(i: int, answer: api.Completion) -> Figures:
        return exact.figures([answer.text.strip()], [tasks.gold(i)])

    decode(
        lm, rows, [f"person{i} born on" for i in asked], figures, at_once=50, raw=True, max_tokens=5
    )
    whole = table(rows, ("accuracy", "standard accuracy", "informativeness", "unknown"))
    rare = [Row(r.name, r.ask, r.figures[len(asked) // 2 :]) for r in rows]
    return f"{whole}\n\nthe {len(asked) - len(asked) // 2} that are spoken of least\n\n" + table(
        rare, ("accuracy", "standard accuracy", "informativeness", "unknown")
    )


def sums(model: str, count: int) -> str:
    lm, dice = tasks.opened("sums", Path(model)), Random(2)
    drawn = [tasks.sums(dice) for _ in range(count)]
    wait = tasks.TASKS["sums"].names.index("wait")
    ways: list[tuple[str, dict[str, Any]]] = [("plain", {})]
    ways += [
        (f"constant {bias:+g}", {"logit_bias": {wait: float(bias)}}) for bias in (-3, -1, 1, 3)
    ]
    ways += [
        (
            f"CyclicReflex, {size:g}, period {period}",
            {"reflex_amplitude": size, "reflex_period": period, "reflex_token_ids": (wait,)},
        )
        for size, period in ((5.0, 6), (5.0, 12), (5.0, 24), (5.0, 48), (2.0, 12))
    ]
    rows = [Row(name, {"sampling": lm.sampling_with(temperature=1.0, **how)}) for name, how in ways]

    def figures(i: int, answer: api.Completion) -> Figures:
        said = answer.text.split()
        return {
            "right": said[-2:] == ["=", str(drawn[i][1])],
            "waits": said.count("wait"),
            "tokens": len(said),
        }

    decode(
        lm,
        rows,
        [" ".join([*p, "sum"]) for p, _ in drawn],
        figures,
        at_once=32,
        method="plain",
        raw=True,
        max_tokens=60,
    )
    return table(rows, ("right", "waits", "tokens"))


SMOLLM, REASONER, STORIES = "zoo:smollm2", "zoo:reasoner", str(DATA / "model_stories260k" / "hf")
NETS = Path(os.environ.get("POLYDEC_NETS", "nets"))
TABLES: Mapping[str, tuple[Callable[[str, int], str], str]] = {
    "warm": (warm, SMOLLM),
    "open": (open_ended, SMOLLM),
    "conflict": (conflict, SMOLLM),
    "extract": (extract, SMOLLM),
    "beams": (beams, SMOLLM),
    "annealed": (annealed, REASONER),
    "cautious": (cautious, REASONER),
    "names": (names, STORIES),
    "facts": (facts, str(NETS / "facts")),
    "programs": (programs, str(NETS / "programs")),
    "captions": (captions, str(NETS)),
    "births": (births, str(NETS / "births")),
    "sums": (sums, str(NETS / "sums")),
}


if __name__ == "__main__":
    if not 2 <= len(sys.argv) <= 4 or sys.argv[1] not in TABLES:
        raise SystemExit(
            f"usage: text.py TABLE [model] [count]; TABLE is one of {', '.join(TABLES)}"
        )
    run, usual = TABLES[sys.argv[1]]
    print(run(*(sys.argv[2:3] or [usual]), int((sys.argv[3:] or [200])[0])))
