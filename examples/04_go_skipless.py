"""A vision transformer without any skip: from its usual weights it does not train, from `wc.init_skipless_` it does.

`wc.verify_init` says beforehand which of the two it will be, from weights and a few images (arXiv 2510.00345).
"""

import timm
import torch
from torch.nn.functional import cross_entropy

import wellcond as wc
from wellcond.data.procedural import images as draw

torch.manual_seed(0)
images = (torch.from_numpy(draw(160, size=32)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
labels = torch.arange(160) % 10


def skipless(initialize: bool) -> torch.nn.Module:
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=6, num_classes=10)
    wc.cut_skips(model)
    return wc.init_skipless_(model) if initialize else model


def train(model: torch.nn.Module, steps: int = 50) -> list[float]:
    optimizer = wc.SOAP(model.parameters(), lr=3e-3, betas=(0.95, 0.95))
    losses = []
    for _ in range(steps):
        batch = torch.randint(len(images), (32,))
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


for name, initialize in (("usual weights", False), ("init_skipless_", True)):
    model = skipless(initialize)
    print(f"{name}. {wc.verify_init(model, images[:4], jacobian=False).verdict}")
    losses = train(model)
    print(f"{name}: loss {losses[0]:.2f} → {sum(losses[-10:]) / 10:.2f}; that of guessing is 2.30\n")
