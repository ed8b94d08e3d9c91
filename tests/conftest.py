"""One thread for torch: toys are tiny, and threads only wait for each other."""
import torch

torch.set_num_threads(1)
