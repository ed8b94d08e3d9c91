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
UPSAMPLED = "methods/speculative/drafters/upsampled.py"
UPSAMPLED_TESTS = "tests/methods/speculative/drafters/test_upsampled.py"
NEIGHBOURS = "methods/speculative/verifiers/neighbourhood.py"
NEIGHBOURS_TESTS = "tests/methods/speculative/verifiers/test_neighbourhood.py"
LOCAL = "methods/speculative/loop/local_resampling.py"
LOCAL_TESTS = "tests/methods/speculative/loop/test_local_resampling.py"

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
        "text[max(0, len(text) - max(1, back))]",
        "text[-1]",
        f"{JACOBI_TESTS}::test_places_that_no_pass_has_seen_copy",
    ),
    Mutant(
        "maskgit: the noise never fades",
        ANNEALED,
        "return self.noise * self.share_left(step)",
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
        "speculative-jacobi: a new place copies although it should draw",
        JACOBI,
        "            if row_V is not None:",
        "            if False:",
        f"{JACOBI_TESTS}::test_a_new_place_draws_from_the_row_of_its_neighbour",
    ),
    Mutant(
        "speculative-jacobi: a picture inside of a text has no end",
        JACOBI,
        "                return token == self.begin",
        "                return True",
        f"{JACOBI_TESTS}::test_tokens_are_drawn_ahead_in_pictures_of_a_text_alone",
    ),
    Mutant(
        "maskgit: draws stay as warm as they were",
        ANNEALED,
        "return self.coolest + (1 - self.coolest) * (1 - math.sqrt(done))",
        "return 1.0",
        f"{ANNEALED_TESTS}::test_a_pass_draws_at_its_temperature",
    ),
    Mutant(
        "recap: draws stay as warm as they were",
        GROUPED,
        "draw_block_tokens(cooled, rng)",
        "draw_block_tokens(look, rng)",
        f"{GROUPED_TESTS}::test_a_group_draws_at_the_temperature_of_each_pass",
    ),
    Mutant(
        "recap: the prompt is never fed anew",
        GROUPED,
        "beside = tuple(range(look.begin)) if self.prompt_fed else ()",
        "beside = ()",
        f"{GROUPED_TESTS}::test_partial_passes_feed_the_prompt_where_that_is_asked_for",
    ),
    Mutant(
        "recap: partial passes feed all",
        GROUPED,
        "        return sorted((*state.beside, *state.planned))",
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
    Mutant(
        "mulo-sd: behind a refused token another row of the small picture is drawn",
        UPSAMPLED,
        "        if self.row is None:\n",
        "        if True:\n",
        f"{UPSAMPLED_TESTS}::test_behind_a_refused_token_the_same_row_drafts_the_rest_of_its_block",
    ),
    Mutant(
        "mulo-sd: the draft model goes on behind its own rows",
        UPSAMPLED,
        "            row = upsampler.shrink_block(",
        "            row = self.row or upsampler.shrink_block(",
        f"{UPSAMPLED_TESTS}::test_the_draft_model_goes_on_behind_what_was_written",
    ),
    Mutant(
        "mulo-sd: drafted laws are not shaped by the rules of sampling",
        UPSAMPLED,
        "            scores = self.target.bend_scores(line, rows)",
        "            scores = rows",
        f"{UPSAMPLED_TESTS}::test_drafts_follow_the_rules_of_sampling",
    ),
    Mutant(
        "mulo-sd: rows of the small picture see what stands below them",
        "models/nets/upsampling.py",
        "pad(x_BUHW, (1, 1, 2, 0))",
        "pad(x_BUHW, (1, 1, 1, 1))",
        "tests/models/nets/test_upsampling.py::test_a_row_never_sees_what_stands_below_it",
    ),
    Mutant(
        "mulo-sd: pixels are made larger out of sight of the row above",
        "models/learned/kinds/upsampler.py",
        "rows[-2:]",
        "rows[-1:]",
        "tests/models/learned/test_upsampler.py::test_pixels_are_lifted_in_sight_of_the_row_above",
    ),
    Mutant(
        "mulo-sd: neighbours do not speak for a token",
        NEIGHBOURS,
        "logp_V[near].exp()",
        "logp_V[near[:1]].exp()",
        f"{NEIGHBOURS_TESTS}::test_neighbours_speak_for_a_token",
    ),
    Mutant(
        "mulo-sd: neighbours speak for a token that a constraint rules out",
        NEIGHBOURS,
        "        if self.legal and float",
        "        if False and float",
        f"{NEIGHBOURS_TESTS}::test_where_texts_are_constrained_a_token_needs_a_probability_of_its_own",
    ),
    Mutant(
        "mulo-sd: all behind the first refused token is drawn anew",
        LOCAL,
        "        left = {at for at in range(count) if near(at, refused, self.radius)}",
        "        left = {at for at in range(count) if at >= min(refused, default=count)}",
        f"{LOCAL_TESTS}::test_islands_are_those_of_a_flood",
    ),
    Mutant(
        "mulo-sd: only refused tokens are drawn anew, whatever the radius",
        LOCAL,
        "near(at, refused, self.radius)",
        "near(at, refused, 0)",
        f"{LOCAL_TESTS}::test_islands_are_those_of_a_flood",
    ),
    Mutant(
        "mulo-sd: an island is drawn from the laws of the first pass",
        LOCAL,
        "            if step:\n",
        "            if False:\n",
        f"{LOCAL_TESTS}::test_every_token_is_drawn_behind_the_block_as_it_stands",
    ),
    Mutant(
        "mulo-sd: islands wait for one another",
        LOCAL,
        "            now = [island[step] for island in islands if step < len(island)]",
        "            now = [island[step] for island in islands[:1] if step < len(island)]",
        f"{LOCAL_TESTS}::test_every_token_is_drawn_behind_the_block_as_it_stands",
    ),
    Mutant(
        "mulo-sd: tokens stand behind changed ones under a constraint",
        LOCAL,
        "    if local and not test.legal:",
        "    if local:",
        f"{LOCAL_TESTS}::test_under_a_constraint_no_token_stands_behind_one_that_is_changed",
    ),
    Mutant(
        "mulo-sd: small pictures are made of pixels, not of what tokens draw",
        TRAINED,
        "        parts.append(shrink_pixels(drawn, ratio, height, width))",
        "        parts.append(shrink_pixels(given.pixels[begin : begin + 1024], ratio, height, width))",
        "tests/lab/train/test_train_scales.py::test_small_pictures_are_what_large_ones_are_averaged_down_to",
    ),
    Mutant(
        "enat: gaps enter the encoder",
        "models/sessions/enat.py",
        "EnatQuery(old_OW, tuple(x for _, x in tokens), new_places, gaps, canvas[0])",
        "EnatQuery(old_OW, (*(x for _, x in tokens), *(self._model.mask for _ in gaps)), "
        "(*new_places, *gaps), (), canvas[0])",
        "tests/models/sessions/test_enat_canvases.py::test_each_token_is_encoded_once",
    ),
    Mutant(
        "enat: tokens of earlier passes are encoded again",
        "methods/diffusion/refreshes/written_once.py",
        "if x is None or known.get(p) != x]",
        "if True]",
        "tests/models/sessions/test_enat_canvases.py::test_each_token_is_encoded_once",
    ),
    Mutant(
        "enat: later passes are shown what was encoded, without the map",
        "models/nets/enat.py",
        "        return state_BNW + self.old_back(gelu(self.old_into(self.old_norm(state_BNW))))",
        "        return state_BNW",
        "tests/models/nets/test_enat.py::test_with_nothing_old_a_pass_is_a_whole_one",
    ),
    Mutant(
        "enat: new tokens do not see the older ones",
        "models/nets/enat.py",
        "            x_BNW = layer(x_BNW, old_BOW, condition_BW)",
        "            x_BNW = layer(x_BNW, old_BOW[:, :0], condition_BW)",
        "tests/models/nets/test_enat.py::test_old_tokens_are_not_changed_and_change_the_new_ones",
    ),
    Mutant(
        "enat: one map of keys and values for all",
        "models/nets/enat.py",
        "self.given(given)",
        "self.own(given)",
        "tests/models/nets/test_enat.py::test_context_and_rows_have_keys_of_their_own",
    ),
    Mutant(
        "enat: gaps do not see one another",
        "models/nets/enat.py",
        "            x_BMW = layer(x_BMW, known_BSW, condition_BW)",
        "            x_BMW = torch.cat([layer(x, known_BSW, condition_BW) for x in x_BMW.split(1, 1)], 1)",
        "tests/models/nets/test_enat.py::test_gaps_see_one_another_and_all_tokens",
    ),
    Mutant(
        "enat: training never goes on from an earlier pass",
        "lab/train/enat.py",
        "    again = float(torch.rand((), generator=rng)) < reused",
        "    again = float(torch.rand((), generator=rng)) < 0",
        "tests/lab/train/test_train_enat.py::test_older_tokens_are_encoded_before_and_without_a_gradient",
    ),
    Mutant(
        "enat: the class is a token and nothing else",
        "models/nets/enat.py",
        "self.modulated(silu(condition_BW))",
        "self.modulated(silu(0 * condition_BW))",
        "tests/models/nets/test_enat.py::test_the_class_conditions_every_layer",
    ),
    Mutant(
        "enat: a class that is left out is a gap to the encoder",
        "models/nets/enat.py",
        "torch.where(given_B1, self.entry(self.token_embedding(class_B)), self.unconditioned)",
        "self.entry(self.token_embedding(class_B))",
        "tests/models/nets/test_enat.py::test_gaps_never_reach_tokens",
    ),
    Mutant(
        "enat: the network in training encodes older tokens",
        "lab/train/enat.py",
        "            before_BOW = before.encode_tokens(",
        "            before_BOW = network.encode_tokens(",
        "tests/lab/train/test_train_enat.py::test_older_tokens_are_encoded_by_the_average",
    ),
    Mutant(
        "enat: the average does not follow the weights",
        "lab/train/loop.py",
        "            after_step()\n",
        "",
        "tests/lab/train/test_train_enat.py::test_what_is_saved_is_the_average_of_all_steps",
    ),
    Mutant(
        "enat: guidance is as strong in the first pass as in the last",
        "methods/diffusion/loop/prompted.py",
        "        strength = self._model.strength_at(self._passes)",
        "        strength = self._model.scale",
        "tests/models/sessions/test_enat_canvases.py::test_guidance_grows_from_nothing_to_its_strength",
    ),
    Mutant(
        "enat: the heat of draws does not fall",
        ANNEALED,
        "            return max(self.heat * self.share_left(step), COLDEST)",
        "            return self.heat",
        f"{ANNEALED_TESTS}::test_the_heat_of_draws_falls_and_leaves_scores_alone",
    ),
]
