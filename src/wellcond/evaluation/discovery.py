"""Object discovery scored: boxes of TokenCut against true boxes (CorLoc), its objects against true masks (IoU).

CorLoc is the share of pictures whose box has IoU ≥ 0.5 with any true box. Foreground IoU is that of the object's
patches with the true mask, both in pixels, void left out; its mean over pictures. A picture without boxes does not
count for the one, one without a mask, or whose mask holds no object, not for the other: TokenCut names an object in
every picture, so where there is none it says nothing about the features.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wellcond.evaluation.boxes import box_iou
from wellcond.evaluation.scenes import Scene
from wellcond.evaluation.tokencut import Cut

ENOUGH = 0.5
VOID = 255


@dataclass
class Score:
    """Counts over pictures so far."""

    hits: int = 0
    boxed: int = 0
    overlap: float = 0.0
    masked: int = 0
    empty: int = 0  # masks that hold no object
    tied: int = 0
    pictures: int = 0

    def values(self) -> dict[str, float]:
        """In percent; what no picture could be judged by is left out."""
        found = {"corloc": 100 * self.hits / self.boxed} if self.boxed else {}
        found |= {"foreground_iou": 100 * self.overlap / self.masked} if self.masked else {}
        return found | ({"tied": 100 * self.tied / self.pictures} if self.pictures else {})


def boxes_in_pixels(cut: Cut, scenes: Sequence[Scene], patch_size: tuple[int, int]) -> Tensor:
    """(B, 4) int64 on the CPU: the boxes of the cut, cut off at the edges of the pictures, where padding begins."""
    p, q = patch_size
    box = cut.box.cpu() * torch.tensor([q, p, q, p])
    edges = torch.tensor([[scene.size[1], scene.size[0]] * 2 for scene in scenes])
    return torch.minimum(box, edges)


def object_mask(component: np.ndarray, scene: Scene, patch_size: tuple[int, int]) -> np.ndarray:
    """Patches (h, w) bool → pixels (H, W) of the picture."""
    height, width = scene.size
    return component.repeat(patch_size[0], 0).repeat(patch_size[1], 1)[:height, :width]


def add(score: Score, cut: Cut, scenes: Sequence[Scene], patch_size: tuple[int, int]) -> Tensor:
    """Count a batch; returns its boxes (B, 4) in pixels."""
    boxes, components = boxes_in_pixels(cut, scenes, patch_size), cut.component.cpu().numpy()
    true = {i: scene.boxes for i, scene in enumerate(scenes) if scene.boxes is not None and len(scene.boxes)}
    if true:
        owner = torch.tensor([i for i, of_scene in true.items() for _ in of_scene])
        right = box_iou(boxes[owner].double(), torch.cat(list(true.values())).double()) >= ENOUGH
        score.hits += len(owner[right].unique())
        score.boxed += len(true)
    for component, scene in zip(components, scenes, strict=True):
        if scene.mask is None or not (known := scene.mask.numpy() != VOID).any():
            continue
        if (truth := scene.mask.numpy()[known] > 0).any():
            score.overlap += mask_iou(object_mask(component, scene, patch_size)[known], truth)
            score.masked += 1
        else:
            score.empty += 1
    score.tied += int(cut.tied.sum())
    score.pictures += len(scenes)
    return boxes


def mask_iou(found: np.ndarray, truth: np.ndarray) -> float:
    """Of two bool arrays, of which the second is not empty."""
    return np.count_nonzero(found & truth) / np.count_nonzero(found | truth)
