"""Top-1 and top-5, against a loop over numpy's argsort."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from wellcond.evaluation import count_correct


class Table(nn.Module):
    """Answers with prescribed logits: an image holds its own number."""

    logits: torch.Tensor

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("logits", logits)
        self.drop = nn.Dropout(0.9)

    def forward(self, images):
        return self.drop(self.logits[images[:, 0, 0, 0].long()])


def batches(labels, size):
    images = torch.arange(len(labels)).view(-1, 1, 1, 1)
    return [(images[i : i + size], labels[i : i + size]) for i in range(0, len(labels), size)]


@given(st.integers(1, 40), st.integers(2, 12), st.integers(1, 16), st.integers(0, 1000))
def test_against_a_loop(count, classes, size, seed):
    rng = np.random.default_rng(seed)
    logits, labels = rng.standard_normal((count, classes)), rng.integers(classes, size=count)
    order = np.argsort(-logits, axis=1)
    top1 = sum(labels[i] == order[i, 0] for i in range(count))
    top5 = sum(labels[i] in order[i, :5] for i in range(count))
    found = count_correct(Table(torch.from_numpy(logits)), batches(torch.from_numpy(labels), size))
    assert found.tolist() == [top1, top5, count]


@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 1000))
def test_of_equal_logits_the_smaller_class_wins(count, classes, seed):
    rng = np.random.default_rng(seed)
    logits, labels = rng.integers(3, size=(count, classes)).astype(np.float32), rng.integers(classes, size=count)
    order = np.argsort(-logits, axis=1, kind="stable")
    top1 = int((logits.argmax(1) == labels).sum())
    top5 = sum(labels[i] in order[i, :5] for i in range(count))
    table = Table(torch.from_numpy(logits).bfloat16())
    assert count_correct(table, batches(torch.from_numpy(labels), 7)).tolist() == [top1, top5, count]


def test_a_model_that_says_nothing_is_at_chance():
    labels = torch.arange(10).repeat(10)
    assert count_correct(Table(torch.zeros(100, 10)), batches(labels, 32)).tolist() == [10, 50, 100]


def test_padding_is_not_counted_and_nan_is_wrong():
    logits = torch.tensor([[1.0, 0.0], [1.0, 0.0], [float("nan"), 0.0]])
    assert count_correct(Table(logits), batches(torch.tensor([0, -1, 1]), 3)).tolist() == [1, 1, 2]


def test_the_model_is_left_as_it_was():
    model = Table(torch.eye(3)).train()
    model.drop.eval()
    count_correct(model, batches(torch.tensor([0, 1, 2]), 2))
    assert model.training and not model.drop.training
    broken = [(torch.zeros(1, 1, 1, 1), torch.tensor([7]))]
    with pytest.raises((RuntimeError, IndexError)):
        count_correct(model, broken)
    assert model.training


def test_no_images_is_told():
    with pytest.raises(ValueError, match="no images to evaluate on"):
        count_correct(Table(torch.eye(2)), [])


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_a_scripted_model_is_left_as_it_was():
    """It keeps its mode elsewhere than other modules."""
    model = torch.jit.script(nn.Sequential(nn.Flatten(), nn.Linear(1, 3), nn.Dropout()))
    count_correct(model, [(torch.ones(2, 1, 1, 1), torch.tensor([0, 1]))])
    assert model.training and (model(torch.ones(200, 1, 1, 1)) == 0).any()
