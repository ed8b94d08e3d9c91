"""Get an answer as JSON of a given shape, whatever the model would rather write.

    pip install 'polydec[grammar]'
    python examples/json_answer.py "Tell me about Kyoto."
    python examples/json_answer.py --model zoo:tiny

The default model is fetched once: polydec zoo install smollm2
"""

import argparse
import json

import polydec

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 0, "maximum": 40_000_000},
        "has_a_harbour": {"type": "boolean"},
    },
    "required": ["city", "population", "has_a_harbour"],
}

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("prompt", nargs="?", default="Tell me about Kyoto.")
arguments.add_argument("--model", default="zoo:smollm2")
arguments.add_argument("--max-tokens", type=int, default=64)
given = arguments.parse_args()

model = polydec.load(given.model)
answer = polydec.generate(
    model,
    given.prompt,
    constraint=polydec.JsonSchema.of_schema(SCHEMA),
    finish=True,  # where the tokens run out, the answer is led to a legal end
    method="jump-forward",  # what the schema leaves no choice about costs no pass
    max_tokens=given.max_tokens,
)

value = json.loads(answer.text)  # this cannot fail
print(json.dumps(value, indent=2))
tokens, passes = answer.usage["completion_tokens"], answer.metrics["target_passes"]
print(f"{tokens} tokens in {passes} passes of the model")
