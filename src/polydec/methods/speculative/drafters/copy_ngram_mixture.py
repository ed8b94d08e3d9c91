"""Copy from the text or take what a table says, as one distribution at every node of a draft."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from polydec.base.errors import RequestError
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.drafters._walk import likeliest_first
from polydec.methods.speculative.drafters.suffix import PRIOR, SuffixDrafter, SuffixGuess
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.ngrams import NGrams
from polydec.models.native.copy_drafts import NativeCopyDrafter

Place = tuple[int, int, list[int]]
"""Of a node: state and length of its match in the text, and the last tokens."""


@dataclass(frozen=True)
class CopyNGramMixtureDrafter:
    """Mix copies from the text with an n-gram table: one law of the next token at every node.

    With the chance that the suffix automaton gives its continuations the next token is a copy, else
    one of the table's: p(x) = copy(x) + (1 - sum of copies) · table(x), at every node, whichever of
    the two proposed the way there. Nodes are taken in order of the product along their path until
    it falls below `floor` or the budget is full.

    Attributes:
        copy: How copies are found and judged (its own floor is not looked at).
        table: Counted in other texts of the same tokenizer.
        floor: Least chance of a path, 0 to 1. Default 0.05.
        width: Most children of a node, 1 to 16. Default 3.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `suffix` with a table that knows nothing; `backoff` in a text where nothing comes
    back; `nothing` with floor 1.
    Source: composition. The mixture is that of a cache language model (Kuhn and De Mori, 1990).
    """

    copy: SuffixDrafter
    table: NGrams
    floor: float = 0.05
    width: int = 3

    def __post_init__(self) -> None:
        if not 0.0 <= self.floor <= 1.0:
            raise RequestError(f"floor is {self.floor}: it must lie in 0 to 1")
        if not 1 <= self.width <= 16:
            raise RequestError(f"width is {self.width}: it must lie in 1 to 16")

    def open_guess(self, prompt: Sequence[int], session: Session) -> DraftGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess, which has read the prompt. It is the compiled one where there is one for the
            table, and nothing outlives the request.
        """
        compiled = self.table.compiled
        copy = self.copy
        # The compiled code reads the table and the text alone: it knows no store.
        if compiled is None or copy.store is not None:
            return CopyNGramMixtureGuess(self, copy.open_guess(prompt, session))
        copies = NativeCopyDrafter.of_table(
            compiled,
            trust=copy.trust,
            prior=PRIOR,
            min_match=copy.min_match,
            copies=copy.width,
            width=self.width,
        )
        copies.read_tokens(prompt)
        return CompiledGuess(self, copies)


@dataclass(frozen=True)
class CopyNGramMixtureGuess:
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        copier: The copying side, which holds the text.
    """

    config: CopyNGramMixtureDrafter
    copier: SuffixGuess

    @property
    def price(self) -> float:
        return self.copier.price

    @property
    def want(self) -> ScoreRequest:
        return self.copier.want

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow the tree of the likeliest paths of the mixture.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        config = self.config
        copier = self.copier
        order = self.config.table.order
        automaton, first, matched = copier.longest_match()
        # The stricter of both: the tree's own bound, and that of the moment.
        floor = max(config.floor, budget.floor)

        def children_after(at: Place, product: float) -> list[tuple[float, int, Place]]:
            """Children of a node by the mixture.

            Args:
                at: State and length of the node's match in the text, and its last tokens.
                product: Product of the chances of its path.

            Returns:
                Chance, token and place of each child that reaches the floor, likeliest first.
            """
            state, length, tail = at
            # Nothing follows the match that ends the text itself: a shorter one that stood before
            # takes its place.
            state, length = automaton.resumed_match(state, length)
            chance_of = dict[int, float]()
            match_of = dict[int, tuple[int, int]]()
            left = 1.0
            # Copies first: what their chances leave of 1 is the table's share.
            for p, x, to in copier.after(automaton, state, length):
                chance_of[x], match_of[x] = p, to
                left -= p
            # Below the floor, no token that only the table knows can be likely enough.
            if product * left >= floor:
                for p, x in config.table.followers_of(tail):
                    chance_of[x] = chance_of.get(x, 0.0) + left * p
            # Below the floor along the path a candidate can never be taken.
            likely = [(p, x) for x, p in chance_of.items() if product * p >= floor]
            if len(likely) > 1:
                likely = sorted(likely, key=_likelier)[: config.width]
            out = list[tuple[float, int, Place]]()
            # A token that only the table proposed may stand in the text too, after a shorter match:
            # the copier's place is looked up for it.
            for p, x in likely:
                match = match_of.get(x) or automaton.next_match(state, length, x)
                out.append((p, x, (*match, [*tail, x][-order:])))
            return out

        return likeliest_first(
            root, (first, matched, copier.text[-order:]), children_after, floor, budget
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and count whether copies came true.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.copier.learn_round(draft, scores, verdict)

    def fork_guess(self, session: Session, choice: int | None = None) -> CopyNGramMixtureGuess:
        """A guess with its own copy of the text.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return CopyNGramMixtureGuess(self.config, self.copier.fork_guess(session, choice))

    def close(self) -> None:
        self.copier.close()


@dataclass(frozen=True)
class CompiledGuess(DraftGuess):
    """The same drafter in the compiled library, equal to the bit.

    Attributes:
        config: The configuration.
        copies: The text and what is known of it.
    """

    config: CopyNGramMixtureDrafter
    copies: NativeCopyDrafter

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Grow the tree of the likeliest paths of the mixture.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The tree.
        """
        return self.copies.propose_tree(
            root, budget.depth, budget.nodes, max(self.config.floor, budget.floor)
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written, and count whether copies came true.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.copies.learn_tokens(verdict.written_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> CompiledGuess:
        """A guess with its own copy of the text.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return CompiledGuess(self.config, self.copies.copy())

    def close(self) -> None:
        pass


def _likelier(continuation: tuple[float, int]) -> tuple[float, int]:
    return -continuation[0], continuation[1]
