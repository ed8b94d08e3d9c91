"""Mutants of images as sources, and of readers of words: each takes out what gives a part its name."""

from mutant import Mutant

HEADS = "models/nets/reading_heads.py"
MASKED = "models/nets/masked_head.py"
WALKS = "models/nets/neighbour_head.py"
HEADS_TESTS = "tests/models/nets/test_reading_heads.py"
IMAGES_TESTS = "tests/models/sessions/test_image_sources.py"
SENT_TESTS = "tests/serve/test_images_sent.py"
LOSSES = "lab/train/reading_losses.py"
TRAIN_TESTS = "tests/lab/train/test_train_reader.py"
DRAFTER = "methods/speculative/drafters/read_word.py"
DRAFTER_TESTS = "tests/methods/speculative/drafters/test_read_word.py"

MUTANTS = [
    Mutant(
        "images: an animated one is read",
        "models/formats/image_worker.py",
        'if getattr(image, "is_animated", False):',
        "if False:",
        f"{IMAGES_TESTS}::test_what_is_wrong_with_an_image_is_one_sentence[animated]",
    ),
    Mutant(
        "images: the number of pixels has no bound",
        "models/formats/image_worker.py",
        'if width * height > request["most_pixels"]:',
        "if False:",
        f"{IMAGES_TESTS}::test_what_is_wrong_with_an_image_is_one_sentence[huge]",
    ),
    Mutant(
        "images: every image is a source of its own",
        "models/sessions/encoder_decoder.py",
        "law = self._laws.get((cache_salt, content))",
        "law = None",
        f"{IMAGES_TESTS}::test_equal_images_share_what_the_encoder_left",
    ),
    Mutant(
        "images: one client is given what another one's image left",
        "models/sessions/encoder_decoder.py",
        "law = self._laws.get((cache_salt, content))",
        'law = self._laws.get(("", content))',
        f"{IMAGES_TESTS}::test_equal_images_share_what_the_encoder_left",
    ),
    Mutant(
        "images: text models take one",
        "request/image_sources.py",
        "    if has_image_source(ask):",
        "    if False:",
        f"{IMAGES_TESTS}::test_models_of_text_refuse_an_image_by_name",
    ),
    Mutant(
        "cppd: counting shapes nothing that is read",
        HEADS,
        "self._joined(slots_BTW, seen_BSW, there_BS)",
        "self._joined(slots_BTW, placed_BSW, there_BS)",
        f"{HEADS_TESTS}::test_counting_layers_shape_what_is_read",
    ),
    Mutant(
        "cppd: scores of the joining attention are divided",
        HEADS,
        "PostNormLayer(W, shape.heads, scaled=bool(i % 2))",
        "PostNormLayer(W, shape.heads)",
        f"{HEADS_TESTS}::test_scores_of_the_joining_attention_are_not_divided",
    ),
    Mutant(
        "cppd: no place looks at those before it",
        HEADS,
        "            if i % 2:",
        "            if False:",
        f"{HEADS_TESTS}::test_places_look_at_the_image_and_at_those_before_them_in_turn",
    ),
    Mutant(
        "cppd: places look at all places",
        HEADS,
        "torch.ones(1, T, T, dtype=torch.bool).tril()",
        "torch.ones(1, T, T, dtype=torch.bool)",
        f"{HEADS_TESTS}::test_places_look_at_the_image_and_at_those_before_them_in_turn",
    ),
    Mutant(
        "cppd: all letters are counted, however many are drawn",
        LOSSES,
        "class_BC = counted_classes(words, len(head.classes), absent, rng)",
        "class_BC = counted_classes(words, len(head.classes), 0, rng)",
        f"{TRAIN_TESTS}::test_letters_that_are_not_drawn_are_not_counted",
    ),
    Mutant(
        "cppd: the same absent letters are counted in every step",
        LOSSES,
        "rng.permutation(vocab).tolist()",
        "range(vocab)",
        f"{TRAIN_TESTS}::test_as_many_letters_are_counted_as_a_word_has_and_some_absent_ones",
    ),
    Mutant(
        "mdiff4str: copies of a word see each other",
        MASKED,
        "own(x_CNW, x_CNW).view(images, -1, x_CNW.shape[2])",
        "own(*2 * (x_CNW.view(images, -1, x_CNW.shape[2]),))",
        f"{HEADS_TESTS}::test_copies_of_a_word_read_its_image_and_not_each_other",
    ),
    Mutant(
        "mdiff4str: a word has one copy",
        LOSSES,
        "for _ in range(copies)",
        "for _ in range(1)",
        f"{TRAIN_TESTS}::test_each_copy_of_a_word_is_masked_and_spoilt_apart",
    ),
    Mutant(
        "lister: a bias of each distance is always there",
        WALKS,
        " if shape.distances else None",
        "",
        f"{HEADS_TESTS}::test_scores_have_a_bias_of_each_distance_only_where_it_is_asked_for",
    ),
    Mutant(
        "lister: a walk that hardly ends is not pulled to its end",
        LOSSES,
        "FLOOR = 1e-30",
        "FLOOR = 1e-6",
        f"{TRAIN_TESTS}::test_a_walk_that_never_ends_is_pulled_to_its_end",
    ),
    Mutant(
        "lister: the end weighs as little as published, whatever is asked for",
        LOSSES,
        "return said + ending * ended_B.mean()",
        "return said + STOPPED * ended_B.mean()",
        f"{TRAIN_TESTS}::test_a_walk_that_never_ends_is_pulled_to_its_end",
    ),
    Mutant(
        "readers: the positions of an image look alike",
        "models/nets/seq2seq.py",
        "return rows_NW + placed_NW",
        "return rows_NW",
        f"{TRAIN_TESTS}::test_training_computes_what_the_saved_model_does",
    ),
    Mutant(
        "readers: each step draws new images",
        "lab/train/word_data.py",
        "if self.kept and not unseen:",
        "if False:",
        f"{TRAIN_TESTS}::test_images_that_are_drawn_once_are_learned_from_again",
    ),
    Mutant(
        "word-reader: muon takes no matrix",
        "lab/train/word_reader.py",
        "isinstance(m, (TrainableT5Block, PostNormLayer))",
        "isinstance(m, nn.Conv1d)",
        f"{TRAIN_TESTS}::test_the_matrices_of_layers_are_those_that_muon_takes",
    ),
    Mutant(
        "lister: the end leads back into the word",
        WALKS,
        "stays_B1M = pad(torch.zeros(B, 1, S), (0, 1), value=1.0)",
        "stays_B1M = torch.full((B, 1, S + 1), 1.0 / (S + 1))",
        f"{HEADS_TESTS}::test_mass_on_the_end_never_falls",
    ),
    Mutant(
        "lister: a walk is not sharpened",
        WALKS,
        "min(1.0 + 2.0 * (step - 1), 16.0) * at_M",
        "0.001 * at_M",
        f"{HEADS_TESTS}::test_a_walk_is_sharpened_as_it_goes_on",
    ),
    Mutant(
        "mdiff4str: all masks are filled at once",
        MASKED,
        "chosen_N = open_N & (chance_N > mean)",
        "chosen_N = open_N.clone()",
        f"{HEADS_TESTS}::test_each_pass_fills_what_is_surer_than_the_mean_up_to_the_first_end",
    ),
    Mutant(
        "mdiff4str: what was read is read anew",
        MASKED,
        "answer_NV = torch.where(masked_N[:, None], rows_NV, answer_NV)",
        "answer_NV = rows_NV",
        f"{HEADS_TESTS}::test_what_was_read_stays_as_it_was_when_it_was_filled_in",
    ),
    Mutant(
        "mdiff4str: no letter stands wrongly in training",
        LOSSES,
        "torch.where(word_CN & (dice_CN < share_C1), other_CN, right_CN)",
        "right_CN",
        f"{TRAIN_TESTS}::test_wrong_letters_stand_on_the_canvas_and_right_ones_are_learned",
    ),
    Mutant(
        "mdiff4str: masks have one pattern",
        LOSSES,
        "pattern = patterns[int(rng.integers(len(patterns)))]",
        "pattern = patterns[-1]",
        f"{TRAIN_TESTS}::test_one_of_six_patterns_is_drawn",
    ),
    Mutant(
        "read-ahead: letters are proposed from the first one on",
        DRAFTER,
        "at = position - BEGUN",
        "at = 0",
        f"{DRAFTER_TESTS}::test_behind_a_wrong_letter_what_was_read_still_stands",
    ),
    Mutant(
        "lister: rounds change nothing",
        WALKS,
        "states_BSW = rows_BMW[:, :-1] + back_BTS.transpose(1, 2) @ letters_BTW",
        "states_BSW = rows_BMW[:, :-1]",
        f"{HEADS_TESTS}::test_an_image_is_refined_by_the_letters_that_were_found",
    ),
    Mutant(
        "lister: letters look at all others",
        WALKS,
        "near_TT = (at_T[:, None] - at_T[None]).abs() <= self.reach",
        "near_TT = (at_T[:, None] - at_T[None]).abs() <= 99",
        f"{HEADS_TESTS}::test_letters_look_at_those_near_them_alone",
    ),
    Mutant(
        "lister: refined walks are learned from the first step on",
        LOSSES,
        "head.rounds if float(said.detach()) < READS else 0",
        "head.rounds",
        f"{TRAIN_TESTS}::test_walks_over_refined_images_are_learned_once_the_first_one_reads",
    ),
    Mutant(
        "mdiff4str: a random order takes the sure ones",
        MASKED,
        "return open_N & torch.tensor(coins)",
        "return commits_above_mean(chance_N, open_N, rng)",
        f"{HEADS_TESTS}::test_coins_fill_half_of_the_masks_whatever_they_are_sure_of",
    ),
    Mutant(
        "mdiff4str: from left to right each letter is read by itself",
        MASKED,
        "        canvas.token_N[at] = rows_NV[at].argmax()\n        if int(canvas.token_N[at]) == END:",
        "        if int(rows_NV[at].argmax()) == END:",
        f"{HEADS_TESTS}::test_from_left_to_right_it_is_greedy_decoding_of_the_same_network",
    ),
    Mutant(
        "mdiff4str: a cloze hides nothing",
        MASKED,
        "        canvas.token_N[at] = canvas.head.mask\n",
        "",
        f"{HEADS_TESTS}::test_a_cloze_reads_each_letter_beside_all_others",
    ),
    Mutant(
        "images: the planner waits for the decoder",
        "serve/app.py",
        "asks = decode_images(wanted.asks, worker.model)",
        "asks = wanted.asks",
        f"{SENT_TESTS}::test_an_image_is_decoded_where_requests_are_read",
    ),
    Mutant(
        "images: a source may have any member",
        "serve/body.py",
        "    if is_image_part(prompt):",
        "    if False:",
        f"{SENT_TESTS}::test_a_source_is_read_as_a_part_of_a_message_is",
    ),
    Mutant(
        "pictures: a small part of what is measured weighs as much as a large one",
        "lab/train/pictures.py",
        "sum(float(loss_of(part)) * len(part) for part in rows_NT.split(64)) / len(rows_NT)",
        "sum(map(float, map(loss_of, rows_NT.split(64)))) / len(rows_NT.split(64))",
        "tests/lab/train/test_train_pictures.py::test_every_picture_weighs_alike_in_what_is_measured",
    ),
]
