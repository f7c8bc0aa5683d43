"""Conversion between text and tokens: a model folder's tokenizer and chat template."""
