"""The formats that corpora are distributed in, on small files of each, through the examples' own steps."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Dict

import pytest

from tests.conftest import REPO

EXAMPLES = REPO / "examples"
XML = """<?xml version="1.0" encoding="UTF-8"?>
<mteval><srcset setid="tst" srclang="german">
<doc docid="1" genre="lectures"><title>Ein Titel</title>
<seg id="1"> Hunde &amp; Katzen. </seg>
<seg id="2"> Zwei
Zeilen. </seg></doc>
<doc docid="2"><seg id="1">AT&T &lt;hier&gt;</seg></doc></srcset></mteval>
"""
SGML = """<srcset setid="news" srclang="any">
<DOC sysid="ref"><hl>
<seg id="1">One.</seg>
</hl><p>
<SEG id="2">Two & three</SEG></p></DOC></srcset>"""
TAGS = """<url>http://example/1</url>
<keywords>talks</keywords>
<title>Der Titel</title>
 Erster Satz.
Ein &lt;Zeichen&gt; &amp; mehr.
<reviewer href="x">Jemand</reviewer>
"""


def run_step(script: str, *args: object) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    command = ["bash", str(EXAMPLES / script), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)


def formats(*args: object) -> subprocess.CompletedProcess:
    command = [sys.executable, str(EXAMPLES / "formats.py"), *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True)


def archive(path: Path, files: Dict[str, str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            file = path.parent / "file"
            file.write_text(text)
            tar.add(file, name)
            file.unlink()


def test_segments_of_xml_and_sgml(tmp_path: Path) -> None:
    for text, expected in (
        (XML, ["Hunde & Katzen.", "Zwei Zeilen.", "AT&T <hier>"]),
        (SGML, ["One.", "Two & three"]),
    ):
        (tmp_path / "in").write_text(text)
        assert formats("segments", tmp_path / "in", tmp_path / "out").returncode == 0
        assert (tmp_path / "out").read_text().splitlines() == expected


@pytest.mark.parametrize("text", ["nothing", XML.replace('id="2"', 'id="3"'), XML.replace('id="2"', "")])
def test_a_set_with_a_gap_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "in").write_text(text)
    done = formats("segments", tmp_path / "in", tmp_path / "out")
    assert (
        done.returncode == 1 and done.stderr.startswith("formats.py: error: 'in'") and not (tmp_path / "out").exists()
    )


def test_tags_lose_their_tags_and_stay_parallel(tmp_path: Path) -> None:
    (tmp_path / "de").write_text(TAGS)
    (tmp_path / "en").write_text(TAGS.replace("Erster Satz.", "First sentence."))
    assert formats("tags", *(tmp_path / name for name in ("de", "en", "o.de", "o.en"))).returncode == 0
    assert (tmp_path / "o.de").read_text().splitlines() == ["Erster Satz.", "Ein <Zeichen> & mehr."]
    assert (tmp_path / "o.en").read_text().splitlines() == ["First sentence.", "Ein <Zeichen> & mehr."]
    (tmp_path / "en").write_text(TAGS + "one more\n")
    done = formats("tags", *(tmp_path / name for name in ("de", "en", "p.de", "p.en")))
    assert done.returncode == 1 and "2 lines in" in done.stderr and not (tmp_path / "p.de").exists()


def test_iwslt_from_its_archive_to_a_data_directory(tmp_path: Path) -> None:
    files = {f"de-en/train.tags.de-en.{language}": TAGS * 20 for language in ("de", "en")}
    for year in ("2013", "2014"):
        files.update({f"de-en/IWSLT16.TED.tst{year}.de-en.{language}.xml": XML for language in ("de", "en")})
    archive(tmp_path / "archives" / "de-en.tgz", files)
    work = tmp_path / "work"
    done = run_step("iwslt16_de_en/1_extract.sh", tmp_path / "archives", work)
    assert done.returncode == 0, done.stderr
    assert [len((work / "text" / f"{split}.de").read_text().splitlines()) for split in ("train", "valid", "test")] == [
        40,
        3,
        3,
    ]
    done = run_step("steps/prepare_bpe.sh", work, "de", "en", 30)
    assert done.returncode == 0, done.stderr
    assert "@@" in (work / "bpe" / "test.de").read_text()
    assert {path.name for path in (work / "data-bin").glob("*.idx")} == {
        f"{split}.de-en.{language}.idx" for split in ("train", "valid", "test") for language in ("de", "en")
    }


@pytest.mark.parametrize(
    ("example", "source", "valid", "test"),
    [
        ("wmt14_de_en", "de", "newstest2013", "newstest2014-deen"),
        ("wmt15_fi_en", "fi", "newsdev2015-fien", "newstest2015-fien"),
    ],
)
def test_wmt_from_its_archives(tmp_path: Path, example: str, source: str, valid: str, test: str) -> None:
    archives, work = tmp_path / "archives", tmp_path / "work"
    for corpus, lines in (("europarl", 3), ("news", 2)):
        files = {
            f"training/{corpus}.{source}-en.{language}": f"{corpus} {language}\n" * lines for language in (source, "en")
        }
        files[f"training/{corpus}.cs-en.cs"] = "another pair\n"
        archive(archives / f"training-parallel-{corpus}.tgz", files)
    sets = {
        f"sets/{name}-{kind}.{language}.sgm": SGML
        for name in (valid, test)
        for kind, language in (("src", source), ("ref", "en"))
    }
    archive(archives / "dev.tgz", sets)
    done = run_step(f"{example}/1_extract.sh", archives, work)
    assert done.returncode == 0, done.stderr
    assert (work / "text" / "train.en").read_text() == "europarl en\n" * 3 + "news en\n" * 2
    assert (work / "text" / f"test.{source}").read_text().splitlines() == ["One.", "Two & three"]
    (archives / "dev.tgz").unlink()
    done = run_step(f"{example}/1_extract.sh", archives, tmp_path / "other")
    assert done.returncode == 1 and "error: no ne" in done.stderr


@pytest.mark.parametrize("script", sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.glob("*/*.sh")))
def test_steps_can_be_read_by_the_shell(script: str) -> None:
    assert subprocess.run(["bash", "-n", str(EXAMPLES / script)]).returncode == 0
