"""The target's laws on text it wrote, by teacher forcing, kept as hidden states: a row of V numbers is one product away."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polydec.train.loop import precision
from polydec.train.network import Llama, from_weights, replace
from polydec.train.selfplay import Sample


@dataclass(frozen=True, eq=False)
class Laws:
    """Of every output token of some samples, in order: the hidden state after the final norm that predicts it (bf16, rows
    x width), and the log of the sum of its weights at `temperature`."""
    hidden_NH: Tensor
    lse_N: Tensor
    temperature: float


@dataclass(frozen=True, eq=False)
class Teacher:
    """A target of the Llama skeleton that scores whole sequences."""
    network: Llama
    fast: bool                                    # bf16 arithmetic

    @staticmethod
    def of(config: Mapping[str, Any], weights: Mapping[str, Tensor], fast: bool) -> Teacher:
        """Raises ValueError where the target is not of the plain Llama skeleton."""
        return Teacher(from_weights(config, weights), fast)

    @property
    def head_VH(self) -> Tensor:
        n = self.network
        return n.model.embed_tokens.weight if n.lm_head is None else n.lm_head.weight

    @torch.no_grad()
    def hidden(self, sample: Sample) -> Tensor:
        """One bf16 row per output token, of the position that predicts it."""
        ids = torch.tensor([(*sample.prompt_ids, *sample.output_ids[:-1])])
        with precision(self.fast):
            return self.network.model(ids)[0, len(sample.prompt_ids) - 1:].bfloat16()

    @torch.no_grad()
    def lse(self, hidden_NH: Tensor, temperature: float) -> Tensor:
        table = self.head_VH.bfloat16() if self.fast else self.head_VH
        return torch.cat([((h.to(table.dtype) @ table.T).float() / temperature).logsumexp(-1)
                          for h in hidden_NH.split(256)])

    def laws(self, samples: Sequence[Sample], temperature: float) -> Laws:
        hidden = torch.cat([self.hidden(s) for s in samples])
        return Laws(hidden, self.lse(hidden, temperature), temperature)

    def cached(self, samples: Sequence[Sample], path: Path, temperature: float) -> Laws:
        """The same for the samples of the file `path`, kept beside it: `.hidden` is appended to when the file has grown,
        `.lse-TEMPERATURE` is computed where it is missing."""
        width, rows = self.head_VH.shape[1], sum(len(s.output_ids) for s in samples)
        at = path.with_suffix(".hidden")
        have = at.stat().st_size // (2 * width) if at.exists() else 0
        with open(at, "ab") as f:
            f.truncate(have * 2 * width)
            seen = 0
            for s in samples:
                if seen >= have:
                    f.write(self.hidden(s).view(torch.int16).numpy().tobytes())
                elif seen + len(s.output_ids) > have:      # an interruption cut this one short
                    f.write(self.hidden(s)[have - seen:].view(torch.int16).numpy().tobytes())
                seen += len(s.output_ids)
        hidden = torch.from_numpy(np.fromfile(at, dtype=np.int16, count=rows * width)).view(torch.bfloat16).view(rows, width)
        sums = path.with_suffix(f".lse-{temperature}")
        known = np.fromfile(sums, dtype=np.float32, count=rows) if sums.exists() else np.zeros(0, np.float32)
        if len(known) < rows:
            known = np.concatenate([known, self.lse(hidden[len(known):], temperature).numpy()])
            replace(sums, lambda to: known.tofile(to))
        return Laws(hidden, torch.from_numpy(known), temperature)
