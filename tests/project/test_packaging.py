"""What a release holds: the files of the wheel, and that it runs with and without its compiled step."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

import polydec
from polydec.models.formats import zoo
from polydec.models.native.library import native_library_path
from project_paths import PROJECT_ROOT

ROOT = PROJECT_ROOT
LISTED = """
from setuptools import Distribution
of = Distribution({"script_name": "setup.py"})
of.parse_config_files(["pyproject.toml"])
build = of.get_command_obj("build_py")
build.ensure_finalized()
print("version", of.get_version())
for package, name, path in build.find_all_modules():
    print("file", path)
for package, source, target, names in build.data_files:
    for name in names:
        print("file", source + "/" + name)
"""
"""What setuptools would put into the wheel beside the compiled step; nothing is built or written."""
NAMED = """
from setuptools import Distribution
from distutils.core import run_setup
of = run_setup("setup.py", ["--quiet"], stop_after="commandline")
wheel = of.get_command_obj("bdist_wheel")
wheel.ensure_finalized()
print(*wheel.get_tag())
print(of.get_command_obj("build_ext").get_ext_filename("polydec.models.native._step"))
"""
"""What the wheel and the library in it are called."""

SHIPPED = [e.name for e in zoo.zoo_entries() if e.package is None]


def wanted(files):
    """Whether paths below the package are what a wheel must hold, and nothing else."""
    names = {f.split("polydec/", 1)[1] for f in files}
    assert names >= {"py.typed", "serve/page.html", "lab/train/sample/stories.txt", "__main__.py"}
    for name in SHIPPED:
        assert any(re.fullmatch(f"zoo/{name}/[a-z]+.safetensors", f) for f in names), name
        assert f"zoo/{name}/config.json" in names
    inside = {
        p.relative_to(ROOT / "src/polydec").as_posix()
        for kind in ("py", "jinja")
        for p in ROOT.glob(f"src/polydec/**/*.{kind}")
    }
    assert names >= inside, "a module or a template is left out"
    assert not [f for f in names if f.endswith((".h", ".cpp", ".pyc"))]


def test_the_wheel_would_hold_the_package_and_nothing_else():
    pytest.importorskip("setuptools", "77", reason="setuptools 77 or later is not installed")
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LISTED], cwd=ROOT, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr
    lines = [line.split(" ", 1) for line in said.stdout.splitlines()]
    assert ["version", polydec.__version__] in lines
    files = [Path(what).as_posix() for kind, what in lines if kind == "file"]
    assert all(f.startswith("src/polydec/") for f in files)
    wanted(files)


def test_one_wheel_serves_every_python():
    pytest.importorskip("setuptools", "77", reason="setuptools 77 or later is not installed")
    command = [sys.executable, "-W", "ignore", "-c", NAMED]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    tag, library = said.stdout.splitlines()
    assert tag.split()[:2] == ["py3", "none"]
    assert tag.split()[2] not in ("any", ""), "it holds a library of one kind of machine"
    assert ROOT / "src" / library == native_library_path()


def test_what_the_project_says_of_itself():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert about["license"] == "Apache-2.0" and about["license-files"] == ["LICENSE"]
    # a licence is named once: build tools refuse a classifier beside the expression
    assert not [c for c in about["classifiers"] if c.startswith("License ::")]
    least = about["requires-python"].removeprefix(">=")
    assert f"Programming Language :: Python :: {least}" in about["classifiers"]


def test_the_changelog_is_short():
    """Its newest version is this one. What comes after it may stand before it."""
    _, *sections = (ROOT / "CHANGELOG.md").read_text("utf-8").split("\n## ")
    versions = [section for section in sections if not section.startswith("Unreleased\n")]
    assert versions[0].startswith(polydec.__version__)
    assert len(sections) - len(versions) <= 1
    assert all(len(section.splitlines()) < 60 for section in sections[:2])


def built(kind, source, out, **environment):
    """The wheel or sdist that is built of a folder."""
    subprocess.run(
        [sys.executable, "-m", "build", f"--{kind}", "--no-isolation", "-o", out, source],
        check=True,
        env={**os.environ, **environment},
        stdout=subprocess.DEVNULL,
    )
    (made,) = out.glob("*.whl" if kind == "wheel" else "*.tar.gz")
    return made


def installed(wheel, where):
    """The interpreter of a fresh environment that has the wheel, and finds what it needs among our packages."""
    venv.create(where, with_pip=False)
    python = where / "bin" / "python"
    (site,) = where.glob("lib/python*/site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python, where, *arguments):
    done = subprocess.run(
        [python, "-m", "polydec", *arguments],
        cwd=where,
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The sdist of a copy of the tree, so that nothing is written beside the sources."""
    pytest.importorskip("build", reason="build is not installed (polydec[dev])")
    where = tmp_path_factory.mktemp("source")
    without = shutil.ignore_patterns(
        ".git", ".venv", "build", "*.so", "__pycache__", "*.egg-info", "runs"
    )
    shutil.copytree(ROOT, where / "tree", ignore=without)
    return built("sdist", where / "tree", where / "out")


@pytest.mark.slow
@pytest.mark.parametrize("compiler", [False, True], ids=["torch", "compiled"])
def test_a_wheel_of_the_sdist_decodes(sdist, tmp_path, compiler):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.iterdir()
    none = {} if compiler else {"CC": "/bin/false", "CXX": "/bin/false"}
    wheel = built("wheel", source, tmp_path / "wheel", **none)
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (about,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        assert message_from_bytes(archive.read(about))["Version"] == polydec.__version__
    assert {n.split("/")[0].split("-")[0] for n in names} == {"polydec"}
    inside = [n for n in names if n.startswith("polydec/")]
    wanted(inside)
    assert any(n.endswith("/_step.so") for n in inside) == compiler
    python = installed(wheel, tmp_path / "environment")
    assert run(python, tmp_path, "--version") == f"polydec {polydec.__version__}\n"
    asked = ("--model", "zoo:tiny", "--method", "plain", "--max-tokens", "8", "--json")
    said = run(python, tmp_path, "generate", "Once upon a time", *asked)
    assert ("native" in said) == compiler, said
