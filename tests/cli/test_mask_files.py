"""polydec generate --method stamp: the masks of an answer in a file, in characters, and in JSON."""

import json
import sys

import pytest
import torch
from PIL import Image as Pictures

from polydec import Image, Sampling, generate, load
from polydec.cli.main import main
from polydec.models.learned.kinds import mask_head
from polydec.models.learned.kinds.mask_head import MaskHead
from vision_checkpoints import file_of, picture, write_llava

QUESTION = "Who followed the boat?"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, an image, and heads for a token that it writes and for one that it does not."""
    torch.set_num_threads(1)
    root = tmp_path_factory.mktemp("masks")
    write_llava(root / "m")
    (root / "a.png").write_bytes(file_of(picture()))
    lm = load(str(root / "m"), draft=None)
    greedy = Sampling(temperature=0.0)
    image = Image(root / "a.png")
    written = generate(lm, QUESTION, source=image, sampling=greedy, max_tokens=4).token_ids
    weight_H = torch.randn(32, generator=torch.Generator().manual_seed(1))
    other = next(x for x in range(2, 330) if x not in written)
    for name, asks in (("head", written[2]), ("other", other)):
        head = MaskHead(lm.checkpoint.lm.vocab, asks, 0, 5, 5, 4, weight_H, 0.0)
        mask_head.save(root / name, head, {})
    return root


@pytest.fixture
def run(folder, monkeypatch, capsys):
    """Runs a request: (status, standard output, standard error)."""

    def ended(*more, head="head"):
        args = [
            "generate",
            QUESTION,
            "--image",
            str(folder / "a.png"),
            "--model",
            str(folder / "m"),
        ]
        args += ["--draft", "none", "--with", str(folder / head), "--method", "stamp"]
        args += ["--temperature", "0", "--max-tokens", "4", *more]
        monkeypatch.setattr(sys, "argv", ["polydec", *args])
        with pytest.raises(SystemExit) as stop:
            main()
        said = capsys.readouterr()
        return stop.value.code or 0, said.out, said.err

    return ended


def test_masks_are_written_to_a_file(tmp_path, run):
    out = tmp_path / "mask.png"
    status, said, _ = run("--out", str(out))
    assert status == 0 and str(out) in said
    with Pictures.open(out) as shown:
        assert shown.size == (20, 20) and shown.mode == "RGB"
    status, said, _ = run("--json", "--out", str(out))
    told = json.loads(said)
    assert status == 0 and told["b64_json"] and told["text"]
    assert told["masks"][0]["token"] == 2 and len(told["masks"][0]["patches"]) == 5


def test_without_a_file_they_are_shown_in_characters_behind_the_text(run):
    status, said, _ = run()
    lines = [
        line for line in said.split("\n") if len(line) == 40 and set(line) <= set(" .:-=+*#%@")
    ]
    assert status == 0 and len(lines) == 20


def test_an_answer_without_a_mask_writes_no_file_and_says_so(tmp_path, run):
    out = tmp_path / "mask.png"
    status, _, said = run("--out", str(out), head="other")
    assert status == 0 and not out.exists()
    assert "the answer asks for no mask of an image, so nothing was written" in said


def test_causal_is_an_option_of_the_command_line(run):
    plain, causal = (json.loads(run("--json", *more)[1]) for more in ((), ("--set", "causal=true")))
    assert plain["token_ids"] == causal["token_ids"]
    assert (plain["method"]["options"], causal["method"]["options"]) == (
        {"causal": False},
        {"causal": True},
    )
