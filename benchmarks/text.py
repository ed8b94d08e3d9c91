"""What steering and rules of sampling do to texts: figures that count tokens, not seconds.

    python benchmarks/text.py warm [model] [prompts]        # truncation at a temperature of 1.5: Top-W, top-p, min-p
    python benchmarks/text.py open [model] [prompts]        # text without chance: greedy, momentum, contrastive search
    python benchmarks/text.py conflict [model] [questions]  # questions whose passage is true, or not: plain, CAD, AdaCAD
    python benchmarks/text.py facts [model] [questions]     # the same, of a small model that is trained on facts first

Every row answers the same prompts. An interval is that of the difference to the first row, 95 %, by resampling prompts. Data is
read from POLYDEC_DATA (default ../shared/data); prompts are those whose SHA-1 modulo 10 is 7 or more, where nothing is tuned.
"""
from __future__ import annotations

import gzip
import json
import os
import re
import string
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha1
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from polydec import api

DATA = Path(os.environ.get("POLYDEC_DATA", "../shared/data"))
Figures = Mapping[str, float]


@dataclass
class Row:
    """One way to decode, and the figures of each prompt."""
    name: str
    ask: Mapping[str, Any]
    figures: list[Figures] = field(default_factory=list)


def table(rows: Sequence[Row], names: Sequence[str], seed: int = 0) -> str:
    """Means with intervals of the difference to the first row, in Markdown."""
    out = [f"| | {' | '.join(names)} |", "|---|" + "---|" * len(names)]
    drawn = np.random.default_rng(seed).integers(0, len(rows[0].figures), (2000, len(rows[0].figures)))
    for row in rows:
        cells = []
        for name in names:
            mine, first = (np.array([f[name] for f in r.figures]) for r in (row, rows[0]))
            apart = (mine - first)[drawn].mean(1)
            low, high = np.quantile(apart, (0.025, 0.975))
            cells.append(f"{mine.mean():.3g}" + ("" if row is rows[0] else f" ({low:+.2g} to {high:+.2g})"))
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


def likeness(answer: api.Completion) -> Figures:
    """How likely the model finds a text, and how much it repeats itself: perplexity as a logarithm (nats a token), the share
    of pairs of tokens that are there for the first time, and of runs of four that are not."""
    choice = answer.choices[0]
    ids, notes = choice.token_ids, choice.logprobs or ()
    fours = list(zip(ids, ids[1:], ids[2:], ids[3:]))
    pairs = list(pairwise(ids))
    return {"nats a token": -sum(n.model_logp for n in notes) / len(notes), "tokens": len(ids),
            "distinct-2": len(set(pairs)) / max(1, len(pairs)), "rep-4": 1 - len(set(fours)) / max(1, len(fours)),
            "positions fed a token": answer.metrics["positions_fed"] / len(ids), "passes": answer.metrics["target_passes"]}


def decode(lm: api.LM, rows: Sequence[Row], prompts: Sequence[str], figures: Callable[[int, api.Completion], Figures],
           at_once: int = 8, **common: Any) -> None:
    """Answer all prompts in every row's way; what rows have in common of a prompt is computed once."""
    lm.checkpoint.lm.keep = 2 * len(rows)
    for first in range(0, len(prompts), at_once):
        for row in rows:
            engine = api.Engine(lm)
            asks = [api.Ask(p, **{**common, **{k: v[i] if isinstance(v, list) else v for k, v in row.ask.items()}, "seed": i})
                    for i, p in enumerate(prompts[first:first + at_once], first)]
            for i, answer in enumerate(engine.run([engine.submit(a) for a in asks]), first):
                row.figures.append(figures(i, answer))
        print(f"{first + at_once} of {len(prompts)}", file=sys.stderr, flush=True)


def warm(model: str, count: int) -> str:
    lm = api.load(model, draft=None, ngrams=None, threads=1)
    rows = [Row(name, {"sampling": lm.sampling(temperature=t, **{"top_k": 0, "top_p": 1.0, **more})}) for name, t, more in (
        ("temperature 1", 1.0, {}), ("temperature 1.5", 1.5, {}), ("1.5, top-p 0.95", 1.5, {"top_p": 0.95}),
        ("1.5, min-p 0.05", 1.5, {"min_p": 0.05}), ("1.5, min-p 0.1", 1.5, {"min_p": 0.1}),
        ("1.5, Top-W", 1.5, {"top_w": 2.8}), ("1.5, Top-W without geometry", 1.5, {"top_w": 2.8, "top_w_scale": 0.0}))]
    decode(lm, rows, stories(count), lambda i, a: likeness(a), method="plain", max_tokens=64, logprobs=0)
    return table(rows, ("nats a token", "distinct-2", "rep-4", "tokens"))


def open_ended(model: str, count: int) -> str:
    lm = api.load(model, draft=None, ngrams=None, threads=1)
    greedy = lm.sampling(temperature=0.0, repetition_penalty=1.0)
    rows = [Row("greedy", {"method": "plain", "sampling": greedy}),
            Row("momentum", {"method": "plain", "sampling": lm.sampling(
                temperature=0.0, repetition_penalty=1.0, momentum_alpha=0.2)}),
            Row("contrastive search", {"method": "contrastive-search", "sampling": greedy}),
            Row("contrastive decoding", {"method": "plain", "sampling": greedy, "steer": "contrastive-decoding"})]
    lm = api.load(model, ngrams=None, threads=1)
    beginnings = [" ".join(r["text"].split()[:32]) for r in read("text_books", "books-0.jsonl.gz") if measured(r["id"])]
    decode(lm, rows, beginnings[:count], lambda i, a: likeness(a), raw=True, max_tokens=128, logprobs=0, ignore_eos=True)
    return table(rows, ("nats a token", "distinct-2", "rep-4", "positions fed a token"))


def words(text: str) -> str:
    """Lower case, without punctuation and articles: how answers are compared."""
    text = "".join(c if c not in string.punctuation else " " for c in text.lower())
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


CONTRASTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("plain", {}), ("CAD, alpha 0.5", {"steer": "cad", "steer_options": {"alpha": 0.5}}),
    ("CAD, alpha 1", {"steer": "cad", "steer_options": {"alpha": 1.0}}), ("AdaCAD", {"steer": "adacad"}))


def compared(lm: api.LM, questions: Sequence[Mapping[str, str]], right: Callable[[str, Mapping[str, str]], bool],
             **common: Any) -> list[Row]:
    """Questions with a passage, held against the same without it."""
    alone = [q["without_context"] for q in questions]
    rows = [Row(name, dict(how)) for name, how in CONTRASTS]
    lm.checkpoint.lm.keep = 2 * len(rows)
    for i, q in enumerate(questions):             # one at a time: the rows share what they have in common of a prompt
        for row in rows:
            second = {"negative_prompt": alone[i]} if row.ask else {}
            answer = api.generate(lm, q["with_context"], **common, **row.ask, **second)
            row.figures.append({"right": float(right(answer.text, q))})
        if not (i + 1) % 20:
            print(f"{i + 1} of {len(questions)}", file=sys.stderr, flush=True)
    return rows


def conflict(model: str, count: int) -> str:
    lm = api.load(model, draft=None, ngrams=None, threads=1)
    every, out = list(read("qa_conflict_nq_synth", "half_a.jsonl.gz")), list[str]()
    for title, some in (("the passage was altered", [q for q in every if q["index"] < 500]),
                        ("the passage is true", [q for q in every if q["index"] >= 500])):
        rows = compared(lm, some[:count], lambda text, q: words(q["gold_answers"]) in words(text), method="plain",
                        max_tokens=24, sampling=lm.sampling(temperature=0.0))
        out += [f"{title}, {min(count, len(some))} questions", "", table(rows, ("right",)), ""]
    return "\n".join(out)


# Facts: keys that have values. A model that has learned them is asked with a passage that says the same, or something else, or
# speaks of another key.

KEYS, VALUES = 64, 48
NAMES = [*(f"key{i}" for i in range(KEYS)), *(f"value{i}" for i in range(VALUES)), "asked", "says", "end"]
ASKED, SAYS, END = range(KEYS + VALUES, len(NAMES))
CONTRADICTED = 0.2                                 # of the passages that a model is trained on


def question(key: int, about: int, said: int) -> tuple[list[int], list[int]]:
    """With the passage, and without it."""
    return [about, SAYS, KEYS + said, ASKED, key, SAYS], [END, END, END, ASKED, key, SAYS]


def trained(truth: np.ndarray[Any, Any], steps: int) -> Any:
    """A network that has learned the facts, bare and behind passages; half of these speak of another key."""
    import torch

    from polydec.train.network import Llama, Shape

    dice = np.random.default_rng(1)
    net = Llama(Shape(len(NAMES), 64, 2, 4, 2, 128, 64))
    optimiser = torch.optim.AdamW(net.parameters(), 2e-3)
    for step in range(steps):
        texts, answers = list[list[int]](), list[int]()
        for key in map(int, dice.integers(0, KEYS, 64)):
            about = key if dice.random() < 0.5 else int(dice.integers(0, KEYS))
            said = int(dice.integers(0, VALUES) if dice.random() < CONTRADICTED else truth[about])
            texts.append(question(key, about, said)[dice.random() < 0.5])
            answers.append(KEYS + (said if about == key and texts[-1][0] != END else int(truth[key])))
        logits_BV = net(torch.tensor(texts))[:, -1]
        loss = torch.nn.functional.cross_entropy(logits_BV, torch.tensor(answers))
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if not (step + 1) % 250:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}", file=sys.stderr, flush=True)
    return net


def facts(model: str, count: int, steps: int = 700) -> str:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers

    from polydec.train.network import save_directory

    torch.manual_seed(0)
    dice = np.random.default_rng(0)
    truth = dice.integers(0, VALUES, KEYS)
    net = trained(truth, steps)
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(NAMES)}, unk_token="end"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    with tempfile.TemporaryDirectory() as at:
        save_directory(at, net, net.s.config(eos=END), dtype=torch.float32, files={
            "tokenizer.json": tokenizer.to_str(), "tokenizer_config.json": {"eos_token": "end"}})
        lm, out = api.load(at, draft=None, ngrams=None, threads=1, dtype="float32"), list[str]()
        for title in ("the passage contradicts", "the passage agrees", "the passage is about another key"):
            asked = list[dict[str, Any]]()
            for key in map(int, dice.integers(0, KEYS, count)):
                about = int((key + dice.integers(1, KEYS)) % KEYS) if "another" in title else key
                said = int((truth[about] + dice.integers(1, VALUES)) % VALUES if "contradicts" in title else truth[about])
                right = said if "contradicts" in title else int(truth[key])
                both = dict(zip(("with_context", "without_context"), question(key, about, said)))
                asked.append({**both, "right": NAMES[KEYS + right]})
            rows = compared(lm, asked, lambda text, q: text.split()[:1] == [q["right"]], method="plain", max_tokens=1,
                            sampling=lm.sampling(temperature=0.0))
            out += [f"{title}, {count} questions", "", table(rows, ("right",)), ""]
    return "\n".join(out)


TABLES: Mapping[str, Callable[[str, int], str]] = {"warm": warm, "open": open_ended, "conflict": conflict, "facts": facts}


if __name__ == "__main__":
    which, model, count = (*sys.argv[1:], *("conflict", "zoo:smollm2", "200")[len(sys.argv) - 1:])
    print(TABLES[which](model, int(count)))
