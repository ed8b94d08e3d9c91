"""Polydec decodes language models by any published method: every method composes, every promise can be checked."""
from polydec import registry
from polydec.api import LM, Choice, Completion, Engine, Piece, Ticket, generate, load, stream
from polydec.core.decode import Speculative
from polydec.core.request import Request, Result
from polydec.core.rng import Rng
from polydec.core.trace import replay
from polydec.core.types import Draft, Exactness
from polydec.shapers.sampling import Sampling, build_shapers
from polydec.targets.shaped import Shaped

__version__ = "0.1.0"
__all__ = ["LM", "Choice", "Completion", "Draft", "Engine", "Exactness", "Piece", "Request", "Result", "Rng", "Sampling",
           "Shaped", "Speculative", "Ticket", "build_shapers", "generate", "load", "registry", "replay", "stream"]
