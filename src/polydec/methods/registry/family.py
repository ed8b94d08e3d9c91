"""The families of models: which loop decodes one, which method it has where nobody names one, and
what messages call it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class DecodingFamily:
    """A kind of model.

    Attributes:
        name: What cards and `polydec methods` call it.
        called: What a sentence calls one of its models, with the article.
        default_method: The method that `auto` means.
        own_methods: What can decode it, as the end of a sentence.
        continues_text: Whether it has a law of the next token behind a text.
    """

    name: str
    called: str
    default_method: str
    own_methods: str
    continues_text: bool = False


AUTOREGRESSIVE = DecodingFamily(
    "ar",
    "an autoregressive",
    "auto",
    "plain, auto or another of the family 'ar'",
    continues_text=True,
)
MASKED_DIFFUSION = DecodingFamily(
    "diffusion",
    "a masked-diffusion",
    "fast-dllm",
    "llada, fast-dllm or another of the family 'diffusion'",
)
INSERTION = DecodingFamily(
    "insertion", "an insertion", "insertion-language-models", "insertion-language-models"
)

PATCH_FILLING = DecodingFamily(
    "patches",
    "a masked patch",
    "masked-mar",
    "masked-mar or another of the family 'patches'",
)

FAMILIES = {
    family.name: family for family in (AUTOREGRESSIVE, MASKED_DIFFUSION, INSERTION, PATCH_FILLING)
}
"""Every family by its name."""


def family_of(model: object) -> DecodingFamily:
    """The family of a model. One that does not say which continues texts."""
    return FAMILIES[getattr(model, "family", AUTOREGRESSIVE.name)]
