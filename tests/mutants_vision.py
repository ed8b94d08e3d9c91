"""Mutants of vision-language models: each takes out what a layout, or a prompt with images, promises."""

from mutant import Mutant

TESTS = "tests/models/sessions/test_llava.py"
IDEFICS3 = "tests/models/sessions/test_idefics3.py"
QWEN2_VL = "tests/models/sessions/test_qwen2_vl.py"

MUTANTS = [
    Mutant(
        "llava: states behind the last layer are taken",
        "models/formats/llava.py",
        "layer if layer >= 0 else layers + 1 + layer",
        "layers",
        f"{TESTS}::test_vectors_are_those_of_transformers",
    ),
    Mutant(
        "llava: the class token stays",
        "models/nets/llava.py",
        "taken_TPW = taken_TPW[:, 1:]",
        "taken_TPW = taken_TPW[:, :-1]",
        f"{TESTS}::test_vectors_are_those_of_transformers",
    ),
    Mutant(
        "vision: pixels are rounded twice",
        "models/nets/vit.py",
        "(pixels_THWC.double() * scale.factor).float()",
        "pixels_THWC.float() * scale.factor * 1.0001",
        f"{TESTS}::test_pixels_are_those_of_the_processor",
    ),
    Mutant(
        "vision: a line of pixels is made as large as it asks for",
        "models/formats/image_worker.py",
        'if height * width > request["most_pixels"]:',
        "if False:",
        f"{TESTS}::test_what_is_wrong_with_a_request_is_one_sentence[a line of pixels]",
    ),
    Mutant(
        "vision: an image is read anew for each request",
        "models/sessions/vision.py",
        "found = self._made.get(key)",
        "found = None",
        f"{TESTS}::test_a_second_request_with_the_image_shares_its_entries",
    ),
    Mutant(
        "vision: one client is given what the tower made of another one's image",
        "models/sessions/vision.py",
        "key = (cache_salt, tiles.content_hash)",
        'key = ("", tiles.content_hash)',
        f"{TESTS}::test_a_second_request_with_the_image_shares_its_entries",
    ),
    Mutant(
        "vision: what the tower made is never forgotten",
        "models/sessions/vision.py",
        "while len(self._made) > KEPT:",
        "while False:",
        f"{TESTS}::test_the_tower_keeps_the_last_images_only",
    ),
    Mutant(
        "vision: all images are decoded before any is counted",
        "request/image_prompts.py",
        "        if taken > most:",
        "        if taken > most and len(tiles) == len(images):",
        f"{TESTS}::test_images_are_decoded_one_by_one_until_there_is_no_room",
    ),
    Mutant(
        "vision: places without images are read as they stand",
        "request/image_prompts.py",
        "    if places != len(images):",
        "    if places < len(images):",
        f"{TESTS}::test_what_is_wrong_with_a_request_is_one_sentence[a place and no image]",
    ),
    Mutant(
        "vision: a draft model sees the image's token alone",
        "request/image_prompts.py",
        "    return vectors.prompted_law(law)",
        "    return law",
        f"{TESTS}::test_a_draft_model_that_reads_images_sees_them",
    ),
    Mutant(
        "vision: shapes of the tower are not compared",
        "models/formats/vision.py",
        "    fields.require_shapes(tower, shape.tensor_shapes)\n",
        "",
        f"{TESTS}::test_what_is_wrong_with_a_checkpoint_is_one_sentence[a larger tower]",
    ),
    Mutant(
        "idefics3: squares are joined column by column",
        "models/nets/idefics3.py",
        ".permute(0, 1, 3, 2, 4, 5)",
        ".permute(0, 1, 3, 4, 2, 5)",
        f"{IDEFICS3}::test_patches_are_joined_in_squares",
    ),
    Mutant(
        "idefics3: the whole image is shown first",
        "models/formats/image_worker.py",
        "[*tiles, _resized(image, (tile, tile), request)]",
        "[_resized(image, (tile, tile), request), *tiles]",
        f"{IDEFICS3}::test_tiles_are_those_of_the_processor",
    ),
    Mutant(
        "idefics3: rows of tiles are no lines",
        "models/nets/idefics3.py",
        '            out.append("\\n")\n',
        "",
        f"{IDEFICS3}::test_logits_and_greedy_texts_are_those_of_transformers",
    ),
    Mutant(
        "vision: vectors are put where a tokenizer leaves room",
        "models/sessions/vision.py",
        "        if ids.count(self.token) != len(vectors_KD):",
        "        if False:",
        f"{IDEFICS3}::test_a_tokenizer_of_another_checkpoint_is_refused",
    ),
    Mutant(
        "qwen2-vl: columns turn as rows do",
        "models/nets/transformer.py",
        "parts = [turn.split(sections, -1) for turn in turns]",
        "parts = [turn.split(sections, -1) for turn in (turns[0], turns[1], turns[1])]",
        f"{QWEN2_VL}::test_logits_and_greedy_texts_are_those_of_transformers[wide]",
    ),
    Mutant(
        "qwen2-vl: what follows an image stands behind all its cells",
        "models/nets/grid_positions.py",
        "return self.saved + self.vector_count - max(self.rows, self.columns)",
        "return self.saved",
        f"{QWEN2_VL}::test_positions_go_on_behind_the_longer_side",
    ),
    Mutant(
        "qwen2-vl: a fork forgets where its images stand",
        "models/nets/kv_cache.py",
        "        twin.grids = self.grids\n",
        "",
        f"{QWEN2_VL}::test_what_was_computed_is_shared_forked_and_fed_anew_with_its_positions",
    ),
    Mutant(
        "qwen2-vl: a cache that is taken over keeps the images of its own text",
        "models/sessions/lm.py",
        "            session.ledger.cache.grids = image_grids(text, whole=whole)",
        "            session.ledger.cache.grids = session.ledger.cache.grids or image_grids(text, whole=whole)",
        f"{QWEN2_VL}::test_a_taken_cache_has_the_images_of_the_new_text",
    ),
    Mutant(
        "qwen2-vl: cells of any grid are one token",
        "models/sessions/soft.py",
        'f"{at} of {grid[0]} x {grid[1]}".encode()',
        'b""',
        f"{QWEN2_VL}::test_cells_of_another_grid_are_other_tokens",
    ),
    Mutant(
        "qwen2-vl: the compiled step reads it without rows and columns",
        "models/native/network.py",
        "        if c.sections:",
        "        if False:",
        f"{QWEN2_VL}::test_the_compiled_step_leaves_it_to_torch",
    ),
]
