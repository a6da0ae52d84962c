"""Configs: frozen, complete, ⇄ JSON."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellcond.config import (
    MAY_CHANGE,
    AugmentConfig,
    BenchConfig,
    DataConfig,
    DemoConfig,
    GrayConfig,
    GrayingConfig,
    ModelConfig,
    OptimConfig,
    ReportConfig,
    ReproduceConfig,
    TrainConfig,
    changed_fields,
    from_json,
    to_json,
)
from wellcond.reproduction.experiments import identity

paths = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])).map(Path)


@st.composite
def gray_configs(draw):
    patch_size = draw(st.integers(1, 64))
    return GrayConfig(
        source=draw(paths),
        out=draw(st.none() | paths),
        method=draw(st.sampled_from(["svd", "dct"])),
        epsilon=draw(st.floats(0, 1, exclude_min=True)),
        patch_size=patch_size,
        order=draw(st.sampled_from(["rows", "channels"])),
        rescale=draw(st.sampled_from([True, False, "contrast"])),
        precision=draw(st.sampled_from(["exact", "fast"])),
        crop=draw(st.booleans()),
        resize=draw(st.none() | st.integers(1, 64).map(lambda k: k * patch_size)),
    )


demo_configs = st.builds(
    DemoConfig,
    out=paths,
    count=st.integers(1, 100),
    size=st.integers(2, 64).map(lambda k: 16 * k),
    seed=st.integers(0, 2**64),
    quick=st.booleans(),
)
report_configs = st.builds(ReportConfig, runs=st.lists(paths, min_size=1, max_size=3).map(tuple), out=st.none() | paths)
bench_configs = st.builds(
    BenchConfig,
    what=st.sampled_from(["graying", "spectral"]),
    device=st.sampled_from(["cpu", "cuda"]),
    data=st.none() | paths,
    out=paths,
    quick=st.booleans(),
)
reproduce_configs = st.builds(
    ReproduceConfig,
    claim=st.sampled_from(["asa-proxy", "asa-kappa"]),
    seeds=st.integers(1, 100),
    out=paths,
    html=st.none() | paths,
    again=st.booleans(),
    quick=st.booleans(),
)


@given(gray_configs() | demo_configs | report_configs | bench_configs | reproduce_configs)
def test_round_trip_through_json(config):
    text = to_json(config)
    assert from_json(text, type(config)) == config
    assert to_json(from_json(text, type(config))) == text


def test_missing_fields_take_their_defaults():
    assert from_json('{"source": "a.jpg"}', GrayConfig) == GrayConfig(source=Path("a.jpg"))


def test_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        DemoConfig().count = 3  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(TypeError):
        DemoConfig(Path("x"))  # pyright: ignore[reportCallIssue]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", ["not JSON"]),
        ("[]", ["GrayConfig", "[]"]),
        ("{}", ["source"]),
        ('{"source": 3}', ["source", "3"]),
        ('{"source": "a", "epsilom": 1}', ["epsilom", "epsilon"]),
        ('{"source": "a", "epsilon": 2}', ["2", "(0, 1]"]),
        ('{"source": "a", "epsilon": "x"}', ["epsilon", "'x'"]),
        ('{"source": "a", "method": "fft"}', ["'fft'", "'svd'", "'dct'"]),
        ('{"source": "a", "crop": 1}', ["crop", "1"]),
        ('{"source": "a", "patch_size": true}', ["patch_size", "True"]),
        ('{"source": "a", "patch_size": 0}', ["0", "16"]),
        ('{"source": "a", "resize": 100}', ["100", "96"]),
        ('{"source": "a", "rescale": "yes"}', ["rescale", "'yes'"]),
    ],
)
def test_a_bad_config_names_the_value_and_the_remedy(text, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        from_json(text, GrayConfig)
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_json_is_readable_by_others():
    assert json.loads(to_json(GrayConfig(source=Path("a/b.jpg"))))["source"] == "a/b.jpg"


def test_to_json_refuses_what_is_no_config():
    with pytest.raises(ValueError, match="takes a config"):
        to_json({"a": 1})


@st.composite
def train_configs(draw):
    size, method = draw(st.integers(1, 64)), draw(st.sampled_from(["none", "svd", "dct"]))
    patches = st.integers(1, 32).filter(lambda patch: method == "none" or size % patch == 0)
    scalars = st.none() | st.booleans() | st.integers(-5, 5) | st.text() | st.floats(allow_nan=False, width=32)
    model = ModelConfig(
        name=draw(st.text(min_size=1)),
        image_size=size,
        patch_size=draw(st.none() | patches),
        num_classes=draw(st.integers(1, 1000)),
        options=tuple(draw(st.dictionaries(st.text(), scalars, max_size=3)).items()),
        attention="linear",
        k=draw(st.none() | st.floats(0.5, 64)),
        graying=GrayingConfig(method=method, rescale="contrast"),
    )
    low = draw(st.floats(0.01, 1))
    data = DataConfig(
        train="procedural",
        val=draw(st.text(min_size=1)),
        image_size=size,
        cache=draw(st.none() | paths),
        augment=AugmentConfig(scale=(low, 1.0), randaugment=draw(st.none() | st.text())),
    )
    return TrainConfig(
        model=model,
        data=data,
        optim=OptimConfig(betas=(draw(st.floats(0, 0.99)), 0.5), clip=draw(st.none() | st.floats(0.1, 5))),
        epochs=draw(st.integers(1, 300)),
        batch_size=draw(st.integers(1, 2048)),
        ema=draw(st.none() | st.floats(0.1, 0.99)),
    )


@given(train_configs())
def test_training_configs_through_json(config):
    assert from_json(to_json(config), TrainConfig) == config
    assert changed_fields(config, from_json(to_json(config), TrainConfig)) == {}


MODEL = ModelConfig(name="vit_tiny_patch16_224", image_size=32, num_classes=10)
DATA = DataConfig(train="procedural", val="procedural", image_size=32)
TRAIN = TrainConfig(model=MODEL, data=DATA, epochs=2, batch_size=8)


def test_changed_fields_are_named_to_the_leaf():
    other = dataclasses.replace(
        TRAIN,
        seed=3,
        optim=OptimConfig(lr=0.1),
        model=dataclasses.replace(MODEL, graying=GrayingConfig(method="svd", epsilon=0.7)),
    )
    assert changed_fields(TRAIN, other) == {
        "model.graying.method": ("none", "svd"),
        "model.graying.epsilon": (0.95, 0.7),
        "optim.lr": (1e-3, 0.1),
        "seed": (0, 3),
    }
    assert "data.workers" in MAY_CHANGE and "seed" not in MAY_CHANGE


def test_whole_numbers_for_fractions_resume_and_share_runs():
    """warmup_epochs=1 comes back from a run's folder as 1.0."""
    written = dataclasses.replace(TRAIN, optim=OptimConfig(warmup_epochs=1, clip=3))
    read = from_json(to_json(written), TrainConfig)
    assert changed_fields(read, written) == {} and identity(read) == identity(written)
    assert changed_fields(TRAIN, dataclasses.replace(TRAIN, seed=False)) == {"seed": (0, False)}


def test_what_may_change_are_fields():
    names = set(_leaves(TRAIN))
    assert names >= MAY_CHANGE


def _leaves(config, prefix=""):
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if dataclasses.is_dataclass(value):
            yield from _leaves(value, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: dataclasses.replace(TRAIN, epochs=0), ["epochs is 0", "1 or more"]),
        (lambda: dataclasses.replace(TRAIN, batch_size=10, accumulate=4), ["batch_size is 10", "accumulate 4", "8"]),
        (lambda: dataclasses.replace(TRAIN, ema=1.0), ["ema is 1.0", "(0, 1)", "0.9999"]),
        (lambda: dataclasses.replace(TRAIN, precision="fp8"), ["precision is 'fp8'", "'bf16'"]),
        (lambda: dataclasses.replace(TRAIN, optim=OptimConfig(warmup_epochs=3)), ["warmup_epochs is 3", "2 epochs"]),
        (lambda: dataclasses.replace(MODEL, k=4.0), ["model.k is 4.0", "linear"]),
        (lambda: dataclasses.replace(MODEL, options=(("a", 1), ("a", 2))), ["'a' twice"]),
        (lambda: dataclasses.replace(DATA, image_size=0), ["data.image_size is 0"]),
        (lambda: dataclasses.replace(TRAIN, data=dataclasses.replace(DATA, image_size=64)), ["32", "64", "same"]),
        (lambda: OptimConfig(lr=-1), ["optim.lr is -1", "positive"]),
        (lambda: OptimConfig(lr=float("nan")), ["optim.lr is nan"]),
        (lambda: OptimConfig(lr=1e-4, min_lr=1e-3), ["optim.min_lr is 0.001", "0.0001"]),
        (lambda: OptimConfig(betas=(0.9, 1.0)), ["optim.betas is 1.0"]),
        (lambda: OptimConfig(name="sgd"), ["'sgd'", "'adamw'"]),  # pyright: ignore[reportArgumentType]
        (lambda: AugmentConfig(scale=(0.5, 0.2)), ["augment.scale is (0.5, 0.2)"]),
        (lambda: AugmentConfig(smoothing=1.0), ["augment.smoothing is 1.0"]),
        (lambda: AugmentConfig(ratio=(0.5, float("inf"))), ["augment.ratio is (0.5, inf)"]),
        (lambda: dataclasses.replace(DATA, mean=(float("nan"), 0.0, 0.0)), ["data.mean is nan"]),
        (lambda: dataclasses.replace(DATA, std=(1.0, 1.0, float("inf"))), ["data.std is (1.0, 1.0, inf)"]),
        (lambda: dataclasses.replace(DATA, mean=(123.7, 116.3, 103.5)), ["data.mean is (123.7", "0 … 1", "by 255"]),
        (lambda: dataclasses.replace(DATA, std=(58.4, 57.1, 57.4)), ["data.std is (58.4", "0 … 1", "by 255"]),
        (lambda: dataclasses.replace(DATA, mean=(-0.5, 0.0, 0.0)), ["data.mean is -0.5", "[0, 1]"]),
        (lambda: dataclasses.replace(DATA, std=(1e-300, 1.0, 1.0)), ["data.std is (1e-300", "1e-6 or more"]),
        (lambda: ReproduceConfig(claim="asa-kappa", seeds=0), ["seeds is 0", "1 or more"]),
        (lambda: ReproduceConfig(claim="asa-kappa", seeds=10**11), ["seeds is 100000000000", "1000 or fewer"]),
        (
            lambda: dataclasses.replace(MODEL, patch_size=5, graying=GrayingConfig(method="dct")),
            ["model.image_size is 32", "patches of 5", "for example 30"],
        ),
        (lambda: GrayingConfig(epsilon=0), ["graying.epsilon is 0"]),
        (lambda: GrayingConfig(epsilon=0.7), ["graying.epsilon is 0.7", "method is none", "dct or svd"]),
    ],
)
def test_a_bad_training_config_names_the_field_and_the_remedy(make, words):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        make()
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_nested_options_from_the_command_line():
    """tyro takes the whole config: --optim.lr, --model.graying.method, pairs and tuples."""
    import tyro

    words = "--model.name m --model.image-size 32 --model.num-classes 10 --data.train a --data.val b"
    words += " --data.image-size 32 --epochs 3 --batch-size 8 --optim.lr 0.01 --model.graying.method svd"
    words += " --optim.betas 0.8 0.9 --optim.clip 2 --data.augment.mixup 0.8 --model.options depth 4 qkv_bias False"
    config = tyro.cli(TrainConfig, args=words.split())
    assert config.optim == OptimConfig(lr=0.01, betas=(0.8, 0.9), clip=2.0)
    assert config.model.graying.method == "svd" and config.data.augment.mixup == 0.8
    assert config.model.options == (("depth", 4), ("qkv_bias", False))
