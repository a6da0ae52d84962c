"""ViT-Tiny (12 blocks, 3 heads, width 192) on small pictures: Always Skip Attention, Figs. 1-5, 7, 8 and Table 2.

The paper names the model, the sets and k = 16. The rest is from public recipes of the same lab: AdamW, batch 512, 200
epochs, cosine 1e-3 → 1e-6, 10 epochs of warm-up, clip 3, weight decay .01, RandAugment m9-mstd0.5-inc1. Ours: the shift
by up to an eighth of the side and the mirror before RandAugment, that a short run warms up for a fifth of its epochs,
and that one under 50 goes without RandAugment, which slows learning down long before it helps.
"""

from dataclasses import replace

from ..config import AugmentConfig, DataConfig, ModelConfig, OptimConfig, TrainConfig

RANDAUGMENT = "rand-m9-mstd0.5-inc1"
LONG = 50  # epochs
# mean and deviation of each channel over the training pictures
CIFAR10 = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
CIFAR100 = (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
FASHION_MNIST = (0.2860, 0.2860, 0.2860), (0.3530, 0.3530, 0.3530)
TINY_IMAGENET = (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816)

Moments = tuple[tuple[float, float, float], tuple[float, float, float]]


def small_data(model: ModelConfig, source: str, moments: Moments, *, epochs: int) -> TrainConfig:
    """The recipe that all small sets share; about 40 evaluations and 20 measurements of κ, however long it is."""
    mean, std = moments
    randaugment = RANDAUGMENT if epochs >= LONG else None
    augment = AugmentConfig(crop="pad", padding=model.image_size // 8, randaugment=randaugment)
    return TrainConfig(
        model=model,
        data=DataConfig(train=source, val=source, image_size=model.image_size, augment=augment, mean=mean, std=std),
        optim=OptimConfig(lr=1e-3, min_lr=1e-6, weight_decay=0.01, clip=3.0, warmup_epochs=min(10, epochs / 5)),
        epochs=epochs,
        batch_size=512,
        compile=True,
        evaluate_every=max(1, epochs // 40),
        monitor_every=max(1, epochs // 20),
    )


def vit_tiny(*, image_size: int, patch_size: int, num_classes: int) -> ModelConfig:
    name = "vit_tiny_patch16_224"
    return ModelConfig(name=name, image_size=image_size, patch_size=patch_size, num_classes=num_classes)


def cifar10_vit_tiny(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on CIFAR-10, 32 px, patch 4: Always Skip Attention, Fig. 1c.

    command   wellcond train cifar10-vit-tiny --data cifar10:FOLDER    (or a folder, or parquet shards)
    variants  --model.cut-mlp-skips (without ④), --model.cut-attention-skips (without ②), --epochs 20,
              --model.patch-size 2 (256 tokens, probably the paper's)
    hardware  one GPU; the set stays in its memory
    time      asa-fig1c: 20.5 GPU-minutes of one H200 (results/asa-fig1c.json)
    expected  20 epochs: 76.0; without the FFN skip 22.0, without the attention skip 11.2 (results/asa-fig1c.json)
    paper     without the FFN skip about 2 points lower, without the attention skip about 22
    """
    return small_data(vit_tiny(image_size=32, patch_size=4, num_classes=10), "cifar10", CIFAR10, epochs=epochs)


def cifar100_vit_tiny(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on CIFAR-100, 32 px, patch 4: Always Skip Attention, Fig. 1c.

    command   wellcond train cifar100-vit-tiny --data cifar100:FOLDER    (or a folder, or parquet shards)
    variants  --model.cut-mlp-skips, --model.cut-attention-skips, --epochs 20, --model.patch-size 2
    hardware  one GPU; the set stays in its memory
    time      not measured
    expected  not measured
    paper     no number in its text: without the attention skip a catastrophic drop, without the FFN skip a modest one
    """
    return small_data(vit_tiny(image_size=32, patch_size=4, num_classes=100), "cifar100", CIFAR100, epochs=epochs)


def fashion_mnist_vit_tiny(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on Fashion-MNIST, 28 px, patch 4: the skips of Always Skip Attention, Fig. 1c, on a set it has not.

    command   wellcond train fashion-mnist-vit-tiny --data fashion-mnist:FOLDER
    variants  --model.cut-mlp-skips, --model.cut-attention-skips, --epochs 20
    hardware  one GPU; the set stays in its memory
    time      asa-fig1c: 20.5 GPU-minutes of one H200 (results/asa-fig1c.json)
    expected  20 epochs, two seeds: 88.5; without the FFN skip 82.3, without the attention skip 40.0
              (results/asa-fig1c.json)
    paper     none
    """
    model = vit_tiny(image_size=28, patch_size=4, num_classes=10)
    return small_data(model, "fashion-mnist", FASHION_MNIST, epochs=epochs)


def tiny_imagenet_vit_tiny(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on Tiny-ImageNet, 64 px, patch 8 (64 tokens): Always Skip Attention, Figs. 1c, 2, 7, 8, Tables 2, 3.

    command   wellcond train tiny-imagenet-vit-tiny --data FOLDER    (train/ and val/, or train-*.parquet …)
    variants  --model.attention linear --model.k 8, --model.graying.method dct --model.graying.epsilon 0.95,
              --model.graying.method svd --model.graying.epsilon 0.7, --model.cut-attention-skips, --epochs 60
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-table2: 76.9 GPU-minutes of one H200 (results/asa-table2.json),
              asa-table3: 42.8 GPU-minutes of one H200 (results/asa-table3.json),
              asa-fig1c: 20.5 GPU-minutes of one H200 (results/asa-fig1c.json),
              asa-fig2: 9.4 GPU-minutes of one H200 (results/asa-fig2.json),
              asa-fig7-8: 7.2 GPU-minutes of one H200 (results/asa-fig7-8.json)
    expected  20 epochs, two seeds: 41.1; without the FFN skip 23.4, without the attention skip 4.4
              (results/asa-fig1c.json); 60 epochs: 41.4, SVD 41.7, DCT 41.4, linear attention 39.9, SVD 42.1,
              DCT 41.2 (results/asa-table2.json)
    paper     top-1/top-5 with 256 tokens: softmax 43.0/67.3, SVD 44.7/69.7, DCT 44.8/69.7;
              linear 43.0/62.7, SVD 44.3/68.8, DCT 44.2/68.8; without the attention skip training fails
    """
    model = vit_tiny(image_size=64, patch_size=8, num_classes=200)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_vit_tiny_p4(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on Tiny-ImageNet, 64 px, patch 4 (256 tokens): Always Skip Attention, Table 2, Figs. 1b, 3-5.

    command   wellcond train tiny-imagenet-vit-tiny-p4 --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.attention linear --model.k 16, --model.graying.method dct --model.graying.epsilon 0.95,
              --model.graying.method svd --model.graying.epsilon 0.7, --model.cut-attention-skips
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-fig1b: 9.0 GPU-minutes of one H200 (results/asa-fig1b.json),
              asa-fig3-5: 24.3 GPU-minutes of one H200 (results/asa-fig3-5.json)
    expected  12 epochs: 37.7, with graying: SVD 37.5, DCT 37.9 (results/asa-table2.json)
    paper     top-1/top-5: softmax 43.0/67.3, SVD 44.7/69.7, DCT 44.8/69.7;
              linear (k = 16) 43.0/62.7, SVD 44.3/68.8, DCT 44.2/68.8
    """
    model = vit_tiny(image_size=64, patch_size=4, num_classes=200)
    return small_data(model, "tiny-imagenet", TINY_IMAGENET, epochs=epochs)


def tiny_imagenet_vit_tiny_strong(*, epochs: int = 200) -> TrainConfig:
    """ViT-Tiny on Tiny-ImageNet, 64 px, patch 8, regularized as DeiT: for Table 2 of Always Skip Attention, better.

    command   wellcond train tiny-imagenet-vit-tiny-strong --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.graying.method dct --model.graying.epsilon 0.95,
              --model.graying.method svd --model.graying.epsilon 0.7
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      asa-table2: 76.9 GPU-minutes of one H200 (results/asa-table2.json)
    expected  100 epochs, two seeds: 46.3, SVD 46.2, DCT 46.3 (results/asa-table2.json)
    paper     none with this recipe: softmax 43.0/67.3, SVD 44.7/69.7, DCT 44.8/69.7
    """
    plain = tiny_imagenet_vit_tiny(epochs=epochs)
    augment = replace(plain.data.augment, mixup=0.8, cutmix=1.0, erase=0.25, smoothing=0.1)
    return replace(plain, model=replace(plain.model, drop_path=0.1), data=replace(plain.data, augment=augment))


def procedural_vit(*, epochs: int = 6) -> TrainConfig:
    """A ViT of 6 blocks, 64 wide, on generated pictures of 32 px, patch 8: a first run, without data and without a GPU.

    command   wellcond train procedural-vit    (wellcond demo trains six variants of it)
    variants  --model.cut-mlp-skips, --model.cut-attention-skips, --model.graying.method dct
    hardware  any CPU
    time      not measured
    expected  not measured (chance is 10)
    paper     none
    """
    # AdamW as in the paper: with Muon, whose updates do not care for conditioning, the gap is far smaller.
    options = (
        ("embed_dim", 64),
        ("depth", 6),
        ("num_heads", 4),
        ("mlp_ratio", 3.0),
        ("class_token", False),
        ("global_pool", "avg"),
        ("weight_init", "reset"),  # as torch's layers start: so narrow a model takes epochs to grow out of timm's 0.02
    )
    return TrainConfig(
        model=ModelConfig(name="vit_tiny_patch16_224", image_size=32, patch_size=8, num_classes=10, options=options),
        data=DataConfig(
            train="procedural:8000",
            val="procedural:1000",
            image_size=32,
            augment=AugmentConfig(crop="none", flip=True),
        ),
        optim=OptimConfig(
            lr=2e-3, min_lr=2e-5, weight_decay=0.05, betas=(0.9, 0.99), clip=1.0, warmup_epochs=epochs / 3
        ),
        epochs=epochs,
        checkpoint_every=100,  # minutes on a laptop
        batch_size=64,
        precision="float32",
        log_every=10,
        monitor_every=1,
    )
