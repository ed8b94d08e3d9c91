"""ARC-Encoder: passages as one vector for every few tokens, for decoders that stay as they are.

The decoders (`lab/train/page_reader.py`) learn to answer questions about pages that they read as
words, and to write lines once more; then they are frozen. The encoder begins as the first decoder
without its head and its last layers, and sees in both directions. Two trainings follow (Pilchen,
Grave and Pérez, 2025). In the first one some lines stand as words in front, the others are
compressed, and either what follows the page is foretold (continuation) or the compressed lines are
written once more (reconstruction), behind a learned vector of its own each. In the second one the
whole page is compressed, and one answer alone is learned: that of the first question, as the
records that later ones ask for can be found by what was not asked for yet. At each step one of the
decoders is drawn: each has a projector and learned vectors of its own, and the encoder is shared.
With the encoder of an earlier run (`shared`) nothing but these is trained.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train import page_reader
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.network import TrainableLlama
from polydec.lab.train.page_reader import (
    CONTEXT,
    LINES,
    MARKS,
    VOCAB,
    draw_pages,
    encode_page_lines,
    encode_page_questions,
    page_answer_nats,
    page_continuation_logits,
    page_reader_schedule,
    page_rewriting_nats,
)
from polydec.lab.train.product_centres import learn_product_codebook
from polydec.lab.train.random_streams import generator_for
from polydec.lab.train.specs.context import ContextSpec
from polydec.models.learned.kinds import arc_encoder
from polydec.models.learned.kinds.arc_encoder import ArcEncoder, ArcEncoderSizes, pooled_states
from polydec.models.learned.product_codes import ProductCodebook
from polydec.models.learned.skeleton import LlamaLayers

FRONT = 4
"""Lines that stand as words before the compressed ones in the first training, at most."""

WIDER = 32
"""How much wider each further decoder is than the one before it."""

UNSEEN = 200
"""Pages that the trained model is asked about."""

CODED = 512
"""Pages of whose vectors codes are learned."""


class ArcEncoderModel(nn.Module):
    """Frozen decoders, one encoder, and of each decoder its projector and learned vectors."""

    def __init__(
        self,
        decoders: Sequence[TrainableLlama],
        sizes: Sequence[ArcEncoderSizes],
        seed: int,
        factor: int,
    ) -> None:
        super().__init__()
        self.factor = factor
        # Of each decoder; all but the width that is made is the same in them.
        self.sizes = tuple(sizes)
        self.decoders = nn.ModuleList(d.requires_grad_(False) for d in decoders)
        # The encoder begins with the weights of the first decoder's first layers.
        own = dict(decoders[0].model.named_parameters())
        self.encoder = nn.ParameterDict(
            {_key(n): own[n].detach().clone() for n in sizes[0].encoder_shapes}
        )
        self.projectors = nn.ModuleList(
            nn.ParameterDict(
                arc_encoder.new_decoder_tensors(
                    s, seed + i, float(d.model.embed_tokens.weight.detach().std())
                )
            )
            for i, (s, d) in enumerate(zip(sizes, decoders, strict=True))
        )

    def decoder_at(self, index: int) -> TrainableLlama:
        """One of the decoders."""
        found = self.decoders[index]
        assert isinstance(found, TrainableLlama)
        return found

    def projector_at(self, index: int) -> nn.ParameterDict:
        """The projector of one decoder, with its learned vectors."""
        found = self.projectors[index]
        assert isinstance(found, nn.ParameterDict)
        return found

    @property
    def encoder_tensors(self) -> dict[str, Tensor]:
        """The encoder's tensors by their names in the artefact."""
        return {n: self.encoder[_key(n)] for n in self.sizes[0].encoder_shapes}

    def inner_matrices(self) -> list[nn.Parameter]:
        """The matrices of layers that are trained, for the optimiser of matrices."""
        return [
            p for n, p in self.encoder.items() if p.ndim == 2 and "layers" in n and p.requires_grad
        ]

    def kept_vectors(self, index: int, token_BN: Tensor) -> Tensor:
        """What is kept of passages of one length.

        Args:
            index: Number of the decoder.
            token_BN: Token ids, shape ``[B, N]``.

        Returns:
            Vectors at the bottleneck, shape ``[B, G, C]``.
        """
        state = pooled_states(self.sizes[index], self.encoder_tensors, token_BN, self.factor)
        return F.linear(state, self.projector_at(index)["down"])

    def passage_inputs(
        self, index: int, token_BN: Tensor, task: str, book: ProductCodebook | None = None
    ) -> Tensor:
        """What a decoder reads in the place of passages of one length.

        Args:
            index: Number of the decoder.
            token_BN: Token ids, shape ``[B, N]``.
            task: "continue" or "rewrite".
            book: What vectors are kept as; None: they are kept as they are.

        Returns:
            The vectors, the learned one last, shape ``[B, G + 1, H]``.
        """
        own = self.projector_at(index)
        kept_BGC = self.kept_vectors(index, token_BN)
        # Codes have no gradient: they are read once the encoder is trained.
        if book is not None:
            flat = book.decode_codes(book.encode_vectors(kept_BGC.flatten(0, 1)))
            kept_BGC = flat.view_as(kept_BGC)
        # The learned vector goes through the projector as states do.
        behind = F.linear(own[task], own["down"]).expand(len(kept_BGC), 1, -1)
        return F.linear(torch.cat([kept_BGC, behind], dim=1), own["up"])

    def artefact_for(self, index: int, book: ProductCodebook | None = None) -> ArcEncoder:
        """The encoder with the projector of one decoder, as it is saved.

        Args:
            index: Number of the decoder.
            book: What its vectors can be kept as; None: nothing else.

        Returns:
            The artefact.
        """
        own = {n: p.detach() for n, p in self.projector_at(index).items()}
        tensors = {n: p.detach() for n, p in self.encoder_tensors.items()} | own
        sizes = self.sizes[index]
        if book is not None:
            pieces, centres, _ = book.centre_PKD.shape
            sizes = replace(sizes, pieces=pieces, centres=centres)
            tensors["codes"] = book.centre_PKD
        vocab = TokenVocabulary(VOCAB, frozenset(), "")
        return ArcEncoder(vocab, sizes, self.factor, MARKS, tensors)


def _key(name: str) -> str:
    # A dictionary of parameters takes no dots.
    return name.replace(".", "-")


def encoder_sizes(spec: ContextSpec, decoders: Sequence[TrainableLlama]) -> list[ArcEncoderSizes]:
    """The sizes of the encoder, and of the projector of each decoder.

    Args:
        spec: Options; `cut` and `bottleneck`.
        decoders: The decoders; the encoder is shaped as the first one.

    Returns:
        Sizes that differ in `target` alone.
    """
    s = decoders[0].s
    layers = max(1, s.layers - spec.cut)
    skeleton = LlamaLayers(s.width, layers, s.heads, s.kv_heads, s.inner, s.theta, s.eps)
    return [ArcEncoderSizes(VOCAB, CONTEXT, skeleton, spec.bottleneck, d.s.width) for d in decoders]


def load_arc_model(
    spec: ContextSpec, places: Sequence[Path], begun: Path | None
) -> ArcEncoderModel:
    """Load decoders and make the encoder.

    Args:
        spec: Options.
        places: Directories of the decoders.
        begun: Directory with an artefact for each decoder, from which encoder and projectors go on;
            None: new ones, or with `spec.shared` that encoder and new projectors.

    Returns:
        The model; what is not trained has no gradients.

    Raises:
        RequestError: The shared encoder has another shape than this one.
    """
    decoders = [page_reader.load_page_reader(at) for at in places]
    network = ArcEncoderModel(decoders, encoder_sizes(spec, decoders), spec.seed, spec.factor)
    # `begun` wins: it was itself begun with the shared encoder, and goes on from there.
    if begun is not None:
        for i in range(len(places)):
            _take(network, arc_encoder.load(begun / f"arc-{i}"), i)
    elif spec.shared is not None:
        # Its projector is that of another decoder, so it is not taken.
        given = arc_encoder.load(spec.shared)
        # Heads and their angles leave no trace in the shapes, so sizes are compared.
        own = network.sizes[0]
        if (given.sizes.vocab, given.sizes.skeleton) != (own.vocab, own.skeleton):
            raise RequestError(
                f"shared is {spec.shared!r:.100}: its encoder has other layers than the decoder's first "
                f"{own.skeleton.layers} (set cut, layers and width as they were)"
            )
        _take(network, given, None)
    if spec.shared is not None:
        # In both trainings: what other decoders read must stay as it is.
        network.encoder.requires_grad_(False)
    return network


@torch.no_grad()
def _take(network: ArcEncoderModel, given: ArcEncoder, index: int | None) -> None:
    """Copy an artefact's encoder, and its projector into that of a decoder; None: no projector."""
    # Copied into the tensors that are there, as the optimiser holds these.
    for name, value in network.encoder_tensors.items():
        value.copy_(given.tensors[name])
    if index is not None:
        for name, value in network.projector_at(index).items():
            value.copy_(given.tensors[name])


def course(spec: ContextSpec) -> TrainingRun:
    """What `train_context` runs; the trainings before the last one write directories of their own."""
    out = Path(spec.out)
    # Decoders come first, and each training goes on where it was stopped.
    places = [page_reader.ensure_page_reader(spec, spec.steps)]
    for i in range(1, spec.decoders):
        # Further decoders are others in width and in weights.
        own = replace(
            spec,
            out=str(out / f"words-{i}"),
            width=spec.width + WIDER * i,
            seed=spec.seed + i,
        )
        run_training(f"context arc-encoder, decoder {i}", own, page_reader.prepare_page_reader)
        places.append(Path(own.out))
    # A directory of its own, so that either training can be resumed by itself.
    first = replace(spec, out=str(out / "pretrained"))
    told = run_training(
        "context arc-encoder, pretraining", first, lambda s: _pretraining(s, places)
    )
    # The second training is far shorter than the first, as in the paper.
    tuned = replace(spec, steps=max(1, spec.steps // 5))
    return _tuning(tuned, places, {"rewritten": told["rewritten"]})


def _decoder_of(spec: ContextSpec, step: int) -> int:
    """Which decoder a step draws, all alike."""
    # From the step alone: a resumed run draws the same decoders.
    dice = generator_for(spec.seed, step, "decoder")
    return int(torch.randint(0, spec.decoders, (), generator=dice))


def _saved(network: ArcEncoderModel, out: Path) -> None:
    """Write the artefact of each decoder into a folder of its own."""
    for i in range(len(network.sizes)):
        arc_encoder.save(out / f"arc-{i}", network.artefact_for(i), {})


def _pretraining(spec: ContextSpec, places: Sequence[Path]) -> TrainingRun:
    network = load_arc_model(spec, places, None)

    def step_loss(step: int) -> tuple[Tensor, int]:
        return pretraining_loss(network, spec, step), spec.rows * CONTEXT

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec),
        lambda out, _: _saved(network, out),
        lambda: {"rewritten": measure_page_rewriting(network)},
        deep=network.inner_matrices() if spec.muon else (),
    )


def pretraining_loss(network: ArcEncoderModel, spec: ContextSpec, step: int) -> Tensor:
    """The loss of a step of the first training: continuation, or reconstruction.

    Args:
        network: The model.
        spec: Options; `rewriting` is the share of steps that reconstruct.
        step: The step.

    Returns:
        Nats a token, of the text that follows the page or of the compressed lines.
    """
    pages = draw_pages(spec.seed, step, spec.rows)
    line_BLK = encode_page_lines(pages)
    index = _decoder_of(spec, step)
    decoder = network.decoder_at(index)
    # One task for all rows of a step: their passages have one length then, without padding.
    chance = generator_for(spec.seed, step, "task")
    rewrites = bool(torch.rand((), generator=chance) < spec.rewriting)
    front = int(torch.randint(0, FRONT + 1, (), generator=chance))
    if rewrites:
        # As many lines as the decoder learned to write once more.
        some = line_BLK[:, : page_reader.MOST]
        page = network.passage_inputs(index, some.flatten(1), "rewrite")
        return page_rewriting_nats(decoder, page, some)[0].mean()
    # Words in front, then what is compressed.
    words = page_reader.embed_page_words(decoder, line_BLK[:, :front])
    made = network.passage_inputs(index, line_BLK[:, front:].flatten(1), "continue")
    token_BU = encode_page_questions(pages)
    logits = page_continuation_logits(decoder, torch.cat([words, made], dim=1), token_BU)
    # Every token that follows is learned, those of questions included, but for the first mark.
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), token_BU[:, 1:].flatten())


def _tuning(spec: ContextSpec, places: Sequence[Path], told: Mapping[str, Any]) -> TrainingRun:
    # Decoders are loaded anew, only the encoder and projectors come from the first training.
    network = load_arc_model(spec, places, Path(spec.out) / "pretrained")

    def step_loss(step: int) -> tuple[Tensor, int]:
        return tuning_loss(network, spec, step), spec.rows * CONTEXT

    def save_result(out: Path, result: Any) -> None:
        """Write decoders and artefacts: the first decoder lies in the directory itself.

        Args:
            out: Directory to write.
            result: What was measured; it is not used.
        """
        for i, book in enumerate(page_codebooks(network, spec)):
            # The directory of a run is a model that can be loaded: that of the first decoder.
            at = out / f"decoder-{i}" if i else out
            page_reader.save_page_reader(at, network.decoder_at(i))
            arc_encoder.save(at / "arc", network.artefact_for(i, book), {})

    return TrainingRun(
        network,
        step_loss,
        page_reader_schedule(spec),
        run_identity(spec),
        save_result,
        lambda: {**told, **measure_page_answers(network, page_codebooks(network, spec))},
        deep=network.inner_matrices() if spec.muon else (),
    )


def tuning_loss(network: ArcEncoderModel, spec: ContextSpec, step: int) -> Tensor:
    """The loss of a step of the second training: the digits of the first answer alone.

    The paper learns the last answer, behind examples with pages of their own. Here all questions
    are about one page, so the last one is about the only record that was not asked for yet: its
    answer can be told without looking its key up. Nothing stands before the first question, so it
    is also the last one of a text that has no other.

    Args:
        network: The model.
        spec: Options.
        step: The step.

    Returns:
        Nats a digit.
    """
    # Other pages than those of the first training.
    pages = draw_pages(spec.seed, -1 - step, spec.rows)
    index = _decoder_of(spec, -1 - step)
    page = network.passage_inputs(index, encode_page_lines(pages).flatten(1), "continue")
    token_BU = encode_page_questions(pages)
    logits = page_continuation_logits(network.decoder_at(index), page, token_BU)
    return page_answer_nats(logits, token_BU)[0][:, 0].mean()


@torch.no_grad()
def page_codebooks(network: ArcEncoderModel, spec: ContextSpec) -> list[ProductCodebook | None]:
    """What vectors of passages can be kept as, for each decoder: centres of pieces, learned from pages
    of the training.

    Args:
        network: The trained model.
        spec: Options; `pieces` and `seed` are read.

    Returns:
        A codebook for each decoder, or None for each where there are no pieces.
    """
    if not spec.pieces:
        return [None] * len(network.sizes)
    # Pages of the training, as held-out ones are to be measured.
    line_BLK = encode_page_lines(draw_pages(spec.seed, 0, CODED))
    return [
        learn_product_codebook(
            network.kept_vectors(i, line_BLK.flatten(1)).flatten(0, 1), spec.pieces, spec.seed
        )
        for i in range(len(network.sizes))
    ]


@torch.no_grad()
def measure_page_rewriting(network: ArcEncoderModel) -> list[float]:
    """The share of tokens of held-out lines that each decoder writes right, given those before."""
    # The same held-out pages for every run, whatever its seed.
    line_BLK = encode_page_lines(draw_pages(0, 0, UNSEEN, True))[:, : page_reader.MOST]
    out = list[float]()
    for i in range(len(network.sizes)):
        page = network.passage_inputs(i, line_BLK.flatten(1), "rewrite")
        found = page_rewriting_nats(network.decoder_at(i), page, line_BLK)[1]
        out.append(float(found.float().mean()))
    return out


@torch.no_grad()
def measure_page_answers(
    network: ArcEncoderModel, books: Sequence[ProductCodebook | None]
) -> dict[str, Any]:
    """Measure how many questions about held-out pages each decoder answers right in all digits.

    Args:
        network: The trained model.
        books: Of each decoder what vectors can be kept as; None: nothing else.

    Returns:
        `right`: by decoder the share of first questions, as trained for, with the page as words, as
        vectors, as codes of these, and without a page;
        `positions`: inputs of a page as words and as vectors; `parameters` of the encoder.
    """
    pages = draw_pages(0, 0, UNSEEN, True)
    line_BLK = encode_page_lines(pages)
    token_BU = encode_page_questions(pages)
    right = list[dict[str, float]]()
    positions = dict[str, int]()
    for i in range(len(network.sizes)):
        decoder = network.decoder_at(i)
        ways = {
            "words": page_reader.embed_page_words(decoder, line_BLK),
            # The learned vector for going on, as questions are no reconstruction.
            "vectors": network.passage_inputs(i, line_BLK.flatten(1), "continue"),
        }
        positions = {name: page.shape[1] for name, page in ways.items()}
        if (book := books[i]) is not None:
            ways["codes"] = network.passage_inputs(i, line_BLK.flatten(1), "continue", book)
        # What the model guesses without the page shows how much the page tells.
        ways["no page"] = ways["words"][:, :0]
        told = dict[str, float]()
        for name, page in ways.items():
            logits = page_continuation_logits(decoder, page, token_BU)
            found = page_answer_nats(logits, token_BU)[1]
            told[name] = float(found[:, 0].all(-1).float().mean())
        right.append(told)
    return {
        "parameters": sum(p.numel() for p in network.encoder.values()),
        "positions": positions,
        "lines": LINES,
        "right": right,
    }
