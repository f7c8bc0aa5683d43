"""`tilec build`: build.toml in, CUBINs with manifests out.

`buildfile` reads the file, `plan` makes one artifact per kernel, specialisation and architecture and finds what is up to date,
`scheduler` runs the rest in worker processes (`worker`), `driver` joins them, `report` prints.
"""
