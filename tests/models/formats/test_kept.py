"""What a draft model's load keeps for the next one, and when a draft is loaded at all."""

import numpy as np
import pytest

import polydec
from polydec import api
from polydec.models import native as cpu
from polydec.models.formats.rows8 import dequantise_rows, quantise_rows
from polydec.models.formats.tensor_files import SharedEmbeddingWeights
from polydec.models.native import stored_matrices
from polydec.models.sessions import checkpoint

native = pytest.mark.skipif(not cpu.native_step_availability()[0], reason="no compiled step")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return stored_matrices.quantised_cache_folder()


def made_once(kind="q8_0", source=b"abc", value=3):
    """(the blocks, how often they were made)"""
    made = []

    def make():
        made.append(1)
        return np.full((2, 1, 34), value, np.uint8)

    out = stored_matrices.cached_quantised_blocks(
        kind, (np.frombuffer(source, np.uint8),), (2, 1, 34), make
    )
    return out, len(made)


def test_what_was_made_is_mapped_the_next_time(folder):
    assert made_once()[1] == 1
    again, times = made_once(value=9)
    assert times == 0 and (again == 3).all() and again.shape == (2, 1, 34)
    assert made_once(source=b"abd")[1] == 1 and made_once(kind="q4_1")[1] == 1
    assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 72, b"\0" * 100])
def test_what_is_damaged_is_made_anew(folder, damage):
    made_once()
    (file,) = folder.iterdir()
    file.write_bytes(damage)
    assert made_once()[1] == 1
    assert made_once()[1] == 0


def test_a_folder_that_cannot_be_written_to_is_no_fault(folder):
    folder.parent.mkdir(exist_ok=True)
    folder.write_text("a file stands in its place")
    assert made_once()[1] == 1 and made_once()[1] == 1


def test_the_folder_has_an_upper_bound(folder, monkeypatch):
    monkeypatch.setattr(stored_matrices, "ROOM", 150)  # two of them
    for i in range(5):
        made_once(source=bytes([i]))
        assert len(list(folder.iterdir())) <= 2
    assert made_once(source=bytes([4]))[1] == 0


@native
def test_a_draft_is_quantised_once_and_computes_the_same(folder, monkeypatch):
    def greedy(small):
        return [float(x) for x in small.lm.network.embed_tokens((1, 2)).flatten()[:8]], small.dtype

    first = greedy(checkpoint.load_draft("zoo:tiny"))
    assert list(folder.iterdir())
    monkeypatch.setattr(
        "polydec.models.native.weights.QUANTISED", {"q8_0": None}
    )  # nothing is quantised any more
    assert greedy(checkpoint.load_draft("zoo:tiny")) == first


def test_asking_for_a_name_reads_no_tensor():
    import torch

    class Counted(dict):
        read = 0

        def __getitem__(self, name):
            Counted.read += 1
            return super().__getitem__(name)

    some = Counted(quantise_rows({"a.weight": torch.ones(2, 32)}))
    whole = SharedEmbeddingWeights(
        dequantise_rows(some), {"model.embed_tokens.weight": torch.ones(2, 32)}
    )
    assert "a.weight" in whole and "b.weight" not in whole
    assert "model.embed_tokens.weight" in whole and Counted.read == 0


def test_plain_loads_no_draft():
    lm = polydec.load("zoo:tiny")
    assert lm.draft is not None and not lm.draft.is_loaded
    engine = polydec.Engine(lm)
    for method, loads in (("plain", False), ("draft-model", True)):
        ticket = engine.submit(polydec.Ask("The fox", method=method, max_tokens=3, raw=True))
        assert "".join(piece.text for piece in api.stream_ticket(engine, ticket))
        assert lm.draft.is_loaded is loads, method
    assert set(lm.names.values()) == {"zoo:tiny", "zoo:tiny-draft"}


def test_a_draft_that_the_user_names_is_loaded_at_once():
    lm = polydec.load("zoo:tiny", draft="zoo:tiny-draft")
    assert lm.draft_given and not isinstance(lm.draft, checkpoint.DeferredBundle)


def test_a_draft_that_is_not_loaded_yet_keeps_as_many_texts_when_it_is():
    lm = polydec.load("zoo:tiny")
    lm.keep_texts(2)
    assert lm.checkpoint.lm.keep == 2 and not lm.draft.is_loaded
    assert lm.draft.lm.keep == 2 and lm.draft.is_loaded
    lm.keep_texts(1)
    assert lm.checkpoint.lm.keep == lm.draft.lm.keep == 1
