"""A query decoder (X-Decoder): it reads the image of a prompt and writes captions, names and masks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.core.types import TokenVocabulary
from polydec.models.formats import edge
from polydec.models.formats.fields import Id, StrictFields
from polydec.models.learned import artefact
from polydec.models.nets.query_decoder import QueryDecoderNetwork, QuerySizes
from polydec.models.sessions.soft import last_image_vectors

KIND = artefact.ArtefactKind(
    "query-decoder", "query decoder", "query_decoder.safetensors", "x-decoder"
)
OBJECTS = 8
"""Object queries at most: training tries every way to give things to them."""


class QueryDecoderFields(StrictFields):
    """config.json of a query decoder."""

    vocab_size: Annotated[int, Field(ge=2, le=1 << 24)]
    tokenizer: Annotated[str, Field(max_length=100)]
    image_width: Annotated[int, Field(ge=1, le=1 << 14)]
    rows: Annotated[int, Field(ge=1, le=256)]
    columns: Annotated[int, Field(ge=1, le=256)]
    width: Annotated[int, Field(ge=1, le=1 << 12)]
    heads: Annotated[int, Field(ge=1, le=64)]
    layers: Annotated[int, Field(ge=1, le=64)]
    objects: Annotated[int, Field(ge=1, le=OBJECTS)]
    longest: Annotated[int, Field(ge=2, le=1024)]
    text_layers: Annotated[int, Field(ge=1, le=64)]
    masked: bool
    start: Id
    end: Id
    cell: Annotated[int, Field(ge=1, le=1 << 10)]
    names: Annotated[
        list[Annotated[list[Id], Field(min_length=1, max_length=16)]], Field(max_length=1 << 12)
    ]

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.width % self.heads:
            raise FileError(f"width is {self.width} and heads {self.heads}: heads must divide it")
        # Names are lists of any length, and there may be none.
        largest = max(self.start, self.end, *(x for name in self.names for x in name), 0)
        if largest >= self.vocab_size or any(len(name) > self.longest for name in self.names):
            raise FileError(
                f"start, end and names must be token ids below {self.vocab_size}, of at most {self.longest} tokens each"
            )
        return self


@dataclass(frozen=True, eq=False)
class FoundObject:
    """A part of an image that a query stands for.

    Attributes:
        name: Number of its name among those that were asked for.
        logp: Log-probability of the name.
        logit_HW: Of each cell, above 0 where it belongs to the part, ``[rows, columns]``.
    """

    name: int
    logp: float
    logit_HW: Tensor


@dataclass(frozen=True, eq=False)
class QueryDecoder:
    """A trained query decoder. Its queries are functions of its network, whose values are its answers.

    Attributes:
        vocab: Of the model whose vision tower makes the vectors that it reads.
        sizes: Of the network.
        start: The token before a caption.
        end: The token behind one.
        cell: Pixels of a side of a cell of a mask.
        names: Token ids of every name that it learned.
        tensors: Of the network, by name.
    """

    called: ClassVar[str] = "a query decoder"
    kind: ClassVar[str] = KIND.name
    made_by: ClassVar[str] = KIND.training_command
    reads_draft: ClassVar[bool] = False

    vocab: TokenVocabulary
    sizes: QuerySizes
    start: int
    end: int
    cell: int
    names: tuple[tuple[int, ...], ...]
    tensors: Mapping[str, Tensor]

    def check_fit(self, target: Target, draft: Target | None) -> None:
        """Check that it was trained for the target's vocabulary and vectors.

        Args:
            target: The model that it is to serve.
            draft: Draft model of the request, or None; not read.

        Raises:
            RequestError: The vocabularies differ in size, or their tokenizers are known and differ.
            FileError: The widths differ.
        """
        target.vocab.require_same(self.vocab, "the target of the query decoder")
        artefact.require_width(target, self.sizes.image_width, "query decoders")

    @cached_property
    def query_network(self) -> QueryDecoderNetwork:
        """The network, made when somebody first reads."""
        # A start that draws weights would move the global generator.
        with torch.device("meta"):
            network = QueryDecoderNetwork(self.sizes)
        network.load_state_dict(dict(self.tensors), assign=True)
        return network.requires_grad_(False).eval()

    @property
    def cost(self) -> float:
        """Numbers that a pass reads."""
        return float(sum(t.numel() for t in self.tensors.values()))

    @torch.inference_mode()
    def forward(self, queries: Sequence[Callable[[QueryDecoderNetwork], Any]]) -> list[Any]:
        """Ask the network each of some questions; the answers, in order."""
        # One by one: a batch would change the last bits of each with its company.
        return [query(self.query_network) for query in queries]

    def last_image(self, vectors: Mapping[int, Tensor]) -> Tensor | None:
        """The vectors of the last image of a text, row by row, fp32; see `last_image_vectors`."""
        count = self.sizes.rows * self.sizes.columns
        found = last_image_vectors(vectors, count, "the query decoder")
        return None if found is None else found.float().cpu()


def find_named_objects(
    network: QueryDecoderNetwork, vector_PH: Tensor, names: Sequence[Sequence[int]]
) -> list[FoundObject]:
    """Find the things of an image that have one of some names (open vocabulary).

    Args:
        network: The network.
        vector_PH: Vectors of the image.
        names: Token ids of the names, which it need not have learned; at least one.

    Returns:
        One for each object query that has a name and a cell at all, the surest first.
    """
    memory = network.read_image(vector_PH, None)
    logp_QC = network.name_logits(
        memory.object_1QW, network.text_vectors(*padded_tokens(names))
    ).log_softmax(-1)[0]
    logit_QF = network.mask_logits(memory.object_1QW, memory.features)[0]
    # Every query speaks for itself: two of one name are two things.
    out = list[FoundObject]()
    for logp_C, logit_F in zip(logp_QC, logit_QF, strict=True):
        name = int(logp_C.argmax())
        # The last column is no name, but nothing.
        if name < len(names) and bool((logit_F > 0).any()):
            logit_HW = logit_F.view(network.sizes.mask_grid)
            out.append(FoundObject(name, float(logp_C[name]), logit_HW))
    return sorted(out, key=lambda found: -found.logp)


def find_phrase(
    network: QueryDecoderNetwork, vector_PH: Tensor, phrase: Sequence[int]
) -> FoundObject:
    """Find the part of an image that a phrase speaks of (referring segmentation).

    Args:
        network: The network.
        vector_PH: Vectors of the image.
        phrase: Token ids.

    Returns:
        The query, among a copy of the object queries that reads the phrase, whose vector is most like
        the phrase's.
    """
    # A batch of one.
    features = network.image_features(vector_PH[None])
    phrase_1T, there_1T = padded_tokens([phrase])
    copy_1QW = network.read_phrase(features, phrase_1T, there_1T)
    logit_1Q = phrase_logits(network, copy_1QW, network.text_vectors(phrase_1T, there_1T))
    logp_Q = logit_1Q[0].log_softmax(-1)
    best = int(logp_Q.argmax())
    logit_F = network.mask_logits(copy_1QW, features)[0, best]
    return FoundObject(0, float(logp_Q[best]), logit_F.view(network.sizes.mask_grid))


def phrase_logits(network: QueryDecoderNetwork, copy_BQW: Tensor, phrase_BW: Tensor) -> Tensor:
    """How alike each query of a copy and the phrase are that it read.

    Args:
        network: The network.
        copy_BQW: States of the copies.
        phrase_BW: A phrase's vector for each.

    Returns:
        Logits, ``[B, Q]``.
    """
    # Of each picture with its own phrase alone.
    alike_BQ = (network.meaning_vectors(copy_BQW) @ phrase_BW[:, :, None])[..., 0]
    return alike_BQ * network.sharpness.exp()


def padded_tokens(texts: Sequence[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Token ids of texts side by side, and which of them are there, ``[B, T]`` each."""
    # Filled up with token 0, which nobody reads there.
    longest = max(map(len, texts))
    token_BT = torch.tensor([[*text, *[0] * (longest - len(text))] for text in texts])
    length_B1 = torch.tensor([[len(text)] for text in texts])
    return token_BT, torch.arange(longest) < length_B1


def tensor_shapes(sizes: QuerySizes) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a network, by name."""
    # On the meta device a module has shapes and takes no memory.
    with torch.device("meta"):
        network = QueryDecoderNetwork(sizes)
    return {name: tuple(t.shape) for name, t in network.state_dict().items()}


def examples(vocab: TokenVocabulary, width: int, draft_width: int) -> tuple[QueryDecoder, ...]:
    """Make a random one for tests.

    Args:
        vocab: The target's vocabulary.
        width: Width of the target's states.
        draft_width: Not read.

    Returns:
        One, of images of two vectors.
    """
    sizes = QuerySizes(vocab.size, width, 1, 2, 8, 2, 3, 2, 12, 1)
    # So large that captions do not repeat one word.
    tensors = random_tensors(sizes, 1, 4.0)
    names = tuple((token,) for token in range(min(2, vocab.size)))
    return (QueryDecoder(vocab, sizes, 0, vocab.size - 1, 4, names, tensors),)


def random_tensors(sizes: QuerySizes, seed: int, spread: float) -> dict[str, Tensor]:
    """Weights of a network that was not trained.

    Args:
        sizes: Of the network.
        seed: Names them.
        spread: How much larger matrices are than a training begins with.

    Returns:
        The tensors by name.
    """
    # The global generator is left as it was.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(seed)
        network = QueryDecoderNetwork(sizes)
    return {
        name: t.detach() * (spread if t.dim() > 1 else 1.0)
        for name, t in network.state_dict().items()
    }


def save(path: str | Path, decoder: QueryDecoder, about: Mapping[str, Any]) -> None:
    """Write query_decoder.safetensors and config.json into a directory.

    Args:
        path: Directory to write into; it is made where there is none.
        decoder: The query decoder.
        about: Further fields of config.json, by name. Fields that the artefact writes itself win.

    Raises:
        UnwritableError: The disk is full, or the directory cannot be written to.
    """
    # The vocabulary has a name of its own in the file.
    sizes = {name: value for name, value in asdict(decoder.sizes).items() if name != "vocab"}
    artefact.save_artefact(
        path,
        KIND,
        {name: t.float().contiguous() for name, t in decoder.tensors.items()},
        {
            **about,
            **sizes,
            "vocab_size": decoder.sizes.vocab,
            "tokenizer": decoder.vocab.tokenizer,
            "start": decoder.start,
            "end": decoder.end,
            "cell": decoder.cell,
            "names": [list(name) for name in decoder.names],
        },
    )


def load(path: str | Path) -> QueryDecoder:
    """The one in a directory that `save` wrote. Raises FileError where there is none, or it is damaged."""
    config, tensors = artefact.read_artefact_files(edge.at_home(path), KIND)
    with artefact.report_artefact_damage(path, KIND):
        c = edge.validate_record(QueryDecoderFields, config, artefact.CONFIG)
        others = [field.name for field in fields(QuerySizes) if field.name != "vocab"]
        sizes = QuerySizes(c.vocab_size, **{name: getattr(c, name) for name in others})
        # fp32, whatever the file has.
        whole = artefact.read_float_tensors(tensors, KIND, tensor_shapes(sizes))
        vocab = TokenVocabulary(c.vocab_size, frozenset(), c.tokenizer)
        names = tuple(map(tuple, c.names))
        return QueryDecoder(vocab, sizes, c.start, c.end, c.cell, names, whole)
