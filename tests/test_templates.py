"""Files of the package that are not modules: they are installed, and what is filled into a page
cannot become a part of it."""

import shutil
import subprocess
import sys

import pytest
from jinja2 import UndefinedError

from gpub.templates import read_packaged, render_template


def built(folder):
    "Names below gpub that an installation of this copy would have"
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", "built"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
    return names(folder / "built/lib/gpub")


def names(package):
    return {p.relative_to(package).as_posix() for p in package.rglob("*") if p.is_file()}


def test_every_file_of_the_package_is_installed(copy):
    here = names(copy / "gpub")
    endings = {name.rsplit(".", 1)[-1] for name in here}
    assert {"py", "jinja", "css", "js", "csv"} == endings
    assert built(copy) == here


def test_a_file_that_is_left_out_is_found(copy):
    (copy / "gpub/share/page.svg").write_text("<svg/>")
    assert names(copy / "gpub") - built(copy) == {"share/page.svg"}


def test_the_source_archive_has_what_the_wheel_is_made_of(root, copy):
    shutil.copy(root / "MANIFEST.in", copy)
    command = [sys.executable, "setup.py", "-q", "sdist", "--formats=gztar"]
    subprocess.run(command, cwd=copy, check=True, capture_output=True)
    archive = next((copy / "dist").glob("*.tar.gz"))
    shutil.unpack_archive(archive, copy / "unpacked")
    package = next((copy / "unpacked").glob("*/gpub"))
    assert names(package) == names(copy / "gpub")


def test_values_are_escaped_and_none_may_lack():
    facts = dict(a="</script>", cfg={})
    values = dict(title="<script>alert(1)</script>", facts=facts, earlier=[], weights="")
    page = render_template("share/demo.html.jinja", **values)
    assert "<script>alert" not in page
    assert page.count("</script>") == 3
    del values["title"]
    with pytest.raises(UndefinedError, match="title"):
        render_template("share/demo.html.jinja", **values)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(FileNotFoundError, match="none.css"):
        read_packaged("share/none.css")
