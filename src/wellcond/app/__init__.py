"""`wellcond app`: the three jobs in the browser, without a line of code. Floor 10: a door.

page       the tabs and what they look like; photo, model and watch say what happens in each
photo      a photo grayed, its spectrum and κ, as the slider moves
model      a timm model, perhaps with uploaded weights → its diagnosis
watch      a run directory → its curves, while it trains; nothing outside the run root
figures    a figure of a report → what gradio draws
catalogue  the models of timm that can be diagnosed
guard      what the server answers at all: few addresses, from here, of this size
uploads    what an uploaded file must be: an image or safetensors, never a pickle
serving    the port, the folder of the uploads, the server

It listens on loopback unless told otherwise, has no share link, sends no analytics and needs no network.
"""

from wellcond.config import AppConfig
from wellcond.extras import install


def run(config: AppConfig) -> None:
    """Serve until Ctrl-C."""
    try:
        import gradio  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise ValueError(f"app needs gradio, which is not installed; {install('app')}") from None
    if config.runs.exists() and not config.runs.is_dir():
        raise ValueError(f"runs is {str(config.runs)!r}, which is a file; name the folder that holds run directories")
    if not config.runs.exists() and config.runs != AppConfig().runs:  # before the first run there is no runs/
        raise ValueError(
            f"runs is {str(config.runs)!r}, and there is no such folder; name the one that holds run directories, "
            "or leave --runs out"
        )
    from wellcond.app.serving import serve

    serve(config)
