"""Methods that once drafted nothing where their law was enumerated: a fault in what they draft or accept shows there now."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest

from polydec.core.types import Exactness
from polydec.lab.testing.check_decoder import check_decoder, check_law
from polydec.lab.testing.examples import example_decoder
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.exact import ExactVerifier

ONCE_SILENT = (
    "aded",
    "aggressive-decoding",
    "copyspec",
    "hidden-transfer",
    "jump-forward",
    "lexical-unit-decoding-verified",
    "lookahead",
    "lookup-recycling",
    "merged-drafts",
    "mtp",
    "ppd",
    "prompt-lookup",
    "stand",
    "suffix-automaton",
    "token-recycling",
)


@dataclass(frozen=True)
class TakesRejected:
    """Accepts the first drafted token where the rule has rejected all."""

    inner: Any
    exactness: ClassVar[Exactness] = Exactness.LAW

    def verify_draft(self, draft, scores, rng, position):
        verdict = self.inner.verify_draft(draft, scores, rng, position)
        if verdict.path or not draft.children[0]:
            return verdict
        first = draft.children[0][0]
        return Verdict((first,), scores.likeliest_token(first))


@dataclass(frozen=True)
class SaysAnotherLaw:
    """Draws as it did, and declares a colder law than it drew from."""

    inner: Any

    def open_guess(self, prompt, session):
        return SaysAnotherLawGuess(self.inner.open_guess(prompt, session))


@dataclass(frozen=True)
class SaysAnotherLawGuess:
    inner: Any

    def __getattr__(self, name):
        return getattr(self.inner, name)

    async def propose_draft(self, root, position, budget, rng):
        draft = await self.inner.propose_draft(root, position, budget, rng)
        laws = tuple(None if row is None else (row * 3.0).log_softmax(-1) for row in draft.law)
        return replace(draft, law=laws)


@pytest.mark.parametrize("name", ONCE_SILENT)
def test_a_rejected_token_that_is_accepted(name):
    def make(target, draft):
        made = example_decoder(name, target, draft)
        return replace(made, verifier=TakesRejected(made.verifier))

    with pytest.raises(AssertionError, match="the output law is off by"):
        check_law(make, laws=2, length=2)


@pytest.mark.parametrize("name", ["stand", "mtp"])
def test_a_draft_that_says_another_law(name):
    def make(target, draft):
        made = example_decoder(name, target, draft)
        return replace(made, drafter=SaysAnotherLaw(made.drafter))

    with pytest.raises(AssertionError, match="the output law is off by"):
        check_law(make, laws=2, length=2)


def test_a_method_that_never_drafts_says_so():
    with pytest.raises(
        AssertionError, match=r"0 drafted and 0 accepted and 0 rejected \(of \d+ laws"
    ):
        check_law(lambda target, draft: example_decoder("plain", target, draft), laws=1, length=2)


@dataclass(frozen=True)
class Unpromised:
    """An exact verifier that does not say so: no law of it is enumerated."""

    exactness: ClassVar = Exactness.APPROXIMATE

    def verify_draft(self, draft, scores, rng, position):
        return ExactVerifier().verify_draft(draft, scores, rng, position)


def test_an_approximate_method_that_never_drafts_says_so():
    def make(drafter):
        return lambda target, draft: SpeculativeDecoder(
            target, drafter, Unpromised(), FixedPolicy(3)
        )

    check_decoder(make(LookupDrafter()))
    with pytest.raises(AssertionError, match="0 drafted and 0 accepted and 0 rejected"):
        check_decoder(make(NothingDrafter()))


@pytest.mark.parametrize("name", ["prompt-lookup", "token-recycling"])
def test_a_reason_that_is_not_true_fails(name):
    with pytest.raises(AssertionError, match="though it declares that there are none"):
        check_law(
            lambda target, draft: example_decoder(name, target, draft),
            laws=2,
            length=3,
            unexercised={"rejected": "it never misses"},
        )
