"""Analyses of a StepGraph, the operations and buffers of one step of a model: memory plan, verifier, traffic, drawing."""
