"""What tokens draw, and what a checkpoint may say of it."""

from io import BytesIO

import numpy as np
import pytest
import torch
from PIL import Image

from polydec.base.errors import FileError, PolydecError, RequestError
from polydec.models.formats.picture_config import FIELD, TILES
from polydec.models.text.picture_view import BLANK, PictureView, read_picture_view

STATED = {"height": 2, "width": 3, "classes": ["seven", "two"], "dropped": "any"}


def tiles(count=4, side=2, values=1):
    return torch.arange(count * side * side * values, dtype=torch.uint8).view(
        count, side, side, values
    )


def view_of(stated=STATED, drawn=None):
    drawn = tiles() if drawn is None else drawn
    return read_picture_view({FIELD: stated}, {TILES: drawn})


@pytest.mark.parametrize("values", [1, 3])
def test_tiles_stand_row_by_row(values):
    drawn = tiles(values=values)
    tokens = (3, 0, 1, 2, 2, 3)
    picture = view_of(drawn=drawn).draw_tokens(tokens)
    assert picture.pixels.shape == (4, 6, values)
    for at, token in enumerate(tokens):
        y, x = divmod(at, 3)
        tile = picture.pixels[2 * y : 2 * y + 2, 2 * x : 2 * x + 2]
        assert (tile == drawn[token].numpy()).all()


@pytest.mark.parametrize("values", [1, 3])
def test_a_file_holds_the_pixels(values):
    picture = view_of(drawn=tiles(values=values)).draw_tokens((3, 0, 1, 2, 2, 3))
    with Image.open(BytesIO(picture.png_file)) as read:
        assert read.format == "PNG" and read.mode == {1: "L", 3: "RGB"}[values]
        assert (np.asarray(read).reshape(picture.pixels.shape) == picture.pixels).all()


def test_what_is_not_there_is_grey():
    picture = view_of().draw_tokens((1, 9))
    assert (picture.pixels[:2, :2] == tiles()[1].numpy()).all()
    assert (picture.pixels[:, 2:] == BLANK).all()
    assert (picture.pixels[2:] == BLANK).all()


def test_more_tokens_than_there_are_places_are_left_out():
    view = view_of()
    assert (view.draw_tokens((1,) * 9).pixels == view.draw_tokens((1,) * 6).pixels).all()


def test_what_stands_behind_a_row_draws_nothing():
    stated = {**STATED, "row_end": 4}
    view = read_picture_view({FIELD: stated, "vocab_size": 9}, {TILES: tiles()})
    assert view.token_count == 8 and view_of().token_count == 6
    marked = view.draw_tokens((3, 0, 1, 4, 2, 2, 3, 4))
    assert (marked.pixels == view_of().draw_tokens((3, 0, 1, 2, 2, 3)).pixels).all()
    begun = view.draw_tokens((3, 0, 1, 4, 2))
    assert (begun.pixels == view_of().draw_tokens((3, 0, 1, 2)).pixels).all()


@pytest.mark.parametrize("token", [3, 9])
def test_a_row_ends_with_a_token_that_draws_nothing(token):
    with pytest.raises(FileError, match=f"row_end is {token}: it must be a token that draws"):
        read_picture_view({FIELD: {**STATED, "row_end": token}, "vocab_size": 9}, {TILES: tiles()})
    patched = {**STATED, "width": 2, "patch": 2, "row_end": 4}
    with pytest.raises(FileError, match="row_end is 4 beside patch"):
        read_picture_view({FIELD: patched, "vocab_size": 9}, {TILES: tiles()})


def test_a_picture_in_characters_goes_from_dark_to_bright():
    drawn = torch.tensor([0, 255], dtype=torch.uint8).view(2, 1, 1, 1)
    text = view_of(drawn=drawn).draw_tokens((0, 1, 0, 1, 1, 1)).terminal_text
    assert text == "  @@  \n@@@@@@"


def test_a_model_of_texts_has_no_view():
    assert read_picture_view({"model_type": "llama"}, {}) is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"height": 0}, "height"),
        ({"height": 513}, "height"),
        ({"width": "3"}, "width"),
        ({"classes": []}, "classes"),
        ({"classes": ["two words"]}, "classes"),
        ({"classes": ["a", "a"]}, "twice"),
        ({"dropped": "two"}, "twice"),
        ({"classes": ["x" * 65]}, "classes"),
    ],
)
def test_a_wrong_field_is_refused(change, says):
    with pytest.raises(PolydecError, match=says):
        view_of({**STATED, **change})


@pytest.mark.parametrize(
    ("drawn", "says"),
    [
        (torch.zeros(4, 2, 2, dtype=torch.uint8), "shape"),
        (torch.zeros(4, 2, 3, 1, dtype=torch.uint8), "shape"),
        (torch.zeros(4, 2, 2, 2, dtype=torch.uint8), "shape"),
        (torch.zeros(0, 2, 2, 1, dtype=torch.uint8), "shape"),
        (torch.zeros(4, 2, 2, 1), "whole numbers"),
        (torch.zeros(1, 1025, 1025, 1, dtype=torch.uint8), "pixels a side"),
    ],
)
def test_tiles_of_another_form_are_refused(drawn, says):
    with pytest.raises(FileError, match=says):
        view_of(drawn=drawn)


def test_a_size_is_refused_before_a_tile_is_read():
    class Headers(dict):
        def tensor_shape(self, name):
            return (1, 512, 512, 1)

        def __getitem__(self, name):
            raise AssertionError("it was read")

    with pytest.raises(FileError, match="pixels a side"):
        read_picture_view({FIELD: {**STATED, "width": 512}}, Headers({TILES: None}))


def test_what_is_no_object_is_refused():
    with pytest.raises(FileError, match="no object"):
        view_of([1, 2])


def test_a_prompt_names_a_class():
    view = view_of()
    for right in ("seven", " two ", "any", (1, 2)):
        view.check_class(right)
    with pytest.raises(
        RequestError, match="negative_prompt is 'cat': this model draws seven, two, any"
    ):
        view.check_class("cat", "negative_prompt")
    with pytest.raises(RequestError, match=r"prompt is 'sevn': did you mean seven\?$"):
        view.check_class("sevn")
    many = PictureView(1, 1, np.zeros((1, 1, 1, 1), np.uint8), tuple(map(str, range(40))))
    with pytest.raises(RequestError, match="10, 11, …"):
        many.check_class("cat")
