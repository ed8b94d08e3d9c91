"""The toys that enumerations of a law run over: made so that methods do there what they are made
for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polydec.core.protocols import Shaper, Target
from polydec.core.request import Request
from polydec.core.types import TokenVocabulary
from polydec.lab.testing.enumerate import Law, target_law
from polydec.lab.testing.examples import SHAPERS, bend_target, target_draft_pairs
from polydec.lab.testing.toy import OrderTwoNetwork, ToyWords, toy_law
from polydec.laws.constraints.any_of import AnyOf
from polydec.laws.shapers.constrained import ConstraintRule
from polydec.models.sessions.lm import CausalLaw

REPEATING_PROMPTS = ((0, 0, 0, 1, 0, 0, 0), (0, 1, 0, 0, 1, 0))
"""Each ends with three tokens that stood before, for what copies; in the first a token stands once,
so that a place in a source can be found.
"""
LATER_LENGTHS = 2
"""By how many tokens an answer is lengthened at most where a method has drafted nothing in it: some
need rounds to begin.
"""
WHOLE_WINDOW = 7
"""Tokens of an answer in which there is room for windows of guesses, and for what they leave
behind.
"""
SHARP = 5.0
"""How far logits are spread where a method drafts only what is nearly certain."""
SPELLED = "a", "b", "ab"
ALLOWED = AnyOf(("aabab", "abab", "bab"))
"""Texts that force what follows, over pieces that can spell it in several ways."""


@dataclass(frozen=True)
class ToyLaw:
    """A law to enumerate a method over.

    Attributes:
        number: Of the law, from 1; shapings of one law share it.
        called: How it is called in sentences.
        bare: The target before shaping.
        draft: A draft model of the same vocabulary, shaped like the target.
        shapers: What shapes both.
        prompt: What the answer follows.
        length: Tokens of the answer, at least 1.
        later: By how many tokens the answer may be lengthened where nothing was drafted in it, 0 or
            more.
    """

    number: int
    called: str
    bare: Target
    draft: Target
    shapers: tuple[Shaper[Any], ...]
    prompt: tuple[int, ...]
    length: int
    later: int = 0

    @property
    def target(self) -> Target:
        """The law that the method decodes."""
        return bend_target(self.bare, self.shapers)

    @property
    def lengths(self) -> range:
        """The lengths that are tried, until something is drafted."""
        return range(self.length, self.length + self.later + 1)

    @property
    def shorter(self) -> ToyLaw:
        """The same with a token less, for a method whose draws fall in too many ways."""
        return replace(self, length=self.length - 1, later=0)

    def toy_request(self, length: int) -> Request:
        """What is asked.

        Args:
            length: Tokens of the answer, at least 1.

        Returns:
            The request.
        """
        return Request(self.prompt, max_tokens=length)

    def answer_law(self, length: int) -> Law:
        """What the answers' law must be.

        Args:
            length: Tokens of the answer, at least 1.

        Returns:
            The chance of each text.
        """
        return target_law(self.bare, self.prompt, length, self.shapers)


def toy_laws(
    count: int,
    length: int,
    shapings: Sequence[str],
    *,
    longer: int = 0,
    sharp: float | None = None,
    later: int = LATER_LENGTHS,
) -> Iterator[ToyLaw]:
    """Random laws of three tokens, every fourth one of four, with a draft that resembles them in
    half of them.

    Args:
        count: How many laws, at least 1.
        length: Tokens of an answer.
        shapings: Names of shapings (`examples.SHAPERS`); each law comes once under each.
        longer: How many of the laws, from the first, have an answer that is a token longer.
        sharp: How far the target's logits are spread; None: as usual.
        later: See `ToyLaw`.

    Yields:
        The laws, each under all shapings before the next one.
    """
    # The draft keeps its spread: sharper targets are then hit more often, and missed for certain.
    for i, (target, draft) in enumerate(target_draft_pairs(count)):
        if sharp is None:
            bare = target
        else:
            bare = toy_law(i + 1, target.vocab.size, sharp=sharp)
        for name in shapings:
            shapers = SHAPERS[name]
            yield ToyLaw(
                i + 1,
                f"toy law {i + 1}, {name}",
                bare,
                bend_target(draft, shapers),
                shapers,
                REPEATING_PROMPTS[i % len(REPEATING_PROMPTS)],
                length + (i < longer),
                later,
            )


def _constrained_laws(shapings: Sequence[str]) -> Iterator[ToyLaw]:
    """Laws under a constraint that leaves few choices."""
    # Pieces a, b, ab and an end: a text such as aab can be spelled in several ways.
    ends = frozenset({len(SPELLED)})
    vocab = TokenVocabulary(len(SPELLED) + 1, ends, words=ToyWords((*SPELLED, "."), ends))
    language = ALLOWED.token_language(vocab, ends)
    for i in (1, 2):
        for name in shapings:
            shapers = (ConstraintRule(language, tuple(ends)), *SHAPERS[name])
            draft = CausalLaw(OrderTwoNetwork(i + 101, vocab.size, cost=0.1), vocab, chunk=2)
            yield ToyLaw(
                i,
                f"toy law {i} of few texts, {name}",
                CausalLaw(OrderTwoNetwork(i, vocab.size), vocab, chunk=2),
                bend_target(draft, shapers),
                shapers,
                (0, 1, 0),
                4,
            )


def _sharp_laws(shapings: Sequence[str]) -> Iterator[ToyLaw]:
    return toy_laws(4, 3, shapings, sharp=SHARP, later=0)


def _long_laws(shapings: Sequence[str]) -> Iterator[ToyLaw]:
    return toy_laws(1, WHOLE_WINDOW, shapings, later=0)


FURTHER_LAWS: tuple[Callable[[Sequence[str]], Iterator[ToyLaw]], ...] = (
    _sharp_laws,
    _constrained_laws,
    _long_laws,
)
"""More laws by shapings, for methods that draft, or hit, or miss nothing over the usual ones: the
next group follows where the groups before it have not brought all three about.
"""
