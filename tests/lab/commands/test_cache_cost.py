"""polydec cache-cost: what presses cost a model on a text."""

import csv
import json
from math import exp

import pytest
import torch

import micro
from polydec import load
from polydec.base.errors import RequestError
from polydec.core.scheduler import run_coroutines
from polydec.core.types import Draft, ScoreRequest
from polydec.lab.bench.cache_cost import (
    COMPARED,
    NO_PRESS,
    SKIPPED,
    PressedTextReader,
    measure_cache_costs,
    parse_press_setting,
    usable_settings,
)
from polydec.lab.commands.cache_cost import LENGTHS, lengths_that_fit, parse_lengths
from polydec.methods.registry import press

TEXT = " ".join(micro.TEXT * 3)


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    folder = micro.write(tmp_path_factory.mktemp("cost"), context=512, hidden=64)
    return load(str(folder), dtype="float32", draft=None, ngrams=None)


@pytest.fixture
def text_file(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def laws(law, tokens):
    """The law after each token, all of them in one pass."""
    session = law.open_session(tokens[:1])
    scores = run_coroutines(
        [session.score_draft(Draft.chain_draft(tokens[0], tokens[1:]), ScoreRequest())]
    )[0]
    out = torch.stack([scores.logprob_row(i) for i in range(len(tokens))]).double()
    session.close()
    return out


def test_figures_are_their_definitions(lm):
    """Of one pass over the text, where a row sees what it sees however the text is cut."""
    tokens = tuple(lm.encode_prompt(TEXT, raw=True))[:301]
    settings = [parse_press_setting(x) for x in ("quantised:bits=2:block=16", "window:block=16")]
    told = []
    found = list(
        measure_cache_costs(
            lm, tokens, settings, (100, 300), advance=lambda *seen: told.append(seen)
        )
    )
    assert [row[0].setting for row in found] == [NO_PRESS, *settings]
    assert [label for label, n in told if n == 300] == [
        x.setting_label for x in (NO_PRESS, *settings)
    ]
    config = lm.network.config
    entry = 8 * config.layers * config.kv_heads * config.head
    exact_NV = laws(lm.checkpoint.lm, tokens[:300])
    for row in found:
        setting = row[0].setting
        got_NV = exact_NV
        if setting is not NO_PRESS:
            made, _ = press.build(setting.name, setting.options)
            got_NV = laws(lm.checkpoint.lm.pressed_law(made), tokens[:300])
        for cost in row:
            n = cost.length
            counted = min(50, SKIPPED)
            nats = [
                -float(x_NV[range(counted, n), tokens[counted + 1 : n + 1]].mean())
                for x_NV in (exact_NV, got_NV)
            ]
            ratio = exp(nats[1]) if setting is NO_PRESS else exp(nats[1] - nats[0])
            assert cost.perplexity == pytest.approx(ratio, rel=1e-4)
            last = slice(n - min(50, COMPARED), n)
            p, q = exact_NV[last], got_NV[last]
            assert cost.kl == pytest.approx(float((p.exp() * (p - q)).sum(-1).mean()), abs=1e-5)
            assert cost.same == pytest.approx(
                float((p.argmax(-1) == q.argmax(-1)).double().mean()), abs=0.03
            )
            assert cost.share == pytest.approx(cost.position_bytes / entry)
            assert not cost.speeds
    plain, rounded, window = (row[-1] for row in found)
    assert plain.bits == 32 and plain.kl == 0 and plain.same == 1 and plain.share >= 1
    assert rounded.bits == 3.5 and rounded.kl > 1e-3, "2 bits, scales of 16 keys and 32 values"
    assert window.share < rounded.share < plain.share
    assert not lm.checkpoint.lm.live


def test_speed_is_measured_behind_each_length_over_the_same_press(lm, monkeypatch):
    from polydec.lab.bench import cache_cost

    asked = []
    real = cache_cost.Engine.submit
    monkeypatch.setattr(
        cache_cost.Engine, "submit", lambda self, ask: (asked.append(ask), real(self, ask))[1]
    )
    tokens = tuple(lm.encode_prompt(TEXT, raw=True))[:121]
    shared = lm.checkpoint.lm.shared
    found = list(
        measure_cache_costs(
            lm,
            tokens,
            [parse_press_setting("window:block=16")],
            (60, 120),
            methods=("plain", "prompt-lookup"),
            written=3,
        )
    )
    assert all(set(c.speeds) == {"plain", "prompt-lookup"} for row in found for c in row)
    assert all(speed > 0 for row in found for c in row for speed in c.speeds.values())
    assert {(len(a.prompt), a.cache, a.method) for a in asked} == {
        (n, cache, method)
        for n in (60, 120)
        for cache in (None, "window")
        for method in ("plain", "prompt-lookup")
    }
    assert lm.checkpoint.lm.shared - shared >= 4 * (59 + 119), "the text is not read again"


def test_the_command_writes_what_it_shows(lm, text_file, tmp_path, polydec_command):
    asked = ("cache-cost", lm.name, str(text_file), "--dtype", "float32", "--lengths", "40,90")
    out = tmp_path / "new" / "costs.csv"
    named = ("--press", "h2o:block=16", "--press", "kivi:bits=4:block=16", "--no-speed")
    code, shown, err = polydec_command(*asked, *named, "--out", str(out))
    assert not code, err
    with out.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(r["press"], r["options"], r["length"]) for r in rows] == [
        (name, options, length)
        for name, options in (("none", ""), ("h2o", "block=16"), ("quantised", "bits=4 block=16"))
        for length in ("40", "90")
    ]
    assert all(r["numbers"].startswith("float32") and "plain" not in r for r in rows)
    assert "float32" in shown and "quantised bits=4 block=16" in shown
    assert all(f"{float(r['perplexity']):g}" in shown for r in rows)
    whole = tmp_path / "costs.json"
    code, shown, _ = polydec_command(*asked, *named[:2], "--auto", "--json", "--out", str(whole))
    assert not code and json.loads(shown) == json.loads(whole.read_text())
    assert all(r["plain"] > 0 and r["auto"] > 0 for r in json.loads(shown)["rows"])


@pytest.mark.parametrize("stop_at", ["none", "h2o block=16", "quantised block=16"])
def test_a_run_that_is_stopped_keeps_what_is_done(
    lm, text_file, tmp_path, polydec_command, monkeypatch, stop_at
):
    """Whoever waits for hours sees each press that is done, and finds it in the file."""
    real = PressedTextReader.read_text

    def read_text(self, *args):
        if self.setting.setting_label == stop_at:
            raise KeyboardInterrupt
        return real(self, *args)

    monkeypatch.setattr(PressedTextReader, "read_text", read_text)
    out = tmp_path / "costs.csv"
    code, shown, err = polydec_command(
        *("cache-cost", lm.name, text_file, "--dtype", "float32", "--lengths", "40", "--no-speed"),
        *("--press", "h2o:block=16", "--press", "quantised:block=16", "--out", out),
    )
    presses = ["none", "h2o", "quantised"]
    done = presses[: presses.index(stop_at.split()[0])]
    assert code == 130 and not shown
    assert [line for line in err.splitlines() if " of 3: " in line] == [
        f"{i + 1} of 3: {name}{' block=16' if name != 'none' else ''}"
        for i, name in enumerate(done)
    ]
    if done:
        with out.open(encoding="utf-8", newline="") as file:
            assert [row["press"] for row in csv.DictReader(file)] == done
        assert f"holds the figures of {done[0]}" in err
    else:
        assert not out.exists() and "no press was done" in err


def test_rows_of_a_file_are_one_text(lm, text_file, tmp_path, polydec_command):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"text": t}) + "\n" for t in micro.TEXT))
    asked = ("--dtype", "float32", "--press", "window:block=16", "--no-speed", "--json")
    code, out, err = polydec_command("cache-cost", lm.name, str(rows), *asked)
    assert not code, err
    found = json.loads(out)["rows"]
    assert {r["length"] for r in found} == {511}, "as many as the model holds"


@pytest.mark.parametrize(
    "given, sentence",
    [
        (("--press", "gaer"), "did you mean gear"),
        (("--press", "todre"), "press is todre: it makes images smaller"),
        (("--press", "gear:bits"), "options are written as gear:option=value"),
        (("--press", "gear:bits=3"), "bits is 3"),
        (("--press", "gear:blok=3"), "'blok'"),
        (("--lengths", "10,x"), "lengths is '10,x'"),
        (("--lengths", "9" * 5000), "must be whole numbers from 2 to 10,000,000"),
        (("--lengths", "10,10"), "each must stand there once"),
        (("--lengths", "1"), "lengths is 1"),
        (("--lengths", "600"), "479 is the most"),
        (("--out", "costs.txt"), ".csv or .json"),
        (("--dtype", "native", "--press", "gear"), "by rounding alone"),
    ],
)
def test_bad_input_is_one_sentence(lm, text_file, polydec_command, given, sentence):
    if "native" in given:
        from polydec.models.native.library import native_step_availability

        if not native_step_availability()[0]:
            pytest.skip(native_step_availability()[1])
    code, out, err = polydec_command("cache-cost", lm.name, str(text_file), *given)
    assert code == 2 and not out and sentence in err
    assert len(err.strip().splitlines()) == 1 and "Traceback" not in err


def test_other_files_and_models_are_refused(lm, tmp_path, polydec_command):
    empty = tmp_path / "empty.txt"
    empty.write_text(" \n")
    for path, sentence in ((empty, "holds no running text"), (tmp_path / "no", "No such file")):
        code, _, err = polydec_command("cache-cost", lm.name, str(path))
        assert code == 2 and sentence in err
    some = tmp_path / "some.txt"
    some.write_text(TEXT)
    code, _, err = polydec_command("cache-cost", "zoo:diffusion", str(some))
    assert code == 2 and "models that continue texts only" in err


def test_lengths_are_those_that_fit(text_file):
    assert lengths_that_fit(None, 9000, 8192, 32, text_file) == list(LENGTHS)
    assert lengths_that_fit(None, 4001, 8192, 32, text_file) == [1000, 2000, 4000]
    assert lengths_that_fit(None, 4000, 512, 32, text_file) == [479]
    assert lengths_that_fit([3, 9], 10, 512, 0, text_file) == [3, 9]
    for wanted, held in (([3, 9], 9), (None, 2)):
        with pytest.raises(RequestError):
            lengths_that_fit(wanted, held, 512, 0, text_file)
    assert parse_lengths("20, 3") == [3, 20]


def test_presses_that_the_network_cannot_read_are_named(lm, monkeypatch):
    monkeypatch.setattr(type(lm.network), "presses", False)
    good, refused = usable_settings(lm, [parse_press_setting("h2o")])
    assert not good and "--dtype torch" in refused["h2o"]
