"""Stand-ins for the sets of the recipes: a few generated pictures as parquet, with as many classes as the real ones."""

import io
from pathlib import Path

import pyarrow
import pyarrow.parquet
from PIL import Image

from wellcond.data.procedural import procedural

NAMES = (
    "procedural-vit",
    "cifar10-vit-tiny",
    "cifar100-vit-tiny",
    "fashion-mnist-vit-tiny",
    "tiny-imagenet-vit-tiny",
    "tiny-imagenet-vit-tiny-p4",
    "tiny-imagenet-vit-tiny-strong",
    "cifar10-convmixer-tiny",
    "tiny-imagenet-convmixer-tiny",
    "tiny-imagenet-swin",
    "tiny-imagenet-cait",
    "tiny-imagenet-pvt",
    "imagenet-vit-s",
    "imagenet-vit-b",
    "imagenet-swin-s",
    "imagenet-cait-s24",
    "imagenet-pvt-v2-b3",
    "cifar10-vit-tiny-skipless",
    "cifar10-vit-s",
    "cifar10-vit-s-skipless",
    "tiny-imagenet-vit-tiny-skipless",
    "tiny-imagenet-vit-s",
    "tiny-imagenet-vit-s-skipless",
    "imagenet-vit-b-skipless",
    "procedural-mae",
    "procedural-dino",
    "tiny-imagenet-mae-vit-tiny",
    "tiny-imagenet-mae-vit-s",
    "tiny-imagenet-dino-vit-tiny",
    "tiny-imagenet-dino-vit-s",
    "tiny-imagenet-vit-tiny-finetune",
    "tiny-imagenet-vit-s-finetune",
    "imagenet-mae-vit-b",
    "imagenet-dino-vit-s",
    "imagenet-vit-b-finetune",
)
WITHOUT_LABELS = tuple(name for name in NAMES if "-mae" in name or "-dino" in name)
FINETUNE = {  # and what each starts from
    "tiny-imagenet-vit-tiny-finetune": "tiny-imagenet-mae-vit-tiny",
    "tiny-imagenet-vit-s-finetune": "tiny-imagenet-dino-vit-s",
    "imagenet-vit-b-finetune": "imagenet-mae-vit-b",
}


def stand_in(folder: Path, size: int, num_classes: int, *, train: int = 4, val: int = 3) -> Path:
    """train-*.parquet and val-*.parquet in the hub's schema; the last picture of each has the last label."""
    folder.mkdir(parents=True, exist_ok=True)
    for half, count in (("train", train), ("val", val)):
        rows = []
        for index in range(count):
            content = io.BytesIO()
            Image.fromarray(procedural(index, size=size, seed=half == "val").image).save(content, "PNG")
            label = num_classes - 1 if index == count - 1 else index % num_classes
            rows.append({"image": {"bytes": content.getvalue(), "path": f"{index}.png"}, "label": label})
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / f"{half}-00000-of-00001.parquet")
    return folder
