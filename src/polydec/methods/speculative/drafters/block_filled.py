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
    """Puts `block` gaps behind the text and lets the drafter look at them once, beside the source; the likeliest
    token of each gap is the draft. It ends behind an EOS. The gaps are as many as it was trained on whatever the budget
    allows: of more than that the first are proposed.

    source: what the text is written from; empty: the prompt is. block: 1 to 64, None: as the drafter was trained. base: the
    model's own rows of every pass are asked for: a verifier reads them. `chance` is the drafter's own probability.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` for a budget of 0.
    Source: Ge, Xia, Sun, Chen, Wei, "Lossless acceleration for seq2seq generation with aggressive decoding" (2022), its
    generalised half. Here the source is encoded once for all blocks; the text is read anew for each, as published.
    """

    drafter: BlockDrafter
    source: tuple[int, ...] = ()
    block: int | None = None
    base: bool = False

    def __post_init__(self) -> None:
        if self.block is not None and not 1 <= self.block <= 64:
            raise RequestError(f"block is {self.block}: it must lie in 1 to 64")

    def open(self, prompt: Sequence[int], session: Session) -> BlockFilledGuess:
        return BlockFilledGuess(self, tuple(self.source or prompt), list(prompt), EncodedSource())


class EncodedSource:
    """What the drafter's encoder left of the source, for all who write from it. kv: None before it has run."""

    def __init__(self) -> None:
        self.kv: Tensor | None = None


@dataclass(frozen=True)
class BlockFilledGuess(DraftGuess):
    """text: everything so far, the pending root included."""

    config: BlockFilledDrafter
    source: tuple[int, ...]
    text: list[int] = field(default_factory=list[int])
    beside: EncodedSource = field(default_factory=EncodedSource)

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(
            law=RowDetail.NOTHING, base=RowDetail.ROW if self.config.base else RowDetail.NOTHING
        )

    async def propose(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        trained = self.config.drafter
        filler = trained.filler
        block = self.config.block or trained.block
        most = min(block, budget.depth, budget.nodes)
        if most < 1:
            return Draft.chain(root)
        kv = self.beside.kv
        if kv is None:
            kv = self.beside.kv = await ForwardQuery(filler.encoder, self.source, len(self.source))
        asked = filler.asks(kv, self.text, block)
        logits_KV = await ForwardQuery(filler, asked, len(self.text) + block)
        logp_K, token_K = normalise_log_weights(logits_KV[:most]).max(-1)
        return Draft.certain(
            (root, *token_K.tolist()), range(-1, most), (1.0, *logp_K.exp().tolist())
        )

    def learn(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        self.text.extend(verdict.tokens(draft))

    def fork(self, session: Session, choice: int | None = None) -> BlockFilledGuess:
        return BlockFilledGuess(self.config, self.source, list(self.text), self.beside)

    def close(self) -> None:
        pass
