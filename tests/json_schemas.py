"""Documents that commands print with `--json`, validated by docs/json-schemas.json."""

import json
from pathlib import Path

import jsonschema

SOURCE = Path(__file__).parents[1] / "docs" / "json-schemas.json"
SCHEMAS = json.loads(SOURCE.read_text())


def validated(text):
    """Return the document in the output of a command, which must match its schema and have no other keys."""
    document = json.loads(text)
    assert next(iter(document)) == "schema"
    jsonschema.validate(document, closed(SCHEMAS[document["schema"]]))
    return document


def closed(schema):
    """Return a schema that rejects undocumented keys."""
    if isinstance(schema, list):
        return [closed(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    extra = {} if "additionalProperties" in schema or "properties" not in schema else {"additionalProperties": False}
    return {key: closed(value) for key, value in schema.items()} | extra


def formatted(value, indent="", prefix=""):
    """Return the text of schemas: an object that fits takes one line, so that a diff shows the changed keys only."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, dict) or len(indent + prefix + line) < 120:
        return line
    items = []
    for key, item in value.items():
        name = f"{json.dumps(key)}: "
        items.append(f"{indent}  {name}{formatted(item, f'{indent}  ', name)}")
    return "{\n" + ",\n".join(items) + f"\n{indent}}}"
