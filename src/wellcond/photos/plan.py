"""Which photo goes where, and whether its size fits: decided before any work is done. Floor 8."""

from dataclasses import dataclass
from pathlib import Path

from ..config import GrayConfig
from ..data.files import SUFFIXES, find_images, image_size


@dataclass(frozen=True, kw_only=True)
class Job:
    """One photo, where its picture goes and where its strip goes."""

    source: Path
    picture: Path
    strip: Path


def plan(config: GrayConfig) -> list[Job]:
    """Where every output goes; two photos never share one."""
    if config.source.is_dir():
        if config.out is not None and config.out.exists() and not config.out.is_dir():
            raise ValueError(f"out is the file {str(config.out)!r}, but the source is a folder; name a folder")
        taken: set[Path] = set()
        out = output_folder(config)
        inside = out.resolve()
        sources = [p for p in find_images(config.source) if inside not in p.resolve().parents]
        if not sources:
            raise ValueError(f"no image in {str(config.source)!r} outside the output folder {str(out)!r}")
        return [_job(path, out / path.relative_to(config.source).parent, taken) for path in sources]
    if not config.source.exists():
        raise ValueError(f"no file {str(config.source)!r}; check the path")
    if config.out is None:
        return [_job(config.source, config.source.parent, set(), "-grayed")]
    if config.out.is_dir():
        return [_job(config.source, config.out, set(), "-grayed")]
    if config.out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"out is {str(config.out)!r}; end it in .png or .jpg, or name a folder that exists")
    job = Job(source=config.source, picture=config.out, strip=config.out.with_name(f"{config.out.stem}-strip.png"))
    for written in (job.picture, job.strip):
        if written.resolve() == config.source.resolve():
            raise ValueError(f"{str(written)!r} would be written over the photo itself; choose another name with --out")
    return [job]


def output_folder(config: GrayConfig) -> Path:
    source = config.source.resolve()
    return config.out if config.out is not None else source.with_name(f"{source.name}-grayed")


def _job(source: Path, folder: Path, taken: set[Path], suffix: str = "") -> Job:
    stem = source.stem
    while True:
        job = Job(source=source, picture=folder / f"{stem}{suffix}.png", strip=folder / f"{stem}-strip.png")
        if taken.isdisjoint((job.picture, job.strip)):
            taken |= {job.picture, job.strip}
            return job
        stem = source.name if stem == source.stem else f"{stem}_"  # a.jpg beside a.png: a.png, a.png.png


def check_sizes(jobs: list[Job], config: GrayConfig, *, tolerant: bool) -> tuple[list[Job], list[str]]:
    """The jobs whose header can be read, and why the others cannot; ValueError if a size does not fit."""
    good, skipped = [], []
    p = config.patch_size
    for job in jobs:
        try:
            width, height = image_size(job.source)
        except ValueError as error:
            if not tolerant:
                raise
            skipped.append(str(error))
            continue
        if config.resize is None and min(width, height) < p:
            raise ValueError(
                f"{str(job.source)!r} is {width}×{height}, smaller than one {p}×{p} patch; "
                f"choose a smaller --patch-size or add --resize {14 * p}"
            )
        if config.resize is None and not config.crop and (width % p or height % p):
            raise ValueError(
                f"{str(job.source)!r} is {width}×{height}, not a multiple of the patch size {p}; "
                f"add --crop (cut to {width - width % p}×{height - height % p}) or --resize {14 * p}"
            )
        good.append(job)
    return good, skipped
