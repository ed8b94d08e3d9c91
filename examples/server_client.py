"""Ask a running server with OpenAI's own client, and choose the decoding method of each request.

    pip install 'polydec[serve]' openai
    polydec serve --model zoo:tiny                 # in another terminal
    python examples/server_client.py

Any tool that speaks OpenAI's API works in the same way.
"""

import argparse

import openai

arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
arguments.add_argument("prompt", nargs="?", default="Why is the sky blue?")
arguments.add_argument("--url", default="http://127.0.0.1:8000")
arguments.add_argument("--max-tokens", type=int, default=64)
given = arguments.parse_args()

client = openai.OpenAI(base_url=f"{given.url}/v1", api_key="unused")
model = client.models.list().data[0].id
messages = [{"role": "user", "content": given.prompt}]

# As a stream, by the server's own method.
print(f"{model}: ", end="")
for chunk in client.chat.completions.create(
    model=model, messages=messages, max_tokens=given.max_tokens, stream=True
):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()

# Whole, by a method of one's own choice. `polydec: true` asks for the figures beside the answer.
answer = client.chat.completions.create(
    model=model,
    messages=messages,
    max_tokens=given.max_tokens,
    extra_body={"method": "prompt-lookup", "options": {"depth": 6}, "polydec": True},
)
metrics = answer.model_extra["polydec"]["requests"][0]["metrics"]
print(f"\nprompt-lookup: {answer.choices[0].message.content}")
print(f"{metrics['target_passes']} passes, {metrics['tokens_per_pass']:.2f} tokens a pass")
