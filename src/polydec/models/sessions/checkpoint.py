"""From the files of a checkpoint to a loaded model: its network, its law, its tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from os import PathLike
from pathlib import Path
from threading import Lock
from typing import Any

import torch

from polydec.base.errors import FileError, PolydecError, RequestError
from polydec.base.options import convert_annotated_value
from polydec.core.types import TokenVocabulary
from polydec.models import native as cpu
from polydec.models.formats import byte_word_config, edge, enat_config, seq2seq, word_config
from polydec.models.formats.adapters import LoraMergedWeights
from polydec.models.formats.architectures import FAMILIES
from polydec.models.nets.byte_words import ByteWordCodec, byte_word_network
from polydec.models.nets.enat import EnatNetwork
from polydec.models.nets.seq2seq import build as build_seq2seq
from polydec.models.nets.transformer import LlamaTransformer
from polydec.models.nets.word_backbone import WordBackboneNetwork
from polydec.models.nets.words import PooledWordCodec, pooled_word_network
from polydec.models.sessions import denoiser, inserter
from polydec.models.sessions.denoiser import MaskedDenoiser, PatchCanvasModel
from polydec.models.sessions.enat import EnatDenoiser
from polydec.models.sessions.encoder_decoder import EncoderDecoderModel
from polydec.models.sessions.inserter import BidirectionalInserter
from polydec.models.sessions.lm import CausalLaw
from polydec.models.sessions.options import CacheDtype, Compute, Dtype, Quantize, Threads
from polydec.models.sessions.sources import CheckpointFiles, open_checkpoint
from polydec.models.sessions.vision import VisionReader, is_vision, open_vision
from polydec.models.text.picture_view import PictureView, read_picture_view
from polydec.models.text.tokenizer import Tokenizer


@dataclass(frozen=True)
class ModelBundle:
    """A loaded model.

    Attributes:
        name: The name that it was loaded by.
        lm: Its law: a `CausalLaw`, a `MaskedDenoiser`, a `BidirectionalInserter` or an
            `EncoderDecoderModel`.
        text: Its tokenizer.
        generation: Content of the generation_config.json.
        dtype: What its weights are held in.
        kernel: What computes it.
        path: Where its files lie.
        why: What keeps the native step from serving it; "" where it serves it.
        unit: What its law writes at a time, "token" or "byte".
        view: How its answers are drawn where they are pictures. None: they are text.
        vision: What reads images for it. None: it reads text.
    """

    name: str
    lm: Any
    text: Tokenizer
    generation: dict[str, Any]
    dtype: str
    kernel: str
    path: str
    why: str = ""
    unit: str = "token"
    view: PictureView | None = None
    vision: VisionReader | None = None


_BUNDLE_FIELDS = frozenset(field.name for field in fields(ModelBundle))


class DeferredBundle:
    """A checkpoint that is loaded when somebody first asks for more than its name."""

    def __init__(self, name: str, make: Callable[[], ModelBundle]) -> None:
        self.name = name
        self._make = make
        self._made = list[ModelBundle]()
        self._lock = Lock()
        self._then = list[Callable[[ModelBundle], None]]()

    @property
    def is_loaded(self) -> bool:
        """Whether it has been loaded."""
        return bool(self._made)

    @property
    def loaded_bundle(self) -> ModelBundle:
        """The loaded checkpoint; it is loaded now where it was not yet."""
        with self._lock:
            if not self._made:
                # Under the lock: whoever asks at the same time waits for the one load.
                made = self._make()
                for act in self._then:
                    act(made)
                self._made.append(made)
            return self._made[0]

    def when_loaded(self, act: Callable[[ModelBundle], None]) -> None:
        """Do this with the checkpoint as soon as it is loaded: now where it is."""
        with self._lock:
            self._then.append(act)
            for made in self._made:
                act(made)

    def __getattr__(self, name: str) -> Any:
        # What a loaded model has. Any other name, as Python itself asks for some, loads nothing.
        if name not in _BUNDLE_FIELDS:
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        return getattr(self.loaded_bundle, name)


def resolve_deferred_bundle(point: ModelBundle | DeferredBundle) -> ModelBundle:
    """A checkpoint, loaded now where it was not yet."""
    if isinstance(point, DeferredBundle):
        return point.loaded_bundle
    return point


def load_bundle(
    name: str | PathLike[str],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    quantize: str | None = None,
    compute: str | None = None,
    cache_dtype: str | None = None,
    opened: dict[Path, CheckpointFiles] | None = None,
) -> ModelBundle:
    """Load a model: its network, its law, its tokenizer.

    Args:
        name: ``zoo:NAME``, a directory, a GGUF file or a Hub id.
        dtype: What a pass computes in, one of `DTYPES`. Default "auto".
        device: "cpu" or "cuda". Default "cpu".
        threads: Threads on the CPU, at least 1; None: all cores.
        quantize: "q8_0" or "q4_1" stores a float checkpoint's matrices so, in the native step only;
            what is computed is then approximate. None: as they are.
        compute: What the native step multiplies quantised matrices in: "float32", "int16" or "int8"
            (approximate). None: POLYDEC_COMPUTE, else by instruction set.
        cache_dtype: How the native step holds keys and values: "float32", or approximately
            "float16" or "int8". None: POLYDEC_CACHE_DTYPE, else float32.
        opened: GGUF files that are open already, as `open_checkpoint` has them. None: none are.

    Returns:
        The loaded model.

    Raises:
        RequestError: An option has a value that it may not have, or the model cannot be had or
            read.
    """
    convert_annotated_value("dtype", dtype, Dtype)
    convert_annotated_value("quantize", quantize, Quantize)
    convert_annotated_value("compute", compute, Compute)
    convert_annotated_value("cache_dtype", cache_dtype, CacheDtype)
    threads = convert_annotated_value("threads", threads, Threads)
    if threads is not None:
        torch.set_num_threads(threads)
    name = edge.path_text(name, "model")
    source = open_checkpoint(name, {} if opened is None else opened)
    with edge.report_read_errors(f"{name} cannot be loaded"):
        # Published layouts of masked-diffusion models become ours, so that one skeleton runs all of
        # them.
        if denoiser.is_masked(source.config):
            source = replace(
                source,
                **dict(
                    zip(
                        ("config", "weights"),
                        denoiser.read_masked_checkpoint(source.config, source.weights),
                    )
                ),
            )
        vision = None
        # What is loaded from here on is the language model, as if it stood alone.
        if is_vision(source.config):
            source, vision = open_vision(source, device)
        network, why = _network(source, dtype, device, threads, quantize, compute, cache_dtype)
        if vision is not None and vision.adapter is not None:
            # What does not fit is said now, and not by the first request.
            network.prepare_adapter(vision.adapter)
    # The tokenizer may know fewer ids than the model has rows.
    source.text.rows = network.size
    # An answer could never end with an id that the model does not have.
    if bad := [x for x in source.text.eos if not 0 <= x < network.size]:
        raise RequestError(
            edge.error_sentence(
                f"{name}: eos_token_id is {bad[0]}, but ids lie in 0 to {network.size - 1}"
            )
        )
    kernel = network.kernel + (
        f" (approximate: {network.approximate})" if getattr(network, "approximate", "") else ""
    )
    with edge.report_read_errors(f"{name} cannot be loaded"):
        # A masked-diffusion model may have marks of its own after the vocabulary, which nobody
        # writes.
        vocab = TokenVocabulary(
            denoiser.writable_vocab_size(source.config, network.size),
            source.text.eos,
            source.fingerprint,
            source.text if source.fingerprint else None,
        )
        lm = _model(network, vocab, source)
        view = read_picture_view(source.config, source.weights)
        if view is not None and network.context <= view.token_count:
            raise FileError(
                f"polydec_picture: a picture has {view.token_count} tokens behind its prompt, and the model's "
                f"context holds {network.context}"
            )
    return ModelBundle(
        name,
        lm,
        source.text,
        source.generation,
        network.dtype,
        kernel,
        source.path,
        why,
        view=view,
        vision=vision,
    )


def load_draft(
    name: str | PathLike[str],
    *,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    opened: dict[Path, CheckpointFiles] | None = None,
) -> ModelBundle:
    """Load a model whose guesses another model checks.

    Where the native step serves it and its file holds floats, its matrices are stored in 8 bits: a
    pass then reads half as much, and what is checked need not be exact.

    Args:
        name: As for `load_bundle`.
        dtype: As for `load_bundle`; matrices are stored in 8 bits only with "auto" or "native".
            Default "auto".
        device: "cpu" or "cuda". Default "cpu".
        threads: Threads on the CPU, at least 1; None: all cores.
        opened: GGUF files that are open already, as `open_checkpoint` has them. None: none are.

    Returns:
        The loaded model.

    Raises:
        RequestError: An option has a value that it may not have, or the model cannot be had or
            read.
    """
    if device == "cpu" and dtype in ("auto", "native"):
        try:
            # A GGUF file has blocks already, and torch does not quantise: both raise, and the model
            # is loaded as it is.
            return load_bundle(name, dtype=dtype, threads=threads, quantize="q8_0", opened=opened)
        except PolydecError:  # blocks of a file stay as they are; torch does not quantise
            pass
    return load_bundle(name, dtype=dtype, device=device, threads=threads, opened=opened)


def _model(
    network: Any, vocab: TokenVocabulary, source: CheckpointFiles
) -> CausalLaw | MaskedDenoiser | EnatDenoiser | BidirectionalInserter | EncoderDecoderModel:
    """What the network is, by a config that `denoiser.read_masked_checkpoint` has made ours."""
    config = source.config
    # What a config says of itself decides, the most special kinds first.
    if seq2seq.is_seq2seq(config):
        parts = network.config
        return EncoderDecoderModel(network.encoder, network, vocab, parts.start, strip=parts.strip)
    if inserter.is_inserter(config):
        return BidirectionalInserter(network, vocab, inserter.mark_of(config))
    if isinstance(network, EnatNetwork):
        return EnatDenoiser(network, vocab)
    if denoiser.is_masked(config):
        kind = PatchCanvasModel if denoiser.fills_patches(config) else MaskedDenoiser
        return kind(
            network,
            vocab,
            config["polydec_mask"],
            shifted=config.get("polydec_shifted", False),
            block=config.get("polydec_block") or 0,
            boundary=config.get("polydec_boundary"),
            marks=network.size - vocab.size,
        )
    return CausalLaw(network, vocab)


def _network(
    source: CheckpointFiles,
    dtype: str,
    device: str,
    threads: int | None,
    quantize: str | None,
    compute: str | None,
    cache_dtype: str | None,
) -> tuple[Any, str]:
    """The network that serves these files, and why the native step does not."""
    llama = source.config["model_type"] in FAMILIES
    native = None
    why = ""
    # First choice: the native step. It serves some families, on the CPU.
    if dtype in ("auto", "native"):
        if device != "cpu":
            why = f"device is {device!r} and the native step runs on 'cpu' only"
        elif source.images is not None and source.images.pairs:
            why = "rows of images run under an adapter of their own"
        elif not llama:
            why = f"model_type {source.config['model_type']!r} is of none of the families that it knows"
        else:
            native, why = cpu.try_native_network(
                source.config, source.weights, threads, quantize, compute, cache_dtype
            )
        # What only the native step can do was asked for, and it cannot serve this model.
        if native is None and (dtype == "native" or quantize or compute or cache_dtype):
            wishes = {"quantize": quantize, "compute": compute, "cache_dtype": cache_dtype}
            asked = next(
                (f"{name} is {x!r}" for name, x in wishes.items() if x), "dtype is 'native'"
            )
            raise RequestError(
                f"{asked}: the native step cannot serve it ({why}); 'auto' runs it by torch"
            )
    else:
        why = f"dtype is {dtype!r}"
    if quantize and native is None:
        raise RequestError(
            f"quantize is {quantize!r} and dtype is {dtype!r}: only the native step quantises (dtype 'auto')"
        )
    for field, value in (("compute", compute), ("cache_dtype", cache_dtype)):
        if value and native is None:
            raise RequestError(
                f"{field} is {value!r} and dtype is {dtype!r}: only the native step has a choice (dtype 'auto')"
            )
    if native is not None:
        return native, ""
    if dtype == "auto" and device == "cpu" and llama:
        # Whoever asks for torch by name knows what it costs.
        cpu.warn_missing_native_step()
    # Else torch, with a network of our own where there is one, and `transformers` for the rest.
    kind = "auto" if dtype == "torch" else dtype
    if seq2seq.is_seq2seq(source.config):
        config = seq2seq.read_seq2seq_config(source.config, source.generation)
        return build_seq2seq(config, source.weights, dtype=kind, device=device), why
    if source.config.get("model_type") in _WORD_NETWORKS:
        return _words(source, dtype, device), why
    if source.config.get("model_type") == enat_config.MODEL_TYPE:
        return _enat_network(source, dtype, device), why
    if llama:
        return LlamaTransformer.build(source.config, source.weights, dtype=kind, device=device), why
    if isinstance(source.weights, LoraMergedWeights):
        raise FileError(
            f"{source.path} is an adapter of a {source.config['model_type']}, which transformers runs here: merge both with "
            "PEFT, and name the result"
        )
    from polydec.models.nets import hf  # transformers takes seconds to import

    return hf.load_hf_network(source.path, weights=source.weights, dtype=kind, device=device), why


def _words(source: CheckpointFiles, dtype: str, device: str) -> WordBackboneNetwork:
    """A model whose backbone reads words. Raises RequestError where it is to compute with anything
    else than float32 here."""
    called, build = _WORD_NETWORKS[source.config["model_type"]]
    if dtype not in ("auto", "torch", "float32") or device != "cpu":
        raise RequestError(
            f"dtype is {dtype!r} and device {device!r}: a {called} model computes in float32 on 'cpu'"
        )
    return build(source.config, source.weights)


def _enat_network(source: CheckpointFiles, dtype: str, device: str) -> EnatNetwork:
    """A network that encodes tokens apart from gaps. Raises RequestError where it is to compute with
    anything else than float32 here."""
    if dtype not in ("auto", "torch", "float32") or device != "cpu":
        raise RequestError(
            f"dtype is {dtype!r} and device {device!r}: an ENAT model computes in float32 on 'cpu'"
        )
    shape = enat_config.read_enat_config(source.config)
    return EnatNetwork(shape, source.weights, source.config["polydec_mask"])


def _pooled_words(config: Mapping[str, Any], weights: Mapping[str, Any]) -> WordBackboneNetwork:
    return pooled_word_network(word_config.read_word_config(config), weights)


def _byte_words(config: Mapping[str, Any], weights: Mapping[str, Any]) -> WordBackboneNetwork:
    return byte_word_network(byte_word_config.read_byte_word_config(config), weights)


_WORD_NETWORKS = {
    word_config.MODEL_TYPE: (PooledWordCodec.called, _pooled_words),
    byte_word_config.MODEL_TYPE: (ByteWordCodec.called, _byte_words),
}
"""Networks whose backbone reads words, by the config's model type: what such a model is called, and what
builds it."""
