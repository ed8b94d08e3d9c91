"""How GGUF files say that text is cut before the merges of a byte-level vocabulary
(`tokenizer.ggml.pre`).

A way to cut is a few regular expressions, one after another: what the first one finds are pieces,
and so is what lies between them; each further one cuts the pieces of those before it. They are
those of the models' own tokenizers, by the names that llama.cpp gives them.
"""

from __future__ import annotations

from collections.abc import Mapping

from tokenizers import Regex, pre_tokenizers
from tokenizers.pre_tokenizers import PreTokenizer

# Parts that several ways have in common: English contractions, then what is left after words and
# digits, a word with at most one other character before it, and letters by case.
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORD = r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# The ways themselves. A trailing run of white space leaves its last character to the next word:
# \s+(?!\S).
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = _CONTRACTIONS + _WORD + r"|\p{N}{1,3}" + _REST
_QWEN2 = _CONTRACTIONS + _WORD + r"|\p{N}" + _REST
_QWEN35 = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CASES = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{end}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{end}}"
_PATHS = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = _CASES.replace("{end}", "") + r"|\p{N}" + _PATHS
_GPT4O = _CASES.replace("{end}", f"{_CONTRACTIONS}?") + r"|\p{N}{1,3}" + _PATHS
# Punctuation that a Latin word follows at once is one piece with it.
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_IDEOGRAPHS_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_CASED_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373\u0376"
    "\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d\u1f5f-\u1f7d"
    "\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4"
    "\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee\u2cb3\u2cb3\ua640-\ua66d"
    "\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a"
    "\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_NO_STOPS = r" ?[^(\s|.,!?…。，、।۔،)]+"
_BAILING = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
_SEED_CODER = _CONTRACTIONS + _WORD + r"|\p{N}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_EXAONE_MOE = (
    _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"
)
# Indentation in pieces of powers of two.
_JAIS2 = (
    _CONTRACTIONS
    + _WORD
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    + "".join(rf"|\s{{{n}}}(?!\S)" for n in (512, 256, 128, 64, 32, 16, 8, 4))
    + r"|\s{1,2}(?!\S)|\s{1}"
)


def _all(names: str, *expressions: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names.split(), expressions)


CUTS: Mapping[str, tuple[str, ...]] = {
    **_all("llama-bpe llama3 llama-v3 dbrx smaug-bpe glm4 chatglm-bpe", _LLAMA3),
    **_all("falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano", _LLAMA3),
    **_all("qwen2 deepseek-r1-qwen stablelm2 kormo f2llmv2 megrez hunyuan", _QWEN2),
    **_all("qwen35", _QWEN35),
    **_all("tekken", _TEKKEN),
    **_all("gpt-4o llama4 kanana2 talkie", _GPT4O),
    **_all(
        "deepseek-v3 hunyuan-dense hy_v4 joyai-llm", r"\p{N}{1,3}", _IDEOGRAPHS_AND_KANA, _DEEPSEEK3
    ),
    **_all("deepseek-coder", r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, r"\p{N}"),
    **_all(
        "deepseek-llm",
        r"[\r\n]",
        rf"\s?[{_CASED_LETTERS}]+",
        "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
        r"\s+$",
        _EAST_ASIAN,
        r"\p{N}+",
    ),
    **_all("falcon", r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, r"[0-9][0-9][0-9]"),
    **_all("poro-chat bloom gpt3-finnish", _NO_STOPS),
    **_all("viking", _NO_STOPS, r"\p{N}"),
    **_all("bailingmoe bailingmoe2 llada-moe", _BAILING),
    **_all("seed-coder", _SEED_CODER),
    **_all("exaone-moe", _EXAONE_MOE),
    **_all("jais-2", _JAIS2),
    **_all("minicpm5", r"\p{N}{1,3}", _CONTRACTIONS + _WORD + r"|\p{N}+" + _REST),
}
"""By name, regular expressions of which each cuts the pieces of those before it."""
LIKE_GPT2 = frozenset(
    {
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
        "gigachat",
        "a.x-4.0",
        "exaone4",
        "jina-es",
        "jina-de",
        "jina-v2-es",
        "jina-v2-de",
        "modern-bert",
    }
)
"""Names of the way of GPT-2."""
DIGITS_APART = frozenset(
    {
        "smollm",
        "starcoder",
        "refact",
        "command-r",
        "codeshell",
        "exaone",
        "minerva-7b",
        "mellum2",
    }
)
"""Names of the way of GPT-2 where each digit stands alone."""
BOS_FIRST = frozenset(
    {
        "llama-bpe",
        "llama3",
        "llama-v3",
        "tekken",
        "falcon3",
        "falcon-h1",
        "pixtral",
        "midm-2.0",
        "lfm2",
        "jina-v5-nano",
    }
)
"""Names of the vocabularies which put BOS first unless the file says otherwise."""
WITHOUT_MERGES = BOS_FIRST | {"minicpm5"}
"""Names of the vocabularies whose whole words win over merges."""
COMPOSED = frozenset({"qwen2", "qwen35"})
"""Names of the vocabularies that read text in Unicode's composed form (NFC)."""
NAMES = tuple(sorted(LIKE_GPT2 | DIGITS_APART | CUTS.keys()))
"""All names that are known."""


def gguf_pre_tokenizer(name: str) -> PreTokenizer | None:
    """What cuts text in this way, and spells its pieces in bytes; None: no way has that name."""
    # The library's own byte-level cut is that of GPT-2.
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name in LIKE_GPT2:
        return words
    if name in DIGITS_APART:
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    if name not in CUTS:
        return None
    # "isolated": what is found is a piece of its own, and so is what lies between.
    splits = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in CUTS[name]]
    return pre_tokenizers.Sequence(
        [*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
