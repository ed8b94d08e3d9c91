"""Training models of pictures: what is read, how it is quantised, what comes out."""

import io
import json
import zipfile

import numpy as np
import pytest
import torch

import polydec
from picture_models import CLASSES, SIDE, draw_pictures, save_pictures, trained_model
from polydec.base.errors import FileError, RequestError
from polydec.lab.train import picture_data
from polydec.lab.train.network import LlamaShape, TrainableLlama
from polydec.lab.train.picture_data import (
    LEARNED,
    learn_tiles,
    read_pictures,
    resize_pictures,
)
from polydec.lab.train.pictures import (
    make_picture_rows,
    masked_picture_loss,
    mean_picture_loss,
    train_pictures,
    view_of_target,
)
from polydec.lab.train.specs.pictures import PicturesSpec
from polydec.models.text.tile_search import cut_patches, nearest_tiles


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return trained_model(tmp_path_factory.mktemp("pictures"), steps=60, drop=0.2)


def test_the_loss_falls_and_the_directory_draws(trained):
    out, result = trained
    assert result["curve"][-1][1] < 0.8 * result["curve"][0][1]
    assert result["tokens_of_picture"] == SIDE * SIDE and result["held_out"] > 0
    assert result["held_out_nats"] < np.log(result["tiles"])
    lm = polydec.load(str(out), draft=None, threads=1)
    made = polydec.generate(lm, "block", method="plain")
    assert made.picture.pixels.shape == (SIDE, SIDE, 1)


def test_a_masked_model_fills_canvases(tmp_path):
    out, _ = trained_model(tmp_path, masked=True)
    lm = polydec.load(str(out), draft=None, threads=1)
    assert lm.checkpoint.view.dropped is None
    made = polydec.generate(lm, "down", method="maskgit", options={"steps": 3})
    assert len(made.token_ids) == SIDE * SIDE
    assert max(made.token_ids) < len(lm.checkpoint.view.tiles)
    guided = polydec.generate(lm, "down", method="maskgit", options={"guidance": 2.0})
    assert guided.picture.pixels.shape == (SIDE, SIDE, 1)


def test_a_token_of_its_own_stands_behind_every_row(tmp_path):
    out, result = trained_model(tmp_path, row_ends=True)
    lm = polydec.load(str(out), draft=None, threads=1)
    view = lm.checkpoint.view
    assert view.row_end == len(view.tiles) and result["tokens_of_picture"] == SIDE * (SIDE + 1)
    ends = [at % (SIDE + 1) == SIDE for at in range(SIDE * (SIDE + 1))]
    for fields in (
        {"method": "plain"},
        {"method": "speculative-jacobi", "options": {"window": 3}},
        {"method": "plain", "steer": "cfg", "steer_options": {"scale": 2.0}},
        {"method": "plain", "sampling": polydec.Sampling(temperature=0.0)},
    ):
        made = polydec.generate(lm, "across", **fields)
        assert [x == view.row_end for x in made.token_ids] == ends
        assert made.picture.pixels.shape == (SIDE, SIDE, 1)
    fewer = polydec.generate(lm, "across", method="speculative-jacobi", options={"window": 1})
    assert fewer.metrics["target_passes"] <= SIDE * SIDE + 1
    # The class is read as one of the same model without marks would be.
    assert lm.encode("across")[-1] == view.row_end + 1
    with pytest.raises(RequestError, match=r"low_of is .*: it must be a model that draws square"):
        view_of_target(str(out), "low_of")
    for fields in ({"masked": True}, {"low_of": "zoo:digits"}):
        with pytest.raises(RequestError, match=r"^row_ends is set: .* so leave out "):
            PicturesSpec("x", "y", row_ends=True, **fields)


def test_patches_are_tokens_of_several_pixels(tmp_path):
    out, result = trained_model(tmp_path, patch=2, colours=12)
    lm = polydec.load(str(out), draft=None, threads=1)
    made = polydec.generate(lm, "across", method="plain")
    assert made.picture.pixels.shape == (2 * SIDE, 2 * SIDE, 1)
    assert lm.checkpoint.view.tiles.shape[1:] == (2, 2, 1) and result["tiles"] <= 12


def test_an_interrupted_training_makes_the_same_weights(trained, tmp_path):
    again, result = trained_model(tmp_path, steps=60, drop=0.2)
    assert result["held_out_nats"] == trained[1]["held_out_nats"]
    one, other = ((f / "model.safetensors").read_bytes() for f in (trained[0], again))
    assert one == other


def test_pictures_in_colour_keep_their_colours(tmp_path):
    pixels, labels = draw_pictures()
    red = np.stack([pixels, 0 * pixels, 0 * pixels], -1)
    np.savez(tmp_path / "red.npz", images=red, names=[CLASSES[x] for x in labels])
    out = tmp_path / "model"
    spec = PicturesSpec(
        str(out), str(tmp_path), side=SIDE, colours=3, steps=1, rows=2, width=32, layers=1
    )
    train_pictures(spec)
    lm = polydec.load(str(out), draft=None, threads=1)
    assert lm.checkpoint.view.classes == tuple(sorted(CLASSES, key=lambda c: (len(c), c)))
    drawn = polydec.generate(lm, "down", method="plain").picture.pixels
    assert drawn.shape == (SIDE, SIDE, 3) and not drawn[..., 1:].any()


def test_image_files_lie_in_a_folder_for_each_class(tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels, labels = draw_pictures(30)
    for at, (picture, label) in enumerate(zip(pixels, labels)):
        (tmp_path / CLASSES[label]).mkdir(exist_ok=True)
        image.fromarray(picture).save(tmp_path / CLASSES[label] / f"{at}.png")
    read = read_pictures(str(tmp_path), 8)
    assert set(read.classes) == set(CLASSES) and read.pixels.shape == (30, 8, 8, 3)
    names = [read.classes[label] for label in read.labels]
    first = names.index("down")
    assert (read.pixels[first, ..., 0] == pixels[1]).all()


def test_pictures_are_averaged_down():
    pixels = np.arange(16, dtype=np.uint8).reshape(1, 4, 4, 1) * 8
    small = resize_pictures(pixels, 2)
    assert small[0, 0, 0, 0] == round(np.mean([0, 8, 32, 40]))
    assert resize_pictures(pixels, 4) is pixels


def test_patches_are_cut_row_by_row():
    pixels = np.arange(36, dtype=np.uint8).reshape(1, 6, 6, 1)
    cut = cut_patches(pixels, 2)
    assert cut.shape == (1, 9, 4)
    assert cut[0, 0].tolist() == [0, 1, 6, 7] and cut[0, 4].tolist() == [14, 15, 20, 21]


def test_tiles_are_the_means_of_what_lies_nearest():
    patches = torch.tensor([[0.0], [2.0], [100.0], [104.0], [250.0]])
    tiles = learn_tiles(patches, 3)
    assert tiles.flatten().tolist() == [1, 102, 250]
    assert nearest_tiles(patches, tiles).tolist() == [0, 0, 1, 1, 2]
    assert len(learn_tiles(torch.zeros(9, 4), 5)) == 1


def test_seven_of_ten_are_learned_from(tmp_path):
    given = read_pictures(str(save_pictures(tmp_path / "x.npz", 90)), 8)
    learned = given.is_learned()
    assert abs(learned.mean() - LEARNED / 10) < 0.2
    assert (learned == given.is_learned()).all()
    rows = make_picture_rows(given, PicturesSpec("", "", side=4, patch=2, colours=5))
    assert len(rows.learned) == learned.sum() and len(rows.held) == (~learned).sum()
    assert (rows.learned[:, 0] >= rows.first_class).all()
    assert (rows.learned[:, 1:] < rows.first_class).all()


class Recording(TrainableLlama):
    def forward(self, token_BT, *args):
        self.seen = token_BT
        return super().forward(token_BT, *args)


def test_the_class_is_never_masked_and_shares_follow_the_cosine():
    network = Recording(LlamaShape(8, 32, 1, 1, 1, 32, 65))
    row = torch.cat([torch.full((64, 1), 5), torch.randint(0, 4, (64, 64))], 1)
    loss = masked_picture_loss(network, 7, row, torch.Generator().manual_seed(1))
    assert torch.isfinite(loss) and (network.seen[:, 0] == 5).all()
    hidden = network.seen[:, 1:] == 7
    assert (network.seen[:, 1:][~hidden] == row[:, 1:][~hidden]).all()
    shares = hidden.float().mean(1)
    # The mean of cos(pi r / 2) over r is 2 / pi.
    assert shares.min() > 0 and abs(float(shares.mean()) - 2 / np.pi) < 0.02


def packed(path, **arrays):
    np.savez(path, **arrays)
    return str(path)


GREY = np.zeros((3, 4, 4), np.uint8)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"labels": [1]}, "no `images`"),
        ({"images": GREY}, "neither `labels` nor `names`"),
        ({"images": GREY, "labels": [1, 2]}, "3 pictures and 2 classes"),
        ({"images": GREY.astype(float), "labels": [1, 2, 3]}, "must be uint8"),
        ({"images": GREY[0], "labels": [1]}, "must be uint8"),
        ({"images": GREY[:0], "labels": []}, "0 pictures"),
        ({"images": GREY, "names": ["a b", "c", "d"]}, "one word without spaces"),
    ],
)
def test_wrong_arrays_are_refused(arrays, says, tmp_path):
    with pytest.raises(FileError, match=says):
        read_pictures(packed(tmp_path / "x.npz", **arrays), 4)


def test_what_is_no_archive_is_refused(tmp_path):
    (tmp_path / "x.npz").write_bytes(b"PK\3\4 no archive")
    with pytest.raises(FileError):
        read_pictures(str(tmp_path / "x.npz"), 4)
    with pytest.raises(FileError, match="no such file"):
        read_pictures(str(tmp_path / "other"), 4)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match=r"neither a \.npz nor folders"):
        read_pictures(str(tmp_path / "empty"), 4)


def bomb(path, shape, name="images", version=(1, 0)):
    """An archive of a few bytes, an array of which says that it is enormous."""
    header = str({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    size = len(header).to_bytes(2 if version == (1, 0) else 4, "little")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", b"\x93NUMPY" + bytes(version) + size + header)
        other = io.BytesIO()
        np.save(other, GREY if name == "labels" else np.zeros(3, int))
        archive.writestr("images.npy" if name == "labels" else "labels.npy", other.getvalue())
    return str(path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"shape": (1 << 20, 1 << 10, 1 << 10)}, "bytes are read"),
        ({"shape": (1 << 40,), "name": "labels"}, "bytes are read"),
        ({"shape": (3, 4, 4), "version": (2, 0)}, "no plain array"),
    ],
)
def test_an_array_is_bounded_before_it_is_unpacked(fields, says, tmp_path, monkeypatch):
    path = bomb(tmp_path / "x.npz", **fields)
    unpacked = np.lib.format.read_array

    def watched(member, **options):
        assert fields.get("name") == "labels" and "images" in member.name, "it was unpacked"
        return unpacked(member, **options)

    monkeypatch.setattr(np.lib.format, "read_array", watched)
    with pytest.raises(FileError, match=says):
        read_pictures(path, 4)


def test_a_damaged_archive_is_one_sentence(tmp_path):
    path = tmp_path / "x.npz"
    pixels = np.random.default_rng(0).integers(0, 256, (50, 8, 8)).astype(np.uint8)
    np.savez_compressed(path, images=pixels, labels=np.arange(50))
    content = bytearray(path.read_bytes())
    content[300:400] = bytes(100)
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"x\.npz.*damaged"):
        read_pictures(str(path), 4)


def test_pictures_that_grow_beyond_what_is_read_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(picture_data, "MOST_VALUES", 200)
    path = packed(tmp_path / "x.npz", images=GREY, labels=[1, 2, 3])
    assert len(read_pictures(path, 8).pixels) == 3
    with pytest.raises(FileError, match="of 9 x 9 pixels there may be at most 2"):
        read_pictures(path, 9)


def write_image(path, picture, **options):
    path.parent.mkdir(exist_ok=True)
    picture.save(path, **options)
    return str(path.parent.parent)


def test_an_image_of_another_form_is_not_decoded(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = write_image(tmp_path / "a" / "x.png", image.new("L", (4, 4)), format="TIFF")
    with pytest.raises(FileError, match=r"x\.png"):
        read_pictures(folder, 4)


def test_an_image_that_says_it_is_enormous_is_one_sentence(tmp_path):
    image = pytest.importorskip("PIL.Image")
    folder = write_image(tmp_path / "a" / "x.bmp", image.new("L", (4, 4)))
    content = bytearray((tmp_path / "a" / "x.bmp").read_bytes())
    content[18:26] = (30000).to_bytes(4, "little") * 2
    (tmp_path / "a" / "x.bmp").write_bytes(content)
    with pytest.raises(FileError, match=r"x\.bmp"):
        read_pictures(folder, 4)


def test_every_picture_weighs_alike_in_what_is_measured():
    rows = torch.arange(130)[:, None]
    sizes = list[int]()

    def loss_of(part):
        sizes.append(len(part))
        return part.float().mean()

    assert mean_picture_loss(rows, loss_of) == pytest.approx(64.5)
    assert sizes == [64, 64, 2]


def test_a_photo_that_says_it_lies_on_its_side_is_turned(tmp_path):
    image = pytest.importorskip("PIL.Image")
    lying = image.new("L", (8, 8))
    lying.paste(255, (0, 0, 8, 4))
    exif = image.Exif()
    exif[0x0112] = 6
    folder = write_image(tmp_path / "a" / "x.png", lying, exif=exif)
    # What was above is on the right.
    assert read_pictures(folder, 2).pixels[0, ..., 0].tolist() == [[0, 255], [0, 255]]


def test_pickled_objects_are_not_read(tmp_path):
    path = packed(tmp_path / "x.npz", images=GREY, labels=np.array([{}, {}, {}], object))
    with pytest.raises(FileError):
        read_pictures(path, 4)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"classes": ("a", "b")}, "classes has 2 words"),
        ({"classes": ("a", "b", "b")}, "classes has 3 words"),
        ({"classes": ("a", "b", "p1")}, "tokens of pictures have that name"),
        ({"classes": ("a", "b", "any")}, "tokens of pictures have that name"),
    ],
)
def test_wrong_classes_are_refused(options, says, tmp_path):
    images = str(save_pictures(tmp_path / "x.npz"))
    out = tmp_path / "model"
    with pytest.raises((FileError, RequestError), match=says):
        train_pictures(PicturesSpec(str(out), images, **options))
    assert not out.exists()


@pytest.mark.parametrize("options", [{"width": 40}, {"side": 65}, {"colours": 1}, {"drop": 2.0}])
def test_options_out_of_range_are_refused(options):
    with pytest.raises(RequestError, match=next(iter(options))):
        PicturesSpec("out", "images", **options)


def test_few_pictures_or_one_colour_are_refused(tmp_path):
    one = packed(tmp_path / "one.npz", images=GREY[:1], labels=[1])
    with pytest.raises(RequestError, match="seven are learned from"):
        train_pictures(PicturesSpec(str(tmp_path / "m"), one, side=4))
    pixels = np.zeros((40, 4, 4), np.uint8)
    pixels[:, 0, 0] = np.arange(40)
    spec = PicturesSpec(
        str(tmp_path / "m"), packed(tmp_path / "b.npz", images=0 * pixels, labels=[0] * 40), side=4
    )
    with pytest.raises(RequestError):
        train_pictures(spec)


def test_the_run_is_kept(trained):
    said = json.loads((trained[0] / "training.json").read_text())
    assert said["parameters"] == trained[1]["parameters"]
