"""Every block of README.md, CONTRIBUTING.md and docs/*.md does what it says: commands run in small, Python runs as it stands.

A block names its language: `sh` (commands), `python`, `toml`, or `text` (drawings and trees, of
which nothing runs). What a command is given here beyond what stands there is in SMALL and SWAPPED,
what does not run in SKIPPED, each with its reason; a program that is in none of these fails. With
zoo:smollm2 installed, `pytest -m slow tests/project/test_docs_blocks.py` runs them on the model
that they name."""

import argparse
import contextlib
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

import polydec
from polydec.cli.main import main
from polydec.lab.train import hyperfit, lm
from polydec.models.formats import zoo
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md")))
REAL = "zoo:smollm2"


@dataclass(frozen=True)
class Block:
    """page, line: where its fence stands."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def hidden(page: Path) -> list[int]:
    """Lines with a command outside a fence, indented as code: nothing would run them."""
    fenced, out = False, list[int]()
    for number, line in enumerate(page.read_text("utf-8").split("\n"), 1):
        fenced ^= line.startswith("```")
        if not fenced and re.match(r" {4,}(polydec|python|make|pip|pytest) ", line):
            out.append(number)
    return out


def blocks_of(page: Path) -> list[Block]:
    out, begun = list[Block](), None
    lines = page.read_text("utf-8").split("\n")
    for i, line in enumerate(lines):
        if line.startswith("```"):
            if begun is None:
                begun = i
            else:
                name = str(page.relative_to(ROOT))
                text = "\n".join(lines[begun + 1 : i]) + "\n"
                language = lines[begun][3:].partition(" title=")[0]
                out.append(Block(name, begun + 1, language, text))
                begun = None
    return out


BLOCKS = [block for page in PAGES for block in blocks_of(page)]
SHELL = [b for b in BLOCKS if b.language == "sh"]
PYTHON = [b for b in BLOCKS if b.language == "python"]

SMALL = {
    "generate": "--max-tokens 4",
    "chat": "--max-tokens 4",
    "verify": "--limit 1 --max-tokens 4",
    "bench": "--limit 1 --max-tokens 4 --repeat 1",
    "tune": "--seconds 1",
    "serve": "--port 0",
    "train lm": "--steps 2 --preset tiny-draft",
    "train draft": "--steps 2 --each 1 --max-tokens 4 --tokens 64",
    "train ngrams": "--each 1 --max-tokens 4",
    "train eagle": "--steps 2 --each 3 --max-tokens 16 --length 8 --texts 0",
    "train heads": "--steps 2 --each 3 --max-tokens 16 --length 8",
    "train probes": "--steps 2 --each 3 --max-tokens 16 --length 8",
    "train probe --recipe stop-head": "--steps 2 --each 3 --max-tokens 8",
    "train probe --recipe judge": "--steps 2 --each 3 --max-tokens 16",
    "train sorted": "--steps 2",
    "train diffusion": "--steps 2 --rows 2 --long 0",
    "train hypernetwork": "--steps 2 --texts 8 --length 16 --width 8",
    "train insertion": "--steps 2 --rows 2",
    "train probe --recipe filter": "--steps 2 --each 2",
    "train dparallel": "--steps 2 --each 2",
    "train deer": "--steps 2 --refine 2 --each 2 --max-tokens 16",
    "train joint": "--steps 2 --texts 4",
    "train reasoner": "--steps 2",
    "train probe --recipe outcome": "--steps 2 --each 4",
    "train probe --recipe prm": "--steps 2 --each 8",
    "train probe --recipe router": "--steps 2 --each 8",
    "train probe --recipe text-router": "--steps 2 --each 16",
    "train context": "--steps 4 --rows 2 --width 32",
    "train pictures": "--steps 2 --rows 2 --side 7 --width 32 --layers 1",
    "train upsampler": "--steps 2 --rows 2",
    "train patches": "--steps 2 --rows 2 --side 4 --width 32 --layers 1",
    "train recurrence": "--steps 2 --rows 2 --texts 8",
    "train hyperfit": "--epochs 1 --rows 2 --texts 4 --length 32",
}
"""What a command is given in addition, so that it ends soon: the last value of an option counts."""

INSTEAD = {
    "--finish": "--max-tokens 40",
    "--own": "--own 4",
    "conditional-beam": "--max-tokens 40",  # the answer must be as long as the condition says
    "--on": "--limit 1 --max-tokens 4 --best 1",
}
"""What it is given behind that where it has this flag."""

DROPPED = {"--compile"}  # torch.compile takes minutes, and the steps are the same

SWAPPED = {
    "echo": "prompt-lookup",  # the reader's own method in adding-a-method.md
    "plain,echo": "plain,prompt-lookup",
    "TUNED": "zoo:tiny",
    "BEFORE": "zoo:tiny-draft",
    "PROMPTS": "canvases.txt",
}
"""Words of commands, and what stands for them here; zoo:tiny stands for zoo:smollm2 too, but for the slow tests."""

NEEDS_MODEL = (
    *("generate", "chat", "verify", "bench", "tune", "batch", "detect", "explain", "serve"),
    *("embed", "classify", "demo"),
)
"""Commands whose model is zoo:smollm2 where none is named."""

SKIPPED = {
    r"pip install ": "it needs the network",
    r"polydec (zoo install|pull|rm) ": "it needs the network",
    r"polydec .*-GGUF": "it needs the network: tests/models/formats/test_hub.py has a cache of its own",
    r"(\w+=\S+ )?lm_eval ": "it needs the network: tests/serve/test_clients.py runs it on a task of ours",
    r"polydec harness ": "it needs the harness: tests/lab/bench/test_harness.py runs it on tasks of ours",
    r"polydec serve .*--replicas": "it starts processes of its own: tests/serve/test_replicas.py",
    r"polydec .*--model google/flan-t5": "no encoder-decoder travels with us: tests/models/sessions/test_sourced.py makes some",
    r"polydec .*--model out/gaps": "it needs a model that was trained with gaps: tests/lab/train/test_train_objectives.py",
    r"polydec .*--replicas": "it starts processes of its own: tests/serve/test_replicas.py",
}
"""Commands that do not run here, and why."""

FIRST = {
    "--model ar ": "polydec train diffusion --out ar --start zoo:diffusion --causal",
}
"""What a command reads that another block of its page makes, by what stands in it, and the command that makes it."""

HEAVY = r"-published|--kind hydra|train (diffusion|reasoner|insertion)"
"""Blocks with these take ten seconds of a core and more even in small: they run with -m slow, and their like in README.md."""

FITTED = r"zoo:smollm2-(states|draft|ngrams)"
"""What was made for zoo:smollm2 fits no other model: commands with these run where it is."""

FILES = {
    "questions.jsonl": '{"prompt": "What is 17 + 25?"}\n{"question": "Name a river."}\n',
    "IN.jsonl": '{"prompt": "Once upon", "max_tokens": 2}\n{"prompt": "The old", "max_tokens": 2}\n',
    "city.json": json.dumps(
        {
            "type": "object",
            "properties": {"city": {"type": "string", "maxLength": 5}},
            "required": ["city"],
        }
    ),
    "sum.lark": 'start: NUMBER "+" NUMBER\nNUMBER: /[0-9][0-9]?/\n',
    "canvases.txt": "count: 427\n",
    "pairs.jsonl": '{"prompt": "Name a river.", "answer": "The Rhine."}\n',
    "thoughts.jsonl": "".join(
        json.dumps(
            {
                "question": f"What is {n} + 5 - 2?",
                "thought": f"{n} + 5 = {n + 5}\n{n + 5} - 2 = {n + 3}",
                "answer": f"{n + 3}",
            }
        )
        + "\n"
        for n in range(24)
    ),
    "problems.jsonl": '{"prompt": "24 from 2 3 4 6"}\n{"prompt": "10 from 1 2 3 4"}\n',
    "story.txt": "Ada and Bruno meet at the old mill, and then they walk to the harbour.\n",
    "KEYS": "a-key-of-a-server-of-this-test\n",
}
"""Files that the commands read and that the pages do not make."""


def commands(text: str) -> list[str]:
    """The command lines of a block, without comments; a backslash at the end joins the next line."""
    joined = re.sub(r"\\\n\s*", " ", text)
    lines = (line for line in joined.split("\n") if shlex.split(line, comments=True))
    return [shlex.join(shlex.split(line, comments=True)) for line in lines]


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """A fresh clone: no data beside it, no profiles, and the files that commands read."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.delenv("POLYDEC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    small = {k: replace(v, rows=1, length=64) for k, v in lm.PRESETS.items()}  # of text a step
    monkeypatch.setattr(lm, "PRESETS", small)

    # What a sharpened model writes is measured without a cache: a minute of a core.
    def unwritten(network, rows_BT, count):
        return rows_BT.new_zeros(len(rows_BT), count)

    monkeypatch.setattr(hyperfit, "continue_greedily", unwritten)
    for name, content in FILES.items():
        (here / name).write_text(content)
    pixels = np.random.default_rng(0).integers(0, 256, (40, 28, 28), np.uint8)
    np.savez(here / "digits.npz", images=pixels, labels=np.arange(40) % 10)


class Shell:
    """Runs what stands in a block, in this process. real: on the models that it names."""

    def __init__(self, patch: pytest.MonkeyPatch, real: bool = False) -> None:
        self.patch, self.real = patch, real

    def run(self, line: str) -> str | None:
        """What is skipped of a line, and why; None where it ran."""
        why = next((why for begin, why in SKIPPED.items() if re.match(begin, line)), None)
        if why is None and re.search(FITTED, line) and not self.real:
            why = f"it fits {REAL} alone: it runs with -m slow"
        if why is not None:
            return why
        for mark, before in FIRST.items():
            if mark in line:
                self.run(before)
        words, given = shlex.split(line), ""
        if "|" in words:
            at = words.index("|")
            assert words[0] == "echo", f"only echo may stand before a pipe here: {line}"
            given, words = " ".join(words[1:at]) + "\n", words[at + 1 :]
        for sign in ("<", ">"):
            if sign in words:
                at = words.index(sign)
                name, words = words[at + 1], words[:at] + words[at + 2 :]
                if sign == "<":
                    given = Path(name).read_text()
                else:
                    Path(name).write_text(self.call(words, ""))
                    return None
        self.call(words, given)
        return None

    def call(self, words: list[str], given: str) -> str:
        program, *arguments = words
        program = program.removeprefix(".venv/bin/")
        assert program in PROGRAMS, (
            f"unknown program {program!r}: add it to this test, or mend the page"
        )
        return PROGRAMS[program](self, arguments, given)

    def polydec(self, arguments: list[str], given: str) -> str:
        read = re.compile(r"\$\(cat (\S+)\)")
        arguments = [read.sub(lambda m: Path(m[1]).read_text().strip(), a) for a in arguments]
        arguments = [SWAPPED.get(a, a) for a in arguments]
        if not self.real:
            arguments = [re.sub(r"^(.*=)?zoo:smollm2$", r"\1zoo:tiny", a) for a in arguments]
        name = arguments[0]
        if name == "train":
            name = " ".join(arguments[: 4 if "--recipe" in arguments else 2])
        told = "--repeat" in arguments  # by a certificate, which says all else
        more = " ".join(
            [
                "" if told else SMALL.get(name, ""),
                *(v for k, v in INSTEAD.items() if k in arguments),
            ]
        )
        arguments = [a for a in arguments if a not in DROPPED] + shlex.split(more)
        named = {"--model", "--models"} & set(arguments)
        if name in NEEDS_MODEL and not told and not named and not self.real:
            arguments += ["--model", "zoo:tiny"]
        self.patch.setattr(sys, "argv", ["polydec", *arguments])
        self.patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given.encode())))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), pytest.raises(SystemExit) as stop:
            main()
        assert not stop.value.code, f"polydec {shlex.join(arguments)}: exit code {stop.value.code}"
        return out.getvalue()

    def make(self, arguments: list[str], given: str) -> str:
        """Targets exist: what they would do is printed."""
        if shutil.which("make") is None:
            pytest.skip("there is no make")
        return subprocess.run(
            ["make", "-n", *arguments], cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout

    def python(self, arguments: list[str], given: str) -> str:
        """A script exists and takes these flags; it goes no further, as most of them measure for minutes."""
        script, flags = ROOT / arguments[0], arguments[1:]
        assert script.is_file(), f"there is no {arguments[0]}"
        if script.parent.name == "docs":
            return ""  # tests/project/test_docs.py runs them
        parse = argparse.ArgumentParser.parse_args

        class Parsed(BaseException):
            pass

        def then_stop(parser, *more, **fields):
            parse(parser, *more, **fields)
            raise Parsed

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", [str(script), *flags])
            patch.syspath_prepend(str(script.parent))
            patch.setattr(argparse.ArgumentParser, "parse_args", then_stop)
            with pytest.raises(Parsed):
                runpy.run_path(str(script), run_name="__main__")
        return ""

    def pytest(self, arguments: list[str], given: str) -> str:
        assert all((ROOT / a).exists() for a in arguments if a.startswith("tests")), arguments
        return ""


PROGRAMS = {
    "polydec": Shell.polydec,
    "make": Shell.make,
    "python": Shell.python,
    "pytest": Shell.pytest,
}


@pytest.fixture
def serving(monkeypatch):
    """`polydec serve` goes as far as a server that would listen now."""
    pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
    from polydec.serve import run

    monkeypatch.setattr(run, "run_server", lambda app, sock, *settings, **more: sock.close())


def test_every_block_says_what_it_is():
    assert [str(b) for b in BLOCKS if b.language not in ("sh", "python", "toml", "text")] == []
    assert [f"{page.name}:{n}" for page in PAGES for n in hidden(page)] == []
    for block in BLOCKS:
        if block.language == "toml":
            assert tomllib.loads(block.text)
        if block.language == "text":
            assert not re.match(r"(\$ )?(polydec|make|python|pip|pytest) ", block.text), (
                f"{block} is `sh`"
            )


@pytest.mark.parametrize("block", [b for b in SHELL if not re.search(HEAVY, b.text)], ids=str)
def test_commands_run(block, monkeypatch, serving):
    shell = Shell(monkeypatch)
    skipped = {line: shell.run(line) for line in commands(block.text)}
    if all(skipped.values()):
        pytest.skip("; ".join(dict.fromkeys(filter(None, skipped.values()))))


@pytest.mark.slow
@pytest.mark.parametrize("block", [b for b in SHELL if re.search(HEAVY, b.text)], ids=str)
def test_longer_commands_run(block, monkeypatch, serving):
    test_commands_run(block, monkeypatch, serving)


@pytest.mark.slow
@pytest.mark.skipif(
    not zoo.find_zoo_entry(REAL).here, reason=f"{REAL} is not here: polydec zoo install smollm2"
)
@pytest.mark.parametrize(
    "block", [b for b in SHELL if "smollm2" in b.text or "polydec generate" in b.text], ids=str
)
def test_commands_run_on_the_model_that_they_name(block, monkeypatch, serving):
    shell = Shell(monkeypatch, real=True)
    for line in commands(block.text):
        shell.run(line)


ELSEWHERE = {
    "docs/adding-a-method.md": "tests/project/test_guide.py runs it",
    "docs/api.md": "signatures, which docs/reference.py makes: only the first block is a program",
}


def elsewhere(block: Block) -> str | None:
    first = next(b for b in PYTHON if b.page == block.page)
    return None if block.page == "docs/api.md" and block is first else ELSEWHERE.get(block.page)


@pytest.mark.parametrize("block", [b for b in PYTHON if elsewhere(b) is None], ids=str)
def test_python_runs(block, monkeypatch, capsys):
    names = {"__name__": "page"}
    if block.page == "docs/sampling.md":  # a rule's file, whose imports the page leaves out
        from polydec.laws.shapers import min_p

        names |= vars(min_p)
    if "openai" in block.text:
        openai = pytest.importorskip("openai")
        testing = pytest.importorskip("fastapi.testclient")
        from polydec.serve.app import create_app

        small = polydec.load("zoo:tiny")
        assert small.costs  # measured here: a busy machine takes long, and clients do not wait
        app = create_app({REAL: lambda: small})
        client = testing.TestClient(app, base_url="http://127.0.0.1:8000")
        there = openai.OpenAI
        monkeypatch.setattr(openai, "OpenAI", lambda **given: there(**given, http_client=client))
        with client:
            exec(compile(block.text, str(block), "exec"), names)
        return
    exec(compile(block.text.replace(REAL, "zoo:tiny"), str(block), "exec"), names)
    capsys.readouterr()
