"""`published=true`: what each paper sets, that it arrives in the options, and what is refused."""

import json

import pytest

from polydec.base.errors import PolydecError, RequestError
from polydec.lab.testing.examples import example_artefacts, target_draft_pairs
from polydec.lab.testing.kits import build
from polydec.methods.registry import press, registry, steer
from polydec.methods.registry.published_presets import PublishedPreset

CATALOGUES = (registry.RECIPES, steer.STEERINGS, press.PRESSES)
PRESETS = {
    (catalogue, name): preset
    for catalogue in CATALOGUES
    for name in catalogue.all_modules()
    if (preset := catalogue.published_preset(name)) is not None
}


def test_everything_with_a_paper_is_read():
    assert all(isinstance(preset, PublishedPreset) for preset in PRESETS.values())
    for catalogue in CATALOGUES:
        without = [
            name
            for name, module in catalogue.all_modules().items()
            if module.CARD.arxiv and (catalogue, name) not in PRESETS
        ]
        assert not without, (
            f"{sorted(without)}: the card names a paper, so the file says what that sets "
            "(PUBLISHED = PublishedPreset(…), beside CARD)"
        )
    kinds = [(bool(p.refused), bool(p.settings), bool(p.unknown)) for p in PRESETS.values()]
    # Some are refused, some change options, some are our defaults, and some do not say all.
    assert {(True, False, False), (False, True, False), (False, False, False)} <= set(kinds)
    assert any(unknown for _, _, unknown in kinds)


@pytest.mark.parametrize(
    ("catalogue", "name"), PRESETS, ids=lambda one: one if isinstance(one, str) else one.kind
)
def test_the_preset_arrives_in_the_options(catalogue, name):
    preset = PRESETS[catalogue, name]
    known = {option.name: option for option in catalogue.module_options(name)}
    ours = catalogue.complete_options(name)
    assert catalogue.complete_options(name, {"published": "false"}) == ours
    if preset.refused:
        assert not preset.settings and not preset.unknown
        with pytest.raises(RequestError) as error:
            catalogue.complete_options(name, {"published": True})
        assert str(error.value) == f"published of {catalogue.kind} {name} is true: {preset.refused}"
        return
    assert set(preset.settings) <= set(known)
    for option, setting in preset.settings.items():
        assert known[option].convert_value(setting.value) == setting.value
        assert setting.value != ours[option], f"{option} is the default already"
        assert len(setting.why.split()) > 2
    wanted = {**ours, **{option: x.value for option, x in preset.settings.items()}}
    assert catalogue.complete_options(name, {"published": "true"}) == wanted


def test_ways_to_steer_and_presses_take_it_where_they_are_asked_for():
    assert steer.steering_option_values("cfg", {"published": True})["scale"] == 2.0
    values = press.build("quantised", {"published": True})[1]
    assert (values["bits"], values["group"], values["block"]) == (2, 32, 128)
    assert press.build("gear", {"published": True, "prompt": 64})[1]["decoded_rank"] == 2


def test_what_is_built_is_the_published_method():
    """Every preset that our examples can build is built, with its values."""
    built = 0
    target, draft = target_draft_pairs(1)[0]
    artefacts = example_artefacts(target.vocab)
    for (catalogue, name), preset in PRESETS.items():
        if preset.refused or catalogue is not registry.RECIPES:
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


def test_an_option_beside_the_preset_may_only_agree_or_be_another(monkeypatch):
    values = registry.method_option_values("eagle-2", {"published": "true", "depth": 6})
    assert (values["nodes"], values["width"], values["depth"]) == (60, 10, 6)
    assert registry.method_option_values("eagle-2", {"published": True, "nodes": 60})["width"] == 10
    # Nothing forces a package's own method to have a paper.
    read = registry.RECIPES.all_modules()["plain"]
    monkeypatch.delattr(read, "PUBLISHED")
    for name, given, sentence in (
        ("eagle-2", {"published": True, "nodes": 8}, "option nodes of method eagle-2 is 8, and published=true sets"),
        ("eagle-2", {"published": "perhaps"}, "published"),
        ("plain", {"published": True}, "published of method plain is true: nobody has read its paper"),
        ("stoc-tot", {"published": True}, "published of method stoc-tot is true: its prompts and widths"),
    ):  # fmt: skip
        with pytest.raises(RequestError, match=sentence) as error:
            registry.method_option_values(name, given)
        assert "\n" not in str(error.value)


def test_the_command_says_what_differs_and_why(polydec_command, monkeypatch):
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
    monkeypatch.delattr(registry.RECIPES.all_modules()["plain"], "PUBLISHED")
    assert "nobody has read" in polydec_command("methods", "--published", "plain")[1]
    steered = polydec_command("methods", "--published", "steering by one model", "--json")
    assert steered[0] == 2 and "method" in steered[2]
    found = json.loads(
        polydec_command("methods", "--published", "contrastive_decoding", "--json")[1]
    )
    assert found["settings"][0]["option"] == "original"
    assert "2 bits; ours has 8" in polydec_command("methods", "--published", "kivi")[1]
    assert "changes nothing; " in polydec_command("methods", "--published", "entropy-adaptive")[1]
    code, _, err = polydec_command("methods", "--published")
    assert code == 2 and err.count("\n") == 1 and "without a method" in err
