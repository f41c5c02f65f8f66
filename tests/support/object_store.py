"""A store that speaks as much of S3 as reading a table needs: HEAD, GET with ranges, and lists."""

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


@contextmanager
def object_store(folder: Path) -> Iterator[str]:
    """Serve the folder's sub-folders as buckets; yield the query that an `s3://` URL ends with."""

    class Requests(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            query = parse_qs(url.query)
            if "list-type" in query:
                self._list(unquote(url.path).strip("/"), query.get("prefix", [""])[0])
            else:
                self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            file = folder / unquote(urlsplit(self.path).path).lstrip("/")
            if not file.is_file():
                self._send(404, b"", {})
                return
            content, headers = file.read_bytes(), {"Last-Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
            if "Range" not in self.headers:
                self._send(200, content, headers, with_body)
                return
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            end = min(len(content), int(last) + 1)
            headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
            self._send(206, content[int(first) : end], headers, with_body)

        def _list(self, bucket: str, prefix: str) -> None:
            keys = [
                (str(file.relative_to(folder / bucket)), file.stat().st_size)
                for file in sorted((folder / bucket).rglob("*"))
                if file.is_file() and str(file.relative_to(folder / bucket)).startswith(prefix)
            ]
            found = "".join(
                f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
                "<LastModified>2015-10-21T07:28:00.000Z</LastModified></Contents>"
                for key, size in keys
            )
            facts = f"<IsTruncated>false</IsTruncated><KeyCount>{len(keys)}</KeyCount>"
            body = f"<?xml version='1.0'?><ListBucketResult>{facts}{found}</ListBucketResult>"
            self._send(200, body.encode(), {"Content-Type": "application/xml"})

        def _send(
            self, status: int, body: bytes, headers: dict[str, str], with_body: bool = True
        ) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Requests)
    thread = Thread(target=server.serve_forever, name="object-store")
    thread.start()
    try:
        yield f"?scheme=http&endpoint_override=127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
