"""A Hub on this machine, with as much of its API as whoami, create_repo and upload_folder use."""

import base64
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class LocalHub(ThreadingHTTPServer):
    """Keeps what is uploaded, and fails where it is told to.

    Attributes:
        files: the content of each uploaded file, by repository and name.
        fails: the status of the answers to a kind of request; None: there is no answer from then on.
        tokens: those that it was asked with.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Answers)
        self.files, self.fails, self.tokens = {}, {}, set()
        self.url = f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address):
        """Nothing is printed when a connection breaks, which is meant to."""


class _Answers(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer("whoami" if self.path == "/api/whoami-v2" else "unknown", b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = {"create": "create", "preupload": "preupload", "commit": "commit", "validate-yaml": "card"}
        self.answer(next((kind for word, kind in asked.items() if word in self.path.split("/")), "unknown"), body)

    def answer(self, kind, body):
        self.server.tokens.add(self.headers["Authorization"])
        status = self.server.fails.get(kind, 404 if kind == "unknown" else 200)
        if status is None:
            self.server.fails |= dict.fromkeys(("whoami", "create", "card", "preupload", "commit", "unknown"))
            self.close_connection = True
            return
        value = getattr(self, kind)(body) if status == 200 else {"error": "planted"}
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def whoami(self, _):
        return {"name": "me"}

    def create(self, body):
        asked = json.loads(body)
        repository = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self.server.files.setdefault(repository, {})
        return {"url": f"{self.server.url}/{repository}"}

    def card(self, _):
        return {"errors": [], "warnings": []}

    def preupload(self, body):
        """Every file is small enough to come with the commit."""
        modes = {"uploadMode": "regular", "shouldIgnore": False}
        return {"files": [{"path": file["path"], **modes} for file in json.loads(body)["files"]]}

    def commit(self, body):
        repository = "/".join(self.path.split("/")[3:5])
        files = [line["value"] for line in map(json.loads, body.splitlines()) if line["key"] == "file"]
        self.server.files[repository] |= {file["path"]: base64.b64decode(file["content"]) for file in files}
        return {"commitUrl": f"{self.server.url}/{repository}/commit/1", "commitOid": "1"}

    def log_message(self, *_):
        """Tests print no requests."""
