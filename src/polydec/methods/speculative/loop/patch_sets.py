"""Pictures of patches that a masked model draws in sets, in any order: alone, or drafted by a smaller one and tested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Canvas, CanvasSession, Denoiser
from polydec.core.decoder import Streams
from polydec.core.effects import ForwardQuery, gather_coroutines
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.transcript import AnswerText, Transcript
from polydec.core.types import Exactness, TextEdit, TokenVocabulary
from polydec.methods.diffusion.loop.prompted import PromptGuidedDenoiser
from polydec.methods.diffusion.unmaskers.annealed import AnnealedUnmasker
from polydec.methods.speculative.loop.patch_drawing import (
    PatchDrafter,
    joined_paths,
    patch_tokens,
    trajectory_noise,
)
from polydec.methods.speculative.loop.patch_tests import (
    DraftedPatches,
    ExactPatchTest,
    PatchTest,
    SettledPatches,
)
from polydec.methods.speculative.loop.stats import DraftStats
from polydec.models.learned.kinds.patch_head import PatchHead, PathDraw
from polydec.models.nets.denoising import DenoisingPaths

PatchSets = tuple[tuple[int, ...], ...]
"""Of each set the patches of the picture that it fills, in the order in which sets are drawn."""


@dataclass(frozen=True)
class SetSchedule:
    """In which order the patches of a picture are drawn, and how many at a time.

    Attributes:
        steps: Sets of a picture, 1 or more; fewer where it has fewer patches.
        curve: How many patches are left while sets go by, one of the curves of `AnnealedUnmasker`.
            Default "cosine": few patches at first, many at last.

    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024): the
    order is drawn at random, before anything is.
    """

    steps: int
    curve: str = "cosine"

    def __post_init__(self) -> None:
        # The same curves, and the same sentences about wrong ones.
        AnnealedUnmasker(self.steps, 0.0, self.curve)

    def draw_sets(self, count: int, rng: Rng) -> PatchSets:
        """Draw the sets of a picture.

        Args:
            count: Its patches, at least 1.
            rng: Random stream of the answer.

        Returns:
            Sets that hold each patch once.
        """
        order = rng.child_stream("order").without_replacement(
            torch.full((count,), 1 / count, dtype=torch.float64), count
        )
        # How many gaps a pass leaves is MaskGIT's rule, of which the order alone is another one.
        rule = AnnealedUnmasker(self.steps, 0.0, self.curve)
        sets = list[tuple[int, ...]]()
        done = 0
        while done < count:
            left = rule.gaps_left(count, len(sets), count - done)
            sets.append(order[done : count - left])
            done = count - left
        return tuple(sets)


@dataclass(frozen=True)
class SetGroups:
    """Which passes feed the whole canvas, and which the patches alone that were planned with one of these.

    As the order of patches is known from the begin, a pass that feeds all plans its own set and those of
    the passes behind it. These feed the patches of the group alone, drawn ones as vectors and the others
    as gaps, against keys and values of all others as the first pass left them.

    Attributes:
        before: Passes at the begin of a picture that feed all, 0 or more. Default 0.
        partial: Passes of a group behind its first, 0 to 64. Default 0: every pass feeds all.
        prompt_fed: Whether these feed the prompt as well. Default False.

    Exact: no, but where partial is 0: what is not fed has not seen the group's patches.
    Reduces to: no groups for partial 0, or where before is at least the number of sets.
    Source: "Plug-and-play context feature reuse for efficient masked generation" (ReCAP, 2025).
    """

    before: int = 0
    partial: int = 0
    prompt_fed: bool = False

    def __post_init__(self) -> None:
        if self.before < 0:
            raise RequestError(f"before is {self.before}: it must be at least 0")
        if not 0 <= self.partial <= 64:
            raise RequestError(f"partial is {self.partial}: it must lie in 0 to 64")

    def planned_sets(self, done: int) -> slice | None:
        """The sets of the group of a pass.

        Args:
            done: Sets before it.

        Returns:
            Which ones; None: it begins a group, and feeds all.
        """
        behind = (done - self.before) % (1 + self.partial)
        if done < self.before or not behind:
            return None
        # The last group of a picture may have fewer sets than that.
        first = done - behind
        return slice(first, first + 1 + self.partial)


@dataclass(frozen=True)
class PatchSetDecoder:
    """Draws pictures with a masked model of patches: of a canvas whose other patches are gaps it says a state for each
    gap, and a diffusion head draws all patches of a set from theirs. Patches of one set do not see one
    another; those of later sets see them all.

    With a drafter a smaller model draws some sets ahead. The target reads one canvas for each of them,
    as it is before that set, and one behind them, all in one pass, and a test decides how many stand.
    The order of sets and the noises are those of the answer's stream, whoever draws.

    Attributes:
        denoiser: The model, whose states are read without its laws.
        head: Its head.
        schedule: The sets.
        drafter: Who draws sets ahead. None: nobody.
        test: Decides about drafts, and whether the last step adds noise then.
        noise: Whether it does without a drafter. Default True.
        guidance: How much stronger the class is made, 0 or more: a second canvas of each model has a gap
            in place of the class, and each step's mean is moved away from what it says (`GuidedSteps`).
            Default 0: not.
        growing: Whether guidance grows with the share of the picture that is drawn. Default False.
        groups: Which passes feed all, of a decoder without a drafter. Default: every one.

    Exact: law, with an exact test and without groups: patches of a set are independent given what is drawn, and each is
    tested alone; see `ExactPatchTest`. Without a drafter it is the law itself. With guidance it is the
    guided one.
    Reduces to: itself without a drafter, number by number, for a draft that is the target.
    Source: Li et al., "Autoregressive image generation without vector quantization" (MAR, 2024);
    "Continuous speculative decoding for autoregressive image generation" (2024).
    """

    denoiser: Denoiser
    head: PatchHead
    schedule: SetSchedule
    drafter: PatchDrafter[Denoiser] | None = None
    test: PatchTest = field(default_factory=ExactPatchTest)
    noise: bool = True
    guidance: float = 0.0
    growing: bool = False
    groups: SetGroups = field(default_factory=SetGroups)

    def __post_init__(self) -> None:
        if self.groups.partial and self.drafter is not None:
            raise RequestError(
                f"partial is {self.groups.partial}: drafts are tested by passes that feed all, so it must be 0"
            )
        if not self.guidance >= 0:
            raise RequestError(f"guidance is {self.guidance}: it must be at least 0")
        if self.drafter is not None:
            self.drafter.check_sizes(self.head)

    @property
    def exactness(self) -> Exactness:
        if self.groups.partial:
            return Exactness.APPROXIMATE
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
        return self.denoiser.vocab

    async def write_choices(self, request: Request, rng: Streams, into: Transcript) -> list[Result]:
        """Write all choices of a request, each on canvases of its own.

        Args:
            request: The request.
            rng: Gives the random stream of each choice.
            into: Transcript that the answers are written to.

        Returns:
            The answers in the order of the choices.
        """
        texts = [into.open_answer(choice) for choice in request.choices]
        return await gather_coroutines(
            *(
                self._write(request, text, rng(choice))
                for text, choice in zip(texts, request.choices, strict=True)
            )
        )

    async def _write(self, request: Request, text: AnswerText, rng: Rng) -> Result:
        """Write set after set until the text ends."""
        # The order is drawn before anything else: draft and target share it.
        sets = self.schedule.draw_sets(self.head.patches, rng)
        boards = [PatchCanvases.of_model(self.denoiser, self.head, request.prompt, self.guidance)]
        if self.drafter is not None:
            d = self.drafter
            boards.append(PatchCanvases.of_model(d.draft, d.head, request.prompt, self.guidance))
        stats = DraftStats()
        done = 0
        try:
            while True:
                left = len(sets) - done
                depth = 0 if self.drafter is None else self.drafter.draft_depth(done, left)
                drafted = None
                if depth:
                    drafted = await self._drafted(boards[1], sets, done, depth, rng)
                made = await self._settled(boards[0], drafted, sets, done, rng)
                # Sets are whole, so what was made ends with one.
                places = [p for each in sets[done:] for p in each][: len(made.value_KD)]
                new = self._write_patches(text, len(request.prompt), places, made)
                count = 0 if drafted is None else len(drafted)
                stats = stats.plus_stats(made.round_stats(count, 0 if stats.passes else new))
                if text.finish_reason is not None:
                    return text.finished_answer(stats)
                for board in boards:
                    board.write_patches(places, made.value_KD)
                # A set may be any size: the sets that were made are counted by their patches.
                while places:
                    places = places[len(sets[done]) :]
                    done += 1
        finally:
            for board in boards:
                board.close_boards()

    def strength_at(self, sets: PatchSets, done: int) -> float:
        """The strength of the guidance of a set.

        Args:
            sets: All sets of the picture.
            done: How many of them stand before it.

        Returns:
            The strength, 0 or more.
        """
        if not self.growing:
            return self.guidance
        # As in a text: of the first patches nothing is known, so they are hardly guided.
        return self.guidance * sum(map(len, sets[:done])) / self.head.patches

    def fed_positions(self, board: PatchCanvases, sets: PatchSets, done: int) -> Sequence[int]:
        """Which positions of a canvas the pass of a set feeds.

        Args:
            board: The picture so far.
            sets: All sets of it.
            done: How many of them are drawn.

        Returns:
            The positions, ascending, those of the set among them.
        """
        planned = self.groups.planned_sets(done)
        # Positions see gaps as well, so what is drawn changes every state: all are fed anew.
        if planned is None:
            return range(len(board.canvas))
        places = sorted(place for some in sets[planned] for place in some)
        told = range(board.begin) if self.groups.prompt_fed else ()
        return [*told, *(board.begin + place for place in places)]

    def _write_patches(
        self, text: AnswerText, begin: int, places: Sequence[int], made: SettledPatches
    ) -> int:
        """Write the grey levels of patches; gives how many tokens became final."""
        D = self.head.shape.values
        written = [
            (begin + place * D + i, level)
            for place, value_D in zip(places, made.value_KD, strict=True)
            for i, level in enumerate(self.head.grey_levels(value_D))
        ]
        # Of a text that is cut short nothing is written behind its end.
        stop = begin + text.limit
        return text.edit_tokens(TextEdit(write=tuple(x for x in written if x[0] < stop)))

    def set_noise(self, rng: Rng, places: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Where the patches of a set begin, and what their steps add.

        Args:
            rng: Random stream of the answer.
            places: Patches of the set, M of them.

        Returns:
            The beginnings, shape ``[M, D]``, and the noises in deviations, shape ``[M, T, D]``.
        """
        # By the place of each patch, whichever set it is in.
        pairs = [trajectory_noise(rng, place, self.head.shape, self.still) for place in places]
        return torch.cat([start for start, _ in pairs]), torch.cat([noise for _, noise in pairs])

    async def _drafted(
        self, board: PatchCanvases, sets: PatchSets, done: int, depth: int, rng: Rng
    ) -> DraftedPatches:
        """Sets that the draft draws one behind the other."""
        states = list[Tensor]()
        noises = list[Tensor]()
        each = list[DenoisingPaths]()
        canvas = board.canvas
        for at in range(done, done + depth):
            strength = self.strength_at(sets, at)
            feed = range(len(canvas))
            states.append(await board.set_states(0, canvas, sets[at], strength, feed))
            start_MD, noise_MTD = self.set_noise(rng, sets[at])
            draw = PathDraw(states[-1], start_MD, noise_MTD)
            each.append(await ForwardQuery(board.head.path_drawer, draw, len(start_MD)))
            noises.append(noise_MTD)
            # The next set of the draft sees what it has drawn itself.
            canvas = board.with_patches(canvas, sets[at], each[-1].value_ND)
        # As one row of patches, in the order in which they are tested.
        drawn = sets[done : done + depth]
        return DraftedPatches(
            board.head,
            torch.cat(states),
            torch.cat(noises),
            joined_paths(each),
            tuple(place for some in drawn for place in some),
            tuple(map(len, drawn)),
        )

    async def _settled(
        self,
        board: PatchCanvases,
        drafted: DraftedPatches | None,
        sets: PatchSets,
        done: int,
        rng: Rng,
    ) -> SettledPatches:
        """The patches of a round."""
        # A canvas before each drafted set, and one behind all of them.
        canvases = [board.canvas]
        if drafted is not None:
            for some in drafted.set_ranges:
                places = [drafted.places[at] for at in some]
                value_MD = drafted.paths.value_ND[some.start : some.stop]
                canvases.append(board.with_patches(canvases[-1], places, value_MD))
        asked = range(done, done + len(canvases))
        feed = self.fed_positions(board, sets, done)
        states = await gather_coroutines(
            *(
                board.set_states(k, canvas, sets[at], self.strength_at(sets, at), feed)
                for k, (canvas, at) in enumerate(zip(canvases, asked, strict=True))
            )
        )
        behind = PathDraw(states[-1], *self.set_noise(rng, sets[asked[-1]]))
        if drafted is None:
            drawn: DenoisingPaths = await ForwardQuery(
                board.head.path_drawer, behind, len(states[-1])
            )
            return SettledPatches((), drawn.value_ND)
        return await self.test.settle_patches(board.head, drafted, torch.cat(states), behind, rng)


@dataclass
class PatchCanvases:
    """A picture that one model fills, and the sessions that read canvases of it side by side.

    Attributes:
        denoiser: The model; with guidance it gives the states of two canvases at once.
        head: Its head.
        begin: Positions of the prompt, behind which the patches stand.
        canvas: The prompt, and the patches that are drawn; None is a gap.
        boards: A session for each canvas of a pass.
    """

    denoiser: Denoiser
    head: PatchHead
    begin: int
    canvas: Canvas
    boards: list[CanvasSession] = field(default_factory=list[CanvasSession])

    @staticmethod
    def of_model(
        model: Denoiser, head: PatchHead, prompt: Sequence[int], guidance: float
    ) -> PatchCanvases:
        """An empty picture.

        Args:
            model: A model of patches.
            head: Its head.
            prompt: Token ids, the class.
            guidance: Strength of the guidance; 0: none.

        Returns:
            The picture, and as yet no session.
        """
        canvas = (*prompt, *(None,) * head.patches)
        # Without guidance the head reads one state of each patch.
        if not guidance:
            return PatchCanvases(model, head, len(prompt), canvas)
        # It reads the same canvas with gaps in place of the prompt as well.
        both = PromptGuidedDenoiser(model, guidance)
        return PatchCanvases(both, head.guided_head, len(prompt), canvas)

    async def set_states(
        self,
        board: int,
        canvas: Canvas,
        places: Sequence[int],
        strength: float,
        feed: Sequence[int],
    ) -> Tensor:
        """What the head is told of the patches of a set.

        Args:
            board: Number of the session that reads the canvas.
            canvas: What is drawn before the set.
            places: Patches of the set.
            strength: Of the guidance of this set.
            feed: Positions that are computed anew, ascending, those of the set among them.

        Returns:
            States whose root mean square is 1, shape ``[M, H]``, or with guidance as `GuidedSteps` has
            them.
        """
        # Most answers need one session; only drafts need more of them.
        while len(self.boards) <= board:
            self.boards.append(self.denoiser.open_canvas(len(canvas), self.begin))
        state_FG = await self.boards[board].read_canvas(canvas, feed)
        row = {position: i for i, position in enumerate(feed)}
        state_MG = state_FG[[row[self.begin + place] for place in places]].double()
        # With guidance two states stand side by side.
        state_MPH = state_MG.view(len(places), -1, self.head.shape.width)
        told_MG = rms_norm(state_MPH, state_MPH.shape[-1:], eps=1e-5).flatten(1)
        if not self.head.guided:
            return told_MG
        return torch.cat([told_MG, torch.full((len(places), 1), strength).double()], 1)

    def with_patches(self, canvas: Canvas, places: Sequence[int], value_MD: Tensor) -> Canvas:
        """A canvas in which some patches are drawn.

        Args:
            canvas: The canvas before.
            places: Which patches they are.
            value_MD: Their pixels, shape ``[M, D]``.

        Returns:
            The new canvas.
        """
        # Ids carry the vectors of patches, so a canvas of them is a canvas as any other.
        out = list(canvas)
        for place, token in zip(places, patch_tokens(self.head, tuple(value_MD)), strict=True):
            out[self.begin + place] = token
        return tuple(out)

    def write_patches(self, places: Sequence[int], value_MD: Tensor) -> None:
        """Draw patches into the picture.

        Args:
            places: Which patches they are.
            value_MD: Their pixels, shape ``[M, D]``.
        """
        self.canvas = self.with_patches(self.canvas, places, value_MD)

    def close_boards(self) -> None:
        """Close its sessions; called once."""
        for board in self.boards:
            board.close()
