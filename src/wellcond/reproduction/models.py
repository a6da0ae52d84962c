"""Small vision transformers on procedural pictures, for claims about random and about briefly trained weights."""

from dataclasses import dataclass

import timm
import torch
from torch import Tensor, nn

from ..attention import set_attention
from ..data.procedural import CLASSES, procedural
from ..pictures import MEAN, STD


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A plain ViT: (side/patch)² patches and a class token of `width`, in `depth` blocks."""

    side: int
    patch: int
    width: int
    heads: int
    depth: int

    @property
    def num_tokens(self) -> int:
        return (self.side // self.patch) ** 2 + 1

    @property
    def k(self) -> float:
        """Of linear attention: the root of the number of patches, as the paper's 16 is for 256."""
        return self.side / self.patch


def build(shape: Shape, attention: str, seed: int) -> nn.Module:
    """timm's ViT with its own initialization, float32, eval; drawn from `seed`, the global state stays as it was."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # timm draws its weights from torch's global generator
        model = timm.create_model(
            "vit_tiny_patch16_224",
            img_size=shape.side, patch_size=shape.patch, embed_dim=shape.width, num_heads=shape.heads,
            depth=shape.depth, num_classes=len(CLASSES),
        )  # fmt: skip
    return set_attention(model, "linear", k=shape.k).eval() if attention == "linear" else model.eval()


def pictures(count: int, side: int, seed: int, first: int = 0) -> tuple[Tensor, Tensor]:
    """Normalised pixels (count, 3, side, side), float32, and labels."""
    samples = [procedural(first + i, size=side, seed=seed) for i in range(count)]
    pixels = torch.stack([torch.from_numpy(sample.image) for sample in samples]).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(v)[:, None, None] for v in (MEAN, STD))
    return (pixels - mean) / std, torch.tensor([sample.label for sample in samples])


def train_(model: nn.Module, images: Tensor, labels: Tensor, steps: int, seed: int) -> float:
    """AdamW, batches of 64, a constant rate: enough to move the weights well away from where they began.

    In place; leaves the model in eval mode. Returns the share of the training pictures it then names right.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    model.train()
    for _ in range(steps):
        batch = torch.randint(len(images), (64,), generator=generator)
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 3.0)
        optimizer.step()
    model.eval()
    with torch.no_grad():
        right = torch.cat([model(part).argmax(-1) for part in images.split(256)]) == labels
    return float(right.float().mean())
