"""The built site. `tools/offline/check.py` examines every build by itself; here it is shown faults
to find, and, where `SITE` names a built site, a browser opens every page of it:
SITE=_site_offline/html pytest tests/test_site.py."""

import ast
import html
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from configparser import ConfigParser
from datetime import date
from pathlib import Path

import pytest
import yaml
from browser import Browser
from cells import python
from share_of_full import falls_to, share

sys.path.insert(0, str(Path(__file__).parents[1] / "tools" / "offline"))
from check import broken
from polish import polish

GOOD = (
    '<html><body><h1 id="top">a</h1><a href="b/c.html#x%20y">c</a><a href="#top">t</a><a '
    'href="https://x.org/">x</a>'
    '<img src="p.png" alt="a curve"><link rel="stylesheet" href="s.css"></body></html>'
)


def site(folder, page=GOOD, css="a { color: red; background: url(p.png) }"):
    (folder / "b").mkdir(parents=True)
    (folder / "index.html").write_text(page)
    (folder / "b/c.html").write_text('<p id="x y"><a href="../index.html">up</a></p>')
    (folder / "p.png").write_bytes(b"png")
    (folder / "s.css").write_text(css)
    return folder


def test_a_sound_site_has_no_faults(tmp_path):
    assert broken(site(tmp_path)) == []


@pytest.mark.parametrize(
    "old, new, said",
    [
        ("b/c.html#x%20y", "b/d.html", "no such file"),
        ("b/c.html#x%20y", "b/c.html#z", "no such anchor"),
        ("#top", "#bottom", "no such anchor"),
        ('p.png" alt', 'q.png" alt', "no such file"),
        ('alt="a curve"', "", "no words"),
        ('alt="a curve"', 'alt="_images/9f.png"', "no words"),
        ('href="s.css"', 'href="//cdn.org/s.css"', "another host"),
        ("<h1", '<script src="https://cdn.org/x.js"></script><h1', "another host"),
        ("<h1", '<iframe src="demo.html"></iframe><h1', "no such file"),
        ("<h1", '<a href="b/">folder</a><h1', "no such file"),
    ],
)
def test_faults_are_found(tmp_path, old, new, said):
    assert old in GOOD
    found = broken(site(tmp_path, GOOD.replace(old, new, 1)))
    assert len(found) == 1 and said in found[0] and found[0].startswith("index.html")


def test_faults_of_styles_and_of_nothing(tmp_path):
    assert broken(tmp_path) == [f"{tmp_path} holds no page"]
    assert (
        len(
            broken(
                site(
                    tmp_path / "s",
                    css='@import "https://fonts.org/f.css"; a { background: url(//cdn.org/p.png) }',
                )
            )
        )
        == 2
    )


def printed(text, kind="output stream highlight-myst-ansi"):
    "How Sphinx writes a printed block"
    return (
        f'<div class="{kind} notranslate"><div '
        f'class="highlight"><pre><span></span>{html.escape(text)}</pre>'
    )


def test_columns_stay_in_step():
    left = "what   tok/s\nours      12\nhf      1.5\n3 < 4, so it goes on and on & on"
    made = polish(printed(left))
    lines = re.search("<pre[^>]*>(.*)</pre>", made, re.S)[1].split("\n")
    assert (
        'class="columns"' in made
        and 'tabindex="0"' in made
        and html.unescape(re.sub("<[^>]+>", "", "\n".join(lines))) == left
    )
    # a sentence may break, a row may not
    assert [l.startswith("<span>") for l in lines] == [
        False,
        False,
        False,
        True,
    ]
    assert "columns" in polish(printed("a   b\nac  d", "highlight-text"))
    for text in (
        "one line  with a gap",
        "a  gap here\nand  there",
        "no gap\nat all",
        "  an indent\n  is none",
    ):
        assert "columns" not in polish(printed(text)), text
    assert "columns" not in polish(printed("a   b\nac  d", "highlight-python"))


def test_a_long_cell_of_a_table_gets_room():
    code = '<code class="docutils literal notranslate"><span class="pre">{}</span></code>'
    for cell in (
        '<td class="text-left"><p>{}</p></td>',
        f'<td class="text-left"><p>{code}</p></td>',
    ):
        assert 'class="text-left long"' in polish(cell.format("a &lt; b " * 6))
        assert "long" not in polish(cell.format("&lt;" * 30) * 2)


def needed(root):
    "What the cells that run while the pages are built import at once: package -> notebooks"
    found = {}
    for p in (root / "nbs").rglob("*.ipynb"):
        for s in (
            "".join(c["source"])
            for c in json.loads(p.read_text(encoding="utf-8"))["cells"]
            if c["cell_type"] == "code"
        ):
            if re.search(r"^#\|\s*eval:\s*false", s, re.M):
                continue
            for n in python(s).body:
                names = (
                    [a.name for a in n.names]
                    if isinstance(n, ast.Import)
                    else [n.module]
                    if isinstance(n, ast.ImportFrom)
                    else []
                )
                for m in names:
                    found.setdefault(m.split(".")[0], set()).add(p.stem)
    return found


def test_what_pages_import_comes_with_the_docs(root):
    "`make site` on a fresh clone installs the docs packages and no others"
    cfg = ConfigParser(delimiters=["="])
    cfg.read(root / "settings.ini", encoding="utf-8")
    known = {
        re.split("[=<>]", w)[0].replace("-", "_")
        for k in ("requirements", "docs_requirements")
        for w in cfg["DEFAULT"][k].split()
    }
    # IPython comes with nbdev, yaml is pyyaml's module
    known |= {"gpub", "IPython", "yaml", *sys.stdlib_module_names}
    asked = needed(root)
    lost = {m: sorted(where) for m, where in asked.items() if m not in known}
    assert "torch" in asked and not lost, lost


def test_the_map_calls_pages_by_their_names(root):
    def title(path):
        return re.match(
            r"# (.+)",
            "".join(json.loads((root / path).read_text(encoding="utf-8"))["cells"][0]["source"]),
        )[1]

    rows = re.findall(
        r"^\| \[([^\]]+)\]\((nbs/\S+\.ipynb)\)",
        (root / "README.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert len(rows) > 10 and [(said, path) for said, path in rows if said != title(path)] == []


def test_issue_forms_are_what_they_look_like(root):
    """In YAML's short form a comma ends a sentence: the rest of it became a setting that GitHub
    refuses"""
    for p in (root / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        for field in yaml.safe_load(p.read_text(encoding="utf-8")).get("body", []):
            assert set(field["attributes"]) <= {"label", "description", "placeholder", "render"}, (
                p.name
            )


@pytest.fixture(scope="module")
def built():
    if not os.environ.get("SITE"):
        pytest.skip("no site to look at: make site, then SITE=_site_offline/html")
    folder = Path(os.environ["SITE"]).resolve()
    assert (folder / "index.html").is_file(), f"{folder} is no built site"
    return folder


def visit(built, browser, first=0, every=1):
    "Open pages of the site, one after the other: (name, browser); every so many from the first on"
    for page in sorted(built.rglob("*.html"))[first::every]:
        browser.events.clear()
        browser.open(page.as_uri())
        browser.wait(
            'document.readyState == "complete" && location.href.split("#")[0] == '
            f"{json.dumps(page.as_uri())}"
        )
        yield page.relative_to(built).as_posix(), browser


def test_what_to_do_with_a_page():
    pytest.importorskip("sphinx", reason="no sphinx to build a site with")
    from build import tools_of

    line = tools_of(Path("season1/01_first_transformer.ipynb"), "2026-11-22").source
    links = dict(re.findall(r'<a href="([^"]+)"([^>]*)>', line))
    own = "../notebooks/season1/01_first_transformer.ipynb"
    assert links.pop(own) == " download"
    assert len(links) == 2 and set(links.values()) == {""}  # pages of elsewhere open
    assert '<time datetime="2026-11-22">2026-11-22</time>' in line
    assert "<time" not in tools_of(Path("index.ipynb"), "").source


def test_the_first_screen(built):
    "Words and three ways on, and below them the training with its slider, which is in the site"
    page = (built / "index.html").read_text(encoding="utf-8")
    hero = re.search(r'<div class="hero">.*?</iframe>', page, re.S)
    assert hero, "the first page begins without its hero"
    zero, one, inside = re.findall(r'<a class="button[^"]*" href="([^"]+)"', hero[0])
    assert (built / zero).is_file() and (built / one).is_file()
    assert f'id="{inside[1:]}"' in page
    training = re.search(r"<iframe src=['\"]([^'\"]+)", hero[0])
    assert training[1] == "widgets/training.html" and (built / training[1]).is_file()
    assert page.index("<h1>") < hero.start() < page.index("<h2>")
    styles = (built / "_static" / "styles.css").read_text(encoding="utf-8")
    assert all(f".{name} {{" in styles for name in ("hero", "hero-buttons"))


def test_every_page_has_the_bar_and_its_notebook(built):
    "The lines of _quarto.yml on top; a notebook to fetch, which is one, and the day it changed"
    root = Path(__file__).parents[1]
    settings = yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))["website"]
    parts = [item["text"] for item in settings["navbar"]["left"]]
    fetched = set()
    for path in built.rglob("*.html"):
        page = path.read_text(encoding="utf-8")
        if "styles/furo.css" not in page:
            continue  # a widget or the model: a page inside of another
        bar = re.search(r'<header class="topbar">.*?</header>', page, re.S)
        assert bar, f"{path} has no top bar"
        texts = [t for t in re.findall(r"<a [^>]*>([^<]+)</a>", bar[0]) if t.strip()]
        assert texts == parts and settings["repo-url"] in bar[0], path
        if path.name == "search.html":
            continue
        tools = re.search(r'<p class="page-tools">.*?</p>', page, re.S)
        assert tools, f"{path} has no line of tools"
        notebook = (path.parent / re.search(r'href="([^"]+)" download', tools[0])[1]).resolve()
        assert json.loads(notebook.read_text(encoding="utf-8"))["cells"], notebook
        fetched.add(notebook.relative_to(built).as_posix())
        day = re.search(r'<time datetime="([\d-]+)">\1</time>', tools[0])
        assert day and date.fromisoformat(day[1]) <= date.today(), path
    there = {p.relative_to(built).as_posix() for p in built.rglob("*.ipynb")}
    assert fetched == {name for name in there if name.startswith("notebooks/")} != set()


AXE = "axe-core@4.14.1"
# all that axe finds, but two check boxes of the theme, which its styles want outside of every
# region
JUDGE = """axe.run(document, {resultTypes: ['violations'], iframes: false, preload: false})
    .then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)
        .filter(h => v.id != 'region' || !h.includes('class="sidebar-toggle"'))])
    .filter(([id, nodes]) => nodes.length)
    .map(([id, nodes]) => `${id} (${nodes.length} times): ${nodes[0].slice(0, 160)}`))"""


@pytest.fixture(scope="session")
def axe(tmp_path_factory):
    "The script of axe-core, which npm fetches; empty where it cannot"
    if not (npm := shutil.which("npm")):
        return ""
    folder = tmp_path_factory.mktemp("axe")
    got = subprocess.run(
        [npm, "pack", AXE, "--silent", "--fetch-retries=0"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    if got.returncode:
        return ""
    with tarfile.open(folder / got.stdout.split()[-1]) as t:
        return t.extractfile("package/axe.min.js").read().decode()


def test_axe_finds_what_is_wrong(axe, tmp_path):
    if not axe:
        pytest.skip(f"npm is not on this machine, or cannot fetch {AXE}: it judges no page")
    bad = (
        '<html lang="en"><title>a</title><main><h1>a</h1><img src="data:,"><p style="color: '
        '#ccc; background: #fff">pale</p></main>'
    )
    (tmp_path / "s").mkdir()
    (tmp_path / "s/bad.html").write_text(bad)
    with Browser(tmp_path) as browser:
        found = [
            sorted(f.split()[0] for f in b.run(f"{axe};{JUDGE}"))
            for _, b in visit(tmp_path / "s", browser)
        ]
    assert found == [["color-contrast", "image-alt"]]


def shown_wrong(name, b, width):
    "What a page in the browser does that it should not"
    wide = b.run("Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)")
    if wide > width:
        yield f"{name} is {wide} wide in a window of {width}"
    blank = "[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
    for url in b.run(blank):
        yield f"{name} does not show {url}"
    for event in b.seen("Network.requestWillBeSent"):
        url = event["request"]["url"]
        if not url.startswith(("file:", "data:", "blob:", "about:")):
            yield f"{name} asks {url}"
    for event in b.seen("Log.entryAdded"):
        if event["entry"]["level"] == "error":
            yield f"{name}: {event['entry']['text']} {event['entry'].get('url', '')}"
    for event in b.seen("Runtime.exceptionThrown"):
        details = event["exceptionDetails"]
        yield f"{name}: {details.get('exception', {}).get('description', event)}"


@pytest.mark.parametrize("half", (0, 1))
@pytest.mark.parametrize("width", (390, 1280))
def test_every_page_in_a_browser(built, axe, tmp_path, width, half, request):
    """As a phone and a desk show it, one half of the pages in the dark: no error, no request to
    elsewhere, nothing wider than the window, every picture shown. axe judges every page once, with
    `--full 2/5` a fifth of them"""
    wrong = []
    on_a_phone = width < 600
    number_of_share, shares = share(request.config.getoption("--full") or "1/1")
    with Browser(tmp_path, width, 844, dark=half == 0) as browser:
        for number, (name, b) in enumerate(visit(built, browser, first=half, every=2)):
            wrong += shown_wrong(name, b, width)
            is_judged_here = (number % 2 == 0) == on_a_phone
            if axe and is_judged_here and falls_to(name, number_of_share, shares):
                wrong += [f"{name}: {w}" for w in b.run(f"{axe};{JUDGE}")]
    assert not wrong, "\n" + "\n".join(wrong)


def unwritten(root, built):
    """Public names whose page has no entry with a link to the line of the source and the source
    itself; constants only have to be seen"""
    out, plain = [], lambda s: html.unescape(re.sub("<[^>]+>", "", s))
    for p in (root / "nbs").rglob("*.ipynb"):
        mod = re.search(r'"#\| *default_exp (\w+)', p.read_text(encoding="utf-8"))
        file = mod and root / "gpub" / f"{mod[1]}.py"
        if not file or not file.is_file():
            continue
        tree = ast.parse(file.read_text(encoding="utf-8")).body
        lines = {n.name: n.lineno for n in tree if hasattr(n, "name")}
        page = (
            built
            / p.relative_to(root / "nbs").with_name(re.sub(r"^\d+[a-z]?_", "", p.stem) + ".html")
        ).read_text(encoding="utf-8")
        # h2 where the notebook has no sections
        found = re.findall(r"<h[23]>(.*?)</h[23]>(.*?)(?=<h[123]>|$)", page, re.S)
        entries = {plain(h).rstrip("¶"): body for h, body in found}
        for name in next(
            (
                ast.literal_eval(n.value)
                for n in tree
                if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "__all__"
            ),
            [],
        ):
            e = entries.get(name, "")
            if name not in lines:
                seen = re.search(rf"\b{name}\b", plain(page))
            else:
                seen = f'/gpub/{mod[1]}.py#L{lines[name]}"' in e and re.search(
                    rf"\b(def|class) {name}\b", plain(e)
                )
            if not seen:
                out.append(f"{mod[1]}.{name}")
    return out


def test_every_public_name_is_in_the_reference(root, built):
    assert unwritten(root, built) == []


def test_a_name_without_its_entry_is_found(tmp_path):
    (tmp_path / "nbs").mkdir()
    (tmp_path / "gpub").mkdir()
    (tmp_path / "nbs/01_a.ipynb").write_text('"#| default_exp a\\n"')
    (tmp_path / "gpub/a.py").write_text(
        "__all__ = ['f', 'g', 'h', 'K', 'J']\ndef f(): pass\ndef g(): pass\ndef h(): pass\nK = J "
        "= 1\n"
    )
    entry = '<h3>{0}</h3><a href="x/gpub/a.py#L{1}">source</a>\n<pre>def <b>{0}</b>(): pass</pre>\n'
    (tmp_path / "a.html").write_text(
        entry.format("f", 2) + entry.format("g", 7) + "<pre>K = 1</pre>"
    )
    assert unwritten(tmp_path, tmp_path) == ["a.g", "a.h", "a.J"]


def test_a_link_to_a_page_has_a_card(root, built):
    "Title, line and picture for who shares it, each page with its own"
    home, cards = (
        yaml.safe_load((root / "_quarto.yml").read_text(encoding="utf-8"))["website"]["site-url"]
        + "/",
        {},
    )
    for page in built.rglob("*.html"):
        name = page.relative_to(built).as_posix()
        if name in ("404.html", "search.html", "demo.html", "talk.html") or "widgets/" in name:
            continue
        metas = re.findall(
            r"<meta [^>]*>", page.read_text(encoding="utf-8").partition("</head>")[0]
        )
        said = {
            m[1]: html.unescape(c[1])
            for t in metas
            if (m := re.search(r'(?:property|name)="([^"]+)"', t))
            and (c := re.search(r'content="([^"]*)"', t))
        }
        assert (
            said["og:url"] == home + name
            and said["og:description"] == said["description"]
            and said["twitter:card"]
            and said["og:image:alt"]
        ), name
        assert (
            said["og:image"].startswith(home)
            and (built / said["og:image"].removeprefix(home)).is_file()
        ), name
        cards[name] = said["og:title"], said["og:description"]
    assert len(cards) > 60 and len(set(cards.values())) == len(cards)


def test_columns_scroll_in_their_box(built, tmp_path):
    """On a phone: the page is as wide as the window, the table is wider than its box, sentences
    between its rows are not"""
    with Browser(tmp_path, 390, 844) as b:
        b.open((built / "performance.html").as_uri())
        b.wait('document.readyState == "complete"')
        boxes = b.run("""[...document.querySelectorAll('pre.columns')].map(p => [
            p.scrollWidth - p.clientWidth,
            p.tabIndex,
            Math.max(0, ...[...p.querySelectorAll('span')].map(s => s.offsetWidth)) - p.clientWidth,
        ])""")
        assert b.run("document.documentElement.scrollWidth") <= 390
    assert max(wide for wide, *_ in boxes) > 100 and all(
        tab == 0 and sentence <= 0 for _, tab, sentence in boxes
    )


WORDS = {
    "RoPE": "from_134m_to_1b",
    "perplexity": "glossary",
    "KV cache": "glossary",
    "gradient accumulation": "training_challenges",
    "learning rate": "training_challenges",
    "resume": "preflight",
    "NaN": "training_challenges",
    "out of memory": "something_went_wrong",
    "tokenizer": "tokenizer",
    "MFU": "scaling_up",
    "overfit": "preflight",
    "Chinchilla": "chinchilla",
    "attention": "first_transformer",
    "load_checkpoint": "checkpoint",
}


def test_search_finds(built, tmp_path):
    "What a learner types, and a page that must be among the first ten answers"
    lost = {}
    with Browser(tmp_path) as b:
        for word, page in WORDS.items():
            b.open(f"{(built / 'search.html').as_uri()}?q={word.replace(' ', '+')}")
            b.wait(
                "/finished|did not "
                'match/.test(document.querySelector(".search-summary")?.textContent)'
            )
            found = b.run(
                '[...document.querySelectorAll("#search-results li a")].map(a => '
                'a.pathname.split("/").pop())'
            )
            if f"{page}.html" not in found[:10]:
                lost[word] = found[:10]
    assert not lost, lost


FOCUS = """new Promise(ok => {
    const end = Date.now() + 2000, ring = x => x && getComputedStyle(x).outlineStyle != 'none';
    const inside = r => r.width > 4 && r.left > -9 && r.right < innerWidth + 9
        && r.bottom > 0 && r.top < innerHeight;
    const look = () => {
        const e = document.activeElement;
        const near = [e, e.closest('form'), ...document.querySelectorAll(`label[for="${e.id}"]`)];
        const marked = near.some(x => ring(x) && inside(x.getBoundingClientRect()));
        if (marked || Date.now() > end) ok([e.outerHTML.slice(0, 120), marked]);
        else setTimeout(look, 50) };
    look() })"""


@pytest.mark.parametrize("width", (390, 1100, 1350))
def test_the_keyboard_is_seen_wherever_it_goes(built, tmp_path, width):
    """Tab by tab: what has the focus is in the window and outlined, and on a small one the space
    bar opens the menu"""
    with Browser(tmp_path, width, 844) as b:
        b.open((built / "season1/first_transformer.html").as_uri())
        b.wait('document.readyState == "complete"')
        seen = []
        for _ in range(40):
            b.press("Tab")
            seen.append(b.run(FOCUS))
        assert (
            [what for what, ok in seen if not ok] == []
            and len({what for what, _ in seen}) > 20
            and b.run("document.documentElement.scrollWidth") <= width
        )
        if width == 390:
            b.run('document.querySelector("#__navigation").focus()')
            b.press(" ")
            assert (
                b.run('getComputedStyle(document.querySelector(".sidebar-drawer")).visibility')
                == "visible"
            )


# ---------------------------------------------------------------- the questions of the chapters


def questions(root):
    return json.loads((root / "data/quiz.json").read_text(encoding="utf-8"))


def test_every_chapter_has_three_questions(root):
    "One right answer of three, a reason; the right ones stand at any place"
    asked = questions(root)
    chapters = {
        p.relative_to(root / "nbs").with_suffix("") for p in root.glob("nbs/season*/*.ipynb")
    }
    assert {Path(page) for page in asked} == chapters
    places = set()
    for page, three in asked.items():
        assert len(three) == 3 and len({one["question"] for one in three}) == 3, page
        for one in three:
            assert len(set(one["answers"])) == 3 and one["right"] in (0, 1, 2), one
            assert one["because"].endswith("."), one
            places.add(one["right"])
    assert places == {0, 1, 2}


def test_the_questions_stand_before_the_exercises(root):
    pytest.importorskip("sphinx", reason="no sphinx to build a site with")
    import nbformat
    from build import add_quiz

    for page in questions(root):
        nb = nbformat.read(root / f"nbs/{page}.ipynb", 4)
        add_quiz(nb, page)
        text = "\n\n".join(c.source for c in nb.cells if c.cell_type == "markdown")
        heads = re.findall("^## (.+)$", text, re.M)
        assert heads.count("Check yourself") == 1, page
        assert heads.index("Check yourself") == heads.index("Exercises") - 1, page


QUIZ_PAGE = """<!doctype html><title>t</title><h1>{title}</h1>
<div class="hero-buttons"></div>
<nav class="sidebar-tree"><a href="season1/guess_the_next_letter.html">0 Guess</a>
<a href="season1/first_transformer.html">1 Transformer</a><a href="glossary.html">Glossary</a></nav>
{quiz}
{script}
"""


def open_until(browser, page, condition, act=lambda: None):
    """Open a page anew until the condition holds: what one process of the browser has stored
    reaches the next one a little later, and a page reads it once. Before each try `act` does what
    is still to be done: a busy browser may lose what is stored on a page that is left at once"""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        act()
        browser.open("about:blank").open(page.as_uri()).wait('document.readyState == "complete"')
        if browser.run(condition):
            return
    pytest.fail(f"{condition} does not come to hold in {page}")


def test_a_browser_remembers_where_one_is(root, tmp_path):
    "Answers are judged and kept, a chapter is read when one says so, the first page goes on there"
    pytest.importorskip("sphinx", reason="no sphinx to build a site with")
    from build import quiz_of

    page = "season1/00_guess_the_next_letter"
    script = (root / "nbs/course.html").read_text(encoding="utf-8")
    quiz = quiz_of(page).partition("\n\n")[2]
    chapter, first = tmp_path / "chapter.html", tmp_path / "index.html"
    chapter.write_text(QUIZ_PAGE.format(title="Guess", quiz=quiz, script=script))
    first.write_text(QUIZ_PAGE.format(title="gpub", quiz="", script=script))
    right = [one["right"] for one in questions(root)[page]]
    with Browser(tmp_path) as b:
        b.open(first.as_uri()).wait('document.readyState == "complete"')
        assert b.run('document.querySelector(".course-on")') is None  # nobody was here before
        b.open(chapter.as_uri()).wait('document.querySelector(".course-done")')
        for number, choice in enumerate((right[0], (right[1] + 1) % 3, right[2])):
            boxes = f"document.querySelectorAll('fieldset')[{number}].querySelectorAll('input')"
            b.run(f"{boxes}[{choice}].click()")
        said = 'document.querySelector(".quiz-score").textContent'
        assert b.run(said) == "2 of 3 right."
        assert b.run("document.querySelectorAll('label.wrong').length") == 1
        assert b.run("document.querySelectorAll('label.right').length") == 3
        assert b.run("document.querySelectorAll('details[open]').length") == 3

        def tick():
            b.open(chapter.as_uri()).wait('document.querySelector(".course-done")')
            box = 'document.querySelector(".course-done input")'
            b.run(f"{box}.checked || {box}.click()")

        # seen by the first page, which only reads
        stored = f'JSON.parse(localStorage["gpub-course-done"] ?? "{{}}")["{page}"] === true'
        open_until(b, first, stored, tick)
        b.open(chapter.as_uri()).wait('document.readyState == "complete"')
        assert b.run('document.querySelector(".course-done input").checked')
        assert b.run(said) == "2 of 3 right."
        assert b.run("[...document.querySelectorAll('.course-read')].map(a => a.textContent)") == [
            "0 Guess"
        ]
        open_until(b, first, 'document.querySelector(".course-on") !== null')
        line = b.run('document.querySelector(".course-on").textContent')
        assert line.startswith("Go on with: 1 Transformer (1 of 2 chapters read)")
        b.run('document.querySelector(".course-on button").click()')
        open_until(b, first, 'document.querySelector(".course-on") === null')
        assert not b.seen("Runtime.exceptionThrown")


def test_answers_while_one_types(built, tmp_path):
    "Below the field, from the index of the search page: headings first, and a way to each"
    with Browser(tmp_path) as b:
        b.open((built / "season1/first_transformer.html").as_uri())
        b.wait('document.querySelector(".instant")')
        b.run('document.querySelector(".sidebar-search").focus()')
        for word, page in (("attention", "first_transformer"), ("own data", "fine_tune")):
            b.run(
                "{ const field = document.querySelector('.sidebar-search');"
                f"field.value = {word!r}; field.dispatchEvent(new Event('input')) }}"
            )
            first = 'document.querySelector(".instant a")?.textContent.toLowerCase()'
            b.wait(f"{first}.includes({word!r})")
            links = b.run('[...document.querySelectorAll(".instant a")].map(a => a.href)')
            assert 0 < len(links) <= 8 and any(page in link for link in links)
        assert not b.seen("Runtime.exceptionThrown")
