"""Spans and metrics of calls, made from the audit log: no call waits for them.

`spans` says what a record becomes, `pipeline` speaks OpenTelemetry (the extra `otel`), `sender`
reads the log and sends, `tracing` is what a runtime has of it, `prometheus` answers `/metrics`.

The log has all that a span needs but its parent, which stands in the record where telemetry is on;
the ids of spans follow from the id of the call (`core.text.traces`). So nothing is kept in
memory, a collector that is away loses nothing, and a call that ended with its process has its
span, too.
"""
