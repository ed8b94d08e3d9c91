"""The benchmark of speculation: what passes cost by measured tables, what the tables make of cells, and runs that go on."""

import argparse
import json
from dataclasses import replace
from types import SimpleNamespace
from xml.etree import ElementTree

import heatmap
import pytest
import replay
import speculation
import speculation_tables as tables

from polydec.core.types import ScoreRequest
from polydec.request.profile import PassProfile

PROFILE = PassProfile(
    0,
    {1: 10.0, 2: 12.0, 4: 20.0},
    1000,
    {1: 11.0, 2: 14.0, 4: 24.0},
    {1: 1.0, 2: 1.5},
    {},
    {},
    0.5,
    0.0,
    "today",
)


def cell(method, ms, *, workload="qa", prompt="p", seconds=1.0, tokens=10, recipe=None, **more):
    """A cell whose passes cost `ms` by PROFILE: single rows behind nothing at 10.5 each."""
    return {
        "method": method,
        "recipe": recipe or method,
        "workload": workload,
        "prompt": prompt,
        "task": 0,
        "repeat": 0,
        "seed": 0,
        "max_tokens": 11,
        "sampling": "greedy",
        "batch": 1,
        "model": "m",
        "kernel": "k",
        "machine": "here",
        "command": "c",
        "tokens": tokens,
        "seconds": seconds,
        "generated": tokens + 1,
        "passes": tokens,
        "target_seconds": 0.8 * seconds,
        "draft_seconds": 0.0,
        "target_rows": tokens,
        "target_passes": tokens,
        "accepted_at": [0] * 8,
        "tried_at": [0] * 8,
        "expected": 0.0,
        "ids": [[1, 2]],
        "distinct": 1.0,
        "target_by_rows": [[1, 1.0, ms / 10.5, 0.0]],
        "draft_by_rows": [],
        "unclocked": 0,
        "profile": replay.to_line(PROFILE)["profile"],
        **more,
    }


def write(path, cells, profile=PROFILE):
    lines = [replay.to_line(profile), *cells] if profile else cells
    path.write_text("".join(json.dumps(x) + "\n" for x in lines))
    return path


def read(tmp_path, *cells):
    return tables.read([write(tmp_path / "a.jsonl", cells)])


# ---- replay ----


def test_a_pass_costs_what_the_tables_say():
    def ms(target, draft=()):
        return replay.replayed_ms({"target_by_rows": target, "draft_by_rows": list(draft)}, PROFILE)

    assert ms([[1, 1.0, 1, 0.0]]) == pytest.approx(10.5)  # extra_ms is part of each pass
    assert ms([[1, 1.0, 3, 1500.0]]) == pytest.approx(
        3 * 10.5 + 1.5
    )  # 1 ms for 1,000 tokens of context
    assert ms([[3, 1.0, 2, 0.0]]) == pytest.approx(2 * 16.5)  # gaps filled by straight lines
    assert ms([[2, 0.25, 2, 0.0]]) == pytest.approx(2 * (0.5 + 3.0))  # a part of the layers
    assert ms([[1, 1.0, 1, 0.0]], [[[1, 1.0, 4, 9.0], [2, 1.0, 1, 0.0]]]) == pytest.approx(
        10.5 + 4 * 1.5 + 2.0
    )
    assert ms([], [[[4, 1.0, 1, 0.0]]]) == pytest.approx(3.0)  # beyond the table in a straight line
    assert ms([]) == 0.0
    assert ms([[2, 1.0, 1, 0.0, 2]]) == pytest.approx(12.5)  # of two sequences
    two = {"target_by_rows": [[2, 1.0, 1, 0.0, 2]], "draft_by_rows": []}
    assert replay.replayed_ms(two, replace(PROFILE, each_ms=0.25)) == pytest.approx(12.75)


def test_what_cannot_be_replayed_is_none():
    bare = PassProfile(0, PROFILE.rows, 1000, PROFILE.far, {}, {}, {}, 0.5, 0.0, "today")
    passes, some = [[1, 1.0, 1, 0.0]], [[1, 1.0, 1, 0.0]]
    assert replay.replayed_ms({"tokens": 3}, PROFILE) is None
    assert replay.replayed_ms({"target_by_rows": passes, "draft_by_rows": [some]}, bare) is None
    assert replay.replayed_ms(
        {"target_by_rows": passes, "draft_by_rows": [[], []]}, bare
    ) == pytest.approx(10.5)
    assert replay.replayed_ms(
        {"target_by_rows": passes, "draft_by_rows": [some, []]}, PROFILE
    ) == pytest.approx(12.0)
    assert (
        replay.replayed_ms({"target_by_rows": passes, "draft_by_rows": [some, some]}, PROFILE)
        is None
    )
    assert (
        replay.replayed_ms({"target_by_rows": passes, "draft_by_rows": [], "unclocked": 1}, PROFILE)
        is None
    )


def test_a_profile_survives_its_line():
    line = replay.to_line(PROFILE)
    assert replay.from_line(json.loads(json.dumps(line))) == PROFILE
    assert line["profile"] != replay.to_line(replace(PROFILE, far_context=900))["profile"]


class Query:
    def __init__(self, rows, first, layers=None, asked=1):
        self.fed, self.first, self.layers, self.rows, self.want = (
            rows,
            first,
            layers,
            range(asked),
            ScoreRequest(),
        )

    def __len__(self):
        return self.fed


def network(**config):
    return SimpleNamespace(
        forward=lambda queries: ["answer"] * len(queries),
        head_logits=lambda hidden: "law",
        layers=4,
        config=SimpleNamespace(**config),
    )


def test_passes_are_noted_merged_and_by_the_layers_that_ran():
    net = network()  # its sizes are not known: the head counts nothing
    clock = replay.Clocked(net)
    assert net.forward([Query(100, 0)]) == ["answer"]
    later = clock.calls[-1][0] + clock.calls[-1][1]
    net.forward([Query(1, 10), Query(3, 20)])  # two sequences in one pass
    net.forward([Query(1, 30)])
    net.forward([Query(1, 40)])
    net.forward([Query(2, 5, (0,)), Query(1, 7, (2, 3)), Query(2, 9, (0,))])
    done = clock.since(later)
    assert done.by_rows == [
        [1, 0.5, 1, 7.0, 1],
        [1, 1.0, 2, 70.0, 1],
        [4, 0.25, 1, 7.0, 2],
        [4, 1.0, 1, 15.0, 2],
    ]
    assert (done.passes, done.rows) == (5, 11)
    assert clock.since(0.0).rows == 111


def test_a_head_is_its_part_of_a_pass_wherever_it_is_computed():
    net = network(
        vocab=92, width=4, inner=5, heads=2, kv_heads=1, layers=4
    )  # a head of 368, layers of 108
    clock = replay.Clocked(net)
    assert replay.head_share(net) == pytest.approx(368 / 800)
    net.forward([Query(1, 10)])
    net.forward([Query(1, 10, (0, 1))])
    net.forward([Query(2, 10, (2, 3), asked=0)])
    assert net.head_logits([[0.0], [0.0], [0.0]]) == "law"
    done = clock.since(0.0)
    assert done.by_rows == [
        [1, 0.73, 1, 10.0, 1],
        [1, 1.0, 1, 10.0, 1],
        [2, 0.27, 1, 10.0, 1],
        [3, 0.46, 1, 0.0, 1],
    ]
    assert (done.passes, done.rows) == (3, 4)


# ---- tables ----


def two_categories():
    out = []
    for workload, auto, copies, draft in (("qa", 80.0, 70.0, 120.0), ("math", 90.0, 105.0, 100.0)):
        for prompt in ("a", "b", "c"):
            out += [
                cell(m, ms, workload=workload, prompt=workload + prompt, seconds=ms / 100)
                for m, ms in (
                    ("plain", 105.0),
                    ("auto", auto),
                    ("prompt-lookup", copies),
                    ("token-recycling", draft),
                    ("unified-layer-skipping", 20.0),
                )
            ]
    return out


def test_the_best_of_a_category_is_lossless_fixed_and_by_replay(tmp_path):
    qa, math, whole, each = tables.categories(read(tmp_path, *two_categories()))
    assert (qa.best, math.best, whole.best) == ("prompt-lookup", "token-recycling", "prompt-lookup")
    assert qa.behind.value == pytest.approx(70 / 80) and qa.best_plain.value == pytest.approx(
        105 / 70
    )
    assert math.behind.value == pytest.approx(
        100 / 90
    ) and math.behind_clock.value == pytest.approx(100 / 90)
    assert whole.behind.value == pytest.approx(175 / 170)
    assert each.behind.value == pytest.approx(170 / 170) and each.best_plain.value == pytest.approx(
        210 / 170
    )
    assert qa.tasks == 3 and qa.plain == pytest.approx(10 / 1.05)
    assert qa.clock.interval == pytest.approx((105 / 80, 105 / 80))


def test_approximate_methods_are_starred_everywhere(tmp_path):
    text = tables.markdown(read(tmp_path, *two_categories()))
    rows = [line for line in text.splitlines() if line.startswith("| unified-layer-skipping")]
    assert len(rows) == 2 and all(r.startswith("| unified-layer-skipping \\* |") for r in rows)
    assert "a pass of 1, 2, 3, 4 rows takes 10.50, 12.50, 16.50, 20.50 ms" in text
    assert (
        "\\*: approximate" in text
        and "| prompt-lookup |" in text
        and "prompt-lookup \\*" not in text
    )


def test_one_task_has_no_interval(tmp_path):
    cells = read(
        tmp_path,
        cell("plain", 105.0),
        cell("auto", 210.0, seconds=2.0),
        cell("prompt-lookup", 105.0),
    )
    (only,) = tables.categories(cells)
    assert str(only.clock) == "0.50 (one task)" and only.slower == {"clock": None, "replayed": None}
    assert (
        "| qa | 1 | 10.0 | 0.50 (one task) | 0.50 (one task) | prompt-lookup | 1.00 (one task) |"
        in tables.markdown(cells)
    )
    assert tables.summary(cells)[0]["misses"] == {
        "slower_than_plain_clock": [],
        "slower_than_plain_replayed": [],
        "behind_best_replayed": ["qa"],
    }


def test_the_summary_names_what_misses(tmp_path):
    slow = [
        cell(m, ms, workload="rag", prompt=p, seconds=s)
        for p in "abc"
        for m, ms, s in (
            ("plain", 100.0, 1.0),
            ("auto", 110.0, 1.01),
            ("prompt-lookup", 104.0, 1.0),
        )
    ]
    (found,) = tables.summary(read(tmp_path, *two_categories(), *slow))
    assert found["misses"] == {
        "slower_than_plain_clock": [],
        "slower_than_plain_replayed": ["rag"],
        "behind_best_replayed": ["qa"],
    }
    json.dumps(found)


def test_cells_of_two_files_are_one_table(tmp_path):
    """The second file ran at half the speed: its methods count by their ratio to its own plain."""
    one = write(
        tmp_path / "1.jsonl",
        [cell("plain", 105.0, prompt=p, seconds=1.0) for p in "ab"]
        + [cell("auto", 84.0, prompt=p, seconds=0.8) for p in "ab"],
    )
    two = write(
        tmp_path / "2.jsonl",
        [cell("plain", 105.0, prompt=p, seconds=2.0) for p in "ab"]
        + [cell("prompt-lookup", 105.0, prompt=p, seconds=1.5) for p in "ab"],
        None,
    )
    cells = tables.read([one, two])
    assert len(cells) == 6  # plain of the first file stands for both
    (only,) = tables.categories(cells)
    assert only.best == "prompt-lookup" and only.behind.value == pytest.approx(105 / 84)
    assert only.behind_clock.value == pytest.approx(0.75 / 0.8) and only.plain == pytest.approx(
        10.0
    )


def test_a_task_is_replayed_by_one_profile(tmp_path):
    other = PassProfile(
        0, {1: 20.0, 2: 21.0}, 1000, {1: 20.0, 2: 21.0}, {}, {}, {}, 0.0, 0.0, "later"
    )
    a = write(tmp_path / "a.jsonl", [cell("plain", 105.0)])
    b = write(
        tmp_path / "b.jsonl", [cell("auto", 105.0, profile=replay.to_line(other)["profile"])], other
    )
    assert {c["ms"] for c in tables.read([a, b])} == {200.0}


def test_a_recipe_that_lacks_a_task_is_not_the_best(tmp_path):
    cells = read(
        tmp_path,
        *[c for c in two_categories() if (c["method"], c["prompt"]) != ("prompt-lookup", "qab")],
    )
    qa = tables.categories(cells)[0]
    assert qa.best == "token-recycling" and qa.partly == ("prompt-lookup",)
    assert (
        "Not replayed on every task of a category, so never its best: prompt-lookup."
        in tables.markdown(cells)
    )


def test_other_engines_and_old_cells_are_shown_but_not_replayed(tmp_path):
    theirs = {
        k: v
        for k, v in cell("llama.cpp lookup", 0.0, seconds=4.0).items()
        if k not in ("recipe", "target_by_rows", "draft_by_rows", "unclocked", "target_rows")
    } | {"passes": 0}
    cells = read(tmp_path, cell("plain", 105.0), cell("auto", 105.0), theirs)
    text = tables.markdown(cells)
    assert "| llama.cpp lookup | 0.25 (one task) | 0.25 |" in text
    assert "| llama.cpp lookup | 2.5 | - | - | - | - | - | - | - | - | 1/1 | 1.00 |" in text
    assert tables.categories(cells)[0].best is None
    assert "`auto` over other engines, clock: llama.cpp lookup 4.00 (one task)." in text
    assert tables.summary(cells)[0]["auto_over_other_engines_clock"] == {
        "llama.cpp lookup": {"value": 4.0, "interval": None}
    }


def test_replayed_over_measured_is_of_the_seconds(tmp_path):
    text = tables.markdown(
        read(tmp_path, cell("plain", 105.0, seconds=0.21), cell("auto", 105.0, seconds=0.105))
    )
    row = {
        line.split(" | ")[0]: line.split(" | ")[2:4]
        for line in text.splitlines()
        if line.startswith("| ")
    }
    assert row["| plain"] == ["1.00", "0.50"] and row["| auto"] == ["1.00", "1.00"]
    assert (
        "| 80%, 0%, 20% | 8.40, -, 2.10 |" in text and "| 80%, 0%, 20% | 16.80, -, 4.20 |" in text
    )


def test_repeats_are_one_task_and_nothing_written_is_no_speed(tmp_path):
    cells = [
        cell(m, ms, repeat=r, seconds=1.0)
        for r in (0, 1)
        for m, ms in (("plain", 105.0), ("auto", 105.0))
    ]
    assert tables.categories(read(tmp_path, *cells))[0].clock == tables.Ratio(1.0, None, 1)
    silent = [cell(m, 0.0, tokens=0, seconds=0.0, target_by_rows=[]) for m in ("plain", "auto")]
    assert tables.categories(read(tmp_path, *silent))[0].clock is None
    assert "| auto | - | - |" in tables.markdown(read(tmp_path, *silent))


# ---- runs ----


def test_groups_of_methods():
    alone = [
        m.label
        for m in speculation.chosen(
            "auto,lossless,prompt-lookup:depth=3", SimpleNamespace(draft=None)
        )
    ]
    assert alone[0] == "auto" and alone.count("auto") == 1 and alone[-1] == "prompt-lookup depth=3"
    assert "token-recycling" in alone and not {
        "plain",
        "draft-model",
        "unified-layer-skipping",
    } & set(alone)
    everything = {m.label for m in speculation.chosen("all", SimpleNamespace(draft=object()))}
    assert {
        "draft-model",
        "unified-layer-skipping",
    } <= everything and "specdec-plus-plus" not in everything
    with pytest.raises(ValueError, match="lossles"):
        speculation.chosen("lossles", SimpleNamespace(draft=None))


class Side:
    def __init__(self, label, left):
        self.label, self.left = label, left

    def __call__(self, rows, sampling, tokens, seed):
        self.left[0] -= 1
        if self.left[0] < 0:
            raise KeyboardInterrupt
        return {"tokens": tokens, "seconds": 1.0}


def test_a_run_goes_on_where_it_was_interrupted(tmp_path):
    out, left = (
        tmp_path / "run.jsonl",
        [2 + 3 + 2],
    )  # two to warm up, three cells, and one before each task
    a = argparse.Namespace(out=out, batch=1, tokens=8, repeat=2, seed=0)
    lm = SimpleNamespace(
        network=SimpleNamespace(threads=1), checkpoint=SimpleNamespace(kernel="k"), name="m"
    )
    tasks = [[speculation.PromptRow("one", "qa")], [speculation.PromptRow("two", "qa")]]
    sides = [Side("plain", left), Side("auto", left)]
    with pytest.raises(KeyboardInterrupt):
        speculation.run(a, lm, PROFILE, sides, tasks, ["greedy"])
    assert len(out.read_text().splitlines()) == 1 + 3
    left[0] = 2 + 5 + 3
    speculation.run(a, lm, PROFILE, sides, tasks, ["greedy"])
    assert left[0] == 0
    head, *cells = (json.loads(line) for line in out.read_text().splitlines())
    assert replay.from_line(head) == PROFILE and all(c["profile"] == head["profile"] for c in cells)
    assert len({tables.key(c) for c in cells}) == len(cells) == 8
    speculation.run(
        a, lm, PROFILE, sides, tasks, ["greedy"]
    )  # nothing is left to do, nothing is run
    a.tokens, left[0] = 9, 2 + 8 + 4  # longer answers are other cells
    speculation.run(a, lm, PROFILE, sides, tasks, ["greedy"])
    assert len(out.read_text().splitlines()) == 1 + 16


def test_the_time_left_is_of_each_method_as_it_went():
    assert speculation._left({}, ["auto"]) == ""
    assert (
        speculation._left({"auto": [1.0, 3.0], "plain": [6.0]}, ["auto", "auto", "stand"])
        == "8 s left, "
    )
    assert speculation._left({"auto": [60.0]}, ["auto", "auto"]) == "2 min left, "


def test_a_batch_holds_one_workload_and_what_is_left_goes_together():
    rows = [
        speculation.PromptRow(f"{kind} {i}", kind)
        for kind, n in (("a", 5), ("b", 1), ("c", 3), ("d", 2))
        for i in range(n)
    ]
    tasks = speculation.batches(rows, 2)
    assert [(t[0].workload, len(t)) for t in tasks] == [
        ("a", 2),
        ("a", 2),
        ("c", 2),
        ("d", 2),
        ("mixed", 2),
        ("mixed", 1),
    ]
    assert all(len({r.workload for r in t}) == 1 for t in tasks)
    assert sorted(str(r.prompt) for t in tasks for r in t) == sorted(str(r.prompt) for r in rows)
    assert speculation.batches(rows, 1) == [[r] for r in rows]


def test_overview_has_every_method_in_every_setting(tmp_path):
    cells = [
        cell(m, 100.0, prompt=p, seconds=s, sampling=name)
        for name, faster in (("greedy", 2.0), ("T = 0.7", 1.0))
        for m, s in (("plain", 1.0), ("jacobi", 1.0 / faster), ("calm", 4.0))
        for p in "pq"
    ]
    cells.append(cell("lookahead", 100.0, prompt="p", sampling="T = 0.7"))
    path = tmp_path / "run.jsonl"
    path.write_text("".join(json.dumps(c) + "\n" for c in cells))
    seen = tables.Overview.of(tables.read([path]))
    assert (
        dict(seen.tasks) == {("greedy", 1): 2, ("T = 0.7", 1): 2}
        and next(iter(seen.ratios)) == "jacobi"
    )
    assert seen.ratios["jacobi"]["greedy", 1].value == pytest.approx(2.0) and seen.starred == {
        "calm"
    }
    table, picture = seen.markdown(), heatmap.svg(seen)
    assert (
        "| lookahead | - | 1.00 (one task) |" in table
        and "| calm \\* | 0.25 (0.25 to 0.25) |" in table
    )
    root = ElementTree.fromstring(picture)
    texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"jacobi", "calm *", "2.00", "0.25", "-"} <= set(texts)
