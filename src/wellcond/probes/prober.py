"""Sites in, rows and spectra out, in constant memory.

A site is measured on the device as soon as the model has computed it; only (B,) numbers are kept, and they come to
the host once for each batch: nothing else waits for a GPU. Spectra stay on the device until the end.
"""

import numpy as np
import torch
from torch import Tensor

from wellcond.blocks import attention_map, normalise
from wellcond.blocks.adapted import Adapted
from wellcond.blocks.branches import SOFTMAX_GAP, no_softmax, row_sum_gap
from wellcond.probes.quantities import (
    ATTENTION_QUANTITIES,
    FLOOR,
    LOGS,
    SPECTRAL,
    TOKEN_QUANTITIES,
    of_attention,
    of_tokens,
)
from wellcond.probes.rows import Measured, Moments, Place, Row, is_token_site, moments_of
from wellcond.probes.spectra import SpectrumMoments

_WITH_FLOOR = {*SPECTRAL, "attention_log_kappa"}


class Prober:
    """The sink of the recording: (layer, site, X) → numbers for each image; `gather` merges those of a batch."""

    def __init__(self, wanted: set[str], spectra: bool = False) -> None:
        self.of_tokens = [name for name in TOKEN_QUANTITIES if name in wanted] + [LOGS] * spectra
        self.of_attention = [name for name in ATTENTION_QUANTITIES if name in wanted]
        self.blocks: list[Adapted] = []
        self.num_prefix: list[int] = []
        self.shapes: dict[Place, tuple[int, int]] = {}
        self.moments: dict[tuple[Place, str], Moments] = {}
        self.batch: dict[tuple[Place, str], Tensor] = {}  # of the running batch, on the device
        self.spectra: dict[Place, SpectrumMoments] = {}
        self.row_sums: dict[int, Tensor] = {}  # layer → gap of its maps, not yet looked at
        self.if_refused: dict[int, str] = {}  # layer → what to say if it is too large
        self.no_map: dict[int, str] = {}  # layer → why it has no attention map
        self.repeated: set[int] = set()  # layers called again on the same images, of which the first call counts
        self.last: tuple[Tensor, int, dict[str, Tensor]] | None = None

    def begin(self, blocks: list[Adapted], num_prefix: list[int]) -> None:
        """The adapted blocks, and how many first tokens of each are left out."""
        self.blocks, self.num_prefix = blocks, num_prefix

    @torch.no_grad()
    def __call__(self, layer: int, site: str, X: Tensor) -> None:
        X = X.detach()
        prefix = self.num_prefix[layer]
        if self.of_tokens and X.shape[1] > prefix:
            patches = X[:, prefix:]
            self._keep((layer, site), patches, self._tokens(patches))
        if self.of_attention and site == "sab_in" and layer not in self.no_map:
            self._attention(layer, X, prefix)

    def _tokens(self, X: Tensor) -> dict[str, Tensor]:
        """Numbers of X; a block's input is mostly the output of the one before, and is not decomposed again."""
        if X.is_inference():  # no version to compare
            return of_tokens(X, self.of_tokens)
        if self.last is not None:
            Y, version, found = self.last
            if is_unchanged(X, Y, version):
                return found
        self.last = (X, X._version, of_tokens(X, self.of_tokens))  # holds X, so its memory is not another's
        return self.last[2]

    def _attention(self, layer: int, X: Tensor, prefix: int) -> None:
        place = (layer, "attention")
        new = place not in self.shapes
        try:
            Y = normalise(self.blocks[layer], "attention", X)
            A = attention_map(self.blocks[layer], Y, check=False)
        except ValueError as error:
            if not new:
                raise
            self.no_map[layer] = str(error)
            return
        if new:
            self.row_sums[layer] = row_sum_gap(A).max()
            self.if_refused[layer] = no_softmax(self.blocks[layer])  # now: it may not be adapted any more later
        A = A.unflatten(0, (len(X), -1))[..., prefix:, :]  # timm's windows: those of one image together
        found = of_attention(A, self.of_attention, first=prefix)
        self._keep(place, A, {name: values.mean(-1) for name, values in found.items()})
        for head in range(A.shape[2]):
            self._keep((layer, f"head_{head}"), A, {name: values[:, head] for name, values in found.items()})

    def _keep(self, place: Place, X: Tensor, found: dict[str, Tensor]) -> None:
        if any((place, name) in self.batch for name in found):
            self.repeated.add(place[0])
            return
        shape = (X.shape[-2], X.shape[-1])
        if self.shapes.setdefault(place, shape) != shape:
            raise ValueError(
                f"{place[1]} of block {place[0]} is {self.shapes[place]} in one batch and {shape} in another; "
                "numbers of different sizes do not average: pass images of one size"
            )
        self.batch |= {(place, name): values for name, values in found.items() if name != LOGS}
        if (logs := found.get(LOGS)) is not None:
            if place not in self.spectra:
                self.spectra[place] = SpectrumMoments(logs.shape[-1], logs)
            self.spectra[place].add(logs)

    def gather(self) -> None:
        """Bring the numbers of the batch to the host, all at once, and merge them."""
        self.last = None
        if self.batch:
            self.merge(self.numbers().cpu().numpy())

    def numbers(self) -> Tensor:
        """Those of the batch as one vector, still on the device."""
        return torch.cat([*(gap.double().reshape(1) for gap in self.row_sums.values()), *self.batch.values()])

    def merge(self, numbers: np.ndarray) -> None:
        """`numbers()`, come to the host, into the moments; the batch is over."""
        refused = {layer for layer, gap in zip(self.row_sums, numbers, strict=False) if gap > SOFTMAX_GAP}
        self.no_map |= {layer: self.if_refused[layer] for layer in refused}
        values = numbers[len(self.row_sums) :].reshape(len(self.batch), -1)
        for key, moments in zip(self.batch, moments_of(values), strict=True):
            (layer, site), _ = key
            if layer in refused and not is_token_site(site):
                self.shapes.pop(key[0], None)
            else:
                self.moments.setdefault(key, Moments()).add(*moments)
        self.batch, self.row_sums = {}, {}

    def measured(self) -> Measured:
        """All that was found; ValueError if that is nothing."""
        if not self.shapes:
            asked = [name for name in (*self.of_tokens, *self.of_attention) if name != LOGS]
            why = next(iter(self.no_map.values()), "no site has patch tokens")
            raise ValueError(f"nothing of {', '.join(asked)} can be measured: {why}")
        found = sorted(self.moments, key=lambda key: key[0][0])
        broken = [(place, self.moments[place, name].num_infinite) for place, name in found if name == FLOOR]
        places = sorted(self.spectra, key=lambda place: place[0])
        return Measured(
            rows=[self._row(place, name) for place, name in found if name != FLOOR],
            spectra=[self.spectra[place].spectrum(*place, *self.shapes[place]) for place in places],
            not_finite={place: count for place, count in broken if count and is_token_site(place[1])},
            no_map=self.no_map,
            repeated=self.repeated,
        )

    def _row(self, place: Place, name: str) -> Row:
        moments, (n, d) = self.moments[place, name], self.shapes[place]
        any_finite = moments.num_finite > 0
        return Row(
            layer=place[0],
            site=place[1],
            quantity=name,
            value=moments.mean if any_finite else None,
            std=moments.std if any_finite else None,
            floor_count=self.moments[place, FLOOR].mean if name in _WITH_FLOOR else 0,
            num_infinite=moments.num_infinite,
            num_images=moments.num_values,
            n=n,
            d=d,
        )


def is_unchanged(X: Tensor, Y: Tensor, version: int) -> bool:
    """Is X the tensor Y, which is still held, and has nothing been written into it since it had this version?"""
    same = (X.data_ptr(), X.shape, X.stride(), X.dtype) == (Y.data_ptr(), Y.shape, Y.stride(), Y.dtype)
    return same and X._version == version == Y._version
