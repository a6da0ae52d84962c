"""Declarative cases: prescribed matrices, synthetic images, and real photographs where they are at hand."""

import io
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import oracles
import pytest
import torch
from PIL import Image
from pyarrow import parquet

SHAPES = {"n<d": (12, 40), "n=d": (24, 24), "n>d": (50, 16), "n=1": (1, 17), "d=1": (17, 1)}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A batch of matrices with one prescribed spectrum, stored in `dtype`."""

    n: int
    d: int
    spectrum: str
    kappa: float
    dtype: torch.dtype
    batch: int = 2
    scale: float = 3.0
    seed: int = 0

    def __str__(self) -> str:
        return f"{self.n}x{self.d}-{self.spectrum}-{self.kappa:.0e}-{self.name}"

    @property
    def name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    def tensor(self) -> torch.Tensor:
        rng = np.random.default_rng([self.seed, self.n, self.d])
        sigma = self.scale * oracles.spectrum(self.spectrum, min(self.n, self.d), self.kappa, rng)
        X = np.stack([oracles.prescribed(self.n, self.d, sigma, rng)[0] for _ in range(self.batch)])
        return torch.from_numpy(X).to(self.dtype)


def stored(X: torch.Tensor) -> np.ndarray:
    """What the oracle sees: exactly the stored values, float64 or (float32 and lower) float32."""
    return X.detach().cpu().numpy() if X.dtype == torch.float64 else X.detach().cpu().float().numpy()


def _cases(dtype: torch.dtype, kappas: tuple[float, ...], spectra=oracles.SPECTRA) -> list[Case]:
    return [
        Case(n=n, d=d, spectrum=kind, kappa=kappa, dtype=dtype)
        for (n, d) in SHAPES.values()
        for kind in spectra
        for kappa in kappas
        if min(n, d) > 1 or (kind == spectra[0] and kappa == kappas[0])
    ]


EXACT = _cases(torch.float32, (10.0, 1e3, 1e5)) + _cases(torch.float64, (1e3, 1e8))
FLOAT32 = [case for case in EXACT if case.dtype == torch.float32]
STEEP = _cases(torch.float32, (1e6,), spectra=oracles.SPECTRA[:5]) + _cases(
    torch.float64, (1e6, 1e10), spectra=oracles.SPECTRA[:5]
)
LOW = _cases(torch.float16, (10.0,), spectra=("log-spaced",)) + _cases(torch.bfloat16, (10.0,), spectra=("log-spaced",))
DEFICIENT = [case for case in EXACT if case.spectrum == "rank-deficient" and min(case.n, case.d) > 1]
FULL_RANK = [case for case in EXACT if case.spectrum != "rank-deficient"]


def images(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random fields with a 1/f spectrum and correlated channels: the statistics of photographs."""
    rng = np.random.default_rng([seed, *shape])
    B, C, H, W = shape
    frequency = np.hypot(np.fft.fftfreq(H)[:, None] * H, np.fft.fftfreq(W)[None] * W)
    field = np.fft.fft2(rng.standard_normal((B, C + 1, H, W))) / (1 + frequency) ** 1.2
    field = np.fft.ifft2(field).real
    field = field[:, :1] + 0.3 * field[:, 1:]
    if field.size:
        field = (field - field.mean((1, 2, 3), keepdims=True)) / field.std((1, 2, 3), keepdims=True)
    return torch.from_numpy(field + 0.2).to(dtype)


def constant_images(B: int, H: int, W: int) -> torch.Tensor:
    """Each image one colour."""
    colours = torch.tensor([[0.7, -0.3, 1.1], [0.5, 0.5, 0.5], [-1.2, 0.1, 0.4]])[torch.arange(B) % 3]
    return colours[:, :, None, None].expand(B, 3, H, W).contiguous()


def data_folder() -> Path | None:
    """$WELLCOND_DATA, else `shared/data` beside the repository, else None."""
    beside = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ["WELLCOND_DATA"]) if "WELLCOND_DATA" in os.environ else beside
    return folder if folder.is_dir() else None


PHOTOGRAPHS = {  # name: (file, side in pixels, patch)
    "voc": ("voc2012-animals-seg-320/val-00000-of-00001.parquet", 224, 16),
    "tiny-imagenet": ("tiny-imagenet/val-00000-of-00001.parquet", 64, 8),
}


def photographs(name: str, num_images: int = 12) -> torch.Tensor:
    """(num_images, 3, side, side) normalised float32 pixels, centre-cropped, resized; skips when absent."""
    folder, (file, side, _) = data_folder(), PHOTOGRAPHS[name]
    if folder is None or not (folder / file).is_file():
        pytest.skip(f"no {file} under $WELLCOND_DATA")
    table = next(parquet.ParquetFile(folder / file).iter_batches(num_images, columns=["image"]))
    pixels = []
    for row in table.to_pylist():
        picture = Image.open(io.BytesIO(row["image"]["bytes"])).convert("RGB")
        edge = min(picture.size)
        left, top = (picture.width - edge) // 2, (picture.height - edge) // 2
        picture = picture.crop((left, top, left + edge, top + edge))
        if edge != side:
            picture = picture.resize((side, side), Image.Resampling.BICUBIC)
        pixels.append((np.asarray(picture, np.float64) / 255 - MEAN) / STD)
    return torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float().contiguous()
