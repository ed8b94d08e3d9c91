"""A web program of your own that streams answers: its requests share passes, and whoever leaves ends theirs.

    python examples/fastapi_app.py
    python examples/fastapi_app.py --model zoo:tiny --port 8001

Then: curl -N 'http://127.0.0.1:8000/answer?prompt=Name+three+rivers.'
Needs polydec[serve]; a whole server with OpenAI's interface is one command instead: polydec serve
"""

import argparse
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse

import polydec


def build_app(model: polydec.LoadedModel, max_tokens: int) -> FastAPI:
    app = FastAPI()

    @app.get("/answer")
    async def answer(prompt: str, temperature: float = 0.0, seed: int = 0) -> StreamingResponse:
        pieces = polydec.astream(
            model, prompt, temperature=temperature, seed=seed, max_tokens=max_tokens
        )
        try:
            # What cannot be honoured is said before the answer begins.
            first = await anext(pieces, None)
        except polydec.PolydecError as why:
            raise HTTPException(400, str(why)) from None

        async def texts() -> AsyncIterator[str]:
            if first is not None:
                yield first.text
            async for piece in pieces:
                yield piece.text

        return StreamingResponse(texts(), media_type="text/plain")

    return app


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--model", default="zoo:smollm2")
    arguments.add_argument("--max-tokens", type=int, default=128)
    arguments.add_argument("--port", type=int, default=8000)
    given = arguments.parse_args()
    uvicorn.run(build_app(polydec.load(given.model), given.max_tokens), port=given.port)
