"""`wellcond push RUN NAME`: a run → a model card and weights that timm and `wc.load` read, on the hub. Floor 9.

folder     the files, of a run             card      README.md, in the hub's form
scores     numbers of these very weights   curves    log κ while it trained
uploading  to the hub
"""

from ..config import PushConfig

FOLDER = "hub"  # in the run's directory, unless --out names another


def run(config: PushConfig) -> None:
    """Write the folder; unless it is a dry run, upload it."""
    from . import folder, uploading

    uploading.check_name(config.name)
    out = config.out or config.run / FOLDER
    folder.check_place(out)
    written = folder.write(config.run, out, config.name, config.license)
    print(f"→ {out}: {', '.join(path.name for path in written)}")
    if config.dry_run:
        print(f"nothing was uploaded; without --dry-run it goes to {uploading.address(config.name)}")
        return
    print(f"→ {uploading.upload(out, config.name, private=config.private)}")
