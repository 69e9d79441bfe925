"""Tool calls that a model writes as text: a JSON object with a list `toolCalls`.

    text -> find: documents, fences, prose -> mend: values -> judge: calls -> `Parsed`

Start with `parse.parse`. A text in exactly the form asked for is read by msgspec alone (`quick`);
only one that is not goes the long way. `stream.CallStream` gives the same answers while the text
arrives, and what a person may read of it meanwhile (`preview`, `prose`). `teach.teach` is what a
model is told about the format.

Strict mode takes the format to the letter. Tolerant mode also takes what can mean only one
thing, and says so: then `Parsed.repaired` is set, and a call with effects needs a person's
consent. In both, a call whose own closing brace was not seen is never handed over.
"""
