"""What each training command says of a model that it is not for: one sentence, exit code 2, and nothing is written."""

import pytest

from polydec.lab.train.diffusion import (
    DiffusionSpec,
    save_diffusion_student,
    start_diffusion_student,
)

OTHER = "must be an autoregressive model"
CANVAS = "must be a masked-diffusion model"

COMMANDS = [
    *(
        (command, "zoo:diffusion", OTHER)
        for command in (
            "draft",
            "deer",
            "ngrams",
            "heads",
            "eagle",
            "probes",
            "probe --recipe prm",
            "sorted",
        )
    ),
    ("probe --recipe stop-head --draft zoo:tiny-draft", "zoo:diffusion", OTHER),
    ("probe --recipe judge --draft zoo:tiny-draft", "zoo:diffusion", OTHER),
    ("probe --recipe stop-head --draft zoo:diffusion", "zoo:tiny", OTHER),
    ("probe --recipe judge --draft zoo:diffusion", "zoo:tiny", OTHER),
    ("probe --recipe router --draft zoo:diffusion", "zoo:reasoner", OTHER),
    ("probe --recipe router --draft zoo:tiny-draft", "zoo:diffusion", OTHER),
    ("strength --draft zoo:tiny-draft --data PAIRS", "zoo:diffusion", OTHER),
    *((command, "zoo:tiny", CANVAS) for command in ("probe --recipe filter", "dparallel", "joint")),
    *((command, "zoo:block-diffusion", "block-causal") for command in ("dparallel", "joint")),
    *((command, "SHIFTED", "before their gaps") for command in ("dparallel", "joint")),
]


@pytest.fixture
def refused(polydec_command):
    def call(*args):
        code, out, err = polydec_command(*args)
        assert code == 2 and not out and "Traceback" not in err, err
        assert len(err.strip().splitlines()) == 1 and len(err) < 320, err
        return err

    return call


@pytest.fixture(scope="module")
def shifted(tmp_path_factory):
    """A masked-diffusion model whose laws stand one position before their gaps."""
    path, spec = (
        tmp_path_factory.mktemp("shifted") / "model",
        DiffusionSpec("", ("copy",), width=32),
    )
    student = start_diffusion_student(spec)
    kind = {"polydec_causal": False, "polydec_mask": student.mask, "polydec_shifted": True}
    save_diffusion_student(path, student, kind)
    return str(path)


@pytest.mark.parametrize("command, target, says", COMMANDS, ids=lambda x: x)
def test_a_target_of_another_kind(command, target, says, shifted, refused, tmp_path):
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "a", "answer": "b"}\n')
    target = shifted if target == "SHIFTED" else target
    words = command.replace("PAIRS", str(tmp_path / "pairs.jsonl")).split()
    out = () if words[0] == "strength" else ("--out", str(tmp_path / "out"))
    said = refused("train", *words, "--target", target, *out)
    assert says in said and not (tmp_path / "out").exists()


@pytest.mark.parametrize("flag", ["--start", "--teacher"])
def test_a_language_model_begins_with_one_and_learns_from_one(flag, refused, tmp_path):
    # Without a text of its own the first training of a process says which sample it takes.
    text = tmp_path / "text.txt"
    text.write_text("The old river ran. " * 400)
    out = ("--out", str(tmp_path / "out"))
    args = ("train", "lm", *out, "--data", str(text), flag, "zoo:diffusion")
    assert OTHER in refused(*args)
