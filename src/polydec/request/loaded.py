"""A loaded model, with the draft and whatever was trained for it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from polydec.base import notebook
from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import PolydecError, RequestError
from polydec.base.options import short_repr
from polydec.laws.shapers.sampling import Sampling
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.family import DecodingFamily, family_of
from polydec.methods.registry.kit import Kit, ModelArtefact
from polydec.models.sessions.checkpoint import DeferredBundle, ModelBundle, resolve_deferred_bundle
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.request.fields import OWN, Prompt
from polydec.request.prompt_encoder import PromptEncoder
from polydec.request.units import align_second_checkpoint, over_bytes

if TYPE_CHECKING:
    from polydec.models.formats.images import Image
    from polydec.request.classifier import TextClassifier
    from polydec.request.embedding import Texts

TORCH_THREADS = torch.get_num_threads()
"""Threads that torch came with: what a model on the torch path gets unless told otherwise."""

A = TypeVar("A", bound=ModelArtefact)


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, with what goes with it.

    checkpoint: the model itself; draft: its draft model, None where methods that need one must say
    so; artefacts: such as an n-gram table or a stop head; given: what the user called the first of
    these; draft_given: whether the user named the draft; workers: how many of its networks run at
    the same time.
    """

    checkpoint: ModelBundle
    draft: ModelBundle | DeferredBundle | None = None
    artefacts: tuple[ModelArtefact, ...] = ()
    given: tuple[str, ...] = ()
    draft_given: bool = False
    workers: int = 1

    @property
    def name(self) -> str:
        return self.checkpoint.name

    def __repr__(self) -> str:
        return f"LoadedModel({', '.join(f'{name}={value!r}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return notebook.facts_html(self._facts())

    def _facts(self) -> dict[str, Any]:
        """What a reader wants to know of it; what it has not is left out."""
        facts = {
            "name": self.name,
            "vocabulary": self.checkpoint.lm.vocab.size,
            "dtype": self.checkpoint.dtype,
            "kernel": self.checkpoint.kernel,
            "draft": None if self.draft is None else self.draft.name,
            "trained": ", ".join(dict.fromkeys(a.kind for a in self.artefacts)),
        }
        return {name: value for name, value in facts.items() if value}

    @cached_property
    def pool(self) -> Executor | None:
        """What runs the passes of several networks at the same time; None: they run one after
        another."""
        if self.workers < 2:
            return None
        # Each worker gets as many threads as one pass has: torch counts them for each thread anew.
        threads = torch.get_num_threads()
        return ThreadPoolExecutor(self.workers, "polydec-worker", torch.set_num_threads, (threads,))

    @cached_property
    def costs(self) -> PassCosts:
        """What passes cost on this machine: from the profile that `polydec tune` keeps; where there
        is none, measured now and kept, which takes about ten seconds and is said in a warning."""
        # Imported late: measuring needs modules that a run with known costs never loads.
        from polydec.request import profile

        return profile.known_pass_costs(self)

    def with_name(self, name: str) -> LoadedModel:
        """The same model under another name, which is what all messages and figures say: a server's
        clients need not know where its files lie. Its draft model is named after it."""
        draft = self.draft
        small = f"{name} (draft)"
        if isinstance(draft, DeferredBundle):
            draft = DeferredBundle(small, partial(_renamed, draft, small))
        elif draft is not None:
            draft = replace(draft, name=small)
        renamed = replace(self, checkpoint=replace(self.checkpoint, name=name), draft=draft)
        # The profile on disk has the old name.
        renamed.__dict__["costs"] = self.costs
        return renamed

    def recipe_kit(self) -> Kit:
        """What recipes are given, with the bare models and the costs of a machine that nobody
        measured."""
        return Kit(self.checkpoint.lm, artefacts=self.artefacts, later=self.draft_law)

    def draft_law(self) -> Any:
        """The draft model's law, loaded now where it was not yet; None: there is no draft."""
        if self.draft is None:
            return None
        return self.draft.lm

    @property
    def ready(self) -> tuple[ModelBundle | DeferredBundle, ...]:
        """The checkpoints that are loaded by now: the model, and the draft where somebody asked for
        it."""
        draft = self.draft
        if draft is None or (isinstance(draft, DeferredBundle) and not draft.is_loaded):
            return (self.checkpoint,)
        return (self.checkpoint, draft)

    def keep_texts(self, count: int) -> None:
        """count: of how many ended texts the models keep what they computed, at least 0, so that a
        prompt that begins with one of them is fed from its end on. A draft that is not loaded yet
        does so when it is."""
        self.checkpoint.lm.keep = count
        # To ask a deferred draft would load it, which may take longer than it saves.
        if isinstance(self.draft, DeferredBundle):
            self.draft.when_loaded(lambda made: setattr(made.lm, "keep", count))
        elif self.draft is not None:
            self.draft.lm.keep = count

    def forget_text(self, key: str = "", cache_salt: str = "") -> None:
        """Give back what is kept of a text of an earlier request.

        Args:
            key: Of the text (`reuse_key`).
            cache_salt: Of its requests.
        """
        self.checkpoint.lm.forget_text(key, cache_salt)

    def find_artefact(self, kind: type[A]) -> A | None:
        """The artefact of the type `kind` that goes with the model; None where there is none."""
        return self.recipe_kit().find_artefact(kind)

    def embed(self, texts: Texts, images: Sequence[Image] = (), **how: Any) -> torch.Tensor:
        """A vector for each of the texts.

        Args:
            texts: One or several, or token ids of each.
            images: An image for each text, which stands before it; one text serves any number of
                them. Default: none.
            how: The fields of `EmbeddingSettings` (request/reading.py): `pool`, "last" or "mean";
                `layer`, behind which it is read; `normalised`; `template`; `prompt`; `prepend_from`
                and `prepend_to`; of a model with prefixes for several paths, `path` and `join`.

        Returns:
            The vectors, shape ``[n, width]``, float32; with `join` "concat" those of all paths, one
            behind another.

        Raises:
            RequestError: Something cannot be honoured.
            TypeError: A field is unknown.
        """
        from polydec.request.embedding import embed_texts
        from polydec.request.reading import EmbeddingSettings

        return embed_texts(self, texts, EmbeddingSettings(**how), images)

    def classifier(
        self,
        examples: Sequence[tuple[str, str]] = (),
        labels: Sequence[str] = (),
        prompts: Sequence[str] | None = None,
        **how: Any,
    ) -> TextClassifier:
        """What sorts texts into classes: `classify(texts)` gives a `ClassDecision` for each
        (Multi-Prompting Decoder).

        Args:
            examples: Texts with the names of their classes, at least one of each class, or none at
                all.
            labels: The classes, in the order in which the examples name them where it is left out.
            prompts: What stands around a `{text}`, 1 to 64 of them. None: four of polydec's own.
            how: The fields of `ClassifierSettings` (request/deciding.py).

        Returns:
            The classifier.

        Raises:
            RequestError: Something cannot be honoured.
            TypeError: A field is unknown.
        """
        from polydec.request.classifier import LabelledText, build_text_classifier
        from polydec.request.deciding import PROMPTS, ClassifierSettings

        return build_text_classifier(
            self,
            [LabelledText(*pair) for pair in examples],
            labels,
            PROMPTS if prompts is None else prompts,
            ClassifierSettings(**how),
        )

    def check_method(self, method: str, options: Mapping[str, Any] | None = None) -> None:
        """Check that this model can be decoded by a method.

        Args:
            method: Any name of it.
            options: Those that are not its defaults.

        Raises:
            RequestError: It cannot, in one sentence.
        """
        recipe = registry.recipe_for_model(method, self.family)
        values = registry.method_option_values(recipe.CARD.name, options)
        # Building finds what the model lacks; the decoder itself is dropped.
        registry.build_recipe(recipe, self.recipe_kit(), values)

    def in_units(self, units: str, covers: int = 2) -> LoadedModel:
        """The same model and its draft as laws over other units. What was trained for tokens is not
        there over bytes.

        Args:
            units: "bytes", or "tokens" for the model itself.
            covers: Sequences of tokens that are followed for the same bytes.

        Returns:
            The model over these units, each made once.

        Raises:
            RequestError: The model has no such law.
        """
        if units == "tokens":
            return self
        # A view has caches of its own, so one for each value of `covers` is enough.
        if covers not in self._views:
            self._views[covers] = LoadedModel(
                over_bytes(self.checkpoint, covers),
                self._draft_over_bytes(covers),
                draft_given=self.draft_given,
            )
        return self._views[covers]

    @cached_property
    def _views(self) -> dict[int, LoadedModel]:
        return {}

    def _draft_over_bytes(self, covers: int) -> DeferredBundle | None:
        """The draft as a law over the bytes and marks of the model."""
        draft = self.draft
        if draft is None:
            return None
        return DeferredBundle(
            draft.name,
            # Deferred like the draft itself: a method may never ask for it.
            lambda: align_second_checkpoint(
                resolve_deferred_bundle(draft), self.checkpoint, covers
            ),
        )

    @property
    def family(self) -> DecodingFamily:
        """Of its methods."""
        return family_of(self.checkpoint.lm)

    @property
    def encoder(self) -> PromptEncoder:
        """What makes token ids of prompts."""
        point = self.checkpoint
        return PromptEncoder(
            self.name, point.text, point.lm.vocab.size, images=point.vision is not None
        )

    def encode_prompt(self, prompt: Prompt, **how: Any) -> tuple[int, ...]:
        """Token ids of a prompt.

        Args:
            prompt: A text, token ids (vectors among them) or chat messages.
            how: The keywords of `PromptEncoder.encode_prompt` (request/prompt_encoder.py), such as
                `raw`: without the chat template.

        Returns:
            The ids; of vectors those that stand for them.

        Raises:
            RequestError: The prompt is empty, or holds something else than a prompt does.
        """
        return self.encoder.encode_prompt(prompt, **how)

    def encode(self, text: str, *, special: bool = True) -> tuple[int, ...]:
        """Token ids of a text as it stands: no chat template.

        Args:
            text: The text.
            special: Whether the tokenizer adds its own marks (such as BOS). Default True.

        Returns:
            The ids.

        Raises:
            RequestError: It is no text, or cannot be encoded.
        """
        if not isinstance(text, str):
            raise RequestError(
                f"text is a {type(text).__name__}: give a text (encode_prompt takes chats)"
            )
        return self.checkpoint.text.encode(text, special)

    def decode(self, ids: Iterable[int], *, after: Sequence[int] = ()) -> str:
        """The text of token ids; special tokens are left out.

        Args:
            ids: The ids, such as `answer.token_ids`.
            after: Ids before them, which decide whether a leading space belongs to the text.

        Returns:
            The text.

        Raises:
            RequestError: Something else than ids of this model's vocabulary is given.
        """
        # A text can be iterated as well, and would give characters.
        given = [ids, after]
        if any(isinstance(some, str) or not isinstance(some, Iterable) for some in given):
            raise RequestError(f"ids is {short_repr(ids)}: give token ids, a list of whole numbers")
        known = [self.encoder.check_token_ids(list(some), "ids") for some in given]
        return self.checkpoint.text.decode(known[0], after=known[1])

    @property
    def network(self) -> Any:
        """What runs its passes."""
        return self.checkpoint.lm.network

    @property
    def names(self) -> dict[Any, str]:
        """What its networks are called, those that are loaded."""
        # The model comes last, so that its name stays where both share a network.
        points = list(reversed(self.ready))
        encoders = {
            point.lm.encoder: f"{point.name} (encoder)"
            for point in points
            if isinstance(point.lm, EncoderDecoderModel)
        }
        return encoders | {point.lm.network: point.name for point in points}

    def sampling_with(self, **fields: Any) -> Sampling:
        """The checkpoint's own sampling fields, then the given ones (None: not given); temperature
        is 0 where neither says. Raises RequestError for a value out of range, TypeError for an
        unknown field."""
        own = self.checkpoint.generation
        # Only fields in OWN are taken: others, such as those of beam search, are a method's affair.
        known = {k: own[k] for k in OWN if own.get(k) is not None}
        # Such a checkpoint means greedy decoding, whatever temperature stands beside it.
        if own.get("do_sample") is False:
            known.pop("temperature", None)
        named = {k: v for k, v in fields.items() if v is not None}
        # A checkpoint may name tokens that must never be written.
        if isinstance(never := own.get("suppress_tokens"), list) and "bad_token_ids" not in known:
            known["bad_token_ids"] = tuple(cast(list[int], never))
        values: dict[str, Any] = {"temperature": 0.0, **known, **named}
        return Sampling(**values)

    def asked_sampling(self, asked: Sampling | Mapping[str, Any] | None) -> Sampling:
        """The sampling of a request.

        Args:
            asked: As the request has it: a `Sampling`, or fields by name over the checkpoint's own
                values. None: these values alone.

        Returns:
            The sampling.

        Raises:
            RequestError: It is neither, or a field is unknown or out of its range.
        """
        # It is complete: none of the checkpoint's own values is added.
        if isinstance(asked, Sampling):
            return asked
        if asked is None:
            return self.sampling_with()
        if isinstance(asked, Mapping) and all(isinstance(name, str) for name in asked):
            return self.sampling_with(**asked)
        raise RequestError(
            f"sampling is {short_repr(asked)}: it must be fields by name, such as "
            "{'temperature': 0.5}, or a polydec.Sampling"
        )


def _no_model_sentence(given: object) -> str:
    """What is said of something that stands where a loaded model belongs."""
    # With a name in place of the model only one call is missing, so the message shows it.
    if isinstance(given, str):
        return f"model is {short_repr(given)}, a name: load it first, polydec.load({short_repr(given)})"
    return f"model is a {type(given).__name__}: it must be what polydec.load gives"


def check_loaded_model(model: object) -> None:
    """Raise RequestError where something else than a loaded model is given."""
    if not isinstance(model, LoadedModel):
        raise RequestError(_no_model_sentence(model))


def _renamed(draft: DeferredBundle, name: str) -> ModelBundle:
    """A draft model under another name, loaded now. Raises RequestError where it cannot be, which
    says no other name."""
    try:
        return replace(resolve_deferred_bundle(draft), name=name)
    except PolydecError as why:
        # The true name goes to the operator's log only: clients know another one.
        warn_caller(f"{draft.name} could not be loaded: {why}")
        raise RequestError(f"{name} could not be loaded: take a method without a draft") from None
