"""Damaged model files: each loads and writes tokens, or gives one clear error.

    python tests/models/native/mutate.py --count 10000 [--seed 0] [--keep DIR]

Files of every block type and family (GGUF) and of every family (safetensors with config.json) are damaged by chance, loaded
and run in float32 and, where that goes well, in int16 and int8. All this happens in another process, so that a crash or a hang
names its file: case I of seed S is the same wherever it runs, and --keep saves what went wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path += [str(Path(__file__).parent), str(Path(__file__).parents[1] / "nets")]

import family_checkpoints as families
import torch
import transformers
from gguf import GGMLQuantizationType, GGUFWriter
from native_checkpoints import TYPES, write_gguf
from safetensors.torch import save_file

from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.sessions import checkpoint

HANG = 300.0  # seconds for one case, on a machine that others use as well
LONGEST = 300  # characters of an error
COMPUTES = ("float32", "int16", "int8")
ABSURD = (
    0,
    1,
    2,
    3,
    7,
    31,
    33,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)
VALUES = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2,
    3,
    5,
    7,
    17,
    4096,
    1 << 31,
    1 << 63,
    -(1 << 63),
    10**30,
    0.0,
    0.5,
    -1.0,
    1e-30,
    1e30,
    float("nan"),
    float("inf"),
    "",
    "x",
    "3",
    "silu",
    "gelu_pytorch_tanh",
    [],
    [1],
    [1, 2, 3],
    [None],
    ["x"],
    {},
    {"a": 1},
    {"rope_type": "yarn"},
    {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0]},
    [[]] * 3,
)
# What an error says that comes from Python and not from us.
INTERNAL = (
    "object has no attribute",
    "NoneType",
    "not subscriptable",
    "unsupported operand",
    "not iterable",
    "KeyError",
    "IndexError",
    "not callable",
    "positional argument",
)


@dataclass(frozen=True)
class Specimen:
    """A sound model: its files by name; a GGUF file's bytes before its weights."""

    name: str
    files: Mapping[str, bytes]
    header: int = 0


@dataclass
class Tally:
    """Of all cases, by kind of file: how many ran, were refused, or went wrong."""

    ran: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    vague: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, case: Mapping[str, Any]) -> None:
        kind, number, said = case["kind"], case["case"], case["said"]
        if case["end"] == "wrong":
            self.wrong.append(f"case {number}, {case['name']}: {said}")
        elif case["end"] == "ran":
            self.ran[kind] += 1
        else:
            self.refused[kind] += 1
            if any(x in said for x in INTERNAL):
                self.vague.append(f"case {number}, {case['name']}: {said}")


def _tokens(w: GGUFWriter, size: int) -> None:
    """A tokenizer of so many words and one merge."""
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("smollm")
    w.add_token_list(["t", "0", *(f"t{i}" for i in range(size - 2))])
    w.add_token_merges(["t 0"])
    w.add_eos_token_id(2)


def specimens(place: Path) -> Iterator[Specimen]:
    """Of every block type, of every family as GGUF in floats and in blocks, and as a directory."""

    def gguf(name: str) -> Specimen:
        path = place / "m.gguf"
        first = min(e.start for e in GGUFCheckpoint(path).entries.values())
        found = Specimen(name, {"m.gguf": path.read_bytes()}, first)
        path.unlink()  # a mapped file must not change
        return found

    for kind in TYPES:
        width = 256 if kind in ("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_XS") else 64
        write_gguf(
            place / "m.gguf",
            kind,
            width=width,
            inner=width,
            vocab=20,
            extra=lambda w: _tokens(w, 20),
        )
        yield gguf(f"GGUF {kind}")
    for name in families.FAMILIES:
        model = families.model_of(name, num_hidden_layers=4 if name == "smollm3" else 3)
        for kind in (GGMLQuantizationType.F32, GGMLQuantizationType.Q8_0):
            families.write(place / "m.gguf", model, kind, lambda w: _tokens(w, 97))
            yield gguf(f"GGUF {name} {kind.name}")
        save_file(
            {
                k: t.contiguous().clone()
                for k, t in model.state_dict().items()
                if k != "lm_head.weight" or not model.config.tie_word_embeddings
            },
            place / "model.safetensors",
        )
        config = json.dumps(model.config.to_dict()).encode()
        yield Specimen(
            f"directory {name}",
            {
                "model.safetensors": (place / "model.safetensors").read_bytes(),
                "config.json": config,
            },
        )
        (place / "model.safetensors").unlink()


def damaged(data: bytes, header: int, rng: random.Random) -> bytes:
    """header: where the numbers begin, most damage is before that."""
    out = bytearray(data)
    kind = rng.randrange(7)
    if kind == 0:
        return bytes(out[: rng.randrange(len(out))])
    if kind == 1:  # anywhere in the header, a number that makes no sense
        at, size = rng.randrange(4, header - 8), rng.choice((4, 8))
        out[at : at + size] = (rng.choice(ABSURD) & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif kind == 2:
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(header)] = rng.randrange(256)
    elif kind == 3:  # counts of tensors and fields, or the length of the header
        struct.pack_into("<Q", out, rng.choice((0, 8, 16)), rng.choice(ABSURD))
    elif kind == 4:  # a piece is lost or doubled
        at, n = rng.randrange(header), rng.randint(1, 64)
        out[at : at + n] = b"" if rng.random() < 0.5 else out[at : at + n] * 2
    elif kind == 5:
        a, b = sorted(rng.sample(range(header), 2))
        out[a:b] = rng.randbytes(b - a) if b - a < 64 else bytes(b - a)
    else:  # weights and scales
        for _ in range(rng.randint(1, 8)):
            at, n = rng.randrange(header, len(out) - 4), rng.choice((1, 2, 4, 64, 4096))
            out[at : at + n] = rng.choice((rng.randbytes(n), b"\xff" * n, bytes(n)))[
                : len(out) - at
            ]
    return bytes(out)


def bent(data: bytes, rng: random.Random) -> bytes:
    """A config.json with some values that do not belong there, or damaged as text."""
    if rng.random() < 0.1:
        return damaged(data + b" " * 64, len(data), rng)
    config = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = config
        while (
            inner := [v for v in at.values() if isinstance(v, dict) and v]
        ) and rng.random() < 0.4:
            at = rng.choice(inner)
        key = rng.choice(sorted(at))
        change = rng.randrange(4)
        if change == 0 and len(at) > 1:
            del at[key]
        elif change == 1 and type(at[key]) in (int, float):
            at[key] = rng.choice(
                (
                    at[key] * 2,
                    at[key] / 2,
                    at[key] + 1,
                    at[key] - 1,
                    -at[key],
                    float(at[key]),
                    str(at[key]),
                )
            )
        elif change == 2:
            at[key] = at[rng.choice(sorted(at))]
        else:
            at[key] = rng.choice(VALUES)
    return json.dumps(config).encode()


def put(files: Mapping[str, bytes], at: Path) -> Path:
    """Written into an empty folder; the path to load."""
    shutil.rmtree(
        at, ignore_errors=True
    )  # of an earlier run; a file that is still mapped must not change
    at.mkdir(parents=True)
    for name, data in files.items():
        (at / name).write_bytes(data)
    return at / "m.gguf" if "m.gguf" in files else at


def mutated(s: Specimen, rng: random.Random) -> dict[str, bytes]:
    name = rng.choice(sorted(s.files))
    old = s.files[name]
    if name == "config.json":
        new = bent(old, rng)
    else:
        new = damaged(old, s.header or 8 + int.from_bytes(old[:8], "little"), rng)
    return {**s.files, name: new}


def tried(path: Path) -> tuple[str, str]:
    """How it ended ("ran", "refused", "wrong") and what was said."""
    end, said = "ran", ""
    for compute in COMPUTES:
        os.environ["POLYDEC_COMPUTE"] = compute
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                loaded = checkpoint.load_bundle(str(path), threads=1)
            lm, most = loaded.lm, loaded.lm.vocab.size - 1
            if hasattr(lm, "open_session"):
                ids = [min(i, most) for i in (3, 1, 4, 1, 5)]
                scores = run_coroutines(
                    [
                        lm.open_session(ids[:3]).score_draft(
                            Draft.chain_draft(ids[2], ids[3:]), ScoreRequest()
                        )
                    ]
                )[0]
                for i in range(3):
                    if not bool(scores.logprob_row(i).exp().sum().isfinite()):
                        return "wrong", f"{compute}: a law that is none"
        except ValueError as e:
            said = str(e)
            if not said or len(said) > LONGEST + len(str(path)) or not said.isprintable():
                return "wrong", f"{compute}: an error that is no sentence: {said[:400]!r}"
            end = "refused"
            break
        except Exception:
            return "wrong", f"{compute}: {traceback.format_exc(limit=-4)}"
    return end, said


def cases(
    first: int, stop: int, seed: int, place: Path, sound: list[Specimen]
) -> Iterator[dict[str, Any]]:
    for i in range(first, stop):
        rng = random.Random(f"{seed} {i}")
        s, at = rng.choice(sound), place / str(i)
        case = {
            "case": i,
            "name": s.name,
            "kind": s.name.partition(" ")[0],
            "end": "begun",
            "said": "",
        }
        path = put(mutated(s, rng), at)
        yield case
        end, said = tried(path)
        yield {**case, "end": end, "said": said.replace(str(at), "FILE")}
        if end != "wrong":
            shutil.rmtree(at)


def work(first: int, stop: int, seed: int, place: Path) -> None:
    """What the other process does: a line of JSON before and after each case."""
    torch.set_num_threads(1)
    place.mkdir(parents=True, exist_ok=True)
    transformers.logging.set_verbosity_error()
    sound = list(specimens(place))
    for s in sound:
        if (found := tried(put(s.files, place / "sound"))) != ("ran", ""):
            raise SystemExit(f"{s.name}, undamaged: {found}")
    for case in cases(first, stop, seed, place, sound):
        print(json.dumps(case), flush=True)


def watched(
    count: int,
    command: Callable[[int], list[str]],
    told: Callable[[int, Tally], None] = lambda done, tally: None,
    hang: float = HANG,
) -> Tally:
    """All cases in another process, which `command` starts from a case on; a new one goes on behind a case that killed it or
    took `hang` seconds. told: called after each case with how many are done."""
    tally, first = Tally(), 0
    while first < count:
        child = subprocess.Popen(
            command(first),
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "TORCH_CPP_LOG_LEVEL": "ERROR"},
        )
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_pass_on, args=[child.stdout, lines], daemon=True).start()
        case: dict[str, Any] = {
            "case": first,
            "name": "the start",
            "kind": "",
            "end": "begun",
            "said": "",
        }
        try:
            while line := lines.get(timeout=hang):
                case = json.loads(line)
                if case["end"] != "begun":
                    tally.add(case)
                    told(case["case"] + 1, tally)
            code = child.wait()
            died = f"the process ended with {code}" if code or case["end"] == "begun" else ""
        except queue.Empty:
            child.kill()
            child.wait()
            died = f"it takes more than {hang:.0f} s"
        if died:
            tally.add({**case, "end": "wrong", "said": died})
        if died and case["name"] == "the start":  # it would not start the next time either
            break
        first = case["case"] + 1
    return tally


def _pass_on(source: Iterable[str], into: queue.Queue[str]) -> None:
    """Each line at once, and an empty one behind the last."""
    for line in source:
        into.put(line)
    into.put("")


def worker(count: int, seed: int, place: Path) -> Callable[[int], list[str]]:
    return lambda first: [
        sys.executable,
        __file__,
        "--work",
        str(first),
        "--count",
        str(count),
        "--seed",
        str(seed),
        "--keep",
        str(place),
    ]


def main() -> int:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--count", type=int, default=10_000)
    p.add_argument("--seed", type=int, default=0)
    p.add_argument("--keep", type=Path, help="a folder for the files of cases that went wrong")
    p.add_argument("--work", type=int, help=argparse.SUPPRESS)
    o = p.parse_args()
    if o.work is not None:
        work(o.work, o.count, o.seed, o.keep)
        return 0
    start, last = time.monotonic(), [0.0]

    def told(done: int, tally: Tally) -> None:
        if time.monotonic() - last[0] > 10 or done == o.count:
            last[0] = time.monotonic()
            print(
                f"{done} of {o.count}: {sum(tally.ran.values())} ran, {sum(tally.refused.values())} refused, "
                f"{len(tally.wrong)} wrong, {last[0] - start:.0f} s",
                file=sys.stderr,
                flush=True,
            )

    with tempfile.TemporaryDirectory() as place:
        tally = watched(o.count, worker(o.count, o.seed, o.keep or Path(place)), told)
    for kind in sorted({*tally.ran, *tally.refused}):
        print(f"{kind:12} {tally.ran[kind]:6} ran {tally.refused[kind]:6} refused")
    for title, lines in (("an error in Python's words", tally.vague), ("WRONG", tally.wrong)):
        for line in lines:
            print(f"{title}: {line}")
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
