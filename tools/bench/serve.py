"""Tokens a second of one model behind two servers, for one client, four and sixteen, in the same
minutes"""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

from gpub.core import Config, Count, GpubError
from gpub.data.char import CharTokenizer
from gpub.device import machine, pick_device, seed_everything
from gpub.lab.bench.race import Race, machine_line
from gpub.model.architectures import build_model, config_of
from gpub.share.hub import export_model
from gpub.table import Table

LETTERS = 0x4E00  # the first character of the vocabulary, of which every one is a token


def exported_shape(
    cfg: Config,  # of a `GPT` or a `Llama`
    folder: Path | str,  # to be made
) -> list[str]:  # the characters it knows
    "A model of fresh weights as a Hugging Face folder that both servers open"
    letters = [chr(LETTERS + i) for i in range(cfg.vocab_size)]
    seed_everything(0)
    export_model(build_model(cfg), CharTokenizer(letters), folder)
    return letters


@dataclass
class RunningServer:
    "A server in a process of its own, and how it is asked"

    process: subprocess.Popen  # stopped when it is not its turn
    port: int  # of 127.0.0.1
    model: str  # how it calls the model

    def complete(
        self,
        prompt: str,  # of one client
        tokens: int,  # to be written
    ) -> str:
        "The likeliest continuation; raises `GpubError` for any other answer"
        asked = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        body = dict(model=self.model, prompt=prompt, max_tokens=tokens, temperature=0)
        asked.request(
            "POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"}
        )
        got = asked.getresponse()
        said = got.read().decode()
        asked.close()
        if got.status != 200:
            raise GpubError(f"the server at port {self.port} answered {got.status}: {said[:200]}")
        answer = json.loads(said)
        if answer["usage"]["completion_tokens"] != tokens:
            raise GpubError(f"asked for {tokens} tokens, got {answer['usage']}")
        return answer["choices"][0]["text"]

    def together(
        self,
        prompts: Sequence[str],  # one for each client
        tokens: int,  # to be written for each
    ) -> list[str]:
        "The answers of clients who all ask at once; the server runs for as long as they wait"
        self.process.send_signal(signal.SIGCONT)
        with ThreadPoolExecutor(len(prompts)) as clients:
            answers = list(clients.map(lambda prompt: self.complete(prompt, tokens), prompts))
        self.process.send_signal(signal.SIGSTOP)
        return answers


@contextmanager
def running_server(
    words: Sequence[str],  # the command; {port} stands for the port
    model: str,  # how it calls the model
    seconds: float = 300,  # how long it may take to start
) -> Iterator[RunningServer]:
    "Start a server, wait until it answers, stop it; raises `GpubError` for one that ends"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryFile("w+") as said:
        command = [word.format(port=port) for word in words]
        process = subprocess.Popen(command, stdout=said, stderr=said)
        try:
            deadline = time.monotonic() + seconds
            while not _answers(port):
                if process.poll() is not None or time.monotonic() > deadline:
                    said.seek(0)
                    raise GpubError(f"{Path(words[0]).name} did not serve: {said.read()[-300:]}")
                time.sleep(0.2)
            yield RunningServer(process, port, model)
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    "Whether somebody listens there"
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def serving_commands(
    folder: Path | str,  # the exported model
    peers: bool = True,  # transformers' servers too
) -> dict[str, list[str]]:  # name -> command
    "Who serves; raises `GpubError` where transformers' server is not installed"
    ours = [sys.executable, "-m", "gpub", "serve", str(folder), "--port", "{port}"]
    out = {"gpub": [*ours, "--device", "cpu"]}
    if not peers:
        return out
    tool = Path(sys.executable).parent / "transformers"
    if not tool.exists() or not find_spec("openai"):
        raise GpubError(
            "transformers' server is not installed: pip install 'transformers[serving]', or "
            "--no-peers"
        )
    theirs = [str(tool), "serve", str(folder), "--device", "cpu", "--port", "{port}"]
    cache = "--cb-block-size 32 --cb-num-blocks 512 --cb-max-batch-tokens 512".split()
    out["transformers, batched"] = [*theirs, "--continuous-batching", *cache]
    out["transformers"] = theirs
    return out


@dataclass(frozen=True, kw_only=True)
class ServeRace(Config):
    "Who asks for how much"

    clients: tuple = (1, 4, 16)  # at once
    prompt: Count = 16  # tokens of a prompt
    tokens: Count = 64  # of an answer
    rounds: Count = 3  # turns of each server
    peers: bool = True  # transformers' servers too


def race_shape(
    name: str,  # of the shape, for people
    cfg: Config,  # of a `GPT` or a `Llama`
    how: ServeRace = ServeRace(),  # who asks for how much
    log: Callable[[str], object] = lambda text: None,  # called with a line per race
) -> dict:  # plain values
    "One model behind every server"
    load_before = os.getloadavg()[0]
    out: dict = dict(shape=name, tokens=how.tokens, rounds=how.rounds, clients={})
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place, "model")
        letters = exported_shape(cfg, folder)
        commands = serving_commands(folder, how.peers)
        servers = {}
        for server, words in commands.items():
            named = "model" if server == "gpub" else str(folder)
            servers[server] = stack.enter_context(running_server(words, named))
        for clients in how.clients:
            prompts = [
                "".join(letters[(7 * k + 3 * i) % len(letters)] for i in range(how.prompt))
                for k in range(clients)
            ]
            out["clients"][str(clients)] = _race(servers, prompts, how)
            log(f"{name}, {clients} at once: {out['clients'][str(clients)]['tok_s']}")
    out["load"] = [round(load_before, 1), round(os.getloadavg()[0], 1)]
    return out


def _race(servers: dict[str, RunningServer], prompts: Sequence[str], how: ServeRace) -> dict:
    "Some clients at every server in turn"
    answers = {name: s.together(prompts, how.tokens) for name, s in servers.items()}  # warm

    def turn(server: RunningServer) -> Callable[[int], object]:
        return lambda round_number: server.together(prompts, how.tokens)

    race = Race({name: turn(server) for name, server in servers.items()}).run(how.rounds)
    written = len(prompts) * how.tokens
    others = [name for name in servers if name != "gpub"]
    same = {name: sum(a == b for a, b in zip(answers[name], answers["gpub"])) for name in others}
    return dict(
        tok_s={name: round(written / s, 1) for name, s in race.each(min).items()},
        faster_than={name: round(race.ratio(name, "gpub"), 2) for name in others},
        same_text=same,
    )


def serving_shapes() -> dict[str, Config]:
    "A model in which Python counts, and one in which the weights do"
    small = config_of("shakespeare")
    wide = config_of("gpt2-134m")
    return {
        "shakespeare": small,
        "the body of gpt2-134m": replace(wide, vocab_size=8192, context_length=256),
    }


def bench_serve(
    how: ServeRace = ServeRace(),  # who asks for how much
    shapes: Sequence[str] = (),  # names from `serving_shapes`; default: all
    log: Callable[[str], object] = print,  # called with a line per race
) -> dict:  # plain values
    "The receipt of `gpub bench serve`"
    known = serving_shapes()
    if unknown := [name for name in shapes if name not in known]:
        raise GpubError(f"no shape {unknown[0]!r}; there are: {', '.join(known)}")
    races = [race_shape(name, known[name], how, log) for name in shapes or known]
    return dict(machine=machine(pick_device("cpu")), prompt=how.prompt, races=races)


def bench_serve_table(
    r: dict,  # a receipt of `bench_serve`
) -> str:
    "The receipt in lines"
    lines = [machine_line(r["machine"])]
    for race in r["races"]:
        rows = []
        for clients, found in race["clients"].items():
            alone = race["clients"]["1"]["tok_s"] if "1" in race["clients"] else {}
            for name, speed in found["tok_s"].items():
                row = [clients, name, f"{speed:,.0f}", ""]
                if alone:
                    row[-1] = f"{speed / alone[name]:.1f}"
                if name != "gpub":
                    row.append(f"{found['faster_than'][name]:.2f}x")
                rows.append(row)
        title = (
            f"{race['shape']}: {race['tokens']} tokens after {r['prompt']}, load of the machine "
            f"{race['load'][0]:g} to {race['load'][1]:g}:"
        )
        head = ["clients", "server", "tok/s", "x one client", "gpub is faster"]
        lines.append(str(Table(head, rows, title, align="rlrrr")))
    return "\n".join(lines)
