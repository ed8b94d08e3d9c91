"""`polydec train lm --superlinear`: trained, saved, decoded; begun with a model that reads all keys."""

import json

import pytest
import torch
from test_train_lm import TINY, line, root, spec  # noqa: F401

from polydec import generate, load
from polydec.base.errors import RequestError
from polydec.lab.train.lm import train_lm
from polydec.lab.train.lm_student import load_directory
from polydec.lab.train.schedule import TrainingSchedule
from polydec.models.formats.superlinear import SuperlinearRule


def test_a_trained_model_decodes_as_it_was_trained(root, tmp_path):  # noqa: F811
    """Greedy text by steps is that of the network in training, by whole rows."""
    rule = {"near": 1, "behind": 2.5, "ahead": 0.5, "search_scale": 0.5, "span_power": 0.6}
    train_lm(spec(root, tmp_path, superlinear=2, search_power=0.55, **rule))
    config = json.loads((tmp_path / "config.json").read_text())
    wanted = {"spans": 2, "search_power": 0.55, **rule}
    assert (config["model_type"], config["superlinear"]) == ("superlinear", wanted)
    network = load_directory(str(tmp_path))
    assert network.s.superlinear == SuperlinearRule(**wanted)
    lm = load(str(tmp_path), dtype="float32")
    ids = list(lm.encode("the old cat sees a small house and the dog likes"))
    text = list(ids)
    for _ in range(12):
        text.append(int(network(torch.tensor([text]))[0, -1].argmax()))
    for method in ("plain", "prompt-lookup", "beam"):
        options = {"width": 1} if method == "beam" else {}
        answer = generate(lm, ids, method=method, options=options, temperature=0.0, max_tokens=12)
        assert list(answer.token_ids) == text[len(ids) :][: len(answer.token_ids)], method


def test_a_dense_model_gets_its_own_queries_as_a_search(root, tmp_path):  # noqa: F811
    train_lm(spec(root, tmp_path / "dense"))
    begun = {"start": str(tmp_path / "dense"), "shape": None, "superlinear": 3}
    # A rate of nothing: what is saved is what it began with.
    train_lm(spec(root, tmp_path / "tuned", **{**begun, "schedule": TrainingSchedule(1, 1e-12)}))
    dense, tuned = (load_directory(str(tmp_path / n)).state_dict() for n in ("dense", "tuned"))
    for i in range(TINY.layers):
        at = f"model.layers.{i}.self_attn."
        torch.testing.assert_close(tuned[f"{at}search_proj.weight"], dense[f"{at}q_proj.weight"])
    # A model that searches is begun with as it is.
    train_lm(spec(root, tmp_path / "more", start=str(tmp_path / "tuned"), shape=None))
    assert load_directory(str(tmp_path / "more")).s.superlinear == SuperlinearRule()


def test_what_cannot_be_is_refused(root, tmp_path):  # noqa: F811
    with pytest.raises(RequestError, match="leaves gaps"):
        train_lm(spec(root, tmp_path, superlinear=3, behind=1.0))
    with pytest.raises(RequestError, match="leave lora out"):
        spec(root, tmp_path, superlinear=3, lora=4, start="zoo:tiny")
