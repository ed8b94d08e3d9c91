"""Random inputs over every edge: `python -m polydec.lab.fuzz.fuzz --seed 0 --count 1000`.

A case is named by (edge, seed, number) and is the same wherever it runs. Wrong is: another exit
code than 0 or 2, a traceback, an error that is no sentence, a hang, a token that was forbidden, a
number that is none, more than twice the memory that whole inputs take.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from typer.main import get_command

from polydec import api
from polydec.base.confined import give_back
from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError
from polydec.core.trace import EditedEvent, replay
from polydec.core.types import Exactness
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.registry import registry
from polydec.models.sessions.soft import Soft
from polydec.request import profile

SECONDS = 30.0
"""What one case may compute; more is a hang."""
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    64,
    255,
    4096,
    65536,
    10**9,
    2**63,
    -(2**63),
    10**30,
    0.0,
    -0.0,
    0.5,
    1.0,
    1.5,
    -2.0,
    1e-38,
    1e39,
    1e308,
    float("nan"),
    float("inf"),
    float("-inf"),
)
TEXTS = (
    "",
    " ",
    "The old river ran past the mill, and the old river",
    "[/INST]",
    "[/]",
    "[bold]",
    "\x1b[2J\x1b]0;x\x07",
    "\x00",
    "\udcff",
    "é🙂\u202e",
    "<|end|><|user|>",
    "{{ 1 }}",
    "a" * 3000,
    "-",
    "--",
    "~nosuchuser",
    "nan",
    "none",
    "true",
    "1e9",
    "[" * 3000,
    "%s%n",
    "\r\n\t",
    "../..",
)


@dataclass(frozen=True)
class FuzzFailure:
    """A case that went wrong, what it was given, and how.

    Attributes:
        edge: Name of the edge of the package.
        seed: Seed of the run.
        number: Number of the case.
        described: The input.
        wrong: What went wrong, as a sentence.
    """

    edge: str
    seed: int
    number: int
    described: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.edge} {self.number} (seed {self.seed}): {self.wrong}\n    given {error_sentence(self.described)}"


class FuzzCheckError(AssertionError):
    """What a check of this module says."""


@dataclass(frozen=True)
class FuzzCase:
    """An input that is ready to be run.

    Attributes:
        described: The input, for a report.
        run: Runs it; raises FuzzCheckError, or anything else that no input may cause.
    """

    described: str
    run: Callable[[], None]


Edge = Callable[[random.Random, Path], FuzzCase]


def run_cases(
    seed: int,
    count: int,
    edges: Sequence[str] | None = None,
    *,
    first: int = 0,
    seconds: float = math.inf,
    memory: bool = False,
    watch: Callable[[int, FuzzFailure | None], None] = lambda n, wrong: None,
) -> list[FuzzFailure]:
    """Run random cases over some edges of the package, in turn.

    Args:
        seed: Seed of the cases.
        count: How many cases.
        edges: Names of edges. None: all of them.
        first: Number of the first case. Default 0.
        seconds: After this time no further case begins. Default: no limit.
        memory: Whether a case is wrong that takes this process above twice the memory of the
            undamaged inputs of `run_clean_inputs`, which then run first. Default False.
        watch: Called after each case, with its number and what went wrong, if anything.

    Returns:
        What went wrong.

    Raises:
        RuntimeError: An undamaged input is refused.
    """
    names = list(edges or EDGES)
    failures = list[FuzzFailure]()
    end = time.monotonic() + seconds
    with _place() as where:
        # The measure is what undamaged inputs take in this very process, on this machine.
        if memory:
            most = 2 * run_clean_inputs(where)
        else:
            most = math.inf
        for number in range(first, first + count):
            if time.monotonic() > end:
                break
            if memory and number % 100 == 0:
                give_back()  # pieces of thousands of models add up otherwise
            wrong = run_case(names[number % len(names)], seed, number, where)
            if wrong is None and memory and (peak := peak_bytes()) > most:
                wrong = FuzzFailure(
                    names[number % len(names)],
                    seed,
                    number,
                    "it alone, or all before it",
                    f"{peak / 1e6:.0f} MB in use, at most {most / 1e6:.0f} MB are allowed",
                )
                most = peak  # who goes even further is another fault
            if wrong is not None:
                failures.append(wrong)
            watch(number, wrong)
    return failures


def peak_bytes() -> int:
    """The most memory that this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if sys.platform == "darwin":
        return peak
    return peak * 1024


def run_clean_inputs(where: Path) -> int:
    """Run undamaged inputs over every edge, the largest among them.

    Args:
        where: Folder for files.

    Returns:
        The peak of this process's memory, in bytes.

    Raises:
        RuntimeError: One of them is refused.
    """
    prompt = where / "prompt.jsonl"
    trace = where / "trace.jsonl"
    prompt.write_text('{"prompt": "The old river"}\n')
    trace.write_bytes(_trace())
    model = ("--model", "zoo:tiny", "--max-tokens", "3")
    # One of each kind that the fuzzer damages.
    for words in (
        ("generate", "The old river", *model, "--n", "3", "--logprobs", "64", "--json"),
        ("generate", "a" * 900, *model, "--dtype", "torch"),
        ("chat", *model),
        ("bench", *model, "--data", str(prompt), "--limit", "1", "--repeat", "1"),
        ("verify", *model, "--data", str(prompt), "--limit", "1", "--method", "draft-model"),
        ("doctor", "--model", "zoo:tiny", "--json"),
        ("trace", "show", str(trace)),
        ("methods",),
        ("zoo",),
    ):
        code, _, err = call_command(words, b"The old river\n")
        # An undamaged input must pass: else the fuzzer itself is at fault.
        if code != 0:
            raise RuntimeError(f"a whole input is refused: {words}: {err}")
    lm = api.load("zoo:tiny")
    for method in METHODS:
        api.generate(
            lm,
            "The old river",
            method=method,
            max_tokens=20,
            n=3,
            logprobs=64,
            sampling=Sampling(temperature=1.0, dry_multiplier=0.8, no_repeat_ngram_size=3),
        )
    if "files" in EDGES:
        import_module("polydec.lab.fuzz.fuzz_files").load_undamaged_files(where / "files")
    return peak_bytes()


def run_case(edge: str, seed: int, number: int, where: Path) -> FuzzFailure | None:
    """Run one case.

    Args:
        edge: Name of the edge.
        seed: Seed of the run.
        number: Number of the case; with edge and seed it says what the input is.
        where: Folder for files.

    Returns:
        What went wrong; None: nothing did.
    """
    # One stream for each case: it is the same whichever cases run before it.
    case = EDGES[edge](random.Random(f"{edge} {seed} {number}"), where)
    try:
        with _limit(SECONDS), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.run()
    # A check's own sentence; any other exception names the line that raised it.
    except FuzzCheckError as error:
        return FuzzFailure(edge, seed, number, case.described, str(error))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]
        return FuzzFailure(
            edge,
            seed,
            number,
            case.described,
            f"{type(error).__name__} in {Path(at.filename).name}:{at.lineno}: {error_sentence(error)}",
        )
    return None


@contextmanager
def _place() -> Iterator[Path]:
    """A folder for files, profiles that are measured in no time, and models that are loaded seldom."""
    with ExitStack() as stack:
        where = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        stack.enter_context(
            mock.patch.dict(
                os.environ, XDG_CACHE_HOME=str(where / "cache"), POLYDEC_DATA=str(where)
            )
        )
        stack.enter_context(mock.patch.object(profile, "QUICK", 0.05))
        # random names are asked of nobody
        stack.enter_context(mock.patch("huggingface_hub.constants.HF_HUB_OFFLINE", True))
        stack.enter_context(mock.patch.object(api, "load", lru_cache(4)(api.load)))
        # the tree of commands and flags is the same each time, and making it takes longer than most cases
        stack.enter_context(mock.patch("typer.main.get_command", cache(get_command)))
        yield where


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    """Raise Wrong in what computes for longer, or waits for ten times as long: so a busy machine is
    no fault (where the system has such clocks).
    """
    # Not every system has such clocks: there a hang stays a hang.
    if not hasattr(signal, "setitimer"):
        yield
        return

    def is_over(*_: object) -> None:
        raise FuzzCheckError(f"it took more than {seconds:g} seconds")

    # Processor time bounds the work; real time, ten times as long, bounds waiting.
    clocks = (
        (signal.ITIMER_PROF, signal.SIGPROF, seconds),
        (signal.ITIMER_REAL, signal.SIGALRM, 10 * seconds),
    )
    # Handlers are put back: the tests around use these signals too.
    old = [signal.signal(sign, is_over) for _, sign, _ in clocks]
    for clock, _, most in clocks:
        signal.setitimer(clock, most)
    try:
        yield
    finally:
        for (clock, sign, _), handler in zip(clocks, old, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(sign, handler)


PIECES = (b"[", b"{", b'"', b"null", b"\x00", b"\xff", b"\n", b"-1", b"1e999", b"\\ud800", b"true")


def mutate_bytes(r: random.Random, content: bytes) -> bytes:
    """Change, cut, repeat or put in a few bytes.

    Args:
        r: Draws the changes.
        content: Bytes of a file.

    Returns:
        Other bytes, mostly.
    """
    out = bytearray(content)
    for _ in range(r.randint(1, 4)):
        at = r.randrange(len(out) + 1)
        end = min(len(out), at + r.choice((1, 1, 2, 8, 64)))
        # Other bytes, a hole, a repetition, a piece that parsers trip over, or an end.
        match r.randrange(5):
            case 0:
                out[at:end] = bytes(r.randrange(256) for _ in range(end - at))
            case 1:
                del out[at:end]
            case 2:
                out[at:at] = out[at:end] * r.choice((1, 3, 50))
            case 3:
                out[at:at] = r.choice(PIECES)
            case _:
                del out[at:]
    return bytes(out)


# The command line.

FLAGS: Mapping[str, Sequence[object]] = {
    "--n": (1, 2, 0, -1, 10**9, 3),
    "--max-tokens": (1, 2, 3, 0, -1, 10**9, 600),
    "--min-tokens": (0, 1, 2, 9, -1),
    "--temperature": NUMBERS,
    "--top-k": NUMBERS,
    "--top-p": NUMBERS,
    "--min-p": NUMBERS,
    "--repetition-penalty": NUMBERS,
    "--presence-penalty": NUMBERS,
    "--frequency-penalty": NUMBERS,
    "--order": ("vllm", "llamacpp", "x"),
    "--stop": TEXTS,
    "--stop-token-id": (0, 1, -1, 4096, 10**9),
    "--seed": NUMBERS,
    "--logprobs": (0, 1, 64, 65, -1, "x"),
    "--raw": (None,),
    "--ignore-eos": (None,),
    "--json": (None,),
    "--threads": (1, 2, 0, -1, 10**5, 10**30, "x"),
    "--draft": ("none", *TEXTS[:9]),
    "--ngrams": ("none", *TEXTS[:9]),
    "--dtype": ("auto", "torch", "float7"),
    "--quantize": ("q8_0", "q4_1", "q9"),
    "--compute": ("float32", "int16", "int8", "int9"),
    "--cache-dtype": ("float32", "float16", "int8", "int9"),
    "--device": ("cpu", "tpu"),
}


def command_case(r: random.Random, where: Path) -> FuzzCase:
    """Make a call of `polydec` with random flags, files and standard input.

    Args:
        r: Draws the call.
        where: Folder for its files.

    Returns:
        The case: the command must end with exit code 0 or 2, and say in one sentence why.
    """
    prompt = where / "prompt.jsonl"
    data = where / "trace.jsonl"
    if r.random() < 0.6:
        prompt_text = r.choice(TEXTS)
    else:
        prompt_text = "The old river"
    args = list[object]()
    # Commands that decode are drawn more often: most code lies behind them.
    called = r.choice(
        (
            "generate",
            "generate",
            "generate",
            "chat",
            "bench",
            "verify",
            "methods",
            "trace",
            "doctor",
            "tune",
            "demo",
            "train",
            "zoo",
            "x",
        )
    )
    # Mostly legal words: what is refused at once reaches no code behind the check.
    if called in ("generate", "chat", "bench", "verify"):
        args += [
            "--model",
            "zoo:tiny" if r.random() < 0.95 else r.choice(TEXTS),
            "--max-tokens",
            r.choice((1, 2, 3)),
        ]
        if called == "bench":
            args += [
                "--limit",
                1,
                "--repeat",
                1,
                "--methods",
                ",".join(r.sample(sorted(registry.of_family("ar")), 2)),
            ]
        elif r.random() < 0.7:
            name = r.choice(sorted(registry.of_family("ar")))
            args += ["--method", name if r.random() < 0.95 else r.choice(TEXTS)]
            if (options := registry.method_options(name)) and r.random() < 0.5:
                args += ["--set", f"{r.choice(options).name}={r.choice((*NUMBERS, *TEXTS))}"]
        for flag, values in r.sample(sorted(FLAGS.items()), r.randint(0, 4)):
            value = r.choice(list(values))
            if value is None:
                args += [flag]
            else:
                args += [flag, value]
        if called in ("bench", "verify"):
            args += ["--data", prompt, *(["--limit", 1] if called == "verify" else [])]
        elif called == "generate" and r.random() < 0.7:
            args.insert(0, prompt_text)
        if called == "generate" and r.random() < 0.2:
            args += ["--prompt-file", prompt]
    elif called == "trace":
        args += ["show", data, *r.choice(([], ["--json"], ["--rounds", r.choice(NUMBERS)]))]
    elif called == "methods":
        args += r.choice(([], [r.choice(TEXTS)], ["--json"]))
    elif called == "doctor":
        args += [
            "--model",
            "zoo:tiny",
            "--threads",
            r.choice((1, 0, 10**30, 40_000, "x")),
            "--json",
        ]
    elif called == "tune":
        args += ["--model", "zoo:tiny", "--seconds", r.choice((0, -1, "nan", "inf", "x", 1e9))]
    elif called == "demo":
        args += [
            "--model",
            "zoo:tiny",
            "--max-tokens",
            r.choice((0, -1, 10**9, "x")),
            "--prompt-file",
            prompt,
        ]
    elif called == "train":
        args += [
            r.choice(("lm", "draft", "ngrams", "stop-head", "sorted", "x")),
            "--out",
            where / "out",
            "--target",
            "zoo:tiny",
            "--text",
            prompt,
            r.choice(("--steps", "--seed", "--width", "--depth", "--order")),
            r.choice((0, -1, "x", "nan")),
        ]
    elif called == "zoo":
        args += r.choice(([], ["install", r.choice(TEXTS)]))
    words = [called, *map(str, args)]
    # Files that a command reads: half of them as they should be, else damaged.
    good = r.choice(
        (
            b'{"prompt": "The old river"}\n',
            b'{"turns": ["The old river", "x"], "category": "a"}\n',
            b'{"prompt": [{"role": "user", "content": "The old river"}]}\n',
            b"The old river\n",
            b'{"prompt": [1, 2, 3]}\n',
        )
    )
    content = (
        (good if r.random() < 0.5 else mutate_bytes(r, good)),
        (_trace() if r.random() < 0.3 else mutate_bytes(r, _trace())),
    )
    piped = prompt_text.encode("utf-8", "surrogateescape") + b"\n" * r.randint(0, 2)

    # Files are written when the case runs: cases of one run share their names.
    def check_case() -> None:
        prompt.write_bytes(content[0])
        data.write_bytes(content[1])
        code, out, err = call_command(words, piped)
        # `verify` says with exit code 1 that texts differ, which a method without that promise may
        # cause.
        if code not in (0, 2) and not (code == 1 and called == "verify" and _may_differ(words)):
            raise FuzzCheckError(f"exit code {code}: {err or out}")
        line = err.rstrip("\n").split("\n")[-1].removeprefix("polydec: ")
        if "Traceback" in err or (code == 2 and (not line or error_sentence(line) != line)):
            raise FuzzCheckError(f"it says {err[-500:]!r}")
        # What is printed as JSON must be JSON; NaN and infinity are looked over.
        if code == 0 and "--json" in words:
            json.loads(out, parse_constant=lambda name: None)

    return FuzzCase(" ".join(map(repr, words)), check_case)


def _may_differ(words: Sequence[str]) -> bool:
    """Does this `polydec verify` look at a method that does not promise the greedy text?"""
    if "--method" in words:
        name = words[words.index("--method") + 1]
    else:
        name = "auto"
    return (
        name in registry.recipe_modules()
        and registry.get_recipe_module(name).CARD.guarantee is Exactness.APPROXIMATE
    )


def call_command(words: Sequence[str], piped: bytes = b"") -> tuple[int, str, str]:
    """Run a command in this process.

    Args:
        words: Its arguments.
        piped: Bytes of its standard input. Default: none.

    Returns:
        Exit code, standard output and standard error.
    """
    from polydec.cli.main import main

    out = io.StringIO()
    err = io.StringIO()
    stdin = io.TextIOWrapper(io.BytesIO(piped), encoding="utf-8")
    # What a shell would give the command, in this process: a new one takes seconds to start.
    with (
        redirect_stdout(out),
        redirect_stderr(err),
        mock.patch.object(sys, "argv", ["polydec", *words]),
        mock.patch.object(sys, "stdin", stdin),
        mock.patch.object(warnings, "showwarning"),
    ):
        try:
            # In this process: a new one for each case would take a second.
            main()
            code = 0
        except SystemExit as stop:
            # Exit codes may be numbers, texts or nothing.
            if isinstance(stop.code, int):
                code = stop.code
            elif stop.code is None:
                code = 0
            else:
                code = 1
    return code, out.getvalue(), err.getvalue()


@cache
def _trace() -> bytes:
    """What `--trace` wrote of a small run."""
    from polydec.core.trace import to_json

    lines = list[str]()
    engine = api.Engine(api.load("zoo:tiny"))
    ticket = engine.submit(
        "The old river, the old river",
        method="prompt-lookup",
        max_tokens=12,
        on=lambda event: lines.append(json.dumps(to_json(event))),
    )
    engine.run([ticket])
    return ("\n".join(lines) + "\n").encode()


# Requests.

METHODS = (
    "plain",
    "prompt-lookup",
    "token-recycling",
    "draft-model",
    "rsd-c",
    "rsd-s",
    "spectr",
    "suffix-automaton",
    "jacobi",
    "draft-model-coupled",
    "eagle-2-tree",
    "lookahead",
    "auto",
)


def request_case(r: random.Random, where: Path) -> FuzzCase:
    """Make a request in Python whose fields have the right types, in and out of their ranges.

    Args:
        r: Draws the request.
        where: Not used: a request needs no files.

    Returns:
        The case: the request is refused by a sentence, or its answer keeps what it promises.
    """
    lm = api.load("zoo:tiny")
    size = lm.checkpoint.lm.vocab.size
    ids = [r.randrange(size) for _ in range(r.randint(1, 40))]
    fields: dict[str, Any] = {"temperature": r.choice((0.0, 0.7, 1.0, 1.5))}
    # Values at the edges of each range, most of them legal.
    ranges = {
        "top_k": (0, 1, 5, 10**9),
        "top_p": (1e-9, 0.5, 1.0),
        "min_p": (0.0, 0.1, 1.0),
        "typical_p": (0.2, 1.0),
        "epsilon_cutoff": (0.0, 0.01, 0.9),
        "eta_cutoff": (0.0, 0.01),
        "top_n_sigma": (0.0, 0.5, 2.0),
        "repetition_penalty": (0.5, 1.0, 1.3, 10.0),
        "presence_penalty": (-2.0, 2.0),
        "frequency_penalty": (-2.0, 2.0),
        "no_repeat_ngram_size": (0, 1, 2, 3),
        "dry_multiplier": (0.0, 0.8),
        "xtc_probability": (0.0, 0.5, 1.0),
        "min_tokens": (0, 1, 3, 9),
    }
    # A few rules at a time; all at once would refuse nearly every case.
    for name, values in r.sample(sorted(ranges.items()), r.randint(0, 4)):
        if r.random() < 0.9:
            fields[name] = r.choice(values)
        else:
            fields[name] = r.choice(NUMBERS)
    if r.random() < 0.3:
        fields["allowed_token_ids"] = tuple(r.sample(range(size), r.choice((1, 2, 5, size - 1))))
    if r.random() < 0.3:
        fields["bad_token_ids"] = tuple(r.sample(range(size), r.choice((1, 5, size - 2))))
    if r.random() < 0.2:
        fields["logit_bias"] = {r.randrange(size): r.choice((-100.0, 100.0, 3.0)) for _ in range(3)}
    fields_asked: dict[str, Any] = {
        "method": r.choice(METHODS),
        "max_tokens": r.choice((1, 2, 8, 20)),
        "n": r.choice((1, 1, 1, 2, 3)),
        "seed": r.choice((0, 1, 2**62, -1)),
        "logprobs": r.choice((None, None, 0, 3, 64)),
        "ignore_eos": r.random() < 0.3,
        "stop": r.choice(((), (), "the", (" ", "a"), "\n")),
        "stop_token_ids": r.choice(((), (), tuple(r.sample(range(size), 3)))),
        "order": r.choice(("vllm", "transformers", "llamacpp")),
    }
    if r.random() < 0.2:  # most are legal, as who is refused has been looked at no further
        fields_asked |= r.choice(
            (
                {"max_tokens": 0},
                {"max_tokens": -1},
                {"max_tokens": 10**9},
                {"seed": 2**63},
                {"logprobs": 65},
                {"stop_token_ids": (-1,)},
                {"stop_token_ids": (size,)},
                {"n": 0},
                {"n": 10**9},
                {"order": "x"},
            )
        )
    if r.random() < 0.15:
        fields_asked |= {"units": r.choice(("bytes", "bytes", "x")), "logprobs": None}
        fields_asked["covers"] = r.choice((1, 2, 64, 0, 65, -1))
    if r.random() < 0.15:
        fields_asked |= {
            "reuse": r.choice(("prefix", "edited", "x", None)),
            "reuse_key": r.choice(("a", "a", "b", "")),
        }
    if r.random() < 0.05:
        fields_asked["source"] = r.choice(("a", "", b"\xff", (), (1,), (-1,), (size,), "a" * 5000))
    prompt: Any = ids if r.random() < 0.5 else r.choice([t for t in TEXTS if "\udcff" not in t])

    if prompt is ids and r.random() < 0.2:
        width = r.choice((lm.checkpoint.lm.network.embed_tokens((0,)).shape[1], 1, 0))
        # Vectors in place of tokens, of the right width and of wrong ones, with numbers that are
        # none.
        rows = torch.full((r.choice((1, 2, 9, 0)), width), r.choice((0.1, -3.0, math.nan, 1e30)))
        words = r.choice((None, None, (1, 2), (-1,), (size,)))
        prompt = [*ids[:3], Soft(rows, words), *ids[3:]]

    def check_case() -> None:
        try:
            fields_asked["sampling"] = Sampling(**fields)
            engine = api.Engine(lm)
            edits: dict[int, list[Any]] = {}
            ticket = engine.submit(
                prompt,
                **fields_asked,
                on=lambda e: (
                    edits.setdefault(e.choice, []).append(e.edit)
                    if isinstance(e, EditedEvent)
                    else None
                ),
            )
            answer = engine.run([ticket])[0]
        except PolydecError as error:
            # A refusal must be a sentence, whatever was wrong.
            if error_sentence(error) != str(error):
                raise FuzzCheckError(f"no sentence: {error!r}") from None
            return
        # An answer in bytes has another vocabulary than the model's tokens.
        spoken = lm.in_units(fields_asked.get("units", "tokens"), fields_asked.get("covers", 2))
        written = spoken.checkpoint.lm.vocab.size
        for i, choice in enumerate(answer.choices):
            require_promises(choice, fields, fields_asked, written, spoken)
            if replay(
                (), [_moved(e, len(ticket.plan.request.prompt)) for e in edits.get(i, [])]
            ) != list(choice.token_ids):
                raise FuzzCheckError("its edits add up to another text")

    return FuzzCase(f"{prompt!r} {fields} {fields_asked}", check_case)


def _moved(edit: Any, by: int) -> Any:
    return type(edit)(write=tuple((at - by, token) for at, token in edit.write))


def require_promises(
    choice: Any, fields: Mapping[str, Any], fields_asked: Mapping[str, Any], size: int, lm: Any
) -> None:
    """Require that an answer keeps the rules that its request states.

    Args:
        choice: One choice of the answer.
        fields: Fields of the request's sampling.
        fields_asked: Its other fields.
        size: Tokens of the vocabulary that it is written in.
        lm: The model, as loaded.

    Raises:
        FuzzCheckError: A rule is broken.
    """
    ids = choice.token_ids
    allowed = fields.get("allowed_token_ids")
    # Ends that count only where EOS does.
    if fields_asked["ignore_eos"]:
        ends = set()
    else:
        ends = set(lm.checkpoint.lm.vocab.eos)
    if not 1 <= len(ids) <= fields_asked["max_tokens"]:
        raise FuzzCheckError(f"{len(ids)} tokens")
    for at, x in enumerate(ids):
        if not 0 <= x < size:
            raise FuzzCheckError(f"token {x} of {size}")
        if (allowed is not None and x not in allowed) or x in fields.get("bad_token_ids", ()):
            raise FuzzCheckError(f"token {x} is forbidden")
        if at < fields.get("min_tokens", 0) and x in {*ends, *fields_asked["stop_token_ids"]}:
            raise FuzzCheckError(f"it ends at {at}")
    # A stop string may be given alone or in a list; either way no text holds it.
    if isinstance(fields_asked["stop"], str):
        stops = (fields_asked["stop"],)
    else:
        stops = fields_asked["stop"]
    if any(s in choice.text for s in stops):
        raise FuzzCheckError("a stop string stands in the text")
    # Log-probabilities are at most 0, up to rounding, and numbers.
    for row in choice.logprobs or ():
        if not all(p <= 1e-6 and not math.isnan(p) for p in (row.logp, *(p for _, p in row.top))):
            raise FuzzCheckError(f"log-probabilities {row}")


# Files.


def model_file_case(r: random.Random, where: Path) -> FuzzCase:
    """Make a damaged model file, by `polydec.lab.fuzz.fuzz_files`.

    Args:
        r: Draws the damage.
        where: Folder for the file.

    Returns:
        The case: the file loads, or is refused by a sentence.
    """
    seed, cases = (
        r.randrange(2**31),
        import_module("polydec.lab.fuzz.fuzz_files").damaged_file_cases,
    )

    def check_case() -> None:
        for case in cases(seed, 1, where / "files"):
            try:
                case()
            except PolydecError as error:
                if error_sentence(error) != str(error):
                    raise FuzzCheckError(f"no sentence: {error!r}") from None

    return FuzzCase(f"files of seed {seed}", check_case)


# Constraints.


def constraint_case(r: random.Random, where: Path) -> FuzzCase:
    """Make a constraint of a request, by `polydec.lab.fuzz.fuzz_constraints`.

    Args:
        r: Draws the constraint.
        where: Not used: a constraint needs no files.

    Returns:
        The case: the constraint is refused by a sentence, or its language holds together.
    """
    vocab = api.load("zoo:tiny").checkpoint.lm.vocab
    what, look = import_module("polydec.lab.fuzz.fuzz_constraints").random_constraint_case(r, vocab)

    def check_case() -> None:
        wrong = look()
        if wrong:
            raise FuzzCheckError(wrong)

    return FuzzCase(what, check_case)


EDGES: dict[str, Edge] = {"command": command_case, "request": request_case}
if find_spec("polydec.lab.fuzz.fuzz_files") is not None:
    EDGES["files"] = model_file_case
if find_spec("polydec.lab.fuzz.fuzz_constraints") is not None:
    EDGES["constraint"] = constraint_case


def main() -> None:
    """The command: prints what went wrong, with exit code 1, or how many cases went well."""
    parser = argparse.ArgumentParser(
        prog="python -m polydec.lab.fuzz.fuzz", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--count", type=int, default=1000, help="cases; 0 shows what memory the whole inputs take"
    )
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument(
        "--edge", action="append", choices=sorted(EDGES), help="only this edge (repeatable)"
    )
    arguments = parser.parse_args()
    began = time.monotonic()

    def watch_count(number: int, wrong: FuzzFailure | None) -> None:
        """Print what went wrong, and how far the run is.

        Args:
            number: Number of the case that has ended.
            wrong: What went wrong; None: nothing did.
        """
        done = number + 1 - arguments.first
        shown = sys.stderr.isatty()
        if wrong is not None:
            print(wrong, flush=True)
        if shown or done % 1000 == 0:
            line = f"{done} of {arguments.count}, {time.monotonic() - began:.0f} s, {peak_bytes() / 1e6:.0f} MB"
            print(
                *(("\r", line) if shown else (line, "\n")),
                sep="",
                end="",
                file=sys.stderr,
                flush=True,
            )

    failures = run_cases(
        arguments.seed,
        arguments.count,
        arguments.edge,
        first=arguments.first,
        memory=True,
        watch=watch_count,
    )
    print(
        f"{arguments.count} cases, {len(failures)} wrong, {time.monotonic() - began:.0f} s, at most {peak_bytes() / 1e6:.0f} MB"
    )
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
