"""The page of runs: what it tells, who may ask, hostile names, and a real browser that sees a point appear."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import launching
import pytest
from live_runs import JUDGED, UNSAFE, Recorder, launched, new_run, tree
from making import NAN, Made

from brickprof.cli.app import main
from brickprof.diagnosis import diagnose, saving
from brickprof.journal import EVENTS
from brickprof.journal.lines import encode
from brickprof.live.serving import Server, host_name, is_loopback
from brickprof.live.shelf import Shelf, identity_of
from brickprof.live.work import Failed, Work
from brickprof.reports.live import shell
from brickprof.run import Run

HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e'\"&"
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def made_run(folder: Path, *, broken: bool = True, blocks=("embed", "blocks.0", "head"), offset: float = 0.0) -> Path:
    made = Made(*blocks)
    made.owned()
    made.event("start", 0, rank=-1, pid=1)
    for step in range(16):
        made.event("sampled", step, roles=["grad"])
        for block in made.numbers:
            made.sample("grad", step, block, l2=1.0 + (offset if step > 6 else 0.0))
        made.step(step, loss=NAN if broken and step > 13 else 3.0 - step / 10 + (offset if step > 6 else 0.0))
    made.event("exited", 16, rank=-1, pid=1, code=int(broken), text=f"the script exited {int(broken)}", seconds=9.0)
    run = made.run()
    run.save(folder)
    opened = Run.open(folder)
    saving.write(diagnose(opened), folder, opened)
    return folder


@contextmanager
def serving(*folders: Path, token: str = "", host: str = "127.0.0.1"):
    server = Server((host, 0), Shelf(list(folders)), token)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def asked(server: Server, path: str, method: str = "GET", **headers: str):
    """Status, headers and body of one request, sent as it is."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        connection.putheader("Host", headers.pop("Host", f"127.0.0.1:{server.port}"))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def told(server: Server, path: str, **headers: str):
    status, _, body = asked(server, path, **headers)
    assert status == 200, body
    return json.loads(body)


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """Two runs that are over: a broken one, and one that is like it up to step 6."""
    home = tmp_path_factory.mktemp("runs")
    made_run(home / "bad-20261116-0700-aaaa")
    made_run(home / "good-20261116-0701-bbbb", broken=False, offset=0.5)
    return home


@pytest.fixture
def recorder(tmp_path):
    made = Recorder(new_run(tmp_path / "brickprof-runs"))
    yield made
    made.close()


# -- what it tells


def test_the_list_tells_verdict_steps_loss_and_state(home):
    with serving(home) as server:
        runs = {run["name"]: run for run in told(server, "/api/runs")["runs"]}
    bad, good = runs["bad-20261116-0700-aaaa"], runs["good-20261116-0701-bbbb"]
    assert (bad["verdict"], bad["state"], bad["said"]) == ("FAIL", "ended", "the script exited 1")
    assert (bad["step"], bad["loss"]) == (15, "nan") and "nan" in bad["finding"]
    assert (good["verdict"], good["step"], good["loss"]) == ("PASS", 15, 2.0) and good["over"]


def test_one_run_is_told_as_watch_shows_it(home):
    before = tree(home)
    with serving(home) as server:
        run = told(server, f"/api/run/{identity_of(home / 'bad-20261116-0700-aaaa')}")
    assert run["state"] == "ended" and run["verdict"] == "FAIL" and run["settled"]
    assert run["findings"][0]["whys"] and run["heat"]["layers"] == ["embed", "blocks.0", "head"]
    assert run["curves"][0]["steps"] == list(range(16)) and run["curves"][0]["odd"] == [[14, "NaN"], [15, "NaN"]]
    assert tree(home) == before


def test_a_comparison_overlays_losses_and_says_where_they_part(home):
    keys = [identity_of(home / name) for name in ("good-20261116-0701-bbbb", "bad-20261116-0700-aaaa")]
    with serving(home) as server:
        found = told(server, f"/api/compare?runs={','.join(keys)},nothere")
        again = told(server, f"/api/compare?runs={','.join(keys)}")
        assert server.work.made == 1
    assert [run["key"] for run in found["runs"]] == keys and all(run["loss"]["steps"] for run in found["runs"])
    (parted,) = found["parted"]
    assert not parted["same"] and parted["step"] == 7 and parted["equal_until"] == 6
    assert "they part in step 7" in parted["sentence"] and again == found


def test_the_report_is_made_once_and_again_when_the_journal_grows(tmp_path, home):
    folder = shutil.copytree(home / "bad-20261116-0700-aaaa", tmp_path / "run-20261116-0700-cccc")
    with serving(folder) as server:
        path = f"/report/{identity_of(folder)}"
        status, headers, body = asked(server, path)
        assert status == 200 and b"loss is nan" in body and asked(server, path)[2] == body
        assert server.work.made == 1
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'") and "script-src 'sha256-" in policy
        assert "'unsafe" not in policy and policy.endswith("frame-ancestors 'none'")
        with (folder / "rank00000" / EVENTS).open("ab") as stream:
            stream.write(b"\n")
        assert asked(server, path)[0] == 200 and server.work.made == 2


def test_a_report_that_cannot_be_made_is_one_sentence(monkeypatch, home):
    monkeypatch.setattr("brickprof.live.work.sys.executable", "/nowhere/python")
    with serving(home) as server:
        status, _, body = asked(server, f"/report/{identity_of(home / 'bad-20261116-0700-aaaa')}")
    assert status == 500 and b"No such file" in body and b"Traceback" not in body


def test_nothing_new_is_not_sent_again(home):
    with serving(home) as server:
        _, headers, _ = asked(server, "/api/runs")
        status, again, body = asked(server, "/api/runs", If_None_Match=headers["ETag"])
    assert (status, body, again["ETag"]) == (304, b"", headers["ETag"])


def test_a_run_that_goes_on_is_told_as_it_goes_and_a_new_one_appears(tmp_path, recorder, monkeypatch):
    monkeypatch.setattr("brickprof.live.shelf._RESCAN", 0.0)
    key = identity_of(recorder.folder)
    recorder.tell("step 4")
    with serving(recorder.folder.parent) as server:
        first = told(server, f"/api/run/{key}")
        assert first["state"] == "running" and first["curves"][0]["steps"] == [0, 1, 2, 3]
        recorder.tell("step 3")
        launching.until(lambda: told(server, f"/api/run/{key}")["curves"][0]["steps"] == list(range(7)))
        assert told(server, "/api/runs")["runs"][0]["step"] == 6
        recorder.tell("nan 2")
        assert launching.until(lambda: told(server, f"/api/run/{key}")["findings"], JUDGED)[0]["severity"] == "error"
        new_run(recorder.folder.parent, "late-20261116-0702-dddd")
        assert len(told(server, "/api/runs")["runs"]) == 2
        recorder.tell("end")
        over = launching.until(lambda: (run := told(server, f"/api/run/{key}"))["settled"] and run, JUDGED)
    assert over["state"] == "ended" and over["verdict"] == "FAIL"
    assert {path.name for path in recorder.folder.iterdir()} == {"meta.json", "rank00000"}


def test_two_ranks_one_of_them_killed(tmp_path, recorder):
    other = Recorder(recorder.folder, rank=1)
    try:
        recorder.tell("step 5")
        other.tell("step 3")
        other.kill()
        with serving(recorder.folder) as server:
            ranks = told(server, f"/api/run/{identity_of(recorder.folder)}")["ranks"]
            assert [(rank["rank"], rank["step"]) for rank in ranks] == [(0, 4), (1, 2)]
            launching.until(
                lambda: told(server, f"/api/run/{identity_of(recorder.folder)}")["ranks"][1]["state"] == "gone"
            )
    finally:
        other.close()


def test_a_run_killed_under_its_supervisor_says_so(tmp_path, recorder):
    log = launched(recorder.folder, recorder.process.pid)
    recorder.tell("step 3")
    recorder.kill()
    fields = {"pid": recorder.process.pid, "code": 137, "signal": 9, "text": "ended by SIGKILL: killed"}
    log.event("exited", 0, fields)
    with serving(recorder.folder) as server:
        (run,) = told(server, "/api/runs")["runs"]
    assert (run["state"], run["said"]) == ("killed", "ended by SIGKILL: killed")


def test_a_damaged_journal_is_read_as_far_as_it_is_whole(tmp_path, home):
    folder = shutil.copytree(home / "bad-20261116-0700-aaaa", tmp_path / "run-20261116-0700-cccc")
    (folder / "meta.json").write_bytes(b"{")
    events = folder / "rank00000" / EVENTS
    lines = events.read_bytes().splitlines(keepends=True)
    place = next(at for at, line in enumerate(lines) if b'"kind":"loss","step":3' in line)
    lines[place] = lines[place][:40] + b"\x00\xff" + lines[place][42:]
    events.write_bytes(b"".join(lines))
    (folder / "rank00000" / "samples.arrow").write_bytes(b"\x00" * 1000)
    with serving(folder) as server:
        run = told(server, f"/api/run/{identity_of(folder)}")
    assert [3 in curve["steps"] for curve in run["curves"][:1]] == [False] and len(run["curves"][0]["steps"]) == 15
    assert run["heat"] is None and any("1 damaged record in rank00000/events.jsonl" in note for note in run["notes"])


def test_a_folder_of_nothing_is_an_empty_list(tmp_path):
    with serving(tmp_path / "brickprof-runs") as server:
        assert told(server, "/api/runs") == {"runs": [], "left_out": 0}


# -- who may ask


def test_every_answer_has_the_policy_and_nothing_lets_others_in(home):
    key = identity_of(home / "bad-20261116-0700-aaaa")
    paths = ["/", f"/run/{key}", "/compare", "/api/runs", f"/api/run/{key}", "/assets/live.js", "/assets/page.css"]
    with serving(home) as server:
        for path in [*paths, "/nothing", "/favicon.ico", "/api/run/x"]:
            status, headers, _ = asked(server, path, Origin="http://evil.example")
            assert status == {"/nothing": 404, "/api/run/x": 404, "/favicon.ico": 204}.get(path, 200), path
            assert headers["X-Content-Type-Options"] == "nosniff" and headers["X-Frame-Options"] == "DENY"
            assert headers["Referrer-Policy"] == "no-referrer" and headers["Cache-Control"] == "no-store"
            assert headers["Content-Security-Policy"] == shell.POLICY
            assert not [name for name in headers if name.lower().startswith("access-control")]
            assert "Python" not in headers["Server"]
    assert "unsafe" not in shell.POLICY and "default-src 'none'" in shell.POLICY


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "BREW"])
def test_nothing_can_be_changed(home, method):
    with serving(home) as server:
        status, headers, body = asked(server, "/api/runs", method)
    assert status == 405 and headers["Allow"] == "GET, HEAD" and b"runs" not in body


def test_head_is_get_without_a_body(home):
    with serving(home) as server:
        status, headers, body = asked(server, "/api/runs", "HEAD")
        assert (status, body) == (200, b"") and int(headers["Content-Length"]) > 100


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "10.0.0.7", "", "a b", "[::2]:1"]
)
def test_a_name_that_is_not_ours_is_refused(home, host):
    with serving(home) as server:
        status, _, body = asked(server, "/api/runs", Host=host)
    assert status == 421 and b"aaaa" not in body


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9999", "LOCALHOST", "[::1]:80", "127.0.0.2:1"])
def test_a_name_of_loopback_is_ours_through_a_tunnel_too(home, host):
    with serving(home) as server:
        assert asked(server, "/api/runs", Host=host)[0] == 200


def test_two_hosts_or_none_are_refused(home):
    with serving(home) as server:
        for lines in (b"", b"Host: localhost\r\nHost: evil.example\r\n"):
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
                raw.sendall(b"GET /api/runs HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
                assert raw.makefile("rb").readline().split()[1] == b"421"


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd", "/run/../../etc/passwd", "/assets/../shell.py", "/assets/..%2fshell.py", "/report/%2e%2e",
        "/api/run/..", "/assets//etc/passwd", "//etc/passwd", "/run/", "/api/run/%00", "/assets/shell.py", "/run/a/b",
    ],
)  # fmt: skip
def test_no_path_is_taken_from_an_address(home, path):
    with serving(home) as server:
        status, _, body = asked(server, path)
    assert status == 404 and b"root:" not in body and b"import" not in body


@pytest.mark.parametrize(
    "line",
    [
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x00\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n",
    ],
)
def test_what_is_no_request_is_refused_without_an_echo(home, line):
    with serving(home) as server:
        with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
            raw.sendall(line)
            raw.shutdown(socket.SHUT_WR)
            answer = raw.makefile("rb").read()
        assert asked(server, "/api/runs")[0] == 200
    assert b"aaaa" not in answer and b"Traceback" not in answer and b" 200 " not in answer.split(b"\r\n")[0]


def test_a_body_does_not_become_the_next_request(home):
    with serving(home) as server, socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
        hidden = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n\r\n"
        raw.sendall(
            b"GET /assets/live.css HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(hidden) + hidden
        )
        assert raw.makefile("rb").read().count(b"HTTP/1.1 ") == 1


def test_without_the_token_nothing_is_told(home):
    key = identity_of(home / "bad-20261116-0700-aaaa")
    with serving(home, token="a-long-secret") as server:
        cookie = f"brickprof-{server.port}"
        for path in ("/", "/api/runs", f"/run/{key}", f"/report/{key}", "/assets/live.js", "/nothing"):
            for given in ("", f"{cookie}=wrong", f"{cookie}=", "a=b; c", f"{cookie}=\u00e4".encode().decode("latin-1")):
                status, headers, body = asked(server, path, Cookie=given)
                assert status == 401 and b"aaaa" not in body and b"a-long-secret" not in body
                assert "Set-Cookie" not in headers
        assert asked(server, "/?token=wrong")[0] == 401
        status, headers, _ = asked(server, "/compare?runs=a,b&token=a-long-secret")
        assert status == 303 and headers["Location"] == "/compare?runs=a%2Cb"
        kept = headers["Set-Cookie"]
        assert "HttpOnly" in kept and "SameSite=Strict" in kept
        assert asked(server, "/api/runs", Cookie=kept.partition(";")[0])[0] == 200
        assert asked(server, "//evil.example/?token=a-long-secret")[1]["Location"] == "/evil.example/"
        assert asked(server, "/api/runs", Host="evil.example", Cookie=kept.partition(";")[0])[0] == 421
        assert "token=a-long-secret" in server.url()


def test_which_addresses_are_loopback():
    assert is_loopback("127.0.0.1") and is_loopback("::1") and is_loopback("localhost") and is_loopback("127.9.9.9")
    assert not is_loopback("0.0.0.0") and not is_loopback("::") and not is_loopback("10.0.0.1") and not is_loopback("x")
    assert host_name("[::1]:80") == "::1" and host_name("Localhost:80") == "localhost"


# -- hostile names


def test_hostile_names_are_shown_and_do_nothing(tmp_path):
    blocks = ("embed", f"{HOSTILE}.{'x' * 10_000}", "head")
    folder = made_run(tmp_path / "<img src=x onerror=alert(1)>-20261116-0700-eeee", blocks=blocks)
    key = identity_of(folder)
    with serving(tmp_path) as server:
        pages = [asked(server, path)[2] for path in ("/", f"/run/{key}", f"/compare?runs={key},%22%3E%3Cscript%3E")]
        answers = [asked(server, path)[2] for path in ("/api/runs", f"/api/run/{key}")]
    assert all(b"<img" not in page and b"alert" not in page and b"eeee" not in page for page in pages)
    for answer in answers:
        strings = re.findall(r'"(?:[^"\\]|\\.)*"', answer.decode("ascii"))
        assert not [word for word in map(json.loads, strings) if UNSAFE.search(word) or len(word) > 700]
    assert b"script" in answers[1]


def test_the_script_writes_text_only_as_text():
    script = shell.asset("live.js")[0].decode()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(|Function\(|https?:|\bon[a-z]+=", script
    )
    assert not re.search(r"https?:|url\(|@import", shell.asset("live.css")[0].decode())


# -- the command


def test_serve_prints_its_address_and_ends_by_ctrl_c(home):
    process = subprocess.Popen(
        [*launching.COMMAND, "serve", str(home)], env=launching.environment(), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        found = re.match(r"brickprof: 2 runs at http://127\.0\.0\.1:(\d+)/  ", line)
        assert found, line
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=20)
        connection.request("GET", "/api/runs")
        assert len(json.loads(connection.getresponse().read())["runs"]) == 2
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 0 and process.stderr.read() == ""
    finally:
        process.kill()
        process.communicate()


def test_another_address_asks_for_a_token(home, monkeypatch, capsys):
    monkeypatch.setattr(Server, "serve_forever", lambda self: (_ for _ in ()).throw(KeyboardInterrupt))
    assert main(["serve", str(home), "--host", "0.0.0.0"]) == 0
    first = re.search(r"\?token=([\w-]{30,})", capsys.readouterr().out)
    assert main(["serve", str(home), "--token"]) == 0
    second = re.search(r"http://127\.0\.0\.1:\d+/\?token=([\w-]{30,})", capsys.readouterr().out)
    assert first and second and first[1] != second[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "There is no run nowhere."),
        (["."], "no run is there"),
        (["RUNS", "--port", "PORT"], "cannot listen at 127.0.0.1:"),
        (["RUNS", "--host", "no.such.host.invalid"], "cannot listen at no.such.host.invalid:0"),
        (["RUNS", "--port", "99999"], "--port"),
    ],
)
def test_wrong_usage_is_one_line(words, said, home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        meant = {"RUNS": str(home), "PORT": str(taken.getsockname()[1])}
        assert main(["serve", *(meant.get(word, word) for word in words)]) == 2
    told = capsys.readouterr().err
    assert said in told and told.count("\n") == 1


def test_runs_that_nobody_looks_at_are_let_go(home, monkeypatch):
    shelf = Shelf([home])
    shelf.look(identity_of(home / "bad-20261116-0700-aaaa"))
    assert len(shelf._followed) == 1
    monkeypatch.setattr("brickprof.live.shelf._IDLE", -1.0)
    shelf.tidy()
    assert len(shelf._followed) == 0


def test_two_pages_do_not_push_each_others_run_out(tmp_path, monkeypatch):
    recorders = [Recorder(new_run(tmp_path, f"train-20261116-070{n}-k3f{n}")) for n in range(2)]
    monkeypatch.setattr("brickprof.live.shelf._MOST_FOLLOWED", 1)
    one, other = (identity_of(recorder.folder) for recorder in recorders)
    try:
        with serving(tmp_path) as server:
            assert told(server, f"/api/run/{one}")["key"] == one
            status, _, body = asked(server, f"/api/run/{other}")
            assert status == 503 and b"1 runs are looked at already" in body and list(server.shelf._followed) == [one]
            monkeypatch.setattr("brickprof.live.shelf._STILL_WANTED", 0.0)
            assert told(server, f"/api/run/{other}")["key"] == other and list(server.shelf._followed) == [other]
    finally:
        for recorder in recorders:
            recorder.close()


def test_a_run_that_cannot_be_told_of_leaves_the_others_on_the_list(tmp_path):
    hostile = made_run(tmp_path / "huge-20261116-0700-aaaa")
    for name, kind, fields in ((EVENTS, "loss", {"value": 10**400}), (EVENTS, "exit", {})):
        with (hostile / "rank00000" / name).open("ab") as stream:
            stream.write(encode(10_000, 10**400 if kind == "exit" else 1, kind, 20, fields))
    piped = made_run(tmp_path / "pipe-20261116-0701-bbbb")
    (piped / "diagnosis.json").unlink()
    os.mkfifo(piped / "diagnosis.json")
    made_run(tmp_path / "good-20261116-0702-cccc", broken=False)
    with serving(tmp_path) as server:
        runs = {run["name"][-4:]: run for run in told(server, "/api/runs")["runs"]}
        assert runs["cccc"]["verdict"] == "PASS" and runs["aaaa"]["state"] == "unreadable"
        assert runs["bbbb"]["state"] == "unreadable" and "no plain file" in runs["bbbb"]["said"]
        assert told(server, f"/api/run/{identity_of(hostile)}")["curves"][0]["last"] == "inf"
        status, _, body = asked(server, f"/api/run/{identity_of(piped)}")
        assert status == 403 and b"no plain file" in body


def test_a_list_that_cannot_be_had_for_a_moment_stays(home, monkeypatch):
    monkeypatch.setattr("brickprof.live.shelf._RESCAN", 0.0)
    shelf, key = Shelf([home]), identity_of(home / "bad-20261116-0700-aaaa")

    def vanished(folder):
        raise FileNotFoundError(folder)

    monkeypatch.setattr("brickprof.live.shelf.runs_in", vanished)
    assert len(shelf.runs()) == 2 and shelf.folder(key) is not None
    monkeypatch.setattr("brickprof.live.shelf.runs_in", lambda folder: [])
    assert shelf.runs() == [] and shelf.folder(key) is None


def test_a_page_that_fails_is_an_answer(home, monkeypatch, capsys):
    monkeypatch.setattr(Shelf, "look", lambda self, identity: 1 // 0)
    with serving(home) as server:
        status, _, body = asked(server, f"/api/run/{identity_of(home / 'bad-20261116-0700-aaaa')}")
        assert status == 500 and json.loads(body) == {"error": "This page failed."}
        assert asked(server, "/api/runs")[0] == 200
    assert "brickprof: a page failed: ZeroDivisionError" in capsys.readouterr().err


def test_a_thread_that_cannot_be_started_leaves_its_place(home, monkeypatch):
    def refuse(self):
        raise RuntimeError("can't start new thread")

    with serving(home) as server:
        monkeypatch.setattr(threading.Thread, "start", refuse)
        for _ in range(40):  # more than there are places
            with socket.create_connection(("127.0.0.1", server.port), timeout=20) as raw:
                assert raw.recv(1) == b""
        monkeypatch.undo()
        assert asked(server, "/api/runs")[0] == 200


def test_what_is_being_made_ends_with_the_server(home, monkeypatch):
    monkeypatch.setattr("brickprof.live.work.__name__", "timeit")  # a process that takes its time
    work, failed = Work(), []

    def ask():
        try:
            work._worked(("-s", "import time", "time.sleep(60)"))
        except Failed as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    (process,) = launching.until(lambda: list(work._running))
    work.close()
    thread.join(20)
    assert failed and process.returncode == -signal.SIGKILL and not work._running
    with pytest.raises(Failed, match="closed"):
        work.report(home / "bad-20261116-0700-aaaa")


def test_a_comparison_of_runs_that_grow_is_good_for_a_while(tmp_path, home, monkeypatch):
    folder = shutil.copytree(home / "bad-20261116-0700-aaaa", tmp_path / "run-20261116-0700-cccc")
    work, calls = Work(), []
    monkeypatch.setattr(work, "_worked", lambda key: calls.append(key) or b"{}")
    for good_for in (30.0, 30.0, 0.0, 0.0):
        monkeypatch.setattr("brickprof.live.work._GOOD_FOR", good_for)
        work.comparison(folder, home / "good-20261116-0701-bbbb")
        with (folder / "rank00000" / EVENTS).open("ab") as stream:
            stream.write(b"\n")
    assert len(calls) == 3


def test_the_same_report_asked_for_twice_at_once_is_made_once(home, monkeypatch):
    work = Work()
    monkeypatch.setattr(work, "_worked", lambda key: (time.sleep(0.2), setattr(work, "made", work.made + 1), b"x")[2])
    threads = [threading.Thread(target=work.report, args=(home / "bad-20261116-0700-aaaa",)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert work.made == 1


def test_whoever_waited_for_a_report_of_a_run_that_grows_takes_it(tmp_path, home, monkeypatch):
    folder = shutil.copytree(home / "bad-20261116-0700-aaaa", tmp_path / "run-20261116-0700-cccc")
    work, calls, asked_at = Work(), [], []

    def clock():
        asked_at.append(time.monotonic())
        return asked_at[-1]

    def worked(key):
        launching.until(lambda: len(asked_at) >= 5)  # each of them has asked by now, and one looked at what is kept
        with (folder / "rank00000" / EVENTS).open("ab") as stream:
            stream.write(b"\n")
        return calls.append(key) or b"x"

    monkeypatch.setattr("brickprof.live.work.time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(work, "_worked", worked)
    threads = [threading.Thread(target=work.report, args=(folder,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    work.report(folder)
    assert len(calls) == 2


# -- a real browser


def browsed(url: str, folder: Path, width: int = 1200) -> tuple[str, str]:
    """The page as it has become, and what the browser complained of."""
    done = subprocess.run(
        [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom",
         "--virtual-time-budget=8000", f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900", url],
        capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return done.stdout, "\n".join(line for line in done.stderr.splitlines() if "CONSOLE" in line)


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_a_point_appears_as_the_run_goes_on(tmp_path, recorder, monkeypatch):
    recorder.tell("step 4")
    seen = []

    def look(self, identity, of=Shelf.look):
        found = of(self, identity)
        seen.append(len(found["curves"][0]["steps"]))
        if len(seen) == 2:
            recorder.tell("step 5")
        return found

    monkeypatch.setattr(Shelf, "look", look)
    monkeypatch.setattr("brickprof.live.shelf._LOOK", 0.0)
    with serving(recorder.folder) as server:
        dom, complaints = browsed(f"http://127.0.0.1:{server.port}/run/{identity_of(recorder.folder)}", tmp_path)
    assert complaints == "" and seen[0] == 4 and seen[-1] == 9
    assert 'data-points="9"' in dom and 'data-step="8"' in dom
    assert "● running" in dom and "loss by step; last 1.6667" in dom


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_the_list_and_a_comparison(tmp_path, home):
    folder = made_run(tmp_path / "<img src=x onerror=alert(1)>-20261116-0700-eeee", blocks=("embed", HOSTILE, "head"))
    keys = [identity_of(folder), identity_of(home / "good-20261116-0701-bbbb")]
    with serving(home, folder) as server:
        server.work.comparison(folder, home / "good-20261116-0701-bbbb")
        dom, complaints = browsed(f"http://127.0.0.1:{server.port}/", tmp_path)
        compared, more = browsed(f"http://127.0.0.1:{server.port}/compare?runs={','.join(keys)}", tmp_path, 400)
    assert complaints == more == ""
    assert dom.count('type="checkbox"') == 3 and "&lt;img src=x onerror=alert(1)&gt;" in dom and "<img" not in dom
    assert "✗ FAIL" in dom and "✓ PASS" in dom
    assert 'data-curves="2"' in compared and "they part in step" in compared and "<img" not in compared


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_in_a_browser_a_step_beyond_all_counting_does_not_hang_the_page(tmp_path):
    made = Made("embed")
    made.owned()
    made.event("start", 0, rank=-1, pid=1)
    made.step(2**53 - 1, loss=1.0)
    made.event("exited", 1, rank=-1, pid=1, code=0, text="the script exited 0", seconds=9.0)
    made.run().save(folder := tmp_path / "far-20261116-0700-ffff")
    with serving(folder) as server:
        dom, complaints = browsed(f"http://127.0.0.1:{server.port}/run/{identity_of(folder)}", tmp_path)
    assert complaints == "" and f'data-step="{2**53 - 1}"' in dom


def test_the_server_writes_nothing(tmp_path, home):
    folder = shutil.copytree(home / "bad-20261116-0700-aaaa", tmp_path / "run-20261116-0700-cccc")
    (folder / "diagnosis.json").unlink()
    (folder / "judged.json").unlink(missing_ok=True)
    before = tree(folder)
    key = identity_of(folder)
    with serving(tmp_path) as server:
        launching.until(lambda: told(server, f"/api/run/{key}")["settled"], JUDGED)
        asked(server, f"/report/{key}")
        assert told(server, f"/api/run/{key}")["verdict"] == "FAIL"
    assert tree(folder) == before
