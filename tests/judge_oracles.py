"""Slow, obvious versions of what evaluation/ computes: numpy, scipy and loops, float64. Imports nothing of ours."""

import math
from typing import cast

import numpy as np
import scipy.linalg
import scipy.ndimage


def token_cut(features: np.ndarray, grid: tuple[int, int], tau: float = 0.2, epsilon: float = 1e-5):
    """One picture: (box x0, y0, x1, y1 in patches, object (h, w), eigenvector (h, w), whether a tie decided)."""
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    A = np.where(unit @ unit.T > tau, 1.0, epsilon)
    D = np.diag(A.sum(1))
    values, vectors = scipy.linalg.eigh(D - A, D)
    y = vectors[:, 1]
    foreground = y > y.mean()
    seed = np.argmax(np.abs(y))
    if not foreground[seed]:
        foreground, y = ~foreground, -y
    labels, _ = cast(tuple[np.ndarray, int], scipy.ndimage.label(foreground.reshape(grid)))
    found = labels == labels.reshape(-1)[seed]
    rows, columns = np.nonzero(found)
    equal = np.abs(y) >= (1 - 1e-5) * np.abs(y).max()
    tie = values[2] - values[1] < 1e-8 or bool((equal.reshape(grid) & ~found).any())
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
    return tuple(int(v) for v in box), found, y.reshape(grid), tie


def knn_votes(train, labels, test, num_classes: int, k: int, temperature: float) -> np.ndarray:
    """Votes (M, C), each row divided by its largest weight."""
    votes = np.zeros((len(test), num_classes))
    for row, query in enumerate(test):
        similarity = []
        for key in train:
            cosine = sum(a * b for a, b in zip(query, key, strict=True))
            similarity.append(cosine / math.sqrt(sum(a * a for a in query)) / math.sqrt(sum(b * b for b in key)))
        nearest = sorted(range(len(train)), key=lambda i: -similarity[i])[:k]
        for i in nearest:
            votes[row, labels[i]] += math.exp((similarity[i] - similarity[nearest[0]]) / temperature)
    return votes


def mean_iou(truth: np.ndarray, found: np.ndarray, num_classes: int, void: int = 255) -> float:
    shares = []
    for c in range(num_classes):
        common = union = 0
        for t, f in zip(truth.reshape(-1), found.reshape(-1), strict=True):
            if t == void:
                continue
            common += t == c and f == c
            union += t == c or f == c
        if union:
            shares.append(common / union)
    return sum(shares) / len(shares)


def box_iou(a, b) -> float:
    """By counting pixels of integer boxes, ends exclusive."""
    one = {(x, y) for x in range(a[0], a[2]) for y in range(a[1], a[3])}
    other = {(x, y) for x in range(b[0], b[2]) for y in range(b[1], b[3])}
    return len(one & other) / len(one | other) if one | other else 0.0
