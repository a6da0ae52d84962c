"""`wellcond diagnose`: a model, its weights and some images → a table, one page, one JSON file. Floor 8.

Everything that can be wrong is looked at before the long work: paths, the other diagnosis, the device, the data,
the model, its weights. `wellcond.diagnose`, or with --init `wellcond.verify_init`, measures; this room brings it its
input and writes what it found.

    models    a name → a model            weights   a file → its tensors            progress  the bar
    saved     runs, and models of the hub
"""

import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from .. import parsing
from ..atomic import check_writable
from ..config import DiagnoseConfig, to_command
from ..data import ours
from ..data.sources import PROCEDURAL, open_source
from ..runs import CONFIG

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..data.records import Source
    from ..diagnosis import Diagnosis, Verification

STDOUT = Path("-")
MAX_NAMED = 20  # of the images skipped; the JSON names them all


def parse(arguments: list[str]) -> DiagnoseConfig | None:
    """`--json` without a file is `--json -`: numbers to stdout."""
    return parsing.parse(DiagnoseConfig, "diagnose", parsing.with_value("--json", str(STDOUT), arguments))


def run(config: DiagnoseConfig) -> int:
    """Diagnose the model, print the table, write page and numbers; 1 if log κ is above the user's limit."""
    html, json = _outputs(config)
    source = open_source(config.data, length=config.images, seed=config.seed)
    compare = _read_other(config.compare) if config.compare else None
    if line := ours.told(source):
        print(line, file=sys.stderr)
    diagnosis = measure(config, source)
    _tell_skipped(diagnosis)
    if json == STDOUT:
        print(diagnosis.as_json(), end="")
    else:
        _show(diagnosis, config)  # first, so that it is seen even if the disk is full
        if json:
            diagnosis.to_json(json)
    if html:
        diagnosis.to_html(html, **({} if compare is None else {"compare": compare}))
    if json != STDOUT:
        beside = f", beside {config.compare}" if config.compare else ""
        print("\n".join(f"→ {path}{beside if path == html else ''}" for path in (html, json) if path))
    return _judge(diagnosis, config.fail_above)


def _outputs(config: DiagnoseConfig) -> tuple[Path | None, Path | None]:
    """Where the page and the numbers go: both into the folder, or only what the user names."""
    html, json = config.html, config.json
    if html is None and json is None:
        names = ("init.html", "init.json") if config.init else ("report.html", "diagnosis.json")
        html, json = (config.out / name for name in names)
        if not config.init and (config.out / CONFIG).is_file():
            raise ValueError(
                f"out is {str(config.out)!r}, a run, whose report.html would be lost; name another folder, for example "
                f"{str(config.out / 'diagnosis')!r}"
            )
    for path, option in ((html, "html" if config.html else "out"), (json, "json" if config.json else "out")):
        if path is not None and path != STDOUT:
            check_writable(path, option, suffix=".html" if path is html else ".json")
    if html is not None and json is not None and html.resolve() == json.resolve():
        raise ValueError(f"html and json are both {str(html)!r}; name two files")
    if html is None and config.compare is not None:
        raise ValueError(
            "compare shows two diagnoses on the page, but only --json was asked for; add --html report.html"
        )
    return html, json


def _read_other(path: Path) -> "Diagnosis":
    from ..diagnosis import Diagnosis

    if not path.is_file():
        raise ValueError(f"compare is {str(path)!r}, where there is no file; give the JSON of an earlier diagnosis")
    try:
        return Diagnosis.from_json(path)
    except ValueError as error:
        raise ValueError(f"compare: {error}") from None


def measure(config: DiagnoseConfig, source: "Source") -> "Diagnosis | Verification":
    """The diagnosis that the config asks for, of pictures of the source; nothing is written."""
    import torch

    from ..data.batches import Preprocessing, image_batches
    from .models import check_transformer, load_model
    from .progress import progress_bar

    device = _device(config.device)
    model, weights = load_model(config)
    _warn_of_changes(config)
    dtype = torch.float64 if config.double else torch.float32
    model = model.to(device, dtype)
    preprocessing = Preprocessing(model, image_size=config.image_size)
    if config.data == PROCEDURAL:  # drawn as large as the model resizes pictures to, so that they are not resampled
        source = open_source(config.data, length=config.images, size=preprocessing.side, seed=config.seed)
    example = torch.rand(2, 3, *preprocessing.size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    check_transformer(model, example)
    _change(model, config, example)
    skipped: list[str] = []
    batches = image_batches(
        source,
        config.images,
        preprocessing,
        batch_size=config.batch_size,
        device=device,
        dtype=dtype,
        seed=config.seed,
        skipped=skipped,
    )
    with progress_bar(config.model, min(config.images, len(source))) as done:
        try:
            diagnosis = _look(model, batches, config, done)
        except (torch.OutOfMemoryError, MemoryError):
            remedy = f"choose a --batch-size below {config.batch_size}, or --device cpu"
            raise ValueError(f"out of memory on {device} with {config.batch_size} images at once; {remedy}") from None
    return dataclasses.replace(
        diagnosis, source=source.title, weights=weights, skipped=skipped, command=to_command("diagnose", config)
    )


def _look(
    model: "nn.Module", batches: Iterator["Tensor"], config: DiagnoseConfig, progress: Callable[[int], None]
) -> "Diagnosis | Verification":
    from ..diagnosis import diagnose, verify_init

    common: dict[str, Any] = {"jacobian": not config.no_jacobian, "name": _name(config, model), "progress": progress}
    if config.init:
        return verify_init(model, batches, **common)
    return diagnose(model, batches, tokens=config.tokens, target=config.target, **common)


def _warn_of_changes(config: DiagnoseConfig) -> None:
    """One line where the weights were trained in another model than the one they are measured in."""
    from .weights import about

    said = about(config.weights) if config.weights else {}
    trained, activation = said.get("cut", config.cut), said.get("activation", "gelu")
    if trained != config.cut or activation != "gelu":
        with_what = "" if activation == "gelu" else f", with {activation}"
        remedy = f"say --cut {trained}" if activation == "gelu" else "give its run directory in place of the model"
        print(
            f"warning: {str(config.weights)!r} was trained {_skips(trained)}{with_what}, and is measured "
            f"{_skips(config.cut)}; {remedy} to measure it as it was trained",
            file=sys.stderr,
        )


def _skips(cut: str) -> str:
    return "with all its skips" if cut == "no" else "without skips" if cut == "both" else f"without {cut} skips"


def _device(asked: str) -> str:
    import torch

    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError("device is 'cuda', but torch sees no CUDA device here; say --device cpu")
    return "cuda" if asked == "auto" and torch.cuda.is_available() else "cpu" if asked == "auto" else asked


def _change(model: "nn.Module", config: DiagnoseConfig, example: "Tensor") -> None:
    """Begin with other weights, gray the input, cut the skips, if that was asked."""
    import torch

    from ..graying import gray
    from ..initializers import init_skipless_, mimetic_
    from ..skips import cut_skips

    if config.initialize != "default":
        initialize = init_skipless_ if config.initialize == "skipless" else mimetic_
        initialize(model, generator=torch.Generator().manual_seed(config.seed))

    if config.gray != "no":
        gray(model, config.gray, config.epsilon, precision="exact")
    if config.cut != "no":
        parts = {"attention": config.cut != "mlp", "mlp": config.cut != "attention"}
        cut_skips(model, **parts, lpi=config.cut == "both", images=example)


def _name(config: DiagnoseConfig, model: "nn.Module") -> str:
    grayed = f", grayed by {config.gray.upper()} {config.epsilon:g}" if config.gray != "no" else ""
    begun = f", {config.initialize} initialization" if config.initialize != "default" else ""
    cut = "no" if config.init else _cut(model)  # a verification says it itself
    return config.model + begun + grayed + (f", {_skips(cut)}" if cut != "no" else "")


def _cut(model: "nn.Module") -> str:
    """Which skips it is without, in the words of --cut; a run brings its own cuts."""
    from ..blocks import adapted_blocks

    gains = [(gain, getattr(block, gain)) for block in adapted_blocks(model) for gain in block.gains]
    there = [part for part in ("attention", "mlp") if any(gain == f"{part}_gain" for gain, _ in gains)]
    gone = [part for part in there if not any(value for gain, value in gains if gain == f"{part}_gain")]
    return "no" if not gone else "both" if gone == there else gone[0]


def _tell_skipped(diagnosis: "Diagnosis | Verification") -> None:
    for reason in diagnosis.skipped[:MAX_NAMED]:
        print(f"skipped {reason}", file=sys.stderr)
    if len(diagnosis.skipped) > MAX_NAMED:
        print(f"skipped {len(diagnosis.skipped) - MAX_NAMED} more", file=sys.stderr)


def _show(diagnosis: "Diagnosis | Verification", config: DiagnoseConfig) -> None:
    from .models import RANDOM

    Console(highlight=False).print(diagnosis)
    images = f"{diagnosis.num_images} images of {diagnosis.source}"
    if diagnosis.num_images < config.images:
        images += f" (all there are that can be read; {config.images} were asked for)"
    print(images + (f", {len(diagnosis.skipped)} skipped" if diagnosis.skipped else ""))
    if diagnosis.weights == RANDOM and not config.init:
        print(
            f"weights: random (seed {config.seed}), so this tells of the initialization and not of a trained model; "
            "give --weights FILE or --pretrained"
        )
    elif diagnosis.weights == RANDOM:
        print(f"weights: random (seed {config.seed})")
    else:
        print(f"weights: {diagnosis.weights}")


def _judge(diagnosis: "Diagnosis | Verification", limit: float | None) -> int:
    """1 and one line that names the worst place, if log κ is above the limit anywhere."""
    if limit is None or not (rows := diagnosis.above(limit)):
        return 0
    from ..probes.rows import in_words

    worst = rows[0]
    value = "infinite on every image" if worst.value is None else f"{worst.value:.2f}"
    print(
        f"wellcond: log κ is above {limit:g} at {len(rows)} of the places measured, "
        f"worst {value} in {in_words((worst.layer, worst.site))}",
        file=sys.stderr,
    )
    return 1
