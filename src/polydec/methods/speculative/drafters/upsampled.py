"""A model of small pictures drafts rows, which an up-sampler lifts to rows of a large one (MuLo-SD)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from torch import Tensor
from torch.nn.functional import pad

from polydec.core.effects import ForwardQuery
from polydec.core.law import NEG_INF
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.rng import Rng
from polydec.core.types import Draft, DrawKind, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.draws import categorical_pick, draw_draft_token
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.learned.kinds.upsampler import PictureUpsampler
from polydec.models.nets.query import NetworkAnswer
from polydec.models.nets.scores import LogitScores


@dataclass(frozen=True)
class UpsampledDrafter:
    """Drafts a block of rows of a picture from one row of a smaller picture.

    The draft model draws the next row of a picture of fewer tokens, behind rows that the text so far
    was averaged down to. An up-sampler lifts this row to the `ratio` rows of the large picture that it
    covers, and these are the draft. Where a token is refused, the same row goes on to draft what is
    left of the block. The prompt names a class: what is written behind it is the picture, and behind
    the picture nothing is drafted.

    Attributes:
        draft: The model of small pictures, of the target's vocabulary.
        upsampler: What lifts their rows; it knows both sizes.
        trained: Whether its network lifts them; else they are drawn, made larger and quantised, and
            candidates are certain. Default True.
        drawn: Whether tokens are drawn from the network's laws, which rules of sampling shape as they
            shape the target's; else each is the likeliest, and certain. Default True.

    Exact: law, under a verifier that tests drawn candidates: of a row of the small picture that was
    drawn before, each token's law is known, and it is drawn from that law once.
    Reduces to: `nothing` behind a picture, and at depth 0.
    Source: "Multi-scale local speculative decoding for image generation" (MuLo-SD, 2026): the draft
    and both ways to lift it.
    """

    unexercised: ClassVar[Mapping[str, str]] = {"siblings": "a place has one token"}

    draft: Target
    upsampler: PictureUpsampler
    trained: bool = True
    drawn: bool = True

    def open_guess(self, prompt: Sequence[int], session: Session) -> UpsampledGuess:
        """Begin a picture.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: The target's session, which shapes drafted laws.

        Returns:
            The guess. Nothing of the small picture is drawn yet.
        """
        return UpsampledGuess(self, session, self.draft.open_session(prompt), prompt[-1])


@dataclass
class UpsampledGuess(DraftGuess):
    """The drafter at work on one picture.

    Attributes:
        config: The drafter.
        target: The target's session.
        session: The draft model's, on the small picture.
        root: The last token that the draft model was given.
        written: Tokens of the large picture so far.
        above: Rows of the small picture over which the large one is whole.
        row: The next row of it, as it was drawn. None: it is not drawn yet.
    """

    config: UpsampledDrafter
    target: Session
    session: Session
    root: int
    written: list[int] = field(default_factory=list[int])
    above: tuple[tuple[int, ...], ...] = ()
    row: tuple[int, ...] | None = None

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose what is left of the block.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels and nodes.
            rng: Random stream of the text. Row and tokens are drawn at
                ``rng.child_stream("draft", position, part, place)``: part 0 is the row, 1 the tokens.

        Returns:
            The chain; tokens that were drawn have the laws that they were drawn from.
        """
        shape = self.config.upsampler.shape
        # The block that the next row of the small picture covers, and how much of it stands.
        block = shape.block_places(len(self.above))
        begin = len(self.written) - block.start
        count = min(budget.depth, budget.nodes, len(block) - begin)
        if count < 1:
            return Draft.chain_draft(root)
        here = rng.child_stream("draft", position)
        # A row serves its whole block, also behind a token of it that was refused.
        if self.row is None:
            self.row = await self._drawn_row(here.child_stream(0))
        rows = (*self.above, self.row)
        # Without the network nothing is known of chances, so candidates are certain.
        if not self.config.trained:
            tokens = self.config.upsampler.lift_pixels(rows)
            return Draft.chain_draft(root, tokens[begin : begin + count])
        logits_LK = await ForwardQuery(self.config.upsampler, rows, shape.low_width)
        return self._token_chain(root, logits_LK[begin : begin + count], here.child_stream(1))

    async def _drawn_row(self, rng: Rng) -> tuple[int, ...]:
        """Draw the next row of the small picture, token by token."""
        # The prompt is fed in chunks; from the second row on nothing is left to feed here.
        await self.session.prefill_prompt(ScoreRequest(law=RowDetail.NOTHING))
        # One pass of the draft model for each token of the row.
        line = Draft.chain_draft(self.root)
        for place in range(self.config.upsampler.shape.low_width):
            scores = await self.session.score_draft(line, ScoreRequest())
            drawn = draw_draft_token(scores, place, categorical_pick(rng.child_stream(place)))
            line = line.with_node(drawn.token, place, drawn.draw, drawn.law, drawn.q)
        return line.token[1:]

    def _token_chain(self, root: int, logits_LK: Tensor, rng: Rng) -> Draft:
        """Take a token at every place, each from its law as the target's session shapes it."""
        beyond = self.config.upsampler.vocab.size - logits_LK.shape[1]
        # Tokens that are no tiles are never proposed. In float64, as an exact test takes a law that sums to 1.
        logits_LV = pad(logits_LK.double(), (0, beyond), value=NEG_INF)
        line = Draft.chain_draft(root)
        for place in range(len(logits_LV)):
            rows = LogitScores([NetworkAnswer(logits_LV[: place + 1])])
            scores = self.target.bend_scores(line, rows)
            # The law that a token was drawn from goes with it: an exact test needs it.
            if self.config.drawn:
                pick = categorical_pick(rng.child_stream(place))
                drawn = draw_draft_token(scores, place, pick)
                line = line.with_node(drawn.token, place, drawn.draw, drawn.law, drawn.q)
            else:
                token = scores.likeliest_token(place)
                line = line.with_node(token, place, DrawKind.CERTAIN, None)
        return line

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Follow the text; a block that is whole is averaged down for the draft model.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """
        self.follow_text(verdict.written_tokens(draft))

    def follow_text(self, tokens: Sequence[int]) -> None:
        """Follow what was written. tokens: the ids that the text gained."""
        upsampler = self.config.upsampler
        self.written.extend(tokens)
        while block := upsampler.shape.block_places(len(self.above)):
            # A block that is not whole is not averaged down yet.
            if len(self.written) < block.stop:
                break
            row = upsampler.shrink_block(self.written[block.start : block.stop])
            # What the draft model has staged of these tokens stays in its cache.
            self.session.commit_tokens((self.root, *row[:-1]))
            self.root = row[-1]
            self.above = (*self.above, row)
            self.row = None

    def fork_guess(self, session: Session, choice: int | None = None) -> UpsampledGuess:
        """A guess with a fork of the draft model's session.

        Args:
            session: Fork of the target's session.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return replace(
            self,
            target=session,
            session=self.session.fork(choice),
            written=list(self.written),
        )

    def close(self) -> None:
        self.session.close()
