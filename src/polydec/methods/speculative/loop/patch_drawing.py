"""Pictures of patches that are vectors: one after the other, or drafted by a smaller model and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

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
from polydec.models.nets.denoising import DenoisingPaths, DenoisingShape
from polydec.models.sessions.soft import SoftToken, make_soft_tokens

STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)
"""All that is read of a pass: what the model says of the next patch."""


PatchLaw = TypeVar("PatchLaw")
"""A model of patches: one that draws them one by one, or one that fills a canvas with sets of them."""


@dataclass(frozen=True)
class PatchDrafter(Generic[PatchLaw]):
    """A smaller model that draws patches ahead.

    Attributes:
        draft: The model, of the target's vocabulary and kind.
        head: Its head, of as many steps as the target's.
        depth: Patches, or sets of them, that it draws ahead at most, 1 or more. Default 8.
        alone: Patches, or sets, of a picture that the target draws first without it (token
            pre-filling), 0 or more. Default 0.
    """

    draft: PatchLaw
    head: PatchHead
    depth: int = 8
    alone: int = 0

    def __post_init__(self) -> None:
        for name, least in (("depth", 1), ("alone", 0)):
            if getattr(self, name) < least:
                raise RequestError(f"{name} is {getattr(self, name)}: it must be at least {least}")

    def draft_depth(self, done: int, left: int) -> int:
        """How many patches, or sets of them, are drafted.

        Args:
            done: Those of the picture so far.
            left: Those that are still to be drawn.

        Returns:
            Their number; what follows them is drawn by the target.
        """
        # Behind the last drafted one the target draws one of its own, so one is left for it.
        return 0 if done < self.alone else min(self.depth, left - 1)

    def check_sizes(self, own: PatchHead) -> None:
        """Raise RequestError where trajectories of its head and of a target's could not be compared."""
        other = self.head
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
        guidance: How much stronger the class is made, 0 or more: a second session of each model reads
            the same patches behind no class, and each step's mean is moved away from what it says
            (`GuidedSteps`). Default 0: not.

    Exact: law, with an exact test: see `ExactPatchTest`; without a drafter it is the law itself. With
    guidance it is the guided one, whose steps are Gaussian as well.
    Reduces to: itself without a drafter, number by number, for a draft that is the target.
    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024), in the
    order of a text; "Continuous speculative decoding for autoregressive image generation" (2024).
    """

    target: Target
    head: PatchHead
    drafter: PatchDrafter[Target] | None = None
    test: PatchTest = field(default_factory=ExactPatchTest)
    noise: bool = True
    guidance: float = 0.0

    def __post_init__(self) -> None:
        if not self.guidance >= 0:
            raise RequestError(f"guidance is {self.guidance}: it must be at least 0")
        if self.drafter is not None:
            self.drafter.check_sizes(self.head)

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
                begun.append(self._opened(model, head, request.prompt))
                # Only a prompt that is fed to its end can be shared by forks.
                await begun[-1].prefill_prompts(request.n > 1)
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
                part.close_sessions()

    def _opened(self, model: Target, head: PatchHead, prompt: Sequence[int]) -> PatchText:
        """A text of one model behind the prompt, and with guidance behind no class."""
        # One session is enough where nothing is compared.
        if not self.guidance:
            return PatchText((model.open_session(prompt),), head, (prompt[-1],))
        # What stands in place of a class is the last id of all.
        dropped = (head.vocab.size - 1,) * len(prompt)
        return PatchText(
            (model.open_session(prompt), model.open_session(dropped)),
            head.guided_head,
            (prompt[-1], dropped[-1]),
            self.guidance,
        )

    async def _write(self, parts: Sequence[PatchText], text: AnswerText, rng: Rng) -> Result:
        """Write patch after patch until the text ends. parts: the target's, and the draft's if there is one."""
        own = parts[0]
        stats = DraftStats()
        place = 0
        while True:
            # The last patch of a text that is cut short is drawn whole.
            left = -(-text.room // self.head.shape.values)
            depth = 0 if self.drafter is None else self.drafter.draft_depth(place, left)
            drafted = None
            if depth:
                drafted = await self._drafted(parts[1], place, depth, rng)
            made = await self._settled(own, drafted, place, rng)
            # Pixel by pixel; the vectors themselves are what both models read on.
            levels = [x for value_D in made.value_KD for x in self.head.grey_levels(value_D)]
            new = text.write_tokens(levels, (), made.leading_patches * self.head.shape.values)
            stats = stats.plus_stats(made.round_stats(depth, 0 if stats.passes else new))
            if text.finish_reason is not None:
                return text.finished_answer(stats)
            for part in parts:
                part.commit_patches(made.value_KD)
            place += len(made.value_KD)

    async def _drafted(self, part: PatchText, place: int, depth: int, rng: Rng) -> DraftedPatches:
        """Patches that the draft draws one behind the other."""
        states = list[Tensor]()
        noises = list[Tensor]()
        each = list[DenoisingPaths]()
        for at in range(depth):
            # Each patch is staged behind the ones before: a pass feeds the new one alone.
            state_NH = await part.next_states([path.value_ND[0] for path in each])
            states.append(state_NH[-1:])
            start_1D, noise_1TD = trajectory_noise(rng, place + at, self.head.shape, self.still)
            draw = PathDraw(states[-1], start_1D, noise_1TD)
            each.append(await ForwardQuery(part.head.path_drawer, draw, 1))
            noises.append(noise_1TD)
        return DraftedPatches(
            part.head,
            torch.cat(states),
            torch.cat(noises),
            joined_paths(each),
            tuple(range(place, place + depth)),
            (1,) * depth,
        )

    async def _settled(
        self, part: PatchText, drafted: DraftedPatches | None, place: int, rng: Rng
    ) -> SettledPatches:
        """The patches of a round."""
        values: Any = () if drafted is None else drafted.paths.value_ND
        state_MH = await part.next_states(values)
        start_1D, noise_1TD = trajectory_noise(
            rng, place + len(values), self.head.shape, self.still
        )
        behind = PathDraw(state_MH[-1:], start_1D, noise_1TD)
        if drafted is None:
            drawn: DenoisingPaths = await ForwardQuery(part.head.path_drawer, behind, 1)
            return SettledPatches((), drawn.value_ND)
        return await self.test.settle_patches(part.head, drafted, state_MH, behind, rng)


def trajectory_noise(
    rng: Rng, place: int, shape: DenoisingShape, still: bool
) -> tuple[Tensor, Tensor]:
    """Where a patch begins, and what its steps add, whoever draws it.

    Args:
        rng: Random stream of the answer.
        place: Which patch of the picture it is.
        shape: Sizes of the head.
        still: Whether the last step adds nothing.

    Returns:
        The beginning, shape ``[1, D]``, and the noises in deviations, shape ``[1, T, D]``.
    """
    count = (shape.steps + 1) * shape.values
    row = rng.child_stream("patch", place).shared_stream().normal_row(count)
    noise_SD = row.view(shape.steps + 1, -1)
    # Behind the last step as published a patch is the mean.
    if still:
        noise_SD[-1] = 0.0
    return noise_SD[None, 0], noise_SD[None, 1:]


def joined_paths(parts: Sequence[DenoisingPaths]) -> DenoisingPaths:
    """Trajectories of several parts as one."""
    names = ("points_NSD", "mean_NTD", "log_std_NTD")
    return DenoisingPaths(*(torch.cat([getattr(x, name) for x in parts]) for name in names))


@dataclass
class PatchText:
    """A picture that one model reads while it is drawn.

    Attributes:
        sessions: The model's session behind what was committed; with guidance a second one, which reads
            the same behind no class.
        head: Its head, which says how patches are fed.
        roots: Of each session the id behind that: the prompt's last token, or the last patch.
        strength: Of the guidance. Default 0: there is none.
    """

    sessions: tuple[Session, ...]
    head: PatchHead
    roots: tuple[int, ...]
    strength: float = 0.0

    async def prefill_prompts(self, last: bool) -> None:
        """Feed the prompt of each session. last: to its end."""
        want = ScoreRequest(law=RowDetail.NOTHING, last=last)
        await gather_coroutines(*(session.prefill_prompt(want) for session in self.sessions))

    def fork_text(self, choice: int) -> PatchText:
        """The same text for another choice."""
        forks = tuple(session.fork(choice) for session in self.sessions)
        return PatchText(forks, self.head, self.roots, self.strength)

    def close_sessions(self) -> None:
        """Close them; called once."""
        for session in self.sessions:
            session.close()

    async def next_states(self, value_ND: Sequence[Tensor]) -> Tensor:
        """What the model says of the next patch, behind the text and behind each of these patches.

        Args:
            value_ND: Patches that are staged, not committed.

        Returns:
            What the head is told of each: states behind the final norm, shape ``[N + 1, H]``, or with
            guidance as `GuidedSteps` has them.
        """
        tokens = patch_tokens(self.head, value_ND)
        parts = await gather_coroutines(
            *(
                self._states(session, Draft.chain_draft(root, tokens))
                for session, root in zip(self.sessions, self.roots, strict=True)
            )
        )
        # Guided, the head is told of both sessions, and how much they count.
        if len(parts) > 1:
            parts.append(torch.full((len(parts[0]), 1), self.strength).double())
        return torch.cat(parts, -1)

    async def _states(self, session: Session, draft: Draft) -> Tensor:
        scores = await session.score_draft(draft, STATES)
        hidden_MH = scores.hidden_NH
        # Whoever asks for states gets them, or is refused before.
        assert hidden_MH is not None
        return session.normed_states(hidden_MH).double().cpu()

    def commit_patches(self, value_ND: Tensor) -> None:
        """These patches are past now; the last one is fed with what comes next."""
        tokens = patch_tokens(self.head, tuple(value_ND))
        # A session that knows no class reads the same patches.
        for session, root in zip(self.sessions, self.roots, strict=True):
            session.commit_tokens((root, *tokens[:-1]))
        self.roots = (tokens[-1],) * len(self.sessions)


def patch_tokens(head: PatchHead, value_ND: Sequence[Tensor]) -> tuple[SoftToken, ...]:
    """Make ids of patches.

    Args:
        head: Says what a model reads in the place of a patch.
        value_ND: The patches; there may be none.

    Returns:
        An id for each, which carries the vector that is fed.
    """
    # The embedding of no rows at all has no shape.
    if not len(value_ND):
        return ()
    # Ids behind the vocabulary, so that caches tell patches apart as they do tokens.
    vectors_NH = head.embed_patches(torch.stack(tuple(value_ND)))
    return make_soft_tokens(vectors_NH, head.vocab.size, head.shape.width, "a picture")
