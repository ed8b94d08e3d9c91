"""What methods would take on prompts that were decoded plainly: replayed without the model, priced by what passes cost here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import PolydecError
from polydec.core.protocols import Target
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.bench.told import RecordedAnswer, replay_run
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry.kit import ModelArtefact

COPIES = (
    MethodSetting("prompt-lookup", {}),
    MethodSetting("prompt-lookup", {"depth": "3"}),
    MethodSetting("suffix-automaton", {}),
    MethodSetting("copyspec", {}),
    MethodSetting("token-recycling", {}),
    MethodSetting("auto", {}),
)
"""What needs nothing but the model. Token Recycling, and auto that may weigh it, read other candidates of the model too, which
no record has: they come out a few per cent off."""
DRAFTED = tuple(MethodSetting("draft-model", {"depth": str(depth)}) for depth in (1, 2, 4))
"""What asks a draft model."""


@dataclass(frozen=True)
class MethodPrediction:
    """What a method would take for all texts together. tokens: of the texts; passes: of the model."""

    method: MethodSetting
    tokens: int
    passes: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        if self.seconds > 0:
            return self.tokens / self.seconds
        return 0.0

    @property
    def tokens_per_pass(self) -> float:
        if self.passes:
            return self.tokens / self.passes
        return 0.0


def predict_plain_decoding(texts: Sequence[RecordedAnswer], costs: PassCosts) -> MethodPrediction:
    """A token a pass."""
    count = sum(len(text.tokens) for text in texts)
    ms = sum(
        costs.share(1, 1, len(text.prompt) + i) for text in texts for i in range(len(text.tokens))
    )
    return MethodPrediction(MethodSetting("plain", {}), count, count, 0, 0, ms / 1000)


def predict_method(
    texts: Sequence[RecordedAnswer],
    method: MethodSetting,
    costs: PassCosts,
    draft: Target | None = None,
    artefacts: Sequence[ModelArtefact] = (),
) -> MethodPrediction | None:
    """One method; None where it reads more of the model than a record has, or needs what is not there. artefacts: what was
    trained for the model."""
    count = passes = drafted = accepted = 0
    ms = 0.0
    for text in texts:
        try:
            again = replay_run(text, method.name, method.options, draft, costs, artefacts)
        except PolydecError:
            return None
        ms += sum(costs.share(r.drafted + 1, 1, r.position) for r in again.rounds)
        ms += again.others * costs.draft_ms
        count += len(text.tokens)
        passes += len(again.rounds)
        drafted += sum(r.drafted for r in again.rounds)
        accepted += sum(r.accepted for r in again.rounds)
    return MethodPrediction(method, count, passes, drafted, accepted, ms / 1000)


def with_draft(costs: PassCosts, right: float, part: float, most: int = 8) -> tuple[int, float]:
    """What a draft model would bring that is right so often (0 to 1) and takes so large a part of a pass for a token: the best
    length of a draft up to `most`, and the tokens a second over plain's. A length of 0: it would not pay."""
    single = costs.share(1)

    def speed(k: int) -> float:
        tokens = sum(right**i for i in range(k + 1))
        return tokens * single / (costs.share(k + 1) + k * part * single)

    best = max(range(most + 1), key=speed)
    return best, speed(best)
