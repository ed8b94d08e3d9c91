"""The road of one request through the code: which modules it enters, how often it comes back, how often options are converted.
And the road of a model's name to its network.

    python benchmarks/request_road.py [--steps]

A place is a run of function calls in one module of polydec (attributes do not count); a return is a
place in a module where the road was before. Everything is asked once before it is counted, so that modules are loaded.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import io
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any

import polydec
from polydec.base.options import Option
from polydec.cli.main import main as polydec_main
from polydec.models.formats import zoo
from polydec.serve.body import read_body
from polydec.serve.limits import apply_request_limits
from polydec.serve.settings import RequestLimits
from polydec.serve.shapes import ChatCompletionsShape

PACKAGE = str(Path(polydec.__file__).parent)
PROMPT = "a grey fox went down to the old river"
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
DEPTH = 4
"""Levels of an argument in which the prompt is looked for."""


@dataclass(frozen=True)
class RequestRoad:
    """The modules that one call enters, in their order, each named once while the road stays there."""

    stations: tuple[str, ...]

    @property
    def returns(self) -> int:
        """Places in modules where the road was before."""
        return len(self.stations) - len(set(self.stations))

    def progress_sentence(self) -> str:
        """One line of figures."""
        places = len(self.stations)
        return f"{places} places in {places - self.returns} modules, {self.returns} returns"


class PromptSearch:
    """Whether a value is the prompt: its text, its tokens, or a list or a mapping that holds one of these."""

    def __init__(self, text: str, ids: tuple[int, ...]) -> None:
        self._text = text
        self._ids = ids

    def holds(self, value: Any, depth: int = DEPTH) -> bool:
        """Look for the prompt.

        Args:
            value: An argument of a call.
            depth: Levels of lists and mappings in which it is looked for.

        Returns:
            Whether it is there.
        """
        if isinstance(value, str):
            return self._text in value
        if isinstance(value, bytes):
            return self._text.encode() in value
        if depth == 0:
            return False
        if isinstance(value, (tuple, list)):
            if len(value) >= len(self._ids) and tuple(value[-len(self._ids) :]) == self._ids:
                return True
            return any(self.holds(x, depth - 1) for x in value[:16])
        if isinstance(value, Mapping):
            return any(self.holds(x, depth - 1) for x in value.values())
        return False


class RequestSearch(PromptSearch):
    """Whether a value is the prompt, or an object that holds it in one of its fields."""

    def holds(self, value: Any, depth: int = DEPTH) -> bool:
        if is_dataclass(value) and not isinstance(value, type) and depth > 0:
            held = vars(value) if hasattr(value, "__dict__") else {}
            return any(self.holds(held.get(f.name), depth - 1) for f in fields(value))
        return super().holds(value, depth)


def _is_attribute(frame: FrameType) -> bool:
    """Whether a call only gives an attribute, which a reader sees as one."""
    owner = type(frame.f_locals.get("self"))
    found = inspect.getattr_static(owner, frame.f_code.co_name, None)
    return isinstance(found, (property, cached_property))


def trace_request_road(
    work: Callable[[], Any], holds: Callable[[Any], bool] | None = None
) -> RequestRoad:
    """Run `work` in this thread and note every module in which a function is called, with an argument for which `holds` is true
    where that is given."""
    stations = list[str]()

    def note(frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code.co_name.startswith("<") or _is_attribute(frame):
            return
        module = code.co_filename[len(PACKAGE) + 1 :]
        if stations and stations[-1] == module:
            return
        count = code.co_argcount + code.co_kwonlyargcount
        names = code.co_varnames[: count + 2]
        sys.setprofile(None)
        if holds is None or any(holds(frame.f_locals.get(name)) for name in names):
            stations.append(module)
        sys.setprofile(note)

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return RequestRoad(tuple(stations))


def count_option_conversions(work: Callable[[], Any]) -> Counter[str]:
    """How often each option's value is converted while `work` runs, by the option's name. Defaults that declarations check do
    not count."""
    seen = Counter[str]()
    convert = Option.convert_value

    def counted(self: Option, value: Any) -> Any:
        if sys._getframe(1).f_code.co_name != "_whole_declaration":
            seen[self.name] += 1
        return convert(self, value)

    Option.convert_value = counted
    try:
        work()
    finally:
        Option.convert_value = convert
    return seen


def submit_road(
    model: polydec.LoadedModel, holds: Callable[[Any], bool] | None = None
) -> RequestRoad:
    """The road of `Engine.submit` with a text; holds: as for `trace_request_road`."""
    engine = polydec.Engine(model)
    engine.submit(PROMPT, max_tokens=4)
    return trace_request_road(lambda: engine.submit(PROMPT, max_tokens=4), holds)


def chat_road(
    model: polydec.LoadedModel, holds: Callable[[Any], bool] | None = None
) -> RequestRoad:
    """The road of a chat from a body in HTTP to the engine's queue, without the threads between; holds: as for
    `trace_request_road`."""
    limits = RequestLimits()
    engine = polydec.Engine(model)
    body = json.dumps(CHAT).encode()

    def ask() -> None:
        wanted = ChatCompletionsShape().read_request(read_body(body, limits), model, "auto", 0)
        submit_within_limits(engine, wanted.asks, limits)

    ask()
    return trace_request_road(ask, holds)


def load_road(name: str) -> RequestRoad:
    """The road of a model's name through `polydec.load`: calls with it, or with its files' path, in an argument."""
    path = str(zoo.zoo_model_path(name)) if name.startswith("zoo:") else name

    def holds(value: Any) -> bool:
        if isinstance(value, (str, Path)):
            return name in str(value) or path in str(value)
        return isinstance(value, (tuple, list)) and any(holds(x) for x in value[:16])

    polydec.load(name)
    return trace_request_road(lambda: polydec.load(name), holds)


def submit_within_limits(
    engine: polydec.Engine, asks: Sequence[polydec.Ask], limits: RequestLimits
) -> None:
    """What a server's planner does with the requests of one body."""
    for request in apply_request_limits(engine.model, asks, limits):
        engine.submit_encoded(request)


def command_conversions(*flags: str) -> Counter[str]:
    """Conversions of options in one `polydec generate`."""

    def command() -> None:
        with contextlib.suppress(SystemExit):
            polydec_main()

    given = sys.argv
    sys.argv = ["polydec", "generate", "--max-tokens", "4", *flags, PROMPT]
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            command()
            return count_option_conversions(command)
    finally:
        sys.argv = given


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="zoo:tiny")
    parser.add_argument("--steps", action="store_true", help="list the places")
    args = parser.parse_args()
    model = polydec.load(args.model)
    ids = model.encode_prompt(CHAT["messages"])
    searches = {
        "calls with the prompt in an argument": PromptSearch(PROMPT, ids).holds,
        "calls with an object that holds it": RequestSearch(PROMPT, ids).holds,
        "all calls": None,
    }
    for name, walk in (("submit", submit_road), ("chat", chat_road)):
        for which, holds in searches.items():
            road = walk(model, holds)
            print(f"{name}, {which}: {road.progress_sentence()}")
            if args.steps and holds is not None:
                print("  " + "\n  ".join(road.stations))
    road = load_road(args.model)
    print(f"load, calls with the name or the path in an argument: {road.progress_sentence()}")
    if args.steps:
        print("  " + "\n  ".join(road.stations))
    for name, flags in (
        ("generate --method draft-model", ("--method", "draft-model", "--set", "depth=3")),
        ("generate", ()),
    ):
        seen = command_conversions("--model", args.model, *flags)
        often = ", ".join(f"{option} {count}" for option, count in seen.most_common(6))
        print(f"{name}: {seen.total()} conversions of options ({often})")


if __name__ == "__main__":
    main()
