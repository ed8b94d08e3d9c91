"""Whether a change has left every text as it was: requests of all families are answered and written down, and two such records
are compared to the byte.

Every method on toys under three laws, alone and all in one batch, with what observers were told; then every method, way to
steer and kind of constraint on zoo:tiny through the engine, on the torch path and on the compiled step, with memory enough and
with so little that requests wait for one another; then methods that fill canvases. A line a request: what was asked, then its
texts, passes and positions (of the toys: its events). A refusal is written down as well. Lines are written as they come, so a
record that is not whole yet can be compared as far as it goes. It takes some minutes of one core.

    OMP_NUM_THREADS=1 python benchmarks/same_texts.py write before.jsonl        (on the one commit)
    OMP_NUM_THREADS=1 python benchmarks/same_texts.py write after.jsonl         (on the other)
    python benchmarks/same_texts.py compare before.jsonl after.jsonl            (exit code 1 where they differ)
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from polydec import AnyOf, Engine, JsonSchema, Regex, load
from polydec.base.errors import PolydecError
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing.examples import (
    SHAPERS,
    bend_target,
    example_artefacts,
    example_decoder,
    target_draft_pairs,
)
from polydec.methods.registry import registry, steer
from polydec.methods.registry.kit import MASKED_DRAFT

METHODS = [name for name in registry.of_family("ar") if name != "auto"]
STEERINGS = tuple(steer.steering_modules())
PROMPTS = (
    "The quick brown fox",
    "one two three one two three one",
    "def f(x):\n    return",
    "Q: What is it? A:",
)
OBJECT = '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}'
CONSTRAINTS = (
    Regex("[a-z]{3,6}(, [a-z]+)*"),
    AnyOf(("yes", "no", "perhaps not")),
    JsonSchema(OBJECT),
)
CANVASES = ("llada", "dream", "fast-dllm", "prophet", "mdlm", "dkv-cache")
COPIES = ("copy: 504152", "slots: Olga, Hull, 24", "shuffle: 504132")
TOYS = slice(2, 4)  # a vocabulary of three tokens, and one of four
FAULTS = (PolydecError, AssertionError)

Line = tuple[list[Any], list[Any]]
"""What was asked, and what came of it."""


def name_number(name: str) -> int:
    """A number of a method's own: where others are added, its request stays what it was."""
    return zlib.crc32(name.encode()) % 1000


def toy_lines() -> Iterator[Line]:
    """Every method on small laws that are known in full."""
    for seed, (target, draft) in enumerate(target_draft_pairs(4)[TOYS]):
        for law, shapers in SHAPERS.items():
            made = list[tuple[str, Any, Request]]()
            for method in METHODS:
                asked = ["toy", seed, law, method]
                try:
                    one = example_decoder(
                        method, bend_target(target, shapers), bend_target(draft, shapers)
                    )
                    request = _toy_request(name_number(method))
                    yield [*asked, "alone"], _watched([(one, request)])[0]
                    made.append((method, one, request))
                except FAULTS as error:
                    yield asked, ["refused", str(error)]
            together = _watched([(one, request) for _, one, request in made])
            for (method, _, _), answer in zip(made, together, strict=True):
                yield ["toy", seed, law, method, "together"], answer


def _toy_request(i: int) -> Request:
    return Request(
        (0, 1, i % 3),
        9,
        seed=i,
        ignore_eos=i % 2 == 0,
        logprobs=1 if i % 4 == 1 else None,
        n=2 if i % 5 == 0 else 1,
    )


def _watched(pairs: list[tuple[Any, Request]]) -> list[list[str]]:
    """Results and events of requests that run together."""
    events: list[list[Any]] = [[] for _ in pairs]
    results = run_coroutines(
        [run_decoder(one, request, heard.append) for (one, request), heard in zip(pairs, events)]
    )
    return [[repr(result), repr(heard)] for result, heard in zip(results, events)]


def engine_lines(dtype: str, memory: int | None) -> Iterator[Line]:
    """Every method, way to steer and kind of constraint in one engine."""
    lm = load("zoo:tiny", draft="zoo:tiny-draft", dtype=dtype, threads=1)
    widths = [
        point.lm.network.config.width if hasattr(point.lm.network, "config") else 64
        for point in (lm.checkpoint, lm.draft)
    ]
    lm = replace(lm, artefacts=example_artefacts(lm.checkpoint.lm.vocab, *widths))
    vars(lm)["costs"] = lm.recipe_kit().costs  # fixed figures: nothing is measured
    engine, tickets = Engine(lm, max_cache_bytes=memory), list[tuple[list[Any], Any]]()

    def submit(label: str, prompt: str, **fields: Any) -> Line | None:
        asked = ["tiny", dtype, memory, label]
        try:
            tickets.append((asked, engine.submit(prompt, raw=True, max_tokens=10, **fields)))
        except PolydecError as error:
            return asked, ["refused", str(error)]
        return None

    yield from filter(None, _submitted(lm, submit, odd=bool(memory)))
    with suppress(PolydecError):  # of one that fails; all have ended then
        engine.run([ticket for _, ticket in tickets])
    for asked, ticket in tickets:
        yield asked, _answer(ticket)
    yield ["tiny", dtype, memory, "requests that had to wait"], [engine.preempted]


def _submitted(lm: Any, submit: Callable[..., Line | None], odd: bool) -> Iterator[Line | None]:
    """Hand in the requests. odd: those that are greedy with memory enough are drawn here, and the other way round."""
    for method in METHODS:
        i = name_number(method)
        if MASKED_DRAFT not in registry.get_recipe_module(method).CARD.needs:
            temperature = 0.0 if (i % 2 == 0) != odd else 0.9
            yield submit(
                method,
                PROMPTS[i % 4],
                method=method,
                seed=i,
                sampling=lm.sampling_with(temperature=temperature),
                ignore_eos=i % 3 == 0,
            )
    bent = lm.sampling_with(temperature=0.8, repetition_penalty=1.2)
    for steering in STEERINGS:
        i = name_number(steering)
        for method in ("plain", "draft-model", "prompt-lookup", "beam"):
            fields = {"method": method, "seed": i, "steer": steering}
            label = f"{steering}, {method}"
            yield submit(label, PROMPTS[i % 4], negative_prompt="No.", sampling=bent, **fields)
            yield submit(f"{label}, alone", PROMPTS[i % 4], **fields)
    for i, constraint in enumerate(CONSTRAINTS):
        for method in ("plain", "draft-model", "jump-forward", "awrs", "calm"):
            label = f"constraint {i}, {method}"
            fields = {"method": method, "seed": i, "constraint": constraint, "n": 2}
            yield submit(label, PROMPTS[i % 4], **fields)
    long = PROMPTS[1] * 12
    yield submit("a long prompt", long, method="plain", prompt_logprobs=1, logprobs=1)
    drawn = lm.sampling_with(temperature=1.0)
    yield submit("a long prompt, three", long, method="draft-model", n=3, sampling=drawn)


def canvas_lines() -> Iterator[Line]:
    """Methods that fill canvases."""
    engine = Engine(load("zoo:diffusion", draft=None, threads=1))
    tickets = [
        engine.submit(COPIES[i % len(COPIES)], method=method, max_tokens=12, seed=i)
        for i, method in enumerate(CANVASES)
    ]
    engine.run(tickets)
    for method, ticket in zip(CANVASES, tickets, strict=True):
        yield ["diffusion", method], _answer(ticket)


def _answer(ticket: Any) -> list[Any]:
    """Texts, then passes and positions of each model, then all that is known of the results."""
    try:
        completion = ticket.completion()
    except PolydecError as error:
        return ["failed", str(error)]
    texts = [(choice.text, choice.token_ids, choice.finish_reason) for choice in completion.choices]
    models = completion.metrics.get("models", [])
    used = [(model["name"], model["passes"], model["positions_fed"]) for model in models]
    return [texts, used, repr(ticket.results)]


def write(path: Path) -> None:
    """Answer all requests and write the record."""
    torch.set_num_threads(1)
    parts = [toy_lines()]
    parts += [engine_lines(dtype, memory) for dtype in ("float32", "auto") for memory in (None, 1)]
    parts.append(canvas_lines())
    with path.open("w", encoding="utf-8", buffering=1) as file:
        for part in parts:
            for asked, answer in part:
                file.write(json.dumps([asked, answer], default=repr) + "\n")
            print(f"written: {asked}", file=sys.stderr, flush=True)


def compare(before: Path, after: Path) -> int:
    """How many lines differ, which are named, or stand in one record only."""
    old, new = (recorded_answers(path) for path in (before, after))
    both = [asked for asked in old if asked in new]
    different = [asked for asked in both if old[asked] != new[asked]]
    for asked in different:
        print("differs:", json.loads(asked))
    alone = len(old) + len(new) - 2 * len(both)
    if alone:
        print(f"{alone} lines stand in one record only")
    print(f"{len(both)} lines compared, {len(different)} different")
    return len(different) + alone


def recorded_answers(path: Path) -> dict[str, Any]:
    """What came of each request, by what was asked."""
    lines = map(json.loads, path.read_text("utf-8").splitlines())
    return {json.dumps(asked): answer for asked, answer in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("write").add_argument("path", type=Path)
    comparing = verbs.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.verb == "write":
        write(given.path)
    elif compare(given.before, given.after):
        sys.exit(1)


if __name__ == "__main__":
    main()
