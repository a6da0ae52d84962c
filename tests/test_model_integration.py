"""A grayed model under the rest of PyTorch: compile, export, autocast, DDP, layouts, sizes, wrappers."""

import copy
import pickle
import re
import warnings
from typing import Any

import cases
import pytest
import timm
import torch
from families import FAMILIES, VIT, assert_same_gradients, by_oracle, gap
from oracles import FAST, MODEL_FAST, TOLERANCE
from torch import nn
from torch._subclasses import FakeTensorMode

import wellcond as wc
from wellcond.graying import dct

BAR = TOLERANCE["float32"]
EPSILON = {"svd": 0.6, "dct": 0.8}
by_method = pytest.mark.parametrize("method", EPSILON)
CONVMIXER, PVT, SWIN, XCIT = (
    next(f for f in FAMILIES if f.name.startswith(name)) for name in ("conv", "pvt", "swin_", "xcit")
)


def pair(method="dct", family=VIT, **options):
    """(plain, grayed) with the same weights."""
    plain = family.create(**options)
    return plain, wc.gray(copy.deepcopy(plain), method, EPSILON[method], precision="exact")


def square(family=VIT, batch=3, seed=0):
    return cases.images(batch, 3, family.size, family.size, seed=seed)


def oracle(images, method="dct", family=VIT):
    return by_oracle(images, family.patch, method, EPSILON[method])


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("family", [VIT, CONVMIXER], ids=str)
def test_compiled_dct_is_one_graph(family, backend):
    """fullgraph=True raises at any graph break; training too."""
    plain, model = pair(family=family)
    wc.gray(model, "dct", EPSILON["dct"])  # what training uses
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    images = square(family)
    with torch.no_grad():
        assert gap(compiled(images), plain(oracle(images, family=family))) <= MODEL_FAST
    for trained in (plain, model):
        trained.train()
    for logits in (compiled(images), plain(oracle(images, family=family))):
        nn.functional.cross_entropy(logits, torch.tensor([0, 3, 1])).backward()
    assert_same_gradients(model, plain, 10 * MODEL_FAST)


@pytest.mark.parametrize("precision", ["exact", "fast"])
def test_compiled_module_is_one_graph_and_follows_the_batch(precision):
    module = wc.TokenGraying(8, "dct", 0.8, precision=precision)
    compiled = torch.compile(module, fullgraph=True, backend="eager")
    for batch in (3, 5, 2):
        images = cases.images(batch, 3, 16, 24)
        want = by_oracle(images, 8, "dct", 0.8)
        assert gap(compiled(images), want) <= (BAR if precision == "exact" else FAST)


def test_compiled_svd_runs():
    plain, model = pair("svd")
    images = square()
    with torch.no_grad():
        got = torch.compile(model, backend="eager")(images)
    assert gap(got, plain(oracle(images, "svd"))) <= BAR


@pytest.mark.parametrize("family", [VIT, PVT], ids=str)
def test_export_with_dynamic_batch(family):
    plain, model = pair(family=family)
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (square(family),), dynamic_shapes=({0: batch},))
    exported = program.module()
    for size in (1, 3, 6):
        images = square(family, size, seed=size)
        with torch.no_grad():
            assert gap(exported(images), plain(oracle(images, family=family))) <= BAR


def test_a_traced_model_takes_any_batch(monkeypatch):
    """On the CPU a few matrices are grayed at a time, and a trace kept how many times."""
    monkeypatch.setattr(dct, "_CACHED", 1)
    _, model = pair()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of checks that a trace leaves out
        traced: Any = torch.jit.trace(model.eval(), square(batch=4))
    for batch in (1, 4, 7):
        images = square(batch=batch)
        assert gap(traced(images), model(images)) <= BAR


def test_exported_file_stands_alone(tmp_path):
    _, model = pair()
    images = square()
    batch = torch.export.Dim("batch", min=1, max=64)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: batch},))
    torch.export.save(program, tmp_path / "model.pt2")
    with torch.no_grad():
        assert gap(torch.export.load(tmp_path / "model.pt2").module()(images), model(images)) <= BAR


@pytest.mark.parametrize("rescale", [True, "contrast"])
def test_an_exported_program_is_compiled_as_one_graph(rescale):
    _, model = pair()
    wc.gray(model, rescale=rescale)
    images = square()
    exported = torch.export.export(model, (images,)).module()
    with torch.no_grad():
        compiled = torch.compile(exported, fullgraph=True, backend="aot_eager")
        assert gap(compiled(images), model(images)) <= BAR


@by_method
def test_autocast(method):
    """Graying keeps float32 pixels under autocast; the network itself runs in bfloat16 either way."""
    plain, model = pair(method)
    wc.gray(model, method, EPSILON[method])
    images = square()
    embedded = plain.patch_embed(oracle(images, method))  # float32
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        want, unchanged = plain(oracle(images, method)), plain(images)
        assert gap(model(images), want) <= 3 * TOLERANCE["bfloat16"] < gap(unchanged, want) / 2
        assert gap(model.patch_embed(images), embedded) <= TOLERANCE["bfloat16"]


@by_method
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_models_of_other_dtypes(method, dtype):
    plain, model = pair(method)
    plain, model, images = plain.to(dtype), model.to(dtype), square().to(dtype)
    with torch.no_grad():
        want = plain(oracle(images.double(), method).to(dtype))
        assert gap(model(images), want) <= (1e-9 if dtype == torch.float64 else 3 * TOLERANCE["bfloat16"])


@by_method
@pytest.mark.parametrize("family", [VIT, CONVMIXER, SWIN], ids=str)
def test_channels_last(family, method):
    plain, model = pair(method, family)
    images = square(family)
    want = plain(oracle(images, method, family))
    with torch.no_grad():
        assert gap(model(images.to(memory_format=torch.channels_last)), want) <= BAR
        model = model.to(memory_format=torch.channels_last)
        assert gap(model(images.to(memory_format=torch.channels_last)), want) <= BAR


@by_method
def test_any_batch_size_in_turn(method):
    plain, model = pair(method)
    for batch in (5, 1, 0, 7, 2):
        images = square(batch=batch)
        with torch.no_grad():
            got, want = model(images), plain(oracle(images, method))
        assert got.shape == want.shape == (batch, 5)
        assert batch == 0 or gap(got, want) <= BAR


@by_method
def test_image_sizes_that_change_between_calls(method):
    plain, model = pair(method, dynamic_img_size=True)
    for height, width in [(64, 64), (96, 64), (32, 80), (64, 64)]:
        images = cases.images(2, 3, height, width)
        with torch.no_grad():
            assert gap(model(images), plain(oracle(images, method))) <= BAR


@pytest.mark.parametrize("family", [PVT, CONVMIXER], ids=str)
def test_non_square_images_on_families_of_any_size(family):
    plain, model = pair(family=family)
    for height, width in [(64, 96), (128, 32)]:
        images = cases.images(2, 3, height, width)
        with torch.no_grad():
            assert gap(model(images), plain(oracle(images, family=family))) <= BAR


def test_timm_can_still_resize_the_model():
    plain, model = pair()
    for net in (plain, model):
        net.set_input_size(img_size=(32, 96))
    assert model.patch_embed.patch_size == (16, 16) and model.patch_embed.grid_size == (2, 6)
    images = cases.images(2, 3, 32, 96)
    with torch.no_grad():
        assert gap(model(images), plain(oracle(images))) <= BAR


def test_the_patch_embedding_itself_is_grayed():
    plain, model = pair()
    images = square()
    with torch.no_grad():
        assert gap(model.patch_embed(images), plain.patch_embed(oracle(images))) <= BAR
    assert type(model) is type(plain)


def test_weights_changed_in_place_are_used_at_once():
    """Whatever is folded into the embedding must follow load, optimizer steps and copy_ without a call."""
    plain, model = pair()
    images = square()
    with torch.no_grad():
        model(images)
        for net in (plain, model):
            net.patch_embed.proj.weight.mul_(-0.5)
            net.patch_embed.proj.bias.add_(0.3)
        assert gap(model(images), plain(oracle(images))) <= BAR
        for net in (plain, model):
            net.patch_embed.proj.weight = nn.Parameter(net.patch_embed.proj.weight.flip(0))
        assert gap(model(images), plain(oracle(images))) <= BAR


def test_wrappers_see_it():
    from timm.models._features import FeatureGetterNet

    plain, model = pair()
    images = square()
    shift = 0.25

    class Shift(nn.Module):
        def forward(self, x):
            return x - shift

    with torch.no_grad():
        assert gap(nn.Sequential(Shift(), model)(images), plain(oracle(images - shift))) <= BAR
        got, want = (FeatureGetterNet(net, out_indices=(0, 1)) for net in (model, plain))
        for a, b in zip(got(images), want(oracle(images)), strict=True):
            assert gap(a, b) <= BAR
        assert gap(torch.func.functional_call(model, dict(plain.state_dict()), (images,)), model(images)) == 0


@pytest.mark.parametrize("family", [VIT, PVT, XCIT, CONVMIXER], ids=str)
def test_features_by_torch_fx(family):
    from torchvision.models.feature_extraction import create_feature_extractor

    plain, model = pair(family=family)
    images = square(family)
    got, want = (create_feature_extractor(net, {"head": "logits"}) for net in (model, plain))
    with torch.no_grad():
        assert gap(got(images)["logits"], want(oracle(images, family=family))["logits"]) <= BAR


def test_graying_in_front_of_a_model_by_torch_fx():
    """The remedy for models that cannot be grayed must go wherever grayed ones go."""
    from torchvision.models.feature_extraction import create_feature_extractor

    plain, images = VIT.create(), square()
    model = nn.Sequential(wc.TokenGraying(16, "dct", EPSILON["dct"], precision="exact"), plain)
    with torch.no_grad():
        got = create_feature_extractor(model, {"1.head": "logits"})(images)["logits"]
        assert gap(got, plain(oracle(images))) <= BAR


@by_method
def test_ddp(method, tmp_path):
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("torch without gloo")
    plain, model = pair(method)
    images = square()
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        out = wrapped(images)
        assert gap(out.detach(), plain(oracle(images, method)).detach()) <= BAR
        out.square().sum().backward()
    finally:
        torch.distributed.destroy_process_group()
    plain(oracle(images, method)).square().sum().backward()
    assert_same_gradients(model, plain, 1e-3)


@by_method
def test_images_that_require_gradient_are_refused(method):
    _, model = pair(method)
    images = square().requires_grad_()
    with pytest.raises(ValueError, match=r"(?i)detach|no_grad"):
        model(images)


@by_method
@pytest.mark.parametrize("what", ["model", "module", "tokens"])
@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_images_differentiated_forward_are_refused(what, method):
    """jvp and jacfwd: by SVD they had found a derivative of zero."""
    images = square()
    model, module = pair(method)[1], wc.TokenGraying(16, method)
    call = {"model": model, "module": module, "tokens": lambda X: wc.gray_tokens(X, method)}[what]
    inside = [
        lambda: torch.func.jvp(call, (images,), (images,)),
        lambda: torch.func.jvp(torch.vmap(lambda image: call(image[None])), (images,), (images,)),
        lambda: torch.func.jacfwd(lambda scale: call(scale * images).sum())(torch.ones(())),
    ]
    for derivative in inside:
        with pytest.raises(ValueError, match="detach"):
            derivative()
    weights, tangents = ({n: factor * p.detach() for n, p in model.named_parameters()} for factor in (1, 2))

    def of_weights(weights):  # theirs are what graying is for
        return torch.vmap(lambda x: torch.func.functional_call(model, weights, (x[None],)).square().sum())(images)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        assert torch.func.jvp(of_weights, (weights,), (tangents,))[1].abs().min() > 0


@by_method
def test_bad_images_are_refused_by_the_model(method):
    _, model = pair(method, CONVMIXER)
    for images, message in [
        (torch.randn(1, 3, 60, 64), "60"),
        (torch.zeros(1, 3, 64, 64, dtype=torch.uint8), "uint8"),
        (torch.full((1, 3, 64, 64), torch.nan), "(?i)nan|finite"),
    ]:
        with pytest.raises(ValueError, match=message):
            model(images)


@pytest.mark.parametrize("family", [VIT, SWIN, PVT, CONVMIXER], ids=str)
def test_images_that_do_not_fit_are_told_with_a_remedy(family):
    """Where timm asserts, or unpacks: ValueError, in copies too; without graying the model is timm's again."""
    model = wc.gray(family.create(), "dct", 0.8)
    side = family.size
    wrong: dict[tuple[int, ...], tuple[str, str]] = {
        (3, side, side): (str((3, side, side)), "(batch, channels, height, width)")
    }
    if family in (VIT, SWIN):
        for height in (side + 1, 2 * side):
            wrong[2, 3, height, side] = (f"{height}×{side}", f"takes {side}×{side}; resize")
    else:
        wrong[2, 3, side + 1, side] = (f"{side + 1}×{side}", f"to {side}×{side}")
    for grayed in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        for shape, words in wrong.items():
            with pytest.raises(ValueError, match=".*".join(map(re.escape, words))):
                grayed(torch.rand(shape))
    kinds = [type(module) for module in family.create().modules()]
    assert [type(module) for module in wc.ungray(model).modules()] == kinds


@by_method
@pytest.mark.parametrize("overlay", [False, True])
def test_a_size_of_its_own_that_is_not_whole_patches(overlay, method):
    """SigLIP reads 27 patches of 14 of 384 px and leaves the rest; graying had refused 384, and then 378."""
    plain = VIT.create()
    plain.set_input_size(img_size=(40, 55))
    if overlay:  # no plain convolution
        torch.nn.utils.parametrizations.weight_norm(plain.patch_embed.proj)
    images = cases.images(2, 3, 40, 55)
    grayed = torch.cat([images[:, :, :, :48], torch.full((2, 3, 40, 7), 9.0)], 3)
    grayed[:, :, :32, :48] = oracle(images[:, :, :32, :48], method)
    with torch.no_grad():
        want, unchanged = plain(grayed), plain(images)
        model = wc.gray(plain, method, EPSILON[method], precision="exact")
        for net in (model, copy.deepcopy(model)):
            assert gap(net(images), want) <= BAR < gap(unchanged, want)
        with pytest.raises(ValueError, match="32×48, and the model takes 40×55"):
            model(images[:, :, :32, :48])
        before = vars(wc.ungray(model).patch_embed.proj)
        assert torch.equal(model(images), unchanged) and not {"graying", "told"} & set(before)


def test_a_padding_patch_embedding_still_pads():
    plain = VIT.create(dynamic_img_size=True, dynamic_img_pad=True).eval()
    model = wc.gray(copy.deepcopy(plain), "dct", 1.0)
    images = torch.rand(1, 3, VIT.size + 1, VIT.size)
    assert gap(model(images), plain(images)) <= BAR


@by_method
@pytest.mark.parametrize("family", [VIT, SWIN, PVT], ids=str)
def test_shapes_on_the_device_meta(family, method):
    """As those who count operations or memory ask for them: no numbers, and no autocast."""
    _, model = pair(method, family)
    assert model.to("meta")(square(family).to("meta")).shape == (3, model.num_classes)


@by_method
@pytest.mark.parametrize(("dtype", "bar"), [(torch.float32, BAR), (torch.float64, TOLERANCE["float64"])], ids=str)
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_gradients_of_each_image_by_vmap(dtype, bar, method):
    plain, model = pair(method)
    plain, model, images = plain.to(dtype), model.to(dtype), square().to(dtype)

    def gradients(net, images):
        def loss(parameters, image):
            return torch.func.functional_call(net, parameters, (image[None],)).square().sum()

        return torch.vmap(torch.func.grad(loss), (None, 0))(dict(net.named_parameters()), images)

    got, want = gradients(model, images), gradients(plain, oracle(images, method))
    for name in want:
        assert gap(got[name], want[name]) <= bar, name


@by_method
@pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node")
def test_linearized_in_the_weights(method):
    """`torch.func.linearize` records the model, graying and all."""
    plain, model = pair(method)
    weights, images = dict(plain.named_parameters()), square()

    def change(net, images):
        def call(weights):
            return torch.func.functional_call(net, weights, (images,))

        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            return torch.func.linearize(call, weights)[1](weights)

    assert gap(change(model, images), change(plain, oracle(images, method))) <= BAR


@by_method
@pytest.mark.parametrize("size", [24, 128])  # products, and FFTs for the 1024 patches of 4 px
def test_fake_tensors_leave_nothing_behind(size, method):
    graying = wc.TokenGraying(4, method, EPSILON[method])
    with FakeTensorMode():
        assert graying(torch.randn(2, 3, size, size)).shape == (2, 3, size, size)
    images = cases.images(2, 3, size, size)
    assert gap(graying(images), by_oracle(images, 4, method, EPSILON[method])) <= BAR
    with FakeTensorMode():
        assert graying(torch.randn(2, 3, size, size)).shape == (2, 3, size, size)


def test_training_goes_on_after_inference_mode():
    """Constants made under inference_mode would be unusable in a backward pass."""
    model = wc.gray(timm.create_model("vit_tiny_patch16_224", img_size=48, depth=1), "dct", 0.9)
    images = torch.randn(2, 3, 48, 48)
    with torch.inference_mode():
        model(images)
    model(images).sum().backward()
    assert all(p.grad is not None for name, p in model.named_parameters() if "patch_embed" in name)
    with torch.inference_mode():
        wc.gray_tokens(torch.randn(7, 11))
    wc.gray_tokens(torch.randn(7, 11))


def test_mixer_has_patch_tokens_too():
    model: Any = timm.create_model("mixer_s32_224").eval()
    images = torch.randn(2, 3, 224, 224)
    plain = model.forward_features(images)
    want = model.forward_features(wc.TokenGraying(32, "svd", 0.7, precision="exact")(images))
    got = wc.gray(model, "svd", 0.7).forward_features(images)
    assert (got - want).abs().max() < 1e-4 < (got - plain).abs().max()
