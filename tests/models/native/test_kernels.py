"""Every kernel gives the same bits on every instruction set: here, and on Arm where a cross-compiler and qemu are installed
(Debian: g++-aarch64-linux-gnu, qemu-user)."""

import shutil
import subprocess
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CPU = HERE.parents[2] / "src/polydec/models/native"
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-pthread", "-Wno-uninitialized"]
HOSTS = {"here": ("g++", []), "Arm": ("aarch64-linux-gnu-g++", ["qemu-aarch64", "-cpu", "max"])}


def hashes(compiler, command, folder):
    """What each set printed: kernel -> hash -> sets."""

    def compile_one(source):
        made = folder / f"{source.parent.name}-{source.stem}.o"
        subprocess.run(
            [compiler, *FLAGS, "-I", str(CPU), "-c", str(source), "-o", str(made)], check=True
        )
        return str(made)

    sources = [HERE / "kernels.cpp", *sorted([*CPU.glob("kernels_*.cpp"), *CPU.glob("ints_*.cpp")])]
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(compile_one, sources))
    program = str(folder / "kernels")
    subprocess.run([compiler, "-static", *objects, "-o", program], check=True)
    return subprocess.run(
        [*command, program], check=True, capture_output=True, text=True
    ).stdout.splitlines()


@pytest.mark.slow
def test_all_sets_agree_to_the_bit(tmp_path):
    seen, sets = defaultdict(lambda: defaultdict(set)), set()
    for host, (compiler, command) in HOSTS.items():
        if not all(shutil.which(x) for x in (compiler, *command[:1])):
            continue
        (tmp_path / host).mkdir()
        for line in hashes(compiler, command, tmp_path / host):
            name, kernel, value = line.split(" | ")
            seen[kernel.removesuffix(" again")][value].add(f"{host}: {name}")
            sets.add((host, name))
    if len(sets) < 2:
        pytest.skip("one instruction set alone: no compiler, or nothing to compare it with")
    assert len(seen) == 16 + 2 * 13 + 12 + 5 + 2
    assert {kernel: dict(values) for kernel, values in seen.items() if len(values) > 1} == {}
