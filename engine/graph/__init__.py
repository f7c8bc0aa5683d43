"""The StepGraph: what one step of a model does, as operations on buffers, for prefill and decode alike."""
