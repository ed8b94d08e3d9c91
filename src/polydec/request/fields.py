"""What a request asks for: name, type, range, default and help of each field stand here once.

The keywords of `generate`, the flags of the command line, the fields over HTTP, their JSON schema
and the docs are made of these. Nothing here loads what computes. Annotations are values here, not
text (no `from __future__`), as they are read.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from reprlib import Repr
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, TypeGuard, get_origin

from polydec.base.errors import RequestError
from polydec.base.options import (
    LARGEST,
    AtLeast,
    EntryCount,
    InRange,
    OneOf,
    Option,
    ParseAs,
    ValueNote,
    near_names_question,
    option_from_annotation,
    short_repr,
)
from polydec.laws.constraints.protocols import OutputConstraint
from polydec.laws.shapers._rule import ENGINES, LogitsFunction
from polydec.laws.shapers.declared import SamplingKeywords
from polydec.models.formats.images import Image

if TYPE_CHECKING:
    from polydec.laws.shapers.sampling import Sampling
    from polydec.models.sessions.soft import Soft

StopFunction = Callable[[tuple[int, ...], str], Any]
"""Takes an answer so far, as token ids and as text; returns whether it is over."""

Prompt = str | Sequence["int | Soft"] | Sequence[Mapping[str, str]]
"""Text (through the chat template where the model has one), token ids as they stand (vectors among
them: `Soft`), or chat messages."""

LENGTH = 128
"""Tokens of an answer where nobody says how many."""

STOPS = 64
"""Most stop strings, and most stop ids, of a request."""

CHOICES = 1024
"""Most answers to one prompt."""

ALTERNATIVES = 64
"""Most alternatives that are reported beside a token."""

THOUGHT = 1 << 24
"""Most tokens of a thinking budget."""

OWN = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""The fields of sampling that a checkpoint may bring values of its own for, which stand where a
request says nothing."""


@dataclass(frozen=True)
class Ask:
    """One request.

    prompt: text (through the chat template where the model has one), token ids (vectors among them:
    `Soft`), or chat messages; sampling: fields by name, over the checkpoint's own values, or a
    `Sampling`, which stands alone; None for the checkpoint's own; infill: a text in which
    [[3]] stands for three tokens (for an insertion model: up to three) and [[3:[a-z]+]] for three
    whose text matches an expression, or ids with None for each gap; EOS follows it unless that is
    ignored, and its length takes the place of max_tokens;
    constraint: `Regex`, `JsonSchema`, `LarkGrammar`, `AnyOf` or `SpanOf`, a JSON schema as a dict or
    a class of pydantic, or a list of texts of which the answer is one; None: any text; finish:
    where the tokens run out, the answer is led to an end that the constraint allows
    (`DeadlineLanguage`). The n answers share the seed and have their own randomness each.

    best_of: so many answers are drawn, and usage counts all of them; the n whose tokens have the
    highest mean log-probability under the model are given, the best first (`Choice.score`). echo:
    each answer's text begins with the prompt's, as it was given or as its ids read; with `logprobs`
    come those of the prompt (`Completion.prompt_logprobs`). Neither goes with a stream.

    reasoning_format: "auto" parts what the model thinks from what it answers, by the marks that its
    chat template or its tokenizer has (`Choice.reasoning`); a constraint then begins behind the
    thinking, and texts of `stop` end the answer alone. Nothing changes for a model of which nothing
    is known. reasoning_budget: behind so many tokens of thinking the mark that ends it is forced;
    reasoning_push makes that end soft: in the last tenth of the budget each token adds so much to the
    mark's log-weight.

    steer: any name of a way to steer (polydec.methods.registry.steer), None for none, or "cfg"
    where there is a negative prompt; negative_prompt: in any form that a prompt has; the empty text
    is an empty turn of a chat or, without a template, the prompt's last token alone.

    source: of an encoder-decoder model (T5, BART, Marian) a text, its UTF-8 bytes or token ids; the
    prompt, which may be empty beside it, is then what the answer begins with. Without a source the
    prompt is the source. Of a model that reads an image (`polydec train reader`) it is an `Image`,
    or OpenAI's part of a message (image_url with a data URL), which chat messages may hold as well;
    of a vision-language model an image or a sequence of them, which stand before what the user says,
    unless the prompt has places for them.

    units: "bytes" makes any model a law over bytes: the prompt may end inside of a word, a draft or
    a second model may have another tokenizer, and wherever this request or its answer says tokens,
    bytes are meant.

    cache: any name of a way to keep old keys and values (polydec.methods.registry.press), None: as
    they are. The law is then that of the pressed cache: every method keeps it as it keeps the
    model's.

    reuse: "prefix" takes of an earlier request's cache what both texts begin with, "edited" also
    what stands behind an edit, turned to its new positions: the law is approximate then, and the
    answer's `method` says so. reuse_key names the text: requests of one key follow one another, and
    each leaves its text to the next (models/sessions/reuse.py). reuse_again: so many tokens right
    behind an edit are fed again, as they change most.

    cache_salt: texts of one engine that begin alike share what was computed for them, a reuse_key
    names a text, and methods may keep a memory from request to request: all of it only among
    requests of one salt. No text depends on it.

    logits_processor: bends the law of each next token, in the place that `order` has for it: it is
    given the token ids of prompt and answer so far and their logits, a tensor of shape ``[V]``, and
    returns the logits that take their place. stop_when: is given the token ids and the text of the
    answer behind each token, as far as the text is certain; where it returns what is true, the
    answer ends there, with finish_reason "stop_when" (not before `min_tokens`). Both are called in
    the thread that runs the engine, also for texts that never become the answer, so each must
    return the same for the same arguments. Where one raises, its request ends with a RequestError.

    tools: as chat templates take it (JSON schemas of functions), only beside chat messages.
    template: further names, such as {"enable_thinking": False}.
    """

    prompt: Prompt
    method: Annotated[str, "decoding method: see `polydec methods`"] = "auto"
    options: Annotated[Mapping[str, Any], "options of the method"] = field(
        default_factory=dict[str, Any]
    )
    sampling: "Sampling | Mapping[str, Any] | None" = None
    max_tokens: Annotated[
        int | None,
        AtLeast(1),
        ValueNote(f"none: {LENGTH}, or what the context leaves"),
        "tokens of an answer at most, EOS included",
    ] = None
    stop: Annotated[
        str | Sequence[str],
        ParseAs(tuple[str, ...]),
        EntryCount(0, STOPS),
        "texts that end an answer",
    ] = ()
    stop_token_ids: Annotated[
        Sequence[int],
        ParseAs(tuple[int, ...]),
        EntryCount(0, STOPS),
        "token ids that end an answer",
    ] = ()
    ignore_eos: Annotated[bool, "go on after EOS"] = False
    include_stop: Annotated[bool, "leave the stop string in the text"] = False
    seed: Annotated[int, InRange(-LARGEST, LARGEST), "names the randomness"] = 0
    n: Annotated[int, InRange(1, CHOICES), "answers to one prompt"] = 1
    best_of: Annotated[
        int | None,
        InRange(1, CHOICES),
        ValueNote("none: n"),
        "answers that are drawn, of which the n of the highest mean log-probability are given",
    ] = None
    echo: Annotated[bool, "the prompt's text before each answer"] = False
    logprobs: Annotated[
        int | None,
        InRange(0, ALTERNATIVES),
        ValueNote("none: no log-probabilities"),
        "alternatives to report beside each token",
    ] = None
    prompt_logprobs: Annotated[
        int | None,
        InRange(0, ALTERNATIVES),
        ValueNote("none: nothing of the prompt"),
        "alternatives to report beside each token of the prompt",
    ] = None
    units: Annotated[
        str,
        OneOf("tokens", "bytes"),
        "what the model writes at a time, and what max_tokens, usage and log-probabilities count",
    ] = "tokens"
    covers: Annotated[
        int,
        InRange(0, 64),
        ValueNote("0: those alone that the tokenizer writes"),
        "sequences of tokens that are followed for the same bytes (units bytes)",
    ] = 2
    source: Annotated[
        str | bytes | Sequence[int] | Image | Sequence[Image] | Mapping[str, Any] | None,
        ParseAs(object),
        ValueNote("none: the prompt is the source"),
        "what an encoder-decoder model writes from, a text in any of its forms, or an image; the prompt then begins the "
        "answer. Images, one or several, may also stand before the prompt of a vision-language model",
    ] = None
    raw: Annotated[bool, "no chat template"] = False
    sanitize_control_tokens: Annotated[
        bool,
        "control tokens in what users write are plain text, and only the chat template's own are tokens",
    ] = False
    infill: Annotated[
        str | Sequence[int | None] | None,
        ParseAs(object),
        "the answer with gaps, [[3]] for three tokens and [[3:[a-z]+]] for three that match an expression "
        "(masked-diffusion models; of insertion models, and of `train lm --objective cm3`, [[3]] for up to three)",
    ] = None
    infill_repeat: Annotated[
        int,
        InRange(0, 64),
        "a gap of a model of `train lm --objective cm3` also ends where it begins to repeat so many tokens of what stands "
        "behind it, which are left out (8 or more do no harm to short words; 0: it ends by its own mark alone)",
    ] = 0
    order: Annotated[
        str, OneOf(*ENGINES), "the engine whose order of sampling rules is followed"
    ] = "vllm"
    constraint: Annotated[
        OutputConstraint | Mapping[str, Any] | Sequence[str] | type | None,
        ParseAs(object),
        "which texts an answer may be",
    ] = None
    finish: Annotated[bool, "bring a constrained answer to a legal end within max_tokens"] = False
    reasoning_format: Annotated[
        str,
        OneOf("none", "auto"),
        ValueNote("none leaves it in the text"),
        "part what the model thinks from its answer, which alone is constrained and stopped by texts then",
    ] = "none"
    reasoning_budget: Annotated[
        int | None,
        InRange(0, THOUGHT),
        ValueNote("none: no bound"),
        "tokens that the model may think at most; then its thinking is ended",
    ] = None
    reasoning_push: Annotated[
        float,
        InRange(0, 100),
        ValueNote("0: the end is hard alone"),
        "what each token of the budget's last tenth adds to the log-weight of the mark that ends the thinking",
    ] = 0.0
    steer: Annotated[str | None, "bend the model's law: see `polydec steerings`"] = None
    steer_options: Annotated[Mapping[str, Any], "options of the steering"] = field(
        default_factory=dict[str, Any]
    )
    negative_prompt: Annotated[
        Prompt | None, ParseAs(object), "what the prompt is held against: a second prompt"
    ] = None
    cache: Annotated[
        str | None, "make the cache smaller, which changes the law: see `polydec presses`"
    ] = None
    cache_options: Annotated[Mapping[str, Any], "options of the press"] = field(
        default_factory=dict[str, Any]
    )
    reuse: Annotated[
        str | None,
        OneOf("prefix", "edited"),
        "take an earlier request's cache: of what both texts begin with, or also behind an edit (approximate)",
    ] = None
    reuse_key: Annotated[str, "names the text that is edited from request to request (reuse)"] = ""
    reuse_again: Annotated[
        int,
        InRange(0, 4096),
        "with reuse edited: tokens right behind an edit that are fed again; 0: the published rule",
    ] = 16
    cache_salt: Annotated[
        str, "requests share what was computed for earlier ones only with those of the same salt"
    ] = ""
    logits_processor: Annotated[
        LogitsFunction | None,
        ParseAs(object),
        ValueNote("none: the law as it is"),
        "a function of token ids and logits that gives the logits to sample from",
    ] = None
    stop_when: Annotated[
        StopFunction | None,
        ParseAs(object),
        ValueNote("none: nothing besides"),
        "a function of an answer's token ids and text that says whether it ends there",
    ] = None
    tools: Annotated[Sequence[Mapping[str, Any]], ParseAs(object), "what the model may call"] = ()
    template: Annotated[Mapping[str, Any], "further names that the chat template is told"] = field(
        default_factory=dict[str, Any]
    )
    prompt_ending: Annotated[
        str,
        OneOf("reply", "continue", "none"),
        ValueNote("continue goes on with the final message"),
        "what the text of a chat ends with: what opens the assistant's turn, its final message, or nothing more",
    ] = "reply"

    @property
    def answer_count(self) -> int:
        """Answers that are written."""
        if self.best_of is None:
            return self.n
        return self.best_of

    def __repr__(self) -> str:
        """The prompt, cut short, and the fields that were set."""
        # A default is not shown: requests have thirty fields, of which most say nothing.
        set_ = [f for f in fields(self)[1:] if getattr(self, f.name) != _default(f)]
        fields_set = [
            _SHORT.repr(self.prompt),
            *(f"{f.name}={_SHORT.repr(getattr(self, f.name))}" for f in set_),
        ]
        return f"Ask({', '.join(fields_set)})"


def _default(field: Field[Any]) -> Any:
    if field.default_factory is MISSING:
        return field.default
    return field.default_factory()


_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 60


class AskFields(TypedDict, total=False):
    """The fields of `Ask` behind its prompt, as keywords of `generate`, `stream` and
    `Engine.submit`: an editor knows them."""

    method: str
    options: Mapping[str, Any]
    sampling: "Sampling | Mapping[str, Any] | None"
    max_tokens: int | None
    stop: str | Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    include_stop: bool
    seed: int
    n: int
    best_of: int | None
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None
    units: str
    covers: int
    source: str | bytes | Sequence[int] | Image | Sequence[Image] | Mapping[str, Any] | None
    raw: bool
    sanitize_control_tokens: bool
    infill: str | Sequence[int | None] | None
    infill_repeat: int
    order: str
    constraint: OutputConstraint | Mapping[str, Any] | Sequence[str] | type | None
    finish: bool
    reasoning_format: str
    reasoning_budget: int | None
    reasoning_push: float
    steer: str | None
    steer_options: Mapping[str, Any]
    negative_prompt: Prompt | None
    cache: str | None
    cache_options: Mapping[str, Any]
    reuse: str | None
    reuse_key: str
    reuse_again: int
    cache_salt: str
    logits_processor: LogitsFunction | None
    stop_when: StopFunction | None
    tools: Sequence[Mapping[str, Any]]
    template: Mapping[str, Any]
    prompt_ending: str


class RequestFields(AskFields, SamplingKeywords, total=False):
    """All keywords of a request: its own fields, and those of sampling."""


ELSEWHERE = {
    "max_new_tokens": "max_tokens",
    "max_length": "max_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
    "stop_words": "stop",
    "stopping_criteria": "stop_when",
    "logits_processors": "logits_processor",
    "prefix_allowed_tokens_fn": "logits_processor",
    "do_sample": "temperature",
    "random_state": "seed",
    "tokenizer": "raw",
    "num_beams": "method='beam'",
    "assistant_model": "polydec.load(…, draft=…)",
    "prompt_lookup_num_tokens": "method='prompt-lookup'",
    "response_format": "constraint",
    "guided_json": "constraint",
    "json_schema": "constraint",
    "schema": "constraint",
    "regex": "constraint=polydec.Regex(…)",
    "guided_regex": "constraint=polydec.Regex(…)",
    "grammar": "constraint=polydec.LarkGrammar(…)",
    "choice": "constraint=[…]",
    "choices": "constraint=[…]",
    "guided_choice": "constraint=[…]",
    "structured_outputs": "constraint",
    "system": "a chat message of the role system",
    "system_prompt": "a chat message of the role system",
    "messages": "prompt",
    "stream": "polydec.stream(…)",
}
"""What other engines' names are called here."""


def unknown_request_field(name: str, known: Collection[str]) -> TypeError:
    """The error for a keyword that a request does not have, with the nearest one.

    Args:
        name: The keyword.
        known: All that there are.

    Returns:
        The error; the caller raises it.
    """
    if name in ELSEWHERE:
        hint = f"did you mean {ELSEWHERE[name]}?"
    else:
        fields_are = "its fields are those of polydec.Ask and of polydec.Sampling"
        hint = near_names_question(name, known, fields_are, 1)
    return TypeError(f"a request has no field {short_repr(name)}: {hint}")


def refuse_streamed(ask: Ask) -> None:
    """Raise RequestError for a field that says what is known only when all answers have ended, or
    stands before them."""
    if ask.best_of is not None:
        raise RequestError(
            f"best_of is {short_repr(ask.best_of)}: which answers are the best is known at the end, so it does not go with "
            "a stream"
        )
    if ask.echo:
        raise RequestError(
            "echo is true: a stream holds what is written, so print the prompt before it and leave echo out"
        )


def holds_prompts(prompt: Any) -> TypeGuard[Sequence[Any]]:
    """Whether this is several prompts: a list that begins with a text, an Ask, token ids or a chat."""
    if isinstance(prompt, (str, bytes)) or not isinstance(prompt, Sequence) or not prompt:
        return False
    # One chat begins with a message and token ids with a number, so the first entry tells.
    return isinstance(prompt[0], (str, Ask, Sequence)) and not isinstance(prompt[0], bytes)


def ask_from_fields(prompt: Prompt | Ask, values: Mapping[str, Any]) -> Ask:
    """The request of a prompt and fields by name, or the one that is given.

    Args:
        prompt: A prompt, or a whole request.
        values: Fields of a request and of sampling by name, beside a prompt.

    Returns:
        The request.

    Raises:
        TypeError: A field is unknown, with the nearest one named, stands beside an Ask, which has
            its own, or is given by itself and within `sampling`.
        RequestError: There are several prompts.
    """
    if isinstance(prompt, Ask):
        if values:
            raise TypeError(
                f"{', '.join(values)} is given beside an Ask: set it there (dataclasses.replace changes one)"
            )
        return prompt
    if holds_prompts(prompt):
        raise RequestError(
            f"prompt is a list of {len(prompt)} prompts: generate answers several; submit and stream take one each"
        )
    # Late: other packages may bring rules of sampling, and flags are declared without what computes.
    from polydec.laws.shapers.sampling import all_sampling_fields

    # The first field is the prompt, which is given by itself.
    known = [f.name for f in fields(Ask)][1:]
    rules = all_sampling_fields()
    for name in values:
        if name not in known and name not in rules:
            raise unknown_request_field(name, [*known, *rules])
    own = {name: value for name, value in values.items() if name in known}
    # None says nothing: the checkpoint's own value stands.
    sampled = {k: v for k, v in values.items() if k not in known and v is not None}
    # Fields of sampling may stand by themselves or within `sampling`, also some here and some there.
    if sampled:
        own["sampling"] = _joined_sampling(own.get("sampling"), sampled)
    return Ask(prompt, **own)


def _joined_sampling(asked: Any, named: dict[str, Any]) -> Any:
    """The sampling of a request of which some fields are given by themselves. Raises TypeError for
    one that stands in both."""
    from polydec.laws.shapers.sampling import Sampling, all_sampling_fields

    if isinstance(asked, Sampling):
        # A field at its default was not set: a default is neutral.
        rules = all_sampling_fields()
        said = [name for name in named if getattr(asked, name) != rules[name].default]
    elif isinstance(asked, Mapping):
        said = [name for name in named if name in asked]
    elif asked is None:
        return named
    else:
        # What it is instead is said where the request is checked.
        return asked
    if said:
        raise TypeError(f"{said[0]} is given by itself and in sampling: leave one of them out")
    # It stays a whole Sampling, under which the checkpoint's own values do not show.
    if isinstance(asked, Sampling):
        return replace(asked, **named)
    return {**asked, **named}


@cache
def ask_options() -> Mapping[str, Option]:
    """The fields of a request by name; not its prompt and its sampling, which has fields of its
    own."""
    return MappingProxyType(
        {
            f.name: option_from_annotation(f.name, f.type, _default(f))
            for f in fields(Ask)
            # Fields without an annotation of their range are converted by whoever knows them.
            if get_origin(f.type) is Annotated
        }
    )


def convert_ask(ask: Ask) -> Ask:
    """A request whose values are what their fields declare: a text of digits becomes a number, a
    list a tuple. Raises RequestError for the first one that is not legal."""
    return replace(
        ask, **{name: o.convert_value(getattr(ask, name)) for name, o in ask_options().items()}
    )
