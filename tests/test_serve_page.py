"""The pages of `gpub serve`, in a real browser: one looks into the model, as `gpub demo` does, the
other asks the server that sent it."""

import json

import pytest
import torch
from browser import Browser
from test_api import TEXT, Server, make_run

from gpub.chat.sums import sums_tokenizer
from gpub.data.bpe import BPETokenizer
from gpub.share import demo
from gpub.share import server as server_room
from gpub.share.demo import write_page

pytest.importorskip("uvicorn", reason="needs gpub[serve]")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser"), width=390) as b:
        yield b


@pytest.fixture(scope="module")
def tok():
    return BPETokenizer.train([TEXT] * 3, 330)


@pytest.fixture
def serve():
    "Start servers, and stop them all"
    servers = []

    def start(run, *options):
        servers.append(Server(run, *options))
        return servers[-1]

    yield start
    for server in servers:
        server.stop()


def open_page(browser, server, path=""):
    browser.open("about:blank")
    browser.open(f"http://127.0.0.1:{server.port}/{path}")
    browser.wait("typeof ask === 'function'")
    browser.run("$('temperature').value = 0")
    return browser


def press(browser, text):
    "Type a text, press the button, and wait for the end of the answer"
    browser.run(f"$('question').value = {text!r}; $('go').click()")
    browser.wait("writing === null")


def bubbles(browser):
    return browser.run("[...document.querySelectorAll('#talk p span')].map(s => s.textContent)")


def test_a_conversation(browser, serve, tok, tmp_path):
    server = serve(make_run(tmp_path / "talker", tok, chat=True))
    page = open_page(browser, server)
    assert page.run("$('address').textContent") == f"http://127.0.0.1:{server.port}/v1"
    first = [dict(role="user", content="It was")]
    at_most = dict(model="talker", temperature=0, max_tokens=20)
    answer = server.client.chat.completions.create(messages=first, **at_most)
    wanted = answer.choices[0].message.content
    page.run("$('tokens-at-most').value = 20")
    press(page, "It was")
    assert wanted and bubbles(page) == ["It was", wanted]
    assert page.run("turns.length") == 2

    more = [*first, dict(role="assistant", content=wanted), dict(role="user", content="best")]
    answer = server.client.chat.completions.create(
        messages=more, extra_body=dict(truncation="auto"), **at_most
    )
    press(page, "best")
    assert bubbles(page)[2:] == ["best", answer.choices[0].message.content]
    page.run("$('forget').click()")
    assert bubbles(page) == [] and page.run("turns.length") == 0
    press(page, "")
    assert "type at least one character" in page.run("$('status').textContent")
    assert page.run("document.documentElement.scrollWidth <= innerWidth")
    errors = [e for e in page.seen("Log.entryAdded") if e["entry"]["level"] == "error"]
    assert errors == []


def make_writer(folder, tok):
    "A run of which `gpub demo` makes a page"
    run = make_run(folder, tok)
    config = json.loads((run / "config.json").read_text())
    (run / "config.json").write_text(json.dumps(config | dict(unit="nats/token")))
    return run


def test_the_root_looks_into_the_model(browser, serve, tok, tmp_path):
    "The page of `gpub demo`: layers, heads, chances; it asks for nothing, and leads to the other"
    run = make_writer(tmp_path / "writer", tok)
    server = serve(run)
    browser.events.clear()
    browser.open(f"http://127.0.0.1:{server.port}/")
    browser.wait("typeof guessesInside === 'function' && ids.length > 1 && !writing")
    kept = write_page(run, tmp_path / "page.html").read_text()
    served = browser.run("fetch('').then(r => r.text(), () => 'refused')")
    assert served == "refused"  # the page may ask for nothing, not even for itself
    facts = json.loads(kept.split('id="model">')[1].split("</script>")[0])
    assert browser.run("MODEL") == facts | dict(talk="talk")
    assert browser.run("$('weights').textContent") == kept.split('id="weights">')[1].split("<")[0]
    assert browser.run("$('layers').rows.length") == 1 + 2 * facts["cfg"]["n_layers"]
    before = browser.run("$('without').textContent")
    browser.run("$('heads').querySelector('button').click()")
    assert browser.run("$('without').textContent") != before
    browser.run("$('temperature').value = 0; $('n').value = 8; $('go').click()")
    browser.wait("ids.length > 1 && !writing")
    assert len(browser.run("[...$('list').querySelectorAll('b')].length && odds.at(-1)")) > 1
    asked = {e["request"]["url"] for e in browser.seen("Network.requestWillBeSent")}
    assert {url.split("#")[0] for url in asked if not url.startswith("data:")} == {
        f"http://127.0.0.1:{server.port}/"
    }
    browser.follow("document.querySelector('a[href=talk]').click()")
    browser.wait("typeof ask === 'function'")
    press(browser, "It was")
    assert bubbles(browser)[0].startswith("It was")


@pytest.mark.parametrize("why", ("a key", "too large"))
def test_who_gets_no_weights_talks(tok, tmp_path, monkeypatch, why):
    served = server_room.open_served(make_writer(tmp_path / "writer", tok), device="cpu")
    assert 'id="weights"' in server_room.root_page(served, wants_key=False)
    if why == "too large":
        monkeypatch.setattr(demo, "_page_mb", lambda *sizes: 16.1)
    page = server_room.root_page(served, wants_key=why == "a key")
    assert 'id="weights"' not in page and page == server_room.talk_page(served, why == "a key")


@pytest.mark.full(instead="test_a_conversation")
def test_a_text_goes_on(browser, serve, tok, tmp_path):
    server = serve(make_run(tmp_path / "writer", tok))
    page = open_page(browser, server, "talk")
    wanted = server.client.completions.create(
        model="writer", prompt="It was", temperature=0, max_tokens=30
    )
    page.run("$('tokens-at-most').value = 30")
    press(page, "It was")
    assert bubbles(page) == ["It was" + wanted.choices[0].text]
    page.run("$('tokens-at-most').value = 100_000")
    press(page, "It was")
    assert "maximum context length" in page.run("$('status').textContent")


def test_an_answer_is_stopped_and_the_place_is_free_again(browser, serve, tok, tmp_path):
    server = serve(make_run(tmp_path / "slow", tok, context_length=20_000))
    page = open_page(browser, server, "talk")
    page.run("$('tokens-at-most').value = 19_000; $('question').value = 'It was'; $('go').click()")
    page.wait("document.querySelector('#talk span').textContent.length > 40")
    page.run("$('go').click()")
    page.wait("writing === null")
    assert page.run("$('status').textContent") == "Stopped."
    server.until(writing=0, waiting=0)


def test_a_key_is_asked_for(browser, serve, tok, tmp_path):
    server = serve(make_run(tmp_path / "locked", tok, chat=True), "--key", "open sesame")
    page = open_page(browser, server)
    press(page, "It was")
    assert page.run("$('status').textContent") == "Incorrect API key provided."
    page.run("$('key').value = 'open sesame'")
    press(page, "It was")
    assert page.run("$('status').className") == "mute"


@pytest.mark.full(instead="test_a_conversation")
def test_sums_are_sent_as_the_model_was_taught(browser, serve, tmp_path):
    torch.manual_seed(0)
    run = make_run(tmp_path / "sums", sums_tokenizer(), chat=True)
    config = (run / "config.json").read_text()
    (run / "config.json").write_text(config.replace('"data": {', '"data": {"source": "sums", ', 1))
    page = open_page(browser, serve(run))
    assert "units first" in page.run("document.body.textContent")
    press(page, "12 + 34")
    assert page.run("document.querySelector('#talk .user').textContent").endswith(
        "12 + 34 (sent as 210+430)"
    )
    assert page.run("turns.length ? turns[0].content : '210+430'") == "210+430"
