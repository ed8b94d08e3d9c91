"""Mutants of X-Decoder: each takes out what its network, its training or its answers promise."""

from mutant import Mutant

NETWORK = "tests/models/nets/test_query_decoder.py"
METHOD = "tests/methods/speculative/loop/test_query_decoding.py"
TRAINED = "tests/lab/train/test_train_x_decoder.py"

MUTANTS = [
    Mutant(
        "x-decoder: latent queries see captions",
        "models/nets/query_masks.py",
        "    sees_NN[:objects, :objects] = True\n",
        "    sees_NN[:objects] = True\n",
        f"{NETWORK}::test_latent_queries_do_not_see_captions",
    ),
    Mutant(
        "x-decoder: captions see what stands behind them",
        "models/nets/query_masks.py",
        "dtype=torch.bool).tril()",
        "dtype=torch.bool)",
        f"{NETWORK}::test_a_caption_sees_what_stands_before_it_alone",
    ),
    Mutant(
        "x-decoder: the image query sees objects",
        "models/nets/query_masks.py",
        "    sees_NN[objects, :objects] = False\n",
        "",
        f"{NETWORK}::test_objects_see_one_another_and_the_image_query_itself",
    ),
    Mutant(
        "x-decoder: objects read cells outside of their masks",
        "models/nets/query_decoder.py",
        "= inside_BQS | ~inside_BQS.any(-1, keepdim=True)",
        "= True",
        f"{NETWORK}::test_an_object_reads_the_cells_of_its_mask_and_all_where_it_is_empty",
    ),
    Mutant(
        "x-decoder: a query whose mask is empty reads nothing",
        "models/nets/query_decoder.py",
        "= inside_BQS | ~inside_BQS.any(-1, keepdim=True)",
        "= inside_BQS",
        f"{NETWORK}::test_an_object_reads_the_cells_of_its_mask_and_all_where_it_is_empty",
    ),
    Mutant(
        "x-decoder: a region says nothing to captions",
        "models/nets/query_decoder.py",
        "        if rows.region_BF is not None:\n",
        "        if False:\n",
        f"{NETWORK}::test_a_caption_reads_its_region_alone",
    ),
    Mutant(
        "x-decoder: a region limits latent queries, too",
        "models/nets/query_decoder.py",
        "sees_BNS[:, rows.captions :] = touched",
        "sees_BNS[:, :] = touched",
        f"{NETWORK}::test_a_caption_reads_its_region_alone",
    ),
    Mutant(
        "x-decoder: all layers read one scale",
        "models/nets/query_decoder.py",
        "            cell_BSW = scales[i % len(scales)]\n",
        "            cell_BSW = scales[1]\n            i = 1\n",
        f"{NETWORK}::test_layers_read_the_scales_in_turn",
    ),
    Mutant(
        "x-decoder: logits have a table of their own",
        "models/nets/query_decoder.py",
        "return self.word_map(state_W) @ self.words.T",
        "return self.word_map(state_W) @ self.words.detach().clone().fill_(0.1).T",
        f"{NETWORK}::test_words_names_and_logits_share_one_table",
    ),
    Mutant(
        "x-decoder: names are no texts",
        "models/nets/query_decoder.py",
        "self.meaning_vectors(state_BQW) @ torch.cat([name_CW, nothing_1W]).T",
        "self.meaning_vectors(state_BQW) @ torch.cat([0 * name_CW, nothing_1W]).T",
        f"{NETWORK}::test_names_are_any_texts_and_nothing_is_one_of_them",
    ),
    Mutant(
        "x-decoder: objects do not read the phrase",
        "models/nets/query_decoder.py",
        "keys_values(word_BTW, word_BTW) for",
        "keys_values(0 * word_BTW, 0 * word_BTW) for",
        f"{NETWORK}::test_a_phrase_is_read_by_a_copy_of_the_objects",
    ),
    Mutant(
        "x-decoder: the first query is taken for what a phrase speaks of",
        "models/learned/kinds/query_decoder.py",
        "    best = int(logp_Q.argmax())\n",
        "    best = int(logp_Q.argmin())\n",
        f"{NETWORK}::test_a_phrase_is_read_by_a_copy_of_the_objects",
    ),
    Mutant(
        "x-decoder: what is held lacks the latent queries",
        "models/nets/query_decoder.py",
        "return CaptionMemory(features, states[-1][:, :objects], memories, region_1F)",
        "empty = tuple(m[:, :, :, :0] for m in memories)\n"
        "        return CaptionMemory(features, states[-1][:, :objects], empty, region_1F)",
        f"{NETWORK}::test_what_is_held_of_a_caption_gives_the_logits_of_the_whole_decoder",
    ),
    Mutant(
        "x-decoder: every token of a caption stands at its first place",
        "models/nets/query_decoder.py",
        "length=memory.length + 1",
        "length=0",
        f"{NETWORK}::test_what_is_held_of_a_caption_gives_the_logits_of_the_whole_decoder",
    ),
    Mutant(
        "x-decoder: cached changes nothing",
        "methods/speculative/loop/query_tasks.py",
        "return CaptionTask(None, choice.cached)",
        "return CaptionTask(None, True)",
        f"{METHOD}::test_cached_captions_equal_those_of_the_published_way",
    ),
    Mutant(
        "x-decoder: a caption is not bounded by its buffer",
        "methods/speculative/loop/query_decoding.py",
        "while page.takes_tokens and len(caption) <= decoder.sizes.longest:",
        "while page.takes_tokens:",
        f"{METHOD}::test_cached_captions_equal_those_of_the_published_way",
    ),
    Mutant(
        "x-decoder: a caption of a region is of the whole image",
        "methods/speculative/loop/query_tasks.py",
        "    if not choice.region:\n",
        "    if True:\n",
        f"{METHOD}::test_a_region_is_what_a_caption_is_about",
    ),
    Mutant(
        "x-decoder: masks stand at the first token of their names",
        "methods/speculative/loop/query_decoding.py",
        "ImageMask(page.token_count - 1,",
        "ImageMask(page.token_count - len(name),",
        f"{METHOD}::test_names_that_are_found_are_written_with_their_masks",
    ),
    Mutant(
        "x-decoder: what the image is missing is found out late",
        "methods/registry/kit.py",
        "        if not kit.shows_image:\n",
        "        if False:\n",
        f"{METHOD}::test_what_it_cannot_read_is_refused_before_any_pass",
    ),
    Mutant(
        "train x-decoder: things go to the first queries",
        "lab/train/x_decoder.py",
        "    return way_WN[int(total_W.argmin())].tolist()",
        "    return way_WN[0].tolist()",
        f"{TRAINED}::test_things_are_given_to_queries_at_the_least_cost",
    ),
    Mutant(
        "train x-decoder: masks have no say in who gets a thing",
        "lab/train/x_decoder.py",
        "spec.cross_entropy * entropy_QN + spec.dice * dice_QN",
        "0 * entropy_QN + 0 * dice_QN",
        f"{TRAINED}::test_things_go_to_the_queries_whose_names_and_masks_fit",
    ),
    *(
        Mutant(
            f"train x-decoder: no loss of {what}",
            "lab/train/x_decoder.py",
            term,
            "",
            f"{TRAINED}::test_the_weighted_parts_of_the_loss",
        )
        for what, term in (
            ("captions", " + spec.caption * words"),
            ("contrast", " + spec.contrast * apart"),
            ("phrases", " + spec.refer * refer"),
        )
    ),
    Mutant(
        "train x-decoder: the last layer alone is taught masks and names",
        "lab/train/x_decoder.py",
        "for n, m in zip(logits, masks, strict=True)),",
        "for n, m in [(logits[-1], masks[-1])] * len(last)),",
        f"{TRAINED}::test_the_weighted_parts_of_the_loss",
    ),
    Mutant(
        "train x-decoder: queries without a thing weigh as much as others",
        "lab/train/x_decoder.py",
        "    weight_C[nothing] = UNNAMED\n",
        "",
        f"{TRAINED}::test_the_weighted_parts_of_the_loss",
    ),
    Mutant(
        "train x-decoder: phrases teach no likeness",
        "lab/train/x_decoder.py",
        "return F.cross_entropy(logit_BQ, right_B) + _mask_loss",
        "return _mask_loss",
        f"{TRAINED}::test_a_phrase_teaches_the_copys_query_of_its_thing",
    ),
]
