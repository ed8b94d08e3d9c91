"""Whatever takes a name takes a path (`os.PathLike`) as well; what is neither is one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

import polydec
from polydec.base.errors import PolydecError, RequestError
from polydec.models.formats import zoo
from polydec.models.learned import artefacts
from polydec.models.sessions import checkpoint, sources
from polydec.models.text.tokenizer import Tokenizer

TINY = Path(zoo.zoo_model_path("zoo:tiny"))


@dataclass(frozen=True)
class Place:
    """A path of a user's own class."""

    path: Path

    def __fspath__(self):
        return str(self.path)


@pytest.mark.parametrize("kind", [Path, Place, str])
def test_a_model_and_what_goes_with_it(kind):
    draft = zoo.zoo_model_path("zoo:tiny-draft")
    lm = polydec.load(kind(TINY), draft=kind(draft), ngrams=None)
    assert lm.name == str(TINY) and lm.draft is not None and lm.draft.name == str(draft)
    reasoner, judge = (zoo.zoo_model_path(f"zoo:{name}") for name in ("reasoner", "reasoner-prm"))
    for trained in (kind(judge), [kind(judge)]):
        lm = polydec.load(kind(reasoner), draft=None, ngrams=None, trained=trained)
        assert lm.given == (str(judge),) and len(lm.artefacts) == 1


def test_what_reads_and_writes_files(tmp_path):
    assert checkpoint.load_bundle(TINY).name == str(TINY)
    source = sources.open_source(Place(TINY))
    sources.save_checkpoint(Place(tmp_path), source.config, source.weights, source.text)
    assert sources.open_source(Place(tmp_path)).fingerprint == source.fingerprint
    assert (
        Tokenizer.from_tokenizer_json(Place(tmp_path / "tokenizer.json")).size == source.text.size
    )
    assert artefacts.load_artefact(Place(Path(zoo.zoo_model_path("zoo:reasoner-prm")))) is not None


@pytest.mark.parametrize("wrong", [3, None, b"zoo:tiny", ["zoo:tiny"], 1.5, object()])
def test_what_is_no_name_is_one_sentence(wrong):
    with pytest.raises(RequestError, match="must be a text or a path") as error:
        polydec.load(wrong)
    assert len(str(error.value)) <= 300
    with pytest.raises(RequestError, match="must be a text or a path"):
        checkpoint.load_bundle(wrong)
    for field in ("draft", "ngrams"):
        if wrong is not None:
            with pytest.raises(RequestError, match=f"{field} is .*must be a text or a path"):
                polydec.load("zoo:tiny", **{field: wrong})
    with pytest.raises(PolydecError, match=r"trained|zoo:tiny"):
        polydec.load("zoo:tiny", trained=wrong)
