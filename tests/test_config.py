"""Configs: frozen, complete, ⇄ JSON."""

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wellcond.config import BenchConfig, DemoConfig, GrayConfig, ReproduceConfig, from_json, to_json

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
)
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


@given(gray_configs() | demo_configs | bench_configs | reproduce_configs)
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
