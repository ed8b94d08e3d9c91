"""Whatever is trained for a model and loads as an artefact: damaged, of another kind, or made for another model, it is refused
in one sentence before a pass runs. The kinds are those that are registered."""

import json
import random
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import micro
from polydec import generate, load
from polydec.base.edge import error_sentence
from polydec.cli.main import main
from polydec.core.scheduler import Scheduler
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.network import from_weights
from polydec.lab.train.students import TeacherContext
from polydec.methods.registry import registry
from polydec.methods.registry.kit import ArtefactNeed
from polydec.models.learned import artefacts
from polydec.models.learned.artefact import CONFIG
from polydec.models.learned.artefacts import MODULES
from polydec.models.sessions import checkpoint, sources

READ_NO_STATES = {
    *("ngrams", "ngram-counts", "draft-tree"),
    *("filter", "reward", "value", "block-drafter", "text-router", "plan-extractor"),
    *("word-reader", "upsampler"),
}
OF_MASKED = {"joint", "length-head"}
"""These serve masked-diffusion models alone."""
OTHERS_LAYOUT = [
    name
    for name, kind in KINDS.items()
    if sys.modules[kind.save.__module__] not in MODULES.values()
]
"""Kinds that are trained and written as somebody else's programs read them."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("m") / "a"))


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """The same vocabulary, other states."""
    return str(micro.write(tmp_path_factory.mktemp("m") / "wide", hidden=48))


@pytest.fixture(scope="module")
def written(model, tmp_path_factory):
    """A directory of each kind, as its `save` writes it."""
    root, vocab = (
        tmp_path_factory.mktemp("kinds"),
        checkpoint.load_bundle(model, dtype="float32").lm.vocab,
    )
    for name, module in MODULES.items():
        module.save(root / name, module.examples(vocab, 32, 32)[0], {})
    source = sources.open_source(model)
    shown = TeacherContext(
        from_weights(source.config, source.weights), vocab, torch.arange(3, 300), 3, 1
    )
    for name in OTHERS_LAYOUT:
        KINDS[name].save(root / name, KINDS[name].start(shown).build_artefact([[0.5, 0.2]] * 3), {})
    return root


every = pytest.mark.parametrize("kind", [*MODULES, *OTHERS_LAYOUT])


@pytest.fixture
def no_pass(monkeypatch):
    def runs(*_):
        raise AssertionError("a pass ran")

    monkeypatch.setattr(Scheduler, "step", runs)


def refused(load, *names):
    with pytest.raises(ValueError) as e:
        load()
    said = str(e.value)
    assert said == error_sentence(said) and any(name in said for name in names), said
    return said


def weights_of(path):
    return next(p for p in path.iterdir() if p.name != CONFIG)


@every
def test_damaged_files(kind, written, tmp_path):
    shutil.copytree(written / kind, tmp_path / "x")
    assert artefacts.load_artefact(str(tmp_path / "x")) is not None
    weights, config = weights_of(tmp_path / "x"), tmp_path / "x" / CONFIG
    whole, size = (
        weights.read_bytes(),
        int.from_bytes(weights_of(written / kind).read_bytes()[:8], "little"),
    )
    for cut in (0, 4, 8, 8 + size // 2, 8 + size, len(whole) // 2, len(whole) - 1):
        weights.write_bytes(whole[:cut])
        assert "damaged" in refused(
            lambda: artefacts.load_artefact(str(tmp_path / "x")), weights.name, str(tmp_path / "x")
        )
    for at in (
        7,
        8,
        9,
        8 + len(whole[8 : 8 + size].rstrip()) - 1,
    ):  # of the header's length, its first bytes, its last
        weights.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        assert "damaged" in refused(
            lambda: artefacts.load_artefact(str(tmp_path / "x")), weights.name, str(tmp_path / "x")
        )
    weights.write_bytes(whole)
    text = config.read_text()
    for bad in ("", text[: len(text) // 2], "[]", "null", "\x00"):
        config.write_text(bad)
        refused(lambda: artefacts.load_artefact(str(tmp_path / "x")), CONFIG)
    config.unlink()
    assert CONFIG in refused(
        lambda: artefacts.load_artefact(str(tmp_path / "x")), str(tmp_path / "x")
    )


@every
def test_a_tensor_without_dimensions(kind, written, tmp_path):
    """A number in the place of each tensor: it is refused in a sentence, or it was one that nobody reads."""
    shutil.copytree(written / kind, tmp_path / "x")
    weights = weights_of(tmp_path / "x")
    if weights.suffix != ".safetensors":
        pytest.skip("its tensors lie in another kind of file")
    whole = load_file(weights)
    for name, tensor in whole.items():
        if tensor.dim():
            save_file({**whole, name: torch.zeros((), dtype=tensor.dtype)}, weights)
            try:
                artefacts.load_artefact(str(tmp_path / "x"))
            except ValueError as e:
                assert str(e) == error_sentence(e) and (
                    name in str(e) or str(tmp_path / "x") in str(e)
                ), e


@every
def test_a_byte_of_the_header(kind, written, tmp_path):
    """It is refused in a sentence, or it was one that says nothing."""
    shutil.copytree(written / kind, tmp_path / "x")
    weights, rng = weights_of(tmp_path / "x"), random.Random(kind)
    whole = weights.read_bytes()
    for at in (rng.randrange(8, 8 + int.from_bytes(whole[:8], "little")) for _ in range(12)):
        weights.write_bytes(
            whole[:at] + bytes([whole[at] ^ 1 << rng.randrange(8)]) + whole[at + 1 :]
        )
        try:
            artefacts.load_artefact(str(tmp_path / "x"))
        except ValueError as e:
            assert str(e) == error_sentence(e) and any(
                name in str(e) for name in (weights.name, str(tmp_path / "x"))
            ), e


@every
def test_files_of_another_kind(kind, written, tmp_path):
    """Its weights, under the right name; its config."""
    for other in written.iterdir():
        if other.name != kind:
            for mine, foreign in ((kind, other.name), (other.name, kind)):
                at = tmp_path / f"{mine}, {foreign}"
                shutil.copytree(written / mine, at)
                shutil.copy(weights_of(written / foreign), weights_of(at))
                refused(
                    lambda at=at: artefacts.load_artefact(str(at)), weights_of(at).name, str(at)
                )


@every
def test_states_of_another_width(kind, written, wide, tmp_path, no_pass):
    name = micro.masked(tmp_path / "masked", wide) if kind in OF_MASKED else wide
    give = {
        "draft": None if kind in OF_MASKED else wide,
        "trained": [str(written / kind)],
        "dtype": "float32",
    }
    if kind in READ_NO_STATES:
        assert load(name, **give).artefacts
    else:
        said = refused(lambda: load(name, **give), "width", "hidden_size")
        assert "32" in said and "48" in said


@pytest.fixture(scope="module")
def adapted(model, tmp_path_factory):
    """A model that transformers runs, of the same vocabulary and width: nothing of it runs alone."""
    from transformers import GPT2Config, GPT2LMHeadModel

    path = shutil.copytree(model, tmp_path_factory.mktemp("m") / "gpt2")
    size = json.loads((path / CONFIG).read_text())["vocab_size"]
    GPT2LMHeadModel(
        GPT2Config(
            vocab_size=size,
            n_embd=32,
            n_layer=2,
            n_head=4,
            n_positions=256,
            bos_token_id=0,
            eos_token_id=1,
        )
    ).save_pretrained(path)
    return str(path)


READ_STATES_ALONE = {
    "judge",
    "router",
    "prm",
    "stop-head",
    "thought",
    "chunk-encoder",
    "arc-encoder",
    "hypernetwork",
    "outcome-head",
    "window-summary",
    "answer-embedder",
    "path-prefixes",
    "query-decoder",
}
"""These ask nothing of a model but its states."""


@every
def test_a_target_whose_parts_do_not_run_alone(kind, written, adapted, no_pass):
    """What needs no more than its states, or none, is taken: `specdec-plus-plus` and others decode it."""
    give = {"draft": adapted, "trained": [str(written / kind)]}
    if kind in READ_NO_STATES | READ_STATES_ALONE:
        assert load(adapted, **give).artefacts
    else:
        refused(
            lambda: load(adapted, **give),
            "run alone",
            "shows none of its layers",
            "keys cannot be read",
            "this is an autoregressive one",
        )


TAKEN = [
    module.KIND.name
    for module in MODULES.values()
    if module.KIND.name in READ_STATES_ALONE
    and module.KIND.name
    not in (
        "thought",
        "chunk-encoder",
        "arc-encoder",
        "hypernetwork",
        "window-summary",
        "answer-embedder",
        "path-prefixes",
        "query-decoder",
    )  # no methods read these, or behind an image alone: tests/laws/targets/test_thinking.py, tests/request/test_watching.py
]


@pytest.mark.parametrize("kind", TAKEN)
def test_what_it_takes_decodes(kind, written, adapted):
    lm = load(adapted, draft=adapted, trained=[str(written / kind)])
    needing = [
        name
        for name, module in registry.recipe_modules().items()
        if module.CARD.family == "ar"
        and any(
            isinstance(need, ArtefactNeed) and isinstance(lm.artefacts[0], need.wanted)
            for need in module.CARD.needs
        )
    ]
    assert needing
    for name in needing[:2]:
        assert generate(lm, "The fox", method=name, max_tokens=3, raw=True).token_ids


@every
def test_the_command_line(kind, written, model, wide, tmp_path, no_pass, monkeypatch, capfd):
    """Exit code 2 and the sentence, nothing else: for damage, another kind's weights, another width."""
    shutil.copytree(written / kind, tmp_path / "cut")
    weights = weights_of(tmp_path / "cut")
    weights.write_bytes(weights.read_bytes()[:-1])
    other = next(name for name in MODULES if name not in (kind, "heads"))
    shutil.copytree(written / kind, tmp_path / "foreign")
    shutil.copy(weights_of(written / other), weights_of(tmp_path / "foreign"))
    for name, trained, said in (
        (model, tmp_path / "cut", weights.name),
        (model, tmp_path / "foreign", "/foreign'"),
        *([] if kind in READ_NO_STATES | OF_MASKED else [(wide, written / kind, "48")]),
    ):
        monkeypatch.setattr(
            sys,
            "argv",
            [
                "polydec",
                "generate",
                "The fox",
                "--model",
                name,
                "--draft",
                name,
                "--dtype",
                "float32",
                "--with",
                str(trained),
            ],
        )
        with pytest.raises(SystemExit) as stop:
            main()
        err = capfd.readouterr().err
        line = err.strip().split("\n")[-1]
        assert (
            stop.value.code == 2
            and line.startswith("polydec: ")
            and said in line
            and "Traceback" not in err
        ), err
