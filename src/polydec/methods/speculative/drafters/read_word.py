"""A reader that reads the whole word in an image at once drafts for a model that writes it letter by
letter."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor

from polydec.core.effects import ForwardQuery
from polydec.core.law import normalise_log_weights
from polydec.core.protocols import DraftScores, Session
from polydec.core.rng import Rng
from polydec.core.types import Draft, RowDetail, ScoreRequest
from polydec.methods.speculative.loop.protocols import DraftGuess
from polydec.methods.speculative.loop.types import DraftBudget, Verdict
from polydec.models.formats.images import PixelStrip
from polydec.models.learned.kinds.word_reader import BEGUN, ReadingQuery, WordReader, usual_reading


@dataclass(frozen=True)
class ReadWordDrafter:
    """A reader reads the image once; what it read of the letters behind the text is the draft.

    The letters are proposed by their place in the word: where the model writes another letter than
    the reader saw, what was read behind it still stands. `chance` is the reader's own probability.

    Attributes:
        reader: The trained reader.
        strip: The image.
        read: How it reads. Default: as its head does by itself.

    Exact: law, under any exact verifier: candidates are certain.
    Reduces to: `nothing` behind the last letter that was read.
    Source: Ge, Xia, Sun, Chen, Wei, "Lossless acceleration for seq2seq generation with aggressive
    decoding" (2022), the form in which a network that writes at once drafts for one that does not;
    there it fills a block behind each text anew.
    """

    unexercised: ClassVar[Mapping[str, str]] = {
        "distinct": "what is proposed depends on the image, and of the text on its length alone",
        "learned": "a word is read once, and nothing that is written changes what was read",
    }

    reader: WordReader
    strip: PixelStrip
    read: Callable[[Any, Tensor], Tensor] = usual_reading

    def __post_init__(self) -> None:
        self.reader.check_image(self.strip)

    def open_guess(self, prompt: Sequence[int], session: Session) -> ReadWordGuess:
        """Begin a sequence.

        Args:
            prompt: Token ids of the prompt. The last one is the first root.
            session: Not used.

        Returns:
            The guess. The image is read with the first proposal.
        """
        return ReadWordGuess(self, SharedReading())


class SharedReading:
    """What was read of an image, shared by all choices of a request.

    Attributes:
        logp_TV: Log-probabilities of the letters. None: it was not read yet.
    """

    def __init__(self) -> None:
        self.logp_TV: Tensor | None = None


@dataclass(frozen=True)
class ReadWordGuess(DraftGuess):
    """The drafter at work on one sequence.

    Attributes:
        config: The configuration.
        reading: What was read.
    """

    config: ReadWordDrafter
    reading: SharedReading = field(default_factory=SharedReading)

    @property
    def want(self) -> ScoreRequest:
        return ScoreRequest(law=RowDetail.NOTHING)

    async def propose_draft(self, root: int, position: int, budget: DraftBudget, rng: Rng) -> Draft:
        """Propose the letters that were read behind the text.

        Args:
            root: Last token of the text. It is node 0 of the draft.
            position: Absolute position of the first drafted token.
            budget: Bounds of the draft: levels, nodes, and where to stop.
            rng: Not used: candidates are certain.

        Returns:
            The chain.
        """
        most = min(budget.depth, budget.nodes)
        if most < 1:
            return Draft.chain_draft(root)
        config = self.config
        # Whoever of the choices is first reads for all.
        logp_TV = self.reading.logp_TV
        if logp_TV is None:
            asked = ReadingQuery(config.strip, config.read)
            rows_TV = await ForwardQuery(config.reader, asked, len(config.strip))
            logp_TV = self.reading.logp_TV = normalise_log_weights(rows_TV)
        # What the prompt holds of the answer already counts as read.
        at = position - BEGUN
        logp_K, token_K = logp_TV[at : at + most].max(-1)
        return Draft.certain_tree(
            (root, *token_K.tolist()), range(-1, len(token_K)), (1.0, *logp_K.exp().tolist())
        )

    def learn_round(self, draft: Draft, scores: DraftScores, verdict: Verdict) -> None:
        """Nothing: a word is read once.

        Args:
            draft: The draft that the target has scored.
            scores: The target's scores at the nodes of the draft.
            verdict: The accepted nodes and the token that follows them.
        """

    def fork_guess(self, session: Session, choice: int | None = None) -> ReadWordGuess:
        """A guess that shares what was read.

        Args:
            session: Fork of the target's session, for the copy to read.
            choice: Index of the choice that the copy drafts for. None: the same choice as before.

        Returns:
            The copy.
        """
        return self

    def close(self) -> None:
        pass
