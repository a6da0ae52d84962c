"""What a judge is, and which there are.

A judge looks at a `Subject` and yields (name, value) pairs. It gets both halves of the set, for judges that learn
something of their own on the training half (neighbours, a probe) as well as for those that only count. The last layer
has the plain name, layer 3 has `name@3`; which layers is in the settings. What can be shown goes to `subject.show`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

import torch
from torch import Tensor, nn

from wellcond.evaluation import discovery, linear, segmentation
from wellcond.evaluation.accuracy import count_correct
from wellcond.evaluation.features import Backbone
from wellcond.evaluation.knn import count_top, knn_votes
from wellcond.evaluation.pca import colours, principal_components
from wellcond.evaluation.scenes import Scene, by_size, stacked
from wellcond.evaluation.settings import Settings
from wellcond.evaluation.tokencut import token_cut

Half = Literal["train", "val"]
Batches = Iterable[tuple[Tensor, Tensor]]
Show = Callable[[str, int, int, Any], None]  # what, layer (−1: multi-scale), number of the picture, how it looks


def _absent(what: str) -> Callable[[Half], Any]:
    def absent(half: Half) -> Any:
        raise ValueError(f"this judge needs pictures with {what}; give them to the subject")

    return absent


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A trained model, in eval mode on its device, and the pictures to judge it on."""

    model: nn.Module
    forward: Callable[[Tensor], Tensor]
    """The model's call in the precision that it was trained in."""
    batches: Callable[[Half], Batches]
    """Normalised images (B, C, H, W) and labels (B,) of a half, each picture once, in order, without augmentation."""
    num_classes: int
    scenes: Callable[[Half], Iterable[Scene]] = field(default_factory=lambda: _absent("boxes or masks"))
    """Pictures of a half at their own size, with boxes or masks."""
    segments: "Callable[[Half], segmentation.Batches]" = field(default_factory=lambda: _absent("masks"))
    """Squares of a half with their masks, each picture once, in order."""
    num_segments: int = 0
    """Classes of the masks."""
    settings: Settings = Settings()
    show: Show = lambda what, layer, index, value: None


Judge = Callable[[Subject], Iterator[tuple[str, float]]]


def judge_accuracy(subject: Subject) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 in percent over the validation half, and how many images that was."""
    top1, top5, images = count_correct(subject.model, subject.batches("val"), forward=subject.forward).tolist()
    yield "top1", 100 * top1 / images
    yield "top5", 100 * top5 / images
    yield "images", images


def judge_knn(subject: Subject) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 of the nearest neighbours among the training half, in percent."""
    k, temperature = subject.settings.k, subject.settings.temperature
    for layer, train, labels, test, truth, named in _pooled(subject):
        votes = knn_votes(train, labels, test, subject.num_classes, k=k, temperature=temperature)
        yield from _tops(votes, truth, named)
    yield "k", k


def judge_linear(subject: Subject) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 of a linear probe in percent; its learning rate was chosen on the training half alone."""
    schedule = linear.Schedule(epochs=subject.settings.probe_epochs)
    for layer, train, labels, test, truth, named in _pooled(subject):
        probe = linear.probe(train, labels, subject.num_classes, schedule=schedule)
        yield from _tops(probe.head(test)[0], truth, named)
        yield named("rate"), probe.rate


def judge_segmentation(subject: Subject) -> Iterator[tuple[str, float]]:
    """Mean IoU of dense linear probes in percent: of each layer, and of four layers together (multi_scale)."""
    backbone = Backbone(subject.model, subject.forward)
    layers, quarters = backbone.layers(subject.settings.layers), backbone.quarters()
    needed = tuple(sorted({*layers, *quarters}))

    def read(images: Tensor) -> Mapping[str, Tensor]:
        tokens = backbone.read(images, needed, "patches")
        maps = {layer: x.float().mT.unflatten(-1, _grid(backbone, images, x)) for layer, x in tokens.items()}
        size = maps[quarters[-1]].shape[2:]
        joint = torch.cat([nn.functional.interpolate(maps[layer], size=size) for layer in quarters], 1)
        return {str(layer): maps[layer] for layer in layers} | {"-1": joint}

    settings = subject.settings
    schedule = segmentation.Schedule(epochs=settings.segmentation_epochs, rate=settings.segmentation_rate)
    heads = segmentation.train_heads(read, subject.segments("train"), subject.num_segments, schedule)
    matrices, seen = dict.fromkeys(heads, torch.zeros(())), 0
    with torch.no_grad():
        for images, masks in subject.segments("val"):
            for name, x in read(images).items():
                found = segmentation.upsampled(heads[name](x), masks).argmax(1)
                matrices[name] = matrices[name] + segmentation.confusion(masks, found, subject.num_segments)
                for place in range(min(len(found), settings.pictures - seen)):
                    subject.show("segments", int(name), seen + place, found[place].cpu().numpy())
            seen += len(masks)
    for layer in layers:
        yield _name("miou", layer, backbone), 100 * segmentation.mean_iou(matrices[str(layer)])
    yield "miou_multi_scale", 100 * segmentation.mean_iou(matrices["-1"])
    yield "images", seen


def judge_discovery(subject: Subject) -> Iterator[tuple[str, float]]:
    """TokenCut on attention keys: CorLoc and foreground IoU, and how many pictures have no unique answer, in percent."""
    backbone = Backbone(subject.model, subject.forward)
    backbone.check_keys()
    layers, patch = backbone.layers(subject.settings.layers), backbone.patch_size
    scores = {layer: discovery.Score() for layer in layers}
    for scenes in by_size(subject.scenes("val"), subject.settings.batch_size, patch):
        images = stacked(scenes, patch, backbone.device)
        for layer, keys in backbone.read(images, layers, "keys").items():
            cut = token_cut(keys, backbone.grid(images))
            boxes = discovery.add(scores[layer], cut, scenes, patch)
            for scene, box, component in zip(scenes, boxes, cut.component.cpu().numpy(), strict=True):
                if scene.index < subject.settings.pictures:
                    found = discovery.object_mask(component, scene, patch)
                    subject.show("object", layer, scene.index, (box.tolist(), found))
    for layer, score in scores.items():
        if not score.pictures:
            raise ValueError("there are no pictures to discover objects in; check the validation source")
        for what, value in score.values().items():
            yield _name(what, layer, backbone), value
    yield "images", scores[layers[-1]].pictures


def judge_pca(subject: Subject) -> Iterator[tuple[str, float]]:
    """Maps of the first three principal components of the first pictures, and the share of variance they explain."""
    backbone = Backbone(subject.model, subject.forward)
    layers, patch = backbone.layers(subject.settings.layers), backbone.patch_size
    shares: dict[int, list[float]] = {layer: [] for layer in layers}
    first = islice(subject.scenes("val"), subject.settings.pictures)
    for scenes in by_size(first, subject.settings.batch_size, patch):
        images = stacked(scenes, patch, backbone.device)
        for layer, tokens in backbone.read(images, layers, "patches").items():
            scores, share = principal_components(tokens)
            shares[layer] += share.sum(1).tolist()
            for scene, picture in zip(scenes, colours(scores, _grid(backbone, images, tokens)), strict=True):
                subject.show("pca", layer, scene.index, picture.cpu().numpy())
    for layer, found in shares.items():
        if not found:
            raise ValueError("there are no pictures to make PCA maps of; check the validation source")
        yield _name("explained", layer, backbone), 100 * sum(found) / len(found)
    yield "images", len(shares[layers[-1]])


def _pooled(subject: Subject) -> Iterator[tuple[int, Tensor, Tensor, Tensor, Tensor, Callable[[str], str]]]:
    """(layer, training features, labels, test features, labels, how it is called) of each layer, after one pass."""
    backbone = Backbone(subject.model, subject.forward)
    layers = backbone.layers(subject.settings.layers)
    halves: list[tuple[dict[int, Tensor], Tensor]] = []
    for half in ("train", "val"):
        kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}
        labels = []
        for images, truth in subject.batches(half):
            labels.append(truth)
            for layer, x in backbone.read(images, layers, "pooled").items():
                kept[layer].append(x if x.dtype == torch.float64 else x.float())
        if not labels:
            raise ValueError(f"there are no {half} images; check the source")
        halves.append(({layer: torch.cat(parts) for layer, parts in kept.items()}, torch.cat(labels)))
    (train, labels), (test, truth) = halves
    for layer in layers:
        yield layer, train[layer], labels, test[layer], truth, lambda what, at=layer: _name(what, at, backbone)


def _tops(scores: Tensor, truth: Tensor, named: Callable[[str], str]) -> Iterator[tuple[str, float]]:
    top1, top5 = count_top(scores, truth)
    yield named("top1"), 100 * top1 / len(truth)
    yield named("top5"), 100 * top5 / len(truth)


def _name(what: str, layer: int, backbone: Backbone) -> str:
    return what if layer == backbone.num_layers - 1 else f"{what}@{layer}"


def _grid(backbone: Backbone, images: Tensor, tokens: Tensor) -> tuple[int, int]:
    """Of tokens (B, n, d); a pyramid halves its grid from stage to stage."""
    h, w = backbone.grid(images)
    while h * w > tokens.shape[1]:
        h, w = -(-h // 2), -(-w // 2)
    if h * w != tokens.shape[1]:
        raise ValueError(f"{tokens.shape[1]} tokens are no grid of a picture with {backbone.grid(images)} patches")
    return h, w


JUDGES: dict[str, Judge] = {
    "accuracy": judge_accuracy,
    "knn": judge_knn,
    "linear": judge_linear,
    "segmentation": judge_segmentation,
    "discovery": judge_discovery,
    "pca": judge_pca,
}
