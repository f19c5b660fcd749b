"Filters by themselves, and in a job: what goes, why, and that all of it can be read again"

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from contracts import refuses
from hypothesis import given, settings
from hypothesis import strategies as st

from gpub.data.bpe import BPETokenizer
from gpub.prep.config import PrepConfig, load_recipe
from gpub.prep.filters import (
    MASKED_EMAIL,
    MASKED_IP,
    MASKED_KEY,
    MASKED_PHONE,
    NO_SCORE,
    NOT_KNOWN,
    Addresses,
    Language,
    Quality,
    Secrets,
    count_words,
    words_of_letters,
)
from gpub.prep.job import Job
from gpub.prep.pipeline import findings_table, prepare
from gpub.prep.store import Document, load_chunk

quick = settings(max_examples=150, deadline=None, database=None)
SAID = {
    "en": "It was late and the road that led from the village to the river was as dark as the "
    "wood at the end of it, but she knew every stone in this part of the country.",
    "de": "Es war spät, und der Weg, der von dem Dorf zu dem Fluss führte, war dunkel wie ein "
    "Wald; sie aber kannte auch den letzten Stein und hatte sich nicht mit der Nacht zu streiten.",
    "fr": "Il était tard et le chemin qui menait du village à la rivière était sombre, mais ce "
    "n'est pas pour elle que les pierres sont dans la nuit : elle connaît une route par cœur.",
    "es": "Era tarde y el camino que llevaba del pueblo a los campos no se veía, pero ella conocía "
    "las piedras una por una, y en la noche no es más difícil para los que saben.",
    "it": "Era tardi e la strada che va dal villaggio al fiume non si vedeva, ma per lei il buio "
    "della notte è come il giorno: le pietre sono di casa, e con una lanterna anche le altre.",
    "pt": "Era tarde e o caminho que vai da aldeia para os campos não se via, mas para ela uma "
    "noite como esta é um dia: as pedras são de casa, e com um pouco de luz a outra também.",
    "pl": "Było późno i droga, która prowadzi od wsi do rzeki, nie była jasna, ale ona zna każdy "
    "kamień i nie boi się tego, że po nocy jest tak ciemno, jak w lesie za domem na końcu drogi.",
    "nl": "Het was laat en de weg van het dorp naar de rivier was donker, maar zij kende elke "
    "steen die er in het veld lag, en dat is voor een kind van de streek ook niet te veel.",
}


@pytest.mark.parametrize("keep", SAID)
def test_prose_of_one_language_stays_and_of_the_others_goes(keep):
    wanted = Language(keep)
    for language, text in SAID.items():
        reason = None if language == keep else f"language {language}"
        assert wanted(Document(text * 2)) == reason, (keep, language)


@pytest.mark.parametrize(
    "text",
    ["", "x = f(y) + 3\n" * 30, "\\frac{a}{b} = 12 - 4\n" * 30, "12\t-\t4\n" * 30],
)
def test_what_has_no_language_stays(text):
    document = Document(text)
    assert Language()(document) is None and document.notes[NOT_KNOWN] == 1


def test_an_unknown_language_is_one_line():
    refuses("language 'xx': give one of ace, af", Language, "xx")


SENTENCE = "The dog that was late for dinner ran over the hill and did not look back at all"


@pytest.mark.parametrize(
    "text, reason",
    [
        (f"{SENTENCE}.\n" * 3, None),
        (" ".join(["word"] * 50), None),
        (" ".join(["word"] * 49), "number of words"),
        (" ".join(["word"] * 100_001), "number of words"),
        ("of it is so as " * 12, "length of words"),
        ("incomprehensibilities " * 60, "length of words"),
        ("1234 5678 word 9012 " * 20, "words without letters"),
        ("- our other pages\n" * 20, "bullets"),
        ("- our other pages\n" * 16 + f"{SENTENCE}\n" * 4, None),
        (f"- {SENTENCE}\n" * 5, None),  # a glossary is text
        (f"{SENTENCE}...\n" * 2 + f"{SENTENCE}\n" * 2, "lines that are cut off"),
        (f"{SENTENCE}…\n" + f"{SENTENCE}\n" * 3, None),
    ],
)
def test_quality_has_a_reason_for_each_rule_and_none_for_prose(text, reason):
    assert Quality()(Document(text)) == reason


def test_thresholds_of_quality_are_arguments():
    text = f"- {SENTENCE}\n" * 5
    assert Quality(bullets=1.0)(Document(text)) is None
    assert Quality(min_words=500)(Document(text)) == "number of words"


part = st.text("abcdefgh0123_", min_size=1, max_size=8)
emails = st.builds("{}@{}.{}".format, part, part, st.sampled_from(["com", "co.uk", "de"]))
numbers = st.integers(0, 255)
hosts = st.tuples(numbers, numbers, numbers, numbers)
PRIVATE = (0, 10, 127, 169, 172, 192)  # networks that are nobody's, or hold some that are


@quick
@given(emails, st.sampled_from(["{}", "<{}>", "mailto:{}", "({}).", "{},", "{}."]))
def test_no_mail_address_is_left(address, form):
    letter = Document("Write to " + form.format(address) + " soon")
    assert Addresses()(letter) is None  # drops nothing
    assert letter.text == "Write to " + form.format("email@example.com") + " soon"


@quick
@given(hosts, st.sampled_from(["{}", "{}.", "({})", "http://{}/x", "{}:8080", "{}, and"]))
def test_no_public_address_of_a_machine_is_left(numbers, form):
    address = ".".join(map(str, numbers))
    log = Document("It came from " + form.format(address))
    Addresses()(log)
    if numbers[0] not in PRIVATE:
        assert log.text == "It came from " + form.format("192.0.2.1")
    once = log.text
    Addresses()(log)
    assert log.text == once


@pytest.mark.parametrize(
    "text",
    [
        "a router at 192.168.0.7, or 10.0.0.1, or 127.0.0.1.",
        "version 1.2.3, v1.2.3.4, section 1.2.3.4.5 and 256.1.1.1",
        "@property and a @ b, 3 @ 4",
    ],
)
def test_what_is_nobodys_address_stays(text):
    same = Document(text)
    Addresses()(same)
    assert same.text == text


RULES = """
from urllib.parse import urlsplit

def spam(document):
    host = urlsplit(document.url).hostname or ""
    return "site" if f".{host}".endswith(".spam.example") else None
"""


FILTERS = ("language", "quality", "addresses", "my_sites:spam")


def numbered(language, i):
    "Three lines that no other page has"
    return "".join(f"{SAID[language]} {i}.{k}\n" for k in range(3))


@pytest.fixture
def pages(tmp_path, monkeypatch):
    "Thirty web pages: most are prose, some are not wanted, each for another reason"
    (tmp_path / "my_sites.py").write_text(RULES)
    monkeypatch.syspath_prepend(str(tmp_path))
    rows, gone = [], {}
    for i in range(30):
        text, why = numbered("en", i) + f"Ask reader{i}@mail.example.", None
        url = f"https://good{i % 7}.example/{i}"
        if i % 5 == 1:
            text, why = numbered("de", i), "language de"
        elif i % 5 == 2:
            lines = [f"- another {w} that nobody wanted in{i}" for w in SENTENCE.split()]
            text, why = "\n".join(lines), "bullets"
        elif i % 5 == 3:
            url, why = f"https://www.spam.example/{i}", "site"
        rows.append(dict(text=text, url=url))
        if why:
            gone[text.replace(f"reader{i}@mail.example", "email@example.com")] = why
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "web.jsonl").write_text(lines)
    yield rows, gone
    sys.modules.pop("my_sites", None)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.full)])
def test_filters_of_a_job_leave_behind_what_they_dropped(pages, tmp_path, workers):
    rows, gone = pages
    BPETokenizer.train([SENTENCE], 300).save(tmp_path / "tok")
    cfg = PrepConfig(
        sources=(f"web={tmp_path}/web.jsonl",),
        tokenizer=str(tmp_path / "tok"),
        filters=FILTERS,
        excluded=str(tmp_path / "gone"),
        store=str(tmp_path / "store"),
        chunk_mb=0.003,
    )
    counts = prepare(cfg, tmp_path / "out", workers, log=lambda line: None)["counts"]["web"]
    assert counts["dropped"] == {"language de": 6, "bullets": 6, "site": 6}
    assert counts["seen"] == 30 and counts["kept"] == 12
    assert counts["noted"] == {MASKED_EMAIL: 12}
    files = sorted(Path(tmp_path, "gone").rglob("*.jsonl"))
    found = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert {row["text"]: row["why"] for row in found} == gone and len(found) == len(gone)
    assert all(row["name"].startswith("web.jsonl ") for row in found)
    assert len(files) > 1  # pieces, written by whoever read them
    kept = sorted(Path(tmp_path, "store").glob("documents/*/*.arrow"))
    texts = [text for path in kept for text in load_chunk(path, "text")[0].to_pylist()]
    assert len(texts) == 12 and all("Ask email@example.com." in text for text in texts)
    assert not set(texts) & set(gone)


TABBED = "def add(a, b):\n\tc = a + b\n\tif c > b:\n\t\treturn c\n\treturn b\n\n\n" * 12
DENSE = "def test():\n\tself.assertEqual(total_of(first,second),expected_of(first))\n" * 30


@pytest.mark.parametrize("program", [TABBED, DENSE, TABBED.replace("\t", "    ")])
def test_quality_keeps_programs(program):
    "The words of a program are as long as names and signs are, not as those of a language"
    assert Quality()(Document(program)) is None


@pytest.mark.parametrize(
    "junk",
    [
        "function(a,b){return(a+b)*this.value;}var.prototype.render=function(){}; " * 60,
        '<div class="menu">\n\t<a href="/index.html">Home</a>\n</div>\n' * 40,
        "\n".join(["QmFzZTY0IGlzIG5vdCB0ZXh0IGFuZCBzYXlzIG5vdGhpbmc" * 2] * 80),
        "12 34 5678 901 2345 " * 40,
    ],
)
def test_quality_drops_what_is_no_text(junk):
    assert Quality()(Document(junk)) in ("length of words", "words without letters")


ANYTHING = st.text(st.characters() | st.sampled_from(" \n\xa0\u2009’“—é²_9aZ")) | st.text(
    "a2 \t’é\x85"
)


@quick
@given(ANYTHING)
def test_words_are_counted_as_python_divides_them(text):
    "Without making them: the lettered ones may be too few, never too many"
    words = text.split()
    counts = count_words(text)
    assert (counts.words, counts.characters) == (len(words), sum(map(len, words)))
    assert counts.lettered <= sum(any(map(str.isalpha, w)) for w in words)
    assert words_of_letters(text) == re.findall(r"[^\W\d_]+", text)


RUSSIAN = "Собака и кошка живут в доме, и они не спят на крыше. " * 5
POLISH = (
    "Pies i kot mieszkają w domu, ale nie śpią na dachu, bo tam jest zimno i to nie jest to. " * 5
)


@pytest.mark.parametrize(
    "text, reason, unknown",
    [
        (RUSSIAN, "language ru", 0),
        ("x = f(y) + 3\n" * 30, None, 1),
        ("犬と猫は家に住んでいます。屋根の上では眠りません。" * 9, "language ja", 0),
        (POLISH, "language pl", 0),
        ("Koira ja kissa asuvat talossa, eivätkä ne nuku katolla. " * 5, "language fi", 0),
        (TABBED, None, 0),
        (f"{SENTENCE}, and it is the case that this was for all of us. " * 4, None, 0),
        (f"{SENTENCE}, as he wrote: Собака и кошка. " * 4, None, 0),
    ],
)
def test_other_languages_go_and_what_is_not_known_is_counted(text, reason, unknown):
    document = Document(text)
    assert Language()(document) == reason
    assert document.notes[NOT_KNOWN] == unknown


@pytest.mark.parametrize(
    "secret, sign",
    [
        ("AKIA" + "IOSF0DNN7EXAMPLE"[:16], MASKED_KEY),
        ("ghp_" + "a1B2" * 9, MASKED_KEY),
        ("sk-proj-" + "Zz09" * 10, MASKED_KEY),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", MASKED_KEY),
        ("(212) 555-7788", MASKED_PHONE),
        ("1-800-555-7788", MASKED_PHONE),
        ("+44 20 7946 0018", MASKED_PHONE),
    ],
)
def test_secrets_are_masked_and_counted(secret, sign):
    page = Document(f"Ask us: {secret}, at any time.")
    Secrets()(page)
    assert page.notes == {sign: 1} and secret not in page.text
    assert page.text.startswith("Ask us: ") and page.text.endswith(", at any time.")


@pytest.mark.parametrize(
    "text",
    [
        "1914-1918",
        "pages 101-110",
        "x = 100-200-300",
        "978-0-306-40615-7",
        "a+1 = 2",
        "risk-averse",
    ],
)
def test_numbers_that_are_no_secret_stay(text):
    page = Document(f"It says {text} there, and 2024-11-27 too.")
    before = page.text
    Secrets()(page)
    assert page.text == before and not page.notes


def test_masked_addresses_are_counted():
    letter = Document("From a@b.de and c@d.org at 8.8.4.4, not 10.0.0.1, not 192.168.0.7")
    Addresses()(letter)
    assert letter.notes == {MASKED_EMAIL: 2, MASKED_IP: 1}
    Addresses()(plain := Document("nobody @ home at 10.0.0.1"))
    assert plain.notes == {}


SHORT = "The river is low in the summer, and the boats of the village stay where they are. "


@pytest.fixture
def two_sources(tmp_path):
    "The same short and German pages as web text and as mathematics"
    pages = [SHORT * 2, SAID["de"] * 2, SAID["en"] * 3]
    for name in ("web", "math"):
        rows = [dict(text=f"{text} {name} {i}") for i in range(4) for text in pages]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    BPETokenizer.train([SENTENCE], 300).save(tmp_path / "tok")
    return tmp_path


def write_recipe(folder, **changed):
    "A recipe with rules for web text alone"
    sources = [
        dict(name="web", path=f"{folder}/web.jsonl", filters=["language", "quality"]),
        dict(name="math", path=f"{folder}/math.jsonl"),
    ]
    recipe = dict(about="a test", sources=sources, tokenizer=str(folder / "tok")) | changed
    (folder / "recipe.json").write_text(json.dumps(recipe))
    return folder / "recipe.json"


def test_a_rule_of_a_source_meets_its_documents_alone(two_sources, tmp_path):
    cfg = load_recipe(write_recipe(two_sources, filters=["addresses"]))
    assert cfg.filters_of("web") == ("addresses", "language", "quality")
    assert cfg.filters_of("math") == ("addresses",)
    assert PrepConfig.from_dict(json.loads(json.dumps(cfg.to_dict()))) == cfg
    out = tmp_path / "out"
    manifest = prepare(cfg, out, 2, log=lambda line: None)
    dropped = {name: c["dropped"] for name, c in manifest["counts"].items()}
    assert dropped == {"web": {"language de": 4, "number of words": 4}, "math": {}}
    looked = manifest["looked_for"]
    assert looked["filter quality"] == ["web"] and looked["filter addresses"] == ["web", "math"]
    rows = {line.split("  ")[0]: line for line in findings_table(manifest).splitlines()}
    assert "not looked for" in rows["filter quality"] and "dropped" in rows["filter quality"]
    assert prepare(cfg, out, log=lambda line: None) == json.loads(
        (out / "manifest.json").read_text()
    )
    refuses("another job: source_filters", prepare, replace(cfg, source_filters={}), out)


def test_a_rule_for_the_web_does_not_read_mathematics_again(two_sources, tmp_path):
    cfg = load_recipe(write_recipe(two_sources))
    keys = Job(cfg, tmp_path / "a").keys
    other = Job(replace(cfg, source_filters={"web": ("quality",)}), tmp_path / "a").keys
    assert keys["math"] == other["math"] and keys["web"] != other["web"]


def test_rules_for_all_sources_are_those_of_every_one(two_sources, tmp_path):
    cfg = load_recipe(write_recipe(two_sources))
    both = replace(cfg, filters=("language", "quality"), source_filters={})
    each = replace(cfg, source_filters={s: ("language", "quality") for s in ("web", "math")})
    made = []
    for i, job in enumerate((both, each)):
        prepare(job, tmp_path / f"o{i}", log=lambda line: None)
        made.append([p.read_bytes() for p in sorted((tmp_path / f"o{i}").glob("*.bin"))])
    assert made[0] == made[1] and made[0]
    assert "source_filters" not in both.settings


@pytest.mark.parametrize(
    "filters, line",
    [
        ("quality", "filters must be"),
        (["qualty"], "filter 'qualty': it knows language, quality"),
        ([1], "filters must be"),
    ],
)
def test_wrong_rules_of_a_source_are_one_line(two_sources, filters, line):
    source = dict(name="web", path=f"{two_sources}/web.jsonl", filters=filters)
    refuses(line, load_recipe, write_recipe(two_sources, sources=[source]))


def test_rules_for_a_source_that_is_not_there_are_one_line(two_sources):
    refuses(
        "source_filters is for a source 'wbe', which there is not: there are web",
        PrepConfig,
        sources=(f"web={two_sources}/web.jsonl",),
        source_filters={"wbe": ("quality",)},
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "hub"])
def test_the_score_of_a_page_is_read_where_it_is(kind, tmp_path, monkeypatch):
    pages = [dict(text=f"{SAID['en']} {i}", score=s) for i, s in enumerate((2.4, 2.5, 4, None))]
    file = source = tmp_path / f"web.{kind}"
    if kind == "hub":
        file = tmp_path / "hub/some/pages/data/train.parquet"
        file.parent.mkdir(parents=True)
        source = "hf:some/pages"
        monkeypatch.setenv("GPUB_HUB", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    if kind == "jsonl":
        pages.append(dict(text=f"{SAID['en']} words", score="five"))
        file.write_text("".join(json.dumps(page) + "\n" for page in pages))
    else:
        table = pa.table({key: [page[key] for page in pages] for key in ("text", "score")})
        pq.write_table(table, file)
    BPETokenizer.train([SENTENCE], 300).save(tmp_path / "tok")
    tok = str(tmp_path / "tok")
    cfg = PrepConfig(sources=(f"web={source}",), tokenizer=tok, filters=("score",))
    manifest = prepare(cfg, tmp_path / "out", log=lambda line: None)
    counts = manifest["counts"]["web"]
    assert counts["dropped"] == {"low score": 1}
    assert counts["noted"] == {NO_SCORE: len(pages) - 3}
    row = next(
        line for line in findings_table(manifest).splitlines() if line.startswith("filter score")
    )
    assert f"1, {len(pages) - 3} without" in row and row.endswith("dropped")
