"""Does a method that puts tokens in by draws keep the model's own process? Every insertion, and every
end, against the law that a fresh pass over the same text gives both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polydec.core.insertion_law import Inserter, InsertionScores
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, TraceEvent
from polydec.core.types import TextEdit
from polydec.lab.bench.forced import token_fate
from polydec.lab.bench.places import TokenPlace
from polydec.lab.bench.sampled_laws import MethodSample, SampledToken, SamplingFindings
from polydec.lab.bench.trials import MethodTrial
from polydec.lab.bench.watched_samples import conclude_watched_law, watch_method


@dataclass
class InsertionObserver:
    """An observer that notes how every choice grew.

    Attributes:
        edits: Edits of each choice, in order; the last one writes the end, where there is room.
        kinds: The events that it listens to.
    """

    edits: defaultdict[int, list[TextEdit]] = field(
        default_factory=lambda: defaultdict[int, list[TextEdit]](list)
    )
    kinds: ClassVar[tuple[type[TraceEvent], ...]] = (EditedEvent,)

    def __call__(self, event: TraceEvent) -> None:
        if isinstance(event, EditedEvent):
            self.edits[event.choice].append(event.edit)


@dataclass(frozen=True)
class InsertionDistance:
    """How far a method that promises no law is from the model's own process.

    Attributes:
        steps: Insertions and ends that were looked at.
        surprise: Nats of each of them under the law of a fresh pass, on average; None where that
            law excludes one.
        expected: What that law expects of them, nats: equal to `surprise` where all are drawn from
            it, more where the likeliest are taken.
        excluded: Insertions and ends to which it gives nothing.
    """

    steps: int
    surprise: float | None
    expected: float
    excluded: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def step_law(offer: InsertionScores, shapers: Sequence[Any]) -> Tensor:
    """The law of what happens next to a text: a token in a slot, or the end.

    Args:
        offer: Scores of a pass over the text.
        shapers: Rules that bend the law of a slot's token.

    Returns:
        Probabilities, float64, shape ``[S * V + 1]``: slot after slot, then the end.
    """
    rows = list[Tensor]()
    for slot in range(len(offer.logw_SV)):
        shaped_V = offer.logw_SV[slot]
        # The slot is drawn from the model's own law: rules bend the token alone.
        for rule in shapers:
            shaped_V = rule.shape_law(rule.start_state(()), shaped_V)
        rows.append(normalise_log_weights(shaped_V).exp())
    token_SV = torch.stack(rows).nan_to_num(0.0)
    joint_SV = float64_probabilities(offer.logp_S)[:, None] * token_SV * (1 - offer.whole)
    return torch.cat([joint_SV.flatten(), torch.tensor([offer.whole], dtype=torch.float64)])


def score_whole_text(
    model: Inserter, prompt: Sequence[int], answer: Sequence[int], end: int
) -> InsertionScores:
    """A pass of its own over a text, with every slot of its answer.

    Args:
        model: Insertion model.
        prompt: Token ids of the prompt, at least one.
        answer: Token ids of the answer as it stands.
        end: The token that ends an answer, which stands behind it.

    Returns:
        The scores.
    """

    async def ask_once() -> InsertionScores:
        slate = model.open_slate(len(prompt) + len(answer) + 1)
        try:
            slots = range(len(prompt) - 1, len(prompt) + len(answer))
            return await slate.score_slots((*prompt, *answer, end), slots)
        finally:
            slate.close()

    return run_coroutines([ask_once()])[0]


def draw_insertions(trial: MethodTrial) -> MethodSample:
    """Draw texts, and look at every insertion and every end by the law of a fresh pass over the
    text as it stood.

    Of several tokens of one pass each is looked at behind those to its left, as if it had seen them.

    Args:
        trial: A method that puts tokens in, on an insertion model, and the requests for its texts.

    Returns:
        The insertions and ends with their fates, and what the texts cost.
    """
    model: Inserter = trial.lm.checkpoint.lm
    end = min(model.vocab.eos)
    prompts = [tuple(trial.lm.encode_prompt(prompt, raw=raw)) for prompt, raw in trial.prompts]
    watched = watch_method(trial, lambda at: InsertionObserver())
    dice = np.random.default_rng(trial.seed)
    drawn = list[SampledToken]()
    for answer in watched.answers:
        ids = prompts[answer.prompt]
        text = list[int]()
        outcomes = _outcomes(answer.watch.edits[answer.choice], len(ids))
        for step, (where, token) in enumerate(outcomes):
            offer = score_whole_text(model, ids, text, end)
            size = offer.logw_SV.shape[1]
            # The end is the last outcome, behind those of all slots.
            index = (len(text) + 1) * size if token is None else where * size + token
            law_N = step_law(offer, answer.shapers).numpy()
            fate = token_fate(law_N, index, dice.random())
            place = TokenPlace(step + 1, 1, False)
            drawn.append(answer.sampled_token(step, index, place, fate, tuple(text)))
            if token is not None:
                text.insert(where, token)
    return watched.sample_of(drawn)


def insertion_law_findings(ours: MethodSample) -> SamplingFindings:
    """Test insertions and ends against their laws.

    Args:
        ours: What `draw_insertions` gave.

    Returns:
        The tests and what they come to.
    """
    # Each outcome has a fresh pass of its own.
    return conclude_watched_law(ours, (), len(ours.drawn))


def insertion_distance(ours: MethodSample) -> InsertionDistance:
    """Measure how far insertions and ends are from their laws.

    Args:
        ours: What `draw_insertions` gave.

    Returns:
        The distance.
    """
    fates = [d.fate for d in ours.drawn]
    never = sum(fate.chance <= 0.0 for fate in fates)
    return InsertionDistance(
        len(fates),
        None if never or not fates else mean(fate.surprise for fate in fates),
        mean(fate.entropy for fate in fates) if fates else 0.0,
        never,
    )


def _outcomes(edits: Sequence[TextEdit], begin: int) -> list[tuple[int, int | None]]:
    """Of an answer what was put where, in order; None for its end."""
    out = list[tuple[int, int | None]]()
    for edit in edits:
        # Positions are those behind the whole edit, so from the left each is right when it is put.
        out += [(at - begin, token) for at, token in sorted(edit.insert)]
        out += [(at - begin, None) for at, _ in edit.write]
    return out
