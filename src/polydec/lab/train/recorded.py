"""A target's states on text, kept on disk: recorded while it writes, or read from text that others wrote."""

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
    """Drafts nothing, and keeps the states of all passes: of each depth a list of parts.

    Exact: law, under any exact verifier.
    Reduces to: `nothing`.
    """

    depths: tuple[int, ...]
    parts: list[Tensor] = field(default_factory=list[Tensor])

    def open(self, prompt: Sequence[int], session: Session) -> StateRecordingGuess:
        return StateRecordingGuess(self)


@dataclass(frozen=True)
class StateRecordingGuess:
    """One answer's."""

    to: StateRecordingDrafter
    price = 0.0

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING, exits=self.to.depths, prompt=True)

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        return Draft.chain(root)

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.to.parts.append(states_after(scores, (0, *verdict.path), self.to.depths))

    def fork(self, session: Session, choice: int | None = None) -> StateRecordingGuess:
        raise RequestError("a recording has one answer")

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class StateFile:
    """A target's states on samples, in their order: fp16 rows, one behind every token of a sample but its last two (nobody sees
    the pass that writes a last token), the states of all depths one behind another. An index beside it has a line a sample, and
    a first one that says whose states they are.

    path: of the rows; depths; width: of one state; target: what the target is recognised by.
    """

    path: Path
    depths: tuple[int, ...]
    width: int
    target: str

    @staticmethod
    def beside(text: Path, depths: Sequence[int], width: int, target: str) -> StateFile:
        """The one for the samples of the file `text`."""
        return StateFile(
            text.with_name(f"{text.stem}.states-{'-'.join(map(str, depths))}"),
            tuple(depths),
            width,
            target,
        )

    @property
    def index(self) -> Path:
        return self.path.with_name(self.path.name + ".index")

    @property
    def row(self) -> int:
        """Bytes of a row."""
        return 2 * self.width * len(self.depths)

    def complete_samples(self, samples: Sequence[TrainingSample]) -> int:
        """How many of the first samples have their states here. Raises RequestError where the file is of another target."""
        lines = self._lines
        if lines and lines[0] != self._first:
            raise RequestError(
                f"{self.path} holds states of another target: delete it, or take other text"
            )
        room = (self.path.stat().st_size if self.path.exists() else 0) // self.row
        count = 0
        for sample, line in zip(samples, lines[1:]):
            room -= recorded_position_count(sample)
            if line != sample_digest(sample) or room < 0:
                break
            count += 1
        return count

    def hold(self, samples: Sequence[TrainingSample]) -> int:
        """The same; what follows those is cut off."""
        count = self.complete_samples(samples)
        lines = [self._first, *self._lines[1 : 1 + count], ""]
        replace_file_atomically(
            self.index, lambda at: at.write_text("\n".join(lines), encoding="utf-8")
        )
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
        """The states of a sample of two tokens: nobody sees the pass that writes the second."""
        return torch.empty(0, self.width * len(self.depths))

    def add(self, sample: TrainingSample, state_ND: Tensor) -> None:
        """The states of the next sample."""
        assert state_ND.shape == (recorded_position_count(sample), self.width * len(self.depths)), (
            "a state for each token but the last two"
        )
        with open(self.path, "ab") as f:
            f.write(state_ND.float().clamp(-HALF, HALF).half().numpy().tobytes())
        with open(self.index, "a", encoding="utf-8") as f:
            f.write(sample_digest(sample) + "\n")

    def complete(self, lm: CausalLaw, samples: Sequence[TrainingSample]) -> None:
        """The target reads the samples whose states are not here yet. Raises RequestError where another process writes here."""
        if self.index.exists() and self.complete_samples(samples) == len(samples):
            return
        with (
            hold_file_lock(self.path),
            show_count_progress(f"reading for {self.path.name}") as watch,
        ):
            count = self.hold(samples)
            for i, sample in enumerate(samples[count:], count + 1):
                ids = (*sample.prompt_ids, *sample.output_ids)[:-1]
                self.add(sample, read_states(lm, ids, self.depths) if len(ids) > 1 else self._none)
                watch(i, len(samples))

    def read(self, samples: Sequence[TrainingSample]) -> Tensor:
        """The states of all these samples [N, D], fp16 and mapped: what is asked for is read."""
        rows = sum(map(recorded_position_count, samples))
        return torch.from_file(
            str(self.path), False, rows * self.row // 2, dtype=torch.float16
        ).view(rows, -1)


def read_states(lm: CausalLaw, ids: Sequence[int], depths: Sequence[int]) -> Tensor:
    """After each of these tokens but the last, at these depths, one behind another. Raises RequestError where the target shows
    none."""
    session = lm.open(ids)
    scores = run_coroutines(
        [session.prefill(ScoreRequest(law=RowDetail.NOTHING, prompt=True, exits=tuple(depths)))]
    )[0]
    session.close()
    return states_after(scores, range(len(ids) - 1), depths)


def recorded_position_count(sample: TrainingSample) -> int:
    """How many states are kept of it."""
    return max(0, len(sample.prompt_ids) + len(sample.output_ids) - 2)


def sample_digest(sample: TrainingSample) -> str:
    return sample_prefix_digests([sample])[0]


@dataclass(frozen=True)
class StatePassRecorder:
    """Keeps the target's states while it writes."""

    lm: CausalLaw
    file: StateFile

    def begin(self, samples: Sequence[TrainingSample]) -> None:
        self.file.complete(self.lm, samples)

    def watcher(self) -> StateRecordingDrafter:
        return StateRecordingDrafter(self.file.depths)

    def keep(self, sample: TrainingSample, watcher: StateRecordingDrafter) -> None:
        self.file.add(sample, torch.cat(watcher.parts))
