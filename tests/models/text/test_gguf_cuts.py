"""Ways to cut text of GGUF files, each next to a splitter of its own that another engine of regular expressions runs."""

from __future__ import annotations

import unicodedata

import pytest
import regex
from tokenizers import pre_tokenizers

from polydec.models.text import gguf_cuts
from polydec.models.text.tokenizer import byte_alphabet

TEXTS = (
    "We're 20260101 Naïve:  世界\n\n x",
    "  HELLO world's I'LL don't\t\r\nend  ",
    "f(x)=[1,22,333,4444]; $5.00+`a`|b~c^d <=> 你好，世界。가나다 한국어 ひらがな カタカナ 12345６７",
    "é e\u0301 नमस्ते ಠ_ಠ 🙂🙃 1² ½ Ⅻ \u00a0\u2003x",
    "\n\n\n   a\n b \n",
    "/path/to//file.txt ...!?… «q» “x” ‘y’ A1b2C3 ªºƻ 𝐀𝐁 ⴀⴁ",
    "word " * 3 + " " * 20 + "x" + " " * 5,
    "'s 'S S's isn'T we'Re ’s",
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LETTERS = {byte: letter for letter, byte in byte_alphabet().items()}


def pieces(expressions, text):
    """What lies between matches is a piece, too; each expression cuts the pieces of those before it."""
    parts = [text]
    for expression in expressions:
        cut = []
        for part in parts:
            at = 0
            for match in regex.compile(expression, regex.V1).finditer(part):
                cut += [part[at : match.start()], match[0]]
                at = match.end()
            cut.append(part[at:])
        parts = [part for part in cut if part]
    return ["".join(LETTERS[b] for b in part.encode()) for part in parts]


def ours(name, text):
    cutter = gguf_cuts.gguf_pre_tokenizer(name)
    assert cutter is not None
    return [piece for piece, _ in cutter.pre_tokenize_str(text)]


@pytest.mark.parametrize("name", sorted(gguf_cuts.CUTS))
def test_expressions_cut_alike_in_another_engine(name):
    for text in TEXTS:
        assert ours(name, text) == pieces(gguf_cuts.CUTS[name], text), text


@pytest.mark.parametrize("name", sorted(gguf_cuts.LIKE_GPT2))
def test_the_way_of_gpt_2(name):
    for text in TEXTS:
        assert ours(name, text) == pieces([GPT2], text), text


@pytest.mark.parametrize("name", sorted(gguf_cuts.DIGITS_APART))
def test_each_digit_alone(name):
    for text in TEXTS:
        assert ours(name, text) == pieces([r"\p{N}", GPT2], text), text


WRITTEN = {
    "deepseek-llm": ("a1b 22\n世界x!", ["a", "1", "b", "Ġ", "22", "Ċ", "世界", "x", "!"]),
    "deepseek-coder": ("a1b 22\n世界x!", ["a", "1", "b", "Ġ", "2", "2", "Ċ", "世界", "x", "!"]),
    "deepseek-v3": ("x=12345 世界a\n", ["x", "=", "123", "45", "Ġ", "世界", "a", "Ċ"]),
    "falcon": ("a=12345 b's.", ["a", "=", "123", "45", "Ġb", "'", "s", "."]),
    "qwen35": ("ne\u0301e 12 don't", ["ne\u0301e", "Ġ", "1", "2", "Ġdon", "'t"]),
    "gpt-4o": ("HelloWorld's 1234", ["Hello", "World's", "Ġ", "123", "4"]),
    "bailingmoe": ("a\n\nb", ["a", "ĊĊ", "b"]),
    "viking": ("ab12, c", ["ab", "1", "2", ",", "Ġc"]),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_cuts_written_by_hand(name):
    text, want = WRITTEN[name]
    spelled = [p if p[0] in "ĠĊ" else "".join(LETTERS[b] for b in p.encode()) for p in want]
    assert ours(name, text) == spelled


def test_letters_of_deepseek_have_two_cases():
    """Letters that other engines count as cased, and none besides."""
    cased = regex.compile(f"[{gguf_cuts._CASED_LETTERS}]")
    found = [c for c in map(chr, range(0x20000)) if cased.match(c)]
    assert len(found) == 2727
    assert {unicodedata.category(c) for c in found} == {"Lu", "Ll", "Lt"}


def test_no_way_has_two_meanings():
    assert gguf_cuts.gguf_pre_tokenizer("nothing of that name") is None
    kinds = (gguf_cuts.LIKE_GPT2, gguf_cuts.DIGITS_APART, set(gguf_cuts.CUTS))
    assert len(gguf_cuts.NAMES) == sum(map(len, kinds)) == len(set(gguf_cuts.NAMES))
    assert set(gguf_cuts.NAMES) >= gguf_cuts.WITHOUT_MERGES | gguf_cuts.COMPOSED
    assert isinstance(gguf_cuts.gguf_pre_tokenizer("falcon"), pre_tokenizers.PreTokenizer)


def test_a_file_that_does_not_say_how_text_is_cut(tmp_path):
    """It is said in one line, and a name that nobody knows is refused beside those that are like it."""
    import gguf

    from polydec.base.errors import FileError
    from polydec.models.formats.gguf import GGUFCheckpoint
    from polydec.models.text.gguf_text import read_text

    def written(pre, model="gpt2"):
        path = tmp_path / f"{pre}.gguf"
        w = gguf.GGUFWriter(path, "llama")
        w.add_tokenizer_model(model)
        if pre is not None:
            w.add_tokenizer_pre(pre)
        w.add_token_list([*byte_alphabet(), "ab"])
        w.add_token_types([1] * 257)
        w.add_token_merges(["a b"])
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()
        return GGUFCheckpoint(path)

    with pytest.warns(UserWarning, match="does not say how text is cut") as caught:
        bare = read_text(written(None))
    assert len(caught) == 1 and "\n" not in str(caught[0].message)
    named = read_text(written("gpt-2"))
    assert all(bare.encode(text) == named.encode(text) for text in TEXTS)
    with pytest.raises(FileError, match=r"in the way 'qwen3.5'.*known are qwen35, qwen2") as error:
        read_text(written("qwen3.5"))
    assert len(str(error.value)) <= 2000
    for name in ("deepseek-llm", "falcon", "qwen35"):
        text = read_text(written(name))
        for said in TEXTS:
            shown = unicodedata.normalize("NFC", said) if name in gguf_cuts.COMPOSED else said
            assert text.decode(text.encode(said)) == shown
