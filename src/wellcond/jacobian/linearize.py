"""A function at a point, seen as a matrix that is never written down: J v, Jᵀ u, and how well they are known.

B images, N = n·d inputs and M = n'·d' outputs per image; f: (B, n, d) → (B, n', d') or (n, d) → (n', d').

Jᵀ u is reverse-mode differentiation: u ↦ Jᵀ u is recorded once and replayed. It is linear in u, so its own reverse
is v ↦ J v: replayed as well, where forward mode would repeat f at every product. Where a second
reverse is not implemented, `torch.func.jvp` takes over.
"""

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp
from torch.nn.attention import SDPBackend, sdpa_kernel

Map = Callable[[Tensor], Tensor]


class Products:
    """J v and Jᵀ u of f at X, one Jacobian per image: v (B, N) ↦ (B, M), u (B, M) ↦ (B, N), in the dtype of X."""

    def __init__(self, f: Map, X: Tensor):
        self.f, self.X = f, X
        self.B = X.shape[0] if X.ndim == 3 else 1
        with plain_arithmetic(X.device):
            Y, pull = _pulled(f, X)
            _check_output(X, Y)
            self.Y, self._pull, self._push = Y, pull, None
            with contextlib.suppress(RuntimeError):  # NotImplementedError is one: no second reverse
                self._push = vjp(lambda u: pull(u)[0], torch.zeros_like(Y))[1]
        self.N, self.M = X.numel() // self.B, Y.numel() // self.B

    def push(self, v: Tensor) -> Tensor:
        """J v."""
        tangent = v.to(self.X.dtype).reshape(self.X.shape)
        with plain_arithmetic(self.X.device):
            if self._push is not None:
                return self._push(tangent)[0].reshape(self.B, self.M)
            try:
                return jvp(self.f, (self.X,), (tangent,))[1].reshape(self.B, self.M)
            except NotImplementedError as error:
                raise ValueError(
                    f"f offers neither a second reverse nor a forward derivative ({str(error).splitlines()[0]}); "
                    'write it with differentiable operations, or use method="exact", which needs one reverse only'
                ) from error

    def pull(self, u: Tensor) -> Tensor:
        """Jᵀ u."""
        with plain_arithmetic(self.X.device):
            return self._pull(u.to(self.Y.dtype).reshape(self.Y.shape))[0].reshape(self.B, self.N)

    def pull_many(self, U: Tensor, at_once: bool = True) -> Tensor:
        """Jᵀ u for a stack of cotangents (k, *Y.shape) → (k, *X.shape); `at_once` needs k times the memory of f."""
        with plain_arithmetic(self.X.device):
            if at_once and len(U) > 1:
                return torch.vmap(lambda u: self._pull(u)[0])(U)
            return torch.stack([self._pull(u)[0] for u in U])


def rounding(products: Products, generator: torch.Generator) -> Tensor:
    """Estimate of ‖ΔJ‖₂, (B,): how far the products in this arithmetic are from the Jacobian.

    D u = Jᵀ u − (J̃ᵀ u₁ + J̃ᵀ (u − u₁)), J̃ taken at X moved by one unit in the last place: other roundings on every way
    through f, those of TF32 included. A random unit u has E‖D u‖² = ‖D‖_F² / M, and a D without structure has
    ‖D‖₂ ≈ ‖D‖_F (1/√M + 1/√N) = ‖D u‖ (1 + √(M/N)). Peaked attention gives D structure, so two power steps on D Dᵀ
    follow. The largest of the three, times 4.
    """
    X, (B, M, N) = products.X, (products.B, products.M, products.N)
    step = torch.finfo(X.dtype).eps * draw(tuple(X.shape), X, generator).sign().to(X.dtype)
    moved = Products(products.f, X + X * step)

    def gap(product: str, u: Tensor) -> Tensor:
        part = unit(draw(tuple(u.shape), X, generator))
        here, there = getattr(products, product), getattr(moved, product)
        return here(u).double() - (there(part).double() + there(u - part).double())

    Du = gap("pull", unit(draw((B, M), X, generator)))
    worst = (1 + (M / N) ** 0.5) * torch.linalg.vector_norm(Du, dim=-1)
    with contextlib.suppress(ValueError):  # no J v to be had: the first estimate stands
        for _ in range(2):
            Du = gap("pull", unit(gap("push", unit(Du))))
            worst = torch.maximum(worst, torch.linalg.vector_norm(Du, dim=-1))
    return 4 * worst


def check_repeatable(f: Map, X: Tensor) -> None:
    """Raise for a function that draws random numbers."""
    with plain_arithmetic(X.device):
        first, second = f(X), f(X)
    if not torch.allclose(first, second, rtol=1e-3, atol=1e-6 * float(first.abs().max()), equal_nan=True):
        raise ValueError("f gives two answers for one X; switch its dropout and drop-path off first, e.g. model.eval()")


def adjoint_gap(products: Products, noise: Tensor, generator: torch.Generator) -> Tensor:
    """A second estimate of ‖ΔJ‖₂, (B,), next to `noise` from `rounding`: how far ⟨u, J v⟩ is from ⟨Jᵀ u, v⟩.

    For standard normal u and v that is about ‖ΔJ‖_F, and about ‖J‖_F are ‖J v‖ and ‖Jᵀ u‖. If it is a share of them, a
    hand-written backward is wrong or cut off, and this raises; unless J itself is rounding: terms that cancel, or a
    saturated softmax. There the estimate says that J is not known.
    """
    X, Y, eps = products.X, products.Y, torch.finfo(products.X.dtype).eps
    v, u = (draw((products.B, size), X, generator) for size in (products.N, products.M))
    Jv, Ju = products.push(v).double(), products.pull(u).double()
    gap = ((u * Jv).sum(-1) - (Ju * v).sum(-1)).abs()
    size = torch.linalg.vector_norm(Jv, dim=-1) + torch.linalg.vector_norm(Ju, dim=-1)
    wrong = (gap > 1e-2 * size) & (gap > min(products.N, products.M) ** 0.5 * noise)
    if (wrong & (size * X.abs().max() > 1e3 * eps * Y.abs().max())).any():
        raise ValueError(
            f"the derivative of f is inconsistent: ⟨u, J v⟩ and ⟨Jᵀ u, v⟩ differ by {gap.max():.1e} at a size of "
            f"{size.max():.1e}; look for a hand-written backward in f that is not differentiable"
        )
    return 4 * (products.M**-0.5 + products.N**-0.5) * gap


def separate(products: Products, dim: int, generator: torch.Generator) -> bool:
    """Whether output i depends on input i alone, i an index of dimension `dim` (0 images, -2 tokens) of X and f(X).

    Two indices differ in a binary digit: for each digit the outputs whose digit is 1 (then: 0) are pulled back, and the
    gradient must be exactly zero at all other inputs.
    """
    X, Y = products.X, products.Y
    size = X.shape[dim]
    if Y.shape[dim] != size:
        return False
    index = torch.arange(size, device=X.device)
    u = draw((products.B, products.M), X, generator).reshape(Y.shape)
    for digit in range((size - 1).bit_length()):
        for value in (0, 1):
            chosen = ((index >> digit) & 1) == value
            chosen = chosen.reshape([size if i == dim % X.ndim else 1 for i in range(X.ndim)])
            gradient = products.pull(u * chosen).reshape(X.shape)
            if (gradient * ~chosen).count_nonzero():
                return False
    return True


def _pulled(f: Map, X: Tensor) -> tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]:
    try:
        return vjp(f, X)[:2]
    except RuntimeError as error:
        if "in-place operation" not in str(error):
            raise
        raise ValueError(
            "f writes into its input, or into a buffer as batch normalisation does in train mode, so it cannot be "
            "differentiated; call model.eval(), or write f without operations in place"
        ) from error


class _Holder(nn.Module):
    """Lets `functional_call` exchange the parameters of `module` while f, which reads them, is called."""

    def __init__(self, f: Map, module: nn.Module):
        super().__init__()
        self.module = module
        self.call = f if not isinstance(f, nn.Module) else f.forward

    def forward(self, X: Tensor) -> Tensor:
        return self.call(X)


def reading(f: Map, module: nn.Module) -> Callable[[dict[str, Tensor], Tensor], Tensor]:
    """(tensors, X) ↦ f(X) with the named parameters and buffers of `module` replaced by `tensors` during the call."""
    holder = _Holder(f, module)
    return lambda tensors, X: functional_call(holder, {f"module.{name}": t for name, t in tensors.items()}, (X,))


def tensors_of(module: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    """Parameters and buffers by name, floating ones in `dtype`."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return {name: t.detach().to(dtype) if t.is_floating_point() else t for name, t in named}


@contextlib.contextmanager
def plain_arithmetic(device: torch.device) -> Iterator[None]:
    """No autocast, no outer graph, and attention from plain products: the fused kernels know no second derivative."""
    autocast = torch.autocast(device.type, enabled=False)
    with torch.inference_mode(False), torch.no_grad(), sdpa_kernel(SDPBackend.MATH), autocast:
        yield


def draw(shape: tuple[int, ...], like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal float64, drawn where the generator lives."""
    return torch.randn(shape, dtype=torch.float64, device=generator.device, generator=generator).to(like.device)


def unit(x: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length > 0, length, 1.0)


def _check_output(X: Tensor, Y: Tensor) -> None:
    if not isinstance(Y, Tensor) or Y.ndim != X.ndim or Y.shape[:-2] != X.shape[:-2] or Y.numel() == 0:
        found = f"shape {tuple(Y.shape)}" if isinstance(Y, Tensor) else f"a {type(Y).__name__}"
        raise ValueError(
            f"f maps X {tuple(X.shape)} to {found}; expected as many images and dimensions, (…, n, d) → (…, n', d')"
        )
    if not Y.isfinite().all():
        raise ValueError("f(X) holds NaN or inf; there is no Jacobian at this X")
