"""A model family: its parameters, from config.json, and its step."""
