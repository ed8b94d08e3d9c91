"""Engines side by side: greedy answers to the same held-out prompts, each in an environment of its own and its best formats.

    python benchmarks/engine_table.py --envs DIR --install                      # makes the environments, once
    python benchmarks/engine_table.py --envs DIR --scratch DIR --out FILE       # measures, one line of JSON each
    python benchmarks/engine_table.py --table FILE --csv FILE                   # the table, from such lines

Files of other formats are made from the model's: GGUF ones by llama.cpp's own quantiser, a directory of plain numbers for the
engines that have converters of their own. All engines stay loaded and take turns on each task; the ones that wait are stopped,
so that their threads cannot spin. Polydec's plain decoding runs first and last on every task: the spread of the two is the
machine's noise. A first token's time is that of an answer of one token, on prompts of its own: no engine sees a prompt twice.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import time
import venv
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import csv_rows
import numpy as np
from bootstrap import central_interval, drawn_again

import polydec
from polydec.lab.bench.energy import joules_between, read_energy_counters
from polydec.lab.bench.measure import distinct_4grams
from polydec.models.nets.linear import cpu_name

HERE = Path(__file__).parent
WORKERS = HERE / "engine_workers"
DIRECTORY = "directory"
"""The format of the engines that read a directory, or convert it."""


@dataclass(frozen=True)
class EngineKind:
    """An engine that can be measured.

    Attributes:
        worker: Its file in benchmarks/engine_workers.
        packages: What pip installs into its environment; none: this very environment serves.
        ways: Its formats and modes, as `FORMAT:MODE`.
        together: The modes in which it writes several answers at once.
    """

    worker: str
    packages: tuple[str, ...]
    ways: tuple[str, ...]
    together: frozenset[str] = frozenset({"plain"})


TORCH = ("torch==2.13.0", "transformers>=5")
ENGINES: Mapping[str, EngineKind] = {
    "polydec": EngineKind(
        "polydec_worker.py",
        (),
        (
            "Q4_0:plain",
            "Q4_0:auto",
            "Q4_0:plain,int8",
            "Q4_0:auto,int8",
            "Q8_0:plain",
            "Q8_0:auto",
        ),
        together=frozenset({"plain", "auto", "plain,int8", "auto,int8"}),
    ),
    "llama.cpp": EngineKind(
        "llama_cpp_worker.py",
        ("llama-cpp-python==0.3.36",),
        ("Q4_0:plain", "Q4_0:lookup", "Q8_0:plain"),
    ),
    "ik_llama.cpp": EngineKind(
        "ik_llama_worker.py", ("ik-llama-cpp-python==0.1.5",), ("Q4_0:plain", "Q8_0:plain")
    ),
    "mistral.rs": EngineKind(
        "mistral_rs_worker.py", ("mistralrs==0.9.5",), ("Q4_0:plain", "Q8_0:plain"), frozenset()
    ),
    "openvino": EngineKind(
        "openvino_worker.py",
        ("openvino-genai==2026.4.1.0",),
        ("Q4_0:plain", "Q4_0:lookup", "Q8_0:plain"),
    ),
    "onnx": EngineKind(
        "onnx_worker.py",
        ("onnxruntime-genai==0.18.0", "onnx", "onnx-ir", *TORCH),
        ("int4:plain",),
    ),
    "ctranslate2": EngineKind(
        "ctranslate2_worker.py", ("ctranslate2==4.8.5", *TORCH), ("int8:plain",)
    ),
    "transformers": EngineKind(
        "transformers_worker.py", (), (f"{DIRECTORY}:plain", f"{DIRECTORY}:lookup")
    ),
}
BASE = ("polydec", "Q4_0", "plain")
"""What every speed is set beside."""


def install_engines(names: Sequence[str], folder: Path) -> None:
    """Make the environments that are missing."""
    for name in names:
        packages = ENGINES[name].packages
        home = folder / name
        if not packages or home.exists():
            continue
        print(f"{name}: {', '.join(packages)}", file=sys.stderr)
        venv.create(home, with_pip=True)
        done = subprocess.run([home / "bin/pip", "install", "--quiet", *packages])
        if done.returncode:
            print(f"{name}: pip ended with {done.returncode}", file=sys.stderr)


def interpreter_of(name: str, folder: Path) -> Path:
    """The Python that an engine's worker runs in."""
    if not ENGINES[name].packages:
        return Path(sys.executable)
    return folder / name / "bin/python"


# ---------- files


def write_directory(gguf: Path, folder: Path) -> None:
    """A GGUF file's weights as plain numbers, in the layout of transformers, with its tokenizer."""
    from safetensors.torch import save_file
    from transformers import AutoTokenizer

    from polydec.models.formats.gguf import GGUFCheckpoint

    file = GGUFCheckpoint(gguf)
    folder.mkdir(parents=True)
    weights = {key: file[key].float().contiguous() for key in file}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    kind = file.config["model_type"]
    config = {**file.config, "architectures": [f"{kind.title()}ForCausalLM"], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, default=list))
    AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name).save_pretrained(folder)


def prepared_files(gguf: Path, scratch: Path, formats: set[str], envs: Path) -> dict[str, str]:
    """Paths by format; what is missing is made."""
    files = {"own": str(gguf)}
    scratch.mkdir(parents=True, exist_ok=True)
    if formats & {DIRECTORY, "int8", "int4"}:
        folder = scratch / DIRECTORY
        if not folder.exists():
            write_directory(gguf, folder)
        files[DIRECTORY] = str(folder)
    for name in sorted(formats & {"Q4_0", "Q8_0", "Q4_K_M"}):
        path = scratch / f"{name}.gguf"
        if not path.exists():
            tool = [interpreter_of("llama.cpp", envs), WORKERS / "quantise_gguf.py"]
            subprocess.run([*tool, gguf, path, name], check=True)
        files[name] = str(path)
    return files


# ---------- workers


class Worker:
    """One engine in one format and mode, in a process of its own."""

    def __init__(self, name: str, way: str, settings: dict[str, Any], envs: Path) -> None:
        self.engine = name
        self.format, self.mode = way.split(":")
        self._process = subprocess.Popen(
            [interpreter_of(name, envs), WORKERS / ENGINES[name].worker],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        opened = self.ask_worker({**settings, "format": self.format, "mode": self.mode})
        self.error = opened.get("error")
        self.version = opened.get("version", "")

    @property
    def label(self) -> str:
        return f"{self.engine} {self.format}, {self.mode}"

    def ask_worker(self, line: dict[str, Any]) -> dict[str, Any]:
        """One line to the worker and its answer; it computes in between only."""
        assert self._process.stdin and self._process.stdout
        self._process.send_signal(signal.SIGCONT)
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            return {"error": f"it ended with {self._process.wait()}"}
        self._process.send_signal(signal.SIGSTOP)
        return json.loads(answer)

    def end_worker(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()

    def takes(self, flight: int) -> bool:
        """Whether this mode writes so many answers at once."""
        return flight == 1 or self.mode in ENGINES[self.engine].together


def open_workers(names: Sequence[str], settings: dict[str, Any], envs: Path) -> list[Worker]:
    """All that can run here; of the others the reason is printed."""
    workers = list[Worker]()
    for name in names:
        for way in ENGINES[name].ways:
            worker = Worker(name, way, settings, envs)
            if worker.error:
                print(f"{worker.label}: {worker.error}", file=sys.stderr)
                worker.end_worker()
            else:
                workers.append(worker)
    return workers


# ---------- measuring


def held_out_prompts(
    lm: Any, each: int, seed: int, longest: int
) -> list[tuple[str, dict[str, Any]]]:
    """Workloads and prompts, held out ones, in an order in which each workload comes in turn."""
    from speculation import workloads

    from polydec.lab.train.data import data_root

    by_kind = defaultdict[str, list[dict[str, Any]]](list)
    for row in workloads(data_root(), each, seed):
        messages = row.prompt
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        text = lm.checkpoint.text.render_chat(messages)
        ids = lm.checkpoint.text.encode(text)
        if len(ids) <= longest:
            by_kind[row.workload].append({"ids": ids, "text": text})
    out = list[tuple[str, dict[str, Any]]]()
    for i in range(each):
        out += [(kind, of[i]) for kind, of in by_kind.items() if i < len(of)]
    return out


def task_of(prompts: Sequence[tuple[str, dict[str, Any]]], at: int, flight: int) -> list[Any]:
    """`flight` prompts from a place on; behind the last one comes the first."""
    return [prompts[(at + i) % len(prompts)][1] for i in range(flight)]


def measure_task(worker: Worker, prompts: list[Any], tokens: int) -> dict[str, Any]:
    """One line of the record."""
    before = read_energy_counters()
    answer = worker.ask_worker({"prompts": prompts, "tokens": tokens})
    after = read_energy_counters()
    line = {
        "engine": worker.engine,
        "version": worker.version,
        "format": worker.format,
        "mode": worker.mode,
        "flight": len(prompts),
    }
    if "error" in answer:
        return {**line, "error": answer["error"]}
    written = answer["written"]
    texts = [ids for ids in written if isinstance(ids, list)]
    return {
        **line,
        "asked": tokens,
        "tokens": sum(len(ids) if isinstance(ids, list) else ids for ids in written),
        "seconds": answer["seconds"],
        "memory": answer["memory"],
        "joules": joules_between(before, after) if before and after else None,
        "distinct": statistics.mean(map(distinct_4grams, texts)) if texts else None,
    }


def measure_engines(a: argparse.Namespace) -> None:
    """All tasks in turns; a line of the record each."""
    names = a.engines
    lm = polydec.load(a.model, threads=1)
    formats = {way.split(":")[0] for name in names for way in ENGINES[name].ways}
    files = prepared_files(Path(lm.checkpoint.path), a.scratch, formats, a.envs)
    settings = {"files": files, "threads": a.threads, "scratch": str(a.scratch)}
    prompts = held_out_prompts(lm, a.each, a.seed, a.longest)
    workers = open_workers(names, settings, a.envs)
    base = [w for w in workers if (w.engine, w.format, w.mode) == BASE]
    machine = {"machine": cpu_name(), "cores": os.cpu_count(), "threads": a.threads}
    started = time.monotonic()
    try:
        # One answer that is not counted, on a prompt that no task has, lets each engine settle.
        for worker in workers:
            worker.ask_worker({"prompts": [{**prompts[-1][1]}], "tokens": 16})
        tasks = [
            (flight, tokens, at)
            for at in range(0, a.tasks)
            for flight in a.flight
            for tokens in ((1, a.tokens) if flight == 1 else (a.tokens,))
        ]
        for number, (flight, tokens, at) in enumerate(tasks):
            # Halves of the prompts: one for first tokens, one for answers.
            half = len(prompts) // 2
            pool = prompts[:half] if tokens == 1 else prompts[half:-1]
            asked = task_of(pool, at * flight, flight)
            turn = [w for w in workers if w.takes(flight)] + base
            for worker in turn:
                line = measure_task(worker, asked, tokens)
                with a.out.open("a", encoding="utf-8") as record:
                    record.write(json.dumps({**machine, "task": number, **line}) + "\n")
            print(
                f"task {number + 1} of {len(tasks)}, {time.monotonic() - started:.0f} s",
                file=sys.stderr,
            )
    finally:
        for worker in workers:
            worker.end_worker()


# ---------- the table


def ratio_interval(ours: Sequence[float], theirs: Sequence[float]) -> tuple[float, float, float]:
    """The median of paired ratios, and its 95 % interval by resampling tasks."""
    ratios = np.array(ours) / np.array(theirs)
    return float(np.median(ratios)), *central_interval(np.median(drawn_again(ratios), axis=1))


def table_rows(lines: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Of each engine, format and mode: the table's row for each number of answers in flight."""
    speeds = defaultdict[tuple[str, ...], dict[int, list[float]]](lambda: defaultdict(list))
    firsts = defaultdict[tuple[str, ...], list[float]](list)
    shown = dict[tuple[str, ...], dict[str, Any]]()
    for line in lines:
        if "error" in line:
            continue
        side = (line["engine"], line["format"], line["mode"])
        if line["asked"] == 1:
            firsts[side].append(line["seconds"])
            continue
        key = (*side, str(line["flight"]))
        shown[key] = dict(line)
        speeds[key][line["task"]].append(line["tokens"] / line["seconds"])
    rows = list[dict[str, Any]]()
    for key, of_task in speeds.items():
        base = speeds[*BASE, key[3]]
        both = sorted(of_task.keys() & base.keys())
        ratio = ratio_interval(
            [statistics.mean(of_task[task]) for task in both],
            [statistics.mean(base[task]) for task in both],
        )
        seen = shown[key]
        first = firsts.get(key[:3])
        rows.append(
            {
                "engine": seen["version"],
                "format": seen["format"],
                "mode": seen["mode"],
                "in_flight": seen["flight"],
                "tasks": len(both),
                "tokens_a_second": f"{statistics.median(map(statistics.mean, of_task.values())):.1f}",
                "over_plain": f"{ratio[0]:.2f}",
                "low": f"{ratio[1]:.2f}",
                "high": f"{ratio[2]:.2f}",
                "first_token_ms": f"{1000 * statistics.median(first):.0f}" if first else "",
                "memory_mb": seen["memory"],
                "joules_a_token": (
                    "" if seen["joules"] is None else f"{seen['joules'] / seen['tokens']:.2f}"
                ),
                "distinct_4grams": "" if seen["distinct"] is None else f"{seen['distinct']:.2f}",
            }
        )
    return rows


def noise_of(lines: Sequence[Mapping[str, Any]]) -> str:
    """How far plain decoding at the end of a task lies from that at its start."""
    of_task = defaultdict[int, list[float]](list)
    for line in lines:
        side = (line["engine"], line["format"], line["mode"])
        if "error" not in line and side == BASE and line["asked"] > 1:
            of_task[line["task"]].append(line["tokens"] / line["seconds"])
    ratios = [speeds[1] / speeds[0] for speeds in of_task.values() if len(speeds) == 2]
    if not ratios:
        return "noise not measured"
    low, high = np.quantile(ratios, (0.1, 0.9))
    middle = statistics.median(ratios)
    return f"plain after over plain before: {middle:.2f}, in eight tasks of ten {low:.2f} to {high:.2f}"


def print_table(a: argparse.Namespace) -> None:
    """The table of a record."""
    lines = [json.loads(x) for file in a.table for x in file.read_text("utf-8").splitlines()]
    rows = table_rows(lines)
    first = lines[0]
    print(
        f"{first['machine']}, {first['cores']} cores, {first['threads']} threads; {noise_of(lines)}\n"
    )
    print("| " + " | ".join(rows[0]) + " |")
    print("|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(str(value) for value in row.values()) + " |")
    if a.csv:
        csv_rows.write_csv(a.csv, [{"machine": first["machine"], **row} for row in rows])


def main() -> None:
    p = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    p.add_argument("--envs", type=Path, help="folder of the engines' environments")
    p.add_argument("--install", action="store_true", help="make those that are missing, and end")
    p.add_argument("--scratch", type=Path, help="folder for files of other formats")
    p.add_argument("--model", default="zoo:smollm2", help="a GGUF file or zoo:NAME")
    p.add_argument("--engines", nargs="+", default=[*ENGINES], choices=[*ENGINES])
    p.add_argument("--flight", nargs="+", type=int, default=[1, 4, 16], help="answers at once")
    p.add_argument("--each", type=int, default=20, help="prompts of each workload")
    p.add_argument("--longest", type=int, default=700, help="tokens of a prompt, at most")
    p.add_argument("--tasks", type=int, default=9, help="tasks of each number of answers")
    p.add_argument("--tokens", type=int, default=128, help="of each answer")
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--seed", type=int, default=0, help="of the choice of prompts")
    p.add_argument("--out", type=Path, help="a JSONL file that gets a line for each answer")
    p.add_argument("--table", nargs="+", type=Path, help="print the table of such files")
    p.add_argument("--csv", type=Path, help="with --table: write it here, too")
    a = p.parse_args()
    if a.table:
        print_table(a)
        return
    if a.envs is None:
        p.error("--envs is missing: the folder of the engines' environments")
    if a.install:
        install_engines(a.engines, a.envs)
        return
    if a.out is None or a.scratch is None:
        p.error("--out and --scratch are needed to measure")
    measure_engines(a)


if __name__ == "__main__":
    main()
