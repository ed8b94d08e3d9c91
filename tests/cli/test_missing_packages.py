"""Commands that need packages which are not installed: that is something missing, not a wrong request."""

import pytest

from polydec.base.errors import MissingError
from polydec.cli import batch, serve
from polydec.cli.main import load_command


@pytest.mark.parametrize(
    ("module", "args", "lacks", "says"),
    [
        (
            batch,
            ["x.jsonl", "y.jsonl", "--ray", "2"],
            "ray",
            r"ray is 2: that needs ray: .*\[ray\]'$",
        ),
        (serve, [], "fastapi", r"serve needs fastapi: .*\[serve\]'$"),
        (serve, ["--replicas", "2"], "ray", r"replicas is 2: that needs ray: .*\[ray\]'$"),
    ],
)
def test_a_missing_package_is_said_to_be_missing(module, args, lacks, says, monkeypatch):
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == lacks else object())
    command = load_command(module.__name__.rpartition(".")[2])
    with pytest.raises(MissingError, match=says):
        command(args, standalone_mode=False)
