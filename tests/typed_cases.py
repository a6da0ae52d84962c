"""How the commands of the pages are typed in a test: what stands in for the user's files and time, what runs elsewhere.

SWAPS, SMALLER and FILES change a command as little as they can; SHOWN and RECORDS name what is not typed at all. All
else runs as it is written, on its page (test_typed) or in a checkout (test_checkout).
"""

import shlex
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import timm
from docs_cases import PAGES, commands, mentioned, program
from layout_cases import write_ade20k, write_coco, write_voc
from PIL import Image
from recipe_cases import stand_in
from safetensors.torch import save_file

from wellcond.cli import main
from wellcond.data.procedural import procedural

SWAPS = {  # words of the page → words that two cores can do
    "procedural:640": "procedural:24",
    "--epochs 20": "--epochs 2",
    "--size 224": "--size 64",
    "--nproc-per-node 8": "--nproc-per-node 1",  # two with --nnodes 2, which is two torchruns here
    "--seeds 3 --data cifar10=DIR --jobs 6": "--seeds 1 --jobs 2",  # a quick one draws its pictures
    "NODE0": "127.0.0.1",
    "reproduce CLAIM": "reproduce asa-kappa",
}

NARROW = {"--model.options": "embed_dim 48 depth 2 num_heads 3"}
TEN = {"--model.num-classes": "10"}
SMALLER = {  # beginning of a command → options that it has not → their values
    "train": {"--epochs": "1", "--batch-size": "4", "--device": "cpu", "--monitor-images": "1"},
    "train procedural": {"--data": "procedural:24"},
    "train cifar10": NARROW,
    "train tiny-imagenet-vit-tiny-finetune": TEN | {"--model.options": f"{NARROW['--model.options']} global_pool avg"},
    "train tiny-imagenet-mae": NARROW,
    "train tiny-imagenet-dino": NARROW | {"--dino.local-crops": "2", "--dino.out-dim": "64", "--dino.hidden": "64"},
    "train imagenet": NARROW
    | TEN
    | {"--model.image-size": "32", "--data.image-size": "32", "--data.augment.repeats": "2", "--data.workers": "1"},
    "evaluate": {"--device": "cpu", "--probe-epochs": "1", "--segmentation-epochs": "1", "--pictures": "1"},
    "diagnose": {"--images": "2", "--device": "cpu"},
    "diagnose vit_tiny_patch16_224": {"--image-size": "32"},
    "diagnose vit_tiny_patch16_224 --data": {"--no-jacobian": ""},
    "diagnose vit_tiny_patch16_224 --cut attention": {"--no-jacobian": ""},
    "diagnose vit_tiny_patch16_224 --compare": {"--no-jacobian": ""},
    "reproduce": {"--quick": ""},
    "app": {"--port": "0"},
}


def typed(words: list[str]) -> list[str]:
    """The words that are run for those of the page."""
    line = as_written(words)
    for said, instead in SWAPS.items():
        line = line.replace(said, instead)
    words = shlex.split(line)
    command = line[line.index("train ") :] if "train " in line else line.partition(" ")[2]
    for beginning, options in SMALLER.items():
        if command.startswith(beginning):
            new = [f"{option} {value}" for option, value in options.items() if option not in words]
            words += " ".join(new).split()
    return [word for given in words for word in (sorted(map(str, Path().glob(given))) if "*" in given else [given])]


def picture(path: Path) -> None:
    path.parent.mkdir(exist_ok=True)
    Image.fromarray(procedural(1, size=64).image).save(path)


def trained(path: Path) -> None:
    """A run of twelve blocks, so that some can be chosen."""
    words = "train procedural-vit --data procedural:24 --epochs 1 --batch-size 8 --device cpu --monitor-every 0"
    shape = "--model.patch-size 8 --model.options embed_dim 16 depth 12 num_heads 2"
    assert main([*words.split(), *shape.split(), "--out", str(path)]) == 0


def weights(path: Path) -> None:
    save_file(timm.create_model("vit_tiny_patch16_224", img_size=32).state_dict(), path)


def coco(path: Path) -> None:
    names = [image.name for image in sorted((write_coco(path) / "train2014").iterdir())]
    (path / "coco_20k.txt").write_text("\n".join(names) + "\n")


FILES: dict[str, Callable[[Path], object]] = {  # what a page takes for granted
    "photo.jpg": picture,
    "photos/": lambda path: picture(path / "one.jpg"),
    "model.safetensors": weights,
    "runs/x": trained,
    "runs/y": trained,
    "DIR": lambda path: stand_in(path, 32, 10),
    "OTHER": lambda path: stand_in(path, 32, 10),
    "VOC": write_voc,
    "VOCdevkit/VOC2012": write_voc,
    "VOCdevkit/VOC2007": write_voc,
    "coco": coco,
    "ADEChallengeData2016": write_ade20k,
}


def lay_out(words: list[str]) -> None:
    """Make the files that a command reads, unless an earlier command of the page has made them."""
    read = [word for before, word in pairwise(words) if before != "--out"]
    for name, make in FILES.items():
        wanted = any(word == name or word.partition("=")[2] == name or word.startswith(f"{name}/") for word in read)
        if wanted and not Path(name).exists():
            make(Path(name))


class Elsewhere(NamedTuple):
    """Why a program is not run, and where to see what stands for it: a file and a line that must be in it."""

    why: str
    file: str
    line: str


SHOWN = {  # programs of a cluster: a transcript shows what they said there, and no page asks to type them
    "squeue": Elsewhere("lists the jobs of a Slurm", "docs/many.md", "Tried: a Slurm of one machine"),
    "scancel": Elsewhere(
        "signals a job of a Slurm; here one gets it from", "tests/test_submit.py", "by=signal.SIGUSR2"
    ),
}
RECORDS = "results.md"  # its sentences name what was measured with, hours on a GPU: test_docs parses them
SAID = {page: commands(page) + (mentioned(page) if page.name != RECORDS else []) for page in PAGES}


def as_written(words: list[str]) -> str:
    return shlex.join([program(words), *words[1:]])


def of_a_checkout(words: list[str]) -> bool:
    """Whether it needs the whole project around it; test_checkout types each of these once."""
    return program(words) in ("make", "pip") or "http.server" in words


def of_a_page(page: Path) -> list[list[str]]:
    """All others that can be typed, in their order."""
    return [words for words in SAID[page] if not of_a_checkout(words) and program(words) not in SHOWN]
