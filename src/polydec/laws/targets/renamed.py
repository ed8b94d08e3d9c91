"""The law of a model that reads every token under another name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import DelegatingSession
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.row_scores import LogprobRowScores
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.contrasts.mixture import MixtureContrast
from polydec.laws.targets.contrast import ContrastTarget


@dataclass(frozen=True)
class TokenRenaming:
    """Which token is read in the place of which.

    Attributes:
        name_of: For each token the one that is read in its place; each stands there once.
    """

    name_of: tuple[int, ...]

    def __post_init__(self) -> None:
        if sorted(self.name_of) != list(range(len(self.name_of))):
            raise RequestError(
                f"names are {str(list(self.name_of[:8]))[:60]} …: each of the {len(self.name_of)} tokens "
                "must stand there once"
            )

    @cached_property
    def inverse_renaming(self) -> TokenRenaming:
        """What gives each token its own name back."""
        own = [0] * len(self.name_of)
        for token, name in enumerate(self.name_of):
            own[name] = token
        return TokenRenaming(tuple(own))

    @cached_property
    def index_V(self) -> Tensor:
        """`name_of` as indices of a row."""
        return torch.tensor(self.name_of)

    def rename_tokens(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The names of some tokens."""
        return tuple([self.name_of[x] for x in tokens])

    def rename_draft(self, draft: Draft) -> Draft:
        """A draft under the names of its tokens."""
        return replace(draft, token=self.rename_tokens(draft.token))


def deal_names(vocab: TokenVocabulary, seed: int, number: int = 0) -> TokenRenaming:
    """Deal the names of all tokens that write something anew; marks and ends keep theirs.

    Args:
        vocab: Vocabulary; without a tokenizer all but its ends are dealt.
        seed: Of the request.
        number: Which of several renamings.

    Returns:
        The renaming, always the same one for a seed and a number.
    """
    # Marks and ends have a meaning before any text, and keep their rows.
    pieces = None if vocab.words is None else vocab.words.pieces
    free = [
        x
        for x in range(vocab.size)
        if x not in vocab.eos and (pieces is None or (x < len(pieces) and pieces[x]))
    ]
    # The order of independent noise is a uniform one.
    stream = Rng.of_choice(seed).child_stream("names", number)
    order = stream.gumbel_noise(len(free)).gumbel_V.argsort()
    names = list(range(vocab.size))
    for token, place in zip(free, map(int, order), strict=True):
        names[token] = free[place]
    return TokenRenaming(tuple(names))


@dataclass(frozen=True)
class RenamedTarget:
    """`target`, which reads every token of a text under another name, and whose law of a name is
    that of the token that bears it.

    For a model that ties its head to its embeddings this is the same network with the rows of that
    table dealt anew. Names are what is fed and cached, so texts under two renamings never share a
    cache.

    Exact: the law of `target` on the renamed text, no approximation of it.
    Reduces to: `target` where every token has its own name.

    Attributes:
        target: The law to read.
        renaming: Of all its tokens.
    """

    target: Target
    renaming: TokenRenaming

    def __post_init__(self) -> None:
        if len(self.renaming.name_of) != self.target.vocab.size:
            raise RequestError(
                f"a renaming of {len(self.renaming.name_of)} tokens: the model has {self.target.vocab.size}"
            )

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    @property
    def layers(self) -> int:
        return self.target.layers

    def open_session(self, prompt: Sequence[int]) -> RenamedSession:
        # A cached beginning is found by its names, so only under the same ones.
        inner = self.target.open_session(self.renaming.rename_tokens(prompt))
        return RenamedSession(self.renaming, inner)


def mean_of_renamings(target: Target, seed: int, count: int) -> Target:
    """The mean of a law under several renamings.

    Args:
        target: The law.
        seed: Of the request.
        count: How many renamings. 0: the law as it is.

    Returns:
        The mean law.
    """
    law = target
    for number in range(count):
        named = RenamedTarget(target, deal_names(target.vocab, seed, number))
        # The k-th of k laws has a share of 1 / k, so all of them weigh the same.
        mixed = ContrastTarget(law, (named,), MixtureContrast(1 / (number + 1)))
        law = mixed if number else named
    return law


class RenamedSession(DelegatingSession):
    """A session that reads the names of tokens.

    Args:
        renaming: Of all tokens.
        inner: The session of the model.
    """

    def __init__(self, renaming: TokenRenaming, inner: Session) -> None:
        self._renaming = renaming
        self._inner = inner

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        scores = await self._inner.prefill_prompt(_whole_rows(want))
        return RenamedScores(self._renaming, scores)

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a draft under the names of its tokens.

        Args:
            draft: The token tree; its root is the last token of the text.
            want: What the caller is going to read.

        Returns:
            The law at every node.
        """
        # Laws that tokens were drawn from stay as they are: no session reads them.
        named = self._renaming.rename_draft(draft)
        scores = await self._inner.score_draft(named, _whole_rows(want))
        return RenamedScores(self._renaming, scores)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Let the inner session shape rows, under the names of their tokens.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            The shaped rows, under the tokens' own names again.
        """
        named = RenamedScores(self._renaming.inverse_renaming, scores)
        bent = self._inner.bend_scores(self._renaming.rename_draft(draft), named)
        # A session that shapes nothing gives back what it was given.
        if bent is named:
            return scores
        return RenamedScores(self._renaming, bent)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        self._inner.commit_tokens(self._renaming.rename_tokens(tokens))

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands, its tokens under their own names.
        """
        return self._renaming.inverse_renaming.rename_draft(self._inner.keep_nodes(nodes, root))

    def rewind_tokens(self, n: int) -> None:
        self._inner.rewind_tokens(n)

    def score_states(self, hidden_NH: Tensor) -> DraftScores:
        return RenamedScores(self._renaming, self._inner.score_states(hidden_NH))

    def embed_tokens(self, tokens: Sequence[int]) -> Tensor:
        return self._inner.embed_tokens(self._renaming.rename_tokens(tokens))

    def open_part(
        self, layers: Sequence[int], without: frozenset[int] = frozenset(), together: int = 1
    ) -> Session:
        """Open a part of the inner session that runs some of its layers only.

        Args:
            layers: Indices of the layers that run.
            without: Halves of layers that are left out.
            together: How many consecutive attentions read the same input. Default 1.

        Returns:
            A session over the same cache.
        """
        return RenamedSession(self._renaming, self._inner.open_part(layers, without, together))

    def fork(self, choice: int | None = None) -> RenamedSession:
        return RenamedSession(self._renaming, self._inner.fork(choice))


def _whole_rows(want: ScoreRequest) -> ScoreRequest:
    """What is asked of the inner session: of equally likely tokens the lowest id is named, and only
    whole rows say which that is under the tokens' own names."""
    law, base = (
        RowDetail.ROW if detail is not RowDetail.NOTHING else detail
        for detail in (want.law, want.base)
    )
    return replace(want, law=law, base=base)


class RenamedScores(LogprobRowScores):
    """Scores whose rows are read under other names.

    Args:
        renaming: Of all tokens.
        inner: Scores by name.
    """

    __slots__ = ("_inner", "_renaming")

    def __init__(self, renaming: TokenRenaming, inner: DraftScores) -> None:
        self._renaming = renaming
        self._inner = inner

    def logprob_row(self, i: int) -> Tensor:
        return self._inner.logprob_row(i)[self._renaming.index_V]

    def log_weights(self, i: int) -> Tensor:
        return self._inner.log_weights(i)[self._renaming.index_V]

    def certain_token(self, i: int) -> int | None:
        name = self._inner.certain_token(i)
        if name is None:
            return None
        return self._renaming.inverse_renaming.name_of[name]

    def likeliest_token(self, i: int) -> int:
        # On a tie the lowest id, which is not that of the lowest name.
        return int(self.log_weights(i).argmax())

    def topk_rows(self, rows: Sequence[int], k: int) -> list[list[int]]:
        """Find the likeliest tokens of several rows.

        Args:
            rows: Nodes of the draft.
            k: How many tokens of each row.

        Returns:
            For each node its token ids, best first.
        """
        return [list(self.likeliest_tokens(i, k)[0]) for i in rows]

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """Read the law of the first layers alone, under the same names.

        Args:
            depth: How many layers; it must have been wanted of the score.
            nodes: Nodes of the draft, in the order of the rows.

        Returns:
            Scores whose row j belongs to ``nodes[j]``.
        """
        return RenamedScores(self._renaming, self._inner.exit_laws(depth, nodes))

    @property
    def hidden_NH(self) -> Tensor | None:
        return self._inner.hidden_NH

    @property
    def base(self) -> DraftScores:
        return RenamedScores(self._renaming, self._inner.base)
