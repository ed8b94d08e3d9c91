"""The target's laws on text that it wrote, by teacher forcing, kept as hidden states.

A row of V logits is one product away.
"""

from __future__ import annotations

import glob
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.base import edge
from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import PolydecError
from polydec.base.files import hold_file_lock, replace_file_atomically
from polydec.lab.train.loop import bf16_autocast
from polydec.lab.train.network import TrainableLlama, from_weights
from polydec.lab.train.selfplay import TrainingSample, sample_prefix_digests


@dataclass(frozen=True, eq=False)
class TeacherLaws:
    """A target's laws at the output tokens of some samples, in order.

    Attributes:
        hidden_NH: State after the final norm that predicts each token, bf16, shape ``[N, H]``.
        lse_N: Log-sum-exp of the logits at `temperature`, shape ``[N]``.
        temperature: Sampling temperature of the laws.
    """

    hidden_NH: Tensor
    lse_N: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class TeacherModel:
    """A target of the Llama skeleton that scores complete sequences.

    Attributes:
        network: The target's network, frozen.
        fast: Whether products are made in bf16.
    """

    network: TrainableLlama
    fast: bool  # bf16 arithmetic

    @staticmethod
    def of_files(
        config: Mapping[str, Any], weights: Mapping[str, Tensor], fast: bool
    ) -> TeacherModel:
        """Build a teacher of a target's files.

        Args:
            config: Fields of config.json.
            weights: Tensors by their Hugging Face names.
            fast: Whether products are made in bf16.

        Returns:
            The teacher.

        Raises:
            RequestError: The target is not of the plain Llama skeleton.
        """
        return TeacherModel(from_weights(config, weights), fast)

    @property
    def head_VH(self) -> Tensor:
        """The matrix of the head, shape ``[V, H]``."""
        n = self.network
        if n.lm_head is None:
            return n.model.embed_tokens.weight
        return n.lm_head.weight

    @cached_property
    def fingerprint(self) -> str:
        """A digest of the arithmetic and of some numbers of every weight."""
        out = hashlib.sha1(f"{self.fast}".encode())
        for name, weight in self.network.state_dict().items():
            flat = weight.detach().flatten()
            # About a thousand numbers of each tensor tell targets apart, and are quick to read.
            sample = flat[:: max(1, len(flat) // 1024)].float().contiguous()
            out.update(f"{name} {tuple(weight.shape)}".encode() + sample.numpy().tobytes())
        return out.hexdigest()[:16]

    @torch.no_grad()
    def hidden_states(self, sample: TrainingSample) -> Tensor:
        """The states that predict the output tokens of a sample, bf16, shape ``[N, H]``."""
        # The last output token predicts nothing that is known.
        ids = torch.tensor([(*sample.prompt_ids, *sample.output_ids[:-1])])
        with bf16_autocast(self.fast):
            return self.network.model(ids)[0, len(sample.prompt_ids) - 1 :].bfloat16()

    @torch.no_grad()
    def log_sum_exp(self, hidden_NH: Tensor, temperature: float) -> Tensor:
        """The log-sum-exp of the logits of states.

        Args:
            hidden_NH: States after the final norm, shape ``[N, H]``.
            temperature: Sampling temperature, above 0.

        Returns:
            Shape ``[N]``.
        """
        if self.fast:
            table = self.head_VH.bfloat16()
        else:
            table = self.head_VH
        return torch.cat(
            [
                ((h.to(table.dtype) @ table.T).float() / temperature).logsumexp(-1)
                # A few rows at a time: all logits together would not fit into memory.
                for h in hidden_NH.split(256)
            ]
        )

    def sample_laws(self, samples: Sequence[TrainingSample], temperature: float) -> TeacherLaws:
        """The laws at the output tokens of some samples.

        Args:
            samples: Prompts with answers.
            temperature: Sampling temperature, above 0.

        Returns:
            The laws, in order of samples and tokens.
        """
        hidden = torch.cat([self.hidden_states(s) for s in samples])
        return TeacherLaws(hidden, self.log_sum_exp(hidden, temperature), temperature)

    def stored_laws(
        self, samples: Sequence[TrainingSample], path: Path, temperature: float
    ) -> TeacherLaws:
        """The laws at the output tokens of the samples of a file, kept beside it.

        `.hidden` is appended to when the file has grown; `.lse-TEMPERATURE` is computed where it is
        missing. `.states` says of which text and which target they are: those of another one are
        computed again, with a warning.

        Args:
            samples: The samples of the file.
            path: The file.
            temperature: Sampling temperature, above 0.

        Returns:
            The laws, in order of samples and tokens.
        """
        width = self.head_VH.shape[1]
        rows = sum(len(s.output_ids) for s in samples)
        at = path.with_suffix(".hidden")
        of = path.with_suffix(".states")
        path.parent.mkdir(parents=True, exist_ok=True)
        with hold_file_lock(at):
            self._extend(at, of, path, samples, width)
            return self._read(at, path, rows, width, temperature)

    def _extend(
        self, at: Path, of: Path, path: Path, samples: Sequence[TrainingSample], width: int
    ) -> None:
        """Make `at` hold the states of all these samples, in order; more may follow."""
        own = sample_prefix_digests(samples)
        known = _known(of)
        if at.exists():
            size = at.stat().st_size
        else:
            size = 0
        if known is not None and known.target == self.fingerprint:
            kept = known.digests
        else:
            kept = []
        # The first samples that the file already has; from there on all is written anew.
        same = next(
            (i for i, (a, b) in enumerate(zip(own, kept)) if a != b), min(len(own), len(kept))
        )
        # Bytes where the states of each sample end: 2 a number.
        ends = [0, *accumulate(2 * width * len(s.output_ids) for s in samples)]
        while ends[same] > size:  # the file is shorter than it should be
            same -= 1
        if same == len(own):
            return
        if same < len(kept) or (size and not kept):
            warn_caller(
                f"{at.name} holds states of another text or target: {len(own) - same} of {len(own)} samples are "
                "computed again"
            )
            # Log-sum-exps belong to states, and are wrong with them.
            for old in path.parent.glob(f"{glob.escape(path.stem)}.lse-*"):
                old.unlink()
        _note(of, self.fingerprint, own[:same])  # before anything is cut off
        with open(at, "r+b" if at.exists() else "w+b") as f:
            f.truncate(ends[same])
            f.seek(ends[same])
            # The note follows the states, so that an interruption never claims more than is there.
            for i, s in enumerate(samples[same:], same + 1):
                f.write(self.hidden_states(s).view(torch.int16).numpy().tobytes())
                if i % 64 == 0 or i == len(samples):
                    f.flush()
                    _note(of, self.fingerprint, own[:i])

    def _read(self, at: Path, path: Path, rows: int, width: int, temperature: float) -> TeacherLaws:
        # The file may hold more samples than these; they stand at its beginning.
        hidden = (
            torch.from_numpy(np.fromfile(at, dtype=np.int16, count=rows * width))
            .view(torch.bfloat16)
            .view(rows, width)
        )
        sums = path.with_suffix(f".lse-{temperature}")
        if sums.exists():
            known = np.fromfile(sums, dtype=np.float32, count=rows)
        else:
            known = np.zeros(0, np.float32)
        # The file may be of an earlier, shorter text: only the rest is computed.
        if len(known) < rows:
            known = np.concatenate(
                [known, self.log_sum_exp(hidden[len(known) :], temperature).numpy()]
            )
            replace_file_atomically(sums, lambda to: known.tofile(to))
        return TeacherLaws(hidden, torch.from_numpy(known), temperature)


class _TeacherStatesRecord(edge.StrictRecord):
    """Whose states a file holds.

    Attributes:
        target: Fingerprint of the target.
        digests: A digest of each sample and all before it.
    """

    target: str
    digests: list[str]


def _known(of: Path) -> _TeacherStatesRecord | None:
    """What the file says, or None where it is absent or damaged."""
    if not of.exists():
        return None
    try:
        return edge.validate_record(_TeacherStatesRecord, edge.read_json(of), str(of))
    except PolydecError:
        return None


def _note(of: Path, target: str, digests: Sequence[str]) -> None:
    replace_file_atomically(
        of,
        lambda to: to.write_text(
            json.dumps({"target": target, "digests": list(digests)}), encoding="utf-8"
        ),
    )
