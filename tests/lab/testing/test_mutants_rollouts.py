"""Faults that searches over drawn texts can have, each of which a check must catch. Those of the contract are not told which
search they check; what only a search's own description can tell is held against that."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import rollouts_reference
from polydec.core.decoder import answer_one
from polydec.core.request import Request
from polydec.core.rng import Rng
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing import check_rollouts, check_search
from polydec.lab.testing.toy import toy_law
from polydec.methods.search.loop.common_statement import AnswerAgreement
from rewards import ByToken
from rollouts_reference import PROMPT, plain, speaking, tries, valued

LENGTH = 7


def answer(decoder, seed, most=LENGTH, **fields):
    return run_coroutines([answer_one(decoder, Request(PROMPT, most, seed=seed, **fields))])[0]


# What any search of this kind must keep

CONTRACT = {
    "sessions": check_search.check_sessions,
    "events": lambda make: check_search.check_events(make, 2),
    "neighbours": lambda make: check_search.check_neighbours(make, 2),
    "texts": check_rollouts.check_texts,
    "ledger": check_rollouts.check_ledger,
    "clock": check_rollouts.check_clock,
    "draws": check_rollouts.check_draws,
    "results": lambda make: check_search.check_results(make, 2, None),
}


# What one of them must keep, by its description


def beam(kind):
    for seed in range(20):
        target, reward = toy_law(seed, 4, sharp=0.7), ByToken(seed)
        size = {"keep": 1 + seed % 3, "width": 1 + seed // 3 % 3, "longest": 1 + seed % 2}
        text = rollouts_reference.step_beam(target, reward, LENGTH, **size, rng=Rng.of_choice(seed))
        got = answer(kind.StepBeamSearch(plain(target), reward, delimiter="|", **size), seed)
        worth = valued(target, reward, text) if got.finish_reason == "stop" else 0.0
        assert got.token_ids == text and got.score == worth


def tree(kind):
    for seed in range(40):
        size = {
            "steps": 1 + seed % 3,
            "keep": 1 + seed // 3 % 2,
            "depth": 1 + seed % 4,
            "longest": 1 + seed % 2,
            "most": 1 + seed % 3,
        }
        text, weight = rollouts_reference.thought_tree(
            toy_law(seed, 5, sharp=0.7), LENGTH, **size, rng=Rng.of_choice(seed)
        )
        got = answer(kind.ThoughtTreeSearch(plain(toy_law(seed, 5, sharp=0.7)), **size), seed)
        assert got.token_ids == text and got.score is not None and abs(got.score - weight) < 1e-9


def agreement(kind):
    for seed in range(40):
        target, apart = speaking(seed), speaking(seed)
        drawn = tries(target, seed)
        texts = [r.token_ids for r in drawn if r.finish_reason == "stop"]
        answers = [target.vocab.words.decode(t) for t in texts]
        if texts and any(answers):
            found, ladders = (
                AnswerAgreement().of_answers(answers),
                AnswerAgreement().support_ladders(answers),
            )
            got = answer(kind.ResponseAggregationSearch(plain(apart), tries=3), seed, 2)
            said, says = (
                "I don't know" if found is None else found.said,
                target.vocab.words.decode(got.token_ids),
            )
            assert says.lower() == said.lower() and got.finish_reason == "stop"
            assert got.score == sum(found in ladder for ladder in ladders) / len(texts)
            assert got.stats.scored == apart.target.network.runs / apart.layers - (len(PROMPT) - 1)


def rounds(kind):
    """The best of what was seen is the answer, it is worth what the reward says of it behind the prompt, and more rounds are
    never worse."""
    more = 0
    for seed in range(16):
        target, reward = toy_law(seed, 6, sharp=0.3), ByToken(seed)
        scores = list[float]()
        for t in (1, 2, 4):
            got = answer(kind.IterativeRefinementSearch(plain(target), reward, t, 2), seed)
            assert got.score == (
                valued(target, reward, got.token_ids) if got.finish_reason == "stop" else 0.0
            )
            scores.append(got.score)
        assert scores == sorted(scores)
        more += scores[2] > scores[0]
    assert more >= 3


def patience(kind):
    """The second best is shown where the best has brought nothing for so long, and what is good enough is not shown."""
    for seed in range(6):
        target, shown = toy_law(seed, 6, sharp=0.3), list[tuple[int, ...]]()
        target = Watched(target, shown)
        answer(kind.IterativeRefinementSearch(plain(target), ByToken(seed), 6, 2, patience=1), seed)
        assert len(set(shown[1:])) > 1 and len(shown) == 6
    shown.clear()
    answer(kind.IterativeRefinementSearch(plain(target), ByToken(0), 4, 2, enough=0.0), 0)
    assert shown == [PROMPT]


class Watched:
    """A target that tells which prompts are opened."""

    def __init__(self, target, shown):
        self.target, self.vocab, self.layers, self.shown = (
            target,
            target.vocab,
            target.layers,
            shown,
        )

    def open_session(self, prompt):
        self.shown.append(tuple(prompt))
        return self.target.open_session(prompt)


def mixture(kind):
    """A text alone is greedy decoding, the scores of several add up, and the best by mean score lead."""
    for seed in range(8):
        found = run_coroutines(
            [
                check_rollouts.run_decoder(
                    kind.SuperposedSearch(toy_law(seed, 5, sharp=0.3), 3, 1.0),
                    Request(PROMPT, LENGTH, n=3),
                )
            ]
        )[0]
        scores = [r.score for r in found]
        assert len({r.token_ids for r in found}) == 3 and scores == sorted(scores, reverse=True)
        alone = answer(kind.SuperposedSearch(toy_law(seed, 5, sharp=0.3), 1, 1.0), 0)
        law = [
            rollouts_reference.law(toy_law(seed, 5, sharp=0.3), alone.token_ids[:i])
            for i in range(len(alone.token_ids))
        ]
        assert alone.token_ids == tuple(int(logp_V.argmax()) for logp_V in law)
        total = sum(float(logp_V[x]) for logp_V, x in zip(law, alone.token_ids, strict=True))
        assert abs(alone.score - total / len(law)) < 1e-9


OWN = {
    "beam": beam,
    "tree": tree,
    "agreement": agreement,
    "rounds": rounds,
    "patience": patience,
    "mixture": mixture,
}
MAKE: dict[str, Callable[[Any, Any], Any]] = {
    "step_beam": lambda kind, target: kind.StepBeamSearch(plain(target), ByToken(), 2, 2, "|", 2),
    "drag": lambda kind, target: kind.ResponseAggregationSearch(plain(target), tries=2),
    "thought_tree": lambda kind, target: kind.ThoughtTreeSearch(
        plain(target), 2, 2, 4, longest=2, most=4
    ),
    "refine": lambda kind, target: kind.IterativeRefinementSearch(plain(target), ByToken(), 3, 2),
    "superposed": lambda kind, target: kind.SuperposedSearch(target, 3),
}


@dataclass(frozen=True)
class Fault:
    """In a file of the searches, what stands there and what stands there instead; the check that catches it."""

    file: str
    right: str
    wrong: str
    caught: str


FAULTS = {
    # a beam of steps
    "the worst beginnings stay": Fault(
        "step_beam", "key=lambda b: -b.value", "key=lambda b: b.value", "beam"
    ),
    "a text that was cut is worth something": Fault(
        "step_beam",
        '0.0 if attempt.text.finish_reason == "length" else attempt.value or 0.0',
        "attempt.value or 0.0",
        "beam",
    ),
    "the same step counts twice": Fault(
        "step_beam", "(number, *attempt.text.tokens)", "(id(attempt),)", "beam"
    ),
    "whole texts leave the beam": Fault(
        "step_beam", "[b for b in kept if b.attempt.ended] + await", "await", "beam"
    ),
    "as few first steps as later ones": Fault(
        "step_beam", "self._plan.keep * self._plan.width", "self._plan.width", "beam"
    ),
    "a cut answer has the reward's word for a score": Fault(
        "step_beam", "best.score = kept[0].value", "best.score = kept[0].attempt.value", "beam"
    ),
    "steps are drawn alike": Fault(
        "step_beam", "step_stream(b.attempt, b.rng, i)", "b.rng", "draws"
    ),
    "steps that were dropped cost nothing": Fault(
        "step_beam",
        "[attempt.spent for _, attempt, _ in drawn]",
        "[attempt.spent for attempt, _ in once.values()]",
        "ledger",
    ),
    "what may still leave the beam is given out": Fault(
        "step_beam",
        "self._choice.write_certain_text([b.attempt.text for b in kept])",
        "self._choice.write_certain_text([kept[0].attempt.text])",
        "sessions",
    ),
    "steps are left open": Fault(
        "step_beam",
        "self._choice.fork_attempts(b.attempt, width)",
        "[b.attempt.fork(0) for _ in range(width)]",
        "sessions",
    ),
    # what texts agree in
    "texts that were cut have a say": Fault(
        "drag", 'if t.text.finish_reason == "stop"] or tries', "]", "agreement"
    ),
    "whoever supports it speaks for it": Fault(
        "drag", "if ladders[i][0] == statement]", "]", "agreement"
    ),
    "only those that say just this support it": Fault(
        "drag", "if statement in ladder]", "if ladder[:1] == (statement,)]", "agreement"
    ),
    "the share is of all that were drawn": Fault(
        "drag", "/ len(pool)", "/ self.tries", "agreement"
    ),
    "the statement is not ended": Fault(
        "drag",
        "(*words.encode(answer, special=False), ends[0])",
        "(*words.encode(answer, special=False),)",
        "agreement",
    ),
    "the statement costs nothing": Fault(
        "drag", "spent = spent.plus_stats(root.spent)", "pass", "agreement"
    ),
    "texts are drawn alike": Fault(
        "drag", "streams_of(choice.rng, self.tries)", "[choice.rng] * self.tries", "draws"
    ),
    "texts are left open": Fault(
        "drag",
        "choice.fork_attempts(root, self.tries)",
        "[root.fork(0) for _ in range(self.tries)]",
        "sessions",
    ),
    # a tree of thoughts
    "only the last step's chance counts": Fault(
        "thought_tree", "thought.chance * v for", "v for", "tree"
    ),
    "paraphrases stay": Fault(
        "thought_tree",
        "elif not any(is_same_step(known, step_words(step), self._plan.alike) for known in seen):",
        "else:",
        "tree",
    ),
    "the likeliest beginnings stay": Fault(
        "thought_tree",
        "rng.without_replacement(p_N / p_N.sum(), count)",
        "p_N.topk(count).indices.tolist()",
        "tree",
    ),
    "beginnings that are ready are forgotten": Fault(
        "thought_tree", "ready += [t for t in grown if t.ready]", "pass", "tree"
    ),
    "each leaf votes alone": Fault(
        "thought_tree", "votes[answers[-1]] += t.chance", "votes[answers[-1]] = t.chance", "tree"
    ),
    "the answer that weighs least wins": Fault(
        "thought_tree", "most = max(votes", "most = min(votes", "tree"
    ),
    "cut texts vote": Fault(
        "thought_tree", 'if t.attempt.text.finish_reason == "stop"] or list(leaves)', "]", "tree"
    ),
    "the prompt is no evidence": Fault(
        "thought_tree",
        "(*self._choice.into.request.prompt, *attempt.text.tokens)",
        "tuple(attempt.text.tokens)",
        "tree",
    ),
    "any word may answer": Fault(
        "thought_tree",
        "if self._plan.grounded:",
        "if not self._plan.grounded:",
        "tree",
    ),
    "the chain's chance counts twice": Fault(
        "thought_tree", "(attempt.logp - begun) / max", "attempt.logp / max", "tree"
    ),
    "an answer has no end": Fault(
        "thought_tree", "if answer and line.closes_step(answer)", "if False", "tree"
    ),
    "next steps are drawn alike": Fault(
        "thought_tree", 'child_stream("step", begin, i)', 'child_stream("step", begin)', "draws"
    ),
    "answers cost nothing": Fault(
        "thought_tree",
        "self._spent = self._spent.plus_stats(side_by_side([t.attempt.spent for t in leaves]))",
        "pass",
        "ledger",
    ),
    "the clock starts with the vote": Fault(
        "thought_tree",
        "self._choice.answer.edit_tokens(TextEdit())",
        "pass",
        "clock",
    ),
    "beginnings are left open": Fault(
        "thought_tree",
        "self._choice.fork_attempts(thought.attempt, self._plan.steps)",
        "[thought.attempt.fork(0) for _ in range(self._plan.steps)]",
        "sessions",
    ),
    # rounds
    "the first seen is the best": Fault(
        "refine", "sorted(self._seen, key=lambda a: -(a.value or 0.0))", "self._seen", "rounds"
    ),
    "what was drawn behind another answer stands as it is": Fault(
        "refine",
        "await self._judge([tokens for tokens in new if tokens not in known])",
        "await gather_coroutines(*(a.ask_reward(self._plan.reward) for a in drawn)); self._seen += drawn",
        "ledger",
    ),
    "a cut proposal is worth something": Fault(
        "refine", 'if a.text.finish_reason == "length":', "if False:", "rounds"
    ),
    "proposals of a round are drawn alike": Fault(
        "refine", 'rng.child_stream("round", t, i)', 'rng.child_stream("round", t)', "draws"
    ),
    "rounds are drawn alike": Fault(
        "refine", 'rng.child_stream("round", t, i)', 'rng.child_stream("round", i)', "draws"
    ),
    "what is shown is not charged": Fault(
        "refine", "spent.scored + len(prompt) - 1", "spent.scored", "ledger"
    ),
    "reading costs nothing": Fault(
        "refine",
        "replace(spent, ended=0, written=0)",
        "replace(spent, ended=0, written=0, scored=0)",
        "ledger",
    ),
    "proposals are left open": Fault(
        "refine",
        "self._choice.fork_attempts(start, self._plan.proposals)",
        "[start.fork(0) for _ in range(self._plan.proposals)]",
        "sessions",
    ),
    "always the best is shown": Fault("refine", "order[turn % len(order)]", "order[0]", "patience"),
    "nothing is good enough": Fault("refine", "if before >= plan.enough:", "if False:", "patience"),
    # superposed texts
    "a text has no fork": Fault(
        "superposed",
        "SuperposedText(m.text.fork(), total)",
        "SuperposedText(m.text, total)",
        "results",
    ),
    "the parent is left out": Fault(
        "superposed", "(m.total + gain, m, x)", "(gain, m, x)", "mixture"
    ),
    "the length does not count": Fault(
        "superposed", "self.total / max(1, len(self.text.tokens))", "self.total", "mixture"
    ),
    "the worst end wins": Fault(
        "superposed", "key=lambda m: -m.score", "key=lambda m: m.score", "results"
    ),
    "the last token is read from the row before": Fault(
        "superposed",
        "scores.logprob_row(len(draft) - 1)",
        "scores.logprob_row(max(0, len(draft) - 2))",
        "mixture",
    ),
    "the session stays open": Fault("superposed", "session.close()", "pass", "sessions"),
    "only what leads is noted": Fault(
        "superposed",
        "text.tokens, request.logprobs)",
        "text.tokens[:1], request.logprobs)",
        "results",
    ),
}


def search(file, fault=None):
    """A module of the searches, with a fault written into its source."""
    real = import_module(f"polydec.methods.search.loop.{file}")
    source = Path(str(real.__file__)).read_text("utf-8")
    if fault is not None:
        assert source.count(fault.right) == 1, (
            f"{fault.right!r} stands {source.count(fault.right)} times in {file}.py"
        )
        source = source.replace(fault.right, fault.wrong)
    name = f"mutant_rollouts_{file}"
    out = sys.modules[name] = ModuleType(name)  # dataclasses look their module up
    exec(compile(source, out.__name__, "exec"), vars(out))
    return out


def check(kind, file, name):
    if name in OWN:
        OWN[name](kind)
    else:
        CONTRACT[name](lambda target: MAKE[file](kind, target))


@pytest.mark.parametrize(("file", "name"), sorted({(f.file, f.caught) for f in FAULTS.values()}))
def test_the_search_itself_is_right(file, name):
    check(search(file), file, name)


@pytest.mark.parametrize("fault", FAULTS)
def test_faulty_search(fault):
    fault = FAULTS[fault]
    kind = search(
        fault.file, fault
    )  # not inside: a fault that cannot be written is no fault that is found
    with pytest.raises((AssertionError, ValueError, IndexError, KeyError, RuntimeError)):
        check(kind, fault.file, fault.caught)
