"""Other people's clients against one server: which of their parts work as they are, as a table.

    python benchmarks/client_table.py --venvs DIR --install     # an environment for each client, from PyPI, then the table
    python benchmarks/client_table.py --venvs DIR --only dspy   # one of them again
    python benchmarks/client_table.py --venvs DIR --write lab/reports/clients-measured.md

Each client has an environment of its own in --venvs, since they need different versions of common packages, and a script in
benchmarks/client_scripts/. Answers are greedy, and a client's are compared with what the server says to a plain request. The
server is `polydec serve` with a key, of --model.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from client_scripts.check_columns import COLUMNS

from polydec.request.machine import describe_machine

HERE = Path(__file__).resolve().parent
SCRIPTS = HERE / "client_scripts"
BEGIN, END = "<!-- clients: made by benchmarks/client_table.py -->", "<!-- end -->"


@dataclass(frozen=True)
class TriedClient:
    """One client.

    Attributes:
        name: What the table calls it, and its environment's folder.
        requirements: What pip installs.
    """

    name: str
    requirements: tuple[str, ...]

    @property
    def script(self) -> Path:
        return SCRIPTS / f"try_{self.name.replace('-', '_')}.py"


CLIENTS = (
    TriedClient("openai", ("openai",)),
    TriedClient("langchain", ("langchain-openai",)),
    TriedClient("instructor", ("instructor",)),
    TriedClient("litellm", ("litellm",)),
    TriedClient("pydantic-ai", ("pydantic-ai-slim[openai]",)),
    TriedClient("openai-agents", ("openai-agents",)),
    TriedClient("outlines", ("outlines[openai]",)),
    TriedClient(
        "llama-index", ("llama-index-llms-openai-like", "llama-index-embeddings-openai-like")
    ),
    TriedClient("dspy", ("dspy[numpy]",)),
    TriedClient("smolagents", ("smolagents[openai]",)),
    TriedClient("lm-eval", ("lm-eval[api]",)),
)


@dataclass(frozen=True)
class ClientCheck:
    """What one script said of one column. outcome: "yes", "no" or "absent"."""

    client: str
    version: str
    column: str
    outcome: str
    note: str


def install_client(client: TriedClient, folder: Path) -> None:
    """Make a client's environment where it is absent, and install the newest version.

    Args:
        client: The client.
        folder: Folder of the environments.
    """
    home = folder / client.name
    if not (home / "bin" / "python").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade"]
    subprocess.run([*pip, *client.requirements], check=True)


@contextmanager
def served_model(model: str, key: str) -> Iterator[str]:
    """Start a server, wait until it is ready, and end it by SIGTERM.

    Args:
        model: The model, as `polydec serve --model` takes it.
        key: The API key.

    Yields:
        The server's address.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "polydec", "serve", "--model", model, "--port", str(port)]
    server = subprocess.Popen(command, env={**os.environ, "POLYDEC_API_KEY": key})
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_ready(url, server)
        yield url
    finally:
        server.terminate()
        server.wait(60)


def wait_until_ready(url: str, server: subprocess.Popen[bytes], seconds: float = 120) -> None:
    """Wait for a server.

    Args:
        url: Its address.
        server: Its process.
        seconds: The longest wait. Default 120.

    Raises:
        SystemExit: It ended, or was not ready in time.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end and server.poll() is None:
        try:
            with urllib.request.urlopen(url + "/health", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise SystemExit("the server did not become ready")


def run_script(
    client: TriedClient, python: Path, url: str, key: str, model: str, seconds: float
) -> list[ClientCheck]:
    """Run one client's script.

    Args:
        client: The client.
        python: Interpreter of its environment.
        url: The server's address.
        key: The API key.
        model: Name under which the model is served.
        seconds: After which the script is ended.

    Returns:
        What it said of each column; "no" for those that it did not reach.
    """
    environment = {**os.environ, "POLYDEC_URL": url, "POLYDEC_KEY": key, "POLYDEC_MODEL": model}
    # The environment of the server is none of the client's.
    environment.pop("PYTHONPATH", None)
    environment["OPENAI_API_KEY"] = key
    with tempfile.TemporaryDirectory() as room:
        # A working folder of its own: some clients write caches into it.
        try:
            done = subprocess.run(
                [str(python), str(client.script)],
                env={**environment, "HOME": room},
                cwd=room,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
            output, problems = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            output = (late.stdout or b"").decode()
            problems = f"it did not end within {seconds:g} seconds"
    found = read_checks(client.name, output)
    if any(check.outcome == "no" for check in found) or len(found) < len(COLUMNS):
        print(problems[-6000:], file=sys.stderr)
    seen = {check.column for check in found}
    lost = [
        ClientCheck(client.name, "?", column, "no", "the script did not reach it")
        for column in COLUMNS
        if column not in seen
    ]
    return [*found, *lost]


def read_checks(client: str, output: str) -> list[ClientCheck]:
    """Read what a script wrote.

    Args:
        client: Name of the client.
        output: Its standard output, in which other lines are passed over.

    Returns:
        The checks.
    """
    lines = [line for line in output.splitlines() if line.startswith("CHECK ")]
    return [ClientCheck(client=client, **json.loads(line.removeprefix("CHECK "))) for line in lines]


def format_table(checks: Sequence[ClientCheck]) -> str:
    """Write the table, and below it what is to be said of single cells.

    Args:
        checks: Of all clients.

    Returns:
        Markdown.
    """
    marks = {"yes": "yes", "no": "**no**", "absent": "-"}
    lines = [
        "| client | version | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 2) + "|",
    ]
    notes = list[str]()
    for name in dict.fromkeys(check.client for check in checks):
        mine = {check.column: check for check in checks if check.client == name}
        cells = [marks[mine[column].outcome] for column in COLUMNS]
        version = next(iter(mine.values())).version
        lines.append(f"| {name} | {version} | " + " | ".join(cells) + " |")
        said = [f"{c}: {mine[c].note}" for c in COLUMNS if mine[c].note]
        if said:
            notes.append(f"- {name}: " + "; ".join(said) + ".")
    return "\n".join([*lines, "", *notes])


def write_table(page: Path, table: str) -> None:
    """Put the table in place of the one that a page has between the two marks.

    Args:
        page: The page.
        table: Markdown.
    """
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", "utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--venvs", type=Path, required=True, help="folder of the environments")
    arguments.add_argument("--install", action="store_true", help="make them, or renew them")
    arguments.add_argument("--only", nargs="+", choices=[client.name for client in CLIENTS])
    arguments.add_argument("--model", default="zoo:smollm2")
    arguments.add_argument(
        "--seconds", type=float, default=300, help="the longest time of a script"
    )
    arguments.add_argument("--write", type=Path, help="a page that holds the table")
    given = arguments.parse_args(argv)
    chosen = [client for client in CLIENTS if given.only is None or client.name in given.only]
    if given.install:
        for client in chosen:
            install_client(client, given.venvs)
    checks = list[ClientCheck]()
    key = secrets.token_hex(16)
    with served_model(given.model, key) as url:
        for client in chosen:
            python = given.venvs.resolve() / client.name / "bin" / "python"
            if not python.exists():
                raise SystemExit(f"{client.name} has no environment: --install makes it")
            checks += run_script(client, python, url, key, given.model, given.seconds)
    head = f"*{date.today()}, `{given.model}`, {describe_machine()}.*"
    table = f"{head}\n\n{format_table(checks)}"
    print(table)
    if given.write is not None:
        write_table(given.write, table)
    return int(any(check.outcome == "no" for check in checks))


if __name__ == "__main__":
    raise SystemExit(main())
