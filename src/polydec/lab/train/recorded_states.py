"""A target's states on text, kept on disk: recorded while it writes, or read afterwards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.base.files import hold_file_lock, replace_file_atomically
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.train.progress import show_count_progress
from polydec.lab.train.selfplay import TrainingSample, sample_prefix_digests
from polydec.methods.speculative.drafters._states import states_after
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.sessions.lm import CausalLaw

HALF = 65504.0
"""The largest number of fp16."""


@dataclass(frozen=True)
class StateRecordingDrafter:
    """Drafts nothing, and keeps the states of all passes.

    Attributes:
        depths: Layers after which states are kept.
        parts: The states of each pass, in order, each of shape ``[N, D]``.

    Exact: law, under any exact verifier.
    Reduces to: `nothing`.
    """

    depths: tuple[int, ...]
    parts: list[Tensor] = field(default_factory=list[Tensor])

    def open_guess(self, prompt: Sequence[int], session: Session) -> StateRecordingGuess:
        """Begin with an answer.

        Args:
            prompt: Token ids of the prompt; not used.
            session: The target's session; not used.

        Returns:
            What records the passes of this answer.
        """
        return StateRecordingGuess(self)


@dataclass(frozen=True)
class StateRecordingGuess:
    """Records the passes of one answer.

    Attributes:
        to: The drafter that keeps the states.
    """

    to: StateRecordingDrafter
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        """The states at all depths, of the prompt too."""
        return ScoreRequest(law=RowDetail.NOTHING, exits=self.to.depths, prompt=True)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose the root alone.

        Args:
            root: The last committed token.
            position: Its position; not used.
            budget: Bounds of a draft; not used.
            rng: Not used: nothing is drawn.

        Returns:
            A draft without draft tokens.
        """
        # The root alone: every pass commits one token.
        return Draft.chain_draft(root)

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Keep the states of a pass.

        Args:
            draft: The draft of the pass; not used.
            scores: What the target computed.
            verdict: The path that was accepted; states of other nodes are left out.
        """
        # Node 0 is the root, and the accepted path follows it.
        self.to.parts.append(states_after(scores, (0, *verdict.path), self.to.depths))

    def fork_guess(self, session: Session, choice: int | None = None) -> StateRecordingGuess:
        """Refuse: a recording belongs to one answer.

        Args:
            session: Not used.
            choice: Not used.

        Raises:
            RequestError: Always.
        """
        raise RequestError("a recording has one answer")

    def close(self) -> None:
        """There is nothing to release."""


@dataclass(frozen=True)
class StateFile:
    """A target's states on samples, in the order of these.

    Rows are fp16, one after every token of a sample except its last two (nobody sees the pass that
    writes a last token), with the states of all depths side by side. An index beside the file has a
    line for each sample, and a first line that says whose states they are.

    Attributes:
        path: File of the rows.
        depths: Layers after which states are kept.
        width: Numbers of one state.
        target: What the target is recognised by.
    """

    path: Path
    depths: tuple[int, ...]
    width: int
    target: str

    @staticmethod
    def of_text_file(text: Path, depths: Sequence[int], width: int, target: str) -> StateFile:
        """The file of states for the samples of a file of text.

        Args:
            text: File of the samples.
            depths: Layers after which states are kept.
            width: Numbers of one state.
            target: What the target is recognised by.

        Returns:
            The file of states, which may not exist yet.
        """
        return StateFile(
            # Depths are part of the name, so that files of different depths do not mix.
            text.with_name(f"{text.stem}.states-{'-'.join(map(str, depths))}"),
            tuple(depths),
            width,
            target,
        )

    @property
    def index(self) -> Path:
        """The file beside the rows that says which samples they belong to."""
        return self.path.with_name(self.path.name + ".index")

    @property
    def row(self) -> int:
        """Bytes of a row."""
        # Two bytes a number.
        return 2 * self.width * len(self.depths)

    def complete_samples(self, samples: Sequence[TrainingSample]) -> int:
        """How many of the first samples have their states here.

        Raises:
            RequestError: The file is of another target.
        """
        lines = self._lines
        if lines and lines[0] != self._first:
            raise RequestError(
                f"{self.path} holds states of another target: delete it, or take other text"
            )
        # Both must agree: a line in the index, and as many rows in the file. An interruption may
        # leave one without the other.
        room = (self.path.stat().st_size if self.path.exists() else 0) // self.row
        count = 0
        # Digests are cumulative: the first one that differs ends the common part.
        for sample, line in zip(samples, lines[1:]):
            room -= recorded_position_count(sample)
            if line != sample_digest(sample) or room < 0:
                break
            count += 1
        return count

    def cut_to_samples(self, samples: Sequence[TrainingSample]) -> int:
        """Cut off what follows the samples whose states are here; returns how many these are."""
        count = self.complete_samples(samples)
        lines = [self._first, *self._lines[1 : 1 + count], ""]
        # The index is cut before the rows, so that it never claims rows that are gone.
        replace_file_atomically(
            self.index, lambda at: at.write_text("\n".join(lines), encoding="utf-8")
        )
        # Append mode makes the file where it is missing, and may truncate it.
        with open(self.path, "ab") as f:
            f.truncate(sum(map(recorded_position_count, samples[:count])) * self.row)
        return count

    @property
    def _lines(self) -> list[str]:
        if self.index.exists():
            return self.index.read_text(encoding="utf-8").split("\n")
        return []

    @property
    def _first(self) -> str:
        return f"{self.target} {self.width} {self.depths}"

    @property
    def _none(self) -> Tensor:
        """The states of a sample of two tokens: nobody sees the pass that writes the second one."""
        return torch.empty(0, self.width * len(self.depths))

    def add_sample(self, sample: TrainingSample, state_ND: Tensor) -> None:
        """Append the states of the next sample.

        Args:
            sample: Prompt and answer.
            state_ND: A row for each token except the last two, shape ``[N, D]``.
        """
        assert state_ND.shape == (recorded_position_count(sample), self.width * len(self.depths)), (
            "a state for each token but the last two"
        )
        # Rows first, then the line of the index: a line without rows would claim too much.
        with open(self.path, "ab") as f:
            # What is too large for fp16 is clamped, not made infinite.
            f.write(state_ND.float().clamp(-HALF, HALF).half().numpy().tobytes())
        with open(self.index, "a", encoding="utf-8") as f:
            f.write(sample_digest(sample) + "\n")

    def complete_states(self, lm: CausalLaw, samples: Sequence[TrainingSample]) -> None:
        """Let the target read the samples whose states are not here yet.

        Args:
            lm: The target.
            samples: Prompts with answers, those that have states first.

        Raises:
            RequestError: Another process writes to the file, or the file is of another target.
        """
        # Nothing is missing, so there is no lock to wait for.
        if self.index.exists() and self.complete_samples(samples) == len(samples):
            return
        with (
            hold_file_lock(self.path),
            show_count_progress(f"reading for {self.path.name}") as watch,
        ):
            count = self.cut_to_samples(samples)
            for i, sample in enumerate(samples[count:], count + 1):
                # Without its last token a text has as many states as a recorded one.
                ids = (*sample.prompt_ids, *sample.output_ids)[:-1]
                self.add_sample(
                    sample, read_states(lm, ids, self.depths) if len(ids) > 1 else self._none
                )
                watch(i, len(samples))

    def read_samples(self, samples: Sequence[TrainingSample]) -> Tensor:
        """The states of all these samples, fp16, shape ``[N, D]``.

        They are mapped: only what is used is read.
        """
        rows = sum(map(recorded_position_count, samples))
        # All states together may be larger than memory.
        return torch.from_file(
            str(self.path), False, rows * self.row // 2, dtype=torch.float16
        ).view(rows, -1)


def read_states(lm: CausalLaw, ids: Sequence[int], depths: Sequence[int]) -> Tensor:
    """Read a text with the target, and give its states at some depths.

    Args:
        lm: The target.
        ids: Token ids.
        depths: Layers after which states are wanted.

    Returns:
        One row for each token except the last, with the states of all depths side by side.

    Raises:
        RequestError: The target gives no states.
    """
    session = lm.open_session(ids)
    scores = run_coroutines(
        [
            session.prefill_prompt(
                ScoreRequest(law=RowDetail.NOTHING, prompt=True, exits=tuple(depths))
            )
        ]
    )[0]
    session.close()
    return states_after(scores, range(len(ids) - 1), depths)


def recorded_position_count(sample: TrainingSample) -> int:
    """How many states of a sample are kept."""
    return max(0, len(sample.prompt_ids) + len(sample.output_ids) - 2)


def sample_digest(sample: TrainingSample) -> str:
    """What a sample is recognised by in an index."""
    return sample_prefix_digests([sample])[0]


@dataclass(frozen=True)
class StatePassRecorder:
    """Keeps the target's states while it writes.

    Attributes:
        lm: The target.
        file: Where the states go.
    """

    lm: CausalLaw
    file: StateFile

    def begin_samples(self, samples: Sequence[TrainingSample]) -> None:
        """Complete the states of samples that are written already."""
        self.file.complete_states(self.lm, samples)

    def pass_watcher(self) -> StateRecordingDrafter:
        """A drafter that records the passes of one answer."""
        return StateRecordingDrafter(self.file.depths)

    def write_states(self, sample: TrainingSample, watcher: StateRecordingDrafter) -> None:
        """Write the states of a finished answer.

        Args:
            sample: Prompt and answer.
            watcher: What recorded its passes.
        """
        self.file.add_sample(sample, torch.cat(watcher.parts))
