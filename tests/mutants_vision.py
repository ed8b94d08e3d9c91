"""Mutants of vision-language models: each takes out what a layout, or a prompt with images, promises."""

from mutant import Mutant

TESTS = "tests/models/sessions/test_llava.py"

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
        "vectors_KD = self._made.get(key)",
        "vectors_KD = None",
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
        "vision: shapes of the tower are not compared",
        "models/formats/llava.py",
        "    fields.require_shapes(tower, shape.tensor_shapes)\n",
        "",
        f"{TESTS}::test_what_is_wrong_with_a_checkpoint_is_one_sentence[a larger tower]",
    ),
]
