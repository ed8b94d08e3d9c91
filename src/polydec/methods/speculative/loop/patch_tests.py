"""Which drafted patches stand, and what is drawn in place of the first one that does not: patches are vectors, so
densities are compared where tokens have probabilities."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, count, pairwise
from math import exp
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from polydec.base.errors import RequestError
from polydec.core.effects import ForwardQuery
from polydec.core.rng import Rng
from polydec.core.types import Exactness
from polydec.methods.speculative.loop.stats import DraftStats
from polydec.models.learned.kinds.patch_head import PatchHead, PathDraw, PathScore
from polydec.models.nets.denoising import DenoisingPaths, normal_log_density

MOST_AT_ONCE = 256
"""Trajectories that are tried in one pass at most."""


@dataclass(frozen=True, eq=False)
class DraftedPatches:
    """Patches that a draft drew, set behind set. Patches of one set do not see one another.

    Attributes:
        head: The draft model's head, which drew them.
        state_NH: What the draft model said of each, shape ``[N, H]``.
        noise_NTD: What each step added, in deviations, shape ``[N, T, D]``.
        paths: Their trajectories, and the laws of these under the draft model.
        places: Which patch of the picture each is.
        sizes: Patches of each set, in order.
    """

    head: PatchHead
    state_NH: Tensor
    noise_NTD: Tensor
    paths: DenoisingPaths
    places: tuple[int, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.state_NH)

    @property
    def set_ranges(self) -> list[range]:
        """Which of the patches each set holds."""
        # Sets stand one behind the other.
        ends = list(accumulate(self.sizes, initial=0))
        return [range(a, b) for a, b in pairwise(ends)]


@dataclass(frozen=True, eq=False)
class SettledPatches:
    """What came of a draft.

    Attributes:
        stands: Of each patch that was tested, in order, whether it stands.
        value_KD: The patches of the round, shape ``[K, D]``: drafted ones, those in place of refused
            ones, and the set behind a draft that stands as a whole.
    """

    stands: tuple[bool, ...]
    value_KD: Tensor

    @property
    def leading_patches(self) -> int:
        """How many drafted patches stand before the first refused one."""
        return next((at for at, stood in enumerate(self.stands) if not stood), len(self.stands))

    def round_stats(self, drafted: int, first: int) -> DraftStats:
        """What a round counts: one pass of the target.

        Args:
            drafted: Patches of the draft; 0: there was none.
            first: Tokens that are final behind the first pass of an answer, 0 behind later ones.

        Returns:
            The counts.
        """
        return DraftStats(
            passes=1,
            drafts=min(1, drafted),
            drafted=drafted,
            accepted=sum(self.stands),
            first=first,
            expected=None,
        )


class PatchTest(Protocol):
    """Decides about drafted patches. `still`: whether no trajectory adds noise in its last step."""

    exactness: ClassVar[Exactness]
    still: ClassVar[bool]

    async def settle_patches(
        self,
        head: PatchHead,
        drafted: DraftedPatches,
        state_MH: Tensor,
        behind: PathDraw,
        rng: Rng,
    ) -> SettledPatches:
        """Test patches set by set, and draw what follows those that stand.

        A set is whole: what is refused of it is drawn again. Later sets were drawn behind what is gone
        then, and no longer count.

        Args:
            head: The target's head.
            drafted: The patches, N of them, N at least 1.
            state_MH: What the target says of each, and of those of the set behind them.
            behind: How these are drawn.
            rng: Random stream of the answer.

        Returns:
            The patches of the round.
        """
        ...


def acceptance_chance(log_ratio: float) -> float:
    """How likely a draft stands whose density under the target is exp(log_ratio) times that under the draft."""
    return exp(min(0.0, log_ratio))


def residual_chance(log_ratio_N: Tensor) -> Tensor:
    """How likely proposals of the target stand where a draft was refused: what remains of p is (p - q)+.

    Args:
        log_ratio_N: Of each the logarithm of p / q.

    Returns:
        1 - q / p, and 0 where the draft has the larger density.
    """
    return (1 - (-log_ratio_N).exp()).clamp_(min=0.0)


@dataclass(frozen=True)
class ExactPatchTest:
    """Speculative sampling on whole trajectories from noise to a patch.

    A trajectory is a draw of the draft, and its density is the product of those of its steps: so it
    stands with probability min(1, p / q). All steps of all trajectories are scored in one call of the
    target's head. Where one is refused, whole trajectories of the target are drawn until one stands
    with probability (1 - q / p)+; in the mean over all that takes one for each refused one.

    Exact: law: trajectories follow the target's law, so where they end does. Every step adds its
    noise, the last one too: its mean alone has no density.
    Reduces to: ratios of two normal laws, with a head of one step.
    Source: Leviathan et al., "Fast inference from transformers via speculative decoding" (2023), on
    trajectories; "Continuous speculative decoding for autoregressive image generation" (2024) has their
    densities.
    """

    exactness: ClassVar[Exactness] = Exactness.LAW
    still: ClassVar[bool] = False

    async def settle_patches(
        self,
        head: PatchHead,
        drafted: DraftedPatches,
        state_MH: Tensor,
        behind: PathDraw,
        rng: Rng,
    ) -> SettledPatches:
        """Test trajectories in order; see `PatchTest.settle_patches`.

        Args:
            head: The target's head.
            drafted: The patches, N of them.
            state_MH: What the target says of each, and of those of the set behind them.
            behind: How these are drawn.
            rng: Random stream of the answer; patch i is tested at ``rng.child_stream("test", i)``.

        Returns:
            The patches of the round.
        """
        N = len(drafted)
        # Trajectories are known, so all steps of all of them are one call.
        asked = PathScore(state_MH[:N], drafted.paths.points_NSD)
        scored: DenoisingPaths = await ForwardQuery(head.path_scorer, asked, N)
        log_ratio_N = scored.log_density() - drafted.paths.log_density()
        log_ratios = list(map(float, log_ratio_N))
        stands = list[bool]()
        rows = list[Tensor]()
        for each in drafted.set_ranges:
            for at in each:
                here = rng.child_stream("test", drafted.places[at])
                stands.append(here.draw_bernoulli(acceptance_chance(log_ratios[at])))
                row = slice(at, at + 1)
                # What stands is kept number by number.
                if stands[-1]:
                    rows.append(drafted.paths.value_ND[row])
                    continue
                again = rng.child_stream("redraw", drafted.places[at])
                rows.append(
                    await self.redraw_patch(
                        head, drafted.head, state_MH[row], drafted.state_NH[row], again
                    )
                )
            # Patches of a set do not see one another, so each is tested whatever became of the others.
            if not all(stands[each.start :]):
                return SettledPatches(tuple(stands), torch.cat(rows))
        drawn: DenoisingPaths = await ForwardQuery(head.path_drawer, behind, len(behind.state_NH))
        return SettledPatches(tuple(stands), torch.cat([*rows, drawn.value_ND]))

    async def redraw_patch(
        self, head: PatchHead, other: PatchHead, state_1H: Tensor, draft_1H: Tensor, rng: Rng
    ) -> Tensor:
        """Draw a patch from what the target's law has more than the draft's.

        Args:
            head: The target's head.
            other: The draft's.
            state_1H: What the target says of the patch, shape ``[1, H]``.
            draft_1H: What the draft says of it.
            rng: Random stream of the patch.

        Returns:
            The patch, shape ``[1, D]``.
        """
        T = head.shape.steps
        D = head.shape.values
        # A beginning of its own for each try: the refused trajectory's is not used again.
        # Refused trajectories are rare where the laws are near, and then most proposals fail: so each
        # turn tries twice as many.
        for turn in count():
            N = min(1 << turn, MOST_AT_ONCE)
            here = rng.child_stream(turn)
            noise_NSD = here.child_stream("noise").normal_row(N * (T + 1) * D).view(N, T + 1, D)
            draw = PathDraw(state_1H.expand(N, -1), noise_NSD[:, 0], noise_NSD[:, 1:])
            tried: DenoisingPaths = await ForwardQuery(head.path_drawer, draw, N)
            score = PathScore(draft_1H.expand(N, -1), tried.points_NSD)
            under: DenoisingPaths = await ForwardQuery(other.path_scorer, score, N)
            chance_N = residual_chance(tried.log_density() - under.log_density())
            stands_N = torch.tensor(here.child_stream("stands").uniform_row(N)) < chance_N
            if bool(stands_N.any()):
                # The first that stands: which one it is tells nothing of where it ends.
                return tried.value_ND[int(stands_N.nonzero()[0, 0])][None]
        raise AssertionError("turns do not end")


@dataclass(frozen=True)
class AlignedPatchTest:
    """The published test: target and draft go from the same noise by the same noises, and ends are compared.

    The target's head draws its own trajectories beside the drafted ones (trajectory alignment). What their
    steps add is alike, so of the densities of all steps but the last nothing is left but their
    deviations: a factor. The last step compares the drafted patch under both last normal laws, each
    `widen` times as wide. A patch stands with the smaller of 1 and the product. Where one is refused,
    patches are drawn from the target's last normal law alone, of which one stands with (1 - q / p)+;
    behind `retries` of them the last one is taken.

    Attributes:
        widen: How much wider the last normal laws are made (inner temperature), above 0. Default 42.
        retries: Patches that are drawn in place of a refused one at most, at least 1. Default 100.
        doubled: The factor as the public code has it: of the other sign, and squared. Default False.
        parallel: All patches of a draft are tested, and all refused ones drawn again at once; those
            behind a refused one stay, though they were drawn behind another. Default: a draft ends with
            its first refused patch, behind which the target's own patches end its set.

    Exact: approximate: both laws are taken at different points, and the last ones are widened.
    Reduces to: the target's own picture, number by number, for a draft that is the target.
    Source: "Continuous speculative decoding for autoregressive image generation" (2024).
    """

    widen: float = 42.0
    retries: int = 100
    doubled: bool = False
    parallel: bool = False
    exactness: ClassVar[Exactness] = Exactness.APPROXIMATE
    still: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not self.widen > 0:
            raise RequestError(f"widen is {self.widen}: it must be above 0")
        if self.retries < 1:
            raise RequestError(f"retries is {self.retries}: it must be at least 1")

    async def settle_patches(
        self,
        head: PatchHead,
        drafted: DraftedPatches,
        state_MH: Tensor,
        behind: PathDraw,
        rng: Rng,
    ) -> SettledPatches:
        """Test patches in order; see `PatchTest.settle_patches`.

        Args:
            head: The target's head.
            drafted: The patches, N of them.
            state_MH: What the target says of each, and of those of the set behind them.
            behind: How these are drawn.
            rng: Random stream of the answer; patch i is tested at ``rng.child_stream("test", i)``.

        Returns:
            The patches of the round.
        """
        # The same beginning and the same noises as the draft had.
        aligned = PathDraw(
            state_MH,
            torch.cat([drafted.paths.points_NSD[:, 0], behind.start_ND]),
            torch.cat([drafted.noise_NTD, behind.noise_NTD]),
        )
        own: DenoisingPaths = await ForwardQuery(head.path_drawer, aligned, len(state_MH))
        stands = list[bool]()
        rows = list[Tensor]()
        for each in drafted.set_ranges:
            whole = True
            for at in each:
                # In the order of the picture: what follows a refused patch is the target's own.
                if not whole and not self.parallel:
                    rows.append(own.value_ND[at : at + 1])
                    continue
                place = drafted.places[at]
                laws = self.last_laws(own, drafted.paths, at)
                here = rng.child_stream("test", place)
                ratio = float(laws.log_ratio(drafted.paths.value_ND[at]))
                stands.append(here.draw_bernoulli(acceptance_chance(ratio)))
                if stands[-1]:
                    rows.append(drafted.paths.value_ND[at : at + 1])
                    continue
                whole = False
                rows.append(self.redraw_patch(laws, rng.child_stream("redraw", place)))
            # Later sets were drawn behind the refused patch; in the parallel mode they stay.
            if not whole and not self.parallel:
                break
        # The target's own next set follows from the draft alone.
        if all(stands):
            rows.append(own.value_ND[len(drafted) :])
        return SettledPatches(tuple(stands), torch.cat(rows))

    def last_laws(self, own: DenoisingPaths, drafted: DenoisingPaths, at: int) -> LastStepLaws:
        """What one patch is tested by.

        Args:
            own: The target's trajectories.
            drafted: The draft's.
            at: Which of them.

        Returns:
            Both last laws, and the factor of the steps before.
        """
        before = own.log_std_NTD[at, :-1].sum() - drafted.log_std_NTD[at, :-1].sum()
        # Each step's density is one over its deviation; the public code adds the variances.
        log_factor = float(2 * before if self.doubled else -before)
        return LastStepLaws(
            own.mean_NTD[at, -1],
            own.log_std_NTD[at, -1],
            drafted.mean_NTD[at, -1],
            drafted.log_std_NTD[at, -1],
            log_factor,
            self.widen,
        )

    def redraw_patch(self, laws: LastStepLaws, rng: Rng) -> Tensor:
        """Draw a patch in place of a refused one.

        Args:
            laws: What it was tested by.
            rng: Random stream of the patch.

        Returns:
            The patch, shape ``[1, D]``.
        """
        D = len(laws.mean_D)
        noise_ND = rng.child_stream("noise").normal_row(self.retries * D).view(-1, D)
        # All tries at once: their laws are known, and no head is asked.
        tried_ND = laws.mean_D + laws.log_std_D.exp() * noise_ND
        chance_N = residual_chance(laws.log_ratio(tried_ND))
        stands_N = torch.tensor(rng.child_stream("stands").uniform_row(self.retries)) < chance_N
        # Where none stands the last one is taken.
        first = int(stands_N.nonzero()[0, 0]) if bool(stands_N.any()) else self.retries - 1
        return tried_ND[first][None]


@dataclass(frozen=True, eq=False)
class LastStepLaws:
    """The last steps of two aligned trajectories to one patch.

    Attributes:
        mean_D: Mean of the target's last step.
        log_std_D: Its log-deviations.
        draft_mean_D: Mean of the draft's.
        draft_log_std_D: Its log-deviations.
        log_factor: What the steps before leave of the ratio of densities.
        widen: How much wider both are made.
    """

    mean_D: Tensor
    log_std_D: Tensor
    draft_mean_D: Tensor
    draft_log_std_D: Tensor
    log_factor: float
    widen: float

    def log_ratio(self, value_ND: Tensor) -> Tensor:
        """Of patches the logarithm of the target's density over the draft's, shape ``[N]`` or ``[]``."""
        wide = torch.tensor(self.widen, dtype=torch.float64).log()
        # In logarithms throughout: densities of many numbers underflow.
        own_N = normal_log_density(value_ND, self.mean_D, self.log_std_D + wide).sum(-1)
        draft_N = normal_log_density(value_ND, self.draft_mean_D, self.draft_log_std_D + wide).sum(
            -1
        )
        return self.log_factor + own_N - draft_N
