"""Pictures through graying: colours, orientation, spectra, and inputs without a κ."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import wellcond
from wellcond import photos
from wellcond.data.files import image_size, read_image
from wellcond.data.procedural import procedural
from wellcond.pictures import gray_picture, spectrum
from wellcond.strip import Curve, draw_spectra, draw_strip


def test_svd_multiplies_log_kappa_by_epsilon():
    grayed = gray_picture(procedural(2, size=96).image, method="svd", epsilon=0.6)
    expected = 0.6 * grayed.spectrum_before.log_kappa
    assert grayed.spectrum_after.log_kappa == pytest.approx(expected, abs=1e-3)
    assert (grayed.num_tokens, grayed.width) == (36, 768)


def test_spectrum_is_that_of_the_normalised_pixels():
    image = procedural(0, size=64).image
    pixels = (image / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]
    tokens = pixels.reshape(4, 16, 4, 16, 3).transpose(0, 2, 1, 3, 4).reshape(16, 768)
    sigma = np.linalg.svd(tokens, compute_uv=False)
    ours = gray_picture(image).spectrum_before
    assert np.allclose(ours.sigma, sigma, rtol=1e-5)
    assert ours.kappa == pytest.approx(sigma[0] / sigma[-1], rel=1e-3)


TOKENS = {
    "full rank": torch.arange(20.0)[:, None] * torch.eye(20, 30) + torch.ones(20, 30),
    "all zero": torch.zeros(4, 6),
    "rank one": torch.ones(4, 6),
}


@pytest.mark.parametrize("tokens", TOKENS.values(), ids=TOKENS.keys())
def test_spectrum_agrees_with_condition_number(tokens):
    ours, theirs = spectrum(tokens), wellcond.condition_number(tokens)
    assert ours.kappa == pytest.approx(float(theirs), rel=1e-3, nan_ok=True)
    assert ours.log_kappa == pytest.approx(float(theirs.log()), abs=1e-3, nan_ok=True)


@pytest.mark.parametrize("method", ["svd", "dct"])
def test_a_flat_picture_has_no_finite_kappa_and_stays_itself(method):
    image = np.full((64, 64, 3), 128, np.uint8)
    grayed = gray_picture(image, method=method, epsilon=0.5)
    assert not math.isfinite(grayed.spectrum_before.kappa)
    assert grayed.spectrum_before.floor_count > 0
    if method == "svd":
        assert np.abs(grayed.after.astype(int) - image).max() <= 1


def test_upright_by_exif(tmp_path):
    image = Image.fromarray(np.zeros((32, 48, 3), np.uint8))
    image.putpixel((0, 0), (255, 255, 255))
    exif = Image.Exif()
    exif[0x0112] = 6  # turn right
    image.save(tmp_path / "turned.png", exif=exif)
    assert image_size(tmp_path / "turned.png") == (32, 48)
    assert read_image(tmp_path / "turned.png").shape == (48, 32, 3)


@pytest.mark.parametrize("orientation", range(10))
def test_every_orientation_is_that_of_pillow(orientation, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)).save(tmp_path / "x.png", exif=exif)
    with Image.open(tmp_path / "x.png") as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(read_image(tmp_path / "x.png"), upright)
    assert image_size(tmp_path / "x.png") == upright.shape[1::-1]


def test_a_wrong_entry_beside_the_orientation_costs_no_picture(tmp_path):
    """Some cameras write the unit of the resolution as text; Pillow reads that, and cannot write it again."""
    exif = Image.Exif()
    exif[0x0112], exif[0x0128] = 6, 2
    Image.new("RGB", (12, 8)).save(tmp_path / "x.jpg", exif=exif)
    content = (tmp_path / "x.jpg").read_bytes()
    wrong = content.replace(b"\x01\x28\x00\x03", b"\x01\x28\x00\x02")
    assert wrong != content
    (tmp_path / "x.jpg").write_bytes(wrong)
    assert read_image(tmp_path / "x.jpg").shape == (12, 8, 3)


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "LA", "1", "I;16", "CMYK"])
def test_any_mode_becomes_rgb(mode, tmp_path):
    suffix = "tif" if mode in ("CMYK", "I;16") else "png"
    Image.new("RGB" if mode == "P" else mode, (32, 32)).convert(mode).save(tmp_path / f"x.{suffix}")
    pixels = read_image(tmp_path / f"x.{suffix}")
    assert pixels.shape == (32, 32, 3)
    assert pixels.dtype == np.uint8


def test_sixteen_bit_greys_keep_their_range(tmp_path):
    ramp = np.linspace(0, 65535, 32 * 32).reshape(32, 32).astype(np.uint16)
    Image.fromarray(ramp).save(tmp_path / "ramp.png")
    pixels = read_image(tmp_path / "ramp.png")
    assert np.abs(pixels[..., 0] - ramp / 257).max() <= 0.5
    assert (pixels == pixels[..., :1]).all()


def test_fractions_of_unknown_range_are_refused(tmp_path):
    Image.fromarray(np.full((8, 8), 0.5, np.float32)).save(tmp_path / "half.tiff")
    with pytest.raises(ValueError, match=r"half.tiff': its pixels are fractions, .* save it again as PNG or JPEG"):
        read_image(tmp_path / "half.tiff")


@pytest.mark.parametrize("brightest", [65536, -1])
def test_greys_of_more_than_sixteen_bits_are_refused(brightest, tmp_path):
    """Cut off at 65535, they would be a white picture."""
    Image.fromarray(np.array([[0, brightest]], np.int32)).save(tmp_path / "deep.tif")
    with pytest.raises(ValueError, match=rf"deep.tif': its pixels run .*{brightest}.* save it again as PNG or JPEG"):
        read_image(tmp_path / "deep.tif")


def test_a_damaged_avif_is_an_error_by_name(tmp_path):
    """Pillow says it with a RuntimeError."""
    path = tmp_path / "x.avif"
    Image.new("RGB", (16, 16)).save(path)
    path.write_bytes(path.read_bytes().replace(b"pitm", bytes(4)))
    with pytest.raises(ValueError, match=r"x\.avif': damaged \(.*\); save it again"):
        read_image(path)


@pytest.mark.parametrize(
    "sigma", [[], [0.0], [1.0], [1.0, 1.0], [5.0, 1e-30, 0.0], [1.0, np.nan]], ids=lambda s: str(s)
)
def test_any_spectrum_can_be_drawn(sigma):
    image = draw_spectra([Curve(sigma=np.array(sigma), name="x")], (200, 100))
    assert image.size == (200, 100)


def test_strip_holds_its_panels_side_by_side():
    image = procedural(0, size=64).image
    strip = draw_strip([(image, "a"), (image, "b")], [Curve(sigma=np.array([3.0, 1.0]), name="c")])
    assert strip.width > 2 * strip.height


@pytest.mark.parametrize(("height", "width"), [(16, 4800), (4800, 16)], ids=["wide", "tall"])
def test_a_strip_stays_small_and_keeps_the_shape_of_its_pictures(height, width):
    image = np.zeros((height, width, 3), np.uint8)
    strip = draw_strip([(image, "original"), (image, "grayed")], [Curve(sigma=np.array([3.0, 1.0]), name="c")])
    assert strip.width < 2000 and strip.height < 500
    rows, columns = np.nonzero((np.asarray(strip)[45:, :400] < 60).all(-1))  # the first picture, without its title
    sides = sorted((len(set(rows.tolist())), len(set(columns.tolist()))))
    assert sides[0] < 10 and sides[1] > 100


@pytest.mark.parametrize("sigma", [np.linspace(1, 0.85, 64), np.geomspace(1, 1e-6, 64), np.array([1.0, 0.99])])
def test_the_legend_leaves_the_curve_alone(sigma):
    named, bare = (
        draw_spectra([Curve(sigma=sigma, name=name, colour="#ff0000")], (417, 288)) for name in ("x" * 30, "")
    )
    red = [(np.asarray(i).astype(int) @ [1, -1, 0] > 100).sum() for i in (named, bare)]
    assert red[0] >= red[1]


def test_an_infinite_kappa_is_written_in_words(monkeypatch):
    seen = []
    monkeypatch.setattr(photos.strip, "draw_strip", lambda pictures, curves: seen.extend(c.name for c in curves))
    photos.draw(gray_picture(np.full((32, 32, 3), 128, np.uint8)), "DCT 0.95")
    assert seen[0] == "original, condition infinite"
    assert all(name.isascii() for name in seen)
