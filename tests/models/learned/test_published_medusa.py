"""Medusa's heads as they are published: what they draft is what their arithmetic says."""

import json

import pytest
import torch
from safetensors.torch import save_file
from torch.nn.functional import linear, silu

import polydec
from polydec.core.scheduler import run_coroutines
from polydec.core.types import RowDetail, ScoreRequest
from polydec.models.learned import artefacts
from polydec.models.learned.export import export_for_engines
from polydec.models.sessions import sources

H, VOCAB, K = 192, 4096, 3
OFFICIAL = {
    "medusa_num_heads": K,
    "medusa_num_layers": 1,
    "base_model_name_or_path": "somebody/some-model",
}
VLLM = {
    "architectures": ["MedusaModel"],
    "model_type": "medusa",
    "num_heads": K,
    "num_hidden_layers": 1,
    "hidden_size": H,
    "vocab_size": VOCAB,
    "truncated_vocab_size": VOCAB,
}


def heads(seed=0):
    g = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(H, H, generator=g) / H**0.5,
            torch.randn(H, generator=g),
            torch.randn(VOCAB, H, generator=g) / H**0.5,
        )
        for _ in range(K)
    ]


def write(path, official, some, config=None):
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(
        json.dumps(config or (OFFICIAL if official else VLLM)), "utf-8"
    )
    t = {}
    for k, (weight, bias, own) in enumerate(some):
        names = (
            (f"{k}.0.linear.weight", f"{k}.0.linear.bias", f"{k}.1.weight")
            if official
            else (
                f"blocks.{k}.layers.0.weight",
                f"blocks.{k}.layers.0.bias",
                f"lm_heads.{k}.weight",
            )
        )
        t |= dict(zip(names, (weight, bias, own), strict=True))
    if official:
        torch.save(t, path / "medusa_lm_head.pt")
    else:
        save_file(t, path / "model.safetensors")
    return str(path)


@pytest.mark.parametrize("official", [True, False])
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_drafts_are_those_of_the_published_arithmetic(tmp_path, official, dtype):
    some = heads(3)
    given = polydec.load(
        "zoo:tiny",
        draft=None,
        ngrams=None,
        dtype=dtype,
        trained=[write(tmp_path / "m", official, some)],
    )
    text = given.encode_prompt(
        "Once upon a time there was a fox who wanted to see the sea and the", raw=True
    )
    session = given.checkpoint.lm.open_session(text)
    (known,) = run_coroutines(
        [session.prefill_prompt(ScoreRequest(RowDetail.NOTHING, hidden=True, prompt=True))]
    )
    weight = sources.open_source("zoo:tiny").weights["model.norm.weight"].float()
    state = known.hidden_NH[-1:].float()
    state = state / (state.square().mean() + given.checkpoint.lm.network.config.eps).sqrt() * weight
    want = [int(linear(state + silu(linear(state, w, b)), own).argmax()) for w, b, own in some]
    drafts = []

    def on(event):
        if type(event).__name__ == "ProposedEvent":
            drafts.append(event)

    options = {"nodes": 32, "cost_aware": False}
    polydec.generate(given, text, method="medusa", options=options, max_tokens=8, on=on)
    first, at = drafts[0], 0
    for token in want:  # of each head the likeliest, one below the other
        below = [i for i, p in enumerate(first.parent) if p == at]
        at = below[0]
        assert first.token[at] == token
    session.close()
    plain = polydec.load("zoo:tiny", draft=None, ngrams=None, dtype=dtype)
    for prompt in ("The old river", "A", "Two kings met in a wood"):
        a = polydec.generate(given, prompt, method="medusa", max_tokens=20)
        assert a.token_ids == polydec.generate(plain, prompt, max_tokens=20).token_ids


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_hidden_layers": 2}, "num_hidden_layers"),
        ({"num_heads": 4}, "lack"),
        ({"vocab_size": 5}, "truncated_vocab_size"),
        ({"hidden_size": 7}, "shape"),
        ({"truncated_vocab_size": 100}, "truncated_vocab_size"),
        ({"num_heads": 0}, "num_heads"),
        ({"polydec_trained": {"tokenizer": "", "rates": [[0.5]] * 2}}, "rates of 2 heads"),
        ({"polydec_trained": {"tokenizer": "", "rates": [[0.5]] * 65}}, "at most 64"),
    ],
    ids=str,
)
def test_what_cannot_be_read_is_one_sentence(tmp_path, change, says):
    with pytest.raises(ValueError, match=says) as error:
        artefacts.load_artefact(write(tmp_path / "m", False, heads(), {**VLLM, **change}))
    assert len(str(error.value)) <= 300


def test_damaged_weights_and_copies(tmp_path):
    some = heads()
    some[1][1][0] = float("nan")
    with pytest.raises(ValueError, match="NaN"):
        artefacts.load_artefact(write(tmp_path / "m", True, some))
    with pytest.raises(ValueError, match="NaN"):
        export_for_engines(str(tmp_path / "m"), tmp_path / "out")


@pytest.mark.parametrize("official", [True, False])
def test_written_for_vllm_and_read_again_they_are_the_same(tmp_path, official):
    some = heads(2)
    done = export_for_engines(write(tmp_path / "m", official, some), tmp_path / "out", tokens=3)
    assert (
        done.vllm
        == {"method": "medusa", "model": str(tmp_path / "out"), "num_speculative_tokens": 3}
        and not done.sglang
    )
    config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
    assert (
        {k: config[k] for k in VLLM} == VLLM
        and config["medusa_fc_bias"] is True
        and "polydec_trained" not in config
    )
    more = export_for_engines(str(tmp_path / "m"), tmp_path / "more", tokens=9)
    assert more.vllm["num_speculative_tokens"] == K, "vLLM would make heads that were never trained"
    again = artefacts.load_artefact(str(tmp_path / "out"))
    for (weight, bias, own), (weight2, bias2, _), own2 in zip(
        some, again.heads, again.own_VH, strict=True
    ):
        assert torch.equal(weight, weight2) and torch.equal(bias, bias2) and torch.equal(own, own2)
