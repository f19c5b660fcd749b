"""The plan of the model that talks, walked with three seeds, and what each model can do.

python tools/skills.py walk OUT --seed 0     about an hour of two cores, or a minute of a card
python tools/skills.py join OUT              writes data/skills.json
python tools/skills.py pack OUT              keeps one model at 8 bits, data/skills.safetensors
python tools/skills.py keep RUN              the same with the newest model of a run of gpub
python tools/skills.py ask .                 adds to the receipt what that one says
python tools/skills.py unpack FOLDER         writes it as a folder for gpub chat, serve and export
python tools/skills.py answer TURNS.json     answers a list of conversations, each a list of what
                                             a user types, and writes TURNS-answered.json

A walk leaves in OUT, as they become ready: seed-0.json, what the model of every phase answered in
held-out conversations, and a folder seed-0 with the plan. With --export the last model is there,
as one file of weights, its config and its tokenizer."""

import argparse
import json
import shutil
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from safetensors import safe_open

from gpub.chat.skills import SKILL_NAMES, TURNS, draw_conversations
from gpub.chat.talk import answer_turns
from gpub.chat.visits import ALL_SKILLS, VISIT_NAMES
from gpub.core import read_json, write_atomic
from gpub.data.char import CharTokenizer
from gpub.data.tokenizer import Tokenizer
from gpub.data.tokenizer_file import load_tokenizer
from gpub.device import machine, pick_device, use_threads
from gpub.model.gpt import Decoder
from gpub.model.llama import Llama, LlamaConfig
from gpub.plans.phases import Plan, read_plan
from gpub.plans.runner import PlanOptions, run_plan
from gpub.record.folder import Interrupted
from gpub.record.log import read_log
from gpub.record.run import load
from gpub.share.demo import quantise
from gpub.share.hub import export_model
from gpub.tune.measures import judge_conversations, right_shares
from gpub.tune.rollouts import eval_mode
from gpub.tune.start import open_start

RECEIPT = Path(__file__).resolve().parent.parent / "data/skills.json"
WEIGHTS = RECEIPT.with_suffix(".safetensors")
EXAM_SEED = 11  # of the held-out conversations of the receipt
EXAM = 500  # conversations of `TURNS` turns
SHOWN = 12  # conversations whose words are kept, and as many with a mistake


def plan_of(args: argparse.Namespace) -> Plan:
    "The plan with a seed, and in a rehearsal a few steps of a small model without gates"
    plan = read_plan(args.plan)
    settings = plan.settings | dict(seed=args.seed)
    phases = tuple(replace(phase, gates=()) for phase in plan.phases)
    if args.toy:
        settings |= dict(n_layers=1, d_model=32, n_heads=2, n_kv_heads=2, d_ff=64)
        settings |= dict(batch_tokens=1024)
        data = dict(base=phases[0].data, sft=("skills:300",), visits=("skills:300:all",))
        few = dict(until=4)
        phases = tuple(
            replace(
                phase,
                data=data.get(phase.name, phase.data),
                **few
                | (dict(save_every=4, settings=dict(batch_tokens=1024)) if phase.tuned else {}),
            )
            for phase in phases
        )
    return replace(plan, settings=settings, phases=phases)


def transcript(talk: list) -> list[dict]:
    "A conversation as it was held"
    return [
        dict(
            skill=one.turn.skill,
            question=one.turn.question,
            answer=one.answer,
            right=one.right,
            wanted=one.turn.answer,
        )
        for one in talk
    ]


def examine(folder: Path, device: str, exam: int) -> dict:
    "Hold the held-out conversations with the newest model of a run"
    start = open_start(folder, device=device)
    return hold_exam(start.model, start.tok, exam)


def hold_exam(model: Decoder, tok: Tokenizer, exam: int) -> dict:
    "Hold the held-out conversations with a model"
    talks = list(draw_conversations(exam, EXAM_SEED, True, TURNS, ALL_SKILLS))
    began = time.perf_counter()
    with eval_mode(model):
        judged = judge_conversations(model, tok, talks)
    wrong = [talk for talk in judged if not all(one.right for one in talk)]
    return dict(
        seconds=round(time.perf_counter() - began, 1),
        conversations=exam,
        turns=sum(map(len, judged)),
        whole=1 - len(wrong) / len(judged),
        shares={name: round(share, 4) for name, share in right_shares(judged).items()},
        talks=[transcript(talk) for talk in judged[:SHOWN]],
        mistakes=[transcript(talk) for talk in wrong[:SHOWN]],
    )


def walk(args: argparse.Namespace):
    "Walk the plan with one seed, examine the model after each phase, keep what was found at once"
    use_threads()
    plan = plan_of(args)
    out = Path(args.out)
    folder = out / f"seed-{args.seed}"
    receipt_path = out / f"seed-{args.seed}.json"
    device = pick_device(args.device)
    receipt = dict(machine=machine(device), plan=args.plan, seed=args.seed, toy=args.toy, phases={})
    last = plan.tuned[-1].name
    for phase in plan.phases:
        began = time.perf_counter(), time.process_time()
        options = PlanOptions(usd_per_hour=1.0, device=args.device, until=phase.name)
        try:
            verdict = run_plan(plan, folder, options)
            word, reason = verdict.word, verdict.reason
        except Interrupted as stopped:  # its time was up: what is there is kept
            word, reason = "interrupted", str(stopped)
        found = dict(
            seconds=round(time.perf_counter() - began[0], 1),
            cpu_seconds=round(time.process_time() - began[1], 1),
            steps=phase.until,
            verdict=word,
            reason=reason,
        )
        run = plan.folder(folder, phase)
        rows = [row for row in read_log(run) if "right" in row]
        found["rows"] = [
            {k: v for k, v in row.items() if k in ("step", "val_loss") or k.startswith("right")}
            for row in rows
        ]
        receipt["phases"][phase.name] = found
        if phase.name == last and args.export:
            export(run, out, args.seed)
        write_atomic(receipt_path, json.dumps(receipt, indent=1) + "\n")
        if word == "interrupted":
            return
        if phase.tuned:
            found["exam"] = examine(run, args.device, args.exam)
            write_atomic(receipt_path, json.dumps(receipt, indent=1) + "\n")


def export(run: Path, out: Path, seed: int):
    "Keep the newest weights of a run, its config and its tokenizer"
    from safetensors.torch import save_file

    opened = load(run, None, "cpu")
    receipt = {"step": str(opened.step), "seed": str(seed)}
    weights = {name: t.contiguous() for name, t in opened.model.state_dict().items()}
    save_file(weights, out / f"seed-{seed}.safetensors", metadata=receipt)
    shutil.copy(run / "config.json", out / f"config-{seed}.json")
    if not (out / "tokenizer.json").is_file():
        opened.tokenizer.save(out)


def pack(args: argparse.Namespace):
    "Keep weights that a walk exported at 8 bits"
    from safetensors.torch import load_file

    out = Path(args.out)
    config = read_json(out / f"config-{args.seed}.json", "model")
    weights = load_file(out / f"seed-{args.seed}.safetensors")
    write_packed(args, weights, config, load_tokenizer(out).chars)


def keep(args: argparse.Namespace):
    "Keep the newest weights of a run at 8 bits"
    run = Path(args.out)
    opened = load(run, None, "cpu")
    config = read_json(run / "config.json", "model")
    write_packed(args, opened.model.state_dict(), config, opened.tokenizer.chars)


def write_packed(args: argparse.Namespace, weights: dict, config: dict, chars: Sequence[str]):
    "Write weights at 8 bits, with all that a model needs beside them"
    from safetensors.torch import save_file

    tensors = {}
    for name, t in weights.items():
        if t.dim() == 1:
            tensors[name] = t.contiguous()
            continue
        tensors[f"{name}.rows"], tensors[f"{name}.scales"] = quantise(t)
    about = dict(model=config["model"], steps=config["train"]["steps"], seed=args.seed)
    about |= dict(chars=chars)
    save_file(tensors, args.weights, metadata=dict(about=json.dumps(about)))


def unpack(args: argparse.Namespace):
    "Write the model that was packed as a folder of Hugging Face, which gpub chat opens"
    model, tok = packed_model(args.weights)
    print(export_model(model, tok, args.out, chat=True))


def packed_model(path: Path) -> tuple[Llama, CharTokenizer]:
    "Read weights of 8 bits"
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["about"])
        stored = {name: file.get_tensor(name) for name in file.keys()}
    model = Llama(LlamaConfig.from_dict(about["model"]))
    weights = {}
    for name in model.state_dict():
        if name in stored:
            weights[name] = stored[name]
        else:
            weights[name] = stored[f"{name}.rows"] * stored[f"{name}.scales"][:, None]
    model.load_state_dict(weights)
    return model.eval(), CharTokenizer(about["chars"])


def ask_packed(args: argparse.Namespace):
    "Add to the receipt what the packed model says in the same conversations"
    use_threads()
    receipt = read_json(args.receipt)
    receipt["packed"] = dict(machine=machine("cpu"), bytes=args.weights.stat().st_size)
    receipt["packed"] |= hold_exam(*packed_model(args.weights), args.exam)
    write_atomic(args.receipt, json.dumps(receipt, indent=1) + "\n")


def answer(args: argparse.Namespace):
    "Write what the packed model answers in conversations that somebody typed"
    use_threads()
    typed = read_json(args.out)
    answers = answer_turns(*packed_model(args.weights), typed)
    talks = [
        [dict(question=q, answer=a) for q, a in zip(questions, heard)]
        for questions, heard in zip(typed, answers)
    ]
    path = Path(args.out).with_name(f"{Path(args.out).stem}-answered.json")
    write_atomic(path, json.dumps(talks, indent=1, ensure_ascii=False) + "\n")
    print(path)


def join(args: argparse.Namespace):
    "Put the receipts of the seeds together"
    seeds = [read_json(path) for path in sorted(Path(args.out).glob("seed-*.json"))]
    shares = defaultdict(list)
    for seed in seeds:
        exam = list(seed["phases"].values())[-1]["exam"]
        for name, share in exam["shares"].items():
            shares[name].append(share)
        shares["whole"].append(round(exam["whole"], 4))
    receipt = dict(
        about={
            skill.name: f"{skill.about}: {skill.way}"
            for skill in ALL_SKILLS
            if skill.name in (*SKILL_NAMES, *VISIT_NAMES)
        },
        shares=dict(shares),
        seeds=seeds,
    )
    write_atomic(args.receipt, json.dumps(receipt, indent=1) + "\n")
    for name, found in shares.items():
        print(f"{name:24s}", *(f"{share:7.1%}" for share in found))


DO = dict(walk=walk, join=join, pack=pack, keep=keep, unpack=unpack, ask=ask_packed, answer=answer)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=tuple(DO))
    parser.add_argument("out")
    parser.add_argument("--plan", default="chat-skills")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--exam", type=int, default=EXAM)
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--toy", action="store_true", help="a few steps, as a rehearsal")
    parser.add_argument("--receipt", default=RECEIPT, type=Path)
    parser.add_argument("--weights", default=WEIGHTS, type=Path)
    args = parser.parse_args()
    DO[args.what](args)


if __name__ == "__main__":
    main()
