"""One thread for torch: toys are tiny, and threads only wait for each other. One tree of commands: it is always the same."""
from functools import cache

import torch
import typer.main

torch.set_num_threads(1)
typer.main.get_command = cache(typer.main.get_command)          # 50 ms for each call of the command line
