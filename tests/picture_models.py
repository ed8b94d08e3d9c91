"""Pictures that are drawn here, and small models that were hardly trained on them."""

import numpy as np
import torch

from polydec.lab.train.pictures import train_pictures
from polydec.lab.train.specs.pictures import PicturesSpec

SIDE = 4
CLASSES = ("across", "down", "block")


def draw_pictures(count=60, side=2 * SIDE, seed=0):
    """(pictures, uint8 [count, side, side]; labels): a bar across, a bar down, or a block, anywhere."""
    rng = np.random.default_rng(seed)
    pixels = np.zeros((count, side, side), np.uint8)
    labels = np.arange(count) % len(CLASSES)
    for at, label in enumerate(labels):
        y, x = rng.integers(0, side - 2, 2)
        high, wide = ((2, side), (side, 2), (3, 3))[label]
        y, x = (y, 0) if label == 0 else (0, x) if label == 1 else (y, x)
        pixels[at, y : y + high, x : x + wide] = rng.integers(150, 256)
    return pixels, labels


def save_pictures(path, count=60):
    pixels, labels = draw_pictures(count)
    np.savez(path, images=pixels, labels=labels)
    return path


def trained_model(folder, **options):
    """A directory with a small model of 4 x 4 tokens."""
    torch.set_num_threads(1)
    images = save_pictures(folder / "pictures.npz")
    out = folder / "model"
    settings = {"side": SIDE, "colours": 4, "steps": 4, "rows": 8, "width": 32, "layers": 1}
    spec = PicturesSpec(str(out), str(images), CLASSES, **{**settings, **options})
    return out, train_pictures(spec)
