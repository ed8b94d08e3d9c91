"""One's own text: every form that is taken is read as it is meant, whatever is wrong is one sentence with file and line."""

import gzip
import json
import runpy
from pathlib import Path

import pytest
import torch

from polydec.base.edge import error_sentence
from polydec.lab.train import data, selfplay, texts
from polydec.lab.train.lm import LMSpec, train_lm
from polydec.lab.train.loop import TrainingSchedule
from polydec.lab.train.network import LlamaShape
from polydec.models.formats import text_rows
from polydec.models.formats.text_rows import TextRow
from project_paths import PROJECT_ROOT

torch.set_num_threads(1)
ROOT = PROJECT_ROOT
TALK = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": [{"type": "text", "text": "Hel"}, {"text": "lo"}]},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": None},
]
SAID = ((False, "Hi"), (True, "Hello"))


def put(path: Path, *given: object) -> Path:
    text = "".join(json.dumps(row) + "\n" for row in given)
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(text.encode()))
    else:
        path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("row", "item"),
    [
        ({"text": "It rained."}, TextRow("a", "It rained.")),
        ({"prompt": "Hi", "id": {"x": 1}}, TextRow("a", turns=((False, "Hi"),))),
        ({"prompt": "Hi", "completion": "Hello"}, TextRow("a", turns=SAID)),
        (
            {"question": "Hi", "answer": "Hello", "category": "greeting"},
            TextRow("greeting", turns=SAID),
        ),
        ({"question": "1 + 1?", "answer": 2}, TextRow("a", turns=((False, "1 + 1?"), (True, "2")))),
        ({"messages": TALK}, TextRow("a", turns=SAID)),
        ({"prompt": TALK}, TextRow("a", turns=SAID)),
        ({"turns": ["Hi", "And?"]}, TextRow("a", turns=((False, "Hi"), (False, "And?")))),
        (
            {
                "turns": [
                    {"speaker": "USER", "utterance": "Hi"},
                    {"speaker": "SYSTEM", "utterance": "Hello"},
                ]
            },
            TextRow("a", turns=SAID),
        ),
    ],
)
@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.gz"])
def test_rows_are_read_as_they_are_meant(tmp_path, row, item, name):
    assert list(text_rows.read_text_rows(put(tmp_path / name, row))) == [item]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("\n{not json}\n", "line 2 of 'a.jsonl' is not a JSON object"),
        ('{"text": "a"}\n[1]\n', "line 2 of 'a.jsonl' is not a JSON object: it is a list"),
        ("[" * 100_000, "line 1 of 'a.jsonl' is not a JSON object"),
        ('{"text": 3}', "line 1 of 'a.jsonl': text is 3"),
        ('{"turns": []}', "line 1 of 'a.jsonl': turns is"),
        ('{"turns": [3]}', r"line 1 of 'a.jsonl': turns\[0\]"),
        ('{"messages": [{"content": "a"}]}', r"messages\[0\] must have role and content"),
        (
            '{"messages": [{"role": "user", "content": [{"a": 1}]}]}',
            r"messages\[0\].content: text is missing",
        ),
        ('{"prompt": [1, 2]}', r"prompt\[0\]"),
        ('{"titel": "a"}', "line 1 of 'a.jsonl' has none of the fields prompt, question"),
        ('{"text": "\\ud800"}', "line 1 of 'a.jsonl': text holds half a character"),
        (
            '{"text": "a"}\n' + "x" * 3000,
            "line 2 of 'a.jsonl' cannot be read: it has more than 2,000 bytes",
        ),
        ("", "data is 'a.jsonl': there is no text in it"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path, monkeypatch, text, says):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(text_rows, "LONGEST_LINE", 2000 if "x" * 3000 in text else 1 << 24)
    Path("a.jsonl").write_text(text)
    with pytest.raises(ValueError, match=says) as error:
        list(text_rows.read_text_rows(Path("a.jsonl")))
    assert error_sentence(error.value) == str(error.value)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.jsonl", b'{"text": "a"}\n\xff\xfe\n'),
        ("a.txt", b"\xff\xfe"),
        ("a.jsonl.gz", b"\x1f\x8b\x08\x00" + b"\xff" * 40),
        ("a.txt.gz", gzip.compress(b"words", mtime=0)[:-6]),
        ("a.parquet", b"PAR1"),
        ("a.arrow", b"\xff\xff\xff\xff" * 9),
    ],
)
def test_damaged_files_are_one_sentence(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=r"cannot be read|needs pyarrow") as error:
        list(text_rows.read_text_rows(tmp_path))
    assert name in str(error.value) and error_sentence(error.value) == str(error.value)


def test_what_is_too_much_is_refused(tmp_path, monkeypatch):
    put(tmp_path / "a.jsonl", *[{"text": "x" * 90}] * 9)
    put(tmp_path / "b.jsonl.gz", *[{"text": "y" * 90}] * 9)
    assert len(list(text_rows.read_text_rows(tmp_path))) == 18
    monkeypatch.setattr(text_rows, "LARGEST", 1000)
    with pytest.raises(ValueError, match="has more than 1,000 characters"):
        list(text_rows.read_text_rows(tmp_path))
    with pytest.raises(
        ValueError, match=r"line 10 of .*b.jsonl.gz.* is behind the first 1,000 bytes"
    ):
        list(text_rows.read_text_lines(put(tmp_path / "b.jsonl.gz", *[{"text": "y" * 90}] * 99)))
    monkeypatch.setattr(text_rows, "MOST_FILES", 1)
    with pytest.raises(ValueError, match="at most 1 files"):
        list(text_rows.read_text_rows(tmp_path))


def test_a_folder_is_read_in_order_and_only_what_is_known(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / ".hidden").mkdir()
    put(tmp_path / "deep" / "b.jsonl", {"text": "two"})
    put(tmp_path / ".hidden" / "c.jsonl", {"text": "never"})
    put(tmp_path / ".d.jsonl", {"text": "never"})
    (tmp_path / "cache-12.arrow").write_bytes(b"")
    (tmp_path / "state.json").write_text("{}")
    (tmp_path / "a.txt").write_text("one\n")
    assert [item.text for item in text_rows.read_text_rows(tmp_path)] == ["one", "two"]
    with pytest.raises(ValueError, match=r"its name must end in one of \.txt"):
        text_rows.list_text_files(tmp_path / "state.json")
    with pytest.raises(ValueError, match="no such directory or file"):
        data.training_data(tmp_path / "nowhere")


def test_a_text_file_comes_in_pieces_that_lose_nothing(tmp_path):
    parts = [f"Paragraph {i} goes on and on. " * (i % 40 + 1) for i in range(60)] + ["z" * 30_000]
    (tmp_path / "a.txt").write_text("\n\n".join(parts))
    found = [item.text for item in text_rows.read_text_rows(tmp_path / "a.txt")]
    assert "".join("".join(found).split()) == "".join("".join(parts).split())
    assert max(map(len, found)) <= 4 * text_rows.PIECE and len(found) > 10


def test_prompts_of_running_text_are_its_paragraphs_or_lines():
    assert list(TextRow("a", "one\ntwo\n\n three four\n\n\n\nfive").prompts) == [
        "one two",
        "three four",
        "five",
    ]
    assert list(TextRow("a", "one\ntwo\n").prompts) == ["one", "two"]
    (cut,) = TextRow("a", "word " * 200).prompts
    assert len(cut) <= text_rows.LONGEST_PROMPT and set(cut.split()) == {"word"}
    assert [len(p) for p in TextRow("a", "x" * 999).prompts] == [text_rows.LONGEST_PROMPT]
    assert list(TextRow("a", turns=((True, "Hello"), (False, "Hi"))).prompts) == []


@pytest.mark.parametrize("saved", ["parquet", "stream", "file"])
def test_data_sets_are_read(tmp_path, saved):
    pa = pytest.importorskip("pyarrow", reason="pyarrow is not installed (polydec[datasets])")
    table = pa.factor_table(
        {"id": [1, 2], "question": ["Hi", "Bye"], "answer": ["Hello", "Till then"]}
    )
    where = tmp_path / "train"
    where.mkdir()
    if saved == "parquet":
        pytest.importorskip("pyarrow.parquet").write_table(table, where / "data.parquet")
    else:
        new = pa.ipc.new_stream if saved == "stream" else pa.ipc.new_file
        with new(str(where / "data-00000-of-00001.arrow"), table.schema) as out:
            out.write_table(table)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert [item.exchange for item in text_rows.read_text_rows(tmp_path)] == [
        ("Hi", "Hello"),
        ("Bye", "Till then"),
    ]


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    monkeypatch.setattr(
        text_rows.importlib, "import_module", lambda name: (_ for _ in ()).throw(ImportError)
    )
    with pytest.raises(ValueError, match=r"needs pyarrow: pip install 'polydec\[datasets\]'"):
        list(text_rows.read_text_rows(tmp_path))


def test_the_sample_is_what_its_script_writes_and_small():
    script = runpy.run_path(str(ROOT / "benchmarks" / "sample_text.py"))
    there = {f.name: f.read_text("utf-8") for f in script["WHERE"].iterdir()}
    assert there == script["written"]() and sum(map(len, there.values())) < 200_000


def test_the_sample_is_the_default_where_nothing_else_is(tmp_path, monkeypatch, capsys):
    (tmp_path / "in").mkdir()
    monkeypatch.chdir(tmp_path / "in")
    monkeypatch.delenv("POLYDEC_DATA", raising=False)
    sample = data.training_data()
    assert "name your own by --data" in capsys.readouterr().err
    assert sample == data.training_data("sample") and not data.is_collection_folder(sample)
    with pytest.raises(
        ValueError, match="data is none: give a directory of texts, or set POLYDEC_DATA"
    ):
        data.data_root()
    monkeypatch.setenv("POLYDEC_DATA", str(put(tmp_path / "mine.jsonl", {"text": "a"})))
    assert data.training_data() == tmp_path / "mine.jsonl"


def test_prompts_and_exchanges_of_ones_own_are_split_by_hash(tmp_path):
    given = [
        {"question": f"What is {i}?", "answer": "A number.", "category": "sum"} for i in range(60)
    ]
    told = [
        {"text": "\n\n".join(f"It is {i}." for i in range(n, n + 10))} for n in range(0, 60, 10)
    ]
    path = put(tmp_path / "a.jsonl", *given, *told)
    train, held = (selfplay.draw_prompts(path, 99, unseen=held) for held in (False, True))
    assert {kind for kind, _ in train} == {"sum", "a"} and len(train) + len(held) == 120
    assert not any(data.held_out(t) for _, t in train) and all(data.held_out(t) for _, t in held)
    (few,) = (p for p in [put(tmp_path / "few.jsonl", {"prompt": given[0]["question"]})])
    with pytest.raises(ValueError, match="it has no prompt of at most 2400 characters"):
        selfplay.draw_prompts(few, 9, unseen=not data.held_out(given[0]["question"]))

    class Chat:
        has_chat = True

        def chat_prompt(self, messages):
            return tuple(messages[0]["content"].encode())

        def encode(self, text, special=True):
            return tuple(text.encode())

    read = [
        bytes((*s.prompt_ids, *s.output_ids)).decode()
        for s in texts.read_text_samples(path, Chat(), 10**5)
    ]
    asked = {t for _, t in train}
    running = [line for t in read if "?" not in t for line in t.split("\n\n")]
    assert running and all(line in asked for line in running)
    assert {t.removesuffix("A number.") for t in read if "A number." in t} == {
        t for t in asked if "?" in t
    }


def test_a_language_model_learns_from_ones_own_text(tmp_path, capsys):
    words = [
        f"The {a} {b} sees the {c} and walks on.\n\n"
        for a in "xyz"
        for b in "uvw"
        for c in range(40)
    ]
    (tmp_path / "a.txt").write_text("".join(words * 2))
    put(tmp_path / "b.jsonl", *[{"question": f"{i}?", "answer": "Yes."} for i in range(3)])
    spec = LMSpec(
        str(tmp_path / "out"),
        data=str(tmp_path),
        schedule=TrainingSchedule(2, 1e-2, muon=0.02, save_every=3, log_every=2),
        shape=LlamaShape(300, width=16, layers=2, heads=2, kv_heads=1, inner=32, context=64),
        bf16=False,
    )
    result = train_lm(spec)
    assert set(result["bits_per_byte"]) == {"prose"} and set(result["train_tokens"]) == {"prose"}
    assert "dialogue is left out" in capsys.readouterr().err
    (tmp_path / "a.txt").unlink()
    with pytest.raises(
        ValueError, match=r"data has .* tokens of dialogue to train on|no text to train on"
    ):
        train_lm(LMSpec(str(tmp_path / "other"), data=str(tmp_path), shape=spec.shape, bf16=False))
