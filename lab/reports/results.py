"""Which figures of the pages come from which result file, by which command, on which machine.

Each table or sentence is named once. `test_results.py` compares them by made.py,
and fails where README.md or docs/measurements.md states a figure that nothing here covers.

    python lab/reports/results.py    # writes the list of files into README.md; how much of each page is covered
    python lab/reports/results.py --check  # only says whether that list is up to date
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import exp, hypot, log
from random import Random
from statistics import fmean, median

from made import (
    FIGURE,
    ROOT,
    Place,
    Row,
    Run,
    Sentence,
    Table,
    column,
    covered,
    pick,
    rewrite,
    told,
)

from polydec.lab.bench.intervals import student_interval

BEGIN, END = "<!-- results: made by lab/reports/results.py -->", "<!-- end -->"

# ---- where they come from ----

ZEN4 = "two cores of an AMD EPYC (Zen 4)"
ZEN5 = "two cores of an AMD EPYC (Zen 5)"
CORE4 = "a core of an AMD EPYC (Zen 4)"
CORE = "a core of an AMD EPYC (Zen 5)"
XEON = "two cores of an Intel Xeon (Sapphire Rapids or later, AVX-512 VNNI, BF16, FP16 and AMX), under load"
RAPIDS = "a core of an Intel Xeon (Emerald Rapids, AVX-512 VNNI and AMX)"
COUNTED = "any: counts and distances, no times"
XEON_CORE = "a core of an Intel Xeon (Emerald Rapids, AVX-512 VNNI and AMX), beside other load, by processor time"
HEADLINE = Run(
    "lab/reports/headline.csv",
    "python benchmarks/speculation.py --each 2 --methods auto (each row has its own)",
    "each row names its own",
    "each row names its own",
    copied=True,
)
START = Run(
    "lab/reports/start.csv",
    "python benchmarks/start.py",
    f"{ZEN4}; Zen 1; Intel Xeon with AMX",
    "16074397",
    copied=True,
)
CLOCK = Run(
    "lab/reports/auto-clock.csv",
    "python benchmarks/speculation.py --trained zoo:smollm2-states --methods auto:states=false,auto,auto:states=true",
    ZEN4,
    "d86fe002",
)
ENGINES = Run(
    "lab/reports/engines.csv",
    "python benchmarks/engine_table.py --envs DIR --scratch DIR --out FILE --tasks 7 --flight 1",
    "two cores of an Intel Xeon (Emerald Rapids, AVX-512 VNNI and AMX)",
    "d2cac2e6",
    copied=True,
)
SPEED, AUTO, OVERVIEW = (
    Run(
        f"lab/reports/speculation-{name}.csv",
        "python benchmarks/speculation.py (each section of lab/reports/speculation.md has its own)",
        ZEN4,
        "0f8b23f3",
    )
    for name in ("speed", "auto", "overview")
)
ALL_SPEED, ALL_AUTO = (
    Run(
        f"lab/reports/all-methods-{name}.csv",
        "python benchmarks/speculation.py --methods all (each section of lab/reports/all-methods.md has its own)",
        ZEN4,
        "0f8b23f3",
    )
    for name in ("speed", "auto")
)
ENUMERATED = Run(
    "lab/reports/verify-enumerated.csv",
    "python benchmarks/enumerated.py",
    "any: toys in float64",
    "81c1ab36",
)
CLEAN = Run(
    "lab/reports/verify-clean.csv",
    "python benchmarks/clean_seeds.py --minutes 18",
    "one core, whose kind was not noted",
    "6085c444",
)
REPLAY = Run(
    "lab/reports/replay-live.csv",
    "python benchmarks/replay_live.py --prompts 8 --tokens 96 --repeat 2 --csv lab/reports/replay-live.csv",
    f"{ZEN4}, load below 2",
    "61098405",
)
REPLAY_PROCESSOR = Run(
    "lab/reports/replay-processor.csv",
    'python benchmarks/replay_live.py --prompts 4 --threads 1 --processor --only "draft-model depth=2" '
    "--csv lab/reports/replay-processor.csv",
    f"{RAPIDS}, under load",
    "a6919f83",
)
COMMAND = Run(
    "lab/reports/verify-command.csv",
    "python benchmarks/clean_command.py --seeds 20",
    CORE4,
    "058ac956",
)
COMMAND_TRAINED = Run(
    "lab/reports/verify-trained.csv",
    "python benchmarks/clean_command.py --seeds 20 --small out/small --without lab/reports/verify-command.csv",
    f"{CORE4}, under load",
    "0242f1a7",
)
TIES = Run(
    "lab/reports/verify-near-ties.csv",
    "python benchmarks/near_ties.py --model zoo:smollm2 --dtype bfloat16 --emulate --prompts 50 --tokens 16 "
    "--methods prompt-lookup",
    "a core of an AMD EPYC (Zen 4), torch's own arithmetic",
    "7b885504",
)
FRONT_PAGE = Run(
    "lab/reports/front-page.csv",
    "python benchmarks/front_page.py trained --threads 1 --processor --each 2 --tokens 96",
    XEON_CORE,
    "99ce0f62",
)
MANY = Run(
    "lab/reports/front-page-many.csv",
    "python benchmarks/front_page.py many --threads 1 --processor",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "e34f5c87",
)
LONG = Run(
    "lab/reports/front-page-long.csv",
    "python benchmarks/front_page.py long --threads 1 --processor --each 3",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "6c29d96a",
)
SERVED = Run(
    "lab/reports/front-page-served.csv",
    "python benchmarks/front_page.py served --threads 1 --processor",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "6c29d96a",
)
FREE = Run(
    "lab/reports/constraints-free.csv",
    "python benchmarks/constraints.py --free --count 40 (its rows, without the texts)",
    COUNTED,
    "6c29d96a",
)
BETTER = Run(
    "lab/reports/front-page-better.csv",
    "python benchmarks/front_page.py better --threads 1 --processor",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "71db4814",
)
DEPTHS = Run(
    "lab/reports/front-page-depths.csv",
    "python benchmarks/front_page.py depths --threads 1 --processor --each 1 --tokens 64",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "80845842",
)
BY_COST = Run(
    "lab/reports/front-page-by-cost.csv",
    "python benchmarks/front_page.py trained --threads 1 --processor --each 1 --tokens 48",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "80845842",
)
COMPANY = Run(
    "lab/reports/company.csv",
    "python benchmarks/front_page.py company --threads 1 --processor --each 2 --seed 21",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "f2048797",
)
LONG_CONTEXTS = Run(
    "lab/reports/long-contexts.csv",
    "python benchmarks/long_contexts.py --contexts 8000 (and --model FILE --named random --contexts 16000)",
    "two cores of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), quiet",
    "6c29d96a",
)
TREES = Run(
    "lab/reports/front-page-trees.csv",
    "python benchmarks/front_page.py trained --threads 1 --processor --each 1 --limit 8 --tokens 48",
    "a core of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), beside other load, by processor time",
    "308b3200",
)
TRAINED = Run("lab/reports/trained.csv", "python benchmarks/trained.py", CORE, "a06b93c7")
CONTEXT = Run(
    "lab/reports/trained-context.csv",
    "python benchmarks/context.py out/longspec out/eagle out/eagle-3 --csv lab/reports/trained-context.csv",
    f"{CORE}, under load",
    "3f8e0987",
)
SCALING = Run(
    "lab/reports/scaling.csv",
    "python benchmarks/scaling.py --layers 1,2 --out out/scaling --csv lab/reports/scaling.csv --svg lab/reports/scaling.svg",
    f"{CORE}, under load",
    "b3d866f9",
)
DRAFTER_GRID = Run(
    "lab/reports/drafter-grid.csv",
    "python -m benchmarks.studies.drafter_grid --out DIR --steps 10,40,160 --each 40 --prompts 8 "
    "--csv lab/reports/drafter-grid.csv",
    COUNTED,
    "0f99baa6",
)
SUPERLINEAR = Run(
    "lab/reports/superlinear.csv",
    "python -m benchmarks.studies.search_spans --csv lab/reports/superlinear.csv",
    COUNTED,
    "8f5ea9d9",
)
SEARCH = Run("lab/reports/search.csv", "python benchmarks/search.py --seed 78", CORE, "5e2aabb2")
CANVAS_CONSTRAINTS = Run(
    "lab/reports/canvas-constraints.csv",
    "python benchmarks/canvas_constraints.py",
    f"{CORE}, under load",
    "a6ca7a55",
)
PRESSES = Run(
    "lab/reports/presses.csv",
    "python benchmarks/presses.py lab/reports/presses.csv --lengths 1000 2000",
    COUNTED,
    "84c9818e",
)
PRESSES_TEXTS = Run(
    "lab/reports/presses-texts.csv",
    "python benchmarks/presses.py lab/reports/presses-texts.csv --texts books python stories --dtype auto "
    "--lengths 1000 2000 4000 --presses (five of 4 bits)",
    COUNTED,
    "84c9818e",
)
PRESSES_LONG = Run(
    "lab/reports/presses-long.csv",
    "python benchmarks/presses.py lab/reports/presses-long.csv --dtype auto --lengths 4000 8000 "
    "--presses hadamard:bits=4:group=32 quantised:bits=4",
    COUNTED,
    "84c9818e",
)
PRESSES_LLAMA_CPP = Run(
    "lab/reports/presses-llama-cpp.csv",
    "python benchmarks/presses_llama_cpp.py lab/reports/presses-llama-cpp.csv",
    COUNTED,
    "84c9818e",
)
PRESSES_STEP = Run(
    "lab/reports/presses-step.csv",
    "python benchmarks/presses_step.py lab/reports/presses-step.csv",
    "a core of an AMD EPYC with AVX-512 VNNI, whose kind was not noted",
    "1faecc08",
)
CLASSIFY = Run(
    "lab/reports/classify.csv",
    "python benchmarks/classify.py lab/reports/classify.csv",
    "any: counts, no times",
    "800e9bd9",
)
BYTE2WORD = Run(
    "lab/reports/byte2word.csv",
    "python benchmarks/byte2word.py --steps 150 --out DIR --csv lab/reports/byte2word.csv",
    "any: counts, no times",
    "9aba97c8",
)
LEXINVARIANT = Run(
    "lab/reports/lexinvariant.csv",
    "python -m benchmarks.studies.word_units symbols --kinds lexinvariant --steps 600 --width 64 --layers 2 --rows 16 "
    "--out DIR --csv lab/reports/lexinvariant.csv",
    COUNTED,
    "33c966ce",
)
WORD_BEAM = Run(
    "lab/reports/word-beam.csv",
    "python -m benchmarks.studies.word_units beam --out DIR --csv lab/reports/word-beam.csv",
    COUNTED,
    "52e54289",
)
HIDDEN_STATES = {
    name: Run(
        f"lab/reports/hidden-states-{name}.csv",
        "polydec bench --suite hidden-states --model zoo:tiny --from FILE --each 10 "
        f"--csv lab/reports/hidden-states-{name}.csv (held-out texts of text_{name})",
        COUNTED,
        "50a50f38",
    )
    for name in ("stories", "books")
}
CONDITIONAL = Run(
    "lab/reports/conditional-beam.csv",
    "python -m benchmarks.studies.conditional_texts --out DIR --csv lab/reports/conditional-beam.csv",
    COUNTED,
    "8b67e405",
)
NOISE = Run(
    "lab/reports/noise.csv",
    "python -m benchmarks.studies.noise --out DIR --steps 120 --rows 32 --csv lab/reports/noise.csv",
    "any: counts, no times",
    "569e689b",
)
WINDOWS = Run(
    "lab/reports/windows.csv",
    "python -m benchmarks.studies.windows --out DIR --steps 80 --csv lab/reports/windows.csv",
    COUNTED,
    "569e689b",
)
OWN_CONTEXTS = Run(
    "lab/reports/own-contexts.csv",
    "python -m benchmarks.studies.own_contexts augmentation OUT TEXT --steps 300 --csv lab/reports/own-contexts.csv, and with "
    "refrag --steps 120, late --steps 300, thoughts --steps 1000",
    COUNTED,
    "d6c545fa",
)
PLANS = Run(
    "lab/reports/plans.csv",
    "python -m benchmarks.studies.plans --out DIR --steps 300 --count 12 --csv lab/reports/plans.csv",
    "any: counts, no times",
    "569e689b",
)
ALIGNED = Run(
    "lab/reports/aligned.csv",
    "python -m benchmarks.studies.transfer --aligned DIR --csv lab/reports/aligned.csv",
    "two cores of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), under load, by processor time",
    "d6c545fa",
)
STATE_CLASSES = Run(
    "lab/reports/state-classes.csv",
    "python -m benchmarks.studies.state_classes --model zoo:tiny --csv lab/reports/state-classes.csv, and with "
    "--model zoo:smollm2 --rates 0 0.01 --asked 5",
    COUNTED,
    "eee6b26b",
)
ENCODER_DECODER = Run(
    "lab/reports/encoder-decoder.csv",
    "python -m benchmarks.studies.encoder_decoder --data DIR --out DIR --steps 60 --csv lab/reports/encoder-decoder.csv",
    "two cores of an Intel Xeon (family 6, model 167, AVX-512 VNNI and AMX), under load, by processor time",
    "59fee161",
)
IMAGE_PRESSES = Run(
    "lab/reports/image-presses.csv",
    "python -m benchmarks.studies.image_presses zoo:vision --csv lab/reports/image-presses.csv",
    COUNTED,
    "e26ee249",
)
EPYC_LOADED = "two cores of an AMD EPYC (family 25, model 1, AVX2), under load"
ROW_MARKS = Run(
    "lab/reports/row-marks.csv",
    "python benchmarks/row_marks.py --images DIR --out DIR --csv lab/reports/row-marks.csv",
    COUNTED,
    "caa44ff5",
)
CITATIONS = Run(
    "lab/reports/citations.csv",
    "python -m benchmarks.studies.objectives --kind citations --out DIR --epochs 1 --csv lab/reports/citations.csv",
    COUNTED,
    "569e689b",
)
CERTAINTY = Run(
    "lab/reports/certainty.csv",
    "python -m benchmarks.studies.certainty --out DIR --steps 60 --each 60 --csv lab/reports/certainty.csv",
    COUNTED,
    "c2e7e3ec",
)
MERGED_TOKENS = Run(
    "lab/reports/merged-tokens.csv",
    "python -m benchmarks.studies.merged_tokens OUT --csv lab/reports/merged-tokens.csv",
    "any: counts and distances, no times",
    "8b67e405",
)
IN_A_ROW = Run(
    "lab/reports/edits-in-a-row.csv",
    "python benchmarks/edits.py lab/reports/edits.csv lab/reports/edits-in-a-row.csv",
    "one thread, AVX-512, shared",
    "647ef77c",
)
OTHERS = Run(
    "lab/reports/trained-others.csv",
    "python benchmarks/trained.py (150 steps a kind)",
    CORE,
    "bc5751b5",
)
EDITS = Run(
    "lab/reports/edits.csv",
    "python benchmarks/edits.py lab/reports/edits.csv lab/reports/edits-in-a-row.csv",
    "one thread, AVX-512, shared",
    "647ef77c",
)
PASSES = Run(
    "lab/reports/native-passes.csv", "python benchmarks/forward.py", f"{ZEN4}, quiet", "a591aee0"
)
PASSES_ZEN5 = Run(
    "lab/reports/native-passes-zen5.csv",
    "python benchmarks/forward.py",
    f"{ZEN5}, quiet",
    "3a22971a",
)
THREADS = Run("lab/reports/native-threads.csv", "python benchmarks/threads.py", ZEN4, "a591aee0")
PARALLEL = Run(
    "lab/reports/diffusion-parallelbench.csv",
    "polydec bench --model zoo:diffusion --suite parallelbench-digits --each 100 --temperature 1 --json",
    "any: counts, no times",
    "62198c37",
)
SUPERPOSED = Run(
    "lab/reports/superposed.csv",
    "python benchmarks/superposed.py --out DIR --prompts 40 --corpus 1000000 --csv lab/reports/superposed.csv",
    "any: counts, no times",
    "569e689b",
)
PROTOCOL = Run(
    "lab/reports/diffusion-protocol.csv",
    "python benchmarks/parallelbench.py --each 50 --csv lab/reports/diffusion-protocol.csv",
    "any: counts, no times",
    "111b3df6",
)
DIFFUSION = {
    name: Run(
        f"lab/reports/diffusion-{name}.csv",
        f"python benchmarks/diffusion.py {flags}",
        XEON if name in ("blocks", "varied") else f"{CORE}, under load",
        at,
    )
    for name, flags, at in (
        ("policies", "--each 100", "eb11c3e8"),
        ("long", "--part long --each 8", "6a7f3697"),
        ("blocks", "--model zoo:block-diffusion --each 100", "7bc61701"),
        (
            "varied",
            "--model zoo:diffusion-varied --varied --each 60 --only (eleven policies)",
            "7bc61701",
        ),
        ("blocks-long", "--part long --each 8 (zoo:block-diffusion)", "d9fba44e"),
        ("drawn", "--part drawn --each 100 --joint DIR --beside AR", "6a7f3697"),
        (
            "caches",
            '--part long --tasks keep --each 150 --only "dual cache;freecache;dkv-cache;threshold, freecache 0.9" '
            "(and --tasks repeat)",
            "f15c510a",
        ),
        ("more", "--part more", "a47be0b8"),
    )
}


# ---- what rows of tables hold ----


def ratios(row: Row, *names: str) -> list[str]:
    """Each value with its interval."""
    return [
        row[n]
        for name in names
        for n in (name, f"{name} low", f"{name} high")
        if row[n] not in ("", "-")
    ]


WORKLOADS = re.compile(r"section|setting|method|approximate|all|all low|all high")


def speed_row(run: Run) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        row = pick(run, section=place.section, setting=place.part, method=cells[0])
        if row is None:
            return None
        each = {k: v for k, v in row.items() if not WORKLOADS.fullmatch(k) and v not in ("", "-")}
        ends = [max(each.values(), key=float), min(each.values(), key=float)]
        return [*ratios(row, "all"), *(ends if cells[0] != "plain" else [])]

    return values


def auto_row(run: Run) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        setting = place.part.partition(": ")[2] or place.part
        row = pick(run, section=place.section, setting=setting, category=cells[0])
        if row is None:
            return None
        return [row["tasks"], *ratios(row, "auto over plain, clock", "auto over best, clock")]

    return values


def overview_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    row = pick(OVERVIEW, method=cells[0])
    return row and ratios(
        row, *(n for n in row if "batch" in n and not n.endswith((" low", " high")))
    )


def engine_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Another engine over Polydec's plain decoding, one request: "ENGINE, MODE" (or ENGINE alone: plain), and a format."""
    sides = {
        f"{row['engine']}, {row['mode']}": row for row in ENGINES.rows if row["format"] == cells[1]
    }
    row = sides.get(cells[0]) or sides.get(f"{cells[0]}, plain")
    if row is None:
        return None
    return [row[n] for n in ("tokens_a_second", "over_plain", "low", "high") if row[n]]


def headline(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Runs of one kind of machine together: what eight rows cost, the least and the most of `auto` over plain, and of a
    workload."""
    kind = cells[0].replace(", four runs", "")
    if kind.startswith("eight"):
        return ends([r for r in HEADLINE.rows if r["together"] == "8"], "over", "over")
    rows = [
        r
        for r in HEADLINE.rows
        if r["together"] == "1"
        and r["arithmetic"] == "int16"
        and f"{r['machine']}, {r['prompts']}" == kind
    ]
    if not rows:
        return None
    cost = [x for x in (rows[0]["rows_cost"], rows[0]["rows_cost_most"]) if x]
    over = ends(rows, "over", "over")
    return [*cost, *(over if len(rows) > 1 else over[:1]), *ends(rows, "least", "most")]


def ends(rows: Sequence[Row], low: str, high: str) -> list[str]:
    return [min((r[low] for r in rows), key=float), max((r[high] for r in rows), key=float)]


def clock_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Of a machine, an arithmetic and a way to draw: `auto` and the same with a trained drafter's tree."""
    sampling = cells[2].removesuffix(", eight at once")
    at_once = "8" if cells[2].endswith("eight at once") else "1"
    where = {
        "instructions": cells[0],
        "compute": cells[1],
        "sampling": sampling,
        "at once": at_once,
    }
    rows = [pick(CLOCK, method=method, **where) for method in ("auto", "auto, states")]
    ratios_of = [[r["over plain"], r["low"], r["high"]] for r in rows if r]
    return [*(x for each in ratios_of for x in each), *(r["tokens a pass"] for r in rows if r)]


STARTS = {
    "--help": ["--help"],
    "methods": ["methods"],
    "a wrong method name, a wrong --sample value": [
        "a wrong method name",
        "a wrong --sample value",
    ],
    "generate, 8 tokens, zoo:smollm2, plain": ["generate, plain"],
    "the same, auto": ["generate, auto"],
    "import torch alone, of that": ["import torch"],
    "llama-cpp-python, 8 tokens of the same file": ["llama-cpp-python"],
}


def start_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    rows = [pick(START, command=name) for name in STARTS.get(cells[0], [])]
    values = [row[c] for c in ("quiet", "loaded", "zen1", "xeon") for row in rows if row]
    return [v for v in values if v] or None


def trained_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    method, _, trained = cells[0].partition(" (")
    method = method.replace(", confidence", " confidence").partition(" confidence")[0]
    model = ("zoo:tiny", "zoo:smollm2")[place.nth]
    rows = {
        (r["law"], r["nodes"]): r
        for r in TRAINED.rows
        if r["model"] == model
        and r["method"].partition(" ")[0] == method
        and bool(trained) == r["trained"].startswith("zoo:")
    }
    few, many, drawn = (rows.get(k) for k in (("greedy", "4"), ("greedy", "16"), ("T = 0.7", "16")))
    if many is None or drawn is None:
        return None
    timed = few or many
    weight = float(many["bytes"])
    return [
        *([few[k] for k in ("tokens a pass", "low", "high")] if few else []),
        *(r[k] for r in (many, drawn) for k in ("tokens a pass", "low", "high")),
        *(many[f"accepted {d} deep"] for d in (1, 2, 3)),
        many["draft in passes"],
        timed["replayed"],
        timed["timed"],
        timed["training seconds"],
        told(weight / (1e6 if cells[-1].endswith("MB") else 1e3)),
    ]


def times_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    method, _, over = cells[1].partition(" over ")
    rows = [
        row
        for law in ("greedy", "T = 0.7")
        for nodes in ("4", "16")
        for row in TRAINED.rows
        if (row["model"], row["method"], row["law"], row["nodes"], row["over"])
        == (cells[0], method, law, nodes, over)
        and not row["trained"].startswith("zoo:")
    ]
    return [row[k] for row in rows for k in ("times", "times low", "times high")] or None


def context_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    method, rest = cells[0].split(", ", 1)
    law = rest.rpartition(", ")[2] if ", " in rest else rest
    trained = "longspec, places as they are" if "pieces" in rest else method
    rows = [
        r
        for r in CONTEXT.rows
        if r["method"] == method
        and r["law"] == law
        and (r["trained"] == trained or method != "longspec")
    ]
    if not rows:
        return None
    by = {r["prompt"]: r for r in rows}
    first, last = by["32"], by["960"]
    return [
        *(by[p][k] for p in ("32", "128", "512", "960") for k in ("tokens a pass", "low", "high")),
        *(told(int(r["bytes kept"]) / 1024) for r in (first, last)),
        *(r["milliseconds a draft"] for r in (first, last)),
    ]


def scaling_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    from polydec.lab.bench.scaling import ScalingPoint, extrapolation_error, fit_scaling_law

    points = [
        ScalingPoint(int(r["tokens"]), int(r["layers"]), float(r["accepted"]))
        for r in SCALING.rows
        if r["law"] == cells[0]
    ]
    law = fit_scaling_law(points)
    return [
        *(told(x) for i in (1, 2) for x in (law.factors[i], law.errors[i])),
        *map(told, (law.explained, law.left_out, extrapolation_error(points))),
    ]


def drafter_grid_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """What doublings of tokens and of parameters of drafters on states bring, and how well the law fits: means over seeds,
    each with a law of its own, with intervals."""
    from polydec.lab.bench.scaling import ScalingPoint, extrapolation_error, fit_scaling_law

    figures = list[tuple[float, ...]]()
    for seed in sorted({r["seed"] for r in DRAFTER_GRID.rows}):
        points = [
            ScalingPoint(int(r["tokens"]), int(r["parameters"]), float(r["accepted"]))
            for r in DRAFTER_GRID.rows
            if (r["law"], r["seed"]) == (cells[0], seed)
        ]
        law = fit_scaling_law(points)
        fit = law.explained, law.left_out, extrapolation_error(points)
        figures.append((*law.factors[1:3], *fit))
    assert len(figures) == 3, len(figures)
    # A column is one figure of all seeds.
    return [told(x) for values in zip(*figures) for x in (fmean(values), *student_interval(values))]


def search_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    row = pick(SEARCH, method=cells[0])
    if row is None:
        return None
    names = (
        "accuracy",
        "over greedy",
        "chain",
        "make",
        "order",
        "tokens written",
        "of best of 8",
        "of texts alone",
        "texts judged",
    )
    return FIGURE.findall(" | ".join(row[n] for n in names))


def canvas_constraint_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A way to fill and a form of answer, with the constraint and without."""
    method, _, form = cells[0].rpartition(": ")
    both = [
        pick(CANVAS_CONSTRAINTS, method=method, form=form, constraint=which)
        for which in ("with", "without")
    ]
    names = ("valid", "passes", "right", "ms")
    return [row[name] for name in names for row in both if row] or None


def press_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A press at 1,000 and at 2,000 tokens."""
    return pressed_cells(PRESSES, cells[0], ("1000", "2000"))


def pressed_cells(run: Run, cell: str, lengths: Sequence[str]) -> list[str] | None:
    name, _, options = cell.partition(" ")
    found = [pick(run, press=name, options=options, length=length) for length in lengths]
    names = ("bits", "share", "perplexity", "kl", "same")
    return [row[name] for name in names for row in found if row] or None


def long_press_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A press on a longer book, at 4,000 and at 8,000 tokens."""
    return pressed_cells(PRESSES_LONG, cells[0], ("4000", "8000"))


def text_press_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A press on three texts: its perplexity at each length, and the mean of KL."""
    name, _, options = cells[0].partition(" ")
    rows = [r for r in PRESSES_TEXTS.rows if (r["press"], r["options"]) == (name, options)]
    ordered = [r for text in ("stories", "books", "python") for r in rows if r["text"] == text]
    return [rows[0]["bits"], *(r["perplexity"] for r in ordered), told(fmean(column(rows, "kl")))]


def llama_cpp_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A cache of llama.cpp at 1,000 and at 2,000 tokens."""
    rows = [pick(PRESSES_LLAMA_CPP, cache=cells[0], length=n) for n in ("1000", "2000")]
    names = ("bits", "share", "perplexity", "kl", "same")
    return [row[name] for name in names for row in rows if row] or None


def step_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A press in the compiled step, at 2,000 and at 8,000 tokens."""
    rows = [
        row
        for context in ("2000", "8000")
        if (row := pick(PRESSES_STEP, set="AVX-512-Zen", press=cells[0], context=context))
    ]
    names = ("bytes", "perplexity", "kl", "row", "rows", "plain", "auto")
    return [row[name] for name in names for row in rows] or None


WAYS_TO_SORT = {
    "one prompt": "alone",
    "one prompt, prototypes only": "alone, prototypes only",
    "one prompt, words only": "alone, words only",
    "four prompts, transported": "transported",
    "four prompts, prototypes only": "transported, prototypes only",
    "four prompts, words only": "transported, words only",
    "four prompts, averaged": "averaged",
    "four prompts, averaged, prototypes only": "averaged, prototypes only",
}


def classify_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    row = pick(CLASSIFY, way=WAYS_TO_SORT[cells[0]])
    return row and [row[name] for name in ("accuracy", "least", "most", "deviation")]


def of_three_seeds(rows: Sequence[Row], name: str) -> list[str]:
    """The mean of a column over three seeds, and its interval."""
    values = column(rows, name)
    assert len(values) == 3, (name, len(values))
    return [str(fmean(values)), *map(str, student_interval(values))]


def three_seeds_row(
    run: Run, name: Callable[[Row], str], *columns: str
) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    """Rows of a file by a name, as means over three seeds with their intervals."""

    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        rows = [row for row in run.rows if name(row) == cells[0]]
        return [x for one in columns for x in of_three_seeds(rows, one)] if rows else None

    return values


def seed_differences(
    run: Run, column_name: str, one: Mapping[str, str], other: Mapping[str, str]
) -> list[str]:
    """By how much one row is above another, seed by seed: the mean and its interval."""
    first, second = (
        {r["seed"]: float(r[column_name]) for r in run.rows if where.items() <= r.items()}
        for where in (one, other)
    )
    assert len(first) == 3 and first.keys() == second.keys(), (run.file, one, other)
    more = [first[seed] - second[seed] for seed in first]
    return [*map(told, (fmean(more), *student_interval(more)))]


DRAWN_SEARCH = "3 spans, drawn search"
SPAN_ARMS = {
    "dense": "dense",
    "3 spans": "3 spans, scores of anchors divided by the root of a head's size",
    "3 spans, published scale": "3 spans, scores as published",
    DRAWN_SEARCH: "3 spans, a search that was drawn and learns nothing",
    "1 span": "1 span, scores divided",
}
"""What the page calls the arms of the file."""


def superlinear_label(row: Row) -> str:
    """What the page calls an arm."""
    return SPAN_ARMS[row["arm"]]


def span_difference(one: str, other: str) -> list[str]:
    """By how much an arm recalls more than another after the further steps."""
    return seed_differences(SUPERLINEAR, "recall", {"arm": one}, {"arm": other})


def noise_difference(one: tuple[str, str], other: tuple[str, str]) -> list[str]:
    """By how much more answers are right: training and way of both."""
    first, second = ({"training": training, "way": way} for training, way in (one, other))
    return seed_differences(NOISE, "right", first, second)


def certainty_saved(more: tuple[str, str], fewer: tuple[str, str]) -> list[str]:
    """How many passes one training takes off another's, seed by seed: training and way of both."""
    first, second = ({"training": training, "way": way} for training, way in (more, fewer))
    return seed_differences(CERTAINTY, "passes", first, second)


WINDOWS_READ = {"vectors": "with vectors", "alone": "each window alone"}


def windows_difference(name: str) -> list[str]:
    """By how much a figure is higher with vectors than without."""
    return seed_differences(WINDOWS, name, {"windows": "vectors"}, {"windows": "alone"})


def untuned_windows() -> list[str]:
    """What the model as it was takes for later windows: read alone, and with all that stands before."""
    rows = [row for row in WINDOWS.rows if row["windows"] == "alone"]
    return [*of_three_seeds(rows, "nats_later_alone"), *of_three_seeds(rows, "nats_later_whole")]


OWN_CONTEXT_ROWS = {
    "nats behind places, without": "no vectors",
    "nats behind places, none": "vectors of the untrained coprocessor",
    "nats behind places, chain": "pause tokens, trained as long",
    "nats behind places, latent": "vectors of the coprocessor",
    "nats of 24 tokens, never": "never",
    "nats of 24 tokens, once": "once, before the first",
    "nats of 24 tokens, every 8": "every 8 tokens",
    "nats of 24 tokens, every 4": "every 4 tokens",
    "none open": "none",
    "by the policy": "a quarter, by the policy",
    "by perplexity": "a quarter, by perplexity",
    "by chance": "a quarter, by chance",
    "all open": "all",
    "no passage": "there is no passage",
    "nats, never": "no vectors are read",
    "nats, 0 late": "no token late",
    "nats, 1 late": "one token late",
    "nats, 2 late": "two tokens late",
    "nats, 4 late": "four tokens late",
    "nats, 8 late": "eight tokens late",
    "answers at once": "at once",
    "written steps": "behind the written steps",
    "continuous thoughts, 0": "continuous thoughts, none of the three",
    "continuous thoughts, 3": "behind three continuous thoughts",
    "a hidden thought": "behind a hidden thought",
    "another's thought": "behind that of another question",
}
"""What the page calls the figures of the file."""


def own_context_label(row: Row) -> str:
    """What the page calls a figure; those that it does not show keep their names."""
    return OWN_CONTEXT_ROWS.get(row["what"], row["what"])


def own_context_gain(less: str, more: str) -> list[str]:
    """By how much the figure of a name is above that of another."""
    return seed_differences(OWN_CONTEXTS, "value", {"what": more}, {"what": less})


def plans_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A way to write eight texts; how many of them differ is the same in every seed."""
    rows = [row for row in PLANS.rows if row["way"] == cells[0]]
    if not rows:
        return None
    figures = [of_three_seeds(rows, name) for name in ("rouge-2", "best rouge-2", "alike")]
    (different,) = {row["different"] for row in rows}
    return [*(x for three in figures for x in three), different]


IMAGE_SHARES = {"10 %": "0.1", "20 %": "0.2", "35 %": "0.35"}
"""What the page calls the shares of the file; what keeps a share of its own has none."""


def image_presses_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A way to leave vectors of an image out, and how much more of its answers are right than at random."""
    share = IMAGE_SHARES.get(cells[0], "0.0")
    rows = [r for r in IMAGE_PRESSES.rows if (r["way"], r["share"]) == (cells[1], share)]
    if not rows:
        return None
    (tokens,) = {row["tokens"] for row in rows}
    figures = [tokens, *of_three_seeds(rows, "right")]
    # Of what keeps all vectors, and of random keep itself, the page compares nothing.
    if cells[0] == "all" or cells[1] == "random":
        return figures
    other = "random, as many" if share == "0.0" else "random"
    one, two = ({"way": way, "share": share} for way in (cells[1], other))
    return [*figures, *seed_differences(IMAGE_PRESSES, "right", one, two)]


def plans_difference(name: str, other: str) -> list[str]:
    """By how much a figure of plan-guided texts is above another way's."""
    return seed_differences(PLANS, name, {"way": "plan-guided"}, {"way": other})


GREEDY_TEXTS = {"greedy": "as it is", "blocked": "blocked"}


def blocked_differences() -> list[str]:
    """What the citation blocker changes."""
    return [
        figure
        for name in ("copied", "repeated", "nats")
        for figure in seed_differences(CITATIONS, name, {"text": "blocked"}, {"text": "greedy"})
    ]


def byte2word_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A kind of `train words` that reads tokens, or words of bytes."""
    rows = [r for r in BYTE2WORD.rows if r["kind"] == cells[0].replace("`", "")]
    if not rows:
        return None
    counts = [rows[0][name] for name in ("weights", "embeddings")]
    figures = [of_three_seeds(rows, name) for name in ("bits", "slips", "cost")]
    return [*counts, *(x for three in figures for x in three)]


BEAMS_OF_WORDS = {"0": "greedily", "1": "one beam", "5": "five beams"}


def word_beam_label(row: Row) -> str:
    """What the page calls a kind and its number of beams inside a word."""
    return f"{row['kind']}, {BEAMS_OF_WORDS[row['beams']]}"


def word_beam_gain(name: str, kind: str) -> list[str]:
    """By how much a figure of words by five beams is above that of greedy ones."""
    five, greedy = ({"kind": kind, "beams": beams} for beams in ("5", "0"))
    return seed_differences(WORD_BEAM, name, five, greedy)


def hidden_states_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Texts of a kind, and a rate: perplexity, the change with its interval, and the share of texts that got better."""
    name, _, rate = cells[0].partition(", ")
    row = pick(HIDDEN_STATES[name], rate=rate)
    if row is None:
        return None
    better = told(100 * float(row["better"]))
    return [row["perplexity"], row["change"], *FIGURE.findall(row["interval"]), better]


WAYS_OF_BEAMS = {
    "beam search": "beam",
    "beams that leave out what ends otherwise, without a head": "filtered",
    "conditional beams": "conditional",
}
"""Rows of the tables of conditional beams, and their names in the file."""
WISHES = ("long", "and")
"""Wishes of these tables, in order."""


def wish_rows(wish: str, way: str) -> list[Row]:
    return [r for r in CONDITIONAL.rows if (r["wish"], r["way"]) == (wish, way)]


def conditional_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A way to search, of the wish whose table it is."""
    rows = wish_rows(WISHES[place.nth], WAYS_OF_BEAMS[cells[0]])
    return [x for name in ("met", "nats", "tokens") for x in of_three_seeds(rows, name)]


def wishes_met() -> list[str]:
    """How much oftener conditional beams find a text that says "and" than the filter and than beam search, by seed."""
    found = {way: column(wish_rows("and", way), "met") for way in WAYS_OF_BEAMS.values()}
    out = list[str]()
    for other in ("filtered", "beam"):
        more = [a - b for a, b in zip(found["conditional"], found[other], strict=True)]
        out += map(told, (fmean(more), *student_interval(more)))
    return out


def merged_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """A boundary and a part of the way: how much shorter, what both ways add, and by how much they differ, seed by seed."""
    boundary, _, share = cells[0].partition(", ")
    both = [
        [
            r
            for r in MERGED_TOKENS.rows
            if (r["boundary"], r["way"], float(r["share"])) == (boundary, way, float(share))
        ]
        for way in ("means", "trained")
    ]
    if not all(both):
        return None
    less = [b - a for a, b in zip(*(column(rows, "more") for rows in both), strict=True)]
    shorter = told(100 * fmean(column(both[0], "shorter")))
    ways = [x for rows in both for x in of_three_seeds(rows, "more")]
    return [shorter, *ways, *map(told, (fmean(less), *student_interval(less)))]


def merged_cost() -> list[str]:
    """What words read at a quarter and a half of the way cost, in % of nats a byte, and how much shorter the prompt is."""
    out = list[str]()
    for share in ("0.25", "0.5"):
        rows = [
            r
            for r in MERGED_TOKENS.rows
            if (r["boundary"], r["way"], r["share"]) == ("word", "trained", share)
        ]
        cost = [100 * float(r["more"]) / float(r["plain"]) for r in rows]
        out += map(told, (100 * fmean(column(rows, "shorter")), fmean(cost)))
        out += map(told, student_interval(cost))
    return out


CANVASES = {
    "fast-dllm, threshold 0.95": ("policies", "threshold 0.95", False),
    "localleap, 0.99": ("policies", "local 0.99", False),
    "dparallel, trained, 0.1 nats": ("policies", "dparallel 0.1", True),
    "one pass for all (llada, steps=1)": ("policies", "fixed passes 1", True),
    "long answers: freecache with a threshold of 0.9": ("long", "threshold, freecache 0.9", False),
}
"""The first table of docs/diffusion.md: file, policy, and whether the interval of what is lost stands there."""


def canvas_in_short(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    file, policy, interval = CANVASES[cells[0]]
    row = pick(DIFFUSION[file], policy=policy, task="all")
    if row is None:
        return None
    if file == "long":
        return [row["passes_saved"], row["time_saved"], row["lost"], row["n"]]
    saved = ("passes_saved", *(("saved_low", "saved_high") if policy != "fixed passes 1" else ()))
    lost = ("lost", *(("lost_low", "lost_high") if interval else ()))
    return [row[name] for name in (*saved, *lost)]


def passes_row(run: Run) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        where = {
            "file": cells[0],
            "set": cells[1],
            "context": cells[2].replace(",", ""),
            "side": f"step {cells[3]}",
        }
        out = list[str]()
        for rows, cell in zip((1, 2, 4, 8, 16, 512), cells[4:10], strict=True):
            row = pick(run, rows=str(rows), **where)
            aim = re.findall(r"\((.*?)\)", cell)
            out += [*([row["to_llama_cpp"]] if row and cell else []), *aim]
        eight, one = (pick(run, rows=n, **where) for n in ("8", "1"))
        if eight is None or one is None:
            return None
        return [
            *out,
            told(float(eight["ms"]) / float(one["ms"])),
            *re.findall(r"\((.*?)\)", cells[10]),
        ]

    return values


def threads_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    rows = [pick(THREADS, rows=cells[0], threads=str(n)) for n in (1, 2, 4, 8, 16)]
    return [row[k] for row in rows if row for k in ("ms", "cpu_ms")] or None


def parallel_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    out = list[str]()
    for steps, cell in zip((6, 3, 2, 1), cells[1:5], strict=True):
        row = pick(PARALLEL, task=cells[0], method=f"mdlm steps={steps}")
        if row is None:
            return None
        closed = [told(100 * float(row["closed_form"]))] if "(" in cell else []
        out += [told(100 * float(row["right"])), *closed]
    row = pick(PARALLEL, task=cells[0], method="fast-dllm threshold=0.9 block=0")
    return row and [*out, told(100 * float(row["right"])), row["passes"]]


SAID = (
    "accuracy",
    "low",
    "high",
    "passes",
    "passes_saved",
    "lost",
    "lost_low",
    "lost_high",
    "ms",
    "time_saved",
    "same",
)


def canvas_row(run: Run) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        row = pick(run, policy=cells[0], task="all")
        return row and [row[name] for name in SAID]

    return values


def drawn_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    row = pick(DIFFUSION["drawn"], policy=cells[0], task="all")
    if row is None:
        return None
    tasks = [
        pick(DIFFUSION["drawn"], policy=cells[0], task=t)
        for t in ("shuffle", "pick", "count", "replace")
    ]
    return [
        *(row[name] for name in ("accuracy", "low", "high", "passes", "positions", "ms")),
        *(t["accuracy"] for t in tasks if t),
    ]


def superposed_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    row = pick(SUPERPOSED, way=cells[0])
    names = ("positions", "best", "mean", "times", "times low", "times high", "words of best")
    return row and [row[name] for name in (*names, "more", "more low", "more high")]


PACES = re.compile(r"(?P<kind>[a-z]+)(?P<two> of two)?, (?P<pace>[\d.]+)(?: and (?P<again>\d))?")


def protocol_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Of a way its greedy figures, and how often it is right at temperature 1."""
    way = PACES.fullmatch(cells[0])
    if way is None:
        return None
    kind, again = way["kind"], way["again"] or ""
    pace = {"confidence": "steps", "remasking": "steps"}.get(kind, kind)
    where = {"kind": kind, "block": "0", pace: way["pace"], "again": again}
    where["count"] = "2" if way["two"] else "1" if again else ""
    row, *tasks = (
        pick(PROTOCOL, task=t, temperature="0", **where)
        for t in ("all", "shuffle", "pick", "count", "replace")
    )
    hot = pick(PROTOCOL, task="all", temperature="1", **where)
    if row is None or hot is None:
        return None
    over = [row[name] for name in ("over", "over low", "over high") if row[name]]
    first = [row[name] for name in ("passes", "right", "low", "high")]
    return [*first, *(t["right"] for t in tasks if t), *over, hot["right"]]


def by_task_row(run: Run, *policies: str) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        rows = [pick(run, task=cells[0], policy=policy) for policy in policies]
        return [row["accuracy"] for row in rows if row] or None

    return values


def replay_row(run: Run) -> Callable[[Place, Sequence[str]], Sequence[str] | None]:
    names = ("pass_for_pass", "runs", "tokens_a_pass", "error", "tokens_a_second", "error_a_second")

    def values(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
        row = pick(run, setting=cells[0].partition(",")[0])
        return row and [row[name] for name in names]

    return values


def ties_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    model, dtype = cells[0].split(", ")
    rows = [r for r in TIES.rows if (r["model"], r["dtype"]) == (model, dtype)]
    if len(rows) != 2:
        return None
    clean, broken = sorted(rows, key=lambda r: r["fault"] != "none")
    names = ("equal", "near_ties", "faults")
    return [
        *(clean[n] for n in names),
        *([clean["largest_tie"]] if clean["largest_tie"] else []),
        *(broken[n] for n in names),
        broken["smallest_fault"],
    ]


def edits_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Forty edits: what they took, how far the law is near the edit and further on, and how often the likeliest token is the
    same."""
    rows = EDITS.rows
    if cells[0].startswith("CPU seconds"):
        fed, edited = column(rows, "recompute_s"), column(rows, "edited_s")
        times = column(rows, "times")
        sums = (sum(fed), sum(edited), sum(fed) / sum(edited))
        return [told(x) for x in (*sums, median(times), min(times), max(times))]
    if cells[0].startswith("KL"):
        name, bound = ("near", 0.02) if "64" in cells[0] else ("far", 0.005)
        off = column(rows, name)
        above = sum(x > bound for x in off)
        figures = [0.0, fmean(off), max(off), bound, above, *([len(off)] if name == "near" else [])]
        return [told(x) for x in (*figures, fmean(column(rows, f"naive_{name}")))]
    return ["1", told(fmean(column(rows, "same"))), told(fmean(column(rows, "naive_same")))]


def short_trained_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """docs/trained.md: tokens a pass on both models, greedy, 16 nodes."""
    method, _, trained = cells[0].partition(" as ")
    out = list[str]()
    for model, cell in zip(("zoo:tiny", "zoo:smollm2"), cells[1:], strict=False):
        rows = [
            r
            for r in TRAINED.rows
            if (r["model"], r["method"], r["law"], r["nodes"]) == (model, method, "greedy", "16")
            and (r["trained"] == trained or (not trained and not r["trained"].startswith("zoo:")))
        ]
        if cell:
            out += [rows[0][k] for k in ("tokens a pass", "low", "high")]
    return out


def subject_row(place: Place, cells: Sequence[str]) -> Sequence[str] | None:
    """Of the page of results: a figure of each subject, from the file of its own report."""
    subject = cells[0]
    if subject.startswith("a pass over one row"):
        return one_row_beside_llama_cpp(PASSES)
    if subject == "the same":
        return one_row_beside_llama_cpp(PASSES_ZEN5)
    if subject.startswith("tokens a pass"):
        tiny, smollm2 = best_trained()
        return [tiny if subject.endswith("zoo:tiny") else smollm2]
    if subject.startswith("passes saved"):
        row = pick(DIFFUSION["policies"], policy="threshold 0.95", task="all")
        return row and [row[name] for name in ("passes_saved", "saved_low", "saved_high", "lost")]
    if subject.startswith("auto with a cache"):
        return packed()[-1:]
    if subject.startswith("a prompt that was edited"):
        fed, edited = column(EDITS.rows, "recompute_s"), column(EDITS.rows, "edited_s")
        return [told(sum(fed) / sum(edited))]
    if subject.startswith("deviation"):
        return [told(max(column(ENUMERATED.rows, "variation")))]
    if subject.startswith("eight prompts at once"):
        return eight_over_one(*SPEED_WITH_ENDS)
    return None


def one_row_beside_llama_cpp(run: Run) -> list[str]:
    """Of llama.cpp's time, a 1B model in Q4_K_M, the step in int16."""
    step = {"file": "r1b-Q4_K_M", "set": "AVX-512", "context": "64", "side": "step int16"}
    row = pick(run, rows="1", **step)
    return [row["to_llama_cpp"]] if row else []


def nth(*numbers: int) -> Callable[[Place], bool]:
    return lambda place: place.nth in numbers


METHODS = "| method | over plain, all tasks (95 %) | best workload | worst workload |"
CATEGORIES = (
    "| category | tasks | auto over plain, clock | best fixed recipe | auto over best, clock |"
)
CANVAS = "| method | right | passes | saved | points lost | ms | time saved | same text |"
KINDS = (
    "| tokens a pass | greedy, 4 nodes | greedy, 16 nodes | T = 0.7, 16 nodes | first guess right (16) | two deep | three deep "
    "| a draft, in passes (16) | replayed, timed (4) | CPU seconds | weights |"
)
STEP = "| file | set | context | arithmetic | 1 | 2 | 4 | 8 | 16 | prompt of 512 | t(8) / t(1) |"


def front_page(
    row: str, side: str, *columns: str, over: str = "plain", run: Run = FRONT_PAGE
) -> list[str]:
    """Figures of one side beside another, over all tasks."""
    found = pick(run, row=row, side=side, kind="all", over=over)
    return [found[column] for column in columns] if found else []


SPEED_WITH_ENDS = ("speed", "low", "high")


def sides_in_turns(
    run: Run, row: str, over: str = "plain"
) -> Callable[[Place, Sequence[str]], list[str] | None]:
    """The row of a side: speed over another one's with its interval, of workloads the least and the most, tokens a pass."""

    def figures(place: Place, cells: Sequence[str]) -> list[str] | None:
        side = cells[0].replace(" --set ", ", ")
        kinds = [
            float(found["speed"])
            for found in run.rows
            if (found["row"], found["side"], found["over"]) == (row, side, over)
            and found["kind"] != "all"
        ]
        if not kinds:
            return None
        return [
            *front_page(row, side, *SPEED_WITH_ENDS, over=over, run=run),
            told(min(kinds)),
            told(max(kinds)),
            *front_page(row, side, "tokens a pass", over=over, run=run),
        ]

    return figures


def free_ends() -> Counter[str]:
    """How answers ended that a prompt alone asked to follow a schema."""
    return Counter(row["end"] for row in FREE.rows)


VOTE_FIGURES = ("right", "points", "points low", "points high", "speed")
"""What is said of a vote beside greedy answers."""


def many_at_once(side: str, *columns: str, over: str) -> list[str]:
    """Figures of eight prompts answered one way beside another way, over all workloads."""
    return front_page("many", side, *columns, over=over, run=MANY)


def eight_over_one(*columns: str) -> list[str]:
    """Plain decoding of eight prompts at once over the same one after another."""
    return many_at_once("plain, eight at once", *columns, over="plain, one after another")


def together_or_apart(place: Place, cells: Sequence[str]) -> list[str] | None:
    """A row of eight prompts: speed over one after another with its interval, then all that is told over eight at once."""
    apart = many_at_once(cells[0], *SPEED_WITH_ENDS, over="plain, one after another")
    together = sides_in_turns(MANY, "many", "plain, eight at once")(place, cells)
    return [*apart, *together] if together else None


def long_context_row(place: Place, cells: Sequence[str]) -> list[str] | None:
    """A row of a model, a context and a cache: the prompt, tokens of both methods, and one over the other."""
    model, context, cache = cells[:3]
    found = pick(
        LONG_CONTEXTS, model=model.strip("`"), context=context.replace(",", ""), cache=cache
    )
    columns = ("prompt", "positions", "plain", "auto", "over", "low", "high", "passes")
    return [found[name] for name in columns] if found else None


TABLES = (
    Table(
        "lab/reports/constraints-measured.md",
        "| method, form | valid: with it, without | passes: with it, without | right: with it, without "
        "| ms: with it, without |",
        CANVAS_CONSTRAINTS,
        canvas_constraint_row,
    ),
    Table(
        "lab/reports/replay-measured.md",
        "| setting | pass for pass | tokens a pass: live, error | tokens a second: live, error |",
        REPLAY,
        replay_row(REPLAY),
    ),
    Table(
        "lab/reports/replay-measured.md",
        "| setting | pass for pass | tokens a pass: live, error | tokens a second of processor time: live, error |",
        REPLAY_PROCESSOR,
        replay_row(REPLAY_PROCESSOR),
    ),
    Table("docs/trained.md", "| | `zoo:tiny` | `zoo:smollm2` |", TRAINED, short_trained_row),
    Table(
        "lab/reports/caches-measured.md",
        "| | feed all behind the edit | edited | the same, keys not turned |",
        EDITS,
        edits_row,
    ),
    Table(
        "lab/reports/verify-measured.md",
        "| model, type | clean: equal, near-ties, faults | largest tie, nats "
        "| one draft in five accepted unseen: equal, near-ties, faults | smallest fault, nats |",
        TIES,
        ties_row,
    ),
    Table(
        "README.md",
        "| machine | a pass over eight rows | `auto` over plain | by workload |",
        HEADLINE,
        headline,
    ),
    Table(
        "docs/measurements.md",
        "| one request, greedy, int16, two cores | a pass over eight rows | `auto` over plain, all together | by workload |",
        HEADLINE,
        headline,
    ),
    *(
        Table(
            page,
            "| engine | format | tokens a second | over Polydec's plain |",
            ENGINES,
            engine_row,
            label=2,
        )
        for page in ("README.md", "docs/measurements.md")
    ),
    Table(
        "docs/measurements.md",
        "| subject | machine | figure | in the lab book |",
        DIFFUSION["policies"],
        subject_row,
        label=2,
    ),
    Table(
        "docs/measurements.md",
        "| command | quiet, five turns | under load, four turns | Zen 1 at 2 GHz, under load | "
        "Intel Xeon with AMX, quiet, four turns |",
        START,
        start_row,
    ),
    Table(
        "lab/reports/speculation.md",
        "| instruction set | arithmetic | sampling | `auto` | `auto`, `states=true` | tokens a pass of both |",
        CLOCK,
        clock_row,
        3,
    ),
    Table("lab/reports/speculation.md", METHODS, SPEED, speed_row(SPEED)),
    Table("lab/reports/speculation.md", CATEGORIES, AUTO, auto_row(AUTO)),
    Table(
        "lab/reports/speculation.md",
        "| fastest methods | greedy, batch 1 | greedy, penalty 1.1, batch 1 | T = 0.7, batch 1 | greedy, batch 8 "
        "| greedy, penalty 1.1, batch 8 | T = 0.7, batch 8 |",
        OVERVIEW,
        overview_row,
    ),
    Table("lab/reports/all-methods.md", METHODS, ALL_SPEED, speed_row(ALL_SPEED)),
    Table("lab/reports/all-methods.md", CATEGORIES, ALL_AUTO, auto_row(ALL_AUTO)),
    Table("lab/reports/trained-measured.md", KINDS, TRAINED, trained_row),
    Table(
        "lab/reports/trained-measured.md",
        "| on a Xeon with AMX | over plain | of a workload: least, most | tokens a pass |",
        FRONT_PAGE,
        sides_in_turns(FRONT_PAGE, "trained"),
    ),
    Table(
        "lab/reports/speculation.md",
        "| eight prompts | over one after another | over `plain` eight at once | of a workload: least, most | tokens a pass |",
        MANY,
        together_or_apart,
    ),
    Table(
        "lab/reports/speculation.md",
        "| eight prompts at once | over `plain` | of a workload: least, most | tokens a pass |",
        COMPANY,
        sides_in_turns(COMPANY, "company", "plain, eight at once"),
    ),
    Table(
        "lab/reports/speculation.md",
        "| sixteen prompts at once | over `plain` | of a workload: least, most | tokens a pass |",
        COMPANY,
        sides_in_turns(COMPANY, "company", "plain, sixteen at once"),
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| model | tokens | cache | the prompt, seconds | positions a second | `plain`, ms a token | `auto` "
        "| `auto` over plain (of three turns) | tokens a pass |",
        LONG_CONTEXTS,
        long_context_row,
        label=3,
    ),
    Table(
        "lab/reports/speculation.md",
        "| four requests each by `plain` and `auto` | over an engine for each | of a workload: least, most | tokens a pass |",
        SERVED,
        sides_in_turns(SERVED, "served", "an engine for each"),
    ),
    Table(
        "lab/reports/speculation.md",
        "| behind a long prompt | over plain | of a workload: least, most | tokens a pass |",
        LONG,
        sides_in_turns(LONG, "long"),
    ),
    Table(
        "lab/reports/speculation.md",
        "| depth chosen by | over plain | of a workload: least, most | tokens a pass |",
        DEPTHS,
        sides_in_turns(DEPTHS, "depths"),
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| whole or by cost, on the other Xeon | over plain | of a workload: least, most | tokens a pass |",
        TREES,
        sides_in_turns(TREES, "trained"),
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| by cost, on a Xeon with AMX | over plain | of a workload: least, most | tokens a pass |",
        BY_COST,
        sides_in_turns(BY_COST, "trained"),
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| | tokens a pass, times | greedy, 4 nodes | greedy, 16 nodes | T = 0.7, 4 nodes | T = 0.7, 16 nodes |",
        TRAINED,
        times_row,
        label=2,
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| tokens a pass behind a prompt of | 32 tokens | 128 | 512 | 960 | kept behind 32 and 960 | ms a draft, 32 and 960 |",
        CONTEXT,
        context_row,
    ),
    Table(
        "lab/reports/scaling.md",
        "| | a doubling of the tokens adds | a doubling of the layers | R² | error at points left out | beyond |",
        SCALING,
        scaling_row,
    ),
    Table(
        "lab/reports/scaling.md",
        "| drafters on states | a doubling of the tokens adds | a doubling of the parameters | R² "
        "| error at points left out | beyond |",
        DRAFTER_GRID,
        drafter_grid_row,
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| arm, three seeds | keys read, at most | before these steps | after them |",
        SUPERLINEAR,
        three_seeds_row(SUPERLINEAR, superlinear_label, "begun", "recall"),
        label=2,
    ),
    Table(
        "lab/reports/search-measured.md",
        "| method | accuracy | over greedy | chain | make | order | tokens written | of best of 8 "
        "| of texts alone | texts judged |",
        SEARCH,
        search_row,
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| press | bits | of float32 | perplexity | KL | same |",
        PRESSES,
        press_row,
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| press, 4,000 and 8,000 tokens | bits | of float32 | perplexity | KL | same |",
        PRESSES_LONG,
        long_press_row,
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| press | bits | stories | books | python | KL, mean |",
        PRESSES_TEXTS,
        text_press_row,
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| llama.cpp's cache | bits | of float32 | perplexity | KL | same |",
        PRESSES_LLAMA_CPP,
        llama_cpp_row,
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| press | bytes | perplexity | KL | one row, ms | eight rows, ms | `plain`, tokens a second | `auto` |",
        PRESSES_STEP,
        step_row,
    ),
    Table(
        "lab/reports/embeddings-measured.md",
        "| | accuracy | of the worst and the best prompt or set | deviation over them |",
        CLASSIFY,
        classify_row,
    ),
    Table(
        "lab/reports/pictures-measured.md",
        "| drawn by | passes | tokens a pass | nats a token | distance |",
        ROW_MARKS,
        three_seeds_row(ROW_MARKS, lambda row: row["name"], "passes", "tokens", "nats", "distance"),
    ),
    Table(
        "lab/reports/words-measured.md",
        "| kind | weights | of its embeddings | bits a byte | with slips | cost |",
        BYTE2WORD,
        byte2word_row,
    ),
    *(
        Table(
            "lab/reports/caches-measured.md",
            "| texts, rate | perplexity | nats a token, change | texts that got better |",
            run,
            hidden_states_row,
            where=nth(i),
        )
        for i, run in enumerate(HIDDEN_STATES.values())
    ),
    Table(
        "lab/reports/words-measured.md",
        "| kind | its own table | one dealt | four dealt | 16 dealt | 16 drawn | read right | by counts |",
        LEXINVARIANT,
        three_seeds_row(
            LEXINVARIANT,
            lambda row: row["kind"],
            *("own", "dealt_1", "dealt_4", "dealt_16", "drawn_16", "right", "counts"),
        ),
    ),
    Table(
        "lab/reports/words-measured.md",
        "| kind, how its next words are written | words right | nats of the written word | passes a word |",
        WORD_BEAM,
        three_seeds_row(WORD_BEAM, word_beam_label, "right", "nats", "passes"),
    ),
    Table(
        "lab/reports/diffusion-measured.md",
        "| training, and how it is decoded | passes | right |",
        NOISE,
        three_seeds_row(NOISE, lambda row: f"{row['training']}: {row['way']}", "passes", "right"),
    ),
    Table(
        "lab/reports/diffusion-measured.md",
        "| dParallel's training, and how it is decoded | passes | right |",
        CERTAINTY,
        three_seeds_row(
            CERTAINTY, lambda row: f"{row['training']}: {row['way']}", "passes", "right"
        ),
    ),
    Table(
        "lab/reports/steering-measured.md",
        "| windows are read | nats, first windows | nats, later windows |",
        WINDOWS,
        three_seeds_row(
            WINDOWS, lambda row: WINDOWS_READ[row["windows"]], "nats_first", "nats_later"
        ),
    ),
    *(
        Table(
            "lab/reports/steering-measured.md",
            head,
            OWN_CONTEXTS,
            three_seeds_row(OWN_CONTEXTS, own_context_label, "value"),
        )
        for head in (
            "| behind a place | nats a token |",
            "| the cache is read | nats of the 24 tokens that follow |",
            "| of the passage are read as tokens | nats a token of what follows |",
        )
    ),
    Table(
        "lab/reports/steering-measured.md",
        "| own questions are answered | right |",
        OWN_CONTEXTS,
        three_seeds_row(OWN_CONTEXTS, own_context_label, "value"),
    ),
    Table(
        "lab/reports/search-measured.md",
        "| way, tokens ahead, weight | reward | KL, nats | processor seconds a text |",
        ALIGNED,
        three_seeds_row(
            ALIGNED,
            lambda row: f"{row['way']}, {row['ahead']}, {row['weight']}",
            "reward",
            "nats",
            "seconds",
        ),
    ),
    Table(
        "lab/reports/steering-measured.md",
        "| vectors are read | nats of the 24 tokens |",
        OWN_CONTEXTS,
        three_seeds_row(OWN_CONTEXTS, own_context_label, "value"),
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| model, rate | intents that are right | more than at rate 0 | nats of the right intent |",
        STATE_CLASSES,
        three_seeds_row(
            STATE_CLASSES, lambda row: f"{row['model']}, {row['rate']}", "right", "change", "nats"
        ),
    ),
    Table(
        "lab/reports/sources-measured.md",
        "| kind | nats a token | right tokens | first token, ms | each further one, ms | seconds of a run |",
        ENCODER_DECODER,
        three_seeds_row(
            ENCODER_DECODER, lambda row: row["kind"], "nats", "right", "first", "next", "train"
        ),
    ),
    Table(
        "lab/reports/caches-measured.md",
        "| vectors | way | tokens of a prompt | right | more than as many at random |",
        IMAGE_PRESSES,
        image_presses_row,
        2,
    ),
    Table(
        "lab/reports/sources-measured.md",
        "| eight texts | ROUGE-2 of the answer | of the best | alike | different |",
        PLANS,
        plans_row,
    ),
    Table(
        "lab/reports/trained-measured.md",
        "| greedy text | learned 5-grams | distinct tokens | repeated 4-grams | nats a token |",
        CITATIONS,
        three_seeds_row(
            CITATIONS,
            lambda row: GREEDY_TEXTS[row["text"]],
            "copied",
            "distinct",
            "repeated",
            "nats",
        ),
    ),
    Table(
        "lab/reports/search-measured.md",
        "| way | as wanted | nats | tokens |",
        CONDITIONAL,
        conditional_row,
    ),
    Table(
        "lab/reports/steering-measured.md",
        "| boundary, part of the way to the longest | shorter | means of the parts | hypernetwork | hypernetwork less means |",
        MERGED_TOKENS,
        merged_row,
    ),
    Table(
        "docs/diffusion.md",
        "| | passes saved | points lost |",
        DIFFUSION["policies"],
        canvas_in_short,
    ),
    Table("lab/reports/native.md", STEP, PASSES, passes_row(PASSES), label=4, where=nth(0)),
    Table(
        "lab/reports/native.md", STEP, PASSES_ZEN5, passes_row(PASSES_ZEN5), label=4, where=nth(1)
    ),
    Table(
        "lab/reports/native.md",
        "| rows | 1 thread | 2 threads | 4 threads | 8 threads | 16 threads |",
        THREADS,
        threads_row,
    ),
    Table(
        "lab/reports/diffusion-measured.md",
        "| task | 6 passes | 3 | 2 | 1 | threshold 0.9 (passes) |",
        PARALLEL,
        parallel_row,
    ),
    Table(
        "lab/reports/search-measured.md",
        "| | positions | best | all | over one sample, times | words | over one sample, points |",
        SUPERPOSED,
        superposed_row,
    ),
    Table(
        "lab/reports/diffusion-measured.md",
        "| order, passes | passes | right | shuffle | pick | count | replace | over | right at T = 1 |",
        PROTOCOL,
        protocol_row,
    ),
    *(
        Table(
            "lab/reports/diffusion-measured.md",
            CANVAS,
            DIFFUSION[name],
            canvas_row(DIFFUSION[name]),
            where=nth(i),
        )
        for i, name in enumerate(("policies", "long", "blocks", "blocks-long", "varied"))
    ),
    *(
        Table(
            "lab/reports/diffusion-measured.md",
            f"| task | one a pass | {policy} |",
            DIFFUSION[name],
            by_task_row(DIFFUSION[name], "one a pass", file),
        )
        for policy, name, file in (
            ("fixed passes 1", "policies", "fixed passes 1"),
            ("prefix cache", "long", "prefix cache"),
            ("block-diffusion at 0.5", "blocks", "block-diffusion 0.5"),
        )
    ),
    Table(
        "lab/reports/diffusion-measured.md",
        "| method | right | passes | positions | ms | shuffle | pick | count | replace |",
        DIFFUSION["drawn"],
        drawn_row,
    ),
)


# ---- sentences ----


def alone() -> list[Row]:
    return [r for r in HEADLINE.rows if r["together"] == "1"]


def enumerated() -> list[str]:
    rows = ENUMERATED.rows
    return [
        str(len(rows)),
        str(sum(int(r["ways"]) for r in rows)),
        told(1e16 * max(column(rows, "variation"))),
    ]


def clean() -> list[str]:
    rows = CLEAN.rows
    seeds = sorted(int(r["seeds"]) for r in rows)
    assert not any(int(r["alarms"]) for r in rows)
    seconds = told(sum(column(rows, "seconds")))
    return [told(sum(seeds)), str(len(rows)), str(seeds[0]), str(seeds[-1]), seconds]


def command(run: Run) -> list[str]:
    """Runs, methods, seeds and seconds of the command; runs that kept their promise, and that measured."""
    rows = run.rows
    (seeds,) = {r["runs"] for r in rows}
    assert not any(int(r["faults"]) + int(r["near_ties"]) for r in rows)
    sums = [sum(column(rows, name)) for name in ("runs", "seconds", "keeps", "measured")]
    runs, seconds, keeps, measured = map(told, sums)
    return [runs, str(len(rows)), seeds, seconds, keeps, measured]


def best_trained() -> list[str]:
    """Tokens a pass, greedy, 16 nodes."""
    return [
        row["tokens a pass"]
        for method, model in (("eagle", "zoo:tiny"), ("zoo:smollm2-states", "zoo:smollm2"))
        for row in TRAINED.rows
        if (row["trained"], row["model"], row["law"], row["nodes"])
        == (method, model, "greedy", "16")
        and row["method"] in ("eagle", "eagle-3")
    ]


def beside(*policies: str) -> list[str]:
    """Passes saved, with their interval, and how many answers are right."""
    rows = [pick(DIFFUSION["policies"], policy=p, task="all") for p in policies]
    names = ("passes_saved", "saved_low", "saved_high", "accuracy")
    return [row[name] for row in rows if row for name in names]


def in_a_row() -> list[str]:
    """KL of edits 1 to 5, 6 to 10, 11 to 15 and 16 to 20, and how many times less all took."""
    rows = IN_A_ROW.rows
    parts = [
        fmean(float(r["kl"]) for r in rows if first <= int(r["edit"]) < first + 5)
        for first in (1, 6, 11, 16)
    ]
    times = sum(column(rows, "recompute_s")) / sum(column(rows, "edited_s"))
    return [told(x) for x in (*parts, times)]


def hadamard_at_length() -> list[str]:
    """What `hadamard` costs at 8,000 tokens."""
    row = pick(PRESSES_LONG, press="hadamard", length="8000")
    return [row[name] for name in ("share", "perplexity", "kl", "same")] if row else []


def hadamard_beside_quantised() -> list[str]:
    """Mean and greatest perplexity, bits and KL of both in 4 bits, over three texts at three lengths."""
    found = dict[str, list[str]]()
    for press, options in (("hadamard", "bits=4 group=32"), ("quantised", "bits=4")):
        rows = [r for r in PRESSES_TEXTS.rows if (r["press"], r["options"]) == (press, options)]
        grown = column(rows, "perplexity")
        found[press] = [*map(told, (fmean(grown), max(grown), fmean(column(rows, "kl"))))]
        found[press].append(rows[0]["bits"])
    mine, other = found["hadamard"], found["quantised"]
    return [mine[0], mine[1], mine[3], other[3], other[0], other[1], other[2], mine[2]]


def behind_long_prompts() -> list[str]:
    """LongSpec's tokens a pass behind 960 tokens over those behind 32, greedy, with the interval of two independent ones."""
    short, long = (
        pick(CONTEXT, trained="longspec", method="longspec", law="greedy", prompt=prompt)
        for prompt in ("32", "960")
    )
    if short is None or long is None:
        return []
    # The logarithm of a ratio: its variance is the sum of both, each read off its interval.
    widths = [log(float(row["high"]) / float(row["low"])) / 2 for row in (short, long)]
    ratio = float(long["tokens a pass"]) / float(short["tokens a pass"])
    return [told(ratio * exp(sign * hypot(*widths))) for sign in (0, -1, 1)]


def explained() -> list[str]:
    """R² of the greedy law of accepted tokens, with an interval by drawing trainings; its form is that of all of them."""
    import numpy as np

    from polydec.lab.bench.scaling import ScalingPoint, fit_scaling_law

    points = [
        ScalingPoint(int(r["tokens"]), int(r["layers"]), float(r["accepted"]))
        for r in SCALING.rows
        if r["law"] == "greedy"
    ]
    law = fit_scaling_law(points)
    generator = Random(0)
    drawn = list[float]()
    while len(drawn) < 1000:
        some = generator.choices(points, k=len(points))
        # A law over tokens and layers needs more than one of each.
        if len({p.capacity for p in some}) > 1 and len({p.tokens for p in some}) > 2:
            terms = np.array([law.terms(p) for p in some])
            accepted = np.array([p.accepted for p in some])
            off = accepted - terms @ np.linalg.lstsq(terms, accepted)[0]
            drawn.append(1 - float(off.var() / accepted.var()))
    drawn.sort()
    return [told(x) for x in (law.explained, drawn[25], drawn[974])]


def saved_on_varied_answers() -> list[str]:
    rows = [
        pick(DIFFUSION["varied"], policy=policy, task="all")
        for policy in ("threshold 0.9", "credit 0.95", "local 0.99")
    ]
    names = ("passes_saved", "saved_low", "saved_high")
    return [row[name] for row in rows if row for name in names]


def packed() -> list[str]:
    """Of float32's: attention of one row and of eight at 2,000 tokens in 8 bits, and `auto`'s speed at 4,000."""
    bits, none = (
        {r["context"]: r for r in PRESSES_STEP.rows if r["press"] == press}
        for press in ("bits=8", "none")
    )
    return [
        *(told(float(bits["2000"][k]) / float(none["2000"][k])) for k in ("row", "rows")),
        told(float(bits["4000"]["auto"]) / float(none["4000"]["auto"])),
    ]


def others() -> list[str]:
    """Tokens a pass, greedy, 16 nodes."""
    kinds = ("medusa", "eagle", "chimera", "falcon", "ppd", "hidden-transfer")
    rows = [pick(OTHERS, method=kind, law="greedy", nodes="16") for kind in kinds]
    return [row["tokens a pass"] for row in rows if row]


def travelling_speed() -> list[str]:
    """Greedy decoding with `zoo:smollm2-states` over plain decoding, timed: trees of 16 and of 4 nodes."""
    rows = [
        pick(TRAINED, trained="zoo:smollm2-states", law="greedy", nodes=nodes)
        for nodes in ("16", "4")
    ]
    return [row["timed"] for row in rows if row]


def beside_the_xeon() -> list[str]:
    """Of the travelling drafter, its whole tree fed: Zen 5 with 16 and 4 nodes, then two Xeons with 16 and with 4."""
    sides = ("eagle-3, cost_aware=false", "eagle-3, cost_aware=false, nodes=4")
    return travelling_speed() + [
        figure
        for run in (FRONT_PAGE, TREES)
        for side in sides
        for figure in front_page("trained", side, "speed", run=run)
    ]


def published_forms() -> list[str]:
    names = ("medusa (medusa-published)", "eagle (eagle-published)", "eagle-2 (eagle-published)")
    rows = [
        pick(OTHERS, method=name, law="greedy", nodes="16")
        for name in (*names, "medusa", "eagle", "eagle-2")
    ]
    return [row["tokens a pass"] for row in rows if row]


def long_caches() -> list[str]:
    """Right answers one token a pass, all that were asked, and times saved by four caches."""
    rows = DIFFUSION["caches"].rows
    ms = {
        policy: sum(float(r["ms"]) for r in rows if r["policy"] == policy)
        for policy in dict.fromkeys(r["policy"] for r in rows)
    }
    base = [r for r in rows if r["policy"] == "one a pass"]
    right = sum(float(r["accuracy"]) * int(r["n"]) / 100 for r in base)
    named = ("dual cache", "freecache", "dkv-cache", "threshold, freecache 0.9")
    return [told(round(right)), *(told(ms["one a pass"] / ms[policy]) for policy in named)]


def early() -> list[str]:
    """How often the answer of so far is right."""
    whole = {r["what"]: r["value"] for r in DIFFUSION["more"].rows}
    return [whole[f"answer right after {share}% of the passes"] for share in (0, 25, 50, 75, 100)]


SENTENCES = (
    Sentence(
        "lab/reports/caches-measured.md",
        "`hadamard` takes {} of float32's bytes, the exact tail and room to grow counted in, at a perplexity of {}, a KL of {} "
        "and the same likeliest token in {} of the places",
        PRESSES_LONG,
        hadamard_at_length,
    ),
    Sentence(
        "lab/reports/steering-measured.md",
        "later windows cost {} ({} to {}) nats a token with it",
        WINDOWS,
        partial(windows_difference, "nats_later"),
    ),
    Sentence(
        "lab/reports/steering-measured.md",
        "which have no vector, cost {} ({} to {})",
        WINDOWS,
        partial(windows_difference, "nats_first"),
    ),
    Sentence(
        "lab/reports/steering-measured.md",
        "takes {} ({} to {}) nats for later windows that are each read alone, and {} ({} to {}) where",
        WINDOWS,
        untuned_windows,
    ),
    *(
        Sentence(
            "lab/reports/steering-measured.md", text, OWN_CONTEXTS, partial(own_context_gain, *pair)
        )
        for text, pair in (
            (
                "the coprocessor takes off {} ({} to {}) nats a token",
                ("nats behind places, latent", "nats behind places, without"),
            ),
            (
                "and {} ({} to {}) more than pause tokens",
                ("nats behind places, latent", "nats behind places, chain"),
            ),
            (
                "One call brings {} ({} to {})",
                ("nats of 24 tokens, once", "nats of 24 tokens, never"),
            ),
            (
                "every 8 tokens {} ({} to {}) against once",
                ("nats of 24 tokens, once", "nats of 24 tokens, every 8"),
            ),
            (
                "every 4 tokens {} ({} to {})",
                ("nats of 24 tokens, once", "nats of 24 tokens, every 4"),
            ),
            ("take off {} ({} to {}) nats of the", ("none open", "no passage")),
            ("nats of the {} ({} to {}) that its words do", ("all open", "no passage")),
            ("perplexity is {} ({} to {}) above chance", ("by chance", "by perplexity")),
            ("the policy {} ({} to {}). The encoder", ("by chance", "by the policy")),
            ("one token costs {} ({} to {}) nats of the gain", ("nats, 0 late", "nats, 1 late")),
            ("four {} ({} to {}), and eight", ("nats, 0 late", "nats, 4 late")),
            (
                "eight tokens late the vectors bring {} ({} to {}), which",
                ("nats, 8 late", "nats, never"),
            ),
            (
                "Three continuous thoughts are {} ({} to {}) above an answer at once",
                ("answers at once", "continuous thoughts, 3"),
            ),
            (
                "A hidden thought is {} ({} to {}) above it",
                ("answers at once", "a hidden thought"),
            ),
            (
                "and {} ({} to {}) above the thought of another question",
                ("another's thought", "a hidden thought"),
            ),
        )
    ),
    *(
        Sentence(
            "lab/reports/sources-measured.md",
            words,
            ENCODER_DECODER,
            partial(seed_differences, ENCODER_DECODER, name, {"kind": one}, {"kind": other}),
        )
        for words, name, one, other in (
            (
                "gets {} ({} to {}) more of the tokens right",
                "right",
                "encoder-decoder",
                "decoder-only",
            ),
            ("at {} ({} to {}) nats a token more", "nats", "encoder-decoder", "decoder-only"),
            ("{} ({} to {}) nats more and", "nats", "taught", "encoder-decoder"),
            ("{} ({} to {}) fewer right, for", "right", "encoder-decoder", "taught"),
        )
    ),
    *(
        Sentence("lab/reports/words-measured.md", words, WORD_BEAM, partial(word_beam_gain, *of))
        for words, of in (
            ("words cost {} ({} to {}) nats of a word-pooled model", ("nats", "word-pooled")),
            ("and {} ({} to {}) of a byte model", ("nats", "bytes")),
            (
                "Right are {} ({} to {}) more of all words where words are pooled",
                ("right", "word-pooled"),
            ),
            ("and {} ({} to {}) where they are bytes", ("right", "bytes")),
        )
    ),
    Sentence(
        "lab/reports/sources-measured.md",
        "The answer's ROUGE-2 is {} ({} to {}) above a beam's",
        PLANS,
        partial(plans_difference, "rouge-2", "beam"),
    ),
    Sentence(
        "lab/reports/sources-measured.md",
        "the best of eight is {} ({} to {}) beside diverse beams",
        PLANS,
        partial(plans_difference, "best rouge-2", "diverse beam"),
    ),
    Sentence(
        "lab/reports/trained-measured.md",
        "Blocked, the share of learned 5-grams changes by {} ({} to {}), to none, and nothing can be told of their repetition "
        "({} ({} to {}) repeated 4-grams); a token costs {} ({} to {}) nats more",
        CITATIONS,
        blocked_differences,
    ),
    *(
        Sentence(
            "lab/reports/diffusion-measured.md", words, NOISE, partial(noise_difference, one, other)
        )
        for words, one, other in (
            (
                "one text is right {} ({} to {}) oftener than with random weights",
                ("masked model, two steps", "one text"),
                ("random weights, two steps", "one text"),
            ),
            (
                "**The second step** brings {} ({} to {})",
                ("masked model, two steps", "one text"),
                ("masked model, one step", "one text"),
            ),
            (
                "The likeliest of four texts brings {} ({} to {}) over one",
                ("masked model, two steps", "of four texts"),
                ("masked model, two steps", "one text"),
            ),
            (
                "rewriting is {} ({} to {}) above all gaps in a single pass",
                ("masked model, two steps", "one text"),
                ("none: zoo:diffusion", "all at once"),
            ),
        )
    ),
    Sentence(
        "lab/reports/search-measured.md",
        "find a text that says so {} ({} to {}) oftener than the filter and {} ({} to {}) oftener than beam search",
        CONDITIONAL,
        wishes_met,
    ),
    Sentence(
        "lab/reports/diffusion-measured.md",
        "it takes {} ({} to {}) passes fewer than the model as it was",
        CERTAINTY,
        lambda: certainty_saved(("none", "0.45 nats"), ("published", "0.45 nats")),
    ),
    Sentence(
        "lab/reports/diffusion-measured.md",
        "{} ({} to {}) fewer than the published one at 0.1 nats",
        CERTAINTY,
        lambda: certainty_saved(("published", "0.1 nats"), ("ours", "0.1 nats")),
    ),
    Sentence(
        "lab/reports/steering-measured.md",
        "{} % shorter cost {} ({} to {}) % of the nats a byte, {} % shorter {} ({} to {}) %",
        MERGED_TOKENS,
        merged_cost,
    ),
    Sentence(
        "lab/reports/caches-measured.md",
        "Its perplexity is {} on average and {} at most, below 1.01 in all nine, with {} bits a number; `quantised` takes {} "
        "for the same distance ({}, at most {}, KL {} where `hadamard` has {})",
        PRESSES_TEXTS,
        hadamard_beside_quantised,
    ),
    Sentence(
        "lab/reports/trained-measured.md",
        "over behind 32, {} [{}, {}] times as many a pass",
        CONTEXT,
        behind_long_prompts,
    ),
    *(
        Sentence(
            "lab/reports/trained-measured.md", text, SUPERLINEAR, partial(span_difference, *pair)
        )
        for text, pair in (
            ("than a drawn one, by {} ({} to {}), and", (DRAWN_SEARCH, "3 spans")),
            ("the dense model {} ({} to {}) more than it", ("dense", "3 spans")),
            ("the published scale by {} ({} to {})", ("3 spans", "3 spans, published scale")),
        )
    ),
    Sentence("lab/reports/scaling.md", "is not reached**, {} [{}, {}] greedy", SCALING, explained),
    Sentence(
        "lab/reports/diffusion-measured.md",
        "threshold 0.9 {} x [{}, {}], CreditDecoding {} x [{}, {}], LocalLeap {} x [{}, {}]",
        DIFFUSION["varied"],
        saved_on_varied_answers,
    ),
    Sentence(
        "README.md",
        "[{} to {} of plain on a Zen 5, {} to {} and {} to {} on two Xeons with AMX]",
        FRONT_PAGE,
        beside_the_xeon,
    ),
    Sentence(
        "docs/training.md",
        "{} to {} by trees of `zoo:smollm2-states` (one thread, Zen 5)",
        TRAINED,
        travelling_speed,
    ),
    Sentence(
        "docs/training.md",
        "{} ({} to {}) by its trees of 4 nodes, {} ({} to {}) by those of 16, and {} ({} to {}) by "
        "a chain of `zoo:smollm2-draft`, where `auto` is at {} ({} to {})",
        FRONT_PAGE,
        lambda: [
            figure
            for side in (
                "eagle-3, cost_aware=false, nodes=4",
                "eagle-3, cost_aware=false",
                "draft-model",
                "auto",
            )
            for figure in front_page("trained", side, *SPEED_WITH_ENDS)
        ],
    ),
    Sentence(
        "docs/training.md",
        "fed as far as that pays, which is the default, its trees are at {} ({} to {}) on another Xeon with AMX, where 4 "
        "nodes fed whole are at {} ({} to {})",
        BY_COST,
        lambda: [
            figure
            for side in ("eagle-3", "eagle-3, cost_aware=false, nodes=4")
            for figure in front_page("trained", side, *SPEED_WITH_ENDS, run=BY_COST)
        ],
    ),
    Sentence(
        "docs/trained.md",
        "writes {} to {} times as many tokens a second as plain decoding on a Zen 5, and {} to {} and {} to {} on two Xeons "
        "with AMX",
        FRONT_PAGE,
        beside_the_xeon,
    ),
    Sentence(
        "lab/reports/caches-measured.md",
        "over the last 48 tokens KL is {} in edits 1 to 5, {} in 6 to 10, {} in 11 to 15 and {} in 16 to 20 "
        "(a tenth of all lines is new by then), and all together took {} times less CPU time",
        IN_A_ROW,
        in_a_row,
    ),
    Sentence(
        "lab/reports/caches-measured.md",
        "takes {} of float32's attention for one row and {} for eight, and `auto` is {} times as fast with it at 4,000",
        PRESSES_STEP,
        packed,
    ),
    Sentence(
        "lab/reports/trained-measured.md",
        "16 nodes wrote {} (`medusa`), {} (`eagle`), {} (`chimera`), {} (`falcon`), {} (`ppd`) and {} (`hidden-transfer`) "
        "tokens a pass",
        OTHERS,
        others,
    ),
    Sentence(
        "lab/reports/trained-measured.md",
        "(`medusa-published` {} tokens a pass, `eagle-published` {} with EAGLE's tree and {} with EAGLE-2's; "
        "ours {}, {} and {})",
        OTHERS,
        published_forms,
    ),
    Sentence(
        "lab/reports/diffusion-measured.md",
        "{} are right one token a pass, as many with the dual cache and with FreeCache (0 points lost, about [-1, 1]: in "
        "repeat some answers are lost and others won), one less with dKV (0.3 [0, 1]), and 297 with FreeCache at a threshold "
        "of 0.9, in {}, {}, {} and {} times less time",
        DIFFUSION["caches"],
        long_caches,
    ),
    Sentence(
        "lab/reports/diffusion-measured.md",
        "is right in {} % before anything is written, and in {}, {} and {} % after a quarter, half and three quarters "
        "of the passes (intervals of 6 points to either side); at the end in {} %",
        DIFFUSION["more"],
        early,
    ),
    Sentence(
        "README.md",
        "**{} to {} times** as many tokens a second on two CPU cores as by plain decoding",
        HEADLINE,
        lambda: ends(alone(), "over", "over"),
    ),
    Sentence(
        "README.md",
        "eight at once gain nothing ({} to {})",
        HEADLINE,
        lambda: ends([r for r in HEADLINE.rows if r["together"] == "8"], "over", "over"),
    ),
    Sentence(
        "README.md",
        "eight at once write {} times as many tokens as one after another",
        MANY,
        lambda: eight_over_one("speed"),
    ),
    Sentence(
        "docs/measurements.md",
        "`auto` is at {} ({} to {}) for eight requests at once",
        COMPANY,
        lambda: front_page(
            "company",
            "auto, eight at once",
            *SPEED_WITH_ENDS,
            over="plain, eight at once",
            run=COMPANY,
        ),
    ),
    Sentence(
        "docs/search.md",
        "answers {} % of 60 sums in words rightly, and a vote of eight texts {} % "
        "({} points more, {} to {}) at {} of the speed",
        BETTER,
        lambda: [
            *front_page("better", "plain, greedy", "right", over="plain, greedy", run=BETTER),
            *front_page(
                "better", "self-consistency", *VOTE_FIGURES, over="plain, greedy", run=BETTER
            ),
        ],
    ),
    Sentence(
        "README.md",
        "which copy: {} and {} times as many tokens as plain decoding",
        LONG,
        lambda: [
            figure
            for side in ("prompt-lookup", "suffix-automaton")
            for figure in front_page("long", side, "speed", run=LONG)
        ],
    ),
    Sentence(
        "README.md",
        "which reads the long text, too: it loses ({})",
        LONG,
        lambda: front_page("long", "draft-model", "speed", run=LONG),
    ),
    Sentence(
        "README.md",
        "two methods write {} times as many tokens in one as in two",
        SERVED,
        lambda: front_page(
            "served", "one engine for both", "speed", over="an engine for each", run=SERVED
        ),
    ),
    Sentence(
        "README.md",
        "a prompt that only asks for JSON: of {} such answers none was valid",
        FREE,
        lambda: [told(len(FREE.rows))] if not free_ends()["valid"] else [],
    ),
    Sentence(
        "lab/reports/constraints-measured.md",
        "{} are valid (at most 8.8 %, 95 %), {} ended as something else, which mostly is the schema itself once more, "
        "and {} were cut",
        FREE,
        lambda: [told(free_ends()[end]) for end in ("valid", "invalid", "cut")],
    ),
    Sentence(
        "README.md",
        "a draft model loses ({})",
        MANY,
        lambda: many_at_once("draft-model, eight at once", "speed", over="plain, eight at once"),
    ),
    Sentence(
        "README.md",
        "than llama.cpp's on a 1B model in Q4_K_M ([{} to {} of its time]",
        PASSES,
        lambda: [
            row["to_llama_cpp"]
            for run in (PASSES, PASSES_ZEN5)
            if (
                row := pick(
                    run, file="r1b-Q4_K_M", set="AVX-512", context="64", side="step int16", rows="1"
                )
            )
        ],
    ),
    Sentence(
        "docs/verify.md",
        "all {} methods that promise a law, all {} ways in which their draws can fall, "
        "and a total variation of at most {}·10⁻¹⁶",
        ENUMERATED,
        enumerated,
    ),
    Sentence(
        "lab/reports/verify-measured.md",
        "it was {} runs of the tests behind it, {} methods and {} or {} seeds each, {} s of a core",
        CLEAN,
        clean,
    ),
    Sentence(
        "lab/reports/verify-measured.md",
        "in {} runs of the command: {} methods on `zoo:tiny` and `zoo:diffusion`, {} seeds each, greedy and drawn by turns, "
        "{} s of a core ([by method](verify-command.csv), `python benchmarks/clean_command.py --seeds 20`); {} ended in "
        "*keeps it*, {} in *measured*",
        COMMAND,
        partial(command, COMMAND),
    ),
    Sentence(
        "lab/reports/verify-measured.md",
        "no alarm in {} runs, {} methods, {} seeds each, {} s of a core ([by method](verify-trained.csv), "
        "`python benchmarks/clean_command.py --seeds 20 --small out/small --without lab/reports/verify-command.csv`); "
        "{} ended in *keeps it*, {} in *measured*",
        COMMAND_TRAINED,
        partial(command, COMMAND_TRAINED),
    ),
    Sentence(
        "docs/draft-and-verify.md",
        "`auto` is **{} to {} times** as fast as plain decoding",
        HEADLINE,
        lambda: ends(alone(), "over", "over"),
    ),
    Sentence(
        "docs/draft-and-verify.md",
        "eight at once gain nothing ({} to {})",
        HEADLINE,
        lambda: ends([r for r in HEADLINE.rows if r["together"] == "8"], "over", "over"),
    ),
    Sentence(
        "lab/reports/speculation.md",
        "Zen 4: {}; Zen 5: {}, {}, {} and {} in four runs",
        HEADLINE,
        lambda: [
            r["over"]
            for r in alone()
            if "AVX-512" in r["machine"] and r["prompts"].startswith("27")
        ],
    ),
    *(
        Sentence(page, f"`eagle` writes **{{}} tokens a pass**{between}{{}}", TRAINED, best_trained)
        for page, between in (
            (
                "docs/trained.md",
                " after half a minute of training on one core, on `zoo:smollm2` the drafter that travels in the package ",
            ),
            (
                "lab/reports/trained-measured.md",
                ", on `zoo:smollm2` the drafter that travels in the package ",
            ),
        )
    ),
    *(
        Sentence(
            "lab/reports/pictures-measured.md",
            words,
            ROW_MARKS,
            partial(seed_differences, ROW_MARKS, "passes", {"name": first}, {"name": second}),
        )
        for words, first, second in (
            ("they take {} ({} to {}) with 4 places", "window 4", "window 4, no marks"),
            ("{} ({} to {}) with 8 and none", "window 8", "window 8, no marks"),
            ("none with 16: {} ({} to {})", "window 16", "window 16, no marks"),
            ("Guessed marks take {} ({} to {})", "window 4, guessed", "window 4"),
        )
    ),
    Sentence(
        "lab/reports/search-measured.md",
        "**Best of 8 by the learned reward is {} points ahead of greedy [{}, {}], "
        "the weighted vote of 8 is {} ahead [{}, {}].**",
        SEARCH,
        lambda: [
            figure
            for method in ("best of 8 by reward", "weighted vote of 8")
            for row in SEARCH.rows
            if row["method"] == method
            for figure in FIGURE.findall(row["over greedy"])
        ],
    ),
    *(
        Sentence(
            "lab/reports/diffusion-measured.md",
            f"- {one}: {{}} x [{{}}, {{}}] at {{}} %; {other}: {{}} x [{{}}, {{}}] at {{}} %",
            DIFFUSION["policies"],
            partial(beside, one, other),
        )
        for one, other in (
            ("credit 0.9", "threshold 0.9"),
            ("credit 0.95", "threshold 0.9"),
            ("credit 0.99", "threshold 0.95"),
            ("local 0.9", "threshold 0.9"),
            ("local 0.95", "threshold 0.9"),
            ("local 0.99", "threshold 0.95"),
            ("ccd", "threshold 0.95"),
            ("ccd, agreement", "threshold 0.8"),
        )
    ),
    Sentence(
        "lab/reports/all-methods.md",
        "wrote **{} times** as many tokens a second as plain decoding (greedy, one request at a time, two CPU cores)",
        ALL_SPEED,
        lambda: [
            r["all"]
            for r in ALL_SPEED.rows
            if (r["section"], r["method"]) == ("One request at a time, greedy", "auto")
        ],
    ),
)

LEFT = {
    "README.md": {
        "Python 3.11 or later": "a version",
        "1.3 GB of disk": "the packages that it needs, torch for CPUs among them, with zoo:smollm2, added up",
        "8 texts: 8.3 points more": "the last table of lab/reports/search-measured.md, which is marked",
    },
    "docs/measurements.md": {
        "gave 1.09 on Zen 3 and 1.36 to 1.43 on Zen 5": "single runs of `polydec demo`, no file kept",
        "8.3 points more often [6.0, 10.6]": "the last table of lab/reports/search-measured.md, which is marked",
    },
}
"""Of the pages of which every figure is asked for: what no file has, and why."""

CHOICE, DEFAULTS = "what to take: limits of use, no measurement", "defaults and ranges"
UNMEASURED = {
    ("README.md", "| you have | take |"): CHOICE,
    ("docs/trained.md", "| you have | take |"): CHOICE,
    ("docs/bench.md", "| suite |"): "rules by which answers are judged",
    ("docs/bench.md", "| figure |"): "what figures mean",
    ("docs/training.md", "| flag | what it sets |"): "settings, and the published ones",
    ("docs/verify.md", "| promise |"): "what is checked",
    (
        "docs/server-fields.md",
        "| field | whose |",
    ): "what becomes of each field, compared with the code",
    ("docs/units.md", "| what | over bytes |"): "settings",
    ("docs/systems.md", "| system | paper |"): "papers, and what reaches each of them here",
    (
        "lab/reports/claims.md",
        "| method | order |",
    ): "figures of other pages, compared by lab/reports/test_orders.py",
    ("docs/methods.md", "| method |"): "titles and names of the cards",
    ("docs/families.md", "| family |"): "names and versions of models",
    ("docs/serve.md", "| flag |"): DEFAULTS,
    ("docs/sampling.md", "| field |"): DEFAULTS,
    ("docs/vision.md", "| press |"): DEFAULTS,
    ("docs/training-flags.md", "| flag |"): DEFAULTS,
    ("docs/trained.md", "| method | what it makes"): "what a node of a tree is made of",
    ("docs/steering.md", "| way |"): "formulas and published settings",
    ("docs/models.md", "| | zoo:tiny |"): "sizes, and how long the training took",
    (
        "lab/reports/diffusion-measured.md",
        "| layout |",
    ): "compared outside of this repository, as the page says",
    ("lab/reports/history.md", "| | 9254647"): "counts of two commits, which the page names",
    ("lab/reports/history.md", "| | 4c145237"): "counts of two commits, which the page names",
    ("lab/reports/native.md", "| | number | from |"): "what a calculation starts from",
    ("lab/reports/native.md", "| 1B, milliseconds |"): "a calculation",
}
"""Tables that need neither file nor mark, by the page and how the head begins: what their numbers are."""


# ---- the list ----


def pages() -> list[str]:
    found = [path for folder in ("docs", "lab/reports") for path in (ROOT / folder).glob("*.md")]
    return ["README.md", *sorted(str(path.relative_to(ROOT)) for path in found)]


def runs() -> list[Run]:
    return list(dict.fromkeys(entry.run for entry in (*TABLES, *SENTENCES)))


def listing() -> str:
    out = ["| file | command | machine | library at |", "|---|---|---|---|"]
    for run in sorted(runs(), key=lambda run: run.file):
        name = run.file.removeprefix("lab/reports/")
        copied = (
            " (copied from the pages, as the run's own output was not kept)" if run.copied else ""
        )
        out.append(f"| [{name}]({name}){copied} | `{run.command}` | {run.machine} | {run.commit} |")
    return "\n".join(out)


def main() -> None:
    rewrite(ROOT / "lab" / "reports" / "README.md", BEGIN, END, listing())
    for name in pages():
        figures, compared = covered(name, TABLES, SENTENCES, ())
        if figures:
            print(f"{name}: {compared} of {figures} figures")


if __name__ == "__main__":
    main()
