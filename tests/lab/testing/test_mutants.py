"""Known bugs of published decoders, each of which a contract must catch."""

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from polydec.core.decoder import answer_one
from polydec.core.law import exclude_token, float64_probabilities, residual_law
from polydec.core.rng import Rng
from polydec.core.trace import EditedEvent
from polydec.core.transcript import Transcript
from polydec.core.types import Draft, DrawKind, Exactness, ScoreRequest
from polydec.lab.testing.check_decoder import (
    check_batch,
    check_choices,
    check_decoder,
    check_ends,
    check_law,
    check_replay,
)
from polydec.lab.testing.check_drafter import check_drafter
from polydec.lab.testing.check_policy import check_policy
from polydec.lab.testing.check_target import check_shaped, check_target
from polydec.lab.testing.check_tree import check_tree
from polydec.lab.testing.check_verifier import check_verifier
from polydec.lab.testing.examples import SHAPERS
from polydec.lab.testing.toy import OrderTwoNetwork, TextCache, toy_law
from polydec.laws.targets.shaped import ShapedSession, ShaperStateNode, TextTrail
from polydec.methods.speculative.drafters.lookup import LookupDrafter, LookupGuess
from polydec.methods.speculative.drafters.model import ModelDrafter
from polydec.methods.speculative.drafters.nothing import NothingDrafter
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.types import Verdict, follow_draft_path
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.trees.chain import ChainTree
from polydec.methods.speculative.trees.static import StaticTree
from polydec.methods.speculative.verifiers.exact import ExactVerifier
from polydec.models.sessions.lm import CausalLaw


@dataclass(frozen=True)
class Rejection:
    """The exact rule for drawn children, written again with one place to break for each fault."""

    exactness: ClassVar = Exactness.LAW
    residual: bool = True  # False: a rejected draw's replacement comes from p itself
    bonus_above: bool = False  # the token after the path is drawn from the row of its parent
    certain_as_drawn: bool = (
        False  # a certain child is tested against the law that was read for its siblings
    )
    forget: bool = False  # siblings without replacement are tested as if they were independent
    probes: bool = False  # a probe may be accepted
    one_accept: bool = False  # all tests of a position share one draw
    reads_token_first: bool = False  # tests the draft with the randomness that the final draw uses

    def verify_draft(self, draft, scores, rng, position):
        node, path = 0, []
        while True:
            here, down, left = rng.child_stream("token", position + len(path)), None, {}
            probe = draft.probe if draft.probe and not self.probes else (False,) * len(draft)
            children, only = (
                [c for c, a in enumerate(draft.parent) if a == node and not probe[c]],
                scores.certain_token(node),
            )
            if only is not None:
                down = next((c for c in children if draft.token[c] == only), None)
                if down is None:
                    return Verdict(tuple(path), only)
                path.append(down)
                node = down
                continue
            p_V = float64_probabilities(scores.logprob_row(node))
            for k, c in enumerate(children):
                x, law_V = draft.token[c], draft.law[c]
                if law_V is None and self.certain_as_drawn:
                    law_V = next((draft.law[i] for i in children if draft.law[i] is not None), None)
                q_V = left.get(id(law_V), None if law_V is None else float64_probabilities(law_V))
                if q_V is None or not float(q_V.sum()) > 0:
                    q_V = float64_probabilities(scores.logprob_row(node)) * 0
                    q_V[x] = 1.0
                a = min(1.0, float(p_V[x]) / float(q_V[x])) if float(q_V[x]) > 0 else 1.0
                name = (
                    here
                    if self.reads_token_first
                    else here.child_stream("accept", 0 if self.one_accept else k)
                )
                if float(p_V[x]) > 0 and name.draw_bernoulli(a):
                    down = c
                    break
                p_V = residual_law(p_V, q_V) if self.residual else p_V
                if draft.draw[c] is DrawKind.WITHOUT and not self.forget:
                    left[id(law_V)] = exclude_token(q_V, x)
            if down is None:
                above = draft.parent[node] if self.bonus_above and node else node
                return Verdict(
                    tuple(path),
                    here.draw_categorical(
                        p_V if above == node else float64_probabilities(scores.logprob_row(above))
                    ),
                )
            path.append(down)
            node = down


def test_the_rule_itself_is_right():
    check_verifier(Rejection())


FAULTS = ["bonus_above", "certain_as_drawn", "forget", "probes", "one_accept", "reads_token_first"]


@pytest.mark.parametrize("fault", [{f: True} for f in FAULTS] + [{"residual": False}], ids=str)
def test_faulty_verifier(fault):
    with pytest.raises((AssertionError, RuntimeError), match=r"output law|drawn twice|probe node"):
        check_verifier(Rejection(**fault))


@dataclass(frozen=True)
class Noisy:
    """A verifier that draws every position with the noise of the first."""

    exactness: ClassVar = Exactness.LAW

    def verify_draft(self, draft, scores, rng, position):
        noise = rng.child_stream("token", position)
        return follow_draft_path(
            draft,
            lambda node, depth: noise.gumbel_noise(len(scores.logprob_row(node))).argmax_token(
                scores.logprob_row(node)
            ),
        )


def test_noise_of_another_position():
    with pytest.raises(AssertionError, match="output law"):
        check_verifier(Noisy())


@dataclass(frozen=True)
class Remade:
    """A tree whose drafts are changed after they were drawn."""

    change: object
    tree: object = StaticTree((2, 1))

    async def grow_tree(self, session, root, position, budget, rng):
        return self.change(await self.tree.grow_tree(session, root, position, budget, rng))


def forgotten_flag(draft):
    return replace(
        draft, draw=tuple(DrawKind.INDEPENDENT if d is DrawKind.WITHOUT else d for d in draft.draw)
    )


def dropped_weak_draws(draft):
    keep = [
        i
        for i, law_V in enumerate(draft.law)
        if law_V is None or float(law_V[draft.token[i]].exp()) > 0.25
    ]
    keep = [i for i in keep if set(draft.path_to(i)) <= set(keep)]
    new = {i: n for n, i in enumerate(keep)} | {-1: -1}
    return Draft(
        tuple(draft.token[i] for i in keep),
        tuple(new[draft.parent[i]] for i in keep),
        tuple(draft.draw[i] for i in keep),
        tuple(draft.law[i] for i in keep),
    )


def cold_law(draft):
    return replace(
        draft,
        law=tuple(None if law_V is None else (law_V / 0.7).log_softmax(-1) for law_V in draft.law),
    )


def sorted_siblings(draft):
    """Siblings by token, not in the order drawn."""
    order = sorted(
        range(len(draft)), key=lambda i: (draft.depth[i], draft.parent[i], draft.token[i])
    )
    new = {i: n for n, i in enumerate(order)} | {-1: -1}
    return Draft(
        tuple(draft.token[i] for i in order),
        tuple(new[draft.parent[i]] for i in order),
        tuple(draft.draw[i] for i in order),
        tuple(draft.law[i] for i in order),
    )


def called_certain(draft):
    return replace(draft, draw=(DrawKind.CERTAIN,) * len(draft), law=(None,) * len(draft))


TREES = [forgotten_flag, dropped_weak_draws, cold_law, sorted_siblings, called_certain]


@pytest.mark.parametrize("change", TREES)
def test_faulty_tree(change):
    check_tree(Remade(lambda draft: draft))
    with pytest.raises(AssertionError):
        check_tree(Remade(change))


@pytest.mark.parametrize("change", TREES[:4])
def test_faulty_tree_shows_in_the_output_law(change):
    with pytest.raises(AssertionError):
        check_law(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, Remade(change)), ExactVerifier(), FixedPolicy(2, 4)
            ),
            laws=8,
            length=2,
        )


@dataclass(frozen=True)
class WrongNames:
    """Draws keyed by the absolute position: a token that was rejected is drawn again with the same randomness."""

    async def grow_tree(self, session, root, position, budget, rng):
        draft = Draft.chain_draft(root)
        for depth in range(1, min(budget.depth, budget.nodes) + 1):
            law_V = (await session.score_draft(draft, ScoreRequest())).logprob_row(depth - 1)
            token = rng.child_stream("draft", position + depth).draw_categorical(law_V.exp())
            draft = draft.with_node(token, depth - 1, DrawKind.INDEPENDENT, law_V)
        return draft


def test_draws_named_by_position_alone():
    with pytest.raises((AssertionError, RuntimeError)):
        check_decoder(
            lambda t, d: SpeculativeDecoder(
                t, ModelDrafter(d, WrongNames()), ExactVerifier(), FixedPolicy(3)
            )
        )


class LongCommit(TextCache):
    """Keeps one staged entry more than was accepted."""

    def keep_path(self, path, stay):
        more = [j for j in range(len(self.parent)) if j not in (*path, *stay)][:1] if path else []
        super().keep_path([*path, *more], stay)


class LongTruncate(TextCache):
    """Forgets one entry too few."""

    def truncate_entries(self, length):
        super().truncate_entries(min(length + 1, self.length))


class SharedFork(TextCache):
    """Twins that write to one another."""

    def fork(self, length=None):
        twin = super().fork(length)
        if length is None:
            twin.text = self.text
        return twin


class FirstRows(TextCache):
    """Keeps the first staged entries in place of the accepted ones."""

    def keep_path(self, path, stay):
        super().keep_path(range(len(path)), stay)


@pytest.mark.parametrize("cache", [LongCommit, LongTruncate, SharedFork, FirstRows])
def test_faulty_cache(cache):
    table = OrderTwoNetwork(3)
    table.new_cache = cache
    check_target(CausalLaw(OrderTwoNetwork(3), toy_law(3).vocab, chunk=2))
    with pytest.raises((AssertionError, IndexError)):
        check_target(CausalLaw(table, toy_law(3).vocab, chunk=2))


class Lagging(ShaperStateNode):
    """The state of a node is that of its parent: one token behind."""

    __slots__ = ()

    def next_node(self, token):
        kid = self.kids.get(token)
        if kid is None:
            kid = self.kids[token] = Lagging(self, token)
        return kid

    def state_of_shapers(self, shapers):
        return ShaperStateNode.state_of_shapers(self.above if self.depth > 0 else self, shapers)


@dataclass(frozen=True)
class LaggingShaped:
    target: object
    shapers: tuple

    @property
    def vocab(self):
        return self.target.vocab

    def open_session(self, prompt):
        return ShapedSession(
            self.shapers,
            self.target.open_session(prompt),
            TextTrail(Lagging(None, None, tuple(prompt[:-1]))),
        )


def test_shaper_state_one_token_behind():
    with pytest.raises(AssertionError):
        check_shaped(LaggingShaped(toy_law(3), SHAPERS["shaped"]), toy_law(3), SHAPERS["shaped"])

    def decoder(target, draft):
        lag = LaggingShaped(target.target, target.shapers)
        return SpeculativeDecoder(
            lag, ModelDrafter(draft, ChainTree()), ExactVerifier(), FixedPolicy(2)
        )

    with pytest.raises(AssertionError):
        check_law(decoder, laws=2, shapings=["shaped"])


@dataclass(frozen=True)
class Broken:
    """A decoder with a fault around it."""

    inner: SpeculativeDecoder
    exactness: ClassVar = Exactness.LAW

    def run(self, request, rng=None, on=lambda e: None):
        return answer_one(self.inner, request, rng, on)

    @property
    def vocab(self):
        return self.inner.vocab


class EosLeak(Broken):
    """Takes an accepted run whole, although an end stands inside it."""

    async def write_choices(self, request, rng, into):
        ends = request.stop_ids | (frozenset() if request.ignore_eos else self.inner.vocab.eos)
        free = replace(request, ignore_eos=True, stop_ids=frozenset())
        out = (await self.inner.write_choices(free, rng, Transcript(free, frozenset(), into.on)))[0]
        stop = next((i for i, x in enumerate(out.token_ids) if x in ends), None)
        return [
            out
            if stop is None
            else replace(out, token_ids=out.token_ids[: stop + 2], finish_reason="stop")
        ]


class OneStream(Broken):
    """All choices and seeds draw from one stream."""

    def write_choices(self, request, rng, into):
        return self.inner.write_choices(request, lambda choice: Rng.of_choice(0), into)


COUNT = defaultdict(int)


class TakesTurns(Broken):
    """The stream depends on how many requests came before: neighbours share randomness."""

    def write_choices(self, request, rng, into):
        COUNT["requests"] += 1
        stream = Rng.of_choice(COUNT["requests"])
        return self.inner.write_choices(request, lambda choice: stream, into)


class Mislabelled(Broken):
    """Reports its edits one position off."""

    def write_choices(self, request, rng, into):
        def shifted(event):
            if isinstance(event, EditedEvent):
                event = replace(
                    event,
                    edit=replace(
                        event.edit, write=tuple((max(3, at - 1), x) for at, x in event.edit.write)
                    ),
                )
            on(event)

        on, into.on = into.on, shifted
        return self.inner.write_choices(request, rng, into)


@pytest.mark.parametrize(
    "fault, check",
    [
        (EosLeak, check_ends),
        (OneStream, check_choices),
        (TakesTurns, check_batch),
        (Mislabelled, check_replay),
    ],
)
def test_faulty_decoder(fault, check):
    def good(target, draft):
        return SpeculativeDecoder(
            target, ModelDrafter(draft, ChainTree()), ExactVerifier(), FixedPolicy(3)
        )

    check(good)
    with pytest.raises(AssertionError):
        check(lambda target, draft: fault(good(target, draft)))


class ForkShares(LookupGuess):
    """A fork that learns what its twin is told."""

    def fork_guess(self, session=None, choice=None):
        return self


@dataclass(frozen=True)
class Forgetful(LookupDrafter):
    def open_guess(self, prompt, session):
        guess = super().open_guess(prompt, session)
        return ForkShares(self, guess.windows, guess.rates)


class Deep(NothingDrafter):
    """Drafts past its budget."""

    def open_guess(self, prompt, session):
        return DeepGuess()


class DeepGuess:
    want = ScoreRequest(law=0)
    price = 0.0

    async def propose_draft(self, root, position, budget, rng):
        return Draft.chain_draft(root, (0,) * (budget.depth + 1))

    def learn_round(self, draft, scores, verdict): ...
    def close(self): ...
    def fork_guess(self, session=None, choice=None):
        return self


@pytest.mark.parametrize("drafter", [Forgetful(), Deep()], ids=["fork shares", "too deep"])
def test_faulty_drafter(drafter):
    with pytest.raises(AssertionError):
        check_drafter(drafter)


class Moody(FixedPolicy):
    """A policy that remembers outside its state."""

    def draft_budget(self, state):
        COUNT["policy"] += 1
        return replace(super().draft_budget(state), depth=COUNT["policy"] % 3)


def test_faulty_policy():
    with pytest.raises(AssertionError):
        check_policy(Moody())
