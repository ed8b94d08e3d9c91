"""Methods of every family, as docs/adding-a-method.md writes them, are files beside the others and keep all contracts."""

import ast
import json
from pathlib import Path

import pytest
import test_structure as house
import torch

import guide
import plain_text
import plain_words
import polydec
from polydec.base.options import callable_options
from polydec.core.decoder import run_decoder
from polydec.core.request import Request
from polydec.core.scheduler import run_coroutines
from polydec.lab.testing import check_decoder, check_drafter, toy_law
from polydec.lab.testing.check_contrast import check_contrast
from polydec.lab.testing.check_decoder import check_batch, check_choices
from polydec.lab.testing.check_inserting import check_inserting
from polydec.lab.testing.check_search import check_search
from polydec.lab.testing.check_unmasker import (
    check_canvas_decoder,
    check_ends,
    check_rules,
    check_unmasker,
)
from polydec.lab.testing.examples import example_decoder, example_mechanism
from polydec.lab.testing.kits import build
from polydec.lab.train.kinds import KINDS
from polydec.lab.train.specs.states import StatesSpec
from polydec.lab.train.states import train_states
from polydec.laws.constraints import pieces
from polydec.methods.registry import registry, steer
from polydec.methods.registry.kit import Kit
from polydec.models.learned import artefacts


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The modules of the page by their files."""
    with guide.beside(tmp_path_factory.mktemp("beside")) as modules:
        yield modules


@pytest.fixture(scope="module")
def lm():
    return polydec.load("zoo:tiny")


def test_every_family_has_a_method_on_the_page(files):
    """Each is found by its file, and by whatever else its card says."""
    families = {
        registry.get_recipe_module(name).CARD.kind: name
        for name in ("echo", "sieve", "spread", "in-order")
    }
    assert families.keys() == {"draft-and-verify", "search", "unmasking", "insertion"}
    assert registry.find_method("stutter") == "echo" and steer.find_steering("Agree") == "agree"
    assert "spread" in registry.mechanism_classes(
        "unmaskers"
    ) and "echo" in registry.mechanism_classes("drafters")
    assert "agree" in registry.mechanism_classes("contrasts")
    for name in families.values():
        assert (
            registry.describe_method(name)["summary"]
            == registry.get_recipe_module(name).CARD.summary
        )


def test_the_page_counts_the_lines_of_plain_decoding():
    plain = house.ROOT / "methods" / "speculative" / "recipes" / "plain.py"
    lines = len(plain.read_text("utf-8").splitlines())
    said = f"the whole recipe of plain decoding has **{lines} lines**"
    assert said in guide.PAGE.read_text("utf-8")


def test_they_stand_where_the_house_wants_them(files):
    checked = []
    for file in guide.FILES:
        name = file.removesuffix(".py").replace("/", ".")
        here, stem = house.room(f"polydec.{name}"), Path(file).stem
        for module in house.imported_modules(Path(files[file].__file__)):
            there = house.room(module)
            assert there == here or house.FLOOR[there] < house.FLOOR[here], (file, module)
        if "/recipes/" in file:
            house.test_recipes(stem.replace("_", "-"))
        elif here == "methods.steering":
            house.test_steerings(stem.replace("_", "-"))
        for role, found in registry.ROLES.items():
            if f"polydec.{name}".startswith(f"{found.package}."):
                house.test_mechanisms(role, stem)
                checked.append(role)
    assert sorted(checked) == ["contrasts", "drafters", "unmaskers"]


@pytest.mark.parametrize("file", guide.FILES)
def test_they_read_as_the_package_does(file):
    """Whoever copies one of them into the package need not change it."""
    tree = ast.parse(guide.FILES[file])
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            assert len(plain_words.words_of(node.name)) > 1, node.name
    for function in plain_text.public_functions(tree):
        names = plain_text.parameter_names(function)
        if len(names) > 1:
            listed = plain_text.listed_parameters(ast.get_docstring(function) or "")
            assert listed == names, function.name
    if not any(room in file for room in ("/recipes/", "/steering/", "/constraints/", "/train/")):
        assert "Source: " in guide.FILES[file]


def test_the_drafter(record_counts, files, lm):
    record_counts(check_drafter(example_mechanism(registry.mechanism_classes("drafters")["echo"])))
    with pytest.raises(polydec.RequestError, match="most is 0: it must lie in 1 to 64"):
        files["methods/speculative/drafters/echo.py"].EchoDrafter(0)
    record_counts(
        check_decoder(
            lambda target, draft: example_decoder("echo", target, draft), laws=2, length=2
        )
    )
    assert [
        (o.name, o.default)
        for o in callable_options(files["methods/speculative/recipes/echo.py"].build)
    ] == [("depth", 4)]
    asked = {"max_tokens": 16, "options": {"depth": 2}}
    assert polydec.generate(lm, "aaaa", method="echo", **asked).text == (
        polydec.generate(lm, "aaaa", method="plain", max_tokens=16).text
    )


def test_the_loop(files):
    best_of = files["methods/search/loop/tries.py"].BestOf
    for check in (check_batch, check_choices):
        check(lambda target, draft: best_of(target, 3))
    request = Request((0, 1), max_tokens=4, logprobs=0)
    (one,) = run_coroutines([run_decoder(best_of(toy_law(1), 8), request)])
    assert one[0].score == pytest.approx(sum(t.logp for t in one[0].logprobs))
    (alone,) = run_coroutines([run_decoder(best_of(toy_law(1), 1), Request((0, 1), max_tokens=4))])
    assert one[0].score >= alone[0].score


def test_the_search(files, lm):
    def wide(target, width):
        return build("sieve", target, options={"width": width})[0]

    check_search(lambda target: wide(target, 6), 6, wide=wide)
    narrow = polydec.generate(lm, "Once", method="sieve", options={"gap": 0}, max_tokens=8)
    assert narrow.text == polydec.generate(lm, "Once", method="plain", max_tokens=8).text


def test_the_unmasker(files):
    check_unmasker(registry.mechanism_classes("unmaskers")["spread"](every=2))

    def made(denoiser, shapers=()):
        return registry.build("spread", Kit(denoiser, shapers=shapers), {"block": 4, "every": 2})[0]

    for check in (check_canvas_decoder, check_rules, check_ends):
        check(made)
    canvas = polydec.load("zoo:diffusion")
    asked = {"method": "spread", "max_tokens": 8, "ignore_eos": True}
    answer = polydec.generate(canvas, "copy: abc", options={"every": 3}, **asked)
    assert answer.metrics["tokens_per_pass"] == 8 / 5  # of 8 gaps 3, of 5 two, then one a pass


def test_the_insertion_method(files):
    check_inserting(lambda inserter: build("in-order", inserter)[0])


def test_the_steering(record_counts, files, lm):
    rule = files["laws/contrasts/agree.py"].AgreeContrast
    record_counts(check_contrast(rule(), neutral=True))
    record_counts(check_contrast(rule(0.5), neutral=True))
    asked = {"steer": "agree", "negative_prompt": "Once there was", "max_tokens": 12}
    texts = {
        polydec.generate(lm, "Once upon", method=name, **asked).text for name in ("plain", "auto")
    }
    assert len(texts) == 1
    nothing = polydec.generate(lm, "Once upon", steer_options={"strength": 0}, **asked).text
    assert nothing == polydec.generate(lm, "Once upon", max_tokens=12).text


def test_the_constraint(files, lm):
    without = files["laws/constraints/without.py"].WithoutLetter
    with pytest.raises(polydec.RequestError, match="without is 'no': it must be one character"):
        without("no")
    free = polydec.generate(lm, "Once upon", max_tokens=40).text
    assert "e" in free
    for method in ("plain", "auto", "beam"):
        asked = {"method": method, "max_tokens": 40, "constraint": without("e")}
        text = polydec.generate(lm, "Once upon", **asked).text
        assert text and "e" not in text, (method, text)


def test_the_constraint_is_a_language(files):
    """Whatever the mask allows is allowed by itself too, and nothing is behind an end."""
    vocab = toy_law(1).vocab
    ends = frozenset({max(vocab.eos)})
    language = files["laws/constraints/without.py"].WithoutLetter("a").token_language(vocab, ends)
    known = pieces.token_byte_pieces(vocab, ends)
    for state in (
        language.start_state(),
        *(language.next_state(language.start_state(), x) for x in range(len(known))),
    ):
        mask = language.token_mask(state).tolist()
        assert mask == [language.allows_token(state, x) for x in range(len(known))]
        assert state == language.start_state() or not any(mask)
    assert torch.equal(
        language.token_mask(language.start_state()),
        torch.tensor([x in ends or (p is not None and b"a" not in p) for x, p in enumerate(known)]),
    )


def test_the_head_keeps_its_contracts(record_counts, files):
    """It drafts without a change of the law, it is found by its name, and it is read back and fits its own model alone."""
    head_file = files["models/learned/kinds/recurrent_head.py"]
    assert artefacts.type_of("recurrent-head") is head_file.RecurrentHead
    record_counts(
        check_decoder(
            lambda target, draft: build(
                "recurrent-head",
                target,
                draft,
                artefacts=head_file.examples(target.vocab, 4, 4),
            )[0],
            laws=2,
            length=2,
        )
    )


def test_the_head_is_read_back_and_fits_its_model_only(files, tmp_path):
    head_file = files["models/learned/kinds/recurrent_head.py"]
    (head,) = head_file.examples(toy_law(1).vocab, 4, 4)
    head_file.save(tmp_path, head, {})
    read_back = artefacts.load_artefact(str(tmp_path))
    assert read_back.weight_HH.equal(head.weight_HH) and read_back.depth == 2
    wanted = head_file.RecurrentHead
    assert Kit(toy_law(1), artefacts=(read_back,)).needed_artefact(wanted) is read_back
    with pytest.raises(ValueError, match="vocabulary of 3 tokens"):
        Kit(toy_law(1, 4), artefacts=(read_back,)).needed_artefact(wanted)
    with pytest.raises(ValueError, match="`polydec train heads --kind recurrent-head` makes one"):
        Kit(toy_law(1)).needed_artefact(wanted)


def test_the_head_is_trained_and_drafts(files, lm, tmp_path):
    """By the command that the page names, on a text with a rule; what it then drafts is taken."""
    text = "".join(
        json.dumps(
            {"prompt_ids": [10 + i % 20], "output_ids": [10 + (i + j) % 20 for j in range(30)]}
        )
        + "\n"
        for i in range(24)
    )
    (tmp_path / "text.jsonl").write_text(text)
    (tmp_path / "held.jsonl").write_text("".join(text.splitlines(keepends=True)[:3]))
    with pytest.MonkeyPatch.context() as patch:
        for name, kind in files["lab/train/kinds/recurrent_head.py"].KINDS.items():
            patch.setitem(KINDS, name, kind)
        asked = StatesSpec(
            str(tmp_path), "recurrent-head", steps=20, rows=4, length=8, max_tokens=6, levels=2
        )
        result = train_states(asked)
    assert result["steps"] == 20 and result["kind"] == "recurrent-head"
    trained = polydec.load("zoo:tiny", trained=[str(tmp_path)])
    (head,) = trained.artefacts
    assert head.depth == 2 and head.weight_HH.abs().sum() > 0
    asked = {"max_tokens": 24, "ignore_eos": True}
    answer = polydec.generate(trained, "aaaa", method="recurrent-head", **asked)
    assert answer.text == polydec.generate(lm, "aaaa", method="plain", **asked).text
    assert answer.metrics["tokens_per_pass"] > 1
