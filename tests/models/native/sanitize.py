"""The library's tests under the address and undefined-behaviour sanitizers: python
tests/models/native/sanitize.py [pytest arguments]

All block types in every arithmetic and on every instruction set that runs here, all families, experts, shared caches, threads,
and damaged files (which other processes load: they inherit the library).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[3]
FLAGS = (
    "-std=c++17 -O1 -g -ffp-contract=off -fPIC -pthread -fno-omit-frame-pointer -fsanitize=address,undefined "
    "-fno-sanitize-recover=undefined"
)


TESTS = [
    "tests/models/native",
    "tests/models/nets/test_families.py",
    "tests/models/formats/test_gguf.py",
    "tests/models/sessions/test_parts.py",
    "tests/models/sessions/test_sharing.py",
]


def main() -> int:
    compiler = os.environ.get("CXX", "g++")
    with tempfile.TemporaryDirectory() as place:

        def compile_one(source: Path) -> str:
            out = f"{place}/{source.stem}.o"
            subprocess.run([compiler, *FLAGS.split(), "-c", str(source), "-o", out], check=True)
            return out

        with ThreadPoolExecutor(2) as pool:
            objects = list(
                pool.map(compile_one, sorted((ROOT / "src/polydec/models/native").glob("*.cpp")))
            )
        library = f"{place}/_step.so"
        subprocess.run(
            [
                compiler,
                "-shared",
                "-pthread",
                "-fsanitize=address,undefined",
                *objects,
                "-o",
                library,
            ],
            check=True,
        )
        # libstdc++ too: the sanitizer looks for what throws exceptions before torch has loaded it
        first = [
            subprocess.check_output([compiler, f"-print-file-name={name}"], text=True).strip()
            for name in ("libasan.so", "libstdc++.so")
        ]
        env = {
            **os.environ,
            "LD_PRELOAD": " ".join(first),
            "POLYDEC_STEP": library,
            "ASAN_OPTIONS": "detect_leaks=0",
            "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1",
            "PYTHONMALLOC": "malloc",
        }
        arguments = sys.argv[1:] or ["-x", "-q", *TESTS]
        return subprocess.run(
            [sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=env
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
