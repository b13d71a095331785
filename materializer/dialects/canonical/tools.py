"""Reads the schemas of tools, and tool calls, in the forms of all dialects."""

from __future__ import annotations

import re
from typing import Any

from ratchet.contracts.errors import Rejected
from ratchet.materializer.dialects.values import MAX_NAME_BYTES, clean, dump, parse_json

_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parameters_json_schema", "parametersJsonSchema", "args_schema", "jsonSchema")
_KINDS = (None, "function", "custom_tool", "tool")
_CALL_KEYS = frozenset(
    (
        *(
            "id",
            "type",
            "index",
            "function",
            "name",
            "arguments",
            "args",
            "input",
            "parameters",
            "call_id",
            "status",
            "caller",
            "toolCallId",
        ),
        *("toolName", "toolCallType", "tool_call_id", "tool_name", "toolUseId", "dynamic", "invalid", "providerExecuted", "namespace"),
    )
)
_CALL_DETAILS = (
    "metadata",
    "signature",
    "options",
    "cache_control",
    "extra_content",
    "provider_specific_fields",
    "provider_data",
    "extras",
    "will_continue",
)
_SLUG = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


def named(value: Any) -> str:
    """Return a type or role for an error message; `another value` if it is not a short identifier, because it may quote a user."""
    return repr(value) if isinstance(value, str) and _SLUG.fullmatch(value) else "another value"


def unwrapped(value: Any) -> Any:
    """Return a value, parsed if it is a JSON object or list as text. Raises Rejected if it looks like one and is not valid JSON."""
    if isinstance(value, str) and value.lstrip()[:1] in ("{", "["):
        return parse_json(value)
    return value


def tools_of(value: Any) -> list[dict[str, Any]]:
    """Return the schemas of the available tools; an empty list if there are none.

    `value` is a list or a name -> schema object, or its JSON text. Raises Rejected `unknown_tool` for a tool that is no function, because
    a chat template cannot show it.
    """
    listed = unwrapped(value)
    if listed in (None, "", [], {}):
        return []
    if isinstance(listed, dict):
        listed = list(listed.values()) if not _is_schema(listed) else [listed]
    if not isinstance(listed, list):
        raise Rejected("unknown_tool", f"tools must be a list, not {type(listed).__name__}")
    return [tool for item in listed for tool in _tools(unwrapped(item))]


def _is_schema(item: dict[str, Any]) -> bool:
    return (
        isinstance(item.get("name"), str) or "function" in item or any(key in item for key in ("functionDeclarations", "toolSpec", "tools"))
    )


def _tools(item: Any) -> list[dict[str, Any]]:
    if not isinstance(item, dict):
        raise Rejected("unknown_tool", f"a tool must be an object, not {type(item).__name__}")
    several = item.get("function_declarations", item.get("functionDeclarations", item.get("tools")))
    if several is not None:
        if any(value for key, value in item.items() if key not in ("function_declarations", "functionDeclarations", "tools")):
            raise Rejected("unknown_tool", "a tool of the provider is no function")
        return tools_of(several)
    return [schema_of(item)]


def schema_of(item: dict[str, Any]) -> dict[str, Any]:
    """Return one tool as {"type": "function", "function": {name, description, parameters}}. Raises Rejected `unknown_tool`."""
    inner = item.get("function", item.get("toolSpec", item))
    if not isinstance(inner, dict) or item.get("type") not in _KINDS:
        raise Rejected("unknown_tool", f"the tool type {named(item.get('type'))} is no function")
    name = inner.get("name")
    if not isinstance(name, str) or not clean(name).strip():
        raise Rejected("unknown_tool", "a tool has no name")
    given = next((inner[key] for key in _SCHEMAS if inner.get(key) is not None), None)
    parameters = unwrapped(given)
    if isinstance(parameters, dict) and set(parameters) == {"json"}:
        parameters = unwrapped(parameters["json"])
    if isinstance(parameters, dict) and isinstance(parameters.get("jsonSchema"), dict):
        parameters = parameters["jsonSchema"]
    if parameters is None:
        parameters = {"type": "object", "properties": {}}
    if not isinstance(parameters, dict):
        raise Rejected("unknown_tool", f"the parameters of a tool must be an object, not {type(parameters).__name__}")
    description = inner.get("description")
    about = clean(description) if isinstance(description, str) else ""
    return {"type": "function", "function": {"name": clean(name), "description": about, "parameters": parameters}}


def call_of(item: Any) -> dict[str, Any]:
    """Return a tool call in the canonical form. `id` is None if the record has none.

    Raises Rejected `bad_tool_call` if it has no name, or if its arguments are no JSON object.
    """
    item = unwrapped(item)
    if not isinstance(item, dict):
        raise Rejected("bad_tool_call", f"a tool call must be an object, not {type(item).__name__}")
    inner = item.get("function")
    if isinstance(inner, str):  # some exporters write {"function": name, "arguments": …}
        inner = {"name": inner, "arguments": item.get("arguments")}
    holder = inner if isinstance(inner, dict) else item
    told = [key for each in (item, holder) for key, value in each.items() if value not in (None, "", [], {})]
    unknown = [key for key in told if key not in _CALL_KEYS and not str(key).lower().endswith(_CALL_DETAILS)]
    if unknown:
        raise Rejected("bad_tool_call", f"a tool call has the key {named(unknown[0])}, which is unknown")
    name = next((holder[key] for key in ("name", "toolName", "tool_name") if isinstance(holder.get(key), str)), None)
    if not name or not clean(name).strip() or len(name.encode()) > MAX_NAME_BYTES:
        raise Rejected("bad_tool_call", "a tool call has no name")
    given = next((holder[key] for key in ("arguments", "args", "input", "parameters") if holder.get(key) is not None), None)
    identity = next((item[key] for key in ("call_id", "id", "toolCallId", "tool_call_id", "toolUseId") if item.get(key)), None)
    return made_call(identity, name, given)


def made_call(identity: Any, name: str, arguments: Any) -> dict[str, Any]:
    """Return a canonical tool call. `arguments` is an object, its JSON text, or None. Raises Rejected `bad_tool_call`."""
    if identity is not None and (not isinstance(identity, str) or len(identity.encode()) > MAX_NAME_BYTES):
        raise Rejected("bad_tool_call", "the id of a tool call must be a short string")
    return {
        "id": (clean(identity) if identity else None) or None,
        "type": "function",
        "function": {"name": clean(name), "arguments": _arguments(arguments)},
    }


def _arguments(value: Any) -> str:
    if value is None or value == "":
        return "{}"
    if isinstance(value, str):
        try:
            parsed = parse_json(value)
        except Rejected as error:
            raise Rejected("bad_tool_call", f"the arguments of a tool call are not JSON: {error.reason}") from None
        if isinstance(parsed, str):  # encoded twice
            return _arguments(parsed) if parsed != value else "{}"
        text = clean(value)
    else:
        parsed, text = value, dump(value)
    if not isinstance(parsed, dict):
        raise Rejected("bad_tool_call", f"the arguments of a tool call must be an object, not {type(parsed).__name__}")
    return text
