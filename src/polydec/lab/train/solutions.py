"""Solutions that a model draws itself, and which of their tokens are right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

from polydec.lab.train import problems, selfplay
from polydec.lab.train.problems import ReasoningProblem
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.selfplay import SamplingMode
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.text.tokenizer import Tokenizer

LONGEST = 96
"""Tokens of a solution at most."""


@dataclass(frozen=True)
class LabelledSolution:
    """A solution of a problem.

    Attributes:
        problem: The problem.
        prompt_ids: Token ids that the model went on from.
        output_ids: What it wrote.
        right: Of each of its tokens, whether all up to it may begin a right solution; of an end of
            the text, whether it is one.
    """

    problem: ReasoningProblem
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]
    right: tuple[bool, ...]


def draw_solutions(
    path: Path,
    point: ModelBundle,
    kinds: Sequence[str],
    each: int,
    *,
    temperature: float,
    seed: int,
    unseen: bool = False,
) -> list[LabelledSolution]:
    """Let a model solve problems, and label the tokens of its solutions.

    Args:
        path: File that keeps the solutions; what stands there already is not drawn anew.
        point: The model.
        kinds: Of problems.
        each: Problems of each kind.
        temperature: At which it solves them.
        seed: Names the problems and the draws.
        unseen: Take problems that are held out from training.

    Returns:
        A solution of each problem, in the order of the file.
    """
    asked = dict[tuple[int, ...], ReasoningProblem]()
    for i in range(each):
        # A kind that is named twice is drawn once.
        for kind in dict.fromkeys(kinds):
            problem = problems.draw_problem(kind, seed, i, unseen)
            # Two problems of one text are one: solutions are found again by their prompt.
            asked[point.text.chat_prompt([{"role": "user", "content": problem.question}])] = problem
    with show_count_progress(f"{'held-out ' * unseen}solutions", every=500) as watch:
        selfplay.collect_answers(
            path,
            point.lm,
            [(p.kind, ids, SamplingMode(temperature, 1.0)) for ids, p in asked.items()],
            max_tokens=LONGEST,
            seed=seed,
            live=64,
            watch=watch,
        )
    eos = point.lm.vocab.eos
    return [
        LabelledSolution(
            p, s.prompt_ids, s.output_ids, right_token_flags(p, point.text, s.output_ids, eos)
        )
        for s in selfplay.read_samples(path, point.lm.vocab.size)
        # The file may hold solutions of an earlier run with other problems.
        if (p := asked.get(s.prompt_ids)) is not None
    ]


def right_token_flags(
    problem: ReasoningProblem, text: Tokenizer, tokens: Sequence[int], eos: frozenset[int]
) -> tuple[bool, ...]:
    """Ask the checker of a problem about each token of a solution.

    Args:
        problem: The problem.
        text: Turns tokens into text.
        tokens: The solution.
        eos: Tokens that end a text.

    Returns:
        Of each token, as `LabelledSolution` says.
    """
    ended = bool(tokens) and tokens[-1] in eos
    # A special token reads as nothing: it has a character of its own, which no solution has.
    pieces = [text.decode((x,)) or "\0" for x in tokens[: len(tokens) - ended]]
    written = "".join(pieces)
    until = problems.right_until(problem, written)
    begun = tuple(end <= until for end in accumulate(map(len, pieces)))
    if ended:
        return (*begun, problems.is_right_solution(problem, written))
    return begun
