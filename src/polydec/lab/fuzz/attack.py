"""A running server under random requests: `python -m polydec.lab.fuzz.attack --seed 0 --count 1000`.

`polydec serve` runs in a process of its own, and so do the clients, `--connections` at the same
time. Wrong is: a status of 500 and above that is not meant (503 and 504 are), a whole request
without an answer, an error that is no sentence, a right request with another answer than before, a
process that ends, a traceback in the server's messages, `/health` above `HEALTH` seconds while no
other program took the processor, and more than `GROWTH` of the memory of the beginning at the end.

An input is named by (seed, number) and is the same wherever it runs (see `fuzz_requests.py`).
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread
from typing import IO, Any

from polydec.base.edge import error_sentence
from polydec.lab.fuzz import fuzz_requests
from polydec.lab.fuzz.fuzz_requests import ClientInput

Address = tuple[str, int]

HEALTH = 0.25
QUIET = 0.1
"""Seconds that `/health` may take, wherever other programs took less than this share of the cores
meanwhile.
"""
GROWTH = 1.2
"""Memory at the end over that of the beginning."""
EVERY = 0.05
"""Seconds between two looks at `/health`."""
SLOWEST = 8
"""Looks that are told though they were not late: those in which the server computed longest."""
TOGETHER = 500
"""Inputs between two looks at memory."""
MEANT = (503, 504)
"""Statuses of 500 and above that are no faults: the queue, or the time of a request, is over."""


@dataclass(frozen=True)
class ServerReply:
    """What came back.

    Attributes:
        status: HTTP status; None where no answer came.
        text: Bytes of the body.
        took: Seconds from connecting to the end.
    """

    status: int | None
    text: bytes
    took: float


@dataclass(frozen=True)
class AttackFailure:
    """An input that went wrong, and how.

    Attributes:
        number: Number of the input under its seed.
        kind: Kind of the input.
        described: The bytes that were sent, cut where they are many.
        wrong: What went wrong, as a sentence.
    """

    number: int
    kind: str
    described: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.kind} {self.number}: {self.wrong}\n    given {self.described}"


# ---- clients ----


def send_input(address: Address, sent: ClientInput) -> ServerReply:
    """Be one client: connect, send, read as far as the input says, and leave.

    Args:
        address: Host and port of the server.
        sent: What to send, and how.

    Returns:
        What came back; an error of the connection counts as no answer.
    """
    began = time.monotonic()
    status = None
    text = b""
    with (
        suppress(OSError, http.client.HTTPException),
        socket.create_connection(address, sent.waits) as s,
    ):
        with suppress(
            OSError
        ):  # an answer may come before all is sent, and the connection ends then
            for at, part in enumerate(sent.parts):
                if at:
                    time.sleep(sent.pause)
                s.sendall(part)
        # A client that stays reads all of its answer; one that leaves takes some bytes, or none.
        if sent.stays is None:
            answer = http.client.HTTPResponse(s, method=_method(sent))
            answer.begin()
            status = answer.status
            text = answer.read(1 << 26)
        elif sent.stays:
            text = s.recv(sent.stays)
        # With a linger time of 0 closing sends a reset, so that the server sees a broken
        # connection.
        if sent.abrupt:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return ServerReply(status, text, time.monotonic() - began)


def _method(sent: ClientInput) -> str:
    return sent.parts[0].partition(b" ")[0].decode("latin-1")


def describe_reply_fault(sent: ClientInput, told: ServerReply, right: bytes) -> str:
    """Say what is wrong with an answer, if anything.

    Args:
        sent: The input.
        told: What came back.
        right: Text of the answer that a right request had before the attack.

    Returns:
        A sentence; empty where nothing is wrong.
    """
    status = told.status
    # No answer is a fault only where a complete request was sent.
    if status is None:
        if sent.whole:
            return f"there is no answer within {told.took:.0f} s"
        return ""
    if status >= 500 and status not in MEANT:
        return f"status {status}: {told.text[:300]!r}"
    if sent.kind == "right":
        if status == 200:
            answer = _written(told.text)
        else:
            answer = b""
        # A full queue may refuse even a right request.
        if answer == right or status == 429:
            return ""
        return f"another answer: {told.text[:300]!r}"
    if status >= 400 and _method(sent) != "HEAD":
        return _unsaid(told.text)
    return ""


def _unsaid(text: bytes) -> str:
    """What is wrong with the message of an error."""
    try:
        message = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"an error in another form: {text[:300]!r}"
    # `error_sentence` gives a clean sentence back as it is.
    if message and error_sentence(message) == message:
        return ""
    return f"no sentence: {message!r}"


def _written(text: bytes) -> bytes:
    with suppress(ValueError, KeyError, IndexError, TypeError):
        return json.loads(text)["choices"][0]["text"].encode()
    return b""


@dataclass(frozen=True)
class InputInterval:
    """When an input was under way.

    Attributes:
        name: Kind and number of the input.
        begin: Seconds of the monotonic clock.
        end: Seconds of the monotonic clock.
    """

    name: str
    begin: float
    end: float


def send_input_batch(
    address: Address, seed: int, numbers: Sequence[int], connections: int, right: bytes
) -> tuple[list[AttackFailure], Counter[tuple[str, str]], list[InputInterval]]:
    """Send the inputs of these numbers, several at a time.

    Args:
        address: Host and port of the server.
        seed: Seed of the inputs.
        numbers: Numbers of the inputs.
        connections: How many are sent at the same time.
        right: Text of the answer that a right request had before the attack.

    Returns:
        What went wrong, how often each kind had each status, and when each input was under way.
    """

    def attack_once(number: int) -> tuple[ClientInput, ServerReply, str, InputInterval]:
        sent = fuzz_requests.numbered_input(seed, number)
        began = time.monotonic()
        told = send_input(address, sent)
        flight = InputInterval(f"{sent.kind} {number}", began, time.monotonic())
        return sent, told, describe_reply_fault(sent, told, right), flight

    wrongs = list[AttackFailure]()
    counts = Counter[tuple[str, str]]()
    flights = list[InputInterval]()
    # Threads are enough: clients wait for most of their time.
    with ThreadPoolExecutor(connections) as pool:
        for number, (sent, told, why, flight) in zip(
            numbers, pool.map(attack_once, numbers), strict=True
        ):
            counts[sent.kind.partition(" ")[0], str(told.status or "none")] += 1
            flights.append(flight)
            if why:
                wrongs.append(AttackFailure(number, sent.kind, sent.described, why))
    return wrongs, counts, flights


# ---- the server ----


@dataclass
class ServerProcess:
    """A server in a process of its own.

    Attributes:
        process: The process.
        address: Host and port that it listens on.
        output: File of its messages.
    """

    process: subprocess.Popen[bytes]
    address: Address
    output: IO[bytes]

    def messages(self) -> str:
        self.output.seek(0)
        return self.output.read().decode("utf-8", "replace")


@contextmanager
def running_server(model: str, *more: str) -> Iterator[ServerProcess]:
    """Run `polydec serve` until the block ends.

    Args:
        model: The model that it serves.
        more: Further arguments of the command.

    Yields:
        The server, ready for requests.

    Raises:
        RuntimeError: It does not come to that within two minutes.
    """
    with tempfile.TemporaryFile() as messages:
        command = [sys.executable, "-m", "polydec", "serve", "--model", model, "--port", "0", *more]
        process = subprocess.Popen(command, stdout=messages, stderr=messages)
        try:
            yield ServerProcess(process, _address(process, messages), messages)
        finally:
            # As an operator ends a server: it may finish what is under way, within a limit.
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _address(process: subprocess.Popen[bytes], messages: IO[bytes]) -> Address:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        time.sleep(0.1)
        messages.seek(0)
        text = messages.read().decode("utf-8", "replace")
        where = re.search(r"http://([\d.]+):(\d+)", text)
        # The port is chosen by the system, so it is read from the server's own message.
        if where is not None and " ready" in text:
            return where[1], int(where[2])
    messages.seek(0)
    raise RuntimeError(f"the server does not start: {messages.read()[-2000:]!r}")


# ---- what the system says of processes ----


def process_tree(root: int) -> list[int]:
    """A process and all that come from it."""
    out = [root]
    # The list grows while it is walked: children of children are found as well.
    for pid in out:
        with suppress(OSError):
            for task in Path(f"/proc/{pid}/task").iterdir():
                out += [int(x) for x in (task / "children").read_text().split()]
    return out


def process_tree_memory(root: int) -> int:
    """Add up the bytes that a process and all that come from it hold.

    What several of them share counts once, whether programs beside them share it as well or not
    (they come and go). Of files that are mapped as much counts as the process with most of them
    has.

    Args:
        root: Id of the process.

    Returns:
        Bytes.
    """
    own = 0
    mapped = list[int]()
    for pid in process_tree(root):
        with suppress(OSError):
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            sizes = {k: int(n) << 10 for k, n in re.findall(r"^(\w+): +(\d+) kB", text, re.M)}
            anonymous = sizes.get("Anonymous", 0)
            # A proportional share of anonymous memory: pages that forked processes share add up to
            # one.
            own += sizes.get("Pss_Anon", anonymous)
            mapped.append(sizes.get("Rss", 0) - anonymous)
    return own + max(mapped, default=0)


def _spent(root: int) -> float:
    """Processor seconds of a process and all that come from it, those that have ended included."""
    total = 0
    for pid in process_tree(root):
        with suppress(OSError):
            # Fields behind the command's name, which may hold blanks: utime, stime, cutime, cstime.
            words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            total += sum(map(int, words[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def _computed(pid: int) -> tuple[float, float]:
    """Processor seconds of a process's first thread, which is the event loop's, and of all its
    threads.
    """
    first = 0.0
    total = 0.0
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                seconds = int((task / "schedstat").read_text().split()[0]) / 1e9
                total += seconds
                # The first thread has the process's own id.
                if task.name == str(pid):
                    first += seconds
    return first, total


def _busy() -> float:
    """Processor seconds of the whole machine in which it was not idle."""
    words = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    ticks = [int(x) for x in words[:8]]
    # Fields 3 and 4 are idle and waiting for a disk.
    return (sum(ticks) - ticks[3] - ticks[4]) / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class HealthProbe:
    """One look at `/health`.

    Attributes:
        at: When it was asked for, seconds of the monotonic clock.
        took: Seconds until the answer.
        status: HTTP status; None where there was no answer.
        others: Share of all cores that other programs took meanwhile, 0 to 1.
        loop: Processor seconds that the server's event loop took meanwhile.
        server: Processor seconds that all of the server's threads took meanwhile. It is the most
            that the server itself can have made the look wait, however busy the machine is.
    """

    at: float
    took: float
    status: int | None
    others: float
    loop: float = 0.0
    server: float = 0.0

    def describe_probe(self, flights: Sequence[InputInterval]) -> str:
        """Describe the look, and what was under way meanwhile.

        Args:
            flights: When each input was under way.

        Returns:
            A sentence.
        """
        under = [x.name for x in flights if x.begin < self.at + self.took and x.end > self.at]
        return (
            f"{self.status} after {self.took * 1000:.0f} ms, in which the event loop computed {self.loop * 1000:.0f} ms, "
            f"the whole server {self.server * 1000:.0f}, and others took {self.others:.0%} of the cores; under way: "
            f"{', '.join(under[:12]) or 'nothing'}"
        )


@dataclass
class HealthWatcher:
    """Looks at `/health` from a thread of its own, until `stop`.

    Attributes:
        address: Host and port of the server.
        server: Id of its process.
        looks: All looks so far.
    """

    address: Address
    server: int
    looks: list[HealthProbe] = field(default_factory=list[HealthProbe])

    def __post_init__(self) -> None:
        self._stop = Event()
        self._thread = Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(EVERY):
            began = time.monotonic()
            busy = _busy()
            spent = _spent(os.getpid())
            # Read right before and after the request, so that little but the request lies between.
            computed = _computed(self.server)
            asked = time.monotonic()
            status = send_input(self.address, HEALTHY).status
            took = time.monotonic() - asked
            loop, server = (b - a for a, b in zip(computed, _computed(self.server), strict=True))
            gone = (time.monotonic() - began) * (os.cpu_count() or 1)
            # What this process, with its own clients, took is no other program's.
            others = (_busy() - busy) - (_spent(os.getpid()) - spent)
            self.looks.append(
                HealthProbe(asked, took, status, max(0.0, others / gone), loop, server)
            )


HEALTHY = ClientInput("health", (fuzz_requests.http_request_bytes("/health", b"", "GET"),))


# ---- all together ----


def attack_server(
    seed: int,
    count: int,
    *,
    first: int = 0,
    connections: int = 8,
    model: str = "zoo:tiny",
    say: Any = print,
) -> list[str]:
    """Send inputs to a server of its own.

    Args:
        seed: Seed of the inputs.
        count: How many inputs.
        first: Number of the first one. Default 0.
        connections: How many clients there are at the same time. Default 8.
        model: The model that is served.
        say: Called with sentences about the progress.

    Returns:
        What went wrong, in sentences.

    Raises:
        RuntimeError: The server does not start.
    """
    problems = list[str]()
    counts = Counter[tuple[str, str]]()
    flights = list[InputInterval]()
    text = ""
    began = time.monotonic()
    spawn = multiprocessing.get_context("spawn")
    with running_server(model) as server, ProcessPoolExecutor(1, spawn) as clients:
        watch = HealthWatcher(server.address, server.process.pid)
        others = _busy(), _spent(os.getpid()), time.monotonic()
        # All that a server makes once (compiled grammars, thread pools, caches) is made before
        # memory is measured.
        for sent in fuzz_requests.warm_up_inputs():
            told = send_input(server.address, sent)
            if told.status is None or told.status >= 500:
                problems.append(f"before all: {sent.described}: {told}")
        right = _written(send_input(server.address, fuzz_requests.reference_input()).text)
        time.sleep(2)
        start = at = process_tree_memory(server.process.pid)
        say(f"begins with {start / 1e6:.0f} MB")
        # In portions, with a look at memory and at the process behind each.
        for number in range(first, first + count, TOGETHER):
            numbers = range(number, min(number + TOGETHER, first + count))
            # Clients run in another process: their computing must not delay this one's looks at
            # `/health`.
            job = clients.submit(
                send_input_batch, server.address, seed, numbers, connections, right
            )
            wrongs, statuses, went = job.result()
            counts += statuses
            flights += went
            problems += map(str, wrongs)
            for wrong_input in wrongs:
                say(str(wrong_input))
            # Of all processes of the server, as it may have started some.
            at = process_tree_memory(server.process.pid)
            say(
                f"{numbers[-1] + 1 - first} of {count}, {time.monotonic() - began:.0f} s, {at / 1e6:.0f} MB, "
                f"/health at most {max((x.took for x in watch.looks), default=0) * 1000:.0f} ms"
            )
            # A server that ended answers nothing more, so the rest would say nothing.
            if server.process.poll() is not None:
                problems.append(f"the server ended with {server.process.returncode}")
                break
        watch.stop()
        gone = (time.monotonic() - others[2]) * (os.cpu_count() or 1)
        share = ((_busy() - others[0]) - (_spent(os.getpid()) - others[1])) / gone
        # It gives memory back every ten seconds, what its caches had at the second time.
        time.sleep(25)
        end = process_tree_memory(server.process.pid)
        if server.process.poll() is None and send_input(server.address, HEALTHY).status != 200:
            problems.append("the server is not ready at the end")
        # A leak shows against the beginning, however much a model takes.
        if end > GROWTH * start:
            problems.append(f"memory went from {start / 1e6:.0f} to {end / 1e6:.0f} MB")
        problems += _slow(watch.looks, flights, say)
        # Before the block ends: the file of the messages goes with it.
        text = server.messages()
    if "Traceback" in text or "ERROR" in text:
        problems.append(f"the server's messages: {text[-3000:]}")
    if server.process.returncode != 0:
        problems.append(f"the server's exit code is {server.process.returncode}: {text[-1000:]}")
    for kind in sorted({kind for kind, _ in counts}):
        say(
            f"  {kind}: "
            + ", ".join(f"{s} {n}" for (k, s), n in sorted(counts.items()) if k == kind)
        )
    say(
        f"memory {start / 1e6:.0f} to {end / 1e6:.0f} MB; other programs took {share:.0%} of the cores"
    )
    return problems


def _slow(looks: Sequence[HealthProbe], flights: Sequence[InputInterval], say: Any) -> list[str]:
    """Looks that took too long while no others took the cores."""
    order = sorted(x.took for x in looks)
    # No look, no figures.
    if not order:
        return []
    say(
        f"/health {len(order)} times: half within {order[len(order) // 2] * 1000:.0f} ms, 99 % within "
        f"{order[len(order) * 99 // 100] * 1000:.0f} ms, at most {order[-1] * 1000:.0f} ms"
    )
    computed = sorted(x.server for x in looks)
    say(
        f"meanwhile the server computed for at most {computed[-1] * 1000:.0f} ms, in 99 % of them for "
        f"{computed[len(computed) * 99 // 100] * 1000:.0f} ms, its event loop for at most "
        f"{max(x.loop for x in looks) * 1000:.0f} ms"
    )
    # The slowest first, with what the server did at the time.
    for x in sorted(looks, key=lambda x: -x.server)[:SLOWEST]:
        say(f"  /health: {x.describe_probe(flights)}")
    # Too late, or no good answer at all.
    late = [x for x in looks if x.took > HEALTH or x.status != 200]
    for x in late[:20]:
        say(f"  late /health: {x.describe_probe(flights)}")
    # A late look on a machine that others keep busy says nothing of the server.
    quiet = [x for x in late if x.others < QUIET]
    return [
        f"/health took {x.took * 1000:.0f} ms (status {x.status}), others had {x.others:.0%}"
        for x in quiet
    ]


def main() -> None:
    """The command: prints what went wrong, with exit code 1, or that nothing did."""
    parser = argparse.ArgumentParser(
        prog="python -m polydec.lab.fuzz.attack", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=1000, help="inputs")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--connections", type=int, default=8, help="clients at the same time")
    parser.add_argument("--model", default="zoo:tiny")
    arguments = parser.parse_args()
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the server ends as well

    def say_line(what: str) -> None:
        print(what, flush=True)

    problems = attack_server(
        arguments.seed,
        arguments.count,
        first=arguments.first,
        connections=arguments.connections,
        model=arguments.model,
        say=say_line,
    )
    for line in problems:
        print(line)
    print(f"{arguments.count} inputs, {len(problems)} wrong, {time.monotonic() - began:.0f} s")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
