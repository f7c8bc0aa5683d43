"""Processes that run what may abort, hang or eat memory, and that die with the one who started them.

`scheduler.run` takes tasks and gives what they report. It starts one server (`bootstrap`, then `server`), which loads the
compilers once and forks the workers (`worker`), keeps each stage within its budget, and removes what a killed worker left half
written. `death` ties lives together: command -> server -> worker. `verdict` says of a worker that died what a user needs.
"""
