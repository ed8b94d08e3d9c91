"""Mutants of texts of triplets and of the states of their references: each takes out what REF-VLM promises here."""

from mutant import Mutant

GRAMMAR = "tests/laws/constraints/test_triplets.py"
TRAINED = "tests/lab/train/test_train_ref_vlm.py"
READING = "tests/methods/speculative/loop/test_reference_reading.py"
WORD_BY_WORD = f"{GRAMMAR}::test_an_answer_is_held_to_its_plan_word_by_word"

MUTANTS = [
    Mutant(
        "triplets: an answer may end before all that was planned has stood",
        "laws/constraints/triplets.py",
        "state.part is self.free and not state.left and",
        "state.part is self.free and",
        WORD_BY_WORD,
    ),
    Mutant(
        "triplets: concepts may stand again",
        "laws/constraints/triplets.py",
        "            left = state.left[1:]\n",
        "            left = state.left[1:] or state.left\n",
        WORD_BY_WORD,
    ),
    Mutant(
        "triplets: marks in free text",
        "laws/constraints/triplets.py",
        'Regex("[^<]*")',
        'Regex("(.|\\n)*")',
        WORD_BY_WORD,
    ),
    Mutant(
        "triplets: indices of references do not count up",
        "laws/constraints/triplets.py",
        'f"[{at}]{REFERENCE}" for at in range(self.count)',
        'f"[0]{REFERENCE}" for at in range(self.count)',
        WORD_BY_WORD,
    ),
    Mutant(
        "triplets: a reference more than was planned",
        "laws/constraints/triplets.py",
        "for at in range(self.count))",
        "for at in range(self.count + 1))",
        WORD_BY_WORD,
    ),
    Mutant(
        "triplets: more references are planned than tokens spell",
        "laws/constraints/triplets.py",
        "range(1, groups.most_references(self.units) + 1)",
        "range(1, MOST + 1)",
        f"{GRAMMAR}::test_only_what_the_vocabulary_spells_is_planned",
    ),
    Mutant(
        "triplets: units that were not asked for are planned",
        "laws/constraints/triplets.py",
        "<Unit>(?:{'|'.join(self.units)})</Unit> Num",
        "<Unit>(?:{'|'.join(UNITS)})</Unit> Num",
        f"{GRAMMAR}::test_only_what_the_vocabulary_spells_is_planned",
    ),
    Mutant(
        "triplets: a text is not held to its plan when it is read",
        "laws/constraints/triplets.py",
        " or groups != [one.answer_group for one in planned]:",
        ":",
        f"{GRAMMAR}::test_texts_of_plans_are_read_as_these_plans",
    ),
    Mutant(
        "triplets: nobody says what ends a text soonest",
        "laws/constraints/legal_endings.py",
        'getattr(language, "closing_bytes", language.forced_bytes)',
        "language.forced_bytes",
        f"{GRAMMAR}::test_random_texts_parse_to_their_plans_and_end_in_time[0]",
    ),
    Mutant(
        "ref-vlm: states of the tokens before the references",
        "methods/speculative/loop/reference_reading.py",
        "nodes = [place - places[0] for place in places]",
        "nodes = [max(place - places[0] - 1, 0) for place in places]",
        f"{READING}::test_each_reference_has_its_triplet_and_the_state_where_its_token_is_read",
    ),
    Mutant(
        "ref-vlm: states before the final norm",
        "methods/speculative/loop/reference_reading.py",
        "session.normed_states(scores.hidden_NH[nodes])",
        "scores.hidden_NH[nodes]",
        f"{READING}::test_each_reference_has_its_triplet_and_the_state_where_its_token_is_read",
    ),
    Mutant(
        "ref-vlm: the session of the states stays open",
        "methods/speculative/loop/reference_reading.py",
        "            session.close()",
        "            pass",
        f"{READING}::test_a_session_ends_with_its_answer",
    ),
    Mutant(
        "ref-vlm: depth drafts nothing",
        "methods/speculative/recipes/ref_vlm.py",
        "FixedPolicy(depth)",
        "FixedPolicy(0)",
        f"{READING}::test_what_the_grammar_leaves_no_choice_about_is_drafted_and_states_stay",
    ),
    Mutant(
        "ref-vlm: JSON has no states",
        "models/text/mask_view.py",
        '        "state": reference.state_H.tolist(),\n',
        "",
        f"{READING}::test_the_command_line_gives_states_as_json",
    ),
    Mutant(
        "ref-vlm: answers have no boxes and masks",
        "methods/speculative/recipes/ref_vlm.py",
        "kit.find_artefact(UnitDecoders)",
        "None",
        f"{TRAINED}::test_what_was_trained_is_what_decodes",
    ),
    Mutant(
        "ref-vlm: an image of other patches is found out behind the prompt's pass",
        "methods/speculative/loop/reference_reading.py",
        "        self._image_of(session)\n\n",
        "\n",
        f"{TRAINED}::test_an_image_of_other_patches_is_refused_before_any_pass",
    ),
    Mutant(
        "ref-vlm: boxes are decoded one by one",
        "models/learned/kinds/unit_decoders.py",
        "            box_R4 = self.network.decode_boxes(state_RH, _for_each(image_NH, state_RH))\n",
        "            box_R4 = torch.cat(\n"
        "                [self.network.decode_boxes(x[None], _for_each(image_NH, x[None])) for x in state_RH]\n"
        "            )\n",
        f"{TRAINED}::test_all_boxes_of_an_answer_are_decoded_at_once",
    ),
    Mutant(
        "ref-vlm: one projector for both units",
        "models/learned/kinds/unit_decoders.py",
        "query_R1I = self.mask_query(state_RH)[:, None]",
        "query_R1I = self.box_query(state_RH)[:, None]",
        f"{TRAINED}::test_each_unit_asks_the_image_by_a_projector_of_its_own",
    ),
    Mutant(
        "ref-vlm: boxes without a look at the image",
        "models/learned/kinds/unit_decoders.py",
        "torch.cat([query_R1I[:, 0], seen_RI], 1)",
        "torch.cat([query_R1I[:, 0], 0 * seen_RI], 1)",
        f"{TRAINED}::test_each_unit_asks_the_image_by_a_projector_of_its_own",
    ),
    Mutant(
        "ref-vlm: boxes as shares of the image",
        "models/learned/kinds/unit_decoders.py",
        "zip(boxed, box_R4 * side_4, strict=True)",
        "zip(boxed, box_R4, strict=True)",
        f"{TRAINED}::test_what_was_trained_is_what_decodes",
    ),
    Mutant(
        "train ref-vlm: states before the references are decoded",
        "lab/train/ref_vlm.py",
        "    state_RH = state_BTH[rows.token_BT == ids[REFERENCE]]\n    right =",
        "    state_RH = state_BTH[rows.token_BT.roll(-1, 1) == ids[REFERENCE]]\n    right =",
        f"{TRAINED}::test_the_loss_is_that_of_texts_boxes_and_masks",
    ),
    *(
        Mutant(
            f"train ref-vlm: no {name}",
            "lab/train/ref_vlm.py",
            old,
            new,
            f"{TRAINED}::test_the_loss_is_that_of_texts_boxes_and_masks",
        )
        for name, old, new in (
            ("distance of sides", "loss + spec.distance * F.l1", "loss + 0.0 * F.l1"),
            ("generalised overlap", "loss + spec.overlap * gen", "loss + 0.0 * gen"),
            ("cross-entropy of patches", "loss + spec.cross_entropy * each", "loss + 0.0 * each"),
            ("Dice loss", "+ spec.dice * dice_loss", "+ 0.0 * dice_loss"),
        )
    ),
    Mutant(
        "train ref-vlm: no frame in the generalised overlap",
        "lab/train/ref_vlm.py",
        "share_R - (frame_R - any_R) / frame_R",
        "share_R",
        f"{TRAINED}::test_overlaps_of_boxes",
    ),
    Mutant(
        "train ref-vlm: questions without a plan that nothing is decoded",
        "lab/train/scene_triplets.py",
        '"<True>" if lines else "<False>"',
        '"<True>"',
        f"{TRAINED}::test_questions_have_the_triplets_of_their_scene",
    ),
    Mutant(
        "train ref-vlm: a colour has one reference",
        "lab/train/scene_triplets.py",
        'SceneConcept(f"{coloured.colour} things", units[2], alike)',
        'SceneConcept(f"{coloured.colour} things", units[2], alike[:1])',
        f"{TRAINED}::test_questions_have_the_triplets_of_their_scene",
    ),
]
