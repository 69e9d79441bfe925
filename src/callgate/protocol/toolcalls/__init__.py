"""Tool calls that a model writes as text: a JSON object with a list `toolCalls`.

    text -> find: documents, fences, prose -> mend: values -> judge: calls -> `Parsed`

Start with `parse.parse`. msgspec alone reads a text in exactly the documented form (`quick`); any
other text needs the full reader. `stream.CallStream` gives the same answers while the text arrives,
and the text that a user may already read (`preview`, `find.Prose`). `teach.teach` describes the
format to a model.

Strict mode requires the exact format. Tolerant mode also accepts a text with only one possible
meaning, and reports it: then `Parsed.repaired` is set, and a call with effects needs approval.
Neither mode returns a call without its closing brace.
"""
