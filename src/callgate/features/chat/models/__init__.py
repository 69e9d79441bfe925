"""Language models behind the port `core.models`: start with `make`, which loads one adapter.

    make -> anthropic | openai_chat | openai_responses -> http -> replies
         -> local -> openai_chat
         -> scripted

An adapter translates a prompt into a request, and the events of the stream into pieces. `replies`
decodes the stream and collects the pieces; `http` implements requests, retries and time limits. An
import of this package loads no adapter.
"""
