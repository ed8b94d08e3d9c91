"""Mutants of images as sources, and of readers of words: each takes out what gives a part its name."""

from mutant import Mutant

HEADS = "models/nets/reading_heads.py"
HEADS_TESTS = "tests/models/nets/test_reading_heads.py"
IMAGES_TESTS = "tests/models/sessions/test_image_sources.py"
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
        "self.joining(slots_BTW, seen_BSW, there_BS)",
        "self.joining(slots_BTW, placed_BSW, there_BS)",
        f"{HEADS_TESTS}::test_counting_layers_shape_what_is_read",
    ),
    Mutant(
        "cppd: scores of the joining attention are divided",
        HEADS,
        "PostNormLayer(W, shape.heads, scaled=False)",
        "PostNormLayer(W, shape.heads)",
        f"{HEADS_TESTS}::test_scores_of_the_joining_attention_are_not_divided",
    ),
    Mutant(
        "lister: the end leads back into the word",
        HEADS,
        "stays_B1M = pad(torch.zeros(B, 1, S), (0, 1), value=1.0)",
        "stays_B1M = torch.full((B, 1, S + 1), 1.0 / (S + 1))",
        f"{HEADS_TESTS}::test_mass_on_the_end_never_falls",
    ),
    Mutant(
        "lister: a walk is not sharpened",
        HEADS,
        "min(1.0 + 2.0 * (step - 1), 16.0) * at_M",
        "0.001 * at_M",
        f"{HEADS_TESTS}::test_a_walk_is_sharpened_as_it_goes_on",
    ),
    Mutant(
        "mdiff4str: all masks are filled at once",
        HEADS,
        "chosen_N = open_N & (chance_N > mean)",
        "chosen_N = open_N.clone()",
        f"{HEADS_TESTS}::test_each_pass_fills_what_is_surer_than_the_mean_up_to_the_first_end",
    ),
    Mutant(
        "mdiff4str: what was read is read anew",
        HEADS,
        "answer_NV = torch.where(masked_N[:, None], rows_NV, answer_NV)",
        "answer_NV = rows_NV",
        f"{HEADS_TESTS}::test_what_was_read_stays_as_it_was_when_it_was_filled_in",
    ),
    Mutant(
        "mdiff4str: no letter stands wrongly in training",
        LOSSES,
        "torch.where(word_BN & (dice_BN < share_B1), other_BN, right_BN)",
        "right_BN",
        f"{TRAIN_TESTS}::test_wrong_letters_stand_on_the_canvas_and_right_ones_are_learned",
    ),
    Mutant(
        "mdiff4str: masks have one pattern",
        LOSSES,
        "pattern = int(rng.integers(len(PATTERNS)))",
        "pattern = len(PATTERNS) - 1",
        f"{TRAIN_TESTS}::test_one_of_six_patterns_is_drawn",
    ),
    Mutant(
        "read-ahead: letters are proposed from the first one on",
        DRAFTER,
        "at = position - BEGUN",
        "at = 0",
        f"{DRAFTER_TESTS}::test_behind_a_wrong_letter_what_was_read_still_stands",
    ),
]
