"""`polydec train reader`: a small encoder-decoder model that reads a word in an image."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

from polydec.base import files
from polydec.lab.train.envelope import TrainingRun, run_identity, run_training
from polydec.lab.train.letter_tokens import letter_tokenizer, letter_tokenizer_files
from polydec.lab.train.schedule import TrainingSchedule
from polydec.lab.train.specs.reader import ReaderSpec
from polydec.lab.train.specs.seq2seq import HEAD
from polydec.lab.train.specs.word_reader import WordReaderSpec
from polydec.lab.train.t5 import TrainableT5, pad_id_rows, published_t5_tensors
from polydec.lab.train.word_data import (
    STRIP,
    DrawnWords,
    LabelledStrip,
    WordSource,
    read_word_folder,
    window_batch,
)
from polydec.lab.train.word_images import ImageFaults
from polydec.models.formats.images import StripShape
from polydec.models.formats.seq2seq import (
    Seq2SeqConfig,
    T5Shape,
    read_seq2seq_config,
    reader_config,
)
from polydec.models.nets.seq2seq import StripPlaces

JUDGED = 512
"""Held-out images that are measured."""
BEGIN_ID = 0
END_ID = 1
FIRST_LETTER = 2


class TrainableStrips(nn.Module):
    """What an image leaves for the first layer: two linear maps of each window, a relu between them,
    and where the window stands."""

    def __init__(self, shape: StripShape, inner: int, width: int) -> None:
        super().__init__()
        self.into = nn.Linear(shape.height * shape.window, inner)
        self.out = nn.Linear(inner, width)
        self.places = StripPlaces(width, torch.float32, torch.device("cpu"))

    def forward(self, windows_BSP: Tensor) -> Tensor:
        """Rows of windows, ``[B, S, W]``."""
        rows_BSW = self.out(relu(self.into(windows_BSP)))
        return rows_BSW + self.places.first_rows(rows_BSW.shape[1])


class TrainableReader(nn.Module):
    """A T5 whose encoder is given windows of pixels."""

    def __init__(self, config: Seq2SeqConfig, shape: T5Shape, inner: int, seed: int) -> None:
        super().__init__()
        assert config.strip is not None, "a reader's config says how it cuts images"
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(seed)
            self.strips = TrainableStrips(config.strip, inner, config.width)
        self.t5 = TrainableT5(config, shape.inner, seed)

    def forward(self, strips: Sequence[Any], text_BT: Tensor, here_BT: Tensor) -> Tensor:
        """The decoder's states, ready for the head.

        Args:
            strips: B images.
            text_BT: Token ids that the decoder reads, shape ``[B, T]``.
            here_BT: Which positions of the texts hold a token, shape ``[B, T]``.

        Returns:
            Shape ``[B, T, W]``.
        """
        windows_BSP, there_BS = window_batch(strips)
        read = self.t5.encoder(self.strips(windows_BSP), there_BS)
        return self.t5.decoder(self.t5.shared(text_BT), here_BT, read, there_BS)

    def published_tensors(self) -> Mapping[str, Tensor]:
        """The tensors as a file holds them: float32, by their names."""
        own = {f"strips.{k}": v.detach().float() for k, v in self.strips.state_dict().items()}
        return {**published_t5_tensors(self.t5), **own}


def train_reader(spec: ReaderSpec) -> dict[str, Any]:
    """Train, and save at spec.out a directory that `polydec.load` reads.

    Words with a `hash_bucket` of 7 to 9 are held out and measured. See `run_training`.

    Raises:
        RequestError: An option of the spec is wrong.
        FileError: The data cannot be read.

    Source: T5 (2019), the network; the images are drawn here.
    """
    return run_training("reader", spec, _course)


def words_of_spec(spec: ReaderSpec | WordReaderSpec) -> WordSource:
    """Where the images of a training come from."""
    if spec.data is not None:
        return read_word_folder(spec.data)
    faults = ImageFaults(spec.blur, spec.shear, spec.noise, spec.bars)
    return DrawnWords(spec.least, spec.most, faults, spec.images, spec.seed)


def encode_word(word: str, letters: str) -> tuple[int, ...]:
    """The tokens of a word, its end included.

    Args:
        word: The word.
        letters: All letters, in the order of their tokens.

    Returns:
        The ids.
    """
    return (*(FIRST_LETTER + letters.index(letter) for letter in word), END_ID)


def _course(spec: ReaderSpec) -> TrainingRun:
    words = words_of_spec(spec)
    letters = words.known_letters
    shape = T5Shape(
        FIRST_LETTER + len(letters), spec.width, HEAD, 4 * spec.width, spec.encoder, spec.decoder
    )
    published = reader_config(shape, STRIP, BEGIN_ID, END_ID)
    # Read back as the saved model will be, so that training computes what it does.
    network = TrainableReader(read_seq2seq_config(published, {}), shape, spec.inner, spec.seed)

    def step_loss(step: int) -> tuple[Tensor, int]:
        rng = np.random.default_rng([spec.seed, 6, step])
        examples = words.draw_examples(spec.rows, rng, unseen=False)
        logits_NV, right_N = score_words(network, examples, letters)
        return cross_entropy(logits_NV, right_N), len(right_N)

    def measure_result() -> Mapping[str, Any]:
        rng = np.random.default_rng([spec.seed, 7])
        unseen = words.draw_examples(JUDGED, rng, unseen=True)
        return {
            "parameters": sum(p.numel() for p in network.parameters()),
            "held_out_right": measure_reader(network, unseen, letters),
            "out": spec.out,
        }

    def save_checkpoint_at(at: Path, result: Mapping[str, Any]) -> None:
        """Write weights, tokenizer and configs.

        Args:
            at: Directory to write.
            result: What was measured; it is not used.
        """
        files.replace_file_atomically(
            at / "model.safetensors",
            lambda to: save_file(dict(network.published_tensors()), to, {"format": "pt"}),
        )
        beside = letter_tokenizer_files(letter_tokenizer(letters))
        for name, content in {**beside, "config.json": published}.items():
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            # Each file appears complete or not at all.
            files.replace_file_atomically(
                at / name, lambda to, text=text: Path(to).write_text(text, "utf-8")
            )

    return TrainingRun(
        network,
        step_loss,
        TrainingSchedule(spec.steps, spec.rate, warmup=0.05, muon=spec.muon),
        run_identity(spec, words=words.content_digest),
        save_checkpoint_at,
        measure_result,
        deep=network.t5.deep if spec.muon else (),
    )


def score_words(
    network: TrainableReader, examples: Sequence[LabelledStrip], letters: str
) -> tuple[Tensor, Tensor]:
    """Score the words of some images, each letter after the right ones before it.

    Args:
        network: The reader.
        examples: B images with their words.
        letters: All letters, in the order of their tokens.

    Returns:
        Logits at all tokens, one word after another, ``[N, V]``, and the right tokens, ``[N]``.
    """
    targets = [encode_word(x.word, letters) for x in examples]
    text_BT, here_BT = pad_id_rows([(BEGIN_ID, *target[:-1]) for target in targets])
    states_NW = network([x.strip for x in examples], text_BT, here_BT)[here_BT]
    right_N = torch.tensor([token for target in targets for token in target])
    return network.t5.token_logits(states_NW), right_N


@torch.no_grad()
def measure_reader(
    network: TrainableReader, examples: Sequence[LabelledStrip], letters: str
) -> float | None:
    """The share of words of which every letter, and the end, is the likeliest behind the right ones;
    None where there is no image.

    Args:
        network: The trained reader.
        examples: Images with their words.
        letters: All letters, in the order of their tokens.

    Returns:
        The share, which is that of words that greedy decoding reads right.
    """
    right = 0
    for at in range(0, len(examples), 64):
        chosen = examples[at : at + 64]
        logits_NV, right_N = score_words(network, chosen, letters)
        same_N = logits_NV.argmax(-1) == right_N
        right += sum(bool(word.all()) for word in same_N.split([len(x.word) + 1 for x in chosen]))
    return right / len(examples) if examples else None
