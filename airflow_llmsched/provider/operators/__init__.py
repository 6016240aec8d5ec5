"""Operators of a pretraining pipeline."""
