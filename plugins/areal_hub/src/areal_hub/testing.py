"""A hub on this machine, for tests: the few endpoints that downloads and uploads of small files use, over HTTP.

Knows: paths, status codes and headers as the hub has them.
Does not know: who asks.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

COMMIT, OLDER = "a" * 40, "b" * 40


class LocalHub:
    """Repositories by name: files of their commits, and what was uploaded."""

    def __init__(self) -> None:
        self.files: dict[str, dict[str, dict[str, bytes]]] = {}
        self.branches: dict[str, dict[str, str]] = {}
        self.gated: set[str] = set()
        self.created: list[dict[str, Any]] = []
        self.uploaded: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.address = ""

    def add(self, repo: str, files: dict[str, bytes], commit: str = COMMIT, branch: str = "main") -> None:
        """Add a commit, and have a branch point at it."""
        self.files.setdefault(repo, {})[commit] = files
        self.branches.setdefault(repo, {})[branch] = commit

    def answer(self, method: str, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body."""
        self.asked.append(f"{method} {path}")
        parts = [unquote(part) for part in path.strip("/").split("/")]
        if method == "POST":
            return self._taken(parts, body)
        repo = "/".join(parts[2:4] if parts[0] == "api" else parts[0:2])
        if repo not in self.files:
            return 404, {"X-Error-Code": "RepoNotFound"}, b"{}"
        if repo in self.gated:
            return 403, {"X-Error-Code": "GatedRepo"}, b"{}"
        wanted = parts[5] if parts[0] == "api" and len(parts) > 5 else parts[3] if parts[0] != "api" else "main"
        commit = self.branches[repo].get(wanted, wanted)
        if commit not in self.files[repo]:
            return 404, {"X-Error-Code": "RevisionNotFound"}, b"{}"
        files = self.files[repo][commit]
        if parts[0] == "api" and len(parts) > 4 and parts[4] == "tree":
            tree = [{"type": "file", "path": n, "size": len(c), "oid": _oid(c)} for n, c in files.items()]
            return 200, {}, json.dumps(tree).encode()
        if parts[0] == "api":
            found = {"id": repo, "sha": commit, "siblings": [{"rfilename": name} for name in files]}
            return 200, {}, json.dumps(found).encode()
        name = "/".join(parts[4:])
        if name not in files:
            return 404, {"X-Error-Code": "EntryNotFound"}, b""
        return 200, {"ETag": f'"{_oid(files[name])}"', "X-Repo-Commit": commit}, files[name]

    def _taken(self, parts: list[str], body: bytes) -> tuple[int, dict[str, str], bytes]:
        if parts[1:] == ["repos", "create"]:
            self.created.append(json.loads(body))
            name = "/".join(str(self.created[-1][key]) for key in ("organization", "name"))
            return 200, {}, json.dumps({"url": f"{self.address}/{name}", "name": name}).encode()
        if "preupload" in parts:
            files = [
                {"path": each["path"], "uploadMode": "regular", "shouldIgnore": False}
                for each in json.loads(body)["files"]
            ]
            return 200, {}, json.dumps({"files": files}).encode()
        if "commit" in parts:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    self.uploaded[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            done = {"commitUrl": f"{self.address}/{'/'.join(parts[2:4])}/commit/{COMMIT}", "commitOid": COMMIT}
            return 200, {}, json.dumps({**done, "hookOutput": "", "success": True}).encode()
        return 200, {}, b"{}"


@contextmanager
def serving(hub: LocalHub) -> Iterator[str]:
    """Serve a hub; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            status, headers, body = hub.answer(self.command, urlsplit(self.path).path, self.rfile.read(length))
            self.send_response(status)
            for name, value in {
                "Content-Type": "application/json",
                "Content-Length": str(len(body)),
                **headers,
            }.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_HEAD = do_POST = _answer

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        hub.address = f"http://127.0.0.1:{server.server_port}"
        yield hub.address
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()
