"""Recorded sites: equal to tensors captured by hooks on the original model; sinks are always removed."""

import copy
from typing import Any

import block_cases
import pytest
import torch
from block_cases import MODELS, assert_identical, blocks_of, images_of, outcome

from wellcond import cut_skips, restore_skips
from wellcond.blocks import SITES, Recording, adapt, record, unadapt

every_model = pytest.mark.parametrize("family", MODELS, ids=str)
by_mode = pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])


def tokens(x, channels_first):
    if x.ndim == 3:
        return x
    return x.permute(0, 2, 3, 1).flatten(1, 2) if channels_first else x.flatten(1, 2)


def hooked_sites(model, images):
    """{(layer, site): X} through forward hooks on an unadapted model: no class of ours is involved."""
    found, handles = {}, []

    def keep(layer, site, from_input, channels_first):
        def hook(_module, inputs, output: Any = None):
            # a module may serve twice in a block (CaiT's drop-path): the first is attention's, the second the MLP's
            x = inputs[0] if from_input else output
            key = (layer, site) if (layer, site) not in found else (layer, "ffn_out")
            found[key] = tokens(x.detach().clone(), channels_first)

        return hook

    for layer, block in enumerate(blocks_of(model)):
        kind = type(block).__name__
        nchw = kind in ("Residual", "PartitionAttention2d")
        on = [(block, "ffn_sum" if kind != "Residual" else "sab_sum", False)]
        if kind == "Residual":
            on += [(block, "sab_in", True), (block.fn, "sab_out", False)]
        elif kind.startswith("LayerScaleBlock"):
            on += [(block.norm1, "sab_in", True), (block.norm2, "sab_sum", True), (block.drop_path, "sab_out", False)]
        else:
            on += [(block, "sab_in", True), (block.drop_path1, "sab_out", False), (block.drop_path2, "ffn_out", False)]
            if kind == "XCABlock":
                on += [
                    (block.drop_path3, "lpi_out", False),
                    (block.norm3, "sab_sum", True),
                    (block.norm2, "lpi_sum", True),
                ]
            elif kind != "ClassAttentionBlock":
                post = kind in ("SwinTransformerV2Block", "ResPostBlock", "EvaBlockPostNorm")
                on += [(block.mlp if post else block.norm2, "sab_sum", True)]
        for module, site, from_input in on:
            hook = keep(layer, site, from_input, nchw)
            register = module.register_forward_pre_hook if from_input else module.register_forward_hook
            handles.append(register(hook))
    model(images)
    for handle in handles:
        handle.remove()
    return found


@by_mode
@every_model
def test_sites_equal_tensors_from_hooks(family, training):
    model = family.create().train(training)
    images = images_of(family)
    torch.manual_seed(3)
    want = hooked_sites(copy.deepcopy(model), images)
    kinds = [type(block) for block in blocks_of(model)]
    torch.manual_seed(3)
    with record(model) as got:
        model(images)
    assert [type(block) for block in blocks_of(model)] == kinds  # adapted only inside
    assert set(got) >= set(want) and len(want) >= 3 * len(kinds)
    for key, X in got.items():
        layer, site = key
        assert X.ndim == 3 and len(X) == len(images) and not X.requires_grad
        if key in want:
            assert torch.equal(X, want[key]), key
        assert site in SITES or (kinds[layer].__name__ == "XCABlock" and site in ("lpi_out", "lpi_sum"))
    for layer, kind in enumerate(kinds):
        sites = {site for of, site in got if of == layer}
        extra = {"lpi_out", "lpi_sum"} if kind.__name__ == "XCABlock" else set()
        assert sites == (set(SITES[:3]) if kind.__name__ == "Residual" else set(SITES) | extra)


@pytest.mark.parametrize("family", [block_cases.VIT, block_cases.SWIN, block_cases.MAXVIT], ids=str)
def test_sites_add_up(family):
    model = family.create()
    with record(model) as sites:
        model(images_of(family))
    for layer in range(len(blocks_of(model))):
        assert torch.equal(sites[layer, "sab_in"] + sites[layer, "sab_out"], sites[layer, "sab_sum"])
        assert torch.equal(sites[layer, "sab_sum"] + sites[layer, "ffn_out"], sites[layer, "ffn_sum"])


class Stop(Exception):
    pass


def test_sinks_are_removed_after_an_exception():
    model = block_cases.VIT.create()
    calls = []

    def sink(layer, site, X):
        calls.append((layer, site))
        if (layer, site) == (1, "sab_out"):
            raise Stop

    with pytest.raises(Stop), record(model, sink):
        model(images_of(block_cases.VIT))
    assert calls[-1] == (1, "sab_out") and len(calls) == 7
    model(images_of(block_cases.VIT))
    assert len(calls) == 7
    assert blocks_of(model)  # and the model is not adapted any more
    adapt(model)
    with pytest.raises(Stop), record(model, sink):
        raise Stop
    model(images_of(block_cases.VIT))
    assert len(calls) == 7 and not blocks_of(model)  # it was adapted before, and still is


def test_recordings_nest_and_each_sees_all():
    model, images = block_cases.VIT.create(), images_of(block_cases.VIT)
    outer, inner = Recording(), Recording()
    with record(model, outer):
        with record(model, inner) as same:
            model(images)
        assert same is inner and inner.keys() == outer.keys()
        outer.clear()
        model(images)
        assert outer.keys() == inner.keys()
        cut_skips(model)
        restore_skips(model)  # gains are 1 again; the recording goes on
        model(images)
        assert torch.equal(outer[1, "ffn_sum"], inner[1, "ffn_sum"])
    assert blocks_of(model)


def test_unadapting_inside_a_recording_ends_it():
    model, images = block_cases.VIT.create(), images_of(block_cases.VIT)
    with record(model) as sites:
        unadapt(model)
        model(images)
    assert not sites and blocks_of(model)


def test_gradient_checkpointing_is_identical_and_recorded_once():
    plain = block_cases.VIT.create()
    plain.set_grad_checkpointing()
    model = copy.deepcopy(plain)
    adapt(model)
    images = images_of(block_cases.VIT)
    assert_identical(outcome(model, images, True), outcome(plain, images, True))
    calls = []
    with record(model, lambda layer, site, X: calls.append((layer, site))):
        outcome(model, images, True)
    assert calls == [(layer, site) for layer in range(2) for site in SITES]


def test_sink_gets_the_live_tensor():
    model = block_cases.VIT.create()
    kept = []
    with record(model, lambda layer, site, X: kept.append(X)):
        model(images_of(block_cases.VIT))
    kept[1].square().sum().backward()
    assert model.blocks[0].attn.qkv.weight.grad.any()
