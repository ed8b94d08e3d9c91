"""One thread for torch: toys are tiny, and threads only wait for each other. One tree of commands: it is always the same."""

from functools import cache

import pytest
import torch
import typer.main

torch.set_num_threads(1)
typer.main.get_command = cache(typer.main.get_command)  # 50 ms for each call of the command line


@pytest.fixture(autouse=True, scope="session")
def costs_are_measured_in_no_time():
    """What passes cost is measured for eight seconds where nobody asked for it, and no text depends on it."""
    from polydec.request import profile

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(profile, "QUICK", 0.05)
        yield
