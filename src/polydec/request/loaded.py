"""A loaded model, with the draft and whatever was trained for it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch

from polydec.base import notebook
from polydec.base.edge import whole_text
from polydec.base.errors import PolydecError, RequestError
from polydec.base.heard import warn_caller
from polydec.core.protocols import Target
from polydec.laws.shapers.sampling import Sampling
from polydec.laws.targets.softened import SoftPromptTarget
from polydec.methods.economics.costs import PassCosts
from polydec.methods.registry import registry
from polydec.methods.registry.kit import CALLED, Kit, ModelArtefact, check_artefact_fit, family_of
from polydec.models.formats import zoo
from polydec.models.learned import artefacts
from polydec.models.sessions import checkpoint, sources
from polydec.models.sessions.checkpoint import DeferredBundle, ModelBundle, resolve_deferred_bundle
from polydec.models.sessions.soft import Soft, make_soft_tokens
from polydec.models.text import prompt_ending, tool_prompt
from polydec.models.text.message_forms import joined_text
from polydec.request.fields import OWN, Ask, Prompt
from polydec.request.units import align_second_checkpoint, over_bytes

if TYPE_CHECKING:
    from polydec.request.classifier import TextClassifier
    from polydec.request.embedding import Texts

TORCH_THREADS = torch.get_num_threads()
"""Threads that torch came with: what a model on the torch path gets unless told otherwise."""

A = TypeVar("A", bound=ModelArtefact)


@dataclass(frozen=True)
class LoadedModel:
    """A loaded model, with what goes with it.

    checkpoint: the model itself; draft: its draft model, None where methods that need one must say so; artefacts: such as an
    n-gram table or a stop head; given: what the user called the first of these; draft_given: whether the user named the draft;
    workers: how many of its networks run at the same time.
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
        """What runs the passes of several networks at the same time; None: they run one after another."""
        if self.workers < 2:
            return None
        threads = torch.get_num_threads()
        return ThreadPoolExecutor(self.workers, "polydec-worker", torch.set_num_threads, (threads,))

    @cached_property
    def costs(self) -> PassCosts:
        """What passes cost on this machine: from the profile that `polydec tune` keeps; where there is none, measured now
        and kept, which takes about ten seconds and is said in a warning."""
        from polydec.request import profile

        measured = profile.read_pass_profile(self)
        if measured is None:
            warn_caller(
                f"no profile of {self.name} on this machine: measuring passes for {profile.QUICK:.0f} seconds "
                "(`polydec tune` measures more carefully)"
            )
            measured = profile.measure_pass_profile(self, seconds=profile.QUICK)
            profile.save_pass_profile(self, measured)
            if profile.read_pass_profile(self) is None:
                warn_caller(
                    f"the profile could not be kept in {profile.pass_profiles_path()}: the next process measures again "
                    "(XDG_CACHE_HOME names another place)"
                )
        return measured.costs

    def called(self, name: str) -> LoadedModel:
        """The same model under another name, which is what all messages and figures say: a server's clients need not know where
        its files lie. Its draft model is named after it."""
        draft = self.draft
        small = f"{name} (draft)"
        if isinstance(draft, DeferredBundle):
            draft = DeferredBundle(small, partial(_renamed, draft, small))
        elif draft is not None:
            draft = replace(draft, name=small)
        renamed = replace(self, checkpoint=replace(self.checkpoint, name=name), draft=draft)
        renamed.__dict__["costs"] = self.costs  # their profile has the old name
        return renamed

    def kit(self) -> Kit:
        """What recipes are given, with the bare models and the costs of a machine that nobody measured."""
        return Kit(self.checkpoint.lm, artefacts=self.artefacts, later=self.small)

    def small(self) -> Any:
        """The draft model's law, loaded now where it was not yet; None: there is no draft."""
        if self.draft is None:
            return None
        return self.draft.lm

    @property
    def ready(self) -> tuple[ModelBundle | DeferredBundle, ...]:
        """The checkpoints that are loaded by now: the model, and the draft where somebody asked for it."""
        draft = self.draft
        if draft is None or (isinstance(draft, DeferredBundle) and not draft.loaded):
            return (self.checkpoint,)
        return (self.checkpoint, draft)

    def keep(self, count: int) -> None:
        """count: of how many ended texts the models keep what they computed, at least 0, so that a prompt that begins with one
        of them is fed from its end on. A draft that is not loaded yet does so when it is."""
        self.checkpoint.lm.keep = count
        if isinstance(self.draft, DeferredBundle):
            self.draft.when_loaded(lambda made: setattr(made.lm, "keep", count))
        elif self.draft is not None:
            self.draft.lm.keep = count

    def forget(self, key: str = "", cache_salt: str = "") -> None:
        """Give back what is kept of the text of a key (`reuse_key`); cache_salt: that of its requests."""
        self.checkpoint.lm.forget(key, cache_salt)

    def find(self, kind: type[A]) -> A | None:
        """The artefact of the type `kind` that goes with the model; None where there is none."""
        return self.kit().find(kind)

    def embed(self, texts: Texts, **how: Any) -> torch.Tensor:
        """A vector for each of the texts, [n, width], float32.

        how: the fields of `EmbeddingSettings` (request/reading.py): `pool`, "last" or "mean"; `layer`, behind which it is read;
        `normalised`; `template`; `prompt`;
        `prepend_from` and `prepend_to`. Raises RequestError for what cannot be honoured, TypeError
        for an unknown field.
        """
        from polydec.request.embedding import embed_texts
        from polydec.request.reading import EmbeddingSettings

        return embed_texts(self, texts, EmbeddingSettings(**how))

    def classifier(
        self,
        examples: Sequence[tuple[str, str]] = (),
        labels: Sequence[str] = (),
        prompts: Sequence[str] | None = None,
        **how: Any,
    ) -> TextClassifier:
        """What sorts texts into classes: `classify(texts)` gives a `ClassDecision` for each (Multi-Prompting Decoder).

        examples: texts with the names of their classes, at least one of each class, or none at all;
        labels: the classes, in the order in which the examples name them where it is left out;
        prompts: what stands around a `{text}`, 1 to 64 of them, four of polydec's own where it is
        left out; how: the fields of `ClassifierSettings` (request/deciding.py). Raises RequestError
        for what cannot be honoured, TypeError for an unknown field."""
        from polydec.request.classifier import LabelledText, build_text_classifier
        from polydec.request.deciding import PROMPTS, ClassifierSettings

        return build_text_classifier(
            self,
            [LabelledText(*pair) for pair in examples],
            labels,
            PROMPTS if prompts is None else prompts,
            ClassifierSettings(**how),
        )

    def check(self, method: str, options: Mapping[str, Any] | None = None) -> None:
        """Raise RequestError with one sentence where this model cannot be decoded by a method with these options."""
        registry.build(
            registry.of_model(method, family_of(self.checkpoint.lm)), self.kit(), options
        )

    def in_units(self, units: str, covers: int = 2) -> LoadedModel:
        """The same model, and the draft beside it, as laws over other units: "bytes", or "tokens" for itself. covers: sequences
        of tokens that are followed for the same bytes. What was trained for tokens is not there over bytes. Raises RequestError
        where the model has no such law."""
        if units == "tokens":
            return self
        if covers not in self._views:
            self._views[covers] = LoadedModel(
                over_bytes(self.checkpoint, covers),
                self._beside(covers),
                draft_given=self.draft_given,
            )
        return self._views[covers]

    @cached_property
    def _views(self) -> dict[int, LoadedModel]:
        return {}

    def _beside(self, covers: int) -> DeferredBundle | None:
        """The draft as a law over the bytes and marks of the model."""
        draft = self.draft
        if draft is None:
            return None
        return DeferredBundle(
            draft.name,
            lambda: align_second_checkpoint(
                resolve_deferred_bundle(draft), self.checkpoint, covers
            ),
        )

    def from_source(
        self, ask: Ask, most: int | None = None
    ) -> tuple[LoadedModel, tuple[int, ...], tuple[int, ...]]:
        """An encoder-decoder model as the law of texts that are written from a request's source, with the draft's; the ids of
        the source, and those that every answer begins with.

        ask: the request; most: as for `ids`. Raises RequestError where there is no source, or it cannot be read.
        """
        point = self.checkpoint
        text = self.checkpoint.text
        if ask.source is None:
            source = ask.prompt
        else:
            source = ask.source
        begins = tuple[int, ...]()
        if ask.source is None:
            who = "prompt"
        else:
            who = "source"
        if isinstance(source, bytes):
            try:
                source = source.decode()
            except UnicodeDecodeError as why:
                raise RequestError(
                    f"{who} is no UTF-8: byte {why.start} begins no character"
                ) from None
        if isinstance(source, str):
            source = whole_text(source, who)
        sanitized = ask.sanitize_control_tokens
        ids = self.ids(source, raw=True, who=who, most=most, sanitize_control_tokens=sanitized)
        if ask.source is not None and ask.prompt:
            prompt = ask.prompt
            if isinstance(prompt, str):
                said = whole_text(prompt, "prompt")
                if sanitized:
                    begins = text.encode_sanitized(text.control_tokens.marked(said), special=False)
                else:
                    begins = text.encode(said, special=False)
            else:
                begins = self.ids(prompt, raw=True)
        salt = ask.cache_salt
        law = point.lm.given(ids, salt)
        model = replace(self, checkpoint=replace(point, lm=law))
        draft = self.draft
        if draft is not None:
            model = replace(
                model,
                draft=DeferredBundle(
                    draft.name, lambda: _given(resolve_deferred_bundle(draft), ids, salt)
                ),
            )
        return model, ids, (*point.lm.start, *begins)

    def each_prompted(
        self, bare: LoadedModel, ids: tuple[int, ...], render: Callable[[LoadedModel], Any]
    ) -> LoadedModel:
        """A model over bytes whose draft reads the prompt as its own tokenizer and chat template have it. bare: the models as
        they were loaded; ids: the prompt as this model reads it; render: the ids of the prompt for a model over bytes, None
        where it has no way of its own."""
        view = self.draft
        draft = bare.draft
        if view is None or draft is None:
            return self
        law: Any = self.checkpoint.lm

        def make() -> ModelBundle:
            loaded = resolve_deferred_bundle(view)
            own = LoadedModel(over_bytes(resolve_deferred_bundle(draft), law.width))
            shown = render(own)
            if shown is None:
                shown = own.checkpoint.text.encode(law.said(ids))
            head = own.checkpoint.lm.fixed(shown)
            return replace(loaded, lm=replace(loaded.lm, instead=(ids, head)))

        return replace(self, draft=DeferredBundle(draft.name, make))

    @property
    def network(self) -> Any:
        """What runs its passes."""
        return self.checkpoint.lm.network

    @property
    def names(self) -> dict[Any, str]:
        """What its networks are called, those that are loaded."""
        points = list(reversed(self.ready))
        encoders = {
            point.lm.encoder: f"{point.name} (encoder)"
            for point in points
            if hasattr(point.lm, "encoder")
        }
        return encoders | {point.lm.network: point.name for point in points}

    def sampling(self, **fields: Any) -> Sampling:
        """The checkpoint's own sampling fields, then the given ones (None: not given); temperature is 0 where neither
        says. Raises RequestError for a value out of range, TypeError for an unknown field."""
        own = self.checkpoint.generation
        known = {k: own[k] for k in OWN if own.get(k) is not None}
        if own.get("do_sample") is False:
            known.pop("temperature", None)
        named = {k: v for k, v in fields.items() if v is not None}
        if isinstance(never := own.get("suppress_tokens"), list) and "bad_token_ids" not in known:
            known["bad_token_ids"] = tuple(cast(list[int], never))
        values: dict[str, Any] = {"temperature": 0.0, **known, **named}
        return Sampling(**values)

    def empty(self, *, raw: bool = False) -> tuple[int, ...]:
        """Token ids of a prompt that asks nothing: an empty turn of a chat, or (raw, or without a template) what a tokenizer
        sets before every text."""
        text = self.checkpoint.text
        if raw or not text.has_chat:
            return text.encode("")
        return text.chat([{"role": "user", "content": ""}])

    def ids(
        self,
        prompt: Prompt,
        *,
        raw: bool = False,
        who: str = "prompt",
        tools: Sequence[Mapping[str, Any]] = (),
        template: Mapping[str, Any] | None = None,
        ending: str = prompt_ending.OPENED,
        most: int | None = None,
        sanitize_control_tokens: bool = False,
    ) -> tuple[int, ...]:
        """Token ids of a prompt, which messages call `who`.

        raw: without the chat template; tools: what that shows beside messages; template: further
        names that it is told; ending: what the text of messages ends with
        (models/text/prompt_ending.py); most: tokens that there is room for, far beyond which a text
        is not even encoded; sanitize_control_tokens: control tokens in all of these are plain text.
        Raises RequestError where the prompt is empty, or holds something else than a prompt does,
        or the tools cannot be shown."""
        values = template or {}
        sanitized = sanitize_control_tokens
        if sanitized:
            prompt, tools, values = map(
                self.checkpoint.text.control_tokens.marked, (prompt, tools, values)
            )
        if tools:
            shown = self._with_tools(prompt, tools, values, ending)
            return self._encoded(shown, who, most, sanitized=sanitized)
        if isinstance(prompt, (bytes, Mapping)) or not isinstance(prompt, (str, Sequence)):  # pyright: ignore
            raise RequestError(
                f"{who} is a {type(prompt).__name__}: give text, token ids or chat messages"
            )
        if not prompt:
            raise RequestError(f"{who} is empty: give a text of at least one character")
        text = self.checkpoint.text
        if isinstance(prompt, str):
            if raw or not text.has_chat:
                return self._encoded(prompt, who, most, special=True, sanitized=sanitized)
            shown = text.render([{"role": "user", "content": prompt}], **values)
            return self._encoded(shown, who, most, sanitized=sanitized)
        if isinstance(prompt[0], Mapping):
            if not text.has_chat:
                raise RequestError(f"{self.name} has no chat template: give the {who} as text")
            messages = prompt_ending.mark_final_message(
                [_message(i, m) for i, m in enumerate(prompt)], ending
            )
            values = {**values, "reply": ending == prompt_ending.OPENED}
            shown = tool_prompt.with_earlier_calls(text, messages, **values)
            return self._encoded(
                prompt_ending.end_rendered_chat(shown, ending), who, most, sanitized=sanitized
            )
        if most is not None and len(prompt) > most:
            raise RequestError(f"{who} has {len(prompt)} tokens: there is room for {most}")
        return self._checked(prompt, who)

    def _encoded(
        self,
        text: str,
        who: str,
        most: int | None,
        *,
        special: bool = False,
        sanitized: bool = False,
    ) -> tuple[int, ...]:
        if most is not None and self.checkpoint.text.beyond(text, most):
            raise RequestError(
                f"{who} has {len(text)} characters, which are more than {most} tokens: there is room for those"
            )
        if sanitized:
            encode = self.checkpoint.text.encode_sanitized
        else:
            encode = self.checkpoint.text.encode
        return encode(text, special)

    def _with_tools(
        self,
        prompt: Prompt,
        tools: Sequence[Mapping[str, Any]],
        values: Mapping[str, Any],
        ending: str,
    ) -> str:
        """A chat with tools as text; where the template has no place for them, by the default prompt."""
        text = self.checkpoint.text
        if (
            isinstance(prompt, str)
            or not prompt
            or not isinstance(prompt[0], Mapping)
            or not text.has_chat
        ):
            raise RequestError(
                "tools is given without chat messages, or to a model without a chat template: leave it out"
            )
        messages = prompt_ending.mark_final_message(
            [_message(i, m) for i, m in enumerate(prompt)], ending
        )
        values = {**values, "reply": ending == prompt_ending.OPENED}
        if text.shows_tools:
            shown = text.render(messages, tools=list(tools), **values)
        else:
            shown = tool_prompt.render_tool_chat(text, messages, tools, **values)
        return prompt_ending.end_rendered_chat(shown, ending)

    def behind_vectors(self, prompt: Prompt, law: Any) -> Any:
        """A law behind the prompt whose ids `ids` gives: `law` itself where no vector stands in it, else what reads the vectors
        where others see what they stand for. Raises RequestError for vectors that the model cannot read."""
        parts: list[Any] = [] if isinstance(prompt, str) else list(prompt)
        if not any(isinstance(x, Soft) for x in parts):
            return law
        if (family := family_of(law)) != "ar":
            raise RequestError(f"prompt holds vectors: {CALLED[family]} model reads token ids only")
        if self.checkpoint.unit != "token":
            raise RequestError(
                "prompt holds vectors, and units is bytes: a vector stands where tokens would, so leave units out"
            )
        if getattr(law, "beside", None) is not None:
            raise RequestError(
                "prompt holds vectors: an encoder-decoder model reads ids only, in its source and in its prompt"
            )
        if isinstance(parts[-1], Soft):
            raise RequestError(
                "prompt ends with vectors: at least one token must stand behind them"
            )
        size = law.vocab.size
        width = self.checkpoint.lm.network.embed((0,)).shape[1]
        instead = list[int]()
        rows = list[int]()
        for at, x in enumerate(parts):
            first = len(instead)
            if not isinstance(x, Soft):
                instead.append(int(x))
                rows.append(first)
                continue
            instead += make_soft_tokens(x.vectors_KD, size, width, f"prompt[{at}]")
            count = len(instead) - first
            words = len(x.stands_for or ())
            rows += [first + ((i + 1) * count - 1) // words for i in range(words)]
        return SoftPromptTarget(law, self.ids(prompt, raw=True), tuple(instead), tuple(rows[:-1]))

    def _checked(self, prompt: Sequence[Any], who: str) -> tuple[int, ...]:
        size = self.checkpoint.lm.vocab.size
        ids = list[int]()
        for at, x in enumerate(prompt):
            if isinstance(x, Soft):
                ids += self._checked(x.stands_for or (), f"{who}[{at}].stands_for")
                continue
            try:
                ids.append(index(x) if not isinstance(x, bool) else size)
            except TypeError:
                raise RequestError(
                    f"{who}[{at}] is a {type(x).__name__}: token ids are whole numbers"
                ) from None
            if not 0 <= ids[-1] < size:
                raise RequestError(f"{who} has token {str(x)[:30]}: ids lie in 0 to {size - 1}")
        return tuple(ids)


def _renamed(draft: DeferredBundle, name: str) -> ModelBundle:
    """A draft model under another name, loaded now. Raises RequestError where it cannot be, which says no other name."""
    try:
        return replace(resolve_deferred_bundle(draft), name=name)
    except PolydecError as why:
        warn_caller(f"{draft.name} could not be loaded: {why}")
        raise RequestError(f"{name} could not be loaded: take a method without a draft") from None


def _given(point: ModelBundle, source: tuple[int, ...], cache_salt: str) -> ModelBundle:
    """A draft that reads the source as well, where it can."""
    behind_source = getattr(point.lm, "given", None)
    if behind_source is None:
        return point
    return replace(point, lm=behind_source(source, cache_salt))


def _message(at: int, message: Any) -> dict[str, Any]:
    """A message of a chat, checked: its content is a text, or a list of parts that are texts. Raises RequestError where it is
    none."""
    if not isinstance(message, Mapping):
        raise RequestError(
            f"message {at} is a {type(message).__name__}: it must have a role and a content"
        )
    for key in ("role", "content"):
        value = message.get(key)
        if not isinstance(joined_text(value) if key == "content" else value, str):
            raise RequestError(
                f"message {at} has no {key} that is text: it must have a role and a content"
            )
    return dict(message)


def assemble_loaded_model(
    name: str,
    *,
    draft: str | None,
    dtype: str,
    device: str,
    threads: int | None,
    workers: int,
    quantize: str | None,
    compute: str | None,
    cache_dtype: str | None,
    ngrams: str | None,
    trained: Sequence[str],
) -> LoadedModel:
    """What `polydec.load` gives (loading.py); its settings are checked."""
    if draft == "default" and workers > 1:
        draft = zoo.default_draft(name) or "none"
    if workers > 1:
        threads = _half(name, draft, device, threads, workers)
    opened = dict[Path, sources.CheckpointFiles]()  # a draft model shares its target's tokenizer
    model = checkpoint.load_bundle(
        name,
        dtype=dtype,
        device=device,
        threads=threads,
        quantize=quantize,
        compute=compute,
        cache_dtype=cache_dtype,
        opened=opened,
    )
    named = draft != "default"
    if not named:
        draft = zoo.default_draft(name)
    draft, ngrams = (
        None if x == "none" else x for x in (draft, ngrams)
    )  # as the command line has it
    if draft is None:
        small = None
    else:
        small = _small(draft, named, model, dtype, device, threads, opened)
    if ngrams == "default":
        table = zoo.default_ngrams(name)
    else:
        table = ngrams
    paths = [*trained, *([] if table is None else [table])]
    called = tuple(trained if ngrams == "default" else paths)
    fitted = tuple(
        _fitted(artefacts.load_artefact(p), model.lm, lambda: None if small is None else small.lm)
        for p in paths
    )
    _share_threads(model, None if isinstance(small, DeferredBundle) else small, device, threads)
    return LoadedModel(model, small, fitted, called, named and small is not None, workers)


def _half(name: str, draft: str | None, device: str, threads: int | None, workers: int) -> int:
    """The threads of each worker. Raises RequestError where there are too few cores, or nothing that a second one could do."""
    cores = min(len(os.sched_getaffinity(0)), threads or 1 << 16)
    if device != "cpu":
        raise RequestError(
            f"workers is {workers} and device is {device!r}: workers share the cores of a CPU, so leave workers out"
        )
    if draft in (None, "none"):
        raise RequestError(
            f"workers is {workers} and {name} has no draft model, which the second one runs: name one (--draft)"
        )
    if cores < workers:
        raise RequestError(
            f"workers is {workers}: each needs a core of its own, and there is 1 here (workers 1 runs the passes in turns)"
        )
    return cores // workers


def _fitted(artefact: Any, target: Target, draft: Callable[[], Target | None]) -> ModelArtefact:
    """An artefact for the model, or for the draft model where it was made for that. Raises PolydecError where it fits none."""
    try:
        bound = artefacts.bind_artefact(artefact, target)
        check_artefact_fit(bound, target, draft)
        return bound
    except PolydecError as why:
        small = draft()
        if small is None:
            raise
        try:
            bound = artefacts.bind_artefact(artefact, small)
            check_artefact_fit(bound, small, lambda: small)
            return bound
        except PolydecError:
            raise why from None


def _small(
    name: str,
    named: bool,
    model: ModelBundle,
    dtype: str,
    device: str,
    threads: int | None,
    opened: dict[Path, sources.CheckpointFiles],
) -> ModelBundle | DeferredBundle:
    """A draft model: now where the user named it, as what is wrong with it is said at once, else when a method asks for it."""

    def make() -> ModelBundle:
        small = checkpoint.load_draft(
            name, dtype=dtype, device=device, threads=threads, opened=opened
        )
        opened.clear()
        _share_threads(model, small, device, threads)
        return small

    if named:
        return make()
    return DeferredBundle(name, make)


def _share_threads(
    model: ModelBundle, small: ModelBundle | None, device: str, threads: int | None
) -> None:
    """Beside the native step torch has single rows to do: its threads would only be in the way."""
    if device == "cpu":
        native = not model.why and (small is None or not small.why)
        torch.set_num_threads(1 if native else threads or TORCH_THREADS)
