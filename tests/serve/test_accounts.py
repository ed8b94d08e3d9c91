"""Two clients with keys: neither sees, changes or shuts out what is the other's, by figures or by texts."""

from collections import Counter

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served
from starlette.testclient import TestClient

from polydec import Ask, Engine
from polydec.models.sessions.reuse import KEYS as KEYS_KEPT
from polydec.models.sessions.reuse import KeyedTextCache
from polydec.request.engine import MEMORIES, MethodMemories
from polydec.serve import steps
from polydec.serve.clients import HEADER, client_of
from polydec.serve.gate import AccessGate
from polydec.serve.metrics import ServerMetrics

KEYS = ("key-of-one-client", "key-of-the-other")
PROMPT = "The old fox watched the river, and the boat went by. " * 8


@pytest.fixture(scope="module")
def keyed(lm):
    before = lm.checkpoint.lm.keep
    lm.keep_texts(4)
    with served({"tiny": lambda: lm}, keys=KEYS) as house:
        yield house
    lm.keep_texts(before)


@pytest.fixture
def both(keyed):
    with (
        keyed.client(headers={"authorization": f"Bearer {KEYS[0]}"}) as one,
        keyed.client(headers={"authorization": f"Bearer {KEYS[1]}"}) as other,
    ):
        yield one, other


def ask(client, prompt, **fields):
    body = {"prompt": prompt, "max_tokens": 8, "method": "plain", "polydec": True, **fields}
    answer = client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    about = answer.json()["polydec"]["requests"][0]
    return answer.json()["choices"][0]["text"], about["method"].get("reuse"), about["metrics"]


@pytest.mark.parametrize("reuse", ["prefix", "edited"])
def test_a_text_of_a_key_is_its_clients_alone(both, reuse):
    one, other = both
    key = {"reuse": reuse, "reuse_key": f"notes-{reuse}"}
    mine, before, _ = ask(one, PROMPT + reuse, **key)
    assert before["positions"] == 0
    _, taken, _ = ask(other, PROMPT + reuse, **key)
    assert taken["positions"] == 0 and not taken["approximate"]
    for size in (40, 80, 160):  # a text is not to be read token by token
        other.post("/v1/completions", json={"prompt": PROMPT[:size], "max_tokens": 1, **key})
        assert ask(other, PROMPT[: size + 40], **key)[1]["positions"] < size
    again, after, _ = ask(one, PROMPT + reuse, **key)
    assert after["positions"] > 60 and again == mine


def test_prefixes_are_shared_within_a_key_only(both):
    one, other = both
    prompt = "A quiet harbour. " + PROMPT
    first = ask(one, prompt)[2]["positions_fed"]
    assert ask(other, prompt)[2]["positions_fed"] == first
    assert ask(one, prompt)[2]["positions_fed"] < first - 60
    assert ask(one, prompt, cache_salt="apart")[2]["positions_fed"] == first


def test_prefixes_of_requests_under_way_are_shared_within_a_key_only(both):
    one, other = both
    prompt = "A quiet valley. " + PROMPT
    body = {"prompt": prompt, "max_tokens": 400, "stream": True, "ignore_eos": True}
    with one.stream("POST", "/v1/completions", json={**body, "method": "plain"}) as going:
        lines = (line for line in going.iter_lines() if line.startswith("data"))
        next(lines)
        theirs = ask(other, prompt)[2]["positions_fed"]
        assert theirs > 100, "the prompt is too short to show anything"
        mine = ask(one, prompt)[2]["positions_fed"]
    assert mine < theirs - 60


def test_who_asks_much_leaves_the_other_its_prefixes(both):
    """A client that floods the server, also under many salts, takes no other one's kept texts."""
    one, other = both
    prompt = "A quiet orchard. " + PROMPT
    first = ask(one, prompt)[2]["positions_fed"]
    for at in range(6):
        ask(other, f"Flood {at}. " + PROMPT, cache_salt=f"salt-{at}")
    assert ask(one, prompt)[2]["positions_fed"] < first - 60


def test_a_client_has_one_share_of_what_is_kept_under_all_its_salts():
    class Cache:
        def copy_shared(self):
            pass

    texts = KeyedTextCache(lambda: 0.0)
    for at in range(KEYS_KEPT):
        texts.store_text("k", (1,), Cache(), None, f"key-0:{at}")
    texts.store_text("k", (1,), Cache(), None, "key-1:")
    assert texts.take_text("k", "key-1:") is not None
    memories = MethodMemories()
    first = memories.of_method("key-1:", "stand")
    for at in range(MEMORIES + 1):
        memories.of_method(f"key-0:{at}", "stand")
    assert memories.of_method("key-1:", "stand") is first


@pytest.mark.parametrize("method", ["token-recycling", "suffix-automaton", "stand"])
def test_what_a_method_remembers_is_its_clients_alone(both, method):
    one, other = both

    def drafted(client):
        fields = {"method": method, "options": {"hot": True}, "max_tokens": 24, "ignore_eos": True}
        body = {"prompt": f"Once {method}", "polydec": "steps", **fields}
        rounds = client.post("/v1/completions", json=body).json()["polydec"]["choices"][0]["steps"]
        return [step.get("token") for step in rounds]

    fresh = drafted(one)
    known = drafted(one)
    assert known != fresh, "the method remembers nothing, so that this shows nothing"
    assert drafted(other) == fresh


def test_without_keys_all_are_one_client(server, lm):
    before = lm.checkpoint.lm.keep
    lm.keep_texts(4)
    prompt = "A quiet meadow. " + PROMPT
    try:
        with server.client() as one, server.client() as other:
            first = ask(one, prompt)[2]["positions_fed"]
            assert ask(other, prompt)[2]["positions_fed"] < first - 60
            assert ask(other, prompt, cache_salt="mine")[2]["positions_fed"] == first
    finally:
        lm.keep_texts(before)


@pytest.mark.parametrize("replica", [True, False])
def test_only_a_front_says_whose_request_it_is(replica):
    seen = []

    async def endpoint(scope, receive, send):
        seen.append(client_of(scope))
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    app = AccessGate(endpoint, KEYS, ServerMetrics(), local=False, replica=replica)
    headers = {"authorization": f"Bearer {KEYS[1]}", HEADER: "key-7,10.1.2.3"}
    assert TestClient(app).get("/v1/models", headers=headers).status_code == 204
    assert seen[0].credential == ("key-7" if replica else "key-1")
    assert (seen[0].address == "10.1.2.3") is replica


def test_passes_tell_a_client_what_its_own_requests_fed(lm):
    engine, told = Engine(lm), {"a": [], "b": []}
    tickets = [
        engine.submit(
            Ask("The fox", cache_salt=salt, max_tokens=9, method="plain", ignore_eos=True),
            passes=told[salt],
        )
        for salt in ("a", "b")
    ]
    engine.run(tickets)
    for done in told.values():
        assert any(p.of > p.salted_of and p.queries > p.salted_queries for p in done)
        assert all(p.salted_of == p.positions and p.salted_queries == 1 for p in done)
        shown = steps.passes_json(done, 0.0, lm.names, lm.network)
        assert all(p["of"] == p["positions"] and p["queries"] == 1 for p in shown)


def test_keys_are_shared_evenly_among_salts():
    """Of texts by `reuse_key`: who holds most of them makes room for another one."""

    class Cache:
        def copy_shared(self):
            pass

    now = [0.0]
    texts = KeyedTextCache(lambda: now[0])
    for at in range(KEYS_KEPT):
        now[0] += 1.0
        texts.store_text(f"k{at}", (1,), Cache(), None, "a")
    texts.store_text("more", (1,), Cache(), None, "a")
    assert texts.take_text("more", "a") is None, "a key that is in use keeps its text"
    for at in range(KEYS_KEPT):
        texts.store_text(f"k{at}", (2,), Cache(), None, "b")
    held = Counter(s for s in "ab" for at in range(KEYS_KEPT) if texts.take_text(f"k{at}", s))
    assert held == {"a": KEYS_KEPT // 2, "b": KEYS_KEPT // 2}
    assert texts.take_text("k0", "b").text == (2,) and texts.take_text("k0", "a") is None
    texts.forget_text("k0", "b")
    assert texts.take_text("k0", "b") is None and texts.take_text(f"k{KEYS_KEPT - 1}", "a")


def test_memories_are_bounded():
    memories = MethodMemories()
    first = memories.of_method("", "stand")
    assert memories.of_method("", "stand") is first and memories.of_method("", "ppd") is not first
    assert memories.of_method("x", "stand") is not first
    for at in range(MEMORIES):
        memories.of_method(str(at), "stand")
    assert memories.of_method("", "stand") is not first


NEW_EACH_TIME = ("id", "created", "created_at", "completed_at", "request_id")
TIMES = ("second", "start", "time")


def figures(value):
    """All that a response tells, but for times and names that are drawn anew for each."""
    if isinstance(value, dict):
        return {
            key: figures(x)
            for key, x in value.items()
            if key not in NEW_EACH_TIME and not any(part in key for part in TIMES)
        }
    if isinstance(value, list):
        return [figures(x) for x in value]
    return value


WAYS = {
    "plain": {},
    "chat": {"path": "/v1/chat/completions"},
    "response": {"path": "/v1/responses", "store": True},
    "a draft model": {"method": "draft-model"},
    "two laws": {"steer": "cfg", "negative_prompt": "A quiet harbour. " * 9},
    "a search": {"method": "beam"},
    "bytes": {"units": "bytes"},
    "listed": {"prompt_logprobs": 2, "logprobs": 2},
    "several": {"n": 3, "temperature": 0.9},
    "a key": {"reuse": "edited", "reuse_key": "mine"},
    "chosen": {"method": "auto"},
    "constrained": {"guided_regex": "[a-z ]+"},
    "remembered": {"method": "token-recycling", "options": {"hot": True}},
    "steps": {"polydec": "steps", "method": "suffix-automaton"},
    "embedded": {"path": "/v1/embeddings"},
}


def figures_of(client, name, way):
    fields = dict(way)
    path = fields.pop("path", "/v1/completions")
    text = f"On {name}: {PROMPT}"
    body = {
        "/v1/completions": {"prompt": text, "max_tokens": 8, "method": "plain", "polydec": True},
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 8,
            "polydec": True,
        },
        "/v1/responses": {"input": text, "max_output_tokens": 8},
        "/v1/embeddings": {"input": [text, text + "x"]},
    }[path]
    if path != "/v1/embeddings":
        fields["seed"] = 1
    answer = client.post(path, json={**body, **fields})
    assert answer.status_code == 200, answer.text
    return figures(answer.json())


@pytest.fixture(scope="module")
def three(lm):
    before = lm.checkpoint.lm.keep
    lm.keep_texts(4)
    keys = (*KEYS, "key-of-a-third-one")
    with served({"tiny": lambda: lm}, keys=keys) as house:
        clients = [house.client(headers={"authorization": f"Bearer {key}"}) for key in keys]
        yield clients
        for client in clients:
            client.close()
    lm.keep_texts(before)


@pytest.mark.parametrize("name", WAYS)
def test_no_figure_tells_what_another_client_asked(three, name):
    """Who asks first, and who asks after another one has asked the same twice, are told the same."""
    one, other, third = three
    first = figures_of(third, name, WAYS[name])
    for _ in range(2):
        figures_of(one, name, WAYS[name])
    assert figures_of(other, name, WAYS[name]) == first
