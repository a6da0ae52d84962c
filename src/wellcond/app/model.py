"""A model of timm, with random, pretrained or uploaded weights → its diagnosis, as the page that `diagnose` writes.

Uploaded weights are opened by safetensors and by nothing else. What a checkpoint of `wellcond train` says of itself,
that its skips are cut, is followed, so that it is measured as it was trained.
"""

import html
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from wellcond.app.catalogue import diagnosable
from wellcond.app.uploads import check_weights
from wellcond.config import DiagnoseConfig
from wellcond.data.sources import PROCEDURAL, open_source
from wellcond.report import format_cell

if TYPE_CHECKING:
    from wellcond.diagnosis import Diagnosis

MAX_IMAGES = 32
MAX_PARAMETERS = 350_000_000  # a larger model is for the command line, where nobody waits at a page


def diagnosis_of(name: str, weights: str | None, pretrained: bool, images: float, jacobian: bool) -> "Diagnosis":
    """ValueError in one line for anything that cannot be measured."""
    from wellcond.checkup import measure
    from wellcond.checkup.weights import about

    if name not in diagnosable():
        raise ValueError(f"{name!r} is not among the models that can be diagnosed here; choose one of the list")
    if isinstance(images, bool) or not isinstance(images, int | float) or not 1 <= images <= MAX_IMAGES:
        raise ValueError(f"the number of images is {images!r}; choose 1 to {MAX_IMAGES}")
    check_size(name)
    path = Path(weights) if weights else None
    if path is not None:
        check_weights(path)
    said = about(path) if path else {}
    config = DiagnoseConfig(
        model=name,
        images=int(images),
        weights=path,
        pretrained=bool(pretrained),
        cut=cast(Any, said.get("cut") if said.get("cut") in ("attention", "mlp", "both") else "no"),
        no_jacobian=not jacobian,
    )
    try:
        return cast("Diagnosis", measure(config, open_source(PROCEDURAL, length=config.images)))
    except ValueError as error:  # the page need not know where uploads lie
        raise ValueError(str(error).replace(str(path), path.name) if path else str(error)) from None


def check_size(name: str) -> None:
    """ValueError if the model is too large; it is built without memory for its weights."""
    import timm
    import torch

    with torch.device("meta"):
        count = sum(p.numel() for p in timm.create_model(name).parameters())
    if count > MAX_PARAMETERS:
        raise ValueError(
            f"{name} has {count // 1_000_000} million parameters, and the limit here is "
            f"{MAX_PARAMETERS // 1_000_000}; say wellcond diagnose {name}"
        )


def page_of(diagnosis: "Diagnosis") -> str:
    """The table, and the whole report in a frame of its own that may run its charts and nothing else."""
    from wellcond.diagnosis.page import build

    report = html.escape(build(diagnosis).to_html())
    frame = f'<iframe class="wc-report" title="diagnosis" sandbox="allow-scripts" srcdoc="{report}"></iframe>'
    return table_of(diagnosis) + frame


def table_of(diagnosis: "Diagnosis") -> str:
    """log κ by block and site, mean over images; ∞ where no image has a finite one."""
    from wellcond.blocks import SITES
    from wellcond.diagnosis.page.words import is_infinite

    rows = {(row.layer, row.site): row for row in diagnosis.rows if row.quantity == "log_kappa" and row.site in SITES}
    sites = [site for site in SITES if any(place[1] == site for place in rows)]
    lines = []
    for layer in sorted({layer for layer, _ in rows}):
        here = [rows.get((layer, site)) for site in sites]
        cells = ["" if r is None else "∞" if is_infinite(r) else format_cell(r.value) for r in here]
        lines.append("".join(f"<td>{cell}</td>" for cell in [str(layer), *cells]))
    heads = "".join(f"<th>{name}</th>" for name in ["block", *sites])
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    name = html.escape(f"log κ of {diagnosis.model}, mean over {diagnosis.num_images} images")
    return f'<table class="wc-table"><caption>{name}</caption><tr>{heads}</tr>{body}</table>'
