"""The table of verbs: what `wellcond VERB` is, in plain data. Floor 0; imports nothing of ours.

A verb is a config dataclass, whose fields are the options, and a module, whose `run(config)` does the work; a module
may have a `parse(arguments)` of its own. The command line, its help and tab completion all read this table.
"""

from typing import NamedTuple


class Verb(NamedTuple):
    """One row of the table."""

    config: str  # class in wellcond.config; empty: the module parses for itself
    module: str  # has run(config); {what} is filled in from the config
    summary: str
    example: str  # a whole command, under the verb's own help
    needs: str = ""  # what to say where its argument is missing


VERBS = {
    "gray": Verb(
        "GrayConfig",
        "photos",
        "gray a photo or a folder of photos, show κ before and after",
        "wellcond gray photo.jpg --method svd --epsilon 0.6 --out grayed.png",
        needs="a photo or a folder: wellcond gray photo.jpg",
    ),
    "diagnose": Verb(
        "",
        "checkup",
        "measure every block of a model on images, one HTML page",
        "wellcond diagnose vit_tiny_patch16_224 --data photos/ --weights model.safetensors",
        needs="a model of timm: wellcond diagnose vit_tiny_patch16_224",
    ),
    "recipes": Verb(
        "",
        "recipes.showing",
        "list the experiments, or show one: its card and its config",
        "wellcond recipes cifar10-vit-tiny",
    ),
    "train": Verb(
        "",
        "recipes.starting",
        "train a recipe, or go on with its run",
        "wellcond train procedural-vit --model.graying.method dct --out runs/grayed",
        needs="a recipe first: wellcond train procedural-vit (wellcond recipes lists them)",
    ),
    "evaluate": Verb(
        "",
        "judging",
        "judge trained runs: top-1, k-NN, probes, segmentation, discovery",
        "wellcond evaluate runs/x --with knn linear segmentation discovery pca --layers all",
        needs="a run directory: wellcond evaluate runs/x",
    ),
    "report": Verb(
        "ReportConfig",
        "runs_page",
        "show training runs: curves, tables, κ by epoch, one HTML page",
        "wellcond report runs/*",
        needs="run directories: wellcond report runs/*",
    ),
    "push": Verb(
        "PushConfig",
        "hub",
        "publish a run on the Hugging Face hub: card and weights",
        "wellcond push runs/x me/my-vit --dry-run",
        needs="a run directory and a name: wellcond push runs/x me/my-vit --dry-run",
    ),
    "demo": Verb(
        "DemoConfig",
        "demo",
        "gray pictures and train small ViTs, with and without skips",
        "wellcond demo --out demo",
    ),
    "app": Verb(
        "AppConfig",
        "app",
        "in the browser: gray a photo, diagnose a model, watch a run train",
        "wellcond app --runs runs",
    ),
    "reproduce": Verb(
        "ReproduceConfig",
        "reproduction",
        "measure a claim of the papers over seeds → results/CLAIM.json",
        "wellcond reproduce asa-kappa --seeds 5",
        needs="a claim: wellcond reproduce asa-kappa",
    ),
    "bench": Verb(
        "BenchConfig",
        "bench.{what}",
        "time our parts against the usual choice → results/bench-*.json",
        "wellcond bench graying --device cuda --data photos.parquet",
        needs="graying, spectral, diagnose, train, soap, tokencut or knn: wellcond bench graying",
    ),
    "doctor": Verb(
        "DoctorConfig",
        "doctor",
        "what is installed, found and chosen on this machine",
        "wellcond doctor --json",
    ),
    "completion": Verb(
        "CompletionConfig",
        "completion",
        "a script for your shell: the Tab key completes wellcond's words",
        "wellcond completion bash > ~/.local/share/bash-completion/completions/wellcond",
        needs="a shell: wellcond completion bash (or zsh, fish)",
    ),
}
