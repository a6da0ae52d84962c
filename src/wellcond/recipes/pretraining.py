"""MAE and DINO, and fine-tuning from them: Always Skip Attention, Table 5; Cutting the Skip, Figs. 2 and 3.

MAE (He et al., 2021) as Always Skip Attention says: batch 2048, 1.5e-4 per 256 images, weight decay .05, 400 epochs;
and as its authors do: betas (.9, .95), a tenth of the epochs of warm-up, random resized crops of area .2 … 1 and a
mirror, mask .75, decoder 8 × 512. Fine-tuned with layer decay .65, drop-path .1, mixup .8, CutMix 1, on the mean of the
patches.

DINO (Caron et al., 2021): AdamW, 5e-4 per 256 images, 10 epochs of warm-up of 300, weight decay .04 → .4, clip 3 (of
the whole gradient; theirs is of each tensor), teacher .996 → 1, temperature .04 → .07 over 30 epochs, out 65536, last
layer frozen for an epoch, 2 crops of area .4 … 1 and 8 of .05 … .4 at 96 px.

On Tiny-ImageNet, 64 px, patches are of 8: 64 tokens, as in the supervised recipe, a quarter of those of patches of 4,
which are an option (--model.patch-size 4, for DINO with --dino.local-size 28). There the decoder is 4 × 192 or 256,
DINO's small crops are of 32 px and it has 4096 prototypes: ours.
"""

from dataclasses import replace

from ..config import (
    AugmentConfig,
    DataConfig,
    DINOConfig,
    MAEConfig,
    ModelConfig,
    OptimConfig,
    TrainConfig,
)
from .small import RANDAUGMENT, TINY_IMAGENET, procedural_vit

VIT_TINY, VIT_S, VIT_B = "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_224"
PLAIN = AugmentConfig()  # DINO's crops have colours of their own
MASKED = AugmentConfig(crop="resized", scale=(0.2, 1.0))
TUNED = AugmentConfig(crop="resized", randaugment=RANDAUGMENT, mixup=0.8, cutmix=1.0, erase=0.25, smoothing=0.1)


def tiny_imagenet(augment: AugmentConfig) -> DataConfig:
    mean, std = TINY_IMAGENET
    name = "tiny-imagenet"
    return DataConfig(train=name, val=name, image_size=64, augment=augment, mean=mean, std=std)


def imagenet(augment: AugmentConfig) -> DataConfig:
    return DataConfig(train="imagenet", val="imagenet", image_size=224, workers=16, augment=augment)


def masked(model: ModelConfig, data: DataConfig, decoder: MAEConfig, *, epochs: int, batch_size: int) -> TrainConfig:
    """The recipe that all MAE runs share."""
    lr = 1.5e-4 * batch_size / 256
    return TrainConfig(
        model=model,
        data=data,
        objective="mae",
        mae=decoder,
        optim=OptimConfig(lr=lr, min_lr=0.0, weight_decay=0.05, betas=(0.9, 0.95), warmup_epochs=epochs / 10),
        epochs=epochs,
        batch_size=batch_size,
        compile=True,
        evaluate_every=max(1, epochs // 40),
        monitor_every=max(1, epochs // 20),
    )


def distilled(model: ModelConfig, data: DataConfig, dino: DINOConfig, *, epochs: int, batch_size: int) -> TrainConfig:
    """The recipe that all DINO runs share."""
    lr = 5e-4 * batch_size / 256
    optim = OptimConfig(
        lr=lr,
        min_lr=min(1e-6, lr),
        weight_decay=0.04,
        weight_decay_end=0.4,
        clip=3.0,
        warmup_epochs=min(10, epochs / 10),
    )
    return TrainConfig(
        model=model,
        data=data,
        objective="dino",
        dino=dino,
        optim=optim,
        epochs=epochs,
        batch_size=batch_size,
        compile=True,
        evaluate_every=max(1, epochs // 20),
        monitor_every=max(1, epochs // 20),
    )


def tuned(model: ModelConfig, data: DataConfig, pretrained: str, *, epochs: int, batch_size: int) -> TrainConfig:
    """The recipe that all fine-tuning shares."""
    lr = 5e-4 * batch_size / 256
    return TrainConfig(
        model=model,
        data=data,
        pretrained=pretrained,
        optim=OptimConfig(lr=lr, min_lr=min(1e-6, lr), weight_decay=0.05, warmup_epochs=epochs / 20, layer_decay=0.65),
        epochs=epochs,
        batch_size=batch_size,
        compile=True,
        evaluate_every=max(1, epochs // 40),
        monitor_every=max(1, epochs // 20),
    )


def backbone(name: str, *, image_size: int, patch_size: int, drop_path: float = 0.0) -> ModelConfig:
    return ModelConfig(name=name, image_size=image_size, patch_size=patch_size, num_classes=0, drop_path=drop_path)


def classifier(name: str, *, image_size: int, patch_size: int, num_classes: int) -> ModelConfig:
    """With the head on the mean of the patches, as MAE is fine-tuned."""
    return ModelConfig(
        name=name,
        image_size=image_size,
        patch_size=patch_size,
        num_classes=num_classes,
        drop_path=0.1,
        options=(("global_pool", "avg"),),
    )


def tiny_imagenet_mae_vit_tiny(*, epochs: int = 400, batch_size: int = 1024) -> TrainConfig:
    """MAE of ViT-Tiny on Tiny-ImageNet, 64 px, patch 8: Always Skip Attention, Table 5, small.

    command   wellcond train tiny-imagenet-mae-vit-tiny --data FOLDER    (then tiny-imagenet-vit-tiny-finetune)
    variants  --model.graying.method dct --model.graying.epsilon 0.95, and with it --mae.visible;
              --model.cut-attention-skips --model.cut-mlp-skips --mae.long-skips; --model.patch-size 4
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     ViT-B on ImageNet-1K, fine-tuned: 83.0/96.4, with DCT graying 83.2/96.6
    """
    decoder = MAEConfig(decoder_depth=4, decoder_width=192, decoder_heads=3)
    model = backbone(VIT_TINY, image_size=64, patch_size=8)
    return masked(model, tiny_imagenet(MASKED), decoder, epochs=epochs, batch_size=batch_size)


def tiny_imagenet_mae_vit_s(*, epochs: int = 400, batch_size: int = 1024) -> TrainConfig:
    """MAE of ViT-S on Tiny-ImageNet, 64 px, patch 8: Always Skip Attention, Table 5, small.

    command   wellcond train tiny-imagenet-mae-vit-s --data FOLDER    (then tiny-imagenet-vit-s-finetune)
    variants  --model.graying.method dct --model.graying.epsilon 0.95, and with it --mae.visible;
              --model.cut-attention-skips --model.cut-mlp-skips --mae.long-skips; --model.patch-size 4
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     ViT-B on ImageNet-1K, fine-tuned: 83.0/96.4, with DCT graying 83.2/96.6
    """
    decoder = MAEConfig(decoder_depth=4, decoder_width=256, decoder_heads=4)
    model = backbone(VIT_S, image_size=64, patch_size=8)
    return masked(model, tiny_imagenet(MASKED), decoder, epochs=epochs, batch_size=batch_size)


def imagenet_mae_vit_b(*, epochs: int = 400, batch_size: int = 2048) -> TrainConfig:
    """MAE of ViT-B/16 on ImageNet-1K: Always Skip Attention, Table 5.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-mae-vit-b --data FOLDER --out runs/mae-vit-b
    variants  --model.graying.method dct --model.graying.epsilon 0.95, and with it --mae.visible
    hardware  8 GPUs, or fewer with --accumulate; then imagenet-vit-b-finetune --pretrained runs/mae-vit-b
    time      not measured
    expected  not measured
    paper     fine-tuned: 83.0/96.4, with DCT graying 83.2/96.6
    """
    model = backbone(VIT_B, image_size=224, patch_size=16)
    return masked(model, imagenet(MASKED), MAEConfig(), epochs=epochs, batch_size=batch_size)


def tiny_imagenet_dino_vit_tiny(*, epochs: int = 100, batch_size: int = 512) -> TrainConfig:
    """DINO of ViT-Tiny on Tiny-ImageNet, 64 px, patch 8: Cutting the Skip, Figs. 2, 3 and its dense probes, small.

    command   wellcond train tiny-imagenet-dino-vit-tiny --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.cut-attention-skips --model.cut-mlp-skips --model.init.method skipless --model.init.alpha 1.8
              --model.init.beta 1, --optim.name soap, --model.patch-size 4 --dino.local-size 28, --epochs 300,
              --along.judges knn segmentation=VOC discovery=VOC --along.every 5 (judged along the way)
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      cts-dense: 19.6 GPU-minutes of one H200 (results/cts-dense.json),
              cts-fig2: 19.0 GPU-minutes of one H200 (results/cts-fig2.json),
              cts-fig3: 19.0 GPU-minutes of one H200 (results/cts-fig3.json)
    expected  24 epochs, AdamW: linear probe 18.7, skipless 4.2 (results/cts-dense.json);
              SOAP: CorLoc on VOC animals 42.0, skipless 7.5 (results/cts-fig3.json)
    paper     ViT-S on ImageNet-1K, skip → skipless: VOC2012 mIoU of one layer 56.3 → 62.3, CorLoc 49.4 → 63.2
    """
    return _small_dino(VIT_TINY, epochs=epochs, batch_size=batch_size)


def tiny_imagenet_dino_vit_s(*, epochs: int = 100, batch_size: int = 512) -> TrainConfig:
    """DINO of ViT-S on Tiny-ImageNet, 64 px, patch 8: Cutting the Skip, Figs. 2, 3 and its dense probes, small.

    command   wellcond train tiny-imagenet-dino-vit-s --data FOLDER    (train/ and val/, or parquet shards)
    variants  --model.cut-attention-skips --model.cut-mlp-skips --model.init.method skipless --model.init.alpha 1.8
              --model.init.beta 1, --optim.name soap, --model.patch-size 4 --dino.local-size 28, --epochs 300,
              --along.judges knn segmentation=VOC discovery=VOC --along.every 5 (judged along the way)
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     ViT-S on ImageNet-1K, skip → skipless: VOC2012 mIoU of one layer 56.3 → 62.3, CorLoc 49.4 → 63.2
    """
    return _small_dino(VIT_S, epochs=epochs, batch_size=batch_size)


def imagenet_dino_vit_s(*, epochs: int = 300, batch_size: int = 1024) -> TrainConfig:
    """DINO of ViT-S/16 on ImageNet-1K: Cutting the Skip, Figs. 2, 3 and its dense probes.

    command   torchrun --nproc-per-node 16 -m wellcond train imagenet-dino-vit-s --data FOLDER --out runs/dino-vit-s
    variants  --model.cut-attention-skips --model.cut-mlp-skips --model.init.method skipless --model.init.alpha 1.8
              --model.init.beta 1, --optim.name soap
    hardware  16 GPUs, or fewer with --accumulate; FOLDER has train/ and val/, or train-*.parquet and val-*.parquet
    time      not measured
    expected  not measured
    paper     skip → skipless: VOC2012 mIoU of one layer 56.3 → 62.3, multi-scale 61.6 → 65.4; CorLoc 49.4 → 63.2
    """
    model = backbone(VIT_S, image_size=224, patch_size=16, drop_path=0.1)
    dino = DINOConfig(temperature_epochs=min(30.0, epochs / 10))
    return distilled(model, imagenet(PLAIN), dino, epochs=epochs, batch_size=batch_size)


def tiny_imagenet_vit_tiny_finetune(*, epochs: int = 100, batch_size: int = 512) -> TrainConfig:
    """ViT-Tiny on Tiny-ImageNet from a run without labels: Always Skip Attention, Table 5, small.

    command   wellcond train tiny-imagenet-vit-tiny-finetune --data FOLDER --pretrained runs/x
    variants  --model.graying.method dct --model.graying.epsilon 0.95, as the run had; --optim.layer-decay 0.75
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     ViT-B on ImageNet-1K: 83.0/96.4, with DCT graying 83.2/96.6
    """
    model = classifier(VIT_TINY, image_size=64, patch_size=8, num_classes=200)
    source = "runs/tiny-imagenet-mae-vit-tiny-seed0"
    return tuned(model, tiny_imagenet(TUNED), source, epochs=epochs, batch_size=batch_size)


def tiny_imagenet_vit_s_finetune(*, epochs: int = 100, batch_size: int = 512) -> TrainConfig:
    """ViT-S on Tiny-ImageNet from a run without labels: Always Skip Attention, Table 5, small.

    command   wellcond train tiny-imagenet-vit-s-finetune --data FOLDER --pretrained runs/x
    variants  --model.graying.method dct --model.graying.epsilon 0.95, as the run had; --optim.layer-decay 0.75
    hardware  one GPU; the set (1.2 GB decoded) stays in its memory
    time      not measured
    expected  not measured
    paper     ViT-B on ImageNet-1K: 83.0/96.4, with DCT graying 83.2/96.6
    """
    model = classifier(VIT_S, image_size=64, patch_size=8, num_classes=200)
    source = "runs/tiny-imagenet-mae-vit-s-seed0"
    return tuned(model, tiny_imagenet(TUNED), source, epochs=epochs, batch_size=batch_size)


def imagenet_vit_b_finetune(*, epochs: int = 100, batch_size: int = 512) -> TrainConfig:
    """ViT-B/16 on ImageNet-1K from a run without labels: Always Skip Attention, Table 5.

    command   torchrun --nproc-per-node 8 -m wellcond train imagenet-vit-b-finetune --data FOLDER --pretrained runs/x
    variants  --model.graying.method dct --model.graying.epsilon 0.95, as the run had
    hardware  8 GPUs, or fewer with --accumulate
    time      not measured
    expected  not measured
    paper     83.0/96.4, with DCT graying 83.2/96.6
    """
    model = classifier(VIT_B, image_size=224, patch_size=16, num_classes=1000)
    return tuned(model, imagenet(TUNED), "runs/imagenet-mae-vit-b-seed0", epochs=epochs, batch_size=batch_size)


def procedural_mae(*, epochs: int = 6) -> TrainConfig:
    """MAE of a ViT of 6 blocks, 64 wide, on generated pictures of 32 px, patch 8: without data and without a GPU.

    command   wellcond train procedural-mae    (then procedural-vit --pretrained runs/procedural-mae-seed0)
    variants  --model.cut-mlp-skips, --model.cut-attention-skips, --model.graying.method dct, --mae.long-skips
    hardware  any CPU
    time      not measured
    expected  not measured; every patch painted grey has a loss of 1
    paper     none
    """
    base = procedural_vit(epochs=epochs)
    return replace(
        base,
        model=replace(base.model, num_classes=0),
        data=replace(base.data, augment=replace(MASKED, scale=(0.5, 1.0))),
        objective="mae",
        mae=MAEConfig(decoder_depth=2, decoder_width=64, decoder_heads=4),
        optim=replace(base.optim, betas=(0.9, 0.95)),
    )


def procedural_dino(*, epochs: int = 12) -> TrainConfig:
    """DINO of a ViT of 6 blocks, 64 wide, on generated pictures of 32 px, patch 8: without data and without a GPU.

    command   wellcond train procedural-dino
    variants  --model.cut-mlp-skips, --model.cut-attention-skips, --model.graying.method dct
    hardware  any CPU
    time      not measured
    expected  not measured; answers that say nothing have a loss of ln 256 = 5.55
    paper     none
    """
    base = procedural_vit(epochs=epochs)
    dino = DINOConfig(
        out_dim=256,
        hidden=512,
        local_crops=4,
        local_size=16,
        momentum=0.99,
        teacher_temperature=0.04,
        global_scale=(0.5, 1.0),
        local_scale=(0.15, 0.5),
    )
    return replace(
        base,
        model=replace(base.model, num_classes=0),
        data=replace(base.data, augment=PLAIN),
        objective="dino",
        dino=dino,
        optim=replace(base.optim, lr=5e-4, min_lr=1e-5, weight_decay=0.04, clip=3.0, warmup_epochs=epochs / 10),
        epochs=epochs,
    )


def _small_dino(name: str, *, epochs: int, batch_size: int) -> TrainConfig:
    dino = DINOConfig(out_dim=4096, local_size=32, temperature_epochs=min(30.0, epochs / 10))
    model = backbone(name, image_size=64, patch_size=8)
    return distilled(model, tiny_imagenet(PLAIN), dino, epochs=epochs, batch_size=batch_size)
