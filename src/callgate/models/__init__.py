"""Language models behind the port `core.models`: start with `make`, which loads one adapter.

    make -> anthropic | openai_chat | openai_responses -> http -> sse, failures
         -> scripted                        |
         -> local -> openai_chat            +--> *_events -> replies

An adapter turns a prompt into its dialect and the events of the stream into pieces. What a
stream adds up to is kept by `replies`; requests, retries and time limits are those of `http`.
Importing this package loads none of them.
"""
