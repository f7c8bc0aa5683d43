"""The version of tilec, as manifests record it."""

VERSION = "0.1.0"
