"""Real JSON schemas as constraints: how many are refused and for what, whether finished texts are valid, what masks cost.

    python benchmarks/constraints.py --data ../shared/data --count 200 --tokens 400 --out constraints.jsonl
    python benchmarks/constraints.py --table constraints.jsonl

Schemas are those of json_schema_bench, all categories, the first so many in the order of the hash of their names. Each is
asked for with a prompt that shows the schema (its first 1,200 characters), greedily. Rows are written as they come, so a run
that was cut off goes on where it ended. Times are CPU seconds of one thread. """
from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema

from polydec import JsonSchema, generate, load
from polydec.constraints.guidance import Grammar

PROMPT = "Write one JSON value that follows this JSON schema, as short as it may be, and nothing else.\n\n"


def chosen(data: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` schemas of all categories, in the order of the hash of their names."""
    with gzip.open(data / "json_schema_bench" / "part_a.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return sorted(rows, key=lambda r: hashlib.sha1(r["id"].encode()).hexdigest())[:count]


class Clock:
    """CPU seconds that a language takes, beside all others."""
    def __init__(self) -> None:
        self.seconds, self.masks = 0.0, 0

    def watch(self, name: str) -> None:
        inner = getattr(Grammar, name)

        def timed(*given: Any) -> Any:
            start = time.process_time()
            try:
                return inner(*given)
            finally:
                self.seconds += time.process_time() - start
                self.masks += name == "mask"

        setattr(Grammar, name, timed)


def legal(language: Grammar, text: str) -> bool:
    """Whether a text begins one of the language: byte by byte, however it was spelled."""
    single = {piece: i for i, piece in enumerate(language.pieces) if piece is not None and len(piece) == 1}
    state = language.start()
    for byte in text.encode():
        token = single.get(bytes((byte,)))
        if token is None or not language.allows(state, token):
            return False
        state = language.step(state, token)
    return True


def share_filled(schema: dict[str, Any], value: Any) -> float | None:
    """Of the properties that a schema names at its top, the share that stands in a value."""
    known = schema.get("properties")
    return len(set(known) & set(value)) / len(known) if known and isinstance(value, dict) else None


def measure(row: dict[str, Any], model: Any, tokens: int, clock: Clock) -> dict[str, Any]:
    """What comes of one schema."""
    out: dict[str, Any] = {"id": row["id"], "category": row["category"]}
    vocab = model.checkpoint.lm.vocab
    start = time.process_time()
    try:
        constraint = JsonSchema.of(row["schema"])
        language = constraint.language(vocab, vocab.eos)
    except ValueError as error:
        return out | {"end": "refused", "why": str(error)}
    out["compile"] = time.process_time() - start
    clock.seconds = clock.masks = 0
    start = time.process_time()
    try:
        done = generate(model, PROMPT + json.dumps(row["schema"])[:1200], constraint=constraint, max_tokens=tokens,
                        sampling=model.sampling(temperature=0.0))
    except ValueError as error:
        return out | {"end": "failed", "why": str(error)}
    out |= {"tokens": len(done.token_ids), "text": done.text, "mask": clock.seconds, "masks": clock.masks,
            "cpu": time.process_time() - start, "forward": sum(m["seconds"] for m in done.metrics["models"]),
            "kept": done.metrics["log_mass_kept"], "legal": legal(language, done.text)}
    if done.finish_reason != "stop":
        return out | {"end": "cut"}
    value = json.loads(done.text)
    checker = jsonschema.validators.validator_for(row["schema"])(row["schema"])
    wrong = next(iter(checker.iter_errors(value)), None)
    return out | {"end": "valid" if wrong is None else "invalid", "filled": share_filled(row["schema"], value),
                  "why": None if wrong is None else wrong.message[:200]}


def table(rows: list[dict[str, Any]]) -> str:
    """The figures in Markdown."""
    ends = Counter(r["end"] for r in rows)
    why = Counter(r["why"].split(": ", 1)[-1][:60] for r in rows if r["end"] in ("refused", "failed"))
    ran = [r for r in rows if "tokens" in r]
    compiled = sorted(r["compile"] for r in ran)
    filled = [r["filled"] for r in rows if r.get("filled") is not None]
    tokens, finished = sum(r["tokens"] for r in ran), ends["valid"] + ends["invalid"]
    lines = ["| | |", "|---|---|", f"| schemas | {len(rows)} |"]
    lines += [f"| {end} | {ends[end]} ({ends[end] / len(rows):.1%}) |"
              for end in ("valid", "invalid", "cut", "refused", "failed")]
    lines += [f"| finished texts that validate | {ends['valid']} of {finished} |",
              f"| cut texts that begin a legal one | {sum(r['legal'] for r in ran if r['end'] == 'cut')} of {ends['cut']} |",
              f"| properties filled, of finished ones | {sum(filled) / max(1, len(filled)):.2f} |",
              f"| tokens | {tokens} |",
              f"| masks and steps, CPU ms a token | {1000 * sum(r['mask'] for r in ran) / max(1, tokens):.2f} |",
              f"| all else, CPU ms a token (prompts included) | "
              f"{1000 * sum(r['cpu'] - r['mask'] for r in ran) / max(1, tokens):.2f} |",
              f"| compiling, CPU ms a schema (median) | {1000 * compiled[len(compiled) // 2] if ran else 0:.1f} |",
              f"| log mass kept, a token | {sum(r['kept'] for r in ran) / max(1, tokens):.2f} |"]
    reasons = [f"- {count} × {reason}" for reason, count in why.most_common()]
    return "\n".join([*lines, "", "Refused or failed for:", "", *reasons])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("POLYDEC_DATA", "../shared/data")))
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("constraints.jsonl"))
    parser.add_argument("--refused", action="store_true", help="compile only: which schemas are refused")
    parser.add_argument("--table", type=Path, help="print the figures of a file of rows, and nothing else")
    given = parser.parse_args()
    if given.table is not None:
        print(table([json.loads(line) for line in given.table.read_text("utf-8").splitlines()]))
        return
    known = {json.loads(line)["id"] for line in given.out.read_text("utf-8").splitlines()} if given.out.exists() else set[str]()
    model, clock = load(given.model, draft=None, ngrams=None, threads=given.threads), Clock()
    for name in ("mask", "step", "allows"):
        clock.watch(name)
    with given.out.open("a", encoding="utf-8") as sink:
        for row in chosen(given.data, given.count):
            if row["id"] in known:
                continue
            done = measure(row, model, 1 if given.refused else given.tokens, clock)
            sink.write(json.dumps(done) + "\n")
            sink.flush()
            print(done["end"], done["id"], done.get("why") or "", flush=True)
    print(table([json.loads(line) for line in given.out.read_text("utf-8").splitlines()]))


if __name__ == "__main__":
    main()
