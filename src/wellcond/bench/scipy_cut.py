"""TokenCut as one writes it with scipy, one picture at a time: what the batched one is timed against.

Nothing here uses wellcond. scipy is a dev dependency and is imported by whoever asks for the baseline.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

Box = tuple[int, int, int, int]


def baseline() -> Callable[[NDArray[np.float32], tuple[int, int]], Box]:
    """cut(features (n, d), grid) → the box in patches; ValueError where there is no scipy."""
    try:
        from scipy.linalg import eigh
        from scipy.ndimage import label
    except ImportError:
        raise ValueError("bench tokencut is against scipy, which is not here; pip install scipy") from None

    def cut(features: NDArray[np.float32], grid: tuple[int, int]) -> Box:
        unit = features / np.linalg.norm(features, axis=1, keepdims=True)
        A = np.where(unit @ unit.T > 0.2, 1.0, 1e-5)
        D = np.diag(A.sum(1))
        _, vectors = eigh(D - A, D, subset_by_index=[1, 1])  # not all n eigenvectors: that would be slower
        y = vectors[:, 0]
        foreground, seed = y > y.mean(), int(np.argmax(np.abs(y)))
        if not foreground[seed]:
            foreground = ~foreground
        numbers: NDArray[np.int32] = label(foreground.reshape(grid))[0]  # pyright: ignore[reportIndexIssue, reportAssignmentType]
        rows, columns = np.nonzero(numbers == numbers.reshape(-1)[seed])
        return int(columns.min()), int(rows.min()), int(columns.max()) + 1, int(rows.max()) + 1

    return cut
