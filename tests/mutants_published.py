"""Mutants that take one mechanism out of a published system, put in when the systems were read against their papers."""

from mutant import Mutant

FUSED_TESTS = "tests/methods/search/test_fused_beam.py"
TRANSFER = "methods/search/loop/transfer.py"
TRANSFER_TESTS = "tests/methods/search/test_transfer.py"
WORD_BEAM = "methods/search/loop/word_beam.py"
WORD_BEAM_TESTS = "tests/methods/search/test_word_beam.py"
RENAMED_TESTS = "tests/laws/targets/test_renamed.py"
DECIPHERING_TESTS = "tests/lab/bench/test_deciphering.py"
BATCH_TESTS = "tests/lab/train/test_seq2seq_batches.py"
TEACHER_TESTS = "tests/lab/train/test_seq2seq_teacher.py"
FORETOLD_TESTS = "tests/methods/diffusion/test_foretold.py"
MASKED_WORDS = "lab/train/word_kinds/masked_words.py"
MASKED_WORDS_TESTS = "tests/lab/train/test_masked_words.py"
CLASSES_TESTS = "tests/lab/bench/test_state_classification.py"

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
    Mutant(
        "word beam: that a word ends counts nothing",
        WORD_BEAM,
        "                over = float(scores.logprob_row(row)[self._starts_V].logsumexp(0))",
        "                pass",
        f"{WORD_BEAM_TESTS}::test_each_word_is_the_likeliest_of_all",
    ),
    Mutant(
        "word beam: one beginning is followed, whatever is asked",
        WORD_BEAM,
        "if len(grown) == plan.beams or",
        "if len(grown) == 1 or",
        f"{WORD_BEAM_TESTS}::test_each_word_is_the_likeliest_of_all",
    ),
    Mutant(
        "word beam: a word may go on behind what begins the next",
        WORD_BEAM,
        "            open_V = ~self._starts_V\n",
        "",
        f"{WORD_BEAM_TESTS}::test_each_word_is_the_likeliest_of_all",
    ),
    Mutant(
        "lexinvariant: every request has one table",
        "request/steering.py",
        "        seed=encoded.ask.seed,\n",
        "",
        f"{RENAMED_TESTS}::test_a_seed_is_a_table_and_no_table_changes_nothing",
    ),
    Mutant(
        "lexinvariant: the last table alone counts",
        "laws/targets/renamed.py",
        "MixtureContrast(1 / (number + 1))",
        "MixtureContrast(1.0)",
        f"{RENAMED_TESTS}::test_several_tables_have_the_mean_of_their_laws",
    ),
    Mutant(
        "renamed: laws are read under the model's own names",
        "laws/targets/renamed.py",
        "return self._inner.logprob_row(i)[self._renaming.index_V]",
        "return self._inner.logprob_row(i)",
        f"{RENAMED_TESTS}::test_every_way_to_read_a_row_has_the_tokens_own_names",
    ),
    Mutant(
        "renamed: weights have the model's own names",
        "laws/targets/renamed.py",
        "return self._inner.log_weights(i)[self._renaming.index_V]",
        "return self._inner.log_weights(i)",
        f"{RENAMED_TESTS}::test_a_text_is_as_likely_as_its_names",
    ),
    Mutant(
        "deciphering: each name is read by itself, whatever the others are",
        "lab/bench/deciphering.py",
        "columns = likeliest_matching(score_RC.numpy())",
        "columns = score_RC.argmax(1).tolist()",
        f"{DECIPHERING_TESTS}::test_no_two_names_stand_for_one_symbol",
    ),
    Mutant(
        "deciphering: counts alone are read",
        "lab/bench/deciphering.py",
        "    read = read_names(reader, name_T, chance_TC)",
        "    read = read_names(reader, name_T, reader.share_C.log().expand(len(name_T), -1))",
        f"{DECIPHERING_TESTS}::test_a_model_that_shows_use_is_read_better_than_counts",
    ),
    Mutant(
        "batch search: it stops where it first fits",
        "lab/train/batch_search.py",
        "            good = rows\n",
        "            return rows\n",
        f"{BATCH_TESTS}::test_a_search_ends_close_below_the_limit",
    ),
    Mutant(
        "batch search: what a pass keeps is not counted",
        "lab/train/batch_search.py",
        "            self.count += storage.nbytes()",
        "            pass",
        f"{BATCH_TESTS}::test_bytes_are_those_that_gradients_need",
    ),
    Mutant(
        "seq2seq: searched batch sizes are not taken",
        "lab/train/seq2seq.py",
        "        steps = replace(steps, rows=rows)\n",
        "        rows = (1,) * len(rows)\n",
        f"{BATCH_TESTS}::test_the_command_searches_and_says_what_it_found",
    ),
    Mutant(
        "seq2seq: one median for all lengths",
        "lab/train/pairs.py",
        "    for part in _even(range(len(lengths)), [s for s, _ in lengths], first):\n        # Short",
        "    for part in [list(range(len(lengths)))]:\n        # Short",
        f"{BATCH_TESTS}::test_targets_that_are_too_long_for_their_sources_are_left_out",
    ),
    Mutant(
        "on-policy distillation: the data's texts are taught, not the model's own",
        "lab/train/seq2seq.py",
        "        own = list(zip(asked, drawn, strict=True))",
        "        own = chosen",
        f"{TEACHER_TESTS}::test_both_laws_are_of_the_texts_that_were_drawn",
    ),
    Mutant(
        "on-policy distillation: the teacher is read one token late",
        "lab/train/source_teacher.py",
        "state_BTH[i, len(a) - 1 : len(a) - 1 + len(target)]",
        "state_BTH[i, len(a) : len(a) + len(target)]",
        f"{TEACHER_TESTS}::test_the_teacher_foretells_each_token_behind_the_right_question",
    ),
    Mutant(
        "on-policy distillation: the student's law is the first one",
        "lab/train/source_teacher.py",
        'return kl_div(logp, teacher_NV, reduction="batchmean", log_target=True)',
        'return kl_div(teacher_NV, logp, reduction="batchmean", log_target=True)',
        f"{TEACHER_TESTS}::test_the_loss_is_a_divergence_from_the_teacher",
    ),
    Mutant(
        "classification by states: no entry takes a step",
        "lab/bench/state_classification.py",
        "    reader = StateReader(network, how)",
        "    reader = StateReader(network, StateSteps(0.0, how.segment))",
        f"{CLASSES_TESTS}::test_steps_change_what_classes_are_read_behind_and_questions_change_nothing",
    ),
    Mutant(
        "rum-sundae: a text may end before the length that was foretold",
        "methods/diffusion/loop/foretold.py",
        "out_RV = logw_RV.masked_fill(end_V[None] != behind_R[:, None], NEG_INF)",
        "out_RV = logw_RV.masked_fill(~end_V[None] & behind_R[:, None], NEG_INF)",
        f"{FORETOLD_TESTS}::test_laws_of_a_known_length_end_there_and_nowhere_else",
    ),
    Mutant(
        "rum-sundae: the first length alone is tried",
        "methods/diffusion/loop/refining.py",
        "return how.foretelling.likeliest_lengths(state_H, how.lengths, len(rows))",
        "return how.foretelling.likeliest_lengths(state_H, how.lengths, len(rows))[:1]",
        f"{FORETOLD_TESTS}::test_each_length_has_as_many_starts",
    ),
    Mutant(
        "length head: the last state of the prompt is read",
        "methods/diffusion/loop/foretold.py",
        "return state_TH[0]",
        "return state_TH[-1]",
        f"{FORETOLD_TESTS}::test_the_first_state_is_that_of_the_prompt_and_one_gap",
    ),
    Mutant(
        "masked words: a word sees what stands before it alone",
        MASKED_WORDS,
        "x_BWH = layer(x_BWH, cos_WD, sin_WD, there_BW[:, None, None])",
        "x_BWH = layer(x_BWH, cos_WD, sin_WD)",
        f"{MASKED_WORDS_TESTS}::test_a_hidden_word_is_told_by_both_sides_and_not_by_itself",
    ),
    Mutant(
        "masked words: hidden words are shown",
        MASKED_WORDS,
        "x_BWH = torch.where(hidden_BW[..., None], self.start, x_BWH)",
        "pass",
        f"{MASKED_WORDS_TESTS}::test_a_hidden_word_is_told_by_both_sides_and_not_by_itself",
    ),
]
