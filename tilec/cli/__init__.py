"""The `tilec` command. Data goes to stdout, progress and diagnostics to stderr.

Exit status: 0 done; 1 a kernel was refused, a budget exceeded, an entry found damaged, a bundle refused or different; 2 wrong
usage, a bad build file, a file that cannot be read, or an unusable environment; 130 interrupted, 129 and 143 ended by SIGHUP
and SIGTERM (128 + signal). However it ends, SIGKILL included, all workers end and all locks are released.

Commands import their modules when they run, so that a build with nothing to do starts fast.
"""
