"""A run behind OpenAI's protocol, asked by OpenAI's own client: answers, streams, refusals, and
sixteen clients of whom none can tell that the others are there."""

import asyncio
import http.client
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import forked
import pytest
import torch
from click.testing import CliRunner

from gpub.chat.template import CHAR_MARKS, Message, chat_facts, encode_chat
from gpub.cli.share import serve_command
from gpub.core import GpubError
from gpub.data.bpe import BPETokenizer
from gpub.data.char import CharTokenizer
from gpub.model.generate import generate_ids
from gpub.model.gpt import GPT, GPTConfig
from gpub.model.llama import Llama, LlamaConfig
from gpub.model.requests import GeneratedToken, GenerationRequest
from gpub.model.sampling import SamplingConfig
from gpub.record.checkpoint import save_checkpoint
from gpub.record.run import load
from gpub.share.hub import export_run
from gpub.share.server import (
    ApiError,
    BatchWorker,
    ChatBody,
    CompletionBody,
    ServerConfig,
    TextUntilStop,
    api_app,
    cut_history,
    generation_requests,
    open_served,
)

pytest.importorskip("uvicorn", reason="needs gpub[serve]")
TEXT = "It was the best of times, it was the worst of times: naïve, 10 €, \U0001f642."


def make_run(folder, tok, chat=False, context_length=128):
    "A run whose model is far from sure of anything"
    torch.manual_seed(0)
    shape = dict(d_model=32, n_layers=2, n_heads=2, n_kv_heads=1, d_ff=48)
    cfg = LlamaConfig(vocab_size=tok.vocab_size, context_length=context_length, **shape)
    model = Llama(cfg)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    tok.save(folder)
    save_checkpoint(folder, 3, model.state_dict(), {}, {})
    said = dict(
        format=3,
        architecture="llama",
        model=cfg.to_dict(),
        data=dict(tokenizer=tok.fingerprint),
        prompt="It",
    )
    if chat:
        said["chat"] = chat_facts(tok)
    (folder / "config.json").write_text(json.dumps(said))
    return folder


def needed_openai():
    "OpenAI's own client, imported by the process that runs these tests and by no other"
    return pytest.importorskip("openai", reason="needs openai: pip install -e '.[dev]'")


@pytest.fixture(scope="module")
def openai():
    return needed_openai()


class Server:
    "gpub serve in a process of its own"

    def __init__(self, run, *options):
        words = ["-m", "gpub", "serve", run, "--port", 0, "--device", "cpu"]
        self.process = forked.Python(
            [*words, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        line = self.process.stdout.readline()
        assert "answers at" in line, self.process.stderr.read()
        self.port = int(re.search(r":(\d+)/v1", line)[1])
        self.client = needed_openai().OpenAI(
            base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none", max_retries=0
        )

    def raw(self, method, path, body=None, **headers):
        "(status, JSON, headers) without a client in between"
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        headers = {"Content-Type": "application/json"} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        asked.request(method, path, body, headers)
        got = asked.getresponse()
        found = got.status, json.loads(got.read()), dict(got.getheaders())
        asked.close()
        return found

    def until(self, **counts):
        "Wait until the server says so"
        deadline = time.monotonic() + 60
        while self.raw("GET", "/health")[1] != dict(status="ok") | counts:
            assert time.monotonic() < deadline, self.raw("GET", "/health")
            time.sleep(0.02)

    def stop(self):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        return self.process.communicate(timeout=60)


@pytest.fixture(scope="module")
def talker(tmp_path_factory):
    tok = BPETokenizer.train([TEXT] * 3, 330)
    return make_run(tmp_path_factory.mktemp("served") / "talker", tok, chat=True)


@pytest.fixture(scope="module")
def server(talker):
    server = Server(talker)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def ask(server):
    "A completion of the talker"

    def ask(prompt="It was", **how):
        how = dict(model="talker", max_tokens=12, seed=5) | how
        return server.client.completions.create(prompt=prompt, **how)

    return ask


@pytest.fixture(scope="module")
def chat(server):
    "An answer of the talker"

    def chat(text="It was", **how):
        how = dict(model="talker", max_tokens=12, seed=5) | how
        messages = [dict(role="user", content=text)]
        return server.client.chat.completions.create(messages=messages, **how)

    return chat


def test_models(openai, server):
    (model,) = server.client.models.list().data
    assert model.id == "talker"
    with pytest.raises(openai.NotFoundError) as e:
        server.client.completions.create(model="gpt-4", prompt="It was")
    assert e.value.code == "model_not_found"


def test_a_completion_is_what_the_model_writes(talker, ask):
    opened = load(talker, device="cpu")
    ids = opened.tokenizer.encode("It was").tolist()
    for how in (dict(temperature=0), dict(temperature=1, top_p=0.8)):
        answer = ask(**how)
        written = generate_ids(opened.model, ids, 12, seed=5, **how)[len(ids) :]
        (choice,) = answer.choices
        assert choice.text == opened.tokenizer.decode(written) and choice.finish_reason == "length"
        assert answer.usage.completion_tokens == 12
        assert answer.usage.prompt_tokens == len(ids)
    by_ids = ask(ids).choices[0].text
    assert ask().choices[0].text == by_ids != ask(seed=6).choices[0].text
    assert ask().object == "text_completion" and ask().model == "talker"


def test_several_prompts_and_answers(ask):
    answer = ask(["It was", "the"], n=2)
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    alone = [ask("It was"), ask("It was", seed=6), ask("the", seed=7), ask("the", seed=8)]
    assert [c.text for c in answer.choices] == [a.choices[0].text for a in alone]


def test_a_stream_is_the_same_answer_in_pieces(ask):
    whole = ask(n=2)
    pieces = list(ask(n=2, stream=True, stream_options=dict(include_usage=True)))
    assert pieces[-1].usage == whole.usage and not pieces[-1].choices
    for index in (0, 1):
        mine = [c for p in pieces for c in p.choices if c.index == index]
        assert "".join(c.text for c in mine) == whole.choices[index].text
        assert mine[-1].finish_reason == whole.choices[index].finish_reason
        assert len(mine) > 3 and not any(c.finish_reason for c in mine[:-1])


def test_a_text_ends_before_a_stop(ask):
    text = ask(max_tokens=30).choices[0].text
    stop = text[9:12]
    cut = ask(max_tokens=30, stop=[stop, "never comes"])
    assert cut.choices[0].text == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop" and cut.usage.completion_tokens < 30
    pieces = [p.choices[0].text for p in ask(max_tokens=30, stop=stop, stream=True)]
    assert "".join(pieces) == cut.choices[0].text


@pytest.mark.parametrize("stop", ["a" * 500 + "b", "ab" * 250, "a" * 999])
def test_what_a_stop_holds_back_comes_out_in_the_end(stop):
    letters = CharTokenizer("ab")
    shown = TextUntilStop(letters, [stop])
    ids = letters.encode("a" * 600).tolist()
    pieces = [shown.add(GeneratedToken(i)) for i in ids[:-1]]
    last = shown.add(GeneratedToken(ids[-1], "length"))
    assert "".join(pieces) + last == "a" * 600 and shown.finish == "length"


def test_a_conversation(talker, chat):
    opened = load(talker, device="cpu")
    ids = encode_chat(opened.tokenizer, [Message("user", "It was")], True).ids.tolist()
    answer = chat(temperature=0)
    (choice,) = answer.choices
    assert answer.usage.prompt_tokens == len(ids) and choice.message.role == "assistant"
    written = generate_ids(opened.model, ids, 12, temperature=0)[len(ids) :]
    assert choice.message.content == opened.tokenizer.decode(written)
    pieces = list(chat(temperature=0, stream=True))
    assert pieces[0].choices[0].delta.role == "assistant"
    said = [p.choices[0].delta.content or "" for p in pieces]
    assert "".join(said) == choice.message.content and pieces[-1].choices[0].finish_reason
    assert pieces[0].object == "chat.completion.chunk"
    to_the_end = chat(max_tokens=None)
    assert to_the_end.usage.total_tokens <= opened.model.cfg.context_length


def test_sixteen_clients_and_none_can_tell(server, ask, chat):
    "Greedy and with dice: every answer is the one that it would be alone"

    def one(k):
        how = dict(max_tokens=5 + 2 * k, temperature=k % 3, seed=k)
        if k % 4 == 0:
            return chat("It was " * (1 + k // 4), **how).choices
        return ask(TEXT[: 3 + 2 * k], **how).choices

    alone = [one(k) for k in range(16)]
    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):
            assert list(pool.map(one, range(16))) == alone
    server.until(writing=0, waiting=0)


@pytest.mark.parametrize(
    "how, error, said",
    [
        (dict(model="gpt-4"), "NotFoundError", "does not exist"),
        (dict(max_tokens=500), "BadRequestError", "maximum context length is 128 tokens"),
        (dict(prompt="It was " * 200), "BadRequestError", "maximum context length"),
        (dict(prompt=""), "BadRequestError", "prompt is empty"),
        (dict(prompt=[[9999]]), "BadRequestError", "the id 9999, and the model knows 0 to"),
        (dict(temperature=-1), "BadRequestError", "temperature: Input should be greater"),
        (dict(top_p=2), "BadRequestError", "top_p: Input should be less"),
        (dict(n=0), "BadRequestError", "n: Input should be greater"),
        (dict(n=200), "BadRequestError", "n: Input should be less"),
        (dict(max_tokens=0), "BadRequestError", "max_tokens: Input should be greater"),
        (dict(stop=["a"] * 5), "BadRequestError", "stop.*List should have at most 4"),
        (
            dict(stop="x" * 3_000_000),
            "BadRequestError",
            "stop.*String should have at most 1000 characters, got 'xxx",
        ),
        (dict(prompt="x" * 3_900_000), "BadRequestError", "prompt.*at most 1000000 characters"),
        (dict(prompt=["a", [1]]), "BadRequestError", "prompt"),
        (dict(prompt=[]), "BadRequestError", "prompt"),
        (dict(logprobs=0), "BadRequestError", "logprobs: is not served here"),
        (dict(echo=True), "BadRequestError", "echo: is not served here"),
        (dict(presence_penalty=1), "BadRequestError", "presence_penalty: is not served here"),
        (dict(extra_body=dict(mirostat=2)), "BadRequestError", "mirostat: is not served here"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_makes_no_sense_is_refused(openai, ask, how, error, said):
    how = dict(how)
    with pytest.raises(getattr(openai, error), match=said) as e:
        ask(how.pop("prompt", "It was"), **how)
    assert e.value.type == "invalid_request_error" and "\n" not in e.value.body["message"]


@pytest.mark.parametrize(
    "how, said",
    [
        (dict(messages=[]), "messages"),
        (dict(messages=[dict(role="assistant", content="a")]), "expected user"),
        (dict(messages=[dict(role="user", content="")]), "content must be"),
        (dict(messages=[dict(role="user", content="a" * 99_999)]), "maximum context length"),
        (dict(messages=[dict(role="robot", content="a")]), "role: Input should be 'system'"),
        (dict(logprobs=True), "logprobs: Input should be False"),
        (dict(tools=[dict(type="function", function=dict(name="f"))]), "tools: is not served"),
        (dict(max_completion_tokens=500), "maximum context length"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_conversation_that_makes_no_sense_is_refused(openai, server, how, said):
    how = dict(messages=[dict(role="user", content="a")]) | how
    with pytest.raises(openai.BadRequestError, match=said):
        server.client.chat.completions.create(model="talker", **how)


def test_what_no_client_would_send(server):
    good = json.dumps(dict(model="talker", prompt="It", max_tokens=1, user="me", store=True))
    assert server.raw("POST", "/v1/completions", good)[0] == 200
    for body, status in (("{", 400), ("[]", 400), ("{}", 400), ("[" * 99_999, 400)):
        assert server.raw("POST", "/v1/completions", body)[0] == status
    many = json.dumps(dict(model="talker", prompt=[[1]] * 9_999))
    status, body, _ = server.raw("POST", "/v1/completions", many)
    assert status == 400 and "at most 128" in body["error"]["message"]
    assert server.raw("POST", "/v1/completions", good, Content_Type="text/plain")[0] == 400
    for method, path, status in (("POST", "/v1/edits", 404), ("GET", "/v1/completions", 405)):
        assert server.raw(method, path, good)[0] == status


def test_a_client_that_leaves_in_the_middle_of_its_request_is_no_error(talker):
    "Nothing is said of it, and the next one is answered; SIGTERM ends the server all the same"
    server = Server(talker)
    head = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n"
    with socket.create_connection(("127.0.0.1", server.port)) as half:
        half.sendall(f"{head}Content-Type: application/json\r\n\r\n{{".encode())
        server.until(writing=0, waiting=0)
    assert server.raw("GET", "/v1/models")[0] == 200
    server.process.send_signal(signal.SIGTERM)
    out, err = server.process.communicate(timeout=60)
    assert err.strip() in ("", "gpub: stopped")


@pytest.mark.parametrize(
    "how",
    [
        dict(top_k=1),
        dict(min_p=1.0),
        dict(top_k=3, min_p=0.1, repetition_penalty=1.5),
        dict(top_k=-1, min_p=0.0, repetition_penalty=1.0),
    ],
)
def test_what_other_servers_take_beside_the_protocol(talker, ask, how):
    "As the sampler computes it"
    served = open_served(talker, device="cpu")
    body = CompletionBody(model=served.name, prompt="It was", max_tokens=20, seed=3, **how)
    (request,) = generation_requests(served, body)
    if how.get("top_k") == 1 or how.get("min_p") == 1.0:
        greedy = ask("It was", max_tokens=20, temperature=0).choices[0].text
        assert ask("It was", max_tokens=20, seed=3, extra_body=how).choices[0].text == greedy
    sampling = request.sampling
    assert sampling.top_k == (how.get("top_k") if how.get("top_k", 0) > 0 else None)
    assert sampling.min_p == how.get("min_p", 0.0)
    assert sampling.repetition_penalty == how.get("repetition_penalty", 1.0)


def test_a_long_history_is_cut_as_told(talker):
    served = open_served(talker, device="cpu")
    context = served.model.cfg.context_length
    turns = [dict(role="system", content="Be short.")]
    for _ in range(40):
        turns.append(dict(role="user", content="What is it?"))
        turns.append(dict(role="assistant", content="It was the best."))
    turns.append(dict(role="user", content="And now?"))
    body = ChatBody(model=served.name, messages=turns, max_tokens=8)
    cut, dropped = cut_history(served, body)
    length = len(cut.encode(served)[0])
    assert dropped > 0 and dropped % 2 == 0 and len(cut.messages) == len(turns) - dropped
    assert length + 8 <= context
    assert cut.messages[0] == body.messages[0] and cut.messages[-1] == body.messages[-1]
    kept = [*body.messages[:1], *body.messages[1 + dropped - 2 :]]
    more = body.model_copy(update=dict(messages=kept))
    assert len(more.encode(served)[0]) + 8 > context, "no more was left out than had to be"
    short = ChatBody(model=served.name, messages=turns[-1:], max_tokens=8)
    assert cut_history(served, short) == (short, 0)


def test_options_of_the_server_reach_the_client(talker):
    "A history is cut and the client told; pages of the named origin may ask, and no others"
    client = pytest.importorskip("starlette.testclient", reason="needs httpx")
    served = open_served(talker, device="cpu")
    cfg = ServerConfig(cors="https://me.example", truncation="auto")
    app = api_app(served, BatchWorker(served.model), cfg)
    turns = [dict(role="user", content="What is it?"), dict(role="assistant", content="It was.")]
    messages = [*turns * 40, dict(role="user", content="And now?")]
    asked = dict(model=served.name, messages=messages, max_tokens=4)
    path = "/v1/chat/completions"
    with client.TestClient(app, base_url="http://127.0.0.1") as web:
        reply = web.post(path, json=asked)
        assert reply.status_code == 200 and int(reply.headers["x-dropped-messages"]) > 0
        streamed = web.post(path, json=asked | dict(stream=True))
        assert streamed.headers["x-dropped-messages"] == reply.headers["x-dropped-messages"]
        unnamed = web.post(path, json=dict(messages=messages, max_tokens=4))
        assert unnamed.json()["model"] == served.name, "there is one: it need not be named"
        nowhere = web.get("/generate")
        assert nowhere.status_code == 404 and "/v1/models" in nowhere.json()["error"]["message"]
        refused = web.post(path, json=asked | dict(truncation="disabled"))
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        for origin, allowed in (("https://me.example", True), ("https://evil.example", False)):
            headers = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            preflight = web.options(path, headers=headers)
            assert (preflight.headers.get("access-control-allow-origin") == origin) == allowed


def test_a_broken_text_ends_alone(capsys):
    "Beside it two clients get what they get alone, and the next one is served"
    model = GPT(GPTConfig(vocab_size=13, context_length=24, d_model=32, n_layers=2, n_heads=4))
    with torch.no_grad():
        model.pos.weight[12:] = torch.nan  # whoever comes so far is broken
    model.eval()
    worker = BatchWorker(model, size=4)
    first, long, last = [[2, 3], [1] * 10, [4, 5, 6]]

    def requests(*prompts):
        return [GenerationRequest([prompt], SamplingConfig(n=8)) for prompt in prompts]

    async def written(text):
        tokens = []
        while not (tokens and (isinstance(tokens[-1], ApiError) or tokens[-1].finish)):
            tokens.append(await asyncio.wait_for(text.tokens.get(), 60))
        return tokens

    async def asked():
        worker.start()
        together = [await written(text) for text in worker.submit(requests(first, long, last))]
        (one,) = worker.submit(requests(first))
        alone = [await written(one)]
        (other,) = worker.submit(requests(last))
        alone.append(await written(other))
        worker.close()
        return together, alone

    (sound, broken, sound_too), alone = asyncio.run(asked())
    assert [sound, sound_too] == alone and len(sound) == len(sound_too) == 8
    assert len(broken) == 4 and broken[-1].status == 500
    assert "the model failed: the scores for token 4 are NaN" in str(broken[-1])
    assert "scores for token 4" in capsys.readouterr().err


def test_a_key_is_asked_for_where_there_is_one(openai, talker):
    server = Server(talker, "--key", "open sesame")
    with pytest.raises(openai.AuthenticationError, match="API key") as e:
        server.client.models.list()
    assert e.value.code == "invalid_api_key"
    knows = server.client.with_options(api_key="open sesame")
    assert knows.models.list().data[0].id == "talker"
    server.stop()


def test_a_page_of_a_stranger_cannot_ask(server):
    "A name that somebody else gave to 127.0.0.1 (DNS rebinding) is refused, everywhere"
    for host, status in (("127.0.0.1", 200), ("localhost", 200), ("evil.test", 400)):
        for path in ("/v1/models", "/health"):
            asked = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            asked.request("GET", path, headers=dict(Host=f"{host}:{server.port}"))
            answer = asked.getresponse()
            assert answer.status == status
            assert answer.getheader("access-control-allow-origin") is None
            asked.close()


@pytest.fixture
def narrow(tmp_path):
    "One text at a time, at most eight clients; a text may go on for minutes"
    tok = CharTokenizer("It was\n")
    server = Server(
        make_run(tmp_path / "endless", tok, False, 40_000), "--batch", 1, "--clients", 8
    )
    yield server
    server.stop()


def test_a_full_house_a_client_that_leaves_and_the_end(openai, narrow):
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        messages = [dict(role="user", content="a")]
        narrow.client.chat.completions.create(model="endless", messages=messages)
    long = dict(model="endless", prompt="It", max_tokens=39_000)
    first = narrow.client.completions.create(**long, stream=True)
    next(iter(first))
    pool = ThreadPoolExecutor(2)
    waits = pool.submit(narrow.client.completions.create, **long, timeout=300)
    narrow.until(writing=1, waiting=1)
    first.close()  # whoever hangs up leaves the batch, and the next one has its place
    narrow.until(writing=1, waiting=0)
    third = narrow.client.completions.create(**long | dict(max_tokens=38_000), stream=True)
    narrow.until(writing=1, waiting=1)
    third.close()  # one that only waits is let go as well
    narrow.until(writing=1, waiting=0)
    others = [socket.create_connection(("127.0.0.1", narrow.port)) for _ in range(8)]
    with pytest.raises(openai.InternalServerError) as e:
        narrow.client.models.list()
    assert e.value.status_code == 503
    for other in others:
        other.close()
    out, err = narrow.stop()
    assert narrow.process.returncode == 130 and err.splitlines()[-1] == "gpub: stopped"
    with pytest.raises(openai.APIError, match="stopping"):
        waits.result()


def test_a_hugging_face_folder_is_served(talker, tmp_path, ask, chat):
    export_run(talker, tmp_path / "talker", log=lambda line: None)
    server = Server(tmp_path / "talker", "--batch", 2)
    how = dict(model="talker", max_tokens=12, seed=5)
    messages = [dict(role="user", content="It was")]
    answer = server.client.chat.completions.create(messages=messages, **how)
    assert answer.choices[0].message.content == chat().choices[0].message.content
    answer = server.client.completions.create(prompt="It was", **how)
    assert answer.choices[0].text == ask().choices[0].text
    server.stop()


def test_the_template_travels_in_every_export(talker, tmp_path):
    "transformers and a reader of GGUF write a conversation with our ids"
    transformers = pytest.importorskip("transformers")
    gguf = pytest.importorskip("gguf")
    jinja2 = pytest.importorskip("jinja2")
    export_run(talker, tmp_path / "hf", gguf="f16", log=lambda line: None)
    tok = load(talker, device="cpu").tokenizer
    said = [("system", "Be brief."), ("user", "It was"), ("assistant", "the best"), ("user", "?")]
    ours = encode_chat(tok, [Message(*one) for one in said], True).ids.tolist()
    messages = [dict(role=role, content=content) for role, content in said]
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    how = dict(add_generation_prompt=True, tokenize=True, return_dict=False)
    assert theirs.apply_chat_template(messages, **how) == ours
    fields = gguf.GGUFReader(tmp_path / "hf" / "model.gguf").fields
    template = fields["tokenizer.chat_template"].contents()
    text = jinja2.Template(template).render(messages=messages, add_generation_prompt=True)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours
    assert fields["tokenizer.ggml.eos_token_id"].contents() == tok.end
    modelfile = (tmp_path / "hf/Modelfile").read_text()
    text = jinja2.Template(as_jinja(modelfile)).render(messages=messages)
    assert theirs(text, add_special_tokens=False)["input_ids"] == ours
    assert 'PARAMETER stop "<|endoftext|>"' in modelfile and "FROM ./model.gguf\n" in modelfile


def as_jinja(modelfile):
    "The few words of Go's templates that a Modelfile of ours has, in Jinja"
    template = re.search(r'TEMPLATE """(.*)"""', modelfile, re.S)[1]
    blocks = iter(["{% endif %}", "{% endfor %}"])
    words = {
        "range .Messages": "{% for m in messages %}",
        'if eq .Role "assistant"': "{% if m.role == 'assistant' %}",
        "else": "{% else %}",
        ".Role": "{{ m.role }}",
        ".Content": "{{ m.content }}",
    }
    return re.sub(r"{{ (.*?) }}", lambda go: words.get(go[1]) or next(blocks), template)


def test_bad_words_are_one_line(talker, tmp_path):
    for words, said in (
        ([str(tmp_path)], "is not a run folder"),
        ([str(talker), "--step", "9"], "9"),
        ([str(talker), "--host", "no.such.host.test"], "cannot listen"),
    ):
        e = CliRunner().invoke(serve_command, words).exception
        assert isinstance(e, GpubError) and said in str(e) and "\n" not in str(e)
    assert CliRunner().invoke(serve_command, [str(talker), "--batch", "0"]).exit_code == 2


def test_without_fastapi_it_is_one_line(talker, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    e = CliRunner().invoke(serve_command, [str(talker)]).exception
    assert isinstance(e, GpubError) and "pip install 'gpub[serve]'" in str(e)


@pytest.mark.slow  # on a very busy machine the terminal has lost the line that was typed
def test_ctrl_c_cuts_an_answer_short_and_the_conversation_goes_on(tmp_path):
    "gpub chat in a terminal: words as they come, then the next question"
    pty = pytest.importorskip("pty", reason="a terminal as POSIX has it")
    tok = CharTokenizer("It was\n" + "".join(CHAR_MARKS.values()))
    run = make_run(tmp_path / "chatty", tok, chat=True, context_length=40_000)
    ours, theirs = pty.openpty()
    words = ["-m", "gpub", "chat", run, "--longest", 30000]
    words += ["--temperature", 0, "--device", "cpu"]
    process = forked.Python(words, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    heard = ""

    def until(sign):
        nonlocal heard
        heard = ""
        while sign not in heard:
            ready, _, _ = select.select([ours], [], [], 120)
            assert ready, f"nothing more after {heard!r}, {sign!r} was expected"
            heard += os.read(ours, 1000).decode()

    until("> ")
    os.write(ours, b"It was\n")
    until("It was\r\n")
    for _ in range(3):  # it comes in pieces, and would go on for long
        assert len(os.read(ours, 1000)) < 30_000
    process.send_signal(signal.SIGINT)
    until("> ")
    os.write(ours, b"/reset\n")
    until("> ")
    os.write(ours, b"/quit\n")
    assert process.wait(timeout=60) == 0
    os.close(ours)
