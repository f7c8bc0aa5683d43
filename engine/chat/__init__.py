"""`python -m engine chat`: a conversation in a terminal, with a model in this process or with a server.

In: lines of text. Out: replies, piece by piece. `session` has the conversation and its commands; `local` and `remote` are the
two speakers of `speaker`, which reply to a conversation and can be interrupted; `command` has the options.
"""
