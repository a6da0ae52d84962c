"""The model card: README.md with the front matter that the hub reads, then what a reader wants to know of a run."""

import json
import shlex
from collections.abc import Iterator
from typing import Any

from torch import nn

from ..config import ExportConfig, ModelConfig, TrainConfig, to_json
from ..results import markdown, without_place
from ..runs_page.reading import Story
from . import scores
from .curves import tables

GRAYING_PAPER, SKIPLESS_PAPER = "2505.01996", "2510.00345"


def write(
    name: str, story: Story, exported: ExportConfig, *, plain: bool, licence: str | None, model: nn.Module
) -> str:
    """The whole file."""
    parameters = sum(p.numel() for p in model.parameters())
    sections = {
        "Load it": _loading(name, exported, plain),
        "How it was trained": markdown(["what", "value"], _settings(story, exported, licence)),
        "Results": scores.section(story, exported.step),
        "Condition number while it trained": tables(story) or _NOT_MEASURED,
        "The command": _origin(story),
        "The whole config": f"Of paths only the last name is told.\n\n```json\n{_config(story.config)}\n```",
    }
    front = _front_matter(name, story, exported.step, plain=plain, licence=licence)
    title = f"# {name.rsplit('/', 1)[-1]}\n\n{_sentence(story, parameters)}"
    body = "\n\n".join(f"## {head}\n\n{text}" for head, text in sections.items())
    return f"---\n{front}\n---\n\n{title}\n\n{body}\n\n{_papers(exported.model)}\n"


_NOT_MEASURED = "Not measured: the run was trained with `--monitor-every 0`."


def dataset(story: Story) -> str:
    """The training images as a reader knows them: a name, or the last part of a path."""
    return without_place(story.config.data.train)


def changes(model: ModelConfig) -> list[str]:
    """What is not as in timm, in words."""
    g, words = model.graying, []
    if g.method != "none":
        words.append(f"its input grayed by {g.method.upper()} at ε = {g.epsilon:g}")
    if model.cut != "no":
        words.append("without skips" if model.cut == "both" else f"without the skips around its {_part(model.cut)}")
    if model.attention == "linear":
        words.append(f"with linear attention, k = {model.k or 16:g}")
    if model.activation != "gelu":
        words.append(f"with the activation {model.activation}")
    return words


def _part(cut: str) -> str:
    return "MLPs" if cut == "mlp" else "attention"


def _sentence(story: Story, parameters: int) -> str:
    config = story.config
    how = {"supervised": "with labels", "mae": "without labels, by MAE", "dino": "without labels, by DINO"}
    differs = "".join(f", {word}" for word in changes(config.model))
    return (
        f"`{config.model.name}` at {config.model.image_size} px, {parameters / 1e6:.3g} M parameters{differs}; trained "
        f"{how[config.objective]} on {dataset(story)} by wellcond."
    )


def _front_matter(name: str, story: Story, step: int, *, plain: bool, licence: str | None) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    config, source = story.config, dataset(story)
    labelled = config.objective == "supervised"
    task = "image-classification" if labelled else "image-feature-extraction"
    own = source.removeprefix("hf:") if source.startswith("hf:") else None
    top1 = scores.top1(story, step) if labelled else None
    results = {} if top1 is None else {
        "model_name": name,
        "eval_results": [
            EvalResult(
                task_type=task, dataset_type=own or source, dataset_name=own or source, metric_type="accuracy",
                metric_name="top-1, %", metric_value=round(top1, 3),
            )
        ],
    }  # fmt: skip
    papers = [f"arxiv:{number}" for number in _cited(config.model)]
    return ModelCardData(
        license=licence,
        library_name="timm" if plain else "wellcond",
        pipeline_tag=task,
        tags=["wellcond", "vision-transformer", *papers],
        datasets=[own] if own else None,
        **results,
    ).to_yaml()


def _loading(name: str, exported: ExportConfig, plain: bool) -> str:
    size = exported.model.image_size
    mean, std = (", ".join(f"{value:g}" for value in values) for values in (exported.mean, exported.std))
    ours = f'```python\nimport wellcond as wc\n\nmodel = wc.load("hf:{name}")  # or the folder of this card\n```'
    images = f"Images are {size} × {size} px, normalised by mean ({mean}) and std ({std}) of pixels in 0 … 1."
    if plain:
        theirs = f'```python\nimport timm\n\nmodel = timm.create_model("hf-hub:{name}", pretrained=True)\n```'
        rounded = ", rounded to float32" if exported.precision == "float64" else ""
        return f"{ours}\n\nIt is a plain model of timm, so this gives the same{rounded}:\n\n{theirs}\n\n{images}"
    missing = ", ".join(changes(exported.model))
    if not missing:
        return f"{ours}\n\ntimm alone has no architecture of this name, so it cannot load it.\n\n{images}"
    return (
        f"{ours}\n\n**Not by timm alone**: it knows nothing of what this model is ({missing}). It would load the same "
        f"weights into its plain architecture, whose outputs are others.\n\n{images}"
    )


def _settings(story: Story, exported: ExportConfig, licence: str | None) -> Iterator[tuple[str, str]]:
    config, model = story.config, story.config.model
    g, optim = model.graying, story.config.optim
    yield "recipe", config.recipe
    yield "dataset", f"{dataset(story)} (validation: {without_place(config.data.val)})"
    epsilon = f"{g.method.upper()}, ε = {g.epsilon:g}, rescale {g.rescale}, precision {g.precision}"
    yield "graying", "none" if g.method == "none" else epsilon
    skips = {"no": "all", "both": "none"}.get(model.cut, f"none around {_part(model.cut)}")
    yield "skips", skips + _annealed(model, exported)
    yield "attention", "softmax" if model.attention == "softmax" else f"linear, k = {model.k or 16:g}"
    yield "activation", model.activation
    yield "initialization", _beginning(model)
    yield "optimizer", f"{optim.name}, learning rate {optim.lr:g}, weight decay {optim.weight_decay:g}"
    epochs = f"{config.epochs} epoch{'s' * (config.epochs > 1)}"
    yield "length", f"{epochs} of batches of {config.batch_size}; these weights are of step {exported.step}"
    yield "precision", config.precision
    yield "seed", str(config.seed)
    yield "started from", without_place(config.pretrained) if config.pretrained else "fresh weights"
    yield "licence", licence or "none is stated"


def _annealed(model: ModelConfig, exported: ExportConfig) -> str:
    if exported.skip_gain:
        return f"; those that are cut still have a gain of {exported.skip_gain:g}"
    share = f"{100 * model.anneal_skips:g} %"
    return f"; their gain fell from 1 to 0 over the first {share} of the steps" if model.anneal_skips else ""


def _beginning(model: ModelConfig) -> str:
    init = model.init
    if init.method != "skipless":
        return {"default": "timm's own"}.get(init.method, init.method)
    numbers = {"α": init.alpha, "β": init.beta, "c": init.c, "temperature": init.temperature}
    said = (f"{letter} = {', '.join(f'{value:g}' for value in values)}" for letter, values in numbers.items())
    drawn = "" if init.positions is None else f"; positions of deviation {init.positions:g}"
    return f"skipless, {'; '.join(said)}; Z {init.z}{drawn}" + (", calibrated" if init.calibrate else "")


def _origin(story: Story) -> str:
    if not story.starts:
        return "Not recorded."
    start: dict[str, Any] = story.starts[-1]
    commands = list(dict.fromkeys(_command(str(s.get("command"))) for s in story.starts))
    facts = {
        "commit": start.get("commit"),
        "hardware": ", ".join(f"{key} {value}" for key, value in (start.get("hardware") or {}).items()),
        "versions": ", ".join(f"{key} {value}" for key, value in (start.get("versions") or {}).items() if value),
        "date": start.get("date"),
        "starts": len(story.starts),
    }
    rows = [[key, value if isinstance(value, str) else json.dumps(value)] for key, value in facts.items()]
    return "```sh\n" + "\n".join(commands) + f"\n```\n\n{markdown(['what', 'value'], rows)}"


def _command(told: str) -> str:
    """Of paths only the last name, as in the config."""
    try:
        words = shlex.split(told)
    except ValueError:  # not written by a shell's rules
        words = told.split()
    return shlex.join(map(without_place, words))


def _config(config: TrainConfig) -> str:
    def told(value: Any) -> Any:
        if isinstance(value, dict):
            return {name: told(item) for name, item in value.items()}
        if isinstance(value, list):
            return [told(item) for item in value]
        return without_place(value) if isinstance(value, str) else value

    return json.dumps(told(json.loads(to_json(config))), indent=2)


def _cited(model: ModelConfig) -> list[str]:
    skipless = model.cut == "both" or model.init.method == "skipless"
    return [GRAYING_PAPER] * (model.graying.method != "none") + [SKIPLESS_PAPER] * skipless


def _papers(model: ModelConfig) -> str:
    names = {GRAYING_PAPER: "Token Graying: *Always Skip Attention*", SKIPLESS_PAPER: "*Cutting the Skip*"}
    cited = "; ".join(f"{names[number]}, arXiv {number}" for number in _cited(model))
    return f"Written by `wellcond push`.{f' {cited}.' if cited else ''}"
