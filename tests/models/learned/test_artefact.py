"""Artefacts: written whole, read whole, and damage is named."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from polydec.lab.testing.toy import toy_law
from polydec.models.learned import artefact
from polydec.models.learned.artefact import ArtefactKind
from polydec.models.learned.kinds import ngrams, stop_head

THING = ArtefactKind("thing", "thing", "thing.safetensors", "things")
DEEP = "[" * 10_000 + "]" * 10_000


@pytest.fixture
def head(tmp_path):
    stop_head.save(tmp_path / "h", stop_head.new_stop_head(8, 2, False, 0), {"target": "x"})
    return tmp_path / "h"


def refused(load, match):
    with pytest.raises(ValueError, match=match) as e:
        load()
    assert len(str(e.value)) <= 300 and str(e.value).isprintable()


def test_what_is_saved_is_read(tmp_path):
    t = {"a": torch.arange(6.0).view(2, 3), "b": torch.tensor([1, 2], dtype=torch.uint16)}
    artefact.save_artefact(tmp_path, THING, t, {"by": "me"})
    config, again = artefact.read_artefact_files(tmp_path, THING)
    assert (
        config == {"polydec": "thing", "by": "me"}
        and torch.equal(again["a"], t["a"])
        and again["b"].tolist() == [1, 2]
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["config.json", "thing.safetensors"]
    assert (tmp_path / THING.weights).stat().st_mode & 0o444 == 0o444, "others cannot read it"


def test_a_failed_write_leaves_what_was_there(tmp_path):
    artefact.save_artefact(tmp_path, THING, {"a": torch.zeros(1)}, {})
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(OSError):
        artefact.replace_file_atomically(
            tmp_path / "config.json", lambda at: (at.write_text("half"), _full_disk())
        )
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


def _full_disk():
    raise OSError("no space left")


def test_kinds_are_told_apart_and_old_ones_are_read(head):
    config = json.loads((head / "config.json").read_text())
    assert config["polydec"] == "stop-head"
    (head / "config.json").write_text(
        json.dumps({k: v for k, v in config.items() if k != "polydec"})
    )
    assert stop_head.load(head).width == 8
    (head / "config.json").write_text(json.dumps({**config, "polydec": "ngrams"}))
    refused(lambda: stop_head.load(head), "of the kind 'ngrams', not 'stop-head'")


@pytest.mark.parametrize(
    "change",
    [
        {"depth": 10**9},
        {"depth": -1},
        {"depth": True},
        {"depth": "2"},
        {"depth": 1e300},
        {"width": 7},
        {"width": 1 << 40},
        {"width": None},
        {"tied": 1},
        {"tied": "no"},
        {"depth": 3},
        {"width": [8]},
    ],
)
def test_damaged_configs_of_heads(head, change):
    config = json.loads((head / "config.json").read_text())
    (head / "config.json").write_text(json.dumps({**config, **change}))
    refused(lambda: stop_head.load(head), "^head is '.*it is damaged: ")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", DEEP, '{"a": ' + DEEP + "}", "\x00", '{"depth": NaN}']
)
def test_configs_that_are_no_json(head, text):
    (head / "config.json").write_text(text)
    refused(lambda: stop_head.load(head), "^head is '.*it is damaged: ")


@pytest.mark.parametrize(
    "name, bad",
    [
        ("out.weight", torch.zeros(2, 0)),
        ("out.bias", torch.zeros(3)),
        ("blocks.1.bias", torch.full((8,), float("nan"))),
        ("blocks.0.weight", torch.zeros(8)),
    ],
)
def test_damaged_tensors_of_heads(head, name, bad):
    _config, t = artefact.read_artefact_files(head, stop_head.KIND)
    save_file({**t, name: bad}, head / "head.safetensors")
    refused(lambda: stop_head.load(head), f"^head is '.*it is damaged: .*{name}")


@pytest.mark.parametrize(
    "change",
    [
        {"key": torch.zeros(3, 2)},
        {"key": torch.zeros(2, dtype=torch.uint64)},
        {"follower": torch.zeros(3)},
        {"chance": torch.zeros(3, 1, dtype=torch.uint8)},
        {"chance": torch.zeros(3, 2)},
        {"follower": None},
    ],
)
def test_damaged_tables(tmp_path, change):
    t = {
        "key": torch.zeros(3, dtype=torch.uint64),
        "follower": torch.zeros(3, 2, dtype=torch.uint16),
        "chance": torch.zeros(3, 2, dtype=torch.uint8),
    }
    artefact.save_artefact(tmp_path, ngrams.KIND, t, {"order": 2, "vocab_size": 9, "tokenizer": ""})
    assert len(ngrams.load(str(tmp_path)).key_M) == 3
    save_file(
        {k: v for k, v in {**t, **change}.items() if v is not None}, tmp_path / "ngrams.safetensors"
    )
    refused(lambda: ngrams.load(str(tmp_path)), "^ngrams is '.*it is damaged: ")


def root_mean_square(x):
    return x * x.square().mean(-1, keepdim=True).add(1e-5).rsqrt()


WEIGHTS = torch.tensor([0.5, 2.0, -1.0, 3.0])
NORMS = {
    "none": lambda x: x,
    "root mean square": root_mean_square,
    "its weights": lambda x: root_mean_square(x) * WEIGHTS,
    "rounded": lambda x: (root_mean_square(x) * WEIGHTS).bfloat16(),
    "scaled": lambda x: x / x.norm(dim=-1, keepdim=True),
}
OTHERS = {
    "a mean": lambda x: torch.nn.functional.layer_norm(x, (4,)),
    "a mean, weights, a bias": lambda x: torch.nn.functional.layer_norm(x, (4,), WEIGHTS, WEIGHTS),
    "a bias": lambda x: root_mean_square(x) * WEIGHTS + 1.0,
}


def normed_toy(norm):
    law = toy_law(1)
    law.network.normed_states = norm
    return law


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS)
def test_a_norm_by_the_root_mean_square_can_be_undone(norm):
    artefact.require_laws(normed_toy(norm), 4, "things", normed=True)


@pytest.mark.parametrize("norm", OTHERS.values(), ids=OTHERS)
def test_what_undoes_the_norm_is_refused_for_a_target_of_another_norm(norm):
    law = normed_toy(norm)
    refused(
        lambda: artefact.require_laws(law, 4, "things", normed=True),
        "^things need a target .*: its final norm must divide by the root mean square",
    )
    # Who reads normed states, or makes laws of those before the norm, undoes nothing.
    artefact.require_laws(law, 4, "things", head=False, normed=True)
    artefact.require_laws(law, 4, "things")
