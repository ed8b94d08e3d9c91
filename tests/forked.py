"""Programs in processes of their own that need not import torch first, which takes seconds of a core: each is forked from a
process that has imported what is not ours and done nothing else. It imports polydec anew, under the environment it is given."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path

PARENT = """
import json, os, sys
import safetensors.torch, tokenizers, torch, torch._dynamo, typer.rich_utils

for line in sys.stdin:
    order = json.loads(line)
    child = os.fork()
    if not child:
        break
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)

for number, name in enumerate(("/dev/null", order["out"], order["err"])):
    os.dup2(os.open(name, os.O_RDWR), number)
os.environ.clear()
os.environ.update(order["env"])
os.chdir(order["cwd"])
sys.path[:0] = ["", *filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))]
how, what, *rest = order["command"]
if how == "-m":
    import runpy

    sys.argv = [what, *rest]
    runpy.run_module(what, run_name="__main__", alter_sys=True)
else:
    sys.argv = ["-c", *rest]
    exec(compile(what, "<string>", "exec"), {"__name__": "__main__"})
"""
_LOCK = threading.Lock()


@cache
def _parent() -> subprocess.Popen[bytes]:
    """It ends when this process does, whose end of its pipe is closed then."""
    return subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


def run(
    *command: str,
    env: Mapping[str, str] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 240,
) -> subprocess.CompletedProcess[str]:
    """What `python COMMAND` does, which is `-m MODULE …` or `-c CODE …`. Where processes cannot be forked it is run afresh.

    timeout: seconds until it is killed, whose exit code is then that of a killed process.
    """
    env = dict(os.environ if env is None else env)
    if not hasattr(os, "fork"):
        return subprocess.run(
            [sys.executable, *command],
            **{"env": env, "cwd": cwd, "timeout": timeout, "capture_output": True, "text": True},
        )
    with tempfile.TemporaryDirectory() as place, _LOCK:
        out, err = (Path(place, name) for name in ("out", "err"))
        for file in (out, err):
            file.touch()
        order = {"command": command, "env": env, "cwd": str(cwd or Path.cwd())}
        line = json.dumps({**order, "out": str(out), "err": str(err)}) + "\n"
        parent = _parent()
        parent.stdin.write(line.encode())
        child = int(parent.stdout.readline())
        if not select.select([parent.stdout], [], [], timeout)[0]:
            os.kill(child, signal.SIGKILL)
        code = int(parent.stdout.readline())
        return subprocess.CompletedProcess(command, code, out.read_text(), err.read_text())
