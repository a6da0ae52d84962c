"""Mistakes in the input are a ValueError that quotes the value and names the remedy."""

import math

import pytest
import timm
import torch

import wellcond as wc
from wellcond.graying import fold_patches, unfold_patches

SETTINGS = [
    ({"epsilon": 0.0}, r"0"),
    ({"epsilon": -0.25}, r"-0\.25"),
    ({"epsilon": 1.5}, r"1\.5"),
    ({"epsilon": math.nan}, r"nan"),
    ({"epsilon": math.inf}, r"inf"),
    ({"method": "fft"}, r"fft(?s:.)*(svd|dct)"),
    ({"precision": "sloppy"}, r"sloppy(?s:.)*(exact|fast)"),
    ({"rescale": "always"}, r"always(?s:.)*contrast"),
]
by_setting = pytest.mark.parametrize(("setting", "message"), SETTINGS, ids=lambda value: str(value))
ORDER = [({"order": "diagonal"}, r"diagonal(?s:.)*(rows|channels)")]
TOKENS = torch.randn(2, 6, 8)
SPECTRAL = [
    wc.singular_values,
    wc.condition_number,
    wc.effective_rank,
    wc.stable_rank,
    wc.numerical_floor,
    lambda X: wc.spectral_map(X, lambda s: s),
]
by_function = pytest.mark.parametrize(
    "function", [*SPECTRAL, lambda X: wc.gray_tokens(X, "svd"), lambda X: wc.gray_tokens(X, "dct")]
)


@by_setting
def test_settings_of_gray_tokens(setting, message):
    with pytest.raises(ValueError, match=message):
        wc.gray_tokens(TOKENS, **setting)


@pytest.mark.parametrize(("setting", "message"), SETTINGS + ORDER, ids=lambda value: str(value))
def test_settings_of_the_module_fail_when_it_is_made(setting, message):
    with pytest.raises(ValueError, match=message):
        wc.TokenGraying(4, **setting)


@pytest.mark.parametrize(("setting", "message"), SETTINGS + ORDER, ids=lambda value: str(value))
def test_settings_of_gray_fail_and_leave_the_model_alone(setting, message):
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1, num_classes=3).eval()
    images = torch.randn(1, 3, 32, 32)
    before = model(images)
    with pytest.raises(ValueError, match=message):
        wc.gray(model, **setting)
    assert torch.equal(model(images), before)


def test_precision_of_spectral_map():
    with pytest.raises(ValueError, match=r"sloppy(?s:.)*(exact|fast)"):
        wc.spectral_map(TOKENS, lambda s: s, precision="sloppy")  # pyright: ignore[reportArgumentType]


@by_function
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool], ids=str)
def test_integer_tokens(function, dtype):
    with pytest.raises(ValueError, match=str(dtype).removeprefix("torch.")):
        function(torch.ones(3, 4).to(dtype))


@by_function
def test_tokens_of_eight_bits(function):
    with pytest.raises(ValueError, match="float8_e5m2; convert it first"):
        function(TOKENS.to(torch.float8_e5m2))


@by_function
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tokens(function):
    with pytest.raises(ValueError, match="X is nested; pass its matrices one by one"):
        function(torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)]))


@by_function
@pytest.mark.filterwarnings("error")  # the error says it all
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_tokens_that_are_not_finite(function, value):
    X = TOKENS.clone()
    X[0, 0, 0], X[1, 2, 3] = math.inf, value
    with pytest.raises(ValueError, match=r"(?i)nan|inf|finite"):
        function(X)


@by_function
@pytest.mark.parametrize("shape", [(5,), (), (2, 0, 4), (2, 4, 0), (0, 0)], ids=str)
def test_tokens_of_the_wrong_shape(function, shape):
    with pytest.raises(ValueError, match=r"\(" if shape else r"."):
        function(torch.ones(shape))


@pytest.mark.parametrize("method", ["svd", "dct"])
class TestImages:
    def test_not_divisible(self, method):
        for size, wrong in [((30, 32), "30"), ((32, 40), "40"), ((8, 16), "8")]:
            with pytest.raises(ValueError, match=rf"(?s)(?=.*(?<!\d){wrong}(?!\d)).*(?<!\d)16(?!\d)"):
                wc.TokenGraying(16, method)(torch.randn(1, 3, *size))

    def test_integer(self, method):
        with pytest.raises(ValueError, match="uint8"):
            wc.TokenGraying(4, method)(torch.zeros(1, 3, 8, 8, dtype=torch.uint8))

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_not_finite(self, method, value):
        images = torch.randn(3, 3, 8, 8)
        images[1, 2, 3, 4] = value
        with pytest.raises(ValueError, match=r"(?i)nan|inf|finite"):
            wc.TokenGraying(4, method)(images)

    def test_messages_speak_of_images(self, method):
        model = wc.gray(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), method)
        for look in (wc.TokenGraying(4, method), model):
            with pytest.raises(ValueError, match=r"images hold NaN or inf; .*nan_to_num\(images\)"):
                look(torch.full((1, 3, 32, 32), math.nan))

    @pytest.mark.parametrize(
        ("images", "said"),
        [
            (torch.zeros(1, 3, 8, 8).numpy(), r"images are a ndarray; pass a torch.Tensor \(batch, channels"),
            ([[1.0]], "images are a list; pass a torch.Tensor"),
            (torch.zeros(1, 3, 8, 8).to_sparse(), r"images are torch.sparse_coo; pass images.to_dense\(\)"),
        ],
        ids=["numpy", "list", "sparse"],
    )
    def test_what_is_no_tensor_of_pixels(self, method, images, said):
        with pytest.raises(ValueError, match=said):
            wc.TokenGraying(4, method)(images)

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
    def test_nested(self, method, layout):
        model = wc.gray(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), method)
        images = torch.nested.nested_tensor([torch.zeros(3, 32, 32)] * 2, layout=layout)
        for look in (wc.TokenGraying(4, method), model):
            with pytest.raises(ValueError, match="images are nested; pass those of one size stacked"):
                look(images)

    def test_channels_that_the_model_does_not_take(self, method):
        model = wc.gray(timm.create_model("vit_tiny_patch16_224", img_size=32, depth=1), method)
        with pytest.raises(ValueError, match="images have 1 channels, and the model takes 3"):
            model(torch.randn(2, 1, 32, 32))

    @pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8), (1, 2, 3, 8, 8)], ids=str)
    def test_wrong_rank(self, method, shape):
        with pytest.raises(ValueError, match=r"\(.*8, 8"):
            wc.TokenGraying(4, method)(torch.randn(shape))

    def test_no_pixels(self, method):
        for shape in [(1, 0, 8, 8), (1, 3, 0, 8), (1, 3, 8, 0)]:
            with pytest.raises(ValueError, match="0"):
                wc.TokenGraying(4, method)(torch.randn(shape))

    def test_gradient_asked_for(self, method):
        """Graying passes no gradient to the pixels; silence would be a wrong gradient."""
        images = torch.randn(1, 3, 8, 8, requires_grad=True)
        with pytest.raises(ValueError, match=r"(?i)detach|no_grad"):
            wc.TokenGraying(4, method)(images)
        assert wc.TokenGraying(4, method)(images.detach()).shape == images.shape


def test_patches():
    images = torch.randn(1, 3, 10, 12)
    with pytest.raises(ValueError, match="10"):
        unfold_patches(images, 4)
    with pytest.raises(ValueError, match="diagonal"):
        unfold_patches(images, 2, "diagonal")
    with pytest.raises(ValueError, match="diagonal"):
        fold_patches(torch.randn(1, 30, 12), (3, 10, 12), 2, "diagonal")
    with pytest.raises(ValueError, match="10"):
        unfold_patches(images[0], 2)  # (3, 10, 12): the shape is quoted
    with pytest.raises(ValueError, match=r"29|30"):
        fold_patches(torch.randn(1, 29, 12), (3, 10, 12), 2)
    for shape in (None, (10, 12), (1, 3, 10, 12), (3.0, 10, 12), (3, -10, -12), "photo"):
        with pytest.raises(ValueError, match=r"image_shape=.*use \(channels, height, width\)"):
            fold_patches(torch.randn(1, 30, 12), shape, 2)  # pyright: ignore[reportArgumentType]
    for patch in (0, -2, (2, 0)):
        with pytest.raises(ValueError, match="patch_size"):
            wc.TokenGraying(patch)(images)


@pytest.mark.parametrize("rescale", [0, 1, None, "max"])
def test_rescale_is_a_bool_or_contrast(rescale):
    """1 and 0 would pass for True and False in one place and not in another."""
    with pytest.raises(ValueError, match="rescale"):
        wc.gray_tokens(TOKENS, rescale=rescale)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "f", [lambda s: s[..., :1], lambda s: s.sum(), lambda s: 1.0], ids=["short", "scalar", "float"]
)
def test_a_map_of_another_shape_is_refused(f, dtype):
    with pytest.raises(ValueError, match="f returned"):
        wc.spectral_map(TOKENS.to(dtype), f)


def test_a_map_is_a_function():
    with pytest.raises(ValueError, match="is no function; pass one that maps singular values"):
        wc.spectral_map(TOKENS, 0.5)  # pyright: ignore[reportArgumentType, reportCallIssue]


@pytest.mark.parametrize("call", [wc.gray, wc.cut_skips])
def test_a_model_is_a_module(call):
    with pytest.raises(ValueError, match="str"):
        call("vit_tiny_patch16_224")
