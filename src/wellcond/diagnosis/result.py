"""What a diagnosis holds: rows, spectra, Jacobians, advice and findings as plain data, ⇄ JSON. No torch here.

Numbers that are not finite are None, never inf or nan: JSON has neither, and a reader must not average them.
"""

from dataclasses import dataclass, field

from wellcond.probes.rows import Row


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing to know about the model, in plain words, with the evidence and the fix that applies.

    `kind` is for programs and does not change: rank_collapse, attention_ill_conditioned, numerical_floor, graying,
    heavy_tails, not_finite, as_in_the_papers, not_as_in_the_papers.
    """

    kind: str
    severity: str  # "warning": act; "note": know
    layer: int | None  # the block where it begins, None: the whole model
    text: str
    evidence: str
    remedy: str


@dataclass(frozen=True, kw_only=True)
class SiteSpectrum:
    """Mean and standard deviation over images of ln(σ_k/σ_max), k = 1 … min(n, d), and of the floor, at one site."""

    layer: int
    site: str
    log_sigma: tuple[float | None, ...]  # None: no image has a σ_k above zero
    std: tuple[float | None, ...]
    floor: float | None  # ln(floor/σ_max): what lies at or under it is rounding
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class JacobianCurve:
    """Singular values of the Jacobian of one sub-block on one image, fed with the image grayed by `method`.

    Of the fields of `wellcond.jacobian.JacobianSpectrum`; `complete`: `sigma` holds all of them.
    """

    layer: int
    part: str  # "attention" | "mlp"
    method: str | None  # None: the image as it is
    epsilon: float | None
    sigma: tuple[float, ...]  # descending
    error: tuple[float, ...]
    sigma_min: float
    sigma_min_lower: float
    floor: float
    log_kappa: float | None  # None: not resolved, or infinite
    kappa_at_least: float | None
    kappa_at_most: float | None
    complete: bool
    n: int
    d: int


@dataclass(frozen=True, kw_only=True)
class GrayingStep:
    """Mean log κ of the images' patch tokens after graying by `method` at `epsilon` (1: as they are)."""

    method: str
    epsilon: float
    log_kappa: float | None
    num_infinite: int


@dataclass(frozen=True, kw_only=True)
class Advice:
    """What graying would do to these images, and the ε that reaches the target."""

    patch_size: tuple[int, int]
    n: int
    d: int
    log_kappa: float | None  # mean, before
    target: float  # log κ
    epsilon: dict[str, float | None]  # method → the largest ε that reaches the target; None: none in its sweep does
    sweep: tuple[GrayingStep, ...]


@dataclass(frozen=True, kw_only=True)
class Thumbnail:
    """A picture of the page as base64 PNG: an image used, or what graying makes of it."""

    title: str
    note: str
    png: str


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """The whole of it. `rows` are of the model as it is; `variants` of the same model with skips cut."""

    model: str
    num_images: int
    image_size: tuple[int, int]  # height, width
    tokens: str  # "all" | "patch"
    rows: list[Row]
    variants: dict[str, list[Row]] = field(default_factory=dict)  # "attention skips cut", "mlp skips cut"
    spectra: list[SiteSpectrum] = field(default_factory=list)
    jacobians: list[JacobianCurve] = field(default_factory=list)
    advice: Advice | None = None
    findings: list[Finding] = field(default_factory=list)
    thumbnails: list[Thumbnail] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)  # what could not be measured, and why
    skipped: list[str] = field(default_factory=list)  # images that could not be read, and why
    source: str = ""  # where the images came from
    weights: str = ""  # "random", "as given", or a file
    command: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    arithmetic: str = "float32"  # of the model's forward pass
