"""A network that was trained for it fills a block of gaps behind the text in one pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.block_drafter import BlockDrafter


@dataclass(frozen=True)
class BlockFilledDrafter:
    """A trained encoder-decoder fills a block of gaps after the text in one pass.

    It puts `block` gaps after the text and lets the drafter look at them once, together with the
    source; the likeliest token of each gap is the draft. The verifier cuts it after an end of text.
    The gaps are as many as it was trained on whatever the budget allows: of more than that the
    first are proposed. `chance` is the drafter's own probability.

    Attributes:
        drafter: The trained network.
        source: Token ids that the text is written from. Empty: the prompt.
        block: Gaps, 1 to 64. None: as the drafter was trained.
        base: Whether the model's own rows of every pass are requested, for a verifier that reads
            them.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` for a budget of 0.
    Source: Ge, Xia, Sun, Chen, Wei, "Lossless acceleration for seq2seq generation with aggressive
    decoding" (2022), its generalised half. Here the source is encoded once for all blocks; the text
    is read anew for each, as published.
    """

    drafter: BlockDrafter
    source: tuple[int, ...] = ()
    block: int | None = None
    base: bool = False

    def __post_init__(self) -> None:
        if self.block is not None and not 1 <= self.block <= 64:
            raise RequestError(f"block is {self.block}: it must lie in 1 to 64")

    def open_guess(self, prompt: Sequence[int], session: Session) -> BlockFilledGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess. Its source is encoded with the first proposal.
        """
        return BlockFilledGuess(self, tuple(self.source or prompt), list(prompt), EncodedSource())


class EncodedSource:
    """What the drafter's encoder made of the source, shared by all choices of a request.

    Attributes:
        kv: Keys and values of the source. None: the encoder has not run yet.
    """

    def __init__(self) -> None:
        self.kv: Tensor | None = None


@dataclass(frozen=True)
class BlockFilledGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        source: Token ids that the text is written from.
        text: Token ids so far, the pending root included.
        beside: The encoded source.
    """

    config: BlockFilledDrafter
    source: tuple[int, ...]
    text: list[int] = field(default_factory=list[int])
    beside: EncodedSource = field(default_factory=EncodedSource)

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING, base=RowDetail.ROW if self.config.base else RowDetail.NOTHING
        )

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Fill the gaps after the text with their likeliest tokens.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain.
        """
        trained = self.config.drafter
        filler = trained.filler
        block = self.config.block or trained.block
        most = min(block, budget.depth, budget.nodes)
        if most < 1:
            return Draft.chain_draft(root)
        kv = self.beside.kv
        # The source is encoded once for all rounds and all choices.
        if kv is None:
            kv = self.beside.kv = await ForwardQuery(filler.encoder, self.source, len(self.source))
        # Always the full block: its gaps were trained to see this many others.
        asked = filler.gap_query(kv, self.text, block)
        logits_KV = await ForwardQuery(filler, asked, len(self.text) + block)
        # The first gaps only, where the budget has less room than the block.
        logp_K, token_K = normalise_log_weights(logits_KV[:most]).max(-1)
        return Draft.certain_tree(
            (root, *token_K.tolist()), range(-1, most), (1.0, *logp_K.exp().tolist())
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Append what was written.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.text.extend(verdict.written_tokens(draft))

    def fork_guess(self, session: Session, choice: int | None = None) -> BlockFilledGuess:
        """A guess with its own text and the same encoded source.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return BlockFilledGuess(self.config, self.source, list(self.text), self.beside)

    def close(self) -> None:
        pass
