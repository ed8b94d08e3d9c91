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
SETS = "methods/speculative/loop/patch_sets.py"
SETS_TESTS = "tests/methods/speculative/loop/test_patch_sets.py"
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
        "return 0 if done < self.alone else min(self.depth, left - 1)",
        "return min(self.depth, left - 1)",
        f"{DRAWN_TESTS}::test_the_target_draws_the_first_patches_alone",
    ),
    Mutant(
        "continuous-speculative: patches behind a refused one stand",
        TESTED,
        "            if not whole and not self.parallel:\n                break",
        "            if not whole and not self.parallel:\n                pass",
        f"{TESTS}::test_what_stands_ends_before_the_first_refused_patch",
    ),
    Mutant(
        "continuous-speculative: drafts end with their first refused patch in the parallel mode, too",
        TESTED,
        "            if not whole and not self.parallel:\n                break",
        "            if not whole:\n                break",
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
        "            session.commit_tokens((root, *tokens[:-1]))\n        self.roots = (tokens[-1],) * len(self.sessions)",
        "            assert tokens and root",
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
    Mutant(
        "continuous-speculative: drafted patches behind a refused one end its set",
        TESTED,
        "                    rows.append(own.value_ND[at : at + 1])",
        "                    rows.append(drafted.paths.value_ND[at : at + 1])",
        f"{TESTS}::test_a_set_is_whole_and_later_ones_fall_with_it",
    ),
    Mutant(
        "continuous-speculative-exact: sets behind a refused patch stand",
        TESTED,
        "            if not all(stands[each.start :]):\n                return",
        "            if not any(stands[each.start :]):\n                return",
        f"{TESTS}::test_a_set_is_whole_and_later_ones_fall_with_it",
    ),
    Mutant(
        "guidance: a step is not moved",
        STEPS,
        "        return mean_ND + strength_N1 * (mean_ND - untold_ND), log_std_ND",
        "        return mean_ND + 0 * untold_ND, log_std_ND",
        f"{TESTS}::test_the_exact_mode_leaves_a_normal_law_as_it_is",
    ),
    Mutant(
        "guidance: trajectories are scored by steps that are not guided",
        HEAD,
        "score_paths(self.head.step_law, *whole)",
        "score_paths(self.head.network, whole[0][:, : self.head.shape.width], whole[1])",
        f"{TESTS}::test_the_exact_mode_leaves_a_normal_law_as_it_is",
    ),
    Mutant(
        "guidance: the second session reads the class as well",
        DRAWN,
        "dropped = (head.vocab.size - 1,) * len(prompt)",
        "dropped = tuple(prompt)",
        f"{DRAWN_TESTS}::test_each_patch_follows_from_those_before",
    ),
    Mutant(
        "guidance of sets: it does not grow",
        SETS,
        "        if not self.growing:",
        "        if True:",
        f"{SETS_TESTS}::test_each_set_follows_from_those_before",
    ),
    Mutant(
        "masked-mar: sets are drawn in rows",
        SETS,
        "sets.append(order[done : count - left])",
        "sets.append(tuple(sorted(order))[done : count - left])",
        f"{SETS_TESTS}::test_sets_hold_each_patch_once_in_an_order_of_the_answer",
    ),
    Mutant(
        "masked-mar: every set is drawn on an empty canvas",
        SETS,
        "                    board.write_patches(places, made.value_KD)",
        "                    assert board",
        f"{SETS_TESTS}::test_each_set_follows_from_those_before",
    ),
    Mutant(
        "masked-continuous-speculative: the target reads the canvas before the draft alone",
        SETS,
        "canvases.append(board.with_patches(canvases[-1], places, value_MD))",
        "canvases.append(board.canvas)",
        f"{SETS_TESTS}::test_a_draft_that_is_the_target_gives_its_pictures",
    ),
    Mutant(
        "masked-continuous-speculative: the target draws no sets alone",
        DRAWN,
        "return 0 if done < self.alone else min(self.depth, left - 1)",
        "return min(self.depth, left - 1)",
        f"{SETS_TESTS}::test_the_target_draws_the_first_sets_alone_and_drafts_are_as_deep_as_asked",
    ),
    Mutant(
        "masked-continuous-speculative: draft and target go by noises of their own",
        SETS,
        "            start_MD, noise_MTD = self.set_noise(rng, sets[at])",
        '            start_MD, noise_MTD = self.set_noise(rng.child_stream("own"), sets[at])',
        f"{SETS_TESTS}::test_a_draft_that_is_the_target_gives_its_pictures",
    ),
    Mutant(
        "train patches --masked: gaps are told what stands there",
        TRAINED,
        "torch.where(gap_BL[..., None], gap_H, self.head.embed(value_BLD))",
        "self.head.embed(value_BLD) + 0 * gap_H",
        f"{TRAINED_TESTS}::test_the_network_that_serves_says_the_states_that_were_trained",
    ),
    Mutant(
        "train patches --masked: patches see only those before them",
        TRAINED,
        "            make_bidirectional(self.model)",
        "            assert self.model",
        f"{TRAINED_TESTS}::test_the_network_that_serves_says_the_states_that_were_trained",
    ),
    Mutant(
        "train patches --masked: shares of masked patches are uniform",
        TRAINED,
        "torch.special.ndtri(0.5 + spread_B * reach) / FAR_BELOW",
        "spread_B + 0 * reach",
        f"{TRAINED_TESTS}::test_shares_of_masked_patches_follow_the_published_law",
    ),
    Mutant(
        "masked models of patches: vectors are not fed",
        "models/sessions/denoiser.py",
        "tokens = tuple(x if s is None else -1 for x, s in zip(known, states, strict=True))",
        "tokens, vectors = tuple(model.mask if s is not None else x for x, s in zip(known, states)), []",
        f"{TRAINED_TESTS}::test_the_network_that_serves_says_the_states_that_were_trained",
    ),
    Mutant(
        "recap-patches: every pass feeds all",
        SETS,
        "        if planned is None:\n            return range(len(board.canvas))",
        "        if planned is None or True:\n            return range(len(board.canvas))",
        f"{SETS_TESTS}::test_partial_passes_feed_what_was_planned_alone",
    ),
    Mutant(
        "recap-patches: passes behind a whole one feed their own set alone",
        SETS,
        "        return slice(first, first + 1 + self.partial)",
        "        return slice(done, done + 1)",
        f"{SETS_TESTS}::test_groups_begin_with_a_pass_that_feeds_all",
    ),
    Mutant(
        "recap-patches: what is not fed is not seen",
        "models/sessions/denoiser.py",
        "        self.cache.claim_slots(fed[0])\n        known",
        "        self.cache.truncate_entries(0)\n        self._stage(len(fed), range(len(fed)))\n        known",
        f"{SETS_TESTS}::test_of_one_layer_a_partial_pass_says_what_a_whole_one_does",
    ),
]
