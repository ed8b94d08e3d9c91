"""polydec classify: texts sorted into classes by a language model, from a few examples or none."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from polydec import api
from polydec.base.edge import parse_object, validate_record, whole_text
from polydec.base.errors import RequestError
from polydec.base.outside_records import StrictRecord
from polydec.cli import prompts
from polydec.cli.flags import split_flag_pairs
from polydec.cli.terminal_output import print_result
from polydec.request import deciding
from polydec.request.loading import loading_options as loading

LOADING = loading()
FIELDS = "; ".join(
    f"{o.name}: {o.help} ({o.legal})" for o in deciding.classifier_options().values()
)


class _LabelledTextRecord(StrictRecord):
    """A row of a file of examples; CLINC150 calls the class its intent."""

    text: str
    label: str | None = None
    intent: str | None = None


def classify(
    texts: Annotated[list[str] | None, typer.Argument(help="texts, a class for each")] = None,
    file: Annotated[Path | None, typer.Option(help="a text a line of this file")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="JSON lines with `text` and `label` (or `intent`)")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option(help="a class, several times; none: those of the examples")
    ] = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option(help="what stands around a {text}, several times; none: ours"),
    ] = None,
    model: Annotated[str, typer.Option(help=LOADING["name"].help)] = LOADING["name"].default,
    dtype: Annotated[str, typer.Option(help=LOADING["dtype"].help)] = LOADING["dtype"].default,
    set_: Annotated[list[str] | None, typer.Option("--set", help=FIELDS)] = None,
) -> None:
    """Sort texts into classes, a JSON object a line: its `label`, and the `chances` of all classes.\f

    Args:
        texts: Texts, a class for each. Default None: those of `file`.
        file: File with a text a line. Default None.
        examples: JSON lines with `text` and `label` or `intent`. Default None: no examples.
        label: Names of the classes. Default None: those of the examples.
        prompt: What stands around a `{text}`. Default None: polydec's own prompts.
        model: Name of the model.
        dtype: Numbers that the model computes in.
        set_: Fields of `ClassifierSettings`, k=v. Default None.
    """
    options = split_flag_pairs("set", set_)
    # Everything that needs no model is checked first.
    declared = deciding.classifier_options()
    if unknown := options.keys() - declared.keys():
        raise RequestError(f"--set {min(unknown)}: it must be one of {', '.join(declared)}")
    how = deciding.ClassifierSettings(
        **{name: declared[name].convert_value(x) for name, x in options.items()}
    )
    asked = deciding.check_classifier_prompts(tuple(prompt or deciding.PROMPTS))
    lines = list(texts or ())
    if file is not None:
        # Texts of the command line come first, then those of the file.
        lines += [line for line in prompts.read_text(file).splitlines() if line.strip()]
    if not lines:
        raise RequestError("there is no text: give at least one text, or a file of them (--file)")
    if examples is None:
        known = []
    else:
        # Examples bring their classes along; without them classes must be named.
        known = read_labelled_texts(examples)
    if not known and not label:
        raise RequestError("there is no class: name classes (--label), or give --examples")
    lm = api.load(model, draft=None, ngrams=None, dtype=dtype)
    sorter = lm.classifier(known, label or (), asked, **vars(how))
    for text, decision in zip(lines, sorter.classify(lines), strict=True):
        print_result(json.dumps({"text": text, **asdict(decision)}))


def read_labelled_texts(path: Path) -> list[tuple[str, str]]:
    """Read texts with their classes from a file.

    Raises:
        RequestError: A line is wrong, or the file holds no example; the message names the line.
    """
    out = list[tuple[str, str]]()
    for i, line in enumerate(prompts.read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        what = f"line {i} of {str(path)!r}"
        row = validate_record(_LabelledTextRecord, parse_object(line, what), what)
        # `label` goes before `intent` where a row has both.
        if row.label is None:
            label = row.intent
        else:
            label = row.label
        if label is None:
            raise RequestError(f"{what} has no class: it must have `label` or `intent`")
        out.append((whole_text(row.text, what), whole_text(label, what)))
    if not out:
        raise RequestError(f"file {str(path)!r} holds no example")
    return out
