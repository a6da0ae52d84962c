"""`gray(model)` equals the plain model fed with images that the oracle grayed, for every family."""

import copy
import functools

import cases
import pytest
import safetensors.torch
import torch
from families import FAMILIES, REFUSED, VIT, assert_same_gradients, by_oracle, gap
from oracles import MODEL_FAST, TOLERANCE

import wellcond as wc

EPSILON = {"svd": 0.6, "dct": 0.8}
OPTIONS = [{"rescale": False}, {"rescale": "contrast"}, {"order": "channels"}]
BAR = TOLERANCE["float32"]
by_family = pytest.mark.parametrize("family", FAMILIES, ids=str)
by_method = pytest.mark.parametrize("method", EPSILON)


def images_for(family, batch=3, seed=0):
    return cases.images(batch, 3, family.size, family.size, seed=seed)


def same_state(first, second) -> bool:
    return list(first) == list(second) and all(torch.equal(first[key], second[key]) for key in first)


@by_method
@by_family
def test_output_is_that_of_the_plain_model_on_grayed_images(family, method):
    plain, images = family.create(), images_for(family)
    model = copy.deepcopy(plain)
    assert wc.gray(model, method, EPSILON[method], precision="exact") is model
    grayed = by_oracle(images, family.patch, method, EPSILON[method])
    with torch.no_grad():
        want, unchanged = plain(grayed), plain(images)
        assert gap(unchanged, want) > 0.05  # so the test can fail
        assert gap(model(images), want) <= BAR
        assert gap(model.forward_features(images), plain.forward_features(grayed)) <= BAR
        wc.gray(model, method, EPSILON[method])  # the default precision
        assert gap(model(images), want) <= MODEL_FAST


@by_family
def test_intermediates_see_it(family):
    plain, images = family.create(), images_for(family)
    model = wc.gray(copy.deepcopy(plain), "dct", 0.8, precision="exact")
    grayed = by_oracle(images, family.patch, "dct", 0.8)
    if not hasattr(plain, "forward_intermediates"):
        pytest.skip(f"timm's {family} has no forward_intermediates")
    with torch.no_grad():
        got = model.forward_intermediates(images, intermediates_only=True)
        want = plain.forward_intermediates(grayed, intermediates_only=True)
    assert len(got) == len(want) > 0
    assert max(gap(a, b) for a, b in zip(got, want, strict=True)) <= BAR


@by_family
def test_state_dict_is_untouched_and_moves_both_ways(family, tmp_path):
    plain, images = family.create(), images_for(family)
    before = copy.deepcopy(plain.state_dict())
    model = wc.gray(copy.deepcopy(plain), "dct", 0.8)
    with torch.no_grad():
        want = model(images)
    assert same_state(model.state_dict(), before)
    names = [name for name, _ in plain.named_parameters()]
    assert [name for name, _ in model.named_parameters()] == names
    assert [name for name, _ in model.named_buffers()] == [name for name, _ in plain.named_buffers()]

    safetensors.torch.save_file(model.state_dict(), tmp_path / "grayed.safetensors")
    safetensors.torch.save_file(before, tmp_path / "plain.safetensors")
    torch.manual_seed(1)
    for source, target in [("grayed", copy.deepcopy(plain)), ("plain", wc.gray(family.create(), "dct", 0.8))]:
        with torch.no_grad():
            for parameter in target.parameters():
                parameter.add_(torch.randn_like(parameter))
            if source == "plain":
                target(images)  # nothing derived from the old weights may survive the loading
        target.load_state_dict(safetensors.torch.load_file(tmp_path / f"{source}.safetensors"), strict=True)
        with torch.no_grad():
            got = wc.gray(target, "dct", 0.8)(images) if source == "grayed" else target(images)
        assert torch.equal(got, want)


@by_method
@by_family
def test_ungray_restores_every_bit(family, method):
    model, images = family.create(), images_for(family)
    with torch.no_grad():
        before = model(images)
        wc.gray(model, method, EPSILON[method])
        assert not torch.equal(model(images), before)
        assert wc.ungray(model) is model
        assert torch.equal(model(images), before)


def test_ungray_of_a_plain_model_changes_nothing():
    model, images = VIT.create(), images_for(VIT)
    with torch.no_grad():
        before = model(images)
        assert wc.ungray(model) is model and torch.equal(model(images), before)


def test_what_was_laid_over_the_graying_comes_off_first():
    """A parametrisation gives the module a class of its own; taking ours from under it would lose the weight."""
    model, images = wc.gray(VIT.create(), "dct", 0.8), images_for(VIT)
    plain = wc.ungray(copy.deepcopy(model))
    conv = model.patch_embed.proj
    torch.nn.utils.parametrizations.weight_norm(conv)
    with torch.no_grad():
        before = model(images)
        for call in (wc.gray, wc.ungray):
            with pytest.raises(ValueError, match="ParametrizedGrayedConv2d after gray; undo that first"):
                call(model)
        assert torch.equal(model(images), before)
        torch.nn.utils.parametrize.remove_parametrizations(conv, "weight")
        assert gap(wc.ungray(model)(images), plain(images)) <= BAR


@by_family
def test_graying_again_replaces_the_first_setting(family):
    plain, images = family.create(), images_for(family)
    twice = wc.gray(wc.gray(copy.deepcopy(plain), "svd", 0.5, rescale=False), "dct", 0.9)
    once = wc.gray(copy.deepcopy(plain), "dct", 0.9)
    with torch.no_grad():
        assert torch.equal(twice(images), once(images))
        assert torch.equal(wc.ungray(twice)(images), plain(images))


@by_family
def test_deepcopy_is_independent(family):
    plain, images = family.create(), images_for(family)
    model = wc.gray(copy.deepcopy(plain), "dct", 0.8)
    with torch.no_grad():
        want = model(images)
        twin = copy.deepcopy(model)
        assert torch.equal(twin(images), want)
        wc.ungray(twin)
        assert torch.equal(twin(images), plain(images)) and torch.equal(model(images), want)
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.mul_(1.5)
        wc.gray(other, "dct", 0.5)
        other(images)
        assert torch.equal(model(images), want)
        wc.ungray(model)
        assert gap(other(images), plain(images)) > 1e-3  # still grayed, with its own weights


@by_method
@by_family
def test_epsilon_one_is_the_plain_model(family, method):
    plain, images = family.create(), images_for(family)
    model = wc.gray(copy.deepcopy(plain), method, 1.0, precision="exact")
    with torch.no_grad():
        assert gap(model(images), plain(images)) <= BAR


@by_family
def test_gradients_are_those_of_the_plain_model_on_grayed_images(family):
    """Train mode, batch statistics and all; and again after an optimizer step."""
    plain, images = family.create().train(), images_for(family)
    model = wc.gray(copy.deepcopy(plain), "svd", 0.6, precision="exact")
    grayed = by_oracle(images, family.patch, "svd", 0.6)
    target = torch.tensor([0, 3, 1])
    for _ in range(2):
        for net, batch in ((model, images), (plain, grayed)):
            torch.manual_seed(5)
            net.zero_grad()
            out = net(batch)
            out = out[0] if isinstance(out, tuple) else out
            torch.nn.functional.cross_entropy(out, target).backward()
        assert_same_gradients(model, plain, 1e-3)
        for net in (model, plain):
            torch.optim.SGD(net.parameters(), lr=0.1).step()


@pytest.mark.parametrize("method", ["svd", "dct"])
def test_gradients_tightly_in_float64(method):
    plain, images = VIT.create().double().train(), images_for(VIT).double()
    model = wc.gray(copy.deepcopy(plain), method, 0.6, precision="exact")
    for net, batch in ((model, images), (plain, by_oracle(images, 16, method, 0.6))):
        net(batch).square().sum().backward()
    assert_same_gradients(model, plain, 1e-8)


@by_method
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options_reach_the_pixels(options, method):
    plain, images = VIT.create(), images_for(VIT)
    model = wc.gray(copy.deepcopy(plain), method, 0.6, precision="exact", **options)
    with torch.no_grad():
        want = plain(by_oracle(images, 16, method, 0.6, **options))
        assert gap(model(images), want) <= BAR
        if not (method == "svd" and "order" in options):
            assert gap(wc.gray(model, method, 0.6, precision="exact")(images), want) > 10 * BAR


@pytest.mark.parametrize("name", REFUSED)
def test_models_without_a_patch_embedding_are_refused(name):
    import timm

    model = timm.create_model(name, num_classes=2)
    keys = list(model.state_dict())
    with pytest.raises(ValueError, match=REFUSED[name]) as caught:
        wc.gray(model)
    assert type(model).__name__ in str(caught.value) or name in str(caught.value)
    assert list(model.state_dict()) == keys


def test_things_that_are_no_vision_model_are_refused():
    with pytest.raises(ValueError, match="Linear"):
        wc.gray(torch.nn.Linear(4, 4))


@by_method
def test_a_forward_put_over_the_patch_embedding(method):
    """As accelerate's hooks do. Under it graying would be without effect, and `ungray`, too."""
    model, images = VIT.create(), images_for(VIT)
    reader = model.patch_embed.proj
    reader.forward = functools.partial(type(reader).forward, reader)
    with pytest.raises(ValueError, match="has a forward of its own"):
        wc.gray(model, method, 0.6)
    del reader.forward
    wc.gray(model, method, 0.6)
    want, before = model(images), reader.forward
    reader.forward = lambda x: before(x)  # after graying it is none of our business
    assert gap(model(images), want) == 0
    with pytest.raises(ValueError, match="has a forward of its own"):
        wc.ungray(model)


def test_two_models_in_one_are_refused():
    """The first would have been grayed alone, and the second not at all."""
    both = torch.nn.ModuleDict({"student": VIT.create(), "teacher": torch.nn.Sequential(VIT.create())})
    with pytest.raises(ValueError, match=r"student\.patch_embed, teacher\.0\.patch_embed.*each model by itself"):
        wc.gray(both)
    assert "Grayed" not in str(both)
