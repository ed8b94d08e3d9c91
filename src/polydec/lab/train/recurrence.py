"""`polydec train recurrence`: a model reads short windows, and one vector of what stood before them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.lab.train.data import BEGIN, END
from polydec.lab.train.envelope import STATE, TrainingRun, run_identity, run_training, tensor_digest
from polydec.lab.train.exits import copy_with_layers
from polydec.lab.train.hyperfit import texts_of_length
from polydec.lab.train.lm_student import find_tokenizer, load_directory
from polydec.lab.train.loop import bf16_autocast, is_bf16_run
from polydec.lab.train.network import TrainableLlama, save_directory
from polydec.lab.train.prefix_network import forward_with_past
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.lm import LMSpec
from polydec.lab.train.specs.recurrence import RecurrenceSpec
from polydec.lab.train.tokens import mark_id, tokenizer_files
from polydec.models.learned.kinds import window_summary
from polydec.models.learned.kinds.window_summary import (
    WindowSummary,
    summary_of_states,
    summary_shapes,
)


def train_recurrence(spec: RecurrenceSpec) -> dict[str, Any]:
    """Tune a model to read texts window by window, and save it with what makes its vectors (out/summary).

    Each window stands behind BEGIN and one vector, which two maps make of the mean state of the
    window before; the first one has none. Model and maps learn together, through all windows of a
    text. What is returned is measured on held-out texts, see `measure_recurrence`. See
    `run_training`.

    Raises:
        RequestError: A window does not fit into the model's context, or the data has fewer texts
            that are long enough.

    Source: Yoshida, "Making the most of your model" (2024), added recurrence: there the vector is a
    further key and value of one layer; here it enters the first layer, as an embedding does.
    """
    return run_training("recurrence", spec, _course)


class RecurrentNetwork(nn.Module):
    """A model, and the maps that make a vector of each window.

    Args:
        network: The model.
        begin: Id of the token that every window is read behind.
        alone: Whether no window sees a vector.
        seed: Seed of the maps.
    """

    def __init__(self, network: TrainableLlama, begin: int, alone: bool, seed: int) -> None:
        super().__init__()
        self.network = network
        self.begin = begin
        self.alone = alone
        width = network.s.width
        draws = torch.Generator().manual_seed(seed)
        made = {
            name: torch.randn(shape, generator=draws) * shape[-1] ** -0.5
            if name == "up"
            else torch.zeros(shape)
            for name, shape in summary_shapes(width, 2 * width).items()
        }
        # A vector begins as large as an embedding.
        made["scale"].fill_(float(network.model.embed_tokens.weight.detach().std()))
        self.maps = nn.ParameterDict(
            {name: nn.Parameter(tensor, requires_grad=not alone) for name, tensor in made.items()}
        )

    def window_nats(self, token_BNW: Tensor) -> Tensor:
        """The negative log-likelihood of every token.

        Args:
            token_BNW: Token ids of N windows of W tokens of each text, shape ``[B, N, W]``.

        Returns:
            Nats, shape ``[B, N, W]``.
        """
        trunk = self.network.model
        B, N, W = token_BNW.shape
        begin_B1H = trunk.embed_tokens(torch.full((B, 1), self.begin))
        vector = list[Tensor]()
        nats = list[Tensor]()
        for at in range(N):
            token_BW = token_BNW[:, at]
            read = torch.cat([begin_B1H, *vector, trunk.embed_tokens(token_BW)], 1)
            state_BTH = trunk.norm(forward_with_past(trunk, read)[0])
            # A token is foretold at the one before it, the first one at the vector, or at BEGIN.
            logits_BWV = self.network.token_logits(state_BTH[:, -W - 1 : -1]).float()
            nats_BW = F.cross_entropy(logits_BWV.transpose(1, 2), token_BW, reduction="none")
            nats.append(nats_BW)
            if not self.alone:
                vector = [
                    summary_of_states(dict(self.maps.items()), state_BTH[:, -W:].float())[:, None]
                ]
        return torch.stack(nats, 1)


def _course(spec: RecurrenceSpec) -> TrainingRun:
    first = load_directory(spec.target)
    if first.s.experts:
        raise RequestError(
            f"target is {spec.target!r}, a mixture of experts: give a model whose layers have one MLP"
        )
    # A window is read behind BEGIN and the vector; the whole text is read to be measured beside.
    length = spec.window * spec.windows
    if length + 1 > first.s.context:
        raise RequestError(
            f"windows is {spec.windows} and window {spec.window}: {spec.target} has a context of {first.s.context} tokens, "
            "one more than the text must have"
        )
    # The target's own tokenizer.
    tokenizer = find_tokenizer(LMSpec(spec.out, start=spec.target), Path(spec.out), (), 0)
    begin = mark_id(tokenizer, BEGIN)
    learned_NWT, unseen_NWT = (
        torch.tensor(texts).unflatten(1, (spec.windows, spec.window))
        for texts in texts_of_length(spec, length, tokenizer)
    )
    # A copy is trained, as the target is measured as it was.
    copied = copy_with_layers(first, first.s.layers).train()
    network = RecurrentNetwork(copied, begin, spec.alone, spec.seed)
    fast = is_bf16_run(Path(spec.out) / STATE)

    def step_loss(step: int) -> tuple[Tensor, int]:
        # Texts are drawn by seed and step, so that a run that goes on draws the same ones.
        dice = np.random.default_rng([spec.seed, step])
        rows = dice.choice(len(learned_NWT), min(spec.rows, len(learned_NWT)), replace=False)
        token_BNW = learned_NWT[torch.from_numpy(rows)]
        with bf16_autocast(fast):
            return network.window_nats(token_BNW).mean(), token_BNW.numel()

    def measure_result() -> Mapping[str, Any]:
        before = RecurrentNetwork(first, begin, True, 0)
        return {"out": spec.out, **measure_recurrence(network, before, unseen_NWT)}

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Save the model, and the maps in a folder below it.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        config = first.s.config_content(bos=begin, eos=tokenizer.token_to_id(END))
        save_directory(out, copied, config, files=tokenizer_files(tokenizer, first.s.context))
        if not spec.alone:
            tensors = {name: p.detach() for name, p in network.maps.items()}
            made = WindowSummary(tensors, spec.window, begin)
            window_summary.save(out / "summary", made, {"target": str(out)})

    schedule = TrainingSchedule(spec.steps, spec.rate, log_every=min(20, spec.steps))
    same = run_identity(spec, texts=tensor_digest(learned_NWT), bf16=fast)
    return TrainingRun(network, step_loss, schedule, same, save_result, measure_result)


@torch.no_grad()
def measure_recurrence(
    network: RecurrentNetwork, before: RecurrentNetwork, unseen_NWT: Tensor
) -> dict[str, float]:
    """Measure held-out texts.

    Args:
        network: The trained model with its maps.
        before: The model as it was, whose windows stand alone.
        unseen_NWT: Token ids, shape ``[N, windows, W]``.

    Returns:
        Nats a token: `nats_first` of first windows, `nats_later` of all others, and of the model as
        it was `nats_later_alone` (each window alone) and `nats_later_whole` (it reads all that
        stands before).
    """
    ours = network.window_nats(unseen_NWT)
    alone = before.window_nats(unseen_NWT)
    whole = before.window_nats(unseen_NWT.flatten(1)[:, None]).view(unseen_NWT.shape)
    return {
        "nats_first": float(ours[:, 0].mean()),
        "nats_later": float(ours[:, 1:].mean()),
        "nats_later_alone": float(alone[:, 1:].mean()),
        "nats_later_whole": float(whole[:, 1:].mean()),
    }
