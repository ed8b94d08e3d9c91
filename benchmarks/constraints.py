"""Real JSON schemas as constraints: how many are refused and for what, whether finished texts are valid, what masks cost.

    python benchmarks/constraints.py --methods plain prompt-lookup --compute int8 --out constraints.jsonl
    python benchmarks/constraints.py --llama --out llama.jsonl              # llama.cpp's grammar, on the same file and prompts
    python benchmarks/constraints.py --free --out free.jsonl                # the same prompts, bound by nothing
    python benchmarks/constraints.py --table constraints.jsonl llama.jsonl

Schemas are those of json_schema_bench, all categories, the first so many in the order of the hash of their names. Each is
asked for with a prompt that shows the schema (its first 1,200 characters), greedily, eight at a time. With `--free` an answer
is judged as it stands, and `first` says whether the first JSON value in it is valid. What further methods write is compared
with the first one's, token by token. Rows are written as they come, so a run that was cut off goes on where it ended. Times
are CPU seconds of one thread.

llama.cpp's grammar is what its Python binding makes of a schema (`LlamaGrammar.from_json_schema`); it takes one text at a time.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import hashlib
import json
import multiprocessing
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema.validators import validator_for

from polydec import Ask, Engine, JsonSchema, LoadedModel, load
from polydec.lab.bench.checks import last_code
from polydec.lab.bench.other_engines import EngineUnavailable, LlamaCpp
from polydec.laws.constraints.guidance import GrammarLanguage
from polydec.laws.constraints.legal_endings import LegalEndings

PROMPT = "Write one JSON value that follows this JSON schema, as short as it may be, and nothing else.\n\n"
AT_ONCE = 8
CONTEXT = 2048  # of llama.cpp: prompts have at most some 800 tokens


def chosen(data: Path, count: int) -> list[dict[str, Any]]:
    """The first `count` schemas of all categories, in the order of the hash of their names."""
    with gzip.open(data / "json_schema_bench" / "part_a.jsonl.gz", "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return sorted(rows, key=lambda r: hashlib.sha1(r["id"].encode()).hexdigest())[:count]


def prompt(row: dict[str, Any]) -> str:
    return PROMPT + json.dumps(row["schema"])[:1200]


class Clock:
    """CPU seconds that each compiled grammar takes, beside all else; those of ways out count once."""

    def __init__(self) -> None:
        self.seconds, self.inside = defaultdict[int, float](float), False
        for name in ("mask", "step", "allows"):
            self._watch(GrammarLanguage, name, lambda grammar, *given: grammar)
        self._watch(LegalEndings, "out", lambda ways, grammar, *given: grammar)

    def _watch(self, kind: type, name: str, whose: Callable[..., GrammarLanguage]) -> None:
        inner = getattr(kind, name)

        def timed(*given: Any) -> Any:
            if self.inside:
                return inner(*given)
            start, self.inside = time.process_time(), True
            try:
                return inner(*given)
            finally:
                self.inside = False
                self.seconds[id(whose(*given).root)] += time.process_time() - start

        setattr(kind, name, timed)


def legal(language: GrammarLanguage, text: str) -> bool:
    """Whether a text begins one of the language: byte by byte, however it was spelled."""
    single = {
        piece: i for i, piece in enumerate(language.pieces) if piece is not None and len(piece) == 1
    }
    state = language.start_state()
    for byte in text.encode():
        token = single.get(bytes((byte,)))
        if token is None or not language.allows_token(state, token):
            return False
        state = language.next_state(state, token)
    return True


def share_filled(schema: dict[str, Any], value: Any) -> float | None:
    """Of the properties that a schema names at its top, the share that stands in a value."""
    known = schema.get("properties")
    return len(set(known) & set(value)) / len(known) if known and isinstance(value, dict) else None


def judged(schema: dict[str, Any], text: str) -> dict[str, Any]:
    """What a finished text is worth."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return {"end": "invalid", "filled": None, "why": f"no JSON: {error}"[:200]}
    checker = validator_for(schema)(schema)
    wrong = next(iter(checker.iter_errors(value)), None)
    return {
        "end": "valid" if wrong is None else "invalid",
        "filled": share_filled(schema, value),
        "why": None if wrong is None else wrong.message[:200],
    }


def run(model: LoadedModel, asks: Sequence[Ask]) -> list[Any]:
    """Answers, or what went wrong, in the order of the requests. What cannot end in time is asked for without that."""
    engine, out, tickets = Engine(model), list[Any](), list[Any]()
    for ask in asks:
        try:
            tickets.append(engine.submit(ask))
        except ValueError:
            tickets.append(engine.submit(replace(ask, finish=False)))
    while engine.step():
        pass
    for ticket in tickets:
        try:
            out.append(ticket.completion())
        except ValueError as error:
            out.append(error)
    return out


def compiled(
    model: LoadedModel, row: dict[str, Any], clock: Clock
) -> tuple[dict[str, Any], GrammarLanguage | None]:
    """The first fields of a schema's row; None where the schema is refused."""
    out: dict[str, Any] = {"id": row["id"], "category": row["category"]}
    vocab, start = model.checkpoint.lm.vocab, time.process_time()
    try:
        language = JsonSchema.of_schema(row["schema"]).token_language(vocab, vocab.eos)
    except ValueError as error:
        return out | {"end": "refused", "why": str(error)}, None
    clock.seconds[id(language.root)] = 0.0
    return out | {"compile": time.process_time() - start}, language


def measure(
    model: LoadedModel,
    rows: Sequence[dict[str, Any]],
    tokens: int,
    methods: Sequence[str],
    clock: Clock,
    finish: bool,
) -> list[dict[str, Any]]:
    """What comes of some schemas that are asked for together."""
    begun = [compiled(model, row, clock) for row in rows]
    going = [
        (row, out, language) for row, (out, language) in zip(rows, begun) if language is not None
    ]
    for method in methods:
        asks = [
            Ask(
                prompt(row),
                constraint=JsonSchema.of_schema(row["schema"]),
                max_tokens=tokens,
                method=method,
                finish=finish,
                sampling=model.sampling_with(temperature=0.0),
            )
            for row, _, _ in going
        ]
        start = time.process_time()
        answers = run(model, asks)
        cpu = (time.process_time() - start) / max(1, len(going))
        for (row, out, language), done in zip(going, answers):
            if method != methods[0]:
                out.setdefault("same", {})[method] = (
                    str(done) == out.get("why")
                    if isinstance(done, Exception)
                    else list(done.token_ids) == out.get("ids")
                )
                out.setdefault("passes", {})[method] = (
                    None if isinstance(done, Exception) else done.metrics["target_passes"]
                )
            elif isinstance(done, Exception):
                out |= {"end": "failed", "why": str(done)}
            else:
                out |= {
                    "tokens": len(done.token_ids),
                    "ids": list(done.token_ids),
                    "text": done.text,
                    "mask": clock.seconds[id(language.root)],
                    "cpu": cpu,
                    "forward": sum(m["seconds"] for m in done.metrics["models"]),
                    "kept": done.metrics["log_mass_kept"],
                    "steered": done.metrics.get("steered_tokens", 0),
                    "legal": legal(language, done.text),
                }
                out |= (
                    judged(row["schema"], done.text)
                    if done.finish_reason == "stop"
                    else {"end": "cut"}
                )
    return [out for out, _ in begun]


def first_value(text: str) -> str:
    """The first JSON value of a text, or of the last block of code in it; all of that where none begins it."""
    code = last_code(text).strip()
    try:
        _, end = json.JSONDecoder().raw_decode(code)
    except (ValueError, RecursionError):
        return code
    return code[:end]


def measure_free(
    model: LoadedModel, rows: Sequence[dict[str, Any]], tokens: int
) -> list[dict[str, Any]]:
    """What comes of some schemas that a prompt asks for and nothing binds."""
    sampling = model.sampling_with(temperature=0.0)
    asks = [Ask(prompt(row), max_tokens=tokens, method="plain", sampling=sampling) for row in rows]
    start = time.process_time()
    answers = run(model, asks)
    cpu = (time.process_time() - start) / len(rows)
    lines = list[dict[str, Any]]()
    for row, done in zip(rows, answers, strict=True):
        line = {"id": row["id"], "category": row["category"]}
        if isinstance(done, Exception):
            lines.append(line | {"end": "failed", "why": str(done)})
            continue
        line |= {"tokens": len(done.token_ids), "text": done.text, "mask": 0.0, "cpu": cpu}
        line["first"] = judged(row["schema"], first_value(done.text))["end"]
        ended = done.finish_reason == "stop"
        lines.append(line | (judged(row["schema"], done.text) if ended else {"end": "cut"}))
    return lines


class Llama:
    """llama.cpp's grammar: the likeliest token that it lets pass."""

    def __init__(self, path: str) -> None:
        import llama_cpp as L  # pyright: ignore[reportMissingImports]     (it need not be installed)

        self.L, self.model = L, LlamaCpp(path, CONTEXT, CONTEXT, 1)
        self.vocab = L.llama_model_get_vocab(L.llama_get_model(self.model._ctx))
        self.room = np.zeros(
            self.model.size, [("id", np.int32), ("logit", np.float32), ("p", np.float32)]
        )

    def grammar(self, schema: dict[str, Any]) -> Any:
        """Raises ValueError where the binding or the library does not take it."""
        try:
            text = self.L.llama_grammar.json_schema_to_gbnf(json.dumps(schema))
        except Exception as error:  # whatever its converter meets
            raise ValueError(f"converter: {type(error).__name__} {error}"[:200]) from None
        sampler = self.L.llama_sampler_init_grammar(self.vocab, text.encode(), b"root")
        if not sampler:
            raise ValueError("parser: the grammar is refused")
        return sampler

    def passed(
        self, sampler: Any, ids: np.ndarray[Any, Any], logits: np.ndarray[Any, Any]
    ) -> np.ndarray[Any, Any]:
        """The logits that the grammar leaves of these tokens."""
        room = self.room[: len(ids)]
        room["id"], room["logit"] = ids, logits
        data = room.ctypes.data_as(self.L.llama_token_data_p)
        many = self.L.llama_token_data_array(data=data, size=len(ids), selected=-1, sorted=False)
        self.L.llama_sampler_apply(sampler, ctypes.byref(many))
        return room["logit"]

    def write(
        self, sampler: Any, prompt: Sequence[int], most: int
    ) -> tuple[list[int], bool, float]:
        """Tokens, whether they end by themselves, and the CPU seconds of the grammar."""
        out, feed, every, spent = list[int](), list(prompt), np.arange(self.model.size), 0.0
        self.model.drop_entries(0)
        while len(out) < most:
            self.model.feed_tokens([feed], len(prompt) + len(out) - len(feed), 1)
            row = np.ctypeslib.as_array(
                self.L.llama_get_logits_ith(self.model._ctx, len(feed) - 1), (self.model.size,)
            )
            start, token = time.process_time(), int(row.argmax())
            if not np.isfinite(
                self.passed(sampler, every[token : token + 1], row[token : token + 1])[0]
            ):
                token = int(self.passed(sampler, every, row).argmax())
            self.L.llama_sampler_accept(sampler, token)
            spent += time.process_time() - start
            if self.L.llama_vocab_is_eog(self.vocab, token):
                return out, True, spent
            out.append(token)
            feed = [token]
        return out, False, spent


def measure_llama(
    llama: Llama, model: LoadedModel, row: dict[str, Any], tokens: int
) -> dict[str, Any]:
    """What comes of one schema there."""
    out: dict[str, Any] = {"id": row["id"], "category": row["category"]}
    start = time.process_time()
    try:
        sampler = llama.grammar(row["schema"])
    except ValueError as error:
        return out | {"end": "refused", "why": str(error)}
    out["compile"], start = time.process_time() - start, time.process_time()
    ids, ended, mask = llama.write(sampler, model.encode_prompt(prompt(row)), tokens)
    llama.L.llama_sampler_free(sampler)
    text = model.checkpoint.text.decode(ids)
    out |= {
        "tokens": len(ids) + ended,
        "ids": ids,
        "text": text,
        "mask": mask,
        "cpu": time.process_time() - start,
    }
    return out | (judged(row["schema"], text) if ended else {"end": "cut"})


def apart(measured: Callable[[], dict[str, Any]], row: dict[str, Any]) -> dict[str, Any]:
    """What is measured in a process of its own, which may crash: llama.cpp's grammars bring it down now and then."""
    there, here = multiprocessing.Pipe(False)
    child = multiprocessing.get_context("fork").Process(target=lambda: here.send(measured()))
    child.start()
    here.close()
    try:
        found = there.recv()
    except EOFError:
        found = None
    child.join()
    crashed = {
        "id": row["id"],
        "category": row["category"],
        "end": "failed",
        "why": f"crash: signal {-(child.exitcode or 0)}",
    }
    return crashed if found is None else found


def figures(rows: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """The lines of the table."""
    ends, ran = Counter(r["end"] for r in rows), [r for r in rows if "tokens" in r]
    tokens, finished = sum(r["tokens"] for r in ran), ends["valid"] + ends["invalid"]
    filled = [r["filled"] for r in ran if r.get("filled") is not None]
    times = sorted(r["compile"] for r in ran if "compile" in r)

    def a_token(total: float) -> str:
        return f"{1000 * total / max(1, tokens):.2f}"

    yield "schemas", f"{len(rows)}"
    for end in ("valid", "invalid", "cut", "refused", "failed"):
        yield end, f"{ends[end]} ({ends[end] / len(rows):.1%})"
    yield "finished texts that validate", f"{ends['valid']} of {finished}"
    if any("legal" in r for r in ran):
        yield (
            "cut texts that begin a legal one",
            f"{sum(r['legal'] for r in ran if r['end'] == 'cut')} of {ends['cut']}",
        )
    if any("first" in r for r in ran):
        valid = sum(r.get("first") == "valid" for r in ran)
        yield "valid first value, whatever stands around it", f"{valid} ({valid / len(rows):.1%})"
    yield "properties filled, of finished texts", f"{sum(filled) / max(1, len(filled)):.2f}"
    steered = [n for r in ran if (n := r.get("steered"))]
    if steered:
        yield (
            "brought to an end",
            f"{len(steered)}, by {sum(steered) / len(steered):.1f} tokens each",
        )
    yield "tokens", f"{tokens}"
    yield "masks and steps of the grammar, CPU ms a token", a_token(sum(r["mask"] for r in ran))
    yield (
        "all else, prompts included, CPU ms a token",
        a_token(sum(r["cpu"] - r["mask"] for r in ran)),
    )
    if any("forward" in r for r in ran):
        yield (
            "forward passes, prompts included, ms a token",
            a_token(sum(r["forward"] for r in ran)),
        )
        yield "log mass kept, a token", f"{sum(r['kept'] for r in ran) / max(1, tokens):.2f}"
    yield (
        "compiling, CPU ms a schema (median)",
        f"{1000 * times[len(times) // 2] if times else 0:.1f}",
    )
    for method in dict.fromkeys(m for r in rows for m in r.get("same", ())):
        same, passes = (
            [r["same"][method] for r in rows if "same" in r],
            [r["passes"][method] or 0 for r in rows if "same" in r],
        )
        yield f"the same tokens with {method}", f"{sum(same)} of {len(same)}"
        yield f"tokens a pass with {method}", f"{tokens / max(1, sum(passes)):.2f}"


def table(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The figures in Markdown, a column for each run; then what was refused, and for what."""
    columns = [dict(figures(rows)) for rows in runs.values()]
    names = dict.fromkeys(name for c in columns for name in c)
    out = [f"| | {' | '.join(runs)} |", "|---|" + "---|" * len(runs)]
    out += [f"| {name} | {' | '.join(c.get(name, '') for c in columns)} |" for name in names]
    both = set[str].intersection(
        *({r["id"] for r in rows if r.get("filled") is not None} for rows in runs.values())
    )
    if len(runs) > 1 and both:
        shares = [
            sum(r["filled"] for r in rows if r["id"] in both) / len(both) for rows in runs.values()
        ]
        out += [
            f"| properties filled, of the {len(both)} that all finish | {' | '.join(f'{x:.2f}' for x in shares)} |"
        ]
    for name, rows in runs.items():
        why = Counter(
            r["why"].split(": ", 1)[-1][:70]
            for r in rows
            if r["end"] in ("refused", "failed", "invalid")
        )
        out += ["", f"{name}, refused, failed or invalid:", ""]
        out += [f"- {count} × {reason}" for reason, count in why.most_common()]
    return "\n".join(out)


def read(path: Path) -> list[dict[str, Any]]:
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )


def written(
    path: Path,
    rows: Iterable[dict[str, Any]],
    at_once: int,
    measured: Callable[[Sequence[dict[str, Any]]], Sequence[dict[str, Any]]],
) -> None:
    """Measure what a file does not hold yet, some schemas at a time."""
    known = {r["id"] for r in read(path)}
    left = [r for r in rows if r["id"] not in known]
    with path.open("a", encoding="utf-8") as sink:
        for first in range(0, len(left), at_once):
            for done in measured(left[first : first + at_once]):
                sink.write(json.dumps(done) + "\n")
                print(done["end"], done["id"], done.get("why") or "", flush=True)
            sink.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set"),
    )
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument(
        "--compute", default=None, help="arithmetic of the model, as in polydec generate"
    )
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument(
        "--methods",
        nargs="+",
        default=["plain"],
        help="the first is measured, the others compared with it",
    )
    parser.add_argument(
        "--finish", action="store_true", help="answers are brought to an end in time"
    )
    parser.add_argument("--out", type=Path, default=Path("constraints.jsonl"))
    parser.add_argument(
        "--refused", action="store_true", help="compile only: which schemas are refused"
    )
    parser.add_argument("--free", action="store_true", help="the prompt alone asks for the form")
    parser.add_argument("--llama", action="store_true", help="llama.cpp instead")
    parser.add_argument(
        "--table", type=Path, nargs="+", help="print the figures of files of rows, and nothing else"
    )
    given = parser.parse_args()
    if given.table is None:
        model = load(given.model, ngrams=None, threads=1, compute=given.compute)
        rows, tokens = chosen(given.data, given.count), 1 if given.refused else given.tokens
        if given.llama:
            try:
                llama = Llama(model.checkpoint.path)
            except EngineUnavailable as error:
                raise SystemExit(f"no llama.cpp: {error}") from None
            written(
                given.out,
                rows,
                1,
                lambda some: [apart(lambda: measure_llama(llama, model, some[0], tokens), some[0])],
            )
        elif given.free:
            written(given.out, rows, AT_ONCE, lambda some: measure_free(model, some, tokens))
        else:
            clock = Clock()
            written(
                given.out,
                rows,
                AT_ONCE,
                lambda some: measure(model, some, tokens, given.methods, clock, given.finish),
            )
    print(table({path.stem: read(path) for path in given.table or [given.out]}))


if __name__ == "__main__":
    main()
