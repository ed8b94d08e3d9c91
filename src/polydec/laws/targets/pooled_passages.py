"""A law behind a prompt whose passages are read as a vector for every few tokens (ARC-Encoder)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from polydec.core.protocols import Target
from polydec.laws.targets.soft_prompt import SoftPromptTarget
from polydec.models.learned.passages import PassageMarks, split_passages
from polydec.models.sessions.soft import make_soft_tokens


class PassagePoolingEncoder(Protocol):
    """Make vectors of whole passages (models/learned/kinds/arc_encoder.py)."""

    @property
    def trained_factor(self) -> int: ...
    @property
    def passage_marks(self) -> PassageMarks: ...
    def passage_vectors(
        self, passage: Sequence[int], factor: int, task: str, coded: bool = False
    ) -> Tensor:
        """Make what is read in the place of a passage.

        Args:
            passage: Token ids, at least one.
            factor: Tokens for each vector.
            task: Name of the learned vector behind them.
            coded: Whether they are kept as codes, and read as what these stand for.

        Returns:
            The vectors, the learned one last, shape ``[G + 1, H]``.
        """
        ...


def pool_prompt_passages(
    target: Target,
    prompt: Sequence[int],
    encoder: PassagePoolingEncoder,
    factor: int,
    task: str,
    coded: bool = False,
) -> SoftPromptTarget:
    """Show a target the passages of a prompt as a vector for every `factor` tokens, and one more
    behind each passage that says what is to be done with it (ARC-Encoder).

    A passage that would not become shorter is read as it is. Whoever reads words is given the
    prompt.

    Exact: the law of `target` behind these vectors.
    Reduces to: `target` at factor 1, and where no passage stands in the prompt.
    Source: Pilchen, Grave and Pérez, "ARC-Encoder" (2025).

    Args:
        target: The law to read.
        prompt: Token ids of the prompt, passages between the marks of the encoder.
        encoder: Makes the vectors.
        factor: Tokens for each vector; 0: as many as the encoder was trained for.
        task: Name of the learned vector behind each passage, as the encoder has them.
        coded: Whether passages are kept as codes, and read as what these stand for. Default False.

    Returns:
        The target behind the shortened prompt.

    Raises:
        RequestError: Codes are asked for, and the encoder has none.
    """
    each = factor or encoder.trained_factor
    # `instead`: the ids that are read. `rows`: for each token of the prompt the place in `instead`
    # at which its row is read.
    instead = list[int]()
    rows = list[int]()
    for span, passage in split_passages(prompt, encoder.passage_marks):
        ids = [prompt[at] for at in span]
        # Where this part begins in what is read.
        begun = len(instead)
        # As many vectors as tokens, or more, would be a detour.
        if passage and -(-len(ids) // each) + 1 < len(ids):
            made = encoder.passage_vectors(ids, each, task, coded)
            # Ids above the vocabulary stand for vectors, so that sessions can tell texts apart.
            instead += make_soft_tokens(made, target.vocab.size, made.shape[1], "a passage")
            # Rows are spread evenly; the last one is that of the vector behind the passage, which
            # is what foretells the mark.
            rows += [begun + i * (len(made) - 1) // (len(ids) - 1) for i in range(len(ids))]
        else:
            # Marks and plain text, and passages that stay: each row is the token's own.
            rows += range(begun, begun + len(ids))
            instead += ids
    # The last token has no entry: behind it stands the law itself.
    return SoftPromptTarget(target, tuple(prompt), tuple(instead), tuple(rows[:-1]))
