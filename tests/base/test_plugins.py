"""A package of one file outside the tree brings a method, its drafter, a rule of sampling and a kind of constraint."""

import os
import subprocess
import sys
import textwrap
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

import forked
import guide
from polydec.base import plugins
from polydec.methods.registry import registry
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
MORE = {
    'py-modules = ["polydec_echo"]': 'py-modules = ["polydec_echo", "polydec_cool", "polydec_only"]',
    '[project.entry-points."polydec.methods"]': """[project.entry-points."polydec.shapers"]
cool = "polydec_cool"

[project.entry-points."polydec.constraints"]
only = "polydec_only"
regex = "polydec_only"

[project.entry-points."polydec.methods"]
plain = "polydec_echo"
wordless = "json"
absent = "polydec_echo.absent"
""",
}
"""What the page's package has besides: by a line of its pyproject.toml, what stands there instead."""
KIND = '''
"""Only: the answer is one text."""

from polydec import AnyOf
from polydec.laws.constraints.constraint_kinds import ConstraintKind


def make(value):
    if not isinstance(value, str):
        raise ValueError(f"only is {value!r}: it must be a text")
    return AnyOf((value,))


KIND = ConstraintKind("only", "the text that the answer is", make)
'''
RULE = '''
"""Cool: all log-weights times a number."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from polydec.core.types import RowDetail
from polydec.base.options import InRange
from polydec.laws.shapers._rule import SamplingRule

Factor = Annotated[float, InRange(1, 10), "log-weights are multiplied by this"]


@dataclass(frozen=True)
class Cool:
    factor: float
    reads: ClassVar[RowDetail] = RowDetail.ROW
    keeps_argmax: ClassVar[bool] = True

    def start_state(self, prompt):
        return None

    def next_state(self, state, token):
        return None

    def shape_law(self, state, logw_V):
        return logw_V * self.factor


def make(setting, *, cool: Factor = 1.0):
    return Cool(cool) if cool != 1.0 else None


RULE = SamplingRule("cool", make, {"transformers": 95, "vllm": 95, "llamacpp": 95})
'''


def documented() -> str:
    """The drafter and the recipe of docs/adding-a-method.md as one file."""
    lines = f"{guide.FILES['methods/speculative/drafters/echo.py']}\n{guide.FILES['methods/speculative/recipes/echo.py']}"
    lines = lines.replace("from __future__ import annotations\n", "")
    lines = lines.replace("from polydec.methods.speculative.drafters.echo import EchoDrafter\n", "")
    return f"from __future__ import annotations\n{lines}"


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip has installed the package."""
    source, target = tmp_path_factory.mktemp("echo"), tmp_path_factory.mktemp("installed")
    build = guide.BUILD
    for line, longer in MORE.items():
        assert line in build
        build = build.replace(line, longer)
    (source / "pyproject.toml").write_text(build)
    (source / "polydec_echo.py").write_text(documented())
    (source / "polydec_cool.py").write_text(RULE)
    (source / "polydec_only.py").write_text(KIND)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps"]
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(target), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return target


def ran(installed: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(filter(None, [str(installed), os.environ.get("PYTHONPATH")]))
    return forked.run(*command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path, **more})


def test_a_method_of_another_package_is_found_by_everything(installed):
    """By its names, the engine, the server, the tables of the docs, and the lists that the contracts run over."""
    script = """
        import warnings
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            import polydec
            from polydec.methods.registry import registry
            assert registry.find_method("stutter") == "echo"
        heard = sorted(str(w.message).partition(" is left out: ")[2] for w in heard)
        assert [reason[:24] for reason in heard] == [
            "it cannot be imported (M", "json has no CARD of that", "the name plain is taken"], heard
        lm = polydec.load("zoo:tiny")
        plain = polydec.generate(lm, "The old mill", max_tokens=12)
        echo = polydec.generate(lm, "The old mill", method="echo", options={"depth": 2}, max_tokens=12)
        assert (echo.method["name"], echo.text) == ("echo", plain.text)
        cool = lm.sampling_with(temperature=1.0, cool=10.0)
        assert polydec.generate(lm, "The old mill", sampling=cool, max_tokens=4).text

        import sys
        sys.path += ["docs", "tests"]
        import tables
        assert "| `echo` | Echo | law |" in tables.table()
        from polydec.lab.testing.examples import example_decoder, example_mechanism
        from polydec.lab.testing import check_drafter, check_law
        assert "echo" in registry.mechanism_classes("drafters") and "echo" in registry.of_family("ar")
        echo = example_mechanism(registry.mechanism_classes("drafters")["echo"])
        check_drafter(echo)
        check_law(lambda target, draft: example_decoder("echo", target, draft), laws=2)

        sys.path.append("tests/serve")
        from house import served
        with served({"zoo:tiny": lambda: lm}, method="plain") as house, house.client() as client:
            listed = client.get("/methods").json()["data"]
            assert "echo" in [m["name"] for m in listed]
            asked = {"model": "zoo:tiny", "prompt": "The old mill", "max_tokens": 12}
            answers = [
                client.post("/v1/completions", json={**asked, "method": method}).json()
                for method in ("plain", "echo")
            ]
            texts = [answer["choices"][0]["text"] for answer in answers]
            assert texts[0] == texts[1] != "", answers
        print("done")
    """
    done = ran(installed, "-c", textwrap.dedent(script))
    assert done.stdout.strip() == "done", done.stderr


def test_the_command_line_knows_it_and_can_leave_it_out(installed):
    shown = ran(installed, "-m", "polydec", "methods", "echo")
    assert shown.returncode == 0 and "Proposes the last token again" in shown.stdout
    assert "polydec-echo: its plug-in 'wordless'" in shown.stderr
    without = ran(installed, "-m", "polydec", "methods", "echo", POLYDEC_PLUGINS="off")
    assert "Proposes the last token again" not in without.stdout


def test_a_kind_of_constraint_of_another_package_is_found_by_everything(installed):
    """By Python, the server and the table of the docs; a name of our own is left as it is."""
    script = """
        import sys
        sys.path += ["docs", "tests/serve"]
        import polydec, tables
        from polydec.laws.constraints import constraint_kinds
        from house import served
        assert isinstance(constraint_kinds.constraint_of({"regex": "a"}), polydec.Regex)
        assert "| `only` | the text that the answer is |" in constraint_kinds.constraint_kinds_table() and any(
            make is constraint_kinds.constraint_kinds_table for _, _, make in tables.PLACES
        )
        lm = polydec.load("zoo:tiny")
        answer = polydec.generate(lm, "The", constraint=constraint_kinds.constraint_of({"only": " mill"}))
        assert answer.text == " mill", answer.text
        with served({"zoo:tiny": lambda: lm}, method="plain") as house, house.client() as client:
            def ask(constraint):
                body = {"model": "zoo:tiny", "prompt": "The", "constraint": constraint}
                return client.post("/v1/completions", json=body).json()
            assert ask({"only": " mill"})["choices"][0]["text"] == " mill"
            for wrong, said in [
                ({"only": 3}, "only is 3: it must be a text"),
                ({"onyl": "x"}, "did you mean only"),
                ({"only": "x", "regex": "y"}, "has 2 members"),
                ({}, "has 0 members"),
                ("x", "it must be an object"),
            ]:
                told = ask(wrong)["error"]
                assert said in told["message"] and told["param"] == "constraint", told
        print("done")
    """
    done = ran(installed, "-c", textwrap.dedent(script))
    assert done.stdout.strip() == "done", done.stderr


def test_the_command_line_takes_a_kind_of_constraint(installed):
    command = ["-m", "polydec", "generate", "The", "--model", "zoo:tiny"]
    done = ran(installed, *command, "--constraint", "only= mill")
    assert done.returncode == 0 and done.stdout == "mill\n", (done.stdout, done.stderr)
    for given, said in [
        ("onyl=x", "constraint has no kind 'onyl': did you mean only?"),
        ("regex=x", "--constraint names regex, which has a flag of its own: --regex"),
        ("only", "--constraint 'only' has no '='"),
    ]:
        wrong = ran(installed, *command, "--constraint", given)
        assert wrong.returncode == 2 and said in wrong.stderr, wrong.stderr


def test_without_plug_ins_there_are_only_our_own():
    assert "echo" not in registry.recipe_modules()


@pytest.mark.parametrize(
    "raised, said",
    [
        ("SystemExit(3)", "(SystemExit: 3)"),
        ("SystemExit", "(SystemExit)"),
        ("GeneratorExit('x')", "(GeneratorExit: x)"),
        ("type('Own', (BaseException,), {})('y')", "(Own: y)"),
        ("type('Mute', (Exception,), {'__str__': lambda self: 1 / 0})()", "(Mute)"),
    ],
)
def test_whatever_a_plug_in_raises_it_alone_is_left_out(raised, said, tmp_path, monkeypatch):
    for name, text in (("ends_here", f"raise {raised}"), ("works_here", "THING = 1")):
        (tmp_path / f"polydec_{name}.py").write_text(text + "\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = tuple(
        EntryPoint(name, f"polydec_{name}", "polydec.room") for name in ("ends_here", "works_here")
    )
    monkeypatch.setattr(plugins, "_points", lambda room: points)
    with pytest.warns(UserWarning) as warned:
        brought = plugins.load_plugins("room", (), lambda module, name: module.THING, "THING")
    assert brought == {"works_here": 1}
    assert ["ends_here" in str(w.message) and said in str(w.message) for w in warned] == [True]

    def while_it_is_read(module, name):
        raise SystemExit(4)

    with pytest.warns(UserWarning, match=r"SystemExit: 4"):
        assert plugins.load_plugins("room", (), while_it_is_read, "THING") == {}


def test_ctrl_c_while_a_plug_in_is_imported_is_ctrl_c(tmp_path, monkeypatch):
    (tmp_path / "polydec_waits.py").write_text("raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(tmp_path)
    points = (EntryPoint("waits", "polydec_waits", "polydec.room"),)
    monkeypatch.setattr(plugins, "_points", lambda room: points)
    with pytest.raises(KeyboardInterrupt):
        plugins.load_plugins("room", (), lambda module, name: module, "THING")


def test_a_plug_in_that_ends_the_program_ends_no_command(tmp_path):
    (tmp_path / "polydec_ends.py").write_text("raise SystemExit\n")
    about = tmp_path / "polydec_ends-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: polydec-ends\nVersion: 1.0\n")
    rooms = ("methods", "steerings", "presses", "shapers", "constraints", "learned", "training")
    points = "".join(f"[polydec.{room}]\nending = polydec_ends\n" for room in rooms)
    (about / "entry_points.txt").write_text(points)
    done = ran(tmp_path, "-m", "polydec", "methods")
    assert done.returncode == 0 and "prompt-lookup" in done.stdout
    warned = [x for x in done.stderr.splitlines() if "polydec-ends" in x]
    assert warned and all("is left out" in x and "SystemExit" in x for x in warned)
    done = ran(tmp_path, "-m", "polydec", "train", "ending", "--out", "x")
    assert done.returncode == 2 and "polydec-ends" in done.stderr
