"""A server under load: prompts arrive on their own clock, whether or not earlier ones have been answered (open loop).

For each --load, requests arrive as a Poisson process whose rate keeps about that many in flight: it is measured first with that
many clients that ask one after the other. Each is streamed, greedy, of --max-tokens tokens. Told are tokens a second, of those
clients (`most_per_second`, what the server can do) and of the arrivals, the time to the first token and between tokens (each
gap between two events of one stream) at 50 and 99 %, and goodput: the share of requests whose first token came within --first
seconds and whose gaps' 99 % lies within --gap.

With --turns N all variants run at once and take turns, N times, so that a machine whose speed changes is as fast for one as for
the other; the arrivals of a turn come as fast at all of them. Told at the end is each one's median ratio to the first.

Prompts are those of Spec-Bench in POLYDEC_DATA, chats and summaries as they come, of which only those
are asked whose SHA-1 mod 10 is 7 or more. --url measures any server that speaks /v1/chat/completions; --peer FILE.gguf adds
llama-cpp-python's server, --peer DIRECTORY `transformers serve` (`polydec export zoo:smollm2 DIRECTORY` writes one).
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx


@dataclass
class Seen:
    """One request: when it was sent, and when each event with text came. Seconds."""

    sent: float
    came: list[float] = field(default_factory=list)
    tokens: int = 0
    error: str = ""

    @property
    def first(self) -> float:
        return self.came[0] - self.sent

    @property
    def gaps(self) -> list[float]:
        return [b - a for a, b in zip(self.came, self.came[1:], strict=False)]


def prompts(limit: int, longest: int) -> list[str]:
    """First turns that nothing was tuned on, of at most so many characters."""
    root = Path(os.environ.get("POLYDEC_DATA") or "POLYDEC_DATA is not set") / "spec_bench"
    rows = [
        json.loads(line)
        for file in sorted(root.glob("*.jsonl"))
        for line in file.read_text("utf-8").splitlines()
        if line
    ]
    texts = [row["turns"][0] for row in rows if row.get("turns")]
    kept = [
        t
        for t in texts
        if int(hashlib.sha1(t.encode()).hexdigest(), 16) % 10 >= 7 and len(t) <= longest
    ]
    if not kept:
        raise SystemExit(f"no prompts in {root}: set POLYDEC_DATA")
    random.Random(0).shuffle(kept)
    return kept[:limit]


async def ask(client: httpx.AsyncClient, model: str, prompt: str, most: int) -> Seen:
    """One request, as a stream."""
    seen = Seen(time.perf_counter())
    body = {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": most,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            if answer.status_code != 200:
                seen.error = f"{answer.status_code}"
                return seen
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[6:])
                if any(c["delta"].get("content") for c in event.get("choices", ())):
                    seen.came.append(time.perf_counter())
                seen.tokens = (event.get("usage") or {}).get("completion_tokens", seen.tokens)
    except httpx.HTTPError as error:
        seen.error = type(error).__name__
    if not seen.came and not seen.error:
        seen.error = "empty"
    seen.tokens = seen.tokens or len(seen.came)
    return seen


async def closed(
    client: httpx.AsyncClient, model: str, texts: Sequence[str], most: int, load: int
) -> tuple[float, float]:
    """Requests and tokens a second of so many clients that ask one after the other."""
    some, seen = texts[: max(16, 2 * load)], list[Seen]()
    left, began = iter(some), time.perf_counter()

    async def one() -> None:
        for text in left:
            seen.append(await ask(client, model, text, most))

    await asyncio.gather(*(one() for _ in range(load)))
    seconds = time.perf_counter() - began
    return len(some) / seconds, sum(s.tokens for s in seen) / seconds


async def arriving(
    client: httpx.AsyncClient, model: str, texts: Sequence[str], most: int, rate: float
) -> tuple[list[Seen], float]:
    """All of them at random times, so many a second; and how long it took."""
    rng, tasks, began = random.Random(1), list[asyncio.Task[Seen]](), time.perf_counter()
    for text in texts:
        tasks.append(asyncio.create_task(ask(client, model, text, most)))
        await asyncio.sleep(rng.expovariate(rate))
    return list(await asyncio.gather(*tasks)), time.perf_counter() - began


def at(values: Sequence[float], share: float) -> float:
    """A quantile; nan where there is nothing."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def measure(
    name: str,
    url: str,
    model: str,
    texts: Sequence[str],
    args: argparse.Namespace,
    rates: dict[int, float],
) -> list[dict[str, Any]]:
    """A row for each load. rates: at which requests arrive, by load; what is not there yet is measured and kept."""
    rows = []
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
        await ask(client, model, texts[0], 4)
        for load in args.load:
            rate, most = await closed(client, model, texts, args.max_tokens, load)
            rate = rates.setdefault(load, rate)
            seen, seconds = await arriving(client, model, texts, args.max_tokens, rate)
            good = [s for s in seen if not s.error]
            gaps = [g for s in good for g in s.gaps]
            served = [
                s for s in good if s.first <= args.first and at(s.gaps or [0.0], 0.99) <= args.gap
            ]
            rows.append(
                {
                    "server": name,
                    "in_flight": load,
                    "requests": len(seen),
                    "errors": dict(Counter(s.error for s in seen if s.error)),
                    "requests_per_second": round(rate, 3),
                    "most_per_second": round(most, 1),
                    "tokens_per_second": round(sum(s.tokens for s in good) / seconds, 1),
                    "first_p50": at([s.first for s in good], 0.5),
                    "first_p99": at([s.first for s in good], 0.99),
                    "gap_p50": at(gaps, 0.5),
                    "gap_p99": at(gaps, 0.99),
                    "goodput": len(served) / len(seen),
                    "mean_events": statistics.mean(len(s.came) for s in good) if good else 0.0,
                }
            )
            print(json.dumps(rows[-1]), flush=True)
    return rows


def compared(rows: Sequence[dict[str, Any]], first: str, other: str) -> dict[str, Any]:
    """Of each load the ratios of what `other` did to what `first` did in the same turn: median, lowest, highest."""
    out: dict[str, Any] = {"server": other, "over": first}
    for load in dict.fromkeys(row["in_flight"] for row in rows):
        pair = [
            [row for row in rows if (row["server"], row["in_flight"]) == (name, load)]
            for name in (other, first)
        ]
        for key in ("most_per_second", "gap_p99", "first_p50", "goodput"):
            ratios = sorted(a[key] / b[key] for a, b in zip(*pair, strict=True) if b[key])
            if ratios:
                out[f"{key} at {load}"] = [
                    round(x, 3) for x in (statistics.median(ratios), ratios[0], ratios[-1])
                ]
    return out


@contextmanager
def started(command: list[str], url: str, path: str):
    """A server of its own, until the block ends."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(1200):
            if process.poll() is not None:
                raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
            try:
                if httpx.get(url + path, timeout=5).status_code == 200:
                    break
            except httpx.HTTPError:
                pass
            time.sleep(0.25)
        yield
    finally:
        process.terminate()
        process.wait(60)


def peer(model: Path) -> tuple[str, list[str], str, str]:
    """Another server over the same model: its name, command, the path that answers once it is ready, the model's name there."""
    name = str(model.resolve())
    if model.is_dir():
        if not shutil.which("transformers"):
            raise SystemExit(
                "--peer is a directory and the command `transformers` is not installed: transformers[serving]"
            )
        return "transformers serve", ["transformers", "serve", name], "/health", name
    if not find_spec("llama_cpp"):
        raise SystemExit(
            "--peer is a file and llama_cpp is not installed: llama-cpp-python[server]"
        )
    # Without these it has room for 2,048 tokens, drops a stream as soon as another request comes, and uses half of the cores.
    own = [
        "--n_ctx",
        "8192",
        "--interrupt_requests",
        "false",
        "--n_threads",
        str(os.cpu_count() or 1),
    ]
    command = [sys.executable, "-m", "llama_cpp.server", "--model", name, *own]
    return "llama-cpp-python", command, "/v1/models", name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="zoo:smollm2")
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument(
        "--serve",
        action="append",
        default=[],
        help="further words for `polydec serve`, once for each variant",
    )
    parser.add_argument("--load", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument(
        "--turns", type=int, default=0, help="all variants at once, by turns, so many times"
    )
    parser.add_argument("--limit", type=int, default=128, help="requests of a load")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--longest", type=int, default=8000, help="characters of a prompt")
    parser.add_argument(
        "--first", type=float, default=2.0, help="seconds to the first token that count as good"
    )
    parser.add_argument(
        "--gap", type=float, default=0.2, help="seconds between tokens that count as good"
    )
    parser.add_argument(
        "--peer",
        type=Path,
        action="append",
        default=[],
        help="the model for others: a GGUF file (llama-cpp-python) or a directory (transformers serve)",
    )
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--out", type=Path, help="write all rows to this file as well")
    args = parser.parse_args()
    texts, rows, url = prompts(args.limit, args.longest), [], f"http://127.0.0.1:{args.port}"
    servers = [
        (
            "polydec " + words,
            [sys.executable, "-m", "polydec", "serve", "--model", args.model, *words.split()],
            "/health",
            args.model,
        )
        for words in args.serve or [""]
    ]
    servers += [peer(path) for path in args.peer]
    if args.url:
        rows += asyncio.run(measure(args.url, args.url, args.model, texts, args, {}))
    elif args.turns:
        with ExitStack() as stack:
            urls = [f"http://127.0.0.1:{args.port + at}" for at in range(len(servers))]
            for at, (own, (_, command, path, _)) in enumerate(zip(urls, servers, strict=True)):
                stack.enter_context(started([*command, "--port", str(args.port + at)], own, path))
            for turn in range(args.turns):
                rates = dict[int, float]()
                for own, (name, _, _, model) in list(zip(urls, servers, strict=True))[
                    :: -1 if turn % 2 else 1
                ]:
                    rows += asyncio.run(measure(name.strip(), own, model, texts, args, rates))
        for name, *_ in servers[1:]:
            print(json.dumps(compared(rows, servers[0][0].strip(), name.strip())))
    else:
        for name, command, path, model in servers:
            with ExitStack() as stack:
                stack.enter_context(started([*command, "--port", str(args.port)], url, path))
                rows += asyncio.run(measure(name.strip(), url, model, texts, args, {}))
    if args.out:
        args.out.write_text("".join(json.dumps(row) + "\n" for row in rows))


if __name__ == "__main__":
    main()
