"""polydec doctor and polydec tune."""

import dataclasses
import json
import subprocess
import sys
import warnings

import pytest

from polydec import api
from polydec.cli import doctor
from polydec.lab.testing.toy import toy_law
from polydec.request import machine, profile
from polydec.request.passes import PassTimer, measure_pass_times


@pytest.fixture
def command(polydec_command):
    def call(*args, code=0):
        done = polydec_command(*args)
        assert done.code == code
        return done

    return call


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch, measured_costs):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: 0.0)


def test_doctor(command):
    report = json.loads(command("doctor", "--model", "zoo:tiny", "--json").out)
    assert report["model"]["ngrams"] is None
    assert (
        report["model"]["name"] == "zoo:tiny"
        and report["model"]["draft"]["name"] == "zoo:tiny-draft"
    )
    assert report["model"]["kernel"].startswith("native") or report["model"]["why_not_native"]
    assert {e["name"] for e in report["zoo"]} >= {"zoo:tiny", "zoo:smollm2"}
    assert "asked       zoo:tiny" in command("doctor", "--model", "zoo:tiny").out


@pytest.mark.parametrize(
    "named, said",
    [
        (None, "POLYDEC_DATA is not set: training reads --data, or the sample"),
        ("", "POLYDEC_DATA is not set"),
        (".", ".: here"),
        ("nowhere", "nowhere: not here (POLYDEC_DATA names it)"),
    ],
)
def test_doctor_says_which_texts_a_training_reads(monkeypatch, tmp_path, named, said):
    monkeypatch.chdir(tmp_path)
    if named is None:
        monkeypatch.delenv("POLYDEC_DATA", raising=False)
    else:
        monkeypatch.setenv("POLYDEC_DATA", named)
    assert doctor.data_folder_sentence(doctor.data_folder_facts()).startswith(said)


def test_doctor_says_what_is_wrong_with_a_model(command):
    report = json.loads(command("doctor", "--model", "zoo:tinny", "--json").out)
    assert "zoo:tiny" in report["model"]["error"]


def test_tune_is_what_auto_reads(command):
    said = json.loads(command("tune", "--model", "zoo:tiny", "--seconds", "1", "--json").out)
    lm = api.load("zoo:tiny")
    kept = profile.read_pass_profile(lm)
    assert kept is not None and kept.rows == {int(k): v for k, v in said["rows"].items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        costs = lm.costs
    assert list(costs.rows_ms) == sorted(costs.rows_ms) and len(costs.rows_ms) >= max(profile.ROWS)
    assert costs.draft_ms > 0


def test_tune_does_not_keep_what_a_busy_machine_measured(command, monkeypatch):
    tune = ("tune", "--model", "zoo:tiny", "--seconds", "1")
    command(*tune)
    lm = api.load("zoo:tiny")
    before = profile.read_pass_profile(lm)
    costs = dataclasses.replace(before, extra_ms=before.extra_ms + 1)
    monkeypatch.setattr(profile, "measure_pass_profile", lambda lm, seconds: costs)
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: 0.7)
    done = command(*tune)
    assert "warning: the machine is busy (load 0.7" in done.err
    assert "not kept, as the machine is busy (load 0.7 of its cores): run it again" in done.out
    assert json.loads(command(*tune, "--json").out)["kept"] is False
    assert profile.read_pass_profile(lm) == before
    assert json.loads(command(*tune, "--anyway", "--json").out)["kept"] is True
    assert profile.read_pass_profile(lm) == costs


def test_without_a_profile_it_is_measured_and_said():
    lm = api.load("zoo:tiny", draft=None)
    with pytest.warns(UserWarning, match="no profile of zoo:tiny"):
        costs = lm.costs
    assert profile.read_pass_profile(lm).costs == costs and costs.draft_ms == 0


@pytest.mark.parametrize(
    "load, says",
    [
        (0.0, r"measures more carefully\)$"),
        (0.7, r"other programs compute: run `polydec tune` when they are done\)$"),
    ],
)
def test_a_first_use_on_a_busy_machine_says_so(monkeypatch, load, says):
    quick = profile.measure_pass_profile(api.load("zoo:tiny", draft=None), seconds=0.5)
    monkeypatch.setattr(profile, "read_pass_profile", lambda lm: None)
    monkeypatch.setattr(profile, "measure_pass_profile", lambda lm, seconds: quick)
    monkeypatch.setattr(profile, "save_pass_profile", lambda lm, measured: None)
    monkeypatch.setattr(machine, "relative_cpu_load", lambda: load)
    with pytest.warns(UserWarning, match=says):
        profile.known_pass_costs(api.load("zoo:tiny", draft=None))


def test_a_recorded_profile_is_read_whatever_the_model(command, monkeypatch, tmp_path):
    printed = command("tune", "--model", "zoo:tiny", "--seconds", "1", "--json").out
    (tmp_path / "costs.json").write_text(printed)
    want = profile.read_pass_profile(api.load("zoo:tiny"))
    other = api.load("zoo:diffusion")
    assert profile.read_pass_profile(other) is None
    monkeypatch.setenv("POLYDEC_PROFILE", str(tmp_path / "costs.json"))
    assert profile.read_pass_profile(other) == want
    said = command("tune", "--model", "zoo:tiny", "--seconds", "1").err
    assert "POLYDEC_PROFILE" in said


@pytest.mark.parametrize(
    "text, says",
    [
        (None, "costs.json"),
        ("[]", "costs.json"),
        ("{}", "context is missing"),
        (json.dumps({"context": 64, "rows": {"1": -3}}), "rows.1 is -3"),
    ],
)
def test_a_recorded_profile_that_is_none_is_one_sentence(
    command, monkeypatch, tmp_path, text, says
):
    at = tmp_path / "costs.json"
    if text is not None:
        at.write_text(text)
    monkeypatch.setenv("POLYDEC_PROFILE", str(at))
    found = command("generate", "--model", "zoo:tiny", "--raw", "a", "--method", "auto", code=2)
    assert says in found.err and found.err.count("\n") == 1


def test_wrong_options_are_refused_before_anything_is_measured(monkeypatch):
    monkeypatch.setattr(profile, "measure_pass_profile", None)
    engine = api.Engine(api.load("zoo:tiny"))
    for method, options in (
        ("auto", {"depth": 99}),
        ("prompt-lookup", {"dept": 3}),
        ("merged-drafts", {"trust": 0.0}),
    ):
        with pytest.raises(ValueError, match=r"dept|trust"):
            engine.submit("The old river", method=method, options=options)


def test_a_profile_that_cannot_be_kept_is_said(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    lm = api.load("zoo:tiny", draft=None)
    with pytest.warns(UserWarning, match="could not be kept"):
        assert lm.costs.rows_ms


def test_damaged_profiles_count_as_none(tmp_path):
    lm = api.load("zoo:tiny", draft=None)
    profile.pass_profiles_path().parent.mkdir(parents=True)
    for text in ("", "[]", "{", json.dumps({profile.pass_profile_key(lm): {"rows": 3}})):
        profile.pass_profiles_path().write_text(text)
        assert profile.read_pass_profile(lm) is None


KEEPER = """
import sys
from types import SimpleNamespace as Some
from polydec.request import profile
profile.pass_profile_key = lambda lm: lm
for n in range(100):
    key = f"{sys.argv[1]} {n}"
    profile.save_pass_profile(key, profile.PassProfile(1, {1: 1.0}, 2, {1: 1.0}, {}, {}, {}, 0.1, 0.0, "today"))
"""


def test_two_writers_of_profiles_lose_nothing():
    both = [subprocess.Popen([sys.executable, "-c", KEEPER, who]) for who in "ab"]
    assert [p.wait(120) for p in both] == [0, 0]
    assert len(json.loads(profile.pass_profiles_path().read_text())) == 200


def test_a_damaged_file_of_profiles_is_moved_aside():
    lm = api.load("zoo:tiny", draft=None)
    profile.pass_profiles_path().parent.mkdir(parents=True)
    profile.pass_profiles_path().write_text('{"someone\'s": "years of work"')
    found = profile.PassProfile(1, {1: 1.0}, 2, {1: 1.5}, {}, {}, {}, 0.1, 0.0, "today")
    profile.save_pass_profile(lm, found)
    assert (
        profile.read_pass_profile(lm) == found
        and "years" in profile.pass_profiles_path().with_suffix(".damaged").read_text()
    )


def test_what_a_profile_says_of_several_sequences():
    """Passes whose times follow the law: 4 ms, 1 a row, 2 a sequence behind 1,000 tokens (3 of several), 0.5 a further one."""

    def t(rows, sequences, context):
        return (
            3.0
            + rows
            + 0.5 * (sequences - 1)
            + sequences * (3.0 if sequences > 1 else 2.0) * context / 1000
        )

    rows, far = ({m: t(m, 1, c) for m in (1, 2, 4, 8)} for c in (100, 900))
    found = profile.PassProfile(
        100, rows, 900, far, {}, {4: t(4, 4, 100)}, {4: t(4, 4, 900)}, 0.25, 0.125, "today"
    ).costs
    assert found.crowd == pytest.approx(1.5) and found.beside_ms == pytest.approx(0.625)
    assert found.pass_ms(5, 1, 300) == pytest.approx(0.25 + t(5, 1, 300))
    assert found.pass_ms(6, 2, 300) == pytest.approx(0.25 + 0.125 + t(6, 2, 300))
    calm = profile.PassProfile(
        100, rows, 900, far, {}, {4: t(4, 1, 100)}, {4: t(4, 1, 900)}, 0.0, 0.0, "today"
    ).costs
    assert calm.crowd == 1.0 and calm.beside_ms == 0.0  # what was measured is never a gain


def test_profiles_of_every_wrong_kind_count_as_none(command):
    lm = api.load("zoo:tiny")
    whole = profile.PassProfile(
        1, {1: 1.0, 2: 2.0}, 2, {1: 1.5, 2: 2.5}, {1: 1.0}, {2: 1.5}, {2: 2.0}, 0.1, 0.02, "x"
    )
    good = json.loads(json.dumps(dataclasses.asdict(whole)))
    wrong = (
        None,
        True,
        -1,
        0,
        2**80,
        1.5,
        float("nan"),
        float("inf"),
        "1",
        [],
        {},
        {"1": None},
        {"1": "x"},
        {"x": 1.0},
        {"1": -1.0},
        {"2": 1.0},
        {"1": float("nan")},
        {"0": 1.0, "1": 1.0},
        {str(10**9): 1.0, "1": 1.0},
    )
    profile.pass_profiles_path().parent.mkdir(parents=True)
    texts = [
        json.dumps({profile.pass_profile_key(lm): bad})
        for key in good
        for w in wrong
        for bad in ({**good, key: w}, {k: v for k, v in good.items() if k != key})
    ]
    for text in ("[" * 10_000, "\xff", *texts):
        profile.pass_profiles_path().write_text(text)
        found = profile.read_pass_profile(lm)
        assert (
            found is None or found.costs.rows_ms
        )  # a text for `measured`, no draft: what is left is a profile
    assert "profile" in command("doctor", "--model", "zoo:tiny").out


@pytest.mark.parametrize("threads", ["0", "40000", "100000", str(10**30)])
@pytest.mark.parametrize("who", ["doctor", "tune", "generate"])
def test_threads_are_bounded_before_torch_takes_them(command, monkeypatch, who, threads):
    monkeypatch.setattr(api, "load", None)  # nothing is loaded
    err = command(who, *(["hi"] if who == "generate" else []), "--threads", threads, code=2).err
    assert "threads is" in err and err.count("\n") == 1


@pytest.mark.parametrize("seconds", ["0", "101", "nan"])
def test_tune_refuses(command, seconds):
    assert "seconds" in command("tune", "--seconds", seconds, code=2).err


def test_tune_says_first_where_nothing_can_be_kept(command, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(profile, "measure_pass_profile", None)  # not a pass is made
    err = command("tune", "--model", "zoo:tiny", code=2).err
    assert str(tmp_path / "file") in err and "XDG_CACHE_HOME" in err and err.count("\n") == 1


def test_passes_feed_what_they_say():
    network = toy_law(0).network
    fed = []

    class Watched:
        size = network.size
        new_cache = network.new_cache

        def forward(self, queries):
            fed.append([len(q) for q in queries])
            return network.forward(queries)

    call = PassTimer(Watched(), 5, batch=2)
    assert call(3) > 0 and fed[-1] == [3, 3]
    assert set(measure_pass_times(call, (1, 2), 0.0)) == {1, 2}
