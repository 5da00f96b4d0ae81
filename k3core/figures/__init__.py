"""Figures: tidy tables in, named Altair charts out. They know columns, never mechanisms."""
