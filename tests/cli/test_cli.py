"""The command line on a micro model: what it prints, and one sentence with exit code 2 for everything that is wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

import micro
import polydec
from polydec.core.types import Exactness
from polydec.methods.registry.card import promise_in_words
from polydec.models.learned.kinds import stop_head


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    torch.set_num_threads(1)
    return str(micro.write(tmp_path_factory.mktemp("micro")))


@pytest.fixture(scope="module")
def other(tmp_path_factory):
    return str(micro.write(tmp_path_factory.mktemp("other"), seed=1, vocab=330))


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    """Profiles of this module's own, measured in no time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("words", [(), ("train",), ("trace",)])
def test_without_words_the_help_is_shown_and_nothing_is_wrong(polydec_command, words):
    code, out, err = polydec_command(*words)
    assert code == 0 and "Usage: " in out and not err


def test_generate_json(polydec_command, model):
    code, out, _ = polydec_command(
        "generate",
        "The grey fox",
        "--model",
        model,
        "--max-tokens",
        "12",
        "--json",
        "--dtype",
        "float32",
        "--method",
        "plain",
    )
    answer = json.loads(out)
    assert code == 0 and out.count("\n") == 1
    assert set(answer) == {"text", "token_ids", "finish_reason", "usage", "method", "metrics"}
    assert set(answer["usage"]) == {"prompt_tokens", "completion_tokens"}
    assert set(answer["method"]) == {"name", "guarantee", "options"}
    assert {
        "seconds",
        "tokens_per_second",
        "target_passes",
        "tokens_per_pass",
        "positions_fed",
        "mean_acceptance_length",
        "draft_acceptance_rate",
        "passes_without_draft",
        "kernel",
    } <= set(answer["metrics"])
    assert answer["usage"]["completion_tokens"] == len(answer["token_ids"]) <= 12
    fed = answer["usage"]["prompt_tokens"] + answer["metrics"]["target_passes"] - 1
    assert answer["metrics"]["positions_fed"] == fed  # plain decoding feeds every token once


def test_generate_streams_what_json_says(polydec_command, model):
    args = (
        "generate",
        "The grey fox",
        "--model",
        model,
        "--max-tokens",
        "20",
        "--dtype",
        "float32",
        "--seed",
        "3",
        "--temperature",
        "1",
    )
    _, text, err = polydec_command(*args)
    _, out, _ = polydec_command(*args, "--json")
    assert text == json.loads(out)["text"] + "\n"
    assert "tokens a pass" in err


def test_an_answer_that_is_brought_to_an_end_says_so(polydec_command, model):
    _, text, err = polydec_command(
        "generate",
        "The grey fox",
        "--model",
        model,
        "--max-tokens",
        "12",
        "--temperature",
        "0",
        "--regex",
        "[a-z ]{5,}[.]",
        "--finish",
    )
    assert text.endswith(".\n") and " tokens to end in time), " in err and "stop (" in err


def test_a_system_message_stands_before_the_prompt(polydec_command):
    asked = ("generate", "The fox", "--model", "zoo:tiny", "--max-tokens", "4", "--method", "plain")
    used = {}
    for system in ("Be short.", None):
        flags = () if system is None else ("--system", system)
        code, out, _ = polydec_command(*asked, *flags, "--json")
        assert code == 0
        used[system] = json.loads(out)["usage"]["prompt_tokens"]
    lm = polydec.load("zoo:tiny")
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "The fox"}]
    assert used["Be short."] == len(lm.encode_prompt(messages)) > used[None]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--system", ""), "system is empty"),
        (("--system", "x", "--raw"), "system is given and raw is true"),
        (("--system", "x", "--source", "y"), "system is given beside a source"),
    ],
)
def test_a_system_message_that_has_no_place_is_refused(polydec_command, model, flags, says):
    code, out, err = polydec_command("generate", "The fox", "--model", model, *flags)
    assert code == 2 and out == "" and says in err and err.count("\n") == 1


def test_choices_and_logprobs(polydec_command, model):
    _, out, _ = polydec_command(
        "generate",
        "The",
        "--model",
        model,
        "--max-tokens",
        "5",
        "--json",
        "--n",
        "2",
        "--logprobs",
        "2",
        "--temperature",
        "1",
        "--ignore-eos",
    )
    choices = json.loads(out)["choices"]
    assert len(choices) == 2 and choices[0]["token_ids"] != choices[1]["token_ids"]
    assert all(
        len(c["logprobs"]) == 5 and len(t["top"]) == 2 for c in choices for t in c["logprobs"]
    )


def test_trace_replays(polydec_command, model, tmp_path):
    from polydec.core.trace import EditedEvent, OpenedEvent, from_json, replay

    path = tmp_path / "trace.jsonl"
    _, out, _ = polydec_command(
        "generate",
        "The old river",
        "--model",
        model,
        "--max-tokens",
        "24",
        "--method",
        "prompt-lookup",
        "--json",
        "--trace",
        str(path),
        "--ignore-eos",
    )
    events = [from_json(json.loads(line)) for line in path.read_text().split("\n") if line]
    prompt = next(e.prompt for e in events if isinstance(e, OpenedEvent))
    assert (
        replay(prompt, [e.edit for e in events if isinstance(e, EditedEvent)])
        == json.loads(out)["token_ids"]
    )


def test_trace_says_what_an_approximation_promises(polydec_command, model, tmp_path):
    path = tmp_path / "trace.jsonl"
    args = (
        "generate",
        "The old river",
        "--model",
        model,
        "--method",
        "unified-layer-skipping",
        "--max-tokens",
        "4",
        "--json",
        "--trace",
        str(path),
    )
    _, out, _ = polydec_command(*args)
    kept, opened = path.read_text(), json.loads(path.read_text().split("\n")[0])
    assert opened["event"] == "Opened" and opened["method"] == json.loads(out)["method"]
    assert opened["method"]["guarantee"] == "approximate"
    assert polydec_command(*args, "--set", "speed=0")[0] == 2 and path.read_text() == kept
    code, _, err = polydec_command(*args[:-1], str(tmp_path / "none" / "trace.jsonl"))
    assert code == 2 and err.count("\n") == 1 and "cannot be written" in err


def test_defaults_of_methods_can_be_given_back(polydec_command):
    from polydec.methods.registry import registry

    for name, option in (
        ("rsd-c", "levels=2,1,1"),
        ("auto", "ask=none"),
        ("prompt-lookup", "cost_aware=true"),
    ):
        out = polydec_command("methods", name)[1]
        assert f"--set {option} " in out
        known = {o.name: o for o in registry.method_options(name)}
        key, _, value = option.partition("=")
        assert known[key].convert_value(value) == known[key].default
    assert "needs training: yes" in polydec_command("methods", "specdec-plus-plus")[1]


def test_methods(polydec_command):
    code, out, _ = polydec_command("methods", "--json")
    rows = json.loads(out)
    assert code == 0 and {"plain", "prompt-lookup", "token-recycling", "draft-model"} <= {
        r["name"] for r in rows
    }
    keys = {
        "name",
        "title",
        "kind",
        "family",
        "guarantee",
        "needs",
        "needs_training",
        "options",
        "source",
    }
    assert all(keys <= set(r) for r in rows)
    assert all(polydec_command("methods", r["name"])[0] == 0 for r in rows)
    assert polydec_command("methods")[0] == 0


def test_promises_are_said_in_words(polydec_command):
    listed = {line.split(" ")[0]: line for line in polydec_command("methods")[1].split("\n")}
    assert "same distribution as plain " in listed["prompt-lookup"]
    assert "same distribution as the model " in listed["mdlm"]
    assert "changes the text " in listed["beam"] and "Chooses for you" in listed["auto"]
    assert "guarantee: law (same distribution as plain)" in polydec_command("methods", "auto")[1]
    assert "guarantee: approximate (changes the text)" in polydec_command("methods", "beam")[1]
    assert promise_in_words(Exactness.ARGMAX, "ar") == "same greedy text as plain"


def test_methods_are_found_by_words(polydec_command):
    assert polydec_command("methods", "2404.16710")[1].startswith("layerskip:")
    assert polydec_command("methods", "eagle-2")[1].startswith("eagle-2:")
    assert polydec_command("methods", "draft", "&", "verify")[1].startswith("draft-and-verify:")
    code, out, _ = polydec_command("methods", "token", "tree", "--json")
    found = [r["name"] for r in json.loads(out)]
    assert code == 0 and "specinfer" in found and "plain" not in found
    listed = polydec_command("methods", "token", "tree")[1]
    first = {line.split(" ")[0] for line in listed.split("\n")}
    assert set(found) <= first and "plain" not in first
    code, _, err = polydec_command("methods", "lokahead")
    assert code == 2 and err.count("\n") == 1 and "did you mean lookahead" in err


@pytest.mark.parametrize(
    "words, name, kind",
    [
        ("contrastive decoding", "contrastive-decoding", "steering"),
        ("nucleus", "top_p", "sampling rule"),
        ("chunked sarathi", None, None),
        ("sarathi", "sarathi-serve", "always on"),
        ("kwon", "paged-attention", "always on"),
        ("key-value bottleneck", "discrete-key-value-bottleneck", "not here yet"),
        ("scaling laws", "scylla", "system"),
    ],
)
def test_words_find_what_is_no_method_too(polydec_command, words, name, kind):
    code, out, err = polydec_command("methods", *words.split(), "--json")
    if name is None:
        assert code == 2 and "`polydec methods` lists all of them" in err
        return
    rows = [(r["name"], r["kind"]) for r in json.loads(out)]
    assert code == 0 and (name, kind) in rows
    assert name in polydec_command("methods", *words.split())[1]


def test_nothing_that_does_not_fit_is_the_first_answer(polydec_command):
    code, _, err = polydec_command("methods", "multi-promising")
    assert code == 2 and "complexity" not in err


def test_a_methods_name_that_other_papers_hold_finds_both(polydec_command):
    code, out, _ = polydec_command("methods", "greedy")
    assert code == 0 and out.startswith("plain:") and "--method exact-extract" in out
    rows = json.loads(polydec_command("methods", "greedy", "--json")[1])
    assert [r["name"] for r in rows] == ["plain", "exact-extract"]


def test_what_was_trained_is_given_by_its_directory(polydec_command, model, tmp_path):
    stop_head.save(tmp_path / "head", stop_head.new_stop_head(32, 1, False, 0), {})
    args = (
        "generate",
        "The fox",
        "--model",
        model,
        "--draft",
        model,
        "--method",
        "specdec-plus-plus",
        "--max-tokens",
        "4",
        "--dtype",
        "float32",
        "--json",
    )
    code, _, err = polydec_command(*args)
    assert code == 2 and "--with DIR" in err
    code, _, err = polydec_command(*args, "--with", str(tmp_path / "head"))
    assert code == 0 and "does not read it" not in err
    code, _, err = polydec_command(*args, "--with", str(tmp_path / "none"))
    assert code == 2 and err.count("\n") == 1 and "holds no config.json" in err


def test_what_was_trained_and_is_not_read_is_said(polydec_command, model, tmp_path):
    head = str(tmp_path / "head")
    stop_head.save(head, stop_head.new_stop_head(32, 1, False, 0), {})
    for method, drafts in (("plain", False), ("draft-model", True), ("auto", True)):
        code, _, err = polydec_command(
            "generate",
            "The fox",
            "--model",
            model,
            "--draft",
            model,
            "--dtype",
            "float32",
            "--with",
            head,
            "--method",
            method,
            "--max-tokens",
            "4",
        )
        assert code == 0
        assert (
            f"polydec: {head} is a stop head, and {method} does not read it: specdec-plus-plus would\n"
            in err
        )
        assert (f"polydec: {model} is the draft model, and {method} does not read it\n" in err) == (
            not drafts
        )


def test_a_constraint_may_come_through_a_pipe(polydec_command, model, tmp_path):
    pipe, read = tmp_path / "schema.json", [0]
    os.mkfifo(pipe)

    def write():
        with pipe.open("w") as file:  # waits for a reader
            file.write('{"enum": ["fox"]}')
        read[0] += 1

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    code, out, err = polydec_command(
        "generate",
        "The fox",
        "--model",
        model,
        "--dtype",
        "float32",
        "--json-schema",
        str(pipe),
        "--max-tokens",
        "12",
    )
    writer.join(10)
    assert code == 0 and out.strip() == '"fox"' and read == [1], err
    # The schema itself does as well.
    flags = ("--dtype", "float32", "--json-schema", ' {"enum": ["fox"]}', "--max-tokens", "12")
    code, out, err = polydec_command("generate", "The fox", "--model", model, *flags)
    assert code == 0 and out.strip() == '"fox"', err


def test_what_does_nothing_is_said(polydec_command, model):
    def said(*flags):
        code, _, err = polydec_command(
            "generate",
            "The fox",
            "--model",
            model,
            "--max-tokens",
            "4",
            "--dtype",
            "float32",
            *flags,
        )
        return code, [
            line.removeprefix("polydec: ")
            for line in err.splitlines()
            if line.startswith("polydec: ")
        ]

    unlikely = "at temperature 0 the likeliest token is written, whatever is unlikely"
    assert said("--temperature", "0", "--top-p", "0.5") == (
        0,
        [f"top_p is 0.5 and does nothing here: {unlikely}"],
    )
    assert said("--temperature", "1", "--top-p", "0.5") == (0, [])
    assert said("--sample", "dry_base=3", "--repetition-penalty", "1.2") == (
        0,
        ["dry_base is 3.0 and does nothing here: it is off, as dry_multiplier is 0.0"],
    )
    assert said("--sample", "dry_base=3", "--sample", "dry_multiplier=0.5") == (0, [])
    assert said("--logprobs", "2") == (0, ["logprobs is 2: they stand in the JSON object (--json)"])
    assert said("--logprobs", "2", "--json") == (0, [])
    assert said("--shots", "2") == (
        2,
        ["shots is 2 and there is nothing to show: give --exemplars, or leave it out"],
    )


@pytest.mark.parametrize(
    "command, flags, said",
    [
        (
            "bench",
            ("--method", "eagle-3"),
            "bench does not take --method or --set: it compares methods",
        ),
        ("bench", ("--regex", "a+"), "--regex is given, and bench does nothing with it"),
        ("bench", ("--infill", "[[3]]"), "--infill is given, and bench"),
        ("bench", ("--stop-token-id", "1"), "--stop-token-id is given, and bench"),
        ("verify", ("--n", "2"), "--n is given, and verify does nothing with it"),
        ("verify", ("--infill", "a"), "--infill is given, and verify"),
        ("verify", ("--logprobs", "1"), "--logprobs is given, and verify"),
        (
            "chat",
            ("--trace", "t.jsonl"),
            "chat does not take --json, --n, --raw, --trace, --logprobs or --prompt-logprobs",
        ),
    ],
)
def test_flags_that_a_command_would_do_nothing_with_are_refused(
    polydec_command, model, command, flags, said
):
    code, _, err = polydec_command(command, "--model", model, *flags)
    assert code == 2 and said in err and err.count("\n") == 1


def test_verify_holds_to_constraints_and_stops(polydec_command, model, tmp_path):
    data = tmp_path / "q.txt"
    data.write_text("The tall baker\nThe young teacher watched the\n")
    common = (
        "verify",
        "--model",
        model,
        "--method",
        "prompt-lookup",
        "--data",
        str(data),
        "--json",
        "--dtype",
        "float32",
        "--max-tokens",
        "24",
    )
    tokens = []
    for more in (
        (),
        ("--regex", "(the|fox| ){3}"),
        ("--ignore-eos",),
        ("--stop", "e"),
        ("--order", "llamacpp"),
    ):
        code, out, _ = polydec_command(*common, *more)
        said = json.loads(out)
        assert code == 0 and said["counts"]["equal"] == 2
        tokens.append(sum(p["tokens"] for p in said["prompts"]))
    plain, regex, on, stopped, _ = tokens
    assert regex < plain and stopped < plain and on == 48
    code, _, err = polydec_command(*common, "--regex", "(")
    assert code == 2 and "regex" in err


def test_verify_and_bench(polydec_command, model, tmp_path):
    data = tmp_path / "q.jsonl"
    data.write_text(
        "".join(
            json.dumps({"prompt": p, "category": c}) + "\n"
            for p, c in (("The tall baker", "a"), ("The young teacher watched the", "b"))
        )
    )
    code, out, _ = polydec_command(
        "verify",
        "--model",
        model,
        "--method",
        "prompt-lookup",
        "--data",
        str(data),
        "--json",
        "--dtype",
        "float32",
        "--max-tokens",
        "40",
    )
    assert code == 0 and json.loads(out)["counts"] == {"equal": 2, "near-tie": 0, "fault": 0}
    code, out, _ = polydec_command(
        "bench",
        "--model",
        model,
        "--methods",
        "plain,prompt-lookup:depth=3",
        "--data",
        str(data),
        "--json",
        "--max-tokens",
        "16",
        "--repeat",
        "2",
        "--dtype",
        "float32",
    )
    result = json.loads(out)
    keys = {
        "model",
        "method",
        "workload",
        "batch",
        "tokens_per_second",
        "ratio_to_plain",
        "ratio_interval",
        "tokens_per_pass",
        "positions_fed",
        "mean_acceptance_length",
        "identical",
    }
    assert code == 0 and result["machine"] and all(keys <= set(r) for r in result["rows"])
    assert {(r["method"], r["workload"]) for r in result["rows"]} == {
        (m, w) for m in ("plain", "prompt-lookup depth=3") for w in ("a", "b", "all")
    }
    assert all(r["identical"] for r in result["rows"])


BAD = {
    "unknown model": (["--model", "zoo:smolm2"], "zoo:smollm2"),
    "unknown method": (["--method", "prompt-lokup"], "prompt-lookup"),
    "unknown option": (["--method", "prompt-lookup", "--set", "dept=3"], "depth"),
    "option out of range": (["--method", "prompt-lookup", "--set", "depth=-1"], "depth"),
    "option of another type": (["--method", "prompt-lookup", "--set", "depth=many"], "many"),
    "set without =": (["--set", "depth"], "="),
    "temperature": (["--temperature", "-1"], "temperature"),
    "top-p": (["--top-p", "0"], "top_p"),
    "max-tokens": (["--max-tokens", "0"], "max_tokens"),
    "more than the context": (["--max-tokens", "9999"], "context"),
    "n": (["--n", "0"], "n is 0"),
    "more choices than memory": (["--n", "1000000000"], "n is 1000000000"),
    "more tokens than any context": (["--max-tokens", "1000000000"], "max_tokens is 1000000000"),
    "a seed without end": (["--seed", "9" * 60], "it must be a whole number, in -"),
    "min-tokens": (["--min-tokens", "-1"], "min_tokens"),
    "logprobs": (["--logprobs", "100"], "logprobs"),
    "stop id": (["--stop-token-id", "99999"], "stop_token_ids has token 99999"),
    "dtype": (["--dtype", "float7"], "float7"),
    "threads": (["--threads", "0"], "threads"),
    "threads that torch dies of": (["--threads", "100000"], "threads is 100000"),
    "order": (["--order", "mine"], "mine"),
    "no draft": (["--method", "draft-model"], "draft"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input(polydec_command, model, case):
    flags, says = BAD[case]
    if "--model" not in flags:
        flags = [*flags, "--model", model]
    code, out, err = polydec_command("generate", "The grey fox", *flags)
    assert code == 2 and out == "" and says in err
    assert err.startswith("polydec: ") and err.count("\n") == 1 and "Traceback" not in err


def test_bad_prompts(polydec_command, model, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text("The grey fox watched the boat. " * 200)
    for args, says in (
        (["", "--model", model], "empty"),
        (["--model", model], "prompt"),
        (["--prompt-file", str(long), "--model", model], "context"),
        (["--prompt-file", str(tmp_path / "none.txt"), "--model", model], "none.txt"),
    ):
        code, _, err = polydec_command("generate", *args)
        assert code == 2 and says in err and err.count("\n") == 1


def test_bad_models(polydec_command, model, other, tmp_path):
    empty, short = tmp_path / "empty", tmp_path / "short"
    empty.mkdir()
    shutil.copytree(model, short)
    weights = short / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    for args in (
        ["--model", str(empty)],
        ["--model", str(short)],
        ["--model", model, "--draft", other, "--method", "draft-model"],
    ):
        code, _, err = polydec_command("generate", "The", *args)
        assert code == 2 and err.startswith("polydec: ") and err.count("\n") == 1


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_interrupt_keeps_the_text_so_far(model):
    code = "from polydec.cli.main import main; main()"
    args = [
        "generate",
        "The grey fox",
        "--model",
        model,
        "--ignore-eos",
        "--max-tokens",
        "220",
        "--temperature",
        "1",
        "--threads",
        "1",
        "--method",
        "plain",
    ]
    p = subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    first = p.stdout.read(1)
    time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    rest, err = p.communicate(timeout=60)
    assert "Traceback" not in err and first + rest
    assert p.returncode in (0, 130)  # 0: it was faster than the signal


@pytest.mark.parametrize("library, args", [("typer", ()), ("torch", ("generate", "x"))])
def test_an_interrupt_while_libraries_load_is_met_as_well(library, args):
    code = f"""if True:
        import sys
        class Ctrl:
            def find_spec(self, name, *rest):
                if name == {library!r}:
                    raise KeyboardInterrupt
        sys.meta_path.insert(0, Ctrl())
        sys.argv = ["polydec", *{args!r}]
        from polydec.__main__ import main
        main()"""
    p = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert p.returncode == 130 and not p.stdout + p.stderr


def test_bench_takes_lists_and_says_what_is_wrong_before_it_runs(
    polydec_command, model, monkeypatch
):
    from polydec.lab.bench import measure
    from polydec.lab.commands.bench import parse_methods

    assert [
        (m.name, m.options)
        for m in parse_methods("rsd-c:levels=2,1,1:nodes=3, auto,token-recycling:shape=3,2")
    ] == [
        ("rsd-c", {"levels": "2,1,1", "nodes": "3"}),
        ("auto", {}),
        ("token-recycling", {"shape": "3,2"}),
    ]
    monkeypatch.setattr(measure, "measure_methods", None)  # nothing is decoded
    for args, says in (
        (("bench", "--methods", "auto:depth=99"), "depth is 99"),
        (("bench", "--limit", "0"), "limit is 0"),
        (("bench", "--methods", "draft-model"), "draft model"),
        (("verify", "--limit", "-1"), "limit is -1"),
        (("verify", "--method", "auto", "--set", "depth=99"), "depth is 99"),
    ):
        code, out, err = polydec_command(*args, "--model", model, "--draft", "none")
        assert code == 2 and out == "" and says in err


def test_figures_are_whole_in_a_narrow_place(polydec_command, model, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    out = polydec_command(
        "bench",
        "--model",
        model,
        "--methods",
        "draft-model-tree:levels=2,1",
        "--draft",
        model,
        "--limit",
        "1",
        "--max-tokens",
        "4",
        "--repeat",
        "1",
    )[1]
    assert "tokens/pass" in out and "draft-model-tree levels=2,1" in out and "…" not in out


def test_a_line_of_figures_breaks_between_words_on_a_terminal_alone(
    polydec_command, model, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    asked = ("generate", "a", "--model", model, "--method", "plain", "--max-tokens", "2")
    whole = polydec_command(*asked)[2].splitlines()
    assert len(whole) == 1
    monkeypatch.setenv("FORCE_COLOR", "1")
    lines = [plain_line(line) for line in polydec_command(*asked)[2].splitlines()]
    assert len(lines) > 1 and max(map(len, lines)) <= 40
    # no word is cut: the same words come out, but for what was measured
    assert len(" ".join(lines).split()) == len(whole[0].split())


def plain_line(line):
    """A line without its colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line).rstrip()


def test_a_chat_outlives_a_turn_that_is_too_long(polydec_command, model, monkeypatch):
    import io

    chat = ("chat", "--model", model, "--max-tokens", "4", "--method", "prompt-lookup")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"The fox\n{'The grey fox. ' * 400}\nThe fox\n\n"))
    code, _, err = polydec_command(*chat)
    assert code == 0 and err.count("prompt has") == 1 and err.count("tokens a pass") == 2
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    code, _, err = polydec_command(*chat, "--set", "depth=99")
    assert code == 2 and "depth is 99" in err


def test_n_best_of_one_search(polydec_command, model):
    code, out, _ = polydec_command(
        "generate",
        "the fox",
        "--model",
        model,
        "--method",
        "beam",
        "--set",
        "width=4",
        "--n",
        "2",
        "--json",
        "--max-tokens",
        "12",
    )
    made = json.loads(out)
    first, second = made["choices"]
    assert code == 0 and first["text"] == made["text"] and first["score"] >= second["score"]
    assert (
        first["token_ids"] != second["token_ids"] and made["metrics"]["tokens_scored"] <= 1 + 11 * 4
    )


def test_more_answers_than_a_search_gives(polydec_command, model):
    code, _, err = polydec_command(
        "generate", "the fox", "--model", model, "--method", "beam", "--set", "width=4", "--n", "5"
    )
    assert (
        code == 2
        and "n is 5: a search of width 4 gives at most 4 texts" in err
        and "Traceback" not in err
    )
