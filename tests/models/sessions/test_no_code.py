"""Code that a checkpoint brings never runs: not where standard input would agree to it, not through any file."""

from __future__ import annotations

import io
import json
import sys

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import GPT2Config, GPT2LMHeadModel

from polydec.models.sessions import checkpoint

CODE = """
import pathlib
pathlib.Path({mark!r}).write_text("it ran")
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
class Own(GPT2Config):
    model_type = "own-model"
class OwnLM(GPT2LMHeadModel):
    config_class = Own
class OwnTokenizer(PreTrainedTokenizerFast):
    pass
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A checkpoint with a module of its own; standard input says yes to everything."""
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n" * 100))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    path = tmp_path / "m"
    path.mkdir()
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=32)
    )
    config = {**model.config.to_dict(), "model_type": "own-model", "tie_word_embeddings": True}
    save_file(
        {k: t.clone() for k, t in model.state_dict().items() if k != "lm_head.weight"},
        path / "model.safetensors",
        {"format": "pt"},
    )
    config["auto_map"] = {"AutoConfig": "own.Own", "AutoModelForCausalLM": "own.OwnLM"}
    (path / "config.json").write_text(json.dumps(config))
    (path / "own.py").write_text(CODE.format(mark=str(tmp_path / "mark")))
    Tokenizer(models.WordLevel({f"t{i}": i for i in range(20)}, "t0")).save(
        str(path / "tokenizer.json")
    )
    return path


def refused(path, match):
    with pytest.raises(ValueError, match=match) as e:
        checkpoint.load_bundle(str(path))
    assert len(str(e.value)) <= 300 and str(e.value).isprintable()
    assert not (path.parent / "mark").exists(), "code of the checkpoint ran"


def test_a_model_with_code_of_its_own(place):
    refused(
        place,
        r"config\.json names code of its own \(auto_map\): code that a checkpoint brings is never run",
    )


def test_a_tokenizer_with_code_of_its_own(place):
    (place / "tokenizer.json").unlink()
    (place / "vocab.json").write_text(json.dumps({f"t{i}": i for i in range(20)}))
    config = json.loads((place / "config.json").read_text())
    del config["auto_map"]
    (place / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))
    (place / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "OwnTokenizer",
                "auto_map": {"AutoTokenizer": [None, "own.OwnTokenizer"]},
            }
        )
    )
    refused(place, r"tokenizer_config\.json names code of its own \(auto_map\)")


def test_a_known_architecture_runs_with_transformers_own_code(place):
    """An auto_map beside an architecture that transformers has is not needed, and not followed."""
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps({**config, "model_type": "gpt2", "eos_token_id": 1})
    )
    assert checkpoint.load_bundle(str(place)).lm.network.layers == 1
    assert not (place.parent / "mark").exists()


@pytest.mark.parametrize(
    "key", ["_attn_implementation", "attn_implementation", "experts_implementation"]
)
def test_kernels_from_the_hub(place, key):
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(
        json.dumps({**config, "model_type": "gpt2", key: "someone/kernel:main"})
    )
    refused(place, f"{key} = 'someone/kernel:main'")


def test_a_pickle_that_would_run_code(place, tmp_path):
    class Evil:
        def __reduce__(self):
            return print, ("it ran", "y")

    (place / "model.safetensors").unlink()
    torch.save({"a": Evil()}, place / "pytorch_model.bin")
    refused(place, "cannot be read, it is damaged or not in PyTorch's zip format")


def test_a_pickle_that_holds_no_tensors(place):
    (place / "model.safetensors").unlink()
    for content in ([torch.zeros(2)], {"a": 1}, {1: torch.zeros(2)}, torch.zeros(2)):
        torch.save(content, place / "pytorch_model.bin")
        refused(place, "holds something else than tensors by name")
