"""Ask gRPC's health service, and exit with 0 if the server in this container serves Retrieve.

The check runs every ten seconds, so it does not import `grace`, which would take longer than the
check itself. The defaults fit docker/serve.yaml. These environment variables replace them:

GRACE_HEALTH_ADDRESS      HOST:PORT, by default 127.0.0.1:50051
GRACE_HEALTH_CA           PEM file of the CA that signed the server's certificate; turns TLS on
GRACE_HEALTH_CERTIFICATE  PEM file of a client certificate, with GRACE_HEALTH_KEY, if
                          `listen.tls.client_ca` asks for one
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

SERVICE = "grace.v1.AdsRetrieval"
SECONDS = 4.0  # less than the time-out of the image's health check


def content(variable: str) -> bytes | None:
    path = os.environ.get(variable)
    return Path(path).read_bytes() if path else None


def main() -> int:
    address = os.environ.get("GRACE_HEALTH_ADDRESS", "127.0.0.1:50051")
    ca = content("GRACE_HEALTH_CA")
    if ca is None:
        channel = grpc.insecure_channel(address)
    else:
        key, certificate = content("GRACE_HEALTH_KEY"), content("GRACE_HEALTH_CERTIFICATE")
        channel = grpc.secure_channel(address, grpc.ssl_channel_credentials(ca, key, certificate))
    with channel:
        try:
            reply = health_pb2_grpc.HealthStub(channel).Check(
                health_pb2.HealthCheckRequest(service=SERVICE), timeout=SECONDS
            )
        except grpc.RpcError as error:
            print(f"{address}: {error.code().name}: {error.details()}")
            return 1
    print(f"{address}: {health_pb2.HealthCheckResponse.ServingStatus.Name(reply.status)}")
    return 0 if reply.status == health_pb2.HealthCheckResponse.SERVING else 1


if __name__ == "__main__":
    sys.exit(main())
