"""What somebody types to teach a run to talk: from any folder to a run folder, killed and gone on,
exported with its template, refused in one line."""

import json
import re
import shutil
import signal
from functools import partial

import forked
import numpy as np
import pytest
import safetensors.numpy
import torch
from click.testing import CliRunner
from safetensors import SafetensorError

from gpub.chat import conversations
from gpub.chat.conversations import ChatSet
from gpub.chat.sums import sums_tokenizer
from gpub.chat.template import Message, encode_chat, template_for
from gpub.cli.guards import verify_command
from gpub.cli.share import export_command, import_command
from gpub.cli.tune import chat_command, chats_command, dpo_command, grpo_command, sft_command
from gpub.core import GpubError
from gpub.data.bpe import SPECIALS, BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.data.shards import ShardWriter
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.record.checkpoint import save_checkpoint
from gpub.record.folder import Interrupted
from gpub.record.run import load
from gpub.share.hub import export_model
from gpub.train import learner, optim
from gpub.train.trainer import OpenRun
from gpub.tune.dpo import DpoConfig
from gpub.tune.grpo import GrpoConfig
from gpub.tune.lora import load_lora, merge_lora
from gpub.tune.methods import DpoOptions, GrpoOptions, SftOptions
from gpub.tune.sets import ReplayConfig, open_questions
from gpub.tune.start import open_start, with_marks
from gpub.tune.steps import Tuner

SHAPE = dict(context_length=32, d_model=32, n_layers=2, n_heads=2)
RATES = dict(optimizer="muon", lr=0.03, muon_lr=0.1, batch_tokens=256)
METHODS = {
    "sft": (sft_command, ["--data", "sums:400"]),
    "dpo": (dpo_command, ["--pairs", "sums:120", "--pairs-per-step", "16"]),
    "grpo": (grpo_command, ["--task", "sums", "--questions", "4", "--group", "4"]),
}


def make_run(folder, tok, seed=0):
    torch.manual_seed(seed)
    cfg = LlamaConfig(**SHAPE, vocab_size=tok.vocab_size, n_kv_heads=1, d_ff=32)
    tok.save(folder)
    save_checkpoint(folder, 3, Llama(cfg).state_dict(), {}, {})
    said = dict(
        format=3, architecture="llama", model=cfg.to_dict(), data=dict(tokenizer=tok.fingerprint)
    )
    (folder / "config.json").write_text(json.dumps(said | dict(pretrained=RATES, prompt="1")))
    return folder


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("base") / "run", sums_tokenizer())


@pytest.fixture(scope="module")
def talker(base, tmp_path_factory):
    out = tmp_path_factory.mktemp("sft") / "run"
    done(sft_command, base, "--data", "sums:400", "--steps", 4, "--out", out)
    return out


def typed(command, *words, input=None):
    return CliRunner().invoke(command, [str(w) for w in words], input=input)


def done(command, *words, input=None):
    found = typed(command, *words, input=input)
    assert found.exit_code == 0, found.exception
    return found.output


def refused(command, *words, input=None):
    "The one line of a refusal"
    found = typed(command, *words, input=input)
    assert isinstance(found.exception, GpubError), (found.output, found.exception)
    assert "\n" not in str(found.exception)
    return str(found.exception)


def weights(run):
    return load(run, device="cpu").model.state_dict()


@pytest.mark.parametrize(
    "method", ["grpo", *(pytest.param(m, marks=pytest.mark.full) for m in ("sft", "dpo"))]
)
def test_a_killed_command_goes_on_to_the_same_bits(talker, tmp_path, method):
    "Killed with -9 between two checkpoints, answers half sampled: the same weights and rows"
    command, words = METHODS[method]
    words = (
        [*words, "--steps", 6, "--every", 2, "--lora", 2]
        if method == "dpo"
        else [*words, "--steps", 6, "--every", 2]
    )
    done(command, talker, *words, "--out", tmp_path / "whole")
    program = (
        "import os, signal, sys\n"
        "from gpub.train.trainer import OpenRun\n"
        "write_row = OpenRun._write_row\n"
        "def log_and_die(self, row):\n"
        "    write_row(self, row)\n"
        "    if self.state.step == 5: os.kill(os.getpid(), signal.SIGKILL)\n"
        "OpenRun._write_row = log_and_die\n"
        "from gpub.cli.main import main\n"
        "main()\n"
    )
    asked = [method, talker, *words, "--out", tmp_path / "cut"]
    child = forked.run(["-c", program, *asked], capture_output=True)
    assert child.returncode == -9, child.stderr
    assert load(tmp_path / "cut").step in (2, 4)
    assert "loaded the checkpoint of step" in done(
        command, talker, *words, "--out", tmp_path / "cut"
    )
    whole, cut = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(cut[name], t) for name, t in whole.items())
    clocks = ("tok_s", "seconds", "usd")

    def rows(run):
        return [{k: v for k, v in r.items() if k not in clocks} for r in load(run).log]

    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    samples = [(tmp_path / run / "samples.jsonl").read_text() for run in ("whole", "cut")]
    assert samples[0] == samples[1] and len(samples[0].split("\n")) == 3 * 4 + 1
    assert "DAMAGED" not in done(verify_command, tmp_path / "cut")
    for name in ("bill.json", "report.html", "ledger.jsonl"):
        assert (tmp_path / "cut" / name).is_file()
    assert "holds another run" in refused(
        command, talker, *words, "--lr", 1, "--out", tmp_path / "cut"
    )


def test_an_adapter_is_kept_beside_the_merged_weights(talker, tmp_path):
    out = tmp_path / "run"
    words = ["--data", "sums:200", "--steps", 3, "--lora", 2, "--out", out]
    said = done(sft_command, talker, *words)
    start = open_start(talker, device="cpu")
    merged = merge_lora(load_lora(start.model, out / "adapter")).state_dict()
    assert merged.keys() == weights(out).keys()
    assert all(torch.allclose(t, merged[name], atol=1e-6) for name, t in weights(out).items())
    # PEFT opens no run: the adapter names none, and the command says what to export
    config = json.loads((out / "adapter/adapter_config.json").read_text())
    assert config["base_model_name_or_path"] is None
    assert f"for PEFT: gpub export {talker} BASE" in said


def test_an_adapter_beside_new_marks_is_refused(tmp_path):
    "Their rows are all equal, and frozen: who speaks could not be told from them"
    run = make_run(tmp_path / "run", CharTokenizer("0123456789+"))
    words = ["--data", "sums:40", "--steps", 1, "--set", "batch_tokens=64"]
    said = refused(sft_command, run, *words, "--lora", 2, "--out", tmp_path / "lora")
    assert "the 4 marks of a chat are new" in said and not (tmp_path / "lora").exists()


def chat_file(path, n=60):
    rows = [dict(question=f"What is {k} + {k}?", answer=f"It is {2 * k}.") for k in range(n)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def words_tok():
    return BPETokenizer.train(["What is 2 + 2? It is 4, I think. Be brief."] * 3, 320)


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("gpt2 of Hugging Face", marks=pytest.mark.full),
        "run of characters",
        pytest.param("run of byte pairs", marks=pytest.mark.full),
    ],
)
def test_any_model_learns_to_talk(tmp_path, words_tok, kind):
    "A vocabulary without the marks gets them; what comes out is exported with its template"
    transformers = pytest.importorskip("transformers")
    start = tmp_path / "start"
    if kind.startswith("gpt2"):
        tok = BPETokenizer.train(["What is 2 + 2? It is 4."] * 3, 300, specials=SPECIALS[:1])
        export_model(GPT(GPTConfig(**SHAPE, vocab_size=tok.vocab_size)), tok, start)
    else:
        chars = CharTokenizer(sorted(set("What is 2 + 2? It is 4.0123456789")))
        make_run(start, words_tok if kind.endswith("pairs") else chars)
    data = chat_file(tmp_path / "chats.jsonl")
    done(
        sft_command,
        start,
        "--data",
        data,
        "--steps",
        3,
        "--out",
        tmp_path / "run",
        "--set",
        "batch_tokens=128",
    )
    said = done(chat_command, tmp_path / "run", "--longest", 4, input="What is 1 + 1?\n")
    assert said.endswith("\n")
    done(export_command, tmp_path / "run", tmp_path / "hf")
    opened = load(tmp_path / "run", device="cpu")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    talk = [dict(role="user", content="What is 2 + 2?"), dict(role="assistant", content="4")]
    ours = encode_chat(opened.tokenizer, [Message(**m) for m in talk])
    found = theirs.apply_chat_template(
        talk, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    assert found["input_ids"] == ours.ids.tolist()
    assert found["assistant_masks"] == ours.learned.astype(int).tolist()
    asked = theirs.apply_chat_template(
        talk[:1], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    assert asked == encode_chat(opened.tokenizer, [Message(**talk[0])], True).ids.tolist()
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "hf").eval()
    with torch.no_grad():
        logits = model(torch.tensor([asked])).logits[0, -1]
        expected = opened.model(torch.tensor([asked]))[0, -1]
    assert torch.allclose(logits, expected, atol=1e-4)
    assert model.generation_config.eos_token_id == int(ours.ids[-1])
    done(import_command, tmp_path / "hf", tmp_path / "back")
    done(chat_command, tmp_path / "back", "--longest", 4, input="What is 1 + 1?\n")


def test_chats_as_a_folder(tmp_path, words_tok):
    run = make_run(tmp_path / "run", words_tok)
    data = chat_file(tmp_path / "chats.jsonl")
    exam = tmp_path / "exams"
    exam.mkdir()
    out = tmp_path / "chats"
    assert "60" in done(chats_command, data, data, "--run", run, "--out", out)
    done(sft_command, run, "--data", out, "--steps", 2, "--out", tmp_path / "sft")
    assert "is there already" in refused(chats_command, data, "--run", run, "--out", out)
    other = make_run(tmp_path / "other", sums_tokenizer())
    assert "was made with tokenizer" in refused(sft_command, other, "--data", out)
    assert "holds no benchmark files" in refused(
        chats_command, data, "--run", run, "--out", tmp_path / "c", "--exams", exam
    )


@pytest.mark.parametrize("fault", ["full disk", "weights of safetensors", "killed"])
def test_chats_are_there_whole_or_not_at_all(tmp_path, words_tok, monkeypatch, fault):
    "After a fault the same command goes on, and nothing of the first try is left"
    run = make_run(tmp_path / "run", words_tok)
    words = [chat_file(tmp_path / "t.jsonl"), "--run", run, "--out", tmp_path / "chats"]
    if fault == "killed":
        (tmp_path / ".chats.tmp/chats").mkdir(parents=True)
        (tmp_path / ".chats.tmp/chats/train.safetensors").write_bytes(b"a part")
    else:
        name, error = "sync_to_disk", OSError(28, "No space left on device")
        place = conversations
        if fault.startswith("weights"):
            name, error, place = "save_file", SafetensorError("No space left"), safetensors.numpy
        with monkeypatch.context() as patch:
            patch.setattr(place, name, lambda *a, **k: (_ for _ in ()).throw(error))
            assert "No space left" in refused(chats_command, *words)
    assert not (tmp_path / "chats").exists()
    done(chats_command, *words)
    assert len(ChatSet(tmp_path / "chats")) > 50
    assert {p.name for p in tmp_path.iterdir()} == {"run", "t.jsonl", "chats"}


@pytest.mark.parametrize(
    "method", ["sft", *(pytest.param(m, marks=pytest.mark.full) for m in ("dpo", "grpo"))]
)
def test_every_matmul_is_in_the_format_of_the_run(tmp_path, words_tok, method):
    "Learning, answering, held-out data, the reference, old text and samples: none is in fp32"
    start = make_run(tmp_path / "base", words_tok)
    rows = [dict(question=f"{n}?", answer="It is 4.", chosen="4", rejected="2") for n in range(60)]
    data, old = tmp_path / "rows.jsonl", tmp_path / "old.txt"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    old.write_text("What is 2 + 2? It is 4. " * 60)
    options = dict(
        run=str(start),
        out=str(tmp_path / "run"),
        steps=1,
        old=str(old),
        device="cpu",
        settings=dict(precision="bf16", batch_tokens=256),
        log=lambda line: None,
    )
    seen = set()

    def note(layer, inputs, output):
        if isinstance(layer, torch.nn.Linear):
            seen.add(output.dtype)

    hook = torch.nn.modules.module.register_module_forward_hook(note)
    try:
        if method == "sft":
            replay = ReplayConfig(source=str(old))
            asked = SftOptions(data=str(data), replay=replay, **options)
        elif method == "dpo":
            asked = DpoOptions(pairs=str(data), **options)
        else:
            few = GrpoConfig(questions_per_step=2, group=2, longest=4, penalty="k3", beta=0.1)
            asked = GrpoOptions(task=str(data), grpo=few, **options)
        Tuner(asked).go()
    finally:
        hook.remove()
    assert seen == {torch.bfloat16}


@pytest.mark.full(instead="test_every_matmul_is_in_the_format_of_the_run")
def test_muon_multiplies_in_the_format_of_the_card(base, tmp_path, monkeypatch):
    "As in pretraining: bf16 where a card multiplies it; the CPU has fp32"
    seen, real = set(), optim.orthogonalize

    def noted(stack, steps, dtype):
        seen.add(dtype)
        return real(stack, steps, dtype)

    monkeypatch.setattr(optim, "orthogonalize", noted)
    for format in (torch.float32, torch.bfloat16):
        monkeypatch.setattr(learner, "muon_format", lambda device: format)
        words = ["--data", "sums:200", "--steps", 1, "--out", tmp_path / str(format)]
        done(sft_command, base, *words)
    assert seen == {torch.float32, torch.bfloat16}


@pytest.mark.parametrize(
    "lost", [pytest.param(["report.html"], marks=pytest.mark.full), ["loss.png"]]
)
def test_a_report_that_a_kill_prevented_is_written(base, talker, tmp_path, lost):
    "Killed after the last checkpoint and before the report: the same command names one that is"
    out = tmp_path / "run"
    shutil.copytree(talker, out)
    for name in lost:
        (out / name).unlink()
    said = done(sft_command, base, "--data", "sums:400", "--steps", 4, "--out", out)
    assert f"report: {out / 'report.html'}" in said
    assert (out / "report.html").is_file() and (out / "loss.png").is_file()


def test_a_run_among_the_checkpoints_of_another_is_refused(talker):
    command, usual = METHODS["sft"]
    out = talker / "checkpoints/x"
    words = [*usual, "--steps", 1, "--out", out]
    assert "lies among the checkpoints of" in refused(command, talker, *words)
    assert not out.exists()


@pytest.mark.parametrize(
    "config, name, number, said",
    [
        (
            partial(SftOptions, run="a", out="b", data="sums"),
            "epochs",
            1e308,
            "at most 10,000, got 1e",
        ),
        (DpoConfig, "pairs_per_step", 10**8, "from 1 to 65,536, got 100000000"),
        (GrpoConfig, "questions_per_step", 10**8, "from 1 to 65,536, got 100000000"),
        (GrpoConfig, "group", 10**8, "from 2 to 1,024, got 100000000"),
        (GrpoConfig, "longest", 10**8, "from 1 to 1,048,576, got 100000000"),
    ],
)
def test_a_step_that_would_never_end_is_refused(config, name, number, said):
    with pytest.raises(GpubError, match=f"{name} must be .*{said}"):
        config(**{name: number})


def test_replay_keeps_the_old_text(base, tmp_path):
    text = tmp_path / "old.txt"
    text.write_text("0123456789+" * 200)
    words = ["--data", "sums:400", "--steps", 4, "--replay", text, "--out", tmp_path / "run"]
    done(sft_command, base, *words)
    assert "old_loss" in load(tmp_path / "run").log[-1]
    assert "is left beside the old text" in refused(
        sft_command, base, *words[:-2], "--out", tmp_path / "r2", "--set", "batch_tokens=32"
    )
    assert "cannot read" in refused(
        sft_command, base, "--data", "sums", "--replay", tmp_path / "no"
    )


def old_shards(folder, tok, digits):
    "A small folder of shards, as `gpub prep` makes one"
    writer = ShardWriter(folder, tok)
    for part, split in ((digits, "train"), (digits[: len(digits) // 4], "val")):
        writer.add("digits", [np.asarray(tok.encode(part))], ["d"], [len(part)], split)
    writer.close()


@pytest.mark.full(
    instead="test_formats.py::test_a_text_that_was_moved_is_the_same_run_and_another_text_is_not"
)
@pytest.mark.parametrize("kind", ["text", pytest.param("shards", marks=pytest.mark.full)])
def test_a_volume_mounted_elsewhere_goes_on(base, tmp_path, kind):
    "Chats and old text moved in the middle: the same weights; another old text: another run"

    def volume(name, digits="0123456789+"):
        folder = tmp_path / name
        folder.mkdir()
        rows = [dict(question=f"{k}+{k}", answer=str(2 * k)) for k in range(100, 160)]
        (folder / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if kind == "text":
            (folder / "old").write_text(digits * 200)
        else:
            old_shards(folder / "old", sums_tokenizer(), digits * 200)
        return folder

    def tuned(out, folder, until=6):
        asked = SftOptions(
            run=str(base),
            out=str(tmp_path / out),
            steps=6,
            every=2,
            device="cpu",
            data=str(folder / "c.jsonl"),
            replay=ReplayConfig(source=str(folder / "old"), share=0.3),
        )
        tuner = Tuner(asked)
        with tuner.opened() as run:
            for s in run.steps():
                if s.n == until:
                    run.stop_requested.set()  # saves after the next step
        return tuner.out

    there = volume("mnt")
    whole = tuned("whole", there)
    with pytest.raises(Interrupted, match="stopped at step 3 of 6"):
        tuned("cut", there, until=2)
    elsewhere = there.rename(tmp_path / "volume")
    others = volume("others", "9876543210+")
    with pytest.raises(GpubError, match="holds another run: data.replay.(sha256|tokens)") as e:
        tuned("cut", others)
    assert "source" not in str(e.value)
    cut = tuned("cut", elsewhere)
    assert all(torch.equal(weights(cut)[name], t) for name, t in weights(whole).items())
    kept = json.loads((cut / "config.json").read_text())["data"]
    assert kept["source"] == str(elsewhere / "c.jsonl")
    assert kept["replay"]["source"] == str(elsewhere / "old")
    assert "DAMAGED" not in done(verify_command, cut)


BAD_DATA = {
    "no answer": ([dict(messages=[dict(role="user", content="1")])], "1 no answer"),
    "out of order": (
        [dict(messages=[dict(role=r, content="1") for r in ("user", "assistant", "assistant")])],
        "message 3 is by assistant, expected user",
    ),
    "too long": (
        [dict(question="1" * 40, answer="2")],
        "1 too long .too long: more than the model",
    ),
    "unknown characters": ([dict(question="why", answer="2")], "lacks 'h', 'w', 'y'"),
    "forged": ([dict(question="1\ue0012", answer="2")], "marks a turn"),
    "unknown layout": ([dict(text="1")], "expected messages"),
}


@pytest.mark.parametrize("kind", BAD_DATA)
def test_bad_conversations_are_refused_in_one_line(base, tmp_path, kind):
    records, said = BAD_DATA[kind]
    file = tmp_path / "bad.jsonl"
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = refused(sft_command, base, "--data", file, "--out", tmp_path / "run")
    assert re.search(said, found), found
    assert not (tmp_path / "run" / "checkpoints").exists()


def rule_file(folder, body):
    path = folder / "rule.py"
    path.write_text(f"def rule(question, answer, wanted):\n    {body}\n")
    return f"{path}:rule"


@pytest.mark.parametrize(
    "body, said",
    [
        ("return float('nan')", "is nan: it must be a number"),
        ("return 1 / 0", "failed with ZeroDivisionError"),
        ("return None", "failed with TypeError"),
    ],
)
def test_a_reward_that_is_none(talker, tmp_path, body, said):
    file = tmp_path / "task.jsonl"
    file.write_text("".join('{"question": "1+%d", "answer": "2"}\n' % n for n in range(9)))
    words = ["--task", file, "--reward", rule_file(tmp_path, body), "--longest", 4]
    assert said in refused(grpo_command, talker, *words, "--out", tmp_path / "run")


def test_your_own_reward(talker, tmp_path):
    "A rule of one's own is what is learned: answers that begin with 7"
    file = tmp_path / "task.jsonl"
    file.write_text("".join('{"question": "1+%d", "answer": "2"}\n' % n for n in range(40)))
    words = ["--task", file, "--reward", rule_file(tmp_path, "return float(answer[:1] == '7')")]
    # seed 0 has no luck in its first steps: a reward that never comes teaches nothing
    words += ["--longest", 4, "--steps", 12, "--lr", 0.01, "--questions", 8, "--seed", 1]
    done(grpo_command, talker, *words, "--out", tmp_path / "run")
    log = load(tmp_path / "run").log
    assert np.mean([r["reward"] for r in log[-3:]]) > np.mean([r["reward"] for r in log[:3]]) + 0.1


@pytest.mark.parametrize(
    "command, words, said",
    [
        (sft_command, ["--data", "sums:0"], "sums:N takes a whole number"),
        (sft_command, ["--data", "sums", "--set", "d_model=8"], "keeps the shape"),
        (sft_command, ["--data", "sums", "--lora", "0"], "lora must be a whole number of at least"),
        (sft_command, ["--data", "sums", "--epochs", "0"], "epochs must be a positive number"),
        (sft_command, ["--data", "sums", "--lr", "-1"], "lr must be 0 or more"),
        (dpo_command, ["--pairs", "sums", "--beta", "0"], "beta must be a number above 0"),
        (dpo_command, ["--pairs", "none.jsonl"], "cannot be read"),
        (grpo_command, ["--task", "none.jsonl"], "cannot be read|leaves no room"),
        (grpo_command, ["--task", "sums", "--reward", "a.py:f"], "there is no file a.py"),
        (grpo_command, ["--task", "sums", "--penalty", "k3", "--beta", "-1"], "beta must be"),
        (sft_command, ["--data", "talks:0"], "talks:N takes a whole number"),
    ],
)
def test_bad_requests_are_one_line(talker, tmp_path, command, words, said):
    found = refused(command, talker, *words, "--out", tmp_path / "run")
    assert re.search(said, found), found


def test_only_a_run_that_talks_can_be_talked_with(base, talker, tmp_path):
    assert "did not learn from conversations" in refused(chat_command, base, input="1+1\n")
    assert "is not a run folder" in refused(chat_command, tmp_path, input="1+1\n")
    said = typed(chat_command, talker, "--longest", 4, input="what\n1+1\n" + "1" * 40 + "\n2+2\n")
    assert said.exit_code == 0 and "lacks" in said.output and "ask shorter" in said.output
    same = [done(chat_command, talker, input=text) for text in ("1+1\n", "1+1\n/quit\n2+2\n")]
    assert same[0] == same[1]
    reset = done(chat_command, talker, input="1+1\n/reset\n1+1\n").split("\n")
    assert reset[0] == reset[1]
    config = json.loads((talker / "config.json").read_text())
    assert config["chat"]["template"] == template_for(sums_tokenizer())


def test_a_person_asks_sums_as_people_write_them(talker, base, monkeypatch):
    "Sent in the model's form and turned back where somebody types; /help is not sent to the model"
    asked = []

    def answer(self, text):
        asked.append(text)
        yield from ("64", "00") if text == "210+430" else ("6ld",)

    monkeypatch.setattr("gpub.chat.talk.Talk.ask", answer)
    typed_in = "12+34\nWhat is 12 + 34?\n/help\nHello\n"
    piped = done(chat_command, talker, input=typed_in)
    assert asked == ["12+34", "What is 12 + 34?", "Hello"] and piped.count("/reset forgets") == 1
    asked.clear()
    monkeypatch.setattr("gpub.cli.tune._is_typed", lambda: True)
    heard = done(chat_command, talker, input=typed_in)
    assert asked == ["210+430", "210+430", "Hello"]
    assert heard.count("sent as 210+430\n6400\nthat is 46\n") == 2 and heard.count("that is") == 2
    assert heard.count("add two numbers below 1,000") == 2 and "One question at a time" in heard


def test_a_pipe_from_the_shell(talker):
    "The whole command, as it is typed: answers on stdout, complaints on stderr, exit codes"
    words = ["-m", "gpub", "chat", talker, "--longest", 5]
    said = forked.run(words, input="1+1\nx\n", capture_output=True, text=True)
    assert said.returncode == 0 and len(said.stdout.split("\n")) == 2
    assert said.stderr.startswith("gpub: ") and "Traceback" not in said.stderr
    words[3] = talker / "none"
    said = forked.run(words, input="1+1\n", capture_output=True, text=True)
    assert said.returncode == 1 and said.stderr.count("\n") == 1


def test_questions_of_a_file(tmp_path):
    tok = with_marks(CharTokenizer("0123456789+ #\n"))[0]
    rows = [dict(question=f"{n}+{n}", answer=f"{2 * n}\n#### {2 * n}") for n in range(60)]
    file = tmp_path / "q.jsonl"
    file.write_text(
        "".join(json.dumps(row) + "\n" for row in [*rows, dict(question="1" * 90, answer="1")])
    )
    train, val, dropped = open_questions(file, tok, 40)
    assert dropped == 1 and len(train.asked) + len(val.asked) == 60 and val.asked
    number = train.asked.index("21+21") if "21+21" in train.asked else 0
    wanted = train.wanted[number].split("#### ")[1]
    end = encode_chat(tok, [Message("user", "1"), Message("assistant", "1")]).ids[-1]
    assert train.reward(number, np.append(tok.encode(f"so {wanted}"[3:]), end)) == 1
    assert train.reward(number, tok.encode("999")) == 0
    file.write_text('{"messages": [{"role": "user", "content": "1"}]}\n')
    with pytest.raises(GpubError, match="question 1 has no answer"):
        open_questions(file, tok, 40)


@pytest.mark.full(instead="test_record.py::test_a_checkpoint_says_what_decides_the_last_bits")
def test_a_resumed_run_has_the_threads_of_before(talker, tmp_path, monkeypatch):
    "Pinned where that is free, else said in one line; the bits are those of an undisturbed run"
    command, words = METHODS["sft"]
    words = [talker, *words, "--steps", 6, "--every", 2, "--device", "cpu", "--out"]
    threads, real = torch.get_num_threads(), OpenRun._write_row
    used = []

    def stopped_at_three(self, row):
        used.append(torch.get_num_threads())
        if row["step"] == 3:
            signal.raise_signal(signal.SIGTERM)
        real(self, row)

    def cut(folder):
        monkeypatch.setattr(OpenRun, "_write_row", stopped_at_three)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert isinstance(typed(command, *words, folder).exception, Interrupted)
        return folder

    for room in ("gpub.device", "gpub.train.resume"):
        monkeypatch.setattr(f"{room}.usable_cores", lambda: 2)
    try:
        pinned, forced = cut(tmp_path / "pinned"), cut(tmp_path / "forced")
        monkeypatch.setattr(OpenRun, "_write_row", real)
        done(command, *words, tmp_path / "whole")
        monkeypatch.setenv("OMP_NUM_THREADS", "2")
        said = done(command, *words, forced)
        line = "the last bits differ from those of an uninterrupted run: threads 1, now 2"
        assert said.count(line) == 1
        monkeypatch.delenv("OMP_NUM_THREADS")
        assert "last bits differ" not in done(command, *words, pinned)
        assert torch.get_num_threads() == 1 and set(used) == {1}
    finally:
        torch.set_num_threads(threads)
    whole = weights(tmp_path / "whole")
    assert all(torch.equal(t, whole[name]) for name, t in weights(pinned).items())
