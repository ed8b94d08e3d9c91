"""Masks of an image that an answer asks for: each is read in one pass over a token for each patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from polydec.core.effects import gather_coroutines
from polydec.core.protocols import Session
from polydec.core.request import ImageMask, Result
from polydec.methods.speculative.loop.walk import Walk
from polydec.models.learned.kinds.mask_head import MaskHead


@dataclass(frozen=True)
class MaskReading:
    """Reads the masks that an answer asks for (all-mask prediction).

    Behind each token that asks for one stand as many slots as the prompt's last image has patches. A
    slot enters as the embedding of one and the same token, and the vector of its patch on top; it sees
    the text up to the token that asks, and all slots. A linear map of its state says whether the patch
    belongs to the mask. Slots stand in a copy of the cache, so the text is what it is without them.

    Attributes:
        head: Which token asks, what stands for a patch, and the map.
        causal: Whether a slot sees no slot behind it, to compare. Default False.

    Exact: approximate: patches of a mask are told apart from one another. The text keeps its law.
    Reduces to: nothing: without a token that asks, the answer is what it was.
    Source: "Better, stronger, faster: tackling the trilemma in MLLM-based segmentation with simultaneous
    textual mask prediction" (STAMP, 2025).
    """

    head: MaskHead
    causal: bool = False

    def check_session(self, session: Session) -> None:
        """Check that a prompt's image has the patches of the head. Raises RequestError where it has not."""
        self.head.last_image(session.text_vectors())

    async def read_answer(self, walk: Walk, prompt: Sequence[int], answer: Result) -> Result:
        """Read the masks of an answer, each in a pass of its own.

        Args:
            walk: Wrote the answer.
            prompt: The prompt.
            answer: The answer.

        Returns:
            The answer with a mask for each token that asks; none where the prompt has no image.
        """
        # Every mask is read from a copy of its own, so they do not wait for one another.
        places = [at for at, token in enumerate(answer.token_ids) if token == self.head.asks]
        masks = await gather_coroutines(
            *(self._read(walk, (*prompt, *answer.token_ids[: at + 1]), at) for at in places)
        )
        return replace(answer, masks=tuple(mask for mask in masks if mask is not None))

    async def _read(self, walk: Walk, text: Sequence[int], place: int) -> ImageMask | None:
        """The mask behind a text, which ends with the token that asks."""
        # Behind the text up to here alone, however the answer goes on.
        head = self.head
        session = walk.open_behind(text)
        try:
            image_NH = head.last_image(session.text_vectors())
            if image_NH is None:
                return None
            # One and the same mark for all: the patch's vector tells slots apart.
            mark_H = session.embed_tokens((head.mark,))[0]
            state_NH = await session.read_slots(
                head.slot_vectors(mark_H, image_NH), (head.rows, head.columns), self.causal
            )
            logit_HW = head.patch_logits(session.normed_states(state_NH))
            return ImageMask(place, logit_HW, head.patch)
        finally:
            session.close()
