"""The compiled step is there where it can be."""

import importlib.util
import shutil

import pytest


def test_where_there_is_a_compiler_the_library_was_built():
    """Building is optional, so an error of the compiler shows nowhere else: all would run on torch, several times slower."""
    if shutil.which("g++") is None and shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    assert importlib.util.find_spec("polydec.models.native._step") is not None
