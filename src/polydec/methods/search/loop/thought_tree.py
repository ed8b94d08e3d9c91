"""A tree of sub-questions with weights, and answers from its leaves in the evidence's words."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import at_least_one
from polydec.core.decoder import Streams
from polydec.core.effects import gather_coroutines
from polydec.core.law import NEG_INF
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import Transcript
from polydec.core.types import Exactness, RowDetail, TextEdit, TokenVocabulary
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.methods.search.loop.attempt import (
    ChoiceSearch,
    SearchAttempt,
    for_each,
    method_target,
    method_vocab,
    one_token_round,
    side_by_side,
)
from polydec.methods.search.loop.passages import PassageRanking
from polydec.methods.search.loop.stats import SearchStats
from polydec.methods.search.loop.types import StepBoundary, answer_of
from polydec.methods.search.loop.word_bank import word_bank
from polydec.methods.speculative.loop.walk import SpeculativeMethod

YES = ("yes", "Yes", " yes", " Yes")
NO = ("no", "No", " no", " No")

CHECK = "Is this step right and useful? Answer yes or no:"
"""What a model is asked of a step where nobody says what else; ours, the paper's words are not
known to us.
"""


@dataclass(frozen=True, eq=False)
class ThoughtChain:
    """A beginning of a chain of steps.

    Attributes:
        attempt: The text so far, and how it goes on.
        rng: Random stream of what is drawn after it.
        chance: Probability that all its steps are valid.
        ready: Whether it is to be answered from.
        answered: Number of tokens of the chain before the answer.
    """

    attempt: SearchAttempt
    rng: Rng
    chance: float = 1.0
    ready: bool = False
    answered: int = 0


@dataclass(frozen=True)
class ThoughtTreeSearch:
    """Searches a tree of reasoning steps, and lets its leaves vote on an answer.

    It draws `steps` next steps after each beginning, weighs each, and keeps `keep` of all
    beginnings of a level, `depth` levels deep. Then it answers from each one that is left,
    greedily, with tokens of a word bank, and takes the answer that weighs most.

    A step is a line: a sub-question with its answer, as examples in the prompt show it. A beginning
    that the model would end, or continue with `cue`, is answered from as it stands. Paraphrases go:
    of two steps after one beginning that share more than `alike` of their words (Jaccard) the first
    stays. The validity v of a step is p(yes) / (p(yes) + p(no)) after `check` under the model's own
    law, or without a check the geometric mean of the probabilities of its tokens; the chance of a
    beginning is the product of those of its steps. `keep` are drawn without replacement in
    proportion to their chances.

    An answer is written after `cue`, at most `most` tokens, up to the end of its line. With
    `grounded` it uses no token but those of the word bank of the prompt and the chain (see
    word_bank); where the law allows none of them, its own likeliest. An answer weighs the sum, over
    the beginnings that give it, of their chance times the geometric mean of the probabilities of
    its tokens. The text is the whole chain with the answer that weighs most; its score is that
    weight. What does not leave room for an answer is left out. With a check, a step is checked with
    what was read and answered after it. The paper's prompts and widths are not known to us; these
    are ours.

    Attributes:
        method: Draws the steps.
        steps: Steps that are drawn after a beginning, 1 to 64.
        keep: Beginnings of a level that are kept, 1 to 64.
        depth: Levels, 0 to 64.
        most: Most tokens of an answer.
        check: Question about a step, answered by yes or no; "": none is asked.
        cue: Text before an answer.
        grounded: Whether an answer uses tokens of the word bank alone.
        alike: Share of words, 0 to 1, above which two steps say the same.
        longest: Most tokens of a step.
        language: Language of the whole text, where the law holds no other (then there can be no
            cue, no passages and no answers of steps' own). None: all texts are allowed.
        passages: Texts of which the `found` best by BM25 for a sub-question are read after it, a
            line each, those that have a word of it; the bank has their words then. Without
            passages, evidence stands in the prompt.
        found: Passages that a sub-question gets at most, at least 1.
        own: Text after which a sub-question's own answer is written, greedily, at most `most`
            tokens of a line; "": the step itself holds it.

    Exact: approximate: weights choose among draws.
    Reduces to: greedy decoding of the law at depth 0, not grounded, without a cue.
    Source: Bi et al., "STOC-TOT: Stochastic tree-of-thought with constrained decoding for complex
    reasoning in multi-hop question answering" (2024).
    """

    method: SpeculativeMethod
    steps: int = 3
    keep: int = 2
    depth: int = 3
    most: int = 16
    check: str = ""
    cue: str = ""
    grounded: bool = True
    alike: float = 0.8
    longest: int = 64
    language: TokenLanguage[Any] | None = None
    passages: tuple[str, ...] = ()
    found: int = 2
    own: str = ""
    exactness = Exactness.APPROXIMATE
    target = method_target
    vocab = method_vocab

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("keep", 1), ("depth", 0)):
            if not least <= getattr(self, name) <= 64:
                raise RequestError(f"{name} is {getattr(self, name)}: it must lie in {least} to 64")
        at_least_one(self, "most", "longest", "found")
        if not 0.0 <= self.alike <= 1.0:
            raise RequestError(f"alike is {self.alike}: it must lie in 0 to 1")
        # Spelled now, so that a text which the tokenizer cannot write is refused before any pass.
        for name in ("check", "cue", "own"):
            self.spell_field(name)
        for passage in self.passages:
            self.vocab.spell_text(passage + "\n", f"passages holds {passage!r}")
        if (self.passages or self.own) and self.language is not None:
            raise RequestError(
                "passages or own are given: the request's constraint leaves no room for them, so leave one of them out"
            )
        if self.cue and self.language is not None:
            raise RequestError(
                f"cue is {self.cue!r}: the request's constraint leaves no room for it, so leave one of them out"
            )
        # The check reads the chances of yes and no, so each must begin with tokens of its own.
        if self.check and not (self.begun_by(YES) and self.begun_by(NO)):
            raise RequestError(
                f"check is {self.check!r}: the model's tokenizer cannot spell yes and no, so leave it empty"
            )

    def spell_field(self, name: str) -> tuple[int, ...]:
        """Return the tokens of a text field.

        Raises:
            RequestError: The vocabulary cannot spell it.
        """
        text = getattr(self, name)
        return self.vocab.spell_text(text, f"{name} is {text!r}")

    def begun_by(self, forms: Sequence[str]) -> set[int]:
        """Return the first tokens of those forms of a word that the vocabulary can spell."""
        out = set[int]()
        words = self.vocab.words
        # A tokenizer may begin "yes" and " yes" with different tokens: all of them count.
        for form in forms:
            try:
                out.add(words.encode(form, special=False)[0] if words is not None else -1)
            except PolydecError:
                continue
        return out - {-1}

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Search a tree for each choice.

        Args:
            request: What is asked: prompt token ids, number of answers, limits.
            rng: Random stream of each choice, by the choice's number.
            into: Record of the request, which gets the tokens, the statistics and the trace events.

        Returns:
            One result for each choice of the request, in order.
        """
        # A check reads the model's own law.
        base = RowDetail.ROW if self.check else RowDetail.NOTHING
        return await for_each(self.method, request, rng, into, self.search_answer, base)

    async def search_answer(self, choice: ChoiceSearch) -> Result:
        """Search the tree of one answer."""
        return await _ThoughtTreeRun(self, choice).run()


class _ThoughtTreeRun:
    """The run of one answer."""

    def __init__(self, plan: ThoughtTreeSearch, choice: ChoiceSearch) -> None:
        self._plan = plan
        self._choice = choice
        self._steps = StepBoundary(("\n",), plan.longest, plan.vocab.words)
        self._cue = plan.spell_field("cue")
        self._check = plan.spell_field("check")
        self._own = plan.spell_field("own")
        self._passages = PassageRanking(plan.passages)
        self._spent = SearchStats()

    async def run(self) -> Result:
        live = [ThoughtChain(self._choice.root, self._choice.rng)]
        ready = list[ThoughtChain]()
        plan = self._plan
        # The clock of decoding starts; nothing is certain before the vote.
        self._choice.answer.edit_tokens(TextEdit())
        for level in range(plan.depth):
            # Expand all beginnings of the level in parallel.
            deepened = await gather_coroutines(*(self._grown(t) for t in live))
            self._spent = self._spent.plus_stats(side_by_side([spent for _, spent in deepened]))
            grown = [t for thoughts, _ in deepened for t in thoughts]
            ready += [t for t in grown if t.ready]
            # Prune: a draw in proportion to chance, so that weak beginnings are not always lost.
            live = draw_thoughts(
                [t for t in grown if not t.ready],
                plan.keep,
                self._choice.rng.child_stream("keep", level),
            )
            if not live:
                break
        # Answer from all leaves, those of shallower levels too.
        leaves = list(await gather_coroutines(*(self._answered(t) for t in (*ready, *live))))
        self._spent = self._spent.plus_stats(side_by_side([t.attempt.spent for t in leaves]))
        best, weight = self._elected(leaves)
        best.attempt.text.score = weight
        return self._choice.finish_search(best.attempt.text, self._spent)

    async def _grown(self, thought: ThoughtChain) -> tuple[list[ThoughtChain], SearchStats]:
        """Return the new beginnings after a thought, and what drawing them took."""
        forks = self._choice.fork_attempts(thought.attempt, self._plan.steps)
        begin = len(thought.attempt.text.tokens)
        streams = [thought.rng.child_stream("step", begin, i) for i in range(len(forks))]
        # Draw the steps, each in a stream of its own.
        over = await gather_coroutines(
            *(self._step(a, s) for a, s in zip(forks, streams, strict=True))
        )
        words = self._plan.vocab.words
        out = list[ThoughtChain]()
        seen = list[frozenset[str]]()
        asked = dict[int, str]()
        for attempt, stream, ready in zip(forks, streams, over, strict=True):
            tokens = attempt.text.tokens[begin:]
            if words is not None:
                step = words.decode(tokens)
            else:
                step = " ".join(map(str, tokens))
            # The model would answer now: the beginning is ready as it stood, once.
            if not tokens or (self._plan.cue.strip() and self._plan.cue.strip() in step):
                if not any(t.ready and t.attempt is thought.attempt for t in out):
                    # It is answered from as it stood before.
                    out.append(replace(thought, ready=True))
            elif not any(is_same_step(known, step_words(step), self._plan.alike) for known in seen):
                seen.append(step_words(step))
                out.append(ThoughtChain(attempt, stream, ready=ready or attempt.ended))
                asked[id(attempt)] = step
        new = [t for t in out if t.attempt is not thought.attempt]
        spent = _taken(forks)
        begun = thought.attempt.logp
        told = [t for t in new if not t.ready]
        # A check reads the evidence and the step's own answer; without one the step's own tokens
        # count, so these are read after it is weighed.
        if self._check:
            await gather_coroutines(*(self._told(t, asked[id(t.attempt)]) for t in told))
        spent = spent.plus_stats(_taken(forks))
        valid = await gather_coroutines(*(self._valid(t.attempt, begun, begin) for t in new))
        spent = spent.plus_stats(side_by_side([checked for _, checked in valid]))
        if not self._check:
            await gather_coroutines(*(self._told(t, asked[id(t.attempt)]) for t in told))
        chances = {id(t): thought.chance * v for t, (v, _) in zip(new, valid, strict=True)}
        spent = spent.plus_stats(_taken(forks))
        return [replace(t, chance=chances.get(id(t), t.chance)) for t in out], spent

    async def _step(self, attempt: SearchAttempt, rng: Rng) -> bool:
        """Draw a step, token by token.

        Returns whether the model would end there, or no room is left for an answer.
        """
        begin = len(attempt.text.tokens)
        # Room is left for the cue and at least one token of an answer.
        while attempt.text.room > len(self._cue) + 1:
            r = await attempt.look_ahead(rng)
            if r.tokens[0] in attempt.text.ends:
                return True
            if attempt.take_steps(one_token_round(r, r.tokens[0]), self._steps, begin):
                return False
        return True

    async def _told(self, thought: ThoughtChain, question: str) -> None:
        """Read passages after a sub-question, and write its own answer, as far as there is room."""
        attempt = thought.attempt
        plan = self._plan
        # A passage is read only if an answer still fits after it.
        for passage in self._passages.best_passages(question, plan.found):
            tokens = plan.vocab.spell_text(passage + "\n", "passages")
            if attempt.text.room > len(tokens) + len(self._own) + plan.most + len(self._cue) + 1:
                await attempt.say_tokens(tokens)
        if not self._own or attempt.text.room <= len(self._own) + plan.most + len(self._cue) + 1:
            return
        await attempt.say_tokens(self._own)
        begin = len(attempt.text.tokens)
        line = StepBoundary(("\n",), plan.most, plan.vocab.words)
        while not attempt.ended:
            r = await attempt.look_ahead(thought.rng.child_stream("own", attempt.text.position))
            logp_V = r.scores.logprob_row(0).clone()
            # An end is excluded: the chain goes on after this answer.
            logp_V[list(attempt.text.ends)] = NEG_INF
            likeliest = int(logp_V.argmax())
            if float(logp_V[likeliest]) == NEG_INF or attempt.take_steps(
                one_token_round(r, likeliest), line, begin
            ):
                return

    async def _valid(
        self, attempt: SearchAttempt, begun: float, begin: int
    ) -> tuple[float, SearchStats]:
        """How valid the last step of a beginning is, 0 to 1, and what it took to ask."""
        if not self._check:
            mean = (attempt.logp - begun) / (len(attempt.text.tokens) - begin)
            return math.exp(mean), SearchStats()
        # A fork is asked: the question must not stay in the text.
        (asking,) = self._choice.fork_attempts(attempt, 1)
        logp_V = (await asking.law_after(self._check)).base.logprob_row(len(self._check))
        yes, no = (
            float(logp_V[list(self._plan.begun_by(words))].exp().sum()) for words in (YES, NO)
        )
        asking.close()
        return yes / (yes + no) if yes + no > 0.0 else 0.5, asking.spent

    async def _answered(self, thought: ThoughtChain) -> ThoughtChain:
        """Return a thought with an answer after it."""
        (attempt,) = self._choice.fork_attempts(thought.attempt, 1)
        if attempt.ended:
            return replace(thought, attempt=attempt, answered=len(attempt.text.tokens))
        if self._cue and attempt.text.room > len(self._cue):
            await attempt.say_tokens(self._cue)
        begin = len(attempt.text.tokens)
        ends = attempt.text.ends
        line = StepBoundary(("\n",), self._plan.most, self._plan.vocab.words)
        # The evidence is all that stands before the answer, passages that were read included.
        evidence = (*self._choice.into.request.prompt, *attempt.text.tokens)
        if self._plan.grounded:
            bank_V = word_bank(self._plan.vocab, ends, evidence)
        else:
            bank_V = None
        begun = attempt.logp
        while not attempt.ended:
            r = await attempt.look_ahead(thought.rng.child_stream("answer", attempt.text.position))
            logp_V = r.scores.logprob_row(0)
            answer = attempt.text.tokens[begin:]
            # The answer's line is complete: the likeliest end is taken if the law has one.
            if answer and line.closes_step(answer):
                ending = [x for x in ends if float(logp_V[x]) > NEG_INF]
            else:
                ending = []
            if bank_V is None:
                kept_V = logp_V
            else:
                kept_V = torch.where(bank_V, logp_V.cpu(), NEG_INF)
            # Greedy within the bank; where the bank has nothing possible, the law's own likeliest.
            token = max(ending, key=lambda x: float(logp_V[x])) if ending else int(kept_V.argmax())
            attempt.take_steps(
                one_token_round(
                    r, token if float(kept_V[token]) > NEG_INF else int(logp_V.argmax())
                )
            )
        mean = math.exp((attempt.logp - begun) / max(1, len(attempt.text.tokens) - begin))
        return ThoughtChain(attempt, thought.rng, thought.chance * mean, True, begin)

    def _elected(self, leaves: Sequence[ThoughtChain]) -> tuple[ThoughtChain, float]:
        """Return the likeliest of the leaves that give the answer of most weight, and that weight.

        Texts that were cut count only where none came to an end.
        """
        pool = [t for t in leaves if t.attempt.text.finish_reason == "stop"] or list(leaves)
        words = self._plan.vocab.words
        # Chains that give the same answer add up their weights.
        votes = defaultdict[str, float](float)
        answers = list[str]()
        for t in pool:
            tokens = t.attempt.text.tokens[t.answered :]
            answers.append(
                answer_of(words.decode(tokens).strip(), "") if words is not None else str(tokens)
            )
            votes[answers[-1]] += t.chance
        most = max(votes, key=lambda answer: votes[answer])
        return max(
            (t for t, answer in zip(pool, answers, strict=True) if answer == most),
            key=lambda t: t.chance,
        ), votes[most]


def _taken(forks: Sequence[SearchAttempt]) -> SearchStats:
    """What these took together since they were last asked."""
    spent = side_by_side([a.spent for a in forks])
    for a in forks:
        a.spent = SearchStats()
    return spent


def usual_check(vocab: TokenVocabulary) -> str:
    """Return CHECK where the tokenizer can spell it, yes and no; else "".

    Without a check a step's own probability counts.
    """
    try:
        for text in (CHECK, YES[0], NO[0]):
            vocab.spell_text(text, "check")
    except PolydecError:
        return ""
    return CHECK


def draw_thoughts(thoughts: Sequence[ThoughtChain], count: int, rng: Rng) -> list[ThoughtChain]:
    """Draw beginnings without replacement, in proportion to their chances.

    Args:
        thoughts: The beginnings.
        count: How many are drawn; all are returned where there are no more.
        rng: Random stream of this draw.
    """
    if len(thoughts) <= count:
        return list(thoughts)
    p_N = torch.tensor([max(t.chance, 1e-300) for t in thoughts], dtype=torch.float64)
    return [thoughts[i] for i in rng.without_replacement(p_N / p_N.sum(), count)]


def step_words(step: str) -> frozenset[str]:
    """Return the words of a step; where it has none, the step."""
    return frozenset(re.findall(r"\w+", step.lower()) or [step])


def is_same_step(a: frozenset[str], b: frozenset[str], share: float) -> bool:
    """Return whether two steps say the same.

    Args:
        a: Words of one step.
        b: Words of the other one.
        share: Share of common words (Jaccard), 0 to 1, above which they do.
    """
    return a == b or len(a & b) / len(a | b) > share
