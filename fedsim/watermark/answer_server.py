"""A small HTTP server that answers for a model, as somebody who sells predictions would.

It tells nothing but probabilities: `POST {"x": [[..]], "edge_index": [[..], [..]]}`.
"""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch

from fedsim.errors import FedsimError
from fedsim.watermark.suspect import Query


def server(query: Query, port: int = 0, host: str = "127.0.0.1") -> ThreadingHTTPServer:
    """A server that answers with `query`; the caller runs and closes it.

    Args:
        query: (x, edge_index) -> probabilities.
        port: 0: any free one, told by `server_address`.
        host: to listen on; the default is reachable from this machine alone.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            """Answer one question."""
            length = int(self.headers.get("Content-Length", 0))
            status, content = answer(query, self.rfile.read(length))
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Silence."""

    return ThreadingHTTPServer((host, port), Handler)


def answer(query: Query, body: bytes) -> tuple[int, dict[str, Any]]:
    """(HTTP status, content) for the body of one request."""
    try:
        content = json.loads(body)
        x = torch.tensor(content["x"], dtype=torch.float32)
        edge_index = torch.tensor(content["edge_index"], dtype=torch.int64).reshape(2, -1)
        return 200, {"probabilities": query(x, edge_index).tolist()}
    except (ValueError, KeyError, TypeError, RuntimeError, IndexError, FedsimError) as error:
        return 400, {"error": f"{type(error).__name__}: {error}"}
