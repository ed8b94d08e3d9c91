"""Mutants of masks of images: each takes out what STAMP, its training or its answers promise."""

from mutant import Mutant

SLOTS = "tests/models/sessions/test_slots.py"
READING = "tests/methods/speculative/loop/test_mask_reading.py"
TRAINED = "tests/lab/train/test_train_stamp.py"
VIEW = "tests/models/text/test_mask_view.py"
SENT = "tests/serve/test_masks_sent.py"

MUTANTS = [
    Mutant(
        "masks: slots see none behind them (torch)",
        "models/nets/packing.py",
        "                q.mutual,\n",
        "                0,\n",
        f"{SLOTS}::test_the_first_sees_the_last_unless_it_is_causal[float32]",
    ),
    Mutant(
        "masks: slots see none behind them (the compiled step)",
        "models/native/network.py",
        "*[stop] * q.mutual]",
        "*range(free + 1, stop + 1)]",
        f"{SLOTS}::test_the_first_sees_the_last_unless_it_is_causal[auto]",
    ),
    Mutant(
        "masks: slots see none behind them in a padded pass",
        "models/nets/padded.py",
        "            q.mutual,\n",
        "            0,\n",
        f"{SLOTS}::test_a_padded_pass_shows_them_one_another",
    ),
    Mutant(
        "masks: a mask that other queries share is written to",
        "models/nets/masks.py",
        "    mask_MS = mask_MS.clone()\n",
        "",
        f"{SLOTS}::test_they_are_what_a_network_without_a_cache_computes",
    ),
    Mutant(
        "masks: a long query is cut among slots",
        "models/nets/query.py",
        "free = len(self) - self.mutual",
        "free = len(self)",
        f"{SLOTS}::test_a_query_is_never_cut_among_them",
    ),
    Mutant(
        "masks: slots stay in the text's cache",
        "models/sessions/slots.py",
        "twin = ledger.cache.fork()",
        "twin = ledger.cache",
        f"{SLOTS}::test_nothing_of_them_stays",
    ),
    Mutant(
        "masks: a draft that was scored stands before the slots",
        "models/sessions/slots.py",
        "    ledger.forget_entries(ledger.filled)\n",
        "",
        f"{SLOTS}::test_nothing_of_them_stays",
    ),
    Mutant(
        "masks: slots stand in a row where the model tells rows and columns",
        "models/sessions/slots.py",
        'if grid is not None and getattr(network, "tells_grids", False):',
        "if False:",
        f"{SLOTS}::test_they_stand_where_an_image_of_their_grid_would",
    ),
    Mutant(
        "masks: a packed cache is read",
        "models/sessions/slots.py",
        "    if press is not None:",
        "    if False:",
        f"{SLOTS}::test_a_packed_cache_is_refused",
    ),
    Mutant(
        "stamp: a mask sees what the answer says behind it",
        "methods/speculative/loop/mask_reading.py",
        "answer.token_ids[: at + 1]",
        "answer.token_ids",
        f"{READING}::test_a_mask_is_read_behind_each_token_that_asks",
    ),
    Mutant(
        "stamp: slots without the vectors of their patches",
        "models/learned/kinds/mask_head.py",
        "return mark_H.to(image_NH) + image_NH",
        "return mark_H.to(image_NH) + 0 * image_NH",
        f"{READING}::test_the_vector_of_its_patch_and_the_mark_enter_for_each_slot",
    ),
    Mutant(
        "stamp: slots without the mark",
        "models/learned/kinds/mask_head.py",
        "return mark_H.to(image_NH) + image_NH",
        "return image_NH",
        f"{READING}::test_the_vector_of_its_patch_and_the_mark_enter_for_each_slot",
    ),
    Mutant(
        "stamp: the first image is meant",
        "models/sessions/soft.py",
        "last = max(vectors)\n",
        "last = min(vectors) + count - 1\n",
        f"{READING}::test_the_vector_of_its_patch_and_the_mark_enter_for_each_slot",
    ),
    Mutant(
        "stamp: causal changes nothing",
        "methods/speculative/loop/mask_reading.py",
        "(head.rows, head.columns), self.causal",
        "(head.rows, head.columns), False",
        f"{READING}::test_the_slots_of_a_mask_see_one_another_unless_they_are_causal",
    ),
    Mutant(
        "stamp: an image of other patches is found out behind the prompt's pass",
        "methods/speculative/loop/mask_reading.py",
        "        self.head.last_image(session.text_vectors())\n",
        "        return\n",
        f"{READING}::test_an_image_of_other_patches_is_refused_before_any_pass",
    ),
    Mutant(
        "stamp: masks of an answer are read one after another",
        "methods/speculative/loop/mask_reading.py",
        "masks = await gather_coroutines(\n"
        "            *(self._read(walk, (*prompt, *answer.token_ids[: at + 1]), at) for at in places)\n"
        "        )",
        "masks = [await self._read(walk, (*prompt, *answer.token_ids[: at + 1]), at) for at in places]",
        f"{READING}::test_a_mask_takes_one_pass_however_many_patches_it_has",
    ),
    Mutant(
        "stamp: the session of a mask stays open",
        "methods/speculative/loop/mask_reading.py",
        "            session.close()",
        "            pass",
        f"{READING}::test_a_session_ends_with_its_mask",
    ),
    Mutant(
        "train stamp: tokens of masks see none behind them",
        "lab/train/stamp.py",
        "        if self.causal:",
        "        if True:",
        f"{TRAINED}::test_tokens_of_a_mask_see_the_text_up_to_the_one_that_asks_and_one_another",
    ),
    Mutant(
        "train stamp: texts see masks",
        "lab/train/stamp.py",
        "same_question_BTT & of_text_BT[:, None] & ",
        "same_question_BTT & ",
        f"{TRAINED}::test_text_is_not_moved_by_masks",
    ),
    Mutant(
        "train stamp: tokens of masks enter without their patches",
        "lab/train/stamp.py",
        "image_BPH, entered_BTH + own_BTH,",
        "image_BPH, entered_BTH,",
        f"{TRAINED}::test_what_was_trained_is_what_decodes",
    ),
    Mutant(
        "train stamp: no Dice loss",
        "lab/train/stamp.py",
        " + spec.dice * dice_loss(logit_MN, rows.right_MN)",
        "",
        f"{TRAINED}::test_the_loss_is_the_texts_and_both_of_the_masks",
    ),
    Mutant(
        "train stamp: no cross-entropy of patches",
        "lab/train/stamp.py",
        " + spec.cross_entropy * each",
        "",
        f"{TRAINED}::test_the_loss_is_the_texts_and_both_of_the_masks",
    ),
    Mutant(
        "masks: logits are made larger patch by patch",
        "models/text/mask_view.py",
        'mode="bilinear", align_corners=False',
        'mode="nearest"',
        f"{VIEW}::test_logits_go_over_into_one_another_between_the_middles_of_patches",
    ),
    Mutant(
        "masks: a stream has none",
        "serve/reply.py",
        "            if choice.image_masks or choice.reference_states:",
        "            if choice.reference_states:",
        f"{SENT}::test_a_stream_has_them_behind_the_text",
    ),
]
