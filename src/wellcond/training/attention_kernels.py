"""Triton kernels of softmax attention for few tokens: a program owns one head of one image and all of its tokens.

Nothing is kept for the way back but the input: the weights are made again there, in the same registers. Tokens lie in a
tile of `MAIN` and one of `TAIL` rows (0: none), powers of two: a class token beside 64 patches costs 16 rows, not 64.
Queries, keys and values are read as the projection wrote them, (B, n, 3, H, D), and their gradient is written so.
"""

# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import triton
import triton.language as tl


@triton.jit
def forward(QKV, Y, n, scale, H: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr):
    """Y = softmax(Q Kᵀ · scale / log₂e) V, (B, n, H, D)."""
    b, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    stride: tl.constexpr = 3 * H * D
    QKV += b * n * stride + h * D
    Y += b * n * H * D + h * D
    k1, v1, k2, v2 = _keys_and_values(QKV, n, H, D, MAIN, TAIL)
    o = _attend(_load(QKV, 0, n, stride, D, MAIN), k1, v1, k2, v2, n, scale, MAIN, TAIL)
    _store(Y, o, 0, n, H * D, D, MAIN)
    if TAIL > 0:
        o = _attend(_load(QKV, MAIN, n, stride, D, TAIL), k1, v1, k2, v2, n, scale, MAIN, TAIL)
        _store(Y, o, MAIN, n, H * D, D, TAIL)


@triton.jit
def backward(QKV, dY, dQKV, n, scale, factor, H: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr):
    """The gradient of QKV from that of Y; `factor` is scale / log₂e."""
    b, h = tl.program_id(0).to(tl.int64) // H, tl.program_id(0) % H
    stride: tl.constexpr = 3 * H * D
    QKV += b * n * stride + h * D
    dQKV += b * n * stride + h * D
    dY += b * n * H * D + h * D
    k1, v1, k2, v2 = _keys_and_values(QKV, n, H, D, MAIN, TAIL)
    q, do = _load(QKV, 0, n, stride, D, MAIN), _load(dY, 0, n, H * D, D, MAIN)
    dq, dk1, dv1, dk2, dv2 = _back(q, do, k1, v1, k2, v2, n, scale, factor, MAIN, TAIL)
    _store(dQKV, dq, 0, n, stride, D, MAIN)
    if TAIL > 0:
        q, do = _load(QKV, MAIN, n, stride, D, TAIL), _load(dY, MAIN, n, H * D, D, TAIL)
        dq, more_dk1, more_dv1, more_dk2, more_dv2 = _back(q, do, k1, v1, k2, v2, n, scale, factor, MAIN, TAIL)
        _store(dQKV, dq, MAIN, n, stride, D, TAIL)
        dk1, dv1 = dk1 + more_dk1, dv1 + more_dv1
        _store(dQKV + H * D, dk2 + more_dk2, MAIN, n, stride, D, TAIL)
        _store(dQKV + 2 * H * D, dv2 + more_dv2, MAIN, n, stride, D, TAIL)
    _store(dQKV + H * D, dk1, 0, n, stride, D, MAIN)
    _store(dQKV + 2 * H * D, dv1, 0, n, stride, D, MAIN)


@triton.jit
def _keys_and_values(QKV, n, H: tl.constexpr, D: tl.constexpr, MAIN: tl.constexpr, TAIL: tl.constexpr):
    """Of both tiles; where there is no second one the first stands in for it, and nobody looks."""
    stride: tl.constexpr = 3 * H * D
    k1, v1 = _load(QKV + H * D, 0, n, stride, D, MAIN), _load(QKV + 2 * H * D, 0, n, stride, D, MAIN)
    k2, v2 = k1, v1
    if TAIL > 0:
        k2, v2 = _load(QKV + H * D, MAIN, n, stride, D, TAIL), _load(QKV + 2 * H * D, MAIN, n, stride, D, TAIL)
    return k1, v1, k2, v2


@triton.jit
def _load(at, first: tl.constexpr, n, stride: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    """Tokens first … first + ROWS, zeros from n on."""
    i, j = first + tl.arange(0, ROWS), tl.arange(0, D)
    return tl.load(at + i[:, None] * stride + j[None, :], mask=i[:, None] < n, other=0.0)


@triton.jit
def _store(at, X, first: tl.constexpr, n, stride: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr):
    i, j = first + tl.arange(0, ROWS), tl.arange(0, D)
    tl.store(at + i[:, None] * stride + j[None, :], X.to(at.dtype.element_ty), mask=i[:, None] < n)


@triton.jit
def _weights(q, k1, k2, n, scale, MAIN: tl.constexpr, TAIL: tl.constexpr):
    """Of each query (row) for the keys of both tiles."""
    s1 = tl.where(tl.arange(0, MAIN)[None, :] < n, tl.dot(q, tl.trans(k1)) * scale, float("-inf"))
    largest = tl.max(s1, 1)
    if TAIL > 0:
        s2 = tl.where(MAIN + tl.arange(0, TAIL)[None, :] < n, tl.dot(q, tl.trans(k2)) * scale, float("-inf"))
        largest = tl.maximum(largest, tl.max(s2, 1))
        p1, p2 = tl.exp2(s1 - largest[:, None]), tl.exp2(s2 - largest[:, None])
        total = (tl.sum(p1, 1) + tl.sum(p2, 1))[:, None]
        p1, p2 = p1 / total, p2 / total
    else:
        p1 = tl.exp2(s1 - largest[:, None])
        p1 = p1 / tl.sum(p1, 1)[:, None]
        p2 = p1
    return p1, p2


@triton.jit
def _attend(q, k1, v1, k2, v2, n, scale, MAIN: tl.constexpr, TAIL: tl.constexpr):
    p1, p2 = _weights(q, k1, k2, n, scale, MAIN, TAIL)
    o = tl.dot(p1.to(v1.dtype), v1)
    if TAIL > 0:
        o = tl.dot(p2.to(v2.dtype), v2, o)
    return o


@triton.jit
def _back(q, do, k1, v1, k2, v2, n, scale, factor, MAIN: tl.constexpr, TAIL: tl.constexpr):
    """Gradients that a tile of queries causes: its own, and those of the keys and values of both tiles."""
    p1, p2 = _weights(q, k1, k2, n, scale, MAIN, TAIL)
    dp1 = tl.dot(do, tl.trans(v1))
    mean = tl.sum(p1 * dp1, 1)
    dp2 = dp1
    if TAIL > 0:
        dp2 = tl.dot(do, tl.trans(v2))
        mean += tl.sum(p2 * dp2, 1)
    ds1 = (p1 * (dp1 - mean[:, None]) * factor).to(q.dtype)
    dq = tl.dot(ds1, k1)
    dk1, dv1 = tl.dot(tl.trans(ds1), q), tl.dot(tl.trans(p1.to(q.dtype)), do)
    dk2, dv2 = dk1, dv1
    if TAIL > 0:
        ds2 = (p2 * (dp2 - mean[:, None]) * factor).to(q.dtype)
        dq = tl.dot(ds2, k2, dq)
        dk2, dv2 = tl.dot(tl.trans(ds2), q), tl.dot(tl.trans(p2.to(q.dtype)), do)
    return dq, dk1, dv1, dk2, dv2
