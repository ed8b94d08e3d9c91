"""Damaged GGUF files: each loads and runs, or gives one clear error."""
from __future__ import annotations

import random
import struct

import pytest
from native_checkpoints import write_gguf

from polydec.core.types import Want
from polydec.models.cpu.library import available
from polydec.models.cpu.network import CpuStep
from polydec.models.gguf import GGUF
from polydec.models.lm import Query

pytestmark = pytest.mark.skipif(not available()[0], reason=available()[1])
ABSURD = (0, 1, 2, 3, 7, 31, 33, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, 1 << 63,
          (1 << 64) - 1)


def mutate(data: bytes, header: int, rng: random.Random) -> bytes:
    out = bytearray(data)
    kind = rng.randrange(6)
    if kind == 0:
        return bytes(out[:rng.randrange(len(out))])
    if kind == 1:                                  # anywhere in the header, a number that makes no sense
        at, size = rng.randrange(4, header - 8), rng.choice((4, 8))
        out[at:at + size] = (rng.choice(ABSURD) & (1 << 8 * size) - 1).to_bytes(size, "little")
    elif kind == 2:
        for _ in range(rng.randint(1, 4)):
            out[rng.randrange(header)] = rng.randrange(256)
    elif kind == 3:                                # counts of tensors and fields
        struct.pack_into("<Q", out, rng.choice((8, 16)), rng.choice(ABSURD))
    elif kind == 4:                                # a piece is lost or doubled
        at, n = rng.randrange(header), rng.randint(1, 64)
        out[at:at + n] = b"" if rng.random() < 0.5 else out[at:at + n] * 2
    else:
        a, b = sorted(rng.sample(range(header), 2))
        out[a:b] = bytes(rng.randrange(256) for _ in range(b - a)) if b - a < 64 else bytes(b - a)
    return bytes(out)


def tries(count: int, path, seed: int) -> tuple[int, int]:
    write_gguf(path, "Q8_0", width=64, inner=64, vocab=20)
    data = path.read_bytes()
    header = GGUF(path).entries["token_embd.weight"].start
    rng, good, bad = random.Random(seed), 0, 0
    for i in range(count):
        path.write_bytes(mutate(data, header, rng))
        try:
            f = GGUF(path)
            net = CpuStep.build(f.config, f, threads=1)
            cache = net.new_cache()
            cache.stage((-1, 0))
            net.forward([Query(cache, 0, (1, 2), range(2), Want())])
            good += 1
        except ValueError as e:
            assert str(e) and "\n" not in str(e) and len(str(e)) < 500, i
            bad += 1
        except Exception as e:
            e.add_note(f"mutation {i} of seed {seed}")
            raise
    return good, bad


def test_mutations(tmp_path):
    good, bad = tries(400, tmp_path / "m.gguf", 1)
    assert good and bad > 100


@pytest.mark.slow
def test_ten_thousand_mutations(tmp_path):
    good, bad = tries(10_000, tmp_path / "m.gguf", 2)
    assert good and bad > 1000
