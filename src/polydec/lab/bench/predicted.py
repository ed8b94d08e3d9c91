"""What methods would take on prompts that were decoded plainly: replayed without the model, priced by what passes cost here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import PolydecError
from polydec.core.protocols import Target
from polydec.lab.bench.measure import Method
from polydec.lab.bench.told import Recorded, remade
from polydec.methods.economics.costs import Costs
from polydec.methods.registry.kit import Artefact

COPIES = (
    Method("prompt-lookup", {}),
    Method("prompt-lookup", {"depth": "3"}),
    Method("suffix-automaton", {}),
    Method("copyspec", {}),
    Method("token-recycling", {}),
    Method("auto", {}),
)
"""What needs nothing but the model. Token Recycling, and auto that may weigh it, read other candidates of the model too, which
no record has: they come out a few per cent off."""
DRAFTED = tuple(Method("draft-model", {"depth": str(depth)}) for depth in (1, 2, 4))
"""What asks a draft model."""


@dataclass(frozen=True)
class Prediction:
    """What a method would take for all texts together. tokens: of the texts; passes: of the model."""

    method: Method
    tokens: int
    passes: int
    drafted: int
    accepted: int
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds > 0 else 0.0

    @property
    def tokens_per_pass(self) -> float:
        return self.tokens / self.passes if self.passes else 0.0


def plain(texts: Sequence[Recorded], costs: Costs) -> Prediction:
    """A token a pass."""
    count = sum(len(text.tokens) for text in texts)
    ms = sum(
        costs.share(1, 1, len(text.prompt) + i) for text in texts for i in range(len(text.tokens))
    )
    return Prediction(Method("plain", {}), count, count, 0, 0, ms / 1000)


def predict(
    texts: Sequence[Recorded],
    method: Method,
    costs: Costs,
    draft: Target | None = None,
    artefacts: Sequence[Artefact] = (),
) -> Prediction | None:
    """One method; None where it reads more of the model than a record has, or needs what is not there. artefacts: what was
    trained for the model."""
    count = passes = drafted = accepted = 0
    ms = 0.0
    for text in texts:
        try:
            again = remade(text, method.name, method.options, draft, costs, artefacts)
        except PolydecError:
            return None
        ms += sum(costs.share(r.drafted + 1, 1, r.position) for r in again.rounds)
        ms += again.others * costs.draft_ms
        count += len(text.tokens)
        passes += len(again.rounds)
        drafted += sum(r.drafted for r in again.rounds)
        accepted += sum(r.accepted for r in again.rounds)
    return Prediction(method, count, passes, drafted, accepted, ms / 1000)


def with_draft(costs: Costs, right: float, part: float, most: int = 8) -> tuple[int, float]:
    """What a draft model would bring that is right so often (0 to 1) and takes so large a part of a pass for a token: the best
    length of a draft up to `most`, and the tokens a second over plain's. A length of 0: it would not pay."""
    single = costs.share(1)

    def speed(k: int) -> float:
        tokens = sum(right**i for i in range(k + 1))
        return tokens * single / (costs.share(k + 1) + k * part * single)

    best = max(range(most + 1), key=speed)
    return best, speed(best)
