"""polydec bench: several models, batches and temperatures in one run, its record, its files and its page."""

import csv
import json
import re

import pytest
import torch

import micro
from polydec.cli.page import ChartSeries, axis_ticks, svg_chart
from polydec.lab.bench import measure
from polydec.lab.commands import bench_markdown
from polydec.request import machine
from project_paths import PROJECT_ROOT

ROWS = (
    {"prompt": "The <b>tall</b> baker", "category": "<i>a</i>", "answer": 7},
    {"prompt": "The young teacher watched the", "category": "b"},
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield str(micro.write(tmp_path_factory.mktemp("micro")))


@pytest.fixture
def bench_command(polydec_command, tmp_path, model):
    data = tmp_path / "q.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    usual = ("--model", model, "--data", data, "--max-tokens", 4, "--repeat", 1)

    def call(*args, usual=usual):
        return polydec_command("bench", *usual, *args)

    return call


def test_a_matrix_with_its_record_csv_and_page(bench_command, tmp_path, monkeypatch):
    files = [tmp_path / name for name in ("runs.jsonl", "table.csv", "report.html")]
    wanted = ("--record", files[0], "--csv", files[1], "--html", files[2], "--json")
    args = ("--methods", "prompt-lookup", "--batch", "1,2", "--temperatures", "0,0.8", *wanted)
    code, out, err = bench_command(*args)
    assert code == 0, err
    told = json.loads(out)
    cells = {(r["batch"], r["temperature"]) for r in told["rows"]}
    assert cells == {(1, 0.0), (1, 0.8), (2, 0.0), (2, 0.8)} and len(told["rows"]) == 4 * 3 * 2
    one = told["rows"][0]
    assert one["gap"] > 0 and one["time_to_first_token"] > 0 and one["target_share"] > 0
    assert {r["judged"] for r in told["rows"] if r["workload"] != "b"} == {1}
    assert told["versions"]["polydec"] and told["command"].startswith("polydec bench --model")
    sheet = list(csv.DictReader(files[1].read_text().splitlines()))
    assert len(sheet) == 24 and float(sheet[0]["tokens_per_second"]) == one["tokens_per_second"]
    page = files[2].read_text()
    assert not re.search(r"https?:|<script|@import|url\(|<b>tall|<i>a</i>", page)
    for part in (
        "Where the time goes",
        "t(m)",
        "All figures",
        "2 requests at once, temperature 0.8",
    ):
        assert part in page
    monkeypatch.setattr(measure, "run_task", None)  # all of it stands in the record
    again = json.loads(bench_command(*args)[1])
    assert again["rows"] == told["rows"]
    code, _, err = bench_command(*args, "--seed", "5")
    assert code == 2 and "settings was" in err and "name another file" in err


def test_several_models_have_rows_of_their_own(bench_command, tmp_path, model):
    other = micro.write(tmp_path / "other", seed=1)
    usual = ("--models", f"{model},{other}", "--max-tokens", 2, "--repeat", 1, "--limit", 1)
    code, out, err = bench_command("--methods", "plain", usual=usual)
    assert code == 0, err
    assert out.count("question") == 2 and out.startswith("model")


@pytest.mark.parametrize(
    "args, says",
    [
        (("--batch", "1,x"), "batch is '1,x': it must be whole numbers with commas"),
        (("--batch", "0"), "batch is 0"),
        (("--batch", "2,2"), "each number may stand there once"),
        (("--temperatures", "warm"), "temperatures is 'warm': it must be numbers"),
        (("--temperatures", "0,-1"), "temperature is -1"),
        (("--temperatures", "0", "--temperature", "1"), "temperature is given twice"),
        (("--models", "a"), "model is given twice"),
        (("--html", "."), "--html '.' cannot be written: it is a folder"),
        (("--csv", "/dev/null/x"), "--csv '/dev/null/x' cannot be written"),
        (("--suite", "parallelbench", "--models", "a"), "bench --suite does not take"),
    ],
)
def test_what_is_wrong_is_said_before_anything_is_decoded(bench_command, monkeypatch, args, says):
    monkeypatch.setattr(measure, "measure_methods", None)
    code, out, err = bench_command(*args)
    assert code == 2 and says in err and not out, err


def test_figures_fit_what_they_show():
    assert axis_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for low, high in ((0, 0.003), (1, 32), (0, 270), (0, 12345), (5, 6)):
        assert 2 <= len(axis_ticks(low, high)) <= 20
    drawn = svg_chart(
        [ChartSeries("<a>", [(1, 5.0), (32, 90.0)], "red", [(4.0, 6.0)])], "x & y", "up"
    )
    assert "<a>" not in drawn and "x &amp; y" in drawn
    places = [float(x) for x in re.findall(r'c[xy]="([\d.]+)"', drawn)]
    assert all(0 <= x <= 380 for x in places)
    depths = svg_chart([ChartSeries("a", [(1, 0.5), (2, 0.25)], "red")], "x", "y", whole=True)
    assert ">2</text>" in depths and ">1.2</text>" not in depths
    assert "Nothing was measured" in svg_chart([], "x", "y")


def test_a_report_says_where_its_figures_are_doubtful(bench_command, tmp_path, monkeypatch):
    page, busy = tmp_path / "report.html", iter([5.5, 5.5])
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: next(busy))
    code, out, err = bench_command("--methods", "plain", "--html", page, "--json")
    assert code == 0 and "warning: the machine is busy (load 5.5" in err
    assert json.loads(out)["doubts"] == [
        "the machine is busy (load 5.5 of its cores): figures are doubtful"
    ]
    assert "Mind:</b> the machine is busy (load 5.5" in page.read_text()

    monkeypatch.setattr(machine, "relative_cpu_load", iter([0.0, 3.0]).__next__)
    code, out, _ = bench_command("--methods", "plain", "--html", page, "--json")
    assert "became busy" in page.read_text() and len(json.loads(out)["doubts"]) == 1

    monkeypatch.setattr(machine, "relative_cpu_load", lambda: 0.0)
    code, out, _ = bench_command("--methods", "plain", "--html", page, "--json")
    assert json.loads(out)["doubts"] == [] and "Mind:" not in page.read_text()


def test_a_report_of_a_run_that_was_stopped_says_so(bench_command, tmp_path, monkeypatch):
    page, ticks = tmp_path / "report.html", []
    whole = measure.measure_methods

    def stopped(*args, keep, **more):
        def kept(label, run):
            keep(label, run)
            ticks.append(label)
            if len(ticks) == 2:
                raise KeyboardInterrupt

        return whole(*args, keep=kept, **more)

    monkeypatch.setattr(measure, "measure_methods", stopped)
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: 0.0)
    code, _, _ = bench_command("--methods", "prompt-lookup", "--html", page)
    assert code == 130 and "it was stopped: only what was measured until then" in page.read_text()


def test_a_report_is_the_table_of_results_for_a_model_of_ones_own(bench_command, tmp_path, model):
    """Machine, model, version and command without the folders of whoever measured; both tables; a line for the collection."""
    at = tmp_path / "report.md"
    code, out, err = bench_command("--report", at, "--json")
    assert code == 0, err
    told, text = json.loads(out), at.read_text("utf-8")
    name = bench_markdown.model_file_name(model)
    assert model not in text and f"| model | {name} (" in text and "MB of weights" in text
    assert f"Polydec {told['versions']['polydec']}, commit " in text
    assert f"| machine | {told['machine']} |" in text and "--report" in text
    header = "| one request, greedy, float32 | a pass over eight rows | `auto` over plain, all together | by workload |"
    assert header in text
    whole = {r["method"]: r for r in told["rows"] if r["workload"] == "all"}
    assert list(whole) == ["plain", "auto", "prompt-lookup", "suffix-automaton", "token-recycling"]
    for method, row in whole.items():
        low, high = row["ratio_interval"]
        parts = [
            r["ratio_to_plain"]
            for r in told["rows"]
            if r["method"] == method and r["workload"] != "all"
        ]
        shown = (
            f"| `{method}` | {row['tokens_per_second']:.1f} | **{row['ratio_to_plain']:.2f}** ({low:.2f} to {high:.2f}) | "
            f"{min(parts):.2f} to {max(parts):.2f} | {row['tokens_per_pass']:.2f} | yes |"
        )
        assert shown in text
    best = max(whole.values(), key=lambda r: r["ratio_to_plain"])
    line = re.search(
        rf"^\| {name} \| .*\| `{best['method']}` \*\*{best['ratio_to_plain']:.2f}\*\* .*\|$",
        text,
        re.M,
    )
    head = re.search(
        r"^\| model \| machine .*\|$",
        (PROJECT_ROOT / "docs" / "reports.md").read_text("utf-8"),
        re.M,
    )
    assert line and head and line[0].count(" | ") == head[0].count(" | ")


@pytest.mark.parametrize(
    "ratios, says",
    [
        ({"plain": (1, 1), "auto": (1.3, 1.2)}, "Fastest in hindsight: `auto`, 1.30 times plain."),
        ({"plain": (1, 1), "auto": (1.1, 0.9)}, "`auto`, by no more than chance."),
        ({"plain": (1, 1), "auto": (0.9, 0.8)}, "`plain`, which nothing was faster than."),
    ],
)
def test_a_report_says_what_was_fastest(ratios, says, monkeypatch):
    monkeypatch.setattr(bench_markdown, "source_commit", lambda: None)
    about = {
        **{
            "name": "some/model",
            "kernel": "torch",
            "dtype": "float32",
            "draft": None,
            "template": "raw",
        },
        **{
            "machine": "A processor, 2 threads of 2 cores (avx2), Python 3",
            "methods": ["plain", "auto"],
        },
    }
    rows = [
        {
            **{
                "model": "some/model",
                "batch": 1,
                "temperature": 0.0,
                "workload": "question",
                "method": method,
            },
            **{"tokens_per_second": 9.0, "ratio_to_plain": ratio, "ratio_interval": [low, 2.0]},
            **{"tokens_per_pass": None, "identical": True},
        }
        for method, (ratio, low) in ratios.items()
    ]
    identity = {"models": [about], "versions": {"polydec": "9", "system": "some"}}
    text = bench_markdown.render_bench_markdown(
        identity, rows, {}, "polydec bench", ["it was busy"]
    )
    assert says in text and "**Mind:** it was busy." in text and "commit not known" in text
    assert "| A processor, some/model | - |" in text


def test_the_commit_of_a_report_is_that_of_the_sources(monkeypatch, tmp_path):
    asked = {"rev-parse": "0123abcd", "status": ""}
    monkeypatch.setattr(bench_markdown.metadata, "distribution", nobody)
    monkeypatch.setattr(bench_markdown, "_git", lambda folder, word, *_: asked[word])
    assert bench_markdown.source_commit() == "0123abcd"
    asked["status"] = " M a.py"
    assert bench_markdown.source_commit() == "0123abcd, changed"
    monkeypatch.setattr(
        bench_markdown.polydec, "__file__", str(tmp_path / "polydec" / "__init__.py")
    )
    assert bench_markdown.source_commit() is None


def nobody(name):
    raise bench_markdown.metadata.PackageNotFoundError(name)
