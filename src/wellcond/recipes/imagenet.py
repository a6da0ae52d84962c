"""ImageNet-1K, 224 px, 300 epochs: Always Skip Attention, Tables 1, 3 and 4. One recipe for all five models.

The paper names the models and timm; this is DeiT's recipe (Touvron et al., 2021): AdamW, 5e-4 per 512 images, 5 epochs
of warm-up, cosine to a hundredth, weight decay .05, random resized crops, RandAugment m9-mstd0.5-inc1, mixup .8, CutMix
1, erasing .25, smoothing .1, drop-path .1, each picture three times in a batch. Drop-path is .1 for all, though the
authors of Swin-S and PVT v2 b3 take .3: one set for all rows.

Pictures are decoded once into squares of 256 px (shorter side resized, centre kept), from which crops are taken: the
cache needs 262 GB of disk and is streamed; a crop never reaches what lies outside the centre square.
"""

from ..config import AugmentConfig, DataConfig, ModelConfig, OptimConfig, TrainConfig
from .small import RANDAUGMENT

AUGMENT = AugmentConfig(
    crop="resized",
    randaugment=RANDAUGMENT,
    mixup=0.8,
    cutmix=1.0,
    erase=0.25,
    repeats=3,
    smoothing=0.1,
)


def deit_like(name: str, *, epochs: int, batch_size: int) -> TrainConfig:
    """The recipe that all models share; a shorter run warms up for the same 1/60."""
    lr = 5e-4 * batch_size / 512
    return TrainConfig(
        model=ModelConfig(name=name, image_size=224, num_classes=1000, drop_path=0.1),
        data=DataConfig(train="imagenet", val="imagenet", image_size=224, workers=16, augment=AUGMENT),
        optim=OptimConfig(lr=lr, min_lr=lr / 100, weight_decay=0.05, warmup_epochs=epochs / 60),
        epochs=epochs,
        batch_size=batch_size,
        compile=True,
        evaluate_every=max(1, epochs // 60),
        monitor_every=max(1, epochs // 30),
        checkpoint_every=2000,
    )


def imagenet_vit_s(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """ViT-S/16 on ImageNet-1K: Always Skip Attention, Table 4.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-vit-s --data FOLDER --out runs/vit-s
    variants  --model.graying.method dct --model.graying.epsilon 0.95
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     80.2/95.1, with DCT graying 80.4/95.2
    """
    return deit_like("vit_small_patch16_224", epochs=epochs, batch_size=batch_size)


def imagenet_vit_b(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """ViT-B/16 on ImageNet-1K: Always Skip Attention, Tables 1, 3 and 4.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-vit-b --data FOLDER --out runs/vit-b
    variants  --model.graying.method dct --model.graying.epsilon 0.95 (.97 … .85),
              --model.graying.method svd --model.graying.epsilon 0.7 (.9 … .5)
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      asa-table1: 1.1 GPU-minutes of one H200 (results/asa-table1.json), single steps; 300 epochs: not measured
    expected  not measured
    paper     81.0/95.3, with DCT .95 81.3/95.4; SVD .7 81.4; days of training 0.723, DCT 0.732, SVD 4.552
    """
    return deit_like("vit_base_patch16_224", epochs=epochs, batch_size=batch_size)


def imagenet_swin_s(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """Swin-S (patch 4, windows of 7) on ImageNet-1K: Always Skip Attention, Table 4.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-swin-s --data FOLDER --out runs/swin-s
    variants  --model.graying.method dct --model.graying.epsilon 0.95, --model.drop-path 0.3 (Swin's own)
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     81.3/95.6, with DCT graying 81.6/95.6
    """
    return deit_like("swin_small_patch4_window7_224", epochs=epochs, batch_size=batch_size)


def imagenet_cait_s24(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """CaiT-S24 on ImageNet-1K: Always Skip Attention, Table 4.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-cait-s24 --data FOLDER --out runs/cait-s24
    variants  --model.graying.method dct --model.graying.epsilon 0.95
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     82.6/96.1, with DCT graying 82.7/96.3
    """
    return deit_like("cait_s24_224", epochs=epochs, batch_size=batch_size)


def imagenet_pvt_v2_b3(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """PVT v2 b3 on ImageNet-1K: Always Skip Attention, Table 4.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-pvt-v2-b3 --data FOLDER --out runs/pvt-v2-b3
    variants  --model.graying.method dct --model.graying.epsilon 0.95, --model.drop-path 0.3 (PVT v2's own)
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     82.9/96.0, with DCT graying 83.0/96.1
    """
    return deit_like("pvt_v2_b3", epochs=epochs, batch_size=batch_size)
