"""Fixtures that several test files share."""

from pathlib import Path

import pytest
from PIL import Image

from wellcond.data.procedural import procedural


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    """A 64 × 64 picture on disk."""
    path = tmp_path / "photo.png"
    Image.fromarray(procedural(1, size=64).image).save(path)
    return path
