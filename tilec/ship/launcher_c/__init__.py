"""Launchers in C: a verified bundle goes in, a header and a source with one checked function per kernel come out."""
