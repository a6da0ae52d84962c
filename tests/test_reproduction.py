"""The frame of claims: runs are kept, portions add up, files are guarded, tables say what the files say."""

import dataclasses
import json
import typing

import pytest

from wellcond.bench.table import render
from wellcond.cli import main
from wellcond.config import ReproduceConfig
from wellcond.reproduction import CLAIMS, assembling, portions
from wellcond.reproduction.claim import Claim, Judgement, Row

ORIGIN = {"command", "commit", "hardware", "versions", "date", "seeds", "images"}


class Counting:
    """A claim that counts its runs."""

    def __init__(self, fail_at=None, size=1):
        self.calls, self.fail_at, self.size = [], fail_at, size

    def measure(self, variant, seed, quick):
        if (variant, seed) == self.fail_at:
            raise KeyboardInterrupt
        self.calls.append((variant, seed))
        return {"value": seed + (10.0 if variant == "b" else 0.0), "odd": float("inf")}

    def judge(self, runs):
        values = [run["value"] for run in runs]
        row = Row(name="all | of it", paper="3", value=sum(values), interval=(1.0, 2.34567), values=values,
                  verdict="reproduced", more={"extra": float("nan")})  # fmt: skip
        return Judgement(rows=[row], verdict=f"{len(runs)} runs.")

    @property
    def claim(self):
        return Claim(
            name="asa-proxy", says="A says.", measures="We count.", scaled_down="much", variants=("a", "b"),
            quick_variants=("a",), settings=lambda quick: {"size": self.size, "shape": (1, 2)}, measure=self.measure,
            judge=self.judge,
        )  # fmt: skip

    def run(self, out, **options):
        return assembling.assemble(self.claim, ReproduceConfig(claim="asa-proxy", out=out, **options))


def test_a_file_holds_everything(tmp_path, capsys):
    content = Counting().run(tmp_path, seeds=2, html=tmp_path / "page.html")
    written = json.loads((tmp_path / "asa-proxy.json").read_text())
    assert written == content and set(written) > ORIGIN
    assert [(run["variant"], run["seed"], run["value"]) for run in written["runs"]] == [
        ("a", 0, 0.0), ("b", 0, 10.0), ("a", 1, 1.0), ("b", 1, 11.0),
    ]  # fmt: skip
    assert all(run["odd"] is None and set(run) >= {"commit", "hardware", "date", "seconds"} for run in written["runs"])
    assert written["rows"][0]["extra"] is None and written["seeds"] == [0, 1] and written["verdict"] == "4 runs."
    assert str(tmp_path.parent) not in written["command"]
    assert "4 runs." in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert "A says." in page and "reproduced" in page and "Scaled down: much" in page


def test_finished_runs_are_not_measured_again(tmp_path):
    Counting().run(tmp_path, seeds=1)
    second = Counting()
    assert len(second.run(tmp_path, seeds=2)["runs"]) == 4
    assert second.calls == [("a", 1), ("b", 1)]
    third = Counting()
    third.run(tmp_path, seeds=2)
    assert third.calls == []
    third.run(tmp_path, seeds=2, again=True)
    assert len(third.calls) == 4
    other = Counting(size=2)  # other settings: another experiment, which must not replace this one by itself
    with pytest.raises(ValueError, match=r"asa-proxy.json' holds runs of other settings \(size 1, not 2\).*--again"):
        other.run(tmp_path, seeds=2)
    assert not other.calls
    other.run(tmp_path, seeds=2, again=True)
    assert len(other.calls) == 4
    assert len(other.run(tmp_path, seeds=1)["runs"]) == 4  # fewer seeds asked for: nothing is thrown away


def test_only_some_variants_at_a_time(tmp_path, capsys):
    first = Counting()
    first.run(tmp_path, seeds=2, only=("b",))
    assert first.calls == [("b", 0), ("b", 1)]
    second = Counting()
    content = second.run(tmp_path, seeds=1)
    assert second.calls == [("a", 0)] and len(content["runs"]) == 3
    again = Counting()
    assert len(again.run(tmp_path, seeds=1, only=("b",), again=True)["runs"]) == 2
    assert again.calls == [("b", 0)]
    with pytest.raises(ValueError, match="only is 'c', which asa-proxy has no variant of; there are a, b"):
        again.run(tmp_path, only=("c",))


def test_a_cell_of_every_set_is_named_by_its_parts_in_a_row(tmp_path):
    variants = ("one/skip/soap", "one/skip/adamw", "two/skip/soap", "two/skipless/soap")
    claim = dataclasses.replace(Counting().claim, variants=variants)
    for only, want in (("skip/soap", {0, 2}), ("two", {2, 3}), ("one/skip", {0, 1}), ("two/skip/soap", {2})):
        config = ReproduceConfig(claim="asa-proxy", out=tmp_path, only=(only,))
        assert portions.chosen(claim, config) == tuple(variants[i] for i in sorted(want))
    with pytest.raises(ValueError, match="only is 'one/soap', which asa-proxy has no variant of"):
        portions.chosen(claim, ReproduceConfig(claim="asa-proxy", out=tmp_path, only=("one/soap",)))


def test_minutes_end_before_a_run_that_would_not_fit(tmp_path, capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("wellcond.reproduction.portions.time.monotonic", lambda: now[0])
    monkeypatch.setattr("wellcond.reproduction.assembling.time.perf_counter", lambda: now[0])
    slow = Counting()
    measure = slow.measure

    def measured(*words):
        now[0] += 100
        return measure(*words)

    slow.measure = measured  # pyright: ignore[reportAttributeAccessIssue]
    content = slow.run(tmp_path, seeds=3, max_minutes=6)  # 360 s: three of 100 s, a fourth would end at 400
    assert len(content["runs"]) == len(slow.calls) == 3
    assert "Still missing: b, seed 1; a, seed 2; b, seed 2." in capsys.readouterr().out
    slow.calls.clear()
    now[0] = 0.0
    slow.run(tmp_path, seeds=3, max_minutes=1)  # the file says that a run takes 100 s
    assert not slow.calls


def test_runs_are_collected_from_elsewhere(tmp_path, capsys):
    here, there = tmp_path / "here", tmp_path / "there"
    Counting().run(here, seeds=1, only=("a",))
    Counting().run(there, seeds=2)
    later = Counting()
    content = later.run(here, seeds=3, collect=(there,))
    assert not later.calls and len(content["runs"]) == 4 and content["seeds"] == [0, 1]
    told = capsys.readouterr().out
    assert "3 of 4 runs taken over" in told and "Still missing: a, seed 2; b, seed 2." in told
    assert content["command"] == "wellcond reproduce asa-proxy --seeds 2"
    for settings, words in ((Counting(size=2), "other settings .size 1, not 2."), (Counting(), "no .*nowhere")):
        with pytest.raises(ValueError, match=words):
            settings.run(tmp_path / "third", collect=(there if settings.size == 2 else tmp_path / "nowhere",))
    with pytest.raises(ValueError, match="holds full runs, and quick runs were asked for"):
        Counting().run(tmp_path / "third", quick=True, collect=(there,))


def test_an_interrupt_keeps_what_is_finished(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        Counting(fail_at=("a", 1)).run(tmp_path, seeds=2)
    later = Counting()
    later.run(tmp_path, seeds=2)
    assert later.calls == [("a", 1), ("b", 1)]


def test_quick_runs_are_apart(tmp_path, capsys):
    small = Counting().run(tmp_path, seeds=2, quick=True)
    assert small["quick"] and "says nothing about it. much" in small["scaled_down"]
    assert "says nothing about it" in capsys.readouterr().out
    assert render(tmp_path).startswith("*No full")
    full = Counting()
    full.run(tmp_path, seeds=1)
    assert len(full.calls) == 2  # nothing of the quick one counts
    with pytest.raises(ValueError, match="--out"):
        Counting().run(tmp_path, seeds=1, quick=True)


def test_the_table_says_what_the_file_says(tmp_path):
    Counting().run(tmp_path, seeds=2)
    text = render(tmp_path)
    assert "| all \\| of it | 3 | 22 | 1 … 2.35 | reproduced | much |" in text
    assert "A says." in text and "4 runs." in text and "2 seeds, `wellcond reproduce asa-proxy --seeds 2" in text


@pytest.mark.parametrize("content", [b"{}", b"[]", b"", b"no JSON", b"\xff\xfe"], ids=repr)
def test_a_file_of_another_kind_is_named(content, tmp_path, capsys):
    (tmp_path / "asa-kappa.json").write_bytes(content)
    assert main(["reproduce", "asa-kappa", "--quick", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and "asa-kappa.json" in captured.err and "--out" in captured.err
    assert (tmp_path / "asa-kappa.json").read_bytes() == content


@pytest.mark.parametrize("damage", ["variant", "seconds", "a word", "settings"])
def test_a_file_merged_by_hand_is_checked(damage, tmp_path):
    content = Counting().run(tmp_path, seeds=1)
    if damage == "settings":
        content["settings"] = []
    elif damage == "a word":
        content["runs"] = "runs"
    else:
        del content["runs"][1][damage]
    text = json.dumps(content)
    (tmp_path / "asa-proxy.json").write_text(text)
    for options in ({"out": tmp_path}, {"out": tmp_path / "new", "collect": (tmp_path,)}):
        with pytest.raises(ValueError, match=r"asa-proxy.json' is damaged: .* missing; restore it"):
            Counting().run(**options, seeds=1)
    assert (tmp_path / "asa-proxy.json").read_text() == text


@pytest.mark.parametrize(("damage", "told"), [("lost", "'value' is missing"), (None, "unsupported operand")])
def test_runs_that_cannot_be_judged_are_told_before_others_are_measured(damage, told, tmp_path):
    """What a claim reads of a run may lie deep in it."""
    content = Counting().run(tmp_path, seeds=1)
    content["runs"][1]["value"] = damage
    if damage == "lost":
        del content["runs"][1]["value"]
    text = json.dumps(content)
    (tmp_path / "asa-proxy.json").write_text(text)
    for options in ({"out": tmp_path}, {"out": tmp_path / "new", "collect": (tmp_path,)}):
        counting = Counting()
        with pytest.raises(ValueError, match=rf"asa-proxy in .* cannot be judged: one is damaged \({told}.*restore"):
            counting.run(**options, seeds=3)
        assert not counting.calls and not (tmp_path / "new").exists()
    assert (tmp_path / "asa-proxy.json").read_text() == text
    assert Counting().run(tmp_path, seeds=1, again=True)["verdict"] == "2 runs."


@pytest.mark.parametrize(
    ("arguments", "words"),
    [([], "needs a claim"), (["asa-prox"], "asa-proxy"), (["asa-proxy", "--seeds", "0"], "seeds is 0"),
     (["asa-proxy", "--seed", "3"], "--seeds"), (["asa-proxy", "--out", "FILE"], "name another folder")],
)  # fmt: skip
def test_mistakes_are_one_line(arguments, words, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    arguments = [str(tmp_path / "file") if a == "FILE" else a for a in arguments]
    assert main(["reproduce", *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1 and words in captured.err


def test_the_claims_of_the_command_line_are_those_there_are():
    assert set(typing.get_args(typing.get_type_hints(ReproduceConfig)["claim"])) == set(CLAIMS)
