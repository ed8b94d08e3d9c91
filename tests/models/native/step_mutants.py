"""Known faults of the compiled step, each built and given to the test that must see it.

python tests/models/native/step_mutants.py [words]: only those whose name holds one of the words, else all, which takes minutes.
The library is built once without a fault; for each mutant what its file goes into is compiled again, outside the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))

from mutant import Mutant

ROOT = Path(__file__).parents[3]
CPU = "models/native/"
SOURCES = ROOT / "src/polydec" / CPU
FLAGS = "-std=c++17 -O1 -ffp-contract=off -fPIC -pthread -Wno-uninitialized -MMD"
LONG = 300  # seconds: a test that takes longer hangs, and that is seen as well

MUTANTS = (
    # scales
    Mutant(
        "the scale of a kept head is that of 128 parts",
        CPU + "attention.cpp",
        "const float scale = most / 127,",
        "const float scale = most / 128,",
        "tests/models/native/test_cache_dtype.py::test_what_is_kept",
    ),
    Mutant(
        "the offset of a later sub-block takes its high bits from the scale",
        CPU + "pack.h",
        "offset = u8((s[j + 4] >> 4) | (s[j] >> 6) << 4);",
        "offset = u8((s[j + 4] >> 4) | (s[j - 4] >> 6) << 4);",
        "tests/models/native/test_step_parity.py::test_rows_equal_the_gguf_library_exactly",
    ),
    Mutant(
        "both halves of a block have the first one's scale",
        CPU + "pack.h",
        "u8(six_bits_of_3(s + 96, 2 * j + h))",
        "u8(six_bits_of_3(s + 96, 2 * j))",
        "tests/models/native/test_step_parity.py::test_rows_equal_the_gguf_library_exactly",
    ),
    Mutant(
        "the second half of a block is centred by the first one's sum",
        CPU + "tile_int.h",
        "x.sums + (sixteen ? half : 2) * M + j;",
        "x.sums + (sixteen ? 0 : 2) * M + j;",
        "tests/models/native/test_integers.py::test_bits_of_every_set_and_number_of_rows",
    ),
    Mutant(
        "what an expert gives counts as much as all that ran say, not those that were picked",
        CPU + "model.cpp",
        "for (size_t n = 0; n < U; ++n) sum += p[best[n]];",
        "for (size_t e = 0; e < E; ++e) sum += p[e];",
        "tests/models/native/test_experts.py::test_a_plain_reference",
    ),
    # saturation and rounding
    Mutant(
        "a kept number of 16 bits may round to infinity",
        CPU + "attention.cpp",
        "kept == KEPT_F16 ? 65520.0f : INFINITY",
        "kept == KEPT_F16 ? 65536.0f : INFINITY",
        "tests/models/native/test_cache_dtype.py::test_a_key_that_does_not_fit_is_an_error_at_the_position_where_it_does_not",
    ),
    Mutant(
        "halves between two numbers go away from zero",
        CPU + "pack.h",
        "(size + 0xfff + (size >> 13 & 1) - (112u << 23)) >> 13",
        "(size + 0x1000 - (112u << 23)) >> 13",
        "tests/models/native/test_cache_dtype.py::test_what_lies_between_two_numbers_and_beyond_the_largest",
    ),
    Mutant(
        "the largest of a kept head becomes 128, which is -128",
        CPU + "attention.cpp",
        "most > 0x1p-100f ? 127 / most : 0;",
        "most > 0x1p-100f ? 128 / most : 0;",
        "tests/models/native/test_cache_dtype.py::test_what_is_kept",
    ),
    Mutant(
        "a gate has no upper limit",
        CPU + "model.cpp",
        "a[e] = std::min(g[e], c.limit) * c.alpha;",
        "a[e] = g[e] * c.alpha;",
        "tests/models/nets/test_families.py::test_gates_at_their_limits",
    ),
    Mutant(
        "what a gate lets through has no lower limit",
        CPU + "model.cpp",
        "std::min(std::max(u[e], -c.limit), c.limit)",
        "std::min(u[e], c.limit)",
        "tests/models/nets/test_families.py::test_gates_at_their_limits",
    ),
    # indices: shared and forked caches, eviction, several sequences
    Mutant(
        "the block behind a shared part is read from that part",
        CPU + "attention.cpp",
        "while (at >= part->stop) ++part;",
        "while (at > part->stop) ++part;",
        "tests/models/native/test_cache_dtype.py::test_texts_that_grew_from_one_another",
    ),
    Mutant(
        "a shared part is read as if it began with the text",
        CPU + "attention.cpp",
        "    first = part->first;\n",
        "    first = 0;\n",
        "tests/models/native/test_cache_dtype.py::test_texts_that_grew_from_one_another",
    ),
    Mutant(
        "the path of a row is read where the first row's lies",
        CPU + "attention.cpp",
        "b.tail + b.tail_start[i], b.prefix[i]",
        "b.tail, b.prefix[i]",
        "tests/models/native/test_step_bits.py::test_trees_batches_and_layouts",
    ),
    Mutant(
        "a slot behind the end of a cache is written",
        CPU + "model.cpp",
        "b.slot[i] >= room ||",
        "b.slot[i] > room ||",
        "tests/models/native/test_lengths.py::test_places_outside_a_batch_and_its_caches_are_refused",
    ),
    Mutant(
        "a path may lead behind the end of a cache",
        CPU + "model.cpp",
        "b.tail[b.tail_start[i] + p] >= room)",
        "b.tail[b.tail_start[i] + p] > room)",
        "tests/models/native/test_lengths.py::test_places_outside_a_batch_and_its_caches_are_refused",
    ),
    Mutant(
        "a shared part may be longer than its storage",
        CPU + "model.cpp",
        "part.stop % SPAN || part.stop - part.first > part.capacity)",
        "part.stop % SPAN)",
        "tests/models/native/test_lengths.py::test_places_outside_a_batch_and_its_caches_are_refused",
    ),
    # packed keys and values
    Mutant(
        "what a row sees packed reaches one block too far",
        CPU + "model.h",
        "std::max(0, b.position[i] / p->block - 1) * p->block : 0;",
        "std::max(0, b.position[i] / p->block) * p->block : 0;",
        "tests/models/native/test_step_press.py::test_texts_of_up_to_two_blocks_are_exact_and_floats_keep_their_bits",
    ),
    Mutant(
        "rows on both sides of a boundary see what the first one sees packed",
        CPU + "attention.cpp",
        "b.sequence[e] == b.sequence[i] && stop(e) == stop(i)) ++e;",
        "b.sequence[e] == b.sequence[i]) ++e;",
        "tests/models/native/test_step_press.py::test_every_set_thread_count_and_number_of_rows",
    ),
    Mutant(
        "all groups of keys have the first one's scales",
        CPU + "press.cpp",
        "const u8* scale = blocks[first / B] + at.key_scales(h, g);",
        "const u8* scale = blocks[first / B] + at.key_scales(h, 0);",
        "tests/models/native/test_step_press.py::test_the_law_is_that_of_the_torch_path",
    ),
    Mutant(
        "all heads have the first one's scales of values",
        CPU + "press.cpp",
        "const int group = (h * D + d) / at.values;",
        "const int group = d / at.values;",
        "tests/models/native/test_step_press.py::test_the_law_is_that_of_the_torch_path",
    ),
    Mutant(
        "the second block of a piece takes the place of the first one",
        CPU + "press.cpp",
        "first > p0, soon",
        "false, soon",
        "tests/models/native/test_step_press.py::test_the_law_is_that_of_the_torch_path",
    ),
    Mutant(
        "codes count from the lowest number where they are centred",
        CPU + "body.h",
        "fma(all(centre), s, halves(low + 2 * d))",
        "halves(low + 2 * d)",
        "tests/models/native/test_step_press.py::test_the_law_is_that_of_the_torch_path",
    ),
    Mutant(
        "offsets of the last rows are those of the rows before",
        CPU + "body.h",
        "for (int e = i / 4 * 4; e <= i; ++e) offset[e] = total(kept[e % 4]);",
        "for (int e = i / 4 * 4; e <= i; ++e) offset[e] = total(kept[0]);",
        "tests/models/native/test_step_press.py::test_the_law_is_that_of_the_torch_path",
    ),
    Mutant(
        "a scale is rounded to 254 parts",
        CPU + "press.cpp",
        "const float most = float((1 << bits) - 1), largest",
        "const float most = float((1 << bits) - 2), largest",
        "tests/models/native/test_step_press.py::test_packed_numbers_are_those_of_the_torch_path",
    ),
    Mutant(
        "what is packed need not be finite",
        CPU + "press.cpp",
        "if (!finite) return false;",
        "",
        "tests/models/native/test_step_press.py::test_numbers_that_are_none_stay_an_error",
    ),
    Mutant(
        "packed blocks that are not there are read",
        CPU + "model.cpp",
        "hidden > cache.blocks * cache.press->block))",
        "false))",
        "tests/models/native/test_step_press.py::test_the_library_checks_what_it_is_told_of_packed_blocks",
    ),
    # trees in one call
    Mutant(
        "every path goes on from the first one's state",
        CPU + "growth.cpp",
        "states.p + size_t(tip.row) * wide",
        "states.p",
        "tests/methods/speculative/drafters/test_grown.py::test_trees_are_the_rules_and_chances_as_near_as_is_said",
    ),
    Mutant(
        "a coefficient of e^x is another",
        CPU + "growth.cpp",
        "float y = 1.0f / 720 * r + 1.0f / 120;",
        "float y = 1.0f / 72 * r + 1.0f / 120;",
        "tests/methods/speculative/drafters/test_grown.py::test_chances_of_any_logits_are_within_what_is_said",
    ),
    Mutant(
        "logits that are no numbers give no tree",
        CPU + "growth.cpp",
        "if (!std::isfinite(all)) return 9;",
        "",
        "tests/methods/speculative/drafters/test_grown.py::test_logits_that_are_no_numbers_are_told_wherever_they_stand",
    ),
    Mutant(
        "of equally likely paths the last one named is kept",
        CPU + "growth.cpp",
        "return all[size_t(a)].path > all[size_t(b)].path;",
        "return all[size_t(a)].path != all[size_t(b)].path ? all[size_t(a)].path > all[size_t(b)].path : a > b;",
        "tests/methods/speculative/drafters/test_grown.py::test_of_equals_the_first_is_named_and_goes_on",
    ),
    Mutant(
        "a tree's last level has no slots",
        CPU + "growth.cpp",
        "depth <= g.depth && !tips.empty()",
        "depth < g.depth && !tips.empty()",
        "tests/methods/speculative/drafters/test_grown.py::test_trees_are_the_rules_and_chances_as_near_as_is_said",
    ),
    Mutant(
        "scores of packed keys have no bound",
        CPU + "press.cpp",
        "stop - p0, c.cap, part[i]);",
        "stop - p0, 0, part[i]);",
        "tests/models/native/test_step_press.py::test_scores_of_packed_keys_have_the_networks_bound",
    ),
    Mutant(
        "blocks of floats are packed for a cache of other numbers",
        CPU + "press.cpp",
        "return at.legal() && kept == KEPT_F32 ? at.bytes() : 0;",
        "return at.legal() ? at.bytes() : 0;",
        "tests/models/native/test_step_press.py::test_the_library_packs_floats_alone",
    ),
    # masks
    Mutant(
        "rows share a block of which they see different branches",
        CPU + "attention.cpp",
        "p0 + SPAN <= std::min(b.seen[r], b.prefix[r]);",
        "p0 + SPAN <= b.seen[r];",
        "tests/models/native/test_step_bits.py::test_branches_that_reach_over_a_block",
    ),
    Mutant(
        "rows of two sequences share the first one's block",
        CPU + "attention.cpp",
        "while (e < end && b.sequence[e] == b.sequence[i] && whole(e)) ++e;",
        "while (e < end && whole(e)) ++e;",
        "tests/models/native/test_cache_dtype.py::test_trees_batches_and_forks",
    ),
    Mutant(
        "rows share a block that begins before one's window",
        CPU + "attention.cpp",
        "return from(b, l, r) <= p0 && p0 + SPAN",
        "return p0 + SPAN",
        "tests/models/native/test_step_parity.py::test_sliding_windows",
    ),
    Mutant(
        "a window is one position too wide",
        CPU + "model.h",
        "return w ? std::max(0, b.seen[i] - w) : sealed(b, i);",
        "return w ? std::max(0, b.seen[i] - w - 1) : sealed(b, i);",
        "tests/models/native/test_step_parity.py::test_sliding_windows",
    ),
    Mutant(
        "four keys are read side by side where a branch begins among them",
        CPU + "body.h",
        "if (p + P - 1 < v.prefix && p + P - 1 <= last)",
        "if (p < v.prefix && p + P - 1 <= last)",
        "tests/models/native/test_step_bits.py::test_trees_batches_and_layouts",
    ),
    Mutant(
        "all heads of a group have the first one's sink where rows are many",
        CPU + "attention.cpp",
        "sink(t, l, h * G + g), D);",
        "sink(t, l, h * G), D);",
        "tests/models/nets/test_families.py::test_the_compiled_step_equals_transformers_and_trees_its_steps_to_the_bit"
        "[gpt-oss]",
    ),
    Mutant(
        "of equal scores the last token is the likeliest",
        CPU + "model.cpp",
        "(y[e] == o.value && n + e < o.at)) o = {y[e], n + e};",
        "(y[e] == o.value && n + e > o.at)) o = {y[e], n + e};",
        "tests/models/native/test_step_bits.py::test_of_equal_scores_the_first_token_is_the_likeliest",
    ),
    Mutant(
        "of equal scores that two threads found the last token is the likeliest",
        CPU + "model.cpp",
        "(p.value == o.value && p.at < o.at)) o = p;",
        "(p.value == o.value && p.at > o.at)) o = p;",
        "tests/models/native/test_step_bits.py::test_of_equal_scores_the_first_token_is_the_likeliest",
    ),
)


class Builder:
    """Builds the library in a folder of its own, as it is or with a fault."""

    def __init__(self, place: Path) -> None:
        self.place, self.compiler = place, os.environ.get("CXX", "g++")
        shutil.copytree(SOURCES, place / "sound", ignore=shutil.ignore_patterns("*.so", "*.py"))
        self.compile(place / "sound", sorted((place / "sound").glob("*.cpp")))

    def compile(self, folder: Path, sources: Iterable[Path]) -> None:
        def one(source: Path) -> None:
            made = str(folder / f"{source.stem}.o")
            subprocess.run(
                [self.compiler, *FLAGS.split(), "-c", str(folder / source.name), "-o", made],
                check=True,
            )

        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            list(pool.map(one, sources))

    def broken(self, mutant: Mutant) -> Path:
        """The library with this fault."""
        sound, folder = self.place / "sound", self.place / "broken"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        file = folder / Path(mutant.file).name
        text = file.read_text()
        assert text.count(mutant.old) == 1, f"{mutant.name}: {text.count(mutant.old)} places"
        file.write_text(text.replace(mutant.old, mutant.new))
        self.compile(folder, [x for x in sorted(folder.glob("*.cpp")) if file.name in read_by(x)])
        library = folder / "_step.so"
        objects = map(str, sorted(folder.glob("*.o")))
        subprocess.run(
            [self.compiler, "-shared", "-pthread", *objects, "-o", str(library)], check=True
        )
        return library


def read_by(source: Path) -> set[str]:
    """The names of the files that a source was compiled from, as the compiler has listed them."""
    listed = source.with_suffix(".d").read_text().replace("\\\n", " ").partition(": ")[2]
    return {Path(x).name for x in listed.split()}


def seen(library: Path, test: str) -> bool:
    """Whether a test fails with this library, or the process that runs it does."""
    env = {**os.environ, "POLYDEC_STEP": str(library)}
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", test]
    try:
        code = subprocess.run(
            command, cwd=ROOT, env=env, timeout=LONG, capture_output=True
        ).returncode
    except subprocess.TimeoutExpired:
        return True
    assert code not in (2, 3, 4, 5), f"{test} did not run: pytest ended with {code}"
    return code != 0


def missed(words: Iterable[str] = ()) -> Iterator[tuple[Mutant, bool]]:
    """Each mutant whose name holds one of the words (without words all), and whether its test lets it pass."""
    some = tuple(words)
    with tempfile.TemporaryDirectory() as place:
        builder = Builder(Path(place))
        for mutant in MUTANTS:
            if not some or any(word in mutant.name for word in some):
                yield mutant, not seen(builder.broken(mutant), mutant.test)


def main() -> int:
    survivors = 0
    for mutant, passed in missed(sys.argv[1:]):
        print(f"{'NOT SEEN' if passed else 'seen'}: {mutant.name} ({mutant.test})", flush=True)
        survivors += passed
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
