"""What a target writes itself, and its states there: what heads and drafters are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.lab.train import selfplay
from polydec.lab.train.data import training_data
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.selfplay import PassRecorder, SamplingMode, TrainingSample
from polydec.models.sessions.checkpoint import ModelBundle
from polydec.models.sessions.lm import CausalLaw
from polydec.models.text.tokenizer import Tokenizer


class TrainingTextSpec(Protocol):
    """The options that say which text a training wants."""

    @property
    def out(self) -> str: ...
    @property
    def data(self) -> str | None: ...
    @property
    def text(self) -> str | None: ...
    @property
    def each(self) -> int: ...
    @property
    def max_tokens(self) -> int: ...
    @property
    def seed(self) -> int: ...


class SampledTextSpec(TrainingTextSpec, Protocol):
    """The same, with the temperature at which the target writes."""

    @property
    def temperature(self) -> float: ...


def write_text(
    point: ModelBundle, path: Path, data: str | None, each: int, *, max_tokens: int, seed: int
) -> None:
    """Let the target answer prompts, each in a sampling mode of its own, and write the answers.

    A tenth as many held-out prompts are answered into held.jsonl beside the file. Answers that are
    there already are not made again.

    Args:
        point: The target and its tokenizer.
        path: File to write, JSON lines.
        data: Where the prompts are, as in `training_data`.
        each: Prompts of each kind.
        max_tokens: Tokens of an answer, at most.
        seed: Seed of prompts and answers.
    """
    # Held-out answers only measure, so a tenth is enough.
    for file, count, unseen in (
        (path, each, False),
        (path.with_name("held.jsonl"), max(1, each // 10), True),
    ):
        with show_count_progress(f"writing {file.name}") as watch:
            selfplay.write_answers(
                file,
                point.lm,
                point.text,
                training_data(data),
                count,
                max_tokens=max_tokens,
                seed=seed,
                unseen=unseen,
                watch=watch,
            )


def answer_text_path(spec: SampledTextSpec, unseen: bool) -> Path:
    """Where `gather_target_text` keeps the target's answers.

    Args:
        spec: Options; `text` names a file that is there already.
        unseen: Whether the held-out answers are meant.

    Returns:
        The file.
    """
    if spec.text and not unseen:
        return Path(spec.text)
    return Path(spec.out) / ("held.jsonl" if unseen else "text.jsonl")


def gather_target_text(
    spec: SampledTextSpec,
    lm: CausalLaw,
    text: Tokenizer,
    unseen: bool,
    record: PassRecorder | None = None,
    *,
    mixed: bool = False,
) -> list[TrainingSample]:
    """The target's answers, written now or read from an earlier run.

    They are kept in out/text.jsonl (held-out prompts: held.jsonl, a third as many).

    Args:
        spec: Options; which text is wanted, and at which temperature.
        lm: The target.
        text: Its tokenizer.
        unseen: Whether held-out prompts are answered.
        record: Keeps what the target's passes give while it writes; None: nothing is kept.
        mixed: Whether every prompt has a sampling mode of its own; else all are without a penalty
            at the spec's temperature. Default False.

    Returns:
        Prompts with answers that are not empty.

    Raises:
        RequestError: There is no answer in the file.
    """
    path = answer_text_path(spec, unseen)
    if not path.exists():
        part = path.with_name(
            f"{path.stem}.part.jsonl"
        )  # what an interrupted run has collected counts
        selfplay.write_answers(
            part,
            lm,
            text,
            training_data(spec.data),
            max(1, spec.each // 3) if unseen else spec.each,
            unseen=unseen,
            max_tokens=spec.max_tokens,
            seed=spec.seed,
            live=32,
            mode=None if mixed else SamplingMode(spec.temperature, 1.0),
            longest=800,
            # A prompt must leave room for a full answer.
            room=spec.max_tokens,
            record=record,
        )
        # The final name appears only when all answers are there.
        part.rename(path)
    # An answer is empty where the target ends at once.
    samples = [s for s in selfplay.read_samples(path, lm.vocab.size) if s.output_ids]
    if not samples:
        raise RequestError(
            f"text is {str(path)!r}: it holds no answer, so delete it and give other prompts (--data)"
        )
    return samples


WINDOW = 3
"""Tokens that a drafter may read with a state, at most."""


@dataclass(frozen=True, eq=False)
class TargetTextStates:
    """The target's states over its texts, prompts included, text after text.

    A row is a position with a next token.

    Attributes:
        state_NH: State before each token, as sessions give them, shape ``[N, H]``.
        entry_ND: States at the depths that a drafter reads, side by side, shape ``[N, D]``; without
            depths `state_NH`.
        window_NW: The last W tokens up to the one written there, shape ``[N, W]``; the first token
            is repeated where there are fewer.
        answer_N: Whether the target wrote the token, shape ``[N]``.
        number_N: Number of the text, shape ``[N]``.
        end_N: Row where that text ends, shape ``[N]``.
    """

    state_NH: Tensor
    entry_ND: Tensor
    window_NW: Tensor
    answer_N: Tensor
    number_N: Tensor
    end_N: Tensor

    @staticmethod
    def of_samples(
        lm: CausalLaw, samples: Sequence[TrainingSample], depths: Sequence[int] = ()
    ) -> TargetTextStates:
        """Let the target read some texts.

        Args:
            lm: The target.
            samples: Prompts with answers.
            depths: Layers after which a drafter reads states. Default: none.

        Returns:
            The states over all texts.
        """
        made = [read_target_states(lm, (*s.prompt_ids, *s.output_ids), depths) for s in samples]
        state, entry = (torch.cat(rows) for rows in zip(*made, strict=True))
        return TargetTextStates.of_states(samples, state, entry)

    @staticmethod
    def of_states(
        samples: Sequence[TrainingSample], state_NH: Tensor, entry_ND: Tensor
    ) -> TargetTextStates:
        """Lay out states that are known.

        Args:
            samples: Prompts with answers, in the order of the states.
            state_NH: State before each token except the first of each text, shape ``[N, H]``.
            entry_ND: States at the depths that a drafter reads, shape ``[N, D]``.

        Returns:
            The states over all texts.
        """
        window = list[Tensor]()
        answer = list[Tensor]()
        size = list[int]()
        # A text of n tokens has n - 1 rows: a state, and the token that is written there.
        for s in samples:
            ids = torch.tensor((*s.prompt_ids, *s.output_ids))
            # Windows of W tokens; the first, which ends at the first token, has no state before it.
            early = torch.cat([ids[:1].expand(WINDOW - 1), ids])
            window.append(early.unfold(0, WINDOW, 1)[1:])
            # Row i writes token i + 1.
            answer.append(torch.arange(1, len(ids)) >= len(s.prompt_ids))
            size.append(len(ids) - 1)
        sizes = torch.tensor(size)
        return TargetTextStates(
            state_NH,
            entry_ND,
            torch.cat(window),
            torch.cat(answer),
            torch.arange(len(size)).repeat_interleave(sizes),
            sizes.cumsum(0).repeat_interleave(sizes),
        )

    @property
    def token_N(self) -> Tensor:
        """The token that was written at each row."""
        return self.window_NW[:, -1]

    def piece_starts(self, length: int, ahead: int) -> Tensor:
        """Where pieces begin that end within an answer.

        Args:
            length: Rows of a piece.
            ahead: Further rows of the same text that must follow it.

        Returns:
            First rows of all such pieces; they overlap.
        """
        at_N = torch.arange(len(self.window_NW))
        # The piece and what follows it lie in one text.
        at_N = at_N[at_N + length + ahead <= self.end_N]
        # The last row of a piece is one that the target wrote.
        return at_N[self.answer_N[at_N + length - 1]]


def read_target_states(
    lm: CausalLaw, ids: Sequence[int], depths: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """Read a text with the target, and give its states.

    Args:
        lm: The target.
        ids: Token ids.
        depths: Layers after which states are wanted too. Default: none.

    Returns:
        The states after the last layer, and those at the depths, side by side (without depths the
        first again); one row for each token except the last, fp32.

    Raises:
        RequestError: The target gives no hidden states.
    """
    # One prefill gives the states of all positions; no law is computed.
    session = lm.open_session(ids)
    scores = run_coroutines(
        [
            session.prefill_prompt(
                ScoreRequest(law=RowDetail.NOTHING, hidden=True, prompt=True, exits=tuple(depths))
            )
        ]
    )[0]
    session.close()
    if scores.hidden_NH is None:
        raise RequestError("target shows no hidden states: nothing can be trained on them")
    last_NH = scores.hidden_NH.float()
    nodes = range(len(ids) - 1)
    # States of each depth, [N, width], side by side in the end.
    low = [scores.exit_laws(d, nodes).hidden_NH.float() for d in depths]  # pyright: ignore[reportOptionalMemberAccess]
    return last_NH, torch.cat(low, -1) if low else last_NH
