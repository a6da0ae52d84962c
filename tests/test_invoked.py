"""How our commands are typed: the name where the shell finds it, else a path from where the user stands."""

import sys

from wellcond.invoked import typed


def test_the_shortest_that_works(tmp_path, monkeypatch):
    script = tmp_path / "my env" / "bin" / "wellcond"
    script.parent.mkdir(parents=True)
    monkeypatch.setattr(sys, "executable", str(script.with_name("python")))
    monkeypatch.setattr(sys, "argv", ["elsewhere"])
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.chdir(tmp_path)
    assert typed("wellcond") == "'my env/bin/python' -m wellcond"
    script.touch(mode=0o755)
    assert typed("wellcond") == "'my env/bin/wellcond'"
    assert typed("wellcond", tmp_path / "other") == f"'{script}'"
    monkeypatch.setenv("PATH", str(script.parent))
    assert typed("wellcond") == "wellcond"


def test_a_script_of_that_name_may_be_another_s(tmp_path, monkeypatch):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "wellcond").touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "one" / "python"))
    monkeypatch.setenv("PATH", str(tmp_path / "two"))
    assert typed("wellcond") == str(tmp_path / "one" / "wellcond")
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "two" / "wellcond")])  # pip install --user
    assert typed("wellcond") == "wellcond"
