"""Reports about calls: export, telemetry, notifications, rule suggestions, back-tests.

    export_formats, export_sinks   the audit log for other programs (`callgate audit export`)
    tracing, spans, prometheus     spans and metrics, from the audit log
    question_notices, notices      notices about open questions
    recorded_calls                 the information about a call in its record
    rejudging, backtests           the decision of one set of settings about it; two sets compared
    narrow_rules, suggesting       rules for repeated approvals

The log contains all data of a span, so telemetry delays no call. The record includes the parent
span if telemetry is enabled, and the ids of spans are derived from the call's id (`core.ids`).
Nothing is buffered in memory, so an unavailable collector loses nothing, and a call that ended with
its process has a span, too. Export is at least once: a record keeps its id if it is sent again.
"""
