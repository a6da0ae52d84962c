"""Diagnoses made of numpy alone, for tests of the page: a rich one, a poor one and a hostile one."""

import base64
import io
import math

import numpy as np
from PIL import Image

from wellcond.diagnosis.result import (
    Advice,
    Diagnosis,
    Finding,
    GrayingStep,
    JacobianCurve,
    SiteSpectrum,
    Thumbnail,
)
from wellcond.probes.rows import Row

SITES = ("sab_in", "sab_out", "sab_sum", "ffn_out", "ffn_sum")
EVIL = """<a href="https://example.org">a</a></script><script>document.title='hacked'</script><img src=x
onerror="document.title='hacked'"> %{x} &lt; "'"""
LONG = "/a/very/long/path" + "/without/an/end" * 20 + "/weights.safetensors"


def row(layer: int, site: str, quantity: str, value: float | None, **other) -> Row:
    std = None if value is None else 0.06 * abs(value)
    given = {"std": std, "floor_count": 0.0, "num_infinite": 0, "num_images": 64, "n": 197, "d": 192}
    return Row(layer=layer, site=site, quantity=quantity, value=value, **(given | other))


def rows(layers: int = 12, *, cut: str = "", heads: int = 3, seed: int = 0) -> list[Row]:
    """log κ as in the papers, attention alone far above; at block 3 some images are at the floor, at block 7 all."""
    rng = np.random.default_rng(seed)
    found = []
    for layer in range(layers):
        drift = (1 + 0.09 * layer) if cut == "attention" else 1 + 0.01 * layer
        for site in SITES:
            base = {"sab_in": 3.0, "sab_out": 6.2, "sab_sum": 3.1, "ffn_out": 4.0, "ffn_sum": 3.0}[site]
            base = (
                6.2 if (site, cut) == ("sab_sum", "attention") else 4.0 if (site, cut) == ("ffn_sum", "mlp") else base
            )
            value = base * drift + 0.3 * rng.standard_normal()
            bad = site == "sab_out" and layer in (3, 7)
            infinite = {"floor_count": 2.4, "num_infinite": 64 if layer == 7 else 9} if bad else {}
            found.append(row(layer, site, "log_kappa", None if bad and layer == 7 else value, **infinite))
            if not cut:
                found.append(row(layer, site, "effective_rank", 190 / (1 + 0.2 * value + 0.1 * layer), **infinite))
                found.append(row(layer, site, "stable_rank", 30 / (1 + 0.2 * value)))
                found.append(row(layer, site, "token_cosine", math.tanh(0.1 + 0.07 * layer)))
                found.append(
                    row(layer, site, "kurtosis", 3 + math.exp(0.5 * layer) * (2 if site == "ffn_out" else 0.2))
                )
        if not cut:
            for site in ("attention", *(f"head_{h}" for h in range(heads))):
                wide = {"n": 197, "d": 197}
                found.append(row(layer, site, "attention_entropy", 4 + rng.standard_normal() * 0.4, **wide))
                found.append(row(layer, site, "attention_diagonal", 0.02 + 0.1 * rng.random(), **wide))
                found.append(row(layer, site, "attention_log_kappa", 9 + rng.standard_normal(), **wide))
    return found


def spectra(layers: int = 12) -> list[SiteSpectrum]:
    found = []
    for layer in range(layers):
        for number, site in enumerate(SITES):
            k = np.arange(192)
            curve = -(3 + number + 0.2 * layer) * (k / 191) ** 0.5
            std = 0.05 * np.abs(curve)
            at_floor = site == "sab_out" and layer == 7
            values = tuple(
                None if at_floor and i > 180 else float(v) for i, v in enumerate(curve * (3 if at_floor else 1))
            )
            found.append(
                SiteSpectrum(
                    layer=layer, site=site, log_sigma=values, std=tuple(map(float, std)), floor=-30.8, n=197, d=192
                )
            )
    return found


def jacobian(part: str, method: str | None, epsilon: float | None, *, complete: bool) -> JacobianCurve:
    eps = 1.0 if epsilon is None else epsilon
    count = 16 * 24
    k = np.arange(count)
    sigma = 3.0 * np.exp(-9 * eps * (k / count) ** 0.7)
    kept = sigma if complete else sigma[:40]
    error = np.zeros_like(kept) if complete else kept * np.linspace(0, 0.3, len(kept))
    return JacobianCurve(
        layer=0 if complete else 6,
        part=part,
        method=method,
        epsilon=epsilon,
        sigma=tuple(map(float, kept)),
        error=tuple(map(float, error)),
        sigma_min=float(sigma[-1]) * (1 if complete else 3),
        sigma_min_lower=float(sigma[-1]) if complete else 0.0 if eps == 1 else float(sigma[-1]) / 2,
        floor=1e-6,
        log_kappa=float(np.log(sigma[0] / sigma[-1])) if complete else None,
        kappa_at_least=float(sigma[0] / sigma[-1]) / (1 if complete else 3),
        kappa_at_most=float(sigma[0] / sigma[-1]) if complete else None if eps == 1 else 1e6,
        complete=complete,
        n=16,
        d=24,
        nodes=() if complete else (*map(float, kept), *map(float, sigma[40::20])),
        ranks=() if complete else (*range(1, 41), *range(41, count + 1, 20)),
    )


def jacobians() -> list[JacobianCurve]:
    sweep = [(None, None), *(("svd", e) for e in (0.9, 0.7, 0.5)), *(("dct", e) for e in (0.97, 0.93, 0.85))]
    return [
        jacobian(part, method, epsilon, complete=complete)
        for part, complete in (("attention", True), ("mlp", True), ("attention", False))
        for method, epsilon in sweep
    ]


def advice() -> Advice:
    svd = [GrayingStep(method="svd", epsilon=e, log_kappa=8 * e, num_infinite=0) for e in (1, 0.9, 0.8, 0.7, 0.6, 0.5)]
    steps = (1, 0.97, 0.95, 0.93, 0.9, 0.85)
    dct = [GrayingStep(method="dct", epsilon=e, log_kappa=8 - 12 * (1 - e), num_infinite=int(e < 0.9)) for e in steps]
    found = {"svd": 0.625, "dct": None}
    return Advice(patch_size=(16, 16), n=196, d=768, log_kappa=8.0, target=5.0, epsilon=found, sweep=(*svd, *dct))


def thumbnail(title: str, note: str, seed: int) -> Thumbnail:
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (7, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(coarse).resize((96, 96), Image.Resampling.BICUBIC).save(buffer, format="PNG")
    return Thumbnail(title=title, note=note, png=base64.b64encode(buffer.getvalue()).decode())


def findings() -> list[Finding]:
    return [
        Finding(
            kind="attention_ill_conditioned",
            severity="warning",
            layer=0,
            text="The output of attention is ill-conditioned, and the skip carries it.",
            evidence="log κ of attention alone is 6.4 on average over the blocks, of its sum with the skip 3.1.",
            remedy="Keep the attention skips, or cut them only with an initialization made for it.",
        ),
        Finding(
            kind="numerical_floor",
            severity="warning",
            layer=7,
            text="κ of attention alone at block 7 is at the numerical floor: rank-deficient to rounding.",
            evidence="2.4 of 192 singular values are at or under the floor on 64 of 64 images.",
            remedy="Do not read κ there as a number; look at the spectrum.",
        ),
        Finding(
            kind="graying",
            severity="note",
            layer=None,
            text="Graying would lower log κ of the input from 8.0 to 5.0.",
            evidence="SVD at ε = 0.625, over 64 images.",
            remedy='wellcond.gray(model, method="svd", epsilon=0.625)',
        ),
    ]


def rich(model: str = "vit_tiny_patch16_224", layers: int = 12, seed: int = 0) -> Diagnosis:
    grayed = [("image 1", "as it is"), ("image 1", "SVD at ε = 0.625"), ("image 1", "DCT at ε = 0.85")]
    pictures = [*grayed, *((f"image {i}", "log κ 7.9") for i in range(2, 8))]
    return Diagnosis(
        model=model,
        num_images=64,
        image_size=(224, 224),
        tokens="all",
        rows=rows(layers, seed=seed),
        variants={
            "attention skips cut": rows(layers, cut="attention", seed=seed),
            "mlp skips cut": rows(layers, cut="mlp", seed=seed),
        },
        spectra=spectra(layers),
        jacobians=jacobians(),
        advice=advice(),
        findings=findings(),
        thumbnails=[thumbnail(title, note, number) for number, (title, note) in enumerate(pictures)],
        missing=["Jacobian of the MLP of block 6: its input is too wide for an exact spectrum."],
        skipped=["photos/broken.jpg: cannot identify image file"],
        source="procedural",
        weights="random",
        command="wellcond diagnose vit_tiny_patch16_224 --data procedural --html report.html",
        versions={"python": "3.11.2", "wellcond": "0.1.0", "torch": "2.11.0", "timm": "1.0.30"},
    )


def poor() -> Diagnosis:
    """One block, nothing but rows, some of them without a value."""
    few = [row(0, site, "log_kappa", value) for site, value in zip(SITES, (3, 6, None, 4, 3), strict=True)]
    few += [row(0, site, "token_cosine", None) for site in SITES]
    return Diagnosis(model="one_block", num_images=1, image_size=(32, 32), tokens="patch", rows=few)


def hostile() -> Diagnosis:
    """Names that want to be markup, and one that does not end."""
    base = rich(EVIL, layers=2)
    evil = Finding(kind=EVIL, severity=EVIL, layer=1, text=EVIL, evidence=EVIL, remedy=EVIL)
    return Diagnosis(
        model=EVIL,
        num_images=2,
        image_size=(8, 8),
        tokens=EVIL,
        rows=[
            *base.rows,
            row(0, EVIL, "log_kappa", 2.0),
            row(1, "sab_in", EVIL, 2.0),
            row(0, "head_" + EVIL, "attention_entropy", 1.0),
        ],
        variants={EVIL: base.rows},
        spectra=[SiteSpectrum(layer=0, site=EVIL, log_sigma=(0.0, -1.0), std=(0.0, 0.1), floor=None, n=2, d=2)],
        jacobians=[jacobian(EVIL, EVIL, 0.5, complete=True)],
        advice=Advice(
            patch_size=(4, 4), n=4, d=48, log_kappa=None, target=3.0, epsilon={EVIL: 0.5},
            sweep=(GrayingStep(method=EVIL, epsilon=0.5, log_kappa=None, num_infinite=2),),
        ),
        findings=[evil],
        thumbnails=[thumbnail(EVIL, LONG, 0)],
        missing=[EVIL, LONG],
        skipped=[EVIL, LONG],
        source=LONG,
        weights=LONG,
        command=f"wellcond diagnose {LONG} {EVIL}",
        versions={EVIL: EVIL},
        arithmetic=EVIL,
    )  # fmt: skip
