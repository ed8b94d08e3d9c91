"""States of the references that an answer holds, read in one pass over what was written, and what decodes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.protocols import Session
from polydec.core.request import ReferenceState, Result
from polydec.core.types import Draft, RowDetail, ScoreRequest, TokenVocabulary
from polydec.laws.constraints.pieces import token_byte_pieces
from polydec.laws.constraints.triplets import read_triplets, reference_places
from polydec.methods.speculative.loop.walk import Walk
from polydec.models.learned.kinds.unit_decoders import UnitDecoders

STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
"""The states behind the last layer are asked for."""


@dataclass(frozen=True)
class ReferenceReading:
    """Reads the model's states at the references of an answer (triplets).

    An answer says what it refers to as a `TripletGrammar` has it. The state of a reference is that of the place
    where the model reads its token, not where it writes it: it is read when the text has ended, of what was
    written and of nothing that was drafted. All of an answer's states are one pass, in a copy of the cache.

    Attributes:
        written: The bytes of each token id; None: it writes nothing. Empty: there is no tokenizer, and no text
            to look into.
        decoders: What makes boxes and masks of states. None: nothing does, and no image is needed.

    Exact: law: the text is not touched.
    Reduces to: the answer as it was written, where it refers to nothing.
    Source: "REF-VLM: triplet-based referring paradigm for unified visual decoding" (2025).
    """

    written: tuple[bytes | None, ...]
    decoders: UnitDecoders | None = None

    @staticmethod
    def of_vocabulary(
        vocab: TokenVocabulary, decoders: UnitDecoders | None = None
    ) -> ReferenceReading:
        """The reading of answers over a vocabulary.

        Args:
            vocab: The vocabulary.
            decoders: What makes boxes and masks of states. None: nothing does.

        Returns:
            The reading.

        Raises:
            RequestError: What bytes its tokens stand for is not known.
        """
        if vocab.words is None:
            return ReferenceReading((), decoders)
        if not any(vocab.words.pieces):
            raise RequestError(
                "method is ref-vlm: what bytes the tokens of this model's tokenizer stand for is not known token by "
                "token, so take a model of `polydec train ref-vlm`, or another method"
            )
        return ReferenceReading(token_byte_pieces(vocab, vocab.eos), decoders)

    def check_session(self, session: Session) -> None:
        """Check that states can be read behind a prompt, and that its image has the patches of the decoders. Raises
        PolydecError where not."""
        # No rows: nothing is computed.
        session.normed_states(torch.zeros_like(session.embed_tokens((0,))[:0]))
        self._image_of(session)

    def _image_of(self, session: Session) -> Tensor | None:
        """The vectors of the last image; None: nothing decodes them, or there is none."""
        if self.decoders is None:
            return None
        return self.decoders.last_image(session.text_vectors())

    async def read_answer(self, walk: Walk, prompt: Sequence[int], answer: Result) -> Result:
        """Read the states of an answer's references.

        Args:
            walk: Wrote the answer.
            prompt: The prompt.
            answer: The answer.

        Returns:
            The answer with a state for each reference, and with what decodes it; none where it is no text of the
            grammar.
        """
        tokens = answer.token_ids
        if not self.written:
            return answer
        text = b"".join(self.written[token] or b"" for token in tokens)
        try:
            planned = read_triplets(text.decode(errors="replace"))
        except RequestError:
            return answer
        if not planned:
            return answer
        places = reference_places(self.written, tokens)
        session = walk.open_behind((*prompt, *tokens[: places[0]]))
        try:
            # From the first reference to the last, as if all between them had been drafted.
            draft = Draft.chain_draft(tokens[places[0]], tokens[places[0] + 1 : places[-1] + 1])
            scores = await session.score_draft(draft, STATES)
            assert scores.hidden_NH is not None
            nodes = [place - places[0] for place in places]
            state_RH = session.normed_states(scores.hidden_NH[nodes])
            image_NH = self._image_of(session)
        finally:
            session.close()
        concepts = [(one, index) for one in planned for index in range(one.count)]
        references = tuple(
            ReferenceState(place, one.name, one.unit, index, state_H)
            for place, (one, index), state_H in zip(places, concepts, state_RH, strict=True)
        )
        if self.decoders is None or image_NH is None:
            return replace(answer, references=references)
        decoded, masks = self.decoders.decode_references(references, image_NH)
        return replace(answer, references=decoded, masks=masks)
