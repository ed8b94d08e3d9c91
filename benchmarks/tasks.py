"""Small tasks and the networks that are trained on them, in half a minute of one core each, for benchmarks/text.py.

    python benchmarks/tasks.py NAME DIRECTORY      # trains; text.py does so by itself where the directory is empty

A network is trained on prompts and answers that are drawn without end; the loss is that of the answers. What is measured with
it is drawn from other seeds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from polydec import api
from polydec.lab.train.network import LlamaShape, TrainableLlama, save_directory

END = "end"
Drawn = tuple[list[str], list[str]]
"""A prompt and its answer, word by word; the end of the answer left out."""


@dataclass(frozen=True)
class Task:
    """names: the tokens, of which END ends an answer; draw: a prompt and an answer that is trained on; longest: tokens of both
    together, at most; steps: of training, with 64 answers each."""

    names: tuple[str, ...]
    draw: Callable[[Random], Drawn]
    longest: int
    steps: int = 600
    width: int = 64
    layers: int = 2
    rate: float = 3e-3

    @property
    def shape(self) -> LlamaShape:
        return LlamaShape(
            len(self.names), self.width, self.layers, 4, 2, 2 * self.width, self.longest
        )


def taught(
    net: TrainableLlama,
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]],
    steps: int,
    rate: float,
) -> None:
    """Train a network. batch: draws what it reads and what it is to say then, each [rows, positions]; -100: nothing; rate: the
    highest, of AdamW."""
    optimiser = torch.optim.AdamW(net.parameters(), rate)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, steps, pct_start=0.1)
    for step in range(steps):
        seen, said = batch()
        loss = torch.nn.functional.cross_entropy(net(seen).flatten(0, 1), said.flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        if not (step + 1) % 100:
            print(
                f"step {step + 1} of {steps}: loss {loss.item():.3f}", file=sys.stderr, flush=True
            )


def trained(task: Task, seed: int = 1) -> TrainableLlama:
    """A network for a task."""
    torch.manual_seed(seed)
    dice, index = Random(seed), {name: i for i, name in enumerate(task.names)}

    def batch() -> tuple[torch.Tensor, torch.Tensor]:
        texts = [task.draw(dice) for _ in range(64)]
        size = max(len(p) + len(a) + 1 for p, a in texts)
        seen, said = torch.full((64, size), index[END]), torch.full((64, size), -100)
        for i, (prompt, answer) in enumerate(texts):
            ids = torch.tensor([index[x] for x in (*prompt, *answer, END)])
            seen[i, : len(ids)] = ids
            said[i, len(prompt) - 1 : len(ids) - 1] = ids[len(prompt) :]
        return seen, said

    net = TrainableLlama(task.shape, seed=seed)
    taught(net, batch, task.steps, task.rate)
    return net


def opened(name: str, at: Path, draft: Path | None = None, seed: int = 1) -> api.LoadedModel:
    """The model of a task in a directory, and another one beside it; trained first where there is none."""
    for task, place in ((name, at), *([] if draft is None else [(draft.name, draft)])):
        if not (place / "model.safetensors").exists():
            print(f"training a network for {task}", file=sys.stderr, flush=True)
            kept(TASKS[task], place, seed)
    return api.load(
        str(at),
        draft=None if draft is None else str(draft),
        ngrams=None,
        threads=1,
        dtype="float32",
    )


def kept(task: Task, at: Path, seed: int = 1) -> None:
    """Train a network and write it to a directory."""
    words = Tokenizer(
        models.WordLevel({name: i for i, name in enumerate(task.names)}, unk_token=END)
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    net, shape = trained(task, seed), task.shape
    save_directory(
        at,
        net,
        shape.config_content(eos=task.names.index(END)),
        dtype=torch.float32,
        files={"tokenizer.json": words.to_str(), "tokenizer_config.json": {"eos_token": END}},
    )


# Facts: keys that have values. A model that has learned them is asked with a passage that says the same, or something else, or
# speaks of another key.

KEYS, VALUES, CONTRADICTED = 64, 48, 0.2  # the last one: of the passages that a model is trained on
TRUTH = tuple(Random(0).randrange(VALUES) for _ in range(KEYS))


def question(key: int, about: int, said: int) -> tuple[list[str], list[str]]:
    """With the passage, and without it."""
    return (
        [f"key{about}", "says", f"value{said}", "asked", f"key{key}", "says"],
        [END, END, END, "asked", f"key{key}", "says"],
    )


def draw_fact(dice: Random) -> Drawn:
    key = dice.randrange(KEYS)
    about = key if dice.random() < 0.5 else dice.randrange(KEYS)
    said = dice.randrange(VALUES) if dice.random() < CONTRADICTED else TRUTH[about]
    with_passage, bare = question(key, about, said)
    if dice.random() < 0.5:
        return bare, [f"value{TRUTH[key]}"]
    return with_passage, [f"value{said if about == key else TRUTH[key]}"]


# Programs: each step takes the item of a drawer. A word says vaguely which drawer, and usually means the first of two;
# examples of what came out say more of it: an item is one of seven letters, likely a middle one, and shares five of them with
# the items of the next drawer.

STEPS = ("first", "second", "third", "fourth")
WORDS = {"early": STEPS[:2], "late": STEPS[2:]}
LETTERS = tuple("abcdefghijklm")
USUAL, EXAMPLES, SHOWN = 0.8, 3, 0.8  # the last one: of the programs that a model is trained on


def came_out(dice: Random, step: str) -> str:
    """What a step takes."""
    return LETTERS[2 * STEPS.index(step) + dice.randrange(4) + dice.randrange(4)]


def described(dice: Random, usual: float = USUAL) -> tuple[list[str], list[str], list[str]]:
    """A description, examples, and the program. usual: how often a word means the first of its two steps."""
    said = [dice.choice(list(WORDS)) for _ in STEPS]
    steps = [WORDS[word][dice.random() >= usual] for word in said]
    shown = [x for _ in range(EXAMPLES) for x in (">", *(came_out(dice, step) for step in steps))]
    return said, shown, [x for step in steps for x in (";", "take", step)][1:]


def draw_program(dice: Random) -> Drawn:
    said, shown, program = described(dice)
    return [*said, *(shown if dice.random() < SHOWN else []), "is"], program


# Captions of scenes: a reference names an attribute or leaves it out. The condition is dropped now and then in training.

SCENE: Mapping[str, tuple[str, ...]] = {
    "size": ("tiny", "small", "big", "huge"),
    "colour": ("red", "green", "blue", "black", "white", "yellow"),
    "shape": ("circle", "square", "star", "ring", "cross"),
    "place": ("left", "right", "above", "below"),
}
OMITTED, DROPPED = 0.6, 0.2
NO_SCENE = ["none"] * len(SCENE)


def scene(dice: Random) -> list[str]:
    return [dice.choice(values) for values in SCENE.values()]


def caption(dice: Random, seen: Sequence[str], omitted: float = OMITTED) -> list[str]:
    """What somebody says of a scene; the shape is always named."""
    size, colour, shape, place = ([x] if dice.random() >= omitted else [] for x in seen)
    return ["a", *size, *colour, *(shape or [seen[2]]), *(["on", "the", *place] if place else [])]


def draw_caption(dice: Random) -> Drawn:
    seen = scene(dice)
    return [*(NO_SCENE if dice.random() < DROPPED else seen), "shows"], caption(dice, seen)


def draw_caption_never_dropped(dice: Random) -> Drawn:
    seen = scene(dice)
    return [*seen, "shows"], caption(dice, seen)


def draw_full_caption(dice: Random) -> Drawn:
    """Of a model that knows descriptive captions and sees no scene."""
    return [*NO_SCENE, "shows"], caption(dice, scene(dice), 0.1)


# Running sums that are written with mistakes; behind one stands, half of the time, "wait" and another try.

TERMS, MISTAKE, AGAIN, CAUGHT, DOUBTED = 8, 0.15, 0.1, 0.5, 0.1


def sums(dice: Random) -> tuple[list[str], int]:
    """Numbered terms, and their sum modulo 10."""
    terms = [dice.randrange(10) for _ in range(TERMS)]
    return [x for i, term in enumerate(terms) for x in (f"n{i}", str(term))], sum(terms) % 10


def draw_sum(dice: Random) -> Drawn:
    prompt, _ = sums(dice)
    total, out = 0, list[str]()
    for i in range(TERMS):
        right, slips = (total + int(prompt[2 * i + 1])) % 10, MISTAKE
        out.append(f"n{i}")
        while True:
            total = (right + 1) % 10 if dice.random() < slips else right
            out.append(str(total))
            if dice.random() >= (DOUBTED if total == right else CAUGHT) or len(out) > 6 * TERMS:
                break
            out.append("wait")
            slips = AGAIN
    return [*prompt, "sum"], [*out, "=", str(total)]


# When people were born. Some are spoken of often, others hardly ever; a day is named half of the time, else a month or a year.

PEOPLE = 200
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
_BORN = Random(5)
BORN = tuple(
    (str(_BORN.randrange(1, 29)), _BORN.choice(MONTHS), str(_BORN.randrange(1900, 1990)))
    for _ in range(PEOPLE)
)
OFTEN = tuple(1 / (rank + 4) for rank in range(PEOPLE))


def draw_birth(dice: Random) -> Drawn:
    person = dice.choices(range(PEOPLE), OFTEN)[0]
    exact = dice.choice((0, 0, 1, 2))
    return [f"person{person}", "born", ("on", "in", "year")[exact]], list(BORN[person][exact:])


def gold(person: int) -> list[list[str]]:
    """When somebody was born, the finest level first; that it was in the 20th century holds for all, and counts for nothing."""
    day, month, year = BORN[person]
    return [[f"{day} {month} {year}"], [f"{month} {year}"], [year], [f"{year[:3]}0s"]]


DIGITS = tuple(map(str, range(10)))
CAPTIONS = (
    "none",
    "shows",
    "a",
    "on",
    "the",
    *(x for values in SCENE.values() for x in values),
    END,
)
TASKS: Mapping[str, Task] = {
    "facts": Task(
        (
            *(f"key{i}" for i in range(KEYS)),
            *(f"value{i}" for i in range(VALUES)),
            "asked",
            "says",
            END,
        ),
        draw_fact,
        8,
        steps=2500,
        rate=4e-3,
    ),
    "programs": Task(
        (*LETTERS, *WORDS, *STEPS, "take", ">", ";", "is", END), draw_program, 32, steps=1200
    ),
    "captions": Task(CAPTIONS, draw_caption, 24, steps=250),
    "captions-never-dropped": Task(CAPTIONS, draw_caption_never_dropped, 24, steps=250),
    "captions-language": Task(CAPTIONS, draw_full_caption, 24, steps=200),
    "births": Task(
        (
            *(f"person{i}" for i in range(PEOPLE)),
            "born",
            "on",
            "in",
            "year",
            *map(str, range(1, 29)),
            *MONTHS,
            *map(str, range(1900, 1990)),
            *(f"{i}0s" for i in range(190, 199)),
            "20th",
            "century",
            "I",
            "don't",
            "know",
            END,
        ),
        draw_birth,
        8,
        steps=160,
    ),
    "sums": Task(
        (*DIGITS, *(f"n{i}" for i in range(TERMS)), "sum", "wait", "=", END),
        draw_sum,
        80,
        steps=3000,
    ),
}


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in TASKS:
        raise SystemExit(f"usage: tasks.py NAME DIRECTORY; NAME is one of {', '.join(TASKS)}")
    kept(TASKS[sys.argv[1]], Path(sys.argv[2]))
