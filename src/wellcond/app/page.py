"""The page: three tabs, and which function answers to which control.

Every answer begins with a line for troubles: a mistake is said there, in one line, and what was shown stays.
"""

import html
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import themes

from wellcond.app import model, photo, watch
from wellcond.app.catalogue import DEFAULT, diagnosable
from wellcond.app.figures import option, plot
from wellcond.app.uploads import WEIGHTS
from wellcond.config import AppConfig
from wellcond.data.files import SUFFIXES

TITLE = "wellcond"
EVERY = 2.0  # seconds between two looks at a run
CSS = (Path(__file__).parents[1] / "templates" / "app.css").read_text()
INTRO = "See and fix the conditioning of vision transformers: κ = σ_max / σ_min of their tokens."


def theme() -> themes.Base:
    """Fonts of the system: none has to be fetched."""
    sans, mono = ("system-ui", "sans-serif"), ("ui-monospace", "monospace")
    return themes.Default(primary_hue="blue", neutral_hue="slate", font=sans, font_mono=mono)


def build_page(config: AppConfig) -> gr.Blocks:
    """Everything that is seen; `delete_cache` removes uploads of an hour ago."""
    with gr.Blocks(title=TITLE, analytics_enabled=False, delete_cache=(600, 3600)) as page:
        gr.HTML(f'<h1 class="wc-title">{TITLE}</h1><p class="wc-note">{INTRO}</p>')
        with gr.Tabs():
            with gr.Tab("Photo", id="photo"):
                _photo_tab(page, config)
            with gr.Tab("Model", id="model"):
                _model_tab(config)
            with gr.Tab("Run", id="run"):
                _run_tab(page, config.runs)
    return page


def _photo_tab(page: gr.Blocks, config: AppConfig) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            label = f"photo, up to {config.max_upload} MB"
            upload = gr.File(label=label, file_types=sorted(SUFFIXES), height=150, elem_classes="wc-file")
            built_in = gr.Dropdown(list(photo.BUILT_IN), label="or, without one, a built-in picture", filterable=False)
            method = gr.Radio([("SVD", "svd"), ("DCT", "dct")], value="svd", label="method")
            epsilon = gr.Slider(0.3, 1.0, value=0.7, step=0.01, label="ε", info="1 changes nothing, smaller is grayer")
            patch = gr.Dropdown(list(photo.PATCHES), value=16, label="patch size", filterable=False)
        with gr.Column(scale=2, min_width=280):
            trouble, shown = _trouble_line(), gr.HTML(elem_id="wc-pictures")
            spectra = gr.Plot(show_label=False, elem_id="wc-spectra")
    controls = [upload, built_in, method, epsilon, patch]

    @_told_in_one_line(num_outputs=2)
    def show(*values: Any) -> tuple[Any, ...]:
        result = photo.grayed(*values)
        return photo.pictures(result, values[2], values[3]), plot(photo.spectra(result, values[2], values[3]))

    options: dict[str, Any] = {"inputs": controls, "outputs": [trouble, shown, spectra], "show_progress": "hidden"}
    page.load(show, **options)
    epsilon.input(show, trigger_mode="always_last", **options)
    for control in (upload, built_in, method, patch):
        control.change(show, trigger_mode="always_last", **options)


def _model_tab(config: AppConfig) -> None:
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            name = gr.Dropdown(
                list(diagnosable()),
                value=DEFAULT,
                label="model of timm, with random weights unless others are given; type to search",
            )
            label = f"{WEIGHTS}, up to {config.max_upload} MB"
            weights = gr.File(label=label, file_types=[WEIGHTS], height=150, elem_classes="wc-file")
        with gr.Column(scale=1, min_width=280):
            pretrained = gr.Checkbox(label="timm's pretrained weights (needs the network)")
            images = gr.Slider(2, model.MAX_IMAGES, value=8, step=1, label="generated images")
            jacobian = gr.Checkbox(label="Jacobians, too (slower)")
            go = gr.Button("Diagnose", variant="primary")
    trouble, shown = _trouble_line(), gr.HTML(elem_id="wc-diagnosis", padding=False)

    @_told_in_one_line(num_outputs=1)
    def diagnose(*values: Any) -> tuple[Any, ...]:
        return (model.page_of(model.diagnosis_of(*values)),)

    go.click(diagnose, [name, weights, pretrained, images, jacobian], [trouble, shown], show_progress="full")


def _run_tab(page: gr.Blocks, root: Path) -> None:
    run = gr.Dropdown([], label=f"run under {root}", allow_custom_value=True)
    trouble, state = _trouble_line(), gr.HTML(elem_id="wc-state")
    seen = gr.State(None)  # the run and its files as they were drawn last
    with gr.Row():
        plots = [gr.Plot(show_label=False, visible=False, min_width=280) for _ in range(2)]
    plots.append(gr.Plot(show_label=False, visible=False))
    timer = gr.Timer(EVERY)

    def names() -> Any:
        found = watch.find_runs(root)
        return gr.Dropdown(choices=found, value=found[0] if found else None)

    @_told_in_one_line(num_outputs=2 + len(plots))
    def show(name: str, before: Any) -> tuple[Any, ...]:
        path = watch.locate(root, name)
        now = (name, watch.signature(path))
        if now == before:
            return tuple(gr.skip() for _ in range(2 + len(plots)))
        told = watch.story(path)
        drawn = [_curve(figure) for figure in watch.figures(told).values()]
        return f'<p class="wc-state">{html.escape(watch.headline(told, name))}</p>', now, *drawn

    outputs = [trouble, state, seen, *plots]
    page.load(names, None, run, show_progress="hidden")
    run.change(show, [run, seen], outputs, show_progress="hidden")
    run.focus(lambda: gr.Dropdown(choices=watch.find_runs(root)), None, run, show_progress="hidden")
    timer.tick(show, [run, seen], outputs, show_progress="hidden", trigger_mode="once")


def _trouble_line() -> gr.HTML:
    return gr.HTML(visible=False)


def _curve(figure: Any) -> Any:
    """A plot of the first quantity of a figure, hidden where there is none yet."""
    if figure is None:
        return gr.Plot(visible=False)
    return gr.Plot(value=plot(figure, **option(figure, "quantity", "top-1 (%)")), visible=True)


def _told_in_one_line(
    *, num_outputs: int
) -> Callable[[Callable[..., tuple[Any, ...]]], Callable[..., tuple[Any, ...]]]:
    """The answers after an empty line; or a line that says what is wrong, and what was shown stays."""

    def decorate(function: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
        @wraps(function)
        def told(*values: Any) -> tuple[Any, ...]:
            try:
                return gr.HTML(visible=False), *function(*values)
            except (ValueError, OSError) as error:
                message = error.strerror or str(error) if isinstance(error, OSError) else str(error)
            except Exception as error:  # ours, not the user's: the terminal has the rest
                traceback.print_exc()
                message = f"this should not have happened ({type(error).__name__}); the terminal says more"
            line = html.escape(" ".join(message.split()))
            told_so = gr.HTML(value=f'<p class="wc-trouble" role="alert">{line}</p>', visible=True)
            return told_so, *(gr.skip() for _ in range(num_outputs))

        return told

    return decorate
