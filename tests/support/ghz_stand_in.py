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
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


def installed_ghz(folder: Path) -> Path:
    """Write the program `ghz` into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    program = folder / "ghz"
    program.write_text(f"#!{sys.executable}\n{Path(__file__).read_text(encoding='utf-8')}")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return folder


def calls_of(options: dict[str, Any]) -> Callable[[int], dict[str, Any]]:
    """Return a function that makes call i, with the next request on the next connection."""
    channels = [
        grpc.insecure_channel(options["host"], OPTIONS) for _ in range(options["connections"])
    ]
    symbol = options["call"].replace("/", ".")
    service, _, name = symbol.rpartition(".")
    files = ProtoReflectionDescriptorDatabase(channels[0])
    try:
        files.FindFileContainingSymbol(symbol)
    except KeyError:
        sys.exit(f"Symbol not found: {symbol}")
    except grpc.RpcError as error:
        sys.exit(_text(error))
    pool = DescriptorPool(files)
    method = pool.FindServiceByName(service).FindMethodByName(name)
    request, reply = map(GetMessageClass, (method.input_type, method.output_type))
    data = json.loads(Path(options["data-file"]).read_text(encoding="utf-8"))
    bodies = [
        json_format.ParseDict(each, request(), descriptor_pool=pool)
        for each in (data if isinstance(data, list) else [data])
    ]
    methods: list[Any] = [
        channel.unary_unary(
            f"/{service}/{name}",
            request_serializer=request.SerializeToString,
            response_deserializer=reply.FromString,
        )
        for channel in channels
    ]
    timeout = _seconds(options["timeout"])

    def call(number: int) -> dict[str, Any]:
        begin, status, fault = time.perf_counter(), "OK", ""
        try:
            methods[number % len(methods)](bodies[number % len(bodies)], timeout=timeout)
        except grpc.RpcError as error:
            status, fault = _name(error), _text(error)
        latency = round((time.perf_counter() - begin) * 1e9)
        return {"latency": latency, "error": fault, "status": status}

    return call


def _name(error: grpc.RpcError) -> str:
    return str(error.code().name.title().replace("_", ""))


def _text(error: grpc.RpcError) -> str:
    return f"rpc error: code = {_name(error)} desc = {error.details()}"


def _seconds(text: str) -> float:
    """Read a duration as Go writes it: 1000ms or 20s."""
    return float(text[:-2]) / 1e3 if text.endswith("ms") else float(text[:-1])


def _run(options: dict[str, Any]) -> dict[str, Any]:
    call = calls_of(options)
    begin, rate = time.perf_counter(), options["rps"]
    count = round(rate * _seconds(options["duration"])) if rate else options["total"]
    ended = []
    with ThreadPoolExecutor(options["concurrency"]) as threads:
        for number in range(count):
            if rate:  # at even distances
                time.sleep(max(0.0, begin + number / rate - time.perf_counter()))
            ended.append(threads.submit(call, number))
    total = time.perf_counter() - begin
    details = [each.result() for each in ended]
    return {
        "options": {key: options[key] for key in ("host", "call", "rps", "connections")},
        "count": len(details),
        "total": round(total * 1e9),
        "slowest": max((each["latency"] for each in details if not each["error"]), default=0),
        "rps": len(details) / total,
        "errorDistribution": Counter(each["error"] for each in details if each["error"]),
        "statusCodeDistribution": Counter(each["status"] for each in details),
        "details": details,
    }


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
    parser.add_argument("host")
    given = vars(parser.parse_args(arguments))
    defaults: dict[str, Any] = {
        "total": 200, "concurrency": 50, "connections": 1, "rps": 0, "timeout": "20s",
        "output": None, "insecure": False,
    }  # fmt: skip
    config = given.pop("config", None)
    return {**defaults, **(json.loads(config.read_text()) if config else {}), **given}


def main(arguments: list[str]) -> None:
    options = _options(arguments)
    if not options["insecure"]:
        sys.exit("this stand-in has no TLS: give --insecure")
    result = _run(options)
    if options["output"] is not None:
        options["output"].write_text(json.dumps(result), encoding="utf-8")
        return
    print("Status code distribution:")
    for status, count in result["statusCodeDistribution"].items():
        print(f"  [{status}]   {count} responses")


if __name__ == "__main__":
    main(sys.argv[1:])
