"""Mutants of embeddings along several paths: each takes out what their training or their reading promises."""

from mutant import Mutant

TRAINED = "tests/lab/train/test_train_parallel_embeddings.py"
READ = "tests/request/test_path_embeddings.py"

MUTANTS = [
    Mutant(
        "parallel embeddings: paths may say the same",
        "lab/train/parallel_embeddings.py",
        "loss = loss + spec.information * told",
        "loss = loss + 0 * told",
        f"{TRAINED}::test_the_loss_is_that_of_each_path_of_their_mean_and_of_what_they_share",
    ),
    Mutant(
        "parallel embeddings: the mean over paths is not held to its answer",
        "lab/train/parallel_embeddings.py",
        "if spec.joined:",
        "if False:",
        f"{TRAINED}::test_the_loss_is_that_of_each_path_of_their_mean_and_of_what_they_share",
    ),
    Mutant(
        "parallel embeddings: the first path alone is held to its answer",
        "lab/train/parallel_embeddings.py",
        "for query_BW, answer_BW in zip(query_KBW, answer_KBW, strict=True)",
        "for query_BW, answer_BW in zip(query_KBW[:1], answer_KBW[:1], strict=True)",
        f"{TRAINED}::test_the_loss_is_that_of_each_path_of_their_mean_and_of_what_they_share",
    ),
    Mutant(
        "parallel embeddings: all paths begin with one prefix",
        "lab/train/parallel_embeddings.py",
        "torch.randn(shape, generator=g) * table_VW.std()",
        "torch.randn(shape[1:], generator=g).expand(shape) * table_VW.std()",
        f"{TRAINED}::test_paths_begin_unlike_and_inputs_are_the_same_in_company",
    ),
    Mutant(
        "parallel embeddings: the estimator stays as it begins",
        "lab/train/parallel_embeddings.py",
        "if spec.information and student.path_pairs:\n            pairs =",
        "if False:\n            pairs =",
        f"{TRAINED}::test_the_estimator_follows_each_step",
    ),
    Mutant(
        "parallel embeddings: adapters have the names of the language model alone",
        "lab/train/lora.py",
        "if file_names is not None:",
        "if False:",
        f"{TRAINED}::test_what_was_trained_is_what_embed_reads",
    ),
    Mutant(
        "information: nothing is held against other samples",
        "lab/train/mutual_information.py",
        "own_PB.mean(1) - logp_PBC.mean((1, 2))",
        "own_PB.mean(1)",
        f"{TRAINED}::test_information_is_none_of_independent_vectors_and_much_of_equal_ones",
    ),
    Mutant(
        "information: what it judges bends to the estimator",
        "lab/train/mutual_information.py",
        "self.register_buffer(name, first)",
        "self.register_parameter(name, nn.Parameter(first))",
        f"{TRAINED}::test_the_estimator_is_learned_by_itself_alone",
    ),
    Mutant(
        "path embeddings: no prefix stands before the text",
        "request/embedding.py",
        "EmbeddingInput((*prefixes.prefix_ids(path), *text.ids), None)",
        "EmbeddingInput(text.ids, None)",
        f"{READ}::test_paths_are_joined_from_single_ones",
    ),
    Mutant(
        "path embeddings: a long path speaks louder",
        "request/embedding.py",
        "path_KH = normalize(torch.stack(rows).float(), dim=-1)",
        "path_KH = torch.stack(rows).float()",
        f"{READ}::test_paths_are_joined_from_single_ones",
    ),
    Mutant(
        "path embeddings: the images of texts are left out",
        "request/embedding.py",
        "image = images[at] if images else None",
        "image = None",
        f"{READ}::test_an_image_stands_before_its_text",
    ),
]
