"""Data that the rooms exchange. Everything is frozen; token ids live on the host as ints, laws as tensors.

Shape suffixes: N nodes of a draft, V vocabulary, H hidden width, R rows, K the k of a top-k.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from polydec.base.errors import PolydecError, RequestError
from polydec.base.values import fast_dataclass

if TYPE_CHECKING:
    from torch import Tensor


class Exactness(Enum):
    """What a method promises of its output: the target's law, its greedy text only, or neither."""

    LAW = "law"
    ARGMAX = "greedy"
    APPROXIMATE = "approximate"


class RowDetail(IntEnum):
    """What somebody needs to see of a row; each includes the ones before it."""

    NOTHING = 0
    ARGMAX = 1
    TOPK = 2
    ROW = 3


class DrawKind(Enum):
    """How a node was proposed: with certainty, drawn independently of its siblings, or without
    replacement among them.
    """

    CERTAIN = "certain"
    INDEPENDENT = "independent"
    WITHOUT = "without replacement"


T = TypeVar("T")
_ROOT = (-1,), (DrawKind.CERTAIN,), (None,)  # parent, draw and law of a root


class TokenCodec(Protocol):
    """What ids mean as text."""

    @property
    def pieces(self) -> Sequence[bytes | None]:
        """Of each id the bytes that it stands for; None: nothing is written for it, or its bytes
        are not known.
        """
        ...

    def encode(self, text: str, special: bool = True) -> tuple[int, ...]:
        """Turn a text into token ids.

        Args:
            text: The text.
            special: Whether the marks that the tokenizer adds itself (such as BOS) are added.
                Default True.

        Returns:
            Token ids.

        Raises:
            RequestError: The tokenizer cannot spell the text.
        """
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """Turn token ids into text. Special tokens are left out; each malformed piece of UTF-8
        becomes one U+FFFD.
        """
        ...


@dataclass(frozen=True)
class TokenVocabulary:
    """What must agree when laws are combined.

    Attributes:
        size: Number of token ids.
        eos: Token ids that end a text.
        tokenizer: Fingerprint of the tokenizer; "" where it is unknown.
        words: Translates between ids and text; None where there is no tokenizer.
    """

    size: int
    eos: frozenset[int]
    tokenizer: str = ""
    words: TokenCodec | None = field(default=None, repr=False, compare=False)

    def same_tokens(self, other: TokenVocabulary) -> bool:
        """Whether tokens of `other` mean what they mean here, as far as is known."""
        # An unknown tokenizer is taken for the same: nothing speaks against it.
        return self.size == other.size and (
            self.tokenizer == other.tokenizer or not (self.tokenizer and other.tokenizer)
        )

    def spell_text(self, text: str, what: str) -> tuple[int, ...]:
        """Spell a text in tokens, without the marks that the tokenizer adds itself.

        Args:
            text: The text; an empty one has no tokens.
            what: How an error message begins, such as the option that holds the text.

        Returns:
            Token ids.

        Raises:
            RequestError: There is no tokenizer, or it cannot spell the text.
        """
        if not text:
            return ()
        if self.words is None:
            raise RequestError(
                f"{what}: this model has no tokenizer to spell it with, so leave it empty"
            )
        try:
            return self.words.encode(text, special=False)
        except PolydecError as why:
            raise RequestError(f"{what}: the model's tokenizer cannot spell it ({why})") from None

    def require_same(self, other: TokenVocabulary, who: str) -> None:
        """Check that tokens of another vocabulary mean what they mean here.

        Args:
            other: The other vocabulary, such as a drafter's.
            who: How an error message names its owner.

        Raises:
            RequestError: The sizes differ, or both tokenizers are known and differ.
        """
        if self.size != other.size:
            raise RequestError(
                f"{who} has a vocabulary of {other.size} tokens, the target one of {self.size}: "
                "they must be the same"
            )
        if not self.same_tokens(other):
            raise RequestError(
                f"{who} was made for another tokenizer than the target: ids of one mean other text in the other"
            )


@fast_dataclass(eq=False)
class Draft:
    """A token tree: guesses of how the text goes on. Every field but the last two has one entry for
    each node.

    Node 0 is the root. It is the last token of the text, and it is not in the cache yet. An id that
    stands for a vector (models/sessions/soft.py) may be the root, in a session of a model itself: a
    committed state in the place of a token.

    Attributes:
        token: Token id of each node.
        parent: The node that a node follows. It stands before it; the root's is -1. Siblings stand
            in the order drawn.
        draw: How a node was proposed.
        law: Log-probabilities that a node was drawn from, shape ``[V]``; None where it was certain.
            Siblings of one source share one tensor object, so nodes of several sources can stand in
            one tree.
        probe: Whether a node is fed for its hidden state only. Such a node is never accepted. None:
            there is no probe.
        chance: How likely the proposer thinks a node is to be accepted where its parent is, 0 to 1;
            the root's is 1. No verifier reads it. None: it does not say.
        state: Of probes, what is fed in place of the token's embedding, shape ``[H]``. Nodes with a
            state stand behind all others.
        enter: Index of the layer that a node's state enters, 0 where it has none; layers below do
            not run there. Nodes that enter further up stand behind those that enter below. None:
            all enter the first.
        adapter: Changes the target's matrices at the rows of nodes with a state, and at no others
            (see models/nets/gated.py). None: nothing does.
        natural: How many tokens the proposer took for the right length, whatever it proposed. Only
            policies read it. None: it does not say.
    """

    token: tuple[int, ...]
    parent: tuple[int, ...]
    draw: tuple[DrawKind, ...]
    law: tuple[Tensor | None, ...]
    probe: tuple[bool, ...] | None = None
    chance: tuple[float, ...] | None = None
    state: tuple[Tensor | None, ...] | None = None
    enter: tuple[int, ...] | None = None
    adapter: Any = None
    natural: int | None = None

    @staticmethod
    def certain_tree(
        token: Sequence[int], parent: Sequence[int], chance: Sequence[float] | None = None
    ) -> Draft:
        """Make a tree that is proposed with certainty.

        Args:
            token: Token id of each node; the first is the root.
            parent: For each node the one above it; -1 for the root.
            chance: How likely each node is to be right, 0 to 1. None: nobody knows.

        Returns:
            The draft.
        """
        n = len(token)
        return Draft(
            tuple(token),
            tuple(parent),
            (DrawKind.CERTAIN,) * n,
            (None,) * n,
            chance=None if chance is None else tuple(chance),
        )

    @staticmethod
    def chain_draft(
        root: int, tokens: Sequence[int] = (), law: Sequence[Tensor] | None = None
    ) -> Draft:
        """Make a draft that is one path below the root.

        Args:
            root: Token id of the root: the last token of the text.
            tokens: Token ids in order. Default: the root alone.
            law: For each token the log-probabilities that it was drawn from, shape ``[V]``. None:
                the tokens are proposed with certainty.

        Returns:
            The draft.
        """
        # A root alone is common: its fields are shared constants.
        if not tokens:
            return Draft((root,), *_ROOT)
        n = len(tokens)
        parent = tuple(range(-1, len(tokens)))
        if law is None:
            return Draft.certain_tree((root, *tokens), parent)
        return Draft(
            (root, *tokens), parent, (DrawKind.CERTAIN, *[DrawKind.INDEPENDENT] * n), (None, *law)
        )

    def __len__(self) -> int:
        return len(self.token)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """Of each node its children that may be accepted, in the order drawn."""
        out: list[list[int]] = [[] for _ in self.token]
        for i, p in enumerate(self.parent[1:], 1):
            # A probe is never accepted, so it is nobody's child here.
            if self.probe is None or not self.probe[i]:
                out[p].append(i)
        return tuple(map(tuple, out))

    @property
    def probes(self) -> tuple[int, ...]:
        """The nodes that are fed for their hidden states alone."""
        if self.probe is None:
            return ()
        return tuple(i for i, p in enumerate(self.probe) if p)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        out = [0]
        for p in self.parent[1:]:
            out.append(out[p] + 1)
        return tuple(out)

    @property
    def expected(self) -> float:
        """How many nodes the proposer expects to be accepted: the chances along each path,
        multiplied and added up.
        """
        value = [1.0] * len(self.token)
        for below in self.children:
            for i in below:
                value[i] = value[self.parent[i]] * (1.0 if self.chance is None else self.chance[i])
        return sum(value[i] for below in self.children for i in below)

    def with_node(
        self, token: int, parent: int, draw: DrawKind, law: Tensor | None, chance: float = 1.0
    ) -> Draft:
        """Copy the draft with one more node, which is the last.

        Args:
            token: Token id of the new node.
            parent: The node that it stands below.
            draw: How it was drawn.
            law: Log-probabilities that it was drawn from, shape ``[V]``; None: it is certain.
            chance: How likely it is to be right, 0 to 1. Default 1.

        Returns:
            The larger draft.
        """
        return Draft(
            (*self.token, token),
            (*self.parent, parent),
            (*self.draw, draw),
            (*self.law, law),
            None if self.probe is None else (*self.probe, False),
            (*(self.chance or (1.0,) * len(self.token)), chance),
            None if self.state is None else (*self.state, None),
            None if self.enter is None else (*self.enter, 0),
            self.adapter,
        )

    def only_nodes(self, keep: Sequence[int], chance: tuple[float, ...] | None = None) -> Draft:
        """Copy the draft with some of its nodes, renumbered.

        Args:
            keep: Nodes that stay, ascending, the root and the ancestors of every node among them.
            chance: Chances of all nodes of the new draft, in place of what the proposer said. None:
                the proposer's stay.

        Returns:
            The smaller draft.
        """
        n = len(keep)
        if chance is None:
            chance = self.chance
        first = keep[-1] == n - 1  # then all keep their numbers

        def kept_nodes(each: tuple[T, ...]) -> tuple[T, ...]:
            if first:
                return each[:n]
            return tuple([each[i] for i in keep])

        parent = self.parent[:n]
        if not first:
            # Old numbers to new ones; the root's parent is -1 in both.
            new = {-1: -1} | {i: k for k, i in enumerate(keep)}
            parent = tuple([new[self.parent[i]] for i in keep])
        return Draft(
            kept_nodes(self.token),
            parent,
            kept_nodes(self.draw),
            kept_nodes(self.law),
            None if self.probe is None else kept_nodes(self.probe),
            None if chance is None else kept_nodes(chance),
            None if self.state is None else kept_nodes(self.state),
            None if self.enter is None else kept_nodes(self.enter),
            self.adapter,
        )

    def subtree_below(
        self, root: int, nodes: Sequence[int]
    ) -> tuple[tuple[int, ...], tuple[int, ...], Draft]:
        """Make another node the root, and keep what lies below it.

        Args:
            root: The new root, one of `nodes` and no probe.
            nodes: Nodes to choose from, ascending, the ancestors of every node among them.

        Returns:
            The path from the old root to the node above the new one; the nodes that stay; their
            draft.

        Raises:
            RequestError: The nodes are not closed under parents, or `root` is a probe or not among
                them.
        """
        chosen = set(nodes)
        closed = all(
            0 <= i < len(self.token) and (i == 0 or self.parent[i] in chosen) for i in chosen
        )
        if list(nodes) != sorted(chosen) or not closed or root not in chosen:
            raise RequestError(
                f"nodes is {list(nodes)[:8]}, root is {root}: nodes must ascend, with root and all parents"
            )
        if self.is_probe(root):
            raise RequestError(f"root is {root}: a probe is never committed")
        # The descendants of the new root, among the chosen nodes.
        below = {root}
        for i in nodes:  # ascending: parents come first
            if self.parent[i] in below:
                below.add(i)
        stay = tuple(sorted(below))
        # What is committed: the old root down to the node above the new one.
        path = (0, *self.path_to(root))[:-1]
        # A root is certain and has no law: its token is part of the text now.
        left = replace(
            self,
            parent=tuple(-1 if i == root else p for i, p in enumerate(self.parent)),
            draw=tuple(DrawKind.CERTAIN if i == root else d for i, d in enumerate(self.draw)),
            law=tuple(None if i == root else x for i, x in enumerate(self.law)),
            chance=None
            if self.chance is None
            else tuple(1.0 if i == root else c for i, c in enumerate(self.chance)),
        )
        return path, stay, left.only_nodes(stay)

    def child_of(self, node: int, token: int) -> int | None:
        """Find the first child of a node that has a token.

        Args:
            node: The parent.
            token: Token id of the child.

        Returns:
            The child, or None. Probes do not count.
        """
        # Children stand behind their parent.
        for i in range(node + 1, len(self.token)):
            if (
                self.token[i] == token
                and self.parent[i] == node
                and not (self.probe and self.probe[i])
            ):
                return i
        return None

    def nodes_of(self, tokens: Sequence[int]) -> list[int]:
        """The nodes that these tokens, the root's first, follow from the root down, until one is
        not there.
        """
        # Without the root as its first token, a text follows no node.
        if tokens and tokens[0] == self.token[0]:
            out = [0]
        else:
            out = list[int]()
        for token in tokens[1:] if out else ():
            child = self.child_of(out[-1], token)
            if child is None:
                break
            out.append(child)
        return out

    def is_probe(self, node: int) -> bool:
        """Whether a node is fed for its state alone, and never committed."""
        return self.probe is not None and self.probe[node]

    def path_to(self, node: int) -> tuple[int, ...]:
        """Nodes from the root (left out) down to `node`."""
        out: list[int] = []
        while node > 0:
            out.append(node)
            node = self.parent[node]
        return tuple(reversed(out))

    def is_extension_of(self, other: Draft) -> bool:
        """Whether `other` is this draft with its last nodes left out."""
        n = len(other)
        # The same tokens and parents, as far as the shorter one goes.
        if self.token[:n] != other.token or self.parent[:n] != other.parent:
            return False
        if self.state is None and other.state is None:
            return True
        none = (None,) * n
        first = (0,) * n
        under = (self.enter or first)[:n] == (other.enter or first)
        under = under and (other.state is None or self.adapter is other.adapter)
        # States and the adapter are compared by identity: equal numbers in another tensor are fed
        # anew.
        return under and all(a is b for a, b in zip(self.state or none, other.state or none))

    def cut_draft(self, depth: int, eos: frozenset[int]) -> Draft:
        """Cut the nodes that can never become text.

        These are the nodes deeper than `depth`, as the answer has no room for them, and the nodes
        below an end of the text (a token of `eos`). A root that is such a token ends nothing.
        Probes never become text, so they may stand below one.

        Drafts are cut here and nowhere else. A node goes because of what stands above it, never
        because of its own token. So the nodes that stay are drawn as their laws say: to choose by
        what was drawn would make the method inexact.

        Args:
            depth: Most tokens below the root, 0 or more: one less than the answer has room for, or
                fewer.
            eos: Token ids that end the text.

        Returns:
            The smaller draft, or this one where nothing is cut.
        """
        # Most drafts fit, and are not looked at node by node.
        if len(self.token) <= depth + 1 and eos.isdisjoint(self.token):
            return self
        keep = list[int]()
        kept = {-1}
        probe = self.probe or (False,) * len(self.token)
        for i, p in enumerate(self.parent):
            # A node stays if its parent does, it is not too deep, and its parent ends nothing.
            if (
                p in kept
                and self.depth[i] <= depth
                and not (p > 0 and self.token[p] in eos and not probe[i])
            ):
                kept.add(i)
                keep.append(i)
        if len(keep) == len(self.token):
            return self
        return self.only_nodes(keep)


def require_scored_draft(scored: T | None) -> T:
    """What a session holds of the draft that was scored last.

    Args:
        scored: The draft, or what it stands in; None where none was scored since the last commit.

    Returns:
        The same.

    Raises:
        RequestError: There is none.
    """
    if scored is None:
        raise RequestError(
            "no draft has been scored since the last commit: there is nothing to keep"
        )
    return scored


@dataclass(frozen=True)
class ScoreRequest:
    """What a caller is going to read of a score, so that nothing else needs to be computed.

    Attributes:
        law: How much of the rows of the law is read.
        base: How much of the model's own rows is read, before any shaping.
        hidden: Whether the states of all nodes are read, as they are after the last layer and
            before the final norm.
        prompt: For `Session.prefill_prompt` alone: whether the rows of all tokens of the prompt are read.
        exits: Numbers of layers that `DraftScores.exit_laws` will be asked for.
        last: For `Session.prefill_prompt` alone: whether the row of the token before the pending root is
            read.
        routing: Of a mixture of experts, what is added to the router's scores at the rows that are
            answered, in standard deviations of a row's scores, shape ``[layers][experts]``. Such a
            pass leaves nothing in the cache, and what it scored is not committed. None: the router
            is as it is.
    """

    law: RowDetail = RowDetail.ROW
    base: RowDetail = RowDetail.NOTHING
    hidden: bool = False
    prompt: bool = False
    exits: tuple[int, ...] = ()
    last: bool = False
    routing: tuple[tuple[float, ...], ...] | None = None


@fast_dataclass()
class TextEdit:
    """One change of an answer. Whatever a loop writes, observers hear of it as such changes.

    Positions count from the prompt's start. First tokens are erased, then others inserted, then
    others written.

    Attributes:
        write: (position, token); it takes the place of what stands there, or lengthens the text.
        erase: Positions in the text as it was; what stands behind an erased token moves up.
        insert: (position, token) in ascending order; the token will have this position, and what
            stood there moves back.
    """

    write: tuple[tuple[int, int], ...] = ()
    erase: tuple[int, ...] = ()
    insert: tuple[tuple[int, int], ...] = ()
