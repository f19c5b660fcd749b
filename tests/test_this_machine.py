"""What bare `gpub doctor` says of a machine, and what it meets on a bad one."""

import http.server
import threading

import pytest

from gpub.cli.main import cli
from gpub.guards import this_machine
from gpub.guards.check import Alarm


@pytest.fixture
def quick(monkeypatch, tmp_path):
    "No network, folders of its own, and a machine that nobody else uses"
    monkeypatch.setattr(this_machine, "check_network", lambda: "it answers")
    monkeypatch.setattr(this_machine.os, "getloadavg", lambda: (0.0, 0.0, 0.0), raising=False)
    monkeypatch.setenv("GPUB_RUNS", str(tmp_path / "not/made/yet"))
    monkeypatch.setenv("GPUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("GPUB_DATA", raising=False)


def test_one_line_for_each_question(quick, capsys, tmp_path):
    cli.main(["doctor"], standalone_mode=False)
    said = capsys.readouterr().out.splitlines()
    lines = [line.split() for line in said[:-1] if not line.lstrip().startswith("->")]
    questions = ["torch", "GPU", "cores", "memory", "runs", "downloads", "data", "network"]
    assert sorted(line[1] for line in lines) == sorted(questions)
    assert said[-1].startswith(f"{len(questions)} checks:")
    assert not (tmp_path / "not").exists(), "it only looks"


def test_where_the_text_is(quick, tmp_path):
    assert "gpub train shakespeare" in this_machine.check_first_text()
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache/tinyshakespeare.txt").write_text("x")
    assert str(tmp_path / "cache") in this_machine.check_first_text()


def test_a_full_disk_and_a_quota(quick, tmp_path, monkeypatch):
    with pytest.raises(Alarm, match="GPUB_RUNS"):
        this_machine.check_writable(tmp_path, least=1e9)

    def refuse(**options):
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(this_machine.tempfile, "TemporaryFile", refuse)
    with pytest.raises(Alarm, match="Disk quota exceeded"):
        this_machine.check_writable(tmp_path / "deep/er")


def test_a_gpu_that_torch_cannot_use(monkeypatch):
    why = "there is a GPU (T4, driver 525), but torch has no CUDA inside: install a wheel"
    monkeypatch.setattr(this_machine.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(this_machine.torch.backends.mps, "is_available", lambda: False)
    monkeypatch.setattr(this_machine, "why_no_cuda", lambda *versions: why)
    with pytest.raises(Alarm) as alarm:
        this_machine.check_accelerator()
    assert alarm.value.remedy == "install a wheel" and "T4" in alarm.value.finding
    monkeypatch.setattr(this_machine, "why_no_cuda", lambda *versions: None)
    assert this_machine.check_accelerator().startswith("none")


def test_a_network_that_answers_and_one_that_never_does():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"127.0.0.1:{server.server_address[1]}"
    try:
        assert this_machine.check_network(f"http://{address}/") == f"{address} answers"
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(Alarm, match="without a network"):
        this_machine.check_network(f"http://{address}/", 0.5)


def test_a_busy_machine():
    with pytest.raises(Alarm, match="free when it begins"):
        this_machine.check_load(load=1e6)
    assert "load 0.0" in this_machine.check_load(load=0.0)
