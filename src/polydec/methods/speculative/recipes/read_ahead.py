"""Read ahead: a reader that reads a whole word at once drafts for the model that writes it."""

from __future__ import annotations

from typing import Annotated

from polydec.base.options import InRange
from polydec.core.decoder import Decoder
from polydec.core.types import Exactness
from polydec.methods.registry.card import Card
from polydec.methods.registry.kit import IMAGE, ArtefactNeed, Kit

CARD = Card(
    name="read-ahead",
    title="Read ahead",
    summary="A one-pass reader (cppd, lister or mdiff4str) guesses the word in an image; the model keeps the letters that it "
    "agrees with.",
    kind="draft-and-verify",
    family="ar",
    guarantee=Exactness.LAW,
    source="Ge, Xia, Sun, Chen, Wei, Lossless acceleration for seq2seq generation with aggressive decoding, 2022 "
    "(the generalised form, with readers as drafters)",
    reduces_to="plain where nothing is accepted",
    parent="plain",
    home="words in images",
    needs=(IMAGE, ArtefactNeed("word-reader")),
    needs_training=True,
)


def build(
    kit: Kit, *, depth: Annotated[int, InRange(1, 64), "letters of a draft at most"] = 16
) -> Decoder:
    from polydec.methods.speculative.drafters.read_word import ReadWordDrafter
    from polydec.methods.speculative.loop.speculative import SpeculativeDecoder
    from polydec.methods.speculative.policies.fixed import FixedPolicy
    from polydec.methods.speculative.verifiers.match import MatchVerifier
    from polydec.models.learned.kinds.word_reader import WordReader

    drafter = ReadWordDrafter(kit.needed_artefact(WordReader), kit.read_strip)
    return SpeculativeDecoder(kit.target, drafter, MatchVerifier(), FixedPolicy(depth))
