"""What a recipe is given: the models, what was trained for them, what passes cost here, and a
memory between requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, cast

from polydec.base.errors import MissingError, PolydecError, RequestError
from polydec.core.protocols import Shaper, Target
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry.family import (
    MASKED_DIFFUSION,
    PATCH_FILLING,
    DecodingFamily,
    family_of,
)

# Every card is read with this module, and a list of methods loads nothing that computes.
if TYPE_CHECKING:
    from polydec.core.canvas_law import Denoiser
    from polydec.core.insertion_law import Inserter
    from polydec.laws.constraints.protocols import TokenLanguage
    from polydec.laws.shapers.row_ends import RowEndRule
    from polydec.models.formats.images import PixelStrip


class ModelArtefact(Protocol):
    """Something that was trained or counted for a model: a table, a head, an adapter. Read from
    disk once, by `polydec.load`.

    called: what it is to a user ("an n-gram table"); kind: its short name, as files and `polydec
    methods` have it; made_by: the command that makes one.
    """

    called: ClassVar[str]
    kind: ClassVar[str]
    made_by: ClassVar[str]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was made for these models.

        Args:
            target: The model's law.
            draft: The draft model's law. None: there is none.

        Raises:
            PolydecError: It was made for others.
        """
        ...


A = TypeVar("A", bound=ModelArtefact)


def check_artefact_fit(
    trained: ModelArtefact, target: Target, draft: Callable[[], Target | None]
) -> None:
    """Check that an artefact was made for these models. The draft model is asked for, and so
    loaded, unless the artefact says that it looks at none (`reads_draft` is False).

    Args:
        trained: The artefact.
        target: The model's law.
        draft: Gives the draft model's law, or None.

    Raises:
        PolydecError: It was made for other models.
    """
    trained.check_fit(target, draft() if getattr(trained, "reads_draft", True) else None)


def any_one(artefact: ModelArtefact) -> bool:
    """Accept every artefact of a type."""
    return True


@dataclass(frozen=True)
class PromptedLaw:
    """A law with the prompt that it is asked behind.

    Attributes:
        target: The law.
        prompt: Token ids of the prompt.
    """

    target: Target
    prompt: tuple[int, ...]


@dataclass(frozen=True)
class OtherPrompts:
    """What a user asked as a text, and what the model would say to another one.

    Attributes:
        text: The prompt.
        law_behind: Gives the law behind another text in its place, with the same images before it,
            steered and shaped alike. It raises RequestError where that leaves no room for an answer.
    """

    text: str
    law_behind: Callable[[str], PromptedLaw]


@dataclass(frozen=True)
class Kit:
    """target: the law to decode, shaped as the request asks, or a masked-diffusion or an insertion
    model, which recipes of those families ask for as `denoiser` and `inserter`; small: the draft
    model's law, or None; artefacts: all that goes with the model; measure: gives the costs of
    passes, called when a recipe first asks for them; memory: what a method leaves for its later
    requests in the same engine; shapers: of a masked-diffusion or an insertion model, which shape
    each gap's or slot's law by itself; beside: the target behind the second prompt of a request,
    None where it has none; language: the texts that the request allows (the target's law holds no
    others), None: all; context: tokens that a prompt and its answer may take together, None: it is
    not known; read: the artefacts that were asked for so far; later: gives the draft model's law in
    place of `small` when a method first asks for it, as loading one takes a while; source: what the
    model reads beside the text (an encoder's input), none where it reads nothing; whole_prompt:
    whether rows of all the prompt's tokens can be asked for: not where an earlier text's cache
    stands behind an edit; prompt: the request's, none where it is not known or holds vectors;
    strip: the image that the model reads beside the text, None where it reads none; shows_image:
    whether an image stands among the words of the prompt; seed: the request's, for a law that is
    drawn once for it; other: what the model would say to other texts than the prompt, None where
    that is no text; rows: where the rows of its pictures end with a mark, None of others and of
    texts (the target's law has the mark there and nowhere else)."""

    target: Target
    small: Target | None = None
    artefacts: tuple[ModelArtefact, ...] = ()
    measure: Callable[[], PassCosts] = PassCosts
    memory: dict[str, Any] = field(default_factory=dict[str, Any])
    shapers: tuple[Shaper[Any], ...] = ()
    beside: Target | None = None
    language: TokenLanguage[Any] | None = None
    context: int | None = None
    read: list[ModelArtefact] = field(default_factory=list[ModelArtefact])
    later: Callable[[], Target | None] | None = None
    source: tuple[int, ...] = ()
    whole_prompt: bool = True
    prompt: tuple[int, ...] = ()
    strip: PixelStrip | None = None
    shows_image: bool = False
    seed: int = 0
    other: OtherPrompts | None = None
    rows: RowEndRule | None = None

    def read_prompt(
        self, method: str, reads: bool = True, unless: str = "take method auto or plain"
    ) -> None:
        """Called by a recipe that asks for rows of all the prompt's tokens.

        Args:
            method: By its name, for the sentence.
            reads: Whether it does so with these options.
            unless: What to do that it does not.

        Raises:
            RequestError: There are none, as an earlier text's cache stands behind an edit.
        """
        # After an edit only what is new is fed: no pass gives rows of the prompt's old tokens.
        if reads and not self.whole_prompt:
            raise RequestError(
                f"reuse is 'edited': method {method} reads rows of the whole prompt, which is not fed again; {unless}, "
                "or reuse 'prefix'"
            )

    @property
    def family(self) -> DecodingFamily:
        """Of the methods that can decode the model."""
        return family_of(self.target)

    @cached_property
    def draft(self) -> Target | None:
        """The draft model's law; None where there is none."""
        # Loading a draft model takes a while: it is loaded when a method first asks for it.
        if self.later is None:
            return self.small
        return self.later()

    @property
    def denoiser(self) -> Denoiser:
        """The model, where it fills canvases, with tokens or with patches (a recipe of those families is
        built for no other)."""
        return cast(Any, self.target)

    @property
    def inserter(self) -> Inserter:
        """The model, where it is an insertion model (a recipe of that family is built for no
        other)."""
        return cast(Any, self.target)

    @property
    def masked_draft(self) -> Denoiser:
        """The draft model, where it fills canvases (a recipe that needs MASKED_DRAFT or PATCH_DRAFT is
        built for no other)."""
        return cast(Any, self.draft)

    @cached_property
    def costs(self) -> PassCosts:
        """What passes cost on this machine."""
        return self.measure()

    @property
    def second(self) -> Target:
        """The target with the request's second prompt.

        Raises:
            MissingError: There is none.
        """
        if self.beside is None:
            raise MissingError("there is no second prompt: give one (--negative-prompt)")
        return self.beside

    @property
    def read_strip(self) -> PixelStrip:
        """The image that the model reads.

        Raises:
            MissingError: There is none.
        """
        if self.strip is None:
            raise MissingError(
                "there is no image: give one (--image) to a model of `polydec train reader`"
            )
        return self.strip

    @property
    def drafting(self) -> Target:
        """The draft model.

        Raises:
            MissingError: There is none.
        """
        if self.draft is None:
            raise MissingError("there is no draft model: name one (--draft)")
        return self.draft

    @property
    def of_draft(self) -> Kit:
        """The kit with the draft model in the target's place: its `need` gives what was trained for
        the draft model. Raises MissingError where there is none."""
        # Without a draft of its own: the draft model has none.
        return replace(self, target=self.drafting, small=None, later=None)

    def find_artefact(self, kind: type[A]) -> A | None:
        """Return an artefact of this type that fits the models; None where there is none."""
        # An artefact that does not fit counts as none: the method can do without it.
        try:
            return self.needed_artefact(kind)
        except PolydecError:
            return None

    def needed_artefact(
        self, kind: type[A], which: Callable[[A], bool] = any_one, asked_by: str = ""
    ) -> A:
        """An artefact of a type, which is noted in `read`.

        Args:
            kind: The type.
            which: Says of each whether it will do.
            asked_by: How the sentence begins where there is none: the option that asks. Default "".

        Returns:
            The first one that fits the models.

        Raises:
            MissingError: There is none.
            PolydecError: There are some, and none of them fits.
        """
        # The first artefact that fits is taken. Where some are there and none fits, the last reason
        # is told.
        wrong: PolydecError | None = None
        for trained in self.artefacts:
            if isinstance(trained, kind) and which(trained):
                try:
                    check_artefact_fit(trained, self.target, lambda: self.draft)
                except PolydecError as error:
                    wrong = error
                    continue
                # `read` lists the artefacts that were asked for.
                self.read.append(trained)
                return trained
        raise wrong or MissingError(
            f"{asked_by}there is no {kind.kind}: name one (--with DIR); `{kind.made_by}` makes one"
        )

    def without_foreign_draft(self) -> Kit:
        """The kit for a method that needs no draft: one of another vocabulary, or that fills
        canvases, is there for other methods."""

        def own_law() -> Target | None:
            draft = self.draft
            if draft is None or not family_of(draft).continues_text:
                return None
            if self.target.vocab.same_tokens(draft.vocab):
                return draft
            return None

        # The check runs when the draft is asked for: asking for it now would load it.
        return replace(self, small=None, later=own_law)


class KitNeed(Protocol):
    """Something that a kit must hold.

    Attributes:
        name: What listings call it.
    """

    @property
    def name(self) -> str: ...
    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that a kit holds what is needed.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        ...


@dataclass(frozen=True)
class DraftNeed:
    """A draft model that continues texts.

    Attributes:
        same_tokenizer: Whether it must have the target's vocabulary.
        same_length: Whether it reads the target's text; else one of its own, of fewer tokens.
    """

    same_tokenizer: bool = True
    same_length: bool = True

    @property
    def name(self) -> str:
        return "draft"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that there is a draft model that continues texts.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if kit.draft is None:
            raise MissingError(
                f"method {method} needs a draft model: name one (--draft), or take a method that needs none "
                "(`polydec methods` lists them)"
            )
        family = family_of(kit.draft)
        if not family.continues_text:
            raise MissingError(
                f"method {method} needs a draft model that continues texts, and this one is "
                f"{family.called} model: name another (--draft), or take diffuspec"
            )
        if self.same_tokenizer:
            kit.target.vocab.require_same(kit.draft.vocab, "the draft")


@dataclass(frozen=True)
class MaskedDraftNeed:
    """A draft model that fills canvases, of the target's vocabulary.

    Attributes:
        family: What it fills them with.
    """

    family: DecodingFamily

    @property
    def name(self) -> str:
        return f"{self.family.called.partition(' ')[2]} draft"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that there is a draft model that fills canvases.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if kit.draft is None or family_of(kit.draft) is not self.family:
            raise MissingError(
                f"method {method} needs {self.family.called} draft model: name one of the target's tokenizer "
                "(--draft)"
            )
        kit.target.vocab.require_same(kit.draft.vocab, "the draft")


@dataclass(frozen=True)
class LayersNeed:
    """A model whose layers can run alone.

    Attributes:
        of_draft: Whether the draft model is meant, else the target.
    """

    of_draft: bool = False

    @property
    def name(self) -> str:
        if self.of_draft:
            return "draft's layers"
        return "layers"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the model's layers can run alone.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if self.of_draft:
            model = kit.drafting
        else:
            model = kit.target
        # A model with 0 layers can only run as a whole.
        if not model.layers:
            raise MissingError(
                f"method {method} needs a {'draft' if self.of_draft else 'model'} whose layers can run alone: "
                "this one runs as a whole only"
            )


@dataclass(frozen=True)
class StatesNeed:
    """A model that shows its hidden states and reads embeddings."""

    @property
    def name(self) -> str:
        return "states"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the model shows its hidden states.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        from polydec.models.learned.artefact import width_of_states

        try:
            width_of_states(kit.target)
        except PolydecError as error:
            raise MissingError(
                f"method {method} needs a model that shows its states: {error}"
            ) from None


@dataclass(frozen=True)
class SecondPromptNeed:
    """A second prompt, which the first one is compared with."""

    @property
    def name(self) -> str:
        return "second prompt"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that there is a second prompt.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if kit.beside is None:
            raise MissingError(
                f"{method} needs a second prompt: give one (negative_prompt, --negative-prompt or "
                "--no-context-prompt; an empty text will do)"
            )


@dataclass(frozen=True)
class OwnPromptNeed:
    """A prompt of two tokens or more, without vectors.

    The method puts something before the prompt's last token.
    """

    @property
    def name(self) -> str:
        return "prompt of tokens"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the prompt is two tokens or more.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if len(kit.prompt) < 2:
            raise MissingError(
                f"{method} puts vectors before the prompt's last token: the prompt needs two tokens, and no vectors of its own"
            )


@dataclass(frozen=True)
class PlainPromptNeed:
    """A prompt of tokens, without vectors, which stand for no token of the vocabulary."""

    @property
    def name(self) -> str:
        return "prompt without vectors"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the prompt is tokens and nothing else.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: It holds vectors, or nobody knows it.
        """
        if not kit.prompt:
            raise MissingError(f"{method} renames the prompt's tokens, and vectors have no name")


@dataclass(frozen=True)
class ImageNeed:
    """An image that the model reads."""

    @property
    def name(self) -> str:
        return "image"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that there is an image.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if kit.strip is None:
            raise MissingError(
                f"method {method} reads a word in an image: give one (--image) to a model of `polydec train reader`"
            )


@dataclass(frozen=True)
class PromptImageNeed:
    """An image among the words of the prompt."""

    @property
    def name(self) -> str:
        return "image in the prompt"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the prompt has an image.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if not kit.shows_image:
            raise MissingError(
                f"method {method} reads the image of a prompt: give one (--image) to a model of `polydec train vision`"
            )


@dataclass(frozen=True)
class BlockCausalNeed:
    """A masked-diffusion model that is block-causal."""

    @property
    def name(self) -> str:
        return "block-causal model"

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that the model is block-causal.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        if not kit.denoiser.block:
            raise MissingError(
                f"method {method} needs a block-causal model, such as zoo:block-diffusion: every position of this "
                "one sees the whole canvas (fast-dllm decodes it)"
            )


@dataclass(frozen=True)
class ArtefactNeed:
    """An artefact of a kind. kind: the name of one that `polydec train` makes, whose type is looked
    up when a kit is checked (a list of methods loads none), or a type; called: what a user must
    have, None: what the type says; which: of several of the kind, those that will do; instead: the
    name of another kind that does as well, and is taken where there is one."""

    kind: str | type[ModelArtefact]
    called: str | None = None
    which: Callable[[Any], bool] = any_one
    instead: str | None = None

    @property
    def name(self) -> str:
        if isinstance(self.kind, str):
            kind = self.kind
        else:
            kind = self.kind.kind
        if self.instead is None:
            return kind
        return f"{kind} or {self.instead}"

    @property
    def wanted(self) -> type[ModelArtefact]:
        # Imported here: a list of methods must not load what computes.
        from polydec.models.learned.artefacts import type_of

        if isinstance(self.kind, str):
            return type_of(self.kind)
        return self.kind

    def is_fitting(self, trained: ModelArtefact) -> bool:
        """Return whether an artefact will do."""
        return (isinstance(trained, self.wanted) and self.which(trained)) or self._does(trained)

    def _does(self, trained: ModelArtefact) -> bool:
        from polydec.models.learned.artefacts import type_of

        return self.instead is not None and isinstance(trained, type_of(self.instead))

    def check_kit(self, kit: Kit, method: str) -> None:
        """Check that there is an artefact of the kind, and that it fits the models.

        Args:
            kit: What the recipe would be given.
            method: By its name, for the sentence.

        Raises:
            MissingError: The kit does not have it.
        """
        kind = self.wanted
        # Where an artefact of the other kind is there, it is enough; its own fit is checked.
        others = [x for x in kit.artefacts if self._does(x)]
        if others:
            if not any(self.is_fitting(x) for x in kit.artefacts if isinstance(x, kind)):
                # Says why it does not fit, where it does not.
                kit.needed_artefact(type(others[0]))
            return
        if not any(self.is_fitting(x) for x in kit.artefacts):
            raise MissingError(
                f"method {method} needs {self.called or kind.called}: name one (--with DIR); "
                f"`{kind.made_by}` makes one"
            )
        # One of the right kind is there: raise the reason if none fits the models.
        kit.needed_artefact(kind, self.which)


DRAFT, ANY_DRAFT = DraftNeed(), DraftNeed(same_tokenizer=False)
MASKED_DRAFT = MaskedDraftNeed(MASKED_DIFFUSION)
PATCH_DRAFT = MaskedDraftNeed(PATCH_FILLING)
SMALLER_DRAFT = DraftNeed(same_length=False)
LAYERS, DRAFT_LAYERS = LayersNeed(), LayersNeed(of_draft=True)
STATES = StatesNeed()
SECOND_PROMPT = SecondPromptNeed()
OWN_PROMPT = OwnPromptNeed()
PLAIN_PROMPT = PlainPromptNeed()
IMAGE = ImageNeed()
PROMPT_IMAGE = PromptImageNeed()
BLOCKS = BlockCausalNeed()
PATCHES = ArtefactNeed("patch-head")
