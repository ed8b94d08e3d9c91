"""Reading a vector out of a model: the state of a text's last token, or the mean over its tokens,
behind any layer.

Token Prepending (Fu et al., "Token prepending: a training-free approach for eliciting better
sentence embeddings from LLMs", 2025): a placeholder stands before the text, and before each of some
early layers it takes the state that the last token has there. So every token of the text sees a
summary of the whole. What is computed so serves for vectors only, and is kept nowhere.

Parallel paths (Wang et al., "Explore more, learn better: parallel MLLM embeddings under mutual
information minimization", 2025): learned prefixes stand before the input, a copy of it behind each,
and every path gives a vector of its own. All paths of all texts share passes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.nn.functional import normalize

from polydec.base.edge import whole_text
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.core.effects import ForwardQuery, gather_coroutines
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.methods.registry.family import family_of
from polydec.models.formats import sentences
from polydec.models.formats.images import Image
from polydec.models.learned.kinds.path_prefixes import PathPrefixes
from polydec.models.nets.query import NetworkQuery
from polydec.models.sessions.ledger import entries_of
from polydec.models.sessions.queries import query_of
from polydec.models.sessions.soft import image_grids
from polydec.request.reading import PLACE, TEXT, EmbeddingSettings

TOGETHER = 4096
"""Tokens of texts that are read together, at least one text."""
STATES = ScoreRequest(law=RowDetail.NOTHING, hidden=True)


Texts = str | Sequence[str] | Sequence[Sequence[int]]
"""One text or several; token ids of each will do."""


@dataclass(frozen=True)
class EmbeddingInput:
    """A text to read. ids: of its tokens, 0 for the placeholder; place: where that stands, None:
    nowhere."""

    ids: tuple[int, ...]
    place: int | None


class EmbeddableModel(Protocol):
    """A loaded model (request/loaded.py)."""

    @property
    def name(self) -> str: ...
    @property
    def checkpoint(self) -> Any: ...
    def encode_prompt(
        self, prompt: Any, *, raw: bool = ..., who: str = ..., most: int | None = ...
    ) -> tuple[int, ...]:
        """Encode a prompt.

        Args:
            prompt: A text or token ids.
            raw: Without the chat template.
            who: What messages call it.
            most: Tokens that there is room for. None: no bound.

        Returns:
            The ids.
        """
        ...

    def find_artefact(self, kind: type[PathPrefixes]) -> PathPrefixes | None:
        """Prefixes for several paths that were trained for it; None where there is none."""
        ...


def embed_texts(
    model: EmbeddableModel, texts: Texts, how: EmbeddingSettings, images: Sequence[Image] = ()
) -> Tensor:
    """A vector for each text.

    Args:
        model: Reads the texts.
        texts: One or several, or token ids of each.
        how: How a vector is read out.
        images: An image for each text, which stands before it; one text serves any number of
            them. Default: none.

    Returns:
        The vectors, shape ``[n, width]``, float32; ``[n, paths x width]`` where those of all paths
        stand one behind another.

    Raises:
        RequestError: A text is empty or longer than the context, the model has not that layer,
            shows no states, or reads no images.
    """
    how = resolve_embedding_settings(model, how)
    inputs = prepare_embedding_inputs(model, texts, how, images=images)
    return run_coroutines([embedding_vectors(model, inputs, how)])[0]


def prefixes_of_paths(model: EmbeddableModel) -> PathPrefixes | None:
    """The prefixes that were trained for a model; None: it reads a text along one path, as it is."""
    return model.find_artefact(PathPrefixes)


def embedding_width(model: EmbeddableModel, how: EmbeddingSettings) -> int:
    """Numbers of a vector.

    Args:
        model: Reads the texts.
        how: How a vector is read out.

    Returns:
        The width of a state, or as many times that as there are paths.
    """
    prefixes = prefixes_of_paths(model)
    width: int = model.checkpoint.lm.network.embed_tokens((0,)).shape[1]
    if prefixes is None or how.join != "concat":
        return width
    return width * prefixes.path_count


def resolve_embedding_settings(model: EmbeddableModel, how: EmbeddingSettings) -> EmbeddingSettings:
    """Fill in what settings leave open, as an embedding model's own files have it
    (models/formats/sentences.py); of other models the last state, and no prompt.

    Args:
        model: Reads the texts.
        how: The settings as they were asked for.

    Returns:
        The settings, with a way to pool and a template in the place of a prompt's name.

    Raises:
        RequestError: The model has no prompt of that name, or no such path.
        FileError: Its files have a layout that is not read.
    """
    _check_paths(model, how)
    # sentence-transformers writes beside a model how its vectors are meant to be read.
    says = sentences.read_embedding_config(Path(model.checkpoint.path))
    if says is None:
        prompts = {}
    else:
        prompts = says.prompts
    if how.prompt is not None and how.prompt not in prompts:
        raise RequestError(
            f"prompt is {short_repr(how.prompt)}: {model.name} has "
            + (
                f"the prompts {', '.join(map(short_repr, prompts))}"
                if prompts
                else "no prompts of its own"
            )
        )
    # Where a request leaves all open, the prompt that the model is used with stands before the text.
    name = how.prompt
    if says is not None and name is None and how.template is None and not how.prepend_to:
        name = says.usual
    if name is None:
        before = None
    else:
        before = prompts[name] + TEXT
    pool = how.pool or ("last" if says is None else says.pool)
    return replace(how, pool=pool, prompt=None, template=how.template if before is None else before)


def _check_paths(model: EmbeddableModel, how: EmbeddingSettings) -> None:
    """Raise RequestError where settings do not go with the paths of a model, or with there being none."""
    prefixes = prefixes_of_paths(model)
    if prefixes is None:
        name = "join" if how.path is None else "path"
        if (given := getattr(how, name)) is not None:
            raise RequestError(
                f"{name} is {short_repr(given)}: {model.name} has no prefixes for several paths "
                f"(`{PathPrefixes.made_by}` makes them, --with gives them)"
            )
        return
    if how.path is not None and how.path > prefixes.path_count:
        raise RequestError(
            f"path is {how.path}: there are prefixes for {prefixes.path_count}, counted from 1"
        )
    # Prefixes were trained for the state of the last token behind all layers.
    for name in ("pool", "layer", "prepend_to"):
        given = getattr(how, name)
        if given and given != "last":
            raise RequestError(
                f"{name} is {short_repr(given)}: prefixes are read at the last token behind all layers, so leave it out, or "
                "load the model without them"
            )


def prepare_embedding_inputs(
    model: EmbeddableModel,
    texts: Texts,
    how: EmbeddingSettings,
    most: int | None = None,
    images: Sequence[Image] = (),
) -> list[EmbeddingInput]:
    """Encode texts, and check that vectors can be read out of them so.

    Args:
        model: Reads the texts.
        texts: One or several, or token ids of each.
        how: How a vector is read out.
        most: Tokens of all texts together. None: any number.
        images: As for `embed_texts`. Default: none.

    Returns:
        The tokens of each text, vectors of its image among them.

    Raises:
        RequestError: A text is empty or too long, the model has not that layer, shows no states, or
            cannot read the images.
    """
    lm = model.checkpoint.lm
    family = family_of(lm)
    if not family.continues_text:
        raise RequestError(
            f"{model.name} is {family.called} model: vectors are read out of models that continue texts"
        )
    if how.layer is not None and not lm.layers:
        raise RequestError(f"layer is {how.layer}: {model.name} runs as a whole only")
    # Only whole layers can be run apart, and not every network offers that.
    depth = max(how.layer or 1, how.prepend_to)
    if depth > lm.network.layers or (how.prepend_to and not lm.layers):
        if how.layer == depth:
            name = "layer"
        else:
            name = "prepend_to"
        raise RequestError(
            f"{name} is {depth}: {model.name} has {lm.layers} layers that can run alone"
        )
    if how.layer is not None and how.prepend_to > how.layer:
        raise RequestError(
            f"prepend_to is {how.prepend_to}: it must be at most layer ({how.layer})"
        )
    if isinstance(texts, str):
        texts = (texts,)
    if not texts:
        raise RequestError("texts is empty: give at least one text")
    if images:
        # One text asks the same of each image.
        if len(texts) == 1:
            texts = cast(Texts, [texts[0]] * len(images))
        _check_images(model, texts, how, images)
    out = list[EmbeddingInput]()
    # Counted down, so that one request cannot encode without end.
    left = most
    for at, text in enumerate(texts):
        image = images[at] if images else None
        text_read = _prepared(model, text, how, f"text {at + 1}", left, image)
        if left is not None:
            left = left - len(text_read.ids)
        out.append(text_read)
    return out


def _check_images(
    model: EmbeddableModel,
    texts: Sequence[Any],
    how: EmbeddingSettings,
    images: Sequence[Image],
) -> None:
    """Raise RequestError where images cannot be read with these texts."""
    if model.checkpoint.vision is None:
        raise RequestError(
            f"image is given: {model.name} reads text only, so name a vision-language model, such as zoo:vision"
        )
    if len(texts) != len(images):
        raise RequestError(
            f"there are {len(images)} images and {len(texts)} texts: give a text for each image, or one for all"
        )
    if not all(isinstance(text, str) for text in texts):
        raise RequestError("text 1 is token ids: give texts beside images")
    if how.prepend_to:
        raise RequestError(
            f"prepend_to is {how.prepend_to}: a placeholder stands before texts without images only"
        )


def _prepared(
    model: EmbeddableModel,
    text: str | Sequence[int],
    how: EmbeddingSettings,
    who: str,
    most: int | None,
    image: Image | None = None,
) -> EmbeddingInput:
    room = model.checkpoint.lm.context
    prefixes = prefixes_of_paths(model)
    if prefixes is not None:
        # They stand before the text.
        room -= prefixes.prefix_length
    if most is not None:
        room = min(most, room)
    parts = list[int]()
    place = None
    if not isinstance(text, str):
        # Ids have no place where a template could be joined to them.
        if how.text_around != TEXT:
            raise RequestError(f"{who} is token ids: a template stands around texts only")
        parts += model.encode_prompt(text, raw=True, who=who, most=room)
    elif not text.strip():
        raise RequestError(f"{who} is empty: give a text of at least one character")
    elif model.checkpoint.text.exceeds_limit(whole_text(text, who), room):
        raise RequestError(f"{who} has more than {room} tokens: there is room for those")
    elif image is not None:
        parts += _ids_behind_image(model, how.text_around.replace(TEXT, text), image)
    else:
        # The template may hold one placeholder, whose state summarises the text.
        before, placed, behind = how.text_around.rpartition(PLACE)
        if before:
            parts += model.checkpoint.text.encode(before)
        if placed:
            place = len(parts)
            # Any id: its embedding is replaced before the first layer.
            parts.append(0)
        # Special tokens come with the part that begins the text, not once more behind the
        # placeholder.
        parts += model.checkpoint.text.encode(behind.replace(TEXT, text), special=not placed)
    if len(parts) > room:
        raise RequestError(f"{who} has {len(parts)} tokens: there is room for {room}")
    return EmbeddingInput(tuple(parts), place)


def _ids_behind_image(model: Any, text: str, image: Image) -> tuple[int, ...]:
    """A text behind an image: ids, of which some stand for the vectors of the image."""
    vision = model.checkpoint.vision
    if vision is None:
        raise RequestError(f"images are given: {model.name} reads text only, so leave them out")
    # Without the chat template, as other texts are read here.
    ids = model.encode_prompt(f"{vision.token_text}\n{text}", raw=True)
    if ids.count(vision.token) != 1:
        raise RequestError(f"the text {short_repr(text)} names the place of an image: leave it out")
    filled = list[Any]()
    for part in ids:
        stands_for_image = part == vision.token
        filled += vision.place_parts(vision.place_image(image)) if stands_for_image else [part]
    seen = model.encoder.check_token_ids(filled, "prompt")
    # One token's embedding tells how many numbers the network reads at a place.
    width = model.network.embed_tokens((0,)).shape[1]
    return model.encoder.encode_vectors(filled, seen, width).instead


def group_embedding_inputs(texts: Sequence[EmbeddingInput]) -> list[list[EmbeddingInput]]:
    """Texts that are read together, in order."""
    out = list[list[EmbeddingInput]]()
    size = 0
    for text in texts:
        # A longer text than that is read by itself.
        if not out or size + len(text.ids) > TOGETHER:
            out.append([])
            size = 0
        out[-1].append(text)
        size += len(text.ids)
    return out


async def embedding_vectors(
    model: EmbeddableModel, texts: Sequence[EmbeddingInput], how: EmbeddingSettings
) -> Tensor:
    """Read the vectors of prepared texts. Some texts are read at a time, in passes that they share
    with whatever else the scheduler has.

    Args:
        model: Reads the texts.
        texts: Their tokens.
        how: How a vector is read out, with nothing left open.

    Returns:
        The vectors, shape ``[n, width]``, float32.
    """
    lm = model.checkpoint.lm
    prefixes = prefixes_of_paths(model)
    states = list[Tensor]()
    for group in group_embedding_inputs(texts):
        if prefixes is None:
            read = await gather_coroutines(*(_vector(lm, text, how) for text in group))
        else:
            read = await gather_coroutines(
                *(_path_vector(lm, text, how, prefixes) for text in group)
            )
        # A copy: a row alone would keep all of its pass in memory.
        states.append(torch.stack(read).float())
    rows = torch.cat(states)
    if how.normalised:
        return normalize(rows, dim=-1)
    return rows


async def last_state(lm: Any, text: EmbeddingInput) -> Tensor:
    """Read the state of a text's last token behind all layers.

    Args:
        lm: The model's law.
        text: Its tokens.

    Returns:
        The state before the final norm, shape ``[H]``.
    """
    return (await _plainly(lm, text, EmbeddingSettings(), lm.network.layers))[-1]


async def _vector(lm: Any, text: EmbeddingInput, how: EmbeddingSettings) -> Tensor:
    if how.layer is None:
        depth = lm.network.layers
    else:
        depth = how.layer
    if text.place is not None:
        rows = _prepending
    else:
        rows = _plainly
    state_NH = await rows(lm, text, how, depth)
    # The last layer's states go through the final norm, as transformers has them.
    if depth == lm.network.layers:
        state_NH = lm.network.normed_states(state_NH)
    return state_NH.mean(0)


async def _path_vector(
    lm: Any, text: EmbeddingInput, how: EmbeddingSettings, prefixes: PathPrefixes
) -> Tensor:
    """The vectors of a text along all paths, joined; or that of one path."""
    if how.path is not None:
        paths = range(how.path - 1, how.path)
    else:
        paths = range(prefixes.path_count)
    # Side by side: all paths share passes.
    behind = (EmbeddingInput((*prefixes.prefix_ids(path), *text.ids), None) for path in paths)
    rows = await gather_coroutines(*(_vector(lm, each, how) for each in behind))
    # Each path says a direction, and none speaks louder than the others.
    path_KH = normalize(torch.stack(rows).float(), dim=-1)
    if how.join == "concat":
        return path_KH.flatten()
    return path_KH.mean(0)


async def _plainly(lm: Any, text: EmbeddingInput, how: EmbeddingSettings, depth: int) -> Tensor:
    """The states that are pooled."""
    net = lm.network
    cache_ = lm.network.new_cache()
    # As a session does it where images stand in its text.
    if grids := image_grids(text.ids, whole=getattr(net, "tells_grids", False)):
        cache_.grids = grids
    out = list[Tensor]()
    n = len(text.ids)
    if depth == net.layers:
        # None is the whole network, which may run in one compiled call.
        layers = None
    else:
        layers = tuple(range(depth))
    for first in range(0, n, lm.chunk):
        tokens = text.ids[first : first + lm.chunk]
        rows = _rows(how, first, first + len(tokens), n)
        # A chain: each token stands behind the one before it.
        cache_.stage_slots(range(-1, len(tokens) - 1))
        cache_.commit_path(range(len(tokens)))
        query = query_of(cache_, first, entries_of(tokens), rows, STATES, layers)
        answer = await ForwardQuery(net, query, len(tokens), behind=first)
        if rows:
            out.append(answer.hidden_RH)
    return torch.cat(out)


def _rows(how: EmbeddingSettings, first: int, stop: int, n: int) -> range:
    """Of the tokens [first, stop) of n those whose states are pooled, counted from `first`."""
    return range(0 if how.pool == "mean" else max(0, n - 1 - first), stop - first)


async def _prepending(lm: Any, text: EmbeddingInput, how: EmbeddingSettings, depth: int) -> Tensor:
    """The same, a layer a pass where the placeholder changes."""
    assert text.place is not None
    # All tokens are placed at once, as layers run one after another over all of them.
    net, cache_, n = lm.network, lm.network.new_cache(), len(text.ids)
    cache_.stage_slots(range(-1, n - 1))
    cache_.commit_path(range(n))

    async def through_layers(state_NH: Tensor, layers: range) -> Tensor:
        """Run states through layers, a chunk of tokens a pass.

        Args:
            state_NH: Of all tokens, before the first of the layers.
            layers: One behind the other; none: the states stay as they are.

        Returns:
            The states behind the last layer, shape ``[N, H]``.
        """
        out = list[Tensor]()
        for first in range(0, n if layers else 0, lm.chunk):
            state_CH = state_NH[first : first + lm.chunk]
            query = NetworkQuery(
                cache_, first, (), range(len(state_CH)), STATES, state_CH, tuple(layers)
            )
            answer = await ForwardQuery(net, query, len(state_CH), behind=first)
            out.append(answer.hidden_RH)
        if out:
            return torch.cat(out)
        return state_NH

    # Layers before `prepend_from` see the placeholder as it is.
    state_NH = net.embed_tokens(text.ids).float().clone()
    state_NH[text.place] = _placeholder(net).to(state_NH)
    state_NH = await through_layers(state_NH, range(how.prepend_from))
    # Before each of these layers the placeholder takes the last token's state, so all tokens see a summary.
    for layer in range(how.prepend_from, how.prepend_to):
        state_NH = state_NH.clone()
        state_NH[text.place] = state_NH[-1]
        state_NH = await through_layers(state_NH, range(layer, layer + 1))
    state_NH = await through_layers(state_NH, range(how.prepend_to, depth))
    return state_NH[list(_rows(how, 0, n, n))]


@lru_cache(maxsize=8)
def _placeholder(network: Any) -> Tensor:
    """What enters the first layer for it: normal numbers of the spread that a token's have, always
    the same."""
    # A sample of the table tells the spread; the whole of it may be large.
    known = network.embed_tokens(range(min(1024, network.size))).float()
    dice = torch.Generator().manual_seed(0)
    return torch.randn(known.shape[1], generator=dice) * known.std().cpu()
