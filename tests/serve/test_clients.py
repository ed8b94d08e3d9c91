"""Other people's clients: openai, LiteLLM, LangChain, instructor, outlines, the Agents SDK and lm-evaluation-harness get what
the library gives, and their calls of tools fit the tools.

They need versions of common packages that differ from a developer's: install them into an environment of their own with
`pip install -e '.[dev,clients]'` and run this file there. What is absent is skipped.
"""

import asyncio
import json
from typing import Literal

import pytest
from pydantic import BaseModel

pytest.importorskip("fastapi", reason="polydec[serve] is not installed")
import house

import polydec

CHAT = [
    {"role": "system", "content": "You tell stories."},
    {"role": "user", "content": "Tell me of a fox."},
]
OTHER = [{"role": "user", "content": "A boat and a river."}]


@pytest.fixture(scope="module")
def lm(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # its list of prices is not fetched
        patch.setenv("OPENAI_API_KEY", "unused")
        patch.setenv("HF_HUB_OFFLINE", "1")
        yield polydec.load("zoo:tiny")


@pytest.fixture(scope="module")
def server(lm):
    with house.served({"tiny": lambda: lm}) as served:
        yield served


def want(lm, prompt, *, max_tokens=16, method="auto", **sampling):
    given = {k: sampling.pop(k) for k in ("n", "seed", "stop", "logprobs", "raw") if k in sampling}
    return polydec.generate(
        lm,
        prompt,
        method=method,
        max_tokens=max_tokens,
        sampling=lm.sampling_with(**sampling),
        **given,
    )


# ---- LiteLLM ----


@pytest.fixture(scope="module")
def lite(server):
    litellm = pytest.importorskip("litellm", reason="litellm is not installed (polydec[clients])")
    return litellm, {
        "model": "openai/tiny",
        "api_base": server.url + "/v1",
        "api_key": "unused",
        "max_retries": 0,
    }


def test_litellm(lm, lite):
    litellm, to = lite
    mine = want(lm, CHAT, n=2, seed=3, temperature=0.8, top_p=0.9)
    theirs = litellm.completion(
        **to, messages=CHAT, max_tokens=16, n=2, seed=3, temperature=0.8, top_p=0.9
    )
    assert [c.message.content for c in theirs.choices] == [c.text for c in mine.choices]
    assert theirs.usage.completion_tokens == mine.usage["completion_tokens"]
    greedy = want(lm, CHAT, temperature=0.0, stop=[" the"], logprobs=2)
    other = litellm.completion(
        **to,
        messages=CHAT,
        max_tokens=16,
        temperature=0,
        stop=[" the"],
        logprobs=True,
        top_logprobs=2,
    )
    assert (
        other.choices[0].message.content == greedy.text
        and other.choices[0].finish_reason == greedy.finish_reason
    )
    content = other.choices[0].logprobs.content
    assert [t.logprob for t in content] == pytest.approx(
        [t.model_logp for t in greedy.choices[0].logprobs]
    )
    drafted = litellm.completion(
        **to,
        messages=CHAT,
        max_tokens=16,
        temperature=0,
        extra_body={"method": "draft-model", "options": {"depth": 3}},
    )
    assert drafted.choices[0].message.content == want(lm, CHAT, temperature=0.0).text


def test_litellm_streams(lm, lite):
    litellm, to = lite
    chunks = list(
        litellm.completion(
            **to,
            messages=CHAT,
            max_tokens=16,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    mine = want(lm, CHAT, temperature=0.0)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == mine.text
    assert chunks[-1].usage.completion_tokens == mine.usage["completion_tokens"]

    async def many():
        return await asyncio.gather(
            *(
                litellm.acompletion(**to, messages=m, max_tokens=16, temperature=0.9, seed=i)
                for i, m in enumerate([CHAT, OTHER] * 4)
            )
        )

    for i, answer in enumerate(asyncio.run(many())):
        assert (
            answer.choices[0].message.content
            == want(lm, (CHAT, OTHER)[i % 2], temperature=0.9, seed=i).text
        )


def test_litellm_tells_errors(lite):
    litellm, to = lite
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(**to, messages=CHAT, temperature=-1)
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(**{**to, "model": "openai/gpt-5"}, messages=CHAT)


def test_litellm_completes_texts(lm, lite):
    litellm, to = lite
    theirs = litellm.text_completion(
        **{**to, "model": "text-completion-openai/tiny"},
        prompt="The old river",
        max_tokens=8,
        temperature=0,
    )
    assert (
        theirs.choices[0].text
        == want(lm, "The old river", raw=True, max_tokens=8, temperature=0.0).text
    )


# ---- LangChain ----


@pytest.fixture(scope="module")
def chain(server):
    chat = pytest.importorskip(
        "langchain_openai", reason="langchain-openai is not installed (polydec[clients])"
    ).ChatOpenAI

    def make(**given):
        return chat(
            model="tiny",
            base_url=server.url + "/v1",
            api_key="unused",
            max_retries=0,
            **{"max_tokens": 16, "temperature": 0.0, **given},
        )

    return make


MESSAGES = [("system", "You tell stories."), ("human", "Tell me of a fox.")]


def test_langchain(lm, chain):
    mine = want(lm, CHAT, temperature=0.0)
    answer = chain().invoke(MESSAGES)
    assert (
        answer.content == mine.text
        and answer.usage_metadata["output_tokens"] == mine.usage["completion_tokens"]
    )
    assert "".join(part.content for part in chain().stream(MESSAGES)) == mine.text
    human = pytest.importorskip("langchain_core.messages").HumanMessage(CHAT[1]["content"])
    seeded = chain(temperature=0.9, seed=5, top_p=0.9, n=2).generate([[human]])
    assert [g.text for g in seeded.generations[0]] == [
        c.text for c in want(lm, CHAT[1:], n=2, seed=5, temperature=0.9, top_p=0.9).choices
    ]
    marked = (
        chain(logprobs=True, top_logprobs=2)
        .invoke(MESSAGES)
        .response_metadata["logprobs"]["content"]
    )
    assert [t["logprob"] for t in marked] == pytest.approx(
        [t.model_logp for t in want(lm, CHAT, temperature=0.0, logprobs=2).choices[0].logprobs]
    )
    assert chain(extra_body={"method": "prompt-lookup"}).invoke(MESSAGES).content == mine.text
    with pytest.raises(Exception, match="temperature"):
        chain(temperature=-1).invoke(MESSAGES)


def test_langchain_batches_and_stops(lm, chain):
    inputs = ["Tell me of a fox.", "A boat and a river.", "Two kings"]
    for text, answer in zip(inputs, chain().batch(inputs), strict=True):
        assert answer.content == want(lm, [{"role": "user", "content": text}], temperature=0.0).text
    assert (
        chain().bind(stop=[" the"]).invoke(MESSAGES).content
        == want(lm, CHAT, temperature=0.0, stop=[" the"]).text
    )

    async def streamed():
        return "".join([part.content async for part in chain().astream(MESSAGES)])

    assert asyncio.run(streamed()) == want(lm, CHAT, temperature=0.0).text


def test_langchain_structured_output(chain):
    pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")
    schema = {
        "title": "answer",
        "description": "An answer.",
        "type": "object",
        "additionalProperties": False,
        "properties": {"wild": {"type": "boolean"}, "animal": {"enum": ["fox", "hen"]}},
        "required": ["wild", "animal"],
    }
    answer = (
        chain(max_tokens=64).with_structured_output(schema, method="json_schema").invoke(MESSAGES)
    )
    assert (
        set(answer) == {"wild", "animal"}
        and answer["animal"] in ("fox", "hen")
        and type(answer["wild"]) is bool
    )


# ---- calls and forms, by each client's own means ----


class Animal(BaseModel):
    """An animal."""

    kind: Literal["fox", "hen"]
    wild: bool


TOOL = {
    "type": "function",
    "function": {"name": "Animal", "parameters": Animal.model_json_schema()},
}
ONE = {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 80}


@pytest.fixture(scope="module")
def grammar():
    pytest.importorskip("llguidance", reason="polydec[grammar] is not installed")


@pytest.fixture(scope="module")
def plain(server, grammar):
    openai = pytest.importorskip("openai", reason="openai is not installed")
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0)


def test_openai_parses(plain):
    import openai

    form = plain.chat.completions.parse(
        model="tiny", messages=CHAT, response_format=Animal, max_tokens=80
    )
    assert isinstance(form.choices[0].message.parsed, Animal)
    tools = {"tools": [openai.pydantic_function_tool(Animal)], **ONE}
    called = plain.chat.completions.parse(model="tiny", messages=CHAT, **tools)
    (call,) = called.choices[0].message.tool_calls
    assert isinstance(call.function.parsed_arguments, Animal)
    with plain.chat.completions.stream(model="tiny", messages=CHAT, **tools) as stream:
        kinds = [event.type for event in stream]
        (last,) = stream.get_final_completion().choices[0].message.tool_calls
    assert kinds.count("tool_calls.function.arguments.delta") > 2
    assert last.function.parsed_arguments == call.function.parsed_arguments


def test_litellm_calls(lite, grammar):
    litellm, to = lite
    given = {**to, "messages": CHAT, "temperature": 0, **ONE}
    answer = litellm.completion(**given, tools=[TOOL]).choices[0]
    (call,) = answer.message.tool_calls
    assert answer.finish_reason == "tool_calls"
    Animal.model_validate_json(call.function.arguments)
    chunks = list(litellm.completion(**given, tools=[TOOL], stream=True))
    built = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls[0].function
    assert (built.name, built.arguments) == ("Animal", call.function.arguments)
    form = litellm.completion(**to, messages=CHAT, response_format=Animal, max_tokens=80)
    Animal.model_validate_json(form.choices[0].message.content)


def test_instructor(plain):
    instructor = pytest.importorskip(
        "instructor", reason="instructor is not installed (polydec[clients])"
    )
    client = instructor.from_openai(plain)
    given = {"model": "tiny", "messages": CHAT, "max_tokens": 80, "max_retries": 0}
    assert isinstance(client.chat.completions.create(response_model=Animal, **given), Animal)
    parts = list(client.chat.completions.create_partial(response_model=Animal, **given))
    assert Animal.model_validate(parts[-1].model_dump())
    json_mode = instructor.from_openai(plain, mode=instructor.Mode.JSON_SCHEMA)
    assert isinstance(json_mode.chat.completions.create(response_model=Animal, **given), Animal)


def test_langchain_calls(chain, grammar):
    chat = chain(max_tokens=80)
    for given in ({}, {"strict": True}):
        structured = chat.with_structured_output(Animal, method="function_calling", **given)
        assert isinstance(structured.invoke(MESSAGES), Animal)
    assert isinstance(
        chat.with_structured_output(Animal, method="json_schema").invoke(MESSAGES), Animal
    )


def test_langchain_loops_over_two_calls(chain, grammar):
    from langchain_core.messages import HumanMessage
    from langchain_core.tools import tool

    @tool
    def age(kind: Literal["fox", "hen"]) -> int:
        """How old it gets."""
        return 3

    @tool
    def legs(kind: Literal["fox", "hen"], wild: bool) -> int:
        """How many legs it has."""
        return 4

    chat, turns = chain(max_tokens=80), [HumanMessage("Tell me of a fox.")]
    for used in (age, legs):
        answer = chat.bind_tools([age, legs], tool_choice=used.name).invoke(turns)
        (call,) = answer.tool_calls
        assert call["name"] == used.name and not answer.invalid_tool_calls
        turns += [answer, used.invoke(call)]
    assert [t.content for t in turns if t.type == "tool"] == ["3", "4"]
    last = chain(max_tokens=8).bind_tools([age, legs]).invoke(turns)
    assert last.content and not last.tool_calls
    bound = chat.bind_tools([age, legs], tool_choice="any", strict=True, parallel_tool_calls=False)
    whole, *rest = bound.stream(turns[:1])
    for part in rest:
        whole = whole + part
    (call,) = whole.tool_calls
    assert call["name"] in ("age", "legs") and call["args"]["kind"] in ("fox", "hen")


def test_outlines(plain):
    outlines = pytest.importorskip(
        "outlines", reason="outlines is not installed (polydec[clients])"
    )
    for make in (outlines.from_openai, outlines.from_vllm):
        model = make(plain, "tiny")
        assert model("A fox.", max_tokens=8)
        Animal.model_validate_json(model("A fox.", Animal, max_tokens=80))
        Animal.model_validate_json("".join(model.stream("A fox.", Animal, max_tokens=80)))
    assert model("Is it?", Literal["yes", "no"], max_tokens=16) in ("yes", "no")
    assert model("How many?", outlines.regex("[0-9]{3}"), max_tokens=16).isdigit()


@pytest.mark.parametrize("kind", ["OpenAIChatCompletionsModel", "OpenAIResponsesModel"])
def test_the_agents_loop(server, grammar, kind):
    agents = pytest.importorskip(
        "agents", reason="openai-agents is not installed (polydec[clients])"
    )
    import openai

    agents.set_tracing_disabled(True)
    asked = []

    @agents.function_tool
    def age(kind: Literal["fox", "hen"]) -> int:
        """How old it gets."""
        asked.append(kind)
        return 3

    settings = agents.ModelSettings(
        tool_choice="required",
        parallel_tool_calls=False,
        max_tokens=80,
        temperature=0,
        extra_body={"stop": [" a", " the", ".", "`"]},  # this client takes no stream that is cut
    )

    async def run():
        async with openai.AsyncOpenAI(
            base_url=server.url + "/v1", api_key="unused", max_retries=0
        ) as client:
            agent = agents.Agent(
                name="Farmer",
                instructions="Help.",
                tools=[age],
                model=getattr(agents, kind)(model="tiny", openai_client=client),
                model_settings=settings,
            )
            whole = await agents.Runner.run(agent, "Tell me of a fox.", max_turns=3)
            streamed = agents.Runner.run_streamed(agent, "Tell me of a fox.", max_turns=3)
            kinds = [event.type async for event in streamed.stream_events()]
        return whole, streamed, kinds

    whole, streamed, kinds = asyncio.run(run())
    assert len(asked) == 2 and set(asked) <= {"fox", "hen"}
    assert [item.type for item in whole.new_items] == [
        "tool_call_item",
        "tool_call_output_item",
        "message_output_item",
    ]
    assert whole.final_output == streamed.final_output != "" and "raw_response_event" in kinds


# ---- lm-evaluation-harness ----


@pytest.fixture(scope="module")
def harness(server):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed (polydec[clients])")
    pytest.importorskip(
        "tenacity", reason="lm-eval's part for APIs is not installed (polydec[clients])"
    )
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return lambda **given: LocalCompletionsAPI(
        base_url=server.url + "/v1/completions",
        model="tiny",
        max_retries=1,
        max_length=512,
        **given,
    )


PAIRS = [
    ("The old river", " ran to the sea"),
    ("Once upon a time", " there was"),
    ("A", " boat"),
    ("The fox and", " the fox"),
    ("Two kings met in the wood and the first said to the other", " that the rain had come"),
]


def asked(kind, *args):
    from lm_eval.api.instance import Instance

    return [Instance(request_type=kind, doc={}, arguments=a, idx=i) for i, a in enumerate(args)]


def likelihood(lm, context, text):
    """Of a text behind a context, and whether it is the greedy one, by the library a token at a time."""
    first, rest = (lm.checkpoint.text.encode(t, special=False) for t in (context, text))
    total, greedy = 0.0, True
    for at, token in enumerate(rest):
        choice = (
            polydec.generate(
                lm,
                (*first, *rest[:at]),
                max_tokens=1,
                logprobs=1,
                sampling=lm.sampling_with(temperature=0.0, allowed_token_ids=[token]),
            )
            .choices[0]
            .logprobs[0]
        )
        total, greedy = total + choice.model_logp, greedy and choice.top[0][0] == token
    return total, greedy


@pytest.mark.parametrize(
    "given",
    [{"batch_size": 1}, {"batch_size": 3}, {"batch_size": 2, "num_concurrent": 4}],
    ids=["one", "batches", "concurrent"],
)
def test_the_harness_scores_texts(lm, harness, given):
    api = harness(tokenizer_backend="remote", **given)
    found = api.loglikelihood(asked("loglikelihood", *PAIRS), disable_tqdm=True)
    for (context, text), (logp, greedy) in zip(PAIRS, found, strict=True):
        mine, first = likelihood(lm, context, text)
        assert logp == pytest.approx(mine, abs=1e-3) and greedy == first
    greedy_text = want(
        lm, lm.checkpoint.text.encode("The old river", special=False), max_tokens=3, temperature=0.0
    ).text
    ((_, sure),) = api.loglikelihood(
        asked("loglikelihood", ("The old river", greedy_text)), disable_tqdm=True
    )
    assert sure


def test_the_harness_lets_texts_be_written(lm, harness):
    api = harness(tokenizer_backend="remote", batch_size=2)
    until = {"until": ["."], "max_gen_toks": 12, "temperature": 0}
    contexts = ["The old river", "Once upon a time"]
    texts = api.generate_until(
        asked("generate_until", *((c, dict(until)) for c in contexts)), disable_tqdm=True
    )
    for context, text in zip(contexts, texts, strict=True):
        ids = lm.checkpoint.text.encode(context, special=False)
        assert text == want(lm, ids, max_tokens=12, temperature=0.0, stop=["."]).text


def test_the_harness_runs_a_task(tmp_path, lm, server):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed (polydec[clients])")
    pytest.importorskip(
        "datasets", reason="lm-eval's datasets are not installed (polydec[clients])"
    )
    import lm_eval

    rows = [
        {"q": "The fox and the", "a": [" fox", " zebra"], "y": 0},
        {"q": "Once upon a", "a": [" quark", " time"], "y": 1},
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows), "utf-8")
    task = {
        "task": "ends",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{q}}",
        "doc_to_choice": "{{a}}",
        "doc_to_target": "y",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    }
    done = lm_eval.simple_evaluate(
        model="local-completions",
        tasks=[task],
        bootstrap_iters=0,
        model_args={
            "model": "tiny",
            "base_url": server.url + "/v1/completions",
            "tokenizer_backend": "remote",
            "max_length": 512,
            "batch_size": 4,
        },
    )
    right = [
        max(range(2), key=lambda i: likelihood(lm, r["q"], r["a"][i])[0]) == r["y"] for r in rows
    ]
    assert done["results"]["ends"]["acc,none"] == sum(right) / len(rows)
