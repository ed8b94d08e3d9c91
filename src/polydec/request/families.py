"""What each kind of model makes of a request: which fields it can honour, how it reads a prompt,
how its laws are bent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.protocols import Shaper
from polydec.laws.shapers.row_ends import RowEndRule
from polydec.laws.shapers.sampling import (
    Sampling,
    all_sampling_fields,
    build_shapers,
    stateful_rule_names,
)
from polydec.laws.targets.shaped import ShapedTarget
from polydec.methods.diffusion.loop.allowed_answers import AllowedAnswersDenoiser
from polydec.methods.diffusion.loop.no_early_end import NoEarlyEndDenoiser
from polydec.methods.registry.family import (
    AUTOREGRESSIVE,
    INSERTION,
    MASKED_DIFFUSION,
    PATCH_FILLING,
    DecodingFamily,
    family_of,
)
from polydec.methods.registry.kit import ANY_DRAFT, PATCHES
from polydec.models.sessions.checkpoint import (
    DeferredBundle,
    ModelBundle,
    resolve_deferred_bundle,
)
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel, SourceContent
from polydec.models.text.picture_view import PictureView
from polydec.request.gap_marks import GapMarks, find_gap_marks
from polydec.request.image_prompts import (
    check_image_request,
    encode_image_prompt,
    law_of_seeing_draft,
)
from polydec.request.image_sources import refuse_images, requested_image
from polydec.request.room import count_context_tokens
from polydec.request.stages import (
    BentRequest,
    CheckedRequest,
    EncodedRequest,
    RequestFamily,
    ShapedLaws,
)


def request_family(law: object) -> RequestFamily:
    """What the kind of a model makes of requests. law: of the model as it was loaded."""
    if isinstance(law, EncoderDecoderModel):
        # It continues texts as well, so its kind alone would not tell it apart.
        return ENCODER_DECODER
    return _BY_KIND[family_of(law)]


@dataclass(frozen=True)
class AutoregressiveFamily:
    """Models that continue texts."""

    kind: DecodingFamily = AUTOREGRESSIVE

    def check_request(self, checked: CheckedRequest) -> None:
        if checked.loaded.checkpoint.vision is None:
            _check_no_source(checked)
        else:
            check_image_request(checked)
        _check_patches(checked)
        _check_gaps(checked)
        if checked.form.vectors and checked.model.checkpoint.unit != "token":
            raise RequestError(
                "prompt holds vectors, and units is bytes: a vector stands where tokens would, so leave units out"
            )

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the prompt, and vectors and images that stand in it.

        Args:
            checked: The request.
            room: Tokens that there is room for. None: no bound.

        Returns:
            The request with these ids.

        Raises:
            RequestError: Something of it cannot be read.
        """
        model = checked.model
        ask = checked.ask
        vision = model.checkpoint.vision
        if vision is not None and ask.infill is None:
            return encode_image_prompt(checked, vision, room)
        ids = model.encoder.encode_request(ask, room)
        if ask.infill is not None:
            marks = find_gap_marks(model.checkpoint.text)
            # Without marks the request was refused before.
            assert marks is not None, "checked with the request"
            return EncodedRequest(_end_by(checked, marks), model, ids, gap_marks=marks)
        vectors = None
        if checked.form.vectors:
            # One token's embedding tells how many numbers the network reads at a place.
            width = model.network.embed_tokens((0,)).shape[1]
            vectors = model.encoder.encode_vectors(ask.prompt, ids, width)
        return EncodedRequest(checked, model, ids, vectors=vectors)

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        return _shape_next_token_laws(bent)


@dataclass(frozen=True)
class EncoderDecoderFamily:
    """Models that continue texts which are written from a source. Each source is a law of its own."""

    kind: DecodingFamily = AUTOREGRESSIVE

    def check_request(self, checked: CheckedRequest) -> None:
        _check_no_infill(checked)
        if checked.ask.reuse is not None:
            raise RequestError(
                f"reuse is {checked.ask.reuse!r}: a source is read beside the prompt; leave one of them out"
            )
        if checked.form.vectors:
            raise RequestError(
                "prompt holds vectors: an encoder-decoder model reads ids only, in its source and in its prompt"
            )
        if checked.model.checkpoint.lm.strip is None:
            refuse_images(checked.ask, checked.model.name)
        else:
            requested_image(checked.ask, checked.model.name)

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the source, and bind the model and its draft to it.

        Args:
            checked: The request.
            room: Tokens that there is room for. None: no bound.

        Returns:
            The request with these ids.

        Raises:
            RequestError: Something of it cannot be read.
        """
        model = checked.model
        salt = checked.ask.cache_salt
        point = model.checkpoint
        # What the model's encoder reads decides, not what was given.
        strip = point.lm.strip
        if strip is None:
            source: SourceContent = model.encoder.encode_source(checked.ask, room)
        else:
            # Imported here: most models read no image.
            from polydec.models.formats.image_decoding import read_pixel_strip

            source = read_pixel_strip(requested_image(checked.ask, model.name), strip)
        begins = model.encoder.encode_answer_beginning(checked.ask)
        # The law behind a source is an ordinary law of the next token; methods need not know of
        # sources.
        behind = replace(
            model, checkpoint=replace(point, lm=point.lm.law_given_source(source, salt))
        )
        draft = model.draft
        if draft is not None:
            # The draft reads the source only once somebody asks for it.
            deferred = DeferredBundle(
                draft.name, lambda: _behind_source(resolve_deferred_bundle(draft), source, salt)
            )
            behind = replace(behind, draft=deferred)
        # Decoders begin with a token of their own; the prompt then begins the answer.
        return EncodedRequest(checked, behind, (*point.lm.start, *begins), source)

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        return _shape_next_token_laws(bent)


@dataclass(frozen=True)
class MaskedDiffusionFamily:
    """Models that fill canvases: they have a law of each gap, and none of a next token."""

    kind: DecodingFamily = MASKED_DIFFUSION

    def check_request(self, checked: CheckedRequest) -> None:
        _check_no_source(checked)
        _check_no_next_token(checked, self.kind)
        # Named here and not ignored, since the user would wait for a speed-up that cannot come.
        draft = checked.model.draft
        if draft is not None and not checked.card.needs_draft:
            raise RequestError(
                f"draft is {short_repr(draft.name)}: method {checked.card.name} decodes a masked-diffusion model without one "
                "(guided-diffusion takes one)"
            )

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the prompt, which stands before the canvas.

        Args:
            checked: The request.
            room: Tokens that there is room for. None: no bound.

        Returns:
            The request with these ids.

        Raises:
            RequestError: Something of it cannot be read.
        """
        ids = checked.model.encoder.encode_request(checked.ask, room)
        return EncodedRequest(checked, checked.model, ids)

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        model = bent.encoded.model
        request = bent.request
        sampling = bent.encoded.checked.sampling
        denoiser: Any = model.checkpoint.lm
        # A least length is a matter of positions here: the first gaps take no token that ends the text.
        if sampling.min_tokens:
            # Stop tokens end a text as well, so they wait for the least length, too.
            ends = bent.encoded.checked.eos | request.stop_ids
            denoiser = NoEarlyEndDenoiser(denoiser, ends, len(request.prompt) + sampling.min_tokens)
            # Done by position now; the rule itself would look at the text before a token.
            sampling = replace(sampling, min_tokens=0)
        # Outermost, so that whatever fills gaps finds it.
        if bent.canvas is not None:
            denoiser = AllowedAnswersDenoiser(denoiser, bent.canvas)
        # After the least length, which is no longer a rule by now.
        _check_no_state(sampling, "a masked-diffusion model fills gaps")
        shapers = _shape_each_position(bent, sampling)
        return ShapedLaws(denoiser, model.draft_law, shapers)


@dataclass(frozen=True)
class InsertionFamily:
    """Models that put tokens anywhere into a text: they have a law of each slot, and none of a next
    token."""

    kind: DecodingFamily = INSERTION

    def check_request(self, checked: CheckedRequest) -> None:
        _check_no_source(checked)
        _check_no_next_token(checked, self.kind)
        if checked.ask.constraint is not None:
            raise RequestError(
                "constraint needs a text that is written from left to right, or a canvas whose length is known, and an "
                "insertion model writes in any order: leave it out"
            )
        if checked.model.encoder.find_gap_patterns(checked.ask.infill):
            raise RequestError(
                "infill has a gap with a pattern: an insertion model fills gaps of unknown length, so leave it out, "
                "or take a masked-diffusion model"
            )
        draft = checked.model.draft
        if draft is not None:
            raise RequestError(
                f"draft is {short_repr(draft.name)}: an insertion model is decoded without one, so leave it out"
            )

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the prompt, which stands before what is inserted.

        Args:
            checked: The request.
            room: Tokens that there is room for. None: no bound.

        Returns:
            The request with these ids.

        Raises:
            RequestError: Something of it cannot be read.
        """
        ids = checked.model.encoder.encode_request(checked.ask, room)
        return EncodedRequest(checked, checked.model, ids)

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        sampling = bent.encoded.checked.sampling
        _check_no_state(sampling, "an insertion model writes")
        # No draft: a request with one was refused.
        return ShapedLaws(bent.law, lambda: None, _shape_each_position(bent, sampling))


@dataclass(frozen=True)
class PatchFillingFamily:
    """Models that fill canvases with patches of a picture, which are vectors: they have a state of each
    gap, and no law of tokens."""

    kind: DecodingFamily = PATCH_FILLING

    def check_request(self, checked: CheckedRequest) -> None:
        _check_no_source(checked)
        _check_no_next_token(checked, self.kind)
        _check_patches(checked)

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the prompt, which stands before the canvas.

        Args:
            checked: The request.
            room: Tokens that there is room for. None: no bound.

        Returns:
            The request with these ids.

        Raises:
            RequestError: Something of it cannot be read.
        """
        ids = checked.model.encoder.encode_request(checked.ask, room)
        return EncodedRequest(checked, checked.model, ids)

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        # Rules of sampling were refused: there are no laws of tokens.
        model = bent.encoded.model
        return ShapedLaws(model.checkpoint.lm, model.draft_law)


# Not in the table below: by its kind it would be taken for one that continues texts only.
ENCODER_DECODER = EncoderDecoderFamily()
_BY_KIND: dict[DecodingFamily, RequestFamily] = {
    family.kind: family
    for family in (
        AutoregressiveFamily(),
        MaskedDiffusionFamily(),
        InsertionFamily(),
        PatchFillingFamily(),
    )
}


def _check_no_source(checked: CheckedRequest) -> None:
    """Raise RequestError where a request has a source, which only an encoder reads, or an image."""
    refuse_images(checked.ask, checked.model.name)
    if checked.ask.source is not None:
        raise RequestError(
            f"source is given: {checked.model.name} reads nothing beside its prompt (an encoder-decoder model does), "
            "so leave it out"
        )


def _check_patches(checked: CheckedRequest) -> None:
    """Raise RequestError where a model that draws patches, which are vectors, is asked for what needs
    laws of tokens."""
    view = checked.loaded.checkpoint.view
    if view is None or view.patch is None:
        return
    ask = checked.ask
    who = f"{checked.loaded.name} draws patches, which are vectors and no tokens"
    if PATCHES not in checked.card.needs:
        raise RequestError(
            f"method is {checked.card.name!r}: {who}; take mar, continuous-speculative or continuous-speculative-exact"
        )
    # Rules that do nothing are no rules: a checkpoint may name a temperature of 1.
    plain = Sampling()
    bent = {name: getattr(checked.sampling, name) for name in all_sampling_fields()}
    # Each entry is a field, and whether it speaks of the law of a next token.
    given = {
        **{name: value != getattr(plain, name) for name, value in bent.items()},
        "steer": ask.steer is not None or ask.negative_prompt is not None,
        "constraint": ask.constraint is not None,
        "logprobs": ask.logprobs is not None,
        "prompt_logprobs": ask.prompt_logprobs is not None,
        "best_of": ask.best_of is not None,
        "logits_processor": ask.logits_processor is not None,
        "cache": ask.cache is not None,
        "infill": ask.infill is not None,
    }
    for name, is_given in given.items():
        if is_given:
            raise RequestError(f"{name} is given: {who}, so leave it out")


def _check_gaps(checked: CheckedRequest) -> None:
    """Raise RequestError where an answer has gaps that a model which continues texts cannot fill."""
    ask = checked.ask
    if ask.infill is None:
        return
    # Whether a model was trained to fill gaps is seen in its tokenizer alone.
    marks = find_gap_marks(checked.model.checkpoint.text)
    if marks is None:
        _check_no_infill(checked)
        return
    if checked.model.encoder.find_gap_patterns(ask.infill):
        raise RequestError(
            "infill has a gap with a pattern: this model fills gaps of unknown length, so give a constraint for all of "
            "them, or take a masked-diffusion model"
        )
    # Each entry is a field, and whether it belongs to one text that is written from left to right.
    given = {
        "units": ask.units != "tokens",
        "ignore_eos": ask.ignore_eos,
        "finish": ask.finish,
        "logprobs": ask.logprobs is not None,
        "best_of": ask.best_of is not None,
        "reuse": ask.reuse is not None,
        "a vector in the prompt": checked.form.vectors,
    }
    for name, is_given in given.items():
        if is_given:
            raise RequestError(
                f"{name} is given beside infill: this model fills each gap behind a text of its own, so leave it out"
            )


def _end_by(checked: CheckedRequest, marks: GapMarks) -> CheckedRequest:
    """The request with a sampling that ends a gap by its own mark and nothing else, and writes no
    other mark."""
    # The usual end would end the whole text, and another gap's mark begin a gap.
    others = {*(checked.vocab.eos - {marks.filled}), *marks.gaps}
    sampling = checked.sampling
    # Each once and in order, so that equal requests have equal samplings.
    banned = (*sampling.bad_token_ids, *sorted(others - {*sampling.bad_token_ids}))
    return replace(checked, sampling=replace(sampling, bad_token_ids=banned))


def _check_no_infill(checked: CheckedRequest) -> None:
    """Raise RequestError where an answer has gaps, which a model that continues texts cannot fill."""
    if checked.ask.infill is not None:
        raise RequestError(
            "infill is given: only a masked-diffusion or an insertion model fills gaps, such as zoo:diffusion, and one of "
            "`polydec train lm --objective cm3`"
        )


def _check_no_next_token(checked: CheckedRequest, kind: DecodingFamily) -> None:
    """Raise RequestError for the first field that needs a law of the next token behind a text."""
    ask = checked.ask
    model = f"{kind.called} model"
    if checked.press is not None:
        raise RequestError(
            f"cache is {short_repr(checked.press.card.name)}: {model} feeds its text anew and has no old keys to press"
        )
    if ask.reuse is not None:
        raise RequestError(f"reuse is {ask.reuse!r}: {model} feeds its text anew, so leave it out")
    if checked.form.vectors:
        raise RequestError(f"prompt holds vectors: {model} reads token ids only")
    if checked.steering is not None:
        raise RequestError(
            f"steer is {short_repr(checked.steering.card.name)}: {model} has no law of a next token to steer"
        )
    # A budget counts what was thought before the answer, and here nothing is written before it.
    if ask.reasoning_budget is not None:
        raise RequestError(
            f"reasoning_budget is {ask.reasoning_budget}: {model} writes in any order, so leave it out"
        )
    if ask.logits_processor is not None:
        raise RequestError(
            f"logits_processor is given: it bends the law of the next token, and {model} writes in any order: leave it out"
        )
    if ask.prompt_logprobs is not None:
        raise RequestError(
            f"prompt_logprobs is {ask.prompt_logprobs}: {model} has no law of a next token, so leave it out"
        )


def _check_no_state(sampling: Sampling, who: str) -> None:
    """Raise RequestError for a sampling rule that looks at the text before a token. who: is
    decoded, and does what."""
    rules = stateful_rule_names(sampling)
    # Not among the rules with a state, as it acts through the end token alone.
    if not rules and sampling.min_tokens:
        rules = ("min_tokens",)
    if rules:
        raise RequestError(
            f"sampling rule {rules[0]} looks at the text before a token, and {who} in any order: leave it out"
        )


def _behind_source(point: ModelBundle, source: SourceContent, cache_salt: str) -> ModelBundle:
    """A draft that reads the source as well, where it can."""
    # A plain draft still guesses from the answer's own tokens.
    if not isinstance(point.lm, EncoderDecoderModel):
        return point
    return replace(point, lm=point.lm.law_given_source(source, cache_salt))


def _shape_each_position(bent: BentRequest, sampling: Sampling) -> tuple[Shaper[Any], ...]:
    """The rules that a method applies to the law of each gap or slot by itself."""
    order = bent.encoded.ask.order
    return build_shapers(sampling, order=order, seed=bent.request.seed, choice=0)


def row_end_rule(view: PictureView | None) -> RowEndRule | None:
    """Where the rows of a model's pictures end with a mark; None: nowhere, or its answers are texts."""
    if view is None or view.row_end is None:
        return None
    return RowEndRule(view.width, view.row_end)


def _shape_next_token_laws(bent: BentRequest) -> ShapedLaws:
    """The law of the next token and, where a method asks for it, the draft's, both shaped by the
    rules of sampling."""
    encoded = bent.encoded
    request = bent.request
    model = encoded.model
    checked = encoded.checked
    order = encoded.ask.order
    build = partial(
        build_shapers,
        checked.sampling,
        order=order,
        eos=checked.eos,
        stop_ids=request.stop_ids,
        seed=request.seed,
        choice=0,
        words=checked.vocab.words,
        # Some rules measure how near tokens lie to one another.
        geometry=model.checkpoint.lm.geometry,
        language=bent.language,
    )
    # A picture's layout comes first: no other rule writes over it.
    rows = row_end_rule(model.checkpoint.view)
    laid = () if rows is None else (rows,)
    shapers = (*laid, *build(processor=bent.processor))
    # The same rules for the draft: what it proposes is what the law would take.
    draft_shapers = shapers
    if bent.processor is not None:
        # Of its own: where it fails at a row of the draft, it may be right about the model's.
        draft_shapers = (*laid, *build(processor=bent.processor.for_draft()))

    # Once a request, and only if a method asks: the draft may not be loaded yet.
    @cache
    def shaped_draft() -> Any:
        draft = model.draft_law()
        length = count_context_tokens(model, request.prompt) + request.max_tokens
        # A draft that may help, and has no room for this text, is left out.
        if draft is None or (not checked.card.needs_draft and draft.network.context < length):
            return None
        # The laws of a canvas' gaps only choose what is proposed, so they stay as they are.
        if not family_of(draft).continues_text:
            return draft
        bent = draft_shapers
        # A draft that may have another vocabulary takes the rules that name no token.
        if ANY_DRAFT in checked.card.needs:
            bent = build_shapers(
                checked.sampling.without_token_fields(),
                order=order,
                eos=draft.vocab.eos,
                seed=request.seed,
                choice=0,
                words=draft.vocab.words,
                geometry=draft.geometry,
            )
        else:
            # Its tokens are the target's, so it may see the images in their places.
            draft = law_of_seeing_draft(encoded, draft)
        if bent:
            return ShapedTarget(draft, *bent)
        return draft

    # Without any rule the law stays as it is, so that the cheapest path remains open.
    law = bent.law
    if shapers:
        law = ShapedTarget(law, *shapers)
    return ShapedLaws(law, shaped_draft)
