"""The parts of the demonstration: its data, and what it draws."""

import io

import numpy as np
import pytest

from ferrule.demo import digits
from ferrule.demo.terminal import Progress, bar, curve, pictures


class Terminal(io.StringIO):
    """An output that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_data_is_split_by_digit() -> None:
    data = digits.load(np.random.default_rng(0))
    assert data.train_images.shape == (1438, 8, 8)
    assert data.test_images.shape == (359, 8, 8)
    assert data.train_images.min() == 0
    assert data.train_images.max() == 16
    held_out = np.bincount(data.test_labels) / np.bincount(
        np.concatenate([data.train_labels, data.test_labels])
    )
    assert len(held_out) == 10
    assert np.abs(held_out - 0.2).max() < 0.005


def test_the_split_follows_the_seed() -> None:
    first, again, other = (digits.load(np.random.default_rng(seed)) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.test_images, again.test_images)
    assert (first.test_images != other.test_images).any()


def test_no_image_is_in_both_parts() -> None:
    data = digits.load(np.random.default_rng(0))
    total = data.train_images.sum() + data.test_images.sum()
    with np.load(digits.DATA_FILE) as archive:
        assert total == archive["images"].sum()


def test_scaled_images_are_centred_and_have_a_channel() -> None:
    images = digits.load(np.random.default_rng(0)).train_images
    found = digits.scaled(images)
    assert found.shape == (1438, 1, 8, 8)
    assert found.dtype == np.float32
    assert abs(found.mean()) < 0.05
    assert abs(found.std() - 1) < 0.05


def test_half_of_the_images_are_moved_by_a_pixel() -> None:
    image = np.zeros((8, 8), np.float32)
    image[4, 4] = 1
    moved = digits.shifted(np.repeat(image[None], 2000, axis=0), np.random.default_rng(0))
    places = [tuple(np.argwhere(found)[0] - 4) for found in moved]
    assert set(places) == {(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)}
    # Half stay, and a ninth of the others is moved by nothing.
    assert abs(places.count((0, 0)) / 2000 - (1 / 2 + 1 / 18)) < 0.04


def test_examples_show_mistakes_first_of_all() -> None:
    right = np.ones(360, bool)
    assert digits._examples(right).tolist() == [0, 119, 239, 359]
    right[[5, 6, 7]] = False
    assert digits._examples(right).tolist() == [0, 359, 5, 6]


def test_a_curve_falls_from_the_top_left() -> None:
    lines = curve([10.0, 1.0, 0.1], width=64, height=3)
    assert lines == ["  10.0000 |*", "   1.0000 | *", "   0.1000 |  *"]


def test_a_curve_of_equal_values_is_flat() -> None:
    assert curve([2.0] * 100, width=5, height=2) == ["   2.0000 |", "   2.0000 |*****"]


def test_a_curve_survives_zero() -> None:
    assert len(curve([0.0, 1.0], height=4)) == 4


def test_pictures_stand_side_by_side() -> None:
    images = np.array([[[0, 16], [16, 0]], [[8, 8], [0, 0]]])
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    assert pictures(images, ["1", "2"], out, 16.0) == ["  ██ | ▒▒▒▒", "██   |", " 1   |  2"]


def test_pictures_are_plain_where_they_must_be() -> None:
    images = np.array([[[0, 16], [16, 8]]])
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    assert pictures(images, ["1"], out, 16.0) == ["  @@", "@@++", " 1"]


def test_progress_rewrites_its_line_on_a_terminal() -> None:
    out = Terminal()
    progress = Progress(out, every=10)
    progress.update("one, long")
    progress.update("two")
    progress.close()
    assert out.getvalue() == "\rone, long\rtwo      \n"


def test_progress_writes_some_lines_elsewhere() -> None:
    out = io.StringIO()
    progress = Progress(out, every=2)
    for text in ("one", "two", "three", "four"):
        progress.update(text)
    progress.close()
    assert out.getvalue() == "two\nfour\n"


@pytest.mark.parametrize(("done", "text"), [(0, "[----]"), (1, "[##--]"), (2, "[####]")])
def test_bar(done: int, text: str) -> None:
    assert bar(done, 2, width=4) == text
