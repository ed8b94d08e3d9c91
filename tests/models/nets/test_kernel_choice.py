"""Two processes that load a model at the same time choose the same arithmetic."""

import pytest

from polydec.models.nets import linear

SHAPES = ((96, 64), (64, 96))


def test_a_choice_made_meanwhile_counts(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    usable = [k.name for k in linear.MEASURED if k.usable()]
    if len(usable) < 2:
        pytest.skip("this CPU has one kernel alone")
    first, second = usable[:2]

    def prefer(name):
        return lambda kernels, shapes: {k.name: [float(k.name != name)] for k in kernels}

    def choose():
        # What a process knows of its own choice is no concern of another one.
        linear.choose_linear_kernel.cache_clear()
        return linear.choose_linear_kernel(SHAPES, 1).name

    def while_another_chooses(kernels, shapes):
        monkeypatch.setattr(linear, "measure_kernels", prefer(second))
        assert choose() == second
        return prefer(first)(kernels, shapes)

    monkeypatch.setattr(linear, "measure_kernels", while_another_chooses)
    try:
        assert choose() == second
        monkeypatch.setattr(linear, "measure_kernels", prefer(first))
        assert choose() == second
    finally:
        linear.choose_linear_kernel.cache_clear()
