"""PTX text to data: lexer, parser and the syntax that they produce. Unknown constructs raise `UnsupportedPtx`."""
