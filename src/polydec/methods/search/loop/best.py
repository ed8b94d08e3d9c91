"""The answers of a search: its n best texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from polydec.base.errors import RequestError
from polydec.core.request import Result
from polydec.core.transcript import AnswerText, Transcript, common_prefix_tokens
from polydec.core.types import TextEdit
from polydec.methods.search.loop.stats import SearchStats


class NBestAnswers:
    """Writes the n best texts of one search; choice i is the i-th best."""

    __slots__ = ("_answers", "_choices", "_first", "_live")

    def __init__(self, into: Transcript, width: int) -> None:
        """Open the answers.

        Args:
            into: Record of the request.
            width: How many texts the search gives at most.

        Raises:
            RequestError: More answers are asked for than the search can give; nothing was fed yet.
        """
        self._choices = into.request.choices
        if self._choices.stop > width:
            raise RequestError(
                f"n is {self._choices.stop}: a search of width {width} gives at most {width} texts"
            )
        self._answers = [into.open_answer(choice) for choice in self._choices]
        # Tokens that were certain after the first pass; None before it.
        self._first: int | None = None
        # Texts that were alive after the pass before.
        self._live: Sequence[AnswerText] = ()

    def write_certain_text(self, texts: Sequence[AnswerText]) -> None:
        """Write what all texts that may still win have in common: it is certain.

        Called after every pass with all of these texts.
        """
        sure = len(common_prefix_tokens(texts))
        self._live = prune_lost_texts(self._live, texts)
        for answer in self._answers:
            if sure > len(answer.tokens):
                answer.follow_text(texts[0], sure)
            elif self._first is None:
                # Nothing is certain yet: the clock of decoding starts all the same.
                answer.edit_tokens(TextEdit())
        if self._first is None:
            self._first = sure

    def answers_of(self, texts: Sequence[AnswerText], stats: SearchStats) -> list[Result]:
        """Return the answers.

        A text that was found several times counts once. Where fewer than n differ, the last of them
        is given for the rest.

        Args:
            texts: Texts that ended, at least one, the best first.
            stats: What the search took.
        """
        once = dict[tuple[int, ...], AnswerText]()
        for text in texts:
            once.setdefault(tuple(text.tokens), text)
        ranked = list(once.values())
        out = list[Result]()
        mine = replace(stats, first=self._first or 0)
        for answer, choice in zip(self._answers, self._choices, strict=True):
            answer.follow_text(ranked[min(choice, len(ranked) - 1)])
            out.append(answer.finished_answer(mine))
            # Tokens of the search count with the first answer alone, so that they count once in a
            # sum.
            mine = replace(mine, scored=0, ended=0, written=0, judged=0)
        return out


def prune_lost_texts(
    before: Sequence[AnswerText], texts: Sequence[AnswerText]
) -> Sequence[AnswerText]:
    """Show in a trace that texts which are no longer among those that may win are pruned.

    Args:
        before: Texts that might win before a pass.
        texts: Those that may win after it.

    Returns:
        The latter.
    """
    stay = {id(text) for text in texts}
    for text in before:
        if id(text) not in stay:
            text.send_prune()
    return texts
