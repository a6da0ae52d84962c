"""Token Graying in timm's own loop: its loader, Mixup, optimizer, scheduler and weight average, as in its train.py.

The lines marked ← are new; in a copy of train.py the first two stand right after `create_model`.
"""

import timm
import torch
from PIL import Image
from timm.data import Mixup, create_loader
from timm.loss import SoftTargetCrossEntropy
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import ModelEmaV3

import wellcond as wc
from wellcond.data.procedural import procedural


class Pictures(torch.utils.data.Dataset):
    """Yours: timm.data.create_dataset("folder", root="imagenet/train"); its transform comes from `create_loader`."""

    transform = None

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = procedural(index, size=32)
        return self.transform(Image.fromarray(drawn.image)), drawn.label


torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10)
model = wc.gray(model, method="svd", epsilon=0.7)  # ←
monitor = wc.Monitor(model, every=4, budget=None)  # ←

loader = create_loader(Pictures(), (3, 32, 32), batch_size=32, is_training=True, use_prefetcher=False, num_workers=0)
mixup = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=10)
optimizer = create_optimizer_v2(model, opt="adamw", lr=1e-3, weight_decay=0.05)
scheduler, epochs = create_scheduler_v2(optimizer, sched="cosine", num_epochs=3, warmup_epochs=1, warmup_lr=1e-5)
average, criterion = ModelEmaV3(model, decay=0.99), SoftTargetCrossEntropy()

for epoch in range(epochs):
    for images, labels in loader:
        images, labels = mixup(images, labels)
        loss = criterion(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
        monitor.step()  # ←
    scheduler.step(epoch + 1)
    kappa = {row.layer: row.value for row in monitor.rows if (row.site, row.quantity) == ("sab_in", "log_kappa")}
    print(f"epoch {epoch}  loss {loss.item():.3f}  log κ into block 0 {kappa[0]:.2f}, into block 3 {kappa[3]:.2f}")
monitor.close()
