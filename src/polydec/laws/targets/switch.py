"""Two models that take turns, token by token, as a rule says: an approximation of the larger one that costs less."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import LawsOnlySession
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.row_scores import PickedScores
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary, require_scored_draft

S = TypeVar("S")


class SwitchRule(Protocol[S]):
    """Who speaks, as a function of the text. A state belongs to a token; `entropies` says whether
    `step` looks at them.
    """

    @property
    def entropies(self) -> bool: ...
    def start_state(self) -> S:
        """The state of the prompt's last token."""
        ...

    def next_state(self, state: S, entropy: float) -> S:
        """Advance the state by one token.

        Args:
            state: The state of the token before.
            entropy: Entropy of the active model's row before shaping, in bits; 0 where `entropies`
                is False.

        Returns:
            The state of the next token.
        """
        ...

    def is_large(self, state: S) -> bool:
        """Whether the large model says what follows this token."""
        ...


@dataclass(frozen=True)
class EntropySwitchRule:
    """Give a token to the large model while the active model's mean entropy is above a threshold.

    The small model begins, unless tau is negative, which no entropy is. The window goes on over a
    switch.

    Source: "Entropy Adaptive Decoding: dynamic model switching for efficient inference" (2025):
    window 5; tau_down and the value of `hold` are ours.

    Attributes:
        tau: Bits of the small model's mean entropy above which the large one takes over. None:
            never.
        tau_down: Bits of the large model's mean entropy at or below which the small one takes over.
            None: tau.
        window: Tokens over which the mean is taken, 1 to 256; fewer at the start. Default 5.
        hold: Tokens that a model writes at least after a switch, 1 to 4,096. Default 10.
    """

    tau: float | None = 1.0
    tau_down: float | None = None
    window: int = 5
    hold: int = 10
    entropies = True

    def __post_init__(self) -> None:
        for name, value in (("tau", self.tau), ("tau_down", self.tau_down)):
            if value is not None and math.isnan(value):
                raise RequestError(
                    f"{name} is nan: it must be a number of bits, negative or infinite ones included"
                )
        if self.tau is None and self.tau_down is not None:
            raise RequestError(
                f"tau is none: the large model never takes over, so tau_down ({self.tau_down}) must be left out"
            )
        if not 1 <= self.window <= 256:
            raise RequestError(f"window is {self.window}: it must lie in 1 to 256")
        if not 1 <= self.hold <= 4096:
            raise RequestError(f"hold is {self.hold}: it must lie in 1 to 4096")

    def start_state(self) -> tuple[bool, int, tuple[float, ...]]:
        return self.tau is not None and self.tau < 0.0, self.hold, ()

    def next_state(
        self, state: tuple[bool, int, tuple[float, ...]], entropy: float
    ) -> tuple[bool, int, tuple[float, ...]]:
        """Advance the window, and switch where the mean crosses the threshold.

        Args:
            state: Whether the large model writes, tokens since the last switch, and the entropies
                in the window.
            entropy: Entropy of the row, in bits.

        Returns:
            The state of the next token.
        """
        large, since, last = state
        # The window holds the last entropies, across a switch as well.
        last = (*last, entropy)[-self.window :]
        since += 1
        # Going down has a threshold of its own, so that the models do not switch back and forth.
        if large and self.tau_down is not None:
            tau = self.tau_down
        elif self.tau is None:
            tau = math.inf
        else:
            tau = self.tau
        # A model writes `hold` tokens at least, and goes on while its side of the threshold is
        # right.
        if since < self.hold or (sum(last) / len(last) > tau) == large:
            return large, since, last
        return not large, 0, last

    def is_large(self, state: tuple[bool, int, tuple[float, ...]]) -> bool:
        return state[0]


@dataclass(frozen=True)
class RandomSwitchRule:
    """Give random runs of tokens to the large model, whatever the text is. It is what a rule that
    looks at the text has to beat.

    Attributes:
        share: Probability that a run belongs to the large model, 0 to 1.
        run: Tokens of a run, 1 to 4,096. Default 10.
        seed: Names the randomness, the same for each request. Default 0.
    """

    share: float
    run: int = 10
    seed: int = 0
    entropies = False

    def __post_init__(self) -> None:
        if not 0.0 <= self.share <= 1.0:
            raise RequestError(f"share is {self.share}: it must lie in 0 to 1")
        if not 1 <= self.run <= 4096:
            raise RequestError(f"run is {self.run}: it must lie in 1 to 4096")

    def start_state(self) -> int:
        return 0

    def next_state(self, state: int, entropy: float) -> int:
        """Count one more token.

        Args:
            state: Tokens so far.
            entropy: Not read.

        Returns:
            The count behind it.
        """
        return state + 1

    def is_large(self, state: int) -> bool:
        # One coin for each run, named by its number, so that the answer does not depend on the
        # draft.
        return bool(
            Rng.of_choice(self.seed)
            .child_stream("switch", state // self.run)
            .draw_bernoulli(self.share)
        )


@dataclass(frozen=True)
class SwitchTarget:
    """After each token the law of `small` or of `big`, as `rule` says. A Target: whose turn it is
    follows from the text.

    Entropies are those of the models before shaping; shape both models, or the switch. The model
    that waits is fed what it has missed in one pass when its turn comes (the prompt included). Of a
    tree both models score every node where they would not agree on whose turn it is, else one of
    them does.

    Exact: approximate. The law lies between the two models; no verification holds it to the large
    one.
    Reduces to: `small` without tau or share 0, `big` at tau < 0 or share 1.
    """

    small: Target
    big: Target
    rule: SwitchRule[Any]

    def __post_init__(self) -> None:
        self.big.vocab.require_same(self.small.vocab, "the small model")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.big.vocab

    @property
    def layers(self) -> int:
        return 0

    def open_session(self, prompt: Sequence[int]) -> SwitchSession:
        return SwitchSession(
            self.rule,
            {False: self.small.open_session(prompt), True: self.big.open_session(prompt)},
            [self.rule.start_state()],
        )


class SwitchSession(LawsOnlySession):
    """The sessions of both models.

    What is asked of one session is answered by the one whose turn it is. What was committed without
    a score waits in `_unread` until it is known who would have spoken there.

    Args:
        rule: Says whose turn it is.
        both: The small model's session (False) and the large one's (True).
        states: States of every token from the last one of the prompt on, the coming root included.
    """

    def __init__(self, rule: SwitchRule[Any], both: dict[bool, Session], states: list[Any]) -> None:
        self._rule = rule
        self._both = both
        self._turn(states)
        self._unread: list[int] = []
        self._scored: tuple[Draft, SwitchScores, list[Any]] | None = None

    def _turn(self, states: list[Any]) -> None:
        """These are the states now, and the last one says whose turn it is."""
        self._states = states
        self._inner = self._both[self._rule.is_large(states[-1])]

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        return await self._both[self._rule.is_large(self._states[0])].prefill_prompt(want)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> SwitchScores:
        """Score a draft; each node takes the law of the model whose turn it is there.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            For each node the row of its model.

        Raises:
            RequestError: A single depth is wanted.
        """
        if want.exits:
            raise RequestError(
                f"exits is {want.exits}: the depths of two models that take turns cannot be looked at"
            )
        # Whose turn it was at these tokens depends on rows that have not been read yet: they are
        # scored first.
        if self._unread:
            chain = Draft.chain_draft(self._unread[0], self._unread[1:])
            self._scored = await self._score(chain, want)
            self._unread = []
            self.commit_tokens(chain.token)
        self._scored = await self._score(draft, want)
        return self._scored[1]

    async def _score(
        self, draft: Draft, want: ScoreRequest
    ) -> tuple[Draft, SwitchScores, list[Any]]:
        """The draft, its scores, and the state of each node."""
        # Entropies are those of the rows before shaping.
        if self._rule.entropies:
            want = replace(want, base=RowDetail.ROW)
        states = list[Any]()
        scores = dict[bool, DraftScores]()
        turn = list[bool]()
        # Parents come first, so the state of a parent is known. A model is asked when the first
        # node is its own.
        for p in draft.parent:
            states.append(self._states[-1] if p < 0 else self._next(states[p], scores[turn[p]], p))
            turn.append(self._rule.is_large(states[-1]))
            if turn[-1] not in scores:
                session = self._both[turn[-1]]
                await session.prefill_prompt(
                    ScoreRequest(law=RowDetail.NOTHING)
                )  # in chunks, where much was missed
                scores[turn[-1]] = await session.score_draft(draft, want)
        return draft, SwitchScores.by_node([scores[t] for t in turn]), states

    def _next(self, state: Any, scores: DraftScores, node: int) -> Any:
        return self._rule.next_state(
            state, law_entropy_bits(scores.base.logprob_row(node)) if self._rule.entropies else 0.0
        )

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        path: list[int] = []
        if self._scored is not None and not self._unread:
            path = self._scored[0].nodes_of(tokens)
            self._step(path)
            # Both sessions commit what the draft holds; the rest waits until it is scored.
            for session in self._both.values():
                session.commit_tokens(tokens[: len(path)])
        self._scored = None
        self._unread += tokens[len(path) :]

    def _step(self, path: Sequence[int]) -> None:
        """The states that follow the nodes of a scored path."""
        if self._scored is not None:
            _, scores, states = self._scored
            self._turn([*self._states, *(self._next(states[i], scores, i) for i in path)])

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last, in both sessions.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: Nothing was scored since the last commit.
        """
        draft, scores, states = require_scored_draft(self._scored)
        path, stay, left = draft.subtree_below(root, nodes)
        self._step(path)
        # A model that has not scored this draft commits the path as plain tokens.
        asked = {self._rule.is_large(s) for s in states}
        for turn, session in self._both.items():
            if turn in asked:
                session.keep_nodes(nodes, root)
            else:
                session.commit_tokens([draft.token[i] for i in path])
        self._scored = (
            left,
            SwitchScores([scores.of[i] for i in stay], [scores.at[i] for i in stay]),
            [states[i] for i in stay],
        )
        return left

    def evict_cache(self) -> None:
        for session in self._both.values():
            session.evict_cache()

    def _refusal(self, what: str) -> RequestError:
        return RequestError(
            f"{what} cannot be read where two models take turns: they have none in common"
        )

    def rewind_tokens(self, n: int) -> None:
        self._scored = None
        # Tokens that wait were fed to no model: they go first.
        waiting = min(n, len(self._unread))
        del self._unread[len(self._unread) - waiting :]
        for session in self._both.values():
            session.rewind_tokens(n - waiting)
        # The state of the prompt's last token always stays.
        self._turn(self._states[: max(1, len(self._states) - (n - waiting))])

    def fork(self, choice: int | None = None) -> SwitchSession:
        twin = SwitchSession(
            self._rule, {t: s.fork(choice) for t, s in self._both.items()}, list(self._states)
        )
        twin._unread = list(self._unread)
        twin._scored = self._scored
        return twin

    def close(self) -> None:
        for session in self._both.values():
            session.close()


class SwitchScores(PickedScores):
    """Scores of two models, node by node: each row is that of the model whose turn it is there."""

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> SwitchScores:
        """Refuse: the two models have no depth in common.

        Args:
            depth: How many layers.
            nodes: Nodes of the draft; not read.

        Raises:
            RequestError: Always.
        """
        raise RequestError(
            f"depth is {depth}: no exit was wanted of this score (ScoreRequest.exits)"
        )

    @property
    def hidden_NH(self) -> Tensor | None:
        """None: the two have no hidden state in common."""
        return None


def law_entropy_bits(logp_V: Tensor) -> float:
    """In bits, 0 to log2 V."""
    return float(torch.special.entr(float64_probabilities(logp_V)).sum()) / math.log(2.0)
