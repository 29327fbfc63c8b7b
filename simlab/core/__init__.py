"""Shared base of all packages: records, catalogs, random streams, results with manifests, experiments."""
