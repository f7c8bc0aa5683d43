"""`tilec build`: build.toml in, CUBINs with manifests out.

`buildfile` reads the file, `plan` lists one artifact per kernel, specialisation and architecture with its cache key, `driver`
finds the artifacts that are up to date, `job` makes the rest in worker processes (`worker`), `report` prints.
"""
