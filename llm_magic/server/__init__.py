"""A model of this process as an OpenAI-compatible endpoint on this machine.

Comes in: HTTP requests of other programs. Goes out: answers of an `LLM`, as the official client
reads them. In this package: running.py starts and stops a server, guard.py refuses who may not
call, routes.py says what there is, asks.py reads bodies, answers.py sends replies in the shapes of
chat.py and text.py, reading.py reads the model's streams on threads beside the event loop.
It must not know notebooks.
"""
