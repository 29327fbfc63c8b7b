"""Experiments that compare many arms: leaderboards, models."""
