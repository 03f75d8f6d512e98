"""A small Hub: the few addresses that huggingface_hub asks for weights, answered from a folder, and counted."""

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@contextlib.contextmanager
def hub_of(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """(address, requests so far) of a Hub whose repositories are ``folder/org/name``, all at one commit, main."""
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET(body=False)

        def do_GET(self, body: bool = True) -> None:
            path = self.path.partition("?")[0]
            asked.append(f"{self.command} {path}")
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
                repository, revision = folder / found[1], found[2]
                if not repository.is_dir():
                    return self.refuse("RepoNotFound")
                if revision not in ("main", COMMIT):
                    return self.refuse("RevisionNotFound")
                files = [file for file in sorted(repository.rglob("*")) if file.is_file()]
                entries = [
                    {
                        "type": "file",
                        "path": file.relative_to(repository).as_posix(),
                        "size": file.stat().st_size,
                        "oid": hashlib.sha1(file.read_bytes()).hexdigest(),
                    }
                    for file in files
                ]
                return self.answer(json.dumps(entries).encode(), body, {"Content-Type": "application/json"})
            if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                file = folder / found[1] / found[3]
                if not file.is_file():
                    return self.refuse("EntryNotFound")
                etag = hashlib.sha256(file.read_bytes()).hexdigest()
                return self.answer(file.read_bytes(), body, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT})
            return self.refuse("RepoNotFound")

        def refuse(self, code: str) -> None:
            self.send_response(404)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def answer(self, data: bytes, body: bool, headers: dict[str, str]) -> None:
            self.send_response(200)
            for name, value in {**headers, "Content-Length": str(len(data))}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
