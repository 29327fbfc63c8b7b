"""Shared base of all packages: catalogs, random streams, results with manifests, experiments."""
