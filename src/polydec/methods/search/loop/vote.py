"""Pick the answer that most texts give (majority vote)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.methods.search.loop.best_of import candidate_score
from polydec.methods.search.loop.types import CandidateText, answer_of


@dataclass(frozen=True)
class MajorityVotePicker:
    """Picks the answer that most texts give.

    The answer of a text is what stands after the last `mark`, else its last line. The vote of a
    text weighs what a reward says of it, 1 where none was asked. Of the texts that give the winner,
    the one of the highest score is picked (a reward's, else the mean log-probability). Texts
    without an answer do not vote. As many votes: the answer whose texts have more steps together,
    then the one that was given first.

    Attributes:
        mark: What stands before an answer; "": the answer is the last line.
        keep: How many texts vote, those of the most steps (lines that are not empty); earlier begun
            ones first where these are equal. 0: all.

    Source: Wang et al., "Self-consistency improves chain of thought reasoning in language models"
    (2022); with `keep` Fu et al., "Complexity-based prompting for multi-step reasoning" (2022);
    with a reward Li et al., "Making language models better reasoners with step-aware verifier"
    (2022).
    """

    mark: str = ""
    keep: int = 0

    def __post_init__(self) -> None:
        if self.keep < 0:
            raise RequestError(f"keep is {self.keep}: it must be at least 0")

    def pick_text(self, tries: Sequence[CandidateText]) -> int:
        answers = said_of(tries, self.mark)
        # The sort is stable: of texts with as many steps the earlier begun vote.
        voters = sorted(answers, key=lambda i: -count_steps(tries[i].said))[: self.keep or None]
        weight = {i: 1.0 if (value := tries[i].value) is None else value for i in voters}
        return elect_answer(tries, {i: answers[i] for i in voters}, weight)


def said_of(tries: Sequence[CandidateText], mark: str) -> dict[int, str]:
    """Return the answer of every text that has one, by its index.

    Args:
        tries: The texts.
        mark: What stands before an answer; "": the answer is the last line.
    """
    return {i: answer for i, t in enumerate(tries) if (answer := answer_of(t.said, mark))}


def elect_answer(
    tries: Sequence[CandidateText], answers: Mapping[int, str], weight: Mapping[int, float]
) -> int:
    """Elect an answer by weighted votes, and return the text that speaks for it.

    The answer wins whose texts weigh most together, then the one whose texts have more steps
    together, then the one that was given first.

    Args:
        tries: The texts.
        answers: Answer of each text that has one, by its index.
        weight: Weight of each of these texts' votes.

    Returns:
        Index of the text of the highest score among those that give the answer; among all texts
        where none gave an answer.
    """
    if not answers:
        return max(range(len(tries)), key=lambda i: candidate_score(tries[i]))
    votes = defaultdict[str, float](float)
    complexity = defaultdict[str, int](int)
    voters = sorted(answers)
    for i in voters:
        votes[answers[i]] += weight[i]
        complexity[answers[i]] += count_steps(tries[i].said)
    # `max` returns the first of equal ones: the answer that was given first.
    most = max(voters, key=lambda i: (votes[answers[i]], complexity[answers[i]]))
    return max(
        (i for i in voters if answers[i] == answers[most]), key=lambda i: candidate_score(tries[i])
    )


def count_steps(text: str) -> int:
    """Return the number of lines that are not empty."""
    return sum(bool(line.strip()) for line in text.split("\n"))
