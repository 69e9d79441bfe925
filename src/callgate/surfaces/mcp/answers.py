"""Whether what a client answers is an answer to what it was asked."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import mcp_types as types


def fits(request: types.InputRequest, said: object) -> bool:
    match request:
        case types.ElicitRequest():
            return isinstance(said, types.ElicitResult) and _fills_in(request.params, said)
        case types.CreateMessageRequest():
            return isinstance(said, types.CreateMessageResult | types.CreateMessageResultWithTools)
        case types.ListRootsRequest():
            return isinstance(said, types.ListRootsResult)


def _fills_in(form: Any, said: types.ElicitResult) -> bool:
    if said.action != "accept" or not isinstance(form, types.ElicitRequestFormParams):
        return True
    try:  # a schema that a foreign tool may have written
        form_is = jsonschema_rs.validator_for(form.requested_schema, offline=True)
    except (ValueError, jsonschema_rs.ValidationError):
        return False
    return bool(form_is.is_valid(said.content or {}))
