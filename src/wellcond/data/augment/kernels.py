"""Triton kernels of RandAugment: what its statistics and one of its layers cost only the pictures that need them.

A program owns a stretch of one picture and branches on that picture's operation: nothing is computed to be thrown away.
They follow `statistics`, `tables`, `enhancing` and `affine` operation by operation, and are launched without fused
multiply-adds: the same bits. Floor 6.

Legend: pictures uint8 (B, 3, H, W) contiguous, `area` = H·W, `place` a pixel of the picture.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportArgumentType=false, reportCallIssue=false

import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024


@triton.jit
def _grey(pixels, area, place, inside):
    red = tl.load(pixels + place, mask=inside, other=0).to(tl.int32)
    green = tl.load(pixels + area + place, mask=inside, other=0).to(tl.int32)
    blue = tl.load(pixels + 2 * area + place, mask=inside, other=0).to(tl.int32)
    return (19595 * red + 38470 * green + 7471 * blue + 0x8000) >> 16


@triton.jit
def _product(a, b):
    upper = b.to(tl.float32).to(tl.float64)
    return a * upper + a * (b - upper)


@triton.jit
def _blend(below, pixel, factor):
    rounded = (factor.to(tl.float64) * (pixel - below).to(tl.float64)).to(tl.float32)
    blended = below.to(tl.float32) + rounded
    return tl.minimum(tl.maximum(blended, 0.0), 255.0).to(tl.int32).to(tl.uint8)


@triton.jit
def count(pixels, wants_counts, wants_grey, counts, grey, area, BLOCK: tl.constexpr):
    """counts[b, c, value] += 1 where `wants_counts`, grey[b] += Σ grey where `wants_grey`."""
    b = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < area
    pixels += b * 3 * area
    if tl.load(wants_counts + b) != 0:
        for c in tl.static_range(3):
            value = tl.load(pixels + c * area + place, mask=inside, other=0).to(tl.int32)
            tl.atomic_add(counts + (b * 3 + c) * 256 + value, tl.full((BLOCK,), 1, tl.int32), mask=inside)
    if tl.load(wants_grey + b) != 0:
        luma = tl.where(inside, _grey(pixels, area, place, inside), 0)
        tl.atomic_add(grey + b, tl.sum(luma, 0).to(tl.int64))


@triton.jit
def _look_up(pixels, out, table, area, place, inside):
    for c in tl.static_range(3):
        value = tl.load(pixels + c * area + place, mask=inside, other=0).to(tl.int32)
        tl.store(out + c * area + place, tl.load(table + c * 256 + value, mask=inside), mask=inside)


@triton.jit
def _blend_with(pixels, out, below, factor, area, place, inside):
    for c in tl.static_range(3):
        value = tl.load(pixels + c * area + place, mask=inside, other=0).to(tl.int32)
        tl.store(out + c * area + place, _blend(below, value, factor), mask=inside)


@triton.jit
def _sharpen(pixels, out, factor, H, W, place, inside):
    y, x = place // W, place % W
    inner = inside & (y > 0) & (y < H - 1) & (x > 0) & (x < W - 1)
    for c in tl.static_range(3):
        channel = pixels + c * H * W + place
        value = tl.load(channel, mask=inside, other=0).to(tl.int32)
        total = 4 * value
        for dy in tl.static_range(-1, 2):
            for dx in tl.static_range(-1, 2):
                total += tl.load(channel + dy * W + dx, mask=inner, other=0).to(tl.int32)
        smooth = tl.where(inner, (2 * total + 13) // 26, value)
        tl.store(out + c * H * W + place, _blend(smooth, value, factor), mask=inside)


@triton.jit
def _move(pixels, out, matrix, fill, H, W, place, inside):
    x, y = (place % W).to(tl.float64) + 0.5, (place // W).to(tl.float64) + 0.5
    across = (_product(x, tl.load(matrix)) + _product(y, tl.load(matrix + 1))) + tl.load(matrix + 2)
    down = (_product(x, tl.load(matrix + 3)) + _product(y, tl.load(matrix + 4))) + tl.load(matrix + 5)
    seen = inside & (across >= 0) & (across < W) & (down >= 0) & (down < H)
    across, down = tl.where(seen, across, 0.5) - 0.5, tl.where(seen, down, 0.5) - 0.5
    left, upper = tl.floor(across), tl.floor(down)
    dx, dy = across - left, down - upper
    column, row = left.to(tl.int32), upper.to(tl.int32)
    x0, x1 = tl.maximum(column, 0), tl.minimum(column + 1, W - 1)
    y0, y1 = tl.maximum(row, 0), tl.minimum(row + 1, H - 1)
    for c in tl.static_range(3):
        channel = pixels + c * H * W
        first = _between(channel + y0 * W, x0, x1, dx, seen)
        second = _between(channel + y1 * W, x0, x1, dx, seen)
        blended = (first + (second - first) * dy).to(tl.int32)
        empty = tl.load(fill + c).to(tl.int32)
        tl.store(out + c * H * W + place, tl.where(seen, blended, empty).to(tl.uint8), mask=inside)


@triton.jit
def _between(row, x0, x1, dx, seen):
    near = tl.load(row + x0, mask=seen, other=0).to(tl.float64)
    far = tl.load(row + x1, mask=seen, other=0).to(tl.float64)
    return near + _product(far - near, dx)


@triton.jit
def layer(pixels, out, kind, tables, matrix, factor, level, fill, H, W, BLOCK: tl.constexpr):
    """One operation per picture; `kind` as in `layers`. Each has a function, for names in branches share a type."""
    b = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    area = H * W
    inside = place < area
    pixels += b * 3 * area
    out += b * 3 * area
    this = tl.load(kind + b)
    strength = tl.load(factor + b)
    if this == 0:
        for c in tl.static_range(3):
            tl.store(out + c * area + place, tl.load(pixels + c * area + place, mask=inside), mask=inside)
    elif this == 1:
        _look_up(pixels, out, tables + b * 768, area, place, inside)
    elif this == 2:
        _blend_with(pixels, out, tl.load(level + b) + tl.zeros_like(place), strength, area, place, inside)
    elif this == 3:
        _blend_with(pixels, out, _grey(pixels, area, place, inside), strength, area, place, inside)
    elif this == 4:
        _sharpen(pixels, out, strength, H, W, place, inside)
    else:
        _move(pixels, out, matrix + b * 6, fill, H, W, place, inside)


def launch_count(pixels: Tensor, wants_counts: Tensor, wants_grey: Tensor, counts: Tensor, grey: Tensor) -> None:
    """Add to `counts` and `grey`, in place."""
    area = pixels.shape[2] * pixels.shape[3]
    wants = wants_counts.int(), wants_grey.int()
    count[(-(-area // BLOCK), len(pixels))](pixels.contiguous(), *wants, counts, grey, area, BLOCK=BLOCK)


def launch_layer(pixels: Tensor, out: Tensor, kind: Tensor, *parameters: Tensor) -> None:
    """Into `out`; the parameters are table, matrix, factor, level, fill."""
    H, W = pixels.shape[2:]
    tensors = pixels.contiguous(), out, kind.int(), *(parameter.contiguous() for parameter in parameters)
    layer[(-(-H * W // BLOCK), len(pixels))](*tensors, H, W, BLOCK=BLOCK, enable_fp_fusion=False)
