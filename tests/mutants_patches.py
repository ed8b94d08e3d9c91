"""Mutants that take out what gives pictures of patches, and their drafts, their names."""

from mutant import Mutant

TESTED = "methods/speculative/loop/patch_tests.py"
TESTS = "tests/methods/speculative/loop/test_patch_tests.py"
DRAWN = "methods/speculative/loop/patch_drawing.py"
DRAWN_TESTS = "tests/methods/speculative/loop/test_patch_drawing.py"
STEPS = "models/nets/denoising.py"
STEPS_TESTS = "tests/models/nets/test_diffusion_head.py"
HEAD = "models/learned/kinds/patch_head.py"
HEAD_TESTS = "tests/models/learned/test_patch_head.py"
TRAINED = "lab/train/patches.py"
TRAINED_TESTS = "tests/lab/train/test_train_patches.py"

MUTANTS = [
    Mutant(
        "continuous-speculative: the target goes by noises of its own",
        TESTED,
        "            torch.cat([drafted.noise_NTD, behind.noise_NTD]),",
        "            torch.cat([drafted.noise_NTD.flip(0), behind.noise_NTD]),",
        f"{TESTS}::test_the_target_goes_from_the_draft_s_beginning_by_its_noises",
    ),
    Mutant(
        "continuous-speculative: the deviations of earlier steps count for nothing",
        TESTED,
        "        log_factor = float(2 * before if self.doubled else -before)",
        "        log_factor = 0.0 * float(before)",
        f"{TESTS}::test_of_aligned_steps_the_deviations_are_left",
    ),
    Mutant(
        "continuous-speculative: the factor of the public code is not to be had",
        TESTED,
        "float(2 * before if self.doubled else -before)",
        "float(-before)",
        f"{TESTS}::test_of_aligned_steps_the_deviations_are_left",
    ),
    Mutant(
        "continuous-speculative: the last laws are not widened",
        TESTED,
        "wide = torch.tensor(self.widen, dtype=torch.float64).log()",
        "wide = torch.zeros((), dtype=torch.float64)",
        f"{TESTS}::test_the_ends_are_compared_under_wider_laws_and_with_the_factor",
    ),
    Mutant(
        "continuous-speculative: a refused patch is drawn from the target's last law, not from what is left of it",
        TESTED,
        "        chance_N = residual_chance(laws.log_ratio(tried_ND))",
        "        chance_N = torch.ones(self.retries)",
        f"{TESTS}::test_a_refused_patch_is_drawn_again_from_the_last_law_alone",
    ),
    Mutant(
        "continuous-speculative: the target draws no patches alone",
        DRAWN,
        "if self.drafter is None or place < self.drafter.alone:",
        "if self.drafter is None:",
        f"{DRAWN_TESTS}::test_the_target_draws_the_first_patches_alone",
    ),
    Mutant(
        "continuous-speculative: patches behind a refused one stand",
        TESTED,
        "            if not self.parallel:\n                break",
        "            if not self.parallel:\n                pass",
        f"{TESTS}::test_what_stands_ends_before_the_first_refused_patch",
    ),
    Mutant(
        "continuous-speculative: drafts end with their first refused patch in the parallel mode, too",
        TESTED,
        "            if not self.parallel:",
        "            if True:",
        f"{TESTS}::test_all_refused_patches_are_drawn_again_at_once",
    ),
    Mutant(
        "continuous-speculative-exact: a refused trajectory is drawn from the target, not from what is left of it",
        TESTED,
        "            chance_N = residual_chance(tried.log_density() - under.log_density())",
        "            chance_N = torch.ones(N)",
        f"{TESTS}::test_the_exact_mode_leaves_a_normal_law_as_it_is",
    ),
    Mutant(
        "continuous-speculative-exact: only the ends of trajectories are compared",
        STEPS,
        "        return steps_NTD.sum((1, 2))",
        "        return steps_NTD[:, -1].sum(-1)",
        f"{TESTS}::test_the_exact_mode_leaves_roads_of_two_steps_as_they_are",
    ),
    Mutant(
        "continuous-speculative-exact: the last step adds no noise",
        TESTED,
        "    still: ClassVar[bool] = False",
        "    still: ClassVar[bool] = True",
        f"{DRAWN_TESTS}::test_a_draft_that_is_the_target_gives_its_pictures",
    ),
    Mutant(
        "continuous-speculative-exact: drafts are tested by the draft's own density",
        TESTED,
        "        log_ratio_N = scored.log_density() - drafted.paths.log_density()",
        "        log_ratio_N = drafted.paths.log_density() - drafted.paths.log_density()",
        f"{TESTS}::test_the_exact_mode_leaves_a_normal_law_as_it_is",
    ),
    Mutant(
        "mar: patches are drawn behind the prompt alone",
        DRAWN,
        "        self.session.commit_tokens((self.root, *tokens[:-1]))\n        self.root = tokens[-1]",
        "        assert tokens",
        f"{DRAWN_TESTS}::test_each_patch_follows_from_those_before",
    ),
    Mutant(
        "mar: the last step always adds its noise",
        DRAWN,
        "            return not self.noise",
        "            return False",
        f"{DRAWN_TESTS}::test_each_patch_follows_from_those_before",
    ),
    Mutant(
        "mar: variances of steps are not learned",
        STEPS,
        "log_variance_ND = low_N1 + between_ND.sigmoid() * (high_N1 - low_N1)",
        "log_variance_ND = low_N1 + 0 * between_ND",
        f"{STEPS_TESTS}::test_a_step_is_a_mean_of_guess_and_noise_with_a_variance_between_bounds",
    ),
    Mutant(
        "mar: the head is not told the state",
        STEPS,
        "told_NU = silu(self.see(state_NH) + self.step(at_N))",
        "told_NU = silu(self.step(at_N))",
        f"{STEPS_TESTS}::test_state_step_and_noise_are_all_seen",
    ),
    Mutant(
        "patch head: any model of its width will do",
        HEAD,
        "        if float((have_H - self.mark_H).norm()) > SAME * float(self.mark_H.norm()):",
        "        if float((have_H - self.mark_H).norm()) < 0:",
        f"{HEAD_TESTS}::test_a_head_knows_its_model",
    ),
    Mutant(
        "pictures of patches: a text is drawn in rows",
        "models/text/picture_view.py",
        "                grid[self.token_places[at]] = self.tiles[token]",
        "                grid[at] = self.tiles[token]",
        f"{TRAINED_TESTS}::test_a_text_holds_one_patch_behind_the_other",
    ),
    Mutant(
        "pictures of patches: methods of tokens decode them",
        "request/families.py",
        "    if PATCHES not in checked.card.needs:",
        "    if not checked.card:",
        f"{TRAINED_TESTS}::test_what_needs_laws_of_tokens_is_refused",
    ),
    Mutant(
        "train patches: the last step is learned as the others",
        TRAINED,
        "    steps_MD = torch.where((step_M == 1)[:, None], said_MD, apart_MD)",
        "    steps_MD = apart_MD + 0 * said_MD",
        f"{TRAINED_TESTS}::test_the_loss_is_the_bound_of_a_law_that_is_known",
    ),
]
