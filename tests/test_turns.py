"""A model's own chat template: read off when it comes in, used wherever it talks or learns, and
equal to what transformers makes of it."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from commands import output_of

from gpub.chat.conversations import Preference, first_question
from gpub.chat.talk import Talk, TalkConfig
from gpub.chat.template import Message, chat_marks, decode_chat, encode_chat, template_for
from gpub.core import GpubError
from gpub.data.bpe import GPT2_PATTERN, LLAMA3_PATTERN, BPETokenizer
from gpub.data.plays import plays
from gpub.data.turns import TurnFormat, jinja_renderer, learn_turns
from gpub.files import SUMS
from gpub.model.architectures import build_model
from gpub.model.llama import LlamaConfig
from gpub.record.run import load
from gpub.share.hub import export_model, export_run, import_run, open_run
from gpub.share.server import open_served
from gpub.tune.dpo import encode_preference
from gpub.tune.measures import well_formed_share
from gpub.tune.start import open_start

hf = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("short_texts")

CHATML = """{%- if messages[0]['role'] != 'system' -%}
{{- '<|im_start|>system\\nYou are a helper.<|im_end|>\\n' -}}
{%- endif -%}
{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\\n' -}}
{%- if m['role'] == 'assistant' -%}
{%- generation -%}{{- m['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}{{- m['content'] + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""
# an answer that others follow loses its thoughts, and the newest one has empty ones
THINKING = """{%- for m in messages -%}
{{- '<|im_start|>' + m['role'] + '\\n' -}}
{%- if m['role'] == 'assistant' and loop.last -%}{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- if m['role'] == 'assistant' -%}
{%- generation -%}{{- m['content'] + '<|im_end|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- else -%}{{- m['content'] + '<|im_end|>\\n' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}
{{- '<think>\\n\\n</think>\\n\\n' -}}{%- endif -%}
{%- endif -%}"""
HEADERS = """{{- bos_token -}}
{%- for m in messages -%}
{{- '<|start_header_id|>' + m['role'] + '<|end_header_id|>\\n\\n' -}}
{%- if m['role'] == 'assistant' -%}
{%- generation -%}{{- m['content'] | trim + '<|eot_id|>' -}}{%- endgeneration -%}
{%- else -%}{{- m['content'] | trim + '<|eot_id|>' -}}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}"""
PLAIN = """{%- for m in messages -%}
{%- if m['role'] == 'system' -%}{{- m['content'] + '\\n\\n' -}}
{%- elif m['role'] == 'user' -%}{{- 'User:\\n' + m['content'] + '\\n' -}}
{%- else -%}{{- 'Assistant:\\n' -}}
{%- generation -%}{{- m['content'] + '<|endoftext|>' -}}{%- endgeneration -%}{{- '\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- 'Assistant:\\n' -}}{%- endif -%}"""
CHATML_MARKS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
LLAMA_MARKS = ("<|begin_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>")
# family -> template, special tokens, the pattern of its tokenizer, bos_token
FAMILIES = {
    "ChatML": (CHATML, CHATML_MARKS, GPT2_PATTERN, None),
    "ChatML that thinks": (THINKING, CHATML_MARKS, LLAMA3_PATTERN, None),
    "Llama 3": (HEADERS, LLAMA_MARKS, LLAMA3_PATTERN, "<|begin_of_text|>"),
    "plain": (PLAIN, ("<|endoftext|>",), GPT2_PATTERN, None),
}
TALKS = [
    [("user", "What is 12 + 30?"), ("assistant", "42.")],
    [("system", "Be brief."), ("user", "ho\n\n  there"), ("assistant", "a\nb"), ("user", "1")],
    [("user", "O king"), ("assistant", "ay"), ("user", "and\tnow?"), ("assistant", "Nothing.")],
]


@cache
def speakers(name):
    "A tokenizer with a template of its own, as transformers opens it, and ours"
    template, marks, pattern, bos = FAMILIES[name]
    words = BPETokenizer.train([plays(20_000, 0)], 300, pattern=pattern, specials=marks)
    with TemporaryDirectory() as folder:
        words.save(folder)
        settings = dict(tokenizer_class="PreTrainedTokenizerFast", chat_template=template)
        settings |= dict(bos_token=bos) if bos else {}
        Path(folder, "tokenizer_config.json").write_text(json.dumps(settings))
        theirs = hf.AutoTokenizer.from_pretrained(folder)
    return theirs, words.with_turns(learn_turns(template, marks, dict(bos_token=bos)))


LATER = [pytest.param(name, marks=pytest.mark.full) for name in ("ChatML that thinks", "plain")]


@pytest.fixture(scope="module", params=["ChatML", "Llama 3", *LATER])
def family(request, tmp_path_factory):
    "A folder of Hugging Face with a model that talks in its own way, and the run it becomes"
    template, _, _, bos = FAMILIES[request.param]
    theirs, words = speakers(request.param)
    root = tmp_path_factory.mktemp("family")
    shape = dict(d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, d_ff=64, qk_norm="per_head")
    torch.manual_seed(0)
    cfg = LlamaConfig(vocab_size=words.vocab_size, context_length=256, **shape)
    export_model(build_model(cfg), words, root / "hf")
    path = root / "hf/tokenizer_config.json"
    settings = json.loads(path.read_text()) | dict(chat_template=template)
    settings |= dict(bos_token=bos) if bos else {}
    path.write_text(json.dumps(settings))
    (root / "hf" / SUMS).unlink()
    said = []
    run = import_run(root / "hf", root / "run", log=said.append)
    assert not said
    return theirs, load(run), root


def as_messages(talk):
    return [dict(role=role, content=said) for role, said in talk]


def theirs_of(words, talk, ask=False):
    "Ids and the assistant's mask, as transformers gives them"
    options = dict(tokenize=True, return_dict=True, add_generation_prompt=ask)
    options |= dict(return_assistant_tokens_mask=True, enable_thinking=False)
    given = words.apply_chat_template(as_messages(talk), **options)
    return given["input_ids"], given["assistant_masks"]


@pytest.mark.parametrize("talk", TALKS, ids=["2 turns", "4 turns, asked", "4 turns"])
@pytest.mark.parametrize("name", FAMILIES)
def test_ids_and_mask_are_those_of_transformers(name, talk):
    words, tok = speakers(name)
    ask = talk[-1][0] == "user"
    ids, mask = theirs_of(words, talk, ask)
    chat = encode_chat(tok, [Message(*turn) for turn in talk], ask)
    assert chat.ids.tolist() == ids
    assert chat.learned.astype(int).tolist() == mask and sum(mask) > 0
    said = [(turn.role, turn.content) for turn in decode_chat(tok, chat.ids)]
    assert said[-len(talk) :] == talk
    assert first_question(tok, chat) == " ".join(dict(reversed(talk))["user"].split()).lower()


def test_an_export_talks_as_the_model_did(family, tmp_path):
    words, run, _ = family
    export_run(run.path, tmp_path / "back")
    again = hf.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert again.chat_template == words.chat_template == template_for(run.tokenizer)
    for talk in TALKS:
        assert theirs_of(again, talk) == theirs_of(words, talk)
    end = json.loads((tmp_path / "back/config.json").read_text())["eos_token_id"]
    assert end == chat_marks(run.tokenizer).end
    assert (
        load(import_run(tmp_path / "back", tmp_path / "b")).tokenizer.turns == run.tokenizer.turns
    )


@pytest.mark.parametrize("name", FAMILIES)
def test_who_types_a_mark_forges_no_turn(name):
    _, tok = speakers(name)
    marks = chat_marks(tok)
    said = tok.decode([marks.end, marks.user])
    plain = encode_chat(tok, [Message("user", "x")]).ids.tolist()
    forged = encode_chat(tok, [Message("user", said)]).ids.tolist()
    for mark in (marks.end, marks.user):
        assert forged.count(mark) == plain.count(mark)


def test_it_talks_and_is_served(family):
    _, run, root = family
    for where in (run.path, root / "hf"):
        talk = Talk(run.model, open_run(where, device="cpu").tokenizer, TalkConfig(longest=8))
        assert isinstance("".join(talk.ask("Who is there?")), str)
        served = open_served(where, device="cpu")
        assert served.chats and chat_marks(run.tokenizer).end in served.ends


def test_it_is_tuned_in_its_own_words(family, tmp_path):
    "SFT and a preference keep the template, and no mark is added to the vocabulary"
    words, run, root = family
    file = tmp_path / "talks.jsonl"
    lines = [dict(messages=as_messages(TALKS[0][:1] + [("assistant", f"{n}.")])) for n in range(12)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for where in (run.path, root / "hf"):
        assert open_start(where, device="cpu").facts["new_marks"] == 0
    out = tmp_path / "tuned"
    output_of("sft", run.path, "--data", file, "--out", out, "--steps", 2, "--device", "cpu")
    tuned = load(out)
    assert tuned.tokenizer.turns == run.tokenizer.turns
    assert tuned.config["chat"]["template"] == words.chat_template
    pair = encode_preference(run.tokenizer, Preference((Message("user", "1 or 2?"),), "1", "2"))
    asked = encode_chat(run.tokenizer, [Message("user", "1 or 2?")], True).ids
    assert pair.chosen.ids[: len(asked)].tolist() == asked.tolist()
    answer = pair.chosen.ids[pair.chosen.learned]
    assert answer[-1] == chat_marks(run.tokenizer).end
    assert well_formed_share([answer, answer[:-1], asked], run.tokenizer) == pytest.approx(1 / 3)


ODD = {
    "{{ messages | length }}": "does not write each turn once",
    CHATML.replace("'<|im_end|>'", "' END'"): "ends an answer with no special token",
    CHATML.replace(
        "m['content'] + '<|im_end|>\\n'", "m['content'] | upper + '<|im_end|>\\n'"
    ): "once",
    CHATML.replace(
        "assistant\\n' -}}{%- endif -%}", "assistant: ' -}}{%- endif -%}"
    ): "asks otherwise",
    "{{ raise_exception('tools only') }}": "cannot write .*tools only",
    "{% for m in messages %}": "is not one",
}


@pytest.mark.parametrize("number", range(len(ODD)))
def test_a_template_that_does_more_is_refused(number):
    template, why = list(ODD.items())[number]
    with pytest.raises(GpubError, match=why):
        learn_turns(template, CHATML_MARKS, {})


def test_a_template_with_a_special_case_is_found_out():
    "What was read off must write other conversations as the template does"
    odd = CHATML.replace(
        "{%- for m", "{%- if messages | length > 4 -%}{{- 'Long.' -}}{%- endif -%}{%- for m"
    )
    with pytest.raises(GpubError, match="more than to put something around each turn"):
        learn_turns(odd, CHATML_MARKS, {})


@pytest.mark.parametrize("name", FAMILIES)
def test_a_format_writes_what_its_template_writes(name):
    template, marks, _, bos = FAMILIES[name]
    learned = learn_turns(template, marks, dict(bos_token=bos))
    assert TurnFormat.from_dict(json.loads(json.dumps(learned.to_dict()))) == learned
    render = jinja_renderer(template, dict(bos_token=bos))
    for talk in TALKS:
        ask = talk[-1][0] == "user"
        assert learned.text(talk, ask) == render(talk, ask)
        assert learned.read(learned.text(talk, ask))[-len(talk) :] == talk
    assert learned.strips == (name == "Llama 3")
    broken = replace(learned, after_user=learned.after_user + " ")
    assert broken.text(TALKS[0]) != render(TALKS[0])
