"""The contract of drafters that read the target's hidden states: they are the right ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product

from polydec.core.protocols import Session
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.exercised_counts import ContractCounts, require_mechanism_exercised
from polydec.lab.testing.toy import toy_law
from polydec.laws.shapers.greedy import GreedyRule
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.economics.tree_builder import TreeBuilder
from polydec.methods.speculative.loop.protocols import Drafter, DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.loop.walk import prefill_for_guess
from polydec.methods.speculative.verifiers.match import MatchVerifier
from polydec.models.sessions.lm import CausalLaw

SIZE = 7


@dataclass(frozen=True)
class InformedCounts(ContractCounts):
    """What a check saw a drafter make of states.

    Attributes:
        drafted: Drafted tokens that the text holds.
        informed: Rounds in which other tokens were drafted than in an earlier one behind the same
            token, on the same text or another: the states alone can have told which.
        middle: Rounds whose last state that counts was that of a node with others behind it.
    """

    drafted: int = 0
    informed: int = 0
    middle: int = 0


def check_informed(make: Callable[[CausalLaw], Drafter]) -> InformedCounts:
    """Check that a drafter that can tell the text from the target's states is never wrong.

    The text is greedy. What is fed is not always what the drafter proposed: wrong tokens stand
    beside and behind it, or nothing of it is fed, so that the state that counts is now the root's,
    now that of a node in the middle; guesses are forked on the way, and answers are written side by
    side. From the second round on every proposal must hold the text as far as it goes, and at least
    its first token. A class attribute `unexercised` of the drafter says, by the name of a count
    (InformedCounts), why that is 0.

    Args:
        make: From a target to the drafter, as an oracle: where the method has weights, something
            that knows the toy takes their place (`OrderTwoNetwork.oracle_state` computes the next token's
            law from a state and the tokens behind it).

    Returns:
        The counts.

    Raises:
        AssertionError: A proposal is wrong, or something that is to be checked never happened.
    """
    seen = Counter[str]()
    drafter = None
    for seed, tree in product(range(2), (True, False)):
        law = toy_law(seed, SIZE, eos=-1, sharp=3.0, tree=tree)
        drafter = make(law)
        prompts = ((0,), (0, 1, 2), (3, 1, 4, 1, 5))
        # All answers under one law share it: the same root with another draft shows that states
        # were read.
        first = dict[int, int]()
        run_coroutines(
            [_answer(law, drafter, prompt, at, seen, first) for at, prompt in enumerate(prompts)]
        )
    counts = InformedCounts(**seen)
    require_mechanism_exercised(counts, drafter)
    return counts


@dataclass
class InformedAnswer:
    """One answer under way.

    Attributes:
        guess: The drafter's guess for the text.
        session: The target's session of the text.
        root: Last token of the text, not yet fed.
        position: Absolute position of the token behind the root.
        told: Whether the guess has learned of a round yet.
        seen: What was counted so far, by the names of InformedCounts.
        first: By the root, the token that was drafted first behind it, in any answer under one law.
    """

    guess: DraftGuess
    session: Session
    root: int
    position: int
    told: bool
    seen: Counter[str]
    first: dict[int, int]
    """By the root, the token that was drafted first behind it, in any answer under one law."""

    def fork(self) -> InformedAnswer:
        session = self.session.fork()
        return replace(self, guess=self.guess.fork_guess(session), session=session)

    def close(self) -> None:
        self.guess.close()
        self.session.close()


async def _answer(
    law: CausalLaw,
    drafter: Drafter,
    prompt: tuple[int, ...],
    offset: int,
    seen: Counter[str],
    first: dict[int, int],
) -> None:
    session = ShapedTarget(law, GreedyRule()).open_session(prompt)
    guess = drafter.open_guess(prompt, session)
    line = InformedAnswer(guess, session, prompt[-1], len(prompt), False, seen, first)
    await prefill_for_guess(session, guess, prompt)
    # Each answer begins with another kind of feed, so that answers in one batch are fed unlike
    # drafts.
    kinds = list(FEEDS)
    for i in range(10):
        twin = line.fork()
        await _round(line, kinds[(i + offset) % len(kinds)], DraftBudget(1 + i % 4, 8))
        await _round(
            twin, kinds[(i + offset + 1) % len(kinds)], DraftBudget(3, 8)
        )  # goes another way, and is left behind
        await _round(twin, "as proposed", DraftBudget(3, 8))
        await _round(line, "as proposed", DraftBudget(2, 8))
        twin.close()
    line.close()


async def _round(line: InformedAnswer, kind: str, budget: DraftBudget) -> None:
    """Propose, look whether it is right, feed something of this kind, learn."""
    rng = Rng.of_choice(0)
    draft = await line.guess.propose_draft(line.root, line.position, budget, rng)
    text = await _text(line, budget.depth + 1)
    # How many tokens of the true text the draft holds as a path from its root.
    held = len(draft.nodes_of((line.root, *text))) - 1
    node = draft.nodes_of((line.root, *text))[-1]
    where = (
        f"behind position {line.position - 1}, after a round that was fed {line.told or 'nothing'}"
    )
    # The path ends where the draft does: a child there would be a token that the text does not
    # have.
    assert not draft.children[node], (
        f"{where}: {[draft.token[c] for c in draft.children[node]]} were drafted for {text[held]}"
    )
    assert held or not line.told, f"{where}: nothing was drafted"
    line.seen["drafted"] += held
    if held:
        line.seen["informed"] += line.first.setdefault(line.root, text[0]) != text[0]
    # The target scores another draft than was proposed, and the guess learns from that one.
    fed = FEEDS[kind](draft, text)
    scores = await line.session.score_draft(
        fed, replace(line.guess.want, law=RowDetail.ROW, prompt=False, last=False)
    )
    verdict = MatchVerifier().verify_draft(fed, scores, rng, line.position)
    if verdict.path:
        last = verdict.path[-1]
    else:
        last = 0
    # The state that counts is the last accepted node's; with nodes behind it, taking the last row
    # would be wrong.
    line.seen["middle"] += last < len(fed) - 1
    line.session.commit_tokens(verdict.committed_tokens(fed))
    line.guess.learn_round(fed, scores, verdict)
    line.root = verdict.bonus
    line.position = line.position + len(verdict.path) + 1
    line.told = True


async def _text(line: InformedAnswer, n: int) -> list[int]:
    """The next n tokens."""
    twin = line.session.fork()
    draft = Draft.chain_draft(line.root)
    for i in range(n):
        # Greedy decoding by a fork, one token a pass, is the reference.
        scores = await twin.score_draft(draft, ScoreRequest())
        draft = Draft.chain_draft(line.root, (*draft.token[1:], scores.likeliest_token(i)))
    twin.close()
    return list(draft.token[1:])


def _beside(draft: Draft, text: list[int]) -> Draft:
    """Wrong tokens stand before the right ones, with something below them."""
    out = TreeBuilder(draft.token[0])
    place = [0]
    for i in range(1, len(draft)):
        parent = place[draft.parent[i]]
        if not out.children[parent]:
            wrong = out.find_or_add(parent, (draft.token[i] + 1) % SIZE)
            out.find_or_add(wrong, text[0])
        place.append(out.find_or_add(parent, draft.token[i]))
    return out.built_draft()


def _behind(draft: Draft, text: list[int]) -> Draft:
    """The first token of the text, and wrong ones behind it."""
    wrong = (text[1] + 1) % SIZE
    return Draft.chain_draft(draft.token[0], (text[0], wrong, wrong))


def _wrong(draft: Draft, text: list[int]) -> Draft:
    """Nothing that is right."""
    return Draft.certain_tree(
        (draft.token[0], (text[0] + 1) % SIZE, (text[0] + 2) % SIZE, text[0]), (-1, 0, 0, 1)
    )


FEEDS: dict[str, Callable[[Draft, list[int]], Draft]] = {
    "as proposed": lambda draft, text: draft,
    "wrong ones beside": _beside,
    "wrong ones behind": _behind,
    "all wrong": _wrong,
    "none": lambda draft, text: Draft.chain_draft(draft.token[0]),
}
