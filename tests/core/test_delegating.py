"""The base of sessions around other ones knows every verb of a session but those that move a wrapper's own state."""

import asyncio
import inspect

import pytest

from polydec.base.errors import RequestError
from polydec.core.canvas_law import Denoiser
from polydec.core.delegating import DelegatingDenoiser, DelegatingSession, LawsOnlySession
from polydec.core.protocols import Session
from polydec.core.types import Draft, ScoreRequest

OWN = {"score_draft", "commit_tokens", "keep_nodes", "rewind_tokens", "fork"}


def members(kind: type) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def test_a_member_of_the_protocol_is_passed_on_or_every_wrappers_own():
    assert members(DelegatingSession) == members(Session) - OWN


class Recorder:
    """Answers every verb with its name and what it was given."""

    peers = 3

    def __getattr__(self, name):
        return lambda *given: (name, given)


class Around(DelegatingSession):
    def __init__(self):
        self._inner = Recorder()


DRAFT = Draft.chain_draft(0)
GIVEN = {
    "evict_cache": (),
    "score_states": ("hidden",),
    "normed_states": ("hidden",),
    "embed_tokens": ((1, 2),),
    "text_vectors": (),
    "text_grids": (),
    "read_slots": ("vectors", (2, 3), True),
    "layer_memory": (1,),
    "bend_scores": (DRAFT, "scores"),
    "open_part": ((0,), frozenset({1}), 2),
    "close": (),
}


@pytest.mark.parametrize("name", GIVEN)
def test_a_verb_reaches_the_inner_session_as_it_was_given(name):
    session, heard = Around(), []
    session._inner = type("Inner", (), {name: lambda _, *given: heard.append(given) or "answer"})()
    got = getattr(session, name)(*GIVEN[name])
    assert heard == [GIVEN[name]]
    returns = inspect.signature(getattr(Session, name)).return_annotation
    assert got == (None if returns == "None" else "answer")


def test_peers_and_a_prompts_pass_are_the_inner_sessions():
    async def prefilled(want):
        return "scores", want

    session = Around()
    session._inner.prefill_prompt = prefilled
    assert session.peers == 3
    assert asyncio.run(session.prefill_prompt(ScoreRequest())) == ("scores", ScoreRequest())


class Unparted(Around):
    _no_parts = "layers cannot run alone here"


def test_a_session_without_parts_says_why():
    with pytest.raises(RequestError, match="layers cannot run alone here"):
        Unparted().open_part(range(1))


class Shut(LawsOnlySession):
    def __init__(self):
        self._inner = Recorder()

    def _refusal(self, what):
        return ValueError(f"{what}: not here")


@pytest.mark.parametrize(
    "name, what",
    [
        ("score_states", "states"),
        ("normed_states", "states"),
        ("embed_tokens", "embeddings"),
        ("text_vectors", "vectors"),
        ("text_grids", "vectors"),
        ("read_slots", "slots"),
        ("layer_memory", "keys"),
        ("open_part", "layers"),
    ],
)
def test_a_closed_session_says_why_what_lies_below_its_laws_cannot_be_read(name, what):
    with pytest.raises(ValueError, match=f"{what}: not here"):
        getattr(Shut(), name)(*GIVEN[name])
    assert Shut().peers == 3, "all else is passed on"
    with pytest.raises(NotImplementedError):  # who closes a session has to say why
        LawsOnlySession()._refusal(what)


def test_a_member_of_a_denoiser_is_passed_on_or_every_wrappers_own():
    values = {"family", "layers"}
    assert members(DelegatingDenoiser) - values == members(Denoiser) - {"open_canvas"}


def test_what_a_denoiser_is_asked_reaches_the_inner_one_as_it_was_given():
    wrapper = DelegatingDenoiser()
    inner = wrapper.denoiser = Recorder()
    inner.vocab, inner.block, inner.boundary, inner.context = "words", 4, 7, 16
    assert (wrapper.vocab, wrapper.block, wrapper.boundary, wrapper.context) == ("words", 4, 7, 16)
    inner.allowed_canvases, inner.gap_token = "some", 5
    assert (wrapper.allowed_canvases, wrapper.gap_token) == ("some", 5)
    assert wrapper.embed_canvas((1, None)) == ("embed_canvas", ((1, None),))
    assert wrapper.laws_of_states("states", (0, 2)) == ("laws_of_states", ("states", (0, 2)))
