"""Whether what a client answers is an answer to what it was asked."""

from __future__ import annotations

from typing import Any

import mcp_types as types

from callgate.core.json_schema.schemas import ForeignSchema


def fits(request: types.InputRequest, response: object) -> bool:
    match request:
        case types.ElicitRequest():
            return isinstance(response, types.ElicitResult) and _fills_in(request.params, response)
        case types.CreateMessageRequest():
            return isinstance(
                response, types.CreateMessageResult | types.CreateMessageResultWithTools
            )
        case types.ListRootsRequest():
            return isinstance(response, types.ListRootsResult)


def _fills_in(form: Any, result: types.ElicitResult) -> bool:
    if result.action != "accept" or not isinstance(form, types.ElicitRequestFormParams):
        return True
    try:  # a foreign tool may have written it
        schema = ForeignSchema(form.requested_schema, plain=True)
    except ValueError:
        return False
    return bool(schema.is_valid(result.content or {}))
