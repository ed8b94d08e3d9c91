"""Tool calls: the tools of a request, and what binds the calls of an answer.

The model is shown the tools, by its chat template or by a default prompt; what it writes is text, in the form that it was
trained on, which request/tool_calls.py reads. Where a request binds calls (a tool is required or strict, or only one may be
called) the constraint engine keeps the answer to one of the forms, the one that the model was shown.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from polydec.api import LoadedModel
from polydec.base.errors import RequestError
from polydec.base.options import short_repr
from polydec.laws.constraints.json_schema import ANY_OBJECT, JsonSchema
from polydec.laws.constraints.protocols import OutputConstraint
from polydec.laws.constraints.tool_calls import OPEN, ToolCallForm, ToolCalls, ToolFunction
from polydec.serve.body import RequestBody, is_whole
from polydec.serve.constrained import PrecompiledConstraint, compile_field_constraint
from polydec.serve.errors import RefusalError

MOST = 256
"""Tools of a request."""

FUNCTION = ("name", "description", "parameters", "strict", "return")
"""What a function holds; some templates show what it returns."""

NOTHING = JsonSchema('{"type": "object", "additionalProperties": false}')
"""The arguments of a function without parameters."""


@dataclass(frozen=True)
class RequestTools:
    """What a request says of tools.

    Attributes:
        shown: The tools that the model is shown.
        constraint: Constraint of the complete answer. None: there is none.
        form: Form in which calls stand in the answer. None: any.
        told: The fields as they were given, with their defaults; the response repeats them.
    """

    shown: tuple[Mapping[str, Any], ...] = ()
    constraint: OutputConstraint | None = None
    form: ToolCallForm | None = None
    told: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def names(self) -> frozenset[str]:
        """What may be called."""
        return frozenset(tool["function"]["name"] for tool in self.shown)


def read_tools(
    body: RequestBody, model: LoadedModel, asked: OutputConstraint | None, *, flat: bool = False
) -> RequestTools:
    """Read the tools of a request.

    Args:
        body: Body of the request, from which the fields are taken.
        model: The model that is to answer.
        asked: Constraint that the answer has already. None: it has none.
        flat: Whether a tool holds its function's fields itself, as in /v1/responses. Default False.

    Returns:
        The tools, and the constraint of the answer.

    Raises:
        RefusalError: Something cannot be honoured.
    """
    declared_tools = body.take_field("tools", [])
    choice = body.take_field("tool_choice", "auto")
    many = body.boolean_field("parallel_tool_calls", True)
    if not isinstance(declared_tools, list) or len(declared_tools) > MOST:
        raise RefusalError(
            f"tools is {short_repr(declared_tools)}: it must be a list of at most {MOST} tools",
            param="tools",
        )
    tools = tuple(_tool(f"tools[{at}]", tool, flat, body) for at, tool in enumerate(declared_tools))
    names = [tool["function"]["name"] for tool in tools]
    twice = next((x for at, x in enumerate(names) if x in names[:at]), None)
    if twice is not None:
        raise RefusalError(
            f"tools has two functions of the name {short_repr(twice)}: each needs a name of its own",
            param="tools",
        )
    told = {"tools": declared_tools, "tool_choice": choice, "parallel_tool_calls": many}
    name = _chosen(choice, names, flat, body)
    if not tools or choice == "none":
        return RequestTools(constraint=asked, told=told)
    # From here on the answer may call. What binds it: a required call, a strict tool, one call at
    # most, or a schema.
    must = choice != "auto"
    if must and asked is not None:
        # A format is of the text of an answer (OpenAI's reading), and a call has none beside it. Any other
        # constraint is of the whole answer.
        if body.constraint_field != "response_format":
            raise RefusalError(
                f"tool_choice is {short_repr(choice)} beside {body.constraint_field}: an answer that must be a call has no "
                "other form, so leave one of them out",
                param="tool_choice",
            )
        asked = None
    strict = any(tool["function"].get("strict") for tool in tools)
    form = _form(model)
    whole = asked.constraint if isinstance(asked, PrecompiledConstraint) else asked
    if isinstance(whole, JsonSchema) and form.tags:
        # Tags can stand beside a JSON answer; a bare object could not be told from it.
        tagged = whole
    else:
        tagged = None
    # Nothing binds the calls, or another constraint leaves no room for them.
    if not (must or strict or tagged or not many) or whole is not tagged:
        return RequestTools(tools, asked, None, told)
    functions = [t["function"] for t in tools if name in (None, t["function"]["name"])]

    def bound_tools() -> OutputConstraint:
        return ToolCalls(
            tuple(
                ToolFunction(f["name"], _arguments(f) if must or f.get("strict") else ANY_OBJECT)
                for f in functions
            ),
            form,
            many=many and name is None,
            text=not must and tagged is None,
            said=tagged,
        )

    return RequestTools(tools, compile_field_constraint("tools", bound_tools, model), form, told)


def _chosen(choice: Any, names: Sequence[str], flat: bool, body: RequestBody) -> str | None:
    """The name of the function that must be called; None where it may be any. Raises Refusal for a choice that is none."""
    name = None
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        if flat:
            function = choice
        else:
            function = choice.get("function")
        if isinstance(function, Mapping):
            name = function.get("name")
        else:
            name = None
        body.refuse_members("tool_choice", choice, ("type", "name" if flat else "function"))
        if not flat and isinstance(function, Mapping):
            body.refuse_members("tool_choice.function", function, ("name",))
    if name is None and choice not in ("auto", "none", "required"):
        named = "{'type': 'function', " + ("'name': …}" if flat else "'function': {'name': …}}")
        raise RefusalError(
            f"tool_choice is {short_repr(choice)}: it must be 'auto', 'none', 'required' or {named}",
            param="tool_choice",
        )
    if choice not in ("auto", "none") and not names:
        raise RefusalError(
            f"tool_choice is {short_repr(choice)} without tools: give tools, or leave it out",
            param="tool_choice",
        )
    if name is not None and name not in names:
        raise RefusalError(
            f"tool_choice names {short_repr(name)}: tools has {', '.join(map(short_repr, names[:8]))}",
            param="tool_choice",
        )
    return name


def _form(model: LoadedModel) -> ToolCallForm:
    """The form in which the model is shown how to call: as its chat template writes calls, else as
    the default prompt does.
    """
    text = model.checkpoint.text
    template = text.chat_templates[1]
    if template is None:
        source = ""
    else:
        source = template.source
    if OPEN in source or template is None or not text.shows_tools:
        return ToolCallForm()
    other = '"parameters":' in source and '"arguments":' not in source
    return ToolCallForm(tags=False, key="parameters" if other else "arguments")


def _arguments(function: Mapping[str, Any]) -> JsonSchema:
    """What a function's arguments must be: an object in any case, and an empty one where it has no parameters."""
    schema = function.get("parameters")
    if schema is None:
        return NOTHING
    kind = schema.get("type", "object")
    if kind != "object":
        raise RequestError(
            f"function {short_repr(function['name'])} has parameters of type {short_repr(kind)}: arguments are an object"
        )
    # A function with no properties takes none, although JSON schema would allow any.
    empty = schema.get("properties") == {} and "additionalProperties" not in schema
    if empty:
        more = {"additionalProperties": False}
    else:
        more = {}
    return JsonSchema.of_schema({"type": "object", **schema, **more})


def _tool(where: str, tool: Any, flat: bool, body: RequestBody) -> Mapping[str, Any]:
    """A tool, checked, as chat templates take it."""
    if isinstance(tool, Mapping):
        function = tool.get("function")
    else:
        function = None
    path = f"{where}.function"
    if flat and isinstance(tool, Mapping) and function is None:
        function = {k: v for k, v in tool.items() if k != "type"}
        path = where
    if (
        not isinstance(tool, Mapping)
        or not isinstance(function, Mapping)
        or tool.get("type") != "function"
    ):
        if flat:
            form = "'name': …"
        else:
            form = "'function': {…}"
        raise RefusalError(
            f"{where} is {short_repr(tool)}: it must be {{'type': 'function', {form}}}",
            param="tools",
        )
    if path != where:
        body.refuse_members(where, tool, ("type", "function"))
    body.refuse_members(path, function, FUNCTION)
    name, about, schema, strict = map(function.get, ("name", "description", "parameters", "strict"))
    if not isinstance(name, str) or not 1 <= len(name) <= 256:
        raise RefusalError(
            f"{where}.function.name is {short_repr(name)}: it must be a text of 1 to 256 characters",
            param="tools",
        )
    if about is not None and not isinstance(about, str):
        raise RefusalError(
            f"{where}.function.description is {short_repr(about)}: it must be a text", param="tools"
        )
    if schema is not None and not isinstance(schema, Mapping):
        raise RefusalError(
            f"{where}.function.parameters is {short_repr(schema)}: it must be a JSON schema",
            param="tools",
        )
    if strict is not None and type(strict) is not bool:
        raise RefusalError(
            f"{where}.function.strict is {short_repr(strict)}: it must be true or false",
            param="tools",
        )
    return {"type": "function", "function": dict(function)}


def past_calls(where: str, calls: Any, body: RequestBody) -> list[dict[str, Any]]:
    """Read calls of an earlier turn as chat templates take them, with the arguments as an object.

    Args:
        where: Path of the calls in the request, for messages.
        calls: The calls, one or a list.
        body: Body of the request.

    Returns:
        The calls.

    Raises:
        RefusalError: A call is malformed.
    """
    out = list[dict[str, Any]]()
    for at, call in enumerate(calls if isinstance(calls, list) else [calls]):
        if isinstance(call, Mapping):
            function = call.get("function")
        else:
            function = None
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise RefusalError(
                f"{where}[{at}] is {short_repr(call)}: it must have a function with a name",
                param="messages",
            )
        body.refuse_members(f"{where}[{at}]", call, ("id", "type", "index", "function"))
        body.refuse_members(f"{where}[{at}].function", function, ("name", "arguments"))
        arguments_sent = function.get("arguments", "{}")
        try:
            if isinstance(arguments_sent, str):
                arguments = json.loads(arguments_sent)
            else:
                arguments = arguments_sent
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, Mapping):
            raise RefusalError(
                f"{where}[{at}].function.arguments is {short_repr(arguments_sent)}: it must be a JSON object as a text",
                param="messages",
            )
        if not is_whole(arguments):  # the text of a field may hold what the field may not
            raise RefusalError(
                f"{where}[{at}].function.arguments holds half a character: it must be whole Unicode text",
                param="messages",
            )
        out.append(
            {
                "id": str(call.get("id", "")),
                "type": "function",
                "function": {"name": function["name"], "arguments": dict(arguments)},
            }
        )
    return out
