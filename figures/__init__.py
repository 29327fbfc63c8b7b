"""Figures, drawn from result tables alone: `figures.catalog` has one row per figure."""
