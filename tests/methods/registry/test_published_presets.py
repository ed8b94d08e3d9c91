"""`published=true`: what each paper sets, that it arrives in the options, and what is refused."""

import json

import pytest

from polydec.base.errors import PolydecError, RequestError
from polydec.lab.testing.examples import example_artefacts, target_draft_pairs
from polydec.lab.testing.kits import build
from polydec.methods.registry import registry
from polydec.methods.registry.published_presets import PublishedPreset

NOT_READ = frozenset(
    (
        *("auto", "beam", "best-of-n", "block-diffusion", "calm", "draft-model"),
        *(
            "draft-model-additive",
            "draft-model-confidence",
            "draft-model-coupled",
            "dream",
            "eagle",
        ),
        *("jacobi", "jump-forward", "left-to-right", "mdlm"),
        *("ngram-draft", "plain", "remdm", "reward-guided", "specinfer"),
        *("step-beam", "stochastic-beam-search", "suffix-automaton", "top-k-margin"),
        *("universal-draft", "universal-draft-intersection", "weighted-voting"),
    )
)
"""Recipes whose papers nobody has read against their options yet. Whoever reads one takes it out."""
PRESETS = {
    name: preset
    for name in registry.recipe_modules()
    if (preset := registry.published_preset(name)) is not None
}


def test_every_recipe_with_a_paper_is_read_or_listed():
    assert set(registry.recipe_modules()) >= NOT_READ
    assert not PRESETS.keys() & NOT_READ
    assert all(isinstance(preset, PublishedPreset) for preset in PRESETS.values())
    cards = [registry.get_recipe_module(name).CARD for name in registry.recipe_modules()]
    without = {card.name for card in cards if card.arxiv} - PRESETS.keys() - NOT_READ
    assert not without, (
        f"{sorted(without)}: the card names a paper, so the recipe says what that sets "
        "(PUBLISHED = PublishedPreset(…), beside CARD)"
    )
    kinds = [(bool(p.refused), bool(p.settings), bool(p.unknown)) for p in PRESETS.values()]
    # Some are refused, some change options, some are our defaults, and some do not say all.
    assert {(True, False, False), (False, True, False), (False, False, False)} <= set(kinds)
    assert any(unknown for _, _, unknown in kinds)


@pytest.mark.parametrize("name", PRESETS)
def test_the_preset_arrives_in_the_options(name):
    preset = PRESETS[name]
    known = {option.name: option for option in registry.method_options(name)}
    ours = registry.method_option_values(name)
    assert registry.method_option_values(name, {"published": "false"}) == ours
    if preset.refused:
        assert not preset.settings and not preset.unknown
        with pytest.raises(RequestError) as error:
            registry.method_option_values(name, {"published": True})
        assert preset.refused in str(error.value)
        return
    assert set(preset.settings) <= set(known)
    for option, setting in preset.settings.items():
        assert known[option].convert_value(setting.value) == setting.value
        assert setting.value != ours[option], f"{option} is the default already"
        assert len(setting.why.split()) > 2
    wanted = {**ours, **{option: x.value for option, x in preset.settings.items()}}
    assert registry.method_option_values(name, {"published": "true"}) == wanted


def test_what_is_built_is_the_published_method():
    """Every preset that our examples can build is built, with its values."""
    built = 0
    target, draft = target_draft_pairs(1)[0]
    artefacts = example_artefacts(target.vocab)
    for name, preset in PRESETS.items():
        if preset.refused:
            continue
        try:
            build(name, target, draft, artefacts=artefacts)
        except PolydecError:
            continue
        try:
            _, values = build(name, target, draft, {"published": True}, artefacts=artefacts)
        except PolydecError as error:
            # An example that is smaller than what the paper has says so.
            assert any(option in str(error) for option in preset.settings), (name, str(error))
            continue
        assert all(values[option] == x.value for option, x in preset.settings.items())
        built += 1
    assert built > 15


def test_an_option_beside_the_preset_may_only_agree_or_be_another():
    values = registry.method_option_values("eagle-2", {"published": "true", "depth": 6})
    assert (values["nodes"], values["width"], values["depth"]) == (60, 10, 6)
    assert registry.method_option_values("eagle-2", {"published": True, "nodes": 60})["width"] == 10
    for name, given, sentence in (
        ("eagle-2", {"published": True, "nodes": 8}, "option nodes of method eagle-2 is 8, and published=true sets"),
        ("eagle-2", {"published": "perhaps"}, "published"),
        ("plain", {"published": True}, "published of method plain is true: nobody has read its paper"),
        ("stoc-tot", {"published": True}, "published of method stoc-tot is true: its prompts and widths"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=sentence) as error:
            registry.method_option_values(name, given)
        assert "\n" not in str(error.value)


def test_the_command_says_what_differs_and_why(polydec_command):
    code, out, _ = polydec_command("methods", "--published", "eagle-2")
    assert code == 0 and out.startswith("eagle-2: published=true sets width, nodes")
    assert "one GPU" in out
    found = json.loads(polydec_command("methods", "--published", "eagle-2", "--json")[1])
    assert [(r["option"], r["ours"], r["published"]) for r in found["settings"]] == [
        ("width", 4, 10),
        ("nodes", 16, 60),
        ("cost_aware", True, False),
    ]
    said = {
        name: polydec_command("methods", "--published", name)[1] for name in ("cntp", "stoc-tot")
    }
    assert "the defaults are the published ones" in said["cntp"]
    assert "is refused: its prompts and widths" in said["stoc-tot"]
    assert "nobody has read" in polydec_command("methods", "--published", "plain")[1]
    assert "changes nothing; " in polydec_command("methods", "--published", "entropy-adaptive")[1]
    code, _, err = polydec_command("methods", "--published")
    assert code == 2 and err.count("\n") == 1 and "without a method" in err
