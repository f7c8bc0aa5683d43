"""The tile IR: types, operations, text form and verifier. Of the compiler it imports only source spans."""
