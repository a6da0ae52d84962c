"""ViTs without any skip: Cutting the Skip (arXiv 2510.00345), Table 1 and Fig. 1; and ViT-S with skips, beside them.

A recipe of its own sets what belongs together: both skips cut, the initialization (α, β, c) = (2, 0.6, 3), no drop-path
(a branch without its skip cannot be dropped). All else is the recipe of the same model with its skips. The optimizer is
AdamW as there; SOAP, with the betas of its authors, is a variant, and so is timm's initialization, which lags.
"""

from dataclasses import replace

from ..config import InitConfig, ModelConfig, TrainConfig
from .imagenet import imagenet_vit_b
from .small import CIFAR10, TINY_IMAGENET, cifar10_vit_tiny, small_data, tiny_imagenet_vit_tiny


def without_skips(config: TrainConfig) -> TrainConfig:
    """The same, cut and initialized for it."""
    init = InitConfig(method="skipless")
    model = replace(config.model, cut_attention_skips=True, cut_mlp_skips=True, drop_path=0.0, init=init)
    return replace(config, model=model)


def cifar10_vit_tiny_skipless(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny without skips on CIFAR-10, 32 px, patch 4: Cutting the Skip, Table 1, small.

    command   wellcond train cifar10-vit-tiny-skipless --data cifar10:FOLDER    (or a folder, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95 --optim.lr 3e-3, --model.init.method default (lags),
              --model.init.alpha 0.5 (ours, ahead), --epochs 20, --model.activation centred-gelu,
              --model.graying.method dct
    hardware  one GPU; the set stays in its memory
    time      cts-table1: 34.3 GPU-minutes of one H200 (results/cts-table1.json),
              cts-init-depth: 23.0 GPU-minutes of one H200 (results/cts-init-depth.json),
              cts-rates: 38.7 GPU-minutes of one H200 (results/cts-rates.json),
              cts-beyond: 14.6 GPU-minutes of one H200 (results/cts-beyond.json),
              cts-gap: 24.0 GPU-minutes of one H200 (results/cts-gap.json)
    expected  20 epochs: SOAP 81.3; AdamW, --optim.lr 3e-4 65.1; with timm's initialization SOAP 69.0, AdamW 46.4; with
              skips SOAP 85.3, AdamW 76.6 (results/cts-table1.json); SOAP with the smaller α 84.3
              (results/cts-beyond.json), in 60 epochs 88.5, where with skips it is 90.0 (results/cts-gap.json)
    paper     ViT-B on ImageNet-1K, AdamW/SOAP: with skips 80.3/80.1, without 61.4/77.0, initialized 78.1/80.8
    """
    return without_skips(cifar10_vit_tiny(epochs=epochs))


def cifar10_vit_s(*, epochs: int = 200) -> TrainConfig:
    """ViT-S (384 wide, 6 heads) with its skips on CIFAR-10, 32 px, patch 4: what the skipless one is held against.

    command   wellcond train cifar10-vit-s --data cifar10:FOLDER    (or a folder, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95, --epochs 20
    hardware  one GPU; the set stays in its memory
    time      cts-gap: 24.0 GPU-minutes of one H200 (results/cts-gap.json)
    expected  20 epochs: SOAP, --optim.lr 3e-3 86.7 (results/cts-gap.json)
    paper     none at this size
    """
    model = ModelConfig(name="vit_small_patch16_224", image_size=32, patch_size=4, num_classes=10)
    return small_data(model, "cifar10", CIFAR10, epochs=epochs)


def cifar10_vit_s_skipless(*, epochs: int = 200) -> TrainConfig:
    """ViT-S without skips on CIFAR-10, 32 px, patch 4: Cutting the Skip, Table 1, small.

    command   wellcond train cifar10-vit-s-skipless --data cifar10:FOLDER    (or a folder, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95 --optim.lr 3e-3, --model.init.method default, --epochs 20,
              --model.init.alpha 0.5
    hardware  one GPU; the set stays in its memory
    time      cts-gap: 24.0 GPU-minutes of one H200 (results/cts-gap.json)
    expected  20 epochs: SOAP with the smaller α 83.7; with skips 86.7 (results/cts-gap.json)
    paper     ViT-B on ImageNet-1K, AdamW/SOAP: with skips 80.3/80.1, without 61.4/77.0, initialized 78.1/80.8
    """
    return without_skips(cifar10_vit_s(epochs=epochs))


def tiny_imagenet_vit_tiny_skipless(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny without skips on Tiny-ImageNet, 64 px, patch 8: Cutting the Skip, Table 1, small.

    command   wellcond train tiny-imagenet-vit-tiny-skipless --data FOLDER    (train/ and val/, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95 --optim.lr 3e-3, --model.init.method default, --epochs 60,
              --model.init.alpha 0.5
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      cts-table1: 34.3 GPU-minutes of one H200 (results/cts-table1.json),
              cts-beyond: 14.6 GPU-minutes of one H200 (results/cts-beyond.json)
    expected  20 epochs: SOAP 41.4; AdamW, --optim.lr 3e-4 28.2; with timm's initialization SOAP 22.9, AdamW 11.8; with
              skips SOAP 45.0, AdamW 41.6 (results/cts-table1.json); SOAP with the smaller α 42.7
              (results/cts-beyond.json)
    paper     ViT-B on ImageNet-1K, AdamW/SOAP: with skips 80.3/80.1, without 61.4/77.0, initialized 78.1/80.8
    """
    return without_skips(tiny_imagenet_vit_tiny(epochs=epochs))


def tiny_imagenet_vit_s(*, epochs: int = 200) -> TrainConfig:
    """ViT-S (384 wide, 6 heads) with its skips on Tiny-ImageNet, 64 px, patch 8: what the skipless one is held against.

    command   wellcond train tiny-imagenet-vit-s --data FOLDER    (train/ and val/, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95, --model.graying.method dct --model.graying.epsilon 0.95
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      cts-table1: 34.3 GPU-minutes of one H200 (results/cts-table1.json)
    expected  20 epochs, one seed: AdamW 38.9 (results/cts-table1.json)
    paper     none at this size
    """
    model = ModelConfig(name="vit_small_patch16_224", image_size=64, patch_size=8, num_classes=200)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_vit_s_skipless(*, epochs: int = 200) -> TrainConfig:
    """ViT-S without skips on Tiny-ImageNet, 64 px, patch 8: Cutting the Skip, Table 1, small.

    command   wellcond train tiny-imagenet-vit-s-skipless --data FOLDER    (train/ and val/, or parquet shards)
    variants  --optim.name soap --optim.betas 0.95 0.95 --optim.lr 3e-3, --model.init.method default, --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      cts-table1: 34.3 GPU-minutes of one H200 (results/cts-table1.json)
    expected  20 epochs, one seed: SOAP 41.1; with skips and AdamW 38.9 (results/cts-table1.json)
    paper     ViT-B on ImageNet-1K, AdamW/SOAP: with skips 80.3/80.1, without 61.4/77.0, initialized 78.1/80.8
    """
    return without_skips(tiny_imagenet_vit_s(epochs=epochs))


def imagenet_vit_b_skipless(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """ViT-B/16 without skips on ImageNet-1K: Cutting the Skip, Table 1 and Fig. 1.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-vit-b-skipless --data FOLDER --out runs/skipless
    variants  --optim.name soap --optim.betas 0.95 0.95, --model.init.method default,
              imagenet-vit-b --model.drop-path 0 (with skips)
    hardware  8 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     AdamW/SOAP: 78.1/80.8; with timm's initialization 61.4/77.0; with skips 80.3/80.1
    """
    return without_skips(imagenet_vit_b(epochs=epochs, batch_size=batch_size))
