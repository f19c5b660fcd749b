"""Plant defects in samples of three corpora, prepare them by the shipped recipe, and say what
became of each, and how fast the rules are: `GPUB_DATA=folder python tools/defects.py [planted]
[speed]` writes data/defects.json"""

import json
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from gpub.data.bpe import BPETokenizer
from gpub.device import machine
from gpub.files import shipped
from gpub.prep.config import PrepConfig, load_recipe
from gpub.prep.contamination import benchmark_items, found_benchmarks
from gpub.prep.dedup import REASONS
from gpub.prep.job import Job
from gpub.prep.pipeline import (
    encode_documents,
    encoded_sources,
    learn_tokenizer,
    looked_for,
    prepare,
    read_sources,
    scan_report,
)
from gpub.prep.sources import Source, chunks, documents
from gpub.prep.store import load_chunk

DATA = Path(__file__).parents[1] / "data"
RECIPE = "recipes/burn1b.json"
CORPORA = {"fineweb-edu": "edu", "finemath": "math", "python-edu": "python"}
SAMPLE = {"fineweb-edu": 240, "finemath": 120, "python-edu": 40}  # documents that defects go into
SPEED_MB = 60  # of the corpora, which the race reads
TROVE_DOCUMENTS = 1200  # of them, which datatrove reads


@dataclass(frozen=True, kw_only=True)
class Defect:
    "Something that is wrong with a document, and what shows that it was caught"

    name: str
    line: str  # of a source file: JSON, or what is there instead
    source: str = "fineweb-edu"
    left: str = ""  # text that is caught if no kept document has it
    check: str = ""  # of the manifest, that would have looked for it
    stays: bool = False  # it is no defect, and must be kept


def texts_of(
    source: str,  # name in the recipe
) -> Iterator[str]:
    "Read the documents of a corpus in $GPUB_DATA"
    path = Path(os.environ["GPUB_DATA"], f"{CORPORA[source]}.jsonl.zst")
    for chunk in chunks(Source(name=source, path=str(path)), size=1 << 20):
        for block in chunk.blocks:
            for document in documents(block):
                yield document.text


def with_words_changed(text: str, share: float, draw: random.Random) -> str:
    "Put other words in the place of some"
    words = text.split(" ")
    for at in draw.sample(range(len(words)), round(share * len(words))):
        words[at] = draw.choice(words)
    return " ".join(words)


def luhn_number(draw: random.Random) -> str:
    "Draw a number of a payment card that nobody has"
    digits = [4, *(draw.randrange(10) for _ in range(14))]
    total = sum(d if i % 2 else sum(divmod(2 * d, 10)) for i, d in enumerate(digits))
    digits.append(-total % 10)
    groups = ["".join(map(str, digits[i : i + 4])) for i in range(0, 16, 4)]
    return " ".join(groups)


def row(text: str, **more: str) -> str:
    "Write a line of JSON"
    return json.dumps(dict(text=text) | more)


def long_item(folder: Path, file: str, n: int) -> str:
    "Read an item of a benchmark, all its strings together"
    items = (" ".join(i) for i in benchmark_items(next(folder.rglob(file))))
    return next(islice((i for i in items if len(i.split()) > 25), n, None))


def planted(
    samples: dict[str, list[str]],  # source -> texts that are in order
    benchmarks: Path,  # folder of the course's evaluation
) -> list[Defect]:
    "Make every defect, each in a document of its own"
    draw = random.Random(0)
    pool = iter(t for t in samples["fineweb-edu"] if 3000 < len(t) < 20_000)

    def host() -> str:
        return next(pool)

    def inside(what: str) -> str:
        "Put something into the middle of a document that nobody else has"
        words = f"{next(fresh)}".split(" ")
        at = len(words) // 2
        return " ".join([*words[:at], what, *words[at:]])

    fresh = islice(
        (t for t in texts_of("fineweb-edu") if 3000 < len(t) < 20_000),
        SAMPLE["fineweb-edu"] + 50,
        None,
    )
    made = []

    def add(name: str, line: str, **more: object):
        made.append(Defect(name=name, line=line, **more))

    equal, near = "equal documents", "near duplicates"
    add("exact duplicate", row(host()), check=equal)
    add("the same with CRLF", row(host().replace("\n", "\r\n")), check=equal)
    add("duplicate in another source", row(host()), source="finemath", check=equal)
    text = host()
    add("1.7% of the words changed", row(with_words_changed(text, 0.017, draw)), check=near)
    text = host()
    alike = "documents alike in part"
    add("8% of the words changed", row(with_words_changed(text, 0.08, draw)), check=alike)
    head = "Our site\nHome\nAbout us\nPrices\n\n"
    foot = "\n\nAll rights reserved. Read our terms of use. Share this page."
    text = next(t for t in pool if len(t) > 6000)
    add("the same with a site's header and footer", row(head + text + foot), check=near)

    quality, again, menu = "filter quality", "filter repetition", "filter boilerplate"
    pages = ["Home", "About us", "Prices", "Log in", "Contact", "Cookie settings", "Help", "Shop"]
    items = "\n".join(f"{a} {i}" for i in range(9) for a in pages)
    add("page of navigation and cookies", row(items), check=menu)
    lorem = "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor. "
    add("lorem ipsum", row(" ".join(f"{lorem}{i}" for i in range(30))), check=menu)
    keywords = "cheap shoes online buy cheap shoes best shoes discount shoes free shipping shoes"
    spam = " ".join(" ".join(draw.sample(keywords.split(), 12)) for _ in range(40))
    add("keyword spam", row(spam), check=again)
    add("mojibake", row(inside("the cafÃ© and the naÃ¯ve")), left="cafÃ©")
    twice = "Â©".encode().decode("latin-1")
    add("double mojibake", row(inside(f"the sign {twice} and cafÃƒÂ©")), left="cafÃƒ")
    add("control characters", row(inside("a\x00b\x1b[0m")), left="\x1b")
    add("byte order mark", row("\ufeff" + inside("marked")), left="\ufeff")
    add("line ends of another system", row(inside("one\r\ntwo\rthree")), left="\r")
    add("signs of no width", row(inside("zero\u200bwidth")), left="\u200b")
    add("signs that turn the writing", row(inside("\u202eturned\u202c")), left="\u202e")
    add("HTML entities", row(inside("salt &amp; pepper&#39;s")), left="&amp;")

    leak = "benchmark questions"
    where = dict(gsm8k="gsm8k_test.jsonl", arc="arc_challenge_test.jsonl")
    question = [long_item(benchmarks, where["gsm8k"], n) for n in range(9)]
    add("benchmark question", row(inside(question[0])), check=leak)
    add("the same in capitals", row(inside(question[1].upper())), check=leak)
    spaced = question[2].replace(" ", "   ")
    add("the same with other white space", row(inside(spaced)), check=leak)
    bare = re.sub(r"[^\w\s]", "", question[3])
    add("the same without punctuation", row(inside(bare)), check=leak)
    add("question of ARC", row(inside(long_item(benchmarks, where["arc"], 4))), check=leak)
    hella = long_item(benchmarks, "hellaswag_val.jsonl", 7)
    add("HellaSwag", row(inside(hella)), check=leak)
    program = long_item(benchmarks, "HumanEval.jsonl.gz", 8)
    add("HumanEval", row(program + "\n" * 3), source="python-edu", check=leak)
    numbers = re.sub(r"\d+", lambda m: str(int(m[0]) + 1), question[4])
    add("GSM8K with other numbers", row(inside(numbers)), source="finemath", check=leak)
    other = "benchmark questions in other words"
    said = "Mrs. Jones bakes, sells what is left over, and wants to know her daily takings."
    add("paraphrased", row(inside(said)), left=said, check=other)
    words = question[5].split(" ")
    every = " ".join("thing" if i % 12 == 5 else w for i, w in enumerate(words))
    add("every 12th word changed", row(inside(every)), left=every, check=other)
    tagged = "<b> ".join(question[6].split(" "))
    add("HTML between the words", row(inside(tagged)), left=tagged, check=other)
    add("answer only", row(inside("The answer is 18 dollars a day.")), check=other)

    name = "PersonX"
    chant = " ".join(f"{name} gives {name} what {w}" for w in "abcdefghijklmnop" * 6)
    add("known chant", row(inside(chant)), check="chanted strings")
    chant = " ".join(f"Zorblax says {w} and Zorblax" for w in host().split()[:300])
    add("chant that nobody knows", row(chant), check=again)

    address, secret = "filter addresses", "filter secrets"
    add("e-mail", row(inside("jane.roe@mail.example.org")), left="jane.roe@", check=address)
    add("IPv4", row(inside("from 8.8.4.4 again")), left="8.8.4.4", check=address)
    add("telephone", row(inside("call (212) 555-7788")), left="555-7788", check=secret)
    add("social security number", row(inside("is 219-09-9999")), left="219-09-9999", check=secret)
    card = luhn_number(draw)
    add("payment card", row(inside(f"card {card} was")), left=card, check=secret)
    street = "1742 Evergreen Terrace, Springfield 62704"
    add("street", row(inside(street)), left=street, check="postal addresses")
    key = "AKIA" + "".join(draw.choices("ABCDEFGHIJ234567", k=16))
    add("AWS key", row(inside(key)), left=key, check=secret)
    begin, end = "-----BEGIN RSA PRIVATE KEY-----", "-----END RSA PRIVATE KEY-----"
    body = "".join(draw.choices("ABCDEFabcdef0123456789+/", k=400))
    add("private key", row(inside(f"{begin}\n{body}\n{end}")), left=body, check=secret)

    tags = "".join(f'<div class="a{i}"><a href="/p{i}.html">x</a></div>\n' for i in range(90))
    add("raw HTML", row(tags), check=quality)
    script = "".join(f"function(a{i},b){{return(a{i}+b)*this.value;}}var.x{i};" for i in range(90))
    add("minified JavaScript", row(script), check=quality)
    add("dump of numbers", row(" ".join(str(draw.random()) for _ in range(900))), check=quality)
    signs = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    add("200 KB of base64", row("".join(draw.choices(signs, k=200_000))), check=quality)
    add("6 MB", row(" ".join(f"{w} {i}" for i, w in enumerate(["word"] * 600_000))))
    for name, text in (("empty", ""), ("white space", " \n\t" * 99), ("short", "Next page")):
        add(name, row(text))
    add("half a surrogate pair", row("It is \ud83d here. " * 40))
    add("broken JSON", '{"text": "it begins and')
    speak = "language "
    german = "Der Hund und die Katze sind nicht in dem Haus, das auf der Wiese ist, Nummer {}. "
    russian = "Собака и кошка живут в доме, и они не спят на крыше, номер {}. "
    polish = "To nie jest to, co się w nim z nami na wsi i po lesie dzieje, numer {}. "
    chinese = "狗和猫住在房子里，它们不在屋顶上睡觉，号码{}。"
    for name, text in zip(
        ("German", "Russian", "Polish", "Chinese"), (german, russian, polish, chinese)
    ):
        add(name, row("".join(text.format(i) for i in range(30))), check=f"filter {speak}".strip())
    together = " ".join(host() for _ in range(3)).replace("\n", " ")
    lines = [f"{s}." for s in together.split(". ") if 40 < len(s) < 200][:20]
    own, size = "\n".join(lines), sum(map(len, lines))
    ad = "Subscribe to our newsletter today, it is free of charge."
    add("lines repeated, over half", row(f"{own}\n" + f"{ad}\n" * (2 * size // len(ad))))
    third = f"{own}\n" + f"{ad}\n" * (size // 2 // len(ad))
    add("lines repeated, a third", row(third), check=again)
    phrase = inside("and it is said that the end is near " * 300)
    add("one phrase 300 times on a line", row(phrase), check=again)
    site = inside("we were there")
    add("unwanted site", row(site, url="https://adult.example/1"), check="sites on a list")
    tabs = "def add_{0}(a, b):\n\tc = a + b + {0}\n\tif c > b:\n\t\treturn c\n\treturn b\n\n\n"
    program = "".join(tabs.format(i) for i in range(20))
    add("Python with tabs", row(program), source="python-edu", stays=True)
    return made


@dataclass
class Fate:
    "What became of the documents of a source"

    reason: dict  # number of a line -> why it was dropped
    text: dict  # number of a line -> what was kept


def fates(job: Job, sources: list) -> dict[str, Fate]:
    "Read what a job kept and dropped, by the lines of its files"
    out = {}
    for source in sources:
        fate = Fate({}, {})
        for path, drop in zip(source.documents, source.drop):
            for name, text, code in zip(
                *(c.to_pylist() for c in load_chunk(path, "name", "text")), drop.tolist()
            ):
                line = int(name.rpartition(".")[2])
                if code:
                    fate.reason[line] = REASONS[code]
                else:
                    fate.text[line] = text
        for file in Path(job.asked.excluded, job.keys[source.name]).glob("*.jsonl"):
            for gone in map(json.loads, file.read_text().splitlines()):
                fate.reason[int(gone["name"].rpartition(".")[2])] = gone["why"]
        out[source.name] = fate
    return out


def what_became(
    defect: Defect, line: int, fate: Fate, scan: dict, checks: dict
) -> tuple[str, str]:  # (caught, named, missed, kept; how)
    "Tell what became of a defect"
    if defect.stays:
        return ("kept", "") if line in fate.text else ("dropped wrongly", fate.reason[line])
    if line in fate.reason:
        return "caught", f"dropped: {fate.reason[line]}"
    if defect.left and defect.left not in fate.text[line]:
        return "caught", "repaired or masked"
    if defect.check == "chanted strings" and scan["sources"][defect.source]["chants"]:
        return "caught", "counted; stops the job at a gate"
    if checks.get(defect.check) == []:
        return "named", f"not looked for: {defect.check}"
    return "missed", ""


def plant_and_look(folder: Path, recipe: Path, benchmarks: str) -> list[dict]:
    "Plant everything, prepare it, and look"
    samples = {s: list(islice(texts_of(s), n)) for s, n in SAMPLE.items()}
    every = planted(samples, Path(benchmarks))
    lines = {s: [row(t) for t in texts] for s, texts in samples.items()}
    at = []
    for defect in every:
        lines[defect.source].append(defect.line)
        at.append(len(lines[defect.source]))
    for source, some in lines.items():
        (folder / f"{source}.jsonl").write_text("\n".join(some) + "\n")
    BPETokenizer.train(samples["fineweb-edu"][:20], 300).save(folder / "tok")
    cfg = load_recipe(
        recipe,
        [f"{s}={folder}/{s}.jsonl" for s in CORPORA],
        tokenizer=str(folder / "tok"),
        excluded=str(folder / "gone"),
        benchmarks=(benchmarks,),
        chunk_mb=64.0,
        gate=1e6,
    )
    job = Job(cfg, folder / "out", log=lambda line: None)
    read_sources(job)
    scan = scan_report(job)
    tok, _ = learn_tokenizer(job)
    encode_documents(job, tok)
    fate = fates(job, encoded_sources(job, tok))
    checks = looked_for(cfg)
    rows = []
    for defect, line in zip(every, at):
        became, how = what_became(defect, line, fate[defect.source], scan, checks)
        rows.append(dict(defect=defect.name, source=defect.source, became=became, how=how))
    return rows


def trove_with_rules(path: Path, tokenizer: Path, out: Path):
    """Do about the same with datatrove's own steps, in one process. Words are divided at white
    space, which is quicker than its own way, and needs no spaCy"""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.filters import (
        FineWebQualityFilter,
        GopherQualityFilter,
        GopherRepetitionFilter,
    )
    from datatrove.pipeline.formatters import PIIFormatter
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer
    from datatrove.utils.logging import logger
    from datatrove.utils.word_tokenizers import WordTokenizer

    class AtSpaces(WordTokenizer):
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return text.split(". ")

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(m.start(), m.end()) for m in re.finditer(r"\S+", text)]

    words = AtSpaces()
    steps = [
        JsonlReader(str(path.parent), glob_pattern=path.name),
        GopherRepetitionFilter(language=words),
        GopherQualityFilter(language=words),
        FineWebQualityFilter(language=words),
        PIIFormatter(),
        DocumentTokenizer(str(out / "tokens"), str(tokenizer), shuffle_documents=False),
    ]
    logger.disable("datatrove")
    try:
        LocalPipelineExecutor(steps, tasks=1, workers=1, logging_dir=str(out / "logs")).run()
    finally:
        logger.enable("datatrove")


def race(folder: Path, recipe: Path, benchmarks: str, rounds: int = 2) -> dict:
    "Time the recipe and datatrove's rules on the same text with the same tokenizer, taking turns"
    begun = {s: 0.0 for s in CORPORA}
    shares = {"fineweb-edu": 0.87, "finemath": 0.10, "python-edu": 0.03}
    for source, share in shares.items():
        with open(folder / f"race-{source}.jsonl", "w") as file:
            for text in texts_of(source):
                if begun[source] >= SPEED_MB * 1e6 * share:
                    break
                begun[source] += file.write(row(text) + "\n")
    BPETokenizer.train(islice(texts_of("fineweb-edu"), 2000), 32_000).save(folder / "race-tok")
    sources = [f"{s}={folder}/race-{s}.jsonl" for s in CORPORA]
    tok = str(folder / "race-tok")

    def ours(out: Path) -> float:
        cfg = load_recipe(recipe, sources, tokenizer=tok, benchmarks=(benchmarks,))
        counts = prepare(cfg, out, log=lambda line: None)["counts"]
        return sum(c["bytes_in"] for c in counts.values()) / 1e6

    def without_near(out: Path) -> float:
        cfg = load_recipe(recipe, sources, tokenizer=tok, benchmarks=(benchmarks,))
        counts = prepare(replace(cfg, near=None), out, log=lambda line: None)["counts"]
        return sum(c["bytes_in"] for c in counts.values()) / 1e6

    def bare(out: Path) -> float:
        cfg = PrepConfig(sources=tuple(sources), tokenizer=tok)
        counts = prepare(cfg, out, log=lambda line: None)["counts"]
        return sum(c["bytes_in"] for c in counts.values()) / 1e6

    def theirs(out: Path) -> float:
        few = folder / "race-few.jsonl"  # it is slow: some of the web text alone
        with open(folder / "race-fineweb-edu.jsonl") as file:
            few.write_text("".join(islice(file, TROVE_DOCUMENTS)))
        trove_with_rules(few, folder / "race-tok" / "tokenizer.json", out)
        return few.stat().st_size / 1e6

    runs: dict[str, Callable[[Path], float]] = dict(
        recipe=ours, recipe_without_near=without_near, no_rules=bare, datatrove=theirs
    )
    best: dict[str, float] = {}
    for _ in range(rounds):
        for name, run in runs.items():
            out = folder / f"race-{name}"
            begin = time.process_time()
            size = run(out)
            speed = size / (time.process_time() - begin)
            best[name] = max(best.get(name, 0.0), speed)
            shutil.rmtree(out, ignore_errors=True)
    load = os.getloadavg()[0]
    return dict(mb_per_cpu_second=best, of_datatrove=best["recipe"] / best["datatrove"], load=load)


PARTS = ("planted", "speed")


def measure(part: str, folder: Path) -> dict:
    "Measure one of `PARTS`: what the receipt has of it"
    recipe = shipped(RECIPE)
    (benchmarks,) = found_benchmarks(("course",))
    if part == "planted":
        rows = plant_and_look(folder, recipe, benchmarks)
        return dict(counts=dict(Counter(r["became"] for r in rows)), defects=rows)
    return dict(speed=race(folder, recipe, benchmarks))


def main(out: Path = DATA / "defects.json"):
    "Measure the parts that are asked for, say them, and put them into the receipt"
    os.environ.update(RAYON_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    receipt = json.loads(out.read_text()) if out.exists() else {}
    for part in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as d:
            measured = measure(part, Path(d))
        for row in measured.get("defects", []):
            print(f"{row['became']:>8}  {row['defect']}: {row['how']}")
        print({name: x for name, x in measured.items() if name != "defects"})
        receipt |= dict(machine=machine()) | measured
    out.write_text(json.dumps(receipt, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
