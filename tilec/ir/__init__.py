"""The tile IR: types, operations, text form and verifier. Imports nothing of the compiler but source spans."""
