"""Tokens that stand in tokenizer_config.json, special_tokens_map.json or added_tokens.json only, next to transformers."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from polydec.base.errors import PolydecError
from polydec.models.text import tokenizer_files

CHARACTERS = [*"abcdefgh<>|/_ou", "Ġ"]
VOCAB = {c: i for i, c in enumerate(CHARACTERS)} | {"ab": 16, "<s>": 17, "</s>": 18, "<t>": 19}
TEXTS = (
    "ab<t>cd<|go|>ef",
    "a <s>b</s> c<|go|> d",
    " <|go|>  <|no|> <u>a<t> b",
    "<s><s>ab<|no|><|go|></s>",
    "ab<x>cd",
)


def entry(content, **flags):
    return {
        "content": content,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "single_word": False,
    } | flags


def write(path, files, own=()):
    tokenizer = Tokenizer(BPE(VOCAB, [("a", "b")]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens(list(own))
    tokenizer.save(str(path / "tokenizer.json"))
    for name, content in files.items():
        (path / name).write_text(json.dumps(content))
    return path


CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}
DECODER = {
    "19": entry("<t>"),
    "20": entry("<|go|>", special=True),
    "21": entry("<|no|>", lstrip=True, rstrip=True),
}
FORMS = {
    "nothing": {"tokenizer_config.json": CLASS},
    "a list of added tokens": {"tokenizer_config.json": CLASS | {"added_tokens_decoder": DECODER}},
    "ids that are not next": {
        "tokenizer_config.json": CLASS | {"added_tokens_decoder": {"40": entry("<|go|>")}}
    },
    "added beside a map": {
        "tokenizer_config.json": CLASS | {"added_tokens_decoder": DECODER},
        "special_tokens_map.json": {"eos_token": "</s>", "additional_special_tokens": ["<u>"]},
        "added_tokens.json": {"<x>": 22},
    },
    "roles": {
        "tokenizer_config.json": CLASS
        | {
            "bos_token": "<s>",
            "eos_token": entry("</s>", __type="AddedToken"),
            "pad_token": "<|no|>",
        }
    },
    "roles of its own": {
        "tokenizer_config.json": CLASS | {"image_token": "<|go|>", "eos_token": "</s>"}
    },
    "additional": {
        "tokenizer_config.json": CLASS
        | {"additional_special_tokens": ["<|go|>", entry("<u>", lstrip=True, __type="AddedToken")]}
    },
    "extra": {"tokenizer_config.json": CLASS | {"extra_special_tokens": ["<|go|>", "<t>"]}},
    "extra by role": {
        "tokenizer_config.json": CLASS | {"extra_special_tokens": {"go_token": "<|go|>"}}
    },
    "extra and additional": {
        "tokenizer_config.json": CLASS
        | {"extra_special_tokens": ["<|go|>"], "additional_special_tokens": ["<u>"]}
    },
    "an older map": {
        "tokenizer_config.json": CLASS | {"eos_token": "<t>"},
        "special_tokens_map.json": {"eos_token": entry("</s>"), "bos_token": "<s>"},
    },
    "an older map of additional ones": {
        "tokenizer_config.json": CLASS,
        "special_tokens_map.json": {
            "eos_token": "</s>",
            "additional_special_tokens": ["<|go|>", "<u>"],
        },
        "added_tokens.json": {"<u>": 20},
    },
    "an older list": {
        "tokenizer_config.json": CLASS | {"eos_token": "</s>"},
        "added_tokens.json": {"<|no|>": 21, "<|go|>": 20, "</s>": 18},
    },
    "split": {
        "tokenizer_config.json": CLASS
        | {"added_tokens_decoder": DECODER, "split_special_tokens": True}
    },
}


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("own", [(), ("<|go|>", "<x>")])
def test_tokens_are_those_of_transformers(name, own, tmp_path):
    from transformers import AutoTokenizer

    path = write(tmp_path, FORMS[name], own)
    text, _ = tokenizer_files.open_tokenizer(path, {"vocab_size": 64}, {}, 0)
    theirs = AutoTokenizer.from_pretrained(path)
    for sample in TEXTS:
        assert list(text.encode(sample, special=False)) == theirs.encode(
            sample, add_special_tokens=False
        ), sample
    assert text.size == len(theirs)
    assert text._skipped == {i for i, t in theirs.added_tokens_decoder.items() if t.special}
    if name != "added beside a map":  # there the map's roles are known as well
        assert text.names == theirs.special_tokens_map


@pytest.mark.parametrize(
    ("file", "content", "match"),
    [
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": entry("a")}},
            "added_tokens_decoder",
        ),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": "a"}}, "added_tokens_decoder.3"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"3": entry("")}}, "content is ''"),
        ("tokenizer_config.json", {"extra_special_tokens": [3]}, "extra_special_tokens"),
        ("added_tokens.json", {"<x>": "4"}, "tokens.<x> is '4'"),
    ],
)
def test_what_is_no_token_is_one_sentence(file, content, match, tmp_path):
    path = write(tmp_path, {file: content})
    with pytest.raises(PolydecError, match=match) as error:
        tokenizer_files.open_tokenizer(path, {"vocab_size": 64}, {}, 0)
    assert len(str(error.value)) <= 300
