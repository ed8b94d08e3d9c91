"""Threads of a pool read nothing that another one may be writing, and none of them sleeps through its work."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "src/polydec/models/native"
RUNS = 10_000
FLAGS = ["-std=c++17", "-O1", "-g", "-pthread", "-fsanitize=thread"]


def build_program(folder):
    program = folder / "pool_threads"
    source = HERE / "pool_threads.cpp"
    command = ["g++", *FLAGS, "-I", str(NATIVE), str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True)
    if "cannot find" in done.stderr and "tsan" in done.stderr:
        pytest.skip("the compiler has no thread sanitizer")
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ is installed")
def test_threads_of_a_pool_race_for_nothing(tmp_path):
    done = subprocess.run(
        [build_program(tmp_path), str(RUNS)], capture_output=True, text=True, timeout=300
    )
    if "unexpected memory mapping" in done.stderr:
        pytest.skip("the thread sanitizer does not run here: addresses are drawn too widely")
    assert done.returncode == 0, done.stderr
    counts = re.findall(r"worked (\d+) times of (\d+)", done.stdout)
    assert len(counts) == 2
    assert all(worked == wanted and int(worked) > RUNS for worked, wanted in counts)
