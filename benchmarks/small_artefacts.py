"""One small artefact of every kind that some method needs, trained in seconds: their guesses are poor, and a promise holds all
the same.

    python benchmarks/small_artefacts.py out/small          # what is there already is not made again

`benchmarks/clean_command.py --small out/small` runs `polydec verify` with them.
"""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polydec.cli.main import main as polydec

STATES = ("--target", "zoo:tiny", "--each", "2", "--max-tokens", "24", "--steps", "20")
SAMPLE = ("--data", "sample")
GOOD = ("a red boat sails", "the old river runs", "a bright morning song", "the quiet mill turns")
BAD = ("no no no no", "bad bad worse", "dull and dull again", "nothing but noise")
PAIRS = tuple(
    {"source": f"{one} {other} sat on the mat .", "target": f"{one} {other} sits on the mat ."}
    for one in ("A", "The", "My", "One")
    for other in ("cat", "dog", "bird", "fox", "hen", "mouse", "horse", "goat")
)


@dataclass(frozen=True)
class Made:
    """A directory that a command of `polydec train` makes. `{}` in a word is the folder of all of them."""

    name: str
    command: tuple[str, ...]

    def words(self, folder: Path) -> list[str]:
        out = ("--out", str(folder / self.name))
        return ["train", *(word.replace("{}", str(folder)) for word in self.command), *out]


def states(command: str, *kinds: str) -> list[Made]:
    return [
        Made(kind, (command, "--kind", kind, *STATES, *SAMPLE, "--length", "8")) for kind in kinds
    ]


NETWORK = ("--steps", "20", "--rows", "8")
FEW = ("--steps", "20", "--tokens", "512")
TRANSLATOR = ("--width", "64", "--encoder", "1", "--decoder", "1", "--vocab", "300", *FEW)
ALL = (
    *states("heads", "medusa", "hydra", "hydra++", "clover"),
    *states("eagle", "eagle", "eagle-3", "chimera", "falcon", "longspec"),
    *states("probes", "ppd", "hidden-transfer", "lud", "mtp"),
    Made("judge", ("judge", *STATES, *SAMPLE)),
    Made("stop-head", ("stop-head", *STATES, *SAMPLE)),
    Made("ngrams", ("ngrams", *STATES[:6], *SAMPLE, "--least", "1")),
    Made("reward", ("reward", "--good", "{}/good.txt", "--bad", "{}/bad.txt", "--steps", "40")),
    Made("reasoner", ("reasoner", "--width", "64", "--layers", "1", *NETWORK)),
    Made("router", ("router", "--draft", "{}/reasoner", "--each", "4", "--steps", "20")),
    Made(
        "causal", ("diffusion", "--start", "zoo:diffusion", "--causal", "--long", "288", *NETWORK)
    ),
    Made("joint", ("joint", "--texts", "16", *NETWORK)),
    Made("filter", ("filter", "--each", "4", "--steps", "40")),
    Made("value", ("value", "--reward", "{}/reward", "--each", "4", *NETWORK)),
    Made("insertion", ("insertion", "--width", "64", "--layers", "1", *NETWORK)),
    Made("repair", ("seq2seq", "--data", "{}/pairs.jsonl", *TRANSLATOR)),
    Made(
        "block-drafter",
        ("block-drafter", "--target", "{}/repair", "--data", "{}/pairs.jsonl", *FEW),
    ),
)


@dataclass(frozen=True)
class Setting:
    """What a method may be given: a model, a draft model, what was trained. Names without `zoo:` are those of ALL."""

    model: str
    draft: str = ""
    trained: tuple[str, ...] = ()
    family: str = "ar"
    dtype: str = ""

    def at(self, folder: Path) -> Setting:
        """The same with directories."""
        names = (self.model, self.draft, *self.trained)
        model, draft, *trained = (
            name if not name or ":" in name else str(folder / name) for name in names
        )
        return replace(self, model=model, draft=draft, trained=tuple(trained))

    @property
    def loaded(self) -> dict[str, Any]:
        """What `polydec.load` is told beside the model's name and what was trained; what is left out is as usual."""
        return {key: v for key, v in (("draft", self.draft), ("dtype", self.dtype)) if v}

    @property
    def flags(self) -> list[str]:
        words = (("--model", self.model), *((f"--{key}", v) for key, v in self.loaded.items()))
        return [word for pair in (*words, *(("--with", t) for t in self.trained)) for word in pair]


SETTINGS = (
    *(
        Setting("zoo:tiny", trained=(made.name,), dtype="torch" if made.name == "mtp" else "")
        for made in ALL
        if made.command[0] in ("heads", "eagle", "probes", "judge", "stop-head", "ngrams")
    ),
    Setting("zoo:reasoner", trained=("zoo:reasoner-prm",)),
    Setting("zoo:reasoner", "reasoner", ("zoo:reasoner-prm", "router")),
    Setting("zoo:tiny", trained=("reward",)),
    Setting("causal", "zoo:diffusion"),
    Setting("repair", trained=("block-drafter",)),
    *(
        Setting("zoo:diffusion", draft, trained, "diffusion")
        for draft, trained in (
            ("", ("joint",)),
            ("", ("filter",)),
            ("", ("value", "reward")),
            ("causal", ()),
        )
    ),
    Setting("zoo:block-diffusion", family="diffusion"),
    Setting("insertion", family="insertion"),
)


def texts(folder: Path) -> None:
    """What trainings read."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = {"good.txt": GOOD, "bad.txt": BAD, "pairs.jsonl": map(json.dumps, PAIRS)}
    for name, text in lines.items():
        (folder / name).write_text("\n".join(text) + "\n", "utf-8")


def command(line: Sequence[str]) -> tuple[int, str, str]:
    """Polydec's command line in this process: its exit code, and what came on both streams."""
    out, err = io.StringIO(), io.StringIO()
    sys.argv = ["polydec", *line]
    with redirect_stdout(out), redirect_stderr(err):
        try:
            polydec()
            code: Any = 0
        except SystemExit as stop:
            code = stop.code or 0
    return int(code), out.getvalue(), err.getvalue()


def main() -> None:
    folder = Path(sys.argv[1])
    texts(folder)
    for made in ALL:
        if (folder / made.name / "config.json").exists():
            continue
        before = time.process_time()
        code, _, err = command(made.words(folder))
        if code:
            raise SystemExit(f"{made.name}: {err.strip()}")
        print(f"{made.name}: {time.process_time() - before:.1f} s of a core", flush=True)


if __name__ == "__main__":
    main()
