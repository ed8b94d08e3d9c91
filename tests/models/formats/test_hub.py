"""Names of models on the Hub: which repository and which files each means, and how one that cannot be had is refused."""

from __future__ import annotations

import warnings

import httpx
import huggingface_hub
import pytest
from gguf import GGMLQuantizationType as Type
from hub_mirror import hub_that_lists, offline_mirror
from huggingface_hub import errors
from test_gguf import model_of, write_model

import micro
from polydec.base.errors import FileError
from polydec.models.formats.hub_names import (
    HubName,
    choose_gguf_model,
    group_gguf_files,
    parse_hub_name,
)
from polydec.models.sessions import checkpoint, sources

SEVERAL = ("README.md", "m-Q2_K.gguf", "m-Q4_K_M.gguf", "m-q8_0.gguf", "mmproj-m-f16.gguf")


@pytest.fixture
def mirror(tmp_path, monkeypatch):
    return offline_mirror(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "name, want",
    [
        ("gpt2", HubName("gpt2")),
        ("a/b", HubName("a/b")),
        ("a/b:q4_k_m", HubName("a/b", "q4_k_m")),
        ("a/b:latest", HubName("a/b")),
        ("a/b:m-Q8_0.gguf", HubName("a/b", "m-Q8_0.gguf")),
        ("hf.co/a/b:Q8_0", HubName("a/b", "Q8_0")),
        ("huggingface.co/a/b", HubName("a/b")),
        ("https://huggingface.co/a/b", HubName("a/b")),
        ("https://huggingface.co/a/b/:Q8_0", None),
        ("HTTPS://HF.co/a/b/", HubName("a/b")),
        ("hf://a/b:F16", HubName("a/b", "F16")),
        ("https://huggingface.co/a/b/tree/v2", HubName("a/b", "", "v2")),
        (
            "https://huggingface.co/a/b/blob/main/in/m-Q8_0.gguf?download=true",
            HubName("a/b", "in/m-Q8_0.gguf", "main"),
        ),
    ],
)
def test_names_as_people_write_them(name, want):
    if want is None:
        with pytest.raises(FileError, match="an address of the Hub is"):
            parse_hub_name(name)
    else:
        assert parse_hub_name(name) == want


@pytest.mark.parametrize(
    "name, why",
    [
        ("a/b:", "behind the colon stands a quantisation, as a/b:Q4_K_M"),
        ("a/b/c", "no such file or directory"),
        ("./a", "no such file or directory"),
        ("a/b/m-Q4_0.gguf", "of a repository on the Hub it would be a/b:m-Q4_0.gguf"),
        ("a b/c", "a Hub id is OWNER/REPO"),
        ("https://example.org/a/b", "fetched from https://huggingface.co alone"),
        ("https://huggingface.co/a/b/discussions", "an address of the Hub is"),
    ],
)
def test_what_is_no_name_is_refused_before_anything_is_asked(name, why):
    with pytest.raises(FileError, match=f"^model '{name}' is not there: .*{why}"):
        sources.find_checkpoint(name)


def test_files_of_one_model_are_one():
    files = (
        *("x/UD-Q4_K_XL/m-UD-Q4_K_XL-00002-of-00002.gguf",),
        *("x/UD-Q4_K_XL/m-UD-Q4_K_XL-00001-of-00002.gguf",),
        *("BF16/m-00001-of-00001.gguf", "m.IQ4_NL.GGUF", "qwen2.5-q5_0.gguf", "plain.gguf"),
        *("imatrix_unsloth.gguf", "config.json"),
    )
    found = {model.colon_name: model.files for model in group_gguf_files(files)}
    assert found == {
        "BF16": ("BF16/m-00001-of-00001.gguf",),
        "IQ4_NL": ("m.IQ4_NL.GGUF",),
        "plain.gguf": ("plain.gguf",),
        "Q5_0": ("qwen2.5-q5_0.gguf",),
        "UD-Q4_K_XL": (files[1], files[0]),
    }
    assert choose_gguf_model(HubName("a/b", "q4_k_xl"), files)[0].files == (files[1], files[0])


@pytest.mark.parametrize(
    "choice, want",
    [
        ("q8_0", "m-q8_0.gguf"),
        ("Q2_K", "m-Q2_K.gguf"),
        ("M-Q2_K", "m-Q2_K.gguf"),
        ("m-q8_0.GGUF", "m-q8_0.gguf"),
    ],
)
def test_a_quantisation_is_chosen_whatever_its_case(choice, want):
    model, note = choose_gguf_model(HubName("a/b", choice), SEVERAL)
    assert (model.files, note) == ((want,), "")


def test_the_usual_quantisation_is_taken_and_said():
    model, note = choose_gguf_model(HubName("a/b"), SEVERAL)
    assert model.files == ("m-Q4_K_M.gguf",)
    assert note == "a/b names no quantisation: Q4_K_M is taken (a/b:NAME takes Q2_K, Q8_0)"


@pytest.mark.parametrize(
    "name, files, says",
    [
        (HubName("a/b", "Q4_K_S"), SEVERAL, "'a/b:Q4_K_S' is not there: the nearest is Q4_K_M, "),
        (HubName("a/b", "zzz"), SEVERAL, "not there: the repository has Q2_K, Q4_K_M, Q8_0$"),
        (HubName("a/b", "Q8_0"), ("x.safetensors",), "the repository has no GGUF files"),
        (
            HubName("a/b"),
            ("a-F16.gguf", "a-Q8_0.gguf"),
            "none is Q4_K_M: name one, such as a/b:Q8_0",
        ),
        # by bits, not by letters: Q2_K looks more like what was asked for
        (HubName("a/b", "Q5_K_M"), ("m-Q2_K.gguf", "m-Q4_1.gguf"), "the nearest is Q4_1, "),
        (HubName("a/b", "f16"), ("m-BF16.gguf", "m-Q8_0.gguf"), "the nearest is BF16, "),
        (HubName("a/b"), ("a-Q4_K_M.gguf", "b-Q4_K_M.gguf"), "name one, such as a/b:a-Q4_K_M.gguf"),
        (HubName("a/b"), ("a-00001-of-00003.gguf",), "1 of the 3 parts of a-00001-of-00003.gguf"),
    ],
)
def test_a_choice_that_cannot_be_made_lists_what_there_is(name, files, says):
    with pytest.raises(FileError, match=says) as refusal:
        choose_gguf_model(name, files)
    assert str(refusal.value).startswith("model 'a/b")


def test_many_files_are_not_all_listed():
    files = [f"m-Q{n % 9}_{n}.gguf" for n in range(40)]
    with pytest.raises(FileError, match=r"and 28 more$"):
        choose_gguf_model(HubName("a/b"), files)


def test_a_repository_of_gguf_files_is_loaded_from_the_cache(mirror, tmp_path):
    content = write_model(tmp_path / "m.gguf", model_of("llama"), Type.Q8_0).read_bytes()
    at = mirror.put("some/model-GGUF", {"m-Q8_0.gguf": content, "config.json": b"{}"})
    for name in ("some/model-GGUF", "some/model-GGUF:q8_0", "hf.co/some/model-GGUF:Q8_0"):
        assert sources.find_checkpoint(name) == at / "m-Q8_0.gguf"
    loaded = checkpoint.load_bundle("https://huggingface.co/some/model-GGUF", dtype="float32")
    assert loaded.lm.vocab.size == 300


def test_all_parts_of_a_file_are_fetched(mirror, monkeypatch):
    parts = [f"Q4_K_M/m-0000{n}-of-00003.gguf" for n in (1, 2, 3)]
    files = {name: name.encode() for name in (*parts, "m-Q8_0.gguf", "weights.pkl", "README.md")}
    fetched = hub_that_lists(monkeypatch, mirror, files)
    with pytest.warns(UserWarning, match="Q4_K_M is taken"):
        path = sources.find_checkpoint("some/model")
    assert fetched == parts and path.name == "m-00001-of-00003.gguf"
    assert {p.name for p in path.parent.iterdir()} == {p.rpartition("/")[2] for p in parts}


def test_weights_in_safetensors_go_before_gguf_files_unless_one_is_named(
    mirror, monkeypatch, tmp_path
):
    folder = micro.write(tmp_path / "micro")
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    fetched = hub_that_lists(
        monkeypatch, mirror, {**files, "m-Q8_0.gguf": b"GGUF", "training.pickle": b"x"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (sources.find_checkpoint("some/model") / "config.json").is_file()
        assert "m-Q8_0.gguf" not in fetched and "training.pickle" not in fetched
        assert sources.find_checkpoint("some/model:Q8_0").read_bytes() == b"GGUF"


def test_a_checkpoint_in_the_cache_needs_no_hub(mirror, tmp_path):
    folder = micro.write(tmp_path / "micro")
    at = mirror.put("some/model", {path.name: path.read_bytes() for path in folder.iterdir()})
    assert sources.find_checkpoint("some/model") == at
    assert sources.open_source("hf.co/some/model").path == str(at)


def hub_error(kind, status):
    return kind("no", response=httpx.Response(status, request=httpx.Request("GET", "https://x")))


@pytest.mark.parametrize(
    "error, says",
    [
        (lambda: hub_error(errors.GatedRepoError, 403), "its owner asks you to accept terms"),
        (
            lambda: hub_error(errors.RepositoryNotFoundError, 404),
            "has no such repository, or it is",
        ),
        (lambda: hub_error(errors.RevisionNotFoundError, 404), "has no revision None"),
        (lambda: errors.OfflineModeIsEnabled("x"), "not in the cache, and HF_HUB_OFFLINE keeps us"),
        (lambda: httpx.ConnectError("no route\nat all"), r"cannot be reached \(no route\)"),
        (lambda: OSError("a strange\nfault"), r"did not give it \(a strange\)"),
        (lambda: KeyError("pointerSize"), "leaves out the field 'pointerSize'"),
    ],
)
def test_the_reason_of_a_refusal_stands_first(mirror, monkeypatch, error, says):
    def fail(*args, **options):
        raise error()

    monkeypatch.setattr(huggingface_hub.HfApi, "model_info", fail)
    with pytest.raises(
        FileError, match=f"^model 'nobody/zzz' is not there: [^;]*{says}"
    ) as refusal:
        sources.find_checkpoint("nobody/zzz")
    assert "zoo:" not in str(refusal.value) and not str(refusal.value).endswith("…")
    with pytest.raises(FileError, match=rf"{says}.*; an embedded model is zoo:smollm2$"):
        sources.find_checkpoint("HuggingFaceTB/SmolLM2-135M-Instruct")


def test_an_empty_cache_says_that_nobody_may_be_asked(mirror):
    with pytest.raises(FileError, match="'some/model:Q8_0' is not there: it is not in the cache"):
        sources.find_checkpoint("some/model:Q8_0")


def test_a_folder_of_gguf_files_says_which_to_give(tmp_path):
    (tmp_path / "m-Q8_0.gguf").write_bytes(b"GGUF")
    with pytest.raises(FileError, match=r"without a config.json: .*such as .*m-Q8_0.gguf"):
        sources.find_checkpoint(str(tmp_path))
