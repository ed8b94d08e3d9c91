"""Text: encoding, decoding, streaming and chat templates."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from tokenizers import (
    Tokenizer as HFTokenizer,
)

from polydec.models.text.tokenizer import Tokenizer, byte_alphabet
from project_paths import DATA_FOLDER

DATA = DATA_FOLDER
CORPUS = [
    "the cat sat on the mat, the dog ran to the door",
    "naïve café — schön, 世界 and 世間",
    "x = [1, 2]\n    y()\n" * 3,
    "über den Wolken 🙂 🙃 🙂",
]
WORDS = st.text(st.sampled_from(list("the cat\n  sé世界🙂#xyz<>0")), max_size=40)


def byte_level() -> Tokenizer:
    t = HFTokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    t.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=340,
            special_tokens=["<eos>"],
            show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        ),
    )
    t.add_tokens([AddedToken("<think>", special=False), AddedToken("€uro", special=False)])
    return Tokenizer(t, eos=[0], names={"eos_token": "<eos>"})


def sentencepiece() -> Tokenizer:
    """Shaped like Llama 2's: a space before every text, bytes for what no piece covers."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{b:02X}>" for b in range(256)),
        *"▁thecasodgmnrxé世",
        "▁t",
        "he",
        "▁the",
        "▁c",
        "at",
        "▁cat",
        "▁▁",
    ]
    merges = [
        ("▁", "t"),
        ("h", "e"),
        ("▁t", "he"),
        ("▁", "c"),
        ("a", "t"),
        ("▁c", "at"),
        ("▁", "▁"),
    ]
    t = HFTokenizer(
        models.BPE(
            {p: i for i, p in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            fuse_unk=True,
            byte_fallback=True,
        )
    )
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    t.add_special_tokens(["<unk>", "<s>", "</s>"])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return Tokenizer(t, eos=[2])


def metaspace() -> Tokenizer:
    pieces = ["▁", "▁t", "he", "▁the", "▁cat", "s", "é", "世", "▁▁"]
    t = HFTokenizer(models.WordLevel({p: i for i, p in enumerate(pieces)}, "s"))
    t.decoder = decoders.Metaspace()
    return Tokenizer(t)


def wordpiece() -> Tokenizer:
    t = HFTokenizer(
        models.WordPiece(
            {p: i for i, p in enumerate(["[UNK]", "the", "cat", "##s", ".", ",", "dog", "##gy"])},
            unk_token="[UNK]",
        )
    )
    t.pre_tokenizer, t.decoder = pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()
    return Tokenizer(t)


KINDS = {
    "byte-level": cache(byte_level),
    "sentencepiece": cache(sentencepiece),
    "metaspace": cache(metaspace),
    "wordpiece": cache(wordpiece),
}


def streamed(text: Tokenizer, ids, **options) -> tuple[str, list[str]]:
    writer = text.text_writers(**options)()
    pieces = []
    for i in ids:
        pieces.append(writer.push_token(i))
        if writer.stopped:
            break
    pieces.append(writer.end_text())
    return "".join(pieces), pieces


def first_stop(whole: str, stop: list[str], include: bool) -> str:
    """Character by character: the stop string that is complete first, the longest of those."""
    for end in range(1, len(whole) + 1):
        ended = [s for s in stop if whole[:end].endswith(s)]
        if ended:
            return whole[:end] if include else whole[: end - len(max(ended, key=len))]
    return whole


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=150)
@given(data=st.data())
def test_pieces_join_to_the_whole(kind, data):
    text = KINDS[kind]()
    ids = data.draw(st.lists(st.integers(0, text.size - 1), max_size=30))
    assert streamed(text, ids)[0] == text.decode(ids)


@settings(max_examples=200)
@given(st.lists(st.integers(0, 341), max_size=30))
def test_byte_level_decoding_is_the_librarys(ids):
    text = KINDS["byte-level"]()
    assert text.decode(ids) == text.tokenizer.decode(ids)


@pytest.mark.parametrize("kind", ["sentencepiece", "metaspace", "wordpiece"])
@settings(max_examples=150)
@given(data=st.data())
def test_whole_characters_decode_as_the_library_does(kind, data):
    text = KINDS[kind]()
    whole = [i for i in range(text.size) if not text.tokenizer.id_to_token(i).startswith("<0x")]
    ids = data.draw(st.lists(st.sampled_from(whole), max_size=20))
    assert text.decode(ids) == text.tokenizer.decode(ids)


PLAIN = WORDS.filter(
    lambda w: not any(x in w for x in ("<unk>", "<s>", "</s>", "<eos>"))
)  # these are tokens, not text


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@settings(max_examples=150)
@given(whole=PLAIN)
def test_text_comes_back(kind, whole):
    text = KINDS[kind]()
    ids = text.encode(whole)
    assert text.decode(ids) == whole == text.tokenizer.decode(list(ids))
    assert streamed(text, ids)[0] == whole


def test_characters_are_written_whole():
    text = KINDS["sentencepiece"]()
    ids = text.encode("a🙂b", special=False)
    assert streamed(text, ids)[1] == ["", "a", "", "", "", "🙂", "b", ""]
    assert (
        streamed(text, ids[:4])[0] == "a\ufffd"
    )  # cut inside a character: one mark for what began it


def test_special_tokens_are_left_out_and_added_ones_written():
    text = KINDS["byte-level"]()
    size = text.size
    ids = [*text.encode("hi<think>"), 0, size + 7, *text.encode("€uro")]
    assert text.decode(ids) == "hi<think>€uro" == text.tokenizer.decode(ids)
    assert text.encode("<eos>") == (0,)


def test_a_leading_space_depends_on_what_stands_before():
    text = KINDS["sentencepiece"]()
    ids = text.encode("the cat", special=False)
    assert text.decode(ids) == "the cat"
    assert text.decode(ids, after=text.encode("the")) == " the cat"
    assert text.decode(ids, after=[1]) == "the cat"  # BOS alone: still the beginning
    assert streamed(text, ids, after=text.encode("the"))[0] == " the cat"


@pytest.mark.parametrize("kind", ["byte-level", "sentencepiece"])
@settings(max_examples=300)
@given(
    whole=PLAIN,
    include=st.booleans(),
    stop=st.lists(
        st.text(st.sampled_from(list("the \né世🙂")), min_size=1, max_size=4),
        min_size=1,
        max_size=3,
    ),
)
def test_stop_strings(kind, whole, stop, include):
    text = KINDS[kind]()
    got, pieces = streamed(text, text.encode(whole), stop=stop, include_stop=include)
    assert got == first_stop(whole, stop, include)
    if not include:
        for n in range(len(pieces)):  # nothing that belongs to a stop string was shown on the way
            assert got.startswith("".join(pieces[:n]))


def test_a_stop_string_is_held_back_only_while_it_may_complete():
    text = KINDS["byte-level"]()
    writer = text.text_writers(["aab"])()
    assert [writer.push_token(text.encode(c)[0]) for c in "xaaac"] == ["x", "", "", "a", "aac"]
    assert not writer.stopped and writer.end_text() == ""
    writer = text.text_writers(["aab"])()
    assert [writer.push_token(text.encode(c)[0]) for c in "aaab"] == ["", "", "a", ""]
    assert writer.stopped and writer.push_token(5) == "" and writer.end_text() == ""


def test_a_stop_string_may_be_begun_by_the_last_token():
    text = KINDS["byte-level"]()
    assert streamed(text, text.encode("the c"), stop=["cat"])[0] == "the c"


def test_empty_stop_is_refused():
    with pytest.raises(ValueError, match="stop has ''"):
        KINDS["byte-level"]().text_writers([""])


def test_byte_alphabet_covers_every_byte():
    assert sorted(byte_alphabet().values()) == list(range(256))
    assert set(byte_alphabet()) == set(pre_tokenizers.ByteLevel.alphabet())


def test_fingerprints_tell_token_tables_apart():
    assert byte_level().fingerprint == byte_level().fingerprint != sentencepiece().fingerprint
    longer = byte_level()
    longer.tokenizer.add_tokens(["more"])
    assert longer.fingerprint != byte_level().fingerprint


CHAT = """{%- for m in messages %}
    {%- if m.role not in ["system", "user", "assistant"] %}{{ raise_exception("unknown role " + m.role) }}{% endif %}
    {{- eos_token + m.role + ": " + m.content | trim }}
    {%- if m.data is defined %}{{ m.data | tojson }}{% endif %}
{%- endfor %}
{{ "\\n" }}
{%- if add_generation_prompt %}
{% generation %}assistant:{% endgeneration %}
{% endif %}"""


def test_chat_template():
    text = Tokenizer(byte_level().tokenizer, template=CHAT, names={"eos_token": "<eos>"})
    assert text.has_chat
    chat = [{"role": "user", "content": " <b>hé "}]
    assert text.render_chat(chat) == "<eos>user: <b>hé\nassistant:"
    assert text.render_chat(chat, reply=False) == "<eos>user: <b>hé\n"
    assert (
        text.render_chat([{**chat[0], "data": {"a": "<é>"}}])
        == '<eos>user: <b>hé{"a": "<é>"}\nassistant:'
    )
    assert (
        text.chat_prompt(chat)[0] == 0
        and text.decode(text.chat_prompt(chat)) == "user: <b>hé\nassistant:"
    )


def test_chat_template_equals_transformers():
    from transformers import PreTrainedTokenizerFast

    text = Tokenizer(byte_level().tokenizer, template=CHAT, names={"eos_token": "<eos>"})
    theirs = PreTrainedTokenizerFast(
        tokenizer_object=byte_level().tokenizer, eos_token="<eos>", chat_template=CHAT
    )
    chat = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
    assert text.render_chat(chat) == theirs.apply_chat_template(
        chat, tokenize=False, add_generation_prompt=True
    )
    assert (
        list(text.chat_prompt(chat))
        == theirs.apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    )


def test_templates_refuse_in_one_sentence():
    text = Tokenizer(byte_level().tokenizer, template=CHAT, names={"eos_token": "<eos>"})
    with pytest.raises(ValueError, match="unknown role boss"):
        text.chat_prompt([{"role": "boss", "content": "x"}])
    with pytest.raises(ValueError, match=r"messages\[0\] is .*role and content"):
        text.chat_prompt([{"content": "x"}])
    with pytest.raises(ValueError, match="messages is empty"):
        text.chat_prompt([])
    with pytest.raises(ValueError, match="no chat template"):
        byte_level().chat_prompt([{"role": "user", "content": "x"}])
    for broken in (
        "{% if %}",
        "{{ messages[0].content.nothing.at.all }}",
        "{{ ''.__class__.__mro__ }}",
    ):
        with pytest.raises(ValueError, match="chat template refuses"):
            Tokenizer(byte_level().tokenizer, template=broken).chat_prompt(
                [{"role": "user", "content": "x"}]
            )


def test_tokenizer_json_and_its_config(tmp_path):
    tokenizer = byte_level().tokenizer
    tokenizer.enable_truncation(3)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    config = {
        "eos_token": {"content": "<eos>"},
        "add_bos_token": False,
        "bos_token": None,
        "chat_template": [
            {"name": "tool_use", "template": "no"},
            {"name": "default", "template": "yes"},
        ],
    }
    text = Tokenizer.from_tokenizer_json(tmp_path / "tokenizer.json", config)
    assert (
        text.eos == {0} and text.names == {"eos_token": "<eos>"} and text.template.source == "yes"
    )
    assert (
        len(text.encode("the cat sat on the mat, the dog")) > 3
    )  # what a file says of truncation is not ours
    assert Tokenizer.from_tokenizer_json(
        tmp_path / "tokenizer.json", config, eos=[1, 2], template="x"
    ).eos == {1, 2}
    (tmp_path / "tokenizer.json").write_text('{"model": 3')
    with pytest.raises(ValueError, match=r"not a readable tokenizer\.json"):
        Tokenizer.from_tokenizer_json(tmp_path / "tokenizer.json")
    with pytest.raises(ValueError, match="the tokenizer given"):
        Tokenizer.from_tokenizer_json({"model": 3})


@pytest.mark.skipif(
    not (DATA / "model_stories260k").is_dir(),
    reason="needs the folder model_stories260k of POLYDEC_DATA",
)
def test_stories_tokenizer_equals_transformers():
    import json

    from transformers import AutoTokenizer

    where = DATA / "model_stories260k" / "hf"
    text, theirs = (
        Tokenizer.from_tokenizer_json(where / "tokenizer.json"),
        AutoTokenizer.from_pretrained(where),
    )
    for line in (DATA / "model_stories260k" / "expected.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert list(text.encode(row["prompt"])) == row["prompt_ids"] == theirs.encode(row["prompt"])
        assert text.decode([*row["prompt_ids"], *row["greedy_ids"]]) == row["greedy_text"]


def test_pieces():
    """The bytes of every id join to the text."""
    from polydec.models.sessions.sources import open_source

    text = open_source("zoo:tiny").text
    said = "A dog's café, naïve — 東京!\n"
    assert len(text.pieces) == text.size
    assert b"".join(text.pieces[i] for i in text.encode(said, special=False)).decode() == said
    assert all(text.pieces[i] is None for i in text.eos)


def test_names_that_are_only_joined_are_their_bytes():
    from polydec.lab.train.letter_tokens import letter_tokenizer

    text = Tokenizer(letter_tokenizer("aé世"), eos=[1])
    assert text.pieces == (None, None, b"a", "é".encode(), "世".encode())
    assert streamed(text, [4, 2, 3])[0] == text.decode([4, 2, 3]) == "世aé"


def pushed(text, tokens, **options):
    """What a writer writes of tokens, its pieces apart, and whether a stop string ended it."""
    writer = text.text_writers(**options)()
    pieces = [writer.push_token(x) for x in tokens]
    return [*pieces, writer.end_text()], writer.stopped


@pytest.mark.parametrize("cut", range(1, 9))
def test_a_stop_string_counts_behind_the_first_tokens(cut):
    """It ends the text where its last character comes behind them, wherever it began; tokens of a character each."""
    text = KINDS["byte-level"]()
    said = "xaabxaab"
    tokens = [x for c in said for x in text.encode(c, special=False)]
    assert len(tokens) == len(said)
    stops = ["aab", "ab"]
    pieces, stopped = pushed(text, tokens, stop=stops, min_tokens=cut)
    ends = (n for n in range(cut + 1, 9) if said[:n].endswith(tuple(stops)))
    end = next(ends, None)
    assert stopped == (end is not None)
    assert "".join(pieces) == (said if end is None else said[: end - 3])
    later = text.text_writers(["aab"], min_tokens=cut)()
    for x in tokens[:4]:
        later.push_token(x)
    twin = later.fork()
    for x in tokens[4:]:
        later.push_token(x)
        twin.push_token(x)
    assert twin.stopped == later.stopped == (cut < 8)
