"""Triton kernels of the fast path: everything in float64, on the tensor cores where the chip has them.

Legend: `B` matrices, `m` the smaller and `length` the longer side of a token matrix, `J` poles. X is (B, m, length) by
strides, so that wide and tall matrices go the same way. A program owns one matrix (or one tile of it): a NaN
stays in its own image.
"""

# ruff: noqa: RUF005 (Triton knows tuple addition, not unpacking)
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false

import triton
import triton.language as tl


@triton.jit
def gram(X, G, m: tl.constexpr, length: tl.constexpr, stride_b, stride_m: tl.constexpr, stride_l: tl.constexpr,
         TILE: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """G[b] = X[b] X[b]ᵀ; programs below the diagonal rest, the others write their tile and its mirror image."""
    b = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(1), tl.program_id(0)
    if i <= j:
        rows = i * TILE + tl.arange(0, TILE)
        cols = j * TILE + tl.arange(0, TILE)
        X += b * stride_b
        total = tl.zeros((TILE, TILE), tl.float64)
        for first in range(0, length, STEP):
            k = first + tl.arange(0, STEP)
            P = tl.load(X + rows[:, None] * stride_m + k[None, :] * stride_l,
                        mask=(rows[:, None] < m) & (k[None, :] < length), other=0.0).to(tl.float64)  # fmt: skip
            Q = tl.load(X + cols[None, :] * stride_m + k[:, None] * stride_l,
                        mask=(cols[None, :] < m) & (k[:, None] < length), other=0.0).to(tl.float64)  # fmt: skip
            total = tl.dot(P, Q, total, out_dtype=tl.float64, input_precision="ieee")
        inside = (rows[:, None] < m) & (cols[None, :] < m)
        G += b * m * m
        tl.store(G + rows[:, None] * m + cols[None, :], total, mask=inside)
        tl.store(G + cols[None, :] * m + rows[:, None], total, mask=inside)


@triton.jit
def largest_eigenvalue(G, scratch, out, m: tl.constexpr, STEPS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """Lanczos without reorthogonalisation (lost orthogonality only repeats eigenvalues), then bisection on the
    tridiagonal matrix by Sturm sequences. `scratch` holds the current vector and the coefficients. G is float32, to
    halve what is read at every step; sums are float64."""
    b = tl.program_id(0).to(tl.int64)
    G += b * m * m
    vector = scratch + b * (WIDTH + 2 * STEPS)
    T = vector + WIDTH
    i = tl.arange(0, WIDTH)
    inside = i < m
    # a fixed start, rough enough to have a part along any eigenvector
    v = tl.where(inside, ((i * 747796405 + 277803737) & 1023).to(tl.float64) / 512.0 - 0.99, 0.0)
    v = v / tl.sqrt(tl.sum(v * v, 0))
    previous = tl.zeros((WIDTH,), tl.float64)
    beta = tl.sum(previous, 0)
    high = beta
    for step in range(STEPS):
        tl.store(vector + i, v)
        tl.debug_barrier()
        w = tl.zeros((WIDTH,), tl.float64)
        for first in range(0, m, ROWS):
            r = first + tl.arange(0, ROWS)
            block = tl.load(G + r[:, None] * m + i[None, :], mask=(r[:, None] < m) & inside[None, :], other=0.0)
            w += tl.sum(block.to(tl.float64) * tl.load(vector + r)[:, None], 0)
        alpha = tl.sum(w * v, 0)
        w = w - alpha * v - beta * previous
        tl.store(T + 2 * step, alpha)
        tl.store(T + 2 * step + 1, beta * beta)
        after = tl.sqrt(tl.sum(w * w, 0))
        high = tl.maximum(high, alpha + beta + after)
        # an invariant subspace ends the recurrence: what follows is noise and must not be normalised up
        alive = after > 1e-12 * high
        beta = tl.where(alive, after, 0.0)
        previous = v
        v = tl.where(alive, w / tl.where(alive, after, 1.0), 0.0)
        tl.debug_barrier()
    low = high * 0.0
    for _ in range(24):  # to 1e-7 of the largest
        x = 0.5 * (low + high)
        q = tl.load(T) - x
        above = q > 0
        for k in range(1, STEPS):
            q = tl.where(tl.abs(q) < 1e-290, -1e-290, q)
            q = tl.load(T + 2 * k) - x - tl.load(T + 2 * k + 1) / q
            above = above | (q > 0)
        low = tl.where(above, x, low)
        high = tl.where(above, high, x)
    tl.store(out + b, high)


@triton.jit
def _inverse_factor_of_tile(T, TILE: tl.constexpr):
    """L⁻¹ of positive definite T = L Lᵀ, by elimination in registers.

    Row p is subtracted from the rows below it; the multipliers build L⁻¹ in the columns that have become zero.
    """
    i = tl.arange(0, TILE)
    r, c = i[:, None], i[None, :]
    pivots = tl.zeros((TILE,), T.dtype)
    for p in range(TILE):
        row = tl.sum(tl.where(r == p, T, 0.0), 0)
        col = tl.sum(tl.where(c == p, T, 0.0), 1)
        pivot = tl.sum(tl.where(i == p, row, 0.0), 0)
        pivots = tl.where(i == p, pivot, pivots)
        factor = tl.where(i > p, col / pivot, 0.0)
        eliminated = tl.where((c == p) & (r > p), 0.0, T)
        T = eliminated - factor[:, None] * tl.where(i == p, 1.0, row)[None, :]
    scale = 1.0 / tl.sqrt(pivots)
    T = tl.where(r > c, T, tl.where(r == c, 1.0, 0.0))
    return T * scale[:, None]


@triton.jit
def inverse_factor_small(A, W, shifts, n: tl.constexpr, J: tl.constexpr, a_batch, a_row, w_batch, w_row,
                         TILE: tl.constexpr, NB: tl.constexpr):  # fmt: skip
    """W[b, j] = L⁻¹ with L Lᵀ = A[b] + shifts[b, j] I, for n ≤ TILE·NB; the lower tiles stay in registers.

    Step k finishes row k of L⁻¹ and eliminates it from the rows below: tiles (i, j) hold A for j > k, the
    unfinished row of L⁻¹ for j ≤ k. Zeros are written above the diagonal. A and W may be the same memory.
    """
    pid = tl.program_id(0)
    A += (pid // J).to(tl.int64) * a_batch
    W += pid.to(tl.int64) * w_batch
    shift = tl.load(shifts + pid)
    a = tl.arange(0, TILE)
    T = ()
    for i in tl.static_range(NB):
        for j in tl.static_range(i + 1):
            r, c = (i * TILE + a)[:, None], (j * TILE + a)[None, :]
            X = tl.load(A + r * a_row + c, mask=(r < n) & (c < n), other=0.0)
            if i == j:
                X = tl.where(r == c, tl.where(r < n, X + shift, 1.0), X)
            T = T + (X,)
    for k in tl.static_range(NB):
        M = _inverse_factor_of_tile(T[k * (k + 1) // 2 + k], TILE)
        row = ()
        for j in tl.static_range(k):
            row = row + (tl.dot(M, T[k * (k + 1) // 2 + j], out_dtype=tl.float64, input_precision="ieee"),)
        row = row + (M,)
        L = ()  # column k of L, rows below k
        for i in tl.static_range(NB):
            if i > k:
                L = L + (tl.dot(T[i * (i + 1) // 2 + k], tl.trans(M), out_dtype=tl.float64, input_precision="ieee"),)
        N = ()
        for i in tl.static_range(NB):
            for j in tl.static_range(i + 1):
                old = T[i * (i + 1) // 2 + j]
                if i < k:
                    new = old
                elif i == k:
                    new = row[j]
                elif j < k:
                    new = old - tl.dot(L[i - k - 1], row[j], out_dtype=tl.float64, input_precision="ieee")
                elif j == k:
                    new = -tl.dot(L[i - k - 1], M, out_dtype=tl.float64, input_precision="ieee")
                else:
                    new = old - tl.dot(
                        L[i - k - 1], tl.trans(L[j - k - 1]), out_dtype=tl.float64, input_precision="ieee"
                    )
                N = N + (new,)
        T = N
    for i in tl.static_range(NB):
        for j in tl.static_range(i + 1):
            r, c = (i * TILE + a)[:, None], (j * TILE + a)[None, :]
            tl.store(W + r * w_row + c, T[i * (i + 1) // 2 + j], mask=(r < n) & (c < n))
            if i != j:
                tl.store(W + c * w_row + r, tl.zeros((TILE, TILE), tl.float64), mask=(r < n) & (c < n))


@triton.jit
def multiply(A, B, C, D, shifts, rows: tl.constexpr, cols: tl.constexpr, depth: tl.constexpr,
             J: tl.constexpr, JC: tl.constexpr, a_batch, a_row, b_batch, b_row: tl.constexpr, b_col: tl.constexpr,
             c_batch, c_row, d_batch, d_row, ADD: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """D = −A B, or with ADD D = C + shift I − A B, for strided batches; J and JC poles share an A and a C."""
    pid = tl.program_id(2).to(tl.int64)
    r = tl.program_id(1) * TILE + tl.arange(0, TILE)
    c = tl.program_id(0) * TILE + tl.arange(0, TILE)
    A += pid // J * a_batch
    B += pid * b_batch
    total = tl.zeros((TILE, TILE), tl.float64)
    for first in range(0, depth, STEP):
        k = first + tl.arange(0, STEP)
        P = tl.load(A + r[:, None] * a_row + k[None, :], mask=(r[:, None] < rows) & (k[None, :] < depth), other=0.0)
        Q = tl.load(
            B + k[:, None] * b_row + c[None, :] * b_col,
            mask=(k[:, None] < depth) & (c[None, :] < cols),
            other=0.0,
        )
        total = tl.dot(P, Q, total, out_dtype=tl.float64, input_precision="ieee")
    inside = (r[:, None] < rows) & (c[None, :] < cols)
    total = -total
    if ADD:
        total += tl.load(C + pid // JC * c_batch + r[:, None] * c_row + c[None, :], mask=inside, other=0.0)
        total += tl.where(r[:, None] == c[None, :], tl.load(shifts + pid), 0.0)
    tl.store(D + pid * d_batch + r[:, None] * d_row + c[None, :], total, mask=inside)


@triton.jit
def combine(W, coefficients, F, m: tl.constexpr, J: tl.constexpr, TILE: tl.constexpr, STEP: tl.constexpr):
    """F[b] = coefficients[b, 0] I + Σⱼ coefficients[b, j+1] Mᵀ M with lower triangular M = W[b, j]."""
    b = tl.program_id(2).to(tl.int64)
    i, j = tl.program_id(1), tl.program_id(0)
    if i <= j:
        r = i * TILE + tl.arange(0, TILE)
        c = j * TILE + tl.arange(0, TILE)
        total = tl.zeros((TILE, TILE), tl.float64)
        for pole in range(J):
            M = W + (b * J + pole) * m * m
            weight = tl.load(coefficients + b * (J + 1) + 1 + pole)
            for first in range(0, m, STEP):
                if first + STEP > j * TILE:  # M is zero above its diagonal
                    k = first + tl.arange(0, STEP)[:, None]
                    P = tl.load(M + k * m + r[None, :], mask=(k >= r[None, :]) & (k < m), other=0.0)
                    Q = tl.load(M + k * m + c[None, :], mask=(k >= c[None, :]) & (k < m), other=0.0)
                    total = tl.dot(tl.trans(P), Q * weight, total, out_dtype=tl.float64, input_precision="ieee")
        total += tl.where(r[:, None] == c[None, :], 1.0, 0.0) * tl.load(coefficients + b * (J + 1))
        inside = (r[:, None] < m) & (c[None, :] < m)
        F += b * m * m
        tl.store(F + r[:, None] * m + c[None, :], total.to(tl.float32), mask=inside)
        tl.store(F + c[None, :] * m + r[:, None], total.to(tl.float32), mask=inside)


@triton.jit
def apply(F, X, Y, m: tl.constexpr, length: tl.constexpr, stride_b, stride_m: tl.constexpr, stride_l: tl.constexpr,
          ROWS: tl.constexpr, COLS: tl.constexpr, STEP: tl.constexpr):  # fmt: skip
    """Y[b] = F[b] X[b], X and Y float32 by the same strides, products in float64 (TF32 would drown small σ)."""
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    F += b * m * m
    X += b * stride_b
    total = tl.zeros((ROWS, COLS), tl.float64)
    for first in range(0, m, STEP):
        k = first + tl.arange(0, STEP)
        P = tl.load(F + rows[:, None] * m + k[None, :], mask=(rows[:, None] < m) & (k[None, :] < m), other=0.0)
        Q = tl.load(X + k[:, None] * stride_m + cols[None, :] * stride_l,
                    mask=(k[:, None] < m) & (cols[None, :] < length), other=0.0)  # fmt: skip
        total = tl.dot(P.to(tl.float64), Q.to(tl.float64), total, out_dtype=tl.float64, input_precision="ieee")
    Y += b * stride_b
    tl.store(Y + rows[:, None] * stride_m + cols[None, :] * stride_l, total.to(tl.float32),
             mask=(rows[:, None] < m) & (cols[None, :] < length))  # fmt: skip
