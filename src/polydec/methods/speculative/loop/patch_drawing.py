"""Pictures of patches that are vectors: one after the other, or drafted by a smaller model and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.decoder import Streams
from polydec.core.effects import ForwardQuery, gather_coroutines
from polydec.core.protocols import Session, Target
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Draft, Exactness, RowDetail, ScoreRequest, TokenVocabulary
from polydec.methods.speculative.loop.patch_tests import (
    DraftedPatches,
    ExactPatchTest,
    PatchTest,
    SettledPatches,
)
from polydec.methods.speculative.loop.stats import DraftStats
from polydec.models.learned.kinds.patch_head import PatchHead, PathDraw
from polydec.models.nets.denoising import DenoisingPaths
from polydec.models.sessions.soft import SoftToken, make_soft_tokens

STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
"""All that is read of a pass: what the model says of the next patch."""


@dataclass(frozen=True)
class PatchDrafter:
    """A smaller model that draws patches ahead.

    Attributes:
        draft: The model, of the target's vocabulary.
        head: Its head, of as many steps as the target's.
        depth: Patches that it draws ahead at most, 1 or more. Default 8.
        alone: Patches of a picture that the target draws first without it (token pre-filling), 0 or
            more. Default 0.
    """

    draft: Target
    head: PatchHead
    depth: int = 8
    alone: int = 0

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("alone", 0)):
            if getattr(self, name) < least:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least {least}")


@dataclass(frozen=True)
class PatchDecoder:
    """Draws pictures patch by patch: behind each one the model says a state, and a diffusion head draws the next
    patch of it. The patch is fed as a vector; what is written is the grey level of each of its pixels.

    With a drafter a smaller model draws some patches ahead, the target sees them in one pass, and a test
    decides how many stand. What follows them is drawn in any case. Patch i of a picture begins at the
    noise of ``rng.child_stream("patch", i)`` and gets the noises of that stream, whoever draws it.

    Attributes:
        target: The model.
        head: Its head.
        drafter: Who draws ahead. None: nobody.
        test: Decides about drafts, and whether the last step adds noise then.
        noise: Whether it does without a drafter. Default True.

    Exact: law, with an exact test: see `ExactPatchTest`; without a drafter it is the law itself.
    Reduces to: itself without a drafter, number by number, for a draft that is the target.
    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024), in the
    order of a text; "Continuous speculative decoding for autoregressive image generation" (2024).
    """

    target: Target
    head: PatchHead
    drafter: PatchDrafter | None = None
    test: PatchTest = field(default_factory=ExactPatchTest)
    noise: bool = True

    def __post_init__(self) -> None:
        if self.drafter is None:
            return
        own = self.head
        other = self.drafter.head
        # Trajectories have as many steps, and patches as many pixels, on both sides.
        pairs = {
            "steps": (own.shape.steps, other.shape.steps),
            "values": (own.shape.values, other.shape.values),
            "levels": (own.levels, other.levels),
        }
        for name, (have, wanted) in pairs.items():
            if have != wanted:
                raise RequestError(
                    f"the draft's head has {name} {wanted}, and the model's {have}: train both alike"
                )

    @property
    def exactness(self) -> Exactness:
        if self.drafter is None:
            return Exactness.LAW
        return self.test.exactness

    @property
    def still(self) -> bool:
        """Whether the last step of a trajectory is its mean."""
        if self.drafter is None:
            return not self.noise
        return self.test.still

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
        # The draft reads the same prompt, and the patches through a head of its own.
        models = [(self.target, self.head)]
        if self.drafter is not None:
            models.append((self.drafter.draft, self.drafter.head))
        begun = list[PatchText]()
        try:
            for model, head in models:
                begun.append(
                    PatchText(model.open_session(request.prompt), head, request.prompt[-1])
                )
                # Only a prompt that is fed to its end can be shared by forks.
                await begun[-1].session.prefill_prompt(
                    ScoreRequest(law=RowDetail.NOTHING, last=request.n > 1)
                )
            first = tuple(begun)
            all_texts = [first]
            for choice in request.choices[1:]:
                all_texts.append(tuple(part.fork_text(choice) for part in first))
                begun += all_texts[-1]
            return await gather_coroutines(
                *(
                    self._write(parts, text, rng(choice))
                    for parts, text, choice in zip(all_texts, texts, request.choices, strict=True)
                )
            )
        finally:
            for part in begun:
                part.session.close()

    async def _write(self, parts: Sequence[PatchText], text: AnswerText, rng: Rng) -> Result:
        """Write patch after patch until the text ends. parts: the target's, and the draft's if there is one."""
        own = parts[0]
        stats = DraftStats()
        place = 0
        while True:
            # The last patch of a text that is cut short is drawn whole.
            left = -(-text.room // self.head.shape.values)
            depth = self.draft_depth(place, left)
            drafted = None
            if depth:
                drafted = await self._drafted(parts[1], place, depth, rng)
            made = await self._settled(own, drafted, place, rng)
            # Pixel by pixel; the vectors themselves are what both models read on.
            levels = [x for value_D in made.value_KD for x in self.head.grey_levels(value_D)]
            new = text.write_tokens(levels, (), made.leading_patches * self.head.shape.values)
            stats = stats.plus_stats(
                DraftStats(
                    passes=1,
                    drafts=min(1, depth),
                    drafted=depth,
                    accepted=sum(made.stands),
                    first=0 if stats.passes else new,
                    expected=None,
                )
            )
            if text.finish_reason is not None:
                return text.finished_answer(stats)
            for part in parts:
                part.commit_patches(made.value_KD)
            place += len(made.value_KD)

    def draft_depth(self, place: int, left: int) -> int:
        """How many patches are drafted.

        Args:
            place: Patches of the picture so far.
            left: Patches that are still to be drawn.

        Returns:
            Their number; what follows them is drawn by the target.
        """
        if self.drafter is None or place < self.drafter.alone:
            return 0
        return min(self.drafter.depth, left - 1)

    def patch_noise(self, rng: Rng, place: int) -> tuple[Tensor, Tensor]:
        """Where a patch begins, and what its steps add.

        Args:
            rng: Random stream of the answer.
            place: Which patch of the picture it is.

        Returns:
            The beginning, shape ``[1, D]``, and the noises in deviations, shape ``[1, T, D]``.
        """
        S = self.head.shape.steps + 1
        row = (
            rng.child_stream("patch", place).shared_stream().normal_row(S * self.head.shape.values)
        )
        noise_SD = row.view(S, -1)
        # Behind the last step as published a patch is the mean.
        if self.still:
            noise_SD[-1] = 0.0
        return noise_SD[None, 0], noise_SD[None, 1:]

    async def _drafted(self, part: PatchText, place: int, depth: int, rng: Rng) -> DraftedPatches:
        """Patches that the draft draws one behind the other."""
        states = list[Tensor]()
        noises = list[Tensor]()
        each = list[DenoisingPaths]()
        for at in range(depth):
            # Each patch is staged behind the ones before: a pass feeds the new one alone.
            state_NH = await part.next_states([path.value_ND[0] for path in each])
            states.append(state_NH[-1:])
            start_1D, noise_1TD = self.patch_noise(rng, place + at)
            draw = PathDraw(states[-1], start_1D, noise_1TD)
            each.append(await ForwardQuery(part.head.path_drawer, draw, 1))
            noises.append(noise_1TD)
        paths = DenoisingPaths(
            *(
                torch.cat([getattr(path, name) for path in each])
                for name in ("points_NSD", "mean_NTD", "log_std_NTD")
            )
        )
        return DraftedPatches(part.head, torch.cat(states), torch.cat(noises), paths)

    async def _settled(
        self, part: PatchText, drafted: DraftedPatches | None, place: int, rng: Rng
    ) -> SettledPatches:
        """The patches of a round."""
        values: Any = () if drafted is None else drafted.paths.value_ND
        state_MH = await part.next_states(values)
        start_1D, noise_1TD = self.patch_noise(rng, place + len(values))
        behind = PathDraw(state_MH[-1:], start_1D, noise_1TD)
        if drafted is None:
            drawn: DenoisingPaths = await ForwardQuery(self.head.path_drawer, behind, 1)
            return SettledPatches((), drawn.value_ND)
        return await self.test.settle_patches(self.head, drafted, state_MH, behind, rng, place)


@dataclass
class PatchText:
    """A picture that one model reads while it is drawn.

    Attributes:
        session: The model's session behind what was committed.
        head: Its head, which says how patches are fed.
        root: The id behind that: the prompt's last token, or the last patch.
    """

    session: Session
    head: PatchHead
    root: int

    def fork_text(self, choice: int) -> PatchText:
        """The same text for another choice."""
        return PatchText(self.session.fork(choice), self.head, self.root)

    def patch_tokens(self, value_ND: Sequence[Tensor]) -> tuple[SoftToken, ...]:
        """The ids of patches, each of which carries the vector that is fed."""
        if not len(value_ND):
            return ()
        # Ids behind the vocabulary, so that caches tell patches apart as they do tokens.
        vectors_NH = self.head.embed_patches(torch.stack(tuple(value_ND)))
        return make_soft_tokens(
            vectors_NH, self.head.vocab.size, self.head.shape.width, "a picture"
        )

    async def next_states(self, value_ND: Sequence[Tensor]) -> Tensor:
        """What the model says of the next patch, behind the text and behind each of these patches.

        Args:
            value_ND: Patches that are staged, not committed.

        Returns:
            States behind the final norm, shape ``[N + 1, H]``.
        """
        draft = Draft.chain_draft(self.root, self.patch_tokens(value_ND))
        scores = await self.session.score_draft(draft, STATES)
        hidden_MH = scores.hidden_NH
        # Whoever asks for states gets them, or is refused before.
        assert hidden_MH is not None
        return self.session.normed_states(hidden_MH).double().cpu()

    def commit_patches(self, value_ND: Tensor) -> None:
        """These patches are past now; the last one is fed with what comes next."""
        tokens = self.patch_tokens(tuple(value_ND))
        self.session.commit_tokens((self.root, *tokens[:-1]))
        self.root = tokens[-1]
