"""What a family of models is: its numbers, from config.json, and its step."""
