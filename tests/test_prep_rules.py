"""What the shipped recipe asks for: rules of each source, and the questions of the course's own
evaluation, wherever its files are"""

import hashlib
import json
import random
import re
from pathlib import Path

import pytest

from gpub.data.bpe import BPETokenizer
from gpub.evals.options import DEFAULT_TASKS
from gpub.evals.tasks import TASKS
from gpub.files import shipped
from gpub.prep import contamination
from gpub.prep.config import PrepConfig, load_recipe
from gpub.prep.contamination import benchmark_files, course_benchmarks
from gpub.prep.obtain import corpus_recipe
from gpub.prep.pipeline import findings_table, prepare


@pytest.fixture
def no_eval_folder(tmp_path, monkeypatch):
    "A machine that has no benchmark files, and a list of two that it can fetch"
    monkeypatch.setenv("GPUB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    quiz = (tmp_path / "far.jsonl").resolve()
    long = "which of the many rivers of this country is the longest one that reaches the sea"
    quiz.write_text(json.dumps(dict(q=long)) + "\n")
    data = quiz.read_bytes()
    blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
    files = [
        dict(file="rivers.jsonl", url=quiz.as_uri(), sha256=hashlib.sha256(data).hexdigest()),
        dict(file="sub/again.jsonl", url=quiz.as_uri(), git_blob=blob),
    ]
    (tmp_path / "benchmarks.json").write_text(json.dumps(dict(files=files)))
    monkeypatch.setattr(contamination, "shipped", lambda name: tmp_path / name)
    return tmp_path, files


def test_the_files_of_the_evaluation_are_fetched_once_and_checked(no_eval_folder):
    folder, _ = no_eval_folder
    lines = []
    (where,) = course_benchmarks(lines.append)
    assert len(benchmark_files([where])) == 2 and "fetched 2 benchmark files" in lines[0]
    (folder / "far.jsonl").unlink()
    assert course_benchmarks(lines.append) == (where,) and len(lines) == 1
    (folder / "data/eval").mkdir(parents=True)
    (folder / "data/eval/mine.jsonl").write_text("{}")
    assert course_benchmarks(lines.append) == (str(folder / "data/eval"),)  # as evaluation does


@pytest.mark.parametrize("pin", ["sha256", "git_blob"])
def test_another_file_than_the_pinned_one_is_not_looked_for(no_eval_folder, pin):
    folder, files = no_eval_folder
    changed = [entry | {pin: "0" * 40} if pin in entry else entry for entry in files]
    (folder / "benchmarks.json").write_text(json.dumps(dict(files=changed)))
    lines = []
    assert course_benchmarks(lines.append) == ()
    assert "not looked for" in lines[0] and "another file" in lines[0] and len(lines) == 1


def test_a_job_without_a_network_says_that_nobody_looked(no_eval_folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    folder, _ = no_eval_folder
    page = "The river is low in the summer, and the boats stay where they are. " * 4
    (folder / "a.jsonl").write_text(json.dumps(dict(text=page)) + "\n")
    BPETokenizer.train([page], 300).save(folder / "tok")
    cfg = PrepConfig(
        sources=(f"a={folder}/a.jsonl",), tokenizer=str(folder / "tok"), benchmarks=("course",)
    )
    lines = []
    m = prepare(cfg, folder / "out", log=lines.append)
    assert [line for line in lines if line.startswith("benchmark questions are not looked for")]
    assert m["contaminated"] is None and m["looked_for"]["benchmark questions"] == []
    rows = {line.split("  ")[0]: line for line in findings_table(m).splitlines()}
    assert "not looked for" in rows["benchmark questions"]


def test_the_shipped_recipe_asks_for_what_each_source_needs():
    cfg = load_recipe(shipped("recipes/burn1b.json"))
    assert cfg.benchmarks == ("course",)
    for_the_web = ("score", "language", "quality", "repetition", "boilerplate", "entities")
    assert cfg.filters_of("fineweb-edu") == ("addresses", "secrets", *for_the_web)
    assert cfg.near == 0.8
    assert cfg.filters_of("finemath") == cfg.filters_of("python-edu") == ("addresses", "secrets")
    assert corpus_recipe(10**9).settings["filter_code"] == cfg.settings["filter_code"]
    pinned = json.loads(shipped("benchmarks.json").read_text())["files"]
    assert {Path(e["file"]).name for e in pinned} >= {
        Path(TASKS[name].file).name for name in DEFAULT_TASKS if name != "mmlu"
    }
    assert sum(e["file"].startswith("mmlu/") for e in pinned) == 57
    assert all(re.search(r"/[0-9a-f]{40}/", e["url"]) for e in pinned)


def prose(seed):
    "Some sentences that no other seed gives"
    draw = random.Random(seed)

    def some(words):
        return draw.choice(words.split())

    def sentence():
        who = some("miller sister captain teacher hunter painter widow farmer")
        where = some("river village harbour forest market bridge mountain garden")
        when = some("winter summer morning evening spring autumn noon night")
        what = some("song letter lamp horse story basket coat promise")
        return (
            f"The {who} {draw.randrange(100)} miles from the {where} was late in the {when}, and "
            f"it is the {what} of {draw.randrange(100)} days that they {some('took saw kept')}."
        )

    return " ".join(sentence() for _ in range(9)) + " "


PAGE = prose("planted")
QUESTION = "Which of the many rivers of this country is the longest one that reaches the sea?"
# what is planted -> (source, text, what becomes of it)
PLANTED = {
    "key": ("web", PAGE + "AKIA" + "ABCD" * 4, "key masked"),
    "telephone": ("web", PAGE + "Call (212) 555-7788.", "phone number masked"),
    "e-mail": ("web", PAGE + "jane@mail.example", "e-mail address masked"),
    "machine": ("math", PAGE + "from 8.8.4.4", "IP address masked"),
    "benchmark": ("math", PAGE + QUESTION, "benchmark question"),
    "Russian": (
        "web",
        "Это было давно, и никто уже не помнит, что случилось с ними потом. " * 9,
        "language ru",
    ),
    "Polish": (
        "web",
        "To nie jest to, co się w nim z nami na wsi i po lesie dzieje. " * 9,
        "language pl",
    ),
    "menu": (
        "web",
        "- our other pages\n- about this site\n- all the prices\n" * 9,
        "repeated lines",
    ),
    "phrase": ("web", "Buy this now, and buy that too.\n" * 60, "repeated lines"),
    "mojibake": ("web", PAGE + "cafÃ© and naÃ¯ve, as the rest of it", "encoding"),
    "tabs stay": (
        "math",
        "def add(a, b):\n\tc = a + b\n\tif c > b:\n\t\treturn c\n" * 2 + "# sum",
        None,
    ),
    "one phrase": (
        "web",
        PAGE + "and it is said that the end is near " * 300,
        "runs of words said again",
    ),
    "links": ("web", "\n".join(prose(i).split()[i] + f" {i} our shop" for i in range(90)), "menu"),
    "placeholder": ("web", PAGE + "Lorem ipsum dolor sit amet.", "placeholder text"),
    "entity": ("web", PAGE + "salt &amp; pepper", "HTML entity decoded"),
    "no width": ("math", PAGE + "zero\u200bwidth", "controls"),
    "near copy": ("math", prose("fineweb-edu 1") + "One more sentence.", "near duplicate"),
    "card": ("web", PAGE + "4111 1111 1111 1111", "card or security number masked"),
    "formulas stay": ("math", "$x^2 + 3 = 12$ and $y = 4$ so 12 34 56 78 " * 9, None),
}


@pytest.mark.parametrize("defect", PLANTED)
def test_planted_defects_are_caught_where_they_are_meant(defect, tmp_path):
    source, text, expected = PLANTED[defect]
    names = dict(web="fineweb-edu", math="finemath", code="python-edu")
    for name in names.values():
        rows = [
            f"{prose(f'{name} {i}')}This is page {i}, and it is as good as all the others. "
            for i in range(4)
        ]
        if name == names[source]:
            rows.append(text)
        (tmp_path / f"{name}.jsonl").write_text(
            "".join(json.dumps(dict(text=t)) + "\n" for t in rows)
        )
    (tmp_path / "quiz.txt").write_text(QUESTION)
    BPETokenizer.train([PAGE], 300).save(tmp_path / "tok")
    cfg = load_recipe(
        shipped("recipes/burn1b.json"),
        [f"{name}={tmp_path}/{name}.jsonl" for name in names.values()],
        tokenizer=str(tmp_path / "tok"),
        benchmarks=(str(tmp_path / "quiz.txt"),),
    )
    counts = prepare(cfg, tmp_path / "out", log=lambda line: None)["counts"]
    seen = {
        why: n
        for c in counts.values()
        for k in ("dropped", "noted", "repaired")
        for why, n in c[k].items()
    }
    for unmarked in ("language not known", "no score"):  # the pages here have no marks
        seen.pop(unmarked, None)
    assert seen == ({expected: 1} if expected else {}), (defect, seen)
