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
    """What is known of the n best texts of one search; choice i is the i-th best. Raises RequestError, before anything is fed,
    where more are asked for than the search can give.

    into: where the answers are written; width: how many texts the search gives at most.
    """

    __slots__ = ("_answers", "_choices", "_first", "_live")

    def __init__(self, into: Transcript, width: int) -> None:
        self._choices = into.request.choices
        if self._choices.stop > width:
            raise RequestError(
                f"n is {self._choices.stop}: a search of width {width} gives at most {width} texts"
            )
        self._answers = [into.open(choice) for choice in self._choices]
        self._first: int | None = None  # tokens that were certain after the first pass
        self._live: Sequence[AnswerText] = ()  # after the pass before

    def settle(self, texts: Sequence[AnswerText]) -> None:
        """Called after every pass with all texts that may still win: what they have in common is certain."""
        sure = len(common_prefix_tokens(texts))
        stay = {id(text) for text in texts}
        for text in self._live:
            if id(text) not in stay:
                text.prune()
        self._live = texts
        for answer in self._answers:
            if sure > len(answer.tokens):
                answer.follow(texts[0], sure)
            elif self._first is None:
                answer.edit(
                    TextEdit()
                )  # nothing is certain yet: the clock of decoding starts all the same
        if self._first is None:
            self._first = sure

    def results(self, texts: Sequence[AnswerText], stats: SearchStats) -> list[Result]:
        """The answers, of at least one text that ended, the best first. A text that was found several times stands once; where
        fewer than n differ, the last of them stands for the rest."""
        once = dict[tuple[int, ...], AnswerText]()
        for text in texts:
            once.setdefault(tuple(text.tokens), text)
        ranked = list(once.values())
        out = list[Result]()
        mine = replace(stats, first=self._first or 0)
        for answer, choice in zip(self._answers, self._choices, strict=True):
            answer.follow(ranked[min(choice, len(ranked) - 1)])
            out.append(answer.result(mine))
            mine = replace(mine, scored=0, ended=0, written=0, judged=0)
        return out
