"""The tokenizer that a GGUF file describes, built from its fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import PreTokenizer

from polydec.base.errors import FileError
from polydec.formats.edge import check
from polydec.formats.fields import GGUFText
from polydec.formats.gguf import GGUF
from polydec.text.tokenizer import Text

LONGEST = 512  # characters of a piece that merges are looked for in
_NORMAL, _UNKNOWN, _CONTROL, _USER, _UNUSED, _BYTE = 1, 2, 3, 4, 5, 6  # tokenizer.ggml.token_type

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# How text is cut before the merges: the kinds of tokenizer.ggml.pre, as the models' own tokenizers cut it.
_GPT2_KINDS = {
    "default",
    "gpt-2",
    "gpt2",
    "phi-2",
    "olmo",
    "mpt",
    "jais",
    "trillion",
    "mellum",
    "granite-docling",
}
_DIGIT_KINDS = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"}
_SPLIT_KINDS = {
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "dbrx": _LLAMA3,
    "smaug-bpe": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
    "stablelm2": _QWEN2,
    "tekken": _TEKKEN,
}
# The vocabularies whose whole words win over merges, and which put BOS first unless the file says otherwise.
_WHOLE_WORDS = {"llama-bpe", "llama3", "llama-v3", "tekken"}
# Names of tokens that end a turn: such a control token ends an answer where the chat template writes it.
_TURN_ENDS = {"<|im_end|>", "<|eot_id|>", "<|end|>", "<end_of_turn>", "<|end_of_turn|>"}
_SAMPLING = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}


def read_text(file: GGUF) -> Text:
    """Raises FileError where the file has no tokenizer, or one of an unknown kind."""
    prefix = "tokenizer.ggml."
    described = {
        key.removeprefix(prefix): value
        for key, value in file.fields.items()
        if key.startswith(prefix)
    }
    for needed in ("tokens", "model"):
        file.field(prefix + needed)
    check(
        GGUFText,
        {**described, "chat_template": file.fields.get("tokenizer.chat_template")},
        f"{file.path}: tokenizer.ggml",
    )
    tokens, types = _tokens(file)
    kind, pre = file.field("tokenizer.ggml.model"), file.fields.get("tokenizer.ggml.pre", "default")
    if kind == "gpt2":
        tokenizer = _byte_level(file, tokens, types, pre)
    elif kind == "llama":
        tokenizer = _sentencepiece(file, tokens, types)
    else:
        raise FileError(
            f"{file.path} has a tokenizer of the model {kind!r}: gpt2 and llama are served"
        )
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
    names = _names(file, tokens)
    if (
        file.fields.get("tokenizer.ggml.add_bos_token", kind == "llama" or pre in _WHOLE_WORDS)
        and "bos_token" in names
    ):
        bos = names["bos_token"]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"],
            pair=[bos, "$A", f"{bos}:1", "$B:1"],
            special_tokens=[(bos, tokenizer.token_to_id(bos))],
        )
    return Text(
        tokenizer,
        eos=_eos(file, tokens, types),
        template=_templates(file),
        names=names,
        # as many as the file's: each has its place for an id, none is left out and none there twice
        tokens=tokens if tokenizer.get_vocab_size() == len(tokens) else None,
    )


def generation_defaults(file: GGUF, eos: frozenset[int]) -> dict[str, Any]:
    """What a generation_config.json would say."""
    out: dict[str, Any] = {"eos_token_id": sorted(eos)}
    for own, name in _SAMPLING.items():
        if (value := file.fields.get(f"general.sampling.{own}")) is not None:
            out[name] = value
    return out


def _tokens(file: GGUF) -> tuple[list[str], list[int]]:
    tokens = file.field("tokenizer.ggml.tokens")
    types = file.fields.get("tokenizer.ggml.token_type", [_NORMAL] * len(tokens))
    if len(types) != len(tokens):
        raise FileError(f"{file.path} has {len(tokens)} tokens but {len(types)} token types")
    return tokens, types


def _names(file: GGUF, tokens: Sequence[str]) -> dict[str, str]:
    names = {}
    for role, key in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        if (i := _id(file, key, tokens)) is not None:
            names[f"{role}_token"] = tokens[i]
    return names


def _id(file: GGUF, key: str, tokens: Sequence[str]) -> int | None:
    i = file.fields.get(f"tokenizer.ggml.{key}_token_id")
    if i is not None and not (isinstance(i, int) and 0 <= i < len(tokens)):
        raise FileError(
            f"{file.path} has tokenizer.ggml.{key}_token_id = {i!r}: ids are 0 to {len(tokens) - 1}"
        )
    return i


def _eos(file: GGUF, tokens: Sequence[str], types: Sequence[int]) -> frozenset[int]:
    ids = {_id(file, key, tokens) for key in ("eos", "eot", "eom")}
    template = file.fields.get("tokenizer.chat_template", "")
    if not isinstance(template, str):
        raise FileError(
            f"{file.path} has tokenizer.chat_template = {template!r}: it must be a text"
        )
    ids |= {
        i
        for i, (token, kind) in enumerate(zip(tokens, types))
        if kind == _CONTROL and token in _TURN_ENDS and token in template
    }
    return frozenset(i for i in ids if i is not None)


def _templates(file: GGUF) -> dict[str, str]:
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
            vocab.setdefault(token, i)
    return vocab


def _byte_level(file: GGUF, tokens: Sequence[str], types: Sequence[int], pre: str) -> Tokenizer:
    merges = [tuple(m.split(" ", 1)) for m in file.field("tokenizer.ggml.merges")]
    if bad := next((m for m in merges if len(m) != 2), None):
        raise FileError(
            f"{file.path} has the merge {' '.join(bad)!r}: each must be two tokens with a space between"
        )
    try:
        tokenizer = Tokenizer(
            BPE(vocab=_vocab(tokens, types), merges=merges, ignore_merges=pre in _WHOLE_WORDS)
        )
    except Exception as e:  # the library raises bare Exceptions
        raise FileError(f"{file.path} has merges that do not fit its tokens ({e})") from None
    tokenizer.pre_tokenizer = _cut(file, pre)
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _cut(file: GGUF, pre: str) -> PreTokenizer:
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if pre in _GPT2_KINDS:
        return words
    if pre in _DIGIT_KINDS:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if pre in _SPLIT_KINDS:
        return pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(_SPLIT_KINDS[pre]), behavior="isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
    raise FileError(
        f"{file.path} cuts text in the way {pre!r} (tokenizer.ggml.pre): served are "
        f"{', '.join(sorted(_GPT2_KINDS | _DIGIT_KINDS | set(_SPLIT_KINDS)))}"
    )


def _sentencepiece(file: GGUF, tokens: Sequence[str], types: Sequence[int]) -> Tokenizer:
    """SentencePiece's BPE: of all neighbours the pair whose joint piece has the best score is joined first."""
    scores = file.field("tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise FileError(f"{file.path} has {len(tokens)} tokens but {len(scores)} scores")
    vocab = _vocab(tokens, types)
    whole = {t: s for t, s, k in zip(tokens, scores, types) if k in (_NORMAL, _USER)}
    unknown = next((t for t, k in zip(tokens, types) if k == _UNKNOWN), None)
    tokenizer = Tokenizer(
        BPE(
            vocab=vocab,
            merges=_merges(whole, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    steps = [normalizers.Replace(" ", "▁")]
    strip = []
    if file.fields.get("tokenizer.ggml.add_space_prefix", True):
        steps, strip = [normalizers.Prepend("▁"), *steps], [decoders.Strip(" ", 1, 0)]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _merges(score: Mapping[str, float], vocab: Mapping[str, int]) -> list[tuple[str, str]]:
    """Every way to put a piece together from two pieces, best piece first, of one piece's ways the earliest ids first."""
    merges = list[tuple[str, str]]()
    for piece in sorted(score, key=lambda piece: (-score[piece], vocab[piece])):
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
