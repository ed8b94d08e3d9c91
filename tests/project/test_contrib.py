"""contrib/: the unit and the image start what the command line takes, and their parts agree with one another."""

import json
import re
import shlex
import shutil
import subprocess
import sys

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")

from polydec.cli.main import load_command
from polydec.cli.serve import ServeFlags
from project_paths import PROJECT_ROOT

FOLDER = PROJECT_ROOT / "contrib"
UNIT = (FOLDER / "polydec.service").read_text("utf-8")
IMAGE = (FOLDER / "Containerfile").read_text("utf-8")


def joined(text):
    """Lines without remarks, each with those that continue it."""
    kept = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    return [line for line in re.sub(r"\\\n\s*", "", kept).splitlines() if line.strip()]


def settings():
    """What the unit sets, by section."""
    out, section = {}, None
    for line in joined(UNIT):
        if line.startswith("["):
            section = out.setdefault(line.strip("[]"), {})
        else:
            name, mark, value = line.partition("=")
            assert mark and section is not None and name not in section, line
            section[name] = value
    return out


def instructions():
    """Those of the Containerfile, in their order."""
    return [tuple(line.split(maxsplit=1)) for line in joined(IMAGE)]


def flags_of(words):
    """What `polydec serve` reads of a command; a flag that does not exist fails."""
    assert words[1] == "serve"
    command = load_command("serve")
    context = command.make_context("serve", list(words[2:]), resilient_parsing=False)
    known = {k: v for k, v in context.params.items() if k in ServeFlags.__dataclass_fields__}
    return ServeFlags(**known)


def test_the_unit_starts_the_server():
    unit = settings()
    assert unit.keys() == {"Unit", "Service", "Install"}
    service = unit["Service"]
    flags = flags_of(shlex.split(service["ExecStart"]))
    assert flags.model == ["model=/srv/models/model"] and str(flags.api_key_file) == "%d/keys"
    assert flags.host == "127.0.0.1" and flags.request_log.startswith("%L/polydec/")
    # The folders and the credential that the command names are those that the unit makes.
    assert service["LogsDirectory"] == service["CacheDirectory"] == "polydec"
    assert service["LoadCredential"].startswith("keys:")
    assert int(service["TimeoutStopSec"]) > flags.drain + 5, "systemd would kill it while it drains"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_takes_the_unit(tmp_path):
    # The program is not installed here: another one that exists stands for it.
    text = UNIT.replace("/opt/polydec/bin/polydec", sys.executable)
    path = tmp_path / "polydec.service"
    path.write_text(text, "utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True
    )
    told = [line for line in done.stderr.splitlines() if "polydec.service" in line]
    assert not told, told


def test_the_image_starts_the_server():
    steps = instructions()
    assert {name for name, _ in steps} <= {
        *("FROM", "RUN", "WORKDIR", "COPY", "ENV", "USER", "VOLUME", "EXPOSE"),
        *("STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"),
    }
    last = dict(steps)
    words = [*json.loads(last["ENTRYPOINT"]), *json.loads(last["CMD"])]
    flags = flags_of(words)
    assert flags.host == "0.0.0.0" and flags.api_key_file is not None and not flags.without_key
    assert flags.request_log == "-" and str(flags.port) == last["EXPOSE"]
    stop = re.search(r"--stop-timeout (\d+)", IMAGE)
    assert int(stop[1]) > flags.drain + 5
    # Root builds; what serves is another user.
    names = [name for name, _ in steps]
    assert names.index("USER") < names.index("ENTRYPOINT") and last["USER"] not in ("root", "0")


def test_the_image_is_built_of_what_is_there():
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (PROJECT_ROOT / source).exists(), source
        if name == "RUN":
            subprocess.run(["sh", "-n", "-c", rest], check=True)
    check = next(rest for name, rest in instructions() if name == "HEALTHCHECK")
    words = json.loads(check[check.index("[") :])
    compile(words[2], "HEALTHCHECK", "exec")
    extras = re.search(r"\.\[([\w,]+)\]", IMAGE)[1].split(",")
    declared = (PROJECT_ROOT / "pyproject.toml").read_text("utf-8")
    assert all(re.search(rf"^{extra} = \[", declared, re.MULTILINE) for extra in extras)
