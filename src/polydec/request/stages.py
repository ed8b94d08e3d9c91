"""What a request is behind each stage of its road: checked, encoded, bent, and a plan that an
engine can run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from polydec.core.decoder import Decoder
from polydec.core.protocols import Shaper, Target
from polydec.core.request import Request
from polydec.core.types import TokenVocabulary
from polydec.laws.constraints.in_time import DeadlineLanguage
from polydec.laws.constraints.protocols import TokenLanguage
from polydec.laws.shapers.logits_processor import LogitsProcessorRule
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.registry.card import Card
from polydec.methods.registry.family import DecodingFamily
from polydec.methods.registry.kit import ModelArtefact
from polydec.models.formats.images import DecodedImage, Image, PixelStrip
from polydec.models.sessions.encoder_decoder import SourceContent
from polydec.models.sessions.reuse import CacheReuse
from polydec.models.sessions.soft import Soft
from polydec.request.fields import Ask, Prompt
from polydec.request.gap_marks import GapMarks
from polydec.request.loaded import LoadedModel
from polydec.request.prompt_encoder import PromptForm, VectorPrompt
from polydec.request.thinking import ThinkingSettings

if TYPE_CHECKING:
    from polydec.laws.constraints.canvas_language import CanvasLanguage
    from polydec.models.nets.press import CachePress
    from polydec.models.sessions.image_press import ImagePress


@dataclass(frozen=True)
class PressSettings:
    """A checked way to keep old keys and values.

    Attributes:
        card: Of the press.
        options: All its options with the values they have.
        press: The press itself.
    """

    card: Card
    options: Mapping[str, Any]
    press: CachePress | ImagePress


@dataclass(frozen=True)
class SteeringSettings:
    """A checked way to steer.

    Attributes:
        card: Of the way.
        options: All its options with the values they have.
        prompt: The second prompt as it was given, or derived from the first. None: it reads none.
        second: The ids of that. None: it reads none, or they are not made yet.
    """

    card: Card
    options: Mapping[str, Any]
    prompt: Prompt | None = None
    second: tuple[int, ...] | None = None


@dataclass(frozen=True)
class CheckedRequest:
    """A request whose fields are converted and legal for a model, each by itself and all together.

    Attributes:
        loaded: The model as it was loaded.
        model: The same as a law over the units that are asked for.
        family: What its kind of model makes of requests.
        ask: The request; every value is of its field's type.
        form: In which form its prompt was given.
        recipe: The method's module.
        options: All options of the method with the values they have.
        sampling: Those that are asked for, or the checkpoint's own.
        stop_ids: Token ids that end an answer beside the end-of-text tokens.
        press: How old keys and values are kept. None: as they are.
        steering: How the law is steered; no second prompt is encoded yet. None: it is not.
    """

    loaded: LoadedModel
    model: LoadedModel
    family: RequestFamily
    ask: Ask
    form: PromptForm
    recipe: ModuleType
    options: Mapping[str, Any]
    sampling: Sampling
    stop_ids: frozenset[int]
    press: PressSettings | None = None
    steering: SteeringSettings | None = None

    @property
    def card(self) -> Card:
        """Of the method."""
        return self.recipe.CARD

    @property
    def vocab(self) -> TokenVocabulary:
        """Of the units that are asked for."""
        return self.model.checkpoint.lm.vocab

    @property
    def eos(self) -> frozenset[int]:
        """The end-of-text tokens that end an answer."""
        if self.ask.ignore_eos:
            return frozenset()
        return self.vocab.eos

    @property
    def constraint_ends(self) -> frozenset[int]:
        """The ids that end a constrained answer; a stop id that is text as well ends it wherever it
        is written."""
        words = self.vocab.words
        known = () if words is None else words.pieces
        return self.eos | {x for x in self.stop_ids if x >= len(known) or known[x] is None}


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt with images that no model has read yet.

    Attributes:
        parts: Token ids, and vectors of the user's own; an image's token stands for each image.
        images: The images, in the order of their places.
    """

    parts: tuple[int | Soft, ...]
    images: tuple[Image | DecodedImage, ...]


@dataclass(frozen=True)
class EncodedRequest:
    """A checked request and the token ids of all its texts.

    Attributes:
        checked: The request.
        model: The model as it reads this prompt: an encoder-decoder model behind its source, a
            draft over bytes with the prompt as its own tokenizer has it.
        ids: Of the prompt, as all see it who know words.
        source: What an encoder-decoder model reads beside the text.
        vectors: What the model reads in the place of `ids`, where vectors stand in the prompt.
        image_prompt: The prompt before its images were read. None: it has none.
        image_spans: Where vectors of images stand in what the model reads: of each run the first place
            and the one behind its last.
        steering: How the law is steered, with the ids of a second prompt.
        infill: The answer with gaps, None for each of them. Empty: nothing of it is known.
        gap_patterns: Of each of its gaps that has a pattern the first position in the answer, the
            one behind its last, and the pattern.
        gap_marks: By which a model that continues texts fills gaps; None where there are no gaps,
            or the model fills a canvas.
    """

    checked: CheckedRequest
    model: LoadedModel
    ids: tuple[int, ...]
    source: SourceContent = ()
    vectors: VectorPrompt | None = None
    image_prompt: ImagePrompt | None = None
    image_spans: tuple[tuple[int, int], ...] = ()
    steering: SteeringSettings | None = None
    infill: tuple[int | None, ...] = ()
    gap_patterns: tuple[tuple[int, int, str], ...] = ()
    gap_marks: GapMarks | None = None

    @property
    def ask(self) -> Ask:
        """The request, with typed values."""
        return self.checked.ask

    @property
    def source_tokens(self) -> tuple[int, ...]:
        """The source, as far as it is tokens: an image has none."""
        if isinstance(self.source, PixelStrip):
            return ()
        return self.source

    @property
    def source_strip(self) -> PixelStrip | None:
        """The source, where it is an image."""
        if isinstance(self.source, PixelStrip):
            return self.source
        return None

    def with_max_tokens(self, count: int) -> EncodedRequest:
        """The same request with so many tokens of an answer at most."""
        ask = replace(self.ask, max_tokens=count)
        return replace(self, checked=replace(self.checked, ask=ask))


@dataclass(frozen=True)
class ShapedLaws:
    """The laws that a method decodes, shaped by the rules of sampling.

    Attributes:
        target: Of the model.
        draft: Gives that of the draft model, or None; a draft model is loaded when a method first
            asks.
        shapers: The rules that are left to the method, which applies them to each gap or slot by
            itself.
    """

    target: Any
    draft: Callable[[], Any]
    shapers: tuple[Shaper[Any], ...] = ()


class RequestFamily(Protocol):
    """A kind of model, as far as requests are concerned.

    Attributes:
        kind: Of its methods and its loop.
    """

    @property
    def kind(self) -> DecodingFamily: ...

    def check_request(self, checked: CheckedRequest) -> None:
        """Raise RequestError for the first field of a request that no model of this kind can
        honour."""
        ...

    def encode_prompt(self, checked: CheckedRequest, room: int | None = None) -> EncodedRequest:
        """Encode the prompt of a request.

        Args:
            checked: The request.
            room: Tokens that there is room for, far beyond which a text is not even encoded. None:
                no bound.

        Returns:
            The request with the ids of its prompt, and of its source where it has one.

        Raises:
            RequestError: The prompt cannot be read.
        """
        ...

    def shape_laws(self, bent: BentRequest) -> ShapedLaws:
        """What a method decodes: the laws of the model and its draft, shaped by the rules of
        sampling. Raises RequestError for a rule that is none for this kind of model."""
        ...


@dataclass(frozen=True)
class BentRequest:
    """An encoded request with its laws.

    Attributes:
        encoded: The request.
        request: The same in token ids, as decoders take it.
        bare_law: The model's law behind the prompt, over the cache that is asked for.
        law: The same, steered; equal to `bare_law` where nothing steers.
        language: Which answers are allowed. None: all.
        ending: What brings answers to an end in time. None: nothing does.
        thinking: How thinking is read. None: it is left as it stands.
        reuse: What is taken of an earlier text's cache. None: nothing.
        processor: The request's function of rows. None: there is none.
        canvas: Which canvases are allowed. None: all.
    """

    encoded: EncodedRequest
    request: Request
    bare_law: Target
    law: Target
    language: TokenLanguage[Any] | None = None
    ending: DeadlineLanguage | None = None
    thinking: ThinkingSettings | None = None
    reuse: CacheReuse | None = None
    processor: LogitsProcessorRule | None = None
    canvas: CanvasLanguage | None = None


@dataclass(frozen=True)
class RequestPlan:
    """A request that an engine can run.

    Attributes:
        encoded: The request behind the stage of encoding.
        request: The same in token ids, as decoders take it.
        decoder: What answers it.
        ending: What brings its answers to an end in time. None: nothing does.
        thinking: How thinking is read. None: it is left as it stands.
        reuse: What is taken of an earlier text's cache. None: nothing.
        read: The model's artefacts that the method asked for.
    """

    encoded: EncodedRequest
    request: Request
    decoder: Decoder
    ending: DeadlineLanguage | None = None
    thinking: ThinkingSettings | None = None
    reuse: CacheReuse | None = None
    read: tuple[ModelArtefact, ...] = ()

    @property
    def card(self) -> Card:
        """Of the method."""
        return self.encoded.checked.card

    @property
    def options(self) -> Mapping[str, Any]:
        """All options of the method with the values they have."""
        return self.encoded.checked.options

    @property
    def steering(self) -> SteeringSettings | None:
        """How the law is steered."""
        return self.encoded.steering

    @property
    def press_settings(self) -> PressSettings | None:
        """How old keys and values are kept."""
        return self.encoded.checked.press

    @property
    def unit(self) -> str:
        """What ids of the request and its answers stand for, "token" or "byte"."""
        return self.encoded.checked.model.checkpoint.unit

    @property
    def source(self) -> int:
        """Tokens, or positions of an image, that are read beside the prompt."""
        return len(self.encoded.source)

    @property
    def is_pinned(self) -> bool:
        """Whether its caches may not be given back and fed again, which would change the law."""
        return self.reuse is not None and self.reuse.edited

    @property
    def method(self) -> dict[str, Any]:
        """What will run, as results and traces name it."""
        out = {
            "name": self.card.name,
            "guarantee": self.decoder.exactness.value,
            "options": dict(self.options),
        }
        if self.steering is not None:
            out["steering"] = {
                "name": self.steering.card.name,
                "options": dict(self.steering.options),
            }
        # The guarantee is towards the law over this cache.
        if self.press_settings is not None:
            out["cache"] = {
                "name": self.press_settings.card.name,
                "options": dict(self.press_settings.options),
            }
        # And towards the law behind this one, where that is approximate.
        if self.reuse is not None:
            out["reuse"] = self.reuse.told
        return out
