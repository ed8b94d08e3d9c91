"""polydec trace: the layout of its files, the page, the replay."""

import json
import re

import pytest


@pytest.fixture
def record(polydec_command, tmp_path):
    def call(*args):
        at = tmp_path / "run.jsonl"
        code, _, err = polydec_command("generate", *args, "--trace", at)
        assert code == 0, err
        return at

    return call


TINY = ("--model", "zoo:tiny", "--raw", "def mean(values):", "--max-tokens", "40")


def test_a_trace_says_its_version_and_ends_with_its_passes(record):
    lines = [
        json.loads(x)
        for x in record(*TINY, "--method", "token-recycling").read_text().split("\n")
        if x
    ]
    assert lines[0]["event"] == "Opened" and lines[0]["trace"]["version"] == 5
    assert (
        lines[0]["method"]["name"] == "token-recycling" and lines[0]["trace"]["vocabulary"] == 4096
    )
    passes = [x for x in lines if x["event"] == "Passed"]
    assert passes and passes[0]["start"] == 0 and {x["model"] for x in passes} == {"zoo:tiny"}
    draft = next(x for x in lines if x["event"] == "Proposed" and len(x["token"]) > 1)
    assert len(draft["piece"]) == len(draft["token"]) and all(draft["piece"])


def test_a_page_has_text_time_line_and_trees_and_needs_nothing(polydec_command, record, tmp_path):
    at = record(*TINY, "--method", "token-recycling")
    code, out, _ = polydec_command("trace", "html", at)
    text = (tmp_path / "run.html").read_text()
    assert code == 0 and out.startswith(str(tmp_path / "run.html"))
    assert (
        "What was written" in text
        and "When: " in text
        and re.search(r"1 of 1 accepted|[1-9] of \d", text)
    )
    assert not re.search(r"https?:|<script|@import|url\(", text)
    code, _, _ = polydec_command("trace", "html", at, "--out", tmp_path / "other.html")
    assert code == 0 and (tmp_path / "other.html").read_text() == text


def test_a_canvas_has_a_page(polydec_command, record, tmp_path):
    at = record("--model", "zoo:diffusion", "count: 427")
    assert polydec_command("trace", "html", at)[0] == 0
    text = (tmp_path / "run.html").read_text()
    assert "The canvas" in text and "pass 1, " in text and "When: " in text


def test_what_a_trace_holds_stays_text_on_the_page(polydec_command, tmp_path):
    at = tmp_path / "evil.jsonl"
    piece = "<script>alert(1)</script>"
    events = [
        {
            "event": "Opened",
            "choice": 0,
            "prompt": [1],
            "method": {"name": piece, "guarantee": "law"},
        },
        {
            "event": "Proposed",
            "choice": 0,
            "position": 1,
            "token": [1, 2],
            "parent": [-1, 0],
            "piece": [piece, piece],
        },
        {"event": "Verified", "choice": 0, "position": 1, "path": [1], "bonus": 3},
        {
            "event": "Edited",
            "choice": 0,
            "edit": {"write": [[1, 2], [2, 3]], "erase": [], "insert": []},
            "tokens": [2, 3],
            "pieces": [piece, piece],
            "accepted": 1,
        },
        {
            "event": "Passed",
            "choice": 0,
            "model": piece,
            "start": 0.0,
            "seconds": 1.0,
            "positions": 2,
            "of": 2,
            "queries": 1,
        },
    ]
    events[0]["trace"] = {"version": 2, "model": piece}
    at.write_text("\n".join(map(json.dumps, events)))
    assert polydec_command("trace", "html", at)[0] == 0
    assert "<script" not in (tmp_path / "evil.html").read_text()


def test_a_replay_under_its_own_setting_and_others(polydec_command, record):
    at = record(*TINY, "--method", "prompt-lookup")
    code, out, _ = polydec_command("trace", "replay", at, "--json")
    own = json.loads(out)["choices"][0]
    assert code == 0 and own["equal"] and own["made_again"] == own["recorded"]
    assert own["replayed"]["seconds"] > 0
    _, out, _ = polydec_command("trace", "replay", at, "--set", "depth=1", "--json")
    other = json.loads(out)["choices"][0]
    assert other["replayed"]["passes"] > own["replayed"]["passes"]
    code, out, _ = polydec_command("trace", "replay", at, "--method", "suffix-automaton")
    assert code == 0 and "pass for pass" in out and "suffix-automaton would take" in out


@pytest.mark.parametrize(
    "change, said",
    [
        ({"version": 6}, "reads traces up to 5"),
        ({"version": "x"}, "reads traces up to 5"),
        ({"method": None}, "does not say its method"),
        ({"vocabulary": 10**9}, "does not say its method"),
        ({"vocabulary": 3}, "no text of draft and verify"),
        ({"ends": ["a"]}, "does not say its method"),
        ({"costs": {"rows_ms": [0]}}, "its costs cannot be read"),
        ({"costs": 3}, "its costs cannot be read"),
    ],
)
def test_a_first_line_that_is_wrong_is_refused(polydec_command, record, tmp_path, change, said):
    at = record(*TINY[:4], "--max-tokens", "4", "--method", "plain")
    first, rest = at.read_text().split("\n", 1)
    line = json.loads(first)
    line = line | change if "method" in change else line | {"trace": line["trace"] | change}
    at.write_text(json.dumps(line) + "\n" + rest)
    code, _, err = polydec_command("trace", "replay", at)
    assert code == 2 and said in err and err.count("\n") == 1


def test_files_of_the_first_version_are_read(polydec_command, record):
    at = record(*TINY, "--method", "prompt-lookup")
    lines = [json.loads(x) for x in at.read_text().split("\n") if x]
    old = [
        {k: v for k, v in x.items() if k not in ("piece", "trace")}
        for x in lines
        if x["event"] != "Passed"
    ]
    at.write_text("\n".join(map(json.dumps, old)))
    assert polydec_command("trace", "show", at)[0] == 0
    assert polydec_command("trace", "html", at)[0] == 0
    code, _, err = polydec_command("trace", "replay", at)
    assert code == 2 and "record it again" in err


def test_a_search_is_drawn_as_a_tree_with_scores(polydec_command, record, tmp_path):
    at = record(*TINY[:4], "--max-tokens", "4", "--method", "beam", "--set", "width=2")
    kinds = [json.loads(x)["event"] for x in at.read_text().split("\n") if x]
    assert {"Branched", "Tried", "Scored", "Pruned", "Edited"} <= set(kinds)
    assert polydec_command("trace", "html", at)[0] == 0
    page = (tmp_path / "run.html").read_text()
    assert "The search: " in page and 'text-decoration="line-through"' in page
    assert re.search(r'class="score"[^>]*>-\d', page) and page.count('class="ok"') > 1


def test_a_tree_of_branches_joins_what_they_share():
    from polydec.cli.search_tree import build_search_tree, search_tree_html
    from polydec.core.trace import BranchedEvent, PrunedEvent, ScoredEvent, TriedEvent

    events = [
        BranchedEvent(0, 0, -1, 0),
        TriedEvent(0, 0, (1, 2), ("a", "b")),
        BranchedEvent(0, 1, 0, 2),
        BranchedEvent(0, 2, 0, 1),
        TriedEvent(0, 1, (3,), ("<c>",)),
        ScoredEvent(0, 1, 0.5),
        TriedEvent(0, 1, (4,), ("d",)),
        ScoredEvent(0, 1, 0.75),
        TriedEvent(0, 2, (5,), ("e",)),
        PrunedEvent(0, 2),
        TriedEvent(0, 9, (5,), ("nobody",)),
    ]
    root = build_search_tree(events, (1, 2, 3, 4))
    (first,) = root.kids
    second, left = first.kids
    (third,) = second.kids
    (last,) = third.kids
    assert [n.tokens for n in (first, second, third, last, left)] == [[1], [2], [3], [4], [5]]
    assert (third.score, last.score, left.pruned) == (0.5, 0.75, True)
    assert all(n.chosen for n in (first, second, third, last)) and not left.chosen
    page = search_tree_html(root)
    assert "&lt;c&gt;" in page and "<c>" not in page and "nobody" not in page
    assert build_search_tree([]) is None and build_search_tree(events[:1]) is None


def test_requests_in_company_stand_on_one_time_line(polydec_command, tmp_path):
    given, at = tmp_path / "in.txt", tmp_path / "run.jsonl"
    given.write_text("".join(f"{n} apples and\n" for n in range(16)))
    tiny = ("--model", "zoo:tiny", "--raw", "--max-tokens", "12", "--method", "prompt-lookup")
    code, _, err = polydec_command("batch", given, tmp_path / "out.jsonl", *tiny, "--trace", at)
    assert code == 0, err
    lines = [json.loads(x) for x in at.read_text().split("\n") if x]
    assert {x["request"] for x in lines} == set(range(16))
    passes = [x for x in lines if x["event"] == "Passed"]
    once = {(x["model"], x["start"]): x["of"] for x in passes}
    for key, fed in once.items():  # the parts of a pass add up to the whole
        mine = [x["positions"] for x in passes if (x["model"], x["start"]) == key]
        assert sum(mine) == fed
    assert min(x["start"] for x in passes) == 0 and max(x["queries"] for x in passes) == 16
    opened = [x for x in lines if x["event"] == "Opened"]
    assert sorted(x["trace"]["line"] for x in opened) == list(range(1, 17))

    code, _, _ = polydec_command("trace", "html", at)
    text = (tmp_path / "run.html").read_text()
    assert code == 0 and "16 requests in company" in text and text.count("<details>") == 16
    assert not re.search(r"https?:|<script|@import|url\(", text)
    code, out, _ = polydec_command("trace", "show", at, "--json")
    assert code == 0 and len(json.loads(out)) == 16 and json.loads(out)["3.0"]["tokens"] == 12
    code, out, _ = polydec_command("trace", "replay", at, "--json")
    found = json.loads(out)
    assert code == 0 and len(found["choices"]) == 16
    assert found["total"]["equal"] and found["total"]["recorded"]["passes"] == sum(
        r["recorded"]["passes"] for r in found["choices"]
    )
    assert found["choices"][3]["replayed"]["seconds"] is None  # its passes are others', too
    code, out, _ = polydec_command("trace", "replay", at, "--set", "depth=1")
    assert out.startswith("request 0, choice 0: 12 tokens") and "all together: 192 tokens" in out


def test_a_trace_is_of_one_process_and_numbers_its_requests(polydec_command, tmp_path):
    (tmp_path / "in.txt").write_text("one\n")
    given = ("batch", tmp_path / "in.txt", tmp_path / "out.jsonl", "--model", "zoo:tiny")
    code, _, err = polydec_command(*given, "--trace", tmp_path / "t.jsonl", "--ray", "2")
    assert code == 2 and "--trace with --ray" in err
    (tmp_path / "bad.jsonl").write_text(
        '{"event": "Finished", "choice": 0, "finish_reason": "stop", "request": -1}\n'
    )
    code, _, err = polydec_command("trace", "show", tmp_path / "bad.jsonl")
    assert code == 2 and "request is -1" in err


def test_a_replay_tells_its_error_against_a_live_run(polydec_command, record, tmp_path):
    at = record(*TINY, "--method", "prompt-lookup").rename(tmp_path / "recorded.jsonl")
    live = record(*TINY, "--method", "suffix-automaton")
    code, out, _ = polydec_command("trace", "replay", at, "--against", live, "--json")
    row = json.loads(out)["choices"][0]
    assert code == 0 and row["same_text"] and row["replayed"]["method"] == "suffix-automaton"
    assert row["equal_live"] and row["replayed"]["passes"] == row["live"]["passes"]
    assert row["live"]["tokens_per_second"] > 0 and row["replayed"]["tokens_per_second"] > 0
    _, out, _ = polydec_command("trace", "replay", at, "--against", live)
    assert "(replay: +0.0% tokens a pass; " in out and out.count("\n") == 1
    code, _, err = polydec_command("trace", "replay", at, "--against", live, "--set", "depth=1")
    assert code == 2 and "give no --method or --set" in err
    other = record("--model", "zoo:tiny", "--raw", "x", "--max-tokens", "3", "--n", "2")
    code, _, err = polydec_command("trace", "replay", at, "--against", other)
    assert code == 2 and "its answers are others" in err


def test_tokens_that_a_constraint_forces_are_told_and_shown(polydec_command, record, tmp_path):
    at = record(*TINY[:4], "--method", "jump-forward", "--regex", "yes, it is (so|a day)")
    lines = [json.loads(x) for x in at.read_text().split("\n") if x]
    forced = [p for x in lines if x["event"] == "Forced" for p in x["position"]]
    written = [x for x in lines if x["event"] == "Edited"]
    assert forced and len(forced) < sum(len(x["tokens"]) for x in written) + 1
    assert forced == sorted(set(forced)) and forced[0] >= len(lines[0]["prompt"])
    code, out, _ = polydec_command("trace", "show", at)
    assert code == 0 and f"{len(forced)} forced by the rules" in out
    assert polydec_command("trace", "html", at)[0] == 0
    assert "forced" in (tmp_path / "run.html").read_text()
    free = record(*TINY, "--method", "prompt-lookup")
    assert '"Forced"' not in free.read_text()


def test_what_a_canvas_puts_back_is_told_and_shown(polydec_command, record, tmp_path):
    at = record("--model", "zoo:diffusion", "shuffle: 4271", "--method", "llada")
    lines = [json.loads(x) for x in at.read_text().split("\n") if x]
    back = [x for x in lines if x["event"] == "Remasked"]
    filled = [x for x in lines if x["event"] == "Unmasked"]
    assert len(back) >= len(filled) - 1  # the last pass puts nothing back
    for was, then in zip(back, filled):
        assert was["step"] == then["step"] and len(was["position"]) == then["left"]
        assert not set(was["position"]) & set(then["position"])
        assert all(0 <= c <= 1 for c in was["confidence"]) and any(was["piece"])
    assert polydec_command("trace", "html", at)[0] == 0
    assert 'title="put back, 0.' in (tmp_path / "run.html").read_text()


def edited(**more):
    edit = {"write": [], "erase": [], "insert": []} | more
    return {
        "event": "Edited",
        "choice": 0,
        "edit": edit,
        "tokens": [],
        "pieces": [],
        "accepted": 0,
    }


def test_an_edit_that_erases_nothing_is_refused(polydec_command, record):
    at = record(*TINY[:4], "--max-tokens", "4", "--method", "plain")
    at.write_text(at.read_text() + json.dumps(edited(erase=[9999])) + "\n")
    for what in ("html", "replay"):
        code, _, err = polydec_command("trace", what, at)
        assert code == 2 and "erases a position that holds nothing" in err


@pytest.mark.parametrize(
    "event",
    [
        {"event": "Forced", "choice": 0, "position": ["x"]},
        {
            "event": "Remasked",
            "choice": 0,
            "step": 0,
            "position": [1],
            "confidence": [],
            "piece": [],
        },
        edited(write=[[1]]),
        edited(write=3.5),
        edited(write=[[1 << 30, 5]]),
        edited(erase=[-1]),
        edited(insert=[["x", 1]]),
    ],
    ids=["forced", "remasked", "pairs", "no list", "far", "erase", "text"],
)
def test_new_events_of_other_kinds_are_refused(polydec_command, tmp_path, event):
    (tmp_path / "bad.jsonl").write_text(json.dumps(event) + "\n")
    code, _, err = polydec_command("trace", "show", tmp_path / "bad.jsonl")
    assert code == 2 and "with fields of other kinds" in err


def test_a_page_says_what_was_asked_and_what_the_method_keeps(polydec_command, record, tmp_path):
    at = record(*TINY, "--method", "prompt-lookup")
    assert polydec_command("trace", "html", at)[0] == 0
    page = (tmp_path / "run.html").read_text()
    assert "What was asked" in page and "def mean(values):" in page.split("What was written")[0]
    assert "prompt-lookup (keeps the model&#39;s law)" in page
    lines = at.read_text().split("\n")
    first = json.loads(lines[0])
    first["trace"]["text"] = "<script>" * 1000
    at.write_text("\n".join([json.dumps(first), *lines[1:]]))
    assert polydec_command("trace", "html", at)[0] == 0
    page = (tmp_path / "run.html").read_text()
    assert "<script" not in page and page.count("&lt;script&gt;") == 250  # 2,000 letters of it


def test_a_search_says_how_many_texts_it_tried_and_begins_with_the_answer(
    polydec_command, record, tmp_path
):
    at = record(*TINY[:4], "--max-tokens", "4", "--method", "beam", "--set", "width=2")
    kinds = [json.loads(x)["event"] for x in at.read_text().split("\n") if x]
    _, out, _ = polydec_command("trace", "show", at)
    tried, gone = kinds.count("Branched"), kinds.count("Pruned")
    assert f"{tried} texts tried, {gone} given up" in out and "drafted" not in out.splitlines()[-1]
    assert polydec_command("trace", "html", at)[0] == 0
    page = (tmp_path / "run.html").read_text()
    rows = {kind: set() for kind in ("ok", "")}
    for kind, y in re.findall(r'<text class="(ok|)" x="\d+" y="(\d+)"', page):
        rows[kind].add(int(y))
    assert rows["ok"] == {16}, "the answer is the first line"
