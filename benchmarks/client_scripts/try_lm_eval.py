"""lm-evaluation-harness (lm-eval) by local-completions and local-chat-completions."""

import math

from client_checks import (
    API_KEY,
    BASE_URL,
    MODEL,
    QUESTION,
    AbsentFeature,
    post_json,
    require_equal,
    require_refusal,
    run_checks,
)
from lm_eval.api.instance import Instance
from lm_eval.models.api_models import JsonChatStr
from lm_eval.models.openai_completions import LocalChatCompletion, LocalCompletionsAPI

PAIRS = [
    ("The old river", " ran to the sea"),
    ("Once upon a time", " there was a king"),
    ("The capital of France is", " Paris"),
    ("Two and two are", " four"),
]
UNTIL = {"until": ["."], "max_gen_toks": 24, "temperature": 0}


def open_model(**fields):
    # The key of its requests comes from the environment, that of its tokenizer from here.
    usual = {"tokenizer_backend": "remote", "auth_token": API_KEY, "batch_size": 2}
    usual |= {"max_length": 2048, "max_retries": 1}
    given = {"model": MODEL, "base_url": BASE_URL + "/completions", **usual, **fields}
    return LocalCompletionsAPI(**given)


def requests_of(kind, *arguments):
    return [
        Instance(request_type=kind, doc={}, arguments=one, idx=at)
        for at, one in enumerate(arguments)
    ]


def score_pairs(**fields):
    model = open_model(**fields)
    return model.loglikelihood(requests_of("loglikelihood", *PAIRS), disable_tqdm=True)


def check_chat():
    model = LocalChatCompletion(model=MODEL, base_url=BASE_URL + "/chat/completions", max_retries=1)
    chat = '[{"role": "user", "content": "' + QUESTION + '"}]'
    asked = requests_of("generate_until", (JsonChatStr(chat), dict(UNTIL)))
    text = model.generate_until(asked, disable_tqdm=True)[0]
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 24,
        "temperature": 0,
        "stop": ["."],
    }
    wanted = post_json("/chat/completions", body)["choices"][0]["message"]["content"]
    require_equal(text, wanted)


def check_stream():
    raise AbsentFeature("it reads whole answers")


def check_schema():
    raise AbsentFeature("it has none")


def check_tools():
    raise AbsentFeature("it has none")


def check_logprobs():
    for (context, text), (found, _) in zip(PAIRS, score_pairs(), strict=True):
        body = {"prompt": context + text, "max_tokens": 0, "echo": True, "logprobs": 1}
        marks = post_json("/completions", body)["choices"][0]["logprobs"]
        starts = zip(marks["text_offset"], marks["token_logprobs"], strict=True)
        wanted = math.fsum(logp for at, logp in starts if at >= len(context))
        assert abs(found - wanted) < 1e-3, (found, wanted)


def check_embeddings():
    raise AbsentFeature("it has none")


def check_errors():
    def ask_wrong(**fields):
        model = open_model(**fields)
        return model.loglikelihood(requests_of("loglikelihood", PAIRS[0]), disable_tqdm=True)

    require_refusal(lambda: ask_wrong(model="gpt-4o"), "404")
    asked = requests_of("generate_until", (QUESTION, {**UNTIL, "temperature": -1}))
    require_refusal(lambda: open_model().generate_until(asked, disable_tqdm=True), "400")
    return "the sentence is in its log, its exception says the status alone"


def check_several():
    require_equal(
        [(round(a, 3), b) for a, b in score_pairs(num_concurrent=4, batch_size=1)],
        [(round(a, 3), b) for a, b in score_pairs()],
    )


def check_state():
    raise AbsentFeature("it speaks chats and completions only")


run_checks("lm-eval", globals())
