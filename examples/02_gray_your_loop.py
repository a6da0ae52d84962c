"""Token Graying in a plain PyTorch loop: the lines marked ← are new.

`wc.gray` grays what the model sees, inside the model, so that loop, optimizer and checkpoints stay as they are;
`wc.Monitor` measures every block while it trains. Printed: the loss, log κ by block, and what graying does to κ.
"""

import timm
import torch
from torch.nn.functional import cross_entropy

import wellcond as wc
from wellcond.data.procedural import images as draw

torch.manual_seed(0)
images = (torch.from_numpy(draw(40, size=32)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25
labels = torch.arange(40) % 10

model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=4, num_classes=10)
model = wc.gray(model, method="dct", epsilon=0.95)  # ←
monitor = wc.Monitor(model, every=20, budget=None)  # ←
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

for step in range(1, 61):
    loss = cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    monitor.step()  # ←
    if step % 20 == 0:
        print(f"step {step}  loss {loss.item():.3f}")
monitor.close()

for row in monitor.rows:
    if (row.site, row.quantity) == ("sab_sum", "log_kappa") and row.value is not None:
        print(f"block {row.layer}: log κ {row.value:.2f} after attention and its skip")

patches = images.reshape(40, 3, 4, 8, 4, 8).permute(0, 2, 4, 3, 5, 1).reshape(40, 16, 192)  # 16 tokens a picture
before, after = (
    wc.condition_number(X, log=True).mean().item() for X in (patches, wc.gray_tokens(patches, "dct", 0.95))
)
print(f"log κ of what the model is fed: {before:.2f}, grayed {after:.2f}")

wc.ungray(model)  # plain again; the keys of its state_dict were the same all along, so checkpoints move both ways
