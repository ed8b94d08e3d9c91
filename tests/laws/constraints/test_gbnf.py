"""llama.cpp's form of grammars: signs by their numbers, names that mean something elsewhere, and what is no grammar."""

import pytest
from test_exact import VOCAB as LETTERS

from polydec.lab.fuzz.judged_schemas import byte_vocab
from polydec.laws.constraints.gbnf import DEEPEST, lark_of
from polydec.laws.constraints.lark import LarkGrammar

VOCAB = byte_vocab()


def accepts(grammar, text):
    language = LarkGrammar(lark_of(grammar)).token_language(VOCAB, VOCAB.eos)
    state = language.start_state()
    for byte in text.encode():
        if not language.allows_token(state, byte):
            return False
        state = language.next_state(state, byte)
    return language.allows_token(state, 256)


@pytest.mark.parametrize(
    ("grammar", "fits", "does_not"),
    [
        (r"root ::= [\u00e9]", ("é",), ("e", "\xc3", "")),
        (r"root ::= [\xe9\x41]", ("é", "A"), ("e",)),
        (r"root ::= [\u00e0-\u00ff]+", ("éü",), ("e", "Ā")),
        (r"root ::= [\U0001F600-\U0001F64F]", ("😀",), ("🚀",)),
        (r"root ::= [^\u00e9\n]", ("e", "ü", "😀"), ("é", "\n")),
        (r"root ::= [^\x00-\x1f]+", ("é a",), ("\n",)),
        (r'root ::= "\u00e9\x41\U0001F600\"\\\n/"', ('éA😀"\\\n/',), ("é",)),
        (r"root ::= [\]\[\\-]+", ("][-\\",), ("a",)),
        ("root ::= [a&&b~|-]", ("&", "~", "|", "-", "a"), ("c",)),
        ("root ::= [+--]", ("+", ",", "-"), ("a",)),
        ("root ::= [^]", ("\n", "a"), ("", "ab")),
        ("root ::= .", ("\n", "é"), ("", "ab")),
        ('root ::= start\nstart ::= "a" start?', ("a", "aa"), ("b", "")),
        ('root ::= "x" | "(" root ")"', ("x", "((x))"), ("(x",)),
        ('root ::= a-b A_B aB Ab ab\na-b ::= "1"\nA_B ::= "2"\naB ::= "3"\nAb ::= "4"\nab ::= "5"', ("12345",), ("1",)),
        ('root ::= i ignore import json regex llguidance\ni ::= "1"\nignore ::= "2"\nimport ::= "3"\njson ::= "4"\n'
         'regex ::= "5"\nllguidance ::= "6"', ("123456",), ("1",)),
        ('root ::= 1 -x _\n1 ::= "a"\n-x ::= "b"\n_ ::= "c"', ("abc",), ("a",)),
        ('root ::= "a"{2} "b"{1,} "c"{0,2} ("d" | "e"){1,2}', ("aabd", "aabbbccde"), ("abd", "aabccc")),
        ('root ::= ws "x"\nws ::= | " " | "\\n" [ \\t]{0,20}', ("x", " x", "\n\t x"), ("  x",)),
        ('# a "comment\nroot ::= ( # another\n  "a" |\n  "b"\n)+ "c" # third\n\n', ("abc",), ("c",)),
        ('root ::= "a" |\n  "b"\r\n', ("a", "b"), ("",)),
        ('root ::= "a" # later ones count\nroot ::= "b"', ("b",), ("a",)),
    ],
    ids=lambda x: x[:40] if isinstance(x, str) else "",
)  # fmt: skip
def test_what_a_grammar_means(grammar, fits, does_not):
    assert [x for x in fits if not accepts(grammar, x)] == []
    assert [x for x in does_not if accepts(grammar, x)] == []


@pytest.mark.parametrize(
    ("grammar", "says"),
    [
        ('root ::= ("a"', "line 1: ) is missing"),
        ('root ::= "a"\nx ::= [a', "line 2: a class is not closed"),
        ('root ::= "a', "a text is not closed"),
        ("root ::= b", "rule root needs 'b'"),
        ('start ::= "a"', "no rule root"),
        ("root ::= <think>", "a token is named"),
        ("root ::= !<[5]>", "a token is named"),
        ('root ::= "a"{3,2}', "{3,2} is legal where"),
        ('root ::= "a"{x}', "{ must begin"),
        ('root ::= "a"**', "repeated twice"),
        (r'root ::= "\q"', r"\q is no sign"),
        (r"root ::= [\u00g9]", "is no sign"),
        (r"root ::= [\ud800]", "no character of Unicode"),
        (r"root ::= [\U00110000]", "no character of Unicode"),
        ("root ::= [z-a]", "from a later sign to an earlier one"),
        ("root ::= []", "a class holds nothing"),
        ('root ::= "a" )', "is out of place"),
        ('root ::= "a"\n::= "b"', "line 2: a rule's name must stand"),
        ('root "a" ::= "b"', "::= is missing"),
        (f"root ::= {'(' * (DEEPEST + 2)}", "deep"),
        ("root ::= " + "(" * 30_000, "deep"),
        ('root := "a"', "no rule (root ::= …)"),
    ],
    ids=lambda x: x[:30],
)
def test_what_is_no_grammar(grammar, says):
    with pytest.raises(ValueError) as error:
        lark_of(grammar)
    said = str(error.value)
    assert says in said and "\n" not in said and len(said) <= 300


def test_forms_that_published_grammars_use():
    """Of arithmetic, chess, lists and JSON as llama.cpp writes them: what stands there, in words of our own."""
    value = r"""
root   ::= thing
thing  ::= record | row | text | ("true" | "false" | "null") gap | count
record ::= "{" gap (
             text ":" gap thing
    ("," gap text ":" gap thing)*
  )? "}" gap
row    ::= "[" gap ( thing ("," gap thing)* )? "]" gap
text   ::= "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" gap
count  ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,15})? gap
gap    ::= | " " | "\n" [ \t]{0,20}
"""
    assert accepts(value, '{"a": [1, -2.5e3, null], "é\\u00e9\\n": {"b": true}}')
    assert not accepts(value, "{a: 1}") and not accepts(value, '"\n"')
    moves = """
root ::= (
    "1. " move " " move "\\n"
    ([1-9] [0-9]? ". " move " " move "\\n")*
)
move ::= ([NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8] | ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])? | "O-O" "-O"?) [+#]?
"""
    assert accepts(moves, "1. e4 e5\n2. Nf3 O-O+\n") and not accepts(moves, "1. e4\n")
    kana = "root ::= jp+ ([ \\t\\n] jp+)*\njp ::= hira | kata | mark\nhira ::= [ぁ-ゟ]\nkata ::= [ァ-ヿ]\nmark ::= [、-〾]"
    assert accepts(kana, "こんにちは カタ、") and not accepts(kana, "abc")
    assert (
        not LarkGrammar(lark_of(kana))
        .token_language(VOCAB, VOCAB.eos)
        .allows_token(
            LarkGrammar(lark_of(kana)).token_language(VOCAB, VOCAB.eos).start_state(), ord("a")
        )
    )
    with pytest.raises(ValueError, match="no text"):
        LarkGrammar(lark_of(kana)).token_language(LETTERS, LETTERS.eos)
