"""lm-evaluation-harness on our models: each kind of request, fifty items, equals direct calls."""

import json
import subprocess
import sys

import pytest

import polydec
from polydec.base.errors import RequestError
from polydec.lab.bench.likelihood import text_likelihoods

lm_eval = pytest.importorskip("lm_eval", reason="lm-eval is not installed (polydec[harness])")
pytest.importorskip("datasets", reason="lm-eval's datasets are not installed (polydec[harness])")

MODELS = {
    "a drafter": ("zoo:tiny", "prompt-lookup:depth=2"),
    "a search": ("zoo:tiny", "beam:width=2"),
    "a diffusion model": ("zoo:diffusion", "fast-dllm"),
}
ITEMS = 50


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("items")

    def of(model):
        """Questions that the model knows something of, with a right end and a wrong one."""
        if model == "zoo:diffusion":
            numbers = [f"{(i * 7919 + 104729) % 10**6:06d}" for i in range(ITEMS)]
            made = [{"q": f"copy: {x}", "a": [x, x[::-1]], "y": 0} for x in numbers]
        else:
            names = ("fox", "hen", "king", "boat", "river")
            made = [
                {"q": f"The {a} and the {b}", "a": [" fox", " zebra"], "y": 0}
                for a in names
                for b in (*names, "old", "mill", "sea", "wood", "rain")
            ]
        assert len(made) == ITEMS
        path = folder / (model.replace(":", "-") + ".jsonl")
        path.write_text("".join(json.dumps(row) + "\n" for row in made), "utf-8")
        return path, made

    return of


def task(path, kind):
    common = {
        "task": f"ends-{kind}",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(path)}},
        "test_split": "test",
        "output_type": kind,
        "target_delimiter": "",
    }
    if kind == "multiple_choice":
        more = {
            "doc_to_text": "{{q}}",
            "doc_to_choice": "{{a}}",
            "doc_to_target": "y",
            "metric_list": [{"metric": "acc"}],
        }
    elif kind == "loglikelihood_rolling":
        more = {
            "doc_to_text": "",
            "doc_to_target": "{{q}}",
            "metric_list": [{"metric": "word_perplexity"}],
        }
    else:
        more = {
            "doc_to_text": "{{q}}",
            "doc_to_target": "{{a[y]}}",
            "metric_list": [{"metric": "exact_match"}],
            "generation_kwargs": {"until": ["."], "max_gen_toks": 6, "temperature": 0.0},
        }
    return {**common, **more}


def evaluated(model, method, asked):
    import polydec.lab.bench.harness  # noqa: F401  # registers the model

    return lm_eval.simple_evaluate(
        model="polydec",
        tasks=[asked],
        model_args={"model": model, "method": method, "draws": 16},
        batch_size=8,
        bootstrap_iters=0,
        log_samples=True,
    )


@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_is_what_a_request_writes(name, rows):
    model, method = MODELS[name]
    path, made = rows(model)
    done = evaluated(model, method, task(path, "generate_until"))
    lm = polydec.load(model)
    bare, *options = method.split(":")
    found = {s["doc"]["q"]: s["resps"][0][0] for s in done["samples"]["ends-generate_until"]}
    assert len(found) == ITEMS
    for row in made:
        ids = lm.checkpoint.text.encode(row["q"])
        direct = polydec.generate(
            lm,
            ids,
            method=bare,
            options=dict(o.split("=") for o in options),
            max_tokens=6,
            stop=["."],
            sampling=lm.sampling_with(temperature=0.0),
        )
        assert found[row["q"]] == direct.text
    assert done["config"]["polydec_method"] == bare
    assert done["config"]["polydec_tokens_per_pass"] > 0


@pytest.mark.parametrize("name", ["a drafter", "a diffusion model"])
def test_choices_are_scored_as_texts_are(name, rows):
    model, method = MODELS[name]
    path, made = rows(model)
    done = evaluated(model, method, task(path, "multiple_choice"))
    lm = polydec.load(model)
    text, pairs = lm.checkpoint.text, []
    for row in made:
        for end in row["a"]:
            whole, context = text.encode(row["q"] + end), text.encode(row["q"])
            pairs.append((context, whole[len(context) :]))
    direct = [one.logp for one in text_likelihoods(lm, pairs, draws=16)]
    best = [int(direct[2 * i] < direct[2 * i + 1]) == row["y"] for i, row in enumerate(made)]
    assert done["results"]["ends-multiple_choice"]["acc,none"] == pytest.approx(sum(best) / ITEMS)
    sample = next(s for s in done["samples"]["ends-multiple_choice"] if s["doc"] == made[0])
    assert float(sample["resps"][0][0][0]) == pytest.approx(direct[0], abs=1e-3)


@pytest.mark.parametrize("name", ["a drafter", "a diffusion model"])
def test_whole_texts_are_scored(name, rows):
    model, method = MODELS[name]
    path, made = rows(model)
    done = evaluated(model, method, task(path, "loglikelihood_rolling"))
    lm = polydec.load(model)
    text = lm.checkpoint.text
    mark = text.encode("")[:1] or (min(text.eos or lm.checkpoint.lm.vocab.eos),)
    pairs = [(mark, text.encode(row["q"], special=False)) for row in made]
    direct = [one.logp for one in text_likelihoods(lm, pairs[:3], draws=16)]
    found = {s["doc"]["q"]: s["resps"][0][0] for s in done["samples"]["ends-loglikelihood_rolling"]}
    for row, logp in zip(made[:3], direct, strict=True):
        assert float(found[row["q"]]) == pytest.approx(logp, abs=1e-3)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"methd": "auto"}, "model_args has 'methd'"),
        ({"method": "autoo"}, "autoo"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"max_length": 1}, "max_length is 1"),
    ],
)
def test_wrong_arguments(arguments, sentence):
    from polydec.lab.bench.harness import HarnessModel

    with pytest.raises(RequestError, match=sentence):
        HarnessModel(**{"model": "zoo:tiny", **arguments})


def test_what_a_task_may_not_say():
    from polydec.lab.bench.harness import HarnessModel

    tiny = HarnessModel(model="zoo:tiny")
    for given, sentence in (
        ({"num_beams": 4}, "generation_kwargs has 'num_beams'"),
        ({"max_gen_toks": 10**6}, "max_gen_toks is 1000000"),
    ):
        with pytest.raises(RequestError, match=sentence):
            tiny._request("The fox", given)


def test_the_command_lists_and_runs(tmp_path, rows):
    path, _ = rows("zoo:tiny")
    (tmp_path / "ends.yaml").write_text(json.dumps(task(path, "multiple_choice")), "utf-8")
    words = ["--tasks", "ends-multiple_choice", "--include_path", str(tmp_path), "--limit", "3"]
    done = subprocess.run(
        [sys.executable, "-m", "polydec", "harness", *words, "--model_args", "model=zoo:tiny"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "polydec" in done.stdout and "acc" in done.stdout
