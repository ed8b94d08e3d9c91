"""Files of our own that somebody changed: each reader takes them or says in one sentence what is wrong. Values of other kinds,
negative, NaN, missing, nested deep, huge."""

import json
import random
import sys

import pytest
import torch
from safetensors.torch import save_file

from polydec.base.edge import error_sentence
from polydec.base.errors import PolydecError
from polydec.cli.main import main
from polydec.lab.fuzz import fuzz_files
from polydec.lab.train.probes import router, text_router
from polydec.lab.train.specs.probe.text_router import TextRouterSpec
from polydec.models.formats import adapters
from polydec.models.nets import linear

pytestmark = pytest.mark.filterwarnings("ignore")
CASES = 120


def refusals(change, use, count=CASES):
    """Use what `change` makes of a seed, so many times; how many of these were refused."""
    wrong = 0
    for seed in range(count):
        change(random.Random(seed))
        try:
            use()
        except PolydecError as error:
            assert str(error) and error_sentence(error) == str(error), error
            wrong += 1
    return wrong


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """By its method what a run wrote, a line an event."""
    at, out = tmp_path_factory.mktemp("traces") / "t.jsonl", {}
    for name, model in (
        ("draft-model", "zoo:tiny"),
        ("diverse-beam-search", "zoo:tiny"),
        ("llada", "zoo:diffusion"),
    ):
        words = ("generate", "The old river", "--model", model, "--max-tokens", "8")
        assert called(*words, "--method", name, "--trace", at) == 0
        out[name] = [json.loads(line) for line in at.read_text().splitlines()]
    return out


def called(*words):
    """The exit code of a command."""
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["polydec", *map(str, words)])
        main()
    return int(stop.value.code or 0)


@pytest.mark.parametrize("method", ["draft-model", "diverse-beam-search", "llada"])
@pytest.mark.parametrize("command", [("show",), ("show", "--json"), ("html", "--out", "p.html")])
def test_a_trace(method, command, traces, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines, codes = traces[method], []
    for seed in range(CASES // 3):
        r = random.Random(seed)
        changed = list(lines)
        at = r.randrange(len(lines))
        changed[at] = fuzz_files.damage_json_value(json.loads(json.dumps(lines[at])), r)
        (tmp_path / "t.jsonl").write_text("".join(json.dumps(x) + "\n" for x in changed))
        codes.append(called("trace", command[0], "t.jsonl", *command[1:]))
        err = capsys.readouterr().err
        assert codes[-1] in (0, 2) and err.count("\n") <= 1, err
    assert {0, 2} <= set(codes)


@pytest.mark.parametrize(
    "kind, field, value",
    [
        ("Passed", "positions", -1),
        ("Passed", "of", -5),
        ("Passed", "queries", 1 << 60),
        ("Passed", "seconds", float("nan")),
        ("Proposed", "position", -1),
        ("Verified", "path", [-3]),
        ("Edited", "tokens", "x"),
        ("Edited", "edit", {"write": [[-1, 2]], "insert": [], "erase": []}),
        ("Opened", "prompt", [-1]),
        ("Opened", "choice", -1),
        ("Edited", "choice", 1 << 40),
    ],
)
def test_numbers_that_no_event_has(kind, field, value, traces, tmp_path, capsys):
    lines = [dict(x) for x in traces["draft-model"]]
    next(x for x in lines if x["event"] == kind)[field] = value
    at = tmp_path / "t.jsonl"
    at.write_text("".join(json.dumps(x) + "\n" for x in lines))
    for command in (("html", at, "--out", tmp_path / "p.html"), ("show", at), ("replay", at)):
        assert called("trace", *command) == 2
        err = capsys.readouterr().err
        assert err.count("\n") == 1 and kind in err and "line " in err
    assert not (tmp_path / "p.html").exists()


def test_lessons_of_a_router_that_reads_the_text(tmp_path):
    spec = TextRouterSpec(out=str(tmp_path), target="zoo:tiny", draft="zoo:tiny-draft", reward="")
    names = ("target", "draft", "reward", "kinds", "each", "temperature", "seed")
    asked = {name: getattr(spec, name) for name in names}
    whole = {"asked": asked, "lessons": [[[1, 2, 3], 0, 0.5, 1.0], [[4], 1, 0.0, 0.25]]}
    file = tmp_path / "lessons.json"

    def use():
        return text_router._kept(spec, None, False)

    file.write_text(json.dumps(whole))
    assert [x.text for x in use()] == [(1, 2, 3), (4,)]
    content = json.dumps(whole).encode()
    assert (
        refusals(lambda r: file.write_bytes(fuzz_files.damage_text(content, r)), use) > CASES // 2
    )


def test_lessons_of_a_router_of_states(tmp_path):
    file = tmp_path / "lessons.safetensors"
    tensors = {"state": torch.ones(3, 4), "value": torch.ones(3), "advantage": torch.ones(3)}
    save_file(tensors, file)
    content = file.read_bytes()
    assert router._read(file).state_NH.shape == (3, 4)
    change = lambda r: file.write_bytes(fuzz_files.damage_safetensors(content, r))  # noqa: E731
    assert refusals(change, lambda: router._read(file)) > CASES // 2


@pytest.mark.parametrize(
    "down, up, says",
    [
        (torch.zeros(0, 8), torch.zeros(8, 0), "a rank is at least 1"),
        (torch.zeros(2, 0), torch.zeros(8, 2), "no side is empty"),
        (torch.zeros(2, 8), torch.zeros(0, 2), "no side is empty"),
        (torch.zeros(2, 8, dtype=torch.int8), torch.zeros(8, 2), "floating-point"),
        (torch.zeros(2, 8), torch.zeros(8, 3), "they are no pair"),
        (torch.zeros(2), torch.zeros(8, 2), "they are no pair"),
    ],
)
def test_an_adapter_without_a_rank(down, up, says, tmp_path):
    config = {"peft_type": "LORA", "base_model_name_or_path": "x"}
    (tmp_path / adapters.CONFIG).write_text(json.dumps(config))
    at = adapters.PREFIX + "model.layers.0.self_attn.q_proj"
    pair = {at + adapters.DOWN: down, at + adapters.UP: up}
    save_file({k: t.contiguous() for k, t in pair.items()}, tmp_path / adapters.WEIGHTS)
    with pytest.raises(PolydecError, match=says):
        adapters.read_lora_adapter(tmp_path)


@pytest.mark.parametrize(
    "text", ['{"a": 3}', '{"a": {"b": 5}}', "[" * 9000, "\ud83d".encode("utf-8", "surrogatepass")]
)
def test_a_choice_of_kernels_that_is_damaged_is_made_anew(text, tmp_path, monkeypatch):
    monkeypatch.setattr(linear, "profile_path", lambda: tmp_path / "kernels.json")
    content = text if isinstance(text, bytes) else text.encode()
    (tmp_path / "kernels.json").write_bytes(content)
    known = linear._read()
    assert all(not models for models in known.values())
