"""Every Triton kernel is compiled to machine code of the GPUs that it is for; that needs no GPU.

What a kernel computes is tested elsewhere, on GPUs and by Triton's interpreter, which takes what its compiler refuses.
A run on a GPU resumes to the same bits because nothing is summed in the order in which programs happen to come: that
stands in the machine code, too.
"""

import re

import pytest

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from wellcond.data.augment import kernels as augment  # noqa: E402
from wellcond.spectral import kernels as spectral  # noqa: E402
from wellcond.training import attention_kernels as attention  # noqa: E402
from wellcond.training.short_attention import LAUNCH, MOST, WIDTHS, tiles  # noqa: E402

CAPABILITIES = (80, 90, 100)  # A100; H100, H200; B200
BATCH = {"stride_b": "i32"}
ATOMIC = re.compile(r"\b(?:atom|red)\.\S*?\.(\w+)\s")  # an instruction ends in its type
STRIDES = dict.fromkeys(["a_batch", "a_row", "b_batch", "c_batch", "c_row", "d_batch", "d_row"], "i32")


def compiled(kernel, types: dict[str, str], constants: dict[str, int], capability: int, **options) -> bytes:
    """The machine code of `kernel`; `types` are those of its arguments in order, but for the constants.

    Programs may add to the same number in memory only where that is an integer, whose sum has no order.
    """
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    assert {name for name, kind in signature.items() if kind == "constexpr"} == set(constants)
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs={})
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options).asm
    sums = ATOMIC.findall(found["ptx"])
    assert all(kind in {"s32", "u32", "s64", "u64"} for kind in sums), sums
    return found["cubin"]


@pytest.fixture(autouse=True)
def _nothing_is_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))


by_capability = pytest.mark.parametrize("capability", CAPABILITIES)


@by_capability
@pytest.mark.parametrize("n", [17, 64, 65, MOST])
def test_attention(n, capability):
    for width in WIDTHS:
        sizes = dict(zip(("MAIN", "TAIL"), tiles(n), strict=True)) | {"H": 3, "D": width}
        forward = {"QKV": "*bf16", "Y": "*bf16", "n": "i32", "scale": "fp32"}
        assert compiled(attention.forward, forward, sizes, capability, **LAUNCH)
        backward = {"QKV": "*fp16", "dY": "*fp16", "dQKV": "*fp16", "n": "i32", "scale": "fp32", "factor": "fp32"}
        assert compiled(attention.backward, backward, sizes, capability, **LAUNCH)


@by_capability
def test_products(capability):
    for wide in (True, False):
        sides = {"m": 48, "length": 192, "stride_m": 192 if wide else 1, "stride_l": 1 if wide else 48}
        types = {"X": "*fp32", "G": "*fp64", **BATCH}
        assert compiled(spectral.gram, types, sides | {"TILE": 32, "STEP": 16}, capability)
        types = {"F": "*fp32", "X": "*fp32", "Y": "*fp32", **BATCH}
        assert compiled(spectral.apply, types, sides | {"ROWS": 32, "COLS": 128, "STEP": 16}, capability)


@by_capability
def test_powers(capability):
    types = {"G": "*fp32", "scratch": "*fp64", "out": "*fp64"}
    sizes = {"m": 48, "STEPS": 24, "WIDTH": 64, "ROWS": 32}
    assert compiled(spectral.largest_eigenvalue, types, sizes, capability)
    types = {"A": "*fp64", "W": "*fp64", "shifts": "*fp64", "a_batch": "i32", "a_row": "i32"}
    types |= {"w_batch": "i32", "w_row": "i32"}
    sizes = {"n": 40, "J": 8, "TILE": 16, "NB": 3}
    assert compiled(spectral.inverse_factor_small, types, sizes, capability, num_warps=1)
    types = {"A": "*fp64", "B": "*fp64", "C": "*fp64", "D": "*fp64", "shifts": "*fp64", **STRIDES}
    for add in (True, False):
        sizes = {"rows": 24, "cols": 24, "depth": 24, "J": 8, "JC": 8, "b_row": 1, "b_col": 24, "ADD": add}
        assert compiled(spectral.multiply, types, sizes | {"TILE": 32, "STEP": 16}, capability, num_warps=2)
    types = {"W": "*fp64", "coefficients": "*fp64", "F": "*fp32"}
    assert compiled(spectral.combine, types, {"m": 48, "J": 8, "TILE": 32, "STEP": 16}, capability)


@by_capability
def test_augmentation(capability):
    types = {"pixels": "*u8", "wants_counts": "*i32", "wants_grey": "*i32", "counts": "*i32", "grey": "*i64"}
    assert compiled(augment.count, types | {"area": "i32"}, {"BLOCK": augment.BLOCK}, capability)
    types = {"pixels": "*u8", "out": "*u8", "kind": "*i32", "tables": "*u8", "matrix": "*fp64", "factor": "*fp32"}
    types |= {"level": "*i32", "fill": "*u8", "H": "i32", "W": "i32"}
    assert compiled(augment.layer, types, {"BLOCK": augment.BLOCK}, capability, enable_fp_fusion=False)
