"""What a judge is, and which there are.

A judge looks at a `Subject` and yields (name, value) pairs. It gets both halves of the set, for judges that learn
something of their own on the training half (neighbours, a probe) as well as for those that only count. The last layer
has the plain name, layer 3 has `name@3`; which layers is in the settings. What can be shown goes to `subject.show`.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor, nn

from wellcond.evaluation import discovery, linear, segmentation
from wellcond.evaluation.accuracy import count_correct
from wellcond.evaluation.features import Backbone
from wellcond.evaluation.keeping import room
from wellcond.evaluation.knn import count_top, knn_votes
from wellcond.evaluation.pca import colours, principal_components
from wellcond.evaluation.scenes import by_size, stacked
from wellcond.evaluation.subject import Half, Subject
from wellcond.evaluation.tokencut import cut_layers

MOST_NUMBERS = 1 << 28  # in the features of layers that a probe is trained on together: 1 GiB
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
    for seen in _pooled(subject):
        votes = knn_votes(seen.train, seen.labels, seen.test, seen.num_classes, k=k, temperature=temperature)
        yield from _tops(votes, seen)
    yield "k", k


def judge_linear(subject: Subject) -> Iterator[tuple[str, float]]:
    """Top-1 and top-5 of a linear probe in percent; its learning rate was chosen on the training half alone."""
    schedule = linear.Schedule(epochs=subject.settings.probe_epochs)
    for together in _side_by_side(_pooled(subject)):
        features, first = torch.stack([seen.train for seen in together]), together[0]
        found = linear.probes(features, first.labels, first.num_classes, schedule=schedule)
        for seen, probe in zip(together, found, strict=True):
            yield from _tops(probe.head(seen.test)[0], seen)
            yield seen.named("rate"), probe.rate


def judge_segmentation(subject: Subject) -> Iterator[tuple[str, float]]:
    """Mean IoU of dense linear probes in percent: of each layer, and of four layers together (multi_scale)."""
    backbone = Backbone(subject.model, subject.forward)
    layers, quarters = backbone.layers(subject.settings.layers), backbone.quarters()
    needed = tuple(sorted({*layers, *quarters}))

    def read(images: Tensor) -> Mapping[str, Tensor]:
        tokens = backbone.read(images, needed, "patches")
        maps = {layer: x.float().mT.unflatten(-1, backbone.grid_of(images, x.shape[1])) for layer, x in tokens.items()}
        size = maps[quarters[-1]].shape[2:]
        joint = torch.cat([nn.functional.interpolate(maps[layer], size=size) for layer in quarters], 1)
        return {str(layer): maps[layer] for layer in layers} | {"-1": joint}

    settings = subject.settings
    schedule = segmentation.Schedule(epochs=settings.segmentation_epochs, rate=settings.segmentation_rate)
    heads = segmentation.train_heads(read, subject.segments("train"), subject.num_segments, schedule)
    matrices, seen = dict.fromkeys(heads, torch.zeros((), dtype=torch.int64)), 0
    with torch.no_grad():
        for images, masks in subject.segments("val"):
            for name, x in read(images).items():
                found = segmentation.upsampled(heads[name](x), masks).argmax(1)
                matrices[name] = matrices[name] + segmentation.confusion(masks, found, subject.num_segments)
                for place in range(min(len(found), settings.pictures - seen)):
                    subject.show("segments", int(name), seen + place, found[place].cpu().numpy())
            seen += len(masks)
    if not all(matrix.any() for matrix in matrices.values()):
        raise ValueError(f"the masks of all {seen} validation pictures are void; look at what is void, or give others")
    for layer in layers:
        yield _name("miou", layer, backbone), 100 * segmentation.mean_iou(matrices[str(layer)])
    yield "miou_multi_scale", 100 * segmentation.mean_iou(matrices["-1"])
    yield "images", seen


def judge_discovery(subject: Subject) -> Iterator[tuple[str, float]]:
    """TokenCut on attention keys: CorLoc, foreground IoU, and how many pictures have no unique answer, in percent."""
    backbone = Backbone(subject.model, subject.forward)
    backbone.check_keys()
    layers, patch = backbone.layers(subject.settings.layers), backbone.patch_size
    scores = {layer: discovery.Score() for layer in layers}
    for scenes in by_size(subject.scenes("val"), subject.settings.batch_size, patch):
        images = stacked(scenes, patch, backbone.device)
        if backbone.grid(images) == (1, 1):
            raise ValueError(f"{scenes[0].name} is a single patch, which cannot be cut in two; choose a larger size")
        shown = [place for place, scene in enumerate(scenes) if scene.index < subject.settings.pictures]
        for layer, cut in cut_layers(backbone.read(images, layers, "keys"), backbone.grid(images)):
            boxes = discovery.add(scores[layer], cut, scenes, patch)
            for place in shown:
                found = discovery.object_mask(cut.component[place].cpu().numpy(), scenes[place], patch)
                subject.show("object", layer, scenes[place].index, (boxes[place].tolist(), found))
    for layer, score in scores.items():
        if not score.pictures:
            raise ValueError("there are no pictures to discover objects in; check the validation source")
        if not (score.boxed or score.masked or score.empty):
            raise ValueError(f"none of {score.pictures} pictures has a box or a mask; give a set in which some have")
        if score.empty and not score.masked:
            raise ValueError(
                f"none of {score.empty} masks holds an object; look at which of their values are the foreground"
            )
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
            for scene, picture in zip(scenes, colours(scores, backbone.grid_of(images, tokens.shape[1])), strict=True):
                subject.show("pca", layer, scene.index, picture.cpu().numpy())
    for layer, found in shares.items():
        if not found:
            raise ValueError("there are no pictures to make PCA maps of; check the validation source")
        yield _name("explained", layer, backbone), 100 * sum(found) / len(found)
    yield "images", len(shares[layers[-1]])


class _Pooled(NamedTuple):
    """One feature for each picture, of one layer."""

    train: Tensor  # (N, d)
    labels: Tensor  # (N,)
    test: Tensor
    truth: Tensor
    num_classes: int  # of the labels, which need not be the model's
    named: Callable[[str], str]


def _pooled(subject: Subject) -> Iterator[_Pooled]:
    """Of each layer. Whoever comes first reads both halves; the next takes over what memory could keep."""
    backbone = Backbone(subject.model, subject.forward, pool=subject.settings.pool)
    layers = backbone.layers(subject.settings.layers)
    halves = subject.kept.pop("pooled", None)
    if halves is None:
        halves = [_read_pooled(subject, backbone, layers, half) for half in ("train", "val")]
        size = sum(x.numel() * x.itemsize for features, _ in halves for x in features.values())
        if size <= room(backbone.device):
            subject.kept["pooled"] = halves
    (train, labels), (test, truth) = halves
    if (labels == labels[0]).all():
        raise ValueError(f"all training pictures have one class, {int(labels[0])}; give a set with two or more")
    num_classes = int(torch.maximum(labels.max(), truth.max())) + 1
    for layer in layers:
        named = partial(_name, layer=layer, backbone=backbone)
        yield _Pooled(train[layer], labels, test[layer], truth, num_classes, named)


def _read_pooled(
    subject: Subject, backbone: Backbone, layers: tuple[int, ...], half: Half
) -> tuple[dict[int, Tensor], Tensor]:
    """Features (N, d) by layer and labels (N,) of a half, in one pass over it."""
    kept: dict[int, list[Tensor]] = {layer: [] for layer in layers}
    labels = []
    for images, truth in subject.batches(half):
        labels.append(truth)
        for layer, x in backbone.read(images, layers, "pooled").items():
            kept[layer].append(x if x.dtype == torch.float64 else x.float())
    if not labels:
        raise ValueError(f"there are no {half} images; check the source")
    return {layer: torch.cat(parts) for layer, parts in kept.items()}, torch.cat(labels)


def _side_by_side(layers: Iterator[_Pooled]) -> Iterator[list[_Pooled]]:
    """Neighbours of one width together, as many as may be copied."""
    group: list[_Pooled] = []
    for seen in layers:
        features = seen.train
        if group and (features.shape != group[0].train.shape or (len(group) + 1) * features.numel() > MOST_NUMBERS):
            yield group
            group = []
        group.append(seen)
    yield group


def _tops(scores: Tensor, seen: _Pooled) -> Iterator[tuple[str, float]]:
    top1, top5 = count_top(scores, seen.truth)
    yield seen.named("top1"), 100 * top1 / len(seen.truth)
    yield seen.named("top5"), 100 * top5 / len(seen.truth)


def _name(what: str, layer: int, backbone: Backbone) -> str:
    return what if layer == backbone.num_layers - 1 else f"{what}@{layer}"


JUDGES: dict[str, Judge] = {
    "accuracy": judge_accuracy,
    "knn": judge_knn,
    "linear": judge_linear,
    "segmentation": judge_segmentation,
    "discovery": judge_discovery,
    "pca": judge_pca,
}
