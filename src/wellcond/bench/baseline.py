"""A timm user's pipeline on small pictures: timm's model, loader, RandAugment and prefetcher, AMP, compiled.

`timm.data.create_loader` builds the transform for ImageNet: a random resized crop, a mirror, RandAugment. For pictures
of 32 px its first transform is replaced by a random crop from a frame of 4 pixels, as DeiT does for CIFAR. Pictures are
handed to it decoded, as torchvision's CIFAR-10 does.
"""

import time
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import auto_augment
from timm.data.loader import create_loader
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset
from torchvision.transforms import RandomCrop

from ..config import TrainConfig
from ..data.cache import Cache

WORKERS = 16


class Decoded(Dataset):
    """uint8 pictures (N, H, W, 3) as PIL images; `create_loader` sets the transform."""

    def __init__(self, cache: Cache) -> None:
        self.pixels = np.ascontiguousarray(cache.images.transpose(0, 2, 3, 1))
        self.labels = cache.labels.tolist()
        self.transform: Any = None

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


def posterize(image: Image.Image, bits: int, **words: Any) -> Image.Image:
    """timm's, which asks for 0 bits at the highest magnitude: new versions of Pillow refuse to blacken a picture so."""
    return auto_augment.posterize(image, max(bits, 1), **words)


def open_loader(config: TrainConfig, cache: Cache, device: torch.device, workers: int) -> Any:
    """timm's loader with the recipe's augmentation; `workers` processes, its own prefetcher, full batches only."""
    dataset, data = Decoded(cache), config.data
    loader = create_loader(
        dataset,  # pyright: ignore[reportArgumentType]
        input_size=(3, data.image_size, data.image_size),
        batch_size=config.batch_size,
        is_training=True,
        auto_augment=data.augment.randaugment,
        color_jitter=0.0,
        mean=data.mean,
        std=data.std,
        num_workers=workers,
        pin_memory=device.type == "cuda",
        device=device,
    )
    transforms = dataset.transform.transforms
    transforms[0] = RandomCrop(data.image_size, padding=data.augment.padding)
    for transform in transforms:
        for operation in getattr(transform, "ops", ()):
            if operation.name.startswith("Posterize"):
                operation.aug_fn = posterize
    return loader


class Baseline:
    """timm's model of the config's shape, trained as a timm user would: no graph."""

    def __init__(self, config: TrainConfig, loader: Any, device: torch.device) -> None:
        self.config, self.loader, self.device = config, loader, device
        on_cuda = device.type == "cuda"
        model = config.model
        words = {"patch_size": model.patch_size, **dict(model.options)}
        self.model: nn.Module = timm.create_model(
            model.name, img_size=model.image_size, num_classes=model.num_classes, **words
        ).to(device)
        self.forward: Any = torch.compile(self.model) if config.compile and on_cuda else self.model
        optim = config.optim
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=optim.lr, weight_decay=optim.weight_decay, fused=on_cuda
        )
        self.first_batch_s: list[float] = []  # how long each epoch waited for its first batch
        self.batch: tuple[Tensor, Tensor] | None = None

    def step(self, images: Tensor, labels: Tensor) -> Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.config.precision == "bf16"):
            loss = functional.cross_entropy(self.forward(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        if self.config.optim.clip is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.optim.clip)
        self.optimizer.step()
        return loss

    def epoch(self) -> None:
        """One pass over the loader; the loss is read as often as ours is written."""
        began = time.perf_counter()
        for number, (images, labels) in enumerate(self.loader):
            if not number:
                self.first_batch_s.append(time.perf_counter() - began)
                self.batch = images, labels
            loss = self.step(images, labels)
            if (number + 1) % self.config.log_every == 0:
                loss.item()

    def constant_epoch(self) -> None:
        """As many steps on one batch: what is left when data costs nothing."""
        assert self.batch is not None
        for _ in range(len(self.loader)):
            self.step(*self.batch)

    def load_epoch(self) -> None:
        """One pass over the loader without a model."""
        for _ in self.loader:
            pass
