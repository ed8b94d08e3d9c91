"""What Python users write: fields by name, several prompts, wrong types, names of other engines."""

import re
from dataclasses import replace

import pytest
import torch

import micro
from polydec import Ask, Choice, Engine, RequestError, Sampling, generate, load, stream
from polydec.methods.economics.costs import PassCosts
from project_paths import PROJECT_ROOT

TINY = {"method": "plain", "raw": True, "max_tokens": 8, "ignore_eos": True}


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    torch.set_num_threads(1)
    loaded = load(str(micro.write(tmp_path_factory.mktemp("python"))))
    vars(loaded)["costs"] = PassCosts()  # instead of measuring
    return loaded


def submit_and_run(model, prompt, **fields):
    engine = Engine(model)
    return engine.run([engine.submit(prompt, **fields)])[0]


def stream_text(model, prompt, **fields):
    return list(stream(model, prompt, **fields))


CALLS = [generate, stream_text, submit_and_run]


def test_fields_of_sampling_are_keywords(lm):
    wanted = replace(Sampling(), temperature=0.9, top_p=0.8, frequency_penalty=0.5)
    want = generate(lm, "The fox", sampling=wanted, seed=3, **TINY)
    fields = {"temperature": 0.9, "top_p": 0.8, "frequency_penalty": 0.5}
    assert want.token_ids != generate(lm, "The fox", **TINY).token_ids
    for given in (
        fields,
        {"sampling": fields},
        {"sampling": {"temperature": 0.9, "top_p": 0.8}, "frequency_penalty": 0.5},
        {"sampling": replace(wanted, top_p=1.0), "top_p": 0.8},
    ):
        assert generate(lm, "The fox", seed=3, **given, **TINY).text == want.text
        assert submit_and_run(lm, "The fox", seed=3, **given, **TINY).text == want.text
        pieces = stream_text(lm, "The fox", seed=3, **given, **TINY)
        assert tuple(p.token for p in pieces) == want.token_ids


def test_a_field_by_itself_stands_over_the_values_of_the_checkpoint(lm):
    own = {"temperature": 0.7, "repetition_penalty": 1.5}
    known = replace(lm, checkpoint=replace(lm.checkpoint, generation=own))
    ticket = Engine(known).submit("The fox", temperature=0.2, top_p=None, **TINY)
    sampling = ticket.plan.encoded.checked.sampling
    assert (sampling.temperature, sampling.repetition_penalty) == (0.2, 1.5)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.5}, Sampling(temperature=0.5)], ids=["dict", "value"]
)
def test_a_field_that_is_given_twice_is_refused(lm, call, sampling):
    with pytest.raises(TypeError, match=r"^temperature is given by itself and in sampling: leave"):
        call(lm, "The fox", sampling=sampling, temperature=0.5)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("temprature", "temperature"),
        ("topp", "top_p"),
        ("max_new_tokens", "max_tokens"),
        ("num_return_sequences", "n"),
        ("num_beams", "method='beam'"),
        ("guided_json", "constraint"),
        ("json_schema", "constraint"),
        ("regex", "constraint=polydec.Regex(…)"),
        ("stream", "polydec.stream(…)"),
    ],
)
def test_an_unknown_field_is_answered_with_what_it_is_called_here(lm, call, name, meant):
    with pytest.raises(TypeError) as error:
        call(lm, "The fox", **{name: 1})
    assert str(error.value) == f"a request has no field '{name}': did you mean {meant}?"


def test_a_value_out_of_range_is_refused_by_its_name(lm):
    with pytest.raises(RequestError, match=r"^temperature is -1"):
        generate(lm, "The fox", temperature=-1)
    with pytest.raises(RequestError, match=r"^sampling has no field 'temp': did you mean temp"):
        generate(lm, "The fox", sampling={"temp": 1})
    with pytest.raises(TypeError, match=r"^temperature is given beside an Ask"):
        generate(lm, Ask("The fox"), temperature=1)


@pytest.mark.parametrize("method", ["plain", "prompt-lookup", "beam"])
def test_several_prompts_share_passes_and_each_has_its_own_text(lm, method, monkeypatch):
    prompts = ["The grey fox and", "nobody asked why", "The grey fox and the old river, and"]
    fields = {**TINY, "method": method, "seed": 2}
    if method != "beam":
        fields["temperature"] = 0.9
    alone = [generate(lm, p, **fields) for p in prompts]
    queries, forward = [], type(lm.network).forward
    monkeypatch.setattr(
        type(lm.network),
        "forward",
        lambda self, group: (queries.append(len(group)), forward(self, group))[1],
    )
    together = generate(lm, prompts, **fields)
    assert [a.text for a in together] == [a.text for a in alone]
    assert max(queries) >= 3 and len({a.text for a in together}) > 1


def test_several_prompts_have_any_form_that_one_has(lm):
    ids = list(lm.encode_prompt("The fox", raw=True))
    chat = [{"role": "user", "content": "The fox"}]
    fields = {"method": "plain", "max_tokens": 4}
    for prompts in ([ids, ids[:2]], (ids, "The fox"), [chat], [Ask("The fox", max_tokens=4)]):
        own = {} if isinstance(prompts[0], Ask) else fields
        together = generate(lm, prompts, **own)
        assert [a.text for a in together] == [generate(lm, p, **own).text for p in prompts]


def test_of_several_prompts_the_wrong_one_is_named(lm):
    with pytest.raises(RequestError, match=r"^prompt 1: prompt is empty"):
        generate(lm, ["The fox", ""])
    with pytest.raises(RequestError, match=r"^prompt 1: prompt is a int: give text"):
        generate(lm, ["The fox", 3])
    with pytest.raises(RequestError, match=r"^on is given beside a list of prompts"):
        generate(lm, ["The fox"], on=print)
    for call in (stream_text, submit_and_run):
        with pytest.raises(RequestError, match=r"^prompt is a list of 2 prompts: generate answers"):
            call(lm, ["The fox", "nobody"])


CHAT = [{"role": "user", "content": "The fox"}]
WRONG = [
    ({"prompt": None}, "prompt is a NoneType: give text, token ids or chat messages"),
    ({"prompt": 3}, "prompt is a int: give text"),
    ({"prompt": {"role": "user", "content": "x"}}, "prompt is a dict: give text"),
    ({"prompt": b"x"}, "prompt is a bytes: give text"),
    ({"prompt": [1.5]}, "prompt[0] is a float: token ids are whole numbers"),
    ({"sampling": 3}, "sampling is 3: it must be fields by name"),
    ({"sampling": {3: 1}}, "sampling is {3: 1}: it must be fields by name"),
    ({"sampling": 3, "top_k": 1}, "sampling is 3: it must be fields by name"),
    ({"constraint": 3}, "constraint is 3: give a JSON schema as a dict"),
    ({"constraint": "[ab]"}, "constraint is '[ab]': give a JSON schema as a dict"),
    ({"constraint": [3]}, "choice[0] is 3: it must be a text"),
    ({"options": 3}, "options is 3: it must be values by name"),
    ({"tools": 3}, "tools is 3: it must be a list of functions"),
    ({"prompt": CHAT, "tools": [3]}, "tools is [3]: it must be a list of functions"),
    ({"negative_prompt": 3}, "negative_prompt is a int: give text"),
    ({"on": 3}, "on is 3: it must be a function"),
    ({"passes": 3}, "passes is 3: it must be a list"),
]
"""What is given, and how the sentence begins that answers it."""


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(("given", "begin"), WRONG, ids=[begin for _, begin in WRONG])
def test_a_wrong_type_is_answered_with_what_is_wanted(lm, call, given, begin):
    with pytest.raises(RequestError) as error:
        call(lm, **{"prompt": "The fox", "method": "plain", "max_tokens": 2, **given})
    assert str(error.value).startswith(begin) and len(str(error.value)) <= 300


@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_loaded_model_is_told_how_to_become_one(call):
    with pytest.raises(RequestError, match=r"^model is 'zoo:tiny', a name: load it first, polydec"):
        call("zoo:tiny", "The fox")
    with pytest.raises(RequestError, match=r"^model is a NoneType: it must be what polydec.load"):
        call(None, "The fox")


def test_what_is_no_list_of_tickets_is_refused(lm):
    engine = Engine(lm)
    with pytest.raises(RequestError, match=r"^tickets is one ticket: give a list"):
        engine.run(engine.submit("The fox", **TINY))
    with pytest.raises(RequestError, match=r"^ticket is 'x': it must be what submit"):
        engine.run(["x"])


def test_a_constraint_is_taken_in_plain_forms(lm):
    fields = {**TINY, "ignore_eos": False, "max_tokens": 24}
    assert generate(lm, "The fox", constraint=["fox", "boat"], **fields).text in ("fox", "boat")
    pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")
    from pydantic import BaseModel

    class Animal(BaseModel):
        fox: bool

    schema = {
        "type": "object",
        "properties": {"fox": {"type": "boolean"}},
        "required": ["fox"],
        "additionalProperties": False,
    }
    for given in (schema, Animal):
        answer = generate(lm, "The fox", constraint=given, finish=True, **fields)
        assert type(Animal.model_validate_json(answer.text).fox) is bool


def test_a_model_encodes_and_decodes(lm):
    ids = lm.encode("The fox and the river")
    assert ids == lm.encode_prompt("The fox and the river", raw=True)
    assert lm.decode(ids) == "The fox and the river" and lm.decode(iter(ids[:1])) == "The"
    answer = generate(lm, "The fox", **TINY)
    assert lm.decode(answer.token_ids, after=lm.encode("The fox")) == answer.text
    for call, begin in (
        (lambda: lm.encode(3), "text is a int: give a text"),
        (lambda: lm.encode(CHAT), "text is a list: give a text (encode_prompt takes chats)"),
        (lambda: lm.decode("x"), "ids is 'x': give token ids"),
        (lambda: lm.decode(3), "ids is 3: give token ids"),
        (lambda: lm.decode(CHAT), "ids[0] is a dict: token ids are whole numbers"),
        (lambda: lm.decode([10**9]), "ids has token 1000000000: ids lie in 0 to 319"),
    ):
        with pytest.raises(RequestError) as error:
            call()
        assert str(error.value).startswith(begin)


def test_log_probabilities_carry_the_text_of_their_tokens(lm):
    answer = generate(lm, "The fox", logprobs=2, prompt_logprobs=1, **TINY)
    notes = answer.choices[0].logprobs
    assert "".join(note.text for note in notes) == answer.text
    for note in (*notes, *answer.prompt_logprobs[1:]):
        assert note.text == lm.decode([note.token])
        assert note.top_text == tuple(lm.decode([token]) for token, _ in note.top)
    assert answer.prompt_logprobs[0].text == "The"
    assert answer.to_json()["choices"][0]["logprobs"][0]["text"] == notes[0].text


def test_a_ticket_says_what_it_is_and_where_it_stands(lm):
    engine = Engine(lm, max_running=1)
    one, other = (engine.submit("The fox", **TINY) for _ in range(2))
    assert repr(one) == "Ticket('The fox', waiting, 0 tokens, method plain)"
    engine.step()
    engine.cancel(other)
    assert (one.current_status, other.current_status) == ("running", "cancelled")
    engine.run([one])
    assert repr(one) == "Ticket('The fox', done, 8 tokens, method plain)"
    failing = engine.submit("The fox", on=lambda event: 1 / 0, **TINY)
    with pytest.raises(ZeroDivisionError):
        engine.run([failing])
    assert failing.current_status == "failed"


CALL = '{"name": "look", "arguments": {"at": "%s"}}'


@pytest.fixture(scope="module")
def talking(tmp_path_factory):
    """A model that has room for what is told of tools."""
    loaded = load(str(micro.write(tmp_path_factory.mktemp("talking"), context=1024)))
    vars(loaded)["costs"] = PassCosts()
    return loaded


def test_an_answer_says_which_tools_it_calls(talking):
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    fields = {"method": "plain", "max_tokens": 64, "constraint": [CALL % "fox"]}
    answer = generate(talking, CHAT, tools=tools, **fields)
    (call,) = answer.tool_calls
    assert (call.name, call.argument_values) == ("look", {"at": "fox"})
    assert answer.text == CALL % "fox" and answer.to_json()["tool_calls"] == [vars(call)]
    assert generate(talking, CHAT, **fields).tool_calls == ()
    other = [{"type": "function", "function": {"name": "listen", "parameters": {}}}]
    assert generate(talking, CHAT, tools=other, **fields).tool_calls == ()


def test_a_call_that_is_cut_says_so():
    (call,) = Choice((CALL % "fox")[:-4], (), "length", tools=frozenset({"look"})).tool_calls
    assert call.arguments == '{"at": "fo' and call.argument_values is None


def lines_of_tasks(code):
    """Lines of code of each numbered task of a block."""
    tasks = re.split(r"^# (\d+) .*$", code, flags=re.MULTILINE)[1:]
    return {
        int(number): len([line for line in lines.splitlines() if line.strip()])
        for number, lines in zip(tasks[::2], tasks[1::2])
    }


def test_the_page_says_ten_tasks_in_no_more_lines_than_others():
    page = (PROJECT_ROOT / "docs" / "python.md").read_text("utf-8")
    blocks = re.findall(r"^```(.*?)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (own,) = (code for name, code in blocks if name == "python" and code.startswith("# 1 "))
    others = {name: code for name, code in blocks if name.startswith("text title=")}
    tasks = lines_of_tasks(own)
    assert list(tasks) == list(range(1, 11)) and len(others) == 2
    for name, code in others.items():
        theirs = lines_of_tasks(code)
        assert theirs.keys() == tasks.keys(), name
        assert [n for n, count in tasks.items() if count > theirs[n]] == [], name


def test_the_best_of_several(lm):
    fields = {**TINY, "temperature": 1.5, "seed": 3}
    drawn = generate(lm, "The fox", n=6, logprobs=1, **fields)
    means = [sum(note.model_logp for note in c.logprobs) / 8 for c in drawn.choices]
    ranked = sorted(range(6), key=lambda at: -means[at])
    for call in (generate, submit_and_run):
        best = call(lm, "The fox", n=2, best_of=6, **fields)
        assert [c.text for c in best.choices] == [drawn.choices[at].text for at in ranked[:2]]
        assert [c.score for c in best.choices] == [means[at] for at in ranked[:2]]
        assert best.choices[0].logprobs is None and best.usage["completion_tokens"] == 48
        for at, choice in enumerate(best.choices):
            pieces = [p for p in best.pieces if p.choice == at]
            assert "".join(p.text for p in pieces) == choice.text
        assert {p.choice for p in best.pieces} == {0, 1} and "score" in best.to_json()["choices"][0]
    assert ranked[:2] != [0, 1], "the first ones were the best"
    with pytest.raises(RequestError, match=r"^best_of is 1: it must be at least n, which is 2$"):
        generate(lm, "The fox", n=2, best_of=1, **fields)
    with pytest.raises(RequestError, match=r"^best_of is 4: .* does not go with a stream$"):
        stream_text(lm, "The fox", best_of=4, **fields)
    ticket = Engine(lm).submit("The fox", n=2, best_of=6, **fields)
    ticket.engine.cancel(ticket)
    assert [c.finish_reason for c in ticket.completion().choices] == ["abort", "abort"]


def test_a_prompt_is_echoed(lm):
    fields = {**TINY, "temperature": 0.0}
    bare = generate(lm, "The fox", **fields)
    told = generate(lm, "The fox", echo=True, logprobs=2, **fields)
    assert told.text == "The fox" + bare.text and told.token_ids == bare.token_ids
    ids = lm.encode_prompt("The fox", raw=True)
    assert [note.token for note in told.prompt_logprobs] == list(ids)
    assert len(told.prompt_logprobs[1].top) == 2
    assert generate(lm, ids, echo=True, **fields).text == lm.decode(ids) + bare.text
    assert generate(lm, ids, echo=True, **fields).prompt_logprobs is None
    with pytest.raises(RequestError, match=r"^echo is true: the prompt holds chat messages"):
        generate(lm, [{"role": "user", "content": "x"}], echo=True, max_tokens=2, method="plain")
    with pytest.raises(RequestError, match=r"^echo is true: a stream holds what is written"):
        stream_text(lm, "The fox", echo=True, **fields)
