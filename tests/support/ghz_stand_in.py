"""A stand-in for the load tool ghz, which no package registry has.

It learns the method from the server as ghz does: it asks reflection for the file that contains the
*method*. It uses none of our stubs, reads requests from JSON, and prints or writes a result in
ghz's form.
`installed_ghz` puts it into a folder as a program.
"""

import argparse
import json
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

MESSAGE_SIZES = (("grpc.max_receive_message_length", -1),)


def installed_ghz(folder: Path) -> Path:
    """Write the program `ghz` into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    program = folder / "ghz"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text(encoding='utf-8')}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


class GhzError(Exception):
    """An error that ghz prints before it exits with 1."""


class Calls:
    """The calls of one run, on N connections, each call with the next request of the data file."""

    def __init__(self, options: dict[str, Any]) -> None:
        channels = [
            grpc.insecure_channel(
                options["host"], (*MESSAGE_SIZES, ("grpc.use_local_subchannel_pool", 1))
            )
            for _ in range(options["connections"])
        ]
        symbol = options["call"].replace("/", ".")
        service, _, name = symbol.rpartition(".")
        files = ProtoReflectionDescriptorDatabase(channels[0])
        try:
            files.FindFileContainingSymbol(symbol)
        except KeyError:
            raise GhzError(f"Symbol not found: {symbol}") from None
        except grpc.RpcError as error:
            raise GhzError(_text(error)) from None
        pool = DescriptorPool(files)
        method = pool.FindServiceByName(service).FindMethodByName(name)
        request, self._reply = map(GetMessageClass, (method.input_type, method.output_type))
        data = json.loads(Path(options["data-file"]).read_text(encoding="utf-8"))
        self._bodies = [
            json_format.ParseDict(each, request(), descriptor_pool=pool)
            for each in (data if isinstance(data, list) else [data])
        ]
        self._methods: list[Any] = [
            channel.unary_unary(
                f"/{service}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=self._reply.FromString,
            )
            for channel in channels
        ]
        self._timeout = _seconds(options["timeout"])
        self.details: list[dict[str, Any]] = []

    def make(self, number: int) -> None:
        begin, status, fault = time.perf_counter(), "OK", ""
        body = self._bodies[number % len(self._bodies)]
        try:
            self._methods[number % len(self._methods)](body, timeout=self._timeout)
        except grpc.RpcError as error:
            status, fault = _name(error), _text(error)
        now = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        latency = round((time.perf_counter() - begin) * 1e9)
        detail = {"timestamp": now, "latency": latency, "error": fault, "status": status}
        self.details.append(detail)


def _name(error: grpc.RpcError) -> str:
    return str(error.code().name.title().replace("_", ""))


def _text(error: grpc.RpcError) -> str:
    return f"rpc error: code = {_name(error)} desc = {error.details()}"


def _seconds(text: str) -> float:
    """Read a duration as Go writes it: 1000ms or 20s."""
    return float(text[:-2]) / 1e3 if text.endswith("ms") else float(text[:-1])


def _result(options: dict[str, Any], details: list[dict[str, Any]], total: float) -> dict[str, Any]:
    good = sorted(each["latency"] for each in details if each["status"] == "OK")

    def counts(field: str) -> dict[str, int]:
        values = [each[field] for each in details if each[field]]
        return {value: values.count(value) for value in sorted(set(values))}

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "endReason": "timeout" if options["duration"] else "normal",
        "options": {key: options[key] for key in ("host", "call", "rps", "connections")},
        "count": len(details),
        "total": round(total * 1e9),
        "fastest": good[0] if good else 0,
        "slowest": good[-1] if good else 0,
        "rps": len(details) / total,
        "errorDistribution": counts("error"),
        "statusCodeDistribution": counts("status"),
        "details": details,
    }


def _run(options: dict[str, Any]) -> dict[str, Any]:
    calls = Calls(options)
    begin, rate = time.perf_counter(), options["rps"]
    count = round(rate * _seconds(options["duration"])) if rate else options["total"]
    with ThreadPoolExecutor(options["concurrency"]) as pool:
        for number in range(count):
            if rate:  # at even distances
                time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            pool.submit(calls.make, number)
    return _result(options, calls.details, time.perf_counter() - begin)


def _options(arguments: list[str]) -> dict[str, Any]:
    parser = argparse.ArgumentParser("ghz", argument_default=argparse.SUPPRESS, allow_abbrev=False)
    for option, kind in {"call": str, "connections": int, "timeout": str, "config": Path}.items():
        parser.add_argument(f"--{option}", type=kind)
    parser.add_argument("--insecure", action="store_true")
    parser.add_argument("-D", "--data-file", dest="data-file")
    parser.add_argument("-n", "--total", type=int)
    parser.add_argument("-c", "--concurrency", type=int)
    parser.add_argument("-r", "--rps", type=int)
    parser.add_argument("-z", "--duration")
    parser.add_argument("-o", "--output", type=Path)
    parser.add_argument("-O", "--format")
    parser.add_argument("host")
    given = vars(parser.parse_args(arguments))
    defaults: dict[str, Any] = {
        "total": 200, "concurrency": 50, "connections": 1, "rps": 0, "duration": "",
        "timeout": "20s", "format": "summary", "output": None, "insecure": False,
    }  # fmt: skip
    config = given.pop("config", None)
    return {**defaults, **(json.loads(config.read_text()) if config else {}), **given}


def main(arguments: list[str]) -> int:
    options = _options(arguments)
    try:
        if not options["insecure"]:
            raise GhzError("this stand-in has no TLS: give --insecure")
        result = _run(options)
    except GhzError as error:
        print(error, file=sys.stderr)
        return 1
    text = json.dumps(result)
    if options["format"] == "summary":
        statuses = result["statusCodeDistribution"].items()
        lines = (f"  [{status}]   {count} responses" for status, count in statuses)
        text = "\n".join(("Status code distribution:", *lines))
    if options["output"] is None:
        print(text)
    else:
        options["output"].write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
