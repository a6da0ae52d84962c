"""The plan of the house: which file stands on which floor, and that imports go only upwards in the list."""

import ast
import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import wellcond

SOURCE = Path(wellcond.__file__).parent
ROOT = Path(__file__).parents[1]
FLOORS = {
    0: {"config", "parsing", "report", "results", "runs", "stopping", "strip", "verbs", "watching"},
    1: {"spectral"},
    2: {"graying", "blocks"},
    3: {"activations", "attention", "initializers", "pictures", "skips"},
    4: {"jacobian", "probes"},
    5: {"diagnosis"},
    6: {"data", "evaluation", "monitor", "objectives", "optim"},
    7: {"runs_page", "training"},
    8: {"checkup", "doctor", "judging", "photos", "recipes"},
    9: {"bench", "completion", "demo", "hub", "reproduction"},
    10: {"app", "cli"},
    11: {"__main__"},
}
FLOOR_OF = {room: floor for floor, rooms in FLOORS.items() for room in rooms}
FOUNDATION = {"atomic", "extras", "finite", "invoked", "locks", "subclassing", "wording"}  # import only each other
FILES = sorted(SOURCE.rglob("*.py"))
PUBLIC = {
    "Monitor",
    "SOAP",
    "TokenGraying",
    "__version__",
    "calibrate_",
    "condition_number",
    "cut_skips",
    "diagnose",
    "effective_rank",
    "gray",
    "gray_tokens",
    "init_skipless_",
    "load",
    "mimetic_",
    "numerical_floor",
    "restore_skips",
    "set_activation",
    "set_attention",
    "singular_values",
    "spectral_map",
    "stable_rank",
    "suo_",
    "ungray",
    "verify_init",
}


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> set[str]:
    """Rooms of ours that a file imports, anywhere in it: at the top or inside a function."""
    package = ("wellcond", *path.relative_to(SOURCE).parent.parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            module = (*base, *(node.module.split(".") if node.module else ()))
            found |= {(*module, alias.name) for alias in node.names}
    return {name[1] for name in found if name[0] == "wellcond" and len(name) > 1 and name[1] != "__version__"}


def test_every_file_stands_in_a_known_room():
    rooms = {room_of(path) for path in FILES} - {"__init__"}
    assert rooms <= set(FLOOR_OF) | FOUNDATION


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_go_up(path):
    room = room_of(path)
    if room == "__init__":  # the list of public names, lazy
        return
    for other in imported_rooms(path) - FOUNDATION - {room}:
        assert room not in FOUNDATION, f"{room} must not import {other}"
        assert other in FLOOR_OF, f"{path} imports {other}, which is in no floor"
        assert FLOOR_OF[other] < FLOOR_OF[room], f"{path} (floor {FLOOR_OF[room]}) imports {other}"


def test_no_drawer_for_odds_and_ends():
    names = {path.stem for path in FILES} | {path.parent.name for path in FILES}
    assert not names & {"utils", "util", "helpers", "helper", "misc", "common", "manager"}


def test_public_names_are_frozen():
    assert set(wellcond.__all__) == PUBLIC
    assert set(dir(wellcond)) >= PUBLIC
    assert not {"Any", "TYPE_CHECKING", "import_module"} & set(dir(wellcond))


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_public_name_resolves(name):
    assert getattr(wellcond, name) is not None


def test_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="graay"):
        _ = wellcond.graay  # pyright: ignore[reportAttributeAccessIssue]


API = Path(__file__).parent / "golden" / "api.txt"


def signatures() -> str:
    """Every public name with its parameters and defaults; of classes with public methods also these."""
    lines = []
    for name in sorted(PUBLIC - {"__version__"}):
        value = getattr(wellcond, name)
        lines.append(name + _parameters(value))
        if inspect.isclass(value):
            methods = [k for k, v in vars(value).items() if not k.startswith("_") and inspect.isfunction(v)]
            lines += [f"{name}.{method}{_parameters(getattr(value, method))}" for method in sorted(methods)]
    return "\n".join(lines) + "\n"


def _parameters(value: Callable[..., object]) -> str:
    signature = inspect.signature(value)
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    return str(signature.replace(parameters=bare, return_annotation=signature.empty))


def test_public_signatures_are_frozen():
    """Users' code calls these; a change on purpose is `python tests/test_house.py`, and a line in the changelog."""
    assert signatures() == API.read_text()


def test_lint_is_clean():
    ruff = [sys.executable, "-m", "ruff"]
    if subprocess.run([*ruff, "--version"], capture_output=True, check=False).returncode:
        pytest.skip("ruff is not installed")
    for words in (["check"], ["format", "--check"]):
        done = subprocess.run([*ruff, *words, "--no-cache", "."], cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr


def test_torch_is_not_imported_before_work_begins():
    modules = [
        "wellcond",
        "wellcond.config",
        "wellcond.cli",
        "wellcond.parsing",
        "wellcond.report",
        "wellcond.strip",
    ]
    modules += ["wellcond.runs", "wellcond.results"]
    modules += ["wellcond.data.procedural", "wellcond.data.files", "wellcond.bench.table"]
    modules += ["wellcond.data.cache", "wellcond.data.splits"]
    modules += ["wellcond.recipes", "wellcond.recipes.showing", "wellcond.recipes.starting", "wellcond.judging"]
    modules += [
        "wellcond.data.sources",
        "wellcond.data.parquet",
        "wellcond.data.reading",
        "wellcond.checkup",
        "wellcond.app",
    ]
    modules += ["wellcond.results", "wellcond.reproduction"]
    code = f"import sys, {', '.join(modules)}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


if __name__ == "__main__":
    API.write_text(signatures())
