"""Does a method that puts tokens in by draws keep the model's own process? Every insertion, and every
end, against the law that a fresh pass over the same text gives both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from polydec.api import LoadedModel, Prompt, generate
from polydec.core.insertion_law import Inserter, InsertionScores
from polydec.core.law import float64_probabilities, normalise_log_weights
from polydec.core.scheduler import run_coroutines
from polydec.core.trace import EditedEvent, TraceEvent
from polydec.core.types import TextEdit
from polydec.lab.bench.forced import token_fate
from polydec.lab.bench.places import TokenPlace
from polydec.lab.bench.sampled_laws import (
    LawTest,
    MethodSample,
    SampledToken,
    SamplingFindings,
    conclude_law_tests,
    neighbour_rank_test,
    rank_cells_test,
    shared_randomness_test,
    spread_over,
    surprise_test,
)
from polydec.laws.shapers.sampling import Sampling, build_shapers


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


def sample_insertion_law(
    lm: LoadedModel,
    prompts: Sequence[tuple[Prompt, bool]],
    method: str,
    options: Mapping[str, Any],
    *,
    samples: int,
    seed: int = 0,
    sampling: Sampling,
    max_tokens: int,
) -> tuple[SamplingFindings, InsertionDistance]:
    """Draw texts, and test every insertion and every end against the law of a fresh pass over the
    text as it stood.

    Of several tokens of one pass each is looked at behind those to its left, as if it had seen them.

    Args:
        lm: An insertion model.
        prompts: Prompts, each with whether it goes in without the chat template.
        method: Name of a method that puts tokens in.
        options: Its options.
        samples: Texts for each prompt, at least 1.
        seed: The first of the seeds over which they are spread. Default 0.
        sampling: Sampling rules.
        max_tokens: The most tokens of an answer.

    Returns:
        The tests and what they come to, and how far the draws are from the law: the first is for
        methods that promise the law, the second for all others.
    """
    model: Inserter = lm.checkpoint.lm
    end = min(model.vocab.eos)
    dice = np.random.default_rng(seed)
    drawn = list[SampledToken]()
    texts = dict[Any, tuple[int, ...]]()
    passes = 0
    positions = 0
    for at, (prompt, raw) in enumerate(prompts):
        ids = tuple(lm.encode_prompt(prompt, raw=raw))
        for i, n in enumerate(spread_over(samples)):
            watch = InsertionObserver()
            completion = generate(
                lm,
                prompt,
                method=method,
                options=options,
                raw=raw,
                seed=seed + i,
                n=n,
                sampling=sampling,
                max_tokens=max_tokens,
                on=watch,
            )
            passes += int(completion.metrics["target_passes"])
            positions += int(completion.metrics["positions_fed"])
            for choice, written in enumerate(completion.choices):
                texts[at, seed + i, choice] = written.token_ids
                shapers = build_shapers(sampling, order="vllm", seed=seed + i, choice=choice)
                answer = list[int]()
                for step, (where, outcome) in enumerate(_outcomes(watch.edits[choice], len(ids))):
                    offer = score_whole_text(model, ids, answer, end)
                    size = offer.logw_SV.shape[1]
                    # The end is the last outcome, behind those of all slots.
                    index = (len(answer) + 1) * size if outcome is None else where * size + outcome
                    law_N = step_law(offer, shapers).numpy()
                    fate = token_fate(law_N, index, dice.random())
                    place = TokenPlace(step + 1, 1, False)
                    before = tuple(answer)
                    drawn.append(
                        SampledToken(at, seed + i, choice, step, index, place, fate, before)
                    )
                    if outcome is not None:
                        answer.insert(where, outcome)
    ours = MethodSample(tuple(drawn), passes, positions, 0.0, texts)
    # Tests need finite surprises; what the law excludes is a fault of its own.
    possible = [d for d in drawn if d.fate.chance > 0.0]
    never = [d for d in drawn if d.fate.chance <= 0.0]
    tests = [
        surprise_test(possible),
        rank_cells_test(possible),
        neighbour_rank_test(possible),
        shared_randomness_test(possible),
    ]
    if never:
        d = never[0]
        what = f"prompt {d.prompt + 1}, seed {d.seed}, answer {d.choice}, {d.place}"
        tests.append(LawTest("impossible", 0.0, float(len(never)), what))
    far = InsertionDistance(
        len(drawn),
        None if never or not drawn else mean(d.fate.surprise for d in drawn),
        mean(d.fate.entropy for d in drawn) if drawn else 0.0,
        len(never),
    )
    # Each outcome has a fresh pass of its own.
    cost = {"method": ours.cost, "plain": {"passes": float(len(drawn))}}
    return conclude_law_tests(tests, (), ours, cost), far


def _outcomes(edits: Sequence[TextEdit], begin: int) -> list[tuple[int, int | None]]:
    """Of an answer what was put where, in order; None for its end."""
    out = list[tuple[int, int | None]]()
    for edit in edits:
        # Positions are those behind the whole edit, so from the left each is right when it is put.
        out += [(at - begin, token) for at, token in sorted(edit.insert)]
        out += [(at - begin, None) for at, _ in edit.write]
    return out
