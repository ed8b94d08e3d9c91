"""Checkpoints: from a name to a model with its tokenizer; and directories that we write ourselves."""

from __future__ import annotations

import json
from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Lock
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from torch import Tensor

from polydec.core.types import Vocab
from polydec.heard import warn
from polydec.models import artefact, cpu, denoiser, edge, fields, inserter, rows8, zoo
from polydec.models.cpu.library import CACHES, COMPUTES
from polydec.models.cpu.weights import QUANTISED, source_of
from polydec.models.denoiser import Masked
from polydec.models.families import FAMILIES
from polydec.models.gguf import GGUF
from polydec.models.gguf_text import generation_defaults, read_text
from polydec.models.inserter import Insertion
from polydec.models.lm import LM
from polydec.models.text import Text, default_template
from polydec.models.transformer import Transformer

BASES = 4
"""How many checkpoints may stand behind one another by `polydec_base`."""


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model. lm: its law, an LM, a Masked or an Insertion; generation: the content of generation_config.json; dtype
    and kernel: what it computes with; path: where its files lie; why: what keeps the native step from serving it, "" where it
    does."""

    name: str
    lm: Any
    text: Text
    generation: dict[str, Any]
    dtype: str
    kernel: str
    path: str
    why: str = ""


class Deferred:
    """A checkpoint that is loaded when somebody first asks for more than its name."""

    def __init__(self, name: str, make: Callable[[], Checkpoint]) -> None:
        self.name, self._make, self._made, self._lock = name, make, list[Checkpoint](), Lock()

    @property
    def loaded(self) -> bool:
        return bool(self._made)

    @property
    def whole(self) -> Checkpoint:
        with self._lock:
            if not self._made:
                self._made.append(self._make())
            return self._made[0]

    @property
    def lm(self) -> Any:
        return self.whole.lm

    @property
    def text(self) -> Text:
        return self.whole.text

    @property
    def generation(self) -> dict[str, Any]:
        return self.whole.generation

    @property
    def dtype(self) -> str:
        return self.whole.dtype

    @property
    def kernel(self) -> str:
        return self.whole.kernel

    @property
    def path(self) -> str:
        return self.whole.path

    @property
    def why(self) -> str:
        return self.whole.why


@dataclass(frozen=True)
class Source:
    """What lies in a checkpoint's files, weights still unread. fingerprint: of the tokenizer, "" where there is none."""

    path: str
    config: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    text: Text
    fingerprint: str
    generation: dict[str, Any]


def load(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    quantize: str | None = None,
    compute: str | None = None,
    cache_dtype: str | None = None,
    opened: dict[Path, Source] | None = None,
) -> Checkpoint:
    """name: `zoo:NAME`, a directory, a GGUF file or a Hub id; dtype: one of `dtypes()`; device: "cpu" or "cuda"; threads: on
    the CPU, at least 1 (default: all cores); quantize: "q8_0" or "q4_1" stores a float checkpoint's matrices so, in the
    native step only, and what is computed is then approximate; compute: what the native step multiplies quantised matrices
    in, "float32", "int16" or "int8" (approximate; default: POLYDEC_COMPUTE, else by instruction set);
    cache_dtype: how the native step keeps keys and values, "float32", or approximately "float16" or "int8"
    (default: POLYDEC_CACHE_DTYPE, else float32); opened: the files that are open already, as `open_source` has them.
    Raises ValueError where the model cannot be had or read."""
    if threads is not None:
        if threads < 1:
            raise ValueError(f"threads is {threads}: it must be at least 1")
        torch.set_num_threads(threads)
    if dtype not in dtypes():
        raise ValueError(f"dtype is {dtype!r}: it must be one of {', '.join(dtypes())}")
    for field, value, known in (
        ("compute", compute, COMPUTES),
        ("cache_dtype", cache_dtype, CACHES),
    ):
        if value is not None and value not in known:
            raise ValueError(
                f"{field} is {value!r}: it must be one of {', '.join(known)}, or not be given"
            )
    if quantize is not None and quantize not in QUANTISED:
        raise ValueError(
            f"quantize is {quantize!r}: it must be {' or '.join(QUANTISED)}, or not be given"
        )
    source = open_source(name, opened)
    with edge.reading(f"{name} cannot be loaded"):
        if denoiser.is_masked(source.config):
            source = replace(
                source,
                **dict(zip(("config", "weights"), denoiser.read(source.config, source.weights))),
            )
        network, why = _network(source, dtype, device, threads, quantize, compute, cache_dtype)
    source.text.rows = network.size
    if bad := [x for x in source.text.eos if not 0 <= x < network.size]:
        raise ValueError(
            edge.sentence(
                f"{name}: eos_token_id is {bad[0]}, but ids lie in 0 to {network.size - 1}"
            )
        )
    vocab = Vocab(
        network.size,
        source.text.eos,
        source.fingerprint,
        source.text if source.fingerprint else None,
    )
    kernel = network.kernel + (
        f" (approximate: {network.approximate})" if getattr(network, "approximate", "") else ""
    )
    with edge.reading(f"{name} cannot be loaded"):
        lm = _model(network, vocab, source.config)
    return Checkpoint(
        name, lm, source.text, source.generation, network.dtype, kernel, source.path, why
    )


def load_draft(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "cpu",
    threads: int | None = None,
    opened: dict[Path, Source] | None = None,
) -> Checkpoint:
    """A model whose guesses somebody checks, by the same names as `load`. Where the native step serves it and its file holds
    floats, its matrices are stored in 8 bits: a pass then reads half as much, and what is checked need not be exact."""
    if device == "cpu" and dtype in ("auto", "native"):
        try:
            return load(name, dtype=dtype, threads=threads, quantize="q8_0", opened=opened)
        except ValueError:  # blocks of a file stay as they are; torch does not quantise
            pass
    return load(name, dtype=dtype, device=device, threads=threads, opened=opened)


def _model(network: Any, vocab: Vocab, config: Mapping[str, Any]) -> LM | Masked | Insertion:
    """What the network is, by a config that `denoiser.read` has made ours."""
    if inserter.is_inserter(config):
        return Insertion(network, vocab, inserter.mark_of(config))
    if denoiser.is_masked(config):
        return Masked(
            network,
            vocab,
            config["polydec_mask"],
            shifted=config.get("polydec_shifted", False),
            block=config.get("polydec_block") or 0,
        )
    return LM(network, vocab)


def dtypes() -> dict[str, str]:
    """What `dtype` may be, each with what it says."""
    return {
        "auto": "the native step over the file's own numbers, else as torch",
        "native": "the native step or an error",
        "torch": "the fastest of torch's kernels here",
        "float32": "torch, float32",
        "bfloat16": "torch, bfloat16",
        "float16": "torch, weights in float16",
    }


def _network(
    source: Source,
    dtype: str,
    device: str,
    threads: int | None,
    quantize: str | None,
    compute: str | None,
    cache_dtype: str | None,
) -> tuple[Any, str]:
    """The network that serves these files, and why the native step does not."""
    llama, native, why = source.config["model_type"] in FAMILIES, None, ""
    if dtype in ("auto", "native"):
        if device != "cpu":
            why = f"device is {device!r} and the native step runs on 'cpu' only"
        elif not llama:
            why = f"model_type {source.config['model_type']!r} is of none of the families that it knows"
        else:
            native, why = cpu.attempt(
                source.config, source.weights, threads, quantize, compute, cache_dtype
            )
        if native is None and (dtype == "native" or quantize or compute or cache_dtype):
            given = {"quantize": quantize, "compute": compute, "cache_dtype": cache_dtype}
            asked = next(
                (f"{name} is {x!r}" for name, x in given.items() if x), "dtype is 'native'"
            )
            raise ValueError(
                f"{asked}: the native step cannot serve it ({why}); 'auto' runs it by torch"
            )
    else:
        why = f"dtype is {dtype!r}"
    if quantize and native is None:
        raise ValueError(
            f"quantize is {quantize!r} and dtype is {dtype!r}: only the native step quantises (dtype 'auto')"
        )
    for field, value in (("compute", compute), ("cache_dtype", cache_dtype)):
        if value and native is None:
            raise ValueError(
                f"{field} is {value!r} and dtype is {dtype!r}: only the native step has a choice (dtype 'auto')"
            )
    if native is not None:
        return native, ""
    kind = "auto" if dtype == "torch" else dtype
    if llama:
        return Transformer.build(source.config, source.weights, dtype=kind, device=device), why
    from polydec.models import hf  # transformers takes seconds to import

    return hf.load(source.path, dtype=kind, device=device, tensors=len(source.weights)), why


def open_source(name: str, opened: dict[Path, Source] | None = None) -> Source:
    """A checkpoint's files, by the same names as `load`. A config with `polydec_base` names another checkpoint: the tokenizer
    comes from there, and the embedding table where there is none here (a draft model shares its target's). opened: by their
    paths, GGUF files that somebody has opened; those that are opened here are put into it."""
    return _open(name, BASES, {} if opened is None else opened)


def _open(name: str, bases: int, opened: dict[Path, Source]) -> Source:
    path = find(name)
    with edge.reading(str(path)):
        if not path.is_file():
            return _open_directory(path, bases, opened)
        if path not in opened:
            opened[path] = _open_gguf(path)
        return replace(opened[path], text=copy(opened[path].text))


def _open_gguf(path: Path) -> Source:
    file = GGUF(path)
    text = read_text(file)
    generation = generation_defaults(file, text.eos)
    edge.check(fields.Generation, generation, str(path))
    return Source(str(path), file.config, file, text, text.fingerprint, generation)


def _open_directory(path: Path, bases: int, opened: dict[Path, Source]) -> Source:
    at = path / "config.json"
    config, generation = _json(at), _json(path / "generation_config.json", {})
    if not isinstance(config.get("model_type"), str):
        raise ValueError(f"{at} names no model_type: it is not the configuration of a model")
    edge.check(fields.Anything, config, str(at))
    edge.check(fields.Inner, _text_config(config), str(at))
    edge.check(fields.Generation, generation, str(path / "generation_config.json"))
    edge.refuse_kernels(at, config)
    weights = open_weights(path)
    size = _text_config(config).get("vocab_size")
    if (
        size is not None
        and size > (longest := fields.largest(weights))
        and "polydec_base" not in config
    ):
        raise ValueError(
            f"{at}: vocab_size is {size}, but no tensor has a side longer than {longest}"
        )
    if config.get("polydec_base") is not None:
        if not bases:
            raise ValueError(
                f"{at}: polydec_base names a checkpoint that names another, more than {BASES} times"
            )
        base = _open(config["polydec_base"], bases - 1, opened)
        return Source(
            str(path),
            config,
            Borrowing(weights, base.weights),
            base.text,
            base.fingerprint,
            {**base.generation, **generation},
        )
    text, fingerprint = _open_text(path, config, generation)
    return Source(str(path), config, weights, text, fingerprint, generation)


def find(name: str) -> Path:
    """The directory or GGUF file of a name; a Hub id is downloaded. Raises ValueError where there is none."""
    if not name:
        raise ValueError("model is empty: give a Hub id, a directory, a GGUF file or zoo:NAME")
    if name.startswith("zoo:"):
        return zoo.resolve(name)
    path = edge.at_home(name)
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ValueError(f"{name} is a directory without a config.json: it holds no checkpoint")
        return path
    if path.is_file():
        return path  # GGUF says so where it is none
    if name[0] in "./~" or name.endswith((".gguf", ".safetensors")) or name.count("/") > 1:
        raise ValueError(f"model {name!r} is not there: no such file or directory")
    from huggingface_hub import snapshot_download

    wanted = ["*.json", "*.jinja", "*.txt", "*.model", "*.safetensors"]
    try:
        found = Path(snapshot_download(name, allow_patterns=wanted, ignore_patterns=["*/*"]))
        if not any(found.glob("*.safetensors")):
            found = Path(
                snapshot_download(name, allow_patterns=[*wanted, "*.bin"], ignore_patterns=["*/*"])
            )
    except Exception as e:  # the Hub, the network and the name's form each have errors of their own
        why = next((line for line in str(e).splitlines() if line.strip()), type(e).__name__)
        raise ValueError(
            edge.sentence(
                f"model {name!r} is no directory or GGUF file (of embedded models {zoo.nearest(name)}), "
                f"and the Hugging Face Hub did not give it: {why}"
            )
        ) from None
    if not (found / "config.json").is_file():
        raise ValueError(
            f"model {name!r} on the Hugging Face Hub has no config.json: it holds no checkpoint"
        )
    return found


def _json(path: Path, default: dict[str, Any] | None = None) -> dict[str, Any]:
    return default if default is not None and not path.is_file() else edge.read_json(path)


class SafeTensors(Mapping[str, Tensor]):
    """Tensors of some .safetensors files, each read when asked for. Raises ValueError where a file is damaged."""

    def __init__(self, files: list[Path]) -> None:
        self._at: dict[str, tuple[Path, Any]] = {}
        for file in files:
            try:
                handle = safe_open(file, "pt")
                self._at |= dict.fromkeys(handle.keys(), (file, handle))
            except (SafetensorError, OSError) as e:
                raise ValueError(
                    f"{file} cannot be read as safetensors, it is truncated or damaged ({e})"
                ) from None

    def __getitem__(self, name: str) -> Tensor:
        return self._at[name][1].get_tensor(name)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._at[name][1].get_slice(name).get_shape())

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


class Borrowing(Mapping[str, Tensor]):
    """Tensors of one checkpoint, the embedding table of another where it has none."""

    def __init__(self, own: Mapping[str, Tensor], base: Mapping[str, Tensor]) -> None:
        self._own, name = own, "model.embed_tokens.weight"
        self._borrowed = {name: base} if name in base and name not in own else {}

    def __getitem__(self, name: str) -> Tensor:
        return self._borrowed.get(name, self._own)[name]

    def source_of(self, name: str) -> tuple[Any, ...]:
        return source_of(self._borrowed.get(name, self._own), name)

    def __contains__(self, name: object) -> bool:  # else each question would read a tensor
        return name in self._borrowed or name in self._own

    def shape(self, name: str) -> tuple[int, ...]:
        return fields.shape_of(self._borrowed.get(name, self._own), name)

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._borrowed])

    def __len__(self) -> int:
        return len(self._own) + len(self._borrowed)


def open_weights(path: Path) -> Mapping[str, Tensor]:
    """The tensors of a directory: model.safetensors, or the files of its index, else PyTorch's own format. Raises
    ValueError where there are none, one is missing or one is damaged."""
    for single, index in (
        ("model.safetensors", "model.safetensors.index.json"),
        ("pytorch_model.bin", "pytorch_model.bin.index.json"),
    ):
        if (path / single).is_file():
            files = [path / single]
        elif (path / index).is_file():
            shards = _json(path / index).get("weight_map")
            if not isinstance(shards, dict) or not shards:
                raise ValueError(
                    f"{path / index} has no weight_map: it is not the index of a checkpoint"
                )
            if bad := next(
                (f for f in shards.values() if not isinstance(f, str) or Path(f).name != f), None
            ):
                raise ValueError(
                    edge.sentence(
                        f"{path / index} names the file {bad!r}: files beside it are legal"
                    )
                )
            files = [path / f for f in sorted(set(shards.values()))]
        else:
            continue
        if (lost := next((f for f in files if not f.is_file()), None)) is not None:
            raise ValueError(
                f"{path} is incomplete: {lost.name}, which its index names, is missing"
            )
        if single.endswith(".safetensors"):
            return rows8.unpacked(SafeTensors(files))
        return ChainMap(*map(unpickled, files))
    raise ValueError(
        f"{path} is a directory without weights: model.safetensors (or its index) is missing"
    )


def unpickled(file: Path) -> dict[str, Tensor]:
    """The tensors of a file in PyTorch's own format; nothing in it is run."""
    try:
        found = torch.load(file, map_location="cpu", mmap=True, weights_only=True)
    except Exception as e:  # torch raises what its unpickler meets
        why = f"it is damaged or not in PyTorch's zip format ({edge.first_line(e)})"
        raise ValueError(edge.sentence(f"{file} cannot be read, {why}")) from None
    if not isinstance(found, dict) or not all(
        isinstance(k, str) and isinstance(t, Tensor) for k, t in found.items()
    ):
        raise ValueError(
            edge.sentence(
                f"{file} holds something else than tensors by name: it is no checkpoint's"
            )
        )
    return found


def _open_text(
    path: Path, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> tuple[Text, str]:
    """The tokenizer of a directory and its fingerprint."""
    said = _json(path / "special_tokens_map.json", {}) | _json(path / "tokenizer_config.json", {})
    template = None
    edge.check(fields.TokenizerConfig, said, str(path / "tokenizer_config.json"))
    if (at := path / "chat_template.jinja").is_file():
        with edge.reading(str(at)):
            template = at.read_text(encoding="utf-8")
    elif (at := path / "chat_template.json").is_file():
        template = default_template(
            edge.check(fields.TokenizerConfig, _json(at), str(at)).model_dump()["chat_template"]
        )
    eos = generation.get("eos_token_id", _text_config(config).get("eos_token_id"))
    eos = [] if eos is None else [eos] if isinstance(eos, int) else eos
    if (path / "tokenizer.json").is_file():
        text = Text.from_tokenizer_json(path / "tokenizer.json", said, eos=eos, template=template)
    elif any(
        (path / f).is_file() for f in ("tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
    ):
        from transformers import AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
            text = Text.from_parts(
                tokenizer.backend_tokenizer,
                {**said, **tokenizer.special_tokens_map},
                eos=eos,
                template=template,
            )
        except Exception as e:  # whatever the tokenizer's own code meets
            why = (
                edge.own_code(path / "tokenizer_config.json")
                or edge.own_code(path / "config.json")
                or edge.first_line(e)
            )
            raise ValueError(
                edge.sentence(f"{path} has a tokenizer that transformers cannot read ({why})")
            ) from None
    else:
        warn(
            f"{path} has no tokenizer: prompts are token ids, and texts are written as <id> <id> …"
        )
        size = _text_config(config).get("vocab_size")
        if size is None:
            raise ValueError(f"{path} has no tokenizer, and its config.json no vocab_size")
        tokenizer = Tokenizer(WordLevel({f"<{i}>": i for i in range(size)}))
        tokenizer.pre_tokenizer = WhitespaceSplit()
        return Text(tokenizer, eos=eos), ""
    return text, text.fingerprint


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a config says of its language model."""
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config


def save(
    path: str | Path,
    config: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    text: Text | None,
    generation: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint that `load` and transformers read: config.json, model.safetensors, generation_config.json and,
    unless `text` is None (config["polydec_base"] then names whose tokenizer it is), tokenizer.json and its chat template.
    Files that are there are replaced, each at once."""
    if text is None and "polydec_base" not in config:
        raise ValueError(
            "text is None: a checkpoint without a tokenizer needs config['polydec_base'], whose tokenizer it uses"
        )
    where = Path(path)
    where.mkdir(parents=True, exist_ok=True)

    def put(name: str, write: Any) -> None:
        artefact.replace(where / name, write)

    def put_json(name: str, content: Mapping[str, Any]) -> None:
        put(
            name,
            lambda part: part.write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            ),
        )

    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in weights.items()}
    put("model.safetensors", lambda part: save_file(tensors, part, {"format": "pt"}))
    put_json("config.json", config)
    eos = {"eos_token_id": sorted(text.eos)} if text is not None and text.eos else {}
    put_json("generation_config.json", {**eos, **(generation or {})})
    if text is not None:
        put("tokenizer.json", lambda part: text.tokenizer.save(str(part)))
        put_json(
            "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **text.names}
        )
        if (template := text.template) is not None:
            put(
                "chat_template.jinja",
                lambda part: part.write_text(template.source, encoding="utf-8"),
            )
