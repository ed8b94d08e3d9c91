"""The tokenizer that a GGUF file describes, built from its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from tokenizers import (
    AddedToken,
    decoders,
    normalizers,
    processors,
)
from tokenizers import (
    Tokenizer as HFTokenizer,
)
from tokenizers.models import BPE

from polydec.base.caller_warnings import warn_caller
from polydec.base.errors import FileError
from polydec.models.formats.edge import validate_record
from polydec.models.formats.fields import GGUFText
from polydec.models.formats.gguf import GGUFCheckpoint
from polydec.models.text import gguf_cuts
from polydec.models.text.tokenizer import Tokenizer

LONGEST = 512  # characters of a piece that merges are looked for in
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

# Names of tokens that end a turn: such a control token ends an answer where the chat template
# writes it.
_TURN_ENDS = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>"}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_text(file: GGUFCheckpoint) -> Tokenizer:
    """Build the tokenizer that a GGUF file describes.

    Raises:
        FileError: The file has no tokenizer, or one of an unknown kind.
    """
    prefix = "tokenizer.ggml."
    described = {
        key.removeprefix(prefix): value
        for key, value in file.fields.items()
        if key.startswith(prefix)
    }
    for needed in ("tokens", "model"):
        file.metadata_field(prefix + needed)
    validate_record(
        GGUFText,
        {**described, "chat_template": file.fields.get("tokenizer.chat_template")},
        f"{file.path}: tokenizer.ggml",
    )
    # Fields have the right types from here on.
    tokens, types = _tokens(file)
    kind = file.metadata_field("tokenizer.ggml.model")
    pre = file.fields.get("tokenizer.ggml.pre", "default")
    if kind == "gpt2" and "tokenizer.ggml.pre" not in file.fields:
        warn_caller(
            f"{file.path} does not say how text is cut (tokenizer.ggml.pre): it is cut as GPT-2 does, and answers are "
            "worse where the model was trained otherwise"
        )
    if kind == "gpt2":
        tokenizer = _byte_level(file, tokens, types, pre)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, tokens, types)
    else:
        raise FileError(
            f"{file.path} has a tokenizer of the model {kind!r}: gpt2 and llama are served"
        )
    # Control tokens are found in a text before it is cut into pieces, and are left out when it is
    # written.
    tokenizer.add_special_tokens(
        [
            AddedToken(t, normalized=False, special=True)
            for t, k in zip(tokens, types)
            if k == _CONTROL or (k == _UNKNOWN and kind == "llama")
        ]
    )
    tokenizer.add_tokens(
        [
            AddedToken(t, normalized=False, special=False)
            for t, k in zip(tokens, types)
            if k == _USER
        ]
    )
    # BOS stands before every text if the file says so, or by custom of the vocabulary.
    names = _names(file, tokens)
    # Files of Llama's tokenizer begin with BOS even where they do not say so.
    if (
        file.fields.get(
            "tokenizer.ggml.add_bos_token", kind == "llama" or pre in gguf_cuts.BOS_FIRST
        )
        and "bos_token" in names
    ):
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", f"{bos}:1", "$B:1"],
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    return Tokenizer(
        tokenizer,
        eos=_eos(file, tokens, types),
        template=_templates(file),
        names=names,
        # as many as the file's: each has its place for an id, none is left out and none there twice
        tokens=tokens if tokenizer.get_vocab_size() == len(tokens) else None,
    )


def generation_defaults(file: GGUFCheckpoint, eos: frozenset[int]) -> dict[str, Any]:
    """What a generation_config.json would say.

    Args:
        file: The GGUF file.
        eos: Ids that end an answer.

    Returns:
        Settings by the names of Hugging Face.
    """
    out: dict[str, Any] = {"eos_token_id": sorted(eos)}
    for own, name in _SAMPLING.items():
        if (value := file.fields.get(f"general.sampling.{own}")) is not None:
            out[name] = value
    return out


def _tokens(file: GGUFCheckpoint) -> tuple[list[str], list[int]]:
    tokens = file.metadata_field("tokenizer.ggml.tokens")
    types = file.fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise FileError(f"{file.path} has {len(tokens)} tokens but {len(types)} token types")
    return tokens, types


def _names(file: GGUFCheckpoint, tokens: Sequence[str]) -> dict[str, str]:
    names = {}
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        if (i := _id(file, key, tokens)) is not None:
            names[f"{role}_token"] = tokens[i]
    return names


def _id(file: GGUFCheckpoint, key: str, tokens: Sequence[str]) -> int | None:
    i = file.fields.get(f"tokenizer.ggml.{key}_token_id")
    if i is not None and not (isinstance(i, int) and 0 <= i < len(tokens)):
        raise FileError(
            f"{file.path} has tokenizer.ggml.{key}_token_id = {i!r}: ids are 0 to {len(tokens) - 1}"
        )
    return i


def _eos(file: GGUFCheckpoint, tokens: Sequence[str], types: Sequence[int]) -> frozenset[int]:
    ids = {_id(file, key, tokens) for key in ("eos", "eot", "eom")}
    template = file.fields.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise FileError(
            f"{file.path} has tokenizer.chat_template = {template!r}: it must be a text"
        )
    # Files often name one end only: tokens that end a turn in the chat template count, too.
    ids |= {
        i
        for i, (token, kind) in enumerate(zip(tokens, types))
        if kind == _CONTROL and token in _TURN_ENDS and token in template
    }
    return frozenset(i for i in ids if i is not None)


def _templates(file: GGUFCheckpoint) -> dict[str, str]:
    """Chat templates by name."""
    key = "tokenizer.chat_template"
    found = {"default": file.fields.get(key)} | {
        name.removeprefix(f"{key}."): source
        for name, source in file.fields.items()
        if name.startswith(f"{key}.")
    }
    bad = next(
        (name for name, x in found.items() if x is not None and not isinstance(x, str)), None
    )
    if bad is not None:
        raise FileError(f"{file.path} has the chat template {bad!r:.60}: it must be a text")
    return {name: source for name, source in found.items() if source is not None}


def _vocab(tokens: Sequence[str], types: Sequence[int]) -> dict[str, int]:
    vocab: dict[str, int] = {}
    for i, (token, kind) in enumerate(zip(tokens, types)):
        if kind != _UNUSED:
            # Of equal tokens the first counts.
            vocab.setdefault(token, i)
    return vocab


def _byte_level(
    file: GGUFCheckpoint, tokens: Sequence[str], types: Sequence[int], pre: str
) -> HFTokenizer:
    merges = [tuple(m.split(" ", 1)) for m in file.metadata_field("tokenizer.ggml.merges")]
    if bad := next((m for m in merges if len(m) != 2), None):
        raise FileError(
            f"{file.path} has the merge {' '.join(bad)!r}: each must be two tokens with a space between"
        )
    try:
        tokenizer = HFTokenizer(
            BPE(
                vocab=_vocab(tokens, types),
                merges=merges,
                ignore_merges=pre in gguf_cuts.WITHOUT_MERGES,
            )
        )
    except Exception as e:  # the library raises bare Exceptions
        raise FileError(f"{file.path} has merges that do not fit its tokens ({e})") from None
    cut = gguf_cuts.gguf_pre_tokenizer(pre)
    if cut is None:
        raise FileError(
            f"{file.path} cuts text in the way {pre!r:.60} (tokenizer.ggml.pre): {_nearest_names(pre)}"
        )
    tokenizer.pre_tokenizer = cut
    if pre in gguf_cuts.COMPOSED:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _nearest_names(pre: str) -> str:
    """What is known, those first that are written like this one."""
    near = get_close_matches(pre[:60], gguf_cuts.NAMES, 3, 0.5)
    others = [name for name in gguf_cuts.NAMES if name not in near]
    return f"known are {', '.join([*near, *others])}"


def _sentencepiece(
    file: GGUFCheckpoint, tokens: Sequence[str], types: Sequence[int]
) -> HFTokenizer:
    """SentencePiece's BPE: of all neighbours the pair whose joint piece has the best score is
    joined first."""
    scores = file.metadata_field("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        # Every kind of token has its place, as ids count them all.
        raise FileError(f"{file.path} has {len(tokens)} tokens but {len(scores)} scores")
    vocab = _vocab(tokens, types)
    # Scores of normal tokens alone order the merges.
    whole = {t: s for t, s, k in zip(tokens, scores, types) if k in (_NORMAL, _USER)}
    unknown = next((t for t, k in zip(tokens, types) if k == _UNKNOWN), None)
    tokenizer = HFTokenizer(
        BPE(
            vocab=vocab,
            merges=_merges(whole, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    # SentencePiece writes spaces as U+2581, and puts one before every text.
    steps = [normalizers.Replace(" ", "▁")]
    strip = []
    if file.fields.get("tokenizer.ggml.add_space_prefix", True):
        steps = [normalizers.Prepend("▁"), *steps]
        strip = [decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(score: Mapping[str, float], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two pieces.

    The best piece comes first, and of one piece's ways the earliest ids.
    """
    merges = list[tuple[str, str]]()
    for piece in sorted(score, key=lambda piece: (-score[piece], vocab[piece])):
        # The ways grow with the length: a hostile file could name pieces of any length.
        if len(piece) > LONGEST:
            continue
        ways = [
            (left, right)
            for i in range(1, len(piece))
            if (left := piece[:i]) in score and (right := piece[i:]) in score
        ]
        if len(ways) > 1:
            ways.sort(key=lambda way: (vocab[way[0]], vocab[way[1]]))
        merges += ways
    return merges
