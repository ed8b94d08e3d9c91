"""`polydec train word-reader`: a reader that reads a word in an image at once, for a model of `polydec
train reader`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from polydec.base.errors import RequestError
from polydec.core.types import TokenVocabulary
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.reader import JUDGED, TrainableStrips, encode_word, words_of_spec
from polydec.lab.train.reading_losses import (
    WordLoss,
    counting_loss,
    masked_loss,
    neighbour_loss,
)
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.word_reader import WordReaderSpec
from polydec.lab.train.t5 import TrainableT5Block, TrainableT5Tower
from polydec.lab.train.word_data import LabelledStrip, window_batch
from polydec.models.formats.images import PixelStrip
from polydec.models.formats.seq2seq import READER, T5Shape, read_seq2seq_config
from polydec.models.learned.kinds import word_reader
from polydec.models.learned.kinds.word_reader import (
    ReadingQuery,
    WordReader,
    WordReaderShape,
    usual_reading,
)
from polydec.models.nets.reading_heads import HEADS
from polydec.models.nets.reading_layers import END, PostNormLayer
from polydec.models.sessions import sources


class TrainableWordReader(nn.Module):
    """An encoder of pixels, which begins with the target's weights, and a head."""

    def __init__(self, shape: WordReaderShape, reading: str, seed: int) -> None:
        super().__init__()
        config = shape.encoder_config
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.strips = TrainableStrips(shape.strip, shape.pixels, config.width)
            self.encoder = TrainableT5Tower(config, shape.encoder.inner, False, True)
            self.head = HEADS[reading](shape.head_shape)

    def image_states(self, strips: Sequence[PixelStrip]) -> tuple[Tensor, Tensor]:
        """The states of some images, ``[B, S, W]``, and which of them are of an image."""
        windows_BSP, there_BS = window_batch(strips)
        return self.encoder(self.strips(windows_BSP), there_BS), there_BS

    @property
    def reading_matrices(self) -> list[nn.Parameter]:
        """The matrices inside layers, for the optimiser of matrices."""
        # Tables of distances, classes, slots and letters are looked up, not multiplied.
        inside = [m for m in self.modules() if isinstance(m, (TrainableT5Block, PostNormLayer))]
        maps = [m for each in inside for m in each.modules() if isinstance(m, nn.Linear)]
        return [p for m in maps for p in m.parameters() if p.dim() == 2]

    def artefact_tensors(self) -> Mapping[str, Tensor]:
        """The tensors as an artefact holds them: float32, by their names."""
        return {k: v.detach().float().contiguous() for k, v in self.state_dict().items()}


LEARNED: Mapping[str, Callable[[WordReaderSpec], WordLoss]] = MappingProxyType(
    {
        "cppd": lambda spec: partial(counting_loss, absent=spec.absent),
        "lister": lambda spec: partial(neighbour_loss, ending=spec.ending),
        "mdiff4str": lambda spec: partial(masked_loss, copies=spec.copies),
    }
)
"""By kind of head, what it learns by as the options say."""


def train_word_reader(spec: WordReaderSpec, loss_of: WordLoss | None = None) -> dict[str, Any]:
    """Train a reader whose encoder begins with the target's weights, and save it at spec.out.

    Words with a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Args:
        spec: The options.
        loss_of: What its head learns by. None: as its method is published (`LEARNED`).

    Returns:
        What was measured.

    Raises:
        RequestError: An option of the spec is wrong, or the target reads no image.
        FileError: The data cannot be read.

    Source: CPPD (2023), LISTER (2023), MDiff4STR (2025), by the option `reading`.
    """
    return run_training(
        "word-reader", spec, partial(_course, loss_of=loss_of or LEARNED[spec.reading](spec))
    )


def _course(spec: WordReaderSpec, loss_of: WordLoss) -> TrainingRun:
    source = sources.open_source(spec.target)
    if source.config.get("model_type") != READER:
        raise RequestError(
            f"target is {spec.target!r}: it must be a model that reads images, as `polydec train reader` makes them"
        )
    words = words_of_spec(spec)
    # Heads have as many places as they are made with.
    if words.longest_word > spec.longest:
        raise RequestError(
            f"longest is {spec.longest}: data has a word of {words.longest_word} letters, so raise it"
        )
    letters = _letters(source.text, words.known_letters)
    config = read_seq2seq_config(source.config, source.generation)
    assert config.strip is not None, "a reader's config says how it cuts images"
    start = source.weights
    shape = WordReaderShape(
        T5Shape(config.vocab, config.width, config.head, source.config["d_ff"], config.first, 1),
        config.strip,
        len(start["strips.into.bias"]),
        spec.longest,
        spec.rounds,
        spec.distances,
        spec.joins,
    )
    network = TrainableWordReader(shape, spec.reading, spec.seed)
    # Heads are new; what reads the image has been trained already.
    own = network.state_dict()
    network.load_state_dict({n: start[n].float() if n in start else own[n] for n in own})
    vocab = TokenVocabulary(config.vocab, frozenset(), source.fingerprint)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng([spec.seed, 8, step])
        examples = words.draw_examples(spec.rows, rng, unseen=False)
        states_BSW, there_BS = network.image_states([x.strip for x in examples])
        targets = [encode_word(x.word, letters) for x in examples]
        loss = loss_of(network.head, states_BSW, there_BS, targets, rng)
        return loss, sum(map(len, targets))

    def trained_reader() -> WordReader:
        return WordReader(vocab, spec.reading, shape, network.artefact_tensors())

    def measure_result() -> Mapping[str, Any]:
        unseen = words.draw_examples(JUDGED, np.random.default_rng([spec.seed, 7]), unseen=True)
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "held_out_right": words_read_right(trained_reader(), unseen, letters),
            "out": spec.out,
        }

    def save_result(out: Path, result: Mapping[str, Any]) -> None:
        """Write the reader as an artefact.

        Args:
            out: Directory to write.
            result: What was measured; `held_out_right` goes into the artefact.
        """
        word_reader.save(out, trained_reader(), {"held_out_right": result["held_out_right"]})

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec, words=words.content_digest),
        save_result,
        measure_result,
        deep=network.reading_matrices,
    )


def _letters(text: Any, wanted: str) -> str:
    """The letters that a target knows, in the order of their tokens. Raises RequestError where it
    lacks one of the words'."""
    vocab = text.tokenizer.get_vocab()
    known = "".join(
        letter for letter, token in sorted(vocab.items(), key=lambda x: x[1]) if token > END
    )
    if missing := sorted(set(wanted) - set(known)):
        raise RequestError(f"data has the letter {missing[0]!r}: the target does not know it")
    return known


def words_read_right(
    reader: WordReader, examples: Sequence[LabelledStrip], letters: str
) -> float | None:
    """The share of words that a reader reads right; None where there is no image.

    Args:
        reader: The reader.
        examples: Images with their words.
        letters: All letters, in the order of their tokens.

    Returns:
        The share.
    """
    right = 0
    for x in examples:
        (rows_TV,) = reader.forward([ReadingQuery(x.strip, usual_reading)])
        token = rows_TV.argmax(-1).tolist()
        word = encode_word(x.word, letters)
        right += token[: len(word)] == list(word)
    return right / len(examples) if examples else None
