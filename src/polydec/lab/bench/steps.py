"""What written steps buy: accuracy on word problems of automata, by the steps that a model may
write before it answers.

Source: Merrill and Sabharwal, The expressive power of transformers with chain of thought, ICLR
2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any

from pydantic import Field

from polydec.api import Engine, LoadedModel, load
from polydec.base.edge import error_sentence, read_json, validate_record
from polydec.base.errors import RequestError
from polydec.base.outside_records import StrictRecord
from polydec.lab.bench.intervals import shared_trials_interval
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.train.automata import (
    ANSWER,
    BUDGETS,
    END,
    TASKS,
    ScratchpadFormat,
    random_symbol_word,
)
from polydec.lab.train.envelope import RESULT
from polydec.lab.train.specs.steps import LONGEST

MADE_BY = "polydec train steps --out"
"""What makes the models."""

Length = Annotated[int, Field(ge=1, le=LONGEST)]


class StepsTrainingRecord(StrictRecord):
    """What a model was trained on.

    Attributes:
        task: Name of the automaton's task.
        budgets: Names of the budgets of steps, keys of `BUDGETS`.
        lengths: Lengths of the words, symbols.
        longest: Length of the longest test word, symbols.
        seed: Seed of its training.
    """

    task: str
    budgets: Annotated[list[str], Field(min_length=1, max_length=len(BUDGETS))]
    lengths: Annotated[list[Length], Field(min_length=1, max_length=LONGEST)]
    longest: Length
    seed: int


@dataclass(frozen=True)
class StepsModel:
    """A trained model and what it was trained on.

    Attributes:
        path: Its folder.
        about: What it was trained on.
    """

    path: Path
    about: StepsTrainingRecord

    @property
    def asked(self) -> list[int]:
        """Lengths of the test words: those of training, and a longer one."""
        return sorted({*self.about.lengths, self.about.longest})


def models_of(at: Path) -> list[StepsModel]:
    """The models of a folder: of itself, or of its subfolders, by name.

    Raises:
        RequestError: There is none, or the notes of one are damaged.
    """
    # The folder itself may be a model, or hold several of them.
    if at.is_dir():
        places = [at, *sorted(p for p in at.iterdir() if p.is_dir())]
    else:
        places = []
    models = [m for p in places if (p / RESULT).is_file() if (m := _model(p)) is not None]
    if not models:
        raise RequestError(
            error_sentence(f"from is {str(at)!r}: no model is there that `{MADE_BY} DIR` made")
        )
    return models


def _model(path: Path) -> StepsModel | None:
    """The model of a folder; None where something else was trained there."""
    content = read_json(path / RESULT)
    if not isinstance(content.get("about"), dict):
        return None
    # A training's notes hold more than is read here.
    known = {k: v for k, v in content["about"].items() if k in StepsTrainingRecord.model_fields}
    about = validate_record(
        StepsTrainingRecord, known, f"{path / RESULT} is not what `{MADE_BY}` wrote"
    )
    # Names of tasks and budgets must be known here, as they are looked up later.
    for name, value, among in (
        ("task", about.task, TASKS),
        *(("budgets", b, BUDGETS) for b in about.budgets),
    ):
        if value not in among:
            raise RequestError(
                error_sentence(f"{path / RESULT}: {name} is {value!r}, not of {', '.join(among)}")
            )
    return StepsModel(path, about)


@dataclass(frozen=True)
class BudgetAnswers:
    """Answers of one model to words of one length under one budget of steps.

    Attributes:
        words: Words that were asked.
        right: Answers that are right.
        forced: Answers whose mark was put there, as the model did not begin its answer in time.
        steps: Steps that were written, all together.
        passes: Passes of the model, all together.
    """

    words: int
    right: int
    forced: int
    steps: int
    passes: int


def answer_within_budget(
    lm: LoadedModel,
    writing: ScratchpadFormat,
    budget: str,
    length: int,
    words: int,
    method: MethodSetting,
) -> BudgetAnswers:
    """Let a model answer words greedily within a budget of written steps.

    The words are the same for every model of a task. Where the model does not begin its answer
    after the last step of the budget, the mark of an answer is put there.

    Args:
        lm: The trained model.
        writing: How words, steps and answers are written as token ids.
        budget: A key of `BUDGETS`: how many steps may be written, by the word's length.
        length: Symbols of each word.
        words: How many words are asked.
        method: The method that decodes the steps.

    Returns:
        The counts.
    """
    most = BUDGETS[budget](length)
    answer = writing.token_id(ANSWER)
    # Named by task, length and number alone: every model gets the same words.
    asked = [
        random_symbol_word(Random(f"asked {writing.task} {length} {i}"), length)
        for i in range(words)
    ]
    prompts = [writing.encode_prompt(x, budget) for x in asked]
    steps = [list[int]() for _ in asked]
    passes = 0
    forced = 0
    # First stage: the steps. Decoding stops at the mark of an answer, one token after the budget.
    if most:
        passes, outputs = _decode(lm, prompts, method, most + 1, (answer,))
        ends = (answer, writing.token_id(END))
        # Where the steps end: at a mark, or at the budget.
        cut = [next((i for i, t in enumerate(out) if t in ends), most) for out in outputs]
        # The token after the steps is not the mark of an answer: it is put there below.
        forced = sum(out[at : at + 1] != (answer,) for out, at in zip(outputs, cut, strict=True))
        steps = [list(out[: min(at, most)]) for out, at in zip(outputs, cut, strict=True)]
    # Second stage: the token after the mark is the answer, the automaton's last state.
    whole = [[*p, *s, answer] for p, s in zip(prompts, steps, strict=True)]
    more, states = _decode(lm, whole, MethodSetting("plain", {}), 1, ())
    # The state that the automaton reaches, as a token id.
    wanted = [writing.encode_answer(x, "none")[1] for x in asked]
    right = sum(out[:1] == (state,) for out, state in zip(states, wanted, strict=True))
    return BudgetAnswers(words, right, forced, sum(map(len, steps)), passes + more)


def _decode(
    lm: LoadedModel,
    prompts: Sequence[list[int]],
    method: MethodSetting,
    most: int,
    stops: Sequence[int],
) -> tuple[int, list[tuple[int, ...]]]:
    """Passes of the model, and the ids of each answer."""
    engine = Engine(lm)
    greedy = lm.sampling_with(temperature=0.0)
    tickets = [
        engine.submit(
            p,
            method=method.name,
            options=method.options,
            sampling=greedy,
            max_tokens=most,
            stop_token_ids=stops,
        )
        for p in prompts
    ]
    # All prompts at once; a pass of many rows is cheaper for each.
    done = engine.run(tickets)
    return sum(x.metrics["target_passes"] for x in done), [x.token_ids for x in done]


def steps_accuracy_rows(
    models: Sequence[StepsModel], method: MethodSetting, words: int
) -> Iterator[dict[str, Any]]:
    """Measure the accuracy of each task, budget and length.

    Args:
        models: Trained models, of one task or several; those of one task are seeds of one setting.
        method: The method that decodes the steps.
        words: Words of each length that a model is asked.

    Yields:
        A row for the table: accuracy over all models of a task with its 95 % interval, steps and
        passes a word, and the accuracy of guessing.
    """
    for task in dict.fromkeys(m.about.task for m in models):
        mine = [m for m in models if m.about.task == task]
        counted = dict[tuple[str, int], list[BudgetAnswers]]()
        for m in mine:
            # One model in memory at a time.
            lm = load(str(m.path))
            writing = ScratchpadFormat(task, m.about.longest)
            for budget in m.about.budgets:
                for length in m.asked:
                    counts = answer_within_budget(lm, writing, budget, length, words, method)
                    counted.setdefault((budget, length), []).append(counts)
        trained_on = {n for m in mine for n in m.about.lengths}
        for (budget, length), counts in counted.items():
            # Words of all seeds together; the interval is the wider one over seeds and over words.
            total = sum(c.words for c in counts)
            # Networks of several seeds answer the same words, so their counts are not independent.
            each = [c.right / c.words for c in counts]
            low, high = shared_trials_interval(each, total)
            yield {
                "task": task,
                "budget": budget,
                "length": length,
                "trained_on": length in trained_on,
                "steps": sum(c.steps for c in counts) / total,
                "right": sum(c.right for c in counts) / total,
                "low": low,
                "high": high,
                "each_seed": each,
                "chance": TASKS[task].naming_chance(length),
                "forced": sum(c.forced for c in counts) / total,
                "passes": sum(c.passes for c in counts) / total,
                "words": total,
            }
