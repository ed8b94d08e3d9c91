"""What methods would take on prompts that were decoded plainly: replayed without the model, priced
by what passes cost here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import PolydecError
from polydec.core.protocols import Target
from polydec.lab.bench.measure import MethodSetting
from polydec.lab.bench.recorded_target import RecordedAnswer, replay_run
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
"""What needs nothing but the model. Token Recycling, and auto that may weigh it, read other
candidates of the model too, which no record has: they come out a few per cent off."""
DRAFTED = tuple(MethodSetting("draft-model", {"depth": str(depth)}) for depth in (1, 2, 4))
"""What asks a draft model."""


@dataclass(frozen=True)
class MethodPrediction:
    """What a method would take for all texts together.

    Attributes:
        method: The method and its options.
        tokens: Tokens of the texts.
        passes: Passes of the model.
        drafted: Draft tokens that were proposed.
        accepted: Draft tokens that the model accepted.
        seconds: Predicted time of all passes, those of a draft model included.
    """

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
    """Predict plain decoding: one token a pass.

    Args:
        texts: Answers that were recorded.
        costs: What passes of the model take on this machine.

    Returns:
        The prediction for all texts together.
    """
    count = sum(len(text.tokens) for text in texts)
    # A pass over one row at each position: its cost grows with the cached context.
    ms = sum(
        costs.request_share(1, 1, len(text.prompt) + i)
        for text in texts
        for i in range(len(text.tokens))
    )
    return MethodPrediction(MethodSetting("plain", {}), count, count, 0, 0, ms / 1000)


def predict_method(
    texts: Sequence[RecordedAnswer],
    method: MethodSetting,
    costs: PassCosts,
    draft: Target | None = None,
    artefacts: Sequence[ModelArtefact] = (),
) -> MethodPrediction | None:
    """Predict a method by replaying recorded answers without the model.

    Args:
        texts: Answers that were recorded under plain decoding.
        method: The method and its options.
        costs: What passes of the model, and of a draft model, take on this machine.
        draft: The draft model's law, for methods that draft with one; None: there is none.
        artefacts: What was trained for the model, such as a table of n-grams.

    Returns:
        The prediction for all texts together; None where the method reads more of the model than a
        record has, or needs what is not there.
    """
    count = passes = drafted = accepted = 0
    ms = 0.0
    for text in texts:
        try:
            again = replay_run(text, method.name, method.options, draft, costs, artefacts)
        # A record has tokens and nothing else: methods that read states or laws refuse it.
        except PolydecError:
            return None
        # A round's pass feeds the pending root and the draft: drafted + 1 rows.
        ms += sum(costs.request_share(r.drafted + 1, 1, r.position) for r in again.rounds)
        # Passes of a draft model, each at its own cost.
        ms += again.others * costs.draft_ms
        count += len(text.tokens)
        passes += len(again.rounds)
        drafted += sum(r.drafted for r in again.rounds)
        accepted += sum(r.accepted for r in again.rounds)
    return MethodPrediction(method, count, passes, drafted, accepted, ms / 1000)


def with_draft(costs: PassCosts, right: float, part: float, most: int = 8) -> tuple[int, float]:
    """Predict what a draft model of a given accuracy and cost would bring.

    The expected tokens of a round with k draft tokens are 1 + right + … + right^k, as a draft
    counts up to its first rejected token.

    Args:
        costs: What passes of the model take on this machine.
        right: Probability that a draft token is accepted, 0 to 1.
        part: Cost of a draft token as a share of a pass of the model over one row.
        most: The longest draft that is tried, tokens. Default 8.

    Returns:
        The best draft length, 0 where drafting does not pay, and its tokens a second as a multiple
        of plain decoding's.
    """
    single = costs.request_share(1)

    def speed_at(k: int) -> float:
        tokens = sum(right**i for i in range(k + 1))
        return tokens * single / (costs.request_share(k + 1) + k * part * single)

    best = max(range(most + 1), key=speed_at)
    return best, speed_at(best)
