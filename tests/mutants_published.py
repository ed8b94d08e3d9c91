"""Mutants that take one mechanism out of a published system, put in when the systems were read against their papers."""

from mutant import Mutant

FUSED_TESTS = "tests/methods/search/test_fused_beam.py"
TRANSFER = "methods/search/loop/transfer.py"
TRANSFER_TESTS = "tests/methods/search/test_transfer.py"

MUTANTS = [
    Mutant(
        "gfd: the search goes on however long a text gets",
        "methods/search/loop/fused_beam.py",
        "return max(going) - min(ended) > self.apart",
        "return False",
        f"{FUSED_TESTS}::test_the_penalty_and_the_stop_of_the_paper",
    ),
    Mutant(
        "bytes: no token is left out of the canonical law",
        "laws/targets/byte_covers.py",
        "return self.width > 0 or self.spelling.is_canonical((*tip.tail, token))",
        "return True",
        "tests/laws/targets/test_by_bytes.py::test_width_0_is_the_canonical_law",
    ),
    Mutant(
        "freedave++: a guess must be the whole canvas",
        "methods/diffusion/loop/free_drafts.py",
        "return self.subset and _is_part_of(guess.canvas, after.canvas)",
        "return False",
        "tests/methods/diffusion/test_denoising.py::test_subset_acceptance_against_a_reference",
    ),
    Mutant(
        "transfer q*: the baseline's reward does not count",
        TRANSFER,
        "    if not indirect:\n",
        "    if True:\n",
        f"{TRANSFER_TESTS}::test_a_baseline_of_another_reward_is_weighed_by_the_difference",
    ),
    Mutant(
        "transfer q*: the reward does not read the prompt",
        TRANSFER,
        "if not self.prompted or words is None:",
        "if True:",
        f"{TRANSFER_TESTS}::test_the_reward_may_read_the_prompt",
    ),
    Mutant(
        "grafts: sixteen tokens are fed behind every edit",
        "models/sessions/reuse.py",
        "CacheGraft(at + self.again, kept.cache, first + self.again, stop)",
        "CacheGraft(at + 16, kept.cache, first + 16, stop)",
        "tests/request/test_reuse.py::test_the_published_rule_feeds_nothing_behind_the_edit",
    ),
    Mutant(
        "thinking: nothing is pushed before the budget is spent",
        "laws/constraints/after_thinking.py",
        "if late <= 0.0 or self._forced_at(state) is not None:",
        "if True:",
        "tests/serve/test_reasoning.py::test_a_soft_end_pushes_the_mark_before_the_budget_is_spent",
    ),
    Mutant(
        "cyclicreflex: a mark of several tokens ends nothing",
        "laws/shapers/cyclic_reflex.py",
        "if self.mark in text:",
        "if False:",
        "tests/laws/shapers/test_steering_rules.py::test_the_thinking_ends_where_its_mark_is_spelled",
    ),
    Mutant(
        "gaps: a text repeats what stands behind its gap",
        "request/gap_decoder.py",
        "            written = written[: repetition_start(written, parts[gap + 1], self.repeated)]\n",
        "",
        "tests/request/test_gap_decoder.py::test_a_gap_ends_where_it_repeats_what_stands_behind_it",
    ),
    Mutant(
        "decodingtrust: answers that are kept are asked for again",
        "lab/bench/trust/measure.py",
        "if kept.find_answers(lm.name, method.label, digest) is None",
        "if True",
        "tests/lab/bench/test_trust.py::test_answers_that_are_kept_are_judged_again_without_the_model",
    ),
    Mutant(
        "lexinvariant: no row is learned in the partial form",
        "lab/train/word_kinds/lexinvariant.py",
        "keep_BV1 = torch.rand(keep_BV1.shape, generator=generator) < self.kept",
        "pass",
        "tests/lab/train/test_train_words.py::test_the_partial_form_learns_a_share_of_the_rows_of_each_text",
    ),
    Mutant(
        "multi-prompting: what is averaged is transported",
        "request/prototypes.py",
        "        if self.averaged:",
        "        if False:",
        "tests/request/test_classifier.py::test_averaging_takes_the_mean_in_place_of_transport",
    ),
    Mutant(
        "hadamard: nothing is mixed",
        "methods/presses/_hadamard.py",
        "run = size & -size  # the largest power of two that divides it",
        "run = 1",
        "tests/methods/presses/test_press.py::test_values_with_a_dimension_that_stands_out_are_nearer_when_mixed",
    ),
    Mutant(
        "kvzip: the mean over the rows of a repeat",
        "methods/presses/_selected_entries.py",
        "return weights[..., :size].amax((0, 2))",
        "return weights[..., :size].mean((0, 2))",
        "tests/methods/presses/test_press.py::test_many_rows_of_a_repeat_that_need_a_little_do_not_outweigh_one",
    ),
    Mutant(
        "tokenunify: stages are drawn",
        "lab/train/objectives/token_unify.py",
        "        if self.staged:",
        "        if False:",
        "tests/lab/train/test_train_objectives.py::test_stages_follow_one_another_for_their_shares",
    ),
]
