"""Every option arrives: what is typed behind `--set`, `--steer-set` and `--cache-set`, or sent over HTTP, is what the method,
the way to steer or the press is built with."""

import functools
import json
from importlib.util import find_spec

import pytest
import typer.main

import micro
from option_values import other_values
from polydec import api, load
from polydec.base.options import as_text
from polydec.cli.main import app
from polydec.methods.registry import kit, press, registry, steer
from polydec.request.ask import plan_request

SERVES = find_spec("fastapi") is not None
PROMPT = "The grey fox"
NEEDS = [
    kit.DraftNeed,
    kit.MaskedDraftNeed,
    kit.LayersNeed,
    kit.StatesNeed,
    kit.SecondPromptNeed,
    kit.OwnPromptNeed,
    kit.BlockCausalNeed,
    kit.ImageNeed,
    kit.ArtefactNeed,
]
ROLES = {
    "method": (registry.recipe_modules, registry.method_options, "options", "--set"),
    "steer": (steer.steering_modules, steer.steering_options, "steer_options", "--steer-set"),
    "cache": (press.press_modules, press.press_options, "cache_options", "--cache-set"),
}
"""By the field that names one: all of them, their options, and how these are spelled over HTTP and on the command line."""

CASES = [
    (role, name)
    for role, (modules, options, _, _) in ROLES.items()
    for name in sorted(modules())
    if options(name)
]


class Built(Exception):
    """Stands for what is built; options: with what."""

    def __init__(self, options):
        self.options = options


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    return load(str(micro.write(tmp_path_factory.mktemp("arrive") / "a")), draft=None)


@pytest.fixture
def asking(lm, monkeypatch):
    """Ask the command line and a server, where no method lacks anything."""
    for need in NEEDS:
        monkeypatch.setattr(need, "check_kit", lambda *_: None)
    monkeypatch.setattr(registry, "check_method_needs", lambda *_: None)
    monkeypatch.setattr(
        registry, "recipe_for_model", lambda name, _: registry.get_recipe_module(name)
    )
    monkeypatch.setattr(api, "load", lambda *_, **__: lm)
    return lm


def fields_of(role, name):
    """The fields that name one, and what it needs beside them."""
    module = ROLES[role][0]()[name]
    second = role == "steer" and kit.SECOND_PROMPT in module.CARD.needs
    return {role: name} | ({"negative_prompt": "by the river"} if second else {})


def built_with(call):
    """The options that something is built with; its sentence where the request is refused."""
    try:
        call()
    except Built as built:
        return built.options
    return "nothing was built"


def typed(role, name, values):
    """What is built of a command line."""
    flag = ROLES[role][3]
    named = [x for k, v in fields_of(role, name).items() for x in ("--" + k.replace("_", "-"), v)]
    options = [x for k, v in values.items() for x in (flag, f"{k}={as_text(v)}")]
    command = typer.main.get_command(app)
    return built_with(
        lambda: command.main(["generate", PROMPT, "--raw", *named, *options], standalone_mode=False)
    )


def sent(lm, role, name, values):
    """What is built of the body of a request to a server."""
    from polydec.serve.body import RequestBody
    from polydec.serve.endpoints import ENDPOINTS
    from polydec.serve.settings import RequestLimits

    body = {"prompt": PROMPT, **fields_of(role, name), ROLES[role][2]: values}
    reader = ENDPOINTS["/v1/completions"].reads()
    body = RequestBody(json.loads(json.dumps(body)), RequestLimits())
    return built_with(lambda: plan_request(lm, reader.read_request(body, lm, "plain", 0).asks[0]))


@pytest.mark.parametrize(("role", "name"), CASES)
def test_options_arrive_where_they_are_named(asking, monkeypatch, role, name):
    modules, options, _, _ = ROLES[role]
    module = modules()[name]
    values = {o.name: next(other_values(o)) for o in options(name)}
    made = module.build

    @functools.wraps(made)
    def build(*_, **given):
        raise Built(given)

    monkeypatch.setattr(module, "build", build)
    assert all(values[o.name] != o.default for o in options(name))
    assert typed(role, name, values) == values
    if SERVES:
        assert sent(asking, role, name, values) == values
