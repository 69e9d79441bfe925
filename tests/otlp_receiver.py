"""An OTLP collector on loopback: decodes what is sent with the published protobuf messages."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.http_receiver import Receiver, receiving


class ReceivedSpan(NamedTuple):
    name: str
    trace: str
    id: str
    parent: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any]
    is_error: bool


class Collector:
    def __init__(self, receiver: Receiver) -> None:
        self.receiver = receiver
        self.url = receiver.url

    def _messages(self, path: str, kind: type[Any]) -> Iterator[Any]:
        for request in list(self.receiver.requests):
            if request.path == path:
                body = request.body
                if request.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                yield kind.FromString(body)

    @property
    def resources(self) -> list[dict[str, Any]]:
        return [
            _values(each.resource.attributes)
            for message in self._messages("/v1/traces", ExportTraceServiceRequest)
            for each in message.resource_spans
        ]

    @property
    def spans(self) -> list[ReceivedSpan]:
        return [
            ReceivedSpan(
                span.name,
                span.trace_id.hex(),
                span.span_id.hex(),
                span.parent_span_id.hex(),
                span.start_time_unix_nano,
                span.end_time_unix_nano,
                _values(span.attributes),
                span.status.code == 2,
            )
            for message in self._messages("/v1/traces", ExportTraceServiceRequest)
            for resource in message.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    @property
    def metrics(self) -> dict[str, list[Any]]:
        """The data points of the last message, by the name of the metric."""
        found: dict[str, list[Any]] = {}
        for message in self._messages("/v1/metrics", ExportMetricsServiceRequest):
            for resource in message.resource_metrics:
                for scope in resource.scope_metrics:
                    for metric in scope.metrics:
                        found[metric.name] = list(getattr(metric, metric.WhichOneof("data")).data_points)
        return found

    def wait_for_spans(self, count: int) -> list[ReceivedSpan]:
        self.receiver.wait(lambda _: len(self.spans) >= count)
        return self.spans


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@contextmanager
def collecting(port: int = 0) -> Iterator[Collector]:
    with receiving(port) as receiver:
        yield Collector(receiver)
