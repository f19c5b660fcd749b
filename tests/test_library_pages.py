"""What a reader of the site's library pages and of a wrong address is told."""

import re
import sys
import types

import pytest


@pytest.fixture
def build(root, monkeypatch):
    "tools/offline/build.py; what makes HTML is not needed here, and a stand-in where it is absent"
    monkeypatch.syspath_prepend(root / "tools/offline")
    monkeypatch.chdir(root)
    for name in ("sphinx", "sphinx.cmd", "sphinx.cmd.build"):
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["sphinx.cmd.build"], "build_main", None, raising=False)
    monkeypatch.delitem(sys.modules, "build", raising=False)
    import build

    yield build
    sys.modules.pop("build", None)


def test_a_library_page_says_how_to_import_it(build):
    "The line can be typed, names what the page documents, and every module of the library has one"
    modules = build.own_names()
    pages = {page for page, _ in modules if page.startswith("lib/")}
    lines = {page: build.imports_of(page, modules).source for page in pages}
    assert "from gpub.model.attention import" in lines["lib/model/attention.html"]
    for page in ("lib/model/attention.html", "lib/guards/check.html", "lib/files.html"):
        typed = re.fullmatch(r"```python\n(.*)\n```", lines[page], re.S)[1]
        names = {}
        exec(typed, names)
        assert {name for where, name in modules if where == page and name[0] != "_"} <= set(names)
    assert build.imports_of("no_such_page.html", modules) is None


def test_a_wrong_address_leads_back(root):
    "Its links are whole addresses, since it is shown at any depth, and lead to real pages"
    text = (root / "nbs/404.html").read_text(encoding="utf-8")
    home = "https://gpuburnout.github.io/gpub/"
    pages = re.findall(rf'href="{home}([^"]+)\.html"', text)
    assert len(pages) >= 3 and f'href="{home}index.html"' in text
    there = {
        re.sub(r"(^|/)\d+_", r"\1", p.relative_to(root / "nbs").with_suffix("").as_posix())
        for p in (root / "nbs").rglob("*.ipynb")
    }
    assert set(pages) <= there
    assert "404.html" in (root / "_quarto.yml").read_text(encoding="utf-8")
