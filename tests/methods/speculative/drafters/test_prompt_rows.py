"""A drafter that holds others passes the prompt's rows on to those that want them, and to no other."""

import pytest

from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.scheduler import run
from polydec.core.types import Draft
from polydec.lab.testing.toy import toy
from polydec.methods.economics.costs import Costs
from polydec.methods.speculative.drafters.cost_aware import CostAware
from polydec.methods.speculative.drafters.first_of import FirstOf
from polydec.methods.speculative.drafters.lookup import Lookup
from polydec.methods.speculative.drafters.merged_tree import MergedTree
from polydec.methods.speculative.drafters.recycling import Recycling
from polydec.methods.speculative.drafters.suffix import Suffix
from polydec.methods.speculative.loop.events import Proposed
from polydec.methods.speculative.loop.speculative import Speculative
from polydec.methods.speculative.policies.fixed import Fixed
from polydec.methods.speculative.verifiers.match import Match


class Silent:
    """Wants the prompt's rows and proposes nothing."""

    price = 0.0

    def __init__(self, seen):
        self.seen = seen

    def open(self, prompt, session):
        return self

    @property
    def want(self):
        return Recycling(recycle_prefill=True).open((0,), toy(0).open((0,))).want

    async def propose(self, root, position, budget, rng):
        return Draft.chain(root)

    def learn(self, draft, scores, verdict):
        self.seen.append(verdict.prompt)

    def close(self):
        pass


@pytest.mark.parametrize(
    "hold",
    [
        lambda *d: FirstOf(d),
        lambda *d: MergedTree(d),
        lambda *d: CostAware(MergedTree(d), None, Costs((1.0, 1.0), 0.0)),
    ],
    ids=["first", "merged", "cost-aware"],
)
@pytest.mark.parametrize("copier", [Lookup(), Suffix()], ids=["lookup", "suffix"])
def test_copiers_read_the_prompt_once(hold, copier):
    def drafts(drafter):
        out = []

        def on(event):
            if isinstance(event, Proposed):
                out.append((event.token, event.parent))

        decoder = Speculative(toy(3, 4), drafter, Match(), Fixed(4, 8))
        run(
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
