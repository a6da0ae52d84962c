"""Which photo goes where, and whether its size fits: decided before any work is done. Floor 8."""

from dataclasses import dataclass, field
from pathlib import Path

from ..config import GrayConfig
from ..data.files import SUFFIXES, describe, find_images, image_size
from ..data.ours import GRAYED, STRIP, is_ours, leftovers


@dataclass(frozen=True, kw_only=True)
class Job:
    """One photo, where its picture goes and where its strip goes."""

    source: Path
    picture: Path
    strip: Path


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The jobs, why some files have none, and the pictures of an earlier run that were left alone."""

    jobs: list[Job]
    skipped: list[str] = field(default_factory=list)
    leftovers: list[Path] = field(default_factory=list)


def plan(config: GrayConfig) -> Plan:
    """Where every output goes; two photos never share one, and none is written over a photo."""
    if config.source.is_dir():
        return _plan_folder(config)
    if not config.source.exists():
        raise ValueError(f"no file {str(config.source)!r}; check the path")
    if not config.source.is_file():
        raise ValueError(f"{str(config.source)!r} is a pipe or a device, not a file; save the photo to a file first")
    if config.out is None or config.out.is_dir():
        jobs = [_job(config.source, config.out or config.source.parent, set(), GRAYED)]
    elif config.out.suffix.lower() not in SUFFIXES:
        raise ValueError(f"out is {str(config.out)!r}; end it in .png or .jpg, or name a folder that exists")
    else:
        strip = config.out.with_name(f"{config.out.stem}{STRIP}.png")
        jobs = [Job(source=config.source, picture=config.out, strip=strip)]
    _refuse_overwriting(jobs, named=config.out)
    return Plan(jobs=jobs)


def _plan_folder(config: GrayConfig) -> Plan:
    out = output_folder(config)
    if out.exists() and not out.is_dir():
        raise ValueError(f"out is the file {str(out)!r}, but the source is a folder; name a folder")
    inside = out.resolve()
    if inside in (config.source.resolve(), *config.source.resolve().parents):
        raise ValueError(f"out {str(out)!r} holds the photos themselves; name a folder beside {str(config.source)!r}")
    skipped: list[str] = []
    found = find_images(config.source, skipped)
    outside = [p for p in found if inside not in p.resolve().parents]
    if not outside:
        raise ValueError(f"no image in {str(config.source)!r} outside the output folder {str(out)!r}")
    ours = leftovers(outside)
    taken: set[Path] = set()
    sources = dict.fromkeys(p for p in outside if p not in set(ours))  # in order, and quick to ask
    jobs = [_job(path, out / path.relative_to(config.source).parent, taken) for path in sources]
    _refuse_overwriting(jobs)
    return Plan(jobs=jobs, skipped=skipped, leftovers=ours)


def output_folder(config: GrayConfig) -> Path:
    source = config.source.resolve()
    return config.out if config.out is not None else source.with_name(f"{source.name}{GRAYED}")


def _refuse_overwriting(jobs: list[Job], named: Path | None = None) -> None:
    """ValueError where a picture is in the way that is not ours, unless the user has `named` it."""
    sources = {job.source.resolve() for job in jobs}
    for job in jobs:
        for written in (job.picture, job.strip):
            in_the_way = written != named and written.exists() and not is_ours(written)
            if in_the_way or written.resolve() in sources:
                raise ValueError(f"{str(written)!r} would be written over a photo; choose another name with --out")


def _job(source: Path, folder: Path, taken: set[Path], suffix: str = "") -> Job:
    stem = source.stem
    while True:
        job = Job(source=source, picture=folder / f"{stem}{suffix}.png", strip=folder / f"{stem}{STRIP}.png")
        if taken.isdisjoint((job.picture, job.strip)):
            taken |= {job.picture, job.strip}
            return job
        stem = source.name if stem == source.stem else f"{stem}_"  # a.jpg beside a.png: a.png, a.png.png


def check_sizes(jobs: list[Job], config: GrayConfig, *, tolerant: bool) -> tuple[list[Job], list[str]]:
    """The jobs that can be done, and why the others cannot; ValueError if a size does not fit the patch.

    Where it is `tolerant`, what cannot be read or is smaller than one patch is left out instead of refused.
    """
    good, skipped = [], []
    for job in jobs:
        try:
            width, height = image_size(job.source)
            _check_not_small(job.source, width, height, config)
        except (ValueError, OSError) as error:
            if not tolerant:
                raise
            skipped.append(describe(job.source, error))
            continue
        p = config.patch_size
        if config.resize is None and not config.crop and (width % p or height % p):
            raise ValueError(
                f"{str(job.source)!r} is {width}×{height}, not a multiple of the patch size {p}; "
                f"add --crop (cut to {width - width % p}×{height - height % p}) "
                f"or --resize {max(1, round(min(width, height) / p)) * p}"
            )
        good.append(job)
    return good, skipped


def _check_not_small(source: Path, width: int, height: int, config: GrayConfig) -> None:
    p, side = config.patch_size, min(width, height)
    if config.resize is None and side < p:
        raise ValueError(
            f"{str(source)!r}: {width}×{height}, smaller than one {p}×{p} patch; "
            f"choose a --patch-size of at most {side}"
        )
