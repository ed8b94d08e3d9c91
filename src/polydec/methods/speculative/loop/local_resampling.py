"""Blocks of rows of a picture are drafted and tested whole; only around what was refused is drawn anew."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from polydec.base.errors import RequestError
from polydec.core.decoder import Decoder, Streams
from polydec.core.effects import gather_coroutines
from polydec.core.protocols import DraftScores, Session, Target
from polydec.core.request import Request, Result, TokenLogprob
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript, logprobs_at_nodes
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.drafters.upsampled import UpsampledDrafter, UpsampledGuess
from polydec.methods.speculative.loop.draws import draw_target_token
from polydec.methods.speculative.loop.events import ProposedEvent, VerifiedEvent
from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
from polydec.methods.speculative.loop.stats import DraftStats
from polydec.methods.speculative.loop.types import DraftBudget
from polydec.methods.speculative.policies.fixed import FixedPolicy
from polydec.methods.speculative.verifiers.neighbourhood import NeighbourhoodVerifier

BLOCK_TOKENS = 1024
"""Tokens of a draft at most, where all behind the first refused one is drafted again."""


def resampling_decoder(
    target: Target,
    drafter: UpsampledDrafter,
    test: NeighbourhoodVerifier,
    radius: int,
    *,
    local: bool,
) -> Decoder:
    """What draws anew where the test refuses tokens of a drafted picture.

    Args:
        target: The law to decode.
        drafter: Drafts blocks of the picture.
        test: Which tokens may stand.
        radius: Rows and columns around a refused token that are drawn anew, 0 or more.
        local: Whether they alone are drawn anew; else all behind the first refused token.

    Returns:
        The decoder.
    """
    # A constraint allows some texts alone: no token stands behind one that is changed.
    if local and not test.legal:
        return LocalResamplingDecoder(target, drafter, test, radius)
    return SpeculativeDecoder(target, drafter, test, FixedPolicy(BLOCK_TOKENS))


@dataclass(frozen=True)
class LocalResamplingDecoder:
    """Drafts the next rows of a picture, tests all of their tokens, and draws anew around those that fail.

    One pass scores a block as it was drafted; the test refuses tokens. Whatever lies within `radius`
    rows and columns of a refused token is drawn anew: these places form islands (neighbours across a
    corner are of one), each is drawn in the order of the text, and one pass serves the next token of
    all islands. Each token is drawn behind the block as it stands at that moment, so tokens of other
    islands that are still to be drawn are seen as they were drafted. Tokens behind an island stay,
    though they were tested behind others.

    A pass feeds the block from the first changed token to the last one that is needed: no key and no
    value is of a token that does not stand. (As published those behind an island stay as they were
    until the block is done.)

    Attributes:
        target: The law to decode.
        drafter: Drafts blocks; where it drafts nothing a token is drawn from the target.
        test: Which tokens may stand.
        radius: Rows and columns around a refused token that are drawn anew, 0 or more. Default 1.

    Exact: approximate: the test lets look-alikes stand, and tokens behind an island do not follow
    from it.
    Reduces to: plain decoding, token for token, for a test that refuses everything; the draft alone
    for one that refuses nothing.
    Source: "Multi-scale local speculative decoding for image generation" (MuLo-SD, 2026).
    """

    target: Target
    drafter: UpsampledDrafter
    test: NeighbourhoodVerifier
    radius: int = 1
    exactness = Exactness.APPROXIMATE

    def __post_init__(self) -> None:
        if self.radius < 0:
            raise RequestError(f"radius is {self.radius}: it must be at least 0")

    @property
    def vocab(self) -> TokenVocabulary:
        return self.target.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request. The prompt is fed once.

        Args:
            request: The request.
            rng: Gives the random stream of each choice.
            into: Transcript that the answers are written to.

        Returns:
            The answers in the order of the choices.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        sessions = [self.target.open_session(request.prompt)]
        guesses = list[UpsampledGuess]()
        try:
            guesses.append(self.drafter.open_guess(request.prompt, sessions[0]))
            # Only a prompt that is fed to its end can be shared by forks.
            await sessions[0].prefill_prompt(
                ScoreRequest(law=RowDetail.NOTHING, last=request.n > 1)
            )
            for choice in request.choices[1:]:
                sessions.append(sessions[0].fork(choice))
                guesses.append(guesses[0].fork_guess(sessions[-1], choice))
            return await gather_coroutines(
                *(
                    self._write(session, guess, text, rng(choice), into)
                    for session, guess, text, choice in zip(
                        sessions, guesses, texts, request.choices, strict=True
                    )
                )
            )
        finally:
            for part in (*guesses, *sessions):
                part.close()

    async def _write(
        self, session: Session, guess: UpsampledGuess, text: AnswerText, rng: Rng, into: Transcript
    ) -> Result:
        """Write block after block until the text ends."""
        asked = into.request.logprobs
        want = ScoreRequest(
            law=RowDetail.ROW, base=RowDetail.NOTHING if asked is None else RowDetail.ROW
        )
        stats = DraftStats()
        root = into.request.prompt[-1]
        while True:
            position = text.position
            # All that is drafted may stand: no token of the target's own follows a block.
            budget = DraftBudget(text.room, text.room)
            drafted = await guess.propose_draft(root, position, budget, rng)
            drafted = drafted.cut_draft(text.room, text.ends)
            if into.is_observed(ProposedEvent):
                words = self.vocab.words
                pieces = () if words is None else tuple(words.decode([x]) for x in drafted.token)
                choice = text.choice or 0
                into.on(ProposedEvent(choice, position, drafted.token, drafted.parent, pieces))
            block = BlockText(root, list(drafted.token[1:]), asked)
            await self.settle_block(session, block, want, rng, position, len(text.tokens))
            # Kept nodes need not be a path from the root: islands lie between them.
            if into.is_observed(VerifiedEvent):
                behind = block.kept[-1] if block.kept else 0
                bonus = block.tokens[min(behind, len(block.tokens) - 1)]
                into.on(VerifiedEvent(text.choice or 0, position, block.kept, bonus))
            # Tokens of the draft that no other stands before.
            begun = next((i for i, node in enumerate(block.kept) if node != i + 1), len(block.kept))
            new = text.write_tokens(block.tokens, block.notes, begun)
            # Tokens that stand as drafted count as accepted, wherever they are.
            stats = stats.plus_stats(
                DraftStats(
                    passes=block.passes,
                    drafts=min(1, len(drafted) - 1),
                    drafted=len(drafted) - 1,
                    accepted=sum(node <= new for node in block.kept),
                    first=0 if stats.passes else new,
                    expected=None,
                )
            )
            if text.finish_reason is not None:
                return text.finished_answer(stats)
            # The last token waits as the next root: it is fed with the next block.
            session.commit_tokens((root, *block.tokens[:-1]))
            guess.follow_text(block.tokens)
            root = block.tokens[-1]

    async def settle_block(
        self,
        session: Session,
        block: BlockText,
        want: ScoreRequest,
        rng: Rng,
        position: int,
        place: int,
    ) -> None:
        """Test a block, and draw islands anew.

        Args:
            session: The target's session behind the text.
            block: The block as it was drafted; it is changed.
            want: What is read of scores.
            rng: Random stream of the text; tokens are drawn at ``rng.child_stream("token", position)``.
            position: Absolute position of the block's first token.
            place: Which token of the picture that is.
        """
        # Behind a picture nothing is drafted: one token is drawn.
        refused = list[int]()
        if not block.tokens:
            block.tokens.append(block.root)
            refused.append(0)
        fed = (block.root, *block.tokens[:-1])
        scores = await session.score_draft(Draft.chain_draft(fed[0], fed[1:]), want)
        # The last token needs no row of its own: what follows it is the next block.
        block.passes = 1
        block.note_places(scores, range(len(block.tokens)))
        for at, token in enumerate(block.tokens):
            if at not in refused and not self.test.accepts_token(scores, at, token):
                refused.append(at)
        islands = self.find_islands(refused, len(block.tokens), place)
        # Whatever lies in an island is drawn anew, also what was accepted.
        drawn = {at for island in islands for at in island}
        block.kept = tuple(at + 1 for at in range(len(block.tokens)) if at not in drawn)
        for step in range(max(map(len, islands), default=0)):
            now = [island[step] for island in islands if step < len(island)]
            # The first token of each island is drawn from the pass that tested the block.
            if step:
                # What stands before the first changed token stays fed.
                last = (block.root, *block.tokens[: max(now)])
                session.keep_nodes(range(_shared_beginning(fed, last)))
                fed = last
                scores = await session.score_draft(Draft.chain_draft(fed[0], fed[1:]), want)
                block.passes += 1
            # Each in the stream that plain decoding would draw this position in.
            for at in now:
                here = rng.child_stream("token", position + at)
                block.tokens[at] = draw_target_token(scores, at, here)
            block.note_places(scores, now)

    def find_islands(self, refused: Collection[int], count: int, place: int = 0) -> list[list[int]]:
        """Which places of a block are drawn anew.

        Args:
            refused: Places whose tokens were refused, counted from the block's first token on.
            count: Tokens of the block.
            place: Which token of the picture the first one is. Default: one at the left edge.

        Returns:
            The places within the radius of a refused one, those that touch in one list, ascending;
            the lists by their first place.
        """
        width = self.drafter.upsampler.shape.width
        # Of each place its row and its column.
        at_N = [divmod(place % width + at, width) for at in range(count)]

        def near(a: int, others: Collection[int], far: int) -> bool:
            """Whether a place lies near another one.

            Args:
                a: The place.
                others: The others.
                far: Rows and columns that it may lie from one of them.

            Returns:
                True where it does.
            """
            # As a king moves: the larger of both distances counts.
            return any(
                max(abs(at_N[a][0] - at_N[b][0]), abs(at_N[a][1] - at_N[b][1])) <= far
                for b in others
            )

        left = {at for at in range(count) if near(at, refused, self.radius)}
        islands = list[list[int]]()
        # From the first place that is left, as far as one touches the next.
        while left:
            island = edge = {min(left)}
            while edge:
                edge = {at for at in left - island if near(at, edge, 1)}
                island = island | edge
            left -= island
            islands.append(sorted(island))
        return islands


def _shared_beginning(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two texts begin with alike."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((at for at, (x, y) in pairs if x != y), min(len(a), len(b)))


@dataclass
class BlockText:
    """A block that is being written.

    Attributes:
        root: The token before it.
        tokens: Its token ids as they stand.
        asked: Alternatives that a note has. None: there are no notes.
        notes: Of each token its log-probability where it was tested, or drawn last.
        passes: Of the target so far.
        kept: Nodes of the draft, counted from 1, whose tokens stand.
    """

    root: int
    tokens: list[int]
    asked: int | None
    notes: list[TokenLogprob] = field(default_factory=list[TokenLogprob])
    passes: int = 0
    kept: tuple[int, ...] = ()

    def note_places(self, scores: DraftScores, places: Sequence[int]) -> None:
        """Note log-probabilities, where they are asked for.

        Args:
            scores: The laws that the tokens were tested against or drawn from.
            places: Their places; the first time all of them.
        """
        made = logprobs_at_nodes(scores, places, [self.tokens[at] for at in places], self.asked)
        self.notes = self.notes or list(made)
        for at, note in zip(places, made, strict=False):
            self.notes[at] = note
