"""polydec verify: a certificate that a method keeps its promise on this model and machine."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import track

from polydec import api
from polydec.base import files
from polydec.base.edge import error_sentence, escape_control_characters, require_integer
from polydec.base.errors import RequestError
from polydec.base.interrupts import said_when_stopped
from polydec.cli import asking, prompts
from polydec.cli.declared_flags import expand_flag_parameters
from polydec.cli.flags import BENT, LOADED, RequestFlags, SteeringFlags, read_json_schema
from polydec.cli.terminal_output import print_result, table_cell_text
from polydec.core.types import Exactness
from polydec.methods.registry import registry
from polydec.methods.registry.family import INSERTION, MASKED_DIFFUSION, family_of

if TYPE_CHECKING:
    from polydec.lab.bench.cache_drift import CacheDrift
    from polydec.lab.bench.certify import GreedyComparison
    from polydec.lab.bench.enumerated_laws import LawEnumeration
    from polydec.lab.bench.law_distances import LawDistance, LawDistances
    from polydec.lab.bench.masked import ConstraintFindings
    from polydec.lab.bench.sampled_laws import SamplingFindings
    from polydec.lab.bench.search_claims import SearchAudit, ToyAudit

TAKEN = {*LOADED, *BENT, "method", "set_", "max_tokens", "seed", "raw", "json_"}
CONSTRAINED = {"regex", "json_schema", "grammar", "choice", "span_of", "constraint_"}
ENDED = {
    "order",
    "stop",
    "stop_token_id",
    "ignore_eos",
    "finish",
    "cache",
    "cache_set",
    *CONSTRAINED,
}
"""Flags that say which texts there may be and where they end, and over which cache."""
IN_FILES = ("json_schema", "grammar", "span_of")
"""Flags that may name a file, whose text a certificate holds."""
APART = {"method", "options", "raw", "seed", "n", "logprobs", "prompt_logprobs"}
"""Fields of a request that are given by themselves, or by the evidence that is gathered."""
SEARCHES = ("search", "rollouts", "routing")
SAMPLES = 32
MOST = 1024
"""Texts of a prompt that are drawn where nobody says how many, and the most."""


STOPPED = "stopped before a verdict: no certificate was written, and the same command begins anew"


@expand_flag_parameters
def verify(
    flags: RequestFlags,
    data: Annotated[
        Path | None, typer.Option(help="prompts: JSON lines, or one a line (default: built-in)")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(help="of running text: tokens of a prompt")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="use the first prompts only")] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            help=f"above temperature 0: texts that are drawn behind each prompt, 4 to {MOST}; default: {SAMPLES}"
        ),
    ] = None,
    certificate_: Annotated[
        Path | None,
        typer.Option(
            "--certificate", help="write the certificate (what --json prints) to this file"
        ),
    ] = None,
    repeat: Annotated[
        Path | None,
        typer.Option(help="do what this certificate says was done, and compare the verdicts"),
    ] = None,
    steered: SteeringFlags = SteeringFlags(),  # noqa: B008
) -> None:
    """Certify that a method keeps its promise. At temperature 0: its text is plain decoding's, token for token. Above it: what
    it draws follows the model's law, by tests that say what they would have caught. An approximate method's distance from that
    law is measured; a search's scores and ledger are computed again; of a constraint every answer and the masked law; of a
    masked-diffusion model the laws of a kept cache; of an insertion model its own process. Exit code 1 where a fault is found.
    Where no law was enumerated, or nothing was drafted, the verdict says that nothing is shown.\f

    Args:
        flags: Model, method and sampling that are certified.
        data: File of prompts. Default None: built-in ones.
        prompt_tokens: Tokens of a prompt that is cut from running text. Default None.
        limit: First prompts that are used. Default None: all.
        samples: Texts that are drawn behind each prompt above temperature 0, 4 to `MOST`. Default
            None: `SAMPLES`.
        certificate_: File for the certificate. Default None.
        repeat: Certificate to do again and compare with. Default None.
        steered: How the model's law is bent. Default: not at all.
    """
    # A repetition takes everything from the certificate.
    if repeat is not None:
        others = (data, prompt_tokens, limit, samples)
        if any(x is not None for x in others):
            raise RequestError(
                "verify --repeat does not take --data, --prompt-tokens, --limit or --samples: the certificate has them"
            )
        flags.refuse_others("verify --repeat", {"json_"})
        from polydec.lab.bench import certificate

        with TemporaryDirectory() as folder:
            old = certificate.read_certificate(repeat)
            was = request_from_certificate(old, Path(folder), flags.json_)
            with said_when_stopped(lambda: STOPPED):
                done = run_verification(was.flags, was.rows, was.samples, was.steered)
            finish_verification(done, was.flags, certificate_, old)
        return
    # Whatever can be refused without the model is refused before it is loaded.
    registry.get_recipe_module(flags.method)
    flags.refuse_others("verify", {*TAKEN, *ENDED})
    if samples is not None:
        # Fewer samples than four leave no test a chance.
        require_integer("samples", samples, 4, MOST)
        if not flags.temperature:
            raise RequestError(
                f"samples is {samples}: at temperature 0 there is one text, so give --temperature or leave it out"
            )
    steered.steering_fields()
    lm = flags.load()
    rows = prompts.first_prompt_rows(
        prompts.read_prompt_rows(data, lm, prompt_tokens) if data else prompts.BUILT_IN, limit
    )
    # A stop says what was certified so far: nothing.
    with said_when_stopped(lambda: STOPPED):
        done = run_verification(flags, rows, samples, steered, lm)
    finish_verification(done, flags, certificate_)


@dataclass(frozen=True)
class VerifyRequest:
    """What a certificate says was asked for.

    Attributes:
        flags: The command's flags.
        rows: The prompts.
        samples: Texts of each prompt; None: the usual number.
        steered: The flags of steering.
    """

    flags: RequestFlags
    rows: Sequence[prompts.PromptRow]
    samples: int | None
    steered: SteeringFlags


@dataclass(frozen=True)
class VerifyOutcome:
    """What was found.

    Attributes:
        verdict: One of the verdicts of a certificate.
        place: Where a fault lies, in words; "" where there is none.
        content: The certificate's own fields.
        lines: The lines that say it to a reader.
    """

    verdict: str
    place: str
    content: Mapping[str, Any]
    lines: Sequence[str]


def run_verification(
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    samples: int | None,
    steered: SteeringFlags,
    lm: api.LoadedModel | None = None,
) -> VerifyOutcome:
    """Check all of a request, then gather the evidence that the method's promise asks for.

    Args:
        flags: The command's flags.
        rows: The prompts.
        samples: Texts of each prompt above temperature 0; None: the usual number.
        steered: The flags of steering.
        lm: The loaded model; None: it is loaded here.

    Returns:
        What was found, as a whole certificate.

    Raises:
        RequestError: The request is refused.
    """
    from polydec.lab.bench import certificate
    from polydec.lab.bench.trials import SEEDS

    lm = flags.load() if lm is None else lm
    drawn = bool(flags.temperature)
    # Drawn texts are short by default: every token is tested, and there are many texts.
    request: dict[str, Any] = {
        k: v for k, v in flags.request_fields(lm).items() if k not in APART
    } | {
        "sampling": replace(flags.sampling_rules(lm), temperature=flags.temperature or 0.0),
        "max_tokens": flags.max_tokens or (16 if drawn else 128),
    }
    family = family_of(lm.checkpoint.lm)
    if family is INSERTION:
        flags.refuse_others("verify, of an insertion model,", TAKEN)
        outcome = verify_insertions(lm, flags, rows, request, samples or SAMPLES, drawn)
    elif family is MASKED_DIFFUSION:
        flags.refuse_others("verify, of a masked-diffusion model,", TAKEN)
        outcome = verify_filled_canvas(lm, flags, rows, request, samples or SAMPLES, drawn)
    else:
        request |= steered.steering_fields()
        # Plain decoding must take the request as well, as the method is compared with it.
        asking.check_requests(
            lm,
            ((r.prompt, flags.raw or r.raw) for r in rows),
            (("plain", {}), (flags.method, flags.option_values())),
            **request,
        )
        outcome = verify_continuation(lm, flags, rows, request, samples or SAMPLES, drawn)
    # The seeds over which `spread_over` spreads the samples; greedy texts have one.
    seeds = [flags.seed + i for i in range(min(SEEDS, samples or SAMPLES) if drawn else 1)]
    asked = [{"prompt": r.prompt, "raw": r.raw, "workload": r.workload} for r in rows]
    head = certificate.certificate_head(lm, flags_for_certificate(flags, steered), seeds)
    content = {
        **head,
        "verdict": outcome.verdict,
        "place": outcome.place,
        "samples": samples,
        "asked": asked,
        **outcome.content,
    }
    return replace(outcome, content=content)


def verify_continuation(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    request: Mapping[str, Any],
    samples: int,
    drawn: bool,
) -> VerifyOutcome:
    """Verify a method on a model that continues texts, by the kind of evidence that its promise
    asks for.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        rows: The prompts.
        request: What all requests hold.
        samples: Texts of each prompt where texts are drawn.
        drawn: Whether the temperature is above 0.

    Returns:
        What was found.
    """
    from polydec.lab.bench.enumerated_laws import enumerate_output_laws
    from polydec.lab.bench.law_distances import measure_law_distances
    from polydec.lab.bench.masked import judge_constrained
    from polydec.lab.bench.sampled_laws import sample_against_law
    from polydec.lab.bench.search_claims import audit_search, on_toys
    from polydec.lab.bench.trials import MethodTrial
    from polydec.request.ask import plan_request

    method = flags.method
    options = flags.option_values()
    pairs = [(r.prompt, flags.raw or r.raw) for r in rows]
    trial = MethodTrial(lm, pairs, method, options, request, samples, flags.seed)
    # `auto` decides by the request: planning one says which method decodes, and what it promises.
    made = plan_request(lm, trial.ask_method(0, flags.seed))
    promise = made.decoder.exactness
    kind = made.card.kind
    about = {"method": method, "decodes": made.method, "promise": promise.value}
    # A search promises no law: its scores and its ledger are computed again.
    if kind in SEARCHES:
        audited = audit_search(trial)
        toys = on_toys(method, options)
        done = VerifyOutcome(
            _worse(audited.verdict, toys.verdict),
            "; ".join(p for p in (audited.place, toys.place) if p),
            {"search": audited.to_json(), "toys": toys.to_json()},
            [*_on_toys(toys), *_audited(audited)],
        )
    # Nothing is promised here, so the distance is measured.
    elif promise is Exactness.APPROXIMATE or (drawn and promise is Exactness.ARGMAX):
        far = measure_law_distances(trial)
        done = VerifyOutcome(far.verdict, far.place, {"distance": far.to_json()}, _distances(far))
    # A promised law: tests on this model, and every draw enumerated on toys.
    elif drawn:
        tested = sample_against_law(trial)
        done = promised_law_outcome(tested, enumerate_output_laws(method, options))
    else:
        done = verify_greedy_text(lm, flags, rows, request)
    # A constraint is judged on top of whatever else was found.
    if request.get("constraint") is not None:
        inside = judge_constrained(trial)
        done = VerifyOutcome(
            _worse(done.verdict, inside.verdict),
            # A fault of the method itself is named before one of the constraint.
            done.place if done.verdict == "fault" else inside.place or done.place,
            {**done.content, "constraint": inside.to_json()},
            [*done.lines, *_held(inside)],
        )
    return replace(done, content={**about, **done.content})


def promised_law_outcome(tested: SamplingFindings, exact: LawEnumeration) -> VerifyOutcome:
    """Join the tests of a promised law on this model with the enumeration on toys.

    Args:
        tested: Tests of what was drawn on this model.
        exact: The enumeration of every draw on toy laws.

    Returns:
        The worse verdict of the two, with the lines of both.
    """
    return VerifyOutcome(
        _worse(tested.verdict, exact.verdict),
        "; ".join(p for p in (tested.place, exact.place or exact.why) if p),
        {"law": tested.to_json(), "enumeration": exact.to_json()},
        [*_enumerated(exact), *_findings(tested)],
    )


def _worse(first: str, other: str) -> str:
    # From the best to the worst.
    order = ("measured", "keeps it", "not shown", "near-tie", "fault")
    return max(first, other, key=order.index)


def verify_greedy_text(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    request: Mapping[str, Any],
) -> VerifyOutcome:
    """Compare greedy texts with plain decoding's, prompt by prompt; each line is printed as soon as
    it is known.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        rows: The prompts.
        request: What all requests hold.

    Returns:
        What was found.
    """
    from polydec.lab.bench.certify import compare_greedy_texts

    compared: list[GreedyComparison] = []
    # The head of the table comes at once, as each comparison takes a while.
    if not flags.json_:
        print_result(LINE.format("prompt", "verdict", "tokens", "gap", "first divergence").rstrip())
    try:
        for r in track(rows, "comparing", console=Console(stderr=True), transient=True):
            raw = flags.raw or r.raw
            compared.append(
                compare_greedy_texts(
                    lm,
                    r.prompt,
                    flags.method,
                    flags.option_values(),
                    raw=raw,
                    seed=flags.seed,
                    **request,
                )
            )
            if not flags.json_:
                print_result(comparison_line(lm, r, compared[-1]))
    except BaseException:
        # What was compared before a failure or Ctrl-C is printed all the same.
        if compared:
            done = _compared(lm, flags, rows, compared)
            print_result(json.dumps(done.content) if flags.json_ else "\n".join(done.lines))
        raise
    return _compared(lm, flags, rows, compared)


def _compared(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    compared: Sequence[GreedyComparison],
) -> VerifyOutcome:
    from polydec.lab.testing.exercised_counts import DRAFT_KINDS

    counts = {v: sum(c.verdict == v for c in compared) for v in ("equal", "near-tie", "fault")}
    # One fault among all prompts decides, then one near-tie.
    verdict = next((v for v in ("fault", "near-tie") if counts[v]), "keeps it")
    worst = [(i, c) for i, c in enumerate(compared, 1) if c.verdict == verdict]
    if verdict == "keeps it":
        place = ""
    else:
        place = f"prompt {worst[0][0]}, token {worst[0][1].at}"
    if place and worst[0][1].place:
        place += f", {worst[0][1].place}"
    exercised = {name: sum(getattr(c, name) for c in compared) for name in DRAFT_KINDS}
    # Equal texts of a method that never drafted show nothing of its drafting.
    if verdict == "keeps it" and not exercised["drafted"] and _drafts(flags.method, lm):
        verdict = "not shown"
        place = "nothing was drafted in these texts"
    # What was exercised stands in the sentence: a promise that was never tested is none.
    counted = ", ".join(f"{n} {v}" for v, n in counts.items())
    counted += "; tokens: " + ", ".join(f"{n} {name}" for name, n in exercised.items())
    content = {
        "counts": counts,
        "exercised": exercised,
        "prompts": [
            {"prompt": r.key[:80], "verdict": c.verdict, **vars(c)} for r, c in zip(rows, compared)
        ],
    }
    lines = [
        f"{flags.method} on {escape_control_characters(lm.name)} ({lm.checkpoint.kernel}): {counted}"
    ]
    return VerifyOutcome(verdict, place, content, lines)


def _drafts(method: str, lm: api.LoadedModel) -> bool:
    """Whether a method is one that drafts."""
    # The card gives a reason where a method never drafts on this kind of model.
    card = registry.recipe_for_model(method, family_of(lm.checkpoint.lm)).CARD
    return card.kind == "draft-and-verify" and not card.unexercised.get("drafted")


@dataclass(frozen=True)
class PromisedMethod:
    """A method as it is verified.

    Attributes:
        name: The recipe's name.
        options: Its options.
        promise: What it promises with them.
    """

    name: str
    options: Mapping[str, Any]
    promise: Exactness


def promised_method(
    lm: api.LoadedModel,
    flags: RequestFlags,
    pairs: Sequence[tuple[api.Prompt, bool]],
    common: Mapping[str, Any],
) -> PromisedMethod:
    """Find the method that is asked for, and check the requests before any pass.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        pairs: The prompts, each with whether it goes in without the chat template.
        common: Fields that all requests have.

    Returns:
        The method.

    Raises:
        RequestError: A request cannot be answered.
    """
    name = registry.recipe_for_model(flags.method, family_of(lm.checkpoint.lm)).CARD.name
    options = flags.option_values()
    asking.check_requests(lm, pairs, ((name, options),), **common)
    # The promise depends on the options as well.
    promise = registry.build(name, lm.recipe_kit(), options)[0].exactness
    return PromisedMethod(name, options, promise)


def verify_filled_canvas(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    request: Mapping[str, Any],
    samples: int,
    drawn: bool,
) -> VerifyOutcome:
    """Verify a method on a masked-diffusion model: its draws against the law where it promises one,
    else the laws of its cache.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        rows: The prompts.
        request: What all requests hold.
        samples: Texts of each prompt where texts are drawn.
        drawn: Whether the temperature is above 0.

    Returns:
        What was found.
    """
    from polydec.lab.bench.enumerated_laws import enumerate_output_laws
    from polydec.lab.bench.schedule_laws import sample_canvas_law
    from polydec.lab.bench.trials import MethodTrial

    common = {k: request[k] for k in ("sampling", "max_tokens")}
    pairs = [(r.prompt, flags.raw or r.raw) for r in rows]
    asked = promised_method(lm, flags, pairs, common)
    name = asked.name
    options = asked.options
    if drawn and asked.promise is Exactness.LAW:
        trial = MethodTrial(lm, pairs, name, options, common, samples, flags.seed)
        tested = sample_canvas_law(trial)
        done = promised_law_outcome(tested, enumerate_output_laws(name, options, "diffusion"))
    else:
        done = verify_cache_drift(lm, flags, rows, name, common)
    about = {"method": flags.method, "decodes": name, "promise": asked.promise.value}
    return replace(done, content={**about, **done.content})


def verify_insertions(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    request: Mapping[str, Any],
    samples: int,
    drawn: bool,
) -> VerifyOutcome:
    """Verify a method on an insertion model: its draws against the model's own process where it
    promises that, else how far they are from it.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        rows: The prompts.
        request: What all requests hold.
        samples: Texts of each prompt where texts are drawn.
        drawn: Whether the temperature is above 0.

    Returns:
        What was found.
    """
    from polydec.lab.bench.enumerated_laws import enumerate_output_laws
    from polydec.lab.bench.insertion_laws import (
        draw_insertions,
        insertion_distance,
        insertion_law_findings,
    )
    from polydec.lab.bench.trials import MethodTrial

    common = {k: request[k] for k in ("sampling", "max_tokens")}
    pairs = [(r.prompt, flags.raw or r.raw) for r in rows]
    asked = promised_method(lm, flags, pairs, common)
    name = asked.name
    options = asked.options
    # Without draws a prompt has one text.
    count = samples if drawn or options.get("draw") else 1
    ours = draw_insertions(MethodTrial(lm, pairs, name, options, common, count, flags.seed))
    if drawn and asked.promise is Exactness.LAW:
        tested = insertion_law_findings(ours)
        done = promised_law_outcome(tested, enumerate_output_laws(name, options, "insertion"))
    else:
        far = insertion_distance(ours)
        nats = "none" if far.surprise is None else f"{far.surprise:.3f}"
        done = VerifyOutcome(
            "measured",
            "",
            {"distance": far.to_json()},
            [
                f"{far.steps} insertions and ends: {nats} nats each under the model's own process, which expects "
                f"{far.expected:.3f}; {far.excluded} that it excludes"
            ],
        )
    about = {"method": flags.method, "decodes": name, "promise": asked.promise.value}
    return replace(done, content={**about, **done.content})


def verify_cache_drift(
    lm: api.LoadedModel,
    flags: RequestFlags,
    rows: Sequence[prompts.PromptRow],
    name: str,
    common: Mapping[str, Any],
) -> VerifyOutcome:
    """Measure how far the laws of a masked-diffusion model's cache are from those without one.

    Args:
        lm: The loaded model.
        flags: The command's flags.
        rows: The prompts.
        name: Name of the method that decodes.
        common: What all requests hold.

    Returns:
        A fault where a pass that fed everything used cached states, else the distance.
    """
    from polydec.lab.bench.cache_drift import measure_cache_drift

    distances = [
        measure_cache_drift(
            lm,
            r.prompt,
            name,
            flags.option_values(),
            **common,
            raw=flags.raw or r.raw,
            seed=flags.seed,
        )
        for r in track(rows, "comparing", console=Console(stderr=True), transient=True)
    ]
    stale = next((i for i, d in enumerate(distances, 1) if d.stale is not None), None)
    place = ""
    if stale:
        verdict = "fault"
        place = f"prompt {stale}, pass {distances[stale - 1].stale}: everything was fed and the laws are those of a kept cache"
    # No cache, or one that changes nothing beyond rounding.
    elif all(d.most < 1e-6 for d in distances):
        verdict = "keeps it"
    else:
        verdict = "measured"
    content = {
        "prompts": [{"prompt": r.key[:80], **asdict(d)} for r, d in zip(rows, distances)],
    }
    lines = [DRIFT.format("prompt", "laws", "passes", "KL, nats", "largest", "other token")]
    lines += [_drift(r, d) for r, d in zip(rows, distances)]
    return VerifyOutcome(verdict, place, content, lines)


def finish_verification(
    done: VerifyOutcome,
    flags: RequestFlags,
    path: Path | None,
    old: Mapping[str, Any] | None = None,
) -> None:
    """Print what was found, write the certificate where it is asked for, and end the command.

    Args:
        done: What was found.
        flags: The command's flags.
        path: The certificate's file; None: none.
        old: The certificate that was repeated; None: none.

    Raises:
        typer.Exit: Always: code 1 for a fault, else 0.
    """
    content = dict(done.content)
    lines = list(done.lines)
    lines.append(
        f"verdict: {done.verdict}"
        + (f" ({escape_control_characters(done.place)})" if done.place else "")
    )
    if old is not None:
        # Another machine may round differently: equal texts are reported apart from equal verdicts.
        same = old["verdict"] == done.verdict
        # Digests tell whether the very texts came again, without storing them.
        content["repeats"] = {
            "machine": old["machine"],
            "verdict": old["verdict"],
            "same_verdict": same,
            "same_texts": _digests(old) == _digests(content),
        }
        if content["repeats"]["same_texts"]:
            texts = "the same texts"
        else:
            texts = "other texts"
        lines.append(
            f"the certificate says: {escape_control_characters(str(old['verdict']))[:40]}; {texts} here "
            f"(it is of {escape_control_characters(str(old['machine']))[:200]})"
        )
    if path is not None:
        # A reader never sees half a certificate.
        files.replace_file_atomically(
            path, lambda at: Path(at).write_text(json.dumps(content) + "\n", "utf-8")
        )
    print_result(json.dumps(content) if flags.json_ else "\n".join(lines))
    raise typer.Exit(1 if done.verdict == "fault" else 0)


def _digests(content: Mapping[str, Any]) -> list[Any]:
    # Drawn texts have one digest in all, greedy ones one for each prompt.
    law = content.get("law")
    rows = content.get("prompts")
    if isinstance(law, dict):
        return [law.get("digest")]
    if isinstance(rows, list):
        return [r.get("digest") for r in rows if isinstance(r, dict)]
    return []


# What is kept of a request, and how it comes back


def flags_for_certificate(flags: RequestFlags, steered: SteeringFlags) -> dict[str, Any]:
    """The flags that are not at their defaults, with the texts of files in place of their names.

    Args:
        flags: The command's flags.
        steered: The flags of steering.

    Returns:
        Values by flag, ready for JSON.
    """
    out = dict[str, Any]()
    for group in (flags, steered):
        for field in dataclasses.fields(group):
            value = getattr(group, field.name)
            # How the result is printed is no part of what was asked.
            if value not in (field.default, []) and field.name != "json_":
                out[field.name] = value
    # A certificate must be repeatable where these files do not exist.
    for name in IN_FILES:
        if name in out:
            read = read_json_schema if name == "json_schema" else prompts.read_text
            out[name] = read(out[name])
    return out


def request_from_certificate(old: Mapping[str, Any], folder: Path, json_: bool) -> VerifyRequest:
    """Turn a certificate back into a request.

    Args:
        old: The certificate.
        folder: An existing folder, for the files that flags name.
        json_: Whether the command prints JSON.

    Returns:
        The request.

    Raises:
        RequestError: The certificate asks for what `verify` does not take.
    """
    what = "certificate: flags"
    flags = dict(old["flags"])
    mine = {f.name for f in dataclasses.fields(SteeringFlags)}
    # A certificate may come from anywhere: unknown flags and odd values are refused.
    for name, value in flags.items():
        if name not in {*TAKEN, *ENDED, *mine} - {"json_"}:
            raise RequestError(error_sentence(f"{what} has {name!r}, which verify does not take"))
        plain = isinstance(value, (str, int, float, bool))
        if not plain and not (isinstance(value, list) and _plain(value)):  # pyright: ignore[reportUnknownArgumentType]
            raise RequestError(error_sentence(f"{what}: {name} is a {type(value).__name__}"))
    for name in IN_FILES:
        if name in flags:
            # Flags name files, so the texts become files again.
            at = folder / name
            at.write_text(str(flags[name]), "utf-8")
            flags[name] = str(at) if name == "json_schema" else at
    # Prompts pass the same checks as those of a file; rows of another kind fail them.
    rows = [
        prompts.parse_prompt_row(
            json.dumps({"prompt": r.get("prompt"), "category": r.get("workload")}),
            i,
            Path("certificate"),
            "",
            None,
            None,
        )
        if isinstance(r, dict)
        else prompts.PromptRow("", "")
        for i, r in enumerate(old["asked"], 1)
    ]
    # `parse_prompt_row` reads no `raw`, so it is put back here.
    rows = [
        replace(row, raw=bool(r["raw"])) if isinstance(r, dict) and r.get("raw") else row
        for row, r in zip(rows, old["asked"])
    ]
    if not rows:
        raise RequestError("certificate: asked is empty: it must hold the prompts")
    samples = old.get("samples")
    # By type: a certificate may come from anybody.
    if samples is not None:
        if type(samples) is not int:
            raise RequestError("certificate: samples is no whole number")
        require_integer("samples", samples, 4, MOST)
    try:
        made = RequestFlags(**{k: v for k, v in flags.items() if k not in mine}, json_=json_)
        steered = SteeringFlags(**{k: v for k, v in flags.items() if k in mine})
    # Values of the wrong type reach the range checks of the flags.
    except (TypeError, AttributeError) as error:
        raise RequestError(error_sentence(f"{what} cannot be read: {error}")) from None
    return VerifyRequest(made, rows, samples, steered)


def _plain(values: Iterable[object]) -> bool:
    return all(isinstance(x, (str, int)) for x in values)


# How it reads

DRIFT = "{:60}  {:>6}  {:>6}  {:>9}  {:>9}  {:>11}"
LINE = "{:60}  {:8}  {:>6}  {:>7}  {}"


def comparison_line(lm: api.LoadedModel, row: prompts.PromptRow, c: GreedyComparison) -> str:
    """The line of one prompt's comparison.

    Args:
        lm: The loaded model, whose tokenizer spells tokens.
        row: The prompt.
        c: What was found.

    Returns:
        The line.
    """
    if c.equal:
        where = ""
    else:
        where = f"token {c.at}: {_show(lm, c.plain)} / {_show(lm, c.method)}"
    return LINE.format(
        table_cell_text(row.key, 60).plain,
        c.verdict,
        c.tokens,
        "" if c.gap is None else f"{c.gap:.1e}",
        where,
    ).rstrip()


def _show(lm: api.LoadedModel, token: int | None) -> str:
    if token is None:
        return "end"
    return repr(lm.checkpoint.text.decode([token]))


def _drift(row: prompts.PromptRow, d: CacheDrift) -> str:
    return DRIFT.format(
        table_cell_text(row.key, 60).plain,
        d.rows,
        d.passes,
        f"{d.nats:.2e}",
        f"{d.most:.2e}",
        f"{d.moved:.1%}",
    )


def _enumerated(found: LawEnumeration) -> list[str]:
    """What an enumeration came to."""
    if not found.laws:
        return [f"not enumerated on toys: {found.unknown}"]
    lines = [
        f"enumerated on {found.laws} random toy laws: all {found.ways} ways for draws to fall; total variation at most "
        f"{found.apart:.1e}",
        f"{found.laws} laws enumerated, {found.exercised.tokens}",
    ]
    # Some laws have too many ways for draws to fall.
    if found.unknown:
        lines.append(f"not all of them: {found.unknown}")
    if found.missing:
        lines.append(f"this shows little: {found.why}")
    return lines


def _findings(findings: SamplingFindings) -> list[str]:
    cost = {side: f"{c['passes']:.0f} passes" for side, c in findings.cost.items()}
    return [
        f"{findings.tokens} tokens of {findings.texts} texts against the laws behind them",
        *(f"  {t.name:11} p = {t.p:.2g}  {t.where}".rstrip() for t in findings.tests),
        f"would have caught, nine times of ten: {findings.power}",
        f"cost: {cost['method']} of the method, {cost['plain']} beside it",
    ]


def _distances(distances: LawDistances) -> list[str]:
    how = {
        "laws": "from the laws of both",
        "samples": "from what was drawn: at least so much",
        "greedy texts": "greedy: the share of tokens that are not plain decoding's choice",
    }[distances.by]
    return [
        f"{distances.tokens} tokens of {distances.texts} texts, {how}; 95 % intervals",
        FAR.format("tokens", "KL, nats a token", "total variation", "less likely by, nats"),
        *(
            _apart(f"{p.first}-{p.last}" if p.first < p.last else str(p.first), p)
            for p in distances.positions
        ),
        _apart("all", distances.all),
    ]


FAR = "{:>8}  {:>26}  {:>24}  {:>26}"


def _apart(name: str, p: LawDistance) -> str:
    if p.kl is None or p.kl_interval is None:
        kl = "-"
    else:
        kl = f"{p.kl:.4f} ({_between(p.kl_interval)})"
    return FAR.format(
        name,
        kl,
        f"{p.tv:.4f} ({_between(p.tv_interval)})",
        f"{p.surprise:.3f} ({_between(p.surprise_interval)})",
    )


def _between(interval: Sequence[float]) -> str:
    return f"{interval[0]:.3f} to {interval[1]:.3f}"


def _on_toys(audit: ToyAudit) -> list[str]:
    """What a search's answers on toys came to."""
    if audit.unknown:
        return [f"not run on toys: {audit.unknown}"]
    return [
        f"{audit.laws} random toy laws under sampling rules: {audit.tokens} log-probabilities computed again, "
        f"at most {audit.apart:.1e} nats off"
    ]


def _audited(audit: SearchAudit) -> list[str]:
    return [
        f"{audit.answers} answers: {audit.scored} scores and {audit.logprobs} log-probabilities computed again, "
        f"at most {audit.apart:.1e} nats off",
        f"ledger: {audit.booked['positions']} positions booked, {audit.ran['positions']} fed; {audit.ran['passes']} passes ran",
    ]


def _held(kept: ConstraintFindings) -> list[str]:
    known = f"{kept.valid} valid, {kept.invalid} not" + (
        f", {kept.unjudged} that nothing else here can judge" if kept.unjudged else ""
    )
    return [
        f"constraint: {kept.finished} of {kept.answers} answers came to an end: {known}; {kept.rows} masked laws computed "
        f"again, at most {kept.apart:.1e} nats off"
    ]
