"""How badly conditioned is a model, block by block, with and without its skips?

Shows `wc.diagnose`: a table of log κ, findings in plain words, a page and a JSON file. Put your own model and your own
normalised images in place of `model` and `images`.
"""

import timm
import torch

import wellcond as wc
from wellcond.data.procedural import images as draw  # a shape on a 1/f background, as steep a spectrum as photographs

torch.manual_seed(0)
model = timm.create_model("vit_tiny_patch16_224", img_size=32, patch_size=4, embed_dim=48, depth=4, num_classes=10)
images = (torch.from_numpy(draw(8, size=32)).permute(0, 3, 1, 2) / 255 - 0.5) / 0.25

diagnosis = wc.diagnose(model, images)
print(diagnosis)
print("page:", diagnosis.to_html("example-diagnosis.html"), "numbers:", diagnosis.to_json("example-diagnosis.json"))

# the rows themselves: where is attention's output, alone, worse than what its skip makes of it?
log_kappa = {(row.layer, row.site): row.value for row in diagnosis.rows if row.quantity == "log_kappa"}
for layer in range(4):
    alone, after = log_kappa[layer, "sab_out"], log_kappa[layer, "sab_sum"]  # None: infinite on every image
    print(f"block {layer}: log κ {'∞' if alone is None else f'{alone:.1f}'} alone, {after:.1f} after the skip")

wc.cut_skips(model, attention=True, mlp=False)  # and without those skips
cut = wc.diagnose(model, images, jacobian=False)
print(f"log κ above 12 at {len(diagnosis.above(12))} places; without attention's skips at {len(cut.above(12))}")
