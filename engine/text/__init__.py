"""Text and tokens: a model folder's tokenizer and chat template, prompts in, pieces of an answer out."""
