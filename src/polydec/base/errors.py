"""What Polydec refuses: one sentence each, of a kind that a caller can tell from the others and from a fault of the program."""

from __future__ import annotations


class PolydecError(ValueError):
    """Something that Polydec refuses, said in one sentence. Any other exception is a fault of the
    program.
    """


class RequestError(PolydecError):
    """A request, an option or a setting is not legal, or does not go with the model."""


class MissingError(PolydecError):
    """What is asked for needs something that is not here: a draft, something trained, a kernel, a
    device, a package.
    """


class FileError(PolydecError):
    """A file is not there, is damaged, or is not of the kind or for the model that was asked for."""


class UnwritableError(FileError, OSError):
    """A file cannot be written: the disk is full, or the folder is not ours. `strerror` is the
    reason alone.
    """
