"""What runs a StepGraph: a GPU through prebuilt CUBINs, or the tile interpreter."""
