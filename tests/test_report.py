"The page and the numbers on it"

import json
import lzma
import math
import re
import sys
from html.parser import HTMLParser

import numpy as np
import pytest

from gpub.core import GpubError
from gpub.data.references import MEANING, bits_per_byte, reference_lines
from gpub.record.log import read_bill, read_log, sample_table
from gpub.report.page import write_report
from gpub.report.plots import COLOURS, plot_loss, smooth

REFS = {
    "uniform": math.log(65),
    "unigram": 3.31,
    "zstd -19": 2.25,
    "xz": 2.24,
    "xz alone": 2.6,
    "source entropy": 1.3,
}


def invented_run(folder, rows=61, extra=()):
    "A run folder with invented numbers"
    folder.mkdir(exist_ok=True)
    log = []
    for i in range(rows):
        log.append(
            dict(
                step=20 * i,
                tokens=81920 * i,
                loss=1.5 + 2.7 * math.exp(-i / 6) + 0.02 * (-1) ** i,
                lr=0.04,
                grad_norm=0.5,
                tok_s=40000.0,
                mfu=0.3,
                seconds=1.8 * i,
                usd=5e-5 * i,
            )
        )
        if i % 10 == 0:
            log[-1] |= dict(
                val_loss=1.56 + 2.7 * math.exp(-i / 6),
                val_bpb=bits_per_byte(1.56 + 2.7 * math.exp(-i / 6), 1, 1),
            )
    (folder / "log.jsonl").write_text("".join(json.dumps(r) + "\n" for r in [*log, *extra]))
    samples = [
        dict(step=s, prompt=p, seed=7, text=f"{p} verse-{s} & <script>alert({s})</script>")
        for s in (0, 600, 1200)
        for p in ("ROMEO:", "<b>")
    ]
    (folder / "samples.jsonl").write_text("".join(json.dumps(s) + "\n" for s in samples))
    (folder / "bill.json").write_text(
        json.dumps(
            dict(
                usd=0.003,
                hours=0.03,
                usd_per_hour=0.1,
                tokens=4915200,
                tok_s=40100.0,
                price_source="test data",
            )
        )
    )
    (folder / "config.json").write_text(
        json.dumps(
            dict(
                format=3,
                preset="test data",
                model=dict(vocab_size=65, context_length=256),
                train=dict(betas=[0.9, 0.95]),
                machine=dict(cpu='a "<cpu>"', gpu=None),
                reference=REFS,
            )
        )
    )
    return folder


class Page(HTMLParser):
    "Tags must nest and close, and nothing may come from elsewhere"

    VOID = {"meta", "br", "img", "hr", "input", "link"}

    def __init__(self, source):
        super().__init__()
        self.open, self.text, self.tags, self.rows = [], [], [], 0
        self.feed(source)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.rows += tag == "tr"
        for k, v in attrs:
            assert (
                k not in ("src", "href", "srcset", "action")
                and not k.startswith("on")
                and (k != "xlink:href" or v.startswith("#"))
            ), (tag, k, v)
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        tag in self.VOID or self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def page(run):
    source = write_report(run).read_text(encoding="utf-8")
    assert (
        "http:" not in source
        and "https:" not in source
        and "@import" not in source
        and source.count("url(") == source.count("url(#")
    )
    p = Page(source)
    assert "script" not in p.tags and p.tags.count("svg") == 2
    return source, " ".join(p.text), p


def test_page_stands_alone_and_is_complete(tmp_path):
    source, text, p = page(invented_run(tmp_path / "run"))
    for s in (0, 600, 1200):
        assert f"step {s:,}" in text and text.count(f"verse-{s} & <script>alert({s})</script>") == 2
    assert (
        "<script" not in source and "<b>:" not in source and text.count("the same each time") == 2
    )
    for name, value in REFS.items():
        assert name in text and f"{value:.3f}" in text and MEANING[name] in text
    assert all(
        x in text
        for x in [
            "1.560",
            f"{1.56 / math.log(2):.3f}",
            "test data",
            'a "<cpu>"',
            "0.9, 0.95",
            "$0.003",
            "40,100",
            "108 s",
            "all 61 logged rows",
        ]
    )
    assert p.rows >= 61 + len(REFS) + 1 and all(
        f'<td class="n">{20 * i:,}</td>' in source for i in range(61)
    )
    assert (
        "prefers-color-scheme: dark" in source
        and "viewport" in source
        and (tmp_path / "run" / "loss.png").read_bytes()[:4] == b"\x89PNG"
    )


def test_pictures_follow_the_theme(tmp_path):
    source, *_ = page(invented_run(tmp_path / "run"))
    svg = source[source.index("<svg") : source.rindex("</svg>")]
    assert not any(c in svg for c in COLOURS.values()) and all(
        f"var(--{c})" in svg for c in ("ink", "raw", "train", "val", "limit", "grid")
    )
    assert all(source.count(f"--{c}:") == 2 for c in COLOURS), (
        "each colour has a light and a dark value"
    )


def light(colour):
    "Relative luminance (WCAG 2)"
    r, g, b = (
        (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4)
        for v in (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    )
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


@pytest.mark.full(instead="test_pictures_follow_the_theme")
def test_text_can_be_read_by_day_and_by_night(tmp_path):
    source, *_ = page(invented_run(tmp_path / "run"))
    used = set(re.findall(r"^\s*color: var\(--(\w+)\)", source, re.M))
    assert used == {"ink", "mute", "hot"}
    for theme in source.split(":root {")[1:]:
        css = {
            k: v if len(v) == 7 else "#" + "".join(c * 2 for c in v[1:])
            for k, v in re.findall(r"--(\w+): (#\w+)", theme.split("}")[0])
        }
        for text in used:
            for ground in ("page", "card"):
                low, high = sorted((light(css[text]), light(css[ground])))
                assert (high + 0.05) / (low + 0.05) > 4.5, (text, ground)


def test_one_row_and_nothing_else(tmp_path):
    (tmp_path / "log.jsonl").write_text('{"step": 1, "tokens": 4096, "loss": 4.17}\n')
    _, text, _ = page(tmp_path)
    assert all(
        x in text
        for x in [
            "One row is logged",
            "No validation",
            "No samples",
            "No bill",
            "no reference losses",
        ]
    )


def test_loss_that_is_no_number(tmp_path):
    bad = [
        dict(step=s, tokens=s, loss=float(x), val_loss=float(x))
        for s, x in [(1220, "nan"), (1240, "inf"), (1260, "nan")]
    ]
    _, text, _ = page(invented_run(tmp_path / "run", extra=bad))
    assert "not a finite number in 3 of 64 rows, first at step 1,220" in text and "1.560" in text
    (tmp_path / "run" / "log.jsonl").write_text(
        '{"step": 5, "loss": NaN}\n{"step": 6, "loss": null}\n'
    )
    assert "first at step 5" in page(tmp_path / "run")[1]


@pytest.mark.full(instead="test_one_row_and_nothing_else")
def test_rows_of_training_and_validation_may_be_separate(tmp_path):
    (tmp_path / "log.jsonl").write_text(
        '{"step": 1, "tokens": 10, "loss": 4.0, "tok_s": 5}\n{"step": 1, "val_loss": 3.9, '
        '"val_bpb": 5.6}\n'
    )
    assert "3.900" in page(tmp_path)[1]


@pytest.mark.full(instead="test_page_stands_alone_and_is_complete")
def test_very_long_log_keeps_the_validations(tmp_path):
    source, text, _ = page(invented_run(tmp_path / "run", rows=3001))
    assert (
        "the 301 rows with a validation, of 3,001 in log.jsonl" in text and len(source) < 1_000_000
    )


def test_logs_that_are_cut_damaged_or_empty(tmp_path):
    run = invented_run(tmp_path / "run")
    log = run / "log.jsonl"
    whole = read_log(run)
    log.write_text(log.read_text() + '{"step": 99, "lo')
    assert read_log(run) == whole
    for content, match in [
        ("", "log.jsonl is empty"),
        ('{"ste', "log.jsonl is empty"),
        ('{"step": 1}\n[1]\n{"step": 2}\n', "line 2 is not a JSON object: '\\[1\\]'"),
    ]:
        log.write_text(content)
        with pytest.raises(GpubError, match=match) as e:
            write_report(run)
        assert "\n" not in str(e.value)
    with pytest.raises(GpubError, match="has no log.jsonl"):
        write_report(tmp_path / "nowhere")


def test_sample_table(tmp_path):
    run = invented_run(tmp_path / "run")
    rows = sample_table(run)
    assert [(r["prompt"], r["step"]) for r in rows] == [
        (p, s) for p in ("ROMEO:", "<b>") for s in (0, 600, 1200)
    ]
    assert math.isclose(rows[2]["val_loss"], 1.56 + 2.7 * math.exp(-10)) and rows[2]["seed"] == 7
    (run / "samples.jsonl").unlink()
    assert sample_table(run) == []


@pytest.mark.parametrize(
    "name, content, said",
    [
        (
            "samples.jsonl",
            '{"prompt": "a", "text": "b"}',
            "samples.jsonl line 1 has no step; delete that line",
        ),
        ("samples.jsonl", '{"step": 1, "prompt": "a"}', "line 1 has no text"),
        ("samples.jsonl", '{"step": 1, "prompt": null, "text": "b"}', "line 1 has no prompt"),
        (
            "samples.jsonl",
            '{"step": 1, "prompt": ["a"], "text": "b"}',
            "prompt must be text, got \"['a']\"",
        ),
        (
            "samples.jsonl",
            '{"step": "1", "prompt": "a", "text": "b"}',
            "step must be a whole number, got '1'",
        ),
        (
            "samples.jsonl",
            '{"step": 1, "prompt": "a", "text": "b", "seed": [7]}',
            "seed must be a whole number",
        ),
        (
            "samples.jsonl",
            '[["step", 1], ["prompt", "a"], ["text", "b"]]',
            "line 1 is not a JSON object",
        ),
        ("samples.jsonl", "null\n{}", "line 1 is not a JSON object: 'null'"),
        ("log.jsonl", '{"loss": 1.0}', "log.jsonl line 1 has no step"),
        ("log.jsonl", '{"step": 1, "loss": "low"}', "line 1: loss must be a number, got 'low'"),
        (
            "log.jsonl",
            '{"step": 1}\n{"step": true}',
            "line 2: step must be a whole number, got 'True'",
        ),
        ("log.jsonl", '{"step": 1, "val_loss": {}}', "val_loss must be a number, got '{}'"),
        ("config.json", "[1]", "config.json is not a JSON object: '[1]'"),
        ("config.json", '"x"', "is not a JSON object"),
        ("config.json", '{"reference": [3]}', "reference must be an object, got '[3]'"),
        (
            "config.json",
            '{"reference": {"xz": "2"}}',
            "the reference 'xz' must be a finite number, got '2'",
        ),
        ("config.json", '{"reference": {"xz": NaN}}', "must be a finite number"),
        ("config.json", '{"machine": "mine"}', "machine must be an object, got 'mine'"),
        ("config.json", '{"parameters": "many"}', "parameters must be a whole number"),
        ("config.json", '{"unit": 3}', "unit must be text"),
        ("bill.json", "3", "bill.json is not a JSON object: '3'"),
        ("bill.json", '{"usd": "free"}', "usd must be a number, got 'free'"),
        ("bill.json", '{"seconds": [1]}', "seconds must be a number"),
    ],
)
def test_what_was_damaged_by_hand_is_one_line(tmp_path, name, content, said):
    run = invented_run(tmp_path / "run")
    if name == "config.json":
        content = content.replace("{", '{"format": 3, ', 1)
    (run / name).write_text(content + "\n")
    with pytest.raises(GpubError) as e:
        write_report(run)
    assert said in str(e.value) and "\n" not in str(e.value) and not (run / "report.html").exists()


@pytest.mark.full(instead="test_loss_that_is_no_number")
def test_what_is_null_is_as_if_it_were_not_there(tmp_path):
    run = invented_run(
        tmp_path / "run", extra=[dict(step=1220, loss=None, val_loss=2000.0, val_bpb=None)]
    )
    (run / "config.json").write_text(
        json.dumps(
            dict(format=3, preset=None, parameters=None, machine=None, reference=None, unit=None)
        )
    )
    (run / "bill.json").write_text('{"hours": null, "tokens": 5}')
    assert (
        "2000.000" in page(run)[1] and "nats/char" in page(run)[1] and read_bill(run)["tokens"] == 5
    )


def test_reference_values_by_hand():
    refs = reference_lines("abcabc", "aabb", vocab_size=3, source=0.5)
    assert (
        refs["uniform"] == math.log(3)
        and math.isclose(refs["unigram"], math.log(2))
        and refs["source entropy"] == 0.5
    )
    assert math.isclose(
        reference_lines("x", "aaaaaaab", 2)["unigram"],
        -(7 / 8 * math.log(7 / 8) + 1 / 8 * math.log(1 / 8)),
    )
    assert reference_lines("x", "aaaa", 2)[
        "unigram"
    ] == 0 and "source entropy" not in reference_lines("x", "a", 2)

    def xz(t):
        return len(lzma.compress(t.encode(), preset=9 | lzma.PRESET_EXTREME))

    train, val = (
        "To be, or not to be: that is the question. " * 30,
        "Whether ’tis nobler in the mind to suffer",
    )
    refs = reference_lines(train, val, 65)
    assert math.isclose(refs["xz alone"], 8 * xz(val) * math.log(2) / len(val)) and math.isclose(
        refs["xz"], 8 * (xz(train + val) - xz(train)) * math.log(2) / len(val)
    )
    with pytest.raises(GpubError, match="validation text is empty"):
        reference_lines("abc", "", 3)


def test_what_compressors_made_of_a_text_is_kept(tmp_path, monkeypatch):
    "By its content: the second run of a text compresses nothing, another text is compressed"
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path))
    first = reference_lines("abc" * 50, "abc" * 9, 3)

    def none(data, **options):
        raise AssertionError("compressed again")

    monkeypatch.setattr("gpub.data.references.lzma.compress", none)
    assert reference_lines("abc" * 50, "abc" * 9, 3) == first
    with pytest.raises(AssertionError, match="again"):
        reference_lines("abc" * 50 + "a", "bc" + "abc" * 8, 3)  # the same letters, cut elsewhere


def test_zstd_is_optional(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zstandard", None)
    said = []
    refs = reference_lines("abc" * 50, "abc" * 9, 3, log=said.append)
    assert (
        "xz" in refs
        and "zstd -19" not in refs
        and said == ["no zstd line in the report: pip install zstandard"]
    )
    run = invented_run(tmp_path / "run")
    config = json.loads((run / "config.json").read_text()) | dict(reference=refs)
    (run / "config.json").write_text(json.dumps(config))
    assert "pip install zstandard" in page(run)[1]


def test_zstd_with_and_without_the_training_text():
    zstandard = pytest.importorskip("zstandard")

    def size(t):
        return len(zstandard.ZstdCompressor(level=19).compress(t.encode()))

    train, val = "".join(map(str, range(2000))), "".join(map(str, range(900, 1000)))
    refs = reference_lines(train, val, 10)
    assert math.isclose(
        refs["zstd -19 alone"], 8 * size(val) * math.log(2) / len(val)
    ) and math.isclose(
        refs["zstd -19"], 8 * (size(train + val) - size(train)) * math.log(2) / len(val)
    )
    assert (
        refs["zstd -19"] < refs["zstd -19 alone"]
        and reference_lines(train, val, 10, limit=10)["zstd -19"] > refs["zstd -19"]
    )


def test_smooth():
    x = np.arange(50.0)
    assert (
        np.allclose(smooth(x, 4)[:-4], x[:-4])
        and np.allclose(smooth(np.full(9, 2.0), 3), 2)
        and len(smooth([])) == 0
    )
    assert np.allclose(
        smooth([np.nan, 1, np.nan, 3, np.inf, 5], 1)[1:5], [1, 2, 3, 4]
    ) and np.isnan(smooth([np.nan])[0])
    noise = np.random.default_rng(0).normal(size=2000)
    assert smooth(noise)[60:-60].std() < 1.3 / math.sqrt(101)


def test_reference_labels_never_overlap(tmp_path):
    refs = REFS | {"zstd -19": 2.241, "unigram": 2.25}
    for size in [(9, 4.6), (4.2, 4.4)]:
        fig = plot_loss(read_log(invented_run(tmp_path / "run")), refs, size=size)
        fig.canvas.draw()
        boxes = sorted((t.get_window_extent() for t in fig.axes[0].texts), key=lambda b: b.y0)
        assert len(boxes) == 5 and all(a.y1 <= b.y0 + 1 for a, b in zip(boxes, boxes[1:]))
        assert max(b.x1 for b in boxes) <= fig.bbox.width, "cut at the right"
        legend = fig.axes[0].get_legend().get_window_extent()
        assert not any(
            legend.contains(*fig.axes[0].transData.transform((1000, v))) for v in refs.values()
        )


def test_every_axis_of_x(tmp_path):
    rows = read_log(invented_run(tmp_path / "run"))
    for x, last in dict(step=1200, tokens=81920 * 60, seconds=108, usd=0.003).items():
        assert math.isclose(plot_loss(rows, x=x).axes[0].lines[0].get_xdata()[-1], last)
