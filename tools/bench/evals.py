"""Scoring HellaSwag with the shape of GPT-2 against lm-eval's own hf model on the same folder: the
same scores, sooner"""

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from gpub.data.bpe import SPECIALS, BPETokenizer
from gpub.data.plays import plays
from gpub.device import machine, pick_device, seed_everything, use_threads
from gpub.evals.adapter import adapter, exported, lm_eval_parts
from gpub.evals.tasks import TASKS, Item, load_items
from gpub.files import data_dirs
from gpub.lab.bench.race import Race, machine_line
from gpub.model.architectures import config_of
from gpub.model.gpt import GPT
from gpub.prep.sources import Source, chunks, records
from gpub.share.hub import export_model
from gpub.table import Table


def bench_items(
    n: int,  # questions
) -> tuple[list[Item], str]:  # and what they are
    "HellaSwag where it is, else continuations of the built-in plays of the same size"
    if any((d / "eval" / TASKS["hellaswag"].file).is_file() for d in data_dirs()):
        return load_items("hellaswag", n), "HellaSwag"
    text = plays(1520 * n, seed=3)  # four times the characters of a question
    lines = [line.strip() for line in text.splitlines() if len(line) > 40]
    fives = [lines[i : i + 5] for i in range(0, 5 * n, 5)]
    return [
        Item(f"plays:{i}", " ".join(five[:4])[:380], tuple(five[:4]), (0,))
        for i, five in enumerate(fives)
    ], "built-in plays"


def bench_tokenizer(
    items: Sequence[Item],  # whose words are learned too
    vocab_size: int,  # tokens, special ones included
    mb: float = 20,  # of text to learn from, where the corpus is
) -> tuple[BPETokenizer, str]:  # and what it learned from; fewer tokens if there are no more pairs
    "A vocabulary as large as the shape's, so that the output layer costs what it does in earnest"
    path = next((d / "edu.jsonl.zst" for d in data_dirs() if (d / "edu.jsonl.zst").is_file()), None)
    texts = [text for item in items for text in (item.context, *item.choices)]
    size = 0
    for chunk in chunks(Source(name="edu", path=str(path)), size=1 << 20) if path else ():
        texts += (text for block in chunk.blocks for text, _, why in records(block) if not why)
        size += chunk.size
        if size > mb * 1e6:
            break
    learned = f"{size / 1e6:.0f} MB of {path.name} and the questions" if path else "the questions"
    return BPETokenizer.train(texts, vocab_size - len(SPECIALS)), learned


def requests(items: Sequence[Item]) -> list:
    "Turn questions into lm-eval's requests, four for a question of four answers"
    instance = lm_eval_parts().Instance
    return [
        instance("loglikelihood", {}, (item.context, f" {choice}"), n)
        for item in items
        for n, choice in enumerate(item.choices)
    ]


def answer_in_turns(
    runs: Mapping[str, Callable[[list], list]],  # functions of a list of requests
    blocks: Sequence[list],  # of requests
) -> tuple[Race, dict[str, list]]:  # its times, and everybody's answers
    "Everybody answers every block, each time in the other order"
    said = {name: [] for name in runs}

    def answer(name: str) -> Callable[[int], None]:
        return lambda n: said[name].extend(runs[name](blocks[n]))

    return Race({name: answer(name) for name in runs}).run(len(blocks)), said


def _best_batch(
    folder: Path,  # an exported model
    device: torch.device,  # where it answers
    asked: Sequence[list],  # blocks of requests
) -> dict[int, float]:  # size -> seconds, the fastest first
    "How many requests at once suit lm-eval's own model best"
    trial = {}
    for batch in (1, 2, 4, 8, 16):
        runs = {batch: _quiet_answers(exported(folder, device, batch))}
        answer_in_turns(runs, [asked[0][:8]])
        race, _ = answer_in_turns(runs, [asked[0][:32]])
        trial[batch] = round(race.each()[batch], 3)
    return dict(sorted(trial.items(), key=lambda item: item[1]))


def _quiet_answers(
    lm: object,  # a model as lm-eval knows it
) -> Callable[[list], list]:  # requests -> (log-likelihood, is the favourite) of each
    "A model's log-likelihoods, without its progress bars"
    return lambda asked: lm.loglikelihood(asked, disable_tqdm=True)


def _agreement(
    ours: Sequence[tuple[float, bool]],  # answers, four to a question
    theirs: Sequence[tuple[float, bool]],  # of another
) -> dict[str, float]:  # that part of the receipt
    "How far two lists of answers are apart"

    def picks(said: Sequence) -> list[int]:
        return [max(range(i, i + 4), key=lambda j: said[j][0]) for i in range(0, len(said), 4)]

    pairs = [*zip(ours, theirs)]
    apart = max(abs(x[0] - y[0]) for x, y in pairs)
    return dict(
        most_apart_nats=float(f"{apart:.2g}"),
        same_favourite=statistics.mean(x[1] == y[1] for x, y in pairs),
        same_pick=statistics.mean(x == y for x, y in zip(picks(ours), picks(theirs))),
    )


def _mean_tokens(
    tok: BPETokenizer,  # that cuts them
    items: Sequence[Item],  # the questions
) -> dict[str, float]:  # that part of the receipt
    "How long a question is, and one of its four answers"
    context = sum(len(tok.encode(i.context)) for i in items)
    answers = sum(len(tok.encode(" " + c)) for i in items for c in i.choices)
    return dict(
        context_tokens=round(context / len(items), 1),
        answer_tokens=round(answers / 4 / len(items), 1),
    )


def bench_eval(
    n: int = 500,  # questions
    preset: str = "gpt2-124m",  # whose shape
    device: str = "auto",  # CUDA where it is, else MPS, else the CPU
    block: int = 50,  # questions in a turn
    settings: dict | None = None,  # of the shape, instead of the preset's
    mb: float = 20,  # of text for the vocabulary
) -> dict:  # plain values: the receipt of `gpub bench eval`
    """Our adapter and lm-eval's hf model on the same questions and weights; raises `GpubError`
    where lm-eval is not installed"""
    use_threads()
    seed_everything(0)
    d = pick_device(device)
    items, source = bench_items(n)
    shape = replace(config_of(preset), **(settings or {}))
    tok, learned = bench_tokenizer(items, shape.vocab_size, mb)
    model = GPT(replace(shape, vocab_size=tok.vocab_size)).to(d).eval()
    asked = [requests(items[i : i + block]) for i in range(0, n, block)]
    with tempfile.TemporaryDirectory(prefix="gpub-") as tmp:
        folder = export_model(model, tok, Path(tmp) / "model")
        trial = _best_batch(folder, d, asked)
        best = next(iter(trial))
        print(f"lm-eval hf: batches of {best} suit it best")
        theirs = exported(folder, d, best)
        runs = {"gpub": _quiet_answers(adapter(model, tok)), "lm-eval hf": _quiet_answers(theirs)}
        answer_in_turns(runs, [asked[0][:8]])
        race, said = answer_in_turns(runs, asked)
    wall = race.each(sum)
    cpu = race.each(sum, "cpu")
    dtypes = {"gpub": model, "lm-eval hf": theirs.model}
    return dict(
        machine=machine(d),
        preset=preset,
        parameters=sum(p.numel() for p in model.parameters()),
        precision={k: str(next(m.parameters()).dtype)[6:] for k, m in dtypes.items()},
        vocab=tok.vocab_size,
        tokenizer=learned,
        questions=n,
        source=source,
        **_mean_tokens(tok, items),
        hf_batch=best,
        hf_batch_seconds=dict(sorted(trial.items())),
        seconds={k: round(s, 2) for k, s in wall.items()},
        cpu_seconds={k: round(s, 2) for k, s in cpu.items()},
        faster=round(wall["lm-eval hf"] / wall["gpub"], 3),
        faster_cpu=round(cpu["lm-eval hf"] / max(cpu["gpub"], 1e-9), 3),
        **_agreement(*said.values()),
    )


def bench_eval_table(
    r: dict,  # a receipt of `bench_eval`
) -> str:
    "The receipt in lines"
    formats = ", ".join({*r["precision"].values()})
    rows = [
        [k, f"{s:.1f} s", f"{r['questions'] / s:.2f} questions a second"]
        for k, s in r["seconds"].items()
    ]
    asked = (
        f"{r['context_tokens']:.0f} tokens of context and four answers of {r['answer_tokens']:.0f}"
    )
    return "\n".join(
        [
            f"{machine_line(r['machine'])}; {r['preset']}, {r['parameters']:,} parameters in "
            f"{formats}",
            f"{r['questions']} questions of {r['source']}, {asked}",
            str(Table([], rows, align="lr")),
            f"gpub is {r['faster']:.2f} times as fast ({r['faster_cpu']:.2f} in CPU time) as hf "
            f"in batches of {r['hf_batch']}",
            f"log-likelihoods apart by {r['most_apart_nats']:.1g} nats at most, the same answer "
            f"to {r['same_pick']:.1%}",
        ]
    )
