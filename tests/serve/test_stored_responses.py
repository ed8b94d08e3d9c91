"""/v1/responses with `store` and `previous_response_id`: several turns, whose they are, and that they are bounded."""

import json
import random

import pytest

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
pytest.importorskip("httpx", reason="polydec[serve] is not installed")

from house import served

from polydec.serve.stored_responses import OVERHEAD, ResponseStore

KEYS = ("key-of-one-client", "key-of-the-other")
PATH = "/v1/responses"
USUAL = {"max_output_tokens": 5, "temperature": 0, "method": "plain", "ignore_eos": True}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture(scope="module")
def keyed(lm):
    with served({"tiny": lambda: lm}, keys=KEYS) as house:
        yield house


@pytest.fixture
def both(keyed):
    with (
        keyed.client(headers={"authorization": f"Bearer {KEYS[0]}"}) as one,
        keyed.client(headers={"authorization": f"Bearer {KEYS[1]}"}) as other,
    ):
        yield one, other


def ask(client, **fields):
    answer = client.post(PATH, json={**USUAL, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


def said(response):
    return "".join(
        p["text"] for i in response["output"] if i["type"] == "message" for p in i["content"]
    )


def streamed(client, **fields):
    with client.stream("POST", PATH, json={**USUAL, **fields, "stream": True}) as stream:
        events = [
            json.loads(x.partition("data: ")[2]) for x in stream.read().decode().split("\n\n") if x
        ]
    return events[-1]["response"]


@pytest.mark.parametrize("how", [ask, streamed])
def test_turns_go_on_from_what_was_stored(both, how):
    one, _ = both
    first = how(one, input="Tell me of a fox.", instructions="Be brief.", store=True)
    assert first["store"] is True and first["previous_response_id"] is None
    second = how(one, input="More.", previous_response_id=first["id"], store=True)
    assert second["previous_response_id"] == first["id"]
    chat = [
        {"role": "user", "content": "Tell me of a fox."},
        {"role": "assistant", "content": said(first)},
        {"role": "user", "content": "More."},
    ]
    by_hand = ask(one, input=chat)
    # Instructions are of one turn alone, as OpenAI has it.
    assert said(by_hand) == said(second)
    assert by_hand["usage"]["input_tokens"] == second["usage"]["input_tokens"]
    third = how(one, input=[{"role": "user", "content": "And?"}], previous_response_id=second["id"])
    longer = [
        *chat,
        {"role": "assistant", "content": said(second)},
        {"role": "user", "content": "And?"},
    ]
    assert said(third) == said(ask(one, input=longer))
    # Two turns may go on from one response, and what was not stored is not there.
    assert said(how(one, input="More.", previous_response_id=first["id"])) == said(second)
    gone = one.post(PATH, json={"input": "x", "previous_response_id": third["id"]})
    assert gone.status_code == 404 and third["store"] is False


def test_a_call_and_what_it_gave_are_turns(both):
    one, _ = both
    call = ask(
        one,
        input="Look.",
        tools=[TOOL],
        tool_choice="required",
        store=True,
        max_output_tokens=60,
        ignore_eos=False,
    )
    calls = [item for item in call["output"] if item["type"] == "function_call"]
    assert calls and calls[0]["status"] == "completed"
    given = [
        {"type": "function_call_output", "call_id": x["call_id"], "output": "a fox"} for x in calls
    ]
    after = ask(one, input=given, tools=[TOOL], previous_response_id=call["id"])
    by_hand = [{"role": "user", "content": "Look."}, *call["output"], *given]
    told = ask(one, input=by_hand, tools=[TOOL])
    assert after["usage"]["input_tokens"] == told["usage"]["input_tokens"] and said(after) == said(
        told
    )


def test_a_tool_that_must_be_called_comes_before_a_format(both):
    one, _ = both
    form = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "boolean"}}}
    forced = {"tools": [TOOL], "tool_choice": {"type": "function", "name": "look"}}
    given = {"input": "Look.", **forced, "max_output_tokens": 60, "ignore_eos": False}
    made = ask(one, **given, text=form)
    assert [(item["type"], item["name"]) for item in made["output"]] == [("function_call", "look")]
    other = one.post(PATH, json={**given, "guided_choice": ["a"]})
    assert other.status_code == 400 and "beside guided_choice" in other.json()["error"]["message"]


def test_a_stored_response_is_read_and_deleted(both):
    one, _ = both
    made = ask(one, input="x", store=True, include=["message.output_text.logprobs"], top_logprobs=2)
    assert one.get(f"{PATH}/{made['id']}").json() == made
    gone = one.delete(f"{PATH}/{made['id']}")
    assert gone.json() == {"id": made["id"], "object": "response", "deleted": True}
    for answer in (one.get(f"{PATH}/{made['id']}"), one.delete(f"{PATH}/{made['id']}")):
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "response_not_found"


def test_another_key_finds_nothing(both):
    one, other = both
    made = ask(one, input="x", store=True)
    known = {"input": "x", "previous_response_id": made["id"]}
    unknown = {"input": "x", "previous_response_id": made["id"][:-4] + "0000"}
    answers = [other.post(PATH, json=known), other.post(PATH, json=unknown)]
    answers += [other.get(f"{PATH}/{made['id']}"), other.delete(f"{PATH}/{made['id']}")]
    assert [answer.status_code for answer in answers] == [404] * 4
    same = [answer.json()["error"] | {"request_id": ""} for answer in answers[:2]]
    assert same[0]["param"] == "previous_response_id"
    assert same[0]["message"].replace(made["id"], "") == same[1]["message"].replace(
        unknown["previous_response_id"], ""
    )
    assert one.get(f"{PATH}/{made['id']}").status_code == 200


def test_nothing_is_stored_unasked_nor_elsewhere(both):
    one, _ = both
    made = ask(one, input="x")
    assert made["store"] is False and one.get(f"{PATH}/{made['id']}").status_code == 404
    for path, body in (
        ("/v1/completions", {"prompt": "x"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}),
    ):
        for field in ({"store": True}, {"previous_response_id": made["id"]}):
            answer = one.post(path, json={**body, "max_tokens": 1, **field})
            assert answer.status_code == 400 and answer.json()["error"]["param"] in field
        assert one.post(path, json={**body, "max_tokens": 1, "store": False}).status_code == 200


@pytest.mark.parametrize("store", [ResponseStore(0), ResponseStore(most_bytes=OVERHEAD + 10)])
def test_a_store_without_room_says_so(lm, store):
    with served({"tiny": lambda: lm}, stored=store) as house, house.client() as http:
        answer = http.post(PATH, json={**USUAL, "input": "x", "store": True})
        if store.most:
            assert answer.json()["store"] is False
        else:
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "store"
        assert not len(store)


def test_the_store_is_bounded_and_shared_evenly():
    # Bytes that do not shrink.
    large = random.Random(0).randbytes
    store = ResponseStore(most=6, most_bytes=10 * OVERHEAD)
    for at in range(9):
        assert store.keep_response("a", f"a{at}", b"x", b"y")
    assert len(store) == 6 and store.find_response("a", "a2") is None
    assert store.find_response("a", "a8").unpack_body() == b"x"
    for at in range(9):
        assert store.keep_response("b", f"b{at}", b"x", b"y")
    held = [
        name for name in ("a", "b") for at in range(9) if store.find_response(name, f"{name}{at}")
    ]
    assert held.count("a") == held.count("b") == 3
    # One large response costs its own client the older ones, and nobody else any.
    assert store.keep_response("b", "large", large(4 * OVERHEAD), b"")
    assert sum(store.find_response("a", f"a{at}") is not None for at in range(9)) == 3
    assert store.bytes_taken <= 10 * OVERHEAD
    assert not store.keep_response("c", "larger", large(9 * OVERHEAD), b"")
    assert store.find_response("b", "large") is not None, "it made room for what was not kept"


def test_texts_are_held_compressed_and_bounded_as_they_were_sent():
    store = ResponseStore(most_bytes=20 * OVERHEAD)
    text = b"a fox and a river, " * OVERHEAD
    assert store.keep_response("a", "text", text, b"y") and store.bytes_taken < len(text) // 8
    assert store.find_response("a", "text").unpack_body() == text
    # It would shrink to a few bytes, and be large again whenever somebody reads it.
    assert not store.keep_response("a", "bomb", b"x" * (20 * OVERHEAD), b"y")


def test_what_is_stored_expires():
    now = [0.0]
    store = ResponseStore(seconds=60, clock=lambda: now[0])
    store.keep_response("a", "first", b"x", b"y")
    now[0] = 59.0
    store.keep_response("a", "second", b"x", b"y")
    assert store.find_response("a", "first") is not None
    now[0] = 60.0
    assert store.find_response("a", "first") is None and len(store) == 1
    assert not store.forget_response("a", "first") and store.forget_response("a", "second")
    assert store.bytes_taken == 0
