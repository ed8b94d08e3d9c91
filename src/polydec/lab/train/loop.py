"""The training loop: clipping, checkpoints that an interruption cannot spoil, progress."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import torch
from pydantic import ConfigDict, Field, model_validator
from torch import Tensor, nn

from polydec.base.edge import StrictRecord, error_sentence, validate_record
from polydec.base.errors import RequestError
from polydec.base.files import replace_file_atomically
from polydec.lab.train.muon import MuonOptimizer
from polydec.lab.train.schedule import TrainingSchedule
from polydec.models.nets.linear import has_bf16


@dataclass(frozen=True)
class LossCurvePoint:
    """One point of the loss curve.

    Attributes:
        step: Steps that were taken.
        loss: Mean loss since the last point, in nats.
        rate: Learning rate of the last step.
        tokens_per_second: Tokens a second since the last point.
        seconds_left: Seconds that the rest of the run is expected to take.
    """

    step: int
    loss: float
    rate: float
    tokens_per_second: float
    seconds_left: float


def build_optimisers(
    network: nn.Module, s: TrainingSchedule, deep: Sequence[nn.Parameter] = ()
) -> list[torch.optim.Optimizer]:
    """Build the optimisers of a network.

    Muon takes the matrices inside layers where it is on, AdamW everything else; norms and
    embeddings have no weight decay.

    Args:
        network: What is trained; parameters without gradients are left out.
        s: Learning rates and weight decay.
        deep: The matrices for Muon, where the network does not name its layers `.layers.`. Default:
            by name.

    Returns:
        AdamW, and Muon where it has parameters.
    """
    named = [(n, p) for n, p in network.named_parameters() if p.requires_grad]
    if s.muon:
        deep = [*deep] or [p for n, p in named if ".layers." in n and p.ndim == 2]
    else:
        deep = []
    taken = set(map(id, deep))
    rest = [(n, p) for n, p in named if id(p) not in taken]
    decayed = [p for n, p in rest if p.ndim == 2 and "embed" not in n]
    plain = [p for n, p in rest if not (p.ndim == 2 and "embed" not in n)]
    groups = [
        {"params": g, "weight_decay": w} for g, w in ((decayed, s.weight_decay), (plain, 0.0)) if g
    ]
    # Betas as they are usual for language models: 0.95 where AdamW alone has 0.999.
    out: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(groups, lr=s.rate, betas=(0.9, 0.95), eps=1e-8)
    ]
    # torch's Muon iterates in bf16, which is slow where the machine has no such arithmetic.
    if deep:
        out.append(
            (torch.optim.Muon if has_bf16() else MuonOptimizer)(
                deep, lr=s.muon, weight_decay=s.weight_decay
            )
        )
    return out


class BestWeights:
    """Keeps the weights that were best on data that is set aside.

    Before the first look there are none.
    """

    def __init__(self, network: nn.Module, loss: Callable[[], Tensor]) -> None:
        self._network = network
        self._loss = loss
        self.least = math.inf
        self.weights = dict[str, Tensor]()

    @torch.no_grad()
    def keep_least_loss(self) -> None:
        """Keep the weights as they are now if their loss is the least so far."""
        loss = float(self._loss())
        if loss < self.least:
            self.weights = {
                name: t.detach().clone() for name, t in self._network.state_dict().items()
            }
            # Last: where an interrupt comes before it, the same weights are kept again later.
            self.least = loss


def fit_network(
    network: nn.Module,
    loss: Callable[[int], tuple[Tensor, int]],
    s: TrainingSchedule,
    *,
    state: Path | None = None,
    identity: Mapping[str, Any] | None = None,
    watch: Callable[[LossCurvePoint], None] = lambda r: None,
    aside: Callable[[], Tensor] | None = None,
    deep: Sequence[nn.Parameter] = (),
    after_step: Callable[[], None] = lambda: None,
    stop: Callable[[], bool] = lambda: False,
    without_interrupts: Callable[[], AbstractContextManager[Any]] = nullcontext,
    begin: Callable[[int], None] = lambda step: None,
) -> list[tuple[int, float]]:
    """Train `network` in place.

    Whatever ends the run from inside, an error or a second Ctrl-C, loses the step under way alone.
    What ends the process itself loses at most the steps since the last checkpoint.

    Args:
        network: What is trained: all parameters that require gradients.
        loss: loss(step) gives the scalar to minimise and the tokens it saw. It must be a function
            of the step number and of the network's parameters and buffers alone, so that a run that
            was interrupted takes the same steps as one that was not, bit for bit on the same
            machine with the same threads.
        s: Number of steps, learning rates, and how often what is done.
        state: File of the checkpoint, written every `save_every` steps and at the end, and read
            first where it exists; None: there is none.
        identity: What must agree with the checkpoint; None: nothing.
        watch: Called with each point of the loss curve.
        aside: Gives the loss, as the network is now, on data that is not trained on. It is asked
            every `judge_every` steps, and at the end the network has the weights that were best on
            it, the untrained ones included. None: the last weights stay.
        deep: See `build_optimisers`.
        after_step: Called behind each step, as a part of it; it may change what is not learned by
            gradients.
        stop: Asked after each step; where it says so, the checkpoint is written and the run ends.
        without_interrupts: Gives a context in which no interrupt is raised: weights change in it, and
            checkpoints are written.
        begin: Called once, before the first step, with the number of steps that a checkpoint holds.

    Returns:
        The loss curve, as (step, mean loss in nats).

    Raises:
        RequestError: The checkpoint is damaged, or belongs to another run.
        KeyboardInterrupt: `stop` or an interrupt ended the run; the message says where it goes on.
    """
    known = _lists(_deciding(identity or {}))
    opts = build_optimisers(network, s, deep)
    if aside is None:
        best = None
    else:
        best = BestWeights(network, aside)
    step = 0
    curve = list[tuple[int, float]]()
    total = 0.0
    # An earlier run left a checkpoint: weights, optimisers and the curve so far come from there.
    if state is not None and state.exists():
        saved = read_state(state, network, opts, known)
        if saved.step >= s.steps and not saved.curve:
            raise RequestError(f"{state} has no loss curve: delete it to start anew")
        if best is not None and saved.best is not None:
            best.least, best.weights = saved.best
        step = saved.step
        curve = [(a, b) for a, b in saved.curve]
        total = saved.total
    peak = [[g["lr"] for g in (o.param_groups)] for o in opts]
    if step:  # a loaded group carries the rate of its last step
        peak = [
            [s.rate if isinstance(o, torch.optim.AdamW) else s.muon for _ in o.param_groups]
            for o in opts
        ]
    began = time.perf_counter()
    seen = 0
    first = step
    mark = time.perf_counter()
    since = 0
    parameters = [p for p in network.parameters() if p.requires_grad]

    def keep_state() -> None:
        """Write the checkpoint of the last whole step, if there is a file for it."""
        if state is None:
            return
        content = {
            "network": network.state_dict(),
            "optimisers": [o.state_dict() for o in opts],
            "step": step,
            "curve": curve,
            "total": total,
            "identity": known,
            "best": None if best is None else (best.least, best.weights),
        }
        replace_file_atomically(state, lambda at: torch.save(content, at))

    # Before the first step, which may take long.
    begin(step)
    while step < s.steps:
        # Until the gradient is there, the weights are those of the step before.
        try:
            # Judged before the step, so that the untrained weights take part.
            if best is not None and step % s.judge_every == 0:
                best.keep_least_loss()
            # The factor of the schedule multiplies each group's own peak rate.
            for o, rates in zip(opts, peak):
                for group, rate in zip(o.param_groups, rates):
                    group["lr"] = rate * s.rate_factor(step)
                o.zero_grad(set_to_none=True)
            value, tokens = loss(step)
            value.backward()
            torch.nn.utils.clip_grad_norm_(parameters, s.clip)
        except BaseException as failure:
            # An earlier checkpoint of the same step is as good.
            if step > first:
                with without_interrupts():
                    keep_state()
            # Before the first step there is nothing to go on from.
            if isinstance(failure, KeyboardInterrupt) and step:
                # The type stays: SIGTERM and Ctrl-C have different exit codes.
                raise type(failure)(_stopped_sentence(step, s.steps, state)) from None
            raise
        # A step is taken and counted as a whole, or not at all.
        with without_interrupts():
            for o in opts:
                o.step()
            after_step()
            total = total + float(value.detach())
            step += 1
            seen = seen + tokens
            since = since + tokens
            if step % s.log_every == 0 or step == s.steps:
                # Also right at a shorter last stretch, and after a resumption between two points.
                count = step - (curve[-1][0] if curve else 0)
                curve.append((step, total / count))
                total = 0.0
                now = time.perf_counter()
                watch(
                    LossCurvePoint(
                        step,
                        curve[-1][1],
                        s.rate * s.rate_factor(step - 1),
                        since / max(now - mark, 1e-9),
                        (now - began) / (step - first) * (s.steps - step),
                    )
                )
                mark = now
                since = 0
            # The last weights may be the best ones; they are judged before the final checkpoint is
            # written.
            if best is not None and step == s.steps:
                best.keep_least_loss()
            stopping = stop()
            # A run that was asked to stop saves first, so that nothing is lost.
            if step % s.save_every == 0 or step == s.steps or stopping:
                keep_state()
        # One came while the checkpoint was written.
        if not stopping and stop():
            stopping = True
            with without_interrupts():
                keep_state()
        if stopping:
            # As Ctrl-C does, so that callers handle both alike.
            raise KeyboardInterrupt(_stopped_sentence(step, s.steps, state))
    # What is returned is what was best on data that was not trained on.
    if best is not None and best.weights:
        network.load_state_dict(best.weights)
    return curve


def _stopped_sentence(step: int, steps: int, state: Path | None) -> str:
    """How far a stopped run has come, and where the same command goes on."""
    if state is None:
        return f"stopped after {step} of {steps} steps, and nothing is kept: the same command begins anew"
    # After the last step only the artefact is missing.
    if step == steps:
        behind = "measures and saves what was trained"
    else:
        behind = f"goes on with step {step + 1}"
    return (
        f"stopped after {step} of {steps} steps, and {state} keeps them: the same command {behind}"
    )


class TrainingCheckpointRecord(StrictRecord):
    """What a checkpoint of training holds, checked when it is read."""

    model_config = ConfigDict(
        arbitrary_types_allowed=True, strict=True, frozen=True, allow_inf_nan=True
    )
    network: dict[str, Tensor]
    optimisers: list[dict[str, Any]]
    step: Annotated[int, Field(ge=0)]
    curve: list[tuple[int, float]]
    total: float
    identity: dict[str, Any]
    best: tuple[float, dict[str, Tensor]] | None = None

    @model_validator(mode="after")
    def _in_order(self) -> TrainingCheckpointRecord:
        steps = [0, *(at for at, _ in self.curve), self.step]
        if steps[:-1] != sorted(set(steps[:-1])) or steps[-2] > self.step:
            raise RequestError("the points of its curve are not in the order of its steps")
        return self


def read_state(
    path: Path, network: nn.Module, opts: Sequence[torch.optim.Optimizer], known: Mapping[str, Any]
) -> TrainingCheckpointRecord:
    """Put a checkpoint into a network and its optimisers.

    Args:
        path: File of the checkpoint.
        network: Gets the weights; after an error it is as it was.
        opts: Get their moments.
        known: Identity of the run, which must agree.

    Returns:
        What the checkpoint holds.

    Raises:
        RequestError: The file is damaged, or belongs to another run.
    """
    anew = "delete it to start anew"
    try:
        # weights_only: a checkpoint cannot run code.
        content = torch.load(path, weights_only=True)
    except Exception as e:
        raise RequestError(
            error_sentence(f"{path} is not a readable checkpoint: {anew} ({e})")
        ) from None
    saved = validate_record(
        TrainingCheckpointRecord, content, f"{path} is not a checkpoint of training ({anew})"
    )
    earlier = _lists(_deciding(saved.identity))
    if earlier != known:
        other = [k for k in {*known, *earlier} if known.get(k) != earlier.get(k)]
        raise RequestError(
            error_sentence(
                f"{path} belongs to another run ({', '.join(sorted(map(str, other)))} differ): "
                "choose another directory or delete it"
            )
        )
    # A partly loaded network would not be noticed by whoever goes on with it.
    before = {k: v.clone() for k, v in network.state_dict().items()}
    try:
        network.load_state_dict(saved.network)
        for o, values in zip(opts, saved.optimisers, strict=True):
            _same_shapes(o, values)
            o.load_state_dict(values)
    except Exception as e:  # torch raises what its pickled parts happen to meet
        network.load_state_dict(before)
        raise RequestError(
            error_sentence(f"{path} does not fit this network: {anew} ({type(e).__name__}: {e})")
        ) from None
    return saved


def _deciding(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity without what decides nothing: how often a run saves may change on its way."""
    return {k: v for k, v in identity.items() if k != "save_every"}


def _lists(identity: Mapping[str, Any]) -> dict[str, Any]:
    """The identity with a list for every tuple: an earlier run may have kept either."""
    return {
        k: list(cast(tuple[Any, ...], v)) if isinstance(v, tuple) else v
        for k, v in identity.items()
    }


def _same_shapes(optimiser: torch.optim.Optimizer, values: Mapping[str, Any]) -> None:
    """Raise RequestError where a moment has another shape than its parameter.

    The optimiser itself would notice only in its step.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    for i, p in enumerate(parameters):
        for name, value in values["state"].get(i, {}).items():
            if not isinstance(value, Tensor) or (value.ndim and value.shape != p.shape):
                raise RequestError(f"{name} of parameter {i} has another shape")
    for group in values["param_groups"]:
        for name, value in group.items():
            if name != "params" and type(value) is not type(optimiser.param_groups[0].get(name)):
                raise RequestError(f"{name} of the optimiser is {value!r}")


def bf16_autocast(enabled: bool) -> Any:
    """A context in which products are made in bf16 on the CPU, or one that changes nothing."""
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


def is_bf16_run(state: Path, asked: bool | None = None) -> bool:
    """Whether to train in bf16.

    Two runs of one training must come to the same weights, so no clock decides.

    Args:
        state: The file of a checkpoint. A run that goes on keeps the arithmetic that it began with
            ("bf16" in its identity).
        asked: What the user asked for; None: bf16 where this machine multiplies it.

    Returns:
        As asked, else as the checkpoint says, else as the machine allows.
    """
    if asked is not None:
        return asked
    if state.exists():
        with suppress(Exception):  # what is wrong with the file is said by whoever goes on from it
            return bool(torch.load(state, weights_only=True, mmap=True)["identity"]["bf16"])
    return has_bf16()
