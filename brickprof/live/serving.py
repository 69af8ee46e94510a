"""``brickprof serve``: the server behind the page.

Enters: a shelf of runs, an address, and a token where others than this machine can reach it. Leaves: pages and JSON to
whoever may ask. It answers GET and HEAD and nothing else, writes nowhere, and takes no path from an address: a run is
named by an id that the shelf has given.

    /            the runs            /api/runs
    /run/ID      one run, live       /api/run/ID
    /compare?runs=ID,ID              /api/compare?runs=ID,ID
    /report/ID   the report          /assets/NAME
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import platform
import re
import socket
import sys
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from brickprof.errors import BrickprofError
from brickprof.live.shelf import Crowded, Shelf
from brickprof.live.work import Failed, Work
from brickprof.reports.live import shell
from brickprof.text import clean

_MOST_COMPARED = 6
_MOST_REQUESTS = 32
_SECONDS = 30
"""That a connection may take to send a request."""
_META_POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy" content="([^"<>\r\n]*)"')
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_JSON, _HTML = "application/json", "text/html; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes = b""
    kind: str = _HTML
    headers: tuple[tuple[str, str], ...] = ()
    policy: str = shell.POLICY


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 32

    def __init__(self, address: tuple[str, int], shelf: Shelf, token: str = "") -> None:
        host = address[0]
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.shelf = shelf
        self.work = Work()
        self.token = token
        self.host = host
        self._names = {"localhost", host.lower()} | (
            {platform.node().lower(), socket.getfqdn().lower()} if token else set()
        )
        self._room = threading.BoundedSemaphore(_MOST_REQUESTS)
        super().__init__(address, Handler)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def cookie(self) -> str:
        return f"brickprof-{self.port}"

    def url(self) -> str:
        name = {"0.0.0.0": platform.node(), "::": platform.node()}.get(self.host, self.host)
        named = f"[{name}]" if ":" in name else name
        query = f"?{urlencode({'token': self.token})}" if self.token else ""
        return f"http://{named}:{self.port}/{query}"

    def knows(self, host: str) -> bool:
        """Whether a Host header names this machine. A name that a stranger pointed at us is not one of ours."""
        name = host_name(host)
        if name in self._names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or bool(self.token)

    def service_actions(self) -> None:
        self.shelf.tidy()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if not isinstance(error, OSError):  # a browser that goes away is no news
            self.complain(error)

    def complain(self, error: BaseException | None) -> None:
        print(f"brickprof: a page failed: {clean(f'{type(error).__name__}: {error}')}", file=sys.stderr)

    def server_close(self) -> None:
        super().server_close()
        self.shelf.close()
        self.work.close()


def is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_name(host: str) -> str:
    """The name in a Host header, without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower()


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    server_version = "brickprof"
    sys_version = ""
    timeout = _SECONDS

    def do_GET(self) -> None:
        if self.headers.get("Content-Length", "0") != "0" or self.headers.get("Transfer-Encoding"):
            self.close_connection = True  # a body that nobody reads must not become the next request
        self._send(self._answer())

    do_HEAD = do_GET

    def _refuse(self) -> None:
        self.close_connection = True
        self._send(_plain(HTTPStatus.METHOD_NOT_ALLOWED, "Nothing can be changed here.", ("Allow", "GET, HEAD")))

    do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = do_TRACE = do_CONNECT = _refuse

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What the parser of requests has to complain of, without a word of what was sent."""
        self.close_connection = True
        if code == HTTPStatus.NOT_IMPLEMENTED:
            self._refuse()
            return
        self._send(_plain(code, HTTPStatus(code).phrase))

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: an address may hold the token."""

    # -- who may ask

    def _answer(self) -> Answer:
        hosts = self.headers.get_all("Host") or []
        if len(hosts) != 1 or not self.server.knows(hosts[0]):
            return _plain(
                HTTPStatus.MISDIRECTED_REQUEST,
                "This server goes by another name: use the address that brickprof serve printed.",
            )
        try:
            parts = urlsplit(self.path)
            query = parse_qs(parts.query, max_num_fields=20)
        except ValueError:
            return _plain(HTTPStatus.BAD_REQUEST, "Bad request.")
        if self.server.token and not self._knows_token():
            return self._let_in(parts.path, query)
        try:
            return self._routed(parts.path, query)
        except BrickprofError as error:
            return self._failed(parts.path, HTTPStatus.FORBIDDEN, clean(error))
        except Failed as error:
            return self._failed(parts.path, HTTPStatus.INTERNAL_SERVER_ERROR, clean(error))
        except Crowded as error:
            return self._failed(parts.path, HTTPStatus.SERVICE_UNAVAILABLE, clean(error))
        except Exception as error:  # a page that fails is an answer too
            self.server.complain(error)
            return self._failed(parts.path, HTTPStatus.INTERNAL_SERVER_ERROR, "This page failed.")

    def _knows_token(self) -> bool:
        try:
            kept = SimpleCookie(self.headers.get("Cookie", "")).get(self.server.cookie)
        except CookieError:
            return False
        return kept is not None and self._same(kept.value)

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self.server.token.encode())

    def _let_in(self, path: str, query: dict[str, list[str]]) -> Answer:
        """With the token in the address: a cookie, and the same address without it."""
        if not self._same(query.pop("token", [""])[0]):
            said = "This page needs the token that brickprof serve printed."
            return self._failed(path, HTTPStatus.UNAUTHORIZED, said)
        cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Strict"
        rest = urlencode(query, doseq=True)
        place = "/" + path.lstrip("/\\") + (f"?{rest}" if rest else "")
        if not re.fullmatch(r"/[A-Za-z0-9/_.?=,%&-]*", place):
            place = "/"
        return Answer(HTTPStatus.SEE_OTHER, headers=(("Location", place), ("Set-Cookie", cookie)))

    # -- what is asked for

    def _routed(self, path: str, query: dict[str, list[str]]) -> Answer:
        match path.split("/")[1:]:
            case [""]:
                return Answer(HTTPStatus.OK, shell.document("runs"))
            case ["run", key] if self.server.shelf.folder(key) is not None:
                return Answer(HTTPStatus.OK, shell.document("run", key))
            case ["compare"]:
                return Answer(HTTPStatus.OK, shell.document("compare", ",".join(self._chosen(query))))
            case ["report", key]:
                return self._report(key)
            case ["assets", name] if name in shell.ASSETS:
                return Answer(HTTPStatus.OK, *shell.asset(name))
            case ["favicon.ico"]:
                return Answer(HTTPStatus.NO_CONTENT)
            case ["api", "runs"]:
                return self._json({"runs": self.server.shelf.runs(), "left_out": self.server.shelf.left_out})
            case ["api", "run", key]:
                found = self.server.shelf.look(key)
                return self._json(found) if found is not None else self._missing(path)
            case ["api", "compare"]:
                return self._compared(self._chosen(query))
        return self._missing(path)

    def _chosen(self, query: dict[str, list[str]]) -> list[str]:
        """The runs named in an address that there are."""
        named = dict.fromkeys(key for value in query.get("runs", []) for key in value.split(","))
        return [key for key in named if self.server.shelf.folder(key) is not None][:_MOST_COMPARED]

    def _report(self, key: str) -> Answer:
        folder = self.server.shelf.folder(key)
        if folder is None:
            return self._missing(f"/report/{key}")
        made = self.server.work.report(folder)
        own = _META_POLICY.search(made[:20_000].decode("utf-8", "replace"))
        policy = f"{own[1]}; frame-ancestors 'none'" if own else "default-src 'none'; frame-ancestors 'none'"
        return Answer(HTTPStatus.OK, made, policy=policy)

    def _compared(self, keys: list[str]) -> Answer:
        shelf = self.server.shelf
        runs = [found for key in keys if (found := shelf.look(key)) is not None]
        curves = [
            {"key": run["key"], "name": run["name"], "state": run["state"], "over": run["over"],
             "loss": next((curve for curve in run["curves"] if curve["name"] == "loss"), None)}
            for run in runs
        ]  # fmt: skip
        parted = [self._parted(keys[0], other) for other in keys[1:]]
        return self._json({"runs": curves, "parted": parted})

    def _parted(self, a: str, b: str) -> dict[str, Any]:
        one, other = self.server.shelf.folder(a), self.server.shelf.folder(b)
        if one is None or other is None:
            return {"key": b, "error": "it is gone"}
        try:
            told: dict[str, Any] = json.loads(self.server.work.comparison(one, other))
        except Failed as error:
            told = {"error": clean(error)}
        return {"key": b, **told}

    # -- answers

    def _json(self, data: Any) -> Answer:
        body = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
        tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
        if self.headers.get("If-None-Match") == tag:
            return Answer(HTTPStatus.NOT_MODIFIED, kind=_JSON, headers=(("ETag", tag),))
        return Answer(HTTPStatus.OK, body, _JSON, (("ETag", tag),))

    def _missing(self, path: str) -> Answer:
        return self._failed(path, HTTPStatus.NOT_FOUND, "There is no such page here.")

    def _failed(self, path: str, status: int, said: str) -> Answer:
        if path.startswith("/api/"):
            return Answer(status, json.dumps({"error": said}).encode("ascii"), _JSON)
        return Answer(status, shell.message(said))

    def _send(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in (*_HEADERS.items(), *answer.headers):
            self.send_header(name, value)
        self.send_header("Content-Security-Policy", answer.policy)
        bodiless = answer.status in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED)
        if not bodiless:
            self.send_header("Content-Type", answer.kind)
            self.send_header("Content-Length", str(len(answer.body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD" and not bodiless:
            self.wfile.write(answer.body)


def _plain(status: int, said: str, *headers: tuple[str, str]) -> Answer:
    return Answer(status, f"{said}\n".encode(), "text/plain; charset=utf-8", headers)
