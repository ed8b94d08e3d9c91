"""A drafter that holds others passes the prompt's rows on to those that want them, and to no other."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft
from polydec.lab.testing.toy import toy_law
from polydec.methods.economics.costs import PassCosts
from polydec.methods.speculative.drafters.cost_aware import CostAwareDrafter
from polydec.methods.speculative.drafters.first_of import FirstOfDrafter
from polydec.methods.speculative.drafters.lookup import LookupDrafter
from polydec.methods.speculative.drafters.merged_tree import MergedTreeDrafter
from polydec.methods.speculative.drafters.recycling import RecyclingDrafter
from polydec.methods.speculative.drafters.suffix import SuffixDrafter
from polydec.methods.speculative.loop.events import ProposedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.match import MatchVerifier


class Silent:
    """Wants the prompt's rows and proposes nothing."""

    price = 0.0

    def __init__(self, seen):
        self.seen = seen

    def open_guess(self, prompt, session):
        return self

    @property
    def want(self):
        return (
            RecyclingDrafter(recycle_prefill=True)
            .open_guess((0,), toy_law(0).open_session((0,)))
            .want
        )

    async def propose_draft(self, root, position, budget, rng):
        return Draft.chain_draft(root)

    def learn_round(self, draft, scores, verdict):
        self.seen.append(verdict.prompt)

    def close(self):
        pass


@pytest.mark.parametrize(
    "hold",
    [
        lambda *d: FirstOfDrafter(d),
        lambda *d: MergedTreeDrafter(d),
        lambda *d: CostAwareDrafter(MergedTreeDrafter(d), None, PassCosts((1.0, 1.0), 0.0)),
    ],
    ids=["first", "merged", "cost-aware"],
)
@pytest.mark.parametrize("copier", [LookupDrafter(), SuffixDrafter()], ids=["lookup", "suffix"])
def test_copiers_read_the_prompt_once(hold, copier):
    def drafts(drafter):
        out = []

        def on(event):
            if isinstance(event, ProposedEvent):
                out.append((event.token, event.parent))

        decoder = SpeculativeDecoder(toy_law(3, 4), drafter, MatchVerifier(), FixedPolicy(4, 8))
        run_coroutines(
            [
                answer_one(
                    decoder, Request((0, 1, 2, 0, 1, 3, 1), max_tokens=40, ignore_eos=True), on=on
                )
            ]
        )
        return out

    seen = []
    assert drafts(hold(Silent(seen), copier)) == drafts(hold(copier))
    assert seen[0] is True and not any(seen[1:])
