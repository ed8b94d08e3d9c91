"""The contract of targets and their sessions."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import PolydecError
from polydec.core.law import float64_probabilities
from polydec.core.protocols import DraftScores, Session, Shaper, Target
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.lab.testing.exercised_counts import (
    ContractCounts,
    declared_unexercised,
    require_exercised,
)
from polydec.lab.testing.shaper_contract import is_different_law


@dataclass(frozen=True)
class TargetCounts(ContractCounts):
    """What a check saw a target do.

    Attributes:
        rows: Rows that were compared with those of single steps.
        distinct: Those of another law than the row compared before: a mix-up would have shown.
        rewound: Texts that were taken back, after which another law stands than if they had not
            been.
        forked: Texts of twins after which the other twin has another law.
        states: Rows whose hidden states were read.
        keys: Tokens whose keys and values in the last layer were compared.
        probes: Nodes of drafts with probes among them.
    """

    rows: int = 0
    distinct: int = 0
    rewound: int = 0
    forked: int = 0
    states: int = 0
    keys: int = 0
    probes: int = 0


@dataclass(frozen=True)
class ShapedCounts(ContractCounts):
    """What a check saw shapers do to a target.

    Attributes:
        rows: Rows that were compared.
        changed: Those that the shapers made another law of.
    """

    rows: int = 0
    changed: int = 0


def check_target(
    target: Target,
    *,
    prompt: Sequence[int] = (0, 1),
    tolerance: float = 1e-5,
    seed: int = 0,
    prefill: bool = True,
) -> TargetCounts:
    """Check everything that sessions of a target promise.

    Every member of the protocols is there; rows are normalised laws; the row of a tree's node is
    that of its path; a draft that extends the last one, one that replaces it, commits of scored and
    of unscored tokens, branches that stay and branches that go, eviction, rewinds and forks all
    leave the law where it should be; states, embeddings and shaping say what the rows say; keys and
    values are those of the text. States, keys and probes may be refused by an error of the session;
    of everything else a class attribute `unexercised` of the target says, by the name of a count
    (TargetCounts), why that is 0.

    Args:
        target: The target.
        prompt: At least two tokens of the vocabulary.
        tolerance: Of probabilities, at least 0.
        seed: Of random trees and texts. Default 0.
        prefill: Whether a text given as the prompt means the same as one that was generated (not so
            under penalties of generated tokens only). Default True.

    Returns:
        The counts.

    Raises:
        AssertionError: A promise is broken, or something that is to be checked never happened.
    """
    checker = TargetChecker(target, tuple(prompt), tolerance, random.Random(seed), prefill)
    checker.check_all()
    counts = TargetCounts(**checker.seen)
    names = [f.name for f in fields(counts)]
    reasons = {**declared_unexercised(target), **checker.refusals}
    require_exercised(counts, type(target).__name__, names, reasons)
    return counts


def largest_difference(a_V: Tensor, b_V: Tensor) -> float:
    """Compare two laws, token by token.

    Args:
        a_V: Log-probabilities, shape ``[V]``.
        b_V: Log-probabilities of the other law, shape ``[V]``.

    Returns:
        The largest difference of two probabilities, 0 to 1.
    """
    return float((float64_probabilities(a_V) - float64_probabilities(b_V)).abs().max())


class TargetChecker:
    """One target under check.

    Args:
        target: The target.
        prompt: Prompt of all sessions, at least two tokens.
        tolerance: Of probabilities, at least 0.
        dice: Draws trees and texts.
        prefill: Whether a text given as the prompt means the same as one that was generated.
    """

    def __init__(
        self,
        target: Target,
        prompt: tuple[int, ...],
        tolerance: float,
        dice: random.Random,
        prefill: bool,
    ) -> None:
        self.target = target
        self.prompt = prompt
        self.tolerance = tolerance
        self.dice = dice
        self.prefill = prefill
        self.seen = Counter[str]()
        self.refusals = dict[str, str]()
        self.row_before: Tensor | None = None
        self.stepped = dict[tuple[int, ...], Tensor]()
        # EOS is left out: a target may give no law behind it.
        self.usual = sorted(set(range(target.vocab.size)) - target.vocab.eos)[:50]

    def check_all(self) -> None:
        for check in (
            self.check_members,
            self.check_trees,
            self.check_extension,
            self.check_commits,
            self.check_unscored,
            self.check_keeps,
            self.check_evictions,
            self.check_rewinds,
            self.check_forks,
            self.check_reading,
            self.check_states,
            self.check_memory,
            self.check_probes,
            self.check_bends,
            self.prompt_rows,
        ):
            # Each check runs alone, so that no pass of one is merged with another's.
            run_coroutines([check()])

    async def check_members(self) -> None:
        """Whoever holds a target, a session or scores may use every member of their protocols."""
        # Every name of the protocol must be there, though only some are used below.
        session = self.target.open_session(self.prompt)
        scores = await session.score_draft(
            Draft.chain_draft(self.prompt[-1]), ScoreRequest(base=RowDetail.ROW)
        )
        for what, protocol in (
            (self.target, Target),
            (session, Session),
            (scores, DraftScores),
            (scores.base, DraftScores),
        ):
            missing = [
                name
                for name in vars(protocol)
                if not name.startswith("_") and not hasattr(what, name)
            ]
            assert not missing, f"{type(what).__name__} lacks {', '.join(missing)}"
        assert session.peers >= 1, f"peers is {session.peers}: the session itself counts"
        session.close()

    def random_tree(self, nodes: int) -> Draft:
        """A random tree below the prompt's root, without equal siblings."""
        token = [self.prompt[-1]]
        parent = [-1]
        while len(token) < nodes:
            p = self.dice.randrange(len(token))
            x = self.dice.choice(self.usual)
            # Two equal siblings would be one path: the tree would hold fewer laws than nodes.
            if all((p, x) != (q, y) for q, y in zip(parent, token, strict=True)):
                token.append(x)
                parent.append(p)
        return Draft.certain_tree(token, parent)

    async def row_after(self, text: Sequence[int]) -> Tensor:
        """The row after prompt and text, by single steps of a fresh session."""
        if tuple(text) not in self.stepped:
            self.stepped[tuple(text)] = await self.by_steps(text)
        return self.stepped[tuple(text)]

    async def by_steps(self, text: Sequence[int]) -> Tensor:
        session = self.target.open_session(self.prompt)
        root = self.prompt[-1]
        for x in text:
            await session.score_draft(Draft.chain_draft(root), ScoreRequest())
            session.commit_tokens((root,))
            root = x
        row_V = (await session.score_draft(Draft.chain_draft(root), ScoreRequest())).logprob_row(0)
        session.close()
        # The same text, given as a prompt, is a second way to the same row.
        if self.prefill and text:
            session = self.target.open_session((*self.prompt, *text))
            self.require_same_law(
                row_V,
                (
                    await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest())
                ).logprob_row(0),
                f"committing {tuple(text)} is not the same as giving it with the prompt",
            )
            session.close()
        return row_V

    def require_same_law(self, got_V: Tensor, want_V: Tensor, message: str) -> None:
        """Require that two rows are one law.

        Args:
            got_V: Log-probabilities that the target gave, shape ``[V]``.
            want_V: What they must be, shape ``[V]``.
            message: How a failure's sentence begins.

        Raises:
            AssertionError: A probability differs by more than the tolerance.
        """
        distance = largest_difference(got_V, want_V)
        assert distance <= self.tolerance, f"{message}: probabilities differ by {distance:.2e}"

    def would_show(self, a_V: Tensor, b_V: Tensor) -> bool:
        """Say whether one of two rows in the other's place would be noticed.

        Args:
            a_V: Log-probabilities, shape ``[V]``.
            b_V: Log-probabilities of the other row, shape ``[V]``.

        Returns:
            Whether they differ by more than the tolerance.
        """
        return largest_difference(a_V, b_V) > self.tolerance

    async def require_rows(
        self, scores: DraftScores, draft: Draft, text: Sequence[int], what: str
    ) -> None:
        """Require that the row of every node is that of its path, by single steps.

        Args:
            scores: Scores of the draft.
            draft: The draft.
            text: Tokens behind the prompt up to the draft's root; none where the root is the
                prompt's last token.
            what: How a failure's sentence begins.

        Raises:
            AssertionError: A row is another one.
        """
        for i in range(len(draft)):
            path = [draft.token[j] for j in draft.path_to(i)]
            want_V = await self.row_after([*text, *path])
            self.require_same_law(
                scores.logprob_row(i), want_V, f"{what}: row {i} is not that of its path {path}"
            )
            # Neighbouring rows that are alike would hide a mix-up: how many differ is counted.
            before_V = self.row_before
            self.row_before = want_V
            self.seen["rows"] += 1
            self.seen["distinct"] += before_V is not None and self.would_show(before_V, want_V)

    async def check_trees(self) -> None:
        for nodes in (1, 2, 5, 7):
            session = self.target.open_session(self.prompt)
            draft = self.random_tree(min(nodes, len(self.usual) + 1))
            # The prompt comes first here; other checks leave it to the first score.
            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            scores = await session.score_draft(draft, ScoreRequest())
            total = float(float64_probabilities(scores.logprob_row(0)).sum())
            assert abs(total - 1.0) < 1e-5, f"row 0 sums to {total}, not to 1"
            await self.require_rows(scores, draft, (), f"tree of {len(draft)} nodes")
            session.close()

    async def check_extension(self) -> None:
        session = self.target.open_session(self.prompt)
        # Two nodes, then three, then five of one tree: each score feeds the new ones only.
        whole = self.random_tree(5)
        for n in (2, 3, 5):
            part = Draft.certain_tree(whole.token[:n], whole.parent[:n])
            await self.require_rows(
                await session.score_draft(part, ScoreRequest()),
                part,
                (),
                f"draft extended to {n} nodes",
            )
        other = self.random_tree(4)
        await self.require_rows(
            await session.score_draft(other, ScoreRequest()),
            other,
            (),
            "draft that replaces another",
        )
        session.close()

    async def check_commits(self) -> None:
        """Accepted paths of every length, one round after another."""
        session = self.target.open_session(self.prompt)
        text = list[int]()
        for depth in (0, 2, 1, 3):
            root = ([*self.prompt, *text])[-1]
            a = self.usual[0]
            b = self.usual[-1]
            # Siblings, and two levels below one of them: what was accepted is not what stands
            # first.
            draft = Draft.certain_tree(
                (root, a, b, b, a, a, b), (-1, 0, 0, 2, 2, 3, 3)
            )  # accepted below: 2, 3, 6
            await self.require_rows(
                await session.score_draft(draft, ScoreRequest()),
                draft,
                text,
                f"after {len(text)} committed tokens",
            )
            path = [draft.token[i] for i in (2, 3, 6)][:depth]
            session.commit_tokens((root, *path))
            text += [*path, self.dice.choice(self.usual)]
        session.close()

    async def check_unscored(self) -> None:
        """Tokens may be committed that no score has seen."""
        session = self.target.open_session(self.prompt)
        text = [self.dice.choice(self.usual) for _ in range(5)]
        # Committed without a score: nothing of it has run yet.
        session.commit_tokens((self.prompt[-1], *text[:-1]))
        await self.require_rows(
            await session.score_draft(Draft.chain_draft(text[-1]), ScoreRequest()),
            Draft.chain_draft(text[-1]),
            text,
            "unscored commit",
        )
        a = self.usual[0]
        b = self.usual[-1]
        # Scored and then dropped: what was staged must leave no trace.
        await session.score_draft(Draft.chain_draft(text[-1], (a,)), ScoreRequest())
        session.commit_tokens((text[-1], b, a))
        text += [b, a, b]
        await self.require_rows(
            await session.score_draft(Draft.chain_draft(b), ScoreRequest()),
            Draft.chain_draft(b),
            text,
            "commit beside the scored draft",
        )
        session.close()

    def random_bush(self, root: int) -> Draft:
        a = self.usual[0]
        b = self.usual[-1]
        return Draft.certain_tree((root, a, b, b, a, a, b), (-1, 0, 0, 2, 2, 3, 3))

    def longer_draft(self, draft: Draft, parents: Sequence[int]) -> Draft:
        """Add nodes to a draft.

        Args:
            draft: The draft.
            parents: For each new node the node that it follows.

        Returns:
            The longer draft, each new node with a token that its siblings do not have where there
            is one.
        """
        token = [
            next((x for x in self.usual if draft.child_of(p, x) is None), self.usual[0])
            for p in parents
        ]
        return Draft.certain_tree((*draft.token, *token), (*draft.parent, *parents))

    async def check_keeps(self) -> None:
        """Some branches go, the root moves down, and what follows is as if the others had never
        been.
        """
        # The root stays, or moves down one, two or three levels. Nodes that do not lie below it go,
        # whether they are listed or not.
        for root, nodes in (
            (0, (0, 2, 4)),
            (2, (0, 2, 3, 4, 6)),
            (2, (0, 1, 2, 3, 5)),
            (3, (0, 2, 3)),
            (6, range(7)),
        ):
            session = self.target.open_session(self.prompt)
            draft = self.random_bush(self.prompt[-1])
            await session.score_draft(draft, ScoreRequest())
            left = session.keep_nodes(nodes, root)
            text = [draft.token[i] for i in draft.path_to(root)]
            assert left.token[0] == draft.token[root] and left.parent[0] == -1, (
                "node 0 of what stays is not the new root"
            )
            # One new node below the last that stayed and one below the root: both read what stayed
            # in the cache.
            more = self.longer_draft(left, (len(left) - 1, 0) if len(left) > 1 else (0,))
            assert more.is_extension_of(left), (
                "a draft with further nodes does not extend what was kept"
            )
            await self.require_rows(
                await session.score_draft(more, ScoreRequest()),
                more,
                text,
                f"{tuple(nodes)} kept below {root}, and two more",
            )
            # A second time, so that what was kept once is cut again.
            down = more.path_to(len(left))
            again = session.keep_nodes((0, *down), down[-1])
            far = [*text, *(more.token[i] for i in down)]
            assert len(again) == 1, f"{len(again)} nodes stay where one was to"
            twin = session.fork()
            session.commit_tokens((again.token[0],))
            tip = Draft.chain_draft(self.usual[0])
            await self.require_rows(
                await session.score_draft(tip, ScoreRequest()),
                tip,
                [*far, tip.token[0]],
                "commit after keep",
            )
            session.close()
            other = self.longer_draft(again, (0,))
            await self.require_rows(
                await twin.score_draft(other, ScoreRequest()), other, far, "twin of what was kept"
            )
            twin.close()

    async def check_evictions(self) -> None:
        """Entries are given back at any moment; nobody can tell from a row."""
        # Each moment evicts in one run and not in another, and one run evicts at all four.
        for when in (6, 9, 15):
            session, draft, text = (
                self.target.open_session(self.prompt),
                self.random_bush(self.prompt[-1]),
                list[int](),
            )

            def maybe_evict(bit: int, session: Session = session, when: int = when) -> None:
                """Give the cache back at some of the four moments of a run.

                Args:
                    bit: Which moment this is: 1, 2, 4 or 8.
                    session: The session of the run.
                    when: The sum of the moments at which this run evicts.
                """
                if when & bit:
                    session.evict_cache()

            await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
            maybe_evict(1)
            await self.require_rows(
                await session.score_draft(draft, ScoreRequest()), draft, (), "score after evict"
            )
            maybe_evict(2)
            # Two ways to go on: by new tokens, or by nodes that were scored.
            if when & 1:
                session.commit_tokens([draft.token[i] for i in (0, 2, 4)])
                draft, text = (
                    self.random_bush(self.usual[0]),
                    [draft.token[2], draft.token[4], self.usual[0]],
                )
            else:
                draft, text = (
                    self.longer_draft(session.keep_nodes((0, 2, 4), 2), (0, 1)),
                    [draft.token[2]],
                )
            maybe_evict(4)
            await self.require_rows(
                await session.score_draft(draft, ScoreRequest()),
                draft,
                text,
                f"evicted at {when:04b}, a second round",
            )
            session.commit_tokens(draft.token[:1])
            maybe_evict(8)
            last = Draft.chain_draft(self.usual[-1])
            text.append(last.token[0])
            await self.require_rows(
                await session.score_draft(last, ScoreRequest()),
                last,
                text,
                f"evicted at {when:04b}, a third round",
            )
            session.close()

    async def check_states(self) -> None:
        """Hidden states have one row a node, and through norm and head they say what the model
        says.
        """
        session = self.target.open_session(self.prompt)
        draft = self.random_bush(self.prompt[-1])
        want = ScoreRequest(base=RowDetail.ROW, hidden=True)
        first = Draft.certain_tree(draft.token[:3], draft.parent[:3])
        await session.score_draft(first, ScoreRequest(base=RowDetail.ROW))
        scores = await session.score_draft(draft, want)
        hidden_NH = scores.hidden_NH
        # A target without states must refuse to compute from them, with an error of its own.
        if hidden_NH is None:
            try:
                session.score_states(torch.empty(0, 1))
            except PolydecError as error:  # this target shows none
                self.refusals["states"] = str(error)
        else:
            assert len(hidden_NH) == len(draft), (
                f"hidden_NH has {len(hidden_NH)} rows for {len(draft)} nodes"
            )
            try:
                own: DraftScores | None = session.score_states(hidden_NH)
            except PolydecError as error:  # this target cannot
                own, self.refusals["states"] = None, str(error)
            if own is not None:
                for i in range(len(draft)):
                    self.require_same_law(
                        own.logprob_row(i),
                        scores.base.logprob_row(i),
                        f"states: row {i} is not the model's own",
                    )
                self.seen["states"] += len(draft)
                try:
                    behind: Tensor | None = session.normed_states(hidden_NH)
                except PolydecError:  # a network that runs whole only
                    behind = None
                assert behind is None or behind.shape == hidden_NH.shape, (
                    "normed gives other rows than it was given"
                )
        session.close()

    async def check_memory(self) -> None:
        """What a last layer holds of the committed text is what a session holds that was given it
        as a prompt: behind branches, forks and eviction.
        """
        a = self.usual[0]
        b = self.usual[-1]
        try:
            text, (keys, values) = (
                (*self.prompt, a, b),
                await self._remembered((*self.prompt, a, b, a)),
            )
        except PolydecError as error:  # this target shows none
            self.refusals["keys"] = str(error)
            return
        session = self.target.open_session(self.prompt)
        draft = Draft.certain_tree((self.prompt[-1], b, a, a, b), (-1, 0, 0, 1, 2))
        await session.score_draft(draft, ScoreRequest())
        session.commit_tokens((*self.prompt[-1:], a))
        twin = session.fork()
        root = Draft.chain_draft(b)
        for one, evicts in ((session, False), (twin, True)):
            if evicts:
                one.evict_cache()
                # Entries that went may not be shown; the next score feeds them anew.
                assert not one.layer_memory()[0].shape[1], "keys are shown that were given back"
            await one.score_draft(root, ScoreRequest())
            before = one.layer_memory()[0].shape[1]
            # The last token waits for its pass, so its keys are not there yet.
            assert before < len(text), (
                f"{before} keys are shown of {len(text) - 1} committed tokens"
            )
            one.commit_tokens((b,))
            got = one.layer_memory()
            assert got[0].shape[1] == len(text), (
                f"{got[0].shape[1]} keys are shown of {len(text)} tokens"
            )
            self.seen["keys"] += len(text)
            for which, x, y in (("keys", got[0], keys), ("values", got[1], values)):
                off = float((x.double() - y.double()).abs().max())
                # Keys grow with the model: the bound is a share of the largest.
                assert off <= 10 * self.tolerance * float(y.abs().max()), (
                    f"{which} differ by {off:.2e} from the prompt's"
                )
        for one in (session, twin):
            one.close()

    async def _remembered(self, text: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Keys and values of all tokens but the last, of a session that has this prompt."""
        session = self.target.open_session(text)
        await session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING, last=True))
        keys, values = (t.clone() for t in session.layer_memory())
        session.close()
        return keys, values

    async def check_probes(self) -> None:
        """A probe that brings a token's embedding says what the token says, and moves nobody."""
        session, (a, b) = self.target.open_session(self.prompt), (self.usual[0], self.usual[-1])
        try:
            table_NH = session.embed_tokens((a, b, a))
        except PolydecError as error:
            self.refusals["probes"] = str(error)
            session.close()
            return
        assert (
            table_NH.dim() == 2 and len(table_NH) == 3 and bool((table_NH[0] == table_NH[2]).all())
        ), "embed is no table"
        plain = Draft.certain_tree((self.prompt[-1], a, b, b), (-1, 0, 0, 1))
        draft = replace(
            plain,
            # Two of the nodes bring the embedding of token b in place of its id.
            token=(*plain.token[:2], 0, 0),
            probe=(False, False, True, True),
            state=(None, None, table_NH[1], table_NH[1]),
        )
        scores = await session.score_draft(draft, ScoreRequest())
        for i in range(len(plain)):
            path = [plain.token[j] for j in plain.path_to(i)]
            # A probe has no text, so shapers have no state for it: its row is the model's own.
            if i > 1:
                got_V = scores.base.logprob_row(i)
            else:
                got_V = scores.logprob_row(i)
            self.require_same_law(got_V, await self.path_row(path, i > 1), f"probe beside node {i}")
        self.seen["probes"] += len(plain)
        session.commit_tokens(draft.token[:2])
        await self.require_rows(
            await session.score_draft(Draft.chain_draft(b), ScoreRequest()),
            Draft.chain_draft(b),
            (a, b),
            "commit beside probes",
        )
        session.close()

    async def path_row(self, path: Sequence[int], base: bool) -> Tensor:
        """Compute the row at the end of a path in a fresh session.

        Args:
            path: Tokens below the prompt's root.
            base: Whether to read the model's row before shaping.

        Returns:
            Log-probabilities, shape ``[V]``.
        """
        session = self.target.open_session(self.prompt)
        chain = Draft.chain_draft(self.prompt[-1], path)
        scores = await session.score_draft(chain, ScoreRequest(base=RowDetail.ROW))
        session.close()
        return (scores.base if base else scores).logprob_row(len(path))

    async def check_bends(self) -> None:
        """The model's own rows, bent, are the law."""
        session = self.target.open_session(self.prompt)
        draft = self.random_bush(self.prompt[-1])
        scores = await session.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
        self.require_same_law(
            session.bend_scores(draft, scores.base).logprob_row(0),
            scores.logprob_row(0),
            "bend: row 0 is not the law",
        )
        session.close()

    async def check_rewinds(self) -> None:
        for n in (0, 1, 3, 4):
            session = self.target.open_session(self.prompt)
            text = [self.dice.choice(self.usual) for _ in range(5)]
            if n:  # another token than the last one that stays: the law behind them is another one
                text[4] = next(x for x in self.usual if x != text[4 - n])
            draft = Draft.chain_draft(self.prompt[-1], text[:4])
            await session.score_draft(draft, ScoreRequest())
            session.commit_tokens(draft.token)
            await session.score_draft(Draft.chain_draft(text[4]), ScoreRequest())
            session.rewind_tokens(n)  # then another token than the one that stood there
            left = [self.prompt[-1], *text][: 5 - n]
            root = next(x for x in self.usual[::-1] if x != [self.prompt[-1], *text][5 - n])
            draft = Draft.chain_draft(root, (self.usual[0],))
            await self.require_rows(
                await session.score_draft(draft, ScoreRequest()),
                draft,
                [*left[1:], root],
                f"rewound by {n}",
            )
            if n:
                stands_V = await self.row_after([*left[1:], root])
                self.seen["rewound"] += self.would_show(
                    stands_V, await self.row_after([*text, root])
                )
            session.close()

    async def check_forks(self) -> None:
        """Twins go their own ways, also when one is forked while something is staged."""
        session, (a, b) = self.target.open_session(self.prompt), (self.usual[0], self.usual[-1])
        await session.score_draft(
            Draft.certain_tree((self.prompt[-1], a, b), (-1, 0, 0)), ScoreRequest()
        )
        twin = session.fork()
        session.commit_tokens((self.prompt[-1], a))
        # The original has committed a already; the twin, which still has both staged, takes b.
        for s, first in ((twin, b), (session, a)):
            if s is twin:
                s.commit_tokens((self.prompt[-1], first))
            draft = Draft.chain_draft(b, (a,))
            await self.require_rows(
                await s.score_draft(draft, ScoreRequest()),
                draft,
                (first, b),
                f"twin that took {first}",
            )
        # Both twins go on in turns, so that one would show in the other.
        session.commit_tokens((b,))
        twin.commit_tokens((b, a))
        await self.require_rows(
            await session.score_draft(Draft.chain_draft(a), ScoreRequest()),
            Draft.chain_draft(a),
            (a, b, a),
            "first twin, later",
        )
        await self.require_rows(
            await twin.score_draft(Draft.chain_draft(b), ScoreRequest()),
            Draft.chain_draft(b),
            (b, b, a, b),
            "second twin, later",
        )
        for first, other in (((a, b, a), (b, b, a)), ((a, b), (b, b))):
            self.seen["forked"] += self.would_show(
                await self.row_after(first), await self.row_after(other)
            )
        session.close()
        twin.close()

    async def check_reading(self) -> None:
        """argmax, topk, logp and certain say what the row says."""
        session = self.target.open_session(self.prompt)
        draft = self.random_tree(4)
        scores = await session.score_draft(draft, ScoreRequest(base=RowDetail.ROW))
        k = min(3, self.target.vocab.size)
        for s in (scores, scores.base):
            ranked = s.topk_rows(range(len(draft)), k)
            for i in range(len(draft)):
                row_V = s.logprob_row(i)
                tokens = s.likeliest_tokens(i, k)
                best = float(row_V.max())
                assert float(row_V[s.likeliest_token(i)]) == best, (
                    f"argmax({i}) is {s.likeliest_token(i)}: not the likeliest token"
                )
                assert [float(row_V[x]) for x in tokens[0]] == list(tokens[1]), (
                    f"topk({i}) has other values than the row"
                )
                assert list(tokens[1]) == row_V.topk(k).values.tolist(), (
                    f"topk({i}) is not the best {k} of the row"
                )
                assert [float(row_V[x]) for x in ranked[i]] == list(tokens[1]), (
                    f"topk_rows is not topk at row {i}"
                )
                assert list(s.token_logprobs(i, range(k))) == row_V[:k].tolist(), (
                    f"logp({i}) has other values than the row"
                )
                only = s.certain_token(i)
                assert only is None or float(row_V[only]) == 0.0, (
                    f"certain({i}) is {only}: the row has other tokens"
                )
        session.close()

    async def prompt_rows(self) -> None:
        session = self.target.open_session((*self.prompt, *self.usual[:4]))
        scores = (
            await session.prefill_prompt(
                ScoreRequest(law=RowDetail.ROW, base=RowDetail.ROW, prompt=True)
            )
        ).base
        text = (*self.prompt, *self.usual[:4])
        for i in range(len(text) - 1):
            # Each prefix as a prompt of its own.
            fresh = self.target.open_session(text[: i + 1])
            want = (
                await fresh.score_draft(
                    Draft.chain_draft(text[i]), ScoreRequest(base=RowDetail.ROW)
                )
            ).base.logprob_row(0)
            self.require_same_law(
                scores.logprob_row(i), want, f"row {i} of the prompt is not that of its beginning"
            )
            fresh.close()
        session.close()
        for _ in range(2):  # the second one may find the first one's text
            session = self.target.open_session(text)
            last = (
                await session.prefill_prompt(
                    ScoreRequest(law=RowDetail.ROW, base=RowDetail.ROW, last=True)
                )
            ).base
            self.require_same_law(
                last.logprob_row(0),
                scores.logprob_row(len(text) - 2),
                "the last row of the prompt is not that of its beginning",
            )
            if self.prefill:
                draft = Draft.chain_draft(text[-1])
                await self.require_rows(
                    await session.score_draft(draft, ScoreRequest()),
                    draft,
                    text[len(self.prompt) :],
                    "score after the last row",
                )
            session.close()


def check_shaped(
    target: Target,
    inner: Target,
    shapers: Sequence[Shaper[Any]],
    *,
    prompt: Sequence[int] = (0, 1),
    length: int = 4,
    tolerance: float = 1e-9,
) -> ShapedCounts:
    """Check that every row of a shaped target is the inner model's logits bent by the shapers.

    The shapers have the state that the text gives them: start(prompt), then one step a token. Where
    there are shapers, they must have changed a law.

    Args:
        target: The shaped target.
        inner: The model that it shapes.
        shapers: What shapes it, in order.
        prompt: Token ids of the prompt, at least one.
        length: Tokens of a random text, at least 1. Default 4.
        tolerance: Of probabilities, at least 0.

    Returns:
        The counts.

    Raises:
        AssertionError: A row is another one, or the shapers changed nothing.
    """
    dice = random.Random(5)
    seen = Counter[str]()
    for _ in range(4):
        text = [dice.randrange(target.vocab.size) for _ in range(length)]

        async def chain_rows(of: Target, text: Sequence[int] = text) -> DraftScores:
            """Score a text as one chain.

            Args:
                of: The target that scores it.
                text: The tokens behind the prompt.

            Returns:
                Scores after the prompt and after each token.
            """
            session: Session = of.open_session(prompt)
            return await session.score_draft(Draft.chain_draft(prompt[-1], text), ScoreRequest())

        got = _now(chain_rows(target))
        plain = _now(chain_rows(inner))
        states = [s.start_state(prompt) for s in shapers]
        for i in range(length + 1):
            logw_V: Tensor = plain.log_weights(i)
            for s, state in zip(shapers, states, strict=True):
                # The reference: shapers in order on the model's weights, without the shaped
                # target's shortcuts.
                logw_V = s.shape_law(state, logw_V)
            distance = float(
                (float64_probabilities(got.logprob_row(i)) - torch.softmax(logw_V.double(), -1))
                .abs()
                .max()
            )
            assert distance <= tolerance, (
                f"after {text[:i]} the shaped law is off by {distance:.2e}"
            )
            seen["rows"] += 1
            seen["changed"] += is_different_law(plain.log_weights(i), logw_V)
            if i < length:
                states = [s.next_state(x, text[i]) for s, x in zip(shapers, states, strict=True)]
    counts = ShapedCounts(**seen)
    wanted = ["rows"] + ["changed"] * bool(shapers)
    require_exercised(counts, "a check of shapers over a target", wanted)
    return counts


def _now(coro: Coroutine[Any, Any, Any]) -> Any:
    return run_coroutines([coro])[0]
