"""The page that compares checkpoints: turns and refusals anywhere; the page itself, in a browser,
where Gradio is installed."""

import http.client
import socket
import pytest, torch
from click.testing import CliRunner
from browser import Browser
from gpub.record.checkpoint import save_checkpoint
from gpub.core import GpubError
from gpub.model.generate import generate
from gpub.model.gpt import GPT
from gpub.record.load import load_run
from gpub.cli.share import demo_command
from gpub.share.app import in_turns, serve
from test_demo import TEXT, TOY, make_run


def two_checkpoints(folder):
    make_run(folder)
    torch.manual_seed(1)
    model = GPT(TOY)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.12)
    save_checkpoint(folder, 9, model.state_dict(), {}, dict(val_loss=2.0))
    return folder


@pytest.mark.parametrize("every", (1, 3, 8, 100))
def test_turns_lose_nothing(every):
    texts = ["abcdefgh", "", "x", "y" * 17]
    looks = [*in_turns([iter(t) for t in texts], "> ", every)]
    assert looks[-1] == ["> " + t for t in texts] and all(
        b.startswith(a) for one, two in zip(looks, looks[1:]) for a, b in zip(one, two)
    )


def test_the_command_refuses_in_one_line(tmp_path):
    make_run(tmp_path / "run")
    for words, said in (
        (["nowhere"], "no checkpoint"),
        ([str(tmp_path / "run"), "other", "--html", "x.html"], "one file holds one run"),
    ):
        e = CliRunner().invoke(demo_command, words).exception
        assert isinstance(e, GpubError) and said in str(e) and "\n" not in str(e)
    done = CliRunner().invoke(
        demo_command, [str(tmp_path / "run"), "--html", str(tmp_path / "x.html")]
    )
    assert done.exit_code == 0 and (tmp_path / "x.html").stat().st_size > 10_000


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def served(tmp_path):
    pytest.importorskip("gradio")
    run, port = two_checkpoints(tmp_path / "run"), free_port()
    page = serve(run, port, wait=False)
    yield run, port
    page.close()


def test_a_page_of_a_stranger_cannot_speak_for_this_machine(served):
    "A name that somebody else gave to 127.0.0.1 (DNS rebinding) is refused"
    answers = {}
    for host in ("127.0.0.1", "localhost", "evil.test"):
        for path in ("/", "/gradio_api/info"):
            asked = http.client.HTTPConnection("127.0.0.1", served[1], timeout=30)
            asked.request("GET", path, headers=dict(Host=f"{host}:{served[1]}"))
            answers[host, path] = asked.getresponse().status
            asked.close()
    assert answers == {key: 400 if "evil.test" in key else 200 for key in answers}


def fill(label, value):  # as a person would: the framework listens to input events
    return f"""(() => {{
      const labels = [...document.querySelectorAll('label')];
      const e = document.querySelector('[aria-label="{label}"]')
        || labels.find(l => l.textContent.includes('{label}')).querySelector('input, textarea');
      Object.getOwnPropertyDescriptor(Object.getPrototypeOf(e), 'value').set.call(e, {value!r});
      e.dispatchEvent(new Event('input', {{bubbles: true}}));
      e.dispatchEvent(new Event('change', {{bubbles: true}}));
    }})()"""


def press(name):
    return (
        "[...document.querySelectorAll('button')].find(b => b.textContent.trim() == "
        f"'{name}').click()"
    )


def test_it_writes_in_a_browser_what_the_model_writes(served, tmp_path):
    run, port = served
    with Browser(tmp_path, 1280, 900) as b:
        b.open(f"http://127.0.0.1:{port}/")
        b.wait(
            "[...document.querySelectorAll('button')].some(x => x.textContent.trim() == 'Write')"
        )
        b.run(fill("Prompt", TEXT[:5]))
        b.run(press("Write"))
        b.wait("[...document.querySelector('.written textarea')?.value || ''].length == 245")
        model, tok, _ = load_run(run, 9, "cpu")
        assert b.run("document.querySelector('.written textarea').value") == generate(
            model, tok, TEXT[:5], 240, temperature=0.8, seed=0
        )
        b.run(fill("Prompt", "Ж"))
        b.run(press("Write"))
        b.wait("document.body.textContent.includes('lacks')")
        assert not [
            u
            for e in b.seen("Network.requestWillBeSent")
            if not (u := e["request"]["url"]).startswith(
                (f"http://127.0.0.1:{port}", "data:", "blob:", "about:")
            )
        ]
        assert not b.seen("Runtime.exceptionThrown")


def click(b, element):  # where a hand would
    x, y = b.run(
        f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); const r = "
        f"e.getBoundingClientRect(); return [r.x + r.width/2, r.y + r.height/2] }})()"
    )
    for kind in ("mousePressed", "mouseReleased"):
        b("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)


@pytest.mark.full(instead="test_it_writes_in_a_browser_what_the_model_writes")
def test_two_checkpoints_write_side_by_side(served, tmp_path):
    run, port = served
    texts = "[...document.querySelectorAll('.written textarea')].map(t => t.value)"
    option = (
        "[...document.querySelectorAll('[role=option]')].find(o => o.textContent.includes('run, "
        "step 7'))"
    )
    with Browser(tmp_path, 1280, 900) as b:
        b.open(f"http://127.0.0.1:{port}/")
        b.wait(
            "[...document.querySelectorAll('button')].some(x => x.textContent.trim() == 'Write')"
        )
        click(b, "document.querySelector('input[role=combobox]')")
        b.wait(option)
        click(b, option)
        b.wait("document.querySelectorAll('.token').length == 2")
        for label, value in (
            ("Prompt", TEXT[:5]),
            ("number input for Tokens", "1000"),
            ("Seed", "3"),
        ):
            b.run(fill(label, value))
        b.run(
            f"window.looks = []; setInterval(() => looks.push({texts}.map(t => [...t].length)), 5)"
        )
        b.run(press("Write"))
        b.wait(f"{texts}.length == 2 && {texts}.every(t => [...t].length == 1005)")
        assert b.run(
            "[...document.querySelectorAll('.written')].map(e => e.textContent.trim())"
        ) == ["run, step 9", "run, step 7"]
        for got, step in zip(b.run(texts), (9, 7)):
            model, tok, _ = load_run(run, step, "cpu")
            assert got == generate(model, tok, TEXT[:5], 1000, temperature=0.8, seed=3)
        # both were seen growing
        assert sum(len(l) == 2 and all(5 < n < 1005 for n in l) for l in b.run("looks")) > 2
