"""What a config says of sizes is compared with the shapes in the file's header before anything is made: a config that asks for
far more than its file holds is refused in one sentence, and takes no memory."""

import json
import struct

import family_checkpoints
import pytest
import test_published
import test_published_eagle1
import test_published_medusa
import test_sourced
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from polydec.base.errors import PolydecError
from polydec.lab.fuzz.fuzz_files import _write_directory, _write_gguf, _write_other
from polydec.lab.testing.toy import toy_law
from polydec.models.formats.byte_word_config import ByteWordConfig
from polydec.models.formats.tensor_files import load_torch_file, open_weights
from polydec.models.formats.word_config import WordConfig
from polydec.models.learned import artefacts
from polydec.models.nets.byte_words import byte_word_tensor_shapes
from polydec.models.nets.words import word_tensor_shapes
from polydec.models.sessions import checkpoint

BIG = (40_000, 1 << 20)
"""Sizes that no file of these tests has: a square matrix of the first is 6.4 GB."""
ROOM = 64 << 20
"""Bytes that one tensor may take beside eight times its file's: tables of positions of a context that is long."""


class Counted(TorchDispatchMode):
    """The largest tensor that any operation makes, in bytes."""

    def __init__(self):
        super().__init__()
        self.largest, self.operations = 0, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        self.operations += 1
        for t in made if isinstance(made, (tuple, list)) else (made,):
            if isinstance(t, torch.Tensor) and t.device.type != "meta":
                self.largest = max(self.largest, t.untyped_storage().nbytes())
        return made


def sizes(config, at=()):
    """Where whole numbers stand in a config."""
    items = config.items() if isinstance(config, dict) else enumerate(config)
    for key, value in items:
        if isinstance(value, (dict, list)):
            yield from sizes(value, (*at, key))
        elif type(value) is int:
            yield *at, key


def changed(config, at, value):
    """The same with one other number."""
    new = json.loads(json.dumps(config))
    inner = new
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return new


def refusals(where, load):
    """Load with each number blown up; how many of these were refused."""
    config, count = json.loads((where / "config.json").read_text()), 0
    files = sum(f.stat().st_size for f in where.iterdir())
    for at in sizes(config):
        for big in BIG:
            (where / "config.json").write_text(json.dumps(changed(config, at, big)))
            with Counted() as counted:
                try:
                    load(str(where))
                except PolydecError as error:
                    assert "\n" not in str(error) and "memory" not in str(error), error
                    count += 1
            assert counted.largest <= 8 * files + ROOM, (at, big)
    return count


KINDS = [
    (kind, i)
    for kind, module in artefacts.MODULES.items()
    for i in range(len(module.examples(toy_law(1, 64).vocab, 4, 4)))
]


@pytest.mark.parametrize("kind, i", KINDS)
def test_a_kind_of_artefact(kind, i, tmp_path):
    module = artefacts.MODULES[kind]
    module.save(tmp_path, module.examples(toy_law(1, 64).vocab, 4, 4)[i], {})
    with Counted() as counted:
        artefacts.load_artefact(str(tmp_path))
    assert counted.operations or kind == "ngrams", "loading it made nothing: nothing was counted"
    refused = refusals(tmp_path, artefacts.load_artefact)
    assert refused >= 2 or kind == "ngrams", "no size was refused"


PUBLISHED = {
    "medusa": lambda at: test_published_medusa.write(at, True, test_published_medusa.heads()),
    "medusa of vLLM": lambda at: test_published_medusa.write(
        at, False, test_published_medusa.heads()
    ),
    "eagle-3": test_published.write,
    **{
        f"eagle-1 {layout}": lambda at, layout=layout: test_published_eagle1.write(at, layout)
        for layout in test_published_eagle1.LAYOUTS
    },
}


@pytest.mark.parametrize("layout", PUBLISHED)
def test_a_published_drafter(layout, tmp_path):
    PUBLISHED[layout](tmp_path / "m")
    artefacts.load_artefact(str(tmp_path / "m"))
    assert refusals(tmp_path / "m", artefacts.load_artefact) >= 2


def _words(at):
    at.mkdir()
    config = WordConfig(60, 0, (1, 2), 32, 1, 32, 2, 3, context=64)
    (at / "config.json").write_text(json.dumps(config.to_json(eos=1)))
    save_file(
        {n: torch.ones(s) * 0.1 for n, s in word_tensor_shapes(config).items()},
        at / "model.safetensors",
    )


def _byte_words(at):
    at.mkdir()
    config = ByteWordConfig(60, 0, (1, 2), 32, 1, 8, 2, 260, 3, context=64)
    (at / "config.json").write_text(json.dumps(config.to_json(eos=1)))
    tensors = {n: torch.ones(s) * 0.1 for n, s in byte_word_tensor_shapes(config).items()}
    save_file(
        {**tensors, "pieces": torch.zeros(60, 3, dtype=torch.int16)}, at / "model.safetensors"
    )


def _masked(at):
    _write_directory(at)
    config = json.loads((at / "config.json").read_text())
    more = {"polydec_mask": 3, "polydec_causal": False, "polydec_block": 4, "rope_scaling": None}
    (at / "config.json").write_text(json.dumps({**config, **more}))


def _family(name):
    return lambda at: family_checkpoints.model_of(name).save_pretrained(at)


MODELS = {
    "word-pooled": _words,
    "byte2word": _byte_words,
    "masked": _masked,
    "llama": lambda at: _write_directory(at) and None,
    **{name: _family(name) for name in ("phi4-mini", "gpt-oss", "qwen3-moe", "gemma3")},
    "gpt2 by transformers": lambda at: _write_other(at) and None,
    **{
        name: lambda at, name=name: (
            at.mkdir(),
            test_sourced.write(at, *test_sourced.FAMILIES[name]),
        )
        for name in ("t5", "bart", "marian")
    },
}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_a_model(model, tmp_path):
    where = tmp_path / "m"
    MODELS[model](where)
    if not (where / "tokenizer.json").is_file():
        test_sourced.words().save(str(where / "tokenizer.json"))

    def load(path):
        return checkpoint.load_bundle(path, dtype="auto" if "transformers" in model else "torch")

    load(str(where))
    assert refusals(where, load) >= 4


def test_a_gguf_file(tmp_path):
    """Its header has sizes of its own: each number of 32 bits that names one is blown up."""
    path = tmp_path / "m.gguf"
    whole, refused = _write_gguf(path), 0
    for key in ("block_count", "embedding_length", "feed_forward_length", "attention.head_count"):
        at = whole.index(f"llama.{key}".encode()) + len(f"llama.{key}") + 4
        for big in BIG:
            path.write_bytes(whole[:at] + struct.pack("<I", big) + whole[at + 4 :])
            with Counted() as counted, pytest.raises(PolydecError) as error:
                checkpoint.load_bundle(str(path))
            assert "memory" not in str(error.value)
            assert counted.largest <= 8 * len(whole) + ROOM
            refused += 1
    assert refused == 8


@pytest.mark.parametrize("official", [True, False])
def test_heads_whose_last_matrix_alone_fits_a_huge_width(official, tmp_path):
    wide, name = 40_000, "1.weight" if official else "lm_heads"
    _, t = tmp_path / "m", test_published_medusa.heads()
    test_published_medusa.write(tmp_path / "m", official, t)
    for f in (tmp_path / "m").iterdir():
        f.unlink()
    small = {"medusa_num_heads": 1} if official else {"num_heads": 1, "model_type": "medusa"}
    (tmp_path / "m" / "config.json").write_text(
        json.dumps({**small, "hidden_size": wide, "vocab_size": 1})
    )
    own, first = ("0.1.weight", "0.0.linear.weight") if official else ("lm_heads.0.weight", "")
    first = first or "blocks.0.layers.0.weight"
    tensors = {own: torch.ones(1, wide), first: torch.ones(2, 2)}
    if official:
        torch.save(tensors, tmp_path / "m" / "medusa_lm_head.pt")
    else:
        save_file(tensors, tmp_path / "m" / "model.safetensors")
    with Counted() as counted, pytest.raises(PolydecError, match=r"40000.*40000"):
        artefacts.load_artefact(str(tmp_path / "m"))
    assert counted.largest <= 1 << 20, name


def test_a_drafter_of_a_vocabulary_that_only_its_config_has(tmp_path):
    many = 1 << 24
    config = {k: v for k, v in test_published.CONFIG.items() if k != "draft_vocab_size"}
    t = {k: x for k, x in test_published.tensors().items() if k not in ("d2t", "t2d")}
    test_published.write(tmp_path / "e", {**config, "vocab_size": many}, t)
    with Counted() as counted, pytest.raises(PolydecError, match=r"lm_head\.weight has shape"):
        artefacts.load_artefact(str(tmp_path / "e"))
    assert counted.largest <= 4 << 20


@pytest.mark.parametrize("stored", [torch.zeros(1), torch.zeros(1, 40_000)])
def test_a_tensor_that_repeats_its_numbers_is_no_matrix(stored, tmp_path):
    torch.save({"a.weight": stored.expand(40_000, 40_000)}, tmp_path / "pytorch_model.bin")
    with pytest.raises(PolydecError, match="more numbers than it stores"):
        load_torch_file(tmp_path / "pytorch_model.bin")
    whole = torch.ones(4, 6)
    torch.save({"a": whole, "b": whole[1:], "c": whole.T}, tmp_path / "pytorch_model.bin")
    assert set(load_torch_file(tmp_path / "pytorch_model.bin")) == {"a", "b", "c"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("claimed", [torch.zeros(1 << 22, 0), torch.zeros(1 << 22).to(torch.int8)])
def test_a_vocabulary_without_a_tokenizer_is_as_large_as_its_file(claimed, tmp_path):
    config = {"model_type": "gpt2", "vocab_size": 1 << 22}
    (tmp_path / "config.json").write_text(json.dumps(config))
    save_file({"wte.weight": claimed}, tmp_path / "model.safetensors")
    assert len(open_weights(tmp_path)) == 1
    with pytest.raises(PolydecError, match="vocab_size"):
        checkpoint.load_bundle(str(tmp_path))


@pytest.mark.parametrize(
    "field, value",
    [
        ("relative_attention_num_buckets", 2),
        ("relative_attention_max_distance", 16),
    ],
)
def test_buckets_of_which_a_part_is_empty(field, value, tmp_path):
    test_sourced.write(tmp_path, *test_sourced.FAMILIES["t5"])
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, field: value}))
    with pytest.raises(PolydecError, match=f"{field} is {value}"):
        checkpoint.load_bundle(str(tmp_path))
