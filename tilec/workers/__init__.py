"""Worker processes for code that can abort, hang or exhaust memory. They end when their parent process ends.

`scheduler.run` runs tasks and yields their reports. It starts one server (`bootstrap`, then `server`), which loads the
compilers once, forks the workers (`worker`), kills stages over their budget, and removes partial files of killed workers.
`death` makes each process end with its parent: command -> server -> worker. `verdict` makes a diagnostic of a worker's death.
"""
