"""What it costs to start: processor seconds (user and system) of whole commands, in turns, as a table.

    python benchmarks/start.py                                    # five turns of our own commands
    python benchmarks/start.py --llama /path/to/python --turns 9  # beside llama.cpp's Python binding of another environment

Processor time hardly depends on what else the machine does; wall time would. The first turn, which fills caches, is left out.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys

from polydec.models.nets.linear import cpu_name

PROMPT, TOKENS = "Name two colours.", 8
OURS = ["generate", PROMPT, "--model", "zoo:smollm2", "--max-tokens", str(TOKENS)]
POLYDEC = {
    "`--help`": ["--help"],
    "`methods`": ["methods"],
    "`serve --help`": ["serve", "--help"],
    "a wrong method name": ["generate", PROMPT, "--method", "plian"],
    "a wrong `--sample` value": ["generate", PROMPT, "--sample", "dry_base=-1"],
    f"`generate`, {TOKENS} tokens, `plain`": [*OURS, "--method", "plain"],
    f"`generate`, {TOKENS} tokens, `auto`": [*OURS, "--method", "auto"],
}
LLAMA = """
import sys

from llama_cpp import Llama
path, prompt, tokens = sys.argv[1:]
model = Llama(path, n_ctx=2048, verbose=False)
asked = [{"role": "user", "content": prompt}]
model.create_chat_completion(asked, max_tokens=int(tokens), temperature=0)
"""


def seconds(command: list[str]) -> float:
    """Processor time of a command and all that it starts. Exit code 2 is what a wrong name ends with."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in (0, 2):
        raise SystemExit(f"{' '.join(command)} failed: {done.stderr[-300:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def commands(llama: str | None) -> dict[str, list[str]]:
    """By the name of its row, each command."""
    found = {name: [sys.executable, "-m", "polydec", *rest] for name, rest in POLYDEC.items()}
    found["`import torch` alone"] = [sys.executable, "-c", "import torch"]
    if llama is not None:
        from polydec.models.formats import zoo

        path = str(zoo.zoo_model_path("zoo:smollm2"))
        found[f"llama-cpp-python, {TOKENS} tokens"] = [
            llama,
            "-c",
            LLAMA,
            path,
            PROMPT,
            str(TOKENS),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=5, help="how often each command is run (5)")
    parser.add_argument("--llama", help="a Python that has llama-cpp-python")
    given = parser.parse_args()
    if given.turns < 1:
        parser.error(f"turns is {given.turns}: it must be at least 1")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # nobody starts without compiled files
    todo = commands(given.llama)
    runs = {name: list[float]() for name in todo}
    for turn in range(given.turns + 1):
        for name, command in todo.items():
            took = seconds(command)
            if turn:
                runs[name].append(took)
    print("| command | processor seconds, median | least |\n|---|---|---|")
    for name, took in runs.items():
        print(f"| {name} | {statistics.median(took):.2f} | {min(took):.2f} |")
    if given.llama is None:
        print("\nllama-cpp-python is not in this run: `--llama PYTHON` names a Python that has it.")
    cpu = cpu_name()
    print(
        f"\n{given.turns} turns, {cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, ",
        end="",
    )
    print(f"load of {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "load unknown")


if __name__ == "__main__":
    main()
