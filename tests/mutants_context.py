"""Known faults of prompts that are read as vectors, and the tests that must see them."""

from mutant import Mutant

REFRAG = "tests/methods/steering/test_refrag.py::"
CACHE = "tests/laws/targets/test_augmentation.py::"
TRAINED = "lab/train/contexts/refrag.py"
ARC = "tests/methods/steering/test_arc_encoder.py::"
POOLS = "models/learned/kinds/arc_encoder.py"
POOLED = "laws/targets/pooled_passages.py"
POOLING = "lab/train/contexts/arc_encoder.py"
AUGMENTED = "lab/train/contexts/cache_augmentation.py"

MUTANTS = [
    Mutant(
        "refrag: a chunk goes beyond its passage",
        "laws/targets/passage_chunks.py",
        "parts += [(span[i : i + k], passage)",
        "parts += [(range(span.start + i, span.start + i + k), passage)",
        REFRAG + "test_lengths_are_the_card_s_and_chunks_end_with_their_passage",
    ),
    Mutant(
        "refrag: those that score least are expanded",
        "laws/targets/passage_chunks.py",
        "descending=True, stable=True",
        "descending=False, stable=True",
        REFRAG + "test_lengths_are_the_card_s_and_chunks_end_with_their_passage",
    ),
    Mutant(
        "refrag: rows are read one place too far",
        "laws/targets/passage_chunks.py",
        "rows += [len(instead)] * len(span)",
        "rows += [len(instead) + 1] * len(span)",
        REFRAG + "test_a_law_behind_chunks_is_a_target_and_rows_are_those_of_what_stands_there",
    ),
    Mutant(
        "refrag: what fills a short chunk up is read",
        "models/learned/kinds/chunk_encoder.py",
        "token_NT != s.vocab",
        "token_NT >= 0",
        REFRAG + "test_what_fills_a_short_chunk_up_is_not_read",
    ),
    Mutant(
        "refrag: nothing is kept",
        "models/learned/kinds/chunk_encoder.py",
        "self.kept[name] = made",
        "self.kept[()] = made\n        name = ()",
        REFRAG + "test_vectors_depend_on_their_tokens_alone_and_are_kept",
    ),
    Mutant(
        "refrag: picks are drawn with replacement in their chance",
        TRAINED,
        'left_BL = left_BL.scatter(1, pick_B1, float("-inf"))',
        "left_BL = left_BL + 0.0",
        REFRAG + "test_picks_are_drawn_one_after_another",
    ),
    Mutant(
        "refrag: rewards are compared between pages",
        TRAINED,
        "reward_GB - reward_GB.mean(1, keepdim=True)",
        "reward_GB - reward_GB.mean()",
        REFRAG + "test_grpo_prefers_what_was_better_and_is_bounded",
    ),
    Mutant(
        "refrag: the ratio has no bound",
        TRAINED,
        "ratio.clamp(1 - CLIP, 1 + CLIP)",
        "ratio",
        REFRAG + "test_grpo_prefers_what_was_better_and_is_bounded",
    ),
    Mutant(
        "refrag: the policy's training moves the encoder",
        TRAINED,
        "network.train_only_parts(network.choosing)",
        "network.train_only_parts(network.choosing, network.encoding)",
        REFRAG + "test_the_stages_train_their_parts_and_the_engine_reads_as_in_training",
    ),
    Mutant(
        "cache augmentation: groups see one another",
        "models/learned/kinds/coprocessor.py",
        "(group[:, None] == group) &",
        "(group[:, None] >= group) &",
        CACHE + "test_one_pass_over_groups_is_a_pass_for_each",
    ),
    Mutant(
        "cache augmentation: a place sees the token behind it",
        AUGMENTED,
        "torch.arange(past[0][0].shape[2]) <= place_BG[..., None]",
        "torch.arange(past[0][0].shape[2]) <= place_BG[..., None] + 1",
        CACHE + "test_one_pass_over_groups_is_a_pass_for_each",
    ),
    Mutant(
        "cache augmentation: the last layer's cache in the place of every layer's",
        "laws/targets/augmented.py",
        "session.layer_memory(at)",
        "session.memory()",
        CACHE + "test_vectors_come_from_the_cache_of_every_layer",
    ),
    Mutant(
        "cache augmentation: an evicted session's empty cache is read",
        "laws/targets/augmented.py",
        "if memory[0][0].shape[1] == len(prompt):\n            return memory",
        "if True:\n            return memory",
        CACHE + "test_every_method_writes_the_same",
    ),
    Mutant(
        "cache augmentation: vectors stand where the prompt's last token was read",
        "models/learned/kinds/coprocessor.py",
        "first = torch.tensor([[n]])",
        "first = torch.tensor([[n - 1]])",
        CACHE + "test_it_is_trained_and_the_engine_reads_as_in_training",
    ),
    Mutant(
        "cache augmentation: the model is trained as well",
        AUGMENTED,
        "model.requires_grad_(False)",
        "model.requires_grad_(True)",
        CACHE + "test_gradients_reach_the_coprocessor_alone",
    ),
    Mutant(
        "arc-encoder: the last group may be tiny",
        POOLS,
        "torch.arange(length) * -(-length // factor) // length",
        "torch.arange(length) // factor",
        ARC + "test_groups_are_balanced_and_lie_side_by_side",
    ),
    Mutant(
        "arc-encoder: tokens see what stands before them alone",
        POOLS,
        "none, torch.ones(1, N, N, dtype=torch.bool)",
        "none, torch.ones(1, N, N, dtype=torch.bool).tril()",
        ARC + "test_pooling_is_that_of_the_paper",
    ),
    Mutant(
        "arc-encoder: keys and values are pooled, too",
        POOLS,
        "mean_GN @ x, x, (asks, turn), none, see)",
        "mean_GN @ x, mean_GN @ x, (asks, asks), none, see[..., :G])",
        ARC + "test_pooling_is_that_of_the_paper",
    ),
    Mutant(
        "arc-encoder: the first of a group asks, not the mean",
        POOLS,
        "mean_GN = mean_GN / mean_GN.sum(1, keepdim=True)",
        "mean_GN = mean_GN * (mean_GN.cumsum(1) == 1)",
        ARC + "test_pooling_is_that_of_the_paper",
    ),
    Mutant(
        "arc-encoder: nothing stands behind a passage",
        POOLS,
        "torch.cat([*parts, behind])",
        "torch.cat(parts)",
        ARC + "test_one_token_a_vector_without_layers_is_the_embedding",
    ),
    Mutant(
        "arc-encoder: a long passage is read in one part",
        POOLS,
        "chunk = self.sizes.chunk",
        "chunk = 1 << 16",
        ARC + "test_lengths_are_the_card_s_and_short_passages_stay",
    ),
    Mutant(
        "arc-encoder: passages become longer",
        POOLED,
        "if passage and -(-len(ids) // each) + 1 < len(ids):",
        "if passage:",
        ARC + "test_lengths_are_the_card_s_and_short_passages_stay",
    ),
    Mutant(
        "arc-encoder: nothing is written once more in training",
        POOLING,
        "chance) < spec.rewriting)",
        "chance) < 0.0)",
        ARC + "test_the_two_tasks_of_pretraining",
    ),
    Mutant(
        "arc-encoder: no words in front in training",
        POOLING,
        "torch.randint(0, FRONT + 1, (), generator=chance)",
        "torch.randint(0, 1, (), generator=chance)",
        ARC + "test_the_two_tasks_of_pretraining",
    ),
    Mutant(
        "arc-encoder: all answers are learned in tuning",
        POOLING,
        "[0][:, -1].mean()",
        "[0].mean()",
        ARC + "test_tuning_learns_the_last_answer_alone",
    ),
    Mutant(
        "arc-encoder: a decoder is trained",
        POOLING,
        "d.requires_grad_(False) for d",
        "d.requires_grad_(True) for d",
        ARC + "test_gradients_reach_encoder_projector_and_learned_vectors_alone",
    ),
    Mutant(
        "arc-encoder: one decoder is drawn at all steps",
        POOLING,
        "torch.randint(0, spec.decoders, (), generator=dice)",
        "torch.randint(0, 1, (), generator=dice)",
        ARC + "test_gradients_reach_encoder_projector_and_learned_vectors_alone",
    ),
    Mutant(
        "arc-encoder: the encoder begins at random",
        POOLING,
        "own[n].detach().clone() for n",
        "torch.randn_like(own[n]) for n",
        ARC + "test_the_encoder_begins_as_the_first_decoder_s_first_layers",
    ),
    Mutant(
        "arc-encoder: a shared encoder is trained on",
        POOLING,
        "network.encoder.requires_grad_(False)",
        "network.encoder.requires_grad_(True)",
        ARC + "test_another_decoder_takes_the_encoder_as_it_is",
    ),
]
