"""Quantises a checkpoint: a model folder of 16 bits goes in, one in a published format and the errors of its weights come out.

`fp8` and `int4` round strips of a weight, `checkpoint` decides which weights and writes the folder, `command` is the command.
What is written is read back by `engine.formats`, which shares with these files the packing of nibbles and nothing else.
"""
