"""The law of the next byte that a law of tokens makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.delegating import LawsOnlySession
from polydec.core.protocols import DraftScores
from polydec.core.types import (
    Draft,
    RowDetail,
    ScoreRequest,
    TokenCodec,
    TokenVocabulary,
    require_scored_draft,
)
from polydec.laws.targets.byte_covers import BYTES, ByteAlphabet, Covers, TokenSequenceTip
from polydec.laws.targets.contrast import MadeScores
from polydec.laws.targets.spelling import vocabulary_spelling
from polydec.models.sessions.geometry import EmbeddingGeometry

SILENT, ROW = ScoreRequest(law=RowDetail.NOTHING), ScoreRequest()
WHITE = frozenset(b" \n\t\r")
"""Bytes behind which a break begins no word."""


@dataclass(frozen=True)
class SplitPrompt:
    """A prompt in two parts.

    Attributes:
        tokens: Token ids that are read as they stand, at least one.
        left: Symbols behind them, which are followed in all their spellings.
        lead: Bytes that the tokenizer writes before `left`.
    """

    tokens: tuple[int, ...]
    left: tuple[int, ...]
    lead: bytes = b""


@dataclass(frozen=True)
class ByBytesTarget:
    """What `target` writes, byte by byte: symbol b < 256 is a byte, 256 + k the mark k, for which
    no bytes stand (the end of a text, what a chat template sets between turns).

    The chance of a byte adds up all tokens that go on with it, behind every sequence of tokens that
    spells the text so far or a beginning of it. width: how many sequences that end with the same
    byte are followed: those that the tokenizer would write first, then those of the fewest tokens;
    0: those alone that the tokenizer writes, each token of which is left out where the tokenizer
    would spell the text otherwise.
    Which ones is decided by the bytes alone, never by weights, so that a whole draft of bytes is
    one tree of tokens and one pass.

    marks: of each mark the tokens of `target` that mean it, none where it has no such token; words:
    what symbols mean as text; ends: the marks that end a text; lead: bytes that the tokenizer
    writes before every text (a space), which a text that begins with nothing fixed begins with;
    start: tokens that are read before such a text, at least one where nothing else is ever read
    first; own_prefixes: `spelled_logprob` adds up the beginnings of the tokenizer's own spelling
    alone; names: how each mark is written in a text, for a model that has no such token; instead: a
    prompt, and what is read in its place (one of several models may have a prompt of its own).

    A prompt is read as the tokenizer spells it up to its last mark, or up to the last of the bytes
    `breaks` (a space, a line break) that follows a word; what comes behind that is followed in all
    its spellings, so a prompt may end inside a word.

    Exact: law, where width is no limit; at 0 that of the target restricted to canonical sequences
    (of which the tokenizer is asked by their last 12 tokens); else restricted to the sequences that
    are followed.
    Reduces to: `target`, where every token is one byte.
    Source: Phan et al., "Exact byte-level probabilities from tokenized language models for
    FIM-tasks and model ensembles" (2024): width 0 is their law, 1 their fast mode, which leaves no
    token out; more, and choosing by bytes alone, are ours.
    """

    target: Any
    marks: tuple[tuple[int, ...], ...]
    words: TokenCodec
    ends: frozenset[int] = frozenset()
    width: int = 2
    lead: bytes = b""
    start: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    breaks: bytes = b" \n"
    instead: tuple[tuple[int, ...], SplitPrompt] | None = None
    own_prefixes: bool = False

    def pressed_law(self, press: Any) -> ByBytesTarget:
        """The law over bytes of its target over caches that are pressed. Raises RequestError where
        that cannot read them.
        """
        return replace(self, target=self.target.pressed_law(press))

    @property
    def layers(self) -> int:
        """0: layers of tokens cannot run alone for a byte."""
        return 0

    @property
    def context(self) -> int:
        """Tokens, not bytes: as many as the target's."""
        return self.target.context

    @property
    def network(self) -> Any:
        """What runs the target's passes."""
        return self.target.network

    @property
    def live(self) -> Any:
        """The target's sessions."""
        return self.target.live

    @property
    def nbytes(self) -> int:
        """Of the target's cache entries."""
        return self.target.nbytes

    @cached_property
    def geometry(self) -> EmbeddingGeometry:
        """Bytes lie nowhere: whoever reads it is refused."""

        def embed_tokens(tokens: Sequence[int]) -> Tensor:
            raise _of_tokens("embeddings")

        return EmbeddingGeometry(embed_tokens, BYTES)

    @cached_property
    def vocab(self) -> TokenVocabulary:
        ends = frozenset(BYTES + k for k in self.ends)
        return TokenVocabulary(BYTES + len(self.marks), ends, "bytes", self.words)

    @cached_property
    def alphabet(self) -> ByteAlphabet:
        words = self.target.vocab.words
        if words is None:
            raise RequestError(
                "units is bytes: this model has no tokenizer, so what bytes its tokens stand for is not known"
            )
        return ByteAlphabet(
            vocabulary_spelling(words, self.target.vocab.size), self.marks, self.width
        )

    def fixed_beginning(self, prompt: Sequence[int]) -> SplitPrompt:
        """What of a prompt is read as it stands. Raises RequestError for a byte out of range, or
        that no token spells.
        """
        head = self._split(self._written(prompt))
        known = self.alphabet.spelling.known
        unspelled = (x for x in head.left if x < BYTES and x not in known)
        if (bad := next(unspelled, None)) is not None:
            raise RequestError(
                f"prompt holds byte {bad} ({bytes([bad])!r}): no token of this model spells it"
            )
        return head

    def _split(self, symbols: tuple[int, ...]) -> SplitPrompt:
        stop = self._boundary(symbols)
        # The longest beginning that ends at a boundary and is text is read in the tokenizer's own
        # spelling.
        while stop:
            try:
                tokens = self._spelled(symbols[:stop])
            except UnicodeDecodeError as why:  # what is no text is followed byte by byte
                stop = self._boundary(symbols[: why.start])
                continue
            # A text that begins behind a mark begins with the tokenizer's lead, such as a space.
            begins = symbols[stop - 1] >= BYTES and stop < len(symbols)
            return SplitPrompt(tokens, symbols[stop:], self.lead if begins else b"")
        if self.start:
            return SplitPrompt(self.start, symbols, self.lead)
        # The prompt has no boundary: one first token is read as it stands, the longest that spells
        # its beginning.
        mark = next((at for at, x in enumerate(symbols) if x >= BYTES), len(symbols))
        begun = bytes(symbols[:mark])
        for n in range(len(begun), 0, -1):  # nothing is read before a first token
            token = self.alphabet.spelling.token_of_piece(begun[:n])
            if token is not None:
                return SplitPrompt((token,), symbols[n:])
        raise RequestError("prompt begins with bytes that no token of the model spells")

    def _boundary(self, symbols: Sequence[int]) -> int:
        """How many symbols stand before the last place that no token reaches across."""
        for at in range(len(symbols) - 1, -1, -1):
            # No token reaches across a mark.
            if symbols[at] >= BYTES:
                return at + 1
            # White space that follows a word begins the next token in usual tokenizers.
            if at and symbols[at] in self.breaks and symbols[at - 1] not in WHITE:
                return at
        return 0

    def _written(self, prompt: Sequence[int]) -> tuple[int, ...]:
        """The symbols of a prompt; a mark that the model has not is written out."""
        # Symbols are checked before anything is looked up by them.
        bad = next((x for x in prompt if not 0 <= x < self.vocab.size), None)
        if bad is not None:
            raise RequestError(
                f"prompt has byte {bad}: ids must lie in 0 to {self.vocab.size - 1} (256 and above are marks)"
            )
        out = list[int]()
        for x in prompt:
            if x < BYTES or self.marks[x - BYTES]:
                out.append(x)
            # A mark without a token is read as text.
            elif self.names:
                out += self.names[x - BYTES].encode()
        return tuple(out)

    def _spelled(self, symbols: Sequence[int]) -> tuple[int, ...]:
        """The tokenizer's tokens of some symbols. Raises UnicodeDecodeError, counted from the
        first of them, where bytes between two marks are no text.
        """
        # `run` collects the bytes between two marks; the tokenizer spells each run in one call.
        words, out, run = self.alphabet.spelling.words, list[int](), bytearray()

        def spell_piece(stop: int) -> None:
            if not run:
                return
            try:
                out.extend(words.encode(run.decode(), special=False))
            except UnicodeDecodeError as why:
                # The position of the first wrong byte, counted in symbols of the prompt.
                first = stop - len(run) + why.start
                raise UnicodeDecodeError(
                    "utf-8", bytes(run), first, first + 1, why.reason
                ) from None
            run.clear()

        for at, x in enumerate(symbols):
            if x < BYTES:
                run.append(x)
            else:
                spell_piece(at)
                out.append(self.marks[x - BYTES][0])
        spell_piece(len(symbols))
        return tuple(out)

    def prompt_text(self, prompt: Sequence[int]) -> str:
        """A prompt as text, its marks written out."""
        parts = (bytes([x]) if x < BYTES else self.names[x - BYTES].encode() for x in prompt)
        return b"".join(parts).decode(errors="replace")

    def tokens_of(self, prompt: Sequence[int]) -> int:
        """At most so many tokens of the target's context does a prompt take."""
        head = self.fixed_beginning(prompt)
        return len(head.tokens) + len(head.lead) + len(head.left)

    def open_session(self, prompt: Sequence[int]) -> ByBytesSession:
        if not prompt:
            raise RequestError("prompt is empty: at least one byte is needed")
        return ByBytesSession(self, prompt)

    def prompt_beginning(self, prompt: Sequence[int]) -> tuple[SplitPrompt, int, bool]:
        """What a text begins with: what is read first, how many of its symbols that stands for,
        and whether the text's last symbol, its root, is among them.
        """
        if self.instead is not None:
            # A model with a prompt of its own reads that in place of the given one.
            known, head = self.instead
            if tuple(prompt[: len(known)]) == known:
                return head, len(known), len(prompt) == len(known)
        head = self.fixed_beginning(prompt)
        return replace(head, left=()), len(prompt) - len(head.left), not head.left


class ByBytesSession(LawsOnlySession):
    """A session over bytes; its inner session reads tokens.

    The inner session stands at the last token that all covers of the text have in common. The
    sequences in which they differ, and those of a draft, are its staged tree.

    `_text` is what is committed, the root left out. `_base` holds the covers behind as much of it
    as has been looked at, `_unread` the rest. `_whole`: what is read first stands for the root as
    well, so nothing is added for it. `_node` says where tips stand in the inner tree, `_scored`
    whether the inner session holds that tree. `_draft` and `_covers` are what was scored last, and
    the covers behind each of its nodes; `_begun` are those before its root. `_gone`: the text was
    cut inside of what is read first, so all of it is opened anew when it is scored.

    Args:
        law: The law over bytes.
        prompt: Symbols of the prompt; the last one is the root.
    """

    def __init__(self, law: ByBytesTarget, prompt: Sequence[int]) -> None:
        self._law = law
        self._open(law.prompt_beginning(prompt), prompt)

    def _open(self, begun: tuple[SplitPrompt, int, bool], prompt: Sequence[int]) -> None:
        """Stand before the last symbol of a prompt."""
        head, self._fixed, self._whole = begun
        self._head = head
        self._gone = False
        self._text = list(prompt[:-1])
        # The lead and the left symbols of the prompt are followed when the first draft is scored.
        self._unread = [*head.lead, *head.left, *self._text[self._fixed :]]
        self._inner = self._law.target.open_session(head.tokens)
        # The last token that is read as it stands is the root of the inner tree, from which all
        # tips descend.
        anchor = TokenSequenceTip(head.tokens[-1])
        self._node, self._tree = {anchor: 0}, Draft.chain_draft(anchor.token)
        self._scored = False
        self._base: Covers = (self._law.alphabet.tip_tokens(anchor),)
        self._forget()

    def _forget(self) -> None:
        """No draft has been scored."""
        self._draft: Draft | None = None
        self._begun: Covers = ()
        self._covers: list[Covers] = []

    async def prefill_prompt(self, want: ScoreRequest) -> DraftScores:
        # The rows of the prompt need covers behind each of its symbols; a second session makes
        # them.
        if want.prompt and self._text:
            return await self._rows(self._text[:1], self._text[1:])
        await self._inner.prefill_prompt(SILENT)
        if want.last and self._text:
            # The row before the pending root alone: the committed text is read as a prompt.
            return await self._rows(self._text, ())
        return _scores([], self._law.alphabet)

    async def _rows(self, prompt: Sequence[int], text: Sequence[int]) -> DraftScores:
        """The rows behind a prompt and behind each symbol of a text, which a session of their own
        makes.
        """
        twin = self._law.open_session(prompt)
        try:
            return await twin.score_draft(Draft.chain_draft(prompt[-1], text), ROW)
        finally:
            twin.close()

    async def score_draft(self, draft: Draft, want: ScoreRequest) -> DraftScores:
        """Score a tree of symbols in one pass of the inner law.

        The sequences of tokens to follow are decided by the bytes alone, so the tree of tokens is
        known before the pass.

        Args:
            draft: Tree of symbols; its root is the last symbol of the text.
            want: Not read: every row can be made.

        Returns:
            The law of the next symbol at every node, made when somebody looks.

        Raises:
            RequestError: The draft has states, which belong to tokens.
        """
        if draft.state is not None:
            raise RequestError("state is given: what stands for a byte is a matter of tokens")
        self._begin(draft.token[0])
        alphabet = self._law.alphabet
        known = 0
        new = list[tuple[TokenSequenceTip, TokenSequenceTip]]()
        # A draft that extends the last one keeps the covers of its old nodes.
        if self._draft is not None and draft.is_extension_of(self._draft):
            known = len(self._draft)
            begun = self._begun
        else:
            # Another draft: tips of the old one leave the inner tree before symbols are followed
            # anew.
            self._shrink([self._base])
            begun = self._base
            for symbol in self._unread:
                begun, more = alphabet.follow_symbol(begun, symbol)
                new += more
        covers = self._covers[:known]
        for i in range(known, len(draft)):
            # The root is part of what was read first: its covers are those of the beginning.
            if not i and self._whole:
                covers.append(begun)
                continue
            if i:
                before = covers[draft.parent[i]]
            else:
                before = begun
            after, more = alphabet.follow_symbol(before, draft.token[i])
            covers.append(after)
            new += more
        # All new tokens of the draft are fed in one pass.
        await self._feed(new)
        self._draft = draft
        self._begun = begun
        self._covers = covers
        return _scores(covers, alphabet)

    async def _feed(self, new: Sequence[tuple[TokenSequenceTip, TokenSequenceTip]]) -> None:
        """Let the inner law answer for these tips, each below the other."""
        anchor = next(iter(self._node))
        node = dict(self._node)
        # Everything that is needed is known already: no pass is due.
        if anchor.known and not new:
            return
        token = list(self._tree.token)
        parent = list(self._tree.parent)
        # A new tip stands below the tip that it extends, which is older and therefore has a node.
        for tip, above in new:
            node[tip] = len(token)
            token.append(tip.token)
            parent.append(node[above])
        tree = Draft.certain_tree(token, parent)
        scores = await self._inner.score_draft(tree, ROW)
        if not anchor.known:
            # Rows are stored at the tips, so that later drafts find them without a pass.
            anchor.note_scores(scores, 0, None)
        for tip, above in new:
            tip.note_scores(scores, node[tip], above)
        self._tree = tree
        self._node = node
        self._scored = True

    def _shrink(self, kept: Sequence[Covers]) -> None:
        """Only what these covers stand on is left of the inner tree; what all of them have in
        common is committed there.
        """
        if not self._scored:
            return
        # The path of each tip that some cover still stands on.
        paths = [
            (0, *self._tree.path_to(self._node[tip]))
            for tip in dict.fromkeys(c.tip for covers in kept for c in covers)
        ]
        common = 0
        # The last node on the common beginning of all paths: what lies above is certain.
        for step in zip(*paths):
            if len(set(step)) > 1:
                break
            common = step[0]
        nodes = sorted({i for path in paths for i in path} | {0})
        if not common and len(nodes) == len(self._tree):
            # Nothing would become shorter.
            return
        _, stay, _ = self._tree.subtree_below(common, nodes)
        self._tree = self._inner.keep_nodes(nodes, common)
        place = {old: i for i, old in enumerate(stay)}
        self._node = {tip: place[i] for tip, i in self._node.items() if i in place}

    def _begin(self, root: int) -> None:
        """Open the text anew where it was cut so far that its beginning is read otherwise."""
        if self._gone:
            self._inner.close()
            prompt = (*self._text, root)
            self._open(self._law.prompt_beginning(prompt), prompt)

    def commit_tokens(self, tokens: Sequence[int]) -> None:
        if self._gone or not tokens:
            self._text += tokens
            self._forget()
            return
        if self._draft is None:
            path = []
        else:
            path = self._draft.nodes_of(tokens)
        if path:
            # The draft has covers behind the committed path; symbols beyond it are followed later.
            self._base = self._covers[path[-1]]
            self._unread = list(tokens[len(path) :])
        elif self._whole:
            # The root that was read already is not added a second time.
            self._unread += tokens[1:]
        else:
            self._unread += tokens
        self._text += tokens
        self._whole = False
        self._forget()

    def spelled_logprob(self, node: int) -> tuple[float, int]:
        """Of the text up to a node of the draft that was scored last: the log-probability that a
        text begins so, behind what was read first, and the tokens of its likeliest spelling there.
        """
        alphabet = self._law.alphabet
        covers = self._covers[node]
        if self._law.own_prefixes:
            covers = alphabet.own_spelling(covers)
        return alphabet.prefix_logprob(covers)

    def keep_nodes(self, nodes: Sequence[int], root: int = 0) -> Draft:
        """Keep some nodes of the draft that was scored last.

        Args:
            nodes: Nodes that stay, ascending, each node's parent among them.
            root: The new root, one of `nodes`. Default 0: the root stays.

        Returns:
            The draft as it now stands.

        Raises:
            RequestError: Nothing was scored since the last commit.
        """
        draft = require_scored_draft(self._draft)
        path, stay, left = draft.subtree_below(root, nodes)
        # Covers before the new root are those behind its parent.
        if root:
            self._begun = self._covers[draft.parent[root]]
            self._whole = False
        self._base = self._begun
        self._unread = []
        self._text += [draft.token[i] for i in path]
        self._draft = left
        self._covers = [self._covers[i] for i in stay]
        # Tips below the dropped nodes leave the inner tree.
        self._shrink([self._begun, *self._covers])
        return left

    def rewind_tokens(self, n: int) -> None:
        if not 0 <= n <= len(self._text):
            raise RequestError(
                f"n is {n}: it must lie in 0 to {len(self._text)}, the committed bytes"
            )
        text = self._text[: len(self._text) - n]
        # The text now ends inside of what was read as it stands: its spelling changes.
        if len(text) < self._fixed:
            self._text = text
            self._gone = True
            self._forget()
            return
        # Covers of the shorter text are not stored, so it is opened anew.
        self._inner.close()
        self._open((self._head, self._fixed, False), (*text, 0))  # a root, whichever it is

    def _refusal(self, what: str) -> RequestError:
        return _of_tokens(what)

    def bend_scores(self, draft: Draft, scores: DraftScores) -> DraftScores:
        """Return the rows: nothing is shaped over bytes.

        Args:
            draft: The draft whose nodes the rows belong to.
            scores: The rows to shape, such as those of a drafter.

        Returns:
            `scores` themselves.
        """
        return scores

    def fork(self, choice: int | None = None) -> ByBytesSession:
        # Not through the constructor, which would open the law anew.
        twin = ByBytesSession.__new__(ByBytesSession)
        twin._law = self._law
        twin._head = self._head
        twin._fixed = self._fixed
        twin._gone = self._gone
        twin._inner = self._inner.fork(choice)
        # Copies, as both twins go on writing into them.
        twin._node = dict(self._node)
        twin._tree = self._tree
        twin._scored = self._scored
        twin._base = self._base
        twin._unread = list(self._unread)
        twin._whole = self._whole
        twin._text = list(self._text)
        twin._draft = self._draft
        twin._begun = self._begun
        twin._covers = list(self._covers)
        return twin


def _of_tokens(what: str) -> RequestError:
    return RequestError(f"units is bytes: {what} are those of tokens, and a byte has none")


class RowsOnlyScores:
    """What scores of bytes have besides their rows: nothing. `base` is these scores themselves."""

    hidden_NH = None
    base: Any

    def exit_laws(self, depth: int, nodes: Sequence[int]) -> DraftScores:
        """Refuse: a byte has no layers of its own.

        Args:
            depth: Not read.
            nodes: Not read.

        Raises:
            RequestError: Always.
        """
        raise _of_tokens("exits")


def _scores(covers: Sequence[Covers], alphabet: ByteAlphabet) -> MadeScores:
    """Rows that are made when somebody looks."""
    bare: Any = RowsOnlyScores()
    bare.base = MadeScores(lambda i: alphabet.symbol_weights(covers[i]), bare)
    return bare.base
