"""Other families on small pictures, with the recipe of small.py: ConvMixer (Fig. 6), Swin, CaiT, PVT v2 (Table 4).

The paper's Table 4 is on ImageNet-1K (imagenet.py); these are its question at a size for one GPU.
"""

from ..config import ModelConfig, TrainConfig
from .small import CIFAR10, TINY_IMAGENET, small_data


def convmixer_tiny(*, image_size: int, patch_size: int, num_classes: int) -> ModelConfig:
    """Width 256, depth 8, kernel 5: the paper does not define its ConvMixer-Tiny, so these are ours."""
    return ModelConfig(name="convmixer_tiny", image_size=image_size, patch_size=patch_size, num_classes=num_classes)


def cifar10_convmixer_tiny(*, epochs: int = 200) -> TrainConfig:
    """ConvMixer-Tiny on CIFAR-10, 32 px, patch 2: Always Skip Attention, Fig. 6.

    command   wellcond train cifar10-convmixer-tiny --data cifar10:FOLDER    (or a folder, or parquet shards)
    variants  --model.cut-attention-skips (the skip around the depthwise convolution, which mixes tokens), --epochs 20
    hardware  one GPU; the set stays in its memory
    time      asa-fig6: 9.7 GPU-minutes of one H200 (results/asa-fig6.json)
    expected  20 epochs: 86.1; without the skip 83.1 (results/asa-fig6.json)
    paper     with and without the skip within 0.2 points
    """
    model = convmixer_tiny(image_size=32, patch_size=2, num_classes=10)
    return small_data(model, "cifar10", CIFAR10, epochs=epochs)


def tiny_imagenet_convmixer_tiny(*, epochs: int = 200) -> TrainConfig:
    """ConvMixer-Tiny on Tiny-ImageNet, 64 px, patch 4: Always Skip Attention, Fig. 6.

    command   wellcond train tiny-imagenet-convmixer-tiny --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.cut-attention-skips (the skip around the depthwise convolution, which mixes tokens), --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     with and without the skip within 0.2 points
    """
    model = convmixer_tiny(image_size=64, patch_size=4, num_classes=200)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_swin(*, epochs: int = 200) -> TrainConfig:
    """Swin-T (28 M weights) on Tiny-ImageNet, 64 px, patch 4, windows of 4: Always Skip Attention, Table 4, small.

    command   wellcond train tiny-imagenet-swin --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.graying.method dct --model.graying.epsilon 0.95, --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-table4: 22.1 GPU-minutes of one H200 (results/asa-table4.json)
    expected  12 epochs: 36.1, with DCT graying 36.7 (results/asa-table4.json)
    paper     Swin-S on ImageNet-1K: 81.3/95.6, with DCT graying 81.6/95.6
    """
    model = ModelConfig(
        name="swin_tiny_patch4_window7_224",
        image_size=64,
        num_classes=200,
        drop_path=0.1,
        options=(("window_size", 4),),  # 16 × 16 tokens; the last stage's 2 × 2 are one window
    )
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_cait(*, epochs: int = 200) -> TrainConfig:
    """CaiT-XXS24 (12 M weights) on Tiny-ImageNet, 64 px, patch 8: Always Skip Attention, Table 4, small.

    command   wellcond train tiny-imagenet-cait --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.graying.method dct --model.graying.epsilon 0.95, --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-table4: 22.1 GPU-minutes of one H200 (results/asa-table4.json)
    expected  12 epochs: 33.7, with DCT graying 33.6 (results/asa-table4.json)
    paper     CaiT-S24 on ImageNet-1K: 82.6/96.1, with DCT graying 82.7/96.3
    """
    model = ModelConfig(name="cait_xxs24_224", image_size=64, patch_size=8, num_classes=200, drop_path=0.05)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_pvt(*, epochs: int = 200) -> TrainConfig:
    """PVT v2 b1 (14 M weights) on Tiny-ImageNet, 64 px, stride 4: Always Skip Attention, Table 4, small.

    command   wellcond train tiny-imagenet-pvt --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.graying.method dct --model.graying.epsilon 0.95, --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-table4: 22.1 GPU-minutes of one H200 (results/asa-table4.json)
    expected  12 epochs: 42.5, with DCT graying 42.5 (results/asa-table4.json)
    paper     PVT v2 b3 on ImageNet-1K: 82.9/96.0, with DCT graying 83.0/96.1
    """
    model = ModelConfig(name="pvt_v2_b1", image_size=64, num_classes=200, drop_path=0.1)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)
