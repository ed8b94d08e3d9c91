"""Mutants that take out what gives the methods of pictures their names."""

from mutant import Mutant

JACOBI = "methods/speculative/drafters/speculative_jacobi.py"
JACOBI_TESTS = "tests/methods/speculative/drafters/test_speculative_jacobi.py"
ANNEALED = "methods/diffusion/unmaskers/annealed.py"
ANNEALED_TESTS = "tests/methods/diffusion/test_annealed.py"
GROUPED = "methods/diffusion/unmaskers/grouped.py"
GROUPED_TESTS = "tests/methods/diffusion/test_grouped_passes.py"
TRAINED = "lab/train/pictures.py"
TRAINED_TESTS = "tests/lab/train/test_train_pictures.py"
ANSWERS_TESTS = "tests/request/test_picture_answers.py"

MUTANTS = [
    Mutant(
        "speculative-jacobi: a token is drawn from one row and tested against another",
        JACOBI,
        "                laws.append(law)\n            else:",
        "                laws.append(self.laws[-1])\n            else:",
        f"{JACOBI_TESTS}::test_the_law_is_the_target_s",
    ),
    Mutant(
        "speculative-jacobi: no rows are kept, so nothing is drawn",
        JACOBI,
        "        for node in range(done + 1, len(draft)):",
        "        for node in range(len(draft), len(draft)):",
        f"{JACOBI_TESTS}::test_open_places_keep_the_rows_of_the_last_pass",
    ),
    Mutant(
        "speculative-jacobi: rows are kept without the rules of sampling",
        JACOBI,
        "            self.laws.append(scores.logprob_row(node) if only is None else only)",
        "            self.laws.append(scores.base.logprob_row(node) if only is None else only)",
        f"{JACOBI_TESTS}::test_open_places_keep_the_rows_of_the_last_pass",
    ),
    Mutant(
        "speculative-jacobi: the row that decided a place is kept for the next one",
        JACOBI,
        "        for node in range(done + 1, len(draft)):",
        "        for node in range(done, len(draft)):",
        f"{JACOBI_TESTS}::test_open_places_keep_the_rows_of_the_last_pass",
    ),
    Mutant(
        "speculative-jacobi: new places always copy the last token",
        JACOBI,
        "text[max(0, len(text) - max(1, self.config.back))]",
        "text[-1]",
        f"{JACOBI_TESTS}::test_places_that_no_pass_has_seen_copy",
    ),
    Mutant(
        "maskgit: the noise never fades",
        ANNEALED,
        "return self.noise * max(0.0, 1 - (step + 1) / self.steps)",
        "return self.noise",
        f"{ANNEALED_TESTS}::test_the_noise_fades_to_nothing",
    ),
    Mutant(
        "maskgit: noise is added to probabilities",
        ANNEALED,
        "    weight_R = torch.softmax(logp_R.double() / noise, -1)",
        "    weight_R = torch.softmax(logp_R.double().exp() / noise, -1)",
        f"{ANNEALED_TESTS}::test_noise_draws_by_the_tempered_law",
    ),
    Mutant(
        "maskgit: gaps are spread evenly over the passes",
        ANNEALED,
        "    return math.cos(math.pi * done / 2)",
        "    return 1 - done",
        f"{ANNEALED_TESTS}::test_a_cosine_fills_few_at_first_and_many_at_last",
    ),
    Mutant(
        "recap: partial passes feed all",
        GROUPED,
        "        return sorted(state.planned)",
        "        return None",
        f"{GROUPED_TESTS}::test_partial_passes_feed_their_group_alone",
    ),
    Mutant(
        "recap: no passes before the groups",
        GROUPED,
        "        if state.step < self.before:",
        "        if state.step < 0:",
        f"{GROUPED_TESTS}::test_groups_fill_what_the_schedule_fills",
    ),
    Mutant(
        "recap: a group is written in raster order",
        GROUPED,
        "            planned = tuple(look.rows[i] for i in order)",
        "            planned = tuple(sorted(look.rows[i] for i in order))",
        f"{GROUPED_TESTS}::test_a_group_is_written_in_the_order_of_its_scores",
    ),
    Mutant(
        "pictures: the class is masked in training",
        TRAINED,
        "    seen_BT = torch.cat([row_BT[:, :1], row_BT[:, 1:].masked_fill(hidden_BL, mask)], 1)",
        "    seen_BT = torch.cat([0 * row_BT[:, :1] + mask, row_BT[:, 1:].masked_fill(hidden_BL, mask)], 1)",
        f"{TRAINED_TESTS}::test_the_class_is_never_masked_and_shares_follow_the_cosine",
    ),
    Mutant(
        "pictures: an archive is unpacked before its size is looked at",
        "lab/train/picture_data.py",
        "    if math.prod(shape) * dtype.itemsize > MOST_VALUES:",
        "    if False:",
        f"{TRAINED_TESTS}::test_an_array_is_bounded_before_it_is_unpacked",
    ),
    Mutant(
        "pictures: guidance reads the prompt's own class",
        "request/ask.py",
        "    return replace(ask, negative_prompt=view.dropped)",
        "    return replace(ask, negative_prompt=ask.prompt)",
        f"{ANSWERS_TESTS}::test_guidance_reads_the_prompt_without_a_class",
    ),
    Mutant(
        "pictures: an answer has the usual length of a text",
        "request/room.py",
        "        return view.token_count",
        "        return min(LENGTH, most)",
        f"{ANSWERS_TESTS}::test_an_answer_is_as_long_as_a_picture",
    ),
]
