"""The laws of a model at the nodes of a draft, from its logits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.law import normalise_log_weights
from polydec.core.row_scores import LogprobRowScores
from polydec.models.nets.query import NetworkAnswer, NeuralNetwork

NOT_FINITE = (
    "the model's scores of the next token are NaN or infinite: its weights are damaged, or too large for the "
    "numbers that it is computed with"
)


def require_finite_logits(largest: Sequence[float]) -> None:
    """Refuse rows whose largest logit is no number: NaN spreads to it, and a row of -inf alone has
    no other.

    This is the one place where a damaged model is recognised.

    Args:
        largest: The largest logit of each row.

    Raises:
        RequestError: One of them is NaN or infinite.
    """
    if not all(map(isfinite, largest)):
        raise RequestError(NOT_FINITE)


class LogitScores(LogprobRowScores):
    """The scores of a model (`DraftScores`), over the logits of one or several passes.

    Rows are looked at lazily: nothing is computed of a row that nobody asks for.

    Args:
        answers: The answers of the passes, whose rows are the nodes in order.
        exits: Hidden states at a depth of some nodes, and the network's head for them; None: no
            exit was wanted.
    """

    __slots__ = (
        *("_answers", "_argmax", "_at", "_checked", "_exits", "_logits", "_logp", "_top"),
        "_waiting",
    )

    def __init__(self, answers: Sequence[NetworkAnswer], exits: Exits | None = None) -> None:
        self._answers = answers
        self._exits = exits
        self._at: list[tuple[int, int]] | None = None  # of each row its answer, and where in it
        self._logits: dict[int, Any] = {}  # by answer, as they are asked for
        self._argmax: dict[int, Sequence[int]] = {}
        self._logp: dict[int, Tensor] = {}
        self._top: dict[tuple[int, int], tuple[tuple[int, ...], tuple[float, ...]]] = {}
        self._checked: set[int] = set()  # rows whose largest logit is known to be a number
        self._waiting: list[Any] = []  # states of exits, or (their logits,)

    def _place(self, i: int) -> tuple[int, int]:
        if self._at is None:
            self._at = [
                (k, r)
                for k, a in enumerate(self._answers)
                if a.logits_RV is not None or a.later is not None
                for r in range(rows_of(a))
            ]
        return self._at[i]

    def _all(self, k: int) -> Tensor:
        """Logits of the rows of an answer."""
        if k not in self._logits:
            a = self._answers[k]
            if a.later is not None and a.logits_RV is None:
                self._logits[k] = a.later()
            else:
                self._logits[k] = a.logits_RV
        return self._logits[k]

    def log_weights(self, i: int) -> Tensor:
        k, row = self._place(i)
        row_V = self._all(k)[row]
        if i not in self._checked:
            require_finite_logits([float(row_V.max())])
            self._checked.add(i)
        return row_V

    def logprob_row(self, i: int) -> Tensor:
        if i not in self._logp:
            w_V = self.log_weights(i)
            self._logp[i] = normalise_log_weights(
                # Narrow numbers are normalised in float32.
                w_V if w_V.dtype == torch.float64 else w_V.float()
            )
        return self._logp[i]

    def likeliest_tokens(self, i: int, k: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
        """Find the likeliest tokens of one row.

        Args:
            i: Node of the draft.
            k: How many tokens; all of them where the vocabulary has fewer.

        Returns:
            Token ids and their log-probabilities, best first.
        """
        # Nodes of a draft that share a law ask for the same.
        if (i, k) not in self._top:
            self._top[i, k] = super().likeliest_tokens(i, k)
        return self._top[i, k]

    def certain_token(self, i: int) -> int | None:
        return None

    def likeliest_token(self, i: int) -> int:
        if len(self._answers) == 1:
            k = 0
            row = i
        else:
            k, row = self._place(i)
        tokens = self._answers[k].argmax
        if tokens is None:
            if k not in self._argmax:
                logits_RV = self._all(k)
                token_R = logits_RV.argmax(-1)
                # The logit at the argmax is the largest one: NaN counts as the largest for torch.
                require_finite_logits(logits_RV.gather(-1, token_R[:, None])[:, 0].tolist())
                self._argmax[k] = token_R.tolist()
            tokens = self._argmax[k]
        return tokens[row]

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """The likeliest tokens of many rows: the vectorised twin of `likeliest_tokens`, without
        log-probabilities.

        Args:
            rows: The rows: nodes of the draft.
            k: How many tokens a row; all, where there are fewer.

        Returns:
            Token ids of each row, best first.
        """
        first, _ = self._place(0)
        logits_RV = self._all(first)
        top = self._answers[first].top
        k = min(k, logits_RV.shape[-1])
        # All rows of a single answer: one call for all of them.
        if len(logits_RV) == len(self._at or ()) and list(rows) == list(range(len(logits_RV))):
            if top:
                return top(logits_RV, k)
            best = logits_RV.topk(k, dim=-1)
            # NaN counts as the largest for torch, so it stands first.
            require_finite_logits(best.values[:, :1].flatten().tolist())
            return best.indices.tolist()
        return [self.log_weights(i).topk(k).indices.tolist() for i in rows]

    @property
    def hidden_NH(self) -> Tensor | None:
        states = [a.hidden_RH for a in self._answers if a.hidden_RH is not None]
        if states and len(states) == len(self._answers):
            return torch.cat(states)
        return None

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> LogitScores:
        """The law that the first `depth` layers give at some nodes.

        The head runs when somebody looks, and then once for all exits that were asked for by then.

        Args:
            depth: Number of layers; it must stand in `ScoreRequest.exits`.
            nodes: The nodes, in the order that the answer has.

        Returns:
            The scores of these nodes.

        Raises:
            RequestError: No exit was wanted of this score.
        """
        if self._exits is None:
            raise RequestError(
                f"depth is {depth}: no exit was wanted of this score (ScoreRequest.exits)"
            )
        states, head = self._exits
        hidden_RH = states(depth, nodes)
        # The states wait in a list that all exits share. Its item becomes a tuple once its logits
        # are there.
        mine = len(self._waiting)
        waiting = self._waiting
        waiting.append(hidden_RH)

        def later_laws() -> (
            Tensor
        ):  # one product for all exits that were asked for before one was looked at
            if isinstance(waiting[mine], Tensor):
                todo = [i for i, t in enumerate(waiting) if isinstance(t, Tensor)]
                done = head(torch.cat([waiting[i] for i in todo])).split(
                    [len(waiting[i]) for i in todo]
                )
                for i, logits_RV in zip(todo, done):
                    waiting[i] = (logits_RV,)
            return waiting[mine][0]

        return LogitScores([NetworkAnswer(None, hidden_RH, later=later_laws)])

    @property
    def base(self) -> LogitScores:
        return self


Exits = tuple[Callable[[int, Sequence[int]], Tensor], Callable[[Tensor], Tensor]]
"""(hidden states of some nodes at a depth, logits of hidden states)"""


def rows_of(a: NetworkAnswer) -> int:
    """How many rows an answer has."""
    return len(next(t for t in (a.logits_RV, a.argmax, a.hidden_RH) if t is not None))


def exits_of(answers: Sequence[NetworkAnswer], head: Callable[[Tensor], Tensor]) -> Exits:
    """The exits of rows that full passes answered.

    Args:
        answers: Answers whose rows are the nodes in order.
        head: Makes logits of states that lie before the final norm.

    Returns:
        A function that gives the states of some nodes at a depth, and `head`.
    """

    def exit_states(depth: int, nodes: Sequence[int]) -> Tensor:
        """Hidden states at an exit.

        Args:
            depth: Number of layers.
            nodes: Rows, in the order that the answer has.

        Returns:
            States ``[n, H]``, before the final norm.
        """
        return torch.cat([a.exits[depth] for a in answers if a.exits is not None])[list(nodes)]

    return exit_states, head


def pick_answer_rows(
    answers: Sequence[tuple[int, NetworkAnswer]], rows: Sequence[int], network: NeuralNetwork
) -> list[tuple[int, NetworkAnswer]]:
    """Keep some rows of several answers.

    What is left out gives its memory back, and so do logits of rows whose states are known: they
    are computed anew where somebody looks.

    Args:
        answers: Answers, each with its number of rows.
        rows: Rows to keep, ascending, counted over all answers.
        network: The network that answered; its head computes logits anew.

    Returns:
        The answers that have such rows, each with the number of rows that are left.
    """
    out = list[tuple[int, NetworkAnswer]]()
    first = 0
    head = network.head_logits
    for n, a in answers:
        mine = [r - first for r in rows if first <= r < first + n]
        first += n
        if len(mine) == n and a.logits_RV is None:
            out.append((n, a))
        elif mine:
            out.append((len(mine), _rows(a, mine, head if network.partial else None)))
    return out


def _rows(
    a: NetworkAnswer, rows: Sequence[int], head: Callable[[Tensor], Tensor] | None
) -> NetworkAnswer:
    if a.hidden_RH is None:
        states = None
    else:
        states = a.hidden_RH[list(rows)]
    law = a.logits_RV
    later = None
    if head is not None and states is not None and (law is not None or a.later is not None):
        # States are far smaller than logits over the vocabulary, so the logits go.
        law, later = None, lambda: head(states)
    elif law is not None:
        law = law[list(rows)]
    elif a.later is not None:
        whole = a.later
        later = lambda: whole()[list(rows)]  # noqa: E731
    return NetworkAnswer(
        law, states, None if a.argmax is None else [a.argmax[r] for r in rows], later, None, a.top
    )
