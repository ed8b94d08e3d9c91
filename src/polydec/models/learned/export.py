"""What other engines load: a draft model as a transformers directory, drafters and heads in their published layouts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from polydec.base.errors import FileError
from polydec.core.protocols import Target
from polydec.models.formats import edge, zoo
from polydec.models.learned import (
    artefact,
    artefacts,
    published,
    published_eagle1,
    published_medusa,
)
from polydec.models.sessions import sources

WHY: Mapping[str, str] = MappingProxyType(
    {
        "block-drafter": "it reads a source beside the text",
        "word-reader": "it reads an image beside the text",
        "path-prefixes": "neither reads an input along several paths",
        "answer-embedder": "it foretells embeddings of answers and drafts none",
        "upsampler": "neither drafts pictures at a low resolution",
        "mask-head": "neither reads a mask in one pass over tokens that see one another",
        "unit-decoders": "neither decodes boxes and masks of an answer's states",
        "patch-head": "neither draws tokens that are vectors",
        "heads": "Medusa's (`polydec train heads --kind medusa-published`) read what left the last norm; neither has Hydra",
        "eagle": "theirs (`polydec train eagle --kind eagle-published`) has no norm before attention or the head",
        "eagle-3-narrow": "theirs (`polydec train eagle --kind eagle-3-published`) "
        "has a norm for the token and one for the state",
        "clover": "neither has Clover",
        "chimera": "neither has Chimera",
        "falcon": "neither has Falcon",
        "msd": "neither reads a drafter of its form behind images",
        "flash": "neither reads a drafter of its form behind images",
        "longspec": "neither lets a drafter read the target's cache",
        "probes": "neither has soft probes",
        "mtp": "neither has masks whose rows alone run with added matrices",
        "ngrams": "neither reads an n-gram table (their n-gram drafts come from the prompt)",
        "ngram-counts": "neither reads counts of continuations",
        "draft-tree": "neither drafts a tree whose places were counted",
        "router": "neither routes steps between two models",
        "text-router": "neither routes steps between two models",
        "stop-head": "neither has a stop head",
        "window-summary": "neither reads a prompt window by window",
        "thought": "neither feeds a vector of its own making in the place of a token",
        "chunk-encoder": "neither makes vectors of passages by itself",
        "arc-encoder": "neither makes vectors of passages by itself",
        "hypernetwork": "neither merges the tokens of a prompt",
        "coprocessor": "neither lets a second network read its cache",
        "judge": "neither has a judge",
        "outcome-head": "neither searches under a condition",
        "prm": "neither reads a reward of steps",
        "reward": "it judges texts and drafts none",
        "plan-extractor": "it makes plans of a source and drafts none",
        "length-head": "neither rewrites texts of a masked-diffusion model",
        "value": "it judges canvases of a masked-diffusion model and drafts none",
        "filter": "neither decodes masked-diffusion models with a learned filter",
        "joint": "neither decodes masked-diffusion models with a layer of joint draws",
    }
)
"""Of kinds of artefacts that cannot be written what vLLM and SGLang lack for them, and what to train in their place."""
UNKNOWN = "neither reads this kind"
"""What is said of a kind of which nothing better is known."""


@dataclass(frozen=True)
class EngineExport:
    """What was written, and how the two engines are told of it: vLLM's --speculative-config (JSON), SGLang's flags."""

    what: str
    vllm: Mapping[str, Any]
    sglang: tuple[str, ...]


def export_for_engines(
    name: str, out: Path, *, tokens: int = 4, target: Target | None = None
) -> EngineExport:
    """Write a draft model or a drafter as other engines load it.

    Args:
        name: Directory of the model or the drafter, or a `zoo:NAME`.
        out: Directory to write into; it must be empty or not exist.
        tokens: Tokens drafted a step, for the settings that are returned. Default 4. Medusa's are
            at most its heads.
        target: The model that a drafter reads. Published EAGLE-3 weights that name no layers need
            it (see `UnboundEagle3`). Default None.

    Returns:
        What was written, and the settings of vLLM and SGLang for it.

    Raises:
        FileError: `out` is taken, or neither engine can take what `name` holds.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileError(
            edge.error_sentence(
                f"out is {str(out)!r}: it must be a directory that is empty or does not exist"
            )
        )
    if name.startswith("zoo:"):
        where = Path(zoo.zoo_model_path(name))
    else:
        where = edge.at_home(name)
    if (where / artefact.CONFIG).is_file():
        config = edge.read_json(where / artefact.CONFIG)
    else:
        config = {}
    kind: Any = config.get("polydec")
    # Refused by the config alone, before any weights are read. EAGLE-3 alone can be written.
    if isinstance(kind, str) and kind != "eagle-3" and kind in artefacts.MODULES:
        raise FileError(
            edge.error_sentence(
                f"{name!r} is of the kind {kind!r}, which vLLM and SGLang cannot take: {WHY.get(kind, UNKNOWN)}"
            )
        )
    # Published heads name no kind of ours; reading and writing them anew gives one layout of both.
    if published_medusa.is_published_medusa(config):
        heads = published_medusa.load_published_medusa(where)
        published_medusa.save_published_medusa(out, heads)
        return EngineExport(
            "Medusa heads (SGLang has none)",
            {
                "method": "medusa",
                "model": str(out),
                "num_speculative_tokens": min(tokens, heads.depth),
            },
            (),
        )  # vLLM makes so many, trained or not
    if published_eagle1.is_published_eagle1(config, where):
        return _eagle1(published_eagle1.load_published_eagle1(where), out, tokens, target)
    # What is left without a kind is an ordinary model.
    drafter = isinstance(kind, str) or published.is_published_eagle3(config)
    if drafter:
        return _drafter(artefacts.load_artefact(name), out, tokens, target)
    return _model(name, out, tokens)


def _drafter(drafter: Any, out: Path, tokens: int, target: Target | None) -> EngineExport:
    if target is not None:
        drafter = artefacts.bind_artefact(drafter, target)
    # Without a target it is still unbound; then the file itself must name its layers.
    if isinstance(drafter, published.UnboundEagle3):
        drafter = drafter.eagle
        if not drafter.depths:
            raise FileError(
                "target is not given: config.json does not say which layers of it are read, so name the model"
            )
    # Both engines fix the number of auxiliary states at three.
    if len(drafter.depths) != 3:
        raise FileError(
            f"the drafter reads the states of {len(drafter.depths)} layers: vLLM and SGLang give it those of three"
        )
    published.save_published_eagle3(out, drafter)
    return EngineExport(
        f"EAGLE-3 that reads the target's states after layers {', '.join(map(str, drafter.depths))}",
        {"method": "eagle3", "model": str(out), "num_speculative_tokens": tokens},
        ("--speculative-algorithm", "EAGLE3", *_sglang(out, tokens)),
    )


def _eagle1(
    drafter: published_eagle1.ReadEagle1, out: Path, tokens: int, target: Target | None
) -> EngineExport:
    if target is None:
        eagle = drafter.eagle
    else:
        eagle = drafter.bound_drafter(target)
    vllm = published_eagle1.export_eagle1(out, eagle)
    # A bias of zeros is as good as none, and loses nothing in vLLM.
    biased = eagle.bias_H is not None and bool(eagle.bias_H.any())
    return EngineExport(
        "EAGLE-1"
        + (" (vLLM has no place for its fc.bias: it will draft worse there)" if biased else ""),
        {"method": "eagle", "model": str(vllm), "num_speculative_tokens": tokens},
        ("--speculative-algorithm", "EAGLE", *_sglang(out, tokens)),
    )


def _model(name: str, out: Path, tokens: int) -> EngineExport:
    source = sources.open_source(name)
    # Such tensors are of this package alone: engines would load a wrong head, or stop.
    if own := next(
        (n for n in ("lm_head.tokens", "model.embed_tokens.proj.weight") if n in source.weights),
        None,
    ):
        raise FileError(
            edge.error_sentence(
                f"{name!r} has {own}: vLLM and SGLang have no place for a head of some tokens only, "
                "or for embeddings narrower than its layers"
            )
        )
    # polydec_base only says where tokenizer and embeddings come from, which are written out here.
    if any(key.startswith("polydec_") and key != "polydec_base" for key in source.config):
        raise FileError(
            edge.error_sentence(
                f"{name!r} is a masked-diffusion model: neither vLLM nor SGLang drafts with one"
            )
        )
    config = {key: value for key, value in source.config.items() if key != "polydec_base"}
    # Engines choose the class by this field, which models from GGUF files lack.
    config.setdefault("architectures", _architectures(config["model_type"]))
    sources.save_checkpoint(
        out, config, dict(source.weights.items()), source.text, source.generation
    )
    return EngineExport(
        f"{config['model_type']} model of {config.get('num_hidden_layers', '?')} layers",
        {"method": "draft_model", "model": str(out), "num_speculative_tokens": tokens},
        ("--speculative-algorithm", "STANDALONE", *_sglang(out, tokens)),
    )


def _architectures(model_type: str) -> list[str]:
    """The class by which others find out how to load a model: a GGUF file names only its family."""
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    )  # takes seconds to import

    return [MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[model_type]]


def _sglang(out: Path, tokens: int) -> tuple[str, ...]:
    """A chain: SGLang counts the token behind the draft as well."""
    return (
        "--speculative-draft-model-path",
        str(out),
        "--speculative-num-steps",
        str(tokens),
        "--speculative-eagle-topk",
        "1",
        "--speculative-num-draft-tokens",
        str(tokens + 1),
    )
