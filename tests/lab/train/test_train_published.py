"""Drafters that are trained in their published layouts: what is exported has the names that others' loaders look for, and
drafts as what was trained."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file

import polydec
from polydec.lab.train.states import StatesSpec, train_states
from polydec.models.learned import artefacts, published_eagle1, published_medusa
from polydec.models.learned.export import export_for_engines

H, KV, INNER, VOCAB = 192, 64, 576, 4096
LAYER = {
    "layers.0.self_attn.q_proj.weight": (H, H),
    "layers.0.self_attn.k_proj.weight": (KV, H),
    "layers.0.self_attn.v_proj.weight": (KV, H),
    "layers.0.self_attn.o_proj.weight": (H, H),
    "layers.0.mlp.gate_proj.weight": (INNER, H),
    "layers.0.mlp.up_proj.weight": (INNER, H),
    "layers.0.mlp.down_proj.weight": (H, INNER),
    "layers.0.post_attention_layernorm.weight": (H,),
    "fc.weight": (H, 2 * H),
}
MEDUSA = {
    name: shape
    for k in range(3)
    for name, shape in (
        (f"blocks.{k}.layers.0.weight", (H, H)),
        (f"blocks.{k}.layers.0.bias", (H,)),
        (f"lm_heads.{k}.weight", (VOCAB, H)),
    )
}
SHAPES = {
    "eagle-published": {"out": {**LAYER, "fc.bias": (H,)}, "out/vllm": LAYER},
    "medusa-published": {"out": MEDUSA},
}
"""What the loaders of vLLM and SGLang have places for, by the folder of an export."""
SAYS = {
    "eagle-published": {
        "architectures": ["LlamaForCausalLMEagle", "EagleLlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": H,
        "vocab_size": VOCAB,
        "intermediate_size": INNER,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "bias": False,
        "tie_word_embeddings": False,
    },
    "medusa-published": {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": 3,
        "num_hidden_layers": 1,
        "hidden_size": H,
        "vocab_size": VOCAB,
        "truncated_vocab_size": VOCAB,
        "medusa_fc_bias": True,
    },
}


def samples(path, count):
    draw = random.Random(0)
    with open(path, "w") as f:
        for _ in range(count):
            text = [draw.randrange(300, 330) for _ in range(30)]
            f.write(json.dumps({"prompt_ids": text[:8], "output_ids": text[8:]}) + "\n")


@pytest.mark.parametrize(
    "kind, methods", [("eagle-published", ("eagle", "eagle-2")), ("medusa-published", ("medusa",))]
)
def test_what_is_exported_drafts_as_what_was_trained(kind, methods, tmp_path):
    own = tmp_path / "own"
    own.mkdir()
    samples(own / "held.jsonl", 3)
    samples(own / "text.jsonl", 24)
    train_states(StatesSpec(str(own), kind, "zoo:tiny", steps=6, rows=2, length=8, max_tokens=6))
    export_for_engines(str(own), tmp_path / "out")
    trained = load_file(own / "model.safetensors")
    for folder, shapes in SHAPES[kind].items():
        written = load_file(tmp_path / folder / "model.safetensors")
        assert {name: tuple(t.shape) for name, t in written.items()} == shapes
        assert all(written[name].equal(t) for name, t in trained.items()), (
            "other numbers than were trained"
        )
        assert not any(written[name].any() for name in set(written) - set(trained))
        config = json.loads((tmp_path / folder / "config.json").read_text("utf-8"))
        assert {key: config[key] for key in SAYS[kind]} == SAYS[kind]
    plain, sides = polydec.load("zoo:tiny", draft=None, ngrams=None), []
    for where in (own, *(tmp_path / folder for folder in SHAPES[kind])):
        given, said = polydec.load("zoo:tiny", draft=None, ngrams=None, trained=[str(where)]), []

        def on(event, said=said):
            if type(event).__name__ == "ProposedEvent":
                said.append((event.parent, event.token))

        for method in methods:
            for prompt in ("The old river", "Two kings met in a wood"):
                # All of the tree is fed, whatever passes cost here.
                done = polydec.generate(
                    given,
                    prompt,
                    method=method,
                    options={"cost_aware": False},
                    max_tokens=12,
                    on=on,
                )
                assert done.token_ids == polydec.generate(plain, prompt, max_tokens=12).token_ids
        assert any(len(token) > 2 for _, token in said)
        sides.append((said, given.artefacts[0].rates, given.artefacts[0].share))
    assert all(side == sides[0] for side in sides)
    assert sides[0][1] not in (published_eagle1.RATES, published_medusa.RATES) and sides[0][2] > 0


@pytest.mark.parametrize(
    "kind, changed",
    [("eagle-published", "fc.weight"), ("medusa-published", "blocks.0.layers.0.weight")],
)
def test_it_learns(kind, changed, tmp_path):
    """Of a text with a rule the loss falls, and the weights that it is saved with are trained ones."""
    seen = {}
    for steps in (1, 40):
        out = tmp_path / str(steps)
        out.mkdir()
        samples(out / "held.jsonl", 3)
        samples(out / "text.jsonl", 24)
        train_states(
            StatesSpec(str(out), kind, "zoo:tiny", steps=steps, rows=4, length=8, max_tokens=6)
        )
        said = json.loads((out / "training.json").read_text("utf-8"))
        seen[steps] = said["set_aside"][-1][0], load_file(out / "model.safetensors")[changed]
    assert seen[40][0] < seen[1][0] - 0.5 and not torch.equal(seen[1][1], seen[40][1])
    assert artefacts.load_artefact(str(tmp_path / "40"))
