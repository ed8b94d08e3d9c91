"""Questions with thoughts and answers of one's own: what chains of thought in vectors are trained on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from polydec.base.edge import error_sentence, validate_record
from polydec.base.errors import FileError, RequestError
from polydec.base.outside_records import StrictRecord
from polydec.lab.train.data import ASSISTANT, BEGIN, END, SPECIAL, USER, held_out
from polydec.lab.train.envelope import TrainingRun, run_identity
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.own_model import OwnContextModel, own_model_schedule
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.models.formats import text_rows

UNREAD = -100
"""The target of a place that no loss looks at."""


class ThoughtLineRecord(StrictRecord):
    """A line of a file of thoughts.

    Attributes:
        question: What is asked.
        thought: The steps before the answer, a line each or a list; where the answer is a list, the
            thought before each of its parts.
        answer: The answer, or its parts.
    """

    question: str
    thought: str | list[str]
    answer: str | list[str]


@dataclass(frozen=True)
class ThoughtRow:
    """A question, and an answer with thoughts before its parts.

    Attributes:
        question: What is asked.
        thoughts: The thought before each part, its steps separated by line ends.
        answers: The parts, as many.
    """

    question: str
    thoughts: tuple[str, ...]
    answers: tuple[str, ...]

    @property
    def steps(self) -> tuple[str, ...]:
        """The steps of all thoughts, in order."""
        return tuple(line for thought in self.thoughts for line in thought.split("\n") if line)


def read_thought_rows(path: Path, marks: Sequence[str]) -> list[ThoughtRow]:
    """Read the rows of a .jsonl file, or of a folder of such files.

    Args:
        path: The file or the folder.
        marks: Special tokens that no text may hold, besides the usual ones.

    Returns:
        The rows, in the order of the files.

    Raises:
        FileError: A line is wrong, or there is none; one sentence says which.
    """
    out = list[ThoughtRow]()
    for file in text_rows.list_text_files(path):
        if not file.name.removesuffix(".gz").endswith(".jsonl"):
            raise FileError(
                error_sentence(
                    f"data is {str(file)!r}: thoughts are lines of .jsonl with question, thought and answer"
                )
            )
        for where, fields in text_rows.read_json_lines(file):
            # Other fields of a line, such as an id, are legal and unread.
            known = {k: v for k, v in fields.items() if k in ThoughtLineRecord.model_fields}
            row = _row_of(validate_record(ThoughtLineRecord, known, where), where)
            # A text that holds a mark would be read as another layout.
            for mark in (*SPECIAL, *marks):
                if any(mark in text for text in (row.question, *row.thoughts, *row.answers)):
                    raise FileError(
                        error_sentence(f"{where}: it holds {mark}, which parts a text here")
                    )
            out.append(row)
    if not out:
        raise FileError(error_sentence(f"data is {str(path)!r}: there is no line in it"))
    return out


def _row_of(line: ThoughtLineRecord, where: str) -> ThoughtRow:
    """The row of a line. Raises FileError where thoughts and answers do not fit together."""
    # A list beside a single answer holds the steps of its one thought.
    if isinstance(line.answer, str):
        answers = (line.answer,)
        thoughts = ("\n".join(line.thought) if isinstance(line.thought, list) else line.thought,)
    else:
        answers = tuple(line.answer)
        thoughts = (line.thought,) if isinstance(line.thought, str) else tuple(line.thought)
    # A part without a thought, or a thought without a part, has no place in an answer.
    if not answers or len(thoughts) != len(answers):
        raise FileError(
            error_sentence(
                f"{where}: answer has {len(answers)} parts and thought {len(thoughts)}: each part needs the thought before it"
            )
        )
    if not line.question or not all(thoughts) or not all(answers):
        raise FileError(error_sentence(f"{where}: question, thought or answer is empty"))
    return ThoughtRow(line.question, thoughts, answers)


@dataclass(frozen=True)
class ThoughtRowSplit:
    """Rows to learn from, and held-out ones: those whose question has a `hash_bucket` of 7 to 9.

    Attributes:
        learned: Rows to learn from.
        unseen: Held-out rows that are measured.
    """

    learned: tuple[ThoughtRow, ...]
    unseen: tuple[ThoughtRow, ...]

    @property
    def row_digest(self) -> str:
        """A digest that tells these rows from others."""
        return hashlib.sha1(repr((self.learned, self.unseen)).encode()).hexdigest()

    def draw_rows(self, seed: int, step: int, count: int) -> list[ThoughtRow]:
        """The rows of a step, drawn without repetition.

        Args:
            seed: Seed of the run.
            step: Step of the training.
            count: Rows of a step.

        Returns:
            The rows.
        """
        order_N = torch.randperm(len(self.learned), generator=generator_for(seed, step, "rows"))
        return [self.learned[i] for i in order_N[:count].tolist()]


def split_thought_rows(
    spec: ContextSpec, marks: Sequence[str], fits: Callable[[ThoughtRow], bool]
) -> ThoughtRowSplit:
    """Read the rows of a spec.

    Args:
        spec: Options; `data`, `texts`, `tries` and `rows` are read.
        marks: Special tokens that no text may hold.
        fits: Whether the model has room for a row; others are left out.

    Returns:
        The rows.

    Raises:
        RequestError: There are fewer than a step takes, or none is held out.
    """
    assert spec.data is not None
    # The question alone decides on which side a row lies, whatever its thought is.
    rows = [row for row in read_thought_rows(Path(spec.data), marks) if fits(row)]
    unseen = [row for row in rows if held_out(row.question)]
    learned = [row for row in rows if not held_out(row.question)]
    if len(learned) < spec.rows or not unseen:
        raise RequestError(
            error_sentence(
                f"data has {len(learned)} questions to learn and {len(unseen)} held out that fit into the model's context: "
                f"it needs at least rows ({spec.rows}) and 1"
            )
        )
    return ThoughtRowSplit(tuple(learned[: spec.texts]), tuple(unseen[: spec.tries]))


@dataclass(frozen=True, eq=False)
class ThoughtRowTokens:
    """Rows in the tokens of a model, laid out as its chat template does.

    Attributes:
        model: The model with its tokenizer.
    """

    model: OwnContextModel

    def question_tokens(self, row: ThoughtRow) -> tuple[int, ...]:
        """All that stands before the mark of an answer: BEGIN, the user's mark, the question, END."""
        mark = self.model.mark_token
        return (mark(BEGIN), mark(USER), *self.model.text_tokens(row.question), mark(END))

    def answer_tokens(self, text: str) -> tuple[int, ...]:
        """The assistant's mark, a text, and END."""
        mark = self.model.mark_token
        return (mark(ASSISTANT), *self.model.text_tokens(text), mark(END))


def pad_token_rows(rows: Sequence[Sequence[int]], value: int = 0) -> Tensor:
    """Rows of tokens side by side, filled up at their ends.

    Args:
        rows: Token ids, B rows.
        value: What fills them up. Default 0.

    Returns:
        Shape ``[B, T]``.
    """
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=value)


def foretold_targets(rows: Sequence[Sequence[int]], first: Sequence[int]) -> Tensor:
    """What each place must foretell: the token behind it, from some token of each row on.

    Args:
        rows: Token ids of each row.
        first: Index of the first token that is foretold, at least 1.

    Returns:
        Targets, shape ``[B, T]``; UNREAD where nothing is asked for.
    """
    # The place before a token foretells it; nothing follows the last one.
    told = [
        [UNREAD] * (at - 1) + list(row[at:]) + [UNREAD] for row, at in zip(rows, first, strict=True)
    ]
    return pad_token_rows(told, UNREAD)


def written_answer_loss(
    network: TrainableLlama, rows: Sequence[Sequence[int]], first: Sequence[int]
) -> Tensor:
    """The loss of texts that are written token by token.

    Args:
        network: The model in training.
        rows: Token ids of each text.
        first: Index of the first token of each that is learned.

    Returns:
        Nats a token.
    """
    logits_BTV = network(pad_token_rows(rows))
    goal_BT = foretold_targets(rows, first)
    return F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten(), ignore_index=UNREAD)


@torch.no_grad()
def foretold_shares(logits_BTV: Tensor, goal_BT: Tensor) -> tuple[float, float]:
    """How well answers are foretold.

    Args:
        logits_BTV: Logits at all places, shape ``[B, T, V]``.
        goal_BT: What is foretold there, UNREAD elsewhere, shape ``[B, T]``.

    Returns:
        Nats a token, and the share of rows of which every token is the likeliest one: those that
        greedy decoding writes as they are.
    """
    nats = F.cross_entropy(logits_BTV.flatten(0, 1), goal_BT.flatten(), ignore_index=UNREAD)
    # Where nothing is asked for, nothing can be wrong.
    right_BT = (logits_BTV.argmax(-1) == goal_BT) | (goal_BT == UNREAD)
    return float(nats), float(right_BT.all(1).float().mean())


@torch.no_grad()
def greedily_ended(
    network: TrainableLlama, asked: Sequence[int], ends: Sequence[int], longest: int
) -> bool:
    """Whether the greedy text behind a question ends with the right answer.

    Args:
        network: The model, which may write steps first.
        asked: Token ids of the question, the mark of the answer last.
        ends: The answer and END.
        longest: Tokens that may be written.

    Returns:
        Whether END is written, and the answer stands right before it.
    """
    # One row at a time: no row waits for a longer one.
    trunk = network.model
    state, past = forward_with_past(trunk, trunk.embed_tokens(torch.tensor([list(asked)])))
    wrote = list[int]()
    # No text is longer than the model has positions.
    for _ in range(min(longest, network.s.context - len(asked))):
        wrote.append(int(network.token_logits(trunk.norm(state[:, -1:])).argmax()))
        # END closes the text, right or wrong.
        if wrote[-1] == ends[-1]:
            break
        state, past = forward_with_past(trunk, trunk.embed_tokens(torch.tensor([wrote[-1:]])), past)
    return tuple(wrote[-len(ends) :]) == tuple(ends)


def written_rows_course(
    spec: ContextSpec, tokens: ThoughtRowTokens, split: ThoughtRowSplit
) -> TrainingRun:
    """What trains the same model without vectors: to answer at once, or behind written steps.

    Args:
        spec: Options; `reasoning` says which.
        tokens: Lays rows out.
        split: The rows.

    Returns:
        The training; `right` is the share of held-out questions whose greedy text ends with the
        right answer.
    """
    network = tokens.model.network.requires_grad_(True)
    # The control without steps is the same training, and its texts are shorter.
    steps = spec.reasoning == "chain"

    def written_row(row: ThoughtRow) -> tuple[tuple[int, ...], int]:
        # Of a written chain the steps stand before the whole answer, a line each.
        told = "\n".join((*(row.steps if steps else ()), "".join(row.answers)))
        asked = tokens.question_tokens(row)
        return (*asked, *tokens.answer_tokens(told)), len(asked) + 1

    def step_loss(step: int) -> tuple[Tensor, int]:
        made = [written_row(row) for row in split.draw_rows(spec.seed, step, spec.rows)]
        rows = [row for row, _ in made]
        return written_answer_loss(network, rows, [at for _, at in made]), sum(map(len, rows))

    def measure_result() -> Mapping[str, Any]:
        right = list[bool]()
        for row in split.unseen:
            ids, at = written_row(row)
            ends = tokens.answer_tokens("".join(row.answers))[1:]
            # Twice as long as the right text: a chain may be longer than the given one.
            right.append(greedily_ended(network, ids[:at], ends, 2 * (len(ids) - at)))
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "right": sum(right) / len(right),
        }

    return TrainingRun(
        network,
        step_loss,
        own_model_schedule(spec),
        run_identity(spec, rows_read=split.row_digest),
        lambda out, _: tokens.model.save_own(out, network),
        measure_result,
    )
